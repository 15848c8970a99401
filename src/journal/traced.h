/* traced.h - `--trace` of a command: a record while it runs, trace.bin and trace.json in its
 * folder when it is done. */
#ifndef RF_TRACED_H
#define RF_TRACED_H

#include "journal/journal.h"
#include "run/record.h"

/* Opens a record where --trace asks for one; else *record is NULL. Before the first phase that
 * should be seen. */
rf_status rf_traced_open(const rf_options *options, rf_record **record, rf_error *error);
/* Refuses a --trace that asks for none of the steps that a run will take. */
rf_status rf_traced_check(const rf_options *options, int64_t first, int64_t last, rf_error *error);
/* Writes what was recorded into the journal's folder and says so: before the run is summed up,
 * whose summary knows the trace's causes then. `walk`: the plans in the order of the run that
 * walked them. Without a record it does nothing. The record stays open. */
rf_status rf_traced_write(const rf_record *record, rf_journal *journal, const rf_report_walk *walk, int walks,
                          rf_error *error);

/* The same for a command that leaves no folder otherwise: --out, or a name of its own, with
 * run.json, plan.json and report.json. `part` (may be NULL): a folder in it. `results`: for the
 * history, an object. */
rf_status rf_traced_leave(const rf_record *record, const rf_options *options, const char *part,
                          const rf_run *run, const rf_report_walk *walk, int walks, json_t *results,
                          const rafter_sink *sink, rf_error *error);

extern const rf_option RF_TRACE_OPTIONS[];

#endif
