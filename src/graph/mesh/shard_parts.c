/* shard_parts.c - ops that become several ops on a mesh: the head with a sharded vocabulary, and
 * attention with sharded tokens. */
#include "graph/mesh/shard_pass.h"

#include <string.h>

/* Makes tensor `id` the sharded version of an output. The output is number `slot` of `op`, which is
 * an op of the unsharded graph. */
static void made_part(rf_sharder *s, const rf_op *op, int slot, int id, rf_spec spec) {
  int t = op->output[slot];
  const rf_tensor *old = &s->whole.tensor[t];
  rf_tensor *made = &s->graph->tensor[id];
  made->spec = spec;
  made->reason = old->reason;
  made->saved = old->saved;
  made->name = old->name;
  made->output = old->output;
  if (old->output) made->class = old->class;
  s->at[t] = (rf_sharded_tensor){id, spec};
}

/* Expands a head with a sharded vocabulary. The op head_part computes on each chip with the chip's
 * own tokens of the vocabulary, and head_merge combines the results of all chips. */
rf_status rf_expand_head(rf_sharder *s, const rf_op *op, bool *done) {
  rf_graph *graph = s->graph;
  bool score = op->def == &RF_OP_HEAD_SCORE;
  *done =
      op->attr.head.top == 0 && rf_sharder_input(s, op->input[1]).split[op->attr.head.transpose ? 0 : 1] != 0;
  if (!*done) return RAFTER_OK;
  rf_sharding r;
  int inputs[RF_MAX_INPUTS];
  const char *path = rf_pool_format(graph->pool, "%.*s", (int)(strlen(op->name) - strlen("/fwd")), op->name);
  RF_TRY(rf_sharder_ask(s, op, &RF_OP_HEAD_PART, &r, inputs));
  r.attr.head.top = 0;
  r.attr.head.gradient = RF_F32; /* head_part has no gradient */
  int id = rf_sharder_emit(s, op, &RF_OP_HEAD_PART, rf_graph_join(graph, path, "/part", ""),
                           (rf_slots){inputs, 4}, RF_ALL_NEW, &r.attr);
  if (id < 0) return RAFTER_INVALID;
  rf_exchange x = {.def = &RF_OP_ALL_GATHER,
                   .from = graph->op[id].output[0],
                   .to_id = RF_WANTED,
                   .axes = r.attr.axes,
                   .dim = 1,
                   .label = "",
                   .spec = r.out[0],
                   .class = RF_CLASS_COLLECTIVE};
  int parts = rf_sharder_exchange(s, &x, (rf_origin){path, op->section, false});
  if (parts == RF_NONE) return RAFTER_FAILED;
  rf_slots outputs = score ? RF_IDS(RF_NONE, RF_NONE, RF_NONE, RF_WANTED)
                           : RF_IDS(RF_WANTED, RF_WANTED, op->output[2] == RF_NONE ? RF_NONE : RF_WANTED);
  id = rf_sharder_emit(s, op, &RF_OP_HEAD_MERGE, rf_graph_join(graph, path, "/merge", ""),
                       RF_IDS(parts, inputs[3]), outputs, NULL);
  if (id < 0) return RAFTER_INVALID;
  rf_op merge = graph->op[id];
  for (int i = 0; i < (score ? 1 : 3); i++)
    if (op->output[i] >= 0) made_part(s, op, i, merge.output[score ? 3 : i], r.out[0]);
  return RAFTER_OK;
}

static bool shards_context(const rf_sharder *s) { return (s->rows & RF_AXIS_BIT(RF_AXIS_CONTEXT)) != 0; }

/* Expands attention whose tokens are sharded along the axis context. Each chip keeps its queries
 * and gathers all keys and values. In the backward pass, each chip gets the sum of the gradients of
 * its own keys and values. */
rf_status rf_expand_attention(rf_sharder *s, const rf_op *op, bool *done) {
  rf_graph *graph = s->graph;
  rf_axes axes = RF_AXIS_BIT(RF_AXIS_CONTEXT);
  rf_sharding r;
  int in[RF_MAX_INPUTS];
  *done = shards_context(s);
  if (!*done) return RAFTER_OK;
  RF_TRY(rf_sharder_ask(s, op, op->def, &r, in));
  r.attr.axes = axes;
  r.attr.group = (int32_t)rf_mesh_size(s->mesh, axes);
  int id = rf_sharder_emit(s, op, &RF_OP_KV_ROWS, rf_graph_join(graph, op->name, "/kv_rows", ""),
                           RF_IDS(in[0]), RF_ALL_NEW, &r.attr);
  if (id < 0) return RAFTER_INVALID;
  rf_spec mine = rf_spec_of(r.in[0].split[0], r.in[0].split[1], RF_FORM_BLOCKS), all = mine;
  all.split[0] &= (rf_axes)~axes;
  graph->tensor[graph->op[id].output[0]].spec = mine;
  int kv = rf_sharder_convert(s, graph->op[id].output[0], mine, all, rf_origin_of(op), "kv", NULL,
                              RF_CLASS_COLLECTIVE);
  if (kv == RF_NONE) return RAFTER_FAILED;
  if (op->def == &RF_OP_ATTENTION) {
    id = rf_sharder_emit(s, op, &RF_OP_ATTENTION_PART, op->name, RF_IDS(in[0], kv, in[1]), RF_ALL_NEW,
                         &r.attr);
    if (id < 0) return RAFTER_INVALID;
    for (int i = 0; i < 2; i++) made_part(s, op, i, graph->op[id].output[i], r.out[i]);
    return RAFTER_OK;
  }
  id = rf_sharder_emit(s, op, &RF_OP_ATTENTION_PART_BWD, op->name,
                       RF_IDS(in[0], kv, in[1], in[2], in[3], in[4]), RF_ALL_NEW, &r.attr);
  if (id < 0) return RAFTER_INVALID;
  int dq = graph->op[id].output[0], dkv = graph->op[id].output[1];
  graph->tensor[dkv].class = RF_CLASS_COLLECTIVE;
  all.partial = axes;
  dkv = rf_sharder_convert(s, dkv, all, mine, rf_origin_of(op), "dkv", NULL, RF_CLASS_ACTIVATION);
  if (dkv == RF_NONE) return RAFTER_FAILED;
  r.attr.axes = 0;
  r.attr.group = 0;
  id = rf_sharder_emit(s, op, &RF_OP_KV_JOIN, rf_graph_join(graph, op->name, "/kv_join", ""), RF_IDS(dq, dkv),
                       RF_ALL_NEW, &r.attr);
  if (id < 0) return RAFTER_INVALID;
  made_part(s, op, 0, graph->op[id].output[0], r.out[0]);
  return RAFTER_OK;
}

/* Expands attention over a cache that is sharded along the axis context. For all rows, every chip
 * computes attention over the positions of its own cache. The chip that owns a row merges the
 * results (Dao et al. 2023; Helix, 2025). */
rf_status rf_expand_cached(rf_sharder *s, const rf_op *op, bool *done) {
  rf_graph *graph = s->graph;
  rf_axes axes = RF_AXIS_BIT(RF_AXIS_CONTEXT);
  rf_sharding r;
  int inputs[RF_MAX_INPUTS], outputs[RF_MAX_OUTPUTS], part[2], lse = op->output_count - 1;
  *done = shards_context(s);
  if (!*done) return RAFTER_OK;
  RF_TRY(rf_sharder_ask(s, op, op->def, &r, inputs));
  for (int i = 0; i <= lse; i++)
    outputs[i] = i == 0 || i == lse ? RF_WANTED : op->output[i] < 0 ? RF_NONE : s->at[op->output[i]].id;
  r.attr.axes = axes;
  r.attr.group = (int32_t)rf_mesh_size(s->mesh, axes);
  int id = rf_sharder_emit(s, op, op->def, op->name, (rf_slots){inputs, op->input_count},
                           (rf_slots){outputs, lse + 1}, &r.attr);
  if (id < 0) return RAFTER_INVALID;
  for (int i = 0; i < 2; i++) {
    int made = graph->op[id].output[i == 0 ? 0 : lse];
    graph->tensor[made].class = RF_CLASS_COLLECTIVE;
    graph->tensor[made].name = rf_graph_join(graph, graph->tensor[made].name, "/part", "");
    rf_exchange x = {.def = &RF_OP_ALL_TO_ALL,
                     .from = made,
                     .to_id = RF_WANTED,
                     .axes = axes,
                     .dim = 1,
                     .to = 0,
                     .label = i == 0 ? "ctx" : "lse",
                     .class = RF_CLASS_COLLECTIVE};
    part[i] = rf_sharder_exchange(s, &x, rf_origin_of(op));
    if (part[i] == RF_NONE) return RAFTER_FAILED;
  }
  id = rf_sharder_emit(s, op, &RF_OP_ATTENTION_MERGE, rf_graph_join(graph, op->name, "/merge", ""),
                       (rf_slots){part, 2}, RF_ALL_NEW, &r.attr);
  if (id < 0) return RAFTER_INVALID;
  graph->op[id].attr.axes = 0;
  r.out[0].split[0] |= axes;
  made_part(s, op, 0, graph->op[id].output[0], r.out[0]);
  return RAFTER_OK;
}
