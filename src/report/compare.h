/* compare.h - two entries of a report model side by side: options, memory, and time and bytes op
 * by op. docs/formats.md, "A comparison". */
#ifndef RF_REPORT_COMPARE_H
#define RF_REPORT_COMPARE_H

#include <jansson.h>
#include <stdbool.h>

/* Run against run, plan against run, plan against plan: what was measured where there is a
 * measurement, else what is predicted. NULL only without memory. */
json_t *rf_report_compare(const json_t *a, const json_t *b);
/* Whether both have the walk that the first is known by: a training beside a generation has
 * none. */
bool rf_report_comparable(const json_t *a, const json_t *b);
/* Of the entries of a model, for every walk that both sides have: each against each (of many,
 * each against the first, or in their first walk only), as they ran and as they were planned,
 * and each as it ran against its own plan. `rows` of each list at most, the largest differences;
 * 0: all. */
json_t *rf_report_comparisons(const json_t *runs, size_t rows);
/* The same as tables, `rows` of each at most. malloc'ed. */
char *rf_report_compare_text(const json_t *comparison, int rows);
/* Options of two runs that differ: a list of {"name", "a", "b"}; where one leaves an option
 * unset its value is null. */
json_t *rf_report_options_that_differ(const json_t *a, const json_t *b);

#endif
