/* optimizer.c - gradient norms, clipping by the global norm, and AdamW with f32 masters. */
#include "graph/mesh/shard.h"

/* Checks an output that has one sum of squares for each gradient. The op writes one of the sums. */
static rf_status sums_shape(rf_graph *graph, rf_op *op, int slot, rf_error *error) {
  if (op->output[slot] == RF_WANTED || op->output[slot] >= graph->tensor_count)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "no tensor for the sums (%s %s: expected a tensor id, since no input gives the length)",
                   op->def->name, op->name);
  if (op->output[slot] < 0) return RAFTER_OK;
  int64_t count = graph->tensor[op->output[slot]].shape[0];
  if (op->attr.sums.element < 0 || op->attr.sums.element >= count)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "index out of range (%s %s: expected below %lld, got %d)",
                   op->def->name, op->name, (long long)count, op->attr.sums.element);
  RF_OUT(slot, RF_CLASS_ACTIVATION, RF_F64, count);
  return RAFTER_OK;
}

static rf_status norm_sq_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int id = op->input[0];
  if (id < 0 || id >= graph->tensor_count)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "missing input (norm_sq %s: expected grad, got none)",
                   op->name);
  const rf_tensor *grad = &graph->tensor[id];
  RF_TRY(rf_shape_input(graph, op, 0, RF_ANY_FLOAT, grad->rank, grad->shape, error));
  return sums_shape(graph, op, 0, error);
}

static rf_work norm_sq_work(const rf_graph *graph, const rf_op *op) {
  return (rf_work){.bytes_read = (double)rf_tensor_bytes(&graph->tensor[op->input[0]]), .bytes_written = 8};
}

static rf_status clip_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  RF_IN(0, RF_F64, rf_input_dim(graph, op, 0, 0));
  RF_OUT(0, RF_CLASS_IO, RF_F32, 2);
  return RAFTER_OK;
}

static rf_status adamw_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int id = op->input[1];
  if (id < 0 || id >= graph->tensor_count)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "missing input (adamw %s: expected master, got none)",
                   op->name);
  rf_tensor master = graph->tensor[id];
  rf_dtype wide = rf_wide_dtype(master.dtype);
  for (int i = 0; i < 4; i++)
    RF_TRY(rf_shape_input(graph, op, i, (int)wide, master.rank, master.shape, error));
  RF_IN(4, RF_F32, 2);
  for (int i = 0; i < 3; i++) {
    if (op->output[i] == RF_WANTED) op->output[i] = op->input[i + 1];
    if (op->output[i] != op->input[i + 1])
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "states must be updated in place (adamw %s: expected output %s = its input)", op->name,
                     op->def->outputs[i]);
  }
  RF_TRY(rf_shape_output(graph, op, 3, RF_CLASS_WEIGHT, RF_BF16, master.rank, master.shape, error));
  return op->output_count > 4 ? sums_shape(graph, op, 4, error) : RAFTER_OK;
}

/* The output is a vector of sums, but the op writes only one sum of the vector. */
static rf_work adamw_work(const rf_graph *graph, const rf_op *op) {
  rf_work work = rf_work_bytes(graph, op);
  if (op->output_count > 4 && op->output[4] >= 0)
    work.bytes_written -= (double)rf_tensor_bytes(&graph->tensor[op->output[4]]) - 8;
  return work;
}

/* Several chips may store the same gradient, so they compute the same norm. Each of these chips
 * divides the norm by the number of such chips, because the results of all chips are added
 * later. */
static rf_status norm_sq_shard(rf_sharding *s) {
  s->attr.axes = rf_mesh_live(
      s->mesh, (rf_axes) ~(s->in[0].split[0] | s->in[0].split[1] | RF_AXIS_BIT(RF_AXIS_PIPELINE)));
  s->attr.group = (int32_t)rf_mesh_size(s->mesh, s->attr.axes);
  int p = s->graph->tensor[s->op->input[0]].param;
  rf_copies copies = p < 0 ? (rf_copies){.chips = 1} : rf_shard_copies(s->graph, s->mesh, p);
  if (copies.chips > 1) {
    s->attr.sums.own_columns = copies.own;
    s->attr.sums.copies = (int32_t)copies.chips;
  }
  return RAFTER_OK;
}

static rf_status clip_shard(rf_sharding *s) {
  s->in[0] = s->out[0] = (rf_spec){.split = {0}};
  return RAFTER_OK;
}

const rf_op_def RF_OP_NORM_SQ = {
    .name = "norm_sq",
    .kind = RF_KIND_OPTIMIZER,
    .formula = "sums[element] = sum of grad[i]^2 in f64: one sum per chunk of 4096 elements, chunk sums "
               "added in ascending order; divided by the number of chips that count the same elements "
               "(group; 0 means 1), and from column `own_columns` on also by the number that hold the same "
               "columns (copies; 0 means 1); the other elements of sums keep their value",
    .inputs = {"grad (P)"},
    .outputs = {"sums f64 (params)"},
    .fields = RF_FIELDS_SUMS,
    .shape = norm_sq_shape,
    .work = norm_sq_work,
    .shard = norm_sq_shard,
    .tolerance = {1e-9f, 1e-9f},
    .timed_like = {&RF_OP_ADAMW},
    .probe = RF_PROBE_INDEX,
};

static rf_status norm_total_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  RF_IN(0, RF_F64, rf_input_dim(graph, op, 0, 0));
  RF_OUT(0, RF_CLASS_ACTIVATION, RF_F64, 1);
  return RAFTER_OK;
}

/* The result is a partial sum over chips. Later, the totals of all pipeline stages are added. */
static rf_status norm_total_shard(rf_sharding *s) {
  s->out[0] = s->in[0];
  s->keeps_sums = true;
  return RAFTER_OK;
}

const rf_op_def RF_OP_NORM_TOTAL = {
    .name = "norm_total",
    .kind = RF_KIND_OPTIMIZER,
    .formula = "total = sum of sums[i], i ascending, in f64: one pipeline stage's part of the squared norm",
    .inputs = {"sums f64 (params)"},
    .outputs = {"total f64 (1)"},
    .shape = norm_total_shape,
    .work = rf_work_bytes,
    .shard = norm_total_shard,
    .tolerance = {1e-9f, 1e-9f},
};

const rf_op_def RF_OP_CLIP = {
    .name = "clip",
    .kind = RF_KIND_OPTIMIZER,
    .formula = "norm = sqrt(sum of sums[i], i ascending, in f64); out = {norm, limit > 0 and norm > limit ? "
               "limit/norm : 1} as f32",
    .inputs = {"sums f64 (params)"},
    .outputs = {"clip f32 (2)"},
    .fields = RF_FIELDS_CLIP,
    .shape = clip_shape,
    .work = rf_work_bytes,
    .shard = clip_shard,
    .tolerance = {1e-6f, 1e-6f},
    .probe = RF_PROBE_FIRST,
};

const rf_op_def RF_OP_ADAMW = {
    .name = "adamw",
    .kind = RF_KIND_OPTIMIZER,
    .formula = "g = grad*clip[1] (without clip: grad); m = beta1*m + (1-beta1)*g; v = beta2*v + "
               "(1-beta2)*g^2; mhat = m/(1 - beta1^step); vhat = v/(1 - beta2^step); master = master - "
               "lr*(mhat/(sqrt(vhat) + eps) + weight_decay*master); weight = bf16(master); in f32; with "
               "sums: sums[element] as in norm_sq, and chunks whose sum is not finite are not updated",
    .inputs = {"grad (P)", "master (P)", "m (P)", "v (P)", "clip f32 (2)?"},
    .outputs = {"master (P)", "m (P)", "v (P)", "weight bf16 (P)?", "sums f64 (params)?"},
    .fields = RF_FIELDS_ADAMW,
    .shape = adamw_shape,
    .work = adamw_work,
    .shard = rf_shard_same,
    .expand = rf_expand_adamw,
    .tolerance = {1e-6f, 1e-2f},
    .probe = RF_PROBE_UPDATE,
};
