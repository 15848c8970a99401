/* preferences.h - lines that `rafter train` prints and writes when it trains with a loss of
 * preferences. */
#ifndef RF_API_PREFERENCES_H
#define RF_API_PREFERENCES_H

#include "api/trainer.h"

/* Prints the number of pairs in the data, and the number of pairs that are left out. */
void rf_say_pairs(const rafter_trainer *t, const rafter_sink *sink, bool validates_late);
/* Appends the figures of a step, or of its validation, to a line of metrics.jsonl. */
void rf_put_preference(const rf_preference *p, bool validation, char *line, size_t capacity);
/* Computes the reference log-probabilities that the run needs before its first step. Sets
 * *time_is_up at the time `end` (0: never). Sets *stopped if the run was asked to stop. */
rf_status rf_begin_preferences(rafter_trainer *t, const rafter_sink *sink, int64_t val_rows, double end,
                               bool *stopped, bool *time_is_up, rf_error *error);

#endif
