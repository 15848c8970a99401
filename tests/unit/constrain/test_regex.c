/* Regular expressions as automata, compared with PCRE2. */
#include "forms.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* ---- random expressions ---------------------------------------------------------------------- */

typedef struct writer {
  uint64_t seed;
  uint32_t drawn;
  char text[400];
} writer;

static uint32_t draw(writer *w, uint32_t below) {
  uint32_t words[4];
  rf_philox(w->seed, w->drawn++, 0, words);
  return words[0] % below;
}

static void put(writer *w, const char *text) { strncat(w->text, text, sizeof w->text - strlen(w->text) - 1); }

static void write_either(writer *w, int depth);

static void write_one(writer *w, int depth) {
  static const char *const ONES[] = {"a", "b", "c", "[ab]", "[^a]", ".", "\\w", "[a-b]", "\\x62", "é"};
  static const char *const COUNTS[] = {"", "", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "{1,3}"};
  if (depth < 3 && draw(w, 3) == 0) {
    put(w, draw(w, 2) ? "(" : "(?:");
    write_either(w, depth + 1);
    put(w, ")");
  } else put(w, ONES[draw(w, 10)]);
  put(w, COUNTS[draw(w, 12)]);
}

static void write_either(writer *w, int depth) {
  uint32_t alternatives = 1 + draw(w, 3) / 2;
  for (uint32_t i = 0; i < alternatives; i++) {
    if (i) put(w, "|");
    for (uint32_t k = draw(w, 4); k > 0; k--) write_one(w, depth);
  }
}

/* ---- comparison ------------------------------------------------------------------------------ */

/* Matches as an automaton: pcre2_match gives up a repeated group that matched nothing. */
static bool matches(const pcre2_code *code, pcre2_match_data *data, const char *text) {
  int work[20000], found = pcre2_dfa_match(code, (PCRE2_SPTR)text, strlen(text), 0, PCRE2_ANCHORED, data,
                                           NULL, work, 20000);
  if (found < 0 && found != PCRE2_ERROR_NOMATCH) fail_msg("PCRE2: error %d", found);
  return found >= 0;
}

static pcre2_code *compile(const char *regex) {
  int number;
  size_t at;
  char whole[500];
  snprintf(whole, sizeof whole, "(?:%s)\\z", regex);
  return pcre2_compile((PCRE2_SPTR)whole, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &number, &at, NULL);
}

/* Finds a text from a state to an end, shortest first, by brute force over `letters`. */
static bool completes(rf_automaton *a, int32_t state, char *text, size_t bytes, int more) {
  static const char LETTERS[] = "abc\xc3\xa9";
  text[bytes] = 0;
  if (rf_automaton_at(a, state)->ends) return true;
  for (size_t i = 0; more && i < sizeof LETTERS - 1; i++) {
    int32_t next = form_after(a, text, bytes);
    text[bytes] = LETTERS[i];
    if (next <= 0 || rf_automaton_step(a, next, a->grammar.class_of[(uint8_t)LETTERS[i]], &next) || next <= 0)
      continue;
    if (completes(a, next, text, bytes + 1, more - 1)) return true;
    text[bytes] = 0;
  }
  return false;
}

static void compare(const char *regex, rf_automaton *a, const pcre2_code *code, int *completed) {
  static const char *const LETTERS[] = {"a", "b", "c", "\xc3\xa9"};
  pcre2_match_data *data = pcre2_match_data_create(4, NULL);
  for (int length = 0; length <= 5; length++)
    for (int n = 0; n < 1 << (2 * length); n++) {
      char text[64] = "", longer[64];
      for (int i = 0; i < length; i++) strcat(text, LETTERS[n >> (2 * i) & 3]);
      bool is = matches(code, data, text), ours = form_allows(a, text);
      if (is != ours) fail_msg("%s and \"%s\": PCRE2 says %d, the automaton %d", regex, text, is, ours);
      int32_t state = form_after(a, text, strlen(text));
      if (length > 2 || state <= 0) continue;
      strcpy(longer, text);
      if (!completes(a, state, longer, strlen(longer), 8)) continue; /* needs more than 8 bytes */
      if (!matches(code, data, longer)) fail_msg("%s: \"%s\" was completed to \"%s\"", regex, text, longer);
      ++*completed;
    }
  pcre2_match_data_free(data);
}

static void random_expressions_agree_with_pcre2(void **state) {
  int completed = 0;
  (void)state;
  for (uint64_t seed = 0; seed < 400; seed++) {
    writer w = {.seed = seed};
    rf_automaton a;
    rf_error error = {0};
    write_either(&w, 0);
    pcre2_code *code = compile(w.text);
    assert_non_null(code);
    if (form_open(w.text, RF_TEXT_REGEX, &a, &error) != RAFTER_OK) fail_msg("%s: %s", w.text, error.message);
    compare(w.text, &a, code, &completed);
    rf_automaton_close(&a);
    pcre2_code_free(code);
  }
  assert_true(completed > 1000);
}

/* Every place of a class and escape, compared on all characters up to U+2FF and some others. */
static void classes_agree_with_pcre2(void **state) {
  static const char *const CLASSES[] = {"\\d",
                                        "\\D",
                                        "\\w",
                                        "\\W",
                                        "\\s",
                                        "\\S",
                                        "[^\\w\\s]",
                                        "[\\d.,-]",
                                        ".",
                                        "[]a]",
                                        "[a-]",
                                        "[^]\\\\]",
                                        "[\\x{80}-\\x{7ff}]",
                                        "[^\\x{100}-\\x{ffff}]",
                                        "\\x{1F600}",
                                        "\\n",
                                        "\\.",
                                        "[\\n\\t]",
                                        "[é-ü]",
                                        "\\-",
                                        "\\/",
                                        "[\\b]"};
  (void)state;
  for (size_t i = 0; i < sizeof CLASSES / sizeof *CLASSES; i++) {
    rf_automaton a;
    pcre2_code *code = compile(CLASSES[i]);
    pcre2_match_data *data = pcre2_match_data_create(4, NULL);
    assert_int_equal(form_open(CLASSES[i], RF_TEXT_REGEX, &a, NULL), RAFTER_OK);
    for (uint32_t c = 1; c < 0x110000; c += c < 0x300 ? 1 : 0x1f7) {
      char text[5] = "";
      if (c >= 0xd800 && c < 0xe000) continue;
      if (c < 0x80) text[0] = (char)c;
      else if (c < 0x800) snprintf(text, 5, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
      else if (c < 0x10000)
        snprintf(text, 5, "%c%c%c", 0xe0 | c >> 12, 0x80 | (c >> 6 & 63), 0x80 | (c & 63));
      else
        snprintf(text, 5, "%c%c%c%c", 0xf0 | c >> 18, 0x80 | (c >> 12 & 63), 0x80 | (c >> 6 & 63),
                 0x80 | (c & 63));
      if (matches(code, data, text) != form_allows(&a, text)) fail_msg("%s and U+%04X", CLASSES[i], c);
    }
    assert_false(form_allows(&a, "\xc3"));
    assert_false(form_allows(&a, "\xed\xa0\x80"));
    rf_automaton_close(&a);
    pcre2_match_data_free(data);
    pcre2_code_free(code);
  }
}

static void refused_parts_are_named(void **state) {
  static const char *const WRONG[][2] = {
      {"(?=a)", "lookahead"},
      {"(?!a)", "lookahead"},
      {"(?<=a)b", "lookbehind"},
      {"(?<!a)b", "lookbehind"},
      {"(a)\\1", "backreferences"},
      {"\\bfoo", "assertion"},
      {"\\p{L}", "properties"},
      {"(?i)a", "group"},
      {"a++", "possessive"},
      {"[[:alpha:]]", "POSIX"},
      {"a$b", "anchors"},
      {"(^a)", "anchors"},
      {"a{3,2}", "range"},
      {"a**", "quantifier"},
      {"*a", "quantifier"},
      {"(a", "no )"},
      {"a)", "no ("},
      {"[a", "no ]"},
      {"[b-a]", "order"},
      {"\\", "ends with"},
      {"\xff", "UTF-8"},
      {"a{99999}", "range"},
      {"\\x{d800}", "character"},
      {"\\y", "unknown"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
    rf_automaton a;
    rf_error error = {0};
    if (form_open(WRONG[i][0], RF_TEXT_REGEX, &a, &error) != RAFTER_INVALID)
      fail_msg("%s was accepted", WRONG[i][0]);
    if (!strstr(error.message, WRONG[i][1])) fail_msg("%s: %s", WRONG[i][0], error.message);
    rf_automaton_close(&a);
  }
}

static void explosions_are_refused(void **state) {
  static const char *const LARGE[] = {"((a{1,1000}){1,1000}){1,1000}", "(((((a{99}){99}){99}){99}){99}){99}",
                                      "(.{1,200}){1,200}", "(a|b|[^c]){60000}"};
  rf_automaton a;
  rf_error error = {0};
  (void)state;
  for (size_t i = 0; i < sizeof LARGE / sizeof *LARGE; i++) {
    assert_int_equal(form_open(LARGE[i], RF_TEXT_REGEX, &a, &error), RAFTER_INVALID);
    assert_non_null(strstr(error.message, "too large"));
    rf_automaton_close(&a);
  }
  char deep[1001] = "";
  memset(deep, '(', 1000);
  assert_int_equal(form_open(deep, RF_TEXT_REGEX, &a, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "nested"));
  assert_int_equal(form_open("[^\\x00-\\x{10ffff}]", RF_TEXT_REGEX, &a, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "no text"));
}

/* More states than fit: a new generation gives the same answers. */
static void states_move_to_a_new_generation(void **state) {
  static char text[40001];
  rf_automaton a;
  int32_t at, other;
  int moves = 0;
  (void)state;
  assert_int_equal(form_open("xa{1,20000}y", RF_TEXT_REGEX, &a, NULL), RAFTER_OK);
  memset(text, 'a', 12000);
  text[0] = 'x';
  other = form_after(&a, "xaa", 3);
  at = a.start;
  for (int i = 0; i < 12000; i++) {
    int class = a.grammar.class_of[(uint8_t)text[i]];
    if (rf_automaton_step(&a, at, class, &at) == RF_AUTOMATON_OK) continue;
    rf_automaton_move(&a);
    assert_int_equal(rf_automaton_keep(&a, &at), RF_AUTOMATON_OK);
    assert_int_equal(rf_automaton_keep(&a, &other), RF_AUTOMATON_OK);
    assert_int_equal(rf_automaton_step(&a, at, class, &at), RF_AUTOMATON_OK);
    moves++;
  }
  assert_true(moves > 0);
  assert_int_equal(rf_automaton_step(&a, at, a.grammar.class_of['y'], &at), RF_AUTOMATON_OK);
  assert_true(rf_automaton_at(&a, at)->ends);
  assert_int_equal(rf_automaton_step(&a, other, a.grammar.class_of['y'], &other), RF_AUTOMATON_OK);
  assert_true(rf_automaton_at(&a, other)->ends);
  assert_true(form_allows(&a, "xay"));
  assert_false(form_allows(&a, "xy"));
  rf_automaton_close(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_expressions_agree_with_pcre2),
      cmocka_unit_test(classes_agree_with_pcre2),
      cmocka_unit_test(refused_parts_are_named),
      cmocka_unit_test(explosions_are_refused),
      cmocka_unit_test(states_move_to_a_new_generation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
