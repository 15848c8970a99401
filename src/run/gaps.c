/* gaps.c - why threads did no work: every nanosecond of every thread in a step gets one cause,
 * from stamps and from what the system counted.
 *
 * What stamps say: between two ops (launch), after a thread's own part of a parallel region
 * (wait), before it (launch), outside regions (serial). What the system says of an interval
 * (RF_SPAN_LOST): pages mapped, time in a core's queue, time asleep. A launch is only believed
 * up to a bound; what is longer must be covered by what the system counted, or it is
 * unexplained. What the system counted and no stamp covers happened inside the bodies of ops.
 * Where all threads were asleep at once, the process was stopped: that is taken from whatever it
 * was taken for. */
#include "run/trace.h"

#include <stdlib.h>
#include <string.h>

/* Dispatching the next op is a loop and a call, and now and then a look at the system's
 * counters; waking a thread that sleeps takes some 50 us. */
enum { DISPATCH_NS = 10000, WAKE_NS = 100000, SHOWN_NS = 500, NOISE_NS = 20000 };
/* All threads asleep at once for so long: nobody worked whom they could have waited for. What
 * ops and the system itself sleep is far shorter. */
enum { STOPPED_NS = 50000000 };

/* One region: where the run's own thread began and ended its part, where the last thread ended,
 * and where its op did. */
typedef struct region {
  int64_t begin, own_end, end, op_end;
} region;

typedef struct work {
  rf_trace *trace;
  rf_stamps *spans;
  rf_traced_step *piece; /* each step's walk, and the time behind it */
  int pieces;
  int64_t had;      /* spans before any were added here */
  int64_t *lane_at; /* (lanes + 1): where each lane's spans begin */
  region *region;
  int64_t regions, capacity;
  const double *value; /* of spans before any of it was taken */
  /* (lanes): of each thread, the first span of counters that is not over: gaps come one after
   * the other */
  int64_t *lost_at;
  /* (pieces x threads): seconds inside the bodies of ops that no cause was found for yet */
  double *body;
  double *heap_pages; /* (pieces): that no fault was given to yet */
} work;

/* One thread in one step. */
typedef struct thread {
  int lane;
  const rf_stamp *first, *end; /* its spans of the step */
  int64_t idle;                /* ns outside the bodies of ops */
} thread;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t overlap(const rf_stamp *span, int64_t begin, int64_t end) {
  return larger(0, smaller(span->end, end) - larger(span->begin, begin));
}

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

/* ---- regions --------------------------------------------------------------------------------- */

static rf_status add_region(work *w, const rf_stamp *own, int64_t op_end, rf_error *error) {
  if (w->regions == w->capacity) {
    int64_t capacity = w->capacity ? 2 * w->capacity : 1024;
    region *grown = realloc(w->region, (size_t)capacity * sizeof *grown);
    if (!grown)
      return RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while collecting a trace");
    w->region = grown;
    w->capacity = capacity;
  }
  w->region[w->regions++] = (region){own->begin, own->end, own->end, larger(op_end, own->end)};
  return RAFTER_OK;
}

/* The region a span of another thread belongs to: the last one that had begun when it ended, for
 * a region begins when the one before is over. A thread may be done before the run's own has
 * stamped its begin. */
static int64_t region_of(const work *w, const rf_stamp *span, int64_t from) {
  while (from + 1 < w->regions &&
         (w->region[from + 1].begin <= span->end || w->region[from].op_end <= span->begin))
    from++;
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

/* ---- one gap --------------------------------------------------------------------------------- */

/* Gives [begin, end) of a thread to a cause. */
static rf_status give(work *w, rf_traced_step *step, thread *t, rf_gap gap, int64_t begin, int64_t end,
                      rf_error *error) {
  if (end <= begin) return RAFTER_OK;
  step->gaps[0][gap] += 1e-9 * (double)(end - begin);
  t->idle += end - begin;
  if (end - begin < SHOWN_NS) return RAFTER_OK;
  int64_t before = t->first - w->spans->at, count = t->end - t->first; /* the list may move */
  rf_status status = rf_stamps_add(
      w->spans, (rf_stamp){begin, end, 0, (int32_t)gap, (uint16_t)t->lane, RF_SPAN_GAP, 0}, error);
  t->first = w->spans->at + before;
  t->end = t->first + count;
  return status;
}

/* Takes up to `most` of what the system counted over [begin, end) as a time, and so leaves less
 * of it for the bodies of ops. What was counted may have begun in a step before: looks are rarer
 * than short steps are. */
static int64_t take(work *w, int lane, rf_lost lost, double each_ns, int64_t begin, int64_t end,
                    int64_t most) {
  int64_t taken = 0, last = w->lane_at[lane + 1], *at = &w->lost_at[lane];
  while (*at < last && (w->spans->at[*at].kind != RF_SPAN_LOST || w->spans->at[*at].end <= begin)) ++*at;
  for (int64_t i = *at; i < last && w->spans->at[i].begin < end && taken < most; i++) {
    rf_stamp *s = &w->spans->at[i];
    if (s->kind != RF_SPAN_LOST || s->id != (int)lost || s->value <= 0 || !overlap(s, begin, end)) continue;
    int64_t here = smaller(smaller((int64_t)(s->value * each_ns), most - taken), overlap(s, begin, end));
    s->value -= (double)here / each_ns;
    taken += here;
  }
  return taken;
}

/* A launch: believed up to `bound`; the rest is what the system says, in the order of how sure
 * it is. */
static rf_status give_launch(work *w, rf_traced_step *step, thread *t, int64_t bound, int64_t begin,
                             int64_t end, rf_error *error) {
  double fault_ns = larger(1, (int64_t)w->trace->fault_ns);
  int64_t at = smaller(end, begin + bound);
  RF_TRY(give(w, step, t, RF_GAP_LAUNCH, begin, at, error));
  const struct {
    rf_lost lost;
    rf_gap gap;
    double each_ns;
  } causes[] = {{RF_LOST_DELAY, RF_GAP_OTHERS, 1},
                {RF_LOST_FAULTS, RF_GAP_FAULT, fault_ns},
                {RF_LOST_OFF, RF_GAP_WAIT, 1}};
  for (size_t i = 0; i < sizeof causes / sizeof *causes && at < end; i++) {
    int64_t took = take(w, t->lane, causes[i].lost, causes[i].each_ns, begin, end, end - at);
    /* it was off its core then: not asleep */
    if (causes[i].lost == RF_LOST_DELAY) take(w, t->lane, RF_LOST_OFF, 1, begin, end, took);
    rf_gap gap = causes[i].gap;
    /* asleep until the disk answered */
    if (gap == RF_GAP_WAIT && take(w, t->lane, RF_LOST_READ_FAULTS, 1, begin, end, 1)) gap = RF_GAP_IO;
    RF_TRY(give(w, step, t, gap, at, at + took, error));
    at += took;
  }
  return give(w, step, t, RF_GAP_UNEXPLAINED, at, end, error);
}

/* ---- the run's own thread -------------------------------------------------------------------- */

static bool beside_ops(const rf_stamp *s) {
  return s->kind == RF_SPAN_PHASE && (s->id < RF_PHASE_FORWARD || s->id > RF_PHASE_OPTIMIZER);
}

/* Between two ops, or an op and an end of the step: phases that were stamped there, and launches
 * around them. Phases nest at most by containing. */
static rf_status between_ops(work *w, rf_traced_step *step, thread *t, int64_t begin, int64_t end,
                             rf_error *error) {
  int lane = w->trace->threads + RF_TRACE_LANE_PHASES;
  int64_t at = begin, first = first_from(w, lane, begin), last = w->lane_at[lane + 1];
  for (int64_t i = first; i < last && w->spans->at[i].begin < end; i++) {
    rf_stamp phase = w->spans->at[i];
    if (!beside_ops(&phase) || phase.end <= at || phase.end > end) continue;
    RF_TRY(give_launch(w, step, t, DISPATCH_NS, at, phase.begin, error));
    int64_t from = larger(at, phase.begin);
    if (phase.id == RF_PHASE_WRITE || phase.id == RF_PHASE_CHECKPOINT)
      RF_TRY(give(w, step, t, RF_GAP_IO, from, phase.end, error));
    else {
      step->phases += 1e-9 * (double)(phase.end - from);
      t->idle += phase.end - from;
    }
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

/* ---- the other threads ----------------------------------------------------------------------- */

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

/* ---- inside the bodies of ops ---------------------------------------------------------------- */

static int by_lane_and_begin(const void *a, const void *b) {
  const rf_stamp *x = a, *y = b;
  if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/* One thread's gaps, and the pieces beside which nothing was recorded, as far as they lie
 * behind. */
typedef struct idle {
  const rf_stamp *gap, *end;
  int piece;
} idle;

/* Of [begin, end) of a counter's span: time that lies in gaps or outside of pieces. */
static int64_t idle_in(const work *w, idle *i, int64_t begin, int64_t end) {
  int64_t sum = end - begin;
  while (i->gap < i->end && i->gap->end <= begin) i->gap++;
  for (const rf_stamp *g = i->gap; g < i->end && g->begin < end; g++) sum += overlap(g, begin, end);
  while (i->piece < w->pieces && w->piece[i->piece].end <= begin) i->piece++;
  for (int s = i->piece; s < w->pieces && w->piece[s].begin < end; s++) {
    const rf_traced_step *step = &w->piece[s];
    if (step->whole) sum -= larger(0, smaller(step->end, end) - larger(step->begin, begin));
  }
  return sum;
}

/* Gives seconds of a thread's bodies to a cause: to the pieces that the counter's span reaches
 * over, by how much of each. */
static void give_body(work *w, const idle *i, int lane, const rf_stamp *span, rf_gap gap, double seconds) {
  double all = 0;
  if (!(seconds > 0)) return;
  for (int pass = 0; pass < 2; pass++)
    for (int s = i->piece; s < w->pieces && w->piece[s].begin < span->end; s++) {
      rf_traced_step *step = &w->piece[s];
      double *body = &w->body[(int64_t)s * w->trace->threads + lane];
      double part = step->whole
                        ? (double)larger(0, smaller(step->end, span->end) - larger(step->begin, span->begin))
                        : 0;
      if (pass == 0) all += part;
      else if (all > 0) {
        double here = seconds * part / all < *body ? seconds * part / all : *body;
        step->gaps[1][gap] += here;
        *body -= here;
      }
    }
}

/* Pages that were mapped: of the piece that the span lies in most. */
static void give_faults(work *w, const idle *i, int lane, const rf_stamp *span, double counted) {
  int most = -1;
  int64_t longest = 0;
  for (int s = i->piece; s < w->pieces && w->piece[s].begin < span->end; s++) {
    const rf_traced_step *step = &w->piece[s];
    int64_t part = step->whole ? smaller(step->end, span->end) - larger(step->begin, span->begin) : 0;
    if (part > longest) {
      longest = part;
      most = s;
    }
  }
  if (most < 0) return;
  double *pages = &w->heap_pages[most], grown = span->value < *pages ? span->value : *pages;
  w->piece[most].faults += (int64_t)counted;
  *pages -= grown;
  give_body(w, i, lane, span, RF_GAP_ALLOCATION, 1e-9 * grown * w->trace->fault_ns);
  give_body(w, i, lane, span, RF_GAP_FAULT, 1e-9 * (span->value - grown) * w->trace->fault_ns);
}

/* What the system counted and no gap took. Spans of one look stand one behind the other, in the
 * order of rf_lost. */
static void inside_bodies(work *w, int lane, idle i) {
  const rf_stamp *at = w->spans->at, *look = NULL;
  double delay = 0, reads = 0;
  for (int64_t k = w->lane_at[lane]; k < w->lane_at[lane + 1]; k++) {
    const rf_stamp *s = &at[k];
    if (s->kind != RF_SPAN_LOST) continue;
    if (!look || look->begin != s->begin) {
      look = s;
      delay = reads = 0;
    }
    /* Off its core for longer than it had nothing to do: so long it stood still inside bodies. */
    double still = w->value[k] - (double)idle_in(w, &i, s->begin, s->end);
    if (s->id == RF_LOST_DELAY) delay = s->value;
    if (s->id == RF_LOST_READ_FAULTS) reads = s->value;
    if (s->id == RF_LOST_FAULTS) give_faults(w, &i, lane, s, w->value[k]);
    if (s->id != RF_LOST_OFF || still <= NOISE_NS) continue;
    if (delay > still) delay = still;
    give_body(w, &i, lane, s, RF_GAP_OTHERS, 1e-9 * delay);
    if (still - delay > NOISE_NS)
      give_body(w, &i, lane, s, reads > 0 ? RF_GAP_IO : RF_GAP_WAIT, 1e-9 * (still - delay));
  }
}

/* ---- the whole process stopped --------------------------------------------------------------- */

/* One look of a thread at its counters: spans of it stand one behind the other, in the order of
 * rf_lost. */
typedef struct counted {
  int64_t begin, end;
  double off, delay, reads;
} counted;

/* The look that begins at span `k` of a lane's, or behind it; `k`: behind that look. False:
 * there is none. */
static bool next_look(const work *w, int lane, int64_t *k, counted *look) {
  int64_t last = w->lane_at[lane + 1];
  while (*k < last && w->spans->at[*k].kind != RF_SPAN_LOST) ++*k;
  if (*k >= last) return false;
  *look = (counted){.begin = w->spans->at[*k].begin, .end = w->spans->at[*k].end};
  for (; *k < last && w->spans->at[*k].begin == look->begin; ++*k) {
    const rf_stamp *s = &w->spans->at[*k];
    if (s->kind != RF_SPAN_LOST) continue;
    if (s->id == RF_LOST_OFF) look->off = w->value[*k];
    if (s->id == RF_LOST_DELAY) look->delay = w->value[*k];
    if (s->id == RF_LOST_READ_FAULTS) look->reads = w->value[*k];
  }
  return true;
}

/* The most of [begin, end) in which a thread may have worked, been ready to, or waited for a
 * disk. `k` moves along, as `begin` does. */
static double awake_in(const work *w, int lane, int64_t *k, int64_t begin, int64_t end) {
  double awake = (double)(end - begin);
  counted look;
  for (int64_t at = *k, from = at; next_look(w, lane, &at, &look) && look.begin < end; from = at) {
    double part = (double)larger(0, smaller(look.end, end) - larger(look.begin, begin));
    double there = look.reads > 0 ? part : (double)(look.end - look.begin) - look.off + look.delay;
    if (look.end <= begin) *k = at;
    else if (*k < from && look.begin < begin) *k = from;
    awake -= part - (there < part ? larger(0, (int64_t)there) : part);
  }
  return awake > 0 ? awake : 0;
}

/* Phases beside ops may sleep: for files, for requests. */
static double phases_in(const work *w, int64_t begin, int64_t end) {
  int lane = w->trace->threads + RF_TRACE_LANE_PHASES;
  double sum = 0;
  for (int64_t k = w->lane_at[lane]; k < w->lane_at[lane + 1] && w->spans->at[k].begin < end; k++)
    if (beside_ops(&w->spans->at[k])) sum += (double)overlap(&w->spans->at[k], begin, end);
  return sum;
}

/* Gives a piece of a thread's step that no gap holds to the stop: it was taken for work. */
static rf_status stop_body(work *w, int index, int lane, int64_t begin, int64_t end, rf_error *error) {
  rf_traced_step *step = &w->piece[index];
  double *body = &w->body[(int64_t)index * w->trace->threads + lane], seconds = 1e-9 * (double)(end - begin);
  if (end - begin < SHOWN_NS || *body < seconds) return RAFTER_OK;
  *body -= seconds;
  step->gaps[0][RF_GAP_STOPPED] += seconds;
  return rf_stamps_add(w->spans, (rf_stamp){begin, end, 0, RF_GAP_STOPPED, (uint16_t)lane, RF_SPAN_GAP, 0},
                       error);
}

static bool keeps_cause(const rf_stamp *gap) {
  return gap->id == RF_GAP_IO || gap->id == RF_GAP_OTHERS || gap->id == RF_GAP_STOPPED;
}

/* What a gap has of [begin, end) becomes the stop's; what lies before and behind stays. */
static rf_status stop_gap(work *w, rf_traced_step *step, int64_t k, int64_t begin, int64_t end,
                          rf_error *error) {
  rf_stamp gap = w->spans->at[k], cut = gap;
  cut.begin = larger(begin, gap.begin);
  cut.end = smaller(end, gap.end);
  double seconds = 1e-9 * (double)(cut.end - cut.begin), *from = &step->gaps[0][gap.id];
  *from = *from > seconds ? *from - seconds : 0;
  step->gaps[0][RF_GAP_STOPPED] += seconds;
  cut.id = RF_GAP_STOPPED;
  w->spans->at[k] = cut;
  rf_stamp before = gap, behind = gap;
  before.end = cut.begin;
  behind.begin = cut.end;
  if (before.end > before.begin) RF_TRY(rf_stamps_add(w->spans, before, error));
  if (behind.end > behind.begin) RF_TRY(rf_stamps_add(w->spans, behind, error));
  return RAFTER_OK;
}

/* Pieces between where spans begin and end lie in the same spans as a whole. */
static int64_t next_edge(const rf_stamps *near, int64_t at, int64_t end, bool *still) {
  int64_t edge = end;
  for (int64_t k = 0; k < near->count; k++) {
    const rf_stamp *s = &near->at[k];
    if (s->begin > at && s->begin < edge) edge = s->begin;
    if (s->end > at && s->end < edge) edge = s->end;
    if (s->begin <= at && s->end > at && (s->kind == RF_SPAN_GAP || s->kind == RF_SPAN_PHASE)) *still = true;
  }
  return edge;
}

static rf_status stop_lane(work *w, int index, int lane, int64_t begin, int64_t end, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_stamps near = {0}; /* what the thread did meanwhile; of the run's own also phases beside ops */
  int phases = lane ? -1 : w->trace->threads + RF_TRACE_LANE_PHASES;
  int64_t count = w->spans->count;
  for (int64_t k = 0; k < count; k++) {
    const rf_stamp *s = &w->spans->at[k];
    bool own = s->lane == lane && s->kind != RF_SPAN_LOST, beside = s->lane == phases && beside_ops(s);
    if ((own || beside) && overlap(s, begin, end) > 0) RF_GO(rf_stamps_add(&near, *s, error));
  }
  for (int64_t at = begin, edge; at < end; at = edge) {
    bool still = false;
    edge = next_edge(&near, at, end, &still);
    if (!still) RF_GO(stop_body(w, index, lane, at, edge, error));
  }
  for (int64_t k = w->had; k < count; k++) {
    const rf_stamp *gap = &w->spans->at[k];
    if (gap->lane == lane && overlap(gap, begin, end) > 0 && !keeps_cause(gap))
      RF_GO(stop_gap(w, &w->piece[index], k, begin, end, error));
  }
done:
  free(near.at);
  return status;
}

/* Where in a look the stop is likely to lie: in what the run's own thread was longest in. */
static int64_t begin_of_stop(const work *w, const counted *look, int64_t length) {
  int64_t begin = look->begin, end = look->end, longest = 0, at;
  for (int64_t k = 0; k < w->spans->count; k++) {
    const rf_stamp *s = &w->spans->at[k];
    if (s->lane || (s->kind != RF_SPAN_OP && s->kind != RF_SPAN_GAP) ||
        overlap(s, look->begin, look->end) <= longest)
      continue;
    longest = overlap(s, look->begin, look->end);
    begin = larger(s->begin, look->begin);
    end = smaller(s->end, look->end);
  }
  at = begin + (end - begin - length) / 2;
  return smaller(larger(at, look->begin), look->end - length);
}

/* A look of the run's own thread and what the others counted meanwhile: time less all that any
 * of them may have been awake is time in which none was. */
static rf_status find_stops(work *w, rf_error *error) {
  counted look;
  int threads = w->trace->threads;
  int64_t *at = calloc((size_t)threads + 1, sizeof *at);
  rf_status status = RAFTER_OK;
  if (!at)
    return RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while collecting a trace");
  for (int lane = 0; lane < threads; lane++) at[lane] = w->lane_at[lane];
  while (threads && next_look(w, 0, &at[0], &look)) {
    double asleep = look.off - look.delay, length = (double)(look.end - look.begin);
    if (asleep < STOPPED_NS || look.reads > 0) continue;
    asleep = (asleep < length ? asleep : length) - phases_in(w, look.begin, look.end);
    for (int lane = 1; lane < threads && asleep >= STOPPED_NS; lane++)
      if (w->lane_at[lane] < w->lane_at[lane + 1])
        asleep -= awake_in(w, lane, &at[lane], look.begin, look.end);
    if (asleep < STOPPED_NS) continue;
    int64_t begin = begin_of_stop(w, &look, (int64_t)asleep), end = begin + (int64_t)asleep;
    for (int s = 0; s < w->pieces; s++) {
      const rf_traced_step *step = &w->piece[s];
      int64_t from = larger(begin, step->begin), to = smaller(end, step->end);
      for (int lane = 0; lane < threads && step->whole && from < to; lane++)
        RF_GO(stop_lane(w, s, lane, from, to, error));
    }
  }
done:
  free(at);
  return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Steps in order, each walk with the time behind it. */
static rf_status take_pieces(work *w, rf_error *error) {
  w->pieces = 2 * w->trace->steps;
  w->piece = calloc((size_t)w->pieces + 1, sizeof *w->piece);
  if (!w->piece)
    return RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while collecting a trace");
  for (int s = 0; s < w->trace->steps; s++) {
    const rf_traced_step *step = &w->trace->step[s];
    w->piece[2 * s] = *step;
    w->piece[2 * s + 1] = (rf_traced_step){.begin = step->end,
                                           .end = step->after.end,
                                           .heap_bytes = step->after.heap_bytes,
                                           .whole = step->whole};
  }
  return RAFTER_OK;
}

/* Seconds of phases beside ops by name, each but for what lies in others: they nest, and stand
 * in order with what contains first. */
static void sum_phases(const work *w, const rf_traced_step *piece, double by_phase[RF_PHASES]) {
  int lane = w->trace->threads + RF_TRACE_LANE_PHASES, open[8], depth = 0;
  int64_t until[8];
  for (int64_t k = first_from(w, lane, piece->begin);
       k < w->lane_at[lane + 1] && w->spans->at[k].begin < piece->end; k++) {
    const rf_stamp *s = &w->spans->at[k];
    int64_t length = beside_ops(s) ? overlap(s, piece->begin, piece->end) : 0;
    if (length <= 0) continue;
    while (depth && until[depth - 1] <= s->begin) depth--;
    by_phase[s->id] += 1e-9 * (double)length;
    if (depth) by_phase[open[depth - 1]] -= 1e-9 * (double)length;
    if (depth < 8) {
      open[depth] = s->id;
      until[depth++] = s->end;
    }
  }
}

static void give_pieces(work *w) {
  for (int s = 0; s < w->trace->steps; s++) {
    rf_traced_step *step = &w->trace->step[s], *walk = &w->piece[2 * s], *behind = walk + 1;
    rf_traced_after after = {
        .end = behind->end, .heap_bytes = behind->heap_bytes, .work = behind->work, .phases = behind->phases};
    memcpy(after.gaps, behind->gaps, sizeof after.gaps);
    sum_phases(w, behind, after.by_phase);
    *step = *walk;
    step->after = after;
  }
}

static rf_status one_piece(work *w, int index, rf_error *error) {
  rf_traced_step *step = &w->piece[index];
  w->heap_pages[index] = (double)(step->heap_bytes / 4096);
  RF_TRY(find_regions(w, step, error));
  for (int lane = 0; lane < w->trace->threads; lane++) {
    thread t = thread_of(w, lane, step);
    RF_TRY((lane ? other_thread : own_thread)(w, step, &t, error));
    w->body[(int64_t)index * w->trace->threads + lane] = 1e-9 * (double)(step->end - step->begin - t.idle);
  }
  return RAFTER_OK;
}

rf_status rf_trace_find_gaps(rf_trace *trace, rf_stamps *spans, rf_error *error) {
  rf_status status = RAFTER_OK;
  int lanes = trace->threads + RF_TRACE_LANES;
  size_t pieces = 2 * (size_t)trace->steps + 1;
  work w = {.trace = trace,
            .spans = spans,
            .had = spans->count,
            .lane_at = calloc((size_t)lanes + 2, sizeof *w.lane_at)};
  /* of LOST spans, which are used up here */
  double *value = malloc(((size_t)spans->count + 1) * sizeof *value);
  w.lost_at = calloc((size_t)lanes + 1, sizeof *w.lost_at);
  w.heap_pages = calloc(pieces, sizeof *w.heap_pages);
  w.body = calloc(pieces * (size_t)(trace->threads + 1), sizeof *w.body);
  if (!w.lane_at || !value || !w.lost_at || !w.heap_pages || !w.body) {
    status = RF_FAIL(error, RAFTER_FAILED, "trace fewer steps", "out of memory while collecting a trace");
    goto done;
  }
  w.value = value;
  RF_GO(take_pieces(&w, error));
  for (int64_t i = 0; i < spans->count; i++) {
    w.lane_at[spans->at[i].lane + 1]++;
    value[i] = spans->at[i].value;
  }
  for (int lane = 0; lane < lanes; lane++) {
    w.lane_at[lane + 1] += w.lane_at[lane];
    w.lost_at[lane] = w.lane_at[lane];
  }
  for (int s = 0; s < w.pieces; s++)
    if (w.piece[s].whole) RF_GO(one_piece(&w, s, error));
  RF_GO(find_stops(&w, error));
  rf_stamp *gap = spans->at + w.had, *end = spans->at + spans->count;
  if (gap < end) qsort(gap, (size_t)(end - gap), sizeof *gap, by_lane_and_begin);
  for (int lane = 0; lane < trace->threads; lane++) {
    idle i = {.gap = gap};
    while (gap < end && gap->lane == lane) gap++;
    i.end = gap;
    inside_bodies(&w, lane, i);
    for (int s = 0; s < w.pieces; s++)
      if (w.piece[s].whole) w.piece[s].work += w.body[(int64_t)s * trace->threads + lane];
  }
  /* a trace says what the system counted */
  for (int64_t i = 0; i < w.had; i++) spans->at[i].value = value[i];
  give_pieces(&w);
done:
  free(w.piece);
  free(value);
  free(w.lane_at);
  free(w.region);
  free(w.lost_at);
  free(w.heap_pages);
  free(w.body);
  return status;
}
