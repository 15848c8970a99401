#include "plan/roofline.h"

#include <math.h>

static rf_status against(const rf_machine *machine, rf_work work, rf_dtype dtype, rf_roofline *out, rf_error *error) {
  double peak = machine->flops[dtype], bandwidth = machine->read_bps;
  if (peak <= 0 || bandwidth <= 0)
    return RF_FAIL(error, RAFTER_INVALID, "choose another --dtype, or run `rafter calibrate`", "%s has no %s peak or no bandwidth figure",
                   machine->name, rf_dtype_name(dtype));
  *out = (rf_roofline){
      .flops = work.flops, .flops_full = work.flops_full, .bytes = work.bytes_read + work.bytes_written, .critical_intensity = peak / bandwidth};
  out->intensity = out->flops / out->bytes;
  out->compute_seconds = out->flops / peak, out->memory_seconds = out->bytes / bandwidth;
  out->bound = out->compute_seconds >= out->memory_seconds ? RF_BOUND_COMPUTE : RF_BOUND_MEMORY;
  out->seconds = fmax(out->compute_seconds, out->memory_seconds);
  return RAFTER_OK;
}

/* The work of one op standing alone in a graph. */
static rf_status lone_op(const char *def, const int64_t (*shape)[2], const rf_dtype *dtype, int inputs, const rf_attr *attr, int64_t seq,
                         rf_work *work, rf_error *error) {
  rf_model model = {.layers = 1, .width = 1, .heads = 1, .kv_heads = 1, .head_dim = 1, .ff = 1, .vocab = 1, .max_seq = 1, .init = "gpt2"};
  rf_graph *graph = rf_graph_new(&model);
  rf_status status = RAFTER_OK;
  int id[RF_MAX_INPUTS];
  graph->seq = seq, graph->rows = shape[0][0], graph->accumulate = 1;
  for (int i = 0; i < inputs; i++) id[i] = rf_graph_tensor(graph, "operand", RF_CLASS_ACTIVATION, dtype[i], shape[i][1] ? 2 : 1, shape[i]);
  int op = rf_graph_op(graph, def, def, RF_SECTION_MICRO, id, inputs, def[0] == 'a' ? 3u : 1u, attr, error);
  if (op < 0) status = RAFTER_INVALID;
  else *work = graph->op[op].def->work(graph, &graph->op[op]);
  rf_graph_free(graph);
  return status;
}

rf_status rf_roofline_matmul(const rf_machine *machine, int64_t m, int64_t k, int64_t n, rf_dtype dtype, rf_dtype weight_dtype, rf_roofline *out,
                             rf_error *error) {
  if (m < 1 || k < 1 || n < 1)
    return RF_FAIL(error, RAFTER_INVALID, "give --m, --k and --n", "a matmul needs three dimensions (expected >= 1, got %lld x %lld x %lld)",
                   (long long)m, (long long)k, (long long)n);
  rf_work work;
  double a = (double)rf_dtype_bytes(dtype), w = (double)rf_dtype_bytes(weight_dtype), dm = (double)m, dk = (double)k, dn = (double)n;
  /* The op table knows the floats that graphs are made of; narrower operands do the same work on fewer bytes. */
  RF_TRY(lone_op("matmul", (const int64_t[][2]){{m, k}, {k, n}}, (const rf_dtype[]){RF_F32, RF_F32}, 2, &(rf_attr){0}, m, &work, error));
  work.bytes_read += dm * dk * (a - 4) + dk * dn * (w - 4), work.bytes_written += dm * dn * (a - 4);
  RF_TRY(against(machine, work, dtype, out, error));
  double spare = 2 * dk * dn / machine->flops[dtype] - a * (dk + dn) / machine->read_bps;
  out->critical_m = spare > 0 ? dk * dn * w / machine->read_bps / spare : INFINITY;
  return RAFTER_OK;
}

rf_status rf_roofline_attention(const rf_machine *machine, int64_t batch, int64_t seq, int heads, int kv_heads, int head_dim, int window,
                                rf_dtype dtype, rf_roofline *out, rf_error *error) {
  if (batch < 1 || seq < 1 || heads < 1 || kv_heads < 1 || head_dim < 1 || heads % kv_heads)
    return RF_FAIL(error, RAFTER_INVALID, "give --batch, --seq, --heads, --kv-heads (a divisor of heads) and --head-dim",
                   "attention needs whole groups of heads (expected heads a multiple of kv heads, got %d and %d)", heads, kv_heads);
  rf_work work;
  int64_t n = batch * seq, columns = (int64_t)(heads + 2 * kv_heads) * head_dim;
  rf_attr attr = {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .window = window, .scale = 1, .softmax = RF_F32};
  RF_TRY(lone_op("attention", (const int64_t[][2]){{n, columns}, {n + 1, 0}}, (const rf_dtype[]){dtype, RF_I32}, 2, &attr, seq, &work, error));
  RF_TRY(against(machine, work, dtype, out, error));
  out->critical_m = INFINITY;
  return RAFTER_OK;
}
