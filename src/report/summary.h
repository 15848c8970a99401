/* summary.h - the summary of a run: its bound, its measured and predicted times by phase and kind
 * of op, and changes that would gain time. docs/formats.md, "The summary". */
#ifndef RF_REPORT_SUMMARY_H
#define RF_REPORT_SUMMARY_H

#include <jansson.h>
#include <stdbool.h>

/* Makes the summary of an entry that rf_report_add has checked. The summary of a run without
 * measurements has the predictions of the plan. NULL only when out of memory. */
json_t *rf_report_summary(const json_t *entry);
/* A lower bound of the share of forward-pass time in which threads waited for a core. */
double rf_report_others_part(const json_t *entry);
/* A summary as text of at most 30 lines and 110 columns. malloc'ed. */
char *rf_report_summary_text(const json_t *summary);

#endif
