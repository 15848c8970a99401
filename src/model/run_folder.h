/* run_folder.h - a training run as a model: finds the run's newest complete checkpoint. */
#ifndef RF_RUN_FOLDER_H
#define RF_RUN_FOLDER_H

#include "base/base.h"

/* Returns the step number in a folder name such as checkpoint-00000100, or -1 for any other
 * name. */
long long rf_run_step_of(const char *name);
bool rf_run_is_complete(const char *folder);
/* Finds the newest complete checkpoint in a folder. Returns false if the folder has no complete
 * checkpoint. */
bool rf_run_newest(const char *run_folder, char newest[4096]);
/* Finds the weights. If `path` is a run's folder, the weights are in its newest checkpoint. If
 * `path` is a folder with no config.json and exactly one .gguf file, the weights are in this file.
 * Otherwise, the weights are in `path`. RAFTER_FAILED: the run has no complete checkpoint. */
rf_status rf_run_weights(const char *path, char folder[4096], rf_error *error);

/* A file of a checkpoint and its XXH128 hash in hexadecimal. */
typedef struct rf_run_hash {
  char name[64], hash[33];
} rf_run_hash;
/* Sets *hashed to the hash of a file. */
rf_status rf_run_hash_file(const char *folder, const char *name, rf_run_hash *hashed, rf_error *error);
/* Writes DONE: the hash of each file in the folder, as `xxh128sum` prints it. `known` has files
 * whose hash is already known (name "": no file). RAFTER_FAILED: a file of `known` is not in the
 * folder. */
rf_status rf_run_write_done(const char *folder, const rf_run_hash *known, int count, rf_error *error);
/* Compares the files of a checkpoint with the hashes in DONE. Without `resumes`, files that only
 * --resume reads are not compared. A folder without DONE, and an empty DONE of an earlier version,
 * pass. RAFTER_FAILED: a file was damaged. The error names the damaged file, and the newest
 * undamaged checkpoint before this checkpoint. */
rf_status rf_run_check(const char *folder, bool resumes, rf_error *error);
/* Like rf_run_check without `resumes`. `path` is a checkpoint or the file with its weights. */
rf_status rf_run_check_weights(const char *path, rf_error *error);

#endif
