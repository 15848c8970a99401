/* shard_rules.c - the sharding of parameters, and rules that many ops share; see shard.h. */
#include "graph/mesh/shard.h"

#include "base/text.h"

#include <string.h>

rf_spec rf_spec_of(rf_axes rows, rf_axes columns, rf_form form) {
  return (rf_spec){.split = {rows, columns},
                   .form = {RF_FORM_BLOCKS, (uint8_t)(columns ? form : RF_FORM_BLOCKS)}};
}

static int rank_of(const rf_sharding *s, int id) { return id < 0 ? 0 : s->graph->tensor[id].rank; }

rf_status rf_shard_same(rf_sharding *s) {
  (void)s;
  return RAFTER_OK;
}

rf_status rf_shard_pointwise(rf_sharding *s) {
  const rf_op *op = s->op;
  rf_spec common = s->in[0];
  for (int i = 1; i < op->input_count; i++)
    for (int d = 0; op->input[i] >= 0 && d < rank_of(s, op->input[i]); d++)
      common.split[d] = d == 0 ? common.split[0] | s->in[i].split[0] : common.split[d] & s->in[i].split[d];
  common.split[0] &= (rf_axes)~common.split[1];
  common.partial = 0;
  for (int i = 0; i < op->input_count; i++) s->in[i] = common;
  for (int i = 0; i < op->output_count; i++) s->out[i] = common;
  return RAFTER_OK;
}

rf_status rf_shard_rows(rf_sharding *s) {
  const rf_op *op = s->op;
  rf_axes rows = 0;
  bool of_rows[RF_MAX_INPUTS];
  for (int i = 0; i < op->input_count; i++) {
    const rf_tensor *t = op->input[i] < 0 ? NULL : &s->graph->tensor[op->input[i]];
    of_rows[i] = t && t->class != RF_CLASS_WEIGHT && t->class != RF_CLASS_ADAPTER;
    if (of_rows[i]) rows |= s->in[i].split[0];
  }
  for (int i = 0; i < op->input_count; i++) s->in[i] = rf_spec_of(of_rows[i] ? rows : 0, 0, RF_FORM_BLOCKS);
  for (int i = 0; i < op->output_count; i++) {
    bool gradient = op->output[i] >= 0 && s->graph->tensor[op->output[i]].class == RF_CLASS_GRADIENT;
    s->out[i] = gradient ? (rf_spec){.partial = rows} : rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  }
  return RAFTER_OK;
}

rf_status rf_shard_heads(rf_sharding *s, rf_axes axes) {
  int32_t chips = (int32_t)rf_mesh_size(s->mesh, axes), heads = s->attr.heads.heads,
          kv = s->attr.heads.kv_heads;
  if (chips == 1) return RAFTER_OK;
  if (heads % chips || (kv % chips && chips % kv))
    return RF_FAIL(s->error, RAFTER_INVALID, "choose a number of chips that divides both numbers of heads",
                   "heads cannot be sharded (%s: %d heads and %d key heads over %d chips)", s->op->name,
                   heads, kv, chips);
  s->attr.heads.heads = heads / chips;
  s->attr.heads.kv_heads = kv > chips ? kv / chips : kv > 0;
  return RAFTER_OK;
}

/* Converts a column of a full qkv row to a column of one chip. A head starts or ends at column
 * `at`. */
static int64_t bound_of_heads(const rf_model *m, int64_t chips, int64_t at) {
  int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim,
          mine = (m->kv_heads > chips ? m->kv_heads / chips : 1) * m->head_dim;
  return at <= q ? at / chips : q / chips + (at - q) / kv * mine;
}

rf_form rf_shard_joined_form(const rf_lora_parts *parts, int64_t columns, rf_form form) {
  return form == RF_FORM_HALVES && rf_lora_joined(parts, parts->count) < columns ? RF_FORM_BLOCKS : form;
}

rf_status rf_shard_adapters(rf_sharding *s, rf_axes axes, rf_form form) {
  const rf_model *m = &s->graph->model;
  int32_t chips = (int32_t)rf_mesh_size(s->mesh, axes);
  rf_lora_parts *parts = &s->attr.lora.parts;
  for (int i = 0; i < parts->count; i++) {
    int64_t at = parts->at[i], end = at + parts->columns[i];
    if (form == RF_FORM_HEADS) {
      parts->at[i] = (int32_t)bound_of_heads(m, chips, at);
      parts->columns[i] = (int32_t)(bound_of_heads(m, chips, end) - parts->at[i]);
      continue;
    }
    if (parts->at[i] % chips || parts->columns[i] % chips)
      return RF_FAIL(s->error, RAFTER_INVALID, "choose fewer chips along tensor",
                     "an adapter's columns cannot be sharded (%s: %d columns from %d on over %d chips)",
                     s->op->name, parts->columns[i], parts->at[i], chips);
    parts->at[i] /= chips;
    parts->columns[i] /= chips;
  }
  return RAFTER_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* The form in which chips divide the columns (or rows) of a parameter. */
static rf_form form_of(const rf_graph *graph, int p) {
  const rf_param *param = &graph->params.at[p];
  const char *name = param->adapts >= 0 ? graph->params.at[param->adapts].name : param->name;
  const char *layer = strrchr(name, '/');
  size_t stem = layer ? (size_t)(layer - name) : 0;
  if (param->experts > 0 && param->shard_axis == 0) return RF_FORM_EACH;
  if (stem >= 3 && strncmp(name + stem - 3, "qkv", 3) == 0) return RF_FORM_HEADS;
  if (stem < 7 || strncmp(name + stem - 7, "gate_up", 7) != 0) return RF_FORM_BLOCKS;
  if (param->adapts < 0) return RF_FORM_HALVES;
  const rf_param *base = &graph->params.at[param->adapts];
  rf_lora_parts parts = rf_lora_parts_of(&graph->model, base);
  return rf_shard_joined_form(&parts, base->shape[1], RF_FORM_HALVES);
}

/* The dimension that tensor parallelism shards. -1: no dimension. For matrix A or B of an adapter,
 * this is the sharded dimension of the adapted weight, if the matrix has that dimension. */
static int tensor_axis(const rf_graph *graph, int p) {
  const rf_param *param = &graph->params.at[p];
  if (param->adapts < 0) return param->shard_axis;
  int base = graph->params.at[param->adapts].shard_axis, side = rf_text_ends_with(param->name, "lora_b");
  return base == side ? base : -1;
}

/* Columns of a qkv row, or of an adapter's output, on one chip. *own gets the number of columns of
 * query heads. */
static int64_t columns_of_heads(const rf_graph *graph, int64_t chips, int p, int64_t *own) {
  const rf_model *m = &graph->model;
  const rf_param *param = &graph->params.at[p];
  rf_lora_parts whole = {.count = 1, .columns = {(int32_t)((m->heads + 2 * m->kv_heads) * m->head_dim)}};
  rf_lora_parts parts = param->adapts < 0 ? whole : rf_lora_parts_of(m, &graph->params.at[param->adapts]);
  int64_t columns = 0, q = m->heads * m->head_dim;
  *own = 0;
  for (int i = 0; i < parts.count; i++) {
    int64_t at = parts.at[i], end = at + parts.columns[i];
    columns += bound_of_heads(m, chips, end) - bound_of_heads(m, chips, at);
    if (at < q) *own += bound_of_heads(m, chips, end < q ? end : q) - bound_of_heads(m, chips, at);
  }
  return columns;
}

static int last_dim(const rf_graph *graph, int p) { return graph->params.at[p].rank - 1; }

int64_t rf_shard_extent(const rf_graph *graph, const rf_mesh *mesh, int p, const rf_spec *spec, int dim,
                        int64_t whole) {
  int64_t chips = rf_mesh_size(mesh, spec->split[dim]), own;
  if (p >= 0 && spec->split[dim] && spec->form[dim] == RF_FORM_HEADS && dim == last_dim(graph, p))
    return columns_of_heads(graph, chips, p, &own);
  return rf_ceil_div(whole, chips);
}

rf_copies rf_shard_copies(const rf_graph *graph, const rf_mesh *mesh, int p) {
  rf_copies copies = {.chips = 1};
  rf_spec use = rf_shard_param(graph, mesh, p).use;
  int dim = last_dim(graph, p);
  int64_t chips = rf_mesh_size(mesh, use.split[dim]), heads = graph->model.kv_heads;
  if (use.form[dim] != RF_FORM_HEADS || chips <= heads) return copies;
  copies.chips = chips / heads;
  /* an adapter that changes only query heads has no copies */
  if (columns_of_heads(graph, chips, p, &copies.own) == copies.own) copies.chips = 1;
  return copies;
}

/* Returns the dimension of a matrix that chips shard between uses. -1: there is none. Tensor
 * parallelism does not shard the returned dimension. If several dimensions are possible, takes the
 * one with less padding. */
static int state_axis(const rf_graph *graph, const rf_mesh *mesh, int p, const rf_spec *use, rf_axes axes) {
  const rf_param *param = &graph->params.at[p];
  int64_t chips = rf_mesh_size(mesh, axes);
  int best = -1;
  double least = 2;
  for (int d = 0; d < param->rank && param->rank == 2; d++) {
    if (use->split[d] & ~RF_AXIS_BIT(RF_AXIS_EXPERT)) continue;
    /* a gather works only over the innermost axis that shards the dimension */
    if (use->split[d] && axes & RF_AXIS_BIT(RF_AXIS_DATA)) continue;
    int64_t extent = rf_shard_extent(graph, mesh, p, use, d, param->shape[d]);
    double waste = (double)rf_round_up(extent, chips) / (double)extent;
    if (waste < least) {
      least = waste;
      best = d;
    }
  }
  return best;
}

rf_param_specs rf_shard_param(const rf_graph *graph, const rf_mesh *mesh, int p) {
  rf_param_specs specs = {0};
  const rf_param *param = &graph->params.at[p];
  int axis = tensor_axis(graph, p);
  rf_axes tensor = rf_mesh_live(mesh, RF_AXIS_BIT(RF_AXIS_TENSOR)),
          expert = rf_mesh_live(mesh, RF_AXIS_BIT(RF_AXIS_EXPERT));
  if (axis >= 0 && tensor) {
    specs.use.split[axis] = tensor;
    specs.use.form[axis] = (uint8_t)form_of(graph, p);
  }
  if (param->experts > 0) specs.use.split[0] |= expert;
  specs.state = specs.use;
  rf_axes over = rf_mesh_live(mesh, RF_AXIS_BIT(RF_AXIS_FSDP));
  if (!over) over = rf_mesh_live(mesh, RF_AXIS_BIT(RF_AXIS_DATA));
  if (param->experts > 0) expert = 0;
  /* Tries to shard masters and moments over as many chips as possible. */
  const rf_axes tries[] = {over | expert, over, expert};
  for (int i = 0; i < 3 && mesh->zero >= 1 && !specs.gathered; i++) {
    int cut = tries[i] ? state_axis(graph, mesh, p, &specs.use, tries[i]) : -1;
    if (cut < 0) continue;
    specs.state.split[cut] |= tries[i];
    specs.gathered = true;
  }
  return specs;
}
