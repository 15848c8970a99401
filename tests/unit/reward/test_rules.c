/* test_rules.c - the built-in rewards: values of given answers, and lists that are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "reward/number.h"
#include "reward/pattern.h"
#include "reward/reward.h"
#include "support/rewards.h"

static rf_rewards *open_list(const char *list) {
  rf_rewards *rewards = NULL;
  rf_error error = {0};
  if (rf_rewards_open(&(rf_reward_options){.list = &list, .lists = 1}, &rewards, &error) != RAFTER_OK)
    fail_msg("%s: %s", list, error.message);
  return rewards;
}

/* The reward of one answer. */
static double value_of(const char *list, const rf_reward_row *row) {
  double total, parts[RF_REWARDS];
  rf_error error = {0};
  rf_rewards *rewards = open_list(list);
  if (rewards_score(rewards, row, 1, &total, parts, &error) != RAFTER_OK)
    fail_msg("%s: %s", list, error.message);
  rf_rewards_close(rewards);
  return total;
}

static double of(const char *list, const char *answer, const char *reference) {
  return value_of(
      list, &(rf_reward_row){.id = "7", .answer = answer, .bytes = strlen(answer), .reference = reference});
}

static void texts(void **state) {
  (void)state;
  assert_true(of("exact", " \n42\t", "42 ") == 1);
  assert_true(of("exact", "42.", "42") == 0);
  assert_true(of("exact", "", "  ") == 1);
  assert_true(of("contains", "it is Paris, I think", " Paris\n") == 1);
  assert_true(of("contains", "it is paris", "Paris") == 0);
  assert_true(of("contains=so\\, then", "and so, then", NULL) == 1);
  assert_true(of("contains=a\\:5", "a:5", NULL) == 1);
  assert_true(of("contains=a\\\\b", "a\\\\b", NULL) == 1);
  const char bytes[] = {'a', 0, 'b', (char)0xff};
  assert_true(value_of("contains=b", &(rf_reward_row){.answer = bytes, .bytes = 4}) == 1);
  assert_true(value_of("regex=^a.b", &(rf_reward_row){.answer = bytes, .bytes = 4}) == 1);
  assert_true(of("regex=^\\d{2\\,3}$", "123", NULL) == 1);
  assert_true(of("regex=^\\d{2\\,3}$:0.5", "12", NULL) == 0.5);
  assert_true(of("regex=^\\d{2\\,3}$", "1", NULL) == 0);
  assert_true(of("regex=(?:x|y)", "ay", NULL) == 1);
  assert_true(of("regex=^.$", "\xc3\xa4", NULL) == 1); /* one character of two bytes */
}

static void numbers(void **state) {
  (void)state;
  assert_true(of("number", "first 3, then 1,234.50", "so #### 1234.5") == 1);
  assert_true(of("number", "#### 3\nthat is 4", "3") == 0);
  assert_true(of("gsm8k", "#### 3\nthat is 4", "x 9\n#### 3") == 1);
  assert_true(of("gsm8k", "it is 3", "x 9\n#### 3") == 1);
  assert_true(of("gsm8k", "#### none", "#### 3") == 0);
  assert_true(of("gsm8k", "", "#### 3") == 0);
  assert_true(of("gsm8k", "5-3 = #### -2", "#### -2") == 1);
  assert_true(of("number", "10-2", "2") == 1); /* a minus between numbers is not a sign */
}

#define D70 "1234567890123456789012345678901234567890123456789012345678901234567890"
static void forms_of_numbers(void **state) {
  (void)state;
  static const struct {
    const char *answer, *right;
    double reward;
  } CASES[] = {{"-5", "1e-05", 0},
               {"0.00001", "1e-05", 1},
               {"22", "1e22", 0},
               {".5", "5", 0},
               {".5", "0.5", 1},
               {"0.50", ".5", 1},
               {"-$3", "-3", 1},
               {"$-3", "-3", 1},
               {"\xe2\x88\x92"
                "3",
                "-3", 1},
               {"1,2,3", "3", 1},
               {"1,2,3", "123", 0},
               {"12,345,678", "12345678", 1},
               {"$1,000.00", "1000", 1},
               {"50%", "50", 1},
               {"x.5", "5", 1},
               {"007", "7", 1},
               {"-0", "0", 1},
               {"10-3=7", "7", 1},
               {"12345678901234567890", "12345678901234567891", 0},
               {D70 "1", D70 "2", 0},
               {D70 "1", D70 "1.0", 1}};
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
    if (of("number", CASES[i].answer, CASES[i].right) != CASES[i].reward)
      fail_msg("%s for %s", CASES[i].answer, CASES[i].right);
}

/* The numbers that the evaluation of GSM8K finds. */
static void final_numbers(void **state) {
  (void)state;
  static const struct {
    const char *text, *number;
    bool marked;
  } CASES[] = {{"#### 1,000 and 5", "1000", true}, {"1 #### x 2 3", "2", true}, {"1 #### none", "1", false},
               {"a 7 b 8.25.", "8.25", false},     {"none", NULL, false},       {"####", NULL, false}};
  rf_numbers *n = NULL;
  assert_int_equal(rf_numbers_open(&n, NULL), RAFTER_OK);
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    char number[RF_NUMBER_BYTES];
    bool marked;
    bool found = rf_numbers_final(n, CASES[i].text, strlen(CASES[i].text), &marked, number);
    assert_true(found == (CASES[i].number != NULL));
    assert_true(marked == CASES[i].marked);
    if (found) assert_string_equal(number, CASES[i].number);
  }
  char number[RF_NUMBER_BYTES], longest[2 * RF_NUMBER_BYTES];
  memset(longest, '7', sizeof longest);
  assert_false(rf_numbers_last(n, longest, sizeof longest, number));
  assert_true(rf_numbers_last(n, longest, RF_NUMBER_BYTES - 1, number));
  assert_false(rf_numbers_last(n, longest, RF_NUMBER_BYTES, number));
  rf_numbers_close(n);
}

static void formats(void **state) {
  (void)state;
  assert_true(of("format", " <think>a</think>\n\n<answer> b </answer>\n", NULL) == 1);
  assert_true(of("format", "<think></think><answer></answer>", NULL) == 1);
  static const char *const WRONG[] = {"",
                                      "b",
                                      "<think>a</think>",
                                      "<answer>b</answer><think>a</think>",
                                      "<think>a</think>x<answer>b</answer>",
                                      "<think>a</think><answer>b</answer>x",
                                      "x<think>a</think><answer>b</answer>",
                                      "<think>a<think></think><answer>b</answer>",
                                      "<think>a</think></think><answer>b</answer>",
                                      "<think>a</think><answer>b</answer><answer>c</answer>",
                                      "<think><answer>b</answer></think>",
                                      "<think>a</think><answer>b",
                                      "</think><think><answer>b</answer>"};
  for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++)
    if (of("format", WRONG[i], NULL) != 0) fail_msg("%s", WRONG[i]);
  assert_true(of("format=answer", "<answer>b</answer>", NULL) == 1);
  assert_true(of("format=a+b-2+c_3", "<a>1</a> <b-2>2</b-2> <c_3>3</c_3>", NULL) == 1);
  /* a chat template wrote the first tag */
  const char *inside = "a</think><answer>b</answer>";
  rf_reward_row row = {.prompt = "Q\n<think>\n", .answer = inside, .bytes = strlen(inside)};
  assert_true(value_of("format", &row) == 1);
  row.prompt = "<think> Q";
  assert_true(value_of("format", &row) == 0);
}

static void lengths(void **state) {
  (void)state;
  static const struct {
    int64_t tokens;
    double value;
  } CASES[] = {{0, 1}, {100, 1}, {125, 0.75}, {150, 0.5}, {200, 0}, {1000, 0}};
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
    assert_true(value_of("length=100", &(rf_reward_row){.answer = "", .tokens = CASES[i].tokens}) ==
                CASES[i].value);
}

static void sums(void **state) {
  (void)state;
  const char *lists[] = {"gsm8k:2,format=answer:-0.5", "regex=7:0.25,regex=8"};
  const char *answer = "<answer>#### 7</answer>";
  rf_rewards *r = NULL;
  double total[2], parts[2 * RF_REWARDS];
  const rf_reward_row rows[] = {{.answer = answer, .bytes = strlen(answer), .reference = "7"},
                                {.answer = "8", .bytes = 1, .reference = "7"}};
  assert_int_equal(rf_rewards_open(&(rf_reward_options){.list = lists, .lists = 2}, &r, NULL), RAFTER_OK);
  assert_int_equal(rf_rewards_count(r), 4);
  assert_string_equal(rf_rewards_name(r, 0), "gsm8k");
  assert_string_equal(rf_rewards_name(r, 1), "format");
  assert_string_equal(rf_rewards_name(r, 2), "regex");
  assert_string_equal(rf_rewards_name(r, 3), "regex-2");
  assert_true(rf_rewards_weight(r, 1) == -0.5);
  assert_int_equal(rewards_score(r, rows, 2, total, parts, NULL), RAFTER_OK);
  assert_true(total[0] == 2 - 0.5 + 0.25);
  assert_true(total[1] == 1);
  assert_true(parts[0] == 1 && parts[1] == 1 && parts[2] == 1 && parts[3] == 0 && isnan(parts[4]));
  assert_true(parts[RF_REWARDS] == 0 && parts[RF_REWARDS + 3] == 1);
  assert_int_equal(rf_rewards_pending(r), 0);
  rf_rewards_close(r);
}

static void refuse(const char *list, const char *message, const char *hint) {
  rf_rewards *rewards = NULL;
  rf_error error = {0};
  rf_status status = rf_rewards_open(&(rf_reward_options){.list = &list, .lists = 1}, &rewards, &error);
  if (status != RAFTER_INVALID || !strstr(error.message, message) || !strstr(error.hint, hint) || rewards)
    fail_msg("%s: status %d, %s (%s)", list, (int)status, error.message, error.hint);
}

static void wrong_lists(void **state) {
  (void)state;
  refuse("", "the name of a reward is missing", "");
  refuse("gsm8k,,exact", "the name of a reward is missing", "");
  refuse("gsm8", "unknown reward 'gsm8' (--reward: expected one of exact, number, gsm8k, ", "'gsm8k'");
  refuse("regex=a{1,2}", "unknown reward '2}'", "write \\, for a comma");
  refuse("format=think,answer", "unknown reward 'answer'", "");
  refuse("gsm8k:x", "the weight of a reward is not a number (--reward: expected NAME:WEIGHT", "");
  refuse("gsm8k:nan", "the weight of a reward is not a number", "");
  refuse("gsm8k:1e7", "the weight of a reward is too large", "");
  refuse("gsm8k=3", "a reward takes no argument (--reward gsm8k: got '3')", "");
  refuse("gsm8k,gsm8k:2", "the reward 'gsm8k-2' occurs twice", "");
  refuse("regex", "a reward needs an argument (--reward: expected for example regex=", "");
  refuse("regex=", "the pattern is empty", "");
  refuse("regex=a(b", "'a(b' is not a regular expression (at byte 3: missing closing parenthesis)", "PCRE2");
  refuse("regex=((a{1000}){1000}){1000}", "is not a regular expression", "");
  refuse("contains=", "the text is empty", "");
  refuse("format=a+a", "a tag occurs twice (--reward format: 'a' in 'a+a')", "");
  refuse("format=a+", "the tags are wrong", "");
  refuse("format=a b", "the tags are wrong", "");
  refuse("length", "a reward needs an argument", "");
  refuse("length=0", "the length is wrong", "");
  refuse("length=1k", "the length is wrong", "");
  refuse("command", "--reward-command is missing", "");
  rf_error error = {0};
  rf_rewards *rewards;
  assert_int_equal(rf_rewards_open(&(rf_reward_options){0}, &rewards, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "the run has no rewards"));
  char many[400] = "contains=0";
  for (int i = 1; i <= RF_REWARDS; i++) sprintf(many + strlen(many), ",contains=%d", i);
  refuse(many, "too many rewards (--reward: expected at most 32)", "");
}

static void checked_rows(void **state) {
  (void)state;
  rf_error error = {0};
  rf_rewards *r = open_list("format,contains,number");
  assert_int_equal(rf_rewards_check(r, "it is 3", "f.jsonl, line 2", &error), RAFTER_OK);
  assert_int_equal(rf_rewards_check(r, NULL, "f.jsonl, line 2", &error), RAFTER_FAILED);
  assert_string_equal(error.message,
                      "a row has no right answer (f.jsonl, line 2: the reward contains expects "
                      "the field \"answer\")");
  assert_int_equal(rf_rewards_check(r, "three", "f.jsonl, line 3", &error), RAFTER_FAILED);
  assert_string_equal(error.message, "the right answer has no number (f.jsonl, line 3, answer: the reward "
                                     "number expects one, got 'three')");
  assert_int_equal(rf_rewards_check(r, " ", "f.jsonl, line 4", &error), RAFTER_FAILED);
  assert_string_equal(
      error.message,
      "the right answer is empty (f.jsonl, line 4, answer: the reward contains expects a text, "
      "because every answer contains an empty one)");
  double total, parts[RF_REWARDS];
  assert_int_equal(rf_rewards_submit(r, &(rf_reward_row){.id = "q7", .answer = ""}, &total, parts, &error),
                   RAFTER_FAILED);
  assert_non_null(strstr(error.message, "(row q7: the reward contains"));
  rf_rewards_close(r);
  r = open_list("format,contains=x");
  assert_int_equal(rf_rewards_check(r, NULL, "f.jsonl, line 2", &error), RAFTER_OK);
  rf_rewards_close(r);
}

static void remember(void *self, const char *line) { snprintf(self, 400, "%s", line); }

/* A search that would take 2^n steps counts as no match, and is reported once. */
static void long_searches(void **state) {
  (void)state;
  const char *list = "regex=^(a+)+$";
  char answer[40] = "", line[400] = "";
  double total, parts[RF_REWARDS];
  rf_rewards *r;
  memset(answer, 'a', 38);
  assert_int_equal(
      rf_rewards_open(&(rf_reward_options){.list = &list, .lists = 1, .say = remember, .self = line}, &r,
                      NULL),
      RAFTER_OK);
  const rf_reward_row found = {.answer = answer, .bytes = 38}, endless = {.answer = answer, .bytes = 39};
  answer[38] = 'b';
  assert_int_equal(rewards_score(r, &found, 1, &total, parts, NULL), RAFTER_OK);
  assert_true(total == 1);
  assert_string_equal(line, "");
  assert_int_equal(rewards_score(r, &endless, 1, &total, parts, NULL), RAFTER_OK);
  assert_true(total == 0);
  assert_non_null(strstr(line, "reward regex: the search in an answer needed more than 2000000 steps"));
  *line = 0;
  assert_int_equal(rewards_score(r, &endless, 1, &total, parts, NULL), RAFTER_OK);
  assert_string_equal(line, "");
  rf_rewards_close(r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts),         cmocka_unit_test(numbers),     cmocka_unit_test(forms_of_numbers),
      cmocka_unit_test(final_numbers), cmocka_unit_test(formats),     cmocka_unit_test(lengths),
      cmocka_unit_test(sums),          cmocka_unit_test(wrong_lists), cmocka_unit_test(checked_rows),
      cmocka_unit_test(long_searches)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
