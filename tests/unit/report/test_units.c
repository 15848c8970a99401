/* test_units.c - tests numbers as text against the table tests/data/numbers.tsv, which the test
 * of the page (tests/browser/test_layout.py) reads, too. */
#include "report/report.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *whole(double value, char text[32]) { return rf_text_whole((int64_t)value, text); }

static const struct {
  const char *name;
  char *(*text)(double, char[32]);
} KINDS[] = {{"seconds", rf_text_seconds}, {"bytes", rf_text_bytes}, {"count", rf_text_count},
             {"number", rf_text_number},   {"whole", whole},         {"rate", rf_text_rate},
             {"flops", rf_text_flops},     {"usd", rf_text_usd}};

static void numbers_are_written_as_in_the_table(void **state) {
  (void)state;
  FILE *file = fopen(RF_TEST_DATA "/numbers.tsv", "re");
  assert_non_null(file);
  char line[200], kind[20], wanted[40], text[32], negative[48];
  double value;
  int rows = 0;
  while (fgets(line, sizeof line, file)) {
    if (*line == '#') continue;
    assert_int_equal(sscanf(line, "%19s %lf %39[^\n]", kind, &value, wanted), 3);
    size_t k = 0;
    while (k < sizeof KINDS / sizeof *KINDS && strcmp(KINDS[k].name, kind)) k++;
    assert_in_range(k, 0, sizeof KINDS / sizeof *KINDS - 1);
    assert_string_equal(KINDS[k].text(value, text), wanted);
    snprintf(negative, sizeof negative, "-%s", wanted);
    if (strcmp(wanted, "0 s") && value != 0 && value < 1e21)
      assert_string_equal(KINDS[k].text(-value, text), negative);
    rows++;
  }
  fclose(file);
  assert_true(rows > 30);
}

static void figures_have_no_exponent(void **state) {
  (void)state;
  static const struct {
    double value;
    int figures;
    const char *wanted;
  } CASES[] = {{0, 4, "0"},
               {0.00005613, 4, "0.00005613"},
               {2.37e-6, 4, "0.00000237"},
               {12345.6, 4, "12,350"},
               {1234.5, 3, "1,230"},
               {9999.6, 4, "10,000"},
               {0.99996, 4, "1"},
               {0.5, 4, "0.5"},
               {-12.346, 4, "-12.35"},
               {100, 3, "100"},
               {1e-13, 4, "1e-13"},
               {1.5e15, 4, "1.5e+15"},
               {INFINITY, 4, "inf"}};
  char text[32];
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
    assert_string_equal(rf_text_figures(CASES[i].value, CASES[i].figures, text), CASES[i].wanted);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_written_as_in_the_table),
                                     cmocka_unit_test(figures_have_no_exponent)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
