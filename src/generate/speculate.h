/* speculate.h - predicts the speed-up by drafts (speculative decoding; Leviathan et al., 2023,
 * "Fast Inference from Transformers via Speculative Decoding", equation 1). */
#ifndef RF_SPECULATE_H
#define RF_SPECULATE_H

#include "plan/plan.h"

/* Returns the expected tokens of a pass that verifies n = `drafted` tokens: (1 - a^(n+1)) / (1 -
 * a). The number a = `acceptance` is the probability that a token is right, if all earlier tokens
 * are right. */
double rf_speculation_tokens(double acceptance, int drafted);

/* A pass in which each of `parts` answers with `context` keys drafts the same number of tokens. */
typedef struct rf_speculation {
  const rf_plan *decode, /* plan with rows for the drafts (build.draft) */
      *drafter;          /* decode plan of the draft model; NULL: drafts cost no time */
  int parts;
  int64_t context;
  int most; /* maximum drafted tokens of an answer */
} rf_speculation;

/* Sets the model FLOPs of `drafts`, which count only the rows of right tokens, without the draft
 * model. `plain` is a pass without drafts. A pass with drafts gives `tokens` tokens for each
 * answer. */
void rf_speculation_useful(rf_plan_totals *drafts, const rf_plan_totals *plain, double tokens);

typedef struct rf_speculation_found {
  int drafted;          /* number of drafts with the highest rate; 0: drafts save no time */
  double tokens,        /* expected tokens of an answer in a pass */
      seconds,          /* seconds of a pass with its drafts */
      plain_seconds,    /* seconds of a pass without drafts */
      gain,             /* tokens per second / tokens per second without drafts */
      wins_from;        /* acceptance above which drafts save time; > 1: drafts never save time */
  rf_plan_totals total; /* time and work of a pass */
} rf_speculation_found;
/* RAFTER_FAILED: out of memory. */
rf_status rf_speculation_find(const rf_speculation *speculation, double acceptance,
                              rf_speculation_found *found, rf_error *error);

#endif
