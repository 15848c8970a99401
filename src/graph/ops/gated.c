/* gated.c - activations of a fused row (gate, up), SwiGLU (Llama) and GeGLU (Gemma), and their
 * backward ops. */
#include "graph/mesh/shard.h"

static rf_status gated_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), ff = rf_input_dim(graph, op, 0, 1) / 2;
  RF_IN(0, RF_ANY_FLOAT, rows, 2 * ff);
  RF_OUT(0, RF_CLASS_ACTIVATION, rf_input_dtype(graph, op, 0), rows, ff);
  return RAFTER_OK;
}

static rf_status gated_bwd_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), ff = rf_input_dim(graph, op, 0, 1) / 2;
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  RF_IN(0, RF_ANY_FLOAT, rows, 2 * ff);
  RF_IN(1, dtype, rows, ff);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, 2 * ff);
  return RAFTER_OK;
}

/* Each chip has a run of the gate columns and the same run of the up columns. */
static rf_status gated_shard(rf_sharding *s) {
  RF_TRY(rf_shard_pointwise(s));
  if (s->in[0].split[1]) s->in[0].form[1] = RF_FORM_HALVES;
  s->in[1].form[1] = s->out[0].form[1] = RF_FORM_BLOCKS;
  return RAFTER_OK;
}
static rf_status gated_bwd_shard(rf_sharding *s) {
  RF_TRY(gated_shard(s));
  s->out[0].form[1] = s->in[0].form[1];
  return RAFTER_OK;
}

const rf_op_def RF_OP_SWIGLU = {
    .name = "swiglu",
    .formula = "h[r,f] = round(silu(gate_up[r,f]) * gate_up[r,F+f]), silu(a) = a/(1 + exp(-a)); in f32",
    .inputs = {"gate_up (n,2F)"},
    .outputs = {"h (n,F)"},
    .shape = gated_shape,
    .work = rf_work_bytes,
    .gradient = {&RF_OP_SWIGLU_BWD, {RF_X(0), RF_DY(0)}},
    .shard = gated_shard,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_GELU},
    .kept = RF_KEEPS(.fuses = true, .input = true, .across_loop = {RF_KEPT_SAME(5, HALF)}),
};

const rf_op_def RF_OP_SWIGLU_BWD = {
    .name = "swiglu_bwd",
    .formula = "a = gate_up[r,f]; b = gate_up[r,F+f]; s = 1/(1 + exp(-a)); d[r,f] = round(dh[r,f]*b*s*(1 + "
               "a*(1 - s))); d[r,F+f] = round(dh[r,f]*a*s); in f32",
    .inputs = {"gate_up (n,2F)", "dh (n,F)"},
    .outputs = {"dgate_up (n,2F)"},
    .shape = gated_bwd_shape,
    .work = rf_work_bytes,
    .shard = gated_bwd_shard,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_GELU_BWD, &RF_OP_SWIGLU},
};

const rf_op_def RF_OP_GEGLU = {
    .name = "geglu",
    .formula = "h[r,f] = round(gelu(gate_up[r,f]) * gate_up[r,F+f]), with gelu as in the op gelu; in f32",
    .inputs = {"gate_up (n,2F)"},
    .outputs = {"h (n,F)"},
    .shape = gated_shape,
    .work = rf_work_bytes,
    .gradient = {&RF_OP_GEGLU_BWD, {RF_X(0), RF_DY(0)}},
    .shard = gated_shard,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_SWIGLU, &RF_OP_GELU},
    .kept = RF_KEEPS(.fuses = true, .input = true, .across_loop = {RF_KEPT_SAME(7, HALF)}),
};

const rf_op_def RF_OP_GEGLU_BWD = {
    .name = "geglu_bwd",
    .formula = "a = gate_up[r,f]; b = gate_up[r,F+f]; d[r,f] = round(dh[r,f]*b*gelu'(a)); d[r,F+f] = "
               "round(dh[r,f]*gelu(a)); in f32",
    .inputs = {"gate_up (n,2F)", "dh (n,F)"},
    .outputs = {"dgate_up (n,2F)"},
    .shape = gated_bwd_shape,
    .work = rf_work_bytes,
    .shard = gated_bwd_shard,
    .tolerance = {2e-6f, 1e-2f},
    .timed_like = {&RF_OP_SWIGLU_BWD, &RF_OP_GELU_BWD, &RF_OP_GELU},
};
