/* checkpoint.h - saves a training run in a folder that other tools can load, and resumes the run
 * with bit-identical results.
 *
 *   `config.json`, `model.safetensors`: the f32 masters of the model under its published names.
 *   For LoRA, `adapter_config.json` and `adapter_model.safetensors` in PEFT's format instead.
 *   `optimizer.safetensors`: the moments m/NAME and v/NAME in f32.
 *   `state.json`: step, tokens, loader counters, digests of the data.
 *   `DONE` is written last; a folder without it is not a checkpoint. */
#ifndef RF_CHECKPOINT_H
#define RF_CHECKPOINT_H

#include "train/train.h"

/* Writes a temporary folder and renames it to `folder`. RAFTER_FAILED: an I/O error, such as a full
 * disk; the temporary folder is then removed. */
rf_status rf_checkpoint_save(rf_trainer *trainer, const char *folder, rf_error *error);
/* Checks before the first step that checkpoints can be written. RAFTER_FAILED: an adapter's base
 * path cannot be stored in JSON. */
rf_status rf_checkpoint_can_save(const rf_train_settings *settings, rf_error *error);
/* Loads weights, moments, step and loader position. RAFTER_FAILED: the checkpoint is incomplete or
 * for another model, or the data has changed. */
rf_status rf_checkpoint_load(rf_trainer *trainer, const char *folder, rf_error *error);
/* Finds the newest complete checkpoint in `run_folder`, which may itself be a checkpoint.
 * RAFTER_FAILED: there is none. */
rf_status rf_checkpoint_newest(const char *run_folder, char folder[4096], rf_error *error);
/* Removes all but the newest `keep` complete checkpoints, and the remains of interrupted saves.
 * Never removes the checkpoint of step `saved`. keep 0 keeps all checkpoints. */
rf_status rf_checkpoint_prune(const char *run_folder, int keep, int64_t saved, rf_error *error);
/* Whether a folder is a run or a checkpoint. */
bool rf_checkpoint_any(const char *run_folder);

#endif
