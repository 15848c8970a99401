/* null.c - the backend that computes nothing. Its plans equal the CPU's plans, but a run calls no
 * kernel. So even a plan that is too large for this machine can run. */
#include "backend/backend.h"

const rf_backend RF_BACKEND_NULL = {.name = "null", .kernels_of = &RF_BACKEND_CPU};
