/* gemm.h - the matrix product of every linear layer: C[M,N] (+)= A[M,K] B[K,N], with epilogues. The
 * rounding of every operation is defined. An element of C is one chain of f32 operations over
 * ascending k:
 *   acc = fmaf(a, b, acc).
 * acc starts from 0, or from the value in C if the product accumulates. bf16 operands are first
 * widened to f32, which is exact. Between blocks of k, acc stays f32. So results do not depend on
 * block sizes, threads or ISA.
 *
 * Products with a bf16 operand have another definition on ISAs with tiles (`tiles`). k is divided
 * into steps of 32 from k = 0, and zeros fill the last step. In a step, even and odd start from +0,
 * and i ascends:
 *   even = fmaf(a[2i], b[2i], even)
 *   odd  = fmaf(a[2i+1], b[2i+1], odd)
 *   acc  = acc + (even + odd), once at the end of the step.
 * All operations round to nearest even. Subnormal operands and results become zeros of their sign
 * (tdpbf16ps; Intel SDM volume 2). An f32 value is split into two bf16 values: its upper 16 bits,
 * and the rounded remainder. The two bf16 values keep 16 of the 24 significant bits. A step sums
 * over the upper bf16 values of its 32 values of k, then over the remainders. If all values of an
 * f32 operand are bf16 values, the result is bit-identical to the bf16 product.
 *
 * A packed B (formats/panels.h) is dequantised in registers to exactly the values of the file. The
 * strides of A and B define which operand is transposed. Only packing depends on these strides.
 * With up to RF_FEW_ROWS rows, B is not packed but read once, at memory speed. */
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

/* RF_GEMM_RUN: number of steps of k of a packed B that are converted to f32 at a time */
enum { RF_GEMM_MAX_GROUPS = 16, RF_GEMM_RUN = 64 };
/* a product with one row alternates between two panels, because hardware prefetchers can follow two
 * streams */
enum { RF_GEMM_PANELS = 2 };
/* RF_TILE_FORMS: number of forms of a product with tiles: both operands bf16, only A f32, only B
 * f32 */
enum { RF_TILE_DEPTH = 32, RF_TILE_FORMS = 3 };

typedef struct rf_gemm {
  int64_t m, n, k;
  /* maximum m and k of all calls with the same workspace; 0 means m and k of this call */
  int64_t m_bound, k_bound;
  /* block sizes; rf_gemm_blocks() if kc is 0. Products with tiles or few rows ignore this field */
  rf_blocks blocks;
  const void *a; /* (M,K): element (i,p) at a[i a_row + p a_step] */
  int64_t a_row, a_step;
  rf_dtype a_dtype; /* RF_F32 or RF_BF16, like all dtypes of this struct */
  const void *b;    /* (K,N): element (p,j) at b[p b_step + j b_col] */
  int64_t b_step, b_col;
  rf_dtype b_dtype;
  /* panels of a packed B, or NULL; element (p,j) of a packed B is value p of output j */
  const rf_panels *panels;
  bool fast;        /* true: A is rounded to 8 bits (fast.h); B must be packed as codes, and not transposed */
  bool transposed;  /* true: for a packed B, element (p,j) is value j of output p */
  const void *bias; /* (N) or NULL */
  rf_dtype bias_dtype;
  rf_gemm_epilogue epilogue;
  void *u, *out;    /* (M,N), either may be NULL */
  const void *side; /* (M,N): the residual, or the saved u of gelu's backward */
  rf_dtype dtype;   /* type of u, out and side */
  int64_t ld;       /* row stride of u, out and side, in elements */
  bool read_later;  /* true: no op reads u and out soon */
  bool nontemporal; /* true: non-temporal stores write u and out. Paths set this flag */
  bool accumulate;  /* true: sums start from u, which is f32, without bias and epilogue */
  /* true: also sums each column of B, with plain additions in ascending k; b_col must be 1 */
  bool sums_columns;
  float *column_sum;          /* (N) */
  bool column_sum_accumulate; /* true: column sums start from their present values */
  rf_dropout drop;            /* dropout of RESIDUAL */
  const rf_inner *inner;      /* kernels that the plan chose, for rf_gemm_planned */
  int64_t first_token;        /* token of row 0 */
} rf_gemm;

/* Memory to prefetch for later calls, as `lines` pieces of 128 bytes that are `stride` bytes
 * apart. */
typedef struct rf_gemm_ahead {
  const char *at;
  int64_t stride, lines;
} rf_gemm_ahead;

/* Sums [rows][ld] of a part of C, which starts at (row, col). `cols` columns are used. */
typedef struct rf_gemm_sums {
  float *at;
  int64_t ld, row, col;
  int rows, cols;
} rf_gemm_sums;

/* Computes tile = a b over kc steps, or continues the sums of `tile` if `resume`. Prefetches the
 * next packed panel (ahead[0]) and the next operands to pack (ahead[1]) to L2. Also prefetches two
 * cache lines at each address of the NULL-terminated list `tile_pieces` to L1. */
typedef void (*rf_gemm_micro)(int64_t kc, const float *a, const float *b, float *tile, bool resume,
                              const rf_gemm_ahead ahead[2], const char *const *tile_pieces);

/* Does the same as rf_gemm_micro, with AMX tiles and `steps` steps of 32 values of k. Sums start
 * from the values at `from`, or from zero if `from` is NULL. `errands` runs after each step. */
struct rf_tile_errands;
typedef void (*rf_tile_micro)(int64_t steps, const float *a, const float *b, const float *from, float *to,
                              struct rf_tile_errands *errands);

/* The functions of one ISA. A packed strip of mr rows of A is [k][mr]. A packed panel of nr columns
 * of B is [k][nr]. Sums are f32 [rows][nr]. gemm_amx.c describes the packing for AMX tiles. */
struct rf_fast_isa;
typedef struct rf_gemm_isa {
  const char *name;
  int mr, nr;
  int a_words, b_words; /* 16-bit words of a packed element: 1 for bf16, 2 for f32 or a pair of bf16 */
  /* number of steps of k that are packed as one; blocks of k start at multiples of `depth` */
  int depth;
  void (*pack_a)(const rf_gemm *g, int64_t i0, int rows, int64_t k0, int64_t kc, float *to);
  void (*pack_b)(const rf_gemm *g, int64_t j0, int cols, int64_t k0, int64_t kc, float *to, float *sum);
  /* micro[r] computes a tile of r rows */
  const rf_gemm_micro *micro;
  /* `begin` loads sums from u. `finish` rounds sums and stores the results to u and out. */
  void (*begin)(const rf_gemm *g, const rf_gemm_sums *sums);
  void (*finish)(const rf_gemm *g, const rf_gemm_sums *sums);
  /* Computes columns [j0, j0+cols) of a product with few rows, over all of K. `a` is A packed as
   * one strip, [k][m]. `y` is scratch memory for m * cols sums. */
  void (*stream)(const rf_gemm *g, const float *a, int64_t j0, int cols, float *y);
  /* Does the same as `stream` for up to RF_GEMM_PANELS panels of a packed B. `y` is
   * [panel][m][RF_PANEL_LANES]. `wide` is scratch memory for RF_GEMM_RUN steps of
   * RF_PANEL_LANES. */
  void (*stream_panels)(const rf_gemm *g, const rf_panel *panel, int count, const float *a, float *y,
                        float *wide);
  const struct rf_fast_isa *fast; /* NULL: no products in 8 bits */
  /* NULL, or an array [RF_TILE_FORMS] of ISA tables for products with bf16. The tables for tiles
   * have no `micro` and no `stream`. A thread calls `open` of such a table first, and `close`
   * last. */
  const struct rf_gemm_isa *tiles;
  /* for tiles only: [0: B stays in L1, 1: A stays in L1][number of tiles of rows - 1] */
  const rf_tile_micro (*tile_micros)[2];
  void (*open)(void);
  void (*close)(void);
} rf_gemm_isa;

extern const rf_gemm_isa RF_GEMM_BASE, RF_GEMM_AVX2, RF_GEMM_AVXVNNI, RF_GEMM_AVX512, RF_GEMM_AVX512BF16,
    RF_GEMM_AMX;
/* True if both operands are stored as bf16, which tiles multiply directly. */
bool rf_gemm_is_bf16(const rf_gemm *g);

/* Default block sizes for the L2 of this machine's cores. */
rf_blocks rf_gemm_blocks(void);
/* True if this kernel of a linear layer uses the block sizes of its op. */
bool rf_matmul_has_blocks(const rf_kernel *kernel);
/* Size of the workspace in bytes for `threads` threads. The size is enough for every path and for
 * fewer rows. The workspace must be 64-byte aligned. Products allocate nothing. */
size_t rf_gemm_workspace(const rf_gemm_isa *isa, const rf_gemm *g, int threads);

/* Paths are ways to compute a product, with bit-identical results. Plans choose an op's path. */
typedef void rf_gemm_path(const rf_gemm_isa *isa, const rf_gemm *g, int threads, void *workspace);
rf_gemm_path rf_gemm_stream;  /* for few rows: reads B once, without packing */
rf_gemm_path rf_gemm_panels;  /* few rows, packed B */
rf_gemm_path rf_gemm_few;     /* for few rows, with AMX tiles */
rf_gemm_path rf_gemm_tiles;   /* with AMX tiles (tile_product.c) */
rf_gemm_path rf_gemm_blocked; /* packs the operands in blocks */
rf_gemm_path rf_gemm_fast;    /* activations in 8 bits (fast.c) */
/* Runs the kernel that g->inner has for g->m rows, with that kernel's ISA instead of `isa`. */
rf_gemm_path rf_gemm_planned;
/* True if a product with few rows can read B in place. */
bool rf_gemm_may_stream(const rf_gemm *g);

/* A kernel for products inside an op. Such a kernel consists of a path and the functions of one
 * ISA. */
typedef struct rf_gemm_kernel {
  rf_inner_kernel inner;
  int level;
  const rf_gemm_isa *isa;
  rf_gemm_path *path;
  bool tiles;                      /* true: accepts only products that `isa` computes with tiles */
  bool (*takes)(const rf_gemm *g); /* NULL: takes every product */
} rf_gemm_kernel;
/* The kernel of this ISA for a product that differs from `g` only by having `rows` rows. */
const rf_gemm_kernel *rf_gemm_choose(const rf_gemm_isa *isa, const rf_gemm *g, int64_t rows);
/* The kernels of this level for a product inside an op. Calls of the product have `fewest` to g->m
 * rows. */
rf_inner rf_gemm_inner(int level, const char *product, const rf_gemm *g, int64_t fewest);

/* The panels of a packed weight; NULL for a plain weight. */
static inline const rf_panels *rf_panels_of(const rf_tensor *w) {
  return w->dtype == RF_PACKED ? &w->panels : NULL;
}

/* Sums the columns of x (rows, cols), with row stride `ld`, in ascending rows. The sums of the
 * columns of dy are the gradient of a bias. If `resume`, the sums start from their present
 * values. */
void rf_column_sums(const void *x, rf_dtype dtype, int64_t rows, int64_t cols, int64_t ld, float *sum,
                    bool resume, int threads);

#endif
