/* reserve.h - decides whether the pages of the cache last until all answers have ended. An answer
 * needs its last pages only in its last steps, when others have ended. So the pages are not added
 * up at the maximum lengths, but for each future step.
 *
 * Invariant: in each step from now on, step 0 being the next one, the pages in use are at most the
 * pages of the pool. It follows from the claims of all running answers, since for each of them
 *   - a step adds at most `rows` tokens of it to the cache: one token and its drafts;
 *   - if its whole prompt is cached, or all but the last token, each step adds one token or more.
 *     So it ends within last - length steps;
 *   - otherwise its end is unknown. Its claim has the whole prompt at once, and never ends.
 * If all claims fit now, they fit after each step: a claim that has taken a step is nowhere larger
 * than the old claim, one step later. Ends and cancellations only remove claims. So only the start
 * of an answer needs a check. */
#ifndef RF_RESERVE_H
#define RF_RESERVE_H

#include "generate/pages.h"

#define RF_STEPS_UNKNOWN ((int64_t)1 << 40)

/* The pages that a sequence has and may still need. */
typedef struct rf_claim {
  const rf_sequence *sequence; /* NULL: an answer that has not started */
  int64_t start;               /* step in which the answer starts; 0: it runs, or starts now */
  int64_t from;                /* tokens in the cache before step `start`, at most */
  int64_t last;                /* tokens in the cache at its end, at most */
  int64_t steps;               /* number of steps in which it may run; RF_STEPS_UNKNOWN: no limit */
} rf_claim;

/* The claim of an answer that starts in step `start`. `length` tokens of its prompt are cached. */
rf_claim rf_claim_of(const rf_sequence *sequence, int64_t start, int64_t length, int64_t prompt,
                     int64_t max_tokens, int64_t rows);

typedef struct rf_reserve {
  rf_claim *claim;               /* (most): the caller fills in `count` claims */
  int32_t *users[RF_KV_CLASSES]; /* (pool): scratch: claims whose sequences have each page */
  int *order;                    /* (most): scratch: claims, the last to end first */
  int64_t *held, *owned;         /* (most): scratch, in this order */
  int64_t rows;                  /* maximum growth of an answer in a step */
  int most, count;
} rf_reserve;

rf_status rf_reserve_open(const rf_pages *pages, int most, int64_t rows, rf_reserve *reserve,
                          rf_error *error);
void rf_reserve_close(rf_reserve *reserve);
/* True if the pages last for all claims. Pages of other sequences count as free. Allocates
 * nothing. */
bool rf_reserve_fits(rf_reserve *reserve, const rf_pages *pages);

#endif
