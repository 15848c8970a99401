/* run_folder.h - a training run as a model: finds the run's newest complete checkpoint. */
#ifndef RF_RUN_FOLDER_H
#define RF_RUN_FOLDER_H

#include "base/base.h"

/* The step number in a folder name such as checkpoint-00000100; -1 for any other name. */
long long rf_run_step_of(const char *name);
bool rf_run_is_complete(const char *folder);
/* The newest complete checkpoint in a folder; false if there is none. */
bool rf_run_newest(const char *run_folder, char newest[4096]);
/* The folder with the weights: the newest checkpoint if `path` is a run's folder, otherwise `path`.
 * RAFTER_FAILED when a run has no complete checkpoint. */
rf_status rf_run_weights(const char *path, char folder[4096], rf_error *error);

#endif
