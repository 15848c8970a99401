/* fast.h - products of a packed matrix B with activations A in 8 bits (--compute fast). A row of A
 * is split along k into blocks of 32 values, or of 128 values if B is q4_k or q5_k. A block x of A
 * becomes a scale s and integers a:
 *   s = max|x| / 127
 *   a = round(x / s), halves to even.
 * A NaN or an infinity in a block of A makes its row of C NaN. Integer sums are exact, so results
 * are bit-identical on every ISA and number of threads, but differ from an f32 product.
 *
 * An element of C is one f32 sum acc over ascending k, from 0. q is a stored code of B. For most
 * types, a run of 32 values of B (16 for q6_k) is d (q - z) + e, with a scale d of the run. z is
 * 128 for q8_0, 8 for q4_0, 16 for q5_0 and 32 for q6_k. All other types have z = 0 and an offset e
 * for each run. Each run adds:
 *   acc = fmaf(d, s * (float)sum((q - z) a), acc)
 *   acc = fmaf(e, s * (float)sum(a), acc), only for types with offsets.
 * If B is q4_k or q5_k, 128 values of B are d c q - e m, with a six-bit c and m for each run of 32.
 * These 128 values add:
 *   acc = fmaf(d, s * (float)sum over runs(c sum(q a)), acc), with an integer sum below 2^25
 *   acc = fmaf(-e, s * (float)sum over runs(m sum(a)), acc), with an integer sum below 2^20.
 * If B is int8, with one scale d per output, blocks of A have 256 values (the last may have fewer).
 * An integer a then has two bytes, which keeps the precision of blocks with single large values:
 *   s   = max|x| / 32639
 *   a   = round(x / s) = 256 high + low, with signed bytes high and low
 *   acc = fmaf(d, s * (float)sum(q a), acc).
 * The integer sum is below 2^31, and is rounded once, to f32. */
#ifndef RF_FAST_H
#define RF_FAST_H

#include "backend/cpu/gemm.h"
#include "graph/graph.h"

/* A strip is 1, 2, 4, 8 or 16 packed rows of A. If B needs two block lengths, rows are packed once
 * for each length. A packed block is a sequence of arrays:
 *   32 values: int8 a[rows][32], f32 s[rows], f32 s * sum(a) [rows], int32 -128 sum(a) [rows], and
 *     the same sum for the first 16 values and for the last 16 values
 *   128 values: int8 a[2][rows][64], f32 s[rows], int16 sum(a) of each run of 32 [2][rows][2]. */
enum { RF_FAST_LONG = 128, RF_FAST_ITEMS = 13, RF_FAST_LONG_ITEMS = 35 }; /* ITEMS: 32-bit words per row */
enum { RF_FAST_ROWS = 16, RF_FAST_FEW = 8, RF_FAST_FEW_OF_256 = 2, RF_FAST_KC = 256, RF_FAST_PANELS = 2 };
static inline bool rf_fast_is_long(const rf_quant_type *type) {
  return rf_fast_block_of(type) == RF_FAST_LONG;
}
static inline int64_t rf_fast_strip_bytes(bool is_long, int64_t rows, int64_t k) {
  return 4 * rows * (is_long ? k / RF_FAST_LONG * RF_FAST_LONG_ITEMS : k / RF_FAST_BLOCK * RF_FAST_ITEMS);
}
/* The arrays after the integers in a block of 128 values. */
typedef struct rf_fast_long {
  float *scale;
  int32_t *pairs;
} rf_fast_long;
static inline rf_fast_long rf_fast_long_at(const void *block, int64_t rows) {
  float *scale = (float *)(void *)((char *)(uintptr_t)block + RF_FAST_LONG * rows);
  return (rf_fast_long){scale, (int32_t *)(void *)(scale + rows)};
}

/* A panel of B for RF_FAST_KC values of k, unpacked once for all rows of A. The codes are words
 * [block of 32][8][RF_PANEL_LANES], and each word has four adjacent k. Without VNNI, a word has the
 * codes q. With VNNI, types with a z have the codes q - z + 128. For AMX, codes are q - z, zeros
 * separate runs of 16, and codes of q4_k and q5_k are multiplied by c (fast_amx.c). */
typedef struct rf_fast_block {
  const char *codes;
  int64_t stride; /* bytes from one block of 32 codes to the next */
  /* scales d and offsets e, [run][RF_PANEL_LANES]; q4_k and q5_k have one run. e is NULL for types
   * without offsets */
  const float *d, *e;
  int count, lanes; /* number of blocks of 32 values; number of lanes of the panel */
  bool halves;      /* true for runs of 16 */
  int type;         /* number of the storage type */
  /* only q4_k and q5_k: c of each run, [run][RF_PANEL_LANES], in both halves of a word if the ISA
   * has no VNNI */
  const int32_t *c;
  const int32_t *m; /* only q4_k and q5_k: [4][RF_PANEL_LANES] pairs with the m of two runs */
} rf_fast_block;
/* RF_FAST_CODES is the size of the codes in bytes. RF_FAST_ROOM is the size of all data of an
 * rf_fast_block. */
enum {
  RF_FAST_CODES = 2 * RF_FAST_KC * RF_PANEL_LANES,
  RF_FAST_ROOM = RF_FAST_CODES + 32 * RF_PANEL_LANES * 4
};

/* If B is int8, each block of 256 values of a strip has two planes of bytes [4][rows][64] with the
 * integers a (fast_wide.h), f32 s[rows] and int32 -128 sum(a)[rows]. Zeros fill the last block. */
enum { RF_FAST_WIDE = RF_FAST_INT8_BLOCK, RF_FAST_WIDE_BYTES = 2 * RF_FAST_WIDE + 8 }; /* bytes per row */

typedef struct rf_fast_isa {
  /* Packs steps [k0, k1) of `used` rows, from row i0 on, into a strip with room for `rows` rows. */
  void (*pack)(const rf_gemm *g, bool is_long, int64_t i0, int used, int rows, int64_t k0, int64_t k1,
               void *strip);
  /* Computes y [count][rows][RF_PANEL_LANES], the product of up to RF_FAST_FEW rows with up to
   * RF_FAST_PANELS panels of the matrix at b. `strip` is indexed by is_long. */
  void (*panels)(const rf_panel *panel, int count, const char *b, int64_t inner, const char *const strip[2],
                 int rows, float *y);
  /* The next four functions multiply more than RF_FAST_FEW rows. If few_of_256 is true and all of B
   * has blocks of 256 values, the limit is RF_FAST_FEW_OF_256 rows. If the functions are NULL,
   * `panels` multiplies all rows, RF_FAST_FEW at a time. `unpack` unpacks steps [k0, k1) of a panel
   * into `room`. `many` multiplies `used` rows of a strip of sixteen by a block, adds the products
   * to sums[row][RF_PANEL_LANES], and prefetches `ahead`. A thread calls `open` first and `close`
   * last. */
  rf_fast_block (*unpack)(const rf_panel *panel, const char *at, int64_t k0, int64_t k1, void *room);
  void (*many)(const rf_fast_block *block, const void *strip, int used, bool first, float *sums,
               const char *ahead, int64_t ahead_bytes);
  void (*open)(void);
  void (*close)(void);
  bool few_of_256;
  int steps, row_bytes;           /* number of values of k in a packed block; bytes of a row of this block */
  const struct rf_fast_isa *wide; /* the functions for int8 */
  /* the same functions for CPUs that have VNNI only in the EVEX encoding; NULL: not needed */
  const struct rf_fast_isa *evex;
  /* table whose `pack` and `panels` replace the functions of this table; NULL: none */
  const struct rf_fast_isa *few;
} rf_fast_isa;
extern const rf_fast_isa RF_FAST_AVX2, RF_FAST_AVXVNNI, RF_FAST_EVEX_VNNI, RF_FAST_AVX512, RF_FAST_AVX512BF16,
    RF_FAST_AMX;

/* rf_fast_workspace corresponds to rf_gemm_workspace, and rf_fast_run to a path of gemm.h. `gemm`
 * has the epilogues. rf_fast_run multiplies more rows than the kernel of rf_fast_few_kernel
 * accepts. */
size_t rf_fast_workspace(const rf_fast_isa *isa, const rf_gemm *g, int threads);
void rf_fast_run(const rf_fast_isa *isa, const rf_gemm_isa *gemm, const rf_gemm *g, int threads,
                 void *workspace);
rf_gemm_path rf_gemm_fast_few; /* the path of products in 8 bits with few rows */
/* The kernel for products like `g` with few rows (at most inner.max_rows). NULL: one kernel accepts
 * all rows, or the product is not in 8 bits. */
const rf_gemm_kernel *rf_fast_few_kernel(const rf_gemm_isa *isa, const rf_gemm *g);

#endif
