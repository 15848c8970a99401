/* peaks_avx2.c - peaks of 32-byte vectors. */
#include "backend/cpu/peaks_loops.h"
#include "backend/cpu/simd.h"

static void peak_stream(float *to, rf_v16 x) {
  _mm256_stream_ps(to, x.lo);
  _mm256_stream_ps(to + 8, x.hi);
}
#include "backend/cpu/peaks_body.h"
const rf_peak_memory RF_PEAK_MEMORY_AVX2 = {peak_read, peak_copy, peak_nt_copy};

#define RF_PEAK_REGISTER __m256
#define RF_PEAK_ZERO _mm256_setzero_ps()
#include "backend/cpu/peaks_arithmetic.h"
RF_PEAK_LOOP_12(multiply_add, "vfmadd132ps")
const rf_peak_arithmetic RF_PEAK_FMA_AVX2 = {multiply_add, 12 * 16};
