/* traced.h - `--trace` of a command: a record while it runs, trace.bin and trace.json in its folder when it is done. */
#ifndef RF_API_TRACED_H
#define RF_API_TRACED_H

#include "api/api.h"
#include "run/record.h"

/* Opens a record where --trace asks for one; else *record is NULL. Before the first phase that should be seen. */
rf_status rf_traced_open(const rf_options *options, rf_record **record, rf_error *error);
/* Writes what was recorded into `folder` and says so. Without a record it does nothing. The record stays open. */
rf_status rf_traced_write(const rf_record *record, const char *command, const char *folder, const rf_report_walk *walk, int walks,
                          const rafter_sink *sink, rf_error *error);

#endif
