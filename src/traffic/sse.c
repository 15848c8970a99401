/* sse.c - see sse.h. */
#include "traffic/sse.h"

#include <stdlib.h>
#include <string.h>

static rf_status append(rf_sse_text *text, const char *at, size_t bytes, rf_error *error) {
  if (bytes > RF_SSE_MOST - text->bytes)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "an event of the stream is too long (expected at most %d bytes)", RF_SSE_MOST);
  size_t needed = text->bytes + bytes + 1;
  if (needed > text->capacity) {
    size_t capacity = 2 * needed < 256 ? 256 : 2 * needed;
    char *grown = realloc(text->at, capacity);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while reading a stream");
    text->at = grown;
    text->capacity = capacity;
  }
  if (bytes) memcpy(text->at + text->bytes, at, bytes);
  text->bytes += bytes;
  text->at[text->bytes] = 0;
  return RAFTER_OK;
}

/* Ends an event at a blank line. Ignores an event without data. */
static rf_status end_event(rf_sse *s, rf_error *error) {
  rf_status status = RAFTER_OK;
  if (s->has_data) status = s->event(s->self, s->data.at, s->data.bytes, error);
  s->has_data = false;
  s->data.bytes = 0;
  return status;
}

/* Skips a byte order mark, with which the first line of a stream may begin. */
static void skip_mark(rf_sse *s, const char **at, size_t *bytes) {
  if (!s->begun && *bytes >= 3 && !memcmp(*at, "\xef\xbb\xbf", 3)) {
    *at += 3;
    *bytes -= 3;
  }
  s->begun = true;
}

static rf_status end_line(rf_sse *s, rf_error *error) {
  const char *at = s->line.at;
  size_t bytes = s->line.bytes;
  skip_mark(s, &at, &bytes);
  s->line.bytes = 0;
  if (!bytes) return end_event(s, error);
  const char *colon = memchr(at, ':', bytes);
  size_t name = colon ? (size_t)(colon - at) : bytes;
  if (name != 4 || memcmp(at, "data", 4)) return RAFTER_OK; /* a comment, or another field */
  at += colon ? 5 : 4;
  bytes -= colon ? 5 : 4;
  if (bytes && *at == ' ') {
    at++;
    bytes--;
  }
  if (s->has_data) RF_TRY(append(&s->data, "\n", 1, error));
  s->has_data = true;
  return append(&s->data, at, bytes, error);
}

rf_status rf_sse_feed(rf_sse *s, const char *at, size_t bytes, rf_error *error) {
  const char *end = at + bytes;
  while (at < end) {
    if (s->after_cr && *at == '\n') { /* second byte of the line break CR LF */
      s->after_cr = false;
      at++;
      continue;
    }
    s->after_cr = false;
    const char *stop = at;
    while (stop < end && *stop != '\n' && *stop != '\r') stop++;
    RF_TRY(append(&s->line, at, (size_t)(stop - at), error));
    if (stop == end) return RAFTER_OK;
    s->after_cr = *stop == '\r';
    at = stop + 1;
    RF_TRY(end_line(s, error));
  }
  return RAFTER_OK;
}

rf_status rf_sse_end(rf_sse *s, rf_error *error) {
  if (s->line.bytes) RF_TRY(end_line(s, error));
  return end_event(s, error);
}

void rf_sse_reset(rf_sse *s) {
  s->line.bytes = s->data.bytes = 0;
  s->has_data = s->after_cr = s->begun = false;
}

void rf_sse_free(rf_sse *s) {
  free(s->line.at);
  free(s->data.at);
  s->line = s->data = (rf_sse_text){0};
}
