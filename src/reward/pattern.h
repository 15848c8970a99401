/* pattern.h - a regular expression of the user, which is searched for in texts of a model. The
 * expression and the text may be hostile, so the steps of a search are limited. */
#ifndef RF_PATTERN_H
#define RF_PATTERN_H

#include "base/base.h"

enum { RF_PATTERN_BYTES = 4096, RF_PATTERN_STEPS = 2000000 };

typedef struct rf_pattern rf_pattern;
/* Compiles an expression in the syntax of PCRE2. RAFTER_INVALID: the error names the position. */
rf_status rf_pattern_open(const char *text, rf_pattern **pattern, rf_error *error);
void rf_pattern_close(rf_pattern *pattern); /* NULL is allowed */
/* Returns 1 if some part of the text matches, and 0 if no part matches. Returns -1 if the search
 * needs more than RF_PATTERN_STEPS steps or too much memory. The result does not depend on the
 * machine's speed. */
int rf_pattern_found(rf_pattern *pattern, const char *text, size_t bytes);

#endif
