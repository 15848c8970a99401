/* head_norm_body.h - RMSNorm on each query and key head of a fused qkv row, forward and backward.
 * elementwise_*.c include this file after norm_body.h, whose functions get a head as a row. */

RF_INLINE void head_norm_rows(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype,
                              rf_dtype gain_dtype) {
  const rf_attr_head_norm *attr = &call->op->attr.head_norm;
  int64_t width = rf_in(call, 0)->shape[1], size = attr->head_dim, heads = attr->heads + attr->kv_heads;
  for (int64_t r = begin; r < end; r++) {
    const char *x = at_row(call->in[0], dtype, r, width);
    char *y = (char *)(uintptr_t)at_row(call->out[0], dtype, r, width);
    for (int64_t h = 0; h < heads; h++) {
      float rstd;
      const norm_forward row = {.x = at_row(x, dtype, h, size),
                                .gain = call->in[h < attr->heads ? 1 : 2],
                                .y = (void *)(uintptr_t)at_row(y, dtype, h, size),
                                .stats = call->out[1] ? (float *)call->out[1] + r * heads + h : &rstd,
                                .width = size,
                                .eps = attr->eps,
                                .offset = attr->offset};
      norm_row(&row, false, dtype, gain_dtype);
    }
    if (x != y)
      memcpy((void *)(uintptr_t)at_row(y, dtype, heads, size), at_row(x, dtype, heads, size),
             (size_t)(at_row(x, dtype, 1, width) - at_row(x, dtype, heads, size)));
  }
}
static void head_norm_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_BY_DTYPE(head_norm_rows, rf_in(call, 0)->dtype, rf_in(call, 1)->dtype, call, begin, end);
}
static void head_norm_run(const rf_call *call) {
  rf_split(call, rf_rows_used(call, 0), 1, 8 * rf_in(call, 0)->shape[1], head_norm_range);
}

RF_INLINE void head_norm_dx_rows(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype,
                                 rf_dtype gain_dtype) {
  const rf_attr_head_norm *attr = &call->op->attr.head_norm;
  int64_t width = rf_in(call, 0)->shape[1], size = attr->head_dim, heads = attr->heads + attr->kv_heads;
  for (int64_t r = begin; r < end; r++) {
    const char *x = at_row(call->in[0], dtype, r, width), *dy = at_row(call->in[4], dtype, r, width);
    char *dx = (char *)(uintptr_t)at_row(call->out[0], dtype, r, width);
    for (int64_t h = 0; h < heads; h++) {
      norm_gradient g = {.x = at_row(x, dtype, h, size),
                         .gain = call->in[h < attr->heads ? 1 : 2],
                         .dy = at_row(dy, dtype, h, size),
                         .stats = (const float *)call->in[3] + r * heads + h,
                         .dx = (void *)(uintptr_t)at_row(dx, dtype, h, size),
                         .width = size,
                         .offset = attr->offset};
      norm_dx_rows(&g, 0, 1, false, dtype, gain_dtype);
    }
    memcpy((void *)(uintptr_t)at_row(dx, dtype, heads, size), at_row(dy, dtype, heads, size),
           (size_t)(at_row(dy, dtype, 1, width) - at_row(dy, dtype, heads, size)));
  }
}
static void head_norm_dx_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_BY_DTYPE(head_norm_dx_rows, rf_in(call, 0)->dtype, rf_in(call, 1)->dtype, call, begin, end);
}

/* Computes channels [from, to) of the gradients of the gains. Adds rows in ascending order, and in
 * each row the heads in ascending order. */
RF_INLINE void head_norm_gain_columns(const rf_call *call, int64_t from, int64_t to, rf_dtype dtype,
                                      rf_dtype gain_dtype) {
  const rf_attr_head_norm *attr = &call->op->attr.head_norm;
  int64_t width = rf_in(call, 0)->shape[1], size = attr->head_dim, heads = attr->heads + attr->kv_heads,
          rows = rf_rows_used(call, 0);
  for (int slot = 1; slot <= 2; slot++) {
    float *dgain = call->out[slot];
    if (!dgain) continue;
    if (!rf_accumulates(call, slot)) memset(dgain + from, 0, (size_t)(to - from) * sizeof *dgain);
    for (int64_t r = 0; r < rows; r++) {
      for (int64_t h = slot == 1 ? 0 : attr->heads; h < (slot == 1 ? attr->heads : heads); h++) {
        norm_gradient g = {.x = at_row(at_row(call->in[0], dtype, r, width), dtype, h, size),
                           .dy = at_row(at_row(call->in[4], dtype, r, width), dtype, h, size),
                           .stats = (const float *)call->in[3] + r * heads + h,
                           .dgain = dgain,
                           .width = size};
        norm_gain_rows(&g, 0, 1, from, to, false, dtype, gain_dtype);
      }
    }
  }
}
static void head_norm_gain_range(const rf_call *call, int64_t from, int64_t to) {
  RF_BY_DTYPE(head_norm_gain_columns, rf_in(call, 0)->dtype, rf_in(call, 1)->dtype, call, from, to);
}
static void head_norm_bwd_run(const rf_call *call) {
  int64_t rows = rf_rows_used(call, 0), width = rf_in(call, 0)->shape[1];
  if (call->out[1] || call->out[2])
    rf_split(call, call->op->attr.head_norm.head_dim, RF_LANES,
             8 * rows * width / call->op->attr.head_norm.head_dim, head_norm_gain_range);
  if (call->out[0]) rf_split(call, rows, 1, 12 * width, head_norm_dx_range);
}
