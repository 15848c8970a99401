#include "support/compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double compare_load(rf_dtype dtype, const void *data, int64_t i) {
  switch (dtype) {
  case RF_F32: return (double)((const float *)data)[i];
  case RF_BF16: return (double)rf_bf16_to_f32(((const rf_bf16 *)data)[i]);
  case RF_F16: return (double)rf_f16_to_f32(((const uint16_t *)data)[i]);
  case RF_F64: return ((const double *)data)[i];
  case RF_I32: return ((const int32_t *)data)[i];
  case RF_I8: return ((const int8_t *)data)[i];
  default: return NAN;
  }
}

double compare_epsilon(rf_dtype dtype) {
  switch (dtype) {
  case RF_F64: return 0x1p-53;
  case RF_F32: return 0x1p-24;
  case RF_F16: return 0x1p-11;
  case RF_BF16: return 0x1p-8;
  default: return 0;
  }
}

compare_bound compare_bound_of(rf_dtype stored, rf_dtype sums, int64_t reduction) {
  double bound =
      2 * compare_epsilon(stored) + 2 * compare_epsilon(sums) * sqrt((double)(reduction > 1 ? reduction : 1));
  return (compare_bound){bound, 4 * bound};
}

static bool say(compare_report *report, bool ok, double norm, double max, int64_t at, double got, double want,
                compare_bound bound) {
  if (!report) return ok;
  *report = (compare_report){.norm = norm, .max = max, .at = at};
  snprintf(report->text, sizeof report->text,
           "%s: error %.3g of the norm (bound %.3g), %.3g of the largest element (bound %.3g)%s",
           ok ? "close" : "FAR", norm, bound.norm, max, bound.max, at < 0 ? "" : ", worst");
  size_t used = strlen(report->text);
  if (at >= 0)
    snprintf(report->text + used, sizeof report->text - used, " at %lld: got %.9g, expected %.9g",
             (long long)at, got, want);
  return ok;
}

bool compare_close(rf_dtype dtype, const void *got, const void *want, int64_t count, compare_bound bound,
                   compare_report *report) {
  if (dtype == RF_I32) return compare_equal(dtype, got, want, count, report);
  double error = 0, norm = 0, worst = 0, largest = 0;
  int64_t at = -1;
  for (int64_t i = 0; i < count; i++) {
    double a = compare_load(dtype, got, i), b = compare_load(dtype, want, i), difference = fabs(a - b);
    if (!isfinite(a) || !isfinite(b)) return say(report, false, INFINITY, INFINITY, i, a, b, bound);
    error += difference * difference;
    norm += b * b;
    if (difference > worst) {
      worst = difference;
      at = i;
    }
    if (fabs(b) > largest) largest = fabs(b);
  }
  double norm_error = worst == 0 ? 0 : largest == 0 ? INFINITY : sqrt(error / norm);
  double max_error = worst == 0 ? 0 : largest == 0 ? INFINITY : worst / largest;
  bool ok = norm_error <= bound.norm && max_error <= bound.max;
  return say(report, ok, norm_error, max_error, at, at < 0 ? 0 : compare_load(dtype, got, at),
             at < 0 ? 0 : compare_load(dtype, want, at), bound);
}

bool compare_equal(rf_dtype dtype, const void *got, const void *want, int64_t count, compare_report *report) {
  size_t size = (size_t)rf_dtype_bytes(dtype);
  compare_bound none = {0, 0};
  for (int64_t i = 0; i < count; i++) {
    double a = compare_load(dtype, got, i), b = compare_load(dtype, want, i);
    bool same =
        memcmp((const char *)got + (size_t)i * size, (const char *)want + (size_t)i * size, size) == 0;
    if (!same || !isfinite(a)) return say(report, false, INFINITY, INFINITY, i, a, b, none);
  }
  return say(report, true, 0, 0, -1, 0, 0, none);
}
