/* peaks_body.h - loops over simd.h that read and copy memory. Each peaks_*.c includes this file and
 * defines peak_stream, an aligned non-temporal store of sixteen floats. */

static float peak_read(const float *from, size_t count, int streams) {
  rf_v16 sum[8];
  for (int k = 0; k < 8; k++) sum[k] = rf_v16_zero();
  if (streams == 4) {
    size_t quarter = count / 4;
    for (size_t i = 0; i < quarter; i += 32) {
      for (size_t k = 0; k < 8; k++)
        sum[k] = rf_v16_add(sum[k], rf_v16_load(from + k / 2 * quarter + i + k % 2 * RF_LANES));
    }
  } else {
    for (size_t i = 0; i < count; i += 128) {
      for (size_t k = 0; k < 8; k++) sum[k] = rf_v16_add(sum[k], rf_v16_load(from + i + k * RF_LANES));
    }
  }
  for (int k = 1; k < 8; k++) sum[0] = rf_v16_add(sum[0], sum[k]);
  return rf_v16_fold_sum(sum[0]);
}

/* A compiler barrier per kilobyte prevents calls of memcpy, whose stores may differ. */
static void peak_copy(float *to, const float *from, size_t count) {
  for (size_t i = 0; i < count; i += 256) {
    for (size_t k = 0; k < 256; k += RF_LANES) rf_v16_store(to + i + k, rf_v16_load(from + i + k));
    __asm__ volatile("" ::: "memory");
  }
}
static void peak_nt_copy(float *to, const float *from, size_t count) {
  for (size_t i = 0; i < count; i += 256) {
    for (size_t k = 0; k < 256; k += RF_LANES) peak_stream(to + i + k, rf_v16_load(from + i + k));
  }
#if defined(__x86_64__)
  _mm_sfence();
#endif
}
