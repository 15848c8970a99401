/* trace_file.h - trace.bin: what was recorded, in a file. docs/formats.md describes it. */
#ifndef RF_TRACE_FILE_H
#define RF_TRACE_FILE_H

#include <jansson.h>

#include "run/record.h"

/* A trace as it stands in the file. Columns have `count` entries each, sorted by lane and begin. */
typedef struct rf_trace_file {
  json_t *header;
  int64_t count;
  const int64_t *begin, *end; /* ns since the origin */
  const double *value;        /* by kind */
  const int32_t *id;
  const uint16_t *lane;
  const uint8_t *kind, *plan;
  const void *columns; /* all of them, as in the file */
  size_t column_bytes;
  void *memory; /* that holds them */
} rf_trace_file;

/* `about`: keys that the header takes over (command, model, ...); may be NULL. */
/* Everything is checked before it is used: sizes, kinds, lanes, ids, order. RAFTER_FAILED names
 * file and field. */
rf_status rf_trace_file_read(const char *path, rf_trace_file *file, rf_error *error);
/* takes `text`, malloc'ed */
rf_status rf_trace_file_parse(const char *path, char *text, size_t bytes, rf_trace_file *file,
                              rf_error *error);
void rf_trace_file_free(rf_trace_file *file);

/* The same as Chrome trace events, which Perfetto opens: lanes as threads of one process,
 * counters as tracks of it. */
rf_status rf_trace_file_chrome(const rf_trace_file *file, const char *path, rf_error *error);
/* Of spans that begin before `until` (ns) alone. */
rf_status rf_trace_file_chrome_until(const rf_trace_file *file, int64_t until, const char *path,
                                     rf_error *error);
/* One row for each span. */
rf_status rf_trace_file_csv(const rf_trace_file *file, const char *path, rf_error *error);

/* trace.bin and trace.json in a run's folder, the latter of as many of the first steps as
 * RF_TRACE_JSON_SPANS hold, but of one at least: *in_json (may be NULL). *header (may be NULL):
 * what the file begins with; the caller's. */
enum { RF_TRACE_JSON_SPANS = 100000 };
rf_status rf_trace_write(const rf_trace *trace, json_t *about, const char *folder, json_t **header,
                         int *in_json, rf_error *error);

#endif
