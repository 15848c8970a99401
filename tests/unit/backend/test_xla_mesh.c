/* test_xla_mesh.c - a training step on several devices of a PJRT plugin is as close to the exact
 * result of one chip as the same step with the reference kernels. Every tensor of every chip is
 * compared: metrics, moments, weights. Without any one collective, the step differs.
 * RAFTER_PJRT_PLUGIN names a plugin with at least four devices; without it the tests are skipped.
 * RAFTER_XLA_STEP=TEXT runs only the meshes whose name contains TEXT. */
#include "support/xla_client.h"
#include "support/xla_step.h"
#include "unit/graph/fixture.h"

#include <math.h>
#include <stdlib.h>

#define MIN_GPT "gpt:layers=2,width=16,heads=4,ff=32,vocab=37,seq=16"
#define MIN_LLAMA "llama:layers=2,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16"
#define MIN_QWEN "qwen2.5-0.5b:layers=2,width=16,heads=8,kv_heads=2,head_dim=8,ff=24,vocab=40,seq=16"
#define MIN_EXPERTS \
  "mixtral:layers=2,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16,experts=4,experts_used=2"
#define ONE_LLAMA "llama:layers=1,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16"
#define ONE_EXPERTS \
  "mixtral:layers=1,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16,experts=4,experts_used=2"

enum { SEQUENCES = 4 };
static rf_xla_client *client;

typedef struct setting {
  const char *model, *mesh;
  int zero, accumulate;
  float clip, dropout;
  const char *lora;
} setting;

static const rf_run_inputs RUN = {.seed = 3, .step = 1, .loss_scale = 1.0f / 64, .lr = 1e-2f};

static rf_graph *graph_of(const setting *s, rf_dtype dtype, const char *mesh) {
  rf_model model = fixture_model(s->model);
  if (s->lora) fixture_lora(&model, s->lora);
  rf_build_options options = fixture_train(dtype, s->accumulate, s->dropout, s->clip);
  rf_error error = {0};
  options.microbatch = SEQUENCES;
  options.seq = WORLD_SEQ;
  options.plain = true;
  if (rf_mesh_parse(mesh, s->zero, &options.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
  options.mesh.capacity = 4; /* room for every row */
  return fixture_graph(&model, &options, NULL);
}

/* The steps of a setting: exact on one chip, with reference kernels, and with the plugin. */
typedef struct steps {
  rf_graph *whole, *graph;
  world *exact, *reference;
} steps;

static steps begin(const setting *s) {
  steps of = {.whole = graph_of(s, RF_F64, ""), .graph = graph_of(s, RF_F32, s->mesh)};
  of.exact = step_world(of.whole, of.whole, &RUN);
  of.reference = step_world(of.graph, of.whole, &RUN);
  world_step(of.exact, of.whole);
  world_step(of.reference, of.whole);
  return of;
}

static void end(steps *of) {
  world_free(of->exact);
  world_free(of->reference);
  rf_graph_free(of->whole);
  rf_graph_free(of->graph);
}

static bool wanted(const char *mesh) {
  const char *only = getenv("RAFTER_XLA_STEP");
  return !only || strstr(mesh, only);
}

static void test_meshes(void **state) {
  (void)state;
  static const setting SETTINGS[] = {
      {MIN_LLAMA, "data=4", 0, 2, 1, 0, NULL},
      {MIN_GPT, "data=4", 2, 1, 1, 0.2f, NULL},
      {MIN_LLAMA, "fsdp=4", 3, 1, 1, 0, NULL},
      {MIN_GPT, "fsdp=4", 3, 2, 1, 0.2f, NULL},
      {MIN_LLAMA, "fsdp=2,tensor=2", 3, 1, 1, 0, NULL},
      {MIN_GPT, "fsdp=2,tensor=2", 3, 2, 1, 0.2f, NULL},
      {MIN_QWEN, "tensor=4", 0, 1, 1, 0, NULL},
      {MIN_LLAMA, "context=2,tensor=2", 0, 1, 1, 0, NULL},
      {MIN_GPT, "context=2,tensor=2", 0, 2, 1, 0.2f, NULL},
      {MIN_LLAMA, "sequence=2", 0, 2, 1, 0, NULL},
      {MIN_GPT, "sequence=2", 0, 1, 1, 0.2f, NULL},
      {MIN_EXPERTS, "expert=4", 0, 1, 1, 0, NULL},
      {MIN_EXPERTS, "expert=2,fsdp=2", 3, 2, 1, 0, NULL},
      {MIN_LLAMA, "data=2,tensor=2", 1, 1, 0, 0.2f, "rank=2,targets=all,dropout=0.3"},
  };
  if (!client) skip();
  for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++) {
    const setting *s = &SETTINGS[i];
    char text[400];
    if (!wanted(s->mesh)) continue;
    steps of = begin(s);
    world *got = step_world(of.graph, of.whole, &RUN);
    xla_step(client, got, of.whole, &(rf_emit_options){0}, NULL);
    const char *wrong = step_difference(got, of.reference, of.exact, RF_F32, text);
    if (wrong)
      fail_msg("%s, %s, %d microbatches, dropout %g: %s", s->model, s->mesh, s->accumulate,
               (double)s->dropout, wrong);
    world_free(got);
    end(&of);
  }
}

/* Compiles in less time. */
static const char *const QUICK =
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true";

/* The first of the collectives with equal names, layers aside. */
static bool is_first(const rf_graph *graph, int o) {
  for (int i = 0; i < o; i++)
    if (graph->op[i].def == graph->op[o].def && rf_attr_same(&graph->op[i], &graph->op[o]) &&
        graph->op[i].at.sublayer == graph->op[o].at.sublayer &&
        graph->op[i].backward == graph->op[o].backward)
      return false;
  return true;
}

static void test_no_collective_can_be_left_out(void **state) {
  (void)state;
  static const setting SETTINGS[] = {
      {ONE_LLAMA, "data=4", 0, 1, 1, 0, NULL},          {ONE_LLAMA, "fsdp=4", 3, 1, 1, 0, NULL},
      {ONE_LLAMA, "fsdp=2,tensor=2", 3, 1, 1, 0, NULL}, {ONE_LLAMA, "context=2,tensor=2", 0, 1, 1, 0, NULL},
      {ONE_LLAMA, "sequence=2", 0, 1, 1, 0, NULL},      {ONE_EXPERTS, "expert=4", 0, 1, 1, 0, NULL},
  };
  if (!client) skip();
  for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++) {
    const setting *s = &SETTINGS[i];
    if (!wanted(s->mesh)) continue;
    steps of = begin(s);
    int tried = 0;
    for (int o = 0; o < of.graph->op_count; o++) {
      const rf_op *op = &of.graph->op[o];
      char text[400];
      if (!rf_op_is_exchange(op->def) || op->attr.group < 2 || !is_first(of.graph, o)) continue;
      world *got = step_world(of.graph, of.whole, &RUN);
      xla_step(client, got, of.whole, &(rf_emit_options){.left_out = op}, QUICK);
      if (!step_difference(got, of.reference, of.exact, RF_F32, text))
        fail_msg("%s, %s: the step is the same without %s", s->model, s->mesh, op->name);
      world_free(got);
      tried++;
    }
    assert_true(tried > 0);
    printf("%s: %d collectives left out one by one, each is noticed\n", s->mesh, tried);
    end(&of);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_meshes),
      cmocka_unit_test(test_no_collective_can_be_left_out),
  };
  if (!xla_test_open(&client)) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (client) rf_xla_close(client);
  return failed;
}
