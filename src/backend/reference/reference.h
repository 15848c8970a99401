/* reference.h - the table of the reference kernels. The table has one kernel for every op. A kernel
 * accepts any dtype and any shape. */
#ifndef RF_BACKEND_REFERENCE_H
#define RF_BACKEND_REFERENCE_H

#include "backend/kernel.h"
#include "machine/isa.h"

extern const rf_kernel RF_REFERENCE_KERNELS[]; /* ends with op == NULL */

#endif
