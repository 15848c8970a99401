/* record.c - opens the rings, selects steps, and records phases and counters. */
#define _GNU_SOURCE
#include "run/record.h"
#include "run/trace.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

rf_lanes *rf_record_lanes;
static rf_record *opened; /* The open record. */

// clang-format off
static const char *const PHASES[RF_PHASES] = {"data", "forward", "recompute", "backward", "accumulate", "optimizer", "sample", "checkpoint", "validation", "load", "tokenize", "write", "record", "other"};
static const char *const GAPS[RF_GAPS] = {"launch", "wait", "serial", "page fault", "allocation", "io", "other threads", "unexplained", "stopped", "slow rank", "network"};
static const char *const LOSTS[RF_LOSTS] = {"faults", "read faults", "delay_ns", "off_ns", "switches"};
static const struct { const char *name, *unit; } COUNTERS[RF_COUNTERS] = {{"arena live bytes", "bytes"}, {"queue", "answers"}, {"answers running", "answers"}, {"kv pages in use", "pages"}};
// clang-format on
const char *rf_phase_name(rf_phase phase) { return PHASES[phase]; }
const char *rf_gap_name(rf_gap gap) { return GAPS[gap]; }
const char *rf_lost_name(rf_lost lost) { return LOSTS[lost]; }
const char *rf_counter_name(rf_counter counter) { return COUNTERS[counter].name; }
const char *rf_counter_unit(rf_counter counter) { return COUNTERS[counter].unit; }

rf_status rf_trace_when_parse(const char *text, rf_trace_when *when, rf_error *error) {
  long long first = 0, last = 0, stride = 1;
  int used = 0;
  if (!strcmp(text, "all")) return *when = (rf_trace_when){0, INT64_MAX, 1}, RAFTER_OK;
  bool good =
      (sscanf(text, "steps=%lld..%lld:%lld%n", &first, &last, &stride, &used) == 3 && !text[used]) ||
      (stride = 1, used = 0, sscanf(text, "steps=%lld..%lld%n", &first, &last, &used) == 2 && !text[used]) ||
      (used = 0, sscanf(text, "steps=%lld%n", &first, &used) == 1 && !text[used] && (last = first, true));
  if (!good || first < 1 || last < first || stride < 1)
    return RF_FAIL(error, RAFTER_INVALID,
                   "steps are counted from 1: for example --trace steps=10..12, steps=10..100:10 or all",
                   "unknown steps (--trace: expected steps=A..B[:STRIDE] with 1 <= A <= B, or all, got %s)",
                   text);
  *when = (rf_trace_when){first, last, stride};
  return RAFTER_OK;
}

bool rf_trace_wants(const rf_trace_when *when, int64_t step) {
  return step >= when->first && step <= when->last && (step - when->first) % when->stride == 0;
}

/* Spans per ring. OWN_SPANS: main thread. ALL_SPANS: number of spans of all other threads together
 * (at most MAX_SPANS for each thread). */
enum {
  OWN_SPANS = 1 << 19,
  MAX_SPANS = 1 << 18,
  MIN_SPANS = 1 << 13,
  ALL_SPANS = 1 << 21,
  MAX_STEPS = 1 << 16,
  FAULT_PAGES = 64,
  LOOK_NS = 200000
};

static int compare_ns(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}
/* Returns the median nanoseconds to map one page. */
static double measure_fault(void) {
  int64_t took[FAULT_PAGES];
  size_t bytes = FAULT_PAGES * 4096;
  unsigned char *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return 0;
  madvise(pages, bytes, MADV_NOHUGEPAGE);
  for (int i = 0; i < FAULT_PAGES; i++) {
    int64_t before = rf_now_ns();
    *(volatile unsigned char *)(pages + (size_t)i * 4096) = 1;
    took[i] = rf_now_ns() - before;
  }
  munmap(pages, bytes);
  qsort(took, FAULT_PAGES, sizeof took[0], compare_ns);
  return (double)took[FAULT_PAGES / 2];
}

static rf_status open_lane(rf_lane *lane, int64_t capacity, rf_error *error) {
  lane->file = -1;
  lane->capacity = capacity;
  void *pages = NULL;
  RF_TRY(rf_pages_map((size_t)capacity * sizeof *lane->ring, &pages, NULL, error));
  lane->ring = pages;
  /* Touches the ring now, so that a later write of a span causes no page fault. */
  memset(lane->ring, 0, (size_t)capacity * sizeof *lane->ring);
  return RAFTER_OK;
}

/* each thread opens its counters before the first step */
static void know_threads(rf_record *record) {
#pragma omp parallel num_threads(record->lanes.count)
  rf_lane_begin(&record->lanes, omp_get_thread_num(), rf_now_ns());
}

rf_status rf_record_open(const rf_trace_when *when, int threads, rf_record **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  if (rf_record_lanes)
    return RF_FAIL(error, RAFTER_FAILED, "close the other record first",
                   "another record is open (expected none)");
  if (threads > UINT16_MAX - RF_TRACE_LANES) threads = UINT16_MAX - RF_TRACE_LANES;
  rf_record *record = calloc(1, sizeof *record);
  if (!record || !(record->step = calloc(MAX_STEPS, sizeof *record->step)) ||
      posix_memalign((void **)&record->lanes.lane, 64, (size_t)threads * sizeof(rf_lane))) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a record");
    goto done;
  }
  record->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  memset(record->lanes.lane, 0, (size_t)threads * sizeof(rf_lane));
  memset(record->step, 0, MAX_STEPS * sizeof *record->step);
  record->lanes.count = threads;
  record->lanes.op = RF_NONE;
  record->step_capacity = MAX_STEPS;
  int64_t each = MAX_SPANS;
  while (each > MIN_SPANS && each * threads > ALL_SPANS) each /= 2;
  for (int i = 0; i < threads; i++) record->lanes.lane[i].file = -1;
  for (int i = 0; i < threads; i++) RF_GO(open_lane(&record->lanes.lane[i], i ? each : OWN_SPANS, error));
  record->when = *when;
  record->fault_ns = measure_fault();
  record->lanes.look_ns = LOOK_NS;
  record->origin = rf_now_ns();
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  record->wall = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
  rf_record_lanes = &record->lanes;
  opened = record;
  know_threads(record);
done:
  if (status == RAFTER_OK) *out = record;
  else rf_record_close(record);
  return status;
}

void rf_record_close(rf_record *record) {
  if (!record) return;
  if (rf_record_lanes == &record->lanes) {
    rf_record_lanes = NULL;
    opened = NULL;
  }
  if (rf_lanes_on == &record->lanes) rf_lanes_on = NULL;
  for (int i = 0; record->lanes.lane && i < record->lanes.count; i++) {
    if (record->lanes.lane[i].ring)
      rf_pages_unmap(record->lanes.lane[i].ring, (size_t)record->lanes.lane[i].capacity * sizeof(rf_stamp));
    if (record->lanes.lane[i].file >= 0) close(record->lanes.lane[i].file);
  }
  if (record->statm > 0) close(record->statm);
  free(record->lanes.lane);
  free(record->step);
  free(record);
}

/* Returns the size of the data segment, which grows with the heap. mallinfo would be slower. */
static int64_t data_bytes(int file) {
  char text[160];
  ssize_t got = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);
  if (got <= 0) return 0;
  text[got] = 0;
  char *at = text;
  int64_t pages = 0;
  /* The file has the values `size resident shared text lib data`. The sixth value is `data`. */
  for (int i = 0; i < 6; i++) pages = strtoll(at, &at, 10);
  return pages * sysconf(_SC_PAGESIZE);
}

/* Returns data_bytes(). The file is read again only if the main thread had another page fault. */
static int64_t heap_bytes(rf_record *record) {
  struct rusage use;
  bool known = !getrusage(RUSAGE_THREAD, &use);
  if (!record->heap || !known || use.ru_minflt != record->heap_faults)
    record->heap = data_bytes(record->statm);
  record->heap_faults = known ? use.ru_minflt : 0;
  return record->heap;
}

static rf_recorded_step *step_at(rf_record *record, int64_t index) {
  return &record->step[index % record->step_capacity];
}

/* Sets the end of the time after the last recorded step. */
static void end_after(rf_record *record, int64_t now, int64_t heap) {
  rf_recorded_step *s = step_at(record, record->steps - 1);
  s->until = now;
  s->heap[2] = heap;
  record->after = false;
}

static void put_phase(rf_phase phase, int64_t begin, int64_t end) {
  rf_lane_put(&rf_record_lanes->lane[0], (rf_stamp){begin, end, 0, phase, 0, RF_SPAN_PHASE, 0});
}

void rf_record_put_pause(void) {
  rf_record *record = opened;
  if (!record->after) return;
  int64_t now = rf_now_ns();
  rf_lane_look_at(&record->lanes, 0, now);
  end_after(record, now, heap_bytes(record));
  rf_lanes_settle(&record->lanes);
  rf_lanes_on = NULL;
}

void rf_record_put_step(int64_t step) {
  rf_record *record = opened;
  int64_t now = rf_now_ns();
  if (step < 0) step = ++record->begun;
  bool wanted = rf_trace_wants(&record->when, step), follows = record->after && wanted;
  if (!wanted) rf_record_pause();
  if (!wanted) return;
  rf_recorded_step *s = step_at(record, record->steps);
  *s = (rf_recorded_step){.step = step};
  if (follows) rf_lane_begin(&record->lanes, 0, now);
  else rf_lanes_forget(&record->lanes); /* drops the counts of time that was not recorded */
  s->heap[0] = heap_bytes(record);
  rf_lanes_on = &record->lanes;
  record->in_step = true;
  s->begin = rf_now_ns();
  if (!follows) return;
  put_phase(RF_PHASE_RECORD, now, s->begin);
  end_after(record, s->begin, s->heap[0]);
}

void rf_record_put_extent(int64_t parts, int64_t rows, int64_t context) {
  rf_recorded_step *s = step_at(opened, opened->steps);
  if (opened->in_step) {
    s->parts = parts;
    s->rows = rows;
    s->context = context;
  }
}

void rf_record_put_end(int64_t tokens) {
  rf_record *record = opened;
  if (!record->in_step) return;
  rf_recorded_step *s = step_at(record, record->steps++);
  s->end = rf_now_ns();
  s->tokens = tokens;
  rf_lane_begin(&record->lanes, 0, s->end);
  s->heap[1] = heap_bytes(record);
  record->in_step = false;
  record->after = true;
  put_phase(RF_PHASE_RECORD, s->end, rf_now_ns());
}

void rf_phase_put(rf_phase phase, int64_t begin) {
  if (rf_record_lanes) put_phase(phase, begin, rf_now_ns());
}

void rf_count_put(rf_counter counter, double value) {
  int64_t now = rf_now_ns();
  rf_lane_put(&rf_lanes_on->lane[0], (rf_stamp){now, now, value, counter, 0, RF_SPAN_COUNTER, 0});
}
