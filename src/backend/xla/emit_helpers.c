/* emit_helpers.c - see emit.h: functions that the emitters of several ops share. */
#include "backend/xla/emit.h"

#include "graph/mesh/place.h"

#include <math.h>
#include <string.h>

rf_val rf_emit_in(const rf_emit *e, const rf_op *op, int slot) {
  return slot < op->input_count && op->input[slot] >= 0 ? e->value[op->input[slot]] : RF_NO_VAL;
}

static bool is_float(rf_hlo_type type) { return type <= RF_HLO_F64; }

rf_val rf_emit_wide(const rf_emit *e, const rf_op *op, int slot) {
  rf_val v = rf_emit_in(e, op, slot);
  return rf_has(v) && is_float(v.type) ? rf_hlo_convert(e->h, v, RF_HLO_F32) : v;
}

bool rf_emit_wants(const rf_op *op, int slot) { return slot < op->output_count && op->output[slot] >= 0; }

/* True if all parts of a quantised matrix are int8. */
static bool is_int8(const rf_tensor *t) {
  bool all = t->dtype == RF_PACKED;
  for (int i = 0; all && i < t->panels.parts; i++) all = t->panels.part[i].type->number == RF_Q_INT8;
  return all;
}

rf_hlo_type rf_emit_type(const rf_emit *e, int tensor) {
  static const rf_hlo_type TYPES[RF_DTYPES] = {
      [RF_F32] = RF_HLO_F32, [RF_BF16] = RF_HLO_BF16,     [RF_F16] = RF_HLO_F16,
      [RF_F64] = RF_HLO_F32, [RF_I32] = RF_HLO_I32,       [RF_I8] = RF_HLO_I8,
      [RF_U8] = RF_HLO_U8,   [RF_F8_E4M3] = RF_HLO_TYPES, [RF_F8_E5M2] = RF_HLO_TYPES,
      [RF_I64] = RF_HLO_I64, [RF_I4] = RF_HLO_TYPES,      [RF_PACKED] = RF_HLO_TYPES};
  rf_hlo_type type = TYPES[e->graph->tensor[tensor].dtype];
  if (e->codes && is_int8(&e->graph->tensor[tensor])) return RF_HLO_I8;
  bool cache = e->graph->tensor[tensor].class == RF_CLASS_KV;
  return cache && (type == RF_HLO_BF16 || type == RF_HLO_F16) ? RF_HLO_U16 : type;
}
rf_hlo_type rf_emit_out_type(const rf_emit *e, const rf_op *op, int slot) {
  return rf_emit_type(e, op->output[slot]);
}

rf_val *rf_emit_keep(rf_emit *e, int what, int tensor, int64_t of) {
  for (int i = 0; i < e->kept_count; i++)
    if (e->kept[i].what == what && e->kept[i].tensor == tensor && e->kept[i].of == of)
      return e->kept[i].value;
  int i = e->kept_count < RF_EMIT_KEPT ? e->kept_count++ : 0;
  e->kept[i].what = what;
  e->kept[i].tensor = tensor;
  e->kept[i].of = of;
  for (int k = 0; k < RF_EMIT_KEPT_VALUES; k++) e->kept[i].value[k] = RF_NO_VAL;
  return e->kept[i].value;
}

int64_t rf_emit_rows(const rf_emit *e, int64_t bound) {
  if (bound == e->graph->rows + 1) return e->rows + 1; /* starts of segments */
  return rf_rows_of_pass(e->graph, bound, e->rows);
}

void rf_emit_refuse(rf_emit *e, const char *why) {
  if (e->status != RAFTER_OK) return;
  e->status = RF_FAIL(e->error, RAFTER_INVALID, "use --backend cpu for this model",
                      "%s (%s) cannot be compiled with XLA: %s", e->op->name, e->op->def->name, why);
}

rf_val rf_emit_start(const rf_emit *e, const rf_op *op, int slot) {
  return op->attr.accumulate[slot] != RF_WRITE ? e->value[op->output[slot]] : RF_NO_VAL;
}

void rf_emit_out(rf_emit *e, const rf_op *op, int slot, rf_val v) {
  if (!rf_emit_wants(op, slot)) return;
  rf_val start = rf_emit_start(e, op, slot);
  rf_emit_set(e, op, slot, rf_has(start) ? rf_hlo_add(e->h, rf_hlo_convert(e->h, start, v.type), v) : v);
}

/* Bool scalar: true if the probes are finite on all chips. */
static rf_val fine_everywhere(rf_emit *e) {
  int chips = (int)rf_mesh_chips(&e->graph->mesh);
  if (chips == 1 || e->ok_everywhere) return e->ok;
  rf_val one = rf_hlo_scalar(e->h, RF_HLO_F32, 1), zero = rf_hlo_scalar(e->h, RF_HLO_F32, 0);
  rf_val faults = rf_hlo_all_reduce(e->h, RF_HLO_SUM, rf_hlo_select(e->h, e->ok, zero, one),
                                    rf_emit_groups(e, (rf_axes)((1u << RF_AXES) - 1)));
  e->ok = rf_hlo_compare_c(e->h, RF_HLO_LT, faults, 0.5);
  e->ok_everywhere = true;
  return e->ok;
}

void rf_emit_set(rf_emit *e, const rf_op *op, int slot, rf_val v) {
  int id = op->output[slot];
  const rf_tensor *t = &e->graph->tensor[id];
  rf_val old = e->value[id];
  v = rf_hlo_convert(e->h, v, rf_emit_type(e, id));
  /* A step whose loss or gradient is not finite changes no weight. */
  if (t->persistent && t->class != RF_CLASS_KV && rf_has(e->ok) && rf_has(old))
    v = rf_hlo_select(e->h, fine_everywhere(e), v, old);
  e->value[id] = v;
}

rf_val rf_emit_rounded(rf_emit *e, const rf_op *op, int slot, rf_val v) {
  if (!rf_emit_wants(op, slot)) return v;
  return rf_hlo_convert(e->h, rf_hlo_convert(e->h, v, rf_emit_out_type(e, op, slot)), RF_HLO_F32);
}

rf_val rf_emit_across_rows(rf_emit *e, rf_val vector, int64_t rows) {
  return rf_hlo_broadcast(e->h, vector, (const int[]){1}, RF_DIMS(rows, vector.dim[0]));
}
rf_val rf_emit_across_columns(rf_emit *e, rf_val vector, int64_t columns) {
  return rf_hlo_broadcast(e->h, vector, (const int[]){0}, RF_DIMS(vector.dim[0], columns));
}

rf_val rf_emit_product(rf_hlo *h, rf_val a, bool a_transposed, rf_val b, bool b_transposed,
                       rf_hlo_type type) {
  if (b.type == RF_HLO_I8) b = rf_hlo_convert(h, b, a.type);
  if (a.type != b.type) {
    a = rf_hlo_convert(h, a, RF_HLO_F32);
    b = rf_hlo_convert(h, b, RF_HLO_F32);
  }
  rf_val product = rf_hlo_matmul(h, a, a_transposed, b, b_transposed, a.type == RF_HLO_F32 ? a.type : type);
  return rf_hlo_convert(h, product, type);
}

rf_val rf_emit_of_segments(rf_hlo *h, rf_val segments, rf_val values, int64_t rows) {
  rf_val zero = rf_hlo_full(h, RF_HLO_I32, 0, RF_DIMS(rows));
  rf_val index = rf_hlo_reshape(h, segments, RF_DIMS(rows + 1, 1));
  rf_val of = rf_hlo_scatter(h, zero, index, values, 1, (const int[]){0}, false, false);
  for (int64_t step = 1; step < rows; step *= 2)
    of = rf_hlo_maximum(h, of, rf_hlo_pad(h, rf_hlo_slice(h, of, 0, 0, rows - step), 0, step, 0, 0));
  return of;
}

/* ---- functions of numbers -------------------------------------------------------------------- */

static const double GELU_C = 0.79788456080286535588, GELU_CUBE = 0.044715;

/* Computes 0.5 (1 + tanh z) as sigmoid(2 z), because sigmoid is also precise for small results. */
static rf_val gelu_sigmoid(rf_hlo *h, rf_val u, rf_val *square) {
  *square = rf_hlo_multiply(h, u, u);
  rf_val inner = rf_hlo_multiply(h, u, rf_hlo_add_c(h, rf_hlo_multiply_c(h, *square, GELU_CUBE), 1));
  return rf_hlo_logistic(h, rf_hlo_multiply_c(h, inner, 2 * GELU_C));
}

rf_val rf_emit_gelu(rf_hlo *h, rf_val u) {
  rf_val square, s = gelu_sigmoid(h, u, &square);
  return rf_hlo_multiply(h, u, s);
}

/* The derivative of GELU: s + u s (1 - s) 2 c (1 + 3 * 0.044715 u^2), with s = sigmoid(2 z). */
rf_val rf_emit_gelu_slope(rf_hlo *h, rf_val u) {
  rf_val square, s = gelu_sigmoid(h, u, &square), one = rf_hlo_scalar(h, u.type, 1);
  rf_val inner = rf_hlo_add_c(h, rf_hlo_multiply_c(h, square, 6 * GELU_C * GELU_CUBE), 2 * GELU_C);
  rf_val bend = rf_hlo_multiply(h, rf_hlo_multiply(h, u, rf_hlo_subtract(h, one, s)), inner);
  return rf_hlo_multiply(h, s, rf_hlo_add_c(h, bend, 1));
}

rf_val rf_emit_softcap(rf_hlo *h, rf_val x, float cap) {
  if (!(cap > 0)) return x;
  return rf_hlo_multiply_c(h, rf_hlo_tanh(h, rf_hlo_divide(h, x, rf_hlo_scalar(h, x.type, (double)cap))),
                           (double)cap);
}
rf_val rf_emit_softcap_slope(rf_hlo *h, rf_val capped, float cap) {
  if (!(cap > 0)) return RF_NO_VAL;
  rf_val part = rf_hlo_divide(h, capped, rf_hlo_scalar(h, capped.type, (double)cap));
  return rf_hlo_subtract(h, rf_hlo_scalar(h, capped.type, 1), rf_hlo_multiply(h, part, part));
}

/* ---- mesh ------------------------------------------------------------------------------------ */

/* Chips with the same coordinates on all other axes form a group. */
rf_hlo_groups rf_emit_groups(rf_emit *e, rf_axes axes) {
  const rf_mesh *mesh = &e->graph->mesh;
  int size = (int)rf_mesh_size(mesh, axes), chips = (int)rf_mesh_chips(mesh);
  int32_t *id = rf_pool_alloc(e->pool, (size_t)chips * sizeof *id), place[RF_AXES];
  rf_axes others = (rf_axes)(((1u << RF_AXES) - 1) & (unsigned)~axes);
  for (int chip = 0; chip < chips; chip++) {
    rf_place_of(mesh, chip, place);
    id[rf_mesh_rank(mesh, others, place) * size + rf_mesh_rank(mesh, axes, place)] = chip;
  }
  return (rf_hlo_groups){chips / size, size, id};
}

rf_val rf_emit_rank(rf_emit *e, rf_axes axes) {
  const rf_mesh *mesh = &e->graph->mesh;
  int64_t chips = rf_mesh_chips(mesh);
  if (rf_mesh_size(mesh, axes) == 1) return rf_hlo_scalar(e->h, RF_HLO_I32, 0);
  double *rank = rf_pool_alloc(e->pool, (size_t)chips * sizeof *rank);
  int32_t place[RF_AXES];
  for (int64_t chip = 0; chip < chips; chip++) {
    rf_place_of(mesh, chip, place);
    rank[chip] = (double)rf_mesh_rank(mesh, axes, place);
  }
  rf_val table = rf_hlo_list(e->h, RF_HLO_I32, chips, rank),
         self = rf_hlo_convert(e->h, rf_hlo_replica_id(e->h), RF_HLO_I32);
  return rf_hlo_reshape(e->h, rf_hlo_dynamic_slice(e->h, table, &self, (const int64_t[]){1}), 0, NULL);
}

rf_val rf_emit_is_nan(rf_hlo *h, rf_val x) {
  int64_t count = rf_val_count(x);
  rf_val first = rf_hlo_slice(h, rf_hlo_reshape(h, x, 1, &count), 0, 0, 1);
  first = rf_hlo_convert(h, rf_hlo_reshape(h, first, 0, NULL), RF_HLO_F32);
  return rf_hlo_compare(h, RF_HLO_NE, first, first);
}

/* ---- inputs of a run ------------------------------------------------------------------------- */

void rf_emit_run_words(const rf_run_inputs *run, uint32_t word[RF_RUN_WORDS]) {
  word[RF_RUN_SEED] = (uint32_t)run->seed;
  word[RF_RUN_SEED_HIGH] = (uint32_t)(run->seed >> 32);
  word[RF_RUN_STEP] = (uint32_t)run->step;
  memcpy(&word[RF_RUN_LOSS_SCALE], &run->loss_scale, sizeof *word);
  memcpy(&word[RF_RUN_LR], &run->lr, sizeof *word);
  word[RF_RUN_MICRO] = (uint32_t)run->micro;
  word[RF_RUN_FIRST_TOKEN] = (uint32_t)run->first_token;
}

/* ---- dropout --------------------------------------------------------------------------------- */

static rf_val u64(rf_hlo *h, uint64_t value) { return rf_hlo_scalar_u64(h, RF_HLO_U64, value); }
static rf_val u32(rf_hlo *h, uint32_t value) { return rf_hlo_scalar_u64(h, RF_HLO_U32, value); }

/* The functions `mix` and rf_key of base/random.c, on u64 scalars. */
static rf_val mix(rf_hlo *h, rf_val x) {
  x = rf_hlo_xor(h, x, rf_hlo_shift_right_logical(h, x, u64(h, 30)));
  x = rf_hlo_multiply(h, x, u64(h, 0xBF58476D1CE4E5B9u));
  x = rf_hlo_xor(h, x, rf_hlo_shift_right_logical(h, x, u64(h, 27)));
  x = rf_hlo_multiply(h, x, u64(h, 0x94D049BB133111EBu));
  return rf_hlo_xor(h, x, rf_hlo_shift_right_logical(h, x, u64(h, 31)));
}
static rf_val key_of(rf_hlo *h, rf_val seed, rf_val a, uint64_t b) {
  rf_val key = mix(h, rf_hlo_xor(h, seed, u64(h, 0x9E3779B97F4A7C15u)));
  rf_val first = mix(h, rf_hlo_xor(h, a, u64(h, 0x3C6EF372FE94F82Au)));
  key = rf_hlo_multiply(h, mix(h, rf_hlo_xor(h, key, first)), u64(h, 5));
  key = rf_hlo_add(h, key, u64(h, 1));
  rf_val second = mix(h, rf_hlo_xor(h, u64(h, b), u64(h, 0xDAA66D2C7DDF743Fu)));
  return mix(h, rf_hlo_xor(h, key, second));
}

static rf_val low_word(rf_hlo *h, rf_val x) { return rf_hlo_convert(h, x, RF_HLO_U32); }
static rf_val high_word(rf_hlo *h, rf_val x) {
  return rf_hlo_convert(h, rf_hlo_shift_right_logical(h, x, u64(h, 32)), RF_HLO_U32);
}
static rf_val wide_product(rf_hlo *h, rf_val word, uint32_t factor) {
  return rf_hlo_multiply(h, rf_hlo_convert(h, word, RF_HLO_U64), u64(h, factor));
}

/* rf_philox of base/random.c for arrays of counters. All arrays are u32 and have the same shape.
 * Each counter gives four words. */
static void philox(rf_hlo *h, rf_val key, rf_val c0, rf_val c1, rf_val c2, rf_val out[4]) {
  rf_val k0 = low_word(h, key), k1 = high_word(h, key), c3 = rf_hlo_full_like(h, c0, 0);
  for (int round = 0; round < 10; round++) {
    rf_val p = wide_product(h, c0, 0xD2511F53u), q = wide_product(h, c2, 0xCD9E8D57u);
    c0 = rf_hlo_xor(h, rf_hlo_xor(h, high_word(h, q), c1), k0);
    c2 = rf_hlo_xor(h, rf_hlo_xor(h, high_word(h, p), c3), k1);
    c1 = low_word(h, q);
    c3 = low_word(h, p);
    k0 = rf_hlo_add(h, k0, u32(h, 0x9E3779B9u));
    k1 = rf_hlo_add(h, k1, u32(h, 0xBB67AE85u));
  }
  const rf_val words[4] = {c0, c1, c2, c3};
  for (int i = 0; i < 4; i++) out[i] = words[i];
}

/* The number of this chip's first row in the whole batch (i64 scalar). All axes except `context`
 * split the rows into runs. Along `context`, the n chips take every n-th row of a run. */
static rf_val first_row(rf_emit *e, const rf_tensor *t, int64_t rows) {
  const rf_mesh *mesh = &e->graph->mesh;
  rf_axes axes = t->spec.split[0], strided = axes & RF_AXIS_BIT(RF_AXIS_CONTEXT),
          outer = axes & (RF_AXIS_BIT(RF_AXIS_CONTEXT) - 1), inner = axes & (rf_axes) ~(outer | strided);
  rf_hlo *h = e->h;
  rf_val run = rf_hlo_multiply_c(h, rf_emit_rank(e, outer), (double)rf_mesh_size(mesh, inner));
  run = rf_hlo_multiply_c(h, rf_hlo_add(h, run, rf_emit_rank(e, inner)),
                          (double)(rf_mesh_size(mesh, strided) * rows));
  return rf_hlo_convert(h, rf_hlo_add(h, run, rf_emit_rank(e, strided)), RF_HLO_I64);
}

/* Global token numbers of the rows, as u64 (n). */
static rf_val tokens_of(rf_emit *e, const rf_op *op, int64_t rows) {
  rf_hlo *h = e->h;
  const rf_tensor *t = &e->graph->tensor[op->output[rf_emit_wants(op, 0) ? 0 : 1]];
  int64_t step = op->attr.dropout.token_step > 0 ? op->attr.dropout.token_step : 1;
  /* The axes of this list do not shard the rows of a microbatch. */
  const rf_axes others = RF_AXIS_BIT(RF_AXIS_TENSOR) | RF_AXIS_BIT(RF_AXIS_PIPELINE);
  int64_t chips = rf_mesh_size(&e->graph->mesh, (rf_axes)~others);
  rf_val first = e->run.first_token;
  if (chips > 1) first = rf_hlo_multiply(h, first, rf_hlo_scalar(h, RF_HLO_I64, (double)chips));
  if (rf_mesh_size(&e->graph->mesh, t->spec.split[0]) > 1)
    first = rf_hlo_add(h, first, first_row(e, t, rows));
  rf_val row = rf_hlo_iota(h, RF_HLO_I64, 0, RF_DIMS(rows));
  row = rf_hlo_multiply(h, row, rf_hlo_scalar(h, RF_HLO_I64, (double)step));
  return rf_hlo_convert(h, rf_hlo_add(h, row, first), RF_HLO_U64);
}

/* Numbers of the blocks of four channels, as u32 (blocks). Only the ops of the family dropout count
 * channels over all chips. */
static rf_val blocks_of(rf_emit *e, const rf_op *op, int64_t columns) {
  rf_hlo *h = e->h;
  rf_val block = rf_hlo_iota(h, RF_HLO_U32, 0, RF_DIMS((columns + 3) / 4));
  if (op->def->fields != RF_FIELDS_DROPOUT || rf_mesh_size(&e->graph->mesh, op->attr.axes) == 1) return block;
  rf_val rank = rf_hlo_convert(h, rf_emit_rank(e, op->attr.axes), RF_HLO_U32);
  return rf_hlo_add(h, block, rf_hlo_multiply(h, rank, u32(h, (uint32_t)(columns / 4))));
}

rf_val rf_emit_drop(rf_emit *e, const rf_op *op, rf_val v) {
  const rf_attr_dropout *attr = &op->attr.dropout;
  if (!(attr->rate > 0)) return v;
  rf_hlo *h = e->h;
  int64_t rows = v.dim[0], columns = v.dim[1], blocks = (columns + 3) / 4;
  rf_val step = rf_hlo_convert(h, e->run.step, RF_HLO_U64), word[4];
  rf_val token = tokens_of(e, op, rows), block = blocks_of(e, op, columns);
  rf_val low = rf_hlo_broadcast(h, low_word(h, token), (const int[]){0}, RF_DIMS(rows, blocks)),
         high = rf_hlo_broadcast(h, high_word(h, token), (const int[]){0}, RF_DIMS(rows, blocks)),
         channel = rf_hlo_broadcast(h, block, (const int[]){1}, RF_DIMS(rows, blocks));
  rf_val key = key_of(h, e->run.seed, step, attr->site);
  /* Without this dependence, the compiler computes the random numbers of all layers at the start of
   * a step, or keeps those of the forward pass for the backward pass. In either case, the masks
   * take memory. */
  key = rf_hlo_xor(h, key, rf_hlo_convert(h, rf_emit_is_nan(h, rf_emit_in(e, op, 0)), RF_HLO_U64));
  philox(h, key, low, high, channel, word);
  for (int i = 0; i < 4; i++) word[i] = rf_hlo_reshape(h, word[i], RF_DIMS(rows, blocks, 1));
  rf_val all = rf_hlo_reshape(h, rf_hlo_concatenate(h, 2, 4, word), RF_DIMS(rows, 4 * blocks));
  all = rf_hlo_slice(h, all, 1, 0, columns);
  rf_val bits = rf_hlo_convert(h, rf_hlo_shift_right_logical(h, all, u32(h, 8)), RF_HLO_I32);
  rf_val uniform = rf_hlo_multiply_c(h, rf_hlo_convert(h, bits, RF_HLO_F32), 0x1p-24);
  rf_val keep = rf_hlo_compare_c(h, RF_HLO_GE, uniform, (double)attr->rate);
  rf_val kept = rf_hlo_multiply_c(h, v, (double)(1.0f / (1.0f - attr->rate)));
  return rf_hlo_select(h, keep, kept, rf_hlo_scalar(h, v.type, 0));
}
