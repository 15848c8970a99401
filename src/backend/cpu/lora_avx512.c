/* lora_avx512.c - the products of lora.h. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/lora.h"
#include "backend/cpu/simd.h"

enum { ROWS = 8, VECTORS = 2, COLUMNS = VECTORS * RF_LANES, SIDE = 16, DEEP = 64, STRIP = 512 };
/* Numbers of rows and columns of y that a thread takes at once. */
enum { GROUP = 64, TAKEN = 128 };

RF_INLINE rf_v16 get_n(const void *p, rf_dtype dtype, int64_t i, int n) {
  return n == RF_LANES ? rf_v16_get(p, dtype, i) : rf_v16_get_n(p, dtype, i, n);
}
RF_INLINE void put_n(void *p, rf_dtype dtype, int64_t i, rf_v16 x, int n) {
  if (n == RF_LANES) rf_v16_put(p, dtype, i, x);
  else rf_v16_put_n(p, dtype, i, x, n);
}
static int least(int64_t a, int64_t b) { return (int)(a < b ? a : b); }

/* Computes `rows` rows by `left` columns. `left` is COLUMNS, or less at the right edge. `at` is the
 * first element in u and y. */
RF_INLINE void forward_block(const rf_lora_sum *sum, int rows, int left, rf_v16 scale, const float *h,
                             const float *b, int64_t at) {
  const rf_lora_part *p = &sum->part;
  rf_v16 acc[ROWS][VECTORS];
  int n[VECTORS];
  for (int v = 0; v < VECTORS; v++)
    n[v] = left >= (v + 1) * RF_LANES ? RF_LANES : left > v * RF_LANES ? left - v * RF_LANES : 0;
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < VECTORS; v++) acc[r][v] = rf_v16_zero();
  for (int64_t k = 0; k < p->rank; k++, b += p->joined) {
    rf_v16 column[VECTORS];
    for (int v = 0; v < VECTORS; v++)
      column[v] = rf_v16_mul(scale, n[v] == RF_LANES ? rf_v16_load(b + v * RF_LANES)
                                                     : rf_v16_load_n(b + v * RF_LANES, n[v]));
    for (int r = 0; r < rows; r++)
      for (int v = 0; v < VECTORS; v++)
        acc[r][v] = rf_v16_fma(rf_v16_set1(h[r * p->ranks + k]), column[v], acc[r][v]);
  }
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < VECTORS && n[v]; v++) {
      int64_t i = at + r * p->ld + v * RF_LANES;
      put_n(sum->y, p->dtype, i,
            rf_v16_add(get_n(sum->u, p->dtype, i, n[v]), rf_v16_round(acc[r][v], p->dtype)), n[v]);
    }
}

/* Computes up to GROUP rows from row i, by up to TAKEN columns from column c. All rows read a few
 * columns of b from L1, while the next columns are prefetched. */
static void forward_strip(const rf_lora_sum *sum, float scale, int64_t i, int64_t c) {
  const rf_lora_part *p = &sum->part;
  const int64_t last = i + least(p->rows - i, GROUP), end = c + least(p->columns - c, TAKEN);
  const rf_v16 by = rf_v16_set1(scale);
  for (; c < end; c += COLUMNS) {
    const float *b = sum->b + c;
    const int left = least(end - c, COLUMNS);
    for (int64_t k = 0; k < p->rank && c + 2 * COLUMNS <= p->columns; k++)
      for (int v = 0; v < VECTORS; v++) __builtin_prefetch(b + k * p->joined + COLUMNS + v * RF_LANES, 0, 3);
    int64_t r = i;
    for (; r + ROWS <= last && left == COLUMNS; r += ROWS)
      forward_block(sum, ROWS, COLUMNS, by, sum->h + r * p->ranks, b, r * p->ld + c);
    for (; r < last; r++) forward_block(sum, 1, left, by, sum->h + r * p->ranks, b, r * p->ld + c);
  }
}

void rf_lora_forward_avx512(const rf_lora_sum *sum, int count, float scale, int threads) {
  const int64_t groups = (sum->part.rows + GROUP - 1) / GROUP;
  int64_t strips[RF_LORA_PARTS], all = 0;
  for (int p = 0; p < count; p++) all += strips[p] = (sum[p].part.columns + TAKEN - 1) / TAKEN;
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t item = 0; item < groups * all; item++) {
      int64_t strip = item % all;
      int p = 0;
      while (strip >= strips[p]) strip -= strips[p++];
      forward_strip(&sum[p], scale, item / all * GROUP, strip * TAKEN);
    }
  }
}

/* Computes up to SIDE rows by SIDE ranks. Missing rows and ranks count as zeros. */
static void backward_h_block(const rf_lora_part *p, int64_t first, int rows, const void *dy,
                             const float *ranks16, void *dh, int64_t rank) {
  float x[SIDE][DEEP] = {{0}};
  rf_v16 acc[SIDE];
  for (int r = 0; r < SIDE; r++) acc[r] = rf_v16_zero();
  for (int64_t c = 0; c < p->columns; c += DEEP) {
    int deep = least(p->columns - c, DEEP);
    for (int r = 0; r < rows; r++)
      for (int k = 0; k < deep; k += RF_LANES) {
        int n = least(deep - k, RF_LANES);
        rf_v16_store(x[r] + k, get_n(dy, p->dtype, (first + r) * p->ld + c + k, n));
      }
    for (int k = 0; k < deep; k++) {
      rf_v16 ranks = rf_v16_load(ranks16 + (c + k) * RF_LANES);
      for (int r = 0; r < SIDE; r++) acc[r] = rf_v16_fma(rf_v16_set1(x[r][k]), ranks, acc[r]);
    }
  }
  for (int r = 0; r < rows; r++)
    put_n(dh, p->dtype, (first + r) * p->ranks + rank, acc[r], least(p->rank - rank, RF_LANES));
}

void rf_lora_backward_h_avx512(const rf_lora_part *p, const void *dy, const float *ranks16, void *dh) {
#pragma omp parallel num_threads(p->threads)
  {
    RF_STAMP_BUSY;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < p->rows; i += SIDE)
      for (int64_t rank = 0; rank < p->rank; rank += RF_LANES)
        backward_h_block(p, i, least(p->rows - i, SIDE), dy, ranks16 + rank * p->columns, dh, rank);
  }
}

RF_INLINE void backward_b_block(const rf_lora_part *p, int ranks, int n, int64_t rows, const void *dy,
                                const float *h, float *db, bool resume) {
  rf_v16 acc[SIDE];
  for (int r = 0; r < ranks; r++) acc[r] = resume ? rf_v16_load_n(db + r * p->joined, n) : rf_v16_zero();
  for (int64_t i = 0; i < rows; i++) {
    rf_v16 row = get_n(dy, p->dtype, i * p->ld, n);
    for (int r = 0; r < ranks; r++) acc[r] = rf_v16_fma(rf_v16_set1(h[i * p->ranks + r]), row, acc[r]);
  }
  for (int r = 0; r < ranks; r++) rf_v16_store_n(db + r * p->joined, acc[r], n);
}

/* Computes columns [c0, c1) of db. Sums over DEEP rows at a time, to read whole cache lines of
 * dy. */
static void backward_b_strip(const rf_lora_part *p, int64_t c0, int64_t c1, const void *dy, const float *h,
                             float *db, bool accumulate) {
  for (int64_t i = 0; i < p->rows; i += DEEP) {
    int64_t rows = least(p->rows - i, DEEP);
    for (int64_t c = c0; c < c1; c += RF_LANES)
      for (int64_t rank = 0; rank < p->rank; rank += SIDE) {
        int ranks = least(p->rank - rank, SIDE), n = least(c1 - c, RF_LANES);
        const void *from = rf_element(dy, p->dtype, i * p->ld + c);
        const float *by = h + i * p->ranks + rank;
        float *to = db + rank * p->joined + c;
        bool resume = accumulate || i > 0;
        if (ranks == SIDE && n == RF_LANES) backward_b_block(p, SIDE, RF_LANES, rows, from, by, to, resume);
        else if (ranks == SIDE / 2 && n == RF_LANES)
          backward_b_block(p, SIDE / 2, RF_LANES, rows, from, by, to, resume);
        else
          for (int r = 0; r < ranks; r++)
            backward_b_block(p, 1, n, rows, from, by + r, to + r * p->joined, resume);
      }
  }
}

void rf_lora_backward_b_avx512(const rf_lora_part *p, const void *dy, const float *h, float *db,
                               bool accumulate) {
#pragma omp parallel num_threads(p->threads)
  {
    RF_STAMP_BUSY;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t c = 0; c < p->columns; c += STRIP)
      backward_b_strip(p, c, c + least(p->columns - c, STRIP), dy, h, db, accumulate);
  }
}
