/* record.h - records a run: which steps, phases and counters, and the trace of them.
 *
 *   rf_record_open(&when, threads, &record, error);   once, before the first phase that should
 *     be seen
 *   rf_record_step(10);                               from here on ops are recorded, when step
 *     10 is asked for
 *   ... rf_run_section(...) records each op, its kernels each thread's part of it
 *     (backend/lanes.h)
 *   rf_record_step_end(tokens);                       its sections are done; recording
 *     continues until the next step begins
 *   rf_trace_collect(record, plans, names, count, &trace, error);
 *
 * Nothing is allocated and no lock is taken between open and collect. When the rings are full, the
 * oldest spans are dropped and counted. */
#ifndef RF_RECORD_H
#define RF_RECORD_H

#include "backend/lanes.h"
#include "plan/plan.h"

typedef enum rf_phase {
  RF_PHASE_DATA,
  RF_PHASE_FORWARD, /* these five are of ops and are made when a trace is collected */
  RF_PHASE_RECOMPUTE,
  RF_PHASE_BACKWARD,
  RF_PHASE_ACCUMULATE, /* inside another: ops that add to a gradient of earlier microbatches */
  RF_PHASE_OPTIMIZER,
  RF_PHASE_SAMPLE,
  RF_PHASE_CHECKPOINT,
  RF_PHASE_VALIDATION,
  RF_PHASE_LOAD,
  RF_PHASE_TOKENIZE,
  RF_PHASE_WRITE,
  RF_PHASE_RECORD, /* the recorder's own work between steps */
  RF_PHASES
} rf_phase;
const char *rf_phase_name(rf_phase phase);

typedef enum rf_counter {
  RF_COUNTER_LIVE, /* live bytes of the arena, from the plan when a trace is collected */
  RF_COUNTER_QUEUE,
  RF_COUNTER_ANSWERS,
  RF_COUNTER_PAGES,
  RF_COUNTERS
} rf_counter;
const char *rf_counter_name(rf_counter counter);
const char *rf_counter_unit(rf_counter counter);

/* Why a thread did no work. Times inside and outside the bodies of ops are kept apart. */
typedef enum rf_gap {
  RF_GAP_LAUNCH,     /* from one op to the next, and until a thread has begun its part */
  RF_GAP_WAIT,       /* its part was done, or at a barrier, while others worked; or asleep inside its part */
  RF_GAP_SERIAL,     /* work that is not shared: an op for fewer threads, or a phase */
  RF_GAP_FAULT,      /* pages mapped */
  RF_GAP_ALLOCATION, /* pages mapped for a heap that grew */
  RF_GAP_IO,         /* pages read from a disk, files written */
  RF_GAP_OTHERS,     /* ready to run while something else had the core */
  RF_GAP_UNEXPLAINED,
  RF_GAP_STOPPED, /* all threads asleep at once: the process was stopped */
  RF_GAPS
} rf_gap;
const char *rf_gap_name(rf_gap gap);
const char *rf_lost_name(rf_lost lost);

/* ---- which steps ----------------------------------------------------------------------------- */

typedef struct rf_trace_when {
  int64_t first, last, stride; /* steps first, first + stride, ... up to last */
} rf_trace_when;
/* "steps=10..12", "steps=10..100:10", "steps=7", "all". */
rf_status rf_trace_when_parse(const char *text, rf_trace_when *when, rf_error *error);
bool rf_trace_wants(const rf_trace_when *when, int64_t step);

/* ---- recording ------------------------------------------------------------------------------- */

typedef struct rf_record rf_record;
/* RAFTER_FAILED when one is open already: a process has one set of cores. */
rf_status rf_record_open(const rf_trace_when *when, int threads, rf_record **record, rf_error *error);
void rf_record_close(rf_record *record); /* NULL is allowed */

/* For the run's own thread. Without an open record they do nothing. */
extern rf_lanes *rf_record_lanes;
void rf_record_put_step(int64_t step);
void rf_record_put_end(int64_t tokens);
/* Begins a step by its number, or the next one from 1 on (-1). If the step is asked for, what
 * follows is recorded until the next step begins. */
static inline void rf_record_step(int64_t step) {
  if (__builtin_expect(rf_record_lanes != NULL, 0)) rf_record_put_step(step);
}
static inline void rf_record_step_end(int64_t tokens) {
  if (__builtin_expect(rf_lanes_on != NULL, 0)) rf_record_put_end(tokens);
}
/* Nothing is recorded until the next step begins. */
void rf_record_put_pause(void);
static inline void rf_record_pause(void) {
  if (__builtin_expect(rf_lanes_on != NULL, 0)) rf_record_put_pause();
}
void rf_record_put_extent(int64_t parts, int64_t rows, int64_t context);
/* The part of the plan's rows that this step uses; the prediction is made for it. */
static inline void rf_record_extent(int64_t parts, int64_t rows, int64_t context) {
  if (__builtin_expect(rf_lanes_on != NULL, 0)) rf_record_put_extent(parts, rows, context);
}
static inline int64_t rf_phase_begin(void) {
  return __builtin_expect(rf_record_lanes != NULL, 0) ? rf_now_ns() : 0;
}
void rf_phase_put(rf_phase phase, int64_t begin);
static inline void rf_phase_end(rf_phase phase, int64_t begin) {
  if (__builtin_expect(begin != 0, 0)) rf_phase_put(phase, begin);
}
void rf_count_put(rf_counter counter, double value);
static inline void rf_count(rf_counter counter, double value) {
  if (__builtin_expect(rf_lanes_on != NULL, 0)) rf_count_put(counter, value);
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* The time after a step's sections: validation, checkpoints, logs. Its seconds sum to threads
 * times its length, too. */
typedef struct rf_traced_after {
  int64_t end, heap_bytes; /* where the next step began; for the last step, where its last phase ended */
  double gaps[2][RF_GAPS], work, phases;
  /* seconds of the run's own thread in phases outside ops; nested phases count once */
  double by_phase[RF_PHASES];
} rf_traced_after;

typedef struct rf_traced_step {
  int64_t step, begin, end, tokens;
  /* sequences, rows and keys of a generate step; parts 0: as in the plan */
  int64_t parts, rows, context;
  bool whole;                 /* all of its spans are there */
  double gaps[2][RF_GAPS];    /* seconds of all threads: outside the bodies of ops, inside them */
  double work;                /* seconds of all threads in ops, without those gaps */
  double phases;              /* seconds of the run's own thread in phases outside ops (data, sample, ...) */
  int64_t faults, heap_bytes; /* pages mapped; bytes that the process's data grew by */
  rf_traced_after after;
} rf_traced_step;

typedef struct rf_trace {
  rf_stamp *span; /* sorted by lane, begin, and longest first; thread lanes first, then rf_trace_lane's */
  int64_t count, dropped;
  int threads;
  int64_t origin; /* ns of rf_now_ns: begin and end of spans and steps count from here */
  double wall;    /* seconds since 1970 at the origin */
  rf_traced_step *step;
  int steps;
  int plans;
  const rf_plan *plan[4]; /* the caller's */
  char plan_name[4][32];  /* "train", "validation", "prefill", "decode", "score" */
  double fault_ns;        /* measured: one page of this machine */
} rf_trace;

typedef enum rf_trace_lane {
  RF_TRACE_LANE_PREDICTED,
  RF_TRACE_LANE_PHASES,
  RF_TRACE_LANE_STEPS,
  RF_TRACE_LANE_COUNTERS,
  RF_TRACE_LANES
} rf_trace_lane;
const char *rf_trace_lane_name(rf_trace_lane lane);

/* Everything recorded so far, with phases of ops, the predicted lane, live bytes and gaps. The
 * plans must outlive the trace. */
rf_status rf_trace_collect(const rf_record *record, const rf_plan *const *plans, const char *const *names,
                           int count, rf_trace **trace, rf_error *error);
void rf_trace_free(rf_trace *trace);

/* For each op: live bytes of the arena, and the end of the last of them. At the plan's peak op
 * the end is arena_bytes. */
void rf_plan_live(const rf_plan *plan, int64_t *live /* op_count */,
                  int64_t *end /* op_count, may be NULL */);

#endif
