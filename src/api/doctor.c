/* doctor.c - `rafter doctor`: lists what this machine has, and how to get what is missing. */
#define _GNU_SOURCE
#include "api/api.h"
#include "backend/xla/plugins.h"
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

/* ---- plugins --------------------------------------------------------------------------------- */

/* Describes what a plugin can do. */
static const char *words_of(const rf_xla_ability *a) {
  if (a->runs && a->topologies) return "runs programs, compiles for other devices";
  if (a->runs) return "runs programs";
  return a->topologies ? "compiles for devices that are not here" : "cannot be used";
}

static json_t *plugin_json(const char *path, const rf_xla_ability *a) {
  const rf_xla_facts *f = &a->facts;
  return json_pack("{ss si si ss ss si sI sb sb sb ss}", "file", path, "api_major", f->api_major, "api_minor",
                   f->api_minor, "platform", f->platform, "kind", f->kind, "devices", f->devices,
                   "memory_bytes", (json_int_t)f->memory_bytes, "runs", a->runs, "topologies", a->topologies,
                   "profiler", f->has_profiler, "problem", a->problem.message);
}

static void say_plugin(const rafter_sink *sink, const char *path, const rf_xla_ability *a) {
  const rf_xla_facts *f = &a->facts;
  char api[32] = "-", memory[32];
  if (f->api_minor) snprintf(api, sizeof api, "%d.%d", f->api_major, f->api_minor);
  rf_say(sink, "%s  %s\n", a->runs || a->topologies ? "✓" : "✗", path);
  rf_say(sink, "   PJRT %s, %s%s%s", api, words_of(a), *f->platform ? ", platform " : "", f->platform);
  if (a->runs) rf_say(sink, ", %d device%s (%s)", f->devices, rf_plural(f->devices), f->kind);
  if (a->runs && f->memory_bytes) rf_say(sink, " with %s", rf_text_bytes((double)f->memory_bytes, memory));
  if (f->api_minor) rf_say(sink, ", %s", f->has_profiler ? "with a profiler" : "without a profiler");
  rf_say(sink, "\n");
  if (!a->runs) rf_say(sink, "   no device: %s\n", a->problem.message);
}

/* Lists the plugins of XLA. If `probe` is true, loads each plugin in its own process. */
static json_t *list_plugins(const rafter_sink *sink, bool probe) {
  enum { LIMIT_SECONDS = 20 };
  char folder[4096];
  char(*path)[4096] = rf_must(calloc(RF_XLA_PLUGINS, sizeof *path));
  json_t *list = json_array();
  int count = rf_xla_plugins(path);
  rf_xla_plugins_folder(folder);
  if (!count)
    rf_say(sink, "✗  no plugins of XLA, which are optional: ./dev setup --xla fetches some into %s\n",
           folder);
  else if (!probe)
    rf_say(sink, "✓  %d plugin%s of XLA: `rafter doctor --plugins` says what %s can do\n", count,
           rf_plural(count), count == 1 ? "it" : "each");
  for (int i = 0; i < count; i++) {
    rf_xla_ability ability;
    if (!probe) {
      json_array_append_new(list, json_pack("{ss}", "file", path[i]));
      continue;
    }
    if (rf_asked_to_stop(sink)) break;
    rf_xla_probe(path[i], LIMIT_SECONDS, sink->stop, &ability);
    say_plugin(sink, path[i], &ability);
    json_array_append_new(list, plugin_json(path[i], &ability));
  }
  free(path);
  return list;
}

static const rf_option DOCTOR[] = {
    RF_FLAG("plugins", "Print",
            "load each plugin of XLA and print its devices and what it can do\nThe command "
            "loads each plugin in its own process, for at most 20 s. rafter finds the plugins of "
            "`./dev setup --xla`, libtpu, and the file that the variable RAFTER_PJRT_PLUGIN "
            "names."),
    {.name = NULL},
};

static rf_status rf_command_doctor(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
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
  json_t *plugins = list_plugins(sink, rf_options_flag(job->options, "plugins"));
  rf_put_json(sink, json_pack("{ss ss si sf ss sb sf sb ss so}", "command", "doctor", "version",
                              rafter_version(), "threads", threads, "memory_bytes", m->memory_bytes, "isa",
                              rf_isa_name(isa), "huge_pages", pages, "disk_free_bytes", free_bytes,
                              "calibrated", calibrated, "calibration", path, "plugins", plugins));
done:
  free(m);
  return status;
}

const rf_command RF_COMMAND_DOCTOR = {
    RF_COMMAND_HEAD("doctor", "", 0, 0, "Look", "Print what this machine has, and what is missing."),
    .options = {RF_TABLE(DOCTOR), RF_TABLE(RF_EVERY_OPTIONS)}, .examples = {"doctor", "doctor --plugins"},
    .run = rf_command_doctor};
