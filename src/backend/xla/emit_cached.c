/* emit_cached.c - see emit_cached.h: writes rows to pages, and attention over pages.
 *
 * The program reads pages in steps of some hundred positions, with a running maximum and running
 * sums. The longest sequence of the call decides the number of steps. A step of decoding gathers
 * one run of pages of every row. If a slot may have several rows, a step takes a run of pages of
 * one slot and a chunk of rows. So rows of the same slot share the run. A list has the steps that
 * some row needs. */
#include "backend/xla/emit_cached.h"

#include <math.h>

enum { STEP = 256 }; /* number of positions of a step, rounded up to whole pages */
/* number of query rows of a chunk, where each query head of a key head counts as a row */
enum { CHUNK_ROWS = 256 };
/* On GPUs, the host waits in each round of a loop, so steps and chunks are larger there. */
enum { WIDE_STEP = 1024, WIDE_CHUNK_ROWS = 4096 };
/* If the number of keys is known, and the positions of all rows are at most ONE_STEP, one step
 * reads all positions, without a loop. */
enum { ONE_STEP = 1 << 20 };
static const double MASKED = -1e30; /* this score is finite, so that no difference is inf - inf */

static rf_val i32(rf_hlo *h, int64_t value) { return rf_hlo_scalar(h, RF_HLO_I32, (double)value); }
static rf_val quotient(rf_hlo *h, rf_val v, int64_t by) {
  return by == 1 ? v : rf_hlo_divide(h, v, i32(h, by));
}
static rf_val rest(rf_hlo *h, rf_val v, int64_t by) { return rf_hlo_remainder(h, v, i32(h, by)); }

static int64_t chips_of(const rf_pages *p) { return p->op->attr.group > 1 ? p->op->attr.group : 1; }
static rf_val rank_of(rf_emit *e, const rf_pages *p) {
  return p->op->attr.axes ? rf_emit_rank(e, p->op->attr.axes) : i32(e->h, 0);
}

/* Makes an array with these vectors as columns: (n) and (n) -> (n,2). */
static rf_val columns_of(rf_hlo *h, int count, const rf_val *part) {
  rf_val column[3];
  for (int i = 0; i < count; i++) column[i] = rf_hlo_reshape(h, part[i], RF_DIMS(part[i].dim[0], 1));
  return rf_hlo_concatenate(h, 1, count, column);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The keys that each row sees: the slot, and the first and the last key as positions on this chip,
 * i32 (n). last < first: the row sees no key. All layers with the same window share these
 * values. */
typedef struct reach {
  rf_val slot, first, last;
} reach;

/* Number of positions below `end` that this chip stores: (end - rank + chips - 1) / chips. */
static rf_val held(rf_hlo *h, rf_val end, rf_val rank, int64_t chips) {
  if (chips == 1) return end;
  return quotient(h, rf_hlo_add_c(h, rf_hlo_subtract(h, end, rank), (double)(chips - 1)), chips);
}

static reach reach_of(rf_emit *e, const rf_pages *p) {
  rf_hlo *h = e->h;
  int64_t window = p->op->attr.attention.window, chips = chips_of(p);
  rf_val *kept = rf_emit_keep(e, RF_KEEP_REACH, p->op->input[p->positions], window);
  if (!rf_has(kept[0])) {
    rf_val rank = rank_of(e, p), position = rf_emit_in(e, p->op, p->positions), none = i32(h, 0);
    kept[0] = rf_emit_in(e, p->op, p->slots);
    rf_val used = rf_hlo_compare_c(h, RF_HLO_GE, kept[0], 0);
    rf_val low = window > 0 ? rf_hlo_maximum_c(h, rf_hlo_add_c(h, position, (double)(1 - window)), 0)
                            : rf_hlo_full_like(h, position, 0);
    kept[1] = rf_hlo_select(h, used, held(h, low, rank, chips), none);
    rf_val end = held(h, rf_hlo_add_c(h, position, 1), rank, chips);
    kept[2] = rf_hlo_add_c(h, rf_hlo_select(h, used, end, none), -1);
  }
  return (reach){kept[0], kept[1], kept[2]};
}

void rf_pages_write(rf_emit *e, rf_pages *p, rf_val rows, rf_val scales) {
  rf_hlo *h = e->h;
  rf_val slot = rf_emit_in(e, p->op, p->slots), position = rf_emit_in(e, p->op, p->positions),
         table = rf_emit_in(e, p->op, p->table);
  int64_t n = slot.dim[0], parts = p->cache.dim[1], page = p->cache.dim[2], chips = chips_of(p);
  rf_val *kept = rf_emit_keep(e, RF_KEEP_PAGES, p->op->input[p->table], parts);
  if (!rf_has(*kept)) {
    rf_val at = quotient(h, position, chips), mine = rf_hlo_compare_c(h, RF_HLO_GE, slot, 0);
    rf_val found = rf_hlo_gather(h, table, columns_of(h, 2, (rf_val[]){slot, quotient(h, at, page)}), 2,
                                 (const int[]){0, 1});
    if (chips > 1)
      mine = rf_hlo_and(h, mine, rf_hlo_compare(h, RF_HLO_EQ, rest(h, position, chips), rank_of(e, p)));
    /* A row whose page number is larger than the cache is dropped. Each row has another such
     * number, because indices must be unique. */
    rf_val beyond = rf_hlo_add_c(h, rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(n)), (double)p->cache.dim[0]);
    rf_val part[2], line = rest(h, at, page);
    found = rf_hlo_select(h, mine, found, beyond);
    for (int64_t i = 0; i < parts; i++) {
      rf_val which = rf_hlo_full_like(h, line, (double)i);
      part[i] = rf_hlo_reshape(h, columns_of(h, 3, (rf_val[]){found, which, line}), RF_DIMS(n, 1, 3));
    }
    *kept = rf_hlo_concatenate(h, 1, (int)parts, part);
  }
  p->cache = rf_hlo_scatter(h, p->cache, *kept, rows, 3, (const int[]){0, 1, 2}, false, true);
  if (rf_has(scales))
    p->scale = rf_hlo_scatter(h, p->scale, *kept, scales, 3, (const int[]){0, 1, 2}, false, true);
}

/* ---- one step -------------------------------------------------------------------------------- */

/* A run of pages for each of b parts of the call, and the queries that see the run. M is the number
 * of queries of one part and one key head. */
typedef struct step {
  rf_val q;           /* (b,K,M,D) */
  rf_val pages;       /* i32 (b,u) */
  rf_val key;         /* i32 scalar: position of the first key */
  rf_val first, last; /* i32 (b,M): keys that a query sees */
  rf_val end;         /* i32 (b): last key that any of the queries of a part sees */
} step;

static rf_val stored(rf_hlo *h, const rf_pages *p, rf_val v, rf_hlo_type type) {
  if (v.type == RF_HLO_U16) v = rf_hlo_bitcast(h, v, p->type);
  return rf_hlo_convert(h, v, type);
}

/* Part `which` of the pages, (b, uG, columns). */
static rf_val fetch(rf_hlo *h, rf_val from, rf_val pages, int64_t which) {
  int64_t b = pages.dim[0], u = pages.dim[1];
  rf_val one = rf_hlo_reshape(h, pages, RF_DIMS(b, u, 1));
  rf_val index = rf_hlo_concatenate(h, 2, 2, (rf_val[]){one, rf_hlo_full_like(h, one, (double)which)});
  rf_val v = rf_hlo_gather(h, from, index, 2, (const int[]){0, 1});
  return rf_hlo_reshape(h, v, RF_DIMS(b, u * v.dim[2], v.dim[3]));
}

/* (b, S, K*c) as (b, K, S, c), or (b, K, S) if c is 1. */
static rf_val by_head(rf_hlo *h, rf_val v, int64_t heads) {
  int64_t c = v.dim[2] / heads;
  v = rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], v.dim[1], heads, c));
  v = rf_hlo_transpose(h, v, (const int[]){0, 2, 1, 3});
  return c > 1 ? v : rf_hlo_reshape(h, v, RF_DIMS(v.dim[0], v.dim[1], v.dim[2]));
}

/* Keys (b,K,S,D) and values (b,K,S,W) of a step. The memory after the last key of a sequence may
 * contain NaN, and 0 times NaN is NaN. So these values are replaced by 0. */
static void fetch_both(rf_hlo *h, const rf_pages *p, const step *s, rf_val *k, rf_val *v) {
  bool latent = p->cache.dim[1] == 1;
  rf_val rows = fetch(h, p->cache, s->pages, 0);
  rf_val values = latent ? rf_hlo_slice(h, rows, 2, 0, p->value) : fetch(h, p->cache, s->pages, 1);
  rows = rf_hlo_reshape(h, rows, RF_DIMS(rows.dim[0], rows.dim[1], p->kv_heads, p->key));
  values = rf_hlo_reshape(h, values, RF_DIMS(rows.dim[0], rows.dim[1], p->kv_heads, p->value));
  rf_hlo_type type = p->split ? p->type : s->q.type;
  *k = stored(h, p, rf_hlo_transpose(h, rows, (const int[]){0, 2, 1, 3}), type);
  values = stored(h, p, rf_hlo_transpose(h, values, (const int[]){0, 2, 1, 3}), type);
  rf_val key = rf_hlo_add(h, rf_hlo_iota(h, RF_HLO_I32, 2, values.rank, values.dim), s->key);
  rf_val end = rf_hlo_broadcast(h, s->end, (const int[]){0}, values.rank, values.dim);
  *v = rf_hlo_select(h, rf_hlo_compare(h, RF_HLO_LE, key, end), values, rf_hlo_scalar(h, values.type, 0));
}

/* Multiplies s (b,K,M,S) by the scales (b,K,S) of the codes of its keys. */
static rf_val scaled(rf_hlo *h, const rf_pages *p, const step *of, int64_t which, rf_val s) {
  if (!rf_has(p->scale)) return s;
  rf_val scale = by_head(h, fetch(h, p->scale, of->pages, which), p->kv_heads);
  return rf_hlo_multiply(h, s, rf_hlo_broadcast(h, scale, (const int[]){0, 1, 3}, s.rank, s.dim));
}

static rf_val product(rf_hlo *h, rf_val a, rf_val b, bool b_last) {
  rf_hlo_dot of = {{0, 1, -1}, {0, 1, -1}, {3, -1}, {b_last ? 3 : 2, -1}};
  return rf_hlo_dot_general(h, a, b, of, RF_HLO_F32);
}
static rf_val along(rf_hlo *h, rf_val v, rf_val s) {
  return rf_hlo_broadcast(h, v, (const int[]){0, 1, 2}, s.rank, s.dim);
}

/* Products of queries and keys, (b,K,M,S). */
static rf_val products(rf_hlo *h, const rf_pages *p, rf_val q, rf_val k) {
  if (!p->split) return product(h, q, k, true);
  rf_val high = rf_hlo_round_bf16(h, q), low = rf_hlo_subtract(h, q, high);
  rf_val part[2] = {rf_hlo_convert(h, high, k.type), rf_hlo_convert(h, low, k.type)};
  rf_val both = product(h, rf_hlo_concatenate(h, 2, 2, part), k, true);
  int64_t queries = q.dim[2];
  return rf_hlo_add(h, rf_hlo_slice(h, both, 2, 0, queries), rf_hlo_slice(h, both, 2, queries, 2 * queries));
}

/* Scores (b,K,M,S) of the queries and keys of a step. */
static rf_val scores(rf_hlo *h, const rf_pages *p, const step *of, rf_val k) {
  const rf_attr_attention *attr = &p->op->attr.attention;
  rf_val s = rf_hlo_multiply_c(h, scaled(h, p, of, 0, products(h, p, of->q, k)), (double)attr->scale);
  s = rf_emit_softcap(h, s, attr->softcap);
  return attr->softmax == RF_BF16 ? rf_hlo_round_bf16(h, s) : s;
}

/* True where a query sees a key, for scores s (b,K,M,S). */
static rf_val visible(rf_hlo *h, const step *of, rf_val s) {
  rf_val key = rf_hlo_add(h, rf_hlo_iota(h, RF_HLO_I32, 3, s.rank, s.dim), of->key);
  rf_val first = rf_hlo_broadcast(h, of->first, (const int[]){0, 2}, s.rank, s.dim),
         last = rf_hlo_broadcast(h, of->last, (const int[]){0, 2}, s.rank, s.dim);
  return rf_hlo_and(h, rf_hlo_compare(h, RF_HLO_GE, key, first), rf_hlo_compare(h, RF_HLO_LE, key, last));
}

/* state: maximum (b,K,M), sum (b,K,M), weighted sum of values (b,K,M,W) */
static void attend(rf_hlo *h, const rf_pages *p, const step *of, rf_val state[3]) {
  rf_val k, v;
  fetch_both(h, p, of, &k, &v);
  rf_val s = scores(h, p, of, k), see = visible(h, of, s);
  rf_val masked = rf_hlo_select(h, see, s, rf_hlo_scalar(h, RF_HLO_F32, MASKED));
  rf_val most = rf_hlo_maximum(h, state[0], rf_hlo_reduce(h, RF_HLO_MAX, masked, 3));
  rf_val e = rf_hlo_exponential(h, rf_hlo_subtract(h, s, along(h, most, s))),
         zero = rf_hlo_scalar(h, RF_HLO_F32, 0);
  rf_val weight = rf_hlo_select(h, see, scaled(h, p, of, 1, e), zero);
  rf_val shrink = rf_hlo_exponential(h, rf_hlo_subtract(h, state[0], most));
  rf_val o = product(h, rf_hlo_convert(h, weight, v.type), v, false);
  rf_val sum = rf_hlo_reduce(h, RF_HLO_SUM, rf_hlo_select(h, see, e, zero), 3);
  state[0] = most;
  state[1] = rf_hlo_add(h, rf_hlo_multiply(h, state[1], shrink), sum);
  state[2] = rf_hlo_add(h, rf_hlo_multiply(h, state[2], along(h, shrink, o)), o);
}

/* Computes attention over all keys in one step. out[0] is the weighted sum of values (b,K,M,W), and
 * out[1] is the log-sum (b,K,M). The weights are first divided by their sum, and then rounded,
 * because compilers for GPUs compute such a softmax in one kernel. Rows of idle slots see no key,
 * so their values are 0. */
static void attend_once(rf_hlo *h, const rf_pages *p, const step *of, rf_val out[2]) {
  rf_val k, v;
  fetch_both(h, p, of, &k, &v);
  rf_val s = scores(h, p, of, k), see = visible(h, of, s);
  s = rf_hlo_select(h, see, s, rf_hlo_scalar(h, RF_HLO_F32, MASKED));
  rf_val most = rf_hlo_reduce(h, RF_HLO_MAX, s, 3);
  rf_val e = rf_hlo_exponential(h, rf_hlo_subtract(h, s, along(h, most, s)));
  rf_val sum = rf_hlo_reduce(h, RF_HLO_SUM, e, 3);
  rf_val weight = scaled(h, p, of, 1, rf_hlo_divide(h, e, along(h, sum, s)));
  /* the scales of keys that no query sees may be NaN */
  if (rf_has(p->scale)) weight = rf_hlo_select(h, see, weight, rf_hlo_scalar(h, RF_HLO_F32, 0));
  out[0] = product(h, rf_hlo_convert(h, weight, v.type), v, false);
  out[1] = rf_hlo_add(h, most, rf_hlo_log(h, sum));
}

/* Number of columns of the page table that a row can need. */
static int64_t columns_seen(const rf_emit *e, const rf_pages *p, int64_t columns) {
  int64_t page = p->cache.dim[2] * chips_of(p), seen = rf_ceil_div(e->known.reach, page);
  return seen > 0 && seen < columns ? seen : columns;
}

/* The page table, padded to whole runs of `run` columns. */
static rf_val table_of(rf_emit *e, const rf_pages *p, int64_t run) {
  rf_val table = rf_emit_in(e, p->op, p->table);
  table = rf_hlo_slice(e->h, table, 1, 0, columns_seen(e, p, table.dim[1]));
  return rf_hlo_pad(e->h, table, 1, 0, rf_round_up(table.dim[1], run) - table.dim[1], 0);
}

static void start(rf_hlo *h, rf_val state[3], int64_t parts, int64_t heads, int64_t queries, int64_t value) {
  state[0] = rf_hlo_full(h, RF_HLO_F32, MASKED, RF_DIMS(parts, heads, queries));
  state[1] = rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(parts, heads, queries));
  state[2] = rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(parts, heads, queries, value));
}

/* ---- one row per slot ------------------------------------------------------------------------ */

static rf_val many(rf_hlo *h, rf_val v, int64_t times) {
  return rf_hlo_broadcast(h, v, (const int[]){0}, RF_DIMS(v.dim[0], times));
}

/* A step in which each row has its own pages (n,u). */
static step step_of(rf_hlo *h, const reach *r, rf_val q, rf_val pages, rf_val key) {
  int64_t group = q.dim[2];
  return (step){.q = q,
                .pages = pages,
                .key = key,
                .first = many(h, r->first, group),
                .last = many(h, r->last, group),
                .end = r->last};
}

/* Computes attention of rows that each have their own pages. */
static void attend_rows(rf_emit *e, const rf_pages *p, rf_val q, int64_t run, rf_val state[3]) {
  rf_hlo *h = e->h;
  reach r = reach_of(e, p);
  int64_t n = q.dim[0], positions = run * p->cache.dim[2];
  rf_val table = rf_hlo_rows(h, table_of(e, p, run), rf_hlo_maximum_c(h, r.slot, 0));
  rf_val some = rf_hlo_compare(h, RF_HLO_LE, r.first, r.last);
  rf_val low = rf_hlo_select(h, some, r.first, i32(h, table.dim[1] * p->cache.dim[2]));
  rf_val from = quotient(h, rf_hlo_reduce_all(h, RF_HLO_MIN, low), positions);
  rf_val most = rf_hlo_maximum_c(h, rf_hlo_reduce_all(h, RF_HLO_MAX, r.last), -1);
  rf_val to = quotient(h, rf_hlo_add_c(h, most, (double)positions), positions);
  rf_hlo_loop loop;
  start(h, state, n, q.dim[1], q.dim[2], p->value);
  if (table.dim[1] == run) {
    step all = step_of(h, &r, q, table, i32(h, 0));
    attend(h, p, &all, state);
    return;
  }
  rf_hlo_loop_begin_to(h, &loop, rf_hlo_subtract(h, to, from), state, 3);
  rf_val at = rf_hlo_add(h, loop.i, from), column = rf_hlo_multiply_c(h, at, (double)run);
  rf_val pages =
      rf_hlo_dynamic_slice(h, table, (const rf_val[]){i32(h, 0), column}, (const int64_t[]){n, run});
  step s = step_of(h, &r, q, pages, rf_hlo_multiply_c(h, at, (double)positions));
  attend(h, p, &s, state);
  rf_hlo_loop_end(h, &loop, state);
}

/* Does the same in one step, if one chip has all keys: out[0] (n,K,g,W), out[1] (n,K,g). */
static void attend_rows_once(rf_emit *e, const rf_pages *p, rf_val q, int64_t run, rf_val out[2]) {
  rf_hlo *h = e->h;
  reach r = reach_of(e, p);
  rf_val pages = rf_hlo_rows(h, table_of(e, p, run), rf_hlo_maximum_c(h, r.slot, 0));
  const step all = step_of(h, &r, q, pages, i32(h, 0));
  attend_once(h, p, &all, out);
}

/* ---- several rows per slot ------------------------------------------------------------------- */

/* The steps that some row needs. A step has a chunk of rows, a slot, and a run of columns of the
 * page table. */
typedef struct items {
  /* list: i32 (chunks*slots*runs), begins with the numbers of the needed steps. count: i32 scalar, number of
   * needed steps */
  rf_val list, count;
  rf_val end;    /* i32 (chunks*slots): last key of the slot that a row of the chunk sees */
  rf_val row[3]; /* slot, first, last of the rows, i32 (chunks, rows) */
} items;

/* Prefix sums of v (count): element i of the result is the sum of v[0] to v[i]. */
static rf_val sums_of(rf_hlo *h, rf_val v) {
  for (int64_t by = 1; by < v.dim[0]; by *= 2)
    v = rf_hlo_add(h, v, rf_hlo_pad(h, rf_hlo_slice(h, v, 0, 0, v.dim[0] - by), 0, by, 0, 0));
  return v;
}

/* A list that begins with the indices of the elements of `flag` that are set, and the number of
 * these elements. */
static void compress(rf_hlo *h, rf_val flag, items *of) {
  int64_t count = flag.dim[0];
  rf_val one = rf_hlo_convert(h, flag, RF_HLO_I32), sum = sums_of(h, one), zero = rf_hlo_full_like(h, one, 0);
  rf_val number = rf_hlo_iota(h, RF_HLO_I32, 0, RF_DIMS(count));
  rf_val to = rf_hlo_select(h, flag, rf_hlo_add_c(h, sum, -1), rf_hlo_add_c(h, number, (double)count));
  of->list = rf_hlo_scatter(h, zero, rf_hlo_reshape(h, to, RF_DIMS(count, 1)), number, 1, (const int[]){0},
                            false, true);
  of->count = rf_hlo_reshape(h, rf_hlo_slice(h, sum, 0, count - 1, count), 0, NULL);
}

static items find_items(rf_emit *e, const rf_pages *p, int64_t rows, int64_t slots, int64_t runs,
                        int64_t positions) {
  rf_hlo *h = e->h;
  reach r = reach_of(e, p);
  const rf_val all[3] = {r.slot, r.first, r.last};
  int64_t n = r.slot.dim[0], chunks = rf_ceil_div(n, rows), far = runs * positions;
  items of;
  for (int i = 0; i < 3; i++) {
    rf_val v = rf_hlo_pad(h, all[i], 0, 0, chunks * rows - n, -1);
    of.row[i] = rf_hlo_reshape(h, v, RF_DIMS(chunks, rows));
  }
  const int64_t dim[3] = {chunks, slots, rows}, need[3] = {chunks, slots, runs};
  rf_val seen[3];
  for (int i = 0; i < 3; i++) seen[i] = rf_hlo_broadcast(h, of.row[i], (const int[]){0, 2}, 3, dim);
  rf_val same = rf_hlo_compare(h, RF_HLO_EQ, seen[0], rf_hlo_iota(h, RF_HLO_I32, 1, 3, dim));
  same = rf_hlo_and(h, same, rf_hlo_compare(h, RF_HLO_LE, seen[1], seen[2]));
  rf_val first = rf_hlo_reduce(h, RF_HLO_MIN, rf_hlo_select(h, same, seen[1], i32(h, far)), 2),
         end = rf_hlo_reduce(h, RF_HLO_MAX, rf_hlo_select(h, same, seen[2], i32(h, -1)), 2);
  rf_val key = rf_hlo_multiply_c(h, rf_hlo_iota(h, RF_HLO_I32, 2, 3, need), (double)positions);
  rf_val above = rf_hlo_broadcast(h, end, (const int[]){0, 1}, 3, need),
         below = rf_hlo_broadcast(h, first, (const int[]){0, 1}, 3, need);
  rf_val flag = rf_hlo_and(h, rf_hlo_compare(h, RF_HLO_LE, key, above),
                           rf_hlo_compare(h, RF_HLO_GT, rf_hlo_add_c(h, key, (double)positions), below));
  of.end = rf_hlo_reshape(h, end, RF_DIMS(chunks * slots));
  compress(h, rf_hlo_reshape(h, flag, RF_DIMS(chunks * slots * runs)), &of);
  return of;
}

static items items_of(rf_emit *e, const rf_pages *p, int64_t rows, int64_t slots, int64_t runs,
                      int64_t positions) {
  int64_t window = p->op->attr.attention.window;
  rf_val *kept = rf_emit_keep(e, RF_KEEP_ITEMS, p->op->input[p->table], window * 65536 + rows);
  if (!rf_has(*kept)) {
    items of = find_items(e, p, rows, slots, runs, positions);
    const rf_val value[RF_EMIT_KEPT_VALUES] = {of.list, of.count, of.end, of.row[0], of.row[1], of.row[2]};
    for (int i = 0; i < RF_EMIT_KEPT_VALUES; i++) kept[i] = value[i];
  }
  return (items){kept[0], kept[1], kept[2], {kept[3], kept[4], kept[5]}};
}

/* Gets part `at` of the first dimension as (1, ...). The second function does the opposite. */
static rf_val part_at(rf_hlo *h, rf_val v, rf_val at) {
  rf_val zero = i32(h, 0), from[4] = {at, zero, zero, zero};
  int64_t size[4] = {1, v.dim[1], v.dim[2], v.dim[3]};
  return rf_hlo_dynamic_slice(h, v, from, size);
}
static rf_val put_at(rf_hlo *h, rf_val all, rf_val part, rf_val at) {
  rf_val zero = i32(h, 0), from[4] = {at, zero, zero, zero};
  return rf_hlo_dynamic_update(h, all, part, from);
}

/* The first and last key that each query of a chunk sees in the slot of this step, i32 (1,
 * g*rows). */
static void sees(rf_hlo *h, const items *of, rf_val chunk, rf_val slot, int64_t group, step *s) {
  rf_val row[3];
  for (int i = 0; i < 3; i++) row[i] = part_at(h, of->row[i], chunk);
  rf_val other = rf_hlo_compare(h, RF_HLO_NE, row[0], slot);
  row[2] = rf_hlo_select(h, other, rf_hlo_full_like(h, row[2], -1), row[2]);
  int64_t rows = row[0].dim[1];
  for (int i = 1; i < 3; i++) {
    row[i] = rf_hlo_broadcast(h, row[i], (const int[]){0, 2}, RF_DIMS(1, group, rows));
    row[i] = rf_hlo_reshape(h, row[i], RF_DIMS(1, group * rows));
  }
  s->first = row[1];
  s->last = row[2];
}

/* q (chunks,K,g*rows,D) */
static void attend_items(rf_emit *e, const rf_pages *p, rf_val q, int64_t group, int64_t run,
                         rf_val state[3]) {
  rf_hlo *h = e->h;
  rf_val table = table_of(e, p, run);
  int64_t slots = table.dim[0], runs = table.dim[1] / run, positions = run * p->cache.dim[2];
  items of = items_of(e, p, q.dim[2] / group, slots, runs, positions);
  rf_hlo_loop loop;
  start(h, state, q.dim[0], q.dim[1], q.dim[2], p->value);
  rf_hlo_loop_begin_to(h, &loop, of.count, state, 3);
  rf_val number = part_at(h, of.list, loop.i), part[3];
  number = rf_hlo_reshape(h, number, 0, NULL);
  rf_val pair = quotient(h, number, runs), at = rest(h, number, runs), chunk = quotient(h, pair, slots),
         slot = rest(h, pair, slots), column = rf_hlo_multiply_c(h, at, (double)run);
  step s = {.q = part_at(h, q, chunk),
            .pages =
                rf_hlo_dynamic_slice(h, table, (const rf_val[]){slot, column}, (const int64_t[]){1, run}),
            .key = rf_hlo_multiply_c(h, at, (double)positions),
            .end = part_at(h, of.end, pair)};
  sees(h, &of, chunk, slot, group, &s);
  for (int i = 0; i < 3; i++) part[i] = part_at(h, state[i], chunk);
  attend(h, p, &s, part);
  for (int i = 0; i < 3; i++) state[i] = put_at(h, state[i], part[i], chunk);
  rf_hlo_loop_end(h, &loop, state);
}

/* The first function reshapes rows (n,K,g,D) to chunks (chunks, K, g*rows, D). The second function
 * reshapes (chunks, K, g*rows, c) back to rows. */
static rf_val in_chunks(rf_hlo *h, rf_val q, int64_t rows) {
  int64_t n = q.dim[0], chunks = rf_ceil_div(n, rows), heads = q.dim[1], group = q.dim[2], dim = q.dim[3];
  q = rf_hlo_reshape(h, rf_hlo_pad(h, q, 0, 0, chunks * rows - n, 0),
                     RF_DIMS(chunks, rows, heads, group, dim));
  q = rf_hlo_transpose(h, q, (const int[]){0, 2, 3, 1, 4});
  return rf_hlo_reshape(h, q, RF_DIMS(chunks, heads, group * rows, dim));
}
static rf_val from_chunks(rf_hlo *h, rf_val v, int64_t n, int64_t group) {
  int64_t chunks = v.dim[0], heads = v.dim[1], rows = v.dim[2] / group, dim = v.rank == 4 ? v.dim[3] : 1;
  v = rf_hlo_reshape(h, v, RF_DIMS(chunks, heads, group, rows, dim));
  v = rf_hlo_transpose(h, v, (const int[]){0, 3, 1, 2, 4});
  return rf_hlo_slice(h, rf_hlo_reshape(h, v, RF_DIMS(chunks * rows, heads * group, dim)), 0, 0, n);
}

/* Returns the number of rows in a chunk. The minimum is 32. If a key head has few query heads,
 * the number is half of the maximum. */
static int64_t rows_of_chunk(const rf_emit *e, int64_t group) {
  int64_t most = e->target.known ? WIDE_CHUNK_ROWS : CHUNK_ROWS;
  if (group >= most / 32) return 32;
  return group <= 2 ? most / 2 : most / group;
}

/* ---- both ------------------------------------------------------------------------------------ */

/* The result of a state of (n,heads) and (n,heads,W): out[0] (n,heads,W), out[1] (n,heads). */
static void finish(rf_hlo *h, const rf_val state[3], rf_val out[2]) {
  rf_val some = rf_hlo_compare_c(h, RF_HLO_GT, state[1], 0), zero = rf_hlo_scalar(h, RF_HLO_F32, 0);
  const int64_t *dim = state[2].dim;
  rf_val sum = rf_hlo_broadcast(h, state[1], (const int[]){0, 1}, 3, dim),
         any = rf_hlo_broadcast(h, some, (const int[]){0, 1}, 3, dim);
  out[0] = rf_hlo_select(h, any, rf_hlo_divide(h, state[2], sum), zero);
  out[1] = rf_hlo_add(h, state[0], rf_hlo_log(h, state[1]));
}

void rf_pages_attend(rf_emit *e, const rf_pages *p, rf_val q, rf_val *ctx, rf_val *lse) {
  rf_hlo *h = e->h;
  rf_val table = rf_emit_in(e, p->op, p->table), state[3], out[2];
  int64_t n = q.dim[0], heads = q.dim[1] * q.dim[2], group = q.dim[2], page = p->cache.dim[2],
          run = rf_ceil_div(e->target.known ? WIDE_STEP : STEP, page),
          columns = columns_seen(e, p, table.dim[1]);
  bool single = e->graph->rows <= table.dim[0];
  if (run > columns || (single && e->known.reach && n * columns * page <= ONE_STEP)) run = columns;
  if (single && run == columns && chips_of(p) == 1) {
    attend_rows_once(e, p, q, run, out);
    for (int i = 0; i < 2; i++) out[i] = from_chunks(h, out[i], n, group);
  } else {
    int64_t rows = rows_of_chunk(e, group);
    if (single) attend_rows(e, p, q, run, state);
    else attend_items(e, p, in_chunks(h, q, rows < n ? rows : n), group, run, state);
    for (int i = 0; i < 3; i++) state[i] = from_chunks(h, state[i], n, group);
    for (int i = 0; i < 2; i++) state[i] = rf_hlo_reshape(h, state[i], RF_DIMS(n, heads));
    finish(h, state, out);
  }
  *ctx = rf_hlo_reshape(h, out[0], RF_DIMS(n, heads * p->value));
  rf_val idle = rf_hlo_compare_c(h, RF_HLO_LT, reach_of(e, p).slot, 0);
  idle = rf_hlo_broadcast(h, idle, (const int[]){0}, RF_DIMS(n, heads));
  *lse =
      rf_hlo_select(h, idle, rf_hlo_scalar(h, RF_HLO_F32, 0), rf_hlo_reshape(h, out[1], RF_DIMS(n, heads)));
}
