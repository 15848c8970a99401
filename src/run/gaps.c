/* gaps.c - explains idle time. In a step, each nanosecond of each thread is either work or has one
 * cause. Timestamps explain the time outside the bodies of ops. The time between two ops has the
 * cause LAUNCH. The time before a thread begins its part of a parallel region has the same cause.
 * The time after a thread's part of a region has the cause WAIT. The time outside parallel regions
 * has the cause SERIAL. The system counts the mapped pages, the time in a core's queue, and the
 * time asleep (RF_SPAN_LOST). If a launch is longer than a bound, these counts must explain the
 * rest of the launch. Otherwise the cause is UNEXPLAINED. Counts that explain no gap explain time
 * inside the bodies of ops. If all threads slept at the same time, the process was stopped. After
 * such a stop, all gaps get the cause STOPPED. A rank records its waits for other ranks
 * (RF_SPAN_REMOTE) with their cause: SLOW_RANK or NETWORK. */
#include "run/trace.h"

#include <stdlib.h>

/* DISPATCH_NS: maximum time to launch an op. WAKE_NS: maximum time to wake a thread, which usually
 * takes about 50 us. SHOWN_NS: minimum length of a gap that gets a span. NOISE_NS: maximum error of
 * a counter. */
enum { DISPATCH_NS = 10000, WAKE_NS = 100000, SHOWN_NS = 500, NOISE_NS = 20000 };
/* All threads were stopped if they slept for at least this time. Threads sleep for a far shorter time if the
 * process is not stopped. */
enum { STOPPED_NS = 50000000 };

/* A parallel region. At own_end, the main thread ends its part. At `end`, the last thread ends its
 * part. At op_end, the op ends. */
typedef struct region {
  int64_t begin, own_end, end, op_end;
} region;

/* System counts of a thread from `begin` to `end`. `left`: counts that do not yet explain any
 * time. */
typedef struct look {
  int64_t begin, end;
  double counted[RF_LOSTS], left[RF_LOSTS];
} look;

/* A piece is a step, or the time after a step. The pointers are to sums in the trace. */
typedef struct piece {
  int64_t begin, end;
  bool whole; /* true if no span was dropped */
  double (*gaps)[RF_GAPS];
  double *work, *phases;
  int64_t *faults;
  double heap_pages; /* number of pages by which the heap grew, and whose page faults are not yet found */
  double *body;      /* for each thread: seconds inside the bodies of ops that have no cause */
} piece;

typedef struct work {
  rf_trace *trace;
  const rf_stamps *spans;
  int64_t *lane_at; /* (lanes + 1): lane l has the spans lane_at[l] to lane_at[l + 1] - 1. */
  rf_stamps gap;    /* new spans, one for each gap */
  bool failed;      /* true: out of memory. */
  bool remote;      /* true if there are waits for other ranks */
  region *region;   /* parallel regions of the current piece */
  int64_t regions;
  look *look;
  /* (threads + 1 entries) index of each thread's first look, and of its current look */
  int64_t *look_at, *look_next;
  piece *piece;
  int pieces;
} work;

/* One thread in one piece. */
typedef struct thread {
  work *w;
  piece *piece;
  int lane;
  const rf_stamp *first, *end; /* spans of the thread in this piece */
  int64_t idle;                /* nanoseconds outside the bodies of ops */
} thread;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
/* Returns the number of nanoseconds that are in both [a, a_end) and [b, b_end). */
static int64_t common(int64_t a, int64_t a_end, int64_t b, int64_t b_end) {
  return larger(0, smaller(a_end, b_end) - larger(a, b));
}
static int64_t overlap(const rf_stamp *span, int64_t begin, int64_t end) {
  return common(span->begin, span->end, begin, end);
}
static int64_t shared(const piece *p, const look *l) {
  return p->whole ? common(p->begin, p->end, l->begin, l->end) : 0;
}

static void put(work *w, rf_stamps *list, rf_stamp span) {
  w->failed = rf_stamps_add(list, span, NULL) != RAFTER_OK || w->failed;
}
static void put_gap(work *w, int lane, int gap, int64_t begin, int64_t end) {
  put(w, &w->gap, (rf_stamp){begin, end, 0, gap, (uint16_t)lane, RF_SPAN_GAP, 0});
}

/* Returns the first span of a lane that begins at `at` or later. */
static const rf_stamp *first_from(const work *w, int lane, int64_t at) {
  int64_t low = w->lane_at[lane], high = w->lane_at[lane + 1];
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (w->spans->at[middle].begin < at) low = middle + 1;
    else high = middle;
  }
  return w->spans->at + low;
}

static thread thread_of(work *w, int lane, piece *p) {
  return (thread){w, p, lane, first_from(w, lane, p->begin), first_from(w, lane, p->end), 0};
}

/* Returns the phases of the main thread that begin in [begin, end). */
static thread phases_of(work *w, piece *p, int64_t begin, int64_t end) {
  int lane = w->trace->threads + RF_TRACE_LANE_PHASES;
  return (thread){w, p, lane, first_from(w, lane, begin), first_from(w, lane, end), 0};
}
static bool is_outside_ops(const rf_stamp *s) {
  return s->kind == RF_SPAN_PHASE && (s->id < RF_PHASE_FORWARD || s->id > RF_PHASE_OPTIMIZER);
}

/* Returns the region to which a span of a worker thread belongs: the last region that began before
 * the end of the span. The span may end before the main thread has recorded the begin of the
 * region. */
static int64_t region_of(const work *w, const rf_stamp *span, int64_t from) {
  while (from + 1 < w->regions &&
         (w->region[from + 1].begin <= span->end || w->region[from].op_end <= span->begin))
    from++;
  return from;
}

static void find_regions(work *w, piece *p) {
  thread own = thread_of(w, 0, p);
  int64_t op_end = 0;
  w->regions = 0;
  for (const rf_stamp *s = own.first; s < own.end; s++) {
    if (s->kind == RF_SPAN_OP) op_end = s->end;
    else if (s->kind == RF_SPAN_BUSY)
      w->region[w->regions++] = (region){s->begin, s->end, s->end, larger(op_end, s->end)};
  }
  for (int lane = 1; lane < w->trace->threads && w->regions; lane++) {
    thread other = thread_of(w, lane, p);
    int64_t r = 0;
    for (const rf_stamp *s = other.first; s < other.end; s++) {
      if (s->kind != RF_SPAN_BUSY) continue;
      r = region_of(w, s, r);
      w->region[r].end = larger(w->region[r].end, s->end);
    }
  }
  for (int64_t r = 0; r < w->regions; r++) {
    w->region[r].end = smaller(w->region[r].end, w->region[r].op_end);
    if (r + 1 < w->regions) w->region[r].end = smaller(w->region[r].end, w->region[r + 1].begin);
  }
}

static void give(thread *t, rf_gap gap, int64_t begin, int64_t end) {
  if (end <= begin) return;
  t->piece->gaps[0][gap] += 1e-9 * (double)(end - begin);
  t->idle += end - begin;
  if (end - begin >= SHOWN_NS) put_gap(t->w, t->lane, gap, begin, end);
}

/* Takes up to `most` ns in [begin, end) from a system counter. One count means `each_ns` ns.
 * Returns the ns taken. The counters are not read in every step, so their counts may cover several
 * short steps. */
static int64_t take(thread *t, rf_lost lost, double each_ns, int64_t begin, int64_t end, int64_t most) {
  work *w = t->w;
  int64_t taken = 0, last = w->look_at[t->lane + 1], *next = &w->look_next[t->lane];
  while (*next < last && w->look[*next].end <= begin) ++*next;
  for (look *l = w->look + *next; l < w->look + last && l->begin < end && taken < most; l++) {
    int64_t have = smaller((int64_t)(l->left[lost] * each_ns), common(l->begin, l->end, begin, end));
    int64_t here = larger(0, smaller(have, most - taken));
    l->left[lost] -= (double)here / each_ns;
    taken += here;
  }
  return taken;
}

/* Gives the cause LAUNCH to at most `bound` ns. For the rest of the time, tries the counts of the
 * system. The most reliable count is tried first. */
static void give_launch(thread *t, int64_t bound, int64_t begin, int64_t end) {
  const struct {
    rf_lost lost;
    rf_gap gap;
    double each_ns;
  } causes[] = {{RF_LOST_DELAY, RF_GAP_OTHERS, 1},
                {RF_LOST_FAULTS, RF_GAP_FAULT, (double)larger(1, (int64_t)t->w->trace->fault_ns)},
                {RF_LOST_OFF, RF_GAP_WAIT, 1}};
  /* a device has no work until the host has launched the next kernel */
  int64_t at = t->w->trace->device ? end : smaller(end, begin + bound);
  give(t, RF_GAP_LAUNCH, begin, at);
  for (size_t i = 0; i < sizeof causes / sizeof *causes && at < end; i++) {
    rf_gap gap = causes[i].gap;
    int64_t took = take(t, causes[i].lost, causes[i].each_ns, begin, end, end - at);
    /* the time in a core's queue also counts as time without a core */
    if (gap == RF_GAP_OTHERS) take(t, RF_LOST_OFF, 1, begin, end, took);
    /* The thread slept until the disk answered. */
    if (gap == RF_GAP_WAIT && take(t, RF_LOST_READ_FAULTS, 1, begin, end, 1)) gap = RF_GAP_IO;
    give(t, gap, at, at + took);
    at += took;
  }
  give(t, RF_GAP_UNEXPLAINED, at, end);
}

/* ---- waits for other ranks ------------------------------------------------------------------- */

/* Returns the first wait of the main thread for another rank that begins at `from` or later, and
 * ends before or at `end`. Returns NULL if none exists. */
static const rf_stamp *next_remote(const work *w, int64_t from, int64_t end) {
  const rf_stamp *last = w->spans->at + w->lane_at[1];
  for (const rf_stamp *s = w->remote ? first_from(w, 0, from) : last; s < last && s->begin < end; s++)
    if (s->kind == RF_SPAN_REMOTE && s->end <= end) return s;
  return NULL;
}

/* Gives [begin, end) the cause of the wait `s`. The value of the gap is the number of the other
 * rank. */
static void give_remote(thread *t, const rf_stamp *s, int64_t begin, int64_t end) {
  int64_t before = t->w->gap.count;
  take(t, RF_LOST_DELAY, 1, begin, end, end - begin); /* a wait for a rank is longer than a wait for a core */
  give(t, s->id == RF_REMOTE_LATE ? RF_GAP_SLOW_RANK : RF_GAP_NETWORK, begin, end);
  if (t->w->gap.count > before) t->w->gap.at[before].value = s->value;
}

/* Explains a time in which the main thread has neither an op nor a phase. */
static void give_pause(thread *t, int64_t begin, int64_t end) {
  int64_t at = begin;
  for (const rf_stamp *s; (s = next_remote(t->w, at, end)); at = s->end) {
    give_launch(t, DISPATCH_NS, at, s->begin);
    give_remote(t, s, s->begin, s->end);
  }
  give_launch(t, DISPATCH_NS, at, end);
}

/* Explains a time in which another thread has no work. If the main thread waits for a rank in this
 * time, the wait is the cause for this thread too. */
static void give_serial(thread *t, int64_t begin, int64_t end) {
  int64_t at = begin;
  for (const rf_stamp *s; (s = next_remote(t->w, at, end)); at = s->end) {
    give(t, RF_GAP_SERIAL, at, s->begin);
    give_remote(t, s, s->begin, s->end);
  }
  give(t, RF_GAP_SERIAL, at, end);
}

/* Returns the nanoseconds of [begin, end) in which the main thread waited for other ranks. */
static double remote_in(const work *w, int64_t begin, int64_t end) {
  const rf_stamp *first = w->spans->at, *last = w->spans->at + w->lane_at[1], *s = first_from(w, 0, begin);
  double sum = 0;
  if (!w->remote) return 0;
  while (s > first && (s == last || s->kind != RF_SPAN_REMOTE || s->begin >= begin)) s--;
  for (; s < last && s->begin < end; s++)
    if (s->kind == RF_SPAN_REMOTE) sum += (double)overlap(s, begin, end);
  return sum;
}

/* ---- causes ---------------------------------------------------------------------------------- */

/* Explains the main thread's time between two ops: phases, and launches between them. */
static void between_ops(thread *t, int64_t begin, int64_t end) {
  thread phases = phases_of(t->w, t->piece, begin, end);
  int64_t at = begin;
  for (const rf_stamp *s = phases.first; s < phases.end; s++) {
    if (!is_outside_ops(s) || s->end <= at || s->end > end) continue;
    give_pause(t, at, s->begin);
    int64_t from = larger(at, s->begin);
    if (s->id == RF_PHASE_WRITE || s->id == RF_PHASE_CHECKPOINT) give(t, RF_GAP_IO, from, s->end);
    else {
      *t->piece->phases += 1e-9 * (double)(s->end - from);
      t->idle += s->end - from;
    }
    at = s->end;
  }
  give_pause(t, at, end);
}

static void main_thread(thread *t) {
  int64_t at = t->piece->begin, r = 0;
  for (const rf_stamp *s = t->first; s < t->end; s++) {
    if (s->kind == RF_SPAN_OP) {
      between_ops(t, at, s->begin);
      at = larger(at, s->end);
    } else if (s->kind == RF_SPAN_WAIT) give(t, RF_GAP_WAIT, s->begin, s->end);
    else if (s->kind == RF_SPAN_REMOTE && s->end <= at) give_remote(t, s, s->begin, s->end);
    else if (s->kind == RF_SPAN_BUSY && r < t->w->regions) {
      give(t, RF_GAP_WAIT, t->w->region[r].own_end, t->w->region[r].end);
      r++;
    }
  }
  between_ops(t, at, t->piece->end);
}

/* Adds a wait from `at` to the region's end, but not after `limit`. Returns the wait's end. */
static int64_t wait_in(thread *t, const region *r, int64_t at, int64_t limit) {
  int64_t over = smaller(larger(at, r->end), limit);
  give(t, RF_GAP_WAIT, at, over);
  return over;
}

static void other_thread(thread *t) {
  const work *w = t->w;
  const region *entered = NULL;
  int64_t at = t->piece->begin, index = 0;
  for (const rf_stamp *s = t->first; s < t->end; s++) {
    if (s->kind == RF_SPAN_WAIT) give(t, RF_GAP_WAIT, s->begin, s->end);
    if (s->kind != RF_SPAN_BUSY || s->begin < at) continue;
    index = region_of(w, s, index);
    const region *r = w->regions ? &w->region[index] : NULL;
    if (entered && entered != r) at = wait_in(t, entered, at, s->begin);
    if (!r) give_serial(t, at, s->begin);
    else if (entered == r) give(t, RF_GAP_WAIT, at, s->begin);
    else {
      int64_t forked = smaller(larger(at, r->begin), s->begin);
      give_serial(t, at, forked);
      give_launch(t, WAKE_NS, forked, s->begin);
    }
    entered = r;
    at = s->end;
  }
  if (entered) at = wait_in(t, entered, at, t->piece->end);
  give_serial(t, at, t->piece->end);
}

static void outside_bodies(work *w, piece *p) {
  find_regions(w, p);
  for (int lane = 0; lane < w->trace->threads; lane++) {
    thread t = thread_of(w, lane, p);
    (lane ? other_thread : main_thread)(&t);
    p->body[lane] = 1e-9 * (double)(p->end - p->begin - t.idle);
  }
}

static int by_lane_and_begin(const void *a, const void *b) {
  const rf_stamp *x = a, *y = b;
  if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Moves `seconds` of a lane from the bodies of ops to the cause `gap`. Each piece gives a part in
 * proportion to its time in `l`, and at most what its body has left. */
static void give_body(work *w, piece *first, int lane, const look *l, rf_gap gap, double seconds) {
  double all = 0;
  for (const piece *p = first; p < w->piece + w->pieces && p->begin < l->end; p++)
    all += (double)shared(p, l);
  for (piece *p = first; p < w->piece + w->pieces && p->begin < l->end && all > 0 && seconds > 0; p++) {
    double part = seconds * (double)shared(p, l) / all, here = part < p->body[lane] ? part : p->body[lane];
    p->gaps[1][gap] += here;
    p->body[lane] -= here;
  }
}

/* Takes the pages that were mapped during `l`, and assigns them to the piece with the longest time
 * in `l`. */
static void give_faults(work *w, piece *first, int lane, const look *l) {
  piece *most = NULL;
  for (piece *p = first; p < w->piece + w->pieces && p->begin < l->end; p++)
    if (shared(p, l) > (most ? shared(most, l) : 0)) most = p;
  if (!most) return;
  double left = l->left[RF_LOST_FAULTS], grown = left < most->heap_pages ? left : most->heap_pages;
  *most->faults += (int64_t)l->counted[RF_LOST_FAULTS];
  most->heap_pages -= grown;
  give_body(w, first, lane, l, RF_GAP_ALLOCATION, 1e-9 * grown * w->trace->fault_ns);
  give_body(w, first, lane, l, RF_GAP_FAULT, 1e-9 * (left - grown) * w->trace->fault_ns);
}

/* Explains time inside the bodies of ops with the counts that explain no gap. The thread has the
 * gaps [gap, gap_end). */
static void inside_bodies(work *w, int lane, int64_t gap, int64_t gap_end) {
  piece *first = w->piece, *end = w->piece + w->pieces;
  for (look *l = w->look + w->look_at[lane]; l < w->look + w->look_at[lane + 1]; l++) {
    int64_t idle = l->end - l->begin; /* nanoseconds in gaps or outside pieces */
    while (gap < gap_end && w->gap.at[gap].end <= l->begin) gap++;
    while (first < end && first->end <= l->begin) first++;
    for (int64_t k = gap; k < gap_end && w->gap.at[k].begin < l->end; k++)
      idle += overlap(&w->gap.at[k], l->begin, l->end);
    for (const piece *p = first; p < end && p->begin < l->end; p++) idle -= shared(p, l);
    give_faults(w, first, lane, l);
    /* If a thread was off the core for longer than it was idle, it slept inside the bodies of
     * ops. */
    double still = l->counted[RF_LOST_OFF] - (double)idle, delay = l->left[RF_LOST_DELAY];
    if (still <= NOISE_NS) continue;
    if (delay > still) delay = still;
    give_body(w, first, lane, l, RF_GAP_OTHERS, 1e-9 * delay);
    if (still - delay > NOISE_NS)
      give_body(w, first, lane, l, l->left[RF_LOST_READ_FAULTS] > 0 ? RF_GAP_IO : RF_GAP_WAIT,
                1e-9 * (still - delay));
  }
}

/* Maximum number of nanoseconds of [begin, end) in which a thread worked, could have worked, or
 * read from a disk. */
static double awake_in(const work *w, int lane, int64_t begin, int64_t end) {
  double awake = (double)(end - begin);
  for (const look *l = w->look + w->look_at[lane]; l < w->look + w->look_at[lane + 1]; l++) {
    double part = (double)common(l->begin, l->end, begin, end);
    double there = (double)(l->end - l->begin) - l->counted[RF_LOST_OFF] + l->counted[RF_LOST_DELAY];
    if (l->counted[RF_LOST_READ_FAULTS] <= 0 && there < part)
      awake -= part - (double)larger(0, (int64_t)there);
  }
  return awake > 0 ? awake : 0;
}

/* Returns the nanoseconds of [begin, end) in phases outside ops. Such phases may wait for files and
 * requests. */
static double phases_in(work *w, int64_t begin, int64_t end) {
  double sum = 0;
  thread phases = phases_of(w, NULL, INT64_MIN, end);
  for (const rf_stamp *s = phases.first; s < phases.end; s++)
    if (is_outside_ops(s)) sum += (double)overlap(s, begin, end);
  return sum;
}

/* Returns entry k of a list. The list has all spans, and then all gaps. */
static const rf_stamp *span_at(const work *w, int64_t k) {
  return k < w->spans->count ? &w->spans->at[k] : &w->gap.at[k - w->spans->count];
}

/* Returns the first time after `at` at which a span begins or ends. The time is at most `end`. Sets
 * *busy to true if the time from `at` to the returned time has no gap and no phase. */
static int64_t next_edge(const rf_stamps *near, int64_t at, int64_t end, bool *busy) {
  int64_t edge = end;
  *busy = true;
  for (int64_t k = 0; k < near->count; k++) {
    const rf_stamp *s = &near->at[k];
    if (s->begin > at && s->begin < edge) edge = s->begin;
    if (s->end > at && s->end < edge) edge = s->end;
    if (s->begin <= at && s->end > at && (s->kind == RF_SPAN_GAP || s->kind == RF_SPAN_PHASE)) *busy = false;
  }
  return edge;
}

/* In [begin, end), changes the cause of gap k to STOPPED. Elsewhere, the gap keeps its cause. */
static void stop_gap(work *w, piece *p, int64_t k, int64_t begin, int64_t end) {
  rf_stamp gap = w->gap.at[k];
  int64_t from = larger(begin, gap.begin), to = smaller(end, gap.end);
  double seconds = 1e-9 * (double)(to - from), *before = &p->gaps[0][gap.id];
  *before = *before > seconds ? *before - seconds : 0;
  p->gaps[0][RF_GAP_STOPPED] += seconds;
  w->gap.at[k] = (rf_stamp){from, to, gap.value, RF_GAP_STOPPED, gap.lane, gap.kind, gap.plan};
  if (gap.begin < from) put_gap(w, gap.lane, gap.id, gap.begin, from);
  if (to < gap.end) put_gap(w, gap.lane, gap.id, to, gap.end);
}

static void stop_lane(work *w, piece *p, int lane, int64_t begin, int64_t end) {
  /* Visits the thread's spans in [begin, end). For the main thread, also visits the thread's
   * phases. */
  rf_stamps near = {0};
  int64_t gaps = w->gap.count, count = w->spans->count + gaps;
  int phases = lane ? -1 : w->trace->threads + RF_TRACE_LANE_PHASES;
  for (int64_t k = 0; k < count; k++) {
    const rf_stamp *s = span_at(w, k);
    bool own = s->lane == lane && s->kind != RF_SPAN_LOST, phase = s->lane == phases && is_outside_ops(s);
    if ((own || phase) && overlap(s, begin, end) > 0) put(w, &near, *s);
  }
  bool busy;
  for (int64_t at = begin, edge; at < end; at = edge) {
    edge = next_edge(&near, at, end, &busy);
    double seconds = 1e-9 * (double)(edge - at);
    if (!busy || edge - at < SHOWN_NS || p->body[lane] < seconds) continue;
    p->body[lane] -= seconds;
    p->gaps[0][RF_GAP_STOPPED] += seconds;
    put_gap(w, lane, RF_GAP_STOPPED, at, edge);
  }
  for (int64_t k = 0; k < gaps; k++) {
    const rf_stamp *gap = &w->gap.at[k];
    bool keeps = gap->id == RF_GAP_IO || gap->id == RF_GAP_OTHERS || gap->id >= RF_GAP_STOPPED;
    if (gap->lane == lane && overlap(gap, begin, end) > 0 && !keeps) stop_gap(w, p, k, begin, end);
  }
  free(near.at);
}

/* Returns the likely begin of a stop of `length` ns. The longest op or gap of the main thread is
 * found, and the stop is put in its middle. */
static int64_t begin_of_stop(const work *w, const look *l, int64_t length) {
  int64_t begin = l->begin, end = l->end, longest = 0;
  for (int64_t k = 0; k < w->spans->count + w->gap.count; k++) {
    const rf_stamp *s = span_at(w, k);
    if (s->lane || (s->kind != RF_SPAN_OP && s->kind != RF_SPAN_GAP) ||
        overlap(s, l->begin, l->end) <= longest)
      continue;
    longest = overlap(s, l->begin, l->end);
    begin = larger(s->begin, l->begin);
    end = smaller(s->end, l->end);
  }
  return smaller(larger(begin + (end - begin - length) / 2, l->begin), l->end - length);
}

/* The length of a stop is the time that the main thread slept, minus the time in which another
 * thread may have been awake. */
static void find_stops(work *w) {
  int threads = w->trace->threads;
  for (look *l = w->look; threads && l < w->look + w->look_at[1]; l++) {
    double asleep = l->counted[RF_LOST_OFF] - l->counted[RF_LOST_DELAY], length = (double)(l->end - l->begin);
    if (asleep < STOPPED_NS || l->counted[RF_LOST_READ_FAULTS] > 0) continue;
    asleep =
        (asleep < length ? asleep : length) - phases_in(w, l->begin, l->end) - remote_in(w, l->begin, l->end);
    for (int lane = 1; lane < threads && asleep >= STOPPED_NS; lane++)
      if (w->lane_at[lane] < w->lane_at[lane + 1]) asleep -= awake_in(w, lane, l->begin, l->end);
    if (asleep < STOPPED_NS) continue;
    int64_t begin = begin_of_stop(w, l, (int64_t)asleep), end = begin + (int64_t)asleep;
    for (piece *p = w->piece; p < w->piece + w->pieces; p++) {
      int64_t from = larger(begin, p->begin), to = smaller(end, p->end);
      for (int lane = 0; lane < threads && p->whole && from < to; lane++) stop_lane(w, p, lane, from, to);
    }
  }
}

/* Sums the seconds of phases outside ops, by name. If a phase is inside another phase, its time is
 * subtracted from the outer phase. The outer phase comes first in the list. */
static void sum_phases(work *w, piece *p, double by_phase[RF_PHASES]) {
  int open[8], depth = 0;
  int64_t until[8];
  thread phases = phases_of(w, p, p->begin, p->end);
  for (const rf_stamp *s = phases.first; s < phases.end; s++) {
    int64_t length = is_outside_ops(s) ? overlap(s, p->begin, p->end) : 0;
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

/* Lists each step and the time after it as two pieces. Page faults are reported only for steps. */
static void take_pieces(work *w, double *body, int64_t *ignored) {
  for (int s = 0; s < w->trace->steps; s++) {
    rf_traced_step *step = &w->trace->step[s];
    rf_traced_after *after = &step->after;
    double pages = (double)(step->heap_bytes / 4096), pages_after = (double)(after->heap_bytes / 4096);
    w->piece[2 * s] = (piece){step->begin,   step->end,     step->whole, step->gaps, &step->work,
                              &step->phases, &step->faults, pages,       body};
    body += w->trace->threads;
    w->piece[2 * s + 1] = (piece){step->end,      after->end, step->whole, after->gaps, &after->work,
                                  &after->phases, ignored,    pages_after, body};
    body += w->trace->threads;
  }
}

/* Makes one look from counts that were read at the same time. The spans of counts that were read
 * together have the same begin and end. */
static void take_looks(work *w) {
  int64_t count = 0;
  for (int lane = 0; lane < w->trace->threads; lane++) {
    look *l = NULL;
    w->look_at[lane] = w->look_next[lane] = count;
    for (int64_t k = w->lane_at[lane]; k < w->lane_at[lane + 1]; k++) {
      const rf_stamp *s = &w->spans->at[k];
      if (s->kind != RF_SPAN_LOST) continue;
      if (!l || l->begin != s->begin || l->end != s->end) {
        l = &w->look[count++];
        *l = (look){.begin = s->begin, .end = s->end};
      }
      l->counted[s->id] = l->left[s->id] = s->value;
    }
  }
  w->look_at[w->trace->threads] = count;
}

static void explain(work *w) {
  for (int s = 0; s < w->pieces; s++)
    if (w->piece[s].whole) outside_bodies(w, &w->piece[s]);
  find_stops(w);
  if (w->gap.count) qsort(w->gap.at, (size_t)w->gap.count, sizeof *w->gap.at, by_lane_and_begin);
  int64_t first, gap = 0;
  for (int lane = 0; lane < w->trace->threads; lane++) {
    for (first = gap; gap < w->gap.count && w->gap.at[gap].lane == lane;) gap++;
    inside_bodies(w, lane, first, gap);
    for (int s = 0; s < w->pieces; s++)
      if (w->piece[s].whole) *w->piece[s].work += w->piece[s].body[lane];
  }
  for (int s = 0; s < w->trace->steps; s++)
    sum_phases(w, &w->piece[2 * s + 1], w->trace->step[s].after.by_phase);
}

rf_status rf_trace_find_gaps(rf_trace *trace, rf_stamps *spans, rf_error *error) {
  rf_status status = RAFTER_OK;
  size_t threads = (size_t)trace->threads, lanes = threads + RF_TRACE_LANES, lost = 1;
  int64_t ignored = 0;
  work w = {.trace = trace, .spans = spans, .pieces = 2 * trace->steps};
  w.lane_at = calloc(lanes + 2, sizeof *w.lane_at);
  w.look_at = calloc(2 * (threads + 1), sizeof *w.look_at);
  w.piece = calloc((size_t)w.pieces + 1, sizeof *w.piece);
  double *body = calloc(((size_t)w.pieces + 1) * (threads + 1), sizeof *body);
  if (!w.lane_at || !w.look_at || !w.piece || !body) RF_GO(rf_trace_no_memory(error));
  w.look_next = w.look_at + threads + 1;
  for (int64_t i = 0; i < spans->count; i++) {
    w.lane_at[spans->at[i].lane + 1]++;
    lost += spans->at[i].kind == RF_SPAN_LOST;
    w.remote |= spans->at[i].kind == RF_SPAN_REMOTE;
  }
  for (size_t lane = 0; lane < lanes; lane++) w.lane_at[lane + 1] += w.lane_at[lane];
  w.look = calloc(lost, sizeof *w.look);
  w.region = calloc((size_t)w.lane_at[1] + 1, sizeof *w.region);
  if (!w.look || !w.region) RF_GO(rf_trace_no_memory(error));
  take_pieces(&w, body, &ignored);
  take_looks(&w);
  explain(&w);
  if (w.failed) RF_GO(rf_trace_no_memory(error));
  int64_t kept = 0;
  for (int64_t i = 0; i < spans->count; i++)
    if (spans->at[i].kind != RF_SPAN_REMOTE) spans->at[kept++] = spans->at[i];
  spans->count = kept;
  for (int64_t i = 0; i < w.gap.count; i++) RF_GO(rf_stamps_add(spans, w.gap.at[i], error));
done:
  free(w.piece);
  free(body);
  free(w.lane_at);
  free(w.look_at);
  free(w.look);
  free(w.region);
  free(w.gap.at);
  return status;
}
