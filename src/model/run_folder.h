/* run_folder.h - the folder of a training run, where a model is asked for: its newest complete
 * checkpoint stands for it. */
#ifndef RF_RUN_FOLDER_H
#define RF_RUN_FOLDER_H

#include "base/base.h"

/* Step number of a name checkpoint-00000100, or -1. */
long long rf_run_step_of(const char *name);
/* Whether a folder is a complete checkpoint. */
bool rf_run_is_complete(const char *folder);
/* The newest complete checkpoint in a folder; false: there is none, or no such folder. */
bool rf_run_newest(const char *run_folder, char newest[4096]);
/* The folder with the weights of `path`: of a run its newest checkpoint, else `path` itself.
 * RAFTER_FAILED: a run that has saved none. */
rf_status rf_run_weights(const char *path, char folder[4096], rf_error *error);

#endif
