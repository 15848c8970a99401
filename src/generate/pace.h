/* pace.h - predicted time to choose tokens, from measurements of this machine. */
#ifndef RF_PACE_H
#define RF_PACE_H

#include "generate/sampler.h"
#include "run/calibrate.h"

/* Measures the curves "sample" of a calibrated machine: seconds by vocabulary size for greedy, a
 * draw from all tokens, a draw from a filtered set, and any choice with penalties. */
rf_status rf_pace_calibrate(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);
/* Predicted seconds to choose a token for each of `rows` rows. One thread handles one row from
 * start to end. 0: not measured. */
double rf_pace_seconds(const rf_machine *machine, const rf_sampler_options *options, int64_t vocab,
                       int64_t rows);

#endif
