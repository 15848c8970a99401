/* fast.h - products of a packed matrix with activations in 8 bits (--compute fast).
 *
 * A row of A is cut along k into blocks of 32 values, or of 128 values if B is q4_k or q5_k. A
 * block has one scale s = max|x| / 127 and integers a = round(x / s), halves to even. Integer sums
 * are exact, so results are bit-identical on every ISA and number of threads. The results differ
 * from an f32 product. One element of C is one f32 sum in ascending k, from 0. In the formulas, q
 * are stored codes and z is the zero of the type:
 *   a run of 32 values (16 of q6_k) is d (q - z) + e, where z is q8_0 128, q4_0 8, q5_0 16,
 *     q6_k 32, others 0; e is 0 for types with a z:
 *     acc = fmaf(d, s * (float)sum((q - z) a), acc); for types with offsets then
 *     acc = fmaf(e, s * (float)sum(a), acc)
 *   128 values of q4_k and q5_k are d c q - e m, with six-bit integers c and m per run of 32:
 *     acc = fmaf(d, s * (float)sum over runs(c sum(q a)), acc), then
 *     acc = fmaf(-e, s * (float)sum over runs(m sum(a)), acc)
 * The sums over 128 stay below 2^25, and the sums with m below 2^20. A NaN or an infinity in a
 * block makes its row of C NaN.
 *
 * If B is int8, with one scale d per output, blocks of A have 256 values (the last may have fewer)
 * and integers a of two bytes: s = max|x| / 32639, a = round(x / s). Two bytes keep the precision
 * of blocks with single large values:
 *   acc = fmaf(d, s * (float)sum(q a), acc); the sum is below 2^31 and rounded once
 * The product uses both bytes of a = 256 high + low, both signed. */
#ifndef RF_FAST_H
#define RF_FAST_H

#include "backend/cpu/gemm.h"
#include "graph/graph.h"

/* A strip is a group of 1, 2, 4, 8 or 16 packed rows. Rows are packed once for each block length of
 * B. A block of 32 is int8 a[rows][32], then arrays over rows: f32 scale, f32 s * sum(a), int32
 * -128 sum(a), and -128 times the sum of each half. A block of 128 is int8 a[2][rows][64], f32
 * scale[rows], and [2][rows] pairs of 16 bits with sum(a) of two runs of 32. */
enum { RF_FAST_LONG = 128, RF_FAST_ITEMS = 13, RF_FAST_LONG_ITEMS = 35 }; /* ITEMS: 32-bit words per row */
enum { RF_FAST_ROWS = 16, RF_FAST_FEW = 8, RF_FAST_KC = 256, RF_FAST_PANELS = 2 };
static inline bool rf_fast_is_long(const rf_quant_type *type) {
  return rf_fast_block_of(type) == RF_FAST_LONG;
}
static inline int64_t rf_fast_strip_bytes(bool is_long, int64_t rows, int64_t k) {
  return 4 * rows * (is_long ? k / RF_FAST_LONG * RF_FAST_LONG_ITEMS : k / RF_FAST_BLOCK * RF_FAST_ITEMS);
}
/* The fields that follow the integers in a block of 128 values. */
typedef struct rf_fast_long {
  float *scale;
  int32_t *pairs;
} rf_fast_long;
static inline rf_fast_long rf_fast_long_at(const void *block, int64_t rows) {
  float *scale = (float *)(void *)((char *)(uintptr_t)block + RF_FAST_LONG * rows);
  return (rf_fast_long){scale, (int32_t *)(void *)(scale + rows)};
}

/* RF_FAST_KC values of k of one panel, unpacked once for all rows. The codes are [block of
 * 32][8][RF_PANEL_LANES] quadruples of k. Types with a zero add 128 to codes if the ISA multiplies
 * unsigned bytes. For AMX, zeros separate runs of 16, and codes of q4_k and q5_k are multiplied by
 * c (fast_amx.c). */
typedef struct rf_fast_block {
  const char *codes;
  int64_t stride; /* bytes between two blocks of 32 */
  /* [run][RF_PANEL_LANES]; q4_k and q5_k have one run. e is NULL for types without offsets */
  const float *d, *e;
  int count, lanes; /* number of blocks of 32; lanes of the panel */
  bool halves;      /* true for runs of 16 */
  const int32_t *c; /* for q4_k and q5_k: [run][RF_PANEL_LANES] */
  const int32_t *m; /* [4][RF_PANEL_LANES] pairs of m of two runs */
} rf_fast_block;
/* bytes of the codes, and of all data of an rf_fast_block */
enum {
  RF_FAST_CODES = 2 * RF_FAST_KC * RF_PANEL_LANES,
  RF_FAST_ROOM = RF_FAST_CODES + 32 * RF_PANEL_LANES * 4
};

/* For int8, each block of 256 of a strip has int8 high[4][rows][64], low[4][rows][64], f32
 * scale[rows] and int32 -128 sum(a)[rows], with zeros after k. */
enum { RF_FAST_WIDE = RF_FAST_INT8_BLOCK, RF_FAST_WIDE_BYTES = 2 * RF_FAST_WIDE + 8 }; /* bytes per row */

typedef struct rf_fast_isa {
  /* Packs steps [k0, k1) of `used` rows, from row i0 on, into a strip with room for `rows` rows. */
  void (*pack)(const rf_gemm *g, bool is_long, int64_t i0, int used, int rows, int64_t k0, int64_t k1,
               void *strip);
  /* Computes y [count][rows][RF_PANEL_LANES] for up to RF_FAST_PANELS panels of the matrix at b and
   * up to RF_FAST_FEW rows. `strip` is indexed by is_long. */
  void (*panels)(const rf_panel *panel, int count, const char *b, int64_t inner, const char *const strip[2],
                 int rows, float *y);
  /* Functions for more rows; NULL: `panels` runs RF_FAST_FEW rows at a time. `unpack` unpacks steps
   * [k0, k1) into `room`. `many` continues the sums [rows][RF_PANEL_LANES] of `used` rows of a
   * strip of sixteen, and prefetches `ahead`. Each thread calls `open` first and `close` last. */
  rf_fast_block (*unpack)(const rf_panel *panel, const char *at, int64_t k0, int64_t k1, void *room);
  void (*many)(const rf_fast_block *block, const void *strip, int used, bool first, float *sums,
               const char *ahead, int64_t ahead_bytes);
  void (*open)(void);
  void (*close)(void);
  int steps, row_bytes;           /* values of k per block; bytes per row */
  const struct rf_fast_isa *wide; /* the functions for int8 */
  const struct rf_fast_isa *few;  /* if `pack` and `panels` are NULL, the ISA that has them */
} rf_fast_isa;
extern const rf_fast_isa RF_FAST_AVX2, RF_FAST_AVX512, RF_FAST_AVX512BF16, RF_FAST_AMX;

/* Counterparts of rf_gemm_workspace and rf_gemm_run. `gemm` provides the epilogues. */
size_t rf_fast_workspace(const rf_fast_isa *fast, const rf_gemm *g, int threads);
void rf_fast_run(const rf_fast_isa *fast, const rf_gemm_isa *gemm, const rf_gemm *g, int threads,
                 void *workspace);

#endif
