/* test_pipeline.c - tests pipelines: layers per stage, orders of schedules, simulated times against
 * the formulas of the literature and against small cases by hand, and plans of all stages. */
#include "plan/pipeline.h"

#include <math.h>

#include "unit/plan/plans.h"

enum { MAX = 64 };

static rf_mesh mesh_of(int stages, const char *schedule) {
  rf_mesh mesh = {.of = {[RF_AXIS_PIPELINE] = stages}};
  assert_int_equal(rf_pipeline_parse(schedule, &mesh, NULL), RAFTER_OK);
  return mesh;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static void layers_are_dealt_out(void **state) {
  (void)state;
  for (int stages = 1; stages <= 9; stages++)
    for (int chunks = 1; chunks <= 3; chunks++)
      for (int64_t layers = stages * chunks; layers < 40; layers++) {
        rf_mesh mesh = {.of = {[RF_AXIS_PIPELINE] = stages}, .chunks = chunks};
        int64_t next = 0, first, count, least = layers, most = 0;
        for (int p = 0; p < stages * chunks; p++) {
          rf_pipeline_layers(&mesh, layers, p, &first, &count);
          assert_int_equal(first, next);
          for (int64_t l = first; l < first + count; l++)
            assert_int_equal(rf_pipeline_piece_of_layer(&mesh, layers, l), p);
          least = count < least ? count : least;
          most = count > most ? count : most;
          next += count;
        }
        assert_int_equal(next, layers);
        assert_true(most - least <= 1 && count == least); /* the last piece has the head */
      }
  /* Llama 3 405B has "one Transformer layer each from the first and the last stages" less (Llama
   * Team 2024, section 3.3.2). */
  rf_mesh mesh = mesh_of(16, "1f1b");
  for (int p = 0; p < 16; p++) {
    int64_t first, count;
    rf_pipeline_layers(&mesh, 126, p, &first, &count);
    assert_int_equal(count, p == 0 || p == 15 ? 7 : 8);
  }
}

/* ---- orders ---------------------------------------------------------------------------------- */

static const char *const SCHEDULES[] = {"1f1b", "gpipe", "interleaved:2", "interleaved:3"};

static void every_half_comes_once_and_in_turn(void **state) {
  (void)state;
  for (int k = 0; k < 4; k++)
    for (int stages = 2; stages <= 5; stages++)
      for (int micros = stages; micros <= 8 * stages; micros += stages) {
        rf_mesh mesh = mesh_of(stages, SCHEDULES[k]);
        int chunks = rf_pipeline_chunks(&mesh), halves = 2 * chunks * micros;
        rf_half *order = calloc((size_t)halves, sizeof *order);
        for (int s = 0; s < stages; s++) {
          int next[2][3] = {{0}};
          rf_pipeline_order(&mesh, s, micros, order);
          for (int i = 0; i < halves; i++) {
            assert_in_range(order[i].chunk, 0, chunks - 1);
            assert_int_equal(order[i].micro, next[order[i].backward][order[i].chunk]++);
            if (order[i].backward) assert_true(order[i].micro < next[0][order[i].chunk]);
          }
          for (int c = 0, now, most; c < chunks; c++) {
            now = most = 0;
            for (int i = 0; i < halves; i++) {
              now += order[i].chunk != c ? 0 : order[i].backward ? -1 : 1;
              most = now > most ? now : most;
            }
            assert_int_equal(rf_pipeline_in_flight(&mesh, s, micros, c), most);
            assert_int_equal(next[0][c], micros);
            assert_int_equal(next[1][c], micros);
          }
        }
        free(order);
      }
}

static void microbatches_in_flight(void **state) {
  (void)state;
  rf_mesh one = mesh_of(4, "1f1b"), all = mesh_of(4, "gpipe"), turns = mesh_of(2, "interleaved:2");
  for (int s = 0; s < 4; s++) {
    assert_int_equal(rf_pipeline_in_flight(&one, s, 16, 0), 4 - s);
    assert_int_equal(rf_pipeline_in_flight(&all, s, 16, 0), 16);
  }
  /* By hand, for four microbatches a b c d: stage 0 runs forward a b of its first layers, a b of
   * its last layers, then c, backward a of the last layers, d, b, ... */
  static const int held[2][2] = {{4, 2}, {3, 1}};
  for (int s = 0; s < 2; s++)
    for (int c = 0; c < 2; c++) assert_int_equal(rf_pipeline_in_flight(&turns, s, 4, c), held[s][c]);
}

/* ---- the schedule ---------------------------------------------------------------------------- */

static double executed(const rf_mesh *mesh, int micros, const rf_piece_times *piece, double *finish) {
  double start[MAX], seconds = rf_pipeline_simulate(mesh, micros, piece, start, finish);
  for (int s = 1; s < rf_pipeline_stages(mesh); s++)
    assert_true(start[s] >= start[s - 1] + piece[s - 1].forward + piece[s - 1].to_next);
  assert_true(seconds > 0);
  return seconds;
}

/* Idle shares: GPipe and 1F1B (P-1)/(m+P-1), interleaved (P-1)/(V m + P-1) (Narayanan et al. 2021,
 * sections 2.1 and 2.2). Times of 1 and 2 seconds are exact in binary. */
static void even_stages_wait_as_the_formula_says(void **state) {
  (void)state;
  for (int k = 0; k < 4; k++)
    for (int stages = 2; stages <= 8; stages++)
      for (int micros = stages; micros <= 5 * stages; micros += stages) {
        rf_mesh mesh = mesh_of(stages, SCHEDULES[k]);
        rf_piece_times piece[MAX];
        double finish[MAX];
        int chunks = rf_pipeline_chunks(&mesh);
        for (int p = 0; p < stages * chunks; p++) piece[p] = (rf_piece_times){.forward = 1, .backward = 2};
        double seconds = executed(&mesh, micros, piece, finish), busy = 3.0 * chunks * micros;
        if (fabs((seconds - busy) / seconds - rf_pipeline_bubble(&mesh, micros)) > 1e-12)
          fail_msg("%s, %d stages, %d microbatches: %g of %g", SCHEDULES[k], stages, micros, seconds - busy,
                   seconds);
        assert_true(finish[0] == seconds); /* the first stage ends last */
      }
}

/* A million microbatches are not simulated one by one. */
static void many_microbatches(void **state) {
  (void)state;
  for (int k = 0; k < 3; k++) {
    rf_mesh mesh = mesh_of(4, SCHEDULES[k]);
    rf_piece_times even[8], uneven[8];
    double finish[4];
    for (int p = 0; p < 8; p++) {
      even[p] = (rf_piece_times){.forward = 1, .backward = 2};
      uneven[p] = (rf_piece_times){1 + p % 3, 2 + p % 4, p < 7 ? 0.5 : 0, p ? 0.5 : 0};
    }
    double busy = 3.0 * rf_pipeline_chunks(&mesh) * (1 << 20),
           seconds = executed(&mesh, 1 << 20, even, finish);
    assert_true(fabs((seconds - busy) / seconds - rf_pipeline_bubble(&mesh, 1 << 20)) < 1e-12);
    /* The microbatches that are left out repeat those that were simulated. A small case is computed
     * in both ways. */
    double first = executed(&mesh, 60, uneven, finish), second = executed(&mesh, 64, uneven, finish),
           third = executed(&mesh, 120, uneven, finish);
    assert_true(fabs(third - (second + 14 * (second - first))) < 1e-9 * third);
  }
}

static void uneven_stages_by_hand(void **state) {
  (void)state;
  double finish[2];
  rf_mesh mesh = mesh_of(2, "1f1b");
  /* Stage 0: F0 0-1, F1 1-2, B0 7-9, B1 13-15. Stage 1: F0 1-3, B0 3-7, F1 7-9, B1 9-13. */
  rf_piece_times slow_end[] = {{1, 2, 0, 0}, {2, 4, 0, 0}};
  assert_true(executed(&mesh, 2, slow_end, finish) == 15);
  assert_true(finish[1] == 13);
  /* Transfers of half a second: F0 0-1, F1 1-2; stage 1: F0 1.5-3.5, B0 3.5-7.5, F1 7.5-9.5, B1
   * 9.5-13.5; B0 8-10, B1 14-16. */
  rf_piece_times sends[] = {{1, 2, 0.5, 0}, {2, 4, 0, 0.5}};
  assert_true(executed(&mesh, 2, sends, finish) == 16);
  /* Links slower than the work: transfers follow each other. F0 0-1, arrives at 11; F1 1-2, arrives
   * at 21; B0 23 -> 33, B1 33 -> 43, and 2 of work. */
  rf_piece_times slow[] = {{1, 2, 10, 0}, {1, 1, 0, 10}};
  mesh = mesh_of(2, "gpipe");
  assert_true(executed(&mesh, 2, slow, finish) == 45);
}

/* A schedule is never faster than the work of its slowest stage, nor than one microbatch through
 * all stages. */
static void no_faster_than_its_slowest_stage(void **state) {
  (void)state;
  for (int k = 0; k < 4; k++)
    for (int trial = 0; trial < 200; trial++) {
      rf_mesh mesh = mesh_of(2 + trial % 5, SCHEDULES[k]);
      int stages = rf_pipeline_stages(&mesh), chunks = rf_pipeline_chunks(&mesh),
          micros = stages * (1 + trial % 4);
      rf_piece_times piece[MAX];
      double finish[MAX], way = 0, busy[MAX] = {0}, most = 0, all = 0;
      for (int p = 0; p < stages * chunks; p++) {
        uint32_t words[4];
        rf_philox(rf_key(11, (uint64_t)trial, (uint64_t)k), (uint64_t)p, 0, words);
        piece[p] = (rf_piece_times){1 + words[0] % 8, 1 + words[1] % 16, words[2] % 4, words[3] % 4};
        if (p == 0) piece[p].to_before = 0;
        if (p == stages * chunks - 1) piece[p].to_next = 0;
        way += piece[p].forward + piece[p].backward + piece[p].to_next + piece[p].to_before;
        busy[p % stages] += micros * (piece[p].forward + piece[p].backward);
      }
      for (int s = 0; s < stages; s++) {
        most = fmax(most, busy[s]);
        all += busy[s];
      }
      double seconds = executed(&mesh, micros, piece, finish);
      assert_true(seconds >= most && seconds >= way && seconds <= all + micros * way);
    }
}

/* ---- plans ----------------------------------------------------------------------------------- */

#define MODEL "llama:layers=8,width=256,heads=4,ff=512,vocab=512,seq=128"

static const rf_machine *eight(void) {
  static rf_machine machine;
  if (!machine.name[0]) assert_int_equal(rf_machine_find("h100-sxm:8", &machine, NULL), RAFTER_OK);
  return &machine;
}

static rf_plan_options options_of(const rf_machine *machine, int stages, int chips, const char *schedule,
                                  int micros) {
  rf_plan_options options = train_options(machine, RF_BF16, chips, micros, 128, RF_REMAT_NONE);
  options.build.mesh = mesh_of(stages, schedule);
  options.build.mesh.of[RF_AXIS_DATA] = chips;
  options.backend = &RF_BACKEND_SHEET_GPU;
  options.threads = 1;
  return options;
}

static rf_plan *stage_plan(const rf_model *model, rf_plan_options options, int stage) {
  rf_graph *graph = NULL;
  rf_plan *plan = NULL;
  rf_error error = {0};
  options.build.mesh.stage = stage;
  if (rf_graph_build(model, &options.build, NULL, &graph, &error) != RAFTER_OK ||
      rf_plan_finish(graph, &options, RF_PLAN_WHOLE, &plan, &error) != RAFTER_OK ||
      rf_plan_check(plan, &error) != RAFTER_OK)
    fail_msg("stage %d: %s", stage, error.message);
  return plan;
}

static int64_t class_bytes(const rf_plan *plan, rf_class class) {
  int64_t sum = 0;
  for (int t = 0; t < plan->graph->tensor_count; t++)
    if (plan->graph->tensor[t].class == class && !strstr(plan->graph->tensor[t].name, "/grad/"))
      sum += rf_tensor_bytes(&plan->graph->tensor[t]);
  return sum;
}

/* The stages divide the tensors of one chip, and the memory of a stage grows with its microbatches
 * in flight. */
static void stages_share_the_model_out(void **state) {
  (void)state;
  rf_model model = model_named(MODEL);
  rf_plan_options one = options_of(machine_named("h100-sxm"), 1, 1, "1f1b", 8);
  one.build.microbatch = 2;
  rf_plan *whole = plan_of(&model, &one);
  for (int k = 0; k < 3; k++) {
    rf_plan_options options = options_of(eight(), 4, 2, SCHEDULES[k], 8);
    int64_t weights = 0, moments = 0, gradients = 0, peak = 0;
    rf_plan *joined = plan_of(&model, &options);
    for (int s = 0; s < 4; s++) {
      rf_plan *plan = stage_plan(&model, options, s);
      weights += class_bytes(plan, RF_CLASS_WEIGHT);
      moments += class_bytes(plan, RF_CLASS_MOMENT);
      gradients += class_bytes(plan, RF_CLASS_GRADIENT);
      assert_int_equal(plan->arena_bytes, joined->stage[s].peak_bytes);
      peak = plan->arena_bytes > peak ? plan->arena_bytes : peak;
      rf_plan_free(plan);
    }
    assert_int_equal(weights, class_bytes(whole, RF_CLASS_WEIGHT));
    assert_int_equal(moments, class_bytes(whole, RF_CLASS_MOMENT));
    assert_int_equal(gradients, class_bytes(whole, RF_CLASS_GRADIENT));
    assert_int_equal(joined->arena_bytes, peak);
    assert_true(fabs(joined->model_flops / whole->model_flops - 1) < 1e-12 &&
                fabs(joined->hardware_flops / whole->hardware_flops - 1) < 1e-12);
    rf_plan_free(joined);
  }
  rf_plan_free(whole);
}

/* Each microbatch in flight needs one more slot of each tensor that the backward pass reads. Middle
 * stages are equal except for this. */
static void what_is_held_is_in_the_plan(void **state) {
  (void)state;
  rf_model model = model_named(MODEL);
  rf_plan_options options = options_of(eight(), 4, 2, "1f1b", 8);
  rf_plan *more = stage_plan(&model, options, 1), *less = stage_plan(&model, options, 2);
  int64_t kept = 0;
  for (int t = 0; t < more->graph->tensor_count; t++) {
    const rf_tensor *a = &more->graph->tensor[t];
    assert_in_range(a->slots, 0, 4);
    if (a->slots < 3) continue;
    kept += rf_align(rf_tensor_bytes(a));
    assert_int_equal(more->tensor[t].bytes, a->slots * rf_align(rf_tensor_bytes(a)));
  }
  assert_true(kept > 0);
  assert_int_equal(more->arena_bytes - less->arena_bytes, kept);
  rf_plan_free(more);
  rf_plan_free(less);
}

/* The same with tensors in host memory, which then has the slots. */
static void stages_may_use_their_host(void **state) {
  (void)state;
  rf_model model = model_named(MODEL);
  rf_plan_options options = options_of(eight(), 4, 2, "1f1b", 8);
  rf_plan *without = stage_plan(&model, options, 0);
  options.build.offload = RF_OFFLOAD_OPTIMIZER | RF_OFFLOAD_ACTIVATIONS;
  rf_plan *with = stage_plan(&model, options, 0);
  int held = 0;
  for (int t = 0; t < with->graph->tensor_count; t++)
    held += with->graph->tensor[t].host && with->graph->tensor[t].slots == 4;
  assert_true(held > 0 && with->arena_bytes < without->arena_bytes);
  rf_plan_free(with);
  rf_plan_free(without);
}

static void the_step_is_that_of_all_stages(void **state) {
  (void)state;
  rf_model model = model_named(MODEL);
  for (int k = 0; k < 3; k++) {
    rf_plan_options options = options_of(eight(), 4, 2, SCHEDULES[k], 8);
    rf_plan *plan = plan_of(&model, &options);
    double sum = 0, slowest = 0;
    for (int b = 0; b < RF_BOUNDS; b++) sum += plan->time.by[b];
    assert_true(fabs(sum / plan->step_seconds - 1) < 1e-9);
    for (int s = 0; s < 4; s++) {
      const rf_plan_stage *stage = &plan->stage[s];
      double own = stage->busy_seconds + stage->end_seconds + stage->idle_seconds;
      assert_true(fabs(own / plan->step_seconds - 1) < 1e-9 && stage->idle_seconds >= 0);
      assert_true(stage->fill_seconds >= 0 && stage->drain_seconds >= 0 &&
                  stage->fill_seconds + stage->drain_seconds <= stage->idle_seconds * (1 + 1e-9));
      slowest = fmax(slowest, stage->busy_seconds);
    }
    assert_true(plan->step_seconds > slowest);
    assert_true(fabs(plan->time.bubble - plan->stage[plan->graph->mesh.stage].idle_seconds) <
                1e-9 * plan->step_seconds);
    rf_plan_free(plan);
  }
}

/* The checker finds a missing slot, and a slot that is reused between two halves. */
static void the_checker_knows_pipelines(void **state) {
  (void)state;
  rf_model model = model_named(MODEL);
  for (int k = 0; k < 3; k++) {
    rf_plan_options options = options_of(eight(), 4, 2, SCHEDULES[k], 8);
    rf_plan *plan = stage_plan(&model, options, 0);
    int seen = 0;
    for (int t = 0; t < plan->graph->tensor_count; t++) {
      rf_tensor *tensor = &plan->graph->tensor[t];
      rf_error error = {0};
      if (tensor->slots < 2 || tensor->input || strstr(tensor->name, "step/")) continue;
      bool arrives = tensor->reason && !strcmp(tensor->reason, "received from another stage");
      if (arrives) continue; /* its last slot is for a tensor that arrives early */
      tensor->slots--;
      if (rf_plan_check(plan, &error) == RAFTER_OK)
        fail_msg("%s: a place less for %s is not found", SCHEDULES[k], tensor->name);
      tensor->slots++;
      plan->tensor[t].first++;
      if (rf_plan_check(plan, &error) == RAFTER_OK)
        fail_msg("%s: a shorter life of %s is not found", SCHEDULES[k], tensor->name);
      plan->tensor[t].first--;
      seen++;
    }
    assert_true(seen > 10);
    rf_plan_free(plan);
  }
}

static void refused(rf_plan_options options, const char *words) {
  rf_model model = model_named(MODEL);
  rf_plan *plan = NULL;
  rf_error error = {0};
  assert_int_equal(rf_plan_make(&model, &options, &plan, &error), RAFTER_INVALID);
  if (!strstr(error.message, words)) fail_msg("%s: %s", words, error.message);
}

static void what_does_not_go_is_said(void **state) {
  (void)state;
  const rf_machine *machine = eight();
  rf_plan_options generate = options_of(machine, 4, 1, "1f1b", 8);
  generate.build.job = RF_JOB_GENERATE;
  refused(options_of(machine, 16, 1, "1f1b", 16), "expected at most 8 for");
  refused(options_of(machine, 4, 1, "interleaved:3", 8), "expected at most 2 with");
  refused(options_of(machine, 4, 1, "1f1b", 3), "expected at least 4, got 3");
  refused(options_of(machine, 4, 1, "interleaved:2", 6), "expected a multiple of 4, got 6");
  refused(generate, "for training only");
  rf_mesh mesh = {0};
  static const char *const bad[] = {"",
                                    "2f2b",
                                    "interleaved",
                                    "interleaved:",
                                    "interleaved:1",
                                    "interleaved:2x",
                                    "interleaved:-2",
                                    "interleaved:99999999999"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(rf_pipeline_parse(bad[i], &mesh, NULL), RAFTER_INVALID);
}

/* ---- stages that wait for each other's sends ------------------------------------------------- */

/* A send ends when its receiver has posted the receive. So a stage blocks in its send until then,
 * as in backend/mpi/pipe.c. Receives are posted when their slot is free. */
typedef struct blocking {
  const rf_mesh *mesh;
  int stages, pieces, micros;
  rf_half order[8][512];
  int at[8];           /* for each stage: its next half */
  bool sending[8];     /* the half has been computed, and its result is not sent yet */
  int posted[2][32],   /* for each input of a piece: receives posted */
      received[2][32]; /* messages that have arrived */
} blocking;

static int slots_of(const blocking *b, int piece, bool backward) {
  int slots =
      backward ? 2 : rf_pipeline_in_flight(b->mesh, piece % b->stages, b->micros, piece / b->stages) + 1;
  return slots < b->micros ? slots : b->micros;
}

static void post(blocking *b, bool backward, int piece) {
  if (b->posted[backward][piece] < b->micros) b->posted[backward][piece]++;
}

/* Runs the next half of a stage as far as possible. False: nothing changed. */
static bool progress(blocking *b, int stage, int spare) {
  const rf_half *h = &b->order[stage][b->at[stage]];
  int piece = h->chunk * b->stages + stage, to = piece + (h->backward ? -1 : 1);
  bool first = h->backward ? piece == b->pieces - 1 : piece == 0, last = to < 0 || to == b->pieces;
  if (!b->sending[stage]) {
    if (!first && b->received[h->backward][piece] <= h->micro) return false;
    return b->sending[stage] = true;
  }
  if (!last) {
    if (b->posted[h->backward][to] - spare <= h->micro && b->posted[h->backward][to] < b->micros)
      return false;
    b->received[h->backward][to]++;
  }
  if (h->backward) { /* both inputs of the piece are free */
    post(b, false, piece);
    post(b, true, piece);
  }
  b->sending[stage] = false;
  b->at[stage]++;
  return true;
}

/* Returns whether all stages end. `spare` takes slots away, to plant a fault. */
static bool all_end(const rf_mesh *mesh, int micros, int spare) {
  blocking *b = calloc(1, sizeof *b);
  *b = (blocking){
      .mesh = mesh, .stages = rf_pipeline_stages(mesh), .pieces = rf_pipeline_pieces(mesh), .micros = micros};
  int halves = 2 * rf_pipeline_chunks(mesh) * micros, left = b->stages;
  for (int s = 0; s < b->stages; s++) rf_pipeline_order(mesh, s, micros, b->order[s]);
  for (int backward = 0; backward < 2; backward++)
    for (int p = 0; p < b->pieces; p++) b->posted[backward][p] = slots_of(b, p, backward);
  for (bool moved = true; moved && left > 0;) {
    moved = false;
    for (int s = 0; s < b->stages; s++)
      while (b->at[s] < halves && progress(b, s, spare)) {
        moved = true;
        left -= b->at[s] == halves;
      }
  }
  free(b);
  return left == 0;
}

static void blocking_sends_end(void **state) {
  (void)state;
  bool found = false;
  for (int k = 0; k < 4; k++)
    for (int stages = 2; stages <= 6; stages++)
      for (int micros = stages; micros <= 36; micros += k < 2 ? 1 : stages) {
        rf_mesh mesh = mesh_of(stages, SCHEDULES[k]);
        if (2 * rf_pipeline_chunks(&mesh) * micros > 512) continue;
        if (!all_end(&mesh, micros, 0))
          fail_msg("%s, %d stages, %d microbatches", SCHEDULES[k], stages, micros);
        found |= !all_end(&mesh, micros, 2);
      }
  assert_true(found); /* with too few slots, some stages wait for ever */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layers_are_dealt_out),        cmocka_unit_test(every_half_comes_once_and_in_turn),
      cmocka_unit_test(microbatches_in_flight),      cmocka_unit_test(even_stages_wait_as_the_formula_says),
      cmocka_unit_test(many_microbatches),           cmocka_unit_test(blocking_sends_end),
      cmocka_unit_test(uneven_stages_by_hand),       cmocka_unit_test(no_faster_than_its_slowest_stage),
      cmocka_unit_test(stages_share_the_model_out),  cmocka_unit_test(what_is_held_is_in_the_plan),
      cmocka_unit_test(stages_may_use_their_host),   cmocka_unit_test(the_step_is_that_of_all_stages),
      cmocka_unit_test(the_checker_knows_pipelines), cmocka_unit_test(what_does_not_go_is_said),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
