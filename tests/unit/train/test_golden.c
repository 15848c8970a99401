/* test_golden.c - compares whole models with an independent implementation: losses, gradients and
 * AdamW of tiny models of every family, computed by transformers and torch
 * (tests/data/hf_oracle.py). GPT-2 is tested on every backend and instruction set of this machine.
 * Faults are planted in the model, and the same checks must notice them. */
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
#include <unistd.h>

#include "base/json.h"
#include "model/names.h"
#include "support/families.h"
#include "train/train.h"
#include "support/params.h"

#define GOLDENS RF_TEST_DATA "/goldens/"
enum { STEPS = 6 };

/* Relative bounds. Both sides compute in f32 with sums in other orders. So each may differ from the
 * exact value by about 2^-24 * sqrt(terms of a sum: at most 160 here) * sqrt(roundings in sequence:
 * about 40 ops forward, 120 forward and backward) = 5e-6 forward, 8e-6 backward. The model
 * amplifies these errors: its weights are large (softmaxes far from uniform, logits up to 20), so
 * the relative error of a probability is several times that of a score. The bound of gradients is
 * therefore ten times larger.
 * A loss is a mean over 27 tokens whose errors partly cancel, so the plain bound is enough. Adam's
 * first step is lr * sign(g) for any gradient above eps, and so exact, unless a gradient is itself
 * rounding noise. A gradient as small as eps changes its weight by a tenth of lr, which is 1e-5 of
 * a tensor with norm 10. So weights have the bound 2e-5. Each later step divides by sqrt(v), where
 * small gradients count as much as large ones, so a later loss has twice the bound. Measured over
 * all families: 2e-7, 8e-7, 1e-5 and 1.2e-5. */
static const double LOSS_BOUND = 5e-6, LATER_LOSS_BOUND = 1e-5, GRADIENT_BOUND = 1e-4, AFTER_BOUND = 2e-5;
/* Without rotation (gpt2, and half of each head of gpt-neox) the keys' bias shifts all scores of a
 * query equally, and softmax ignores it. Its gradient is only rounding noise, which Adam turns into
 * a step of up to lr in either direction. So the D elements of the keys, of 3 D, may differ by 2
 * lr. The probe's weights are below 1. */
static const char *const NOISE_ROW = "attn/qkv/bias";
static const double LR = 1e-3;

static rf_machine machine;
static char folder[] = "/tmp/rafter-test-golden-XXXXXX", data_path[64], model_folder[512],
            weights_folder[4096];
static json_t *golden;
static int64_t tokens;

/* ---- measurements ---------------------------------------------------------------------------- */

/* The largest error of each kind in units of its bound; 1 is the largest allowed value. NaN counts
 * as infinite. */
typedef struct report {
  double loss, later_loss, grad_norm, gradient, after;
  char worst[160];
} report;

static void note(double *slot, double got, double want, double scale, double bound, const char *what,
                 report *r) {
  double error = fabs(got - want) / (scale * bound);
  if (!isfinite(error)) error = INFINITY;
  if (error <= *slot) return;
  *slot = error;
  if (error > 1) snprintf(r->worst, sizeof r->worst, "%s: got %.9g, want %.9g", what, got, want);
}

static bool passes(const report *r) {
  return r->loss <= 1 && r->later_loss <= 1 && r->grad_norm <= 1 && r->gradient <= 1 && r->after <= 1;
}

/* Compares the l2 norm and the probe of a tensor with the checkpoint's, in the checkpoint's order.
 * The tensor is part `part` of `name`; x is the whole parameter. A planted fault must fail this
 * comparison. */
static void note_tensor(double *slot, const float *x, const rf_param *param, const rf_name *name, int part,
                        const json_t *want, double bound, report *r) {
  const char *what = name->part[part];
  double square = 0, probe = 0;
  int64_t columns = param->shape[param->rank - 1], height = param->count / columns, from = 0,
          width = name->columns[part];
  for (int i = 0; i < part; i++) from += name->columns[i];
  for (int64_t row = 0; row < height; row++)
    for (int64_t c = 0; c < width; c++) {
      int64_t column = rf_name_column(name, part, c),
              at = name->transposed ? column * height + row : row * width + column;
      double value = (double)x[row * columns + from + c];
      square += value * value;
      probe += value * cos(0.7 * (double)at + 0.3);
    }
  double norm = json_real_value(json_array_get(want, 0));
  note(slot, sqrt(square), norm, norm, bound, what, r);
  note(slot, probe, json_real_value(json_array_get(want, 1)), norm, bound, what, r);
}

static const json_t *train_of(const char *key) {
  return json_object_get(json_object_get(golden, "train"), key);
}

/* The tensor that AdamW reads as the gradient of parameter p. */
static const float *gradient_of(rf_trainer *t, int p) {
  const rf_graph *graph = t->plan->graph;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    if (strcmp(op->def->name, "adamw") || graph->tensor[op->input[1]].param != p) continue;
    assert_int_equal(graph->tensor[op->input[0]].class, RF_CLASS_GRADIENT);
    assert_int_equal(graph->tensor[op->input[0]].dtype, RF_F32);
    return rf_run_tensor(t->run, 0, op->input[0]);
  }
  return NULL; /* not trained */
}

/* ---- one run --------------------------------------------------------------------------------- */

static rf_train_settings settings_of(const rf_backend *backend, rf_isa isa, rf_dtype dtype) {
  rf_train_settings s = {
      .data = data_path, .pack = true, .work_folder = folder, .seed = 1, .weights_folder = weights_folder};
  rf_error error;
  if (rf_model_resolve(model_folder, &s.model, weights_folder, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  /* Clipping that never takes effect: it measures the norm of all gradients, so all of them live
   * until the end section. */
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_TRAIN,
                                       .dtype = dtype,
                                       .softmax = RF_F32,
                                       .microbatch = 1,
                                       .seq = tokens,
                                       .accumulate = 1,
                                       .dropout = 0,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f,
                                       .weight_decay = 0.1f,
                                       .clip = 1e30f,
                                       .plain = backend->plain_weights},
                             .device.plugin = getenv("RAFTER_PJRT_PLUGIN"),
                             .remat = RF_REMAT_NONE,
                             .backend = backend,
                             .isa = isa,
                             .threads = 1,
                             .machine = &machine};
  s.schedule = (rf_schedule){.kind = RF_SCHEDULE_CONSTANT, .peak = LR, .steps = STEPS};
  return s;
}

static rf_trainer *open_or_fail(const rf_train_settings *s) {
  rf_trainer *t = NULL;
  rf_error error = {0};
  if (rf_trainer_open(s, &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(t->loader.source[0].train.count, 1);
  return t;
}

/* The tensors of a parameter in the oracle's files; for an adapter, those of PEFT. */
static rf_name name_of(const rf_trainer *t, int p, const rf_param *slice) {
  const rf_model *model = &t->settings.model;
  const rf_params *params = &t->plan->graph->params;
  if (p < params->base) return rf_param_name(model, slice, true);
  const rf_param *base = &params->at[params->at[p].adapts];
  rf_lora_parts parts = rf_lora_parts_of(model, base);
  int side = (p - params->base) % 2;
  rf_name name = {.count = parts.count, .transposed = true};
  for (int i = 0; i < parts.count; i++) {
    snprintf(name.part[i], sizeof name.part[i], "base_model.model.model.%.80s.lora_%c.weight",
             rf_lora_module(model, base, parts.site[i]).text, side ? 'B' : 'A');
    name.columns[i] = side ? parts.columns[i] : parts.rank;
  }
  return name;
}

/* Compares the tensors of a parameter, expert by expert, that the golden contains. Returns their
 * number. */
static size_t note_param(double *slot, const rf_trainer *t, int p, const json_t *told, const float *x,
                         bool after, report *r) {
  const rf_param *param = &t->plan->graph->params.at[p];
  size_t compared = 0;
  for (int e = 0; e < rf_param_slices(param); e++) {
    rf_param slice = rf_param_slice(param, e);
    rf_name name = name_of(t, p, &slice);
    for (int i = 0; i < name.count; i++) {
      const json_t *numbers = json_object_get(told, name.part[i]);
      if (!numbers) continue;
      compared++;
      assert_non_null(x);
      bool noise = after && strcmp(rf_param_row_name(param->row), NOISE_ROW) == 0 && name.count == 1;
      double norm = json_real_value(json_array_get(numbers, 0));
      double bound = noise   ? 2 * LR * (double)t->settings.model.width / norm
                     : after ? AFTER_BOUND
                             : GRADIENT_BOUND;
      note_tensor(slot, x + e * slice.count, &slice, &name, i, numbers, bound, r);
    }
  }
  return compared;
}

/* Runs step 1 section by section, so that its gradients can be read in between, and then five steps
 * as a program does. */
static report measure(rf_trainer *t) {
  report r = {0};
  rf_error error = {0};
  const rf_params *params = &t->plan->graph->params;
  int64_t in_rows = 0, valid = 0;
  rf_loader_draw(&t->loader, &in_rows, &valid);
  assert_int_equal(valid, tokens);
  rf_run_inputs inputs = {
      .seed = 1, .step = 1, .loss_scale = 1 / (float)valid, .lr = (float)LR, .rows = tokens};
  if (rf_loader_fill(&t->loader, 0, 1, t->batch, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_memory_equal(t->batch.labels, t->batch.tokens + 1, (size_t)(tokens - 1) * sizeof *t->batch.labels);
  for (int s = RF_SECTION_BEGIN; s <= RF_SECTION_MICRO; s++)
    if (rf_run_section(t->run, 0, (rf_section)s, &inputs, &error) != RAFTER_OK) fail_msg("%s", error.message);
  double want = json_real_value(train_of("loss"));
  note(&r.loss, t->metrics[0] / t->metrics[1], want, want, LOSS_BOUND, "loss of step 1", &r);
  size_t compared = 0;
  for (int p = 0; p < params->count; p++)
    compared += note_param(&r.gradient, t, p, train_of("gradients"), gradient_of(t, p), false, &r);
  assert_int_equal(compared, json_object_size(train_of("gradients")));
  if (rf_run_section(t->run, 0, RF_SECTION_END, &inputs, &error) != RAFTER_OK) fail_msg("%s", error.message);
  want = json_real_value(train_of("grad_norm"));
  note(&r.grad_norm, (double)t->clip[0], want, want, GRADIENT_BOUND, "global gradient norm", &r);
  assert_true(t->clip[1] == 1);
  for (int p = 0; p < params->count; p++)
    note_param(&r.after, t, p, train_of("after_adamw"),
               ((float *)rf_run_tensor(t->run, 0, t->state[p].master)), true, &r);
  t->step = 1;
  t->tokens = valid;
  for (int k = 1; k < STEPS; k++) {
    rafter_step step;
    if (rf_trainer_step(t, &step, &error) != RAFTER_OK) fail_msg("%s", error.message);
    want = json_real_value(json_array_get(train_of("losses"), (size_t)k));
    note(&r.later_loss, step.loss, want, want, LATER_LOSS_BOUND, "loss of a later step", &r);
  }
  return r;
}

/* A persistent tensor of parameter p, as f32. */
static float *read_state(const rf_trainer *t, int tensor) {
  rf_error error = {0};
  int64_t bytes = rf_tensor_bytes(&t->plan->graph->tensor[tensor]);
  float *x = malloc((size_t)bytes);
  if (!x || rf_run_read(t->run, 0, tensor, 0, x, bytes, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return x;
}

/* Like `measure` for a backend that keeps no gradients: after the first step, the first moment is
 * 0.1 times the gradient. */
static report measure_steps(rf_trainer *t) {
  report r = {0};
  rf_error error = {0};
  const rf_params *params = &t->plan->graph->params;
  for (int k = 0; k < STEPS; k++) {
    rafter_step step;
    if (rf_trainer_step(t, &step, &error) != RAFTER_OK) fail_msg("%s", error.message);
    double want = json_real_value(k ? json_array_get(train_of("losses"), (size_t)k) : train_of("loss"));
    note(k ? &r.later_loss : &r.loss, step.loss, want, want, k ? LATER_LOSS_BOUND : LOSS_BOUND, "loss", &r);
    if (k) continue;
    want = json_real_value(train_of("grad_norm"));
    note(&r.grad_norm, step.grad_norm, want, want, GRADIENT_BOUND, "global gradient norm", &r);
    size_t compared = 0;
    for (int p = 0; p < params->count; p++) {
      if (t->state[p].m == RF_NONE) continue;
      float *master = read_state(t, t->state[p].master), *m = read_state(t, t->state[p].m);
      for (int64_t i = 0; i < params->at[p].count; i++) m[i] *= 10;
      compared += note_param(&r.gradient, t, p, train_of("gradients"), m, false, &r);
      note_param(&r.after, t, p, train_of("after_adamw"), master, true, &r);
      free(master);
      free(m);
    }
    assert_int_equal(compared, json_object_size(train_of("gradients")));
  }
  return r;
}

static void print_report(const char *what, const char *isa, const report *r) {
  print_message("%-19s%-11s errors: loss %.1e, later losses %.1e, gradient norm %.1e, gradients %.1e, "
                "weights after AdamW %.1e%s%s\n",
                what, isa, r->loss * LOSS_BOUND, r->later_loss * LATER_LOSS_BOUND,
                r->grad_norm * GRADIENT_BOUND, r->gradient * GRADIENT_BOUND, r->after * AFTER_BOUND,
                *r->worst ? "; " : "", r->worst);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void check_variant(const rf_backend *backend, rf_isa isa) {
  rf_train_settings s = settings_of(backend, isa, RF_F32);
  rf_trainer *t = open_or_fail(&s);
  report r = measure(t);
  print_report(backend->name, rf_isa_name(isa), &r);
  rf_trainer_close(t);
  if (!passes(&r)) fail_msg("%s", r.worst);
}

static void cpu_agrees_on_every_isa(void **state) {
  (void)state;
  for (int isa = (int)rf_isa_detect(); isa >= RF_ISA_BASE; isa--) check_variant(&RF_BACKEND_CPU, (rf_isa)isa);
}

static void reference_agrees(void **state) {
  (void)state;
  check_variant(&RF_BACKEND_REFERENCE, RF_ISA_BASE);
}

static void write_data(void);
static void choose_family(const char *name) {
  char path[600];
  rf_error error = {0};
  snprintf(model_folder, sizeof model_folder, GOLDENS "%s", name);
  snprintf(path, sizeof path, "%s/golden.json", model_folder);
  json_decref(golden);
  golden = NULL;
  if (rf_json_read(path, 1 << 22, &golden, &error) != RAFTER_OK) fail_msg("%s", error.message);
  write_data();
}

/* Every model family, on the best kernels, the base kernels and the reference. */
static void every_family_agrees(void **state) {
  (void)state;
  bool passed = true;
  for (int f = 0; f < FAMILY_COUNT; f++) {
    choose_family(FAMILIES[f]);
    for (int variant = 0; variant < 3; variant++) {
      rf_train_settings s = settings_of(variant == 2 ? &RF_BACKEND_REFERENCE : &RF_BACKEND_CPU,
                                        variant == 0 ? rf_isa_detect() : RF_ISA_BASE, RF_F32);
      rf_trainer *t = open_or_fail(&s);
      report r = measure(t);
      print_report(FAMILIES[f], variant == 2 ? "reference" : variant == 0 ? "best" : "base", &r);
      rf_trainer_close(t);
      passed &= passes(&r);
    }
  }
  choose_family("gpt2");
  assert_true(passed);
}

/* Programs that XLA compiles, if RAFTER_PJRT_PLUGIN names a plugin. */
static void xla_agrees(void **state) {
  (void)state;
  bool passed = true;
  if (!getenv("RAFTER_PJRT_PLUGIN")) skip();
  for (int f = 0; f < FAMILY_COUNT; f++) {
    choose_family(FAMILIES[f]);
    rf_train_settings s = settings_of(&RF_BACKEND_XLA, rf_isa_detect(), RF_F32);
    rf_trainer *t = open_or_fail(&s);
    report r = measure_steps(t);
    print_report(FAMILIES[f], "xla", &r);
    rf_trainer_close(t);
    passed &= passes(&r);
  }
  choose_family("gpt2");
  assert_true(passed);
}

/* No op reads bytes that were not written, and no kernel writes past its tensor: with every new and
 * dead byte poisoned, the numbers do not change. */
static void poisoned_memory_changes_nothing(void **state) {
  (void)state;
  rf_train_settings s = settings_of(&RF_BACKEND_CPU, rf_isa_detect(), RF_F32);
  s.debug.poison = true;
  s.plan.guard_bytes = 256;
  s.plan.threads = 2;
  rf_trainer *t = open_or_fail(&s);
  report r = measure(t);
  print_report("poisoned", "", &r);
  rf_trainer_close(t);
  if (!passes(&r)) fail_msg("%s", r.worst);
}

/* bf16 against the f32 oracle. Each tensor is rounded once, to 2^-9. A row passes about 25 tensors
 * in sequence (2^-9 * sqrt(25) = 1e-2), and the model turns an error of a logit (up to 20) into an
 * error of a loss near 7. The bound is three times that, so grossly wrong casts are noticed. */
static void bf16_follows(void **state) {
  (void)state;
  rf_train_settings s = settings_of(&RF_BACKEND_CPU, rf_isa_detect(), RF_BF16);
  rf_trainer *t = open_or_fail(&s);
  double worst = 0;
  for (int k = 0; k < STEPS; k++) {
    rafter_step step;
    rf_error error = {0};
    if (rf_trainer_step(t, &step, &error) != RAFTER_OK) fail_msg("%s", error.message);
    double want = json_real_value(json_array_get(train_of("losses"), (size_t)k)),
           off = fabs(step.loss - want) / want;
    if (!(off <= worst)) worst = off;
  }
  print_message("bf16: losses of %d steps within %.1e of f32's\n", STEPS, worst);
  rf_trainer_close(t);
  assert_true(worst <= 3e-2);
}

/* ---- planted faults -------------------------------------------------------------------------- */

static float *master_named(rf_trainer *t, const char *name, int64_t *count) {
  int p = params_find(&t->plan->graph->params, name);
  if (p < 0) fail_msg("no parameter %s", name);
  if (count) *count = t->plan->graph->params.at[p].count;
  return ((float *)rf_run_tensor(t->run, 0, t->state[p].master));
}

static report measure_faulty(void (*plant)(rf_trainer *t)) {
  rf_train_settings s = settings_of(&RF_BACKEND_CPU, rf_isa_detect(), RF_F32);
  rf_trainer *t = open_or_fail(&s);
  plant(t);
  report r = measure(t);
  rf_trainer_close(t);
  return r;
}

static void perturb_one_weight(rf_trainer *t) { master_named(t, "block.1/mlp/up/weight", NULL)[17] += 1e-2f; }
static void shift_positions(rf_trainer *t) {
  int64_t count, width = t->settings.model.width;
  float *wpe = master_named(t, "embed/position/weight", &count);
  memmove(wpe + width, wpe, (size_t)(count - width) * sizeof *wpe);
}
static void swap_two_weights(rf_trainer *t) {
  float *w = master_named(t, "block.0/attn/out/weight", NULL), first = w[3];
  w[3] = w[4];
  w[4] = first;
}

static void faults_in_weights_are_seen(void **state) {
  (void)state;
  static const struct {
    const char *name;
    void (*plant)(rf_trainer *t);
  } faults[] = {{"weight+.01", perturb_one_weight}, {"wpe+1", shift_positions}, {"swap", swap_two_weights}};
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    report r = measure_faulty(faults[i].plant);
    print_report(faults[i].name, "", &r);
    if (r.loss <= 1 || r.gradient <= 1 || r.after <= 1 || r.later_loss <= 1)
      fail_msg("the fault '%s' is not seen everywhere", faults[i].name);
  }
}

/* A head that is a copy of the token table and not the table itself: the first loss is right to the
 * bit, and everything after an update is wrong. */
static void an_untied_head_is_seen(void **state) {
  (void)state;
  rf_train_settings s = settings_of(&RF_BACKEND_CPU, rf_isa_detect(), RF_F32), untied = s;
  untied.model.tied = false;
  untied.weights_folder = NULL;
  rf_trainer *right = open_or_fail(&s), *t = open_or_fail(&untied);
  const rf_params *params = &right->plan->graph->params;
  for (int p = 0; p < params->count; p++)
    memcpy(master_named(t, params->at[p].name, NULL),
           ((float *)rf_run_tensor(right->run, 0, right->state[p].master)),
           (size_t)params->at[p].count * sizeof(float));
  /* (D,V), (V,D) */
  float *head = master_named(t, "head/weight", NULL), *wte = master_named(t, "embed/token/weight", NULL);
  for (int64_t d = 0; d < s.model.width; d++)
    for (int64_t v = 0; v < s.model.vocab; v++) head[d * s.model.vocab + v] = wte[v * s.model.width + d];
  rf_trainer_close(right);
  report r = measure(t);
  print_report("untied", "", &r);
  rf_trainer_close(t);
  assert_true(r.loss <= 1);
  assert_true(r.gradient > 1 && r.grad_norm > 1 && r.after > 1 && r.later_loss > 1);
}

/* Another optimizer changes only numbers after the first gradients. */
static void a_wrong_optimizer_is_seen(void **state) {
  (void)state;
  rf_train_settings s = settings_of(&RF_BACKEND_CPU, rf_isa_detect(), RF_F32);
  for (int fault = 0; fault < 2; fault++) {
    rf_train_settings wrong = s;
    if (fault == 0) wrong.plan.build.weight_decay = 0;
    else wrong.plan.build.beta2 = 0.999f;
    rf_trainer *t = open_or_fail(&wrong);
    report r = measure(t);
    print_report(fault == 0 ? "decay=0" : "beta2", "", &r);
    rf_trainer_close(t);
    assert_true(r.loss <= 1 && r.gradient <= 1 && r.grad_norm <= 1);
    assert_true(r.later_loss > 1);
    /* The first step does not depend on the betas, because the bias corrections cancel them. */
    if (fault == 0) assert_true(r.after > 1);
  }
}

static void not_a_number_is_seen(void **state) {
  (void)state;
  report r = {0};
  note(&r.loss, NAN, 1, 1, 1, "loss", &r);
  assert_false(passes(&r));
}

/* Writes one row: the document's T + 1 tokens, of which T are read, each with a label. */
static void write_data(void) {
  const json_t *ids = json_object_get(json_array_get(json_object_get(golden, "sequences"), 0), "ids");
  tokens = (int64_t)json_array_size(ids) - 1;
  snprintf(data_path, sizeof data_path, "%s/golden.jsonl", folder);
  FILE *file = fopen(data_path, "w");
  char *text = json_dumps(ids, JSON_COMPACT);
  if (!file || !text || fprintf(file, "{\"tokens\":%s}\n", text) < 0 || fclose(file)) exit(1);
  free(text);
}

static int tear_down(void **state) {
  (void)state;
  char command[128];
  snprintf(command, sizeof command, "rm -r '%s'", folder);
  json_decref(golden);
  return system(command);
}

int main(void) {
  rf_error error = {0};
  if (!mkdtemp(folder) || rf_machine_find("a5000", &machine, &error) != RAFTER_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  machine.memory_bytes = 8e9;
  choose_family("gpt2");
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cpu_agrees_on_every_isa),
      cmocka_unit_test(reference_agrees),
      cmocka_unit_test(poisoned_memory_changes_nothing),
      cmocka_unit_test(bf16_follows),
      cmocka_unit_test(faults_in_weights_are_seen),
      cmocka_unit_test(an_untied_head_is_seen),
      cmocka_unit_test(a_wrong_optimizer_is_seen),
      cmocka_unit_test(not_a_number_is_seen),
      cmocka_unit_test(every_family_agrees),
      cmocka_unit_test(xla_agrees),
  };
  return cmocka_run_group_tests(tests, NULL, tear_down);
}
