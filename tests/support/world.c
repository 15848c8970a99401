#include "support/world.h"
#include "graph/mesh/place.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t slots_of(const rf_tensor *t) { return t->slots > 1 ? t->slots : 1; }

void *world_data(const world *w, int64_t chip, int tensor) {
  const rf_tensor *t = &w->graph->tensor[tensor];
  char *data = w->data[chip * w->graph->tensor_count + tensor];
  return t->slots > 1 ? data + w->run.micro % t->slots * rf_tensor_bytes(t) : data;
}

world *world_new(const rf_graph *graph, int64_t whole_rows) {
  world *w = calloc(1, sizeof *w);
  w->graph = graph;
  w->chips = rf_mesh_chips(&graph->mesh);
  w->whole_rows = whole_rows;
  w->broken = -1;
  w->data = calloc((size_t)(w->chips * graph->tensor_count), sizeof *w->data);
  w->late = calloc((size_t)graph->tensor_count, sizeof *w->late);
  for (int64_t i = 0; i < w->chips * graph->tensor_count; i++) {
    const rf_tensor *t = &graph->tensor[i % graph->tensor_count];
    size_t bytes = (size_t)(rf_tensor_bytes(t) * slots_of(t));
    w->data[i] = malloc(bytes + 64);
    memset(w->data[i], t->persistent ? 0 : 0xff, bytes + 64);
  }
  return w;
}

void world_free(world *w) {
  for (int64_t i = 0; i < w->chips * w->graph->tensor_count; i++) free(w->data[i]);
  for (int t = 0; t < w->graph->tensor_count; t++) free(w->late[t]);
  free(w->late);
  free(w->data);
  free(w);
}

world *world_copy(const world *from) {
  world *w = world_new(from->graph, from->whole_rows);
  w->run = from->run;
  w->broken = from->broken;
  w->kernel = from->kernel;
  w->transfer = from->transfer;
  w->context = from->context;
  for (int64_t i = 0; i < w->chips * w->graph->tensor_count; i++) {
    const rf_tensor *t = &w->graph->tensor[i % w->graph->tensor_count];
    memcpy(w->data[i], from->data[i], (size_t)(rf_tensor_bytes(t) * slots_of(t)));
  }
  for (int t = 0; t < w->graph->tensor_count; t++) {
    size_t bytes = (size_t)(w->chips * rf_tensor_count(&w->graph->tensor[t])) * sizeof **w->late;
    if (from->late[t]) w->late[t] = memcpy(malloc(bytes), from->late[t], bytes);
  }
  return w;
}

double world_get(const world *w, int64_t chip, int tensor, int64_t i) {
  const void *data = world_data(w, chip, tensor);
  switch (w->graph->tensor[tensor].dtype) {
  case RF_F64: return ((const double *)data)[i];
  case RF_F32: return (double)((const float *)data)[i];
  case RF_BF16: return (double)rf_bf16_to_f32(((const rf_bf16 *)data)[i]);
  case RF_I32: return (double)((const int32_t *)data)[i];
  default: return NAN;
  }
}

void world_put(world *w, int64_t chip, int tensor, int64_t i, double value) {
  void *data = world_data(w, chip, tensor);
  switch (w->graph->tensor[tensor].dtype) {
  case RF_F64: ((double *)data)[i] = value; break;
  case RF_F32: ((float *)data)[i] = (float)value; break;
  case RF_BF16: ((rf_bf16 *)data)[i] = rf_f32_to_bf16((float)value); break;
  case RF_I32: ((int32_t *)data)[i] = (int32_t)value; break;
  default: break;
  }
}

static void shape_of(const rf_tensor *t, int64_t dims[4]) {
  for (int d = 0; d < 4; d++) dims[d] = d < t->rank ? t->shape[d] : 1;
}

int64_t *world_places(const world *w, int tensor, const rf_tensor *whole) {
  int64_t count = rf_tensor_count(&w->graph->tensor[tensor]);
  int64_t *at = malloc((size_t)(w->chips * count) * sizeof *at);
  rf_pool *pool = rf_pool_new();
  for (int64_t chip = 0; chip < w->chips; chip++)
    rf_place_indices(w->graph, chip, tensor, whole, pool, at + chip * count);
  rf_pool_free(pool);
  return at;
}

void world_set(world *w, int tensor, const rf_tensor *whole, const double *values) {
  int64_t count = rf_tensor_count(&w->graph->tensor[tensor]), *at = world_places(w, tensor, whole);
  for (int64_t i = 0; i < w->chips * count; i++)
    world_put(w, i / count, tensor, i % count, at[i] < 0 ? 0 : values[at[i]]);
  free(at);
}

/* ---- collectives ----------------------------------------------------------------------------- */

/* Returns the chip of a group by its rank, as the asking chip sees it. */
static int64_t member(const world *w, int64_t chip, rf_axes axes, int64_t rank) {
  int32_t place[RF_AXES];
  int64_t number = 0;
  rf_place_of(&w->graph->mesh, chip, place);
  for (int a = RF_AXES - 1; a >= 0; a--) {
    int64_t extent = rf_mesh_extent(&w->graph->mesh, (rf_axis)a);
    if (axes & RF_AXIS_BIT(a)) {
      place[a] = (int32_t)(rank % extent);
      rank /= extent;
    }
  }
  for (int a = 0; a < RF_AXES; a++) number = number * rf_mesh_extent(&w->graph->mesh, (rf_axis)a) + place[a];
  return number;
}

static int64_t flat(const int64_t dims[4], const int64_t index[4]) {
  return ((index[0] * dims[1] + index[1]) * dims[2] + index[2]) * dims[3] + index[3];
}

/* Element of the input of chip `rank` in the group. A broken exchange gives the chip's own
 * element. */
static double of_member(const world *w, const rf_op *op, int64_t chip, int64_t rank, const int64_t dims[4],
                        const int64_t index[4]) {
  bool broken = w->broken >= 0 && op == &w->graph->op[w->broken];
  int64_t from = broken ? chip : w->members[chip * w->group + rank];
  return world_get(w, from, op->input[0], flat(dims, index));
}

/* The chips of a group over a part of its axes are neighbours. */
static double sum_of(const world *w, const rf_op *op, int64_t chip, int64_t rank, const int64_t dims[4],
                     const int64_t index[4]) {
  bool broken = w->broken >= 0 && op == &w->graph->op[w->broken];
  int64_t group = op->attr.group < w->group ? op->attr.group : w->group,
          first = group < w->group ? rank / group * group : 0;
  double sum = 0;
  for (int64_t r = first; r < (broken ? first + 1 : first + group); r++) {
    double x = of_member(w, op, chip, r, dims, index);
    sum += op->attr.collective.log_sum ? exp(x) : x;
  }
  return op->attr.collective.log_sum ? log(sum) : sum;
}

static double exchanged(const world *w, const rf_op *op, int64_t chip, int64_t rank, const int64_t in[4],
                        int64_t index[4]) {
  const rf_op_def *def = op->def;
  int dim = op->attr.collective.dim, to = op->attr.collective.to;
  if (def == &RF_OP_ALL_GATHER) {
    bool strided = op->attr.collective.form == RF_FORM_STRIDED;
    int64_t from = strided ? index[dim] % op->attr.group : index[dim] / in[dim];
    index[dim] = strided ? index[dim] / op->attr.group : index[dim] % in[dim];
    return of_member(w, op, chip, from, in, index);
  }
  if (def == &RF_OP_REDUCE_SCATTER) {
    int64_t part = (in[dim] + op->attr.group - 1) / op->attr.group;
    index[dim] = op->attr.collective.form == RF_FORM_STRIDED ? index[dim] * op->attr.group + rank
                                                             : rank * part + index[dim];
    return index[dim] < in[dim] ? sum_of(w, op, chip, rank, in, index) : 0;
  }
  if (def == &RF_OP_ALL_REDUCE) {
    const rf_tensor *x = &w->graph->tensor[op->input[0]];
    bool shared = index[x->rank - 1] >= op->attr.collective.own_columns;
    return shared ? sum_of(w, op, chip, rank, in, index) : of_member(w, op, chip, rank, in, index);
  }
  if (def == &RF_OP_ALL_TO_ALL && op->attr.collective.form == RF_FORM_HEADS) {
    int64_t column = index[1], group = op->attr.group, wide = dim == 1 ? 1 : group, from;
    int64_t head = column / op->attr.collective.head_dim,
            each = op->attr.collective.heads / (dim == 1 ? 1 : group),
            kv = op->attr.collective.kv_heads / (dim == 1 ? 1 : group);
    /* q, k, v */
    int64_t part = head < each ? 0 : 1 + (head - each) / kv, at = part == 0 ? head : (head - each) % kv;
    /* heads of all chips, of this chip's rows */
    if (dim == 1) {
      int64_t of = (part == 0 ? op->attr.collective.heads : op->attr.collective.kv_heads) / group;
      from = at / of;
      at %= of;
      index[0] += rank * (in[0] / group);
      each = op->attr.collective.heads / group;
      kv = op->attr.collective.kv_heads / group;
    } else { /* rows of all chips, of this chip's heads */
      from = index[0] / in[0];
      index[0] %= in[0];
      at += rank * (part == 0 ? each : kv);
      each *= wide;
      kv *= wide;
    }
    index[1] = ((part == 0 ? at : each + (part - 1) * kv + at)) * op->attr.collective.head_dim +
               column % op->attr.collective.head_dim;
    return of_member(w, op, chip, from, in, index);
  }
  if (def == &RF_OP_ALL_TO_ALL && dim == to) {
    int64_t run = in[dim] / op->attr.group, from = index[dim] / run;
    index[dim] = rank * run + index[dim] % run;
    return of_member(w, op, chip, from, in, index);
  }
  if (def == &RF_OP_ALL_TO_ALL) {
    int64_t from = index[dim] / in[dim];
    index[dim] %= in[dim];
    index[to] += rank * (in[to] / op->attr.group);
    return of_member(w, op, chip, from, in, index);
  }
  return of_member(w, op, chip, (rank + (op->attr.collective.back ? 1 : op->attr.group - 1)) % op->attr.group,
                   in, index);
}

static bool adds_up(const world *w, const rf_op *op) {
  rf_accumulate how = op->attr.accumulate[0];
  return how == RF_ACCUMULATE_ADD || (how == RF_ACCUMULATE_MICRO && w->run.micro > 0);
}

static void run_exchange(world *w, const rf_op *op, bool late) {
  const rf_tensor *x = &w->graph->tensor[op->input[0]], *y = &w->graph->tensor[op->output[0]];
  bool left_out = w->broken >= 0 && op == &w->graph->op[w->broken];
  if (!strncmp(op->def->name, "offload_", 8)) { /* Each chip has its own host memory. */
    for (int64_t chip = 0; chip < w->chips && !left_out; chip++)
      memcpy(world_data(w, chip, op->output[0]), world_data(w, chip, op->input[0]),
             (size_t)rf_tensor_bytes(y));
    return;
  }
  int64_t in[4], out[4], count = rf_tensor_count(y), index[4];
  double *results = malloc((size_t)(w->chips * count) * sizeof *results);
  w->group = rf_mesh_size(&w->graph->mesh, op->attr.axes);
  w->members = malloc((size_t)(w->chips * w->group) * sizeof *w->members);
  for (int64_t i = 0; i < w->chips * w->group; i++)
    w->members[i] = member(w, i / w->group, op->attr.axes, i % w->group);
  shape_of(x, in);
  shape_of(y, out);
  for (int64_t chip = 0; chip < w->chips; chip++) {
    int32_t place[RF_AXES];
    rf_place_of(&w->graph->mesh, chip, place);
    int64_t rank = rf_mesh_rank(&w->graph->mesh, op->attr.axes, place);
    for (int64_t i = 0; i < count; i++) {
      int64_t left = i;
      for (int d = 3; d >= 0; d--) {
        index[d] = left % out[d];
        left /= out[d];
      }
      results[chip * count + i] = exchanged(w, op, chip, rank, in, index);
    }
  }
  free(w->members);
  for (int64_t i = 0; i < w->chips * count; i++) {
    double sum = results[i] + (adds_up(w, op) ? world_get(w, i / count, op->output[0], i % count) : 0);
    results[i] = late ? sum : 0;
    world_put(w, i / count, op->output[0], i % count, late ? NAN : sum);
  }
  if (late) free(w->late[op->output[0]]), w->late[op->output[0]] = results;
  else free(results);
}

/* An op that begins an exchange leaves NaN until another one has waited for it. */
static void run_start(world *w, const rf_op *op) {
  rf_op whole = *op;
  char name[40];
  snprintf(name, sizeof name, "%.*s", (int)(strlen(op->def->name) - strlen("_start")), op->def->name);
  whole.def = rf_op_find(name);
  run_exchange(w, &whole, true);
}

static void run_wait(world *w, const rf_op *op) {
  int y = op->output[0];
  int64_t count = rf_tensor_count(&w->graph->tensor[y]);
  bool left_out = w->broken >= 0 && op == &w->graph->op[w->broken];
  for (int64_t i = 0; i < w->chips * count && !left_out; i++)
    world_put(w, i / count, y, i % count, w->late[y][i]);
}

/* ---- ops ------------------------------------------------------------------------------------- */

static void run_op(world *w, const rf_op *op, int64_t chip) {
  const rf_kernel *kernel = rf_kernel_choose(&RF_BACKEND_REFERENCE, RF_ISA_BASE, w->graph, op);
  size_t bytes = rf_kernel_workspace(kernel, w->graph, op, (rf_tiling){.threads = 1});
  rf_run_inputs run = w->run;
  rf_place_of(&w->graph->mesh, chip, run.place);
  run.rows = w->graph->rows;
  run.first_token = run.micro * w->whole_rows;
  rf_call call = {.graph = w->graph, .op = op, .threads = 1, .run = &run, .workspace = malloc(bytes + 64)};
  for (int i = 0; i < op->input_count; i++)
    call.in[i] = op->input[i] < 0 ? NULL : world_data(w, chip, op->input[i]);
  for (int i = op->output_count - 1; i >= 0; i--) {
    call.out[i] = op->output[i] < 0 ? NULL : world_data(w, chip, op->output[i]);
    if (op->output[i] < 0) continue;
    const rf_tensor *t = &w->graph->tensor[op->output[i]];
    if (t->rank == 2)
      run.first_token = run.micro * w->whole_rows +
                        rf_place_first_row(&w->graph->mesh, t->spec.split[0], run.place, t->shape[0]);
  }
  if (w->kernel) w->kernel(kernel, &call, w->context);
  else kernel->run(&call);
  free(call.workspace);
}

void world_run_op(world *w, int o) {
  const rf_op *op = &w->graph->op[o];
  bool transfers = !strcmp(op->def->name, "send") || !strcmp(op->def->name, "recv");
  if (rf_op_is_exchange(op->def) && !transfers) {
    if (op->def->starts) run_start(w, op);
    else if (op->def->exchange == RF_EXCHANGE_WAIT) run_wait(w, op);
    else run_exchange(w, op, false);
    return;
  }
  for (int64_t chip = 0; chip < w->chips; chip++) {
    if (transfers) w->transfer(w, op, chip, w->context);
    else run_op(w, op, chip);
  }
}

void world_run(world *w, rf_section section) {
  for (int o = 0; o < w->graph->op_count; o++) {
    const rf_op *op = &w->graph->op[o];
    if (op->section != section) continue;
    world_run_op(w, o);
  }
}

void world_finish(world *w, const rf_graph *whole, int o) {
  rf_section section = w->graph->op[o].section;
  for (; o < w->graph->op_count; o++)
    if (w->graph->op[o].section == section) world_run_op(w, o);
  if (section == RF_SECTION_BEGIN) world_fill(w, whole, 0, true);
  if (section == RF_SECTION_BEGIN) world_run(w, RF_SECTION_MICRO);
  if (section != RF_SECTION_END) world_run(w, RF_SECTION_END);
}

void world_step(world *w, const rf_graph *whole) {
  world_run(w, RF_SECTION_BEGIN);
  for (int m = 0; m < whole->accumulate; m++) {
    w->run.micro = m;
    world_fill(w, whole, m, true);
    world_run(w, RF_SECTION_MICRO);
  }
  world_run(w, RF_SECTION_END);
}
