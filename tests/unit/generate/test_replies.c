/* test_replies.c - the loop over a generator's steps reports each event of each answer once, also
 * when a stop string, an error or the owner ends the answer. */
#include "feeding.h"
#include "generate/replies.h"

#include <math.h>
#include <string.h>

enum { VOCAB = 300, REQUESTS = 4, TOKENS = 12 };
static const char SHAPE[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=300,seq=96,init=flax";

/* The events that the owner of the requests got. */
typedef struct owner {
  rf_generator *g;
  rf_replies of[REQUESTS];
  int tokens[REQUESTS], ends[REQUESTS]; /* events with a token; calls of `ended` */
  rf_finish finish[REQUESTS];
  char text[REQUESTS][512], message[512];
  int cancels; /* request that is cancelled after its third token; -1: none */
  int steps, most_steps;
} owner;

static rf_status taken(void *self, rf_replies *of, const rf_event *event, rf_error *error) {
  owner *o = self;
  long i = of - o->of;
  (void)error;
  assert_int_equal(o->finish[i], RF_FINISH_NONE); /* No event follows the end of the answer. */
  assert_int_equal(o->ends[i], 0);
  o->tokens[i] += event->token >= 0;
  o->finish[i] = of->reply->finish;
  assert_int_equal(event->error != NULL, o->finish[i] == RF_FINISH_ERROR);
  if (event->error) strcpy(o->message, event->error->message);
  if (i == o->cancels && o->tokens[i] == 3) rf_generator_cancel(o->g, of->request, -1);
  return RAFTER_OK;
}

/* The replies may be freed here. */
static rf_status ended(void *self, rf_replies *of, rf_error *error) {
  owner *o = self;
  long i = of - o->of;
  (void)error;
  o->ends[i]++;
  snprintf(o->text[i], sizeof o->text[i], "%s", of->reply->text);
  rf_replies_free(of);
  return RAFTER_OK;
}

static bool stepped(void *self, int tokens) {
  owner *o = self;
  assert_true(tokens >= 0);
  return !o->most_steps || ++o->steps < o->most_steps;
}

static void submit(owner *o, int i, const rf_logit_bias *bar, const rf_stop *stop) {
  static const int32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6};
  rf_error error = {0};
  rf_request r = {.tokens = prompt, .count = 8, .max_tokens = TOKENS, .sampler.bias = bar};
  if (bar) r.sampler.bias_count = VOCAB;
  if (rf_replies_submit(o->g, &r, NULL, stop, &o->of[i], &error) != RAFTER_OK) fail_msg("%s", error.message);
}

/* Request 0 runs to its end, 1 is cancelled, 2 fails, 3 meets a stop string. */
static void submit_all(owner *o, const rf_stop *none, const rf_stop *stop) {
  static rf_logit_bias bar[VOCAB];
  for (int i = 0; i < VOCAB; i++) bar[i] = (rf_logit_bias){i, -INFINITY};
  for (int i = 0; i < REQUESTS; i++) submit(o, i, i == 2 ? bar : NULL, i == 3 ? stop : none);
}

static void an_error_and_a_stop_end_one_answer(void **state) {
  (void)state;
  owner o = {.g = open_shape(SHAPE, 2, 64, true), .cancels = 1};
  const rf_reply_loop loop = {&o, taken, ended, stepped, .survives = true};
  rf_stop none = {0}, stop = {0};
  rf_error error = {0};
  bool stopped;
  assert_int_equal(rf_stop_of(NULL, 0, &none, &error), RAFTER_OK);
  submit(&o, 0, NULL, &none);
  assert_int_equal(rf_replies_run(o.g, &loop, &stopped, &error), RAFTER_OK);
  char whole[512];
  strcpy(whole, o.text[0]);
  const char *cut[] = {(char[]){whole[strlen(whole) / 2], whole[strlen(whole) / 2 + 1], 0}};
  assert_int_equal(rf_stop_of(cut, 1, &stop, &error), RAFTER_OK);
  o = (owner){.g = o.g, .cancels = 1};
  int64_t before = rf_generator_counts(o.g).tokens;
  submit_all(&o, &none, &stop);
  assert_int_equal(rf_replies_run(o.g, &loop, &stopped, &error), RAFTER_OK);
  assert_false(stopped);
  static const rf_finish want[] = {RF_FINISH_LENGTH, RF_FINISH_CANCELLED, RF_FINISH_ERROR, RF_FINISH_STOP};
  for (int i = 0; i < REQUESTS; i++) {
    assert_int_equal(o.finish[i], want[i]);
    assert_int_equal(o.ends[i], 1);
  }
  assert_string_equal(o.text[0], whole);
  /* After the stop string, the generator makes no further tokens. */
  assert_int_equal(rf_generator_counts(o.g).tokens - before, o.tokens[0] + o.tokens[1] + o.tokens[3]);
  assert_true(o.tokens[3] < TOKENS);
  assert_int_equal(o.tokens[1], 3);
  assert_int_equal(o.tokens[2], 0);
  assert_non_null(strstr(o.message, "every token is barred"));
  assert_true(strlen(o.text[3]) < strlen(whole));
  assert_memory_equal(o.text[3], whole, strlen(o.text[3]));
  rf_generator_close(o.g);
  rf_stop_close(&none);
  rf_stop_close(&stop);
}

/* Without `survives`, the error of one answer is the error of the loop. */
static void an_error_ends_the_loop(void **state) {
  (void)state;
  owner o = {.g = open_shape(SHAPE, 4, 64, true), .cancels = -1};
  const rf_reply_loop loop = {&o, taken, ended, stepped, .survives = false};
  rf_stop none = {0};
  rf_error error = {0};
  bool stopped;
  assert_int_equal(rf_stop_of(NULL, 0, &none, &error), RAFTER_OK);
  submit_all(&o, &none, &none);
  assert_int_equal(rf_replies_run(o.g, &loop, &stopped, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "every token is barred"));
  for (int i = 0; i < REQUESTS; i++) rf_replies_free(&o.of[i]);
  rf_generator_close(o.g);
  rf_stop_close(&none);
}

static void the_owner_stops_the_loop(void **state) {
  (void)state;
  owner o = {.g = open_shape(SHAPE, 1, 64, true), .cancels = -1, .most_steps = 4};
  const rf_reply_loop loop = {&o, taken, ended, stepped, .survives = false};
  rf_stop none = {0};
  rf_error error = {0};
  bool stopped;
  assert_int_equal(rf_stop_of(NULL, 0, &none, &error), RAFTER_OK);
  submit(&o, 0, NULL, &none);
  assert_int_equal(rf_replies_run(o.g, &loop, &stopped, &error), RAFTER_OK);
  assert_true(stopped);
  assert_int_equal(o.tokens[0], 4);
  o.most_steps = 0;
  assert_int_equal(rf_replies_run(o.g, &loop, &stopped, &error), RAFTER_OK);
  assert_int_equal(o.tokens[0], TOKENS);
  assert_int_equal(o.ends[0], 1);
  rf_generator_close(o.g);
  rf_stop_close(&none);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_error_and_a_stop_end_one_answer),
      cmocka_unit_test(an_error_ends_the_loop),
      cmocka_unit_test(the_owner_stops_the_loop),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
