/* simd_map.c - applies functions of simd.h to arrays at a chosen ISA. */
#include "backend/cpu/simd_map.h"

typedef void (*map_fn)(rf_simd_function f, const float *a, const float *b, const float *c, float *out,
                       int64_t count);
void rf_simd_map_base(rf_simd_function f, const float *a, const float *b, const float *c, float *out,
                      int64_t count);
#if defined(__x86_64__)
void rf_simd_map_avx2(rf_simd_function f, const float *a, const float *b, const float *c, float *out,
                      int64_t count);
void rf_simd_map_avx512(rf_simd_function f, const float *a, const float *b, const float *c, float *out,
                        int64_t count);
#endif

bool rf_simd_map(rf_isa isa, rf_simd_function f, const float *a, const float *b, const float *c, float *out,
                 int64_t count) {
  static const map_fn maps[RF_ISAS] = {
    rf_simd_map_base,
#if defined(__x86_64__)
    rf_simd_map_avx2,
    rf_simd_map_avx2,
    rf_simd_map_avx512,
    rf_simd_map_avx512,
    rf_simd_map_avx512,
#endif
  };
  if (isa > rf_isa_detect()) return false;
  maps[isa](f, a, b, c, out, count);
  return true;
}
