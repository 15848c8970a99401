/* elementwise_table.h - the table of the kernels in *_body.h for one ISA, with the ops and dtypes
 * that each kernel accepts. elementwise_*.c include this file and define RF_TABLE (name of the
 * table), RF_TABLE_ISA (the ISA) and RF_TABLE_SUFFIX (end of kernel names). */

#include "backend/cpu/cpu.h"
#include "backend/cpu/dropout.h"
#include "backend/cpu/simd.h"

/* this file comes first, because later *_body.h files use its helpers for rows */
#include "backend/cpu/norm_body.h"

#include "backend/cpu/elementwise_body.h"
#include "backend/cpu/embed_body.h"
#include "backend/cpu/experts_body.h"
#include "backend/cpu/head_norm_body.h"
#include "backend/cpu/optimizer_body.h"
#include "backend/cpu/parts_body.h"

static rf_dtype dtype_in(const rf_graph *graph, const rf_op *op, int slot) {
  return graph->tensor[op->input[slot]].dtype;
}

static bool accepts_activations(const rf_graph *graph, const rf_op *op) {
  return rf_is_activation(dtype_in(graph, op, 0));
}
static bool accepts_f32(const rf_graph *graph, const rf_op *op) { return dtype_in(graph, op, 0) == RF_F32; }
static bool accepts_f32_prefetch(const rf_graph *graph, const rf_op *op) {
  return accepts_f32(graph, op) && wants_prefetch();
}
/* True if both dtypes are f32, both are bf16, or only the activation is bf16. */
static bool accepts_pair(rf_dtype activation, rf_dtype parameter) {
  return rf_is_activation(activation) && rf_is_activation(parameter) &&
         !(activation == RF_F32 && parameter == RF_BF16);
}
static bool accepts_norm(const rf_graph *graph, const rf_op *op) {
  return accepts_pair(dtype_in(graph, op, 0), dtype_in(graph, op, 1));
}
static bool accepts_layernorm(const rf_graph *graph, const rf_op *op) {
  return accepts_norm(graph, op) && dtype_in(graph, op, 2) == dtype_in(graph, op, 1);
}
static bool accepts_embed(const rf_graph *graph, const rf_op *op) {
  rf_dtype x = graph->tensor[op->output[0]].dtype, table = dtype_in(graph, op, 2);
  return table == RF_PACKED ? rf_is_activation(x) : accepts_pair(x, table);
}
static bool accepts_embed_bwd(const rf_graph *graph, const rf_op *op) {
  return rf_is_activation(dtype_in(graph, op, 2));
}
/* Accepts Mixtral's router; the reference kernel runs all other routers. */
static bool accepts_route(const rf_graph *graph, const rf_op *op) {
  const rf_router *r = &op->attr.experts.router;
  bool choice = op->def == &RF_OP_ROUTE && op->input[1] >= 0;
  return accepts_activations(graph, op) && !choice && !r->sigmoid && !r->as_is && r->groups == 0 &&
         (r->scale == 0 || r->scale == 1);
}
static bool accepts_attention_merge(const rf_graph *graph, const rf_op *op) {
  return accepts_activations(graph, op) && merged_parts(graph, op) <= RF_MERGED_PARTS;
}
static bool accepts_rope(const rf_graph *graph, const rf_op *op) {
  return accepts_activations(graph, op) && op->attr.rope.rotation.dim <= 2 * RF_ROPE_PAIRS &&
         !op->attr.rope.rotation.tail;
}

/* RF_ROW(gelu, accepts, NULL) = {"gelu", "gelu_avx2", RF_ISA_AVX2, accepts, NULL, gelu_run} */
#define RF_ROW(op, accepts, workspace) \
  RF_KERNEL(#op, #op "_" RF_TABLE_SUFFIX, RF_TABLE_ISA, accepts, workspace, op##_run)
const rf_kernel RF_TABLE[] = {
    RF_ROW(embed, accepts_embed, NULL),
    RF_ROW(embed_bwd, accepts_embed_bwd, NULL),
    RF_ROW(layernorm, accepts_layernorm, NULL),
    RF_ROW(layernorm_bwd, accepts_norm, NULL),
    RF_ROW(rmsnorm, accepts_norm, NULL),
    RF_ROW(rmsnorm_bwd, accepts_norm, NULL),
    RF_ROW(head_norm, accepts_norm, NULL),
    RF_ROW(head_norm_bwd, accepts_norm, NULL),
    RF_ROW(rope, accepts_rope, NULL),
    RF_ROW(gelu, accepts_activations, NULL),
    RF_ROW(gelu_bwd, accepts_activations, NULL),
    RF_ROW(gelu_erf, accepts_activations, NULL),
    RF_ROW(gelu_erf_bwd, accepts_activations, NULL),
    RF_ROW(swiglu, accepts_activations, NULL),
    RF_ROW(swiglu_bwd, accepts_activations, NULL),
    RF_ROW(geglu, accepts_activations, NULL),
    RF_ROW(geglu_bwd, accepts_activations, NULL),
    RF_ROW(add, accepts_activations, NULL),
    RF_ROW(add_dropout, accepts_activations, NULL),
    RF_ROW(dropout, accepts_activations, NULL),
    RF_ROW(route, accepts_route, NULL),
    RF_ROW(route_bwd, accepts_route, NULL),
    RF_ROW(dispatch, accepts_activations, NULL),
    RF_ROW(dispatch_bwd, accepts_activations, NULL),
    RF_ROW(combine, accepts_activations, NULL),
    RF_ROW(combine_bwd, accepts_activations, NULL),
    RF_ROW(head_merge, accepts_f32, NULL),
    RF_ROW(attention_merge, accepts_attention_merge, NULL),
    RF_ROW(kv_rows, accepts_activations, NULL),
    RF_ROW(kv_join, accepts_activations, NULL),
    RF_ROW(loss_sum, accepts_f32, NULL),
    RF_ROW(norm_sq, accepts_f32, norm_sq_workspace),
    RF_ROW(clip, NULL, NULL),
    RF_KERNEL("adamw", "adamw_prefetch_" RF_TABLE_SUFFIX, RF_TABLE_ISA, accepts_f32_prefetch, adamw_workspace,
              adamw_prefetch_run),
    RF_ROW(adamw, accepts_f32, adamw_workspace),
    {.op = NULL},
};
#undef RF_ROW
