/* test_draft.c - drafts repeat the text after an earlier occurrence of its last tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "generate/draft.h"
#include "generate/generate.h"
#include "generate/speculate.h"

enum { TEXT = 60, DRAFT = 7 };

/* The obvious definition: of all earlier positions, the one with the most common tokens before it,
 * and of these the latest. */
static int slow_lookup(const int32_t *text, int count, int32_t *draft, int *match) {
  int from = 0;
  *match = 0;
  for (int end = 1; end < count; end++) { /* text[0 ... end - 1] must end like the text */
    int common = 0;
    while (common < RF_DRAFT_MAX_MATCH && common < end && text[end - 1 - common] == text[count - 1 - common])
      common++;
    if (common < RF_DRAFT_MIN_MATCH || common < *match) continue;
    *match = common;
    from = end;
  }
  if (!*match) return 0;
  int32_t all[TEXT + DRAFT];
  memcpy(all, text, (size_t)count * sizeof *all);
  for (int i = 0; i < DRAFT; i++) draft[1 + i] = all[count + i] = all[from + i];
  return DRAFT;
}

static void drafts_follow_the_longest_and_latest_match(void **state) {
  (void)state;
  int found = 0;
  for (int number = 0; number < 20000; number++) {
    int32_t text[TEXT], want[1 + DRAFT], got[1 + DRAFT];
    uint32_t words[4];
    rf_philox(number, 7, 7, words);
    int count = 1 + (int)(words[0] % (TEXT - 1)), ids = 2 + (int)(words[1] % 9), match, expected;
    for (int i = 0; i < count; i++) {
      rf_philox((uint64_t)number, (uint64_t)i, 8, words);
      text[i] = (int32_t)(words[0] % (uint32_t)ids);
    }
    want[0] = got[0] = text[count - 1];
    int n = slow_lookup(text, count, want, &expected);
    assert_int_equal(rf_draft_lookup(text, count - 1, got, DRAFT, &match), n);
    assert_int_equal(match, expected);
    if (n) assert_memory_equal(want, got, sizeof want);
    found += n > 0;
  }
  assert_true(found > 10000 && found < 20000);
}

static void chances_follow_what_happened(void **state) {
  (void)state;
  rf_draft_odds all = {0}, good = {.match = 3}, bad = {.match = 3};
  assert_true(rf_draft_chance(&all, &good, 3) == 0.5);
  for (int i = 0; i < 100; i++) {
    rf_draft_learn(&good, 4, 4, 0.95);
    rf_draft_learn(&bad, 4, 0, 0.95);
  }
  assert_true(rf_draft_chance(&all, &good, 3) > 0.95 && rf_draft_chance(&all, &bad, 3) < 0.05);
  assert_true(rf_draft_chance(&all, &good, 2) == 0.5); /* drafts with other matches say nothing */
  rf_draft_odds half = {.match = 2}, none = {0};
  for (int i = 0; i < 100; i++) rf_draft_learn(&half, 1, i % 2, 0.95); /* right every other time */
  assert_true(rf_draft_chance(&all, &half, 2) > 0.4 && rf_draft_chance(&all, &half, 2) < 0.6);
  /* A new answer begins with the chances of the answers before it. */
  assert_true(rf_draft_chance(&bad, &none, 3) < 0.1 && rf_draft_chance(&good, &none, 3) > 0.9);
}

/* Answers whose drafts are right with the chance `right`, on a machine where a pass with n rows
 * takes as long as 1 + slope * (n - 1) passes with one row, whatever the plan says. Each answer has
 * `tokens` tokens. Returns tokens per second / tokens per second without drafts. */
static double gain_of(const rf_plan *decode, int answers, int tokens, double right, double slope) {
  static const int32_t text[] = {1, 2, 3, 1, 2, 3, 1, 2, 3};
  rf_draft_plan *plan = NULL;
  rf_error error;
  double seconds = 0, total = 0;
  assert_int_equal(rf_draft_plan_open(decode, 1, DRAFT, false, &plan, &error), RAFTER_OK);
  for (int a = 0; a < answers; a++) {
    rf_draft_odds odds = {0};
    for (int count = 0; count < tokens;) {
      int32_t draft[1 + DRAFT] = {1};
      uint32_t words[4];
      int left = tokens - count - 1, accepted = 0;
      rf_draft_begin(plan, 1);
      rf_draft_propose(plan, 0, text, 9, draft, left < DRAFT ? left : DRAFT, &odds, 10);
      rf_draft_choose(plan);
      int drafted = rf_draft_count(plan, 0);
      rf_draft_measured(plan, 1e-3 * (1 + slope * drafted));
      seconds += 1 + slope * drafted;
      for (; accepted < drafted; accepted++) {
        rf_philox((uint64_t)a, (uint64_t)(count + accepted), 9, words);
        if (words[0] >= right * 0x1p32) break;
      }
      if (drafted) rf_draft_settle(plan, 0, accepted);
      count += 1 + accepted;
      total += 1 + accepted;
    }
  }
  rf_draft_plan_close(plan);
  return total / seconds;
}

static void drafts_never_cost_much(void **state) {
  (void)state;
  static const struct {
    int answers, tokens;
    double right, slope, gain;
  } rows[] =
      {
          {1, 300, 0, 0.02, 0.99},  {1, 300, 0, 0.2, 0.99},    {1, 300, 0, 1, 0.99},
          {20, 50, 0, 0.02, 0.99},  {20, 50, 0, 0.2, 0.99},    {20, 50, 0, 1, 0.99},
          {1, 300, 0.1, 0.2, 0.99}, {1, 2000, 0.3, 0.02, 1.1}, {1, 2000, 0.3, 0.2, 0.99},
          {1, 2000, 0.3, 1, 0.99},  {1, 200, 1, 0.02, 5}, /* at most 8 tokens in 1.14 passes */
          {1, 200, 1, 0.2, 2.5},                          /* at most 8 tokens in 2.4 passes */
          {1, 400, 0.7, 0.2, 1.4},  {20, 50, 0.7, 0.2, 1.4},
      };
  rf_infer_settings s = {0};
  rf_machine machine = {0};
  rf_plan *prefill = NULL, *decode = NULL;
  rf_error error = {0};
  if (rf_machine_detect(&machine, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(
      rf_model_resolve("gpt:layers=2,width=48,heads=3,ff=160,vocab=203,seq=96", &s.model, NULL, &error),
      RAFTER_OK);
  s.plan = (rf_plan_options){
      .build = {.job = RF_JOB_GENERATE, .softmax = RF_F32, .microbatch = 1, .seq = 96, .draft = DRAFT},
      .backend = &RF_BACKEND_CPU,
      .isa = rf_isa_detect(),
      .threads = 1,
      .machine = &machine};
  assert_int_equal(rf_generate_plans(&s, &prefill, &decode, &error), RAFTER_OK);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    double gain = gain_of(decode, rows[i].answers, rows[i].tokens, rows[i].right, rows[i].slope);
    if (gain < rows[i].gain) fail_msg("row %d: expected %g, got %g", (int)i, rows[i].gain, gain);
  }
  rf_plan_free(prefill);
  rf_plan_free(decode);
}

/* The sum of the powers of the acceptance, in the closed form of the paper. */
static void tokens_of_a_pass(void **state) {
  (void)state;
  for (int n = 0; n < 20; n++)
    for (double a = 0; a < 1; a += 0.125)
      assert_true(fabs(rf_speculation_tokens(a, n) - (1 - pow(a, n + 1)) / (1 - a)) < 1e-12);
  assert_true(rf_speculation_tokens(1, 7) == 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(drafts_follow_the_longest_and_latest_match),
      cmocka_unit_test(chances_follow_what_happened),
      cmocka_unit_test(drafts_never_cost_much),
      cmocka_unit_test(tokens_of_a_pass),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
