/* far.h - a test backend whose memory the host cannot use. The memory has no access rights except
 * while the device copies, fills or runs. Its programs run the kernels of another backend. A step
 * that is started runs at once, and its outputs appear when it is finished. */
#ifndef RF_TESTS_FAR_H
#define RF_TESTS_FAR_H

#include "backend/kernel.h"

/* Makes a backend row with the kernels of `of`. */
rf_backend far_backend(const rf_backend *of);
/* The memory that was allocated last. */
const unsigned char *far_base(void);
/* Makes a program call fail. Calls count from 1; 0: none fails. */
void far_fail_at(int call);
/* How many steps were started, and how many of them followed another one. */
int far_started(int *followed);

#endif
