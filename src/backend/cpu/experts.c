/* experts.c - the experts' linear layers: a product of gemm.h for each expert over its rows,
 * which stand together. The workspace serves one expert that every row has chosen. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"

#include <string.h>

static bool accepts_any(const rf_graph *graph, const rf_op *op) { /* f64 is the reference's */
  rf_dtype w = graph->tensor[op->input[1]].dtype;
  return rf_is_activation(graph->tensor[op->input[0]].dtype) && (rf_is_activation(w) || w == RF_PACKED);
}
static bool accepts(const rf_graph *graph, const rf_op *op) {
  return accepts_any(graph, op) && !op->attr.fast;
}
static bool accepts_fast(const rf_graph *graph, const rf_op *op) {
  return accepts_any(graph, op) && op->attr.fast;
}
static bool accepts_tiles(const rf_graph *graph, const rf_op *op) {
  return accepts(graph, op) &&
         rf_gemm_is_bf16(graph->tensor[op->input[0]].dtype, &graph->tensor[op->input[1]]);
}
/* An expert has each row once at most. */
static int64_t most_rows(const rf_graph *graph, const rf_op *op) {
  return graph->tensor[op->input[0]].shape[0] / op->attr.experts_used;
}

static rf_gemm forward(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  int64_t k = x->shape[1], n = w->shape[1], most = most_rows(graph, op);
  return (rf_gemm){.m = most,
                   .n = n,
                   .k = k,
                   .m_bound = most,
                   .a_row = k,
                   .a_step = 1,
                   .a_dtype = x->dtype,
                   .b_step = n,
                   .b_col = 1,
                   .b_dtype = w->dtype,
                   .panels = rf_panels_of(w),
                   .fast = op->attr.fast,
                   .dtype = x->dtype,
                   .ld = n};
}
static rf_gemm backward_input(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *dy = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  int64_t n = dy->shape[1], k = w->shape[0] / op->attr.experts, most = most_rows(graph, op);
  return (rf_gemm){.m = most,
                   .n = k,
                   .k = n,
                   .m_bound = most,
                   .a_row = n,
                   .a_step = 1,
                   .a_dtype = dy->dtype,
                   .b_step = 1,
                   .b_col = n,
                   .b_dtype = w->dtype,
                   .panels = rf_panels_of(w),
                   .turned = w->dtype == RF_PACKED,
                   .dtype = dy->dtype,
                   .ld = k};
}
static rf_gemm backward_weight(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]], *dy = &graph->tensor[op->input[1]];
  int64_t most = most_rows(graph, op);
  return (rf_gemm){.m = x->shape[1],
                   .n = dy->shape[1],
                   .k = most,
                   .k_bound = most,
                   .a_row = 1,
                   .a_step = x->shape[1],
                   .a_dtype = x->dtype,
                   .b_step = dy->shape[1],
                   .b_col = 1,
                   .b_dtype = dy->dtype,
                   .dtype = RF_F32,
                   .ld = dy->shape[1]};
}

/* Forward and gradient of the input: rows times the expert's matrix. */
static void rows_run(const rf_gemm_isa *isa, const rf_call *call, rf_gemm g) {
  const int32_t *starts = call->in[2];
  const void *x = call->in[0], *w = call->in[1];
  int64_t packed_bytes = g.panels ? rf_panels_bytes(g.panels) / rf_panels_experts(g.panels) : 0;
  for (int e = 0; e < call->op->attr.experts; e++) {
    g.m = starts[e + 1] - starts[e];
    if (g.m == 0) continue;
    g.a = rf_element(x, g.a_dtype, starts[e] * g.k);
    g.b = g.panels ? (const char *)w + e * packed_bytes : rf_element(w, g.b_dtype, e * g.n * g.k);
    g.u = (void *)(uintptr_t)rf_element(call->out[0], g.dtype, starts[e] * g.n);
    rf_gemm_run(isa, &g, call->threads, call->workspace);
  }
}

static size_t matmul_experts_workspace(const rf_gemm_isa *isa, const rf_graph *graph, const rf_op *op,
                                       int threads) {
  rf_gemm g = forward(graph, op);
  return rf_gemm_workspace(isa, &g, threads);
}
static void matmul_experts_run(const rf_gemm_isa *isa, const rf_call *call) {
  rows_run(isa, call, forward(call->graph, call->op));
}

static size_t matmul_experts_dx_workspace(const rf_gemm_isa *isa, const rf_graph *graph, const rf_op *op,
                                          int threads) {
  rf_gemm g = backward_input(graph, op);
  return rf_gemm_workspace(isa, &g, threads);
}
static void matmul_experts_dx_run(const rf_gemm_isa *isa, const rf_call *call) {
  rows_run(isa, call, backward_input(call->graph, call->op));
}

static size_t matmul_experts_dw_workspace(const rf_gemm_isa *isa, const rf_graph *graph, const rf_op *op,
                                          int threads) {
  rf_gemm g = backward_weight(graph, op);
  return rf_gemm_workspace(isa, &g, threads);
}
static void matmul_experts_dw_run(const rf_gemm_isa *isa, const rf_call *call) {
  const int32_t *starts = call->in[2];
  rf_gemm g = backward_weight(call->graph, call->op);
  g.accumulate = rf_accumulates(call, 0);
  for (int e = 0; e < call->op->attr.experts; e++) {
    float *dw = (float *)call->out[0] + e * g.m * g.n;
    g.k = starts[e + 1] - starts[e];
    if (g.k == 0) {
      if (!g.accumulate) memset(dw, 0, (size_t)(g.m * g.n) * sizeof *dw);
      continue;
    }
    g.a = rf_element(call->in[0], g.a_dtype, starts[e] * g.m);
    g.b = rf_element(call->in[1], g.b_dtype, starts[e] * g.n);
    g.u = dw;
    rf_gemm_run(isa, &g, call->threads, call->workspace);
  }
}

#define BIND_ALL(isa, gemm) \
  RF_BIND(matmul_experts, isa, gemm) \
  RF_BIND(matmul_experts_dx, isa, gemm) RF_BIND(matmul_experts_dw, isa, gemm)
#define ROWS(isa, name, level) \
  RF_BOUND_ROW(matmul_experts, isa, name, level), RF_BOUND_ROW(matmul_experts_dx, isa, name, level), \
      RF_BOUND_ROW(matmul_experts_dw, isa, name, level)

#define TILES(op) {#op, "gemm_amx_32x32", RF_ISA_AMX, accepts_tiles, op##_amx_workspace, op##_amx_run},

#define FAST(isa, level) \
  {"matmul_experts",          "fast_" #isa, level, accepts_fast, matmul_experts_##isa##_workspace, \
   matmul_experts_##isa##_run},

#if defined(__x86_64__)
BIND_ALL(amx, RF_GEMM_AMX)
RF_BIND(matmul_experts, avx512bf16, RF_GEMM_AVX512BF16)
BIND_ALL(avx512, RF_GEMM_AVX512)
BIND_ALL(avx2, RF_GEMM_AVX2)
#endif
BIND_ALL(base, RF_GEMM_BASE)

const rf_kernel RF_CPU_EXPERTS[] = {
#if defined(__x86_64__)
    FAST(amx, RF_ISA_AMX) FAST(avx512bf16, RF_ISA_AVX512BF16) FAST(avx512, RF_ISA_AVX512)
        FAST(avx2, RF_ISA_AVX2) TILES(matmul_experts) TILES(matmul_experts_dx) TILES(matmul_experts_dw)
            ROWS(avx512, "gemm_avx512_12x32", RF_ISA_AVX512),
    ROWS(avx2, "gemm_avx2_6x16", RF_ISA_AVX2),
#endif
    ROWS(base, "gemm_base_4x16", RF_ISA_BASE),
    {NULL, NULL, RF_ISA_BASE, NULL, NULL, NULL},
};
