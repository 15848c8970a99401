/* number.h - finds the number at the end of an answer, as the evaluation of GSM8K does. */
#ifndef RF_NUMBER_H
#define RF_NUMBER_H

#include "base/base.h"

/* The regular expression of a number: a sign, also before a dollar sign; digits, with commas before
 * groups of digits; a fraction; an exponent. The sign may be U+2212. */
#define RF_NUMBER_PATTERN \
  "(?:(?<![0-9])(?:-|\xe2\x88\x92)\\$?)?" \
  "(?:[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}(?![0-9])(?:\\.[0-9]+)?|[0-9]+(?:\\.[0-9]+)?" \
  "|(?<![0-9A-Za-z.])\\.[0-9]+)(?:[eE][-+]?[0-9]+(?![0-9A-Za-z]))?"

/* Bytes of a number with its NUL. A longer number counts as no number. */
enum { RF_NUMBER_BYTES = 1024 };

typedef struct rf_numbers rf_numbers; /* the compiled pattern */
rf_status rf_numbers_open(rf_numbers **numbers, rf_error *error);
void rf_numbers_close(rf_numbers *numbers); /* NULL is allowed */

/* Writes the last number of a text, without commas. Returns false if the text has no number. */
bool rf_numbers_last(const rf_numbers *numbers, const char *text, size_t bytes, char number[RF_NUMBER_BYTES]);
/* Writes the first number after "####" (then *marked is true). Otherwise, writes the last number of
 * the text. */
bool rf_numbers_final(const rf_numbers *numbers, const char *text, size_t bytes, bool *marked,
                      char number[RF_NUMBER_BYTES]);
/* True if two texts are the same number, such as "7" and "7.00". Texts without an exponent are
 * compared by all their digits. */
bool rf_numbers_equal(const char *a, const char *b);

#endif
