/* kind.c - what sort of work an op is, and which phase of a step it belongs to: the names that
 * recorders and reports group by. */
#include "graph/graph.h"

#include <fnmatch.h>
#include <string.h>

/* The first pattern that fits an op's name; what none fits is elementwise. */
static const struct {
  const char *pattern, *kind;
} KINDS[] = {
    {"norm_sq", "optimizer"},  {"norm_total", "optimizer"}, {"clip", "optimizer"},
    {"adamw", "optimizer"},    {"loss_sum", "head"},        {"head_norm*", "norm"},
    {"head*", "head"},         {"*norm*", "norm"},          {"embed*", "embed"},
    {"matmul*", "matmul"},     {"lora*", "matmul"},         {"attention*", "attention"},
    {"kv_*", "cache"},         {"route*", "experts"},       {"dispatch*", "experts"},
    {"combine*", "experts"},   {"all_*", "exchange"},       {"reduce_scatter", "exchange"},
    {"permute", "exchange"},   {"send", "exchange"},        {"recv", "exchange"},
    {"offload_*", "exchange"}, {"take_run", "exchange"},
};

const char *rf_op_kind(const rf_op *op) {
  for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
    if (!fnmatch(KINDS[i].pattern, op->def->name, 0)) return KINDS[i].kind;
  return "elementwise";
}

const char *rf_op_phase(const rf_op *op) {
  if (!strcmp(rf_op_kind(op), "optimizer")) return "optimizer";
  if (op->recompute_of != RF_NONE) return "recompute";
  return op->backward ? "backward" : "forward";
}
