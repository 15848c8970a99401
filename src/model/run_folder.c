/* run_folder.c - see run_folder.h. docs/formats.md lists the files of a run's folder. */
#include "model/run_folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4400 };

static bool has_file(const char *folder, const char *name) {
  char path[PATH_BYTES + 300];
  return (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path && access(path, F_OK) == 0;
}

long long rf_run_step_of(const char *name) {
  char *end = NULL;
  if (strncmp(name, "checkpoint-", 11)) return -1;
  long long step = strtoll(name + 11, &end, 10);
  return *end || end == name + 11 ? -1 : step;
}

bool rf_run_is_complete(const char *folder) { return has_file(folder, "DONE"); }

bool rf_run_newest(const char *run_folder, char newest[4096]) {
  long long last = -1;
  char path[PATH_BYTES + 300];
  DIR *folder = opendir(run_folder);
  for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
    long long step = rf_run_step_of(entry->d_name);
    size_t n = (size_t)snprintf(path, sizeof path, "%.4000s/%s", run_folder, entry->d_name);
    if (step > last && n < 4096 && rf_run_is_complete(path)) {
      last = step;
      memcpy(newest, path, n + 1);
    }
  }
  if (folder) closedir(folder);
  return last >= 0;
}

rf_status rf_run_weights(const char *path, char folder[4096], rf_error *error) {
  snprintf(folder, 4096, "%s", path);
  if (has_file(path, "config.json") || has_file(path, "adapter_config.json") || rf_run_newest(path, folder) ||
      !has_file(path, "run.json"))
    return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_FAILED,
      "continue the run until it saves one: `rafter train --config RUN/run.json --out OTHER --save-every N`",
      "%s has no complete checkpoint", path);
}
