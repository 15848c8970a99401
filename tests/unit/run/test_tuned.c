/* test_tuned.c - tuned block sizes reach the kernel through the plan. Planned bytes equal allocated
 * bytes, and results keep their bits. */
#include "unit/plan/plans.h"

#include "backend/cpu/gemm.h"
#include "graph/remat.h"
#include "machine/tuned.h"
#include "run/run.h"

static const char MODEL[] = "gpt2:layers=2,width=256,heads=4,ff=1024,vocab=300,seq=64";
static const rf_blocks ODD = {48, 1 << 14, 96};

/* A machine on which the same unusual blocks are the fastest for everything. */
static rf_machine *tuned_machine(int threads) {
  rf_machine *m = calloc(1, sizeof *m);
  assert_non_null(m);
  *m = *machine_named("a5000");
  static const char *const ops[] = {"matmul", "matmul_dx", "matmul_dw"};
  static const char *const kernels[] = {"gemm_avx512_12x32", "gemm_avx2_6x16", "gemm_base_4x16"};
  m->tuned = (rf_tuned){.cpu = "here", .here = true, .threads = threads};
  for (int i = 0; i < 9; i++)
    for (int class = 0; class < RF_TUNED_CLASSES && m->tuned.count < RF_TUNED_ROWS; class += 1) {
      if (class != 0 && class != 3) continue; /* 128 rows, and weights of 64 Ki to 256 Ki values */
      rf_tuned_row *row = &m->tuned.row[m->tuned.count++];
      *row = (rf_tuned_row){
          .class = class, .dtype = RF_F32, .usual = rf_gemm_blocks(), .best = ODD, .gain = 0.1};
      snprintf(row->op, sizeof row->op, "%s", ops[i % 3]);
      snprintf(row->kernel, sizeof row->kernel, "%s", kernels[i / 3]);
    }
  return m;
}

static rf_plan_options cpu_options(const rf_machine *machine, rf_dtype dtype, rf_remat remat) {
  rf_plan_options options = train_options(machine, dtype, 2, 1, 64, remat);
  options.backend = &RF_BACKEND_CPU;
  options.isa = rf_isa_detect();
  return options;
}

static int64_t workspace_bytes(const rf_plan *plan, int op) {
  return plan->op[op].workspace == RF_NONE ? 0 : rf_plan_content(plan, plan->op[op].workspace)->shape[0];
}

static void winners_reach_the_kernel(void **state) {
  (void)state;
  rf_machine *tuned = tuned_machine(2);
  rf_model model = model_named(MODEL);
  rf_plan_options options = cpu_options(tuned, RF_F32, RF_REMAT_NONE),
                  own = cpu_options(machine_named("a5000"), RF_F32, RF_REMAT_NONE);
  rf_plan *a = plan_of(&model, &own), *b = plan_of(&model, &options);
  int chosen = 0, other = 0;
  assert_int_equal(a->graph->op_count, b->graph->op_count);
  for (int i = 0; i < b->graph->op_count; i++) {
    const rf_op *op = &b->graph->op[i];
    bool blocks = rf_tuned_class(b->graph, op) >= 0;
    const rf_plan_op *p = &b->op[i];
    assert_int_equal(a->op[i].blocks.kc, 0);
    if (!blocks) {
      assert_int_equal(p->blocks.kc, 0);
      continue;
    }
    assert_true(rf_matmul_has_blocks(p->kernel));
    assert_memory_equal(&p->blocks, &ODD, sizeof ODD);
    assert_int_equal(workspace_bytes(b, i), p->kernel->workspace_bytes(b->graph, op, (rf_tiling){2, ODD}));
    chosen++;
    other += workspace_bytes(a, i) != workspace_bytes(b, i);
  }
  assert_int_equal(chosen, 2 * 4 * 3); /* layers, matrices, products */
  assert_int_equal(other, chosen);
  assert_string_not_equal(a->digest, b->digest);
  rf_plan_free(b);

  /* Tuning for another CPU, number of threads, dtype or kernel is ignored. */
  for (int i = 0; i < 5; i++) {
    rf_machine *m = tuned_machine(2);
    rf_dtype dtype = RF_F32;
    if (i == 0) m->tuned.here = false;
    if (i == 1) m->tuned.threads = 3;
    if (i == 2) dtype = RF_BF16;
    for (int k = 0; k < m->tuned.count; k++) {
      if (i == 3) snprintf(m->tuned.row[k].kernel, sizeof m->tuned.row[k].kernel, "gemm_of_another");
      if (i == 4) m->tuned.row[k].best = (rf_blocks){0}; /* the default stays */
    }
    rf_plan_options o = cpu_options(m, dtype, RF_REMAT_NONE),
                    plain = cpu_options(machine_named("a5000"), dtype, RF_REMAT_NONE);
    rf_plan *c = plan_of(&model, &plain), *d = plan_of(&model, &o);
    assert_string_equal(c->digest, d->digest);
    assert_int_equal(c->arena_bytes, d->arena_bytes);
    rf_plan_free(c);
    rf_plan_free(d);
    free(m);
  }
  rf_plan_free(a);
  free(tuned);
}

/* A plan stores what it chooses next to the graph: planning changes no byte of an op or tensor. */
static void planning_changes_no_graph(void **state) {
  (void)state;
  rf_machine *tuned = tuned_machine(2);
  rf_model model = model_named(MODEL);
  for (int job = RF_JOB_TRAIN; job <= RF_JOB_SCORE; job++) {
    rf_plan_options options = cpu_options(tuned, RF_F32, RF_REMAT_NONE);
    options.build.job = (rf_job_kind)job;
    rf_graph *graph = NULL;
    assert_int_equal(rf_graph_build(&model, &options.build, NULL, &graph, NULL), RAFTER_OK);
    const size_t ops = (size_t)graph->op_count * sizeof *graph->op,
                 tensors = (size_t)graph->tensor_count * sizeof *graph->tensor;
    rf_graph *before = rf_graph_borrow(graph);
    rf_op *op = memcpy(malloc(ops), graph->op, ops);
    rf_tensor *tensor = memcpy(malloc(tensors), graph->tensor, tensors);
    rf_plan *plan = rf_plan_of_graph(graph, &options, RF_PLAN_WHOLE);
    int chosen = 0;
    for (int i = 0; i < graph->op_count; i++) chosen += plan->op[i].blocks.kc != 0;
    assert_true(job != RF_JOB_TRAIN || chosen > 0);
    assert_ptr_equal(plan->graph, graph);
    assert_int_equal(graph->op_count, before->op_count);
    assert_int_equal(graph->tensor_count, before->tensor_count);
    assert_memory_equal(graph->op, op, ops);
    assert_memory_equal(graph->tensor, tensor, tensors);
    rf_plan *again = rf_plan_of_graph(before, &options, RF_PLAN_WHOLE);
    assert_string_equal(plan->digest, again->digest);
    rf_plan_free(again);
    rf_plan_free(plan);
    free(op);
    free(tensor);
  }
  free(tuned);
}

/* Auto weighs the actual plan, with blocks that need other workspaces. */
static void trials_know_them(void **state) {
  (void)state;
  rf_machine *tuned = tuned_machine(2);
  rf_model model = model_named(MODEL);
  rf_plan_options options = cpu_options(tuned, RF_F32, RF_REMAT_NONE);
  rf_pool *pool = rf_pool_new();
  rf_graph *base = NULL;
  rf_remat named[RF_REMAT_NAMED];
  int policies = rf_remat_named(named);
  assert_int_equal(rf_graph_build(&model, &options.build, NULL, &base, NULL), RAFTER_OK);
  rf_trial *trial = rf_trial_open(base, &options, pool);
  bool *drop = rf_pool_alloc(pool, (size_t)base->tensor_count + 1);
  for (int i = 0; i < policies; i++) {
    int64_t live;
    double seconds;
    rf_remat_policy(base, named[i], drop);
    rf_trial_weigh(trial, drop, &live, &seconds);
    rf_graph *graph = rf_graph_borrow(base);
    assert_int_equal(rf_pass_remat(graph, drop, NULL), RAFTER_OK);
    rf_plan *plan = rf_plan_of_graph(graph, &options, RF_PLAN_BYTES);
    assert_int_equal(live, plan->live_bytes);
    rf_plan_layout(plan);
    assert_int_equal(rf_trial_layout(trial), plan->arena_bytes);
    rf_plan_free(plan);
  }
  rf_graph_free(base);
  rf_pool_free(pool);
  free(tuned);
}

/* Runs one step. Returns the bytes of all persistent tensors. */
static unsigned char *stepped(const rf_plan *plan, int64_t *bytes) {
  rf_run *run = NULL;
  rf_error error = {0};
  const rf_plan *plans[] = {plan};
  if (rf_run_open(plans, 1, (rf_run_debug){.poison = true}, &run, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  assert_int_equal(rf_run_arena_bytes(run), plan->arena_bytes);
  const rf_graph *graph = plan->graph;
  uint64_t seed = 3;
  *bytes = 0;
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    float *at = rf_run_tensor(run, 0, t);
    if (!at || !tensor->persistent) continue;
    *bytes += rf_tensor_bytes(tensor);
    if (tensor->class == RF_CLASS_MOMENT || tensor->dtype != RF_F32) continue;
    for (int64_t i = 0; i < rf_tensor_count(tensor); i++)
      at[i] = (float)((int32_t)draw(&seed) >> 8) * 0x1p-27f;
  }
  int32_t *tokens = rf_run_named(run, 0, "tokens", NULL), *labels = rf_run_named(run, 0, "labels", NULL),
          *positions = rf_run_named(run, 0, "positions", NULL),
          *segments = rf_run_named(run, 0, "segments", NULL);
  for (int64_t i = 0; i < graph->rows; i++) {
    tokens[i] = (int32_t)draw_in(&seed, 0, 299);
    labels[i] = (int32_t)draw_in(&seed, 0, 299);
    positions[i] = (int32_t)(i % 64);
    segments[i] = (int32_t)(i * 64 < graph->rows ? i * 64 : graph->rows);
  }
  segments[graph->rows] = (int32_t)graph->rows;
  rf_run_inputs inputs = {.seed = 1, .step = 1, .loss_scale = 1.0f / 128, .lr = 1e-3f, .rows = graph->rows};
  for (int section = 0; section < RF_SECTIONS; section++)
    if (rf_run_section(run, 0, (rf_section)section, &inputs, &error) != RAFTER_OK)
      fail_msg("%s", error.message);
  unsigned char *all = malloc((size_t)*bytes), *to = all;
  assert_non_null(all);
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    void *at = rf_run_tensor(run, 0, t);
    if (at && tensor->persistent) {
      memcpy(to, at, (size_t)rf_tensor_bytes(tensor));
      to += rf_tensor_bytes(tensor);
    }
  }
  rf_run_close(run);
  return all;
}

static void steps_keep_their_bits(void **state) {
  (void)state;
  rf_machine *tuned = tuned_machine(2);
  rf_model model = model_named(MODEL);
  for (int remat = 0; remat < 2; remat++) {
    rf_remat how = remat ? RF_REMAT_BLOCK : RF_REMAT_NONE;
    rf_plan_options options = cpu_options(tuned, RF_F32, how),
                    own = cpu_options(machine_named("a5000"), RF_F32, how);
    rf_plan *a = plan_of(&model, &own), *b = plan_of(&model, &options);
    int64_t a_bytes, b_bytes;
    unsigned char *of_own = stepped(a, &a_bytes), *of_tuned = stepped(b, &b_bytes);
    assert_int_equal(a_bytes, b_bytes);
    assert_memory_equal(of_own, of_tuned, (size_t)a_bytes);
    free(of_own);
    free(of_tuned);
    rf_plan_free(a);
    rf_plan_free(b);
  }
  free(tuned);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(winners_reach_the_kernel),
      cmocka_unit_test(planning_changes_no_graph),
      cmocka_unit_test(trials_know_them),
      cmocka_unit_test(steps_keep_their_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
