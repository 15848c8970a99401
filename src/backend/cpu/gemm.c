/* gemm.c - divides a product into blocks and distributes the work over threads. gemm_kernels.h and
 * gemm_*.c have the instructions of each ISA. A strip is up to mr rows of A, and a panel up to nr
 * columns of B. A block has about nc columns, and at most kc steps of k. The strips of a block are
 * divided into groups of about a_bytes of packed A. All threads pack a block. Then a thread
 * multiplies all strips of a group by one panel, then by the next panel. The strips of the group
 * stay in the L2 of the core, and the core prefetches the next panel. Meanwhile, the threads pack
 * the next block into second buffers, so one barrier per block is enough. Between blocks of k,
 * contiguous scratch memory keeps the sums of a tile. Rows of C may have a power-of-two stride, and
 * would then share a few sets of the L1. */
#include "backend/cpu/fast.h"
#include "backend/cpu/gemm_tiles.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/product.h"
#include "backend/cpu/shares.h"

#include <omp.h>
#include <stdatomic.h>
#include <string.h>

/* Block sizes for the L2 of a core, measured on Zen 4 (1 MiB) and Granite Rapids (2 MiB).
 * docs/measurements.md has the sizes and prefetches that were tried. */
static const struct blocking {
  int64_t l2_bytes; /* minimum size of L2 in bytes for these block sizes */
  rf_blocks blocks;
} BLOCKINGS[] = {{2 << 20, {320, 1500 << 10, 4096}}, {0, {384, 1 << 20, 2048}}};
/* TOO_LARGE: number of values from which on a bf16 output leaves L2 before the next op reads the
 * output */
enum { STREAM_COLS = 2048, TOO_LARGE = 1 << 19 };

rf_blocks rf_gemm_blocks(void) {
  int64_t l2 = rf_l2_bytes();
  const struct blocking *b = BLOCKINGS;
  while (l2 < b->l2_bytes) b++;
  return b->blocks;
}

typedef struct layout {
  int64_t strips, panels; /* strips and panels of the whole product */
  int64_t row_blocks, col_blocks, k_blocks;
  /* number of groups among which the strips of a row block are divided */
  int groups;
  int64_t block_strips, block_panels, kc; /* maximum number of strips, panels and steps of k of a block */
  int a_buffers, b_buffers;
  size_t a_floats, b_floats, tile_floats; /* size of one buffer in floats, a multiple of 16 */
} layout;

static int64_t at_least_1(int64_t x) { return x < 1 ? 1 : x; }
static int64_t cut(int64_t total, int64_t parts, int64_t i) { return total * i / parts; }
static size_t round_16(int64_t floats) { return (size_t)((floats + 15) & ~(int64_t)15); }

static int64_t bound(int64_t most, int64_t now) { return most > now ? most : now; }

static bool panels_are_bf16(const rf_panels *panels) {
  for (int i = 0; i < panels->parts; i++)
    if (panels->part[i].type->number != RF_Q_BF16) return false;
  return true;
}
static bool b_is_bf16(const rf_gemm *g) {
  return g->panels ? panels_are_bf16(g->panels) : g->b_dtype == RF_BF16;
}
bool rf_gemm_is_bf16(const rf_gemm *g) { return g->a_dtype == RF_BF16 && b_is_bf16(g); }
/* The tile kernels of an ISA if tiles can compute the product, otherwise its vector kernels. */
static const rf_gemm_isa *select_isa(const rf_gemm_isa *isa, const rf_gemm *g) {
  bool a_half = g->a_dtype == RF_BF16, b_half = b_is_bf16(g);
  if (!isa->tiles || g->fast || !(a_half || b_half) || (g->panels && !b_half)) return isa;
  return &isa->tiles[!a_half ? 1 : !b_half ? 2 : 0];
}

/* Blocks of k start at multiples of this number, because a packed B can be unpacked only from the
 * start of a run of values. A transposed B can be unpacked only from the start of a panel. */
static int64_t k_grain(const rf_gemm *g) {
  return !g->panels ? 1 : g->transposed ? RF_PANEL_LANES : RF_GEMM_RUN;
}
static int64_t k_cut(const rf_gemm *g, int64_t parts, int64_t i) {
  int64_t grain = k_grain(g), at = cut(rf_ceil_div(g->k, grain), parts, i) * grain;
  return at < g->k ? at : g->k;
}
/* Number of floats for `count` rows or columns of kc steps, packed for AMX tiles. */
static int64_t packed_floats(const rf_gemm_isa *isa, int words, int64_t count, int64_t kc) {
  return count * (rf_ceil_div(kc, isa->depth) * isa->depth) * words / 2;
}

/* The layout has room for m_bound and k_bound, so that smaller calls fit in the workspace. */
static layout layout_of(const rf_gemm_isa *isa, const rf_gemm *g, int threads) {
  int64_t m = bound(g->m_bound, g->m), n = g->n, k = bound(g->k_bound, g->k);
  const rf_blocks by = g->blocks.kc ? g->blocks : rf_gemm_blocks();
  layout l = {.strips = rf_ceil_div(m, isa->mr),
              .panels = rf_ceil_div(n, isa->nr),
              .k_blocks = at_least_1(rf_ceil_div(k, by.kc))};
  l.kc = rf_ceil_div(rf_ceil_div(k, k_grain(g)), l.k_blocks) * k_grain(g);
  /* number of strips whose packed rows fill a_bytes */
  int64_t group_strips = at_least_1(by.a_bytes / (4 * isa->mr * at_least_1(l.kc)));
  /* a group should have half of group_strips or more, so a product with few strips has fewer
   * groups */
  int64_t groups = rf_ceil_div(l.strips, at_least_1(group_strips / 2));
  if (groups > threads) groups = threads;
  if (groups > RF_GEMM_MAX_GROUPS) groups = RF_GEMM_MAX_GROUPS;
  l.groups = (int)at_least_1(groups);
  l.row_blocks = at_least_1(rf_ceil_div(l.strips, group_strips * l.groups));
  l.col_blocks = at_least_1(rf_ceil_div(l.panels, by.nc / isa->nr));
  l.block_strips = rf_ceil_div(l.strips, l.row_blocks);
  l.block_panels = rf_ceil_div(l.panels, l.col_blocks);
  l.a_buffers = l.row_blocks * l.k_blocks > 1 ? 2 : 1;
  l.b_buffers = l.col_blocks * l.k_blocks > 1 ? 2 : 1;
  /* packing stores whole vectors, so the last vector may write after the end of the strips */
  l.a_floats = round_16(l.block_strips * isa->mr * l.kc + 16);
  l.b_floats = round_16(l.block_panels * isa->nr * l.kc);
  l.tile_floats = l.k_blocks > 1 ? round_16(l.block_strips * l.block_panels * isa->mr * isa->nr) : 0;
  l.strips = rf_ceil_div(g->m, isa->mr);
  return l;
}

/* Number of columns that a thread streams at once: a multiple of 64 that leaves work for each
 * thread. For a narrow product, such as the product with matrix A of an adapter, the number is a
 * multiple of one vector. */
static int64_t stream_cols(int64_t n, int threads) {
  int64_t chunks = rf_ceil_div(n, STREAM_COLS * (int64_t)threads) * threads,
          whole = n > 64 * (int64_t)(threads - 1) ? 64 : RF_LANES;
  return rf_ceil_div(rf_ceil_div(n, chunks), whole) * whole;
}

bool rf_gemm_may_stream(const rf_gemm *g) { return !g->sums_columns && !g->transposed; }
/* For few rows with tiles. FEW_PANELS: number of panels that a thread takes at once. FEW_STEPS:
 * number of steps of B that a thread packs at once. */
enum { FEW_PANELS = 2, FEW_STEPS = 256 };
/* Number of floats of A packed as one strip. The strip ends with padding, because vectors read past
 * the last value. */
static int64_t few_floats(const rf_gemm_isa *isa, int64_t few, int64_t k) {
  return isa->depth > 1 ? packed_floats(isa, isa->a_words, RF_FEW_ROWS, k) : few * k + RF_FEW_ROWS;
}
/* Number of floats of one thread's workspace, without the packed A that all threads share. */
static int64_t stream_floats(const rf_gemm_isa *isa, const rf_gemm *g, int64_t few, int threads) {
  if (isa->depth > 1)
    return packed_floats(isa, isa->b_words, isa->nr, FEW_STEPS) + (int64_t)FEW_PANELS * isa->mr * isa->nr;
  if (g->panels) return (bound(few, RF_GEMM_PANELS) + RF_GEMM_RUN) * RF_PANEL_LANES;
  return few * stream_cols(g->n, threads);
}

size_t rf_gemm_workspace(const rf_gemm_isa *isa, const rf_gemm *g, int threads) {
  if (g->fast) return rf_fast_workspace(isa->fast, g, threads);
  isa = select_isa(isa, g);
  int64_t m = bound(g->m_bound, g->m), few = m < RF_FEW_ROWS ? m : RF_FEW_ROWS;
  int64_t k = bound(g->k_bound, g->k);
  size_t streaming =
      round_16(few_floats(isa, few, k)) + (size_t)stream_floats(isa, g, few, threads) * (size_t)threads;
  if (m == few && rf_gemm_may_stream(g)) return streaming * sizeof(float);
  if (isa->depth > 1) {
    size_t bytes = rf_tile_product_workspace(isa, g, threads);
    return bytes > streaming * sizeof(float) ? bytes : streaming * sizeof(float);
  }
  layout l = layout_of(isa, g, threads);
  size_t floats = (size_t)l.a_buffers * l.a_floats + (size_t)l.b_buffers * l.b_floats + l.tile_floats;
  return (floats > streaming ? floats : streaming) * sizeof(float);
}

static void pack_few(const rf_gemm_isa *isa, const rf_gemm *g, float *a) {
  enum { PACK = 256 };
#pragma omp for schedule(static) nowait
  for (int64_t k = 0; k < g->k; k += PACK) {
    int64_t at = isa->depth > 1 ? packed_floats(isa, isa->a_words, RF_FEW_ROWS, k) : k * g->m;
    isa->pack_a(g, 0, (int)g->m, k, g->k - k < PACK ? g->k - k : PACK, a + at);
  }
  RF_STAMP_BARRIER;
}

/* Number of panels that a thread takes at once. A product with one row alternates between these
 * panels. */
static int panels_at_once(const rf_gemm *g, int64_t panels, int threads) {
  return g->m == 1 ? rf_shares_at_once(panels, RF_GEMM_PANELS, threads) : 1;
}

void rf_gemm_panels(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace) {
  int64_t panels = rf_panels_count(g->panels), per_thread = stream_floats(isa, g, g->m, threads);
  const int most = panels_at_once(g, panels, threads);
  float *a = workspace, *rooms = a + round_16(few_floats(isa, g->m, g->k));
  rf_shares shares;
  rf_shares_cut(&shares, panels, threads);
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
    float *y = rooms + per_thread * omp_get_thread_num(),
          *wide = y + bound(g->m, RF_GEMM_PANELS) * RF_PANEL_LANES;
    pack_few(isa, g, a);
    int count;
    for (int64_t p; (count = rf_shares_take(&shares, omp_get_thread_num(), most, &p));) {
      rf_panel panel[RF_GEMM_PANELS];
      for (int i = 0; i < count; i++) panel[i] = rf_panels_at(g->panels, p + i);
      isa->stream_panels(g, panel, count, a, y, wide);
      for (int i = 0; i < count; i++)
        isa->finish(g, &(rf_gemm_sums){y + i * g->m * RF_PANEL_LANES, RF_PANEL_LANES, 0, panel[i].first,
                                       (int)g->m, panel[i].used});
    }
  }
}

void rf_gemm_stream(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace) {
  int64_t width = stream_cols(g->n, threads), chunks = rf_ceil_div(g->n, width);
  float *a = workspace, *sums = a + round_16(few_floats(isa, g->m, g->k));
  atomic_long next = 0;
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
    float *y = sums + (int64_t)omp_get_thread_num() * g->m * width;
    pack_few(isa, g, a);
    for (int64_t c; (c = atomic_fetch_add(&next, 1)) < chunks;) {
      int64_t j0 = c * width, cols = g->n - j0 < width ? g->n - j0 : width;
      isa->stream(g, a, j0, (int)cols, y);
    }
  }
}

/* True if tiles use non-temporal stores. Tiles do so if no op reads u and out soon, or if u and out
 * are bf16 and too large for L2. A product that accumulates uses ordinary stores. */
static bool is_nontemporal(const rf_gemm *g) {
  return !g->accumulate && (g->read_later || (g->dtype == RF_BF16 && g->m * g->n >= TOO_LARGE));
}

/* Packs FEW_STEPS steps of B at a time, and multiplies these steps at once with tiles. */
void rf_gemm_few(const rf_gemm_isa *vectors, const rf_gemm *product, int threads, void *workspace) {
  rf_gemm call = *product, *g = &call;
  const rf_gemm_isa *isa = select_isa(vectors, g);
  g->nontemporal = is_nontemporal(product);
  const int64_t width = FEW_PANELS * isa->nr, chunks = rf_ceil_div(g->n, width),
                room = stream_floats(isa, g, g->m, threads);
  const int64_t tile_floats = (int64_t)isa->mr * isa->nr;
  const int most = panels_at_once(g, chunks, threads);
  float *a = workspace, *rooms = a + round_16(few_floats(isa, g->m, g->k));
  rf_shares shares;
  rf_shares_cut(&shares, chunks, threads);
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
    float *tiles = rooms + room * omp_get_thread_num(), *b = tiles + FEW_PANELS * tile_floats;
    int m = (int)g->m;
    isa->open();
    pack_few(isa, g, a);
    int count, whole;
    for (int64_t c; (count = rf_shares_take(&shares, omp_get_thread_num(), most, &c));) {
      rf_panel panel[RF_GEMM_PANELS];
      for (whole = 0; whole < count && isa->stream_panels && g->panels; whole++) {
        panel[whole] = rf_panels_find(g->panels, (c + whole) * width);
        if (panel[whole].used != width || panel[whole].first != (c + whole) * width) break;
      }
      if (whole) isa->stream_panels(g, panel, whole, a, tiles, b);
      for (int i = 0; i < whole; i++)
        isa->finish(g, &(rf_gemm_sums){tiles + i * m * RF_PANEL_LANES, RF_PANEL_LANES, 0, panel[i].first, m,
                                       (int)width});
      for (int i = whole; i < count; i++) {
        int64_t j0 = (c + i) * width, j1 = j0 + width < g->n ? j0 + width : g->n;
        for (int64_t k = 0; k < g->k; k += FEW_STEPS) {
          int64_t kc = g->k - k < FEW_STEPS ? g->k - k : FEW_STEPS;
          float *tile = tiles;
          for (int64_t j = j0; j < j1; j += isa->nr, tile += tile_floats) {
            int cols = (int)(j1 - j < isa->nr ? j1 - j : isa->nr);
            if (k == 0 && g->accumulate) isa->begin(g, &(rf_gemm_sums){tile, isa->nr, 0, j, m, cols});
            isa->pack_b(g, j, cols, k, kc, b, NULL);
            isa->tile_micros[0][0](rf_ceil_div(kc, isa->depth),
                                   a + packed_floats(isa, isa->a_words, RF_FEW_ROWS, k), b,
                                   k > 0 || g->accumulate ? tile : NULL, tile, NULL);
          }
        }
        float *tile = tiles;
        for (int64_t j = j0; j < j1; j += isa->nr, tile += tile_floats)
          isa->finish(g, &(rf_gemm_sums){tile, isa->nr, 0, j, m, (int)(j1 - j < isa->nr ? j1 - j : isa->nr)});
      }
    }
    isa->close();
  }
}

/* A block of the product: ranges of rows, columns and k, and indices of the buffers with the packed
 * operands. */
typedef struct block {
  int64_t s0, s1, p0, p1, k0, k1; /* ranges of strips, panels and steps of k */
  bool pack_a, pack_b;            /* false if the previous block packed this operand */
  int a_buffer, b_buffer;
  bool first_rows; /* true in the first row block, where column sums are added */
} block;

typedef struct job {
  const rf_gemm_isa *isa;
  const rf_gemm *g;
  layout l;
  float *a, *b, *tiles;
  int64_t blocks;
  /* Ticket counters. Block i uses counter i % 3. Thread 0 clears this counter during block i-2.
   * Block i-3, which used the same counter, has ended by then. */
  struct {
    _Alignas(64) atomic_long next;
  } pack[3], work[3][RF_GEMM_MAX_GROUPS];
} job;

static block block_at(const job *j, int64_t i) {
  const layout *l = &j->l;
  int64_t kb = i % l->k_blocks, rb = i / l->k_blocks % l->row_blocks, cb = i / l->k_blocks / l->row_blocks;
  block b = {.s0 = cut(l->strips, l->row_blocks, rb),
             .s1 = cut(l->strips, l->row_blocks, rb + 1),
             .p0 = cut(l->panels, l->col_blocks, cb),
             .p1 = cut(l->panels, l->col_blocks, cb + 1),
             .k0 = k_cut(j->g, l->k_blocks, kb),
             .k1 = k_cut(j->g, l->k_blocks, kb + 1),
             .first_rows = rb == 0};
  /* a_changes, b_changes: how many times A and B were packed before this block */
  int64_t a_changes = l->row_blocks * l->k_blocks > 1 ? i : 0;
  int64_t b_changes = l->k_blocks > 1 ? i : cb;
  b.pack_a = i == 0 || l->row_blocks * l->k_blocks > 1;
  b.pack_b = i == 0 || l->k_blocks > 1 || (rb == 0 && kb == 0);
  b.a_buffer = (int)(a_changes % l->a_buffers);
  b.b_buffer = (int)(b_changes % l->b_buffers);
  return b;
}

static int64_t row_of(const job *j, int64_t strip) { return cut(j->g->m, j->l.strips, strip); }
static float *packed_a(const job *j, const block *b, int64_t strip) {
  return j->a + (int64_t)j->l.a_floats * b->a_buffer +
         (row_of(j, strip) - row_of(j, b->s0)) * (b->k1 - b->k0);
}
static float *packed_b(const job *j, const block *b, int64_t panel) {
  return j->b + (int64_t)j->l.b_floats * b->b_buffer + (panel - b->p0) * j->isa->nr * (b->k1 - b->k0);
}

/* ---- packing: threads take units (panels of B or strips of A) by number; such a number is a
 * ticket ---------------- */

static int64_t b_units(const block *b) { return b->pack_b ? b->p1 - b->p0 : 0; }
static int64_t a_units(const block *b) { return b->pack_a ? b->s1 - b->s0 : 0; }
static int64_t ticket(atomic_long *next) { return atomic_fetch_add_explicit(next, 1, memory_order_relaxed); }

static void pack_unit(const job *j, const block *b, int64_t t) {
  int64_t kc = b->k1 - b->k0, panels = b_units(b);
  if (t < panels) {
    int64_t p = b->p0 + t, col = p * j->isa->nr,
            cols = j->g->n - col < j->isa->nr ? j->g->n - col : j->isa->nr;
    float *sum = j->g->column_sum && b->first_rows ? j->g->column_sum + col : NULL;
    j->isa->pack_b(j->g, col, (int)cols, b->k0, kc, packed_b(j, b, p), sum);
  } else {
    int64_t s = b->s0 + t - panels, row = row_of(j, s);
    j->isa->pack_a(j->g, row, (int)(row_of(j, s + 1) - row), b->k0, kc, packed_a(j, b, s));
  }
}
/* Memory to prefetch, as `columns` columns that start 128 bytes apart. Each column is `lines`
 * pieces of 128 bytes, `stride` bytes apart. */
typedef struct pieces {
  const char *at;
  int64_t stride, lines, columns;
} pieces;
static pieces pieces_from(const void *from, int64_t item, int64_t step, int64_t wide, int64_t k0, int64_t kc,
                          int64_t first, int64_t count) {
  const bool along = wide != 1;
  const char *at = (const char *)from + ((along ? k0 + first * wide : k0 * step + first)) * item;
  if (along) return (pieces){at, wide * item, count, rf_ceil_div(kc * item, 128)};
  return (pieces){at, step * item, kc, rf_ceil_div(count * item, 128)};
}
/* The bytes of steps [k0, k0 + kc) of k in the packed panel of column `col`. Hardware prefetchers
 * would stop at the end of each 4 KiB page of these bytes. */
static pieces pieces_of_panel(const rf_gemm *g, int64_t k0, int64_t kc, int64_t col) {
  if (g->transposed) return (pieces){0};
  rf_panel panel = rf_panels_find(g->panels, col);
  int64_t from = k0 / panel.type->values, end = rf_ceil_div(k0 + kc, panel.type->values);
  return (pieces){(const char *)g->b + panel.offset + from * panel.block_bytes, 128,
                  rf_ceil_div((end - from) * panel.block_bytes, 128), 1};
}
/* Memory that packing of units [t, end) reads. If unit t is a panel of B, the memory ends with the
 * last panel of B. */
static pieces units_source(const job *j, const block *b, int64_t t, int64_t end) {
  const rf_gemm *g = j->g;
  int64_t panels = b_units(b), kc = b->k1 - b->k0;
  if (t < panels) {
    if (!g->panels && g->b_col != 1 && g->b_step != 1) return (pieces){0};
    if (end > panels) end = panels;
    int64_t first = (b->p0 + t) * j->isa->nr, last = (b->p0 + end) * j->isa->nr;
    if (last > g->n) last = g->n;
    if (g->panels) return pieces_of_panel(g, b->k0, kc, first);
    return pieces_from(g->b, g->b_dtype == RF_BF16 ? 2 : 4, g->b_step, g->b_col, b->k0, kc, first,
                       last - first);
  }
  if (g->a_row != 1 && g->a_step != 1) return (pieces){0};
  int64_t first = row_of(j, b->s0 + t - panels), last = row_of(j, b->s0 + end - panels);
  return pieces_from(g->a, g->a_dtype == RF_BF16 ? 2 : 4, g->a_step, g->a_row, b->k0, kc, first,
                     last - first);
}
/* The contiguous memory that receives the packed units [t, end). */
static pieces units_target(const job *j, const block *b, int64_t t, int64_t end) {
  int64_t panels = b_units(b), kc = b->k1 - b->k0;
  if (t < panels) {
    if (end > panels) end = panels;
    return (pieces){(const char *)packed_b(j, b, b->p0 + t), 128,
                    rf_ceil_div((end - t) * kc * j->isa->nr * 4, 128), 1};
  }
  t += b->s0 - panels;
  end += b->s0 - panels;
  return (pieces){(const char *)packed_a(j, b, t), 128,
                  rf_ceil_div((row_of(j, end) - row_of(j, t)) * kc * 4, 128), 1};
}
static void fetch(pieces p) {
  for (int64_t c = 0; c < p.columns; c++) {
    for (int64_t l = 0; l < p.lines; l++) {
      __builtin_prefetch(p.at + c * 128 + l * p.stride, 0, 2);
      __builtin_prefetch(p.at + c * 128 + l * p.stride + 64, 0, 2);
    }
  }
}
/* Packs the units of block i that are not packed yet. Each iteration prefetches AT_ONCE units, and
 * packs the AT_ONCE units that the previous iteration prefetched. */
static void pack_rest(job *j, int64_t i) {
  enum { AT_ONCE = 4 }; /* adjacent strips of a transposed A share cache lines */
  block b = block_at(j, i);
  int64_t units = a_units(&b) + b_units(&b), next = 0;
  atomic_long *tickets = &j->pack[i % 3].next;
  for (int64_t t = atomic_fetch_add_explicit(tickets, AT_ONCE, memory_order_relaxed); t < units; t = next) {
    next = atomic_fetch_add_explicit(tickets, AT_ONCE, memory_order_relaxed);
    if (next < units) fetch(units_source(j, &b, next, next + AT_ONCE < units ? next + AT_ONCE : units));
    for (int64_t u = t; u < t + AT_ONCE && u < units; u++) pack_unit(j, &b, u);
  }
}

/* ---- multiplying ----------------------------------------------------------------------------- */

/* Lists the addresses that the epilogue reads or writes in rows [row, row + rows) at column `col`.
 * NULL ends the list. */
enum { TILE_PIECES = 3 * 12 + 1 };
static void pieces_of_tile(const rf_gemm *g, int64_t row, int64_t rows, int64_t col, const char **to) {
  bool plain = g->epilogue == RF_GEMM_PLAIN;
  const void *arrays[] = {g->u, plain ? NULL : g->out, plain || g->epilogue == RF_GEMM_GELU ? NULL : g->side};
  int64_t item = g->dtype == RF_BF16 ? 2 : 4;
  for (int i = 0; i < 3; i++) {
    if (!arrays[i]) continue;
    for (int64_t r = 0; r < rows; r++) *to++ = (const char *)arrays[i] + ((row + r) * g->ld + col) * item;
  }
  *to = NULL;
}

static void multiply(const job *j, const block *b, int group, int64_t panel, int64_t next_panel,
                     const pieces list[2]) {
  const rf_gemm_isa *isa = j->isa;
  const rf_gemm *g = j->g;
  int64_t s0 = b->s0 + cut(b->s1 - b->s0, j->l.groups, group),
          s1 = b->s0 + cut(b->s1 - b->s0, j->l.groups, group + 1);
  int64_t kc = b->k1 - b->k0, tile_floats = (int64_t)isa->mr * isa->nr, col = panel * isa->nr;
  int cols = (int)(g->n - col < isa->nr ? g->n - col : isa->nr);
  bool first = b->k0 == 0, last = b->k1 == g->k;
  const float *panel_at = packed_b(j, b, panel);
  /* During each strip, prefetches a part of the next panel of B, and a part of the memory that
   * packing will read and write. */
  int64_t strips = at_least_1(s1 - s0), ahead = next_panel < b->p1 ? rf_ceil_div(kc * isa->nr * 4, 128) : 0;
  rf_gemm_ahead prefetch[2] = {{(const char *)packed_b(j, b, next_panel), 128, rf_ceil_div(ahead, strips)}};
  rf_gemm_ahead *near = &prefetch[0], *far = &prefetch[1];
  const pieces *now = list;
  int64_t share = rf_ceil_div(now[0].lines * now[0].columns + now[1].lines * now[1].columns, strips),
          column = 0, line = 0;
  int64_t near_left = ahead, row = row_of(j, s0);
  /* computes row_of incrementally */
  int64_t fewest = g->m / j->l.strips, more = g->m % j->l.strips, owed = more * s0 % j->l.strips;
  const float *a = packed_a(j, b, s0);
  const char *tile_pieces[TILE_PIECES];
  _Alignas(64) float local[16 * 32];
  float *tile =
      j->l.tile_floats ? j->tiles + ((panel - b->p0) * (b->s1 - b->s0) + s0 - b->s0) * tile_floats : local;
  for (int64_t s = s0; s < s1; s++) {
    owed += more;
    bool extra = owed >= j->l.strips;
    int64_t rows = fewest + extra;
    if (extra) owed -= j->l.strips;
    if (near->lines > near_left) near->lines = near_left;
    if (now == list && column >= now->columns) {
      now++;
      column = line = 0;
    }
    far->at = now->at ? now->at + column * 128 + line * now->stride : NULL;
    far->stride = now->stride;
    far->lines = column >= now->columns ? 0 : share < now->lines - line ? share : now->lines - line;
    tile_pieces[0] = NULL;
    /* prefetches the values of C for the next tile; a prefetch for this tile would come too late */
    if (first && g->accumulate) {
      if (s + 1 < s1) pieces_of_tile(g, row + rows, fewest + (owed + more >= j->l.strips), col, tile_pieces);
    } else if (last) {
      pieces_of_tile(g, row, rows, col, tile_pieces);
    }
    const rf_gemm_sums sums = {tile, isa->nr, row, col, (int)rows, cols};
    if (first && g->accumulate) isa->begin(g, &sums);
    isa->micro[rows](kc, a, panel_at, tile, !first || g->accumulate, prefetch, tile_pieces);
    if (last) isa->finish(g, &sums);
    near_left -= near->lines;
    near->at += near->lines * near->stride;
    line += far->lines;
    if (line >= now->lines) {
      line = 0;
      column++;
    }
    a += rows * kc;
    row += rows;
    if (j->l.tile_floats) tile += tile_floats;
  }
}

/* Multiplies panels of block i. While a thread multiplies a panel, the thread prefetches a share of
 * block i+1. Then the thread packs the share. */
static void compute(job *j, int64_t i, int thread, int threads) {
  block b = block_at(j, i), after = {0};
  if (i + 1 < j->blocks) after = block_at(j, i + 1);
  int groups = j->l.groups, homes = threads / groups;
  int64_t panels = b.p1 - b.p0, units = a_units(&after) + b_units(&after),
          share = rf_ceil_div(units, panels * groups);
  for (int turn = 0; turn < groups; turn++) {
    int group = (thread + turn) % groups;
    atomic_long *next = &j->work[i % 3][group].next;
    /* does not help a group that is nearly done, because the group's own thread would wait for the
     * helper */
    for (;;) {
      bool help = turn > 0 && group < threads;
      if (help && panels - atomic_load_explicit(next, memory_order_relaxed) < 3) break;
      int64_t t = ticket(next);
      if (t >= panels) break;
      int64_t unit =
          units > 0 ? atomic_fetch_add_explicit(&j->pack[(i + 1) % 3].next, share, memory_order_relaxed) : 0;
      int64_t end = unit + share < units ? unit + share : units;
      pieces ahead[2] = {{0}};
      if (unit < end) {
        ahead[0] = units_source(j, &after, unit, end);
        ahead[1] = units_target(j, &after, unit, end);
      }
      multiply(j, &b, group, b.p0 + t, b.p0 + t + (homes > 0 ? homes : 1), ahead);
      for (; unit < end; unit++) pack_unit(j, &after, unit);
    }
  }
}

void rf_gemm_blocked(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace) {
  job j = {.isa = isa, .g = g, .l = layout_of(isa, g, threads), .a = workspace};
  j.b = j.a + (size_t)j.l.a_buffers * j.l.a_floats;
  j.tiles = j.b + (size_t)j.l.b_buffers * j.l.b_floats;
  j.blocks = j.l.row_blocks * j.l.col_blocks * j.l.k_blocks;
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
    int thread = omp_get_thread_num(), team = omp_get_num_threads();
    pack_rest(&j, 0);
    RF_STAMP_BARRIER;
    for (int64_t i = 0; i < j.blocks; i++) {
      if (thread == 0) { /* clears the counters of block i+2, which block i-1 used last */
        atomic_store(&j.pack[(i + 2) % 3].next, 0);
        for (int gr = 0; gr < j.l.groups; gr++) atomic_store(&j.work[(i + 2) % 3][gr].next, 0);
      }
      compute(&j, i, thread, team);
      if (i + 1 < j.blocks) pack_rest(&j, i + 1);
      RF_STAMP_BARRIER;
    }
  }
}

/* ---- paths ----------------------------------------------------------------------------------- */

void rf_gemm_fast(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace) {
  rf_gemm call = *g;
  call.nontemporal = g->read_later;
  rf_fast_run(isa->fast, isa, &call, threads, workspace);
}

void rf_gemm_tiles(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace) {
  rf_gemm call = *g;
  call.nontemporal = is_nontemporal(g);
  if (g->k == 0 && g->column_sum && !g->column_sum_accumulate)
    memset(g->column_sum, 0, (size_t)g->n * sizeof *g->column_sum);
  rf_tile_product_run(select_isa(isa, g), &call, threads, workspace);
}

/* ---- kernels of products inside an op -------------------------------------------------------- */

#define ROW(at, table, title, rows, way, with_tiles, condition) \
  {.inner = {title, rows}, \
   .level = at, \
   .isa = &table, \
   .path = rf_gemm_##way, \
   .tiles = with_tiles, \
   .takes = condition},
#define FAST_ROW(at, table, title) ROW(at, table, title, 0, fast, false, rf_takes_fast)
#define TILE_ROWS(at, table, title) \
  ROW(at, table, title "_few", RF_FEW_ROWS, few, true, rf_gemm_may_stream) \
  ROW(at, table, title, 0, tiles, true, NULL)
#define VECTOR_ROWS(at, table, title) \
  ROW(at, table, title "_panels", RF_FEW_ROWS, panels, false, rf_takes_panels) \
  ROW(at, table, title "_stream", RF_FEW_ROWS, stream, false, rf_takes_stream) \
  ROW(at, table, title, 0, blocked, false, rf_takes_blocked)
/* The kernel of a product is the first entry of the table that accepts the product. */
// clang-format off
static const rf_gemm_kernel KERNELS[] = {
#if defined(__x86_64__)
    FAST_ROW(RF_ISA_AMX, RF_GEMM_AMX, "fast_amx")
    TILE_ROWS(RF_ISA_AMX, RF_GEMM_AMX, "gemm_amx_32x32")
    VECTOR_ROWS(RF_ISA_AMX, RF_GEMM_AMX, "gemm_avx512_12x32")
    FAST_ROW(RF_ISA_AVX512BF16, RF_GEMM_AVX512BF16, "fast_avx512bf16")
    VECTOR_ROWS(RF_ISA_AVX512BF16, RF_GEMM_AVX512BF16, "gemm_avx512_12x32")
    FAST_ROW(RF_ISA_AVX512, RF_GEMM_AVX512, "fast_avx512")
    VECTOR_ROWS(RF_ISA_AVX512, RF_GEMM_AVX512, "gemm_avx512_12x32")
    FAST_ROW(RF_ISA_AVXVNNI, RF_GEMM_AVXVNNI, "fast_avxvnni")
    VECTOR_ROWS(RF_ISA_AVXVNNI, RF_GEMM_AVXVNNI, "gemm_avx2_6x16")
    FAST_ROW(RF_ISA_AVX2, RF_GEMM_AVX2, "fast_avx2")
    VECTOR_ROWS(RF_ISA_AVX2, RF_GEMM_AVX2, "gemm_avx2_6x16")
#endif
    VECTOR_ROWS(RF_ISA_BASE, RF_GEMM_BASE, "gemm_base_4x16")
};
// clang-format on

const rf_gemm_kernel *rf_gemm_choose(const rf_gemm_isa *isa, const rf_gemm *g, int64_t rows) {
  const bool tiles = select_isa(isa, g) != isa;
  for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++) {
    const rf_gemm_kernel *k = &KERNELS[i];
    const bool holds = !k->inner.max_rows || rows <= k->inner.max_rows;
    if (k->isa == isa && k->tiles == tiles && holds && (!k->takes || k->takes(g))) return k;
  }
  return NULL;
}

rf_inner rf_gemm_inner(int level, const char *product, const rf_gemm *g, int64_t fewest) {
  const rf_gemm_kernel *at = KERNELS;
  while (at->level > level) at++; /* this build may lack the level, because a plan may be for another CPU */
  const rf_gemm_kernel *many = rf_gemm_choose(at->isa, g, g->m), *few = rf_gemm_choose(at->isa, g, fewest);
  return (rf_inner){product, &many->inner, few == many ? NULL : &few->inner};
}

void rf_gemm_planned(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace) {
  (void)isa;
  const rf_gemm_kernel *kernel = (const rf_gemm_kernel *)rf_inner_for(g->inner, g->m);
  if (g->m > 0 && g->n > 0) kernel->path(kernel->isa, g, threads, workspace);
}

void rf_column_sums(const void *x, rf_dtype dtype, int64_t rows, int64_t cols, int64_t ld, float *sum,
                    bool resume, int threads) {
  enum { WIDTH = 64 };
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
#pragma omp for schedule(static) nowait
    for (int64_t j0 = 0; j0 < cols; j0 += WIDTH) {
      int64_t j1 = j0 + WIDTH < cols ? j0 + WIDTH : cols;
      for (int64_t j = j0; j < j1 && !resume; j++) sum[j] = 0.0f;
      for (int64_t i = 0; i < rows; i++) {
        const rf_bf16 *half = (const rf_bf16 *)x + i * ld;
        const float *whole = (const float *)x + i * ld;
        if (dtype == RF_BF16) {
          for (int64_t j = j0; j < j1; j++) sum[j] += rf_bf16_to_f32(half[j]);
        } else {
          for (int64_t j = j0; j < j1; j++) sum[j] += whole[j];
        }
      }
    }
  }
}
