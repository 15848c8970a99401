/* shard_exchange.c - collectives of the shard pass, which give a tensor the sharding that an op
 * needs. Ops that need the same sharding of a tensor share one copy. */
#include "graph/mesh/shard_pass.h"
#include "graph/passes.h"

#include <string.h>

bool rf_spec_same(const rf_spec *a, const rf_spec *b) {
  return !memcmp(a->split, b->split, sizeof a->split) && a->partial == b->partial;
}

rf_axes rf_spec_splits(const rf_spec *spec) {
  return spec->split[0] | spec->split[1] | spec->split[2] | spec->split[3];
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static const char *const KINDS[RF_EXCHANGES] = {
    [RF_EXCHANGE_NONE] = "run",           [RF_EXCHANGE_ALL_GATHER] = "gathered",
    [RF_EXCHANGE_ALL_REDUCE] = "reduced", [RF_EXCHANGE_REDUCE_SCATTER] = "scattered",
    [RF_EXCHANGE_PERMUTE] = "exchanged",  [RF_EXCHANGE_ALL_TO_ALL] = "exchanged"};

/* Sets the layout of a gathered packed matrix. The parts of the matrix keep their quantised
 * types. */
static void gather_panels(rf_tensor *to, const rf_tensor *from) {
  int outputs = from->panels.outputs_first ? 0 : 1;
  to->panels = from->panels;
  to->panels.inner = to->shape[1 - outputs] / rf_panels_experts(&to->panels);
  for (int i = 0; i < to->panels.parts; i++)
    to->panels.part[i].outputs =
        to->panels.parts == 1 ? to->shape[outputs]
                              : from->panels.part[i].outputs * to->shape[outputs] / from->shape[outputs];
}

int rf_sharder_exchange(rf_sharder *s, const rf_exchange *x, rf_origin origin) {
  rf_graph *graph = s->graph;
  const rf_tensor from = graph->tensor[x->from]; /* a copy, because a new tensor may move the array */
  rf_axes others = (from.spec.split[0] | from.spec.split[1]) & RF_AXIS_BIT(RF_AXIS_TENSOR);
  rf_attr attr = {.axes = x->axes,
                  .group = (int32_t)rf_mesh_size(s->mesh, x->axes),
                  .fill = x->fill,
                  .accumulate = {x->accumulate},
                  .collective = {.dim = x->dim, .to = x->to, .form = x->form, .whole = x->whole}};
  if (x->copies.chips > 1) {
    attr.group = (int32_t)x->copies.chips;
    attr.collective.own_columns = x->copies.own;
  }
  if (x->form == RF_FORM_HEADS) {
    int64_t chips = rf_mesh_size(s->mesh, others);
    attr.collective.heads = (int32_t)(graph->model.heads / chips);
    attr.collective.kv_heads = (int32_t)(graph->model.kv_heads > chips ? graph->model.kv_heads / chips : 1);
    attr.collective.head_dim = (int32_t)graph->model.head_dim;
  }
  const char *name =
      rf_pool_format(graph->pool, "%s/%s%s%s", origin.path, x->def->name, *x->label ? "/" : "", x->label);
  int op =
      rf_graph_emit(graph, x->def, name, origin.section, RF_IDS(x->from), RF_IDS(x->to_id), &attr, s->error);
  if (op < 0) return RF_NONE;
  int id = graph->op[op].output[0];
  graph->op[op].backward = origin.backward;
  if (x->to_id == RF_WANTED) {
    graph->tensor[id].name = rf_pool_format(
        graph->pool, "%s/%s%s%s%s", from.name, KINDS[x->def->exchange], origin.backward ? "/bwd" : "",
        s->when == RF_SCOPE_HEAD ? "/head" : "", x->label[0] == '@' ? x->label : "");
    graph->tensor[id].class = x->class;
    if (from.dtype == RF_PACKED) gather_panels(&graph->tensor[id], &from);
  }
  graph->tensor[id].spec = x->spec;
  graph->tensor[id].saved = from.saved;
  return id;
}

const char *rf_sharder_label(rf_sharder *s, const char *slot) {
  return rf_pool_format(s->graph->pool, "%.*s", (int)strcspn(slot, " "), slot);
}

/* The axes that one exchange gathers, or that one op takes a run of. Along the axis context, a chip
 * has every n-th row of the block that the outer axes give it. The inner axes shard these rows. */
static rf_axes one_of_rows(rf_axes axes, rf_axes strided, bool gathers) {
  rf_axes outer = axes & (rf_axes)(strided - 1), inner = axes & (rf_axes) ~(outer | strided);
  if (!(axes & strided) || axes == strided) return axes;
  if (gathers) return inner ? inner : strided;
  return outer ? outer : strided;
}

int rf_sharder_convert(rf_sharder *s, int id, rf_spec have, rf_spec need, rf_origin origin, const char *label,
                       const int64_t *whole, rf_class class) {
  int rank = s->graph->tensor[id].rank;
  /* along the axis context, a chip gets every n-th token in train and score jobs, and a block of
   * tokens in generation */
  const rf_axes strided = s->text ? RF_AXIS_BIT(RF_AXIS_CONTEXT) : 0;
  for (int round = 0; round < 16 && !rf_spec_same(&have, &need); round++) {
    if (round) label = rf_pool_format(s->graph->pool, "%s.%d", label, round);
    rf_exchange x = {.from = id, .to_id = RF_WANTED, .label = label, .class = class, .spec = have};
    rf_axes sums = have.partial & (rf_axes)~need.partial;
    for (int d = 0; d < rank && sums && !x.def; d++) {
      rf_axes wanted = sums & need.split[d] & (rf_axes)~have.split[d];
      if (!wanted) continue;
      x.def = &RF_OP_REDUCE_SCATTER;
      x.axes = wanted;
      x.dim = d;
      x.form = d == 0 && wanted == strided ? RF_FORM_STRIDED : RF_FORM_BLOCKS;
      x.spec.split[d] |= wanted;
      x.spec.partial &= (rf_axes)~wanted;
    }
    if (!x.def && sums) {
      x.def = &RF_OP_ALL_REDUCE;
      x.axes = sums;
      x.spec.partial &= (rf_axes)~sums;
    }
    for (int a = 0; a < rank && !x.def; a++)
      for (int b = 0; b < rank && !x.def; b++) {
        rf_axes moved = have.split[a] & (rf_axes)~need.split[a] & need.split[b] & (rf_axes)~have.split[b];
        if (a == b || !moved) continue;
        x.def = &RF_OP_ALL_TO_ALL;
        x.axes = moved;
        x.dim = a;
        x.to = b;
        x.form = have.form[a] ? have.form[a] : need.form[b];
        x.spec.split[a] &= (rf_axes)~moved;
        x.spec.split[b] |= moved;
        x.spec.form[b] = need.form[b];
      }
    for (int d = 0; d < rank && !x.def; d++) {
      rf_axes gathered = have.split[d] & (rf_axes)~need.split[d];
      if (!gathered) continue;
      if (d == 0) gathered = one_of_rows(gathered, strided, true);
      x.def = &RF_OP_ALL_GATHER;
      x.axes = gathered;
      x.dim = d;
      x.form = d == 0 && gathered == strided ? RF_FORM_STRIDED : have.form[d];
      x.whole = whole ? whole[d] : 0;
      x.spec.split[d] &= (rf_axes)~gathered;
    }
    for (int d = 0; d < rank && !x.def; d++) {
      rf_axes taken = need.split[d] & (rf_axes)~have.split[d];
      if (d == 0) taken = one_of_rows(taken, strided, false);
      if (!taken || s->graph->tensor[id].shape[d] % rf_mesh_size(s->mesh, taken)) continue;
      x.def = &RF_OP_TAKE_RUN;
      x.axes = taken;
      x.dim = d;
      x.form = d == 0 && taken == strided ? RF_FORM_STRIDED : RF_FORM_BLOCKS;
      x.spec.split[d] |= taken;
    }
    if (!x.def) {
      RF_FAIL(s->error, RAFTER_FAILED, "this is a fault of the planner, please report it",
              "no collective brings a tensor to the needed sharding (%s, %s: %s)", origin.path, label,
              s->graph->tensor[id].name);
      return RF_NONE;
    }
    id = rf_sharder_exchange(s, &x, origin);
    if (id == RF_NONE) return RF_NONE;
    have = x.spec;
  }
  return id;
}
/* ---- copies that several readers share ------------------------------------------------------- */

int rf_sharder_copy_of(const rf_sharder *s, int from, const rf_spec *need, int when) {
  if (from >= s->head_capacity) return RF_NONE;
  for (int c = s->head[from]; c != RF_NONE; c = s->copy[c].next)
    if ((s->copy[c].when == when || s->copy[c].when == RF_SCOPE_ALWAYS) &&
        rf_spec_same(&s->copy[c].spec, need))
      return s->copy[c].id;
  return RF_NONE;
}

void rf_sharder_keep(rf_sharder *s, int from, const rf_spec *need, int when, int id) {
  rf_pool *pool = s->graph->pool;
  while (from >= s->head_capacity) {
    int known = s->head_capacity;
    s->head = rf_pool_grown(pool, s->head, known, &s->head_capacity, sizeof *s->head);
    for (int i = known; i < s->head_capacity; i++) s->head[i] = RF_NONE;
  }
  if (s->copies == s->copy_capacity)
    s->copy = rf_pool_grown(pool, s->copy, s->copies, &s->copy_capacity, sizeof *s->copy);
  s->copy[s->copies] = (rf_resharded){from, id, when, *need, s->head[from]};
  s->head[from] = s->copies++;
}

static int when_of(const rf_sharder *s, const rf_op *op) {
  /* In a pipeline, forward and backward do not share a copy, because other microbatches run in
   * between. */
  if (rf_mesh_extent(s->mesh, RF_AXIS_PIPELINE) > 1)
    return op->backward ? RF_SCOPE_BACKWARD : RF_SCOPE_FORWARD;
  if (op->def->kind == RF_KIND_HEAD && op->def->timing != RF_TIMING_BYTES) return RF_SCOPE_HEAD;
  return op->backward ? RF_SCOPE_BACKWARD : RF_SCOPE_FORWARD;
}

/* Number of the unit of an op. A unit is one pass of one sublayer. Weights are gathered one unit
 * early, so gathered weights of two units exist at a time. */
static int unit_of(const rf_sharder *s, const rf_op *op, int p) {
  int32_t layer = s->whole.params.at[p].layer;
  return ((layer + 1) * 2 + (layer >= 0 && op->at.sublayer == RF_SUBLAYER_MLP)) * 4 + when_of(s, op);
}

static void gather_early(rf_sharder *s, const rf_op *op, int p, int first_op) {
  int unit = unit_of(s, op, p);
  if (unit != s->unit) {
    s->unit_before = s->unit == -1 ? first_op : s->unit_at;
    s->unit_at = first_op;
    s->unit = unit;
  }
  for (int o = first_op; o < s->graph->op_count; o++) {
    if (s->early_count == s->early_capacity) {
      int capacity = s->early_capacity;
      s->early_op = rf_pool_grown(s->graph->pool, s->early_op, s->early_count, &capacity, sizeof(int));
      s->early_at =
          rf_pool_grown(s->graph->pool, s->early_at, s->early_count, &s->early_capacity, sizeof(int));
    }
    s->early_op[s->early_count] = o;
    s->early_at[s->early_count++] = s->unit_before > s->half_at ? s->unit_before : s->half_at;
  }
}

rf_status rf_sharder_obtain(rf_sharder *s, const rf_op *op, int slot, const rf_spec *need, int *id) {
  int t = op->input[slot], when = s->when = when_of(s, op), first = s->graph->op_count;
  const rf_tensor *tensor = &s->whole.tensor[t];
  rf_sharded_tensor *at = &s->at[t];
  *id = at->id;
  if (at->id == RF_NONE)
    return RF_FAIL(s->error, RAFTER_FAILED, "this is a fault of the planner, please report it",
                   "%s reads %s before it is there", op->name, tensor->name);
  rf_spec exact = *need;
  for (int d = tensor->rank; d < 4; d++) exact.split[d] = at->spec.split[d];
  if (rf_spec_same(&at->spec, &exact)) return RAFTER_OK;
  *id = rf_sharder_copy_of(s, at->id, &exact, when);
  if (*id != RF_NONE) return RAFTER_OK;
  bool weight = tensor->param >= 0 && (tensor->class == RF_CLASS_WEIGHT || tensor->class == RF_CLASS_ADAPTER);
  int64_t whole[RF_MAX_RANK];
  for (int d = 0; d < tensor->rank && weight; d++)
    whole[d] = rf_shard_extent(&s->whole, s->mesh, tensor->param, &exact, d, tensor->shape[d]);
  *id = rf_sharder_convert(s, at->id, at->spec, exact, rf_origin_of(op),
                           rf_sharder_label(s, op->def->inputs[slot]), weight ? whole : NULL,
                           RF_CLASS_COLLECTIVE);
  if (*id == RF_NONE) return RAFTER_FAILED;
  if (s->graph->op[s->graph->op_count - 1].def == &RF_OP_ALL_TO_ALL && s->graph->op_count == first + 1) {
    when = RF_SCOPE_ALWAYS;
    s->graph->tensor[*id].class = tensor->class;
  }
  if (weight) s->graph->tensor[*id].param = tensor->param;
  rf_sharder_keep(s, at->id, &exact, when, *id);
  if (weight) gather_early(s, op, tensor->param, first);
  return RAFTER_OK;
}
