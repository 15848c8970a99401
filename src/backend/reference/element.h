/* element.h - functions of the reference kernels that load, compute and store elements of any dtype
 * as doubles. A double holds every f32 and bf16 value exactly, and also the product of two such
 * values. So one function works for all dtypes. */
#ifndef RF_REFERENCE_ELEMENT_H
#define RF_REFERENCE_ELEMENT_H

#include "backend/kernel.h"

#include <math.h>

#define RF_UNUSED __attribute__((unused))

typedef struct rf_view {
  void *data; /* elements of the tensor; NULL: the op lacks this input or output */
  rf_dtype dtype;
  const rf_tensor *tensor; /* read only if the tensor is a packed matrix */
} rf_view;

RF_UNUSED static rf_view in_view(const rf_call *call, int slot) {
  if (!call->in[slot]) return (rf_view){NULL, RF_F32, NULL};
  return (rf_view){(void *)(uintptr_t)call->in[slot], rf_in(call, slot)->dtype, rf_in(call, slot)};
}

RF_UNUSED static rf_view out_view(const rf_call *call, int slot) {
  if (!call->out[slot]) return (rf_view){NULL, RF_F32, NULL};
  return (rf_view){call->out[slot], rf_out(call, slot)->dtype, rf_out(call, slot)};
}

/* Element i of a packed matrix, in the order of the parameter's axes. Not inlined, so that `load` is
 * short for other dtypes. */
__attribute__((unused, noinline)) static double packed_value(rf_view view, int64_t i) {
  const rf_panels *panels = &view.tensor->panels;
  int64_t columns = view.tensor->shape[1], row = i / columns, column = i % columns, expert = 0;
  float value;
  rf_panels one = rf_panels_one(panels);
  if (panels->experts > 0) {
    expert = row / panels->inner;
    row %= panels->inner;
  }
  rf_panels_read(&one, (const char *)view.data + expert * rf_panels_bytes(&one),
                 panels->outputs_first ? row : column, panels->outputs_first ? column : row, 1, &value);
  return value;
}

/* Always inlined. Otherwise clang calls it for each element, and with sanitizers the test of sharded
 * graphs takes 52 s instead of 32 s of processor time. */
__attribute__((unused, always_inline)) static inline double load(rf_view view, int64_t i) {
  switch (view.dtype) {
  case RF_F32: return ((const float *)view.data)[i];
  case RF_BF16: return rf_bf16_to_f32(((const rf_bf16 *)view.data)[i]);
  case RF_F16: return rf_f16_to_f32(((const uint16_t *)view.data)[i]);
  case RF_F64: return ((const double *)view.data)[i];
  case RF_PACKED: return packed_value(view, i);
  default: return NAN;
  }
}

RF_UNUSED static void store(rf_view view, int64_t i, double x) {
  switch (view.dtype) {
  case RF_F32: ((float *)view.data)[i] = (float)x; break;
  case RF_BF16: ((rf_bf16 *)view.data)[i] = rf_f32_to_bf16((float)x); break;
  case RF_F16: ((uint16_t *)view.data)[i] = rf_f32_to_f16((float)x); break;
  case RF_F64: ((double *)view.data)[i] = x; break;
  default: break;
  }
}

RF_UNUSED static double rounded(rf_dtype dtype, double x) {
  if (dtype == RF_F64) return x;
  float f = (float)x;
  if (dtype == RF_BF16) f = rf_bf16_to_f32(rf_f32_to_bf16(f));
  if (dtype == RF_F16) f = rf_f16_to_f32(rf_f32_to_f16(f));
  return f;
}

/* Reads `count` values of w along the summed axis: elements at, at + step, at + 2 * step, ... In a
 * packed matrix, these values belong to one output, and `count` is RF_QUANT_BLOCK_MAX at most. */
RF_UNUSED static void along(rf_view w, int64_t at, int64_t step, int64_t count, double *values) {
  if (w.dtype != RF_PACKED) {
    for (int64_t i = 0; i < count; i++) values[i] = load(w, at + i * step);
    return;
  }
  const rf_panels *panels = &w.tensor->panels;
  rf_panels one = rf_panels_one(panels);
  int64_t columns = w.tensor->shape[1], row = at / columns, column = at % columns, expert = 0;
  float packed[RF_QUANT_BLOCK_MAX];
  if (panels->experts > 0) {
    expert = row / panels->inner;
    row %= panels->inner;
  }
  bool first = panels->outputs_first;
  rf_panels_read(&one, (const char *)w.data + expert * rf_panels_bytes(&one), first ? row : column,
                 first ? column : row, count, packed);
  for (int64_t i = 0; i < count; i++) values[i] = (double)packed[i];
}
/* Number of values of x with a common scale in a product with the values of w from `at` on. */
RF_UNUSED static int64_t rounded_block(rf_view w, int64_t at) {
  if (w.dtype != RF_PACKED) return RF_FAST_BLOCK;
  const rf_panels *panels = &w.tensor->panels;
  rf_panels one = rf_panels_one(panels);
  int64_t columns = w.tensor->shape[1];
  return rf_fast_block_of(rf_panels_find(&one, panels->outputs_first ? at / columns : at % columns).type);
}

/* One block of `count` values of x, rounded to integers from -levels to levels, times values of w. */
RF_UNUSED static double rounded_block_dot(rf_view x, int64_t at, const double *w, int64_t count,
                                          float levels) {
  double dot = 0;
  float most = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; i++) {
    float value = (float)load(x, at + i);
    finite = finite && isfinite(value);
    if (fabsf(value) > most) most = fabsf(value);
  }
  float steps = most > 0 ? levels / most : 0.0f;
  if (isinf(steps)) most = steps = 0;
  for (int64_t i = 0; i < count; i++) dot += (double)nearbyintf((float)load(x, at + i) * steps) * w[i];
  return finite ? (double)(most / levels) * dot : (double)NAN;
}

/* The values of w that belong to one output: elements at, at + step, at + 2 * step, ... */
typedef struct rf_line {
  rf_view w;
  int64_t at, step, inner; /* inner: number of values, and of elements in a row of x */
} rf_line;

/* For `rows` rows of x, from element x_at on: the sum over k of x[k], rounded to 8 bits, times value
 * k of w (attr.matmul.fast). A block of x becomes a scale, max|x| / 127, and integers, round(x /
 * scale), ties to even. If 127 / max|x| overflows, the scale is 0. A NaN or infinity makes the sum
 * NaN. If w is int8, x is rounded to 16 bits: a block has RF_FAST_INT8_BLOCK values and the scale
 * max|x| / 32639. */
RF_UNUSED static void rounded_dots(rf_view x, int64_t x_at, int64_t rows, rf_line w, double *sums) {
  bool wide = w.w.dtype == RF_PACKED && w.w.tensor->panels.part[0].type->number == RF_Q_INT8;
  int64_t block = wide ? RF_FAST_INT8_BLOCK : rounded_block(w.w, w.at);
  for (int64_t r = 0; r < rows; r++) sums[r] = 0;
  for (int64_t k = 0; k < w.inner; k += block) {
    double values[RF_QUANT_BLOCK_MAX];
    int64_t count = block < w.inner - k ? block : w.inner - k;
    along(w.w, w.at + k * w.step, w.step, count, values);
    for (int64_t r = 0; r < rows; r++)
      sums[r] += rounded_block_dot(x, x_at + r * w.inner + k, values, count, wide ? 32639.0f : 127.0f);
  }
  for (int64_t r = 0; r < rows; r++) sums[r] = (double)(float)sums[r];
}

/* Arithmetic in f32, or in f64 if `wide`. Each rounding is part of the op's definition. */
RF_UNUSED static double exact_fma(bool wide, double a, double b, double sum) {
  return wide ? sum + a * b : (double)fmaf((float)a, (float)b, (float)sum);
}
/* For `rows` rows of x: the sum over k of x[k] times value k of w, one chain in ascending order. The
 * values of w are read once for all rows, because it takes long to find a value of a packed matrix. */
RF_UNUSED static void exact_dots(bool wide, rf_view x, int64_t x_at, int64_t rows, rf_line w, double *sums) {
  for (int64_t r = 0; r < rows; r++) sums[r] = 0;
  for (int64_t k = 0; k < w.inner; k += RF_QUANT_BLOCK_MAX) {
    double values[RF_QUANT_BLOCK_MAX];
    int64_t count = RF_QUANT_BLOCK_MAX < w.inner - k ? RF_QUANT_BLOCK_MAX : w.inner - k;
    along(w.w, w.at + k * w.step, w.step, count, values);
    for (int64_t r = 0; r < rows; r++) {
      double sum = sums[r];
      for (int64_t i = 0; i < count; i++)
        sum = exact_fma(wide, load(x, x_at + r * w.inner + k + i), values[i], sum);
      sums[r] = sum;
    }
  }
}
/* The same for one row, rounded or exact. */
RF_UNUSED static double product_dot(bool fast, bool wide, rf_view x, int64_t x_at, rf_line w) {
  double sum;
  if (fast) rounded_dots(x, x_at, 1, w, &sum);
  else exact_dots(wide, x, x_at, 1, w, &sum);
  return sum;
}
RF_UNUSED static double exact_add(bool wide, double a, double b) {
  return wide ? a + b : (double)((float)a + (float)b);
}
RF_UNUSED static double exact_mul(bool wide, double a, double b) {
  return wide ? a * b : (double)((float)a * (float)b);
}

RF_UNUSED static const int32_t *ids(const rf_call *call, int slot) { return call->in[slot]; }

/* Number of rows that this run uses of a tensor with `bound` rows. */
RF_UNUSED static int64_t rows_in_use(const rf_call *call, int64_t bound) {
  return rf_rows_of_pass(call->graph, bound, call->run->rows);
}

/* True if output `slot` adds to the present value of its tensor. */
RF_UNUSED static bool adds(const rf_call *call, int slot) {
  rf_accumulate how = call->op->attr.accumulate[slot];
  return how == RF_ACCUMULATE_ADD || (how == RF_ACCUMULATE_MICRO && call->run->micro > 0);
}
/* The value from which a sum into element i of output `slot` starts. */
RF_UNUSED static double start(const rf_call *call, int slot, rf_view view, int64_t i) {
  return adds(call, slot) ? load(view, i) : 0.0;
}

/* ---- functions that several ops use ---------------------------------------------------------- */

/* GELU in the tanh form, 0.5 u (1 + tanh(sqrt(2/pi) (u + 0.044715 u^3))), and its derivative. */
RF_UNUSED static double gelu(double u) {
  return 0.5 * u * (1.0 + tanh(0.79788456080286535588 * (u + 0.044715 * u * u * u)));
}
RF_UNUSED static double gelu_slope(double u) {
  double t = tanh(0.79788456080286535588 * (u + 0.044715 * u * u * u));
  return 0.5 * (1.0 + t) + 0.5 * u * (1.0 - t * t) * 0.79788456080286535588 * (1.0 + 3.0 * 0.044715 * u * u);
}

/* capped returns cap tanh(x / cap), or x if cap is 0. cap_slope computes the derivative of capped
 * from the result of capped. */
RF_UNUSED static double capped(float cap, double x) {
  return cap > 0 ? (double)cap * tanh(x / (double)cap) : x;
}
RF_UNUSED static double cap_slope(float cap, double value) {
  return cap > 0 ? 1.0 - value / (double)cap * (value / (double)cap) : 1.0;
}

/* Dropout of x at (row, channel): either 0 or x times 1/(1-p). No mask is stored. Every call for
 * the same (row, channel) draws the same random number. */
RF_UNUSED static double drop(const rf_call *call, bool wide, int64_t row, int64_t channel, double x) {
  const rf_attr_dropout *attr = &call->op->attr.dropout;
  const rf_run_inputs *run = call->run;
  if (!(attr->rate > 0)) return x;
  uint32_t words[4];
  int64_t step = attr->token_step > 0 ? attr->token_step : 1;
  if (call->op->def->fields == RF_FIELDS_DROPOUT) channel += rf_rank_of(call) * rf_in(call, 0)->shape[1];
  rf_philox(rf_key(run->seed, (uint64_t)run->step, attr->site), (uint64_t)(run->first_token + row * step),
            (uint64_t)(channel / 4), words);
  return rf_uniform(words[channel % 4]) >= attr->rate
             ? exact_mul(wide, x, (double)(1.0f / (1.0f - attr->rate)))
             : 0.0;
}

#endif
