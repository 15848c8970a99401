/* test_page.c - the page contains the same values as its model and loads nothing else. Hostile
 * names in the model stay data. */
#define _GNU_SOURCE
#include "base/json.h"
#include "report/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char OPEN[] = "<script type=\"application/json\" id=\"model\">";

static int times(const char *text, const char *word) {
  int count = 0;
  for (const char *at = text; (at = strcasestr(at, word)); at += strlen(word)) count++;
  return count;
}

/* The element with the model, ending where an HTML parser ends it: at the first "</script". `frame`
 * gets the rest of the page. */
static json_t *model_of(const char *html) {
  const char *start = strstr(html, OPEN), *end;
  assert_non_null(start);
  start += strlen(OPEN);
  end = strcasestr(start, "</script");
  assert_non_null(end);
  json_error_t fault;
  json_t *json = json_loadb(start, (size_t)(end - start), 0, &fault);
  assert_non_null(json);
  return json;
}

static char *page_of(const json_t *model) {
  char *html;
  size_t bytes;
  rf_error error;
  assert_int_equal(rf_report_page_html(model, &html, &bytes, &error), RAFTER_OK);
  assert_int_equal(bytes, strlen(html));
  return html;
}

static void model_is_carried_value_for_value(void **state) {
  (void)state;
  json_t *model = json_pack("{s[f f I] s{s s}}", "numbers", 0.1, 1e-300, (json_int_t)9007199254740993, "plan",
                            "name", "uva");
  char *html = page_of(model);
  json_t *back = model_of(html);
  assert_true(json_equal(model, back));
  json_decref(back);
  json_decref(model);
  free(html);
}

static void hostile_names_stay_data(void **state) {
  (void)state;
  static const char *const names[] = {"</script><script>alert(1)</script>",
                                      "</SCRIPT ><img src=x onerror=alert(1)>",
                                      "<!--<script>",
                                      "]]>",
                                      "&lt;/script&gt;",
                                      "\xe2\x80\xa8\xe2\x80\xa9",
                                      "\xe2\x80\x99 a quote that begins with the same byte \xe2",
                                      "\" quoted \\ and \\u003c/script>",
                                      "@@model@@ @@scripts@@"};
  json_t *none = json_object(), *model = json_object(), *runs = json_array();
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    json_array_append_new(runs, rf_json_bytes(names[i], strlen(names[i])));
  json_object_set_new(model, "</script><b>", json_true());
  json_object_set_new(model, "runs", runs);
  char *plain = page_of(none), *html = page_of(model);
  json_t *back = model_of(html);
  assert_true(json_equal(model, back));
  /* No name becomes an element: the page has as many as without these names. */
  assert_int_equal(times(html, "</script"), times(plain, "</script"));
  assert_int_equal(times(html, "<script"), times(plain, "<script"));
  assert_int_equal(times(html, "<!--"), times(plain, "<!--"));
  assert_int_equal(times(html, "<img"), times(plain, "<img"));
  assert_int_equal(times(html, "\xe2\x80\xa8"), times(plain, "\xe2\x80\xa8"));
  json_decref(back);
  json_decref(model);
  json_decref(none);
  free(plain);
  free(html);
}

static void page_needs_nothing_else(void **state) {
  (void)state;
  json_t *none = json_object();
  char *html = page_of(none);
  assert_null(strstr(html, " src="));
  assert_null(strstr(html, "@import"));
  assert_null(strstr(html, "url("));
  /* The page forbids the browser to load anything. */
  assert_non_null(strstr(html, "default-src 'none'"));
  /* The page includes the licence of the chart library. */
  assert_non_null(strstr(html, "Permission is hereby granted"));
  assert_null(strstr(html, "@@")); /* every part was filled in */
  json_decref(none);
  free(html);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(model_is_carried_value_for_value),
      cmocka_unit_test(hostile_names_stay_data),
      cmocka_unit_test(page_needs_nothing_else),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
