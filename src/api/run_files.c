/* run_files.c - see run_files.h. */
#define _GNU_SOURCE
#include "api/run_files.h"

#include "base/file.h"
#include "train/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
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
                             bool (*owed)(void *self, const char *text, size_t kept), void *self, FILE **file,
                             size_t *kept, rf_error *error) {
  char path[4400], *text = NULL;
  size_t bytes = 0;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  *kept = 0;
  if (step && !access(path, F_OK)) {
    RF_TRY(rf_file_read(path, (size_t)1 << 32, &text, &bytes, error));
    *kept = kept_bytes(text, step);
    if (owed && owed(self, text, *kept)) *kept -= 2;
    free(text);
  }
  bool cut = *kept >= bytes || !truncate(path, (off_t)*kept);
  *file = cut ? fopen(path, step ? "ae" : "we") : NULL;
  return *file ? RAFTER_OK
               : RF_FAIL(error, RAFTER_FAILED, "choose another --out", "cannot write %s (%s)", path,
                         strerror(errno));
}

bool rf_step_line_lacks(const char *text, size_t kept, int64_t step, const char *key) {
  size_t at = kept ? kept - 1 : 0;
  while (at && text[at - 1] != '\n') at--;
  size_t bytes = kept - at;
  const char *found = memmem(text + at, bytes, "\"step\":", 7);
  return found && strtoll(found + 7, NULL, 10) == step && text[kept - 2] == '}' &&
         !memmem(text + at, bytes, key, strlen(key));
}

rf_status rf_job_resumed(const rafter_job *job, const char *command, rafter_job *merged, rf_error *error) {
  const rf_options *o = job->options;
  char path[4200], checkpoint[4096], run[4096];
  rf_status status = RAFTER_OK;
  RF_TRY(rf_checkpoint_newest(rf_options_text(o, "resume"), checkpoint, error));
  rf_run_folder_of_resume(rf_options_text(o, "resume"), run);
  snprintf(path, sizeof path, "%s/run.json", run);
  RF_TRY(rf_options_new(&RF_ALL_COMMANDS, command, &merged->options, error));
  RF_GO(rf_options_read_file(merged->options, path, error));
  RF_GO(rf_options_set(merged->options, "out", run, error));
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
    RF_WORDS("resume", PATH, "RUN", NULL, "Checkpoints", "run to continue from its last complete checkpoint"),
    RF_NUMBER("keep", INT, "N", 1, 1e6, "2", "Checkpoints", "checkpoints to keep"),
    {.name = NULL},
};
