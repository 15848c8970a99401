/* Forms of parts: which texts they allow, which parts are refused, and bounds. */
#include "forms.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Each schema has its own root for references. */
#define LIST \
  "{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/x\"}}}}"
#define FLAG "{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"type\":\"boolean\"}}}"

static void texts_are_allowed_as_the_parts_say(void **state) {
  static const struct {
    const char *parts, *valid[6], *invalid[6];
  } rows[] = {
      {"\"a\"", {"a"}, {"", "aa", "b"}},
      {"[\"a\",\"\",\"b\"]", {"ab"}, {"a", "b", "abb"}},
      {"[\"f(\",{\"schema\":" LIST "},\")\"]", {"f([])", "f([[],[]])"}, {"f()", "f(true)", "f([]"}},
      {"{\"any\":[[\"l \",{\"schema\":" LIST "}],[\"b \",{\"schema\":" FLAG "}]]}",
       {"l [[]]", "b true", "b false"},
       {"l true", "b []", "l"}},
      {"[\"<\",{\"repeat\":{\"any\":[\"x\",{\"regex\":\"y+\"}]},\"between\":\", \"},\">\"]",
       {"<x>", "<yy, x>", "<x, x, y>"},
       {"<>", "<x,x>", "<x, >", "<, x>"}},
      {"{\"repeat\":\"ab\"}", {"ab", "abab"}, {"", "aba"}},
      {"{\"without\":\"aab\"}", {"", "aa", "aaa\x01\xff", "abab"}, {"aab", "xaaab", "aabx"}},
      {"[{\"until\":\"aab\"},\"!\"]", {"aab!", "aaab!", "ab aab!"}, {"aab", "!", "aab aab!", "ab!"}},
      {"{\"any\":[{\"without\":\"<a>\"},[{\"until\":\"<a>\"},{\"schema\":" FLAG "}]]}",
       {"", "a < b", "<<a>true", "x<a>false"},
       {"<a>", "<a>x", "<a>true.", "<a>true<a>true"}},
      {"{\"without\":\"<a>\",\"begin\":\"{\"}", {"", "  ", " <", "\n.{", "x{"}, {"{", " \n{", "<a>", " <a>"}},
      {"[{\"until\":\"<a>\",\"begin\":\"{\"},\"!\"]", {"<a>!", " x{<a>!"}, {" {<a>!", "", " <a"}},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_automaton a;
    rf_error error = {0};
    if (form_open(rows[i].parts, RF_TEXT_PARTS, &a, &error)) fail_msg("%s: %s", rows[i].parts, error.message);
    for (int k = 0; k < 6 && rows[i].valid[k]; k++)
      if (!form_allows(&a, rows[i].valid[k])) fail_msg("%s refuses %s", rows[i].parts, rows[i].valid[k]);
    for (int k = 0; k < 6 && rows[i].invalid[k]; k++)
      if (form_allows(&a, rows[i].invalid[k])) fail_msg("%s allows %s", rows[i].parts, rows[i].invalid[k]);
    rf_automaton_close(&a);
  }
}

static void wrong_parts_are_refused(void **state) {
  static const char *const rows[][2] = {
      {"3", "not a text"},
      {"[\"a\",null]", "not a text"},
      {"{}", "without schema"},
      {"{\"schema\":{},\"regex\":\"a\"}", "several names"},
      {"{\"any\":[]}", "not a list of alternatives"},
      {"{\"any\":\"a\"}", "not a list of alternatives"},
      {"{\"repeat\":\"a\",\"between\":3}", "between"},
      {"{\"regex\":\"(\"}", "regex"},
      {"{\"regex\":3}", "without schema"},
      {"{\"until\":\"\"}", "without a mark"},
      {"{\"without\":3}", "without a mark"},
      {"{\"without\":\"a\",\"begin\":\"bc\"}", "begin"},
      {"{\"without\":\"a\",\"until\":\"b\"}", "several names"},
      {"{\"without\":\"\\n<a>\",\"begin\":\"{\"}", "begins with white space"},
      {"{\"until\":\" \",\"begin\":\"{\"}", "begins with white space"},
      {"{\"without\":\"a\",\"begin\":\"\\u0000\"}", "begin"},
      {"{\"without\":\"a\",\"begin\":\" \"}", "begin"},
      {"{\"schema\":{},\"begin\":\"{\"}", "begin"},
      {"{\"regex\":\"a\",\"begin\":\"{\"}", "begin"},
      {"{\"any\":[\"a\"],\"between\":\",\"}", "between"},
      {"{\"repeat\":\"a\",\"begin\":\"{\"}", "begin"},
      {"{\"until\":\"a\",\"between\":\",\"}", "between"},
      {"{\"repeat\":\"a\",\"between\":\",\",\"begin\":\"{\"}", "begin"},
      {"{\"begin\":\"{\"}", "begin"},
      {"[{\"schema\":{\"not\":{}}}]", "\"not\" is not supported"},
      {"[{\"schema\":{\"type\":\"string\",\"maxLength\":100000000}}]", "too large"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_automaton a;
    rf_error error = {0};
    assert_int_equal(form_open(rows[i][0], RF_TEXT_PARTS, &a, &error), RAFTER_INVALID);
    if (!strstr(error.message, rows[i][1])) fail_msg("%s: %s", rows[i][0], error.message);
    rf_automaton_close(&a);
  }
}

static void nesting_is_bounded(void **state) {
  char text[200] = "";
  rf_automaton a;
  rf_error error = {0};
  (void)state;
  for (int i = 0; i < 60; i++) strcat(text, "[");
  strcat(text, "\"a\"");
  for (int i = 0; i < 60; i++) strcat(text, "]");
  assert_int_equal(form_open(text, RF_TEXT_PARTS, &a, &error), RAFTER_INVALID);
  assert_non_null(strstr(error.message, "nested too deeply"));
  rf_automaton_close(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(texts_are_allowed_as_the_parts_say),
      cmocka_unit_test(wrong_parts_are_refused),
      cmocka_unit_test(nesting_is_bounded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
