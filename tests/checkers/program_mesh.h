/* program_mesh.h - sizes the memory of one device of a JAX program over a mesh. The program is a
 * chain of products and elementwise ops. The caller gives the shardings of arguments and results.
 * Between them XLA's partitioner follows the standard rules. A contraction with the same sharding
 * on both sides leaves a partial sum. An operand that is sharded where the other is not is
 * gathered. */
#ifndef RF_TEST_PROGRAM_MESH_H
#define RF_TEST_PROGRAM_MESH_H

#include "machine/tiles.h"
#include "study/program.h"

#include <string.h>

typedef struct span {
  int64_t bytes;
  int first, last;
  bool brief;
} span;

enum { MAX_OPS = 64, MAX_SPANS = 16 * MAX_OPS };
typedef struct meshing {
  const rf_graph *graph;
  const rf_mesh *mesh;
  const rf_spec *given;
  const rf_machine *machine;
  bool trains;
  rf_spec *at;          /* sharding of each tensor */
  rf_spec use[MAX_OPS]; /* sharding of the second operand of each op, when multiplied */
  int ops, end, gathers, count;
  span span[MAX_SPANS];
} meshing;

static int64_t local_size(const rf_mesh *mesh, rf_axes axes, int64_t extent) {
  int64_t size = rf_mesh_size(mesh, axes);
  return (extent + size - 1) / size;
}

static int64_t local_bytes(const meshing *m, int t, const rf_spec *spec) {
  const rf_tensor *tensor = &m->graph->tensor[t];
  int64_t dims[RF_MAX_RANK];
  for (int d = 0; d < tensor->rank; d++) dims[d] = local_size(m->mesh, spec->split[d], tensor->shape[d]);
  return rf_machine_bytes(m->machine, tensor->dtype, tensor->rank, dims);
}

static void hold(meshing *m, int64_t bytes, int first, int last, bool brief) {
  if (m->count < MAX_SPANS) m->span[m->count++] = (span){bytes, first < 0 ? 0 : first, last, brief};
}

static int backward_of(const meshing *m, int op) { return m->end - 1 - op; }
static bool is_product(const rf_op *op) { return op->def->timing == RF_TIMING_PRODUCT; }

static int reader_of(const meshing *m, int t) {
  int last = RF_NONE;
  for (int i = 0; i < m->ops; i++)
    for (int k = 0; k < m->graph->op[i].input_count; k++)
      if (m->graph->op[i].input[k] == t) last = i;
  return last;
}

static int product_before(const meshing *m, int op) {
  do op--;
  while (op >= 0 && !is_product(&m->graph->op[op]));
  return op;
}

/* One product: the matrices that it gathers and the memory of its result. A gathered matrix arrives
 * one product early, because transfers run ahead. */
static void place_product(meshing *m, int i) {
  const rf_op *op = &m->graph->op[i];
  int before = product_before(m, i);
  int a = op->input[0], b = op->input[1], c = op->output[0];
  rf_spec left = m->at[a], right = m->at[b], out = {0};
  right.split[0] &= left.split[1];
  right.split[1] &= (rf_axes)~left.split[0];
  bool gathered = right.split[0] != m->at[b].split[0] || right.split[1] != m->at[b].split[1];
  if (gathered) {
    m->gathers++;
    hold(m, local_bytes(m, b, &right), before < 0 ? i : before, i, true);
    if (m->trains && before >= 0)
      hold(m, local_bytes(m, b, &right), backward_of(m, i) - 1, backward_of(m, i), true);
  }
  left.split[1] &= right.split[0];
  if (left.split[1] != m->at[a].split[1])
    hold(m, local_bytes(m, a, &left), i, m->trains ? backward_of(m, i) : i, true);
  m->use[i] = right;
  out.split[0] = left.split[0];
  out.split[1] = right.split[1];
  out.partial = left.split[1];
  m->at[c] = out;
}

/* The result of an op is kept until its last reader, or in training until that reader's backward
 * pass. A result that is sent or summed over devices is in device memory. */
static void place_result(meshing *m, int i) {
  const rf_tensor *tensor = &m->graph->tensor[m->graph->op[i].output[0]];
  int c = m->graph->op[i].output[0], reader = reader_of(m, c), first = reader == RF_NONE ? i : reader,
      last = first;
  rf_spec lies = m->at[c], wanted = m->given[c];
  bool sums = lies.partial, fused = !is_product(&m->graph->op[i]);
  int64_t bytes = local_bytes(m, c, &lies);
  m->at[c].partial = 0;
  if (fused) return; /* An elementwise op is computed by the product before it. */
  /* Follow the chain of elementwise readers, which continue to use this result. */
  while (reader != RF_NONE && !is_product(&m->graph->op[reader])) {
    int next = reader_of(m, m->graph->op[reader].output[0]);
    last = next == RF_NONE ? reader : next;
    reader = next;
  }
  bool final = tensor->output && !m->trains;
  if (!final)
    hold(m, tensor->output ? local_bytes(m, c, &wanted) : bytes, i, m->trains ? backward_of(m, first) : last,
         !sums);
  if (sums) hold(m, bytes, i, i, false); /* one device's part of the sum */
  if (!final) return;
  bool moved = false;
  for (int d = 0; d < tensor->rank; d++) moved |= (lies.split[d] & (rf_axes)~wanted.split[d]) != 0;
  if (!moved) return;
  /* A gathered result is sent from device memory, arrives there, and is copied to the place of the
   * program's result. */
  if (!sums) hold(m, bytes, i, i, false);
  hold(m, local_bytes(m, c, &wanted), i, i, false);
}

/* The vjp of a product: gradients of its operands. The matrix's gradient is summed over the devices
 * that share rows. It is complete before it is scattered. Without a sum, each device updates its
 * part at once. The gradient of the other operand follows. */
static void place_backward(meshing *m, int i) {
  const rf_op *op = &m->graph->op[i];
  int now = backward_of(m, i), before = product_before(m, i);
  rf_spec matrix = m->use[i];
  bool sent = (m->at[op->input[0]].split[0] & (rf_axes) ~(matrix.split[0] | matrix.split[1])) != 0;
  if (sent) hold(m, local_bytes(m, op->input[1], &matrix), now, now, false);
  if (before >= 0)
    hold(m, local_bytes(m, op->input[0], &m->at[op->input[0]]), now + 1, backward_of(m, before), true);
}

static int larger(const span *a, const span *b) { return a->bytes > b->bytes; }

static int64_t peak(meshing *m) {
  int64_t most = 0;
  /* Products that hide the transfers of several matrices keep the pieces in transit on the chip, so
   * no other tensor fits there. */
  int64_t room = m->gathers > 1 ? 0 : rf_program_chip_bytes(m->machine);
  for (int i = 1; i < m->count; i++)
    for (int k = i; k > 0 && larger(&m->span[k], &m->span[k - 1]); k--) {
      span other = m->span[k];
      m->span[k] = m->span[k - 1];
      m->span[k - 1] = other;
    }
  for (int now = 0; now < m->end; now++) {
    int64_t sum = 0, left = room;
    for (int i = 0; i < m->count; i++) {
      const span *s = &m->span[i];
      if (s->first > now || s->last < now) continue;
      if (s->brief && s->bytes <= left) left -= s->bytes;
      else sum += s->bytes;
    }
    if (sum > most) most = sum;
  }
  return most;
}

/* Memory of one device for a chain of products and elementwise ops, built with the graph's own
 * functions. Matrices are persistent, arguments are inputs, and the result is an output. `given`
 * has the shardings of these tensors. With `trains`, the gradient of a loss of the result updates
 * the matrices; nothing returns the loss. */
static rf_status size_on_mesh(const rf_graph *graph, const rf_mesh *mesh, const rf_spec *given, bool trains,
                              const rf_machine *machine, rf_program_memory *memory, rf_error *error) {
  rf_pool *pool = rf_pool_new();
  meshing *m = rf_pool_alloc(pool, sizeof *m);
  *m = (meshing){.graph = graph,
                 .mesh = mesh,
                 .given = given,
                 .machine = machine,
                 .trains = trains,
                 .ops = graph->op_count};
  m->at = rf_pool_alloc(pool, ((size_t)graph->tensor_count + 1) * sizeof *m->at);
  memset(memory, 0, sizeof *memory);
  m->end = trains ? 2 * m->ops : m->ops;
  rf_status status = RAFTER_OK;
  int results = 0;
  if (m->ops > MAX_OPS) {
    status = RF_FAIL(error, RAFTER_INVALID, NULL,
                     "too many ops for a program over a mesh (expected at most %d, got %d)", MAX_OPS, m->ops);
    goto done;
  }
  for (int t = 0; t < graph->tensor_count; t++) {
    const rf_tensor *tensor = &graph->tensor[t];
    bool argument = tensor->persistent || tensor->input;
    int64_t bytes = local_bytes(m, t, &given[t]);
    if (argument) {
      m->at[t] = given[t];
      memory->argument += bytes;
    }
    if (trains && tensor->persistent) {
      memory->alias += bytes;
      results++;
    }
    if (!trains && tensor->output) {
      memory->output += bytes;
      results++;
    }
  }
  memory->output += memory->alias;
  if (results > 1) memory->output += (4 * results + 511) / 512 * 512;
  for (int i = 0; i < m->ops; i++) {
    if (is_product(&graph->op[i])) place_product(m, i);
    else m->at[graph->op[i].output[0]] = m->at[graph->op[i].input[0]];
    place_result(m, i);
    if (trains && is_product(&graph->op[i])) place_backward(m, i);
  }
  memory->working = memory->temp = peak(m);
  memory->total = memory->argument + memory->output - memory->alias + memory->temp;
done:
  rf_pool_free(pool);
  return status;
}

#endif
