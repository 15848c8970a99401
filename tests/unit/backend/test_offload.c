/* test_offload.c - offloading to host memory changes no bit. Programs with copies to and from the
 * host run next to programs without copies, on the reference kernels. If any one copy is left out,
 * some value differs. */
#include <math.h>

#include "support/world.h"
#include "unit/graph/fixture.h"
#include "support/graph/verify.h"

#define MIN_GPT "gpt:layers=3,width=16,heads=4,ff=32,vocab=37,seq=16"
#define MIN_LLAMA "llama:layers=3,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16"
#define MIN_GEMMA "gemma3:layers=6,width=8,heads=4,kv_heads=2,head_dim=8,ff=24,vocab=40,seq=16"
#define MIN_MIXTRAL \
  "mixtral:layers=3,width=16,heads=4,kv_heads=4,head_dim=8,ff=24,vocab=40,seq=16,experts=4,experts_used=2"

enum { STEPS = 2 };

typedef struct setting {
  const char *model, *mesh, *lora;
  rf_job_kind job;
  rf_dtype dtype;
  int accumulate;
  float clip, dropout;
  rf_remat remat;
  unsigned what;
} setting;

enum {
  OPTIMIZER = RF_OFFLOAD_OPTIMIZER,
  ACTIVATIONS = RF_OFFLOAD_ACTIVATIONS,
  KV = RF_OFFLOAD_KV,
  WEIGHTS = RF_OFFLOAD_WEIGHTS
};
static const setting SETTINGS[] = {
    {MIN_LLAMA, "", NULL, RF_JOB_TRAIN, RF_BF16, 1, 0, 0, RF_REMAT_NONE, OPTIMIZER},
    {MIN_LLAMA, "", NULL, RF_JOB_TRAIN, RF_F32, 2, 1, 0, RF_REMAT_NONE, OPTIMIZER},
    {MIN_GPT, "", NULL, RF_JOB_TRAIN, RF_F32, 2, 1, 0.2f, RF_REMAT_NONE, ACTIVATIONS},
    {MIN_LLAMA, "", NULL, RF_JOB_TRAIN, RF_BF16, 1, 0, 0, RF_REMAT_BLOCK, ACTIVATIONS},
    {MIN_LLAMA, "", NULL, RF_JOB_TRAIN, RF_F32, 1, 0, 0, RF_REMAT_MLP, WEIGHTS},
    {MIN_LLAMA, "", NULL, RF_JOB_TRAIN, RF_BF16, 2, 1, 0, RF_REMAT_NONE, WEIGHTS},
    {MIN_LLAMA, "", NULL, RF_JOB_TRAIN, RF_BF16, 1, 0, 0, RF_REMAT_ATTN, OPTIMIZER | ACTIVATIONS | WEIGHTS},
    {MIN_LLAMA, "", "rank=4,targets=all", RF_JOB_TRAIN, RF_F64, 2, 1, 0, RF_REMAT_NONE,
     OPTIMIZER | ACTIVATIONS | WEIGHTS},
    {MIN_MIXTRAL, "", NULL, RF_JOB_TRAIN, RF_F32, 1, 0, 0, RF_REMAT_MLP, OPTIMIZER | ACTIVATIONS | WEIGHTS},
    {MIN_LLAMA, "fsdp=2", NULL, RF_JOB_TRAIN, RF_BF16, 2, 1, 0, RF_REMAT_NONE,
     OPTIMIZER | ACTIVATIONS | WEIGHTS},
    {MIN_GPT, "data=2,tensor=2", NULL, RF_JOB_TRAIN, RF_F32, 1, 1, 0, RF_REMAT_MLP_ATTN,
     OPTIMIZER | ACTIVATIONS | WEIGHTS},
    {MIN_GEMMA, "", NULL, RF_JOB_GENERATE, RF_F64, 1, 0, 0, RF_REMAT_NONE, KV},
    {MIN_LLAMA, "", NULL, RF_JOB_GENERATE, RF_F64, 1, 0, 0, RF_REMAT_NONE, KV | WEIGHTS},
    {MIN_GEMMA, "tensor=2", NULL, RF_JOB_GENERATE, RF_F64, 1, 0, 0, RF_REMAT_NONE, KV},
    {MIN_MIXTRAL, "", NULL, RF_JOB_SCORE, RF_F64, 1, 0, 0, RF_REMAT_NONE, WEIGHTS},
};

static double noise(uint64_t site, int64_t i) {
  uint32_t words[4];
  rf_philox(rf_key(7, site, 0), (uint64_t)i, 0, words);
  return (double)words[0] / 4294967296.0 * 2 - 1;
}

/* Initial value of an element of a tensor that the caller fills. Each cache has one page per
 * slot. */
static double value_of(const rf_graph *graph, const rf_tensor *t, int64_t i, int micro) {
  uint64_t site = rf_name_key(t->name);
  bool words = !strcmp(t->name, "tokens") || !strcmp(t->name, "labels");
  if (words) return floor((noise(site + (uint64_t)micro, i) + 1) / 2 * (double)graph->model.vocab);
  if (!strcmp(t->name, "segments"))
    return (double)(i * graph->seq < graph->rows ? i * graph->seq : graph->rows);
  if (!strcmp(t->name, "positions"))
    return graph->rows < graph->seq ? (double)(5 + 3 * i) : (double)(i % graph->seq);
  if (!strcmp(t->name, "slots") || !strcmp(t->name, "rows")) return (double)i;
  if (!strncmp(t->name, "pages/", 6)) return (double)(i / t->shape[1]);
  return strstr(t->name, "/gain") ? 1 + 0.3 * noise(site, i) : 0.4 * noise(site, i);
}

/* Writes weights and caches before the first step, and inputs before each microbatch. A master
 * begins equal to its weight; moments begin at zero. */
static void fill(world *w, int micro, bool inputs) {
  for (int t = 0; t < w->graph->tensor_count; t++) {
    const rf_tensor *tensor = &w->graph->tensor[t];
    bool begins = tensor->persistent && tensor->class != RF_CLASS_MOMENT;
    if (inputs ? !tensor->input : !begins) continue;
    rf_tensor named = *tensor;
    char name[256];
    snprintf(name, sizeof name, "%s", tensor->name);
    if (tensor->class == RF_CLASS_MASTER) name[strlen(name) - strlen("/master")] = 0;
    named.name = name;
    for (int64_t chip = 0; chip < w->chips; chip++)
      for (int64_t i = 0; i < rf_tensor_count(tensor); i++)
        world_put(w, chip, t, i, value_of(w->graph, &named, i, micro));
  }
}

static void run(world *w) {
  fill(w, 0, false);
  for (int s = 0; s < STEPS; s++) {
    w->run = (rf_run_inputs){.seed = 3, .step = s + 1, .loss_scale = 1.0f / 16, .lr = 1e-2f};
    world_run(w, RF_SECTION_BEGIN);
    for (int m = 0; m < w->graph->accumulate; m++) {
      w->run.micro = m;
      fill(w, m + s * w->graph->accumulate, true);
      world_run(w, RF_SECTION_MICRO);
    }
    world_run(w, RF_SECTION_END);
  }
}

static rf_graph *graph_of(const setting *s, unsigned what) {
  rf_model model = fixture_model(s->model);
  rf_error error = {0};
  rf_graph *graph = NULL;
  rf_build_options options = s->job == RF_JOB_GENERATE
                                 ? fixture_generate(s->dtype, 3, 3)
                                 : fixture_train(s->dtype, s->accumulate, s->dropout, s->clip);
  options.job = s->job;
  options.seq = s->job == RF_JOB_GENERATE ? 16 : 8;
  options.microbatch = s->job == RF_JOB_GENERATE ? 3 : 2;
  if (s->lora) fixture_lora(&model, s->lora);
  if (rf_mesh_parse(s->mesh, -1, &options.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_graph_build(&model, &options, NULL, &graph, &error) != RAFTER_OK)
    fail_msg("%s, %s: %s", s->model, s->mesh, error.message);
  bool *drop = calloc((size_t)graph->tensor_count + 1, sizeof *drop);
  rf_remat_policy(graph, s->remat, drop);
  if (s->remat != RF_REMAT_NONE && rf_pass_remat(graph, drop, &error) != RAFTER_OK)
    fail_msg("%s: %s", s->model, error.message);
  free(drop);
  if (what && rf_pass_offload(graph, what, &error) != RAFTER_OK) fail_msg("%s: %s", s->model, error.message);
  fixture_verify(graph);
  return graph;
}

/* The first persistent tensor or output whose bits differ; NULL if all are equal. */
static const char *difference(const world *plain, const world *moved) {
  bool finite = true;
  for (int t = 0; t < plain->graph->tensor_count; t++) {
    const rf_tensor *tensor = &plain->graph->tensor[t];
    if (!tensor->persistent && !tensor->output) continue;
    int other = rf_graph_find(moved->graph, tensor->name);
    assert_true(other != RF_NONE);
    for (int64_t i = 0; finite && i < rf_tensor_count(tensor); i++)
      finite = isfinite(world_get(plain, 0, t, i));
    if (!finite) return rf_pool_format(plain->graph->pool, "%s is not finite and so", tensor->name);
    for (int64_t chip = 0; chip < plain->chips; chip++)
      if (memcmp(world_data(plain, chip, t), world_data(moved, chip, other), (size_t)rf_tensor_bytes(tensor)))
        return tensor->name;
  }
  return NULL;
}

static void test_the_same_bits(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++) {
    const setting *s = &SETTINGS[i];
    rf_graph *plain = graph_of(s, 0), *moved = graph_of(s, s->what);
    world *a = world_new(plain, plain->rows), *b = world_new(moved, moved->rows);
    run(a);
    run(b);
    const char *wrong = difference(a, b);
    if (wrong) fail_msg("setting %zu, %s: %s differs", i, s->model, wrong);
    world_free(a);
    world_free(b);
    rf_graph_free(plain);
    rf_graph_free(moved);
  }
}

static void test_a_missing_copy_is_found(void **state) {
  (void)state;
  static const int settings[] = {0, 3, 7, 12};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    const setting *s = &SETTINGS[settings[i]];
    rf_graph *plain = graph_of(s, 0), *moved = graph_of(s, s->what);
    world *a = world_new(plain, plain->rows);
    int left_out = 0;
    run(a);
    for (int o = 0; o < moved->op_count; o++) {
      if (strncmp(moved->op[o].def->name, "offload_", 8)) continue;
      /* as in block 1 */
      if (strstr(moved->op[o].name, "block.0") || strstr(moved->op[o].name, "block.2")) continue;
      world *b = world_new(moved, moved->rows);
      b->broken = o;
      left_out++;
      run(b);
      if (!difference(a, b)) fail_msg("%s: nothing differs without %s", s->model, moved->op[o].name);
      world_free(b);
    }
    assert_true(left_out >= 2);
    world_free(a);
    rf_graph_free(plain);
    rf_graph_free(moved);
  }
}

/* An op that uses the host's memory and is not a copy is refused. */
static void test_only_copies_touch_the_host(void **state) {
  (void)state;
  const setting *s = &SETTINGS[0];
  rf_graph *graph = graph_of(s, s->what);
  rf_error error = {0};
  int o = 0;
  while (strcmp(graph->op[o].def->name, "adamw")) o++;
  int copy = graph->op[o].input[2];
  for (int k = 0; k < graph->op_count; k++)
    if (!strcmp(graph->op[k].def->name, "offload_in") && graph->op[k].output[0] == copy)
      graph->op[o].input[2] = graph->op[o].output[1] = graph->op[k].input[0];
  assert_int_equal(rf_graph_verify(graph, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "the host's memory"));
  rf_graph_free(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_same_bits),
      cmocka_unit_test(test_a_missing_copy_is_found),
      cmocka_unit_test(test_only_copies_touch_the_host),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
