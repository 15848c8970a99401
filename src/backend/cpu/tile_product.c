/* tile_product.c - divides a product of bf16 into tiles and distributes the tiles over threads.
 * gemm.h defines the arithmetic, and gemm_amx.c packs and multiplies. A unit is 32 rows of A or 32
 * columns of B. The units of one operand are "held", and the units of the other operand are
 * "passing". All threads first pack a block of held units, which fits in an L2. Then each thread
 * packs a few passing units and multiplies each passing unit by all held units of the block. So a
 * packed passing unit never leaves the L2 of the thread. While a part of its steps is multiplied by
 * GROUP held units, this part stays in L1. The sums wait in a ring of buffers for the epilogue.
 * After each step, vectors run the epilogue of a few rows, while tiles multiply. Non-temporal
 * stores (rf_gemm.nontemporal) are faster. An ordinary store waits for a cache line of C, and
 * meanwhile delays tile loads at the same offset in another page. */
#include "backend/cpu/gemm_tiles.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/shares.h"

#include <omp.h>

enum {
  UNIT = RF_TILE_ROWS,
  DEPTH = RF_TILE_DEPTH,
  SUMS = UNIT * UNIT,     /* number of floats in the sums of one pair of units */
  STEP = UNIT * DEPTH / 2 /* number of floats in one step of a unit */
};
enum { GROUP = 4, RING = 2 * GROUP, PART_STEPS = 12, TOGETHER = 4, KC = 1024, BLOCK_BYTES = 1 << 20 };
enum { PANEL_UNITS = RF_PANEL_LANES / UNIT };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t cut(int64_t total, int64_t parts, int64_t i) { return total * i / parts; }

/* Sizes for the maximum m and k, so that calls with smaller m and k fit in the workspace. */
typedef struct shape {
  bool hold_a;
  /* maximum number of steps of k in a block; memory keeps the sums between two blocks of k */
  int64_t kc;
  int64_t held_floats, passed_floats;        /* floats of a packed unit */
  int64_t together;                          /* number of passing units that are packed at once */
  int64_t block_units;                       /* held units of a block */
  int64_t held_total, sums_total, own_total; /* floats */
} shape;

static shape shape_of(const rf_gemm_isa *isa, const rf_gemm *g) {
  int64_t m = most(g->m_bound, g->m), k = most(g->k_bound, g->k), strips = rf_ceil_div(m, UNIT),
          panels = rf_ceil_div(g->n, UNIT);
  shape s = {.hold_a = strips * isa->a_words <= panels * isa->b_words};
  int64_t held_words = s.hold_a ? isa->a_words : isa->b_words,
          passed_words = s.hold_a ? isa->b_words : isa->a_words;
  int64_t held = s.hold_a ? strips : panels;
  /* adjacent units share the cache lines of a row, or share a panel */
  bool narrow = s.hold_a ? g->b_col == 1 && !g->panels : g->a_row == 1;
  bool whole_panels = s.hold_a && g->panels && !g->transposed;
  s.together = narrow ? TOGETHER : whole_panels ? PANEL_UNITS : 1;
  /* With few held units, larger blocks of k also fit in L2. Then sums are stored less often. */
  int64_t step_bytes = UNIT * 2 * (held * held_words + s.together * passed_words);
  int64_t blocks = most(1, rf_ceil_div(k, most(KC / held_words, BLOCK_BYTES / step_bytes)));
  s.kc = rf_ceil_div(rf_ceil_div(k, blocks), DEPTH) * DEPTH;
  s.held_floats = s.kc / DEPTH * STEP * held_words;
  s.passed_floats = s.kc / DEPTH * STEP * passed_words;
  s.block_units = most(1, BLOCK_BYTES / 4 / most(1, s.held_floats));
  s.held_total = held * s.held_floats;
  s.sums_total = k > s.kc ? strips * panels * SUMS : 0;
  s.own_total = s.together * s.passed_floats + RING * SUMS;
  return s;
}
size_t rf_tile_product_workspace(const rf_gemm_isa *isa, const rf_gemm *g, int threads) {
  shape s = shape_of(isa, g);
  return (size_t)(s.held_total + s.sums_total + threads * s.own_total) * sizeof(float);
}

typedef struct job {
  const rf_gemm_isa *isa;
  const rf_gemm *g;
  shape s;
  int64_t strips, panels, held, passed; /* units of this call */
  /* number of blocks of held units; number of bundles of `together` passing units */
  int64_t blocks, bundles;
  int64_t k0, k1; /* the current block of k has steps [k0, k1) */
  float *packed, *sums;
  rf_shares units, items;
} job;

static int64_t row_of(const job *j, int64_t strip) { return cut(j->g->m, j->strips, strip); }

/* Packs units u and u + 1 if they are the columns of one panel of B. Returns false if they are
 * columns of different panels. */
static bool pack_panel(const job *j, int64_t u, float *to, int64_t unit_floats) {
  const rf_gemm *g = j->g;
  if (!g->panels || g->transposed || g->column_sum || u % PANEL_UNITS) return false;
  const rf_panel panel = rf_panels_find(g->panels, u * UNIT);
  if (panel.first != u * UNIT || panel.used != RF_PANEL_LANES) return false;
  rf_tiles_pack_panel(g, &panel, j->k0, j->k1 - j->k0, to, to + unit_floats);
  return true;
}
/* Packs `count` units from u on, one step of all units at a time. If `sums`, also sums the columns
 * of B. */
static void pack(const job *j, bool a, int64_t u, int64_t count, float *to, bool sums) {
  const rf_gemm *g = j->g;
  const int64_t unit_floats = a == j->s.hold_a ? j->s.held_floats : j->s.passed_floats;
  while (!a && count >= PANEL_UNITS && pack_panel(j, u, to, unit_floats)) {
    u += PANEL_UNITS;
    count -= PANEL_UNITS;
    to += PANEL_UNITS * unit_floats;
  }
  for (int64_t k = j->k0; k < j->k1 && count > 0; k += DEPTH) {
    int64_t step = (k - j->k0) / DEPTH, kc = least(DEPTH, j->k1 - k);
    for (int64_t i = 0; i < count; i++) {
      float *at = to + i * unit_floats;
      if (a) {
        int64_t row = row_of(j, u + i), rows = row_of(j, u + i + 1) - row, halves = rows > UNIT / 2 ? 2 : 1;
        j->isa->pack_a(g, row, (int)rows, k, kc, at + step * (STEP / 2) * halves * j->isa->a_words);
      } else {
        int64_t col = (u + i) * UNIT;
        j->isa->pack_b(g, col, (int)least(UNIT, g->n - col), k, kc, at + step * STEP * j->isa->b_words,
                       sums && g->column_sum ? g->column_sum + col : NULL);
      }
    }
  }
}

/* The ring of sums of one thread. Entries `done` to `made` - 1 have sums that wait for the
 * epilogue. */
typedef struct worker {
  rf_tile_errands errands;
  const job *j;
  float *ring;
  rf_gemm_sums end[RING];
  unsigned made, done;
  /* at: number of finished rows of entry `done`. rate: number of rows that are finished after each
   * step */
  int at, rate;
} worker;

static void finish_rows(worker *w, int rows) {
  const rf_gemm_sums *e = &w->end[w->done % RING];
  if (rows > e->rows - w->at) rows = e->rows - w->at;
  w->j->isa->finish(w->j->g,
                    &(rf_gemm_sums){e->at + w->at * UNIT, UNIT, e->row + w->at, e->col, rows, e->cols});
  w->at += rows;
  if (w->at == e->rows) {
    w->done++;
    w->at = 0;
  }
}
static void run_errand(rf_tile_errands *errands) {
  worker *w = (worker *)errands;
  if (w->done != w->made) finish_rows(w, w->rate);
}

/* A held unit that is multiplied by a passing unit. */
typedef struct pair {
  const float *held;
  float *all; /* memory that keeps the sums between two blocks of k */
  rf_gemm_sums out;
} pair;

/* Prefetches the elements of `array`, which has the shape of C, for unit `u` and the GROUP held
 * units from `group` on. */
static void fetch_group(const job *j, const void *array, rf_dtype dtype, int64_t u, int64_t group,
                        int64_t h1) {
  const int64_t item = rf_dtype_bytes(dtype);
  for (int64_t h = group; h < h1 && h < group + GROUP; h++) {
    int64_t strip = j->s.hold_a ? h : u, panel = j->s.hold_a ? u : h;
    for (int64_t row = row_of(j, strip); row < row_of(j, strip + 1); row++) {
      const char *at = (const char *)array + (row * j->g->ld + panel * UNIT) * item;
      __builtin_prefetch(at, 0, 2);
      if (item > 2) __builtin_prefetch(at + UNIT * item / 2, 0, 2);
    }
  }
}

/* Multiplies the passing unit `u`, which is packed at `passing`, by the held units h0 to h1 - 1. */
static void pass(worker *w, int64_t u, const float *passing, int64_t h0, int64_t h1) {
  const job *j = w->j;
  const rf_gemm *g = j->g;
  const bool hold_a = j->s.hold_a, first = j->k0 == 0, last = j->k1 == g->k;
  const bool has_side = g->epilogue == RF_GEMM_RESIDUAL || g->epilogue == RF_GEMM_GELU_BWD;
  const int64_t steps = rf_ceil_div(j->k1 - j->k0, DEPTH), words = hold_a ? j->isa->b_words : j->isa->a_words;
  const int64_t parts = most(1, rf_ceil_div(steps * words, PART_STEPS));
  for (int64_t group = h0; group < h1; group += GROUP) {
    const int count = (int)least(GROUP, h1 - group);
    pair pairs[GROUP];
    while (w->made + (unsigned)count - w->done > RING) finish_rows(w, UNIT);
    /* u has the start values of the next group's sums */
    if (first && g->accumulate) fetch_group(j, g->u, RF_F32, u, group + GROUP, h1);
    /* the epilogue of this group reads `side` */
    if (last && has_side) fetch_group(j, g->side, g->dtype, u, group, h1);
    for (int i = 0; i < count; i++) {
      int64_t strip = hold_a ? group + i : u, panel = hold_a ? u : group + i, row = row_of(j, strip),
              col = panel * UNIT;
      pairs[i] = (pair){j->packed + (group + i) * j->s.held_floats,
                        j->sums + (strip * j->panels + panel) * SUMS,
                        {w->ring + (w->made + (unsigned)i) % RING * SUMS, UNIT, row, col,
                         (int)(row_of(j, strip + 1) - row), (int)least(UNIT, g->n - col)}};
    }
    for (int64_t part = 0, s0 = 0, s1; part < parts; part++, s0 = s1) {
      s1 = cut(steps, parts, part + 1);
      for (int i = 0; i < count; i++) {
        const rf_gemm_sums *out = &pairs[i].out;
        const int64_t halves = out->rows > UNIT / 2 ? 2 : 1;
        const float *a = (hold_a ? pairs[i].held : passing) + s0 * (STEP / 2) * halves * j->isa->a_words;
        const float *b = (hold_a ? passing : pairs[i].held) + s0 * STEP * j->isa->b_words;
        const float *from = part ? out->at : first ? NULL : pairs[i].all;
        if (part == 0 && first && g->accumulate) {
          j->isa->begin(g, out);
          from = out->at;
        }
        j->isa->tile_micros[!hold_a][halves - 1](
            s1 - s0, a, b, from, part + 1 == parts && !last ? pairs[i].all : out->at, &w->errands);
      }
    }
    for (int i = 0; last && i < count; i++) w->end[w->made++ % RING] = pairs[i].out;
  }
}

static void work(worker *w, job *j, float *room) {
  const shape *s = &j->s;
  w->rate = (int)most(1, rf_ceil_div(UNIT, most(1, rf_ceil_div(j->k1 - j->k0, DEPTH))));
  for (int64_t item; rf_shares_take(&j->items, omp_get_thread_num(), 1, &item) > 0;) {
    const int64_t block = item / j->bundles, u = item % j->bundles * s->together,
                  count = least(s->together, j->passed - u);
    const int64_t h0 = cut(j->held, j->blocks, block), h1 = cut(j->held, j->blocks, block + 1);
    if (j->k0 == 0 && j->g->accumulate) fetch_group(j, j->g->u, RF_F32, u, h0, h1);
    pack(j, !s->hold_a, u, count, room, block == 0);
    for (int64_t i = 0; i < count; i++) pass(w, u + i, room + i * s->passed_floats, h0, h1);
  }
  while (w->done != w->made) finish_rows(w, UNIT);
}

void rf_tile_product_run(const rf_gemm_isa *isa, const rf_gemm *g, int threads, float *workspace) {
  job j = {.isa = isa,
           .g = g,
           .s = shape_of(isa, g),
           .strips = rf_ceil_div(g->m, UNIT),
           .panels = rf_ceil_div(g->n, UNIT)};
  j.held = j.s.hold_a ? j.strips : j.panels;
  j.passed = j.s.hold_a ? j.panels : j.strips;
  j.packed = workspace;
  j.sums = workspace + j.s.held_total;
  j.bundles = rf_ceil_div(j.passed, j.s.together);
  j.blocks = rf_ceil_div(j.held, j.s.block_units);
  while (j.blocks * j.bundles < 4 * threads && j.blocks < j.held) j.blocks++;
  float *rooms = j.sums + j.s.sums_total;
  const int64_t k_blocks = most(1, rf_ceil_div(g->k, most(1, j.s.kc)));
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
    const int thread = omp_get_thread_num();
    float *room = rooms + j.s.own_total * thread;
    worker w = {.errands = {run_errand}, .j = &j, .ring = room + j.s.together * j.s.passed_floats};
    isa->open();
    for (int64_t b = 0; b < k_blocks; b++) {
      if (thread == 0) {
        j.k0 = b * j.s.kc;
        j.k1 = least(g->k, j.k0 + j.s.kc);
        rf_shares_cut(&j.units, j.held, threads);
        rf_shares_cut(&j.items, j.blocks * j.bundles, threads);
      }
      RF_STAMP_BARRIER;
      for (int64_t u, count; (count = rf_shares_take(&j.units, thread, TOGETHER, &u)) > 0;)
        pack(&j, j.s.hold_a, u, count, j.packed + u * j.s.held_floats, true);
      RF_STAMP_BARRIER;
      work(&w, &j, room);
      if (b + 1 < k_blocks) RF_STAMP_BARRIER;
    }
    isa->close();
  }
}
