/* sheet.c - kernels of accelerators that are known only by their data sheet. A plan gets kernel
 * names and workspace sizes. Names and sizes depend only on shapes. */
#include "backend/kernel.h"
#include "backend/xla/emit_attention.h"
#include "backend/xla/emit_head.h"
#include "machine/isa.h"
#include "machine/tiles.h"

/* As on the CPU, a training step computes the logits of one block of rows (a panel), then those of
 * the next block. With 256 rows, the product has about 250 FLOPs per byte of the table, so reading
 * the table does not limit the speed of the product. */
enum { PANEL_BYTES = 64 << 20, PANEL_MIN_ROWS = 256 };

static size_t head_panel(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  const rf_tensor *x = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  int64_t rows = x->shape[0], vocab = w->shape[op->attr.head.transpose ? 0 : 1],
          most = PANEL_BYTES / (4 * vocab);
  if (most < PANEL_MIN_ROWS) most = PANEL_MIN_ROWS;
  int64_t panels = rf_ceil_div(rows, most), panel = panels ? rf_ceil_div(rows, panels) : 0;
  return (size_t)panel * (size_t)(vocab + 1) * sizeof(float); /* logits and lse of the rows */
}

/* Bytes of the f32 sums of the backward pass (FlashAttention-2, algorithm 2). These are the sums of
 * dQ over blocks of keys, and the number delta = dctx . ctx for each row and head. */
static size_t attention_sums(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  const rf_tensor *qkv = &graph->tensor[op->input[0]];
  /* if dQ is f32, the output itself is the array of sums */
  int64_t sums = qkv->dtype == RF_BF16 ? op->attr.attention.head_dim + 1 : 1;
  return (size_t)(qkv->shape[0] * op->attr.attention.heads * sums) * sizeof(float);
}

/* Bytes of an f32 gradient with the shape of input 1. The first of two matmuls computes the
 * gradient, and the second matmul reads it. */
static size_t lora_between(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  return (size_t)rf_tensor_count(&graph->tensor[op->input[1]]) * sizeof(float);
}

/* ---- programs of the TPU compiler ------------------------------------------------------------ */

/* Bytes of a copy of an array (n, columns) in the order (sequences, heads, T, D). The compiler
 * makes such copies of queries, keys and values for its products. */
static size_t by_head(const rf_graph *graph, const rf_op *op, const rf_tensor *rows) {
  int64_t n = rows->shape[0], dim = op->attr.attention.head_dim, seq = rf_attend_tokens(graph, n, 1);
  const int64_t dims[] = {n / seq, rows->shape[1] / dim, seq, dim};
  return (size_t)rf_tiled_bytes((int)rf_dtype_bits(rows->dtype), 4, dims);
}

/* Bytes of the largest f32 array of scores, for one block of all sequences and heads; 0 if the
 * program has a loop over blocks. */
static size_t block_of_scores(const rf_graph *graph, const rf_op *op) {
  int64_t n = graph->tensor[op->input[0]].shape[0], seq = rf_attend_tokens(graph, n, 1),
          block = rf_attend_block(seq, 0);
  int64_t window = op->attr.attention.window, seen = window && window + block < seq ? window + block : seq;
  const int64_t dims[] = {n / seq, op->attr.attention.heads, block, seen};
  return rf_ceil_div(seq, block) > RF_ATTEND_BLOCKS ? 0 : (size_t)rf_tiled_bytes(32, 4, dims);
}

static size_t attention_blocks(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  return by_head(graph, op, &graph->tensor[op->input[0]]) + block_of_scores(graph, op);
}

/* The copies include a copy of the gradient of the result. A loop over blocks adds to the sums of
 * dQ. */
static size_t attention_blocks_bwd(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  size_t scores = block_of_scores(graph, op);
  return by_head(graph, op, &graph->tensor[op->input[0]]) + by_head(graph, op, &graph->tensor[op->input[3]]) +
         (scores ? scores : attention_sums(graph, op, by));
}

/* Operand and result are two arrays, which exist at the same time for a while. */
static size_t operand_of(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  const rf_tensor *of = &graph->tensor[op->input[0]];
  return (size_t)rf_tiled_bytes((int)rf_dtype_bits(of->dtype), of->rank, of->shape);
}

/* ---- programs of the GPU compiler ------------------------------------------------------------ */

/* Bytes of the largest arrays of a chunk of the head that exist at the same time: the logits, their
 * gradient, and the weight and its gradient with the columns of padding. In bf16, the gradient of
 * the logits is three arrays: two numbers that together keep 16 bits for the gradient of the weight,
 * and one number for the gradient of the rows. If the op rounds the gradient, there is one array. In
 * f32, the gradient replaces the logits. */
static size_t head_chunk(const rf_graph *graph, const rf_op *op, rf_tiling by) {
  (void)by;
  bool grad = op->def == &RF_OP_HEAD_LOSS_GRAD, back = grad || op->def == &RF_OP_HEAD_LOSS_BWD,
       rounds = op->attr.head.gradient == RF_BF16;
  const rf_tensor *x = &graph->tensor[op->input[0]], *w = &graph->tensor[op->input[1]];
  int64_t tokens = w->shape[op->attr.head.transpose ? 0 : 1];
  rf_emit_target target = rf_emit_target_of("cuda");
  rf_head_size of = {.rows = x->shape[0],
                     .width = x->shape[1],
                     .vocab = op->attr.axes ? tokens : rf_emit_head_vocab(&target, tokens),
                     .adds = back && rf_emit_wants(op, grad ? 3 : 1)};
  int64_t chunk = of.rows ? rf_emit_head_rows(&target, 0, &of) : 0, word = rf_dtype_bits(x->dtype) / 8,
          weight = of.vocab == tokens ? 0 : of.vocab * of.width,
          gradient = back && x->dtype == RF_BF16 ? (of.adds && !rounds ? 3 : 1) * word : 0;
  return (size_t)(chunk * of.vocab * ((int64_t)sizeof(float) + gradient) +
                  weight * (word + (of.adds ? (int64_t)sizeof(float) : 0)));
}

static void run(const rf_call *call) { (void)call; }

static const rf_kernel ROWS[] = {
    {.op = "attention_bwd", .name = "sheet_attention_bwd", .workspace_bytes = attention_sums, .run = run},
    {.op = "lora_bwd", .name = "sheet_lora_bwd", .workspace_bytes = lora_between, .run = run},
    {.op = RF_ANY_OP, .name = "sheet", .run = run},
    {0},
};
static const rf_kernel TPU_ROWS[] = {
    {.op = "head_loss", .name = "sheet_head", .workspace_bytes = head_panel, .run = run},
    {.op = "head_loss_bwd", .name = "sheet_head", .workspace_bytes = head_panel, .run = run},
    {.op = "head_loss_grad", .name = "sheet_head", .workspace_bytes = head_panel, .run = run},
    {.op = "head_score", .name = "sheet_head", .workspace_bytes = head_panel, .run = run},
    {.op = "attention", .name = "sheet_attention", .workspace_bytes = attention_blocks, .run = run},
    {.op = "attention_bwd",
     .name = "sheet_attention_bwd",
     .workspace_bytes = attention_blocks_bwd,
     .run = run},
    {.op = "all_reduce", .name = "sheet_all_reduce", .workspace_bytes = operand_of, .run = run},
    {0},
};
static const rf_kernel GPU_ROWS[] = {
    {.op = "head_loss", .name = "sheet_head", .workspace_bytes = head_chunk, .run = run},
    {.op = "head_loss_bwd", .name = "sheet_head", .workspace_bytes = head_chunk, .run = run},
    {.op = "head_loss_grad", .name = "sheet_head", .workspace_bytes = head_chunk, .run = run},
    {.op = "head_score", .name = "sheet_head", .workspace_bytes = head_chunk, .run = run},
    {0},
};
static const rf_kernel *const TPU_TABLES[] = {TPU_ROWS, ROWS, NULL}, *const GPU_TABLES[] = {GPU_ROWS, ROWS,
                                                                                            NULL};

const rf_backend RF_BACKEND_SHEET_TPU = {.name = "sheet", .tables = TPU_TABLES, .sheet = true};
const rf_backend RF_BACKEND_SHEET_GPU = {.name = "sheet", .tables = GPU_TABLES, .sheet = true};
