/* pace.h - predicted time to choose tokens, from measurements of this machine. */
#ifndef RF_PACE_H
#define RF_PACE_H

#include "generate/sampler.h"
#include "run/calibrate.h"

/* Measures the curves "sample" of a calibrated machine: seconds per choice by vocabulary size.
 * There is one curve each for greedy choices, draws from all tokens, draws from a filtered set, and
 * choices with penalties. */
rf_status rf_pace_calibrate(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);
/* Predicted seconds to choose a token for each of `rows` rows. Each row is handled by a single
 * thread. Returns 0 if the curves were not measured. */
double rf_pace_seconds(const rf_machine *machine, const rf_sampler_options *options, int64_t vocab,
                       int64_t rows);

#endif
