/* compare.h - compares two entries of a report model: options, memory, and the time and bytes of
 * each op. Format: docs/formats.md, "A comparison". */
#ifndef RF_REPORT_COMPARE_H
#define RF_REPORT_COMPARE_H

#include <jansson.h>
#include <stdbool.h>

/* Compares two entries: runs or plans. Times are measured times if both entries were measured,
 * otherwise predicted times. The result is NULL only if memory runs out. */
json_t *rf_report_compare(const json_t *a, const json_t *b);
/* True if both entries have a plan with the name of the first entry's main plan ("train", "decode",
 * ...). Training and generation, for example, are not comparable. */
bool rf_report_comparable(const json_t *a, const json_t *b);
/* Compares the entries of a report model in each plan ("train", "prefill", ...) that two entries
 * have in common, and each run with its own plan. Measured times are only compared with measured
 * times, and predicted times with predicted times. Many entries are compared only in their main
 * plan. Very many entries are compared only with the first entry. A list of ops has at most `rows`
 * rows (0: all), which have the largest differences. */
json_t *rf_report_comparisons(const json_t *runs, size_t rows);
/* Returns a malloc'ed text with the tables of a comparison. Each table has at most `rows` rows. */
char *rf_report_compare_text(const json_t *comparison, int rows);
/* Returns the options that differ between two runs: {"name", "a", "b"}. An unset option is null. */
json_t *rf_report_options_that_differ(const json_t *a, const json_t *b);

#endif
