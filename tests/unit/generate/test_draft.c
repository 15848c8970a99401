/* test_draft.c - drafts repeat the text after an earlier occurrence of its last tokens. */
#include "generate/draft.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

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
  rf_draft_odds good = {.match = 3}, bad = {.match = 3};
  assert_true(rf_draft_chance(&good, 3) == 0.5);
  for (int i = 0; i < 100; i++) {
    rf_draft_learn(&good, 4, 4);
    rf_draft_learn(&bad, 4, 0);
  }
  assert_true(rf_draft_chance(&good, 3) > 0.95 && rf_draft_chance(&bad, 3) < 0.05);
  assert_true(rf_draft_chance(&good, 2) == 0.5); /* drafts with other matches say nothing */
  rf_draft_odds half = {.match = 2};
  for (int i = 0; i < 100; i++) rf_draft_learn(&half, 1, i % 2); /* right every other time */
  assert_true(rf_draft_chance(&half, 2) > 0.4 && rf_draft_chance(&half, 2) < 0.6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(drafts_follow_the_longest_and_latest_match),
      cmocka_unit_test(chances_follow_what_happened),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
