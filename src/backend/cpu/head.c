/* head.c - the output head in chunks of rows: logits = x w + bias in f32, cross-entropy, and its
 * gradients. The workspace has the logits of one chunk of rows. Later, the workspace has the
 * gradient of these logits. No (n,V) array exists. The chunk size is a multiple of RF_TILE_DEPTH
 * and depends only on the shape. Every logit and every element of dx and dw is one chain, so
 * results do not depend on the chunk size. */
#include "backend/cpu/head.h"
#include "backend/cpu/product.h"

#include <math.h>
#include <string.h>

enum { CHUNK_BYTES = 128 << 20, CHUNK_MIN_ROWS = 64 };

typedef struct dims {
  int64_t rows, width, vocab, chunk, ld; /* ld: floats of a row of logits, including padding */
  /* this chip's part of the vocabulary: its first token, and its number of tokens without
   * padding */
  int64_t first, words;
} dims;

int64_t rf_head_chunk_rows(int64_t rows, int64_t vocab) {
  int64_t most = CHUNK_BYTES / (4 * vocab);
  if (most < CHUNK_MIN_ROWS) most = CHUNK_MIN_ROWS;
  int64_t chunks = (rows + most - 1) / most, chunk = chunks ? (rows + chunks - 1) / chunks : 0;
  chunk = (chunk + RF_TILE_DEPTH - 1) / RF_TILE_DEPTH * RF_TILE_DEPTH;
  return chunk < rows ? chunk : rows;
}

static dims dims_of(const rf_graph *graph, const rf_op *op) {
  const rf_tensor *x = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  dims d = {.rows = x->shape[0], .width = x->shape[1], .vocab = w->shape[op->attr.head.transpose ? 0 : 1]};
  d.chunk = rf_head_chunk_rows(d.rows, d.vocab);
  d.ld = (d.vocab + 31) / 32 * 32;
  d.words = d.vocab;
  return d;
}
static dims dims_of_chip(const rf_call *call) {
  dims d = dims_of(call->graph, call->op);
  if (!call->op->attr.axes) return d;
  d.first = rf_rank_of(call) * d.vocab;
  int64_t left = call->op->attr.head.vocab - d.first;
  d.words = left < 0 ? 0 : left < d.vocab ? left : d.vocab;
  return d;
}
/* The label as an index of this chip's tokens. */
static int32_t label_here(const dims *d, int32_t label) {
  if (label < 0) return RF_LABEL_NONE;
  return label < d->first || label >= d->first + d->words ? RF_LABEL_ELSEWHERE : label - (int32_t)d->first;
}
static bool accepts_any(const rf_graph *graph, const rf_op *op) { /* f64 runs on the reference */
  int bias = op->input[2];
  rf_dtype w = graph->tensor[op->input[1]].dtype;
  return rf_is_activation(graph->tensor[op->input[0]].dtype) && (rf_is_activation(w) || w == RF_PACKED) &&
         (bias == RF_NONE || rf_is_activation(graph->tensor[bias].dtype));
}

/* ---- the three products of the head, for up to `rows` rows ----------------------------------- */

static rf_gemm logits_product(const rf_graph *graph, const rf_op *op, const dims *d, int64_t rows) {
  const rf_tensor *x = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  rf_gemm g = rf_gemm_of(rows, d->vocab, d->width, rf_row_major(x->dtype, d->width),
                         rf_weight(w, d->width, d->vocab, op->attr.head.transpose), RF_F32, d->ld);
  g.fast = op->attr.head.fast;
  g.bias_dtype = op->input[2] == RF_NONE ? RF_F32 : graph->tensor[op->input[2]].dtype;
  return g;
}
/* The gradient of logits, which takes the place of the logits: rows of f32 or bf16, which begin at
 * the same addresses. */
static rf_operand logits_gradient(const rf_op *op, const dims *d) {
  bool narrow = op->attr.head.gradient == RF_BF16;
  return rf_row_major(op->attr.head.gradient, narrow ? 2 * d->ld : d->ld);
}
static rf_gemm dx_product(const rf_graph *graph, const rf_op *op, const dims *d) {
  const rf_tensor *x = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  return rf_gemm_of(d->chunk, d->width, d->vocab, logits_gradient(op, d),
                    rf_transposed(rf_weight(w, d->width, d->vocab, op->attr.head.transpose)), x->dtype,
                    d->width);
}
static rf_gemm dw_product(const rf_graph *graph, const rf_op *op, const dims *d, int dbias_slot) {
  const rf_operand x = rf_row_major(graph->tensor[op->input[0]].dtype, d->width), z = logits_gradient(op, d);
  rf_gemm g = op->attr.head.transpose
                  ? rf_gemm_of(d->vocab, d->width, d->chunk, rf_transposed(z), x, RF_F32, d->width)
                  : rf_gemm_of(d->width, d->vocab, d->chunk, rf_transposed(x), z, RF_F32, d->vocab);
  g.read_later = true;
  g.sums_columns = !op->attr.head.transpose && op->output[dbias_slot] != RF_NONE;
  return g;
}

static bool accepts(const rf_graph *graph, const rf_op *op) {
  return accepts_any(graph, op) && !op->attr.head.fast;
}
#if defined(__x86_64__)
static bool accepts_fast(const rf_graph *graph, const rf_op *op) {
  return accepts_any(graph, op) && op->attr.head.fast;
}
static bool accepts_tiles(const rf_graph *graph, const rf_op *op) {
  const dims d = dims_of(graph, op);
  const rf_gemm g = logits_product(graph, op, &d, d.rows);
  return accepts(graph, op) && rf_gemm_is_bf16(&g);
}
#endif

/* ---- workspace, and the kernels of the products ---------------------------------------------- */

enum { LOGITS, DX, DW };
/* Sets g[LOGITS], g[DX] and g[DW] to the products that the op computes for one chunk. A product
 * that the op does not compute gets k = 0. `slot` is the index of output dx; negative: the op
 * computes no gradients. */
static void products_of(const rf_graph *graph, const rf_op *op, const dims *d, int slot,
                        rf_gemm g[RF_MAX_INNER]) {
  memset(g, 0, RF_MAX_INNER * sizeof *g);
  g[LOGITS] = logits_product(graph, op, d, d->chunk);
  if (slot >= 0 && op->output[slot] != RF_NONE) g[DX] = dx_product(graph, op, d);
  if (slot >= 0 && op->output[slot + 1] != RF_NONE) g[DW] = dw_product(graph, op, d, slot + 2);
}

/* The workspace has the logits of a chunk, the lse of its rows, and the workspace of the largest
 * product. */
static size_t workspace(const rf_head_isa *isa, const rf_graph *graph, const rf_op *op, int threads,
                        int slot) {
  const dims d = dims_of(graph, op);
  rf_gemm g[RF_MAX_INNER];
  size_t product = 0;
  products_of(graph, op, &d, slot, g);
  for (int i = 0; i < RF_MAX_INNER; i++)
    if (g[i].k) product = rf_larger(product, rf_gemm_workspace(isa->gemm, &g[i], threads));
  return rf_whole_lines(d.chunk * d.ld) + rf_whole_lines(d.chunk) + product;
}

static void choose(int level, const rf_graph *graph, const rf_op *op, rf_inner *inner, int slot) {
  static const char *const names[RF_MAX_INNER] = {"logits", "dx", "dw"};
  const dims d = dims_of(graph, op);
  rf_gemm g[RF_MAX_INNER];
  products_of(graph, op, &d, slot, g);
  for (int i = 0; i < RF_MAX_INNER; i++) /* the product for dw has as many rows as the weight */
    if (g[i].k) inner[i] = rf_product_inner(level, names[i], &g[i], i == DW ? g[i].m : 1);
}

#define SIZES(name, gradient_slot) \
  static size_t name##_workspace(const rf_head_isa *isa, const rf_graph *graph, const rf_op *op, \
                                 int threads) { \
    return workspace(isa, graph, op, threads, gradient_slot); \
  } \
  static void name##_inner(int level, const rf_graph *graph, const rf_op *op, rf_inner *inner) { \
    choose(level, graph, op, inner, gradient_slot); \
  }
SIZES(head_loss, -1)
SIZES(head_loss_bwd, 0)
SIZES(head_loss_grad, 2)
SIZES(head_score, -1)
SIZES(head_part, -1)

/* ---- the loop over chunks -------------------------------------------------------------------- */

/* Applies the softcap and the temperature to a row of products. */
static void finish_row(const rf_head_isa *isa, const rf_op *op, float *row, int64_t vocab) {
  const rf_attr_head *attr = &op->attr.head;
  if (attr->softcap > 0) isa->cap(row, vocab, attr->softcap);
  if (attr->temperature > 0) isa->divide(row, vocab, attr->temperature);
}

/* Writes the products of rows [r0, r0 + count) and the weight to z. Later, finish_row turns these
 * products into logits. `product` is the workspace of the product. */
static void chunk_logits(const rf_call *call, const dims *d, int64_t r0, int64_t count, float *z,
                         void *product) {
  rf_gemm g = logits_product(call->graph, call->op, d, d->chunk);
  g.m = count;
  g.read_later = count > RF_FEW_ROWS;
  g.a = rf_element(call->in[0], rf_in(call, 0)->dtype, r0 * d->width);
  g.b = call->in[1];
  g.bias = call->in[2];
  g.u = z;
  rf_inner_run(call, LOGITS, g, product);
}

/* Runs head_loss if gradient_slot < 0, head_loss_bwd if saved_lse is not NULL, and otherwise
 * head_loss_grad. gradient_slot is the index of output dx. */
static void loss_chunks(const rf_head_isa *isa, const rf_call *call, float *nll, int32_t *argmax, float *lse,
                        const float *saved_lse, int gradient_slot) {
  const rf_graph *graph = call->graph;
  const rf_op *op = call->op;
  dims d = dims_of_chip(call);
  const rf_operand dz = logits_gradient(op, &d);
  const int32_t *labels = call->in[3];
  rf_dtype x_dtype = rf_in(call, 0)->dtype;
  float *z = call->workspace, *chunk_lse = (float *)((char *)z + rf_whole_lines(d.chunk * d.ld));
  void *product = (char *)chunk_lse + rf_whole_lines(d.chunk);
  float *dw = gradient_slot < 0 ? NULL : call->out[gradient_slot + 1],
        *dbias = gradient_slot < 0 ? NULL : call->out[gradient_slot + 2];
  int64_t rows = rf_rows_used(call, 0);
  float temperature = op->attr.head.temperature > 0 ? op->attr.head.temperature : 1,
        cap = op->attr.head.softcap / temperature;
  const float *dnll = gradient_slot < 0 ? NULL : call->in[saved_lse ? 5 : 4];
  for (int64_t r0 = 0; r0 < rows; r0 += d.chunk) {
    int64_t count = rows - r0 < d.chunk ? rows - r0 : d.chunk;
    const void *x = rf_element(call->in[0], x_dtype, r0 * d.width);
    rf_gemm g;
    chunk_logits(call, &d, r0, count, z, product);
#pragma omp parallel num_threads(call->threads)
    {
      RF_STAMP_BUSY;
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t i = 0; i < count; i++) {
        float *row = z + i * d.ld;
        int32_t label = label_here(&d, labels[r0 + i]), best = 0;
        finish_row(isa, op, row, d.vocab);
        if (saved_lse) chunk_lse[i] = saved_lse[r0 + i];
        else chunk_lse[i] = isa->lse(row, d.vocab, &best);
        if (nll) nll[r0 + i] = label < 0 ? 0.0f : chunk_lse[i] - row[label];
        if (argmax) argmax[r0 + i] = best;
        if (lse) lse[r0 + i] = chunk_lse[i];
        float scale = (dnll ? dnll[r0 + i] : call->run->loss_scale) / temperature;
        if (gradient_slot < 0) continue;
        isa->gradient(row, d.words, label, chunk_lse[i], scale, cap);
        memset(row + d.words, 0, (size_t)(d.vocab - d.words) * sizeof *row);
        if (dz.dtype == RF_BF16) isa->narrow(row, d.vocab);
      }
    }
    if (gradient_slot < 0) continue;
    if (call->out[gradient_slot]) {
      g = dx_product(graph, op, &d);
      g.m = count;
      g.a = z;
      g.b = call->in[1];
      g.u = (char *)call->out[gradient_slot] + r0 * d.width * rf_dtype_bytes(x_dtype);
      rf_inner_run(call, DX, g, product);
    }
    bool resume_bias = r0 > 0 || rf_accumulates(call, gradient_slot + 2);
    if (dbias && (op->attr.head.transpose || !dw))
      rf_column_sums(z, dz.dtype, count, d.vocab, dz.row, dbias, resume_bias, call->threads);
    if (!dw) continue;
    g = dw_product(graph, op, &d, gradient_slot + 2);
    g.k = count;
    g.a = op->attr.head.transpose ? z : x;
    g.b = op->attr.head.transpose ? x : z;
    g.u = dw;
    g.accumulate = r0 > 0 || rf_accumulates(call, gradient_slot + 1);
    if (g.sums_columns) {
      g.column_sum = dbias;
      g.column_sum_accumulate = resume_bias;
    }
    rf_inner_run(call, DW, g, product);
  }
}

static void head_loss_run(const rf_head_isa *isa, const rf_call *call) {
  loss_chunks(isa, call, call->out[0], call->out[1], call->out[2], NULL, -1);
}

static void head_loss_bwd_run(const rf_head_isa *isa, const rf_call *call) {
  loss_chunks(isa, call, NULL, NULL, NULL, call->in[4], 0);
}

static void head_loss_grad_run(const rf_head_isa *isa, const rf_call *call) {
  loss_chunks(isa, call, call->out[0], call->out[1], NULL, NULL, 2);
}

/* Writes {m, sum of exp(z - m), z of the label, token of m} of every row. */
static void head_part_run(const rf_head_isa *isa, const rf_call *call) {
  dims d = dims_of_chip(call);
  const int32_t *labels = call->in[3];
  float *z = call->workspace, *part = call->out[0];
  void *product = (char *)z + rf_whole_lines(d.chunk * d.ld) + rf_whole_lines(d.chunk);
  int64_t rows = rf_rows_used(call, 0);
  for (int64_t r0 = 0; r0 < rows; r0 += d.chunk) {
    int64_t count = rows - r0 < d.chunk ? rows - r0 : d.chunk;
    chunk_logits(call, &d, r0, count, z, product);
#pragma omp parallel num_threads(call->threads)
    {
      RF_STAMP_BUSY;
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t i = 0; i < count; i++) {
        float *row = z + i * d.ld, *to = part + (r0 + i) * 4, most = -1e30f, sum = 0;
        int32_t label = label_here(&d, labels[r0 + i]), best = 0;
        finish_row(isa, call->op, row, d.vocab);
        if (d.words) sum = isa->sum(row, d.words, &best, &most);
        to[0] = most;
        to[1] = sum;
        to[2] = label < 0 ? 0 : row[label];
        to[3] = (float)(d.first + best);
      }
    }
  }
}

static void head_score_run(const rf_head_isa *isa, const rf_call *call) {
  dims d = dims_of(call->graph, call->op);
  const int32_t *labels = call->in[3];
  float *z = call->workspace, *logprob = call->out[0], *top = call->out[2];
  void *product = (char *)z + rf_whole_lines(d.chunk * d.ld) + rf_whole_lines(d.chunk);
  int32_t *top_ids = call->out[1];
  int most = call->op->attr.head.top;
  int64_t rows = rf_rows_used(call, 0);
  for (int64_t r0 = 0; r0 < rows; r0 += d.chunk) {
    int64_t count = rows - r0 < d.chunk ? rows - r0 : d.chunk;
    chunk_logits(call, &d, r0, count, z, product);
#pragma omp parallel num_threads(call->threads)
    {
      RF_STAMP_BUSY;
#pragma omp for schedule(dynamic, 1) nowait
      for (int64_t i = 0; i < count; i++) {
        float *row = z + i * d.ld, values[RF_TOP_MAX];
        int32_t label = labels[r0 + i], best, ids[RF_TOP_MAX];
        finish_row(isa, call->op, row, d.vocab);
        float lse = isa->lse(row, d.vocab, &best);
        logprob[r0 + i] = label < 0 ? 0.0f : row[label] - lse;
        if (!top && !top_ids) continue;
        isa->top(row, d.vocab, most, ids, values);
        for (int k = 0; k < most; k++) {
          if (top_ids) top_ids[(r0 + i) * most + k] = ids[k];
          if (top) top[(r0 + i) * most + k] = values[k] - lse;
        }
      }
    }
  }
}

/* head_logits gathers the chosen rows of x, then runs one product. A row with index -1 gets zeros
 * if an index follows that is not -1. Rows after the last index other than -1 are not written. With
 * 64 slots and a vocabulary of 262,144, zeros would cost 66 MB of writes in each step. */
static size_t head_logits_workspace(const rf_head_isa *isa, const rf_graph *graph, const rf_op *op,
                                    int threads) {
  dims d = dims_of(graph, op);
  int64_t picked = graph->tensor[op->input[3]].shape[0];
  rf_gemm g = logits_product(graph, op, &d, picked);
  return rf_whole_lines(picked * d.width) + rf_gemm_workspace(isa->gemm, &g, threads);
}
static void head_logits_inner(int level, const rf_graph *graph, const rf_op *op,
                              rf_inner inner[RF_MAX_INNER]) {
  const dims d = dims_of(graph, op);
  const rf_gemm g = logits_product(graph, op, &d, graph->tensor[op->input[3]].shape[0]);
  inner[LOGITS] = rf_product_inner(level, "logits", &g, 1);
}
static void head_logits_run(const rf_head_isa *isa, const rf_call *call) {
  dims d = dims_of_chip(call);
  int64_t picked = rf_in(call, 3)->shape[0];
  rf_dtype x_dtype = rf_in(call, 0)->dtype;
  const int32_t *rows = call->in[3];
  size_t row_bytes = (size_t)(d.width * rf_dtype_bytes(x_dtype));
  char *x = call->workspace;
  float *lse = call->out[1];
  int64_t used = picked;
  while (used > 0 && rows[used - 1] < 0) used--;
  if (lse) memset(lse + used, 0, (size_t)(picked - used) * sizeof *lse);
  if (!used) return;
  for (int64_t i = 0; i < used; i++) {
    if (rows[i] < 0) memset(x + (size_t)i * row_bytes, 0, row_bytes);
    else memcpy(x + (size_t)i * row_bytes, rf_element(call->in[0], x_dtype, rows[i] * d.width), row_bytes);
  }
  rf_gemm g = logits_product(call->graph, call->op, &d, picked);
  g.m = used;
  g.a = x;
  g.b = call->in[1];
  g.bias = call->in[2];
  g.u = call->out[0];
  g.ld = d.vocab;
  rf_inner_run(call, LOGITS, g, (char *)call->workspace + rf_whole_lines(picked * d.width));
#pragma omp parallel num_threads(call->threads) if (used > 1)
  {
    RF_STAMP_BUSY;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < used; i++) {
      float *row = (float *)call->out[0] + i * d.vocab;
      int32_t best;
      if (rows[i] < 0) memset(row, 0, (size_t)d.vocab * sizeof *row);
      else finish_row(isa, call->op, row, d.vocab);
      if (lse && rows[i] < 0) lse[i] = 0;
      else if (lse) lse[i] = d.words ? isa->lse(row, d.words, &best) : -INFINITY;
    }
  }
}

#define BIND_ALL(isa, head) \
  RF_BIND(head_loss, isa, head) \
  RF_BIND(head_loss_bwd, isa, head) \
  RF_BIND(head_loss_grad, isa, head) \
  RF_BIND(head_logits, isa, head) RF_BIND(head_score, isa, head) RF_BIND(head_part, isa, head)
#define ROWS(isa, level) \
  RF_BOUND_ROW(head_loss, isa, "head_rows_" #isa, level), \
      RF_BOUND_ROW(head_loss_bwd, isa, "head_rows_" #isa, level), \
      RF_BOUND_ROW(head_loss_grad, isa, "head_rows_" #isa, level), \
      RF_BOUND_ROW(head_logits, isa, "head_rows_" #isa, level), \
      RF_BOUND_ROW(head_score, isa, "head_rows_" #isa, level), \
      RF_BOUND_ROW(head_part, isa, "head_rows_" #isa, level)

#define FAST_ROW(op, isa, level) \
  RF_OUTER_KERNEL(#op, "head_fast_" #isa, level, accepts_fast, op##_##isa##_workspace, op##_##isa##_run, \
                  op##_inner)
#define FAST(isa, level) \
  FAST_ROW(head_loss, isa, level), FAST_ROW(head_loss_bwd, isa, level), \
      FAST_ROW(head_loss_grad, isa, level), FAST_ROW(head_logits, isa, level), \
      FAST_ROW(head_score, isa, level), FAST_ROW(head_part, isa, level)
#define TILE_ROW(op) \
  RF_OUTER_KERNEL(#op, "head_rows_amx", RF_ISA_AMX, accepts_tiles, op##_amx_workspace, op##_amx_run, \
                  op##_inner)

#if defined(__x86_64__)
BIND_ALL(amx, RF_HEAD_AMX)
BIND_ALL(avx512bf16, RF_HEAD_AVX512BF16)
BIND_ALL(avxvnni, RF_HEAD_AVXVNNI)
BIND_ALL(avx512, RF_HEAD_AVX512)
BIND_ALL(avx2, RF_HEAD_AVX2)
#endif
BIND_ALL(base, RF_HEAD_BASE)

const rf_kernel RF_CPU_HEAD[] = {
#if defined(__x86_64__)
    FAST(amx, RF_ISA_AMX),       FAST(avx512bf16, RF_ISA_AVX512BF16),
    FAST(avx512, RF_ISA_AVX512), FAST(avxvnni, RF_ISA_AVXVNNI),
    FAST(avx2, RF_ISA_AVX2),     TILE_ROW(head_loss),
    TILE_ROW(head_loss_bwd),     TILE_ROW(head_loss_grad),
    TILE_ROW(head_logits),       TILE_ROW(head_score),
    TILE_ROW(head_part),         ROWS(avx512, RF_ISA_AVX512),
    ROWS(avx2, RF_ISA_AVX2),
#endif
    ROWS(base, RF_ISA_BASE),     {.op = NULL},
};
