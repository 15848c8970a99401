/* program_parts.h - what the files about JAX programs share with the planner. */
#ifndef RF_PROGRAM_PARTS_H
#define RF_PROGRAM_PARTS_H

#include "plan/plan.h"

#include <string.h>

/* Bytes of a TPU's vector memory that brief arrays may lie in: all but what kernels work in (the
 * compiler's default, xla_tpu_scoped_vmem_limit_kib). */
enum { RF_PROGRAM_SCOPED_BYTES = 16384 << 10 };
static inline int64_t rf_program_chip_bytes(const rf_machine *machine) {
  /* a program runs on one */
  int devices = machine->devices_per_chip > 1 && !machine->by_device ? machine->devices_per_chip : 1;
  double room = strcmp(machine->kind, "tpu") ? 0 : machine->vmem_bytes / devices - RF_PROGRAM_SCOPED_BYTES;
  return room > 0 ? (int64_t)room : 0;
}

/* program_jax.c: a finished plan of ours becomes that of the JAX program in its options: memory,
 * then time. */
rf_status rf_plan_as_program(rf_plan *plan, rf_error *error);
/* program_time.c: seconds of every op; plan->program is filled. */
void rf_program_time(rf_plan *plan);

#endif
