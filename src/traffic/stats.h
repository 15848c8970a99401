/* stats.h - statistics of a run, with the names and definitions of `vllm bench serve`.
 *
 *   TTFT  Time to first token: from rf_traffic_record.from to the first tokens of the answer.
 *   E2EL  End-to-end latency: from rf_traffic_record.from to the last tokens of the answer.
 *   TPOT  Time per output token: (E2EL - TTFT) / (output tokens - 1), for at least 2 tokens.
 *   ITL   Inter-token latency: gaps between events with tokens, over all requests. A server
 *         that sends several tokens in an event has fewer and longer gaps.
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

/* Seconds; 0 without values. `std` is the standard deviation of the whole population. */
typedef struct rf_traffic_metric {
  int64_t count;
  double mean, median, p99, std, p[RF_TRAFFIC_MAX_PERCENTILES];
} rf_traffic_metric;

/* Maximum seconds of each metric in a good request; 0: no limit. */
typedef struct rf_traffic_slo {
  double most[RF_TRAFFIC_METRICS];
  bool given;
} rf_traffic_slo;

typedef struct rf_traffic_stats {
  int64_t completed, failed, cancelled, good;
  int64_t input_tokens, output_tokens;
  int64_t uncounted; /* number of completed requests whose tokens the server did not count */
  double seconds;    /* duration of the run */
  rf_traffic_metric metric[RF_TRAFFIC_METRICS];
  double most_tokens_per_second; /* maximum number of tokens in one second of the run */
  int64_t most_running;
  /* Means over time. `running`: number of requests that were sent and had not ended. `batch`:
   * number of running requests with a first token. `queue`: number of running requests that waited
   * for their first token. Requests that failed without a token count only as running. */
  double running, batch, queue;
  double late, latest_late; /* mean and maximum seconds from the planned time to the sending of a request */
  /* true: the server does not keep up. More than 1/20 of all requests failed, or more
   * than 1/20 still waited for their first token when the last request arrived. In a closed loop,
   * always false. */
  bool saturated;
} rf_traffic_stats;

/* Returns percentile p of `count` sorted values; 0 without values. */
double rf_traffic_percentile(const double *sorted, int64_t count, double p);
/* Sorts the values. */
rf_traffic_metric rf_traffic_metric_of(double *value, int64_t count, const rf_traffic_percentiles *p);

/* RAFTER_FAILED: out of memory. */
rf_status rf_traffic_stats_of(const rf_traffic_record *record, int64_t count, bool closed, double seconds,
                              const rf_traffic_percentiles *p, const rf_traffic_slo *slo,
                              rf_traffic_stats *stats, rf_error *error);
/* Returns the output or input tokens of a record, as the server counts them. If the server does not
 * count tokens, returns the number of events with tokens, or the requested length of the prompt. */
int64_t rf_traffic_output_tokens(const rf_traffic_record *record);
int64_t rf_traffic_input_tokens(const rf_traffic_record *record);

/* Returns an object with vLLM's names, such as "mean_ttft_ms", "p99_itl_ms" and
 * "request_throughput". */
json_t *rf_traffic_stats_json(const rf_traffic_stats *stats, const rf_traffic_percentiles *p,
                              const rf_traffic_slo *slo);
/* Returns a list of {"kind", "count", "message"} with the most frequent kind first. */
json_t *rf_traffic_faults_json(const rf_traffic_record *record, int64_t count);
/* Returns one object for a request, for a line of --output. */
json_t *rf_traffic_record_json(const rf_traffic_record *record, int64_t index);
/* Reads limits such as "ttft:500,tpot:50" (milliseconds) and adds these limits to `slo`.
 * RAFTER_INVALID names the part. */
rf_status rf_traffic_slo_parse(const char *text, rf_traffic_slo *slo, rf_error *error);
/* Writes a percentile for a name as vLLM does: "99" or "99.9". */
char *rf_traffic_percentile_name(double p, char text[32]);

#endif
