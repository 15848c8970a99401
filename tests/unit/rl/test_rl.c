/* test_rl.c - steps of reinforcement learning: the trainer's log-probabilities have the bits of the
 * sampler's, batch sizes, threads and interruptions change no bit, and the arena is the planned
 * one. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights.h"
#include "rl/rl.h"
#include "support/scratch.h"
#include "support/training.h"
#include "train/checkpoint.h"

enum { CONTEXT = 24, PROMPTS = 3, SAMPLES = 4, ANSWER = 7, STEPS = 3 };
#define LLAMA "llama:layers=2,width=48,heads=4,kv_heads=2,ff=96,vocab=300,seq=24"
#define GEMMA "gemma3:layers=2,width=32,heads=4,kv_heads=2,head_dim=16,ff=64,vocab=300,seq=24,window=8"
#define GPT "gpt:layers=2,width=48,heads=3,ff=160,vocab=300,seq=24"
#define LORA "rank=4,alpha=64,targets=q,v,out,gate_up,down"

#define MUST(call) \
  do { \
    if ((call) != RAFTER_OK) fail_msg("%s (%s)", error.message, error.hint); \
  } while (0)

typedef struct variant {
  const char *spec, *lora, *loss;
  double beta;
  rf_dtype dtype;
  rf_weights_as weights;
  float temperature;
  bool fast;
  int iterations, threads;
  int64_t slots, microbatch;
  bool poison, drops, masks, apart; /* apart: two ops compute the head, one before the loss */
} variant;

/* A run with its parts. */
typedef struct policy {
  rf_rl_settings settings;
  rf_prompt_reader reader;
  rf_rewards *rewards;
  rf_rl_prompts *data;
  rf_rl *rl;
} policy;

static rf_machine machine;
static rf_error error;
static rf_weight_types types;

static void write_prompts(void) {
  FILE *file = fopen(at("prompts.jsonl"), "w");
  assert_non_null(file);
  for (int i = 0; i < 11; i++) {
    fprintf(file, "{\"id\":\"p%d\",\"tokens\":[%d", i, 3 + i);
    for (int t = 0; t < i % 5; t++) fprintf(file, ",%d", (i * 37 + t * 11) % 256);
    fprintf(file, "],\"answer\":\"%d\"}\n", i);
  }
  fclose(file);
}

static const rf_rl_loss *loss_of(const char *name) {
  const rf_rl_loss *loss = RF_RL_LOSSES;
  while (strcmp(loss->name, name) != 0) loss++;
  return loss;
}

static void settle(policy *p, const variant *v) {
  rf_train_settings *s = &p->settings.train;
  *s = training_settings(v->spec, folder, &machine, CONTEXT, v->threads ? v->threads : 2);
  s->data = NULL;
  if (v->lora) MUST(rf_lora_parse(v->lora, &s->model, &s->model.lora, &error));
  rf_build_options *b = &s->plan.build;
  b->dtype = v->dtype;
  b->microbatch = v->microbatch ? v->microbatch : 2;
  b->accumulate = (int)((PROMPTS * SAMPLES + b->microbatch - 1) / b->microbatch);
  b->objective = RF_OBJECTIVE_POLICY;
  b->policy = loss_of(v->loss)->policy;
  b->policy.beta = loss_of(v->loss)->kl_in_reward ? 0 : (float)v->beta;
  b->policy.on_policy = v->iterations < 2 && !v->apart;
  b->temperature = v->temperature;
  b->fast = v->fast;
  s->schedule.peak = 1e-2;
  s->debug.poison = v->poison;
  s->plan.guard_bytes = v->poison ? 64 : 0;
  if (v->weights != RF_WEIGHTS_FILE) {
    MUST(rf_weight_types_read("", &s->model, v->weights, &types, &error));
    b->weights = &types;
  }
}

static void prepare(policy *p, const variant *v) {
  static const char *const list[] = {"regex=[a-m]:1,regex=[n-z]:-0.5"};
  *p = (policy){0};
  settle(p, v);
  p->reader = (rf_prompt_reader){.model = &p->settings.train.model, .folder = ""};
  MUST(rf_prompt_reader_open(&p->reader, false, &error));
  MUST(rf_rewards_open(&(rf_reward_options){.list = list, .lists = 1}, &p->rewards, &error));
  MUST(rf_rl_prompts_open(at("prompts.jsonl"), &p->reader, p->rewards, CONTEXT - ANSWER, &p->data, &error));
  p->settings.roll = p->settings.train.plan.build;
  p->settings.roll.microbatch = v->slots ? v->slots : 5;
  p->settings.roll.sequences = p->settings.roll.microbatch;
  p->settings.loss = loss_of(v->loss);
  p->settings.beta = v->beta;
  p->settings.prompts = PROMPTS;
  p->settings.samples = SAMPLES;
  p->settings.max_tokens = ANSWER;
  p->settings.iterations = v->iterations ? v->iterations : 1;
  p->settings.drops_flat = v->drops;
  p->settings.masks_cut = v->masks;
  p->settings.tokenizer = p->reader.tokenizer;
  p->settings.sampler = (rf_sampler_options){.top_p = 1, .ignore_eos = true};
  p->settings.data = p->data;
  p->settings.rewards = p->rewards;
}

static void open_policy(policy *p, const variant *v) {
  prepare(p, v);
  MUST(rf_rl_open(&p->settings, &p->rl, &error));
}

static void close_policy(policy *p) {
  rf_rewards_close(p->rewards);
  rf_rl_close(p->rl);
  rf_rl_prompts_close(p->data);
  rf_prompt_reader_close(&p->reader);
}

/* The results of a step that must not depend on how it was computed. */
typedef struct result {
  double reward, loss, norm, kl;
  uint64_t answers; /* hash of all tokens and log-probabilities */
} result;

static result step(policy *p, rf_rl_report *report) {
  MUST(rf_rl_step(p->rl, report, &error));
  result r = {report->reward.mean, report->train.loss, report->train.grad_norm, report->kl, 0};
  for (int64_t g = 0; g < p->rl->groups; g++)
    for (int i = 0; i < SAMPLES; i++) {
      const rf_reply *reply = p->rl->group[g].answer[i].reply;
      for (int64_t t = 0; t < reply->tokens.count; t++) {
        uint32_t bits;
        memcpy(&bits, &reply->logprobs[t], sizeof bits);
        r.answers = rf_key(r.answers, (uint64_t)reply->tokens.at[t], bits);
      }
    }
  return r;
}

static const variant VARIANTS[] = {
    {.spec = LLAMA, .lora = LORA, .loss = "grpo", .beta = 0.04, .dtype = RF_F32, .poison = true},
    {.spec = LLAMA, .lora = LORA, .loss = "grpo", .beta = 0.04, .dtype = RF_BF16},
    {.spec = GEMMA, .lora = LORA, .loss = "dr-grpo", .dtype = RF_BF16, .weights = RF_WEIGHTS_Q4},
    {.spec = LLAMA, .lora = LORA, .loss = "dapo", .dtype = RF_F32, .weights = RF_WEIGHTS_INT8, .drops = true},
    {.spec = GEMMA, .lora = LORA, .loss = "gspo", .beta = 0.01, .dtype = RF_F32, .temperature = 0.7f},
    {.spec = LLAMA, .lora = LORA, .loss = "rloo", .beta = 0.04, .dtype = RF_BF16, .temperature = 1.3f},
    {.spec = LLAMA, .lora = LORA, .loss = "reinforce++", .beta = 0.01, .dtype = RF_F32},
    {.spec = LLAMA, .lora = LORA, .loss = "cispo", .dtype = RF_F32, .weights = RF_WEIGHTS_Q4, .fast = true},
    {.spec = GPT, .loss = "grpo", .beta = 0.04, .dtype = RF_F32},
    {.spec = GPT, .loss = "grpo", .dtype = RF_BF16, .poison = true},
};
enum { VARIANT_COUNT = sizeof VARIANTS / sizeof *VARIANTS };

/* In the first pass over the answers, the ratio is exactly 1: trainer and sampler have the same
 * bits. So no token is clipped, and before the first step, the KL divergence is exactly 0. */
static void the_first_ratio_is_one(void **state) {
  (void)state;
  for (int n = 0; n < VARIANT_COUNT; n++) {
    policy p;
    rf_rl_report report;
    open_policy(&p, &VARIANTS[n]);
    for (int s = 0; s < STEPS; s++) {
      step(&p, &report);
      if (report.ratio_min != 1 || report.ratio_max != 1 || report.clip_fraction != 0)
        fail_msg("variant %d, step %d: ratios from %.17g to %.17g", n, s, report.ratio_min, report.ratio_max);
      if (s == 0) assert_true(report.kl == 0);
      if (s == 2 && VARIANTS[n].beta > 0 && !p.settings.loss->kl_in_reward) assert_true(report.kl > 0);
      assert_true(isfinite(report.train.loss) &&
                  report.answers == (report.groups + report.dropped_groups) * SAMPLES);
    }
    close_policy(&p);
  }
}

/* More optimizer steps over the same answers move the policy, so the ratio leaves 1. */
static void later_iterations_have_ratios(void **state) {
  (void)state;
  policy p;
  rf_rl_report report;
  variant v = VARIANTS[0];
  v.iterations = 3;
  open_policy(&p, &v);
  step(&p, &report);
  assert_true(report.ratio_min < 1 && report.ratio_max > 1);
  assert_int_equal(p.rl->trainer->step, 3);
  assert_int_equal(rf_rl_steps_done(p.rl), 1);
  close_policy(&p);
}

static int ops_named(const rf_plan *plan, const char *def) {
  int count = 0;
  for (int o = 0; o < plan->graph->op_count; o++) count += !strcmp(plan->graph->op[o].def->name, def);
  return count;
}

/* A single optimizer step knows the log-probabilities from sampling, so the head is computed once.
 * The bits are those of the step that computes them again before the loss. */
static void one_head_has_the_bits_of_two(void **state) {
  (void)state;
  for (int n = 0; n < VARIANT_COUNT; n++) {
    result want[STEPS], got;
    policy p;
    rf_rl_report report;
    variant v = VARIANTS[n];
    v.apart = true;
    open_policy(&p, &v);
    assert_int_equal(ops_named(p.rl->trainer->plan, "head_loss_bwd"), 1);
    for (int s = 0; s < STEPS; s++) want[s] = step(&p, &report);
    close_policy(&p);
    open_policy(&p, &VARIANTS[n]);
    assert_int_equal(ops_named(p.rl->trainer->plan, "head_loss_bwd"), 0);
    assert_int_equal(ops_named(p.rl->trainer->plan, "head_loss_grad"), 1);
    for (int s = 0; s < STEPS; s++) {
      got = step(&p, &report);
      if (memcmp(&got, &want[s], sizeof got) != 0)
        fail_msg("variant %d, step %d: loss %.17g instead of %.17g, norm %.17g instead of %.17g", n, s,
                 got.loss, want[s].loss, got.norm, want[s].norm);
    }
    close_policy(&p);
  }
}

static void planned_is_allocated(void **state) {
  (void)state;
  for (int n = 0; n < VARIANT_COUNT; n++) {
    policy p;
    rf_rl_report report;
    open_policy(&p, &VARIANTS[n]);
    const rf_plan *policy_plan = p.rl->trainer->plan;
    int64_t bytes = rf_run_arena_bytes(p.rl->run) + (p.rl->apart ? rf_run_arena_bytes(p.rl->apart) : 0);
    assert_int_equal(bytes, rf_rl_plans_bytes(policy_plan, &p.rl->plans));
    assert_int_equal(p.rl->apart != NULL, !VARIANTS[n].lora && VARIANTS[n].beta > 0);
    assert_int_equal(p.rl->reference != NULL, VARIANTS[n].beta > 0);
    step(&p, &report);
    if (VARIANTS[n].poison) {
      bool intact = false;
      int64_t high = rf_run_high_water(p.rl->run, &intact);
      assert_true(intact && high <= rf_run_arena_bytes(p.rl->run));
    }
    close_policy(&p);
  }
}

/* Threads, answers at once, and sequences in a microbatch change no bit. */
static void sizes_change_no_bit(void **state) {
  (void)state;
  static const struct {
    int threads;
    int64_t slots, microbatch;
  } sizes[] = {{1, 1, 1}, {2, 12, 12}, {2, 3, 4}};
  for (int n = 0; n < VARIANT_COUNT; n += 3) {
    result want[STEPS], got;
    policy p;
    rf_rl_report report;
    open_policy(&p, &VARIANTS[n]);
    for (int s = 0; s < STEPS; s++) want[s] = step(&p, &report);
    close_policy(&p);
    assert_true(want[0].answers != want[1].answers);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
      variant v = VARIANTS[n];
      v.threads = sizes[k].threads;
      v.slots = sizes[k].slots;
      v.microbatch = sizes[k].microbatch;
      open_policy(&p, &v);
      for (int s = 0; s < STEPS; s++) {
        got = step(&p, &report);
        if (memcmp(&got, &want[s], sizeof got) != 0)
          fail_msg("variant %d, sizes %zu, step %d: loss %.17g instead of %.17g", n, k, s, got.loss,
                   want[s].loss);
      }
      close_policy(&p);
    }
  }
}

static void a_resumed_run_has_the_same_bits(void **state) {
  (void)state;
  for (int n = 0; n < VARIANT_COUNT; n += 4) {
    result want[4], got;
    policy p;
    rf_rl_report report;
    char path[300];
    snprintf(path, sizeof path, "%s", at("saved"));
    open_policy(&p, &VARIANTS[n]);
    for (int s = 0; s < 4; s++) {
      want[s] = step(&p, &report);
      if (s == 1) MUST(rf_checkpoint_save(p.rl->trainer, path, &error));
    }
    close_policy(&p);
    prepare(&p, &VARIANTS[n]);
    p.settings.train.resume_folder = path;
    MUST(rf_rl_open(&p.settings, &p.rl, &error));
    assert_int_equal(rf_rl_steps_done(p.rl), 2);
    for (int s = 2; s < 4; s++) {
      got = step(&p, &report);
      assert_memory_equal(&got, &want[s], sizeof got);
    }
    close_policy(&p);
  }
}

/* Other prompts than those of the checkpoint are refused. */
static void other_prompts_are_refused(void **state) {
  (void)state;
  policy p;
  rf_rl_report report;
  char path[300];
  snprintf(path, sizeof path, "%s", at("saved"));
  open_policy(&p, &VARIANTS[0]);
  step(&p, &report);
  MUST(rf_checkpoint_save(p.rl->trainer, path, &error));
  close_policy(&p);
  FILE *file = fopen(at("prompts.jsonl"), "a");
  fputs("{\"tokens\":[9,9],\"answer\":\"1\"}\n", file);
  fclose(file);
  prepare(&p, &VARIANTS[0]);
  p.settings.train.resume_folder = path;
  assert_int_equal(rf_rl_open(&p.settings, &p.rl, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "the data is not what the run was trained on"));
  close_policy(&p);
  write_prompts();
}

/* A signal between the answers ends the step without an effect on weights and position. */
static void an_interrupted_step_has_no_effect(void **state) {
  (void)state;
  volatile int stop = 0;
  policy p;
  rf_rl_report report;
  prepare(&p, &VARIANTS[0]);
  p.settings.train.progress.stop = &stop;
  MUST(rf_rl_open(&p.settings, &p.rl, &error));
  step(&p, &report);
  int64_t rows = p.rl->trainer->loader.state.rows;
  stop = 1;
  assert_int_equal(rf_rl_step(p.rl, &report, &error), RAFTER_INTERRUPTED);
  assert_int_equal(rf_rl_steps_done(p.rl), 1);
  assert_int_equal(p.rl->trainer->loader.state.rows, rows);
  close_policy(&p);
}

/* Without a signal in any group, the loss is 0 and so is the gradient. */
static void groups_without_signal_change_nothing(void **state) {
  (void)state;
  static const char *const list[] = {"regex=.:0"};
  policy p;
  rf_rl_report report;
  variant v = VARIANTS[2];
  prepare(&p, &v);
  rf_rewards_close(p.rewards);
  MUST(rf_rewards_open(&(rf_reward_options){.list = list, .lists = 1}, &p.rewards, &error));
  p.settings.rewards = p.rewards;
  MUST(rf_rl_open(&p.settings, &p.rl, &error));
  step(&p, &report);
  assert_int_equal(report.flat_groups, report.groups);
  assert_true(report.train.loss == 0 && report.train.grad_norm == 0);
  assert_int_equal(rf_rl_steps_done(p.rl), 1);
  close_policy(&p);
}

static int make_files(void **state) {
  int failed = make_folder(state);
  if (!failed) write_prompts();
  return failed;
}

int main(void) {
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_first_ratio_is_one),
      cmocka_unit_test(later_iterations_have_ratios),
      cmocka_unit_test(one_head_has_the_bits_of_two),
      cmocka_unit_test(planned_is_allocated),
      cmocka_unit_test(sizes_change_no_bit),
      cmocka_unit_test(a_resumed_run_has_the_same_bits),
      cmocka_unit_test(other_prompts_are_refused),
      cmocka_unit_test(an_interrupted_step_has_no_effect),
      cmocka_unit_test(groups_without_signal_change_nothing),
  };
  return cmocka_run_group_tests(tests, make_files, remove_folder);
}
