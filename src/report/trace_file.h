/* trace_file.h - reads and writes trace.bin, the file of a recorded trace (docs/formats.md). */
#ifndef RF_TRACE_FILE_H
#define RF_TRACE_FILE_H

#include <jansson.h>

#include "run/record.h"

/* A trace in the layout of the file. Each column has one value per span. The spans are sorted by
 * lane, and then by begin. */
typedef struct rf_trace_file {
  json_t *header;
  int64_t count;
  const int64_t *begin, *end; /* ns since the origin */
  const double *value;        /* the meaning of a value depends on the span's kind */
  const int32_t *id;
  const uint16_t *lane;
  const uint8_t *kind, *plan;
  const void *columns; /* all columns, in the layout of the file */
  size_t column_bytes;
  void *memory; /* allocation with the columns */
} rf_trace_file;

/* Reads a trace and checks all sizes, kinds, lanes, ids and the order of spans. RAFTER_FAILED: the
 * error names the file and the field. */
rf_status rf_trace_file_read(const char *path, rf_trace_file *file, rf_error *error);
/* Like rf_trace_file_read, for a file's contents. Takes ownership of `text`, which is malloc'ed. */
rf_status rf_trace_file_parse(const char *path, char *text, size_t bytes, rf_trace_file *file,
                              rf_error *error);
void rf_trace_file_free(rf_trace_file *file);

/* Writes Chrome trace events, which Perfetto opens. Lanes become threads, and counters become
 * counter tracks. */
rf_status rf_trace_file_chrome(const rf_trace_file *file, const char *path, rf_error *error);
/* Like rf_trace_file_chrome, but writes only spans that begin before the time `until` (ns). */
rf_status rf_trace_file_chrome_until(const rf_trace_file *file, int64_t until, const char *path,
                                     rf_error *error);
rf_status rf_trace_file_csv(const rf_trace_file *file, const char *path, rf_error *error);

/* Writes trace.bin and trace.json into a run's folder. trace.json has as many first steps as fit in
 * RF_TRACE_JSON_SPANS spans, but at least one. `about` has keys for the header, or is NULL.
 * *in_json gets the number of steps in trace.json. *header gets the header, which the caller owns.
 * in_json and header may be NULL. */
enum { RF_TRACE_JSON_SPANS = 100000 };
rf_status rf_trace_write(const rf_trace *trace, json_t *about, const char *folder, json_t **header,
                         int *in_json, rf_error *error);

#endif
