/* draft.h - drafts the next tokens of an answer, so that one forward pass can verify several tokens
 * (speculative decoding; Leviathan et al., 2023). The function rf_draft_lookup searches for an
 * earlier occurrence of the latest tokens in the prompt or the answer. The draft repeats the tokens
 * after this occurrence (prompt lookup; Saxena, 2023).
 *
 * A step drafts only as many tokens as are expected to save time. With probability p that a drafted
 * token is right, n drafted tokens give 1 + p + p^2 + ... + p^n tokens. The step chooses the draft
 * lengths with the most expected tokens per second, within the credit of draft_price.h. */
#ifndef RF_DRAFT_H
#define RF_DRAFT_H

#include "plan/plan.h"

/* Minimum and maximum number of latest tokens that are compared with earlier tokens. */
enum { RF_DRAFT_MIN_MATCH = 2, RF_DRAFT_MAX_MATCH = 4 };
/* Value of `match` if a model drafts. */
enum { RF_DRAFT_MODEL = 1 };

/* Success of the drafts of one answer, by the number of common tokens. All 0: unknown. */
typedef struct rf_draft_odds {
  double tried[RF_DRAFT_MAX_MATCH + 1], right[RF_DRAFT_MAX_MATCH + 1];
  int match;   /* Number of common tokens of the latest draft; 0: no draft. */
  int longest; /* Maximum number of right tokens in recent drafts. The value falls slowly. */
  bool begun;
} rf_draft_odds;
/* Returns the probability that the first token of a draft with `match` common tokens is right.
 * `odds`: drafts of this answer. `all`: drafts of all answers. */
double rf_draft_chance(const rf_draft_odds *all, const rf_draft_odds *odds, int match);
/* Multiplies the counts by `fade`. Then records that a pass verified `drafted` tokens, and that the
 * first `right` tokens were right. */
void rf_draft_learn(rf_draft_odds *odds, int drafted, int right, double fade);

/* Writes at most `max` tokens to draft[1...]. The text so far is tokens (count), then draft[0].
 * Returns the number of drafted tokens, and sets *match (0: no earlier occurrence). */
int rf_draft_lookup(const int32_t *tokens, int64_t count, int32_t *draft, int max, int *match);

/* Decides how many tokens the answers of a step draft. `decode` must outlive the rf_draft_plan.
 * `all`: true to draft as many tokens as possible, even if this is slower. */
typedef struct rf_draft_plan rf_draft_plan;
rf_status rf_draft_plan_open(const rf_plan *decode, int slots, int draft, bool all, rf_draft_plan **out,
                             rf_error *error);
/* Sets the decode plan of the draft model. The time of a step then includes the passes of this
 * model. Call this function once. */
rf_status rf_draft_plan_model(rf_draft_plan *plan, const rf_plan *drafter, int slots, rf_error *error);
/* Returns the predicted times of the draft model's passes; NULL: the answers have no draft
 * model. */
struct rf_draft_price *rf_draft_plan_prices(const rf_draft_plan *plan);
void rf_draft_plan_close(rf_draft_plan *plan); /* NULL is allowed. */
/* In each step, call rf_draft_begin, then rf_draft_propose for each of `parts` answers, then
 * rf_draft_choose. Then rf_draft_count returns the number of drafted tokens of an answer. After the
 * pass, call rf_draft_measured, then rf_draft_settle for each answer with drafts. `odds` must stay
 * valid until rf_draft_settle. `context`: number of keys of the answer without drafts. The
 * functions allocate nothing. */
void rf_draft_begin(rf_draft_plan *plan, int parts);
void rf_draft_propose(rf_draft_plan *plan, int part, const int32_t *tokens, int64_t count, int32_t *draft,
                      int max, rf_draft_odds *odds, int64_t context);
/* Call this function instead of rf_draft_propose if a model drafts after rf_draft_choose. */
void rf_draft_expect(rf_draft_plan *plan, int part, int max, rf_draft_odds *odds, int64_t context);
void rf_draft_choose(rf_draft_plan *plan);
int rf_draft_count(const rf_draft_plan *plan, int part);
void rf_draft_measured(rf_draft_plan *plan, double seconds);
void rf_draft_settle(rf_draft_plan *plan, int part, int right);

#endif
