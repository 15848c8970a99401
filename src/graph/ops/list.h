/* list.h - the list of all ops. This list generates the declarations of op definitions, the op
 * table and the reference kernels. For example, X(ROPE, rope) is the op RF_OP_ROPE with the name
 * "rope". */
#ifndef RF_GRAPH_OPS_LIST_H
#define RF_GRAPH_OPS_LIST_H

// clang-format off
#define RF_OPS_LIST(X) \
  X(EMBED, embed) X(EMBED_BWD, embed_bwd) X(LAYERNORM, layernorm) \
  X(LAYERNORM_BWD, layernorm_bwd) X(RMSNORM, rmsnorm) X(RMSNORM_BWD, rmsnorm_bwd) \
  X(HEAD_NORM, head_norm) X(HEAD_NORM_BWD, head_norm_bwd) X(ROPE, rope) X(MATMUL, matmul) \
  X(MATMUL_DX, matmul_dx) X(MATMUL_DW, matmul_dw) X(LORA, lora) X(LORA_BWD, lora_bwd) \
  X(LORA_SLOTS, lora_slots) \
  X(GELU, gelu) X(GELU_BWD, gelu_bwd) X(GELU_ERF, gelu_erf) X(GELU_ERF_BWD, gelu_erf_bwd) \
  X(SWIGLU, swiglu) X(SWIGLU_BWD, swiglu_bwd) X(GEGLU, geglu) X(GEGLU_BWD, geglu_bwd) \
  X(ROUTE, route) X(ROUTE_BWD, route_bwd) X(DISPATCH, dispatch) X(DISPATCH_BWD, dispatch_bwd) \
  X(MATMUL_EXPERTS, matmul_experts) X(MATMUL_EXPERTS_DX, matmul_experts_dx) \
  X(MATMUL_EXPERTS_DW, matmul_experts_dw) X(COMBINE, combine) X(COMBINE_BWD, combine_bwd) \
  X(ADD, add) X(ADD_DROPOUT, add_dropout) X(DROPOUT, dropout) X(ATTENTION, attention) \
  X(ATTENTION_BWD, attention_bwd) X(ATTENTION_KV, attention_kv) X(LATENT_NORM, latent_norm) \
  X(LATENT_NORM_BWD, latent_norm_bwd) X(ATTENTION_LATENT, attention_latent) \
  X(ATTENTION_LATENT_BWD, attention_latent_bwd) X(ATTENTION_LATENT_ROWS, attention_latent_rows) \
  X(ATTENTION_LATENT_KV, attention_latent_kv) \
  X(HEAD_LOSS, head_loss) X(HEAD_LOSS_BWD, head_loss_bwd) X(HEAD_LOSS_GRAD, head_loss_grad) \
  X(LOSS_SUM, loss_sum) X(POLICY_LOSS, policy_loss) X(PAIR_LOSS, pair_loss) \
  X(HEAD_LOGITS, head_logits) X(HEAD_SCORE, head_score) X(SAMPLE, sample) \
  X(HEAD_PART, head_part) X(HEAD_MERGE, head_merge) X(KV_ROWS, kv_rows) X(KV_JOIN, kv_join) \
  X(ATTENTION_PART, attention_part) X(ATTENTION_PART_BWD, attention_part_bwd) \
  X(ATTENTION_MERGE, attention_merge) X(NORM_SQ, norm_sq) X(NORM_TOTAL, norm_total) \
  X(CLIP, clip) X(ADAMW, adamw) X(ALL_GATHER, all_gather) X(REDUCE_SCATTER, reduce_scatter) \
  X(ALL_REDUCE, all_reduce) X(ALL_TO_ALL, all_to_all) X(PERMUTE, permute) X(SEND, send) \
  X(RECV, recv) X(OFFLOAD_OUT, offload_out) X(OFFLOAD_IN, offload_in) X(TAKE_RUN, take_run) \
  X(ALL_GATHER_START, all_gather_start) X(REDUCE_SCATTER_START, reduce_scatter_start) \
  X(ALL_REDUCE_START, all_reduce_start) X(EXCHANGE_WAIT, exchange_wait)
// clang-format on

#endif
