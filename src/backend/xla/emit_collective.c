/* emit_collective.c - emitters of collectives. Chips send the dtype of the tensor, because the plan
 * counts the bytes of this dtype. In a group of one chip a collective is a copy. */
#include "backend/xla/emit.h"

#include <string.h>

/* Groups of chips in order of rank. If a group is smaller than the axes, the group consists of
 * neighbouring chips. */
static rf_hlo_groups groups_of(rf_emit *e, const rf_op *op) {
  rf_hlo_groups groups = rf_emit_groups(e, op->attr.axes);
  groups.count *= groups.size / op->attr.group;
  groups.size = op->attr.group;
  return groups;
}

/* Repeats the chip's own values to the shape of the result. */
static rf_val alone(rf_emit *e, const rf_op *op, rf_val x) {
  enum { CHIPS = 64 };
  const rf_tensor *y = &e->graph->tensor[op->output[0]];
  for (int d = 0; d < x.rank; d++) {
    rf_val copy[CHIPS];
    int copies = (int)((y->shape[d] + x.dim[d] - 1) / x.dim[d]);
    for (int i = 0; i < copies && i < CHIPS; i++) copy[i] = x;
    if (copies > 1) x = rf_hlo_concatenate(e->h, d, copies < CHIPS ? copies : CHIPS, copy);
    if (x.dim[d] > y->shape[d]) x = rf_hlo_slice(e->h, x, d, 0, y->shape[d]);
  }
  return x;
}

/* Returns the input. If the op is only a copy, this function emits the copy and returns no
 * value. */
static rf_val shared(rf_emit *e, const rf_op *op) {
  rf_val x = rf_emit_in(e, op, 0);
  if (op == e->left_out) x = alone(e, op, x);
  else if (op->attr.group > 1) return x;
  rf_emit_out(e, op, 0, x);
  return RF_NO_VAL;
}

/* Splits dimension `dim` into (extent / inner, inner). If inner is 0, joins `dim` and the next
 * dimension. */
static rf_val divided(rf_hlo *h, rf_val x, int dim, int64_t inner) {
  int64_t shape[RF_HLO_RANK];
  int rank = 0;
  for (int i = 0; i < x.rank; i++) {
    shape[rank++] = x.dim[i];
    if (i != dim) continue;
    if (inner > 0) {
      shape[rank - 1] /= inner;
      shape[rank++] = inner;
    } else shape[rank - 1] *= x.dim[++i];
  }
  return rf_hlo_reshape(h, x, rank, shape);
}

static void emit_all_gather(rf_emit *e, const rf_op *op) {
  const rf_attr_collective *attr = &op->attr.collective;
  rf_hlo *h = e->h;
  rf_val x = shared(e, op), y;
  if (!rf_has(x)) return;
  if (attr->form == RF_FORM_STRIDED)
    y = divided(h, rf_hlo_all_gather(h, divided(h, x, attr->dim, 1), attr->dim + 1, groups_of(e, op)),
                attr->dim, 0);
  else y = rf_hlo_all_gather(h, x, attr->dim, groups_of(e, op));
  if (attr->whole > 0) y = rf_hlo_slice(h, y, attr->dim, 0, attr->whole);
  rf_emit_out(e, op, 0, y);
}

static void emit_reduce_scatter(rf_emit *e, const rf_op *op) {
  const rf_attr_collective *attr = &op->attr.collective;
  rf_hlo *h = e->h;
  rf_val x = shared(e, op);
  if (!rf_has(x)) return;
  int64_t group = op->attr.group, extent = x.dim[attr->dim], part = (extent + group - 1) / group;
  if (part * group > extent) x = rf_hlo_pad(h, x, attr->dim, 0, part * group - extent, 0);
  if (attr->form == RF_FORM_STRIDED)
    x = divided(h, rf_hlo_reduce_scatter(h, divided(h, x, attr->dim, group), attr->dim + 1, groups_of(e, op)),
                attr->dim, 0);
  else x = rf_hlo_reduce_scatter(h, x, attr->dim, groups_of(e, op));
  rf_emit_out(e, op, 0, x);
}

/* log(sum over the group of exp(x)). A chip without tokens has -inf. */
static rf_val log_sum(rf_emit *e, rf_val x, rf_hlo_groups groups) {
  rf_hlo *h = e->h;
  x = rf_hlo_convert(h, x, RF_HLO_F32);
  rf_val most = rf_hlo_maximum_c(h, rf_hlo_all_reduce(h, RF_HLO_MAX, x, groups), -1e30),
         part = rf_hlo_exponential(h, rf_hlo_subtract(h, x, most));
  return rf_hlo_add(h, most, rf_hlo_log(h, rf_hlo_all_reduce(h, RF_HLO_SUM, part, groups)));
}

static void emit_all_reduce(rf_emit *e, const rf_op *op) {
  const rf_attr_collective *attr = &op->attr.collective;
  rf_hlo *h = e->h;
  rf_val x = shared(e, op), part[2];
  if (!rf_has(x)) return;
  rf_hlo_groups groups = groups_of(e, op);
  int last = x.rank - 1;
  if (attr->log_sum) x = log_sum(e, x, groups);
  else if (attr->own_columns == 0) x = rf_hlo_all_reduce(h, RF_HLO_SUM, x, groups);
  else {
    part[0] = rf_hlo_slice(h, x, last, 0, attr->own_columns);
    part[1] = rf_hlo_slice(h, x, last, attr->own_columns, x.dim[last]);
    part[1] = rf_hlo_all_reduce(h, RF_HLO_SUM, part[1], groups);
    x = rf_hlo_concatenate(h, last, 2, part);
  }
  rf_emit_out(e, op, 0, x);
}

/* Exchanges rows of query, key and value heads. On one side of the exchange, a chip has all heads
 * of some rows. On the other side, the chip has some heads of all rows. C columns of a row belong
 * to one chip: a range of q, a range of k and a range of v. */
static rf_val exchange_heads(rf_emit *e, const rf_op *op, rf_val x) {
  const rf_attr_collective *attr = &op->attr.collective;
  rf_hlo *h = e->h;
  rf_hlo_groups groups = groups_of(e, op);
  bool gathers = attr->dim == 1; /* of columns */
  int64_t g = groups.size, rows = gathers ? x.dim[0] / g : x.dim[0],
          columns = gathers ? x.dim[1] : x.dim[1] / g, query = attr->heads / g * attr->head_dim,
          key = attr->kv_heads / g * attr->head_dim;
  int parts = columns > query ? 3 : 1;
  rf_val part[3];
  if (gathers) x = rf_hlo_reshape(h, rf_hlo_all_to_all(h, x, 0, 0, groups), RF_DIMS(g, rows, columns));
  for (int i = 0, at = 0; i < parts; i++) {
    int64_t wide = i ? key : query, end = at + wide * (gathers ? 1 : g);
    part[i] = rf_hlo_slice(h, x, gathers ? 2 : 1, at, end);
    if (gathers)
      part[i] =
          rf_hlo_reshape(h, rf_hlo_transpose(h, part[i], (const int[]){1, 0, 2}), RF_DIMS(rows, g * wide));
    else
      part[i] =
          rf_hlo_transpose(h, rf_hlo_reshape(h, part[i], RF_DIMS(rows, g, wide)), (const int[]){1, 0, 2});
    at = (int)end;
  }
  x = rf_hlo_concatenate(h, gathers ? 1 : 2, parts, part);
  if (gathers) return x;
  return rf_hlo_all_to_all(h, rf_hlo_reshape(h, x, RF_DIMS(g * rows, columns)), 0, 0, groups);
}

static void emit_all_to_all(rf_emit *e, const rf_op *op) {
  const rf_attr_collective *attr = &op->attr.collective;
  rf_val x = shared(e, op);
  if (!rf_has(x)) return;
  if (attr->form == RF_FORM_HEADS) x = exchange_heads(e, op, x);
  else x = rf_hlo_all_to_all(e->h, x, attr->to, attr->dim, groups_of(e, op));
  rf_emit_out(e, op, 0, x);
}

static void emit_permute(rf_emit *e, const rf_op *op) {
  rf_val x = shared(e, op);
  if (!rf_has(x)) return;
  rf_hlo_groups groups = groups_of(e, op);
  int n = groups.size, step = op->attr.collective.back ? n - 1 : 1;
  int32_t(*pair)[2] = rf_pool_alloc(e->pool, (size_t)(groups.count * n) * sizeof *pair);
  for (int i = 0; i < groups.count * n; i++) {
    pair[i][0] = groups.id[i];
    pair[i][1] = groups.id[i / n * n + (i % n + step) % n];
  }
  rf_emit_out(e, op, 0, rf_hlo_permute(e->h, x, groups.count * n, pair));
}

static void emit_take_run(rf_emit *e, const rf_op *op) {
  const rf_attr_collective *attr = &op->attr.collective;
  rf_hlo *h = e->h;
  rf_val x = shared(e, op), start[RF_HLO_RANK];
  int64_t size[RF_HLO_RANK];
  if (!rf_has(x)) return;
  bool strided = attr->form == RF_FORM_STRIDED;
  int dim = attr->dim + strided;
  if (strided) x = divided(h, x, attr->dim, op->attr.group);
  for (int i = 0; i < x.rank; i++) {
    size[i] = i == dim ? x.dim[i] / op->attr.group : x.dim[i];
    start[i] = rf_hlo_scalar(h, RF_HLO_I32, 0);
  }
  start[dim] = rf_hlo_multiply_c(h, rf_emit_rank(e, op->attr.axes), (double)size[dim]);
  x = rf_hlo_dynamic_slice(h, x, start, size);
  rf_emit_out(e, op, 0, strided ? divided(h, x, attr->dim, 0) : x);
}

const rf_emitter RF_EMIT_COLLECTIVE[] = {
    {&RF_OP_ALL_GATHER, emit_all_gather, NULL},
    {&RF_OP_REDUCE_SCATTER, emit_reduce_scatter, NULL},
    {&RF_OP_ALL_REDUCE, emit_all_reduce, NULL},
    {&RF_OP_ALL_TO_ALL, emit_all_to_all, NULL},
    {&RF_OP_PERMUTE, emit_permute, NULL},
    {&RF_OP_TAKE_RUN, emit_take_run, NULL},
    {&RF_OP_SEND, NULL, "pipelines are planned, not compiled"},
    {&RF_OP_RECV, NULL, "pipelines are planned, not compiled"},
    {&RF_OP_ALL_GATHER_START, NULL, "the compiler of XLA itself overlaps exchanges"},
    {&RF_OP_REDUCE_SCATTER_START, NULL, "the compiler of XLA itself overlaps exchanges"},
    {&RF_OP_ALL_REDUCE_START, NULL, "the compiler of XLA itself overlaps exchanges"},
    {&RF_OP_EXCHANGE_WAIT, NULL, "the compiler of XLA itself overlaps exchanges"},
    {&RF_OP_OFFLOAD_OUT, NULL, "tensors in the host's memory are planned, not compiled"},
    {&RF_OP_OFFLOAD_IN, NULL, "tensors in the host's memory are planned, not compiled"},
    {0},
};
