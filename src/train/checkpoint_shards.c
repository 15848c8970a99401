/* checkpoint_shards.c - the weights and moments of a checkpoint, which all ranks write at the same
 * time. Each tensor is whole in the file of one rank. The ranks go through the files in rounds. In
 * a round, each rank gets the next block of its file from the ranks that have the parts, and writes
 * the block. So a rank holds only its own parts and one block. */
#include "train/checkpoint_parts.h"

#include "formats/shards.h"
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4400, BLOCK_VALUES = 1 << 20, ROUNDS = 64 };

/* The files of a checkpoint: each rank has one. */
typedef struct shards {
  rf_trainer *trainer;
  const char *folder;
  int hosts, mine, files; /* number of files; a rank whose number is `files` or more has no file */
  /* Finds the next block of a rank's file. Returns false if the file is complete. */
  bool (*next)(struct shards *shards, int host, rf_run_block *block);
  /* Writes the block that this rank got last. */
  rf_status (*put)(struct shards *shards, const float *values, rf_error *error);
  /* Completes the file of this rank. Rank 0 also writes the index. */
  rf_status (*end)(struct shards *shards, rf_run_hash *hashed, rf_error *error);
  int64_t room; /* number of values of the largest block */
  float *values;
  rf_run_block *block; /* (hosts) */
  /* weights */
  rf_weights_writer *weights;
  rf_weights_cursor *cursor; /* (hosts) */
  rf_weights_block last;     /* the block that this rank got last */
  /* moments */
  rf_moments moments;
  rf_tensor_writer *out;
  int *file;       /* (moments) */
  int *moment;     /* for each host: number of the moment that has the next block */
  int64_t *at;     /* (hosts): its first value */
  int64_t written; /* number of values of the block that this rank got last */
} shards;

static shards shards_of(rf_trainer *t, const char *folder) {
  return (shards){.trainer = t, .folder = folder, .hosts = rf_run_hosts(t->run), .mine = rf_run_host(t->run)};
}

static rf_status no_memory(const shards *s, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while saving %s", s->folder);
}

static rf_status make_room(shards *s, rf_error *error) {
  s->block = calloc((size_t)s->hosts, sizeof *s->block);
  s->values = malloc((size_t)s->room * sizeof *s->values);
  return s->block && s->values ? RAFTER_OK : no_memory(s, error);
}

/* Writes all files. If this rank cannot write (status), this rank still sends its parts to the
 * other ranks, until all ranks know of the failure. Returns RAFTER_OK also if another rank has
 * failed, because rf_run_settle reports that failure. */
static rf_status exchange(shards *s, rf_status status, bool *complete, rf_error *error) {
  rf_run *run = s->trainer->run;
  *complete = true;
  for (int64_t round = 0;; round++) {
    bool any = false;
    for (int host = 0; host < s->hosts; host++) {
      s->block[host].rows = 0;
      any |= s->next(s, host, &s->block[host]);
    }
    if (!any) return status;
    RF_TRY(rf_run_gather(run, 0, s->block, s->values, error));
    if (s->block[s->mine].rows > 0 && status == RAFTER_OK) status = s->put(s, s->values, error);
    if (round % ROUNDS) continue;
    uint32_t failed = status != RAFTER_OK;
    RF_TRY(rf_run_agree(run, &failed, status == RAFTER_OK ? error : NULL));
    *complete = !failed;
    if (failed) return status;
  }
}

/* `status`: RAFTER_OK if this rank is ready to write. */
static rf_status write_files(shards *s, rf_status status, rf_run_hash *hashed, rf_error *error) {
  bool complete;
  if (status == RAFTER_OK) status = make_room(s, error);
  status = rf_run_settle(s->trainer->run, status, error);
  if (status == RAFTER_OK) {
    status = exchange(s, status, &complete, error);
    if (status == RAFTER_OK && complete) status = s->end(s, hashed, error);
    status = rf_run_settle(s->trainer->run, status, error);
  }
  free(s->block);
  free(s->values);
  return status;
}

/* ---- weights --------------------------------------------------------------------------------- */

static bool next_weights(shards *s, int host, rf_run_block *block) {
  rf_weights_block of;
  if (!rf_weights_writer_next(s->weights, host, &s->cursor[host], &of)) return false;
  *block = (rf_run_block){.tensor = s->trainer->state[of.param].master,
                          .first = of.first,
                          .rows = of.rows,
                          .stride = of.stride,
                          .count = of.count};
  if (host == s->mine) s->last = of;
  return true;
}

static rf_status put_weights(shards *s, const float *values, rf_error *error) {
  return rf_weights_writer_put_block(s->weights, &s->last, values, error);
}

static rf_status end_weights(shards *s, rf_run_hash *hashed, rf_error *error) {
  char path[PATH_BYTES], name[RF_SHARD_NAME];
  if (s->mine < s->files) {
    rf_shard_name("model", s->mine, s->files, name);
    RF_TRY(rf_weights_writer_commit_file(s->weights, error));
    RF_TRY(rf_run_hash_file(s->folder, name, hashed, error));
  }
  if (s->mine > 0) return RAFTER_OK;
  RF_TRY(rf_weights_writer_index(s->weights, error));
  snprintf(path, sizeof path, "%s/config.json", s->folder);
  return rf_model_config_write(&s->trainer->settings.model, RF_F32, path, error);
}

static rf_status open_weights(shards *s, rf_error *error) {
  const rf_weights_form form = {.dtype = RF_F32, .shards = s->hosts};
  const rf_trainer *t = s->trainer;
  s->next = next_weights;
  s->put = put_weights;
  s->end = end_weights;
  s->cursor = calloc((size_t)s->hosts, sizeof *s->cursor);
  if (!s->cursor) return no_memory(s, error);
  RF_TRY(rf_weights_writer_open(s->folder, &t->settings.model, &t->plan->graph->params, &form, &s->weights,
                                error));
  s->room = rf_weights_writer_room(s->weights);
  s->files = rf_weights_writer_files(s->weights);
  return s->mine < s->files ? rf_weights_writer_begin_file(s->weights, s->mine, error) : RAFTER_OK;
}

static rf_status save_weights(rf_trainer *t, const char *folder, rf_run_hash *hashed, rf_error *error) {
  shards s = shards_of(t, folder);
  rf_status status = open_weights(&s, error);
  status = write_files(&s, status, hashed, error);
  rf_weights_writer_discard(s.weights);
  free(s.cursor);
  return status;
}

/* ---- moments --------------------------------------------------------------------------------- */

static bool next_moments(shards *s, int host, rf_run_block *block) {
  const rf_moments *m = &s->moments;
  int *i = &s->moment[host];
  while (*i < m->count && (s->file[*i] != host || s->at[host] == m->stored[*i].count)) {
    ++*i;
    s->at[host] = 0;
  }
  if (*i == m->count) return false;
  int64_t left = m->stored[*i].count - s->at[host], count = left < BLOCK_VALUES ? left : BLOCK_VALUES;
  *block = (rf_run_block){
      .tensor = m->tensor[*i], .first = s->at[host], .rows = 1, .stride = count, .count = count};
  s->at[host] += count;
  if (host == s->mine) s->written = count;
  return true;
}

static rf_status put_moments(shards *s, const float *values, rf_error *error) {
  return rf_tensor_writer_put(s->out, values, s->written, error);
}

static rf_status end_moments(shards *s, rf_run_hash *hashed, rf_error *error) {
  const rf_moments *m = &s->moments;
  char name[RF_SHARD_NAME];
  int64_t bytes = 0;
  if (s->mine < s->files) {
    rf_tensor_writer *out = s->out;
    s->out = NULL;
    rf_shard_name("optimizer", s->mine, s->files, name);
    RF_TRY(rf_tensor_writer_commit(out, error));
    RF_TRY(rf_run_hash_file(s->folder, name, hashed, error));
  }
  if (s->mine > 0 || s->files == 1) return RAFTER_OK;
  rf_shard_index *index = rf_shard_index_new("optimizer", s->files);
  for (int i = 0; i < m->count; i++) {
    rf_shard_index_add(index, m->stored[i].name, s->file[i]);
    bytes += m->stored[i].bytes;
  }
  return rf_shard_index_write(index, s->folder, bytes, error);
}

/* Opens the file of this rank, and chooses the moments that belong to the file. */
static rf_status open_file(shards *s, rf_error *error) {
  const rf_moments *m = &s->moments;
  char name[RF_SHARD_NAME], path[PATH_BYTES];
  int count = 0;
  rf_stored *own = rf_pool_alloc(m->pool, ((size_t)m->count + 1) * sizeof *own);
  for (int i = 0; i < m->count; i++)
    if (s->file[i] == s->mine) own[count++] = m->stored[i];
  rf_shard_name("optimizer", s->mine, s->files, name);
  snprintf(path, sizeof path, "%.4300s/%s", s->folder, name);
  return rf_tensor_writer_open(path, own, count, NULL, &s->out, error);
}

static rf_status open_moments(shards *s, rf_error *error) {
  rf_pool *pool = s->moments.pool;
  s->next = next_moments;
  s->put = put_moments;
  s->end = end_moments;
  s->room = BLOCK_VALUES;
  s->file = rf_pool_alloc(pool, ((size_t)s->moments.count + 1) * sizeof *s->file);
  s->moment = rf_pool_alloc(pool, (size_t)s->hosts * sizeof *s->moment);
  s->at = rf_pool_alloc(pool, (size_t)s->hosts * sizeof *s->at);
  int64_t *bytes = rf_pool_alloc(pool, ((size_t)s->moments.count + 1) * sizeof *bytes);
  for (int i = 0; i < s->moments.count; i++) bytes[i] = s->moments.stored[i].bytes;
  s->files = rf_shard_files(bytes, s->moments.count, s->hosts, s->file);
  return s->mine < s->files ? open_file(s, error) : RAFTER_OK;
}

static rf_status save_moments(rf_trainer *t, const char *folder, rf_run_hash *hashed, rf_error *error) {
  shards s = shards_of(t, folder);
  s.moments = rf_moments_list(t);
  rf_status status = open_moments(&s, error);
  status = write_files(&s, status, hashed, error);
  rf_tensor_writer_discard(s.out);
  rf_pool_free(s.moments.pool);
  return status;
}

rf_status rf_shards_save(rf_trainer *t, const char *folder, rf_run_hash hashed[RF_SHARD_KINDS],
                         rf_error *error) {
  RF_TRY(save_weights(t, folder, &hashed[0], error));
  return save_moments(t, folder, &hashed[1], error);
}
