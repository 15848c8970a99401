/* norm.c - LayerNorm and RMSNorm, forward and backward. Statistics are kept for backward: (mean, rstd) and (rstd). */
#include "backend/reference/kernels.h"

/* x (n,D), gain (D), bias (D) -> y (n,D), stats (n,2); RMSNorm: x, gain -> y, stats (n,1) */
static void forward(const rf_call *call, bool centered) {
  rf_view x = in_view(call, 0), gain = in_view(call, 1), bias = centered ? in_view(call, 2) : (rf_view){NULL, RF_F32};
  rf_view y = out_view(call, 0), stats = out_view(call, 1);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1];
  for (int64_t r = 0; r < rows; r++) {
    double mean = 0, square = 0;
    for (int64_t d = 0; d < width && centered; d++) mean += load(x, r * width + d) / (double)width;
    for (int64_t d = 0; d < width; d++) {
      double deviation = load(x, r * width + d) - mean;
      square += deviation * deviation / (double)width;
    }
    double rstd = 1.0 / sqrt(square + (double)call->op->attr.eps);
    for (int64_t d = 0; d < width; d++) {
      double value = (load(x, r * width + d) - mean) * rstd * load(gain, d);
      if (bias.data) value += load(bias, d);
      store(y, r * width + d, value);
    }
    if (!stats.data) continue;
    if (centered) store(stats, r * 2, mean), store(stats, r * 2 + 1, rstd);
    else store(stats, r, rstd);
  }
}

void rf_reference_layernorm(const rf_call *call) { forward(call, true); }
void rf_reference_rmsnorm(const rf_call *call) { forward(call, false); }

/* x (n,D), gain (D), stats, dy (n,D), dres (n,D)? -> dx (n,D), dgain (D), dbias (D) */
static void backward(const rf_call *call, bool centered) {
  rf_view x = in_view(call, 0), gain = in_view(call, 1), stats = in_view(call, 2), dy = in_view(call, 3), dres = in_view(call, 4);
  rf_view dx = out_view(call, 0), dgain = out_view(call, 1), dbias = centered ? out_view(call, 2) : (rf_view){NULL, RF_F32};
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1];
  int64_t step = centered ? 2 : 1;
  /* Parameters first: dx may take the place of an input that they read. */
  for (int64_t d = 0; d < width; d++) {
    double gain_sum = dgain.data ? start(call, 1, dgain, d) : 0, bias_sum = dbias.data ? start(call, 2, dbias, d) : 0;
    for (int64_t r = 0; r < rows; r++) {
      double mean = centered ? load(stats, r * step) : 0, rstd = load(stats, r * step + step - 1), slope = load(dy, r * width + d);
      gain_sum += slope * (load(x, r * width + d) - mean) * rstd;
      bias_sum += slope;
    }
    if (dgain.data) store(dgain, d, gain_sum);
    if (dbias.data) store(dbias, d, bias_sum);
  }
  for (int64_t r = 0; r < rows && dx.data; r++) {
    double mean = centered ? load(stats, r * step) : 0, rstd = load(stats, r * step + step - 1);
    double slope_mean = 0, product_mean = 0;
    for (int64_t d = 0; d < width; d++) {
      double slope = load(dy, r * width + d) * load(gain, d);
      if (centered) slope_mean += slope / (double)width;
      product_mean += slope * (load(x, r * width + d) - mean) * rstd / (double)width;
    }
    for (int64_t d = 0; d < width; d++) {
      int64_t at = r * width + d;
      double normal = (load(x, at) - mean) * rstd, slope = load(dy, at) * load(gain, d);
      double value = rstd * (slope - slope_mean - normal * product_mean);
      if (dres.data) value = rounded(dx.dtype, value) + load(dres, at);
      store(dx, at, value);
    }
  }
}

void rf_reference_layernorm_bwd(const rf_call *call) { backward(call, true); }
void rf_reference_rmsnorm_bwd(const rf_call *call) { backward(call, false); }
