/* runs_remove.c - `rafter runs rm RUN...`: removes the folders of runs and their rows of the
 * history. Checks all runs before removing the first run. */
#define _GNU_SOURCE
#include "api/api.h"
#include "api/runs.h"

#include "base/file.h"
#include "base/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One run to remove. */
typedef struct doomed {
  int64_t id;        /* 0: not in the history */
  char folder[4096]; /* "": the run's folder no longer exists, or belongs to another run */
  int lock;          /* -1: not locked */
} doomed;

static bool is_dot(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

static bool is_checkpoint(const char *name) { return !strncmp(name, "checkpoint-", 11); }

static rf_status not_a_run(const char *folder, const char *why, const char *name, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "remove the folder yourself if you do not need it",
                 "%s is not removed: %s%s", folder, why, name);
}

/* Checks that the folder belongs to a run, and has no subfolders except checkpoints. */
static rf_status check_folder(const char *folder, rf_error *error) {
  char path[4400], other[256] = "";
  struct stat info;
  json_t *run = NULL;
  if (lstat(folder, &info) || !S_ISDIR(info.st_mode))
    return not_a_run(folder, "it is not a folder", "", error);
  snprintf(path, sizeof path, "%s/run.json", folder);
  bool described = !lstat(path, &info) && S_ISREG(info.st_mode) &&
                   rf_json_read(path, 64 << 20, &run, NULL) == RAFTER_OK && json_object_get(run, "rafter") &&
                   json_object_get(run, "options");
  json_decref(run);
  if (!described) return not_a_run(folder, "it has no run.json of a run", "", error);
  DIR *entries = opendir(folder);
  if (!entries) return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot read %s (%s)", folder, strerror(errno));
  for (struct dirent *e; (e = readdir(entries)) != NULL && !*other;)
    if (!is_dot(e->d_name) && !is_checkpoint(e->d_name) &&
        !fstatat(dirfd(entries), e->d_name, &info, AT_SYMLINK_NOFOLLOW) && S_ISDIR(info.st_mode))
      snprintf(other, sizeof other, "%s", e->d_name);
  closedir(entries);
  return *other ? not_a_run(folder, "it has a folder that is not a checkpoint: ", other, error) : RAFTER_OK;
}

/* Removes the files of a folder and of its checkpoints. Symbolic links are removed and never
 * followed. */
static bool remove_entries(int parent, const char *name, bool checkpoints) {
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *entries = fd < 0 ? NULL : fdopendir(fd);
  if (!entries) return false;
  for (struct dirent *e; (e = readdir(entries)) != NULL;) {
    if (is_dot(e->d_name) || !unlinkat(fd, e->d_name, 0)) continue;
    if (checkpoints && is_checkpoint(e->d_name)) remove_entries(fd, e->d_name, false);
  }
  closedir(entries);
  return !unlinkat(parent, name, AT_REMOVEDIR);
}

static rf_status remove_one(rf_history *history, doomed *d, const rafter_sink *sink, rf_error *error) {
  if (*d->folder && !remove_entries(AT_FDCWD, d->folder, true))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot remove all of %s (%s)", d->folder, strerror(errno));
  if (d->id) RF_TRY(rf_history_remove(history, d->id, error));
  if (*d->folder) rf_say(sink, "removed %s\n", d->folder);
  else rf_say(sink, "removed run %lld, which has no folder\n", (long long)d->id);
  return RAFTER_OK;
}

/* Finds a run, checks its folder and locks it. */
static rf_status choose(rf_history *history, const char *which, doomed *d, rf_error *error) {
  json_t *row = NULL;
  rf_error unknown = {0};
  rf_status status = rf_runs_find(history, which, &row, &unknown);
  d->lock = -1;
  if (status != RAFTER_OK && access(which, F_OK)) {
    if (error) *error = unknown;
    return status;
  }
  if (row) {
    d->id = json_integer_value(json_object_get(row, "id"));
    bool there = json_is_true(json_object_get(row, "folder_is_there"));
    snprintf(d->folder, sizeof d->folder, "%s", there ? rf_json_text_at(row, "folder") : "");
    bool runs = !strcmp(rf_json_text_at(row, "status"), "running");
    json_decref(row);
    if (runs)
      return RF_FAIL(error, RAFTER_FAILED, "stop the run first, or wait for its end",
                     "run %s is running and is not removed", which);
  } else snprintf(d->folder, sizeof d->folder, "%.4095s", which);
  size_t length = strlen(d->folder);
  while (length > 1 && d->folder[length - 1] == '/') d->folder[--length] = 0; /* "link/" names its target */
  if (!*d->folder) return RAFTER_OK;
  RF_TRY(check_folder(d->folder, error));
  return rf_lock_folder(d->folder, &d->lock, error);
}

rf_status rf_runs_remove(const rf_options *o, const rafter_sink *sink, rf_error *error) {
  int count = rf_options_argument_count(o) - 1;
  rf_history *history = NULL;
  rf_status status = RAFTER_OK;
  doomed *all = calloc((size_t)count, sizeof *all);
  if (!all) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int i = 0; i < count; i++) all[i].lock = -1;
  RF_GO(rf_history_open(rf_runs_root(), !access(rf_runs_root(), F_OK), &history, error));
  for (int i = 0; i < count; i++) RF_GO(choose(history, rf_options_argument(o, i + 1), &all[i], error));
  if (!rf_options_flag(o, "yes")) {
    for (int i = 0; i < count; i++)
      rf_say(sink, "%s%s\n", *all[i].folder ? "would remove " : "would remove the row of ",
             *all[i].folder ? all[i].folder : rf_options_argument(o, i + 1));
    RF_GO(RF_FAIL(error, RAFTER_INVALID, "add --yes to remove them", "nothing is removed without --yes"));
  }
  for (int i = 0; i < count; i++) RF_GO(remove_one(history, &all[i], sink, error));
done:
  for (int i = 0; i < count; i++)
    if (all[i].lock >= 0) close(all[i].lock);
  rf_history_close(history);
  free(all);
  return status;
}
