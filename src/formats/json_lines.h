/* json_lines.h - reads JSON Lines: one object on each line. Blank lines are skipped. A duplicate
 * name in an object is an error. */
#ifndef RF_JSON_LINES_H
#define RF_JSON_LINES_H

#include <stdio.h>

#include "base/json.h"

/* A file that is read line by line, so that the memory does not grow with the file's size. */
typedef struct rf_json_lines {
  const char *path; /* belongs to the caller */
  FILE *file;
  char *text; /* current line, including its newline */
  size_t bytes, capacity;
  int64_t line; /* number of the current line, from 1 */
} rf_json_lines;

/* If the file is missing, the error has the hint `hint` (may be NULL). */
rf_status rf_json_lines_open(const char *path, const char *hint, rf_json_lines *lines, rf_error *error);
/* Reads the next line that is not blank, without parsing it. *more is false after the last line. */
rf_status rf_json_lines_text(rf_json_lines *lines, bool *more, rf_error *error);
/* Reads the next line as an object, which the caller owns. At the end of the file, *row is NULL. */
rf_status rf_json_lines_next(rf_json_lines *lines, json_t **row, rf_error *error);
void rf_json_lines_close(rf_json_lines *lines);

/* Parses one line. The error names the file and the line. The parsed row of a long line needs only
 * a few times as much memory as the line, because equal numbers of a long list use one JSON value.
 * LINE_BYTES and LINE_VALUES in json_lines.c limit a line. */
rf_status rf_json_line(const char *text, size_t bytes, const char *path, int64_t line, json_t **row,
                       rf_error *error);

#endif
