/* fast.h - products of a packed matrix with activations in 8 bits (--compute fast).
 *
 * A row of A is cut into blocks of 32 values along k; a block is a scale s = max|x| / 127 and integers a = round(x / s), halves to even. A run of 32
 * values of B (16 of q6_k) is d q + e, q the stored code. One element of C is one f32 chain over the runs, k ascending, from 0:
 *   acc = fmaf(d, s * (float)sum(q a), acc); acc = fmaf(e, s * (float)sum(a), acc)
 * The sums of integers are exact, so every ISA, tile and thread gives the same bits; they are not those of the exact product. A block that
 * holds a NaN or an infinity makes its row NaN. */
#ifndef RF_FAST_H
#define RF_FAST_H

#include "backend/cpu/gemm.h"
#include "graph/graph.h"

/* A tile is up to eight rows, packed as 1, 2, 4 or 8: for each block of 32 int32 word[8][rows] (four a each), f32 scale[rows],
 * f32 sum[rows] = s * (sum of a), f32 low[rows], high[rows]: that of either half. */
enum { RF_FAST_ROWS = 8, RF_FAST_WORDS = 8, RF_FAST_ITEMS = 12 };

typedef struct rf_fast_isa {
  void (*pack)(const rf_gemm *g, int64_t i0, int used, int rows, void *tile);
  /* y [rows][RF_PANEL_LANES] of one panel */
  void (*panel)(const rf_panel *panel, const char *at, int64_t inner, const void *tile, int rows, float *y);
} rf_fast_isa;
extern const rf_fast_isa RF_FAST_AVX2, RF_FAST_AVX512, RF_FAST_AVX512BF16;

/* Whether all parts of a matrix are stored in blocks of codes. */
bool rf_fast_takes(const rf_panels *panels);
/* As rf_gemm_workspace and rf_gemm_run. `gemm`: whose epilogues follow. */
size_t rf_fast_workspace(const rf_gemm *g, int threads);
void rf_fast_run(const rf_fast_isa *fast, const rf_gemm_isa *gemm, const rf_gemm *g, int threads, void *workspace);

#endif
