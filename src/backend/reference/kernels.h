/* kernels.h - declares the function of every op, and the functions that return workspace sizes.
 * Private to this folder. A comment `x (n,D), bias (D)? -> y (n,D)` lists the inputs and the
 * outputs of an op with their shapes. `?` marks a tensor that may be absent. */
#ifndef RF_REFERENCE_KERNELS_H
#define RF_REFERENCE_KERNELS_H

#include "backend/reference/element.h"

/* For rope: void rf_reference_rope(const rf_call *call); */
#define RF_REFERENCE_KERNEL(NAME, name) void rf_reference_##name(const rf_call *call);
RF_OPS_LIST(RF_REFERENCE_KERNEL)
#undef RF_REFERENCE_KERNEL

size_t rf_reference_attention_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by);
size_t rf_reference_attention_latent_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by);
size_t rf_reference_attention_absorbed_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by);
size_t rf_reference_attention_part_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by);
size_t rf_reference_head_workspace(const rf_graph *graph, const rf_op *op, rf_tiling by);

#endif
