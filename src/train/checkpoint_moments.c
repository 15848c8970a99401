/* checkpoint_moments.c - the moments of the optimizer in a checkpoint. */
#include "train/checkpoint_parts.h"

#include "base/file.h"

#include <stdio.h>
#include <unistd.h>

enum { PATH_BYTES = 4400, BLOCK = 1 << 14 }; /* BLOCK: number of values that are copied at a time */

rf_moments rf_moments_list(const rf_trainer *t) {
  const rf_params *params = &t->plan->graph->params;
  rf_moments m = {.pool = rf_pool_new()};
  m.stored = rf_pool_alloc(m.pool, (2 * (size_t)params->count + 1) * sizeof *m.stored);
  m.tensor = rf_pool_alloc(m.pool, (2 * (size_t)params->count + 1) * sizeof *m.tensor);
  for (int i = 0; i < 2 * params->count; i++) {
    const rf_param *p = &params->at[i / 2];
    if (t->state[i / 2].m == RF_NONE) continue;
    m.tensor[m.count] = i % 2 ? t->state[i / 2].v : t->state[i / 2].m;
    m.stored[m.count++] = (rf_stored){.name = rf_pool_format(m.pool, "%s/%s", i % 2 ? "v" : "m", p->name),
                                      .dtype = RF_F32,
                                      .rank = p->rank,
                                      .shape = {p->shape[0], p->shape[1]},
                                      .count = p->count,
                                      .bytes = p->count * 4};
  }
  return m;
}

static rf_status save_moment(const rf_trainer *t, int tensor, int64_t count, rf_tensor_writer *writer,
                             rf_error *error) {
  float block[BLOCK];
  for (int64_t at = 0, n; at < count; at += n) {
    n = count - at < BLOCK ? count - at : BLOCK;
    RF_TRY(rf_run_read(t->run, 0, tensor, at * 4, block, n * 4, error));
    RF_TRY(rf_tensor_writer_put(writer, block, n, error));
  }
  return RAFTER_OK;
}

static rf_status load_moment(const rf_trainer *t, int tensor, const rf_stored *stored, rf_error *error) {
  float block[BLOCK];
  for (int64_t at = 0, n; at < stored->count; at += n) {
    n = stored->count - at < BLOCK ? stored->count - at : BLOCK;
    RF_TRY(rf_stored_read(stored, at, n, block, error));
    RF_TRY(rf_run_write(t->run, 0, tensor, at * 4, block, n * 4, error));
  }
  rf_map_unneeded(stored->data, (size_t)stored->bytes); /* each rank keeps only its own parts */
  return RAFTER_OK;
}

rf_status rf_moments_save(const rf_trainer *t, const char *folder, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_tensor_writer *writer = NULL;
  char path[PATH_BYTES];
  rf_moments m = rf_moments_list(t);
  snprintf(path, sizeof path, "%s/optimizer.safetensors", folder);
  RF_GO(rf_tensor_writer_open(path, m.stored, m.count, NULL, &writer, error));
  for (int i = 0; i < m.count; i++) RF_GO(save_moment(t, m.tensor[i], m.stored[i].count, writer, error));
  status = rf_tensor_writer_commit(writer, error);
  writer = NULL;
done:
  rf_tensor_writer_discard(writer);
  rf_pool_free(m.pool);
  return status;
}

rf_status rf_moments_load(const rf_trainer *t, const char *folder, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_tensor_file *file = NULL;
  char path[PATH_BYTES];
  rf_moments m = rf_moments_list(t);
  snprintf(path, sizeof path, "%s/optimizer.safetensors.index.json", folder);
  if (access(path, F_OK)) snprintf(path, sizeof path, "%s/optimizer.safetensors", folder);
  RF_GO(rf_tensor_file_open(path, &file, error));
  for (int i = 0; i < m.count; i++) {
    const rf_stored *want = &m.stored[i], *stored = rf_tensor_file_find(file, want->name);
    if (!stored || stored->count != want->count || stored->dtype != RF_F32)
      RF_GO(RF_FAIL(error, RAFTER_FAILED, "resume with the model of the checkpoint",
                    "%s does not hold %s (expected %lld values, got %lld)", path, want->name,
                    (long long)want->count, stored ? (long long)stored->count : 0));
    RF_GO(load_moment(t, m.tensor[i], stored, error));
  }
  status = rf_tensor_file_unchanged(file, error);
done:
  rf_tensor_file_close(file);
  rf_pool_free(m.pool);
  return status;
}
