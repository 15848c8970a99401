/* shard_parts.c - ops that become several ops on a mesh: the head with a sharded vocabulary, and
 * attention with sharded tokens. */
#include "graph/mesh/shard_pass.h"

#include <string.h>

/* The head with a sharded vocabulary: each chip computes head_part on its own tokens of the
 * vocabulary, and head_merge combines the parts of all chips. */
rf_status rf_sharder_head(rf_sharder *s, const rf_op *op) {
  rf_graph *graph = s->graph;
  bool score = op->def == &RF_OP_HEAD_SCORE;
  rf_sharding r = {.graph = &s->whole, .op = op, .mesh = s->mesh, .attr = op->attr};
  int inputs[4], parts, id;
  const char *path = rf_pool_format(graph->pool, "%.*s", (int)(strlen(op->name) - strlen("/fwd")), op->name);
  for (int i = 0; i < 4; i++)
    if (op->input[i] >= 0) r.in[i] = rf_sharder_input(s, op->input[i]);
  RF_TRY(RF_OP_HEAD_PART.shard(&r, s->error));
  r.attr.head.top = 0;
  for (int i = 0; i < 4; i++) {
    inputs[i] = RF_NONE;
    if (op->input[i] >= 0) RF_TRY(rf_sharder_obtain(s, op, i, &r.in[i], &inputs[i]));
  }
  id = rf_graph_emit(graph, &RF_OP_HEAD_PART, rf_graph_join(graph, path, "/part", ""), op->section, inputs, 4,
                     (const int[]){RF_WANTED}, 1, &r.attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  rf_exchange x = {.def = &RF_OP_ALL_GATHER,
                   .from = graph->op[id].output[0],
                   .to_id = RF_WANTED,
                   .axes = r.attr.axes,
                   .dim = 1,
                   .label = "",
                   .spec = r.out[0],
                   .class = RF_CLASS_COLLECTIVE};
  parts = rf_sharder_exchange(s, &x, path, op->section, false);
  if (parts == RF_NONE) return RAFTER_FAILED;
  int outputs[] = {score ? RF_NONE : RF_WANTED, score ? RF_NONE : RF_WANTED,
                   score || op->output[2] == RF_NONE ? RF_NONE : RF_WANTED, score ? RF_WANTED : RF_NONE};
  id = rf_graph_emit(graph, &RF_OP_HEAD_MERGE, rf_graph_join(graph, path, "/merge", ""), op->section,
                     (const int[]){parts, inputs[3]}, 2, outputs, 4, NULL, s->error);
  if (id < 0) return RAFTER_INVALID;
  rf_op merge = graph->op[id];
  for (int i = 0; i < (score ? 1 : 3); i++) {
    int t = op->output[i], made = merge.output[score ? 3 : i];
    if (t < 0 || made < 0) continue;
    graph->tensor[made].spec = r.out[0];
    graph->tensor[made].output = s->whole.tensor[t].output;
    graph->tensor[made].reason = s->whole.tensor[t].reason;
    graph->tensor[made].name = s->whole.tensor[t].name;
    graph->tensor[made].class = s->whole.tensor[t].class;
    s->at[t] = (rf_place){made, r.out[0]};
  }
  return RAFTER_OK;
}

/* Makes tensor `id` the result of the op's output `slot`. */
static rf_status made_part(rf_sharder *s, const rf_op *op, int slot, int id, rf_spec spec) {
  int t = op->output[slot];
  s->graph->tensor[id].spec = spec;
  s->graph->tensor[id].reason = s->whole.tensor[t].reason;
  s->graph->tensor[id].saved = s->whole.tensor[t].saved;
  s->graph->tensor[id].name = s->whole.tensor[t].name;
  s->at[t] = (rf_place){id, spec};
  return RAFTER_OK;
}

/* Attention with tokens sharded along context. Queries stay on their chip, keys and values of all
 * chips are gathered, and their gradients are reduced to the chips that own them. */
static rf_status shard_text(rf_sharder *s, const rf_op *op) {
  rf_graph *graph = s->graph;
  bool backward = op->def == &RF_OP_ATTENTION_BWD;
  rf_axes axes = RF_AXIS_BIT(RF_AXIS_CONTEXT);
  rf_sharding r = {.graph = &s->whole, .op = op, .mesh = s->mesh, .attr = op->attr};
  int inputs[RF_MAX_INPUTS], id;
  for (int i = 0; i < op->input_count; i++) r.in[i] = rf_sharder_input(s, op->input[i]);
  RF_TRY(op->def->shard(&r, s->error));
  for (int i = 0; i < op->input_count; i++) RF_TRY(rf_sharder_obtain(s, op, i, &r.in[i], &inputs[i]));
  r.attr.axes = axes;
  r.attr.group = (int32_t)rf_mesh_size(s->mesh, axes);
  id = rf_graph_emit(graph, &RF_OP_KV_ROWS, rf_graph_join(graph, op->name, "/kv_rows", ""), op->section,
                     inputs, 1, (const int[]){RF_WANTED}, 1, &r.attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  graph->op[id].backward = backward;
  rf_spec mine = rf_spec_of(r.in[0].split[0], r.in[0].split[1], RF_FORM_BLOCKS), all = mine;
  all.split[0] &= (rf_axes)~axes;
  graph->tensor[graph->op[id].output[0]].spec = mine;
  int kv = rf_sharder_convert(s, graph->op[id].output[0], mine, all, op->name, "kv", op->section, backward,
                              NULL, RF_CLASS_COLLECTIVE);
  if (kv == RF_NONE) return RAFTER_FAILED;
  if (!backward) {
    id = rf_graph_emit(graph, &RF_OP_ATTENTION_PART, op->name, op->section,
                       (const int[]){inputs[0], kv, inputs[1]}, 3, (const int[]){RF_WANTED, RF_WANTED}, 2,
                       &r.attr, s->error);
    if (id < 0) return RAFTER_INVALID;
    int made[] = {graph->op[id].output[0], graph->op[id].output[1]};
    RF_TRY(made_part(s, op, 0, made[0], r.out[0]));
    return made_part(s, op, 1, made[1], r.out[1]);
  }
  id = rf_graph_emit(graph, &RF_OP_ATTENTION_PART_BWD, op->name, op->section,
                     (const int[]){inputs[0], kv, inputs[1], inputs[2], inputs[3], inputs[4]}, 6,
                     (const int[]){RF_WANTED, RF_WANTED}, 2, &r.attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  graph->op[id].backward = true;
  int dq = graph->op[id].output[0], dkv = graph->op[id].output[1];
  graph->tensor[dkv].class = RF_CLASS_COLLECTIVE;
  all.partial = axes;
  dkv = rf_sharder_convert(s, dkv, all, mine, op->name, "dkv", op->section, true, NULL, RF_CLASS_ACTIVATION);
  if (dkv == RF_NONE) return RAFTER_FAILED;
  r.attr.axes = 0;
  r.attr.group = 0;
  id = rf_graph_emit(graph, &RF_OP_KV_JOIN, rf_graph_join(graph, op->name, "/kv_join", ""), op->section,
                     (const int[]){dq, dkv}, 2, (const int[]){RF_WANTED}, 1, &r.attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  graph->op[id].backward = true;
  return made_part(s, op, 0, graph->op[id].output[0], r.out[0]);
}

/* Attention over a cache that is sharded along context. Every chip attends with all rows over its
 * own positions; the chip that owns a row merges the parts (Dao et al. 2023; over chips: Bhatia et
 * al. 2025, Helix). */
static rf_status shard_cached(rf_sharder *s, const rf_op *op) {
  rf_graph *graph = s->graph;
  rf_axes axes = RF_AXIS_BIT(RF_AXIS_CONTEXT);
  rf_sharding r = {.graph = &s->whole, .op = op, .mesh = s->mesh, .attr = op->attr};
  int inputs[RF_MAX_INPUTS], outputs[RF_MAX_OUTPUTS], part[2], id,
      last = op->def == &RF_OP_ATTENTION_KV ? 3 : 2;
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] >= 0) r.in[i] = rf_sharder_input(s, op->input[i]);
  RF_TRY(op->def->shard(&r, s->error));
  for (int i = 0; i < op->input_count; i++) {
    inputs[i] = RF_NONE;
    if (op->input[i] >= 0) RF_TRY(rf_sharder_obtain(s, op, i, &r.in[i], &inputs[i]));
  }
  for (int i = 0; i <= last; i++)
    outputs[i] = i == 0 || i == last ? RF_WANTED : op->output[i] < 0 ? RF_NONE : s->at[op->output[i]].id;
  r.attr.axes = axes;
  r.attr.group = (int32_t)rf_mesh_size(s->mesh, axes);
  id = rf_graph_emit(graph, op->def, op->name, op->section, inputs, op->input_count, outputs, last + 1,
                     &r.attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  for (int i = 0; i < 2; i++) {
    int made = graph->op[id].output[i == 0 ? 0 : last];
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
    part[i] = rf_sharder_exchange(s, &x, op->name, op->section, false);
    if (part[i] == RF_NONE) return RAFTER_FAILED;
  }
  id = rf_graph_emit(graph, &RF_OP_ATTENTION_MERGE, rf_graph_join(graph, op->name, "/merge", ""), op->section,
                     part, 2, (const int[]){RF_WANTED}, 1, &r.attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  graph->op[id].attr.axes = 0;
  r.out[0].split[0] |= axes;
  return made_part(s, op, 0, graph->op[id].output[0], r.out[0]);
}

bool rf_sharder_cuts_context(const rf_sharder *s, const rf_op *op) {
  if (op->def != &RF_OP_ATTENTION && op->def != &RF_OP_ATTENTION_BWD && !rf_op_is_cached(op)) return false;
  return (s->rows & RF_AXIS_BIT(RF_AXIS_CONTEXT)) != 0;
}

rf_status rf_sharder_context(rf_sharder *s, const rf_op *op) {
  return rf_op_is_cached(op) ? shard_cached(s, op) : shard_text(s, op);
}

bool rf_sharder_cuts_words(const rf_sharder *s, const rf_op *op) {
  if (op->def != &RF_OP_HEAD_LOSS && (op->def != &RF_OP_HEAD_SCORE || op->attr.head.top > 0)) return false;
  return rf_sharder_input(s, op->input[1]).split[op->attr.head.transpose ? 0 : 1] != 0;
}
