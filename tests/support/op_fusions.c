/* op_fusions.c - compares each fused op with the ops that it replaces. Rounding points are casts in
 * the graph, so the bits are the same. */
#include "support/op_cases.h"

#include <math.h>
#include <stddef.h>

static int activation(op_harness *h, const char *name, int64_t rows, int64_t columns) {
  return op_tensor(h, name, RF_CLASS_ACTIVATION, h->dtype, (op_fill){1, 0}, OP_SHAPE(rows, columns));
}

static void same(const op_harness *h, int equal[OP_MAX_EQUALS][2], int *equals, int op_a, int slot_a,
                 int op_b, int slot_b) {
  equal[*equals][0] = op_output(h, op_a, slot_a);
  equal[(*equals)++][1] = op_output(h, op_b, slot_b);
}

static rf_attr product_attributes(const op_fusion *of) {
  return (rf_attr){.matmul = {.transpose = (of->flags & OP_TRANSPOSE) != 0}};
}
static rf_attr head_attributes(const op_fusion *of) {
  return (rf_attr){.head = {.transpose = (of->flags & OP_TRANSPOSE) != 0,
                            .temperature = of->flags & OP_INVERSE ? 0.7f : 0}};
}

static int linear(op_harness *h, const op_fusion *of, const op_size *size) {
  op_fill fill = {1 / sqrt((double)size->width), 0};
  return of->flags & OP_TRANSPOSE
             ? op_tensor(h, "w", RF_CLASS_WEIGHT, h->dtype, fill, OP_SHAPE(size->columns, size->width))
             : op_tensor(h, "w", RF_CLASS_WEIGHT, h->dtype, fill, OP_SHAPE(size->width, size->columns));
}

/* matmul with an epilogue, with u kept or not = matmul, then gelu or add_dropout */
static void build_epilogue(op_harness *h, const op_fusion *of, const op_size *size,
                           int equal[OP_MAX_EQUALS][2], int *equals) {
  bool gelu = of->flags & OP_GELU;
  rf_attr plain = product_attributes(of), attr = plain, drop = {0};
  if (of->flags & OP_DROPOUT) drop.dropout = (rf_attr_dropout){.rate = 0.25f, .site = rf_name_key("fusion")};
  attr.matmul.rate = drop.dropout.rate;
  attr.matmul.site = drop.dropout.site;
  attr.matmul.epilogue = gelu ? RF_EPILOGUE_GELU : RF_EPILOGUE_RESIDUAL;
  int x = activation(h, "x", size->rows, size->width), w = linear(h, of, size);
  int bias = op_tensor(h, "bias", RF_CLASS_WEIGHT, h->dtype, (op_fill){0.5, 0}, OP_SHAPE(size->columns));
  int residual = gelu ? RF_NONE : activation(h, "residual", size->rows, size->columns);
  int alone = op_apply(h, "matmul", OP_IDS(x, w, bias), OP_IDS(RF_WANTED, RF_NONE), &plain),
      u = op_output(h, alone, 0);
  int after = gelu ? op_apply(h, "gelu", OP_IDS(u), OP_IDS(RF_WANTED), NULL)
                   : op_apply(h, "add_dropout", OP_IDS(residual, u), OP_IDS(RF_WANTED), &drop);
  int kept = op_apply(h, "matmul", OP_IDS(x, w, bias, residual), OP_IDS(RF_WANTED, RF_WANTED), &attr);
  int lost = op_apply(h, "matmul", OP_IDS(x, w, bias, residual), OP_IDS(RF_NONE, RF_WANTED), &attr);
  same(h, equal, equals, kept, 0, alone, 0);
  same(h, equal, equals, kept, 1, after, 0);
  same(h, equal, equals, lost, 1, after, 0);
}

/* matmul_dx with u = matmul_dx, then gelu_bwd */
static void build_gelu_bwd(op_harness *h, const op_fusion *of, const op_size *size,
                           int equal[OP_MAX_EQUALS][2], int *equals) {
  rf_attr attr = product_attributes(of);
  int dy = activation(h, "dy", size->rows, size->columns), w = linear(h, of, size),
      u = activation(h, "u", size->rows, size->width);
  int dx = op_apply(h, "matmul_dx", OP_IDS(dy, w), OP_IDS(RF_WANTED, RF_NONE), &attr);
  int du = op_apply(h, "gelu_bwd", OP_IDS(u, op_output(h, dx, 0)), OP_IDS(RF_WANTED), NULL);
  int fused = op_apply(h, "matmul_dx", OP_IDS(dy, w, u), OP_IDS(RF_NONE, RF_WANTED), &attr);
  same(h, equal, equals, fused, 1, du, 0);
}

/* backward of a norm with dres = the same without dres, then add */
static void build_norm_bwd(op_harness *h, const op_fusion *of, const op_size *size,
                           int equal[OP_MAX_EQUALS][2], int *equals) {
  bool centered = of->flags & OP_BIAS;
  rf_attr attr = {.norm = {.eps = 1e-5f}};
  int count = centered ? 3 : 2;
  int x = activation(h, "x", size->rows, size->width), dy = activation(h, "dy", size->rows, size->width);
  int dres = activation(h, "dres", size->rows, size->width);
  int gain = op_tensor(h, "gain", RF_CLASS_WEIGHT, h->dtype, (op_fill){0.2, 1}, OP_SHAPE(size->width));
  int bias = op_tensor(h, "bias", RF_CLASS_WEIGHT, h->dtype, (op_fill){0.2, 0}, OP_SHAPE(size->width));
  int forward = op_apply(h, centered ? "layernorm" : "rmsnorm", count, (int[]){x, gain, bias},
                         OP_IDS(RF_WANTED, RF_WANTED), &attr);
  int stats = op_output(h, forward, 1);
  const char *name = centered ? "layernorm_bwd" : "rmsnorm_bwd";
  int wanted[] = {RF_WANTED, RF_WANTED, RF_WANTED};
  int alone = op_apply(h, name, OP_IDS(x, gain, stats, dy), count, wanted, &attr);
  int sum = op_apply(h, "add", OP_IDS(op_output(h, alone, 0), dres), OP_IDS(RF_WANTED), NULL);
  int fused = op_apply(h, name, OP_IDS(x, gain, stats, dy, dres), count, wanted, &attr);
  same(h, equal, equals, fused, 0, sum, 0);
  for (int i = 1; i < count; i++) same(h, equal, equals, fused, i, alone, i);
}

/* head_loss_grad = head_loss, then head_loss_bwd */
static void build_head(op_harness *h, const op_fusion *of, const op_size *size, int equal[OP_MAX_EQUALS][2],
                       int *equals) {
  rf_attr attr = head_attributes(of);
  if (of->flags & OP_NARROW && h->dtype == RF_BF16) attr.head.gradient = RF_BF16;
  int32_t labels[256];
  for (int64_t r = 0; r < size->rows && r < 256; r++)
    labels[r] = r % 4 == 2 ? -1 : (int32_t)((r * 7 + 3) % size->columns);
  int x = activation(h, "x", size->rows, size->width), w = linear(h, of, size),
      label_ids = op_ids(h, "labels", size->rows, labels);
  int bias = op_tensor(h, "bias", RF_CLASS_WEIGHT, h->dtype, (op_fill){0.5, 0}, OP_SHAPE(size->columns));
  int loss =
      op_apply(h, "head_loss", OP_IDS(x, w, bias, label_ids), OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED), &attr);
  int back = op_apply(h, "head_loss_bwd", OP_IDS(x, w, bias, label_ids, op_output(h, loss, 2)),
                      OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED), &attr);
  int fused = op_apply(h, "head_loss_grad", OP_IDS(x, w, bias, label_ids),
                       OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED, RF_WANTED, RF_WANTED), &attr);
  same(h, equal, equals, fused, 0, loss, 0);
  same(h, equal, equals, fused, 1, loss, 1);
  for (int i = 0; i < 3; i++) same(h, equal, equals, fused, 2 + i, back, i);
}

/* head_logits of every row, all rows at once = an f32 matmul's accumulators: with f32
 * activations, the bits of matmul */
static void build_logits(op_harness *h, const op_fusion *of, const op_size *size, int equal[OP_MAX_EQUALS][2],
                         int *equals) {
  rf_attr attr = head_attributes(of), plain = product_attributes(of);
  int32_t rows[256];
  for (int64_t r = 0; r < size->rows && r < 256; r++) rows[r] = (int32_t)r;
  int x = activation(h, "x", size->rows, size->width), w = linear(h, of, size),
      row_ids = op_ids(h, "rows", size->rows, rows);
  int bias = op_tensor(h, "bias", RF_CLASS_WEIGHT, h->dtype, (op_fill){0.5, 0}, OP_SHAPE(size->columns));
  int logits = op_apply(h, "head_logits", OP_IDS(x, w, bias, row_ids), OP_IDS(RF_WANTED), &attr);
  int product = op_apply(h, "matmul", OP_IDS(x, w, bias), OP_IDS(RF_WANTED, RF_NONE), &plain);
  if (h->dtype != RF_BF16) same(h, equal, equals, logits, 0, product, 0);
}

/* attention over a new cache = attention over the same rows */
static void build_cache(op_harness *h, const op_fusion *of, const op_size *size, int equal[OP_MAX_EQUALS][2],
                        int *equals) {
  rf_attr attr = {.attention = {.heads = size->heads,
                                .kv_heads = size->kv_heads,
                                .head_dim = size->head_dim,
                                .scale = (float)(1.0 / sqrt((double)size->head_dim)),
                                .softmax = of->flags & OP_BF16_SOFTMAX ? RF_BF16 : RF_F32,
                                .window = of->flags & OP_WINDOW ? 9 : 0}};
  int32_t slots[512], positions[512], segments[513];
  for (int64_t r = 0; r <= size->rows; r++) segments[r] = r == 0 ? 0 : (int32_t)size->rows;
  for (int64_t r = 0; r < size->rows; r++) {
    slots[r] = 1;
    positions[r] = (int32_t)r;
  }
  int qkv = activation(h, "qkv", size->rows, (int64_t)(size->heads + 2 * size->kv_heads) * size->head_dim);
  int bounds = op_ids(h, "segments", size->rows + 1, segments),
      slot_ids = op_ids(h, "slots", size->rows, slots);
  int position_ids = op_ids(h, "positions", size->rows, positions);
  int64_t page = of->flags & OP_WINDOW ? 32 : 256, columns = (size->rows + 3 + page - 1) / page;
  int cache = op_tensor(h, "cache", RF_CLASS_KV, h->dtype, (op_fill){1, 0},
                        OP_SHAPE(2 * columns, 2, page, (int64_t)size->kv_heads * size->head_dim));
  int table = op_table(h, 2, columns);
  int whole = op_apply(h, "attention", OP_IDS(qkv, bounds), OP_IDS(RF_WANTED, RF_WANTED), &attr);
  int cached = op_apply(h, "attention_kv", OP_IDS(qkv, cache, table, slot_ids, position_ids),
                        OP_IDS(RF_WANTED, cache), &attr);
  same(h, equal, equals, cached, 0, whole, 0);
}

/* adamw with sums = norm_sq, then adamw, each with its own state */
static void build_update(op_harness *h, const op_fusion *of, const op_size *size, int equal[OP_MAX_EQUALS][2],
                         int *equals) {
  rf_attr attr = {.adamw = {.eps = 1e-8f, .beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f, .element = 1}};
  rf_attr norm = {.sums = {.element = 1}};
  int grad =
      op_tensor(h, "grad", RF_CLASS_GRADIENT, h->wide, (op_fill){1, 0}, OP_SHAPE(size->rows, size->width));
  int apart = op_tensor(h, "sums apart", RF_CLASS_ACTIVATION, RF_F64, (op_fill){0, 3}, OP_SHAPE(2));
  int together = op_tensor(h, "sums together", RF_CLASS_ACTIVATION, RF_F64, (op_fill){0, 3}, OP_SHAPE(2)),
      state[2][3], op[2];
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 3; k++)
      state[i][k] = op_tensor(h,
                              k == 0   ? "master"
                              : k == 1 ? "m"
                                       : "v",
                              RF_CLASS_MASTER, h->wide, (op_fill){0, 0.01 * (k + 1)},
                              OP_SHAPE(size->rows, size->width));
  (void)of;
  op_apply(h, "norm_sq", OP_IDS(grad), OP_IDS(apart), &norm);
  for (int i = 0; i < 2; i++)
    op[i] = op_apply(h, "adamw", OP_IDS(grad, state[i][0], state[i][1], state[i][2], RF_NONE),
                     OP_IDS(state[i][0], state[i][1], state[i][2], RF_WANTED, i ? together : RF_NONE), &attr);
  for (int k = 0; k < 4; k++) same(h, equal, equals, op[1], k, op[0], k);
  equal[*equals][0] = together;
  equal[(*equals)++][1] = apart;
}

/* rows, width, columns, heads, kv_heads, head_dim */
static const op_size STATES[] = {
    {1, 3, 0, 0, 0, 0}, {3, 4096, 0, 0, 0, 0}, {67, 1031, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
static const op_size PRODUCTS[] = {
    {1, 3, 5, 0, 0, 0}, {13, 70, 33, 0, 0, 0}, {40, 530, 65, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
static const op_size NORMS[] = {
    {1, 1, 0, 0, 0, 0}, {9, 67, 0, 0, 0, 0}, {33, 768, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
static const op_size HEADS[] = {
    {1, 2, 3, 0, 0, 0}, {9, 20, 65, 0, 0, 0}, {50, 33, 300, 0, 0, 0}, {0, 0, 0, 0, 0, 0}};
static const op_size CACHES[] = {
    {1, 0, 0, 1, 1, 2}, {21, 0, 0, 4, 2, 10}, {270, 0, 0, 2, 1, 8}, {0, 0, 0, 0, 0, 0}};

const op_fusion OP_FUSIONS[] = {
    {"matmul + gelu", build_epilogue, PRODUCTS, OP_GELU},
    {"matmul transposed + gelu", build_epilogue, PRODUCTS, OP_GELU | OP_TRANSPOSE},
    {"matmul + residual", build_epilogue, PRODUCTS, OP_RESIDUAL},
    {"matmul + residual with dropout", build_epilogue, PRODUCTS, OP_RESIDUAL | OP_DROPOUT},
    {"matmul_dx + gelu_bwd", build_gelu_bwd, PRODUCTS, 0},
    {"matmul_dx transposed + gelu_bwd", build_gelu_bwd, PRODUCTS, OP_TRANSPOSE},
    {"layernorm_bwd + add", build_norm_bwd, NORMS, OP_BIAS},
    {"rmsnorm_bwd + add", build_norm_bwd, NORMS, 0},
    {"head_loss + head_loss_bwd", build_head, HEADS, 0},
    {"head_loss + head_loss_bwd, transposed", build_head, HEADS, OP_TRANSPOSE},
    {"head_loss + head_loss_bwd, temperature", build_head, HEADS, OP_INVERSE},
    {"head_loss + head_loss_bwd, rounded", build_head, HEADS, OP_NARROW},
    {"head_logits and matmul", build_logits, HEADS, 0},
    {"attention over a cache", build_cache, CACHES, 0},
    {"attention over a cache, window", build_cache, CACHES, OP_WINDOW},
    {"attention over a cache, bf16 softmax", build_cache, CACHES, OP_BF16_SOFTMAX},
    {"norm_sq + adamw", build_update, STATES, 0},
    {NULL, NULL, NULL, 0},
};
