/* sample.c - the choice of a token from a row of logits. Programs that XLA compiles choose tokens
 * on the device, so that logits stay there. Backends with kernels choose tokens on the host
 * (generate/sampler.c). The host's sampler also has penalties and biases. */
#include "graph/mesh/shard.h"
#include "graph/ops/ops.h"

static rf_status sample_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), vocab = rf_input_dim(graph, op, 0, 1),
          barred = rf_input_dim(graph, op, 3, 1);
  rf_dtype wide = rf_input_dtype(graph, op, 0);
  RF_IN(0, rf_wide_dtype(wide), rows, vocab);
  RF_IN(1, wide, rows);
  RF_IN(2, RF_F32, rows, RF_RULES);
  RF_IN(3, RF_I32, rows, barred);
  RF_OUT(0, RF_CLASS_ACTIVATION, RF_I32, rows);
  RF_OUT(1, RF_CLASS_ACTIVATION, wide, rows);
  return RAFTER_OK;
}

/* The choice of a token needs the row of all logits, so every chip chooses from gathered logits. */
static rf_status sample_shard(rf_sharding *s) {
  for (int i = 0; i < s->op->input_count; i++) s->in[i] = (rf_spec){.split = {0}};
  for (int i = 0; i < s->op->output_count; i++) s->out[i] = (rf_spec){.split = {0}};
  return RAFTER_OK;
}

const rf_op_def RF_OP_SAMPLE = {
    .name = "sample",
    .kind = RF_KIND_HEAD,
    .formula =
        "z[v] = logits[r,v], -inf for the tokens barred[r,:] (-1: none); {T, k, p, q, u} = rules[r,:]; "
        "if T = 0, chosen[r] = the smallest v with the largest z; otherwise w[v] = exp((z[v] - max "
        "z)/T), and tokens are kept in descending order of z, the lower v first among equals: the "
        "first k (0: all), of these the first whose w sum to p times the sum of all, and of these "
        "w >= q; chosen[r] = the first kept token, in this order, up to which the sum of w exceeds "
        "u times the sum of all kept w (in the order of v if all tokens are kept by k = 0, p = 1, "
        "q = 0); logprobs[r] = logits[r,chosen[r]] - lse[r]; in f32",
    .inputs = {"logits (R,V)", "lse (R)", "rules f32 (R,5)", "barred i32 (R,E)"},
    .outputs = {"chosen i32 (R)", "logprobs (R)"},
    .shape = sample_shape,
    .work = rf_work_bytes,
    .shard = sample_shard,
    .tolerance = {2e-6f, 2e-6f},
};
