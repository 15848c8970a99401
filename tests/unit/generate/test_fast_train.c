/* test_fast_train.c - with --compute fast, a LoRA training step computes the log-probabilities of a
 * scorer to the bit, at a temperature of 0.7. The gradient passes through the rounded products as
 * if nothing were rounded. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "feeding.h"
#include "model/weights.h"

enum { TOKENS = 40, TEXTS = 2 };
#define SIZES "layers=2,width=96,heads=6,ff=288,vocab=203,seq=64,init=flax"
static const char *const MODELS[] = {"llama:kv_heads=3," SIZES, "gpt:" SIZES,
                                     "mixtral:kv_heads=3,experts=4,experts_used=2," SIZES};
static rf_machine machine;
static rf_weight_types types;

typedef struct job {
  rf_plan *plan;
  rf_run *run;
} job;

static void check(rf_status status, const rf_error *error) {
  if (status != RAFTER_OK) fail_msg("%s", error->message);
}

/* Fills both adapters of each layer, so that the adapters change the results. */
static void fill_adapters(const job *j) {
  const rf_graph *graph = j->plan->graph;
  for (int t = 0; t < graph->tensor_count; t++) {
    if (graph->tensor[t].class != RF_CLASS_ADAPTER) continue;
    float *x = rf_run_tensor(j->run, 0, t);
    for (int64_t i = 0; i < rf_tensor_count(&graph->tensor[t]); i++)
      x[i] = (float)(0.1 * cos(0.7 * (double)i + graph->tensor[t].param));
  }
}

static job open_job(const char *name, rf_weights_as as, rf_job_kind kind, bool fast,
                    const rf_backend *backend) {
  job j = {0};
  rf_model model;
  rf_error error = {0};
  check(rf_model_resolve(name, &model, NULL, &error), &error);
  check(rf_lora_parse("rank=4", &model, &model.lora, &error), &error);
  check(rf_weight_types_read("", &model, as, &types, &error), &error);
  rf_plan_options options = {.build = {.job = kind,
                                       .dtype = RF_F32,
                                       .softmax = RF_F32,
                                       .weights = &types,
                                       .fast = fast,
                                       .temperature = 0.7f,
                                       .microbatch = TEXTS,
                                       .seq = TOKENS,
                                       .accumulate = kind == RF_JOB_TRAIN ? 2 : 1,
                                       .clip = 1,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f},
                             .remat = RF_REMAT_NONE,
                             .backend = backend,
                             .isa = backend == &RF_BACKEND_CPU ? rf_isa_detect() : RF_ISA_BASE,
                             .threads = 2,
                             .machine = &machine};
  if (kind == RF_JOB_TRAIN) options.build.objective = RF_OBJECTIVE_POLICY;
  check(rf_plan_make(&model, &options, &j.plan, &error), &error);
  check(rf_run_open((const rf_plan *const[]){j.plan}, 1, (rf_run_debug){0}, &j.run, &error), &error);
  check(rf_fill_weights(j.run, 0, j.plan, NULL, 3, (rf_progress){0}, &error), &error);
  fill_adapters(&j);
  return j;
}

static void close_job(job *j) {
  rf_run_close(j->run);
  rf_plan_free(j->plan);
}

static void run_job(const job *j) {
  int64_t rows = j->plan->graph->rows;
  int32_t *tokens = rf_run_named(j->run, 0, "tokens", NULL),
          *labels = rf_run_named(j->run, 0, "labels", NULL),
          *positions = rf_run_named(j->run, 0, "positions", NULL),
          *segments = rf_run_named(j->run, 0, "segments", NULL);
  float *old = rf_run_named(j->run, 0, "old_logprobs", NULL),
        *advantages = rf_run_named(j->run, 0, "advantages", NULL),
        *weights = rf_run_named(j->run, 0, "loss_weights", NULL);
  for (int64_t r = 0; r <= rows; r++) segments[r] = (int32_t)(r < TEXTS ? r * TOKENS : rows);
  for (int64_t r = 0; r < rows; r++) {
    tokens[r] = (int32_t)(r * 31 % 203);
    labels[r] = r % TOKENS == TOKENS - 1 ? -1 : (int32_t)((r + 1) * 31 % 203);
    positions[r] = (int32_t)(r % TOKENS);
    if (!old) continue;
    old[r] = -5;
    advantages[r] = r % 3 ? 1 : -1;
    weights[r] = 0.01f;
  }
  rf_run_inputs inputs = {.seed = 1, .step = 1, .loss_scale = 1, .rows = rows};
  rf_error error = {0};
  for (int s = RF_SECTION_BEGIN; s <= RF_SECTION_MICRO; s++)
    check(rf_run_section(j->run, 0, (rf_section)s, &inputs, &error), &error);
}

/* The distance of all gradients of two jobs, relative to their norm. */
static double distance(const job *a, const job *b) {
  const rf_graph *graph = a->plan->graph;
  double apart = 0, norm = 0;
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    if (tensor->class != RF_CLASS_GRADIENT || tensor->param < 0) continue;
    const float *x = rf_run_tensor(a->run, 0, t),
                *y = rf_run_tensor(b->run, 0, rf_graph_find(b->plan->graph, tensor->name));
    for (int64_t i = 0; i < rf_tensor_count(tensor); i++) {
      apart += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
      norm += (double)y[i] * (double)y[i];
    }
  }
  assert_true(norm > 0);
  return sqrt(apart / norm);
}

static void only_forward_products_are_fast(const rf_graph *graph) {
  int fast = 0;
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    fast += rf_op_is_fast(op);
    if (rf_op_is_fast(op) && op->backward && strncmp(op->def->name, "head_loss", 9))
      fail_msg("%s rounds gradients", op->name);
  }
  assert_true(fast > 8);
}

static void training_agrees_with_scoring(void **state) {
  (void)state;
  for (size_t m = 0; m < sizeof MODELS / sizeof *MODELS; m++)
    for (rf_weights_as as = RF_WEIGHTS_INT8; as <= RF_WEIGHTS_Q4; as++) {
      job train = open_job(MODELS[m], as, RF_JOB_TRAIN, true, &RF_BACKEND_CPU),
          score = open_job(MODELS[m], as, RF_JOB_SCORE, true, &RF_BACKEND_CPU),
          exact = open_job(MODELS[m], as, RF_JOB_SCORE, false, &RF_BACKEND_CPU), slow = {0};
      only_forward_products_are_fast(train.plan->graph);
      run_job(&train);
      run_job(&score);
      run_job(&exact);
      const float *nll = rf_run_named(train.run, 0, "nll", NULL),
                  *logprobs = rf_run_named(score.run, 0, "logprobs", NULL),
                  *others = rf_run_named(exact.run, 0, "logprobs", NULL);
      bool differs = false;
      for (int64_t r = 0; r < train.plan->graph->rows; r++) {
        if (!(nll[r] == -logprobs[r]))
          fail_msg("%s, row %lld: %.9g, %.9g", MODELS[m], (long long)r, -(double)nll[r], (double)logprobs[r]);
        differs |= logprobs[r] != others[r];
      }
      assert_true(differs); /* otherwise nothing was rounded */
      if (m == 0) {
        slow = open_job(MODELS[m], as, RF_JOB_TRAIN, true, &RF_BACKEND_REFERENCE);
        run_job(&slow);
      }
      double apart = m == 0 ? distance(&train, &slow) : 0;
      if (m == 0)
        print_message("%s: gradients differ from the reference's by %.1e\n",
                      as == RF_WEIGHTS_INT8 ? "int8" : "q4", apart);
      /* The order of sums in f32 changes some roundings to 8 bits, each by 1/127 of a block's
       * largest value in one of hundreds of terms. */
      assert_true(apart < 1e-2);
      close_job(&train);
      close_job(&score);
      close_job(&exact);
      if (m == 0) close_job(&slow);
    }
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {cmocka_unit_test(training_agrees_with_scoring)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
