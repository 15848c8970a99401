/* test_losses.c - advantages and weights of the rows of the table of losses, against numbers
 * computed by hand from the formulas of losses.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "rl/losses.h"

enum { ANSWERS = 4, LONGEST = 3 };

/* Two groups of two answers. Lengths 1, 3, 2, 2. Rewards 1, 0 and 0.5, 0.5. */
typedef struct step {
  rf_judged answer[ANSWERS];
  float old[ANSWERS][LONGEST], reference[ANSWERS][LONGEST], advantages[ANSWERS][LONGEST];
} step;

static const int64_t LENGTHS[ANSWERS] = {1, 3, 2, 2};
static const double REWARDS[ANSWERS] = {1, 0, 0.5, 0.5};

static const rf_rl_loss *loss_of(const char *name) {
  const rf_rl_loss *loss = RF_RL_LOSSES;
  while (loss->name && strcmp(loss->name, name) != 0) loss++;
  assert_non_null(loss->name);
  return loss;
}

static int64_t judge(const char *name, double beta, bool reference, int masked, step *s) {
  memset(s, 0, sizeof *s);
  for (int i = 0; i < ANSWERS; i++) {
    for (int t = 0; t < LONGEST; t++) {
      s->old[i][t] = -1.0f;
      s->reference[i][t] = -1.0f - 0.25f * (float)i;
    }
    s->answer[i] = (rf_judged){.reward = REWARDS[i],
                               .tokens = LENGTHS[i],
                               .masked = i == masked,
                               .old_logprobs = s->old[i],
                               .reference_logprobs = reference ? s->reference[i] : NULL,
                               .advantages = s->advantages[i]};
  }
  return rf_rl_judge(loss_of(name), beta, LONGEST, s->answer, ANSWERS, 2);
}

static void near(double got, double want) {
  if (fabs(got - want) > 1e-6 * (1 + fabs(want))) fail_msg("expected %.9g, got %.9g", want, got);
}

static void grpo_scales_by_the_deviation(void **state) {
  (void)state;
  step s;
  /* the second group has no signal */
  assert_int_equal(judge("grpo", 0, false, -1, &s), 1);
  near((double)s.answer[0].advantage, 0.5 / (sqrt(0.5) + 1e-4));
  near((double)s.answer[1].advantage, -0.5 / (sqrt(0.5) + 1e-4));
  for (int t = 0; t < 3; t++) near((double)s.advantages[1][t], (double)s.answer[1].advantage);
  assert_true(s.answer[2].advantage == 0 && s.answer[3].advantage == 0);
  for (int i = 0; i < ANSWERS; i++) near((double)s.answer[i].weight, 1.0 / (4.0 * (double)LENGTHS[i]));
}

static void dr_grpo_has_no_normalisation_by_spread_or_length(void **state) {
  (void)state;
  step s;
  judge("dr-grpo", 0, false, -1, &s);
  near((double)s.answer[0].advantage, 0.5);
  near((double)s.answer[1].advantage, -0.5);
  for (int i = 0; i < ANSWERS; i++) near((double)s.answer[i].weight, 1.0 / (4 * LONGEST));
}

static void dapo_and_cispo_weigh_all_tokens_of_the_step_alike(void **state) {
  (void)state;
  static const char *const names[] = {"dapo", "cispo"};
  for (int n = 0; n < 2; n++) {
    step s;
    judge(names[n], 0, false, -1, &s);
    near((double)s.answer[0].advantage, 0.5 / (sqrt(0.5) + 1e-4));
    for (int i = 0; i < ANSWERS; i++) near((double)s.answer[i].weight, 1.0 / 8);
    judge(names[n], 0, false, 1, &s); /* the tokens of a masked answer do not count */
    near((double)s.answer[0].weight, 1.0 / 5);
    assert_true(s.answer[1].weight == 0);
  }
}

static void rloo_compares_with_the_other_answers(void **state) {
  (void)state;
  step s;
  judge("rloo", 0, false, -1, &s);
  near((double)s.answer[0].advantage, 1.0); /* 1 - the reward of the other answer */
  near((double)s.answer[1].advantage, -1.0);
  /* with a reference, the reward of answer i is reduced by beta * tokens * 0.25 i */
  judge("rloo", 0.5, true, -1, &s);
  near((double)s.answer[0].advantage, 1.0 - (0 - 0.5 * 3 * 0.25));
  near((double)s.answer[2].advantage, (0.5 - 0.5 * 2 * 0.5) - (0.5 - 0.5 * 2 * 0.75));
}

static void reinforce_normalises_over_all_tokens(void **state) {
  (void)state;
  step s;
  judge("reinforce++", 0, false, -1, &s);
  /* tokens have the rewards 1, 0 0 0, 0.5 0.5, 0.5 0.5 */
  const double mean = 3.0 / 8, squares = 0.625 * 0.625 + 3 * 0.375 * 0.375 + 4 * 0.125 * 0.125,
               spread = sqrt(squares / 7) + 1e-4;
  near((double)s.advantages[0][0], (1 - mean) / spread);
  near((double)s.advantages[1][2], (0 - mean) / spread);
  near((double)s.advantages[3][1], (0.5 - mean) / spread);
  /* the KL divergence counts from each token on: later tokens of answer 1 lose less */
  judge("reinforce++", 1, true, -1, &s);
  near((double)(s.advantages[1][1] - s.advantages[1][0]), (double)(s.advantages[1][2] - s.advantages[1][1]));
  assert_true(s.advantages[1][0] < s.advantages[1][1]);
}

/* An answer without tokens has no part in the loss and no division by zero. */
static void empty_answers_have_no_weight(void **state) {
  (void)state;
  for (const rf_rl_loss *loss = RF_RL_LOSSES; loss->name; loss++) {
    step s = {0};
    for (int i = 0; i < ANSWERS; i++)
      s.answer[i] = (rf_judged){.reward = i, .masked = true, .advantages = s.advantages[i]};
    rf_rl_judge(loss, 0, LONGEST, s.answer, ANSWERS, 2);
    for (int i = 0; i < ANSWERS; i++) {
      assert_true(s.answer[i].weight == 0);
      assert_true(isfinite(s.answer[i].advantage));
    }
  }
}

/* The default of the option --loss, and the names that it takes. */
static void the_names_are_those_of_the_option(void **state) {
  (void)state;
  char names[200] = "";
  for (const rf_rl_loss *loss = RF_RL_LOSSES; loss->name; loss++) {
    if (*names) strcat(names, "|");
    strcat(names, loss->name);
  }
  assert_string_equal(names, RF_RL_LOSS_NAMES);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(grpo_scales_by_the_deviation),
      cmocka_unit_test(dr_grpo_has_no_normalisation_by_spread_or_length),
      cmocka_unit_test(dapo_and_cispo_weigh_all_tokens_of_the_step_alike),
      cmocka_unit_test(rloo_compares_with_the_other_answers),
      cmocka_unit_test(reinforce_normalises_over_all_tokens),
      cmocka_unit_test(empty_answers_have_no_weight),
      cmocka_unit_test(the_names_are_those_of_the_option),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
