/* backend.c - the reference backend as plan knows it. */
#include "backend/reference/reference.h"

static const rf_kernel *const tables[] = {RF_REFERENCE_KERNELS, NULL};

const rf_backend RF_BACKEND_REFERENCE = {"reference", tables, true};
