/* pattern.c - see pattern.h. PCRE2's own limit counts the steps from one start position. A text has
 * many start positions. So a callout before each item of the expression counts the steps of the
 * whole search. */
#include "reward/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

enum { NESTED = 100, HEAP_KIB = 64 << 10 };

struct rf_pattern {
  pcre2_code *code;
  pcre2_match_data *data;
  pcre2_match_context *bounds;
  int64_t left; /* number of steps that the current search may still take */
};

static int count_step(pcre2_callout_block *block, void *self) {
  (void)block;
  return --((rf_pattern *)self)->left < 0 ? PCRE2_ERROR_MATCHLIMIT : 0;
}

rf_status rf_pattern_open(const char *text, rf_pattern **out, rf_error *error) {
  int code = 0;
  PCRE2_SIZE at = 0;
  PCRE2_UCHAR why[200] = "out of memory";
  rf_pattern *p = calloc(1, sizeof *p);
  pcre2_compile_context *how = pcre2_compile_context_create(NULL);
  if (p && how) {
    pcre2_set_max_pattern_length(how, RF_PATTERN_BYTES);
    pcre2_set_parens_nest_limit(how, NESTED);
    p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                            PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT, &code,
                            &at, how);
    if (!p->code) pcre2_get_error_message(code, why, sizeof why);
    p->data = p->code ? pcre2_match_data_create(1, NULL) : NULL;
    p->bounds = pcre2_match_context_create(NULL);
  }
  pcre2_compile_context_free(how);
  if (p && p->data && p->bounds) {
    pcre2_set_callout(p->bounds, count_step, p);
    pcre2_set_match_limit(p->bounds, RF_PATTERN_STEPS);
    pcre2_set_heap_limit(p->bounds, HEAP_KIB);
    *out = p;
    return RAFTER_OK;
  }
  rf_pattern_close(p);
  return RF_FAIL(error, RAFTER_INVALID, "the syntax is that of PCRE2 (man pcre2pattern)",
                 "'%.200s' is not a regular expression (at byte %zu: %s)", text, (size_t)at, (char *)why);
}

void rf_pattern_close(rf_pattern *p) {
  if (!p) return;
  pcre2_match_context_free(p->bounds);
  pcre2_match_data_free(p->data);
  pcre2_code_free(p->code);
  free(p);
}

int rf_pattern_found(rf_pattern *p, const char *text, size_t bytes) {
  p->left = RF_PATTERN_STEPS;
  int found = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, 0, 0, p->data, p->bounds);
  return found >= 0 ? 1 : found == PCRE2_ERROR_NOMATCH ? 0 : -1;
}
