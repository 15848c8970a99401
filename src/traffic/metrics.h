/* metrics.h - reads the numbers of running and waiting requests from a server's /metrics page, in
 * the text format of Prometheus. */
#ifndef RF_TRAFFIC_METRICS_H
#define RF_TRAFFIC_METRICS_H

#include "base/base.h"

/* Computes the sums over all labels. Knows the names of these metrics in vLLM, rafter, SGLang and
 * llama-server. Returns false if the page has neither number. `text` ends with a NUL. */
bool rf_traffic_read_metrics(const char *text, double *running, double *waiting);

#endif
