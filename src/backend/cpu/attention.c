/* attention.c - lists the attention kernels of the CPU, computes the size of their workspace, and
 * divides their work among threads. */
#include "backend/cpu/attention.h"
#include "backend/cpu/cpu.h"
#include "graph/kv.h"

#include <assert.h>
#include <math.h>
#include <omp.h>

static_assert((int)RF_KV_PAGE == (int)RF_ATTENTION_BLOCK, "a page of the cache is a softmax block");
static_assert((int)RF_KV_UNIT == (int)RF_ATTENTION_PANEL, "a page holds whole panels of keys");

static bool has_parts(const rf_op *op) {
  return op->def == &RF_OP_ATTENTION_PART || op->def == &RF_OP_ATTENTION_PART_BWD;
}

/* Input 0 of each attention op is qkv. A segment has at most graph->seq rows. A cached context is
 * at most as long as the cache of one slot. */
rf_attention rf_attention_of(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *qkv = &graph->tensor[op->input[0]];
  const rf_attr_attention *attr = &op->attr.attention;
  const bool parts = has_parts(op);
  const int64_t q = (int64_t)attr->heads * attr->head_dim,
                ld = q + 2 * (int64_t)attr->kv_heads * attr->head_dim;
  rf_attention a = {
      .rows = qkv->shape[0],
      .heads = attr->heads,
      .kv_heads = attr->kv_heads,
      .group = attr->heads / attr->kv_heads,
      .dim = attr->head_dim,
      .width = (int)rf_round_up(attr->head_dim, 16),
      .scale = attr->scale,
      .ld = ld,
      .step = parts && op->attr.group > 1 ? op->attr.group : 1,
      .key_input = parts ? 1 : 0,
      .key_ld = parts ? ld - q : ld,
      .key_at = parts ? 0 : q,
      .dq_ld = parts ? q : ld,
      .window = attr->window > 0 ? attr->window : INT64_MAX / 2,
      .dtype = qkv->dtype,
      .softcap = attr->softcap,
      .round = attr->softmax == RF_BF16,
      .scaled = attr->softmax == RF_BF16 || attr->softcap > 0,
  };
  /* the op attention_kv has six inputs: qkv, cache, table, slots, positions, scale */
  bool cached = op->input_count == 6 && !parts;
  a.longest = a.rows * a.step;
  if (cached) a.longest = graph->tensor[op->input[2]].shape[1] * graph->tensor[op->input[1]].shape[2];
  if (cached) a.narrow = graph->tensor[op->input[1]].dtype == RF_I8;
  else if (graph->seq > 0 && graph->seq < a.longest) a.longest = graph->seq;
  return a;
}
rf_attention rf_attention_here(const rf_call *call) {
  rf_attention a = rf_attention_of(call->graph, call->op);
  a.rank = a.step > 1 ? rf_rank_of(call) : 0;
  return a;
}

/* Work of a segment of `length` queries. A query sees at most min(length, window) keys. */
static double unit_work(const rf_attention *a, int64_t length) {
  return (double)length * (double)rf_min64(length, a->window);
}

/* True if all threads share a unit (one KV head of one segment). All threads share a unit if
 * threads would be idle for more than a fifth of the time with one thread per unit. A last round of
 * units with at most 15 % of the threads does not count, because short units fill its gaps. */
static bool is_shared(const rf_attention *a, int64_t length, double total, int threads) {
  if (threads < 2 || length <= RF_ATTENTION_TILE) return false;
  double units = total / unit_work(a, length), rounds = units / threads, whole = ceil(rounds - 0.15);
  return rounds < 0.8 * (whole < 1 ? 1 : whole);
}

static rf_attention_unit unit_at(const rf_attention *a, const int32_t *segment, int64_t i) {
  int64_t s = i / a->kv_heads;
  return (rf_attention_unit){segment[s], segment[s + 1] - segment[s], (int)(i % a->kv_heads)};
}
void rf_attention_units(const rf_attention *a, const int32_t *segment, rf_attention_unit_fn *run, void *job) {
  int64_t segments = 0, rows = a->rows * a->step;
  double total = 0;
  for (; segments < rows && segment[segments] < rows; segments++)
    total += unit_work(a, segment[segments + 1] - segment[segments]) * a->kv_heads;
  for (int64_t i = 0; i < segments * a->kv_heads; i++) {
    rf_attention_unit unit = unit_at(a, segment, i);
    if (is_shared(a, unit.length, total, omp_get_num_threads())) run(job, &unit, true);
  }
#pragma omp for schedule(dynamic) nowait
  for (int64_t i = 0; i < segments * a->kv_heads; i++) {
    rf_attention_unit unit = unit_at(a, segment, i);
    if (unit.length > 0 && !is_shared(a, unit.length, total, omp_get_num_threads())) run(job, &unit, false);
  }
}

static size_t pass_floats(const rf_attention *a, int64_t keys, int64_t lines) {
  size_t query = (size_t)(RF_ATTENTION_STRIP_ROWS * (int64_t)(a->dim + a->width)),
         values = (size_t)rf_round_up(a->dim, RF_ATTENTION_PANEL);
  size_t strips = RF_ATTENTION_STRIPS * sizeof(rf_attention_strip) / sizeof(float),
         scores = (size_t)(lines * (RF_ATTENTION_BLOCK + 16));
  return strips + scores + (size_t)rf_round_up((int64_t)query, 16) + (size_t)keys * ((size_t)a->dim + values);
}
size_t rf_attention_forward_floats(const rf_attention *a) {
  return (size_t)rf_round_up(
      (int64_t)pass_floats(a, rf_round_up(a->longest, RF_ATTENTION_PANEL), RF_ATTENTION_MAX_HEIGHT), 16);
}
size_t rf_attention_cached_floats(const rf_attention *a) {
  /* keys or values of one KV head */
  size_t widened = a->narrow ? (size_t)(RF_ATTENTION_PANEL * a->dim) : 0;
  return (size_t)rf_round_up((int64_t)(pass_floats(a, RF_ATTENTION_BLOCK, RF_ATTENTION_SCORES) + widened),
                             16);
}
static size_t query_floats(const rf_attention *a) {
  return (size_t)(RF_ATTENTION_TILE *
                  (2 * a->dim + 2 * rf_round_up(a->dim, RF_ATTENTION_PANEL) + a->width + 2));
}
size_t rf_attention_backward_floats(const rf_attention *a) {
  int64_t keys = rf_round_up(a->longest, RF_ATTENTION_TILE), wide = rf_round_up(a->dim, RF_ATTENTION_PANEL);
  int64_t tiles = 2 * RF_ATTENTION_TILE * (RF_ATTENTION_TILE + 16);
  return (size_t)rf_round_up(keys * (2 * a->dim + wide + 2 * a->width) + (int64_t)query_floats(a) + tiles,
                             16);
}
static size_t team_floats(const rf_attention *a) {
  /* products of one block of queries with all keys */
  int64_t row = rf_round_up(a->longest, RF_ATTENTION_TILE) * (RF_ATTENTION_TILE + 16);
  return RF_ATTENTION_TEAM * (query_floats(a) + (size_t)row);
}

static bool accepts(const rf_graph *graph, const rf_op *op) {
  const rf_attr_attention *attr = &op->attr.attention;
  rf_dtype dtype = graph->tensor[op->input[0]].dtype;
  /* kernels find the maximum of a row before they multiply the row by the scale */
  bool positive = attr->scale > 0;
  return (dtype == RF_F32 || dtype == RF_BF16) && positive && attr->kv_heads > 0 &&
         attr->heads % attr->kv_heads == 0;
}
static bool accepts_cache(const rf_graph *graph, const rf_op *op) {
  rf_dtype cache = graph->tensor[op->input[1]].dtype;
  int64_t page = graph->tensor[op->input[1]].shape[2];
  return accepts(graph, op) && op->attr.group <= 1 && (op->output_count < 4 || op->output[3] == RF_NONE) &&
         (cache == RF_F32 || cache == RF_BF16 || cache == RF_I8) && page % RF_ATTENTION_PANEL == 0 &&
         (page % RF_ATTENTION_BLOCK == 0 || RF_ATTENTION_BLOCK % page == 0);
}

#if defined(__x86_64__)
static bool accepts_tiles(const rf_graph *graph, const rf_op *op) {
  return accepts(graph, op) && graph->tensor[op->input[0]].dtype == RF_BF16;
}
#endif

static size_t forward_bytes(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  rf_attention a = rf_attention_of(graph, op);
  return sizeof(float) * (size_t)by.threads * rf_attention_forward_floats(&a);
}
static size_t cached_bytes(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  rf_attention a = rf_attention_of(graph, op);
  return sizeof(int32_t) * (size_t)rf_round_up(a.rows + 1, 16) +
         sizeof(float) * (size_t)by.threads * rf_attention_cached_floats(&a);
}
static size_t backward_bytes(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  rf_attention a = rf_attention_of(graph, op);
  return sizeof(float) *
         ((size_t)by.threads * rf_attention_backward_floats(&a) + (by.threads > 1 ? team_floats(&a) : 0));
}
#if defined(__x86_64__)
static size_t tiles_bytes(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  rf_attention a = rf_attention_of(graph, op);
  return sizeof(float) * (size_t)by.threads * rf_attention_tiles_floats(&a);
}

/* Entries of the kernel table for the op `op`: one each for AVX-512, AVX2 and plain C. */
#define RF_ATTENTION_ROWS(op, function, takes, bytes) \
  RF_KERNEL(#op, #op "_avx512_12x32", RF_ISA_AVX512, takes, bytes, function##_avx512), \
      RF_KERNEL(#op, #op "_avx2_6x16", RF_ISA_AVX2, takes, bytes, function##_avx2), \
      RF_KERNEL(#op, #op "_c_4x16", RF_ISA_BASE, takes, bytes, function##_base)
#else
#define RF_ATTENTION_ROWS(op, function, takes, bytes) \
  RF_KERNEL(#op, #op "_c_4x16", RF_ISA_BASE, takes, bytes, function##_base)
#endif
const rf_kernel RF_CPU_ATTENTION[] = {
    RF_ATTENTION_ROWS(attention, rf_attention, accepts, forward_bytes),
#if defined(__x86_64__)
    RF_KERNEL("attention_bwd", "attention_bwd_amx_32x32", RF_ISA_AMX, accepts_tiles, tiles_bytes,
              rf_attention_bwd_amx),
#endif
    RF_ATTENTION_ROWS(attention_bwd, rf_attention_bwd, accepts, backward_bytes),
    RF_ATTENTION_ROWS(attention_part, rf_attention, accepts, forward_bytes),
    RF_ATTENTION_ROWS(attention_part_bwd, rf_attention_bwd, accepts, backward_bytes),
    RF_ATTENTION_ROWS(attention_kv, rf_attention_kv, accepts_cache, cached_bytes),
    {0},
};
