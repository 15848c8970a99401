/* http.h - one GET that survives cut connections: retries with back-off, ranges, redirects that
 * a token does not follow to another host. */
#ifndef RF_HTTP_H
#define RF_HTTP_H

#include "base/base.h"

typedef struct rf_http rf_http;

typedef struct rf_http_settings {
  /* "https://huggingface.co": the only origin that sees the token */
  const char *endpoint;
  const char *token; /* NULL or "": none */
  /* without a byte for so long a connection counts as cut */
  double timeout_seconds;
  int retries;                                               /* in a row that bring nothing new */
  const volatile int *stop;                                  /* may be NULL */
  void (*wait)(void *self, const char *why, double seconds); /* told before a pause; may be NULL */
  void *self;
} rf_http_settings;

/* Where a body goes. `at` counts what has been taken and is where a further attempt goes on. */
typedef struct rf_http_body {
  int64_t at;
  int64_t most; /* bytes allowed, at least 1; the body is refused at the first byte beyond */
  bool exact;   /* most is also the least: a body that ends earlier was cut */
  /* of what stands before `at`: a server that has another starts anew. Kept up to date; "" where
   * it names none */
  char etag[256];
  /* The body starts at byte `at`, which is 0 or body->at; called once for each answer. */
  rf_status (*begin)(void *self, int64_t at, rf_error *error);
  rf_status (*take)(void *self, const void *data, size_t bytes, rf_error *error);
  void *self;
} rf_http_body;

/* What the server answered in the end, when it did not give the body: texts of the hub,
 * printable. */
typedef struct rf_http_answer {
  long code; /* 200 (also of a 206), or the refusal: 401, 404, 429, 503, ... */
  char reason[64], message[256];
} rf_http_answer;

rf_status rf_http_open(const rf_http_settings *settings, rf_http **http, rf_error *error);
void rf_http_close(rf_http *http); /* NULL is allowed */
bool rf_http_has_token(const rf_http *http);
/* RAFTER_OK also when the server refuses: answer->code says so. RAFTER_FAILED: no connection,
 * cut too often, more bytes than allowed. RAFTER_INTERRUPTED: asked to stop; body->at says how
 * far it came. */
rf_status rf_http_get(rf_http *http, const char *url, rf_http_body *body, rf_http_answer *answer,
                      rf_error *error);
/* Appends `text` to a URL with what is not a letter, digit or one of -._~ escaped; '/' stays
 * where `path`. false: it did not fit. */
bool rf_http_escape(char *url, size_t size, const char *text, bool path);

#endif
