/* shard_gradient.c - sums of gradients over chips, and the optimizer, which reads these sums. Each
 * chip updates its part of a parameter. */
#include "graph/mesh/shard_pass.h"

bool rf_is_gradient(const rf_tensor *tensor) {
  return tensor->class == RF_CLASS_GRADIENT && tensor->param >= 0;
}

static bool scatters(const rf_sharder *s, int p) { return s->specs[p].gathered && s->mesh->zero >= 2; }

int rf_sharder_gradient(rf_sharder *s, int t, rf_accumulate *how) {
  const rf_tensor *tensor = &s->whole.tensor[t];
  rf_pending_grad *g = &s->gradient[tensor->param];
  if (!scatters(s, tensor->param)) return s->at[t].id;
  *how = g->whole == RF_NONE ? RF_WRITE : RF_ACCUMULATE_ADD;
  if (g->whole == RF_NONE) {
    g->whole = rf_sharder_tensor(s, t, &s->specs[tensor->param].use);
    rf_tensor *whole = &s->graph->tensor[g->whole];
    whole->name = rf_graph_join(s->graph, tensor->name, "/whole", "");
    whole->class = RF_CLASS_COLLECTIVE;
    whole->reason = "until its sum over chips is complete";
  }
  return g->whole;
}

static rf_axes state_axes(const rf_sharder *s, int p) {
  return rf_spec_splits(&s->specs[p].state) & (rf_axes)~rf_spec_splits(&s->specs[p].use);
}
static int state_dim(const rf_sharder *s, int p) {
  return s->specs[p].state.split[0] != s->specs[p].use.split[0] ? 0 : 1;
}

/* Reduces a gradient. After the sum, each chip keeps only its own part. */
static rf_status scatter(rf_sharder *s, const rf_op *op, int t) {
  int p = s->whole.tensor[t].param;
  rf_pending_grad *g = &s->gradient[p];
  rf_exchange x = {.def = &RF_OP_REDUCE_SCATTER,
                   .from = g->whole,
                   .to_id = s->at[t].id,
                   .axes = state_axes(s, p),
                   .dim = state_dim(s, p),
                   .label = rf_sharder_label(s, s->whole.tensor[t].name),
                   .accumulate = s->whole.accumulate > 1 ? RF_ACCUMULATE_MICRO : RF_WRITE,
                   .spec = s->specs[p].state};
  g->partial &= (rf_axes)~x.axes;
  return rf_sharder_exchange(s, &x, (rf_origin){op->name, op->section, true}) == RF_NONE ? RAFTER_FAILED
                                                                                         : RAFTER_OK;
}

/* If several chips of a tensor group hold the same key and value heads, each chip's gradient covers
 * only its own query heads. The full gradient is the sum of the gradients of these chips. */
static rf_status sum_copies(rf_sharder *s, rf_sharded_tensor *at, int p, rf_origin origin) {
  rf_copies copies = rf_shard_copies(&s->whole, s->mesh, p);
  if (copies.chips == 1) return RAFTER_OK;
  rf_exchange x = {.def = &RF_OP_ALL_REDUCE,
                   .from = at->id,
                   .to_id = RF_WANTED,
                   .axes = RF_AXIS_BIT(RF_AXIS_TENSOR),
                   .copies = copies,
                   .label = "copies",
                   .spec = at->spec,
                   .class = RF_CLASS_GRADIENT};
  at->id = rf_sharder_exchange(s, &x, origin);
  return at->id == RF_NONE ? RAFTER_FAILED : RAFTER_OK;
}

/* Before the optimizer reads a gradient, completes its sum over all chips that have different
 * partial sums. The chips of one slice add their sums first. So a chip sends only its own part over
 * the data-centre network. */
rf_status rf_sharder_settle(rf_sharder *s, const rf_op *op, int t) {
  int p = s->whole.tensor[t].param;
  rf_pending_grad *g = &s->gradient[p];
  rf_sharded_tensor *at = &s->at[t];
  const char *path =
      rf_pool_format(s->graph->pool, "%s/%s", op->section == RF_SECTION_MICRO ? "step/micro" : "step/end",
                     s->whole.tensor[t].name);
  rf_origin origin = {path, op->section, true};
  rf_spec have = at->spec, need = at->spec;
  g->settled = true;
  have.partial = g->partial;
  if (s->specs[p].gathered && s->mesh->zero == 1) need = s->specs[p].state;
  rf_axes slice = have.partial & RF_AXIS_BIT(RF_AXIS_SLICE),
          inside = have.partial & (rf_axes)~slice & (rf_axes)~rf_spec_splits(&need);
  bool runs = slice && inside && s->whole.tensor[t].rank == 2;
  int64_t extent = s->graph->tensor[at->id].shape[0];
  if (runs && rf_spec_same(&(rf_spec){.split = {need.split[0], need.split[1]}},
                           &(rf_spec){.split = {have.split[0], have.split[1]}})) {
    rf_spec run = need, sum = need;
    run.split[0] |= inside;
    run.partial = slice;
    sum.split[0] |= inside;
    sum.partial = 0;
    const rf_spec to[] = {run, sum, need};
    for (int i = 0; i < 3; i++) {
      at->id = rf_sharder_convert(s, at->id, have, to[i], origin, "@slice", i == 2 ? &extent : NULL,
                                  RF_CLASS_GRADIENT);
      if (at->id == RF_NONE) return RAFTER_FAILED;
      have = to[i];
    }
  } else {
    at->id = rf_sharder_convert(s, at->id, have, need, origin, "", NULL, RF_CLASS_GRADIENT);
  }
  if (at->id == RF_NONE) return RAFTER_FAILED;
  at->spec = need;
  return sum_copies(s, at, p, origin);
}

/* With one microbatch, this chip's gradient is complete here. So the sum over chips starts at this
 * point, and overlaps with later backward ops. With several microbatches, the sum over chips waits
 * for the last microbatch. */
rf_status rf_sharder_written(rf_sharder *s, const rf_op *op, int t) {
  if (scatters(s, s->whole.tensor[t].param)) RF_TRY(scatter(s, op, t));
  return s->whole.accumulate == 1 && op->section == RF_SECTION_MICRO ? rf_sharder_settle(s, op, t)
                                                                     : RAFTER_OK;
}

/* For a weight that every chip stores in full: gathers the parts, each of which one chip has
 * updated. */
static rf_status gather_updated(rf_sharder *s, const rf_op *op, int p, int from, int weight) {
  rf_exchange x = {.def = &RF_OP_ALL_GATHER,
                   .from = from,
                   .to_id = s->at[weight].id,
                   .axes = state_axes(s, p),
                   .dim = state_dim(s, p),
                   .whole = s->graph->tensor[s->at[weight].id].shape[state_dim(s, p)],
                   .label = "",
                   .spec = s->specs[p].use};
  return rf_sharder_exchange(s, &x, (rf_origin){op->name, op->section, false}) == RF_NONE ? RAFTER_FAILED
                                                                                          : RAFTER_OK;
}

rf_status rf_expand_adamw(rf_sharder *s, const rf_op *op, bool *done) {
  int g = op->input[0], p = s->whole.tensor[g].param,
      weight = op->output[3] == RF_NONE ? op->output[0] : op->output[3];
  bool updates_run = s->specs[p].gathered && s->mesh->zero < 3;
  int inputs[RF_MAX_INPUTS], outputs[4];
  *done = true;
  if (!s->gradient[p].settled) RF_TRY(rf_sharder_settle(s, op, g));
  for (int i = 0; i < op->input_count; i++) inputs[i] = op->input[i] < 0 ? RF_NONE : s->at[op->input[i]].id;
  if (updates_run && op->output[3] == RF_NONE) inputs[1] = s->master[p];
  for (int i = 0; i < 3; i++) outputs[i] = inputs[i + 1];
  outputs[3] = op->output[3] == RF_NONE ? RF_NONE : updates_run ? RF_WANTED : s->at[weight].id;
  int id = rf_sharder_emit(s, op, op->def, op->name, (rf_slots){inputs, op->input_count},
                           (rf_slots){outputs, 4}, &op->attr);
  if (id < 0) return RAFTER_INVALID;
  if (!updates_run) return RAFTER_OK;
  if (op->output[3] == RF_NONE) return gather_updated(s, op, p, s->master[p], weight);
  int run = s->graph->op[id].output[3];
  s->graph->tensor[run].class = RF_CLASS_COLLECTIVE;
  s->graph->tensor[run].name = rf_graph_join(s->graph, s->whole.tensor[weight].name, "/run", "");
  return gather_updated(s, op, p, run, weight);
}

void rf_sharder_find_gradients(rf_sharder *s) {
  const rf_graph *old = &s->whole;
  for (int p = 0; p < old->params.count; p++) {
    s->gradient[p] = (rf_pending_grad){RF_NONE, RF_NONE, 0, false};
    s->master[p] = RF_NONE;
  }
  for (int o = 0; o < old->op_count; o++)
    for (int i = 0; i < old->op[o].output_count; i++) {
      int t = old->op[o].output[i];
      if (t >= 0 && rf_is_gradient(&old->tensor[t]) && old->op[o].def != &RF_OP_RECV)
        s->gradient[old->tensor[t].param].last_writer = o;
    }
}

void rf_sharder_make_masters(rf_sharder *s) {
  const rf_graph *old = &s->whole;
  for (int o = 0; o < old->op_count && s->mesh->zero >= 1 && s->mesh->zero < 3; o++) {
    const rf_op *op = &old->op[o];
    if (op->def != &RF_OP_ADAMW || op->output[3] != RF_NONE) continue;
    int t = op->output[0], p = old->tensor[t].param;
    if (!s->specs[p].gathered) continue;
    int id = s->master[p] = rf_sharder_tensor(s, t, &s->specs[p].state);
    s->graph->tensor[id].name = rf_graph_join(s->graph, old->tensor[t].name, "/master", "");
    s->graph->tensor[id].class = RF_CLASS_MASTER;
    s->graph->tensor[id].reason = "the part of the weight that this chip updates";
  }
}
