/* loader.h - the order in which rows are trained on: shuffled without replacement, mixed by
 * weight, the same for the same seed, and resumed from a few counters. Allocates nothing after
 * it is opened. */
#ifndef RF_LOADER_H
#define RF_LOADER_H

#include "train/source.h"

enum { RF_MAX_SOURCES = 16 };

typedef struct rf_loader_state {
  int64_t rows;                  /* drawn so far, all sources together */
  int64_t drawn[RF_MAX_SOURCES]; /* drawn so far from each */
} rf_loader_state;

typedef struct rf_batch {
  int32_t *tokens, *labels, *positions, *segments;
} rf_batch; /* (n), (n), (n), (n+1) */

typedef struct rf_loader {
  int count;
  rf_source source[RF_MAX_SOURCES];
  uint64_t seed;
  int64_t seq;
  rf_loader_state state; /* what resume needs; advanced by rf_loader_draw */
  int64_t step_rows;
  struct rf_draw {
    int source;
    int64_t row;
  } * draw, *held; /* step_rows each: the rows of the current step; of a validation batch */
} rf_loader;

/* `data`: sources separated by commas, each `FILE` or `FILE:WEIGHT` (weights are shares of rows;
 * default 1). `step_rows`: rows of one optimizer step. */
rf_status rf_loader_open(const char *data, const rf_source_options *options, uint64_t seed, int64_t step_rows,
                         rf_loader *loader, rf_error *error);
void rf_loader_close(rf_loader *loader);
/* Chooses the rows of the next step and advances the state. *tokens: how many they hold; *valid:
 * labels in them that count (the denominator of the step's loss). */
void rf_loader_draw(rf_loader *loader, int64_t *tokens, int64_t *valid);
/* rf_source_pairs of the drawn step. */
double rf_loader_pairs(const rf_loader *loader, int window);
/* How often the data was gone through so far: rows drawn over the rows there are. 0 for random
 * data. */
double rf_loader_epoch(const rf_loader *loader);
/* Steps that go through the data `epochs` times, the last one filled up with rows of the next
 * time. RAFTER_INVALID: random data has no end. */
rf_status rf_loader_steps(const rf_loader *loader, double epochs, int64_t *steps, rf_error *error);
/* Fills rows [first, first + count) of the drawn step. */
rf_status rf_loader_fill(const rf_loader *loader, int64_t first, int64_t count, rf_batch batch,
                         rf_error *error);
/* Validation: rows in all; fills `count` of them from `first` on (count <= step_rows), *valid as
 * above. Rows behind the last are unused ones. */
int64_t rf_loader_held_out(const rf_loader *loader);
rf_status rf_loader_fill_held_out(const rf_loader *loader, int64_t first, int64_t count, rf_batch batch,
                                  int64_t *valid, rf_error *error);
/* Place of `index` in the permutation of `count` rows in that epoch: every place once (Feistel
 * network over Philox, walked until it lands). */
int64_t rf_shuffle(uint64_t key, int64_t epoch, int64_t index, int64_t count);

#endif
