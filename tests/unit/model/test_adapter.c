/* test_adapter.c - tests adapters: the sites that a text names, their parameter counts, reading and
 * writing PEFT files, and invalid files. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <sys/stat.h>

#include "base/json.h"
#include "model/adapter.h"
#include "formats/safetensors.h"
#include "support/scratch.h"

#define GOLDEN RF_TEST_DATA "/goldens/gemma3_text_lora"
#define BASE RF_TEST_DATA "/goldens/gemma3_text"

static rf_model model_or_fail(const char *spec) {
  rf_model model;
  rf_error error = {0};
  if (rf_model_resolve(spec, &model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return model;
}

static rf_model adapted(const char *spec, const char *lora) {
  rf_model model = model_or_fail(spec);
  rf_error error = {0};
  rf_lora found;
  if (rf_lora_parse(lora, &model, &found, &error) != RAFTER_OK) fail_msg("%s", error.message);
  model.lora = found;
  return model;
}

/* ---- the text -------------------------------------------------------------------------------- */

/* Elements per rank: sum of (K + columns) over the sites. All projections of Gemma 3 1B, with k and
 * v as one site, have 785,408: r (a + b) for a matrix (a, b), 26 layers, D 1152, F 6912, 4 heads
 * and 1 key head of 256. */
static void counts_follow_the_targets(void **state) {
  (void)state;
  static const struct {
    const char *model, *targets;
    int64_t each;
  } cases[] = {{"gemma3-1b", "q,kv,o,gate,up,down", 785408},
               {"gemma3-1b", "q,k,v,o,gate,up,down", 785408 + 26 * 1152},
               {"gemma3-1b", "all", 785408 + 26 * 1152},
               {"gemma3-1b", "q_proj,v_proj", 26 * (1152 + 1024 + 1152 + 256)},
               {"gemma3-1b", "~block\\.(0|25)/attn/q", 2 * (1152 + 1024)},
               {"gemma3-1b", "~.*/mlp/.*", 26 * 3 * (1152 + 6912)},
               {"gemma3-1b", "~block\\.3/mlp/gate_up/weight", 2 * (1152 + 6912)},
               {"gemma3-1b", "gate_up", 26 * (1152 + 2 * 6912)},
               {"gpt2", "c_attn", 12 * (768 + 2304)},
               {"gpt2", "all", 12 * (768 + 2304 + 768 + 768 + 2 * (768 + 3072))},
               {"gpt2", "qkv,out,up,down", 12 * (768 + 2304 + 768 + 768 + 2 * (768 + 3072))}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
    for (int rank = 1; rank < 20; rank += 6) {
      char text[128];
      snprintf(text, sizeof text, "targets=%s,rank=%d", cases[i].targets, rank);
      rf_model model = adapted(cases[i].model, text), bare = model_or_fail(cases[i].model);
      rf_pool *pool = rf_pool_new();
      rf_params params = rf_model_params(&model, pool), before = rf_model_params(&bare, pool);
      if (params.adapter != cases[i].each * rank)
        fail_msg("%s %s: %lld", cases[i].model, text, (long long)params.adapter);
      assert_true(params.total == before.total && params.base == before.count && before.adapter == 0);
      rf_pool_free(pool);
    }
}

static void options_are_read(void **state) {
  (void)state;
  rf_lora lora = adapted("gemma3-1b", "rank=8").lora;
  assert_true(lora.rank == 8 && rf_lora_scale(&lora) == 2 && lora.dropout == 0);
  lora = adapted("gemma3-1b", "targets=q,v,alpha=12,rank=4,dropout=0.25").lora;
  assert_true(lora.rank == 4 && rf_lora_scale(&lora) == 3 && lora.dropout == 0.25f);
  lora = adapted("gemma3-1b", "rslora,rank=16,alpha=8").lora;
  assert_true(lora.rank_stabilized && rf_lora_scale(&lora) == 2);
  lora = adapted("gemma3-1b", "targets=~block\\.[0-9]{1,1}/attn/(q|v),rank=2").lora;
  assert_true(lora.rank == 2 && lora.sites[9] && !lora.sites[10]);
}

static void wrong_options_are_named(void **state) {
  (void)state;
  static const struct {
    const char *model, *text, *says;
  } cases[] = {{"gpt2", "rank=0", "rank"},
               {"gpt2", "rank=x", "rank"},
               {"gpt2", "alpha=-1", "alpha"},
               {"gpt2", "dropout=1", "dropout"},
               {"gpt2", "size=3", "size=3"},
               {"gpt2", "targets=q", "got 'q'"},
               {"gpt2", "targets=c_attn,gate", "got 'gate'"},
               {"gpt2", "targets=", "targets"},
               {"gpt2", "targets=~(", "regular expression"},
               {"gpt2", "targets=~nothing", "nothing"},
               {"gpt2", "targets=~((([a-z_./0-9]+)*)+)+[!?]", "too long"},
               {"gemma3-1b", "targets=k,kv", "two adapters"},
               {"gemma3-1b", "targets=up,gate_up", "two adapters"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    rf_model model = model_or_fail(cases[i].model);
    rf_lora lora;
    rf_error error = {0};
    if (rf_lora_parse(cases[i].text, &model, &lora, &error) != RAFTER_INVALID)
      fail_msg("%s was taken", cases[i].text);
    if (!strstr(error.message, cases[i].says)) fail_msg("%s: %s", cases[i].text, error.message);
  }
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct values {
  rf_pool *pool;
  rf_model model;
  rf_params params;
  float *of[512]; /* by parameter, from params.base on */
} values;

static rf_status keep(void *context, int param, int64_t first, int64_t count, const float *x,
                      rf_error *error) {
  (void)error;
  values *v = context;
  assert_true(first == 0 && count == v->params.at[param].count && param >= v->params.base);
  v->of[param - v->params.base] = memcpy(rf_pool_alloc(v->pool, (size_t)count * 4), x, (size_t)count * 4);
  return RAFTER_OK;
}
static rf_status give(void *context, int param, int64_t first, int64_t count, float *x, rf_error *error) {
  (void)error;
  values *v = context;
  memcpy(x, v->of[param - v->params.base] + first, (size_t)count * 4);
  return RAFTER_OK;
}
static void of_model(values *v, const rf_model *model) {
  v->pool = rf_pool_new();
  v->model = *model;
  v->params = rf_model_params(model, v->pool);
}
static rf_status try_read(const char *base, const char *folder_of, values *v, rf_error *error) {
  rf_model model = model_or_fail(base);
  rf_lora lora;
  RF_TRY(rf_adapter_open(folder_of, &model, &lora, error));
  model.lora = lora;
  of_model(v, &model);
  return rf_adapter_read(folder_of, &v->model, &v->params, keep, v, error);
}
static values read_or_fail(const char *base, const char *folder_of) {
  values v = {0};
  rf_error error = {0};
  if (try_read(base, folder_of, &v, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return v;
}
static void write_or_fail(values *v, const char *folder_of) {
  rf_error error = {0};
  mkdir(folder_of, 0700);
  if (rf_adapter_write(folder_of, &v->model, &v->params, BASE, give, v, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
}
static void assert_same(const values *a, const values *b) {
  assert_true(a->params.count == b->params.count && a->params.base == b->params.base);
  assert_true(rf_lora_scale(&a->model.lora) == rf_lora_scale(&b->model.lora));
  for (int p = a->params.base; p < a->params.count; ++p)
    assert_memory_equal(a->of[p - a->params.base], b->of[p - b->params.base],
                        (size_t)a->params.at[p].count * 4);
}

/* PEFT's own file: every tensor is written again under its name with its bytes. */
static void the_golden_adapter_comes_back(void **state) {
  (void)state;
  values v = read_or_fail(BASE, GOLDEN);
  assert_true(v.model.lora.rank == 4 && rf_lora_scale(&v.model.lora) == 2);
  write_or_fail(&v, at("out"));
  rf_tensor_file *before, *after;
  rf_error error = {0};
  assert_int_equal(rf_tensor_file_open(GOLDEN "/adapter_model.safetensors", &before, &error), RAFTER_OK);
  assert_int_equal(rf_tensor_file_open(at("out/adapter_model.safetensors"), &after, &error), RAFTER_OK);
  assert_int_equal(rf_tensor_file_count(before), 98);
  assert_int_equal(rf_tensor_file_count(after), 98);
  for (int i = 0; i < 98; ++i) {
    const rf_stored *a = rf_tensor_file_at(before, i), *b = rf_tensor_file_at(after, i);
    assert_string_equal(a->name, b->name);
    assert_true(a->dtype == b->dtype && a->rank == b->rank && a->bytes == b->bytes &&
                memcmp(a->shape, b->shape, sizeof a->shape) == 0);
    assert_memory_equal(a->data, b->data, (size_t)a->bytes);
  }
  rf_tensor_file_close(before);
  rf_tensor_file_close(after);
  values again = read_or_fail(BASE, at("out"));
  assert_same(&v, &again);
  rf_model whole = model_or_fail(at("out")); /* The folder of the adapter is the model with the adapter. */
  assert_true(whole.lora.rank == 4 && strcmp(whole.lora.folder, at("out")) == 0);
  rf_pool_free(v.pool);
  rf_pool_free(again.pool);
}

/* Families whose files fuse, split, transpose or reorder q, k and v. */
static void every_family_round_trips(void **state) {
  (void)state;
  static const struct {
    const char *model, *lora;
  } cases[] = {{RF_TEST_DATA "/goldens/gpt2", "rank=3"},
               {RF_TEST_DATA "/goldens/gpt_neox", "rank=5,alpha=3"},
               {RF_TEST_DATA "/goldens/llama", "rank=2,targets=k,down"},
               {RF_TEST_DATA "/goldens/gemma", "rank=2,targets=kv,gate_up,o"},
               {RF_TEST_DATA "/goldens/qwen2", "rank=4,rslora,targets=~block\\.1/.*"},
               {"gpt:layers=2,width=32,heads=2,vocab=64,seq=16", "rank=2"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    values v = {0};
    rf_model model = adapted(cases[i].model, cases[i].lora);
    of_model(&v, &model);
    for (int p = v.params.base; p < v.params.count; ++p) {
      rf_param drawn = v.params.at[p];
      drawn.init = RF_INIT_NORMAL;
      drawn.init_std = 1;
      v.of[p - v.params.base] = rf_pool_alloc(v.pool, (size_t)drawn.count * 4);
      rf_param_init(&drawn, 3, 0, drawn.count, v.of[p - v.params.base]);
    }
    write_or_fail(&v, at("round"));
    values again = read_or_fail(cases[i].model, at("round"));
    assert_int_equal(memcmp(v.model.lora.sites, again.model.lora.sites, sizeof v.model.lora.sites), 0);
    assert_same(&v, &again);
    rf_pool_free(v.pool);
    rf_pool_free(again.pool);
  }
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* One change to the golden adapter: a tensor left out, renamed or reshaped, or a field of its
 * config set. */
typedef struct fault {
  const char *tensor, *renamed;
  int64_t shape[2];      /* 0: unchanged */
  const char *from, *to; /* in the text of the config */
  const char *says;      /* part of the error; NULL: the adapter is accepted */
} fault;
#define ALPHAS "\"alpha_pattern\": "
#define STARTS "\"init_lora_weights\": "
#define Q0 "base_model.model.model.layers.0.self_attn.q_proj."

static void write_faulty(const fault *f, const char *to) {
  rf_tensor_file *file;
  rf_error error = {0};
  char *text, path[300];
  size_t bytes;
  mkdir(to, 0700);
  assert_int_equal(rf_file_read(GOLDEN "/adapter_config.json", 1 << 20, &text, &bytes, &error), RAFTER_OK);
  const char *found = f->from ? strstr(text, f->from) : NULL;
  assert_true(!f->from || found);
  char *changed = malloc(bytes + (f->to ? strlen(f->to) : 0) + 1);
  if (found) sprintf(changed, "%.*s%s%s", (int)(found - text), text, f->to, found + strlen(f->from));
  else strcpy(changed, text);
  snprintf(path, sizeof path, "%s/adapter_config.json", to);
  assert_int_equal(rf_file_write(path, changed, strlen(changed), &error), RAFTER_OK);
  free(text);
  free(changed);
  assert_int_equal(rf_tensor_file_open(GOLDEN "/adapter_model.safetensors", &file, &error), RAFTER_OK);
  rf_stored list[99];
  float *data[99];
  int count = 0;
  for (int i = 0; i < rf_tensor_file_count(file); ++i) {
    rf_stored t = *rf_tensor_file_at(file, i);
    bool met = f->tensor && strcmp(t.name, f->tensor) == 0;
    if (met && !f->renamed && !f->shape[0]) continue;
    if (met && f->renamed) t.name = f->renamed;
    if (met && f->shape[0]) {
      t.shape[0] = f->shape[0];
      t.shape[1] = f->shape[1];
      t.count = t.shape[0] * t.shape[1];
      t.bytes = 4 * t.count;
    }
    data[count] = calloc((size_t)t.count + 4096, 4);
    const rf_stored *whole = rf_tensor_file_at(file, i);
    assert_int_equal(
        rf_stored_read(whole, 0, whole->count < t.count ? whole->count : t.count, data[count], &error),
        RAFTER_OK);
    list[count++] = t;
  }
  rf_tensor_writer *writer;
  snprintf(path, sizeof path, "%s/adapter_model.safetensors", to);
  assert_int_equal(rf_tensor_writer_open(path, list, count, NULL, &writer, &error), RAFTER_OK);
  for (int i = 0; i < count; ++i) {
    assert_int_equal(rf_tensor_writer_put(writer, data[i], list[i].count, &error), RAFTER_OK);
    free(data[i]);
  }
  assert_int_equal(rf_tensor_writer_commit(writer, &error), RAFTER_OK);
  rf_tensor_file_close(file);
}

static void wrong_files_are_named(void **state) {
  (void)state;
  static const fault faults[] = {
      {.says = NULL},
      {.tensor = Q0 "lora_A.weight", .renamed = Q0 "lora_A.default.weight"},
      {.tensor = Q0 "lora_A.weight", .says = "incomplete"},
      {.tensor = Q0 "lora_B.weight", .says = "incomplete"},
      {.tensor = Q0 "lora_A.weight",
       .renamed = "base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight",
       .says = "incomplete"},
      {.tensor = Q0 "lora_A.weight",
       .renamed = "base_model.model.model.embed_tokens.lora_embedding_A",
       .says = "adapters of the embedding"},
      {.tensor = Q0 "lora_A.weight",
       .renamed = "base_model.model.lm_head.lora_A.weight",
       .says = "adapters of the embedding"},
      {.tensor = Q0 "lora_A.weight", .renamed = Q0 "lora_magnitude_vector.weight", .says = "incomplete"},
      {.tensor = Q0 "lora_A.weight", .shape = {4, 31}, .says = "wrong shape"},
      {.tensor = Q0 "lora_A.weight", .shape = {5, 32}, .says = "wrong shape"},
      {.tensor = Q0 "lora_B.weight", .shape = {4, 64}, .says = "wrong shape"},
      {.tensor = Q0 "lora_B.weight", .shape = {64, 3}, .says = "wrong shape"},
      {.from = "\"use_dora\": false", .to = "\"use_dora\": true", .says = "use_dora"},
      {.from = "\"bias\": \"none\"", .to = "\"bias\": \"all\"", .says = "bias"},
      {.from = "\"modules_to_save\": null",
       .to = "\"modules_to_save\": [\"lm_head\"]",
       .says = "modules_to_save"},
      {.from = "\"lora_bias\": false", .to = "\"lora_bias\": true", .says = "lora_bias"},
      {.from = "\"layer_replication\": null",
       .to = "\"layer_replication\": [[0, 2]]",
       .says = "layer_replication"},
      {.from = "\"target_parameters\": null",
       .to = "\"target_parameters\": [\"experts.gate_up_proj\"]",
       .says = "target_parameters"},
      {.from = "\"use_qalora\": false", .to = "\"use_qalora\": true", .says = "use_qalora"},
      {.from = "\"use_bdlora\": null", .to = "\"use_bdlora\": {\"a\": 1}", .says = "use_bdlora"},
      {.from = "\"alora_invocation_tokens\": null",
       .to = "\"alora_invocation_tokens\": [5]",
       .says = "alora_invocation_tokens"},
      {.from = "\"trainable_token_indices\": null",
       .to = "\"trainable_token_indices\": [3]",
       .says = "trainable_token_indices"},
      {.from = "\"megatron_config\": null",
       .to = "\"megatron_config\": {\"a\": 1}",
       .says = "megatron_config"},
      {.from = "\"arrow_config\": null", .to = "\"arrow_config\": {\"a\": 1}", .says = "arrow_config"},
      {.from = "\"kasa_config\": null", .to = "\"kasa_config\": {\"a\": 1}", .says = "kasa_config"},
      {.from = "\"monteclora_config\": null",
       .to = "\"monteclora_config\": {\"a\": 1}",
       .says = "monteclora_config"},
      {.from = "\"velora_config\": null", .to = "\"velora_config\": {\"a\": 1}", .says = "velora_config"},
      {.from = "\"lora_ga_config\": null", .to = "\"lora_ga_config\": {\"a\": 1}", .says = "lora_ga_config"},
      {.from = "\"ensure_weight_tying\": false",
       .to = "\"ensure_weight_tying\": true",
       .says = "ensure_weight_tying"},
      {.from = "\"peft_type\": \"LORA\"", .to = "\"peft_type\": \"IA3\"", .says = "peft_type"},
      {.from = "\"r\": 4", .to = "\"r\": 0", .says = "\"r\""},
      {.from = "\"lora_alpha\": 8", .to = "\"lora_alpha\": \"8\"", .says = "lora_alpha"},
      {.from = ALPHAS "{}",
       .to = ALPHAS "{\"^q.*\": 3}",
       .says = "alpha_pattern"}, /* no full name of a layer begins like this */
      {.from = ALPHAS "{}", .to = ALPHAS "{\"(q_proj\": 3}", .says = "alpha_pattern"},
      {.from = ALPHAS "{}", .to = ALPHAS "{\"((([a-z_.0-9]+)*)+)+[!?]\": 3}", .says = "too long"},
      {.from = ALPHAS "{}", .to = ALPHAS "[]", .says = "alpha_pattern"},
      {.from = ALPHAS "{}", .to = ALPHAS "3", .says = "alpha_pattern"},
      {.from = ALPHAS "{}", .to = ALPHAS "{\"q_proj\": \"3\"}", .says = "q_proj"},
      {.from = ALPHAS "{}", .to = ALPHAS "{\"q_proj\": 0}", .says = "q_proj"},
      {.from = ALPHAS "{}", .to = ALPHAS "{\"q_proj\": 1e7}", .says = "q_proj"},
      {.from = ALPHAS "{}", .to = ALPHAS "{\"_proj\": 3}", .says = "'_proj'"},
      {.from = ALPHAS "{}",
       .to = ALPHAS "{\"q_proj\": 3, \"layers.99.self_attn.q_proj\": 3}",
       .says = "layers.99"},
      {.from = ALPHAS "{}",
       .to = ALPHAS "{\"base_model.model.model.layers.0.self_attn.q_proj\": 3}",
       .says = "base_model"},
      {.from = ALPHAS "{}", .to = ALPHAS "null"},
      {.from = STARTS "true", .to = STARTS "false"},
      {.from = STARTS "true", .to = STARTS "null"},
      {.from = STARTS "true", .to = STARTS "\"gaussian\""},
      {.from = STARTS "true", .to = STARTS "\"eva\""},
      {.from = STARTS "true", .to = STARTS "\"orthogonal\""},
      {.from = STARTS "true", .to = STARTS "\"pissa\"", .says = "pissa"},
      {.from = STARTS "true", .to = STARTS "\"pissa_niter_16\"", .says = "pissa_niter_16"},
      {.from = STARTS "true", .to = STARTS "\"olora\"", .says = "olora"},
      {.from = STARTS "true", .to = STARTS "\"corda\"", .says = "corda"},
      {.from = STARTS "true", .to = STARTS "\"loftq\"", .says = "loftq"},
      {.from = STARTS "true", .to = STARTS "3", .says = "init_lora_weights"},
  };
  for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
    values v = {0};
    rf_error error = {0};
    write_faulty(&faults[i], at("fault"));
    rf_status status = try_read(BASE, at("fault"), &v, &error);
    if ((status == RAFTER_OK) != (faults[i].says == NULL))
      fail_msg("fault %zu: %s", i, status == RAFTER_OK ? "was taken" : error.message);
    if (faults[i].says && !strstr(error.message, faults[i].says)) fail_msg("fault %zu: %s", i, error.message);
    if (faults[i].says && !strstr(error.message, at("fault")))
      fail_msg("fault %zu names no file: %s", i, error.message);
    if (v.pool) rf_pool_free(v.pool);
  }
}

/* The number of patterns in a file is limited. */
static void patterns_are_few(void **state) {
  (void)state;
  for (int keys = 1024; keys <= 1025; ++keys) {
    char *text = malloc(40 * (size_t)keys), *end = text + sprintf(text, ALPHAS "{");
    for (int k = 0; k < keys; ++k)
      end += sprintf(end, "\"%c_proj|no%d\": 3%s", k % 2 ? 'q' : 'v', k, k + 1 < keys ? ", " : "}");
    values v = {0};
    rf_error error = {0};
    write_faulty(&(fault){.from = ALPHAS "{}", .to = text}, at("many"));
    assert_int_equal(try_read(BASE, at("many"), &v, &error), keys > 1024 ? RAFTER_FAILED : RAFTER_OK);
    if (keys > 1024) assert_non_null(strstr(error.message, "more than 1024 regular expressions"));
    if (v.pool) rf_pool_free(v.pool);
    free(text);
  }
}

/* If a layer has an alpha and a rank of its own, its product A B times scale is that of its
 * file. */
static void patterns_keep_the_product(void **state) {
  (void)state;
  static const struct {
    const char *pattern;
    float share; /* share of alpha 8 */
    bool every_layer;
  } cases[] = {{"{\"layers.0.self_attn.q_proj\": 2}", 0.25f, false},
               /* full name of the layer in the base model */
               {"{\"model.layers.0.self_attn.q_proj\": 2}", 0.25f, false},
               {"{\"q_proj\": 2}", 0.25f, true},
               {"{\"self_attn.q_proj\": 4}", 0.5f, true},
               {"{\".*\\\\.0\\\\..*q_proj\": 2}", 0.25f, false},
               {"{\"q_(proj|norm)\": 2}", 0.25f, true},
               {"{\".*.*.*q_proj\": 2}", 0.25f,
                true}, /* many partial matches, none of which fits; matching still ends */
               {"{\"^model\\\\.layers\\\\.0\\\\.self_attn\\\\.q_proj\": 2}", 0.25f, false},
               {"{\"layers.[0].self_attn.q_pro\\\\w\": 2, \".*q_proj\": 8}", 0.25f, false},
               {"{\"layers.0.self_attn.q_proj\": 2, \"self_attn.q_proj\": 8}", 0.25f,
                false}, /* the first match counts */
               {"{\"self_attn.q_proj\": 2, \"layers.0.self_attn.q_proj\": 8}", 0.25f, true}};
  values plain = read_or_fail(BASE, GOLDEN);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    char to[300];
    snprintf(to, sizeof to, ALPHAS "%s", cases[i].pattern);
    write_faulty(&(fault){.from = ALPHAS "{}", .to = to}, at("pattern"));
    values own = read_or_fail(BASE, at("pattern"));
    for (int p = plain.params.base; p < plain.params.count; ++p) {
      const rf_param *param = &plain.params.at[p];
      const float *a = plain.of[p - plain.params.base], *b = own.of[p - own.params.base];
      int64_t wide = param->shape[1], q = plain.model.heads * plain.model.head_dim;
      bool met = strstr(param->name, "/attn/qkv/lora_b") && (cases[i].every_layer || param->layer == 0);
      for (int64_t k = 0; k < param->count; ++k)
        assert_true(b[k] == (met && k % wide < q ? a[k] * cases[i].share : a[k]));
    }
    rf_pool_free(own.pool);
  }
  rf_pool_free(plain.pool);
}

/* PEFT must adapt exactly the sites that have adapters when it reads the modules and layers of our
 * file. c_proj alone would be two layers of a GPT-2 block. */
static void modules_are_named_without_doubt(void **state) {
  (void)state;
  static const struct {
    const char *model, *lora, *modules; /* the adapter as text */
  } cases[] = {
      {RF_TEST_DATA "/goldens/llama", "rank=2,targets=q,v", "[\"q_proj\",\"v_proj\"]"},
      {RF_TEST_DATA "/goldens/gpt2", "rank=2,targets=out,down", "[\"c_proj\"]"},
      /* the experts have the last word down_proj too, and no adapter */
      {RF_TEST_DATA "/latent/deepseek_v2", "rank=2,targets=out,down",
       "[\"model.layers.0.self_attn.o_proj\",\"model.layers.0.mlp.down_proj\",\"model.layers.1.self_attn.o_"
       "proj\",\"model.layers.2.self_attn.o_proj\"]"},
      {RF_TEST_DATA "/latent/deepseek_v2", "rank=2,targets=down", "[\"down_proj\"]"},
      {RF_TEST_DATA "/goldens/gpt2", "rank=2,targets=~block\\.0/attn/out",
       "[\"transformer.h.0.attn.c_proj\"]"},
      {RF_TEST_DATA "/goldens/llama", "rank=2,targets=~block\\.0/attn/q|block\\.1/attn/v",
       "[\"model.layers.0.self_attn.q_proj\",\"model.layers.1.self_attn.v_proj\"]"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    values v = {0};
    rf_model model = adapted(cases[i].model, cases[i].lora);
    of_model(&v, &model);
    for (int p = v.params.base; p < v.params.count; ++p)
      v.of[p - v.params.base] = rf_pool_alloc(v.pool, (size_t)v.params.at[p].count * 4);
    write_or_fail(&v, at("words"));
    json_t *config = NULL;
    rf_error error = {0};
    assert_int_equal(rf_json_read(at("words/adapter_config.json"), 1 << 20, &config, &error), RAFTER_OK);
    char *text = json_dumps(json_object_get(config, "target_modules"), JSON_COMPACT);
    assert_string_equal(text, cases[i].modules);
    free(text);
    json_decref(config);
    values again = read_or_fail(cases[i].model, at("words"));
    assert_int_equal(memcmp(v.model.lora.sites, again.model.lora.sites, sizeof v.model.lora.sites), 0);
    rf_pool_free(v.pool);
    rf_pool_free(again.pool);
  }
}

/* Files have decimals as the user wrote them. Values that JSON cannot express are refused. */
static void configs_are_clean(void **state) {
  (void)state;
  values v = {0};
  rf_model model = adapted(RF_TEST_DATA "/goldens/llama", "rank=2,targets=q,alpha=0.3,dropout=0.05");
  of_model(&v, &model);
  for (int p = v.params.base; p < v.params.count; ++p)
    v.of[p - v.params.base] = rf_pool_alloc(v.pool, (size_t)v.params.at[p].count * 4);
  write_or_fail(&v, at("clean"));
  char *text;
  size_t bytes;
  rf_error error = {0};
  assert_int_equal(rf_file_read(at("clean/adapter_config.json"), 1 << 20, &text, &bytes, &error), RAFTER_OK);
  assert_true(strstr(text, "\"lora_dropout\": 0.05,") && strstr(text, "\"lora_alpha\": 0.3,"));
  free(text);
  assert_int_equal(rf_adapter_write(at("clean"), &v.model, &v.params, "/models/caf\xe9", give, &v, &error),
                   RAFTER_FAILED);
  assert_non_null(strstr(error.message, "UTF-8"));
  rf_pool_free(v.pool);
}

/* The merged weight is W + scale A B, element by element, for any requested range of a
 * parameter. */
static void merging_adds_the_product(void **state) {
  (void)state;
  values v = read_or_fail(BASE, GOLDEN);
  rf_merger *merger = NULL;
  rf_error error = {0};
  if (rf_merger_open(&v.model, &merger, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (int p = 0; p < v.params.base; ++p) {
    const rf_param *param = &v.params.at[p];
    float *whole = calloc((size_t)param->count, 4), *parts = calloc((size_t)param->count, 4);
    rf_merger_add(merger, p, 0, param->count, whole);
    for (int64_t first = 0, count; first < param->count; first += count) {
      count = param->count - first < 37 ? param->count - first : 37;
      rf_merger_add(merger, p, first, count, parts + first);
    }
    assert_memory_equal(whole, parts, (size_t)param->count * 4);
    int a = v.params.base;
    while (a < v.params.count && v.params.at[a].adapts != p) a += 2;
    rf_lora_parts runs = a < v.params.count ? rf_lora_parts_of(&v.model, param) : (rf_lora_parts){0};
    for (int64_t i = 0; i < param->count; ++i) {
      int64_t k = i / param->shape[1], c = i % param->shape[1], joined = 0;
      double want = 0;
      for (int r = 0; r < runs.count; joined += runs.columns[r++])
        for (int64_t j = 0; c >= runs.at[r] && c < runs.at[r] + runs.columns[r] && j < runs.rank; ++j)
          want +=
              2.0 * (double)v.of[a - v.params.base][k * v.params.at[a].shape[1] + r * runs.rank + j] *
              (double)v.of[a + 1 - v.params.base][j * v.params.at[a + 1].shape[1] + joined + c - runs.at[r]];
      assert_true(fabs((double)whole[i] - want) <= 1e-6 * (1 + fabs(want)));
    }
    free(whole);
    free(parts);
  }
  rf_merger_close(merger);
  rf_pool_free(v.pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_follow_the_targets),
      cmocka_unit_test(options_are_read),
      cmocka_unit_test(wrong_options_are_named),
      cmocka_unit_test(the_golden_adapter_comes_back),
      cmocka_unit_test(every_family_round_trips),
      cmocka_unit_test(wrong_files_are_named),
      cmocka_unit_test(patterns_are_few),
      cmocka_unit_test(patterns_keep_the_product),
      cmocka_unit_test(modules_are_named_without_doubt),
      cmocka_unit_test(configs_are_clean),
      cmocka_unit_test(merging_adds_the_product),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
