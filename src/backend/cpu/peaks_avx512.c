/* peaks_avx512.c - peaks of 64-byte vectors. */
#include "backend/cpu/peaks_loops.h"
#include "backend/cpu/simd.h"

static void peak_stream(float *to, rf_v16 x) { _mm512_stream_ps(to, x); }
#include "backend/cpu/peaks_body.h"
const rf_peak_memory RF_PEAK_MEMORY_AVX512 = {peak_read, peak_copy, peak_nt_copy};

#define RF_PEAK_REGISTER __m512
#define RF_PEAK_ZERO _mm512_setzero_ps()
#include "backend/cpu/peaks_arithmetic.h"
RF_PEAK_LOOP_24(multiply_add, "vfmadd132ps")
const rf_peak_arithmetic RF_PEAK_FMA_AVX512 = {multiply_add, 24 * 32};
