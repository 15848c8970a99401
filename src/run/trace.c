/* trace.c - makes a trace, which has sorted spans, phases of ops, predicted times, live bytes and
 * gaps. */
#include "run/trace.h"

#include <stdlib.h>
#include <string.h>

const char *rf_trace_lane_name(rf_trace_lane lane) {
  static const char *const names[RF_TRACE_LANES] = {"predicted", "phases", "steps", "counters"};
  return names[lane];
}

static rf_phase phase_of(const rf_op *op) {
  const char *name = rf_op_phase(op);
  int phase = RF_PHASE_FORWARD;
  while (phase < RF_PHASE_OPTIMIZER && strcmp(rf_phase_name((rf_phase)phase), name)) phase++;
  return (rf_phase)phase;
}

void rf_plan_live(const rf_plan *plan, int64_t *live, int64_t *end) {
  int ops = plan->graph->op_count;
  for (int i = 0; i < ops; i++) {
    live[i] = 0;
    if (end) end[i] = 0;
  }
  for (int t = 0; t < plan->tensor_count; t++) {
    const rf_plan_tensor *p = &plan->tensor[t];
    if (p->offset < 0) continue;
    /* If a tensor takes over the bytes of another tensor, it counts from the op after its first op
     * on. */
    int first = p->first + (p->shares != RF_NONE), last = p->last < ops ? p->last : ops - 1;
    for (int i = first < 0 ? 0 : first; i <= last; i++) {
      live[i] += p->bytes;
      if (end && p->offset + p->bytes > end[i]) end[i] = p->offset + p->bytes;
    }
  }
}

rf_status rf_trace_no_memory(rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while collecting a trace");
}

rf_status rf_stamps_add(rf_stamps *spans, rf_stamp span, rf_error *error) {
  if (spans->count == spans->capacity) {
    int64_t capacity = spans->capacity ? 2 * spans->capacity : 1 << 12;
    rf_stamp *grown = realloc(spans->at, (size_t)capacity * sizeof *grown);
    if (!grown) return rf_trace_no_memory(error);
    spans->at = grown;
    spans->capacity = capacity;
  }
  spans->at[spans->count++] = span;
  return RAFTER_OK;
}

/* Sorts by lane, begin, length (longest first), kind and id. */
static int in_order(const void *a, const void *b) {
  const rf_stamp *x = a, *y = b;
  if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  if (x->end != y->end) return x->end > y->end ? -1 : 1;
  if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
  return (x->id > y->id) - (x->id < y->id);
}

/* Returns the lane of a span. Phases and counters of the main thread have lanes of their own. */
static uint16_t shown_in(const rf_trace *trace, const rf_stamp *span) {
  int extra = span->kind == RF_SPAN_PHASE     ? RF_TRACE_LANE_PHASES
              : span->kind == RF_SPAN_COUNTER ? RF_TRACE_LANE_COUNTERS
                                              : -1;
  return extra < 0 ? span->lane : (uint16_t)(trace->threads + extra);
}

/* The counters of the host say nothing about a device. The device's work outside of ops becomes
 * phases. */
static bool take_for_device(rf_stamp *span) {
  if (span->kind == RF_SPAN_RECORD) span->id = RF_PHASE_RECORD;
  if (span->kind == RF_SPAN_OTHER) span->id = RF_PHASE_OTHER;
  if (span->kind > RF_SPAN_REMOTE) span->kind = RF_SPAN_PHASE;
  return span->kind != RF_SPAN_LOST;
}

/* A compiled program runs on a device. The ops of such a program are recorded if the device has a
 * profiler. */
static bool is_of_device(const rf_record *record, const rf_trace *trace) {
  const rf_lane *lane = &record->lanes.lane[0];
  if (!trace->plans || !trace->plan[0]->options.backend->compiles) return false;
  for (int64_t i = lane->count > lane->capacity ? lane->count - lane->capacity : 0; i < lane->count; i++)
    if (lane->ring[i & (lane->capacity - 1)].kind == RF_SPAN_OP) return true;
  return false;
}

static rf_status take_rings(const rf_record *record, rf_trace *trace, rf_stamps *spans, int64_t *kept_from,
                            rf_error *error) {
  *kept_from = record->origin;
  for (int l = 0; l < trace->threads; l++) {
    const rf_lane *lane = &record->lanes.lane[l];
    int64_t first = lane->count > lane->capacity ? lane->count - lane->capacity : 0;
    trace->dropped += first;
    for (int64_t i = first; i < lane->count; i++) {
      rf_stamp span = lane->ring[i & (lane->capacity - 1)];
      if (i == first && first && span.end > *kept_from) *kept_from = span.end;
      if (!take_for_device(&span) && trace->device) continue;
      span.begin -= record->origin;
      span.end -= record->origin;
      if (span.begin < 0) span.begin = 0;
      if (span.end < span.begin) span.end = span.begin;
      span.lane = shown_in(trace, &span);
      RF_TRY(rf_stamps_add(spans, span, error));
    }
  }
  return RAFTER_OK;
}

/* Returns the end of the time after a step. The end is the begin of the next step, or the end of
 * the last phase. */
static int64_t until_of(const rf_recorded_step *step, int64_t origin, const rf_stamps *spans) {
  int64_t until = step->until - origin, end = step->end - origin;
  if (step->until) return until;
  until = end;
  for (int64_t i = 0; i < spans->count; i++) {
    const rf_stamp *s = &spans->at[i];
    if (s->kind == RF_SPAN_PHASE && s->begin >= end && s->end > until) until = s->end;
  }
  return until;
}

static rf_status take_steps(const rf_record *record, rf_trace *trace, rf_stamps *spans, int64_t kept_from,
                            rf_error *error) {
  int64_t first = record->steps > record->step_capacity ? record->steps - record->step_capacity : 0;
  trace->steps = (int)(record->steps - first);
  trace->step = calloc((size_t)trace->steps + 1, sizeof *trace->step);
  if (!trace->step) return rf_trace_no_memory(error);
  for (int i = 0; i < trace->steps; i++) {
    const rf_recorded_step *from = &record->step[(first + i) % record->step_capacity];
    trace->step[i] =
        (rf_traced_step){.step = from->step,
                         .begin = from->begin - record->origin,
                         .end = from->end - record->origin,
                         .tokens = from->tokens,
                         .parts = from->parts,
                         .rows = from->rows,
                         .context = from->context,
                         .heap_bytes = from->heap[1] > from->heap[0] ? from->heap[1] - from->heap[0] : 0,
                         .whole = from->begin >= kept_from,
                         .after.end = until_of(from, record->origin, spans)};
    trace->step[i].after.heap_bytes = from->heap[2] > from->heap[1] ? from->heap[2] - from->heap[1] : 0;
    RF_TRY(rf_stamps_add(spans,
                         (rf_stamp){trace->step[i].begin, trace->step[i].end, (double)from->step, i,
                                    (uint16_t)(trace->threads + RF_TRACE_LANE_STEPS), RF_SPAN_STEP, 0},
                         error));
  }
  return RAFTER_OK;
}

typedef struct follow {
  rf_trace *trace;
  rf_stamps *spans;
  int last; /* Op of the previous span. If the next op has a smaller id, a new section begins. */
  int step; /* Current step; -1: none yet. */
  /* The current phase, and the ACCUMULATE phase inside it. The `end` of a phase is 0 if the phase
   * does not exist. */
  rf_stamp phase, sum;
  /* live: number of live bytes that was last reported; of: live bytes of each op of each plan */
  int64_t live, *of[4];
  double *seconds, *limit; /* for each op: predicted seconds, and seconds at peak rates, of step `priced` */
  int priced, priced_plan; /* step and plan to which `seconds` and `limit` belong; -1: none */
} follow;

rf_status rf_trace_price(const rf_plan *plan, int64_t parts, int64_t rows, int64_t context, double times,
                         double *seconds, double *limit, rf_error *error) {
  rf_extent *extent = calloc((size_t)parts, sizeof *extent);
  if (!extent) return rf_trace_no_memory(error);
  for (int64_t i = 0; i < parts; i++) {
    extent[i].rows = rows / parts + (i < rows % parts);
    extent[i].context = context > extent[i].rows ? context : extent[i].rows;
  }
  rf_status status = rf_plan_pass_ops(plan, extent, (int)parts, times, seconds, limit, error);
  free(extent);
  return status;
}

/* Predicts the seconds of each op. The seconds are those of the plan, or those for the sequences of
 * a generate step. */
static rf_status price(follow *f, int index, rf_error *error) {
  const rf_plan *plan = f->trace->plan[index];
  const rf_traced_step *step = f->step >= 0 ? &f->trace->step[f->step] : NULL;
  size_t ops = (size_t)plan->graph->op_count;
  if (f->priced == f->step && f->priced_plan == index) return RAFTER_OK;
  f->priced = f->step;
  f->priced_plan = index;
  if (!step || step->parts < 1) {
    for (size_t i = 0; i < ops; i++) {
      f->seconds[i] = plan->op[i].seconds;
      f->limit[i] = rf_plan_limit(plan, (int)i, NULL);
    }
    return RAFTER_OK;
  }
  memset(f->seconds, 0, ops * sizeof *f->seconds);
  memset(f->limit, 0, ops * sizeof *f->limit);
  return rf_trace_price(plan, step->parts, step->rows, step->context / step->parts, 1, f->seconds, f->limit,
                        error);
}

static rf_status end_sum(follow *f, rf_error *error) {
  if (f->sum.end) RF_TRY(rf_stamps_add(f->spans, f->sum, error));
  f->sum.end = 0;
  return RAFTER_OK;
}

static rf_status end_phase(follow *f, rf_error *error) {
  RF_TRY(end_sum(f, error));
  if (f->phase.end) RF_TRY(rf_stamps_add(f->spans, f->phase, error));
  f->phase.end = 0;
  return RAFTER_OK;
}

/* True if an op adds to an existing gradient in this microbatch. */
static bool accumulates(const rf_graph *graph, const rf_op *op, double micro) {
  for (int k = 0; k < op->output_count; k++) {
    rf_accumulate how = op->output[k] == RF_NONE ? RF_WRITE : op->attr.accumulate[k];
    bool adds = how == RF_ACCUMULATE_ADD || (how == RF_ACCUMULATE_MICRO && micro > 0);
    if (adds && graph->tensor[op->output[k]].class == RF_CLASS_GRADIENT) return true;
  }
  return false;
}

static rf_status follow_op(follow *f, const rf_stamp *op, rf_error *error) {
  rf_trace *trace = f->trace;
  if (op->plan >= trace->plans || op->id < 0 || op->id >= trace->plan[op->plan]->graph->op_count)
    return RAFTER_OK;
  const rf_plan *plan = trace->plan[op->plan];
  while (f->step + 1 < trace->steps && op->begin >= trace->step[f->step + 1].begin) {
    RF_TRY(end_phase(f, error));
    f->step++;
  }
  RF_TRY(price(f, op->plan, error));
  int64_t takes = (int64_t)(f->seconds[op->id] * 1e9);
  /* The predicted span begins where the op's span begins, even if the run is much slower than its
   * plan. */
  rf_stamp predicted = {op->begin,
                        op->begin + takes,
                        1e9 * f->limit[op->id],
                        op->id,
                        (uint16_t)(trace->threads + RF_TRACE_LANE_PREDICTED),
                        RF_SPAN_PREDICTED,
                        op->plan};
  RF_TRY(rf_stamps_add(f->spans, predicted, error));
  rf_phase phase = phase_of(&plan->graph->op[op->id]);
  /* a compiler chooses its own order of ops */
  bool goes_on = f->phase.end && f->phase.id == (int)phase && f->phase.plan == op->plan &&
                 (op->id > f->last || trace->device);
  f->last = op->id;
  if (goes_on) f->phase.end = op->end;
  else {
    RF_TRY(end_phase(f, error));
    f->phase = (rf_stamp){
        op->begin,     op->end, op->value, (int)phase, (uint16_t)(trace->threads + RF_TRACE_LANE_PHASES),
        RF_SPAN_PHASE, op->plan};
  }
  if (!accumulates(plan->graph, &plan->graph->op[op->id], op->value)) RF_TRY(end_sum(f, error));
  else if (f->sum.end) f->sum.end = op->end;
  else {
    f->sum = f->phase;
    f->sum.begin = op->begin;
    f->sum.end = op->end;
    f->sum.id = RF_PHASE_ACCUMULATE;
  }
  int64_t live = f->of[op->plan][op->id];
  if (live == f->live) return RAFTER_OK;
  f->live = live;
  return rf_stamps_add(f->spans,
                       (rf_stamp){op->begin, op->begin, (double)live, RF_COUNTER_LIVE,
                                  (uint16_t)(trace->threads + RF_TRACE_LANE_COUNTERS), RF_SPAN_COUNTER,
                                  op->plan},
                       error);
}

static rf_status follow_ops(rf_trace *trace, rf_stamps *spans, rf_error *error) {
  rf_status status = RAFTER_OK;
  follow f = {.trace = trace, .spans = spans, .step = -1, .live = -1, .priced = -2};
  int64_t had = spans->count;
  size_t most = 1;
  for (int p = 0; p < trace->plans; p++)
    if ((size_t)trace->plan[p]->graph->op_count > most) most = (size_t)trace->plan[p]->graph->op_count;
  f.seconds = calloc(most, sizeof *f.seconds);
  f.limit = calloc(most, sizeof *f.limit);
  if (!f.seconds || !f.limit) RF_GO(rf_trace_no_memory(error));
  for (int p = 0; p < trace->plans; p++) {
    f.of[p] = calloc((size_t)trace->plan[p]->graph->op_count + 1, sizeof(int64_t));
    if (!f.of[p]) RF_GO(rf_trace_no_memory(error));
    rf_plan_live(trace->plan[p], f.of[p], NULL);
  }
  for (int64_t i = 0; i < had; i++) {
    rf_stamp span = spans->at[i]; /* a copy, because the list of spans grows */
    if (span.kind == RF_SPAN_OP) RF_GO(follow_op(&f, &span, error));
  }
  status = end_phase(&f, error);
done:
  for (int p = 0; p < trace->plans; p++) free(f.of[p]);
  free(f.seconds);
  free(f.limit);
  return status;
}

/* A record is opened before the plan is made, and the ranks of one machine share its cores. So the
 * plans may have fewer threads than the record. */
static int threads_of(const rf_record *record, const rf_trace *trace) {
  int most = trace->plans ? 1 : record->lanes.count;
  for (int p = 0; p < trace->plans; p++)
    if (trace->plan[p]->options.threads > most) most = trace->plan[p]->options.threads;
  return most < record->lanes.count ? most : record->lanes.count;
}

rf_status rf_trace_collect(const rf_record *record, const rf_plan *const *plans, const char *const *names,
                           int count, rf_trace **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_stamps spans = {0};
  int64_t kept_from;
  rf_trace *trace = calloc(1, sizeof *trace);
  if (!trace) return rf_trace_no_memory(error);
  trace->origin = record->origin;
  trace->wall = record->wall;
  trace->fault_ns = record->fault_ns;
  for (int p = 0; p < count && p < (int)(sizeof trace->plan / sizeof *trace->plan); p++) {
    trace->plan[trace->plans] = plans[p];
    strncpy(trace->plan_name[trace->plans++], names[p], sizeof trace->plan_name[0] - 1);
  }
  trace->device = is_of_device(record, trace);
  trace->threads = trace->device ? 1 : threads_of(record, trace);
  if (record->in_step || record->after) { /* after a pause, the counters have values from before the pause */
    rf_lanes lanes = record->lanes;
    rf_lane_look_at(&lanes, 0, rf_now_ns());
    rf_lanes_settle(&lanes);
  }
  RF_GO(take_rings(record, trace, &spans, &kept_from, error));
  RF_GO(take_steps(record, trace, &spans, kept_from, error));
  if (spans.count) qsort(spans.at, (size_t)spans.count, sizeof *spans.at, in_order);
  RF_GO(follow_ops(trace, &spans, error));
  if (spans.count) qsort(spans.at, (size_t)spans.count, sizeof *spans.at, in_order);
  RF_GO(rf_trace_find_gaps(trace, &spans, error));
  if (spans.count) qsort(spans.at, (size_t)spans.count, sizeof *spans.at, in_order);
  trace->span = spans.at;
  trace->count = spans.count;
  spans.at = NULL;
done:
  free(spans.at);
  if (status == RAFTER_OK) *out = trace;
  else rf_trace_free(trace);
  return status;
}

void rf_trace_free(rf_trace *trace) {
  if (!trace) return;
  free(trace->span);
  free(trace->step);
  free(trace);
}
