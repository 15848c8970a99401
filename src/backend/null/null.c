/* null.c - the backend that computes nothing. Plans of this backend equal the CPU's plans, but
 * running them calls no kernel. A plan that is too large for this machine can thus run. */
#include "backend/backend.h"

const rf_backend RF_BACKEND_NULL = {.name = "null", .kernels_of = &RF_BACKEND_CPU};
