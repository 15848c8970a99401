/* emit_lora.c - emitters of LoRA adapters and of their gradients. Each part of an adapter has its
 * own columns in h, in b and in the result. */
#include "backend/xla/emit.h"

/* The columns of part p of matrix b, in f32, times the scale. */
static rf_val part_of_b(rf_emit *e, const rf_op *op, int p) {
  const rf_lora_parts *parts = &op->attr.lora.parts;
  rf_val b =
      rf_hlo_slice(e->h, rf_emit_wide(e, op, 2), 1, rf_lora_joined(parts, p), rf_lora_joined(parts, p + 1));
  return rf_hlo_multiply_c(e->h, b, (double)op->attr.lora.scale);
}
static rf_val part_of_h(rf_emit *e, const rf_op *op, int p) {
  int64_t rank = op->attr.lora.parts.rank;
  return rf_hlo_slice(e->h, rf_emit_in(e, op, 1), 1, p * rank, (p + 1) * rank);
}
/* The columns of part p of input 0, which has the rows of the linear layer. */
static rf_val part_of_rows(rf_emit *e, const rf_op *op, int p) {
  const rf_lora_parts *parts = &op->attr.lora.parts;
  return rf_hlo_slice(e->h, rf_emit_in(e, op, 0), 1, parts->at[p], parts->at[p] + parts->columns[p]);
}

/* Joins the parts to one f32 array with the columns of u. Zeros fill the columns between parts.
 * Then one pass can add u. */
static rf_val in_columns(rf_hlo *h, const rf_lora_parts *parts, const rf_val *part, rf_val u) {
  rf_val run[2 * RF_LORA_PARTS + 1];
  int64_t at = 0;
  int runs = 0;
  for (int p = 0; p < parts->count; p++) {
    if (parts->at[p] > at)
      run[runs++] = rf_hlo_full(h, part[p].type, 0, RF_DIMS(u.dim[0], parts->at[p] - at));
    run[runs++] = part[p];
    at = (int64_t)parts->at[p] + parts->columns[p];
  }
  if (at < u.dim[1]) run[runs++] = rf_hlo_full(h, part[0].type, 0, RF_DIMS(u.dim[0], u.dim[1] - at));
  return rf_hlo_convert(h, rf_hlo_concatenate(h, 1, runs, run), RF_HLO_F32);
}

static void emit_lora(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  const rf_lora_parts *parts = &op->attr.lora.parts;
  rf_val u = rf_emit_wide(e, op, 0), part[RF_LORA_PARTS];
  rf_hlo_type type = rf_emit_out_type(e, op, 0);
  for (int p = 0; p < parts->count; p++)
    part[p] = rf_emit_product(h, part_of_h(e, op, p), false, part_of_b(e, op, p), false, type);
  rf_emit_out(e, op, 0, rf_hlo_add(h, u, in_columns(h, parts, part, u)));
}

static void emit_lora_bwd(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  const rf_lora_parts *parts = &op->attr.lora.parts;
  rf_val dh[RF_LORA_PARTS], db[RF_LORA_PARTS];
  for (int p = 0; p < parts->count; p++) {
    rf_val dy = part_of_rows(e, op, p);
    if (rf_emit_wants(op, 0))
      dh[p] = rf_emit_product(h, dy, false, part_of_b(e, op, p), true, rf_emit_out_type(e, op, 0));
    if (rf_emit_wants(op, 1)) db[p] = rf_emit_product(h, part_of_h(e, op, p), true, dy, false, RF_HLO_F32);
  }
  if (rf_emit_wants(op, 0)) rf_emit_out(e, op, 0, rf_hlo_concatenate(h, 1, parts->count, dh));
  if (!rf_emit_wants(op, 1)) return;
  rf_val all = rf_hlo_concatenate(h, 1, parts->count, db);
  rf_emit_out(e, op, 1, rf_hlo_multiply_c(h, all, (double)op->attr.lora.scale));
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Matrix `l` of a list of matrices, in f32. */
static rf_val of_slot(rf_emit *e, const rf_op *op, int input, int64_t l) {
  rf_val all = rf_emit_wide(e, op, input), one = rf_hlo_slice(e->h, all, 0, l, l + 1);
  return rf_hlo_reshape(e->h, one, RF_DIMS(all.dim[1], all.dim[2]));
}

/* h = x a of slot l. In a part, the columns from the adapter's rank on are zeros. */
static rf_val h_of_slot(rf_emit *e, const rf_op *op, int64_t l) {
  rf_hlo *h = e->h;
  const rf_lora_parts *parts = &op->attr.lora.parts;
  rf_val x = rf_emit_in(e, op, 1), run[RF_LORA_PARTS];
  rf_val all = rf_emit_product(h, x, false, of_slot(e, op, 2, l), false, rf_emit_out_type(e, op, 0));
  rf_val ranks = rf_hlo_slice(h, rf_emit_in(e, op, 4), 0, l, l + 1);
  for (int p = 0; p < parts->count; p++) {
    rf_val rank = rf_hlo_reshape(h, rf_hlo_slice(h, ranks, 1, p, p + 1), 0, NULL);
    rf_val part = rf_hlo_slice(h, all, 1, (int64_t)p * parts->rank, (int64_t)(p + 1) * parts->rank);
    rf_val column = rf_hlo_iota(h, RF_HLO_I32, 1, RF_DIMS(part.dim[0], part.dim[1]));
    rf_val zero = rf_hlo_full(h, part.type, 0, RF_DIMS(part.dim[0], part.dim[1]));
    run[p] = rf_hlo_select(h, rf_hlo_compare(h, RF_HLO_LT, column, rank), part, zero);
  }
  return rf_hlo_concatenate(h, 1, parts->count, run);
}

/* The sum that the adapter of slot l adds to u, in f32. */
static rf_val sum_of_slot(rf_emit *e, const rf_op *op, int64_t l, rf_val u) {
  rf_hlo *h = e->h;
  const rf_lora_parts *parts = &op->attr.lora.parts;
  rf_val low = h_of_slot(e, op, l), b = of_slot(e, op, 3, l), part[RF_LORA_PARTS];
  rf_hlo_type type = rf_emit_out_type(e, op, 0);
  for (int p = 0; p < parts->count; p++) {
    rf_val rows = rf_hlo_slice(h, low, 1, (int64_t)p * parts->rank, (int64_t)(p + 1) * parts->rank);
    rf_val of = rf_hlo_slice(h, b, 1, rf_lora_joined(parts, p), rf_lora_joined(parts, p + 1));
    part[p] = rf_emit_product(h, rows, false, of, false, type);
  }
  return in_columns(h, parts, part, u);
}

/* The program computes the results of all adapters for every row. Then each row selects the result
 * of its own adapter. */
static void emit_lora_slots(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val u = rf_emit_wide(e, op, 0), y = u, slot = rf_emit_in(e, op, 5);
  int64_t slots = rf_emit_in(e, op, 2).dim[0];
  for (int64_t l = 0; l < slots; l++) {
    rf_val chosen = rf_hlo_compare_c(h, RF_HLO_EQ, rf_emit_across_columns(e, slot, u.dim[1]), (double)l);
    y = rf_hlo_select(h, chosen, rf_hlo_add(h, u, sum_of_slot(e, op, l, u)), y);
  }
  rf_emit_out(e, op, 0, y);
}

const rf_emitter RF_EMIT_LORA[] = {
    {&RF_OP_LORA, emit_lora, NULL},
    {&RF_OP_LORA_SLOTS, emit_lora_slots, NULL},
    {&RF_OP_LORA_BWD, emit_lora_bwd, NULL},
    {0},
};
