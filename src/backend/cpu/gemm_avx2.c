/* gemm_avx2.c - the product with 256-bit vectors: a tile of 6 rows x 16 columns is 12 accumulators, two vectors of B and one broadcast
 * of A. */
enum { MR = 6, NR = 16 };
#include "backend/cpu/gemm_kernels.h"

/* Rows are named variables, not an array, and the fused multiply-add is written out: gcc 12 otherwise keeps accumulators in memory
 * or trades them for moves. ROWS(X) is X(0) X(1) ... up to MR; what a row does disappears where `rows`, a constant, ends before it. */
#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define FMA(acc, x, y) __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(x), "v"(y))
#define LOAD(i) \
  __m256 left##i = _mm256_setzero_ps(), right##i = left##i; \
  if (resume && (i) < rows) left##i = _mm256_loadu_ps(tile + (i)*NR), right##i = _mm256_loadu_ps(tile + (i)*NR + 8);
#define STORE(i) \
  if ((i) < rows) _mm256_storeu_ps(tile + (i)*NR, left##i), _mm256_storeu_ps(tile + (i)*NR + 8, right##i);
#define ROW(i) \
  if ((i) < rows) { \
    __m256 x = _mm256_broadcast_ss(a + step * rows + (i)); \
    FMA(left##i, x, b0); \
    FMA(right##i, x, b1); \
  }
#define STEP(s) \
  do { \
    enum { step = (s) }; \
    __m256 b0 = _mm256_loadu_ps(b + step * NR), b1 = _mm256_loadu_ps(b + step * NR + 8); \
    ROWS(ROW) \
  } while (0)

RF_INLINE void micro(int rows, int64_t kc, const float *a, const float *b, float *tile, bool resume, rf_gemm_ahead near, rf_gemm_ahead far) {
  ROWS(LOAD)
  int64_t k = 0;
  for (; k + 8 <= kc; k += 8) {
    if (near.lines-- > 0) {
      _mm_prefetch(near.at, _MM_HINT_T1);
      _mm_prefetch(near.at + 64, _MM_HINT_T1);
      near.at += near.stride;
    }
    STEP(0);
    STEP(1);
    STEP(2);
    STEP(3);
    if (far.lines-- > 0) {
      _mm_prefetch(far.at, _MM_HINT_T1);
      _mm_prefetch(far.at + 64, _MM_HINT_T1);
      far.at += far.stride;
    }
    STEP(4);
    STEP(5);
    STEP(6);
    STEP(7);
    a += 8 * rows;
    b += 8 * NR;
  }
  for (; k < kc; k++) {
    STEP(0);
    a += rows;
    b += NR;
  }
  ROWS(STORE)
}

/* MICRO(3): static void micro_3(...) { micro(3, ...); } */
#define MICRO(rows) \
  static void micro_##rows(int64_t kc, const float *a, const float *b, float *tile, bool resume, rf_gemm_ahead near, rf_gemm_ahead far) { \
    micro(rows, kc, a, b, tile, resume, near, far); \
  }
/* (the formatter would take instances for the beginning of a declaration) */
// clang-format off
MICRO(1) MICRO(2) MICRO(3) MICRO(4) MICRO(5) MICRO(6)
static void (*const micros[])(int64_t, const float *, const float *, float *, bool, rf_gemm_ahead, rf_gemm_ahead) = {
    NULL, micro_1, micro_2, micro_3, micro_4, micro_5, micro_6};
// clang-format on

const rf_gemm_isa RF_GEMM_AVX2 = {"gemm_avx2_6x16", MR, NR, pack_a, pack_b, micros, begin_tile, finish_tile, stream};
