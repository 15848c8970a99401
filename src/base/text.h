/* text.h - parsers for numbers and names that people type. */
#ifndef RF_TEXT_H
#define RF_TEXT_H

#include "base/base.h"

/* Parse the complete text as one number: no blanks, no letters after it, finite, in range. On
 * failure the parsers return false and leave *value as it was. */
bool rf_text_int(const char *text, int64_t *value);
bool rf_text_float(const char *text, double *value);
/* "1", "0", "true", "false", "yes", "no", "on", "off". */
bool rf_text_bool(const char *text, bool *value);

bool rf_text_ends_with(const char *text, const char *end);
/* Prints a double with the fewest digits (15 to 17) that read back as the same double. */
void rf_text_real(double value, char text[40]);

/* Appends formatted text to `buffer`, which has `size` bytes. Cuts what does not fit. */
void rf_text_append(char *buffer, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Number of edits (insert, delete, replace, swap) between two words. Ignores case; '_' equals
 * '-'. */
int rf_edit_distance(const char *a, const char *b);
/* The name nearest to `word`, or NULL if no name is near. NULL entries of `names` are skipped. */
const char *rf_nearest(const char *word, const char *const *names, int count);

#endif
