/* wrong.h - writes errors as HTTP answers: {"error": {"message", "type", "param", "code"}}. */
#ifndef RF_WRONG_H
#define RF_WRONG_H

#include "serve/body.h"

typedef struct rf_wrong {
  int status; /* of HTTP: 400, 404, ...; 0: no error */
  const char *code;
  char param[64]; /* "": none */
  char message[900];
} rf_wrong;

/* Fills the error and returns false. `code` may be NULL. `param` may be NULL. */
bool rf_wrong_set(rf_wrong *wrong, int status, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Fills the error from an error of rafter.h, and returns false. */
bool rf_wrong_from(rf_wrong *wrong, int status, const char *code, const char *param, const rf_error *error);
bool rf_wrong_stopping(rf_wrong *wrong); /* Fills status 503 (the server stops), and returns false. */
void rf_wrong_json(const rf_wrong *wrong, rf_body *out);

#endif
