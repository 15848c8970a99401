/* drafter.h - a small model that drafts the next tokens of answers. The model has its own plans,
 * weights, cache and arena, and always takes the likeliest token. */
#ifndef RF_DRAFTER_H
#define RF_DRAFTER_H

#include "generate/draft_price.h"
#include "generate/settings.h"

typedef struct rf_drafter rf_drafter;

/* Opens the draft model. `settings` give the context and the number of answers. */
rf_status rf_drafter_open(const rf_infer_settings *settings, rf_drafter **drafter, rf_error *error);
void rf_drafter_close(rf_drafter *drafter); /* NULL is allowed. */
/* Returns the plan of a pass with one token for each answer. */
const rf_plan *rf_drafter_plan(const rf_drafter *drafter);
int64_t rf_drafter_arena_bytes(const rf_drafter *drafter);
/* Computes the bytes of the arena that rf_drafter_open allocates. */
rf_status rf_drafter_bytes(const rf_infer_settings *settings, int64_t *bytes, rf_error *error);

/* Text of an answer: `tokens` (count), then draft[0]. rf_drafter_draft writes draft[1 ...
 * wanted]. */
typedef struct rf_drafter_text {
  int slot; /* slot of the answer; each slot has a cache of its latest text */
  const int32_t *tokens;
  int64_t count;
  int32_t *draft;
  int wanted; /* number of tokens to draft; 0: no drafts for this text */
} rf_drafter_text;
/* Updates the caches: keeps the common prefix of the cached and the new text, or shares the prefix
 * of another slot. Then drafts for all texts at once. Records in `price` the measured seconds of
 * passes with one token for each text. Allocates nothing. */
rf_status rf_drafter_draft(rf_drafter *drafter, const rf_drafter_text *text, int count, rf_draft_price *price,
                           rf_error *error);

#endif
