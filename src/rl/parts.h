/* parts.h - functions that the files of src/rl share. Private to src/rl. */
#ifndef RF_RL_PARTS_H
#define RF_RL_PARTS_H

#include "rl/rl.h"

/* Samples answers to the prompts of a step and collects their rewards. Sets rl->group and the
 * report's fields about answers. Advances the data's position. */
rf_status rf_rl_sample(rf_rl *rl, rf_rl_report *report, rf_error *error);
/* Answers all held-out prompts. */
rf_status rf_rl_sample_held_out(rf_rl *rl, rf_rl_report *report, rf_error *error);
void rf_rl_forget(rf_rl *rl); /* Frees the groups. */
/* Scores the answers with the reference, judges them, and takes the optimizer steps. */
rf_status rf_rl_learn(rf_rl *rl, rf_rl_report *report, rf_error *error);

/* measure.c */
/* Adds the answers of the groups from group `first` on to the report's sums. */
void rf_rl_measure_answers(const rf_rl *rl, int64_t first, rf_rl_report *report);
/* Changes these sums into means. */
void rf_rl_measure_answers_end(const rf_rl *rl, rf_rl_report *report);
/* Adds the ratios of one pass of the trainer over `count` sequences to the report's sums.
 * rf_rl_measure_end computes means from these sums. */
typedef struct rf_rl_ratios {
  double sum, clipped, count, kl, kl_count;
} rf_rl_ratios;
void rf_rl_measure_ratios(const rf_rl *rl, const rf_sequence *sequence, int64_t count, rf_rl_ratios *sums,
                          rf_rl_report *report);
void rf_rl_measure_end(const rf_rl_ratios *sums, rf_rl_report *report);
rf_status rf_rl_measure_sampling(rf_rl *rl, rf_rl_report *report, rf_error *error);

#endif
