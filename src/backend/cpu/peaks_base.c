/* peaks_base.c - peaks of plain C: separate multiplications and additions, four lanes at a time. */
#include "backend/cpu/peaks_loops.h"
#include "backend/cpu/simd.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static void peak_stream(float *to, rf_v16 x) {
#if defined(__x86_64__)
  for (int k = 0; k < 4; k++) _mm_stream_ps(to + 4 * k, (__m128)x.v[k]);
#else
  rf_v16_store(to, x);
#endif
}
#include "backend/cpu/peaks_body.h"
const rf_peak_memory RF_PEAK_MEMORY_BASE = {peak_read, peak_copy, peak_nt_copy};

/* Twelve independent chains. Empty asm hides the values, so that the compiler skips no round. */
static void multiply_add(long rounds) {
  rf_v4 sum[12] = {{0}}, factor = {0.5f, 0.5f, 0.5f, 0.5f}, term = {1.0f, 1.0f, 1.0f, 1.0f};
  for (long n = 0; n < rounds; n++) {
    for (int k = 0; k < 12; k++) {
      sum[k] = sum[k] * factor + term;
#if defined(__x86_64__)
      __asm__ volatile("" : "+x"(sum[k]));
#endif
    }
  }
  float total = 0;
  for (int k = 0; k < 12; k++) total += sum[k][0];
  volatile float kept = total;
  (void)kept;
}
const rf_peak_arithmetic RF_PEAK_FMA_BASE = {multiply_add, 12 * 8};
