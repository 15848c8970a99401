/* test_adapters.c - several LoRA adapters in one batch. An answer has the bits of a generator that
 * has only the answer's adapter, whatever else is in the batch. Adapters come and go while answers
 * run. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sys/stat.h>

#include "generate/adapters.h"
#include "generate/batch.h"
#include "model/adapter.h"
#include "support/scratch.h"

enum { CONTEXT = 64, VOCAB = 211, ADAPTERS = 3, PROMPTS = 2, SLOTS = 3, RANK = 8, ANSWER = 12 };

/* In the Llama, q, k, v, gate and up are tensors of their own, which the third adapter joins. */
static const char *const MODELS[] = {
    "gpt:layers=2,width=48,heads=3,ff=96,vocab=211,seq=64,init=flax",
    "llama:layers=2,width=48,heads=4,kv_heads=2,ff=80,vocab=211,seq=64,init=flax",
    "gemma3:layers=3,width=32,heads=4,kv_heads=2,head_dim=16,ff=64,vocab=211,seq=64,window=16,init=flax"};
static const char *const ADAPTED[][ADAPTERS] = {
    {"rank=3,alpha=7,targets=qkv,down", "rank=8,alpha=4,rslora", "rank=1,targets=out"},
    {"rank=3,alpha=7,targets=q,v,down", "rank=8,alpha=4,rslora", "rank=5,targets=qkv,gate_up"},
    {"rank=3,alpha=7,targets=q,v,down", "rank=8,alpha=4,rslora", "rank=5,targets=k,up"}};

static rf_machine machine;
static rf_error error;
static rf_weight_types types;

#define MUST(call) \
  do { \
    if ((call) != RAFTER_OK) fail_msg("%s (%s)", error.message, error.hint); \
  } while (0)

typedef struct variant {
  int model;
  rf_dtype dtype;
  rf_weights_as weights;
  rf_isa isa;
  int threads;
  int64_t batch;
  bool no_sharing, fast;
} variant;

/* Answers to each prompt with no adapter (0) or with adapter i - 1. */
typedef struct answers {
  int32_t token[PROMPTS][ADAPTERS + 1][ANSWER];
  float logprob[PROMPTS][ADAPTERS + 1][ANSWER];
} answers;

static rf_infer_settings settings_of(const variant *v) {
  rf_infer_settings s = {.seed = 6, .no_sharing = v->no_sharing};
  MUST(rf_model_resolve(MODELS[v->model], &s.model, NULL, &error));
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE,
                                       .softmax = RF_F32,
                                       .dtype = v->dtype,
                                       .microbatch = v->batch,
                                       .seq = CONTEXT,
                                       .fast = v->fast,
                                       .chunk = 16},
                             .backend = &RF_BACKEND_CPU,
                             .isa = v->isa,
                             .threads = v->threads,
                             .machine = &machine};
  if (v->weights == RF_WEIGHTS_FILE) return s;
  MUST(rf_weight_types_read("", &s.model, v->weights, &types, &error));
  s.plan.build.weights = &types;
  return s;
}

/* Random values of A and B. B is large, so that an adapter changes the tokens. */
static rf_status draw(void *self, int param, int64_t first, int64_t count, float *values, rf_error *e) {
  const int *seed = self;
  (void)e;
  for (int64_t i = 0; i < count; i++) {
    uint64_t key = rf_key((uint64_t)*seed, (uint64_t)param, (uint64_t)(first + i));
    values[i] = ((float)(key >> 40) * 0x1p-23f - 1) * 0.5f;
  }
  return RAFTER_OK;
}

/* Writes an adapter of this model to a folder of this name. */
static const char *write_adapter(const char *model, const char *lora, const char *name, int seed) {
  const char *path = at(name);
  rf_model *of = calloc(1, sizeof *of);
  rf_pool *pool = rf_pool_new();
  rf_lora parsed;
  mkdir(path, 0777);
  MUST(rf_model_resolve(model, of, NULL, &error));
  MUST(rf_lora_parse(lora, of, &parsed, &error));
  of->lora = parsed;
  rf_params params = rf_model_params(of, pool);
  MUST(rf_adapter_write(path, of, &params, model, draw, &seed, &error));
  rf_pool_free(pool);
  free(of);
  return path;
}

static const char *adapter_of(int model, int i) {
  char name[32];
  snprintf(name, sizeof name, "m%d-a%d", model, i);
  if (access(at(name), F_OK) == 0) return at(name);
  return write_adapter(MODELS[model], ADAPTED[model][i], name, 10 * model + i + 1);
}

static rf_generator *open_slots(const variant *v, int slots) {
  rf_infer_settings s = settings_of(v);
  rf_generator *g = NULL;
  s.plan.build.adapter_slots = slots;
  s.plan.build.adapter_rank = RANK;
  MUST(rf_generator_open(&s, &g, &error));
  return g;
}

static int64_t load(rf_generator *g, const char *path) {
  rf_adapter_values *values = NULL;
  int64_t id = 0;
  MUST(rf_adapter_values_read(g, path, &values, &error));
  MUST(rf_generator_load(g, values, &id, &error));
  rf_adapter_values_free(values);
  assert_true(id > 0);
  return id;
}

/* The two prompts share a long beginning. */
static int64_t prompt_of(int p, int32_t ids[CONTEXT]) {
  int64_t count = p ? 37 : 21;
  for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)((i * i * 7 + 3 * i + 5 + (i > 18 ? p : 0)) % VOCAB);
  return count;
}

typedef struct asked {
  int32_t token[ANSWER];
  float logprob[ANSWER];
  int64_t count;
  rf_finish finish;
} asked;

static void submit_many(rf_generator *g, int prompt, int64_t adapter, int samples, asked *to) {
  int32_t ids[CONTEXT];
  int64_t count = prompt_of(prompt, ids);
  memset(to, 0, (size_t)samples * sizeof *to);
  MUST(rf_generator_submit(g,
                           &(rf_request){.tokens = ids,
                                         .count = count,
                                         .max_tokens = ANSWER,
                                         .samples = samples,
                                         .sampler = {.temperature = 0.9f, .top_p = 1, .seed = 4},
                                         .keep = true,
                                         .adapter = adapter,
                                         .owner = to},
                           NULL, &error));
}

static void submit(rf_generator *g, int prompt, int64_t adapter, asked *to) {
  submit_many(g, prompt, adapter, 1, to);
}

static void step(rf_generator *g) {
  const rf_event *event;
  int count;
  MUST(rf_generator_step(g, &event, &count, &error));
  for (int i = 0; i < count; i++) {
    asked *a = (asked *)event[i].owner + event[i].sample;
    a->finish = event[i].finish;
    if (event[i].error) fail_msg("%s", event[i].error->message);
    a->token[a->count] = event[i].token;
    a->logprob[a->count++] = event[i].logprob;
  }
}

static void same(const asked *a, const answers *expected, int prompt, int adapter, const char *where) {
  assert_int_equal(a->count, ANSWER);
  if (memcmp(a->token, expected->token[prompt][adapter], sizeof a->token) ||
      memcmp(a->logprob, expected->logprob[prompt][adapter], sizeof a->logprob))
    fail_msg("%s: prompt %d with adapter %d has other bits", where, prompt, adapter);
}

/* The answers of generators without slots, each with one adapter, one request at a time. */
static void answer_alone(const variant *of, answers *to) {
  variant v = *of;
  v.batch = 1;
  for (int i = 0; i <= ADAPTERS; i++) {
    rf_infer_settings s = settings_of(&v);
    rf_generator *g = NULL;
    rf_lora lora;
    if (i) {
      MUST(rf_adapter_open(adapter_of(v.model, i - 1), &s.model, &lora, &error));
      s.model.lora = lora;
    }
    MUST(rf_generator_open(&s, &g, &error));
    for (int p = 0; p < PROMPTS; p++) {
      asked a;
      submit(g, p, 0, &a);
      while (rf_generator_busy(g)) step(g);
      memcpy(to->token[p][i], a.token, sizeof a.token);
      memcpy(to->logprob[p][i], a.logprob, sizeof a.logprob);
    }
    rf_generator_close(g);
  }
  for (int i = 0; i <= ADAPTERS; i++)
    for (int k = 0; k < i; k++) assert_memory_not_equal(to->logprob[0][i], to->logprob[0][k], sizeof(float));
}

/* Asks for every prompt with every adapter, three times, in a mixed order. */
static void ask_all(const variant *v, const answers *expected, const char *where) {
  enum { ALL = 3 * PROMPTS * (ADAPTERS + 1) };
  rf_generator *g = open_slots(v, SLOTS);
  int64_t id[ADAPTERS + 1] = {0};
  asked a[ALL];
  for (int i = ADAPTERS; i > 0; i--) id[i] = load(g, adapter_of(v->model, i - 1));
  for (int i = 0; i < ALL; i++) submit(g, i * 5 % PROMPTS, id[i * 7 % (ADAPTERS + 1)], &a[i]);
  while (rf_generator_busy(g)) step(g);
  for (int i = 0; i < ALL; i++) same(&a[i], expected, i * 5 % PROMPTS, i * 7 % (ADAPTERS + 1), where);
  if (!v->no_sharing && v->batch > 1) assert_true(rf_generator_counts(g).reused > 0);
  rf_generator_close(g);
}

static void answers_have_the_bits_of_one_adapter(void **state) {
  (void)state;
  const rf_isa best = rf_isa_detect();
  const variant variants[] = {
      {.model = 0, .dtype = RF_F32, .isa = best, .threads = 2, .batch = 7},
      {.model = 1, .dtype = RF_F32, .isa = best, .threads = 1, .batch = 1},
      {.model = 1, .dtype = RF_F32, .isa = best, .threads = 2, .batch = 7, .no_sharing = true},
      {.model = 1, .dtype = RF_F32, .isa = RF_ISA_BASE, .threads = 1, .batch = 5},
      {.model = 1, .dtype = RF_BF16, .isa = best, .threads = 2, .batch = 7},
      {.model = 1, .dtype = RF_BF16, .isa = RF_ISA_AVX2, .threads = 1, .batch = 7},
      {.model = 2, .dtype = RF_F32, .isa = RF_ISA_AVX512, .threads = 1, .batch = 7},
      {.model = 2, .dtype = RF_BF16, .isa = RF_ISA_AVX512, .threads = 1, .batch = 7},
      {.model = 2, .dtype = RF_F32, .isa = best, .threads = 2, .batch = 7, .weights = RF_WEIGHTS_Q4},
      {.model = 1, .isa = best, .threads = 2, .batch = 7, .weights = RF_WEIGHTS_INT8, .fast = true}};
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    static answers expected;
    char where[32];
    if (variants[i].isa > best) continue;
    snprintf(where, sizeof where, "variant %zu", i);
    answer_alone(&variants[i], &expected);
    ask_all(&variants[i], &expected, where);
  }
}

static const variant PLAIN = {.model = 1, .dtype = RF_F32, .threads = 1, .batch = 3};

static void adapters_come_and_go(void **state) {
  (void)state;
  static answers expected;
  variant v = PLAIN;
  v.isa = rf_isa_detect();
  answer_alone(&v, &expected);
  rf_generator *g = open_slots(&v, 1);
  rf_adapter_values *other = NULL;
  asked before[4], after[4], base;
  int64_t first = load(g, adapter_of(1, 0)), second = 0;
  int slots;
  MUST(rf_adapter_values_read(g, adapter_of(1, 1), &other, &error));
  assert_int_equal(rf_generator_load(g, other, &second, &error), RAFTER_NO_FIT);
  assert_non_null(strstr(error.message, "all 1 slots for adapters are in use"));
  for (int i = 0; i < 4; i++) submit(g, 0, first, &before[i]); /* one waits */
  for (int i = 0; i < 5; i++) step(g);
  MUST(rf_generator_unload(g, first, &error));
  assert_int_equal(rf_generator_unload(g, first, &error), RAFTER_INVALID);
  assert_int_equal(rf_generator_adapters(g, &slots), 0);
  assert_int_equal(slots, 1);
  int32_t token = 1;
  const rf_request late = {.tokens = &token, .count = 1, .sampler = {.top_p = 1}, .adapter = first};
  assert_int_equal(rf_generator_submit(g, &late, NULL, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "adapter that is not loaded"));
  /* The slot is not free while answers use it. */
  assert_int_equal(rf_generator_load(g, other, &second, &error), RAFTER_NO_FIT);
  assert_non_null(strstr(error.message, "requests to adapters that were unloaded"));
  submit(g, 0, 0, &base);
  while (rf_generator_busy(g)) step(g);
  for (int i = 0; i < 4; i++) same(&before[i], &expected, 0, 1, "unloaded while it runs");
  same(&base, &expected, 0, 0, "the base next to it");
  /* The prompt is in the cache, computed with the first adapter and with the base. */
  MUST(rf_generator_load(g, other, &second, &error));
  assert_true(second > first);
  for (int i = 0; i < 4; i++) submit(g, 0, second, &after[i]);
  while (rf_generator_busy(g)) step(g);
  for (int i = 0; i < 4; i++) same(&after[i], &expected, 0, 2, "loaded in the same slot");
  rf_adapter_values_free(other);
  rf_generator_close(g);
}

/* A request with more answers than slots keeps its prompt in the cache. No other adapter may use
 * this prompt, and neither may the base. */
static void a_kept_prompt_belongs_to_its_adapter(void **state) {
  (void)state;
  static answers expected;
  variant v = PLAIN;
  v.isa = rf_isa_detect();
  answer_alone(&v, &expected);
  rf_generator *g = open_slots(&v, SLOTS);
  asked many[9], others[6];
  int64_t first = load(g, adapter_of(1, 0)), second = load(g, adapter_of(1, 1));
  submit_many(g, 1, first, 9, many);
  for (int i = 0; i < 6; i++) submit(g, 1, i % 2 ? second : 0, &others[i]);
  while (rf_generator_busy(g)) step(g);
  same(&many[0], &expected, 1, 1, "the first of many");
  for (int i = 0; i < 6; i++) same(&others[i], &expected, 1, i % 2 ? 2 : 0, "after many");
  rf_generator_close(g);
}

static void cut_file(const char *path, long bytes) {
  char file[300];
  snprintf(file, sizeof file, "%s/adapter_model.safetensors", path);
  assert_int_equal(truncate(file, bytes), 0);
}

static void refused(const rf_generator *g, const char *path, const char *says) {
  rf_adapter_values *values = NULL;
  assert_int_not_equal(rf_adapter_values_read(g, path, &values, &error), RAFTER_OK);
  assert_null(values);
  if (!strstr(error.message, says)) fail_msg("expected '%s' in: %s", says, error.message);
}

static void bad_adapters_change_nothing(void **state) {
  (void)state;
  static answers expected;
  variant v = PLAIN;
  v.isa = rf_isa_detect();
  answer_alone(&v, &expected);
  rf_generator *g = open_slots(&v, 2), *without = open_slots(&v, 0);
  int64_t id = load(g, adapter_of(1, 0));
  refused(without, adapter_of(1, 0), "the generator has no slots for adapters");
  rf_adapter_values *foreign = NULL;
  int64_t none = 0;
  MUST(rf_adapter_values_read(g, adapter_of(1, 0), &foreign, &error));
  assert_int_equal(rf_generator_load(without, foreign, &none, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "read for another generator"));
  rf_adapter_values_free(foreign);
  refused(g, write_adapter(MODELS[1], "rank=9,targets=q", "large", 1),
          "rank is too large for the slots (expected at most 8, got 9)");
  refused(g, adapter_of(2, 0), "has the wrong shape");
  refused(g, adapter_of(0, 0), "does not belong to the model");
  refused(g, folder, "adapter_config.json");
  const char *cut = write_adapter(MODELS[1], "rank=4,targets=q,v", "cut", 1);
  cut_file(cut, 3000);
  refused(g, cut, "adapter_model.safetensors");
  cut_file(cut, 0);
  refused(g, cut, "adapter_model.safetensors");
  asked a, b;
  submit(g, 1, id, &a);
  submit(g, 1, 0, &b);
  while (rf_generator_busy(g)) step(g);
  same(&a, &expected, 1, 1, "after refused adapters");
  same(&b, &expected, 1, 0, "after refused adapters");
  rf_generator_close(g);
  rf_generator_close(without);
}

/* The plan has the bytes of every slot: A (K, P r), B (r, S) and the ranks, for each adapted
 * weight. */
static void slots_are_in_the_plan(void **state) {
  (void)state;
  variant v = PLAIN;
  v.isa = rf_isa_detect();
  rf_generator *g = open_slots(&v, SLOTS), *without = open_slots(&v, 0);
  const rf_graph *graph = g->decode->graph;
  int64_t bytes = 0, width = 48, kv = 24, ff = 80;
  for (int t = 0; t < graph->tensor_count; t++)
    if (graph->tensor[t].class == RF_CLASS_ADAPTER) bytes += rf_tensor_bytes(&graph->tensor[t]);
  int64_t values =
              RANK * ((3 * width + width + 2 * kv) + (width + width) + (2 * width + 2 * ff) + (ff + width)),
          layer = values * 4 + (3 + 1 + 2 + 1) * 4;
  assert_int_equal(bytes, SLOTS * 2 * layer);
  assert_true(rf_generator_arena_bytes(g) >= rf_generator_arena_bytes(without) + bytes);
  rf_generator_close(g);
  rf_generator_close(without);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(answers_have_the_bits_of_one_adapter),
      cmocka_unit_test(adapters_come_and_go),
      cmocka_unit_test(a_kept_prompt_belongs_to_its_adapter),
      cmocka_unit_test(bad_adapters_change_nothing),
      cmocka_unit_test(slots_are_in_the_plan),
  };
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
