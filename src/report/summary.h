/* summary.h - the summary of a run: its bound, measured and predicted times by phase and kind of
 * op, and changes that would save time. Format: docs/formats.md, "The summary". */
#ifndef RF_REPORT_SUMMARY_H
#define RF_REPORT_SUMMARY_H

#include <jansson.h>
#include <stdbool.h>

/* Makes the summary of an entry that rf_report_add has checked. If the run has no measurements, the
 * summary has the predictions of the plan. The result is NULL only if memory runs out. */
json_t *rf_report_summary(const json_t *entry);
/* Returns a lower bound for the fraction of forward-pass time in which threads waited for a
 * core. */
double rf_report_others_part(const json_t *entry);
/* Returns a summary as malloc'ed text with at most 30 lines of 110 columns. */
char *rf_report_summary_text(const json_t *summary);

#endif
