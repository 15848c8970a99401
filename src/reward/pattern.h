/* pattern.h - a regular expression of the user, searched in texts that a model wrote. Expression
 * and text may be hostile, so the steps of a search are bounded. */
#ifndef RF_PATTERN_H
#define RF_PATTERN_H

#include "base/base.h"

enum { RF_PATTERN_BYTES = 4096, RF_PATTERN_STEPS = 2000000 };

typedef struct rf_pattern rf_pattern;
/* Compiles an expression in the syntax of PCRE2. RAFTER_INVALID: the error names the position. */
rf_status rf_pattern_open(const char *text, rf_pattern **pattern, rf_error *error);
void rf_pattern_close(rf_pattern *pattern); /* NULL is allowed */
/* 1: some part of the text matches. 0: none does. -1: the search needs more than RF_PATTERN_STEPS
 * steps or too much memory. The result does not depend on the time. */
int rf_pattern_found(rf_pattern *pattern, const char *text, size_t bytes);

#endif
