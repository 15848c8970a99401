/* norm_body.h - LayerNorm and RMSNorm, forward and backward. Included once per ISA
 * (elementwise_*.c). A sum over the D channels of a row has sixteen partial sums over ascending
 * channels, with lane = channel mod 16. Then the tree of rf_v16_fold_sum adds the partial sums. A
 * sum over tokens (dgain, dbias) is a sequence of plain f32 additions per channel, in ascending
 * rows. Threads divide the channels. */

/* Channels of a row are read sixteen at a time. Missing lanes at the end of the row read as 0. */
RF_INLINE int piece(int64_t width, int64_t i) { return width - i < RF_LANES ? (int)(width - i) : RF_LANES; }
RF_INLINE rf_v16 get(const void *p, rf_dtype dtype, int64_t i, int n) {
  return n == RF_LANES ? rf_v16_get(p, dtype, i) : rf_v16_get_n(p, dtype, i, n);
}
RF_INLINE void put(void *p, rf_dtype dtype, int64_t i, rf_v16 x, int n) {
  if (n == RF_LANES) rf_v16_put(p, dtype, i, x);
  else rf_v16_put_n(p, dtype, i, x, n);
}
RF_INLINE const char *at_row(const void *p, rf_dtype dtype, int64_t row, int64_t width) {
  return (const char *)p + row * width * (dtype == RF_BF16 ? 2 : 4);
}
RF_INLINE rf_v16 keep_first(rf_v16 x, int n) {
  return n == RF_LANES ? x : rf_v16_select(rf_m16_first(n), x, rf_v16_zero());
}

/* Loads offset + gain. Only Gemma has an offset other than 0. */
RF_INLINE rf_v16 gain_of(const void *gain, rf_dtype dtype, int64_t i, int n, float offset) {
  rf_v16 g = get(gain, dtype, i, n);
  return offset != 0 ? rf_v16_add(rf_v16_set1(offset), g) : g;
}

/* A row to normalize. A row's statistics are {mean, rstd} (LayerNorm) or {rstd} (RMSNorm). */
typedef struct norm_forward {
  const void *x, *gain, *bias;
  void *y;
  float *stats;
  int64_t width;
  float eps, offset;
} norm_forward;
RF_INLINE void norm_row(const norm_forward *row, bool centre, rf_dtype dtype, rf_dtype gain_dtype) {
  const void *x = row->x;
  const int64_t width = row->width;
  rf_v16 sum = rf_v16_zero(), mean = rf_v16_zero();
  if (centre) {
    for (int64_t i = 0; i < width; i += RF_LANES) sum = rf_v16_add(sum, get(x, dtype, i, piece(width, i)));
    row->stats[0] = rf_v16_fold_sum(sum) / (float)width;
    mean = rf_v16_set1(row->stats[0]);
    sum = rf_v16_zero();
  }
  for (int64_t i = 0; i < width; i += RF_LANES) {
    int n = piece(width, i);
    rf_v16 d = keep_first(rf_v16_sub(get(x, dtype, i, n), mean), n);
    sum = rf_v16_add(sum, rf_v16_mul(d, d));
  }
  float rstd = 1.0f / sqrtf(rf_v16_fold_sum(sum) / (float)width + row->eps);
  row->stats[centre ? 1 : 0] = rstd;
  for (int64_t i = 0; i < width; i += RF_LANES) {
    int n = piece(width, i);
    rf_v16 unit = rf_v16_mul(rf_v16_sub(get(x, dtype, i, n), mean), rf_v16_set1(rstd)),
           g = gain_of(row->gain, gain_dtype, i, n, row->offset);
    put(row->y, dtype, i,
        centre ? rf_v16_fma(unit, g, get(row->bias, gain_dtype, i, n)) : rf_v16_mul(unit, g), n);
  }
}

RF_INLINE void norm_rows(const rf_call *call, int64_t begin, int64_t end, bool centre, rf_dtype dtype,
                         rf_dtype gain_dtype) {
  int64_t width = rf_in(call, 0)->shape[1];
  for (int64_t r = begin; r < end; r++) {
    const norm_forward row = {.x = at_row(call->in[0], dtype, r, width),
                              .gain = call->in[1],
                              .bias = centre ? call->in[2] : NULL,
                              .y = (void *)at_row(call->out[0], dtype, r, width),
                              .stats = (float *)call->out[1] + r * (centre ? 2 : 1),
                              .width = width,
                              .eps = call->op->attr.norm.eps,
                              .offset = centre ? 0.0f : call->op->attr.norm.offset};
    norm_row(&row, centre, dtype, gain_dtype);
  }
}
/* Calls f(..., dtype, gain_dtype) with constants: both f32, both bf16, or bf16 with f32 gains. */
#define RF_BY_DTYPE(f, x, gain, ...) \
  do { \
    if ((x) == RF_F32) f(__VA_ARGS__, RF_F32, RF_F32); \
    else if ((gain) == RF_BF16) f(__VA_ARGS__, RF_BF16, RF_BF16); \
    else f(__VA_ARGS__, RF_BF16, RF_F32); \
  } while (0)

static void layernorm_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_BY_DTYPE(norm_rows, rf_in(call, 0)->dtype, rf_in(call, 1)->dtype, call, begin, end, true);
}
static void rmsnorm_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_BY_DTYPE(norm_rows, rf_in(call, 0)->dtype, rf_in(call, 1)->dtype, call, begin, end, false);
}
static void layernorm_run(const rf_call *call) {
  rf_split(call, rf_rows_used(call, 0), 1, 4 * rf_in(call, 0)->shape[1], layernorm_range);
}
static void rmsnorm_run(const rf_call *call) {
  rf_split(call, rf_rows_used(call, 0), 1, 4 * rf_in(call, 0)->shape[1], rmsnorm_range);
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct norm_gradient {
  const void *x, *gain, *dy, *dres;
  const float *stats;
  void *dx;
  float *dgain, *dbias; /* (D), or NULL */
  int64_t width;
  float offset;
} norm_gradient;

/* dgain += dy (x - mean) rstd and dbias += dy, for channels [from, to) and rows [row, row_end). */
RF_INLINE void norm_gain_rows(const norm_gradient *g, int64_t row, int64_t row_end, int64_t from, int64_t to,
                              bool centre, rf_dtype dtype, rf_dtype gain_dtype) {
  (void)gain_dtype;
  for (int64_t r = row; r < row_end; r++) {
    const void *x = at_row(g->x, dtype, r, g->width), *dy = at_row(g->dy, dtype, r, g->width);
    rf_v16 mean = rf_v16_set1(centre ? g->stats[2 * r] : 0.0f),
           rstd = rf_v16_set1(centre ? g->stats[2 * r + 1] : g->stats[r]);
    for (int64_t i = from; i < to; i += RF_LANES) {
      int n = piece(to, i);
      rf_v16 d = get(dy, dtype, i, n), unit = rf_v16_mul(rf_v16_sub(get(x, dtype, i, n), mean), rstd);
      if (g->dgain) put(g->dgain, RF_F32, i, rf_v16_add(get(g->dgain, RF_F32, i, n), rf_v16_mul(d, unit)), n);
      if (g->dbias) put(g->dbias, RF_F32, i, rf_v16_add(get(g->dbias, RF_F32, i, n), d), n);
    }
  }
}

/* dx = round(round(rstd (g - mean(g) - unit mean(g unit))) + dres), where g = dy gain and unit = (x
 * - mean) rstd. For RMSNorm, mean and mean(g) are 0. */
RF_INLINE void norm_dx_rows(const norm_gradient *g, int64_t row, int64_t row_end, bool centre, rf_dtype dtype,
                            rf_dtype gain_dtype) {
  int64_t width = g->width;
  for (int64_t r = row; r < row_end; r++) {
    const void *x = at_row(g->x, dtype, r, width), *dy = at_row(g->dy, dtype, r, width),
               *dres = g->dres ? at_row(g->dres, dtype, r, width) : NULL;
    void *dx = (void *)at_row(g->dx, dtype, r, width);
    rf_v16 mean = rf_v16_set1(centre ? g->stats[2 * r] : 0.0f),
           rstd = rf_v16_set1(centre ? g->stats[2 * r + 1] : g->stats[r]);
    rf_v16 sum = rf_v16_zero(), dot = rf_v16_zero();
    for (int64_t i = 0; i < width; i += RF_LANES) {
      int n = piece(width, i);
      rf_v16 d = rf_v16_mul(get(dy, dtype, i, n), gain_of(g->gain, gain_dtype, i, n, g->offset));
      rf_v16 unit = rf_v16_mul(rf_v16_sub(get(x, dtype, i, n), mean), rstd);
      if (centre) sum = rf_v16_add(sum, d);
      dot = rf_v16_add(dot, rf_v16_mul(d, unit));
    }
    rf_v16 mean_sum = rf_v16_set1(centre ? rf_v16_fold_sum(sum) / (float)width : 0.0f),
           mean_dot = rf_v16_set1(rf_v16_fold_sum(dot) / (float)width);
    for (int64_t i = 0; i < width; i += RF_LANES) {
      int n = piece(width, i);
      rf_v16 d = rf_v16_mul(get(dy, dtype, i, n), gain_of(g->gain, gain_dtype, i, n, g->offset));
      rf_v16 unit = rf_v16_mul(rf_v16_sub(get(x, dtype, i, n), mean), rstd);
      if (centre) d = rf_v16_sub(d, mean_sum);
      d = rf_v16_mul(rstd, rf_v16_fnma(unit, mean_dot, d));
      if (dres) d = rf_v16_add(rf_v16_round(d, dtype), get(dres, dtype, i, n));
      put(dx, dtype, i, d, n);
    }
  }
}

/* Runs one block of rows after the other. A block fits in the cache. In a block, each thread first
 * sums dgain and dbias over all rows for its part of the channels. Then each thread computes dx for
 * its part of the rows. If dx overwrites x or dy, threads wait between these two steps. In another
 * design, each thread passed its channel sums to the next thread. On Zen 4, that design was as fast
 * on an idle machine, but 2.5 times slower while another program used a core. */
static void norm_backward(const rf_call *call, bool centre) {
  enum { BLOCK_BYTES = 256 * 1024 }; /* number of bytes of x and dy per thread */
  rf_dtype dtype = rf_in(call, 0)->dtype, gain_dtype = rf_in(call, 1)->dtype;
  norm_gradient g = {.x = call->in[0],
                     .gain = call->in[1],
                     .stats = call->in[2],
                     .dy = call->in[3],
                     .dres = call->in[4],
                     .dx = call->out[0],
                     .dgain = call->out[1],
                     .dbias = centre ? call->out[2] : NULL,
                     .width = rf_in(call, 0)->shape[1],
                     .offset = centre ? 0.0f : call->op->attr.norm.offset};
  int64_t rows = rf_rows_used(call, 0), row_bytes = 2 * g.width * (dtype == RF_BF16 ? 2 : 4), block;
  int threads = rows * row_bytes < 64 * 1024 ? 1 : call->threads;
  block = threads * BLOCK_BYTES / row_bytes;
  if (block < 2 * threads) block = 2 * threads;
  bool in_place = g.dx == g.x || g.dx == g.dy;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    RF_STAMP_BUSY;
    int id = omp_get_thread_num(), of = omp_get_num_threads();
    int64_t from, to;
    rf_share(g.width, RF_LANES, id, of, &from, &to);
    if (g.dgain && !rf_accumulates(call, 1) && from < to)
      memset(g.dgain + from, 0, (size_t)(to - from) * sizeof(float));
    if (g.dbias && !rf_accumulates(call, 2) && from < to)
      memset(g.dbias + from, 0, (size_t)(to - from) * sizeof(float));
    for (int64_t row = 0; row < rows; row += block) {
      int64_t count = rows - row < block ? rows - row : block, begin, end;
      if (!g.dgain && !g.dbias) from = to; /* frozen parameters */
      if (centre) RF_BY_DTYPE(norm_gain_rows, dtype, gain_dtype, &g, row, row + count, from, to, true);
      else RF_BY_DTYPE(norm_gain_rows, dtype, gain_dtype, &g, row, row + count, from, to, false);
      if (in_place) RF_STAMP_BARRIER;
      rf_share(count, 1, id, of, &begin, &end);
      if (centre) RF_BY_DTYPE(norm_dx_rows, dtype, gain_dtype, &g, row + begin, row + end, true);
      else RF_BY_DTYPE(norm_dx_rows, dtype, gain_dtype, &g, row + begin, row + end, false);
    }
  }
}
static void layernorm_bwd_run(const rf_call *call) { norm_backward(call, true); }
static void rmsnorm_bwd_run(const rf_call *call) { norm_backward(call, false); }
