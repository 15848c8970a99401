/* pace.h - predicted time to choose tokens, from measurements of this machine. */
#ifndef RF_PACE_H
#define RF_PACE_H

#include "generate/sampler.h"
#include "run/calibrate.h"

/* Measures the seconds to choose a token, by vocabulary size, for the curves "sample" of a
 * calibrated machine. Each of four ways to choose has a curve: greedy, from all tokens, from a
 * filtered set, with penalties. */
rf_status rf_pace_calibrate(const rf_calibrate_options *options, rf_machine *machine, rf_error *error);
/* Returns the predicted seconds to choose one token for each of `rows` rows. One thread handles a
 * row. Returns 0 if the curves were not measured. */
double rf_pace_seconds(const rf_machine *machine, const rf_sampler_options *options, int64_t vocab,
                       int64_t rows);

#endif
