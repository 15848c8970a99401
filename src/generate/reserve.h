/* reserve.h - decides whether the pages of the cache last until all answers have ended. An answer
 * needs its last pages only in its last steps, when other answers have ended. So the needed pages
 * are added up for each future step, not for the maximum lengths.
 *
 * Invariant: in each future step, the used pages are at most the pages of the pool. Step 0 is the
 * next step. The invariant follows from the claims of all running answers, for three reasons:
 *   - A step adds at most `rows` tokens of an answer to the cache: one token and its drafts.
 *   - If the whole prompt of an answer is cached, or all but the last token, each step adds at
 *     least one token. So the answer ends within last - length steps.
 *   - Otherwise the end of an answer is unknown. The claim of such an answer has the whole prompt at
 *     once, and never ends.
 * If all claims fit now, they also fit after each step, because a step never makes the remaining
 * claim larger. The end or the cancellation of an answer only removes a claim. So only the start of
 * an answer needs a check. */
#ifndef RF_RESERVE_H
#define RF_RESERVE_H

#include "generate/pages.h"

#define RF_STEPS_UNKNOWN ((int64_t)1 << 40)

/* Pages that a sequence has and may still need. */
typedef struct rf_claim {
  const rf_sequence *sequence; /* sequence of the answer; NULL: the answer has not started */
  int64_t start;               /* step in which the answer starts; 0: the answer runs, or starts now */
  int64_t from;                /* maximum number of cached tokens before step `start` */
  int64_t last;                /* maximum number of cached tokens at the end of the answer */
  int64_t steps;               /* number of steps in which the answer may run; RF_STEPS_UNKNOWN: no limit */
} rf_claim;

/* Returns the claim of an answer that starts in step `start`. `length` tokens of its prompt are
 * cached. */
rf_claim rf_claim_of(const rf_sequence *sequence, int64_t start, int64_t length, int64_t prompt,
                     int64_t max_tokens, int64_t rows);

typedef struct rf_reserve {
  rf_claim *claim;               /* (most): claims, of which the caller sets the first `count` */
  int32_t *users[RF_KV_CLASSES]; /* (pool): scratch memory: number of claims that use each page */
  int *order;                    /* (most): scratch memory: claims by their ends, the last end first */
  int64_t *held, *owned;         /* (most): scratch memory, in the order of `order` */
  int64_t rows;                  /* maximum number of tokens that an answer adds per step */
  int most, count;
} rf_reserve;

rf_status rf_reserve_open(const rf_pages *pages, int most, int64_t rows, rf_reserve *reserve,
                          rf_error *error);
void rf_reserve_close(rf_reserve *reserve);
/* Returns true if the pool has enough pages for all claims. Pages of other sequences count as free.
 * Allocates nothing. */
bool rf_reserve_fits(rf_reserve *reserve, const rf_pages *pages);

#endif
