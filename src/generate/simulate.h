/* simulate.h - simulates serving on a virtual clock. Requests arrive over time, the generator's own
 * code admits and batches them, and each step takes the time that the plans predict. Nothing is
 * computed, and only tables are allocated. */
#ifndef RF_SIMULATE_H
#define RF_SIMULATE_H

#include "generate/generate.h"

typedef struct rf_arrival {
  double at;              /* Seconds from the start. */
  int64_t prompt, answer; /* Tokens. */
  int64_t shared;         /* Leading tokens of the prompt that are the same in all requests. */
  int samples;            /* Answers to the prompt. */
} rf_arrival;

enum { RF_MOST_ARRIVALS = 1 << 20 };

/* Fills the list with copies of `like` that arrive as a Poisson process of `per_second` requests
 * per second. If `per_second` is 0, all requests arrive at time 0. */
void rf_arrivals_poisson(rf_arrival like, double per_second, uint64_t seed, rf_arrival *list, int64_t count);
/* Reads JSON Lines, sorted by time: {"at": seconds, "prompt": tokens, "answer": tokens}, with
 * optional "shared" and "samples". Missing fields are taken from `like`. The caller frees the list.
 * RAFTER_INVALID names the line. */
rf_status rf_arrivals_read(const char *path, rf_arrival like, rf_arrival **list, int64_t *count,
                           rf_error *error);

enum { RF_P50, RF_P95, RF_P99, RF_PERCENTILES };
typedef struct rf_serve_stats {
  rf_generate_counts counts;
  double seconds;             /* From the first arrival to the last token. */
  double busy_seconds;        /* Seconds in which a step ran. */
  double arrivals_per_second; /* Measured over the list. */
  double ttft[RF_PERCENTILES], tpot[RF_PERCENTILES],
      /* Seconds. ttft: arrival to first token; tpot: between tokens; latency: arrival to last
       * token. */
      latency[RF_PERCENTILES];
  double tokens_per_second;
  double slots_used; /* Mean over all steps. */
  /* Maximum number of requests that waited for their first token. */
  int64_t waiting_most;
  /* rf_simulate_apart: mean seconds and mean bytes to send one prompt's cache over the link. */
  double transfer_seconds, transfer_bytes;
  /* true: when the last request arrived, more than 1/20 of all requests waited for their first
   * token. Requests then arrive faster than they are answered, and the times grow with the length
   * of the simulation. */
  bool saturated;
} rf_serve_stats;

/* Simulates all arrivals until the last token. first, last (count; may be NULL): seconds at which
 * each request had its first and last token. RAFTER_NO_FIT: the plan does not fit. RAFTER_INVALID:
 * a request is longer than the context. */
rf_status rf_simulate(const rf_generate_settings *settings, const rf_arrival *list, int64_t count,
                      double *first, double *last, rf_serve_stats *served, rf_error *error);

/* Simulates prefill on one machine and decoding on another. After its prefill a prompt's cache is
 * sent over a link of `link_bps` bytes per second, one cache at a time. The time of an answer's
 * first token is the arrival of the cache. */
rf_status rf_simulate_apart(const rf_generate_settings *prefill, const rf_generate_settings *decode,
                            double link_bps, const rf_arrival *list, int64_t count, rf_serve_stats *served,
                            rf_error *error);

#endif
