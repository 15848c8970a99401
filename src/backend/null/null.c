/* null.c - the backend that computes nothing. Its plans equal the CPU's plans, but a run calls no
 * kernel. So a run needs no memory, and the plan may be too large for this machine. */
#include "backend/backend.h"

const rf_backend RF_BACKEND_NULL = {.name = "null", .kernels_of = &RF_BACKEND_CPU};
