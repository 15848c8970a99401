/* peaks_loops.h - the measuring loops of each ISA, for peaks*.c. */
#ifndef RF_PEAKS_LOOPS_H
#define RF_PEAKS_LOOPS_H

#include <stddef.h>

typedef struct rf_peak_arithmetic {
  void (*run)(long rounds);
  double flops_per_round;
} rf_peak_arithmetic;

/* Memory loops. `count` is a number of floats and a multiple of 1024. `read` adds 1 or 4 streams at
 * once. */
typedef struct rf_peak_memory {
  float (*read)(const float *from, size_t count, int streams);
  void (*copy)(float *to, const float *from, size_t count);
  void (*nt_copy)(float *to, const float *from, size_t count);
} rf_peak_memory;

extern const rf_peak_arithmetic RF_PEAK_FMA_BASE, RF_PEAK_FMA_AVX2, RF_PEAK_FMA_AVX512, RF_PEAK_DOT_BF16,
    RF_PEAK_DOT_I8, RF_PEAK_TILES_I8, RF_PEAK_TILES_BF16;
extern const rf_peak_memory RF_PEAK_MEMORY_BASE, RF_PEAK_MEMORY_AVX2, RF_PEAK_MEMORY_AVX512;

#endif
