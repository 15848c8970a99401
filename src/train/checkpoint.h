/* checkpoint.h - saves a training run in a folder that other tools can load, and resumes the run
 * with bit-identical results.
 *
 *   `config.json`, `model.safetensors`: the f32 masters, with the published names of the weights.
 *   If several ranks share a disk, each rank writes a shard, and rank 0 also writes an index.
 *   With LoRA, `adapter_config.json` and `adapter_model.safetensors` in PEFT's format replace them.
 *   `optimizer.safetensors`: the moments m/NAME and v/NAME in f32, with the shards of the weights.
 *   `state.json`: step, tokens, loader counters, digests of the data.
 *   `DONE`: the hash of each file, written last. A folder without `DONE` is not a checkpoint. */
#ifndef RF_CHECKPOINT_H
#define RF_CHECKPOINT_H

#include "train/train.h"

/* Writes a temporary folder and renames it to `folder`. RAFTER_FAILED: an I/O error, for example
 * because the disk is full. After an I/O error, the temporary folder is removed. With several
 * hosts, all hosts call this function. Ranks that share a disk write their shards. Otherwise host 0
 * writes all files. */
rf_status rf_checkpoint_save(rf_trainer *trainer, const char *folder, rf_error *error);
/* Estimates the seconds of a checkpoint in `folder` before one was measured. The estimate follows
 * from the checkpoint's bytes and from the time in which small files reach the disk. It is at most
 * `most` seconds. With several hosts, all hosts call this function and get the estimate of host 0.
 * RAFTER_FAILED: host 0 cannot write to `folder`. */
rf_status rf_checkpoint_foresee(rf_trainer *trainer, const char *folder, double most, double *seconds,
                                rf_error *error);
/* Checks, before the first step, that checkpoints can be written. RAFTER_FAILED: an adapter's base
 * path cannot be stored in JSON. */
rf_status rf_checkpoint_can_save(const rf_train_settings *settings, rf_error *error);
/* Loads weights, moments, step number and loader state. RAFTER_FAILED: the checkpoint is
 * incomplete, damaged or for another model, or the data is not the data of the run. */
rf_status rf_checkpoint_load(rf_trainer *trainer, const char *folder, rf_error *error);
/* Sets `folder` to the newest complete checkpoint in `run_folder`. `run_folder` may itself be a
 * checkpoint. RAFTER_FAILED: there is none. */
rf_status rf_checkpoint_newest(const char *run_folder, char folder[4096], rf_error *error);
/* Like rf_checkpoint_newest. But if the run has only begun, `folder` becomes "": the folder has a
 * run.json, no checkpoint and no report.json, which a run writes at its end. */
rf_status rf_checkpoint_resumed(const char *run_folder, char folder[4096], rf_error *error);
/* Removes all complete checkpoints except the newest `keep`. The remains of interrupted saves are
 * removed too. Never removes the checkpoint of step `saved`. If `keep` is 0, no checkpoint is
 * removed. A checkpoint after step `saved` belongs to steps that the run has left, so it gets the
 * name before-checkpoint-N. */
rf_status rf_checkpoint_prune(const char *run_folder, int keep, int64_t saved, rf_error *error);
/* True if a folder is a run or a checkpoint. */
bool rf_checkpoint_any(const char *run_folder);

#endif
