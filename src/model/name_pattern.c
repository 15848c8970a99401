/* name_pattern.c - see name_pattern.h. */
#include "model/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

enum { STEPS = 1 << 12, LONG_STEPS = 100000, LONG_MATCHES = 64 };

struct rf_name_pattern {
  pcre2_code *code;
  pcre2_match_data *data;
  pcre2_match_context *bounds;
  int long_left; /* number of further matches that may take LONG_STEPS steps */
};

rf_name_pattern *rf_name_pattern_new(const char *text) {
  int code;
  PCRE2_SIZE at;
  rf_name_pattern *pattern = calloc(1, sizeof *pattern);
  if (!pattern) return NULL;
  pattern->code =
      pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                    PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
  pattern->data = pattern->code ? pcre2_match_data_create(1, NULL) : NULL;
  pattern->bounds = pcre2_match_context_create(NULL);
  pattern->long_left = LONG_MATCHES;
  if (pattern->data && pattern->bounds) return pattern;
  rf_name_pattern_free(pattern);
  return NULL;
}

void rf_name_pattern_free(rf_name_pattern *pattern) {
  if (!pattern) return;
  pcre2_match_context_free(pattern->bounds);
  pcre2_match_data_free(pattern->data);
  pcre2_code_free(pattern->code);
  free(pattern);
}

int rf_name_pattern_matches(rf_name_pattern *pattern, const char *name, size_t length) {
  pcre2_set_match_limit(pattern->bounds, STEPS);
  int found = pcre2_match(pattern->code, (PCRE2_SPTR)name, length, 0, 0, pattern->data, pattern->bounds);
  if (found == PCRE2_ERROR_MATCHLIMIT && pattern->long_left > 0) {
    pattern->long_left--;
    pcre2_set_match_limit(pattern->bounds, LONG_STEPS);
    found = pcre2_match(pattern->code, (PCRE2_SPTR)name, length, 0, 0, pattern->data, pattern->bounds);
  }
  return found >= 0 ? 1 : found == PCRE2_ERROR_NOMATCH ? 0 : -1;
}
