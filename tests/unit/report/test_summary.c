/* test_summary.c - tests summaries of runs with planted numbers, whose bound is known in advance. */
#include "unit/report/planted.h"

static void sums_are_those_of_the_ops(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 3, 1.0, 1e6), *summary = rf_report_summary(entry);
  const json_t *pass = json_array_get(json_object_get(summary, "walks"), 0);
  near(at(pass, "seconds"), 1.0);
  near(at(pass, "inside_seconds"), 0.9);
  near(at(pass, "gap_seconds"), 1.0 - 0.9);
  near(at(pass, "predicted_seconds"), 0.8);
  near(at(pass, "limit_seconds"), 0.66);
  const json_t *matmul = named(json_object_get(pass, "kinds"), "matmul");
  near(at(matmul, "seconds"), 0.7);
  near(at(matmul, "predicted_seconds"), 0.6);
  near(at(matmul, "limit_fraction"), 0.48 / 0.7);
  near(at(matmul, "bytes"), 6000);
  near(at(named(json_object_get(pass, "phases"), "backward"), "seconds"), 0.5);
  const json_t *layers = json_object_get(pass, "layers");
  assert_int_equal(json_array_size(layers), 2);
  near(at(named(layers, "block.0"), "seconds"), 0.8);
  near(at(named(layers, "block.0"), "predicted_seconds"), 0.7);
  near(at(named(layers, "block.0"), "bytes"), 7000);
  near(at(named(layers, "outside of layers"), "seconds"), 0.1);
  near(at(named(layers, "outside of layers"), "limit_seconds"), 0.10);
  near(at(named(json_object_get(pass, "bounds"), "memory"), "seconds"), 0.2);
  near(at(named(json_object_get(pass, "bounds"), "between ops"), "seconds"), 1.0 - 0.9);
  near(at(json_object_get(pass, "rate"), "tokens_per_second"), 200);
  near(at(json_object_get(pass, "rate"), "limit"), 200 / 0.66);
  assert_string_equal(text(summary, "bound"), "compute");
  assert_non_null(strstr(text(summary, "sentence"), "bound by compute: 70 %"));
  const json_t *lost = json_array_get(json_object_get(pass, "losses"), 0);
  assert_string_equal(text(lost, "name"), "block.0/mm/bwd");
  json_decref(summary);
  json_decref(entry);
}

/* A compiled program times the ops of traced steps only, and computes some ops in other kernels. */
static void some_steps_can_be_timed(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 10, 1.0, 1e6), *op;
  json_t *measured = json_array_get(json_object_get(json_object_get(entry, "measured"), "walks"), 0);
  size_t i;
  json_object_set_new(measured, "timed", json_integer(2));
  json_array_foreach (json_object_get(measured, "ops"), i, op) {
    json_object_set_new(op, "calls", json_real(2 * OPS[i].calls));
    if (!strcmp(OPS[i].kind, "norm")) json_object_set_new(op, "seconds", json_real(0));
  }
  json_t *summary = rf_report_summary(entry);
  const json_t *pass = json_array_get(json_object_get(summary, "walks"), 0);
  near(at(pass, "count"), 10);
  near(at(pass, "seconds"), 1.0);
  near(at(pass, "inside_seconds"), 0.8);
  near(at(pass, "predicted_seconds"), 0.8);
  near(at(named(json_object_get(pass, "kinds"), "matmul"), "seconds"), 0.7);
  near(at(named(json_object_get(pass, "kinds"), "norm"), "seconds"), 0);
  char *notes = json_dumps(json_object_get(summary, "notes"), 0);
  assert_non_null(strstr(notes, "norm is computed in the kernels of other ops (predicted 100 ms)"));
  free(notes);
  json_decref(summary);
  json_decref(entry);
}

/* Layers are listed in their order, also after layer nine. The layer is the op's field `layer`,
 * whatever its name. An op whose field is not a valid number counts as outside of layers. */
static void layers_are_told_apart(void **state) {
  (void)state;
  static const planted ops[] = {
      {"step/micro/block.10/mm/fwd", "matmul", "forward", "compute", 1, 0.1, 0.1, 0.3, 1, 11},
      {"mm/fwd", "matmul", "forward", "compute", 1, 0.1, 0.1, 0.2, 1, 3},
      {"step/end/block.7/mm/weight/adamw", "optimizer", "optimizer", "memory", 1, 0.1, 0.1, 0.05, 1, 3},
      {"step/end/block.1/w", "optimizer", "optimizer", "memory", 1, 0.1, 0.1, 0.01, 1, 0},
      {"block.2/w", "optimizer", "optimizer", "memory", 1, 0.1, 0.1, 0.02, 1, -1},
      {"w", "optimizer", "optimizer", "memory", 1, 0.1, 0.1, 0.04, 1, 1 << 30}};
  json_t *entry = entry_of("a", ops, 6, 2, 1, 1e6);
  json_t *planned = json_object_get(json_object_get(entry, "plan"), "ops");
  json_object_set_new(json_array_get(planned, 3), "layer", json_string("1"));
  json_t *summary = rf_report_summary(entry);
  const json_t *layers = json_object_get(json_array_get(json_object_get(summary, "walks"), 0), "layers");
  static const char *const names[] = {"block.2", "block.10", "outside of layers"};
  static const double seconds[] = {0.25, 0.3, 0.07}, numbers[] = {2, 10};
  assert_int_equal(json_array_size(layers), 3);
  for (size_t i = 0; i < 3; i++) {
    const json_t *layer = json_array_get(layers, i);
    assert_string_equal(text(layer, "name"), names[i]);
    near(at(layer, "seconds"), seconds[i]);
    if (i < 2) near(at(layer, "layer"), numbers[i]);
    else assert_null(json_object_get(layer, "layer"));
  }
  json_decref(summary);
  json_decref(entry);
  entry = entry_of("a", ops + 3, 3, 2, 1, 1e6);
  summary = rf_report_summary(entry);
  assert_null(json_object_get(json_array_get(json_object_get(summary, "walks"), 0), "layers"));
  json_decref(summary);
  json_decref(entry);
}

/* Each cause is planted alone and must be the one that is named. */
static void the_planted_bound_is_named(void **state) {
  (void)state;
  static const struct {
    int op;
    double measured, wall;
    const char *bound;
  } planted_bounds[] = {{0, 5, 11, "compute"}, {3, 50, 52, "memory"}, {-1, 0, 5, "between ops"}};
  for (size_t i = 0; i < sizeof planted_bounds / sizeof *planted_bounds; i++) {
    planted ops[COUNT];
    memcpy(ops, OPS, sizeof ops);
    if (planted_bounds[i].op >= 0) ops[planted_bounds[i].op].measured = planted_bounds[i].measured;
    json_t *entry = entry_of("a", ops, COUNT, 2, planted_bounds[i].wall, 1e6),
           *summary = rf_report_summary(entry);
    assert_string_equal(text(summary, "bound"), planted_bounds[i].bound);
    json_decref(summary);
    json_decref(entry);
  }
  planted ops[COUNT];
  memcpy(ops, OPS, sizeof ops);
  for (int i = 0; i < COUNT; i++) ops[i].bound = "latency";
  json_t *entry = entry_of("a", ops, COUNT, 2, 1, 1e6), *summary = rf_report_summary(entry);
  assert_string_equal(text(summary, "bound"), "launch");
  json_decref(summary);

  /* If a trace shows that threads waited most of the time, waiting is the bound and not the ops in
   * which they waited. If it shows that they worked, the ops are. */
  for (int waits = 0; waits < 2; waits++) {
    json_t *trace =
        json_pack("{s{si s[ss] s[{sb sI sI sf sf s[[ff][ff]]}]}}", "header", "threads", 2, "gaps", "launch",
                  "wait", "steps", "whole", 1, "begin", (json_int_t)0, "end", (json_int_t)1000000000, "work",
                  waits ? 0.6 : 1.8, "phases", 0.0, "gaps", 0.0, waits ? 1.0 : 0.1, 0.0, waits ? 0.4 : 0.1);
    json_object_set_new(entry, "trace", trace);
    summary = rf_report_summary(entry);
    assert_string_equal(text(summary, "bound"), waits ? "wait" : "launch");
    near(at(json_object_get(json_object_get(summary, "threads"), "gaps"), "wait"), waits ? 0.7 : 0.1);
    json_decref(summary);
  }
  json_decref(entry);
}

/* A run that used fewer threads because of other programs says so, and how to keep all threads. */
static void fewer_threads_are_named(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 2, 1.0, 1e6);
  for (int most = 0; most < 2; most++) {
    json_object_set_new(json_object_get(entry, "measured"), "others",
                        json_pack("{sf sf sf si}", "seconds", 2.0, "delayed_seconds", 0.0, "reduced_seconds",
                                  most ? 1.6 : 0.02, "threads", 2));
    json_t *summary = rf_report_summary(entry);
    char *notes = json_dumps(json_object_get(summary, "notes"), 0);
    assert_int_equal(
        strstr(notes, "for 80 % of the time fewer than 2 threads ran; --threads 2 keeps") != NULL, most);
    const char *first = "Other programs used the cores: for 80 % of the time fewer than 2 threads ran. ";
    assert_int_equal(strncmp(text(summary, "sentence"), first, strlen(first)) == 0, most);
    free(notes);
    json_decref(summary);
  }
  json_decref(entry);
}

/* If threads had no core for most of the time, other programs are named. Below that, there is a
 * note. */
static void others_are_named(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 2, 1.0, 1e6);
  for (int most = 0; most < 2; most++) {
    json_object_set_new(
        json_object_get(entry, "measured"), "others",
        json_pack("{sf sf si}", "seconds", 2.0, "delayed_seconds", most ? 2.8 : 0.8, "threads", 2));
    json_t *summary = rf_report_summary(entry);
    assert_string_equal(text(summary, "bound"), most ? "other programs" : "compute");
    assert_non_null(strstr(most ? text(summary, "sentence")
                                : json_string_value(json_array_get(json_object_get(summary, "notes"), 0)),
                           most ? "for at least 70 %" : "for at least 20 %"));
    json_decref(summary);
  }
  /* A third of the time of two threads delayed most of it, because they took more than twice the
   * planned time: 0.8 s of 2.4 s. */
  json_t *slow = entry_of("a", OPS, COUNT, 2, 2.4, 1e6);
  for (int most = 0; most < 2; most++) {
    json_object_set_new(
        json_object_get(slow, "measured"), "others",
        json_pack("{sf sf si}", "seconds", 4.8, "delayed_seconds", most ? 9.6 / 3 : 0.9, "threads", 2));
    json_t *summary = rf_report_summary(slow);
    assert_string_equal(text(summary, "bound"), most ? "other programs" : "between ops");
    json_decref(summary);
  }
  json_decref(slow);
  /* Two steps of 1 s in a run of 10 s: a delay that may all have happened while loading is not
   * blamed on the steps. 2 s more is half of the steps. */
  for (int most = 0; most < 2; most++) {
    json_object_set_new(
        json_object_get(entry, "measured"), "others",
        json_pack("{sf sf si}", "seconds", 10.0, "delayed_seconds", most ? 18.0 : 16.0, "threads", 2));
    json_t *summary = rf_report_summary(entry);
    assert_string_equal(text(summary, "bound"), most ? "other programs" : "compute");
    assert_true((strstr(text(summary, "sentence"), "for at least 50 %") != NULL) == (most > 0));
    json_decref(summary);
  }
  /* The trace has measured the bound of its steps. But a thread that waits for a delayed thread
   * counts as waiting, so most of a wait is blamed on the programs that had the core. */
  json_object_set_new(entry, "trace",
                      json_pack("{s{si s[sss] s[{sb si sI sf sf s[[fff][fff]]}]}}", "header", "threads", 2,
                                "gaps", "launch", "wait", "other threads", "steps", "whole", 1, "begin", 0,
                                "end", (json_int_t)1000000000, "work", 0.6, "phases", 0.0, "gaps", 0.0, 0.0,
                                0.0, 0.0, 1.4, 0.0));
  for (int most = 0; most < 2; most++) {
    json_object_set_new(
        json_object_get(entry, "measured"), "others",
        json_pack("{sf sf si}", "seconds", 2.0, "delayed_seconds", most ? 1.6 : 0.8, "threads", 2));
    json_t *summary = rf_report_summary(entry);
    assert_string_equal(text(summary, "bound"), most ? "other programs" : "wait");
    const char *note = json_string_value(json_array_get(json_object_get(summary, "notes"), 0));
    assert_non_null(
        strstr(text(summary, "sentence"), most ? "for a core for at least 40 % of the time"
                                               : "bound by wait: 70 % of its threads' recorded time"));
    if (!most) assert_non_null(strstr(note, "for at least 20 % of the time"));
    assert_non_null(strstr(text(json_object_get(summary, "threads"), "sentence"), "wait 70 %"));
    json_decref(summary);
  }
  json_decref(entry);
}

/* The summary of a training run describes its step, even if its validations took longer. The
 * details of the bound come from ops of that bound. */
static void a_step_is_told_of_and_its_bound(void **state) {
  (void)state;
  planted ops[COUNT];
  memcpy(ops, OPS, sizeof ops);
  /* norms take more time than the products, and are bound by memory */
  ops[0].measured = 0.4;
  ops[2].measured = ops[2].limit = 0.9;
  ops[0].bound = ops[1].bound = "memory";
  ops[3].bound = "compute";
  ops[3].measured = 5;
  json_t *entry = entry_of("a", ops, COUNT, 2, 9, 1e6),
         *passes = json_object_get(json_object_get(entry, "measured"), "walks");
  json_t *validation = json_deep_copy(json_array_get(passes, 0));
  json_object_set_new(validation, "walk", json_string("validation"));
  json_object_set_new(validation, "seconds", json_real(100));
  json_array_append_new(passes, validation);
  json_t *summary = rf_report_summary(entry);
  assert_non_null(strstr(text(summary, "sentence"),
                         "This step is bound by compute: 56 % of its 9 s, mainly in optimizer (5 s)"));
  json_decref(summary);
  json_decref(entry);
}

static void the_text_is_short(void **state) {
  (void)state;
  static char names[40][24];
  planted many[40];
  for (int i = 0; i < 40; i++) {
    snprintf(names[i], sizeof names[i], "kind%d", i);
    many[i] = OPS[i % COUNT];
    many[i].kind = names[i];
    many[i].measured *= 1 + i;
  }
  json_t *entry = entry_of("a", many, 40, 3, 200.0, 1e6), *summary = rf_report_summary(entry);
  char *shown = rf_report_summary_text(summary);
  int lines = 0, column = 0;
  for (const char *at_ = shown; *at_; at_++) {
    column = *at_ == '\n' ? 0 : column + 1;
    lines += *at_ == '\n';
    if (column > 200) fail_msg("a line is too long:\n%s", shown);
  }
  if (lines > 30) fail_msg("%d lines:\n%s", lines, shown);
  free(shown);
  json_decref(summary);
  json_decref(entry);
}

/* The table has no figure above 100 %: a guessed limit is "too low", and data came from a cache if
 * they came faster than from memory. Products keep the figure, which is an error of calibration. */
static void beaten_limits_are_explained(void **state) {
  (void)state;
  planted ops[COUNT];
  memcpy(ops, OPS, sizeof ops);
  for (int i = 2; i < COUNT; i++) ops[i].measured = ops[i].limit / 4;
  for (int guessed = 0; guessed < 2; guessed++) {
    const char *word = guessed ? "too low" : "in cache";
    json_t *entry = entry_of("a", ops, COUNT, 3, 1, 1e6);
    json_object_set_new(json_object_get(json_object_get(entry, "plan"), "machine"), "source",
                        json_string(guessed ? "detected" : "calibrated"));
    json_t *op = json_array_get(json_object_get(json_object_get(entry, "plan"), "ops"), 2);
    json_t *summary = rf_report_summary(entry);
    const json_t *kinds = json_object_get(json_array_get(json_object_get(summary, "walks"), 0), "kinds");
    assert_string_equal(text(named(kinds, "norm"), "beaten"), word);
    assert_string_equal(text(named(kinds, "optimizer"), "beaten"), word);
    near(at(named(kinds, "norm"), "limit_fraction"), 4);
    assert_null(json_object_get(named(kinds, "matmul"), "beaten"));
    char *shown = rf_report_summary_text(summary);
    assert_non_null(strstr(shown, word));
    assert_non_null(
        strstr(shown, guessed ? "too low: the limit is a guess" : "in cache: the limit is that of"));
    assert_null(strstr(shown, "400 %"));
    free(shown);
    json_decref(summary);
    json_object_set_new(op, "hardware_flops", json_real(1));
    summary = rf_report_summary(entry);
    kinds = json_object_get(json_array_get(json_object_get(summary, "walks"), 0), "kinds");
    assert_true((json_object_get(named(kinds, "norm"), "beaten") != NULL) == guessed);
    json_decref(summary);
    json_decref(entry);
  }
}

/* A plan alone and hostile numbers give sentences and no crash. */
static void a_plan_alone_has_a_summary(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 0, 0, 1e6), *summary = rf_report_summary(entry);
  assert_true(json_is_false(json_object_get(summary, "measured")));
  assert_non_null(strstr(text(summary, "sentence"), "predicted to be bound by"));
  const json_t *rate = json_object_get(json_array_get(json_object_get(summary, "walks"), 0), "rate");
  near(at(rate, "predicted"), 100);
  near(at(rate, "limit"), 100 / 0.66);
  json_decref(summary);
  /* Ops take 0.8 s, the stages of a pipeline are idle for 0.3 s, and 0.1 s of transfers follow the
   * ops. The sums are the step's own time. */
  json_t *plan = json_object_get(entry, "plan"), *time = json_object_get(plan, "time");
  json_object_set_new(time, "bubble_seconds", json_real(0.3));
  summary = rf_report_summary(entry);
  const json_t *pass = json_array_get(json_object_get(summary, "walks"), 0);
  static const char *const lists[] = {"kinds", "phases", "bounds"};
  for (size_t k = 0; k < 3; k++) {
    const json_t *list = json_object_get(pass, lists[k]), *one;
    double all = 0;
    size_t i;
    json_array_foreach ((json_t *)list, i, one) all += at(one, "seconds");
    assert_true(fabs(all - 1.0) < 1e-12);
    near(at(named(list, "pipeline bubble"), "seconds"), 0.3);
    assert_true(fabs(at(named(list, "hidden behind ops"), "seconds") + 0.1) < 1e-12);
  }
  assert_non_null(strstr(text(summary, "sentence"), "pipeline stages are idle for 300 ms (30 %)"));
  json_decref(summary);
  /* The bound comes from the time that the plan gives, with transfers only as far as the core waits
   * for them. */
  const char *said = "{\"compute_seconds\": 0.2, \"memory_seconds\": 0.1, \"latency_seconds\": 0.0, "
                     "\"network_seconds\": 0.7}";
  json_object_update_new(time, json_loads(said, 0, NULL));
  summary = rf_report_summary(entry);
  const json_t *bounds = json_object_get(json_array_get(json_object_get(summary, "walks"), 0), "bounds");
  assert_string_equal(text(summary, "bound"), "network");
  assert_true(fabs(at(named(bounds, "network"), "seconds") - 0.4) < 1e-12);
  near(at(named(bounds, "pipeline bubble"), "seconds"), 0.3);
  assert_non_null(
      strstr(text(summary, "sentence"), "it waits 400 ms of 1 s for transfers. The pipeline stages"));
  json_decref(summary);
  /* If the plan does not fit, the sentence begins with this. */
  json_object_set_new(json_object_get(plan, "memory"), "fits", json_false());
  json_object_set_new(json_object_get(plan, "memory"), "headroom_bytes", json_integer(-524288));
  summary = rf_report_summary(entry);
  assert_ptr_equal(strstr(text(summary, "sentence"),
                          "This plan does not fit on m: it needs 512 KiB more than the available"),
                   text(summary, "sentence"));
  json_decref(summary);
  /* Without ops, the summary uses the plan's sums, also for changes. */
  json_object_del(plan, "ops");
  json_object_set_new(entry, "advice",
                      json_pack("[{ss sf sI sb sb}]", "change", "dtype=bf16", "seconds", 0.25, "peak_bytes",
                                (json_int_t)1000, "fits", 1, "approximate", 1));
  summary = rf_report_summary(entry);
  char *shown = rf_report_summary_text(summary);
  assert_non_null(strstr(shown, "memory"));
  assert_non_null(strstr(
      text(summary, "sentence"),
      "bound by compute and to take 1 s: 100 tokens per second. The best single change is dtype=bf16"));
  assert_non_null(strstr(text(summary, "sentence"), "(4.00 x faster)"));
  assert_non_null(strstr(text(summary, "sentence"), "it changes results"));
  free(shown);
  json_decref(summary);
  json_decref(entry);
}

/* If other programs slowed a run down, the summary and its changes use the fastest calls. If the
 * means of two runs disagree with their fastest calls, the comparison says so. */
static void a_run_held_up_is_told_of_alone(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 2, 10.0, 1e6), *op;
  size_t i;
  json_array_foreach (
      json_object_get(json_array_get(json_object_get(json_object_get(entry, "measured"), "walks"), 0), "ops"),
      i, op)
    /* its fastest calls stay: 0.9 s per step */
    json_object_set_new(op, "seconds", json_real(10 * at(op, "seconds")));
  json_object_set_new(json_object_get(entry, "measured"), "others",
                      json_pack("{sf sf si}", "seconds", 20.0, "delayed_seconds", 28.0, "threads", 2));
  json_object_set_new(entry, "advice",
                      json_pack("[{ss sf sI sb sb s{s{sf s{sf sf sf}}}}]", "change", "dtype=bf16", "seconds",
                                0.3, "peak_bytes", (json_int_t)1000, "fits", 1, "approximate", 1, "plans",
                                "train", "seconds", 0.3, "kinds", "matmul", 0.3, "norm", 0.1, "optimizer",
                                0.1));
  json_t *summary = rf_report_summary(entry);
  const char *sentence = text(summary, "sentence");
  assert_non_null(strstr(sentence, "bound by other programs"));
  assert_non_null(strstr(
      sentence, "Without other programs it would take about 900 ms, judging by its fastest calls (predicted "
                "800 ms): 700 ms in matmul, at 69 % of its limit."));
  assert_null(strstr(sentence, "remaining time"));
  /* Half of the products' 0.7 s, and all of the other 0.2 s. */
  near(at(json_object_get(summary, "best"), "now_seconds"), 0.9);
  near(at(json_object_get(summary, "best"), "seconds"), 0.55);
  json_t *other = entry_of("b", OPS, COUNT, 2, 1.0, 1e6);
  for (int alike = 0; alike < 2; alike++) {
    json_t *c = rf_report_compare(alike ? other : entry, other);
    assert_int_equal(strstr(text(c, "doubt"),
                            "not certain: the fastest calls add up to 900 ms in a and 900 ms in b") != NULL,
                     !alike);
    json_decref(c);
  }
  json_decref(summary);
  /* Even the fastest calls took 9 s, so there is no statement about the undisturbed time, and no
   * change. */
  json_array_foreach (
      json_object_get(json_array_get(json_object_get(json_object_get(entry, "measured"), "walks"), 0), "ops"),
      i, op)
    json_object_set_new(op, "least_seconds", json_real(at(op, "seconds")));
  summary = rf_report_summary(entry);
  assert_non_null(strstr(text(summary, "sentence"),
                         "Even its fastest calls were delayed (9 s in total, predicted 800 ms)"));
  assert_null(strstr(text(summary, "sentence"), "change"));
  assert_null(json_object_get(summary, "best"));
  json_decref(summary);
  /* Passes with fewer rows than the plan: their fastest calls are not those of full passes. */
  json_object_set_new(json_array_get(json_object_get(json_object_get(entry, "measured"), "walks"), 0), "walk",
                      json_string("decode"));
  json_object_set_new(json_object_get(entry, "plan"), "name", json_string("decode"));
  summary = rf_report_summary(entry);
  assert_null(strstr(text(summary, "sentence"), "fastest"));
  assert_non_null(strstr(text(summary, "sentence"), "It takes 10 s (predicted 800 ms); this does not show"));
  assert_null(json_object_get(summary, "best"));
  json_decref(summary);
  json_decref(entry);
  json_decref(other);
}

/* If the op with the largest loss has no fast kernel, the summary says so. */
static void reference_kernels_are_named(void **state) {
  (void)state;
  for (int slow = 0; slow < 2; slow++) {
    json_t *entry = entry_of("a", OPS, COUNT, 3, 1.0, 1e6);
    if (slow)
      json_object_set_new(json_array_get(json_object_get(json_object_get(entry, "plan"), "ops"), 1), "kernel",
                          json_string("reference_mm"));
    json_t *summary = rf_report_summary(entry);
    char *notes = json_dumps(json_object_get(summary, "notes"), 0);
    assert_int_equal(strstr(notes, "single-threaded reference kernel (reference_mm)") != NULL, slow);
    free(notes);
    json_decref(summary);
    json_decref(entry);
  }
}

/* A run that was killed before its report: its steps are shown next to the prediction. */
static void a_run_without_a_report_has_its_steps(void **state) {
  (void)state;
  json_t *entry = entry_of("a", OPS, COUNT, 0, 0, 1e6);
  json_object_set_new(entry, "metrics", steps_of(2, 41, 0));
  json_t *summary = rf_report_summary(entry);
  assert_true(json_is_false(json_object_get(summary, "measured")));
  assert_non_null(strstr(text(summary, "sentence"), "after step 41"));
  /* 40 steps: each of 20 lengths occurs twice */
  near(at(json_object_get(summary, "steps"), "seconds"), 2 * 1.09);
  near(at(json_object_get(summary, "steps"), "tokens_per_second"), 200 / (2 * 1.09));
  assert_non_null(strstr(text(summary, "sentence"), "(2.18 x)"));
  assert_null(strstr(text(summary, "sentence"), "change")); /* prices would be those of the prediction */
  assert_null(json_object_get(summary, "best"));
  json_decref(summary);
  json_decref(entry);
}

static void outliers_have_a_note(void **state) {
  (void)state;
  for (int far = 0; far < 2; far++) {
    json_t *entry = entry_of("a", OPS, COUNT, 100, 1.0, 1e6);
    json_object_set_new(entry, "metrics", steps_of(1, 100, far ? 100 : 0));
    json_t *summary = rf_report_summary(entry);
    char *notes = json_dumps(json_object_get(summary, "notes"), 0);
    /* 100 of 208.4 s: the sentence begins with this. No bound and no change is derived from
     * means. */
    assert_int_equal(strstr(text(summary, "sentence"),
                            "1 of 100 steps took 48 % of the time: the process was stopped or") != NULL,
                     far);
    assert_int_equal(strstr(text(summary, "sentence"), "bound by") != NULL, !far);
    assert_string_equal(text(summary, "bound"), far ? "stopped" : "compute");
    if (far) assert_null(strstr(notes, "instead of the predicted"));
    free(notes);
    json_decref(summary);
    json_decref(entry);
  }
  /* 30 of 1124 s are a note. */
  json_t *entry = entry_of("a", OPS, COUNT, 1000, 1.0, 1e6), *summary;
  json_object_set_new(entry, "metrics", steps_of(1, 1000, 30));
  char *notes = json_dumps(json_object_get((summary = rf_report_summary(entry)), "notes"), 0);
  assert_non_null(strstr(notes, "1 of 1000 steps took more than 10 x the median"));
  assert_string_equal(text(summary, "bound"), "compute");
  free(notes);
  json_decref(summary);
  json_decref(entry);
}

/* Makes the machine of an entry a detected one, or its process one that waited for cores. */
static void plant_doubt(json_t *entry, int doubt) {
  json_t *measured = json_object_get(entry, "measured"),
         *machine = json_object_get(json_object_get(entry, "plan"), "machine");
  if (doubt == 2) json_object_set_new(machine, "source", json_string("detected"));
  else if (doubt > 2) /* most of the time is outside steps, so the lower bound of the delays is 0 */
    json_object_set_new(
        measured, "others",
        json_pack("{sf sf si}", "seconds", 10.0, "delayed_seconds", doubt == 3 ? 5.8 : 4.8, "threads", 1));
}

/* Kernels are blamed if their fastest calls are far from the limit but near the prediction. If even
 * these calls take far longer than predicted, kernels are not blamed. A guessed limit and a process
 * that mostly waited for cores do not blame kernels either. */
static void kernels_are_blamed_where_they_are_known(void **state) {
  (void)state;
  for (int doubt = 0; doubt < 5; doubt++) {
    bool far = doubt == 1;
    planted ops[COUNT];
    memcpy(ops, OPS, sizeof ops);
    for (int i = 0; i < COUNT; i++) {
      ops[i].limit = 0.3 * ops[i].predicted;
      ops[i].measured = (far ? 30 : 1.2) * ops[i].predicted;
    }
    json_t *entry = entry_of("a", ops, COUNT, 3, far ? 30 : 1.2, 1e6);
    plant_doubt(entry, doubt);
    json_t *summary = rf_report_summary(entry);
    assert_int_equal(strstr(text(summary, "sentence"), "the kernels are the bottleneck") != NULL,
                     doubt == 0 || doubt == 4);
    json_decref(summary);
    json_decref(entry);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_are_those_of_the_ops),
      cmocka_unit_test(some_steps_can_be_timed),
      cmocka_unit_test(layers_are_told_apart),
      cmocka_unit_test(the_planted_bound_is_named),
      cmocka_unit_test(others_are_named),
      cmocka_unit_test(fewer_threads_are_named),
      cmocka_unit_test(a_step_is_told_of_and_its_bound),
      cmocka_unit_test(the_text_is_short),
      cmocka_unit_test(beaten_limits_are_explained),
      cmocka_unit_test(a_plan_alone_has_a_summary),
      cmocka_unit_test(a_run_without_a_report_has_its_steps),
      cmocka_unit_test(outliers_have_a_note),
      cmocka_unit_test(kernels_are_blamed_where_they_are_known),
      cmocka_unit_test(reference_kernels_are_named),
      cmocka_unit_test(a_run_held_up_is_told_of_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
