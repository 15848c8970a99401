/* sampler_rows.c - chooses the functions of sampler_rows.h by instruction set. */
#include "generate/sampler_rows.h"

#include "generate/sampler_exp.h"

extern const rf_row_functions RF_ROWS_BASE, RF_ROWS_AVX2, RF_ROWS_AVX512;

const rf_row_functions *rf_row_functions_of(rf_isa isa) {
#if defined(__x86_64__)
  if (isa >= RF_ISA_AVX512) return &RF_ROWS_AVX512;
  if (isa >= RF_ISA_AVX2) return &RF_ROWS_AVX2;
#else
  (void)isa;
#endif
  return &RF_ROWS_BASE;
}

typedef double lanes __attribute__((vector_size(16)));
typedef uint64_t lane_bits __attribute__((vector_size(16)));
RF_EXP2(exp2_lanes, lanes, lane_bits)

double rf_row_weight(const rf_row *row, float logit) {
  double t = ((double)logit - row->top) * row->scale;
  return exp2_lanes((lanes){t, t})[0];
}
