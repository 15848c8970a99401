/* draft.h - drafts the next tokens of an answer, so that one forward pass can verify several tokens
 * (speculative decoding; Leviathan et al., 2023). The search looks for an earlier occurrence of the
 * latest tokens in the prompt or the answer. The draft repeats the tokens after this occurrence
 * (prompt lookup; Saxena, 2023).
 *
 * A step drafts only as many tokens as are expected to pay off. With probability p that a drafted
 * token is right, n drafted tokens give 1 + p + p^2 + ... + p^n tokens. The step takes the numbers
 * of drafts with the most expected tokens per second, within the credit of draft_price.h. */
#ifndef RF_DRAFT_H
#define RF_DRAFT_H

#include "plan/plan.h"

/* Numbers of latest tokens that an earlier occurrence must have in common. */
enum { RF_DRAFT_MIN_MATCH = 2, RF_DRAFT_MAX_MATCH = 4 };
/* The `match` of drafts of a model. */
enum { RF_DRAFT_MODEL = 1 };

/* How often drafts of one answer were right, by the number of common tokens. All 0: unknown. */
typedef struct rf_draft_odds {
  double tried[RF_DRAFT_MAX_MATCH + 1], right[RF_DRAFT_MAX_MATCH + 1];
  int match;   /* Common tokens of the latest draft; 0: no draft. */
  int longest; /* Number of right tokens of the longest of the latest drafts. */
  bool begun;
} rf_draft_odds;
/* Probability that the first token of a draft with `match` common tokens is right, from the drafts
 * of the answer, and of all answers before it. */
double rf_draft_chance(const rf_draft_odds *all, const rf_draft_odds *odds, int match);
/* Multiplies the counts by `fade`, then records that a pass verified `drafted` tokens, of which the
 * first `right` were right. */
void rf_draft_learn(rf_draft_odds *odds, int drafted, int right, double fade);

/* Writes at most `max` tokens to draft[1...]. The text so far is tokens (count), then draft[0].
 * Returns the number of tokens, and sets *match (0: no earlier occurrence). */
int rf_draft_lookup(const int32_t *tokens, int64_t count, int32_t *draft, int max, int *match);

/* Decides how many tokens the answers of a step draft. `decode` must outlive the plan of drafts.
 * `all`: draft as many tokens as possible, whatever the plan expects. */
typedef struct rf_draft_plan rf_draft_plan;
rf_status rf_draft_plan_open(const rf_plan *decode, int slots, int draft, bool all, rf_draft_plan **out,
                             rf_error *error);
/* The decode plan of the model that drafts. Its passes count as seconds of the step. Call once. */
rf_status rf_draft_plan_model(rf_draft_plan *plan, const rf_plan *drafter, int slots, rf_error *error);
/* Prices of the passes of this model; NULL: n-grams draft. */
struct rf_draft_price *rf_draft_plan_prices(const rf_draft_plan *plan);
void rf_draft_plan_close(rf_draft_plan *plan); /* NULL is allowed. */
/* For each step: rf_draft_begin, then rf_draft_propose for each of `parts` answers, then
 * rf_draft_choose. Then rf_draft_count is the number of drafted tokens of an answer. After the pass:
 * rf_draft_measured, then rf_draft_settle for each answer with drafts. `odds` must stay valid until
 * then. `context`: keys of the answer without drafts. Allocates nothing. */
void rf_draft_begin(rf_draft_plan *plan, int parts);
void rf_draft_propose(rf_draft_plan *plan, int part, const int32_t *tokens, int64_t count, int32_t *draft,
                      int max, rf_draft_odds *odds, int64_t context);
/* In place of rf_draft_propose: a model drafts after rf_draft_choose. */
void rf_draft_expect(rf_draft_plan *plan, int part, int max, rf_draft_odds *odds, int64_t context);
void rf_draft_choose(rf_draft_plan *plan);
int rf_draft_count(const rf_draft_plan *plan, int part);
void rf_draft_measured(rf_draft_plan *plan, double seconds);
void rf_draft_settle(rf_draft_plan *plan, int part, int right);

#endif
