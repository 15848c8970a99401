/* experts_body.h - the router, and the kernels that move rows to experts and back. Included once
 * per ISA (elementwise_*.c). If every expert has room for a fixed number of rows, rows without room
 * have place -1, and rows that no token fills are 0. */

/* Chooses the experts with the largest logits and applies softmax to these logits. Among equal
 * logits, the expert with the lower id comes first. NaN counts as the smallest logit. */
RF_INLINE void route_rows(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype) {
  int64_t experts = call->op->attr.experts.experts, used = call->op->attr.experts.used;
  for (int64_t r = begin; r < end; r++) {
    const void *logits = at_row(call->in[0], dtype, r, experts);
    float *weights = (float *)call->out[0] + r * used, value[RF_EXPERTS_USED_MAX] = {0};
    int32_t *chosen = (int32_t *)call->out[1] + r * used;
    float last = INFINITY;
    int64_t last_id = -1;
    /* finds the next expert in descending order of logits; among equal logits, the lower id comes
     * first */
    for (int64_t j = 0; j < used; j++) {
      float best = -INFINITY;
      int64_t best_id = -1;
      for (int64_t e = 0; e < experts; e++) {
        float x = rf_f32_get(logits, dtype, e);
        if (!(x == x)) x = -INFINITY;
        bool follows = x < last || (x == last && e > last_id);
        if (follows && (best_id < 0 || x > best)) {
          best = x;
          best_id = e;
        }
      }
      last = best;
      last_id = best_id;
      chosen[j] = (int32_t)best_id;
      value[j] = rf_f32_get(logits, dtype, best_id);
    }
    rf_v16 sum = rf_v16_zero(), top = rf_v16_set1(value[0]);
    for (int64_t j = 0; j < used; j += RF_LANES) {
      int n = piece(used, j);
      rf_v16 e = keep_first(rf_v16_exp(rf_v16_sub(get(value, RF_F32, j, n), top)), n);
      put(weights, RF_F32, j, e, n);
      sum = rf_v16_add(sum, e);
    }
    rf_v16 whole = rf_v16_set1(rf_v16_fold_sum(sum));
    for (int64_t j = 0; j < used; j += RF_LANES) {
      int n = piece(used, j);
      put(weights, RF_F32, j, rf_v16_div(get(weights, RF_F32, j, n), whole), n);
    }
  }
}
static void route_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_FOR_DTYPE(route_rows, rf_in(call, 0)->dtype, call, begin, end);
}
static void route_run(const rf_call *call) {
  int64_t rows = rf_rows_used(call, 0), experts = call->op->attr.experts.experts,
          used = call->op->attr.experts.used;
  const int32_t *chosen = call->out[1];
  int32_t *place = call->out[2], *starts = call->out[3];
  rf_split(call, rows, 16, 4 * experts * used, route_range);
  /* A counting sort. The last loop moves starts[e + 1] from the start to the end of expert e. */
  memset(starts, 0, (size_t)(experts + 1) * sizeof *starts);
  for (int64_t i = 0; i < rows * used; i++) starts[chosen[i] + 1]++;
  for (int64_t e = 0, at = 0; e < experts; e++) {
    int32_t count = starts[e + 1];
    starts[e + 1] = (int32_t)at;
    at += count;
  }
  for (int64_t i = 0; i < rows * used; i++) place[i] = starts[chosen[i] + 1]++;
  int64_t room = call->op->attr.experts.room;
  if (room == 0) return;
  for (int64_t i = 0; i < rows * used; i++) {
    int64_t index = place[i] - starts[chosen[i]];
    place[i] = index < room ? (int32_t)(chosen[i] * room + index) : -1;
  }
  for (int64_t e = 0; e <= experts; e++) starts[e] = (int32_t)(e * room);
}

RF_INLINE void route_bwd_rows(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype) {
  int64_t experts = call->op->attr.experts.experts, used = call->op->attr.experts.used;
  for (int64_t r = begin; r < end; r++) {
    const float *weights = (const float *)call->in[1] + r * used,
                *dweights = (const float *)call->in[3] + r * used;
    const int32_t *chosen = (const int32_t *)call->in[2] + r * used;
    void *dlogits = (void *)at_row(call->out[0], dtype, r, experts);
    rf_v16 sum = rf_v16_zero();
    for (int64_t j = 0; j < used; j += RF_LANES) {
      int n = piece(used, j);
      sum = rf_v16_add(sum, rf_v16_mul(get(weights, RF_F32, j, n), get(dweights, RF_F32, j, n)));
    }
    float mean = rf_v16_fold_sum(sum);
    memset(dlogits, 0, (size_t)(experts * (dtype == RF_BF16 ? 2 : 4)));
    for (int64_t j = 0; j < used; j++) {
      float slope = weights[j] * (dweights[j] - mean);
      if (dtype == RF_BF16) ((rf_bf16 *)dlogits)[chosen[j]] = rf_f32_to_bf16(slope);
      else ((float *)dlogits)[chosen[j]] = slope;
    }
  }
}
static void route_bwd_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_FOR_DTYPE(route_bwd_rows, rf_in(call, 0)->dtype, call, begin, end);
}
static void route_bwd_run(const rf_call *call) {
  rf_split(call, rf_rows_used(call, 0), 16, 8 * call->op->attr.experts.experts, route_bwd_range);
}

/* Number of tokens in this run. Input `slot` has `used` rows for each token. */
RF_INLINE int64_t tokens_used(const rf_call *call, int slot) {
  return rf_rows_of_pass(call->graph, rf_in(call, slot)->shape[0] / call->op->attr.experts.used,
                         call->run->rows);
}

static void dispatch_range(const rf_call *call, int64_t begin, int64_t end) {
  rf_dtype dtype = rf_in(call, 0)->dtype;
  int64_t width = rf_in(call, 0)->shape[1], used = call->op->attr.experts.used,
          bytes = width * (dtype == RF_BF16 ? 2 : 4);
  const int32_t *place = call->in[1];
  for (int64_t i = begin * used; i < end * used; i++)
    if (place[i] >= 0)
      memcpy((char *)call->out[0] + place[i] * bytes, (const char *)call->in[0] + i / used * bytes,
             (size_t)bytes);
}
/* Sets all rows to 0 if experts have a fixed number of rows. */
RF_INLINE void clear_room(const rf_call *call) {
  if (call->op->attr.experts.room > 0 && call->out[0])
    memset(call->out[0], 0, (size_t)rf_tensor_bytes(rf_out(call, 0)));
}
static void dispatch_run(const rf_call *call) {
  clear_room(call);
  rf_split(call, tokens_used(call, 1), 1, 4 * rf_in(call, 0)->shape[1] * (1 + call->op->attr.experts.used),
           dispatch_range);
}

/* Sets row r of out[0] to the sum of the rows of token r in in[0]. If `weighted`, the sum
 * multiplies each row by its weight in in[1]. */
RF_INLINE void sum_of_choices(const rf_call *call, int64_t begin, int64_t end, bool weighted,
                              rf_dtype dtype) {
  int64_t width = rf_in(call, 0)->shape[1], used = call->op->attr.experts.used;
  const float *weights = call->in[1];
  const int32_t *place = call->in[weighted ? 2 : 1];
  for (int64_t r = begin; r < end; r++)
    for (int64_t d = 0; d < width; d += RF_LANES) {
      int n = piece(width, d);
      rf_v16 sum = rf_v16_zero();
      for (int64_t i = r * used; i < (r + 1) * used; i++) {
        if (place[i] < 0) continue;
        rf_v16 x = get(at_row(call->in[0], dtype, place[i], width), dtype, d, n);
        sum = weighted ? rf_v16_fma(rf_v16_set1(weights[i]), x, sum) : rf_v16_add(sum, x);
      }
      put((void *)at_row(call->out[0], dtype, r, width), dtype, d, sum, n);
    }
}
static void dispatch_bwd_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_FOR_DTYPE(sum_of_choices, rf_in(call, 0)->dtype, call, begin, end, false);
}
static void dispatch_bwd_run(const rf_call *call) {
  rf_split(call, tokens_used(call, 1), 1, 4 * rf_in(call, 0)->shape[1] * (1 + call->op->attr.experts.used),
           dispatch_bwd_range);
}

static void combine_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_FOR_DTYPE(sum_of_choices, rf_in(call, 0)->dtype, call, begin, end, true);
}
static void combine_run(const rf_call *call) {
  rf_split(call, tokens_used(call, 2), 1, 4 * rf_in(call, 0)->shape[1] * (1 + call->op->attr.experts.used),
           combine_range);
}

RF_INLINE void combine_bwd_rows(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype) {
  int64_t width = rf_in(call, 0)->shape[1], used = call->op->attr.experts.used;
  const float *weights = call->in[1];
  const int32_t *place = call->in[2];
  float *dweights = call->out[1];
  for (int64_t i = begin * used; i < end * used; i++) {
    if (place[i] < 0) {
      if (dweights) dweights[i] = 0;
      continue;
    }
    const void *h = at_row(call->in[0], dtype, place[i], width),
               *dy = at_row(call->in[3], dtype, i / used, width);
    void *dh = call->out[0] ? (void *)at_row(call->out[0], dtype, place[i], width) : NULL;
    rf_v16 dot = rf_v16_zero(), weight = rf_v16_set1(weights[i]);
    for (int64_t d = 0; d < width; d += RF_LANES) {
      int n = piece(width, d);
      rf_v16 slope = get(dy, dtype, d, n);
      dot = rf_v16_add(dot, rf_v16_mul(get(h, dtype, d, n), slope));
      if (dh) put(dh, dtype, d, rf_v16_mul(weight, slope), n);
    }
    if (dweights) dweights[i] = rf_v16_fold_sum(dot);
  }
}
static void combine_bwd_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_FOR_DTYPE(combine_bwd_rows, rf_in(call, 0)->dtype, call, begin, end);
}
static void combine_bwd_run(const rf_call *call) {
  clear_room(call);
  rf_split(call, tokens_used(call, 2), 1,
           4 * rf_in(call, 0)->shape[1] * (1 + 2 * call->op->attr.experts.used), combine_bwd_range);
}
