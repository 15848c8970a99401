/* doctor.c - `rafter doctor`: lists what this machine has, and how to get what is missing. */
#define _GNU_SOURCE
#include "api/api.h"
#include "base/text.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void first_line(const char *path, char *line, int size) {
  FILE *file = fopen(path, "re");
  *line = 0;
  if (file && fgets(line, size, file)) line[strcspn(line, "\n")] = 0;
  if (file) fclose(file);
}

static bool is_of_another_version(const char *path) {
  char text[200];
  rf_machine *m = calloc(1, sizeof *m);
  bool old = m && rf_machine_read(path, m, NULL) == RAFTER_OK && rf_machine_old_calibration(m, text);
  free(m);
  return old;
}

static rf_status rf_command_doctor(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  (void)job;
  char huge[128], path[4096], a[32], b[32];
  struct statvfs disk = {0};
  rf_machine *m = calloc(1, sizeof *m);
  if (!m) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  rf_status status = RAFTER_OK;
  RF_GO(rf_machine_detect(m, error));
  first_line("/sys/kernel/mm/transparent_hugepage/enabled", huge, sizeof huge);
  rf_machine_local_path(rf_isa_detect(), path);
  const bool found = access(path, R_OK) == 0, stale = found && is_of_another_version(path),
             calibrated = found && !stale, pages = *huge && !strstr(huge, "[never]");
  int threads = omp_get_num_procs();
  double free_bytes = statvfs(".", &disk) ? 0 : (double)disk.f_bavail * (double)disk.f_frsize;
  rf_isa isa = rf_isa_detect();
  rf_say(sink, "%s  %s\n", "✓", rafter_version());
  rf_say(sink, "✓  %d core%s, %s of memory (%s here)\n", threads, rf_plural(threads),
         rf_text_bytes(m->memory_bytes, a), m->name);
  rf_say(sink, "%s  kernels for %s%s\n", isa > RF_ISA_BASE ? "✓" : "✗", rf_isa_name(isa),
         isa > RF_ISA_BASE ? "" : ": only plain C kernels, because this CPU has no AVX2");
  rf_say(sink, "%s  huge pages%s\n", pages ? "✓" : "✗",
         pages ? "" : ": as root, echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  rf_say(sink, "✓  %s free on this disk\n", rf_text_bytes(free_bytes, b));
  rf_say(sink, "%s  calibration %s\n", calibrated ? "✓" : "✗",
         calibrated ? path
         : stale    ? "of another version: run `rafter calibrate` again"
                    : "missing: run `rafter calibrate`");
  rf_put_json(sink, json_pack("{ss ss si sf ss sb sf sb ss}", "command", "doctor", "version",
                              rafter_version(), "threads", threads, "memory_bytes", m->memory_bytes, "isa",
                              rf_isa_name(isa), "huge_pages", pages, "disk_free_bytes", free_bytes,
                              "calibrated", calibrated, "calibration", path));
done:
  free(m);
  return status;
}

const rf_command RF_COMMAND_DOCTOR = {
    RF_COMMAND_HEAD("doctor", "", 0, 0, "Look", "Print what this machine has, and what is missing."),
    .options = {{RF_EVERY_OPTIONS, NULL}}, .examples = {"doctor"}, .run = rf_command_doctor};
