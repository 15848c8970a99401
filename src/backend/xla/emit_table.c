/* emit_table.c - finds the emitter of an op in the tables of the files emit_*.c. */
#include "backend/xla/emit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const rf_emitter *const TABLES[] = {
    RF_EMIT_POINTWISE, RF_EMIT_NORM,      RF_EMIT_EMBED,      RF_EMIT_ROPE,   RF_EMIT_MATMUL, RF_EMIT_LORA,
    RF_EMIT_OPTIMIZER, RF_EMIT_ATTENTION, RF_EMIT_CACHE,      RF_EMIT_LATENT, RF_EMIT_PART,   RF_EMIT_HEAD,
    RF_EMIT_EXPERTS,   RF_EMIT_GROUPED,   RF_EMIT_COLLECTIVE, RF_EMIT_SAMPLE, RF_EMIT_LOSSES,
};

rf_emit_target rf_emit_target_of(const char *platform) {
  bool cpu = strcmp(platform, "cpu") == 0, tpu = strcmp(platform, "tpu") == 0;
  if (strcmp(platform, "cuda") == 0)
    return (rf_emit_target){.bf16_products = true,
                            .cudnn = true,
                            .known = true,
                            .one_bf16 = true,
                            .narrow_bias = true,
                            .two_rows = true,
                            .joins_late = true,
                            .columns = 64,
                            .head_bytes = (int64_t)512 << 20,
                            /* without this flag, activations stay f32 in memory */
                            .flags = "--xla_allow_excess_precision=false",
                            /* kernels of a CUDA graph have no names of instructions */
                            .traced_flags = "--xla_gpu_enable_command_buffer="};
  return (rf_emit_target){.bf16_products = !cpu, .ragged_dot = tpu, .tiles = tpu};
}

bool rf_emit_packs(const rf_graph *graph) {
  for (int i = graph->op_count - 1; i >= 0; i--)
    if (graph->op[i].def == &RF_OP_POLICY_LOSS || graph->op[i].def == &RF_OP_PAIR_LOSS) return true;
  return false;
}

rf_emit_known rf_emit_usual(const rf_graph *graph, const rf_emit_target *target) {
  if (!target->known || rf_emit_packs(graph)) return (rf_emit_known){0};
  if (graph->job == RF_JOB_TRAIN) return (rf_emit_known){.whole_rows = true};
  if (rf_mesh_chips(&graph->mesh) > 1) return (rf_emit_known){0};
  return (rf_emit_known){.greedy = true, .reach = graph->seq};
}

char *rf_emit_flags(const rf_emit_target *target, bool traced, const char *more) {
  const char *first = target->flags ? target->flags : "", *last = more ? more : "",
             *second = traced && target->traced_flags ? target->traced_flags : "";
  size_t room = strlen(first) + strlen(second) + strlen(last) + 3;
  char *all = rf_must(malloc(room));
  snprintf(all, room, "%s %s %s", first, second, last); /* a later flag replaces an earlier one */
  return all;
}

const rf_emitter *rf_emitter_of(const rf_op_def *def) {
  for (size_t t = 0; t < sizeof TABLES / sizeof *TABLES; t++)
    for (const rf_emitter *row = TABLES[t]; row->def; row++)
      if (row->def == def) return row;
  return NULL;
}
