/* loader.h - the order of training rows: shuffled without replacement, mixed by weight, identical
 * for the same seed, and resumable from a few counters. An open loader allocates nothing. */
#ifndef RF_LOADER_H
#define RF_LOADER_H

#include "train/source.h"

enum { RF_MAX_SOURCES = 16 };

typedef struct rf_loader_state {
  int64_t rows;                  /* Rows drawn so far from all sources. */
  int64_t drawn[RF_MAX_SOURCES]; /* Rows drawn so far from each source. */
} rf_loader_state;

typedef struct rf_loader {
  int count;
  rf_source source[RF_MAX_SOURCES];
  uint64_t seed;
  int64_t seq;
  rf_loader_state state; /* Saved in a checkpoint; advanced by rf_loader_draw. */
  int64_t step_rows;
  struct rf_draw {
    int source;
    int64_t row;
  } * draw, *held; /* (step_rows) each: rows of the current step, and of a validation batch. */
} rf_loader;

/* `data`: sources separated by commas, each `FILE` or `FILE:WEIGHT`. Sources supply rows in
 * proportion to their weights; the default weight is 1. `step_rows`: rows of one optimizer step. */
rf_status rf_loader_open(const char *data, const rf_source_options *options, uint64_t seed, int64_t step_rows,
                         rf_loader *loader, rf_error *error);
void rf_loader_close(rf_loader *loader);
/* Chooses the rows of the next step and advances the state. *tokens: the number of tokens in these
 * rows. *valid: the number of labels that the loss counts, by which the mean loss divides. */
void rf_loader_draw(rf_loader *loader, int64_t *tokens, int64_t *valid);
/* Sum of rf_source_pairs over the rows of the drawn step. */
double rf_loader_pairs(const rf_loader *loader, int window);
/* Passes over the data so far: rows drawn / rows in the data; for random data 0. */
double rf_loader_epoch(const rf_loader *loader);
/* Number of steps that cover the data `epochs` times; the last step is completed with rows of the
 * next epoch. RAFTER_INVALID: random data has no end. */
rf_status rf_loader_steps(const rf_loader *loader, double epochs, int64_t *steps, rf_error *error);
/* Fills rows [first, first + count) of the drawn step. */
rf_status rf_loader_fill(const rf_loader *loader, int64_t first, int64_t count, rf_token_batch batch,
                         rf_error *error);
/* rf_loader_held_out returns the number of validation rows. rf_loader_fill_held_out fills `count`
 * <= step_rows of these rows, from `first` on. Like rf_loader_draw, the function sets *valid. Rows
 * beyond the last validation row are filled as unused. */
int64_t rf_loader_held_out(const rf_loader *loader);
rf_status rf_loader_fill_held_out(const rf_loader *loader, int64_t first, int64_t count, rf_token_batch batch,
                                  int64_t *valid, rf_error *error);
/* Position of `index` in a pseudorandom permutation of [0, count) for `epoch`: a Feistel network
 * over Philox, repeated until the result is below `count`. */
int64_t rf_shuffle(uint64_t key, int64_t epoch, int64_t index, int64_t count);

#endif
