/* rope.c - rotary positions of the query and key heads in a fused qkv row. The backward op is the
 * rotation by the negative angle. */
#include "graph/mesh/shard.h"

static rf_status rope_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  const rf_attr_rope *attr = &op->attr.rope;
  int64_t rows = rf_input_dim(graph, op, 0, 0),
          width = (int64_t)(attr->heads + 2 * attr->kv_heads) * attr->head_dim;
  if (attr->rotation.dim <= 0 || attr->rotation.dim % 2 || attr->rotation.dim > attr->head_dim)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "rope needs pairs (%s: expected an even rope dim up to head_dim %d, got %d)", op->name,
                   attr->head_dim, attr->rotation.dim);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  RF_IN(1, RF_I32, rows);
  RF_OUT(0, RF_CLASS_ACTIVATION, rf_input_dtype(graph, op, 0), rows, width);
  return RAFTER_OK;
}

static rf_status rope_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                               rf_error *error) {
  rf_attr attr = op->attr;
  attr.rope.inverse = !attr.rope.inverse;
  grad_in[0] = rf_graph_make(graph, &RF_OP_ROPE, rf_backward_name(graph, op, ""), op->section,
                             RF_IDS(grad_out[0], op->input[1]), &attr, error);
  return grad_in[0] == RF_NONE ? RAFTER_INVALID : RAFTER_OK;
}

/* In attention, the axis sequence shards heads. In rope, the axis sequence shards rows, as in the
 * input `positions`. If rows have no key heads, each chip has one run of query heads. */
static rf_status rope_shard(rf_sharding *s) {
  rf_axes moved = s->in[0].split[1] & s->in[1].split[0], heads = s->in[0].split[1] & (rf_axes)~moved,
          rows = (s->in[0].split[0] | moved) & (rf_axes)~heads;
  s->in[0] = s->out[0] = rf_spec_of(rows, heads, s->attr.rope.kv_heads > 0 ? RF_FORM_HEADS : RF_FORM_BLOCKS);
  s->in[1] = rf_spec_of(rows, 0, RF_FORM_BLOCKS);
  return rf_shard_heads(s, heads);
}

const rf_op_def RF_OP_ROPE = {
    .name = "rope",
    .formula = "for each query and key head and each i < R/2, with R = rotation.dim: angle = positions[r] * "
               "rf_rope_frequency(rotation, i), which is theta^(-2i/R) unless scaled; `inverse` negates the "
               "angle; out[i] = round(in[i]*cos(angle) - in[i+R/2]*sin(angle)); out[i+R/2] = "
               "round(in[i+R/2]*cos(angle) + in[i]*sin(angle)); with rotation.tail the pair is (H-R+2i, "
               "H-R+2i+1); the other elements and the value heads are copied",
    .inputs = {"qkv (n,(N+2K)H)", "positions i32 (n)"},
    .outputs = {"rotated (n,(N+2K)H)"},
    .fields = RF_FIELDS_ROPE,
    .shape = rope_shape,
    .work = rf_work_bytes,
    RF_INPLACE({0, 0}),
    .backward = rope_backward,
    .shard = rope_shard,
    .tolerance = {1e-5f, 1e-2f},
    .kept = RF_KEEPS(.fuses = true, .input = true),
};
