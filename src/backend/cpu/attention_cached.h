/* attention_cached.h - attention of a walk's rows over a cache of keys and values; the body behind every ISA.
 *
 * Rows that continue each other in one slot (prefill) walk together, a block of one kv head's keys packed for all of them, as over a batch. A
 * single row (decode) takes all kv heads at once, 32 keys at a time: its cost is reading the cache, and the keys of one head lie in pieces
 * between those of the others. Either way the arithmetic is that of attention.h, so the bits are those of the batch. */
#ifndef RF_ATTENTION_CACHED_H
#define RF_ATTENTION_CACHED_H

#include "backend/cpu/attention_forward.h"
#include "graph/kv.h"

/* The cache as a call sees it. */
typedef struct kv_cache {
  char *data;           /* (P, 2, G, K H) */
  float *scale;         /* (P, 2, G, K) of an i8 cache */
  const int32_t *table; /* (slots, C): the page of each G positions of a slot */
  rf_dtype dtype;
  int64_t unit, page, columns, heads, width; /* bytes of an element, G, C, K, K H */
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

/* Where a slot's keys (which 0) or values (1) of a position stand among the rows of all pages. Those of the positions behind it in its page
 * follow. */
static int64_t cache_row(const kv_cache *c, int64_t slot, int which, int64_t position) {
  return (c->table[slot * c->columns + position / c->page] * 2 + which) * c->page + position % c->page;
}
static const char *cache_at(const kv_cache *c, int64_t row, int64_t column) { return c->data + (row * c->width + column) * c->unit; }
static int64_t left_in_page(const kv_cache *c, int64_t position) { return c->page - position % c->page; }

static void copy_row(const void *from, rf_dtype dtype, int64_t at, void *to, rf_dtype to_dtype, int64_t to_at, int64_t count) {
  for (int64_t d = 0; d < count; d += RF_LANES) {
    if (count - d >= RF_LANES) rf_v16_put(to, to_dtype, to_at + d, rf_v16_get(from, dtype, at + d));
    else rf_v16_put_n(to, to_dtype, to_at + d, rf_v16_get_n(from, dtype, at + d, (int)(count - d)), (int)(count - d));
  }
}

/* One head in 8 bits: q = rint(x (127 / m)), scale = m / 127, m the largest |x|. Adding and taking away MAGIC rounds to the nearest integer, ties
 * to even. A head that is not finite gets a scale of NaN, so that whoever reads it sees that; one so small that 127 / m is none, zeros. */
static void narrow_head(const float *x, int64_t dim, int8_t *q, float *scale) {
  const float MAGIC = 12582912.0f;
  float most = 0, finite = 0;
  for (int64_t d = 0; d < dim; d++) most = fmaxf(most, fabsf(x[d])), finite += x[d] * 0.0f;
  if (finite != 0) { /* NaN */
    *scale = finite;
    memset(q, 0, (size_t)dim);
    return;
  }
  float steps = most >= RF_NARROW_LEAST ? 127.0f / most : 0;
  *scale = most >= RF_NARROW_LEAST ? most / 127.0f : 0;
  for (int64_t d = 0; d < dim; d++) q[d] = (int8_t)(int32_t)((x[d] * steps + MAGIC) - MAGIC);
}

/* One row's keys or values into the cache. */
static void cache_write(walk *w, const rf_attention *a, const kv_cache *c, const void *qkv, int64_t at, int64_t row) {
  if (!a->narrow) {
    copy_row(qkv, a->dtype, at, c->data, c->dtype, row * c->width, c->width);
    return;
  }
  for (int64_t head = 0; head < c->heads; head++) {
    copy_row(qkv, a->dtype, at + head * a->dim, w->widened, RF_F32, 0, a->dim);
    narrow_head(w->widened, a->dim, (int8_t *)c->data + row * c->width + head * a->dim, &c->scale[row * c->heads + head]);
  }
}

/* `count` rows of one head of an i8 cache as f32 (count, dim). */
static const void *widen_rows(walk *w, const rf_attention *a, const kv_cache *c, int64_t row, int64_t count, int64_t head) {
  for (int64_t r = 0; r < count; r++) {
    const int8_t *q = (const int8_t *)cache_at(c, row + r, head * a->dim);
    float scale = c->scale[(row + r) * c->heads + head], *to = w->widened + r * a->dim;
    for (int64_t d = 0; d < a->dim; d++) to[d] = (float)q[d] * scale;
  }
  return w->widened;
}

/* Keys and values [begin, end) of the block at `block`, begin a multiple of a panel, page by page. */
static void pack_pages(walk *w, const rf_attention *a, const key_source *from, int64_t block, int64_t begin, int64_t end, int64_t value_step) {
  const kv_cache *c = from->cache;
  for (int64_t at = begin, count; at < end; at += count) {
    count = rf_min64(end - at, left_in_page(c, at));
    if (a->narrow) count = rf_min64(count, PANEL);
    for (int which = 0; which < 2; which++) {
      int64_t row = cache_row(c, from->slot, which, at), ld = a->narrow ? a->dim : c->width;
      const void *rows = a->narrow ? widen_rows(w, a, c, row, count, from->kv_head) : cache_at(c, row, (int64_t)from->kv_head * a->dim);
      rf_dtype dtype = a->narrow ? RF_F32 : c->dtype;
      if (which == 0) pack_columns(rows, dtype, ld, count, a->dim, w->columns + (at - block) * a->dim, 0);
      else pack_rows(rows, dtype, ld, count, count, a->dim, w->values + (at - block) * PANEL, value_step);
    }
  }
}

/* One row at `position`: query heads [g0, g1) of each kv head in [kv0, kv1). */
static void decode_row(walk *w, const rf_attention *a, const rf_call *call, const kv_cache *c, int64_t row, int64_t slot, int64_t position, int kv0,
                       int kv1, int g0, int g1) {
  rf_dtype dtype = a->narrow ? RF_F32 : c->dtype;
  int64_t ld = a->narrow ? a->dim : c->width, low = rf_max64(0, position + 1 - a->window), high = position + 1, column = (int64_t)kv0 * a->dim;
  bool direct = a->dim % RF_LANES == 0; /* values are read where they lie */
  w->strips = 0;
  int each = 0; /* strips of a kv head */
  for (int kv = kv0; kv < kv1; kv++) {
    for (int g = g0; g < g1; g++) {
      if ((g - g0) % MR == 0) walk_open(w, a);
      walk_row(&w->strip[w->strips - 1], a, row, position, kv * a->group + g);
    }
    each = w->strips / (kv - kv0 + 1);
  }
  walk_pack_queries(w, a, call->in[0]);
  for (int64_t block = low / BLOCK * BLOCK; block < high; block += BLOCK) {
    int64_t from = rf_max64(block, low), to = rf_min64(block + BLOCK, high), v0 = (from - block) / RF_LANES,
            v1 = (to - block + RF_LANES - 1) / RF_LANES;
    for (int64_t key = from / PANEL * PANEL; key < to; key += PANEL) {
      int64_t first = rf_max64(key, block + v0 * RF_LANES) - key, last = rf_min64(key + PANEL, block + v1 * RF_LANES) - key;
      int64_t at = cache_row(c, slot, 0, key);
      const char *here = cache_at(c, at, column);
      const char *next = cache_at(c, key + PANEL < to ? cache_row(c, slot, 0, key + PANEL) : cache_row(c, slot, 1, from), column);
      for (int i = 0; i < w->strips; i++) {
        strip *t = &w->strip[i];
        if (i % each == 0 && a->narrow)
          pack_columns(widen_rows(w, a, c, at, rf_min64(PANEL, to - key), kv0 + i / each), dtype, ld, rf_min64(PANEL, to - key), a->dim, w->columns,
                       0);
        else if (i % each == 0)
          pack_columns(rf_at(here, dtype, i / each * (int64_t)a->dim), dtype, ld, rf_min64(PANEL, to - key), a->dim, w->columns, next - here);
        products(t->height, t->q, w->columns, a->dim, first, last, w->s + t->line * LDS + (key - block), LDS);
      }
    }
    for (int i = 0; i < w->strips; i++) strip_softmax(a, &w->strip[i], w->s + w->strip[i].line * LDS, block, v0, v1, w->strip[i].factor);
    for (int64_t key = from, count; key < to; key += count) {
      count = rf_min64(rf_min64(PANEL, to - key), left_in_page(c, key));
      int64_t at = cache_row(c, slot, 1, key), after = key + count;
      const char *here = cache_at(c, at, column);
      const char *next = after < to  ? cache_at(c, cache_row(c, slot, 1, after), column)
                         : to < high ? cache_at(c, cache_row(c, slot, 0, to), column)
                                     : here;
      for (int i = 0; i < w->strips; i++) {
        strip *t = &w->strip[i];
        const float *p = w->s + t->line * LDS + (key - block), *factor = key == from ? t->factor : NULL;
        const void *values = a->narrow ? w->widened : rf_at(here, dtype, i / each * (int64_t)a->dim);
        if (i % each == 0 && a->narrow) widen_rows(w, a, c, at, count, kv0 + i / each);
        if (direct) {
          context_rows(t->height, p, LDS, values, dtype, ld, count, i % each == 0 && !a->narrow ? next - here : 0, t->acc, a->width, factor);
        } else {
          if (i % each == 0) pack_rows(values, dtype, ld, count, count, a->dim, w->values, PANEL * PANEL);
          context(t->height, p, LDS, w->values, PANEL * PANEL, count, t->acc, a->width, factor);
        }
      }
    }
  }
  walk_write(w, a, call->out[0], NULL);
}

/* Pieces: runs of rows that continue each other in one slot, cut so that all query heads of a group fit in one walk. */
static int64_t cut_pieces(const int32_t *slots, const int32_t *positions, int64_t rows, int64_t most, int32_t *start) {
  int64_t pieces = 0;
  for (int64_t r = 0; r < rows; r++) {
    bool goes_on = r > 0 && slots[r] == slots[r - 1] && slots[r] >= 0 && positions[r] == positions[r - 1] + 1 && r - start[pieces - 1] < most;
    if (!goes_on) start[pieces++] = (int32_t)r;
  }
  start[pieces] = (int32_t)rows;
  return pieces;
}

static void attention_kv_run(const rf_call *call) {
  rf_attention a = rf_attention_of(call->graph, call->op);
  const int32_t *slots = call->in[3], *positions = call->in[4];
  int64_t rows = call->run && call->run->rows > 0 && call->run->rows < a.rows ? call->run->rows : a.rows;
  int64_t floats = (int64_t)rf_attention_cached_floats(&a);
  kv_cache cache = cache_of(call, &a);
  int32_t *start = call->workspace;
  float *memory = (float *)call->workspace + rf_round_up(a.rows + 1, RF_LANES);
  int heads = a.group < RF_ATTENTION_DECODE ? a.group : RF_ATTENTION_DECODE; /* query heads of a kv head, and kv heads, that a task takes */
  int64_t pieces = cut_pieces(slots, positions, rows, rf_max64(1, RF_ATTENTION_QUERIES / heads), start);
  int64_t enough = (call->threads + pieces - 1) / pieces; /* tasks a piece must be cut into for every thread to have one */
  int64_t kv_most = rf_max64(1, RF_ATTENTION_DECODE / heads), kv_parts = rf_max64((a.kv_heads + kv_most - 1) / kv_most, rf_min64(enough, a.kv_heads));
  if (kv_parts < enough) heads = (int)rf_max64(1, heads * kv_parts / enough);
  int64_t parts = (a.group + heads - 1) / heads;
#pragma omp parallel num_threads(call->threads)
  {
    RF_STAMP_BUSY;
    walk w = walk_at(&a, memory + floats * omp_get_thread_num(), BLOCK, RF_ATTENTION_SCORES);
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < rows; r++) {
      if (slots[r] < 0) {
        memset((char *)call->out[0] + r * a.heads * a.dim * rf_dtype_bytes(a.dtype), 0, (size_t)(a.heads * a.dim * rf_dtype_bytes(a.dtype)));
        continue;
      }
      for (int which = 0; which < 2; which++) {
        int64_t at = r * a.ld + ((int64_t)a.heads + (int64_t)which * a.kv_heads) * a.dim;
        cache_write(&w, &a, &cache, call->in[0], at, cache_row(&cache, slots[r], which, positions[r]));
      }
    }
    RF_STAMP_BARRIER;
#pragma omp for schedule(dynamic) nowait
    for (int64_t task = 0; task < pieces * kv_parts * parts; task++) {
      int64_t piece = task / parts / kv_parts, part = task / parts % kv_parts, first = start[piece], count = start[piece + 1] - first,
              slot = slots[first];
      int kv0 = (int)(a.kv_heads * part / kv_parts), kv1 = (int)(a.kv_heads * (part + 1) / kv_parts);
      int g0 = (int)(task % parts) * heads, g1 = g0 + heads < a.group ? g0 + heads : a.group;
      if (slot < 0) continue;
      if (count == 1) {
        decode_row(&w, &a, call, &cache, first, slot, positions[first], kv0, kv1, g0, g1);
        continue;
      }
      for (int kv_head = kv0; kv_head < kv1; kv_head++) {
        w.strips = 0;
        for (int g = g0; g < g1; g++) walk_add(&w, &a, first, count, first - positions[first], kv_head * a.group + g);
        walk_pack_queries(&w, &a, call->in[0]);
        walk_keys(&w, &a, &(key_source){.cache = &cache, .slot = slot, .kv_head = kv_head});
        walk_write(&w, &a, call->out[0], NULL);
      }
    }
  }
}

#endif
