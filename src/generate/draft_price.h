/* draft_price.h - seconds of the passes that verify drafts, and how much drafts may cost.
 *
 * The plan predicts the seconds of a pass. The run measures the passes. It multiplies later prices
 * of passes with the same number of rows by measured / predicted time.
 *
 * Drafts that are wrong cost time. A credit of time limits this cost. At first, the credit is a
 * fraction of the time of a pass. It grows with each pass, and by the time that right drafts save.
 * So drafts that are never right take at most RF_DRAFT_SHARE of the time of a long run. */
#ifndef RF_DRAFT_PRICE_H
#define RF_DRAFT_PRICE_H

#include "plan/plan.h"

/* The credit at the start, the credit that each pass adds, and the maximum credit. The unit is a
 * pass without drafts. */
#define RF_DRAFT_START 0.75
#define RF_DRAFT_SHARE 0.005
#define RF_DRAFT_CREDIT 16.0

typedef struct rf_draft_price rf_draft_price;
/* `rows`: maximum rows of a pass. `decode` must outlive the prices. NULL: out of memory. */
rf_draft_price *rf_draft_price_open(const rf_plan *decode, int64_t rows);
void rf_draft_price_close(rf_draft_price *price); /* NULL is allowed. */
/* Seconds of a pass, corrected by the passes that were measured. Allocates nothing. */
double rf_draft_price_of(rf_draft_price *price, const rf_extent *part, int parts);
/* The last priced pass with `rows` rows took `seconds`. */
void rf_draft_price_measured(rf_draft_price *price, int64_t rows, double seconds);
/* A step begins. Returns the time that drafts may cost in this step if all of them are wrong. The
 * unit is the time of a pass without drafts. */
double rf_draft_credit(rf_draft_price *price);
/* Records that drafts have saved the time of this many passes without drafts; < 0: they have cost
 * time. */
void rf_draft_saved(rf_draft_price *price, double passes);

#endif
