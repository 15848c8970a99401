/* check.h - verifies independently that no two live tensors of a plan overlap, that in-place ops
 * are legal, that every tensor is inside the arena, and that persistent tensors come first. It
 * shares no code with the layout. */
#ifndef RF_TEST_CHECK_H
#define RF_TEST_CHECK_H

#include "plan/plan.h"

rf_status rf_plan_check(const rf_plan *plan, rf_error *error);

#endif
