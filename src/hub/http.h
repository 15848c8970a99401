/* http.h - a GET request that survives lost connections. The request retries with back-off,
 * continues with ranges, and follows redirects. Only the endpoint's own origin gets the token. */
#ifndef RF_HTTP_H
#define RF_HTTP_H

#include "base/base.h"

typedef struct rf_http rf_http;

typedef struct rf_http_settings {
  const char *endpoint;     /* for example "https://huggingface.co"; only this origin gets the token */
  const char *token;        /* NULL or "": no token */
  double timeout_seconds;   /* a connection counts as lost after this many seconds without a byte */
  int retries;              /* maximum number of attempts in a row without a new byte */
  const volatile int *stop; /* may be NULL */
  void (*wait)(void *self, const char *why, double seconds); /* called before each pause; may be NULL */
  void *self;
} rf_http_settings;

/* Receives the body of a response. After a lost connection, `at` is the byte to continue from. */
typedef struct rf_http_body {
  int64_t at;
  int64_t most; /* maximum size in bytes, 1 or more; a longer body is an error */
  /* true: the body must have exactly `most` bytes, and a shorter body means a lost connection */
  bool exact;
  /* The server's ETag for the bytes before `at`; "": the server sent none. If a later response
   * has another ETag, the download starts from the beginning. */
  char etag[256];
  /* This callback is called once for each response. `at` (0 or body->at) is the position of the
   * first byte of the response. */
  rf_status (*begin)(void *self, int64_t at, rf_error *error);
  rf_status (*take)(void *self, const void *data, size_t bytes, rf_error *error);
  void *self;
} rf_http_body;

/* The server's last response, without its body. The texts are printable. */
typedef struct rf_http_answer {
  long code; /* 200 (also for a 206), or the code of a refusal: 401, 404, 429, 503, ... */
  char reason[64], message[256];
} rf_http_answer;

rf_status rf_http_open(const rf_http_settings *settings, rf_http **http, rf_error *error);
void rf_http_close(rf_http *http); /* `http` may be NULL */
bool rf_http_has_token(const rf_http *http);
/* Returns RAFTER_OK even if the server refuses the request: check answer->code. RAFTER_FAILED: no
 * connection was possible, too many connections were lost, or the body has too many bytes.
 * RAFTER_INTERRUPTED: the caller asked to stop. body->at is the number of received bytes. */
rf_status rf_http_get(rf_http *http, const char *url, rf_http_body *body, rf_http_answer *answer,
                      rf_error *error);
/* Appends `text` to a URL. Escapes all characters except letters, digits and -._~ (and '/' if
 * `path`). Returns false if `url` is too small for the result. */
bool rf_http_escape(char *url, size_t size, const char *text, bool path);

#endif
