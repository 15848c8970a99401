/* attention_amx.c - gradients of attention over bf16 with AMX tiles. attention.h defines the
 * arithmetic, and gemm_amx.c the packing. Scores and e = dctx v^T are computed transposed, 32 keys
 * by 32 queries at a time. Rows of the rounded p and t can then be left operands of the products
 * for dv and dk. Pairs of adjacent rows of t can be the right operand of the product for dq^T. Each
 * pass over the keys handles one span (SPAN blocks of 32 queries). The sums of dk and dv continue
 * from span to span. dq sums over all keys, so t of the whole span is kept, in L2. */
#include "backend/cpu/attention_lanes.h"
#include "backend/cpu/gemm_tiles.h"
#include "backend/lanes.h"

#include <omp.h>

enum {
  UNIT = RF_TILE_ROWS,
  HALF = UNIT / 2,
  SPAN = RF_ATTENTION_SPAN,
  TILE_FLOATS = HALF * RF_TILE_DEPTH / 2,
  STEP = 2 * TILE_FLOATS, /* number of floats in two packed tiles with 32 values of the summed index */
  SUMS = UNIT * UNIT
};

typedef struct room {
  /* For a unit (segment, KV head). k, v: packed for sums over d. k_transposed: keys packed for sums
   * over keys. dk, dv: sums as (block of 32 keys, 32 elements of d, 32, 32). */
  float *k, *v, *k_transposed, *dk, *dv;
  /* For a span of queries of one head. q, g: q and dctx packed for sums over d. q_by_query,
   * g_by_query: the same for sums over queries. less: -lse log2(e). minus_d: -D. t_all: t as (panel
   * of 32 queries, block of 32 keys). */
  float *q, *g, *q_by_query, *g_by_query, *less, *minus_d, *t_all;
} room;
/* Buffers of one thread for a block of keys: packed p, packed t, scores s, and e = dctx v^T. */
typedef struct own {
  float *p, *t, *s, *e;
} own;

typedef struct unit {
  const rf_attention *a;
  const rf_call *call;
  /* first row of the segment, number of its rows, number of its blocks of 32 rows */
  int64_t origin, length, blocks;
  int64_t widths; /* H / 32, rounded up */
  int kv_head, head;
  int64_t first, panels; /* first block of 32 queries in the span, and number of such blocks in the span */
  room at;
} unit;

static int64_t blocks_of(int64_t rows) { return rf_round_up(rows, UNIT) / UNIT; }

static float *room_at(const rf_attention *a, float *memory, room *r) {
  int64_t blocks = blocks_of(a->longest), widths = blocks_of(a->dim), keys = blocks * widths * STEP,
          queries = SPAN * widths * STEP;
  r->k = memory;
  r->v = r->k + keys;
  r->k_transposed = r->v + keys;
  r->dk = r->k_transposed + keys;
  r->dv = r->dk + blocks * widths * SUMS;
  r->q = r->dv + blocks * widths * SUMS;
  r->g = r->q + queries;
  r->q_by_query = r->g + queries;
  r->g_by_query = r->q_by_query + queries;
  r->less = r->g_by_query + queries;
  r->minus_d = r->less + SPAN * UNIT;
  r->t_all = r->minus_d + SPAN * UNIT;
  return r->t_all + SPAN * blocks * STEP;
}
static void own_at(float *memory, own *o) {
  o->p = memory;
  o->t = o->p + SPAN * STEP;
  o->s = o->t + SPAN * STEP;
  o->e = o->s + SUMS;
}
size_t rf_attention_tiles_floats(const rf_attention *a) {
  int64_t blocks = blocks_of(a->longest), widths = blocks_of(a->dim);
  return (size_t)(blocks * widths * (3 * STEP + 2 * SUMS) +
                  SPAN * (widths * 4 * STEP + 2 * UNIT + blocks * STEP) + 2 * (SPAN * STEP + SUMS));
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Packs rows [row, row + 32) into two tiles, for values [step, step + 32) of the summed index.
 * Values after the end of `rows` and `steps` become zeros. */
static void pack_rows(const void *from, int64_t row_step, int64_t k_step, int64_t row, int64_t rows,
                      int64_t step, int64_t steps, float *to) {
  rf_gemm g = {.a = from, .a_row = row_step, .a_step = k_step, .a_dtype = RF_BF16};
  for (int h = 0; h < 2; h++, row += HALF, to += TILE_FLOATS) {
    int64_t count = rf_min64(HALF, rows - row);
    if (count > 0) rf_tiles_pack_a(&g, row, (int)count, step, rf_min64(UNIT, steps - step), to);
    else memset(to, 0, TILE_FLOATS * sizeof *to);
  }
}
static void pack_columns(const void *from, int64_t k_step, int64_t column_step, int64_t column,
                         int64_t columns, int64_t step, int64_t steps, float *to) {
  rf_gemm g = {.b = from, .b_step = k_step, .b_col = column_step, .b_dtype = RF_BF16};
  rf_tiles_pack_b(&g, column, (int)rf_min64(UNIT, columns - column), step, rf_min64(UNIT, steps - step), to,
                  NULL);
}

/* Prefetches rows [row, row + 32) of `dim` elements. The rows are not contiguous. The caller packs
 * the previous rows in the meantime. */
static void fetch_rows(const unit *u, const void *from, int64_t ld, int64_t row) {
  for (int64_t end = rf_min64(u->length, row + UNIT); row < end; row++)
    for (int64_t d = 0; d < u->a->dim; d += 64 / 2)
      __builtin_prefetch(rf_at(from, RF_BF16, row * ld + d), 0, 2);
}

static void pack_block(const unit *u, int64_t block) {
  const rf_attention *a = u->a;
  const void *k =
      rf_at(u->call->in[0], RF_BF16, u->origin * a->ld + (int64_t)(a->heads + u->kv_head) * a->dim);
  const void *v = rf_at(k, RF_BF16, (int64_t)a->kv_heads * a->dim);
  fetch_rows(u, k, a->ld, (block + 1) * UNIT);
  fetch_rows(u, v, a->ld, (block + 1) * UNIT);
  for (int64_t w = 0; w < u->widths; w++) {
    int64_t at = (block * u->widths + w) * STEP;
    pack_rows(k, a->ld, 1, block * UNIT, u->length, w * UNIT, a->dim, u->at.k + at);
    pack_rows(v, a->ld, 1, block * UNIT, u->length, w * UNIT, a->dim, u->at.v + at);
    pack_rows(k, 1, a->ld, w * UNIT, a->dim, block * UNIT, u->length,
              u->at.k_transposed + (w * u->blocks + block) * STEP);
  }
}

/* Packs q and dctx of 32 queries of the span, and computes -lse log2(e) and -D of each query. The
 * value -inf makes all probabilities of a padding query 0. */
static void pack_panel(const unit *u, int64_t panel) {
  const rf_attention *a = u->a;
  const float *lse = (const float *)u->call->in[2] + (int64_t)u->head * a->rows + u->origin;
  int64_t ldc = (int64_t)a->heads * a->dim, first = (u->first + panel) * UNIT;
  const void *q = rf_at(u->call->in[0], RF_BF16, u->origin * a->ld + (int64_t)u->head * a->dim);
  const void *ctx = rf_at(u->call->in[1], RF_BF16, u->origin * ldc + (int64_t)u->head * a->dim);
  const void *g = rf_at(u->call->in[3], RF_BF16, u->origin * ldc + (int64_t)u->head * a->dim);
  fetch_rows(u, q, a->ld, first + UNIT);
  fetch_rows(u, g, ldc, first + UNIT);
  fetch_rows(u, ctx, ldc, first);
  for (int64_t w = 0; w < u->widths; w++) {
    int64_t by_d = (panel * u->widths + w) * STEP, by_query = (w * SPAN + panel) * STEP;
    pack_columns(q, 1, a->ld, first, u->length, w * UNIT, a->dim, u->at.q + by_d);
    pack_columns(g, 1, ldc, first, u->length, w * UNIT, a->dim, u->at.g + by_d);
    pack_columns(q, a->ld, 1, w * UNIT, a->dim, first, u->length, u->at.q_by_query + by_query);
    pack_columns(g, ldc, 1, w * UNIT, a->dim, first, u->length, u->at.g_by_query + by_query);
  }
  for (int64_t i = 0; i < UNIT; i++) {
    bool there = first + i < u->length;
    rf_v16 sum = rf_v16_zero();
    for (int64_t d = 0; there && d < a->dim; d += RF_LANES) {
      int part = (int)rf_min64(RF_LANES, a->dim - d);
      sum = rf_v16_fma(rf_v16_get_n(g, RF_BF16, (first + i) * ldc + d, part),
                       rf_v16_get_n(ctx, RF_BF16, (first + i) * ldc + d, part), sum);
    }
    u->at.minus_d[panel * UNIT + i] = -rf_v16_fold_sum(sum);
    u->at.less[panel * UNIT + i] = there ? -(lse[first + i] * RF_LOG2_E) : -INFINITY;
  }
}

/* ---- products of a block of keys and a panel of queries -------------------------------------- */

static void multiply(bool rows_stay, int64_t steps, const float *rows, const float *columns,
                     const float *from, float *to) {
  RF_TILE_MICROS[0][rows_stay][1](steps, rows, columns, from, to, NULL);
}

/* Sets [*from, *to) to those panels of the span in which some query sees a key of the block. */
static void panels_that_see(const unit *u, int64_t block, int64_t *from, int64_t *to) {
  int64_t last = rf_min64(u->length, (block + 1) * UNIT) - 1; /* index of the block's last key */
  *from = rf_max64(block - u->first, 0);
  *to = u->a->window >= u->length ? u->panels
                                  : rf_min64(u->panels, (last + u->a->window - 1) / UNIT + 1 - u->first);
}
/* Sets [*from, *to) to the blocks of keys in which a query of the panel sees some key. */
static void blocks_seen(const unit *u, int64_t panel, int64_t *from, int64_t *to) {
  *from = rf_max64(0, (u->first + panel) * UNIT + 1 - u->a->window) / UNIT;
  *to = u->first + panel + 1;
}

/* Computes p and t, rounded to bf16, of 32 keys by 32 queries. Packs p and t as left operands, and
 * t also as a right operand. Lanes are queries. */
static void round_scores(const unit *u, int64_t block, int64_t panel, const own *o, float *p_rows,
                         float *t_rows, float *t_columns) {
  const rf_attention *a = u->a;
  const int64_t first = (u->first + panel) * UNIT;
  const rf_v16 scale = rf_v16_set1(a->scaled ? RF_LOG2_E : a->scale * RF_LOG2_E),
               shrink = rf_v16_set1(a->softcap > 0 ? 1.0f / a->softcap : 0.0f);
  const bool edge =
      block == u->first + panel || (a->window < u->length && first + UNIT - block * UNIT > a->window);
  rf_v16 less[2], minus_d[2];
  __m512i before = _mm512_setzero_si512(), which[2];
  for (int h = 0; h < 2; h++) {
    static const uint16_t pairs[UNIT] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    which[h] = _mm512_add_epi16(_mm512_loadu_si512(pairs), _mm512_set1_epi16((short)(HALF * h)));
    less[h] = rf_v16_load(u->at.less + panel * UNIT + h * HALF);
    minus_d[h] = rf_v16_load(u->at.minus_d + panel * UNIT + h * HALF);
  }
#pragma GCC unroll 2
  for (int r = 0; r < UNIT; r++) {
    float *s = o->s + r * UNIT;
    const float *e = o->e + r * UNIT;
    rf_v16 p[2], t[2];
    if (a->scaled || edge)
      ready_row(a, s, 0, 2, block * UNIT + r - first,
                block * UNIT + r + rf_min64(a->window, u->length) - first);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      rf_v16 x = rf_v16_load(s + h * HALF);
      p[h] = exp2_lanes(rf_v16_fma(x, scale, less[h]));
      t[h] = rf_v16_mul(p[h], rf_v16_add(rf_v16_load(e + h * HALF), minus_d[h]));
      if (a->softcap > 0) t[h] = rf_v16_mul(t[h], cap_slope(x, shrink));
    }
    __m512i p_row = (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]),
            t_row = (__m512i)_mm512_cvtne2ps_pbh(t[1], t[0]);
    _mm512_store_si512(p_rows + r * HALF, p_row);
    _mm512_store_si512(t_rows + r * HALF, t_row);
    if (r % 2 == 0) before = t_row;
    for (int h = 0; r % 2 && h < 2; h++)
      _mm512_store_si512(t_columns + h * TILE_FLOATS + r / 2 * HALF,
                         _mm512_permutex2var_epi16(before, which[h], t_row));
  }
}

/* For a block of keys and the span of queries, computes t for dq and continues the sums of dk and
 * dv. The sums of dk and dv start with the first head of the group and the span that contains the
 * block. */
static void block_of_keys(const unit *u, int64_t block, const own *o) {
  int64_t from, to;
  panels_that_see(u, block, &from, &to);
  if (from >= to) return;
  for (int64_t panel = from; panel < to; panel++) {
    multiply(true, u->widths, u->at.k + block * u->widths * STEP, u->at.q + panel * u->widths * STEP, NULL,
             o->s);
    multiply(true, u->widths, u->at.v + block * u->widths * STEP, u->at.g + panel * u->widths * STEP, NULL,
             o->e);
    round_scores(u, block, panel, o, o->p + panel * STEP, o->t + panel * STEP,
                 u->at.t_all + (panel * u->blocks + block) * STEP);
  }
  const bool begin = u->head == u->kv_head * u->a->group && block >= u->first;
  for (int64_t w = 0; w < u->widths; w++) {
    float *dv = u->at.dv + (block * u->widths + w) * SUMS, *dk = u->at.dk + (block * u->widths + w) * SUMS;
    multiply(true, to - from, o->p + from * STEP, u->at.g_by_query + (w * SPAN + from) * STEP,
             begin ? NULL : dv, dv);
    multiply(true, to - from, o->t + from * STEP, u->at.q_by_query + (w * SPAN + from) * STEP,
             begin ? NULL : dk, dk);
  }
}

/* ---- results --------------------------------------------------------------------------------- */

/* Writes round(factor x) for 32 elements of a row. Uses streaming stores if the results fill a
 * cache line. Adding +0 turns a result of -0 into +0. */
static void write_line(const unit *u, const rf_v16 x[2], float factor, int64_t row, int64_t at, int64_t d) {
  const rf_attention *a = u->a;
  if (row >= u->length) return;
  rf_bf16 *to = (rf_bf16 *)u->call->out[0] + (u->origin + row) * a->ld + at + d;
  rf_v16 y[2];
  for (int h = 0; h < 2; h++) y[h] = rf_v16_fma(x[h], rf_v16_set1(factor), rf_v16_zero());
  if (d + UNIT <= a->dim && ((uintptr_t)to & 63u) == 0) rf_v16_stream_bf16_pair(to, y[0], y[1]);
  else
    for (int h = 0; h < 2 && d + RF_LANES * h < a->dim; h++)
      rf_v16_store_bf16_n(to + RF_LANES * h, y[h], (int)rf_min64(RF_LANES, a->dim - d - RF_LANES * h));
}
static void write_block(const unit *u, int64_t block) {
  int64_t at = (int64_t)(u->a->heads + u->kv_head) * u->a->dim, values = (int64_t)u->a->kv_heads * u->a->dim;
  for (int64_t r = 0; r < UNIT; r++)
    for (int64_t w = 0; w < u->widths; w++) {
      const float *dk = u->at.dk + (block * u->widths + w) * SUMS + r * UNIT,
                  *dv = u->at.dv + (block * u->widths + w) * SUMS + r * UNIT;
      write_line(u, (rf_v16[]){rf_v16_load(dk), rf_v16_load(dk + RF_LANES)}, u->a->scale, block * UNIT + r,
                 at, w * UNIT);
      write_line(u, (rf_v16[]){rf_v16_load(dv), rf_v16_load(dv + RF_LANES)}, 1.0f, block * UNIT + r,
                 at + values, w * UNIT);
    }
}
static void panel_dq(const unit *u, int64_t panel, const own *o) {
  int64_t from, to;
  blocks_seen(u, panel, &from, &to);
  for (int64_t w = 0; w < u->widths; w++) {
    multiply(false, to - from, u->at.k_transposed + (w * u->blocks + from) * STEP,
             u->at.t_all + (panel * u->blocks + from) * STEP, NULL, o->s);
    for (int64_t query = 0; query < UNIT; query += RF_LANES) {
      rf_v16 x[2][RF_LANES];
      for (int h = 0; h < 2; h++) {
        for (int i = 0; i < RF_LANES; i++) x[h][i] = rf_v16_load(o->s + (h * RF_LANES + i) * UNIT + query);
        rf_v16_transpose(x[h]);
      }
      for (int i = 0; i < RF_LANES; i++)
        write_line(u, (rf_v16[]){x[0][i], x[1][i]}, u->a->scale, (u->first + panel) * UNIT + query + i,
                   (int64_t)u->head * u->a->dim, w * UNIT);
    }
  }
}

/* ---- units ----------------------------------------------------------------------------------- */

/* Runs `what` for all i < count. All threads share the values of i if `together`; otherwise this
 * thread runs all values of i. A barrier ends each loop on all threads, because the next loop reads
 * the results. */
#define EACH(i, count, together, what) \
  if (together) { \
    _Pragma("omp for schedule(dynamic) nowait") for (int64_t i = 0; i < (count); i++) what; \
    RF_STAMP_BARRIER; \
  } else { \
    for (int64_t i = 0; i < (count); i++) what; \
  }
static void run_unit(unit *u, bool together, const own *o) {
  EACH(block, u->blocks, together, pack_block(u, block))
  for (u->head = u->kv_head * u->a->group; u->head < (u->kv_head + 1) * u->a->group; u->head++)
    for (u->first = 0; u->first < u->blocks; u->first += SPAN) {
      u->panels = rf_min64(SPAN, u->blocks - u->first);
      EACH(panel, u->panels, together, pack_panel(u, panel))
      EACH(block, u->first + u->panels, together, block_of_keys(u, block, o))
      EACH(panel, u->panels, together, panel_dq(u, panel, o))
    }
  EACH(block, u->blocks, together, write_block(u, block))
}

/* `alone` is workspace for a unit that this thread runs. `shared` is workspace for a unit that all
 * threads run. */
typedef struct tiles_job {
  const rf_attention *a;
  const rf_call *call;
  room alone, shared;
  own o;
} tiles_job;
static void tiles_unit(void *job, const rf_attention_unit *of, bool together) {
  const tiles_job *j = job;
  unit u = {.a = j->a,
            .call = j->call,
            .origin = of->origin,
            .length = of->length,
            .blocks = blocks_of(of->length),
            .widths = blocks_of(j->a->dim),
            .kv_head = of->kv_head,
            .at = together ? j->shared : j->alone};
  run_unit(&u, together, &j->o);
}

void rf_attention_bwd_amx(const rf_call *call) {
  const rf_attention a = rf_attention_of(call->graph, call->op);
  const int64_t floats = (int64_t)rf_attention_tiles_floats(&a);
  float *memory = call->workspace;
#pragma omp parallel num_threads(call->threads)
  {
    RF_STAMP_BUSY;
    tiles_job job = {.a = &a, .call = call};
    own_at(room_at(&a, memory + floats * omp_get_thread_num(), &job.alone), &job.o);
    room_at(&a, memory, &job.shared);
    rf_tiles_open();
    rf_attention_units(&a, call->in[4], tiles_unit, &job);
    rf_tiles_close();
  }
}
