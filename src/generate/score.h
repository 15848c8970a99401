/* score.h - log-probabilities of given texts: one forward walk over packed rows, the vocabulary
 * in panels, so that no (tokens, V) array exists. */
#ifndef RF_SCORE_H
#define RF_SCORE_H

#include "run/load.h"

typedef struct rf_score_settings {
  rf_model model;
  /* build.seq: tokens of the longest text; build.microbatch: that many times seq rows a walk;
   * build.top: likeliest kept */
  rf_plan_options plan;
  const char *weights_folder;
  uint64_t seed; /* of the initialiser, when there are no weights */
  rf_run_debug debug;
  rf_progress progress; /* of loading; may be empty */
} rf_score_settings;

/* One text and where its numbers go. */
typedef struct rf_scored {
  const int32_t *tokens;
  int64_t count; /* 1 to build.seq */
  /* (count): natural log of the probability of token t behind those before it; [0] is 0: nothing
   * precedes it */
  float *logprobs;
  int32_t *top_ids;    /* (count, top) or NULL: the likeliest at position t, descending; row 0 is -1 */
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
/* Rows of one walk. */
int64_t rf_scorer_rows(const rf_scorer *scorer);
/* Scores texts that together fit into one walk, side by side; none changes another's bits.
 * RAFTER_INVALID: they do not fit, or a token is out of range. */
rf_status rf_scorer_walk(rf_scorer *scorer, const rf_scored *text, int count, rf_error *error);

#endif
