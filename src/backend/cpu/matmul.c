/* matmul.c - the three ops of a linear layer as products of gemm.h: the operands A and B, and the
 * epilogue. A weight is (K,N), or (N,K) with attr.transpose. Only the strides differ. */
#include "backend/cpu/product.h"

static bool takes_numbers(const rf_graph *graph, const rf_op *op) { /* f64 runs on the reference */
  for (int i = 0; i < op->input_count; i++) {
    if (op->input[i] == RF_NONE) continue;
    rf_dtype dtype = graph->tensor[op->input[i]].dtype;
    if (!rf_is_activation(dtype) && !(i == 1 && dtype == RF_PACKED)) return false;
  }
  return true;
}

/* Sets the sizes, strides and dtypes of a product, which determine its workspace. Inputs 0 and 1
 * are operands. */
static rf_gemm matmul_product(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  int64_t k = x->shape[1], n = w->shape[op->attr.matmul.transpose ? 0 : 1];
  rf_gemm g = rf_gemm_of(x->shape[0], n, k, rf_row_major(x->dtype, k),
                         rf_weight(w, k, n, op->attr.matmul.transpose), x->dtype, n);
  g.fast = op->attr.matmul.fast;
  g.bias_dtype = op->input[2] == RF_NONE ? RF_F32 : graph->tensor[op->input[2]].dtype;
  return g;
}
/* dx (M,K) = dy (M,N) w^T sums over n. */
static rf_gemm matmul_dx_product(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *dy = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  int64_t n = dy->shape[1], k = w->shape[op->attr.matmul.transpose ? 1 : 0];
  return rf_gemm_of(dy->shape[0], k, n, rf_row_major(dy->dtype, n),
                    rf_transposed(rf_weight(w, k, n, op->attr.matmul.transpose)), dy->dtype, k);
}
/* dw (K,N) = x^T dy, or (N,K) = dy^T x, sums over tokens. */
static rf_gemm matmul_dw_product(const rf_graph *graph, const rf_op *op) {
  bool transpose = op->attr.matmul.transpose;
  const rf_tensor *a = &graph->tensor[op->input[transpose ? 1 : 0]],
                  *b = &graph->tensor[op->input[transpose ? 0 : 1]];
  int64_t m = a->shape[1], n = b->shape[1];
  rf_gemm g = rf_gemm_of(m, n, a->shape[0], rf_transposed(rf_row_major(a->dtype, m)),
                         rf_row_major(b->dtype, n), RF_F32, n);
  g.read_later = true;
  /* the operand B is dy, whose column sums are the gradient of the bias */
  g.sums_columns = op->output[1] != RF_NONE && !transpose;
  return g;
}

static void matmul_call(rf_gemm_path *path, const rf_gemm_isa *isa, const rf_call *call) {
  rf_gemm g = matmul_product(call->graph, call->op);
  g.blocks = call->blocks;
  g.m = rf_rows_used(call, 0);
  g.a = call->in[0];
  g.b = call->in[1];
  g.bias = rf_rank_of(call) == 0 ? call->in[2]
                                 : NULL; /* if chips sum their results, only the first chip adds the bias */
  g.u = call->out[0];
  g.out = call->out[1];
  if (call->op->attr.matmul.epilogue == RF_EPILOGUE_GELU) g.epilogue = RF_GEMM_GELU;
  if (call->op->attr.matmul.epilogue == RF_EPILOGUE_RESIDUAL) {
    g.epilogue = RF_GEMM_RESIDUAL;
    g.side = call->in[3];
    g.drop = rf_dropout_of(call);
    g.first_token = call->run->first_token;
  }
  path(isa, &g, call->threads, call->workspace);
}

static void matmul_dx_call(rf_gemm_path *path, const rf_gemm_isa *isa, const rf_call *call) {
  rf_gemm g = matmul_dx_product(call->graph, call->op);
  g.blocks = call->blocks;
  g.m = rf_rows_used(call, 0);
  g.a = call->in[0];
  g.b = call->in[1];
  g.u = call->out[0];
  if (call->in[2]) {
    g.epilogue = RF_GEMM_GELU_BWD;
    g.side = call->in[2];
    g.out = call->out[1];
  }
  path(isa, &g, call->threads, call->workspace);
}

static void matmul_dw_call(rf_gemm_path *path, const rf_gemm_isa *isa, const rf_call *call) {
  bool transpose = call->op->attr.matmul.transpose;
  rf_gemm g = matmul_dw_product(call->graph, call->op);
  g.blocks = call->blocks;
  g.k = rf_rows_used(call, 0);
  g.a = call->in[transpose ? 1 : 0];
  g.b = call->in[transpose ? 0 : 1];
  g.u = call->out[0];
  g.accumulate = rf_accumulates(call, 0);
  if (g.sums_columns) {
    g.column_sum = call->out[1];
    g.column_sum_accumulate = rf_accumulates(call, 1);
  } else if (call->out[1]) {
    int64_t width = rf_in(call, 1)->shape[1];
    rf_column_sums(call->in[1], rf_in(call, 1)->dtype, g.k, width, width, call->out[1],
                   rf_accumulates(call, 1), call->threads);
  }
  if (g.u) path(isa, &g, call->threads, call->workspace);
}

/* A linear layer is one product. The kernel of the layer decides the path of the product. */
#define RF_RUNS(path) rf_gemm_##path
#define matmul_inner NULL
#define matmul_dx_inner NULL
#define matmul_dw_inner NULL
RF_PRODUCTS(matmul, true, blocked, tiles)
const rf_kernel RF_CPU_MATMUL[] = {RF_PRODUCT_ROWS(matmul, RF_FEW_ROWS, blocked, tiles){.op = NULL}};

bool rf_matmul_has_blocks(const rf_kernel *kernel) {
  return kernel->accepts == matmul_takes_blocked || kernel->accepts == matmul_dx_takes_blocked ||
         kernel->accepts == matmul_dw_takes_blocked;
}
