/* test_template.c - compares chat templates with Jinja2's own output
 * (tests/data/templates/make.py), and tests errors. */
#define _GNU_SOURCE /* for timegm and strptime */
#include "text/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

#include <cmocka.h>

/* A file among the goldens. RF_TEMPLATES can name another folder with a golden.json of make.py. */
static const char *at(const char *name) {
  static char path[512];
  const char *folder = getenv("RF_TEMPLATES");
  snprintf(path, sizeof path, "%s/%s", folder ? folder : RF_TEST_DATA "/templates", name);
  return path;
}

static json_t *golden;
static struct tm now;

static int load(void **state) {
  (void)state;
  rf_error error;
  if (rf_json_read(at("golden.json"), 256 << 20, &golden, &error) != RAFTER_OK) return -1;
  return strptime(json_string_value(json_object_get(golden, "now")), "%Y-%m-%d %H:%M:%S", &now) ? 0 : -1;
}

static int unload(void **state) {
  (void)state;
  json_decref(golden);
  return 0;
}

/* Renders a template and compares it with a row of the golden. Prints the difference and returns
 * false if there is one. */
static bool as_jinja(const char *name, const char *source, size_t bytes, const json_t *variables,
                     const json_t *expected) {
  rf_template *parsed;
  rf_rendered got;
  rf_error error;
  rf_status status = rf_template_parse(source, bytes, name, &parsed, &error);
  if (status == RAFTER_OK) {
    status = rf_template_render(parsed, variables, &now, NULL, &got, &error);
    rf_template_free(parsed);
  }
  const json_t *text = json_object_get(expected, "text"), *raises = json_object_get(expected, "raises"),
               *spans = json_object_get(expected, "spans");
  if (status != RAFTER_OK) {
    bool right = !text && (!raises || strstr(error.message, json_string_value(raises)));
    if (!right)
      print_error("%s\n  error: %s\n  expected: %s\n", name, error.message,
                  text ? json_string_value(text) : json_string_value(raises));
    return right;
  }
  bool right = text && got.bytes == json_string_length(text) &&
               memcmp(got.text, json_string_value(text), got.bytes) == 0;
  right = right && got.generated_count == (int64_t)json_array_size(spans);
  for (int64_t i = 0; right && i < got.generated_count; ++i) {
    const json_t *span = json_array_get(spans, (size_t)i);
    right = got.generated[i].first == (size_t)json_integer_value(json_array_get(span, 0)) &&
            got.generated[i].last == (size_t)json_integer_value(json_array_get(span, 1));
  }
  if (!right)
    print_error("%s\n  got:      %s\n  expected: %s\n", name, got.text,
                text ? json_string_value(text) : "(an error)");
  rf_rendered_free(&got);
  return right;
}

static void templates_render_as_jinja_renders_them(void **state) {
  (void)state;
  const json_t *row, *conversations = json_object_get(golden, "conversations");
  size_t index, wrong = 0, bytes = 0;
  char *source = NULL, last[256] = "";
  json_array_foreach (json_object_get(golden, "renderings"), index, row) {
    const char *name = json_string_value(json_object_get(row, "template"));
    if (strcmp(name, last) != 0) {
      free(source);
      assert_int_equal(rf_file_read(at(name), 1 << 20, &source, &bytes, NULL), RAFTER_OK);
      snprintf(last, sizeof last, "%s", name);
    }
    size_t conversation = (size_t)json_integer_value(json_object_get(row, "conversation"));
    char where[300];
    snprintf(where, sizeof where, "%.200s, conversation %zu", name, conversation);
    wrong += !as_jinja(where, source, bytes, json_array_get(conversations, conversation), row);
  }
  free(source);
  assert_int_equal(wrong, 0);
  assert_true(index >= 500);
}

static void random_programs_run_as_in_jinja(void **state) {
  (void)state;
  const json_t *row;
  size_t index, wrong = 0;
  json_array_foreach (json_object_get(golden, "programs"), index, row) {
    const json_t *source = json_object_get(row, "source");
    wrong += !as_jinja(json_string_value(source), json_string_value(source), json_string_length(source),
                       json_object_get(golden, "data"), row);
  }
  assert_int_equal(wrong, 0);
  assert_true(index >= 300);
}

/* Jinja runs "else" after a loop unless an iteration reached the end of the body. */
static void else_follows_loops_that_finish_no_iteration(void **state) {
  (void)state;
  static const struct {
    const char *source, *expected;
  } rows[] = {{"{% for x in [] %}{{ x }}{% else %}e{% endfor %}", "{\"text\":\"e\"}"},
              {"{% for x in [1, 2] %}{{ x }}{% else %}e{% endfor %}", "{\"text\":\"12\"}"},
              {"{% for x in [1, 2] %}{{ x }}{% break %}{% else %}e{% endfor %}", "{\"text\":\"1e\"}"},
              {"{% for x in [1, 2] %}{{ x }}{% continue %}{% else %}e{% endfor %}", "{\"text\":\"12e\"}"},
              {"{% for x in [1, 2] %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% else %}e{% endfor %}",
               "{\"text\":\"12\"}"},
              {"{% for x in [1, 2] %}{% for y in [3] %}{% break %}{% else %}{% continue %}{% endfor %}{{ x }}"
               "{% else %}e{% endfor %}",
               "{\"text\":\"e\"}"}};
  json_t *none = json_object();
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    json_t *expected = json_loads(rows[i].expected, 0, NULL);
    if (!as_jinja(rows[i].source, rows[i].source, strlen(rows[i].source), none, expected))
      fail_msg("%s", rows[i].source);
    json_decref(expected);
  }
  json_decref(none);
}

/* The comparison must notice planted faults. */
static void the_comparison_sees_planted_faults(void **state) {
  (void)state;
  json_t *none = json_object();
  static const struct {
    const char *source, *expected;
  } rows[] = {{"ab", "{\"text\":\"ab\"}"},
              {"ab", "{\"text\":\"ab\\n\"}"},
              {"ab", "{\"text\":\"aB\"}"},
              {"ab", "{\"fails\":true}"},
              {"{{ 1 + 'a' }}", "{\"text\":\"\"}"},
              {"{{ raise_exception('x') }}", "{\"raises\":\"y\"}"},
              {"ab", "{\"text\":\"ab\",\"spans\":[[0,1]]}"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    json_t *expected = json_loads(rows[i].expected, 0, NULL);
    assert_int_equal(as_jinja("planted", rows[i].source, strlen(rows[i].source), none, expected), i == 0);
    json_decref(expected);
  }
  json_decref(none);
}

/* Renders with only the variables "xs" (1, 2, 3) and "s". Returns the text or the error message. */
static const char *run(const char *source, const rf_template_limits *limits) {
  static char result[1000];
  json_t *variables = json_pack("{s:[iii],s:s,s:{s:i}}", "xs", 1, 2, 3, "s", "text", "d", "a", 1);
  rf_template *parsed;
  rf_rendered got;
  rf_error error;
  rf_status status = rf_template_parse(source, strlen(source), "t", &parsed, &error);
  if (status == RAFTER_OK) {
    status = rf_template_render(parsed, variables, NULL, limits, &got, &error);
    rf_template_free(parsed);
  }
  snprintf(result, sizeof result, "%s", status == RAFTER_OK ? got.text : error.message);
  if (status == RAFTER_OK) rf_rendered_free(&got);
  json_decref(variables);
  return result;
}

static void what_is_not_known_is_refused_by_name_and_place(void **state) {
  (void)state;
  static const struct {
    const char *source, *message;
  } rows[] = {
      {"a\n{{ s|wordcount }}", "t, line 2, column 6: unknown filter \"wordcount\""},
      {"{{ s is callable }}", "t, line 1, column 9: unknown test \"callable\""},
      {"\n\n  {% include 'x' %}", "t, line 3, column 6: the block {% include %}"},
      {"{% raw %}{% endraw %}", "{% raw %}"},
      {"{{ xs.append(4) }}", "line 1, column 7: the attribute 'append' of a list is not supported"},
      {"{{ d.update(d) }}", "'update' of a dict"},
      {"{{ s.format(1) }}", "'format' of a string"},
      {"{{ s.__class__ }}", "__class__"},
      {"{{ s['__class__'] }}", "__class__"},
      {"{{ 2 ** 2 }}", "**"},
      {"{{ '%s' % s }}", "'%' is not supported between a string and a string"},
      {"{{ nobody.x }}", "'nobody' is undefined, so it has no 'x'"},
      {"{{ nobody() }}", "'nobody' is undefined and cannot be called"},
      {"{{ d.b.c }}", "'b' is undefined"},
      {"{{ joiner() }}", "'joiner'"},
      {"{{ strftime_now('%Y') }}", "needs the current time"},
      {"{{ raise_exception('no ' ~ s) }}", "line 1, column 19: no text"},
      {"{{ s|tojson(spaces=2) }}", "\"tojson\" does not take the argument spaces"},
      {"{{ s|replace('a') }}", "\"replace\" needs the argument \"new\""},
      {"{{ (s|safe) + 'x' }}", "marked safe"},
      {"{{ 'é'|upper }}", "the case of U+00E9"},
      {"{{ d.items() }}", "use |list"},
      {"{{ f(*xs) }}", "unpacked"},
      {"{% for x in xs recursive %}{% endfor %}", "recursive"},
      {"{{ loop.cycle(1) }}", "'loop' is undefined"},
      {"{% for x in xs %}{{ loop.cycle(1) }}{% endfor %}", "loop.cycle is not supported"},
      {"{% break %}", "only allowed in a loop"},
      {"{% for x in xs %}{% set y %}{% break %}{% endset %}{% endfor %}", "only allowed in a loop"},
      {"{% set d.a = 2 %}", "only fields of a namespace"},
      {"{% set a, b = xs %}", "cannot unpack"},
      {"{% macro m() %}{% generation %}{% endgeneration %}{% endmacro %}{{ m() }}", "inside a macro"},
      {"{% macro m(a=1, b) %}{% endmacro %}", "without a default"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "does not take all"},
      {"{% if s %}", "does not end (expected {% endif %})"},
      {"{{ s", "does not end"},
      {"{# s", "does not end"},
      {"{{ 'abc }}", "does not end"},
      {"{{ (s] }}", "unexpected ']'"},
      {"{{ s }", "unexpected '}'"},
      {"{{ $ }}", "U+0024"},
      {"{{ \"\\N{DASH}\" }}", "backslash"},
      {"{{ 99999999999999999999 }}", "too large"},
      {"{{ 9223372036854775807 + 1 }}", "64 bits"},
      {"{{ -9223372036854775807 - 2 }}", "64 bits"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ '\\u2028' ~ ['\\u2028'] }}", "U+2028"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    const char *message = run(rows[i].source, NULL);
    if (!strstr(message, rows[i].message))
      print_error("%s\n  %s\n  expected %s\n", rows[i].source, message, rows[i].message);
    assert_non_null(strstr(message, rows[i].message));
  }
}

/* `first`, `count` times `piece`, and `last`, allocated with malloc. */
static char *repeated(const char *first, const char *piece, int count, const char *last) {
  char *text = malloc(strlen(first) + strlen(piece) * (size_t)count + strlen(last) + 1),
       *end = stpcpy(text, first);
  for (int i = 0; i < count; ++i) end = stpcpy(end, piece);
  strcpy(end, last);
  return text;
}

static void hostile_templates_end_soon(void **state) {
  (void)state;
  static const char *const rows[][2] = {
      {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "too m"},
      {"{% set ns = namespace(s='0123456789') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
       "endfor %}",
       "grows beyond"},
      {"{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
       "too m"},
      {"{% set ns = namespace(s=[1]) %}{% for a in range(999) %}{% set ns.s = [ns.s] %}{% endfor %}",
       "nest more than 100 deep"},
      {"{{ 'x' * 99999999999 }}", "grows too large"},
      {"{{ range(100001) }}", "more than 100000"},
      {"{{ range(-9223372036854775807, 9223372036854775807) }}", "more than 100000"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recurs more than"},
      {"{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "grows beyond"},
      {"{% set ns = namespace() %}{% set ns.n = ns %}{% set x = [ns] %}{{ x == x }}{{ x|tojson }}",
       "cannot be written as JSON"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    const char *message = run(rows[i][0], NULL);
    if (!strstr(message, rows[i][1])) print_error("%s\n  %s\n", rows[i][0], message);
    assert_non_null(strstr(message, rows[i][1]));
  }
  static const char *const deep[][3] = {{"{{ ", "(", "1"},      {"{{ ", "not ", "1 }}"},
                                        {"{{ ", "-", "1 }}"},   {"{{ s", "|trim", " }}"},
                                        {"{{ s", ".x", " }}"},  {"{{ 1", "+1", " }}"},
                                        {"{{ s", "[0]", " }}"}, {"{{ ", "[", " }}"},
                                        {"", "{% if 1 %}", ""}, {"{{ 1", " if 1 else 1", " }}"},
                                        {"{{ ", "{1:", "1 }}"}, {"", "{% filter upper %}", ""}};
  for (size_t i = 0; i < sizeof deep / sizeof deep[0]; ++i) {
    char *source = repeated(deep[i][0], deep[i][1], 5000, deep[i][2]);
    const char *message = run(source, NULL);
    if (!strstr(message, "deep")) print_error("%.40s...\n  %s\n", source, message);
    assert_non_null(strstr(message, "deep"));
    free(source);
  }
  char *large = repeated("", "0123456789", 30000, "");
  assert_non_null(strstr(run(large, NULL), "too large"));
  free(large);
  assert_non_null(strstr(run("a\xff", NULL), "not valid UTF-8 (byte 1)"));
}

static void limits_are_the_callers(void **state) {
  (void)state;
  static const char text[] = "{% for x in xs %}{{ x ~ 'abc' }}{% endfor %}";
  assert_string_equal(run(text, &(rf_template_limits){.steps = 200, .output_bytes = 12}), "1abc2abc3abc");
  assert_non_null(strstr(run(text, &(rf_template_limits){.steps = 20}), "too many steps"));
  assert_non_null(strstr(run(text, &(rf_template_limits){.output_bytes = 11}), "grows beyond 11 bytes"));
  assert_non_null(strstr(run(text, &(rf_template_limits){.memory_bytes = 1000}), "too much memory"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(templates_render_as_jinja_renders_them),
      cmocka_unit_test(random_programs_run_as_in_jinja),
      cmocka_unit_test(else_follows_loops_that_finish_no_iteration),
      cmocka_unit_test(the_comparison_sees_planted_faults),
      cmocka_unit_test(what_is_not_known_is_refused_by_name_and_place),
      cmocka_unit_test(hostile_templates_end_soon),
      cmocka_unit_test(limits_are_the_callers),
  };
  return cmocka_run_group_tests(tests, load, unload);
}
