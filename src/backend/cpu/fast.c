/* fast.c - who computes which tile of a product in 8 bits: rows are packed once, then threads take panels of B. */
#include "backend/cpu/fast.h"

#include "backend/lanes.h"

#include <omp.h>
#include <stdatomic.h>

static int64_t tiles_of(int64_t m) { return (m + RF_FAST_ROWS - 1) / RF_FAST_ROWS; }
static int64_t tile_bytes(int64_t k) { return k / RF_FAST_BLOCK * RF_FAST_ITEMS * RF_FAST_ROWS * (int64_t)sizeof(int32_t); }
/* Rows of tile t; and what it is packed for: the next of 1, 2, 4, 8. */
static int rows_of(const rf_gemm *g, int64_t t) { return g->m - t * RF_FAST_ROWS < RF_FAST_ROWS ? (int)(g->m - t * RF_FAST_ROWS) : RF_FAST_ROWS; }
static int packed_rows(int used) { return used > 4 ? 8 : used > 2 ? 4 : used; }

size_t rf_fast_workspace(const rf_gemm *g, int threads) {
  int64_t m = g->m_bound > g->m ? g->m_bound : g->m;
  return (size_t)(tiles_of(m) * tile_bytes(g->k) + threads * RF_FAST_ROWS * RF_PANEL_LANES * (int64_t)sizeof(float));
}

void rf_fast_run(const rf_fast_isa *fast, const rf_gemm_isa *gemm, const rf_gemm *g, int threads, void *workspace) {
  if (g->m <= 0 || g->n <= 0) return;
  int64_t tiles = tiles_of(g->m), panels = rf_panels_count(g->panels), bytes = tile_bytes(g->k);
  float *rooms = (float *)((char *)workspace + tiles * bytes);
  atomic_long next = 0;
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
    float *y = rooms + omp_get_thread_num() * RF_FAST_ROWS * RF_PANEL_LANES;
#pragma omp for schedule(static) nowait
    for (int64_t t = 0; t < tiles; t++) {
      int used = rows_of(g, t);
      fast->pack(g, t * RF_FAST_ROWS, used, packed_rows(used), (char *)workspace + t * bytes);
    }
    RF_STAMP_BARRIER;
    for (int64_t p; (p = atomic_fetch_add(&next, 1)) < panels;) {
      rf_panel panel = rf_panels_at(g->panels, p);
      for (int64_t t = 0; t < tiles; t++) {
        int used = rows_of(g, t);
        fast->panel(&panel, (const char *)g->b + panel.offset, g->k, (char *)workspace + t * bytes, packed_rows(used), y);
        gemm->finish(g, y, RF_PANEL_LANES, t * RF_FAST_ROWS, used, panel.first, panel.used);
      }
    }
  }
}
