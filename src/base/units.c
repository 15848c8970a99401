/* units.c - parsers for numbers with units, as people type them. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/options.h"
#include "base/text.h"

typedef struct unit {
  const char *name;
  double scale;
} unit;

/* Parses a number and a unit. Finds the unit of a number in `units`, with the function `compare`. A
 * number without a unit has the unit whose name is "". */
static bool with_unit(const char *text, const unit *units, int count,
                      int (*compare)(const char *, const char *), double *value) {
  char number[64];
  size_t length = strspn(text, "0123456789.");
  if (length == 0 || length >= sizeof number) return false;
  memcpy(number, text, length);
  number[length] = 0;
  double amount;
  if (!rf_text_float(number, &amount)) return false;
  for (int i = 0; i < count; ++i)
    if (compare(text + length, units[i].name) == 0) {
      *value = amount * units[i].scale;
      return true;
    }
  return rf_text_float(text, value); /* the text after the digits may be an exponent, such as in 2e6 */
}

static bool whole(double value, int64_t *result) {
  if (!(value >= 0 && value < 0x1p63 && value == floor(value))) return false;
  *result = (int64_t)value;
  return true;
}

rf_status rf_parse_size(const char *text, int64_t *bytes, rf_error *error) {
  static const unit units[] = {{"", 1},         {"B", 1},       {"kB", 1e3},     {"MB", 1e6},
                               {"GB", 1e9},     {"TB", 1e12},   {"KiB", 0x1p10}, {"MiB", 0x1p20},
                               {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  double value;
  if (rf_text_int(text, bytes) && *bytes >= 0) return RAFTER_OK;
  if (with_unit(text, units, 10, strcasecmp, &value) && value >= 0 && value < 0x1p62) {
    *bytes = (int64_t)value;
    return RAFTER_OK;
  }
  return RF_FAIL(error, RAFTER_INVALID, "write 16GiB (2^30), 16GB (10^9) or a number of bytes",
                 "'%.60s' is not a size", text);
}

rf_status rf_parse_duration(const char *text, double *seconds, rf_error *error) {
  static const unit units[] = {{"", 1},   {"s", 1},    {"ms", 1e-3}, {"us", 1e-6},
                               {"m", 60}, {"min", 60}, {"h", 3600},  {"d", 86400}};
  double value;
  if (with_unit(text, units, 8, strcmp, &value) && value >= 0) {
    *seconds = value;
    return RAFTER_OK;
  }
  return RF_FAIL(error, RAFTER_INVALID, "write 1.5s, 20ms, 2m, 1h or 3d", "'%.60s' is not a duration", text);
}

rf_status rf_parse_tokens(const char *text, int64_t *tokens, rf_error *error) {
  static const unit units[] = {{"", 1}, {"k", 1024}, {"M", 1048576}};
  double value;
  if (rf_text_int(text, tokens) && *tokens >= 0) return RAFTER_OK;
  if (with_unit(text, units, 3, strcasecmp, &value) && whole(value, tokens)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "write 4096 or 4k", "'%.60s' is not a number of tokens", text);
}

rf_status rf_parse_count(const char *text, int64_t *count, rf_error *error) {
  static const unit units[] = {{"", 1}, {"k", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}, {"T", 1e12}};
  double value;
  if (rf_text_int(text, count) && *count >= 0) return RAFTER_OK;
  /* the number is rounded to 1/1000, so that 0.3M is 300000 */
  if (with_unit(text, units, 6, strcasecmp, &value) && whole(round(value * 1e3) / 1e3, count))
    return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "write 1000, 2M (2e6) or 15T", "'%.60s' is not a count", text);
}

/* FIRST, FIRST..LAST or FIRST..LAST:STEP. Missing parts are NULL. */
typedef struct range {
  char item[96];
  const char *first, *last, *step;
} range;

/* Reads the part of a list that goes from *at to the next comma or to the end. Moves *at after this
 * part. */
static bool next_range(const char **at, range *r) {
  size_t length = strcspn(*at, ",");
  if (length == 0 || length >= sizeof r->item) return false;
  memcpy(r->item, *at, length);
  r->item[length] = 0;
  *at += length;
  char *dots = strstr(r->item, ".."), *colon = dots ? strchr(dots, ':') : NULL;
  if (dots) *dots = 0;
  if (colon) *colon = 0;
  r->first = r->item;
  r->last = dots ? dots + 2 : NULL;
  r->step = colon ? colon + 1 : NULL;
  return true;
}

static rf_status too_many(const char *text, int capacity, rf_error *error) {
  return RF_FAIL(error, RAFTER_INVALID, NULL, "'%.60s' has too many values (expected at most %d)", text,
                 capacity);
}

static rf_status not_a_list(const char *text, rf_error *error) {
  return RF_FAIL(error, RAFTER_INVALID, "write 1,2,4 or 1..256 (doubling) or 64..132:4 (in steps of 4)",
                 "'%.60s' is not a list of numbers", text);
}

rf_status rf_parse_list(const char *text, int64_t *values, int capacity, int *count, rf_error *error) {
  int n = 0;
  for (const char *at = text;; ++at) {
    range r;
    int64_t first, last, step = 0;
    if (!next_range(&at, &r) || rf_parse_tokens(r.first, &first, NULL) != RAFTER_OK)
      return not_a_list(text, error);
    last = first;
    if (r.last && (rf_parse_tokens(r.last, &last, NULL) != RAFTER_OK || last < first))
      return not_a_list(text, error);
    if (r.step && (rf_parse_tokens(r.step, &step, NULL) != RAFTER_OK || step < 1))
      return not_a_list(text, error);
    /* Doubling 0 would never end. */
    if (r.last && !r.step && first < 1) return not_a_list(text, error);
    for (int64_t value = first;;) {
      if (n == capacity) return too_many(text, capacity, error);
      values[n++] = value;
      /* The comparison is made before the addition, because value + more may overflow. */
      int64_t more = r.step ? step : value;
      if (!r.last || more > last - value) break;
      value += more;
    }
    if (!*at) break;
  }
  *count = n;
  return RAFTER_OK;
}

static rf_status not_of_floats(const char *text, rf_error *error) {
  return RF_FAIL(error, RAFTER_INVALID, "write 0.5,1,2 or 0.25..8 (doubling) or 0.5..2:0.5 (in steps of 0.5)",
                 "'%.60s' is not a list of numbers above 0", text);
}

static bool positive(const char *text, double *value) { return rf_text_float(text, value) && *value > 0; }

rf_status rf_parse_floats(const char *text, double *values, int capacity, int *count, rf_error *error) {
  const double slack = 1e-9; /* so that 0.1..0.3:0.1 includes 0.3 */
  int n = 0;
  for (const char *at = text;; ++at) {
    range r;
    double first, last, step = 0;
    if (!next_range(&at, &r) || !positive(r.first, &first)) return not_of_floats(text, error);
    last = first;
    if (r.last && (!positive(r.last, &last) || last < first)) return not_of_floats(text, error);
    if (r.step && (!positive(r.step, &step) || !(first + step > first))) return not_of_floats(text, error);
    for (int i = 0;; i++) {
      double value = r.step ? first + i * step : ldexp(first, i);
      if (i && (!r.last || value > last * (1 + slack))) break;
      if (n == capacity) return too_many(text, capacity, error);
      values[n++] = value;
    }
    if (!*at) break;
  }
  *count = n;
  return RAFTER_OK;
}

int64_t rf_common_divisor(int64_t a, int64_t b) { return b ? rf_common_divisor(b, a % b) : a; }

int rf_compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int rf_compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}
