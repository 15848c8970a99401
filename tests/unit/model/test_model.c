/* test_model.c - tests presets, inline shapes, the parameter table and its initial values, and
 * config.json. */
#include "base/file.h"
#include "model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static rf_params params_of(const char *spec, rf_model *model, rf_pool *pool) {
  rf_error error = {0};
  if (rf_model_resolve(spec, model, NULL, &error) != RAFTER_OK) fail_msg("%s: %s", spec, error.message);
  return rf_model_params(model, pool);
}

/* Published counts. If no exact count is published, the expected value is the formula of the
 * model's report. */
static void presets_have_their_published_size(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int64_t parameters;
  } row[] = {
      {"uva", 155877376},
      {"gpt2", 124439808},
      {"gpt2-medium", 354823168},
      {"gpt2-large", 774030080},
      {"gpt2-xl", 1557611200},
      {"llama2-7b", 6738415616},
      {"llama2-13b", 13015864320},
      {"llama2-70b", 68976648192},
      {"llama3-8b", 8030261248},
      {"llama3-70b", 70553706496},
      {"llama3-405b", 405853388800},
      {"llama3.1-8b", 8030261248},
      {"llama3.1-70b", 70553706496},
      {"llama3.1-405b", 405853388800},
      {"llama3.2-3b", 3212749824},
      {"llama3.2-1b", 1235814400},
      {"mistral-7b", 7241732096},
      {"mixtral-8x7b", 46702792704},
      {"mixtral-8x22b", 140620634112},
      {"qwen2.5-0.5b", 494032768},
      {"qwen2.5-1.5b", 1543714304},
      {"qwen2.5-3b", 3085938688},
      {"qwen2.5-7b", 7615616512},
      {"qwen2.5-14b", 14770033664},
      {"qwen2.5-32b", 32763876352},
      {"qwen2.5-72b", 72706203648},
      {"qwen3-0.6b", 596049920},
      {"qwen3-1.7b", 1720574976},
      {"qwen3-4b", 4022468096},
      {"qwen3-8b", 8190735360},
      {"qwen3-14b", 14768307200},
      {"qwen3-32b", 32762123264},
      {"gemma-2b", 2506172416},
      {"gemma-7b", 8537680896},
      {"gemma2-2b", 2614341888},
      {"gemma2-9b", 9241705984},
      {"gemma2-27b", 27227128320},
      {"gemma3-270m", 268098176},
      {"gemma3-1b", 999885952},
      {"gemma3-4b", 3880263168},
      {"gemma3-12b", 11766034176},
      {"gemma3-27b", 27009346304},
      {"pythia-70m", 70426624},
      {"pythia-160m", 162322944},
      {"deepseek2-16b", 15706484224},
      {"deepseek-v3", 671026419200}, /* with the 58 x 256 values that are added to its routers' scores */
      {"palm-540b", 540356474880},   /* published: 540.35e9 */
  };
  int rows = (int)(sizeof row / sizeof row[0]);
  for (int i = 0; i < rows; ++i) {
    rf_pool *pool = rf_pool_new();
    rf_model model;
    rf_params params = params_of(row[i].name, &model, pool);
    assert_int_equal(params.total, row[i].parameters);
    int64_t each = model.expert_ff ? model.expert_ff : model.ff,
            mixed = model.experts ? model.layers - model.first_dense : 0;
    int64_t idle = mixed * (model.experts - model.experts_used) * 3 * model.width * each;
    assert_int_equal(params.active, row[i].parameters - idle);
    assert_string_equal(model.name, row[i].name);
    assert_string_equal(rf_model_preset(i), row[i].name);
    int64_t d = model.width, f = model.ff, q = model.heads * model.head_dim,
            kv = model.kv_heads * model.head_dim; /* the formulas, written out again */
    int64_t plain = (rf_mlp_gated(model.mlp) ? 3 : 2) * d * f,
            expert = (model.experts_used + model.experts_shared) * 3 * d * each + d * model.experts;
    int64_t mlps = mixed * expert + (model.layers - mixed) * plain, attention = d * (q + 2 * kv) + q * d;
    if (model.kv_rank) {
      int64_t r = model.kv_rank, value = model.heads * model.value_dim, transposed = model.rope_dim;
      int64_t queries = model.q_rank ? d * model.q_rank + model.q_rank * q : d * q;
      attention = queries + d * (r + transposed) + r * (q - model.heads * transposed + value) + value * d;
    }
    int64_t matmul = model.layers * attention + mlps + d * model.vocab;
    assert_int_equal(params.matmul, matmul);
    assert_int_equal(params.embedding,
                     model.vocab * d + (model.position == RF_POSITION_LEARNED ? model.max_seq * d : 0));
    int64_t total = 0, lora = 0;
    for (int j = 0; j < params.count; ++j) {
      const rf_param *p = &params.at[j];
      assert_int_equal(p->count, p->shape[0] * p->shape[1]);
      assert_int_equal(p->decays, p->rank == 2);
      const char *kind = rf_param_row_name(p->row);
      assert_true(strlen(p->name) >= strlen(kind) &&
                  strcmp(p->name + strlen(p->name) - strlen(kind), kind) == 0);
      total += p->count;
      if (p->lora) lora += p->count;
    }
    assert_int_equal(total, params.total);
    if (!model.experts) assert_int_equal(lora, matmul - d * model.vocab);
    else
      assert_int_equal(lora, model.layers * attention +
                                 (model.layers - mixed) * plain); /* without experts, shared or chosen */
    rf_pool_free(pool);
  }
  rf_model model; /* published: 12.9 and 39 billion active parameters per token */
  rf_pool *pool = rf_pool_new();
  assert_int_equal(params_of("mixtral-8x7b", &model, pool).active, 12879925248);
  assert_int_equal(params_of("mixtral-8x22b", &model, pool).active / 1000000000, 39);
  rf_pool_free(pool);
  assert_null(rf_model_preset(rows));
  assert_null(rf_model_preset(-1));
}

static void parameters_stand_in_the_models_order(void **state) {
  (void)state;
  static const char *const uva[] = {
      "embed/token/weight",      "embed/position/weight",  "block.0/mlp/norm/gain",   "block.0/mlp/norm/bias",
      "block.0/mlp/up/weight",   "block.0/mlp/up/bias",    "block.0/mlp/down/weight", "block.0/mlp/down/bias",
      "block.0/attn/norm/gain",  "block.0/attn/norm/bias", "block.0/attn/qkv/weight", "block.0/attn/qkv/bias",
      "block.0/attn/out/weight", "block.0/attn/out/bias",  "block.1/mlp/norm/gain"};
  static const char *const llama[] = {
      "embed/token/weight",      "block.0/attn/norm/gain", "block.0/attn/qkv/weight",
      "block.0/attn/out/weight", "block.0/mlp/norm/gain",  "block.0/mlp/gate_up/weight",
      "block.0/mlp/down/weight", "final/norm/gain",        "head/weight"};
  rf_pool *pool = rf_pool_new();
  rf_model model;
  rf_params params = params_of("uva", &model, pool);
  for (size_t i = 0; i < sizeof uva / sizeof uva[0]; ++i) assert_string_equal(params.at[i].name, uva[i]);
  assert_string_equal(params.at[params.count - 1].name, "head/bias");
  params = params_of("llama:layers=1,width=64,heads=4,kv_heads=2,ff=96,vocab=100", &model, pool);
  assert_int_equal(params.count, 9);
  for (int i = 0; i < 9; ++i) assert_string_equal(params.at[i].name, llama[i]);
  assert_true(params.at[2].shape[0] == 64 && params.at[2].shape[1] == (4 + 2 * 2) * 16);
  assert_true(params.at[5].shape[1] == 192 && params.at[6].shape[0] == 96 && params.at[8].shape[1] == 100);
  rf_pool_free(pool);
}

static void inline_shapes_fill_in_the_rest(void **state) {
  (void)state;
  rf_model m;
  assert_int_equal(
      rf_model_resolve("gpt:layers=4,width=512,heads=8,ff=2048,vocab=8192,seq=512,tied=0", &m, NULL, NULL),
      RAFTER_OK);
  assert_true(m.layers == 4 && m.width == 512 && m.heads == 8 && m.kv_heads == 8 && m.head_dim == 64 &&
              m.ff == 2048 && m.vocab == 8192);
  assert_true(m.max_seq == 512 && !m.tied && m.bias && m.eos_id == -1 && strcmp(m.init, "gpt2") == 0);
  assert_int_equal(rf_model_resolve("gpt:width=256,layers=2", &m, NULL, NULL), RAFTER_OK);
  assert_true(m.heads == 4 && m.head_dim == 64 && m.ff == 1024 && m.tied && m.vocab == 50257);
  assert_int_equal(
      rf_model_resolve("gpt:width=48,heads=3,head-dim=32,dropout=0.25,mlp_first=1,head_bias=true,init=flax",
                       &m, NULL, NULL),
      RAFTER_OK);
  assert_true(m.head_dim == 32 && m.dropout == 0.25f && m.mlp_first && m.head_bias &&
              strcmp(m.init, "flax") == 0);
  /* A preset can be the base of an inline shape. */
  assert_int_equal(rf_model_resolve("uva:vocab=257,seq=128", &m, NULL, NULL), RAFTER_OK);
  assert_true(m.vocab == 257 && m.max_seq == 128 && m.width == 1024 && m.head_bias &&
              strcmp(m.name, "uva:vocab=257,seq=128") == 0);
  assert_int_equal(rf_model_resolve("llama:width=4096,heads=32", &m, NULL, NULL), RAFTER_OK);
  assert_true(m.ff == 11008 && m.kv_heads == 32 && !m.tied);
  static const struct {
    const char *spec, *message, *hint;
  } bad[] = {
      {"gpt:layrs=4", "did you mean 'layers'", "head_dim"},
      {"gpt:layers", "key=value", "layers"},
      {"gpt:layers=", "key=value", "layers"},
      {"gpt:layers=0", "layers", ""},
      {"gpt:layers=-3", "layers", ""},
      {"gpt:layers=4.5", "layers", ""},
      {"gpt:layers=99999999999999999999", "layers", ""},
      {"gpt:layers=1000000", "layers", ""},
      {"gpt:layers=4,layers=5", "twice", ""},
      {"gpt:width=100", "head_dim", "heads"},
      {"gpt:width=100,heads=3", "heads", ""},
      {"gpt:heads=4,kv_heads=3", "evenly", ""},
      {"gpt:tied=maybe", "tied", ""},
      {"gpt:dropout=1", "dropout", ""},
      {"gpt:dropout=nan", "dropout", ""},
      {"gpt:rope_theta=1e4", "unknown key", "layers"},
      {"llama:bias=1", "unknown key", ""},
      {"llama:width=9,heads=3,head_dim=3", "even count", ""},
      {"gpt:init=xavier", "init", ""},
      {"gpt:bos=60000", "", NULL},
      {"gpt3", "gpt2", "presets"},
      {"gpt-2", "did you mean 'gpt2'", "gpt2-medium"},
      {"lama3-8b", "'llama3-8b'", ""},
      {"falcon-7b", "does not support", "GPT-2"},
      {"deepseek:first_dense=9,layers=8", "first_dense", ""},
      {"deepseek:rope_dim=192", "latent attention", ""},
      {"deepseek:rope_dim=63", "even count", ""},
      {"deepseek:kv_rank=0", "kv_rank", ""},
      {"deepseek:experts_shared=-1", "from 0", ""},
      {"mixtral:kv_rank=4", "unknown key", ""},
      {"mixtral:experts=4,experts_used=5", "experts", ""},
      {"mixtral:layers=1024,width=262144,heads=256,head_dim=1024,kv_heads=256,ff=1048576,experts=1024,"
       "experts_used=64,vocab=256,seq=64",
       "too many parameters", "fewer"},
      {"llama:experts=4", "unknown key", ""},
      {"", "no model", "preset"},
      {"no/such/folder", "no/such/folder", "config.json"},
      {"xqzwvy", "unknown model", "presets"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    rf_error error = {0};
    rf_status status = rf_model_resolve(bad[i].spec, &m, NULL, &error);
    if (!bad[i].hint) { /* an id outside the vocabulary means that there is none */
      assert_int_equal(status, RAFTER_OK);
      assert_int_equal(m.bos_id, -1);
      continue;
    }
    if (status != RAFTER_INVALID || !strstr(error.message, bad[i].message) ||
        !strstr(error.hint, bad[i].hint))
      fail_msg("%s: status %d, '%s', hint '%s'", bad[i].spec, status, error.message, error.hint);
  }
}

static void first_values_do_not_depend_on_chunks(void **state) {
  (void)state;
  static const char *const specs[] = {"uva:layers=1", "gpt:layers=8,width=64,vocab=1000,seq=64,tied=0",
                                      "llama:layers=1,width=64,heads=1,ff=128,vocab=512"};
  for (int s = 0; s < 3; ++s) {
    rf_pool *pool = rf_pool_new();
    rf_model model;
    rf_params params = params_of(specs[s], &model, pool);
    for (int j = 0; j < params.count; ++j) {
      const rf_param *p = &params.at[j];
      int64_t n = p->count < 100003 ? p->count : 100003;
      float *whole = malloc((size_t)n * 4), *parts = malloc((size_t)n * 4);
      rf_param_init(p, 5, 0, n, whole);
      for (int64_t done = 0, size = 1; done < n; done += size, size = size % 37 + 1) {
        if (size > n - done) size = n - done;
        rf_param_init(p, 5, done, size, parts + done);
      }
      assert_memory_equal(whole, parts, (size_t)n * 4);
      double sum = 0, square = 0, most = 0;
      for (int64_t i = 0; i < n; ++i) {
        sum += whole[i];
        square += (double)whole[i] * whole[i];
        most = fmax(most, fabs(whole[i]));
      }
      bool gain = strstr(p->name, "gain") != NULL, bias = strstr(p->name, "bias") != NULL;
      double std = gain || bias ? 0 : 0.02;
      if (s == 0 && !gain && !bias)
        std = strstr(p->name, "position") ? 0.02
              : strstr(p->name, "embed")  ? 1.0 / 32
                                          : 1 / sqrt((double)p->shape[0]);
      /* sqrt(2 * 8) */
      if (s == 1 && (strstr(p->name, "attn/out/weight") || strstr(p->name, "mlp/down/weight")))
        std = 0.02 / 4;
      if (std == 0) {
        assert_true(square == (gain ? n : 0) && sum == square);
      } else {
        assert_true(fabs(sum / n) < 5 * std / sqrt((double)n));
        assert_true(fabs(square / n / (std * std) - 1) < 5 * sqrt(2.0 / n));
        bool cut = s == 0 && !strstr(p->name, "embed");
        assert_true(cut ? most <= 2 * std / 0.8796 && most > 1.9 * std / 0.8796 : most > 2.5 * std);
        rf_param_init(p, 6, 0, n, parts); /* another seed gives other values */
        int64_t same = 0;
        for (int64_t i = 0; i < n; ++i) same += whole[i] == parts[i];
        assert_true(same < n / 100);
      }
      free(whole);
      free(parts);
    }
    rf_pool_free(pool);
  }
}

static const char GPT2_CONFIG[] =
    "{\"model_type\":\"gpt2\",\"n_embd\":40,\"n_head\":4,\"n_layer\":3,\"n_positions\":64,\"vocab_size\":136,"
    "\"layer_norm_epsilon\":1e-05,"
    "\"activation_function\":\"gelu_new\",\"bos_token_id\":0,\"eos_token_id\":1,\"resid_pdrop\":0.0}";
static const char LLAMA_CONFIG[] =
    "{\"model_type\":\"llama\",\"hidden_size\":48,\"intermediate_size\":80,\"num_attention_heads\":4,\"num_"
    "key_value_heads\":2,\"num_hidden_layers\":"
    "3,"
    "\"max_position_embeddings\":128,\"rms_norm_eps\":1e-6,\"vocab_size\":176,\"hidden_act\":\"silu\",\"eos_"
    "token_id\":[7,8]}";

static const char QWEN_CONFIG[] = "{\"model_type\":\"qwen2\",\"hidden_size\":48,\"intermediate_size\":80,"
                                  "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"num_hidden_layers\":"
                                  "3,"
                                  "\"max_position_embeddings\":128,\"vocab_size\":176,\"hidden_act\":"
                                  "\"silu\",\"use_sliding_window\":true,\"sliding_window\":8,"
                                  "\"max_window_layers\":500000}";

static void configs_are_read(void **state) {
  (void)state;
  rf_model m;
  assert_int_equal(rf_model_config_parse(GPT2_CONFIG, strlen(GPT2_CONFIG), "c", &m, NULL), RAFTER_OK);
  assert_true(m.layers == 3 && m.width == 40 && m.heads == 4 && m.head_dim == 10 && m.ff == 160 &&
              m.vocab == 136 && m.max_seq == 64);
  assert_true(m.tied && m.bias && m.bos_id == 0 && m.eos_id == 1 && m.norm_eps == 1e-5f && m.dropout == 0 &&
              !m.plan_only);
  assert_int_equal(rf_model_config_parse(LLAMA_CONFIG, strlen(LLAMA_CONFIG), "c", &m, NULL), RAFTER_OK);
  assert_true(m.family == RF_FAMILY_LLAMA && m.kv_heads == 2 && m.head_dim == 12 && m.ff == 80 && !m.tied &&
              m.eos_id == 7 && m.bos_id == 1);
  assert_true(m.rope.theta == 1e4f && !m.plan_only);
  static const char LONGROPE[] = "{\"model_type\":\"llama\",\"rope_scaling\":{\"rope_type\":\"longrope\","
                                 "\"attention_factor\":1.0,\"short_factor\":[1,2,3,4,5,6.5],"
                                 "\"long_factor\":[1,2,3,4,5,%s]}%s";
  /* One list for short and long texts is a table. Two lists are not supported. */
  for (int same = 0; same < 2; ++same) {
    char text[1024];
    snprintf(text, sizeof text, LONGROPE, same ? "6.5" : "7", strchr(LLAMA_CONFIG, ','));
    assert_int_equal(rf_model_config_parse(text, strlen(text), "c", &m, NULL), RAFTER_OK);
    assert_true(same ? !m.plan_only && m.rope.scaling == RF_ROPE_TABLE && m.rope_divisors == 6 &&
                           m.rope_divisor[5] == 6.5f
                     : m.plan_only != NULL);
  }
  char mixture[1024]; /* The loss that balances experts is added only if router logits are returned. */
  for (int joins = 0; joins < 2; ++joins) {
    snprintf(mixture, sizeof mixture,
             "{\"model_type\":\"mixtral\",\"num_local_experts\":4,\"router_aux_loss_coef\":0.5,\"output_"
             "router_logits\":%s%s",
             joins ? "true" : "false", strchr(LLAMA_CONFIG, ','));
    assert_int_equal(rf_model_config_parse(mixture, strlen(mixture), "c", &m, NULL), RAFTER_OK);
    assert_true(m.family == RF_FAMILY_MIXTRAL && m.experts == 4 && m.experts_used == 2 && m.window == 0 &&
                m.router_aux == 0.5f && m.router_logits == joins);
  }
  /* Each damaged field must be named in the error. */
  static const struct {
    const char *text, *from, *to, *named;
  } bad[] = {
      {GPT2_CONFIG, "\"n_embd\":40", "\"n_embd\":-40", "n_embd"},
      {GPT2_CONFIG, "\"n_embd\":40", "\"n_embd\":\"40\"", "n_embd"},
      {GPT2_CONFIG, "\"n_embd\":40", "\"n_embd\":41", "n_embd"},
      {GPT2_CONFIG, "\"n_embd\":40", "\"n_embd\":1e18", "n_embd"},
      {GPT2_CONFIG, "\"n_embd\":40,", "", "n_embd"},
      {GPT2_CONFIG, "\"n_head\":4", "\"n_head\":0", "n_head"},
      {GPT2_CONFIG, "\"n_layer\":3", "\"n_layer\":4611686018427387904", "n_layer"},
      {GPT2_CONFIG, "gelu_new", "relu", "activation_function"},
      {GPT2_CONFIG, "\"resid_pdrop\":0.0", "\"resid_pdrop\":1.5", "dropout"},
      {GPT2_CONFIG, "\"resid_pdrop\":0.0", "\"resid_pdrop\":true", "resid_pdrop"},
      {GPT2_CONFIG, "\"bos_token_id\":0", "\"bos_token_id\":\"x\"", "bos_token_id"},
      {GPT2_CONFIG, "\"gpt2\"", "\"mamba\"", "mamba"},
      {GPT2_CONFIG, "\"gpt2\"", "7", "model_type"},
      {GPT2_CONFIG, "\"vocab_size\":136", "\"vocab_size\":null", "vocab_size"},
      {GPT2_CONFIG, "\"resid_pdrop\"", "\"scale_attn_weights\":false,\"resid_pdrop\"", "scale_attn_weights"},
      {LLAMA_CONFIG, "\"num_key_value_heads\":2", "\"num_key_value_heads\":3", "key/value"},
      {LLAMA_CONFIG, "silu", "gelu", "hidden_act"},
      {LLAMA_CONFIG, "\"hidden_act\"", "\"attention_bias\":8,\"hidden_act\"", "attention_bias"},
      {QWEN_CONFIG, "\"num_hidden_layers\":3", "\"num_hidden_layers\":1000000",
       "layers"}, /* more than there is space for */
      {LLAMA_CONFIG, "\"hidden_act\"", "\"rope_scaling\":8,\"hidden_act\"", "rope_scaling"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    char text[1024];
    const char *at = strstr(bad[i].text, bad[i].from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - bad[i].text), bad[i].text, bad[i].to,
             at + strlen(bad[i].from));
    rf_error error = {0};
    rf_status status = rf_model_config_parse(text, strlen(text), "c", &m, &error);
    if (status != RAFTER_FAILED || !strstr(error.message, bad[i].named))
      fail_msg("%s: status %d, '%s'", bad[i].to, status, error.message);
  }
  for (size_t n = 0; n < strlen(GPT2_CONFIG); ++n)
    assert_int_equal(rf_model_config_parse(GPT2_CONFIG, n, "c", &m, NULL), RAFTER_FAILED);
}

static void configs_are_written_as_they_are_read(void **state) {
  (void)state;
  static const char *const specs[] = {"gpt2",
                                      "uva",
                                      "llama2-7b",
                                      "gpt:layers=2,width=96,heads=2,tied=0,dropout=0.1",
                                      "gpt:bias=0,width=64",
                                      "llama3-8b",
                                      "mixtral-8x7b",
                                      "deepseek2-16b",
                                      "deepseek-v3"};
  char folder[] = "/tmp/rafter-test-XXXXXX", path[64];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/config.json", folder);
  for (int i = 0; i < 9; ++i) {
    rf_model model, back;
    char weights[4096];
    assert_int_equal(rf_model_resolve(specs[i], &model, NULL, NULL), RAFTER_OK);
    assert_int_equal(rf_model_config_write(&model, RF_F32, path, NULL), RAFTER_OK);
    assert_int_equal(rf_model_resolve(folder, &back, weights, NULL), RAFTER_OK);
    assert_string_equal(weights, folder);
    assert_string_equal(back.name, strrchr(folder, '/') + 1);
    assert_int_equal(rf_model_is_hugging_face(&model), i != 1 && i != 4);
    assert_true(back.family == model.family && back.layers == model.layers && back.width == model.width &&
                back.heads == model.heads);
    assert_true(back.kv_heads == model.kv_heads && back.head_dim == model.head_dim && back.ff == model.ff &&
                back.vocab == model.vocab);
    assert_true(back.max_seq == model.max_seq && back.norm == model.norm && back.mlp == model.mlp &&
                back.position == model.position);
    assert_true(back.bias == model.bias && back.head_bias == model.head_bias && back.tied == model.tied &&
                back.mlp_first == model.mlp_first);
    assert_true(back.norm_eps == model.norm_eps && back.rope.theta == model.rope.theta &&
                back.dropout == model.dropout);
    assert_true(back.kv_rank == model.kv_rank && back.q_rank == model.q_rank &&
                back.rope_dim == model.rope_dim && back.value_dim == model.value_dim);
    assert_true(back.experts == model.experts && back.experts_used == model.experts_used &&
                back.expert_ff == model.expert_ff);
    assert_true(back.experts_shared == model.experts_shared && back.first_dense == model.first_dense &&
                back.router_choice == model.router_choice);
    assert_true(back.router_sigmoid == model.router_sigmoid && back.router_as_is == model.router_as_is &&
                back.router_groups == model.router_groups);
    assert_true(back.router_groups_used == model.router_groups_used &&
                fmaxf(back.router_scale, 1) == fmaxf(model.router_scale, 1));
    assert_true(back.rope.scaling == model.rope.scaling && back.rope.factor == model.rope.factor &&
                back.rope.original == model.rope.original);
    assert_true(fabsf(back.attn_scale - model.attn_scale) <= 1e-6f * fabsf(model.attn_scale));
    assert_true(back.bos_id == model.bos_id && back.eos_id == model.eos_id &&
                strcmp(back.init, model.init) == 0);
  }
  unlink(path);
  rf_error error;
  rf_model model;
  /* a folder without config.json */
  assert_int_equal(rf_model_resolve(folder, &model, NULL, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "config.json"));
  rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(presets_have_their_published_size),
      cmocka_unit_test(parameters_stand_in_the_models_order),
      cmocka_unit_test(inline_shapes_fill_in_the_rest),
      cmocka_unit_test(first_values_do_not_depend_on_chunks),
      cmocka_unit_test(configs_are_read),
      cmocka_unit_test(configs_are_written_as_they_are_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
