/* executed.h - forward passes of generators and scorers, for journals, traces and summaries. */
#ifndef RF_EXECUTED_H
#define RF_EXECUTED_H

#include "journal/journal.h"
#include "generate/generate.h"
#include "generate/score.h"
#include "run/record.h"

/* The plans of a generator (decode first, then prefill), with all measurements so far. Predicted
 * times are for the rows that actually ran, and not for the maximum rows of the plans. */
typedef struct rf_executed {
  rf_report_pass pass[2];
  double *share[4];
} rf_executed;
/* Fills `pass` with the plans of a generator, without measurements. */
void rf_executed_plans(const rf_generator *generator, rf_report_pass pass[2]);
rf_status rf_executed_of(const rf_generator *generator, rf_executed *executed, rf_error *error);
void rf_executed_free(rf_executed *executed);

/* Ends the journal of a run that took `seconds`. Writes the report. Also writes `record` unless it
 * is NULL. */
rf_status rf_executed_leave(const rf_generator *generator, const rf_record *record, rf_journal *journal,
                            double seconds, rf_error *error);
/* Fills pass[0] for a scorer. All `passes` forward passes together had `rows` rows and took
 * `seconds`. Predicted times are for passes with the mean number of rows. */
rf_status rf_executed_of_scores(const rf_scorer *scorer, int64_t passes, int64_t rows, double seconds,
                                rf_executed *executed, rf_error *error);
rf_status rf_executed_leave_scores(const rf_scorer *scorer, const rf_record *record, rf_journal *journal,
                                   int64_t passes, int64_t rows, double seconds, rf_error *error);

#endif
