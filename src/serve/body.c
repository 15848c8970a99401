/* body.c - see body.h. */
#include "serve/body.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rf_body_free(rf_body *out) {
  free(out->at);
  *out = (rf_body){0};
}

static void reserve(rf_body *out, size_t more) {
  if (out->bytes + more + 1 <= out->room) return;
  out->room = 2 * (out->bytes + more + 128);
  out->at = rf_must(realloc(out->at, out->room));
}

void rf_body_bytes(rf_body *out, const char *at, size_t bytes) {
  reserve(out, bytes);
  if (bytes) memcpy(out->at + out->bytes, at, bytes);
  out->bytes += bytes;
  out->at[out->bytes] = 0;
}

void rf_body_text(rf_body *out, const char *text) { rf_body_bytes(out, text, strlen(text)); }

void rf_body_format(rf_body *out, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int bytes = vsnprintf(NULL, 0, format, again);
  va_end(again);
  if (bytes > 0) {
    reserve(out, (size_t)bytes);
    vsnprintf(out->at + out->bytes, (size_t)bytes + 1, format, arguments);
    out->bytes += (size_t)bytes;
  }
  va_end(arguments);
}

/* Returns the number of bytes of the UTF-8 character at `at`; 0: the bytes are invalid. */
static size_t character(const char *at, size_t bytes) {
  const uint8_t *b = (const uint8_t *)at;
  /* Table 3-7 of the Unicode standard: the range of the second byte depends on the first byte. */
  size_t length = b[0] < 0x80 ? 1 : b[0] < 0xc2 ? 0 : b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : b[0] < 0xf5 ? 4 : 0;
  if (length == 0 || length > bytes) return 0;
  for (size_t i = 1; i < length; i++)
    if ((b[i] & 0xc0) != 0x80) return 0;
  if (length == 1) return 1;
  uint8_t least = b[0] == 0xe0   ? 0xa0
                  : b[0] == 0xf0 ? 0x90
                                 : 0x80,
          most = b[0] == 0xed   ? 0x9f
                 : b[0] == 0xf4 ? 0x8f
                                : 0xbf;
  return b[1] >= least && b[1] <= most ? length : 0;
}

/* Returns the escape of U+0085, U+2028 and U+2029, or NULL for other characters. JSON allows these
 * three characters, but many clients end a line at them, and an event of a stream must be one
 * line. */
static const char *line_end(const char *at, size_t length) {
  if (length == 2 && !memcmp(at, "\xc2\x85", 2)) return "\\u0085";
  if (length == 3 && !memcmp(at, "\xe2\x80\xa8", 3)) return "\\u2028";
  if (length == 3 && !memcmp(at, "\xe2\x80\xa9", 3)) return "\\u2029";
  return NULL;
}

void rf_body_string(rf_body *out, const char *at, size_t bytes) {
  rf_body_text(out, "\"");
  for (size_t i = 0; i < bytes;) {
    size_t plain = i;
    while (plain < bytes && at[plain] >= 0x20 && at[plain] != '"' && at[plain] != '\\' && at[plain] != 0x7f)
      plain++; /* the type char is signed, so bytes of 0x80 or more also end this loop */
    rf_body_bytes(out, at + i, plain - i);
    if (plain == bytes) break;
    i = plain;
    size_t length = character(at + i, bytes - i);
    const char *escaped = line_end(at + i, length);
    if (escaped) rf_body_text(out, escaped);
    else if (length > 1) rf_body_bytes(out, at + i, length);
    else if (!length) rf_body_text(out, "\xef\xbf\xbd");
    else if (at[i] == '"' || at[i] == '\\') rf_body_format(out, "\\%c", at[i]);
    else if (at[i] == '\n') rf_body_text(out, "\\n");
    else rf_body_format(out, "\\u%04x", at[i]);
    i += length ? length : 1;
  }
  rf_body_text(out, "\"");
}

void rf_body_logprob(rf_body *out, float value) {
  rf_body_format(out, "%.9g", value >= -9999 ? (double)value : -9999.0);
}
