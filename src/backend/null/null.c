/* null.c - the backend that touches nothing: its plans are the CPU's plans, byte for byte, and
 * running them calls no kernel. So a plan too large for this machine can still be run. */
#include "backend/backend.h"

const rf_backend RF_BACKEND_NULL = {.name = "null", .kernels_of = &RF_BACKEND_CPU};
