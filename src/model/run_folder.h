/* run_folder.h - a training run as a model: finds the run's newest complete checkpoint. */
#ifndef RF_RUN_FOLDER_H
#define RF_RUN_FOLDER_H

#include "base/base.h"

/* Step number of a folder name checkpoint-00000100, or -1. */
long long rf_run_step_of(const char *name);
/* Whether a folder is a complete checkpoint. */
bool rf_run_is_complete(const char *folder);
/* The newest complete checkpoint in a folder; false if there is none. */
bool rf_run_newest(const char *run_folder, char newest[4096]);
/* The folder with the weights of `path`: a run's newest checkpoint, otherwise `path` itself.
 * RAFTER_FAILED when a run has no complete checkpoint. */
rf_status rf_run_weights(const char *path, char folder[4096], rf_error *error);

#endif
