/* Requests: what comes out for one depends on nothing else. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate/generate.h"

enum { CONTEXT = 96, VOCAB = 203, MOST_ANSWERS = 64 };
static const char MODEL[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=203,seq=96,init=flax";

static rf_machine machine;

/* What a request was answered. */
typedef struct answer {
  int32_t token[CONTEXT];
  float logprob[CONTEXT];
  int64_t count;
  rf_finish finish;
} answer;

static rf_generator *open_or_fail(const char *model, int64_t batch) {
  rf_generate_settings s = {.seed = 6};
  rf_generator *g = NULL;
  rf_error error = {0};
  if (rf_model_resolve(model, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE, .softmax = RF_F32, .microbatch = batch, .seq = CONTEXT},
                             .backend = &RF_BACKEND_CPU,
                             .isa = rf_isa_detect(),
                             .threads = 1,
                             .machine = &machine};
  if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return g;
}

static void run_all(rf_generator *g) {
  rf_error error = {0};
  while (rf_generator_busy(g)) {
    const rf_event *event;
    int count;
    if (rf_generator_step(g, &event, &count, &error) != RAFTER_OK) fail_msg("%s", error.message);
    for (int i = 0; i < count; i++) {
      answer *a = (answer *)event[i].owner + event[i].sample;
      assert_int_equal(event[i].index, a->count);
      assert_int_equal(a->finish, RF_FINISH_NONE);
      a->token[a->count] = event[i].token, a->logprob[a->count++] = event[i].logprob, a->finish = event[i].finish;
    }
  }
}

static void submit_or_fail(rf_generator *g, const rf_request *r) {
  rf_error error = {0};
  if (rf_generator_submit(g, r, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
}

static void an_answer_is_what_feeding_gives(void **state) {
  (void)state;
  rf_generator *g = open_or_fail(MODEL, 1);
  int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6};
  answer a = {0};
  submit_or_fail(g, &(rf_request){.tokens = prompt, .count = 8, .max_tokens = 20, .sampler = {.top_p = 1}, .owner = &a});
  run_all(g);
  assert_int_equal(a.count, 20);
  assert_int_equal(a.finish, RF_FINISH_LENGTH);
  rf_generator_reset(g);
  const float *logits = NULL;
  rf_error error;
  assert_int_equal(rf_generator_feed(g, prompt, 8, &logits, &error), RAFTER_OK);
  for (int64_t i = 0; i < a.count; i++) {
    int best = 0;
    for (int v = 1; v < VOCAB; v++) best = logits[v] > logits[best] ? v : best;
    assert_int_equal(a.token[i], best);
    assert_true(a.logprob[i] == rf_generator_logprob(g, best));
    assert_int_equal(rf_generator_feed(g, &a.token[i], 1, &logits, &error), RAFTER_OK);
  }
  rf_generator_close(g);
}

static void ends(void **state) {
  (void)state;
  rf_generator *g = open_or_fail(MODEL, 1);
  int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6};
  static answer a[4];
  memset(a, 0, sizeof a);
  rf_request r = {.tokens = prompt, .count = 8, .sampler = {.top_p = 1}, .owner = &a[0]};
  submit_or_fail(g, &r); /* to the end of the context: the last token needs no place in it */
  run_all(g);
  assert_int_equal(a[0].count, CONTEXT - 8 + 1);
  int32_t stop = a[0].token[5];
  int64_t first = 0;
  while (a[0].token[first] != stop) first++;
  r.stop = &stop, r.stop_count = 1, r.owner = &a[1];
  submit_or_fail(g, &r);
  run_all(g);
  assert_int_equal(a[1].count, first + 1);
  assert_int_equal(a[1].finish, RF_FINISH_STOP);
  /* cancelled: no event more, and what waits goes on */
  int64_t id;
  rf_error error = {0};
  const rf_event *event;
  int count;
  r.owner = &a[2], r.stop_count = 0;
  assert_int_equal(rf_generator_submit(g, &r, &id, &error), RAFTER_OK);
  r.owner = &a[3], r.max_tokens = 3;
  submit_or_fail(g, &r);
  for (count = 0; !count;) assert_int_equal(rf_generator_step(g, &event, &count, &error), RAFTER_OK);
  rf_generator_cancel(g, id, 0);
  run_all(g);
  assert_int_equal(a[2].count, 0);
  assert_int_equal(a[3].count, 3);
  rf_generator_close(g);
}

static void refuse(rf_generator *g, rf_request r, const char *says) {
  rf_error error = {0};
  assert_int_equal(rf_generator_submit(g, &r, NULL, &error), RAFTER_INVALID);
  if (!strstr(error.message, says)) fail_msg("expected '%s' in '%s'", says, error.message);
  assert_false(rf_generator_busy(g));
}

static void bad_requests_are_refused(void **state) {
  (void)state;
  rf_generator *g = open_or_fail(MODEL, 1);
  int32_t ids[CONTEXT + 1] = {0}, bad[] = {1, VOCAB};
  rf_request r = {.tokens = ids, .count = 4, .sampler = {.top_p = 1}};
  rf_request x = r;
  x.count = 0, refuse(g, x, "empty"), x = r;
  x.count = CONTEXT + 1, refuse(g, x, "expected a prompt of at most 96 tokens, got 97"), x = r;
  x.tokens = bad, x.count = 2, refuse(g, x, "prompt, token 1"), x = r;
  x.stop = bad, x.stop_count = 2, refuse(g, x, "stop ids, token 1"), x = r;
  x.top = RF_TOP_LOGPROBS + 1, refuse(g, x, "alternatives"), x = r;
  x.sampler.repetition_penalty = -1, refuse(g, x, "repetition_penalty");
  rf_generator_close(g);
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {cmocka_unit_test(an_answer_is_what_feeding_gives), cmocka_unit_test(ends),
                                     cmocka_unit_test(bad_requests_are_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
