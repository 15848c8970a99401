/* optimize.c - the optimizer step: the squared norm of every gradient, the global norm, and AdamW
 * per parameter. With one microbatch and no clipping, a weight is updated during backward, after
 * the last op that writes its gradient or reads the weight. After the update, the memory of the
 * gradient is free. */
#include "graph/passes.h"

#include <string.h>

typedef struct states {
  int weight, master, m, v, gradient;
  int trained; /* the parameter's index among the trained parameters */
} states;

static int state_tensor(rf_graph *graph, int weight, const char *suffix, rf_class class, const char *reason) {
  rf_tensor tensor = graph->tensor[weight];
  const char *name = rf_graph_join(graph, tensor.name, suffix, "");
  int id = rf_graph_tensor(graph, name, class, rf_wide_dtype(tensor.dtype), tensor.rank, tensor.shape);
  graph->tensor[id].param = tensor.param;
  graph->tensor[id].persistent = true;
  graph->tensor[id].reason = reason;
  return id;
}

/* Creates masters, then first moments, then second moments, in the order of parameters. */
static states *make_states(rf_graph *graph, int *trained) {
  int count = graph->params.count, tensors = graph->tensor_count;
  states *state = rf_pool_alloc(graph->pool, (size_t)count * sizeof *state);
  for (int p = 0; p < count; p++) state[p] = (states){RF_NONE, RF_NONE, RF_NONE, RF_NONE, RF_NONE, 0};
  for (int t = 0; t < tensors; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    if (tensor->param < 0) continue;
    if (tensor->class == RF_CLASS_WEIGHT || tensor->class == RF_CLASS_ADAPTER)
      state[tensor->param].weight = t;
    if (tensor->class == RF_CLASS_GRADIENT) state[tensor->param].gradient = t;
  }
  for (int p = 0; p < count; p++) {
    if (state[p].gradient == RF_NONE) continue;
    state[p].trained = (*trained)++;
    bool narrow = graph->tensor[state[p].weight].dtype != graph->tensor[state[p].gradient].dtype;
    state[p].master = narrow ? state_tensor(graph, state[p].weight, "/master", RF_CLASS_MASTER,
                                            "the weight in f32, which the optimizer updates")
                             : state[p].weight;
  }
  for (int p = 0; p < count; p++)
    if (state[p].gradient != RF_NONE)
      state[p].m =
          state_tensor(graph, state[p].weight, "/m", RF_CLASS_MOMENT, "first moment of the optimizer");
  for (int p = 0; p < count; p++)
    if (state[p].gradient != RF_NONE)
      state[p].v =
          state_tensor(graph, state[p].weight, "/v", RF_CLASS_MOMENT, "second moment of the optimizer");
  return state;
}

static rf_op_place place_of(const rf_graph *graph, const states *state) {
  return (rf_op_place){graph->params.at[graph->tensor[state->weight].param].layer, RF_SUBLAYER_NONE};
}

static rf_status emit_norm(rf_graph *graph, rf_section section, const char *path, const states *state,
                           int sums, rf_error *error) {
  rf_attr attr = {.sums = {.element = state->trained}};
  const char *name = rf_graph_join(graph, path, graph->tensor[state->weight].name, "/norm_sq");
  graph->at = place_of(graph, state);
  return rf_graph_emit(graph, &RF_OP_NORM_SQ, name, section, RF_IDS(state->gradient), RF_IDS(sums), &attr,
                       error) < 0
             ? RAFTER_INVALID
             : RAFTER_OK;
}

static rf_status emit_update(rf_graph *graph, rf_section section, const char *path, const states *state,
                             int clip, const rf_build_options *options, rf_error *error) {
  const rf_param *param = &graph->params.at[graph->tensor[state->weight].param];
  rf_attr attr = {
      .adamw = {.beta1 = options->beta1,
                .beta2 = options->beta2,
                .eps = options->eps,
                .weight_decay = options->optimizer == RF_ADAMW && param->decays ? options->weight_decay : 0}};
  const char *name = rf_graph_join(graph, path, graph->tensor[state->weight].name, "/adamw");
  graph->at = place_of(graph, state);
  return rf_graph_emit(graph, &RF_OP_ADAMW, name, section,
                       RF_IDS(state->gradient, state->master, state->m, state->v, clip),
                       RF_IDS(state->master, state->m, state->v,
                              state->master == state->weight ? RF_NONE : state->weight),
                       &attr, error) < 0
             ? RAFTER_INVALID
             : RAFTER_OK;
}

static rf_status emit_clip(rf_graph *graph, int sums, int clip, const rf_build_options *options,
                           rf_error *error) {
  rf_attr attr = {.clip = {.limit = options->clip}};
  graph->at = (rf_op_place){RF_NONE, RF_SUBLAYER_NONE};
  return rf_graph_emit(graph, &RF_OP_CLIP, "step/end/clip", RF_SECTION_END, RF_IDS(sums), RF_IDS(clip), &attr,
                       error) < 0
             ? RAFTER_INVALID
             : RAFTER_OK;
}

/* The ops from number `first` on are in pairs. Moves pair i to the place after op after[i]. */
static void place_after(rf_graph *graph, int first, const int *pair, const int *after, int pairs) {
  int *next = rf_pool_alloc(graph->pool, (size_t)pairs * sizeof(int) + 1),
      *head = rf_pool_alloc(graph->pool, (size_t)first * sizeof(int) + 1);
  int *order = rf_pool_alloc(graph->pool, (size_t)graph->op_count * sizeof(int)), count = 0;
  for (int o = 0; o < first; o++) head[o] = RF_NONE;
  for (int i = pairs - 1; i >= 0; i--) {
    next[i] = head[after[i]];
    head[after[i]] = i;
  }
  for (int o = 0; o < first; o++) {
    order[count++] = o;
    for (int i = head[o]; i != RF_NONE; i = next[i]) {
      order[count++] = pair[i];
      order[count++] = pair[i] + 1;
    }
  }
  rf_graph_reorder(graph, order, count);
}

rf_status rf_pass_optimize(rf_graph *graph, const rf_build_options *options, rf_error *error) {
  int params = graph->params.count, first = graph->op_count, pairs = 0, trained = 0;
  /* a pipeline stage updates its weights after the last microbatch */
  bool staged = rf_mesh_extent(&options->mesh, RF_AXIS_PIPELINE) > 1;
  bool early = graph->accumulate == 1 && !(options->clip > 0) && !staged;
  rf_section section = early ? RF_SECTION_MICRO : RF_SECTION_END;
  const char *path = early ? "step/micro/" : "step/end/";
  rf_uses uses = rf_graph_uses(graph, graph->pool);
  states *state = make_states(graph, &trained);
  int64_t length[] = {trained}, two[] = {2};
  int sums = rf_graph_tensor(graph, "gradient/sums", RF_CLASS_ACTIVATION, RF_F64, 1, length);
  int clip = rf_graph_tensor(graph, "clip", RF_CLASS_IO, RF_F32, 1, two);
  graph->tensor[sums].role = RF_ROLE_GRADIENT_SUMS;
  graph->tensor[sums].reason = "squared norm of every gradient";
  graph->tensor[clip].output = true;
  graph->tensor[clip].reason = "read by the caller: the gradient's norm and scale";

  if (!early) {
    for (int p = 0; p < params; p++)
      if (state[p].gradient != RF_NONE) RF_TRY(emit_norm(graph, section, path, &state[p], sums, error));
    RF_TRY(emit_clip(graph, sums, clip, options, error));
    int scale = options->clip > 0 ? clip : RF_NONE;
    for (int p = 0; p < params; p++)
      if (state[p].gradient != RF_NONE)
        RF_TRY(emit_update(graph, section, path, &state[p], scale, options, error));
    return RAFTER_OK;
  }
  int *pair = rf_pool_alloc(graph->pool, (size_t)params * sizeof(int)),
      *after = rf_pool_alloc(graph->pool, (size_t)params * sizeof(int));
  for (int p = 0; p < params; p++) {
    if (state[p].gradient == RF_NONE) continue;
    int g = state[p].gradient, w = state[p].weight;
    after[pairs] = uses.writer[uses.writer_at[g + 1] - 1];
    if (uses.reader_at[w + 1] > uses.reader_at[w] && uses.reader[uses.reader_at[w + 1] - 1] > after[pairs])
      after[pairs] = uses.reader[uses.reader_at[w + 1] - 1];
    pair[pairs++] = graph->op_count;
    RF_TRY(emit_norm(graph, section, path, &state[p], sums, error));
    RF_TRY(emit_update(graph, section, path, &state[p], RF_NONE, options, error));
  }
  place_after(graph, first, pair, after, pairs);
  return emit_clip(graph, sums, clip, options, error);
}
