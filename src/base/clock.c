/* clock.c - the one clock. */
#include "base/base.h"

#include <time.h>

int64_t rf_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double rf_now_seconds(void) { return 1e-9 * (double)rf_now_ns(); }
