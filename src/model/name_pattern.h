/* name_pattern.h - regular expressions, from users and files, for names of layers. */
#ifndef RF_NAME_PATTERN_H
#define RF_NAME_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct rf_name_pattern rf_name_pattern;

/* Compiles a regular expression (PCRE2) that must match a full name. Returns NULL if the
 * expression is invalid or memory runs out. */
rf_name_pattern *rf_name_pattern_new(const char *text);
void rf_name_pattern_free(rf_name_pattern *pattern); /* NULL is allowed */
/* Returns 1 if the pattern matches, 0 if it does not, and -1 if matching exceeds the step limit.
 * Only the first few calls that need many steps get a high limit, so the total work for a pattern
 * is bounded. Not thread-safe. */
int rf_name_pattern_matches(rf_name_pattern *pattern, const char *name, size_t length);

#endif
