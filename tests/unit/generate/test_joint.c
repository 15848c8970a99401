/* test_joint.c - a trainer, a generator and scorers share one arena with one copy of the weights.
 * After each round of training steps, answers and scores have the bits of a generator and a scorer
 * that load the exported checkpoint. The losses have the bits of a run that never generates. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/batch.h"
#include "generate/score.h"
#include "model/adapter.h"
#include "support/plan/check.h"
#include "support/scratch.h"
#include "support/training.h"
#include "train/checkpoint.h"

enum { CONTEXT = 40, TEXTS = 4, SLOTS = 2, ANSWER = 9, ROUNDS = 3, STEPS = 2, PLANS = 6 };
#define LORA "rank=4,alpha=64,targets=q,v,out,gate_up,down,dropout=0.1"
#define GPT_LORA "rank=4,alpha=64,targets=qkv,out,up,down,dropout=0.1"

typedef struct variant {
  const char *spec, *lora;
  rf_dtype dtype;
  rf_weights_as weights; /* Storage of the frozen weights. */
  bool poison;
} variant;

/* Panels of the first GPT and of the Llama are padded. In the second GPT a packed matrix has as
 * many bytes as a plain one, so only the storage shows that the bytes are other values. */
#define GPT "gpt:layers=2,width=48,heads=3,ff=160,vocab=300,seq=40"
#define EVEN_GPT "gpt:layers=2,width=64,heads=4,ff=128,vocab=320,seq=40"
#define LLAMA "llama:layers=2,width=48,heads=4,kv_heads=2,ff=96,vocab=300,seq=40"
#define GEMMA "gemma3:layers=2,width=32,heads=4,kv_heads=2,head_dim=16,ff=64,vocab=300,seq=40,window=16"
#define MIXTRAL "mixtral:layers=2,width=48,heads=3,kv_heads=1,ff=64,vocab=300,seq=40,experts=4,experts_used=2"

static rf_machine machine;
static rf_error error;
static rf_weight_types types;

/* Texts with the log-probabilities of generation and of scoring. */
typedef struct texts {
  int32_t ids[TEXTS][CONTEXT];
  int64_t prompt[TEXTS], count[TEXTS];
  float generated[TEXTS][CONTEXT], scored[TEXTS][CONTEXT], base[TEXTS][CONTEXT];
} texts;

typedef struct joint {
  rf_train_settings train;
  rf_infer_settings generate;
  rf_infer_settings score, reference; /* reference: the model without its adapters */
  rf_trainer *trainer;
  rf_plan *prefill, *decode, *scores, *references;
  const rf_plan *list[PLANS];
  int plans;
  rf_run *run;
  rf_generator *generator;
  rf_scorer *scorer, *base;
} joint;

#define MUST(call) \
  do { \
    if ((call) != RAFTER_OK) fail_msg("%s (%s)", error.message, error.hint); \
  } while (0)

static rf_train_settings settings_of(const variant *v) {
  rf_train_settings s = training_settings(v->spec, folder, &machine, CONTEXT, 2);
  if (v->lora) {
    rf_lora lora;
    MUST(rf_lora_parse(v->lora, &s.model, &lora, &error));
    s.model.lora = lora;
  }
  s.plan.build.dtype = v->dtype;
  s.plan.build.microbatch = 2;
  s.plan.build.accumulate = 2;
  s.plan.build.dropout = 0.1f;
  s.plan.build.weight_decay = 0.1f;
  s.schedule.peak = 1e-2;
  s.val_fraction = 0.1;
  if (v->weights != RF_WEIGHTS_FILE) {
    MUST(rf_weight_types_read("", &s.model, v->weights, &types, &error));
    s.plan.build.weights = &types;
  }
  s.debug.poison = v->poison;
  s.plan.guard_bytes = v->poison ? 64 : 0;
  return s;
}

static void make_plans(joint *j, const variant *v) {
  *j = (joint){.train = settings_of(v)};
  MUST(rf_trainer_prepare(&j->train, &j->trainer, &error));
  j->generate = (rf_infer_settings){
      .model = j->train.model, .plan = j->train.plan, .seed = j->train.seed, .debug = j->train.debug};
  j->generate.plan.build.microbatch = SLOTS;
  j->generate.plan.build.sequences = TEXTS + 1;
  j->generate.plan.build.chunk = 16;
  j->score = (rf_infer_settings){
      .model = j->train.model, .plan = j->train.plan, .seed = j->train.seed, .debug = j->train.debug};
  j->score.plan.build.microbatch = TEXTS;
  j->reference = j->score;
  j->reference.model.lora = (rf_lora){0};
  rf_infer_settings generate = j->generate;
  rf_infer_settings score = j->score, reference = j->reference;
  generate.plan.owner = score.plan.owner = reference.plan.owner = j->trainer->plan;
  MUST(rf_generate_plans(&generate, &j->prefill, &j->decode, &error));
  MUST(rf_score_plan(&score, &j->scores, &error));
  MUST(rf_score_plan(&reference, &j->references, &error));
  j->plans = rf_trainer_plans(j->trainer, j->list);
  const rf_plan *const guests[] = {j->prefill, j->decode, j->scores, j->references};
  for (int i = 0; i < 4; i++) {
    MUST(rf_plan_check(guests[i], &error));
    j->list[j->plans++] = guests[i];
  }
}

static void open_joint(joint *j, const variant *v) {
  make_plans(j, v);
  int first = j->plans - 4;
  MUST(rf_run_open(j->list, j->plans, j->train.debug, &j->run, &error));
  MUST(rf_trainer_bind(j->trainer, j->run, &error));
  MUST(rf_generator_bind(&j->generate, j->run, first, j->prefill, j->decode, &j->generator, &error));
  MUST(rf_scorer_bind(&j->score, j->run, first + 2, j->scores, &j->scorer, &error));
  MUST(rf_scorer_bind(&j->reference, j->run, first + 3, j->references, &j->base, &error));
}

static void close_joint(joint *j) {
  rf_generator_close(j->generator);
  rf_scorer_close(j->scorer);
  rf_scorer_close(j->base);
  rf_run_close(j->run);
  rf_plan_free(j->prefill);
  rf_plan_free(j->decode);
  rf_plan_free(j->scores);
  rf_plan_free(j->references);
  rf_trainer_close(j->trainer);
}

/* Each round asks for the same prompts, and their cache is kept: a cache that outlives a step
 * would be used. */
static void submit(rf_generator *g, texts *t) {
  for (int i = 0; i < TEXTS; i++) {
    t->count[i] = t->prompt[i] = 1 + 6 * i;
    for (int64_t k = 0; k < t->prompt[i]; k++) t->ids[i][k] = (int32_t)((k * k + 3 * k + 5 * (i / 2)) % 299);
    rf_request r = {.tokens = t->ids[i],
                    .count = t->prompt[i],
                    .max_tokens = ANSWER,
                    .sampler = {.temperature = i % 2 ? 1 : 0, .top_p = 1, .seed = (uint64_t)i},
                    .keep = true,
                    .owner = t};
    int64_t id;
    MUST(rf_generator_submit(g, &r, &id, &error));
  }
}

static void take_step(rf_generator *g, texts *t) {
  const rf_event *event;
  int count;
  int64_t first = g->batch->next_id - TEXTS;
  MUST(rf_generator_step(g, &event, &count, &error));
  for (int k = 0; k < count; k++) {
    int64_t i = event[k].request - first;
    if (event[k].token < 0) continue;
    t->ids[i][t->count[i]] = event[k].token;
    t->generated[i][t->count[i]++] = event[k].logprob;
  }
}

static void answer(rf_generator *g, texts *t) {
  submit(g, t);
  while (rf_generator_busy(g)) take_step(g, t);
}

static void score(rf_scorer *scorer, const texts *t, float logprobs[TEXTS][CONTEXT]) {
  rf_scored list[TEXTS];
  for (int i = 0; i < TEXTS; i++)
    list[i] = (rf_scored){.tokens = t->ids[i], .count = t->count[i], .logprobs = logprobs[i]};
  MUST(rf_scorer_pass(scorer, list, TEXTS, &error));
}

static void use(joint *j, texts *t) {
  memset(t, 0, sizeof *t);
  answer(j->generator, t);
  score(j->scorer, t, t->scored);
  score(j->base, t, t->base);
}

/* The same with a generator and scorers of their own, which load what the trainer exports. */
static void use_exported(const joint *j, texts *t) {
  rf_infer_settings generate = j->generate;
  rf_infer_settings scores = j->score, reference = j->reference;
  rf_generator *g = NULL;
  rf_scorer *s = NULL;
  char path[256];
  snprintf(path, sizeof path, "%s", at("exported"));
  MUST(rf_checkpoint_save(j->trainer, path, &error));
  if (generate.model.lora.rank) {
    MUST(rf_adapter_open(path, &j->train.model, &generate.model.lora, &error));
    scores.model.lora = generate.model.lora;
  } else {
    char weights[4096];
    MUST(rf_model_resolve(path, &generate.model, weights, &error));
    scores.model = reference.model = generate.model;
    generate.weights_folder = scores.weights_folder = reference.weights_folder = path;
  }
  memset(t, 0, sizeof *t);
  MUST(rf_generator_open(&generate, &g, &error));
  answer(g, t);
  rf_generator_close(g);
  MUST(rf_scorer_open(&scores, &s, &error));
  score(s, t, t->scored);
  rf_scorer_close(s);
  MUST(rf_scorer_open(&reference, &s, &error));
  score(s, t, t->base);
  rf_scorer_close(s);
}

static double train(rf_trainer *t, double *validation) {
  rafter_step step = {0};
  for (int i = 0; i < STEPS; i++) MUST(rf_trainer_step(t, &step, &error));
  *validation = 0;
  if (t->val_plan) MUST(rf_trainer_validate(t, 4, validation, &error));
  return step.loss;
}

static const variant VARIANTS[] = {
    {.spec = GPT, .dtype = RF_F32},
    {.spec = GPT, .dtype = RF_BF16},
    {.spec = EVEN_GPT, .dtype = RF_F32, .poison = true},
    {.spec = EVEN_GPT, .dtype = RF_BF16, .poison = true},
    {.spec = LLAMA, .dtype = RF_F32},
    {.spec = LLAMA, .dtype = RF_BF16},
    {.spec = GEMMA, .dtype = RF_F32},
    {.spec = GEMMA, .dtype = RF_BF16},
    {.spec = MIXTRAL, .dtype = RF_BF16},
    {.spec = GPT, .lora = GPT_LORA, .dtype = RF_F32},
    {.spec = GPT, .lora = GPT_LORA, .dtype = RF_BF16, .poison = true},
    {.spec = LLAMA, .lora = LORA, .dtype = RF_F32, .poison = true},
    {.spec = LLAMA, .lora = LORA, .dtype = RF_BF16},
    {.spec = GEMMA, .lora = LORA, .dtype = RF_F32},
    {.spec = GEMMA, .lora = LORA, .dtype = RF_BF16},
    {.spec = LLAMA, .lora = LORA, .dtype = RF_F32, .weights = RF_WEIGHTS_INT8},
    {.spec = GEMMA, .lora = LORA, .dtype = RF_BF16, .weights = RF_WEIGHTS_Q4},
};
enum { VARIANT_COUNT = sizeof VARIANTS / sizeof *VARIANTS };

static void the_generator_has_the_trained_weights(void **state) {
  (void)state;
  for (int n = 0; n < VARIANT_COUNT; n++) {
    const variant *v = &VARIANTS[n];
    static texts shared, exported, before;
    rf_train_settings alone = settings_of(v);
    rf_trainer *other = NULL;
    joint j;
    MUST(rf_trainer_open(&alone, &other, &error));
    open_joint(&j, v);
    for (int round = 0; round < ROUNDS; round++) {
      double loss[2], validation[2];
      loss[0] = train(other, &validation[0]);
      loss[1] = train(j.trainer, &validation[1]);
      assert_memory_equal(&loss[0], &loss[1], sizeof *loss);
      assert_memory_equal(&validation[0], &validation[1], sizeof *validation);
      before = shared;
      use(&j, &shared);
      use_exported(&j, &exported);
      if (memcmp(&shared, &exported, sizeof shared))
        fail_msg("%s %s %s: other answers than with the exported weights", v->spec, rf_dtype_name(v->dtype),
                 v->lora ? v->lora : "");
      for (int i = 0; i < TEXTS; i++)
        assert_memory_equal(shared.generated[i] + shared.prompt[i], shared.scored[i] + shared.prompt[i],
                            ANSWER * sizeof(float));
      /* The steps changed the answers, and the adapters differ from the base. */
      assert_memory_not_equal(before.generated, shared.generated, sizeof shared.generated);
      if (v->lora) assert_memory_not_equal(shared.scored, shared.base, sizeof shared.base);
    }
    close_joint(&j);
    rf_trainer_close(other);
  }
}

/* The arena is planned before the run is opened, and the steps reach its end and write no byte
 * after it. The weights of all plans are at the trainer's offsets. */
static void planned_is_mapped(void **state) {
  (void)state;
  static texts t;
  for (int n = 0; n < VARIANT_COUNT; n++) {
    joint j;
    double validation;
    variant v = VARIANTS[n];
    v.poison = true;
    make_plans(&j, &v);
    int64_t planned = rf_plan_joint_bytes(j.list, j.plans), most = 0;
    const rf_plan *owner = j.list[0];
    for (int i = 0; i < j.plans; i++) {
      if (j.list[i]->arena_bytes > most) most = j.list[i]->arena_bytes;
      for (int s = 0; s < owner->graph->tensor_count; s++) {
        const rf_tensor *tensor = &owner->graph->tensor[s];
        if (!tensor->persistent) continue;
        int twin = rf_graph_find(j.list[i]->graph, tensor->name);
        assert_true(twin >= 0 && rf_tensor_same_storage(&j.list[i]->graph->tensor[twin], tensor));
        assert_int_equal(j.list[i]->tensor[twin].offset, owner->tensor[s].offset);
      }
    }
    assert_int_equal(planned, most);
    close_joint(&j);
    open_joint(&j, &v);
    assert_int_equal(rf_run_arena_bytes(j.run), planned);
    train(j.trainer, &validation);
    use(&j, &t);
    bool intact = false;
    int64_t high = rf_run_high_water(j.run, &intact);
    assert_true(intact && high <= planned && high >= planned - 128);
    close_joint(&j);
  }
}

/* ---- planted faults -------------------------------------------------------------------------- */

/* Plans that were made without the trainer's plan as their owner: matrices packed for inference,
 * and a KV cache in the place of the optimizer's moments. */
static void plans_of_other_storage_are_refused(void **state) {
  (void)state;
  static const struct {
    variant v;
    const char *tensor;
  } cases[] = {{{.spec = GPT, .dtype = RF_F32}, "embed/token/weight"},
               {{.spec = EVEN_GPT, .dtype = RF_F32}, "embed/token/weight"},
               {{.spec = EVEN_GPT, .dtype = RF_BF16}, "embed/token/weight"},
               {{.spec = LLAMA, .lora = LORA, .dtype = RF_F32}, "block.0/attn/cache"}};
  for (int c = 0; c < 4; c++) {
    joint j;
    rf_plan *prefill = NULL, *decode = NULL;
    make_plans(&j, &cases[c].v);
    j.generate.plan.build.seq = 4096; /* A cache larger than the states of the optimizer. */
    j.generate.model.max_seq = 4096;
    j.generate.plan.build.sequences = 64;
    MUST(rf_generate_plans(&j.generate, &prefill, &decode, &error));
    const rf_plan *plans[] = {j.trainer->plan, prefill, decode};
    assert_true(prefill->persistent_bytes >= j.trainer->plan->persistent_bytes);
    assert_int_equal(rf_run_open(plans, 3, (rf_run_debug){0}, &j.run, &error), RAFTER_INVALID);
    if (!strstr(error.message, cases[c].tensor)) fail_msg("%s", error.message);
    rf_plan_free(prefill);
    rf_plan_free(decode);
    /* Another dtype is refused by the plan itself. */
    j.score.plan.owner = j.trainer->plan;
    j.score.plan.build.dtype = cases[c].v.dtype == RF_F32 ? RF_BF16 : RF_F32;
    assert_int_equal(rf_score_plan(&j.score, &prefill, &error), RAFTER_INVALID);
    close_joint(&j);
  }
}

/* Opens and trains a joint run until its generator has a cache of earlier weights. */
static void train_and_use(joint *j, texts *t) {
  double validation;
  open_joint(j, &(variant){.spec = GPT, .dtype = RF_BF16});
  train(j->trainer, &validation);
  use(j, t);
}

static void a_stale_weight_is_found(void **state) {
  (void)state;
  static texts shared, exported;
  static unsigned char copy[1 << 16];
  joint j;
  double validation;
  train_and_use(&j, &shared);
  int weight = rf_run_find(j.run, 0, "block.1/mlp/up/weight");
  int64_t bytes = rf_tensor_bytes(&j.trainer->plan->graph->tensor[weight]);
  assert_in_range(bytes, 1, sizeof copy);
  MUST(rf_run_read(j.run, 0, weight, 0, copy, bytes, &error));
  train(j.trainer, &validation);
  MUST(rf_run_write(j.run, 0, weight, 0, copy, bytes, &error));
  use(&j, &shared);
  use_exported(&j, &exported);
  assert_memory_not_equal(&shared, &exported, sizeof shared);
  close_joint(&j);
}

static void a_stale_cache_is_found(void **state) {
  (void)state;
  static texts shared, exported;
  joint j;
  double validation;
  train_and_use(&j, &shared);
  train(j.trainer, &validation);
  use_exported(&j, &exported);
  /* The fault: the generator believes that no other plan ran. */
  j.generator->others = rf_run_others(j.run, j.generator->first, 2);
  use(&j, &shared);
  assert_true(rf_generator_counts(j.generator).reused > 0);
  assert_memory_not_equal(&shared, &exported, sizeof shared);
  rf_generator_reset(j.generator);
  use(&j, &shared);
  assert_memory_equal(&shared, &exported, sizeof shared);
  close_joint(&j);
}

/* A step of the trainer destroys the cache of running answers, which the next step reports. */
static void training_between_answers_is_refused(void **state) {
  (void)state;
  static texts shared, exported;
  joint j;
  double validation;
  const rf_event *event;
  const float *logits;
  const int32_t ids[] = {1, 2, 3};
  int count;
  train_and_use(&j, &shared);
  memset(&shared, 0, sizeof shared);
  submit(j.generator, &shared);
  take_step(j.generator, &shared);
  train(j.trainer, &validation);
  assert_int_equal(rf_generator_step(j.generator, &event, &count, &error), RAFTER_INVALID);
  for (int64_t id = j.generator->batch->next_id - TEXTS; id < j.generator->batch->next_id; id++)
    rf_generator_cancel(j.generator, id, -1);
  while (rf_generator_busy(j.generator)) MUST(rf_generator_step(j.generator, &event, &count, &error));
  use(&j, &shared);
  use_exported(&j, &exported);
  assert_memory_equal(&shared, &exported, sizeof shared);
  MUST(rf_generator_feed(j.generator, ids, 3, &logits, &error));
  train(j.trainer, &validation);
  assert_int_equal(rf_generator_feed(j.generator, ids, 3, &logits, &error), RAFTER_INVALID);
  rf_generator_reset(j.generator);
  MUST(rf_generator_feed(j.generator, ids, 3, &logits, &error));
  close_joint(&j);
}

int main(void) {
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_generator_has_the_trained_weights),
      cmocka_unit_test(planned_is_mapped),
      cmocka_unit_test(plans_of_other_storage_are_refused),
      cmocka_unit_test(a_stale_weight_is_found),
      cmocka_unit_test(a_stale_cache_is_found),
      cmocka_unit_test(training_between_answers_is_refused),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
