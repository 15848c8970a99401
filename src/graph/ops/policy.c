/* policy.c - losses of sequences of tokens. policy_loss is the loss of a policy in reinforcement
 * learning. pair_loss is the loss of pairs of answers of which people prefer one. Both ops
 * write the gradient dnll of the nll of each token, and the head's backward pass reads dnll. The
 * ops read the nll, except policy_loss with `on_policy`, which reads `old` in its place.
 *
 * Sources. Clipped ratio: Schulman et al. 2017 (PPO, arXiv:1707.06347). Separate bounds: Yu et al.
 * 2025 (DAPO, arXiv:2503.14476). KL estimate k3 as part of the loss: Schulman 2020 ("Approximating
 * KL divergence") and Shao et al. 2024 (GRPO, arXiv:2402.03300). Mean over a sequence: Zheng et al.
 * 2025 (GSPO, arXiv:2507.18071). Sum over a sequence: Ahmadian et al. 2024 (RLOO,
 * arXiv:2402.14740). Ratio as a weight: MiniMax 2025 (CISPO, arXiv:2506.13585). Cap of the ratio:
 * Ye et al. 2020 (dual-clip PPO, arXiv:1912.09729). Pairs: Rafailov et al. 2023 (DPO,
 * arXiv:2305.18290), Mitchell 2023 (label smoothing), Azar et al. 2023 (IPO, arXiv:2310.12036; with
 * means over tokens, as in the library TRL), Meng et al. 2024 (SimPO, arXiv:2405.14734). */
#include "graph/mesh/shard.h"

enum { SEGMENTS = 2 };

/* Checks the inputs of both ops: nll (n), labels (n) and segments (n+1) are the inputs 0 to 2, and
 * the others have the shape (n). */
static rf_status loss_inputs(rf_graph *graph, rf_op *op, int count, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 1, 0);
  rf_dtype wide = rf_wide_dtype(rf_input_dtype(graph, op, SEGMENTS + 1));
  RF_IN(0, wide, rows);
  RF_IN(1, RF_I32, rows);
  RF_IN(SEGMENTS, RF_I32, rows + 1);
  for (int i = SEGMENTS + 1; i < count; i++) RF_IN(i, wide, rows);
  for (int i = 0; i < op->output_count; i++) RF_OUT(i, RF_CLASS_ACTIVATION, wide, rows);
  return RAFTER_OK;
}

static rf_status no_reference(const rf_op *op, bool needs, rf_error *error) {
  return RF_FAIL(error, RAFTER_INVALID, NULL, "reference and settings disagree (%s: expected %s)", op->name,
                 needs ? "an input with log-probabilities of the reference" : "no input for the reference");
}

static rf_status policy_loss_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  bool needs = op->attr.policy.beta != 0, has = op->input_count > 6 && op->input[6] != RF_NONE;
  if (needs != has) return no_reference(op, needs, error);
  if (op->input[0] == RF_NONE && !op->attr.policy.on_policy)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "no log-probabilities (%s: expected the input nll)",
                   op->name);
  return loss_inputs(graph, op, 7, error);
}

static rf_status pair_loss_shape(rf_graph *graph, rf_op *op, rf_error *error) {
  bool needs = op->attr.pairs.kind != RF_PAIRS_SIMPO, has = op->input_count > 4 && op->input[4] != RF_NONE;
  if (needs != has) return no_reference(op, needs, error);
  return loss_inputs(graph, op, 5, error);
}

/* The gradient of nll is already an output of the op. */
static rf_status loss_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                               rf_error *error) {
  (void)graph;
  (void)grad_out;
  if (op->output[1] == RF_NONE)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "no gradient (%s: expected the output dnll)", op->name);
  grad_in[0] = op->output[1];
  return RAFTER_OK;
}

/* A chip needs all tokens of a sequence. So rows are sharded in the same way as the list of
 * segments, which lists whole sequences. rf_sequences_step puts both answers of a pair on one
 * chip, and unused rows after the chip's pairs. So segment 2k of a chip is the preferred answer of
 * its pair k. */
static rf_status sequences_shard(rf_sharding *s) {
  rf_spec list = s->in[SEGMENTS];
  for (int i = 0; i < s->op->input_count; i++) s->in[i] = list;
  for (int i = 0; i < s->op->output_count; i++) s->out[i] = list;
  return RAFTER_OK;
}

const rf_op_def RF_OP_POLICY_LOSS = {
    .name = "policy_loss",
    .kind = RF_KIND_HEAD,
    .formula =
        "a row r counts if labels[r] >= 0 and weights[r] != 0; other rows have loss 0; logp = -nll "
        "(on_policy: old, and nll is not read); d = logp - old; ratio = exp(d) (level 0), exp(mean of d) "
        "(level 1) or exp(sum of d) (level 2) over the "
        "counted rows of the row's segment; with a cap ratio = min(ratio, cap), constant from there on; A = "
        "advantages[r]; objective = ratio*A (clip 0), min(ratio*A, min(max(ratio, 1-clip_low), "
        "1+clip_high)*A) (clip 1) or min(ratio, 1+clip_high)*A*logp with a constant ratio (clip 2); k3 = "
        "exp(reference - logp) - (reference - logp) - 1; loss[r] = weights[r]*(beta*k3 - objective); dnll[r] "
        "= loss_scale * the derivative of the sum of all losses by nll[r]",
    .inputs = {"nll (n)?", "labels i32 (n)", "segments i32 (n+1)", "old (n)", "advantages (n)", "weights (n)",
               "reference (n)?"},
    .outputs = {"loss (n)", "dnll (n)?"},
    .fields = RF_FIELDS_POLICY,
    .shape = policy_loss_shape,
    .work = rf_work_bytes,
    .backward = loss_backward,
    .shard = sequences_shard,
    .tolerance = {1e-5f, 1e-5f},
    .loss = true,
};

const rf_op_def RF_OP_PAIR_LOSS = {
    .name = "pair_loss",
    .kind = RF_KIND_HEAD,
    .formula =
        "a row r counts if labels[r] >= 0 and weights[r] != 0; segment 2k is the preferred answer of pair k, "
        "and segment 2k+1 the other one; a pair counts if both have a counted row; s = sum (kind 0) or mean "
        "(kinds 1, 2) over the counted rows of a segment of -nll - reference (kind 2: of -nll); h = s[2k] - "
        "s[2k+1]; margin = beta*h; z = margin (kind 2: - gamma); loss of the pair = -(1-smoothing)*"
        "log(sigmoid(z)) - smoothing*log(sigmoid(-z)) (kinds 0, 2), (h - 1/(2 beta))^2 (kind 1); loss[r] = "
        "weights[r] * this loss in the first counted row of segment 2k, otherwise 0; margins[r] = margin in "
        "the first row of segment 2k, otherwise 0; dnll[r] = loss_scale * the derivative of the sum of all "
        "losses by nll[r]",
    .inputs = {"nll (n)", "labels i32 (n)", "segments i32 (n+1)", "weights (n)", "reference (n)?"},
    .outputs = {"loss (n)", "dnll (n)?", "margins (n)?"},
    .fields = RF_FIELDS_PAIRS,
    .shape = pair_loss_shape,
    .work = rf_work_bytes,
    .backward = loss_backward,
    .shard = sequences_shard,
    .tolerance = {1e-5f, 1e-5f},
    .loss = true,
};
