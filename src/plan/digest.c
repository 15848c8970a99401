/* digest.c - hashes everything on which the results of a run depend: ops, kernels, threads and
 * offsets. The machine's speed is not part of the digest. */
#include "plan/parts.h"

#include "graph/mesh/pipeline.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Collects short byte ranges in a buffer, because each call of the hash function is slow. */
typedef struct hasher {
  XXH3_state_t *state;
  size_t used;
  unsigned char bytes[1024];
} hasher;

static void hash_gathered(hasher *h) {
  XXH3_64bits_update(h->state, h->bytes, h->used);
  h->used = 0;
}

static inline void hash_bytes(hasher *h, const void *data, size_t bytes) {
  if (bytes > sizeof h->bytes - h->used) hash_gathered(h);
  if (bytes > sizeof h->bytes) XXH3_64bits_update(h->state, data, bytes);
  else {
    memcpy(h->bytes + h->used, data, bytes);
    h->used += bytes;
  }
}
static inline void hash_int(hasher *h, int64_t value) { hash_bytes(h, &value, sizeof value); }
static inline void hash_float(hasher *h, double value) { hash_bytes(h, &value, sizeof value); }
static inline void hash_text(hasher *h, const char *text) {
  hash_bytes(h, text ? text : "", text ? strlen(text) + 1 : 1);
}

static void hash_attributes(hasher *h, const rf_op *op) {
  for (const rf_field *f = rf_op_fields(op->def); f->name; f++)
    hash_bytes(h, (const char *)&op->attr + f->offset, f->size);
  hash_bytes(h, op->attr.accumulate, sizeof op->attr.accumulate);
}

/* Every rank computes the digest of every stage. Only the plan of a rank's own stage describes
 * tensors of other stages, so these descriptions do not count. number[t] is the number of counted
 * tensors before t. If `number` is NULL, the plan is not that of a rank's own stage, and all
 * tensors count. */
static int *number_tensors(const rf_plan *plan) {
  if (!plan->options.own_stage) return NULL;
  int *number = rf_pool_raw(plan->graph->pool, ((size_t)plan->tensor_count + 1) * sizeof *number);
  number[0] = 0;
  for (int t = 0; t < plan->tensor_count; t++)
    number[t + 1] = number[t] + !rf_tensor_is_elsewhere(rf_plan_content(plan, t), &plan->graph->mesh);
  return number;
}

static void hash_tensors(hasher *h, const int *number, const int *tensor, int count) {
  if (!number) hash_bytes(h, tensor, (size_t)count * sizeof *tensor);
  for (int i = 0; number && i < count; i++) hash_int(h, tensor[i] < 0 ? tensor[i] : number[tensor[i]]);
}

void rf_plan_digest(rf_plan *plan) {
  const rf_graph *graph = plan->graph;
  const int *number = number_tensors(plan);
  hasher *h = &(hasher){.state = XXH3_createState()};
  if (!h->state) return;
  XXH3_64bits_reset(h->state);
  hash_text(h, plan->options.backend->name);
  hash_text(h, graph->model.init);
  const int64_t whole[] = {
      graph->accumulate,      graph->rows,       graph->seq,
      plan->options.threads,  plan->options.isa, plan->options.build.optimizer,
      plan->persistent_bytes, plan->arena_bytes, number ? number[plan->tensor_count] : plan->tensor_count,
      graph->op_count};
  hash_bytes(h, whole, sizeof whole);
  hash_float(h, (double)graph->model.dropout);
  hash_bytes(h, graph->model.rope_divisor, (size_t)graph->model.rope_divisors * sizeof(float));
  for (int t = 0; t < plan->tensor_count; t++) {
    const rf_tensor *tensor = rf_plan_content(plan, t);
    if (number && number[t + 1] == number[t]) continue;
    hash_text(h, tensor->name);
    hash_int(h, (int64_t)tensor->dtype << 8 | (int64_t)tensor->class << 4 | tensor->host << 3 |
                    tensor->persistent << 2 | tensor->input << 1 | tensor->output);
    hash_bytes(h, tensor->shape, (size_t)tensor->rank * sizeof *tensor->shape);
    hash_int(h, plan->tensor[t].offset);
    if (tensor->slots > 1) hash_int(h, tensor->slots);
    if (tensor->panels.experts > 0) hash_int(h, tensor->panels.experts);
    for (int i = 0; i < tensor->panels.parts; i++) {
      hash_int(h, tensor->panels.part[i].outputs);
      hash_text(h, tensor->panels.part[i].type->name);
    }
  }
  for (int i = 0; i < graph->op_count; i++) {
    const rf_op *op = &graph->op[i];
    hash_text(h, op->def->name);
    hash_text(h, op->name);
    hash_text(h, plan->op[i].kernel->name);
    if (plan->op[i].few) hash_text(h, plan->op[i].few->name);
    hash_int(h, op->section);
    hash_attributes(h, op);
    if (plan->op[i].blocks.kc) hash_bytes(h, &plan->op[i].blocks, sizeof plan->op[i].blocks);
    hash_tensors(h, number, op->input, op->input_count);
    hash_tensors(h, number, op->output, op->output_count);
  }
  hash_gathered(h);
  snprintf(plan->digest, sizeof plan->digest, "%016llx", (unsigned long long)XXH3_64bits_digest(h->state));
  XXH3_freeState(h->state);
}
