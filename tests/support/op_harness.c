#include "support/op_harness.h"
#include "support/compare.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { GUARD_BYTES = 64, GUARD = 0x5c };

struct op_buffer {
  /* the case fills it with normal numbers or ids; otherwise an op writes it, and it starts as
   * NaN */
  bool filled;
  op_fill fill;
  int32_t *ids;
  size_t bytes;
  unsigned char *block; /* guard bytes, data, guard bytes */
  unsigned char *first; /* initial value of every byte */
};

static size_t rounded_up(size_t bytes) { return (bytes + 63) / 64 * 64; }

static unsigned char *guarded(size_t bytes) {
  unsigned char *block = aligned_alloc(64, rounded_up(bytes) + 2 * GUARD_BYTES);
  assert_non_null(block);
  memset(block, GUARD, rounded_up(bytes) + 2 * GUARD_BYTES);
  return block;
}

/* Offset of the first changed guard byte from the start of the data, or 0 if no guard byte changed
 * (if bytes > 0, no guard byte has offset 0). */
static int64_t touched(const unsigned char *block, size_t bytes, bool *intact) {
  *intact = true;
  size_t end = rounded_up(bytes) + 2 * GUARD_BYTES;
  for (size_t i = 0; i < end; i++)
    if ((i < GUARD_BYTES || i >= GUARD_BYTES + bytes) && block[i] != GUARD) {
      *intact = false;
      return (int64_t)i - GUARD_BYTES;
    }
  return 0;
}

static op_buffer *buffer_of(op_harness *h, int tensor) {
  if (h->buffer_capacity < h->graph->tensor_count) {
    int capacity = h->graph->tensor_count + 32;
    h->buffer = realloc(h->buffer, (size_t)capacity * sizeof *h->buffer);
    assert_non_null(h->buffer);
    memset(h->buffer + h->buffer_capacity, 0, (size_t)(capacity - h->buffer_capacity) * sizeof *h->buffer);
    h->buffer_capacity = capacity;
  }
  return &h->buffer[tensor];
}

op_harness *op_harness_new(rf_dtype dtype, int64_t rows) {
  op_harness *h = calloc(1, sizeof *h);
  assert_non_null(h);
  rf_model model = {.name = "harness",
                    .family = RF_FAMILY_GPT,
                    .layers = 1,
                    .width = 8,
                    .heads = 2,
                    .kv_heads = 2,
                    .head_dim = 4,
                    .ff = 16,
                    .vocab = 16,
                    .max_seq = 16,
                    .bias = true,
                    .norm_eps = 1e-5f,
                    .bos_id = -1,
                    .eos_id = -1,
                    .init = "gpt2"};
  h->graph = rf_graph_new(&model);
  h->graph->rows = h->graph->seq = rows;
  h->dtype = dtype;
  h->wide = dtype == RF_F64 ? RF_F64 : RF_F32;
  h->run = (rf_run_inputs){
      .seed = 1234, .step = 3, .first_token = 1000, .loss_scale = 1.0f / 17.0f, .lr = 1e-3f, .rows = rows};
  h->subject = -1;
  return h;
}

void op_harness_free(op_harness *h) {
  for (int i = 0; i < h->buffer_capacity; i++) {
    free(h->buffer[i].ids);
    free(h->buffer[i].block);
    free(h->buffer[i].first);
  }
  free(h->buffer);
  rf_graph_free(h->graph);
  free(h);
}

int op_tensor(op_harness *h, const char *name, rf_class class, rf_dtype dtype, op_fill fill, int rank,
              const int64_t *shape) {
  int id = rf_graph_tensor(h->graph, name, class, dtype, rank, shape);
  op_buffer *buffer = buffer_of(h, id);
  buffer->filled = true;
  buffer->fill = fill;
  return id;
}

int64_t op_panels_outputs(const rf_panels *panels) {
  int64_t sum = 0;
  for (int i = 0; i < panels->parts; i++) sum += panels->part[i].outputs;
  return sum;
}

int op_packed(op_harness *h, const char *name, const rf_panels *panels, op_fill fill) {
  int64_t outputs = op_panels_outputs(panels), inner = panels->inner * rf_panels_experts(panels);
  int id = panels->outputs_first
               ? op_tensor(h, name, RF_CLASS_WEIGHT, RF_PACKED, fill, OP_SHAPE(outputs, inner))
               : op_tensor(h, name, RF_CLASS_WEIGHT, RF_PACKED, fill, OP_SHAPE(inner, outputs));
  h->graph->tensor[id].panels = *panels;
  return id;
}

int op_ids(op_harness *h, const char *name, int64_t count, const int32_t *values) {
  int id = rf_graph_tensor(h->graph, name, RF_CLASS_IO, RF_I32, 1, &count);
  op_buffer *buffer = buffer_of(h, id);
  buffer->filled = true;
  buffer->ids = malloc((size_t)count * sizeof *values);
  assert_non_null(buffer->ids);
  memcpy(buffer->ids, values, (size_t)count * sizeof *values);
  return id;
}

void op_as_matrix(op_harness *h, int tensor, int64_t rows, int64_t columns) {
  h->graph->tensor[tensor].rank = 2;
  h->graph->tensor[tensor].shape[0] = rows;
  h->graph->tensor[tensor].shape[1] = columns;
}

int op_floats(op_harness *h, const char *name, int64_t rows, int64_t columns, const float *values) {
  int32_t *words = malloc((size_t)(rows * columns) * sizeof *words);
  assert_non_null(words);
  memcpy(words, values, (size_t)(rows * columns) * sizeof *words);
  int id = op_ids(h, name, rows * columns, words);
  free(words);
  h->graph->tensor[id].dtype = RF_F32;
  op_as_matrix(h, id, rows, columns);
  return id;
}

int op_table(op_harness *h, int64_t slots, int64_t columns) {
  int64_t count = slots * columns;
  int32_t *pages = malloc((size_t)count * sizeof *pages);
  assert_non_null(pages);
  for (int64_t i = 0; i < count; i++) pages[i] = (int32_t)(count - 1 - i);
  int id = op_ids(h, "table", count, pages);
  free(pages);
  op_as_matrix(h, id, slots, columns);
  return id;
}

int op_apply(op_harness *h, const char *def, int input_count, const int *inputs, int output_count,
             const int *outputs, const rf_attr *attr) {
  rf_error error = {0};
  char name[64];
  snprintf(name, sizeof name, "step/micro/%s.%d", def, h->graph->op_count);
  const rf_op_def *row = rf_op_find(def);
  if (!row) fail_msg("no op '%s'", def);
  int id = rf_graph_emit(h->graph, row, name, RF_SECTION_MICRO, (rf_slots){inputs, input_count},
                         (rf_slots){outputs, output_count}, attr, &error);
  if (id < 0) fail_msg("%s", error.message);
  return h->subject = id;
}

int op_output(const op_harness *h, int op, int slot) { return h->graph->op[op].output[slot]; }
int64_t op_count(const op_harness *h, int tensor) { return rf_tensor_count(&h->graph->tensor[tensor]); }
void *op_data(const op_harness *h, int tensor) { return h->buffer[tensor].block + GUARD_BYTES; }
double op_get(const op_harness *h, int tensor, int64_t i) {
  return compare_load(h->graph->tensor[tensor].dtype, op_data(h, tensor), i);
}

void op_set(op_harness *h, int tensor, int64_t i, double value) {
  switch (h->graph->tensor[tensor].dtype) {
  case RF_F64: ((double *)op_data(h, tensor))[i] = value; break;
  case RF_F32: ((float *)op_data(h, tensor))[i] = (float)value; break;
  case RF_BF16: ((rf_bf16 *)op_data(h, tensor))[i] = rf_f32_to_bf16((float)value); break;
  case RF_I32: ((int32_t *)op_data(h, tensor))[i] = (int32_t)value; break;
  case RF_I8: ((int8_t *)op_data(h, tensor))[i] = (int8_t)fmax(-127, fmin(127, value)); break;
  default: fail_msg("tensor %s has a dtype that no op takes", h->graph->tensor[tensor].name);
  }
}

void *op_copy(const op_harness *h, int tensor) {
  size_t bytes = h->buffer[tensor].bytes;
  void *copy = malloc(bytes ? bytes : 1);
  assert_non_null(copy);
  return memcpy(copy, op_data(h, tensor), bytes);
}

typedef struct normals {
  uint64_t key;
  op_fill fill;
  int64_t inner;
} normals;

static rf_status read_normals(void *self, int64_t first, int count, float *values, rf_error *error) {
  const normals *n = self;
  (void)error;
  for (int64_t i = 0; i < count * n->inner; i++) {
    uint32_t words[4];
    float pair[2];
    rf_philox(n->key, (uint64_t)(first * n->inner + i), 0, words);
    rf_normal_pair(words[0], words[1], pair);
    values[i] = (float)(n->fill.offset + n->fill.scale * (double)pair[0]);
  }
  return RAFTER_OK;
}

static void fill_packed(op_harness *h, int id, uint64_t seed) {
  rf_panels one = rf_panels_one(&h->graph->tensor[id].panels);
  memset(op_data(h, id), 0xff, h->buffer[id].bytes);
  for (int64_t e = 0; e < rf_panels_experts(&h->graph->tensor[id].panels); e++) {
    normals n = {rf_key(seed, (uint64_t)id, (uint64_t)e), h->buffer[id].fill, one.inner};
    rf_panel_source source = {&n, NULL, read_normals};
    assert_int_equal(rf_panels_fill(&one, &source, (char *)op_data(h, id) + e * rf_panels_bytes(&one), NULL),
                     RAFTER_OK);
  }
}

static void fill_tensor(op_harness *h, int id, uint64_t seed) {
  op_buffer *buffer = &h->buffer[id];
  int64_t count = op_count(h, id);
  if (!buffer->filled) memset(op_data(h, id), 0xff, buffer->bytes);
  else if (buffer->ids) memcpy(op_data(h, id), buffer->ids, buffer->bytes);
  else if (h->graph->tensor[id].dtype == RF_PACKED) fill_packed(h, id, seed);
  else
    for (int64_t i = 0; i < count; i += 2) {
      uint32_t words[4];
      float normal[2];
      rf_philox(rf_key(seed, (uint64_t)id, 0), (uint64_t)(i / 2), 0, words);
      rf_normal_pair(words[0], words[1], normal);
      for (int64_t k = 0; k < 2 && i + k < count; k++)
        op_set(h, id, i + k, buffer->fill.offset + buffer->fill.scale * (double)normal[k]);
    }
}

void op_fill_all(op_harness *h, uint64_t seed) {
  for (int id = 0; id < h->graph->tensor_count; id++) {
    op_buffer *buffer = buffer_of(h, id);
    if (!buffer->block) {
      buffer->bytes = (size_t)rf_tensor_bytes(&h->graph->tensor[id]);
      buffer->block = guarded(buffer->bytes);
      buffer->first = malloc(buffer->bytes ? buffer->bytes : 1);
      assert_non_null(buffer->first);
    }
    fill_tensor(h, id, seed);
    memcpy(buffer->first, op_data(h, id), buffer->bytes);
  }
}

void op_reset(op_harness *h, int op) {
  const rf_op *row = &h->graph->op[op];
  for (int i = 0; i < row->output_count; i++)
    if (row->output[i] >= 0)
      memcpy(op_data(h, row->output[i]), h->buffer[row->output[i]].first, h->buffer[row->output[i]].bytes);
}

static bool is_output(const rf_op *op, int tensor) {
  for (int i = 0; i < op->output_count; i++)
    if (op->output[i] == tensor) return true;
  return false;
}

static bool guards_stand(const op_harness *h, const rf_op *op, const rf_kernel *kernel,
                         const unsigned char *workspace, size_t workspace_bytes, char text[256]) {
  bool intact;
  int64_t at = touched(workspace, workspace_bytes, &intact);
  if (!intact) {
    snprintf(text, 256, "%s wrote outside its workspace (byte %lld of %zu)", kernel->name, (long long)at,
             workspace_bytes);
    return false;
  }
  for (int k = 0; k < op->input_count + op->output_count; k++) {
    int id = k < op->input_count ? op->input[k] : op->output[k - op->input_count];
    if (id < 0) continue;
    at = touched(h->buffer[id].block, h->buffer[id].bytes, &intact);
    if (intact) continue;
    snprintf(text, 256, "%s wrote outside %s (byte %lld of %zu)", kernel->name, h->graph->tensor[id].name,
             (long long)at, h->buffer[id].bytes);
    return false;
  }
  return true;
}

bool op_try(op_harness *h, int op_id, const rf_kernel *kernel, int threads, const rf_inplace *inplace,
            char text[256]) {
  const rf_op *op = &h->graph->op[op_id];
  rf_call call = {.graph = h->graph, .op = op, .threads = threads, .run = &h->run};
  void *before[RF_MAX_INPUTS] = {0};
  for (int i = 0; i < op->output_count; i++)
    call.out[i] = op->output[i] < 0 ? NULL : op_data(h, op->output[i]);
  for (int i = 0; i < op->input_count; i++) {
    if (op->input[i] < 0) continue;
    call.in[i] = op_data(h, op->input[i]);
    if (inplace && inplace->input == i) {
      memcpy(call.out[inplace->output], call.in[i], h->buffer[op->input[i]].bytes);
      call.in[i] = call.out[inplace->output];
    }
    if (!is_output(op, op->input[i])) before[i] = op_copy(h, op->input[i]);
  }
  size_t bytes = rf_kernel_workspace(kernel, h->graph, op, (rf_tiling){.threads = threads});
  unsigned char *workspace = guarded(bytes);
  memset(workspace + GUARD_BYTES, 0xff, bytes);
  call.workspace = bytes ? workspace + GUARD_BYTES : NULL;
  rf_inner inner[RF_MAX_INNER] = {0};
  if (kernel->inner) kernel->inner(kernel->level, h->graph, op, inner);
  call.inner = inner;
  kernel->run(&call);
  bool ok = guards_stand(h, op, kernel, workspace, bytes, text);
  for (int i = 0; i < op->input_count; i++) {
    if (before[i] && ok && memcmp(before[i], op_data(h, op->input[i]), h->buffer[op->input[i]].bytes) != 0) {
      snprintf(text, 256, "%s changed its input %s", kernel->name, h->graph->tensor[op->input[i]].name);
      ok = false;
    }
    free(before[i]);
  }
  free(workspace);
  return ok;
}

void op_run(op_harness *h, int op, const rf_kernel *kernel, int threads, const rf_inplace *inplace) {
  char text[256];
  if (!op_try(h, op, kernel, threads, inplace, text)) fail_msg("%s", text);
}

void op_run_range(op_harness *h, int from, int to, const rf_backend *backend, rf_isa isa, int threads) {
  for (int i = from; i < to; i++)
    op_run(h, i, rf_kernel_choose(backend, isa, h->graph, &h->graph->op[i]), threads, NULL);
}
