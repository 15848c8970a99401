/* adapt.c - LoRA adapters of linear layers: u = x W becomes y = u + scale (x A) B, and every reader
 * of u reads y instead. W is not trained. The matrices A and B are ordinary f32 parameters. A
 * generator can instead have slots for several adapters. The code that fills a slot multiplies B by
 * the scale of the adapter. */
#include "graph/passes.h"

#include <string.h>

typedef struct adapter {
  int a, b;  /* tensor ids; RF_NONE: this parameter has no adapter */
  int ranks; /* ids of the tensors of slots; RF_NONE: a and b are parameters */
  rf_lora_parts parts;
} adapter;

static int adapter_tensor(rf_graph *graph, int p, rf_dtype dtype) {
  const rf_param *param = &graph->params.at[p];
  int id = rf_graph_tensor(graph, param->name, RF_CLASS_ADAPTER, dtype, param->rank, param->shape);
  graph->tensor[id].param = p;
  graph->tensor[id].persistent = true;
  graph->tensor[id].reason = "adapter";
  return id;
}

/* Creates the tensors of all adapters. Returns an array that the adapted parameter indexes. */
static adapter *make_adapters(rf_graph *graph, rf_dtype dtype) {
  const rf_params *params = &graph->params;
  adapter *at = rf_pool_alloc(graph->pool, (size_t)params->base * sizeof *at);
  for (int p = 0; p < params->base; p++) at[p] = (adapter){.a = RF_NONE};
  for (int p = params->base; p + 1 < params->count; p += 2) {
    int of = params->at[p].adapts;
    at[of] = (adapter){adapter_tensor(graph, p, dtype), adapter_tensor(graph, p + 1, dtype), RF_NONE,
                       rf_lora_parts_of(&graph->model, &params->at[of])};
  }
  return at;
}

static int slots_tensor(rf_graph *graph, const rf_param *param, const char *leaf, rf_dtype dtype, int rank,
                        const int64_t *shape) {
  size_t stem = strlen(param->name) - strlen("weight");
  const char *name = rf_pool_format(graph->pool, "%.*s%s", (int)stem, param->name, leaf);
  int id = rf_graph_tensor(graph, name, RF_CLASS_ADAPTER, dtype, rank, shape);
  graph->tensor[id].persistent = true;
  graph->tensor[id].reason = "slots for adapters";
  return id;
}

/* Creates the tensors of all slots. Returns an array that is indexed like the array of
 * make_adapters. */
static rf_status make_slots(rf_graph *graph, const rf_build_options *o, adapter **out, rf_error *error) {
  const rf_params *params = &graph->params;
  const int64_t slots = o->adapter_slots;
  const rf_dtype dtype = rf_wide_dtype(o->dtype);
  adapter *at = *out = rf_pool_alloc(graph->pool, (size_t)params->base * sizeof *at);
  rf_model *model = rf_pool_alloc(graph->pool, sizeof *model);
  *model = graph->model;
  RF_TRY(rf_lora_all(&graph->model, o->adapter_rank, &model->lora, error));
  for (int p = 0; p < params->base; p++) {
    const rf_param *param = &params->at[p];
    const rf_lora_parts parts = rf_lora_parts_of(model, param);
    at[p] = (adapter){.a = RF_NONE};
    if (!parts.count) continue;
    int64_t a[] = {slots, param->shape[0], (int64_t)parts.count * parts.rank},
            b[] = {slots, parts.rank, rf_lora_joined(&parts, parts.count)}, ranks[] = {slots, parts.count};
    at[p] = (adapter){slots_tensor(graph, param, "slots_a", dtype, 3, a),
                      slots_tensor(graph, param, "slots_b", dtype, 3, b),
                      slots_tensor(graph, param, "slots_ranks", RF_I32, 2, ranks), parts};
  }
  return RAFTER_OK;
}

/* "step/micro/block.3/attn/qkv/fwd" and "lora_a" give "step/micro/block.3/attn/qkv/lora_a/fwd". */
static const char *op_name(rf_graph *graph, const rf_op *op, const char *part) {
  size_t stem = strlen(op->name) - strlen("/fwd");
  return rf_pool_format(graph->pool, "%.*s/%s/fwd", (int)stem, op->name, part);
}

/* Appends the op of the slots of one layer. */
static rf_status join_slots(rf_graph *graph, const rf_op *matmul, const adapter *at, int *y,
                            rf_error *error) {
  rf_attr attr = {.lora = {.scale = 1, .parts = at->parts}};
  graph->at = matmul->at;
  *y = rf_graph_make(
      graph, &RF_OP_LORA_SLOTS, op_name(graph, matmul, "lora"), matmul->section,
      RF_IDS(matmul->output[0], matmul->input[0], at->a, at->b, at->ranks, rf_graph_find(graph, "adapters")),
      &attr, error);
  return *y == RF_NONE ? RAFTER_INVALID : RAFTER_OK;
}

/* Appends the ops of one adapter. After this, readers of the layer's output u must read tensor
 * *y. */
static rf_status join(rf_graph *graph, const rf_op *matmul, const adapter *at, bool learns, int *y,
                      rf_error *error) {
  const rf_lora *lora = &graph->model.lora;
  if (at->ranks != RF_NONE) return join_slots(graph, matmul, at, y, error);
  graph->at = matmul->at;
  int x = matmul->input[0];
  if (learns && lora->dropout > 0) {
    const char *site = rf_pool_format(graph->pool, "%s/dropout", graph->tensor[at->a].name);
    rf_attr drop = {.dropout = {.rate = lora->dropout, .site = rf_name_key(site)}};
    x = rf_graph_make(graph, &RF_OP_DROPOUT, op_name(graph, matmul, "lora_dropout"), matmul->section,
                      RF_IDS(x), &drop, error);
    if (x == RF_NONE) return RAFTER_INVALID;
  }
  int h = rf_graph_emit(graph, &RF_OP_MATMUL, op_name(graph, matmul, "lora_a"), matmul->section,
                        RF_IDS(x, at->a), RF_IDS(RF_WANTED), NULL, error);
  if (h < 0) return RAFTER_INVALID;
  rf_attr attr = {.lora = {.scale = rf_lora_scale(lora), .parts = at->parts}};
  *y = rf_graph_make(graph, &RF_OP_LORA, op_name(graph, matmul, "lora"), matmul->section,
                     RF_IDS(matmul->output[0], graph->op[h].output[0], at->b), &attr, error);
  if (*y == RF_NONE) return RAFTER_INVALID;
  graph->tensor[*y].saved = graph->tensor[matmul->output[0]].saved;
  return RAFTER_OK;
}

rf_status rf_pass_adapt(rf_graph *graph, const rf_build_options *options, bool learns, rf_error *error) {
  bool slots = options->adapter_slots > 0 && options->job == RF_JOB_GENERATE;
  if (graph->params.adapter == 0 && !slots) return RAFTER_OK;
  int ops = graph->op_count, count = 0;
  adapter *adapters = NULL;
  if (slots) RF_TRY(make_slots(graph, options, &adapters, error));
  else adapters = make_adapters(graph, rf_wide_dtype(options->dtype));
  rf_graph_reserve(graph, 4 * graph->params.base, 3 * graph->params.base);
  int *order = rf_pool_alloc(graph->pool, (size_t)(ops + 3 * graph->params.base + 1) * sizeof *order);
  int *stands_for = rf_pool_alloc(graph->pool, (size_t)graph->tensor_count * sizeof *stands_for),
      tensors = graph->tensor_count;
  for (int t = 0; t < tensors; t++) stands_for[t] = t;
  for (int o = 0; o < ops; o++) {
    rf_op *op = &graph->op[o];
    for (int i = 0; i < op->input_count; i++)
      if (op->input[i] >= 0 && op->input[i] < tensors) op->input[i] = stands_for[op->input[i]];
    order[count++] = o;
    int p = op->def == &RF_OP_MATMUL ? graph->tensor[op->input[1]].param : RF_NONE;
    if (p < 0 || p >= graph->params.base || adapters[p].a == RF_NONE) continue;
    const rf_op matmul = *op; /* a copy, because join() may move the array of ops */
    int first = graph->op_count;
    RF_TRY(join(graph, &matmul, &adapters[p], learns, &stands_for[matmul.output[0]], error));
    for (int i = first; i < graph->op_count; i++) order[count++] = i;
  }
  rf_graph_reorder(graph, order, count);
  return RAFTER_OK;
}
