/* emit_attend.c - see emit_attention.h: attention in blocks, forward and backward.
 *
 * Forward works on blocks of queries. A block of queries uses only keys that one of its queries
 * sees. So keys after the block, and keys before the window, cost nothing. Backward works on blocks
 * of keys, with scores as (keys, queries). Then all products except dq sum over the last dimension
 * of their left operand. dq is computed as (D, queries). Products with other layouts are several
 * times slower on CPUs. For a sequence with more than LIMIT blocks, the program has a loop over
 * pairs of blocks, so that the program stays small. */
#include "backend/xla/emit_attention.h"

#include <math.h>

enum { LIMIT = RF_ATTEND_BLOCKS };
static const double MASKED =
    -1e30; /* a score whose exponential is 0; the score is finite, so that no difference is inf - inf */

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t rf_attend_block(int64_t tokens, int64_t most) {
  if (most <= 0) most = tokens <= 512 ? 128 : 256;
  int64_t count = rf_ceil_div(tokens, most), size = rf_ceil_div(rf_ceil_div(tokens, count), 16) * 16;
  return count == 1 ? tokens : smaller(size, most);
}
static int64_t block_of(const rf_attend *a, int64_t tokens) { return rf_attend_block(tokens, a->block); }

static rf_val i32(rf_hlo *h, int64_t value) { return rf_hlo_scalar(h, RF_HLO_I32, (double)value); }

/* ---- sequences ------------------------------------------------------------------------------- */

/* For each row, the first row of its segment: i32 (rows). */
static rf_val starts_of(rf_emit *e, const rf_op *op, int segments, int64_t rows) {
  rf_val starts = rf_emit_in(e, op, segments);
  return rf_emit_of_segments(e->h, starts, starts, rows);
}

/* Column `rank` of (B, Q, stride). */
static rf_val of_rank(rf_hlo *h, const rf_attend *a, rf_val v) {
  rf_val zero = i32(h, 0), start[3] = {zero, zero, a->rank};
  v = rf_hlo_reshape(h, v, RF_DIMS(a->batch, a->queries, a->stride));
  if (a->stride > 1) v = rf_hlo_dynamic_slice(h, v, start, (const int64_t[]){a->batch, a->queries, 1});
  return rf_hlo_reshape(h, v, RF_DIMS(a->batch, a->queries));
}

/* Positions i32 (count) of `count` queries, from query `from` (i32 scalar) on. */
static rf_val positions(rf_hlo *h, const rf_attend *a, rf_val from, int64_t count) {
  rf_val at = rf_hlo_add(h, rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(count)), from);
  return rf_hlo_add(h, rf_hlo_multiply_c(h, at, (double)a->stride), a->rank);
}

int64_t rf_attend_tokens(const rf_graph *graph, int64_t keys, int64_t stride) {
  int64_t seq = graph->seq;
  return graph->job != RF_JOB_SCORE && !rf_emit_packs(graph) && seq > 0 && keys % seq == 0 &&
                 seq % stride == 0
             ? seq
             : keys;
}

rf_attend rf_attend_of(rf_emit *e, const rf_op *op, int segments, int64_t rows, int64_t stride, rf_val rank) {
  rf_hlo *h = e->h;
  int64_t keys = rows * stride, context = e->graph->seq, window = op->attr.attention.window;
  bool whole = e->known.whole_rows && context > 0 && keys % context == 0 && context % stride == 0;
  int64_t seq = whole ? context : rf_attend_tokens(e->graph, keys, stride);
  if (seq == keys && context > 0 && context < keys && (window == 0 || window > context)) window = context;
  rf_attend a = {.attr = &op->attr.attention,
                 .batch = keys / seq,
                 .queries = seq / stride,
                 .keys = seq,
                 .stride = stride,
                 .window = window < seq ? window : 0,
                 .rank = rank,
                 .block = e->attention_block};
  if (e->known.whole_rows && a.window == 0) {
    a.low = rf_hlo_full(h, RF_HLO_I32, 0, RF_DIMS(a.batch, a.queries));
    return a;
  }
  rf_val *kept = rf_emit_keep(e, RF_KEEP_SEGMENTS, op->input[segments], window * 4096 + stride);
  if (!rf_has(*kept)) {
    rf_val first = of_rank(h, &a, starts_of(e, op, segments, keys));
    rf_val begin =
        rf_hlo_multiply_c(h, rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(a.batch, a.queries)), (double)seq);
    *kept = rf_hlo_maximum_c(h, rf_hlo_subtract(h, first, begin), 0);
    if (a.window > 0) {
      rf_val low = rf_hlo_add_c(h, positions(h, &a, i32(h, 0), a.queries), (double)(1 - a.window));
      *kept =
          rf_hlo_maximum(h, *kept, rf_hlo_broadcast(h, low, (const int[]){1}, RF_DIMS(a.batch, a.queries)));
    }
  }
  a.low = *kept;
  return a;
}

rf_val rf_attend_split(rf_hlo *h, const rf_attend *a, rf_val rows, int64_t begin, const int64_t of[3]) {
  rf_val v = rf_hlo_slice(h, rows, 1, begin, begin + of[0] * of[1] * of[2]);
  v = rf_hlo_reshape(h, v, RF_DIMS(a->batch, v.dim[0] / a->batch, of[0], of[1], of[2]));
  return rf_hlo_transpose(h, v, (const int[]){0, 2, 3, 1, 4});
}

rf_val rf_attend_join(rf_hlo *h, rf_val v) {
  v = rf_hlo_transpose(h, v, (const int[]){0, 3, 1, 2, 4});
  return rf_hlo_reshape(h, v, RF_DIMS(v.dim[0] * v.dim[1], v.dim[2] * v.dim[3] * v.dim[4]));
}

rf_val rf_attend_delta(rf_emit *e, const rf_attend *a, rf_val ctx, rf_val dctx, int64_t heads,
                       int64_t group) {
  rf_hlo *h = e->h;
  rf_val v = rf_hlo_multiply(h, rf_hlo_convert(h, ctx, RF_HLO_F32), rf_hlo_convert(h, dctx, RF_HLO_F32));
  v = rf_hlo_reshape(h, v, RF_DIMS(a->batch, a->queries, heads, group, v.dim[1] / (heads * group)));
  return rf_hlo_transpose(h, rf_hlo_reduce(h, RF_HLO_SUM, v, 4), (const int[]){0, 2, 3, 1});
}
rf_val rf_attend_lse_in(rf_hlo *h, const rf_attend *a, rf_val lse, int64_t heads, int64_t group) {
  lse = rf_hlo_convert(h, rf_hlo_reshape(h, lse, RF_DIMS(heads, group, a->batch, a->queries)), RF_HLO_F32);
  return rf_hlo_transpose(h, lse, (const int[]){2, 0, 1, 3});
}
rf_val rf_attend_lse_out(rf_hlo *h, rf_val lse) {
  lse = rf_hlo_transpose(h, lse, (const int[]){1, 2, 0, 3});
  return rf_hlo_reshape(h, lse, RF_DIMS(lse.dim[0] * lse.dim[1], lse.dim[2] * lse.dim[3]));
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* A block of queries and a block of keys. gQ counts the queries of all g query heads that share a
 * key head, one head after the other. */
typedef struct block {
  rf_val q, k, v;       /* (B,K,gQ,D), (B,K,S,D), (B,K,S,W) */
  rf_val position, low; /* i32 (gQ) and (B,gQ): the last and the first key that a query sees */
  rf_val key;           /* i32 scalar: position of the first key */
} block;

/* Returns queries [from, from + count) of v (B,K,g,Q) or (B,K,g,Q,D), as (B,K,g*count) or
 * (B,K,g*count,D). If `from` has no value, the first query is `constant`. */
static rf_val queries_of(rf_hlo *h, rf_val v, int64_t constant, rf_val from, int64_t count) {
  rf_val zero = rf_has(from) ? i32(h, 0) : RF_NO_VAL, start[5] = {zero, zero, zero, from, zero};
  int64_t size[5] = {v.dim[0], v.dim[1], v.dim[2], count, v.dim[4]};
  v = rf_has(from) ? rf_hlo_dynamic_slice(h, v, start, size)
                   : rf_hlo_slice(h, v, 3, constant, constant + count);
  return v.rank == 4 ? rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], v.dim[1], v.dim[2] * count))
                     : rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], v.dim[1], v.dim[2] * count, v.dim[4]));
}

static rf_val keys_of(rf_hlo *h, rf_val v, int64_t constant, rf_val from, int64_t count) {
  rf_val zero = rf_has(from) ? i32(h, 0) : RF_NO_VAL, start[4] = {zero, zero, from, zero};
  const int64_t size[4] = {v.dim[0], v.dim[1], count, v.dim[3]};
  return rf_has(from) ? rf_hlo_dynamic_slice(h, v, start, size)
                      : rf_hlo_slice(h, v, 2, constant, constant + count);
}

/* The place of a block: `count` queries from query `query` on, and `keys` keys from key `key` on.
 * In a loop, the values query_at and key_at replace the constants query and key. */
typedef struct place {
  int64_t query, count, key, keys;
  rf_val query_at, key_at;
} place;

static block block_at(rf_hlo *h, const rf_attend *a, const rf_val qkv[3], place at) {
  int64_t group = qkv[0].dim[2];
  rf_val from = rf_has(at.query_at) ? at.query_at : i32(h, at.query), zero = i32(h, 0);
  rf_val low = rf_has(at.query_at) ? rf_hlo_dynamic_slice(h, a->low, (const rf_val[]){zero, from},
                                                          (const int64_t[]){a->batch, at.count})
                                   : rf_hlo_slice(h, a->low, 1, at.query, at.query + at.count);
  low = rf_hlo_broadcast(h, low, (const int[]){0, 2}, RF_DIMS(a->batch, group, at.count));
  rf_val position = positions(h, a, from, at.count);
  position = rf_hlo_broadcast(h, position, (const int[]){1}, RF_DIMS(group, at.count));
  return (block){.q = queries_of(h, qkv[0], at.query, at.query_at, at.count),
                 .k = keys_of(h, qkv[1], at.key, at.key_at, at.keys),
                 .v = keys_of(h, qkv[2], at.key, at.key_at, at.keys),
                 .position = rf_hlo_reshape(h, position, RF_DIMS(group * at.count)),
                 .low = rf_hlo_reshape(h, low, RF_DIMS(a->batch, group * at.count)),
                 .key = rf_has(at.key_at) ? at.key_at : i32(h, at.key)};
}

/* a (B,K,M,c) with b (B,K,c,N) or, if b_last, (B,K,N,c) -> f32 (B,K,M,N) */
static rf_val product(rf_hlo *h, rf_val a, rf_val b, bool b_last) {
  rf_hlo_dot of = {{0, 1, -1}, {0, 1, -1}, {3, -1}, {b_last ? 3 : 2, -1}};
  return rf_hlo_dot_general(h, a, b, of, RF_HLO_F32);
}

static rf_val scores_of(rf_hlo *h, const rf_attr_attention *attr, rf_val s) {
  s = rf_emit_softcap(h, rf_hlo_multiply_c(h, s, (double)attr->scale), attr->softcap);
  return attr->softmax == RF_BF16 ? rf_hlo_round_bf16(h, s) : s;
}

/* True where a query sees a key. The scores s have the queries along dimension `axis` (2 or 3). */
static rf_val visible(rf_hlo *h, const block *b, rf_val s, int axis) {
  rf_val key = rf_hlo_add(h, rf_hlo_iota(h, RF_HLO_I32, 5 - axis, s.rank, s.dim), b->key);
  rf_val last = rf_hlo_broadcast(h, b->position, &axis, s.rank, s.dim),
         first = rf_hlo_broadcast(h, b->low, (const int[]){0, axis}, s.rank, s.dim);
  return rf_hlo_and(h, rf_hlo_compare(h, RF_HLO_GE, key, first), rf_hlo_compare(h, RF_HLO_LE, key, last));
}

/* Repeats a value of each query to the shape of s, whose dimension `axis` counts queries. */
static rf_val along(rf_hlo *h, rf_val v, int axis, rf_val s) {
  return rf_hlo_broadcast(h, v, (const int[]){0, 1, axis}, s.rank, s.dim);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Splits dimension 2 of (B,K,gQ) or (B,K,gQ,D). */
static rf_val by_head(rf_hlo *h, rf_val v, int64_t group) {
  return v.rank == 3 ? rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], v.dim[1], group, v.dim[2] / group))
                     : rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], v.dim[1], group, v.dim[2] / group, v.dim[3]));
}

/* Computes attention of a block of queries over all keys that these queries see. */
static void forward_block(rf_hlo *h, const rf_attend *a, const block *b, rf_val *ctx, rf_val *lse) {
  rf_val s = scores_of(h, a->attr, product(h, b->q, b->k, true));
  s = rf_hlo_select(h, visible(h, b, s, 2), s, rf_hlo_scalar(h, RF_HLO_F32, (double)-INFINITY));
  rf_val most = rf_hlo_reduce(h, RF_HLO_MAX, s, 3);
  rf_val p = rf_hlo_exponential(h, rf_hlo_subtract(h, s, along(h, most, 2, s)));
  rf_val sum = rf_hlo_reduce(h, RF_HLO_SUM, p, 3);
  rf_val o = product(h, rf_hlo_convert(h, p, b->v.type), b->v, false);
  *ctx = rf_hlo_divide(h, o, along(h, sum, 2, o));
  *lse = rf_hlo_add(h, most, rf_hlo_log(h, sum));
}

/* Keys [*begin, *end) that queries [from, to) see, in whole blocks. */
static void keys_seen(const rf_attend *a, int64_t from, int64_t to, int64_t size, int64_t *begin,
                      int64_t *end) {
  *end = smaller(a->keys, to * a->stride);
  *begin = a->window > 0 ? larger(0, from * a->stride - a->window + 1) / size * size : 0;
}
/* Queries [*begin, *end) that see a key in [from, to). */
static void queries_seeing(const rf_attend *a, int64_t from, int64_t to, int64_t *begin, int64_t *end) {
  *begin = from / a->stride;
  *end = a->window > 0 ? smaller(a->queries, (to - 2 + a->window) / a->stride + 1) : a->queries;
}

static void forward_unrolled(rf_emit *e, const rf_attend *a, const rf_val qkv[3], rf_val *ctx, rf_val *lse) {
  rf_hlo *h = e->h;
  rf_val o[LIMIT], l[LIMIT];
  int64_t size = block_of(a, a->queries), group = qkv[0].dim[2];
  int count = 0;
  for (int64_t from = 0; from < a->queries; from += size, count++) {
    int64_t to = smaller(a->queries, from + size), begin, end;
    keys_seen(a, from, to, block_of(a, a->keys), &begin, &end);
    block b = block_at(h, a, qkv, (place){from, to - from, begin, end - begin, RF_NO_VAL, RF_NO_VAL});
    forward_block(h, a, &b, &o[count], &l[count]);
    o[count] = by_head(h, o[count], group);
    l[count] = by_head(h, l[count], group);
  }
  *ctx = rf_hlo_concatenate(h, 3, count, o);
  *lse = rf_hlo_concatenate(h, 3, count, l);
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct slopes {
  rf_val dq, dk, dv; /* (B,K,D,gQ), (B,K,S,D), (B,K,S,W) */
} slopes;

/* The contributions of a pair of blocks to the gradients of its queries and keys. */
static slopes backward_block(rf_hlo *h, const rf_attend *a, const block *b, rf_val dctx, rf_val lse,
                             rf_val delta) {
  rf_val s = scores_of(h, a->attr, product(h, b->k, b->q, true));
  rf_val p = rf_hlo_select(h, visible(h, b, s, 3), rf_hlo_subtract(h, s, along(h, lse, 3, s)),
                           rf_hlo_scalar(h, RF_HLO_F32, (double)-INFINITY));
  p = rf_hlo_exponential(h, p);
  rf_val dp = product(h, b->v, dctx, true);
  rf_val ds = rf_hlo_multiply(h, p, rf_hlo_subtract(h, dp, along(h, delta, 3, s)));
  rf_val slope = rf_emit_softcap_slope(h, s, a->attr->softcap);
  if (rf_has(slope)) ds = rf_hlo_multiply(h, ds, slope);
  ds = rf_hlo_convert(h, rf_hlo_multiply_c(h, ds, (double)a->attr->scale), b->q.type);
  return (slopes){.dq = product(h, rf_hlo_transpose(h, b->k, (const int[]){0, 1, 3, 2}), ds, false),
                  .dk = product(h, ds, b->q, false),
                  .dv = product(h, rf_hlo_convert(h, p, b->q.type), dctx, false)};
}

/* dq (B,K,D,gQ) as (B,K,D,g,Q). */
static rf_val dq_by_head(rf_hlo *h, rf_val v, int64_t group) {
  return rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], v.dim[1], v.dim[2], group, v.dim[3] / group));
}
static rf_val dq_rows(rf_hlo *h, rf_val v) { return rf_hlo_transpose(h, v, (const int[]){0, 1, 3, 4, 2}); }

/* The sum of dq so far. Later blocks of keys may still change queries [from, to). All earlier
 * queries are finished. */
typedef struct open_dq {
  rf_val part[LIMIT + 1], open; /* part: finished parts. open: part of queries [from, to) */
  int parts;
  int64_t from, to;
} open_dq;

static void add_dq(rf_hlo *h, open_dq *dq, rf_val v, int64_t begin, int64_t end) {
  if (!rf_has(dq->open)) {
    *dq = (open_dq){.open = v, .from = begin, .to = end};
    return;
  }
  if (begin > dq->from) {
    dq->part[dq->parts++] = rf_hlo_slice(h, dq->open, 4, 0, begin - dq->from);
    dq->open = rf_hlo_slice(h, dq->open, 4, begin - dq->from, dq->to - dq->from);
    dq->from = begin;
  }
  rf_val both = rf_hlo_add(h, dq->open, rf_hlo_slice(h, v, 4, 0, dq->to - begin));
  rf_val later = rf_hlo_slice(h, v, 4, dq->to - begin, end - begin);
  dq->open = end > dq->to ? rf_hlo_concatenate(h, 4, 2, (const rf_val[]){both, later}) : both;
  dq->to = end;
}

static void backward_unrolled(rf_emit *e, const rf_attend *a, const rf_val qkv[3], const rf_val given[3],
                              rf_val grad[3]) {
  rf_hlo *h = e->h;
  rf_val dk[LIMIT], dv[LIMIT];
  open_dq dq = {.open = RF_NO_VAL};
  int64_t size = block_of(a, a->keys), group = qkv[0].dim[2];
  int count = 0;
  for (int64_t from = 0; from < a->keys; from += size, count++) {
    int64_t to = smaller(a->keys, from + size), begin, end;
    queries_seeing(a, from, to, &begin, &end);
    rf_val of[3];
    for (int i = 0; i < 3; i++) of[i] = queries_of(h, given[i], begin, RF_NO_VAL, end - begin);
    block b = block_at(h, a, qkv, (place){begin, end - begin, from, to - from, RF_NO_VAL, RF_NO_VAL});
    slopes d = backward_block(h, a, &b, of[0], of[1], of[2]);
    dk[count] = d.dk;
    dv[count] = d.dv;
    add_dq(h, &dq, dq_by_head(h, d.dq, group), begin, end);
  }
  dq.part[dq.parts++] = dq.open;
  grad[0] = dq_rows(h, rf_hlo_concatenate(h, 4, dq.parts, dq.part));
  grad[1] = rf_hlo_concatenate(h, 2, count, dk);
  grad[2] = rf_hlo_concatenate(h, 2, count, dv);
}

/* ---- loops over pairs of blocks -------------------------------------------------------------- */

/* The pairs of a block of queries and a block of keys in which some query sees some key, as
 * constants. The pairs of one outer block (of queries or of keys) are consecutive. `fresh` marks
 * the first pair of each outer block. */
typedef struct pairs {
  int64_t count, query_size, key_size;
  rf_val query, key, fresh; /* i32 (count): first query, first key, and 1 for a fresh pair, otherwise 0 */
} pairs;

static void list_pairs(const rf_attend *a, pairs *p, bool keys_outer, double *list[3]) {
  int64_t outer_size = keys_outer ? p->key_size : p->query_size,
          outer_end = keys_outer ? a->keys : a->queries,
          inner_size = keys_outer ? p->query_size : p->key_size;
  p->count = 0;
  for (int64_t from = 0; from < outer_end; from += outer_size) {
    int64_t to = smaller(outer_end, from + outer_size), begin, end;
    if (keys_outer) queries_seeing(a, from, to, &begin, &end);
    else keys_seen(a, from, to, p->key_size, &begin, &end);
    begin = begin / inner_size * inner_size;
    for (int64_t at = begin; at < end; at += inner_size, p->count++) {
      if (!list[0]) continue;
      list[0][p->count] = (double)(keys_outer ? at : from);
      list[1][p->count] = (double)(keys_outer ? from : at);
      list[2][p->count] = at == begin;
    }
  }
}

static pairs pairs_of(rf_emit *e, const rf_attend *a, bool keys_outer) {
  pairs p = {.query_size = block_of(a, a->queries), .key_size = block_of(a, a->keys)};
  double *list[3] = {NULL, NULL, NULL};
  list_pairs(a, &p, keys_outer, list);
  for (int i = 0; i < 3; i++) list[i] = rf_pool_alloc(e->pool, (size_t)p.count * sizeof **list);
  list_pairs(a, &p, keys_outer, list);
  p.query = rf_hlo_list(e->h, RF_HLO_I32, p.count, list[0]);
  p.key = rf_hlo_list(e->h, RF_HLO_I32, p.count, list[1]);
  p.fresh = rf_hlo_list(e->h, RF_HLO_I32, p.count, list[2]);
  return p;
}

static rf_val entry(rf_hlo *h, rf_val list, rf_val i) {
  return rf_hlo_reshape(h, rf_hlo_dynamic_slice(h, list, &i, (const int64_t[]){1}), 0, NULL);
}

/* Writes `part` at `at` along dimension `axis`. */
static rf_val put(rf_hlo *h, rf_val all, rf_val part, int axis, rf_val at) {
  rf_val zero = i32(h, 0), start[RF_HLO_RANK] = {zero, zero, zero, zero, zero, zero};
  start[axis] = at;
  return rf_hlo_dynamic_update(h, all, part, start);
}

/* Pads the sequences with zeros along `axis`, so that their length is a multiple of the blocks. */
static rf_val padded(rf_hlo *h, rf_val v, int axis, int64_t size) {
  int64_t more = rf_ceil_div(v.dim[axis], size) * size - v.dim[axis];
  return more ? rf_hlo_pad(h, v, axis, 0, more, 0) : v;
}
static void pad_all(rf_hlo *h, rf_attend *a, const pairs *p, const rf_val in[3], rf_val qkv[3]) {
  qkv[0] = padded(h, in[0], 3, p->query_size);
  qkv[1] = padded(h, in[1], 2, p->key_size);
  qkv[2] = padded(h, in[2], 2, p->key_size);
  a->low = padded(h, a->low, 1, p->query_size);
}

/* For a block of queries: running maximum, running sum, and running weighted sum of values. */
static void forward_step(rf_hlo *h, const rf_attend *a, const block *b, rf_val state[3]) {
  rf_val s = scores_of(h, a->attr, product(h, b->q, b->k, true)), see = visible(h, b, s, 2);
  rf_val masked = rf_hlo_select(h, see, s, rf_hlo_scalar(h, RF_HLO_F32, MASKED));
  rf_val most = rf_hlo_maximum(h, state[0], rf_hlo_reduce(h, RF_HLO_MAX, masked, 3));
  rf_val p = rf_hlo_exponential(h, rf_hlo_subtract(h, s, along(h, most, 2, s)));
  p = rf_hlo_select(h, see, p, rf_hlo_scalar(h, RF_HLO_F32, 0));
  rf_val shrink = rf_hlo_exponential(h, rf_hlo_subtract(h, state[0], most));
  rf_val o = product(h, rf_hlo_convert(h, p, b->v.type), b->v, false);
  state[0] = most;
  state[1] = rf_hlo_add(h, rf_hlo_multiply(h, state[1], shrink), rf_hlo_reduce(h, RF_HLO_SUM, p, 3));
  state[2] = rf_hlo_add(h, rf_hlo_multiply(h, state[2], along(h, shrink, 2, o)), o);
}

static void forward_looped(rf_emit *e, rf_attend a, const rf_val in[3], rf_val *ctx, rf_val *lse) {
  rf_hlo *h = e->h;
  pairs p = pairs_of(e, &a, false);
  rf_val qkv[3];
  pad_all(h, &a, &p, in, qkv);
  const int64_t *q = qkv[0].dim, group = q[2], wide = qkv[2].dim[3], block_rows = group * p.query_size;
  rf_val value[5] = {rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(q[0], q[1], block_rows)),
                     rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(q[0], q[1], block_rows)),
                     rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(q[0], q[1], block_rows, wide)),
                     rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(q[0], q[1], group, q[3], wide)),
                     rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(q[0], q[1], group, q[3]))};
  rf_hlo_loop loop;
  rf_hlo_loop_begin(h, &loop, p.count, value, 5);
  rf_val query = entry(h, p.query, loop.i), key = entry(h, p.key, loop.i),
         fresh = rf_hlo_compare_c(h, RF_HLO_EQ, entry(h, p.fresh, loop.i), 1);
  block b = block_at(h, &a, qkv, (place){0, p.query_size, 0, p.key_size, query, key});
  /* With this maximum, the first step of a block multiplies the sums of the previous block by 0. */
  value[0] = rf_hlo_select(h, fresh, rf_hlo_full_like(h, value[0], MASKED), value[0]);
  forward_step(h, &a, &b, value);
  rf_val o = rf_hlo_divide(h, value[2], along(h, value[1], 2, value[2]));
  value[3] = put(h, value[3], by_head(h, o, group), 3, query);
  value[4] = put(h, value[4], by_head(h, rf_hlo_add(h, value[0], rf_hlo_log(h, value[1])), group), 3, query);
  rf_hlo_loop_end(h, &loop, value);
  *ctx = rf_hlo_slice(h, value[3], 3, 0, a.queries);
  *lse = rf_hlo_slice(h, value[4], 3, 0, a.queries);
}

/* Adds v to the gradient of a block of keys. The sum starts from 0 at the first block of
 * queries. */
static rf_val accumulate(rf_hlo *h, rf_val fresh, rf_val sum, rf_val v) {
  return rf_hlo_add(h, rf_hlo_select(h, fresh, rf_hlo_full_like(h, sum, 0), sum), v);
}

static void backward_looped(rf_emit *e, rf_attend a, const rf_val in[3], const rf_val given[3],
                            rf_val grad[3]) {
  rf_hlo *h = e->h;
  pairs p = pairs_of(e, &a, true);
  rf_val qkv[3], more[3], of[3];
  pad_all(h, &a, &p, in, qkv);
  for (int i = 0; i < 3; i++) more[i] = padded(h, given[i], 3, p.query_size);
  const int64_t *q = qkv[0].dim, *k = qkv[1].dim, *v = qkv[2].dim, group = q[2], rows = p.key_size;
  rf_val value[5] = {rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(q[0], q[1], rows, k[3])),
                     rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(q[0], q[1], rows, v[3])),
                     rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(q[0], q[1], k[3], group, q[3])),
                     rf_hlo_full(h, RF_HLO_F32, 0, 4, k), rf_hlo_full(h, RF_HLO_F32, 0, 4, v)};
  rf_hlo_loop loop;
  rf_hlo_loop_begin(h, &loop, p.count, value, 5);
  rf_val query = entry(h, p.query, loop.i), key = entry(h, p.key, loop.i), zero = i32(h, 0),
         fresh = rf_hlo_compare_c(h, RF_HLO_EQ, entry(h, p.fresh, loop.i), 1);
  block b = block_at(h, &a, qkv, (place){0, p.query_size, 0, rows, query, key});
  for (int i = 0; i < 3; i++) of[i] = queries_of(h, more[i], 0, query, p.query_size);
  slopes d = backward_block(h, &a, &b, of[0], of[1], of[2]);
  value[0] = accumulate(h, fresh, value[0], d.dk);
  value[1] = accumulate(h, fresh, value[1], d.dv);
  const int64_t size[5] = {q[0], q[1], k[3], group, p.query_size};
  rf_val old = rf_hlo_dynamic_slice(h, value[2], (const rf_val[]){zero, zero, zero, zero, query}, size);
  value[2] = put(h, value[2], rf_hlo_add(h, old, dq_by_head(h, d.dq, group)), 4, query);
  value[3] = put(h, value[3], value[0], 2, key);
  value[4] = put(h, value[4], value[1], 2, key);
  rf_hlo_loop_end(h, &loop, value);
  grad[0] = dq_rows(h, rf_hlo_slice(h, value[2], 4, 0, a.queries));
  grad[1] = rf_hlo_slice(h, value[3], 2, 0, a.keys);
  grad[2] = rf_hlo_slice(h, value[4], 2, 0, a.keys);
}

/* ---- both ------------------------------------------------------------------------------------ */

static bool is_long(const rf_attend *a) {
  return rf_ceil_div(a->queries, block_of(a, a->queries)) > LIMIT ||
         rf_ceil_div(a->keys, block_of(a, a->keys)) > LIMIT;
}

void rf_attend_forward(rf_emit *e, const rf_attend *a, const rf_val qkv[3], rf_val *ctx, rf_val *lse) {
  if (is_long(a)) forward_looped(e, *a, qkv, ctx, lse);
  else forward_unrolled(e, a, qkv, ctx, lse);
}

void rf_attend_backward(rf_emit *e, const rf_attend *a, const rf_val qkv[3], rf_val dctx, rf_val lse,
                        rf_val delta, rf_val grad[3]) {
  const rf_val given[3] = {dctx, lse, delta};
  if (is_long(a)) backward_looped(e, *a, qkv, given, grad);
  else backward_unrolled(e, a, qkv, given, grad);
}
