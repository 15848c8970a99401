/* compare.h - compares two entries of a report model: options, memory, and time and bytes of each
 * op. docs/formats.md, "A comparison". */
#ifndef RF_REPORT_COMPARE_H
#define RF_REPORT_COMPARE_H

#include <jansson.h>
#include <stdbool.h>

/* Compares two runs, a run and a plan, or two plans. It uses measured times if both were
 * measured, otherwise the predicted times of both. Returns NULL only when out of memory. */
json_t *rf_report_compare(const json_t *a, const json_t *b);
/* Whether both entries have a plan with the name of the first entry's main plan ("train",
 * "decode", ...). Training and generation, for example, are not comparable. */
bool rf_report_comparable(const json_t *a, const json_t *b);
/* Compares the entries of a report model in each plan ("train", "prefill", ...) that both have,
 * and each run with its own plan. Measured times are compared with measured, predicted with
 * predicted. With many entries, only the first entry is compared with the others, and only in
 * the main plan. Each list of ops has at most the `rows` largest differences; 0: all. */
json_t *rf_report_comparisons(const json_t *runs, size_t rows);
/* A comparison as text tables of at most `rows` rows. malloc'ed. */
char *rf_report_compare_text(const json_t *comparison, int rows);
/* Options of two runs that differ: a list of {"name", "a", "b"}; the value of an unset option is
 * null. */
json_t *rf_report_options_that_differ(const json_t *a, const json_t *b);

#endif
