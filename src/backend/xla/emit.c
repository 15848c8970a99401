/* emit.c - see emit.h: writes the sections of a graph as one module. The section begin comes first,
 * then the microbatches, as a loop if there are several, then the section end. */
#include "backend/xla/emit.h"
#include "graph/probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct writer {
  rf_emit e;
  rf_emitted *out;
  const rf_emit_options *options;
  int32_t *argument_of; /* index of each tensor's argument, or -1 */
  rf_val *probe;        /* values of probes so far, f32 scalars */
  bool *changed;        /* for each tensor: true if an op has written the tensor */
  rf_val newest;        /* newest result that is not a gathered weight */
  rf_val tie;           /* newest result of a backward op; recomputation starts after this result */
  rf_val late;          /* true if a gradient for which the next backward op waits has a NaN */
  struct {
    int32_t layer;
    bool backward;
    /* start: value of `newest` when the gathers of this layer began. wait_for: the same for the
     * previous layer */
    rf_val start, wait_for;
  } gathers;
} writer;

static const rf_tensor *tensor_of(const writer *w, int t) { return &w->e.graph->tensor[t]; }

/* Shape of a tensor in the module, with only the rows in use. `batches` > 0 adds a first
 * dimension. */
static int shape_of(const writer *w, int t, int64_t batches, int64_t dim[RF_HLO_RANK]) {
  const rf_tensor *tensor = tensor_of(w, t);
  int rank = 0;
  if (batches > 0) dim[rank++] = batches;
  for (int i = 0; i < tensor->rank; i++) dim[rank++] = tensor->shape[i];
  if (!tensor->persistent && tensor->rank > 0) {
    int64_t *rows = &dim[batches > 0];
    *rows = rf_emit_rows(&w->e, *rows);
  }
  return rank;
}

static bool fill_port(rf_emit_port **list, int *count, rf_emit_port port) {
  if ((*count & (*count - 1)) == 0) {
    rf_emit_port *more = realloc(*list, (size_t)(*count ? 2 * *count : 1) * sizeof *more);
    if (!more) return false;
    *list = more;
  }
  (*list)[(*count)++] = port;
  return true;
}

static void lack_memory(writer *w) {
  if (w->e.status == RAFTER_OK)
    w->e.status = RF_FAIL(w->e.error, RAFTER_FAILED, NULL, "out of memory while writing the program");
}

static rf_val add_argument(writer *w, int t, rf_hlo_type type, int rank, const int64_t *dim) {
  if (type == RF_HLO_TYPES) {
    if (w->e.status == RAFTER_OK)
      w->e.status = RF_FAIL(w->e.error, RAFTER_INVALID, "use --weights f32 or bf16",
                            "XLA programs have no arrays of this type (%s, %s)", tensor_of(w, t)->name,
                            rf_tensor_type(tensor_of(w, t), (char[64]){0}));
    type = RF_HLO_F32;
  }
  rf_val v = rf_hlo_argument(w->e.h, type, rank, dim);
  if (t >= 0) w->argument_of[t] = w->out->arguments;
  if (!fill_port(&w->out->argument, &w->out->arguments, (rf_emit_port){t, -1, v})) lack_memory(w);
  return v;
}

static void add_result(writer *w, int t, rf_val v, int alias) {
  int argument = w->options->no_donation ? -1 : alias;
  if (argument >= 0) w->out->argument[argument].alias = w->out->results;
  rf_hlo_result(w->e.h, v, argument);
  if (!fill_port(&w->out->result, &w->out->results, (rf_emit_port){t, argument, v})) lack_memory(w);
}

/* ---- inputs of a run ------------------------------------------------------------------------- */

static rf_val word(writer *w, rf_val words, int i) {
  return rf_hlo_reshape(w->e.h, rf_hlo_slice(w->e.h, words, 0, i, i + 1), 0, NULL);
}

static void add_run(writer *w) {
  rf_hlo *h = w->e.h;
  rf_val words = add_argument(w, RF_NONE, RF_HLO_U32, RF_DIMS(RF_RUN_WORDS));
  rf_val low = rf_hlo_convert(h, word(w, words, RF_RUN_SEED), RF_HLO_U64),
         high = rf_hlo_convert(h, word(w, words, RF_RUN_SEED_HIGH), RF_HLO_U64);
  w->e.run.seed = rf_hlo_or(h, low, rf_hlo_shift_left(h, high, rf_hlo_scalar_u64(h, RF_HLO_U64, 32)));
  w->e.run.step = rf_hlo_bitcast(h, word(w, words, RF_RUN_STEP), RF_HLO_I32);
  w->e.run.loss_scale = rf_hlo_bitcast(h, word(w, words, RF_RUN_LOSS_SCALE), RF_HLO_F32);
  w->e.run.lr = rf_hlo_bitcast(h, word(w, words, RF_RUN_LR), RF_HLO_F32);
  w->e.run.micro = rf_hlo_bitcast(h, word(w, words, RF_RUN_MICRO), RF_HLO_I32);
  rf_val first = rf_hlo_bitcast(h, word(w, words, RF_RUN_FIRST_TOKEN), RF_HLO_I32);
  w->e.run.first_token = rf_hlo_convert(h, first, RF_HLO_I64);
}

static void set_microbatch(writer *w, rf_val micro) {
  rf_hlo *h = w->e.h;
  w->e.run.micro = micro;
  w->e.run.first_token = rf_hlo_multiply(h, rf_hlo_convert(h, micro, RF_HLO_I64),
                                         rf_hlo_scalar(h, RF_HLO_I64, (double)w->e.graph->rows));
}

/* ---- ops ------------------------------------------------------------------------------------- */

static bool reads(const rf_op *op, int slot) { return op->input[slot] >= 0; }

/* The element that the probe of an op checks, as an f32 scalar. */
static void add_probe(writer *w, const rf_op *op) {
  rf_hlo *h = w->e.h;
  bool update = op->def->probe == RF_PROBE_UPDATE;
  int64_t at;
  int slot = rf_probed_output(op, &at);
  if (slot < 0) return;
  rf_val v = w->e.probed;
  if (!rf_has(v)) {
    rf_val all = w->e.value[op->output[slot]];
    int64_t count = rf_val_count(all);
    v = rf_hlo_slice(h, rf_hlo_reshape(h, all, 1, &count), 0, at, at + 1);
    v = rf_hlo_reshape(h, rf_hlo_convert(h, v, RF_HLO_F32), 0, NULL);
  }
  int i = w->out->probes++;
  w->out->probe[i] = (int)(op - w->e.graph->op);
  w->probe[i] = v;
  if (update) return; /* the op itself skips elements that are not finite */
  rf_val fine = rf_hlo_is_finite(h, v);
  w->e.ok = rf_has(w->e.ok) ? rf_hlo_and(h, w->e.ok, fine) : fine;
  w->e.ok_everywhere = false;
}

/* Without a barrier, the compiler would find that recomputed values equal values of the forward
 * pass, and would store these values. The barrier also waits for the newest gradient, so that
 * recomputation does not start early. */
static void fence(writer *w, const rf_op *op, rf_val saved[RF_MAX_INPUTS]) {
  rf_val v[RF_MAX_INPUTS + 1];
  int slot[RF_MAX_INPUTS], count = 0;
  for (int i = 0; i < op->input_count; i++) {
    if (!reads(op, i) || !rf_has(w->e.value[op->input[i]])) continue;
    saved[i] = v[count] = w->e.value[op->input[i]];
    slot[count++] = i;
  }
  int all = count;
  if (rf_has(w->tie)) v[all++] = w->tie;
  rf_hlo_barrier(w->e.h, v, all);
  for (int k = 0; k < count; k++) w->e.value[op->input[slot[k]]] = v[k];
}

/* True if the op gathers the parts of a weight from all chips. */
static bool gathers_weight(const writer *w, const rf_op *op) {
  return op->def == &RF_OP_ALL_GATHER && op->input[0] >= 0 && tensor_of(w, op->input[0])->persistent;
}

/* Gathers run one layer ahead. The gathers of a layer depend on one value: the newest value at the
 * time when the gathers of the previous layer were written. Without this dependence, the compiler
 * gathers all layers at once, or copies all parts at the start. If this value is NaN, the gathered
 * weights are NaN too. */
static rf_val after_earlier_layers(writer *w, const rf_op *op, rf_val x) {
  rf_hlo *h = w->e.h;
  if (op->at.layer != w->gathers.layer || op->backward != w->gathers.backward) {
    w->gathers.wait_for = w->gathers.start;
    w->gathers.start = w->newest;
    w->gathers.layer = op->at.layer;
    w->gathers.backward = op->backward;
  }
  if (!rf_has(w->gathers.wait_for)) return x;
  return rf_hlo_select(h, rf_emit_is_nan(h, w->gathers.wait_for), rf_hlo_scalar(h, x.type, (double)NAN), x);
}

/* On a mesh, the TPU compiler may delay the gradients of adapters to the end of the step. Until
 * then, the compiler keeps all rows that these gradients need. To prevent this, the next result of
 * the backward pass depends on the exchanged gradients. If an exchanged gradient is NaN, that
 * result is NaN too. A dependence on the gradient before the exchange is not enough, because the
 * compiler then computes only one element of a product early. */
static void wait_for_adapters(writer *w, const rf_op *op) {
  rf_hlo *h = w->e.h;
  if (!w->e.target.tiles || w->e.graph->model.lora.rank == 0 || !op->backward || !rf_emit_wants(op, 0))
    return;
  rf_val *v = &w->e.value[op->output[0]];
  rf_class class = tensor_of(w, op->output[0])->class;
  if (class == RF_CLASS_GRADIENT && rf_op_is_exchange(op->def)) {
    rf_val nan = rf_emit_is_nan(h, *v);
    w->late = rf_has(w->late) ? rf_hlo_or(h, w->late, nan) : nan;
  } else if (class == RF_CLASS_ACTIVATION && rf_has(w->late)) {
    *v = rf_hlo_select(h, w->late, rf_hlo_scalar(h, v->type, (double)NAN), *v);
    w->late = RF_NO_VAL;
  }
}

/* Called at both ends of a loop. Code outside the loop cannot read values from inside, and code
 * inside cannot read values from outside. */
static void forget(writer *w) {
  w->e.kept_count = 0;
  w->late = w->tie = w->newest = w->gathers.wait_for = w->gathers.start = RF_NO_VAL;
}

static void write_op(writer *w, const rf_op *op) {
  const rf_emitter *row = rf_emitter_of(op->def);
  rf_val saved[RF_MAX_INPUTS];
  bool again = op->recompute_of != RF_NONE;
  if (w->e.status != RAFTER_OK) return;
  w->e.op = op;
  w->e.probed = RF_NO_VAL;
  rf_hlo_name(w->e.h, op->name);
  if (!row || !row->emit) {
    rf_emit_refuse(&w->e, row ? row->why : "no emitter");
    return;
  }
  for (int i = 0; i < op->input_count; i++)
    if (reads(op, i) && !rf_has(w->e.value[op->input[i]])) {
      rf_emit_refuse(&w->e, rf_pool_format(w->e.pool, "%s is read before it is written",
                                           tensor_of(w, op->input[i])->name));
      return;
    }
  for (int i = 0; i < RF_MAX_INPUTS; i++) saved[i] = RF_NO_VAL;
  bool gathers = gathers_weight(w, op);
  if (gathers) {
    saved[0] = w->e.value[op->input[0]];
    w->e.value[op->input[0]] = after_earlier_layers(w, op, saved[0]);
  } else if (again) fence(w, op, saved);
  row->emit(&w->e, op);
  wait_for_adapters(w, op);
  for (int i = 0; i < op->input_count; i++)
    if (rf_has(saved[i])) w->e.value[op->input[i]] = saved[i];
  for (int i = 0; i < op->output_count; i++)
    if (rf_emit_wants(op, i)) w->changed[op->output[i]] = true;
  if (!gathers && rf_emit_wants(op, 0)) w->newest = w->e.value[op->output[0]];
  if (op->backward && rf_emit_wants(op, 0)) w->tie = w->e.value[op->output[0]];
  add_probe(w, op);
}

static void write_section(writer *w, rf_section section) {
  for (int i = 0; i < w->e.graph->op_count; i++)
    if (w->e.graph->op[i].section == section) write_op(w, &w->e.graph->op[i]);
}

/* ---- the loop over microbatches -------------------------------------------------------------- */

/* Lists the tensors that pass from one microbatch to the next, or to the section end. Ops of a
 * microbatch write such a tensor, and an earlier op, another section or the host reads it. */
static int carried_of(const writer *w, int *list) {
  const rf_graph *g = w->e.graph;
  bool *written = rf_pool_alloc(w->e.pool, (size_t)g->tensor_count + 1),
       *kept = rf_pool_alloc(w->e.pool, (size_t)g->tensor_count + 1);
  for (int i = 0; i < g->op_count; i++) {
    const rf_op *op = &g->op[i];
    bool micro = op->section == RF_SECTION_MICRO;
    for (int k = 0; k < op->input_count; k++)
      if (op->input[k] >= 0 && (!micro || !written[op->input[k]])) kept[op->input[k]] = true;
    for (int k = 0; k < op->output_count; k++) {
      int t = op->output[k];
      if (t < 0) continue;
      if (op->attr.accumulate[k] != RF_WRITE || g->tensor[t].persistent || g->tensor[t].output || !micro)
        kept[t] = true;
      written[t] |= micro;
    }
  }
  int count = 0;
  for (int t = 0; t < g->tensor_count; t++)
    if (written[t] && kept[t]) list[count++] = t;
  return count;
}

bool rf_emit_of_each(const rf_graph *g, int tensor) {
  bool written = false;
  if (g->accumulate <= 1 || !g->tensor[tensor].output || g->tensor[tensor].persistent) return false;
  for (int i = 0; i < g->op_count; i++) {
    const rf_op *op = &g->op[i];
    bool micro = op->section == RF_SECTION_MICRO;
    for (int k = 0; k < op->input_count; k++)
      if (op->input[k] == tensor && !micro) return false;
    for (int k = 0; k < op->output_count; k++) {
      if (op->output[k] != tensor) continue;
      if (!micro || op->attr.accumulate[k] != RF_WRITE) return false;
      written = true;
    }
  }
  return written;
}

/* Writes the value of an output in this microbatch to the array with the values of all
 * microbatches. */
static rf_val put_of_each(writer *w, rf_val all, rf_val micro, rf_val value) {
  rf_val start[RF_HLO_RANK], zero = rf_hlo_scalar(w->e.h, RF_HLO_I32, 0);
  int64_t dim[RF_HLO_RANK] = {1};
  for (int i = 0; i < all.rank; i++) {
    start[i] = i ? zero : micro;
    if (i) dim[i] = all.dim[i];
  }
  return rf_hlo_dynamic_update(w->e.h, all, rf_hlo_reshape(w->e.h, value, all.rank, dim), start);
}

/* The argument for an input of the graph has one part for each microbatch. In the loop, the value
 * of the input is one part. */
static void take_inputs(writer *w, rf_val micro) {
  for (int t = 0; t < w->e.graph->tensor_count; t++) {
    if (!tensor_of(w, t)->input || w->argument_of[t] < 0) continue;
    rf_val all = w->out->argument[w->argument_of[t]].of, start[RF_HLO_RANK];
    int64_t size[RF_HLO_RANK];
    for (int i = 0; i < all.rank; i++) {
      start[i] = i ? rf_hlo_scalar(w->e.h, RF_HLO_I32, 0) : micro;
      size[i] = i ? all.dim[i] : 1;
    }
    rf_val part = rf_hlo_dynamic_slice(w->e.h, all, start, size);
    w->e.value[t] = rf_hlo_reshape(w->e.h, part, all.rank - 1, all.dim + 1);
  }
}

static void write_loop(writer *w, int64_t times) {
  const rf_graph *g = w->e.graph;
  rf_hlo *h = w->e.h;
  int *list = rf_pool_alloc(w->e.pool, ((size_t)g->tensor_count + 1) * sizeof *list);
  rf_val *value = rf_pool_alloc(w->e.pool, ((size_t)g->tensor_count + 2) * sizeof *value), ok = w->e.ok;
  int count = carried_of(w, list), probed = w->out->probes;
  rf_hlo_loop loop;
  for (int i = 0; i < count; i++) {
    int64_t dim[RF_HLO_RANK];
    int t = list[i], rank = shape_of(w, t, rf_emit_of_each(g, t) ? times : 0, dim);
    value[i] = rf_has(w->e.value[t]) ? w->e.value[t] : rf_hlo_full(h, rf_emit_type(&w->e, t), 0, rank, dim);
  }
  /* The number of probes in the loop is known only after the ops of the loop are written. So one
   * value represents all probes of the loop: the sum of (probe * 0), which is 0 or NaN. */
  value[count] = rf_hlo_scalar(h, RF_HLO_F32, 0);
  if (count + 1 > RF_HLO_CARRIED) {
    if (w->e.status == RAFTER_OK)
      w->e.status = RF_FAIL(w->e.error, RAFTER_INVALID, "use --accumulate 1",
                            "too many arrays pass between microbatches (%d, expected at most %d)", count,
                            RF_HLO_CARRIED - 1);
    return;
  }
  rf_hlo_loop_begin(h, &loop, times, value, count + 1);
  forget(w);
  for (int i = 0; i < count; i++)
    if (!rf_emit_of_each(g, list[i])) w->e.value[list[i]] = value[i];
  w->e.ok = RF_NO_VAL;
  set_microbatch(w, loop.i);
  take_inputs(w, loop.i);
  write_section(w, RF_SECTION_MICRO);
  for (int i = probed; i < w->out->probes; i++)
    value[count] = rf_hlo_add(h, value[count], rf_hlo_multiply_c(h, w->probe[i], 0));
  for (int i = 0; i < count; i++) {
    rf_val now = w->e.value[list[i]];
    value[i] = rf_emit_of_each(g, list[i]) && rf_has(now) ? put_of_each(w, value[i], loop.i, now) : now;
  }
  rf_hlo_loop_end(h, &loop, value);
  forget(w);
  for (int t = 0; t < g->tensor_count; t++)
    if (w->changed[t] && !g->tensor[t].persistent) w->e.value[t] = RF_NO_VAL;
  for (int i = 0; i < count; i++) w->e.value[list[i]] = value[i];
  if (w->out->probes > probed) {
    w->out->probes = probed + 1;
    w->probe[probed] = value[count];
    rf_val fine = rf_hlo_is_finite(h, value[count]);
    w->e.ok = rf_has(ok) ? rf_hlo_and(h, ok, fine) : fine;
    w->e.ok_everywhere = false;
  }
}

/* ---- modules --------------------------------------------------------------------------------- */

static bool start(writer *w, const rf_graph *graph, const rf_emit_options *options, rf_emitted *out,
                  rf_error *error) {
  size_t tensors = (size_t)graph->tensor_count + 1, ops = (size_t)graph->op_count + 1;
  *out = (rf_emitted){.replicas = (int)rf_mesh_chips(&graph->mesh)};
  *w = (writer){.e = {.h = rf_hlo_new(),
                      .graph = graph,
                      .pool = rf_pool_new(),
                      .error = error,
                      .ok = RF_NO_VAL,
                      .target = options->target,
                      .head_bytes = options->head_bytes,
                      .attention_block = options->attention_block,
                      .left_out = options->left_out,
                      .codes = options->codes,
                      .known = options->known,
                      .rows = options->rows > 0 ? options->rows : graph->rows},
                .out = out,
                .options = options,
                .newest = RF_NO_VAL,
                .tie = RF_NO_VAL,
                .late = RF_NO_VAL,
                .gathers = {RF_NONE, false, RF_NO_VAL, RF_NO_VAL}};
  out->probe = calloc(ops, sizeof *out->probe);
  if (!w->e.h || !w->e.pool || !out->probe) return false;
  w->e.value = rf_pool_alloc(w->e.pool, tensors * sizeof *w->e.value);
  w->argument_of = rf_pool_alloc(w->e.pool, tensors * sizeof *w->argument_of);
  w->probe = rf_pool_alloc(w->e.pool, ops * sizeof *w->probe);
  w->changed = rf_pool_alloc(w->e.pool, tensors);
  for (int t = 0; t < graph->tensor_count; t++) {
    w->e.value[t] = RF_NO_VAL;
    w->argument_of[t] = -1;
  }
  return true;
}

static rf_status finish(writer *w, const char *name, rf_error *error) {
  rf_status status = w->e.status;
  const char *at = NULL, *fault = w->e.h ? rf_hlo_fault(w->e.h, &at) : NULL;
  if (status == RAFTER_OK && fault)
    status = RF_FAIL(error, RAFTER_FAILED, "this is a bug of the emitter; please report it",
                     "an operation of %s has a wrong operand (expected %s)", at, fault);
  if (status == RAFTER_OK) w->out->text = rf_hlo_finish(w->e.h, name, w->out->replicas, &w->out->bytes);
  rf_hlo_free(w->e.h);
  rf_pool_free(w->e.pool);
  if (status == RAFTER_OK && !w->out->text)
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while writing the program");
  if (status != RAFTER_OK) rf_emitted_free(w->out);
  return status;
}

void rf_emitted_free(rf_emitted *of) {
  free(of->text);
  free(of->argument);
  free(of->result);
  free(of->probe);
  *of = (rf_emitted){0};
}

/* Adds an argument for each tensor that has a value before the step. These are the inputs that an op
 * reads, and the persistent tensors that an op reads or writes. If ops only write the tensor, the
 * result reuses the memory of the argument. */
static void add_tensor_arguments(writer *w) {
  const rf_graph *g = w->e.graph;
  bool *used = rf_pool_alloc(w->e.pool, (size_t)g->tensor_count + 1);
  for (int i = 0; i < g->op_count; i++) {
    for (int k = 0; k < g->op[i].input_count; k++)
      if (g->op[i].input[k] >= 0) used[g->op[i].input[k]] = true;
    for (int k = 0; k < g->op[i].output_count; k++)
      if (g->op[i].output[k] >= 0) used[g->op[i].output[k]] = true;
  }
  for (int t = 0; t < g->tensor_count; t++) {
    const rf_tensor *tensor = &g->tensor[t];
    int64_t dim[RF_HLO_RANK];
    if (!used[t] || (!tensor->persistent && !tensor->input)) continue;
    bool looped = tensor->input && g->accumulate > 1;
    int rank = shape_of(w, t, looped ? g->accumulate : 0, dim);
    rf_val v = add_argument(w, t, rf_emit_type(&w->e, t), rank, dim);
    if (!looped) w->e.value[t] = v;
  }
}

static void add_results(writer *w) {
  const rf_graph *g = w->e.graph;
  rf_hlo *h = w->e.h;
  rf_hlo_name(h, "results");
  for (int t = 0; t < g->tensor_count; t++)
    if (g->tensor[t].persistent && w->changed[t]) add_result(w, t, w->e.value[t], w->argument_of[t]);
  for (int t = 0; t < g->tensor_count; t++)
    if (!g->tensor[t].persistent && g->tensor[t].output && w->changed[t]) add_result(w, t, w->e.value[t], -1);
  if (w->out->probes == 0) return;
  rf_val *probe = rf_pool_alloc(w->e.pool, (size_t)w->out->probes * sizeof *probe);
  for (int i = 0; i < w->out->probes; i++) probe[i] = rf_hlo_reshape(h, w->probe[i], RF_DIMS(1));
  add_result(w, RF_NONE, rf_hlo_concatenate(h, 0, w->out->probes, probe), -1);
}

rf_status rf_emit_graph(const rf_graph *graph, const rf_emit_options *options, rf_emitted *out,
                        rf_error *error) {
  writer w;
  if (!start(&w, graph, options, out, error)) {
    lack_memory(&w);
    return finish(&w, "", error);
  }
  rf_hlo_name(w.e.h, "inputs");
  add_tensor_arguments(&w);
  add_run(&w);
  set_microbatch(&w, rf_hlo_scalar(w.e.h, RF_HLO_I32, 0));
  write_section(&w, RF_SECTION_BEGIN);
  if (graph->accumulate > 1) write_loop(&w, graph->accumulate);
  else write_section(&w, RF_SECTION_MICRO);
  write_section(&w, RF_SECTION_END);
  if (w.e.status == RAFTER_OK) add_results(&w);
  return finish(&w, "step", error);
}

/* True if an op reads the previous value of output `slot`. */
static bool reads_output(const writer *w, const rf_op *op, int slot, int micro) {
  rf_accumulate how = op->attr.accumulate[slot];
  return how == RF_ACCUMULATE_ADD || (how == RF_ACCUMULATE_MICRO && micro > 0) ||
         tensor_of(w, op->output[slot])->persistent || op->def->probe == RF_PROBE_INDEX ||
         op->def->probe == RF_PROBE_UPDATE;
}

rf_status rf_emit_ops(const rf_graph *graph, const rf_emit_options *given, int first, int count, int micro,
                      rf_emitted *out, rf_error *error) {
  rf_emit_options options = given ? *given : (rf_emit_options){0};
  options.no_donation = true;
  writer w;
  if (!start(&w, graph, &options, out, error)) {
    lack_memory(&w);
    return finish(&w, "", error);
  }
  for (int i = first; i < first + count; i++) {
    const rf_op *op = &graph->op[i];
    for (int k = 0; k < op->input_count + op->output_count; k++) {
      bool in = k < op->input_count;
      int t = in ? op->input[k] : op->output[k - op->input_count];
      bool needed = t >= 0 && !rf_has(w.e.value[t]) && !w.changed[t] &&
                    (in || reads_output(&w, op, k - op->input_count, micro));
      int64_t dim[RF_HLO_RANK];
      if (needed) w.e.value[t] = add_argument(&w, t, rf_emit_type(&w.e, t), shape_of(&w, t, 0, dim), dim);
    }
    for (int k = 0; k < op->output_count; k++)
      if (op->output[k] >= 0) w.changed[op->output[k]] = true;
  }
  add_run(&w);
  for (int i = first; i < first + count; i++) write_op(&w, &graph->op[i]);
  w.out->probes = 0;
  for (int t = 0; t < graph->tensor_count && w.e.status == RAFTER_OK; t++)
    if (w.changed[t]) add_result(&w, t, w.e.value[t], -1);
  return finish(&w, "ops", error);
}
