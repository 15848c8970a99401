/* record.h - records ops, phases and counters of a run, by thread, and makes a trace from them.
 * Example:
 *   rf_record_open(&when, threads, &record, error);   // once, before the first phase to record
 *   rf_record_step(10);                               // starts recording if step 10 is selected
 *   ... rf_run_section(...) records each op, and each thread's part of it (backend/lanes.h)
 *   rf_record_step_end(tokens);                       // recording continues until the next step
 *   rf_trace_collect(record, plans, names, count, &trace, error);       // end of the example.
 *
 * Between open and collect, nothing is allocated and no lock is taken. When a thread's ring of
 * spans is full, its oldest spans are dropped and counted. */
#ifndef RF_RECORD_H
#define RF_RECORD_H

#include "backend/lanes.h"
#include "plan/plan.h"

typedef enum rf_phase {
  RF_PHASE_DATA,
  /* When a trace is collected, the times of FORWARD to OPTIMIZER are computed from the ops. */
  RF_PHASE_FORWARD,
  RF_PHASE_RECOMPUTE,
  RF_PHASE_BACKWARD,
  /* Ops that add to a gradient of earlier microbatches. The phase ACCUMULATE is inside another
   * phase. */
  RF_PHASE_ACCUMULATE,
  RF_PHASE_OPTIMIZER,
  RF_PHASE_SAMPLE,
  RF_PHASE_CHECKPOINT,
  RF_PHASE_VALIDATION,
  RF_PHASE_LOAD,
  RF_PHASE_TOKENIZE,
  RF_PHASE_WRITE,
  RF_PHASE_RECORD, /* Work of the recorder: between steps, and when a profiler starts or is read. */
  RF_PHASE_OTHER,  /* Work of a device that belongs to no op of the plan, such as copies of inputs. */
  RF_PHASES
} rf_phase;
const char *rf_phase_name(rf_phase phase);

typedef enum rf_counter {
  /* Live bytes of the arena. The number comes from the plan when a trace is collected. */
  RF_COUNTER_LIVE,
  RF_COUNTER_QUEUE,
  RF_COUNTER_ANSWERS,
  RF_COUNTER_PAGES,
  RF_COUNTERS
} rf_counter;
const char *rf_counter_name(rf_counter counter);
const char *rf_counter_unit(rf_counter counter);

/* Causes why a thread did no work. The times inside the bodies of ops and outside of them have
 * separate sums. */
typedef enum rf_gap {
  RF_GAP_LAUNCH, /* The thread is idle between two ops, or before it begins its part of an op. */
  /* The thread is idle at a barrier or after its part of an op, or sleeps inside its part. */
  RF_GAP_WAIT,
  /* The thread is idle while other threads work on an op for fewer threads, or on a phase. */
  RF_GAP_SERIAL,
  RF_GAP_FAULT,      /* The system mapped pages. */
  RF_GAP_ALLOCATION, /* The system mapped pages for a heap that grew. */
  RF_GAP_IO,         /* The thread read pages from a disk or wrote files. */
  RF_GAP_OTHERS,     /* The thread is ready to run, but the core ran another thread or process. */
  RF_GAP_UNEXPLAINED,
  RF_GAP_STOPPED, /* All threads slept at the same time, because the process was stopped. */
  /* A rank waits for a rank that has not begun an exchange (SLOW_RANK), or for messages
   * (NETWORK). */
  RF_GAP_SLOW_RANK,
  RF_GAP_NETWORK,
  RF_GAPS
} rf_gap;
const char *rf_gap_name(rf_gap gap);
const char *rf_lost_name(rf_lost lost);

typedef struct rf_trace_when {
  int64_t first, last, stride; /* The steps are first, first + stride, ..., up to `last`. */
} rf_trace_when;
/* Parses "steps=10..12", "steps=10..100:10", "steps=7" or "all". */
rf_status rf_trace_when_parse(const char *text, rf_trace_when *when, rf_error *error);
bool rf_trace_wants(const rf_trace_when *when, int64_t step);

typedef struct rf_record rf_record;
/* Starts the record of this process. RAFTER_FAILED: another record is open. */
rf_status rf_record_open(const rf_trace_when *when, int threads, rf_record **record, rf_error *error);
void rf_record_close(rf_record *record); /* NULL is allowed */

/* Functions for the main thread of the run. If no record is open, the functions do nothing. */
extern rf_lanes *rf_record_lanes;
void rf_record_put_step(int64_t step);
void rf_record_put_end(int64_t tokens);
/* Begins step number `step`. -1 means the number after the number of the previous step, or 1. If
 * the step is selected, the recorder records everything until the next step. */
static inline void rf_record_step(int64_t step) {
  if (__builtin_expect(rf_record_lanes != NULL, 0)) rf_record_put_step(step);
}
static inline void rf_record_step_end(int64_t tokens) {
  if (__builtin_expect(rf_lanes_on != NULL, 0)) rf_record_put_end(tokens);
}
/* Stops recording until the next step begins. */
void rf_record_put_pause(void);
static inline void rf_record_pause(void) {
  if (__builtin_expect(rf_lanes_on != NULL, 0)) rf_record_put_pause();
}
void rf_record_put_extent(int64_t parts, int64_t rows, int64_t context);
/* Records the numbers of sequences, rows and keys of a step, from which its times are predicted. */
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

/* The time after a step's sections, until the next step. In this time, the run validates, writes
 * checkpoints and logs. The sum of gaps, work and phases is the length of this time multiplied by
 * `threads`, as in a step. */
typedef struct rf_traced_after {
  /* `end` is the begin of the next step or, after the last step, the end of its last phase. */
  int64_t end, heap_bytes;
  double gaps[2][RF_GAPS], work, phases;
  /* Seconds of the main thread in each phase outside ops. Nested phases count once. */
  double by_phase[RF_PHASES];
} rf_traced_after;

typedef struct rf_traced_step {
  int64_t step, begin, end, tokens;
  /* Numbers of sequences, rows and keys of a generate step. If `parts` is 0, the numbers are those
   * of the plan. */
  int64_t parts, rows, context;
  bool whole; /* true if no span of the step was dropped */
  /* Seconds of gaps of all threads: [0] outside the bodies of ops, [1] inside. */
  double gaps[2][RF_GAPS];
  double work; /* Seconds of all threads in ops, without the gaps. */
  /* Seconds of the main thread in phases outside ops (data, sample, ...). */
  double phases;
  int64_t faults, /* Number of pages mapped. */
      heap_bytes; /* growth of the process's data, in bytes */
  rf_traced_after after;
} rf_traced_step;

typedef struct rf_trace {
  /* Spans, sorted by lane, then by begin, then by length (longest first). Lanes: threads, then
   * rf_trace_lane. */
  rf_stamp *span;
  int64_t count, dropped;
  int threads;
  int64_t origin; /* value of rf_now_ns() at time 0 of spans and steps */
  double wall;    /* Seconds from 1970 to `origin`. */
  rf_traced_step *step;
  int steps;
  int plans;
  const rf_plan *plan[4]; /* The plans belong to the caller. */
  char plan_name[4][32];  /* "train", "validation", "prefill", "decode", "score" */
  double fault_ns;        /* measured nanoseconds to map one page */
  bool device;            /* true if the only lane of a thread is a device, whose profiler timed the ops */
} rf_trace;

typedef enum rf_trace_lane {
  RF_TRACE_LANE_PREDICTED,
  RF_TRACE_LANE_PHASES,
  RF_TRACE_LANE_STEPS,
  RF_TRACE_LANE_COUNTERS,
  RF_TRACE_LANES
} rf_trace_lane;
const char *rf_trace_lane_name(rf_trace_lane lane);
/* Name of the lane of a device. It replaces "thread 0". */
#define RF_TRACE_DEVICE "device"

/* Makes a trace of everything that was recorded so far. The trace gets phases of ops, predicted
 * times, live bytes and gaps. The plans must outlive the trace. */
rf_status rf_trace_collect(const rf_record *record, const rf_plan *const *plans, const char *const *names,
                           int count, rf_trace **trace, rf_error *error);
void rf_trace_free(rf_trace *trace);

/* Predicts the time of `times` steps. In each step, `parts` sequences of `context` keys share
 * `rows` rows evenly. For each op, adds the predicted seconds to `seconds` (op_count), and the
 * seconds at the machine's peak rates to `limit` (op_count). */
rf_status rf_trace_price(const rf_plan *plan, int64_t parts, int64_t rows, int64_t context, double times,
                         double *seconds, double *limit, rf_error *error);

/* For each op (op_count): sets `live` to the live bytes of the arena, and `end` to the offset after
 * the last live byte. `end` may be NULL. At the op with the memory peak, `end` is arena_bytes. */
void rf_plan_live(const rf_plan *plan, int64_t *live, int64_t *end);

#endif
