/* attention_pages.h - keys and values in the pages of a cache: finds their addresses, writes rows,
 * and packs keys and values. Compiled once per ISA. */
#ifndef RF_ATTENTION_PAGES_H
#define RF_ATTENTION_PAGES_H

#include "backend/cpu/attention_forward.h"
#include "graph/kv.h"

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

/* Address of the scale of row `row` of one head of an i8 cache. The scale of the next row is
 * c->heads floats later. */
static const float *scale_at(const kv_cache *c, int64_t row, int64_t head) {
  return c->scale ? c->scale + row * c->heads + head : NULL;
}

/* Converts `count` rows of one head of an i8 cache to f32 (count, dim). */
static const void *widen_rows(pass *w, const rf_attention *a, const kv_cache *c, int64_t row, int64_t count,
                              int64_t head) {
  for (int64_t r = 0; r < count; r++) {
    const int8_t *q = (const int8_t *)cache_at(c, row + r, head * a->dim);
    float scale = *scale_at(c, row + r, head), *to = w->widened + r * a->dim;
    int64_t d = 0;
    for (; d + RF_LANES <= a->dim; d += RF_LANES)
      rf_v16_store(to + d, rf_v16_mul(rf_v16_load_i8(q + d), rf_v16_set1(scale)));
    for (; d < a->dim; d++) to[d] = (float)q[d] * scale;
  }
  return w->widened;
}

/* Packs up to PANEL keys of one head into panels. The keys are adjacent rows of the cache. If
 * `ahead` is not NULL, prefetches as many bytes as the keys have, from `ahead` on. */
static void pack_cached_keys(pass *w, const rf_attention *a, const kv_cache *c, int64_t row, int64_t count,
                             int64_t head, float *panels, const char *ahead) {
  const char *at = cache_at(c, row, head * a->dim);
  if (!a->narrow) {
    pack_columns(at, c->dtype, c->width, count, a->dim, panels, ahead);
  } else if (a->dim % 64 == 0) {
    pack_narrow_columns((const int8_t *)at, c->width, scale_at(c, row, head), c->heads, count, a->dim, panels,
                        ahead);
  } else {
    pack_columns(widen_rows(w, a, c, row, count, head), RF_F32, a->dim, count, a->dim, panels, NULL);
    for (int64_t b = 0; ahead && b < count * a->dim; b += 64) __builtin_prefetch(ahead + b, 0, 2);
  }
}
/* Packs up to PANEL values of one head into panels of columns, `value_step` floats apart. */
static void pack_cached_values(pass *w, const rf_attention *a, const kv_cache *c, int64_t row, int64_t count,
                               int64_t head, float *panels, int64_t value_step) {
  if (a->narrow)
    pack_rows(widen_rows(w, a, c, row, count, head), RF_F32, a->dim, count, a->dim, panels, value_step);
  else pack_rows(cache_at(c, row, head * a->dim), c->dtype, c->width, count, a->dim, panels, value_step);
}

/* Packs keys and values [begin, end) of the block at `block`, page by page. `begin` is a multiple
 * of PANEL. */
static void pack_pages(pass *w, const rf_attention *a, const key_source *from, int64_t block, int64_t begin,
                       int64_t end, int64_t value_step) {
  const kv_cache *c = from->cache;
  for (int64_t at = begin, count; at < end; at += count) {
    count = rf_min64(rf_min64(end - at, left_in_page(c, at)), PANEL);
    int64_t key = cache_row(c, from->slot, 0, at), value = cache_row(c, from->slot, 1, at);
    pack_cached_keys(w, a, c, key, count, from->kv_head, w->columns + (at - block) * a->dim, NULL);
    pack_cached_values(w, a, c, value, count, from->kv_head, w->values + (at - block) * PANEL, value_step);
  }
}

#endif
