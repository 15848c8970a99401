/* text.h - parsers for numbers and names that people type. */
#ifndef RF_TEXT_H
#define RF_TEXT_H

#include "base/base.h"

/* Parsers of numbers. The whole text must be one finite number in range, and must have no blanks.
 * Otherwise, the parsers return false and do not change *value. */
bool rf_text_int(const char *text, int64_t *value);
bool rf_text_float(const char *text, double *value);
/* Reads "1", "0", "true", "false", "yes", "no", "on" or "off". */
bool rf_text_bool(const char *text, bool *value);

bool rf_text_ends_with(const char *text, const char *end);
/* Prints a double with the fewest digits (15 to 17) that read back as the same double. */
void rf_text_real(double value, char text[40]);

/* Appends formatted text to `buffer` (`size` bytes). If the text is too long, its end is
 * dropped. */
void rf_text_append(char *buffer, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Returns the end of a noun after a count: "" for 1, otherwise "s". */
const char *rf_plural(int64_t count);

/* Compares two times in words, for people: "12.3 % less time", "0.5 % more time". From a factor of
 * 2 on: "11.7 x faster" or "3.5 x slower". rf_text_ratio has the same rule for two other numbers:
 * "+12.3 %", "11.7 x" or "1/11.7". Return `text`. */
const char *rf_text_speed(double before_seconds, double after_seconds, char text[32]);
const char *rf_text_ratio(double before, double after, char text[32]);

/* Number of edits that change one word to the other. An edit inserts, deletes, replaces or swaps
 * letters. Upper and lower case are equal. '_' and '-' are equal. */
int rf_edit_distance(const char *a, const char *b);
/* Returns the name most similar to `word`. NULL: no name is similar. Skips NULL entries. */
const char *rf_nearest(const char *word, const char *const *names, int count);

/* A word of other programs, and the word of rafter that hints name instead. A table ends with
 * {NULL, NULL}. */
typedef struct rf_synonym {
  const char *said, *ours;
} rf_synonym;
/* Returns the next row after `from` for the `length` bytes at `word`. '_' equals '-'. For the
 * first row, `from` is NULL. NULL: no further row. */
const rf_synonym *rf_synonym_of(const rf_synonym *table, const rf_synonym *from, const char *word,
                                size_t length);

#endif
