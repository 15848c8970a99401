/* json_lines.c - see json_lines.h. */
#define _GNU_SOURCE
#include "formats/json_lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

rf_status rf_json_lines_open(const char *path, const char *hint, rf_json_lines *lines, rf_error *error) {
  int file;
  *lines = (rf_json_lines){.path = path};
  RF_TRY(rf_file_open(path, hint, &file, error));
  lines->file = fdopen(file, "r");
  if (lines->file) return RAFTER_OK;
  close(file);
  return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot open %s (%s)", path, strerror(errno));
}

rf_status rf_json_lines_text(rf_json_lines *lines, bool *more, rf_error *error) {
  for (;;) {
    errno = 0;
    ssize_t bytes = getline(&lines->text, &lines->capacity, lines->file);
    *more = bytes > 0;
    if (bytes <= 0 && (ferror(lines->file) || errno == ENOMEM))
      return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot read %s (%s)", lines->path, strerror(errno));
    if (bytes <= 0) return RAFTER_OK;
    lines->line++;
    lines->bytes = (size_t)bytes;
    if (strspn(lines->text, " \t\r\n") < lines->bytes) return RAFTER_OK;
  }
}

rf_status rf_json_lines_next(rf_json_lines *lines, json_t **row, rf_error *error) {
  bool more;
  *row = NULL;
  RF_TRY(rf_json_lines_text(lines, &more, error));
  return more ? rf_json_line(lines->text, lines->bytes, lines->path, lines->line, row, error) : RAFTER_OK;
}

void rf_json_lines_close(rf_json_lines *lines) {
  if (lines->file) fclose(lines->file);
  free(lines->text);
  *lines = (rf_json_lines){0};
}

rf_status rf_json_line(const char *text, size_t bytes, const char *path, int64_t line, json_t **row,
                       rf_error *error) {
  json_error_t bad;
  *row = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &bad);
  if (json_is_object(*row)) return RAFTER_OK;
  rf_status status = RF_FAIL(error, RAFTER_FAILED, "each line must be one JSON object",
                             "%s is not JSON Lines (line %lld: %s)", path, (long long)line,
                             *row ? "expected an object" : bad.text);
  json_decref(*row);
  *row = NULL;
  return status;
}
