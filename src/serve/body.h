/* body.h - a growing text, with functions that append JSON values. */
#ifndef RF_BODY_H
#define RF_BODY_H

#include "base/base.h"

/* {0} is an empty text. If memory runs out, the process ends with a message of one line
 * (rf_must). */
typedef struct rf_body {
  char *at; /* (bytes), followed by a NUL; NULL: empty */
  size_t bytes, room;
} rf_body;

void rf_body_free(rf_body *out);
void rf_body_bytes(rf_body *out, const char *at, size_t bytes);
void rf_body_text(rf_body *out, const char *text);
void rf_body_format(rf_body *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends any bytes as a JSON string. Each byte of an invalid character becomes U+FFFD. */
void rf_body_string(rf_body *out, const char *at, size_t bytes);
/* Appends a log-probability. JSON has no infinity, so -9999 is the smallest number, as in vLLM. */
void rf_body_logprob(rf_body *out, float value);

#endif
