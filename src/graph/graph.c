/* graph.c - tensors, ops, names, copies and use lists of a graph; helpers for op rules. */
#include "graph/passes.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

const char *rf_class_name(rf_class class) {
  static const char *const names[RF_CLASSES] = {"weight",     "master",     "gradient", "moment",
                                                "adapter",    "activation", "logits",   "kv",
                                                "collective", "workspace",  "io",       "padding"};
  return (unsigned)class < RF_CLASSES ? names[class] : "?";
}

const char *rf_sublayer_name(rf_sublayer sublayer) {
  static const char *const names[RF_SUBLAYERS] = {NULL, "embed", "attn", "mlp", "head"};
  return names[sublayer];
}

/* ---- names ----------------------------------------------------------------------------------- */

const char *rf_graph_join(rf_graph *graph, const char *a, const char *b, const char *c) {
  size_t la = strlen(a), lb = strlen(b), lc = strlen(c);
  char *text = rf_pool_alloc(graph->pool, la + lb + lc + 1);
  memcpy(text, a, la);
  memcpy(text + la, b, lb);
  memcpy(text + la + lb, c, lc + 1);
  return text;
}

static size_t length_without(const char *name, const char *suffix) {
  size_t length = strlen(name), cut = strlen(suffix);
  return length >= cut && strcmp(name + length - cut, suffix) == 0 ? length - cut : length;
}

const char *rf_backward_name(rf_graph *graph, const rf_op *op, const char *suffix) {
  size_t stem = length_without(op->name, "/fwd"), tail = strlen(suffix);
  char *text = rf_pool_alloc(graph->pool, stem + 4 + tail + 1);
  memcpy(text, op->name, stem);
  memcpy(text + stem, "/bwd", 4);
  memcpy(text + stem + 4, suffix, tail + 1);
  return text;
}

/* An output's name: "step/micro/block.3/mlp/up/fwd" and slot "u (M,N)?" give "block.3/mlp/up/u". */
static const char *output_name(rf_graph *graph, const rf_op *op, int slot) {
  static const char *const sections[RF_SECTIONS] = {"step/begin/", "step/micro/", "step/end/"};
  const char *name = op->name, *label = op->def->outputs[slot];
  size_t prefix = strlen(sections[op->section]), stem;
  if (strncmp(name, sections[op->section], prefix) == 0) name += prefix;
  stem = length_without(name, "/fwd");
  /* The gradient slot "dx" drops "/bwd". Other slots keep "/bwd": the backward op of rope is rope
   * itself, and its output must not take the name of the forward output. */
  if (name[stem] == '\0' && label[0] == 'd') stem = length_without(name, "/bwd");
  size_t tail = strcspn(label, " ");
  char *text = rf_pool_alloc(graph->pool, stem + 1 + tail + 1);
  memcpy(text, name, stem);
  text[stem] = '/';
  memcpy(text + stem + 1, label, tail);
  return text;
}

bool rf_slot_optional(const char *slot) {
  size_t length = strlen(slot);
  return length > 0 && slot[length - 1] == '?';
}

/* ---- the graph ------------------------------------------------------------------------------- */

rf_graph *rf_graph_new(const rf_model *model) {
  rf_pool *pool = rf_pool_new();
  rf_graph *graph = rf_pool_alloc(pool, sizeof *graph);
  graph->pool = pool;
  graph->model = *model;
  graph->params = rf_model_params(model, pool);
  graph->accumulate = 1;
  graph->matmul = RF_DTYPES;
  graph->at.layer = RF_NONE;
  return graph;
}

void rf_graph_free(rf_graph *graph) {
  if (graph) rf_pool_free(graph->pool);
}

static const char *name_copy(rf_pool *pool, const char *name) {
  if (!name) return NULL;
  size_t bytes = strlen(name) + 1;
  return memcpy(rf_pool_alloc(pool, bytes), name, bytes);
}

rf_graph *rf_graph_borrow(const rf_graph *graph) {
  rf_pool *pool = rf_pool_new();
  rf_graph *copy = rf_pool_alloc(pool, sizeof *copy);
  *copy = *graph;
  copy->pool = pool;
  copy->tensor_capacity = graph->tensor_count + graph->op_count;
  copy->op_capacity = graph->op_count + graph->op_count / 4 + 1;
  copy->tensor = rf_pool_raw(pool, ((size_t)copy->tensor_capacity + 1) * sizeof *copy->tensor);
  copy->op = rf_pool_raw(pool, (size_t)copy->op_capacity * sizeof *copy->op);
  if (graph->tensor_count)
    memcpy(copy->tensor, graph->tensor, (size_t)graph->tensor_count * sizeof *copy->tensor);
  if (graph->op_count) memcpy(copy->op, graph->op, (size_t)graph->op_count * sizeof *copy->op);
  return copy;
}

void *rf_pool_grown(rf_pool *pool, const void *old, int count, int *capacity, size_t size) {
  *capacity = *capacity < 128 ? 256 : *capacity * 2;
  void *fresh = rf_pool_raw(pool, (size_t)*capacity * size);
  if (count) memcpy(fresh, old, (size_t)count * size);
  return fresh;
}

void rf_graph_reserve(rf_graph *graph, int64_t tensors, int64_t ops) {
  int64_t tensor_need = graph->tensor_count + tensors, op_need = graph->op_count + ops;
  if (tensor_need > graph->tensor_capacity && tensor_need < INT32_MAX / 2) {
    graph->tensor_capacity = (int)(tensor_need / 2);
    graph->tensor = rf_pool_grown(graph->pool, graph->tensor, graph->tensor_count, &graph->tensor_capacity,
                                  sizeof *graph->tensor);
  }
  if (op_need > graph->op_capacity && op_need < INT32_MAX / 2) {
    graph->op_capacity = (int)(op_need / 2);
    graph->op =
        rf_pool_grown(graph->pool, graph->op, graph->op_count, &graph->op_capacity, sizeof *graph->op);
  }
}

static int tensor_new(rf_graph *graph, const char *name, rf_class class, rf_dtype dtype, int rank,
                      const int64_t *shape) {
  if (graph->tensor_count >= graph->tensor_capacity)
    graph->tensor = rf_pool_grown(graph->pool, graph->tensor, graph->tensor_count, &graph->tensor_capacity,
                                  sizeof *graph->tensor);
  rf_tensor *tensor = &graph->tensor[graph->tensor_count];
  *tensor = (rf_tensor){.name = name, .dtype = dtype, .class = class, .rank = rank, .param = RF_NONE};
  for (int i = 0; i < rank; i++) tensor->shape[i] = shape[i];
  return graph->tensor_count++;
}

int rf_graph_tensor(rf_graph *graph, const char *name, rf_class class, rf_dtype dtype, int rank,
                    const int64_t *shape) {
  return tensor_new(graph, name_copy(graph->pool, name), class, dtype, rank, shape);
}

int rf_graph_find(const rf_graph *graph, const char *name) {
  for (int t = 0; t < graph->tensor_count; t++)
    if (strcmp(graph->tensor[t].name, name) == 0) return t;
  return RF_NONE;
}

int64_t rf_tensor_count(const rf_tensor *tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
  return count;
}

int64_t rf_tensor_bytes(const rf_tensor *tensor) {
  return tensor->dtype == RF_PACKED ? rf_panels_bytes(&tensor->panels)
                                    : (rf_tensor_count(tensor) * rf_dtype_bits(tensor->dtype) + 7) / 8;
}

bool rf_tensor_same_storage(const rf_tensor *a, const rf_tensor *b) {
  bool same = a->dtype == b->dtype && a->rank == b->rank;
  for (int i = 0; same && i < a->rank; i++) same = a->shape[i] == b->shape[i];
  if (!same || a->dtype != RF_PACKED) return same;
  const rf_panels *p = &a->panels, *q = &b->panels;
  same = p->outputs_first == q->outputs_first && p->inner == q->inner && p->experts == q->experts &&
         p->parts == q->parts;
  for (int i = 0; same && i < p->parts; i++)
    same = p->part[i].type == q->part[i].type && p->part[i].outputs == q->part[i].outputs;
  return same;
}

const char *rf_tensor_type(const rf_tensor *tensor, char text[64]) {
  return tensor->dtype == RF_PACKED ? rf_panels_name(&tensor->panels, text) : rf_dtype_name(tensor->dtype);
}

static int slot_count(const char *const *slots, int limit) {
  int count = 0;
  while (count < limit && slots[count]) count++;
  return count;
}

int rf_graph_emit(rf_graph *graph, const rf_op_def *def, const char *name, rf_section section,
                  rf_slots inputs, rf_slots outputs, const rf_attr *attr, rf_error *error) {
  rf_op op = {.def = def,
              .name = name_copy(graph->pool, name),
              .section = section,
              .input_count = slot_count(def->inputs, RF_MAX_INPUTS),
              .output_count = slot_count(def->outputs, RF_MAX_OUTPUTS),
              .recompute_of = RF_NONE,
              .chunk = graph->chunk,
              .at = graph->at};
  if (attr) op.attr = *attr;
  if (inputs.count > op.input_count || outputs.count > op.output_count) {
    rf_fail(error, RAFTER_INVALID, __FILE__, __LINE__, NULL,
            "too many slots (%s %s: expected at most %d inputs and %d outputs, got %d and %d)", def->name,
            name, op.input_count, op.output_count, inputs.count, outputs.count);
    return RF_NONE;
  }
  for (int i = 0; i < RF_MAX_INPUTS; i++) op.input[i] = i < inputs.count ? inputs.id[i] : RF_NONE;
  for (int i = 0; i < RF_MAX_OUTPUTS; i++)
    op.output[i] = i < outputs.count                           ? outputs.id[i]
                   : outputs.count == 0 && i < op.output_count ? RF_WANTED
                                                               : RF_NONE;
  if (def->shape(graph, &op, error) != RAFTER_OK) return RF_NONE;
  if (graph->op_count >= graph->op_capacity)
    graph->op =
        rf_pool_grown(graph->pool, graph->op, graph->op_count, &graph->op_capacity, sizeof *graph->op);
  graph->op[graph->op_count] = op;
  return graph->op_count++;
}

int rf_graph_make(rf_graph *graph, const rf_op_def *def, const char *name, rf_section section,
                  rf_slots inputs, const rf_attr *attr, rf_error *error) {
  int op = rf_graph_emit(graph, def, name, section, inputs, RF_ALL_NEW, attr, error);
  return op < 0 ? RF_NONE : graph->op[op].output[0];
}

/* Permutes the ops in place, one cycle after another, because writing these large structs to new
 * memory would take longer. */
void rf_graph_reorder(rf_graph *graph, const int *order, int count) {
  rf_pool *scratch = rf_pool_new();
  int *place = rf_pool_raw(scratch, (size_t)(graph->op_count + 1) * sizeof *place),
      *from = rf_pool_raw(scratch, (size_t)(graph->op_count + 1) * sizeof *from);
  for (int o = 0; o < graph->op_count; o++) place[o] = RF_NONE;
  for (int i = 0; i < count; i++) {
    from[i] = order[i];
    place[order[i]] = i;
  }
  for (int o = 0, end = count; o < graph->op_count; o++)
    if (place[o] == RF_NONE) from[end++] = o; /* dropped ops come last */
  for (int i = 0; i < graph->op_count; i++) {
    if (from[i] == RF_NONE || from[i] == i) continue;
    const rf_op first = graph->op[i];
    for (int at = i, next; at != RF_NONE; at = next) {
      next = from[at] == i ? RF_NONE : from[at];
      graph->op[at] = next == RF_NONE ? first : graph->op[next];
      from[at] = RF_NONE;
    }
  }
  for (int i = 0; i < count; i++)
    if (graph->op[i].recompute_of >= 0) graph->op[i].recompute_of = place[graph->op[i].recompute_of];
  graph->op_count = count;
  rf_pool_free(scratch);
}

void rf_graph_compact(rf_graph *graph) {
  int *place = rf_pool_alloc(graph->pool, (size_t)(graph->tensor_count + 1) * sizeof *place);
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    for (int i = 0; i < op->input_count; i++)
      if (op->input[i] >= 0) place[op->input[i]] = 1;
    for (int i = 0; i < op->output_count; i++)
      if (op->output[i] >= 0) place[op->output[i]] = 1;
  }
  int count = 0;
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    if (!place[t] && !tensor->persistent && !tensor->input && !tensor->output) continue;
    graph->tensor[count] = *tensor;
    place[t] = count++;
  }
  graph->tensor_count = count;
  for (int o = 0; o < graph->op_count; o++) {
    rf_op *op = &graph->op[o];
    for (int i = 0; i < op->input_count; i++)
      if (op->input[i] >= 0) op->input[i] = place[op->input[i]];
    for (int i = 0; i < op->output_count; i++)
      if (op->output[i] >= 0) op->output[i] = place[op->output[i]];
  }
}

/* ---- use lists ------------------------------------------------------------------------------- */

rf_uses rf_graph_uses(const rf_graph *graph, rf_pool *pool) {
  size_t tensors = (size_t)graph->tensor_count;
  rf_uses uses = {.reader_at = rf_pool_alloc(pool, (tensors + 2) * sizeof(int)),
                  .writer_at = rf_pool_alloc(pool, (tensors + 2) * sizeof(int))};
  /* At first, index t + 2 holds the count of tensor t. After the lists are filled, index t holds
   * the start of list t. */
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    for (int i = 0; i < op->input_count; i++)
      if (op->input[i] >= 0) uses.reader_at[op->input[i] + 2]++;
    for (int i = 0; i < op->output_count; i++)
      if (op->output[i] >= 0) uses.writer_at[op->output[i] + 2]++;
  }
  for (size_t t = 2; t <= tensors; t++) {
    uses.reader_at[t] += uses.reader_at[t - 1];
    uses.writer_at[t] += uses.writer_at[t - 1];
  }
  size_t reads = 0, writes = 0;
  if (tensors) {
    reads = (size_t)(uses.reader_at[tensors] + uses.reader_at[tensors + 1]);
    writes = (size_t)(uses.writer_at[tensors] + uses.writer_at[tensors + 1]);
  }
  uses.reader = rf_pool_alloc(pool, (reads + 1) * sizeof(int));
  uses.writer = rf_pool_alloc(pool, (writes + 1) * sizeof(int));
  for (int o = 0; o < graph->op_count; o++) {
    const rf_op *op = &graph->op[o];
    for (int i = 0; i < op->input_count; i++)
      if (op->input[i] >= 0) uses.reader[uses.reader_at[op->input[i] + 1]++] = o;
    for (int i = 0; i < op->output_count; i++)
      if (op->output[i] >= 0) uses.writer[uses.writer_at[op->output[i] + 1]++] = o;
  }
  return uses;
}

/* ---- helpers of shape rules ------------------------------------------------------------------ */

int64_t rf_input_dim(const rf_graph *graph, const rf_op *op, int slot, int axis) {
  if (op->input[slot] < 0 || op->input[slot] >= graph->tensor_count) return 0;
  const rf_tensor *tensor = &graph->tensor[op->input[slot]];
  return axis < tensor->rank ? tensor->shape[axis] : 0;
}

rf_dtype rf_input_dtype(const rf_graph *graph, const rf_op *op, int slot) {
  int id = op->input[slot];
  return id >= 0 && id < graph->tensor_count ? graph->tensor[id].dtype : RF_F32;
}

rf_dtype rf_wide_dtype(rf_dtype dtype) { return dtype == RF_F64 ? RF_F64 : RF_F32; }

static void shape_text(char text[96], int rank, const int64_t *dims) {
  snprintf(text, 96, "(");
  for (int i = 0; i < rank; i++) rf_text_append(text, 96, i ? ",%lld" : "%lld", (long long)dims[i]);
  rf_text_append(text, 96, ")");
}

bool rf_dtype_is_narrow(rf_dtype dtype) {
  return dtype == RF_I8 || dtype == RF_I4 || dtype == RF_F8_E4M3 || dtype == RF_F8_E5M2;
}

bool rf_dtype_is_float(rf_dtype dtype) {
  return dtype == RF_F32 || dtype == RF_BF16 || dtype == RF_F16 || dtype == RF_F64;
}

static bool dtype_fits(int wanted, rf_dtype dtype) {
  if (wanted == RF_ANY_WEIGHT && (dtype == RF_PACKED || rf_dtype_is_narrow(dtype))) return true;
  return wanted < 0 ? rf_dtype_is_float(dtype) : (int)dtype == wanted;
}

static rf_status slot_check(const rf_graph *graph, const rf_op *op, int id, const char *slot, int dtype,
                            int rank, const int64_t *dims, rf_error *error) {
  if (id >= graph->tensor_count)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "unknown tensor (%s %s, %s: expected an id below %d, got %d)",
                   op->def->name, op->name, slot, graph->tensor_count, id);
  const rf_tensor *tensor = &graph->tensor[id];
  if (!dtype_fits(dtype, tensor->dtype))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "wrong dtype (%s %s, %s = %s: expected %s, got %s)",
                   op->def->name, op->name, slot, tensor->name,
                   dtype < 0 ? "a float" : rf_dtype_name((rf_dtype)dtype), rf_dtype_name(tensor->dtype));
  bool same = tensor->rank == rank;
  for (int i = 0; same && i < rank; i++) same = tensor->shape[i] == dims[i];
  if (same) return RAFTER_OK;
  char expected[96], got[96];
  shape_text(expected, rank, dims);
  shape_text(got, tensor->rank, tensor->shape);
  return RF_FAIL(error, RAFTER_INVALID, NULL, "wrong shape (%s %s, %s = %s: expected %s, got %s)",
                 op->def->name, op->name, slot, tensor->name, expected, got);
}

rf_status rf_shape_input(const rf_graph *graph, const rf_op *op, int slot, int dtype, int rank,
                         const int64_t *dims, rf_error *error) {
  const char *text = op->def->inputs[slot];
  if (op->input[slot] >= 0) return slot_check(graph, op, op->input[slot], text, dtype, rank, dims, error);
  if (rf_slot_optional(text)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL, "missing input (%s %s: expected %s, got none)", op->def->name,
                 op->name, text);
}

rf_status rf_shape_output(rf_graph *graph, rf_op *op, int slot, rf_class class, rf_dtype dtype, int rank,
                          const int64_t *dims, rf_error *error) {
  if (op->output[slot] == RF_WANTED) {
    op->output[slot] = tensor_new(graph, output_name(graph, op, slot), class, dtype, rank, dims);
    return RAFTER_OK;
  }
  if (op->output[slot] >= 0)
    return slot_check(graph, op, op->output[slot], op->def->outputs[slot], (int)dtype, rank, dims, error);
  return RAFTER_OK;
}

rf_status rf_shape_alike(rf_graph *graph, rf_op *op, rf_error *error) {
  int64_t rows = rf_input_dim(graph, op, 0, 0), width = rf_input_dim(graph, op, 0, 1);
  rf_dtype dtype = rf_input_dtype(graph, op, 0);
  RF_IN(0, RF_ANY_FLOAT, rows, width);
  for (int i = 1; i < op->input_count; i++) RF_IN(i, dtype, rows, width);
  RF_OUT(0, RF_CLASS_ACTIVATION, dtype, rows, width);
  return RAFTER_OK;
}

/* ---- helpers of work rules ------------------------------------------------------------------- */

rf_work rf_work_bytes(const rf_graph *graph, const rf_op *op) {
  rf_work work = {0};
  for (int i = 0; i < op->input_count; i++)
    if (op->input[i] >= 0) work.bytes_read += (double)rf_tensor_bytes(&graph->tensor[op->input[i]]);
  for (int i = 0; i < op->output_count; i++) {
    if (op->output[i] < 0) continue;
    double bytes = (double)rf_tensor_bytes(&graph->tensor[op->output[i]]);
    work.bytes_written += bytes;
    if (op->attr.accumulate[i] != RF_WRITE) work.bytes_read += bytes;
  }
  return work;
}

void rf_attention_pairs(const rf_graph *graph, int64_t rows, int window, double *causal, double *square) {
  double seq = (double)(graph->seq > 0 && graph->seq < rows ? graph->seq : rows),
         segments = seq > 0 ? (double)rows / seq : 0;
  double reach = window > 0 && window < seq ? window : seq;
  /* Query i of a segment sees min(i + 1, reach) keys. The index i starts at 0. */
  *causal = segments * (reach * (reach + 1) / 2 + (seq - reach) * reach);
  *square = segments * seq * seq;
}
