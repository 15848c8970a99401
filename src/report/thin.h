/* thin.h - the steps of a long run, few enough for a page. docs/formats.md, "The report model". */
#ifndef RF_REPORT_THIN_H
#define RF_REPORT_THIN_H

#include <jansson.h>

enum { RF_THIN_FROM = 2000, RF_THIN_TO = 1000 };

/* A copy of an entry with `step_seconds` of all its steps, and of more than RF_THIN_FROM rows of
 * metrics RF_THIN_TO. A new reference; NULL only without memory. */
json_t *rf_report_thin(json_t *entry);

/* `least median p90 most` of the seconds of an entry's steps but the first, of all its rows; an
 * empty object where it has none. A new reference. */
json_t *rf_report_step_seconds(const json_t *entry);

#endif
