/* null.c - the backend that computes nothing. Its plans are equal to the CPU's plans, but a run of
 * them calls no kernel, so plans that are too large for this machine can be run. */
#include "backend/backend.h"

const rf_backend RF_BACKEND_NULL = {.name = "null", .kernels_of = &RF_BACKEND_CPU};
