/* lanes.c - records spans, and the CPU time, page faults and waiting time of each thread. */
#define _GNU_SOURCE
#include "backend/lanes.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

rf_lanes *rf_lanes_on;

static int this_thread(void) {
  static _Thread_local int id;
  if (!id) id = (int)syscall(SYS_gettid);
  return id;
}

/* Reads the file schedstat of a thread. Sets *ran to the ns that the thread ran, and *delay to the
 * ns that it waited for a core. Sets both results to -1 if the file cannot be read. */
static void read_schedstat(int file, int64_t *ran, int64_t *delay) {
  char text[96];
  ssize_t got = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);
  *ran = *delay = -1;
  if (got <= 0) return;
  text[got] = 0;
  char *end;
  *ran = (int64_t)strtoull(text, &end, 10);
  *delay = (int64_t)strtoull(end, NULL, 10);
}
static int64_t delay_ns(int file) {
  int64_t ran, delay;
  read_schedstat(file, &ran, &delay);
  return delay;
}

enum { NS_WORTH_A_SPAN = 1000 }; /* maximum difference of two clocks that are read one after the other */

/* Samples the counters. `from` is the previous sample or NULL. If the thread never left its core,
 * its waiting time did not change. Then this function does not read schedstat, the slowest
 * counter. */
static rf_lane_look look(int file, int64_t now, const rf_lane_look *from) {
  struct rusage use;
  struct timespec cpu;
  rf_lane_look l = {.at = now};
  if (!getrusage(RUSAGE_THREAD, &use)) {
    l.faults = use.ru_minflt;
    l.read_faults = use.ru_majflt;
    l.switches = use.ru_nivcsw;
  }
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  l.cpu = (int64_t)cpu.tv_sec * 1000000000 + cpu.tv_nsec;
  bool stayed = from && (l.at - from->at) - (l.cpu - from->cpu) <= NS_WORTH_A_SPAN;
  l.delay = stayed ? from->delay : delay_ns(file);
  return l;
}

/* Schedules the next sample. After a slow sample, the next sample comes later, so that sampling
 * costs little time. Cold caches make a sample several times slower. */
static void look_again(const rf_lanes *lanes, rf_lane *lane, int64_t began) {
  enum { COSTS = 1000, MAX_NS = 10000000 };
  int64_t end = rf_now_ns(), rest = COSTS * (end - began);
  lane->look_after = end + (rest < lanes->look_ns ? lanes->look_ns : rest > MAX_NS ? MAX_NS : rest);
}

static void restart(rf_lanes *lanes, rf_lane *lane) {
  if (lane->thread != this_thread()) {
    if (lane->file >= 0) close(lane->file);
    lane->file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    lane->thread = this_thread();
  }
  lane->last = look(lane->file, rf_now_ns(), NULL);
  look_again(lanes, lane, lane->last.at);
}

rf_lane *rf_lane_begin(rf_lanes *lanes, int index, int64_t now) {
  if (index >= lanes->count) return NULL;
  rf_lane *lane = &lanes->lane[index];
  if (__builtin_expect(lane->thread != this_thread(), 0)) restart(lanes, lane);
  else if (__builtin_expect(now >= lane->look_after, 0)) rf_lane_look_at(lanes, index, now);
  return lane;
}

/* Records the changes since the last sample, then stores `l` as the last sample. */
static void put_lost(const rf_lanes *lanes, int index, rf_lane_look l) {
  rf_lane *lane = &lanes->lane[index];
  const rf_lane_look *from = &lane->last;
  int64_t off = (l.at - from->at) - (l.cpu - from->cpu),
          delay = l.delay >= 0 && from->delay >= 0 ? l.delay - from->delay : 0;
  const int64_t change[RF_LOSTS] = {[RF_LOST_FAULTS] = l.faults - from->faults,
                                    [RF_LOST_READ_FAULTS] = l.read_faults - from->read_faults,
                                    [RF_LOST_DELAY] = delay,
                                    [RF_LOST_OFF] = off,
                                    [RF_LOST_SWITCHES] = l.switches - from->switches};
  for (int i = 0; i < RF_LOSTS; i++) {
    bool is_time = i == RF_LOST_DELAY || i == RF_LOST_OFF;
    if (change[i] <= (is_time ? NS_WORTH_A_SPAN : 0) || (!is_time && from->faults < 0)) continue;
    rf_lane_put(lane,
                (rf_stamp){from->at, l.at, (double)change[i], i, (uint16_t)index, RF_SPAN_LOST, lanes->plan});
  }
  lane->last = l;
}

void rf_lane_look_at(rf_lanes *lanes, int index, int64_t now) {
  rf_lane *lane = &lanes->lane[index];
  put_lost(lanes, index, look(lane->file, now, &lane->last));
  look_again(lanes, lane, now);
}

/* ---- other threads, while they are idle ------------------------------------------------------ */

/* Samples another thread. The system reports only two counters of another thread: its CPU time and
 * its waiting time. */
static bool look_from_outside(const rf_lane *lane, rf_lane_look *l) {
  *l = (rf_lane_look){.at = rf_now_ns(), .faults = -1, .read_faults = -1, .switches = -1};
  read_schedstat(lane->file, &l->cpu, &l->delay);
  return l->cpu >= 0;
}

void rf_lanes_settle(const rf_lanes *lanes) {
  for (int i = 1; i < lanes->count; i++) {
    rf_lane *lane = &lanes->lane[i];
    rf_lane_look l;
    if (!lane->thread || !look_from_outside(lane, &l)) continue;
    /* the sampled thread itself records its faults and switches later */
    l.faults = lane->last.faults;
    l.read_faults = lane->last.read_faults;
    l.switches = lane->last.switches;
    put_lost(lanes, i, l);
  }
}

void rf_lanes_forget(rf_lanes *lanes) {
  if (lanes->count > 0) restart(lanes, &lanes->lane[0]);
  for (int i = 1; i < lanes->count; i++) {
    rf_lane *lane = &lanes->lane[i];
    if (!lane->thread) continue; /* the thread has not recorded a span yet */
    /* look_from_outside fails if the system has no counters or the thread has ended */
    if (!look_from_outside(lane, &lane->last)) lane->thread = 0;
  }
}

void rf_busy_put(const rf_busy *busy, rf_stamp_kind kind) {
  int64_t now = rf_now_ns();
  int index = omp_get_thread_num();
  rf_lane *lane = &busy->lanes->lane[index];
  rf_lane_put(lane, (rf_stamp){busy->begin, now, 0, busy->lanes->op, (uint16_t)index, (uint8_t)kind,
                               busy->lanes->plan});
  if (now >= lane->look_after) rf_lane_look_at(busy->lanes, index, now);
}
