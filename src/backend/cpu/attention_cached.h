/* attention_cached.h - attention of new rows over a cache of keys and values, compiled once per
 * ISA. In prefill, a pass over the keys computes several consecutive rows of one slot, and packs
 * each block of keys once. In decode, the main cost is reading the cache. The cache interleaves the
 * keys of all KV heads, so decode of a row reads the keys of all heads, 32 keys at a time. Prefill
 * and decode follow attention.h, so results are bit-identical to attention over a batch. */
#ifndef RF_ATTENTION_CACHED_H
#define RF_ATTENTION_CACHED_H

#include "backend/cpu/attention_forward.h"
#include "graph/kv.h"

#include <stdatomic.h>

typedef struct kv_cache {
  char *data;           /* (P, 2, G, K H) */
  float *scale;         /* (P, 2, G, K), for an i8 cache */
  const int32_t *table; /* (slots, C): page numbers; each page has G positions of one slot */
  rf_dtype dtype;
  int64_t unit, page, columns, heads, width; /* bytes of an element; G; C; K; K H */
} kv_cache;

static kv_cache cache_of(const rf_call *call, const rf_attention *a) {
  return (kv_cache){.data = call->out[1],
                    .scale = call->out[2],
                    .table = call->in[2],
                    .dtype = rf_out(call, 1)->dtype,
                    .unit = rf_dtype_bytes(rf_out(call, 1)->dtype),
                    .page = rf_in(call, 1)->shape[2],
                    .columns = rf_in(call, 2)->shape[1],
                    .heads = a->kv_heads,
                    .width = (int64_t)a->kv_heads * a->dim};
}

/* Row, counted over all pages, of the key (which = 0) or value (which = 1) at a position of a slot.
 * Adjacent positions in a page have adjacent rows. */
static int64_t cache_row(const kv_cache *c, int64_t slot, int which, int64_t position) {
  return (c->table[slot * c->columns + position / c->page] * 2 + which) * c->page + position % c->page;
}
static const char *cache_at(const kv_cache *c, int64_t row, int64_t column) {
  return c->data + (row * c->width + column) * c->unit;
}
static int64_t left_in_page(const kv_cache *c, int64_t position) { return c->page - position % c->page; }

static void copy_row(const void *from, rf_dtype dtype, int64_t at, void *to, rf_dtype to_dtype, int64_t to_at,
                     int64_t count) {
  for (int64_t d = 0; d < count; d += RF_LANES) {
    if (count - d >= RF_LANES) rf_v16_put(to, to_dtype, to_at + d, rf_v16_get(from, dtype, at + d));
    else
      rf_v16_put_n(to, to_dtype, to_at + d, rf_v16_get_n(from, dtype, at + d, (int)(count - d)),
                   (int)(count - d));
  }
}

/* Quantises one head to 8 bits: q = rint(x (127 / m)) and scale = m / 127, where m is the largest
 * |x|. Adding and subtracting MAGIC rounds to the nearest integer, ties to even. A NaN or infinity
 * in x makes the scale NaN, so that the cache returns only NaNs. If m is so small that 127 / m
 * overflows, the head becomes zeros. */
static void narrow_head(const float *x, int64_t dim, int8_t *q, float *scale) {
  const float MAGIC = 12582912.0f;
  float most = 0, finite = 0;
  for (int64_t d = 0; d < dim; d++) {
    most = fmaxf(most, fabsf(x[d]));
    finite += x[d] * 0.0f;
  }
  if (finite != 0) { /* NaN */
    *scale = finite;
    memset(q, 0, (size_t)dim);
    return;
  }
  float steps = most >= RF_NARROW_MIN ? 127.0f / most : 0;
  *scale = most >= RF_NARROW_MIN ? most / 127.0f : 0;
  for (int64_t d = 0; d < dim; d++) q[d] = (int8_t)(int32_t)((x[d] * steps + MAGIC) - MAGIC);
}

static void cache_write(pass *w, const rf_attention *a, const kv_cache *c, const void *qkv, int64_t at,
                        int64_t row) {
  if (!a->narrow) {
    copy_row(qkv, a->dtype, at, c->data, c->dtype, row * c->width, c->width);
    return;
  }
  for (int64_t head = 0; head < c->heads; head++) {
    copy_row(qkv, a->dtype, at + head * a->dim, w->widened, RF_F32, 0, a->dim);
    narrow_head(w->widened, a->dim, (int8_t *)c->data + row * c->width + head * a->dim,
                &c->scale[row * c->heads + head]);
  }
}

/* Converts `count` rows of one head of an i8 cache to f32 (count, dim). */
static const void *widen_rows(pass *w, const rf_attention *a, const kv_cache *c, int64_t row, int64_t count,
                              int64_t head) {
  for (int64_t r = 0; r < count; r++) {
    const int8_t *q = (const int8_t *)cache_at(c, row + r, head * a->dim);
    float scale = c->scale[(row + r) * c->heads + head], *to = w->widened + r * a->dim;
    for (int64_t d = 0; d < a->dim; d++) to[d] = (float)q[d] * scale;
  }
  return w->widened;
}

/* The part of the cache that one decoded row reads: keys and values [low, high) of a slot, and of
 * each the `bytes` bytes from `column` on. If high is 0, the row reads nothing. */
typedef struct span {
  int64_t slot, low, high, column, bytes;
} span;
/* State of the prefetches. Decode prefetches the cache some distance ahead, also across the end of
 * a row. Hardware prefetchers cannot find the next head, page or slot. Without these prefetches, 16
 * rows of 48 keys read only 5.9 GB/s on one thread (Emerald Rapids). */
typedef struct reader {
  const kv_cache *cache;
  span now, after;
  int64_t block, key;
  int which;
  const char *at; /* start of the next `left` contiguous bytes */
  int64_t left;
} reader;
static void reader_enter(reader *r, span now) {
  r->now = now;
  r->after.high = 0;
  r->which = 0;
  r->block = now.low / BLOCK * BLOCK;
  r->key = now.low / PANEL * PANEL;
}
/* Moves the reader to the next contiguous bytes. Returns false if `after` is not set yet. */
static bool reader_move(reader *r) {
  const kv_cache *c = r->cache;
  while (r->left <= 0) {
    int64_t end = rf_min64(r->block + BLOCK, r->now.high);
    if (r->key < end) {
      int64_t run = r->now.bytes == c->width * c->unit ? rf_min64(end - r->key, left_in_page(c, r->key)) : 1;
      r->at = cache_at(c, cache_row(c, r->now.slot, r->which, r->key), r->now.column);
      r->left = run * r->now.bytes;
      r->key += run;
    } else if (r->which == 0) {
      r->which = 1;
      r->key = rf_max64(r->block, r->now.low);
    } else if (end < r->now.high) {
      r->which = 0;
      r->block += BLOCK;
      r->key = r->block;
    } else if (r->after.high > 0) {
      reader_enter(r, r->after);
    } else {
      return false;
    }
  }
  return true;
}
/* Moves the reader by `bytes` bytes, which the caller prefetches from the returned address on. If
 * these bytes are not contiguous, prefetches them here, except the last contiguous part, and
 * returns the address of this part. Returns NULL if fewer bytes remain. */
static const char *reader_take(reader *r, int64_t bytes) {
  while (bytes > 0 && reader_move(r)) {
    const char *at = r->at;
    int64_t here = rf_min64(bytes, r->left);
    r->at += here;
    r->left -= here;
    if (here == bytes) return at;
    for (int64_t b = 0; b < here; b += 64) __builtin_prefetch(at + b, 0, 2);
    bytes -= here;
  }
  return NULL;
}
static void reader_fetch(reader *r, int64_t bytes) {
  const char *at = reader_take(r, bytes);
  for (int64_t b = 0; at && b < bytes; b += 64) __builtin_prefetch(at + b, 0, 2);
}

/* Packs keys and values [begin, end) of the block at `block`, page by page. `begin` is a multiple
 * of PANEL. */
static void pack_pages(pass *w, const rf_attention *a, const key_source *from, int64_t block, int64_t begin,
                       int64_t end, int64_t value_step) {
  const kv_cache *c = from->cache;
  for (int64_t at = begin, count; at < end; at += count) {
    count = rf_min64(end - at, left_in_page(c, at));
    if (a->narrow) count = rf_min64(count, PANEL);
    for (int which = 0; which < 2; which++) {
      int64_t row = cache_row(c, from->slot, which, at), ld = a->narrow ? a->dim : c->width;
      const void *rows = a->narrow ? widen_rows(w, a, c, row, count, from->kv_head)
                                   : cache_at(c, row, (int64_t)from->kv_head * a->dim);
      rf_dtype dtype = a->narrow ? RF_F32 : c->dtype;
      if (which == 0) pack_columns(rows, dtype, ld, count, a->dim, w->columns + (at - block) * a->dim, NULL);
      else pack_rows(rows, dtype, ld, count, a->dim, w->values + (at - block) * PANEL, value_step);
    }
  }
}

/* Cuts the rows into pieces of at most `most` rows at consecutive positions of one slot. Sets
 * start[i] to the first row of piece i, and returns the number of pieces. */
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

/* Number of bytes of the cache that the rows read. Counting stops when the sum reaches `enough`. */
static int64_t bytes_read(const rf_attention *a, const kv_cache *c, const int32_t *slots,
                          const int32_t *positions, int64_t rows, int64_t enough) {
  int64_t sum = 0;
  for (int64_t r = 0; r < rows && sum < enough; r++)
    if (slots[r] >= 0) sum += rf_min64(positions[r] + 1, a->window) * 2 * c->width * c->unit;
  return sum;
}

/* The pieces of a call. Each piece is divided into kv_parts * parts tasks: the KV heads into
 * kv_parts ranges, and the query heads of each group into `parts` ranges of `heads` heads. */
typedef struct cached_work {
  const rf_attention *a;
  const kv_cache *cache;
  const int32_t *slots, *positions, *start;
  int64_t kv_parts, parts, tasks;
  int heads;
} cached_work;
typedef struct cached_task {
  int64_t first, count; /* first row, number of rows */
  int kv0, kv1, g0, g1; /* KV heads [kv0, kv1); query heads [g0, g1) of each group */
} cached_task;
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

static void decode_row(pass *w, const rf_call *call, const cached_work *k, const cached_task *t,
                       reader *ahead) {
  const rf_attention *a = k->a;
  const kv_cache *c = k->cache;
  rf_dtype dtype = a->narrow ? RF_F32 : c->dtype;
  int64_t row = t->first, slot = k->slots[row], position = k->positions[row];
  int64_t ld = a->narrow ? a->dim : c->width, low = rf_max64(0, position + 1 - a->window),
          high = position + 1, column = (int64_t)t->kv0 * a->dim;
  bool direct = a->dim % RF_LANES == 0; /* true: multiplies values that are not packed */
  w->strips = 0;
  int each = 0; /* strips per KV head */
  for (int kv = t->kv0; kv < t->kv1; kv++) {
    for (int g = t->g0; g < t->g1; g++) {
      if ((g - t->g0) % MR == 0) pass_open(w, a);
      pass_row(&w->strip[w->strips - 1], a, row, position, kv * a->group + g);
    }
    each = w->strips / (kv - t->kv0 + 1);
  }
  pass_pack_queries(w, a, call->in[0]);
  for (int64_t block = low / BLOCK * BLOCK; block < high; block += BLOCK) {
    int64_t from = rf_max64(block, low), to = rf_min64(block + BLOCK, high), v0 = (from - block) / RF_LANES,
            v1 = (to - block + RF_LANES - 1) / RF_LANES;
    for (int64_t key = from / PANEL * PANEL; key < to; key += PANEL) {
      int64_t first = rf_max64(key, block + v0 * RF_LANES) - key,
              last = rf_min64(key + PANEL, block + v1 * RF_LANES) - key;
      int64_t at = cache_row(c, slot, 0, key);
      int64_t count = rf_min64(PANEL, to - key), head_bytes = count * a->dim * c->unit;
      const char *here = cache_at(c, at, column);
      for (int i = 0; i < w->strips; i++) {
        strip *s = &w->strip[i];
        if (i % each == 0 && a->narrow) {
          reader_fetch(ahead, head_bytes);
          pack_columns(widen_rows(w, a, c, at, count, t->kv0 + i / each), dtype, ld, count, a->dim,
                       w->columns, NULL);
        } else if (i % each == 0) {
          pack_columns(rf_at(here, dtype, i / each * (int64_t)a->dim), dtype, ld, count, a->dim, w->columns,
                       reader_take(ahead, head_bytes));
        }
        products(s->height, s->q, w->columns, a->dim, first, last, w->s + s->line * LDS + (key - block), LDS);
      }
    }
    for (int i = 0; i < w->strips; i++)
      strip_softmax(a, &w->strip[i], w->s + w->strip[i].line * LDS, block, v0, v1, w->strip[i].factor);
    for (int64_t key = from, count; key < to; key += count) {
      count = rf_min64(rf_min64(PANEL, to - key), left_in_page(c, key));
      int64_t at = cache_row(c, slot, 1, key), head_bytes = count * a->dim * c->unit;
      const char *here = cache_at(c, at, column);
      for (int i = 0; i < w->strips; i++) {
        strip *s = &w->strip[i];
        const void *values = a->narrow ? w->widened : rf_at(here, dtype, i / each * (int64_t)a->dim);
        if (i % each == 0 && a->narrow) widen_rows(w, a, c, at, count, t->kv0 + i / each);
        if (i % each == 0 && (a->narrow || !direct)) reader_fetch(ahead, head_bytes);
        if (i % each == 0 && !direct) pack_rows(values, dtype, ld, count, a->dim, w->values, PANEL * PANEL);
        weighted x = {.p = w->s + s->line * LDS + (key - block),
                      .ldp = LDS,
                      .v = direct ? values : w->values,
                      .step = direct ? ld : PANEL * PANEL,
                      .keys = count,
                      .acc = s->acc,
                      .width = a->width,
                      .factor = key == from ? s->factor : NULL,
                      .dtype = dtype};
        if (direct && i % each == 0 && !a->narrow) x.ahead = reader_take(ahead, head_bytes);
        if (direct) context_rows(s->height, &x);
        else context(s->height, &x);
      }
    }
  }
  pass_write(w, a, call->out[0], NULL);
}

static void attention_kv_run(const rf_call *call) {
  /* Decode prefetches two panels ahead, because packing reads all keys of a panel at once. */
  enum { BYTES_WORTH_A_THREAD = 128 << 10, KEYS_AHEAD = 2 * PANEL };
  rf_attention a = rf_attention_of(call->graph, call->op);
  const int32_t *slots = call->in[3], *positions = call->in[4];
  int64_t rows = call->run && call->run->rows > 0 && call->run->rows < a.rows ? call->run->rows : a.rows;
  int64_t floats = (int64_t)rf_attention_cached_floats(&a);
  kv_cache cache = cache_of(call, &a);
  int32_t *start = call->workspace;
  float *memory = (float *)call->workspace + rf_round_up(a.rows + 1, RF_LANES);
  int heads = a.group < RF_ATTENTION_DECODE ? a.group : RF_ATTENTION_DECODE;
  int64_t pieces = cut_pieces(slots, positions, rows, rf_max64(1, RF_ATTENTION_QUERIES / heads), start);
  int64_t most = (int64_t)call->threads * BYTES_WORTH_A_THREAD,
          useful = 1 + bytes_read(&a, &cache, slots, positions, rows, most) / BYTES_WORTH_A_THREAD;
  int threads = useful < call->threads ? (int)useful : call->threads;
  /* smallest number of tasks per piece that gives every thread a task */
  int64_t enough = (threads + pieces - 1) / pieces;
  int64_t kv_most = rf_max64(1, RF_ATTENTION_DECODE / heads),
          kv_parts = rf_max64((a.kv_heads + kv_most - 1) / kv_most, rf_min64(enough, a.kv_heads));
  if (kv_parts < enough) heads = (int)rf_max64(1, heads * kv_parts / enough);
  int64_t parts = (a.group + heads - 1) / heads;
  cached_work work = {&a, &cache, slots, positions, start, kv_parts, parts, pieces * kv_parts * parts, heads};
  atomic_long tickets = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    RF_STAMP_BUSY;
    pass w = pass_at(&a, memory + floats * omp_get_thread_num(), BLOCK, RF_ATTENTION_SCORES);
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < rows; r++) {
      if (slots[r] < 0) {
        memset((char *)call->out[0] + r * a.heads * a.dim * rf_dtype_bytes(a.dtype), 0,
               (size_t)(a.heads * a.dim * rf_dtype_bytes(a.dtype)));
        continue;
      }
      for (int which = 0; which < 2; which++) {
        int64_t at = r * a.ld + ((int64_t)a.heads + (int64_t)which * a.kv_heads) * a.dim;
        cache_write(&w, &a, &cache, call->in[0], at, cache_row(&cache, slots[r], which, positions[r]));
      }
    }
    /* A thread takes its next task before the current task ends, to prefetch the keys. */
    int64_t task = atomic_fetch_add(&tickets, 1), next;
    reader ahead = {.cache = &cache};
    reader_enter(&ahead, span_of(&work, task));
    reader_fetch(&ahead, KEYS_AHEAD * ahead.now.bytes);
    RF_STAMP_BARRIER;
    for (; task < work.tasks; task = next) {
      cached_task t = task_at(&work, task);
      int64_t slot = slots[t.first];
      next = atomic_fetch_add(&tickets, 1);
      if (slot < 0) continue;
      if (t.count == 1) {
        ahead.after = span_of(&work, next);
        decode_row(&w, call, &work, &t, &ahead);
        continue;
      }
      for (int kv_head = t.kv0; kv_head < t.kv1; kv_head++) {
        w.strips = 0;
        for (int g = t.g0; g < t.g1; g++)
          pass_add(&w, &a, t.first, t.count, t.first - positions[t.first], kv_head * a.group + g);
        pass_pack_queries(&w, &a, call->in[0]);
        pass_keys(&w, &a, &(key_source){.cache = &cache, .slot = slot, .kv_head = kv_head});
        pass_write(&w, &a, call->out[0], NULL);
      }
    }
  }
}

#endif
