/* verify.c - verifies that a graph can be executed: ids, slots, shapes, sections, order, one writer
 * per tensor, sums that start and continue correctly, states that change once and are not read
 * afterwards. It visits the ops itself and shares no list with the passes. */
#include "support/graph/verify.h"

#include "graph/passes.h"

#include <stdlib.h>
#include <string.h>

typedef struct checker {
  const rf_graph *graph;
  rf_error *error;
  int *writer;         /* last op that wrote each tensor, or RF_NONE */
  int *written;        /* number of writes to each tensor so far */
  rf_section *birth;   /* section of the first write to each tensor */
  rf_accumulate *how;  /* mode of the first write to each tensor */
  bool *read;          /* whether an op has already read the tensor */
  int *coming, *going; /* exchanges that an op has begun and none has waited for: their outputs, inputs */
  bool *element;       /* norm_sq, adamw: elements of the sums that are already written */
  int sums;            /* tensor that holds these sums */
  int elements;
} checker;

#define FAULT(c, ...) RF_FAIL((c)->error, RAFTER_INVALID, NULL, __VA_ARGS__)

static bool in_place_state(const rf_op *op, int slot) {
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] == op->output[slot]) return true;
  /* The bf16 copy follows its master. A weight that every chip has whole receives the parts that
   * each chip has updated. */
  return (op->def == &RF_OP_ADAMW && slot == 3) || op->def->exchange == RF_EXCHANGE_ALL_GATHER ||
         op->def == &RF_OP_OFFLOAD_OUT;
}

/* A state from the host is updated in place on the chip. */
static bool brought(const checker *c, const rf_op *op, int slot) {
  int writer = c->writer[op->output[slot]];
  return writer != RF_NONE && c->graph->op[writer].def == &RF_OP_OFFLOAD_IN && in_place_state(op, slot);
}

static rf_status check_tensor(checker *c, int t) {
  const rf_tensor *tensor = &c->graph->tensor[t];
  bool good = tensor->name && tensor->rank >= 1 && tensor->rank <= RF_MAX_RANK &&
              (unsigned)tensor->dtype < RF_DTYPES && (unsigned)tensor->class < RF_CLASSES &&
              tensor->param >= RF_NONE && tensor->param < c->graph->params.count;
  for (int i = 0; good && i < tensor->rank; i++) good = tensor->shape[i] > 0;
  if (good && !(tensor->input && tensor->output)) return RAFTER_OK;
  return RF_FAIL(
      c->error, RAFTER_INVALID, NULL,
      "malformed tensor (tensor %d %s: expected a name, 1 to %d axes > 0, a known dtype and class)", t,
      tensor->name ? tensor->name : "", RF_MAX_RANK);
}

static rf_status check_slots(checker *c, const rf_op *op, const int *ids, int count, const char *const *texts,
                             int limit, const char *side) {
  int slots = 0;
  while (slots < limit && texts[slots]) slots++;
  if (count != slots)
    return FAULT(c, "wrong slot count (%s %s: expected %d %ss, got %d)", op->def->name, op->name, slots, side,
                 count);
  for (int i = 0; i < count; i++) {
    bool absent = ids[i] == RF_NONE && rf_slot_optional(texts[i]);
    if (!absent && (ids[i] < 0 || ids[i] >= c->graph->tensor_count))
      return FAULT(c, "bad tensor id (%s %s, %s %s: expected 0 to %d, got %d)", op->def->name, op->name, side,
                   texts[i], c->graph->tensor_count - 1, ids[i]);
    for (int k = 0; k < i && ids[i] >= 0 && side[0] == 'o'; k++)
      if (ids[k] == ids[i])
        return FAULT(c, "written twice by one op (%s %s, output %s)", op->def->name, op->name, texts[i]);
  }
  return RAFTER_OK;
}

/* Whether two dropout ops zero the same elements. */
static bool draws_alike(const rf_op *a, const rf_op *b) {
  if (a->def->fields != RF_FIELDS_DROPOUT && a->def->fields != RF_FIELDS_MATMUL) return true;
  return a->attr.dropout.site == b->attr.dropout.site && a->attr.dropout.rate == b->attr.dropout.rate;
}

static rf_status check_form(checker *c, int o) {
  const rf_op *op = &c->graph->op[o];
  if (!op->def || !op->name || rf_op_find(op->def->name) != op->def)
    return RF_FAIL(c->error, RAFTER_INVALID, NULL, "op %d has no row in the op table or no name", o);
  RF_TRY(check_slots(c, op, op->input, op->input_count, op->def->inputs, RF_MAX_INPUTS, "input"));
  RF_TRY(check_slots(c, op, op->output, op->output_count, op->def->outputs, RF_MAX_OUTPUTS, "output"));
  if ((unsigned)op->section >= RF_SECTIONS || (o > 0 && op->section < c->graph->op[o - 1].section))
    return FAULT(c, "wrong section (%s %s: expected begin, micro, end in this order)", op->def->name,
                 op->name);
  /* All outputs are set, so the shape rule only checks and adds nothing to the graph. */
  rf_op copy = *op;
  RF_TRY(op->def->shape((rf_graph *)(uintptr_t)c->graph, &copy, c->error));
  if (op->recompute_of == RF_NONE) return RAFTER_OK;
  if (op->recompute_of < 0 || op->recompute_of >= o)
    return FAULT(c, "repeats no earlier op (%s %s: expected an op below %d, got %d)", op->def->name, op->name,
                 o, op->recompute_of);
  const rf_op *first = &c->graph->op[op->recompute_of];
  bool epilogue = op->def == &RF_OP_GELU && first->def == &RF_OP_MATMUL &&
                  first->attr.matmul.epilogue == RF_EPILOGUE_GELU;
  if (first->backward || first->recompute_of != RF_NONE || (first->def != op->def && !epilogue) ||
      (!epilogue && !draws_alike(first, op)))
    return FAULT(c, "repeats another op than it says (%s %s: expected what %s does)", op->def->name, op->name,
                 first->name);
  return RAFTER_OK;
}

static rf_status check_read(checker *c, const rf_op *op, int slot) {
  int t = op->input[slot];
  if (t < 0) return RAFTER_OK;
  const rf_tensor *tensor = &c->graph->tensor[t];
  c->read[t] = true;
  if (tensor->host && op->def != &RF_OP_OFFLOAD_IN)
    return FAULT(c, "reads the host's memory (%s %s, %s)", op->def->name, op->name, tensor->name);
  if (tensor->input) {
    if (op->section == RF_SECTION_MICRO || c->graph->accumulate == 1) return RAFTER_OK;
    return FAULT(c, "reads an input of one microbatch outside of it (%s %s, %s)", op->def->name, op->name,
                 tensor->name);
  }
  if (tensor->persistent) {
    if (c->writer[t] == RF_NONE || op->def->exchange == RF_EXCHANGE_ALL_GATHER) return RAFTER_OK;
    return FAULT(c, "reads a state after its update (%s %s, %s written by %s)", op->def->name, op->name,
                 tensor->name, c->graph->op[c->writer[t]].name);
  }
  if (c->writer[t] == RF_NONE)
    return FAULT(c, "read before it is written (%s %s, %s)", op->def->name, op->name, tensor->name);
  if (op->section == RF_SECTION_END && c->birth[t] == RF_SECTION_MICRO && c->graph->accumulate > 1 &&
      c->how[t] != RF_ACCUMULATE_MICRO)
    return FAULT(
        c, "reads one microbatch's value in the end section (%s %s, %s: expected a sum over microbatches)",
        op->def->name, op->name, tensor->name);
  if (op->section == RF_SECTION_MICRO && c->how[t] == RF_ACCUMULATE_MICRO && c->graph->accumulate > 1)
    return FAULT(c, "reads a sum over microbatches before the last one (%s %s, %s)", op->def->name, op->name,
                 tensor->name);
  return RAFTER_OK;
}

/* norm_sq, or an update that includes it, writes one element of the sums. The sums are complete
 * when every element is written. */
static rf_status check_element(checker *c, const rf_op *op, int t) {
  int64_t count = c->graph->tensor[t].shape[0];
  if (!c->element) c->element = calloc((size_t)count, 1);
  if (!c->element)
    return RF_FAIL(c->error, RAFTER_FAILED, NULL, "out of memory (verify: %lld bytes)", (long long)count);
  if (c->element[op->attr.sums.element])
    return FAULT(c, "written twice (%s %s, element %d)", op->def->name, op->name, op->attr.sums.element);
  c->element[op->attr.sums.element] = true;
  c->sums = t;
  c->elements++;
  return RAFTER_OK;
}

static rf_status check_write(checker *c, int o, int slot) {
  const rf_op *op = &c->graph->op[o];
  int t = op->output[slot];
  if (t < 0) return RAFTER_OK;
  const rf_tensor *tensor = &c->graph->tensor[t];
  rf_accumulate how = op->attr.accumulate[slot];
  /* begins to sum in place */
  bool same = op->def->starts && op->def->exchange == RF_EXCHANGE_ALL_REDUCE && op->input[0] == t;
  bool first = c->writer[t] == RF_NONE,
       element = op->def == &RF_OP_NORM_SQ || (op->def == &RF_OP_ADAMW && slot == 4),
       loops = op->section == RF_SECTION_MICRO && c->graph->accumulate > 1;
  if (tensor->input) return FAULT(c, "writes an input (%s %s, %s)", op->def->name, op->name, tensor->name);
  if (tensor->host && op->def != &RF_OP_OFFLOAD_OUT)
    return FAULT(c, "writes the host's memory (%s %s, %s)", op->def->name, op->name, tensor->name);
  if (tensor->persistent) {
    if (!in_place_state(op, slot))
      return FAULT(c, "overwrites a state (%s %s, %s)", op->def->name, op->name, tensor->name);
    if (!first)
      return FAULT(c, "second update of a state (%s %s, %s)", op->def->name, op->name, tensor->name);
    if (loops && tensor->class != RF_CLASS_KV)
      return FAULT(c, "wrong section (%s %s, %s: expected its update after the last microbatch)",
                   op->def->name, op->name, tensor->name);
  } else if (!brought(c, op, slot) && !same) {
    for (int i = 0; i < op->input_count; i++)
      if (op->input[i] == t)
        return FAULT(c, "writes what it reads (%s %s, %s)", op->def->name, op->name, tensor->name);
    bool arrives = op->def == &RF_OP_RECV && how == RF_ACCUMULATE_ADD; /* a partial sum of another stage */
    bool summable = tensor->class == RF_CLASS_GRADIENT || tensor->class == RF_CLASS_IO ||
                    tensor->class == RF_CLASS_COLLECTIVE;
    if ((unsigned)how > RF_ACCUMULATE_ADD || (how != RF_WRITE && !summable))
      return FAULT(c, "adds to a tensor that holds no sum (%s %s, %s)", op->def->name, op->name,
                   tensor->name);
    if (first && how == RF_ACCUMULATE_ADD)
      return FAULT(c, "adds to nothing (%s %s, %s)", op->def->name, op->name, tensor->name);
    if (!first && how != RF_ACCUMULATE_ADD && !element)
      return FAULT(c, "second writer (%s %s, %s written by %s)", op->def->name, op->name, tensor->name,
                   c->graph->op[c->writer[t]].name);
    if (!first && c->read[t] && !arrives)
      return FAULT(c, "written after it was read (%s %s, %s)", op->def->name, op->name, tensor->name);
    if (!first && c->birth[t] != op->section && !arrives)
      return FAULT(c, "wrong section (%s %s, %s: expected that of its first writer)", op->def->name, op->name,
                   tensor->name);
    if (how == RF_ACCUMULATE_MICRO && op->section != RF_SECTION_MICRO)
      return FAULT(c, "wrong section (%s %s, %s: expected micro)", op->def->name, op->name, tensor->name);
    if (first && loops && tensor->class == RF_CLASS_GRADIENT && how != RF_ACCUMULATE_MICRO)
      return FAULT(c, "forgets earlier microbatches (%s %s, %s: expected a sum)", op->def->name, op->name,
                   tensor->name);
    if (element) RF_TRY(check_element(c, op, t));
  }
  if (first) {
    c->birth[t] = op->section;
    c->how[t] = how;
  }
  c->writer[t] = o;
  c->written[t]++;
  return RAFTER_OK;
}

/* Between the two ops of an exchange, no op uses its output or writes its input. */
static rf_status check_exchange(checker *c, const rf_op *op) {
  bool waits = op->def->exchange == RF_EXCHANGE_WAIT;
  for (int i = 0; i < op->input_count && !waits; i++)
    if (op->input[i] >= 0 && c->coming[op->input[i]])
      return FAULT(c, "reads before the exchange is complete (%s %s)", op->def->name, op->name);
  for (int i = 0; i < op->output_count && !waits; i++)
    if (op->output[i] >= 0 && (c->coming[op->output[i]] || c->going[op->output[i]]))
      return FAULT(c, "writes before the exchange is complete (%s %s)", op->def->name, op->name);
  if (waits && !c->coming[op->output[0]])
    return FAULT(c, "waits for no exchange (%s %s)", op->def->name, op->name);
  if (!waits && !op->def->starts) return RAFTER_OK;
  c->coming[op->output[0]] += waits ? -1 : 1;
  if (op->input[0] != op->output[0]) c->going[op->input[0]] += waits ? -1 : 1;
  return RAFTER_OK;
}

static int by_text(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static rf_status check_names(checker *c, const char **names, int count, const char *what) {
  if (count > 1) qsort(names, (size_t)count, sizeof *names, by_text);
  for (int i = 1; i < count; i++)
    if (strcmp(names[i - 1], names[i]) == 0)
      return RF_FAIL(c->error, RAFTER_INVALID, NULL, "two %ss of one name (%s)", what, names[i]);
  return RAFTER_OK;
}

static rf_status check_all(checker *c, rf_pool *pool) {
  const rf_graph *graph = c->graph;
  size_t count = (size_t)(graph->tensor_count > graph->op_count ? graph->tensor_count : graph->op_count) + 1;
  const char **names = rf_pool_alloc(pool, count * sizeof *names);
  if (graph->accumulate < 1)
    return RF_FAIL(c->error, RAFTER_INVALID, NULL, "no microbatch (accumulate: expected >= 1, got %d)",
                   graph->accumulate);
  for (int t = 0; t < graph->tensor_count; t++) {
    RF_TRY(check_tensor(c, t));
    c->writer[t] = RF_NONE;
    names[t] = graph->tensor[t].name;
  }
  RF_TRY(check_names(c, names, graph->tensor_count, "tensor"));
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    RF_TRY(check_form(c, o));
    RF_TRY(check_exchange(c, op));
    names[o] = op->name;
    if (op->def->exchange == RF_EXCHANGE_WAIT) continue;
    for (int i = 0; i < op->input_count; i++) RF_TRY(check_read(c, op, i));
    bool totals = op->def == &RF_OP_NORM_TOTAL || (op->def == &RF_OP_CLIP && c->sums == op->input[0]);
    if (totals && c->elements != rf_tensor_count(&graph->tensor[op->input[0]]))
      return FAULT(c, "read before it is whole (%s %s: expected %lld norms, got %d)", op->def->name, op->name,
                   (long long)rf_tensor_count(&graph->tensor[op->input[0]]), c->elements);
    for (int i = 0; i < op->output_count; i++) RF_TRY(check_write(c, o, i));
  }
  RF_TRY(check_names(c, names, graph->op_count, "op"));
  for (int t = 0; t < graph->tensor_count; t++)
    if (c->coming[t])
      return RF_FAIL(c->error, RAFTER_INVALID, NULL, "no op waits for an exchange (%s)",
                     graph->tensor[t].name);
  for (int t = 0; t < graph->tensor_count; t++)
    if (graph->tensor[t].output && c->writer[t] == RF_NONE)
      return RF_FAIL(c->error, RAFTER_INVALID, NULL, "promised and never written (%s)",
                     graph->tensor[t].name);
  return RAFTER_OK;
}

rf_status rf_graph_verify(const rf_graph *graph, rf_error *error) {
  rf_pool *pool = rf_pool_new();
  size_t tensors = (size_t)graph->tensor_count + 1;
  checker c = {.graph = graph,
               .sums = RF_NONE,
               .error = error,
               .writer = rf_pool_alloc(pool, tensors * sizeof(int)),
               .written = rf_pool_alloc(pool, tensors * sizeof(int)),
               .birth = rf_pool_alloc(pool, tensors * sizeof(rf_section)),
               .how = rf_pool_alloc(pool, tensors * sizeof(rf_accumulate)),
               .coming = rf_pool_alloc(pool, tensors * sizeof(int)),
               .going = rf_pool_alloc(pool, tensors * sizeof(int)),
               .read = rf_pool_alloc(pool, tensors)};
  rf_status status = check_all(&c, pool);
  free(c.element);
  rf_pool_free(pool);
  return status;
}
