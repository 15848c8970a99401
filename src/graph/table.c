/* table.c - the op table. A new op is one file in ops/ and one row here. */
#include "graph/ops/ops.h"

#include <string.h>

// clang-format off
const rf_op_def *const RF_OPS[] = {
    &RF_OP_EMBED, &RF_OP_EMBED_BWD,
    &RF_OP_LAYERNORM, &RF_OP_LAYERNORM_BWD, &RF_OP_RMSNORM, &RF_OP_RMSNORM_BWD,
    &RF_OP_HEAD_NORM, &RF_OP_HEAD_NORM_BWD, &RF_OP_ROPE,
    &RF_OP_MATMUL, &RF_OP_MATMUL_DX, &RF_OP_MATMUL_DW,
    &RF_OP_LORA, &RF_OP_LORA_BWD,
    &RF_OP_GELU, &RF_OP_GELU_BWD, &RF_OP_GELU_ERF, &RF_OP_GELU_ERF_BWD,
    &RF_OP_SWIGLU, &RF_OP_SWIGLU_BWD, &RF_OP_GEGLU, &RF_OP_GEGLU_BWD,
    &RF_OP_ROUTE, &RF_OP_ROUTE_BWD, &RF_OP_DISPATCH, &RF_OP_DISPATCH_BWD,
    &RF_OP_MATMUL_EXPERTS, &RF_OP_MATMUL_EXPERTS_DX, &RF_OP_MATMUL_EXPERTS_DW, &RF_OP_COMBINE, &RF_OP_COMBINE_BWD,
    &RF_OP_ADD, &RF_OP_ADD_DROPOUT, &RF_OP_DROPOUT,
    &RF_OP_ATTENTION, &RF_OP_ATTENTION_BWD, &RF_OP_ATTENTION_KV,
    &RF_OP_LATENT_NORM, &RF_OP_LATENT_NORM_BWD, &RF_OP_ATTENTION_LATENT, &RF_OP_ATTENTION_LATENT_BWD, &RF_OP_ATTENTION_LATENT_KV,
    &RF_OP_HEAD_LOSS, &RF_OP_HEAD_LOSS_BWD, &RF_OP_HEAD_LOSS_GRAD, &RF_OP_LOSS_SUM, &RF_OP_HEAD_LOGITS, &RF_OP_HEAD_SCORE, &RF_OP_HEAD_PART, &RF_OP_HEAD_MERGE,
    &RF_OP_KV_ROWS, &RF_OP_KV_JOIN, &RF_OP_ATTENTION_PART, &RF_OP_ATTENTION_PART_BWD,
    &RF_OP_NORM_SQ, &RF_OP_CLIP, &RF_OP_ADAMW,
    &RF_OP_ALL_GATHER, &RF_OP_REDUCE_SCATTER, &RF_OP_ALL_REDUCE, &RF_OP_ALL_TO_ALL, &RF_OP_PERMUTE, &RF_OP_OFFLOAD_OUT, &RF_OP_OFFLOAD_IN,
    NULL};
// clang-format on

bool rf_op_is_exchange(const rf_op_def *def) {
  return def == &RF_OP_ALL_GATHER || def == &RF_OP_REDUCE_SCATTER || def == &RF_OP_ALL_REDUCE || def == &RF_OP_ALL_TO_ALL || def == &RF_OP_PERMUTE ||
         def == &RF_OP_OFFLOAD_OUT || def == &RF_OP_OFFLOAD_IN;
}

const rf_op_def *rf_op_find(const char *name) {
  for (int i = 0; RF_OPS[i]; i++)
    if (strcmp(RF_OPS[i]->name, name) == 0) return RF_OPS[i];
  return NULL;
}
