/* simulate.h - requests that arrive over time, walked by the generator's own admission and
 * batching over a virtual clock: what a server would do, in the seconds that the plans predict.
 * Nothing is computed and nothing is allocated for it but the tables. */
#ifndef RF_SIMULATE_H
#define RF_SIMULATE_H

#include "generate/generate.h"

typedef struct rf_arrival {
  double at;              /* seconds */
  int64_t prompt, answer; /* tokens */
  int64_t shared;         /* first tokens of the prompt that all requests have in common */
  int samples;            /* answers to the prompt */
} rf_arrival;

enum { RF_MOST_ARRIVALS = 1 << 20 };

/* Requests of one kind whose gaps are drawn from an exponential distribution: a Poisson process
 * of `per_second`; 0: all at once. */
void rf_arrivals_poisson(rf_arrival like, double per_second, uint64_t seed, rf_arrival *list, int64_t count);
/* JSON Lines: {"at": seconds, "prompt": tokens, "answer": tokens}, and "shared", "samples" where
 * they differ from `like`, sorted by time. The list is the caller's to free. RAFTER_INVALID
 * names the line. */
rf_status rf_arrivals_read(const char *path, rf_arrival like, rf_arrival **list, int64_t *count,
                           rf_error *error);

enum { RF_P50, RF_P95, RF_P99, RF_PERCENTILES };
typedef struct rf_serve_stats {
  rf_generate_counts counts;
  double seconds;             /* from the first arrival to the last token */
  double busy_seconds;        /* of them with something to walk */
  double arrivals_per_second; /* as they came */
  double ttft[RF_PERCENTILES], tpot[RF_PERCENTILES],
      latency[RF_PERCENTILES]; /* first token after arrival; gap between tokens; last token after arrival */
  double tokens_per_second;
  double slots_used;                       /* mean over the walks */
  int64_t waiting_most;                    /* requests whose first token had not come */
  double transfer_seconds, transfer_bytes; /* two machines: of a prompt's cache on the link, mean */
  /* When the last request came more than a twentieth of all waited for their first token: they
   * come faster than they are answered, and the times grow with the length of the simulation. */
  bool saturated;
} rf_serve_stats;

/* All arrivals, in their order, until the last token. first, last (may be NULL): seconds at
 * which each request had its first and its last one. RAFTER_NO_FIT when the plan does not fit,
 * RAFTER_INVALID for a request longer than the context. */
rf_status rf_simulate(const rf_generate_settings *settings, const rf_arrival *list, int64_t count,
                      double *first, double *last, rf_serve_stats *served, rf_error *error);

/* Prefill on one machine, decoding on another: a prompt's cache goes over a link of so many
 * bytes a second when it is whole, one cache after the other, and its first token counts when
 * the cache has come. */
rf_status rf_simulate_apart(const rf_generate_settings *prefill, const rf_generate_settings *decode,
                            double link_bps, const rf_arrival *list, int64_t count, rf_serve_stats *served,
                            rf_error *error);

#endif
