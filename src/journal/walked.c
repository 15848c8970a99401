/* walked.c - see walked.h. */
#include "journal/walked.h"

#include "journal/traced.h"

#include <stdlib.h>

void rf_walked_plans(const rf_generator *g, rf_report_walk walk[2]) {
  walk[0] = (rf_report_walk){
      .name = "decode", .plan = g->decode, .measured = rf_run_measured(g->run, g->first + RF_DECODE)};
  walk[1] = (rf_report_walk){
      .name = "prefill", .plan = g->prefill, .measured = rf_run_measured(g->run, g->first + RF_PREFILL)};
}

rf_status rf_walked_of(const rf_generator *g, rf_walked *w, rf_error *error) {
  rf_status status = RAFTER_OK;
  *w = (rf_walked){0};
  rf_walked_plans(g, w->walk);
  for (int i = 0; i < 2; i++) { /* the run's plan 0 is prefill, plan 1 is decode */
    size_t ops = (size_t)w->walk[i].plan->graph->op_count + 1;
    int64_t rows = 0;
    w->walk[i].predicted = w->share[2 * i] = calloc(ops, sizeof(double));
    w->walk[i].limit = w->share[2 * i + 1] = calloc(ops, sizeof(double));
    if (!w->share[2 * i] || !w->share[2 * i + 1])
      RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while summarizing a run"));
    rf_generator_passes(g, 1 - i, &w->walk[i].count, &rows, &w->walk[i].seconds);
    w->walk[i].tokens = (double)rows;
    RF_GO(rf_generator_predicted(g, 1 - i, w->share[2 * i], w->share[2 * i + 1], error));
  }
done:
  if (status != RAFTER_OK) rf_walked_free(w);
  return status;
}

void rf_walked_free(rf_walked *w) {
  for (int i = 0; i < 4; i++) free(w->share[i]);
  *w = (rf_walked){0};
}

rf_status rf_walked_leave(const rf_generator *g, const rf_record *record, rf_journal *journal, double seconds,
                          rf_error *error) {
  const rf_report_walk in_order[] = {{.name = "prefill", .plan = g->prefill},
                                     {.name = "decode", .plan = g->decode}};
  rf_walked walked;
  RF_TRY(rf_traced_write(record, journal, in_order, 2, error));
  if (!g->computes) return RAFTER_OK; /* the null backend computes nothing */
  RF_TRY(rf_walked_of(g, &walked, error));
  rf_status status = rf_journal_sum_up(journal, g->run, walked.walk, 2, seconds, error);
  rf_walked_free(&walked);
  return status;
}

rf_status rf_walked_of_scores(const rf_scorer *scorer, int64_t walks, int64_t rows, double seconds,
                              rf_walked *w, rf_error *error) {
  size_t ops = (size_t)scorer->plan->graph->op_count + 1;
  rf_extent extent = {walks ? rows / walks : 0, walks ? rows / walks : 0};
  rf_status status = RAFTER_OK;
  *w = (rf_walked){.share = {calloc(ops, sizeof(double)), calloc(ops, sizeof(double))}};
  if (!w->share[0] || !w->share[1])
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while summarizing a run");
  if (status == RAFTER_OK && walks)
    status = rf_plan_walk_ops(scorer->plan, &extent, 1, (double)walks, w->share[0], w->share[1], error);
  w->walk[0] = (rf_report_walk){.name = "score",
                                .plan = scorer->plan,
                                .measured = rf_run_measured(scorer->run, 0),
                                .count = walks,
                                .tokens = (double)rows,
                                .seconds = seconds,
                                .predicted = w->share[0],
                                .limit = w->share[1]};
  if (status != RAFTER_OK) rf_walked_free(w);
  return status;
}

rf_status rf_walked_leave_scores(const rf_scorer *scorer, const rf_record *record, rf_journal *journal,
                                 int64_t walks, int64_t rows, double seconds, rf_error *error) {
  rf_walked w;
  RF_TRY(rf_walked_of_scores(scorer, walks, rows, seconds, &w, error));
  rf_status status = rf_traced_write(record, journal, w.walk, 1, error);
  /* walks is 0 if the run stopped before its first forward pass */
  if (status == RAFTER_OK && walks)
    status = rf_journal_sum_up(journal, scorer->run, w.walk, 1, seconds, error);
  rf_walked_free(&w);
  return status;
}
