/* test_cost.c - tests the predicted seconds of single ops: ceilings, curves, and substitutes for
 * missing curves. */
#include "support/op_cases.h"
#include "unit/plan/plans.h"
#include "model/weights.h"
#include "plan/advice.h"

#include <math.h>

static rf_graph *graph;

static const rf_op *product(int64_t m, int64_t k, int64_t n, rf_dtype dtype) {
  rf_model model = model_named("gpt:layers=1,width=16,heads=1,ff=16,vocab=30,seq=16");
  graph = rf_graph_new(&model);
  int64_t x[] = {m, k}, w[] = {k, n};
  int inputs[] = {rf_graph_tensor(graph, "x", RF_CLASS_ACTIVATION, dtype, 2, x),
                  rf_graph_tensor(graph, "w", RF_CLASS_WEIGHT, dtype, 2, w)};
  int id = rf_graph_emit(graph, &RF_OP_MATMUL, "product", RF_SECTION_MICRO, (rf_slots){inputs, 2},
                         RF_IDS(RF_WANTED), NULL, NULL);
  assert_true(id >= 0);
  return &graph->op[id];
}

static double seconds(const rf_machine *machine, const rf_op *op, rf_bound *bound) {
  return rf_cost_op(machine, graph, op, NULL, op->def->work(graph, op), bound);
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

static void the_larger_ceiling_decides(void **state) {
  (void)state;
  static rf_machine machine;
  machine = (rf_machine){.kind = RF_MACHINE_GPU,
                         .chips = 1,
                         .read_bps = 1e12,
                         .copy_bps = 1e12,
                         .efficiency_compute = 0.5,
                         .efficiency_memory = 0.8,
                         .launch_seconds = 1e-6};
  machine.flops[RF_F32] = 1e13;
  machine.flops[RF_BF16] = 1e14;
  rf_bound bound;
  const rf_op *op = product(4096, 4096, 4096, RF_BF16);
  assert_true(near(seconds(&machine, op, &bound), 2 * pow(4096, 3) / 5e13 + 1e-6));
  assert_int_equal(bound, RF_BOUND_COMPUTE);
  rf_graph_free(graph);
  op = product(4096, 4096, 4096, RF_F32);
  assert_true(near(seconds(&machine, op, &bound), 2 * pow(4096, 3) / 5e12 + 1e-6));
  rf_graph_free(graph);
  op = product(1, 8192, 8192, RF_BF16); /* one row streams its weights */
  assert_true(near(seconds(&machine, op, &bound), 2.0 * (8192.0 * 8192 + 2 * 8192) / 0.8e12 + 1e-6));
  assert_int_equal(bound, RF_BOUND_MEMORY);
  rf_graph_free(graph);
  op = product(1, 16, 16, RF_BF16);
  assert_true(seconds(&machine, op, &bound) >= 1e-6);
  assert_int_equal(bound, RF_BOUND_LATENCY);
  machine.flops[RF_BF16] = 0; /* bf16 is unknown, so values are widened and multiplied in f32 */
  rf_graph_free(graph);
  op = product(4096, 4096, 4096, RF_BF16);
  assert_true(near(seconds(&machine, op, &bound), 2 * pow(4096, 3) / 5e12 + 1e-6));
  rf_graph_free(graph);
}

/* On a data sheet, kinds of products reach different shares of the peak. Attention with narrow
 * heads reaches less, and the machine gives the share of grouped products. */
static void sheets_know_kinds_of_products(void **state) {
  (void)state;
  static rf_machine machine;
  machine = (rf_machine){.kind = RF_MACHINE_GPU,
                         .chips = 1,
                         .read_bps = 1e30,
                         .copy_bps = 1e30,
                         .efficiency_compute = 0.5,
                         .efficiency_memory = 1};
  machine.flops[RF_BF16] = 1e14;
  double share[2][4] = {{0}}, grouped[2] = {0};
  for (int narrow = 0; narrow < 2; narrow++) {
    rf_model model = model_named(narrow ? "llama:layers=1,width=512,heads=8,ff=1024,vocab=300,seq=256"
                                        : "llama:layers=1,width=512,heads=4,ff=1024,vocab=300,seq=256");
    rf_plan_options options = train_options(&machine, RF_BF16, 2, 1, 256, RF_REMAT_NONE);
    options.backend = &RF_BACKEND_SHEET_GPU;
    rf_plan *plan = plan_of(&model, &options);
    for (int i = 0; i < plan->graph->op_count; i++) {
      const char *name = plan->graph->op[i].def->name;
      int kind = !strcmp(name, "matmul")           ? 0
                 : !strcmp(name, "attention")      ? 1
                 : !strcmp(name, "attention_bwd")  ? 2
                 : !strcmp(name, "head_loss_grad") ? 3
                                                   : -1;
      if (kind >= 0)
        share[narrow][kind] =
            (plan->op[i].work.flops + plan->op[i].work.flops_again) / plan->op[i].seconds / 1e14;
    }
    rf_plan_free(plan);
  }
  assert_true(near(share[0][0], 0.5) && near(share[0][3], 0.5) && near(share[0][1], 0.5 * 0.85) &&
              near(share[0][2], 0.5 * 0.73));
  assert_true(near(share[1][1], share[0][1] * 0.875) && near(share[1][2], share[0][2] * 0.875) &&
              near(share[1][0], 0.5));
  for (int k = 0; k < 2; k++) {
    machine.efficiency_experts = k ? 0.9 : 0;
    rf_model model =
        model_named("mixtral:layers=1,width=512,heads=4,ff=1024,vocab=300,seq=256,experts=4,experts_used=2");
    rf_plan_options options = train_options(&machine, RF_BF16, 2, 1, 256, RF_REMAT_NONE);
    options.backend = &RF_BACKEND_SHEET_GPU;
    rf_plan *plan = plan_of(&model, &options);
    for (int i = 0; i < plan->graph->op_count; i++)
      if (!strcmp(plan->graph->op[i].def->name, "matmul_experts"))
        grouped[k] = plan->op[i].work.flops / plan->op[i].seconds / 1e14;
    rf_plan_free(plan);
  }
  assert_true(grouped[0] > 0.2 && grouped[0] < 0.5 && near(grouped[1], 0.45));
}

static rf_curve *add_curve(rf_machine *machine, const char *op, rf_dtype dtype, const char *kernel,
                           double rate_small, double rate_large) {
  rf_curve *c = &machine->curve[machine->curve_count++];
  *c = (rf_curve){.dtype = dtype,
                  .multiplies = rf_curve_multiplies(op),
                  .count = 2,
                  .work = {1e6, 1e10},
                  .seconds = {1e6 / rate_small, 1e10 / rate_large}};
  snprintf(c->op, sizeof c->op, "%s", op);
  snprintf(c->kernel, sizeof c->kernel, "%s", kernel);
  return c;
}

static void curves_are_read_between_their_points(void **state) {
  (void)state;
  static rf_machine machine;
  machine = (rf_machine){.kind = RF_MACHINE_CPU,
                         .chips = 1,
                         .read_bps = 1e12,
                         .copy_bps = 1e12,
                         .efficiency_compute = 1,
                         .efficiency_memory = 1};
  machine.flops[RF_F32] = 1e12;
  add_curve(&machine, "matmul", RF_F32, "gemm", 1e11, 3e11);
  rf_bound bound;
  static const struct {
    int64_t n;
    double rate;
  } rows[] = {{10, 1e11}, {794, 1.8747e11}, {5000, 3e11}}; /* 2000, 1.001e9 and 2.5e11 FLOPs */
  const rf_op *op;
  for (int i = 0; i < 3; i++) {
    op = product(rows[i].n, rows[i].n, rows[i].n, RF_F32);
    double work = 2.0 * (double)(rows[i].n * rows[i].n * rows[i].n), rate = rows[i].rate;
    if (i == 1) rate = 1e11 + 2e11 * log(work / 1e6) / log(1e4);
    double got = seconds(&machine, op, &bound);
    if (!near(got, work / rate)) fail_msg("row %d: %g, expected %g", i, got, work / rate);
    rf_graph_free(graph);
  }
  /* If bf16 was not measured, the f32 curve is used. A bf16 curve takes precedence, and a curve of
   * the kernel takes precedence over both. */
  op = product(5000, 5000, 5000, RF_BF16);
  double work = 2.5e11;
  assert_true(near(seconds(&machine, op, &bound), work / 3e11));
  add_curve(&machine, "matmul", RF_BF16, "gemm_a", 1e11, 4e11);
  assert_true(near(seconds(&machine, op, &bound), work / 4e11));
  add_curve(&machine, "matmul", RF_BF16, "gemm_b", 1e11, 5e11);
  rf_kernel kernel = {.name = "gemm_b"};
  assert_true(near(rf_cost_op(&machine, graph, op, &kernel, op->def->work(graph, op), &bound), work / 5e11));
  /* A reference kernel does not use the curves of fast kernels, only the curve of all reference
   * kernels or its own. */
  kernel.name = "reference_matmul";
  assert_true(near(rf_cost_op(&machine, graph, op, &kernel, op->def->work(graph, op), &bound),
                   work / (1e12 / 500))); /* No curve exists, so a share of the peak is used. */
  add_curve(&machine, RF_COST_REFERENCE, RF_F32, RF_COST_FLOPS, 3e8, 3e8);
  assert_true(near(rf_cost_op(&machine, graph, op, &kernel, op->def->work(graph, op), &bound), work / 3e8));
  add_curve(&machine, "matmul", RF_F32, "reference_matmul", 2e8, 2e8);
  assert_true(near(rf_cost_op(&machine, graph, op, &kernel, op->def->work(graph, op), &bound), work / 2e8));
  machine.curve_count -= 2;
  rf_graph_free(graph);
  /* The time of a streamed product is that of memory, although the curve of FLOPs gives less. */
  machine.read_bps = machine.copy_bps = 1e9;
  op = product(1, 8192, 8192, RF_F32);
  assert_true(near(seconds(&machine, op, &bound), 4.0 * (8192.0 * 8192 + 2 * 8192) / 1e9));
  assert_int_equal(bound, RF_BOUND_MEMORY);
  rf_graph_free(graph);
}

static void an_unmeasured_op_is_timed_like_its_nearest(void **state) {
  (void)state;
  static rf_machine machine;
  rf_machine_detect(&machine, NULL);
  machine.launch_seconds = 0;
  add_curve(&machine, "matmul", RF_F32, "", 2e11, 2e11);
  add_curve(&machine, "add", RF_F32, "", 1e10, 1e10);
  rf_model model = model_named("gpt:layers=2,width=64,heads=4,ff=256,vocab=300,seq=64");
  rf_plan_options options = train_options(&machine, RF_F32, 4, 1, 64, RF_REMAT_NONE);
  options.threads = machine.threads;
  rf_plan *plan = plan_of(&model, &options);
  for (int i = 0; i < plan->graph->op_count; i++) {
    const char *name = plan->graph->op[i].def->name;
    const rf_plan_op *p = &plan->op[i];
    double bytes = p->work.bytes_read + p->work.bytes_written, flops = p->work.flops + p->work.flops_again;
    assert_true(isfinite(p->seconds) && p->seconds > 0);
    if (!strcmp(name, "matmul_dw") || !strcmp(name, "head_loss_grad"))
      assert_true(p->seconds >= flops / 2e11 * 0.999999);
    if (!strncmp(name, "layernorm", 9)) assert_true(near(p->seconds, bytes / 1e10));
  }
  rf_plan_free(plan);
}

/* Marks the ops of a plan that calibration can measure. */
static void add_measured(rf_machine *machine, rf_plan_options options, const char *spec, rf_job_kind job) {
  rf_model model = model_named(spec);
  options.build.job = job;
  options.build.rows = 0;
  rf_plan *plan = plan_of(&model, &options);
  for (int i = 0; i < plan->graph->op_count; i++) {
    const char *name = plan->graph->op[i].def->name;
    int k = 0;
    while (k < machine->curve_count && strcmp(machine->curve[k].op, name)) k++;
    if (k == machine->curve_count) add_curve(machine, name, RF_F32, "", 1, 1);
  }
  rf_plan_free(plan);
}

/* Calibration runs models of two kinds. Every other op is timed like one of the measured ops, not
 * at the full bandwidth of a data sheet. */
static void every_op_is_measured_or_like_one_that_is(void **state) {
  (void)state;
  static rf_machine machine;
  rf_machine_detect(&machine, NULL);
  machine.curve_count = 0;
  rf_plan_options options = train_options(&machine, RF_F32, 4, 1, 64, RF_REMAT_NONE);
  for (int dropout = 0; dropout < 2; dropout++)
    for (int job = 0; job < 2; job++) {
      options.build.dropout = dropout ? 0.1f : 0;
      add_measured(&machine, options, "gpt:layers=1,width=64,heads=4,ff=256,vocab=300,seq=64",
                   job ? RF_JOB_GENERATE : RF_JOB_TRAIN);
    }
  options.build.dropout = 0;
  for (int job = 0; job < 2; job++)
    add_measured(&machine, options, "llama:layers=1,width=64,heads=4,ff=256,vocab=300,seq=64",
                 job ? RF_JOB_GENERATE : RF_JOB_TRAIN);
  for (int i = 0; RF_OPS[i]; i++) {
    const op_case *of = OP_CASES;
    while (of->op && strcmp(of->op, RF_OPS[i]->name)) of++;
    if (!of->op) fail_msg("%s has no case", RF_OPS[i]->name);
    op_harness *h = op_case_build(of, &of->sizes[0], RF_F32);
    const rf_op *op = &h->graph->op[h->subject];
    rf_work work = op->def->work(h->graph, op);
    if (rf_cost_work(work) > 0 && !(rf_cost_op(&machine, h->graph, op, NULL, work, NULL) >=
                                    rf_cost_work(work) * 0.999999)) /* one per second */
      fail_msg("%s is timed by no curve", op->def->name);
    op_harness_free(h);
  }
}

/* Attention over a cache has a curve for short and one for long contexts. Between the two contexts,
 * the time of a key is linear in 1 / keys. */
static void attention_is_faster_over_long_contexts(void **state) {
  (void)state;
  static rf_machine machine;
  rf_machine_detect(&machine, NULL);
  machine.curve_count = 0;
  machine.launch_seconds = 0;
  machine.read_bps = machine.copy_bps = 1e15;
  rf_plan_options options = train_options(&machine, RF_F32, 1, 1, 8192, RF_REMAT_NONE);
  options.build.job = RF_JOB_GENERATE;
  options.build.rows = 256;
  rf_model model = model_named("llama:layers=1,width=64,heads=4,ff=64,vocab=300,seq=8192");
  rf_plan *plan = plan_of(&model, &options);
  int at = 0;
  while (!rf_op_is_cached(&plan->graph->op[at])) at++;
  const rf_op *op = &plan->graph->op[at];
  static const struct {
    int64_t context;
    double part; /* of the way from the short to the long curve */
  } rows[] = {{256, 0}, {1024, -1}, {8192, 1}};
  for (int both = 0; both < 2; both++) {
    if (both) add_curve(&machine, op->def->long_curve, RF_F32, "", 2e11, 2e11);
    else add_curve(&machine, op->def->name, RF_F32, "", 1e11, 1e11);
    for (int i = 0; i < 3; i++) {
      const rf_extent extent = {256, rows[i].context};
      const rf_work work = rf_plan_pass_work(plan, at, &extent, 1);
      double keys = (double)rows[i].context - 127.5, part = rows[i].part;
      if (part < 0)
        part = (1.0 / RF_SHORT_CONTEXT - 1 / keys) / (1.0 / RF_SHORT_CONTEXT - 1.0 / RF_LONG_CONTEXT);
      if (!both) part = 0;
      double want = work.flops / 1e11 * (1 - part / 2),
             got = rf_cost_op(&machine, plan->graph, op, NULL, work, NULL);
      if (fabs(got - want) > 1e-9 * want)
        fail_msg("context %d: %g, expected %g", (int)rows[i].context, got, want);
    }
  }
  rf_plan_free(plan);
}

/* Packed weights are streamed for few rows. The head multiplies only the rows that it is given,
 * however many rows there are. */
static void the_head_streams_for_the_rows_it_picks(void **state) {
  (void)state;
  static rf_machine machine;
  static rf_weight_types types;
  rf_machine_detect(&machine, NULL);
  machine.curve_count = 0;
  machine.launch_seconds = 0;
  /* one FLOP per second, so that any use of this curve is visible */
  add_curve(&machine, "head_logits", RF_F32, "", 1, 1);
  add_curve(&machine, "matmul", RF_F32, "", 1, 1);
  rf_model model = model_named("gpt:layers=1,width=64,heads=4,ff=256,vocab=300,seq=512");
  rf_error error;
  assert_int_equal(rf_weight_types_read("", &model, RF_WEIGHTS_INT8, &types, &error), RAFTER_OK);
  for (int many = 0; many < 2; many++) {
    rf_plan_options options = train_options(&machine, RF_F32, many ? 32 : 1, 1, 512, RF_REMAT_NONE);
    options.build.job = RF_JOB_GENERATE;
    options.build.rows = 256;
    options.build.weights = &types;
    rf_plan *plan = plan_of(&model, &options);
    for (int i = 0; i < plan->graph->op_count; i++) {
      const char *name = plan->graph->op[i].def->name;
      if (!strcmp(name, "head_logits")) assert_true(many ? plan->op[i].seconds > 1 : plan->op[i].seconds < 1);
      if (!strcmp(name, "matmul")) assert_true(plan->op[i].seconds > 1); /* of 256 rows */
    }
    rf_plan_free(plan);
  }
}

/* Adds a curve of products over their rows: `few` FLOP/s with one row, `many` with 64. */
static void add_rows(rf_machine *machine, const char *op, const char *type, double few, double many) {
  rf_curve *c = add_curve(machine, op, RF_F32, type, few, many);
  c->size[0] = 1;
  c->size[1] = 64;
}

/* The advice on --compute has the time of a plan with the other setting. */
static void assert_other_compute(const rf_plan *plan) {
  rf_plan_options options = plan->options;
  rf_advice advice[RF_MAX_ADVICE];
  int64_t bytes = 0;
  options.build.fast = !options.build.fast;
  rf_plan *other = plan_of(&plan->graph->model, &options);
  assert_true(near(rf_plan_other_compute(plan, &bytes), other->step_seconds));
  assert_int_equal(bytes, other->arena_bytes);
  assert_int_equal(rf_plan_advise_compute(plan, NULL, advice), 1);
  assert_string_equal(advice->change, options.build.fast ? "compute=fast" : "compute=exact");
  assert_non_null(strstr(advice->why, options.build.fast ? "faster" : "slower"));
  assert_true(advice->approximate);
  options.build.weights = NULL;
  rf_plan *plain = plan_of(&plan->graph->model, &options);
  assert_int_equal(rf_plan_advise_compute(plain, NULL, advice), 0);
  rf_plan_free(plain);
  rf_plan_free(other);
}

/* Products of a packed matrix have their own curves, by rows and storage type. Without curves,
 * exact products are timed like plain products, and those with 8-bit activations by the roofline.
 * Times per call, per output and per step of the sums are added. */
static void packed_products_have_curves_of_their_own(void **state) {
  static const char *const EDGES[] = {"matmul_start", "matmul_outputs", "matmul_inner"};
  (void)state;
  static rf_machine machine;
  static rf_weight_types types;
  rf_error error;
  rf_machine_detect(&machine, NULL);
  rf_model model = model_named("llama:layers=1,width=64,heads=4,kv_heads=4,ff=128,vocab=256,seq=128");
  assert_int_equal(rf_weight_types_read("", &model, RF_WEIGHTS_INT8, &types, &error), RAFTER_OK);
  machine.launch_seconds = 0;
  machine.read_bps = machine.copy_bps = 1e9;
  machine.flops[RF_I8] = 1e9;
  machine.efficiency_compute = machine.efficiency_memory = 0.5;
  for (int own = 0; own < 2; own++) {
    machine.curve_count = 0;
    add_curve(&machine, "matmul", RF_F32, "", 1, 1);
    add_curve(&machine, "head_logits", RF_F32, "", 1, 1);
    if (own) {
      add_rows(&machine, "matmul_exact", "q4_0", 7, 7);
      add_rows(&machine, "matmul_exact", "int8", 1e2, 1e3);
      add_rows(&machine, "matmul_fast", "q4_0", 7, 7);
      add_rows(&machine, "matmul_fast", "int8", 1e4, 1e5);
      for (int fast = 0; fast < 2; fast++)
        for (int k = 0; k < 3; k++)
          add_rows(&machine, EDGES[k], RF_COST_PRODUCT_NAMES[fast], 1 + 2 * fast + 5 * k,
                   1 + 2 * fast + 5 * k);
      add_curve(&machine, "head_rows", RF_F32, "sums", 1e3, 1e3);
    }
    for (int rows = 1; rows <= 64; rows *= 8)
      for (int fast = 0; fast < 2; fast++) {
        rf_plan_options options = train_options(&machine, RF_F32, 1, 1, 128, RF_REMAT_NONE);
        options.build.job = RF_JOB_GENERATE;
        options.build.rows = rows;
        options.build.weights = &types;
        options.build.fast = fast;
        rf_plan *plan = plan_of(&model, &options);
        int seen = 0;
        for (int o = 0; o < plan->graph->op_count; o++) {
          const rf_plan_op *p = &plan->op[o];
          bool head = !strcmp(plan->graph->op[o].def->name, "head_logits"); /* of one row */
          if (!head && strcmp(plan->graph->op[o].def->name, "matmul")) continue;
          seen++;
          double memory = (p->work.bytes_read + p->work.bytes_written) / 1e9, multiplied = head ? 1 : rows;
          double rate = (fast ? 1e4 : 1e2) * (1 + 9 * log(multiplied) / log(64)), want = p->work.flops / rate;
          const rf_tensor *w = &plan->graph->tensor[plan->graph->op[o].input[1]];
          double counts[] = {1, (double)rf_tensor_count(w) / (double)w->panels.inner,
                             (double)w->panels.inner};
          for (int k = 0; k < 3; k++) want += counts[k] / (1 + 2 * fast + 5 * k);
          /* one thread has the row */
          if (head && plan->graph->op[o].output[1] >= 0) want += plan->machine.threads * 256 / 1e3;
          if (!own)
            want = fast              ? fmax(p->work.flops / 1e9, memory) / 0.5
                   : multiplied > 16 ? p->work.flops
                                     : fmax(p->work.flops / (0.5 * machine.flops[RF_F32]), memory / 0.5);
          if (!near(p->seconds, want))
            fail_msg("%s of %d rows, fast %d, own %d: expected %g s, got %g s", plan->graph->op[o].name, rows,
                     fast, own, want, p->seconds);
        }
        assert_true(seen > 1);
        if (own) assert_other_compute(plan);
        rf_plan_free(plan);
      }
  }
}

/* The rate of a curve of add_rows at a number of rows. */
static double rate_at(double few, double many, double rows) {
  double part = log(fmin(fmax(rows, 1), 64)) / log(64);
  return few + part * (many - few);
}

/* A generator in a trainer's arena reads plain matrices. Its products have curves by rows, which
 * depend on how the matrix is stored. Training keeps the curve of its op. */
static void plain_products_of_generation_have_curves_of_their_own(void **state) {
  (void)state;
  static rf_machine machine;
  rf_machine_detect(&machine, NULL);
  machine.threads = 2;
  machine.launch_seconds = 0;
  machine.read_bps = machine.copy_bps = 1e15;
  machine.curve_count = 0;
  add_curve(&machine, "matmul", RF_F32, "", 1, 1);
  add_curve(&machine, "head_loss_grad", RF_F32, "", 1, 1);
  add_rows(&machine, "matmul_rows", "f32", 1e3, 1e4);
  add_rows(&machine, "matmul_columns", "f32", 2e3, 3e4);
  add_rows(&machine, "matmul_rows", "bf16", 9, 9);
  add_rows(&machine, "matmul_start", "matmul_exact", 8, 8);
  rf_model models[] = {model_named("llama:layers=1,width=96,heads=4,kv_heads=4,ff=128,vocab=256,seq=128"),
                       model_named("gpt:layers=1,width=96,heads=4,ff=256,vocab=300,seq=128")};
  for (int m = 0; m < 2; m++)
    for (int rows = 1; rows <= 64; rows *= 4) {
      int seen[2] = {0};
      rf_plan_options options = train_options(&machine, RF_F32, 1, 1, 128, RF_REMAT_NONE);
      rf_plan *train = plan_of(&models[m], &options);
      options.build.job = RF_JOB_GENERATE;
      options.build.rows = rows;
      options.build.plain = true;
      rf_plan *plan = plan_of(&models[m], &options);
      for (int o = 0; o < plan->graph->op_count; o++) {
        const rf_op *op = &plan->graph->op[o];
        bool head = !strcmp(op->def->name, "head_logits"); /* of one row */
        if (!head && strcmp(op->def->name, "matmul")) continue;
        bool columns = head ? op->attr.head.transpose : op->attr.matmul.transpose;
        double rate = rate_at(columns ? 2e3 : 1e3, columns ? 3e4 : 1e4, head ? 1 : rows),
               want = plan->op[o].work.flops / rate + 1.0 / 8;
        seen[columns]++;
        if (!near(plan->op[o].seconds, want))
          fail_msg("%s of %d rows: expected %g s, got %g s", op->name, rows, want, plan->op[o].seconds);
      }
      for (int o = 0; o < train->graph->op_count; o++)
        if (!strcmp(train->graph->op[o].def->name, "matmul"))
          assert_true(near(train->op[o].seconds, train->op[o].work.flops));
      assert_true(seen[0] > 0 && (m == 0 || seen[1] > 0));
      rf_plan_free(train);
      rf_plan_free(plan);
    }
}

/* The head of training with a frozen packed matrix: logits by the curve of its product, the
 * gradient of the input by the curve of transposed products, and passes over rows of logits. */
static void training_heads_are_timed_by_their_products(void **state) {
  static const char *const CASES[] = {"matmul_exact", "matmul_fast", "matmul_bf16"};
  (void)state;
  static rf_machine machine;
  static rf_weight_types types;
  rf_error error;
  rf_machine_detect(&machine, NULL);
  machine.threads = 2;
  machine.launch_seconds = 0;
  machine.read_bps = machine.copy_bps = 1e15;
  rf_model model = model_named("llama:layers=1,width=64,heads=4,kv_heads=4,ff=128,vocab=256,seq=64");
  assert_int_equal(rf_lora_parse("rank=4", &model, &model.lora, &error), RAFTER_OK);
  for (int kind = 0; kind < 3; kind++) {
    const bool bf16 = kind == 2;
    const char *type = bf16 ? "bf16" : "int8";
    machine.curve_count = 0;
    add_curve(&machine, "head_loss_grad", RF_F32, "", 1, 1);
    add_rows(&machine, CASES[kind], type, 1e3, 1e4);
    add_rows(&machine, bf16 ? "matmul_turned_head" : "matmul_turned", type, 4e3, 5e4);
    add_curve(&machine, "head_rows", RF_F32, "sums", 1e3, 1e3);
    add_curve(&machine, "head_rows", RF_F32, "gradient", 2e3, 2e3);
    assert_int_equal(
        rf_weight_types_read("", &model, bf16 ? RF_WEIGHTS_BF16 : RF_WEIGHTS_INT8, &types, &error),
        RAFTER_OK);
    rf_plan_options options = train_options(&machine, bf16 ? RF_BF16 : RF_F32, 1, 1, 64, RF_REMAT_NONE);
    options.build.weights = &types;
    options.build.objective = RF_OBJECTIVE_POLICY;
    options.build.fast = kind == 1;
    rf_plan *plan = plan_of(&model, &options);
    int seen = 0;
    for (int o = 0; o < plan->graph->op_count; o++) {
      const char *name = plan->graph->op[o].def->name;
      const bool loss = !strcmp(name, "head_loss"), bwd = !strcmp(name, "head_loss_bwd");
      if (!loss && !bwd) continue;
      seen++;
      double product = 2.0 * 64 * 64 * 256, threads = machine.threads,
             numbers = ceil(64 / threads) * threads * 256, want = product / 1e4;
      want += loss ? numbers / 1e3 : product / 5e4 + numbers / 2e3;
      if (!near(plan->op[o].seconds, want))
        fail_msg("%s, %s: expected %g s, got %g s", name, CASES[kind], want, plan->op[o].seconds);
    }
    assert_int_equal(seen, 2);
    rf_plan_free(plan);
  }
}

/* The arena is timed by the curve of pages, each matrix by the curve of its storage type. Without
 * curves, loading is timed as writing memory and copying matrices. */
static void loading_is_timed_by_what_is_stored(void **state) {
  (void)state;
  static rf_machine machine;
  static rf_weight_types types;
  rf_error error;
  rf_model model = model_named("llama:layers=1,width=64,heads=4,kv_heads=4,ff=128,vocab=256,seq=32");
  rf_machine_detect(&machine, NULL);
  machine.curve_count = 0;
  machine.copy_bps = 1e9;
  assert_int_equal(rf_weight_types_read("", &model, RF_WEIGHTS_Q4, &types, &error), RAFTER_OK);
  /* the token table; all other matrices */
  double q8_0 = 256 * 64 / 32 * 34, q4_0 = (3 * 64 * 64 + 64 * 64 + 3 * 64 * 128 + 64 * 256) / 32 * 18;
  for (int curves = 0; curves < 2; curves++) {
    rf_plan_options options = train_options(&machine, RF_F32, 1, 1, 32, RF_REMAT_NONE);
    options.build.job = RF_JOB_GENERATE;
    options.build.weights = &types;
    rf_plan *plan = plan_of(&model, &options);
    double want = ((q8_0 + q4_0) * 2 + (double)plan->arena_bytes) / 1e9;
    if (curves) want = q8_0 / 1e6 + q4_0 / 1e5 + (double)plan->arena_bytes / 1e4;
    if (!near(rf_plan_load_seconds(plan), want))
      fail_msg("expected %g s, got %g s", want, rf_plan_load_seconds(plan));
    rf_plan_free(plan);
    add_curve(&machine, "load", RF_F32, "q8_0", 1e6, 1e6);
    add_curve(&machine, "load", RF_F32, "q4_0", 1e5, 1e5);
    add_curve(&machine, "load", RF_F32, "touch", 1e4, 1e4);
  }
}

static void fewer_threads_compute_slower(void **state) {
  (void)state;
  static rf_machine machine;
  rf_machine_detect(&machine, NULL);
  machine.threads = 8;
  rf_model model = model_named("gpt2");
  rf_plan_options options = train_options(&machine, RF_F32, 4, 1, 256, RF_REMAT_NONE);
  double before = 0;
  for (int threads = 8; threads >= 1; threads /= 2) {
    options.threads = threads;
    rf_plan *plan = plan_of(&model, &options);
    assert_true(plan->step_seconds > before);
    before = plan->step_seconds;
    rf_plan_free(plan);
  }
}

static void measured_scaling_is_used(void **state) {
  (void)state;
  static rf_machine machine, m;
  machine = (rf_machine){
      .kind = RF_MACHINE_CPU, .threads = 4, .read_bps = 40e9, .copy_bps = 30e9, .scaling_count = 3};
  machine.flops[RF_F32] = 3e11;
  machine.scaling[0] = (rf_scaling){1, 1e11, 20e9};
  machine.scaling[1] = (rf_scaling){2, 1.8e11, 36e9};
  machine.scaling[2] = (rf_scaling){4, 3e11, 40e9};
  add_curve(&machine, "matmul", RF_F32, "", 1e11, 1e11);
  add_curve(&machine, "add", RF_F32, "", 1e10, 1e10);
  static const struct {
    int threads;
    double compute, memory;
  } rows[] = {{1, 1 / 3.0, 0.5}, {2, 0.6, 0.9}, {3, 0.8, 0.95}, {4, 1, 1}, {9, 1, 1}};
  for (int i = 0; i < 5; i++) {
    m = machine;
    rf_machine_for_threads(&m, rows[i].threads);
    assert_true(near(m.flops[RF_F32], machine.flops[RF_F32] * rows[i].compute));
    assert_true(near(m.read_bps, machine.read_bps * rows[i].memory));
    assert_true(near(m.copy_bps, machine.copy_bps * rows[i].memory));
    assert_true(near(m.curve[0].seconds[1], machine.curve[0].seconds[1] / rows[i].compute));
    assert_true(near(m.curve[1].seconds[1], machine.curve[1].seconds[1] / rows[i].memory));
  }
}

/* A thread takes whole rows, so three rows take two threads as long as four. In addition to its
 * product, a head takes the time of its work per row. */
static void rows_are_timed_by_what_is_done_to_them(void **state) {
  (void)state;
  static rf_machine machine;
  machine = (rf_machine){.kind = RF_MACHINE_CPU, .threads = 2, .read_bps = 40e9, .copy_bps = 30e9};
  machine.flops[RF_F32] = 4e11;
  assert_true(rf_cost_rows_seconds(&machine, "sample", "likeliest", 4, 1000) == 0);
  for (int k = 0; k < 2; k++) {
    rf_curve *c = &machine.curve[machine.curve_count++];
    *c = (rf_curve){.dtype = RF_F32, .count = 1, .work = {4e6}, .size = {1e6}, .seconds = {k ? 2e-3 : 1e-3}};
    snprintf(c->op, sizeof c->op, "sample");
    snprintf(c->kernel, sizeof c->kernel, k ? "drawn" : "likeliest");
  }
  assert_true(near(rf_cost_rows_seconds(&machine, "sample", "likeliest", 4, 1000), 4e3 / 4e9));
  assert_true(near(rf_cost_rows_seconds(&machine, "sample", "likeliest", 3, 1000), 4e3 / 4e9));
  assert_true(near(rf_cost_rows_seconds(&machine, "sample", "drawn", 1, 1000), 2e3 / 2e9));
}

static void a_lower_level_has_its_own_peaks(void **state) {
  (void)state;
  static rf_machine machine, m;
  machine = (rf_machine){.kind = RF_MACHINE_CPU, .threads = 2, .read_bps = 40e9, .copy_bps = 30e9};
  machine.flops[RF_F32] = 4e11;
  machine.flops[RF_BF16] = 6e12;
  machine.flops[RF_I8] = 12e12;
  machine.flops_vectors[RF_BF16] = 9e11;
  machine.flops_vectors[RF_I8] = 18e11;
  static const struct {
    rf_isa isa;
    double bf16, i8;
  } rows[] = {{RF_ISA_AMX, 6e12, 12e12},
              {RF_ISA_AVX512BF16, 9e11, 18e11},
              {RF_ISA_AVX512, 0, 0},
              {RF_ISA_BASE, 0, 0}};
  for (int i = 0; i < 4; i++) {
    m = machine;
    rf_machine_for_isa(&m, rows[i].isa);
    assert_true(m.flops[RF_F32] == 4e11 && m.flops[RF_BF16] == rows[i].bf16 && m.flops[RF_I8] == rows[i].i8);
  }
  const rf_op *op = product(4096, 4096, 4096, RF_BF16);
  m = machine;
  rf_machine_for_isa(&m, RF_ISA_AVX512);
  assert_true(near(seconds(&m, op, NULL), 2 * pow(4096, 3) / 4e11)); /* widened */
  rf_graph_free(graph);
  memset(machine.flops_vectors, 0, sizeof machine.flops_vectors); /* measured without tiles */
  m = machine;
  rf_machine_for_isa(&m, RF_ISA_BASE);
  assert_memory_equal(m.flops, machine.flops, sizeof m.flops);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_larger_ceiling_decides),
      cmocka_unit_test(sheets_know_kinds_of_products),
      cmocka_unit_test(curves_are_read_between_their_points),
      cmocka_unit_test(an_unmeasured_op_is_timed_like_its_nearest),
      cmocka_unit_test(fewer_threads_compute_slower),
      cmocka_unit_test(measured_scaling_is_used),
      cmocka_unit_test(a_lower_level_has_its_own_peaks),
      cmocka_unit_test(rows_are_timed_by_what_is_done_to_them),
      cmocka_unit_test(every_op_is_measured_or_like_one_that_is),
      cmocka_unit_test(attention_is_faster_over_long_contexts),
      cmocka_unit_test(the_head_streams_for_the_rows_it_picks),
      cmocka_unit_test(packed_products_have_curves_of_their_own),
      cmocka_unit_test(plain_products_of_generation_have_curves_of_their_own),
      cmocka_unit_test(training_heads_are_timed_by_their_products),
      cmocka_unit_test(loading_is_timed_by_what_is_stored),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
