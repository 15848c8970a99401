/* gemm_kernels.h - packing, epilogues and the few-row product, written once over simd.h and compiled for each ISA by gemm_*.c,
 * which add the micro-kernel. Included there only. */
#include "backend/cpu/gemm.h"
#include "backend/cpu/simd.h"

/* Eight dwords, and 8x8 transposes of them: two operations a vector on every x86 since AVX. */
typedef uint32_t v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t h8 __attribute__((vector_size(16), aligned(2), may_alias));
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

RF_INLINE void transpose_8x8(v8 r[8]) {
  v8 a[8], b[8];
  for (int i = 0; i < 4; i++) {
    a[2 * i] = SHUFFLE(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    a[2 * i + 1] = SHUFFLE(r[2 * i], r[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = SHUFFLE(a[i], a[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    b[i + 1] = SHUFFLE(a[i], a[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    b[i + 2] = SHUFFLE(a[i + 1], a[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    b[i + 3] = SHUFFLE(a[i + 1], a[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 4; i++) {
    r[i] = SHUFFLE(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = SHUFFLE(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}
/* Eight elements as f32 bits. (Through a pointer: returning a v8 has no ABI where AVX is off.) */
RF_INLINE void eight(v8 *to, const void *p, rf_dtype dtype, int64_t at) {
  if (dtype == RF_BF16) *to = __builtin_convertvector(*(const h8 *)((const rf_bf16 *)p + at), v8) << 16;
  else *to = *(const v8 *)((const float *)p + at);
}
RF_INLINE float element(const void *p, rf_dtype dtype, int64_t at) {
  return dtype == RF_BF16 ? rf_bf16_to_f32(((const rf_bf16 *)p)[at]) : ((const float *)p)[at];
}

/* ---- packing A: [k][rows] ------------------------------------------------------------------------------------------ */

/* Rows contiguous in k: blocks of 8 steps, transposed in registers. A store writes whole vectors and the next step's store overwrites
 * what was too much, so steps go up; the last ones, whose surplus would leave the strip, go one by one. */
RF_INLINE void pack_a_rows(const void *a, rf_dtype dtype, int64_t a_row, int rows, int64_t kc, float *to) {
  int64_t safe = kc - 16; /* a surplus of at most 15 floats stays below step k+16 */
  int64_t k = 0;
  if (rows > 8) {
    for (; k + 8 <= safe; k += 8) {
      v8 r[8], q[8];
      for (int i = 0; i < 8; i++) eight(&r[i], a, dtype, i * a_row + k);
      for (int i = 0; i < 8; i++) {
        q[i] = (v8){0};
        if (i + 8 < rows) eight(&q[i], a, dtype, (i + 8) * a_row + k);
      }
      transpose_8x8(r);
      transpose_8x8(q);
      for (int i = 0; i < 8; i++) {
        *(v8 *)(to + (k + i) * rows) = r[i];
        *(v8 *)(to + (k + i) * rows + 8) = q[i];
      }
    }
  } else {
    for (; k + 8 <= safe; k += 8) {
      v8 r[8];
      for (int i = 0; i < 8; i++) {
        r[i] = (v8){0};
        if (i < rows) eight(&r[i], a, dtype, i * a_row + k);
      }
      transpose_8x8(r);
      for (int i = 0; i < 8; i++) *(v8 *)(to + (k + i) * rows) = r[i];
    }
  }
  for (; k < kc; k++) {
    for (int i = 0; i < rows; i++) to[k * rows + i] = element(a, dtype, i * a_row + k);
  }
}
/* Steps contiguous in rows (a transposed operand): plain copies of whole vectors, the last steps one by one as above; there also the
 * reads stay inside. */
RF_INLINE void pack_a_steps(const void *a, rf_dtype dtype, int64_t a_step, int rows, int64_t kc, float *to) {
  int64_t k = 0;
  if (a_step >= RF_LANES) {
    for (; k < kc - 16; k++) rf_v16_store(to + k * rows, rf_v16_get(a, dtype, k * a_step));
  }
  for (; k < kc; k++) {
    for (int i = 0; i < rows; i++) to[k * rows + i] = element(a, dtype, k * a_step + i);
  }
}
static void pack_a(const rf_gemm *g, int64_t i0, int rows, int64_t k0, int64_t kc, float *to) {
  int64_t at = i0 * g->a_row + k0 * g->a_step;
  bool half = g->a_dtype == RF_BF16;
  const void *a = half ? (const void *)((const rf_bf16 *)g->a + at) : (const void *)((const float *)g->a + at);
  if (g->a_step == 1 && half) pack_a_rows(a, RF_BF16, g->a_row, rows, kc, to);
  else if (g->a_step == 1) pack_a_rows(a, RF_F32, g->a_row, rows, kc, to);
  else if (g->a_row == 1 && half) pack_a_steps(a, RF_BF16, g->a_step, rows, kc, to);
  else if (g->a_row == 1) pack_a_steps(a, RF_F32, g->a_step, rows, kc, to);
  else {
    for (int64_t k = 0; k < kc; k++) {
      for (int i = 0; i < rows; i++) to[k * rows + i] = element(a, g->a_dtype, i * g->a_row + k * g->a_step);
    }
  }
}

/* ---- packing B: [k][NR], zero filled ------------------------------------------------------------------------------- */

RF_INLINE void pack_b_steps(const void *b, rf_dtype dtype, int64_t b_step, int cols, int64_t kc, float *to) {
  if (cols == NR) {
    for (int64_t k = 0; k < kc; k++) {
      for (int j = 0; j < NR; j += RF_LANES) rf_v16_store(to + k * NR + j, rf_v16_get(b, dtype, k * b_step + j));
    }
    return;
  }
  for (int64_t k = 0; k < kc; k++) {
    for (int j = 0; j < NR; j++) to[k * NR + j] = j < cols ? element(b, dtype, k * b_step + j) : 0.0f;
  }
}
/* Columns contiguous in k (a transposed weight). 8 columns at a time for 64 steps: more at a power-of-two stride would not fit the
 * ways of one L1 set. */
RF_INLINE void pack_b_columns(const void *b, rf_dtype dtype, int64_t b_col, int cols, int64_t kc, float *to) {
  for (int64_t k0 = 0; k0 < kc; k0 += 64) {
    int64_t k1 = k0 + 64 < kc ? k0 + 64 : kc;
    for (int j = 0; j < NR; j += 8) {
      int64_t k = k0;
      if (j + 8 <= cols) {
        for (; k + 8 <= k1; k += 8) {
          v8 r[8];
          for (int i = 0; i < 8; i++) eight(&r[i], b, dtype, (j + i) * b_col + k);
          transpose_8x8(r);
          for (int i = 0; i < 8; i++) *(v8 *)(to + (k + i) * NR + j) = r[i];
        }
      }
      for (; k < k1; k++) {
        for (int i = j; i < j + 8; i++) to[k * NR + i] = i < cols ? element(b, dtype, i * b_col + k) : 0.0f;
      }
    }
  }
}
static void pack_b(const rf_gemm *g, int64_t j0, int cols, int64_t k0, int64_t kc, float *to, float *sum) {
  int64_t at = k0 * g->b_step + j0 * g->b_col;
  bool half = g->b_dtype == RF_BF16;
  const void *b = half ? (const void *)((const rf_bf16 *)g->b + at) : (const void *)((const float *)g->b + at);
  if (g->b_col == 1 && half) pack_b_steps(b, RF_BF16, g->b_step, cols, kc, to);
  else if (g->b_col == 1) pack_b_steps(b, RF_F32, g->b_step, cols, kc, to);
  else if (g->b_step == 1 && half) pack_b_columns(b, RF_BF16, g->b_col, cols, kc, to);
  else if (g->b_step == 1) pack_b_columns(b, RF_F32, g->b_col, cols, kc, to);
  else {
    for (int64_t k = 0; k < kc; k++) {
      for (int j = 0; j < NR; j++) to[k * NR + j] = j < cols ? element(b, g->b_dtype, k * g->b_step + j * g->b_col) : 0.0f;
    }
  }
  if (!sum) return;
  bool resume = k0 > 0 || g->column_sum_accumulate; /* blocks of k come in ascending order, so the chain goes on */
  for (int j = 0; j < cols; j += RF_LANES) {
    int lanes = cols - j < RF_LANES ? cols - j : RF_LANES;
    rf_v16 s = resume ? rf_v16_load_n(sum + j, lanes) : rf_v16_zero();
    for (int64_t k = 0; k < kc; k++) s = rf_v16_add(s, rf_v16_load(to + k * NR + j));
    rf_v16_store_n(sum + j, s, lanes);
  }
}

/* ---- into and out of a tile ---------------------------------------------------------------------------------------- */

static void begin_tile(const rf_gemm *g, float *tile, int64_t tile_ld, int64_t i0, int rows, int64_t j0, int cols) {
  for (int i = 0; i < rows; i++) {
    const float *u = (const float *)g->u + (i0 + i) * g->ld + j0;
    for (int j = 0; j < cols; j += RF_LANES) {
      rf_v16 x = cols - j >= RF_LANES ? rf_v16_load(u + j) : rf_v16_load_n(u + j, cols - j);
      rf_v16_store(tile + i * tile_ld + j, x);
    }
  }
}

/* Every cast of the graph is here: u is rounded once, and what follows works on the rounded value. */
RF_INLINE void finish_vector(const rf_gemm *g, rf_v16 x, int64_t i, int64_t j, int lanes, bool whole) {
  int64_t at = i * g->ld + j;
  if (g->bias) x = rf_v16_add(x, whole ? rf_v16_get(g->bias, g->bias_dtype, j) : rf_v16_get_n(g->bias, g->bias_dtype, j, lanes));
  x = rf_v16_round(x, g->dtype);
  if (g->u) {
    if (whole) rf_v16_put(g->u, g->dtype, at, x);
    else rf_v16_put_n(g->u, g->dtype, at, x, lanes);
  }
  if (g->epilogue == RF_GEMM_PLAIN || !g->out) return;
  rf_v16 side = rf_v16_zero();
  if (g->epilogue != RF_GEMM_GELU) side = whole ? rf_v16_get(g->side, g->dtype, at) : rf_v16_get_n(g->side, g->dtype, at, lanes);
  if (g->epilogue == RF_GEMM_GELU) x = rf_v16_gelu_tanh(x);
  else if (g->epilogue == RF_GEMM_GELU_BWD) x = rf_v16_mul(x, rf_v16_gelu_tanh_grad(side));
  else x = rf_v16_add(side, rf_dropout_apply(&g->drop, x, g->first_token + i, j));
  if (whole) rf_v16_put(g->out, g->dtype, at, x);
  else rf_v16_put_n(g->out, g->dtype, at, x, lanes);
}
static void finish_tile(const rf_gemm *g, const float *tile, int64_t tile_ld, int64_t i0, int rows, int64_t j0, int cols) {
  for (int i = 0; i < rows; i++) {
    const float *row = tile + i * tile_ld;
    for (int j = 0; j < cols; j += RF_LANES) {
      if (cols - j >= RF_LANES) finish_vector(g, rf_v16_load(row + j), i0 + i, j0 + j, RF_LANES, true);
      else finish_vector(g, rf_v16_load_n(row + j, cols - j), i0 + i, j0 + j, cols - j, false);
    }
  }
}

/* ---- few rows: the weights are read once, as they are stored --------------------------------------------------------- */

/* (K,N) row-major. The sums of all columns of the chunk stay in scratch (L1 or L2) and take eight steps of k at a time, so memory is
 * read as eight long rows at once. */
enum { STREAM_STEPS = 8 };

RF_INLINE void stream_steps(const rf_gemm *g, rf_dtype b_dtype, int64_t j0, int cols, float *scratch) {
  int m = (int)g->m;
  int64_t k = 0;
  float a[RF_GEMM_STREAM_ROWS][STREAM_STEPS];
  for (; k < g->k; k += STREAM_STEPS) {
    int steps = g->k - k < STREAM_STEPS ? (int)(g->k - k) : STREAM_STEPS;
    for (int i = 0; i < m; i++) {
      for (int s = 0; s < steps; s++) a[i][s] = element(g->a, g->a_dtype, i * g->a_row + (k + s) * g->a_step);
    }
    int j = 0;
    if (steps == STREAM_STEPS) {
      for (; j + RF_LANES <= cols; j += RF_LANES) {
        rf_v16 w[STREAM_STEPS];
        for (int s = 0; s < STREAM_STEPS; s++) {
          int64_t at = (k + s) * g->b_step + j0 + j;
          if ((j & (b_dtype == RF_BF16 ? 31 : 15)) == 0) { /* a line of the rows that come next */
            int64_t next = at + STREAM_STEPS * g->b_step;
            __builtin_prefetch(b_dtype == RF_BF16 ? (const void *)((const rf_bf16 *)g->b + next) : (const void *)((const float *)g->b + next));
          }
          w[s] = rf_v16_get(g->b, b_dtype, at);
        }
        for (int i = 0; i < m; i++) {
          rf_v16 y = rf_v16_load(scratch + (int64_t)i * cols + j);
          for (int s = 0; s < STREAM_STEPS; s++) y = rf_v16_fma(rf_v16_set1(a[i][s]), w[s], y);
          rf_v16_store(scratch + (int64_t)i * cols + j, y);
        }
      }
    }
    for (; j < cols; j++) {
      for (int i = 0; i < m; i++) {
        float y = scratch[(int64_t)i * cols + j];
        for (int s = 0; s < steps; s++) y = fmaf(a[i][s], element(g->b, b_dtype, (k + s) * g->b_step + j0 + j), y);
        scratch[(int64_t)i * cols + j] = y;
      }
    }
  }
}

/* (N,K): a lane is a column, so 16 columns are transposed in registers, 8 dwords of each at a time. `m` and `groups` are constants;
 * `groups` x 16 columns run side by side, which hides the latency of the chains when rows are few. Rows past g->m repeat the last. */
RF_INLINE rf_v16 join(const v8 *low, const v8 *high) {
#if defined(__AVX512F__)
  return _mm512_insertf32x8(_mm512_castps256_ps512((__m256)*low), (__m256)*high, 1);
#elif defined(__AVX2__)
  return (rf_v16){(__m256)*low, (__m256)*high};
#else
  float x[RF_LANES];
  memcpy(x, low, sizeof *low);
  memcpy(x + 8, high, sizeof *high);
  return rf_v16_load(x);
#endif
}
RF_INLINE void stream_columns(const rf_gemm *g, rf_dtype b_dtype, int m, int groups, int64_t j0, float *scratch, int cols, int at) {
  enum { MAX_GROUPS = 2 };
  rf_v16 acc[RF_GEMM_STREAM_ROWS][MAX_GROUPS];
  int rows = (int)g->m;
  for (int i = 0; i < m; i++) {
    for (int q = 0; q < groups; q++) acc[i][q] = i < rows ? rf_v16_load(scratch + (int64_t)i * cols + at + q * RF_LANES) : rf_v16_zero();
  }
  int step = b_dtype == RF_BF16 ? 16 : 8; /* k of 8 dwords */
  int64_t k = 0;
  for (; k + step <= g->k; k += step) {
    for (int q = 0; q < groups; q++) {
      v8 r[16];
      for (int i = 0; i < 16; i++) {
        int64_t w = (j0 + at + q * RF_LANES + i) * g->b_col + k;
        const char *p = (const char *)g->b + w * (b_dtype == RF_BF16 ? 2 : 4);
        if ((k & (2 * step - 1)) == 0) __builtin_prefetch(p + 1024);
        r[i] = *(const v8 *)p;
      }
      transpose_8x8(r);
      transpose_8x8(r + 8);
      for (int d = 0; d < 8; d++) {
        int halves = b_dtype == RF_BF16 ? 2 : 1;
        for (int h = 0; h < halves; h++) {
          v8 low = r[d], high = r[d + 8];
          if (halves == 2 && h == 0) {
            low <<= 16;
            high <<= 16;
          } else if (halves == 2) {
            low &= 0xffff0000u;
            high &= 0xffff0000u;
          }
          rf_v16 w = join(&low, &high);
          int64_t kk = k + d * halves + h;
          for (int i = 0; i < m; i++) {
            float x = element(g->a, g->a_dtype, (i < rows ? i : rows - 1) * g->a_row + kk * g->a_step);
            acc[i][q] = rf_v16_fma(rf_v16_set1(x), w, acc[i][q]);
          }
        }
      }
    }
  }
  for (int i = 0; i < rows; i++) {
    for (int q = 0; q < groups; q++) {
      float *y = scratch + (int64_t)i * cols + at + q * RF_LANES;
      rf_v16_store(y, acc[i][q]);
      for (int64_t kk = k; kk < g->k; kk++) {
        float x = element(g->a, g->a_dtype, i * g->a_row + kk * g->a_step);
        for (int l = 0; l < RF_LANES; l++) y[l] = fmaf(x, element(g->b, b_dtype, (j0 + at + q * RF_LANES + l) * g->b_col + kk), y[l]);
      }
    }
  }
}
RF_INLINE void stream_columns_of(const rf_gemm *g, rf_dtype b_dtype, int64_t j0, int cols, float *scratch) {
  int at = 0;
  while (at + RF_LANES <= cols) {
    bool two = at + 2 * RF_LANES <= cols && g->m <= 4;
    if (g->m == 1 && two) stream_columns(g, b_dtype, 1, 2, j0, scratch, cols, at);
    else if (g->m <= 4 && two) stream_columns(g, b_dtype, 4, 2, j0, scratch, cols, at);
    else if (g->m <= 8) stream_columns(g, b_dtype, 8, 1, j0, scratch, cols, at);
    else stream_columns(g, b_dtype, 16, 1, j0, scratch, cols, at);
    at += two ? 2 * RF_LANES : RF_LANES;
  }
  for (; at < cols; at++) {
    for (int64_t i = 0; i < g->m; i++) {
      float y = scratch[i * cols + at];
      for (int64_t k = 0; k < g->k; k++) {
        y = fmaf(element(g->a, g->a_dtype, i * g->a_row + k * g->a_step), element(g->b, b_dtype, (j0 + at) * g->b_col + k), y);
      }
      scratch[i * cols + at] = y;
    }
  }
}

static void stream(const rf_gemm *g, int64_t j0, int cols, float *scratch) {
  bool half = g->b_dtype == RF_BF16;
  if (g->accumulate) begin_tile(g, scratch, cols, 0, (int)g->m, j0, cols);
  else memset(scratch, 0, (size_t)g->m * (size_t)cols * sizeof *scratch);
  if (g->b_col == 1 && half) stream_steps(g, RF_BF16, j0, cols, scratch);
  else if (g->b_col == 1) stream_steps(g, RF_F32, j0, cols, scratch);
  else if (g->b_step == 1 && half) stream_columns_of(g, RF_BF16, j0, cols, scratch);
  else if (g->b_step == 1) stream_columns_of(g, RF_F32, j0, cols, scratch);
  else {
    for (int64_t i = 0; i < g->m; i++) {
      for (int j = 0; j < cols; j++) {
        float y = scratch[i * cols + j];
        for (int64_t k = 0; k < g->k; k++) {
          y = fmaf(element(g->a, g->a_dtype, i * g->a_row + k * g->a_step), element(g->b, g->b_dtype, k * g->b_step + (j0 + j) * g->b_col), y);
        }
        scratch[i * cols + j] = y;
      }
    }
  }
  finish_tile(g, scratch, cols, 0, (int)g->m, j0, cols);
}
