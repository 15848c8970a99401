/* lanes.h - who records what threads do, and the stamps that kernels put into their parallel
 * regions.
 *
 * A lane is one thread's ring of spans: preallocated, written by that thread alone, without a
 * lock. When nothing is recorded a stamp is one load and one branch. In a parallel region:
 *
 *   #pragma omp parallel num_threads(threads)
 *   {
 *     RF_STAMP_BUSY;                       from here to the end of the block this thread works;
 *       what follows is waiting for the others
 *     #pragma omp for schedule(static) nowait
 *     for (...) ...
 *     RF_STAMP_BARRIER;                    a barrier, whose waiting is recorded
 *   }
 *
 * A test of the tree (tests/unit/house/test_lanes.sh) holds every region of backend/cpu to that
 * form. One recorder at a time: a process has one set of cores. */
#ifndef RF_LANES_H
#define RF_LANES_H

#include "base/base.h"

#include <omp.h>

typedef enum rf_stamp_kind {
  RF_SPAN_OP,        /* id: op of `plan`; value: microbatch or 0. Lane 0, from call to return */
  RF_SPAN_BUSY,      /* id: op; one thread's own work in a parallel region */
  RF_SPAN_WAIT,      /* id: op; a barrier inside a region */
  RF_SPAN_PHASE,     /* id: rf_phase */
  RF_SPAN_STEP,      /* id: place in the list of steps; value: the step's number */
  RF_SPAN_COUNTER,   /* id: rf_counter; value: the count from `begin` on */
  RF_SPAN_LOST,      /* id: rf_lost; value: what the system counted between begin and end */
  RF_SPAN_GAP,       /* id: rf_gap; made when a trace is collected */
  RF_SPAN_PREDICTED, /* id: op; value: ns of its limit; made when a trace is collected */
  RF_SPAN_KINDS
} rf_stamp_kind;

/* What the system says of a thread between two looks at it. */
typedef enum rf_lost {
  RF_LOST_FAULTS,      /* pages mapped without reading (ru_minflt) */
  RF_LOST_READ_FAULTS, /* pages read from a disk (ru_majflt) */
  RF_LOST_DELAY,       /* ns runnable and not running: somebody else had the core (schedstat) */
  RF_LOST_OFF,         /* ns not on a core: delay, and what it slept or waited */
  RF_LOST_SWITCHES,    /* involuntary ones */
  RF_LOSTS
} rf_lost;

typedef struct rf_stamp {
  int64_t begin, end; /* ns of rf_now_ns */
  double value;
  int32_t id;
  uint16_t lane;
  uint8_t kind, plan;
} rf_stamp;

typedef struct rf_lane_look {
  /* faults -1: not known, as of a thread that another one looked at */
  int64_t at, cpu, delay, faults, read_faults, switches;
} rf_lane_look;

typedef struct rf_lane {
  _Alignas(64) rf_stamp *ring;
  int64_t capacity, count; /* a power of two; written so far: those before count - capacity are gone */
  rf_lane_look last;
  int64_t look_after; /* ns from which the next look at the system's counters is due */
  int thread;         /* the system's id of the thread whose counters `last` holds */
  int file;           /* its schedstat; -1: none */
} rf_lane;

typedef struct rf_lanes {
  int count;
  rf_lane *lane;
  int64_t look_ns; /* between two looks at the system's counters, at least */
  int32_t op;      /* at work; set between regions. Below 0: none, regions are not recorded */
  uint8_t plan;
} rf_lanes;

extern rf_lanes *rf_lanes_on; /* NULL: nothing is recorded now */

/* The ring is longer than caches are: the line of the next stamps is on its way while this one's
 * op runs. */
static inline void rf_lane_put(rf_lane *lane, rf_stamp span) {
  lane->ring[lane->count & (lane->capacity - 1)] = span;
  lane->count++;
  __builtin_prefetch(&lane->ring[(lane->count + 2) & (lane->capacity - 1)], 1);
}

/* By the run's own thread, lane 0, while the others have nothing to do: puts into their lanes
 * what they counted since they last looked themselves; and forgets it, so that counters are
 * compared from here on. */
void rf_lanes_settle(const rf_lanes *lanes);
void rf_lanes_forget(rf_lanes *lanes);
/* A look at what the system counted for this thread, put into its lane. */
void rf_lane_look_at(rf_lanes *lanes, int lane, int64_t now);
/* The calling thread's lane; NULL beyond those that were opened. */
rf_lane *rf_lane_begin(rf_lanes *lanes, int lane, int64_t now);

typedef struct rf_busy {
  rf_lanes *lanes; /* NULL: not recorded */
  int64_t begin;
} rf_busy;

static inline rf_busy rf_busy_begin(void) {
  rf_lanes *lanes = rf_lanes_on;
  if (__builtin_expect(!lanes, 1) || lanes->op < 0) return (rf_busy){NULL, 0};
  int64_t now = rf_now_ns();
  return rf_lane_begin(lanes, omp_get_thread_num(), now) ? (rf_busy){lanes, now} : (rf_busy){NULL, 0};
}
void rf_busy_put(const rf_busy *busy, rf_stamp_kind kind);
static inline void rf_busy_end(const rf_busy *busy) {
  if (__builtin_expect(busy->lanes != NULL, 0)) rf_busy_put(busy, RF_SPAN_BUSY);
}
static inline void rf_wait_end(const rf_busy *busy) {
  if (__builtin_expect(busy->lanes != NULL, 0)) rf_busy_put(busy, RF_SPAN_WAIT);
}

#define RF_STAMP_BUSY rf_busy rf_busy_here __attribute__((cleanup(rf_busy_end), unused)) = rf_busy_begin()
#define RF_STAMP_BARRIER \
  do { \
    rf_busy rf_wait_here = rf_busy_begin(); \
    _Pragma("omp barrier") rf_wait_end(&rf_wait_here); \
  } while (0)

#endif
