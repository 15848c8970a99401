/* test_generator.c - the public generator gives several events of an answer in one step, if it
 * drafts tokens. The texts of all these events are valid until the next step. */
#include "support/job.h"

#include <stdio.h>
#include <string.h>

enum { SAMPLES = 4, REPEATS = 60, BYTES = 13 * REPEATS };

static rafter_generator *open_generator(void) {
  static const char *const OPTIONS[][2] = {
      {"model", "gpt:layers=1,width=32,heads=2,ff=64,vocab=300,seq=1024,init=flax"},
      {"threads", "1"},
      {"batch", "4"},
      {"speculate", "ngram"},
      {NULL}};
  rafter_job *job = job_of("generate", OPTIONS);
  rafter_generator *g = NULL;
  OK(rafter_generator_open(job, &g, &error));
  rafter_job_free(job);
  return g;
}

/* A form with one choice gives the answers, so every draft that repeats the text is accepted. */
static void texts_of_a_step_stay_valid(void **state) {
  (void)state;
  char wanted[BYTES + 1] = "", choices[BYTES + 8], got[SAMPLES][BYTES + 1] = {{0}};
  int32_t prompt[40];
  size_t bytes[SAMPLES] = {0};
  int several = 0;
  for (int i = 0; i < REPEATS; i++) strcat(wanted, "hello world, ");
  snprintf(choices, sizeof choices, "[\"%s\"]", wanted);
  for (int i = 0; i < 39; i++) prompt[i] = (unsigned char)wanted[i];
  rafter_generator *g = open_generator();
  rafter_constraint *form = NULL;
  OK(rafter_constraint_open(g, RAFTER_FORM_CHOICE, choices, strlen(choices), &form, &error));
  const rafter_request request = {.size = sizeof request,
                                  .tokens = prompt,
                                  .count = 39,
                                  .max_tokens = BYTES + 1,
                                  .samples = SAMPLES,
                                  .constraint = form};
  OK(rafter_generator_submit(g, &request, NULL, &error));
  while (rafter_generator_busy(g)) {
    rafter_event e = {.size = sizeof e};
    int events = 0;
    OK(rafter_generator_step(g, &error));
    for (; rafter_generator_next(g, &e); events++) {
      assert_true(bytes[e.sample] + e.text_bytes <= BYTES);
      memcpy(got[e.sample] + bytes[e.sample], e.text, e.text_bytes);
      bytes[e.sample] += e.text_bytes;
    }
    several += events > SAMPLES;
  }
  for (int i = 0; i < SAMPLES; i++) assert_string_equal(got[i], wanted);
  assert_true(several > 20);
  rafter_constraint_close(form);
  rafter_generator_close(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(texts_of_a_step_stay_valid)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
