/* matmul.c - the matmul family. Each output element is one chain of f32 fused multiply-adds in
 * ascending order of the summed index. For f64, an output element is a sum in double. Every other
 * kernel must give bit-identical results, except products of bf16 with tiles
 * (backend/cpu/gemm.h). */
#include "backend/reference/kernels.h"

static int64_t weight_at(const rf_call *call, int64_t k, int64_t n, int64_t inner, int64_t columns) {
  return call->op->attr.matmul.transpose ? n * inner + k : k * columns + n;
}

/* x (M,K), w (K,N) or (N,K), bias (N)?, residual (M,N)? -> u (M,N)?, out (M,N)? */
void rf_reference_matmul(const rf_call *call) {
  enum { ROWS = 8 }; /* number of rows for which a column of w is read once */
  const rf_attr_matmul *attr = &call->op->attr.matmul;
  rf_view x = in_view(call, 0), w = in_view(call, 1), bias = in_view(call, 2), residual = in_view(call, 3);
  rf_view u = out_view(call, 0), out = out_view(call, 1);
  const rf_tensor *result = u.data ? rf_out(call, 0) : rf_out(call, 1);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), inner = rf_in(call, 0)->shape[1],
          columns = result->shape[1];
  bool wide = result->dtype == RF_F64;
  for (int64_t m = 0; m < rows; m += ROWS)
    for (int64_t n = 0; n < columns; n++) {
      int64_t count = rows - m < ROWS ? rows - m : ROWS;
      rf_line line = {w, weight_at(call, 0, n, inner, columns), attr->transpose ? 1 : columns, inner};
      double sums[ROWS];
      if (attr->fast) rounded_dots(x, m * inner, count, line, sums);
      else exact_dots(wide, x, m * inner, count, line, sums);
      for (int64_t r = 0; r < count; r++) {
        double sum = sums[r];
        if (bias.data && rf_rank_of(call) == 0) sum = exact_add(wide, sum, load(bias, n));
        int64_t at = (m + r) * columns + n;
        double value = rounded(result->dtype, sum);
        if (u.data) store(u, at, value);
        if (attr->epilogue == RF_EPILOGUE_GELU && out.data) store(out, at, gelu(value));
        if (attr->epilogue == RF_EPILOGUE_RESIDUAL && out.data)
          store(out, at, exact_add(wide, load(residual, at), drop(call, wide, m + r, n, value)));
      }
    }
}

/* sums[i] += y w[at + i step], for one output of w. A packed matrix is read in one block. */
static void add_products(bool wide, double y, rf_view w, int64_t at, int64_t step, int64_t count,
                         double sums[RF_QUANT_BLOCK_MAX]) {
  double values[RF_QUANT_BLOCK_MAX];
  along(w, at, step, count, values);
  for (int64_t i = 0; i < count; i++) sums[i] = exact_fma(wide, y, values[i], sums[i]);
}

/* dy (M,N), w, u (M,K)? -> dx (M,K)?, du (M,K)?: dx = dy w^T; with u, du = rounded dx * gelu'(u) */
void rf_reference_matmul_dx(const rf_call *call) {
  rf_view dy = in_view(call, 0), w = in_view(call, 1), u = in_view(call, 2), dx = out_view(call, 0),
          du = out_view(call, 1);
  const rf_tensor *result = dx.data ? rf_out(call, 0) : rf_out(call, 1);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), columns = rf_in(call, 0)->shape[1],
          inner = result->shape[1];
  bool wide = result->dtype == RF_F64;
  for (int64_t m = 0; m < rows; m++)
    for (int64_t k = 0; k < inner; k += RF_QUANT_BLOCK_MAX) {
      int64_t count = RF_QUANT_BLOCK_MAX < inner - k ? RF_QUANT_BLOCK_MAX : inner - k;
      double sums[RF_QUANT_BLOCK_MAX] = {0};
      for (int64_t n = 0; n < columns; n++)
        add_products(wide, load(dy, m * columns + n), w, weight_at(call, k, n, inner, columns),
                     call->op->attr.matmul.transpose ? 1 : columns, count, sums);
      for (int64_t i = 0; i < count; i++) {
        int64_t at = m * inner + k + i;
        double value = rounded(result->dtype, sums[i]);
        double slope = u.data ? gelu_slope(load(u, at)) : 1.0;
        if (dx.data) store(dx, at, value);
        if (du.data) store(du, at, value * slope);
      }
    }
}

/* x (M,K), dy (M,N) -> dw with the shape of w, dbias (N)?: sums over ascending rows. If the output
 * accumulates, a sum starts from the present value. */
void rf_reference_matmul_dw(const rf_call *call) {
  rf_view x = in_view(call, 0), dy = in_view(call, 1), dw = out_view(call, 0), dbias = out_view(call, 1);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), inner = rf_in(call, 0)->shape[1],
          columns = rf_in(call, 1)->shape[1];
  bool wide = rf_in(call, 0)->dtype == RF_F64;
  for (int64_t k = 0; k < inner && dw.data; k++)
    for (int64_t n = 0; n < columns; n++) {
      int64_t at = weight_at(call, k, n, inner, columns);
      double sum = start(call, 0, dw, at);
      for (int64_t m = 0; m < rows; m++)
        sum = exact_fma(wide, load(x, m * inner + k), load(dy, m * columns + n), sum);
      store(dw, at, sum);
    }
  for (int64_t n = 0; n < columns && dbias.data; n++) {
    double sum = start(call, 1, dbias, n);
    for (int64_t m = 0; m < rows; m++) sum = exact_add(wide, sum, load(dy, m * columns + n));
    store(dbias, n, sum);
  }
}
