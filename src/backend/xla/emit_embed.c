/* emit_embed.c - emitters of the look-up of tokens and positions, and of the gradients of both
 * tables. */
#include "backend/xla/emit.h"

static double token_scale(const rf_op *op) {
  return op->attr.embed.scale == 0 ? 1 : (double)op->attr.embed.scale;
}

/* Chips that share a table have equal runs of its rows. Row numbers in this chip's part: */
static rf_val local_rows(rf_emit *e, const rf_op *op, rf_val index, int64_t words) {
  if (rf_mesh_size(&e->graph->mesh, op->attr.axes) == 1) return index;
  rf_val first = rf_hlo_multiply_c(e->h, rf_emit_rank(e, op->attr.axes), (double)words);
  return rf_hlo_subtract(e->h, index, first);
}

static void emit_embed(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val tokens = rf_emit_in(e, op, 0), positions = rf_emit_in(e, op, 1), wte = rf_emit_in(e, op, 2),
         wpe = rf_emit_in(e, op, 3);
  int64_t words = wte.dim[0], width = wte.dim[1];
  bool split = rf_mesh_size(&e->graph->mesh, op->attr.axes) > 1;
  rf_val index = local_rows(e, op, tokens, words), zero = rf_hlo_scalar(h, RF_HLO_F32, 0);
  rf_val x = rf_hlo_convert(h, rf_hlo_rows(h, wte, index), RF_HLO_F32);
  if (token_scale(op) != 1) x = rf_hlo_multiply_c(h, x, token_scale(op));
  if (split) {
    rf_val here = rf_hlo_and(h, rf_hlo_compare_c(h, RF_HLO_GE, index, 0),
                             rf_hlo_compare_c(h, RF_HLO_LT, index, (double)words));
    x = rf_hlo_select(h, rf_emit_across_columns(e, here, width), x, zero);
  }
  if (rf_has(wpe)) {
    rf_val at = rf_hlo_convert(h, rf_hlo_rows(h, wpe, positions), RF_HLO_F32);
    rf_val first = split ? rf_hlo_compare_c(h, RF_HLO_EQ, rf_emit_rank(e, op->attr.axes), 0) : RF_NO_VAL;
    x = rf_hlo_add(h, x, split ? rf_hlo_select(h, first, at, zero) : at);
  }
  rf_emit_out(e, op, 0, x);
}

/* A scatter adds the rows of dx to the table in place. So this op moves only n rows and needs no
 * second table. A product with one-hot rows would cost 2 n V D operations, as many as the head. */
static void add_rows(rf_emit *e, const rf_op *op, int slot, rf_val index, double scale) {
  if (!rf_emit_wants(op, slot)) return;
  rf_hlo *h = e->h;
  const rf_tensor *t = &e->graph->tensor[op->output[slot]];
  rf_val dx = rf_emit_wide(e, op, 2), table = rf_emit_start(e, op, slot);
  if (rf_has(table)) table = rf_hlo_convert(h, table, RF_HLO_F32);
  else table = rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(t->shape[0], t->shape[1]));
  if (scale != 1) dx = rf_hlo_multiply_c(h, dx, scale);
  index = rf_hlo_reshape(h, index, RF_DIMS(index.dim[0], 1));
  rf_emit_set(e, op, slot, rf_hlo_scatter(h, table, index, dx, 1, (const int[]){0}, true, false));
}

static void emit_embed_bwd(rf_emit *e, const rf_op *op) {
  rf_val tokens = rf_emit_in(e, op, 0), positions = rf_emit_in(e, op, 1);
  if (rf_emit_wants(op, 0))
    add_rows(e, op, 0, local_rows(e, op, tokens, e->graph->tensor[op->output[0]].shape[0]), token_scale(op));
  add_rows(e, op, 1, positions, 1);
}

const rf_emitter RF_EMIT_EMBED[] = {
    {&RF_OP_EMBED, emit_embed, NULL},
    {&RF_OP_EMBED_BWD, emit_embed_bwd, NULL},
    {0},
};
