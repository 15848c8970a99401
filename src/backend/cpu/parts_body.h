/* parts_body.h - kernels that merge the results of several chips, and that move heads between rows
 * of qkv and their parts. Included once per ISA (elementwise_*.c). Sums over chips are in ascending
 * order. */

/* The sixteen lanes are sixteen rows. */
static void head_merge_range(const rf_call *call, int64_t begin, int64_t end) {
  const int32_t *labels = call->in[1];
  float *nll = call->out[0], *lse = call->out[2], *logprob = call->out[3];
  int32_t *argmax = call->out[1];
  int64_t columns = rf_in(call, 0)->shape[1];
  for (int64_t r0 = begin; r0 < end; r0 += RF_LANES) {
    const float *part = (const float *)call->in[0] + r0 * columns;
    int n = piece(end, r0);
    float most[RF_LANES] = {0}, best[RF_LANES] = {0}, label[RF_LANES] = {0}, m[RF_LANES] = {0}, s[RF_LANES],
          logs[RF_LANES];
    for (int i = 0; i < RF_LANES; i++) s[i] = 1; /* of lanes without a row */
    for (int i = 0; i < n; i++) most[i] = -INFINITY;
    for (int64_t c = 0; c < columns; c += 4)
      for (int i = 0; i < n; i++) {
        const float *of = part + i * columns + c;
        label[i] += of[2];
        if (!(of[0] > most[i])) continue;
        most[i] = of[0];
        best[i] = of[3];
      }
    rf_v16 sum = rf_v16_zero(), top = rf_v16_load(most);
    for (int64_t c = 0; c < columns; c += 4) {
      for (int i = 0; i < n; i++) {
        m[i] = part[i * columns + c];
        s[i] = part[i * columns + c + 1];
      }
      sum = rf_v16_fma(rf_v16_load(s), rf_v16_exp(rf_v16_sub(rf_v16_load(m), top)), sum);
    }
    rf_v16_store(logs, rf_v16_log(sum));
    for (int i = 0; i < n; i++) {
      int64_t r = r0 + i;
      float value = labels[r] < 0 ? 0.0f : (float)((double)most[i] + (double)logs[i] - (double)label[i]);
      if (nll) nll[r] = value;
      if (argmax) argmax[r] = (int32_t)best[i];
      if (lse) lse[r] = most[i] + logs[i];
      if (logprob) logprob[r] = -value;
    }
  }
}
static void head_merge_run(const rf_call *call) {
  rf_split(call, rf_rows_used(call, 0), RF_LANES, 8 * rf_in(call, 0)->shape[1], head_merge_range);
}

enum { RF_MERGED_PARTS = 64 };
static int64_t merged_parts(const rf_graph *graph, const rf_op *op) {
  return graph->tensor[op->input[1]].shape[1] / op->attr.attention.heads;
}

/* First the lanes are sixteen heads, then sixteen channels of one head. */
RF_INLINE void attention_merge_rows(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype) {
  int64_t heads = call->op->attr.attention.heads, parts = merged_parts(call->graph, call->op),
          width = rf_out(call, 0)->shape[1], dim = width / heads;
  float weight[RF_MERGED_PARTS][RF_LANES];
  for (int64_t r = begin; r < end; r++) {
    const float *lse = (const float *)call->in[1] + r * parts * heads;
    const void *from = at_row(call->in[0], dtype, r, parts * width);
    void *ctx = (void *)at_row(call->out[0], dtype, r, width);
    for (int64_t h = 0; h < heads; h += RF_LANES) {
      int n = piece(heads, h);
      rf_v16 most = rf_v16_set1(-INFINITY), sum = rf_v16_zero();
      for (int64_t p = 0; p < parts; p++) most = rf_v16_max(get(lse + p * heads, RF_F32, h, n), most);
      for (int64_t p = 0; p < parts; p++) {
        rf_v16 w = rf_v16_exp(rf_v16_sub(get(lse + p * heads, RF_F32, h, n), most));
        rf_v16_store(weight[p], w);
        sum = rf_v16_add(sum, w);
      }
      for (int64_t p = 0; p < parts; p++) rf_v16_store(weight[p], rf_v16_div(rf_v16_load(weight[p]), sum));
      for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < dim; d += RF_LANES) {
          int count = piece(dim, d);
          int64_t at = (h + i) * dim + d;
          rf_v16 x = rf_v16_zero();
          for (int64_t p = 0; p < parts; p++)
            x = rf_v16_fma(rf_v16_set1(weight[p][i]), get(from, dtype, p * width + at, count), x);
          put(ctx, dtype, at, x, count);
        }
    }
  }
}
static void attention_merge_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_FOR_DTYPE(attention_merge_rows, rf_in(call, 0)->dtype, call, begin, end);
}
static void attention_merge_run(const rf_call *call) {
  rf_split(call, rf_in(call, 0)->shape[0], 1, 4 * rf_in(call, 0)->shape[1], attention_merge_range);
}

static void kv_rows_range(const rf_call *call, int64_t begin, int64_t end) {
  rf_dtype dtype = rf_in(call, 0)->dtype;
  int64_t width = rf_in(call, 0)->shape[1], kv = rf_out(call, 0)->shape[1];
  for (int64_t r = begin; r < end; r++)
    memcpy((void *)at_row(call->out[0], dtype, r, kv), at_row(call->in[0], dtype, 1, (r + 1) * width - kv),
           (size_t)(kv * rf_dtype_bytes(dtype)));
}
static void kv_rows_run(const rf_call *call) {
  rf_split(call, rf_out(call, 0)->shape[0], 1, 8 * rf_out(call, 0)->shape[1], kv_rows_range);
}

static void kv_join_range(const rf_call *call, int64_t begin, int64_t end) {
  rf_dtype dtype = rf_in(call, 0)->dtype;
  int64_t q = rf_in(call, 0)->shape[1], kv = rf_in(call, 1)->shape[1];
  for (int64_t r = begin; r < end; r++) {
    char *row = (char *)(uintptr_t)at_row(call->out[0], dtype, r, q + kv);
    memcpy(row, at_row(call->in[0], dtype, r, q), (size_t)(q * rf_dtype_bytes(dtype)));
    memcpy(row + q * rf_dtype_bytes(dtype), at_row(call->in[1], dtype, r, kv),
           (size_t)(kv * rf_dtype_bytes(dtype)));
  }
}
static void kv_join_run(const rf_call *call) {
  rf_split(call, rf_out(call, 0)->shape[0], 1, 8 * rf_out(call, 0)->shape[1], kv_join_range);
}
