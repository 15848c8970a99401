/* run.h - the executor: allocate the arena once, walk the plan, time each op. No policy: what it
 * does stands in the plan. */
#ifndef RF_RUN_H
#define RF_RUN_H

#include "plan/plan.h"

typedef struct rf_run rf_run;

typedef struct rf_run_debug {
  /* fill fresh outputs, workspaces and dead ranges with a NaN pattern; check guards after every
   * op */
  bool poison;
  bool find_nan; /* check every float output after every op; the error names the op */
} rf_run_debug;

/* Maps one arena for plans that share a persistent region (same model, dtypes, optimizer):
 * persistent + the largest transient region, touched once so that nothing faults later. The
 * plans stay the caller's and must outlive the run; kernels that touch no memory (null backend)
 * get no arena. RAFTER_FAILED when the machine has not the memory, RAFTER_INVALID when the
 * persistent regions differ. */
rf_status rf_run_open(const rf_plan *const *plans, int count, rf_run_debug debug, rf_run **run,
                      rf_error *error);
void rf_run_close(rf_run *run);

int64_t rf_run_arena_bytes(const rf_run *run);
/* Address of a tensor in the arena, by the plan's tensor id; NULL for an absent tensor or the
 * null backend. */
void *rf_run_tensor(rf_run *run, int plan, int tensor);
/* The same by the tensor's name ("tokens", "block.3/mlp/up/weight"); *tensor may be NULL.
 * Returns NULL when there is none. */
void *rf_run_named(rf_run *run, int plan, const char *name, const rf_tensor **tensor);

/* Walks one section of a plan once. RAFTER_FAILED when a loss, a gradient norm, or (find_nan)
 * any output is not finite: the message names the op. It stops before anything persistent is
 * changed by that op. */
rf_status rf_run_section(rf_run *run, int plan, rf_section section, const rf_run_inputs *inputs,
                         rf_error *error);
void rf_run_set_debug(rf_run *run, rf_run_debug debug);

/* Measured seconds per op of a plan since the last reset, joined with the predicted ones by op
 * id. */
typedef struct rf_measured {
  double seconds, least;
  int64_t calls;
} rf_measured;
const rf_measured *rf_run_measured(const rf_run *run, int plan); /* graph->op_count entries */
void rf_run_measured_reset(rf_run *run);

/* Debug runs (poison): bytes from the arena's start to the last one ever written, and whether
 * the slack behind the arena is untouched. */
int64_t rf_run_high_water(const rf_run *run, bool *slack_intact);

/* Resident memory that is not the arena, by name. */
typedef struct rf_outside {
  int64_t resident_bytes; /* the whole process */
  int64_t arena_bytes;    /* resident part of the arena */
  int64_t outside_bytes;  /* the difference: file_bytes + other_bytes */
  int64_t file_bytes;     /* code and data mapped from files: the program and its libraries */
  int64_t other_bytes;    /* heap and thread stacks */
} rf_outside;
rf_status rf_run_outside(const rf_run *run, rf_outside *outside, rf_error *error);

/* Seconds that all threads of this process were ready to run and had no core, since they began;
 * < 0: the system does not say. */
double rf_run_delayed(void);

/* Between begin and end, in builds with RF_DEBUG_GUARD, any malloc, free, mmap or munmap of this
 * process is fatal and names `phase`. In other builds they do nothing. Not nested. */
void rf_guard_begin(const char *phase);
void rf_guard_end(void);
bool rf_guard_built(void);

#endif
