/* lora.c - the LoRA adapters of a linear layer. Each part of an adapter adds to its own range of
 * columns. */
#include "backend/reference/kernels.h"

/* u (M,N), h (M,P r), b (r,S) -> y (M,N) */
void rf_reference_lora(const rf_call *call) {
  const rf_lora_parts *parts = &call->op->attr.lora.parts;
  rf_view u = in_view(call, 0), h = in_view(call, 1), b = in_view(call, 2), y = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), columns = rf_in(call, 0)->shape[1],
          ranks = rf_in(call, 1)->shape[1];
  int64_t joined = rf_in(call, 2)->shape[1];
  bool wide = y.dtype == RF_F64;
  double scale = (double)call->op->attr.lora.scale;
  for (int64_t i = 0; i < rows * columns; i++) store(y, i, load(u, i));
  for (int p = 0; p < parts->count; p++)
    for (int64_t m = 0; m < rows; m++)
      for (int64_t c = 0; c < parts->columns[p]; c++) {
        double sum = 0;
        for (int64_t j = 0; j < parts->rank; j++)
          sum = exact_fma(wide, load(h, m * ranks + p * parts->rank + j),
                          exact_mul(wide, scale, load(b, j * joined + rf_lora_joined(parts, p) + c)), sum);
        int64_t at = m * columns + parts->at[p] + c;
        store(y, at, exact_add(wide, load(u, at), rounded(y.dtype, sum)));
      }
}

/* dy (M,N), h (M,P r), b (r,S) -> dh (M,P r)?, db (r,S)? */
void rf_reference_lora_bwd(const rf_call *call) {
  const rf_lora_parts *parts = &call->op->attr.lora.parts;
  rf_view dy = in_view(call, 0), h = in_view(call, 1), b = in_view(call, 2), dh = out_view(call, 0),
          db = out_view(call, 1);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), columns = rf_in(call, 0)->shape[1],
          ranks = rf_in(call, 1)->shape[1];
  int64_t joined = rf_in(call, 2)->shape[1];
  bool wide = dy.dtype == RF_F64;
  double scale = (double)call->op->attr.lora.scale;
  for (int p = 0; p < parts->count; p++)
    for (int64_t j = 0; j < parts->rank; j++) {
      int64_t rank = p * parts->rank + j, from = j * joined + rf_lora_joined(parts, p);
      for (int64_t m = 0; m < rows && dh.data; m++) {
        double sum = 0;
        for (int64_t c = 0; c < parts->columns[p]; c++)
          sum = exact_fma(wide, load(dy, m * columns + parts->at[p] + c),
                          exact_mul(wide, scale, load(b, from + c)), sum);
        store(dh, m * ranks + rank, sum);
      }
      for (int64_t c = 0; c < parts->columns[p] && db.data; c++) {
        double sum = start(call, 1, db, from + c);
        for (int64_t m = 0; m < rows; m++)
          sum = exact_fma(wide, exact_mul(wide, scale, load(h, m * ranks + rank)),
                          load(dy, m * columns + parts->at[p] + c), sum);
        store(db, from + c, sum);
      }
    }
}

/* Computes one row of lora_slots for part p of the adapter in slot `slot`. */
static void add_part(const rf_call *call, int64_t m, int64_t slot, int p) {
  const rf_lora_parts *parts = &call->op->attr.lora.parts;
  rf_view u = in_view(call, 0), x = in_view(call, 1), a = in_view(call, 2), b = in_view(call, 3),
          y = out_view(call, 0);
  int64_t columns = rf_in(call, 0)->shape[1], inner = rf_in(call, 1)->shape[1],
          ranks = rf_in(call, 2)->shape[2], joined = rf_in(call, 3)->shape[2];
  int64_t rank = ((const int32_t *)call->in[4])[slot * parts->count + p];
  bool wide = y.dtype == RF_F64;
  double h[RF_LORA_MAX_RANK];
  for (int64_t j = 0; j < rank; j++) {
    double sum = 0;
    for (int64_t k = 0; k < inner; k++)
      sum = exact_fma(wide, load(x, m * inner + k),
                      load(a, (slot * inner + k) * ranks + (int64_t)p * parts->rank + j), sum);
    h[j] = rounded(y.dtype, sum);
  }
  for (int64_t c = 0; c < parts->columns[p] && rank > 0; c++) {
    double sum = 0;
    for (int64_t j = 0; j < rank; j++)
      sum = exact_fma(wide, h[j], load(b, (slot * parts->rank + j) * joined + rf_lora_joined(parts, p) + c),
                      sum);
    int64_t at = m * columns + parts->at[p] + c;
    store(y, at, exact_add(wide, load(u, at), rounded(y.dtype, sum)));
  }
}

/* u (M,N), x (M,K), a (L,K,P r), b (L,r,S), ranks (L,P), slot (M) -> y (M,N) */
void rf_reference_lora_slots(const rf_call *call) {
  rf_view u = in_view(call, 0), y = out_view(call, 0);
  int64_t rows = rows_in_use(call, rf_in(call, 0)->shape[0]), columns = rf_in(call, 0)->shape[1];
  const int32_t *slot = call->in[5];
  for (int64_t i = 0; i < rows * columns; i++) store(y, i, load(u, i));
  for (int64_t m = 0; m < rows; m++)
    for (int p = 0; p < call->op->attr.lora.parts.count && slot[m] >= 0; p++) add_part(call, m, slot[m], p);
}
