/* table.c - the kernel table: one kernel for each op. Each kernel accepts every dtype and shape. */
#include "backend/reference/kernels.h"
#include "backend/reference/reference.h"

static size_t workspace(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  static const struct {
    const rf_op_def *op;
    size_t (*bytes)(const rf_graph *graph, const rf_op *op, rf_tiling by);
  } rows[] = {
      {&RF_OP_ATTENTION, rf_reference_attention_workspace},
      {&RF_OP_ATTENTION_BWD, rf_reference_attention_workspace},
      {&RF_OP_ATTENTION_KV, rf_reference_attention_workspace},
      {&RF_OP_ATTENTION_LATENT, rf_reference_attention_latent_workspace},
      {&RF_OP_ATTENTION_LATENT_BWD, rf_reference_attention_latent_workspace},
      {&RF_OP_ATTENTION_LATENT_ROWS, rf_reference_attention_absorbed_workspace},
      {&RF_OP_ATTENTION_LATENT_KV, rf_reference_attention_absorbed_workspace},
      {&RF_OP_ATTENTION_PART, rf_reference_attention_part_workspace},
      {&RF_OP_ATTENTION_PART_BWD, rf_reference_attention_part_workspace},
      {&RF_OP_HEAD_LOSS_BWD, rf_reference_head_workspace},
      {&RF_OP_HEAD_LOSS_GRAD, rf_reference_head_workspace},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].op == op->def) return rows[i].bytes(graph, op, by);
  return 0;
}

/* ROW(ROPE, rope) is the table entry of the op rope; its kernel is rf_reference_rope. */
#define ROW(NAME, of) \
  {.op = #of, .name = "reference_" #of, .workspace_bytes = workspace, .run = rf_reference_##of},
const rf_kernel RF_REFERENCE_KERNELS[] = {RF_OPS_LIST(ROW){.op = NULL}};
