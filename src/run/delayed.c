/* delayed.c - seconds that the threads of this process waited for a core. */
#define _GNU_SOURCE
#include "run/run.h"

#include <dirent.h>
#include <stdio.h>

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
