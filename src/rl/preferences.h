/* preferences.h - trains on preferences: pairs of a chosen and a rejected answer to a prompt, with
 * the losses DPO, IPO and SimPO. DPO and IPO compare the log-probabilities of answers with those of
 * a reference model. The reference model needs no second copy of the weights (references.h). */
#ifndef RF_PREFERENCES_H
#define RF_PREFERENCES_H

#include "rl/references.h"
#include "train/sequences.h"

/* Means over pairs. The reward of an answer is the number that the loss compares. The reward in DPO
 * is beta x the sum over tokens of the log-probability minus the reference's log-probability. The
 * reward in IPO is beta x the mean over tokens of the log-probability minus the reference's
 * log-probability. The reward in SimPO is beta x the mean log-probability. */
typedef struct rf_preference {
  int64_t pairs;
  double loss, accuracy;                         /* accuracy: fraction of pairs with a margin above 0 */
  double margin, chosen_reward, rejected_reward; /* margin: chosen_reward - rejected_reward */
  double chosen_logprob, rejected_logprob;       /* log-probabilities of whole answers, in nats */
  double reference_seconds;                      /* seconds of the reference passes before this step */
} rf_preference;

typedef struct rf_preferences {
  rf_pair_set set;
  rf_trainer *trainer;       /* owned */
  rf_references *references; /* NULL: the loss has no reference model */
  rf_run *run;               /* owned */
  int64_t step_pairs;        /* number of pairs of an optimizer step */
  /* buffers of a step: (2 step_pairs) sequences, and (2 step_pairs, seq) values of each kind */
  rf_sequence *sequence;
  int64_t *drawn; /* (step_pairs) */
  int32_t *tokens;
  float *logprobs, *reference;
} rf_preferences;

/* Like rf_trainer_open, with a reference model in the same arena. */
rf_status rf_preferences_open(const rf_train_settings *settings, rf_preferences **preferences,
                              rf_error *error);
/* Call this function before the first step. If training changes the reference model, computes all
 * references in advance: of the pairs up to step `steps`, and of `val_rows` pairs for validation.
 * If `each` ends the computation, *all is false. RAFTER_INTERRUPTED as for rf_trainer_step. After
 * an interruption, a checkpoint stores the references that are already known. */
rf_status rf_preferences_begin(rf_preferences *preferences, int64_t steps, int64_t val_rows,
                               rf_references_each *each, void *self, bool *all, rf_error *error);
/* Lists the plans of the run: training, validation, reference. Returns their number. */
int rf_preferences_plans(const rf_preferences *preferences, const rf_plan *plans[3]);
void rf_preferences_close(rf_preferences *preferences);
/* Like rf_trainer_step. step->loss is the mean loss of a pair, and step->accuracy is the accuracy
 * of *result. */
rf_status rf_preferences_step(rf_preferences *preferences, rafter_step *step, rf_preference *result,
                              rf_error *error);
/* Computes the result over at most `rows` pairs of the validation split. Errors as
 * rf_trainer_validate. */
rf_status rf_preferences_validate(rf_preferences *preferences, int64_t rows, rf_preference *result,
                                  rf_error *error);

#endif
