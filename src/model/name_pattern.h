/* name_pattern.h - regular expressions for names of layers, from users and files. */
#ifndef RF_NAME_PATTERN_H
#define RF_NAME_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct rf_name_pattern rf_name_pattern;

/* Compiles a regular expression (PCRE2) that must match a full name. Returns NULL if the
 * expression is invalid or memory runs out. */
rf_name_pattern *rf_name_pattern_new(const char *text);
void rf_name_pattern_free(rf_name_pattern *pattern); /* NULL is allowed */
/* Returns 1 or 0; -1 when matching exceeds the step limit. Only a few matches of a pattern may
 * take many steps, which bounds the total work for every pattern. Not thread-safe. */
int rf_name_pattern_matches(rf_name_pattern *pattern, const char *name, size_t length);

#endif
