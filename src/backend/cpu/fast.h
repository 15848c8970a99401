/* fast.h - products of a packed matrix with activations in 8 bits (--compute fast).
 *
 * A row of A is cut into blocks of 32 values along k; a block is a scale s = max|x| / 127 and integers a = round(x / s), halves to even. A run of 32
 * values of B (16 of q6_k) is d (q - z) + e, q the stored code, z the type's zero (q8_0 128, q4_0 8, q5_0 16, q6_k 32, others 0), e 0 where z is not.
 * One element of C is one f32 chain over the runs, k ascending, from 0:
 *   acc = fmaf(d, s * (float)sum((q - z) a), acc), and where the type has offsets: acc = fmaf(e, s * (float)sum(a), acc)
 * The sums of integers are exact, so every ISA, tile and thread gives the same bits; they are not those of the exact product. A block that
 * holds a NaN or an infinity makes its row NaN.
 *
 * Where B is int8, whose scale d is an output's, blocks are of 256 values and integers of two bytes: s = max|x| / 32639, a = round(x / s), so that whole
 * blocks are summed as integers without a loss that single large values would bring (the last block may be shorter):
 *   acc = fmaf(d, s * (float)sum(q a), acc), the sum below 2^31, rounded once
 * Bytes multiply it: a = 256 high + low, both signed. */
#ifndef RF_FAST_H
#define RF_FAST_H

#include "backend/cpu/gemm.h"
#include "graph/graph.h"

/* A strip is some rows, packed for 1, 2, 4, 8 or 16: for each block of 32, int8 a[rows][32] and then, each of all rows, f32 scale, f32 s * sum(a), and
 * int32 -128 sum(a), -128 times that of the first half, of the second. */
enum { RF_FAST_ROWS = 16, RF_FAST_FEW = 8, RF_FAST_ITEMS = 13, RF_FAST_KC = 256, RF_FAST_PANELS = 2 };

/* RF_FAST_KC values of k of one panel, taken out of their words once for all rows: codes[block of 32][8][RF_PANEL_LANES] quadruples of k, with
 * an offset of 128 for those of types that have a zero where the ISA multiplies unsigned bytes. */
typedef struct rf_fast_block {
  const char *codes;
  int64_t stride;     /* bytes from a block of 32 to the next */
  const float *d, *e; /* [run][RF_PANEL_LANES]; e: NULL where there are no offsets */
  int count, lanes;   /* blocks of 32 */
  bool halves;        /* runs of 16 */
} rf_fast_block;

/* Of int8 a strip is, for each block of 256: int8 high[4][rows][64], low[4][rows][64], f32 scale[rows], int32 -128 sum(a)[rows]; zeros behind k. */
enum { RF_FAST_WIDE = RF_FAST_INT8_BLOCK, RF_FAST_WIDE_BYTES = 2 * RF_FAST_WIDE + 8 }; /* bytes of a row */

typedef struct rf_fast_isa {
  /* `used` rows from i0 on, steps [k0, k1), into a strip packed for `rows` */
  void (*pack)(const rf_gemm *g, int64_t i0, int used, int rows, int64_t k0, int64_t k1, void *strip);
  /* y [count][rows][RF_PANEL_LANES] of up to RF_FAST_PANELS panels of the matrix at b, for up to RF_FAST_FEW rows */
  void (*panels)(const rf_panel *panel, int count, const char *b, int64_t inner, const void *strip, int rows, float *y);
  /* For more rows; NULL: RF_FAST_FEW at a time. `unpack`: steps [k0, k1) into `room`; `many`: `used` rows of a strip packed for sixteen, from k0 on, go on
   * with their sums [rows][RF_PANEL_LANES]; meanwhile memory that comes later is fetched. `open` and `close` stand around a thread's work. */
  rf_fast_block (*unpack)(const rf_panel *panel, const char *at, int64_t k0, int64_t k1, void *room);
  void (*many)(const rf_fast_block *block, const void *strip, int used, bool first, float *sums, const char *ahead, int64_t ahead_bytes);
  void (*open)(void);
  void (*close)(void);
  int steps, row_bytes;           /* of a strip's block */
  const struct rf_fast_isa *wide; /* for int8 */
} rf_fast_isa;
/* Those of RF_FAST_AVX512BF16. */
void rf_fast_pack_quads(const rf_gemm *g, int64_t i0, int used, int rows, int64_t k0, int64_t k1, void *strip);
void rf_fast_panels_quads(const rf_panel *panel, int count, const char *b, int64_t inner, const void *strip, int rows, float *y);
void rf_fast_pack_wide(const rf_gemm *g, int64_t i0, int used, int rows, int64_t k0, int64_t k1, void *strip);
void rf_fast_panels_wide(const rf_panel *panel, int count, const char *b, int64_t inner, const void *strip, int rows, float *y);
extern const rf_fast_isa RF_FAST_AVX2, RF_FAST_AVX512, RF_FAST_AVX512BF16, RF_FAST_AMX;

/* As rf_gemm_workspace and rf_gemm_run. `gemm`: whose epilogues follow. */
size_t rf_fast_workspace(const rf_fast_isa *fast, const rf_gemm *g, int threads);
void rf_fast_run(const rf_fast_isa *fast, const rf_gemm_isa *gemm, const rf_gemm *g, int threads, void *workspace);

#endif
