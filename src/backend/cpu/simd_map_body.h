/* simd_map_body.h - defines the function RF_SIMD_MAP, a name that each simd_map_*.c sets. */
#include "backend/cpu/simd.h"
#include "backend/cpu/simd_map.h"

static rf_v16 simd_apply(rf_simd_function f, rf_v16 a, rf_v16 b, rf_v16 c) {
  rf_v16 cosine;
  switch (f) {
  case RF_SIMD_EXP: return rf_v16_exp(a);
  case RF_SIMD_LOG: return rf_v16_log(a);
  case RF_SIMD_TANH: return rf_v16_tanh(a);
  case RF_SIMD_SIGMOID: return rf_v16_sigmoid(a);
  case RF_SIMD_SILU: return rf_v16_silu(a);
  case RF_SIMD_SILU_GRAD: return rf_v16_silu_grad(a);
  case RF_SIMD_GELU: return rf_v16_gelu_tanh(a);
  case RF_SIMD_GELU_GRAD: return rf_v16_gelu_tanh_grad(a);
  case RF_SIMD_SIN: return rf_v16_sincos(a, b, &cosine);
  case RF_SIMD_COS: (void)rf_v16_sincos(a, b, &cosine); return cosine;
  case RF_SIMD_SQRT: return rf_v16_sqrt(a);
  case RF_SIMD_BF16: return rf_v16_round(a, RF_BF16);
  case RF_SIMD_DIV: return rf_v16_div(a, b);
  case RF_SIMD_MIN: return rf_v16_min(a, b);
  case RF_SIMD_MAX: return rf_v16_max(a, b);
  case RF_SIMD_COPYSIGN: return rf_v16_copysign(a, b);
  case RF_SIMD_LESS: return rf_v16_select(rf_v16_lt(a, b), a, c);
  case RF_SIMD_FMA: return rf_v16_fma(a, b, c);
  case RF_SIMD_FNMA: return rf_v16_fnma(a, b, c);
  case RF_SIMD_FOLD_SUM: return rf_v16_set1(rf_v16_fold_sum(a));
  case RF_SIMD_FOLD_MAX: return rf_v16_set1(rf_v16_fold_max(a));
  default: return rf_v16_zero();
  }
}

void RF_SIMD_MAP(rf_simd_function f, const float *a, const float *b, const float *c, float *out,
                 int64_t count);
void RF_SIMD_MAP(rf_simd_function f, const float *a, const float *b, const float *c, float *out,
                 int64_t count) {
  for (int64_t i = 0; i < count; i += RF_LANES) {
    int n = count - i < RF_LANES ? (int)(count - i) : RF_LANES;
    rf_v16_store_n(
        out + i, simd_apply(f, rf_v16_load_n(a + i, n), rf_v16_load_n(b + i, n), rf_v16_load_n(c + i, n)), n);
  }
}
