/* clock.c - the clock, and the age of this process. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int64_t ns_of(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t rf_now_ns(void) { return ns_of(CLOCK_MONOTONIC); }

double rf_now_seconds(void) { return 1e-9 * (double)rf_now_ns(); }

double rf_process_seconds(void) {
  /* number of the field of /proc/self/stat with the start of the process, in clock ticks since
   * boot */
  enum { START = 22 };
  char text[1024];
  double now = 1e-9 * (double)ns_of(CLOCK_BOOTTIME);
  FILE *file = fopen("/proc/self/stat", "re");
  if (!file) return -1;
  size_t bytes = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[bytes] = 0;
  /* The search begins after the ')' that ends the program's name, because the name may contain any
   * character. */
  const char *at = strrchr(text, ')');
  for (int field = 2; at && field < START; field++) at = strchr(at + 1, ' ');
  unsigned long long ticks;
  return at && sscanf(at, " %llu", &ticks) == 1 ? now - (double)ticks / (double)sysconf(_SC_CLK_TCK) : -1;
}
