/* gguf_names.c - the names of parameters in GGUF files, and how the files store them. */
#include <stdio.h>
#include <string.h>

#include "formats/gguf_facts.h"

enum {
  GEMMAS = RF_GGUF_GEMMA | RF_GGUF_GEMMA2 | RF_GGUF_GEMMA3,
  GPTS = RF_GGUF_GPT2 | RF_GGUF_NEOX,
  GATED = RF_GGUF_EVERY & ~GPTS,
  POSTS = RF_GGUF_GEMMA2 | RF_GGUF_GEMMA3,
  QK = 3 /* bits 0 and 1 of `permuted`, for the parts q and k */
};

/* Source: llama.cpp, gguf-py/gguf/tensor_mapping.py and convert_hf_to_gguf.py.
 *   llama: rows of q and k are permuted so that pairs are adjacent. All other architectures keep
 *     Hugging Face's order of rows.
 *   gemma, gemma2, gemma3: 1 is added to every gain.
 *   gpt2: Hugging Face's (in, out) matrices are transposed to (out, in). q, k, v stay one matrix.
 *   gptneox: Hugging Face stores q, k, v of each head together; files store all q, all k, all v.
 *   experts: one tensor (E, out, in) for all experts of a layer.
 *   norms of gemma: attn_norm, post_attention_norm (gemma2, gemma3), ffn_norm (Hugging Face's
 *     pre_feedforward_layernorm), post_ffw_norm. */
// clang-format off
const rf_gguf_name RF_GGUF_NAMES[] = {
  {.row = "embed/token/weight",    .part = {"token_embd.weight"},         .archs = RF_GGUF_EVERY},
  {.row = "embed/position/weight", .part = {"position_embd.weight"},      .archs = RF_GGUF_GPT2},
  {.row = "attn/norm/gain",        .part = {"blk.%d.attn_norm.weight"},   .archs = RF_GGUF_EVERY, .norm = true},
  {.row = "attn/norm/bias",        .part = {"blk.%d.attn_norm.bias"},     .archs = GPTS},
  {.row = "attn/qkv/weight",       .part = {"blk.%d.attn_q.weight", "blk.%d.attn_k.weight", "blk.%d.attn_v.weight"},
                                   .archs = GATED, .transposed = true, .permuted = QK},
  {.row = "attn/qkv/bias",         .part = {"blk.%d.attn_q.bias", "blk.%d.attn_k.bias", "blk.%d.attn_v.bias"},
                                   .archs = GATED, .permuted = QK},
  {.row = "attn/qkv/weight",       .part = {"blk.%d.attn_qkv.weight"},    .archs = GPTS, .transposed = true},
  {.row = "attn/qkv/bias",         .part = {"blk.%d.attn_qkv.bias"},      .archs = GPTS},
  {.row = "attn/q_norm/gain",      .part = {"blk.%d.attn_q_norm.weight"}, .archs = RF_GGUF_GEMMA3 | RF_GGUF_QWEN3, .norm = true},
  {.row = "attn/k_norm/gain",      .part = {"blk.%d.attn_k_norm.weight"}, .archs = RF_GGUF_GEMMA3 | RF_GGUF_QWEN3, .norm = true},
  {.row = "attn/out/weight",       .part = {"blk.%d.attn_output.weight"}, .archs = RF_GGUF_EVERY, .transposed = true},
  {.row = "attn/out/bias",         .part = {"blk.%d.attn_output.bias"},   .archs = RF_GGUF_EVERY},
  {.row = "attn/post_norm/gain",   .part = {"blk.%d.post_attention_norm.weight"}, .archs = POSTS, .norm = true},
  {.row = "mlp/norm/gain",         .part = {"blk.%d.ffn_norm.weight"},    .archs = RF_GGUF_EVERY, .norm = true},
  {.row = "mlp/norm/bias",         .part = {"blk.%d.ffn_norm.bias"},      .archs = GPTS},
  {.row = "mlp/gate_up/weight",    .part = {"blk.%d.ffn_gate.weight", "blk.%d.ffn_up.weight"}, .archs = GATED, .transposed = true},
  {.row = "mlp/gate_up/bias",      .part = {"blk.%d.ffn_gate.bias", "blk.%d.ffn_up.bias"},     .archs = GATED},
  {.row = "mlp/up/weight",         .part = {"blk.%d.ffn_up.weight"},      .archs = GPTS, .transposed = true},
  {.row = "mlp/up/bias",           .part = {"blk.%d.ffn_up.bias"},        .archs = GPTS},
  {.row = "mlp/down/weight",       .part = {"blk.%d.ffn_down.weight"},    .archs = RF_GGUF_EVERY, .transposed = true},
  {.row = "mlp/down/bias",         .part = {"blk.%d.ffn_down.bias"},      .archs = RF_GGUF_EVERY},
  {.row = "mlp/router/weight",     .part = {"blk.%d.ffn_gate_inp.weight"}, .archs = RF_GGUF_LLAMA, .transposed = true},
  {.row = "mlp/experts/gate_up/weight", .part = {"blk.%d.ffn_gate_exps.weight", "blk.%d.ffn_up_exps.weight"}, .archs = RF_GGUF_LLAMA, .transposed = true},
  {.row = "mlp/experts/down/weight", .part = {"blk.%d.ffn_down_exps.weight"}, .archs = RF_GGUF_LLAMA, .transposed = true},
  {.row = "mlp/post_norm/gain",    .part = {"blk.%d.post_ffw_norm.weight"}, .archs = POSTS, .norm = true},
  {.row = "final/norm/gain",       .part = {"output_norm.weight"},        .archs = RF_GGUF_EVERY, .norm = true},
  {.row = "final/norm/bias",       .part = {"output_norm.bias"},          .archs = GPTS},
  {.row = "head/weight",           .part = {"output.weight"},             .archs = RF_GGUF_EVERY, .transposed = true},
  {.row = "head/bias",             .part = {"output.bias"},               .archs = RF_GGUF_EVERY},
};
// clang-format on
const int RF_GGUF_NAME_COUNT = sizeof RF_GGUF_NAMES / sizeof RF_GGUF_NAMES[0];

const rf_gguf_name *rf_gguf_name_of(rf_gguf_arch arch, const char *row) {
  for (int i = 0; i < RF_GGUF_NAME_COUNT; ++i)
    if ((RF_GGUF_NAMES[i].archs & (unsigned)arch) && strcmp(RF_GGUF_NAMES[i].row, row) == 0)
      return &RF_GGUF_NAMES[i];
  return NULL;
}

bool rf_gguf_name_is_extra(const char *name) {
  int layer, end = 0;
  /* buffers that only very old converters wrote */
  return sscanf(name, "blk.%d.attn_rot_embd%n", &layer, &end) == 1 && end > 0;
}

int64_t rf_gguf_permuted_row(int64_t row, int64_t head_dim) {
  int64_t half = head_dim / 2, head = row / head_dim, e = row % head_dim;
  return head * head_dim + (e < half ? 2 * e : 2 * (e - half) + 1);
}
