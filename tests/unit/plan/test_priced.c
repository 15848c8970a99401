/* test_priced.c - every op has a predicted time, no time is 0 unless the work is 0, and no time is
 * below its limit. All presets at small shapes, all jobs and all kinds of machines are tested. */
#include "plans.h"
#include "model/weights.h"

#include <math.h>

static int64_t ops, without_work;

/* Describes an error in the prices of a plan; "" if there is none. */
static const char *fault_of(const rf_plan *plan) {
  static char text[300];
  for (int i = 0; i < plan->graph->op_count; i++) {
    const rf_plan_op *p = &plan->op[i];
    const char *name = plan->graph->op[i].name, *fault = NULL;
    double work =
        p->work.flops + p->work.flops_again + p->work.bytes_read + p->work.bytes_written + p->work.sent_bytes;
    double limit = rf_plan_limit(plan, i, NULL);
    ops++;
    without_work += work == 0;
    if (!isfinite(p->seconds) || p->seconds < 0) fault = "takes a time that is none";
    else if (work > 0 && !(p->seconds > 0)) fault = "has work and takes no time";
    else if (!isfinite(limit) || limit < 0 ||
             (work > 0 && !(limit > 0) && !rf_op_is_exchange(plan->graph->op[i].def)))
      fault = "has work and no limit"; /* A small transfer may be only latency, which its time includes. */
    else if (p->seconds < limit * (1 - 1e-12)) fault = "is predicted below its limit";
    else if (p->calls < 1) fault = "is never called";
    if (fault)
      return snprintf(text, sizeof text, "%.150s %s (%g of work, %g s, limit %g s)", name, fault, work,
                      p->seconds, limit),
             text;
  }
  return "";
}
static void priced(const rf_plan *plan, const char *what) {
  const char *fault = fault_of(plan);
  if (*fault) fail_msg("%s: %s", what, fault);
}

/* Extreme calibrations: rates of caches above the memory's, rates of kernels above the measured
 * peak, in random order. */
static void calibrate(rf_machine *m) {
  static const struct {
    const char *op;
    rf_dtype dtype;
    double rate[4]; /* at 1 KB, 100 KB, 10 MB, 1 GB */
  } curves[] = {
      {"add", RF_F32, {9e11, 2e11, 6e11, 1e9}},       {"layernorm", RF_F32, {1e9, 3e11, 1e11, 2e10}},
      {"rmsnorm", RF_BF16, {1e12, 1e10, 8e10, 4e10}}, {"adamw", RF_F32, {1e10, 4e10, 5e10, 9e10}},
      {"embed", RF_F32, {1e9, 1e8, 5e11, 2e9}},       {"gelu", RF_BF16, {3e11, 2e11, 1e11, 5e10}},
      {"matmul", RF_F32, {1e9, 5e12, 1e10, 3e11}},    {"matmul", RF_BF16, {1e9, 1e10, 9e12, 1e12}},
      {"attention", RF_F32, {1e9, 1e10, 7e12, 1e11}}, {"attention_bwd", RF_F32, {1e9, 2e9, 3e9, 4e9}},
      {"head_loss", RF_F32, {1e9, 1e10, 1e11, 6e12}}};
  static const double sizes[4] = {1e3, 1e5, 1e7, 1e9};
  m->flops[RF_F32] = 4e11;
  m->flops[RF_BF16] = 2e11;
  m->flops[RF_I8] = 1.6e12;
  m->read_bps = 3e10;
  m->copy_bps = 3.5e10;
  m->curve_count = 0;
  for (size_t i = 0; i < sizeof curves / sizeof *curves; i++) {
    rf_curve *c = &m->curve[m->curve_count++];
    *c = (rf_curve){.dtype = curves[i].dtype, .count = 4};
    snprintf(c->op, sizeof c->op, "%s", curves[i].op);
    for (int k = 0; k < 4; k++) {
      c->work[k] = sizes[k];
      c->seconds[k] = sizes[k] / curves[i].rate[k];
    }
  }
}

/* Launches cost nothing here, so they cannot hide an op without a price. */
enum { CPU = 2, CALIBRATED, KINDS };
static const rf_machine *machine_of(int kind) {
  static rf_machine machines[KINDS];
  static const char *const names[KINDS] = {"a5000", "tpu-v5e"};
  rf_machine *m = &machines[kind];
  if (!*m->name) {
    if (names[kind]) *m = *machine_named(names[kind]);
    else rf_machine_detect(m, NULL);
    if (kind == CALIBRATED) calibrate(m);
  }
  m->launch_seconds = 0;
  m->memory_bytes = 1e15;
  return m;
}

enum { JOBS = 8 };
static rf_plan_options job_of(int job, const rf_machine *machine, const rf_model *model) {
  int64_t seq = 32;
  rf_plan_options o = train_options(machine, job == 2 ? RF_BF16 : RF_F32, 2, job == 1 ? 2 : 1, seq,
                                    job == 1   ? RF_REMAT_BLOCK
                                    : job == 2 ? RF_REMAT_MLP_ATTN
                                               : RF_REMAT_NONE);
  if (job == 2) {
    o.build.clip = 0;
    o.build.dropout = 0.1f;
  }
  if (job == 3) o.build.loss_only = true;
  if (job >= 4) o.build.dropout = 0;
  if (job == 4 || job == 5) {
    o.build.job = RF_JOB_GENERATE;
    o.build.rows = job == 4 ? 2 : 16;
  }
  if (job == 6) {
    o.build.job = RF_JOB_GENERATE;
    o.build.rows = 2;
    o.build.kv_dtype_set = model->kv_rank == 0;
    o.build.kv_dtype = RF_I8;
  }
  if (job == 7) {
    o.build.job = RF_JOB_SCORE;
    o.build.top = 4;
  }
  return o;
}

static void every_preset_and_job(void **state) {
  (void)state;
  for (int p = 0; rf_model_preset(p); p++) {
    char spec[128], what[200];
    const char *name = rf_model_preset(p);
    rf_model whole = model_named(name);
    snprintf(spec, sizeof spec, "%s:layers=%d", name, whole.layers < 3 ? (int)whole.layers : 3);
    rf_model model = model_named(spec);
    for (int kind = 0; kind < KINDS; kind++)
      for (int job = 0; job < JOBS; job++) {
        rf_plan_options o = job_of(job, machine_of(kind), &model);
        rf_plan *plan = NULL;
        rf_error error = {0};
        if (kind < CPU) {
          o.backend = &RF_BACKEND_SHEET_GPU;
          o.isa = RF_ISA_BASE;
          o.threads = 1;
        } else {
          o.backend = &RF_BACKEND_CPU;
          o.isa = RF_ISA_BASE;
        }
        snprintf(what, sizeof what, "%s, job %d on machine %d", name, job, kind);
        if (rf_plan_make(&model, &o, &plan, &error) != RAFTER_OK) fail_msg("%s: %s", what, error.message);
        priced(plan, what);
        rf_plan_free(plan);
      }
  }
  print_message("%lld ops, %lld of them without work\n", (long long)ops, (long long)without_work);
}

/* Adapters, packed weights, and meshes with their collectives. */
static void the_other_ways_of_a_job(void **state) {
  (void)state;
  static rf_weight_types types;
  rf_model model = model_named("llama3.2-1b:layers=2");
  rf_error error = {0};
  assert_int_equal(rf_weight_types_read("", &model, RF_WEIGHTS_Q4, &types, &error), RAFTER_OK);
  for (int job = 4; job < JOBS; job++) {
    rf_plan_options o = job_of(job, machine_of(2), &model);
    o.backend = &RF_BACKEND_CPU;
    o.isa = RF_ISA_BASE;
    o.build.weights = &types;
    o.build.fast = job == 4;
    rf_plan *plan = plan_of(&model, &o);
    priced(plan, "weights in 4 bits");
    rf_plan_free(plan);
  }
  rf_model adapted = model;
  if (rf_lora_parse("rank=4", &model, &adapted.lora, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_plan_options o = job_of(0, machine_of(2), &adapted);
  o.backend = &RF_BACKEND_CPU;
  o.isa = RF_ISA_BASE;
  rf_plan *plan = plan_of(&adapted, &o);
  priced(plan, "adapters");
  rf_plan_free(plan);
  static const char *const meshes[] = {"data=2,fsdp=2", "fsdp=2,tensor=2", "tensor=4", "data=2,context=2"};
  for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
    rf_machine slice;
    if (rf_machine_find("tpu-v5e:2x2", &slice, &error) != RAFTER_OK) fail_msg("%s", error.message);
    o = job_of(0, &slice, &model);
    o.backend = &RF_BACKEND_SHEET_GPU;
    o.isa = RF_ISA_BASE;
    o.threads = 1;
    o.build.microbatch = 4;
    if (rf_mesh_parse(meshes[m], -1, &o.build.mesh, &error) != RAFTER_OK) fail_msg("%s", error.message);
    plan = plan_of(&model, &o);
    priced(plan, meshes[m]);
    rf_plan_free(plan);
  }
}

/* The check notices an op without a price. */
static void planted(void **state) {
  (void)state;
  rf_model model = model_named("gpt2:layers=1");
  rf_plan_options o = job_of(0, machine_of(0), &model);
  o.backend = &RF_BACKEND_SHEET_GPU;
  o.isa = RF_ISA_BASE;
  o.threads = 1;
  rf_plan *plan = plan_of(&model, &o);
  for (int i = 0; i < plan->graph->op_count; i += 7) {
    rf_plan_op was = plan->op[i];
    plan->op[i].seconds = 0;
    assert_non_null(strstr(fault_of(plan), plan->graph->op[i].name));
    plan->op[i].seconds = NAN;
    assert_non_null(strstr(fault_of(plan), plan->graph->op[i].name));
    plan->op[i].seconds = 0.9 * rf_plan_limit(plan, i, NULL);
    assert_true(!(plan->op[i].seconds > 0) || strstr(fault_of(plan), plan->graph->op[i].name) != NULL);
    plan->op[i] = was;
  }
  priced(plan, "as it was");
  rf_plan_free(plan);
}

/* A step over sequences that fill all rows takes the seconds of the step. Shorter sequences save
 * attention, and fewer microbatches all of their ops. */
static void sequences(void **state) {
  (void)state;
  enum { ALL = 8 };
  const rf_model model = model_named("gpt2:layers=2,width=64,heads=2,ff=128,vocab=300,seq=64");
  const rf_plan_options options = train_options(machine_named("a5000"), RF_F32, 2, 4, 64, RF_REMAT_NONE);
  rf_plan *plan = plan_of(&model, &options);
  int64_t full[ALL], half[2 * ALL];
  for (int i = 0; i < ALL; i++) full[i] = 64;
  for (int i = 0; i < 2 * ALL; i++) half[i] = 32;
  double whole = rf_plan_sequences_seconds(plan, full, ALL, 4),
         shorter = rf_plan_sequences_seconds(plan, half, 2 * ALL, 4),
         fewer = rf_plan_sequences_seconds(plan, full, ALL / 2, 2);
  assert_true(fabs(whole / plan->step_seconds - 1) < 1e-9);
  assert_true(shorter < whole && shorter > 0.5 * whole);
  assert_true(fewer < whole && fewer > 0.5 * whole);
  rf_plan_free(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_preset_and_job),
      cmocka_unit_test(the_other_ways_of_a_job),
      cmocka_unit_test(planted),
      cmocka_unit_test(sequences),
  };
  return cmocka_run_group_tests_name("priced", tests, NULL, NULL);
}
