/* attention_forward.h - attention over a batch of segments, compiled once per ISA. Query rows are
 * grouped in strips of MR rows (the height of a register tile). A pass reads all key blocks for up
 * to RF_ATTENTION_QUERIES query rows. The first strip reads a block of packed keys and values from
 * memory (256 keys: 128 KiB at head size 64). All later strips read the block from L2. The
 * workspace keeps the running maxima, sums and contexts of the rows between blocks. */
#ifndef RF_ATTENTION_FORWARD_H
#define RF_ATTENTION_FORWARD_H

#include "backend/cpu/attention_tile.h"
#include "backend/lanes.h"

#include <omp.h>

/* Rows of scores are padded, because rows of a power-of-two size would share cache sets. */
enum { BLOCK = RF_ATTENTION_BLOCK, LDS = RF_ATTENTION_BLOCK + RF_LANES };

typedef rf_attention_strip strip;

/* The workspace of one thread for a pass. In a pass, several strips read the same keys. */
typedef struct pass {
  strip *strip;
  int strips;
  float *s;                /* (MR, LDS) products of one strip and one block, later their probabilities */
  float *columns, *values; /* packed keys (panels of 32 keys) and values (panels of 32 columns) */
  float *query;            /* packed queries and contexts of all strips */
  float *widened;          /* (PANEL, dim) keys or values of an i8 cache, converted to f32 */
} pass;

/* Source of the keys and values of a group of query heads. If `packed`, all keys and values are
 * packed before the pass. Otherwise the pass packs blocks of keys and values from `cache`. */
typedef struct key_source {
  bool packed;
  int64_t value_step; /* number of floats from one panel of packed values to the next */
  const struct kv_cache *cache;
  int64_t slot;
  int kv_head;
} key_source;
static void pack_pages(pass *w, const rf_attention *a, const key_source *from, int64_t block, int64_t begin,
                       int64_t end, int64_t value_step);

/* Divides one thread's memory into buffers for `bound` packed keys and `lines` rows of scores. */
static pass pass_at(const rf_attention *a, float *memory, int64_t bound, int64_t lines) {
  pass w = {.strip = (strip *)(void *)memory};
  w.s = memory + RF_ATTENTION_STRIPS * sizeof(strip) / sizeof(float);
  w.query = w.s + lines * LDS;
  w.columns = w.query + rf_round_up(RF_ATTENTION_STRIP_ROWS * (int64_t)(a->dim + a->width), RF_LANES);
  w.values = w.columns + bound * a->dim;
  w.widened = w.values + bound * rf_round_up(a->dim, PANEL);
  return w;
}

static strip *pass_open(pass *w, const rf_attention *a) {
  strip *s = &w->strip[w->strips];
  *s = (strip){.first = INT64_MAX, .q = w->query + w->strips * MR * (int64_t)(a->dim + a->width)};
  s->acc = s->q + MR * (int64_t)a->dim;
  s->line = w->strips > 0 ? s[-1].line + s[-1].height : 0;
  for (int r = 0; r < RF_LANES; r++) s->m[r] = -1e30f;
  w->strips++;
  return s;
}
static void pass_row(strip *s, const rf_attention *a, int64_t row, int64_t position, int head) {
  int r = s->rows++;
  s->row[r] = row;
  s->head[r] = head;
  s->low[r] = rf_max64(0, position + 1 - a->window);
  s->high[r] = position + 1;
  s->first = rf_min64(s->first, s->low[r]);
  s->last = rf_max64(s->last, s->high[r]);
  s->height = tile_height(s->rows);
}

/* Appends query rows [first, first + count) of one head. If the last strip has no room for all
 * rows, opens new strips of equal height. `origin` is the first row of the segment. */
static void pass_add(pass *w, const rf_attention *a, int64_t first, int64_t count, int64_t origin, int head) {
  int64_t pieces = (count + MR - 1) / MR;
  strip *s = w->strips > 0 ? &w->strip[w->strips - 1] : NULL;
  bool join = s && count < MR && s->rows + count <= MR;
  for (int64_t i = 0; i < pieces; i++) {
    if (!join) s = pass_open(w, a);
    for (int64_t row = first + count * i / pieces; row < first + count * (i + 1) / pieces; row++)
      pass_row(s, a, row, row * a->step + a->rank - origin, head);
  }
}

static void pass_pack_queries(pass *w, const rf_attention *a, const void *qkv) {
  for (int i = 0; i < w->strips; i++) {
    strip *s = &w->strip[i];
    const void *row[RF_LANES];
    for (int r = 0; r < RF_LANES; r++)
      row[r] = r < s->rows ? rf_at(qkv, a->dtype, s->row[r] * a->ld + (int64_t)s->head[r] * a->dim) : NULL;
    pack_transposed(row, a->dtype, s->rows, a->dim, s->q, MR, MR, NULL);
    memset(s->acc, 0, sizeof(float) * MR * (size_t)a->width);
  }
}

/* For vectors [v0, v1) of the block, replaces the products q k of a strip with probabilities, and
 * updates the running maxima and sums. The caller must multiply the running context by `factor`. */
static void strip_softmax(const rf_attention *a, strip *t, float *s, int64_t block, int64_t v0, int64_t v1,
                          float factor[RF_LANES]) {
  float c = a->scaled ? RF_LOG2_E : a->scale * RF_LOG2_E, maximum[RF_LANES], less[RF_LANES],
        sum[RF_LANES] = {0};
  memcpy(maximum, t->m, sizeof maximum);
  for (int r = 0; r < t->rows; r++) {
    float *row = s + r * LDS;
    ready_row(a, row, v0, v1, t->low[r] - block, t->high[r] - block);
    rf_v16 x = rf_v16_set1(-INFINITY);
    for (int64_t v = v0; v < v1; v++) x = rf_v16_max(rf_v16_load(row + v * RF_LANES), x);
    float top = rf_v16_fold_max(x);
    if (top > maximum[r]) maximum[r] = top;
  }
  rf_v16 m = rf_v16_load(maximum), scale = rf_v16_set1(c);
  rf_v16_store(less, rf_v16_neg(rf_v16_mul(m, scale)));
  rf_v16 f = exp2_lanes(rf_v16_mul(rf_v16_sub(rf_v16_load(t->m), m), scale));
  rf_v16_store(factor, f);
  for (int r = 0; r < t->rows; r++) {
    float *row = s + r * LDS;
    rf_v16 shift = rf_v16_set1(less[r]), total = rf_v16_zero();
    for (int64_t v = v0; v < v1; v++) {
      rf_v16 p = exp2_lanes(rf_v16_fma(rf_v16_load(row + v * RF_LANES), scale, shift));
      rf_v16_store(row + v * RF_LANES, p);
      total = rf_v16_add(total, p);
    }
    sum[r] = rf_v16_fold_sum(total);
  }
  rf_v16_store(t->l, rf_v16_fma(rf_v16_load(t->l), f, rf_v16_load(sum)));
  memcpy(t->m, maximum, sizeof maximum);
}

/* One packed block, with keys in panels of 32 keys and values in panels of 32 columns. */
typedef struct key_block {
  const float *columns, *values;
  int64_t value_step; /* number of floats from one panel of values to the next */
} key_block;

/* Adds keys [first, last) of the block that starts at key `block` to one strip's context. */
static void strip_block(const rf_attention *a, strip *t, float *s, int64_t block, int64_t first, int64_t last,
                        const key_block *keys) {
  int64_t v0 = (first - block) / RF_LANES, v1 = (last - block + RF_LANES - 1) / RF_LANES;
  float factor[RF_LANES];
  products(t->height, t->q, keys->columns, a->dim, v0 * RF_LANES, v1 * RF_LANES, s, LDS);
  strip_softmax(a, t, s, block, v0, v1, factor);
  context(t->height, &(weighted){.p = s + (first - block),
                                 .ldp = LDS,
                                 .v = keys->values + (first - block) * PANEL,
                                 .step = keys->value_step,
                                 .keys = last - first,
                                 .acc = t->acc,
                                 .width = a->width,
                                 .columns = a->width,
                                 .factor = factor});
}

static void pass_keys(pass *w, const rf_attention *a, const key_source *from) {
  int64_t first = INT64_MAX, last = 0;
  for (int i = 0; i < w->strips; i++) {
    first = rf_min64(first, w->strip[i].first);
    last = rf_max64(last, w->strip[i].last);
  }
  for (int64_t block = first / BLOCK * BLOCK; block < last; block += BLOCK) {
    key_block keys = {w->columns, w->values, (int64_t)BLOCK * PANEL};
    if (from->packed)
      keys = (key_block){w->columns + block * a->dim, w->values + block * PANEL, from->value_step};
    else
      pack_pages(w, a, from, block, rf_max64(block, first / PANEL * PANEL), rf_min64(block + BLOCK, last),
                 keys.value_step);
    for (int i = 0; i < w->strips; i++) {
      strip *t = &w->strip[i];
      int64_t low = rf_max64(block, t->first), high = rf_min64(block + BLOCK, t->last);
      if (low < high) strip_block(a, t, w->s, block, low, high, &keys);
    }
  }
}

/* Writes columns [c0, c1) of a strip's rows. c0 is a multiple of 16. */
static void strip_write(const strip *t, const rf_attention *a, void *ctx, float *lse, int64_t c0,
                        int64_t c1) {
  float inverse[RF_LANES], logs[RF_LANES];
  rf_v16 l = rf_v16_load(t->l), scale = rf_v16_set1(a->scaled ? 1.0f : a->scale);
  rf_v16_store(inverse, rf_v16_div(rf_v16_set1(1.0f), l));
  rf_v16_store(logs, rf_v16_fma(rf_v16_load(t->m), scale, rf_v16_log(l)));
  for (int r = 0; r < t->rows; r++) {
    if (lse) lse[(int64_t)t->head[r] * a->rows + t->row[r]] = logs[r];
    int64_t at = (t->row[r] * a->heads + t->head[r]) * a->dim;
    for (int64_t d = c0; d < c1; d += RF_LANES) {
      rf_v16 x =
          rf_v16_fma(rf_v16_load(t->acc + (int64_t)r * a->width + d), rf_v16_set1(inverse[r]), rf_v16_zero());
      if (c1 - d >= RF_LANES) rf_v16_put(ctx, a->dtype, at + d, x);
      else rf_v16_put_n(ctx, a->dtype, at + d, x, (int)(c1 - d));
    }
  }
}
static void pass_write(pass *w, const rf_attention *a, void *ctx, float *lse) {
  for (int i = 0; i < w->strips; i++) strip_write(&w->strip[i], a, ctx, lse, 0, a->dim);
}

/* Computes attention of query rows [first, last) of the batch, which belong to one segment and one
 * head. `w` has the packed keys of this segment and head. */
static void attend_queries(pass *w, const rf_attention *a, const rf_call *call, int64_t origin, int64_t first,
                           int64_t last, int head, int64_t value_step) {
  w->strips = 0;
  pass_add(w, a, first, last - first, origin, head);
  pass_pack_queries(w, a, call->in[0]);
  pass_keys(w, a, &(key_source){.packed = true, .value_step = value_step});
  pass_write(w, a, call->out[0], call->out[1]);
}

/* Packs keys [first, last) of the segment that starts at row `origin`. first and last are multiples
 * of 32, except at the end of the segment. */
static void pack_segment(pass *w, const rf_attention *a, const rf_call *call, int64_t origin, int64_t first,
                         int64_t last, int kv_head, int64_t value_step) {
  const void *keys = call->in[a->key_input];
  int64_t at = (origin + first) * a->key_ld + a->key_at + (int64_t)kv_head * a->dim;
  pack_columns(rf_at(keys, a->dtype, at), a->dtype, a->key_ld, last - first, a->dim,
               w->columns + first * a->dim, NULL);
  at += (int64_t)a->kv_heads * a->dim;
  pack_rows(rf_at(keys, a->dtype, at), a->dtype, a->key_ld, last - first, a->dim, w->values + first * PANEL,
            value_step);
}

/* `own` is the workspace of this thread, and `first` is the workspace of thread 0. If all threads
 * share a unit, `first` has the packed keys of the unit. */
typedef struct forward_job {
  const rf_attention *a;
  const rf_call *call;
  pass own, first;
} forward_job;

/* Runs a unit on all threads. The threads pack the keys of the unit, then take groups of its
 * queries. */
static void unit_of_all(const forward_job *j, const rf_attention_unit *u) {
  const rf_attention *a = j->a;
  pass w = j->own, shared = j->first;
  w.columns = shared.columns;
  w.values = shared.values;
  int64_t step = rf_round_up(u->length, PANEL) * PANEL, chunks = (u->length + 127) / 128;
  int64_t begin = rf_attention_row(a, u->origin), end = rf_attention_row(a, u->origin + u->length);
  int64_t rows = rf_round_up((end - begin) * a->group / (4 * omp_get_num_threads()) + 1, MR);
  int64_t group = rf_min64(RF_ATTENTION_QUERIES, rows), groups = (end - begin + group - 1) / group;
#pragma omp for schedule(static) nowait
  for (int64_t i = 0; i < chunks; i++)
    pack_segment(&shared, a, j->call, u->origin, i * 128, rf_min64(u->length, i * 128 + 128), u->kv_head,
                 step);
  RF_STAMP_BARRIER;
#pragma omp for schedule(dynamic) nowait
  for (int64_t i = 0; i < groups * a->group; i++) {
    /* The last queries of a segment come first, because they see more keys and take longer. */
    int64_t first = begin + (groups - 1 - i / a->group) * group;
    attend_queries(&w, a, j->call, u->origin, first, rf_min64(end, first + group),
                   u->kv_head * a->group + (int)(i % a->group), step);
  }
  RF_STAMP_BARRIER;
}
static void forward_unit(void *job, const rf_attention_unit *u, bool together) {
  forward_job *j = job;
  if (together) {
    unit_of_all(j, u);
    return;
  }
  int64_t step = rf_round_up(u->length, PANEL) * PANEL, begin = rf_attention_row(j->a, u->origin),
          end = rf_attention_row(j->a, u->origin + u->length);
  pack_segment(&j->own, j->a, j->call, u->origin, 0, u->length, u->kv_head, step);
  for (int head = u->kv_head * j->a->group; head < (u->kv_head + 1) * j->a->group; head++)
    for (int64_t first = begin; first < end; first += RF_ATTENTION_QUERIES)
      attend_queries(&j->own, j->a, j->call, u->origin, first, rf_min64(end, first + RF_ATTENTION_QUERIES),
                     head, step);
}

static void attention_run(const rf_call *call) {
  rf_attention a = rf_attention_here(call);
  int64_t floats = (int64_t)rf_attention_forward_floats(&a), bound = rf_round_up(a.longest, PANEL);
  float *memory = call->workspace;
#pragma omp parallel num_threads(call->threads)
  {
    RF_STAMP_BUSY;
    float *own = memory + floats * omp_get_thread_num();
    forward_job job = {&a, call, pass_at(&a, own, bound, RF_ATTENTION_MAX_HEIGHT),
                       pass_at(&a, memory, bound, RF_ATTENTION_MAX_HEIGHT)};
    rf_attention_units(&a, call->in[1 + a.key_input], forward_unit, &job);
  }
}

#endif
