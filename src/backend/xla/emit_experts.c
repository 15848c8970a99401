/* emit_experts.c - emitters of a mixture of experts: the router, moving rows to their experts and
 * back, and the sum of the experts' results. emit_grouped.c has the products. To compute positions,
 * products with triangular matrices count rows. Products with triangular matrices are exact in f32
 * up to 2^24 rows. On accelerators, these products are faster than scatters and sorts of whole
 * rows. */
#include "backend/xla/emit.h"

#include <math.h>

enum { COUNTED_ROWS = 128 }; /* number of rows that one triangular matrix counts */

/* Repeats a (n,..) along a new dimension. Dimension i of `a` becomes dimension axis[i] of the
 * result. */
static rf_val spread3(rf_hlo *h, rf_val a, const int *axis, int64_t d0, int64_t d1, int64_t d2) {
  return rf_hlo_broadcast(h, a, axis, RF_DIMS(d0, d1, d2));
}

/* A matrix (rows, n) with 1 where column < row, otherwise 0. */
static rf_val below(rf_hlo *h, int64_t rows, int64_t n) {
  rf_val row = rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(rows, n)),
         column = rf_hlo_iota(h, RF_HLO_I32, 1, RF_DIMS(rows, n));
  return rf_hlo_convert(h, rf_hlo_compare(h, RF_HLO_LT, column, row), RF_HLO_F32);
}

/* Element i of the result (n+1) is the sum of the first i elements of a (n). */
static rf_val sums_before(rf_hlo *h, rf_val a) {
  rf_hlo_dot of = {{-1}, {-1}, {1, -1}, {0, -1}};
  return rf_hlo_dot_general(h, below(h, a.dim[0] + 1, a.dim[0]), a, of, RF_HLO_F32);
}

static rf_val int_scalar(rf_hlo *h, double v) { return rf_hlo_scalar(h, RF_HLO_I32, v); }
static rf_val to_int(rf_hlo *h, rf_val v) { return rf_hlo_convert(h, v, RF_HLO_I32); }

/* ---- the router's choice --------------------------------------------------------------------- */

static rf_val log_of_sum(rf_emit *e, rf_val z) {
  rf_hlo *h = e->h;
  rf_val most = rf_hlo_reduce(h, RF_HLO_MAX, z, 1),
         p = rf_hlo_exponential(h, rf_hlo_subtract(h, z, rf_emit_across_columns(e, most, z.dim[1])));
  return rf_hlo_add(h, most, rf_hlo_log(h, rf_hlo_reduce(h, RF_HLO_SUM, p, 1)));
}

/* The values (n,E) that rank groups of experts. With sigmoids, the value of a group is the sum of
 * its two best values. Without sigmoids, the value of a group is its best value. */
static rf_val group_ranks(rf_emit *e, const rf_op *op, rf_val rank) {
  const rf_router *router = &op->attr.experts.router;
  rf_hlo *h = e->h;
  int64_t n = rank.dim[0], groups = router->groups, size = rank.dim[1] / groups;
  rf_val index;
  if (!router->sigmoid)
    return rf_hlo_reduce(h, RF_HLO_MAX, rf_hlo_reshape(h, rank, RF_DIMS(n, groups, size)), 2);
  if (!rf_has(rf_emit_in(e, op, 1))) rank = rf_hlo_logistic(h, rank);
  rf_hlo_top_k(h, rf_hlo_reshape(h, rank, RF_DIMS(n * groups, size)), 2, &rank, &index);
  return rf_hlo_reshape(h, rf_hlo_reduce(h, RF_HLO_SUM, rank, 1), RF_DIMS(n, groups));
}

/* Gives experts outside the best groups a rank below all others. */
static rf_val in_best_groups(rf_emit *e, const rf_op *op, rf_val rank) {
  const rf_router *router = &op->attr.experts.router;
  rf_hlo *h = e->h;
  int64_t n = rank.dim[0], groups = router->groups, size = rank.dim[1] / groups, used = router->groups_used;
  if (groups == 0) return rank;
  rf_val value, index;
  rf_hlo_top_k(h, group_ranks(e, op, rank), used, &value, &index);
  rf_val same = rf_hlo_compare(h, RF_HLO_EQ, spread3(h, index, (const int[]){0, 1}, n, used, groups),
                               rf_hlo_iota(h, RF_HLO_I32, 2, RF_DIMS(n, used, groups)));
  rf_val open = rf_hlo_reduce(h, RF_HLO_MAX, rf_hlo_convert(h, same, RF_HLO_F32), 1);
  open = rf_hlo_reshape(h, spread3(h, open, (const int[]){0, 1}, n, groups, size), RF_DIMS(n, groups * size));
  return rf_hlo_select(h, rf_hlo_compare_c(h, RF_HLO_GT, open, 0), rank,
                       rf_hlo_scalar(h, RF_HLO_F32, -(double)INFINITY));
}

/* [experts[r k + j] == e], bool (n,k,E) */
static rf_val chosen_flags(rf_hlo *h, rf_val chosen, int64_t experts) {
  int64_t n = chosen.dim[0], k = chosen.dim[1];
  return rf_hlo_compare(h, RF_HLO_EQ, spread3(h, chosen, (const int[]){0, 1}, n, k, experts),
                        rf_hlo_iota(h, RF_HLO_I32, 2, RF_DIMS(n, k, experts)));
}

/* Weights (n,k) of the chosen experts, whose logits are z (n,k). */
static rf_val route_weights(rf_emit *e, const rf_op *op, rf_val logits, rf_val z) {
  const rf_router *router = &op->attr.experts.router;
  rf_hlo *h = e->h;
  int64_t n = z.dim[0], k = z.dim[1];
  rf_val score;
  if (router->sigmoid) score = rf_hlo_logistic(h, z);
  else {
    rf_val from =
        router->as_is ? log_of_sum(e, logits) : rf_hlo_reshape(h, rf_hlo_slice(h, z, 1, 0, 1), RF_DIMS(n));
    score = rf_hlo_exponential(h, rf_hlo_subtract(h, z, rf_emit_across_columns(e, from, k)));
  }
  if (!router->as_is)
    score = rf_hlo_divide(h, score, rf_emit_across_columns(e, rf_hlo_reduce(h, RF_HLO_SUM, score, 1), k));
  return router->scale > 0 ? rf_hlo_multiply_c(h, score, (double)router->scale) : score;
}

/* Computes the place of every row in the order of experts, and the first place of every expert. */
static void places(rf_emit *e, const rf_op *op, rf_val chosen, rf_val *place, rf_val *starts) {
  rf_hlo *h = e->h;
  int64_t count = rf_val_count(chosen), experts = op->attr.experts.experts, room = op->attr.experts.room,
          each = count < COUNTED_ROWS ? count : COUNTED_ROWS, blocks = (count + each - 1) / each;
  rf_val flat = rf_hlo_reshape(h, chosen, 1, &count);
  if (blocks * each > count) flat = rf_hlo_pad(h, flat, 0, 0, blocks * each - count, -1);
  rf_val own = spread3(h, rf_hlo_reshape(h, flat, RF_DIMS(blocks, each)), (const int[]){0, 2}, blocks,
                       experts, each),
         flags = rf_hlo_convert(
             h, rf_hlo_compare(h, RF_HLO_EQ, own, rf_hlo_iota(h, RF_HLO_I32, 1, 3, own.dim)), RF_HLO_F32),
         totals = rf_hlo_reduce(h, RF_HLO_SUM, flags, 2);
  rf_hlo_dot inside = {{-1}, {-1}, {2, -1}, {1, -1}};
  rf_val rank = rf_hlo_dot_general(h, flags, below(h, each, each), inside, RF_HLO_F32),
         before = rf_hlo_matmul(h, below(h, blocks, blocks), false, totals, false, RF_HLO_F32),
         first = sums_before(h, rf_hlo_reduce(h, RF_HLO_SUM, totals, 0));
  rank = rf_hlo_add(h, rank, spread3(h, before, (const int[]){0, 1}, blocks, experts, each));
  if (room == 0)
    rank = rf_hlo_add(
        h, rank, spread3(h, rf_hlo_slice(h, first, 0, 0, experts), (const int[]){1}, blocks, experts, each));
  rf_val at = to_int(h, rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_multiply(h, rank, flags), 1));
  at = rf_hlo_slice(h, rf_hlo_reshape(h, at, RF_DIMS(blocks * each)), 0, 0, count);
  *starts = to_int(h, first);
  *place = at;
  if (room == 0) return;
  rf_val base = rf_hlo_multiply_c(h, rf_hlo_reshape(h, chosen, 1, &count), (double)room),
         fits = rf_hlo_compare_c(h, RF_HLO_LT, at, (double)room);
  *place = rf_hlo_select(h, fits, rf_hlo_add(h, base, at), int_scalar(h, -1));
  *starts = rf_hlo_multiply_c(h, rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(experts + 1)), (double)room);
}

/* logits (n,E), choice (E)? -> weights (n,k), experts (n*k), place (n*k), starts (E+1) */
static void emit_route(rf_emit *e, const rf_op *op) {
  const rf_attr_experts *attr = &op->attr.experts;
  rf_hlo *h = e->h;
  rf_val logits = rf_emit_wide(e, op, 0), choice = rf_emit_wide(e, op, 1), value, chosen, place, starts,
         rank = logits;
  int64_t n = logits.dim[0], experts = logits.dim[1], k = attr->used, count = n * k;
  if (rf_has(choice)) {
    rank =
        attr->router.sigmoid
            ? rf_hlo_logistic(h, logits)
            : rf_hlo_exponential(
                  h, rf_hlo_subtract(h, logits, rf_emit_across_columns(e, log_of_sum(e, logits), experts)));
    rank = rf_hlo_add(h, rank, rf_emit_across_rows(e, choice, n));
  }
  /* NaN ranks below all numbers, but above the experts that must not be chosen. */
  rank =
      rf_hlo_select(h, rf_hlo_compare(h, RF_HLO_EQ, rank, rank), rank, rf_hlo_scalar(h, RF_HLO_F32, -3e38));
  rf_hlo_top_k(h, in_best_groups(e, op, rank), k, &value, &chosen);
  rf_val flags = chosen_flags(h, chosen, experts),
         z = rf_hlo_reduce(h, RF_HLO_SUM,
                           rf_hlo_select(h, flags, spread3(h, logits, (const int[]){0, 2}, n, k, experts),
                                         rf_hlo_scalar(h, RF_HLO_F32, 0)),
                           2);
  rf_emit_out(e, op, 0, route_weights(e, op, logits, z));
  rf_emit_out(e, op, 1, rf_hlo_reshape(h, chosen, 1, &count));
  places(e, op, chosen, &place, &starts);
  rf_emit_out(e, op, 2, place);
  rf_emit_out(e, op, 3, starts);
}

/* logits, weights, experts, dweights -> dlogits */
static void emit_route_bwd(rf_emit *e, const rf_op *op) {
  const rf_router *router = &op->attr.experts.router;
  rf_hlo *h = e->h;
  rf_val logits = rf_emit_wide(e, op, 0), weights = rf_emit_wide(e, op, 1), dweights = rf_emit_wide(e, op, 3);
  int64_t n = logits.dim[0], experts = logits.dim[1], k = weights.dim[1];
  rf_val flags = chosen_flags(h, rf_hlo_reshape(h, rf_emit_in(e, op, 2), RF_DIMS(n, k)), experts),
         sum = rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_multiply(h, weights, dweights), 1), apart = dweights;
  double scale = router->scale > 0 ? (double)router->scale : 1;
  if (!router->as_is)
    apart = rf_hlo_subtract(h, apart, rf_emit_across_columns(e, rf_hlo_multiply_c(h, sum, 1 / scale), k));
  rf_val own = spread3(h, rf_hlo_multiply(h, weights, apart), (const int[]){0, 1}, n, k, experts),
         d = rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_select(h, flags, own, rf_hlo_scalar(h, RF_HLO_F32, 0)), 1);
  if (router->sigmoid)
    d = rf_hlo_multiply(h, d,
                        rf_hlo_subtract(h, rf_hlo_scalar(h, RF_HLO_F32, 1), rf_hlo_logistic(h, logits)));
  else if (router->as_is) {
    rf_val all = rf_emit_across_columns(e, log_of_sum(e, logits), experts),
           p = rf_hlo_exponential(h, rf_hlo_subtract(h, logits, all));
    d = rf_hlo_subtract(h, d, rf_hlo_multiply(h, p, rf_emit_across_columns(e, sum, experts)));
  }
  rf_emit_out(e, op, 0, d);
}

/* ---- rows to their experts and back ---------------------------------------------------------- */

/* Returns the index among the n k entries for each position of the sorted rows. If experts have a
 * fixed number of rows, also sets a bool for each position that has an entry. Entries are sorted by
 * place, so the entries of an expert are consecutive. */
static rf_val entries(rf_emit *e, const rf_op *op, rf_val place, rf_val *filled) {
  const rf_attr_experts *attr = &op->attr.experts;
  rf_hlo *h = e->h;
  int64_t count = place.dim[0], experts = attr->experts, room = attr->room;
  rf_val order = rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(count)), key = place;
  *filled = RF_NO_VAL;
  if (room == 0) {
    rf_hlo_sort(h, 0, &key, &order);
    return order;
  }
  rf_val kept = rf_hlo_compare_c(h, RF_HLO_GE, place, 0),
         expert = rf_hlo_divide(h, place, int_scalar(h, (double)room));
  key = rf_hlo_select(h, kept, place, int_scalar(h, (double)(experts * room)));
  rf_hlo_sort(h, 0, &key, &order);
  expert = rf_hlo_select(h, kept, expert, int_scalar(h, -1));
  rf_val own = rf_hlo_compare(h, RF_HLO_EQ,
                              rf_hlo_broadcast(h, expert, (const int[]){0}, RF_DIMS(count, experts)),
                              rf_hlo_iota(h, RF_HLO_I32, 1, RF_DIMS(count, experts))),
         counts = rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_convert(h, own, RF_HLO_F32), 0),
         first = to_int(h, rf_hlo_slice(h, sums_before(h, counts), 0, 0, experts)),
         at = rf_hlo_iota(h, RF_HLO_I32, 1, RF_DIMS(experts, room));
  int64_t rows = experts * room;
  *filled =
      rf_hlo_compare(h, RF_HLO_LT, at, rf_hlo_broadcast(h, to_int(h, counts), (const int[]){0}, 2, at.dim));
  *filled = rf_hlo_reshape(h, *filled, 1, &rows);
  at =
      rf_hlo_reshape(h, rf_hlo_add(h, at, rf_hlo_broadcast(h, first, (const int[]){0}, 2, at.dim)), 1, &rows);
  return rf_hlo_rows(h, order, at);
}

static rf_val zero_unless(rf_emit *e, rf_val filled, rf_val rows) {
  if (!rf_has(filled)) return rows;
  return rf_hlo_select(e->h, rf_emit_across_columns(e, filled, rows.dim[1]), rows,
                       rf_hlo_scalar(e->h, rows.type, 0));
}

/* The j-th of each row's places, i32 (n). */
static rf_val nth_place(rf_emit *e, rf_val place, int64_t used, int64_t j) {
  int64_t n = place.dim[0] / used;
  rf_val all = rf_hlo_reshape(e->h, place, RF_DIMS(n, used));
  return rf_hlo_reshape(e->h, rf_hlo_slice(e->h, all, 1, j, j + 1), RF_DIMS(n));
}

/* Rows sorted[place] (n,D) in f32; 0 where the place is -1. */
static rf_val placed(rf_emit *e, const rf_op *op, rf_val sorted, rf_val place) {
  rf_val rows = rf_hlo_convert(e->h, rf_hlo_rows(e->h, sorted, place), RF_HLO_F32);
  if (op->attr.experts.room == 0) return rows;
  return zero_unless(e, rf_hlo_compare_c(e->h, RF_HLO_GE, place, 0), rows);
}

/* x (n,D), place -> rows (n*k,D) */
static void emit_dispatch(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val filled, entry = entries(e, op, rf_emit_in(e, op, 1), &filled),
                 row = rf_hlo_divide(h, entry, int_scalar(h, op->attr.experts.used));
  rf_emit_out(e, op, 0, zero_unless(e, filled, rf_hlo_rows(h, rf_emit_in(e, op, 0), row)));
}

/* drows (n*k,D), place -> dx (n,D) */
static void emit_dispatch_bwd(rf_emit *e, const rf_op *op) {
  rf_val sorted = rf_emit_in(e, op, 0), place = rf_emit_in(e, op, 1), sum = RF_NO_VAL;
  int64_t used = op->attr.experts.used;
  for (int64_t j = 0; j < used; j++) {
    rf_val rows = placed(e, op, sorted, nth_place(e, place, used, j));
    sum = rf_has(sum) ? rf_hlo_add(e->h, sum, rows) : rows;
  }
  rf_emit_out(e, op, 0, sum);
}

/* The j-th of each row's weights, repeated to (n,D). */
static rf_val nth_weight(rf_emit *e, rf_val weights, int64_t j, int64_t width) {
  int64_t n = weights.dim[0];
  return rf_emit_across_columns(e, rf_hlo_reshape(e->h, rf_hlo_slice(e->h, weights, 1, j, j + 1), RF_DIMS(n)),
                                width);
}

/* h (n*k,D), weights (n,k), place -> y (n,D) */
static void emit_combine(rf_emit *e, const rf_op *op) {
  rf_val sorted = rf_emit_in(e, op, 0), weights = rf_emit_wide(e, op, 1), place = rf_emit_in(e, op, 2),
         sum = RF_NO_VAL;
  int64_t used = op->attr.experts.used;
  for (int64_t j = 0; j < used; j++) {
    rf_val rows = placed(e, op, sorted, nth_place(e, place, used, j));
    rows = rf_hlo_multiply(e->h, rows, nth_weight(e, weights, j, rows.dim[1]));
    sum = rf_has(sum) ? rf_hlo_add(e->h, sum, rows) : rows;
  }
  rf_emit_out(e, op, 0, sum);
}

/* h, weights, place, dy (n,D) -> dh (n*k,D)?, dweights (n,k)? */
static void emit_combine_bwd(rf_emit *e, const rf_op *op) {
  rf_hlo *h = e->h;
  rf_val sorted = rf_emit_in(e, op, 0), weights = rf_emit_wide(e, op, 1), place = rf_emit_in(e, op, 2),
         dy = rf_emit_wide(e, op, 3);
  int64_t used = op->attr.experts.used, n = dy.dim[0], width = dy.dim[1], count = n * used;
  if (rf_emit_wants(op, 0)) {
    rf_val filled, entry = entries(e, op, place, &filled), flat = rf_hlo_reshape(h, weights, 1, &count),
                   rows = rf_hlo_rows(h, dy, rf_hlo_divide(h, entry, int_scalar(h, (double)used)));
    rows = rf_hlo_multiply(h, rows, rf_emit_across_columns(e, rf_hlo_rows(h, flat, entry), width));
    rf_emit_out(e, op, 0, zero_unless(e, filled, rows));
  }
  if (!rf_emit_wants(op, 1)) return;
  rf_val *part = rf_pool_alloc(e->pool, (size_t)used * sizeof *part);
  for (int64_t j = 0; j < used; j++) {
    rf_val rows = placed(e, op, sorted, nth_place(e, place, used, j));
    part[j] = rf_hlo_reshape(h, rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_multiply(h, rows, dy), 1), RF_DIMS(n, 1));
  }
  rf_emit_out(e, op, 1, rf_hlo_concatenate(h, 1, (int)used, part));
}

const rf_emitter RF_EMIT_EXPERTS[] = {
    {&RF_OP_ROUTE, emit_route, NULL},
    {&RF_OP_ROUTE_BWD, emit_route_bwd, NULL},
    {&RF_OP_DISPATCH, emit_dispatch, NULL},
    {&RF_OP_DISPATCH_BWD, emit_dispatch_bwd, NULL},
    {&RF_OP_COMBINE, emit_combine, NULL},
    {&RF_OP_COMBINE_BWD, emit_combine_bwd, NULL},
    {0},
};
