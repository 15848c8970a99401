/* checkpoint.h - a training run on disk: a folder that other tools can load, and that resumes to
 * the bit.
 *
 *   config.json, model.safetensors   the model under its published names, f32 (the masters)
 *   or, of a run that trains adapters: adapter_config.json, adapter_model.safetensors as PEFT
 *     has them
 *   optimizer.safetensors            m/NAME and v/NAME, f32
 *   state.json                       step, tokens, loader counters, what the data and plan were
 *   DONE                             written last; a folder without it is not a checkpoint */
#ifndef RF_CHECKPOINT_H
#define RF_CHECKPOINT_H

#include "train/train.h"

/* Writes `folder` beside and renames it. RAFTER_FAILED: I/O (a full disk...); no folder is left
 * behind. */
rf_status rf_checkpoint_save(rf_trainer *trainer, const char *folder, rf_error *error);
/* Asked before the first step: whether a run's checkpoints can be written at all. RAFTER_FAILED:
 * adapters whose base has a path that JSON cannot hold. */
rf_status rf_checkpoint_can_save(const rf_train_settings *settings, rf_error *error);
/* Loads weights, moments, step and loader position. RAFTER_FAILED: incomplete, truncated,
 * another model, or the data changed. */
rf_status rf_checkpoint_load(rf_trainer *trainer, const char *folder, rf_error *error);
/* The newest complete checkpoint of a run folder (or the folder itself when it is one).
 * RAFTER_FAILED: there is none. */
rf_status rf_checkpoint_newest(const char *run_folder, char folder[4096], rf_error *error);
/* Removes all but the newest `keep` complete checkpoints of a run folder, and what an
 * interrupted save left; never that of step `saved`, which was just written. keep 0: keeps all. */
rf_status rf_checkpoint_prune(const char *run_folder, int keep, int64_t saved, rf_error *error);
/* Whether a folder holds a run, or a checkpoint of one. */
bool rf_checkpoint_any(const char *run_folder);

#endif
