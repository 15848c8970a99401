/* reference.h - the kernel table with a row for every op, which accepts every dtype and shape. */
#ifndef RF_BACKEND_REFERENCE_H
#define RF_BACKEND_REFERENCE_H

#include "backend/kernel.h"
#include "machine/isa.h"

extern const rf_kernel RF_REFERENCE_KERNELS[]; /* ends with op == NULL */

#endif
