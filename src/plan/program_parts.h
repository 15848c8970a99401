/* program_parts.h - what the files about JAX programs share with the planner. */
#ifndef RF_PROGRAM_PARTS_H
#define RF_PROGRAM_PARTS_H

#include "plan/plan.h"

/* program_jax.c: a finished plan of ours becomes that of the JAX program in its options: memory, then time. */
rf_status rf_plan_as_program(rf_plan *plan, rf_error *error);
/* program_time.c: seconds of every op; plan->program is filled. */
void rf_program_time(rf_plan *plan);

#endif
