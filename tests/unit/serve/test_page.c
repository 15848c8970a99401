/* The files of the page: the program has the bytes of the sources, and the policy is strict. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "serve/page.h"

static const char FOLDER[] = "src/serve/page/";

/* Compares a source with the bytes at `at`, and returns the bytes after it. */
static const char *same(const char *name, const char *at, const char *end) {
  char path[64], line[4096];
  snprintf(path, sizeof path, "%s%s", FOLDER, name);
  FILE *file = fopen(path, "re");
  assert_non_null(file);
  for (size_t bytes; (bytes = fread(line, 1, sizeof line, file)) > 0; at += bytes) {
    assert_true(bytes <= (size_t)(end - at));
    assert_memory_equal(line, at, bytes);
  }
  fclose(file);
  return at;
}

static void test_files(void **state) {
  static const char *const SCRIPTS[] = {"core.js", "markdown.js", "tokens.js", "stream.js",
                                        "live.js", "settings.js", "answer.js", "chat.js"};
  const rf_page_file *html = rf_page_find("/"), *css = rf_page_find("/page.css"),
                     *js = rf_page_find("/page.js");
  (void)state;
  assert_ptr_equal(same("page.html", html->at, html->end), html->end);
  assert_ptr_equal(same("page.css", css->at, css->end), css->end);
  const char *at = js->at;
  for (size_t i = 0; i < sizeof SCRIPTS / sizeof *SCRIPTS; i++) at = same(SCRIPTS[i], at, js->end);
  assert_ptr_equal(at, js->end);
  assert_null(rf_page_find("/page"));
  assert_null(rf_page_find("/../page.css"));
  assert_null(rf_page_find(""));
}

/* A browser keeps a file as long as its tag is the same, so different files need different tags. */
static void test_tags(void **state) {
  rf_page_file one = {"/", "text/html", "<p>", NULL}, other = {"/", "text/html", "<b>", NULL};
  char a[24], b[24], again[24];
  (void)state;
  rf_page_tag(&one, a);
  rf_page_tag(&other, b);
  rf_page_tag(&one, again);
  assert_string_not_equal(a, b);
  assert_string_equal(a, again);
  assert_int_equal(a[0], '"');
  assert_int_equal(a[strlen(a) - 1], '"');
}

/* Only what is named is allowed, no inline code runs, and no script makes HTML from texts. */
static void test_policy(void **state) {
  (void)state;
  assert_non_null(strstr(RF_PAGE_POLICY, "default-src 'none'"));
  assert_non_null(strstr(RF_PAGE_POLICY, "frame-ancestors 'none'"));
  assert_non_null(strstr(RF_PAGE_POLICY, "trusted-types 'none'"));
  assert_null(strstr(RF_PAGE_POLICY, "unsafe"));
  assert_null(strstr(RF_PAGE_POLICY, "*"));
  assert_null(strstr(RF_PAGE_POLICY, "http"));
}

/* The page has no handlers and styles inside its HTML, and its scripts never write HTML. */
static void test_sources(void **state) {
  static const char *const BAD[] = {"innerHTML", "outerHTML",    "insertAdjacentHTML", "document.write",
                                    "eval(",     "new Function", "setTimeout('",       "DOMParser"};
  const char *js = rf_page_find("/page.js")->at, *html = rf_page_find("/")->at;
  (void)state;
  for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) assert_null(strstr(js, BAD[i]));
  assert_null(strstr(html, "style="));
  assert_null(strstr(html, "onclick"));
  assert_null(strstr(html, "<script>"));
  assert_null(strstr(html, "http"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_tags),
                                     cmocka_unit_test(test_policy), cmocka_unit_test(test_sources)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
