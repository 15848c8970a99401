/* op_losses.c - cases of policy_loss and pair_loss. Rows whose label is -1 do not count. */
#include "support/op_parts.h"

#include <string.h>

/* Inputs nll, labels and segments of both ops. Values of nll are near 1.5. */
static void loss_inputs(op_harness *h, const op_case *of, int64_t rows, int in[3]) {
  in[0] = op_tensor(h, "nll", RF_CLASS_ACTIVATION, h->wide, (op_fill){0.3, 1.5}, OP_SHAPE(rows));
  in[1] = case_some_ids(h, "labels", rows, 5, of->flags & OP_IGNORED);
  in[2] = case_segments(h, of, rows, NULL);
}

/* An input that the caller writes, so that the op gives no gradient of it. */
static int written(op_harness *h, const char *name, double scale, double offset, int64_t rows) {
  return op_tensor(h, name, RF_CLASS_IO, h->wide, (op_fill){scale, offset}, OP_SHAPE(rows));
}

/* OP_WINDOW: mean of a sequence. OP_PREFILL: sum. OP_CLIP: clipped ratios. OP_WEIGHT: the ratio is
 * a weight. OP_SOFTCAP: capped ratios. OP_RESIDUE: with a reference. OP_ADD: the ratio is 1. */
void build_policy_loss(op_harness *h, const op_case *of, const op_size *size) {
  int64_t rows = size->rows;
  unsigned flags = of->flags;
  rf_attr attr = {.policy = {.level = flags & OP_WINDOW    ? RF_POLICY_SEQUENCE_MEAN
                                      : flags & OP_PREFILL ? RF_POLICY_SEQUENCE_SUM
                                                           : RF_POLICY_TOKEN,
                             .clip = flags & OP_CLIP     ? RF_POLICY_CLIP_RATIO
                                     : flags & OP_WEIGHT ? RF_POLICY_CLIP_WEIGHT
                                                         : RF_POLICY_CLIP_NONE,
                             .clip_low = 0.2f,
                             .clip_high = 0.28f,
                             .cap = flags & OP_SOFTCAP ? 1.5f : 0,
                             .beta = flags & OP_RESIDUE ? 0.3f : 0,
                             .on_policy = flags & OP_ADD}};
  int in[3];
  loss_inputs(h, of, rows, in);
  int old = written(h, "old", 0.3, -1.5, rows), advantages = written(h, "advantages", 1, 0, rows),
      weights = written(h, "weights", 0.1, 0.4, rows),
      reference = flags & OP_RESIDUE ? written(h, "reference", 0.5, -1.4, rows) : RF_NONE;
  op_apply(h, "policy_loss",
           OP_IDS(flags & OP_ADD ? RF_NONE : in[0], in[1], in[2], old, advantages, weights, reference),
           OP_IDS(RF_WANTED, RF_WANTED), &attr);
}

/* OP_INVERSE: IPO. OP_SCALED: SimPO. Otherwise DPO. OP_DECAY: label smoothing. */
void build_pair_loss(op_harness *h, const op_case *of, const op_size *size) {
  int64_t rows = size->rows;
  bool simpo = of->flags & OP_SCALED;
  rf_attr attr = {.pairs = {.kind = of->flags & OP_INVERSE ? RF_PAIRS_IPO
                                    : simpo                ? RF_PAIRS_SIMPO
                                                           : RF_PAIRS_DPO,
                            .beta = simpo ? 2 : 0.4f,
                            .gamma = simpo ? 0.7f : 0,
                            .smoothing = of->flags & OP_DECAY ? 0.1f : 0}};
  int in[3];
  loss_inputs(h, of, rows, in);
  int weights = written(h, "weights", 0.1, 0.4, rows),
      reference = simpo ? RF_NONE : written(h, "reference", 0.5, -1.4, rows);
  op_apply(h, "pair_loss", OP_IDS(in[0], in[1], in[2], weights, reference),
           OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED), &attr);
}
