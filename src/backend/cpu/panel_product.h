/* panel_product.h - products with a packed B. Packs B for products in blocks, and streams B for
 * products with few rows. gemm_kernels.h includes this file. */

static int sixteens(int64_t x) { return (int)((x + 15) / 16 * 16); }

/* ---- packing B for many rows: [k][NR] -------------------------------------------------------- */

/* Packs a B that is not transposed. Its columns are lanes of one or several panels. */
static void pack_b_lanes(const rf_gemm *g, int64_t j0, int cols, int64_t k0, int64_t kc, float *to) {
  if (cols < NR) memset(to, 0, (size_t)(kc * NR) * sizeof *to);
  for (int j = 0, run; j < cols; j += run) {
    rf_panel panel = rf_panels_find(g->panels, j0 + j);
    const char *at = (const char *)g->b + panel.offset;
    widen_fn widen = widen_of(&panel);
    int lane = (int)(j0 + j - panel.first), first = lane / 16 * 16;
    float wide[RF_GEMM_RUN * RF_PANEL_LANES];
    run = panel.used - lane < cols - j ? panel.used - lane : cols - j;
    for (int64_t k = 0; k < kc; k += RF_GEMM_RUN) {
      int steps = kc - k < RF_GEMM_RUN ? (int)(kc - k) : RF_GEMM_RUN;
      widen(&panel, at, k0 + k, steps, first, sixteens(lane + run) - first, wide);
      for (int s = 0; s < steps; s++) {
        const float *from = wide + s * RF_PANEL_LANES + lane - first;
        float *step = to + (k + s) * NR + j;
        if (run == NR) {
          for (int l = 0; l < NR; l += RF_LANES) rf_v16_store(step + l, rf_v16_load(from + l));
        } else {
          memcpy(step, from, (size_t)run * sizeof *to);
        }
      }
    }
  }
}

/* For a transposed B. Packs a transposed B. Its columns are values of lanes, so a range of each
 * panel is transposed. */
static void pack_b_transposed(const rf_gemm *g, int64_t j0, int cols, int64_t k0, int64_t kc, float *to) {
  float wide[NR * RF_PANEL_LANES];
  if (cols < NR) memset(to, 0, (size_t)(kc * NR) * sizeof *to);
  for (int64_t s = 0, run; s < kc; s += run) {
    rf_panel panel = rf_panels_find(g->panels, k0 + s);
    int lane = (int)(k0 + s - panel.first), first = lane / 16 * 16;
    run = panel.used - lane < kc - s ? panel.used - lane : kc - s;
    int lanes = sixteens(lane + run) - first;
    widen_of (&panel)(&panel, (const char *)g->b + panel.offset, j0, cols, first, lanes, wide);
    int i = 0;
    for (; i + 8 <= run; i += 8) {
      for (int j = 0; j + 8 <= cols; j += 8) {
        v8 r[8];
        for (int l = 0; l < 8; l++) r[l] = *(const v8 *)(wide + (j + l) * RF_PANEL_LANES + lane - first + i);
        transpose_8x8(r);
        for (int l = 0; l < 8; l++) *(v8 *)(to + (s + i + l) * NR + j) = r[l];
      }
      for (int j = cols / 8 * 8; j < cols; j++)
        for (int l = 0; l < 8; l++)
          to[(s + i + l) * NR + j] = wide[j * RF_PANEL_LANES + lane - first + i + l];
    }
    for (; i < run; i++)
      for (int j = 0; j < cols; j++) to[(s + i) * NR + j] = wide[j * RF_PANEL_LANES + lane - first + i];
  }
}

/* ---- few rows -------------------------------------------------------------------------------- */

/* A range of steps of k of a panel. `a` is A with a_step floats per step. `w` is B as f32 with ld
 * floats per step. y[row][RF_PANEL_LANES] has the sums. Each step prefetches the cache line at
 * `ahead` and then adds ahead_step bytes to `ahead`. */
typedef struct chain_part {
  int steps;
  const float *a, *w;
  int64_t a_step, ld;
  float *y;
  const char *ahead;
  int64_t ahead_step;
} chain_part;
/* Adds the steps to the sums y[row][lane]. The `rows` x `vectors` sums of sixteen lanes are named
 * variables, because gcc 12 keeps arrays in memory. EACH(X) is X(0) .. X(23). Sum i is the sum of
 * row i / vectors and vector i % vectors. */
// clang-format off
#define EACH(X) \
  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) \
  X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
// clang-format on
#define CHAIN_LOAD(i) \
  rf_v16 sum##i = (i) < rows * vectors \
                      ? rf_v16_load(y + (i) / vectors * RF_PANEL_LANES + (i) % vectors * RF_LANES) \
                      : rf_v16_zero();
#define CHAIN_STORE(i) \
  if ((i) < rows * vectors) \
    rf_v16_store(y + (i) / vectors * RF_PANEL_LANES + (i) % vectors * RF_LANES, sum##i);
#define CHAIN_STEP(i) \
  if ((i) < rows * vectors) \
    sum##i = rf_v16_fma(rf_v16_set1(a[(i) / vectors]), \
                        (i) % vectors == 0   ? w0 \
                        : (i) % vectors == 1 ? w1 \
                        : (i) % vectors == 2 ? w2 \
                                             : w3, \
                        sum##i);
RF_INLINE void chains(int rows, int vectors, const chain_part *p) {
  const float *a = p->a, *w = p->w;
  const int64_t a_step = p->a_step, ld = p->ld, ahead_step = p->ahead_step;
  const int steps = p->steps;
  const char *ahead = p->ahead;
  float *y = p->y;
  EACH(CHAIN_LOAD)
#pragma GCC unroll 2
  for (int k = 0; k < steps; k++, a += a_step, w += ld, ahead += ahead_step) {
    __builtin_prefetch(ahead, 0, 3);
    rf_v16 w0 = rf_v16_load(w), w1 = w0, w2 = w0, w3 = w0;
    if (vectors > 1) w1 = rf_v16_load(w + RF_LANES);
    if (vectors > 2) {
      w2 = rf_v16_load(w + 2 * RF_LANES);
      w3 = rf_v16_load(w + 3 * RF_LANES);
    }
    EACH(CHAIN_STEP)
  }
  EACH(CHAIN_STORE)
}
// clang-format off
/* The shapes whose sums fit in the registers, as X(rows, vectors of sixteen lanes). CHAINS(2, 4)
 * defines chains_2x4(part) { chains(2, 4, part); }. */
#if defined(__AVX512F__)
#define CHAIN_SHAPES(X) X(1, 4) X(2, 4) X(3, 4) X(4, 4) X(5, 4) X(6, 4) X(1, 1) X(2, 1) X(4, 1) X(6, 1)
#else
#define CHAIN_SHAPES(X) X(1, 4) X(2, 2) X(3, 2) X(4, 1) X(5, 1) X(6, 1) X(1, 1) X(2, 1)
#endif
#define CHAINS(rows, vectors) \
  static void chains_##rows##x##vectors(const chain_part *p) { chains(rows, vectors, p); }
CHAIN_SHAPES(CHAINS)
#define CHAIN_ROW(rows, vectors) {rows, vectors, chains_##rows##x##vectors},
enum { ROWS_MAX = 6 };
static const struct chain_row {
  int rows, vectors;
  void (*run)(const chain_part *p);
} CHAIN_ROWS[] = {CHAIN_SHAPES(CHAIN_ROW)};
// clang-format on

/* Returns the shape with the largest number of rows, up to `rows`, whose vectors divide `lanes`. */
static const struct chain_row *chain_row_of(int rows, int lanes) {
  const struct chain_row *best = NULL;
  for (size_t i = 0; i < sizeof CHAIN_ROWS / sizeof *CHAIN_ROWS; i++) {
    const struct chain_row *r = &CHAIN_ROWS[i];
    if (r->rows > rows || lanes % (r->vectors * RF_LANES)) continue;
    if (!best || r->rows > best->rows || (r->rows == best->rows && r->vectors > best->vectors)) best = r;
  }
  return best;
}

/* Runs all rows of a part for `lanes` lanes. Prefetches `bytes` bytes at `ahead`, because hardware
 * prefetchers stop at page ends. Spreads the prefetches over the call, because a burst would delay
 * other loads. */
static void chain_panel(int lanes, const chain_part *all, int64_t bytes) {
  const struct chain_row *row[RF_FEW_ROWS];
  const int m = (int)all->a_step;
  int count = 0, calls = 0;
  /* divides the rows evenly: sixteen rows become six, five and five, and not six, six and four */
  for (int i = 0; i < m; i += row[count++]->rows) {
    int left = m - i, blocks = (left + ROWS_MAX - 1) / ROWS_MAX;
    row[count] = chain_row_of((left + blocks - 1) / blocks, lanes);
    calls += lanes / (row[count]->vectors * RF_LANES);
  }
  chain_part p = *all;
  p.ahead_step = bytes / ((int64_t)calls * p.steps);
  for (int64_t b = 0; b < bytes && p.ahead_step > 64; b += 64) __builtin_prefetch(p.ahead + b, 0, 3);
  for (int i = 0, r = 0; r < count; i += row[r++]->rows) {
    int wide = row[r]->vectors * RF_LANES;
    for (int l = 0; l < lanes; l += wide, p.ahead += p.ahead_step * p.steps) {
      p.a = all->a + i;
      p.w = all->w + l;
      p.y = all->y + i * RF_PANEL_LANES + l;
      row[r]->run(&p);
    }
  }
}

/* Multiplies one row by some steps of a full panel of plain numbers, with four sums of sixteen
 * lanes. Each load converts its values to f32. With prefetches to L1, 2 KiB ahead, this loop
 * reaches 89 % of read bandwidth. The loop reaches 84 % without prefetches, and 68 % with
 * prefetches 6 KiB ahead (1.2B model in bf16, Granite Rapids, two threads). Hardware prefetchers
 * stop at the end of a 4 KiB page. */
RF_INLINE void plain_row(const char *at, rf_dtype dtype, int64_t steps, const float *a, bool first,
                         float *y) {
  enum { AHEAD_BYTES = 2 << 10 };
  const int64_t step = RF_PANEL_LANES * (dtype == RF_BF16 ? 2 : 4);
  rf_v16 s0 = rf_v16_zero(), s1 = s0, s2 = s0, s3 = s0;
  if (!first) {
    s0 = rf_v16_load(y);
    s1 = rf_v16_load(y + RF_LANES);
    s2 = rf_v16_load(y + 2 * RF_LANES);
    s3 = rf_v16_load(y + 3 * RF_LANES);
  }
#pragma GCC unroll 4
  for (int64_t k = 0; k < steps; k++, at += step) {
    for (int64_t line = 0; line < step; line += 64) __builtin_prefetch(at + AHEAD_BYTES + line, 0, 3);
    rf_v16 x = rf_v16_set1(a[k]);
    s0 = rf_v16_fma(x, rf_v16_get(at, dtype, 0), s0);
    s1 = rf_v16_fma(x, rf_v16_get(at, dtype, RF_LANES), s1);
    s2 = rf_v16_fma(x, rf_v16_get(at, dtype, 2 * RF_LANES), s2);
    s3 = rf_v16_fma(x, rf_v16_get(at, dtype, 3 * RF_LANES), s3);
  }
  rf_v16_store(y, s0);
  rf_v16_store(y + RF_LANES, s1);
  rf_v16_store(y + 2 * RF_LANES, s2);
  rf_v16_store(y + 3 * RF_LANES, s3);
}

/* Multiplies one row by full panels of plain numbers. Alternates between panels. */
RF_INLINE void plain_panels(const rf_gemm *g, const rf_panel *panel, int count, rf_dtype dtype,
                            const float *a, float *y) {
  enum { STEPS = 64 };
  for (int64_t k = 0; k < g->k; k += STEPS)
    for (int i = 0; i < count; i++)
      plain_row((const char *)g->b + panel[i].offset + k * panel[i].block_bytes, dtype,
                g->k - k < STEPS ? g->k - k : STEPS, a + k, k == 0, y + i * RF_PANEL_LANES);
}

static void stream_panel(const rf_gemm *g, const rf_panel *panel, const float *a, float *y, float *wide) {
  enum { AHEAD = 3 }; /* runs of RF_GEMM_RUN steps */
  const char *at = (const char *)g->b + panel->offset;
  int m = (int)g->m;
#if defined(__AVX2__)
  if (few_run(panel, at, g->k, a, m, y)) return;
#endif
  bool as_is = panel->type->number == RF_Q_F32;
  widen_fn widen = widen_of(panel);
  int64_t run_bytes = RF_GEMM_RUN * panel->block_bytes / panel->type->values;
  memset(y, 0, (size_t)m * RF_PANEL_LANES * sizeof *y);
  for (int64_t k = 0; k < g->k; k += RF_GEMM_RUN) {
    int steps = g->k - k < RF_GEMM_RUN ? (int)(g->k - k) : RF_GEMM_RUN;
    const float *w = as_is ? (const float *)(const void *)at + k * panel->lanes : wide;
    if (!as_is) widen(panel, at, k, steps, 0, panel->lanes, wide);
    const chain_part part = {.steps = steps,
                             .a = a + k * m,
                             .w = w,
                             .a_step = m,
                             .ld = as_is ? panel->lanes : RF_PANEL_LANES,
                             .y = y,
                             .ahead = at + (k / RF_GEMM_RUN + AHEAD) * run_bytes};
    chain_panel(panel->lanes, &part, run_bytes);
  }
}
static void stream_panels(const rf_gemm *g, const rf_panel *panel, int count, const float *a, float *y,
                          float *wide) {
  int type = panel->type->number;
  bool plain = g->m == 1 && (type == RF_Q_BF16 || type == RF_Q_F32);
  for (int i = 0; i < count; i++)
    plain = plain && panel[i].lanes == RF_PANEL_LANES && panel[i].type->number == type;
  if (plain && type == RF_Q_BF16) plain_panels(g, panel, count, RF_BF16, a, y);
  else if (plain) plain_panels(g, panel, count, RF_F32, a, y);
  else
    for (int i = 0; i < count; i++) stream_panel(g, &panel[i], a, y + i * g->m * RF_PANEL_LANES, wide);
}
