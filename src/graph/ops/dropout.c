/* dropout.c - dropout, alone or fused with a residual sum. Dropout is its own backward op, because
 * the same elements become 0 in the backward pass. Every op draws the mask from (seed, step, site,
 * token, channel). */
#include "graph/mesh/shard.h"

static rf_status probability_check(const rf_op *op, rf_error *error) {
  if (op->attr.dropout.rate >= 0 && op->attr.dropout.rate < 1) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL, "dropout out of range (%s: expected 0 <= p < 1, got %g)",
                 op->name, (double)op->attr.dropout.rate);
}

static rf_status dropped_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  RF_TRY(probability_check(op, error));
  return rf_shape_alike(graph, op, error);
}

static rf_status add_dropout_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                                      rf_error *error) {
  if (grad_in[0] == RF_WANTED) grad_in[0] = grad_out[0];
  if (grad_in[1] == RF_NONE) return RAFTER_OK;
  grad_in[1] = rf_graph_make(graph, &RF_OP_DROPOUT, rf_backward_name(graph, op, ""), op->section,
                             RF_IDS(grad_out[0]), &op->attr, error);
  return grad_in[1] == RF_NONE ? RAFTER_INVALID : RAFTER_OK;
}

/* Every chip draws only the random numbers of its own tokens and channels. Along the axis context,
 * a chip has every n-th token. Along the axis tensor, a chip has a contiguous range of channels. */
static rf_status dropout_shard(rf_sharding *s) {
  rf_axes sequence = RF_AXIS_BIT(RF_AXIS_SEQUENCE);
  /* if the axis sequence shards the columns, shard the rows along it instead */
  for (int i = 0; i < s->op->input_count; i++) {
    s->in[i].split[0] |= s->in[i].split[1] & sequence;
    s->in[i].split[1] &= (rf_axes)~sequence;
  }
  RF_TRY(rf_shard_pointwise(s));
  s->attr.axes = s->out[0].split[1];
  int64_t channels = s->graph->tensor[s->op->input[0]].shape[1], chips = rf_mesh_size(s->mesh, s->attr.axes);
  if (chips > 1 && channels % (4 * chips))
    return RF_FAIL(s->error, RAFTER_INVALID,
                   "set the adapters' dropout to 0, or choose fewer chips along tensor and sequence",
                   "dropout draws channels in groups of four, which cannot be sharded here (%s: expected a "
                   "multiple of %lld, got %lld)",
                   s->op->name, (long long)(4 * chips), (long long)channels);
  s->attr.dropout.token_step =
      (int32_t)rf_mesh_size(s->mesh, s->out[0].split[0] & RF_AXIS_BIT(RF_AXIS_CONTEXT));
  return RAFTER_OK;
}

const rf_op_def RF_OP_ADD_DROPOUT = {
    .name = "add_dropout",
    .formula = "y[r,c] = round(x[r,c] + drop(h[r,c])), in f32; drop(v) = v*(1/(1-p)) if uniform(w) >= p, "
               "else 0, with p = rate; w = word c%4 of philox(key(seed, step, site), token, c/4); uniform(w) "
               "= (w >> 8) * 2^-24; token = first_token + r*token_step (token_step 0 means 1); if axes shard "
               "the channels, c counts over all chips",
    .inputs = {"x (n,D)", "h (n,D)"},
    .outputs = {"y (n,D)"},
    .fields = RF_FIELDS_DROPOUT,
    .shape = dropped_shape,
    .work = rf_work_bytes,
    RF_INPLACE({0, 0}, {0, 1}),
    .backward = add_dropout_backward,
    .shard = dropout_shard,
    .tolerance = {1e-7f, 1e-3f},
    .random = true,
    /* XLA stores the mask if the layers are a loop. Otherwise XLA draws the mask again. */
    .kept = RF_KEEPS(.joins_residual = true, .across_loop = {RF_KEPT_PRED(1, OUTPUT)}, .drawn = 31),
};

const rf_op_def RF_OP_DROPOUT = {
    .name = "dropout",
    .formula =
        "kept[r,c] = round(x[r,c]*(1/(1-p))) if add_dropout of the same site keeps (r,c), else 0; in f32",
    .inputs = {"x (n,D)"},
    .outputs = {"kept (n,D)"},
    .fields = RF_FIELDS_DROPOUT,
    .shape = dropped_shape,
    .work = rf_work_bytes,
    RF_INPLACE({0, 0}),
    .gradient = {&RF_OP_DROPOUT, {RF_DY(0)}},
    .shard = dropout_shard,
    .tolerance = {1e-7f, 1e-3f},
    .random = true,
    .timed_like = {&RF_OP_ADD_DROPOUT},
    .kept = RF_KEEPS(.fuses = true, .across_loop = {RF_KEPT_PRED(1, OUTPUT)}),
};
