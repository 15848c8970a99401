/* simd_map.h - applies functions of simd.h to arrays at a chosen ISA. Tests use rf_simd_map to
 * check that results are bit-identical on all ISAs. */
#ifndef RF_SIMD_MAP_H
#define RF_SIMD_MAP_H

#include "backend/kernel.h"
#include "machine/isa.h"

typedef enum rf_simd_function {
  RF_SIMD_EXP,
  RF_SIMD_LOG,
  RF_SIMD_TANH,
  RF_SIMD_SIGMOID,
  RF_SIMD_SILU,
  RF_SIMD_SILU_GRAD,
  RF_SIMD_GELU,
  RF_SIMD_GELU_GRAD,
  RF_SIMD_SIN,
  RF_SIMD_COS,
  RF_SIMD_SQRT,
  RF_SIMD_BF16, /* EXP to BF16 compute f(a). SIN and COS compute f(a + b). BF16 rounds to bf16 and widens
                   again. */
  RF_SIMD_DIV,
  RF_SIMD_MIN,
  RF_SIMD_MAX,
  RF_SIMD_COPYSIGN,
  RF_SIMD_LESS, /* DIV to LESS are f(a, b); LESS is a < b ? a : c */
  RF_SIMD_FMA,
  RF_SIMD_FNMA, /* f(a, b, c) */
  RF_SIMD_FOLD_SUM,
  /* FOLD_* reduce each group of sixteen elements of a, and write the result to the whole group */
  RF_SIMD_FOLD_MAX,
  RF_SIMD_FUNCTIONS
} rf_simd_function;

/* out[i] = f(a[i], b[i], c[i]) for i < count. Zeros fill the last vector. Returns false if this CPU
 * does not have `isa`. */
bool rf_simd_map(rf_isa isa, rf_simd_function f, const float *a, const float *b, const float *c, float *out,
                 int64_t count);

#endif
