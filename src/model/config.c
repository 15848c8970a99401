/* config.c - reads and writes Hugging Face's config.json. Models without a Hugging Face class are
 * stored with rafter's own fields. Reading and writing use the same tables of fields. */
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config_parts.h"

/* Bytes. The largest known config.json files have a few hundred kilobytes of label names. */
enum { CONFIG_MAX = 4 << 20 };

#define AT(field) offsetof(rf_model, field)

/* If n_inner is null, F is 4 * n_embd; head_dim and kv_heads follow from n_head. RAFTER_GPT lists
 * the fields that only rafter uses. */
static const config_field GPT2[] = {
    {"n_layer", NULL, INT, true, 0, AT(layers)},
    {"n_embd", NULL, INT, true, 0, AT(width)},
    {"n_head", NULL, INT, true, 0, AT(heads)},
    {"n_inner", NULL, INT, false, 0, AT(ff)},
    {"vocab_size", NULL, INT, true, 0, AT(vocab)},
    {"n_positions", "n_ctx", INT, true, 0, AT(max_seq)},
    {"layer_norm_epsilon", NULL, FLOAT, false, 1e-5, AT(norm_eps)},
    {"resid_pdrop", NULL, FLOAT, false, 0.1, AT(dropout)},
    {"tie_word_embeddings", NULL, BOOL, false, 1, AT(tied)},
};
static const config_field RAFTER_GPT[] = {
    {"head_dim", NULL, INT, true, 0, AT(head_dim)},    {"kv_heads", NULL, INT, true, 0, AT(kv_heads)},
    {"bias", NULL, BOOL, true, 1, AT(bias)},           {"head_bias", NULL, BOOL, true, 0, AT(head_bias)},
    {"mlp_first", NULL, BOOL, true, 0, AT(mlp_first)},
};
/* Fields that Llama and the types derived from Llama have. The entries of TYPES contain the
 * defaults. */
static const config_field SHARED[] = {
    {"num_hidden_layers", NULL, INT, true, 0, AT(layers)},
    {"hidden_size", NULL, INT, true, 0, AT(width)},
    {"num_attention_heads", NULL, INT, true, 0, AT(heads)},
    {"num_key_value_heads", NULL, INT, false, 0, AT(kv_heads)},
    {"head_dim", NULL, INT, false, 0, AT(head_dim)},
    {"intermediate_size", NULL, INT, true, 0, AT(ff)},
    {"vocab_size", NULL, INT, true, 0, AT(vocab)},
    {"max_position_embeddings", NULL, INT, false, 0, AT(max_seq)},
};
enum { SHAPE_COUNT = sizeof SHARED / sizeof SHARED[0] };
/* Gemma 3's defaults for the fields of SHARED. Google's files of the larger models omit some
 * fields. */
static const int64_t GEMMA3_SHAPE[SHAPE_COUNT] = {26, 2304, 8, 4, 256, 9216, 262208, 131072};
static const config_field LLAMA[] = {
    {"rms_norm_eps", NULL, FLOAT, false, 1e-6, AT(norm_eps)},
    {"attention_bias", NULL, BOOL, false, 0, AT(attn_bias)},
    {"mlp_bias", NULL, BOOL, false, 0, AT(mlp_bias)},
};
#define RMS LLAMA, 1      /* the field rms_norm_eps */
#define RMS_BIAS LLAMA, 2 /* the fields rms_norm_eps and attention_bias */
static const config_field GEMMA2[] = {
    {"rms_norm_eps", NULL, FLOAT, false, 1e-6, AT(norm_eps)},
    {"attention_bias", NULL, BOOL, false, 0, AT(attn_bias)},
    {"attn_logit_softcapping", NULL, FLOAT, false, 50, AT(attn_softcap)},
    {"final_logit_softcapping", NULL, FLOAT, false, 30, AT(final_softcap)},
};
static const config_field GEMMA3[] = {
    {"rms_norm_eps", NULL, FLOAT, false, 1e-6, AT(norm_eps)},
    {"attention_bias", NULL, BOOL, false, 0, AT(attn_bias)},
    {"attn_logit_softcapping", NULL, FLOAT, false, 0, AT(attn_softcap)},
    {"final_logit_softcapping", NULL, FLOAT, false, 0, AT(final_softcap)},
};
static const config_field MIXTRAL[] = {
    {"rms_norm_eps", NULL, FLOAT, false, 1e-5, AT(norm_eps)},
    {"num_local_experts", "num_experts", INT, false, 8, AT(experts)},
    {"num_experts_per_tok", NULL, INT, false, 2, AT(experts_used)},
    {"router_jitter_noise", NULL, FLOAT, false, 0, AT(router_jitter)},
};
static const config_field DEEPSEEK[] = {
    {"rms_norm_eps", NULL, FLOAT, false, 1e-6, AT(norm_eps)},
    {"q_lora_rank", NULL, INT, false, 0, AT(q_rank)},
    {"kv_lora_rank", NULL, INT, true, 0, AT(kv_rank)},
    {"qk_rope_head_dim", NULL, INT, true, 0, AT(rope_dim)},
    {"v_head_dim", NULL, INT, true, 0, AT(value_dim)},
    {"n_routed_experts", "num_local_experts", INT, false, 0, AT(experts)},
    {"num_experts_per_tok", NULL, INT, false, 0, AT(experts_used)},
    {"n_shared_experts", NULL, INT, false, 0, AT(experts_shared)},
    {"moe_intermediate_size", NULL, INT, false, 0, AT(expert_ff)},
    {"routed_scaling_factor", NULL, FLOAT, false, 1, AT(router_scale)},
};
static const config_field NEOX[] = {
    {"layer_norm_eps", NULL, FLOAT, false, 1e-5, AT(norm_eps)},
    {"hidden_dropout", NULL, FLOAT, false, 0, AT(dropout)},
    {"use_parallel_residual", NULL, BOOL, false, 1, AT(parallel)},
};
#define FIELDS(table) table, (int)(sizeof table / sizeof table[0])

static const activation SILU[] = {{"silu", RF_MLP_SWIGLU}, {"swish", RF_MLP_SWIGLU}, {NULL, 0}};
/* The config.json of the first Gemma says "gelu", but the model uses the tanh form. */
static const activation GEMMA_GATE[] = {
    {"gelu_pytorch_tanh", RF_MLP_GEGLU}, {"gelu_new", RF_MLP_GEGLU}, {"gelu", RF_MLP_GEGLU}, {NULL, 0}};
static const activation TANH_GATE[] = {
    {"gelu_pytorch_tanh", RF_MLP_GEGLU}, {"gelu_new", RF_MLP_GEGLU}, {NULL, 0}};
static const activation GPT2_UP[] = {
    {"gelu_new", RF_MLP_GELU},         {"gelu", RF_MLP_GELU_ERF},      {"gelu_python", RF_MLP_GELU_ERF},
    {"gelu_new", RF_MLP_GELU},         {"gelu_fast", RF_MLP_GELU},     {"gelu_pytorch_tanh", RF_MLP_GELU},
    {"gelu_python_tanh", RF_MLP_GELU}, {"gelu_accurate", RF_MLP_GELU}, {NULL, 0}};
#define GELU_UP (GPT2_UP + 1) /* omits the first entry of GPT2_UP, so the default is "gelu" */

#define RMS_ROPE .norm = RF_NORM_RMSNORM, .position = RF_POSITION_ROPE, .init = "llama"

// clang-format off
static const config_type TYPES[] = {
    {.type = "llama", .class = "LlamaForCausalLM", .base = {.family = RF_FAMILY_LLAMA, RMS_ROPE},
     FIELDS(LLAMA), .activation = SILU, .activation_key = "hidden_act", .theta_key = "rope_theta",
     .theta = 1e4, .positions = 2048, .bos = 1, .eos = 2},
    {.type = "mistral", .class = "MistralForCausalLM", .base = {.family = RF_FAMILY_MISTRAL, RMS_ROPE},
     RMS, .activation = SILU, .activation_key = "hidden_act", .theta_key = "rope_theta",
     .theta = 1e4, .positions = 131072, .kv_heads = 8, .windows = ALL_WINDOWED, .window = 4096, .bos = 1,
     .eos = 2},
    {.type = "qwen2", .class = "Qwen2ForCausalLM",
     .base = {.family = RF_FAMILY_QWEN2, .qkv_bias = true, RMS_ROPE}, RMS, .activation = SILU,
     .activation_key = "hidden_act", .theta_key = "rope_theta", .theta = 1e4, .positions = 32768,
     .kv_heads = 32, .windows = QWEN_SWITCH, .window = 4096, .bos = -1, .eos = -1},
    {.type = "qwen3", .class = "Qwen3ForCausalLM",
     .base = {.family = RF_FAMILY_QWEN3, .qk_norm = true, RMS_ROPE}, RMS_BIAS, .activation = SILU,
     .activation_key = "hidden_act", .theta_key = "rope_theta", .theta = 1e4, .positions = 32768,
     .kv_heads = 32, .windows = QWEN_SWITCH, .window = 4096, .head_dim = 128, .bos = -1, .eos = -1},
    {.type = "gemma", .class = "GemmaForCausalLM",
     .base = {.family = RF_FAMILY_GEMMA, .norm_offset = 1, RMS_ROPE}, RMS_BIAS,
     .activation = GEMMA_GATE, .activation_key = "hidden_act", .activation_also = "hidden_activation",
     .theta_key = "rope_theta", .theta = 1e4, .positions = 8192, .kv_heads = 16, .head_dim = 256,
     .tied = true, .bos = 2, .eos = 1, .off = {"use_bidirectional_attention"}},
    {.type = "gemma2", .class = "Gemma2ForCausalLM",
     .base = {.family = RF_FAMILY_GEMMA2, .norm_offset = 1, .post_norms = true, RMS_ROPE}, FIELDS(GEMMA2),
     .activation = TANH_GATE, .activation_key = "hidden_activation", .theta_key = "rope_theta",
     .theta = 1e4, .positions = 8192, .kv_heads = 4, .windows = EVERY_SECOND, .window = 4096,
     .query_scalar = 256, .head_dim = 256, .tied = true, .bos = 2, .eos = 1,
     .off = {"use_bidirectional_attention"}},
    {.type = "gemma3_text", .class = "Gemma3ForCausalLM",
     .base = {.family = RF_FAMILY_GEMMA3, .norm_offset = 1, .post_norms = true, .qk_norm = true, RMS_ROPE},
     FIELDS(GEMMA3), .activation = TANH_GATE, .activation_key = "hidden_activation",
     .theta_key = "rope_theta", .theta = 1e6, .shape = GEMMA3_SHAPE, .local_theta = 1e4, .windows = PATTERN,
     .window = 4096, .query_scalar = 256, .head_dim = 256, .tied = true, .bos = 2, .eos = 1,
     .off = {"use_bidirectional_attention"}},
    {.type = "mixtral", .class = "MixtralForCausalLM", .base = {.family = RF_FAMILY_MIXTRAL, RMS_ROPE},
     FIELDS(MIXTRAL), .activation = SILU, .activation_key = "hidden_act", .theta_key = "rope_theta",
     .theta = 1e6, .positions = 131072, .kv_heads = 8, .windows = ALL_WINDOWED, .bos = 1, .eos = 2},
    {.type = "deepseek_v2", .class = "DeepseekV2ForCausalLM",
     .base = {.family = RF_FAMILY_DEEPSEEK2, .router_as_is = true, RMS_ROPE}, FIELDS(DEEPSEEK),
     .activation = SILU, .activation_key = "hidden_act", .theta_key = "rope_theta", .theta = 1e4,
     .positions = 2048, .bos = -1, .eos = -1, .off = {"attention_bias", "mlp_bias"}},
    {.type = "deepseek_v3", .class = "DeepseekV3ForCausalLM",
     .base = {.family = RF_FAMILY_DEEPSEEK3, .router_sigmoid = true, .router_choice = true, RMS_ROPE},
     FIELDS(DEEPSEEK), .activation = SILU, .activation_key = "hidden_act", .theta_key = "rope_theta",
     .theta = 1e4, .positions = 4096, .bos = -1, .eos = -1, .off = {"attention_bias", "mlp_bias"}},
    {.type = "gpt_neox", .class = "GPTNeoXForCausalLM",
     .base = {.family = RF_FAMILY_NEOX, .norm = RF_NORM_LAYERNORM, .position = RF_POSITION_ROPE,
              .bias = true, .init = "gpt2"},
     FIELDS(NEOX), .activation = GELU_UP, .activation_key = "hidden_act", .theta_key = "rotary_emb_base",
     .theta = 1e4, .positions = 2048, .on = "attention_bias", .bos = 0, .eos = 2},
};
// clang-format on
enum { TYPE_COUNT = sizeof TYPES / sizeof TYPES[0] };

static const config_type *type_named(const char *name) {
  for (int i = 0; i < TYPE_COUNT; ++i)
    if (strcmp(TYPES[i].type, name) == 0) return &TYPES[i];
  return NULL;
}
static const config_type *type_of(rf_family family) {
  for (int i = 0; i < TYPE_COUNT; ++i)
    if (TYPES[i].base.family == family) return &TYPES[i];
  return NULL;
}
#define COUNT(table) (int)(sizeof table / sizeof table[0])

/* ---- reading --------------------------------------------------------------------------------- */

static rf_status read_fields(const json_t *json, const char *where, const config_field *field, int count,
                             rf_model *model, rf_error *error) {
  for (; count > 0; --count, ++field) {
    const char *key = field->key;
    json_t *found = json_object_get(json, key);
    if ((!found || json_is_null(found)) && field->other && json_object_get(json, field->other))
      key = field->other;
    char *to = (char *)model + field->offset;
    /* A softcap of null means no softcap. */
    bool is_null = json_is_null(json_object_get(json, key)) && field->type == FLOAT;
    int64_t whole = (int64_t)field->otherwise;
    double real = is_null ? 0 : field->otherwise;
    bool flag = field->otherwise != 0;
    if (field->type == INT) {
      int64_t most = field->offset == offsetof(rf_model, layers) ? RF_LAYERS_MAX : INT64_MAX;
      if (field->required) RF_TRY(rf_json_int(json, key, where, 1, most, &whole, error));
      else RF_TRY(rf_json_int_or(json, key, where, 1, most, whole, &whole, error));
      memcpy(to, &whole, sizeof whole);
    } else if (field->type == FLOAT) {
      RF_TRY(rf_json_float_or(json, key, where, 0, 1e30, real, &real, error));
      memcpy(to, &(float){(float)real}, sizeof(float));
    } else {
      if (field->required) RF_TRY(rf_json_bool(json, key, where, &flag, error));
      else RF_TRY(rf_json_bool_or(json, key, where, flag, &flag, error));
      memcpy(to, &flag, sizeof flag);
    }
  }
  return RAFTER_OK;
}

/* Reads a token id, or the first id of a list. The field of the id may be missing. Ids outside the
 * vocabulary come from another tokenizer and are ignored. */
static rf_status read_id(const json_t *json, const char *key, const char *where, int64_t otherwise,
                         int64_t vocab, int32_t *id, rf_error *error) {
  json_t *value = json_object_get(json, key);
  if (json_is_array(value)) value = json_array_get(value, 0);
  if (value && !json_is_null(value) && !json_is_integer(value))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"%s\" has the wrong type (expected a token id)", where, key);
  int64_t number = json_is_integer(value) ? json_integer_value(value) : value ? -1 : otherwise;
  *id = number >= 0 && number < vocab && number <= INT32_MAX ? (int32_t)number : -1;
  return RAFTER_OK;
}

static rf_status read_activation(const json_t *json, const char *key, const char *where,
                                 const activation *known, rf_mlp_kind *mlp, rf_error *error) {
  const char *value;
  RF_TRY(rf_json_string_or(json, key, where, known->text, &value, error));
  for (const activation *a = known; a->text; ++a)
    if (strcmp(a->text, value) == 0) return *mlp = a->mlp, RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, NULL,
                 "%s: the field \"%s\" is not supported (expected \"%s\", got \"%.60s\")", where, key,
                 known->text, value);
}

/* Fails if a boolean field has an unexpected value. A missing field is accepted. */
static rf_status expect_bool(const json_t *json, const char *key, const char *where, bool expected,
                             rf_error *error) {
  bool value;
  RF_TRY(rf_json_bool_or(json, key, where, expected, &value, error));
  if (value == expected) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"%s\" is not supported (expected %s)", where,
                 key, expected ? "true" : "false");
}

static rf_status read_gpt2(const json_t *json, const char *where, bool own, rf_model *model,
                           rf_error *error) {
  model->family = RF_FAMILY_GPT;
  model->norm = RF_NORM_LAYERNORM;
  model->position = RF_POSITION_LEARNED;
  model->bias = true;
  model->init = "gpt2";
  RF_TRY(read_fields(json, where, GPT2, COUNT(GPT2), model, error));
  RF_TRY(read_activation(json, "activation_function", where, GPT2_UP, &model->mlp, error));
  RF_TRY(expect_bool(json, "add_cross_attention", where, false, error));
  RF_TRY(expect_bool(json, "scale_attn_by_inverse_layer_idx", where, false, error));
  RF_TRY(expect_bool(json, "scale_attn_weights", where, true, error));
  RF_TRY(read_id(json, "bos_token_id", where, 50256, model->vocab, &model->bos_id, error));
  RF_TRY(read_id(json, "eos_token_id", where, 50256, model->vocab, &model->eos_id, error));
  if (model->width <= 1 << 24 && model->ff == 0) model->ff = 4 * model->width;
  if (own) {
    const char *init;
    RF_TRY(read_fields(json, where, RAFTER_GPT, COUNT(RAFTER_GPT), model, error));
    RF_TRY(rf_json_string(json, "init", where, &init, error));
    model->init = rf_model_init(init);
    if (!model->init)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "%s: the field \"init\" is unknown (expected gpt2, flax or llama, got \"%.40s\")", where,
                     init);
    return RAFTER_OK;
  }
  if (model->width % model->heads != 0)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"n_embd\" is not a multiple of \"n_head\" (%lld and %lld)", where,
                   (long long)model->width, (long long)model->heads);
  model->kv_heads = model->heads;
  model->head_dim = model->width / model->heads;
  return RAFTER_OK;
}

static bool is_full_layer(const json_t *layers, size_t i) {
  const char *name = json_string_value(json_array_get(layers, i));
  return name && strcmp(name, "full_attention") == 0;
}

static void mark_full_layer(rf_model *model, int64_t layer) {
  model->window_listed = true;
  model->window_full[layer / 8] |= (uint8_t)(1u << layer % 8);
}

/* Decides which layers have a window. The field "layer_types" may give each layer's kind. */
static rf_status read_windows(const json_t *json, const char *where, const config_type *type, rf_model *model,
                              rf_error *error) {
  /* rf_model_check later rejects models with more than RF_LAYERS_MAX layers. */
  if (type->windows == NO_WINDOW || model->layers > RF_LAYERS_MAX) return RAFTER_OK;
  bool qwen_on, windowed = true;
  int64_t pattern, first;
  RF_TRY(rf_json_bool_or(json, "use_sliding_window", where, false, &qwen_on, error));
  RF_TRY(rf_json_int_or(json, "sliding_window", where, 1, INT64_MAX / 4,
                        json_is_null(json_object_get(json, "sliding_window")) ? 0 : type->window,
                        &model->window, error));
  RF_TRY(rf_json_int_or(json, "sliding_window_pattern", where, 1, INT32_MAX, 6, &pattern, error));
  RF_TRY(rf_json_int_or(json, "max_window_layers", where, 0, INT64_MAX, 28, &first, error));
  const json_t *layers = json_object_get(json, "layer_types");
  if (type->windows == QWEN_SWITCH && !qwen_on) windowed = false;
  model->window_period = type->windows == EVERY_SECOND ? 2 : type->windows == PATTERN ? (int32_t)pattern : 0;
  if (json_is_array(layers)) {
    size_t count = json_array_size(layers), full = 0, period = 0;
    for (size_t i = 0; i < count; ++i) {
      const char *name = json_string_value(json_array_get(layers, i));
      bool is_full = is_full_layer(layers, i);
      if (!is_full && !(name && strcmp(name, "sliding_attention") == 0))
        return RF_FAIL(
            error, RAFTER_FAILED, NULL,
            "%s: the field \"layer_types\" is not supported (expected full_attention or sliding_attention)",
            where);
      full += is_full;
      if (is_full && !period) period = i + 1;
    }
    if ((int64_t)count != model->layers)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "%s: the field \"layer_types\" has the wrong length (expected %lld, got %zu)", where,
                     (long long)model->layers, count);
    bool contradicts =
        model->window > 0 && (type->windows == ALL_WINDOWED ? full > 0 : !windowed && full < count);
    if (contradicts)
      return RF_FAIL(error, RAFTER_FAILED, "set \"sliding_window\": null if no layer has a window",
                     "%s: the field \"layer_types\" contradicts \"%s\"", where,
                     windowed ? "sliding_window" : "use_sliding_window");
    if (full == count) windowed = false;
    bool regular = true;
    for (size_t i = 0; i < count; ++i)
      regular = regular && is_full_layer(layers, i) == (full && (i + 1) % period == 0);
    for (size_t i = 0; i < count && !regular && full < count && model->window > 0; ++i)
      if (is_full_layer(layers, i)) mark_full_layer(model, (int64_t)i);
    if (!regular) period = 0;
    model->window_period = full ? (int32_t)period : 0;
    if (full < count) windowed = true;
  } else if (type->windows == QWEN_SWITCH && qwen_on && first > 0) {
    if (first >= model->layers) windowed = false;
    for (int64_t i = 0; i < first && windowed && model->window > 0; ++i) mark_full_layer(model, i);
  }
  if (!windowed || model->window == 0) {
    model->window = 0;
    model->window_period = 0;
  }
  return RAFTER_OK;
}

/* If output_router_logits is false, the model's loss has no term that balances experts. */
static rf_status read_router(const json_t *json, const char *where, rf_model *model, rf_error *error) {
  double share;
  if (model->experts == 0) return RAFTER_OK;
  RF_TRY(rf_json_bool_or(json, "output_router_logits", where, false, &model->router_logits, error));
  RF_TRY(rf_json_float_or(json, "router_aux_loss_coef", where, 0, 1e30, 0.001, &share, error));
  model->router_aux = (float)share;
  return RAFTER_OK;
}

static rf_status read_deepseek(const json_t *json, const char *where, rf_model *model, rf_error *error) {
  bool second = model->family == RF_FAMILY_DEEPSEEK2, normed, pairs;
  const char *method, *scores, *known = second ? "group_limited_greedy" : "noaux_tc",
                               *expected = second ? "softmax" : "sigmoid";
  int64_t plain, every, groups, used;
  RF_TRY(rf_json_int(json, "qk_nope_head_dim", where, 1, 4096, &plain, error));
  model->head_dim = plain + model->rope_dim;
  model->kv_heads = model->heads;
  /* The defaults are those of DeepseekV2Config and DeepseekV3Config. */
  RF_TRY(rf_json_int_or(json, "first_k_dense_replace", where, 0, INT64_MAX, second ? 0 : 3,
                        &model->first_dense, error));
  if (!second && !json_object_get(json, "routed_scaling_factor")) model->router_scale = 2.5f;
  if (model->experts > 0 && model->first_dense > model->layers) model->first_dense = model->layers;
  if (model->experts == 0) {
    model->first_dense = model->experts_shared = 0;
    model->router_choice = false;
  }
  RF_TRY(rf_json_int_or(json, "moe_layer_freq", where, 1, INT64_MAX, 1, &every, error));
  RF_TRY(rf_json_bool_or(json, "rope_interleave", where, true, &pairs, error));
  if (every != 1 || !pairs)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"%s\" is not supported (expected %s)", where,
                   every != 1 ? "moe_layer_freq" : "rope_interleave", every != 1 ? "1" : "true");
  RF_TRY(rf_json_string_or(json, "scoring_func", where, expected, &scores, error));
  RF_TRY(rf_json_string_or(json, "topk_method", where, second ? "greedy" : known, &method, error));
  if (strcmp(scores, expected))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"scoring_func\" is not supported (expected \"%s\", got \"%.60s\")", where,
                   expected, scores);
  bool greedy = second && strcmp(method, "greedy") == 0;
  if (!greedy && strcmp(method, known))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"topk_method\" is not supported (expected \"%s\", got \"%.60s\")", where,
                   known, method);
  RF_TRY(rf_json_int_or(json, "n_group", where, 1, 1024, second ? 1 : 8, &groups, error));
  RF_TRY(rf_json_int_or(json, "topk_group", where, 1, 1024, second ? 1 : 4, &used, error));
  if (!greedy && groups > 1) {
    model->router_groups = (int32_t)groups;
    model->router_groups_used = (int32_t)used;
  }
  RF_TRY(rf_json_bool_or(json, "norm_topk_prob", where, !second, &normed, error));
  if (second && normed)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: the field \"norm_topk_prob\" is not supported (expected false for deepseek_v2)",
                   where);
  model->router_as_is = !normed;
  return RAFTER_OK;
}

static void write_deepseek(json_t *json, const rf_model *model) {
  bool second = model->family == RF_FAMILY_DEEPSEEK2;
  json_object_set_new(json, "qk_nope_head_dim", json_integer(model->head_dim - model->rope_dim));
  json_object_set_new(json, "head_dim", json_integer(model->rope_dim)); /* the class's name for rope_dim */
  json_object_set_new(json, "first_k_dense_replace", json_integer(model->first_dense));
  json_object_set_new(json, "scoring_func", json_string(second ? "softmax" : "sigmoid"));
  json_object_set_new(json, "topk_method",
                      json_string(!second                ? "noaux_tc"
                                  : model->router_groups ? "group_limited_greedy"
                                                         : "greedy"));
  json_object_set_new(json, "n_group", json_integer(model->router_groups ? model->router_groups : 1));
  json_object_set_new(json, "topk_group", json_integer(model->router_groups ? model->router_groups_used : 1));
  json_object_set_new(json, "norm_topk_prob", json_boolean(!model->router_as_is));
  if (model->q_rank == 0) json_object_set_new(json, "q_lora_rank", json_null());
  if (model->router_scale == 0) json_object_set_new(json, "routed_scaling_factor", json_real(1));
  static const char *const counts[] = {"n_routed_experts", "num_experts_per_tok", "n_shared_experts",
                                       "moe_intermediate_size"};
  for (int i = 0; i < 4; ++i)
    if (json_integer_value(json_object_get(json, counts[i])) == 0)
      json_object_set_new(json, counts[i], json_null());
}

static rf_status read_type(const json_t *json, const char *where, const config_type *type, rf_model *model,
                           rf_error *error) {
  *model = type->base;
  config_field shape[SHAPE_COUNT];
  memcpy(shape, SHARED, sizeof shape);
  for (int i = 0; type->shape && i < SHAPE_COUNT; ++i) {
    shape[i].required = false;
    shape[i].otherwise = (double)type->shape[i];
  }
  RF_TRY(read_fields(json, where, shape, SHAPE_COUNT, model, error));
  RF_TRY(read_fields(json, where, type->field, type->field_count, model, error));
  RF_TRY(rf_json_bool_or(json, "tie_word_embeddings", where, type->tied, &model->tied, error));
  RF_TRY(read_activation(json, type->activation_key, where, type->activation, &model->mlp, error));
  if (type->activation_also)
    RF_TRY(read_activation(json, type->activation_also, where, type->activation, &model->mlp, error));
  for (int i = 0; i < 4 && type->off[i]; ++i) RF_TRY(expect_bool(json, type->off[i], where, false, error));
  if (type->on) RF_TRY(expect_bool(json, type->on, where, true, error));
  RF_TRY(read_id(json, "bos_token_id", where, type->bos, model->vocab, &model->bos_id, error));
  RF_TRY(read_id(json, "eos_token_id", where, type->eos, model->vocab, &model->eos_id, error));
  if (model->kv_rank > 0) RF_TRY(read_deepseek(json, where, model, error));
  if (model->head_dim == 0 && type->head_dim > 0) model->head_dim = type->head_dim;
  if (model->head_dim == 0) {
    if (model->width % model->heads != 0)
      return RF_FAIL(
          error, RAFTER_FAILED, NULL,
          "%s: the field \"hidden_size\" is not a multiple of \"num_attention_heads\" (%lld and %lld)", where,
          (long long)model->width, (long long)model->heads);
    model->head_dim = model->width / model->heads;
  }
  if (model->max_seq == 0) model->max_seq = type->positions;
  if (model->kv_heads == 0 && !json_object_get(json, "num_key_value_heads")) model->kv_heads = type->kv_heads;
  if (model->kv_heads == 0) model->kv_heads = model->heads;
  if (model->norm_offset > 0) model->embed_scale = sqrtf((float)model->width);
  if (type->query_scalar > 0) {
    double scalar;
    RF_TRY(rf_json_float_or(json, "query_pre_attn_scalar", where, 1e-6, 1e9, type->query_scalar, &scalar,
                            error));
    model->attn_scale = (float)(1 / sqrt(scalar));
  }
  if (model->family == RF_FAMILY_GEMMA3 &&
      model->attn_softcap > 0) /* Hugging Face's class ignores the field attn_logit_softcapping */
    return RF_FAIL(
        error, RAFTER_FAILED, NULL,
        "%s: the field \"attn_logit_softcapping\" is not supported for gemma3_text (expected null)", where);
  RF_TRY(rf_config_read_rope(json, where, type, model, error));
  RF_TRY(read_router(json, where, model, error));
  return read_windows(json, where, type, model, error);
}

static rf_status from_json(const json_t *json, const char *where, rf_model *result, rf_error *error) {
  rf_model model;
  memset(&model, 0, sizeof model);
  const char *type;
  RF_TRY(rf_json_string(json, "model_type", where, &type, error));
  if (strcmp(type, "gpt2") == 0) RF_TRY(read_gpt2(json, where, false, &model, error));
  else if (strcmp(type, "rafter_gpt") == 0) RF_TRY(read_gpt2(json, where, true, &model, error));
  else if (type_named(type)) RF_TRY(read_type(json, where, type_named(type), &model, error));
  else if (strcmp(type, "gemma3") == 0 &&
           /* for a multimodal model, read the text model */
           json_is_object(json_object_get(json, "text_config")))
    RF_TRY(read_type(json_object_get(json, "text_config"), where, type_named("gemma3_text"), &model, error));
  else
    return RF_FAIL(error, RAFTER_FAILED,
                   "supported: gpt2, gpt_neox, llama, mistral, mixtral, qwen2, qwen3, gemma, gemma2, "
                   "gemma3_text, deepseek_v2 and deepseek_v3",
                   "%s: this version does not support the model type \"%.60s\" (field \"model_type\")", where,
                   type);
  snprintf(model.name, sizeof model.name, "%s", type);
  /* A model with quantised weights can be planned, but rafter cannot read such weights. */
  if (json_is_object(json_object_get(json, "quantization_config")))
    model.plan_only =
        "its weights have a format that this version cannot read (quantization_config of its config.json)";
  if (rf_model_check(&model, where, error) != RAFTER_OK) {
    if (error) error->status = RAFTER_FAILED; /* report a wrong file, not a wrong command line */
    return RAFTER_FAILED;
  }
  *result = model;
  return RAFTER_OK;
}

rf_status rf_model_config_parse(const char *text, size_t bytes, const char *where, rf_model *model,
                                rf_error *error) {
  json_t *json;
  if (bytes > CONFIG_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s is too large (expected at most %d bytes, got %zu)", where,
                   CONFIG_MAX, bytes);
  RF_TRY(rf_json_parse(text, bytes, where, &json, error));
  rf_status status = from_json(json, where, model, error);
  json_decref(json);
  return status;
}

rf_status rf_model_config_read(const char *path, rf_model *model, rf_error *error) {
  json_t *json;
  RF_TRY(rf_json_read(path, CONFIG_MAX, &json, error));
  rf_status status = from_json(json, path, model, error);
  json_decref(json);
  if (status != RAFTER_OK) return status;
  char real[PATH_MAX]; /* the model is named after its folder */
  if (realpath(path, real)) {
    const char *folder = basename(dirname(real));
    if (*folder && *folder != '/') rf_json_name(folder, model->name, sizeof model->name);
  }
  return RAFTER_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* True if the model's type has a config.json field for the rf_model member at `offset`. */
static bool has_field(const rf_model *model, size_t offset) {
  const config_type *type = type_of(model->family);
  for (int i = 0; type && i < type->field_count; ++i)
    if (type->field[i].offset == offset) return true;
  return false;
}

bool rf_model_is_hugging_face(const rf_model *model) {
  if ((model->attn_bias && !has_field(model, AT(attn_bias))) ||
      (model->mlp_bias && !has_field(model, AT(mlp_bias))))
    return false;
  if (model->qkv_bias && model->family != RF_FAMILY_QWEN2) return false;
  if (model->family != RF_FAMILY_GPT) return !model->head_bias && !model->mlp_first && !model->plan_only;
  return model->bias && !model->head_bias && !model->mlp_first && model->kv_heads == model->heads &&
         model->heads * model->head_dim == model->width;
}

static void write_fields(json_t *json, const config_field *field, int count, const rf_model *model) {
  for (; count > 0; --count, ++field) {
    const char *from = (const char *)model + field->offset;
    if (field->type == INT) json_object_set_new(json, field->key, json_integer(*(const int64_t *)from));
    else if (field->type == BOOL) json_object_set_new(json, field->key, json_boolean(*(const bool *)from));
    else json_object_set_new(json, field->key, rf_json_decimal(*(const float *)from));
  }
}

static void write_id(json_t *json, const char *key, int32_t id) {
  json_object_set_new(json, key, id < 0 ? json_null() : json_integer(id));
}

static void write_windows(json_t *json, const config_type *type, const rf_model *model) {
  if (type->windows == NO_WINDOW) return;
  json_object_set_new(json, "sliding_window", model->window > 0 ? json_integer(model->window) : json_null());
  if (type->windows == QWEN_SWITCH) {
    json_object_set_new(json, "use_sliding_window", json_boolean(model->window > 0));
    json_object_set_new(json, "max_window_layers", json_integer(model->window > 0 ? 0 : model->layers));
  }
  if (model->window == 0 || type->windows == ALL_WINDOWED) return;
  json_t *layers = json_array();
  for (int i = 0; i < model->layers; ++i)
    json_array_append_new(
        layers, json_string(rf_model_window(model, i) > 0 ? "sliding_attention" : "full_attention"));
  json_object_set_new(json, "layer_types", layers);
  if (type->windows == PATTERN && !model->window_listed)
    json_object_set_new(json, "sliding_window_pattern", json_integer(model->window_period));
}

static void write_type(json_t *json, const config_type *type, const rf_model *model) {
  json_object_set_new(json, "architectures", json_pack("[s]", type->class));
  json_object_set_new(json, "model_type", json_string(type->type));
  write_fields(json, SHARED, SHAPE_COUNT, model);
  write_fields(json, type->field, type->field_count, model);
  json_object_set_new(json, "tie_word_embeddings", json_boolean(model->tied));
  for (const activation *a = type->activation; a->text; ++a) {
    if (a->mlp != model->mlp) continue;
    json_object_set_new(json, "hidden_act", json_string(a->text));
    json_object_set_new(json, type->activation_also ? type->activation_also : type->activation_key,
                        json_string(a->text));
    break;
  }
  if (type->query_scalar > 0) { /* writes a whole number only if reading this number gives the same bits */
    float scale = rf_model_attn_scale(model);
    double scalar = 1 / ((double)scale * (double)scale), whole = round(scalar);
    bool exact = (float)(1 / sqrt(whole)) == scale;
    json_object_set_new(json, "query_pre_attn_scalar",
                        exact ? json_integer((json_int_t)whole) : json_real(scalar));
  }
  if (type->query_scalar > 0 && model->attn_softcap == 0)
    json_object_set_new(json, "attn_logit_softcapping", json_null());
  if (type->query_scalar > 0 && model->final_softcap == 0)
    json_object_set_new(json, "final_logit_softcapping", json_null());
  if (model->experts > 0) {
    json_object_set_new(json, "output_router_logits", json_boolean(model->router_logits));
    json_object_set_new(json, "router_aux_loss_coef", rf_json_decimal(model->router_aux));
  }
  if (model->kv_rank > 0) write_deepseek(json, model);
  rf_config_write_rope(json, type, model);
  write_windows(json, type, model);
}

static void write_gpt2(json_t *json, bool other_reads, const rf_model *model) {
  json_object_set_new(json, "architectures", json_pack("[s]", other_reads ? "GPT2LMHeadModel" : "RafterGPT"));
  json_object_set_new(json, "model_type", json_string(other_reads ? "gpt2" : "rafter_gpt"));
  write_fields(json, GPT2, COUNT(GPT2), model);
  json_object_set_new(json, "activation_function",
                      json_string(model->mlp == RF_MLP_GELU ? "gelu_new" : "gelu"));
  json_object_set_new(json, "attn_pdrop", json_real(0));
  json_object_set_new(json, "embd_pdrop", json_real(0));
  if (other_reads) return;
  write_fields(json, RAFTER_GPT, COUNT(RAFTER_GPT), model);
  json_object_set_new(json, "init", json_string(model->init));
}

rf_status rf_model_config_write(const rf_model *model, rf_dtype dtype, const char *path, rf_error *error) {
  const config_type *type = type_of(model->family);
  bool other_reads = rf_model_is_hugging_face(model);
  if (!other_reads && model->family != RF_FAMILY_GPT)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "%s cannot be written as config.json (%s)", model->name,
                   model->plan_only ? model->plan_only : "Hugging Face has no model of this kind");
  json_t *json = json_object();
  if (type) write_type(json, type, model);
  else write_gpt2(json, other_reads, model);
  write_id(json, "bos_token_id", model->bos_id);
  write_id(json, "eos_token_id", model->eos_id);
  json_object_set_new(json, "torch_dtype",
                      json_string(dtype == RF_BF16  ? "bfloat16"
                                  : dtype == RF_F16 ? "float16"
                                                    : "float32"));
  rf_status status = rf_json_write(path, json, 2, error);
  json_decref(json);
  return status;
}
