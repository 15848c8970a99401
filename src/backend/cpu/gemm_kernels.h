/* gemm_kernels.h - packing, epilogues and products with few rows, written with the vectors of
 * simd.h. Each gemm_*.c includes this file and adds a micro-kernel for one ISA. */
#include "backend/cpu/gemm.h"
#include "backend/cpu/simd.h"

/* Vectors of eight dwords or bf16. Their 8x8 transposes take two AVX operations per vector. */
/* the alignment is 2, because rows of bf16 may start at any even address */
typedef uint32_t v8 __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint16_t h8 __attribute__((vector_size(16), aligned(2), may_alias));
enum { STREAM_AHEAD = 1024 }; /* prefetch distance in a streamed column, in bytes */
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
/* Loads eight elements as f32 bits. The result is *to, because no ABI returns a v8 without AVX. */
RF_INLINE void eight(v8 *to, const void *p, rf_dtype dtype, int64_t at) {
  if (dtype == RF_BF16) *to = __builtin_convertvector(*(const h8 *)((const rf_bf16 *)p + at), v8) << 16;
  else *to = *(const v8 *)((const float *)p + at);
}

/* ---- packing A: [k][rows] -------------------------------------------------------------------- */

/* Packs rows that are contiguous in k. Transposes blocks of 8 steps in registers. Each store writes
 * 8 or 16 floats, and the next store overwrites the floats after the first `rows`. The last steps
 * are stored one float at a time, because a whole vector would leave the strip. */
RF_INLINE void pack_a_rows(const void *a, rf_dtype dtype, int64_t a_row, int rows, int64_t kc, float *to) {
  int64_t safe = kc - 16; /* if k < safe, a whole vector stays inside the strip */
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
    for (int i = 0; i < rows; i++) to[k * rows + i] = rf_f32_get(a, dtype, i * a_row + k);
  }
}
/* Packs a transposed operand, whose rows are contiguous at each step, with whole vectors. The last
 * steps are copied by element, so that no access leaves the arrays. */
RF_INLINE void pack_a_steps(const void *a, rf_dtype dtype, int64_t a_step, int rows, int64_t kc, float *to) {
  int64_t k = 0;
  if (a_step >= RF_LANES) {
    for (; k < kc - 16; k++) rf_v16_store(to + k * rows, rf_v16_get(a, dtype, k * a_step));
  }
  for (; k < kc; k++) {
    for (int i = 0; i < rows; i++) to[k * rows + i] = rf_f32_get(a, dtype, k * a_step + i);
  }
}
static void pack_a(const rf_gemm *g, int64_t i0, int rows, int64_t k0, int64_t kc, float *to) {
  int64_t at = i0 * g->a_row + k0 * g->a_step;
  bool half = g->a_dtype == RF_BF16;
  const void *a =
      half ? (const void *)((const rf_bf16 *)g->a + at) : (const void *)((const float *)g->a + at);
  if (g->a_step == 1 && half) pack_a_rows(a, RF_BF16, g->a_row, rows, kc, to);
  else if (g->a_step == 1) pack_a_rows(a, RF_F32, g->a_row, rows, kc, to);
  else if (g->a_row == 1 && half) pack_a_steps(a, RF_BF16, g->a_step, rows, kc, to);
  else if (g->a_row == 1) pack_a_steps(a, RF_F32, g->a_step, rows, kc, to);
  else {
    for (int64_t k = 0; k < kc; k++) {
      for (int i = 0; i < rows; i++)
        to[k * rows + i] = rf_f32_get(a, g->a_dtype, i * g->a_row + k * g->a_step);
    }
  }
}

/* ---- packing B: [k][NR], zero filled --------------------------------------------------------- */

RF_INLINE void pack_b_steps(const void *b, rf_dtype dtype, int64_t b_step, int cols, int64_t kc, float *to) {
  if (cols == NR) {
    for (int64_t k = 0; k < kc; k++) {
      for (int j = 0; j < NR; j += RF_LANES)
        rf_v16_store(to + k * NR + j, rf_v16_get(b, dtype, k * b_step + j));
    }
    return;
  }
  for (int64_t k = 0; k < kc; k++) {
    for (int j = 0; j < NR; j++) to[k * NR + j] = j < cols ? rf_f32_get(b, dtype, k * b_step + j) : 0.0f;
  }
}
/* Packs columns that are contiguous in k (a transposed weight), in blocks of 8 columns by 64 steps.
 * More columns would not fit in L1, because columns with a power-of-two stride share one L1 set. */
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
        for (int i = j; i < j + 8; i++)
          to[k * NR + i] = i < cols ? rf_f32_get(b, dtype, i * b_col + k) : 0.0f;
      }
    }
  }
}
#include "backend/cpu/panel_widen.h"
#include "backend/cpu/panel_product.h"

static void pack_b(const rf_gemm *g, int64_t j0, int cols, int64_t k0, int64_t kc, float *to, float *sum) {
  if (g->panels) {
    if (g->transposed) pack_b_transposed(g, j0, cols, k0, kc, to);
    else pack_b_lanes(g, j0, cols, k0, kc, to);
    return;
  }
  int64_t at = k0 * g->b_step + j0 * g->b_col;
  bool half = g->b_dtype == RF_BF16;
  const void *b =
      half ? (const void *)((const rf_bf16 *)g->b + at) : (const void *)((const float *)g->b + at);
  if (g->b_col == 1 && half) pack_b_steps(b, RF_BF16, g->b_step, cols, kc, to);
  else if (g->b_col == 1) pack_b_steps(b, RF_F32, g->b_step, cols, kc, to);
  else if (g->b_step == 1 && half) pack_b_columns(b, RF_BF16, g->b_col, cols, kc, to);
  else if (g->b_step == 1) pack_b_columns(b, RF_F32, g->b_col, cols, kc, to);
  else {
    for (int64_t k = 0; k < kc; k++) {
      for (int j = 0; j < NR; j++)
        to[k * NR + j] = j < cols ? rf_f32_get(b, g->b_dtype, k * g->b_step + j * g->b_col) : 0.0f;
    }
  }
  if (!sum) return;
  /* blocks of k come in ascending order, so column sums continue from the previous block */
  bool resume = k0 > 0 || g->column_sum_accumulate;
  for (int j = 0; j < cols; j += RF_LANES) {
    int lanes = cols - j < RF_LANES ? cols - j : RF_LANES;
    rf_v16 s = resume ? rf_v16_load_n(sum + j, lanes) : rf_v16_zero();
    for (int64_t k = 0; k < kc; k++) s = rf_v16_add(s, rf_v16_load(to + k * NR + j));
    rf_v16_store_n(sum + j, s, lanes);
  }
}

/* ---- loading and storing a tile -------------------------------------------------------------- */

static void begin_tile(const rf_gemm *g, const rf_gemm_sums *s) {
  for (int i = 0; i < s->rows; i++) {
    const float *u = (const float *)g->u + (s->row + i) * g->ld + s->col;
    for (int j = 0; j < s->cols; j += RF_LANES) {
      rf_v16 x = s->cols - j >= RF_LANES ? rf_v16_load(u + j) : rf_v16_load_n(u + j, s->cols - j);
      rf_v16_store(s->at + i * s->ld + j, x);
    }
  }
}

/* Rounds and stores up to sixteen columns of a tile, from column `c` on. dtype and epilogue are
 * compile-time constants. The epilogue uses the rounded u. */
RF_INLINE void finish_columns(const rf_gemm *g, rf_dtype dtype, rf_gemm_epilogue epilogue, bool nontemporal,
                              const rf_gemm_sums *s, int c) {
  const float *tile = s->at + c;
  const int64_t tile_ld = s->ld, i0 = s->row, j = s->col + c;
  const int rows = s->rows, lanes = s->cols - c < RF_LANES ? s->cols - c : RF_LANES;
  bool whole = lanes == RF_LANES;
  rf_v16 bias = rf_v16_zero();
  if (g->bias)
    bias = whole ? rf_v16_get(g->bias, g->bias_dtype, j) : rf_v16_get_n(g->bias, g->bias_dtype, j, lanes);
  for (int i = 0; i < rows; i++) {
    int64_t at = (i0 + i) * g->ld + j;
    rf_v16 x = whole ? rf_v16_load(tile + i * tile_ld) : rf_v16_load_n(tile + i * tile_ld, lanes);
    if (g->bias) x = rf_v16_add(x, bias);
    x = rf_v16_round(x, dtype);
    if (g->u) {
      if (whole && nontemporal && ((uintptr_t)((float *)g->u + at) & 63u) == 0)
        rf_v16_stream((float *)g->u + at, x);
      else if (whole) rf_v16_put(g->u, dtype, at, x);
      else rf_v16_put_n(g->u, dtype, at, x, lanes);
    }
    if (epilogue == RF_GEMM_PLAIN || !g->out) continue;
    rf_v16 side = rf_v16_zero();
    if (epilogue != RF_GEMM_GELU)
      side = whole ? rf_v16_get(g->side, dtype, at) : rf_v16_get_n(g->side, dtype, at, lanes);
    if (epilogue == RF_GEMM_GELU) x = rf_v16_gelu_tanh(x);
    else if (epilogue == RF_GEMM_GELU_BWD) x = rf_v16_mul(x, rf_v16_gelu_tanh_grad(side));
    else x = rf_v16_add(side, rf_dropout_apply(&g->drop, x, g->first_token + (i0 + i) * g->drop.step, j));
    if (whole) rf_v16_put(g->out, dtype, at, x);
    else rf_v16_put_n(g->out, dtype, at, x, lanes);
  }
}
/* Stores 32 bf16 columns of a row. A non-temporal store writes the whole cache line at once. */
RF_INLINE void put_line(bool nontemporal, void *to, int64_t at, const rf_v16 x[2]) {
  if (nontemporal) rf_v16_stream_bf16_pair((rf_bf16 *)to + at, x[0], x[1]);
  for (int h = 0; !nontemporal && h < 2; h++) rf_v16_store_bf16((rf_bf16 *)to + at + RF_LANES * h, x[h]);
}
RF_INLINE void finish_lines(const rf_gemm *g, rf_gemm_epilogue epilogue, bool nontemporal,
                            const rf_gemm_sums *s) {
  const float *tile = s->at;
  const int64_t tile_ld = s->ld, i0 = s->row, j = s->col;
  const int rows = s->rows;
  rf_v16 bias[2] = {rf_v16_zero(), rf_v16_zero()};
  for (int h = 0; g->bias && h < 2; h++) bias[h] = rf_v16_get(g->bias, g->bias_dtype, j + RF_LANES * h);
  for (int i = 0; i < rows; i++) {
    int64_t at = (i0 + i) * g->ld + j;
    rf_v16 x[2], side[2] = {rf_v16_zero(), rf_v16_zero()};
    for (int h = 0; h < 2; h++) {
      x[h] = rf_v16_load(tile + i * tile_ld + RF_LANES * h);
      if (g->bias) x[h] = rf_v16_add(x[h], bias[h]);
    }
    if (g->u) put_line(nontemporal, g->u, at, x);
    if (epilogue == RF_GEMM_PLAIN || !g->out) continue;
    for (int h = 0; h < 2; h++) {
      x[h] = rf_v16_round(x[h], RF_BF16);
      if (epilogue != RF_GEMM_GELU) side[h] = rf_v16_load_bf16((const rf_bf16 *)g->side + at + RF_LANES * h);
      if (epilogue == RF_GEMM_GELU) x[h] = rf_v16_gelu_tanh(x[h]);
      else if (epilogue == RF_GEMM_GELU_BWD) x[h] = rf_v16_mul(x[h], rf_v16_gelu_tanh_grad(side[h]));
    }
    if (epilogue == RF_GEMM_RESIDUAL) {
      rf_dropout_apply_pair(&g->drop, x, g->first_token + (i0 + i) * g->drop.step, j);
      for (int h = 0; h < 2; h++) x[h] = rf_v16_add(side[h], x[h]);
    }
    put_line(nontemporal, g->out, at, x);
  }
}
// clang-format off
/* FINISH(f32_plain, RF_F32, RF_GEMM_PLAIN, false) defines finish_f32_plain(g, sums). */
#define FINISH(name, dtype, epilogue, nontemporal) \
  static void finish_##name(const rf_gemm *g, const rf_gemm_sums *s) { \
    for (int c = 0; c < s->cols; c += RF_LANES) finish_columns(g, dtype, epilogue, nontemporal, s, c); \
  }
FINISH(f32_past, RF_F32, RF_GEMM_PLAIN, true)
FINISH(f32_plain, RF_F32, RF_GEMM_PLAIN, false)
FINISH(f32_gelu, RF_F32, RF_GEMM_GELU, false)
FINISH(f32_residual, RF_F32, RF_GEMM_RESIDUAL, false)
FINISH(f32_gelu_bwd, RF_F32, RF_GEMM_GELU_BWD, false)
FINISH(bf16_plain, RF_BF16, RF_GEMM_PLAIN, false)
FINISH(bf16_gelu, RF_BF16, RF_GEMM_GELU, false)
FINISH(bf16_residual, RF_BF16, RF_GEMM_RESIDUAL, false)
FINISH(bf16_gelu_bwd, RF_BF16, RF_GEMM_GELU_BWD, false)
#define FINISH_LINES(name, epilogue, nontemporal) \
  static void finish_lines_##name(const rf_gemm *g, const rf_gemm_sums *s) { \
    finish_lines(g, epilogue, nontemporal, s); \
  }
FINISH_LINES(plain, RF_GEMM_PLAIN, true)
FINISH_LINES(gelu, RF_GEMM_GELU, true)
FINISH_LINES(gelu_bwd, RF_GEMM_GELU_BWD, true)
FINISH_LINES(residual, RF_GEMM_RESIDUAL, true)
FINISH_LINES(residual_near, RF_GEMM_RESIDUAL, false)
// clang-format on
static void finish_tile(const rf_gemm *g, const rf_gemm_sums *s) {
  static void (*const body[2][4])(const rf_gemm *, const rf_gemm_sums *) = {
      {finish_f32_plain, finish_f32_gelu, finish_f32_residual, finish_f32_gelu_bwd},
      {finish_bf16_plain, finish_bf16_gelu, finish_bf16_residual, finish_bf16_gelu_bwd}};
  static void (*const lines[4])(const rf_gemm *, const rf_gemm_sums *) = {
      finish_lines_plain, finish_lines_gelu, finish_lines_residual, finish_lines_gelu_bwd};
  bool pairs = g->dtype == RF_BF16 && s->cols == 2 * RF_LANES;
  if (pairs && g->nontemporal && (((uintptr_t)g->u | (uintptr_t)g->out) & 63u) == 0 && g->ld % 32 == 0 &&
      s->col % 32 == 0)
    lines[g->epilogue](g, s);
  else if (pairs && g->epilogue == RF_GEMM_RESIDUAL)
    finish_lines_residual_near(g, s); /* computes one dropout mask for both halves of 32 columns */
  else if (g->nontemporal && g->dtype == RF_F32 && g->epilogue == RF_GEMM_PLAIN) finish_f32_past(g, s);
  else body[g->dtype == RF_BF16][g->epilogue](g, s);
}

#define RF_GEMM_KERNELS \
  .mr = MR, .nr = NR, .a_words = 2, .b_words = 2, .depth = 1, .pack_a = pack_a, .pack_b = pack_b, \
  .micro = micros, .begin = begin_tile, .finish = finish_tile, .stream = stream, \
  .stream_panels = stream_panels

/* ---- few rows: weights are read once, without packing ---------------------------------------- */

/* `a` is A packed as one strip, [k][m]. `y` holds the sums, [m][cols]. */

/* For B (K,N), row-major. The sums of all columns of the chunk stay in scratch memory (L1 or L2).
 * Each iteration adds eight steps of k, so it reads eight long rows of B at once. The prefetches of
 * the next eight rows go to L2, because these rows would evict each other in L1. This loop reaches
 * 24 GB/s (one row, f32, one thread). The loop reaches 19 GB/s with prefetches to L1, and 22 GB/s
 * with sixteen steps at once. */
enum { STREAM_STEPS = 8 };

RF_INLINE void stream_steps(const rf_gemm *g, rf_dtype b_dtype, const float *a, int64_t j0, int cols,
                            float *y) {
  int m = (int)g->m, item = b_dtype == RF_BF16 ? 2 : 4;
  for (int64_t k = 0; k < g->k; k += STREAM_STEPS, a += STREAM_STEPS * m) {
    int steps = g->k - k < STREAM_STEPS ? (int)(g->k - k) : STREAM_STEPS, j = 0;
    if (steps == STREAM_STEPS) {
      for (; j + RF_LANES <= cols; j += RF_LANES) {
        rf_v16 w[STREAM_STEPS];
        for (int s = 0; s < STREAM_STEPS; s++) {
          int64_t at = (k + s) * g->b_step + j0 + j;
          if ((j & (64 / item - 1)) == 0) /* prefetches the next rows */
            __builtin_prefetch((const char *)g->b + (at + STREAM_STEPS * g->b_step) * item, 0, 2);
          w[s] = rf_v16_get(g->b, b_dtype, at);
        }
        for (int i = 0; i < m; i++) {
          float *sums = y + (int64_t)i * cols + j;
          rf_v16 sum = rf_v16_load(sums);
          for (int s = 0; s < STREAM_STEPS; s++) sum = rf_v16_fma(rf_v16_set1(a[s * m + i]), w[s], sum);
          rf_v16_store(sums, sum);
        }
      }
    }
    for (; j < cols; j++) {
      for (int i = 0; i < m; i++) {
        float sum = y[(int64_t)i * cols + j];
        for (int s = 0; s < steps; s++)
          sum = fmaf(a[s * m + i], rf_f32_get(g->b, b_dtype, (k + s) * g->b_step + j0 + j), sum);
        y[(int64_t)i * cols + j] = sum;
      }
    }
  }
}

/* For B (N,K). A lane computes one output column. Loads one cache line of each of 16 columns and
 * transposes the lines in registers, because an L1 set cannot keep 16 lines with a power-of-two
 * stride. Loading whole lines reaches 22 GB/s, and loading half lines 9 GB/s (one row, one
 * thread). */
/* Sets to[d] to dword d of each of the 16 lines. */
RF_INLINE void transposed_lines(const char *p, int64_t stride, rf_v16 to[16]) {
#if defined(__AVX512F__)
  for (int i = 0; i < 16; i++) to[i] = rf_v16_load((const float *)(const void *)(p + i * stride));
  rf_v16_transpose(to);
#else
  float dword[16][RF_LANES];
  for (int h = 0; h < 16; h += 8) {
    v8 left[8], right[8];
    for (int i = 0; i < 8; i++) {
      left[i] = *(const v8 *)(p + (h + i) * stride);
      right[i] = *(const v8 *)(p + (h + i) * stride + 32);
    }
    transpose_8x8(left);
    transpose_8x8(right);
    for (int i = 0; i < 8; i++) {
      *(v8 *)&dword[i][h] = left[i];
      *(v8 *)&dword[i + 8][h] = right[i];
    }
  }
  for (int d = 0; d < 16; d++) to[d] = rf_v16_load(dword[d]);
#endif
}
/* Each dword has the bf16 values of an even k and the next odd k. Returns one of the two values as
 * f32. */
RF_INLINE rf_v16 half_of(rf_v16 x, bool odd) {
#if defined(__AVX512F__)
  __m512i u = _mm512_castps_si512(x);
  return _mm512_castsi512_ps(odd ? _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u))
                                 : _mm512_slli_epi32(u, 16));
#else
  uint32_t u[RF_LANES];
  float f[RF_LANES];
  rf_v16_store(f, x);
  memcpy(u, f, sizeof u);
  for (int i = 0; i < RF_LANES; i++) u[i] = odd ? u[i] & 0xffff0000u : u[i] << 16;
  memcpy(f, u, sizeof f);
  return rf_v16_load(f);
#endif
}
/* Computes sixteen columns from `column` on for up to `most` (constant) rows. EACH_SUM(X) is X(0)
 * .. X(15). Each sum is a named variable, so that it stays in a register. */
#define EACH_SUM(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define SUM_LOAD(i) rf_v16 sum##i = (i) < rows ? rf_v16_load(y + (int64_t)(i)*cols) : rf_v16_zero();
#define SUM_STORE(i) \
  if ((i) < rows) rf_v16_store(y + (int64_t)(i)*cols, sum##i);
#define SUM_STEP(i) \
  if ((i) < most) sum##i = rf_v16_fma(rf_v16_set1(at[i]), w, sum##i);
RF_INLINE void stream_columns(const rf_gemm *g, rf_dtype b_dtype, int most, const float *a, int64_t column,
                              int cols, float *y) {
  int rows = (int)g->m;
  int item = b_dtype == RF_BF16 ? 2 : 4, halves = b_dtype == RF_BF16 ? 2 : 1;
  int64_t step = 64 / item, stride = g->b_col * item, row_bytes = g->k * item, k = 0;
  const char *b = (const char *)g->b + column * stride;
  EACH_SUM(SUM_LOAD)
  for (; k + step <= g->k; k += step) {
    /* prefetches later steps of these columns; near the end of k, prefetches the next columns */
    int64_t ahead =
        (k + step) * item + STREAM_AHEAD <= row_bytes ? STREAM_AHEAD : STREAM_AHEAD - row_bytes + 16 * stride;
    for (int i = 0; i < 16; i++) __builtin_prefetch(b + i * stride + k * item + ahead, 0, 2);
    rf_v16 dword[16];
    transposed_lines(b + k * item, stride, dword);
    for (int d = 0; d < 16; d++) {
      for (int h = 0; h < halves; h++) {
        rf_v16 w = halves == 2 ? half_of(dword[d], h == 1) : dword[d];
        const float *at = a + (k + d * halves + h) * rows;
        EACH_SUM(SUM_STEP)
      }
    }
  }
  EACH_SUM(SUM_STORE)
  for (; k < g->k; k++) {
    for (int i = 0; i < rows; i++) {
      for (int l = 0; l < RF_LANES; l++) {
        float *sum = &y[(int64_t)i * cols + l];
        *sum = fmaf(a[k * rows + i], rf_f32_get(g->b, b_dtype, (column + l) * g->b_col + k), *sum);
      }
    }
  }
}
/* Each variant has a constant number of rows. A product with another number of rows uses the next
 * larger variant. */
RF_INLINE void stream_columns_of(const rf_gemm *g, rf_dtype b_dtype, const float *a, int64_t column, int cols,
                                 float *y) {
#if defined(__AVX2__)
  if (g->m == 1) stream_columns(g, b_dtype, 1, a, column, cols, y);
  else if (g->m == 2) stream_columns(g, b_dtype, 2, a, column, cols, y);
  else if (g->m <= 4) stream_columns(g, b_dtype, 4, a, column, cols, y);
  else if (g->m <= 6) stream_columns(g, b_dtype, 6, a, column, cols, y);
  else if (g->m <= 8) stream_columns(g, b_dtype, 8, a, column, cols, y);
  else if (g->m <= 12) stream_columns(g, b_dtype, 12, a, column, cols, y);
  else
#endif
    stream_columns(g, b_dtype, RF_FEW_ROWS, a, column, cols, y);
}
static void stream_columns_bf16(const rf_gemm *g, const float *a, int64_t column, int cols, float *y) {
  stream_columns_of(g, RF_BF16, a, column, cols, y);
}
static void stream_columns_f32(const rf_gemm *g, const float *a, int64_t column, int cols, float *y) {
  stream_columns_of(g, RF_F32, a, column, cols, y);
}

static void stream(const rf_gemm *g, const float *a, int64_t j0, int cols, float *y) {
  bool half = g->b_dtype == RF_BF16;
  int m = (int)g->m, done = 0;
  const rf_gemm_sums sums = {y, cols, 0, j0, m, cols};
  if (g->accumulate) begin_tile(g, &sums);
  else memset(y, 0, (size_t)m * (size_t)cols * sizeof *y);
  if (g->b_col == 1) {
    if (half) stream_steps(g, RF_BF16, a, j0, cols, y);
    else stream_steps(g, RF_F32, a, j0, cols, y);
    done = cols;
  } else if (g->b_step == 1) {
    for (; done + RF_LANES <= cols; done += RF_LANES) {
      if (half) stream_columns_bf16(g, a, j0 + done, cols, y + done);
      else stream_columns_f32(g, a, j0 + done, cols, y + done);
    }
  }
  for (; done < cols; done++) { /* the last columns do not fill a vector */
    for (int i = 0; i < m; i++) {
      float sum = y[(int64_t)i * cols + done];
      for (int64_t k = 0; k < g->k; k++)
        sum = fmaf(a[k * m + i], rf_f32_get(g->b, g->b_dtype, k * g->b_step + (j0 + done) * g->b_col), sum);
      y[(int64_t)i * cols + done] = sum;
    }
  }
  finish_tile(g, &sums);
}
