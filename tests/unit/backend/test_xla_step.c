/* test_xla_step.c - a whole training step, compiled with a PJRT plugin, is as close to the exact
 * result as the same step with the reference kernels. Families of models, one and several
 * microbatches, adapters, dropout. RAFTER_PJRT_PLUGIN names the plugin; without it the test is
 * skipped. RAFTER_XLA_STEP=TEXT runs only the models whose name contains TEXT. */
#include "support/xla_client.h"
#include "support/families.h"
#include "support/xla_step.h"
#include "unit/graph/fixture.h"

#include <math.h>
#include <stdlib.h>

enum { SEQUENCES = 4 };
static rf_xla_client *client;

typedef struct setting {
  const char *model;
  rf_dtype dtype;
  int accumulate;
  float clip, dropout;
  const char *lora;
} setting;

/* ---- graphs ---------------------------------------------------------------------------------- */

static rf_graph *graph_of(const setting *s, rf_dtype dtype) {
  rf_model model = fixture_model(s->model);
  if (s->lora) fixture_lora(&model, s->lora);
  rf_build_options options = fixture_train(dtype, s->accumulate, s->dropout, s->clip);
  options.microbatch = SEQUENCES;
  options.seq = WORLD_SEQ;
  options.softmax = RF_F32;
  options.plain = true;
  return fixture_graph(&model, &options, NULL);
}

static const rf_run_inputs RUN = {.seed = 3, .step = 1, .loss_scale = 1.0f / 64, .lr = 1e-2f};

/* ---- planted faults -------------------------------------------------------------------------- */

/* AdamW does not depend on the scale of gradients. So only the moments show a gradient that is too
 * large. */
static const char *const FAULT[] = {"a first moment that is 1 % too large",
                                    "a gradient that is 0.01 % too large", "a weight without its step",
                                    "a step that is 0.1 % too long"};
enum { FAULTS = sizeof FAULT / sizeof *FAULT };

static void plant(int fault, world *got, const world *before, const int state[3]) {
  int64_t count = rf_tensor_count(&got->graph->tensor[state[0]]);
  for (int64_t i = 0; i < count; i++) {
    double w = world_get(got, 0, state[0], i), m = world_get(got, 0, state[1], i),
           v = world_get(got, 0, state[2], i), old = world_get(before, 0, state[0], i);
    if (fault == 0) world_put(got, 0, state[1], i, 1.01 * m);
    if (fault == 1) world_put(got, 0, state[1], i, 1.0001 * m);
    if (fault == 1) world_put(got, 0, state[2], i, 1.0001 * 1.0001 * v);
    if (fault == 2) world_put(got, 0, state[0], i, old);
    if (fault == 3) world_put(got, 0, state[0], i, w + 0.001 * (w - old));
  }
}

/* The comparison must find each fault in the last matrix and its moments. */
static void check_faults(world *got, const world *reference, const world *exact, const world *before,
                         const char *model) {
  const int *state = NULL;
  char text[400];
  for (int o = 0; o < got->graph->op_count; o++) {
    const rf_op *op = &got->graph->op[o];
    if (op->def == &RF_OP_ADAMW && got->graph->tensor[op->output[0]].rank == 2) state = op->output;
  }
  assert_non_null(state);
  size_t bytes = (size_t)rf_tensor_bytes(&got->graph->tensor[state[0]]);
  char *kept = malloc(3 * bytes);
  for (int i = 0; i < 3; i++) memcpy(kept + i * (int64_t)bytes, world_data(got, 0, state[i]), bytes);
  for (int fault = 0; fault < FAULTS; fault++) {
    plant(fault, got, before, state);
    if (!step_difference(got, reference, exact, RF_F32, text))
      fail_msg("%s: %s was not noticed", model, FAULT[fault]);
    for (int i = 0; i < 3; i++) memcpy(world_data(got, 0, state[i]), kept + i * (int64_t)bytes, bytes);
  }
  assert_null(step_difference(got, reference, exact, RF_F32, text));
  free(kept);
}

/* ---- one step of a setting ------------------------------------------------------------------- */

static void try_step(const setting *s, bool faults) {
  rf_graph *whole = graph_of(s, RF_F64), *graph = graph_of(s, s->dtype);
  world *exact = step_world(whole, whole, &RUN), *reference = step_world(graph, whole, &RUN),
        *got = step_world(graph, whole, &RUN), *before = step_world(graph, whole, &RUN);
  char text[400];
  world_step(exact, whole);
  world_step(reference, whole);
  xla_step(client, got, whole, &(rf_emit_options){0}, NULL);
  const char *wrong = step_difference(got, reference, exact, s->dtype, text);
  if (wrong)
    fail_msg("%s %s, %d microbatches, clip %g, dropout %g: %s", s->model, rf_dtype_name(s->dtype),
             s->accumulate, (double)s->clip, (double)s->dropout, wrong);
  if (faults) check_faults(got, reference, exact, before, s->model);
  world_free(exact);
  world_free(reference);
  world_free(got);
  world_free(before);
  rf_graph_free(whole);
  rf_graph_free(graph);
}

static bool wanted(const char *model) {
  const char *only = getenv("RAFTER_XLA_STEP");
  return !only || strstr(model, only);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_families(void **state) {
  (void)state;
  if (!client) skip();
  for (int f = 0; f < FAMILY_COUNT; f++) {
    char folder[600];
    snprintf(folder, sizeof folder, RF_TEST_DATA "/goldens/%s", FAMILIES[f]);
    for (int accumulate = 1; accumulate <= 2 && wanted(folder); accumulate++)
      try_step(&(setting){folder, RF_F32, accumulate, 1, 0, NULL}, true);
  }
}

#define MIN_GPT "gpt:layers=2,width=16,heads=4,ff=32,vocab=37,seq=16"
#define MIN_LLAMA "llama:layers=2,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16"
#define MIN_GEMMA "gemma3:layers=2,width=16,heads=4,kv_heads=2,head_dim=8,ff=24,vocab=40,seq=16"
#define MIN_DEEPSEEK \
  "deepseek:layers=3,width=16,heads=2,head_dim=10,rope_dim=4,value_dim=6,kv_rank=12,q_rank=8,ff=24,expert_" \
  "ff=8,experts=4,vocab=40,seq=16"

/* Without clipping and accumulation, each update follows its gradient and checks it itself. */
static void test_forms_of_a_step(void **state) {
  (void)state;
  static const setting SETTINGS[] = {
      {MIN_GPT, RF_F32, 1, 0, 0, NULL},
      {MIN_GPT, RF_F32, 2, 1, 0.2f, NULL},
      {MIN_GPT, RF_F32, 1, 1, 0.2f, "rank=2,targets=all,dropout=0.3"},
      {MIN_LLAMA, RF_F32, 2, 0.1f, 0, "rank=4,targets=q,v,down"},
      {MIN_DEEPSEEK, RF_F32, 1, 1, 0, NULL},
      {MIN_GPT, RF_BF16, 1, 1, 0, NULL},
      {MIN_GPT, RF_BF16, 1, 0, 0, NULL},
      {MIN_LLAMA, RF_BF16, 2, 1, 0, NULL},
      {MIN_GEMMA, RF_BF16, 1, 1, 0, NULL},
      {MIN_GEMMA, RF_BF16, 1, 1, 0, "rank=2,targets=all"},
  };
  if (!client) skip();
  for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++)
    if (wanted(SETTINGS[i].model)) try_step(&SETTINGS[i], false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_families),
      cmocka_unit_test(test_forms_of_a_step),
  };
  if (!xla_test_open(&client)) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (client) rf_xla_close(client);
  return failed;
}
