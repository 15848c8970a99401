/* run_files.c - see run_files.h. */
#define _GNU_SOURCE
#include "api/run_files.h"

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "train/checkpoint.h"
#include "train/loader.h"
#include "train/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int64_t rf_line_every(int64_t steps) {
  static const int64_t factor[] = {2, 5};
  for (int64_t unit = 1;; unit *= 10) {
    if (steps / unit <= 25) return unit;
    for (int i = 0; i < 2; i++)
      if (steps / (unit * factor[i]) <= 25) return unit * factor[i];
  }
}

rf_status rf_save_run(rafter_trainer *t, const rafter_sink *sink, int keep, int64_t *saved, rf_error *error) {
  char folder[4200];
  if (*saved == t->trainer->step || !t->trainer->batch.tokens) return RAFTER_OK;
  snprintf(folder, sizeof folder, "%s/checkpoint-%08lld", t->out, (long long)t->trainer->step);
  RF_TRY(rf_checkpoint_save(t->trainer, folder, error));
  int64_t prunes = rf_phase_begin();
  RF_TRY(rf_checkpoint_prune(t->out, keep, t->trainer->step, error));
  rf_phase_end(RF_PHASE_CHECKPOINT, prunes);
  *saved = t->trainer->step;
  rf_say(sink, "saved %s\n", folder);
  return RAFTER_OK;
}

/* Returns the bytes of all complete lines of steps up to `step`. */
static size_t kept_bytes(const char *text, int64_t step) {
  const char *at = text, *end;
  for (; (end = strchr(at, '\n')) != NULL; at = end + 1) {
    const char *found = strstr(at, "\"step\":");
    if (found && found < end && strtoll(found + 7, NULL, 10) > step) break;
  }
  return (size_t)(at - text);
}

rf_status rf_step_lines_open(const char *folder, const char *name, int64_t step,
                             void (*owed)(void *self, const char *text, size_t kept), void *self, FILE **file,
                             size_t *kept, rf_error *error) {
  char path[4400], *text = NULL;
  size_t bytes = 0;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  *kept = 0;
  if (step && !access(path, F_OK)) {
    RF_TRY(rf_file_read(path, (size_t)1 << 32, &text, &bytes, error));
    *kept = kept_bytes(text, step);
    if (owed) owed(self, text, *kept);
    free(text);
  }
  bool cut = *kept >= bytes || !truncate(path, (off_t)*kept);
  *file = cut ? fopen(path, step ? "ae" : "we") : NULL;
  return *file ? RAFTER_OK
               : RF_FAIL(error, RAFTER_FAILED, "choose another --out", "cannot write %s (%s)", path,
                         strerror(errno));
}

static rf_status cannot_write(const char *name, int why, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "make room, then continue with --resume", "cannot write %s (%s)", name,
                 strerror(why));
}

rf_status rf_check_written(FILE *file, const char *name, rf_error *error) {
  return !fflush(file) && !ferror(file) ? RAFTER_OK : cannot_write(name, errno, error);
}

rf_status rf_step_line_reopen(FILE *file, const char *name, rf_error *error) {
  struct stat info;
  RF_TRY(rf_check_written(file, name, error));
  bool cut = !fstat(fileno(file), &info) && info.st_size >= 2 && !ftruncate(fileno(file), info.st_size - 2);
  return cut ? RAFTER_OK : cannot_write(name, errno, error);
}

bool rf_step_line_lacks(const char *text, size_t kept, int64_t step, const char *key) {
  size_t at = kept ? kept - 1 : 0;
  while (at && text[at - 1] != '\n') at--;
  size_t bytes = kept - at;
  const char *found = memmem(text + at, bytes, "\"step\":", 7);
  return found && strtoll(found + 7, NULL, 10) == step && text[kept - 2] == '}' &&
         !memmem(text + at, bytes, key, strlen(key));
}

/* ---- paths of a resumed run ------------------------------------------------------------------ */

/* The run.json of a resumed run. Its relative paths are relative to `start`. */
typedef struct earlier {
  const rf_options *given; /* options of the command line, which take precedence */
  const char *start;       /* folder in which the run began; NULL: unknown */
} earlier;

/* Returns true if the text names a file for certain, so that a run without this file cannot go
 * on. A run's folder has a copy of the tokenizer. */
static bool names_file(const char *option, const char *text) {
  if (!strcmp(option, "data") || !strcmp(option, "eval-data")) return !rf_source_is_random(text);
  return !strcmp(option, "model") && !strchr(text, ':') &&
         (strchr(text, '/') || rf_text_ends_with(text, ".gguf"));
}

static rf_status no_file(const earlier *e, const char *option, const char *text, rf_error *error) {
  char name[80], hint[256];
  bool model = !strcmp(option, "model");
  snprintf(name, sizeof name, "%s%.60s", model ? "" : "--", model ? "MODEL" : option);
  snprintf(hint, sizeof hint,
           "the paths of a run are relative to the folder where it began; give %s, or continue in a folder "
           "where this path exists",
           name);
  return RF_FAIL(error, RAFTER_FAILED, hint,
                 "no file %.300s (%s) in this folder or in %.1000s, where the run began", text, name,
                 e->start);
}

static char *path_there(const earlier *e, const char *path, char there[8300]) {
  snprintf(there, 8300, "%.4000s/%.4000s", e->start, path);
  return there;
}

/* Returns true if the path is relative, and exists only in the folder where the run began. */
static bool is_there_only(const earlier *e, const char *path) {
  char there[8300];
  return *path && *path != '/' && access(path, F_OK) && !access(path_there(e, path, there), F_OK);
}

/* A folder with the name of a preset is a model only if it has a config.json. */
static bool is_preset(const earlier *e, const char *text) {
  char folder[8300], path[8320];
  snprintf(path, sizeof path, "%s/config.json", path_there(e, text, folder));
  return rf_model_preset_source(text) && access(path, F_OK);
}

/* Appends the path to `now`, as an absolute path if it exists only in the folder where the run began.
 * `weight`: in data, a weight follows the path. */
static rf_status add_path(const earlier *e, const char *option, const char *path, const char *weight,
                          char *now, size_t size, rf_error *error) {
  char there[8300];
  bool only = is_there_only(e, path) && (strcmp(option, "model") != 0 || !is_preset(e, path));
  if (!only && *path && *path != '/' && access(path, F_OK) && names_file(option, path))
    return no_file(e, option, path, error);
  rf_text_append(now, size, "%s%s", only ? path_there(e, path, there) : path, weight);
  return RAFTER_OK;
}

/* Sets `now` to the text with the paths of this folder. In data, a text may have several files, and
 * a weight may follow a file (a.txt:3,b.txt:1). */
static rf_status text_now(const earlier *e, const char *option, const char *text, char *now, size_t size,
                          rf_error *error) {
  bool data = !strcmp(option, "data") && access(text, F_OK) && !is_there_only(e, text);
  char *copy = strdup(text), *rest = copy;
  rf_status status = copy ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  *now = 0;
  for (const char *separator = ""; rest && status == RAFTER_OK; separator = ",") {
    char *part = data ? strsep(&rest, ",") : rest, weight[64] = "";
    size_t bytes = strlen(part);
    if (data) rf_loader_split_weight(part);
    else rest = NULL;
    if (strlen(part) < bytes) snprintf(weight, sizeof weight, ":%s", part + strlen(part) + 1);
    rf_text_append(now, size, "%s", separator);
    status = add_path(e, option, part, weight, now, size, error);
  }
  free(copy);
  return status;
}

/* Replaces the relative paths in the value of an option. */
static rf_status value_now(const earlier *e, const char *option, json_t *options, rf_error *error) {
  enum { SIZE = 1 << 16 };
  json_t *value = json_object_get(options, option), *item;
  rf_status status = RAFTER_OK;
  size_t i;
  char *now = malloc(SIZE);
  if (!now) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  if (json_is_string(value)) {
    status = text_now(e, option, json_string_value(value), now, SIZE, error);
    if (status == RAFTER_OK) json_object_set_new(options, option, json_string(now));
  } else
    json_array_foreach (value, i, item) {
      if (!json_is_string(item)) continue;
      status = text_now(e, option, json_string_value(item), now, SIZE, error);
      if (status != RAFTER_OK) break;
      json_array_set_new(value, i, json_string(now));
    }
  free(now);
  return status;
}

static bool is_path(const rf_option *row) {
  static const char *const other[] = {"out", "resume", "config"}, *const texts[] = {"data", "template"};
  for (int i = 0; i < 3; i++)
    if (!strcmp(row->name, other[i])) return false;
  for (int i = 0; i < 2; i++)
    if (!strcmp(row->name, texts[i])) return true;
  return row->type == RF_OPTION_PATH;
}

/* A run may continue in another folder than the one in which it began. */
static rf_status find_paths(const earlier *e, const char *command, json_t *options, rf_error *error) {
  const rf_option *row[256];
  int count = rf_command_options(rf_command_named(&RF_ALL_COMMANDS, command), row, 256);
  for (int i = -1; i < count; i++) {
    const char *name = i < 0 ? "model" : row[i]->name;
    bool given = i < 0 ? rf_options_argument(e->given, 0) != NULL : rf_options_given(e->given, name);
    if (!given && (i < 0 || is_path(row[i]))) RF_TRY(value_now(e, name, options, error));
  }
  return RAFTER_OK;
}

static rf_status read_earlier(const rf_options *given, const char *command, const char *path,
                              rf_options *options, rf_error *error) {
  json_t *json = NULL;
  RF_TRY(rf_json_read(path, (size_t)1 << 24, &json, error));
  const earlier e = {given, json_string_value(json_object_get(json, "directory"))};
  rf_status status = e.start ? find_paths(&e, command, json_object_get(json, "options"), error) : RAFTER_OK;
  if (status == RAFTER_OK) status = rf_options_read_json(options, json, path, error);
  json_decref(json);
  return status;
}

rf_status rf_job_resumed(const rafter_job *job, const char *command, rafter_job *merged, rf_error *error) {
  const rf_options *o = job->options;
  char path[4200], checkpoint[4096], run[4096];
  rf_status status = RAFTER_OK;
  RF_TRY(rf_checkpoint_resumed(rf_options_text(o, "resume"), checkpoint, error));
  rf_run_folder_of_resume(rf_options_text(o, "resume"), run);
  snprintf(path, sizeof path, "%s/run.json", run);
  RF_TRY(rf_options_new(&RF_ALL_COMMANDS, command, &merged->options, error));
  RF_GO(read_earlier(o, command, path, merged->options, error));
  RF_GO(rf_options_set(merged->options, "out", run, error));
  /* a run that begins again also records its trace again */
  if (!*checkpoint && rf_options_is_set(merged->options, "trace"))
    RF_GO(rf_options_set(merged->options, "trace", rf_options_text(merged->options, "trace"), error));
  json_t *given = rf_options_json(o);
  const char *name;
  json_t *value;
  json_object_foreach (given, name, value) {
    bool typed = strcmp(name, "model") && rf_options_knows(o, name) && rf_options_given(o, name);
    if (typed && status == RAFTER_OK)
      status = rf_options_set(merged->options, name, rf_options_text(o, name), error);
  }
  json_decref(given);
  if (status == RAFTER_OK && rf_options_argument(o, 0))
    status = rf_options_set(merged->options, "MODEL", rf_options_argument(o, 0), error);
done:
  if (status != RAFTER_OK) {
    rf_options_free(merged->options);
    merged->options = NULL;
  }
  return status;
}

const rf_option RF_TRAINING_RUN_OPTIONS[] = {
    RF_NUMBER("max-seconds", DURATION, NULL, 0.001, 1e9, NULL, "Training",
              "maximum time; the run saves its state and ends within this time"),
    RF_NUMBER("warmup", INT, "STEPS", 0, 1e12, NULL, "Training",
              "optimizer steps of linear warm-up, not with --schedule constant; unset: 5% of the steps"),
    RF_NUMBER("decay", INT, "STEPS", 0, 1e12, NULL, "Training",
              "optimizer steps of the final decay (wsd); unset: 20% of the steps"),
    RF_NUMBER("min-lr", FLOAT, "RATE", 0, 100, NULL, "Training",
              "learning rate at the end; unset: a tenth of --lr"),
    RF_WORDS("resume", PATH, "RUN", NULL, "Checkpoints",
             "run to continue from its last complete checkpoint; a run without one begins again"),
    RF_NUMBER("keep", INT, "N", 1, 1e6, "2", "Checkpoints", "checkpoints to keep"),
    {.name = NULL},
};
