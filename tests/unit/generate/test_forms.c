/* test_forms.c - answers with a form: valid, the same in every batch and with drafts, and without
 * an allocation in a step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "constrain/constrain.h"
#include "generate/generate.h"

enum { CONTEXT = 400, VOCAB = 260, END = 256, REQUESTS = 6, SAMPLES = 2 };
static const char MODEL[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=260,seq=400,init=flax";
static const char SCHEMA[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":8},\"sizes\":{\"type\":"
    "\"array\","
    "\"items\":{\"type\":\"integer\",\"maximum\":999},\"maxItems\":3}},\"required\":[\"name\",\"sizes\"]}";

static rf_machine machine;
static rf_tokenizer *tokenizer;
static rf_constraints *constraints;

typedef struct answer {
  char text[CONTEXT];
  int64_t count;
  int32_t token[CONTEXT];
  float logprob[CONTEXT];
  rf_finish finish;
} answer;

static rf_constraint *constraint_of(rf_text_form form, const char *text) {
  rf_constraint *c = NULL;
  rf_error error = {0};
  if (rf_constraints_get(constraints, form, text, strlen(text), &c, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  return c;
}

static void take(const rf_event *e) {
  answer *a = (answer *)e->owner + e->sample;
  if (e->finish == RF_FINISH_ERROR) fail_msg("%s", e->error->message);
  a->token[a->count] = e->token;
  a->logprob[a->count] = e->logprob;
  if (e->token < END) a->text[a->count] = (char)e->token;
  a->count++;
  a->finish = e->finish;
}

/* Answers all requests: even ones with a form, odd ones without. */
static void answer_all(int64_t batch, int draft, rf_constraint *form, answer out[REQUESTS][SAMPLES]) {
  static const int32_t ENDS[] = {END};
  static const int32_t PROMPT[] = {'J', 'S', 'O', 'N', ':'};
  rf_infer_settings s = {.seed = 6, .drafts_all = draft > 0};
  rf_generator *g = NULL;
  rf_error error = {0};
  assert_int_equal(rf_model_resolve(MODEL, &s.model, NULL, &error), RAFTER_OK);
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE,
                                       .softmax = RF_F32,
                                       .microbatch = batch,
                                       .seq = CONTEXT,
                                       .draft = draft},
                             .backend = &RF_BACKEND_CPU,
                             .isa = rf_isa_detect(),
                             .threads = 2,
                             .machine = &machine};
  s.plan.build.sequences = batch + 1;
  if (rf_generator_open(&s, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  memset(out, 0, sizeof(answer) * REQUESTS * SAMPLES);
  for (int i = 0; i < REQUESTS; i++) {
    rf_request r = {.tokens = PROMPT,
                    .count = 5,
                    .max_tokens = i % 2 ? 40 : 300,
                    .samples = SAMPLES,
                    .stop = ENDS,
                    .stop_count = 1,
                    .sampler = {.temperature = 1.5f,
                                .seed = (uint64_t)i,
                                .eos = ENDS,
                                .eos_count = 1,
                                .constraint = i % 2 ? NULL : form},
                    .owner = out[i]};
    if (rf_generator_submit(g, &r, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  }
  while (rf_generator_busy(g)) {
    const rf_event *event;
    int count;
    if (rf_generator_step(g, &event, &count, &error) != RAFTER_OK) fail_msg("%s", error.message);
    for (int i = 0; i < count; i++) take(&event[i]);
  }
  rf_generator_close(g);
}

static answer alone[REQUESTS][SAMPLES], other[REQUESTS][SAMPLES];

static void answers_have_the_form_in_every_batch(void **state) {
  static const struct {
    int64_t batch;
    int draft;
  } WAYS[] = {{4, 0}, {12, 0}, {3, 3}};
  rf_constraint *form = constraint_of(RF_TEXT_SCHEMA, SCHEMA);
  (void)state;
  answer_all(1, 0, form, alone);
  for (int i = 0; i < REQUESTS; i += 2)
    for (int k = 0; k < SAMPLES; k++) {
      json_t *json = json_loads(alone[i][k].text, 0, NULL);
      assert_int_equal(alone[i][k].finish, RF_FINISH_STOP);
      if (!json) fail_msg("not JSON: %s", alone[i][k].text);
      assert_true(json_string_length(json_object_get(json, "name")) <= 8 * 4);
      assert_true(json_array_size(json_object_get(json, "sizes")) <= 3);
      json_decref(json);
    }
  assert_string_not_equal(alone[0][0].text, alone[0][1].text);
  for (size_t w = 0; w < sizeof WAYS / sizeof *WAYS; w++) {
    answer_all(WAYS[w].batch, WAYS[w].draft, form, other);
    assert_memory_equal(alone, other, sizeof alone);
  }
  rf_constraint_release(form);
}

/* The end id is allowed where the text may end. If nothing else may follow, no option bars it. */
static void end_ids_follow_the_form(void **state) {
  static const int32_t ENDS[] = {END};
  rf_constraint *form = constraint_of(RF_TEXT_REGEX, "ab{1,3}");
  rf_sampler_options o = {
      .eos = ENDS, .eos_count = 1, .ignore_eos = true, .min_tokens = 50, .constraint = form};
  float logits[VOCAB] = {0};
  rf_sampler sampler;
  rf_logprobs logprobs = {.wanted = 0};
  int32_t id;
  (void)state;
  logits['x'] = 9;
  logits[END] = 5;
  assert_true(rf_sampler_adjusts(&o));
  for (int ignores = 1; ignores >= 0; ignores--) {
    static const char *const EXPECTED[] = {"ab", "abbb"};
    o.ignore_eos = ignores;
    o.min_tokens = ignores ? 50 : 0;
    assert_int_equal(rf_sampler_open(&o, VOCAB, &sampler, NULL), RAFTER_OK);
    for (size_t i = 0; i <= strlen(EXPECTED[ignores]); i++) {
      assert_int_equal(rf_sampler_choose(&sampler, logits, (int64_t)i, &id, &logprobs, NULL), RAFTER_OK);
      assert_int_equal(id, EXPECTED[ignores][i] ? EXPECTED[ignores][i] : END);
      assert_true(logprobs.logprob < -1); /* of the row before any token was barred */
      assert_int_equal(rf_sampler_accept(&sampler, id, NULL), RAFTER_OK);
    }
    rf_sampler_close(&sampler);
  }
  o.eos_count = 0;
  assert_int_equal(rf_sampler_open(&o, VOCAB, &sampler, NULL), RAFTER_INVALID);
  o.eos_count = 1;
  assert_int_equal(rf_sampler_open(&o, VOCAB + 1, &sampler, NULL), RAFTER_INVALID);
  rf_constraint_release(form);
}

static int open_all(void **state) {
  (void)state;
  if (rf_tokenizer_byte("tiny", VOCAB, &tokenizer, NULL) != RAFTER_OK) return -1;
  constraints = rf_constraints_open(tokenizer, VOCAB);
  if (rf_machine_find("a5000", &machine, NULL) != RAFTER_OK) return -1;
  machine.memory_bytes = 8e9;
  return 0;
}

static int close_all(void **state) {
  (void)state;
  rf_constraints_close(constraints);
  rf_tokenizer_close(tokenizer);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(answers_have_the_form_in_every_batch),
      cmocka_unit_test(end_ids_follow_the_form),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
