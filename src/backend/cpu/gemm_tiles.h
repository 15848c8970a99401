/* gemm_tiles.h - functions of gemm_amx.c and tile_product.c for gemm.c and ISA tables. */
#ifndef RF_GEMM_TILES_H
#define RF_GEMM_TILES_H

#include "backend/cpu/gemm.h"

enum { RF_TILE_ROWS = 32, RF_TILE_COLUMNS = 32 }; /* number of rows of a strip and of columns of a panel */

void rf_tiles_pack_a(const rf_gemm *g, int64_t i0, int rows, int64_t k0, int64_t kc, float *to);
void rf_tiles_pack_b(const rf_gemm *g, int64_t j0, int cols, int64_t k0, int64_t kc, float *to, float *sum);
/* Packs kc steps of k, from k0 on, of a full panel of B. Lanes 0 to 31 go to `left` and lanes 32 to
 * 63 to `right`, in the layout of rf_tiles_pack_b. */
void rf_tiles_pack_panel(const rf_gemm *g, const rf_panel *panel, int64_t k0, int64_t kc, float *left,
                         float *right);
/* Does the same as rf_gemm_isa.stream_panels for full panels, with A packed for AMX tiles. `y` has
 * 16 rows of sums. */
void rf_tiles_stream_panels(const rf_gemm *g, const rf_panel *panel, int count, const float *a, float *y,
                            float *wide);
void rf_tiles_open(void);
void rf_tiles_close(void);

/* Other work of the thread. `run` is called after each step while tiles multiply. NULL means
 * none. */
struct rf_tile_errands {
  void (*run)(struct rf_tile_errands *);
};
typedef struct rf_tile_errands rf_tile_errands;
extern const rf_tile_micro RF_TILE_MICROS[RF_TILE_FORMS][2][2];

/* Computes products with more than RF_FEW_ROWS rows. `isa` is one of the tables
 * rf_gemm_isa.tiles. */
size_t rf_tile_product_workspace(const rf_gemm_isa *isa, const rf_gemm *g, int threads);
void rf_tile_product_run(const rf_gemm_isa *isa, const rf_gemm *g, int threads, float *workspace);

#endif
