/* embed_body.h - lookup in the token and position tables, the gradients of both tables, and the sum
 * of the losses. Included once per ISA (elementwise_*.c). If chips share the token table, each chip
 * has consecutive rows of the table, and only the first chip adds positions. */

static float token_scale(const rf_call *call) {
  return call->op->attr.embed.scale == 0 ? 1.0f : call->op->attr.embed.scale;
}

/* This chip's row of the token table. -1: another chip has the row. */
RF_INLINE int64_t token_row(const rf_call *call, int32_t token) {
  if (!call->op->attr.axes) return token;
  int64_t words = rf_in(call, 2)->shape[0], row = token - rf_rank_of(call) * words;
  return row < 0 || row >= words ? -1 : row;
}

RF_INLINE void embed_rows(const rf_call *call, int64_t begin, int64_t end, bool positional, rf_dtype dtype,
                          rf_dtype table_dtype) {
  const int32_t *tokens = call->in[0], *positions = call->in[1];
  int64_t width = rf_in(call, 2)->shape[1];
  rf_v16 by = rf_v16_set1(token_scale(call));
  for (int64_t r = begin; r < end; r++) {
    int64_t row = token_row(call, tokens[r]);
    const void *token = row < 0 ? NULL : at_row(call->in[2], table_dtype, row, width);
    const void *position = positional ? at_row(call->in[3], table_dtype, positions[r], width) : NULL;
    void *x = (void *)at_row(call->out[0], dtype, r, width);
    for (int64_t i = 0; i < width; i += RF_LANES) {
      int n = piece(width, i);
      rf_v16 v = token ? rf_v16_mul(get(token, table_dtype, i, n), by) : rf_v16_zero();
      put(x, dtype, i, positional ? rf_v16_add(v, get(position, table_dtype, i, n)) : v, n);
    }
  }
}
/* Lookup in a packed table. Unpacks a row in pieces of PIECE channels. */
RF_INLINE void embed_packed_rows(const rf_call *call, int64_t begin, int64_t end, bool positional,
                                 rf_dtype dtype) {
  enum { PIECE = 256 };
  const int32_t *tokens = call->in[0], *positions = call->in[1];
  const rf_panels *panels = &rf_in(call, 2)->panels;
  int64_t width = rf_in(call, 2)->shape[1];
  rf_v16 by = rf_v16_set1(token_scale(call));
  for (int64_t r = begin; r < end; r++) {
    int64_t row = token_row(call, tokens[r]);
    const void *position = positional ? at_row(call->in[3], dtype, positions[r], width) : NULL;
    void *x = (void *)at_row(call->out[0], dtype, r, width);
    for (int64_t from = 0; from < width; from += PIECE) {
      float token[PIECE];
      int64_t count = width - from < PIECE ? width - from : PIECE;
      if (row < 0) memset(token, 0, sizeof token);
      else rf_panels_read(panels, call->in[2], row, from, count, token);
      for (int64_t i = 0; i < count; i += RF_LANES) {
        int n = piece(count, i);
        rf_v16 v = rf_v16_mul(get(token, RF_F32, i, n), by);
        put(x, dtype, from + i, positional ? rf_v16_add(v, get(position, dtype, from + i, n)) : v, n);
      }
    }
  }
}
static void embed_range(const rf_call *call, int64_t begin, int64_t end) {
  rf_dtype dtype = rf_out(call, 0)->dtype, table_dtype = rf_in(call, 2)->dtype;
  bool positional = call->in[3] && rf_rank_of(call) == 0;
  if (table_dtype == RF_PACKED) {
    if (positional) RF_FOR_DTYPE(embed_packed_rows, dtype, call, begin, end, true);
    else RF_FOR_DTYPE(embed_packed_rows, dtype, call, begin, end, false);
    return;
  }
  if (positional) RF_BY_DTYPE(embed_rows, dtype, table_dtype, call, begin, end, true);
  else RF_BY_DTYPE(embed_rows, dtype, table_dtype, call, begin, end, false);
}
static void embed_run(const rf_call *call) {
  rf_split(call, rf_rows_used(call, 0), 1, 12 * rf_in(call, 2)->shape[1], embed_range);
}

/* table[index[r] - first] += scale * dx[r] for ascending rows r of dx (n, D), in channels [from,
 * to). The table is the output with index `slot`. */
RF_INLINE void scatter_add(const rf_call *call, int slot, float scale, int64_t first, int64_t from,
                           int64_t to, rf_dtype dtype) {
  const int32_t *index = call->in[slot];
  float *table = call->out[slot];
  int64_t count = rf_out(call, slot)->shape[0], width = rf_in(call, 2)->shape[1],
          rows = rf_rows_used(call, 0);
  rf_v16 by = rf_v16_set1(scale);
  for (int64_t r = 0; r < rows; r++) {
    int64_t at = index[r] - first;
    if (at < 0 || at >= count) continue; /* another chip has this row */
    const void *dx = at_row(call->in[2], dtype, r, width);
    float *row = table + at * width;
    for (int64_t i = from; i < to; i += RF_LANES) {
      int n = piece(to, i);
      put(row, RF_F32, i, rf_v16_add(get(row, RF_F32, i, n), rf_v16_mul(get(dx, dtype, i, n), by)), n);
    }
  }
}
/* Each thread adds the rows for its own range of channels, in ascending order of tokens. */
static void embed_bwd_columns(const rf_call *call, int64_t from, int64_t to) {
  for (int slot = 0; slot < 2; slot++) {
    float scale = slot == 0 ? token_scale(call) : 1.0f;
    if (!call->out[slot]) continue;
    int64_t first = slot == 0 ? rf_rank_of(call) * rf_out(call, 0)->shape[0] : 0;
    RF_FOR_DTYPE(scatter_add, rf_in(call, 2)->dtype, call, slot, scale, first, from, to);
  }
}
static void embed_bwd_zero(const rf_call *call, int64_t begin, int64_t end) {
  memset((char *)call->out[0] + begin, 0, (size_t)(end - begin));
}
static void embed_bwd_run(const rf_call *call) {
  for (int slot = 0; slot < 2; slot++) {
    if (!call->out[slot] || rf_accumulates(call, slot)) continue;
    rf_call one = *call;
    one.out[0] = call->out[slot];
    rf_split(&one, rf_out(call, slot)->shape[0] * rf_out(call, slot)->shape[1] * 4, 4096, 1, embed_bwd_zero);
  }
  rf_split(call, rf_in(call, 2)->shape[1], RF_LANES, 12 * rf_rows_used(call, 0), embed_bwd_columns);
}

/* Reduces nll, argmax and labels (n) to metrics f64 (4): {sum of nll, valid tokens, correct tokens,
 * 0}. One thread sums in double in ascending order, because the input has only a few KiB. */
static void loss_sum_run(const rf_call *call) {
  const float *nll = call->in[0];
  const int32_t *argmax = call->in[1], *labels = call->in[2];
  double *metrics = call->out[0];
  if (!rf_accumulates(call, 0)) memset(metrics, 0, 4 * sizeof *metrics);
  int64_t rows = rf_rows_used(call, 0), valid = 0, correct = 0;
  double sum = metrics[0];
  for (int64_t r = 0; r < rows; r++) {
    if (labels[r] < 0) continue;
    sum += (double)nll[r];
    valid++;
    correct += argmax[r] == labels[r];
  }
  metrics[0] = sum;
  metrics[1] += (double)valid;
  metrics[2] += (double)correct;
}
