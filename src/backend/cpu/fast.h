/* fast.h - products of a packed matrix with activations in 8 bits (--compute fast).
 *
 * A row of A is cut along k into blocks of 32 values, or of 128 where B is q4_k or q5_k; a block
 * is a scale s = max|x| / 127 and integers a = round(x / s), halves to even. The sums of
 * integers below are exact, so every ISA, tile and thread gives the same bits; they are not
 * those of the exact product. One element of C is one f32 chain, k ascending, from 0; q are
 * stored codes, z the type's zero:
 *   a run of 32 values (16 of q6_k) is d (q - z) + e (z: q8_0 128, q4_0 8, q5_0 16, q6_k 32,
 *     others 0; e 0 where z is not):
 *     acc = fmaf(d, s * (float)sum((q - z) a), acc), and where the type has offsets: acc =
 *       fmaf(e, s * (float)sum(a), acc)
 *   128 values of q4_k and q5_k are d c q - e m, c and m integers of six bits of a run of 32:
 *     acc = fmaf(d, s * (float)sum over runs(c sum(q a)), acc), and acc = fmaf(-e, s *
 *       (float)sum over runs(m sum(a)), acc)
 * The sums over 128 stay below 2^25, those of m below 2^20. A block that holds a NaN or an
 * infinity makes its row NaN.
 *
 * Where B is int8, whose scale d is an output's, blocks are of 256 values and integers of two
 * bytes: s = max|x| / 32639, a = round(x / s), so that whole blocks are summed as integers
 * without a loss that single large values would bring (the last block may be shorter):
 *   acc = fmaf(d, s * (float)sum(q a), acc), the sum below 2^31, rounded once
 * Bytes multiply it: a = 256 high + low, both signed. */
#ifndef RF_FAST_H
#define RF_FAST_H

#include "backend/cpu/gemm.h"
#include "graph/graph.h"

/* A strip is some rows, packed for 1, 2, 4, 8 or 16, once for each length of block that B has.
 * Of each block of 32: int8 a[rows][32] and then, each of all rows, f32 scale, f32 s * sum(a),
 * int32 -128 sum(a), -128 times that of the first half, of the second. Of 128: int8
 * a[2][rows][64], f32 scale[rows], and sum(a) of two runs of 32 as 16 bits each, [2][rows]. */
enum { RF_FAST_LONG = 128, RF_FAST_ITEMS = 13, RF_FAST_LONG_ITEMS = 35 }; /* ITEMS: 32-bit words of a row */
enum { RF_FAST_ROWS = 16, RF_FAST_FEW = 8, RF_FAST_KC = 256, RF_FAST_PANELS = 2 };
static inline bool rf_fast_is_long(const rf_quant_type *type) {
  return rf_fast_block_of(type) == RF_FAST_LONG;
}
static inline int64_t rf_fast_strip_bytes(bool is_long, int64_t rows, int64_t k) {
  return 4 * rows * (is_long ? k / RF_FAST_LONG * RF_FAST_LONG_ITEMS : k / RF_FAST_BLOCK * RF_FAST_ITEMS);
}
/* What stands behind the integers of 128 values. */
typedef struct rf_fast_long {
  float *scale;
  int32_t *pairs;
} rf_fast_long;
static inline rf_fast_long rf_fast_long_at(const void *block, int64_t rows) {
  float *scale = (float *)(void *)((char *)(uintptr_t)block + RF_FAST_LONG * rows);
  return (rf_fast_long){scale, (int32_t *)(void *)(scale + rows)};
}

/* RF_FAST_KC values of k of one panel, taken out of their words once for all rows: codes[block
 * of 32][8][RF_PANEL_LANES] quadruples of k, with an offset of 128 for those of types that have
 * a zero where the ISA multiplies unsigned bytes. For the tile unit, runs of 16 have a run of
 * zeros between them, and codes of q4_k and q5_k are times c (fast_amx.c). */
typedef struct rf_fast_block {
  const char *codes;
  int64_t stride; /* bytes from a block of 32 to the next */
  /* [run, or of all of q4_k and q5_k][RF_PANEL_LANES]; e: NULL where there are no offsets */
  const float *d, *e;
  int count, lanes; /* blocks of 32 */
  bool halves;      /* runs of 16 */
  const int32_t *c; /* of q4_k and q5_k: [run][RF_PANEL_LANES] */
  const int32_t *m; /* of two runs as 16 bits each, [4][RF_PANEL_LANES] */
} rf_fast_block;
/* bytes it takes */
enum {
  RF_FAST_CODES = 2 * RF_FAST_KC * RF_PANEL_LANES,
  RF_FAST_ROOM = RF_FAST_CODES + 32 * RF_PANEL_LANES * 4
};

/* Of int8 a strip is, for each block of 256: int8 high[4][rows][64], low[4][rows][64], f32
 * scale[rows], int32 -128 sum(a)[rows]; zeros behind k. */
enum { RF_FAST_WIDE = RF_FAST_INT8_BLOCK, RF_FAST_WIDE_BYTES = 2 * RF_FAST_WIDE + 8 }; /* bytes of a row */

typedef struct rf_fast_isa {
  /* `used` rows from i0 on, steps [k0, k1), into a strip packed for `rows` */
  void (*pack)(const rf_gemm *g, bool is_long, int64_t i0, int used, int rows, int64_t k0, int64_t k1,
               void *strip);
  /* y [count][rows][RF_PANEL_LANES] of up to RF_FAST_PANELS panels of the matrix at b, for up to
   * RF_FAST_FEW rows; strip: by is_long */
  void (*panels)(const rf_panel *panel, int count, const char *b, int64_t inner, const char *const strip[2],
                 int rows, float *y);
  /* For more rows; NULL: RF_FAST_FEW at a time. `unpack`: steps [k0, k1) into `room`; `many`:
   * `used` rows of a strip packed for sixteen, from k0 on, go on with their sums
   * [rows][RF_PANEL_LANES]; meanwhile memory that comes later is fetched. `open` and `close`
   * stand around a thread's work. */
  rf_fast_block (*unpack)(const rf_panel *panel, const char *at, int64_t k0, int64_t k1, void *room);
  void (*many)(const rf_fast_block *block, const void *strip, int used, bool first, float *sums,
               const char *ahead, int64_t ahead_bytes);
  void (*open)(void);
  void (*close)(void);
  int steps, row_bytes;           /* of a strip's block */
  const struct rf_fast_isa *wide; /* for int8 */
} rf_fast_isa;
/* Those of RF_FAST_AVX512BF16. */
void rf_fast_pack_quads(const rf_gemm *g, bool is_long, int64_t i0, int used, int rows, int64_t k0,
                        int64_t k1, void *strip);
void rf_fast_panels_quads(const rf_panel *panel, int count, const char *b, int64_t inner,
                          const char *const strip[2], int rows, float *y);
void rf_fast_pack_wide(const rf_gemm *g, bool is_long, int64_t i0, int used, int rows, int64_t k0, int64_t k1,
                       void *strip);
void rf_fast_panels_wide(const rf_panel *panel, int count, const char *b, int64_t inner,
                         const char *const strip[2], int rows, float *y);
extern const rf_fast_isa RF_FAST_AVX2, RF_FAST_AVX512, RF_FAST_AVX512BF16, RF_FAST_AMX;

/* As rf_gemm_workspace and rf_gemm_run. `gemm`: whose epilogues follow. */
size_t rf_fast_workspace(const rf_fast_isa *fast, const rf_gemm *g, int threads);
void rf_fast_run(const rf_fast_isa *fast, const rf_gemm_isa *gemm, const rf_gemm *g, int threads,
                 void *workspace);

#endif
