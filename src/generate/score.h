/* score.h - computes log-probabilities of given sequences, with one forward pass over packed rows.
 * The vocabulary is processed in panels, so no array (tokens, V) is needed. */
#ifndef RF_SCORE_H
#define RF_SCORE_H

#include "generate/settings.h"

/* One sequence, and the arrays for its results. */
typedef struct rf_scored {
  const int32_t *tokens;
  int64_t count; /* 1 to build.seq. */
  /* (count): entry t is the natural log of the probability of token t after tokens 0 to t - 1.
   * Entry 0 is 0, because no token comes before token 0. */
  float *logprobs;
  /* (count, top) or NULL: row t lists the most likely tokens at position t, in falling order. All
   * entries of row 0 are -1. */
  int32_t *top_ids;
  float *top_logprobs; /* (count, top) or NULL */
} rf_scored;

typedef struct rf_scorer {
  rf_infer_settings settings;
  rf_plan *plan;
  rf_run *run;
  int number; /* Index of the plan in the run. */
  bool owns;  /* true: rf_scorer_close frees the plan and the run. */
  int32_t *tokens, *labels, *positions, *segments, *top_ids;
  float *logprobs, *top_logprobs;
} rf_scorer;

rf_status rf_score_plan(const rf_infer_settings *settings, rf_plan **plan, rf_error *error);
rf_status rf_scorer_open(const rf_infer_settings *settings, rf_scorer **scorer, rf_error *error);
/* Opens a scorer on a run that already holds the weights. Plan `number` of the run must be `plan`,
 * which comes from rf_score_plan. If the run is a trainer's, settings.plan.owner must be the
 * trainer's plan. The caller still owns the run and the plan, which must outlive the scorer. */
rf_status rf_scorer_bind(const rf_infer_settings *settings, rf_run *run, int number, rf_plan *plan,
                         rf_scorer **scorer, rf_error *error);
void rf_scorer_close(rf_scorer *scorer);
int64_t rf_scorer_rows(const rf_scorer *scorer);
/* Scores sequences in one forward pass. The pass must have enough rows for all sequences. If
 * several chips have different rows, a sequence must fit in the free rows of one chip. Otherwise
 * takes more passes. The other sequences of a pass do not change a bit of the results.
 * RAFTER_INVALID: the sequences have too many tokens, or a token is out of range.
 * RAFTER_INTERRUPTED: settings.progress.stop was set; the pass has no results. */
rf_status rf_scorer_pass(rf_scorer *scorer, const rf_scored *text, int count, rf_error *error);

#endif
