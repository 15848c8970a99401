/* test_json_lines.c - tests long lines: their lists of numbers, and their limits. */
#include "formats/json_lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/scratch.h"

enum { MANY = 70000 }; /* values of a list that is long */

/* A line with a list of MANY numbers after `before`. `number`, if not NULL, replaces one number. */
static char *line_of(const char *before, const char *number, const char *after) {
  char *text = malloc(16 * MANY), *at = text;
  assert_non_null(text);
  at += sprintf(at, "%s[", before);
  for (int i = 0; i < MANY; i++) {
    if (i) at += sprintf(at, i % 1000 ? "," : " ,\n\t");
    if (number && i == MANY / 2) at += sprintf(at, "%s", number);
    else at += sprintf(at, "%d", i % 7 ? i * 37 : -i);
  }
  sprintf(at, "]%s", after);
  return text;
}

/* A long line gives the same row, or is refused, as jansson alone does. */
static void long_lines_are_rows(void **state) {
  (void)state;
  static const char *const CASES[][3] = {
      {"{\"id\": 3, \"tokens\" : ", NULL, ", \"text\": \"a, [1] \\\" b\"}"},
      {"{\"tokens\":", "1.5", "}"},
      {"{\"tokens\":", "1e3", "}"},
      {"{\"tokens\":", "0", "}"},
      {"{\"tokens\":", "-0", "}"},
      {"{\"tokens\":", "007", "}"},
      {"{\"tokens\":", "-", "}"},
      {"{\"tokens\":", "", "}"},
      {"{\"tokens\":", "[1]", "}"},
      {"{\"tokens\":", "null", "}"},
      {"{\"tokens\":", "999999999999999999", "}"},
      {"{\"tokens\":", "1234567890123456789", "}"},
      {"{\"tokens\":", "99999999999999999999", "}"},
      {"{\"a\":{\"tokens\":", NULL, "}}"},
      {"{\"t\\u006fkens\":", NULL, ", \"more\": []}"},
      {"{\"tokens\": [1], \"tokens\":", NULL, "}"},
      {"{\"tokens\":", NULL, ", \"tokens\": []}"},
      {"{\"tokens\":", NULL, ""},
      {"{\"tokens\":", NULL, "} x"},
      {"{\"tokens\":", NULL, "1}"},
      {"[", NULL, "]"},
      {"", NULL, ""},
      {"{\"a\":\"b\\\\\",\"c\":", NULL, ",\"d\":\"\xc3\xa9\"}"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    char *text = line_of(CASES[i][0], CASES[i][1], CASES[i][2]);
    size_t bytes = strlen(text);
    json_t *row, *want = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    rf_status status = rf_json_line(text, bytes, "test", 1, &row, NULL);
    if ((status == RAFTER_OK) != json_is_object(want)) fail_msg("case %zu: status %d", i, (int)status);
    if (status == RAFTER_OK && !json_equal(row, want)) fail_msg("case %zu: another row", i);
    json_decref(row);
    json_decref(want);
    free(text);
  }
}

static void expect_error(const char *path, const char *says) {
  rf_json_lines lines;
  json_t *row = NULL;
  rf_error error = {0};
  assert_int_equal(rf_json_lines_open(path, NULL, &lines, NULL), RAFTER_OK);
  assert_int_equal(rf_json_lines_next(&lines, &row, NULL), RAFTER_OK); /* the first line is good */
  json_decref(row);
  assert_int_equal(rf_json_lines_next(&lines, &row, &error), RAFTER_FAILED);
  assert_null(row);
  if (!strstr(error.message, says) || !*error.hint) fail_msg("'%s' does not say '%s'", error.message, says);
  rf_json_lines_close(&lines);
}

static void lines_have_limits(void **state) {
  (void)state;
  char path[256];
  snprintf(path, sizeof path, "%s", at("long.jsonl"));
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs("{}\n", file);
  assert_int_equal(fflush(file), 0);
  assert_int_equal(ftruncate(fileno(file), 4 + (128 << 20)), 0);
  expect_error(path, "a line is too long (");
  assert_int_equal(ftruncate(fileno(file), 3), 0);
  fseek(file, 3, SEEK_SET);
  fputs("{\"a\":[", file);
  for (int i = 0; i < 600000; i++) fputs("[1],", file);
  fputs("[1]]}\n", file);
  fclose(file);
  expect_error(path, "line 2: expected at most 1000000");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(long_lines_are_rows),
                                     cmocka_unit_test(lines_have_limits)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
