/* loss.h - the loss of a training step, from the options of `train` and `plan`. */
#ifndef RF_LOSS_H
#define RF_LOSS_H

#include "base/options.h"
#include "graph/graph.h"

#define RF_LOSS_NAMES "nll|dpo|ipo|simpo"

/* RF_LOSS_OPTIONS: --loss and --beta of `train`; `plan` has its own, because it also plans
 * reinforcement learning. RF_PREFERENCE_OPTIONS: the other settings, for both. */
extern const rf_option RF_LOSS_OPTIONS[], RF_PREFERENCE_OPTIONS[];
/* Sets the objective from --loss and its settings. If the command has no loss of this table, the
 * objective stays as it is. RAFTER_INVALID: a setting has no effect with this loss, or a microbatch
 * does not hold whole pairs. */
rf_status rf_loss_resolve(const rf_options *options, rf_build_options *build, rf_error *error);
/* "nll", "dpo", "ipo" or "simpo"; NULL: another objective. */
const char *rf_loss_name(const rf_build_options *build);
/* Number of sequences that are always in one microbatch: 2 for pairs, otherwise 1. */
static inline int rf_loss_sequences(const rf_build_options *build) {
  return build->objective == RF_OBJECTIVE_PAIRS ? 2 : 1;
}

#endif
