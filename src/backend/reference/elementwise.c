/* elementwise.c - activations, sums and dropout. */
#include "backend/reference/kernels.h"

/* Number of elements in those rows of a tensor that this run uses. The first axis counts rows. */
static int64_t elements(const rf_call *call, const rf_tensor *tensor) {
  return rf_tensor_count(tensor) / tensor->shape[0] * rows_in_use(call, tensor->shape[0]);
}

/* u -> g = act(u) */
static void activation(const rf_call *call, double (*act)(double)) {
  rf_view u = in_view(call, 0), g = out_view(call, 0);
  int64_t count = elements(call, rf_in(call, 0));
  for (int64_t i = 0; i < count; i++) store(g, i, act(load(u, i)));
}

/* u, dg -> du = dg * slope(u) */
static void activation_bwd(const rf_call *call, double (*slope)(double)) {
  rf_view u = in_view(call, 0), dg = in_view(call, 1), du = out_view(call, 0);
  int64_t count = elements(call, rf_in(call, 0));
  for (int64_t i = 0; i < count; i++) store(du, i, load(dg, i) * slope(load(u, i)));
}

/* GELU in the exact form, 0.5 u (1 + erf(u / sqrt 2)), and its derivative. */
static double gelu_erf(double u) { return 0.5 * u * erfc(-u * M_SQRT1_2); }
static double gelu_erf_slope(double u) {
  return 0.5 * erfc(-u * M_SQRT1_2) + u * exp(-0.5 * u * u) * 0.5 * M_2_SQRTPI * M_SQRT1_2;
}

void rf_reference_gelu(const rf_call *call) { activation(call, gelu); }
void rf_reference_gelu_bwd(const rf_call *call) { activation_bwd(call, gelu_slope); }
void rf_reference_gelu_erf(const rf_call *call) { activation(call, gelu_erf); }
void rf_reference_gelu_erf_bwd(const rf_call *call) { activation_bwd(call, gelu_erf_slope); }

/* gate_up (n,2F) -> h (n,F) = act(gate) * up */
static void gated(const rf_call *call, double (*act)(double)) {
  rf_view gate_up = in_view(call, 0), h = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1] / 2;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t f = 0; f < width; f++) {
      int64_t at = r * 2 * width + f;
      store(h, r * width + f, act(load(gate_up, at)) * load(gate_up, at + width));
    }
}

/* gate_up (n,2F), dh (n,F) -> dgate_up (n,2F) */
static void gated_bwd(const rf_call *call, double (*act)(double), double (*slope_of)(double)) {
  rf_view gate_up = in_view(call, 0), dh = in_view(call, 1), out = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1] / 2;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t f = 0; f < width; f++) {
      int64_t at = r * 2 * width + f;
      double gate = load(gate_up, at), up = load(gate_up, at + width), slope = load(dh, r * width + f);
      store(out, at, slope * up * slope_of(gate));
      store(out, at + width, slope * act(gate));
    }
}

static double silu(double a) { return a / (1.0 + exp(-a)); }
static double silu_slope(double a) {
  double sigmoid = 1.0 / (1.0 + exp(-a));
  return sigmoid * (1.0 + a * (1.0 - sigmoid));
}

void rf_reference_swiglu(const rf_call *call) { gated(call, silu); }
void rf_reference_swiglu_bwd(const rf_call *call) { gated_bwd(call, silu, silu_slope); }
void rf_reference_geglu(const rf_call *call) { gated(call, gelu); }
void rf_reference_geglu_bwd(const rf_call *call) { gated_bwd(call, gelu, gelu_slope); }

/* a, b -> y */
void rf_reference_add(const rf_call *call) {
  rf_view a = in_view(call, 0), b = in_view(call, 1), y = out_view(call, 0);
  int64_t count = elements(call, rf_in(call, 0));
  for (int64_t i = 0; i < count; i++) store(y, i, load(a, i) + load(b, i));
}

/* x (n,D), h (n,D) -> y (n,D) = x + drop(h) */
void rf_reference_add_dropout(const rf_call *call) {
  rf_view x = in_view(call, 0), h = in_view(call, 1), y = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1];
  bool wide = y.dtype == RF_F64;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < width; c++) {
      int64_t at = r * width + c;
      store(y, at, exact_add(wide, load(x, at), drop(call, wide, r, c, load(h, at))));
    }
}

/* x (n,D) -> y (n,D) = drop(x): dropout before adapters. The backward pass of dropout is the same
 * function. */
void rf_reference_dropout(const rf_call *call) {
  rf_view dy = in_view(call, 0), dh = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), width = rf_in(call, 0)->shape[1];
  bool wide = dh.dtype == RF_F64;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < width; c++)
      store(dh, r * width + c, drop(call, wide, r, c, load(dy, r * width + c)));
}
