/* shard.c - the program of one chip of a mesh. Every op gets the shapes of one chip's tensors. If
 * an op needs another sharding than its operand has, the pass adds a collective. The rules of ops
 * choose the sharding of operands; shard_rules.c chooses the sharding of parameters. A partial sum
 * is reduced right after the op that computes it. If an op needs all of a sharded dimension, the
 * forward pass gathers the tensor, and the backward pass gathers it again. Between the two passes,
 * a chip stores only its own part. */
#include "graph/passes.h"
#include "graph/mesh/shard_pass.h"

#include <stdio.h>

/* ---- tensors from the start ------------------------------------------------------------------ */

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
  fresh->role = old->role;
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
          fresh->panels.parts == 1 ? shape[outputs] : rf_ceil_div(old->panels.part[i].outputs, chips);
  }
  return id;
}

/* The sharding of the rows of an input that the caller writes. The list of segment starts has one
 * entry more than the number of rows. */
static rf_spec input_spec(const rf_sharder *s, const rf_tensor *tensor, int64_t *extent) {
  rf_axes rows = s->rows;
  *extent = 0;
  /* in generation, attention needs every input in full, except the tokens */
  if (!s->text) return rf_spec_of(tensor->role == RF_ROLE_TOKENS ? rows : 0, 0, RF_FORM_BLOCKS);
  if (tensor->rank != 1 || s->rows == 0) return (rf_spec){0};
  if (tensor->shape[0] == s->whole.rows + 1) {
    rows &= (rf_axes) ~(RF_AXIS_BIT(RF_AXIS_CONTEXT) | RF_AXIS_BIT(RF_AXIS_SEQUENCE));
    *extent = s->whole.rows / rf_mesh_size(s->mesh, rows) + 1;
  }
  return rf_spec_of(rows, 0, RF_FORM_BLOCKS);
}

/* Each chip caches the keys and values of its heads. All heads need the full latent row. */
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
  s->at[t] = (rf_sharded_tensor){id, *spec};
}

static void make_initial(rf_sharder *s) {
  const rf_graph *old = &s->whole;
  for (int t = 0; t < old->tensor_count; t++) {
    const rf_tensor *tensor = &old->tensor[t];
    rf_spec spec = {0};
    int64_t extent = 0;
    s->at[t] = (rf_sharded_tensor){RF_NONE, {{0}, 0, {0}}};
    bool gradient = tensor->class == RF_CLASS_GRADIENT && tensor->param >= 0,
         sums = tensor->role == RF_ROLE_GRADIENT_SUMS;
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
    s->at[t] = (rf_sharded_tensor){id, spec};
  }
}

/* ---- ops ------------------------------------------------------------------------------------- */

/* The sharding of a tensor after the partial sums of all chips have been added. Either each chip of
 * a tensor group has a run of the rows, or every chip has all rows. */
static rf_spec made_whole(const rf_sharder *s, const rf_tensor *tensor, rf_spec spec) {
  rf_axes tensor_axis = RF_AXIS_BIT(RF_AXIS_TENSOR), both = tensor_axis | RF_AXIS_BIT(RF_AXIS_SEQUENCE);
  rf_axes runs = spec.partial & both;
  if (s->text && runs && tensor->rank == 2 && !(spec.split[1] & runs) &&
      tensor->shape[0] % rf_mesh_size(s->mesh, runs) == 0)
    spec.split[0] |= runs;
  spec.partial = 0;
  return spec;
}

static rf_status settle_output(rf_sharder *s, const rf_op *op, const rf_sharding *r, int slot, int id) {
  int t = op->output[slot];
  rf_spec spec = r->out[slot];
  const rf_tensor *old = &s->whole.tensor[t];
  rf_tensor *fresh = &s->graph->tensor[id];
  fresh->reason = old->reason;
  fresh->saved = old->saved;
  fresh->spec = spec;
  rf_spec need = r->keeps_sums ? spec : made_whole(s, fresh, spec);
  if (old->output) need.split[1] = 0;
  if (!rf_spec_same(&spec, &need)) {
    const char *name = fresh->name;
    rf_class class = fresh->class;
    fresh->class = RF_CLASS_COLLECTIVE;
    fresh->name = rf_graph_join(s->graph, name, spec.partial ? "/partial" : "/part", "");
    fresh->reason = NULL;
    id = rf_sharder_convert(s, id, spec, need, rf_origin_of(op), rf_sharder_label(s, op->def->outputs[slot]),
                            old->shape, class);
    if (id == RF_NONE) return RAFTER_FAILED;
    if (r->log_sum && spec.partial) s->graph->op[s->graph->op_count - 1].attr.collective.log_sum = true;
    fresh = &s->graph->tensor[id];
    fresh->name = name;
    fresh->reason = old->reason;
  }
  fresh->output = old->output;
  if (old->output) {
    fresh->name = old->name;
    fresh->class = old->class;
  }
  s->at[t] = (rf_sharded_tensor){id, need};
  return RAFTER_OK;
}

/* At the end of the step, sums a tensor over all chips. Each chip has already summed the tensor
 * over the microbatches. */
static rf_status finish_sum(rf_sharder *s) {
  int t = s->end_sum;
  if (t == RF_NONE) return RAFTER_OK;
  s->end_sum = RF_NONE;
  s->graph->at = (rf_op_place){RF_NONE, RF_SUBLAYER_NONE};
  rf_exchange x = {.def = &RF_OP_ALL_REDUCE,
                   .from = s->at[t].id,
                   .to_id = rf_sharder_tensor(s, t, &(rf_spec){.split = {0}}),
                   .axes = s->at[t].spec.partial,
                   .label = ""};
  const char *path = rf_graph_join(s->graph, "step/end/", s->whole.tensor[t].name, "");
  return rf_sharder_exchange(s, &x, (rf_origin){path, RF_SECTION_END, false}) == RF_NONE ? RAFTER_FAILED
                                                                                         : RAFTER_OK;
}

/* Sends rows to the chips that have the experts of these rows, or sends the results of the experts
 * back. */
static int to_experts(rf_sharder *s, const rf_op *op, int id, float fill, const char *label) {
  const rf_spec exchanged = {.split = {0, 0, 0, 0xff}};
  int found = rf_sharder_copy_of(s, id, &exchanged, RF_SCOPE_ALWAYS);
  if (found != RF_NONE) return found;
  rf_exchange x = {.def = &RF_OP_ALL_TO_ALL,
                   .from = id,
                   .to_id = RF_WANTED,
                   .axes = RF_AXIS_BIT(RF_AXIS_EXPERT),
                   .label = label,
                   .fill = fill,
                   .spec = s->graph->tensor[id].spec,
                   .class = s->graph->tensor[id].class};
  int made = rf_sharder_exchange(s, &x, rf_origin_of(op));
  if (made != RF_NONE) rf_sharder_keep(s, id, &exchanged, RF_SCOPE_ALWAYS, made);
  return made;
}

int rf_sharder_emit(rf_sharder *s, const rf_op *like, const rf_op_def *def, const char *name, rf_slots inputs,
                    rf_slots outputs, const rf_attr *attr) {
  int id = rf_graph_emit(s->graph, def, name, like->section, inputs, outputs, attr, s->error);
  if (id >= 0) s->graph->op[id].backward = like->backward;
  return id;
}

/* Returns the tensor that output `slot` writes, or RF_WANTED. */
static int target(rf_sharder *s, const rf_op *op, int slot, rf_sharding *r) {
  int t = op->output[slot];
  if (t < 0) return RF_NONE;
  const rf_tensor *tensor = &s->whole.tensor[t];
  if (rf_is_gradient(tensor)) return rf_sharder_gradient(s, t, &r->attr.accumulate[slot]);
  if (s->at[t].id != RF_NONE) return s->at[t].id;
  if (!r->end_sum) return RF_WANTED;
  s->end_sum = t;
  return rf_graph_tensor(s->graph, rf_graph_join(s->graph, tensor->name, "/part", ""), tensor->class,
                         tensor->dtype, tensor->rank, tensor->shape);
}

static rf_status emit_local(rf_sharder *s, const rf_op *op, rf_sharding *r, int *inputs) {
  bool experts = rf_mesh_extent(s->mesh, RF_AXIS_EXPERT) > 1;
  int outputs[RF_MAX_OUTPUTS];
  if (experts && r->from_experts) inputs[0] = to_experts(s, op, inputs[0], r->attr.fill, "back");
  if (inputs[0] == RF_NONE && op->input[0] >= 0) return RAFTER_FAILED;
  for (int i = 0; i < op->output_count; i++) outputs[i] = target(s, op, i, r);
  int id = rf_sharder_emit(s, op, op->def, op->name, (rf_slots){inputs, op->input_count},
                           (rf_slots){outputs, op->output_count}, &r->attr);
  if (id < 0) return RAFTER_INVALID;
  for (int i = 0; i < op->output_count; i++) {
    int t = op->output[i], made = s->graph->op[id].output[i];
    if (t < 0) continue;
    const rf_tensor *tensor = &s->whole.tensor[t];
    if (rf_is_gradient(tensor)) {
      rf_pending_grad *g = &s->gradient[tensor->param];
      if (g->partial && g->partial != r->out[i].partial)
        return RF_FAIL(s->error, RAFTER_FAILED, "this is a fault of the planner, please report it",
                       "%s is summed over different chips by its writers", tensor->name);
      g->partial = r->out[i].partial;
      if ((int)(op - s->whole.op) == g->last_writer) RF_TRY(rf_sharder_written(s, op, t));
    } else if (outputs[i] == RF_WANTED) {
      RF_TRY(settle_output(s, op, r, i, made));
      if (i == 0 && experts && r->to_experts)
        s->at[t].id = to_experts(s, op, s->at[t].id, r->attr.fill, "out");
      if (s->at[t].id == RF_NONE) return RAFTER_FAILED;
    } else if (s->at[t].id == RF_NONE) {
      s->at[t] = (rf_sharded_tensor){made, r->out[i]};
    }
  }
  return RAFTER_OK;
}

rf_spec rf_sharder_input(const rf_sharder *s, int t) {
  const rf_tensor *tensor = &s->whole.tensor[t];
  bool weight = tensor->param >= 0 && (tensor->class == RF_CLASS_WEIGHT || tensor->class == RF_CLASS_ADAPTER);
  return weight ? s->specs[tensor->param].use : s->at[t].spec;
}

/* Pipeline stages exchange tensors that are sharded like the rows of a microbatch. The number of
 * axes that shard the rows is the largest possible, so that no two chips send the same rows. */
rf_status rf_expand_transfer(rf_sharder *s, const rf_op *op, bool *done) {
  bool sends = op->def == &RF_OP_SEND;
  int t = sends ? op->input[0] : op->output[0], id;
  const rf_tensor *tensor = &s->whole.tensor[t];
  rf_spec rows = rf_spec_of(s->rows | rf_mesh_live(s->mesh, RF_AXIS_BIT(RF_AXIS_TENSOR)), 0, RF_FORM_BLOCKS);
  *done = true;
  if (rf_is_gradient(tensor)) {
    if (!s->gradient[tensor->param].settled) RF_TRY(rf_sharder_settle(s, op, t));
    id = s->at[t].id;
  } else if (sends) {
    RF_TRY(rf_sharder_obtain(s, op, 0, &rows, &id));
  } else {
    id = rf_sharder_tensor(s, t, &rows);
    s->at[t] = (rf_sharded_tensor){id, rows};
  }
  return rf_sharder_emit(s, op, op->def, op->name, (rf_slots){&id, sends}, (rf_slots){&id, !sends},
                         &op->attr) < 0
             ? RAFTER_INVALID
             : RAFTER_OK;
}

rf_status rf_sharder_ask(rf_sharder *s, const rf_op *op, const rf_op_def *def, rf_sharding *r, int *inputs) {
  *r = (rf_sharding){.graph = &s->whole, .op = op, .mesh = s->mesh, .error = s->error, .attr = op->attr};
  for (int i = 0; i < op->input_count; i++) {
    int t = op->input[i];
    if (t < 0) continue;
    const rf_tensor *tensor = &s->whole.tensor[t];
    if (rf_is_gradient(tensor) && !s->gradient[tensor->param].settled) RF_TRY(rf_sharder_settle(s, op, t));
    r->in[i] = rf_sharder_input(s, t);
  }
  for (int i = 0; i < op->output_count; i++) {
    int t = op->output[i];
    if (t >= 0 && s->whole.tensor[t].param >= 0) r->out[i] = s->specs[s->whole.tensor[t].param].use;
    else if (t >= 0 && s->at[t].id != RF_NONE) r->out[i] = s->at[t].spec;
  }
  if (!def->shard)
    return RF_FAIL(s->error, RAFTER_INVALID, "leave --mesh out", "this version cannot shard %s (%s)",
                   def->name, op->name);
  RF_TRY(def->shard(r));
  for (int i = 0; i < op->input_count; i++) {
    inputs[i] = RF_NONE;
    if (op->input[i] >= 0) RF_TRY(rf_sharder_obtain(s, op, i, &r->in[i], &inputs[i]));
  }
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
  bool done = false;
  rf_sharding r;
  int inputs[RF_MAX_INPUTS];
  if (op->def->expand) RF_TRY(op->def->expand(s, op, &done));
  if (done) return RAFTER_OK;
  RF_TRY(rf_sharder_ask(s, op, op->def, &r, inputs));
  return emit_local(s, op, &r, inputs);
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

/* A dimension is sharded only if padding does not double the dimension. So an fsdp axis that is
 * longer than all dimensions leaves matrices whole. The check refuses a mesh that leaves every
 * matrix of the blocks whole, because memory and traffic would be those of data parallelism. */
static rf_status check_fsdp(const rf_sharder *s, rf_error *error) {
  const rf_params *params = &s->whole.params;
  int64_t longest = 0, chips = rf_mesh_extent(s->mesh, RF_AXIS_FSDP);
  char hint[120];
  if (chips == 1 || s->mesh->zero < 1) return RAFTER_OK;
  for (int p = 0; p < params->count; p++) {
    const rf_param *param = &params->at[p];
    if (param->rank != 2 || param->layer < 0 || param->adapts >= 0) continue;
    const rf_spec *state = &s->specs[p].state;
    if ((state->split[0] | state->split[1]) & RF_AXIS_BIT(RF_AXIS_FSDP)) return RAFTER_OK;
    for (int d = 0; d < 2; d++)
      if (param->shape[d] > longest) longest = param->shape[d];
  }
  if (!longest) return RAFTER_OK;
  snprintf(hint, sizeof hint, "use fsdp of at most %lld, and data for the other chips (--mesh data=N,fsdp=M)",
           (long long)longest);
  return RF_FAIL(
      error, RAFTER_INVALID, hint,
      "the mesh has too many chips along fsdp to shard a matrix of a block (--mesh fsdp: expected at "
      "most %lld, its longest dimension, got %lld)",
      (long long)longest, (long long)chips);
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
                  .end_sum = RF_NONE};
  bool text = s.text = graph->job != RF_JOB_GENERATE;
  /* generation: the rows belong to one copy of the model */
  s.rows = rf_mesh_live(mesh, text ? (rf_axes) ~(RF_AXIS_BIT(RF_AXIS_TENSOR) | RF_AXIS_BIT(RF_AXIS_PIPELINE))
                                   : RF_AXES_OF_PASS);
  s.at = rf_pool_alloc(pool, tensors * sizeof *s.at);
  s.gradient = rf_pool_alloc(pool, params * sizeof *s.gradient);
  s.master = rf_pool_alloc(pool, params * sizeof *s.master);
  s.specs = rf_pool_alloc(pool, params * sizeof *s.specs);
  for (int p = 0; p < graph->params.count; p++) s.specs[p] = rf_shard_param(&s.whole, mesh, p);
  RF_TRY(check_fsdp(&s, error));
  graph->tensor_count = graph->op_count = graph->tensor_capacity = graph->op_capacity = 0;
  graph->tensor = NULL;
  graph->op = NULL;
  rf_graph_reserve(graph, 2 * s.whole.tensor_count, 2 * s.whole.op_count);
  graph->mesh = *mesh;
  graph->rows = s.whole.rows / rf_mesh_size(mesh, s.rows);
  rf_sharder_find_gradients(&s);
  make_initial(&s);
  rf_sharder_make_masters(&s);
  for (int o = 0; o < s.whole.op_count; o++) {
    if (s.whole.op[o].section == RF_SECTION_END) RF_TRY(finish_sum(&s));
    RF_TRY(shard_op(&s, &s.whole.op[o]));
  }
  RF_TRY(finish_sum(&s));
  order_early(&s);
  return RAFTER_OK;
}
