/* executed.c - see executed.h. */
#include "journal/executed.h"

#include "journal/traced.h"

#include <stdlib.h>

void rf_executed_plans(const rf_generator *g, rf_report_pass pass[2]) {
  pass[0] = (rf_report_pass){.name = "decode",
                             .plan = g->decode,
                             .measured = rf_run_measured(g->run, g->first + RF_DECODE),
                             .timed = rf_run_timed(g->run, g->first + RF_DECODE)};
  pass[1] = (rf_report_pass){.name = "prefill",
                             .plan = g->prefill,
                             .measured = rf_run_measured(g->run, g->first + RF_PREFILL),
                             .timed = rf_run_timed(g->run, g->first + RF_PREFILL)};
}

rf_status rf_executed_of(const rf_generator *g, rf_executed *w, rf_error *error) {
  rf_status status = RAFTER_OK;
  *w = (rf_executed){0};
  rf_executed_plans(g, w->pass);
  for (int i = 0; i < 2; i++) { /* the run's plan 0 is prefill, plan 1 is decode */
    size_t ops = (size_t)w->pass[i].plan->graph->op_count + 1;
    int64_t rows = 0;
    w->pass[i].predicted = w->share[2 * i] = calloc(ops, sizeof(double));
    w->pass[i].limit = w->share[2 * i + 1] = calloc(ops, sizeof(double));
    if (!w->share[2 * i] || !w->share[2 * i + 1])
      RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while summarizing a run"));
    rf_generator_passes(g, 1 - i, &w->pass[i].count, &rows, &w->pass[i].seconds);
    w->pass[i].tokens = (double)rows;
    RF_GO(rf_generator_predicted(g, 1 - i, w->share[2 * i], w->share[2 * i + 1], error));
  }
done:
  if (status != RAFTER_OK) rf_executed_free(w);
  return status;
}

void rf_executed_free(rf_executed *w) {
  for (int i = 0; i < 4; i++) free(w->share[i]);
  *w = (rf_executed){0};
}

rf_status rf_executed_leave(const rf_generator *g, const rf_record *record, rf_journal *journal,
                            double seconds, rf_error *error) {
  const rf_report_pass in_order[] = {{.name = "prefill", .plan = g->prefill},
                                     {.name = "decode", .plan = g->decode}};
  rf_executed executed;
  RF_TRY(rf_traced_write(record, journal, in_order, 2, error));
  if (!g->computes) return RAFTER_OK; /* the null backend computes nothing */
  RF_TRY(rf_executed_of(g, &executed, error));
  rf_status status = rf_journal_sum_up(journal, g->run, executed.pass, 2, seconds, error);
  rf_executed_free(&executed);
  return status;
}

rf_status rf_executed_of_scores(const rf_scorer *scorer, int64_t passes, int64_t rows, double seconds,
                                rf_executed *w, rf_error *error) {
  size_t ops = (size_t)scorer->plan->graph->op_count + 1;
  rf_extent extent = {passes ? rows / passes : 0, passes ? rows / passes : 0};
  rf_status status = RAFTER_OK;
  *w = (rf_executed){.share = {calloc(ops, sizeof(double)), calloc(ops, sizeof(double))}};
  if (!w->share[0] || !w->share[1])
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while summarizing a run");
  if (status == RAFTER_OK && passes)
    status = rf_plan_pass_ops(scorer->plan, &extent, 1, (double)passes, w->share[0], w->share[1], error);
  w->pass[0] = (rf_report_pass){.name = "score",
                                .plan = scorer->plan,
                                .measured = rf_run_measured(scorer->run, 0),
                                .timed = rf_run_timed(scorer->run, 0),
                                .count = passes,
                                .tokens = (double)rows,
                                .seconds = seconds,
                                .predicted = w->share[0],
                                .limit = w->share[1]};
  if (status != RAFTER_OK) rf_executed_free(w);
  return status;
}

rf_status rf_executed_leave_scores(const rf_scorer *scorer, const rf_record *record, rf_journal *journal,
                                   int64_t passes, int64_t rows, double seconds, rf_error *error) {
  rf_executed w;
  RF_TRY(rf_executed_of_scores(scorer, passes, rows, seconds, &w, error));
  rf_status status = rf_traced_write(record, journal, w.pass, 1, error);
  /* the number of passes is 0 if the run stopped before its first forward pass */
  if (status == RAFTER_OK && passes)
    status = rf_journal_sum_up(journal, scorer->run, w.pass, 1, seconds, error);
  rf_executed_free(&w);
  return status;
}
