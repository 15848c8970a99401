/* stats.h - statistics of a run, with the names and definitions of `vllm bench serve`.
 *
 *   TTFT  time to first token: from the start of the request's clock (traffic.h) to its first tokens
 *   E2EL  end-to-end latency: from there to its last tokens
 *   TPOT  time per output token: (E2EL - TTFT) / (output tokens - 1), for 2 tokens or more
 *   ITL   inter-token latency: gaps between events with tokens, over all requests. A server that
 *         sends several tokens in an event has fewer and longer gaps.
 *
 * A percentile p of n sorted values interpolates linearly at the rank (n - 1) p / 100, as numpy
 * does by default. Only completed requests count. */
#ifndef RF_TRAFFIC_STATS_H
#define RF_TRAFFIC_STATS_H

#include <jansson.h>

#include "traffic/traffic.h"

enum { RF_TRAFFIC_TTFT, RF_TRAFFIC_TPOT, RF_TRAFFIC_ITL, RF_TRAFFIC_E2EL, RF_TRAFFIC_METRICS };
enum { RF_TRAFFIC_MAX_PERCENTILES = 16 };

typedef struct rf_traffic_percentiles {
  double p[RF_TRAFFIC_MAX_PERCENTILES]; /* 0 to 100 */
  int count;
} rf_traffic_percentiles;

/* Seconds; 0 without values. `std` is that of the whole population. */
typedef struct rf_traffic_metric {
  int64_t count;
  double mean, median, p99, std, p[RF_TRAFFIC_MAX_PERCENTILES];
} rf_traffic_metric;

/* Maximum seconds of each metric for a request that counts as good; 0: no limit. */
typedef struct rf_traffic_slo {
  double most[RF_TRAFFIC_METRICS];
  bool given;
} rf_traffic_slo;

typedef struct rf_traffic_stats {
  int64_t completed, failed, cancelled, good;
  int64_t input_tokens, output_tokens;
  int64_t uncounted; /* completed requests whose tokens the server did not count */
  double seconds;    /* duration of the run */
  rf_traffic_metric metric[RF_TRAFFIC_METRICS];
  double most_tokens_per_second; /* maximum number of tokens in one second of the run */
  int64_t most_running;
  /* Means over time of the requests that were sent and not ended, of those whose first token had
   * come, and of those that waited for it. Requests that failed without a token count only as
   * running. */
  double running, batch, queue;
  double late, latest_late; /* mean and maximum seconds between planned time and sending */
  /* The server does not keep up: when the last request arrived, more than 1/20 of all requests
   * waited for their first token; or more than 1/20 failed. In a closed loop, always false. */
  bool saturated;
} rf_traffic_stats;

/* Percentile p of `count` sorted values; 0 without values. */
double rf_traffic_percentile(const double *sorted, int64_t count, double p);
/* Sorts the values. */
rf_traffic_metric rf_traffic_metric_of(double *value, int64_t count, const rf_traffic_percentiles *p);

/* RAFTER_FAILED: out of memory. */
rf_status rf_traffic_stats_of(const rf_traffic_record *record, int64_t count, bool closed, double seconds,
                              const rf_traffic_percentiles *p, const rf_traffic_slo *slo,
                              rf_traffic_stats *stats, rf_error *error);
/* Tokens of a record: as the server counts them, otherwise the events with tokens, and the asked
 * length of the prompt. */
int64_t rf_traffic_output_tokens(const rf_traffic_record *record);
int64_t rf_traffic_input_tokens(const rf_traffic_record *record);

/* An object with vLLM's names: "mean_ttft_ms", "p99_itl_ms", "request_throughput", ... */
json_t *rf_traffic_stats_json(const rf_traffic_stats *stats, const rf_traffic_percentiles *p,
                              const rf_traffic_slo *slo);
/* A list of {"kind", "count", "message"}, the most frequent kind first. */
json_t *rf_traffic_faults_json(const rf_traffic_record *record, int64_t count);
/* One object for a request, as a line of --output. */
json_t *rf_traffic_record_json(const rf_traffic_record *record, int64_t index);
/* Reads "ttft:500,tpot:50" (milliseconds) and adds it to `slo`. RAFTER_INVALID names the part. */
rf_status rf_traffic_slo_parse(const char *text, rf_traffic_slo *slo, rf_error *error);
/* A percentile in a name, as vLLM writes it: "99", "99.9". */
char *rf_traffic_percentile_name(double p, char text[32]);

#endif
