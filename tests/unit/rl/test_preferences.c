/* test_preferences.c - losses of preferences against TRL (tests/data/preferences/make.py): loss,
 * log-probabilities and gradients of one batch. References are computed once, equal the trainer's
 * own log-probabilities to the bit, and survive a resumed run. One arena holds everything. */
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

#include "base/file.h"
#include "base/json.h"
#include "formats/safetensors.h"
#include "model/adapter.h"
#include "model/names.h"
#include "rl/preferences.h"
#include "support/scratch.h"
#include "support/training.h"
#include "train/checkpoint.h"

#define BASE RF_TEST_DATA "/goldens/llama"
#define ADAPTER RF_TEST_DATA "/peft/llama-regex"

enum { RANK = 2 }; /* of most layers of the adapter */

static rf_machine machine;
static rf_error error;
static json_t *golden;
static rf_tensor_file *adapter;
static char weights[4096];

#define MUST(call) \
  do { \
    if ((call) != RAFTER_OK) fail_msg("%s (%s)", error.message, error.hint); \
  } while (0)

/* ---- TRL ------------------------------------------------------------------------------------- */

/* The largest errors: of numbers, relative to 1 + |number|; of gradients, relative to the norm. */
typedef struct errors {
  double loss, values, gradient;
  char worst[300];
} errors;

typedef struct variant {
  int64_t microbatch;
  const rf_backend *backend;
  bool swapped;         /* a fault: chosen and rejected are exchanged */
  bool wrong_reference; /* a fault: the reference is the policy */
} variant;

static void write_rows(bool swapped) {
  FILE *file = fopen(at("golden.jsonl"), "we");
  const json_t *row;
  size_t i;
  assert_non_null(file);
  json_array_foreach (json_object_get(golden, "rows"), i, row) {
    json_t *out = json_pack("{sO sO sO}", "tokens", json_object_get(row, "prompt"), "chosen",
                            json_object_get(row, swapped ? "rejected" : "chosen"), "rejected",
                            json_object_get(row, swapped ? "chosen" : "rejected"));
    char *text = json_dumps(out, JSON_COMPACT);
    fprintf(file, "%s\n", text);
    free(text);
    json_decref(out);
  }
  fclose(file);
}

static rf_pairs pairs_of(const json_t *setting) {
  const char *loss = json_string_value(json_object_get(setting, "loss"));
  return (rf_pairs){.kind = !strcmp(loss, "dpo")   ? RF_PAIRS_DPO
                            : !strcmp(loss, "ipo") ? RF_PAIRS_IPO
                                                   : RF_PAIRS_SIMPO,
                    .beta = (float)json_number_value(json_object_get(setting, "beta")),
                    .gamma = (float)json_number_value(json_object_get(setting, "gamma")),
                    .smoothing = (float)json_number_value(json_object_get(setting, "smoothing"))};
}

/* One step on the four pairs. The norm of the gradient is never clipped, so that the first moment
 * is 0.1 times the gradient. */
static rf_train_settings golden_settings(const variant *v) {
  rf_train_settings s = training_settings(BASE, folder, &machine, 20, 2);
  rf_lora lora;
  MUST(rf_model_resolve(BASE, &s.model, weights, &error));
  MUST(rf_adapter_open(ADAPTER, &s.model, &lora, &error));
  if (!v->wrong_reference) *lora.folder = 0; /* a new adapter; the test sets its values */
  s.model.lora = lora;
  s.weights_folder = weights;
  s.data = at("golden.jsonl");
  s.plan.build.microbatch = v->microbatch;
  s.plan.build.accumulate = (int)(8 / v->microbatch);
  s.plan.build.clip = 1e30f;
  s.plan.build.objective = RF_OBJECTIVE_PAIRS;
  s.plan.backend = v->backend;
  s.plan.build.plain = v->backend->plain_weights;
  return s;
}

static void note(double *slot, double got, double want, double scale, const char *what, errors *e) {
  double off = fabs(got - want) / scale;
  if (!isfinite(off)) off = INFINITY;
  if (off <= *slot) return;
  *slot = off;
  snprintf(e->worst, sizeof e->worst, "%.200s: got %.9g, want %.9g", what, got, want);
}

/* The norm of a part of a gradient, and the sum of x cos(0.7 i + 0.3) over its flat index i in
 * PEFT's layout: A is (rank, inputs), B is (outputs, rank). */
static void note_part(const float *m, const rf_param *param, const rf_name *name, int part, bool b,
                      const json_t *want, errors *e) {
  const rf_stored *stored = rf_tensor_file_find(adapter, name->part[part]);
  const int64_t columns = param->shape[param->rank - 1], height = param->count / columns;
  int64_t from = 0;
  double square = 0, probe = 0, norm = json_real_value(json_array_get(want, 0));
  assert_non_null(stored);
  /* our rank is the largest of a group of layers, and the rest of a part is 0 */
  const int64_t rank = stored->shape[b], rows = b ? rank : height, width = b ? name->columns[part] : rank;
  /* PEFT scales B by alpha / its own rank, we scale all parts by alpha / RANK */
  const double scale = b ? (double)RANK / (double)rank : 1;
  for (int i = 0; i < part; i++) from += name->columns[i];
  for (int64_t row = 0; row < rows; row++)
    for (int64_t c = 0; c < width; c++) {
      double value = 10 * scale * (double)m[row * columns + from + c];
      int64_t column = rf_name_column(name, part, c);
      square += value * value;
      probe += value * cos(0.7 * (double)(column * rows + row) + 0.3);
    }
  note(&e->gradient, sqrt(square), norm, norm, name->part[part], e);
  note(&e->gradient, probe, json_real_value(json_array_get(want, 1)), norm, name->part[part], e);
}

static void note_gradient(const rf_trainer *t, int p, const json_t *told, int *compared, errors *e) {
  const rf_params *params = &t->plan->graph->params;
  const rf_param *param = &params->at[p], *base = &params->at[param->adapts];
  const rf_lora_parts parts = rf_lora_parts_of(&t->settings.model, base);
  const bool b = (p - params->base) % 2;
  rf_name name = {.count = parts.count, .transposed = true};
  float *m = malloc((size_t)param->count * sizeof *m);
  assert_non_null(m);
  MUST(rf_run_read(t->run, 0, t->state[p].m, 0, m, param->count * 4, &error));
  for (int i = 0; i < parts.count; i++) {
    snprintf(name.part[i], sizeof name.part[i], "base_model.model.model.%.80s.lora_%c.weight",
             rf_lora_module(&t->settings.model, base, parts.site[i]).text, b ? 'B' : 'A');
    name.columns[i] = b ? parts.columns[i] : parts.rank;
    const json_t *want = json_object_get(told, name.part[i]);
    *compared += want != NULL;
    if (want) note_part(m, param, &name, i, b, want, e);
  }
  free(m);
}

static double metric(const json_t *setting, const char *name) {
  return json_real_value(json_object_get(json_object_get(setting, "metrics"), name));
}

static errors measure(const variant *v, const json_t *setting) {
  errors e = {0};
  rf_preferences *p = NULL;
  rf_preference got;
  rafter_step step;
  bool all;
  int compared = 0;
  write_rows(v->swapped);
  rf_train_settings s = golden_settings(v);
  s.plan.build.pairs = pairs_of(setting);
  MUST(rf_preferences_open(&s, &p, &error));
  rf_trainer *t = p->trainer;
  if (!v->wrong_reference) MUST(rf_load_adapters(t->run, 0, t->plan, ADAPTER, &error));
  MUST(rf_preferences_begin(p, 1, 0, NULL, NULL, &all, &error));
  MUST(rf_preferences_step(p, &step, &got, &error));
  double loss = json_real_value(json_object_get(setting, "loss_value"));
  note(&e.loss, step.loss, loss, 1 + fabs(loss), "loss", &e);
  note(&e.values, got.accuracy, metric(setting, "rewards/accuracies"), 1, "accuracy", &e);
  if (s.plan.build.pairs.kind == RF_PAIRS_DPO) {
    double want = metric(setting, "logps/chosen");
    note(&e.values, got.chosen_logprob, want, fabs(want), "chosen", &e);
    want = metric(setting, "logps/rejected");
    note(&e.values, got.rejected_logprob, want, fabs(want), "rejected", &e);
  }
  if (s.plan.build.pairs.kind != RF_PAIRS_IPO) { /* TRL's rewards of IPO are sums, its loss has means */
    double want = metric(setting, "rewards/margins");
    note(&e.values, got.margin, want, 1 + fabs(want), "margin", &e);
  }
  const json_t *told = json_object_get(setting, "gradients");
  for (int i = t->plan->graph->params.base; i < t->plan->graph->params.count; i++)
    if (t->state[i].m != RF_NONE) note_gradient(t, i, told, &compared, &e);
  assert_int_equal(compared, json_object_size(told));
  rf_preferences_close(p);
  return e;
}

/* Both sides round sums of at most 176 terms differently, and the model amplifies the errors: see
 * train/test_golden.c. */
static void trl_agrees(void **state) {
  (void)state;
  const variant variants[] = {{8, &RF_BACKEND_CPU, false, false},
                              {2, &RF_BACKEND_CPU, false, false},
                              {4, &RF_BACKEND_REFERENCE, false, false}};
  const json_t *setting;
  size_t i;
  json_array_foreach (json_object_get(golden, "losses"), i, setting) {
    for (size_t k = 0; k < sizeof variants / sizeof *variants; k++) {
      const errors e = measure(&variants[k], setting);
      const char *name = json_string_value(json_object_get(setting, "name"));
      print_message("%-13s %lld sequences: errors of loss %.1e, values %.1e, gradients %.1e\n", name,
                    (long long)variants[k].microbatch, e.loss, e.values, e.gradient);
      if (!(e.loss < 1e-5 && e.values < 1e-5 && e.gradient < 1e-4)) fail_msg("%s: %s", name, e.worst);
    }
  }
}

static void faults_are_seen(void **state) {
  (void)state;
  const variant faults[] = {{8, &RF_BACKEND_CPU, true, false}, {8, &RF_BACKEND_CPU, false, true}};
  const json_t *setting;
  size_t i;
  json_array_foreach (json_object_get(golden, "losses"), i, setting)
    for (size_t k = 0; k < 2; k++) {
      if (k && pairs_of(setting).kind == RF_PAIRS_SIMPO) continue; /* has no reference */
      const errors e = measure(&faults[k], setting);
      if (e.loss < 1e-3 || e.gradient < 1e-3)
        fail_msg("fault %zu of %s was not noticed", k, json_string_value(json_object_get(setting, "name")));
    }
}

/* ---- runs ------------------------------------------------------------------------------------ */

enum { PAIRS = 13, HELD = 3, STEPS = 9 };
#define LLAMA "llama:layers=2,width=48,heads=4,kv_heads=2,ff=96,vocab=300,seq=24"
#define LORA "rank=4,alpha=64,targets=q,v,out,gate_up,down,dropout=0.1"

static void write_pairs(void) {
  FILE *file = fopen(at("pairs.jsonl"), "we");
  assert_non_null(file);
  for (int i = 0; i < PAIRS + HELD; i++) {
    fprintf(file, "{\"tokens\":[%d,%d],\"chosen\":[", 2 + i, 7 * i % 290);
    for (int k = 0; k < 1 + i % 5; k++) fprintf(file, "%s%d", k ? "," : "", (3 * i + 5 * k) % 290);
    fprintf(file, "],\"rejected\":[");
    for (int k = 0; k < 1 + i % 3; k++) fprintf(file, "%s%d", k ? "," : "", (3 * i + 5 * k + 1) % 290);
    fprintf(file, "]}\n");
  }
  fclose(file);
}

typedef struct kind_of_run {
  const char *lora;
  rf_dtype dtype;
  rf_pairs_kind loss;
  rf_weights_as frozen;
} kind_of_run;

static const kind_of_run RUNS[] = {
    {NULL, RF_F32, RF_PAIRS_DPO, RF_WEIGHTS_FILE},   {NULL, RF_BF16, RF_PAIRS_IPO, RF_WEIGHTS_FILE},
    {LORA, RF_F32, RF_PAIRS_DPO, RF_WEIGHTS_FILE},   {LORA, RF_BF16, RF_PAIRS_IPO, RF_WEIGHTS_FILE},
    {LORA, RF_F32, RF_PAIRS_DPO, RF_WEIGHTS_INT8},   {LORA, RF_F32, RF_PAIRS_SIMPO, RF_WEIGHTS_FILE},
    {NULL, RF_F32, RF_PAIRS_SIMPO, RF_WEIGHTS_FILE},
};
enum { RUN_COUNT = sizeof RUNS / sizeof *RUNS };

static rf_weight_types types;

static rf_train_settings run_settings(const kind_of_run *kind) {
  rf_train_settings s = training_settings(LLAMA, folder, &machine, 24, 2);
  if (kind->lora) MUST(rf_lora_parse(kind->lora, &s.model, &s.model.lora, &error));
  s.data = at("pairs.jsonl");
  s.val_fraction = (double)HELD / (PAIRS + HELD);
  s.plan.build.dtype = kind->dtype;
  s.plan.build.microbatch = 4;
  s.plan.build.accumulate = 2;
  s.plan.build.objective = RF_OBJECTIVE_PAIRS;
  s.plan.build.pairs = (rf_pairs){.kind = kind->loss, .beta = 0.5f};
  s.schedule.peak = 2e-3;
  if (kind->frozen != RF_WEIGHTS_FILE) {
    MUST(rf_weight_types_read("", &s.model, kind->frozen, &types, &error));
    s.plan.build.weights = &types;
  }
  return s;
}

static rf_preferences *open_run(const kind_of_run *kind, const char *resume, int64_t steps) {
  rf_preferences *p = NULL;
  bool all = false;
  rf_train_settings s = run_settings(kind);
  s.resume_folder = resume;
  MUST(rf_preferences_open(&s, &p, &error));
  MUST(rf_preferences_begin(p, steps, 100, NULL, NULL, &all, &error));
  assert_true(all);
  return p;
}

typedef struct trace {
  double loss[STEPS], norm[STEPS], margin[STEPS], chosen[STEPS], val_loss[STEPS], val_margin[STEPS];
} trace;

static void take_steps(rf_preferences *p, int last, trace *to) {
  while (p->trainer->step < last) {
    int64_t i = p->trainer->step;
    rafter_step step;
    rf_preference got, val;
    MUST(rf_preferences_step(p, &step, &got, &error));
    MUST(rf_preferences_validate(p, 100, &val, &error));
    assert_int_equal(got.pairs, 4);
    assert_int_equal(val.pairs, HELD);
    to->loss[i] = step.loss;
    to->norm[i] = step.grad_norm;
    to->margin[i] = got.margin;
    to->chosen[i] = got.chosen_logprob;
    to->val_loss[i] = val.loss;
    to->val_margin[i] = val.margin;
  }
}

/* Before the first step, policy and reference are the same model: the scorer's log-probabilities
 * are those of the training step, to the bit. So all margins are 0, and the loss is known. An
 * adapter with dropout takes its first step with B = 0, which dropout does not change. */
static void the_first_margins_are_zero(void **state) {
  (void)state;
  write_pairs();
  for (int r = 0; r < RUN_COUNT; r++) {
    if (RUNS[r].loss == RF_PAIRS_SIMPO) continue;
    rf_preferences *p = open_run(&RUNS[r], NULL, STEPS);
    rafter_step step;
    rf_preference got;
    MUST(rf_preferences_step(p, &step, &got, &error));
    assert_true(got.chosen_reward == 0 && got.rejected_reward == 0 && got.margin == 0);
    double want = RUNS[r].loss == RF_PAIRS_DPO ? log(2) : 1; /* (1 / (2 x 0.5))^2 */
    assert_true(fabs(step.loss - want) < 1e-6);
    rf_preferences_close(p);
  }
}

/* Each reference is computed once: in the first epoch, or before the first step. */
static void references_are_computed_once(void **state) {
  (void)state;
  write_pairs();
  for (int r = 0; r < RUN_COUNT; r++) {
    trace t;
    rf_preferences *p = open_run(&RUNS[r], NULL, STEPS);
    if (RUNS[r].loss == RF_PAIRS_SIMPO) {
      assert_null(p->references);
      rf_preferences_close(p);
      continue;
    }
    int64_t before = p->references->scored_tokens, tokens = 0;
    for (int i = 0; i < PAIRS + HELD; i++)
      tokens += p->set.pair[i].chosen.count + p->set.pair[i].rejected.count;
    assert_int_equal(before, RUNS[r].lora ? 0 : tokens);
    take_steps(p, STEPS, &t);
    assert_int_equal(p->references->scored_tokens, tokens);
    for (int64_t i = 0; i < p->references->count; i++) assert_true(isfinite(p->references->sum[i]));
    rf_preferences_close(p);
  }
}

/* A resumed run has the bits of the whole run. A run that trains all weights keeps its references,
 * and computes with the first weights those that later steps need. */
static void resume_keeps_the_bits(void **state) {
  (void)state;
  write_pairs();
  for (int r = 0; r < RUN_COUNT; r++) {
    static trace whole, parts;
    char saved[256];
    snprintf(saved, sizeof saved, "%s", at("saved"));
    rf_preferences *p = open_run(&RUNS[r], NULL, STEPS);
    take_steps(p, STEPS, &whole);
    rf_preferences_close(p);
    memset(&parts, 0, sizeof parts);
    p = open_run(&RUNS[r], NULL, 2); /* two steps have 8 of the 13 pairs */
    take_steps(p, 2, &parts);
    MUST(rf_checkpoint_save(p->trainer, saved, &error));
    rf_preferences_close(p);
    p = open_run(&RUNS[r], saved, STEPS);
    assert_int_equal(p->trainer->step, 2);
    take_steps(p, STEPS, &parts);
    rf_preferences_close(p);
    if (memcmp(&whole, &parts, sizeof whole)) fail_msg("run %d: other bits after resuming", r);
    if (!(whole.margin[STEPS - 1] > whole.margin[0]))
      fail_msg("run %d: the margin is %g after %g", r, whole.margin[STEPS - 1], whole.margin[0]);
  }
}

/* The largest plan is the arena, and a step writes no byte after it. */
static void planned_is_mapped(void **state) {
  (void)state;
  write_pairs();
  for (int r = 0; r < RUN_COUNT; r++) {
    trace t;
    rf_preferences *p = NULL;
    const rf_plan *plans[3];
    bool all, intact = false;
    rf_train_settings s = run_settings(&RUNS[r]);
    s.debug.poison = true;
    s.plan.guard_bytes = 64;
    MUST(rf_preferences_open(&s, &p, &error));
    int count = rf_preferences_plans(p, plans);
    assert_int_equal(count, RUNS[r].loss == RF_PAIRS_SIMPO ? 2 : 3);
    int64_t planned = rf_plan_joint_bytes(plans, count);
    assert_int_equal(rf_run_arena_bytes(p->run), planned);
    assert_int_equal(planned, p->trainer->plan->arena_bytes);
    MUST(rf_preferences_begin(p, 2, 100, NULL, NULL, &all, &error));
    take_steps(p, 2, &t);
    int64_t high = rf_run_high_water(p->run, &intact);
    assert_true(intact && high <= planned && high >= planned - 128);
    rf_preferences_close(p);
  }
}

static bool end_early(void *self, int64_t done, int64_t of) {
  (void)self;
  assert_true(done <= of);
  return false;
}

/* The passes before the first step may end early. A checkpoint has what is known, and the resumed
 * run computes only the rest. */
static void early_ends_keep_references(void **state) {
  (void)state;
  static trace whole, parts;
  const kind_of_run *kind = &RUNS[0];
  rf_preferences *p = NULL;
  bool all = true;
  char saved[256];
  write_pairs();
  snprintf(saved, sizeof saved, "%s", at("early"));
  rf_train_settings s = run_settings(kind);
  MUST(rf_preferences_open(&s, &p, &error));
  MUST(rf_preferences_begin(p, STEPS, 100, end_early, NULL, &all, &error));
  assert_false(all);
  int64_t scored = p->references->scored_tokens;
  assert_true(scored > 0);
  MUST(rf_checkpoint_save(p->trainer, saved, &error));
  rf_preferences_close(p);
  p = open_run(kind, saved, STEPS);
  take_steps(p, STEPS, &parts);
  int64_t rest = p->references->scored_tokens;
  rf_preferences_close(p);
  p = open_run(kind, NULL, STEPS);
  take_steps(p, STEPS, &whole);
  assert_int_equal(p->references->scored_tokens, scored + rest);
  rf_preferences_close(p);
  assert_memory_equal(&whole, &parts, sizeof whole);
}

/* A checkpoint of other pairs is refused. */
static void other_data_are_refused(void **state) {
  (void)state;
  trace t;
  rf_preferences *p;
  char saved[256];
  write_pairs();
  snprintf(saved, sizeof saved, "%s", at("other"));
  p = open_run(&RUNS[2], NULL, STEPS);
  take_steps(p, 1, &t);
  MUST(rf_checkpoint_save(p->trainer, saved, &error));
  rf_preferences_close(p);
  FILE *file = fopen(at("pairs.jsonl"), "ae");
  assert_non_null(file);
  fprintf(file, "{\"tokens\":[1],\"chosen\":[2],\"rejected\":[3]}\n");
  fclose(file);
  rf_train_settings s = run_settings(&RUNS[2]);
  s.resume_folder = saved;
  assert_int_equal(rf_preferences_open(&s, &p, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "other pairs"));
}

/* A trained adapter is a part of the reference model. */
static void a_trained_adapter_is_in_the_reference(void **state) {
  (void)state;
  trace t;
  rf_preferences *p = NULL;
  rf_preference got;
  rafter_step step;
  bool all;
  char saved[256];
  write_pairs();
  snprintf(saved, sizeof saved, "%s", at("tuned"));
  p = open_run(&RUNS[2], NULL, STEPS);
  take_steps(p, 3, &t);
  MUST(rf_checkpoint_save(p->trainer, saved, &error));
  rf_preferences_close(p);
  rf_train_settings s = run_settings(&RUNS[2]);
  MUST(rf_adapter_open(saved, &s.model, &s.model.lora, &error));
  s.model.lora.dropout = 0; /* the first step of this adapter would have dropout */
  MUST(rf_preferences_open(&s, &p, &error));
  assert_false(p->references->anytime);
  MUST(rf_preferences_begin(p, STEPS, 0, NULL, NULL, &all, &error));
  MUST(rf_preferences_step(p, &step, &got, &error));
  assert_true(got.margin == 0);
  MUST(rf_preferences_step(p, &step, &got, &error));
  assert_true(got.margin != 0);
  rf_preferences_close(p);
}

/* One step of a trained adapter against the base, and its first moments, all in one array. */
static float *step_of(rf_dtype dtype, rf_pairs_kind loss, const char *trained, double *value,
                      int64_t *count) {
  kind_of_run kind = RUNS[2];
  rf_preferences *p = NULL;
  rafter_step step;
  rf_preference got;
  kind.dtype = dtype;
  kind.loss = loss;
  rf_train_settings s = run_settings(&kind);
  s.model.lora.dropout = 0;
  s.plan.build.clip = 1e30f;
  MUST(rf_preferences_open(&s, &p, &error));
  const rf_trainer *t = p->trainer;
  const rf_params *params = &t->plan->graph->params;
  MUST(rf_load_adapters(p->run, 0, t->plan, trained, &error));
  MUST(rf_preferences_step(p, &step, &got, &error));
  float *m = NULL;
  *value = step.loss;
  *count = 0;
  for (int i = params->base; i < params->count; i++) {
    const int64_t n = params->at[i].count;
    m = realloc(m, (size_t)(*count + n) * sizeof *m);
    assert_non_null(m);
    MUST(rf_run_read(p->run, 0, t->state[i].m, 0, m + *count, n * 4, &error));
    *count += n;
  }
  rf_preferences_close(p);
  return m;
}

/* The weights have the size of a new model's. The goldens have larger ones, which amplify the
 * rounding to bf16. */
static void bf16_follows_f32(void **state) {
  (void)state;
  trace t;
  char saved[256];
  write_pairs();
  snprintf(saved, sizeof saved, "%s", at("trained"));
  rf_preferences *p = open_run(&RUNS[2], NULL, STEPS);
  take_steps(p, STEPS, &t);
  MUST(rf_checkpoint_save(p->trainer, saved, &error));
  rf_preferences_close(p);
  for (int loss = RF_PAIRS_DPO; loss <= RF_PAIRS_SIMPO; loss++) {
    double value[2], square = 0, apart = 0;
    int64_t count;
    float *exact = step_of(RF_F32, (rf_pairs_kind)loss, saved, &value[0], &count),
          *bf16 = step_of(RF_BF16, (rf_pairs_kind)loss, saved, &value[1], &count);
    for (int64_t i = 0; i < count; i++) {
      square += (double)exact[i] * (double)exact[i];
      apart += ((double)exact[i] - (double)bf16[i]) * ((double)exact[i] - (double)bf16[i]);
    }
    print_message("loss %d bf16: errors of loss %.1e, of the gradient's norm %.1e\n", loss,
                  fabs(value[1] - value[0]) / (1 + fabs(value[0])), sqrt(apart / square));
    assert_true(fabs(value[1] - value[0]) < 2e-2 * (1 + fabs(value[0])));
    assert_true(sqrt(apart / square) < 2e-2);
    free(exact);
    free(bf16);
  }
}

static int read_golden(void **state) {
  if (make_folder(state)) return -1;
  if (rf_tensor_file_open(ADAPTER "/adapter_model.safetensors", &adapter, &error) != RAFTER_OK) return -1;
  return rf_json_read(RF_TEST_DATA "/preferences/golden.json", 1 << 22, &golden, &error) == RAFTER_OK ? 0
                                                                                                      : -1;
}

static int drop_golden(void **state) {
  json_decref(golden);
  rf_tensor_file_close(adapter);
  return remove_folder(state);
}

int main(void) {
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trl_agrees),
      cmocka_unit_test(faults_are_seen),
      cmocka_unit_test(the_first_margins_are_zero),
      cmocka_unit_test(references_are_computed_once),
      cmocka_unit_test(resume_keeps_the_bits),
      cmocka_unit_test(planned_is_mapped),
      cmocka_unit_test(early_ends_keep_references),
      cmocka_unit_test(other_data_are_refused),
      cmocka_unit_test(a_trained_adapter_is_in_the_reference),
      cmocka_unit_test(bf16_follows_f32),
  };
  return cmocka_run_group_tests(tests, read_golden, drop_golden);
}
