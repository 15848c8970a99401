/* test_config.c - sets every field of transformers' configuration classes of the supported types
 * (5.23.0) to an unusual value. Each field is read, or refused by name, or does not change the
 * model. None is ignored silently. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/model.h"

/* READ: gives another model. SAME: gives the same model. REFUSED: not loaded. PLANNED: planned but
 * not run. The error of the last two has the name of the field. */
typedef enum outcome { READ, SAME, REFUSED, PLANNED } outcome;

#define SHAPE \
  "\"hidden_size\":48,\"intermediate_size\":80,\"num_attention_heads\":4,\"num_hidden_layers\":4,\"vocab_" \
  "size\":176,"
#define ROPES "\"max_position_embeddings\":128,\"rope_theta\":10000.0"
#define LATENT_SIZES \
  "\"kv_lora_rank\":8,\"q_lora_rank\":12,\"qk_nope_head_dim\":8,\"qk_rope_head_dim\":4,\"v_head_dim\":6," \
  "\"num_experts_per_tok\":2,\"moe_intermediate_size\":16,"
#define LATENT LATENT_SIZES "\"n_routed_experts\":4,"
static const struct {
  const char *type, *config;
} BASES[] = {
    {"llama", "{\"model_type\":\"llama\"," SHAPE ROPES "}"},
    {"mistral",
     "{\"model_type\":\"mistral\",\"num_key_value_heads\":2,\"sliding_window\":16," SHAPE ROPES "}"},
    {"mixtral", "{\"model_type\":\"mixtral\",\"num_key_value_heads\":2," SHAPE ROPES "}"},
    {"qwen2", "{\"model_type\":\"qwen2\",\"num_key_value_heads\":2,\"sliding_window\":16," SHAPE ROPES "}"},
    {"qwen3", "{\"model_type\":\"qwen3\",\"num_key_value_heads\":2,\"sliding_window\":16," SHAPE ROPES "}"},
    {"gemma", "{\"model_type\":\"gemma\",\"num_key_value_heads\":1," SHAPE ROPES "}"},
    {"gemma2", "{\"model_type\":\"gemma2\",\"num_key_value_heads\":1,\"sliding_window\":16," SHAPE ROPES "}"},
    {"gemma3_text", "{\"model_type\":\"gemma3_text\",\"num_key_value_heads\":1,\"sliding_window\":16,\"max_"
                    "position_embeddings\":128," SHAPE "\"rope_theta\":1000000.0}"},
    {"gpt2", "{\"model_type\":\"gpt2\",\"n_embd\":40,\"n_head\":4,\"n_layer\":3,\"n_positions\":64,\"vocab_"
             "size\":136}"},
    {"gpt_neox", "{\"model_type\":\"gpt_neox\",\"max_position_embeddings\":128," SHAPE
                 "\"rotary_emb_base\":10000,\"rotary_pct\":0.5}"},
    {"deepseek_v2", "{\"model_type\":\"deepseek_v2\"," LATENT SHAPE ROPES "}"},
    {"deepseek_v3",
     "{\"model_type\":\"deepseek_v3\",\"n_group\":1,\"topk_group\":1,\"first_k_dense_replace\":0,"
     "\"routed_scaling_factor\":1.0," LATENT SHAPE ROPES "}"},
};
enum { BASE_COUNT = sizeof BASES / sizeof *BASES };
/* All families based on Llama; the Gemmas; the DeepSeeks. */
#define LLAMAS "llama mistral mixtral qwen2 qwen3 gemma gemma2 gemma3_text"
#define GEMMAS "gemma gemma2 gemma3_text"
#define LATENTS "deepseek_v2 deepseek_v3"
#define EVERY LLAMAS " gpt2 gpt_neox " LATENTS

static const struct {
  const char *types, *field, *value;
  outcome expected;
  const char *named; /* name in the error; NULL: the field itself */
} CASES[] = {
    /* shape */
    {LLAMAS " gpt_neox " LATENTS, "hidden_size", "96", READ, NULL},
    {LLAMAS " gpt_neox " LATENTS, "intermediate_size", "88", READ, NULL},
    {LLAMAS " gpt_neox " LATENTS, "num_hidden_layers", "6", READ, NULL},
    {LLAMAS " gpt_neox " LATENTS, "num_attention_heads", "2", READ, NULL},
    {"llama mistral mixtral qwen2 qwen3", "num_key_value_heads", "1", READ, NULL},
    {GEMMAS, "num_key_value_heads", "4", READ, NULL},
    {EVERY, "vocab_size", "200", READ, NULL},
    {LLAMAS " gpt_neox " LATENTS, "max_position_embeddings", "256", READ, NULL},
    {LLAMAS, "head_dim", "24", READ, NULL},
    {LATENTS, "head_dim", "4", SAME, NULL}, /* the class repeats qk_rope_head_dim in this field */
    {EVERY, "tie_word_embeddings", "true", READ, NULL},
    {EVERY, "tie_word_embeddings", "false", READ, NULL},
    {"gpt2", "n_embd", "80", READ, NULL},
    {"gpt2", "n_head", "2", READ, NULL},
    {"gpt2", "n_layer", "2", READ, NULL},
    {"gpt2", "n_positions", "32", READ, NULL},
    {"gpt2", "n_inner", "72", READ, NULL},
    {LATENTS, "kv_lora_rank", "10", READ, NULL},
    {LATENTS, "q_lora_rank", "null", READ, NULL},
    {LATENTS, "qk_nope_head_dim", "10", READ, NULL},
    {LATENTS, "qk_rope_head_dim", "8", READ, NULL},
    {LATENTS, "v_head_dim", "8", READ, NULL},
    /* norms, activations, biases */
    {LLAMAS " " LATENTS, "rms_norm_eps", "0.5", READ, NULL},
    {"gpt_neox", "layer_norm_eps", "0.5", READ, NULL},
    {"gpt2", "layer_norm_epsilon", "0.5", READ, NULL},
    {"llama mistral mixtral qwen2 qwen3 " LATENTS, "hidden_act", "\"gelu\"", REFUSED, NULL},
    {"llama mistral mixtral qwen2 qwen3 gpt_neox gemma " LATENTS, "hidden_act", "\"relu\"", REFUSED, NULL},
    {"gpt_neox gemma", "hidden_act", "\"quick_gelu\"", REFUSED, NULL},
    {"gpt_neox", "hidden_act", "\"gelu_new\"", READ, NULL},
    {"gpt_neox", "hidden_act", "\"gelu_python\"", SAME, NULL},
    {"gemma", "hidden_act", "\"gelu\"", SAME, NULL}, /* as the class interprets it */
    {"gemma", "hidden_activation", "\"silu\"", REFUSED, NULL},
    {"gemma2 gemma3_text", "hidden_activation", "\"gelu\"", REFUSED, NULL}, /* the erf form */
    {"gemma2 gemma3_text", "hidden_activation", "\"relu\"", REFUSED, NULL},
    {"gemma2 gemma3_text", "hidden_act", "\"relu\"", SAME, NULL}, /* not used */
    {"gpt2", "activation_function", "\"gelu\"", READ, NULL},
    {"gpt2", "activation_function", "\"gelu_pytorch_tanh\"", SAME, NULL},
    {"gpt2", "activation_function", "\"relu\"", REFUSED, NULL},
    {"gpt2", "activation_function", "\"quick_gelu\"", REFUSED, NULL},
    {"llama qwen3 " GEMMAS, "attention_bias", "true", READ, NULL},
    {LATENTS, "attention_bias", "true", REFUSED, NULL},
    {"gpt_neox", "attention_bias", "false", REFUSED, NULL},
    {"llama", "mlp_bias", "true", READ, NULL},
    {LATENTS, "mlp_bias", "true", REFUSED, NULL},
    /* attention */
    {"gpt2", "scale_attn_weights", "false", REFUSED, NULL},
    {"gpt2", "scale_attn_by_inverse_layer_idx", "true", REFUSED, NULL},
    {"gpt2", "add_cross_attention", "true", REFUSED, NULL},
    {"gpt2", "reorder_and_upcast_attn", "true", SAME, NULL}, /* how f16 avoids overflow */
    {"gpt_neox", "use_parallel_residual", "false", READ, NULL},
    {"gpt_neox", "is_decoder", "true", SAME, NULL},
    {GEMMAS, "use_bidirectional_attention", "true", REFUSED, NULL},
    {"gemma2 gemma3_text", "query_pre_attn_scalar", "24", READ, NULL},
    {"gemma2", "attn_logit_softcapping", "7.0", READ, NULL},
    /* The class has the field and does not use it. */
    {"gemma3_text", "attn_logit_softcapping", "7.0", REFUSED, NULL},
    {"gemma2 gemma3_text", "final_logit_softcapping", "7.0", READ, NULL},
    {"mistral mixtral gemma2 gemma3_text", "sliding_window", "8", READ, NULL},
    {"mistral gemma2 gemma3_text", "sliding_window", "null", READ, NULL},
    {"qwen2 qwen3", "sliding_window", "8", SAME, NULL},        /* without its switch */
    {"qwen2 qwen3", "use_sliding_window", "true", SAME, NULL}, /* the first 28 layers have no window */
    {"qwen2 qwen3", "max_window_layers", "0", SAME, NULL},
    {"gemma3_text", "sliding_window_pattern", "2", READ, NULL},
    {"gemma2 gemma3_text", "layer_types",
     "[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"]", READ, NULL},
    {"gemma2 gemma3_text", "layer_types",
     "[\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"]", READ, NULL},
    {"gemma2 gemma3_text qwen2", "layer_types", "[\"full_attention\"]", REFUSED, NULL},
    {"gemma2 gemma3_text qwen2", "layer_types",
     "[\"chunked_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]", REFUSED, NULL},
    {"mistral", "layer_types",
     "[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]", REFUSED, NULL},
    {"qwen2 qwen3", "layer_types",
     "[\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]", REFUSED, NULL},
    {"qwen2 qwen3", "layer_types",
     "[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]", SAME, NULL},
    /* rotary positions, in both spellings */
    {LLAMAS " " LATENTS, "rope_theta", "500000.0", READ, NULL},
    {"gpt_neox", "rotary_emb_base", "500000.0", READ, NULL},
    {"gpt_neox", "rotary_pct", "1.0", READ, NULL},
    {"gemma3_text", "rope_local_base_freq", "500.0", READ, NULL},
    {LLAMAS " " LATENTS, "partial_rotary_factor", "0.5", REFUSED, NULL},
    {LLAMAS, "rope_scaling", "{\"rope_type\":\"linear\",\"factor\":4.0}", READ, NULL},
    {LLAMAS, "rope_scaling", "{\"type\":\"linear\",\"factor\":4.0}", READ, NULL},
    {LLAMAS " " LATENTS, "rope_scaling", "{\"rope_type\":\"default\"}", SAME, NULL},
    {LLAMAS " " LATENTS, "rope_scaling", "{\"rope_type\":\"dynamic\",\"factor\":4.0}", READ, NULL},
    {"llama", "rope_scaling", "{\"rope_type\":\"dynamic\"}", REFUSED, "factor"},
    {LLAMAS, "rope_scaling", "{\"type\":\"mrope\",\"mrope_section\":[1,1,1]}", PLANNED, "rope_type"},
    {LLAMAS, "rope_scaling", "{\"factor\":4.0}", REFUSED, "rope_type"},
    {LLAMAS, "rope_scaling", "{\"rope_type\":\"longrope\",\"short_factor\":[1,2,3],\"long_factor\":[2,3,4]}",
     PLANNED, "long_factor"},
    {"llama mistral mixtral qwen2 qwen3 gemma gemma2", "rope_scaling",
     "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32}", READ, NULL},
    {"llama", "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4.0,\"truncate\":false}", PLANNED,
     "rope_type"},
    /* transformers takes null for false, and multiplies by a factor of 0. */
    {"llama", "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4.0,\"truncate\":null}", PLANNED,
     "rope_type"},
    {"llama", "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4.0,\"truncate\":true}", READ, NULL},
    {"llama", "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4.0,\"attention_factor\":0}", REFUSED,
     "attention_factor"},
    {"gemma3_text gpt_neox", "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4.0}", PLANNED, "rope_type"},
    {LATENTS, "rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4.0,\"mscale\":1.0,\"mscale_all_dim\":0.5}",
     PLANNED, "mscale"},
    {"llama", "rope_scaling", "{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":5.0}", REFUSED,
     "rope_theta"},
    {"llama", "rope_scaling", "\"linear\"", REFUSED, NULL},
    {"llama mistral mixtral qwen2 qwen3 gemma gemma2 " LATENTS, "rope_parameters", "{\"rope_theta\":10000.0}",
     SAME, NULL},
    {"llama mistral mixtral qwen2 qwen3 gemma gemma2 " LATENTS, "rope_parameters",
     "{\"rope_type\":\"default\",\"rope_theta\":5000.0}", READ, NULL},
    {"llama mistral mixtral qwen2 qwen3 gemma gemma2", "rope_parameters",
     "{\"rope_type\":\"proportional\",\"rope_theta\":5000.0}", PLANNED, "rope_type"},
    {"llama qwen2 gemma2", "rope_parameters", "{\"rope_theta\":10000.0,\"partial_rotary_factor\":0.5}",
     REFUSED, "partial_rotary_factor"},
    {"gpt_neox", "rope_parameters",
     "{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"partial_rotary_factor\":1.0}", READ, NULL},
    {"gpt_neox", "rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":10000.0}", SAME, NULL},
    {"gemma2 qwen2", "rope_parameters",
     "{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":5000.0}}", REFUSED, "full_attention"},
    {"gemma3_text", "rope_parameters",
     "{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,\"rope_theta\":1000000.0}}", READ, NULL},
    {"gemma3_text", "rope_parameters",
     "{\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":7000.0}}", READ, NULL},
    {"gemma3_text", "rope_parameters", "{\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":8.0}}",
     REFUSED, "rope_type"},
    {"gemma3_text", "rope_parameters", "{\"sliding_attention\":{\"rope_type\":\"dynamic\",\"factor\":8.0}}",
     REFUSED, "rope_type"},
    {"gemma3_text", "rope_parameters", "{\"rope_type\":\"linear\",\"factor\":8.0}", REFUSED,
     "full_attention"},
    /* experts */
    {"mixtral", "num_local_experts", "4", READ, NULL},
    {"mixtral", "num_experts_per_tok", "1", READ, NULL},
    {"mixtral", "router_jitter_noise", "0.1", READ, NULL},
    {"mixtral", "router_aux_loss_coef", "0.5", READ, NULL},
    {"mixtral", "output_router_logits", "true", READ, NULL},
    {LATENTS, "n_routed_experts", "8", READ, NULL},
    {LATENTS, "num_experts_per_tok", "1", READ, NULL},
    {LATENTS, "n_shared_experts", "2", READ, NULL},
    {LATENTS, "moe_intermediate_size", "24", READ, NULL},
    {LATENTS, "first_k_dense_replace", "2", READ, NULL},
    {LATENTS, "routed_scaling_factor", "2.5", READ, NULL},
    {"deepseek_v2", "topk_method", "\"noaux_tc\"", REFUSED, NULL},
    {"deepseek_v2", "norm_topk_prob", "true", REFUSED, NULL},
    {"deepseek_v3", "norm_topk_prob", "false", READ, NULL},
    {"deepseek_v3", "n_group", "2", READ, NULL},
    {"deepseek_v3", "rope_interleave", "false", REFUSED, NULL},
    {LATENTS, "moe_layer_freq", "2", REFUSED, NULL},
    {"deepseek_v3", "num_mtp_layers", "1", SAME, NULL}, /* layers that predict further tokens */
    /* special tokens */
    {EVERY, "bos_token_id", "5", READ, NULL},
    {EVERY, "eos_token_id", "[6, 7]", READ, NULL},
    {EVERY, "pad_token_id", "3", SAME, NULL},
    /* packing of weights */
    {EVERY, "quantization_config", "{\"quant_method\":\"fp8\"}", PLANNED, NULL},
    /* training only, or implementation choices of the classes */
    {"gpt2", "resid_pdrop", "0.3", READ, NULL},
    {"gpt_neox", "hidden_dropout", "0.3", READ, NULL},
    {LLAMAS " gpt_neox " LATENTS, "attention_dropout", "0.1", SAME, NULL},
    {"gpt2", "attn_pdrop", "0.3", SAME, NULL},
    {"gpt2", "embd_pdrop", "0.3", SAME, NULL},
    {EVERY, "initializer_range", "0.1", SAME, NULL},
    {EVERY, "use_cache", "false", SAME, NULL},
    {"llama " LATENTS, "pretraining_tp", "2", SAME, NULL},
    {"gpt_neox", "classifier_dropout", "0.5", SAME, NULL},
    {"gpt2", "summary_type", "\"mean\"", SAME, NULL},
    {EVERY, "torch_dtype", "\"float16\"", SAME, NULL},
    {EVERY, "dtype", "\"bfloat16\"", SAME, NULL},
};

static bool among(const char *types, const char *type) {
  size_t length = strlen(type);
  for (const char *at = types; (at = strstr(at, type)); ++at)
    if ((at == types || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
  return false;
}

static rf_status read_with(const char *config, const char *field, const char *value, rf_model *model,
                           rf_error *error) {
  json_error_t bad;
  json_t *json = json_loads(config, 0, &bad), *set = json_loads(value, JSON_DECODE_ANY, &bad);
  assert_non_null(json);
  assert_non_null(set);
  json_object_set_new(json, field, set);
  char *text = json_dumps(json, 0);
  memset(model, 0, sizeof *model);
  rf_status status = rf_model_config_parse(text, strlen(text), "c", model, error);
  free(text);
  json_decref(json);
  return status;
}

/* Whether two models are equal except for plan_only. */
static bool alike(const rf_model *a, const rf_model *b) {
  rf_model x = *a, y = *b;
  x.plan_only = y.plan_only = NULL;
  return memcmp(&x, &y, sizeof x) == 0;
}

static void no_field_is_passed_over(void **state) {
  (void)state;
  for (size_t c = 0; c < sizeof CASES / sizeof *CASES; ++c) {
    int met = 0, changed = 0;
    for (int b = 0; b < BASE_COUNT; ++b) {
      if (!among(CASES[c].types, BASES[b].type)) continue;
      const char *where = BASES[b].type, *field = CASES[c].field, *value = CASES[c].value,
                 *named = CASES[c].named ? CASES[c].named : field;
      rf_model plain, model;
      rf_error error = {0};
      memset(&plain, 0, sizeof plain);
      if (rf_model_config_parse(BASES[b].config, strlen(BASES[b].config), "c", &plain, &error) != RAFTER_OK)
        fail_msg("%s: %s", where, error.message);
      assert_null(plain.plan_only);
      rf_status status = read_with(BASES[b].config, field, value, &model, &error);
      met++;
      if (CASES[c].expected == REFUSED) {
        if (status != RAFTER_FAILED || !strstr(error.message, named))
          fail_msg("%s, %s %s: %d, '%s'", where, field, value, status, error.message);
        continue;
      }
      if (status != RAFTER_OK) fail_msg("%s, %s %s: %s", where, field, value, error.message);
      if (CASES[c].expected == PLANNED) {
        if (!model.plan_only || !strstr(model.plan_only, named))
          fail_msg("%s, %s %s is run", where, field, value);
        if (rf_model_require_runnable(&model, &error) == RAFTER_OK || !strstr(error.message, named))
          fail_msg("%s: %s", where, error.message);
        continue;
      }
      if (model.plan_only) fail_msg("%s, %s %s: %s", where, field, value, model.plan_only);
      if (CASES[c].expected == SAME && !alike(&plain, &model))
        fail_msg("%s, %s %s changes the model", where, field, value);
      changed += !alike(&plain, &model);
      /* One of true and false is the default of the class. */
      if (CASES[c].expected == READ && strcmp(field, "tie_word_embeddings") && alike(&plain, &model))
        fail_msg("%s, %s %s is passed over", where, field, value);
    }
    if (!met || (CASES[c].expected == READ && !changed))
      fail_msg("%s %s: no type was met", CASES[c].field, CASES[c].value);
  }
}

/* Values that the class uses if Google's files do not have them: Gemma 3 4B and 27B, whose config
 * files have only these fields. */
static void larger_gemma3_lean_on_the_class(void **state) {
  (void)state;
  static const char FOUR[] = "{\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],\"text_config\":{\"hidden_"
                             "size\":2560,\"intermediate_size\":10240,"
                             "\"model_type\":\"gemma3_text\",\"num_hidden_layers\":34,\"rope_scaling\":{"
                             "\"factor\":8.0,\"rope_type\":\"linear\"},"
                             "\"sliding_window\":1024},\"vision_config\":{\"hidden_size\":1152}}";
  static const char MAX[] = "{\"model_type\":\"gemma3\",\"text_config\":{\"head_dim\":128,\"hidden_size\":"
                            "5376,\"intermediate_size\":21504,"
                            "\"model_type\":\"gemma3_text\",\"num_attention_heads\":32,\"num_hidden_"
                            "layers\":62,\"num_key_value_heads\":16,"
                            "\"query_pre_attn_scalar\":168,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":"
                            "\"linear\"},\"sliding_window\":1024}}";
  static const struct { const char *config, *preset; } pairs[] = {{FOUR, "gemma3-4b"}, {MAX, "gemma3-27b"}};
  for (int i = 0; i < 2; ++i) {
    rf_model m, p;
    rf_error error = {0};
    if (rf_model_config_parse(pairs[i].config, strlen(pairs[i].config), "c", &m, &error) != RAFTER_OK)
      fail_msg("%s", error.message);
    assert_int_equal(rf_model_resolve(pairs[i].preset, &p, NULL, NULL), RAFTER_OK);
    assert_true(m.layers == p.layers && m.width == p.width && m.heads == p.heads &&
                m.kv_heads == p.kv_heads && m.head_dim == p.head_dim);
    assert_true(m.ff == p.ff && m.vocab == p.vocab && m.max_seq == p.max_seq && m.window == p.window &&
                m.window_period == p.window_period);
    assert_true(m.rope.scaling == p.rope.scaling && m.rope.factor == p.rope.factor &&
                m.rope.theta == p.rope.theta && m.local_theta == p.local_theta);
    assert_true(fabsf(m.attn_scale / p.attn_scale - 1) < 1e-6f && m.tied && m.bos_id == 2 && m.eos_id == 1 &&
                !m.plan_only);
  }
}

/* YaRN with ordinary attention multiplies cosines and sines by a number, so scores by its square.
 * The config is written and read back. */
static void yarn_weighs_the_scores(void **state) {
  (void)state;
  static const struct {
    const char *scaling;
    double weight;
  } cases[] = {
      {"{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32}",
       0.1 * 1.3862943611198906 + 1},
      {"{\"rope_type\":\"yarn\",\"factor\":4.0,\"attention_factor\":1.5}", 1.5},
      {"{\"rope_type\":\"yarn\",\"factor\":4.0,\"mscale\":2.0,\"mscale_all_dim\":1.0}",
       1.2772588722239781 / 1.1386294361119891},
      {"{\"type\":\"yarn\",\"factor\":0.5}", 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
    for (int b = 0; b < BASE_COUNT; b += 6) { /* a llama, and a gemma2 with its own attention scalar */
      rf_model m, back;
      rf_error error = {0};
      if (read_with(BASES[b].config, "rope_scaling", cases[i].scaling, &m, &error) != RAFTER_OK)
        fail_msg("%s", error.message);
      double plain = b == 6 ? 1 / 16.0 : 1 / sqrt((double)m.head_dim);
      if (fabs((double)m.attn_scale / (plain * cases[i].weight * cases[i].weight) - 1) > 1e-6)
        fail_msg("%s: %g", cases[i].scaling, (double)m.attn_scale);
      assert_true(m.rope.scaling == RF_ROPE_YARN && m.rope.original == (i == 0 ? 32 : 128));
      char folder[] = "/tmp/rafter-test-XXXXXX", path[64];
      assert_non_null(mkdtemp(folder));
      snprintf(path, sizeof path, "%s/config.json", folder);
      assert_int_equal(rf_model_config_write(&m, RF_F32, path, NULL), RAFTER_OK);
      assert_int_equal(rf_model_config_read(path, &back, &error), RAFTER_OK);
      assert_true(memcmp(&back.rope, &m.rope, sizeof m.rope) == 0 &&
                  fabsf(back.attn_scale / m.attn_scale - 1) < 1e-6f);
      remove(path);
      remove(folder);
    }
}

/* The scaling has a field of this name, and some config files have another one outside of it. */
static void the_original_positions_agree(void **state) {
  (void)state;
  static const struct {
    const char *scaling, *outside;
    bool accepted;
  } cases[] = {
      {"{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32}", "32", true},
      {"{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32}", "16", false},
      {"{\"rope_type\":\"yarn\",\"factor\":4.0}", "32", false},
      {"{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
       "\"original_max_position_embeddings\":32}",
       "64", false},
      {"{\"rope_type\":\"linear\",\"factor\":4.0}", "32", true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    rf_model m;
    rf_error error = {0};
    char config[600];
    snprintf(config, sizeof config, "{\"model_type\":\"llama\"," SHAPE ROPES ",\"rope_scaling\":%s}",
             cases[i].scaling);
    rf_status status = read_with(config, "original_max_position_embeddings", cases[i].outside, &m, &error);
    if ((status == RAFTER_OK) != cases[i].accepted) fail_msg("%s: %s", cases[i].scaling, error.message);
    if (!cases[i].accepted && !strstr(error.message, "original_max_position_embeddings"))
      fail_msg("%s", error.message);
  }
}

/* The attention scale of a shape without a scale of its own, for every width of a head: its
 * config.json gives the same bits. */
static void the_scale_of_a_shape_is_written(void **state) {
  (void)state;
  char folder[] = "/tmp/rafter-test-XXXXXX", path[64], spec[96];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/config.json", folder);
  for (int head_dim = 2; head_dim <= 320; head_dim += 2) {
    rf_model m, back;
    rf_error error = {0};
    snprintf(spec, sizeof spec, "gemma3:layers=2,width=64,heads=2,head_dim=%d,ff=64,vocab=50,seq=16",
             head_dim);
    if (rf_model_resolve(spec, &m, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
    assert_int_equal(rf_model_config_write(&m, RF_F32, path, NULL), RAFTER_OK);
    if (rf_model_config_read(path, &back, &error) != RAFTER_OK) fail_msg("%s", error.message);
    if (rf_model_attn_scale(&back) != rf_model_attn_scale(&m))
      fail_msg("%s: %.9g became %.9g", spec, (double)rf_model_attn_scale(&m),
               (double)rf_model_attn_scale(&back));
  }
  remove(path);
  remove(folder);
}

/* Without these fields, DeepSeek-V3 has the values of its class, and V2 has others. */
static void latent_models_have_the_defaults_of_their_class(void **state) {
  (void)state;
  static const char *const configs[] = {
      "{\"model_type\":\"deepseek_v2\",\"n_routed_experts\":16," LATENT_SIZES SHAPE ROPES "}",
      "{\"model_type\":\"deepseek_v3\",\"n_routed_experts\":16," LATENT_SIZES SHAPE ROPES "}"};
  for (int third = 0; third < 2; ++third) {
    rf_model model;
    rf_error error = {0};
    if (rf_model_config_parse(configs[third], strlen(configs[third]), "c", &model, &error) != RAFTER_OK)
      fail_msg("%s", error.message);
    assert_int_equal(model.first_dense, third ? 3 : 0);
    assert_true(model.router_scale == (third ? 2.5f : 1.0f));
    assert_int_equal(model.router_groups, third ? 8 : 0);
    assert_int_equal(model.router_groups_used, third ? 4 : 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_scale_of_a_shape_is_written),
      cmocka_unit_test(no_field_is_passed_over),
      cmocka_unit_test(larger_gemma3_lean_on_the_class),
      cmocka_unit_test(yarn_weighs_the_scores),
      cmocka_unit_test(the_original_positions_agree),
      cmocka_unit_test(latent_models_have_the_defaults_of_their_class),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
