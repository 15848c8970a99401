/* waits.c - see waits.h. A process has one link. So the waits of the link are the waits of the
 * process. */
#include "run/waits.h"

#include "backend/mpi/link.h"
#include "run/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static rf_link_times before;
static double began, took;
static rf_rank_waits *gathered;

/* The step in progress. */
static struct {
  double begin;  /* time of the step's begin, in seconds */
  double waited; /* seconds that the link had waited in total before the step */
  int64_t number;
  rf_rank_steps own;
} step;

static double waited_seconds(const rf_link *link) {
  return 1e-9 * (double)(link->times.late_ns + link->times.network_ns + link->times.stage_ns +
                         link->times.between_ns);
}

void rf_rank_steps_add(rf_rank_steps *steps, double seconds) {
  double off = seconds - steps->mean;
  steps->mean += off / ++steps->count;
  steps->squares += off * (seconds - steps->mean);
}

/* Waits for all ranks, so that the times of all ranks are parts of the same seconds. The next
 * exchange reports a failure. */
static void meet(rf_link *link) {
  unsigned char none = 0;
  if (link->rank > 0) {
    if (rf_link_send(link, 0, &none, 1, NULL) == RAFTER_OK) rf_link_receive(link, 0, &none, 1, NULL);
    return;
  }
  for (int rank = 1; rank < link->ranks; rank++)
    if (rf_link_receive(link, rank, &none, 1, NULL) != RAFTER_OK) return;
  for (int rank = 1; rank < link->ranks; rank++)
    if (rf_link_send(link, rank, &none, 1, NULL) != RAFTER_OK) return;
}

void rf_waits_begin(void) {
  rf_link *link = rf_link_of_process();
  if (link) meet(link);
  began = rf_now_seconds();
  if (!link) return;
  before = link->times;
  step.begin = began;
  step.waited = waited_seconds(link);
  step.number = 0;
  step.own = (rf_rank_steps){0};
}

void rf_waits_step(void) {
  const rf_link *link = rf_link_of_process();
  if (!link) return;
  double now = rf_now_seconds(), waited = waited_seconds(link);
  if (step.number++ > 0) rf_rank_steps_add(&step.own, fmax(0, now - step.begin - (waited - step.waited)));
  step.begin = now;
  step.waited = waited;
}

rf_status rf_waits_gather(int64_t planned_bytes, int64_t allocated_bytes, int threads, rf_error *error) {
  rf_link *link = rf_link_of_process();
  if (!link || link->ranks == 1) return RAFTER_OK;
  const rf_link_times *now = &link->times;
  rf_rank_waits own = {.exchanges = (double)(now->exchanges - before.exchanges),
                       .seconds = 1e-9 * (double)(now->all_ns - before.all_ns),
                       .late = 1e-9 * (double)(now->late_ns - before.late_ns),
                       .network = 1e-9 * (double)(now->network_ns - before.network_ns),
                       .stages = 1e-9 * (double)(now->stage_ns - before.stage_ns),
                       .between = 1e-9 * (double)(now->between_ns - before.between_ns),
                       .allocations = (double)rf_guard_library_allocations(),
                       .planned_bytes = (double)planned_bytes,
                       .allocated_bytes = (double)allocated_bytes,
                       .threads = threads,
                       .steps = step.own};
  took = rf_now_seconds() - began;
  own.work = fmax(0, took - own.late - own.network - own.stages - own.between);
  snprintf(own.host, sizeof own.host, "%s", rf_link_host(link, link->rank));
  if (link->rank > 0) return rf_link_send(link, 0, &own, sizeof own, error);
  free(gathered);
  gathered = calloc((size_t)link->ranks, sizeof *gathered);
  if (!gathered)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while gathering the waits of ranks");
  gathered[0] = own;
  for (int rank = 1; rank < link->ranks; rank++)
    RF_TRY(rf_link_receive(link, rank, &gathered[rank], sizeof *gathered, error));
  return RAFTER_OK;
}

const rf_rank_waits *rf_waits_of_ranks(int *ranks, double *seconds) {
  const rf_link *link = rf_link_of_process();
  *ranks = gathered && link ? link->ranks : 0;
  *seconds = took;
  return *ranks ? gathered : NULL;
}

/* The squared standard error of the mean of the times of a rank's steps. */
static double error_squared(const rf_rank_steps *s) { return s->squares / (s->count - 1) / s->count; }

int rf_waits_slowest(const rf_rank_waits *waits, int ranks, double *excess, double *noise) {
  enum { MIN_STEPS = 3, ERRORS = 4 };
  const double part = 0.01;
  int slowest = 0;
  double others = 0, squared = 0;
  *excess = *noise = 0;
  for (int r = 0; r < ranks; r++) {
    if (waits[r].steps.count < MIN_STEPS) return -1;
    if (waits[r].steps.mean > waits[slowest].steps.mean) slowest = r;
  }
  if (ranks < 2) return -1;
  for (int r = 0; r < ranks; r++) {
    if (r == slowest) continue;
    others += waits[r].steps.mean / (ranks - 1);
    squared += error_squared(&waits[r].steps) / ((ranks - 1) * (ranks - 1));
  }
  *excess = waits[slowest].steps.mean - others;
  *noise = sqrt(squared + error_squared(&waits[slowest].steps));
  return *excess > ERRORS * *noise && *excess > part * waits[slowest].steps.mean ? slowest : -1;
}
