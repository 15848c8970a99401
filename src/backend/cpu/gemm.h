/* gemm.h - the matrix product under every linear layer: C[M,N] (+)= A[M,K] B[K,N], with the
 * epilogues that follow it.
 *
 * The bits are defined, not chosen: every element of C is one f32 chain in ascending k, acc =
 * fmaf(a, b, acc), that starts from 0 or, when accumulating, from the value already in C. bf16
 * operands are widened first, which is exact. Tiles, threads and ISA only decide who computes an
 * element and when; running sums are kept as f32 between blocks of k and never combined.
 *
 * An ISA with tiles (`tiles`) has a definition of its own where an operand is bf16. k is cut in
 * steps of 32 from k = 0 on, zeros behind its end. A step is two chains from +0, even =
 * fmaf(a[2i], b[2i], even) and odd = fmaf(a[2i+1], b[2i+1], odd), i ascending, and then acc =
 * acc + (even + odd); all round to nearest even, and subnormal operands and results count as
 * zeros of their sign (tdpbf16ps; Intel SDM volume 2). An operand that is f32 is taken as two
 * bf16, its upper half and what that leaves, rounded: 16 bits of its 24. A step of the first is
 * followed by the same step of the second. So an element still depends on nothing but its row
 * and its column, and one whose f32 are bf16 values has the bits of the bf16 product.
 *
 * A packed B (formats/panels.h) is dequantised in registers, to the very values its file means,
 * and then is a B like any other.
 *
 * Strides make NN, NT and TN the same product; they differ only in how a block is packed. Up to
 * RF_FEW_ROWS rows the weights are not packed but read once, at memory speed. */
#ifndef RF_GEMM_H
#define RF_GEMM_H

#include "backend/cpu/dropout.h"
#include "machine/isa.h"
#include "formats/panels.h"
#include "machine/tuned.h"

typedef enum rf_gemm_epilogue {
  RF_GEMM_PLAIN,    /* u = round(acc + bias) */
  RF_GEMM_GELU,     /* out = round(gelu(u)) */
  RF_GEMM_RESIDUAL, /* out = round(side + drop(u)) */
  RF_GEMM_GELU_BWD  /* out = round(u * gelu'(side)) */
} rf_gemm_epilogue;

/* RUN: steps of k of a packed B that are widened at a time */
enum { RF_GEMM_MAX_GROUPS = 16, RF_GEMM_RUN = 64 };
/* that one row takes in turns: hardware follows both streams */
enum { RF_GEMM_PANELS = 2 };
/* FORMS: both operands bf16; A f32, B f32 beside bf16 */
enum { RF_TILE_DEPTH = 32, RF_TILE_FORMS = 3 };

typedef struct rf_gemm {
  int64_t m, n, k;
  int64_t m_bound, k_bound; /* the most that m and k may be in calls that share a workspace; 0: as they are */
  rf_blocks blocks;         /* kc 0: rf_gemm_blocks. Tiles and few rows have cuts of their own */
  const void *a;            /* (M,K): element (i,p) at a[i a_row + p a_step] */
  int64_t a_row, a_step;
  rf_dtype a_dtype; /* RF_F32 or RF_BF16, also below */
  const void *b;    /* (K,N): element (p,j) at b[p b_step + j b_col] */
  int64_t b_step, b_col;
  rf_dtype b_dtype;
  /* B is packed at `b`: element (p,j) is value p of output j; strides are not read. NULL: it is
   * not */
  const rf_panels *panels;
  bool fast;        /* A is rounded to 8 bits (fast.h); B is packed, not turned, and has codes */
  bool turned;      /* element (p,j) is value j of output p: the sum runs over outputs */
  const void *bias; /* (N) or NULL */
  rf_dtype bias_dtype;
  rf_gemm_epilogue epilogue;
  void *u, *out;     /* (M,N), either may be NULL */
  const void *side;  /* (M,N): the residual, or the saved u of gelu's backward */
  rf_dtype dtype;    /* of u, out and side */
  int64_t ld;        /* their row stride, in elements */
  bool read_later;   /* u and out are not read soon */
  bool nontemporal;  /* set by a path: they are written past the caches */
  bool accumulate;   /* chains start from u, which is f32; no bias, no epilogue */
  bool sums_columns; /* also the sums of B's columns, in ascending k, plain adds; B must have b_col 1 */
  float *column_sum; /* (N) */
  bool column_sum_accumulate; /* they continue from what is there */
  rf_dropout drop;            /* of RESIDUAL */
  int64_t first_token;        /* token of row 0 */
} rf_gemm;

/* Memory that later calls will read, fetched while this one computes: `lines` pieces of 128
 * bytes, `stride` bytes apart. */
typedef struct rf_gemm_ahead {
  const char *at;
  int64_t stride, lines;
} rf_gemm_ahead;

/* tile (+)= a b over kc steps. `resume`: continue from the tile. `near` goes to L2: the next
 * packed panel; `far`: what is packed next; `tile_pieces` to L1: two lines each of C that are
 * read or written after this tile, up to NULL. */
typedef void (*rf_gemm_micro)(int64_t kc, const float *a, const float *b, float *tile, bool resume,
                              const rf_gemm_ahead *near, const rf_gemm_ahead *far,
                              const char *const *tile_pieces);

/* The same with tiles, `steps` of 32 k: sums start from `from`, or from zeros where it is NULL,
 * and go to `to`; `errands` are run after each step. */
struct rf_tile_errands;
typedef void (*rf_tile_micro)(int64_t steps, const float *a, const float *b, const float *from, float *to,
                              struct rf_tile_errands *errands);

/* What differs between ISAs. Packed A: strips of rows, [k][rows of the strip]; packed B: panels
 * of nr columns, [k][nr], zero filled (of tiles: gemm_amx.c); a tile is [rows][nr] f32,
 * contiguous. */
struct rf_fast_isa;
typedef struct rf_gemm_isa {
  const char *name;
  int mr, nr;
  int a_words, b_words; /* 16-bit words of a packed element: of f32, whole or in two pieces, 2, of bf16 1 */
  int depth;            /* steps of k that stand together, missing ones as zeros; blocks of k begin there */
  void (*pack_a)(const rf_gemm *g, int64_t i0, int rows, int64_t k0, int64_t kc, float *to);
  void (*pack_b)(const rf_gemm *g, int64_t j0, int cols, int64_t k0, int64_t kc, float *to, float *sum);
  /* [rows] */
  const rf_gemm_micro *micro;
  /* tile = u */
  void (*begin)(const rf_gemm *g, float *tile, int64_t tile_ld, int64_t i0, int rows, int64_t j0, int cols);
  void (*finish)(const rf_gemm *g, const float *tile, int64_t tile_ld, int64_t i0, int rows, int64_t j0,
                 int cols);
  /* Columns [j0, j0+cols) of the few-row product, whole K. `a`: A packed as one strip, [k][m];
   * `y`: room for m * cols sums. */
  void (*stream)(const rf_gemm *g, const float *a, int64_t j0, int cols, float *y);
  /* The same of up to RF_GEMM_PANELS panels: `y` [panel][m][RF_PANEL_LANES], `wide`: room for
   * RF_GEMM_RUN steps of RF_PANEL_LANES. */
  void (*stream_panels)(const rf_gemm *g, const rf_panel *panel, int count, const float *a, float *y,
                        float *wide);
  const struct rf_fast_isa *fast; /* NULL: none */
  /* For products with bf16; NULL: none. [RF_TILE_FORMS] of them, which have no `micro` and no
   * `stream`, and stand between `open` and `close` on every thread. */
  const struct rf_gemm_isa *tiles;
  const rf_tile_micro (*tile_micros)[2]; /* of tiles: [A stays in the L1, B does not][tiles of rows - 1] */
  void (*open)(void);
  void (*close)(void);
} rf_gemm_isa;

extern const rf_gemm_isa RF_GEMM_BASE, RF_GEMM_AVX2, RF_GEMM_AVX512, RF_GEMM_AVX512BF16, RF_GEMM_AMX;
/* Whether both operands, as they are stored, are bf16, which tiles multiply. */
bool rf_gemm_is_bf16(const rf_gemm *g);

/* Default block sizes, by the L2 of a core. */
rf_blocks rf_gemm_blocks(void);
/* Whether this kernel of a linear layer uses the blocks of its op. */
bool rf_matmul_has_blocks(const rf_kernel *kernel);
/* Bytes of workspace on `threads`, enough for every path and for fewer rows. It must be 64-byte
 * aligned. Products allocate nothing. */
size_t rf_gemm_workspace(const rf_gemm_isa *isa, const rf_gemm *g, int threads);

/* The ways to compute a product; all give the same bits. A plan binds one of them to an op. */
typedef void rf_gemm_path(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace);
rf_gemm_path rf_gemm_stream;  /* few rows: B is read once, in place */
rf_gemm_path rf_gemm_panels;  /* few rows, packed B */
rf_gemm_path rf_gemm_few;     /* few rows, with the tile unit */
rf_gemm_path rf_gemm_tiles;   /* with the tile unit (tile_product.c) */
rf_gemm_path rf_gemm_blocked; /* the operands are packed in blocks */
rf_gemm_path rf_gemm_fast;    /* activations in 8 bits (fast.c) */
/* Whether a product with few rows reads B in place. */
bool rf_gemm_may_stream(const rf_gemm *g);
/* Chooses the path by the product: for ops whose rows only their data say, as of one expert. */
rf_gemm_path rf_gemm_run;

/* The panels of a packed weight, NULL for a plain one. */
static inline const rf_panels *rf_panels_of(const rf_tensor *w) {
  return w->dtype == RF_PACKED ? &w->panels : NULL;
}

/* sum[j] (+)= x[0,j] + x[1,j] + ... of x (rows, cols), rows `ld` apart, ascending: the gradient
 * of a bias where x is not packed as B. `resume`: continues from the sums that are there. */
void rf_column_sums(const void *x, rf_dtype dtype, int64_t rows, int64_t cols, int64_t ld, float *sum,
                    bool resume, int threads);

#endif
