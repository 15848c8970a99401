/* shard.c - the program of one chip of a mesh: every op again with the shapes of one chip, and a collective wherever what an op needs is not what the
 * chip has. How operands must lie is said by the rules of the ops; how parameters lie by shard_rules.c. A sum over chips is made where it arises, a
 * dimension is gathered where it is needed: once for forward and once for backward, so that what backward keeps is one chip's part. */
#include "graph/shard.h"

#include "graph/passes.h"

#include <string.h>

/* One gathered copy serves all readers of each; what was exchanged for as many bytes serves both directions. */
enum { FORWARD, BACKWARD, HEAD, ALWAYS };

typedef struct place {
  int id; /* on the chip; RF_NONE: not made yet */
  rf_spec spec;
} place;

typedef struct copied {
  int from, id, when;
  rf_spec spec;
  int next; /* other copies of the same tensor */
} copied;

/* A parameter's gradient on its way: `whole` is this chip's share of the sum in the parameter's shape, where only a run of it is kept. */
typedef struct on_its_way {
  int tensor, last_writer, whole;
  rf_axes partial;
  bool settled;
} on_its_way;

typedef struct sharder {
  rf_graph *graph; /* being made */
  rf_graph whole;  /* as it was */
  const rf_mesh *mesh;
  rf_error *error;
  bool text;            /* rows of a microbatch; elsewhere each chip of a tensor group walks all rows */
  rf_axes rows;         /* that cut the rows of a microbatch */
  place *at;            /* by whole tensor */
  on_its_way *gradient; /* by parameter */
  int *master;          /* by parameter: the optimizer's run of an f32 weight that every chip has whole */
  rf_param_specs *specs;
  copied *copy;
  int *head, copies, copy_capacity, head_capacity;
  int *early_op, *early_at, early_count, early_capacity; /* gathers, and the ops they go before */
  int unit, unit_at, unit_before;
  int when;                    /* of the op in hand */
  int *metrics, metrics_whole; /* sums over microbatches that wait for the end section */
} sharder;

/* ---- specs ------------------------------------------------------------------------------------------------------ */

static bool same_spec(const rf_spec *a, const rf_spec *b) { return !memcmp(a->split, b->split, sizeof a->split) && a->partial == b->partial; }

static rf_axes all_splits(const rf_spec *spec) { return spec->split[0] | spec->split[1] | spec->split[2] | spec->split[3]; }

/* ---- exchanges -------------------------------------------------------------------------------------------------- */

typedef struct exchange {
  const rf_op_def *def;
  int from, to_id; /* RF_WANTED: a new tensor */
  rf_axes axes;
  int dim, to;
  uint8_t form;
  int64_t whole;
  rf_accumulate accumulate;
  rf_spec spec; /* of the result */
  const char *label;
  rf_class class;
} exchange;

static const char *const KINDS[] = {"gathered", "scattered", "reduced", "exchanged", "run"};
static const char *kind_of(const rf_op_def *def) {
  return KINDS[def == &RF_OP_ALL_GATHER ? 0 : def == &RF_OP_REDUCE_SCATTER ? 1 : def == &RF_OP_ALL_REDUCE ? 2 : def == &RF_OP_TAKE_RUN ? 4 : 3];
}

/* A packed matrix in another shape: its parts keep their types. */
static void gather_panels(rf_tensor *to, const rf_tensor *from) {
  int outputs = from->panels.outputs_first ? 0 : 1;
  to->panels = from->panels;
  to->panels.inner = to->shape[1 - outputs];
  for (int i = 0; i < to->panels.parts; i++)
    to->panels.part[i].outputs =
        to->panels.parts == 1 ? to->shape[outputs] : from->panels.part[i].outputs * to->shape[outputs] / from->shape[outputs];
}

static int emit_exchange(sharder *s, const exchange *x, const char *path, rf_section section, bool backward) {
  rf_graph *graph = s->graph;
  const rf_tensor from = graph->tensor[x->from]; /* a copy: the array may grow */
  rf_axes others = (from.spec.split[0] | from.spec.split[1]) & RF_AXIS_BIT(RF_AXIS_TENSOR);
  rf_attr attr = {.axes = x->axes,
                  .group = (int32_t)rf_mesh_size(s->mesh, x->axes),
                  .dim = x->dim,
                  .to = x->to,
                  .form = x->form,
                  .whole = x->whole,
                  .accumulate = {x->accumulate}};
  if (x->form == RF_FORM_HEADS) {
    int64_t chips = rf_mesh_size(s->mesh, others);
    attr.heads = (int32_t)(graph->model.heads / chips), attr.kv_heads = (int32_t)(graph->model.kv_heads / chips),
    attr.head_dim = (int32_t)graph->model.head_dim;
  }
  const char *name = rf_pool_format(graph->pool, "%s/%s%s%s", path, x->def->name, *x->label ? "/" : "", x->label);
  int op = rf_graph_emit(graph, x->def, name, section, &x->from, 1, &x->to_id, 1, &attr, s->error);
  if (op < 0) return RF_NONE;
  int id = graph->op[op].output[0];
  graph->op[op].backward = backward;
  if (x->to_id == RF_WANTED) {
    graph->tensor[id].name = rf_pool_format(graph->pool, "%s/%s%s%s%s", from.name, kind_of(x->def), backward ? "/bwd" : "",
                                            s->when == HEAD ? "/head" : "", x->label[0] == '@' ? x->label : "");
    graph->tensor[id].class = x->class;
    if (from.dtype == RF_PACKED) gather_panels(&graph->tensor[id], &from);
  }
  graph->tensor[id].spec = x->spec;
  return id;
}

/* The last word of a slot's text: "x (M,K)" -> "x". */
static const char *slot_label(sharder *s, const char *slot) { return rf_pool_format(s->graph->pool, "%.*s", (int)strcspn(slot, " "), slot); }

/* Brings tensor `id` from how it lies to how it is needed, one exchange after the other. */
static int convert(sharder *s, int id, rf_spec have, rf_spec need, const char *path, const char *label, rf_section section, bool backward,
                   const int64_t *whole, rf_class class) {
  int rank = s->graph->tensor[id].rank;
  const rf_axes dealt = RF_AXIS_BIT(RF_AXIS_CONTEXT);
  for (int round = 0; round < 16 && !same_spec(&have, &need); round++) {
    if (round) label = rf_pool_format(s->graph->pool, "%s.%d", label, round);
    exchange x = {.from = id, .to_id = RF_WANTED, .label = label, .class = class, .spec = have};
    rf_axes sums = have.partial & (rf_axes)~need.partial;
    for (int d = 0; d < rank && sums && !x.def; d++) {
      rf_axes wanted = sums & need.split[d] & (rf_axes)~have.split[d];
      if (!wanted) continue;
      x.def = &RF_OP_REDUCE_SCATTER, x.axes = wanted, x.dim = d, x.form = d == 0 && wanted == dealt ? RF_FORM_DEALT : RF_FORM_BLOCKS;
      x.spec.split[d] |= wanted, x.spec.partial &= (rf_axes)~wanted;
    }
    if (!x.def && sums) x.def = &RF_OP_ALL_REDUCE, x.axes = sums, x.spec.partial &= (rf_axes)~sums;
    for (int a = 0; a < rank && !x.def; a++)
      for (int b = 0; b < rank && !x.def; b++) {
        rf_axes moved = have.split[a] & (rf_axes)~need.split[a] & need.split[b] & (rf_axes)~have.split[b];
        if (a == b || !moved) continue;
        x.def = &RF_OP_ALL_TO_ALL, x.axes = moved, x.dim = a, x.to = b, x.form = have.form[a] ? have.form[a] : need.form[b];
        x.spec.split[a] &= (rf_axes)~moved, x.spec.split[b] |= moved, x.spec.form[b] = need.form[b];
      }
    for (int d = 0; d < rank && !x.def; d++) {
      rf_axes gathered = have.split[d] & (rf_axes)~need.split[d];
      if (!gathered) continue;
      x.def = &RF_OP_ALL_GATHER, x.axes = gathered, x.dim = d, x.form = d == 0 && gathered == dealt ? RF_FORM_DEALT : have.form[d],
      x.whole = whole ? whole[d] : 0;
      x.spec.split[d] &= (rf_axes)~gathered;
    }
    for (int d = 0; d < rank && !x.def; d++) {
      rf_axes taken = need.split[d] & (rf_axes)~have.split[d];
      if (!taken || s->graph->tensor[id].shape[d] % rf_mesh_size(s->mesh, taken)) continue;
      x.def = &RF_OP_TAKE_RUN, x.axes = taken, x.dim = d;
      x.spec.split[d] |= taken;
    }
    if (!x.def) {
      RF_FAIL(s->error, RAFTER_FAILED, "this is a fault of the planner, please report it", "no exchange makes what an op needs (%s, %s: %s)", path,
              label, s->graph->tensor[id].name);
      return RF_NONE;
    }
    id = emit_exchange(s, &x, path, section, backward);
    if (id == RF_NONE) return RF_NONE;
    have = x.spec;
  }
  return id;
}

/* ---- copies that several readers share -------------------------------------------------------------------------- */

static int find_copy(const sharder *s, int from, const rf_spec *need, int when) {
  if (from >= s->head_capacity) return RF_NONE;
  for (int c = s->head[from]; c != RF_NONE; c = s->copy[c].next)
    if ((s->copy[c].when == when || s->copy[c].when == ALWAYS) && same_spec(&s->copy[c].spec, need)) return s->copy[c].id;
  return RF_NONE;
}

static void *grow(rf_pool *pool, const void *old, int count, int capacity, size_t size) {
  void *fresh = rf_pool_alloc(pool, (size_t)capacity * size);
  if (count) memcpy(fresh, old, (size_t)count * size);
  return fresh;
}

static void keep_copy(sharder *s, int from, const rf_spec *need, int when, int id) {
  rf_pool *pool = s->graph->pool;
  if (from >= s->head_capacity) {
    int capacity = 2 * (from + 256);
    s->head = grow(pool, s->head, s->head_capacity, capacity, sizeof *s->head);
    for (int i = s->head_capacity; i < capacity; i++) s->head[i] = RF_NONE;
    s->head_capacity = capacity;
  }
  if (s->copies == s->copy_capacity) {
    s->copy_capacity = 2 * (s->copies + 256);
    s->copy = grow(pool, s->copy, s->copies, s->copy_capacity, sizeof *s->copy);
  }
  s->copy[s->copies] = (copied){from, id, when, *need, s->head[from]};
  s->head[from] = s->copies++;
}

static int when_of(const rf_op *op) {
  if (op->def == &RF_OP_HEAD_LOSS || op->def == &RF_OP_HEAD_LOSS_BWD || op->def == &RF_OP_HEAD_LOGITS || op->def == &RF_OP_HEAD_SCORE) return HEAD;
  return op->backward ? BACKWARD : FORWARD;
}

/* Weights are gathered one sublayer ahead of their use: those of two sublayers live together. */
static int unit_of(const sharder *s, const rf_op *op, int p) {
  const rf_param *param = &s->whole.params.at[p];
  const char *inside = param->layer < 0 ? param->name : strchr(param->name, '/') + 1;
  return ((param->layer + 1) * 2 + (strncmp(inside, "mlp/", 4) == 0)) * 4 + when_of(op);
}

static void gather_early(sharder *s, const rf_op *op, int p, int first_op) {
  int unit = unit_of(s, op, p);
  if (unit != s->unit) s->unit_before = s->unit == -1 ? first_op : s->unit_at, s->unit_at = first_op, s->unit = unit;
  for (int o = first_op; o < s->graph->op_count; o++) {
    if (s->early_count == s->early_capacity) {
      int capacity = 2 * (s->early_count + 256);
      s->early_op = grow(s->graph->pool, s->early_op, s->early_count, capacity, sizeof(int));
      s->early_at = grow(s->graph->pool, s->early_at, s->early_count, capacity, sizeof(int));
      s->early_capacity = capacity;
    }
    s->early_op[s->early_count] = o, s->early_at[s->early_count++] = s->unit_before;
  }
}

/* The id under which `op` reads whole tensor t as it needs it. */
static rf_status obtain(sharder *s, const rf_op *op, int slot, const rf_spec *need, int *id) {
  int t = op->input[slot], when = s->when = when_of(op), first = s->graph->op_count;
  const rf_tensor *tensor = &s->whole.tensor[t];
  place *at = &s->at[t];
  *id = at->id;
  if (at->id == RF_NONE)
    return RF_FAIL(s->error, RAFTER_FAILED, "this is a fault of the planner, please report it", "%s reads %s before it is there", op->name,
                   tensor->name);
  rf_spec exact = *need;
  for (int d = tensor->rank; d < 4; d++) exact.split[d] = at->spec.split[d];
  if (same_spec(&at->spec, &exact)) return RAFTER_OK;
  *id = find_copy(s, at->id, &exact, when);
  if (*id != RF_NONE) return RAFTER_OK;
  bool weight = tensor->param >= 0 && (tensor->class == RF_CLASS_WEIGHT || tensor->class == RF_CLASS_ADAPTER);
  int64_t whole[RF_MAX_RANK];
  for (int d = 0; d < tensor->rank && weight; d++) whole[d] = rf_shard_extent(&s->whole, s->mesh, tensor->param, &exact, d, tensor->shape[d]);
  *id = convert(s, at->id, at->spec, exact, op->name, slot_label(s, op->def->inputs[slot]), op->section, op->backward, weight ? whole : NULL,
                RF_CLASS_COLLECTIVE);
  if (*id == RF_NONE) return RAFTER_FAILED;
  if (s->graph->op[s->graph->op_count - 1].def == &RF_OP_ALL_TO_ALL && s->graph->op_count == first + 1) {
    when = ALWAYS;
    s->graph->tensor[*id].class = tensor->class;
  }
  if (weight) s->graph->tensor[*id].param = tensor->param;
  keep_copy(s, at->id, &exact, when, *id);
  if (weight) gather_early(s, op, tensor->param, first);
  return RAFTER_OK;
}

/* ---- tensors that are there from the start ---------------------------------------------------------------------- */

static int local_tensor(sharder *s, int t, const rf_spec *spec) {
  const rf_tensor *old = &s->whole.tensor[t];
  int64_t shape[RF_MAX_RANK];
  for (int d = 0; d < old->rank; d++) shape[d] = rf_shard_extent(&s->whole, s->mesh, old->param, spec, d, old->shape[d]);
  int id = rf_graph_tensor(s->graph, old->name, old->class, old->dtype, old->rank, shape);
  rf_tensor *fresh = &s->graph->tensor[id];
  fresh->param = old->param, fresh->persistent = old->persistent, fresh->input = old->input, fresh->output = old->output;
  fresh->reason = old->reason, fresh->panels = old->panels, fresh->spec = *spec;
  if (old->dtype == RF_PACKED) {
    int outputs = old->panels.outputs_first ? 0 : 1, inner = 1 - outputs;
    int64_t chips = rf_mesh_size(s->mesh, spec->split[outputs]);
    fresh->panels.inner = shape[inner];
    for (int i = 0; i < fresh->panels.parts; i++)
      fresh->panels.part[i].outputs = fresh->panels.parts == 1 ? shape[outputs] : (old->panels.part[i].outputs + chips - 1) / chips;
  }
  return id;
}

/* Rows of what the caller writes; a list of where segments begin has one more entry than rows. */
static rf_spec input_spec(const sharder *s, const rf_tensor *tensor, int64_t *extent) {
  rf_axes rows = s->rows;
  *extent = 0;
  if (tensor->rank != 1 || s->rows == 0) return (rf_spec){0};
  if (tensor->shape[0] == s->whole.rows + 1) {
    rows &= (rf_axes) ~(RF_AXIS_BIT(RF_AXIS_CONTEXT) | RF_AXIS_BIT(RF_AXIS_SEQUENCE));
    *extent = s->whole.rows / rf_mesh_size(s->mesh, rows) + 1;
  }
  return rf_spec_of(rows, 0, RF_FORM_BLOCKS);
}

/* Keys and values of the heads that a chip has. */
static rf_spec cache_spec(const sharder *s) {
  return (rf_spec){.split = {0, 0, 0, rf_mesh_live(s->mesh, RF_AXIS_BIT(RF_AXIS_TENSOR))}, .form = {0, 0, 0, RF_FORM_KEYS}};
}

static void make_cache(sharder *s, int t, rf_spec *spec) {
  *spec = cache_spec(s);
  int64_t chips = rf_mesh_size(s->mesh, spec->split[3]), heads = s->whole.model.kv_heads, per_head = s->whole.tensor[t].shape[3] / heads;
  int id = local_tensor(s, t, spec);
  s->graph->tensor[id].shape[3] = (heads > chips ? heads / chips : 1) * per_head;
  s->at[t] = (place){id, *spec};
}

static void make_standing(sharder *s) {
  const rf_graph *old = &s->whole;
  for (int t = 0; t < old->tensor_count; t++) {
    const rf_tensor *tensor = &old->tensor[t];
    rf_spec spec = {0};
    int64_t extent = 0;
    s->at[t] = (place){RF_NONE, {{0}, 0, {0}}};
    bool gradient = tensor->class == RF_CLASS_GRADIENT && tensor->param >= 0,
         sums = tensor->class == RF_CLASS_ACTIVATION && tensor->dtype == RF_F64 && tensor->rank == 1 && !strcmp(tensor->name, "gradient/sums");
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
    int id = local_tensor(s, t, &spec);
    if (extent) s->graph->tensor[id].shape[0] = extent;
    if (sums) spec.partial = rf_mesh_live(s->mesh, 0xff);
    s->at[t] = (place){id, spec};
  }
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

static bool scatters(const sharder *s, int p) { return s->specs[p].gathered && s->mesh->zero >= 2; }

/* Where an op writes a parameter's gradient, and how. */
static int gradient_target(sharder *s, int t, rf_accumulate *how) {
  const rf_tensor *tensor = &s->whole.tensor[t];
  on_its_way *g = &s->gradient[tensor->param];
  if (!scatters(s, tensor->param)) return s->at[t].id;
  *how = g->whole == RF_NONE ? RF_WRITE : RF_ACCUMULATE_ADD;
  if (g->whole == RF_NONE) {
    g->whole = local_tensor(s, t, &s->specs[tensor->param].use);
    rf_tensor *whole = &s->graph->tensor[g->whole];
    whole->name = rf_graph_join(s->graph, tensor->name, "/whole", "");
    whole->class = RF_CLASS_COLLECTIVE;
    whole->reason = "until its sum over chips is made";
  }
  return g->whole;
}

static rf_axes state_axes(const sharder *s, int p) { return all_splits(&s->specs[p].state) & (rf_axes)~all_splits(&s->specs[p].use); }
static int state_dim(const sharder *s, int p) { return s->specs[p].state.split[0] != s->specs[p].use.split[0] ? 0 : 1; }

/* Behind the last writer in a microbatch: this chip keeps its run only. */
static rf_status scatter_gradient(sharder *s, const rf_op *op, int t) {
  int p = s->whole.tensor[t].param;
  on_its_way *g = &s->gradient[p];
  exchange x = {.def = &RF_OP_REDUCE_SCATTER,
                .from = g->whole,
                .to_id = s->at[t].id,
                .axes = state_axes(s, p),
                .dim = state_dim(s, p),
                .label = slot_label(s, s->whole.tensor[t].name),
                .accumulate = s->whole.accumulate > 1 ? RF_ACCUMULATE_MICRO : RF_WRITE,
                .spec = s->specs[p].state};
  g->partial &= (rf_axes)~x.axes;
  return emit_exchange(s, &x, op->name, op->section, true) == RF_NONE ? RAFTER_FAILED : RAFTER_OK;
}

/* The rest of a gradient's sum, before the optimizer reads it: over what still holds different shares of it; across the data-centre network only
 * after each slice has summed its own, so that a chip sends a run of it. */
static rf_status settle_gradient(sharder *s, const rf_op *op, int t) {
  int p = s->whole.tensor[t].param;
  on_its_way *g = &s->gradient[p];
  place *at = &s->at[t];
  const char *path = rf_pool_format(s->graph->pool, "%s/%s", op->section == RF_SECTION_MICRO ? "step/micro" : "step/end", s->whole.tensor[t].name);
  rf_spec have = at->spec, need = at->spec;
  g->settled = true;
  have.partial = g->partial;
  if (s->specs[p].gathered && s->mesh->zero == 1) need = s->specs[p].state;
  rf_axes slice = have.partial & RF_AXIS_BIT(RF_AXIS_SLICE), inside = have.partial & (rf_axes)~slice & (rf_axes)~all_splits(&need);
  bool runs = slice && inside && s->whole.tensor[t].rank == 2;
  int64_t extent = s->graph->tensor[at->id].shape[0];
  if (runs && same_spec(&(rf_spec){.split = {need.split[0], need.split[1]}}, &(rf_spec){.split = {have.split[0], have.split[1]}})) {
    rf_spec run = need;
    run.split[0] |= inside, run.partial = slice;
    at->id = convert(s, at->id, have, run, path, "@slice", op->section, true, NULL, RF_CLASS_GRADIENT);
    if (at->id == RF_NONE) return RAFTER_FAILED;
    have = run, run.partial = 0;
    at->id = convert(s, at->id, have, run, path, "@slice", op->section, true, NULL, RF_CLASS_GRADIENT);
    if (at->id == RF_NONE) return RAFTER_FAILED;
    have = run;
    at->id = convert(s, at->id, have, need, path, "@slice", op->section, true, &extent, RF_CLASS_GRADIENT);
  } else {
    at->id = convert(s, at->id, have, need, path, "", op->section, true, NULL, RF_CLASS_GRADIENT);
  }
  if (at->id == RF_NONE) return RAFTER_FAILED;
  at->spec = need;
  return RAFTER_OK;
}

/* ---- ops -------------------------------------------------------------------------------------------------------- */

static bool is_gradient(const rf_tensor *tensor) { return tensor->class == RF_CLASS_GRADIENT && tensor->param >= 0; }

/* Where a sum over chips arises it is made at once: each chip of a tensor group keeps a run of the rows, or all keep all. */
static rf_spec made_whole(const sharder *s, const rf_tensor *tensor, rf_spec spec) {
  rf_axes tensor_axis = RF_AXIS_BIT(RF_AXIS_TENSOR), both = tensor_axis | RF_AXIS_BIT(RF_AXIS_SEQUENCE);
  rf_axes runs = spec.partial & both;
  if (s->text && runs && tensor->rank == 2 && !(spec.split[1] & runs) && tensor->shape[0] % rf_mesh_size(s->mesh, runs) == 0) spec.split[0] |= runs;
  spec.partial = 0;
  return spec;
}

static rf_status settle_output(sharder *s, const rf_op *op, int slot, int id, rf_spec spec, bool keeps_sums) {
  int t = op->output[slot];
  const rf_tensor *old = &s->whole.tensor[t];
  rf_tensor *fresh = &s->graph->tensor[id];
  fresh->reason = old->reason, fresh->spec = spec;
  rf_spec need = keeps_sums ? spec : made_whole(s, fresh, spec);
  if (old->output) need.split[1] = 0;
  if (!same_spec(&spec, &need)) {
    const char *name = fresh->name;
    rf_class class = fresh->class;
    fresh->class = RF_CLASS_COLLECTIVE;
    fresh->name = rf_graph_join(s->graph, name, spec.partial ? "/partial" : "/part", "");
    fresh->reason = NULL;
    id = convert(s, id, spec, need, op->name, slot_label(s, op->def->outputs[slot]), op->section, op->backward, old->shape, class);
    if (id == RF_NONE) return RAFTER_FAILED;
    if (op->def == &RF_OP_HEAD_LOGITS && slot == 1) s->graph->op[s->graph->op_count - 1].attr.index = 1;
    fresh = &s->graph->tensor[id];
    fresh->name = name, fresh->reason = old->reason;
  }
  fresh->output = old->output;
  if (old->output) fresh->name = old->name, fresh->class = old->class;
  s->at[t] = (place){id, need};
  return RAFTER_OK;
}

/* What a microbatch adds up for the caller is summed over chips in the end. */
static rf_status metrics_target(sharder *s, int t, int *id) {
  const rf_tensor *tensor = &s->whole.tensor[t];
  *id = rf_graph_tensor(s->graph, rf_graph_join(s->graph, tensor->name, "/part", ""), tensor->class, tensor->dtype, tensor->rank, tensor->shape);
  s->metrics_whole = t;
  return RAFTER_OK;
}

static rf_status finish_metrics(sharder *s) {
  int t = s->metrics_whole;
  if (t == RF_NONE) return RAFTER_OK;
  s->metrics_whole = RF_NONE;
  int whole = local_tensor(s, t, &(rf_spec){.split = {0}});
  exchange x = {.def = &RF_OP_ALL_REDUCE, .from = s->at[t].id, .to_id = whole, .axes = s->at[t].spec.partial, .label = ""};
  return emit_exchange(s, &x, "step/end/metrics", RF_SECTION_END, false) == RF_NONE ? RAFTER_FAILED : RAFTER_OK;
}

/* Weights that all chips have whole are put together again from the runs that each has updated. */
static rf_status gather_updated(sharder *s, const rf_op *op, int p, int from, int weight) {
  exchange x = {.def = &RF_OP_ALL_GATHER,
                .from = from,
                .to_id = s->at[weight].id,
                .axes = state_axes(s, p),
                .dim = state_dim(s, p),
                .whole = s->graph->tensor[s->at[weight].id].shape[state_dim(s, p)],
                .label = "",
                .spec = s->specs[p].use};
  return emit_exchange(s, &x, op->name, op->section, false) == RF_NONE ? RAFTER_FAILED : RAFTER_OK;
}

static rf_status shard_adamw(sharder *s, const rf_op *op) {
  int g = op->input[0], p = s->whole.tensor[g].param, weight = op->output[3] == RF_NONE ? op->output[0] : op->output[3];
  bool updates_run = s->specs[p].gathered && s->mesh->zero < 3;
  int inputs[RF_MAX_INPUTS], outputs[RF_MAX_OUTPUTS] = {RF_NONE};
  if (!s->gradient[p].settled) RF_TRY(settle_gradient(s, op, g));
  for (int i = 0; i < op->input_count; i++) inputs[i] = op->input[i] < 0 ? RF_NONE : s->at[op->input[i]].id;
  if (updates_run && op->output[3] == RF_NONE) inputs[1] = s->master[p];
  for (int i = 0; i < 3; i++) outputs[i] = inputs[i + 1];
  outputs[3] = op->output[3] == RF_NONE ? RF_NONE : updates_run ? RF_WANTED : s->at[weight].id;
  int id = rf_graph_emit(s->graph, op->def, op->name, op->section, inputs, op->input_count, outputs, op->output_count, &op->attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  if (!updates_run) return RAFTER_OK;
  if (op->output[3] == RF_NONE) return gather_updated(s, op, p, s->master[p], weight);
  int run = s->graph->op[id].output[3];
  s->graph->tensor[run].class = RF_CLASS_COLLECTIVE;
  s->graph->tensor[run].name = rf_graph_join(s->graph, s->whole.tensor[weight].name, "/run", "");
  return gather_updated(s, op, p, run, weight);
}

/* Rows go to the chips that have their experts, run by run, and what those say comes back the same way. */
static int to_experts(sharder *s, const rf_op *op, int id, const char *label) {
  const rf_spec exchanged = {.split = {0, 0, 0, 0xff}};
  int found = find_copy(s, id, &exchanged, ALWAYS);
  if (found != RF_NONE) return found;
  exchange x = {.def = &RF_OP_ALL_TO_ALL,
                .from = id,
                .to_id = RF_WANTED,
                .axes = RF_AXIS_BIT(RF_AXIS_EXPERT),
                .label = label,
                .spec = s->graph->tensor[id].spec,
                .class = s->graph->tensor[id].class};
  int made = emit_exchange(s, &x, op->name, op->section, op->backward);
  if (made != RF_NONE) keep_copy(s, id, &exchanged, ALWAYS, made);
  return made;
}

static bool deals_experts(const sharder *s) { return rf_mesh_extent(s->mesh, RF_AXIS_EXPERT) > 1; }
static bool brings_back(const rf_op *op) { return op->def == &RF_OP_COMBINE || op->def == &RF_OP_COMBINE_BWD || op->def == &RF_OP_DISPATCH_BWD; }
static bool sends_out(const rf_op *op) { return op->def == &RF_OP_DISPATCH || op->def == &RF_OP_COMBINE_BWD; }

static rf_status emit_local(sharder *s, const rf_op *op, rf_sharding *r) {
  int inputs[RF_MAX_INPUTS], outputs[RF_MAX_OUTPUTS];
  for (int i = 0; i < op->input_count; i++) {
    inputs[i] = RF_NONE;
    if (op->input[i] >= 0) RF_TRY(obtain(s, op, i, &r->in[i], &inputs[i]));
  }
  if (deals_experts(s) && brings_back(op)) inputs[0] = to_experts(s, op, inputs[0], "back");
  if (inputs[0] == RF_NONE && op->input[0] >= 0) return RAFTER_FAILED;
  for (int i = 0; i < op->output_count; i++) {
    int t = op->output[i];
    outputs[i] = t < 0 ? RF_NONE : RF_WANTED;
    if (t < 0) continue;
    const rf_tensor *tensor = &s->whole.tensor[t];
    if (is_gradient(tensor)) outputs[i] = gradient_target(s, t, &r->attr.accumulate[i]);
    else if (s->at[t].id != RF_NONE) outputs[i] = s->at[t].id;
    else if (op->def == &RF_OP_LOSS_SUM) RF_TRY(metrics_target(s, t, &outputs[i]));
  }
  int id = rf_graph_emit(s->graph, op->def, op->name, op->section, inputs, op->input_count, outputs, op->output_count, &r->attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  s->graph->op[id].backward = op->backward;
  for (int i = 0; i < op->output_count; i++) {
    int t = op->output[i], made = s->graph->op[id].output[i];
    if (t < 0) continue;
    const rf_tensor *tensor = &s->whole.tensor[t];
    if (is_gradient(tensor)) {
      on_its_way *g = &s->gradient[tensor->param];
      if (g->partial && g->partial != r->out[i].partial)
        return RF_FAIL(s->error, RAFTER_FAILED, "this is a fault of the planner, please report it",
                       "%s is summed over different chips by its writers", tensor->name);
      g->partial = r->out[i].partial;
      if (scatters(s, tensor->param) && (int)(op - s->whole.op) == g->last_writer) RF_TRY(scatter_gradient(s, op, t));
    } else if (t == s->metrics_whole) {
      s->at[t] = (place){made, r->out[i]};
    } else if (outputs[i] == RF_WANTED) {
      RF_TRY(settle_output(s, op, i, made, r->out[i], r->keeps_sums));
      if (i == 0 && deals_experts(s) && sends_out(op)) s->at[t].id = to_experts(s, op, s->at[t].id, "out");
      if (s->at[t].id == RF_NONE) return RAFTER_FAILED;
    } else if (s->at[t].id == RF_NONE) {
      s->at[t] = (place){made, r->out[i]};
    }
  }
  return RAFTER_OK;
}

static rf_spec spec_of_input(const sharder *s, int t) {
  const rf_tensor *tensor = &s->whole.tensor[t];
  bool weight = tensor->param >= 0 && (tensor->class == RF_CLASS_WEIGHT || tensor->class == RF_CLASS_ADAPTER);
  return weight ? s->specs[tensor->param].use : s->at[t].spec;
}

/* A head whose words are cut: each chip says what it knows of a row, and all put it together. */
static rf_status shard_head(sharder *s, const rf_op *op) {
  rf_graph *graph = s->graph;
  bool score = op->def == &RF_OP_HEAD_SCORE;
  rf_sharding r = {.graph = &s->whole, .op = op, .mesh = s->mesh, .attr = op->attr};
  int inputs[4], parts, id;
  const char *path = rf_pool_format(graph->pool, "%.*s", (int)(strlen(op->name) - strlen("/fwd")), op->name);
  for (int i = 0; i < 4; i++)
    if (op->input[i] >= 0) r.in[i] = spec_of_input(s, op->input[i]);
  RF_TRY(RF_OP_HEAD_PART.shard(&r, s->error));
  r.attr.index = 0;
  for (int i = 0; i < 4; i++) {
    inputs[i] = RF_NONE;
    if (op->input[i] >= 0) RF_TRY(obtain(s, op, i, &r.in[i], &inputs[i]));
  }
  id = rf_graph_emit(graph, &RF_OP_HEAD_PART, rf_graph_join(graph, path, "/part", ""), op->section, inputs, 4, (const int[]){RF_WANTED}, 1, &r.attr,
                     s->error);
  if (id < 0) return RAFTER_INVALID;
  exchange x = {.def = &RF_OP_ALL_GATHER,
                .from = graph->op[id].output[0],
                .to_id = RF_WANTED,
                .axes = r.attr.axes,
                .dim = 1,
                .label = "",
                .spec = r.out[0],
                .class = RF_CLASS_COLLECTIVE};
  parts = emit_exchange(s, &x, path, op->section, false);
  if (parts == RF_NONE) return RAFTER_FAILED;
  int outputs[] = {score ? RF_NONE : RF_WANTED, score ? RF_NONE : RF_WANTED, score || op->output[2] == RF_NONE ? RF_NONE : RF_WANTED,
                   score ? RF_WANTED : RF_NONE};
  id = rf_graph_emit(graph, &RF_OP_HEAD_MERGE, rf_graph_join(graph, path, "/merge", ""), op->section, (const int[]){parts, inputs[3]}, 2, outputs, 4,
                     NULL, s->error);
  if (id < 0) return RAFTER_INVALID;
  rf_op merge = graph->op[id];
  for (int i = 0; i < (score ? 1 : 3); i++) {
    int t = op->output[i], made = merge.output[score ? 3 : i];
    if (t < 0 || made < 0) continue;
    graph->tensor[made].spec = r.out[0], graph->tensor[made].output = s->whole.tensor[t].output,
    graph->tensor[made].reason = s->whole.tensor[t].reason;
    graph->tensor[made].name = s->whole.tensor[t].name, graph->tensor[made].class = s->whole.tensor[t].class;
    s->at[t] = (place){made, r.out[0]};
  }
  return RAFTER_OK;
}

/* What an op of a part of the rows' attention makes. */
static rf_status made_part(sharder *s, const rf_op *op, int slot, int id, rf_spec spec) {
  int t = op->output[slot];
  s->graph->tensor[id].spec = spec, s->graph->tensor[id].reason = s->whole.tensor[t].reason, s->graph->tensor[id].name = s->whole.tensor[t].name;
  s->at[t] = (place){id, spec};
  return RAFTER_OK;
}

/* Tokens dealt out along context: queries stay, keys and values of all chips are gathered, and their gradients summed to where they belong. */
static rf_status shard_context(sharder *s, const rf_op *op) {
  rf_graph *graph = s->graph;
  bool backward = op->def == &RF_OP_ATTENTION_BWD;
  rf_axes axes = RF_AXIS_BIT(RF_AXIS_CONTEXT);
  rf_sharding r = {.graph = &s->whole, .op = op, .mesh = s->mesh, .attr = op->attr};
  int inputs[RF_MAX_INPUTS], id;
  for (int i = 0; i < op->input_count; i++) r.in[i] = spec_of_input(s, op->input[i]);
  RF_TRY(op->def->shard(&r, s->error));
  for (int i = 0; i < op->input_count; i++) RF_TRY(obtain(s, op, i, &r.in[i], &inputs[i]));
  r.attr.axes = axes, r.attr.group = (int32_t)rf_mesh_size(s->mesh, axes);
  id = rf_graph_emit(graph, &RF_OP_KV_ROWS, rf_graph_join(graph, op->name, "/kv_rows", ""), op->section, inputs, 1, (const int[]){RF_WANTED}, 1,
                     &r.attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  graph->op[id].backward = backward;
  rf_spec mine = rf_spec_of(r.in[0].split[0], r.in[0].split[1], RF_FORM_BLOCKS), all = mine;
  all.split[0] &= (rf_axes)~axes;
  graph->tensor[graph->op[id].output[0]].spec = mine;
  int kv = convert(s, graph->op[id].output[0], mine, all, op->name, "kv", op->section, backward, NULL, RF_CLASS_COLLECTIVE);
  if (kv == RF_NONE) return RAFTER_FAILED;
  if (!backward) {
    id = rf_graph_emit(graph, &RF_OP_ATTENTION_PART, op->name, op->section, (const int[]){inputs[0], kv, inputs[1]}, 3,
                       (const int[]){RF_WANTED, RF_WANTED}, 2, &r.attr, s->error);
    if (id < 0) return RAFTER_INVALID;
    int made[] = {graph->op[id].output[0], graph->op[id].output[1]};
    RF_TRY(made_part(s, op, 0, made[0], r.out[0]));
    return made_part(s, op, 1, made[1], r.out[1]);
  }
  id =
      rf_graph_emit(graph, &RF_OP_ATTENTION_PART_BWD, op->name, op->section, (const int[]){inputs[0], kv, inputs[1], inputs[2], inputs[3], inputs[4]},
                    6, (const int[]){RF_WANTED, RF_WANTED}, 2, &r.attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  graph->op[id].backward = true;
  int dq = graph->op[id].output[0], dkv = graph->op[id].output[1];
  graph->tensor[dkv].class = RF_CLASS_COLLECTIVE;
  all.partial = axes;
  dkv = convert(s, dkv, all, mine, op->name, "dkv", op->section, true, NULL, RF_CLASS_ACTIVATION);
  if (dkv == RF_NONE) return RAFTER_FAILED;
  r.attr.axes = 0, r.attr.group = 0;
  id = rf_graph_emit(graph, &RF_OP_KV_JOIN, rf_graph_join(graph, op->name, "/kv_join", ""), op->section, (const int[]){dq, dkv}, 2,
                     (const int[]){RF_WANTED}, 1, &r.attr, s->error);
  if (id < 0) return RAFTER_INVALID;
  graph->op[id].backward = true;
  return made_part(s, op, 0, graph->op[id].output[0], r.out[0]);
}

static bool cuts_context(const sharder *s, const rf_op *op) {
  if (op->def != &RF_OP_ATTENTION && op->def != &RF_OP_ATTENTION_BWD) return false;
  return (s->rows & RF_AXIS_BIT(RF_AXIS_CONTEXT)) != 0;
}

static bool cuts_words(const sharder *s, const rf_op *op) {
  if (op->def != &RF_OP_HEAD_LOSS && (op->def != &RF_OP_HEAD_SCORE || op->attr.index > 0)) return false;
  return spec_of_input(s, op->input[1]).split[op->attr.transpose ? 0 : 1] != 0;
}

static rf_status shard_op(sharder *s, const rf_op *op) {
  if (op->def == &RF_OP_ADAMW) return shard_adamw(s, op);
  if (cuts_words(s, op)) return shard_head(s, op);
  if (cuts_context(s, op)) return shard_context(s, op);
  rf_sharding r = {.graph = &s->whole, .op = op, .mesh = s->mesh, .attr = op->attr};
  for (int i = 0; i < op->input_count; i++) {
    int t = op->input[i];
    if (t < 0) continue;
    const rf_tensor *tensor = &s->whole.tensor[t];
    if (is_gradient(tensor) && !s->gradient[tensor->param].settled) RF_TRY(settle_gradient(s, op, t));
    r.in[i] = spec_of_input(s, t);
  }
  for (int i = 0; i < op->output_count; i++) {
    int t = op->output[i];
    if (t >= 0 && s->whole.tensor[t].param >= 0) r.out[i] = s->specs[s->whole.tensor[t].param].use;
    else if (t >= 0 && s->at[t].id != RF_NONE) r.out[i] = s->at[t].spec;
  }
  if (!op->def->shard)
    return RF_FAIL(s->error, RAFTER_INVALID, "leave --mesh out", "this version cannot cut %s over chips (%s)", op->def->name, op->name);
  RF_TRY(op->def->shard(&r, s->error));
  return emit_local(s, op, &r);
}

/* ---- the pass --------------------------------------------------------------------------------------------------- */

static void order_early(sharder *s) {
  rf_graph *graph = s->graph;
  if (!s->early_count) return;
  int ops = graph->op_count, count = 0;
  int *next = rf_pool_alloc(graph->pool, (size_t)s->early_count * sizeof(int)), *head = rf_pool_alloc(graph->pool, (size_t)ops * sizeof(int)),
      *order = rf_pool_alloc(graph->pool, (size_t)ops * sizeof(int));
  bool *moved = rf_pool_alloc(graph->pool, (size_t)ops);
  for (int o = 0; o < ops; o++) head[o] = RF_NONE;
  for (int i = s->early_count - 1; i >= 0; i--) next[i] = head[s->early_at[i]], head[s->early_at[i]] = i, moved[s->early_op[i]] = true;
  for (int o = 0; o < ops; o++) {
    for (int i = head[o]; i != RF_NONE; i = next[i]) order[count++] = s->early_op[i];
    if (!moved[o]) order[count++] = o;
  }
  rf_graph_reorder(graph, order, count);
}

static void find_gradients(sharder *s) {
  const rf_graph *old = &s->whole;
  for (int p = 0; p < old->params.count; p++) s->gradient[p] = (on_its_way){RF_NONE, RF_NONE, RF_NONE, 0, false}, s->master[p] = RF_NONE;
  for (int o = 0; o < old->op_count; o++)
    for (int i = 0; i < old->op[o].output_count; i++) {
      int t = old->op[o].output[i];
      if (t >= 0 && is_gradient(&old->tensor[t])) s->gradient[old->tensor[t].param].tensor = t, s->gradient[old->tensor[t].param].last_writer = o;
    }
}

/* An f32 weight that every chip has whole is updated in runs: each chip's run is a state of its own. */
static void make_masters(sharder *s) {
  const rf_graph *old = &s->whole;
  for (int o = 0; o < old->op_count && s->mesh->zero >= 1 && s->mesh->zero < 3; o++) {
    const rf_op *op = &old->op[o];
    if (op->def != &RF_OP_ADAMW || op->output[3] != RF_NONE) continue;
    int t = op->output[0], p = old->tensor[t].param;
    if (!s->specs[p].gathered) continue;
    int id = s->master[p] = local_tensor(s, t, &s->specs[p].state);
    s->graph->tensor[id].name = rf_graph_join(s->graph, old->tensor[t].name, "/master", "");
    s->graph->tensor[id].class = RF_CLASS_MASTER;
    s->graph->tensor[id].reason = "the run of the weight that this chip updates";
  }
}

rf_status rf_pass_shard(rf_graph *graph, const rf_mesh *mesh, rf_error *error) {
  rf_pool *pool = graph->pool;
  size_t tensors = (size_t)graph->tensor_count, params = (size_t)graph->params.count;
  sharder s = {.graph = graph, .whole = *graph, .mesh = mesh, .error = error, .unit = -1, .metrics_whole = RF_NONE};
  bool text = graph->tensor_count && rf_graph_find(graph, "labels") != RF_NONE;
  s.text = text;
  s.rows = text ? rf_mesh_live(mesh, (rf_axes) ~(RF_AXIS_BIT(RF_AXIS_TENSOR) | RF_AXIS_BIT(RF_AXIS_PIPELINE))) : 0;
  s.at = rf_pool_alloc(pool, tensors * sizeof *s.at);
  s.gradient = rf_pool_alloc(pool, params * sizeof *s.gradient);
  s.master = rf_pool_alloc(pool, params * sizeof *s.master);
  s.specs = rf_pool_alloc(pool, params * sizeof *s.specs);
  for (int p = 0; p < graph->params.count; p++) s.specs[p] = rf_shard_param(&s.whole, mesh, p);
  graph->tensor_count = graph->op_count = graph->tensor_capacity = graph->op_capacity = 0;
  graph->tensor = NULL, graph->op = NULL;
  rf_graph_reserve(graph, 2 * s.whole.tensor_count, 2 * s.whole.op_count);
  graph->mesh = *mesh;
  graph->rows = s.whole.rows / rf_mesh_size(mesh, s.rows);
  find_gradients(&s);
  make_standing(&s);
  make_masters(&s);
  for (int o = 0; o < s.whole.op_count; o++) {
    if (s.whole.op[o].section == RF_SECTION_END) RF_TRY(finish_metrics(&s));
    RF_TRY(shard_op(&s, &s.whole.op[o]));
  }
  RF_TRY(finish_metrics(&s));
  order_early(&s);
  return RAFTER_OK;
}
