/* number.c - see number.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#define _GNU_SOURCE
#include "reward/number.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rf_status rf_numbers_open(rf_numbers **numbers, rf_error *error) {
  int code;
  PCRE2_SIZE at;
  pcre2_code *pattern =
      pcre2_compile((PCRE2_SPTR)RF_NUMBER_PATTERN, PCRE2_ZERO_TERMINATED, 0, &code, &at, NULL);
  if (!pattern) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  *numbers = (rf_numbers *)pattern;
  return RAFTER_OK;
}

void rf_numbers_close(rf_numbers *numbers) { pcre2_code_free((pcre2_code *)numbers); }

/* Finds the first or last number in `text` without its commas. Returns false if the text has no
 * number, or if the number is too long. */
static bool number_in(const rf_numbers *numbers, const char *text, size_t bytes, bool last,
                      char number[RF_NUMBER_BYTES]) {
  const pcre2_code *pattern = (const pcre2_code *)numbers;
  pcre2_match_data *match = pcre2_match_data_create_from_pattern(pattern, NULL);
  size_t from = 0;
  bool found = false;
  while (match && pcre2_match(pattern, (PCRE2_SPTR)text, bytes, from, 0, match, NULL) > 0) {
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
    size_t n = 0;
    bool minus = span[1] - span[0] > 2 && !memcmp(text + span[0], "\xe2\x88\x92", 3);
    if (minus) number[n++] = '-';
    found = span[1] - span[0] < RF_NUMBER_BYTES;
    for (size_t i = span[0] + (minus ? 3 : 0); found && i < span[1]; i++)
      if (text[i] != ',' && text[i] != '$') number[n++] = text[i];
    if (found) number[n] = 0;
    from = span[1];
    if (!last) break;
  }
  pcre2_match_data_free(match);
  return found;
}

bool rf_numbers_last(const rf_numbers *numbers, const char *text, size_t bytes,
                     char number[RF_NUMBER_BYTES]) {
  return number_in(numbers, text, bytes, true, number);
}

bool rf_numbers_final(const rf_numbers *numbers, const char *text, size_t bytes, bool *marked,
                      char number[RF_NUMBER_BYTES]) {
  const char *mark = memmem(text, bytes, "####", 4);
  *marked = mark && number_in(numbers, mark + 4, bytes - (size_t)(mark + 4 - text), false, number);
  return *marked || number_in(numbers, text, bytes, true, number);
}

/* Writes a number without an exponent in its shortest form: "-007.50" becomes "-7.5", "-0" "0". */
static void shorten(const char *number, char to[RF_NUMBER_BYTES]) {
  bool minus = *number == '-';
  const char *whole = number + minus + strspn(number + minus, "0"), *point = strchr(whole, '.');
  size_t digits = strcspn(whole, "."), places = point ? strlen(point + 1) : 0;
  while (places && point[places] == '0') places--;
  if (!digits && !places) minus = false;
  snprintf(to, RF_NUMBER_BYTES, "%s%.*s%s%.*s", minus ? "-" : "", (int)digits, digits ? whole : "",
           places ? "." : "", (int)places, places ? point + 1 : "");
}

bool rf_numbers_equal(const char *a, const char *b) {
  char x[RF_NUMBER_BYTES], y[RF_NUMBER_BYTES];
  if (strpbrk(a, "eE") || strpbrk(b, "eE")) return strtod(a, NULL) == strtod(b, NULL);
  shorten(a, x);
  shorten(b, y);
  return !strcmp(x, y);
}
