/* matmul.c - the linear layer's three ops as products of gemm.h: which tensor is A, which is B,
 * and what follows. A weight is (K,N), or (N,K) with attr.transpose; only strides change. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"

static bool accepts_any(const rf_graph *graph, const rf_op *op) { /* f64 is the reference's */
  for (int i = 0; i < op->input_count; i++) {
    if (op->input[i] == RF_NONE) continue;
    rf_dtype dtype = graph->tensor[op->input[i]].dtype;
    if (!rf_is_activation(dtype) && !(i == 1 && dtype == RF_PACKED)) return false;
  }
  return true;
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
static const rf_tensor *tensor_or_null(const rf_graph *graph, int id) {
  return id == RF_NONE ? NULL : &graph->tensor[id];
}

/* Sizes, strides and dtypes: all that the workspace depends on. Slots 0 and 1 are the operands
 * of every op here. */
static rf_gemm forward(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]],
                  *bias = tensor_or_null(graph, op->input[2]);
  int64_t k = x->shape[1], n = w->shape[op->attr.transpose ? 0 : 1];
  return (rf_gemm){.m = x->shape[0],
                   .n = n,
                   .k = k,
                   .m_bound = x->shape[0],
                   .blocks = op->blocks,
                   .a_row = k,
                   .a_step = 1,
                   .a_dtype = x->dtype,
                   .b_step = op->attr.transpose ? 1 : n,
                   .b_col = op->attr.transpose ? k : 1,
                   .b_dtype = w->dtype,
                   .panels = rf_panels_of(w),
                   .fast = op->attr.fast,
                   .bias_dtype = bias ? bias->dtype : RF_F32,
                   .dtype = x->dtype,
                   .ld = n};
}
/* dx (M,K) = dy (M,N) w^T: the sum runs over n. */
static rf_gemm backward_input(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *dy = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  int64_t n = dy->shape[1], k = w->shape[op->attr.transpose ? 1 : 0];
  return (rf_gemm){.m = dy->shape[0],
                   .n = k,
                   .k = n,
                   .m_bound = dy->shape[0],
                   .blocks = op->blocks,
                   .a_row = n,
                   .a_step = 1,
                   .a_dtype = dy->dtype,
                   .b_step = op->attr.transpose ? k : 1,
                   .b_col = op->attr.transpose ? 1 : n,
                   .b_dtype = w->dtype,
                   .panels = rf_panels_of(w),
                   .turned = w->dtype == RF_PACKED,
                   .dtype = dy->dtype,
                   .ld = k};
}
/* dw (K,N) = x^T dy, or (N,K) = dy^T x: the sum runs over tokens. */
static rf_gemm backward_weight(const rf_graph *graph, const rf_op *op) {
  bool transpose = op->attr.transpose;
  const rf_tensor *a = &graph->tensor[op->input[transpose ? 1 : 0]],
                  *b = &graph->tensor[op->input[transpose ? 0 : 1]];
  return (rf_gemm){.m = a->shape[1],
                   .n = b->shape[1],
                   .k = a->shape[0],
                   .k_bound = a->shape[0],
                   .blocks = op->blocks,
                   .a_row = 1,
                   .a_step = a->shape[1],
                   .a_dtype = a->dtype,
                   .b_step = b->shape[1],
                   .b_col = 1,
                   .b_dtype = b->dtype,
                   .dtype = RF_F32,
                   .ld = b->shape[1],
                   .past = true};
}
/* The bias' gradient falls out of packing dy where dy is B. */
static bool sums_while_packing(const rf_op *op) { return op->output[1] != RF_NONE && !op->attr.transpose; }

static size_t matmul_workspace(const rf_gemm_isa *isa, const rf_graph *graph, const rf_op *op, int threads) {
  rf_gemm g = forward(graph, op);
  return rf_gemm_workspace(isa, &g, threads);
}
static void matmul_run(const rf_gemm_isa *isa, const rf_call *call) {
  rf_gemm g = forward(call->graph, call->op);
  g.m = rf_rows_used(call, 0);
  g.a = call->in[0];
  g.b = call->in[1];
  g.bias = call->in[2];
  g.u = call->out[0];
  g.out = call->out[1];
  if (call->op->attr.epilogue == RF_EPILOGUE_GELU) g.epilogue = RF_GEMM_GELU;
  if (call->op->attr.epilogue == RF_EPILOGUE_RESIDUAL) {
    g.epilogue = RF_GEMM_RESIDUAL;
    g.side = call->in[3];
    g.drop = rf_dropout_of(call);
    g.first_token = call->run->first_token;
  }
  rf_gemm_run(isa, &g, call->threads, call->workspace);
}

static size_t matmul_dx_workspace(const rf_gemm_isa *isa, const rf_graph *graph, const rf_op *op,
                                  int threads) {
  rf_gemm g = backward_input(graph, op);
  return rf_gemm_workspace(isa, &g, threads);
}
static void matmul_dx_run(const rf_gemm_isa *isa, const rf_call *call) {
  rf_gemm g = backward_input(call->graph, call->op);
  g.m = rf_rows_used(call, 0);
  g.a = call->in[0];
  g.b = call->in[1];
  g.u = call->out[0];
  if (call->in[2]) {
    g.epilogue = RF_GEMM_GELU_BWD;
    g.side = call->in[2];
    g.out = call->out[1];
  }
  rf_gemm_run(isa, &g, call->threads, call->workspace);
}

static size_t matmul_dw_workspace(const rf_gemm_isa *isa, const rf_graph *graph, const rf_op *op,
                                  int threads) {
  static float present;
  rf_gemm g = backward_weight(graph, op);
  if (sums_while_packing(op)) g.column_sum = &present;
  return rf_gemm_workspace(isa, &g, threads);
}
static void matmul_dw_run(const rf_gemm_isa *isa, const rf_call *call) {
  bool transpose = call->op->attr.transpose;
  rf_gemm g = backward_weight(call->graph, call->op);
  g.k = rf_rows_used(call, 0);
  g.a = call->in[transpose ? 1 : 0];
  g.b = call->in[transpose ? 0 : 1];
  g.u = call->out[0];
  g.accumulate = rf_accumulates(call, 0);
  if (sums_while_packing(call->op)) {
    g.column_sum = call->out[1];
    g.column_sum_accumulate = rf_accumulates(call, 1);
  } else if (call->out[1]) {
    rf_column_sums(call->in[1], rf_in(call, 1)->dtype, g.k, rf_in(call, 1)->shape[1],
                   rf_in(call, 1)->shape[1], call->out[1], rf_accumulates(call, 1), call->threads);
  }
  if (g.u) rf_gemm_run(isa, &g, call->threads, call->workspace);
}

#define BIND_ALL(isa, gemm) \
  RF_BIND(matmul, isa, gemm) RF_BIND(matmul_dx, isa, gemm) RF_BIND(matmul_dw, isa, gemm)
#define ROWS(isa, name, level) \
  RF_BOUND_ROW(matmul, isa, name, level), RF_BOUND_ROW(matmul_dx, isa, name, level), \
      RF_BOUND_ROW(matmul_dw, isa, name, level),

#define TILES(op) {#op, "gemm_amx_32x32", RF_ISA_AMX, accepts_tiles, op##_amx_workspace, op##_amx_run},

#define FAST(isa, level) \
  {"matmul", "fast_" #isa, level, accepts_fast, matmul_##isa##_workspace, matmul_##isa##_run},

#if defined(__x86_64__)
BIND_ALL(amx, RF_GEMM_AMX)
RF_BIND(matmul, avx512bf16, RF_GEMM_AVX512BF16)
BIND_ALL(avx512, RF_GEMM_AVX512)
BIND_ALL(avx2, RF_GEMM_AVX2)
#endif
BIND_ALL(base, RF_GEMM_BASE)

const rf_kernel RF_CPU_MATMUL[] = {
#if defined(__x86_64__)
    FAST(amx, RF_ISA_AMX) FAST(avx512bf16, RF_ISA_AVX512BF16) FAST(avx512, RF_ISA_AVX512)
        FAST(avx2, RF_ISA_AVX2) TILES(matmul) TILES(matmul_dx) TILES(matmul_dw)
            ROWS(avx512, "gemm_avx512_12x32", RF_ISA_AVX512) ROWS(avx2, "gemm_avx2_6x16", RF_ISA_AVX2)
#endif
                ROWS(base, "gemm_base_4x16", RF_ISA_BASE){NULL, NULL, RF_ISA_BASE, NULL, NULL, NULL},
};

bool rf_matmul_has_blocks(const rf_kernel *kernel) {
  for (const rf_kernel *k = RF_CPU_MATMUL; k->op; k++)
    if (k == kernel) return k->accepts == accepts;
  return false;
}
