/* pairs.h - preferences: prompts with a chosen and a rejected answer, for the losses DPO, IPO and
 * SimPO. Rows of .jsonl files (rf_example_read_two) become tokens in a shard in the run's folder,
 * so that memory does not grow with the texts. */
#ifndef RF_PAIRS_H
#define RF_PAIRS_H

#include "train/loader.h"

/* A prompt with one of its answers. The loss counts the tokens from number `prompt` to number count
 * - 1. */
typedef struct rf_answer {
  int64_t start; /* number of the first token in the shard */
  int32_t count, prompt;
} rf_answer;

typedef struct rf_pair {
  rf_answer chosen, rejected;
} rf_pair;

typedef struct rf_pair_set {
  rf_source source; /* shard with the tokens of all pairs, and digest of these tokens */
  rf_pair *pair;    /* array of train + held_out pairs: pairs for training come first */
  int64_t train, held_out, files;
  int64_t answer_tokens; /* number of tokens of all answers that the loss counts */
  /* Number of rows, number of pairs with a truncated answer, and number of tokens that truncation
   * dropped. */
  int64_t rows, cut, cut_tokens;
  /* Number of rows that gave no pair: both answers are equal, an answer is empty, or the prompt
   * leaves no room for an answer. */
  int64_t equal, empty, long_prompts;
} rf_pair_set;

/* Opens the files of `data`. Commas separate the names of the files. In each file, the last rows
 * are for validation. Their fraction is options->val_fraction. A sequence has at most options->seq
 * tokens. RAFTER_INVALID: a file has a weight, or is not a .jsonl file. RAFTER_FAILED: a row is
 * bad, and the error names the row, or the files have no pair to train on. */
rf_status rf_pairs_open(const char *data, const rf_source_options *options, rf_pair_set *set,
                        rf_error *error);
void rf_pairs_close(rf_pair_set *set);
/* A hash of the tokens, of the ranges that the loss counts, and of the division into training and
 * validation. */
uint64_t rf_pairs_digest(const rf_pair_set *set);
/* Returns the pair for row number `drawn` of a training run. Each epoch has every pair once, in
 * random order. */
int64_t rf_pairs_at(const rf_pair_set *set, uint64_t seed, int64_t drawn);
/* Reads the tokens of an answer, with the prompt before them. */
rf_status rf_pairs_read(const rf_pair_set *set, const rf_answer *answer, int32_t *tokens, rf_error *error);
/* As rf_source_unchanged. */
rf_status rf_pairs_unchanged(rf_pair_set *set, rf_error *error);

#endif
