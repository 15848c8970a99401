/* gemm_avx512.c - the product with 512-bit vectors: a tile of 12 rows x 32 columns is 24 accumulators, two vectors of B and one
 * broadcast of A; the other registers stay free. */
enum { MR = 12, NR = 32 };
#include "backend/cpu/fast.h"
#include "backend/cpu/gemm_kernels.h"

#define VECTOR __m512
#define LANES 16
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define SPLAT(p) _mm512_set1_ps(*(p))
#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#include "backend/cpu/gemm_micro.h"

/* (the formatter would take instances for the beginning of a declaration) */
// clang-format off
MICRO(1) MICRO(2) MICRO(3) MICRO(4) MICRO(5) MICRO(6) MICRO(7) MICRO(8) MICRO(9) MICRO(10) MICRO(11) MICRO(12)
static const rf_gemm_micro micros[] = {
    NULL, micro_1, micro_2, micro_3, micro_4, micro_5, micro_6, micro_7, micro_8, micro_9, micro_10, micro_11, micro_12};
// clang-format on

const rf_gemm_isa RF_GEMM_AVX512 = {"gemm_avx512_12x32", MR,          NR,     pack_a,       pack_b,         micros,
                                    begin_tile,          finish_tile, stream, stream_panel, &RF_FAST_AVX512};
/* Its products in 8 bits are those of byte quadruples. */
const rf_gemm_isa RF_GEMM_AVX512BF16 = {"gemm_avx512_12x32", MR, NR, pack_a, pack_b, micros, begin_tile, finish_tile, stream, stream_panel,
                                        &RF_FAST_AVX512BF16};
const rf_gemm_isa RF_GEMM_AMX = {"gemm_avx512_12x32", MR, NR, pack_a, pack_b, micros, begin_tile, finish_tile, stream, stream_panel, &RF_FAST_AMX};
