/* walked.h - measurements of a generator or a scorer, for journals, traces and summaries. */
#ifndef RF_WALKED_H
#define RF_WALKED_H

#include "journal/journal.h"
#include "generate/generate.h"
#include "generate/score.h"
#include "run/record.h"

/* The decode plan, then the prefill plan of a generator, with the measurements so far. Predicted
 * times are for as many rows as ran, not for the plans' maximum rows. */
typedef struct rf_walked {
  rf_report_walk walk[2];
  double *share[4];
} rf_walked;
/* The plans of a generator before its first forward pass, without measurements. */
void rf_walked_plans(const rf_generator *generator, rf_report_walk walk[2]);
rf_status rf_walked_of(const rf_generator *generator, rf_walked *walked, rf_error *error);
void rf_walked_free(rf_walked *walked);

/* Ends the journal of a run of `seconds`: writes the trace of `record` (or NULL) and the report. */
rf_status rf_walked_leave(const rf_generator *generator, const rf_record *record, rf_journal *journal,
                          double seconds, rf_error *error);
/* Fills walk[0] for a scorer whose `walks` forward passes over `rows` rows in all took `seconds`.
 * Predicted times are for forward passes of the mean size. */
rf_status rf_walked_of_scores(const rf_scorer *scorer, int64_t walks, int64_t rows, double seconds,
                              rf_walked *walked, rf_error *error);
rf_status rf_walked_leave_scores(const rf_scorer *scorer, const rf_record *record, rf_journal *journal,
                                 int64_t walks, int64_t rows, double seconds, rf_error *error);

#endif
