/* attention_tile.h - register tiles and packing of the attention kernels. This file is compiled
 * once per ISA, with the compiler flags of the including file. A tile holds MR rows by RF_LANES *
 * NV columns of running f32 sums in registers. Each sum is one chain of fused multiply-adds in
 * ascending k, so results do not depend on MR and NV. */
#ifndef RF_ATTENTION_TILE_H
#define RF_ATTENTION_TILE_H

#include "backend/cpu/attention_lanes.h"

/* MR is the number of rows of a tile, and NV the number of vectors in a row. The registers hold all
 * sums of a tile, the vectors of b for one step of k, and one broadcast value of a. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
enum { MR = 12, NV = 2 }; /* 24 + 2 + 1 of the 32 zmm registers */
#define RF_EACH_HEIGHT(X) X(12) X(8) X(4) X(2) X(1)
#elif defined(__AVX2__) && defined(__FMA__)
enum { MR = 6, NV = 1 }; /* 12 + 2 + 1 of the 16 ymm registers */
#define RF_EACH_HEIGHT(X) X(6) X(4) X(2) X(1)
#else
enum { MR = 4, NV = 1 };
#define RF_EACH_HEIGHT(X) X(4) X(2) X(1)
#endif
enum { PANEL = RF_ATTENTION_PANEL };

RF_INLINE int tile_height(int rows) {
  int height = MR;
#define RF_FIT(h) \
  if (rows <= h) height = h;
  RF_EACH_HEIGHT(RF_FIT) /* if (rows <= 12) height = 12; if (rows <= 8) height = 8; ... */
#undef RF_FIT
  return height;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* The operands of the chains of a tile: a[r row_step + k k_step] and b[k ldb + column], for `steps`
 * steps of k. If b is RF_I8, its row k is multiplied by scale[k scale_step]. If `ahead` is not
 * NULL, the tile prefetches as many bytes as b has, from `ahead` on, in rows that are ahead_step
 * apart. */
typedef struct chain {
  const float *a;
  int64_t row_step, k_step;
  const void *b;
  rf_dtype dtype; /* type of b */
  int64_t ldb, steps;
  const char *ahead;
  int64_t ahead_step;
  const float *scale;
  int64_t scale_step;
} chain;
RF_INLINE rf_v16 chain_column(const chain *x, int64_t k, int v) {
  int64_t at = k * x->ldb + RF_LANES * v;
  if (x->dtype != RF_I8) return rf_v16_get(x->b, x->dtype, at);
  return rf_v16_mul(rf_v16_load_i8((const int8_t *)x->b + at), rf_v16_set1(x->scale[k * x->scale_step]));
}

/* Continues the chains acc[r][v]. m and nv are constants at every call. With the loop unrolled by
 * four, the forward pass reaches 55 % of peak FMA speed at head size 64 and 69 % at head size 128
 * (Granite Rapids). The loop reaches 52 % and 65 % without unrolling, and 54 % and 69 % unrolled by
 * eight. */
RF_INLINE void tile_chain(int m, int nv, const chain x, rf_v16 acc[MR][2]) {
#pragma GCC unroll 4
  for (int64_t k = 0; k < x.steps; k++) {
    if (x.ahead) {
      for (int v = 0; v < nv; v++)
        __builtin_prefetch(rf_at(x.ahead, x.dtype, k * x.ahead_step + v * RF_LANES), 0, 2);
    }
    rf_v16 column[2];
    for (int v = 0; v < nv; v++) column[v] = chain_column(&x, k, v);
#pragma GCC unroll 12
    for (int r = 0; r < m; r++) {
      rf_v16 a = rf_v16_set1(x.a[r * x.row_step + k * x.k_step]);
      for (int v = 0; v < nv; v++) acc[r][v] = rf_v16_fma(a, column[v], acc[r][v]);
    }
  }
}

/* Computes chains into c[r][column]. A chain starts from zero. If `resume`, the sum starts from
 * c[r][column]. If `factor` is not NULL, this start value is multiplied by factor[r]. */
RF_INLINE void tile(int m, int nv, chain x, bool resume, float *c, int64_t ldc, const float *factor) {
  rf_v16 acc[MR][2];
#pragma GCC unroll 12
  for (int r = 0; r < m; r++) {
    for (int v = 0; v < nv; v++) {
      acc[r][v] = resume ? rf_v16_load(c + r * ldc + RF_LANES * v) : rf_v16_zero();
      if (factor) acc[r][v] = rf_v16_mul(acc[r][v], rf_v16_set1(factor[r]));
    }
  }
  tile_chain(m, nv, x, acc);
#pragma GCC unroll 12
  for (int r = 0; r < m; r++) {
    for (int v = 0; v < nv; v++) rf_v16_store(c + r * ldc + RF_LANES * v, acc[r][v]);
  }
}

RF_INLINE chain keys_chain(const float *strip, const float *panel, int64_t dim) {
  return (chain){
      .a = strip, .row_step = 1, .k_step = MR, .b = panel, .dtype = RF_F32, .ldb = PANEL, .steps = dim};
}

/* Sets s[r lds + key] to the product of row r of a strip and a key, for keys [first, last), which
 * are multiples of 16. The strip is packed as [d][MR], and `panels` as [panel][d][32]. */
#define RF_TILE_PRODUCTS(h) \
  static void products_##h(const float *strip, const float *panels, int64_t dim, int64_t first, \
                           int64_t last, float *s, int64_t lds) { \
    for (int64_t key = first; key < last;) { \
      const float *b = panels + key / PANEL * PANEL * dim + key % PANEL; \
      if (NV == 2 && key % PANEL == 0 && last - key >= PANEL) { \
        tile(h, NV, keys_chain(strip, b, dim), false, s + key, lds, NULL); \
        key += PANEL; \
      } else { \
        tile(h, 1, keys_chain(strip, b, dim), false, s + key, lds, NULL); \
        key += RF_LANES; \
      } \
    } \
  }
/* Expands to static void products_12(...) { ... tile(12, ...) ... }, then 8, 4, 2 and 1. */
RF_EACH_HEIGHT(RF_TILE_PRODUCTS)
#undef RF_TILE_PRODUCTS

RF_INLINE void products(int height, const float *strip, const float *panels, int64_t dim, int64_t first,
                        int64_t last, float *s, int64_t lds) {
  switch (height) {
#define RF_CASE(h) \
  case h: products_##h(strip, panels, dim, first, last, s, lds); return;
    RF_EACH_HEIGHT(RF_CASE) /* case 12: products_12(...); return; ... */
#undef RF_CASE
  }
}

/* Continues the context of a strip: multiplies acc[r][column] by factor[r], then adds p[r][key] *
 * v[key][column] for `keys` ascending keys and `columns` columns. `factor` may be NULL. */
typedef struct weighted {
  const float *p;
  int64_t ldp;
  const void *v;
  /* elements between two panels of v in context(), or between two rows of v in context_rows() */
  int64_t step;
  int64_t keys;
  float *acc;
  int64_t width, columns; /* number of floats in a row of acc, and number of columns to continue */
  const float *factor;
  rf_dtype dtype; /* type of v in context_rows; panels are f32 */
  /* context_rows prefetches as many bytes as v has, from `ahead` on. The rows are ahead_step
   * elements apart; 0: the bytes are contiguous. NULL: no prefetch */
  const char *ahead;
  int64_t ahead_step;
  const float *scale; /* of row k of an RF_I8 v: scale[k scale_step] */
  int64_t scale_step;
} weighted;
RF_INLINE void context_columns(int h, bool panels, rf_dtype dtype, const weighted *w) {
  const int64_t step = w->step, keys = w->keys, width = w->width;
  const char *ahead = panels ? NULL : w->ahead;
  const float *factor = w->factor;
  float *acc = w->acc;
  chain x = {w->p, w->ldp, 1, w->v, dtype, panels ? PANEL : step, keys, NULL, 0, w->scale, w->scale_step};
  for (int64_t column = 0; column < w->columns;) {
    x.b = rf_at(w->v, dtype, panels ? column / PANEL * step + column % PANEL : column);
    int nv = NV == 2 && w->columns - column >= PANEL ? 2 : 1;
    x.ahead = ahead;
    x.ahead_step = w->ahead_step ? w->ahead_step : nv * RF_LANES;
    if (nv == 2) tile(h, 2, x, true, acc + column, width, factor);
    else tile(h, 1, x, true, acc + column, width, factor);
    column += nv * RF_LANES;
    if (ahead) ahead = rf_at(ahead, dtype, (w->ahead_step ? 1 : keys) * nv * RF_LANES);
  }
}
#define RF_TILE_CONTEXT(h) \
  static void context_##h(const weighted *w) { context_columns(h, true, RF_F32, w); } \
  static void context_rows_##h(const weighted *w) { \
    if (w->dtype == RF_BF16) context_columns(h, false, RF_BF16, w); \
    else if (w->dtype == RF_I8) context_columns(h, false, RF_I8, w); \
    else context_columns(h, false, RF_F32, w); \
  }
/* Expands to context_12(w), context_rows_12(w), then 8, 4, 2 and 1. */
RF_EACH_HEIGHT(RF_TILE_CONTEXT)
#undef RF_TILE_CONTEXT

/* v is [panel][key][32]. The last panel has 16 columns if width is an odd multiple of 16. */
RF_INLINE void context(int height, const weighted *w) {
  switch (height) {
#define RF_CASE(h) \
  case h: context_##h(w); return;
    RF_EACH_HEIGHT(RF_CASE) /* case 12: context_12(w); return; ... */
#undef RF_CASE
  }
}
/* Does the same as context() with unpacked rows of v. The number of columns is a multiple of 16. */
RF_INLINE void context_rows(int height, const weighted *w) {
  switch (height) {
#define RF_CASE(h) \
  case h: context_rows_##h(w); return;
    RF_EACH_HEIGHT(RF_CASE) /* case 12: context_rows_12(w); return; ... */
#undef RF_CASE
  }
}

/* ---- packing --------------------------------------------------------------------------------- */

/* to[d ld + r] = row[r][d] for d < dim and r < width, with zeros for r >= rows. If `ahead` is not
 * NULL, prefetches as many bytes as sixteen rows have, from `ahead` on. */
RF_INLINE void pack_transposed(const void *const row[RF_LANES], rf_dtype dtype, int rows, int64_t dim,
                               float *to, int64_t ld, int width, const char *ahead) {
  int64_t d = 0;
  if (rows == RF_LANES && width == RF_LANES) {
    for (; d + RF_LANES <= dim; d += RF_LANES) {
      rf_v16 x[RF_LANES];
#pragma GCC unroll 16
      for (int r = 0; r < RF_LANES; r++) {
        if (ahead) __builtin_prefetch(rf_at(ahead, dtype, (d + r) * RF_LANES), 0, 2);
        x[r] = rf_v16_get(row[r], dtype, d);
      }
      rf_v16_transpose(x);
#pragma GCC unroll 16
      for (int i = 0; i < RF_LANES; i++) rf_v16_store(to + (d + i) * ld, x[i]);
    }
  }
  for (; d < dim; d += RF_LANES) {
    int part = dim - d < RF_LANES ? (int)(dim - d) : RF_LANES;
    rf_v16 x[RF_LANES];
#pragma GCC unroll 16
    for (int r = 0; r < RF_LANES; r++) {
      if (ahead) __builtin_prefetch(rf_at(ahead, dtype, (d + r) * RF_LANES), 0, 2);
      if (r >= rows) x[r] = rf_v16_zero();
      else x[r] = part == RF_LANES ? rf_v16_get(row[r], dtype, d) : rf_v16_get_n(row[r], dtype, d, part);
    }
    if (rows > 0) rf_v16_transpose(x);
#pragma GCC unroll 16
    for (int i = 0; i < RF_LANES; i++)
      if (i < part) rf_v16_store_n(to + (d + i) * ld, x[i], width);
  }
}

/* Packs rows of `dim` elements, `ld` apart, into [panel][d][32]. Zeros fill the last panel. */
RF_INLINE void pack_columns_of(const void *from, rf_dtype dtype, int64_t ld, int64_t keys, int64_t dim,
                               float *panels, const char *ahead) {
  for (int64_t key = 0; key < (keys + PANEL - 1) / PANEL * PANEL; key += RF_LANES) {
    const void *row[RF_LANES];
    int rows = keys - key < RF_LANES ? (int)(keys - key > 0 ? keys - key : 0) : RF_LANES;
    for (int r = 0; r < RF_LANES; r++) row[r] = rf_at(from, dtype, (key + (r < rows ? r : 0)) * ld);
    pack_transposed(row, dtype, rows, dim, panels + key / PANEL * PANEL * dim + key % PANEL, PANEL, RF_LANES,
                    ahead && rows ? rf_at(ahead, dtype, key * dim) : NULL);
  }
}
/* Packs rows of RF_I8 whose dim is a multiple of 64. Row k has the scale scale[k scale_step].
 * Transposing words of four values needs a quarter of the shuffles. */
static void pack_narrow_columns(const int8_t *from, int64_t ld, const float *scale, int64_t scale_step,
                                int64_t keys, int64_t dim, float *panels, const char *ahead) {
  enum { WORD = 4 };
  for (int64_t key = 0; key < rf_round_up(keys, PANEL); key += RF_LANES) {
    float scales[RF_LANES] = {0}; /* keys after the last key have scale 0, so these keys become zeros */
    int64_t rows = rf_max64(0, rf_min64(RF_LANES, keys - key));
    for (int64_t r = 0; r < rows; r++) scales[r] = scale[(key + r) * scale_step];
    rf_v16 by = rf_v16_load(scales);
    float *to = panels + key / PANEL * PANEL * dim + key % PANEL;
    for (int64_t d = 0; d < dim; d += WORD * RF_LANES) {
      rf_v16 x[RF_LANES];
#pragma GCC unroll 16
      for (int64_t r = 0; r < RF_LANES; r++) {
        if (ahead) __builtin_prefetch(ahead + key * dim + d * RF_LANES + r * 64, 0, 2);
        x[r] = rf_v16_load((const float *)(const void *)(from + (r < rows ? key + r : 0) * ld + d));
      }
      rf_v16_transpose(x);
#pragma GCC unroll 16
      for (int i = 0; i < RF_LANES; i++) {
#pragma GCC unroll 4
        for (int b = 0; b < WORD; b++)
          rf_v16_store(to + (d + i * WORD + b) * PANEL, rf_v16_mul(rf_v16_byte(x[i], b), by));
      }
    }
  }
}
static void pack_columns(const void *from, rf_dtype dtype, int64_t ld, int64_t keys, int64_t dim,
                         float *panels, const char *ahead) {
  if (dtype == RF_BF16) pack_columns_of(from, RF_BF16, ld, keys, dim, panels, ahead);
  else pack_columns_of(from, RF_F32, ld, keys, dim, panels, ahead);
}

/* Packs `keys` rows into panels of 32 columns, [panel][key][32], `panel_step` floats apart. Zeros
 * fill the last panel. */
static void pack_rows(const void *from, rf_dtype dtype, int64_t ld, int64_t keys, int64_t dim, float *panels,
                      int64_t panel_step) {
  for (int64_t key = 0; key < keys; key++) {
    for (int64_t d = 0; d < (dim + PANEL - 1) / PANEL * PANEL; d += RF_LANES) {
      int part = dim - d < RF_LANES ? (int)(dim - d > 0 ? dim - d : 0) : RF_LANES;
      rf_v16 x = rf_v16_zero();
      if (part == RF_LANES) x = rf_v16_get(from, dtype, key * ld + d);
      else if (part > 0) x = rf_v16_get_n(from, dtype, key * ld + d, part);
      rf_v16_store(panels + d / PANEL * panel_step + key * PANEL + d % PANEL, x);
    }
  }
}

#endif
