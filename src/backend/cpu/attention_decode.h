/* attention_decode.h - attention of one new row over a cache, compiled once per ISA. The main cost
 * is reading the cache, so a thread reads each key and each value once for all query heads that
 * share the key. The cache interleaves the keys of all KV heads. */
#ifndef RF_ATTENTION_DECODE_H
#define RF_ATTENTION_DECODE_H

#include "backend/cpu/attention_pages.h"

/* The part of the cache that one decoded row reads. The row reads keys and values [low, high) of a
 * slot, `bytes` bytes from `column` on. If high is 0, the row reads nothing. */
typedef struct span {
  int64_t slot, low, high, column, bytes;
} span;
/* State of the prefetches. Decoding prefetches the cache some distance ahead, and continues with
 * the next row at the end of a row. Hardware prefetchers cannot find the next head, page or slot.
 * Without these prefetches, 16 rows of 48 keys read only 5.9 GB/s on one thread (Emerald
 * Rapids). */
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
 * the bytes are not contiguous, this function prefetches all of them but the last contiguous part,
 * and returns the address of that part. Returns NULL if fewer bytes remain. */
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

/* The rows and heads that a thread computes. */
typedef struct cached_task {
  int64_t first, count; /* first row, number of rows */
  int kv0, kv1, g0, g1; /* KV heads [kv0, kv1); query heads [g0, g1) of each group */
} cached_task;

/* One row to decode: the strips of the row's query heads, and the keys [low, high) that the row
 * sees. */
typedef struct decode {
  pass *w;
  const rf_attention *a;
  const kv_cache *cache;
  int64_t slot, low, high, lines; /* lines: number of rows of scores of all strips */
  int kv0, each;                  /* first KV head; number of strips of each KV head */
} decode;

/* Number of query heads in a strip. The `heads` query heads of a KV head are divided into strips of
 * equal height. */
static int strip_heads(int heads) {
  int strips = (heads + MR - 1) / MR;
  return (heads + strips - 1) / strips;
}
/* Upper bound of the lines that a row with all heads needs. */
static int64_t decode_lines(const rf_attention *a) {
  int most = strip_heads(a->group);
  return (int64_t)a->kv_heads * ((a->group + most - 1) / most) * tile_height(most);
}

/* Opens strips for query heads [g0, g1) of each KV head of [kv0, kv1). */
static decode decode_open(pass *w, const rf_call *call, const rf_attention *a, const kv_cache *c,
                          const cached_task *t) {
  const int32_t *slots = call->in[3], *positions = call->in[4];
  int64_t row = t->first, position = positions[row];
  int most = strip_heads(t->g1 - t->g0);
  w->strips = 0;
  for (int kv = t->kv0; kv < t->kv1; kv++) {
    for (int g = t->g0; g < t->g1; g++) {
      if ((g - t->g0) % most == 0) pass_open(w, a);
      pass_row(&w->strip[w->strips - 1], a, row, position, kv * a->group + g);
    }
  }
  pass_pack_queries(w, a, call->in[0]);
  const strip *last = &w->strip[w->strips - 1];
  return (decode){.w = w,
                  .a = a,
                  .cache = c,
                  .slot = slots[row],
                  .low = rf_max64(0, position + 1 - a->window),
                  .high = position + 1,
                  .lines = last->line + last->height,
                  .kv0 = t->kv0,
                  .each = w->strips / (t->kv1 - t->kv0)};
}

/* The keys [from, to) of the block at `block` that the row sees. Vectors [v0, v1) contain keys
 * [from, to). */
typedef struct block_part {
  int64_t block, from, to, v0, v1;
} block_part;
static block_part part_of(const decode *d, int64_t block) {
  int64_t from = rf_max64(block, d->low), to = rf_min64(block + BLOCK, d->high);
  return (block_part){block, from, to, (from - block) / RF_LANES, (to - block + RF_LANES - 1) / RF_LANES};
}

/* Multiplies strips [i0, i1), which share a KV head, by the panel of keys at `key`, and writes the
 * products to the lines of `s`. */
static void decode_panel(const decode *d, int i0, int i1, const block_part *b, int64_t key, float *s,
                         const char *ahead) {
  pass *w = d->w;
  int64_t first = rf_max64(key, b->block + b->v0 * RF_LANES) - key,
          last = rf_min64(key + PANEL, b->block + b->v1 * RF_LANES) - key;
  pack_cached_keys(w, d->a, d->cache, cache_row(d->cache, d->slot, 0, key), rf_min64(PANEL, b->to - key),
                   d->kv0 + i0 / d->each, w->columns, ahead);
  for (int i = i0; i < i1; i++) {
    const strip *t = &w->strip[i];
    products(t->height, t->q, w->columns, d->a->dim, first, last, s + t->line * LDS + (key - b->block), LDS);
  }
}

/* Columns [c0, c1) of a head. Multiplying these columns also prefetches as many bytes as they have,
 * from `ahead` on. The prefetched rows are ahead_step elements apart; 0: the prefetched bytes are
 * contiguous. */
typedef struct column_part {
  int64_t c0, c1;
  const char *ahead;
  int64_t ahead_step;
} column_part;

/* Adds values [key, key + count), which are in one page, to columns of a strip's context. */
static void decode_values(const decode *d, int i, const block_part *b, int64_t key, int64_t count,
                          const column_part *part) {
  const kv_cache *c = d->cache;
  pass *w = d->w;
  strip *t = &w->strip[i];
  int head = d->kv0 + i / d->each;
  int64_t row = cache_row(c, d->slot, 1, key);
  bool direct = d->a->dim % RF_LANES == 0; /* true: multiplies by values that are not packed */
  weighted x = {.p = w->s + t->line * LDS + (key - b->block),
                .ldp = LDS,
                .v = w->values,
                .step = PANEL * PANEL,
                .keys = count,
                .acc = t->acc + part->c0,
                .width = d->a->width,
                .columns = part->c1 - part->c0,
                .factor = key == b->from ? t->factor : NULL,
                .dtype = RF_F32};
  if (!direct) {
    if (i % d->each == 0) pack_cached_values(w, d->a, c, row, count, head, w->values, PANEL * PANEL);
    context(t->height, &x);
    return;
  }
  x.v = cache_at(c, row, head * (int64_t)d->a->dim + part->c0);
  x.step = c->width;
  x.dtype = c->dtype;
  x.ahead = part->ahead;
  x.ahead_step = part->ahead_step;
  x.scale = scale_at(c, row, head);
  x.scale_step = c->heads;
  context_rows(t->height, &x);
}

/* Decodes a row, or some heads of a row, on one thread. */
static void decode_alone(const decode *d, reader *ahead) {
  pass *w = d->w;
  int64_t unit = d->cache->unit, dim = d->a->dim;
  for (int64_t block = d->low / BLOCK * BLOCK; block < d->high; block += BLOCK) {
    block_part b = part_of(d, block);
    for (int64_t key = b.from / PANEL * PANEL; key < b.to; key += PANEL) {
      int64_t bytes = rf_min64(PANEL, b.to - key) * dim * unit;
      for (int i = 0; i < w->strips; i += d->each)
        decode_panel(d, i, i + d->each, &b, key, w->s, reader_take(ahead, bytes));
    }
    for (int i = 0; i < w->strips; i++)
      strip_softmax(d->a, &w->strip[i], w->s + w->strip[i].line * LDS, block, b.v0, b.v1, w->strip[i].factor);
    for (int64_t key = b.from, count; key < b.to; key += count) {
      count = rf_min64(rf_min64(PANEL, b.to - key), left_in_page(d->cache, key));
      for (int i = 0; i < w->strips; i++) {
        column_part all = {0, d->a->width, NULL, 0};
        if (i % d->each == 0) all.ahead = reader_take(ahead, count * dim * unit);
        decode_values(d, i, &b, key, count, &all);
      }
    }
  }
}

/* ---- one row on all threads ------------------------------------------------------------------ */

/* If threads do not divide the KV heads evenly, all threads decode a row together, in chunks of
 * blocks. Each thread multiplies a range of keys by all query heads. After a barrier, a thread
 * computes the softmax of the heads in its range of columns, and adds these columns of the values.
 * So only one thread reads each byte of the cache, and the order of additions stays the same.
 * Threads alternate between two buffers for the products, so a chunk needs only one barrier. */
typedef struct team {
  float *products[2]; /* (blocks of a chunk, lines, LDS) */
  int64_t blocks;     /* of a chunk */
  int64_t c0, c1;     /* columns of this thread, counted over all KV heads */
  int me, threads;
} team;

/* The number of blocks in a chunk; 0: no block fits. The products of a chunk use a thread's memory
 * for packed values, which decode_together does not need. With more blocks, the products would not
 * stay in L2. */
static int64_t team_blocks(const rf_attention *a, int64_t lines) {
  enum { MOST_BLOCKS = 16 };
  return rf_min64(MOST_BLOCKS, BLOCK * rf_round_up(a->dim, PANEL) / (lines * LDS));
}
static void fetch_rows(const decode *d, int which, int64_t key, int64_t keys, int64_t c0, int64_t c1) {
  const kv_cache *c = d->cache;
  for (int64_t k = key; k < rf_min64(key + keys, d->high); k++) {
    const char *at = cache_at(c, cache_row(c, d->slot, which, k), c0);
    for (int64_t b = 0; b < (c1 - c0) * c->unit; b += 64) __builtin_prefetch(at + b, 0, 2);
  }
}
/* Keys [*first, *last) of a chunk that this thread multiplies. Only the last panel may be
 * incomplete. */
static void team_keys(const decode *d, const team *t, int64_t chunk, int64_t *first, int64_t *last) {
  int64_t begin = rf_max64(chunk, d->low) / PANEL * PANEL, end = rf_min64(chunk + t->blocks * BLOCK, d->high),
          panels = (end - begin + PANEL - 1) / PANEL;
  *first = begin + panels * t->me / t->threads * PANEL;
  *last = rf_min64(end, begin + panels * (t->me + 1) / t->threads * PANEL);
}
static void team_products(const decode *d, const team *t, int64_t chunk, float *products) {
  enum { AHEAD = 2 * PANEL };
  const kv_cache *c = d->cache;
  int64_t first, last, head_bytes = PANEL * d->a->dim * c->unit;
  team_keys(d, t, chunk, &first, &last);
  for (int64_t key = first; key < last; key += PANEL) {
    block_part b = part_of(d, key / BLOCK * BLOCK);
    float *s = products + (b.block - chunk) / BLOCK * d->lines * LDS;
    const char *ahead = NULL; /* a page has whole panels, so the bytes of a panel are contiguous */
    if (key + AHEAD < last) ahead = cache_at(c, cache_row(c, d->slot, 0, key + AHEAD), 0);
    for (int i = 0; i < d->w->strips; i += d->each, ahead = ahead ? ahead + head_bytes : NULL)
      decode_panel(d, i, i + d->each, &b, key, s, ahead);
  }
  fetch_rows(d, 1, rf_max64(chunk, d->low), AHEAD, t->c0, t->c1);
}
/* The columns [*c0, *c1) of a strip's head that belong to this thread. */
static bool team_columns(const decode *d, const team *t, int i, int64_t *c0, int64_t *c1) {
  int64_t head = (int64_t)(d->kv0 + i / d->each) * d->a->dim;
  *c0 = rf_max64(0, t->c0 - head);
  *c1 = rf_min64(d->a->dim, t->c1 - head);
  return *c0 < *c1;
}
static void team_values(const decode *d, const team *t, const block_part *b, const float *lines) {
  enum { AHEAD = 2 * PANEL };
  pass *w = d->w;
  const kv_cache *c = d->cache;
  int64_t c0, c1;
  for (int i = 0; i < w->strips; i++) {
    strip *s = &w->strip[i];
    if (!team_columns(d, t, i, &c0, &c1)) continue;
    float *own = w->s + s->line * LDS;
    memcpy(own, lines + s->line * LDS, sizeof(float) * (size_t)s->height * LDS);
    strip_softmax(d->a, s, own, b->block, b->v0, b->v1, s->factor);
  }
  for (int64_t key = b->from, count; key < b->to; key += count) {
    count = rf_min64(rf_min64(PANEL, b->to - key), left_in_page(c, key));
    int64_t later = key + AHEAD, row = later + PANEL <= d->high ? cache_row(c, d->slot, 1, later) : -1;
    for (int i = 0; i < w->strips; i++) {
      if (!team_columns(d, t, i, &c0, &c1)) continue;
      column_part part = {c0, c1, NULL, c->width};
      if (row >= 0 && i % d->each == 0)
        part.ahead = cache_at(c, row, (int64_t)(d->kv0 + i / d->each) * d->a->dim + c0);
      decode_values(d, i, b, key, count, &part);
    }
  }
}

/* Every thread of a parallel region calls this function. */
static void decode_together(const decode *d, team *t, void *ctx) {
  int64_t first, last, c0, c1, step = t->blocks * BLOCK, chunk = d->low / BLOCK * BLOCK;
  team_keys(d, t, chunk, &first, &last);
  fetch_rows(d, 0, first, 2 * PANEL, 0, d->cache->width);
  for (int turn = 0; chunk < d->high; chunk += step, turn ^= 1) {
    team_products(d, t, chunk, t->products[turn]);
    RF_STAMP_BARRIER;
    for (int64_t block = chunk; block < rf_min64(chunk + step, d->high); block += BLOCK) {
      block_part b = part_of(d, block);
      team_values(d, t, &b, t->products[turn] + (block - chunk) / BLOCK * d->lines * LDS);
    }
    if (chunk + step >= d->high) break;
    team_keys(d, t, chunk + step, &first, &last);
    fetch_rows(d, 0, first, 2 * PANEL, 0, d->cache->width);
  }
  for (int i = 0; i < d->w->strips; i++)
    if (team_columns(d, t, i, &c0, &c1)) strip_write(&d->w->strip[i], d->a, ctx, NULL, c0, c1);
}

#endif
