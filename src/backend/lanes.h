/* lanes.h - records what each thread does, as spans of time. Kernels record spans (stamps) in their
 * parallel regions.
 *
 * Each thread has a lane: a ring buffer for its spans, allocated in advance. In a parallel region,
 * a thread writes only to its own lane, so no lock is needed. If recording is off, a stamp costs
 * one load and one branch. A parallel region has this form:
 *
 *   #pragma omp parallel num_threads(threads)
 *   {
 *     RF_STAMP_BUSY;                       the thread works from here to the end of the block; then
 *       it waits for the other threads
 *     #pragma omp for schedule(static) nowait
 *     for (...) ...
 *     RF_STAMP_BARRIER;                    a barrier, whose waiting time is recorded
 *   }
 *
 * The test tests/unit/house/test_lanes.sh checks that every region of backend/cpu has this form.
 * Only one recorder may be active, because a process has one set of cores. */
#ifndef RF_LANES_H
#define RF_LANES_H

#include "base/base.h"

#include <omp.h>

typedef enum rf_stamp_kind {
  /* time of one op, in lane 0. id: index of the op in `plan`. value: number of the microbatch, or
   * 0 */
  RF_SPAN_OP,
  RF_SPAN_BUSY,    /* work of one thread in a parallel region. id: index of the op */
  RF_SPAN_WAIT,    /* wait at a barrier inside a parallel region. id: index of the op */
  RF_SPAN_PHASE,   /* id: rf_phase */
  RF_SPAN_STEP,    /* time of a step. id: index in the list of steps. value: number of the step */
  RF_SPAN_COUNTER, /* a counter. id: an rf_counter. value: the counter's value from time `begin` on */
  RF_SPAN_LOST,    /* a system counter. id: an rf_lost. value: the counter's change from `begin` to `end` */
  RF_SPAN_GAP,     /* a gap, which is computed when a trace is collected. id: an rf_gap */
  /* predicted time, computed like RF_SPAN_GAP. id: the op. value: ns of the op at peak rates */
  RF_SPAN_PREDICTED,
  RF_SPAN_KINDS,
  /* a wait for another rank, in lane 0. The wait becomes a gap when a trace is collected. id: an
   * rf_remote. value: the rank */
  RF_SPAN_REMOTE = RF_SPAN_KINDS,
  /* The next two kinds, in lane 0, become phases when a trace is collected. RECORD: the recorder's
   * own work. OTHER: work of a compiled program that belongs to no op. */
  RF_SPAN_RECORD,
  RF_SPAN_OTHER
} rf_stamp_kind;

/* Why a rank waits for another rank. */
typedef enum rf_remote {
  RF_REMOTE_LATE,   /* the other rank has not begun the exchange, or has not sent a short message */
  RF_REMOTE_NETWORK /* the messages of the other rank are on their way */
} rf_remote;

/* Counters that the system keeps for each thread. A span records the change between two samples. */
typedef enum rf_lost {
  RF_LOST_FAULTS,      /* page faults that read nothing from a disk (ru_minflt) */
  RF_LOST_READ_FAULTS, /* page faults that read a page from a disk (ru_majflt) */
  /* ns in which the thread could run but another thread had the core (schedstat) */
  RF_LOST_DELAY,
  RF_LOST_OFF,      /* ns in which the thread was not on a core: delay, sleep and waiting */
  RF_LOST_SWITCHES, /* involuntary context switches */
  RF_LOSTS
} rf_lost;

typedef struct rf_stamp {
  int64_t begin, end; /* ns of rf_now_ns */
  double value;
  int32_t id;
  uint16_t lane;
  uint8_t kind, plan;
} rf_stamp;

/* A sample of the system's counters of one thread. */
typedef struct rf_lane_look {
  /* `at`, `cpu` and `delay` are ns. The last three fields are -1 if another thread took the
   * sample. */
  int64_t at, cpu, delay, faults, read_faults, switches;
} rf_lane_look;

typedef struct rf_lane {
  _Alignas(64) rf_stamp *ring;
  /* `capacity` is the size of the ring, a power of two. `count` is the number of spans written so
   * far, of which the ring keeps the last `capacity`. */
  int64_t capacity, count;
  rf_lane_look last;
  int64_t look_after; /* time in ns of the next sample of the system's counters */
  int thread;         /* system's id of the lane's thread; 0: the thread has recorded nothing */
  int file;           /* descriptor of the thread's file schedstat; -1: none */
} rf_lane;

typedef struct rf_lanes {
  int count;
  rf_lane *lane;
  int64_t look_ns; /* minimum ns between two samples of the system's counters */
  /* the current op, which changes only outside regions; negative: regions are not recorded */
  int32_t op;
  uint8_t plan;
} rf_lanes;

extern rf_lanes *rf_lanes_on; /* NULL: nothing is recorded */

/* Writes a span, and prefetches the cache line of the next spans, because the ring is larger than
 * the caches. */
static inline void rf_lane_put(rf_lane *lane, rf_stamp span) {
  lane->ring[lane->count & (lane->capacity - 1)] = span;
  lane->count++;
  __builtin_prefetch(&lane->ring[(lane->count + 2) & (lane->capacity - 1)], 1);
}

/* The main thread (lane 0) calls these functions while all other threads are idle. rf_lanes_settle
 * records how the counters of the other threads changed since their last samples. rf_lanes_forget
 * drops these changes, so that the next samples start from the present counters. */
void rf_lanes_settle(const rf_lanes *lanes);
void rf_lanes_forget(rf_lanes *lanes);
/* Samples the system's counters of this thread and records the changes in its lane. */
void rf_lane_look_at(rf_lanes *lanes, int lane, int64_t now);
/* Returns lane number `lane`, or NULL if there are too few lanes. A thread must ask for its own
 * lane. */
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
