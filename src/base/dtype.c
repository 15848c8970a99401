/* dtype.c - sizes and names of element types, and conversions between f16 and f32. The conversions
 * are in plain C, because some processors have no instructions for f16. */
#include "base/base.h"

#include <string.h>
#include <strings.h>

static const struct {
  const char *name;
  int64_t bytes;
} DTYPES[RF_DTYPES] = {
    [RF_F32] = {"f32", 4}, [RF_BF16] = {"bf16", 2},       [RF_F16] = {"f16", 2},
    [RF_F64] = {"f64", 8}, [RF_I32] = {"i32", 4},         [RF_I8] = {"i8", 1},
    [RF_U8] = {"u8", 1},   [RF_F8_E4M3] = {"f8_e4m3", 1}, [RF_F8_E5M2] = {"f8_e5m2", 1},
    [RF_I64] = {"i64", 8}, [RF_I4] = {"i4", 1},           [RF_PACKED] = {"packed", 0},
};

int64_t rf_dtype_bytes(rf_dtype dtype) { return (unsigned)dtype < RF_DTYPES ? DTYPES[dtype].bytes : 0; }

int64_t rf_dtype_bits(rf_dtype dtype) { return dtype == RF_I4 ? 4 : 8 * rf_dtype_bytes(dtype); }

const char *rf_dtype_name(rf_dtype dtype) {
  return (unsigned)dtype < RF_DTYPES ? DTYPES[dtype].name : "unknown";
}

rf_status rf_dtype_parse(const char *name, rf_dtype *dtype, rf_error *error) {
  for (int i = 0; i < RF_PACKED; ++i) {
    if (strcasecmp(name, DTYPES[i].name) != 0) continue;
    *dtype = (rf_dtype)i;
    return RAFTER_OK;
  }
  return RF_FAIL(error, RAFTER_INVALID, "use f32, bf16, f16, f64, i32, i8, u8, f8_e4m3, f8_e5m2, i64 or i4",
                 "unknown dtype '%.40s'", name);
}

float rf_f16_to_f32(uint16_t x) {
  uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = (x >> 10) & 0x1fu, mantissa = x & 0x3ffu;
  union {
    uint32_t u;
    float f;
  } v;
  if (exponent == 0x1f) {
    v.u = sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
  } else if (exponent != 0) {
    v.u = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {
    v.f = (float)mantissa * 0x1p-24f; /* the value is subnormal or zero, so the product is exact */
    v.u |= sign;
  }
  return v.f;
}

uint16_t rf_f32_to_f16(float x) {
  union {
    float f;
    uint32_t u;
  } v = {.f = x};
  uint16_t sign = (uint16_t)(v.u >> 16 & 0x8000u);
  uint32_t magnitude = v.u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
  /* 65536 and above become infinity here. 65520 to 65535 become infinity by the carry of the
   * rounding below. */
  if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);
  /* Below 2^-14, the result is subnormal. Adding 0.5 rounds the last bit of the result, ties to
   * even. */
  if (magnitude < 0x38800000u) {
    union {
      float f;
      uint32_t u;
    } small = {.u = magnitude};
    small.f += 0.5f;
    return (uint16_t)(sign | (small.u - 0x3f000000u));
  }
  uint32_t rounded = magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u);
  return (uint16_t)(sign | rounded >> 13);
}
