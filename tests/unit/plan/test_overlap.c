/* test_overlap.c - compares the schedule of a step with the literature: the sizes at which
 * computing and sending take equally long ("How to Scale Your Model", the chapters on training and
 * sharding; MaxText's sharding guide), exposed and hidden transfers, pipelines, hosts, dies. The
 * programs of one chip are built by hand. */
#include "unit/plan/plans.h"

#include <math.h>

enum { D = 4096, LAYERS = 8 };

/* A machine that only multiplies and sends: no latency, no waiting for memory, links at the rate of
 * the data sheet. */
static rf_machine pure(const char *spec) {
  rf_machine m;
  rf_error error = {0};
  if (rf_machine_find(spec, &m, &error) != RAFTER_OK) fail_msg("%s: %s", spec, error.message);
  m.efficiency_compute = m.efficiency_memory = 1;
  m.launch_seconds = 0;
  m.read_bps = m.copy_bps = 1e30;
  m.topology.hop_seconds = m.dcn_hop_seconds = 0;
  m.topology.fraction = 1;
  m.tile[0] = m.tile[1] = 0;
  return m;
}

typedef struct build {
  rf_graph *graph;
  rf_mesh mesh;
} build;

static build begin(rf_mesh mesh) {
  rf_model model = model_named("gpt:layers=1,width=16,heads=1,ff=16,vocab=30,seq=16");
  build b = {rf_graph_new(&model), mesh};
  b.graph->mesh = mesh;
  b.graph->accumulate = 1;
  return b;
}
static int tensor(build *b, rf_class class, int64_t rows, int64_t columns) {
  int id = rf_graph_tensor(b->graph, "t", class, RF_BF16, 2, (const int64_t[]){rows, columns});
  b->graph->tensor[id].persistent = class == RF_CLASS_WEIGHT;
  return id;
}
static int op(build *b, const char *def, const int *in, int count, rf_attr attr) {
  rf_error error = {0};
  int id = rf_graph_emit(b->graph, rf_op_find(def), def, RF_SECTION_MICRO, (rf_slots){in, count},
                         RF_IDS(RF_WANTED), &attr, &error);
  if (id < 0) fail_msg("%s", error.message);
  return b->graph->op[id].output[0];
}
static int exchange(build *b, const char *def, int x, rf_axes axes) {
  return op(b, def, &x, 1, (rf_attr){.axes = axes, .group = (int32_t)rf_mesh_size(&b->mesh, axes)});
}
static int keep(build *b, int t) {
  b->graph->tensor[t].output = true;
  return t;
} /* no other tensor reuses its bytes */
static int product(build *b, int x, int w) { return op(b, "matmul", (const int[]){x, w}, 2, (rf_attr){0}); }

static rf_step_time time_of(build *b, const rf_machine *machine, rf_collectives how) {
  rf_plan_options options = train_options(machine, RF_BF16, 1, 1, 16, RF_REMAT_NONE);
  options.backend = &RF_BACKEND_SHEET_GPU;
  options.collectives = how;
  options.build.mesh = b->mesh;
  rf_error error = {0};
  if (rf_plan_check_transfers(b->graph, machine, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_plan *plan = rf_plan_of_graph(b->graph, &options, RF_PLAN_WHOLE);
  rf_step_time time = plan->time;
  double sum = 0;
  for (int i = 0; i < RF_BOUNDS; i++) sum += time.by[i];
  assert_true(fabs(sum - time.seconds) <= 1e-12 * time.seconds);
  assert_true(plan->step_seconds == time.seconds);
  rf_plan_free(plan);
  return time;
}

/* Weights (D x F, F x D) of every layer, sharded over fsdp and gathered while the layer before is
 * computed. `n`: tokens per chip. */
static build fsdp_mlp(rf_mesh mesh, int64_t n, int64_t ff, bool ahead) {
  build b = begin(mesh);
  rf_axes axes = RF_AXIS_BIT(RF_AXIS_FSDP);
  int64_t shards = rf_mesh_size(&mesh, axes);
  int x = tensor(&b, RF_CLASS_ACTIVATION, n, D), up[LAYERS + 1], down[LAYERS + 1];
#define GATHER(l) \
  (up[l] = exchange(&b, "all_gather", tensor(&b, RF_CLASS_WEIGHT, D / shards, ff), axes), \
   down[l] = exchange(&b, "all_gather", tensor(&b, RF_CLASS_WEIGHT, ff / shards, D), axes))
  if (ahead) GATHER(0);
  for (int l = 0; l < LAYERS; l++) {
    if (!ahead) GATHER(l);
    else if (l + 1 < LAYERS) GATHER(l + 1);
    x = product(&b, product(&b, x, up[l]), down[l]);
  }
  return b;
}

/* Columns, then rows of the weights sharded over tensor. Rows of activations are gathered before
 * and scattered after. */
static build tensor_mlp(rf_mesh mesh, int64_t n, int64_t ff) {
  build b = begin(mesh);
  rf_axes axes = RF_AXIS_BIT(RF_AXIS_TENSOR);
  int64_t shards = rf_mesh_size(&mesh, axes);
  int x = tensor(&b, RF_CLASS_ACTIVATION, n / shards, D);
  for (int l = 0; l < LAYERS; l++) {
    int whole = exchange(&b, "all_gather", x, axes);
    int y = product(&b, product(&b, whole, tensor(&b, RF_CLASS_WEIGHT, D, ff / shards)),
                    tensor(&b, RF_CLASS_WEIGHT, ff / shards, D));
    x = exchange(&b, "reduce_scatter", y, axes);
  }
  return b;
}

/* Experts distributed over the chips. Rows are sent to the chip of their expert and back. One
 * expert per chip, two matrices. */
static build expert_mlp(rf_mesh mesh, int64_t rows, int64_t ff) {
  build b = begin(mesh);
  rf_axes axes = RF_AXIS_BIT(RF_AXIS_EXPERT);
  int x = tensor(&b, RF_CLASS_ACTIVATION, rows, D);
  for (int l = 0; l < LAYERS; l++) {
    int there = exchange(&b, "all_to_all", x, axes);
    int y = product(&b, product(&b, there, tensor(&b, RF_CLASS_WEIGHT, D, ff)),
                    tensor(&b, RF_CLASS_WEIGHT, ff, D));
    x = exchange(&b, "all_to_all", y, axes);
  }
  return b;
}

/* Gradients of the backward pass in bf16, summed over slices while the layer before is computed; 4
 * products per layer. */
static build slices_mlp(rf_mesh mesh, int64_t n, int64_t ff) {
  build b = begin(mesh);
  int64_t shards = rf_mesh_size(&mesh, RF_AXIS_BIT(RF_AXIS_FSDP));
  int x = tensor(&b, RF_CLASS_ACTIVATION, n, D);
  for (int l = 0; l < LAYERS; l++) {
    int w = tensor(&b, RF_CLASS_WEIGHT, D, ff), v = tensor(&b, RF_CLASS_WEIGHT, ff, D);
    for (int k = 0; k < 2; k++) x = product(&b, product(&b, x, w), v); /* dx and dw cost the same */
    for (int k = 0; k < 2; k++)
      exchange(&b, "all_reduce", tensor(&b, RF_CLASS_GRADIENT, D / shards, ff), RF_AXIS_BIT(RF_AXIS_SLICE));
  }
  return b;
}

static rf_mesh mesh_of(rf_axis a, int x, rf_axis c, int y) {
  rf_mesh mesh = {.zero = 3};
  mesh.of[a] = x;
  if (y > 1) mesh.of[c] = y;
  return mesh;
}

typedef rf_bound (*bound_at)(const rf_machine *machine, rf_mesh mesh, int64_t value);
static rf_bound fsdp_tokens(const rf_machine *m, rf_mesh mesh, int64_t n) {
  build b = fsdp_mlp(mesh, n, 16384, true);
  return time_of(&b, m, RF_COLLECTIVES_OFFLOAD).bound;
}
static rf_bound tensor_ff(const rf_machine *m, rf_mesh mesh, int64_t ff) {
  build b = tensor_mlp(mesh, 4096, ff);
  return time_of(&b, m, RF_COLLECTIVES_OFFLOAD).bound;
}
static rf_bound expert_ff(const rf_machine *m, rf_mesh mesh, int64_t ff) {
  build b = expert_mlp(mesh, 4096, ff);
  return time_of(&b, m, RF_COLLECTIVES_OFFLOAD).bound;
}
static rf_bound slice_tokens(const rf_machine *m, rf_mesh mesh, int64_t n) {
  build b = slices_mlp(mesh, n, 16384);
  return time_of(&b, m, RF_COLLECTIVES_OFFLOAD).bound;
}

/* The smallest value at which a step is bound by arithmetic. Below it, the network is the bound. */
static double turning_point(bound_at probe, const rf_machine *m, rf_mesh mesh, int64_t grain) {
  int64_t low = 1, high = 1 << 20;
  while (high - low > 1) {
    int64_t middle = (low + high) / 2;
    if (probe(m, mesh, middle * grain) == RF_BOUND_COMPUTE) high = middle;
    else low = middle;
  }
  return (double)(high * grain);
}

static void steps_turn_where_the_literature_says(void **state) {
  (void)state;
  /* alpha: FLOP/s over bytes/s of one axis, both directions. The books' formula leaves out the
   * factor (X-1)/X of a ring. */
  const double v5p = 4.59e14 / 1.8e11, v5e = 1.97e14 / 9e10, v5p_dcn = 4.59e14 / 6.25e9,
               h100 = 9.89e14 / 4.5e11;
  const struct {
    const char *what, *machine;
    rf_mesh mesh;
    bound_at probe;
    int64_t grain;
    double expected;
  } rows[] = {
      {"FSDP over three axes: n > alpha/3", "tpu-v5p:4x4x4", mesh_of(RF_AXIS_FSDP, 64, 0, 0), fsdp_tokens, 1,
       v5p / 3 * 63 / 64},
      {"FSDP over one axis: n > alpha", "tpu-v5p:8x4x4", mesh_of(RF_AXIS_DATA, 16, RF_AXIS_FSDP, 8),
       fsdp_tokens, 1, 0},
      {"FSDP on v5e, a ring of 16: n > alpha", "tpu-v5e:16x1", mesh_of(RF_AXIS_FSDP, 16, 0, 0), fsdp_tokens,
       1, v5e * 15 / 16},
      {"FSDP on v5e, a line of 8: twice that", "tpu-v5e:8x1", mesh_of(RF_AXIS_FSDP, 8, 0, 0), fsdp_tokens, 1,
       2 * v5e * 7 / 8},
      {"FSDP in a node of H100: n > C/W", "h100-sxm:8", mesh_of(RF_AXIS_FSDP, 8, 0, 0), fsdp_tokens, 1,
       h100 * 7 / 8},
      {"tensor over one ring: F > alpha Y", "tpu-v5e:16x1", mesh_of(RF_AXIS_TENSOR, 16, 0, 0), tensor_ff, 16,
       v5e * 16 * 15 / 16},
      {"tensor over three axes: F > alpha Y/3", "tpu-v5p:4x4x4", mesh_of(RF_AXIS_TENSOR, 64, 0, 0), tensor_ff,
       64, v5p * 64 / 3 * 63 / 64},
      {"experts on a ring: 4 F/Q > alpha", "tpu-v5e:16x1", mesh_of(RF_AXIS_EXPERT, 16, 0, 0), expert_ff, 16,
       v5e * 16 / 4},
      {"gradients between two slices: n a slice > C/W_dcn", "tpu-v5p:4x4x4*2",
       mesh_of(RF_AXIS_SLICE, 2, RF_AXIS_FSDP, 64), slice_tokens, 1, v5p_dcn / 64 / 2},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_machine machine = pure(rows[i].machine);
    double expected = rows[i].expected;
    if (expected == 0) { /* The links decide which axis the mesh gets, and so the cost of a byte. */
      rf_group group;
      assert_int_equal(rf_machine_group(&machine, &rows[i].mesh, RF_AXIS_BIT(RF_AXIS_FSDP), &group, NULL),
                       RAFTER_OK);
      expected = 4.59e14 * rf_collective_seconds(&group, RF_ALL_GATHER, 1, false, NULL);
    }
    double got = turning_point(rows[i].probe, &machine, rows[i].mesh, rows[i].grain);
    if (fabs(got - expected) > 0.02 * expected + (double)rows[i].grain)
      fail_msg("%s: turns at %g, expected %g", rows[i].what, got, expected);
  }
}

static void what_is_sent_behind_work_is_hidden(void **state) {
  (void)state;
  rf_machine machine = pure("tpu-v5p:4x4x4");
  rf_mesh mesh = mesh_of(RF_AXIS_FSDP, 64, 0, 0);
  double compute = LAYERS * 4.0 * 2000 * D * 16384 / 4.59e14, one = 2.0 * 2 * D * 16384 / 5.4e11 * 63 / 64,
         sent = LAYERS * one;
  /* 2000 tokens > 837: only the gather of the first layer is exposed */
  build b = fsdp_mlp(mesh, 2000, 16384, true);
  rf_step_time t = time_of(&b, &machine, RF_COLLECTIVES_OFFLOAD);
  assert_true(fabs(t.by[RF_BOUND_COMPUTE] - compute) < 1e-9 * compute);
  assert_true(t.by[RF_BOUND_NETWORK] <= 1.01 * one && t.by[RF_BOUND_NETWORK] >= 0.49 * one &&
              t.bound == RF_BOUND_COMPUTE);
  assert_true(fabs(t.by[RF_BOUND_NETWORK] + t.network_hidden - sent) < 1e-9 * sent);
  b = fsdp_mlp(mesh, 2000, 16384, true);
  t = time_of(&b, &machine, RF_COLLECTIVES_NONE); /* the core waits for every collective */
  assert_true(fabs(t.seconds - compute - sent) < 1e-9 * t.seconds && t.network_hidden < 1e-12);
  b = fsdp_mlp(mesh, 400, 16384, true); /* 400 tokens < 837: the difference is exposed */
  t = time_of(&b, &machine, RF_COLLECTIVES_OFFLOAD);
  assert_true(t.bound == RF_BOUND_NETWORK && fabs(t.seconds - sent) < 0.15 * sent && t.seconds >= sent);
  /* The core is slowed by the memory traffic of its collectives, at most for as long as they
   * last. */
  machine.copy_bps = machine.read_bps = 2.765e12;
  double seconds[3];
  for (int how = 0; how < 3; how++) {
    b = fsdp_mlp(mesh, 2000, 16384, true);
    seconds[how] = time_of(&b, &machine, (rf_collectives)how).seconds;
  }
  assert_true(seconds[RF_COLLECTIVES_OFFLOAD] < seconds[RF_COLLECTIVES_CORE] &&
              seconds[RF_COLLECTIVES_CORE] < seconds[RF_COLLECTIVES_NONE]);
}

/* Collectives on different axes run at the same time. On the same axis they run one after the
 * other. */
static void axes_do_not_meet(void **state) {
  (void)state;
  rf_machine machine = pure("tpu-v5p:8x8x1");
  rf_mesh mesh = mesh_of(RF_AXIS_FSDP, 8, RF_AXIS_TENSOR, 8);
  double seconds[3];
  for (int k = 0; k < 3; k++) {
    build b = begin(mesh);
    keep(&b, exchange(&b, "all_gather", tensor(&b, RF_CLASS_WEIGHT, 8192, 8192), RF_AXIS_BIT(RF_AXIS_FSDP)));
    if (k)
      keep(&b, exchange(&b, "all_gather", tensor(&b, RF_CLASS_WEIGHT, 8192, 8192),
                        RF_AXIS_BIT(k == 1 ? RF_AXIS_TENSOR : RF_AXIS_FSDP)));
    seconds[k] = time_of(&b, &machine, RF_COLLECTIVES_OFFLOAD).seconds;
  }
  assert_true(fabs(seconds[1] - seconds[0]) < 1e-9 * seconds[0] &&
              fabs(seconds[2] - 2 * seconds[0]) < 1e-9 * seconds[0]);
}

/* (Z-1)/(m+Z-1) of a pipeline's time is its bubble, whatever the layers. */
static void pipelines_have_bubbles(void **state) {
  (void)state;
  rf_machine machine = pure("tpu-v5p:4x1x1");
  for (int m = 1; m <= 32; m *= 2) {
    build b = begin(mesh_of(RF_AXIS_PIPELINE, 4, 0, 0));
    b.graph->accumulate = m;
    int x = tensor(&b, RF_CLASS_ACTIVATION, 4096, D);
    for (int l = 0; l < LAYERS; l++) x = product(&b, x, tensor(&b, RF_CLASS_WEIGHT, D, D));
    rf_step_time t = time_of(&b, &machine, RF_COLLECTIVES_OFFLOAD);
    assert_true(fabs(t.bubble / t.seconds - 3.0 / (m + 3)) < 1e-9);
    assert_true(fabs(t.by[RF_BOUND_NETWORK] - t.bubble) < 1e-12);
  }
}

/* A transfer to the host and back is hidden by compute, or exposed. It is requested again
 * halfway. */
static void the_host_is_hidden_or_shown(void **state) {
  (void)state;
  rf_machine machine = pure("tpu-v5p");
  for (int half = 1; half <= 32; half *= 2) {
    int64_t n = 4096;
    build b = begin((rf_mesh){0});
    int x = keep(&b, tensor(&b, RF_CLASS_ACTIVATION, n, D)), w = tensor(&b, RF_CLASS_WEIGHT, D, D);
    int kept = keep(&b, op(&b, "offload_out", &x, 1, (rf_attr){.group = 1}));
    for (int l = 0; l < half; l++) x = product(&b, x, w);
    keep(&b, op(&b, "offload_in", &kept, 1, (rf_attr){.group = 1}));
    for (int l = 0; l < half; l++) x = product(&b, x, w);
    rf_step_time t = time_of(&b, &machine, RF_COLLECTIVES_CORE);
    double way = 2.0 * (double)n * D / machine.pcie_bps,
           compute = half * 2 * 2.0 * (double)n * D * D / 4.59e14;
    double end = fmax(compute, fmax(way, compute / 2) + way), exposed = end - compute;
    assert_true(half == 1 ? exposed > 0 : half < 32 || exposed == 0);
    assert_true(fabs(t.offload_exposed - exposed) < 1e-9 * end && fabs(t.seconds - end) < 1e-9 * end);
  }
}

/* The bytes of a transfer are in use until the transfer has ended. An op that writes there
 * waits. */
static void bytes_in_flight_are_not_written(void **state) {
  (void)state;
  rf_machine machine = pure("tpu-v5p");
  double seconds[2];
  for (int kept = 0; kept < 2; kept++) {
    build b = begin((rf_mesh){0});
    int x = tensor(&b, RF_CLASS_ACTIVATION, 4096, D), w = tensor(&b, RF_CLASS_WEIGHT, D, D);
    if (kept) keep(&b, x);
    keep(&b, op(&b, "offload_out", &x, 1, (rf_attr){.group = 1}));
    for (int l = 0; l < 3; l++) x = product(&b, x, w); /* the second tensor reuses the bytes of x */
    seconds[kept] = time_of(&b, &machine, RF_COLLECTIVES_CORE).seconds;
  }
  double way = 2.0 * 4096 * D / machine.pcie_bps, one = 2.0 * 4096 * D * D / 4.59e14;
  assert_true(fabs(seconds[1] - fmax(way, 3 * one)) < 1e-9 * seconds[1] &&
              fabs(seconds[0] - way - 2 * one) < 1e-9 * seconds[0]);
}

/* Ironwood has two devices per chip. The link between them is six times as fast as a torus axis,
 * and one axis of the mesh may use it. */
static void dies_are_near(void **state) {
  (void)state;
  rf_machine machine = pure("tpu-v7x:4x4x4");
  rf_machine_by_device(&machine);
  rf_mesh mesh = mesh_of(RF_AXIS_FSDP, 64, RF_AXIS_TENSOR, 2);
  mesh.pinned = RF_AXIS_BIT(RF_AXIS_TENSOR);
  double seconds[2];
  for (int k = 0; k < 2; k++) {
    build b = begin(mesh);
    exchange(&b, "all_gather", tensor(&b, RF_CLASS_WEIGHT, 8192, 8192),
             RF_AXIS_BIT(k ? RF_AXIS_FSDP : RF_AXIS_TENSOR));
    seconds[k] = time_of(&b, &machine, RF_COLLECTIVES_OFFLOAD).seconds;
  }
  double shard = 2.0 * 8192 * 8192;
  assert_true(fabs(seconds[0] - shard / machine.topology.die_bps) < 1e-9 * seconds[0]);
  assert_true(seconds[1] > seconds[0]);
}

static void wrong_meshes_are_refused(void **state) {
  (void)state;
  rf_error error = {0};
  rf_machine machine = pure("tpu-v5e:4x4");
  build b = fsdp_mlp(mesh_of(RF_AXIS_FSDP, 8, 0, 0), 64, 256, true);
  assert_int_equal(rf_plan_check_transfers(b.graph, &machine, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "16"));
  rf_graph_free(b.graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(steps_turn_where_the_literature_says),
      cmocka_unit_test(what_is_sent_behind_work_is_hidden),
      cmocka_unit_test(axes_do_not_meet),
      cmocka_unit_test(pipelines_have_bubbles),
      cmocka_unit_test(the_host_is_hidden_or_shown),
      cmocka_unit_test(bytes_in_flight_are_not_written),
      cmocka_unit_test(dies_are_near),
      cmocka_unit_test(wrong_meshes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
