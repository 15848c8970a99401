/* test_losses.c - compares whole steps with the losses of a policy and of pairs with PyTorch
 * (tests/data/losses/make.py): nll, loss and the gradients of LoRA adapters of a tiny model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "run/load.h"
#include "run/run.h"

/* Relative to the norm of a gradient, to an nll of 1 or more, and to the sum of |loss|. Both sides
 * add in other orders; see tests/unit/train/test_golden.c for the sizes of such errors. */
static const double BOUND = 1e-5;
/* In f64, attributes of ops are still f32 numbers, such as the scale of attention: errors of 2^-25,
 * which the model makes several times larger, as above. */
static const double BOUND_F64 = 3e-7;

static rf_machine machine;
static json_t *golden;

typedef struct step {
  const json_t *json;
  rf_plan *plan;
  rf_run *run;
  int64_t rows;
  bool wide; /* f64 */
} step;

static double number(const json_t *of, const char *key) {
  return json_number_value(json_object_get(of, key));
}

static void set_objective(rf_build_options *build, const json_t *json) {
  const json_t *s = json_object_get(json, "settings");
  build->temperature = (float)number(json, "temperature");
  build->objective = json_object_get(s, "kind") ? RF_OBJECTIVE_PAIRS : RF_OBJECTIVE_POLICY;
  build->pairs = (rf_pairs){.kind = (rf_pairs_kind)number(s, "kind"),
                            .beta = (float)number(s, "beta"),
                            .gamma = (float)number(s, "gamma"),
                            .smoothing = (float)number(s, "smoothing")};
  build->policy = (rf_policy){.level = (rf_policy_level)number(s, "level"),
                              .clip = (rf_policy_clip)number(s, "clip"),
                              .clip_low = (float)number(s, "clip_low"),
                              .clip_high = (float)number(s, "clip_high"),
                              .beta = (float)number(s, "beta")};
}

static double get(const step *s, const void *x, int64_t i) {
  return s->wide ? ((const double *)x)[i] : (double)((const float *)x)[i];
}
static void set(const step *s, void *x, int64_t i, double value) {
  if (s->wide) ((double *)x)[i] = value;
  else ((float *)x)[i] = (float)value;
}

/* Fills an input from the list of the same name; positions restart in each segment. */
static void fill(const step *s, const char *tensor, const char *key) {
  void *to = rf_run_named(s->run, 0, tensor, NULL);
  const json_t *list = json_object_get(s->json, key);
  if (!to) return;
  for (size_t i = 0; i < json_array_size(list); i++) {
    double value = json_number_value(json_array_get(list, i));
    if (json_is_integer(json_array_get(list, 0))) ((int32_t *)to)[i] = (int32_t)value;
    else set(s, to, (int64_t)i, value);
  }
}

static int kind_of(const char *name) {
  static const char *const kinds[] = {"attn/qkv", "attn/out", "mlp/gate_up", "mlp/down"};
  for (int i = 0; i < 4; i++)
    if (strstr(name, kinds[i])) return i;
  fail_msg("unknown adapter %s", name);
  return -1;
}

/* The key of an adapter in the golden, and the phase of its values. */
static const char *adapter_key(const rf_param *param, int *phase, char key[32]) {
  int kind = kind_of(param->name), side = strstr(param->name, "lora_b") != NULL;
  *phase = param->layer + 10 * kind + 100 * side;
  snprintf(key, 32, "%d %d %d", param->layer, kind, side);
  return key;
}

static void fill_adapters(const step *s) {
  const rf_graph *graph = s->plan->graph;
  char key[32];
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    if (tensor->class != RF_CLASS_ADAPTER) continue;
    int phase;
    adapter_key(&graph->params.at[tensor->param], &phase, key);
    void *x = rf_run_tensor(s->run, 0, t);
    for (int64_t i = 0; i < rf_tensor_count(tensor); i++)
      set(s, x, i, (double)(float)(0.2 * cos(0.7 * (double)i + (double)phase)));
  }
}

static step open_step(const json_t *json, const rf_backend *backend, rf_isa isa, rf_dtype dtype);
static void close_step(step *s) {
  rf_run_close(s->run);
  rf_plan_free(s->plan);
}

/* Weights are loaded as f32. The f64 weights are copies of these. */
static void widen_weights(const step *s) {
  step narrow = open_step(s->json, &RF_BACKEND_REFERENCE, RF_ISA_BASE, RF_F32);
  const rf_graph *graph = s->plan->graph, *from = narrow.plan->graph;
  for (int t = 0; t < graph->tensor_count; t++) {
    if (graph->tensor[t].class != RF_CLASS_WEIGHT) continue;
    int twin = rf_graph_find(from, graph->tensor[t].name);
    const void *x = rf_run_tensor(narrow.run, 0, twin);
    for (int64_t i = 0; i < rf_tensor_count(&graph->tensor[t]); i++)
      set(s, rf_run_tensor(s->run, 0, t), i, get(&narrow, x, i));
  }
  close_step(&narrow);
}

static step open_step(const json_t *json, const rf_backend *backend, rf_isa isa, rf_dtype dtype) {
  step s = {.json = json,
            .rows = (int64_t)json_array_size(json_object_get(json, "tokens")),
            .wide = dtype == RF_F64};
  const char *folder = RF_TEST_DATA "/goldens/mistral";
  rf_model model;
  rf_error error = {0};
  if (rf_model_resolve(folder, &model, NULL, &error) != RAFTER_OK ||
      rf_lora_parse("rank=2,alpha=4,targets=all", &model, &model.lora, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  rf_plan_options options = {.build = {.job = RF_JOB_TRAIN,
                                       .dtype = dtype,
                                       .softmax = RF_F32,
                                       .plain = true,
                                       .microbatch = 1,
                                       .seq = s.rows,
                                       .accumulate = 2, /* so that gradients stay until the end */
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f,
                                       .clip = 1},
                             .remat = RF_REMAT_NONE,
                             .backend = backend,
                             .isa = isa,
                             .threads = 1,
                             .machine = &machine};
  set_objective(&options.build, json);
  if (rf_plan_make(&model, &options, &s.plan, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_run_open((const rf_plan *const[]){s.plan}, 1, (rf_run_debug){0}, &s.run, &error) != RAFTER_OK ||
      (!s.wide && rf_load_weights(s.run, 0, s.plan, folder, &error) != RAFTER_OK))
    fail_msg("%s", error.message);
  if (s.wide) widen_weights(&s);
  fill_adapters(&s);
  fill(&s, "tokens", "tokens");
  fill(&s, "labels", "labels");
  fill(&s, "segments", "segments");
  fill(&s, "old_logprobs", "old");
  fill(&s, "advantages", "advantages");
  fill(&s, "loss_weights", "weights");
  fill(&s, "reference_logprobs", "reference");
  const int32_t *segments = rf_run_named(s.run, 0, "segments", NULL);
  int32_t *positions = rf_run_named(s.run, 0, "positions", NULL);
  for (int64_t r = 0, at = 0; r < s.rows; r++) {
    if (segments[at + 1] == r) at++;
    positions[r] = (int32_t)(r - segments[at]);
  }
  return s;
}

static double probe_of(const step *s, const void *g, int64_t count, double by, double from) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += get(s, g, i) * cos(by * (double)i + from);
  return sum;
}

/* The largest error of the gradients. Each has its norm and two sums with known factors. */
static double gradient_error(const step *s) {
  const rf_graph *graph = s->plan->graph;
  const json_t *all = json_object_get(s->json, "gradients");
  double worst = 0;
  size_t compared = 0;
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    char key[32];
    int phase;
    if (tensor->class != RF_CLASS_GRADIENT || tensor->param < 0) continue;
    const json_t *want = json_object_get(all, adapter_key(&graph->params.at[tensor->param], &phase, key));
    const void *g = rf_run_tensor(s->run, 0, t);
    int64_t count = rf_tensor_count(tensor);
    double norm = json_number_value(json_array_get(want, 0)), square = 0;
    for (int64_t i = 0; i < count; i++) square += get(s, g, i) * get(s, g, i);
    const double got[] = {sqrt(square), probe_of(s, g, count, 0.7, 0.3), probe_of(s, g, count, 1.9, 1)};
    for (size_t i = 0; i < 3; i++) {
      double error = fabs(got[i] - json_number_value(json_array_get(want, i))) / norm;
      worst = isfinite(error) ? fmax(worst, error) : INFINITY;
    }
    compared++;
  }
  assert_int_equal(compared, json_object_size(all));
  return worst;
}

typedef struct errors {
  double nll, loss, gradient;
} errors;

static errors run_step(const step *s) {
  rf_run_inputs inputs = {.seed = 1, .step = 1, .loss_scale = 1, .rows = s->rows};
  rf_error error = {0};
  for (int section = RF_SECTION_BEGIN; section <= RF_SECTION_MICRO; section++)
    if (rf_run_section(s->run, 0, (rf_section)section, &inputs, &error) != RAFTER_OK)
      fail_msg("%s", error.message);
  const void *nll = rf_run_named(s->run, 0, "nll", NULL);
  const double *metrics = rf_run_named(s->run, 0, "metrics", NULL);
  const json_t *want = json_object_get(s->json, "nll"), *labels = json_object_get(s->json, "labels");
  errors e = {.gradient = gradient_error(s)};
  double labelled = 0;
  for (int64_t r = 0; r < s->rows; r++) {
    double value = json_number_value(json_array_get(want, (size_t)r));
    labelled += json_integer_value(json_array_get(labels, (size_t)r)) >= 0;
    if (value != 0) e.nll = fmax(e.nll, fabs(get(s, nll, r) - value) / fmax(1, value));
  }
  assert_true(metrics[1] == labelled);
  e.loss = fabs(metrics[0] - number(s->json, "loss")) / number(s->json, "loss_size");
  return e;
}

static void test_steps_agree_with_pytorch(void **state) {
  (void)state;
  const json_t *steps = json_object_get(golden, "steps");
  assert_int_equal(json_array_size(steps), 4);
  for (size_t i = 0; i < json_array_size(steps); i++)
    for (int variant = 0; variant < 3; variant++) {
      bool wide = variant == 2;
      double bound = wide ? BOUND_F64 : BOUND;
      step s = open_step(json_array_get(steps, i), wide ? &RF_BACKEND_REFERENCE : &RF_BACKEND_CPU,
                         variant == 0 ? rf_isa_detect() : RF_ISA_BASE, wide ? RF_F64 : RF_F32);
      errors e = run_step(&s);
      print_message("%-6s %-9s errors: nll %.1e, loss %.1e, gradients %.1e\n",
                    json_string_value(json_object_get(s.json, "name")),
                    wide           ? "f64"
                    : variant == 0 ? "f32, best"
                                   : "f32, base",
                    e.nll, e.loss, e.gradient);
      close_step(&s);
      if (!(e.nll <= bound && e.loss <= bound && e.gradient <= bound))
        fail_msg("an error is above %g", bound);
    }
}

/* Faults in the inputs of a step change its gradients by far more than the bound. */
static void test_faults_are_found(void **state) {
  (void)state;
  static const char *const inputs[] = {"advantages", "old_logprobs", "reference_logprobs", "loss_weights"};
  for (int i = 0; i < 4; i++) {
    step s = open_step(json_array_get(json_object_get(golden, "steps"), 0), &RF_BACKEND_CPU, rf_isa_detect(),
                       RF_F32);
    float *x = rf_run_named(s.run, 0, inputs[i], NULL);
    for (int64_t r = 0; r < s.rows; r++) x[r] = i == 0 ? -x[r] : 1.01f * x[r];
    errors e = run_step(&s);
    close_step(&s);
    if (!(e.gradient > 10 * BOUND)) fail_msg("%s: error %g", inputs[i], e.gradient);
  }
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  if (rf_json_read(RF_TEST_DATA "/losses/losses.json", 1 << 22, &golden, &error) != RAFTER_OK) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_steps_agree_with_pytorch),
      cmocka_unit_test(test_faults_are_found),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  json_decref(golden);
  return failed;
}
