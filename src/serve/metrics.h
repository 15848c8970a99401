/* metrics.h - counters and histograms for Prometheus. Names and buckets are those of vLLM, so that
 * dashboards for vLLM work. The caller locks. */
#ifndef RF_METRICS_H
#define RF_METRICS_H

#include "serve/body.h"

enum { RF_METRIC_BUCKETS = 24, RF_METRIC_CODES = 600 };

typedef enum rf_histogram_kind {
  RF_HISTOGRAM_FIRST,     /* seconds from a request to its first token */
  RF_HISTOGRAM_BETWEEN,   /* seconds between tokens */
  RF_HISTOGRAM_PER_TOKEN, /* seconds per token of an answer, without its first token */
  RF_HISTOGRAM_WHOLE,     /* seconds of a request */
  RF_HISTOGRAM_PROMPT,    /* tokens of a prompt */
  RF_HISTOGRAM_ANSWER,    /* tokens of an answer */
  RF_HISTOGRAMS
} rf_histogram_kind;

typedef struct rf_metrics {
  struct rf_histogram {
    int64_t count[RF_METRIC_BUCKETS];
    double sum;
  } histogram[RF_HISTOGRAMS];
  int64_t finished[5];           /* answers by rafter_finish */
  int64_t code[RF_METRIC_CODES]; /* HTTP answers by status */
  int64_t prompt_tokens, tokens;
  double busy_seconds; /* seconds of all steps, including work outside the forward passes */
} rf_metrics;

void rf_metrics_observe(rf_metrics *metrics, rf_histogram_kind kind, double value);
/* `running`: number of answers that have a token. `waiting`: number of answers that wait for their
 * first token. */
void rf_metrics_text(const rf_metrics *metrics, const rafter_counts *counts, int64_t running, int64_t waiting,
                     const char *prefix, const char *model, rf_body *out);

#endif
