/* experts.c - linear layers of experts. The rows of an expert are consecutive, so each expert takes
 * one product of gemm.h. If rows come from several chips, an expert has one run of rows from each
 * chip, and each run is one product. The workspace is large enough for an expert that all tokens
 * choose. */
#include "backend/cpu/product.h"

#include <string.h>

static bool takes_numbers(const rf_graph *graph, const rf_op *op) { /* f64 runs on the reference */
  rf_dtype w = graph->tensor[op->input[1]].dtype;
  return rf_is_activation(graph->tensor[op->input[0]].dtype) && (rf_is_activation(w) || w == RF_PACKED);
}
/* Each token chooses an expert at most once. */
static int64_t max_rows(const rf_graph *graph, const rf_op *op) {
  return graph->tensor[op->input[0]].shape[0] / op->attr.experts.used;
}

static rf_gemm matmul_experts_product(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  int64_t k = x->shape[1], n = w->shape[1];
  rf_gemm g = rf_gemm_of(max_rows(graph, op), n, k, rf_row_major(x->dtype, k), rf_weight(w, k, n, false),
                         x->dtype, n);
  g.fast = op->attr.experts.fast;
  return g;
}
static rf_gemm matmul_experts_dx_product(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *dy = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  int64_t n = dy->shape[1], k = w->shape[0] / op->attr.experts.experts;
  return rf_gemm_of(max_rows(graph, op), k, n, rf_row_major(dy->dtype, n),
                    rf_transposed(rf_weight(w, k, n, false)), dy->dtype, k);
}
static rf_gemm matmul_experts_dw_product(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]], *dy = &graph->tensor[op->input[1]];
  int64_t k = x->shape[1], n = dy->shape[1];
  return rf_gemm_of(k, n, max_rows(graph, op), rf_transposed(rf_row_major(x->dtype, k)),
                    rf_row_major(dy->dtype, n), RF_F32, n);
}

/* Number of runs of rows. Run r belongs to expert r % experts. */
static int runs_of(const rf_op *op) {
  return op->attr.experts.experts * (op->attr.group > 1 ? op->attr.group : 1);
}

/* Multiplies the rows of each expert by its matrix. */
static void each_expert(rf_gemm_path *path, const rf_gemm_isa *isa, const rf_call *call, rf_gemm g) {
  const int32_t *starts = call->in[2];
  const void *x = call->in[0], *w = call->in[1];
  int64_t packed_bytes = g.panels ? rf_panels_bytes(g.panels) / rf_panels_experts(g.panels) : 0;
  g.inner = call->inner;
  for (int run = 0; run < runs_of(call->op); run++) {
    int e = run % call->op->attr.experts.experts;
    g.m = starts[run + 1] - starts[run];
    if (g.m == 0) continue;
    g.a = rf_element(x, g.a_dtype, starts[run] * g.k);
    g.b = g.panels ? (const char *)w + e * packed_bytes : rf_element(w, g.b_dtype, e * g.n * g.k);
    g.u = (void *)(uintptr_t)rf_element(call->out[0], g.dtype, starts[run] * g.n);
    path(isa, &g, call->threads, call->workspace);
  }
}

static void matmul_experts_call(rf_gemm_path *path, const rf_gemm_isa *isa, const rf_call *call) {
  each_expert(path, isa, call, matmul_experts_product(call->graph, call->op));
}

static void matmul_experts_dx_call(rf_gemm_path *path, const rf_gemm_isa *isa, const rf_call *call) {
  each_expert(path, isa, call, matmul_experts_dx_product(call->graph, call->op));
}

static void matmul_experts_dw_call(rf_gemm_path *path, const rf_gemm_isa *isa, const rf_call *call) {
  const int32_t *starts = call->in[2];
  rf_gemm g = matmul_experts_dw_product(call->graph, call->op);
  g.inner = call->inner;
  for (int run = 0; run < runs_of(call->op); run++) {
    int e = run % call->op->attr.experts.experts;
    float *dw = (float *)call->out[0] + e * g.m * g.n;
    g.accumulate = run >= call->op->attr.experts.experts || rf_accumulates(call, 0);
    g.k = starts[run + 1] - starts[run];
    if (g.k == 0) {
      if (!g.accumulate) memset(dw, 0, (size_t)(g.m * g.n) * sizeof *dw);
      continue;
    }
    g.a = rf_element(call->in[0], g.a_dtype, starts[run] * g.m);
    g.b = rf_element(call->in[1], g.b_dtype, starts[run] * g.n);
    g.u = dw;
    path(isa, &g, call->threads, call->workspace);
  }
}

/* The rows of an expert are known only at run time, so the plan has a kernel for few rows and a
 * kernel for more rows. The gradient of an expert's weight always has as many rows as the
 * weight. */
#define INNER(op, fewest) \
  static void op##_inner(int level, const rf_graph *graph, const rf_op *node, rf_inner *inner) { \
    const rf_gemm g = op##_product(graph, node); \
    inner[0] = rf_product_inner(level, "expert", &g, fewest); \
  }
INNER(matmul_experts, 1)
INNER(matmul_experts_dx, 1)
INNER(matmul_experts_dw, g.m)
#define RF_RUNS(path) rf_gemm_planned

/* If no expert can have more than RF_FEW_ROWS rows, the op has a kernel for few rows. */
RF_PRODUCTS(matmul_experts, RF_HAS_FEW_ROWS, blocked, tiles)
const rf_kernel RF_CPU_EXPERTS[] = {RF_PRODUCT_ROWS(matmul_experts, 0, blocked, tiles){.op = NULL}};
