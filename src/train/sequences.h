/* sequences.h - optimizer steps over sequences that the caller gives: answers with rewards, or
 * pairs of a chosen and a rejected answer. The trainer's settings have `given` data. */
#ifndef RF_SEQUENCES_H
#define RF_SEQUENCES_H

#include "train/train.h"

/* A prompt and its answer. The loss counts the tokens `prompt` to count - 1, the A tokens of the
 * answer. Arrays may be NULL if the graph has no such input: see rf_objective in graph.h. */
typedef struct rf_sequence {
  const int32_t *tokens;           /* (count) */
  int64_t count, prompt;           /* count: 2 to build.seq; prompt: 1 to count */
  const float *old_logprobs;       /* (A): log-probabilities at the time of sampling */
  const float *reference_logprobs; /* (A): of the reference model */
  const float *advantages;         /* (A) */
  float weight;                    /* factor of each token's loss; 0: the sequence has no loss */
  float *logprobs;                 /* (A) or NULL: gets the log-probabilities of this step's forward pass */
} rf_sequence;

/* The number of microbatches that a step over the sequences has, with `each` sequences that stay
 * together (2 for pairs, otherwise 1). Sequences are packed in the given order. RAFTER_INVALID: a
 * sequence is too long for build.seq, or `each` of them for a microbatch. */
rf_status rf_sequences_microbatches(const rf_trainer *trainer, const rf_sequence *sequence, int64_t count,
                                    int each, int64_t *microbatches, rf_error *error);
/* Takes one optimizer step over the sequences, and reports it in *step. The loss is the sum over
 * all tokens of their weighted losses. Errors are those of rf_trainer_step. */
rf_status rf_sequences_step(rf_trainer *trainer, const rf_sequence *sequence, int64_t count, int each,
                            rafter_step *step, rf_error *error);
/* Computes the loss of the sequences without a change of weights, with the trainer's validation
 * plan, which rf_trainer_prepare makes if settings.given.validates is set. Adds to *loss. */
rf_status rf_sequences_validate(rf_trainer *trainer, const rf_sequence *sequence, int64_t count, int each,
                                double *loss, rf_error *error);

#endif
