/* norm.c - LayerNorm and RMSNorm over rows, and RMSNorm over heads, forward and backward. The
 * backward pass reads the statistics of the forward pass: mean and rstd, or only rstd. */
#include "backend/reference/kernels.h"

/* x (n,D), gain (D), bias (D) -> y (n,D), stats (n,2); RMSNorm: x, gain -> y, stats (n,1) */
static void forward(const rf_call *call, bool centered) {
  rf_view x = in_view(call, 0), gain = in_view(call, 1),
          bias = centered ? in_view(call, 2) : (rf_view){NULL, RF_F32, NULL};
  rf_view y = out_view(call, 0), stats = out_view(call, 1);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1];
  double offset = (double)call->op->attr.norm.offset;
  for (int64_t r = 0; r < rows; r++) {
    double mean = 0, square = 0;
    for (int64_t d = 0; d < width && centered; d++) mean += load(x, r * width + d) / (double)width;
    for (int64_t d = 0; d < width; d++) {
      double deviation = load(x, r * width + d) - mean;
      square += deviation * deviation / (double)width;
    }
    double rstd = 1.0 / sqrt(square + (double)call->op->attr.norm.eps);
    for (int64_t d = 0; d < width; d++) {
      double value = (load(x, r * width + d) - mean) * rstd * (offset + load(gain, d));
      if (bias.data) value += load(bias, d);
      store(y, r * width + d, value);
    }
    if (!stats.data) continue;
    if (centered) {
      store(stats, r * 2, mean);
      store(stats, r * 2 + 1, rstd);
    } else store(stats, r, rstd);
  }
}

void rf_reference_layernorm(const rf_call *call) { forward(call, true); }
void rf_reference_rmsnorm(const rf_call *call) { forward(call, false); }

/* x (n,D), gain (D), stats, dy (n,D), dres (n,D)? -> dx (n,D), dgain (D), dbias (D) */
static void backward(const rf_call *call, bool centered) {
  rf_view x = in_view(call, 0), gain = in_view(call, 1), stats = in_view(call, 2), dy = in_view(call, 3),
          dres = in_view(call, 4);
  rf_view dx = out_view(call, 0), dgain = out_view(call, 1),
          dbias = centered ? out_view(call, 2) : (rf_view){NULL, RF_F32, NULL};
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1];
  int64_t step = centered ? 2 : 1;
  double offset = (double)call->op->attr.norm.offset;
  /* the gradients of the parameters come first, because dx may overwrite x or dy */
  for (int64_t d = 0; d < width; d++) {
    double gain_sum = dgain.data ? start(call, 1, dgain, d) : 0,
           bias_sum = dbias.data ? start(call, 2, dbias, d) : 0;
    for (int64_t r = 0; r < rows; r++) {
      double mean = centered ? load(stats, r * step) : 0, rstd = load(stats, r * step + step - 1),
             slope = load(dy, r * width + d);
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
      double slope = load(dy, r * width + d) * (offset + load(gain, d));
      if (centered) slope_mean += slope / (double)width;
      product_mean += slope * (load(x, r * width + d) - mean) * rstd / (double)width;
    }
    for (int64_t d = 0; d < width; d++) {
      int64_t at = r * width + d;
      double normal = (load(x, at) - mean) * rstd, slope = load(dy, at) * (offset + load(gain, d));
      double value = rstd * (slope - slope_mean - normal * product_mean);
      if (dres.data) value = rounded(dx.dtype, value) + load(dres, at);
      store(dx, at, value);
    }
  }
}

void rf_reference_layernorm_bwd(const rf_call *call) { backward(call, true); }
void rf_reference_rmsnorm_bwd(const rf_call *call) { backward(call, false); }

/* ---- heads of qkv rows ----------------------------------------------------------------------- */

/* qkv (n,(N+2K)H), q_gain (H), k_gain (H) -> normed, stats (n,N+K) */
void rf_reference_head_norm(const rf_call *call) {
  const rf_attr_head_norm *attr = &call->op->attr.head_norm;
  rf_view x = in_view(call, 0), y = out_view(call, 0), stats = out_view(call, 1);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1],
          size = attr->head_dim;
  int64_t heads = attr->heads + attr->kv_heads;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t h = 0; h < heads; h++) {
      rf_view gain = in_view(call, h < attr->heads ? 1 : 2);
      int64_t at = r * width + h * size;
      double square = 0;
      for (int64_t i = 0; i < size; i++) square += load(x, at + i) * load(x, at + i) / (double)size;
      double rstd = 1.0 / sqrt(square + (double)attr->eps);
      for (int64_t i = 0; i < size; i++)
        store(y, at + i, load(x, at + i) * rstd * ((double)attr->offset + load(gain, i)));
      if (stats.data) store(stats, r * heads + h, rstd);
    }
    for (int64_t c = heads * size; c < width; c++) store(y, r * width + c, load(x, r * width + c));
  }
}

/* qkv, q_gain, k_gain, stats, dy -> dx, dq_gain (H), dk_gain (H) */
void rf_reference_head_norm_bwd(const rf_call *call) {
  const rf_attr_head_norm *attr = &call->op->attr.head_norm;
  rf_view x = in_view(call, 0), stats = in_view(call, 3), dy = in_view(call, 4), dx = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1],
          size = attr->head_dim;
  int64_t heads = attr->heads + attr->kv_heads;
  for (int slot = 1; slot <= 2; slot++) {
    rf_view dgain = out_view(call, slot);
    int64_t first = slot == 1 ? 0 : attr->heads, last = slot == 1 ? attr->heads : heads;
    for (int64_t i = 0; i < size && dgain.data; i++) {
      double sum = start(call, slot, dgain, i);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t h = first; h < last; h++)
          sum += load(dy, r * width + h * size + i) * load(x, r * width + h * size + i) *
                 load(stats, r * heads + h);
      store(dgain, i, sum);
    }
  }
  for (int64_t r = 0; r < rows && dx.data; r++) {
    for (int64_t h = 0; h < heads; h++) {
      rf_view gain = in_view(call, h < attr->heads ? 1 : 2);
      int64_t at = r * width + h * size;
      double rstd = load(stats, r * heads + h), mean = 0;
      for (int64_t i = 0; i < size; i++)
        mean +=
            load(dy, at + i) * ((double)attr->offset + load(gain, i)) * load(x, at + i) * rstd / (double)size;
      for (int64_t i = 0; i < size; i++) {
        double slope = load(dy, at + i) * ((double)attr->offset + load(gain, i));
        store(dx, at + i, rstd * (slope - load(x, at + i) * rstd * mean));
      }
    }
    for (int64_t c = heads * size; c < width; c++) store(dx, r * width + c, load(dy, r * width + c));
  }
}
