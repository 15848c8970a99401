/* gemm_avx2.c - the product with 256-bit vectors. A tile of 6 rows x 16 columns uses 12
 * accumulators, two vectors of B and one broadcast of A. */
enum { MR = 6, NR = 16 };
#include "backend/cpu/fast.h"
#include "backend/cpu/gemm_kernels.h"

#define VECTOR __m256
#define LANES 8
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define SPLAT _mm256_broadcast_ss
#define ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)
#include "backend/cpu/gemm_micro.h"

// clang-format off
MICRO(1) MICRO(2) MICRO(3) MICRO(4) MICRO(5) MICRO(6)
static const rf_gemm_micro micros[] = {NULL, micro_1, micro_2, micro_3, micro_4, micro_5, micro_6};
// clang-format on

#define NAME .name = "gemm_avx2_6x16"
const rf_gemm_isa RF_GEMM_AVX2 = {NAME, RF_GEMM_KERNELS, .fast = &RF_FAST_AVX2};
/* for products in 8 bits, avxvnni also has dot products of four bytes */
const rf_gemm_isa RF_GEMM_AVXVNNI = {NAME, RF_GEMM_KERNELS, .fast = &RF_FAST_AVXVNNI};
