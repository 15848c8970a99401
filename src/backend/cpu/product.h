/* product.h - builds an rf_gemm from operands, for matmul.c, experts.c, head.c and lora.c. Defines
 * the kernels of linear layers, one for each path of gemm.h. */
#ifndef RF_PRODUCT_H
#define RF_PRODUCT_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/fast.h"

/* A matrix with element (i,j) at data[i row + j column]. */
typedef struct rf_operand {
  rf_dtype dtype;
  int64_t row, column;
  const rf_panels
      *panels;     /* panels of a packed matrix, which needs no strides; NULL: the matrix is not packed */
  bool transposed; /* true: use the transpose of a packed matrix */
} rf_operand;

static inline rf_operand rf_row_major(rf_dtype dtype, int64_t ld) {
  return (rf_operand){.dtype = dtype, .row = ld, .column = 1};
}
static inline rf_operand rf_transposed(rf_operand x) {
  return (rf_operand){x.dtype, x.column, x.row, x.panels, x.panels != NULL};
}
/* A weight (K,N), stored as (N,K) if the op's attr.transpose is set. */
static inline rf_operand rf_weight(const rf_tensor *w, int64_t k, int64_t n, bool transpose) {
  rf_operand stored = rf_row_major(w->dtype, transpose ? k : n);
  if (transpose) stored = rf_transposed(stored);
  stored.panels = rf_panels_of(w);
  return stored;
}
/* (M,N) = a (M,K) b (K,N). The workspace has the size for m and k. A call may have a smaller m and
 * k. */
static inline rf_gemm rf_gemm_of(int64_t m, int64_t n, int64_t k, rf_operand a, rf_operand b, rf_dtype dtype,
                                 int64_t ld) {
  return (rf_gemm){.m = m,
                   .n = n,
                   .k = k,
                   .m_bound = m,
                   .k_bound = k,
                   .a_row = a.row,
                   .a_step = a.column,
                   .a_dtype = a.dtype,
                   .b_step = b.row,
                   .b_col = b.column,
                   .b_dtype = b.dtype,
                   .panels = b.panels,
                   .transposed = b.transposed,
                   .dtype = dtype,
                   .ld = ld};
}

/* True if the path of this name can compute the product with any number of rows. */
static inline bool rf_takes_fast(const rf_gemm *g) { return g->fast; }
static inline bool rf_takes_tiles(const rf_gemm *g) { return !g->fast && rf_gemm_is_bf16(g); }
static inline bool rf_takes_few(const rf_gemm *g) { return rf_takes_tiles(g) && rf_gemm_may_stream(g); }
static inline bool rf_takes_blocked(const rf_gemm *g) { return !g->fast; }
static inline bool rf_takes_panels(const rf_gemm *g) {
  return !g->fast && g->panels && rf_gemm_may_stream(g);
}
static inline bool rf_takes_stream(const rf_gemm *g) {
  return !g->fast && !g->panels && rf_gemm_may_stream(g);
}

/* The kernels of a product inside an op. Calls of the product have `fewest` to g->m rows. */
static inline rf_inner rf_product_inner(int level, const char *product, const rf_gemm *g, int64_t fewest) {
  rf_inner inner = rf_gemm_inner(level, product, g, fewest);
  const rf_gemm_kernel *few = rf_fast_few_kernel(((const rf_gemm_kernel *)inner.kernel)->isa, g);
  if (few && g->m <= few->inner.max_rows) inner.kernel = &few->inner;
  else if (few && fewest <= few->inner.max_rows) inner.few = &few->inner;
  return inner;
}
/* Runs a product inside the op of `call`. The plan has a kernel for the number of rows of this
 * product. */
static inline void rf_inner_run(const rf_call *call, int product, rf_gemm g, void *workspace) {
  g.inner = &call->inner[product];
  rf_gemm_planned(NULL, &g, call->threads, workspace);
}

/* ---- the kernels of a linear layer ----------------------------------------------------------- */

/* matmul.c and experts.c define takes_numbers(graph, op), and RF_RUNS(path), the function that
 * computes a product on this path. For each of OP, OP_dx and OP_dw, both files also define
 * OP_product(graph, op), OP_inner (rf_kernel.inner, or NULL) and OP_call(path, isa, call), which
 * runs the op.
 *
 * RF_TAKES(matmul, panels, also) defines matmul_takes_panels(graph, op). matmul_takes_panels
 * returns true if takes_numbers returns true, the path can compute the product, and `also` is
 * true. */
#define RF_TAKES(op, path, also) \
  static bool op##_takes_##path(const rf_graph *graph, const rf_op *node) { \
    if (!takes_numbers(graph, node)) return false; \
    const rf_gemm g = op##_product(graph, node); \
    const int64_t few_rows = RF_FEW_ROWS; \
    (void)few_rows; \
    return rf_takes_##path(&g) && (also); \
  }
/* RF_TAKES_FAST_FEW defines the same for a kernel in 8 bits with at most `rows` rows, such as
 * matmul_amx_takes_RF_FAST_FEW. */
#define RF_TAKES_FAST_FEW(op, isa, table, rows, also) \
  static bool op##_##isa##_takes_##rows(const rf_graph *graph, const rf_op *node) { \
    if (!takes_numbers(graph, node)) return false; \
    const rf_gemm g = op##_product(graph, node); \
    const rf_gemm_kernel *few = rf_fast_few_kernel(&table, &g); \
    const int64_t few_rows = few ? few->inner.max_rows : 0; \
    return few_rows == rows && (also); \
  }
#define RF_HAS_FEW_ROWS (g.m <= few_rows)
/* RF_PATH(matmul, avx2, RF_GEMM_AVX2, panels) defines matmul_avx2_panels(call). */
#define RF_PATH(op, isa, table, path) \
  static void op##_##isa##_##path(const rf_call *call) { op##_call(RF_RUNS(path), &table, call); }
#define RF_WORKSPACE(op, isa, table) \
  static size_t op##_##isa##_workspace(const rf_graph *graph, const rf_op *node, rf_tiling by) { \
    rf_gemm g = op##_product(graph, node); \
    g.blocks = by.blocks; \
    return rf_gemm_workspace(&table, &g, by.threads); \
  }
/* The table entry of a kernel for at most `rows` rows. Machine files list the times of this kernel
 * by `family`. */
#define RF_PATH_ROW(of, variant, path, takes, lowest, rows, family, suffix) \
  {.op = #of, \
   .name = family suffix, \
   .level = lowest, \
   .accepts = of##_takes_##takes, \
   .workspace_bytes = of##_##variant##_workspace, \
   .inner = of##_inner, \
   .run = of##_##variant##_##path, \
   .max_rows = rows, \
   .curve = family},

// clang-format off
#define RF_ISA_PRODUCT(op, isa, table, many) \
  RF_WORKSPACE(op, isa, table) \
  RF_PATH(op, isa, table, stream) \
  RF_PATH(op, isa, table, many)
#define RF_ISA_PRODUCTS(op, isa, table, many) \
  RF_ISA_PRODUCT(op, isa, table, many) \
  RF_ISA_PRODUCT(op##_dx, isa, table, many) \
  RF_ISA_PRODUCT(op##_dw, isa, table, many) \
  RF_PATH(op, isa, table, panels)
#define RF_ISA_ROW(op, isa, level, rows, family, many) \
  RF_PATH_ROW(op, isa, stream, stream, level, rows, family, "_stream") \
  RF_PATH_ROW(op, isa, many, blocked, level, 0, family, "")
#define RF_ISA_ROWS(op, isa, level, rows, family, many) \
  RF_PATH_ROW(op, isa, panels, panels, level, rows, family, "_panels") \
  RF_ISA_ROW(op, isa, level, rows, family, many) \
  RF_ISA_ROW(op##_dx, isa, level, rows, family, many) \
  RF_ISA_ROW(op##_dw, isa, level, 0, family, many)

#define RF_TILE_PRODUCT(op, also, many) \
  RF_TAKES(op, few, also) \
  RF_TAKES(op, tiles, true) \
  RF_WORKSPACE(op, amx, RF_GEMM_AMX) \
  RF_PATH(op, amx, RF_GEMM_AMX, few) \
  RF_PATH(op, amx, RF_GEMM_AMX, many)
#define RF_TILE_ROW(op, rows, many) \
  RF_PATH_ROW(op, amx, few, few, RF_ISA_AMX, rows, "gemm_amx_32x32", "_few") \
  RF_PATH_ROW(op, amx, many, tiles, RF_ISA_AMX, 0, "gemm_amx_32x32", "")
#define RF_FAST_PRODUCT(op, isa, table, also) \
  RF_TAKES_FAST_FEW(op, isa, table, RF_FAST_FEW, also) \
  RF_PATH(op, isa, table, fast) \
  RF_PATH(op, isa, table, fast_few)
#define RF_FAST_FEW_ROW(of, isa, lowest, most, rows) \
  {.op = #of, \
   .name = "fast_" #isa "_few", \
   .level = lowest, \
   .accepts = of##_##isa##_takes_##most, \
   .workspace_bytes = of##_##isa##_workspace, \
   .inner = of##_inner, \
   .run = of##_##isa##_fast_few, \
   .max_rows = (rows) ? most : 0, \
   .curve = "fast_" #isa},
#define RF_FAST_KERNELS(op, isa, level, rows) \
  RF_FAST_FEW_ROW(op, isa, level, RF_FAST_FEW, rows) \
  RF_PATH_ROW(op, isa, fast, fast, level, 0, "fast_" #isa, "")

/* RF_PRODUCTS defines all kernels of op, op_dx and op_dw. RF_PRODUCT_ROWS lists their table
 * entries. Kernels for few rows require the condition `also` and at most `rows` rows. Other
 * products use the path `many`, or `many_tiles` on AMX. */
#if defined(__x86_64__)
#define RF_PRODUCTS_X86(op, also, many, many_tiles) \
  RF_TAKES(op, fast, true) \
  RF_TILE_PRODUCT(op, also, many_tiles) \
  RF_TILE_PRODUCT(op##_dx, also, many_tiles) \
  RF_TILE_PRODUCT(op##_dw, RF_HAS_FEW_ROWS, many_tiles) \
  RF_WORKSPACE(op, avx512bf16, RF_GEMM_AVX512BF16) \
  RF_WORKSPACE(op, avxvnni, RF_GEMM_AVXVNNI) \
  RF_ISA_PRODUCTS(op, avx512, RF_GEMM_AVX512, many) \
  RF_ISA_PRODUCTS(op, avx2, RF_GEMM_AVX2, many) \
  RF_FAST_PRODUCT(op, amx, RF_GEMM_AMX, also) \
  RF_FAST_PRODUCT(op, avx512bf16, RF_GEMM_AVX512BF16, also) \
  RF_FAST_PRODUCT(op, avx512, RF_GEMM_AVX512, also) \
  RF_FAST_PRODUCT(op, avxvnni, RF_GEMM_AVXVNNI, also) \
  RF_FAST_PRODUCT(op, avx2, RF_GEMM_AVX2, also) \
  RF_TAKES_FAST_FEW(op, avx2, RF_GEMM_AVX2, RF_FAST_FEW_OF_256, also)
#define RF_PRODUCT_ROWS_X86(op, rows, many, many_tiles) \
  RF_FAST_KERNELS(op, amx, RF_ISA_AMX, rows) \
  RF_FAST_KERNELS(op, avx512bf16, RF_ISA_AVX512BF16, rows) \
  RF_FAST_KERNELS(op, avx512, RF_ISA_AVX512, rows) \
  RF_FAST_KERNELS(op, avxvnni, RF_ISA_AVXVNNI, rows) \
  RF_FAST_FEW_ROW(op, avx2, RF_ISA_AVX2, RF_FAST_FEW_OF_256, rows) \
  RF_FAST_KERNELS(op, avx2, RF_ISA_AVX2, rows) \
  RF_TILE_ROW(op, rows, many_tiles) \
  RF_TILE_ROW(op##_dx, rows, many_tiles) \
  RF_TILE_ROW(op##_dw, 0, many_tiles) \
  RF_ISA_ROWS(op, avx512, RF_ISA_AVX512, rows, "gemm_avx512_12x32", many) \
  RF_ISA_ROWS(op, avx2, RF_ISA_AVX2, rows, "gemm_avx2_6x16", many)
#else
#define RF_PRODUCTS_X86(op, also, many, many_tiles)
#define RF_PRODUCT_ROWS_X86(op, rows, many, many_tiles)
#endif
#define RF_PRODUCTS(op, also, many, many_tiles) \
  RF_TAKES(op, panels, also) \
  RF_TAKES(op, stream, also) \
  RF_TAKES(op, blocked, true) \
  RF_TAKES(op##_dx, stream, also) \
  RF_TAKES(op##_dx, blocked, true) \
  RF_TAKES(op##_dw, stream, RF_HAS_FEW_ROWS) \
  RF_TAKES(op##_dw, blocked, true) \
  RF_PRODUCTS_X86(op, also, many, many_tiles) \
  RF_ISA_PRODUCTS(op, base, RF_GEMM_BASE, many)
#define RF_PRODUCT_ROWS(op, rows, many, many_tiles) \
  RF_PRODUCT_ROWS_X86(op, rows, many, many_tiles) \
  RF_ISA_ROWS(op, base, RF_ISA_BASE, rows, "gemm_base_4x16", many)
// clang-format on

#endif
