/* emit_rope.c - emitter of rotary positions, in all forms of rf_rope. */
#include "backend/xla/emit.h"

#include <math.h>

enum { TURN_BITS = 64 };

/* Angles (n, R/2) of the rows, in radians between -pi and pi. The product position * frequency
 * would lose digits in f32. So frequencies are 64-bit fractions of a turn. An integer product with
 * the position overflows by whole turns, and so is exact. */
static rf_val angles(rf_emit *e, const rf_op *op, rf_val positions) {
  rf_hlo *h = e->h;
  const rf_rope *rope = &op->attr.rope.rotation;
  int64_t pairs = rope->dim / 2, rows = positions.dim[0];
  double *turn = rf_pool_alloc(e->pool, (size_t)pairs * sizeof *turn);
  for (int64_t i = 0; i < pairs; i++) {
    double turns = rf_rope_frequency(rope, i) / (2 * M_PI);
    turn[i] = rint(ldexp(turns - rint(turns), TURN_BITS));
    if (turn[i] >= 0x1p63) turn[i] = -0x1p63;
  }
  rf_val fraction = rf_hlo_bitcast(h, rf_hlo_list(h, RF_HLO_I64, pairs, turn), RF_HLO_U64);
  rf_val position = rf_hlo_convert(h, rf_hlo_convert(h, positions, RF_HLO_I64), RF_HLO_U64);
  rf_val product =
      rf_hlo_multiply(h, rf_emit_across_columns(e, position, pairs), rf_emit_across_rows(e, fraction, rows));
  product = rf_hlo_shift_right_logical(h, product, rf_hlo_scalar_u64(h, RF_HLO_U64, 32));
  rf_val upper = rf_hlo_bitcast(h, rf_hlo_convert(h, product, RF_HLO_U32), RF_HLO_I32);
  return rf_hlo_multiply_c(h, rf_hlo_convert(h, upper, RF_HLO_F32), ldexp(2 * M_PI, -32));
}

/* Repeats v (n, R/2) for each head: (n, heads, R/2). */
static rf_val for_heads(rf_hlo *h, rf_val v, int64_t heads) {
  return rf_hlo_broadcast(h, v, (const int[]){0, 2}, RF_DIMS(v.dim[0], heads, v.dim[1]));
}

/* Gets the first (which = 0) or second elements of the pairs of x (n, heads, R), as f32 (n, heads,
 * R/2). */
static rf_val elements(rf_hlo *h, rf_val x, int which, bool adjacent) {
  int64_t pairs = x.dim[2] / 2;
  if (adjacent) {
    rf_val two = rf_hlo_reshape(h, x, RF_DIMS(x.dim[0], x.dim[1], pairs, 2));
    x = rf_hlo_reshape(h, rf_hlo_slice(h, two, 3, which, which + 1), RF_DIMS(x.dim[0], x.dim[1], pairs));
  } else x = rf_hlo_slice(h, x, 2, which * pairs, (which + 1) * pairs);
  return rf_hlo_convert(h, x, RF_HLO_F32);
}

/* The opposite of `elements`: joins two arrays to (n, heads, R). */
static rf_val joined(rf_hlo *h, const rf_val part[2], bool adjacent) {
  rf_val v[2] = {part[0], part[1]};
  int64_t rows = v[0].dim[0], heads = v[0].dim[1], pairs = v[0].dim[2];
  if (!adjacent) return rf_hlo_concatenate(h, 2, 2, v);
  for (int i = 0; i < 2; i++) v[i] = rf_hlo_reshape(h, v[i], RF_DIMS(rows, heads, pairs, 1));
  return rf_hlo_reshape(h, rf_hlo_concatenate(h, 3, 2, v), RF_DIMS(rows, heads, 2 * pairs));
}

static rf_val rotated(rf_emit *e, const rf_op *op, rf_val x, rf_val angle, rf_hlo_type type) {
  rf_hlo *h = e->h;
  bool adjacent = op->attr.rope.rotation.tail;
  rf_val c = for_heads(h, rf_hlo_cosine(h, angle), x.dim[1]), s = rf_hlo_sine(h, angle);
  s = for_heads(h, op->attr.rope.inverse ? rf_hlo_negate(h, s) : s, x.dim[1]);
  rf_val a = elements(h, x, 0, adjacent), b = elements(h, x, 1, adjacent);
  rf_val out[2] = {rf_hlo_subtract(h, rf_hlo_multiply(h, a, c), rf_hlo_multiply(h, b, s)),
                   rf_hlo_add(h, rf_hlo_multiply(h, b, c), rf_hlo_multiply(h, a, s))};
  for (int i = 0; i < 2; i++) out[i] = rf_hlo_convert(h, out[i], type);
  return joined(h, out, adjacent);
}

static void emit_rope(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  const rf_attr_rope *attr = &op->attr.rope;
  rf_val x = rf_emit_in(e, op, 0), angle = angles(e, op, rf_emit_in(e, op, 1));
  rf_hlo_type type = rf_emit_out_type(e, op, 0);
  int64_t rows = x.dim[0], heads = attr->heads + attr->kv_heads, size = attr->head_dim,
          dim = attr->rotation.dim, columns = heads * size, from = attr->rotation.tail ? size - dim : 0;
  rf_val head = rf_hlo_reshape(h, rf_hlo_slice(h, x, 1, 0, columns), RF_DIMS(rows, heads, size)), part[3];
  int parts = 0;
  if (from > 0) part[parts++] = rf_hlo_convert(h, rf_hlo_slice(h, head, 2, 0, from), type);
  part[parts++] = rotated(e, op, rf_hlo_slice(h, head, 2, from, from + dim), angle, type);
  if (from + dim < size) part[parts++] = rf_hlo_convert(h, rf_hlo_slice(h, head, 2, from + dim, size), type);
  rf_val all[2] = {rf_hlo_concatenate(h, 2, parts, part)};
  all[0] = rf_hlo_reshape(h, all[0], RF_DIMS(rows, columns));
  if (columns < x.dim[1]) all[1] = rf_hlo_convert(h, rf_hlo_slice(h, x, 1, columns, x.dim[1]), type);
  rf_val whole = rf_hlo_concatenate(h, 1, columns < x.dim[1] ? 2 : 1, all);
  if (e->target.joins_late && attr->inverse) rf_hlo_barrier(h, &whole, 1); /* as in gated_bwd */
  rf_emit_out(e, op, 0, whole);
}

const rf_emitter RF_EMIT_ROPE[] = {{&RF_OP_ROPE, emit_rope, NULL}, {0}};
