/* kernel_check.h - compares kernels of the CPU with the reference in a world. On each chip, every
 * op runs with the kernel of each instruction set of this machine, from the operands of the
 * reference. Errors thus do not add up, and the tolerance is that of the op. */
#ifndef RF_TESTS_KERNEL_CHECK_H
#define RF_TESTS_KERNEL_CHECK_H

#include "support/world.h"

enum { KERNEL_CHECK_OPS = 64 };
typedef struct kernel_check {
  int64_t compared, wrong; /* calls of kernels */
  char text[600];          /* the first wrong call */
  /* The ops whose results depend on the place of the chip. Each call also runs with the place of
   * the first chip of its group. `noticed` counts the calls whose results were then wrong. */
  struct {
    const rf_op_def *op;
    int64_t noticed;
  } placed[KERNEL_CHECK_OPS];
  int placed_count;
} kernel_check;

/* world.kernel, with a kernel_check as world.context */
void kernel_check_run(const rf_kernel *reference, const rf_call *call, void *context);

#endif
