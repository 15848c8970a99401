/* metrics.h - reads the metrics of a run (metrics.jsonl) for the report model. */
#ifndef RF_REPORT_METRICS_H
#define RF_REPORT_METRICS_H

#include <jansson.h>

#include "base/base.h"

/* Sets "start" and "metrics" of the entry. In a training run, a wrong line or value is an error. In
 * a run with rewards, a wrong line is skipped, and "metrics_skipped" counts it. */
rf_status rf_report_read_metrics(const char *path, json_t *entry, rf_error *error);

#endif
