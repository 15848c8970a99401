/* attention_backward.h - gradients of attention, compiled once per ISA. The work is divided into
 * blocks of 96 queries by 96 keys, and a block into strips of MR queries or keys. In a block, the
 * scores and e = dctx v^T are computed first, then the probabilities from the saved lse. Then the
 * sums of dq, dk and dv continue. The workspace keeps these sums between blocks. So each sum is one
 * chain, and results do not depend on the block size. */
#ifndef RF_ATTENTION_BACKWARD_H
#define RF_ATTENTION_BACKWARD_H

#include "backend/cpu/attention_tile.h"
#include "backend/lanes.h"

#include <omp.h>

enum { TILE = RF_ATTENTION_TILE, LDT = RF_ATTENTION_TILE + RF_LANES };

/* The packed keys and values of a unit (segment, KV head), and their gradients. */
typedef struct key_side {
  float *k_columns, *v_columns; /* panels of 32 keys, for scores and e */
  float *k_rows;                /* panels of 32 columns (d), for dq */
  float *dk, *dv;               /* (T, width) */
  int64_t padded;               /* number of keys, rounded up to a multiple of TILE */
} key_side;

/* One block of queries of one head. */
typedef struct query_side {
  float *q_strips, *g_strips; /* (strip, d, MR): queries and dctx */
  float *q_rows, *g_rows;     /* panels of 32 columns (panel, TILE, 32) */
  float *dq;                  /* (TILE, width) */
  float *less, *minus_d;      /* -lse log2(e) and -D of each query */
  /* row: row of the first query in qkv. first: position of this query in the segment. count: number
   * of queries */
  int64_t row, first, count;
} query_side;

typedef struct tiles {
  float *p, *t;
} tiles; /* (TILE, LDT): probabilities p, and t = p (e - D) */

static int64_t padded_width(const rf_attention *a) { return rf_round_up(a->dim, PANEL); }

static float *key_side_at(const rf_attention *a, float *memory, key_side *k) {
  int64_t keys = rf_round_up(a->longest, TILE);
  k->k_columns = memory;
  k->v_columns = k->k_columns + keys * a->dim;
  k->k_rows = k->v_columns + keys * a->dim;
  k->dk = k->k_rows + keys * padded_width(a);
  k->dv = k->dk + keys * a->width;
  return k->dv + keys * a->width;
}

static float *query_side_at(const rf_attention *a, float *memory, query_side *q) {
  q->q_strips = memory;
  q->g_strips = q->q_strips + TILE * (int64_t)a->dim;
  q->q_rows = q->g_strips + TILE * (int64_t)a->dim;
  q->g_rows = q->q_rows + TILE * padded_width(a);
  q->dq = q->g_rows + TILE * padded_width(a);
  q->less = q->dq + TILE * (int64_t)a->width;
  q->minus_d = q->less + TILE;
  return q->minus_d + TILE;
}

/* Starts the block of queries at row `row`. `end` is the row after the queries of the segment. */
static void start_queries(const rf_attention *a, query_side *q, int64_t origin, int64_t row, int64_t end) {
  q->row = row;
  q->first = row * a->step + a->rank - origin;
  q->count = rf_min64(TILE, end - row);
}

/* Packs keys [first, last) of the unit. `last` is a multiple of TILE or the end of the unit. */
static void pack_keys(const rf_attention *a, key_side *k, const rf_call *call, int64_t origin, int64_t first,
                      int64_t last, int kv_head) {
  const void *from = call->in[a->key_input];
  int64_t at = (origin + first) * a->key_ld + a->key_at + (int64_t)kv_head * a->dim, keys = last - first,
          step = k->padded * PANEL, ld = a->key_ld;
  pack_columns(rf_at(from, a->dtype, at), a->dtype, ld, keys, a->dim, k->k_columns + first * a->dim, NULL);
  pack_rows(rf_at(from, a->dtype, at), a->dtype, ld, keys, a->dim, k->k_rows + first * PANEL, step);
  at += (int64_t)a->kv_heads * a->dim;
  pack_columns(rf_at(from, a->dtype, at), a->dtype, ld, keys, a->dim, k->v_columns + first * a->dim, NULL);
  int64_t end = rf_round_up(last, TILE);
  memset(k->dk + first * a->width, 0, sizeof(float) * (size_t)((end - first) * a->width));
  memset(k->dv + first * a->width, 0, sizeof(float) * (size_t)((end - first) * a->width));
}

/* Packs strip `i` of the block of queries, and computes -lse log2(e) and -D of its queries. */
static void pack_query_strip(const rf_attention *a, query_side *q, const rf_call *call, int head, int i) {
  const void *const *in = call->in + a->key_input; /* after the keys come the inputs ctx, lse and dctx */
  const void *qkv = call->in[0], *ctx = in[1], *dctx = in[3], *rows[RF_LANES] = {0}, *grads[RF_LANES] = {0};
  const float *lse = in[2];
  int64_t first = (int64_t)i * MR, count = rf_min64(MR, q->count - first), row = q->row + first,
          ldc = (int64_t)a->heads * a->dim;
  for (int64_t r = 0; r < count; r++) {
    rows[r] = rf_at(qkv, a->dtype, (row + r) * a->ld + (int64_t)head * a->dim);
    grads[r] = rf_at(dctx, a->dtype, (row + r) * ldc + (int64_t)head * a->dim);
    const void *out = rf_at(ctx, a->dtype, (row + r) * ldc + (int64_t)head * a->dim);
    rf_v16 sum = rf_v16_zero();
    for (int64_t d = 0; d < a->dim; d += RF_LANES) {
      int part = a->dim - d < RF_LANES ? (int)(a->dim - d) : RF_LANES;
      sum = rf_v16_fma(rf_v16_get_n(grads[r], a->dtype, d, part), rf_v16_get_n(out, a->dtype, d, part), sum);
    }
    q->minus_d[first + r] = -rf_v16_fold_sum(sum);
    q->less[first + r] = -(lse[(int64_t)head * a->rows + row + r] * RF_LOG2_E);
  }
  pack_transposed(rows, a->dtype, (int)count, a->dim, q->q_strips + first * a->dim, MR, MR, NULL);
  pack_transposed(grads, a->dtype, (int)count, a->dim, q->g_strips + first * a->dim, MR, MR, NULL);
  pack_rows(rows[0], a->dtype, a->ld, count, a->dim, q->q_rows + first * PANEL, TILE * PANEL);
  pack_rows(grads[0], a->dtype, ldc, count, a->dim, q->g_rows + first * PANEL, TILE * PANEL);
  memset(q->dq + first * a->width, 0, sizeof(float) * MR * (size_t)a->width);
}

/* The queries of strip `i` see no keys outside [strip_first_key, strip_last_key). */
static int64_t strip_first_key(const rf_attention *a, const query_side *q, int64_t i) {
  return rf_max64(0, q->first + i * MR * a->step + 1 - a->window);
}
static int64_t strip_last_key(const rf_attention *a, const query_side *q, int64_t i) {
  return q->first + (rf_min64(q->count, (i + 1) * MR) - 1) * a->step + 1;
}

/* Computes p and t of strip `i` against the block of keys at `block`. Returns false if the strip
 * sees no key of the block. */
static bool strip_probabilities(const rf_attention *a, const query_side *q, const key_side *k, int64_t i,
                                int64_t block, tiles *tile) {
  int64_t first = rf_max64(block, strip_first_key(a, q, i)),
          last = rf_min64(block + TILE, strip_last_key(a, q, i));
  if (first >= last) return false;
  int64_t v0 = (first - block) / RF_LANES, v1 = (last - block + RF_LANES - 1) / RF_LANES;
  int rows = (int)rf_min64(MR, q->count - i * MR), height = tile_height(rows);
  float *p = tile->p + i * MR * LDT, *t = tile->t + i * MR * LDT;
  products(height, q->q_strips + i * MR * a->dim, k->k_columns + block * a->dim, a->dim, v0 * RF_LANES,
           v1 * RF_LANES, p, LDT);
  products(height, q->g_strips + i * MR * a->dim, k->v_columns + block * a->dim, a->dim, v0 * RF_LANES,
           v1 * RF_LANES, t, LDT);
  rf_v16 scale = rf_v16_set1(a->scaled ? RF_LOG2_E : a->scale * RF_LOG2_E),
         shrink = rf_v16_set1(a->softcap > 0 ? 1.0f / a->softcap : 0.0f);
  for (int r = 0; r < rows; r++) {
    float *pr = p + r * LDT, *tr = t + r * LDT;
    int64_t position = q->first + (i * MR + r) * a->step;
    ready_row(a, pr, v0, v1, position + 1 - a->window - block, position + 1 - block);
    rf_v16 shift = rf_v16_set1(q->less[i * MR + r]), minus_d = rf_v16_set1(q->minus_d[i * MR + r]);
    for (int64_t v = v0; v < v1; v++) {
      rf_v16 s = rf_v16_load(pr + v * RF_LANES), x = exp2_lanes(rf_v16_fma(s, scale, shift));
      rf_v16 t_ij = rf_v16_mul(x, rf_v16_add(rf_v16_load(tr + v * RF_LANES), minus_d));
      rf_v16_store(pr + v * RF_LANES, x);
      if (a->softcap > 0) t_ij = rf_v16_mul(t_ij, cap_slope(s, shrink));
      rf_v16_store(tr + v * RF_LANES, t_ij);
    }
    /* Strips of keys read whole rows, so the padding of a row must be zero. */
    for (int64_t v = 0; v < TILE / RF_LANES; v++) {
      if (v >= v0 && v < v1) continue;
      rf_v16_store(pr + v * RF_LANES, rf_v16_zero());
      rf_v16_store(tr + v * RF_LANES, rf_v16_zero());
    }
  }
  return true;
}

/* Adds the block of keys at `block` to the sums of dq of the queries in strip `i`. */
static void strip_dq(const rf_attention *a, const query_side *q, const key_side *k, int64_t i, int64_t block,
                     const float *t) {
  int64_t first = rf_max64(block, strip_first_key(a, q, i)),
          last = rf_min64(block + TILE, strip_last_key(a, q, i));
  if (first >= last) return;
  int rows = (int)rf_min64(MR, q->count - i * MR);
  context(tile_height(rows), &(weighted){.p = t + i * MR * LDT + first - block,
                                         .ldp = LDT,
                                         .v = k->k_rows + first * PANEL,
                                         .step = k->padded * PANEL,
                                         .keys = last - first,
                                         .acc = q->dq + i * MR * a->width,
                                         .width = a->width,
                                         .columns = a->width});
}

/* to[key][column] += x[query][key] y[query][column], for a strip of keys and ascending queries. */
static void key_chain(const rf_attention *a, const float *x, const float *y, int64_t queries, float *to) {
  for (int64_t column = 0; column < a->width;) {
    const float *b = y + column / PANEL * TILE * PANEL + column % PANEL;
    chain c = {x, 1, LDT, b, RF_F32, PANEL, queries, NULL, 0, NULL, 0};
    if (NV == 2 && a->width - column >= PANEL) {
      tile(MR, NV, c, true, to + column, a->width, NULL);
      column += PANEL;
    } else {
      tile(MR, 1, c, true, to + column, a->width, NULL);
      column += RF_LANES;
    }
  }
}

/* Adds the block of queries `q` to the sums of dk and dv of the keys from `block` on. */
static void block_dkdv(const rf_attention *a, const query_side *q, key_side *k, int64_t block,
                       const tiles *tile) {
  int64_t strips = (q->count + MR - 1) / MR;
  for (int64_t key = 0; key < TILE; key += MR) {
    int64_t from = 0, to = strips; /* strips [from, to) of queries see keys of this strip of keys */
    while (from < to && strip_last_key(a, q, from) <= block + key) from++;
    while (to > from && strip_first_key(a, q, to - 1) >= block + key + MR) to--;
    int64_t begin = from * MR, queries = rf_min64(q->count, to * MR) - begin;
    if (queries <= 0) continue;
    key_chain(a, tile->p + begin * LDT + key, q->g_rows + begin * PANEL, queries,
              k->dv + (block + key) * a->width);
    key_chain(a, tile->t + begin * LDT + key, q->q_rows + begin * PANEL, queries,
              k->dk + (block + key) * a->width);
  }
}

/* Writes round(factor * x) to `rows` rows of `to`. Adding +0 makes a result of -0 +0. */
static void write_rows(const rf_attention *a, const float *x, float factor, int64_t rows, void *to,
                       int64_t at, int64_t ld) {
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t d = 0; d < a->dim; d += RF_LANES) {
      rf_v16 y = rf_v16_fma(rf_v16_load(x + r * a->width + d), rf_v16_set1(factor), rf_v16_zero());
      if (a->dim - d >= RF_LANES) rf_v16_put(to, a->dtype, at + r * ld + d, y);
      else rf_v16_put_n(to, a->dtype, at + r * ld + d, y, (int)(a->dim - d));
    }
  }
}

static void write_keys(const rf_attention *a, const key_side *k, const rf_call *call, int64_t origin,
                       int64_t first, int64_t last, int kv_head) {
  void *to = call->out[a->key_input];
  int64_t at = (origin + first) * a->key_ld + a->key_at + (int64_t)kv_head * a->dim, rows = last - first;
  write_rows(a, k->dk + first * a->width, a->scale, rows, to, at, a->key_ld);
  write_rows(a, k->dv + first * a->width, 1.0f, rows, to, at + (int64_t)a->kv_heads * a->dim, a->key_ld);
}

static void write_queries(const rf_attention *a, const query_side *q, int64_t strip, void *dq, int head) {
  int64_t first = strip * MR, rows = rf_min64(MR, q->count - first);
  write_rows(a, q->dq + first * a->width, a->scale, rows, dq,
             (q->row + first) * a->dq_ld + (int64_t)head * a->dim, a->dq_ld);
}

/* `shared_keys`, `team` and `shared_t` are used only for a unit that all threads run. */
typedef struct backward_job {
  const rf_attention *a;
  const rf_call *call;
  key_side keys, shared_keys;
  query_side queries, team[RF_ATTENTION_TEAM];
  tiles tile;
  float *shared_t; /* (team, blocks of keys, TILE, LDT) */
} backward_job;

static void unit_alone(backward_job *j, const rf_attention_unit *u) {
  const rf_attention *a = j->a;
  const rf_call *call = j->call;
  key_side *k = &j->keys;
  query_side *q = &j->queries;
  int64_t begin = rf_attention_row(a, u->origin), end = rf_attention_row(a, u->origin + u->length);
  k->padded = rf_round_up(u->length, TILE);
  pack_keys(a, k, call, u->origin, 0, u->length, u->kv_head);
  for (int head = u->kv_head * a->group; head < (u->kv_head + 1) * a->group; head++) {
    for (int64_t row = begin; row < end; row += TILE) {
      start_queries(a, q, u->origin, row, end);
      int64_t strips = (q->count + MR - 1) / MR, last = strip_last_key(a, q, strips - 1);
      for (int i = 0; i < strips; i++) pack_query_strip(a, q, call, head, i);
      for (int64_t block = strip_first_key(a, q, 0) / TILE * TILE; block < last; block += TILE) {
        for (int64_t i = 0; i < strips; i++) {
          if (strip_probabilities(a, q, k, i, block, &j->tile)) strip_dq(a, q, k, i, block, j->tile.t);
        }
        block_dkdv(a, q, k, block, &j->tile);
      }
      for (int64_t i = 0; i < strips; i++) write_queries(a, q, i, call->out[0], head);
    }
  }
  write_keys(a, k, call, u->origin, 0, u->length, u->kv_head);
}

/* Runs one unit on all threads. RF_ATTENTION_TEAM blocks of queries, of one or several heads, take
 * three steps. Step one packs queries, step two computes dk and dv, and step three computes dq. In
 * steps one and three, threads share the strips of queries. In step two, threads share the blocks
 * of keys. Barriers between the steps keep every sum in ascending order. */
static void unit_together(backward_job *j, const rf_attention_unit *u) {
  const rf_attention *a = j->a;
  const rf_call *call = j->call;
  key_side *k = &j->shared_keys;
  query_side *q = j->team;
  k->padded = rf_round_up(u->length, TILE);
  int64_t row = rf_attention_row(a, u->origin), end = rf_attention_row(a, u->origin + u->length);
  int64_t blocks = k->padded / TILE, parts = (end - row + TILE - 1) / TILE, all = parts * a->group,
          step = k->padded * LDT;
  enum { STRIPS = TILE / MR };
#pragma omp for schedule(static) nowait
  for (int64_t i = 0; i < blocks; i++)
    pack_keys(a, k, call, u->origin, i * TILE, rf_min64(u->length, (i + 1) * TILE), u->kv_head);
  RF_STAMP_BARRIER;
  for (int64_t begin = 0; begin < all; begin += RF_ATTENTION_TEAM) {
    int64_t taken = rf_min64(RF_ATTENTION_TEAM, all - begin);
    int head[RF_ATTENTION_TEAM];
    for (int64_t i = 0; i < taken; i++) { /* every thread computes its own copy of this list */
      head[i] = u->kv_head * a->group + (int)((begin + i) / parts);
      start_queries(a, &q[i], u->origin, row + (begin + i) % parts * TILE, end);
    }
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < taken * STRIPS; i++) {
      query_side *block = &q[i / STRIPS];
      if (i % STRIPS * MR < block->count)
        pack_query_strip(a, block, call, head[i / STRIPS], (int)(i % STRIPS));
    }
    RF_STAMP_BARRIER;
#pragma omp for schedule(dynamic) nowait
    for (int64_t b = 0; b < blocks; b++) {
      for (int64_t i = 0; i < taken; i++) {
        tiles tile = {.p = j->tile.p, .t = j->shared_t + i * step + b * TILE * LDT};
        bool any = false;
        for (int64_t r = 0; r * MR < q[i].count; r++)
          any |= strip_probabilities(a, &q[i], k, r, b * TILE, &tile);
        if (any) block_dkdv(a, &q[i], k, b * TILE, &tile);
      }
    }
    RF_STAMP_BARRIER;
#pragma omp for schedule(dynamic) nowait
    for (int64_t i = 0; i < taken * STRIPS; i++) {
      const query_side *block = &q[i / STRIPS];
      int64_t strip = i % STRIPS;
      if (strip * MR >= block->count) continue;
      for (int64_t b = 0; b < blocks; b++)
        strip_dq(a, block, k, strip, b * TILE, j->shared_t + i / STRIPS * step + b * TILE * LDT);
      write_queries(a, block, strip, call->out[0], head[i / STRIPS]);
    }
    RF_STAMP_BARRIER;
  }
#pragma omp for schedule(static) nowait
  for (int64_t i = 0; i < blocks; i++)
    write_keys(a, k, call, u->origin, i * TILE, rf_min64(u->length, (i + 1) * TILE), u->kv_head);
  RF_STAMP_BARRIER;
}

static void backward_unit(void *job, const rf_attention_unit *unit, bool together) {
  (together ? unit_together : unit_alone)(job, unit);
}

static void attention_bwd_run(const rf_call *call) {
  rf_attention a = rf_attention_here(call);
  int64_t floats = (int64_t)rf_attention_backward_floats(&a);
  float *memory = call->workspace;
#pragma omp parallel num_threads(call->threads)
  {
    RF_STAMP_BUSY;
    backward_job job = {.a = &a, .call = call, .shared_t = memory + floats * call->threads};
    float *own = key_side_at(&a, memory + floats * omp_get_thread_num(), &job.keys);
    job.tile.p = query_side_at(&a, own, &job.queries);
    job.tile.t = job.tile.p + TILE * LDT;
    key_side_at(&a, memory, &job.shared_keys);
    for (int i = 0; i < RF_ATTENTION_TEAM; i++) job.shared_t = query_side_at(&a, job.shared_t, &job.team[i]);
    rf_attention_units(&a, call->in[4 + a.key_input], backward_unit, &job);
  }
}

#endif
