/* measured.c - predicted and measured times, joined by op id. */
#include "report/report.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

typedef struct kind {
  const char *op;
  double predicted, seconds, flops;
  int64_t calls;
} kind;

static int slower_first(const void *a, const void *b) {
  double x = ((const kind *)a)->seconds, y = ((const kind *)b)->seconds;
  return (x < y) - (x > y);
}

/* Sums all measured calls by kind of op. Writes at most `capacity` kinds, the slowest first. */
static int kinds_of(const rf_plan *plan, const rf_measured *measured, kind *kinds, int capacity) {
  int count = 0;
  for (int i = 0; i < plan->graph->op_count; i++) {
    const char *name = plan->graph->op[i].def->name;
    int k = 0;
    while (k < count && strcmp(kinds[k].op, name)) k++;
    if (k == capacity) continue;
    if (k == count) kinds[count++] = (kind){.op = name};
    kinds[k].predicted += plan->op[i].seconds * (double)measured[i].calls;
    kinds[k].seconds += measured[i].seconds;
    kinds[k].flops += plan->op[i].work.flops * (double)measured[i].calls;
    kinds[k].calls += measured[i].calls;
  }
  qsort(kinds, (size_t)count, sizeof *kinds, slower_first);
  return count;
}

json_t *rf_report_measured_json(const rf_plan *plan, const rf_measured *measured) {
  json_t *list = json_array();
  kind kinds[64];
  int count = kinds_of(plan, measured, kinds, 64);
  for (int k = 0; k < count; k++)
    json_array_append_new(list, json_pack("{ss sf sf sf sI}", "op", kinds[k].op, "predicted_seconds",
                                          kinds[k].predicted, "seconds", kinds[k].seconds, "flops",
                                          kinds[k].flops, "calls", (json_int_t)kinds[k].calls));
  return list;
}

/* Adds the rates that an op reached. If calls had fewer rows than planned, the op's work is scaled
 * by the ratio of the actual limit to the planned limit. */
static void put_rates(json_t *row, const rf_plan *plan, int i, double seconds, double limit) {
  rf_work work = plan->op[i].work;
  double planned = rf_plan_limit(plan, i, NULL), done = planned > 0 ? limit / planned : 1;
  if (!row || seconds <= 0) return;
  json_object_set_new(row, "flops_per_second", json_real(done * (work.flops + work.flops_again) / seconds));
  json_object_set_new(row, "bytes_per_second",
                      json_real(done * (work.bytes_read + work.bytes_written) / seconds));
}

/* A compiled program times no single op. So the predictions of all planned ops are summed for the
 * whole pass. */
static void sum_unmeasured(const rf_report_pass *pass, double *predicted, double *limit) {
  const rf_plan *plan = pass->plan;
  for (int i = 0; i < plan->graph->op_count; i++) {
    double calls = (double)plan->op[i].calls * (double)pass->count;
    *predicted += pass->predicted ? pass->predicted[i] : plan->op[i].seconds * calls;
    *limit += pass->limit ? pass->limit[i] : rf_plan_limit(plan, i, NULL) * calls;
  }
}

json_t *rf_report_pass_json(const rf_report_pass *pass) {
  const rf_plan *plan = pass->plan;
  json_t *ops = json_array();
  double predicted = 0, limit_of_all = 0;
  /* The predictions are for all passes, but perhaps only some passes were measured. */
  double times = pass->timed > 0 && pass->count > 0 ? (double)pass->count / (double)pass->timed : 1;
  for (int i = 0; i < plan->graph->op_count; i++) {
    const rf_measured *m = &pass->measured[i];
    double calls = (double)m->calls;
    if (!m->calls) continue; /* the run did not reach this op */
    double planned = pass->predicted ? pass->predicted[i] / (calls * times) : plan->op[i].seconds;
    double limit = pass->limit ? pass->limit[i] / (calls * times) : rf_plan_limit(plan, i, NULL);
    predicted += planned * calls * times;
    json_t *row = json_pack("{si ss sI sf sf sf sf}", "id", i, "name", plan->graph->op[i].name, "calls",
                            (json_int_t)m->calls, "seconds", m->seconds / calls, "least_seconds", m->least,
                            "predicted_seconds", planned, "limit_seconds", limit);
    put_rates(row, plan, i, m->seconds / calls, limit);
    json_array_append_new(ops, row);
  }
  bool compiled = json_array_size(ops) == 0 && pass->count > 0 && pass->seconds > 0;
  if (compiled) sum_unmeasured(pass, &predicted, &limit_of_all);
  json_t *json =
      json_pack("{ss sI sf sf sf so}", "walk", pass->name, "count", (json_int_t)pass->count, "tokens",
                pass->tokens, "seconds", pass->seconds, "predicted_seconds", predicted, "ops", ops);
  if (compiled) json_object_set_new(json, "limit_seconds", json_real(limit_of_all));
  if (pass->timed > 0) json_object_set_new(json, "timed", json_integer((json_int_t)pass->timed));
  return json;
}

double rf_report_timed(const json_t *pass) {
  double timed = rf_json_number_at(pass, "timed"), count = rf_json_number_at(pass, "count");
  if (timed > 0) return timed;
  return count >= 1 ? count : 1;
}
