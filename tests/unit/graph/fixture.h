/* fixture.h - graphs that the tests of this room share. */
#ifndef TEST_GRAPH_FIXTURE_H
#define TEST_GRAPH_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/graph.h"
#include "support/graph/verify.h"

#define TINY_GPT "gpt:layers=3,width=64,heads=4,ff=256,vocab=512,seq=64"
#define TINY_LLAMA "llama:layers=2,width=64,heads=4,kv_heads=2,ff=192,vocab=512,seq=64"

#define TINY_GEMMA "gemma3:layers=2,width=64,heads=4,kv_heads=2,head_dim=16,ff=192,vocab=512,seq=64"
#define TINY_DEEPSEEK \
  "deepseek:layers=3,width=24,heads=2,head_dim=12,rope_dim=4,value_dim=10,kv_rank=14,q_rank=9,ff=40,expert_" \
  "ff=16,experts=4,vocab=40,seq=16"
#define TINY_MIXTRAL "mixtral:layers=2,width=64,heads=4,kv_heads=2,ff=96,vocab=512,seq=64"
#define TINY_NEOX "pythia-70m:layers=2,width=64,heads=4,ff=256,vocab=512,seq=64"

static inline rf_model fixture_model(const char *spec) {
  rf_model model;
  char folder[4096];
  rf_error error = {0};
  if (rf_model_resolve(spec, &model, folder, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return model;
}

static inline void fixture_lora(rf_model *model, const char *text) {
  rf_lora lora;
  rf_error error = {0};
  if (rf_lora_parse(text, model, &lora, &error) != RAFTER_OK) fail_msg("%s", error.message);
  model->lora = lora;
}

static inline rf_build_options fixture_train(rf_dtype dtype, int accumulate, float dropout, float clip) {
  return (rf_build_options){.job = RF_JOB_TRAIN,
                            .dtype = dtype,
                            .microbatch = 2,
                            .seq = 32,
                            .accumulate = accumulate,
                            .dropout = dropout,
                            .clip = clip,
                            .beta1 = 0.9f,
                            .beta2 = 0.95f,
                            .eps = 1e-8f,
                            .weight_decay = 0.1f};
}

static inline rf_build_options fixture_generate(rf_dtype dtype, int64_t slots, int64_t rows) {
  return (rf_build_options){.job = RF_JOB_GENERATE,
                            .dtype = dtype,
                            .microbatch = slots,
                            .seq = 48,
                            .rows = rows,
                            .accumulate = 1,
                            .dropout = -1};
}

static inline rf_graph *fixture_graph(const rf_model *model, const rf_build_options *options,
                                      const char *after) {
  rf_graph *graph = NULL;
  rf_error error = {0};
  if (rf_graph_build(model, options, after, &graph, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return graph;
}

static inline void fixture_verify(const rf_graph *graph) {
  rf_error error = {0};
  if (rf_graph_verify(graph, &error) != RAFTER_OK) fail_msg("%s", error.message);
}

/* Index of the op of that name, or -1. */
static inline int fixture_op(const rf_graph *graph, const char *name) {
  for (int o = 0; o < graph->op_count; o++)
    if (strcmp(graph->op[o].name, name) == 0) return o;
  return -1;
}

#endif
