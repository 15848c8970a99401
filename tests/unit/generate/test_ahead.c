/* test_ahead.c - passes that run ahead of the host give the tokens and log-probabilities of passes
 * that wait, whatever ends, joins, is cancelled or fails in between. The device is that of far.h,
 * whose programs hide the outputs of a started step until the step is finished. Then the same with
 * plugins of XLA: the one for faults, and the one that RAFTER_PJRT_PLUGIN names. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/batch.h"
#include "support/far.h"

enum { CONTEXT = 96, VOCAB = 203, REQUESTS = 24, SAMPLES = 3 };
static const char MODEL[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=203,seq=96,init=flax";
static const char WINDOWED[] =
    "gemma3:layers=6,width=32,heads=4,kv_heads=2,head_dim=16,ff=64,vocab=203,seq=4096,window=24,init=flax";

static rf_machine machine;
static rf_backend far;

typedef struct answer {
  int32_t token[CONTEXT + 1];
  float logprob[CONTEXT + 1];
  int64_t count;
  rf_finish finish;
} answer;

static rf_infer_settings settings_of(const char *model, int64_t batch, const rf_backend *backend) {
  rf_infer_settings s = {.seed = 6};
  rf_error error = {0};
  if (rf_model_resolve(model, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE,
                                       .softmax = RF_F32,
                                       .microbatch = batch,
                                       .seq = CONTEXT,
                                       .chunk = 16,
                                       .sampled = true},
                             .backend = backend,
                             .isa = rf_isa_detect(),
                             .threads = 1,
                             .machine = &machine};
  return s;
}

static rf_generator *open_settings(const rf_infer_settings *s) {
  rf_generator *g = NULL;
  rf_error error = {0};
  if (rf_generator_open(s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return g;
}

static rf_generator *open_or_fail(const char *model, int64_t batch) {
  rf_infer_settings s = settings_of(model, batch, &far);
  return open_settings(&s);
}

/* The pages of all sequences are in order, also while a pass runs ahead. */
static void check_pages(rf_generator *g) {
  rf_batch *b = g->batch;
  const rf_sequence *list[64];
  rf_error error = {0};
  int count = 0;
  for (int i = 0; i < b->cached_count; i++) list[count++] = &b->cached[i].sequence;
  if (rf_pages_check(&b->pages, list, count, &error) != RAFTER_OK) fail_msg("%s", error.message);
}

/* Called after each event. */
typedef struct watcher {
  void (*seen)(struct watcher *w, rf_generator *g, const rf_event *event);
  int64_t at;
} watcher;

static void take(answer *a, const rf_event *event) {
  assert_int_equal(a->finish, RF_FINISH_NONE); /* no event follows the last one */
  a->finish = event->finish;
  if (event->token < 0) return;
  assert_int_equal(event->index, a->count);
  a->token[a->count] = event->token;
  a->logprob[a->count++] = event->logprob;
}

static void run_all(rf_generator *g, watcher *w) {
  rf_error error = {0};
  while (rf_generator_busy(g)) {
    const rf_event *event;
    int count;
    if (rf_generator_step(g, &event, &count, &error) != RAFTER_OK) fail_msg("%s", error.message);
    check_pages(g);
    rf_event copy[64];
    memcpy(copy, event, (size_t)count * sizeof *event);
    for (int i = 0; i < count; i++) {
      take((answer *)copy[i].owner + copy[i].sample, &copy[i]);
      if (w) w->seen(w, g, &copy[i]);
    }
  }
  assert_int_equal(g->batch->flights, 0); /* no pass outlives its answers */
}

static int64_t submit(rf_generator *g, const rf_request *r) {
  rf_error error = {0};
  int64_t id = -1;
  if (rf_generator_submit(g, r, &id, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return id;
}

static void expect_equal(const answer *a, const answer *b, int count) {
  for (int i = 0; i < count; i++) {
    assert_int_equal(a[i].count, b[i].count);
    assert_int_equal(a[i].finish, b[i].finish);
    assert_memory_equal(a[i].token, b[i].token, (size_t)a[i].count * sizeof *a->token);
    assert_memory_equal(a[i].logprob, b[i].logprob, (size_t)a[i].count * sizeof *a->logprob);
  }
}

/* ---- many requests --------------------------------------------------------------------------- */

typedef struct load {
  watcher w; /* the first field */
  int32_t prompt[REQUESTS][CONTEXT], stop[REQUESTS][8];
  rf_request r[REQUESTS];
  int64_t id[REQUESTS], cancel[REQUESTS];
  answer a[REQUESTS][SAMPLES];
  int submitted, requests; /* sent so far, and to be sent */
} load;

static uint64_t draw(uint64_t *state, uint64_t below) {
  *state = rf_key(*state, 1, 2);
  return (*state >> 8) % below;
}

/* Prompts with common prefixes, several samples, stop ids, all rules, and requests that are
 * cancelled after a token. */
static void fill_load(load *l, uint64_t seed) {
  uint64_t s = seed;
  memset(l, 0, sizeof *l);
  for (int i = 0; i < REQUESTS; i++) {
    int64_t count = 1 + (int64_t)draw(&s, 40);
    for (int k = 0; k < count; k++) l->prompt[i][k] = (int32_t)draw(&s, VOCAB);
    if (i && draw(&s, 2)) memcpy(l->prompt[i], l->prompt[i - 1], (size_t)(count / 2) * sizeof(int32_t));
    for (int k = 0; k < 8; k++) l->stop[i][k] = (int32_t)draw(&s, VOCAB);
    l->cancel[i] = draw(&s, 4) ? -1 : (int64_t)draw(&s, 12);
    l->r[i] = (rf_request){.tokens = l->prompt[i],
                           .count = count,
                           .max_tokens = draw(&s, 5) ? 1 + (int64_t)draw(&s, 30) : 0,
                           .samples = 1 + (int)draw(&s, SAMPLES),
                           .sampler = {.temperature = draw(&s, 2) ? 1.3f : 0,
                                       .top_p = draw(&s, 2) ? 0.9f : 1,
                                       .top_k = draw(&s, 2) ? 40 : 0,
                                       .repetition_penalty = draw(&s, 8) ? 0 : 1.2f,
                                       .seed = 11 + (uint64_t)i},
                           .stop = l->stop[i],
                           .stop_count = draw(&s, 2) ? 8 : 0,
                           .keep = draw(&s, 2),
                           .owner = l->a[i]};
  }
}

static void submit_next(load *l, rf_generator *g) {
  l->id[l->submitted] = submit(g, &l->r[l->submitted]);
  l->submitted++;
}

static void on_load(watcher *w, rf_generator *g, const rf_event *event) {
  load *l = (load *)w;
  int i = (int)((answer *)event->owner - l->a[0]) / SAMPLES;
  if (event->index == l->cancel[i] && event->finish == RF_FINISH_NONE)
    rf_generator_cancel(g, l->id[i], event->sample);
  check_pages(g);
  if (event->finish != RF_FINISH_NONE && l->submitted < l->requests) submit_next(l, g);
}

static void answer_load(load *l, const rf_infer_settings *s, uint64_t seed, int requests) {
  rf_generator *g = open_settings(s);
  fill_load(l, seed);
  l->w.seen = on_load;
  l->requests = requests;
  for (int i = 0; i < 6; i++) submit_next(l, g);
  run_all(g, &l->w);
  while (l->submitted < requests) {
    submit_next(l, g);
    run_all(g, &l->w);
  }
  rf_generator_close(g);
}

static void running_ahead_changes_no_bit(void **state) {
  (void)state;
  static load a, b, c;
  for (int model = 0; model < 2; model++)
    for (uint64_t seed = 1; seed <= (model ? 2 : 4); seed++) {
      rf_infer_settings s = settings_of(model ? WINDOWED : MODEL, 1 + (int64_t)seed % 5, &far);
      int before, after, all;
      if (seed == 3) s.step_growth = 1.5;
      far_started(&before);
      answer_load(&a, &s, seed, REQUESTS);
      all = far_started(&after);
      if (after - before < 20) fail_msg("only %d passes ran ahead", after - before);
      s.no_ahead = true;
      answer_load(&b, &s, seed, REQUESTS);
      assert_int_equal(far_started(NULL), all);
      expect_equal(a.a[0], b.a[0], REQUESTS * SAMPLES);
      s = settings_of(model ? WINDOWED : MODEL, 3, &RF_BACKEND_CPU);
      answer_load(&c, &s, seed, REQUESTS);
      expect_equal(a.a[0], c.a[0], REQUESTS * SAMPLES);
    }
}

/* ---- single cases ---------------------------------------------------------------------------- */

static const int32_t PROMPT[] = {3, 1, 4, 1, 5, 9, 2, 6};

static rf_request request_of(answer *a, int64_t most) {
  return (rf_request){.tokens = PROMPT, .count = 8, .max_tokens = most, .sampler = {.top_p = 1}, .owner = a};
}

/* An answer of n tokens takes n passes, n - 1 of which follow another one, and none more. */
static void a_known_end_computes_nothing_more(void **state) {
  (void)state;
  rf_generator *g = open_or_fail(MODEL, 2);
  answer a = {0};
  int before, after, started = far_started(&before);
  rf_request r = request_of(&a, 20);
  submit(g, &r);
  run_all(g, NULL);
  assert_int_equal(a.count, 20);
  assert_int_equal(rf_generator_counts(g).passes, 20);
  assert_int_equal(far_started(&after) - started, 19); /* the prompt has a pass of its own */
  assert_int_equal(after - before, 18);
  rf_generator_close(g);
}

/* An end that only the token shows costs one pass. The sequence in the cache has the length that it
 * has without running ahead: the next turn reuses the same tokens. */
static void a_stop_leaves_the_cache_as_it_was(void **state) {
  (void)state;
  answer whole = {0}, cut[2] = {0}, next[2] = {0};
  int64_t reused[2], passes[2];
  rf_generator *g = open_or_fail(MODEL, 2);
  rf_request r = request_of(&whole, 40);
  submit(g, &r);
  run_all(g, NULL);
  rf_generator_close(g);
  int32_t stop = whole.token[30];
  for (int wait = 0; wait < 2; wait++) {
    rf_infer_settings s = settings_of(MODEL, 2, &far);
    s.no_ahead = wait;
    g = open_settings(&s);
    r = request_of(&cut[wait], 40);
    r.stop = &stop;
    r.stop_count = 1;
    r.keep = true;
    submit(g, &r);
    run_all(g, NULL);
    passes[wait] = rf_generator_counts(g).passes;
    int32_t turn[CONTEXT];
    memcpy(turn, PROMPT, sizeof PROMPT);
    memcpy(turn + 8, cut[wait].token, (size_t)cut[wait].count * sizeof *turn);
    turn[8 + cut[wait].count] = 7;
    r = request_of(&next[wait], 10);
    r.tokens = turn;
    r.count = 9 + cut[wait].count;
    submit(g, &r);
    run_all(g, NULL);
    reused[wait] = rf_generator_counts(g).reused;
    rf_generator_close(g);
  }
  assert_int_equal(cut[0].finish, RF_FINISH_STOP);
  expect_equal(&cut[0], &cut[1], 1);
  expect_equal(&next[0], &next[1], 1);
  assert_int_equal(reused[0], reused[1]);
  assert_int_equal(passes[0], passes[1] + 1);
}

/* A cancelled answer gives its pages back at once, and others continue. */
static void answers_can_be_cancelled_in_flight(void **state) {
  (void)state;
  answer a[2] = {0}, alone = {0};
  const rf_event *event;
  int count;
  rf_error error = {0};
  rf_generator *g = open_or_fail(MODEL, 2);
  rf_request r = request_of(&a[0], 30);
  int64_t first = submit(g, &r);
  r = request_of(&a[1], 30);
  submit(g, &r);
  while (a[1].count < 5) {
    assert_int_equal(rf_generator_step(g, &event, &count, &error), RAFTER_OK);
    for (int i = 0; i < count; i++) take(event[i].owner, &event[i]);
  }
  assert_int_equal(g->batch->flights, 1);
  rf_generator_cancel(g, first, -1);
  check_pages(g);
  assert_int_equal(g->batch->flights, 1);
  run_all(g, NULL);
  assert_int_equal(a[0].finish, RF_FINISH_CANCELLED);
  r = request_of(&alone, 30);
  submit(g, &r);
  run_all(g, NULL);
  expect_equal(&alone, &a[1], 1);
  /* Without any answer left, nothing runs on. */
  r = request_of(&a[0], 30);
  a[0] = (answer){0};
  first = submit(g, &r);
  while (a[0].count < 5) {
    assert_int_equal(rf_generator_step(g, &event, &count, &error), RAFTER_OK);
    for (int i = 0; i < count; i++) take(event[i].owner, &event[i]);
  }
  far_fail_at(1); /* a cancellation does not wait for the device, so it does not call the device */
  rf_generator_cancel(g, first, -1);
  far_fail_at(0);
  assert_int_equal(g->batch->flights, 1);
  check_pages(g);
  const float *logits = NULL;
  run_all(g, NULL);
  assert_int_equal(rf_generator_feed(g, PROMPT, 8, &logits, &error), RAFTER_OK);
  rf_generator_close(g);
}

/* The device fails once, at each of its calls in turn. Then no pass is in progress, and the next
 * steps give the tokens of a device that never fails. */
static void failures_in_flight_are_reported(void **state) {
  (void)state;
  answer whole[2] = {0};
  rf_generator *good = open_or_fail(MODEL, 2);
  for (int i = 0; i < 2; i++) {
    rf_request r = request_of(&whole[i], i ? 8 : 30);
    submit(good, &r);
  }
  run_all(good, NULL);
  rf_generator_close(good);
  for (int call = 1; call <= 24; call++) {
    answer a[2] = {0};
    const rf_event *event;
    int count;
    rf_error error = {0};
    rf_status status = RAFTER_OK;
    rf_generator *g = open_or_fail(MODEL, 2);
    rf_request r = request_of(&a[0], 30);
    submit(g, &r);
    r = request_of(&a[1], 8);
    submit(g, &r);
    far_fail_at(call);
    while (rf_generator_busy(g)) {
      status = rf_generator_step(g, &event, &count, &error);
      if (status != RAFTER_OK) break;
      for (int i = 0; i < count; i++) take(event[i].owner, &event[i]);
    }
    assert_int_equal(status, RAFTER_FAILED);
    assert_string_equal(error.message, "the far device is gone");
    assert_int_equal(g->batch->flights, 0);
    check_pages(g);
    far_fail_at(0);
    run_all(g, NULL);
    expect_equal(a, whole, 2);
    rf_generator_close(g);
  }
}

/* A generator on the run of another one closes in flight. The run has no pass in progress then. */
static void a_run_goes_on_after_its_generator(void **state) {
  (void)state;
  answer a = {0}, b = {0};
  const rf_event *event;
  int count;
  rf_error error = {0};
  rf_infer_settings s = settings_of(MODEL, 1, &far);
  rf_generator *owner = open_settings(&s), *g = NULL;
  rf_request r = request_of(&a, 30);
  submit(owner, &r);
  run_all(owner, NULL);
  for (int turn = 0; turn < 3; turn++) {
    assert_int_equal(
        rf_generator_bind(&s, owner->run, owner->first, owner->prefill, owner->decode, &g, &error),
        RAFTER_OK);
    b = (answer){0};
    r = request_of(&b, 30);
    submit(g, &r);
    for (int i = 0; i < 4 && turn < 2; i++)
      assert_int_equal(rf_generator_step(g, &event, &count, &error), RAFTER_OK);
    if (turn < 2) assert_int_equal(g->batch->flights, 1);
    else run_all(g, NULL);
    rf_generator_close(g);
  }
  expect_equal(&a, &b, 1);
  rf_generator_close(owner);
}

/* A failure of a pass that nobody waits for any more is the error of the next step. */
static void a_failure_after_a_cancellation_is_reported(void **state) {
  (void)state;
  answer a = {0};
  const rf_event *event;
  int count;
  rf_error error = {0};
  rf_generator *g = open_or_fail(MODEL, 1);
  rf_request r = request_of(&a, 30);
  int64_t id = submit(g, &r);
  while (a.count < 5) {
    assert_int_equal(rf_generator_step(g, &event, &count, &error), RAFTER_OK);
    for (int i = 0; i < count; i++) take(event[i].owner, &event[i]);
  }
  rf_generator_cancel(g, id, -1);
  far_fail_at(1);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(rf_generator_step(g, &event, &count, &error), RAFTER_FAILED);
    assert_string_equal(error.message, "the far device is gone");
    far_fail_at(0);
  }
  rf_generator_close(g);
}

/* Debug runs and alternatives need the logits of each pass, so each pass waits. */
static void passes_wait_where_the_host_chooses(void **state) {
  (void)state;
  for (int poison = 0; poison < 2; poison++) {
    rf_infer_settings s = settings_of(MODEL, 2, &far);
    s.debug.poison = poison;
    rf_generator *g = open_settings(&s);
    answer a = {0};
    int before = far_started(NULL);
    rf_request r = request_of(&a, 6);
    r.top = !poison;
    submit(g, &r);
    run_all(g, NULL);
    assert_int_equal(far_started(NULL), before);
    assert_int_equal(a.count, 6);
    rf_generator_close(g);
  }
}

/* A generator closes while a pass runs. */
static void a_generator_can_close_in_flight(void **state) {
  (void)state;
  answer a = {0};
  const rf_event *event;
  int count;
  rf_error error = {0};
  rf_generator *g = open_or_fail(MODEL, 1);
  rf_request r = request_of(&a, 30);
  submit(g, &r);
  for (int i = 0; i < 4; i++) assert_int_equal(rf_generator_step(g, &event, &count, &error), RAFTER_OK);
  assert_int_equal(g->batch->flights, 1);
  rf_generator_close(g);
}

/* ---- plugins --------------------------------------------------------------------------------- */

#ifdef RF_FAKE_PLUGIN
static rf_infer_settings with_plugin(const char *plugin, int64_t batch) {
  rf_infer_settings s = settings_of(MODEL, batch, &RF_BACKEND_XLA);
  s.plan.build.plain = true;
  s.plan.device.plugin = plugin;
  return s;
}

/* In the plugin for faults, log-probabilities depend on all integers that the program reads. */
static void plugins_run_ahead(void **state) {
  (void)state;
  static load a, b;
  const char *plugins[] = {RF_FAKE_PLUGIN, getenv("RAFTER_PJRT_PLUGIN")};
  setenv("FAKE_PLUGIN", "", 1);
  for (int i = 0; i < 2 && plugins[i]; i++) {
    /* with one slot, each pass has the same number of rows, whatever runs ahead */
    rf_infer_settings s = with_plugin(plugins[i], 1);
    int requests = i ? 8 : REQUESTS; /* a real plugin compiles, which takes time */
    answer_load(&a, &s, 1, requests);
    s.no_ahead = true;
    answer_load(&b, &s, 1, requests);
    expect_equal(a.a[0], b.a[0], REQUESTS * SAMPLES);
  }
}

static void a_variable_makes_plugins_wait(void **state) {
  (void)state;
  setenv("FAKE_PLUGIN", "", 1);
  for (int wait = 0; wait < 2; wait++) {
    setenv("RAFTER_AHEAD", wait ? "0" : "1", 1);
    rf_infer_settings s = with_plugin(RF_FAKE_PLUGIN, 1);
    rf_generator *g = open_settings(&s);
    assert_true(rf_run_starts(g->run, g->first + RF_DECODE));
    assert_int_equal(g->settings.no_ahead, wait);
    rf_generator_close(g);
  }
  unsetenv("RAFTER_AHEAD");
}

/* Later steps start and end, because the child has no execution of the failed step any more. */
static void goes_on(rf_generator *g) {
  const rf_event *event;
  int count;
  rf_error error = {0};
  assert_int_equal(g->batch->flights, 0);
  for (int i = 0; i < 6; i++)
    if (rf_generator_step(g, &event, &count, &error) != RAFTER_OK) fail_msg("%s", error.message);
}

/* An execution fails, or ends the plugin, while another one runs. */
static void plugins_fail_in_flight(void **state) {
  (void)state;
  static const char *const FAULTS[] = {"late_at=%d", "die_at=%d"}, *const SAYS[] = {
                                                                       "the execution failed late",
                                                                       "Check failed: this execution"};
  for (int fault = 0; fault < 2; fault++)
    for (int at = 1; at <= 5; at++) {
      char behaviour[40];
      answer a = {0};
      const rf_event *event;
      int count;
      rf_error error = {0};
      rf_status status = RAFTER_OK;
      snprintf(behaviour, sizeof behaviour, FAULTS[fault], at);
      setenv("FAKE_PLUGIN", behaviour, 1);
      rf_infer_settings s = with_plugin(RF_FAKE_PLUGIN, 2);
      rf_generator *g = open_settings(&s);
      rf_request r = request_of(&a, 30);
      int64_t id = submit(g, &r);
      while (status == RAFTER_OK && rf_generator_busy(g))
        status = rf_generator_step(g, &event, &count, &error);
      assert_int_equal(status, RAFTER_FAILED);
      if (!strstr(error.message, SAYS[fault])) fail_msg("%s", error.message);
      if (fault == 0 && rf_generator_counts(g).passes) goes_on(g);
      rf_generator_cancel(g, id, -1);
      rf_generator_close(g);
    }
}
#endif

int main(void) {
  rf_error error;
  far = far_backend(&RF_BACKEND_CPU);
  if (rf_machine_detect(&machine, &error) != RAFTER_OK) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(running_ahead_changes_no_bit),
      cmocka_unit_test(a_known_end_computes_nothing_more),
      cmocka_unit_test(a_stop_leaves_the_cache_as_it_was),
      cmocka_unit_test(answers_can_be_cancelled_in_flight),
      cmocka_unit_test(failures_in_flight_are_reported),
      cmocka_unit_test(a_run_goes_on_after_its_generator),
      cmocka_unit_test(a_failure_after_a_cancellation_is_reported),
      cmocka_unit_test(passes_wait_where_the_host_chooses),
      cmocka_unit_test(a_generator_can_close_in_flight),
#ifdef RF_FAKE_PLUGIN
      cmocka_unit_test(plugins_run_ahead),
      cmocka_unit_test(a_variable_makes_plugins_wait),
      cmocka_unit_test(plugins_fail_in_flight),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
