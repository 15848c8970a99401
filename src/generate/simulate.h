/* simulate.h - simulates serving on a virtual clock. Requests arrive over time, and the generator's
 * own code forms batches. Each step takes its predicted time. No tokens are computed, and only
 * tables are allocated. */
#ifndef RF_SIMULATE_H
#define RF_SIMULATE_H

#include "generate/arrivals.h"
#include "generate/generate.h"

enum { RF_P50, RF_P95, RF_P99, RF_PERCENTILES };
typedef struct rf_serve_stats {
  rf_generate_counts counts;
  double seconds;      /* Time from the first arrival to the last token. */
  double busy_seconds; /* Seconds in which a step ran. */
  /* Time and work of all forward passes, for all copies of the model. For rf_simulate_apart, these
   * are sums over both machines. */
  rf_plan_totals total;
  double arrivals_per_second; /* Mean rate of the list of arrivals. */
  double ttft[RF_PERCENTILES], tpot[RF_PERCENTILES],
      /* `ttft`: seconds from arrival to the first token. `tpot`: seconds between two tokens.
       * `latency`: seconds from arrival to the last token. */
      latency[RF_PERCENTILES];
  double tokens_per_second;
  double slots_used; /* Mean number of running answers over all steps. */
  double kv_live; /* Mean fraction of the KV cache that tokens of running answers fill, over the busy time. */
  /* Maximum number of requests that waited for their first token at the same time. */
  int64_t waiting_most;
  /* rf_simulate_apart: mean seconds and mean bytes to send the cache of one prompt. */
  double transfer_seconds, transfer_bytes;
  /* true: when the last request arrived, more than 1/20 of all requests waited for their first
   * token. Requests then arrive faster than the server answers, and a longer simulation gives
   * longer times. */
  bool saturated;
} rf_serve_stats;

/* Simulates all arrivals until the last token. Writes the time of each request's first and last
 * token to `first` and `last` (count), which may be NULL. RAFTER_NO_FIT: the plan does not fit.
 * RAFTER_INVALID: a request is longer than the context. */
rf_status rf_simulate(const rf_infer_settings *settings, const rf_arrival *list, int64_t count, double *first,
                      double *last, rf_serve_stats *served, rf_error *error);

/* Times of each request (count): its sending, its first token and its last token. */
typedef struct rf_served_times {
  double *sent, *first, *last;
} rf_served_times;

/* Simulates a closed loop with `clients` clients. When a client has all tokens of its request, it
 * sends the next request of the list. Times count from the sending of a request. Otherwise like
 * rf_simulate. */
rf_status rf_simulate_closed(const rf_infer_settings *settings, int64_t clients, const rf_arrival *list,
                             int64_t count, const rf_served_times *times, rf_serve_stats *served,
                             rf_error *error);

/* Simulates prefill on one machine and decoding on another. After prefill, a link with `link_bps`
 * bytes per second sends the cache of the prompt. The link sends one cache at a time. The time of
 * an answer's first token is the time at which its cache has arrived. */
rf_status rf_simulate_apart(const rf_infer_settings *prefill, const rf_infer_settings *decode,
                            double link_bps, const rf_arrival *list, int64_t count, rf_serve_stats *served,
                            rf_error *error);

#endif
