/* emit_matmul.c - emitters of linear layers with their epilogues, and of their gradients. */
#include "backend/xla/emit.h"

static bool is_fast(rf_emit *e, const rf_op *op) {
  if (op->attr.matmul.fast) rf_emit_refuse(e, "products with rounded activations have no XLA form");
  return op->attr.matmul.fast;
}

/* bias (N), repeated to (M,N). If chips sum their products, only the first chip adds the bias. */
static rf_val bias_of(rf_emit *e, const rf_op *op, int64_t rows) {
  rf_hlo *h = e->h;
  rf_val bias = rf_emit_wide(e, op, 2);
  if (rf_mesh_size(&e->graph->mesh, op->attr.axes) > 1) {
    rf_val first = rf_hlo_compare_c(h, RF_HLO_EQ, rf_emit_rank(e, op->attr.axes), 0);
    bias = rf_hlo_select(h, first, bias, rf_hlo_scalar(h, RF_HLO_F32, 0));
  }
  return rf_emit_across_rows(e, bias, rows);
}

/* x w. For a single row, compilers for GPUs write all products with the elements of a matrix to
 * memory before the sum. For two rows, one kernel computes the whole product at the speed of
 * reading the matrix. */
static rf_val product_of(rf_emit *e, rf_val x, rf_val w, bool transpose, rf_hlo_type type) {
  rf_hlo *h = e->h;
  if (!e->target.two_rows || x.dim[0] != 1) return rf_emit_product(h, x, false, w, transpose, type);
  rf_val two = rf_hlo_broadcast(h, x, (const int[]){0, 1}, RF_DIMS(2, x.dim[1]));
  return rf_hlo_slice(h, rf_emit_product(h, two, false, w, transpose, type), 0, 0, 1);
}

static void emit_matmul(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  const rf_attr_matmul *attr = &op->attr.matmul;
  if (is_fast(e, op)) return;
  rf_val x = rf_emit_in(e, op, 0), w = rf_emit_in(e, op, 1);
  int result = rf_emit_wants(op, 0) ? 0 : 1;
  bool plain = attr->epilogue == RF_EPILOGUE_NONE && !rf_has(rf_emit_in(e, op, 2));
  /* The product is rounded once. A product without a bias or a residual is rounded here. Libraries
   * for GPUs can add a bias of the result's type before rounding. Then such a product writes only
   * half the bytes. */
  bool narrow = e->target.narrow_bias && x.type == RF_HLO_BF16 && w.type == RF_HLO_BF16 &&
                rf_has(rf_emit_in(e, op, 2)) && rf_mesh_size(&e->graph->mesh, op->attr.axes) == 1;
  rf_hlo_type type = plain ? rf_emit_out_type(e, op, result) : narrow ? RF_HLO_BF16 : RF_HLO_F32;
  rf_val u = product_of(e, x, w, attr->transpose, type);
  if (narrow) {
    rf_val bias = rf_hlo_convert(h, rf_emit_wide(e, op, 2), RF_HLO_BF16);
    u = rf_hlo_convert(h, rf_hlo_add(h, u, rf_emit_across_rows(e, bias, x.dim[0])), RF_HLO_F32);
  } else if (rf_has(rf_emit_in(e, op, 2))) u = rf_hlo_add(h, u, bias_of(e, op, x.dim[0]));
  if (!plain) u = rf_emit_rounded(e, op, result, u);
  rf_emit_out(e, op, 0, u);
  if (attr->epilogue == RF_EPILOGUE_GELU) rf_emit_out(e, op, 1, rf_emit_gelu(h, u));
  if (attr->epilogue == RF_EPILOGUE_RESIDUAL)
    rf_emit_out(e, op, 1, rf_hlo_add(h, rf_emit_wide(e, op, 3), rf_emit_drop(e, op, u)));
}

static void emit_matmul_dx(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  if (is_fast(e, op)) return;
  rf_val u = rf_emit_wide(e, op, 2);
  int result = rf_emit_wants(op, 0) ? 0 : 1;
  rf_val dx = rf_emit_product(h, rf_emit_in(e, op, 0), false, rf_emit_in(e, op, 1),
                              !op->attr.matmul.transpose, rf_emit_out_type(e, op, result));
  rf_emit_out(e, op, 0, dx);
  if (!rf_emit_wants(op, 1)) return;
  dx = rf_hlo_convert(h, dx, RF_HLO_F32);
  rf_emit_out(e, op, 1, rf_has(u) ? rf_hlo_multiply(h, dx, rf_emit_gelu_slope(h, u)) : dx);
}

static void emit_matmul_dw(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val x = rf_emit_in(e, op, 0), dy = rf_emit_in(e, op, 1);
  bool transpose = op->attr.matmul.transpose;
  if (is_fast(e, op)) return;
  if (rf_emit_wants(op, 0))
    rf_emit_out(e, op, 0,
                rf_emit_product(h, transpose ? dy : x, true, transpose ? x : dy, false, RF_HLO_F32));
  if (rf_emit_wants(op, 1)) rf_emit_out(e, op, 1, rf_hlo_reduce(h, RF_HLO_SUM, rf_emit_wide(e, op, 1), 0));
}

const rf_emitter RF_EMIT_MATMUL[] = {
    {&RF_OP_MATMUL, emit_matmul, NULL},
    {&RF_OP_MATMUL_DX, emit_matmul_dx, NULL},
    {&RF_OP_MATMUL_DW, emit_matmul_dw, NULL},
    {0},
};
