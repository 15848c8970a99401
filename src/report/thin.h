/* thin.h - thins the metrics of a long run for the page. docs/formats.md, "The report model". */
#ifndef RF_REPORT_THIN_H
#define RF_REPORT_THIN_H

#include <jansson.h>

enum { RF_THIN_FROM = 2000, RF_THIN_TO = 1000 };

/* Returns a copy of an entry with `step_seconds` added; more than RF_THIN_FROM rows of metrics
 * become RF_THIN_TO rows. The result is a new reference, and NULL only when out of memory. */
json_t *rf_report_thin(json_t *entry);

/* Seconds of all steps of an entry except the first: an object with "least", "median", "p90" and
 * "most", or an empty object if the entry has only one step. A new reference. */
json_t *rf_report_step_seconds(const json_t *entry);

#endif
