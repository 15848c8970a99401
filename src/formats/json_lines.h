/* json_lines.h - JSON Lines: one object per line; blank lines are allowed; a repeated name in an
 * object is an error. */
#ifndef RF_JSON_LINES_H
#define RF_JSON_LINES_H

#include <stdio.h>

#include "base/json.h"

/* A file that is read line by line, so that memory does not grow with it. */
typedef struct rf_json_lines {
  const char *path; /* the caller's */
  FILE *file;
  char *text; /* the line, with its end */
  size_t bytes, capacity;
  int64_t line; /* its number, from 1 */
} rf_json_lines;

/* `hint`: advice if the file is missing; may be NULL. */
rf_status rf_json_lines_open(const char *path, const char *hint, rf_json_lines *lines, rf_error *error);
/* Reads the next line that is not blank, unparsed; *more is false after the last. */
rf_status rf_json_lines_text(rf_json_lines *lines, bool *more, rf_error *error);
/* The same as an object; json_decref() it. *row is NULL after the last. */
rf_status rf_json_lines_next(rf_json_lines *lines, json_t **row, rf_error *error);
void rf_json_lines_close(rf_json_lines *lines);

/* Parses one such line. RAFTER_FAILED names the file and the line. */
rf_status rf_json_line(const char *text, size_t bytes, const char *path, int64_t line, json_t **row,
                       rf_error *error);

#endif
