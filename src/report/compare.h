/* compare.h - compares two entries of a report model: options, memory, and time and bytes of each
 * op. Format: docs/formats.md, "A comparison". */
#ifndef RF_REPORT_COMPARE_H
#define RF_REPORT_COMPARE_H

#include <jansson.h>
#include <stdbool.h>

/* Compares two entries: runs or plans. Uses measured times if both entries were measured, otherwise
 * predicted times. Returns NULL only when out of memory. */
json_t *rf_report_compare(const json_t *a, const json_t *b);
/* True if both entries have a plan with the name of the first entry's main plan ("train", "decode",
 * ...). Training and generation, for example, are not comparable. */
bool rf_report_comparable(const json_t *a, const json_t *b);
/* Compares the entries of a report model in each plan ("train", "prefill", ...) that both have, and
 * each run with its own plan. Measured times are compared with measured times, predicted times with
 * predicted times. Many entries are compared only in their main plan, and very many only with the
 * first entry. A list of ops has at most the `rows` largest differences (0: all). */
json_t *rf_report_comparisons(const json_t *runs, size_t rows);
/* A comparison as tables in text form, with at most `rows` rows each. malloc'ed. */
char *rf_report_compare_text(const json_t *comparison, int rows);
/* The options that differ between two runs: {"name", "a", "b"}. An unset option is null. */
json_t *rf_report_options_that_differ(const json_t *a, const json_t *b);

#endif
