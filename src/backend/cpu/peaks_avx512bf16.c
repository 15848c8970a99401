/* peaks_avx512bf16.c - peaks of the dot products of bf16 pairs and of byte quadruples. */
#include "backend/cpu/peaks_loops.h"

#include <immintrin.h>

#define RF_PEAK_REGISTER __m512
#define RF_PEAK_ZERO _mm512_setzero_ps()
#include "backend/cpu/peaks_arithmetic.h"
RF_PEAK_LOOP_24(dot_bf16, "vdpbf16ps")
RF_PEAK_LOOP_24(dot_i8, "vpdpbusd")
const rf_peak_arithmetic RF_PEAK_DOT_BF16 = {dot_bf16, 24 * 64}, RF_PEAK_DOT_I8 = {dot_i8, 24 * 128};
