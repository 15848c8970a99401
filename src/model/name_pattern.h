/* name_pattern.h - regular expressions that people and files name layers with. */
#ifndef RF_NAME_PATTERN_H
#define RF_NAME_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct rf_name_pattern rf_name_pattern;

/* What a whole name may be; NULL: the text is no regular expression (PCRE2's), or there is no
 * memory. */
rf_name_pattern *rf_name_pattern_new(const char *text);
void rf_name_pattern_free(rf_name_pattern *pattern); /* NULL is allowed */
/* 1, 0; -1: it takes more steps than names of layers are worth. Of one pattern only some matches
 * may be long, so that whatever is written in one, its work grows with the names alone. Not for
 * several threads at once. */
int rf_name_pattern_matches(rf_name_pattern *pattern, const char *name, size_t length);

#endif
