/* shard.c - the program of one chip of a mesh: every op with the shapes of one chip, and a
 * collective wherever an op needs another sharding than its operand has. The rules of ops choose
 * the sharding of operands, shard_rules.c that of parameters. A partial sum is reduced where it is
 * computed. A sharded dimension is gathered where it is needed, once for forward and once for
 * backward, so that a chip stores only its own part for backward. */
#include "graph/passes.h"
#include "graph/mesh/shard_pass.h"

#include <string.h>

/* ---- tensors that are there from the start --------------------------------------------------- */

int rf_sharder_tensor(rf_sharder *s, int t, const rf_spec *spec) {
  const rf_tensor *old = &s->whole.tensor[t];
  int64_t shape[RF_MAX_RANK];
  for (int d = 0; d < old->rank; d++)
    shape[d] = rf_shard_extent(&s->whole, s->mesh, old->param, spec, d, old->shape[d]);
  int id = rf_graph_tensor(s->graph, old->name, old->class, old->dtype, old->rank, shape);
  rf_tensor *fresh = &s->graph->tensor[id];
  fresh->param = old->param;
  fresh->persistent = old->persistent;
  fresh->input = old->input;
  fresh->output = old->output;
  fresh->reason = old->reason;
  fresh->panels = old->panels;
  fresh->spec = *spec;
  if (old->dtype == RF_PACKED) {
    int outputs = old->panels.outputs_first ? 0 : 1, inner = 1 - outputs;
    int64_t chips = rf_mesh_size(s->mesh, spec->split[outputs]);
    if (old->panels.experts > 0)
      fresh->panels.experts /= rf_mesh_size(s->mesh, spec->split[0] & RF_AXIS_BIT(RF_AXIS_EXPERT));
    fresh->panels.inner = shape[inner] / rf_panels_experts(&fresh->panels);
    for (int i = 0; i < fresh->panels.parts; i++)
      fresh->panels.part[i].outputs =
          fresh->panels.parts == 1 ? shape[outputs] : (old->panels.part[i].outputs + chips - 1) / chips;
  }
  return id;
}

/* Sharding of an input: its rows. A list of segment starts has one more entry than rows. */
static rf_spec input_spec(const rf_sharder *s, const rf_tensor *tensor, int64_t *extent) {
  rf_axes rows = s->rows;
  *extent = 0;
  /* generation: attention needs all inputs but the tokens in full */
  if (!s->text) return rf_spec_of(strcmp(tensor->name, "tokens") ? 0 : rows, 0, RF_FORM_BLOCKS);
  if (tensor->rank != 1 || s->rows == 0) return (rf_spec){0};
  if (tensor->shape[0] == s->whole.rows + 1) {
    rows &= (rf_axes) ~(RF_AXIS_BIT(RF_AXIS_CONTEXT) | RF_AXIS_BIT(RF_AXIS_SEQUENCE));
    *extent = s->whole.rows / rf_mesh_size(s->mesh, rows) + 1;
  }
  return rf_spec_of(rows, 0, RF_FORM_BLOCKS);
}

/* Each chip caches the keys and values of its heads. A latent row serves all heads. */
static rf_spec cache_spec(const rf_sharder *s) {
  if (s->whole.model.kv_rank > 0) return (rf_spec){.split = {0}};
  return (rf_spec){
      .split = {0, 0, 0, rf_mesh_live(s->mesh, RF_AXIS_BIT(RF_AXIS_SEQUENCE) | RF_AXIS_BIT(RF_AXIS_TENSOR))},
      .form = {0, 0, 0, RF_FORM_KEYS}};
}

static void make_cache(rf_sharder *s, int t, rf_spec *spec) {
  *spec = cache_spec(s);
  int64_t chips = rf_mesh_size(s->mesh, spec->split[3]), heads = s->whole.model.kv_heads,
          per_head = s->whole.tensor[t].shape[3] / heads;
  int id = rf_sharder_tensor(s, t, spec);
  if (spec->split[3]) s->graph->tensor[id].shape[3] = (heads > chips ? heads / chips : 1) * per_head;
  s->at[t] = (rf_place){id, *spec};
}

static void make_standing(rf_sharder *s) {
  const rf_graph *old = &s->whole;
  for (int t = 0; t < old->tensor_count; t++) {
    const rf_tensor *tensor = &old->tensor[t];
    rf_spec spec = {0};
    int64_t extent = 0;
    s->at[t] = (rf_place){RF_NONE, {{0}, 0, {0}}};
    bool gradient = tensor->class == RF_CLASS_GRADIENT && tensor->param >= 0,
         sums = tensor->class == RF_CLASS_ACTIVATION && tensor->dtype == RF_F64 && tensor->rank == 1 &&
                !strcmp(tensor->name, "gradient/sums");
    if (!tensor->persistent && !tensor->input && !gradient && !sums) continue;
    if (tensor->class == RF_CLASS_KV) {
      make_cache(s, t, &spec);
      continue;
    }
    if (tensor->param >= 0) {
      const rf_param_specs *specs = &s->specs[tensor->param];
      bool weight = tensor->class == RF_CLASS_WEIGHT || tensor->class == RF_CLASS_ADAPTER;
      spec = (weight && s->mesh->zero < 3) || (gradient && s->mesh->zero < 2) ? specs->use : specs->state;
    } else if (tensor->input) {
      spec = input_spec(s, tensor, &extent);
    }
    int id = rf_sharder_tensor(s, t, &spec);
    if (extent) s->graph->tensor[id].shape[0] = extent;
    if (sums) spec.partial = rf_mesh_live(s->mesh, 0xff);
    s->at[t] = (rf_place){id, spec};
  }
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* A partial sum over chips is reduced at once: each chip of a tensor group keeps a run of the rows,
 * or all chips keep all rows. */
static rf_spec made_whole(const rf_sharder *s, const rf_tensor *tensor, rf_spec spec) {
  rf_axes tensor_axis = RF_AXIS_BIT(RF_AXIS_TENSOR), both = tensor_axis | RF_AXIS_BIT(RF_AXIS_SEQUENCE);
  rf_axes runs = spec.partial & both;
  if (s->text && runs && tensor->rank == 2 && !(spec.split[1] & runs) &&
      tensor->shape[0] % rf_mesh_size(s->mesh, runs) == 0)
    spec.split[0] |= runs;
  spec.partial = 0;
  return spec;
}

static rf_status settle_output(rf_sharder *s, const rf_op *op, int slot, int id, rf_spec spec,
                               bool keeps_sums) {
  int t = op->output[slot];
  const rf_tensor *old = &s->whole.tensor[t];
  rf_tensor *fresh = &s->graph->tensor[id];
  fresh->reason = old->reason;
  fresh->saved = old->saved;
  fresh->spec = spec;
  rf_spec need = keeps_sums ? spec : made_whole(s, fresh, spec);
  if (old->output) need.split[1] = 0;
  if (!rf_spec_same(&spec, &need)) {
    const char *name = fresh->name;
    rf_class class = fresh->class;
    fresh->class = RF_CLASS_COLLECTIVE;
    fresh->name = rf_graph_join(s->graph, name, spec.partial ? "/partial" : "/part", "");
    fresh->reason = NULL;
    id = rf_sharder_convert(s, id, spec, need, op->name, rf_sharder_label(s, op->def->outputs[slot]),
                            op->section, op->backward, old->shape, class);
    if (id == RF_NONE) return RAFTER_FAILED;
    if (op->def == &RF_OP_HEAD_LOGITS && slot == 1)
      s->graph->op[s->graph->op_count - 1].attr.collective.log_sum = true;
    fresh = &s->graph->tensor[id];
    fresh->name = name;
    fresh->reason = old->reason;
  }
  fresh->output = old->output;
  if (old->output) {
    fresh->name = old->name;
    fresh->class = old->class;
  }
  s->at[t] = (rf_place){id, need};
  return RAFTER_OK;
}

/* Metrics are sums over microbatches; the end of the step adds them over chips. */
static rf_status metrics_target(rf_sharder *s, int t, int *id) {
  const rf_tensor *tensor = &s->whole.tensor[t];
  *id = rf_graph_tensor(s->graph, rf_graph_join(s->graph, tensor->name, "/part", ""), tensor->class,
                        tensor->dtype, tensor->rank, tensor->shape);
  s->metrics_whole = t;
  return RAFTER_OK;
}

static rf_status finish_metrics(rf_sharder *s) {
  int t = s->metrics_whole;
  if (t == RF_NONE) return RAFTER_OK;
  s->metrics_whole = RF_NONE;
  int whole = rf_sharder_tensor(s, t, &(rf_spec){.split = {0}});
  rf_exchange x = {.def = &RF_OP_ALL_REDUCE,
                   .from = s->at[t].id,
                   .to_id = whole,
                   .axes = s->at[t].spec.partial,
                   .label = ""};
  return rf_sharder_exchange(s, &x, "step/end/metrics", RF_SECTION_END, false) == RF_NONE ? RAFTER_FAILED
                                                                                          : RAFTER_OK;
}

/* Sends rows to the chips that have their experts; the results come back the same way. */
static int to_experts(rf_sharder *s, const rf_op *op, int id, float fill, const char *label) {
  const rf_spec exchanged = {.split = {0, 0, 0, 0xff}};
  int found = rf_sharder_copy_of(s, id, &exchanged, RF_WHEN_ALWAYS);
  if (found != RF_NONE) return found;
  rf_exchange x = {.def = &RF_OP_ALL_TO_ALL,
                   .from = id,
                   .to_id = RF_WANTED,
                   .axes = RF_AXIS_BIT(RF_AXIS_EXPERT),
                   .label = label,
                   .fill = fill,
                   .spec = s->graph->tensor[id].spec,
                   .class = s->graph->tensor[id].class};
  int made = rf_sharder_exchange(s, &x, op->name, op->section, op->backward);
  if (made != RF_NONE) rf_sharder_keep(s, id, &exchanged, RF_WHEN_ALWAYS, made);
  return made;
}

static bool deals_experts(const rf_sharder *s) { return rf_mesh_extent(s->mesh, RF_AXIS_EXPERT) > 1; }
static bool brings_back(const rf_op *op) {
  return op->def == &RF_OP_COMBINE || op->def == &RF_OP_COMBINE_BWD || op->def == &RF_OP_DISPATCH_BWD;
}
static bool sends_out(const rf_op *op) { return op->def == &RF_OP_DISPATCH || op->def == &RF_OP_COMBINE_BWD; }

static rf_status emit_local(rf_sharder *s, const rf_op *op, rf_sharding *r) {
  int inputs[RF_MAX_INPUTS], outputs[RF_MAX_OUTPUTS];
  for (int i = 0; i < op->input_count; i++) {
    inputs[i] = RF_NONE;
    if (op->input[i] >= 0) RF_TRY(rf_sharder_obtain(s, op, i, &r->in[i], &inputs[i]));
  }
  if (deals_experts(s) && brings_back(op)) inputs[0] = to_experts(s, op, inputs[0], r->attr.fill, "back");
  if (inputs[0] == RF_NONE && op->input[0] >= 0) return RAFTER_FAILED;
  for (int i = 0; i < op->output_count; i++) {
    int t = op->output[i];
    outputs[i] = t < 0 ? RF_NONE : RF_WANTED;
    if (t < 0) continue;
    const rf_tensor *tensor = &s->whole.tensor[t];
    if (rf_is_gradient(tensor)) outputs[i] = rf_sharder_gradient(s, t, &r->attr.accumulate[i]);
    else if (s->at[t].id != RF_NONE) outputs[i] = s->at[t].id;
    else if (op->def == &RF_OP_LOSS_SUM) RF_TRY(metrics_target(s, t, &outputs[i]));
  }
  int id = rf_graph_emit(s->graph, op->def, op->name, op->section, inputs, op->input_count, outputs,
                         op->output_count, &r->attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  s->graph->op[id].backward = op->backward;
  for (int i = 0; i < op->output_count; i++) {
    int t = op->output[i], made = s->graph->op[id].output[i];
    if (t < 0) continue;
    const rf_tensor *tensor = &s->whole.tensor[t];
    if (rf_is_gradient(tensor)) {
      rf_on_its_way *g = &s->gradient[tensor->param];
      if (g->partial && g->partial != r->out[i].partial)
        return RF_FAIL(s->error, RAFTER_FAILED, "this is a fault of the planner, please report it",
                       "%s is summed over different chips by its writers", tensor->name);
      g->partial = r->out[i].partial;
      if ((int)(op - s->whole.op) == g->last_writer) RF_TRY(rf_sharder_written(s, op, t));
    } else if (t == s->metrics_whole) {
      s->at[t] = (rf_place){made, r->out[i]};
    } else if (outputs[i] == RF_WANTED) {
      RF_TRY(settle_output(s, op, i, made, r->out[i], r->keeps_sums));
      if (i == 0 && deals_experts(s) && sends_out(op))
        s->at[t].id = to_experts(s, op, s->at[t].id, r->attr.fill, "out");
      if (s->at[t].id == RF_NONE) return RAFTER_FAILED;
    } else if (s->at[t].id == RF_NONE) {
      s->at[t] = (rf_place){made, r->out[i]};
    }
  }
  return RAFTER_OK;
}

rf_spec rf_sharder_input(const rf_sharder *s, int t) {
  const rf_tensor *tensor = &s->whole.tensor[t];
  bool weight = tensor->param >= 0 && (tensor->class == RF_CLASS_WEIGHT || tensor->class == RF_CLASS_ADAPTER);
  return weight ? s->specs[tensor->param].use : s->at[t].spec;
}

/* Pipeline stages exchange tensors sharded like the rows of a microbatch, over as many axes as
 * possible, so that no two chips send the same rows. */
static rf_status shard_transfer(rf_sharder *s, const rf_op *op) {
  bool sends = op->def == &RF_OP_SEND;
  int t = sends ? op->input[0] : op->output[0], id;
  const rf_tensor *tensor = &s->whole.tensor[t];
  rf_spec rows = rf_spec_of(s->rows | rf_mesh_live(s->mesh, RF_AXIS_BIT(RF_AXIS_TENSOR)), 0, RF_FORM_BLOCKS);
  if (rf_is_gradient(tensor)) {
    if (!s->gradient[tensor->param].settled) RF_TRY(rf_sharder_settle(s, op, t));
    id = s->at[t].id;
  } else if (sends) {
    RF_TRY(rf_sharder_obtain(s, op, 0, &rows, &id));
  } else {
    id = rf_sharder_tensor(s, t, &rows);
    s->at[t] = (rf_place){id, rows};
  }
  int made =
      rf_graph_emit(s->graph, op->def, op->name, op->section, &id, sends, &id, !sends, &op->attr, s->error);
  if (made < 0) return RAFTER_INVALID;
  s->graph->op[made].backward = op->backward;
  return RAFTER_OK;
}

static rf_status shard_op(rf_sharder *s, const rf_op *op) {
  int half = 2 * op->chunk + op->backward;
  s->graph->chunk = op->chunk;
  s->graph->at = op->at;
  if (op->section == RF_SECTION_MICRO && half != s->half) {
    s->half = half;
    s->half_at = s->graph->op_count;
  }
  if (op->def == &RF_OP_SEND || op->def == &RF_OP_RECV) return shard_transfer(s, op);
  if (op->def == &RF_OP_ADAMW) return rf_sharder_adamw(s, op);
  if (rf_sharder_cuts_words(s, op)) return rf_sharder_head(s, op);
  if (rf_sharder_cuts_context(s, op)) return rf_sharder_context(s, op);
  rf_sharding r = {.graph = &s->whole, .op = op, .mesh = s->mesh, .attr = op->attr};
  for (int i = 0; i < op->input_count; i++) {
    int t = op->input[i];
    if (t < 0) continue;
    const rf_tensor *tensor = &s->whole.tensor[t];
    if (rf_is_gradient(tensor) && !s->gradient[tensor->param].settled) RF_TRY(rf_sharder_settle(s, op, t));
    r.in[i] = rf_sharder_input(s, t);
  }
  for (int i = 0; i < op->output_count; i++) {
    int t = op->output[i];
    if (t >= 0 && s->whole.tensor[t].param >= 0) r.out[i] = s->specs[s->whole.tensor[t].param].use;
    else if (t >= 0 && s->at[t].id != RF_NONE) r.out[i] = s->at[t].spec;
  }
  if (!op->def->shard)
    return RF_FAIL(s->error, RAFTER_INVALID, "leave --mesh out", "this version cannot shard %s (%s)",
                   op->def->name, op->name);
  RF_TRY(op->def->shard(&r, s->error));
  return emit_local(s, op, &r);
}

/* ---- the pass -------------------------------------------------------------------------------- */

static void order_early(rf_sharder *s) {
  rf_graph *graph = s->graph;
  if (!s->early_count) return;
  int ops = graph->op_count, count = 0;
  int *next = rf_pool_alloc(graph->pool, (size_t)s->early_count * sizeof(int)),
      *head = rf_pool_alloc(graph->pool, (size_t)ops * sizeof(int)),
      *order = rf_pool_alloc(graph->pool, (size_t)ops * sizeof(int));
  bool *moved = rf_pool_alloc(graph->pool, (size_t)ops);
  for (int o = 0; o < ops; o++) head[o] = RF_NONE;
  for (int i = s->early_count - 1; i >= 0; i--) {
    next[i] = head[s->early_at[i]];
    head[s->early_at[i]] = i;
    moved[s->early_op[i]] = true;
  }
  for (int o = 0; o < ops; o++) {
    for (int i = head[o]; i != RF_NONE; i = next[i]) order[count++] = s->early_op[i];
    if (!moved[o]) order[count++] = o;
  }
  rf_graph_reorder(graph, order, count);
}

rf_status rf_pass_shard(rf_graph *graph, const rf_mesh *mesh, rf_error *error) {
  rf_pool *pool = graph->pool;
  size_t tensors = (size_t)graph->tensor_count, params = (size_t)graph->params.count;
  rf_sharder s = {.graph = graph,
                  .whole = *graph,
                  .mesh = mesh,
                  .error = error,
                  .unit = -1,
                  .half = -1,
                  .metrics_whole = RF_NONE};
  bool text = graph->tensor_count &&
              (rf_mesh_extent(mesh, RF_AXIS_PIPELINE) > 1 || rf_graph_find(graph, "labels") != RF_NONE);
  s.text = text;
  /* generation: the rows of one copy of the model */
  s.rows = rf_mesh_live(mesh, text ? (rf_axes) ~(RF_AXIS_BIT(RF_AXIS_TENSOR) | RF_AXIS_BIT(RF_AXIS_PIPELINE))
                                   : RF_AXES_OF_WALK);
  s.at = rf_pool_alloc(pool, tensors * sizeof *s.at);
  s.gradient = rf_pool_alloc(pool, params * sizeof *s.gradient);
  s.master = rf_pool_alloc(pool, params * sizeof *s.master);
  s.specs = rf_pool_alloc(pool, params * sizeof *s.specs);
  for (int p = 0; p < graph->params.count; p++) s.specs[p] = rf_shard_param(&s.whole, mesh, p);
  graph->tensor_count = graph->op_count = graph->tensor_capacity = graph->op_capacity = 0;
  graph->tensor = NULL;
  graph->op = NULL;
  rf_graph_reserve(graph, 2 * s.whole.tensor_count, 2 * s.whole.op_count);
  graph->mesh = *mesh;
  graph->rows = s.whole.rows / rf_mesh_size(mesh, s.rows);
  rf_sharder_find_gradients(&s);
  make_standing(&s);
  rf_sharder_make_masters(&s);
  for (int o = 0; o < s.whole.op_count; o++) {
    if (s.whole.op[o].section == RF_SECTION_END) RF_TRY(finish_metrics(&s));
    RF_TRY(shard_op(&s, &s.whole.op[o]));
  }
  RF_TRY(finish_metrics(&s));
  order_early(&s);
  return RAFTER_OK;
}
