/* references.h - log-probabilities of answers under the reference model. Each is computed once.
 *
 * The reference model is the model of the run before its first step. A new adapter does not change
 * the base weights. So the same weights without the adapter give references at any time. Other runs
 * change these weights, so they compute the references of all their answers before the first
 * step. */
#ifndef RF_REFERENCES_H
#define RF_REFERENCES_H

#include "generate/score.h"
#include "train/pairs.h"
#include "train/train.h"

typedef struct rf_references {
  rf_infer_settings settings;
  rf_plan *plan;     /* owner: the training plan */
  rf_scorer *scorer; /* NULL until rf_references_bind */
  bool anytime;      /* true: training does not change the reference model */
  int64_t count;     /* number of answers, which is 2 for each pair of the set */
  double *sum;       /* (count) log-probability of each answer, summed over its tokens; NaN: unknown */
  /* buffers of a pass: (rows) tokens and log-probabilities, and (rows / 2) sequences */
  int32_t *tokens;
  float *logprobs;
  rf_scored *scored;
  int64_t *answer;
  int64_t passes, scored_tokens; /* measured since the run was opened */
  double seconds;
} rf_references;

/* Plans the forward pass of the reference model in the arena of the training plan `owner`. A pass
 * has the tokens of one microbatch of the owner. */
rf_status rf_reference_plan(const rf_model *model, const rf_plan *owner, rf_infer_settings *settings,
                            rf_plan **plan, rf_error *error);
/* Returns the seconds of the reference passes over the tokens of a full training step. The
 * reference passes over each answer run once in a run. */
double rf_reference_seconds(const rf_plan *reference, const rf_plan *owner);

/* Allocates the memory for the references of `answers` answers. */
rf_status rf_references_open(const rf_train_settings *train, const rf_plan *owner, int64_t answers,
                             rf_references **references, rf_error *error);
/* Opens the scorer. references->plan is plan `number` of the run. */
rf_status rf_references_bind(rf_references *references, rf_run *run, int number, rf_error *error);
void rf_references_close(rf_references *references);
/* Computes the unknown references of the pairs pair[i], i < count, one forward pass at a time.
 * `each` (may be NULL) is called after each pass with the number of pairs that are done. If `each`
 * returns false, the computation ends, and *all is false. RAFTER_INTERRUPTED: the run was asked to
 * stop. The references of finished passes stay known. */
typedef bool rf_references_each(void *self, int64_t done, int64_t of);
rf_status rf_references_compute(rf_references *references, const rf_pair_set *set, const int64_t *pair,
                                int64_t count, rf_references_each *each, void *self, bool *all,
                                rf_error *error);
/* Saves and loads the file `references.safetensors` of a checkpoint's folder. If the folder has no
 * such file, all references stay unknown. RAFTER_FAILED: the file has another number of answers. */
rf_status rf_references_save(const rf_references *references, const char *folder, rf_error *error);
rf_status rf_references_load(rf_references *references, const char *folder, rf_error *error);

#endif
