/* emit_grouped.c - emitters of the products of a mixture of experts: consecutive rows of x (R,K)
 * belong to one expert, whose weights are w (K,N) of w (E*K,N). All products together have at most
 * R rows, plus one tile per expert. There are three ways:
 * - if every expert has a fixed number of rows, one product with the experts as its batch;
 * - chlo.ragged_dot, if the compiler has it;
 * - a loop over experts, with inner loops over the expert's tiles of rows. */
#include "backend/xla/emit.h"

/* XLA's CPU compiler makes one function of a loop over a few hundred bytes, and such a function cannot
 * multiply bf16. */
enum { SMALL_TILE = 8, LARGE_TILE = 512, TINY = 4096 };

typedef struct grouped {
  rf_val a, b, starts;                          /* two of x (R,K), dy (R,N), w (E,K,N) */
  int64_t rows, experts, group, inner, columns; /* inner, columns: K, N */
  int64_t room;
} grouped;

static rf_val int_scalar(rf_hlo *h, double v) { return rf_hlo_scalar(h, RF_HLO_I32, v); }

/* The operands in their own dtype, or in f32 if the dtypes differ or the operands are tiny. */
static void unify(rf_emit *e, grouped *g) {
  if (g->b.type == RF_HLO_I8) g->b = rf_hlo_convert(e->h, g->b, g->a.type);
  if (g->a.type == g->b.type && rf_val_count(g->a) + rf_val_count(g->b) > TINY) return;
  g->a = rf_hlo_convert(e->h, g->a, RF_HLO_F32);
  g->b = rf_hlo_convert(e->h, g->b, RF_HLO_F32);
}

static grouped grouped_of(rf_emit *e, const rf_op *op) {
  const rf_attr_experts *attr = &op->attr.experts;
  grouped g = {.a = rf_emit_in(e, op, 0),
               .b = rf_emit_in(e, op, 1),
               .starts = rf_emit_in(e, op, 2),
               .experts = attr->experts,
               .group = op->attr.group > 1 ? op->attr.group : 1,
               .room = attr->room};
  g.rows = g.a.dim[0];
  bool back = op->def->product == RF_PRODUCT_DW;
  g.columns = g.b.dim[1];
  g.inner = back ? g.a.dim[1] : g.b.dim[0] / g.experts;
  if (!back) g.b = rf_hlo_reshape(e->h, g.b, RF_DIMS(g.experts, g.inner, g.columns));
  if (attr->fast) rf_emit_refuse(e, "it multiplies activations of 8 bits");
  if (g.group > 1 && g.room == 0) rf_emit_refuse(e, "experts on several chips need room");
  unify(e, &g);
  return g;
}

/* ---- equally many rows ----------------------------------------------------------------------- */

/* Rows (R,D) as (group, E, room, D). */
static rf_val with_room(rf_hlo *h, const grouped *g, rf_val rows) {
  return rf_hlo_reshape(h, rows, RF_DIMS(g->group, g->experts, g->room, rows.dim[1]));
}

static rf_val equal_product(rf_hlo *h, const grouped *g, bool back) {
  rf_hlo_dot of = {{1, -1}, {0, -1}, {3, -1}, {back ? 2 : 1, -1}};
  rf_val y =
      rf_hlo_dot_general(h, with_room(h, g, g->a), g->b, of, RF_HLO_F32); /* (E, group, room, columns) */
  if (g->group > 1) y = rf_hlo_transpose(h, y, (const int[]){1, 0, 2, 3});
  return rf_hlo_reshape(h, y, RF_DIMS(g->rows, y.dim[3]));
}

static rf_val equal_gradient(rf_hlo *h, const grouped *g) {
  rf_hlo_dot of = {{1, -1}, {1, -1}, {0, 2, -1}, {0, 2, -1}};
  rf_val dw = rf_hlo_dot_general(h, with_room(h, g, g->a), with_room(h, g, g->b), of, RF_HLO_F32);
  return rf_hlo_reshape(h, dw, RF_DIMS(g->experts * g->inner, g->columns));
}

/* ---- chlo.ragged_dot ------------------------------------------------------------------------- */

/* Rows of each expert, i32 (E). */
static rf_val counts(rf_hlo *h, const grouped *g) {
  return rf_hlo_subtract(h, rf_hlo_slice(h, g->starts, 0, 1, g->experts + 1),
                         rf_hlo_slice(h, g->starts, 0, 0, g->experts));
}

static rf_val ragged_product(rf_hlo *h, const grouped *g, bool back) {
  return rf_hlo_ragged_dot(h, g->a, g->b, counts(h, g), back ? 2 : 1, RF_HLO_F32);
}

static rf_val ragged_gradient(rf_hlo *h, const grouped *g) {
  rf_val dw = rf_hlo_ragged_dot(h, g->a, g->b, counts(h, g), 0, RF_HLO_F32);
  return rf_hlo_reshape(h, dw, RF_DIMS(g->experts * g->inner, g->columns));
}

/* ---- loops over experts and tiles ------------------------------------------------------------ */

/* Number of rows of a tile: a power of two near the average number of rows of an expert. */
static int64_t tile_of(const grouped *g) {
  int64_t tile = SMALL_TILE;
  while (tile < LARGE_TILE && 2 * tile * g->experts <= g->rows) tile *= 2;
  return tile;
}

static rf_val at_expert(rf_hlo *h, rf_val list, rf_val expert) {
  return rf_hlo_reshape(h, rf_hlo_dynamic_slice(h, list, &expert, (const int64_t[]){1}), 0, NULL);
}

/* Takes `count` rows from row `from` on. */
static rf_val rows_at(rf_hlo *h, rf_val a, rf_val from, int64_t count) {
  return rf_hlo_dynamic_slice(h, a, (const rf_val[]){from, int_scalar(h, 0)},
                              (const int64_t[]){count, a.dim[1]});
}

/* The weights (K,N) of one expert. */
static rf_val weights_of(rf_hlo *h, const grouped *g, rf_val expert) {
  rf_val zero = int_scalar(h, 0), w = rf_hlo_dynamic_slice(h, g->b, (const rf_val[]){expert, zero, zero},
                                                           (const int64_t[]){1, g->inner, g->columns});
  return rf_hlo_reshape(h, w, RF_DIMS(g->inner, g->columns));
}

static rf_val divide_up(rf_hlo *h, rf_val rows, int64_t tile) {
  return rf_hlo_divide(h, rf_hlo_add_c(h, rows, (double)(tile - 1)), int_scalar(h, (double)tile));
}

/* Multiplies `times` tiles of rows from row `first` on by the weights w. A tile that ends after the
 * expert's last row also writes rows of later experts. Later tiles overwrite these rows. */
static void multiply_tiles(rf_hlo *h, rf_val a, rf_val w, bool back, rf_val first, rf_val times, int64_t tile,
                           rf_val *out) {
  rf_hlo_loop loop;
  rf_hlo_loop_begin_to(h, &loop, times, out, 1);
  rf_val row = rf_hlo_add(h, first, rf_hlo_multiply_c(h, loop.i, (double)tile)),
         y = rf_hlo_matmul(h, rows_at(h, a, row, tile), false, w, back, RF_HLO_F32);
  *out = rf_hlo_dynamic_update(h, *out, rf_hlo_convert(h, y, out->type),
                               (const rf_val[]){row, int_scalar(h, 0)});
  rf_hlo_loop_end(h, &loop, out);
}

/* Uses large tiles while an expert has enough rows for a whole tile, then small tiles. */
static rf_val looped_product(rf_hlo *h, const grouped *g, bool back, rf_hlo_type type) {
  int64_t large = tile_of(g), small = large / 8 > SMALL_TILE ? large / 8 : SMALL_TILE,
          columns = back ? g->inner : g->columns;
  rf_val a = rf_hlo_pad(h, g->a, 0, 0, large, 0),
         out = rf_hlo_full(h, type, 0, RF_DIMS(g->rows + large, columns));
  rf_hlo_loop loop;
  rf_hlo_loop_begin(h, &loop, g->experts, &out, 1);
  rf_val first = at_expert(h, g->starts, loop.i), end = at_expert(h, g->starts, rf_hlo_add_c(h, loop.i, 1)),
         w = weights_of(h, g, loop.i);
  if (small < large) {
    rf_val times = rf_hlo_divide(h, rf_hlo_subtract(h, end, first), int_scalar(h, (double)large));
    multiply_tiles(h, a, w, back, first, times, large, &out);
    first = rf_hlo_add(h, first, rf_hlo_multiply_c(h, times, (double)large));
  }
  multiply_tiles(h, a, w, back, first, divide_up(h, rf_hlo_subtract(h, end, first), small), small, &out);
  rf_hlo_loop_end(h, &loop, &out);
  return rf_hlo_slice(h, out, 0, 0, g->rows);
}

/* Sums over tiles of rows from `first` up to `end`. Rows from `end` on count as 0. `sum` (E*K,N)
 * starts with the present values. */
static rf_val looped_gradient(rf_hlo *h, const grouped *g, rf_val sum) {
  int64_t tile = tile_of(g);
  rf_val x = rf_hlo_pad(h, g->a, 0, 0, tile, 0), dy = rf_hlo_pad(h, g->b, 0, 0, tile, 0);
  rf_hlo_loop loop, inner;
  rf_hlo_loop_begin(h, &loop, g->experts, &sum, 1);
  rf_val first = at_expert(h, g->starts, loop.i), end = at_expert(h, g->starts, rf_hlo_add_c(h, loop.i, 1)),
         place = rf_hlo_multiply_c(h, loop.i, (double)g->inner), dw = rows_at(h, sum, place, g->inner);
  rf_hlo_loop_begin_to(h, &inner, divide_up(h, rf_hlo_subtract(h, end, first), tile), &dw, 1);
  rf_val row = rf_hlo_add(h, first, rf_hlo_multiply_c(h, inner.i, (double)tile)),
         some = rows_at(h, x, row, tile), number = rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(tile, g->inner)),
         mine = rf_hlo_compare(h, RF_HLO_LT, number, rf_hlo_subtract(h, end, row));
  some = rf_hlo_select(h, mine, some, rf_hlo_scalar(h, some.type, 0));
  dw = rf_hlo_add(h, dw, rf_hlo_matmul(h, some, true, rows_at(h, dy, row, tile), false, RF_HLO_F32));
  rf_hlo_loop_end(h, &inner, &dw);
  sum = rf_hlo_dynamic_update(h, sum, dw, (const rf_val[]){place, int_scalar(h, 0)});
  rf_hlo_loop_end(h, &loop, &sum);
  return sum;
}

/* ---- emitters -------------------------------------------------------------------------------- */

static void emit_product(rf_emit *e, const rf_op *op, bool back) {
  grouped g = grouped_of(e, op);
  if (e->status != RAFTER_OK) return;
  rf_val y = g.room > 0             ? equal_product(e->h, &g, back)
             : e->target.ragged_dot ? ragged_product(e->h, &g, back)
                                    : looped_product(e->h, &g, back, rf_emit_out_type(e, op, 0));
  rf_emit_out(e, op, 0, y);
}

/* x (R,K), w (E*K,N), starts -> u (R,N) */
static void emit_matmul_experts(rf_emit *e, const rf_op *op) { emit_product(e, op, false); }
/* dy (R,N), w (E*K,N), starts -> dx (R,K) */
static void emit_matmul_experts_dx(rf_emit *e, const rf_op *op) { emit_product(e, op, true); }

/* x (R,K), dy (R,N), starts -> dw (E*K,N) */
static void emit_matmul_experts_dw(rf_emit *e, const rf_op *op) {
  grouped g = grouped_of(e, op);
  if (e->status != RAFTER_OK) return;
  rf_val start = rf_emit_start(e, op, 0);
  if (g.room > 0) rf_emit_out(e, op, 0, equal_gradient(e->h, &g));
  else if (e->target.ragged_dot) rf_emit_out(e, op, 0, ragged_gradient(e->h, &g));
  else {
    start = rf_has(start) ? rf_hlo_convert(e->h, start, RF_HLO_F32)
                          : rf_hlo_full(e->h, RF_HLO_F32, 0, RF_DIMS(g.experts * g.inner, g.columns));
    rf_emit_set(e, op, 0, looped_gradient(e->h, &g, start));
  }
}

const rf_emitter RF_EMIT_GROUPED[] = {
    {&RF_OP_MATMUL_EXPERTS, emit_matmul_experts, NULL},
    {&RF_OP_MATMUL_EXPERTS_DX, emit_matmul_experts_dx, NULL},
    {&RF_OP_MATMUL_EXPERTS_DW, emit_matmul_experts_dw, NULL},
    {0},
};
