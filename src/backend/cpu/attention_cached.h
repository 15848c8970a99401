/* attention_cached.h - attention of new rows over a cache of keys and values, compiled once per
 * ISA. In prefill, a pass over the keys computes several consecutive rows of one slot, and packs
 * each block of keys once. In decoding, attention_decode.h computes single rows. Prefill and decode
 * follow attention.h, so results are bit-identical to attention over a batch. */
#ifndef RF_ATTENTION_CACHED_H
#define RF_ATTENTION_CACHED_H

#include "backend/cpu/attention_decode.h"

#include <stdatomic.h>

/* Splits the rows into pieces. A piece has at most `most` rows, at consecutive positions of one
 * slot. Sets start[i] to the first row of piece i, and returns the number of pieces. */
static int64_t cut_pieces(const int32_t *slots, const int32_t *positions, int64_t rows, int64_t most,
                          int32_t *start) {
  int64_t pieces = 0;
  for (int64_t r = 0; r < rows; r++) {
    bool goes_on = r > 0 && slots[r] == slots[r - 1] && slots[r] >= 0 &&
                   positions[r] == positions[r - 1] + 1 && r - start[pieces - 1] < most;
    if (!goes_on) start[pieces++] = (int32_t)r;
  }
  start[pieces] = (int32_t)rows;
  return pieces;
}

/* Number of bytes of the cache that the rows read. The function stops counting at `enough`. */
static int64_t bytes_read(const rf_attention *a, const kv_cache *c, const int32_t *slots,
                          const int32_t *positions, int64_t rows, int64_t enough) {
  int64_t sum = 0;
  for (int64_t r = 0; r < rows && sum < enough; r++)
    if (slots[r] >= 0) sum += rf_min64(positions[r] + 1, a->window) * 2 * c->width * c->unit;
  return sum;
}

/* The pieces of a call. A piece has kv_parts * parts tasks. A task has a range of the KV heads, and
 * a range of `heads` query heads of each group. There are kv_parts ranges of KV heads, and `parts`
 * ranges of query heads. */
typedef struct cached_work {
  const rf_attention *a;
  const rf_call *call;
  const kv_cache *cache;
  const int32_t *slots, *positions;
  int32_t *start;
  float *memory; /* workspace: `floats` floats for each thread */
  int64_t rows, floats,
      together; /* number of blocks in a chunk if all threads share the only row; otherwise 0 */
  int64_t pieces, kv_parts, parts, tasks;
  int heads, threads;
  atomic_long tickets;
} cached_work;
static cached_task task_at(const cached_work *k, int64_t task) {
  int64_t piece = task / k->parts / k->kv_parts, part = task / k->parts % k->kv_parts;
  int g0 = (int)(task % k->parts) * k->heads;
  return (cached_task){.first = k->start[piece],
                       .count = k->start[piece + 1] - k->start[piece],
                       .kv0 = (int)(k->a->kv_heads * part / k->kv_parts),
                       .kv1 = (int)(k->a->kv_heads * (part + 1) / k->kv_parts),
                       .g0 = g0,
                       .g1 = g0 + k->heads < k->a->group ? g0 + k->heads : k->a->group};
}
static span span_of(const cached_work *k, int64_t task) {
  if (task >= k->tasks) return (span){0};
  cached_task t = task_at(k, task);
  if (t.count != 1 || k->slots[t.first] < 0) return (span){0};
  int64_t position = k->positions[t.first], dim = k->a->dim;
  return (span){.slot = k->slots[t.first],
                .low = rf_max64(0, position + 1 - k->a->window),
                .high = position + 1,
                .column = t.kv0 * dim,
                .bytes = (t.kv1 - t.kv0) * dim * k->cache->unit};
}

static void write_cache(pass *w, const cached_work *k) {
  const rf_attention *a = k->a;
  size_t bytes = (size_t)(a->heads * a->dim * rf_dtype_bytes(a->dtype));
#pragma omp for schedule(static) nowait
  for (int64_t r = 0; r < k->rows; r++) {
    if (k->slots[r] < 0) {
      memset((char *)k->call->out[0] + (size_t)r * bytes, 0, bytes);
      continue;
    }
    for (int which = 0; which < 2; which++) {
      int64_t at = r * a->ld + ((int64_t)a->heads + (int64_t)which * a->kv_heads) * a->dim;
      cache_write(w, a, k->cache, k->call->in[0], at,
                  cache_row(k->cache, k->slots[r], which, k->positions[r]));
    }
  }
}

static void run_task(pass *w, const cached_work *k, const cached_task *t, reader *ahead) {
  const rf_attention *a = k->a;
  if (t->count == 1) {
    decode d = decode_open(w, k->call, a, k->cache, t);
    decode_alone(&d, ahead);
    pass_write(w, a, k->call->out[0], NULL);
    return;
  }
  key_source from = {.cache = k->cache, .slot = k->slots[t->first]};
  for (from.kv_head = t->kv0; from.kv_head < t->kv1; from.kv_head++) {
    w->strips = 0;
    for (int g = t->g0; g < t->g1; g++)
      pass_add(w, a, t->first, t->count, t->first - k->positions[t->first], from.kv_head * a->group + g);
    pass_pack_queries(w, a, k->call->in[0]);
    pass_keys(w, a, &from);
    pass_write(w, a, k->call->out[0], NULL);
  }
}

/* A thread takes its next task before the current task ends, to prefetch the keys. */
static void run_tasks(pass *w, cached_work *k) {
  enum { KEYS_AHEAD = 2 * PANEL }; /* packing reads all keys of a panel at once */
  int64_t task = atomic_fetch_add(&k->tickets, 1), next;
  reader ahead = {.cache = k->cache};
  reader_enter(&ahead, span_of(k, task));
  reader_fetch(&ahead, KEYS_AHEAD * ahead.now.bytes);
  RF_STAMP_BARRIER;
  for (; task < k->tasks; task = next) {
    cached_task t = task_at(k, task);
    next = atomic_fetch_add(&k->tickets, 1);
    if (k->slots[t.first] < 0) continue;
    if (t.count == 1) ahead.after = span_of(k, next);
    run_task(w, k, &t, &ahead);
  }
}

static void run_together(pass *w, const cached_work *k) {
  const rf_attention *a = k->a;
  int64_t threads = omp_get_num_threads(), me = omp_get_thread_num(), width = k->cache->width,
          unit = width / PANEL < 2 * threads ? RF_LANES : PANEL, units = (width + unit - 1) / unit;
  team t = {.blocks = k->together,
            .c0 = rf_min64(width, units * me / threads * unit),
            .c1 = rf_min64(width, units * (me + 1) / threads * unit),
            .me = (int)me,
            .threads = (int)threads};
  for (int i = 0; i < 2; i++)
    t.products[i] = pass_at(a, k->memory + k->floats * i, BLOCK, RF_ATTENTION_SCORES).values;
  cached_task all = {.count = 1, .kv1 = a->kv_heads, .g1 = a->group};
  decode d = decode_open(w, k->call, a, k->cache, &all);
  RF_STAMP_BARRIER;
  decode_together(&d, &t, k->call->out[0]);
}

/* Divides the pieces into tasks so that every thread has a task. */
static void divide(cached_work *k) {
  const rf_attention *a = k->a;
  int64_t enough = (k->threads + k->pieces - 1) / k->pieces, /* minimum number of tasks per piece */
      kv_most = rf_max64(1, RF_ATTENTION_DECODE / k->heads);
  k->kv_parts = rf_max64((a->kv_heads + kv_most - 1) / kv_most, rf_min64(enough, a->kv_heads));
  bool alone = k->rows == 1 && k->slots[0] >= 0 && a->heads <= RF_ATTENTION_DECODE && a->dim % RF_LANES == 0;
  /* f32 caches with more KV heads than threads are faster without sharing (measurements.md). */
  bool uneven = a->kv_heads < k->threads || (a->kv_heads % k->threads && k->cache->dtype != RF_F32);
  k->together = alone && uneven ? team_blocks(a, decode_lines(a)) : 0;
  if (k->kv_parts < enough) k->heads = (int)rf_max64(1, k->heads * k->kv_parts / enough);
  k->parts = (a->group + k->heads - 1) / k->heads;
  k->tasks = k->pieces * k->kv_parts * k->parts;
}

static void attention_kv_run(const rf_call *call) {
  enum { BYTES_WORTH_A_THREAD = 128 << 10 };
  rf_attention a = rf_attention_of(call->graph, call->op);
  kv_cache cache = cache_of(call, &a);
  cached_work k = {.a = &a,
                   .call = call,
                   .cache = &cache,
                   .slots = call->in[3],
                   .positions = call->in[4],
                   .start = call->workspace,
                   .memory = (float *)call->workspace + rf_round_up(a.rows + 1, RF_LANES),
                   .rows = call->run ? rf_rows_of_pass(call->graph, a.rows, call->run->rows) : a.rows,
                   .floats = (int64_t)rf_attention_cached_floats(&a),
                   .heads = a.group < RF_ATTENTION_DECODE ? a.group : RF_ATTENTION_DECODE,
                   .threads = call->threads};
  k.pieces = cut_pieces(k.slots, k.positions, k.rows, rf_max64(1, RF_ATTENTION_QUERIES / k.heads), k.start);
  int64_t most = (int64_t)call->threads * BYTES_WORTH_A_THREAD,
          useful = 1 + bytes_read(&a, &cache, k.slots, k.positions, k.rows, most) / BYTES_WORTH_A_THREAD;
  if (useful < k.threads) k.threads = (int)useful;
  divide(&k);
#pragma omp parallel num_threads(k.threads) if (k.threads > 1)
  {
    RF_STAMP_BUSY;
    pass w = pass_at(&a, k.memory + k.floats * omp_get_thread_num(), BLOCK, RF_ATTENTION_SCORES);
    write_cache(&w, &k);
    if (k.together > 0) run_together(&w, &k);
    else run_tasks(&w, &k);
  }
}

#endif
