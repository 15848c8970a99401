/* checkpoint.c - saves, finds, loads and removes checkpoints. */
#define _GNU_SOURCE
#include "train/checkpoint_parts.h"
#include "train/checkpoint.h"
#include "run/record.h"

#include "base/file.h"
#include "base/partial.h"
#include "base/json.h"
#include "base/text.h"
#include "model/adapter.h"
#include "text/tokenizer.h"
#include "model/weights.h"
#include "run/load.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4300 };

/* Removes DONE first, so that a folder that is only partly removed is not a complete checkpoint. */
static void remove_folder(const char *folder) {
  char path[PATH_BYTES + 400];
  snprintf(path, sizeof path, "%s/DONE", folder);
  unlink(path);
  rf_remove_folder(folder);
}

/* True for a folder that a checkpoint may replace. A trainer of rafter.h saves to any name. */
static bool is_checkpoint(const char *folder) {
  char path[PATH_BYTES + 400];
  const char *slash = strrchr(folder, '/');
  snprintf(path, sizeof path, "%s/state.json", folder);
  return rf_run_is_complete(folder) || !access(path, F_OK) || rf_run_step_of(slash ? slash + 1 : folder) >= 0;
}

/* Renames `part` to `folder`. If `folder` is an old checkpoint, exchanges the names of both
 * folders. So a complete checkpoint exists at any time. */
static rf_status take_name(const char *part, const char *folder, rf_error *error) {
  if (!rename(part, folder)) return RAFTER_OK;
  int why = errno;
  if ((why == ENOTEMPTY || why == EEXIST) && !is_checkpoint(folder))
    return RF_FAIL(error, RAFTER_FAILED, "choose another folder",
                   "%s has files that are not a checkpoint's, and saving would remove them", folder);
  if ((why == ENOTEMPTY || why == EEXIST) && !renameat2(AT_FDCWD, part, AT_FDCWD, folder, RENAME_EXCHANGE))
    return remove_folder(part), RAFTER_OK;
  if (why == ENOTEMPTY || why == EEXIST) why = errno;
  if (why == EINVAL || why == ENOSYS) { /* this file system cannot exchange the names of two folders */
    remove_folder(folder);
    if (!rename(part, folder)) return RAFTER_OK;
    why = errno;
  }
  return RF_FAIL(error, RAFTER_FAILED, "choose another folder with --out",
                 "cannot rename the checkpoint to %s (%s)", folder, strerror(why));
}

static void sync_folder(const char *folder) {
  int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file >= 0) {
    fsync(file);
    close(file);
  }
}

static rf_status master_values(void *context, int param, int64_t first, int64_t count, float *values,
                               rf_error *error) {
  const rf_trainer *t = context;
  return rf_run_read(t->run, 0, t->state[param].master, first * 4, values, count * 4, error);
}

static const char *hex(uint64_t value, char text[17]) {
  return snprintf(text, 17, "%016llx", (unsigned long long)value), text;
}

static json_t *sources_json(const rf_loader *loader) {
  json_t *list = json_array();
  for (int i = 0; i < loader->count; i++) {
    const rf_source *s = &loader->source[i];
    char digest[17];
    json_array_append_new(list,
                          json_pack("{ss sI sI ss sI}", "source", s->spec, "tokens", (json_int_t)s->tokens,
                                    "rows", (json_int_t)s->train.count, "digest", hex(s->digest, digest),
                                    "drawn", (json_int_t)loader->state.drawn[i]));
  }
  return list;
}

static rf_status save_state(const rf_trainer *t, const char *folder, rf_error *error) {
  char path[PATH_BYTES + 32];
  const rf_build_options *b = &t->settings.plan.build;
  snprintf(path, sizeof path, "%s/state.json", folder);
  json_t *json = json_pack(
      "{ss ss sI sI sI sI sI sI ss so}", "rafter", "state", "model", t->settings.model.name, "step",
      (json_int_t)t->step, "tokens", (json_int_t)t->tokens, "loss_tokens", (json_int_t)t->loss_tokens, "seed",
      (json_int_t)t->settings.seed, "rows", (json_int_t)t->loader.state.rows, "seq", (json_int_t)b->seq,
      "dtype", rf_dtype_name(b->dtype), "data", sources_json(&t->loader));
  rf_status status = rf_json_write(path, json, 1, error);
  json_decref(json);
  return status;
}

/* Saves the tokenizer and the chat template next to the weights. A model without tokenizer files
 * uses the byte tokenizer, unless it was trained on shards with ids of another tokenizer. */
static rf_status save_tokenizer(const rf_trainer *t, const char *folder, rf_error *error) {
  enum { BYTE_IDS = 257 };
  int copied;
  bool bytes = true;
  char path[PATH_BYTES + 32];
  const char *from = rf_train_tokenizer(&t->settings);
  for (int i = 0; i < t->loader.count; i++)
    if (rf_text_ends_with(t->loader.source[i].spec, ".shard") && t->loader.source[i].shard.vocab > BYTE_IDS)
      bytes = false;
  if (from && *from) RF_TRY(rf_tokenizer_files_copy(from, folder, &copied, error));
  else if (bytes) RF_TRY(rf_tokenizer_bytes_write(folder, t->settings.model.vocab, error));
  if (!t->template) return RAFTER_OK;
  snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
  return rf_file_write(path, t->template, t->template_bytes, error);
}

/* Sets `base` to the base model of an adapter. The base model is the path of its weights or,
 * without a path, its name. */
static void base_of(const rf_train_settings *settings, char base[PATH_BYTES]) {
  const char *weights = settings->weights_folder;
  if (!weights || !*weights || !realpath(weights, base))
    snprintf(base, PATH_BYTES, "%s", settings->model.name);
}

rf_status rf_checkpoint_can_save(const rf_train_settings *settings, rf_error *error) {
  char base[PATH_BYTES];
  if (settings->model.lora.rank == 0) return RAFTER_OK;
  base_of(settings, base);
  return rf_adapter_base_check(base, error);
}

/* Saves the full model. With LoRA, saves only the adapters and the name of their base model. */
static rf_status save_weights(rf_trainer *t, const char *folder, rf_error *error) {
  const rf_params *params = &t->plan->graph->params;
  char base[PATH_BYTES];
  if (params->adapter == 0)
    return rf_weights_write(folder, &t->settings.model, params, RF_F32, master_values, t, error);
  base_of(&t->settings, base);
  return rf_adapter_write(folder, &t->settings.model, params, base, master_values, t, error);
}

/* Writes the small files. Only host 0 does this. */
static rf_status save_small(rf_trainer *t, const char *part, rf_error *error) {
  RF_TRY(save_tokenizer(t, part, error));
  RF_TRY(save_state(t, part, error));
  return t->save_more ? t->save_more(t->more, part, error) : RAFTER_OK;
}

/* DONE is written last, because it means that all other files are complete on the disk. */
static rf_status complete(const char *part, const char *folder, const rf_run_hash *known, int count,
                          rf_error *error) {
  char path[PATH_BYTES + 32];
  RF_TRY(rf_run_write_done(part, known, count, error));
  sync_folder(part);
  RF_TRY(take_name(part, folder, error));
  snprintf(path, sizeof path, "%s", folder);
  sync_folder(dirname(path));
  return RAFTER_OK;
}

static rf_status end_part(const char *part, rf_status status) {
  if (status != RAFTER_OK && *part) remove_folder(part);
  if (*part) rf_partial_done_folder(part);
  return status;
}

/* Saves a checkpoint that host 0 writes alone, while the other hosts serve. */
static rf_status save_alone(rf_trainer *t, const char *folder, rf_error *error) {
  rf_status status = RAFTER_OK;
  char part[PATH_BYTES] = "";
  if (rf_run_host(t->run) > 0) return rf_run_serve(t->run, error);
  RF_GO(rf_make_sibling_folder(folder, part, sizeof part, error));
  RF_GO(save_weights(t, part, error));
  RF_GO(rf_moments_save(t, part, error));
  RF_GO(save_small(t, part, error));
  status = complete(part, folder, NULL, 0, error);
done:
  return rf_run_served(t->run, end_part(part, status), error);
}

/* Makes the folder in which all ranks write. Only host 0 does this. `path`: its absolute path. */
static rf_status make_part(const char *folder, char part[PATH_BYTES], char path[PATH_BYTES],
                           rf_error *error) {
  RF_TRY(rf_make_sibling_folder(folder, part, PATH_BYTES, error));
  if (realpath(part, path) && strlen(path) < 4096) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "choose another folder with --out", "cannot use the folder %s", part);
}

/* True if every rank can write to the folder of host 0, because the ranks share a disk. Each rank
 * compares the inode of the folder, because another disk may have a folder with the same name. */
static rf_status see_folder(rf_trainer *t, char path[PATH_BYTES], bool *shared, rf_error *error) {
  struct stat info;
  uint64_t number = stat(path, &info) ? 0 : (uint64_t)info.st_ino, mine;
  RF_TRY(rf_run_share(t->run, path, PATH_BYTES, error));
  mine = stat(path, &info) ? 0 : (uint64_t)info.st_ino;
  RF_TRY(rf_run_share(t->run, &number, sizeof number, error));
  uint32_t unseen = access(path, W_OK | X_OK) != 0 || mine != number;
  RF_TRY(rf_run_agree(t->run, &unseen, error));
  *shared = !unseen;
  return RAFTER_OK;
}

/* Each rank writes its own shards, and host 0 writes the other files. */
static rf_status save_shards(rf_trainer *t, const char *part, const char *folder, rf_error *error) {
  const bool first = rf_run_host(t->run) == 0;
  rf_run_hash hashed[RF_SHARD_KINDS] = {0};
  rf_run_hash *all = NULL;
  int count = RF_SHARD_KINDS * rf_run_hosts(t->run);
  RF_TRY(rf_shards_save(t, part, hashed, error));
  rf_status status = first ? save_small(t, part, error) : RAFTER_OK;
  if (first && status == RAFTER_OK && !(all = calloc((size_t)count, sizeof *all)))
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while saving %s", folder);
  status = rf_run_settle(t->run, status, error);
  if (status == RAFTER_OK) {
    status = rf_run_collect(t->run, hashed, all, sizeof hashed, error);
    if (status == RAFTER_OK && first) status = complete(part, folder, all, count, error);
    status = rf_run_settle(t->run, status, error);
  }
  free(all);
  return status;
}

static rf_status save_together(rf_trainer *t, const char *folder, rf_error *error) {
  char part[PATH_BYTES] = "", path[PATH_BYTES] = "";
  bool shared = false;
  rf_status status = RAFTER_OK;
  if (rf_run_host(t->run) == 0) status = make_part(folder, part, path, error);
  RF_GO(rf_run_settle(t->run, status, error));
  RF_GO(see_folder(t, path, &shared, error));
  if (shared) status = save_shards(t, path, folder, error);
done:
  status = end_part(part, status);
  return status == RAFTER_OK && !shared ? save_alone(t, folder, error) : status;
}

rf_status rf_checkpoint_save(rf_trainer *t, const char *folder, rf_error *error) {
  if (!t->batch.tokens)
    return RF_FAIL(error, RAFTER_INVALID, "choose --backend cpu or reference",
                   "the null backend has no weights to save");
  int64_t began = rf_phase_begin();
  bool together = rf_run_gathers(t->run) && t->plan->graph->params.adapter == 0;
  rf_status status = together ? save_together(t, folder, error) : save_alone(t, folder, error);
  rf_phase_end(RF_PHASE_CHECKPOINT, began);
  return status;
}

/* Bytes of the weights and moments of a checkpoint. */
static int64_t saved_bytes(const rf_trainer *t) {
  const rf_params *params = &t->plan->graph->params;
  rf_moments m = rf_moments_list(t);
  int64_t bytes = 0;
  for (int i = 0; i < m.count; i++) bytes += m.stored[i].bytes;
  for (int i = 0; i < params->count; i++)
    if (params->adapter == 0 || !params->at[i].frozen) bytes += params->at[i].count * 4;
  rf_pool_free(m.pool);
  return bytes;
}

/* Measures how long a file of `bytes` bytes takes to reach the disk. The file has no name while it
 * is written, so a killed process leaves nothing. */
static rf_status time_file(const char *folder, int64_t bytes, double *seconds, rf_error *error) {
  enum { BLOCK = 1 << 16 };
  static uint64_t block[BLOCK / 8];
  char path[PATH_BYTES + 32];
  double began = rf_now_seconds();
  snprintf(path, sizeof path, "%s/speed.XXXXXX", folder);
  int file = mkstemp(path);
  bool good = file >= 0 && !unlink(path);
  for (int64_t at = 0, n; at < bytes && good; at += n) {
    n = bytes - at < BLOCK ? bytes - at : BLOCK;
    for (int i = 0; i < BLOCK / 8; i++) /* numbers that a file system cannot compress */
      block[i] = rf_key(0, (uint64_t)at, (uint64_t)i);
    ssize_t done = write(file, block, (size_t)n);
    good = done == n;
    if (done >= 0 && !good) errno = ENOSPC;
  }
  good = good && (!fsync(file) || errno == EINVAL);
  int why = errno;
  if (file >= 0) close(file);
  *seconds = rf_now_seconds() - began;
  return good ? RAFTER_OK
              : RF_FAIL(error, RAFTER_FAILED, "make room, or choose another folder with --out",
                        "cannot write a file in %s (%s)", folder, strerror(why));
}

rf_status rf_checkpoint_foresee(rf_trainer *t, const char *folder, double most, double *seconds,
                                rf_error *error) {
  /* SYNCS: how often the end of a run waits for the disk: for each file and for its folder */
  enum { SMALL_BYTES = 4096, LARGE_BYTES = 8 << 20, SYNCS = 16 };
  rf_status status = RAFTER_OK;
  *seconds = 0;
  if (t->batch.tokens && rf_run_host(t->run) == 0) {
    int64_t bytes = saved_bytes(t), probe = bytes < LARGE_BYTES ? bytes : LARGE_BYTES;
    double small = 0, large = 0;
    status = time_file(folder, SMALL_BYTES, &small, error);
    if (status == RAFTER_OK && probe > SMALL_BYTES) status = time_file(folder, probe, &large, error);
    double more = large > small ? large - small : 0; /* beyond the wait for the disk */
    *seconds = fmin(SYNCS * small + (probe > 0 ? more * (double)bytes / (double)probe : 0), most);
  }
  RF_TRY(rf_run_settle(t->run, status, error));
  return rf_run_share(t->run, seconds, sizeof *seconds, error);
}

rf_status rf_checkpoint_newest(const char *run_folder, char folder[4096], rf_error *error) {
  if (rf_run_is_complete(run_folder)) return snprintf(folder, 4096, "%s", run_folder), RAFTER_OK;
  if (access(run_folder, R_OK | X_OK))
    return RF_FAIL(error, RAFTER_FAILED, "give the folder of a run, for example runs/ID",
                   "cannot open the run %s (%s)", run_folder, strerror(errno));
  if (rf_run_newest(run_folder, folder)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "start the run again without --resume",
                 "%s holds no complete checkpoint", run_folder);
}

static bool has_file(const char *folder, const char *name) {
  char path[PATH_BYTES + 300];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return access(path, F_OK) == 0;
}

/* True if a folder has checkpoints, complete or damaged. */
static bool has_checkpoints(const char *run_folder) {
  bool any = false;
  DIR *open_folder = opendir(run_folder);
  for (struct dirent *entry; !any && open_folder && (entry = readdir(open_folder)) != NULL;)
    any = rf_run_step_of(entry->d_name) >= 0;
  if (open_folder) closedir(open_folder);
  return any;
}

rf_status rf_checkpoint_resumed(const char *run_folder, char folder[4096], rf_error *error) {
  if (has_file(run_folder, "run.json") && !has_file(run_folder, "report.json") &&
      !rf_run_is_complete(run_folder) && !has_checkpoints(run_folder))
    return *folder = 0, RAFTER_OK;
  return rf_checkpoint_newest(run_folder, folder, error);
}

bool rf_checkpoint_any(const char *run_folder) {
  return has_file(run_folder, "run.json") || rf_run_is_complete(run_folder) || has_checkpoints(run_folder);
}

/* Renames a checkpoint, so that it is no longer the newest. */
static void set_aside(const char *run_folder, const char *name) {
  char from[PATH_BYTES + 300], to[PATH_BYTES + 300];
  snprintf(from, sizeof from, "%s/%s", run_folder, name);
  snprintf(to, sizeof to, "%s/before-%s", run_folder, name);
  remove_folder(to);
  rename(from, to);
}

rf_status rf_checkpoint_prune(const char *run_folder, int keep, int64_t saved, rf_error *error) {
  char path[PATH_BYTES + 300];
  for (;;) { /* removes the oldest checkpoints until `keep` checkpoints remain */
    long long oldest = -1;
    int complete = 0;
    char oldest_path[PATH_BYTES + 300] = "";
    DIR *open_folder = opendir(run_folder);
    if (!open_folder)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot open the run %s (%s)", run_folder, strerror(errno));
    for (struct dirent *entry; (entry = readdir(open_folder)) != NULL;) {
      long long step = rf_run_step_of(entry->d_name);
      snprintf(path, sizeof path, "%s/%s", run_folder, entry->d_name);
      if (!strncmp(entry->d_name, "checkpoint-", 11) && strstr(entry->d_name, ".part-")) remove_folder(path);
      if (step < 0 || !rf_run_is_complete(path)) continue;
      if (saved >= 0 && step > saved) { /* of steps that the run has left: it was resumed before them */
        set_aside(run_folder, entry->d_name);
        continue;
      }
      complete++;
      if (step != saved && (oldest < 0 || step < oldest)) {
        oldest = step;
        memcpy(oldest_path, path, sizeof path);
      }
    }
    closedir(open_folder);
    if (keep <= 0 || complete <= keep || oldest < 0) return RAFTER_OK;
    remove_folder(oldest_path);
  }
}

static rf_status load_state(rf_trainer *t, const char *folder, rf_error *error) {
  rf_status status = RAFTER_OK;
  char path[PATH_BYTES + 32];
  json_t *json = NULL;
  int64_t seed, seq;
  rf_loader_state state = {0};
  snprintf(path, sizeof path, "%s/state.json", folder);
  RF_TRY(rf_json_read(path, 1 << 20, &json, error));
  RF_GO(rf_json_int(json, "step", path, 0, INT64_MAX / 2, &t->step, error));
  RF_GO(rf_json_int(json, "tokens", path, 0, INT64_MAX / 2, &t->tokens, error));
  RF_GO(rf_json_int_or(json, "loss_tokens", path, 0, INT64_MAX / 2, t->tokens, &t->loss_tokens, error));
  RF_GO(rf_json_int(json, "rows", path, 0, INT64_MAX / 2, &state.rows, error));
  RF_GO(rf_json_int(json, "seed", path, INT64_MIN, INT64_MAX, &seed, error));
  RF_GO(rf_json_int(json, "seq", path, 1, INT64_MAX / 2, &seq, error));
  const json_t *data = json_object_get(json, "data");
  if (json_array_size(data) != (size_t)t->loader.count || (uint64_t)seed != t->settings.seed ||
      seq != t->settings.plan.build.seq)
    RF_GO(
        RF_FAIL(error, RAFTER_FAILED, "resume with the --data, --seed and --seq of the run",
                "the data is not what the run was trained on (%s: expected %zu sources, seed %lld, seq %lld)",
                path, json_array_size(data), (long long)seed, (long long)seq));
  for (int i = 0; i < t->loader.count; i++) {
    const json_t *row = json_array_get(data, (size_t)i);
    const rf_source *source = &t->loader.source[i];
    int64_t tokens, rows;
    const char *digest;
    char now[17];
    RF_GO(rf_json_int(row, "tokens", path, 0, INT64_MAX / 2, &tokens, error));
    RF_GO(rf_json_int(row, "rows", path, 0, INT64_MAX / 2, &rows, error));
    RF_GO(rf_json_int(row, "drawn", path, 0, INT64_MAX / 2, &state.drawn[i], error));
    RF_GO(rf_json_string(row, "digest", path, &digest, error));
    if (tokens != source->tokens || rows != source->train.count || strcmp(digest, hex(source->digest, now)))
      RF_GO(RF_FAIL(error, RAFTER_FAILED, "start a new run from the weights of the checkpoint",
                    "the data is not what the run was trained on (%s: %.200s or its options have changed)",
                    path, source->spec));
  }
  t->loader.state = state;
done:
  json_decref(json);
  return status;
}

static rf_status load_weights(rf_trainer *t, const char *folder, rf_error *error) {
  const rf_params *params = &t->plan->graph->params;
  if (params->adapter == 0) return rf_load_weights(t->run, 0, t->plan, folder, error);
  rf_lora lora;
  rf_model with = t->settings.model;
  RF_TRY(rf_adapter_open(folder, &t->settings.model, &lora, error));
  const rf_lora *now = &with.lora;
  if (lora.rank != now->rank || lora.alpha != now->alpha || lora.rank_stabilized != now->rank_stabilized ||
      lora.dropout != now->dropout || memcmp(lora.sites, now->sites, sizeof lora.sites) != 0)
    return RF_FAIL(error, RAFTER_FAILED, "resume with the --lora of the run",
                   "the adapters are not those of the checkpoint (%s: expected its targets and "
                   "rank=%d,alpha=%g,dropout=%g%s, got rank=%d,alpha=%g,dropout=%g%s)",
                   folder, lora.rank, (double)lora.alpha, (double)lora.dropout,
                   lora.rank_stabilized ? ",rslora" : "", now->rank, (double)now->alpha, (double)now->dropout,
                   now->rank_stabilized ? ",rslora" : "");
  RF_TRY(rf_fill_weights(t->run, 0, t->plan, t->settings.weights_folder, t->settings.seed,
                         t->settings.progress, error));
  return rf_load_adapters(t->run, 0, t->plan, folder, error);
}

rf_status rf_checkpoint_load(rf_trainer *t, const char *folder, rf_error *error) {
  if (!rf_run_is_complete(folder))
    return RF_FAIL(error, RAFTER_FAILED, "resume from another checkpoint of the run",
                   "%s is not a complete checkpoint (DONE is missing)", folder);
  RF_TRY(rf_run_check(folder, true, error));
  RF_TRY(load_state(t, folder, error));
  RF_TRY(load_weights(t, folder, error));
  return rf_moments_load(t, folder, error);
}
