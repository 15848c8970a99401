/* draft_price.h - predicted seconds of passes that verify drafts, and a limit of the time for
 * drafts.
 *
 * The plan predicts the seconds of a pass. The run measures the pass. Later predictions for the
 * same number of rows are multiplied by measured / predicted time.
 *
 * Wrong drafts cost time. A credit limits this time. At first, the credit is a fraction of the time
 * of a pass. Each pass adds to the credit, and so does the time that right drafts save. So if all
 * drafts are wrong, drafts take at most RF_DRAFT_SHARE of the time of a long run. */
#ifndef RF_DRAFT_PRICE_H
#define RF_DRAFT_PRICE_H

#include "plan/plan.h"

/* Credit at the start, credit that each pass adds, and maximum credit. The unit is a pass without
 * drafts. */
#define RF_DRAFT_START 0.75
#define RF_DRAFT_SHARE 0.005
#define RF_DRAFT_CREDIT 16.0

typedef struct rf_draft_price rf_draft_price;
/* `rows`: maximum rows of a pass. `decode` must outlive the prices. NULL: out of memory. */
rf_draft_price *rf_draft_price_open(const rf_plan *decode, int64_t rows);
void rf_draft_price_close(rf_draft_price *price); /* NULL is allowed. */
/* Returns the predicted seconds of a pass, corrected by measured passes. Allocates nothing. */
double rf_draft_price_of(rf_draft_price *price, const rf_extent *part, int parts);
/* Records that the latest predicted pass with `rows` rows took `seconds`. */
void rf_draft_price_measured(rf_draft_price *price, int64_t rows, double seconds);
/* Begins a step. Returns the time that this step may lose if all its drafts are wrong. The unit is
 * the time of a pass without drafts. */
double rf_draft_credit(rf_draft_price *price);
/* Records that drafts have saved the time of `passes` passes without drafts. A negative number
 * means lost time. */
void rf_draft_saved(rf_draft_price *price, double passes);

#endif
