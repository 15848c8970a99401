/* loader.h - the order of training rows. Each epoch has every row once, in random order. Sources
 * are mixed by weight. The seed and a few counters determine the order of rows. After it was
 * opened, a loader allocates nothing. */
#ifndef RF_LOADER_H
#define RF_LOADER_H

#include "train/source.h"

enum { RF_MAX_SOURCES = 16 };

typedef struct rf_loader_state {
  int64_t rows;                  /* number of rows that were drawn so far from all sources */
  int64_t drawn[RF_MAX_SOURCES]; /* number of rows that were drawn so far from each source */
} rf_loader_state;

typedef struct rf_loader {
  int count;
  rf_source source[RF_MAX_SOURCES];
  uint64_t seed;
  int64_t seq;
  rf_loader_state state; /* state that checkpoints save; rf_loader_draw changes it */
  int64_t step_rows;
  struct rf_draw {
    int source;
    int64_t row;
  } * draw,  /* the `step_rows` rows of the current step */
      *held; /* (step_rows): rows of a validation batch. */
} rf_loader;

/* `data` lists sources, separated by commas: `FILE` or `FILE:WEIGHT` (default weight 1). Sources
 * supply rows in proportion to their weights. `step_rows` is the number of rows of one optimizer
 * step. */
rf_status rf_loader_open(const char *data, const rf_source_options *options, uint64_t seed, int64_t step_rows,
                         rf_loader *loader, rf_error *error);
/* Data that the caller itself reads, such as prompts. Checkpoints have the description of the data,
 * and the number of drawn rows in state.rows. The caller advances this number. */
typedef struct rf_given {
  const char *spec; /* file */
  int64_t rows, tokens;
  uint64_t digest; /* hash of the rows */
  bool validates;  /* true if the trainer needs a plan for validation */
} rf_given;
void rf_loader_given(rf_loader *loader, const rf_given *given);
/* Cuts the weight off `FILE:WEIGHT`, and returns the weight. If no number follows the last colon, the
 * colon belongs to the name (random:seed=0), and the weight is 1. */
double rf_loader_split_weight(char *spec);
/* Checks the sources `data` without reading them. First checks that all files exist, and then calls
 * rf_source_check. *converted gets the number of bytes that rf_loader_open would tokenize. */
rf_status rf_loader_check(const char *data, const rf_source_options *options, int64_t *converted,
                          rf_error *error);
void rf_loader_close(rf_loader *loader);
/* Chooses the rows of the next step, and changes the state. *tokens gets the number of tokens in
 * these rows. *valid gets the number of labels that the loss counts, by which the mean loss
 * divides. */
void rf_loader_draw(rf_loader *loader, int64_t *tokens, int64_t *valid);
/* Returns the sum of rf_source_pairs over the rows of the drawn step. */
double rf_loader_pairs(const rf_loader *loader, int window);
/* Returns the number of epochs so far, which is the rows drawn divided by the rows in the data.
 * Returns 0 for random data. */
double rf_loader_epoch(const rf_loader *loader);
/* Returns the number of steps for `epochs` passes over the data. If the rows do not fill the last
 * step, rows of the next epoch complete it. RAFTER_INVALID: the data is random, and so has no
 * end. */
rf_status rf_loader_steps(const rf_loader *loader, double epochs, int64_t *steps, rf_error *error);
/* Calls rf_source_unchanged for each source. */
rf_status rf_loader_unchanged(rf_loader *loader, rf_error *error);
/* Fills rows [first, first + count) of the drawn step. */
rf_status rf_loader_fill(const rf_loader *loader, int64_t first, int64_t count, rf_token_batch batch,
                         rf_error *error);
/* rf_loader_held_out returns the number of validation rows. rf_loader_fill_held_out fills `count`
 * validation rows, from row `first` on. `count` is at most step_rows. Like rf_loader_draw, it sets
 * *valid. Rows after the last validation row are marked as unused. */
int64_t rf_loader_held_out(const rf_loader *loader);
rf_status rf_loader_fill_held_out(const rf_loader *loader, int64_t first, int64_t count, rf_token_batch batch,
                                  int64_t *valid, rf_error *error);
/* Returns the position of `index` in a pseudorandom permutation of [0, count) for `epoch`. The
 * permutation is a Feistel network over Philox. The network is repeated until the result is below
 * `count`. */
int64_t rf_shuffle(uint64_t key, int64_t epoch, int64_t index, int64_t count);

#endif
