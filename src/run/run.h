/* run.h - the executor: allocates one arena, runs the sections of plans, and times each op.
 * Kernels, offsets and order come from the plan.
 *
 * A plan for several chips is the program of one chip. Its run has an arena on every chip, and
 * callers see whole tensors. Data that callers write is sent to the chips that have a part of the
 * tensor. Data that callers read is collected from the chips. Only a KV cache has the addresses of
 * one chip, and is written on all chips. Example:
 *   rf_run_open(plans, count, debug, &run, error);
 *   rf_fill_weights(run, 0, plans[0], path, seed, progress, error);   // load.h
 *   int32_t *tokens = rf_run_named(run, 0, "tokens", NULL);           // then write the inputs
 *   rf_run_all(run, 0, &inputs, error);
 *   float *logits = rf_run_named(run, 0, "logits", NULL);             // then read the outputs
 *   rf_run_close(run); */
#ifndef RF_RUN_H
#define RF_RUN_H

#include "plan/plan.h"

typedef struct rf_run rf_run;

typedef struct rf_run_debug {
  /* If true, fills new outputs, workspaces and dead ranges with NaN, and checks guard bytes after
   * each op. */
  bool poison;
  bool find_nan;     /* if true, checks every float output after every op. The error names the op. */
  bool vary_threads; /* if true, the number of threads changes after each op, up to the number of the plan */
} rf_run_debug;

/* Allocates one arena of rf_plan_joint_bytes bytes for several plans of the same backend. All plans
 * share the persistent region of the first plan, which is the owner of the others. The bytes after
 * this region belong to the plan that runs. So the data that a plan keeps in these bytes, such as a
 * KV cache, is lost when another plan runs. The pages are reserved in this call, so that no step
 * has page faults. The caller still owns the plans, which must outlive the run. The null backend
 * has no arena. RAFTER_FAILED: not enough memory. RAFTER_INVALID: a plan does not store the same
 * tensors in the persistent region as the first plan. */
rf_status rf_run_open(const rf_plan *const *plans, int count, rf_run_debug debug, rf_run **run,
                      rf_error *error);
void rf_run_close(rf_run *run);

int64_t rf_run_arena_bytes(const rf_run *run);
/* True if messages to other ranks have failed. */
bool rf_run_lost_ranks(const rf_run *run);
/* number of bytes of the arena that are in the memory of this process */
int64_t rf_run_host_bytes(const rf_run *run);
/* Returns the host pointer to a tensor of the plan. The argument is the tensor's id. If the host
 * cannot address the device's memory, only inputs and outputs of the graph have a pointer. The
 * pointer is to a copy on the host. NULL: the tensor does not exist or has no pointer, or the
 * backend is null. */
void *rf_run_tensor(rf_run *run, int plan, int tensor);
/* Returns the id of a tensor with this name ("tokens", "block.3/mlp/up/weight"). RF_NONE: no tensor
 * has this name. */
int rf_run_find(const rf_run *run, int plan, const char *name);
/* Like rf_run_tensor, by name. If the tensor exists and `tensor` is not NULL, sets *tensor. */
void *rf_run_named(rf_run *run, int plan, const char *name, const rf_tensor **tensor);

/* rf_run_push copies the inputs of microbatch `micro` to the device. Call rf_run_push after writing
 * inputs and before a section. rf_run_pull copies outputs to the host. Call rf_run_pull before
 * reading outputs. If the host can address the arena, neither function copies anything. */
rf_status rf_run_push(rf_run *run, int plan, int micro, rf_error *error);
rf_status rf_run_pull(rf_run *run, int plan, rf_error *error);
/* True if outputs of microbatches exist only after the section END, for all microbatches of the
 * graph. Then rf_run_pull_micro copies the outputs of one microbatch to the host. */
bool rf_run_defers(const rf_run *run, int plan);
rf_status rf_run_pull_micro(rf_run *run, int plan, int micro, rf_error *error);
/* The next three functions access `bytes` bytes of a (whole) tensor, which begin at byte `at`. The
 * three functions work on every device, and several threads may call them at the same time. */
rf_status rf_run_write(rf_run *run, int plan, int tensor, int64_t at, const void *from, int64_t bytes,
                       rf_error *error);
rf_status rf_run_read(const rf_run *run, int plan, int tensor, int64_t at, void *to, int64_t bytes,
                      rf_error *error);
rf_status rf_run_fill(rf_run *run, int plan, int tensor, int64_t at, uint32_t word, int64_t bytes,
                      rf_error *error);
/* Copies bytes within a tensor. The ranges must not overlap. With several chips, the function works
 * only in a KV cache. */
rf_status rf_run_copy(rf_run *run, int plan, int tensor, int64_t to, int64_t from, int64_t bytes,
                      rf_error *error);

/* Number of hosts that share the run, and the number of this host. All hosts make the same calls in
 * the same order. */
int rf_run_hosts(const rf_run *run);
int rf_run_host(const rf_run *run);
/* RAFTER_FAILED: host 0 has another value. `what` is the name of the value in the message, for
 * example "other data". */
rf_status rf_run_same(rf_run *run, const char *what, uint64_t value, rf_error *error);
/* Every host reads all weights, and keeps its own parts. Adds the hash of values that this host read
 * from a file. RAFTER_FAILED from rf_run_same_weights: host 0 has read other values. */
void rf_run_loaded(rf_run *run, uint64_t hash);
rf_status rf_run_same_weights(rf_run *run, rf_error *error);
/* Sets *flags to the flags of all hosts, combined by `or`. */
rf_status rf_run_agree(rf_run *run, uint32_t *flags, rf_error *error);
/* Sends the bytes of host 0 to the other hosts. */
rf_status rf_run_share(rf_run *run, void *data, int64_t bytes, rf_error *error);
/* Call this function before a forward pass that *stop may end. Several hosts must stop together. So
 * this function asks all hosts, and returns RAFTER_INTERRUPTED if one of them stops. *during
 * becomes NULL. If the run has one host, *during becomes `stop`. */
rf_status rf_run_stops(rf_run *run, const volatile int *stop, const volatile int **during, rf_error *error);
/* Host 0 can read whole tensors while the other hosts are in rf_run_serve. This function returns
 * when host 0 calls rf_run_served. If `status` is not RAFTER_OK, rf_run_serve fails. rf_run_served
 * returns `status`, or the status of its own failure. */
rf_status rf_run_serve(rf_run *run, rf_error *error);
rf_status rf_run_served(rf_run *run, rf_status status, rf_error *error);

/* True if rf_run_gather works, so that all hosts can read parts of whole tensors at the same
 * time. */
bool rf_run_gathers(const rf_run *run);
/* A block of a whole tensor: `rows` runs of `count` elements. The first run begins at element
 * `first`, and each run begins `stride` elements after the previous one. If `rows` is 0, the block
 * is empty. */
typedef struct rf_run_block {
  int tensor;
  int64_t first, rows, stride, count;
} rf_run_block;
/* Host h reads block[h] into the memory `to` of this host. All hosts pass the same list of
 * blocks. */
rf_status rf_run_gather(rf_run *run, int plan, const rf_run_block *block, void *to, rf_error *error);
/* Host 0 gets `bytes` bytes of every host, in the order of the hosts. On the other hosts, `all` is
 * not used. */
rf_status rf_run_collect(rf_run *run, const void *mine, void *all, int64_t bytes, rf_error *error);
/* Returns the status of the first host whose status is not RAFTER_OK. The hosts are taken in their
 * order. The error names this host, as in "rank 1 (node7): cannot write ...". All hosts call this
 * function, also after a failure. */
rf_status rf_run_settle(rf_run *run, rf_status status, rf_error *error);

/* Runs one section of a plan. RAFTER_FAILED: a loss or a gradient norm is not finite. With
 * find_nan, this holds for every output. The message names the op, and later ops do not run. */
rf_status rf_run_section(rf_run *run, int plan, rf_section section, const rf_run_inputs *inputs,
                         rf_error *error);
/* Calls rf_run_push, runs all sections once, and calls rf_run_pull for all outputs except
 * inputs->unread. */
rf_status rf_run_all(rf_run *run, int plan, const rf_run_inputs *inputs, rf_error *error);
/* Returns true if steps of the plan can run ahead of the caller. rf_run_start calls rf_run_push and
 * starts a step. rf_run_finish waits for the oldest started step and calls rf_run_pull, without
 * `unread` (inputs->unread of that step). backend.h says what is allowed between the two calls. */
bool rf_run_starts(const rf_run *run, int plan);
rf_status rf_run_start(rf_run *run, int plan, const rf_run_inputs *inputs, rf_error *error);
rf_status rf_run_finish(rf_run *run, int plan, const rf_tensor *unread, rf_error *error);
/* Number of sections that have been run by plans other than `first` to first + count - 1. If the
 * number changes, these other plans may have changed weights, and may have overwritten the bytes
 * after the persistent region of the first plan. */
int64_t rf_run_others(const rf_run *run, int first, int count);
void rf_run_set_debug(rf_run *run, rf_run_debug debug);

/* The measured time of each op since the last reset, in steps that ended; op_count entries. */
const rf_measured *rf_run_measured(const rf_run *run, int plan);
/* Number of steps or forward passes to which these times belong. 0: all of them since the last
 * reset. For a compiled program, only steps that are traced have times of ops. */
int64_t rf_run_timed(const rf_run *run, int plan);
void rf_run_measured_reset(rf_run *run);

/* With debug.poison, returns the number of bytes from the arena's start to the last byte that was
 * ever written. *slack_intact becomes false if the slack after the arena was written. */
int64_t rf_run_high_water(const rf_run *run, bool *slack_intact);

typedef struct rf_outside {
  int64_t resident_bytes; /* Of the process. */
  int64_t arena_bytes;    /* resident part of the arena */
  int64_t outside_bytes;  /* resident_bytes - arena_bytes, which is also file_bytes + other_bytes. */
  int64_t file_bytes;     /* code and data that are mapped from files: the program and its libraries */
  int64_t other_bytes;    /* Heap and thread stacks. */
} rf_outside;
rf_status rf_run_outside(const rf_run *run, rf_outside *outside, rf_error *error);

/* Seconds for which all threads of this process waited for a core. A negative value is unknown. */
double rf_run_delayed(void);
/* Seconds in which ops ran with fewer threads than planned, while other programs used the cores. */
double rf_run_reduced_seconds(const rf_run *run);

/* In builds with RF_DEBUG_GUARD, any malloc, free, mmap or munmap between begin and end is fatal.
 * Threads that take no part in the step may call these functions. The message names `phase`. Guards
 * cannot be nested. */
void rf_guard_begin(const char *phase);
void rf_guard_end(void);
bool rf_guard_built(void);
/* Number of allocations of the MPI library while a guard was active. They are allowed. It is 0
 * without guards. */
int64_t rf_guard_library_allocations(void);

#endif
