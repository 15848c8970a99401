/* http.c - a GET request with libcurl. This file follows redirects itself and does not use
 * libcurl's redirects, because it must decide which server gets the token. */
#define _GNU_SOURCE
#include "hub/http.h"

#include "base/text.h"
#include "hub/late.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { URL_BYTES = 8192, MAX_REDIRECTS = 10, MAX_ATTEMPTS = 1000 };
static const double LONGEST_PAUSE = 30, LONGEST_ASKED_PAUSE = 300; /* seconds */

struct rf_http {
  rf_http_settings settings;
  CURL *curl;
  bool reached; /* the server has answered once, so a later failure may be temporary */
};

/* The state of one attempt. */
typedef struct attempt {
  rf_http *http;
  rf_http_body *body;
  rf_http_answer *answer;
  rf_error *error;
  rf_status status; /* status that the last callback of `body` returned */
  bool begun, stopped, stalled, other_range;
  int64_t first, last_bytes;
  double last_seconds, retry_after;
  char etag[sizeof((rf_http_body *)0)->etag], problem[CURL_ERROR_SIZE];
} attempt;

/* ---- callbacks of libcurl -------------------------------------------------------------------- */

/* Copies only the printable ASCII characters, because texts from the server are printed. */
static void copy_printable(char *to, size_t size, const char *from, size_t bytes) {
  size_t n = 0;
  for (size_t i = 0; i < bytes && n + 1 < size; i++)
    if (from[i] >= ' ' && from[i] < 127) to[n++] = from[i];
  to[n] = 0;
}

static bool header_is(const char *line, size_t bytes, const char *name, const char **value,
                      size_t *value_bytes) {
  size_t n = strlen(name);
  if (bytes <= n || strncasecmp(line, name, n) || line[n] != ':') return false;
  const char *first = line + n + 1, *end = line + bytes;
  while (first < end && isspace((unsigned char)*first)) first++;
  while (end > first && isspace((unsigned char)end[-1])) end--;
  *value = first;
  *value_bytes = (size_t)(end - first);
  return true;
}

static size_t on_header(char *line, size_t one, size_t bytes, void *self) {
  attempt *a = self;
  const char *value;
  size_t n;
  char text[64];
  (void)one;
  if (bytes > 5 && !strncasecmp(line, "HTTP/", 5)) {
    a->etag[0] = 0;
    a->first = 0;
    a->retry_after = 0;
    *a->answer = (rf_http_answer){0};
  }
  if (header_is(line, bytes, "ETag", &value, &n) && n < sizeof a->etag && strncmp(value, "W/", 2))
    copy_printable(a->etag, sizeof a->etag, value, n);
  else if (header_is(line, bytes, "Content-Range", &value, &n)) {
    copy_printable(text, sizeof text, value, n);
    long long first;
    a->first = sscanf(text, "bytes %lld-", &first) == 1 ? first : -1;
  } else if (header_is(line, bytes, "Retry-After", &value, &n)) {
    copy_printable(text, sizeof text, value, n);
    a->retry_after = atof(text); /* a Retry-After with a date gives 0: use the usual back-off */
  } else if (header_is(line, bytes, "X-Error-Code", &value, &n))
    copy_printable(a->answer->reason, sizeof a->answer->reason, value, n);
  else if (header_is(line, bytes, "X-Error-Message", &value, &n))
    copy_printable(a->answer->message, sizeof a->answer->message, value, n);
  return bytes;
}

static bool begin(attempt *a) {
  long code = 0;
  a->begun = true;
  rf_curl.easy_getinfo(a->http->curl, CURLINFO_RESPONSE_CODE, &code);
  int64_t at = code == 206 ? a->first : 0;
  if (code == 206 && at != a->body->at) return a->other_range = true, false;
  if (at == 0) memcpy(a->body->etag, a->etag, sizeof a->body->etag);
  curl_off_t length = -1;
  rf_curl.easy_getinfo(a->http->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  if (length >= 0 && (at + length > a->body->most || (a->body->exact && at + length != a->body->most))) {
    a->status =
        RF_FAIL(a->error, RAFTER_FAILED,
                "the server sends another file than it lists: try again later, or choose another revision",
                "wrong size (expected %s%lld bytes, got %lld)", a->body->exact ? "" : "at most ",
                (long long)a->body->most, (long long)(at + length));
    return false;
  }
  a->body->at = at;
  a->status = a->body->begin(a->body->self, at, a->error);
  return a->status == RAFTER_OK;
}

static size_t on_body(char *data, size_t one, size_t bytes, void *self) {
  attempt *a = self;
  long code = 0;
  (void)one;
  rf_curl.easy_getinfo(a->http->curl, CURLINFO_RESPONSE_CODE, &code);
  /* this text belongs to an error, and not to the body of the file */
  if (code != 200 && code != 206) return bytes;
  if (!a->begun && !begin(a)) return 0;
  if ((int64_t)bytes > a->body->most - a->body->at) {
    a->status =
        RF_FAIL(a->error, RAFTER_FAILED,
                "the server sends another file than it lists: try again later, or choose another revision",
                "wrong size (expected at most %lld bytes, got more)", (long long)a->body->most);
    return 0;
  }
  a->status = a->body->take(a->body->self, data, bytes, a->error);
  if (a->status != RAFTER_OK) return 0;
  a->body->at += (int64_t)bytes;
  return bytes;
}

static int on_time(void *self, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up) {
  attempt *a = self;
  double seconds = rf_now_seconds();
  (void)total;
  (void)up_total;
  (void)up;
  if (now != a->last_bytes) {
    a->last_bytes = now;
    a->last_seconds = seconds;
  }
  a->stalled = seconds - a->last_seconds > a->http->settings.timeout_seconds;
  a->stopped = rf_flag_is_set(a->http->settings.stop);
  return a->stalled || a->stopped;
}

/* ---- origins --------------------------------------------------------------------------------- */

/* Writes the scheme, host and port of a URL. Only the origin of the endpoint receives the token. */
static bool origin_of(const char *url, char origin[512]) {
  char *scheme = NULL, *host = NULL, *port = NULL;
  CURLU *parsed = rf_curl.url();
  bool ok = parsed && !rf_curl.url_set(parsed, CURLUPART_URL, url, 0) &&
            !rf_curl.url_get(parsed, CURLUPART_SCHEME, &scheme, 0) &&
            !rf_curl.url_get(parsed, CURLUPART_HOST, &host, 0) &&
            !rf_curl.url_get(parsed, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) &&
            snprintf(origin, 512, "%s://%s:%s", scheme, host, port) < 512;
  for (char *c = origin; ok && *c; c++) *c = (char)tolower((unsigned char)*c);
  rf_curl.free(scheme);
  rf_curl.free(host);
  rf_curl.free(port);
  rf_curl.url_cleanup(parsed);
  return ok;
}

static bool same_origin(const char *a, const char *b) {
  char one[512], other[512];
  return origin_of(a, one) && origin_of(b, other) && !strcmp(one, other);
}

bool rf_http_escape(char *url, size_t size, const char *text, bool path) {
  size_t n = strlen(url);
  for (; *text; text++) {
    bool plain = isalnum((unsigned char)*text) || strchr("-._~", *text) || (path && *text == '/');
    if (n + 4 > size) return false;
    n += (size_t)sprintf(url + n, plain ? "%c" : "%%%02X", (unsigned char)*text);
  }
  return true;
}

/* ---- one attempt ----------------------------------------------------------------------------- */

rf_status rf_http_open(const rf_http_settings *settings, rf_http **out, rf_error *error) {
  char origin[512] = "";
  RF_TRY(rf_late_load(error));
  if (rf_curl.global_init(CURL_GLOBAL_DEFAULT))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "libcurl does not start");
  if (!origin_of(settings->endpoint, origin) ||
      (strncmp(origin, "http://", 7) && strncmp(origin, "https://", 8)))
    return RF_FAIL(error, RAFTER_INVALID, "for example --endpoint https://huggingface.co",
                   "the endpoint is not an address (expected http:// or https://, got '%s')",
                   settings->endpoint);
  rf_http *http = calloc(1, sizeof *http);
  if (!http || !(http->curl = rf_curl.easy_init())) {
    free(http);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a connection");
  }
  http->settings = *settings;
  *out = http;
  return RAFTER_OK;
}

void rf_http_close(rf_http *http) {
  if (!http) return;
  rf_curl.easy_cleanup(http->curl);
  free(http);
}

bool rf_http_has_token(const rf_http *http) { return http->settings.token && *http->settings.token; }

static CURLcode perform(attempt *a, const char *url) {
  rf_http *http = a->http;
  CURL *curl = http->curl;
  struct curl_slist *headers = NULL;
  char text[320];
  a->begun = a->stalled = a->stopped = a->other_range = false;
  a->last_bytes = 0;
  a->last_seconds = rf_now_seconds();
  *a->problem = 0;
  rf_curl.easy_reset(curl);
  rf_curl.easy_setopt(curl, CURLOPT_URL, url);
  rf_curl.easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  rf_curl.easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  rf_curl.easy_setopt(curl, CURLOPT_ERRORBUFFER, a->problem);
  rf_curl.easy_setopt(curl, CURLOPT_USERAGENT, "rafter/" RF_VERSION);
  rf_curl.easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(http->settings.timeout_seconds * 1000));
  rf_curl.easy_setopt(curl, CURLOPT_BUFFERSIZE, 1L << 18);
  rf_curl.easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  rf_curl.easy_setopt(curl, CURLOPT_HEADERDATA, a);
  rf_curl.easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  rf_curl.easy_setopt(curl, CURLOPT_WRITEDATA, a);
  rf_curl.easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_time);
  rf_curl.easy_setopt(curl, CURLOPT_XFERINFODATA, a);
  rf_curl.easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  if (rf_http_has_token(http) && same_origin(url, http->settings.endpoint)) {
    rf_curl.easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    rf_curl.easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, http->settings.token);
  }
  if (a->body->at > 0) {
    snprintf(text, sizeof text, "Range: bytes=%lld-", (long long)a->body->at);
    headers = rf_curl.slist_append(headers, text);
    if (*a->body->etag) {
      snprintf(text, sizeof text, "If-Range: %s", a->body->etag);
      headers = rf_curl.slist_append(headers, text);
    }
  }
  rf_curl.easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  CURLcode code = rf_curl.easy_perform(curl);
  rf_curl.slist_free_all(headers);
  return code;
}

typedef enum outcome { DONE, REFUSED, CUT, FAILED, STOPPED } outcome;

/* Returns the reason for a failed or lost connection, for the error message. */
static const char *words_of(const attempt *a, CURLcode code) {
  return a->stalled ? "no more data came" : *a->problem ? a->problem : rf_curl.easy_strerror(code);
}

static outcome judge(attempt *a, CURLcode code) {
  rf_http *http = a->http;
  if (a->stopped) return STOPPED;
  if (a->status != RAFTER_OK) return FAILED;
  /* The server answered a range request wrongly, so the download starts from the beginning. */
  if (a->other_range) {
    a->body->at = 0;
    a->body->etag[0] = 0;
    return CUT;
  }
  if (code == CURLE_OK) {
    rf_curl.easy_getinfo(http->curl, CURLINFO_RESPONSE_CODE, &a->answer->code);
    http->reached = true;
    /* The partial file differs from the beginning of the server's file. */
    if (a->answer->code == 416 && a->body->at > 0) {
      a->body->at = 0;
      a->body->etag[0] = 0;
      return CUT;
    }
    if (a->answer->code != 200 && a->answer->code != 206) return REFUSED;
    if (!a->begun && !begin(a)) return a->status == RAFTER_OK ? CUT : FAILED; /* an empty body */
    a->answer->code = 200;
    return a->body->exact && a->body->at < a->body->most ? CUT : DONE;
  }
  switch (code) {
  case CURLE_PARTIAL_FILE:
  case CURLE_RECV_ERROR:
  case CURLE_SEND_ERROR:
  case CURLE_GOT_NOTHING:
  case CURLE_HTTP2:
  case CURLE_HTTP2_STREAM:
  case CURLE_ABORTED_BY_CALLBACK: /* no byte arrived before the time limit */
    http->reached = true;
    return CUT;
  case CURLE_OPERATION_TIMEDOUT:
  case CURLE_COULDNT_CONNECT:
  case CURLE_COULDNT_RESOLVE_HOST:
  case CURLE_SSL_CONNECT_ERROR:
    if (http->reached) return CUT;
    break;
  default: break;
  }
  a->status = RF_FAIL(a->error, RAFTER_FAILED,
                      code == CURLE_PEER_FAILED_VERIFICATION
                          ? "the server's certificate is not trusted here: is ca-certificates installed?"
                          : "check --endpoint and the network",
                      "cannot reach the server (%s)", words_of(a, code));
  return FAILED;
}

/* Sends the request and follows redirects. `url` receives the address that the last redirect
 * named. */
static outcome attempt_once(attempt *a, char url[URL_BYTES], CURLcode *code) {
  for (int hops = 0;; hops++) {
    *code = perform(a, url);
    outcome end = judge(a, *code);
    char *next = NULL;
    if (end != REFUSED || a->answer->code < 300 || a->answer->code >= 400) return end;
    rf_curl.easy_getinfo(a->http->curl, CURLINFO_REDIRECT_URL, &next);
    bool leaves_tls = next && !strncasecmp(url, "https:", 6) && strncasecmp(next, "https:", 6);
    if (!next || leaves_tls || hops == MAX_REDIRECTS || strlen(next) >= URL_BYTES) {
      a->status = RF_FAIL(a->error, RAFTER_FAILED, "the endpoint does not behave like a hub",
                          "the server redirects the request (%s)",
                          !next        ? "without an address"
                          : leaves_tls ? "from https to an unencrypted address"
                                       : "too often");
      return FAILED;
    }
    strcpy(url, next);
  }
}

/* ---- retries --------------------------------------------------------------------------------- */

static bool is_passing(long code) {
  return code == 408 || code == 425 || code == 429 || code == 500 || (code >= 502 && code <= 504);
}

/* Returns the seconds to wait before the next attempt: half a second, doubled after each failure.
 * The time varies randomly by a quarter, so that disconnected clients do not return all at once. */
static double pause_of(int failures, double asked) {
  double seconds = 0.5 * (double)(1 << (failures < 8 ? failures : 8));
  if (seconds > LONGEST_PAUSE) seconds = LONGEST_PAUSE;
  seconds *= 0.75 + 0.5 * (double)(clock() % 1000) / 1000;
  return asked > seconds ? asked : seconds;
}

static bool wait_for(const rf_http *http, double seconds) {
  double end = rf_now_seconds() + seconds;
  while (rf_now_seconds() < end) {
    if (rf_flag_is_set(http->settings.stop)) return false;
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
  }
  return true;
}

rf_status rf_http_get(rf_http *http, const char *url, rf_http_body *body, rf_http_answer *answer,
                      rf_error *error) {
  attempt a = {.http = http, .body = body, .answer = answer, .error = error};
  char at[URL_BYTES], why[256];
  int failures = 0;
  int64_t furthest = body->at;
  if (strlen(url) >= sizeof at)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "an address is too long (%zu bytes)", strlen(url));
  for (int attempts = 1;; attempts++) {
    CURLcode code;
    strcpy(at, url);
    outcome end = attempt_once(&a, at, &code);
    if (end == DONE) return RAFTER_OK;
    if (end == FAILED) return a.status;
    if (end == STOPPED)
      return RF_FAIL(error, RAFTER_INTERRUPTED, "run the same command again to continue",
                     "stopped by a signal; the downloaded bytes are kept");
    if (end == REFUSED && (!is_passing(answer->code) || a.retry_after > LONGEST_ASKED_PAUSE))
      return RAFTER_OK;
    /* A connection that delivered new bytes does not count as a failure. */
    failures = body->at > furthest ? 0 : failures + 1;
    if (body->at > furthest) furthest = body->at;
    if (end == REFUSED) snprintf(why, sizeof why, "the server answers %ld", answer->code);
    else
      snprintf(why, sizeof why, "the connection was cut (%s)",
               code == CURLE_OK ? "the body ended early" : words_of(&a, code));
    if (failures > http->settings.retries || attempts == MAX_ATTEMPTS) {
      if (end == REFUSED) return RAFTER_OK;
      return RF_FAIL(error, RAFTER_FAILED, "run the same command again to continue; --retries tries longer",
                     "%s at byte %lld, %d time%s without a new byte", why, (long long)body->at, failures,
                     rf_plural(failures));
    }
    double seconds = pause_of(failures - 1 < 0 ? 0 : failures - 1, end == REFUSED ? a.retry_after : 0);
    if (!failures) seconds *= 0.4;
    if (http->settings.wait) http->settings.wait(http->settings.self, why, seconds);
    if (!wait_for(http, seconds))
      return RF_FAIL(error, RAFTER_INTERRUPTED, "run the same command again to continue",
                     "stopped by a signal; the downloaded bytes are kept");
  }
}
