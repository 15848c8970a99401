/* load.c - parameters from files, initialisers and adapters into the tensors of a bound plan. */
#include "run/load.h"

#include "model/adapter.h"

#include <string.h>

typedef struct target {
  rf_run *run;
  int plan;
  const rf_plan *of;
  rf_progress progress;
  int64_t done, all; /* values of the parameters; all 0: nobody asks */
  int said;          /* hundredths */
} target;

static void tell(target *t, int64_t values) {
  int part = t->all > 0 ? (int)(100 * t->done / t->all) : 0;
  t->done += values;
  if (t->all == 0 || part == t->said || part > 99) return;
  t->said = part;
  t->progress.report(t->progress.self, "loading", part / 100.0);
}

/* Writes values into every persistent tensor that holds this parameter: weight (in its dtype)
 * and master. */
static void put_values(const target *t, int param, int64_t first, int64_t count, const float *values) {
  const rf_graph *graph = t->of->graph;
  for (int id = 0; id < graph->tensor_count; id++) {
    const rf_tensor *tensor = &graph->tensor[id];
    if (tensor->param != param || !tensor->persistent ||
        (tensor->class != RF_CLASS_WEIGHT && tensor->class != RF_CLASS_MASTER &&
         tensor->class != RF_CLASS_ADAPTER))
      continue;
    if (tensor->dtype == RF_PACKED) continue;
    void *at = rf_run_tensor(t->run, t->plan, id);
    if (!at) continue;
    if (tensor->dtype == RF_F32) memcpy((float *)at + first, values, (size_t)count * sizeof *values);
    else
      for (int64_t i = 0; i < count; i++) ((rf_bf16 *)at)[first + i] = rf_f32_to_bf16(values[i]);
  }
}

static rf_status visit(void *context, int param, int64_t first, int64_t count, const float *values,
                       rf_error *error) {
  (void)error;
  tell(context, count);
  put_values(context, param, first, count, values);
  return RAFTER_OK;
}

/* Where a packed parameter goes; NULL for one that is not packed. */
static void *place(void *context, int param, const rf_panels **panels) {
  target *t = context;
  const rf_graph *graph = t->of->graph;
  for (int id = 0; id < graph->tensor_count; id++) {
    const rf_tensor *tensor = &graph->tensor[id];
    if (tensor->param != param || tensor->dtype != RF_PACKED) continue;
    *panels = &tensor->panels;
    tell(t, graph->params.at[param].count);
    return rf_run_tensor(t->run, t->plan, id);
  }
  return NULL;
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
  if (t.all > 0) progress.report(progress.self, "loading", 1);
  return status;
}

rf_status rf_load_weights(rf_run *run, int plan, const rf_plan *of, const char *path, rf_error *error) {
  return load_weights(run, plan, of, path, (rf_progress){0}, error);
}

static void initialise(rf_run *run, int plan, const rf_plan *of, uint64_t seed, int first, int end) {
  enum { CHUNK = 1 << 13 };
  const rf_params *params = &of->graph->params;
  target t = {.run = run, .plan = plan, .of = of};
  for (int p = first; p < end; p++) {
    const rf_panels *panels = NULL;
    void *data = place(&t, p, &panels);
    if (data && rf_weights_initialise(&params->at[p], seed, panels, data, NULL) != RAFTER_OK) rf_must(NULL);
    if (data) continue;
#pragma omp parallel for num_threads(of->options.threads)
    for (int64_t at = 0; at < params->at[p].count; at += CHUNK) {
      float values[CHUNK];
      int64_t left = params->at[p].count - at, count = left < CHUNK ? left : CHUNK;
      rf_param_init(&params->at[p], seed, at, count, values);
      put_values(&t, p, at, count, values);
    }
  }
}

rf_status rf_load_adapters(rf_run *run, int plan, const rf_plan *of, const char *folder, rf_error *error) {
  target t = {.run = run, .plan = plan, .of = of};
  return rf_adapter_read(folder, &of->graph->model, &of->graph->params, visit, &t, error);
}

rf_status rf_fill_weights(rf_run *run, int plan, const rf_plan *of, const char *path, uint64_t seed,
                          rf_progress progress, rf_error *error) {
  const rf_params *params = &of->graph->params;
  const rf_model *model = &of->graph->model;
  if (path && *path) RF_TRY(load_weights(run, plan, of, path, progress, error));
  else initialise(run, plan, of, seed, 0, params->base);
  if (params->adapter > 0 && *model->lora.folder)
    return rf_load_adapters(run, plan, of, model->lora.folder, error);
  initialise(run, plan, of, seed, params->base, params->count);
  return RAFTER_OK;
}
