/* http.h - one GET that survives lost connections: retries with back-off, ranges, and redirects
 * that never send the token to another host. */
#ifndef RF_HTTP_H
#define RF_HTTP_H

#include "base/base.h"

typedef struct rf_http rf_http;

typedef struct rf_http_settings {
  /* "https://huggingface.co": the only origin that gets the token */
  const char *endpoint;
  const char *token; /* NULL or "": none */
  /* a connection without a byte for this long counts as lost */
  double timeout_seconds;
  int retries;                                               /* attempts in a row without a new byte */
  const volatile int *stop;                                  /* may be NULL */
  void (*wait)(void *self, const char *why, double seconds); /* called before a pause; may be NULL */
  void *self;
} rf_http_settings;

/* Destination of a body. `at` counts the bytes taken so far; another attempt continues there. */
typedef struct rf_http_body {
  int64_t at;
  int64_t most; /* maximum size, at least 1; the first byte above it is refused */
  bool exact;   /* the body has exactly `most` bytes: if it ends earlier, the connection was lost */
  /* ETag of the bytes before `at`; a server with another one starts from the beginning. Updated;
   * "" if the server names none */
  char etag[256];
  /* Called once for each answer: its body starts at byte `at`, which is 0 or body->at. */
  rf_status (*begin)(void *self, int64_t at, rf_error *error);
  rf_status (*take)(void *self, const void *data, size_t bytes, rf_error *error);
  void *self;
} rf_http_body;

/* The server's last answer if it did not send the body: printable texts of the hub. */
typedef struct rf_http_answer {
  long code; /* 200 (also for a 206), or the refusal: 401, 404, 429, 503, ... */
  char reason[64], message[256];
} rf_http_answer;

rf_status rf_http_open(const rf_http_settings *settings, rf_http **http, rf_error *error);
void rf_http_close(rf_http *http); /* NULL is allowed */
bool rf_http_has_token(const rf_http *http);
/* RAFTER_OK also if the server refuses; see answer->code. RAFTER_FAILED: no connection, lost too
 * often, or more bytes than allowed. RAFTER_INTERRUPTED: asked to stop; body->at is the
 * progress. */
rf_status rf_http_get(rf_http *http, const char *url, rf_http_body *body, rf_http_answer *answer,
                      rf_error *error);
/* Appends `text` to a URL and escapes all but letters, digits and -._~ ('/' too stays if
 * `path`). Returns false if it does not fit. */
bool rf_http_escape(char *url, size_t size, const char *text, bool path);

#endif
