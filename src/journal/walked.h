/* walked.h - measured forward passes of generators and scorers: for journals, traces, summaries. */
#ifndef RF_WALKED_H
#define RF_WALKED_H

#include "journal/journal.h"
#include "generate/generate.h"
#include "generate/score.h"
#include "run/record.h"

/* The plans of a generator (decode first, then prefill), with the measurements so far. Predicted
 * times are for the rows that ran, not for the maximum rows of the plans. */
typedef struct rf_walked {
  rf_report_walk walk[2];
  double *share[4];
} rf_walked;
/* Fills `walk` with the plans of a generator, without measurements. */
void rf_walked_plans(const rf_generator *generator, rf_report_walk walk[2]);
rf_status rf_walked_of(const rf_generator *generator, rf_walked *walked, rf_error *error);
void rf_walked_free(rf_walked *walked);

/* Ends the journal of a run that took `seconds`. Writes the report and, if not NULL, `record`. */
rf_status rf_walked_leave(const rf_generator *generator, const rf_record *record, rf_journal *journal,
                          double seconds, rf_error *error);
/* Fills walk[0] for a scorer. Its `walks` forward passes had `rows` rows in total and took
 * `seconds`. Predicted times are for passes with the mean number of rows. */
rf_status rf_walked_of_scores(const rf_scorer *scorer, int64_t walks, int64_t rows, double seconds,
                              rf_walked *walked, rf_error *error);
rf_status rf_walked_leave_scores(const rf_scorer *scorer, const rf_record *record, rf_journal *journal,
                                 int64_t walks, int64_t rows, double seconds, rf_error *error);

#endif
