/* summary.h - what limits a run and what to change: measured times joined with the plan's, by
 * phase and by kind of op. docs/formats.md, "The summary". */
#ifndef RF_REPORT_SUMMARY_H
#define RF_REPORT_SUMMARY_H

#include <jansson.h>
#include <stdbool.h>

/* Summary of an entry of a report model (checked: model.h). Without measurements it says what the
 * plan predicts. NULL only without memory. */
json_t *rf_report_summary(const json_t *entry);
/* The least part of its threads' time in walks in which a run was ready and had no core. */
double rf_report_others_part(const json_t *entry);
/* The same in at most 30 lines of at most 110 columns. malloc'ed. */
char *rf_report_summary_text(const json_t *summary);

#endif
