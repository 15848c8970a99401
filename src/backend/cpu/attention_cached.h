/* attention_cached.h - attention of a walk's rows over a cache of keys and values; the body behind every ISA.
 *
 * Rows that continue each other in one slot (prefill) walk together, a block of one kv head's keys packed for all of them, as over a batch. A
 * single row (decode) takes all kv heads at once, 32 keys at a time: its cost is reading the cache, and the keys of one head lie in pieces
 * between those of the others. Either way the arithmetic is that of attention.h, so the bits are those of the batch. */
#ifndef RF_ATTENTION_CACHED_H
#define RF_ATTENTION_CACHED_H

#include "backend/cpu/attention_forward.h"

/* cache (slots, 2, S, K H): element of (slot, 0: key or 1: value, position, kv head). */
static int64_t cache_at(const rf_attention *a, int64_t slot, int which, int64_t position, int kv_head) {
  return (((slot * 2 + which) * a->longest + position) * a->kv_heads + kv_head) * a->dim;
}

static void copy_row(const void *from, rf_dtype dtype, int64_t at, void *to, rf_dtype to_dtype, int64_t to_at, int64_t count) {
  for (int64_t d = 0; d < count; d += RF_LANES) {
    if (count - d >= RF_LANES) rf_v16_put(to, to_dtype, to_at + d, rf_v16_get(from, dtype, at + d));
    else rf_v16_put_n(to, to_dtype, to_at + d, rf_v16_get_n(from, dtype, at + d, (int)(count - d)), (int)(count - d));
  }
}

/* One row at `position`: query heads [g0, g1) of each kv head in [kv0, kv1). */
static void decode_row(walk *w, const rf_attention *a, const rf_call *call, int64_t row, int64_t slot, int64_t position, int kv0, int kv1, int g0,
                       int g1) {
  rf_dtype dtype = rf_out(call, 1)->dtype;
  int64_t ld = (int64_t)a->kv_heads * a->dim, low = rf_max64(0, position + 1 - a->window), high = position + 1;
  const void *k = rf_at(call->out[1], dtype, cache_at(a, slot, 0, 0, kv0)), *v = rf_at(call->out[1], dtype, cache_at(a, slot, 1, 0, kv0));
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
      const char *here = rf_at(k, dtype, key * ld), *next = key + PANEL < to ? rf_at(k, dtype, (key + PANEL) * ld) : rf_at(v, dtype, from * ld);
      for (int i = 0; i < w->strips; i++) {
        strip *t = &w->strip[i];
        const void *rows = rf_at(here, dtype, i / each * (int64_t)a->dim);
        if (i % each == 0) pack_columns(rows, dtype, ld, rf_min64(PANEL, to - key), a->dim, w->columns, next - here);
        products(t->height, t->q, w->columns, a->dim, first, last, w->s + t->line * LDS + (key - block), LDS);
      }
    }
    for (int i = 0; i < w->strips; i++) strip_softmax(a, &w->strip[i], w->s + w->strip[i].line * LDS, block, v0, v1, w->strip[i].factor);
    for (int64_t key = from; key < to; key += PANEL) {
      int64_t count = rf_min64(PANEL, to - key);
      const char *here = rf_at(v, dtype, key * ld), *next = key + PANEL < to ? rf_at(v, dtype, (key + PANEL) * ld) : rf_at(k, dtype, to * ld);
      for (int i = 0; i < w->strips; i++) {
        strip *t = &w->strip[i];
        const void *values = rf_at(here, dtype, i / each * (int64_t)a->dim);
        const float *p = w->s + t->line * LDS + (key - block), *factor = key == from ? t->factor : NULL;
        if (direct) {
          context_rows(t->height, p, LDS, values, dtype, ld, count, i % each == 0 ? next - here : 0, t->acc, a->width, factor);
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
  const int32_t *slots = call->in[2], *positions = call->in[3];
  int64_t rows = call->run && call->run->rows > 0 && call->run->rows < a.rows ? call->run->rows : a.rows, width = (int64_t)a.kv_heads * a.dim;
  int64_t floats = (int64_t)rf_attention_cached_floats(&a);
  rf_dtype cache_dtype = rf_out(call, 1)->dtype;
  void *cache = call->out[1];
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
    walk w = walk_at(&a, memory + floats * omp_get_thread_num(), BLOCK, RF_ATTENTION_SCORES);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
      if (slots[r] < 0) {
        memset((char *)call->out[0] + r * a.heads * a.dim * rf_dtype_bytes(a.dtype), 0, (size_t)(a.heads * a.dim * rf_dtype_bytes(a.dtype)));
        continue;
      }
      for (int which = 0; which < 2; which++) {
        int64_t at = r * a.ld + ((int64_t)a.heads + (int64_t)which * a.kv_heads) * a.dim;
        copy_row(call->in[0], a.dtype, at, cache, cache_dtype, cache_at(&a, slots[r], which, positions[r], 0), width);
      }
    }
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < pieces * kv_parts * parts; task++) {
      int64_t piece = task / parts / kv_parts, part = task / parts % kv_parts, first = start[piece], count = start[piece + 1] - first,
              slot = slots[first];
      int kv0 = (int)(a.kv_heads * part / kv_parts), kv1 = (int)(a.kv_heads * (part + 1) / kv_parts);
      int g0 = (int)(task % parts) * heads, g1 = g0 + heads < a.group ? g0 + heads : a.group;
      if (slot < 0) continue;
      if (count == 1) {
        decode_row(&w, &a, call, first, slot, positions[first], kv0, kv1, g0, g1);
        continue;
      }
      for (int kv_head = kv0; kv_head < kv1; kv_head++) {
        w.strips = 0;
        for (int g = g0; g < g1; g++) walk_add(&w, &a, first, count, first - positions[first], kv_head * a.group + g);
        walk_pack_queries(&w, &a, call->in[0]);
        key_source from = {.dtype = cache_dtype, .ld = width};
        from.k = rf_at(cache, cache_dtype, cache_at(&a, slot, 0, 0, kv_head));
        from.v = rf_at(cache, cache_dtype, cache_at(&a, slot, 1, 0, kv_head));
        walk_keys(&w, &a, &from);
        walk_write(&w, &a, call->out[0], NULL);
      }
    }
  }
}

#endif
