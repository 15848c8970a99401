/* pace.h - how long choosing tokens takes, as this machine was measured. */
#ifndef RF_PACE_H
#define RF_PACE_H

#include "generate/sampler.h"
#include "run/calibrate.h"

/* Curves "sample" of a calibrated machine, by the tokens of the vocabulary; their kernels are
 * what is asked of a row: the likeliest, a draw from all, a draw from some, and any of them
 * behind penalties. */
rf_status rf_pace_calibrate(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);
/* Seconds to choose from so many rows, each of which a thread takes whole; 0: not measured. */
double rf_pace_seconds(const rf_machine *machine, const rf_sampler_options *options, int64_t vocab,
                       int64_t rows);

#endif
