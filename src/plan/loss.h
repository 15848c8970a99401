/* loss.h - the loss of a training step, from the options of `train` and `plan`. */
#ifndef RF_LOSS_H
#define RF_LOSS_H

#include "base/options.h"
#include "graph/graph.h"

#define RF_LOSS_NAMES "nll|dpo|ipo|simpo"

/* RF_LOSS_OPTIONS has the options --loss and --beta of `train`. The command `plan` has its own such
 * options, because it also plans reinforcement learning. RF_PREFERENCE_OPTIONS has the other
 * settings, for both commands. */
extern const rf_option RF_LOSS_OPTIONS[], RF_PREFERENCE_OPTIONS[];
/* Sets the objective by the option --loss and its settings. If the command has no loss of this
 * table, the objective does not change. The result is RAFTER_INVALID if a setting has no effect
 * with this loss, or if a microbatch does not hold whole pairs. */
rf_status rf_loss_resolve(const rf_options *options, rf_build_options *build, rf_error *error);
/* Name of the loss: "nll", "dpo", "ipo" or "simpo". NULL: another objective. */
const char *rf_loss_name(const rf_build_options *build);
/* Number of sequences that are always in the same microbatch: 2 for pairs, otherwise 1. */
static inline int rf_loss_sequences(const rf_build_options *build) {
  return build->objective == RF_OBJECTIVE_PAIRS ? 2 : 1;
}

#endif
