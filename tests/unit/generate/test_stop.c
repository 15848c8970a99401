/* test_stop.c - tests stop strings. The text that leaves a stream, split in any way, is that of a
 * plain search over the whole text. No byte is held longer than needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "generate/stop.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { MAX = 1 << 17 };

static rf_stop open_or_fail(const char *const *strings, int64_t count, bool include) {
  rf_span spans[RF_STOP_STRINGS];
  rf_stop stop;
  rf_error error;
  for (int64_t i = 0; i < count; i++) spans[i] = (rf_span){strings[i], strlen(strings[i])};
  if (rf_stop_open(&(rf_stop_options){.strings = spans, .string_count = count, .include = include}, &stop,
                   &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  return stop;
}

/* ---- the plain search ------------------------------------------------------------------------ */

/* Bytes of the text that belong to the answer; *found: the string that ended it, or -1. */
static size_t naive_end(const char *text, size_t n, const char *const *strings, int64_t count, bool include,
                        int64_t *found) {
  *found = -1;
  for (size_t end = 1; end <= n; end++)
    for (int64_t i = 0; i < count; i++) {
      size_t bytes = strlen(strings[i]);
      if (bytes > end || memcmp(text + end - bytes, strings[i], bytes)) continue;
      *found = i;
      return include ? end : end - bytes;
    }
  return n;
}

/* Bytes at the end of a text without a stop string that may be the beginning of one. */
static size_t naive_held(const char *text, size_t n, const char *const *strings, int64_t count) {
  size_t most = 0;
  for (int64_t i = 0; i < count; i++)
    for (size_t k = strlen(strings[i]) - 1; k > most; k--)
      if (k <= n && !memcmp(text + n - k, strings[i], k)) most = k;
  return most;
}

static size_t append(char *out, size_t n, const rf_stop_text *text) {
  for (int i = 0; i < 2; i++) {
    memcpy(out + n, text->released[i].at, text->released[i].bytes);
    n += text->released[i].bytes;
  }
  return n;
}

static uint32_t random_word(uint64_t seed, uint64_t i) {
  uint32_t words[4];
  rf_philox(rf_key(seed, 5, 0), i, 0, words);
  return words[0];
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void these_streams_leave_these_texts(void **state) {
  (void)state;
  static const struct {
    const char *stop[4], *pieces[8], *text, *text_included;
    int found;
  } cases[] = {
      {{"END"}, {"one", " two"}, "one two", "one two", 0},
      {{"END"}, {"one END two"}, "one ", "one END", 1},
      {{"END"}, {"one E", "N", "D two"}, "one ", "one END", 1},
      {{"END"}, {"one EN", "C", "END"}, "one ENC", "one ENCEND", 1},
      {{"END"}, {"EN"}, "EN", "EN", 0}, /* released at the end */
      {{"END"}, {"E", "E", "N", "E", "N", "D", "D"}, "EEN", "EENEND", 1},
      {{"aab"}, {"a", "a", "a", "b"}, "a", "aaab", 1},         /* the second a begins it */
      {{"abab", "ba"}, {"xab", "ab"}, "xa", "xaba", 2},        /* ends first, though it began later */
      {{"b", "ab"}, {"xab"}, "xa", "xab", 1},                  /* end together: the earlier in the list */
      {{"ab", "b"}, {"xab"}, "x", "xab", 1},                   /* */
      {{"abcdef", "cd"}, {"ab", "cde", "f"}, "ab", "abcd", 2}, /* inside another string */
      {{"\n\n", "\nUser:"}, {"yes\n", "User", ":no"}, "yes", "yes\nUser:", 2},
      {{"\xe2\x82\xac"},
       {"5 \xe2", "\x82", "\xac."},
       "5 ",
       "5 \xe2\x82\xac",
       1}, /* a character in three tokens */
      {{"\xe2\x82\xac"}, {"5 \xe2", "\x82", "\xad."}, "5 \xe2\x82\xad.", "5 \xe2\x82\xad.", 0},
      {{"x"}, {"", "x", "", "x"}, "", "x", 1},
      {{NULL}, {"no ", "strings"}, "no strings", "no strings", 0},
  };
  for (size_t i = 0; i < COUNT(cases); i++)
    for (int include = 0; include < 2; include++) {
      int64_t count = 0;
      while (count < 4 && cases[i].stop[count]) count++;
      rf_stop stop = open_or_fail(cases[i].stop, count, include);
      rf_stop_state s;
      rf_stop_text text;
      char out[64];
      size_t n = 0;
      rf_stop_start(&stop, &s);
      for (int k = 0; k < 8 && cases[i].pieces[k]; k++) {
        rf_stop_next(&s, cases[i].pieces[k], strlen(cases[i].pieces[k]), &text);
        n = append(out, n, &text);
      }
      rf_stop_end(&s, &text);
      out[append(out, n, &text)] = 0;
      if (s.found != cases[i].found || strcmp(out, include ? cases[i].text_included : cases[i].text))
        fail_msg("case %zu, include %d: left \"%s\" with string %d", i, include, out, s.found);
      rf_stop_close(&stop);
    }
}

/* A matcher that forgets everything at a mismatch. The comparison below must notice this fault. */
static size_t forgetful_end(const char *text, size_t n, const char *const *strings, int64_t count) {
  size_t matched[RF_STOP_STRINGS] = {0};
  for (size_t end = 0; end < n; end++)
    for (int64_t i = 0; i < count; i++) {
      matched[i] = strings[i][matched[i]] == text[end] ? matched[i] + 1 : 0;
      if (!strings[i][matched[i]]) return end + 1 - matched[i];
    }
  return n;
}

static void random_cuts_agree_with_a_search_of_the_whole(void **state) {
  (void)state;
  enum { CASES = 3000, LONGEST = 120 };
  int stopped = 0, forgetful = 0, late = 0;
  for (uint64_t c = 0; c < CASES; c++) {
    uint64_t at = 0, seed = 100 + c;
    char strings[8][24], text[LONGEST + 1], out[LONGEST + 1];
    const char *list[8];
    int letters = 1 + (int)(random_word(seed, at++) % 3), longest = 1 + (int)(random_word(seed, at++) % 10);
    int64_t count = random_word(seed, at++) % 9, found;
    size_t n = random_word(seed, at++) % (LONGEST + 1), cut = 1 + random_word(seed, at++) % 9;
    bool include = random_word(seed, at++) % 2;
    for (int64_t i = 0; i < count; i++) {
      size_t bytes = 1 + random_word(seed, at++) % (uint32_t)longest;
      for (size_t k = 0; k < bytes; k++)
        strings[i][k] = (char)('a' + random_word(seed, at++) % (uint32_t)(letters + (c % 2)));
      strings[i][bytes] = 0;
      list[i] = strings[i];
    }
    for (size_t k = 0; k < n; k++) text[k] = (char)('a' + random_word(seed, at++) % (uint32_t)letters);
    size_t want = naive_end(text, n, list, count, include, &found), got = 0;
    forgetful += forgetful_end(text, n, list, count) != naive_end(text, n, list, count, false, &found);
    naive_end(text, n, list, count, include, &found);

    rf_stop stop = open_or_fail(list, count, include);
    rf_stop_state s;
    rf_stop_text released;
    rf_stop_start(&stop, &s);
    for (size_t fed = 0; fed < n;) {
      size_t piece = random_word(seed, at++) % (cut + 1);
      if (piece > n - fed) piece = n - fed;
      bool done = rf_stop_next(&s, text + fed, piece, &released);
      fed += piece;
      got = append(out, got, &released);
      assert_true(got <= want);
      if (done) continue; /* The rest is dropped. */
      size_t held = naive_held(text, fed, list, count);
      if (got != fed - held)
        fail_msg("case %d: %zu of %zu bytes released (expected %zu)", (int)c, got, fed, fed - held);
      late += held > 0;
    }
    rf_stop_end(&s, &released);
    got = append(out, got, &released);
    if (s.found - 1 != found || got != want || memcmp(out, text, want))
      fail_msg("case %d: string %d after %zu bytes (expected %d after %zu)", (int)c, s.found - 1, got,
               (int)found, want);
    stopped += found >= 0;
    rf_stop_close(&stop);
  }
  print_message("%d of %d stopped, %d times text was held back; a matcher without borders is caught in %d\n",
                stopped, CASES, late, forgetful);
  assert_true(stopped > CASES / 10 && stopped < CASES && forgetful > 20 && late > CASES);
}

/* 64 strings of 256 bytes that almost match everywhere. A search that restarts at every byte would
 * take minutes. */
static void hostile_strings_take_linear_time(void **state) {
  (void)state;
  static char strings[RF_STOP_STRINGS][RF_STOP_BYTES + 1], text[MAX], out[MAX];
  const char *list[RF_STOP_STRINGS];
  for (int i = 0; i < RF_STOP_STRINGS; i++) {
    memset(strings[i], 'a', RF_STOP_BYTES);
    strings[i][RF_STOP_BYTES - 1 - i % 8] = (char)('b' + i % 5);
    strings[i][RF_STOP_BYTES] = 0;
    list[i] = strings[i];
  }
  for (size_t i = 0; i < MAX; i++) text[i] = i % 251 == 250 ? 'z' : 'a';
  rf_stop stop = open_or_fail(list, RF_STOP_STRINGS, false);
  rf_stop_state s;
  rf_stop_text released;
  rf_stop_start(&stop, &s);
  double start = rf_now_seconds();
  size_t n = 0;
  for (size_t i = 0; i < MAX; i += 4) {
    assert_false(rf_stop_next(&s, text + i, 4, &released));
    n = append(out, n, &released);
    assert_true(i + 4 - n < RF_STOP_BYTES);
  }
  rf_stop_end(&s, &released);
  n = append(out, n, &released);
  print_message("%.0f ns per byte\n", (rf_now_seconds() - start) / MAX * 1e9);
  assert_true(n == MAX && !memcmp(out, text, MAX));
  rf_stop_start(&stop, &s);
  assert_true(rf_stop_next(&s, list[40], RF_STOP_BYTES, &released));
  assert_int_equal(s.found - 1, 0); /* the first of the list with these bytes */
  rf_stop_close(&stop);
}

static void states_are_apart_and_start_anew(void **state) {
  (void)state;
  const char *list[] = {"stop"};
  rf_stop stop = open_or_fail(list, 1, false);
  rf_stop_state a, b;
  rf_stop_text text;
  rf_stop_start(&stop, &a);
  rf_stop_start(&stop, &b);
  assert_false(rf_stop_next(&a, "st", 2, &text));
  assert_false(rf_stop_next(&b, "op", 2, &text));
  assert_int_equal(text.released[0].bytes + text.released[1].bytes, 2);
  assert_true(rf_stop_next(&a, "op", 2, &text));
  assert_true(rf_stop_next(&a, "more", 4, &text) && !text.released[0].bytes && !text.released[1].bytes);
  rf_stop_start(&stop, &a);
  assert_false(rf_stop_next(&a, "op", 2, &text));
  rf_stop_close(&stop);
}

static void refusals(void **state) {
  (void)state;
  static char large[RF_STOP_BYTES + 1];
  rf_span many[RF_STOP_STRINGS + 1];
  rf_stop stop;
  rf_error error;
  for (int i = 0; i <= RF_STOP_STRINGS; i++) many[i] = (rf_span){"x", 1};
  const rf_stop_options refused[] = {
      {.strings = many, .string_count = RF_STOP_STRINGS + 1},
      {.strings = many, .string_count = -1},
      {.strings = &(rf_span){"", 0}, .string_count = 1},
      {.strings = &(rf_span){large, sizeof large}, .string_count = 1},
  };
  for (size_t i = 0; i < COUNT(refused); i++) {
    assert_int_equal(rf_stop_open(&refused[i], &stop, &error), RAFTER_INVALID);
    rf_stop_close(&stop);
  }
  assert_int_equal(
      rf_stop_open(&(rf_stop_options){.strings = many, .string_count = RF_STOP_STRINGS}, &stop, &error),
      RAFTER_OK);
  rf_stop_close(&stop);
}

/* Stop strings may contain any bytes, such as zero and values above 127. */
static void any_bytes_may_stop(void **state) {
  (void)state;
  const rf_span span = {"\0\xff", 2};
  rf_stop stop;
  rf_stop_state s;
  rf_stop_text text;
  assert_int_equal(rf_stop_open(&(rf_stop_options){.strings = &span, .string_count = 1}, &stop, NULL),
                   RAFTER_OK);
  rf_stop_start(&stop, &s);
  assert_false(rf_stop_next(&s, "a\0\0", 3, &text));
  assert_int_equal(text.released[0].bytes + text.released[1].bytes, 2);
  assert_true(rf_stop_next(&s, "\xff", 1, &text));
  rf_stop_close(&stop);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(these_streams_leave_these_texts),
      cmocka_unit_test(random_cuts_agree_with_a_search_of_the_whole),
      cmocka_unit_test(hostile_strings_take_linear_time),
      cmocka_unit_test(states_are_apart_and_start_anew),
      cmocka_unit_test(refusals),
      cmocka_unit_test(any_bytes_may_stop),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
