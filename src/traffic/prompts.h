/* prompts.h - makes the prompts and the bodies of requests: random words, random token ids, or the
 * rows of a file. The same seed gives the same requests. */
#ifndef RF_TRAFFIC_PROMPTS_H
#define RF_TRAFFIC_PROMPTS_H

#include <jansson.h>

#include "generate/arrivals.h"

typedef struct rf_traffic_prompts {
  const char *model;
  bool chat, ignore_eos;
  double temperature;
  int64_t vocab; /* prompts are token ids below this number; 0: prompts are words */
  uint64_t seed;
  uint64_t part; /* number of the current part of a test; prompts of different parts have no common prefix */
  const json_t *extra; /* further fields of each body; NULL: none */
  json_t **row;        /* (rows): rows of the file --data; NULL: prompts are random */
  int64_t rows;
} rf_traffic_prompts;

/* Reads the rows of --data: {"prompt"} or {"messages"} or {"tokens"}, optionally "max_tokens".
 * RAFTER_INVALID names the line. */
rf_status rf_traffic_prompts_read(const char *path, rf_traffic_prompts *prompts, rf_error *error);
void rf_traffic_prompts_free(rf_traffic_prompts *prompts);
/* Sets the lengths of the requests. With --data, takes the lengths of the rows, and counts four
 * characters of text as one token. Otherwise varies `prompt` and `answer` of the list by at most
 * the fraction `spread`. */
void rf_traffic_lengths(const rf_traffic_prompts *prompts, double spread, rf_arrival *list, int64_t count);
/* Returns the body of request `index`, malloc'ed; NULL: out of memory. A random prompt has one word
 * for each token. */
char *rf_traffic_body(const rf_traffic_prompts *prompts, int64_t index, const rf_arrival *request);

#endif
