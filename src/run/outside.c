/* outside.c - reads the resident memory of this process outside the arena from /proc. */
#define _GNU_SOURCE
#include "run/run.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the value of a line `Name: 123 kB`. Returns -1 if such a line does not exist. */
static int64_t proc_row_bytes(const char *text, const char *name) {
  const char *at = strstr(text, name);
  return at ? strtoll(at + strlen(name), NULL, 10) * 1024 : -1;
}

rf_status rf_run_outside(const rf_run *run, rf_outside *outside, rf_error *error) {
  char text[4096];
  int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
  if (file >= 0) close(file);
  if (got <= 0) return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot read /proc/self/status");
  text[got] = 0;
  int64_t anonymous = proc_row_bytes(text, "RssAnon:"), from_files = proc_row_bytes(text, "RssFile:"),
          shared = proc_row_bytes(text, "RssShmem:");
  if (anonymous < 0 || from_files < 0 || shared < 0)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "/proc/self/status has no RssAnon, RssFile or RssShmem row");
  outside->resident_bytes = anonymous + from_files + shared;
  outside->arena_bytes = run ? rf_run_host_bytes(run) : 0; /* rf_run_open has reserved every page */
  outside->file_bytes = from_files + shared;
  outside->outside_bytes = outside->resident_bytes - outside->arena_bytes;
  outside->other_bytes = outside->outside_bytes - outside->file_bytes;
  return RAFTER_OK;
}
