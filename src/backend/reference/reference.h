/* reference.h - the kernel table that has a row for every op and accepts everything. */
#ifndef RF_BACKEND_REFERENCE_H
#define RF_BACKEND_REFERENCE_H

#include "backend/kernel.h"
#include "machine/isa.h"

extern const rf_kernel RF_REFERENCE_KERNELS[]; /* ends with op == NULL */

#endif
