/* kernels.h - the functions behind the rows of RF_REFERENCE_KERNELS. Private to this folder. */
#ifndef RF_REFERENCE_KERNELS_H
#define RF_REFERENCE_KERNELS_H

#include "backend/reference/element.h"

void rf_reference_embed(const rf_call *call);
void rf_reference_embed_bwd(const rf_call *call);
void rf_reference_layernorm(const rf_call *call);
void rf_reference_layernorm_bwd(const rf_call *call);
void rf_reference_rmsnorm(const rf_call *call);
void rf_reference_rmsnorm_bwd(const rf_call *call);
void rf_reference_head_norm(const rf_call *call);
void rf_reference_head_norm_bwd(const rf_call *call);
void rf_reference_rope(const rf_call *call);
void rf_reference_matmul(const rf_call *call);
void rf_reference_matmul_dx(const rf_call *call);
void rf_reference_matmul_dw(const rf_call *call);
void rf_reference_lora(const rf_call *call);
void rf_reference_lora_bwd(const rf_call *call);
void rf_reference_gelu(const rf_call *call);
void rf_reference_gelu_bwd(const rf_call *call);
void rf_reference_gelu_erf(const rf_call *call);
void rf_reference_gelu_erf_bwd(const rf_call *call);
void rf_reference_swiglu(const rf_call *call);
void rf_reference_swiglu_bwd(const rf_call *call);
void rf_reference_geglu(const rf_call *call);
void rf_reference_geglu_bwd(const rf_call *call);
void rf_reference_route(const rf_call *call);
void rf_reference_route_bwd(const rf_call *call);
void rf_reference_dispatch(const rf_call *call);
void rf_reference_dispatch_bwd(const rf_call *call);
void rf_reference_matmul_experts(const rf_call *call);
void rf_reference_matmul_experts_dx(const rf_call *call);
void rf_reference_matmul_experts_dw(const rf_call *call);
void rf_reference_combine(const rf_call *call);
void rf_reference_combine_bwd(const rf_call *call);
void rf_reference_latent_norm(const rf_call *call);
void rf_reference_latent_norm_bwd(const rf_call *call);
void rf_reference_attention_latent(const rf_call *call);
void rf_reference_attention_latent_bwd(const rf_call *call);
void rf_reference_attention_latent_kv(const rf_call *call);
size_t rf_reference_attention_latent_workspace(const rf_graph *graph, const rf_op *op, int threads);
size_t rf_reference_attention_latent_kv_workspace(const rf_graph *graph, const rf_op *op, int threads);
void rf_reference_add(const rf_call *call);
void rf_reference_add_dropout(const rf_call *call);
void rf_reference_dropout(const rf_call *call);
void rf_reference_attention(const rf_call *call);
void rf_reference_attention_bwd(const rf_call *call);
void rf_reference_attention_kv(const rf_call *call);
void rf_reference_head_loss(const rf_call *call);
void rf_reference_head_loss_bwd(const rf_call *call);
void rf_reference_head_loss_grad(const rf_call *call);
void rf_reference_loss_sum(const rf_call *call);
void rf_reference_head_logits(const rf_call *call);
void rf_reference_head_score(const rf_call *call);
void rf_reference_head_part(const rf_call *call);
void rf_reference_head_merge(const rf_call *call);
void rf_reference_kv_rows(const rf_call *call);
void rf_reference_kv_join(const rf_call *call);
void rf_reference_attention_part(const rf_call *call);
void rf_reference_attention_part_bwd(const rf_call *call);
void rf_reference_attention_merge(const rf_call *call);
void rf_reference_take_run(const rf_call *call);
void rf_reference_norm_sq(const rf_call *call);
void rf_reference_clip(const rf_call *call);
void rf_reference_adamw(const rf_call *call);
void rf_reference_all_gather(const rf_call *call);
void rf_reference_reduce_scatter(const rf_call *call);
void rf_reference_all_reduce(const rf_call *call);
void rf_reference_all_to_all(const rf_call *call);
void rf_reference_permute(const rf_call *call);
void rf_reference_send(const rf_call *call);
void rf_reference_recv(const rf_call *call);
void rf_reference_norm_total(const rf_call *call);
void rf_reference_offload_out(const rf_call *call);
void rf_reference_offload_in(const rf_call *call);

size_t rf_reference_attention_part_workspace(const rf_graph *graph, const rf_op *op, int threads);
size_t rf_reference_attention_workspace(const rf_graph *graph, const rf_op *op, int threads);
size_t rf_reference_head_workspace(const rf_graph *graph, const rf_op *op, int threads);

#endif
