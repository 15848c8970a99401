/* run_files.h - files in a training run's folder: metrics.jsonl, checkpoints, and the options for
 * resuming the run. `train` and `rl` share these functions. */
#ifndef RF_RUN_FILES_H
#define RF_RUN_FILES_H

#include "api/trainer.h"

/* Returns the number of steps between two printed lines: 1, 2, 5, 10 and so on. A run prints about
 * twenty lines. metrics.jsonl has every step. */
int64_t rf_line_every(int64_t steps);
/* Saves a checkpoint of the trainer's step, and keeps only the newest `keep` checkpoints. *saved is
 * the step of the last checkpoint. Does nothing if this step is already saved, or if the backend
 * computes nothing. */
rf_status rf_save_run(rafter_trainer *t, const rafter_sink *sink, int keep, int64_t *saved, rf_error *error);
/* Opens FOLDER/NAME to append lines. Each line has a "step", and lines of steps after `step` are
 * removed. Step 0 begins a new file. *kept is the number of kept bytes. `owed` sees the kept text; it
 * may be NULL. */
rf_status rf_step_lines_open(const char *folder, const char *name, int64_t step,
                             void (*owed)(void *self, const char *text, size_t kept), void *self, FILE **file,
                             size_t *kept, rf_error *error);
/* Fails if a file could not be written, for example because the disk is full. */
rf_status rf_check_written(FILE *file, const char *name, rf_error *error);
/* Removes the end "}" of the last line, so that more members can follow. Fails if the line is as
 * before. */
rf_status rf_step_line_reopen(FILE *file, const char *name, rf_error *error);
/* Returns true if the last of the kept lines belongs to `step` and does not contain `key`. `key`
 * includes its quotes. */
bool rf_step_line_lacks(const char *text, size_t kept, int64_t step, const char *key);
/* The note of a resumed run that was stopped before its first checkpoint. */
#define RF_BEGINS_AGAIN "the run has no checkpoint yet, so it begins again with its recorded options\n"
/* Returns the options of a resumed run of `command`. Options on the command line take precedence
 * over options in run.json. The run continues in its folder, even if the folder was moved. */
rf_status rf_job_resumed(const rafter_job *job, const char *command, rafter_job *merged, rf_error *error);
/* Options that `train` and `rl` share: time limit, learning rates, --resume and --keep. */
extern const rf_option RF_TRAINING_RUN_OPTIONS[];

#endif
