/* sequences.h - optimizer steps over sequences that the caller gives. The sequences are answers
 * with rewards, or pairs of a chosen and a rejected answer. The trainer's settings must have the
 * data `given`. */
#ifndef RF_SEQUENCES_H
#define RF_SEQUENCES_H

#include "train/train.h"

/* A prompt and its answer. The loss covers the tokens with index `prompt` to count - 1. The answer has A
 * tokens. An array may be NULL if the graph does not have the input (rf_objective in graph.h). */
typedef struct rf_sequence {
  const int32_t *tokens; /* (count) */
  /* count: number of tokens, from 2 to build.seq; prompt: number of tokens of the prompt, from 1 to
   * count */
  int64_t count, prompt;
  const float *old_logprobs;       /* array of A log-probabilities, from the time of sampling */
  const float *reference_logprobs; /* (A): of the reference model */
  const float *advantages;         /* (A) */
  /* number by which each token's loss is multiplied; 0: the sequence has no loss */
  float weight;
  /* array that gets A log-probabilities of this step's forward pass; may be NULL */
  float *logprobs;
} rf_sequence;

/* Returns the number of microbatches of a step over the sequences. Groups of `each` sequences stay
 * together (2 for pairs, otherwise 1). The sequences are packed in the given order. RAFTER_INVALID:
 * a sequence is too long for build.seq, or a group is too long for a microbatch. */
rf_status rf_sequences_microbatches(const rf_trainer *trainer, const rf_sequence *sequence, int64_t count,
                                    int each, int64_t *microbatches, rf_error *error);
/* Takes one optimizer step over the sequences. *step gets the results. The loss is the sum of the
 * weighted losses of all tokens. Errors are those of rf_trainer_step. */
rf_status rf_sequences_step(rf_trainer *trainer, const rf_sequence *sequence, int64_t count, int each,
                            rafter_step *step, rf_error *error);
/* Computes the loss of the sequences, and changes no weights. The function uses the trainer's
 * validation plan, which rf_trainer_prepare makes if settings.given.validates is set. Adds to
 * *loss. */
rf_status rf_sequences_validate(rf_trainer *trainer, const rf_sequence *sequence, int64_t count, int each,
                                double *loss, rf_error *error);

#endif
