/* score.h - log-probabilities of given sequences: one forward pass over packed rows. The vocabulary
 * is processed in panels, so no (tokens, V) array exists. */
#ifndef RF_SCORE_H
#define RF_SCORE_H

#include "run/load.h"

typedef struct rf_score_settings {
  rf_model model;
  /* build.seq: tokens of the longest sequence; build.microbatch: number of rows of one forward pass
   * / build.seq; build.top: alternatives kept per token. */
  rf_plan_options plan;
  const char *weights_folder;
  uint64_t seed; /* Seed of random weights, used without a weights folder. */
  rf_run_debug debug;
  rf_progress progress; /* Reports the loading of weights; may be {0}. */
} rf_score_settings;

/* One sequence, and the arrays for its results. */
typedef struct rf_scored {
  const int32_t *tokens;
  int64_t count; /* 1 to build.seq. */
  /* (count): entry t is the natural log of token t's probability after tokens 0 to t-1. Entry 0 is
   * 0, because no token precedes token 0. */
  float *logprobs;
  /* (count, top) or NULL: row t lists the most likely tokens at position t, in falling order. All
   * entries of row 0 are -1. */
  int32_t *top_ids;
  float *top_logprobs; /* (count, top) or NULL */
} rf_scored;

typedef struct rf_scorer {
  rf_score_settings settings;
  rf_plan *plan;
  rf_run *run;
  int32_t *tokens, *labels, *positions, *segments, *top_ids;
  float *logprobs, *top_logprobs;
} rf_scorer;

rf_status rf_score_plan(const rf_score_settings *settings, rf_plan **plan, rf_error *error);
rf_status rf_scorer_open(const rf_score_settings *settings, rf_scorer **scorer, rf_error *error);
void rf_scorer_close(rf_scorer *scorer);
int64_t rf_scorer_rows(const rf_scorer *scorer);
/* Scores sequences that fit together into one forward pass. The results of a sequence are
 * bit-identical whatever other sequences are in the pass. RAFTER_INVALID: the sequences do not fit,
 * or a token is out of range. */
rf_status rf_scorer_walk(rf_scorer *scorer, const rf_scored *text, int count, rf_error *error);

#endif
