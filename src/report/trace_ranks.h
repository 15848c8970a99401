/* trace_ranks.h - the trace of a run on several ranks. Each rank records its own trace. Rank 0
 * joins the traces in one trace.bin, piece by piece, and so needs memory only for its own trace. */
#ifndef RF_REPORT_TRACE_RANKS_H
#define RF_REPORT_TRACE_RANKS_H

#include "report/trace_file.h"

/* The trace of one rank. The times of all ranks count from the same origin (run/clock.h). */
typedef struct rf_trace_part {
  const json_t *header; /* header of the rank's own trace */
  const json_t *rank;   /* further keys for the rank's entry in the list `ranks` of the joined header */
  /* Gets the next piece of the rank's columns, in the order of rf_trace_pieces. */
  rf_status (*next)(void *self, void *to, size_t bytes, rf_error *error);
  void *self;
} rf_trace_part;

/* Calls `visit` for each piece of the columns of a trace. A piece has at most RF_TRACE_PIECE values
 * of one column. */
enum { RF_TRACE_PIECE = 1 << 15 };
typedef rf_status (*rf_trace_visit)(void *self, const void *data, size_t bytes, rf_error *error);
rf_status rf_trace_pieces(const rf_trace_file *file, rf_trace_visit visit, void *self, rf_error *error);

/* Like rf_trace_write, for the traces of all ranks: part `r` is the trace of rank r. The lanes of
 * rank 0 come first in the file. */
rf_status rf_trace_join(const rf_trace_part *part, int parts, const char *folder, json_t **header,
                        int *in_json, rf_error *error);

/* Makes the header and columns of a trace in memory, for rf_trace_pieces. */
rf_status rf_trace_file_of(const rf_trace *trace, json_t *about, rf_trace_file *file, rf_error *error);

#endif
