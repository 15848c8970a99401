/* thin.h - thins the metrics of a long run for the page. docs/formats.md, "The report model". */
#ifndef RF_REPORT_THIN_H
#define RF_REPORT_THIN_H

#include <jansson.h>

enum { RF_THIN_FROM = 2000, RF_THIN_TO = 1000 };

/* Returns a copy of a report entry, with `step_seconds`. If the entry has more than RF_THIN_FROM
 * steps of metrics, the copy has RF_THIN_TO ranges of steps. The result is a new reference, or NULL
 * if memory runs out. */
json_t *rf_report_thin(json_t *entry);

/* Returns the seconds of all steps of an entry except the first step. The object has "least",
 * "median", "p90" and "most". If the entry has only one step, the object is empty. A new
 * reference. */
json_t *rf_report_step_seconds(const json_t *entry);

#endif
