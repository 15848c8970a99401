/* lora.c - LoRA adapters of a linear layer, as products of gemm.h over ranges of columns. Kernels
 * copy and scale the small operand (b or h), and read or write each large operand once. */
#include "backend/cpu/lora.h"
#include "backend/cpu/product.h"

#include <string.h>

typedef struct dims {
  int64_t rows, columns, ranks, joined; /* M (maximum of a call), N, P r, S */
  rf_dtype dtype;
} dims;

static dims dims_of(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *u = &graph->tensor[op->input[0]], *h = &graph->tensor[op->input[1]],
                  *b = &graph->tensor[op->input[2]];
  return (dims){u->shape[0], u->shape[1], h->shape[1], b->shape[1], u->dtype};
}
static bool accepts(const rf_graph *graph, const rf_op *op) { /* f64 runs on the reference */
  return rf_is_activation(graph->tensor[op->input[0]].dtype);
}

/* y[:, columns of p] = u[:, columns of p] + h_p b_p */
static rf_gemm forward(const dims *d, const rf_lora_parts *parts, int p) {
  rf_gemm g = rf_gemm_of(d->rows, parts->columns[p], parts->rank, rf_row_major(d->dtype, d->ranks),
                         rf_row_major(RF_F32, d->joined), d->dtype, d->columns);
  g.epilogue = RF_GEMM_RESIDUAL;
  return g;
}
/* dh_p = dy[:, columns of p] b_p^T */
static rf_gemm backward_h(const dims *d, const rf_lora_parts *parts, int p) {
  return rf_gemm_of(d->rows, parts->rank, parts->columns[p], rf_row_major(d->dtype, d->columns),
                    rf_transposed(rf_row_major(RF_F32, d->joined)), d->dtype, d->ranks);
}
/* db_p = h_p^T dy[:, columns of p]; h is f32 and already multiplied by the scale */
static rf_gemm backward_b(const dims *d, const rf_lora_parts *parts, int p) {
  return rf_gemm_of(parts->rank, parts->columns[p], d->rows, rf_transposed(rf_row_major(RF_F32, d->ranks)),
                    rf_row_major(d->dtype, d->columns), RF_F32, d->joined);
}

static void scale_values(const void *from, rf_dtype dtype, int64_t count, float scale, float *to,
                         int threads) {
#pragma omp parallel num_threads(threads) if (count > 1 << 15)
  {
    RF_STAMP_BUSY;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < count; i++) to[i] = scale * rf_f32_get(from, dtype, i);
  }
}

/* The parts of an adapter differ only in their columns, so one kernel computes all parts. */
static void lora_inner(int level, const rf_graph *graph, const rf_op *op, rf_inner inner[RF_MAX_INNER]) {
  const dims d = dims_of(graph, op);
  const rf_gemm g = forward(&d, &op->attr.lora.parts, 0);
  inner[0] = rf_product_inner(level, "y", &g, 1);
}
enum { DH, DB };
static void lora_bwd_inner(int level, const rf_graph *graph, const rf_op *op, rf_inner inner[RF_MAX_INNER]) {
  const dims d = dims_of(graph, op);
  const rf_gemm dh = backward_h(&d, &op->attr.lora.parts, 0), db = backward_b(&d, &op->attr.lora.parts, 0);
  if (op->output[0] != RF_NONE) inner[DH] = rf_product_inner(level, "dh", &dh, 1);
  if (op->output[1] != RF_NONE) inner[DB] = rf_product_inner(level, "db", &db, db.m);
}

static size_t lora_workspace(const rf_gemm_isa *isa, const rf_graph *graph, const rf_op *op, int threads) {
  dims d = dims_of(graph, op);
  size_t product = 0;
  for (int p = 0; p < op->attr.lora.parts.count; p++) {
    rf_gemm g = forward(&d, &op->attr.lora.parts, p);
    product = rf_larger(product, rf_gemm_workspace(isa, &g, threads));
  }
  return rf_whole_lines(op->attr.lora.parts.rank * d.joined) + product;
}
static void lora_run(const rf_call *call) {
  const rf_lora_parts *parts = &call->op->attr.lora.parts;
  dims d = dims_of(call->graph, call->op);
  int64_t rows = rf_rows_used(call, 0), joined = 0;
  float *b = call->workspace;
  void *product = (char *)call->workspace + rf_whole_lines(parts->rank * d.joined);
  scale_values(call->in[2], RF_F32, parts->rank * d.joined, call->op->attr.lora.scale, b, call->threads);
  if (call->out[0] != call->in[0])
    memcpy(call->out[0], call->in[0], (size_t)(rows * d.columns * rf_dtype_bytes(d.dtype)));
  for (int p = 0; p < parts->count; joined += parts->columns[p++]) {
    rf_gemm g = forward(&d, parts, p);
    g.m = rows;
    g.a = rf_element(call->in[1], d.dtype, (int64_t)p * parts->rank);
    g.b = b + joined;
    g.out = (void *)(uintptr_t)rf_element(call->out[0], d.dtype, parts->at[p]);
    g.side = g.out;
    g.drop = (rf_dropout){.scale = 1.0f};
    rf_inner_run(call, 0, g, product);
  }
}

static size_t lora_bwd_workspace(const rf_gemm_isa *isa, const rf_graph *graph, const rf_op *op,
                                 int threads) {
  dims d = dims_of(graph, op);
  size_t product = 0;
  for (int p = 0; p < op->attr.lora.parts.count; p++) {
    rf_gemm g = backward_h(&d, &op->attr.lora.parts, p), w = backward_b(&d, &op->attr.lora.parts, p);
    product = rf_larger(product,
                        rf_larger(rf_gemm_workspace(isa, &g, threads), rf_gemm_workspace(isa, &w, threads)));
  }
  return rf_larger(rf_whole_lines(op->attr.lora.parts.rank * d.joined), rf_whole_lines(d.rows * d.ranks)) +
         product;
}
static void lora_bwd_run(const rf_call *call) {
  const rf_lora_parts *parts = &call->op->attr.lora.parts;
  dims d = dims_of(call->graph, call->op);
  int64_t rows = rf_rows_used(call, 0), joined = 0;
  float *scaled = call->workspace, scale = call->op->attr.lora.scale;
  void *product = (char *)call->workspace +
                  rf_larger(rf_whole_lines(parts->rank * d.joined), rf_whole_lines(d.rows * d.ranks));
  if (call->out[0]) {
    scale_values(call->in[2], RF_F32, parts->rank * d.joined, scale, scaled, call->threads);
    for (int p = 0; p < parts->count; joined += parts->columns[p++]) {
      rf_gemm g = backward_h(&d, parts, p);
      g.m = rows;
      g.a = rf_element(call->in[0], d.dtype, parts->at[p]);
      g.b = scaled + joined;
      g.u = (void *)(uintptr_t)rf_element(call->out[0], d.dtype, (int64_t)p * parts->rank);
      rf_inner_run(call, DH, g, product);
    }
  }
  if (!call->out[1]) return;
  scale_values(call->in[1], d.dtype, rows * d.ranks, scale, scaled, call->threads);
  joined = 0;
  for (int p = 0; p < parts->count; joined += parts->columns[p++]) {
    rf_gemm g = backward_b(&d, parts, p);
    g.k = rows;
    g.a = scaled + (int64_t)p * parts->rank;
    g.b = rf_element(call->in[0], d.dtype, parts->at[p]);
    g.u = (float *)call->out[1] + joined;
    g.accumulate = rf_accumulates(call, 1);
    rf_inner_run(call, DB, g, product);
  }
}

/* ---- with AVX-512 vectors, without packing --------------------------------------------------- */

#if defined(__x86_64__)
static rf_lora_part part_of(const dims *d, const rf_lora_parts *parts, int p, int64_t rows, int threads) {
  return (rf_lora_part){d->dtype,   rows,     parts->columns[p], parts->rank,
                        d->columns, d->ranks, d->joined,         threads};
}
static int64_t whole_ranks(const rf_lora_parts *parts) { return (parts->rank + 15) / 16 * 16; }

/* Forward needs scaled b and f32 h. Backward needs scaled h, and scaled b in blocks of 16 ranks. */
static size_t lora_wide_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  dims d = dims_of(graph, op);
  (void)by;
  return rf_whole_lines(whole_ranks(&op->attr.lora.parts) * d.joined) + rf_whole_lines(d.rows * d.ranks);
}

/* With few rows, the kernel scales b while it reads b. With more rows, a scaled copy is cheaper. */
static void lora_wide_run(const rf_call *call) {
  enum { FEW = 64 };
  const rf_lora_parts *parts = &call->op->attr.lora.parts;
  dims d = dims_of(call->graph, call->op);
  int64_t rows = rf_rows_used(call, 0), joined = 0;
  float *scaled = call->workspace,
        *wide = (float *)(void *)((char *)call->workspace + rf_whole_lines(whole_ranks(parts) * d.joined));
  const float scale = call->op->attr.lora.scale, *b = call->in[2], *h = wide;
  rf_lora_sum sum[RF_LORA_PARTS];
  if (rows > FEW) {
    scale_values(b, RF_F32, parts->rank * d.joined, scale, scaled, call->threads);
    b = scaled;
  }
  if (d.dtype == RF_F32) h = call->in[1];
  else scale_values(call->in[1], d.dtype, rows * d.ranks, 1, wide, call->threads);
  if (call->out[0] != call->in[0])
    memcpy(call->out[0], call->in[0], (size_t)(rows * d.columns * rf_dtype_bytes(d.dtype)));
  for (int p = 0; p < parts->count; joined += parts->columns[p++]) {
    void *y = (void *)(uintptr_t)rf_element(call->out[0], d.dtype, parts->at[p]);
    sum[p] = (rf_lora_sum){part_of(&d, parts, p, rows, call->threads), y, h + (int64_t)p * parts->rank,
                           b + joined, y};
  }
  rf_lora_forward_avx512(sum, parts->count, rows > FEW ? 1 : scale, call->threads);
}

/* Copies b times the scale to an array [rank / 16][columns][16]. */
static void copy_by_sixteen(const float *b, int64_t rank, int64_t columns, int64_t joined, float scale,
                            float *to, int threads) {
#pragma omp parallel num_threads(threads)
  {
    RF_STAMP_BUSY;
#pragma omp for schedule(static) nowait
    for (int64_t c = 0; c < columns; c++)
      for (int64_t r = 0; r < (rank + 15) / 16 * 16; r++)
        to[(r / 16 * columns + c) * 16 + r % 16] = r < rank ? scale * b[r * joined + c] : 0;
  }
}

static void lora_bwd_wide_run(const rf_call *call) {
  const rf_lora_parts *parts = &call->op->attr.lora.parts;
  dims d = dims_of(call->graph, call->op);
  int64_t rows = rf_rows_used(call, 0), joined = 0;
  float *ranks16 = call->workspace,
        *h = (float *)(void *)((char *)call->workspace + rf_whole_lines(whole_ranks(parts) * d.joined));
  float scale = call->op->attr.lora.scale;
  if (call->out[1]) scale_values(call->in[1], d.dtype, rows * d.ranks, scale, h, call->threads);
  for (int p = 0; p < parts->count; joined += parts->columns[p++]) {
    rf_lora_part part = part_of(&d, parts, p, rows, call->threads);
    const void *dy = rf_element(call->in[0], d.dtype, parts->at[p]);
    if (call->out[0]) {
      copy_by_sixteen((const float *)call->in[2] + joined, parts->rank, parts->columns[p], d.joined, scale,
                      ranks16, call->threads);
      rf_lora_backward_h_avx512(
          &part, dy, ranks16, (void *)(uintptr_t)rf_element(call->out[0], d.dtype, (int64_t)p * parts->rank));
    }
    if (call->out[1])
      rf_lora_backward_b_avx512(&part, dy, h + (int64_t)p * parts->rank, (float *)call->out[1] + joined,
                                rf_accumulates(call, 1));
  }
}
#define lora_bwd_wide_workspace lora_wide_workspace
#define WIDE(op) \
  RF_KERNEL(#op, "lora_rows_avx512", RF_ISA_AVX512, accepts, op##_wide_workspace, op##_wide_run)
#endif

#define ROW(op, isa, level) \
  RF_OUTER_KERNEL(#op, "lora_gemm_" #isa, level, accepts, op##_##isa##_workspace, op##_run, op##_inner)
#define ROWS(isa, level) ROW(lora, isa, level), ROW(lora_bwd, isa, level)

#if defined(__x86_64__)
RF_BIND_WORKSPACE(lora, avx2, RF_GEMM_AVX2)
RF_BIND_WORKSPACE(lora_bwd, avx2, RF_GEMM_AVX2)
#endif
RF_BIND_WORKSPACE(lora, base, RF_GEMM_BASE)
RF_BIND_WORKSPACE(lora_bwd, base, RF_GEMM_BASE)

const rf_kernel RF_CPU_LORA[] = {
#if defined(__x86_64__)
    WIDE(lora),
    WIDE(lora_bwd),
    ROWS(avx2, RF_ISA_AVX2),
#endif
    ROWS(base, RF_ISA_BASE),
    {.op = NULL},
};
