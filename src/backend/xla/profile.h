/* profile.h - reads what a plugin's profiler recorded, and finds out how long each op of the plan
 * took. The compiler's optimized program says to which op an instruction belongs. The profile says
 * when a device executed each instruction. Program and profile come from the plugin, and their
 * bytes may be damaged. */
#ifndef RF_XLA_PROFILE_H
#define RF_XLA_PROFILE_H

#include "backend/xla/proto.h"
#include "graph/graph.h"

/* Makes room for one more element in a list of `count` elements of `size` bytes. Returns false if
 * there is no memory, or if the list is too long for a profile. */
bool rf_xla_grow(void **list, int count, int *room, size_t size);

/* ---- the program: profile_program.c ---------------------------------------------------------- */

typedef struct rf_xla_instruction {
  rf_proto_bytes name; /* "loop_add_fusion.3" */
  /* Name of the op, from the metadata of the instruction. A fusion without a name has the name of
   * its root. No bytes: the compiler added the instruction. */
  rf_proto_bytes op;
  int number; /* number of the op in the graph, or RF_NONE */
} rf_xla_instruction;
typedef struct rf_xla_instructions {
  rf_xla_instruction *at; /* sorted by name */
  int count;
  char *program; /* bytes of the program, which contain the names */
} rf_xla_instructions;
/* Reads the malloc'ed bytes of an HloModuleProto, alone or with its configuration. Owns the bytes
 * from now on, even after a failure. */
rf_status rf_xla_instructions_read(char *program, size_t bytes, const rf_graph *graph,
                                   rf_xla_instructions *out, rf_error *error);
void rf_xla_instructions_free(rf_xla_instructions *of);
int rf_xla_instructions_find(const rf_xla_instructions *in, rf_proto_bytes name); /* or RF_NONE */

/* ---- the profile: profile.c ------------------------------------------------------------------ */

/* A time in which the device executed one instruction. */
typedef struct rf_xla_kernel {
  int64_t begin, end; /* ns of the profiler's clock */
  /* index of the instruction; RF_NONE: no instruction of the program, such as a copy of an input */
  int instruction;
  /* number of the event; the kernels of an event that contains other events have the same number */
  int event;
} rf_xla_kernel;
typedef struct rf_xla_kernels {
  rf_xla_kernel *at; /* in ascending order of `begin` */
  int count;
  int known; /* number of kernels that belong to instructions of the program */
} rf_xla_kernels;
/* Reads an XSpace. Takes the kernels of the first device that has kernels. */
rf_status rf_xla_kernels_read(rf_proto_bytes space, const rf_xla_instructions *in, rf_xla_kernels *out,
                              rf_error *error);

/* ---- ops: profile_ops.c ---------------------------------------------------------------------- */

/* The time of one execution of an op. Ops of a microbatch are executed once for each microbatch. */
typedef struct rf_xla_op_time {
  int op;   /* index of the op; RF_NONE: kernels that belong to no op */
  int call; /* the microbatch, or 0 */
  int64_t begin, end;
} rf_xla_op_time;
typedef struct rf_xla_op_times {
  rf_xla_op_time *at; /* times in ascending order of `begin`, without overlaps */
  int count;
} rf_xla_op_times;
/* Sums the kernels of each execution of an op. An execution begins with its first kernel, or at the
 * end of the previous execution, and is as long as the sum of its kernels. If two kernels ran at
 * the same time, this time belongs to the kernel that began first. So the sum of all executions is
 * the time in which the device worked. */
rf_status rf_xla_op_times_of(const rf_xla_kernels *kernels, const rf_xla_instructions *in,
                             const rf_graph *graph, rf_xla_op_times *out, rf_error *error);

#endif
