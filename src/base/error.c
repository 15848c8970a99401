/* error.c - fills the error of the caller with a message, a hint and the source line. */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Returns the end of a source path. The result begins at the last "src/", "include/" or "tests/".
 * This part of the path is the same on all machines. */
static const char *short_path(const char *file) {
  static const char *const roots[] = {"src/", "include/", "tests/"};
  const char *shortest = NULL;
  for (size_t i = 0; i < sizeof roots / sizeof roots[0]; ++i)
    for (const char *at = strstr(file, roots[i]); at; at = strstr(at + 1, roots[i]))
      if ((at == file || at[-1] == '/') && (!shortest || at > shortest)) shortest = at;
  return shortest ? shortest : file;
}

rf_status rf_fail(rf_error *error, rf_status status, const char *file, int line, const char *hint,
                  const char *format, ...) {
  if (!error) return status;
  /* The text is formatted into another buffer, because an argument may be the old text of
   * `error`. */
  char message[sizeof error->message], advice[sizeof error->hint];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  snprintf(advice, sizeof advice, "%s", hint ? hint : "");
  error->status = status;
  memcpy(error->message, message, sizeof message);
  memcpy(error->hint, advice, sizeof advice);
  snprintf(error->source, sizeof error->source, "%s:%d", short_path(file), line);
  return status;
}
