/* trace_parts.h - declarations that the files that write and join traces share. Private to
 * src/report. */
#ifndef RF_REPORT_TRACE_PARTS_H
#define RF_REPORT_TRACE_PARTS_H

#include "base/file.h"
#include "report/trace_ranks.h"

/* The columns, in the order of the file. Wider types come first, so that each column is aligned. */
enum { RF_TRACE_COLUMNS = 7 };
typedef struct rf_trace_column {
  const char *name, *type;
  size_t bytes; /* of a value */
} rf_trace_column;
extern const rf_trace_column RF_TRACE_COLUMN[RF_TRACE_COLUMNS];
size_t rf_trace_span_bytes(void); /* of all columns */

/* Sets the pointers to the columns, which begin at file->columns. */
void rf_trace_file_point(rf_trace_file *file);
/* Opens a file for a trace with `count` spans and writes the header. The columns follow. */
rf_status rf_trace_file_begin(const json_t *header, int64_t count, const char *path, rf_out_file **out,
                              rf_error *error);
/* Writes the first steps of a trace into trace.json. Returns the number of steps in trace.json. */
rf_status rf_trace_file_json(const rf_trace_file *file, const char *folder, int *steps, rf_error *error);

#define RF_TRACE_HINT "the file is damaged or not a trace.bin of this version: record the trace again"
rf_status rf_trace_check_steps(const json_t *steps, size_t gap_count, const char *path, rf_error *error);
/* Checks the list `ranks` of a header if the header has one. */
rf_status rf_trace_check_ranks(const json_t *header, const char *path, rf_error *error);
/* Returns the rank of each lane, malloc'ed. In a trace of one process, all ranks are 0. NULL: out
 * of memory. */
int *rf_trace_lane_ranks(const rf_trace_file *file);

#endif
