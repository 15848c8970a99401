/* arrivals.h - times and lengths of requests, from a Poisson process or from a file. */
#ifndef RF_ARRIVALS_H
#define RF_ARRIVALS_H

#include "base/base.h"

typedef struct rf_arrival {
  double at;              /* Seconds from the start. */
  int64_t prompt, answer; /* Number of tokens. */
  int64_t shared;         /* Length of the prefix that all prompts have in common, in tokens. */
  int samples;            /* Number of answers to the prompt. */
  int64_t limit;          /* max_tokens of the request; values below `answer` count as `answer`. */
} rf_arrival;

enum { RF_MAX_ARRIVALS = 1 << 20 };

/* Fills the list with copies of `like`. The arrival times form a Poisson process with `per_second`
 * requests per second. If `per_second` is 0, all requests arrive at time 0. */
void rf_arrivals_poisson(rf_arrival like, double per_second, uint64_t seed, rf_arrival *list, int64_t count);
/* Reads a list of arrivals and sorts it by time. The caller frees the list. The file has one of two
 * forms:
 *   JSON Lines {"at": seconds, "prompt": tokens, "answer": tokens}, optionally also "shared".
 *   Missing fields have the value in `like`.
 *   The CSV of the Azure LLM inference traces, with the header TIMESTAMP,ContextTokens,
 *   GeneratedTokens. The first row arrives at time 0.
 * RAFTER_INVALID names the line. */
rf_status rf_arrivals_read(const char *path, rf_arrival like, rf_arrival **list, int64_t *count,
                           rf_error *error);

#endif
