/* gguf_facts_write.c - writes the facts of a model (its sizes and constants) as GGUF metadata. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/gguf_source.h"

/* State of a writer for the keys of one architecture. `failed` becomes true when memory runs
 * out. */
typedef struct keys {
  rf_gguf_meta *meta;
  const char *arch;
  bool failed;
  char key[128];
} keys;

static const char *key_of(keys *k, const char *name) {
  snprintf(k->key, sizeof k->key, "%s.%s", k->arch, name);
  return k->key;
}
static void put_int(keys *k, const char *name, int64_t value) {
  k->failed |= !rf_gguf_set_int(k->meta, key_of(k, name), RF_GGUF_U32, value);
}
static void put_float(keys *k, const char *name, double value) {
  k->failed |= !rf_gguf_set_f32(k->meta, key_of(k, name), (float)value);
}

bool rf_gguf_facts_write(const rf_gguf_facts *f, rf_gguf_meta *meta) {
  keys k = {meta, f->arch_name, false, ""};
  k.failed |= !rf_gguf_set_text(meta, "general.architecture", f->arch_name);
  if (*f->name) k.failed |= !rf_gguf_set_text(meta, "general.name", f->name);
  put_int(&k, "block_count", f->layers);
  put_int(&k, "context_length", f->positions);
  put_int(&k, "embedding_length", f->width);
  put_int(&k, "feed_forward_length", f->ff);
  put_int(&k, "attention.head_count", f->heads);
  put_int(&k, "attention.head_count_kv", f->kv_heads);
  put_int(&k, "attention.key_length", f->key_length);
  put_int(&k, "attention.value_length", f->value_length);
  put_int(&k, "vocab_size", f->vocab);
  put_float(&k, f->layernorm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
            f->norm_eps);
  if (f->rope_theta > 0) {
    put_int(&k, "rope.dimension_count", f->rope_dim);
    put_float(&k, "rope.freq_base", f->rope_theta);
    if (f->rope_local_theta != f->rope_theta) put_float(&k, "rope.freq_base_swa", f->rope_local_theta);
  }
  if (f->rope_factor != 1) {
    k.failed |= !rf_gguf_set_text(meta, key_of(&k, "rope.scaling.type"), f->rope_scaling);
    put_float(&k, "rope.scaling.factor", f->rope_factor);
  }
  if (f->rope_original) put_int(&k, "rope.scaling.original_context_length", f->rope_original);
  if (f->window) {
    put_int(&k, "attention.sliding_window", f->window);
    put_int(&k, "attention.sliding_window_pattern", f->window_period);
  }
  if (f->attn_softcap > 0) put_float(&k, "attn_logit_softcapping", f->attn_softcap);
  if (f->final_softcap > 0) put_float(&k, "final_logit_softcapping", f->final_softcap);
  /* Readers have other defaults for some Gemma models, so these always have the scale. */
  if (f->arch == RF_GGUF_GEMMA2 || f->arch == RF_GGUF_GEMMA3 ||
      f->attn_scale != 1 / sqrt((double)f->key_length))
    put_float(&k, "attention.scale", f->attn_scale);
  if (f->arch == RF_GGUF_NEOX)
    k.failed |= !rf_gguf_set_bool(meta, key_of(&k, "use_parallel_residual"), f->parallel);
  if (f->experts) {
    put_int(&k, "expert_count", f->experts);
    put_int(&k, "expert_used_count", f->experts_used);
    put_int(&k, "expert_feed_forward_length", f->expert_ff);
  }
  return !k.failed;
}

static const struct {
  rf_gguf_arch arch;
  const char *name;
} ARCHS[RF_FAMILIES] = {
    [RF_FAMILY_GPT] = {RF_GGUF_GPT2, "gpt2"},        [RF_FAMILY_LLAMA] = {RF_GGUF_LLAMA, "llama"},
    [RF_FAMILY_MISTRAL] = {RF_GGUF_LLAMA, "llama"},  [RF_FAMILY_GEMMA] = {RF_GGUF_GEMMA, "gemma"},
    [RF_FAMILY_GEMMA2] = {RF_GGUF_GEMMA2, "gemma2"}, [RF_FAMILY_GEMMA3] = {RF_GGUF_GEMMA3, "gemma3"},
    [RF_FAMILY_QWEN2] = {RF_GGUF_QWEN2, "qwen2"},    [RF_FAMILY_QWEN3] = {RF_GGUF_QWEN3, "qwen3"},
    [RF_FAMILY_NEOX] = {RF_GGUF_NEOX, "gptneox"},    [RF_FAMILY_MIXTRAL] = {RF_GGUF_LLAMA, "llama"},
};

rf_status rf_gguf_facts_of(const rf_model *model, rf_gguf_facts *f, rf_error *error) {
  if ((unsigned)model->family >= RF_FAMILIES || !ARCHS[model->family].name ||
      !rf_model_is_hugging_face(model))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "GGUF has no architecture for %s", model->name);
  bool biased = model->attn_bias || model->mlp_bias;
  const char *lost =
      model->family == RF_FAMILY_NEOX && model->mlp != RF_MLP_GELU_ERF ? "the tanh form of GELU in a GPT-NeoX"
      : model->family == RF_FAMILY_GPT && model->mlp != RF_MLP_GELU    ? "the erf form of GELU in a GPT-2"
      : model->rope.scaling == RF_ROPE_YARN                            ? "rotary positions scaled by YaRN"
      : model->window_listed                                           ? "windows in layers without a period"
      : model->family == RF_FAMILY_GEMMA2 && !(model->attn_softcap > 0 && model->final_softcap > 0)
          ? "a Gemma 2 without softcaps"
      : model->family == RF_FAMILY_GEMMA2 && !model->window ? "a Gemma 2 without windows"
      : biased && ARCHS[model->family].arch != RF_GGUF_LLAMA
          ? "biases of attention or the MLP, which only GGUF's llama has"
          : NULL;
  if (lost)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "a GGUF file cannot represent all of %s (%s)", model->name,
                   lost);
  rf_rope rope = rf_model_rope(model, 0);
  bool learned = model->position == RF_POSITION_LEARNED;
  *f = (rf_gguf_facts){.arch = ARCHS[model->family].arch,
                       .arch_name = ARCHS[model->family].name,
                       .layers = model->layers,
                       .width = model->width,
                       .heads = model->heads,
                       .kv_heads = model->kv_heads,
                       .ff = model->ff,
                       .vocab = model->vocab,
                       .positions = model->max_seq,
                       .key_length = model->head_dim,
                       .value_length = model->head_dim,
                       .layernorm = model->norm == RF_NORM_LAYERNORM,
                       .norm_eps = model->norm_eps,
                       .rope_factor = 1,
                       .norm_offset = model->norm_offset,
                       .window = model->window,
                       .window_period = model->window_period,
                       .attn_softcap = model->attn_softcap,
                       .final_softcap = model->final_softcap,
                       .tied = model->tied,
                       .qkv_bias = model->qkv_bias || model->attn_bias || model->bias,
                       .out_bias = model->attn_bias || model->bias,
                       .mlp_bias = model->mlp_bias || model->bias,
                       .qk_norm = model->qk_norm,
                       .post_norms = model->post_norms,
                       .parallel = model->parallel,
                       .experts = model->experts,
                       .experts_used = model->experts_used,
                       .expert_ff = model->experts ? model->ff : 0};
  snprintf(f->name, sizeof f->name, "%.95s", model->name);
  strcpy(f->rope_scaling, model->rope.scaling == RF_ROPE_LINEAR ? "linear" : "none");
  f->interleaved = f->arch == RF_GGUF_LLAMA;
  if (!learned) {
    f->rope_theta = model->rope.theta;
    f->rope_dim = rope.dim;
    f->rope_local_theta = model->local_theta > 0 ? model->local_theta : f->rope_theta;
    f->rope_freqs = model->rope.scaling == RF_ROPE_LLAMA3 || model->rope.scaling == RF_ROPE_TABLE;
    if (model->rope.scaling == RF_ROPE_LINEAR) f->rope_factor = model->rope.factor;
  }
  f->attn_scale = model->attn_scale > 0 ? model->attn_scale : 1 / sqrt((double)model->head_dim);
  f->embed_scale = model->embed_scale > 0 ? model->embed_scale : 1;
  return RAFTER_OK;
}
