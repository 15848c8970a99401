/* fast.c - distributes products in 8 bits over threads. All threads pack the rows of A once. Then
 * each thread multiplies all packed rows by some panels of B. A plan has a kernel for few rows and
 * a kernel for more rows, and chooses between these two. */
#include "backend/cpu/fast.h"

#include "backend/cpu/shares.h"
#include "backend/lanes.h"
#include "machine/isa.h"

#include <omp.h>

/* For RF_FAST_KC values of k, a thread multiplies up to STRIPS_MAX strips of A by up to PANELS_MAX
 * panels of B. Then the thread takes the next values of k. So these values of A and the sums stay
 * in L2. */
enum { STRIPS_MAX = 32, PANELS_MAX = 4, STRIP_SUMS = RF_FAST_ROWS * RF_PANEL_LANES };

static bool is_wide(const rf_gemm *g) { return g->panels->part[0].type->number == RF_Q_INT8; }
/* The functions for the storage type of B. */
static const rf_fast_isa *functions_for(const rf_fast_isa *fast, const rf_gemm *g) {
  return is_wide(g) ? fast->wide : fast;
}

/* ---- the kernels for few rows ---------------------------------------------------------------- */

#define FEW(table, title, rows) \
  {.inner = {title "_few", rows}, .isa = &table, .path = rf_gemm_fast_few, .takes = NULL},
static const rf_gemm_kernel FEW_KERNELS[] = {
#if defined(__x86_64__)
    // clang-format off
    FEW(RF_GEMM_AMX, "fast_amx", RF_FAST_FEW)
    FEW(RF_GEMM_AVX512BF16, "fast_avx512bf16", RF_FAST_FEW)
    FEW(RF_GEMM_AVX512, "fast_avx512", RF_FAST_FEW)
    FEW(RF_GEMM_AVXVNNI, "fast_avxvnni", RF_FAST_FEW)
    FEW(RF_GEMM_AVX2, "fast_avx2", RF_FAST_FEW)
    FEW(RF_GEMM_AVX2, "fast_avx2", RF_FAST_FEW_OF_256)
// clang-format on
#endif
                {.isa = NULL},
};

/* The maximum number of rows for which `panels` is faster than `many`; 0 if this ISA has no
 * `many`. */
static int few_limit(const rf_fast_isa *fast, const rf_gemm *g) {
  bool whole = fast->few_of_256;
  for (int i = 0; i < g->panels->parts; i++) whole = whole && g->panels->part[i].type->values == 256;
  return !functions_for(fast, g)->many ? 0 : whole ? RF_FAST_FEW_OF_256 : RF_FAST_FEW;
}

const rf_gemm_kernel *rf_fast_few_kernel(const rf_gemm_isa *isa, const rf_gemm *g) {
  const int limit = g->fast ? few_limit(isa->fast, g) : 0;
  for (const rf_gemm_kernel *few = FEW_KERNELS; few->isa; few++)
    if (few->isa == isa && few->inner.max_rows == limit) return few;
  return NULL;
}

/* ---- workspace ------------------------------------------------------------------------------- */

static int64_t strip_rows(bool many) { return many ? RF_FAST_ROWS : RF_FAST_FEW; }
/* Bytes of one strip of A in short or long blocks; 0 if no panel of B needs such blocks. */
static int64_t strip_bytes(const rf_fast_isa *fast, const rf_gemm *g, bool many, bool is_long) {
  bool has = false;
  for (int i = 0; i < g->panels->parts; i++) has |= rf_fast_is_long(g->panels->part[i].type) == is_long;
  int64_t rows = strip_rows(many);
  return !has      ? 0
         : is_long ? rf_fast_strip_bytes(true, rows, g->k)
                   : rf_ceil_div(g->k, fast->steps) * fast->row_bytes * rows;
}
static int64_t room_bytes(int64_t m, bool many) {
  int64_t strips = rf_ceil_div(m, RF_FAST_ROWS);
  if (!many) return RF_FAST_PANELS * RF_FAST_FEW * RF_PANEL_LANES * (int64_t)sizeof(float);
  return RF_FAST_ROOM +
         PANELS_MAX * (strips < STRIPS_MAX ? strips : STRIPS_MAX) * STRIP_SUMS * (int64_t)sizeof(float);
}
static size_t bytes_for(const rf_fast_isa *fast, const rf_gemm *g, int64_t m, bool many, int threads) {
  int64_t strip = strip_bytes(fast, g, many, false) + strip_bytes(fast, g, many, true);
  return (size_t)(rf_ceil_div(m, strip_rows(many)) * strip + threads * room_bytes(m, many));
}

/* Up to few_limit rows, a plan uses the kernel for few rows. So `many` needs no workspace for fewer
 * rows. */
size_t rf_fast_workspace(const rf_fast_isa *isa, const rf_gemm *g, int threads) {
  const rf_fast_isa *fast = functions_for(isa, g);
  int64_t m = g->m_bound > g->m ? g->m_bound : g->m, limit = few_limit(isa, g);
  if (limit == 0 || m <= limit) return bytes_for(fast, g, m, false, threads);
  size_t all = bytes_for(fast, g, m, true, threads), few = bytes_for(fast, g, limit, false, threads);
  return all > few ? all : few;
}

/* ---- the product ----------------------------------------------------------------------------- */

typedef struct job {
  const rf_fast_isa *fast, *few; /* functions of `few` pack A, and multiply if A has few rows */
  const rf_gemm_isa *gemm;
  const rf_gemm *g;
  char *strips[2]; /* strips of A packed in short blocks, and in long blocks */
  int64_t bytes[2];
  int64_t rows, count; /* rows per strip; number of strips */
  int64_t panels;
  rf_shares shares; /* the panels, divided among threads */
} job;

static int used_of(const job *j, int64_t strip) {
  int64_t left = j->g->m - strip * j->rows;
  return (int)(left < j->rows ? left : j->rows);
}
/* Number of rows of a strip after padding `used` rows: sixteen, or 1, 2, 4 or 8 in the kernel for
 * few rows. */
static int packed_for(const job *j, int used) {
  return j->rows == RF_FAST_ROWS ? RF_FAST_ROWS : used > 4 ? 8 : used > 2 ? 4 : used;
}
static const char *panel_at(const job *j, const rf_panel *panel) {
  return (const char *)j->g->b + panel->offset;
}

static void few_rows(job *j, int thread, int threads, char *room) {
  float *y = (float *)(void *)room;
  int most = j->panels < 8 * RF_FAST_PANELS * threads ? 1 : RF_FAST_PANELS, count;
  for (int64_t p; (count = rf_shares_take(&j->shares, thread, most, &p));) {
    rf_panel panel[RF_FAST_PANELS];
    for (int i = 0; i < count; i++) panel[i] = rf_panels_at(j->g->panels, p + i);
    for (int64_t s = 0; s < j->count; s++) {
      int used = used_of(j, s), rows = packed_for(j, used);
      const char *const strip[] = {j->strips[0] + s * j->bytes[0], j->strips[1] + s * j->bytes[1]};
      j->few->panels(panel, count, j->g->b, j->g->k, strip, rows, y);
      for (int i = 0; i < count; i++)
        j->gemm->finish(j->g, &(rf_gemm_sums){y + i * rows * RF_PANEL_LANES, RF_PANEL_LANES, s * j->rows,
                                              panel[i].first, used, panel[i].used});
    }
  }
}

/* Multiplies strips [s0, s1) by `count` panels from p0 on. Prefetches the part of B that the thread
 * reads next. `after` is the part of B that the thread reads after the end of k. */
static void panels_of_strips(const job *j, int64_t p0, int count, int64_t s0, int64_t s1, const char *after,
                             char *room) {
  float *sums = (float *)(void *)(room + RF_FAST_ROOM);
  rf_panel panel[PANELS_MAX];
  int64_t k_bytes[PANELS_MAX]; /* bytes of each panel that one step unpacks */
  for (int p = 0; p < count; p++) {
    panel[p] = rf_panels_at(j->g->panels, p0 + p);
    k_bytes[p] = RF_FAST_KC * panel[p].block_bytes / panel[p].type->values;
  }
  for (int64_t k = 0; k < j->g->k; k += RF_FAST_KC) {
    int64_t end = k + RF_FAST_KC < j->g->k ? k + RF_FAST_KC : j->g->k;
    for (int p = 0; p < count; p++) {
      rf_fast_block block = j->fast->unpack(&panel[p], panel_at(j, &panel[p]), k, end, room);
      int next = p + 1 < count ? p + 1 : 0;
      const char *ahead = next == 0 && end == j->g->k
                              ? after
                              : panel_at(j, &panel[next]) + (k / RF_FAST_KC + (next == 0)) * k_bytes[next];
      int64_t share = rf_ceil_div(rf_ceil_div(k_bytes[next], s1 - s0), 64) * 64;
      bool is_long = rf_fast_is_long(panel[p].type);
      for (int64_t s = s0; s < s1; s++) {
        int64_t before = is_long ? rf_fast_strip_bytes(true, RF_FAST_ROWS, k)
                                 : k / j->fast->steps * j->fast->row_bytes * RF_FAST_ROWS;
        const char *strip = j->strips[is_long] + s * j->bytes[is_long] + before;
        j->fast->many(&block, strip, used_of(j, s), k == 0, sums + ((s1 - s0) * p + s - s0) * STRIP_SUMS,
                      ahead + (s - s0) * share, share);
      }
    }
  }
  for (int p = 0; p < count; p++)
    for (int64_t s = s0; s < s1; s++)
      j->gemm->finish(j->g, &(rf_gemm_sums){sums + ((s1 - s0) * p + s - s0) * STRIP_SUMS, RF_PANEL_LANES,
                                            s * j->rows, panel[p].first, used_of(j, s), panel[p].used});
}

static void many_rows(job *j, int thread, int threads, char *room) {
  int most = j->count > 4 ? PANELS_MAX : 1, count;
  while (most > 1 && j->panels < 8 * most * threads) most /= 2;
  for (int64_t p; (count = rf_shares_take(&j->shares, thread, most, &p));) {
    rf_panel first = rf_panels_at(j->g->panels, p),
             after = rf_panels_at(j->g->panels, p + count < j->panels ? p + count : p);
    for (int64_t s = 0; s < j->count; s += STRIPS_MAX) {
      int64_t end = s + STRIPS_MAX < j->count ? s + STRIPS_MAX : j->count;
      panels_of_strips(j, p, count, s, end, panel_at(j, end < j->count ? &first : &after), room);
    }
  }
}

/* Multiplies with `many` or with `panels`. The two functions give the same bits for every number of
 * rows. */
static void run(const rf_fast_isa *isa, const rf_gemm_isa *gemm, const rf_gemm *g, bool many, int threads,
                void *workspace) {
  enum { PACK = 1024 }; /* number of steps of k that a thread packs at once */
  if (g->m <= 0 || g->n <= 0) return;
  if (isa->evex && !rf_isa_has_vex_vnni()) isa = isa->evex;
  const rf_fast_isa *fast = functions_for(isa, g), *few = functions_for(isa->few ? isa->few : isa, g);
  job j = {.fast = fast,
           .few = few,
           .gemm = gemm,
           .g = g,
           .rows = strip_rows(many),
           .panels = rf_panels_count(g->panels)};
  j.count = rf_ceil_div(g->m, j.rows);
  char *rooms = workspace;
  for (int i = 0; i < 2; i++) {
    j.strips[i] = rooms;
    j.bytes[i] = strip_bytes(fast, g, many, i);
    rooms += j.count * j.bytes[i];
  }
  rf_shares_cut(&j.shares, j.panels, threads);
  int64_t room = room_bytes(g->m, many), parts = rf_ceil_div(g->k, PACK);
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < j.count * parts; i++) {
      int64_t s = i / parts, k = i % parts * PACK;
      int used = used_of(&j, s);
      for (int l = 0; l < 2; l++)
        if (j.bytes[l])
          few->pack(g, l, s * j.rows, used, packed_for(&j, used), k, k + PACK < g->k ? k + PACK : g->k,
                    j.strips[l] + s * j.bytes[l]);
    }
    RF_STAMP_BARRIER;
    int thread = omp_get_thread_num();
    char *mine = rooms + thread * room;
    if (many && fast->open) fast->open();
    if (many) many_rows(&j, thread, omp_get_num_threads(), mine);
    else few_rows(&j, thread, omp_get_num_threads(), mine);
    if (many && fast->close) fast->close();
  }
}

void rf_fast_run(const rf_fast_isa *isa, const rf_gemm_isa *gemm, const rf_gemm *g, int threads,
                 void *workspace) {
  run(isa, gemm, g, functions_for(isa, g)->many != NULL, threads, workspace);
}

void rf_gemm_fast_few(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace) {
  rf_gemm call = *g;
  call.nontemporal = g->read_later;
  run(isa->fast, isa, &call, false, threads, workspace);
}
