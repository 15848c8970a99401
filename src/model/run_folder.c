/* run_folder.c - see run_folder.h. docs/formats.md lists the files of a run's folder. */
#define _GNU_SOURCE
#include "model/run_folder.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PATH_BYTES = 4400, HASH_TEXT = 33, DONE_MAX = 1 << 20 };

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

/* Sets `file` to the .gguf file of a folder. Returns false if the folder has no .gguf file, or
 * several. */
static bool only_gguf(const char *path, char file[4096]) {
  char found[4096];
  int count = 0;
  DIR *folder = opendir(path);
  for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
    const char *dot = strrchr(entry->d_name, '.');
    if (!dot || dot == entry->d_name || strcmp(dot, ".gguf") != 0) continue;
    size_t n = (size_t)snprintf(found, sizeof found, "%s/%s", path, entry->d_name);
    if (n < sizeof found && !count++) memcpy(file, found, n + 1);
  }
  if (folder) closedir(folder);
  return count == 1;
}

rf_status rf_run_weights(const char *path, char folder[4096], rf_error *error) {
  char file[4096];
  snprintf(folder, 4096, "%s", path);
  if (has_file(path, "config.json") || has_file(path, "adapter_config.json") || rf_run_newest(path, folder))
    return RAFTER_OK;
  if (!has_file(path, "run.json")) {
    if (only_gguf(path, file)) snprintf(folder, 4096, "%s", file);
    return RAFTER_OK;
  }
  return RF_FAIL(
      error, RAFTER_FAILED,
      "continue the run until it saves one: `rafter train --config RUN/run.json --out OTHER --save-every N`",
      "%s has no complete checkpoint", path);
}

/* ---- the hashes in DONE ---------------------------------------------------------------------- */

static rf_status hash_file(const char *path, char hash[HASH_TEXT], rf_error *error) {
  enum { BLOCK = 1 << 20 };
  rf_status status = RAFTER_OK;
  ssize_t got = 0;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  XXH3_state_t *state = XXH3_createState();
  unsigned char *block = malloc(BLOCK);
  if (file < 0)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "%s of a checkpoint cannot be opened (%s)", path,
                  strerror(errno)));
  if (!state || !block) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to check %s", path));
  XXH3_128bits_reset(state);
  while ((got = read(file, block, BLOCK)) > 0 || (got < 0 && errno == EINTR))
    if (got > 0) XXH3_128bits_update(state, block, (size_t)got);
  if (got < 0) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "cannot read %s (%s)", path, strerror(errno)));
  XXH128_hash_t sum = XXH3_128bits_digest(state);
  snprintf(hash, HASH_TEXT, "%016llx%016llx", (unsigned long long)sum.high64, (unsigned long long)sum.low64);
done:
  if (file >= 0) close(file);
  XXH3_freeState(state);
  free(block);
  return status;
}

rf_status rf_run_hash_file(const char *folder, const char *name, rf_run_hash *hashed, rf_error *error) {
  char path[PATH_BYTES + 300];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  snprintf(hashed->name, sizeof hashed->name, "%s", name);
  return hash_file(path, hashed->hash, error);
}

static const rf_run_hash *find_known(const rf_run_hash *known, int count, const char *name) {
  for (int i = 0; i < count; i++)
    if (!strcmp(known[i].name, name)) return &known[i];
  return NULL;
}

/* Writes one line with the hash of each file. */
static rf_status list_hashes(FILE *out, const char *folder, struct dirent **entry, int entries,
                             const rf_run_hash *known, int count, int *met, rf_error *error) {
  char path[PATH_BYTES + 300], hash[HASH_TEXT];
  for (int i = 0; i < entries; i++) {
    const char *name = entry[i]->d_name;
    if (*name == '.' || !strcmp(name, "DONE")) continue;
    const rf_run_hash *given = find_known(known, count, name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (given) snprintf(hash, sizeof hash, "%s", given->hash);
    else RF_TRY(hash_file(path, hash, error));
    *met += given != NULL;
    fprintf(out, "%s  %s\n", hash, name);
  }
  return RAFTER_OK;
}

rf_status rf_run_write_done(const char *folder, const rf_run_hash *known, int count, rf_error *error) {
  rf_status status = RAFTER_OK;
  struct dirent **entry = NULL;
  char path[PATH_BYTES + 300], *text = NULL;
  size_t bytes = 0;
  int met = 0, wanted = 0, entries = scandir(folder, &entry, NULL, alphasort);
  FILE *out = open_memstream(&text, &bytes);
  if (entries < 0 || !out)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "cannot list the files of %s (%s)", folder, strerror(errno)));
  RF_GO(list_hashes(out, folder, entry, entries, known, count, &met, error));
  for (int i = 0; i < count; i++) wanted += *known[i].name != 0;
  if (met != wanted)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, "write the run to a disk that all ranks share",
                  "%s lacks files of other ranks (expected %d, got %d)", folder, wanted, met));
  if (fflush(out)) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while saving %s", folder));
  snprintf(path, sizeof path, "%s/DONE", folder);
  status = rf_file_write(path, text, bytes, error);
done:
  for (int i = 0; i < entries; i++) free(entry[i]);
  free(entry);
  if (out) fclose(out);
  free(text);
  return status;
}

/* Only --resume reads these files. */
static bool is_training_state(const char *name) {
  return !strncmp(name, "optimizer", 9) || !strcmp(name, "state.json");
}

static rf_status check_line(const char *folder, const char *line, bool resumes, rf_error *error) {
  char path[PATH_BYTES + 300], hash[HASH_TEXT];
  const char *name = line + HASH_TEXT + 1;
  if (strspn(line, "0123456789abcdef") != HASH_TEXT - 1 || strncmp(line + HASH_TEXT - 1, "  ", 2) || !*name ||
      strchr(name, '/') || strlen(name) > 255)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s/DONE has a broken line (expected a hash and a name)",
                   folder);
  if (!resumes && is_training_state(name)) return RAFTER_OK;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  RF_TRY(hash_file(path, hash, error));
  if (!strncmp(hash, line, HASH_TEXT - 1)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "if you changed this file on purpose, empty the file DONE",
                 "%s was damaged or changed after it was saved (expected the XXH128 hash %.32s, got %s)",
                 path, line, hash);
}

static rf_status check_files(const char *folder, bool resumes, rf_error *error) {
  rf_status status = RAFTER_OK;
  char path[PATH_BYTES + 300], *text = NULL, *rest = NULL;
  size_t bytes = 0;
  snprintf(path, sizeof path, "%s/DONE", folder);
  RF_TRY(rf_file_read(path, DONE_MAX, &text, &bytes, error));
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    RF_GO(check_line(folder, line, resumes, error));
done:
  free(text);
  return status;
}

/* Sets `whole` to the newest undamaged checkpoint of the run that is older than `folder`. */
static bool find_older(const char *folder, char whole[PATH_BYTES + 300]) {
  char run[PATH_BYTES], path[PATH_BYTES + 300];
  snprintf(run, sizeof run, "%.4000s", folder);
  char *slash = strrchr(run, '/');
  long long before = rf_run_step_of(slash ? slash + 1 : run), found = -1;
  snprintf(slash ? slash : run, 2, "%s", slash ? "" : ".");
  if (before < 0) return false;
  DIR *open_folder = opendir(slash == run ? "/" : run);
  for (struct dirent *entry; open_folder && (entry = readdir(open_folder)) != NULL;) {
    long long step = rf_run_step_of(entry->d_name);
    snprintf(path, sizeof path, "%s/%s", run, entry->d_name);
    if (step <= found || step >= before || !rf_run_is_complete(path) ||
        check_files(path, true, NULL) != RAFTER_OK)
      continue;
    found = step;
    memcpy(whole, path, sizeof path);
  }
  if (open_folder) closedir(open_folder);
  return found >= 0;
}

rf_status rf_run_check(const char *path, bool resumes, rf_error *error) {
  char folder[PATH_BYTES], older[PATH_BYTES + 300];
  snprintf(folder, sizeof folder, "%.4000s", path);
  size_t n = strlen(folder);
  while (n > 1 && folder[n - 1] == '/') folder[--n] = 0;
  if (!rf_run_is_complete(folder)) return RAFTER_OK;
  rf_error found = {0};
  rf_status status = check_files(folder, resumes, &found);
  if (status == RAFTER_OK) return RAFTER_OK;
  if (find_older(folder, older))
    snprintf(found.hint, sizeof found.hint, "the older checkpoint %.400s is whole: %s", older,
             resumes ? "give it to --resume" : "use it instead");
  if (error) *error = found;
  return status;
}

rf_status rf_run_check_weights(const char *path, rf_error *error) {
  char folder[PATH_BYTES];
  struct stat info;
  snprintf(folder, sizeof folder, "%.4000s", path);
  if (stat(path, &info) != 0 || S_ISDIR(info.st_mode)) return rf_run_check(folder, false, error);
  char *slash = strrchr(folder, '/');
  if (slash) slash[slash == folder] = 0;
  else snprintf(folder, sizeof folder, ".");
  return rf_run_check(folder, false, error);
}
