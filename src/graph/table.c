/* table.c - the op table. A new op needs one file in ops/ and one entry in ops/list.h. */
#include "graph/ops/ops.h"

#include <string.h>

#define ROW(NAME, name) &RF_OP_##NAME,
const rf_op_def *const RF_OPS[] = {RF_OPS_LIST(ROW) NULL};

const rf_op_def *const RF_OPS_OF_BYTES[] = {&RF_OP_ADD, &RF_OP_ROPE, &RF_OP_RMSNORM, &RF_OP_LAYERNORM, NULL};

const rf_op_def *rf_op_find(const char *name) {
  for (int i = 0; RF_OPS[i]; i++)
    if (strcmp(RF_OPS[i]->name, name) == 0) return RF_OPS[i];
  return NULL;
}

const rf_kept_rule *rf_kept_rule_of(const rf_op_def *def) {
  static const rf_kept_rule other = {.input_across_loop = true, .input = true};
  return def->kept ? def->kept : &other;
}

const char *rf_op_kind(const rf_op *op) {
  static const char *const names[RF_KINDS] = {"elementwise", "embed",   "norm", "matmul",    "attention",
                                              "cache",       "experts", "head", "optimizer", "exchange"};
  return names[op->def->kind];
}

const char *rf_op_phase(const rf_op *op) {
  if (op->def->kind == RF_KIND_OPTIMIZER) return "optimizer";
  if (op->recompute_of != RF_NONE) return "recompute";
  return op->backward ? "backward" : "forward";
}
