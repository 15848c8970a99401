/* run.h - the executor: allocates the arena once, runs sections of plans, times each op. It
 * chooses nothing: the plan did. */
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

/* Allocates one arena for plans of one backend that share a persistent region (same model,
 * dtypes, optimizer): persistent + the largest transient region, reserved so that nothing faults
 * later. The plans stay the caller's and must outlive the run. Plans without a device (null
 * backend) get no arena. RAFTER_FAILED: the machine lacks the memory. RAFTER_INVALID: the
 * persistent regions differ. */
rf_status rf_run_open(const rf_plan *const *plans, int count, rf_run_debug debug, rf_run **run,
                      rf_error *error);
void rf_run_close(rf_run *run);

int64_t rf_run_arena_bytes(const rf_run *run);
/* The host's view of a tensor, by the plan's tensor id: its memory; or, where the host cannot
 * address that, a copy of a graph's input or output, else NULL. NULL also for an absent tensor
 * and the null backend. */
void *rf_run_tensor(rf_run *run, int plan, int tensor);
/* Id of the tensor with this name ("tokens", "block.3/mlp/up/weight"); RF_NONE: the plan's memory
 * has none. */
int rf_run_find(const rf_run *run, int plan, const char *name);
/* Its view; *tensor (which may be NULL) is set when there is one. */
void *rf_run_named(rf_run *run, int plan, const char *name, const rf_tensor **tensor);

/* After the views of inputs were written and before a section reads them; after the sections and
 * before views of outputs are read. They do nothing where views are the memory itself. */
rf_status rf_run_push(rf_run *run, int plan, rf_error *error);
rf_status rf_run_pull(rf_run *run, int plan, rf_error *error);
/* Bytes of any tensor from byte `at` on, on every device. Threads may call them at once. */
rf_status rf_run_write(rf_run *run, int plan, int tensor, int64_t at, const void *from, int64_t bytes,
                       rf_error *error);
rf_status rf_run_read(const rf_run *run, int plan, int tensor, int64_t at, void *to, int64_t bytes,
                      rf_error *error);
rf_status rf_run_fill(rf_run *run, int plan, int tensor, int64_t at, uint32_t word, int64_t bytes,
                      rf_error *error);
/* Within one tensor; the ranges do not overlap. */
rf_status rf_run_copy(rf_run *run, int plan, int tensor, int64_t to, int64_t from, int64_t bytes,
                      rf_error *error);

/* Runs one section of a plan once. RAFTER_FAILED when a loss, a gradient norm, or (find_nan)
 * any output is not finite: the message names the op. It stops before anything persistent is
 * changed by that op. */
rf_status rf_run_section(rf_run *run, int plan, rf_section section, const rf_run_inputs *inputs,
                         rf_error *error);
void rf_run_set_debug(rf_run *run, rf_run_debug debug);

/* Of each op, since the last reset, joined with the predicted ones by op id. */
const rf_measured *rf_run_measured(const rf_run *run, int plan); /* graph->op_count entries */
void rf_run_measured_reset(rf_run *run);

/* Debug runs (poison): bytes from the arena's start to the last one ever written, and whether the
 * slack after the arena is untouched. */
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

/* Seconds that threads of this process waited for a core, summed; < 0: the system does not say.
 * */
double rf_run_delayed(void);

/* Between begin and end, in builds with RF_DEBUG_GUARD, any malloc, free, mmap or munmap of this
 * process is fatal and names `phase`. In other builds they do nothing. Not nested. */
void rf_guard_begin(const char *phase);
void rf_guard_end(void);
bool rf_guard_built(void);

#endif
