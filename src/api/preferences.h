/* preferences.h - what `rafter train` prints and writes about a loss of preferences. */
#ifndef RF_API_PREFERENCES_H
#define RF_API_PREFERENCES_H

#include "api/trainer.h"

/* Prints the pairs of the data, and those that are left out. */
void rf_say_pairs(const rafter_trainer *t, const rafter_sink *sink, bool validates_late);
/* Appends the members of a line of metrics.jsonl: those of a step, or of its validation. */
void rf_put_preference(const rf_preference *p, bool validation, char *line, size_t capacity);
/* Computes the references that the run needs before its first step. At the time `end` (0: never),
 * the run ends: *time_is_up. *stopped: the run was asked to stop. */
rf_status rf_begin_preferences(rafter_trainer *t, const rafter_sink *sink, int64_t val_rows, double end,
                               bool *stopped, bool *time_is_up, rf_error *error);

#endif
