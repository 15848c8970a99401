/* gemm.h - the matrix product under every linear layer: C[M,N] (+)= A[M,K] B[K,N], with the epilogues that follow it.
 *
 * The bits are defined, not chosen: every element of C is one f32 chain in ascending k, acc = fmaf(a, b, acc), that starts from 0 or,
 * when accumulating, from the value already in C. bf16 operands are widened first, which is exact. Tiles, threads and ISA only
 * decide who computes an element and when; running sums are kept as f32 between blocks of k and never combined.
 *
 * A packed B (model/panels.h) is dequantised in registers, to the very values its file means, and then is a B like any other.
 *
 * Strides make NN, NT and TN the same product; they differ only in how a block is packed. Up to RF_GEMM_STREAM_ROWS rows the
 * weights are not packed but read once, at memory speed. */
#ifndef RF_GEMM_H
#define RF_GEMM_H

#include "backend/cpu/dropout.h"
#include "model/panels.h"

typedef enum rf_gemm_epilogue {
  RF_GEMM_PLAIN,    /* u = round(acc + bias) */
  RF_GEMM_GELU,     /* out = round(gelu(u)) */
  RF_GEMM_RESIDUAL, /* out = round(side + drop(u)) */
  RF_GEMM_GELU_BWD  /* out = round(u * gelu'(side)) */
} rf_gemm_epilogue;

enum { RF_GEMM_STREAM_ROWS = 16, RF_GEMM_MAX_GROUPS = 16, RF_GEMM_RUN = 64 }; /* RUN: steps of k of a packed B that are widened at a time */

typedef struct rf_gemm {
  int64_t m, n, k;
  int64_t m_bound, k_bound; /* the most that m and k may be in calls that share a workspace; 0: as they are */
  const void *a;            /* (M,K): element (i,p) at a[i a_row + p a_step] */
  int64_t a_row, a_step;
  rf_dtype a_dtype; /* RF_F32 or RF_BF16, also below */
  const void *b;    /* (K,N): element (p,j) at b[p b_step + j b_col] */
  int64_t b_step, b_col;
  rf_dtype b_dtype;
  const rf_panels *panels; /* B is packed at `b`: element (p,j) is value p of output j; strides are not read. NULL: it is not */
  bool fast;               /* A is rounded to 8 bits (fast.h); B is packed, not turned, and has codes */
  bool turned;             /* element (p,j) is value j of output p: the sum runs over outputs */
  const void *bias;        /* (N) or NULL */
  rf_dtype bias_dtype;
  rf_gemm_epilogue epilogue;
  void *u, *out;              /* (M,N), either may be NULL */
  const void *side;           /* (M,N): the residual, or the saved u of gelu's backward */
  rf_dtype dtype;             /* of u, out and side */
  int64_t ld;                 /* their row stride, in elements */
  bool accumulate;            /* chains start from u, which is f32; no bias, no epilogue */
  float *column_sum;          /* (N) or NULL: sums of B's columns in ascending k, plain adds; B must have b_col 1 */
  bool column_sum_accumulate; /* they continue from what is there */
  rf_dropout drop;            /* of RESIDUAL */
  int64_t first_token;        /* token of row 0 */
} rf_gemm;

/* Memory that later calls will read, fetched while this one computes: `lines` pieces of 128 bytes, `stride` bytes apart. */
typedef struct rf_gemm_ahead {
  const char *at;
  int64_t stride, lines;
} rf_gemm_ahead;

/* tile (+)= a b over kc steps. `resume`: continue from the tile. `near` goes to L2: the next packed panel; `far`: what is packed next; `tile_pieces`
 * to L1: two lines each of C that are read or written after this tile, up to NULL. */
typedef void (*rf_gemm_micro)(int64_t kc, const float *a, const float *b, float *tile, bool resume, const rf_gemm_ahead *near,
                              const rf_gemm_ahead *far, const char *const *tile_pieces);

/* What differs between ISAs. Packed A: strips of rows, [k][rows of the strip]; packed B: panels of nr columns, [k][nr], zero filled;
 * a tile is [rows][nr] f32, contiguous. */
struct rf_fast_isa;
typedef struct rf_gemm_isa {
  const char *name;
  int mr, nr;
  void (*pack_a)(const rf_gemm *g, int64_t i0, int rows, int64_t k0, int64_t kc, float *to);
  void (*pack_b)(const rf_gemm *g, int64_t j0, int cols, int64_t k0, int64_t kc, float *to, float *sum);
  const rf_gemm_micro *micro;                                                                                /* [rows] */
  void (*begin)(const rf_gemm *g, float *tile, int64_t tile_ld, int64_t i0, int rows, int64_t j0, int cols); /* tile = u */
  void (*finish)(const rf_gemm *g, const float *tile, int64_t tile_ld, int64_t i0, int rows, int64_t j0, int cols);
  /* Columns [j0, j0+cols) of the few-row product, whole K. `a`: A packed as one strip, [k][m]; `y`: room for m * cols sums. */
  void (*stream)(const rf_gemm *g, const float *a, int64_t j0, int cols, float *y);
  /* The same of one panel: `y` [m][RF_PANEL_LANES], `wide`: room for RF_GEMM_RUN steps of RF_PANEL_LANES. */
  void (*stream_panel)(const rf_gemm *g, const rf_panel *panel, const float *a, float *y, float *wide);
  const struct rf_fast_isa *fast; /* NULL: none */
} rf_gemm_isa;

extern const rf_gemm_isa RF_GEMM_BASE, RF_GEMM_AVX2, RF_GEMM_AVX512, RF_GEMM_AVX512BF16, RF_GEMM_AMX;
const rf_gemm_isa *rf_gemm_for(rf_isa isa);

/* Bytes of workspace of a product on `threads` (reads the sizes, and whether there is a column_sum); rf_gemm_run takes exactly that,
 * 64-byte aligned, and allocates nothing. */
size_t rf_gemm_workspace(const rf_gemm_isa *isa, const rf_gemm *g, int threads);
void rf_gemm_run(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace);

/* The panels of a packed weight, NULL for a plain one. */
static inline const rf_panels *rf_panels_of(const rf_tensor *w) { return w->dtype == RF_PACKED ? &w->panels : NULL; }

/* sum[j] (+)= x[0,j] + x[1,j] + ... of x (rows, cols), ascending rows: the gradient of a bias where x is not packed as B. `resume`: goes on from what is there. */
void rf_column_sums(const void *x, rf_dtype dtype, int64_t rows, int64_t cols, float *sum, bool resume, int threads);

#endif
