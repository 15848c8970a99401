/* load.c - fills the parameters of a plan from files, random numbers and adapters. */
#include "run/load.h"

#include "model/adapter.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { CHUNK = 1 << 13 }; /* number of values that are written at a time */

typedef struct target {
  rf_run *run;
  int plan;
  const rf_plan *of;
  rf_progress progress;
  /* number of parameter values that are loaded, and number of all values `all` 0: no reports. */
  int64_t done, all;
  int said; /* percentage that was last reported */
  /* if the host cannot address the arena: a packed parameter in the host's memory, until its
   * upload */
  void *packed;
  int packed_id;
} target;

static rf_status stopped(rf_error *error) {
  return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by a signal while the weights were loaded");
}

static void tell(target *t, int64_t values) {
  int part = t->all > 0 ? (int)(100 * t->done / t->all) : 0;
  t->done += values;
  if (t->all == 0 || part == t->said || part > 99) return;
  t->said = part;
  t->progress.report(t->progress.self, "loading", part / 100.0);
}

/* Writes values to the persistent tensors of a parameter: to its f32 master or adapter, and to its
 * rounded weight. */
static rf_status put_values(const target *t, int param, int64_t first, int64_t count, const float *values,
                            rf_error *error) {
  const rf_graph *graph = t->of->graph;
  for (int id = 0; id < graph->tensor_count; id++) {
    const rf_tensor *tensor = &graph->tensor[id];
    if (tensor->param != param || !tensor->persistent ||
        (tensor->class != RF_CLASS_WEIGHT && tensor->class != RF_CLASS_MASTER &&
         tensor->class != RF_CLASS_ADAPTER))
      continue;
    if (tensor->dtype == RF_PACKED || t->of->tensor[id].offset < 0) continue;
    if (tensor->dtype == RF_F32) {
      RF_TRY(rf_run_write(t->run, t->plan, id, first * 4, values, count * 4, error));
      continue;
    }
    rf_bf16 block[CHUNK];
    for (int64_t at = 0, n; at < count; at += n) {
      n = count - at < CHUNK ? count - at : CHUNK;
      for (int64_t i = 0; i < n; i++) block[i] = rf_f32_to_bf16(values[at + i]);
      RF_TRY(rf_run_write(t->run, t->plan, id, (first + at) * 2, block, n * 2, error));
    }
  }
  return RAFTER_OK;
}

static rf_status visit(void *context, int param, int64_t first, int64_t count, const float *values,
                       rf_error *error) {
  const target *t = context;
  tell(context, count);
  if (rf_flag_is_set(t->progress.stop)) return stopped(error);
  if (rf_run_hosts(t->run) > 1) rf_run_loaded(t->run, XXH3_64bits(values, (size_t)count * sizeof *values));
  return put_values(context, param, first, count, values, error);
}

/* Uploads a packed parameter if it was filled on the host. */
static rf_status flush(target *t, rf_error *error) {
  rf_status status = RAFTER_OK;
  if (t->packed)
    status = rf_run_write(t->run, t->plan, t->packed_id, 0, t->packed,
                          rf_tensor_bytes(&t->of->graph->tensor[t->packed_id]), error);
  free(t->packed);
  t->packed = NULL;
  return status;
}

/* Sets *memory to the memory that the caller fills with the packed parameter. The memory is in the
 * arena or on the host. If the parameter is not packed, sets *memory to NULL. */
static rf_status place(void *context, int param, const rf_panels **panels, void **memory, rf_error *error) {
  target *t = context;
  const rf_graph *graph = t->of->graph;
  *memory = NULL;
  if (rf_flag_is_set(t->progress.stop)) return stopped(error);
  RF_TRY(flush(t, error));
  for (int id = 0; id < graph->tensor_count && !*memory; id++) {
    const rf_tensor *tensor = &graph->tensor[id];
    if (tensor->param != param || tensor->dtype != RF_PACKED || t->of->tensor[id].offset < 0) continue;
    *panels = &tensor->panels;
    tell(t, graph->params.at[param].count);
    *memory = rf_run_tensor(t->run, t->plan, id);
    if (*memory) continue;
    t->packed_id = id;
    t->packed = *memory = calloc((size_t)rf_tensor_bytes(tensor), 1);
    if (!*memory) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while loading %s", tensor->name);
  }
  return RAFTER_OK;
}

static rf_status load_weights(rf_run *run, int plan, const rf_plan *of, const char *path,
                              rf_progress progress, rf_error *error) {
  target t = {.run = run, .plan = plan, .of = of, .progress = progress, .said = -1};
  int64_t bytes = 0, least = progress.least_bytes ? progress.least_bytes : RF_LOAD_LONG_BYTES;
  for (int id = 0; id < of->graph->tensor_count; id++) {
    const rf_tensor *tensor = &of->graph->tensor[id];
    if (tensor->persistent && tensor->param >= 0 &&
        (tensor->class == RF_CLASS_WEIGHT || tensor->class == RF_CLASS_MASTER))
      bytes += rf_tensor_bytes(tensor);
  }
  rf_params base = rf_params_of_base(&of->graph->params);
  for (int p = 0; p < base.count && progress.report && bytes > least; p++) t.all += base.at[p].count;
  rf_status status = rf_weights_load(path, &of->graph->model, &base, place, visit, &t, error);
  if (status == RAFTER_OK) status = flush(&t, error);
  free(t.packed);
  if (t.all > 0) progress.report(progress.self, "loading", 1);
  return status;
}

rf_status rf_load_weights(rf_run *run, int plan, const rf_plan *of, const char *path, rf_error *error) {
  return load_weights(run, plan, of, path, (rf_progress){0}, error);
}

static rf_status initialise(target t, uint64_t seed, int first, int end, rf_error *error) {
  const rf_plan *of = t.of;
  const rf_params *params = &of->graph->params;
  rf_status status = RAFTER_OK;
  for (int p = first; p < end; p++) {
    const rf_panels *panels = NULL;
    void *data;
    RF_GO(place(&t, p, &panels, &data, error));
    if (data) {
      RF_GO(rf_weights_initialise(&params->at[p], seed, panels, data, error));
      continue;
    }
    bool failed = false;
#pragma omp parallel for num_threads(of->options.threads) reduction(|| : failed)
    for (int64_t at = 0; at < params->at[p].count; at += CHUNK) {
      float values[CHUNK];
      int64_t left = params->at[p].count - at, count = left < CHUNK ? left : CHUNK;
      rf_param_init(&params->at[p], seed, at, count, values);
      failed = put_values(&t, p, at, count, values, NULL) != RAFTER_OK || failed;
    }
    if (failed) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s", params->at[p].name));
  }
  status = flush(&t, error);
done:
  free(t.packed);
  return status;
}

rf_status rf_load_adapters(rf_run *run, int plan, const rf_plan *of, const char *folder, rf_error *error) {
  target t = {.run = run, .plan = plan, .of = of};
  return rf_adapter_read(folder, &of->graph->model, &of->graph->params, visit, &t, error);
}

rf_status rf_fill_weights(rf_run *run, int plan, const rf_plan *of, const char *path, uint64_t seed,
                          rf_progress progress, rf_error *error) {
  const rf_params *params = &of->graph->params;
  const rf_model *model = &of->graph->model;
  const target fresh = {.run = run, .plan = plan, .of = of, .progress = {.stop = progress.stop}};
  if (path && *path) RF_TRY(load_weights(run, plan, of, path, progress, error));
  else RF_TRY(initialise(fresh, seed, 0, params->base, error));
  if (params->adapter > 0 && *model->lora.folder)
    return rf_load_adapters(run, plan, of, model->lora.folder, error);
  return initialise(fresh, seed, params->base, params->count, error);
}
