/* far.h - a backend for tests whose memory the host cannot use: it has no access rights except
 * while the device copies, fills or runs. It runs the kernels of another backend. */
#ifndef RF_TESTS_FAR_H
#define RF_TESTS_FAR_H

#include "backend/kernel.h"

/* A backend row with the kernels of `of`. */
rf_backend far_backend(const rf_backend *of);
/* The memory that was allocated last. */
const unsigned char *far_base(void);
/* The program call, counted from 1, that fails; 0: none. */
void far_fail_at(int call);

#endif
