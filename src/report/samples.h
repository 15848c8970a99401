/* samples.h - answers of reinforcement learning (samples.jsonl) for the report model. Any bytes can
 * be read, because wrong lines and values are skipped and counted. docs/formats.md, "The report
 * model". */
#ifndef RF_REPORT_SAMPLES_H
#define RF_REPORT_SAMPLES_H

#include <jansson.h>

#include "base/base.h"

/* Maximum bytes of one step, of a report model, and of all samples of a page. The bytes of a step
 * are the bytes of its text in the page. */
enum { RF_SAMPLES_STEP = 2 << 20, RF_SAMPLES_MODEL = 24 << 20, RF_SAMPLES_PAGE = 6 << 20 };
/* A longer text is cut. Further tokens, samples and groups are left out, and their number is
 * counted. */
enum { RF_SAMPLES_TEXT = 64 << 10, RF_SAMPLES_TOKENS = 4096, RF_SAMPLES_COUNT = 64, RF_SAMPLES_GROUPS = 64 };

/* Reads the file. If the file has more than RF_SAMPLES_MODEL bytes, keeps the first step, the last
 * step, and steps at equal distances. RAFTER_FAILED: the file cannot be read. */
rf_status rf_report_read_samples(const char *path, json_t **samples, rf_error *error);

/* Returns a copy whose steps need at most about `bytes`. The copy has the first step, the last
 * step, and steps at equal distances. The first and the last step are always kept. The result is a
 * new reference, or NULL if memory runs out. */
json_t *rf_report_thin_samples(const json_t *samples, size_t bytes);

#endif
