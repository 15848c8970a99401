/* lora_slots.c - LoRA adapters of a linear layer where each row chooses its adapter. Consecutive
 * rows with the same adapter are one product. The bits of a product do not depend on its number of
 * rows, so a row does not depend on the other rows. The products are the same as in the ops matmul
 * and lora. So a row gets the same bits as in a plan with only this row's adapter. */
#include "backend/cpu/lora.h"
#include "backend/cpu/product.h"

#include <string.h>

typedef struct dims {
  int64_t rows, columns, inner, ranks, joined; /* M (maximum of a call), N, K, P r, S */
  rf_dtype dtype;
} dims;

enum { H, Y }; /* the products inside the op */

static dims dims_of(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *u = &graph->tensor[op->input[0]], *x = &graph->tensor[op->input[1]],
                  *a = &graph->tensor[op->input[2]], *b = &graph->tensor[op->input[3]];
  return (dims){u->shape[0], u->shape[1], x->shape[1], a->shape[2], b->shape[2], u->dtype};
}
static bool accepts(const rf_graph *graph, const rf_op *op) { /* f64 runs on the reference */
  return rf_is_activation(graph->tensor[op->input[0]].dtype);
}

/* h = x a, for all parts */
static rf_gemm product_h(const dims *d) {
  return rf_gemm_of(d->rows, d->ranks, d->inner, rf_row_major(d->dtype, d->inner),
                    rf_row_major(RF_F32, d->ranks), d->dtype, d->ranks);
}
/* y[:, columns of p] = u[:, columns of p] + h_p b_p */
static rf_gemm product_y(const dims *d, const rf_lora_parts *parts, int p) {
  rf_gemm g = rf_gemm_of(d->rows, parts->columns[p], parts->rank, rf_row_major(d->dtype, d->ranks),
                         rf_row_major(RF_F32, d->joined), d->dtype, d->columns);
  g.epilogue = RF_GEMM_RESIDUAL;
  g.drop = (rf_dropout){.scale = 1.0f};
  return g;
}

static void lora_slots_inner(int level, const rf_graph *graph, const rf_op *op,
                             rf_inner inner[RF_MAX_INNER]) {
  const dims d = dims_of(graph, op);
  const rf_gemm h = product_h(&d), y = product_y(&d, &op->attr.lora.parts, 0);
  inner[H] = rf_product_inner(level, "h", &h, 1);
  inner[Y] = rf_product_inner(level, "y", &y, 1);
}

static size_t h_bytes(const dims *d) { return rf_whole_lines(d->rows * d->ranks); }

static size_t products_workspace(const rf_gemm_isa *isa, const dims *d, const rf_lora_parts *parts,
                                 int threads) {
  const rf_gemm h = product_h(d);
  size_t bytes = rf_gemm_workspace(isa, &h, threads);
  for (int p = 0; p < parts->count; p++) {
    const rf_gemm y = product_y(d, parts, p);
    bytes = rf_larger(bytes, rf_gemm_workspace(isa, &y, threads));
  }
  return bytes;
}

/* Consecutive rows with the same adapter. */
typedef struct run {
  const rf_call *call;
  dims d;
  int64_t first, rows, slot;
  void *h, *product; /* h: rows of h (rows, P r). product: workspace of the products */
} run;

static const float *b_of(const run *r, int64_t joined) {
  return (const float *)r->call->in[3] + r->slot * r->call->op->attr.lora.parts.rank * r->d.joined + joined;
}
static void *y_of(const run *r, int part) {
  int64_t at = r->first * r->d.columns + r->call->op->attr.lora.parts.at[part];
  return (void *)(uintptr_t)rf_element(r->call->out[0], r->d.dtype, at);
}

static void make_h(const run *r) {
  rf_gemm g = product_h(&r->d);
  g.m = r->rows;
  g.a = rf_element(r->call->in[1], r->d.dtype, r->first * r->d.inner);
  g.b = (const float *)r->call->in[2] + r->slot * r->d.inner * r->d.ranks;
  g.u = r->h;
  rf_inner_run(r->call, H, g, r->product);
}

static void add_part(const run *r, int p, int64_t rank, int64_t joined) {
  const rf_lora_parts *parts = &r->call->op->attr.lora.parts;
  rf_gemm g = product_y(&r->d, parts, p);
  g.m = r->rows;
  g.k = rank;
  g.a = rf_element(r->h, r->d.dtype, (int64_t)p * parts->rank);
  g.b = b_of(r, joined);
  g.out = y_of(r, p);
  g.side = g.out;
  rf_inner_run(r->call, Y, g, r->product);
}

/* Calls `add` for each part in the adapter of the run. */
static void add_parts(const run *r, void (*add)(const run *r, int p, int64_t rank, int64_t joined)) {
  const rf_lora_parts *parts = &r->call->op->attr.lora.parts;
  const int32_t *ranks = (const int32_t *)r->call->in[4] + r->slot * parts->count;
  int64_t joined = 0;
  for (int p = 0; p < parts->count; joined += parts->columns[p++])
    if (ranks[p] > 0) add(r, p, ranks[p], joined);
}

static bool changes(const run *r) {
  const rf_lora_parts *parts = &r->call->op->attr.lora.parts;
  const int32_t *ranks = (const int32_t *)r->call->in[4] + r->slot * parts->count;
  for (int p = 0; p < parts->count; p++)
    if (ranks[p] > 0) return true;
  return false;
}

/* Calls `compute` for each run of rows whose adapter changes this layer. The workspace has `copies`
 * f32 arrays of the size of h, followed by the workspace of products. */
static void each_run(const rf_call *call, int copies, void (*compute)(const run *r)) {
  run r = {.call = call, .d = dims_of(call->graph, call->op), .h = call->workspace};
  const int32_t *slot = call->in[5];
  int64_t rows = rf_rows_used(call, 0);
  r.product = (char *)call->workspace + (size_t)copies * h_bytes(&r.d);
  if (call->out[0] != call->in[0])
    memcpy(call->out[0], call->in[0], (size_t)(rows * r.d.columns * rf_dtype_bytes(r.d.dtype)));
  for (; r.first < rows; r.first += r.rows) {
    r.slot = slot[r.first];
    r.rows = 1;
    while (r.first + r.rows < rows && slot[r.first + r.rows] == r.slot) r.rows++;
    if (r.slot >= 0 && changes(&r)) compute(&r);
  }
}

static size_t lora_slots_workspace(const rf_gemm_isa *isa, const rf_graph *graph, const rf_op *op,
                                   int threads) {
  const dims d = dims_of(graph, op);
  return h_bytes(&d) + products_workspace(isa, &d, &op->attr.lora.parts, threads);
}
static void compute(const run *r) {
  make_h(r);
  add_parts(r, add_part);
}
static void lora_slots_run(const rf_call *call) { each_run(call, 1, compute); }

/* ---- with AVX-512 vectors, as the kernel lora_rows_avx512 ------------------------------------ */

/* The products of lora_slots do not use tiles, because the op matmul also multiplies bf16 by f32
 * with vectors. */
#if defined(__x86_64__)
/* Returns h in f32. The result is h itself, or a copy that follows h in the workspace. */
static float *wide_h(const run *r) {
  return (float *)(void *)((char *)r->h + (r->d.dtype == RF_F32 ? 0 : h_bytes(&r->d)));
}
static void compute_avx512(const run *r) {
  const rf_lora_parts *parts = &r->call->op->attr.lora.parts;
  const int32_t *ranks = (const int32_t *)r->call->in[4] + r->slot * parts->count;
  float *h = wide_h(r);
  rf_lora_sum sum[RF_LORA_PARTS];
  int64_t joined = 0;
  int count = 0;
  make_h(r);
  for (int64_t i = 0; i < r->rows * r->d.ranks && h != r->h; i++) h[i] = rf_f32_get(r->h, r->d.dtype, i);
  for (int p = 0; p < parts->count; joined += parts->columns[p++]) {
    const rf_lora_part part = {.dtype = r->d.dtype,
                               .rows = r->rows,
                               .columns = parts->columns[p],
                               .rank = ranks[p],
                               .ld = r->d.columns,
                               .ranks = r->d.ranks,
                               .joined = r->d.joined};
    if (ranks[p] > 0)
      sum[count++] =
          (rf_lora_sum){part, y_of(r, p), h + (int64_t)p * parts->rank, b_of(r, joined), y_of(r, p)};
  }
  rf_lora_forward_avx512(sum, count, 1, r->call->threads);
}
static void lora_slots_wide_run(const rf_call *call) { each_run(call, 2, compute_avx512); }

static void lora_slots_wide_inner(int level, const rf_graph *graph, const rf_op *op,
                                  rf_inner inner[RF_MAX_INNER]) {
  const dims d = dims_of(graph, op);
  const rf_gemm h = product_h(&d);
  inner[H] = rf_product_inner(level, "h", &h, 1);
}
static size_t lora_slots_wide_workspace(const rf_gemm_isa *isa, const rf_graph *graph, const rf_op *op,
                                        int threads) {
  const dims d = dims_of(graph, op);
  const rf_gemm h = product_h(&d);
  return 2 * h_bytes(&d) + rf_gemm_workspace(isa, &h, threads);
}
RF_BIND_WORKSPACE(lora_slots_wide, avx512, RF_GEMM_AVX512)
#define WIDE(op, isa, level) \
  RF_OUTER_KERNEL(#op, #op "_" #isa, level, accepts, op##_wide_##isa##_workspace, op##_wide_run, \
                  op##_wide_inner)
RF_BIND_WORKSPACE(lora_slots, avx2, RF_GEMM_AVX2)
#endif
RF_BIND_WORKSPACE(lora_slots, base, RF_GEMM_BASE)

#define ROW(op, isa, level) \
  RF_OUTER_KERNEL(#op, #op "_" #isa, level, accepts, op##_##isa##_workspace, op##_run, op##_inner)

const rf_kernel RF_CPU_LORA_SLOTS[] = {
#if defined(__x86_64__)
    WIDE(lora_slots, avx512, RF_ISA_AVX512),
    ROW(lora_slots, avx2, RF_ISA_AVX2),
#endif
    ROW(lora_slots, base, RF_ISA_BASE),
    {.op = NULL},
};
