/* norm_body.h - LayerNorm and RMSNorm, forward and backward. Included once per ISA (elementwise_*.c).
 *
 * Sums over a row's D channels: sixteen lane sums (lane = channel mod 16, ascending), then the tree of rf_v16_fold_sum.
 * Sums over tokens (dgain, dbias): one f32 chain of plain additions per channel, rows ascending, threads split the channels. */

/* A row of D channels cut into sixteens; the last piece may be shorter, its missing lanes read as 0. */
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
RF_INLINE rf_v16 keep_first(rf_v16 x, int n) { return n == RF_LANES ? x : rf_v16_select(rf_m16_first(n), x, rf_v16_zero()); }

/* Statistics of a row: LayerNorm keeps {mean, rstd}, RMSNorm {rstd}. */
RF_INLINE void norm_row(const void *x, const void *gain, const void *bias, void *y, float *stats, int64_t width, float eps, rf_dtype dtype,
                        rf_dtype gain_dtype, bool centre) {
  rf_v16 sum = rf_v16_zero(), mean = rf_v16_zero();
  if (centre) {
    for (int64_t i = 0; i < width; i += RF_LANES) sum = rf_v16_add(sum, get(x, dtype, i, piece(width, i)));
    stats[0] = rf_v16_fold_sum(sum) / (float)width;
    mean = rf_v16_set1(stats[0]);
    sum = rf_v16_zero();
  }
  for (int64_t i = 0; i < width; i += RF_LANES) {
    int n = piece(width, i);
    rf_v16 d = keep_first(rf_v16_sub(get(x, dtype, i, n), mean), n);
    sum = rf_v16_add(sum, rf_v16_mul(d, d));
  }
  float rstd = 1.0f / sqrtf(rf_v16_fold_sum(sum) / (float)width + eps);
  stats[centre ? 1 : 0] = rstd;
  for (int64_t i = 0; i < width; i += RF_LANES) {
    int n = piece(width, i);
    rf_v16 unit = rf_v16_mul(rf_v16_sub(get(x, dtype, i, n), mean), rf_v16_set1(rstd)), g = get(gain, gain_dtype, i, n);
    put(y, dtype, i, centre ? rf_v16_fma(unit, g, get(bias, gain_dtype, i, n)) : rf_v16_mul(unit, g), n);
  }
}

RF_INLINE void norm_rows(const rf_call *call, int64_t begin, int64_t end, rf_dtype dtype, rf_dtype gain_dtype, bool centre) {
  int64_t width = rf_in(call, 0)->shape[1];
  for (int64_t r = begin; r < end; r++) {
    float *stats = (float *)call->out[1] + r * (centre ? 2 : 1);
    norm_row(at_row(call->in[0], dtype, r, width), call->in[1], centre ? call->in[2] : NULL, (void *)at_row(call->out[0], dtype, r, width), stats,
             width, call->op->attr.eps, dtype, gain_dtype, centre);
  }
}
/* Activations and gains are both f32, both bf16, or bf16 activations with f32 gains: RF_BY_DTYPE calls f(..., dtype, gain_dtype, last). */
#define RF_BY_DTYPE(f, x, gain, last, ...) \
  do { \
    if ((x) == RF_F32) f(__VA_ARGS__, RF_F32, RF_F32, last); \
    else if ((gain) == RF_BF16) f(__VA_ARGS__, RF_BF16, RF_BF16, last); \
    else f(__VA_ARGS__, RF_BF16, RF_F32, last); \
  } while (0)

static void layernorm_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_BY_DTYPE(norm_rows, rf_in(call, 0)->dtype, rf_in(call, 1)->dtype, true, call, begin, end);
}
static void rmsnorm_range(const rf_call *call, int64_t begin, int64_t end) {
  RF_BY_DTYPE(norm_rows, rf_in(call, 0)->dtype, rf_in(call, 1)->dtype, false, call, begin, end);
}
static void layernorm_run(const rf_call *call) { rf_split(call, rf_rows_used(call, 0), 1, 4 * rf_in(call, 0)->shape[1], layernorm_range); }
static void rmsnorm_run(const rf_call *call) { rf_split(call, rf_rows_used(call, 0), 1, 4 * rf_in(call, 0)->shape[1], rmsnorm_range); }

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct norm_gradient {
  const void *x, *gain, *dy, *dres;
  const float *stats;
  void *dx;
  float *dgain, *dbias; /* (D); NULL: not wanted */
  int64_t width;
} norm_gradient;

/* unit(x) = (x - mean) rstd of a row's piece. */
typedef struct norm_statistics { rf_v16 mean, rstd; } norm_statistics;
RF_INLINE norm_statistics norm_statistics_of(const norm_gradient *g, int64_t r, bool centre) {
  return (norm_statistics){rf_v16_set1(centre ? g->stats[2 * r] : 0.0f), rf_v16_set1(centre ? g->stats[2 * r + 1] : g->stats[r])};
}
RF_INLINE rf_v16 norm_unit(const norm_statistics *of, const void *x, rf_dtype dtype, int64_t i, int n) {
  return rf_v16_mul(rf_v16_sub(get(x, dtype, i, n), of->mean), of->rstd);
}

/* dgain += dy unit(x), dbias += dy over rows [row, row_end), channels [from, to): rows ascending, the sums stay in the first cache.
 * (Sums in registers, walking down a column, lose more to the stride than they save.) */
RF_INLINE void norm_gain_rows(const norm_gradient *g, int64_t row, int64_t row_end, int64_t from, int64_t to, rf_dtype dtype, rf_dtype gain_dtype,
                              bool centre) {
  (void)gain_dtype;
  for (int64_t r = row; r < row_end; r++) {
    const void *x = at_row(g->x, dtype, r, g->width), *dy = at_row(g->dy, dtype, r, g->width);
    norm_statistics of = norm_statistics_of(g, r, centre);
    for (int64_t i = from; i < to; i += RF_LANES) {
      int n = piece(to, i);
      rf_v16 d = get(dy, dtype, i, n);
      if (g->dgain) put(g->dgain, RF_F32, i, rf_v16_add(get(g->dgain, RF_F32, i, n), rf_v16_mul(d, norm_unit(&of, x, dtype, i, n))), n);
      if (g->dbias) put(g->dbias, RF_F32, i, rf_v16_add(get(g->dbias, RF_F32, i, n), d), n);
    }
  }
}

/* The two means of a row that its dx needs: of g = dy gain, and of g unit(x). */
typedef struct norm_means { float plain, dot; } norm_means;
RF_INLINE void norm_means_rows(const norm_gradient *g, int64_t row, int64_t row_end, norm_means *means, rf_dtype dtype, rf_dtype gain_dtype,
                               bool centre) {
  for (int64_t r = row; r < row_end; r++) {
    const void *x = at_row(g->x, dtype, r, g->width), *dy = at_row(g->dy, dtype, r, g->width);
    norm_statistics of = norm_statistics_of(g, r, centre);
    rf_v16 sum = rf_v16_zero(), dot = rf_v16_zero();
    for (int64_t i = 0; i < g->width; i += RF_LANES) {
      int n = piece(g->width, i);
      rf_v16 d = rf_v16_mul(get(dy, dtype, i, n), get(g->gain, gain_dtype, i, n)); /* 0 in missing lanes */
      if (centre) sum = rf_v16_add(sum, d);
      dot = rf_v16_add(dot, rf_v16_mul(d, norm_unit(&of, x, dtype, i, n)));
    }
    means[r - row] = (norm_means){centre ? rf_v16_fold_sum(sum) / (float)g->width : 0.0f, rf_v16_fold_sum(dot) / (float)g->width};
  }
}

/* dx = round(round(rstd (g - mean(g) - unit mean(g unit))) + dres). RMSNorm has no mean(g) term. */
RF_INLINE void norm_dx_rows(const norm_gradient *g, int64_t row, int64_t row_end, const norm_means *means, rf_dtype dtype, rf_dtype gain_dtype,
                            bool centre) {
  for (int64_t r = row; r < row_end; r++) {
    const void *x = at_row(g->x, dtype, r, g->width), *dy = at_row(g->dy, dtype, r, g->width);
    const void *dres = g->dres ? at_row(g->dres, dtype, r, g->width) : NULL;
    void *dx = (void *)at_row(g->dx, dtype, r, g->width);
    norm_statistics of = norm_statistics_of(g, r, centre);
    rf_v16 plain = rf_v16_set1(means[r - row].plain), dot = rf_v16_set1(means[r - row].dot);
    for (int64_t i = 0; i < g->width; i += RF_LANES) {
      int n = piece(g->width, i);
      rf_v16 d = rf_v16_mul(get(dy, dtype, i, n), get(g->gain, gain_dtype, i, n));
      if (centre) d = rf_v16_sub(d, plain);
      d = rf_v16_mul(of.rstd, rf_v16_fnma(norm_unit(&of, x, dtype, i, n), dot, d));
      if (dres) d = rf_v16_add(rf_v16_round(d, dtype), get(dres, dtype, i, n));
      put(dx, dtype, i, d, n);
    }
  }
}

/* Blocks of rows go round the threads. A thread reads its block once into its own cache (the means), adds it to dgain and dbias from
 * there when the block before it has been added, and writes its dx, perhaps in the place of dy or x. Blocks are added in ascending order
 * channel group by channel group, so the threads follow each other through the groups instead of waiting for whole blocks.
 * (Splitting the channels instead makes each thread read what another has in its cache: 1.4 times the time with two threads;
 * prefetching the next block while this one is written changed nothing. Both on Zen 4.) */
enum { RF_NORM_GROUPS = 16, RF_NORM_BLOCK_ROWS = 128, RF_NORM_BLOCK_BYTES = 256 * 1024 };
typedef struct norm_turn { _Alignas(64) int64_t blocks; } norm_turn; /* blocks that a channel group has been through */

static void norm_await(norm_turn *turn, int64_t block) {
  for (int spins = 0; __atomic_load_n(&turn->blocks, __ATOMIC_ACQUIRE) < block; spins++) {
    if (spins > 1000) sched_yield(); /* the thread before us has lost its core */
  }
}

static void norm_backward(const rf_call *call, bool centre) {
  rf_dtype dtype = rf_in(call, 0)->dtype, gain_dtype = rf_in(call, 1)->dtype;
  norm_gradient g = {.x = call->in[0], .gain = call->in[1], .stats = call->in[2], .dy = call->in[3], .dres = call->in[4], .dx = call->out[0],
                     .dgain = call->out[1], .dbias = centre ? call->out[2] : NULL, .width = rf_in(call, 0)->shape[1]};
  if (g.dgain && !rf_accumulates(call, 1)) memset(g.dgain, 0, (size_t)g.width * sizeof(float));
  if (g.dbias && !rf_accumulates(call, 2)) memset(g.dbias, 0, (size_t)g.width * sizeof(float));
  int64_t rows = rf_rows_used(call, 0), row_bytes = 2 * g.width * (dtype == RF_BF16 ? 2 : 4), block = RF_NORM_BLOCK_BYTES / row_bytes;
  if (block > RF_NORM_BLOCK_ROWS) block = RF_NORM_BLOCK_ROWS;
  if (block * call->threads > rows) block = rows / call->threads; /* few rows: still a block for every thread */
  if (block < 1) block = 1;
  int threads = rows * row_bytes < 64 * 1024 ? 1 : call->threads;
  int groups = threads == 1 ? 1 : 2 * threads < RF_NORM_GROUPS ? 2 * threads : RF_NORM_GROUPS;
  norm_turn turn[RF_NORM_GROUPS] = {{0}};
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    int id = omp_get_thread_num(), of = omp_get_num_threads();
    norm_means means[RF_NORM_BLOCK_ROWS];
    for (int64_t b = id; b * block < rows; b += of) {
      int64_t row = b * block, row_end = row + block < rows ? row + block : rows;
      if (centre) RF_BY_DTYPE(norm_means_rows, dtype, gain_dtype, true, &g, row, row_end, means);
      else RF_BY_DTYPE(norm_means_rows, dtype, gain_dtype, false, &g, row, row_end, means);
      for (int group = 0; group < groups && (g.dgain || g.dbias); group++) {
        int64_t from, to;
        rf_share(g.width, RF_LANES, group, groups, &from, &to);
        norm_await(&turn[group], b);
        if (centre) RF_BY_DTYPE(norm_gain_rows, dtype, gain_dtype, true, &g, row, row_end, from, to);
        else RF_BY_DTYPE(norm_gain_rows, dtype, gain_dtype, false, &g, row, row_end, from, to);
        __atomic_store_n(&turn[group].blocks, b + 1, __ATOMIC_RELEASE);
      }
      if (centre) RF_BY_DTYPE(norm_dx_rows, dtype, gain_dtype, true, &g, row, row_end, means);
      else RF_BY_DTYPE(norm_dx_rows, dtype, gain_dtype, false, &g, row, row_end, means);
    }
  }
}
static void layernorm_bwd_run(const rf_call *call) { norm_backward(call, true); }
static void rmsnorm_bwd_run(const rf_call *call) { norm_backward(call, false); }
