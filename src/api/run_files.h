/* run_files.h - the files of a training run's folder: metrics.jsonl, checkpoints, and the options
 * with which a later command resumes the run. `train` and `rl` share them. */
#ifndef RF_RUN_FILES_H
#define RF_RUN_FILES_H

#include "api/trainer.h"

/* Number of steps between two lines of output: 1, 2, 5, 10 and so on. A run prints about twenty
 * lines. metrics.jsonl has every step. */
int64_t rf_line_every(int64_t steps);
/* Saves a checkpoint of the trainer's step, and removes old ones except `keep`. *saved is the step
 * of the last checkpoint. Does nothing if the step is saved, or if the backend computes nothing. */
rf_status rf_save_run(rafter_trainer *t, const rafter_sink *sink, int keep, int64_t *saved, rf_error *error);
/* Opens FOLDER/NAME, whose lines have a "step", to append lines after `step`: removes lines of
 * later steps. Step 0 begins a new file. *kept is the number of bytes that stay. `owed` (may be
 * NULL) is asked whether the last line waits for its end, and then its closing brace is removed. */
rf_status rf_step_lines_open(const char *folder, const char *name, int64_t step,
                             bool (*owed)(void *self, const char *text, size_t kept), void *self, FILE **file,
                             size_t *kept, rf_error *error);
/* True if the last of the `kept` bytes' lines is that of `step` and has no key `key`, in quotes. */
bool rf_step_line_lacks(const char *text, size_t kept, int64_t step, const char *key);
/* The options of a resumed run of `command`: those of its run.json, and options on the command line,
 * which take precedence. The run continues in its folder, even if the folder was moved. */
rf_status rf_job_resumed(const rafter_job *job, const char *command, rafter_job *merged, rf_error *error);
/* The options of both commands: time limit, learning rates, --resume and --keep. */
extern const rf_option RF_TRAINING_RUN_OPTIONS[];

#endif
