/* gaps.c - why threads did no work: every nanosecond of every thread in a step gets one cause, from stamps and from what the system counted.
 *
 * What stamps say: between two ops (launch), after a thread's own part of a parallel region (wait), before it (launch), outside regions (serial). What
 * the system says of an interval (RF_SPAN_LOST): pages mapped, time in a core's queue, time asleep. A launch is only believed up to a bound; what is longer
 * must be covered by what the system counted, or it is unexplained. What the system counted and no stamp covers happened inside the bodies of ops. */
#include "run/trace.h"

#include <stdlib.h>
#include <string.h>

/* Dispatching the next op is a loop and a call, and now and then a look at the system's counters; waking a thread that sleeps takes some 50 us. */
enum { DISPATCH_NS = 10000, WAKE_NS = 100000, SHOWN_NS = 500, NOISE_NS = 20000 };

/* One region: where the run's own thread began and ended its part, where the last thread ended, and where its op did. */
typedef struct region {
  int64_t begin, own_end, end, op_end;
} region;

typedef struct work {
  rf_trace *trace;
  rf_stamps *spans;
  int64_t had;      /* spans before any were added here */
  int64_t *lane_at; /* (lanes + 1): where each lane's spans begin */
  region *region;
  int64_t regions, capacity;
  const double *value; /* of spans before any of it was taken */
  double heap_pages;   /* of this step, that no fault was given to yet */
} work;

/* One thread in one step. */
typedef struct thread {
  int lane;
  const rf_stamp *first, *end; /* its spans of the step */
  int64_t idle;                /* ns outside the bodies of ops */
  int64_t at;                  /* of its spans, those before this place are over: gaps come one after the other */
} thread;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t overlap(const rf_stamp *span, int64_t begin, int64_t end) { return larger(0, smaller(span->end, end) - larger(span->begin, begin)); }

/* The first span of a lane that begins at or after `at`. */
static int64_t first_from(const work *w, int lane, int64_t at) {
  int64_t low = w->lane_at[lane], high = w->lane_at[lane + 1];
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (w->spans->at[middle].begin < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

static thread thread_of(const work *w, int lane, const rf_traced_step *step) {
  int64_t first = first_from(w, lane, step->begin), end = first_from(w, lane, step->end);
  return (thread){.lane = lane, .first = w->spans->at + first, .end = w->spans->at + end};
}

/* ---- regions ----------------------------------------------------------------------------------------------------- */

static rf_status add_region(work *w, const rf_stamp *own, int64_t op_end, rf_error *error) {
  if (w->regions == w->capacity) {
    int64_t capacity = w->capacity ? 2 * w->capacity : 1024;
    region *grown = realloc(w->region, (size_t)capacity * sizeof *grown);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while collecting a trace");
    w->region = grown, w->capacity = capacity;
  }
  w->region[w->regions++] = (region){own->begin, own->end, own->end, larger(op_end, own->end)};
  return RAFTER_OK;
}

/* The region a span of another thread belongs to: the last one that had begun when it ended, for a region begins when the one before is over. A thread
 * may be done before the run's own has stamped its begin. */
static int64_t region_of(const work *w, const rf_stamp *span, int64_t from) {
  while (from + 1 < w->regions && (w->region[from + 1].begin <= span->end || w->region[from].op_end <= span->begin)) from++;
  return from;
}

static rf_status find_regions(work *w, const rf_traced_step *step, rf_error *error) {
  w->regions = 0;
  thread own = thread_of(w, 0, step);
  int64_t op_end = 0;
  for (const rf_stamp *s = own.first; s < own.end; s++) {
    if (s->kind == RF_SPAN_OP) op_end = s->end;
    else if (s->kind == RF_SPAN_BUSY) RF_TRY(add_region(w, s, op_end, error));
  }
  for (int lane = 1; lane < w->trace->threads && w->regions; lane++) {
    thread other = thread_of(w, lane, step);
    int64_t r = 0;
    for (const rf_stamp *s = other.first; s < other.end; s++) {
      if (s->kind != RF_SPAN_BUSY) continue;
      r = region_of(w, s, r);
      if (s->end > w->region[r].end) w->region[r].end = s->end;
    }
  }
  for (int64_t r = 0; r < w->regions; r++) {
    w->region[r].end = smaller(w->region[r].end, w->region[r].op_end);
    if (r + 1 < w->regions) w->region[r].end = smaller(w->region[r].end, w->region[r + 1].begin);
  }
  return RAFTER_OK;
}

/* ---- one gap ----------------------------------------------------------------------------------------------------- */

/* Gives [begin, end) of a thread to a cause. */
static rf_status give(work *w, rf_traced_step *step, thread *t, rf_gap gap, int64_t begin, int64_t end, rf_error *error) {
  if (end <= begin) return RAFTER_OK;
  step->gaps[0][gap] += 1e-9 * (double)(end - begin);
  t->idle += end - begin;
  if (end - begin < SHOWN_NS) return RAFTER_OK;
  int64_t before = t->first - w->spans->at, count = t->end - t->first; /* the list may move */
  rf_status status = rf_stamps_add(w->spans, (rf_stamp){begin, end, 0, (int32_t)gap, (uint16_t)t->lane, RF_SPAN_GAP, 0}, error);
  t->first = w->spans->at + before, t->end = t->first + count;
  return status;
}

/* Takes up to `most` of what the system counted over [begin, end) as a time, and so leaves less of it for the bodies of ops. */
static int64_t take(thread *t, rf_lost lost, double each_ns, int64_t begin, int64_t end, int64_t most) {
  int64_t taken = 0, spans = t->end - t->first;
  while (t->at < spans && (t->first[t->at].kind == RF_SPAN_LOST ? t->first[t->at].end <= begin : t->first[t->at].begin < begin)) t->at++;
  for (rf_stamp *s = (rf_stamp *)t->first + t->at; s < t->end && s->begin < end && taken < most; s++) {
    if (s->kind != RF_SPAN_LOST || s->id != (int)lost || s->value <= 0 || !overlap(s, begin, end)) continue;
    int64_t here = smaller(smaller((int64_t)(s->value * each_ns), most - taken), overlap(s, begin, end));
    s->value -= (double)here / each_ns;
    taken += here;
  }
  return taken;
}

/* A launch: believed up to `bound`; the rest is what the system says, in the order of how sure it is. */
static rf_status give_launch(work *w, rf_traced_step *step, thread *t, int64_t bound, int64_t begin, int64_t end, rf_error *error) {
  double fault_ns = larger(1, (int64_t)w->trace->fault_ns);
  int64_t at = smaller(end, begin + bound);
  RF_TRY(give(w, step, t, RF_GAP_LAUNCH, begin, at, error));
  const struct {
    rf_lost lost;
    rf_gap gap;
    double each_ns;
  } causes[] = {{RF_LOST_DELAY, RF_GAP_OTHERS, 1}, {RF_LOST_FAULTS, RF_GAP_FAULT, fault_ns}, {RF_LOST_OFF, RF_GAP_WAIT, 1}};
  for (size_t i = 0; i < sizeof causes / sizeof *causes && at < end; i++) {
    int64_t took = take(t, causes[i].lost, causes[i].each_ns, begin, end, end - at);
    if (causes[i].lost == RF_LOST_DELAY) take(t, RF_LOST_OFF, 1, begin, end, took); /* it was off its core then: not asleep */
    rf_gap gap = causes[i].gap;
    if (gap == RF_GAP_WAIT && take(t, RF_LOST_READ_FAULTS, 1, begin, end, 1)) gap = RF_GAP_IO; /* asleep until the disk answered */
    RF_TRY(give(w, step, t, gap, at, at + took, error));
    at += took;
  }
  return give(w, step, t, RF_GAP_UNEXPLAINED, at, end, error);
}

/* ---- the run's own thread ---------------------------------------------------------------------------------------- */

static bool beside_ops(const rf_stamp *s) { return s->kind == RF_SPAN_PHASE && (s->id < RF_PHASE_FORWARD || s->id > RF_PHASE_OPTIMIZER); }

/* Between two ops, or an op and an end of the step: phases that were stamped there, and launches around them. Phases nest at most by containing. */
static rf_status between_ops(work *w, rf_traced_step *step, thread *t, int64_t begin, int64_t end, rf_error *error) {
  int lane = w->trace->threads + RF_TRACE_LANE_PHASES;
  int64_t at = begin, first = first_from(w, lane, begin), last = w->lane_at[lane + 1];
  for (int64_t i = first; i < last && w->spans->at[i].begin < end; i++) {
    rf_stamp phase = w->spans->at[i];
    if (!beside_ops(&phase) || phase.end <= at || phase.end > end) continue;
    RF_TRY(give_launch(w, step, t, DISPATCH_NS, at, phase.begin, error));
    int64_t from = larger(at, phase.begin);
    if (phase.id == RF_PHASE_WRITE || phase.id == RF_PHASE_CHECKPOINT) RF_TRY(give(w, step, t, RF_GAP_IO, from, phase.end, error));
    else step->phases += 1e-9 * (double)(phase.end - from), t->idle += phase.end - from;
    at = phase.end;
  }
  return give_launch(w, step, t, DISPATCH_NS, at, end, error);
}

static rf_status own_thread(work *w, rf_traced_step *step, thread *t, rf_error *error) {
  int64_t at = step->begin, r = 0;
  for (int64_t i = 0; i < t->end - t->first; i++) {
    rf_stamp s = t->first[i];
    if (s.kind == RF_SPAN_OP) {
      RF_TRY(between_ops(w, step, t, at, s.begin, error));
      at = larger(at, s.end);
    } else if (s.kind == RF_SPAN_WAIT) RF_TRY(give(w, step, t, RF_GAP_WAIT, s.begin, s.end, error));
    else if (s.kind == RF_SPAN_BUSY && r < w->regions) {
      RF_TRY(give(w, step, t, RF_GAP_WAIT, w->region[r].own_end, w->region[r].end, error));
      r++;
    }
  }
  return between_ops(w, step, t, at, step->end, error);
}

/* ---- the other threads ------------------------------------------------------------------------------------------- */

static rf_status other_thread(work *w, rf_traced_step *step, thread *t, rf_error *error) {
  int64_t at = step->begin, r = 0, entered = -1;
  for (int64_t i = 0; i < t->end - t->first; i++) {
    rf_stamp s = t->first[i];
    if (s.kind == RF_SPAN_WAIT) RF_TRY(give(w, step, t, RF_GAP_WAIT, s.begin, s.end, error));
    if (s.kind != RF_SPAN_BUSY || s.begin < at) continue;
    if (w->regions) {
      r = region_of(w, &s, r);
      if (entered >= 0 && entered != r) { /* the region before is over: what was left of it was waiting */
        int64_t over = smaller(larger(at, w->region[entered].end), s.begin);
        RF_TRY(give(w, step, t, RF_GAP_WAIT, at, over, error));
        at = over;
      }
      if (entered == r) RF_TRY(give(w, step, t, RF_GAP_WAIT, at, s.begin, error));
      else {
        int64_t forked = smaller(larger(at, w->region[r].begin), s.begin);
        RF_TRY(give(w, step, t, RF_GAP_SERIAL, at, forked, error));
        RF_TRY(give_launch(w, step, t, WAKE_NS, forked, s.begin, error));
      }
      entered = r;
    } else RF_TRY(give(w, step, t, RF_GAP_SERIAL, at, s.begin, error));
    at = s.end;
  }
  if (entered >= 0) {
    int64_t over = smaller(larger(at, w->region[entered].end), step->end);
    RF_TRY(give(w, step, t, RF_GAP_WAIT, at, over, error));
    at = over;
  }
  return give(w, step, t, RF_GAP_SERIAL, at, step->end, error);
}

/* ---- inside the bodies of ops ------------------------------------------------------------------------------------ */

static int by_begin(const void *a, const void *b) {
  const rf_stamp *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Stamped time outside bodies that lies in [begin, end). `gap`: the thread's gaps in order, of which *at are over before `begin`. */
static int64_t stamped_idle(const rf_stamp *gap, int64_t gaps, int64_t *at, int64_t begin, int64_t end) {
  int64_t sum = 0;
  while (*at < gaps && gap[*at].end <= begin) ++*at;
  for (int64_t i = *at; i < gaps && gap[i].begin < end; i++) sum += overlap(&gap[i], begin, end);
  return sum;
}

/* What the system counted and no gap took. */
static void inside_bodies(work *w, rf_traced_step *step, const thread *t, int64_t added_from) {
  int64_t length = step->end - step->begin, gaps = w->spans->count - added_from, at = 0;
  rf_stamp *gap = w->spans->at + added_from;
  qsort(gap, (size_t)gaps, sizeof *gap, by_begin);
  double sum[RF_LOSTS] = {0}, asleep = 0, others = 0, body = 1e-9 * (double)(length - t->idle);
  for (const rf_stamp *s = t->first; s < t->end; s++) {
    if (s->kind != RF_SPAN_LOST) continue;
    sum[s->id] += s->value;
    if (s->id == RF_LOST_FAULTS) step->faults += (int64_t)w->value[s - w->spans->at];
    if (s->id != RF_LOST_OFF) continue;
    /* Off its core for longer than it had nothing to do: so long it stood still inside bodies. */
    double still = w->value[s - w->spans->at] - (double)stamped_idle(gap, gaps, &at, s->begin, s->end), delay = 0;
    if (still <= NOISE_NS) continue;
    bool delayed = s > t->first && s[-1].kind == RF_SPAN_LOST && s[-1].id == RF_LOST_DELAY && s[-1].begin == s->begin; /* of the same look */
    if (delayed) delay = s[-1].value;
    if (delay > still) delay = still;
    others += delay;
    if (still - delay > NOISE_NS) asleep += still - delay;
  }
  double faults = sum[RF_LOST_FAULTS], grown = faults < w->heap_pages ? faults : w->heap_pages;
  w->heap_pages -= grown;
  const struct {
    rf_gap gap;
    double seconds;
  } parts[] = {{RF_GAP_OTHERS, 1e-9 * others},
               {sum[RF_LOST_READ_FAULTS] > 0 ? RF_GAP_IO : RF_GAP_WAIT, 1e-9 * asleep},
               {RF_GAP_ALLOCATION, 1e-9 * grown * w->trace->fault_ns},
               {RF_GAP_FAULT, 1e-9 * (faults - grown) * w->trace->fault_ns}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    double seconds = parts[i].seconds < body ? parts[i].seconds : body;
    step->gaps[1][parts[i].gap] += seconds;
    body -= seconds;
  }
  step->work += body;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static rf_status one_step(work *w, rf_traced_step *step, rf_error *error) {
  w->heap_pages = (double)(step->heap_bytes / 4096);
  RF_TRY(find_regions(w, step, error));
  for (int lane = 0; lane < w->trace->threads; lane++) {
    thread t = thread_of(w, lane, step);
    int64_t added_from = w->spans->count;
    RF_TRY((lane ? other_thread : own_thread)(w, step, &t, error));
    inside_bodies(w, step, &t, added_from);
  }
  return RAFTER_OK;
}

rf_status rf_trace_find_gaps(rf_trace *trace, rf_stamps *spans, rf_error *error) {
  rf_status status = RAFTER_OK;
  int lanes = trace->threads + RF_TRACE_LANES;
  work w = {.trace = trace, .spans = spans, .had = spans->count, .lane_at = calloc((size_t)lanes + 2, sizeof *w.lane_at)};
  double *value = malloc(((size_t)spans->count + 1) * sizeof *value); /* of LOST spans, which are used up here */
  if (!w.lane_at || !value) {
    status = RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while collecting a trace");
    goto done;
  }
  w.value = value;
  for (int64_t i = 0; i < spans->count; i++) w.lane_at[spans->at[i].lane + 1]++, value[i] = spans->at[i].value;
  for (int lane = 0; lane < lanes; lane++) w.lane_at[lane + 1] += w.lane_at[lane];
  for (int s = 0; s < trace->steps; s++)
    if (trace->step[s].whole) RF_GO(one_step(&w, &trace->step[s], error));
  for (int64_t i = 0; i < w.had; i++) spans->at[i].value = value[i];
done:
  free(value), free(w.lane_at), free(w.region);
  return status;
}
