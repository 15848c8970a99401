/* gemm_base.c - the product in plain C. Plain C is slow if fmaf is a library call. */
enum { MR = 4, NR = 16 };
#include "backend/cpu/gemm_kernels.h"

RF_INLINE void micro(int rows, int64_t kc, const float *a, const float *b, float *tile, bool resume) {
  float acc[MR][NR];
  for (int i = 0; i < rows; i++) {
    for (int j = 0; j < NR; j++) acc[i][j] = resume ? tile[i * NR + j] : 0.0f;
  }
  for (int64_t k = 0; k < kc; k++) {
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < NR; j++) acc[i][j] = fmaf(a[k * rows + i], b[k * NR + j], acc[i][j]);
    }
  }
  for (int i = 0; i < rows; i++) {
    for (int j = 0; j < NR; j++) tile[i * NR + j] = acc[i][j];
  }
}

/* MICRO(3) defines micro_3(...) { micro(3, ...); } */
#define MICRO(rows) \
  static void micro_##rows(int64_t kc, const float *a, const float *b, float *tile, bool resume, \
                           const rf_gemm_ahead ahead[2], const char *const *tile_pieces) { \
    (void)ahead; \
    (void)tile_pieces; \
    micro(rows, kc, a, b, tile, resume); \
  }
// clang-format off
MICRO(1) MICRO(2) MICRO(3) MICRO(4)
static const rf_gemm_micro micros[] = {NULL, micro_1, micro_2, micro_3, micro_4};
// clang-format on

const rf_gemm_isa RF_GEMM_BASE = {.name = "gemm_base_4x16", RF_GEMM_KERNELS};
