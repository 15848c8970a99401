/* delayed.c - seconds that the threads of this process waited for a core. */
#define _GNU_SOURCE
#include "run/delayed.h"
#include "run/run.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

double rf_run_delayed(void) {
  DIR *tasks = opendir("/proc/self/task");
  double sum = 0;
  char path[320];
  for (struct dirent *task; tasks && (task = readdir(tasks)) != NULL;) {
    unsigned long long ran, waited;
    if (*task->d_name == '.') continue;
    snprintf(path, sizeof path, "/proc/self/task/%.16s/schedstat", task->d_name);
    FILE *file = fopen(path, "re");
    if (!file) continue; /* the thread has just ended */
    if (fscanf(file, "%llu %llu", &ran, &waited) == 2) sum += 1e-9 * (double)waited;
    fclose(file);
  }
  if (!tasks) return -1;
  closedir(tasks);
  return sum;
}

rf_delays rf_delays_now(void) {
  struct timespec used = {0};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (rf_delays){rf_run_delayed(), (double)used.tv_sec + 1e-9 * (double)used.tv_nsec};
}

double rf_delays_part(const rf_delays *begin) {
  const rf_delays end = rf_delays_now();
  double waited = fmax(end.waited - begin->waited, 0), used = end.used - begin->used;
  return begin->waited >= 0 && end.waited >= 0 && used > 0 ? waited / (waited + used) : 0;
}
