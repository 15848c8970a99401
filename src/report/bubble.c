/* bubble.c - see bubble.h. This file sums spans of the run's own thread, step by step. */
#include "report/bubble.h"

static const rf_op *op_of(const rf_trace *trace, const rf_stamp *s) {
  bool known = s->kind == RF_SPAN_OP && s->plan < trace->plans && s->id >= 0 &&
               s->id < trace->plan[s->plan]->graph->op_count;
  return known ? &trace->plan[s->plan]->graph->op[s->id] : NULL;
}

static bool transfers(const rf_op *op) {
  return op->def->exchange == RF_EXCHANGE_SEND || op->def->exchange == RF_EXCHANGE_RECV;
}

static double seconds_of(const rf_stamp *s) { return 1e-9 * (double)(s->end - s->begin); }

/* Finds the spans [*from, *end) of lane 0 that begin in the step. */
static void spans_of(const rf_trace *trace, const rf_traced_step *step, int64_t *from, int64_t *end) {
  while (*from < trace->count && !trace->span[*from].lane && trace->span[*from].begin < step->begin) ++*from;
  for (*end = *from; *end < trace->count && !trace->span[*end].lane; ++*end)
    if (trace->span[*end].begin >= step->end) return;
}

static void add_step(const rf_trace *trace, int64_t from, int64_t end, rf_bubble *sum) {
  /* `first` is the first op that computes, and `last` is the index after the last op of the
   * microbatches */
  int64_t first = end, last = from;
  for (int64_t i = from; i < end; i++) {
    const rf_op *op = op_of(trace, &trace->span[i]);
    if (!op || rf_op_is_exchange(op->def)) continue;
    if (first == end) first = i;
    if (op->section == RF_SECTION_MICRO) last = i + 1;
  }
  int64_t transferred = INT64_MIN, computed = INT64_MIN; /* ends of the last transfer and of the last op */
  for (int64_t i = from; i < end; i++) {
    const rf_stamp *s = &trace->span[i];
    const rf_op *op = op_of(trace, s);
    bool gap = s->kind == RF_SPAN_GAP && s->id == RF_GAP_SLOW_RANK && s->end > transferred;
    /* a gap after the last op is not part of its time */
    bool slow = gap && i >= last && s->begin < computed, idle = op && transfers(op);
    if (op) computed = s->end;
    if (idle) transferred = s->end;
    double took = seconds_of(s);
    if (!op && !slow) continue;
    if (op && !idle) sum->busy += took;
    if (slow) sum->busy -= took;
    if (!idle && !slow) continue;
    sum->transfers += idle;
    sum->idle += took;
    if (i < first) sum->fill += took;
    if (i >= last) sum->drain += took;
  }
}

rf_bubble rf_trace_bubble(const rf_trace *trace) {
  rf_bubble sum = {.steps = 0};
  int64_t from = 0, end = 0;
  for (int s = 0; s < trace->steps; s++) {
    const rf_traced_step *step = &trace->step[s];
    if (!step->whole) continue;
    spans_of(trace, step, &from, &end);
    add_step(trace, from, end, &sum);
    sum.seconds += 1e-9 * (double)(step->end - step->begin);
    sum.steps++;
    from = end;
  }
  if (sum.transfers <= 0) return (rf_bubble){.steps = 0};
  double *const mean[] = {&sum.seconds, &sum.busy, &sum.idle, &sum.fill, &sum.drain, &sum.transfers};
  for (int i = 0; i < (int)(sizeof mean / sizeof *mean); i++) *mean[i] /= sum.steps;
  return sum;
}
