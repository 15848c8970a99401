/* op_attention.c - the test cases of attention: over rows of text, over parts of them, over a
 * cache, and of latent rows. */
#include "support/op_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int attention_forward(op_harness *h, const op_case *of, const op_size *size, int *qkv, int *bounds) {
  rf_attr attr = case_attention_attributes(h, of, size);
  *bounds = case_segments(h, of, size->rows, NULL);
  *qkv = case_activation(h, "qkv", 1.5, size->rows,
                         (int64_t)(size->heads + 2 * size->kv_heads) * size->head_dim);
  return op_apply(h, "attention", OP_IDS(*qkv, *bounds), OP_IDS(RF_WANTED, RF_WANTED), &attr);
}

void build_attention(op_harness *h, const op_case *of, const op_size *size) {
  int qkv, bounds;
  attention_forward(h, of, size, &qkv, &bounds);
}

void build_attention_bwd(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attention_attributes(h, of, size);
  int qkv, bounds, forward = attention_forward(h, of, size, &qkv, &bounds);
  int dctx = case_activation(h, "dctx", 1, size->rows, (int64_t)size->heads * size->head_dim);
  op_apply(h, "attention_bwd", OP_IDS(qkv, op_output(h, forward, 0), op_output(h, forward, 1), dctx, bounds),
           OP_IDS(RF_WANTED), &attr);
}

/* A group of one chip, which has all queries. */
void build_attention_merge(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attention_attributes(h, of, size);
  int64_t heads = size->heads, dim = size->head_dim;
  attr.group = 2;
  int parts = op_tensor(h, "parts", RF_CLASS_ACTIVATION, h->dtype, (op_fill){1, 0},
                        OP_SHAPE(size->rows, 2 * heads * dim));
  int lse =
      op_tensor(h, "lse", RF_CLASS_ACTIVATION, h->wide, (op_fill){1, 0}, OP_SHAPE(size->rows, 2 * heads));
  op_apply(h, "attention_merge", OP_IDS(parts, lse), OP_IDS(RF_WANTED), &attr);
}

void build_attention_part(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attention_attributes(h, of, size);
  /* In a group, this is the chip of rank 0, and the keys of all chips are at hand. */
  int64_t chips = of->flags & OP_GROUP ? 2 : 1;
  attr.group = chips > 1 ? 2 : 0;
  h->graph->seq = chips * size->rows;
  int bounds = case_segments(h, of, chips * size->rows, NULL);
  int64_t q = (int64_t)size->heads * size->head_dim, both = 2 * (int64_t)size->kv_heads * size->head_dim;
  int qkv = case_activation(h, "qkv", 1.5, size->rows, q + both);
  if (!strcmp(of->op, "kv_join")) {
    op_apply(
        h, of->op,
        OP_IDS(case_activation(h, "dq", 1, size->rows, q), case_activation(h, "dkv", 1, size->rows, both)),
        OP_IDS(RF_WANTED), &attr);
    return;
  }
  int rows = op_apply(h, "kv_rows", OP_IDS(qkv), OP_IDS(RF_WANTED), &attr), kv = op_output(h, rows, 0);
  if (!strcmp(of->op, "kv_rows")) return;
  if (chips > 1) kv = case_activation(h, "kv", 1.5, chips * size->rows, both);
  int forward = op_apply(h, "attention_part", OP_IDS(qkv, kv, bounds), OP_IDS(RF_WANTED, RF_WANTED), &attr);
  if (!strcmp(of->op, "attention_part")) return;
  int dctx = case_activation(h, "dctx", 1, size->rows, q);
  op_apply(h, of->op, OP_IDS(qkv, kv, op_output(h, forward, 0), op_output(h, forward, 1), dctx, bounds),
           OP_IDS(RF_WANTED, RF_WANTED), &attr);
}

void build_attention_kv(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attention_attributes(h, of, size);
  bool prefill = of->flags & OP_PREFILL, group = of->flags & OP_GROUP;
  attr.group = group ? 2 : 0; /* this chip has rank 0 */
  int64_t rows = size->rows, bound = prefill ? rows + 9 : 10 + 80 * (rows - 1);
  int64_t slot_count = prefill ? 3 : rows;
  int32_t *slots = malloc((size_t)rows * sizeof *slots),
          *positions = malloc((size_t)rows * sizeof *positions);
  assert_non_null(slots);
  assert_non_null(positions);
  for (int64_t r = 0; r < rows; r++) {
    slots[r] = prefill ? 1 : (int32_t)(rows - 1 - r);
    /* The cache holds 5 earlier positions. */
    positions[r] = prefill ? (int32_t)(r + 5) : (int32_t)(case_draw(5, r) % (uint32_t)bound);
    if (!prefill && r == rows / 2) slots[r] = -1;
  }
  int qkv =
      case_activation(h, "qkv", 1.5, rows, (int64_t)(size->heads + 2 * size->kv_heads) * size->head_dim);
  int64_t kv = (int64_t)size->kv_heads * size->head_dim, page = 32, columns = (bound + page - 1) / page,
          pages = slot_count * columns;
  bool narrow = of->flags & OP_NARROW;
  int cache = op_tensor(h, "cache", RF_CLASS_KV, narrow ? RF_I8 : h->dtype, (op_fill){narrow ? 50 : 1.5, 0},
                        OP_SHAPE(pages, 2, page, kv));
  int scale = narrow ? op_tensor(h, "scale", RF_CLASS_KV, RF_F32, (op_fill){0.002, 0.02},
                                 OP_SHAPE(pages, 2, page, size->kv_heads))
                     : RF_NONE;
  int table = op_table(h, slot_count, columns);
  int slot_ids = op_ids(h, "slots", rows, slots), position_ids = op_ids(h, "positions", rows, positions);
  free(slots);
  free(positions);
  op_apply(h, "attention_kv", OP_IDS(qkv, cache, table, slot_ids, position_ids, scale),
           OP_IDS(RF_WANTED, cache, scale, group ? RF_WANTED : RF_NONE), &attr);
}

/* Latent attention: half of a head is rotated, values are a little narrower than a head, and the
 * latent row is a little wider. */

static rf_attr latent_attributes(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attention_attributes(h, of, size);
  attr.attention.kv_heads = 0;
  attr.attention.rope_dim = size->head_dim / 4 * 2;
  attr.attention.value_dim = size->head_dim - 1;
  return attr;
}

void build_latent_norm(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  int x = case_activation(h, "x", 1.5, size->rows, size->width + size->columns),
      gain = case_vector(h, "gain", (op_fill){0.5, 1}, size->width);
  op_apply(h, "latent_norm", OP_IDS(x, gain), OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED), &attr);
}

void build_latent_norm_bwd(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  int x = case_activation(h, "x", 1.5, size->rows, size->width + size->columns),
      gain = case_vector(h, "gain", (op_fill){0.5, 1}, size->width);
  int forward = op_apply(h, "latent_norm", OP_IDS(x, gain), OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED), &attr);
  int dlatent = case_activation(h, "dlatent", 1, size->rows, size->width),
      dturns = case_activation(h, "dturns", 1, size->rows, size->columns);
  rf_attr backward = {.norm = {.eps = attr.norm.eps}, .accumulate = {RF_WRITE, attr.accumulate[1]}};
  op_apply(h, "latent_norm_bwd", OP_IDS(x, gain, op_output(h, forward, 2), dlatent, dturns),
           OP_IDS(RF_WANTED, case_gradient(h, "dgain", OP_SHAPE(size->width))), &backward);
}

static int latent_forward(op_harness *h, const op_case *of, const op_size *size, int in[4]) {
  rf_attr attr = latent_attributes(h, of, size);
  in[0] = case_activation(h, "q", 1.5, size->rows, (int64_t)size->heads * size->head_dim);
  in[1] = case_activation(h, "kv", 1.5, size->rows,
                          (int64_t)size->heads *
                              (size->head_dim - attr.attention.rope_dim + attr.attention.value_dim));
  in[2] = case_activation(h, "turns", 1.5, size->rows, attr.attention.rope_dim);
  in[3] = case_segments(h, of, size->rows, NULL);
  return op_apply(h, "attention_latent", OP_IDS(in[0], in[1], in[2], in[3]), OP_IDS(RF_WANTED, RF_WANTED),
                  &attr);
}

void build_attention_latent(op_harness *h, const op_case *of, const op_size *size) {
  int in[4];
  latent_forward(h, of, size, in);
}

void build_attention_latent_bwd(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = latent_attributes(h, of, size);
  int in[4], forward = latent_forward(h, of, size, in);
  int dctx = case_activation(h, "dctx", 1, size->rows, (int64_t)size->heads * attr.attention.value_dim);
  op_apply(h, "attention_latent_bwd",
           OP_IDS(in[0], in[1], in[2], op_output(h, forward, 0), op_output(h, forward, 1), dctx, in[3]),
           OP_IDS(RF_WANTED, RF_WANTED, RF_WANTED), &attr);
}

/* in: q, latent rows of head_dim + 3 columns, turns, w */
static void latent_inputs(op_harness *h, const rf_attr *attr, const op_size *size, int in[4]) {
  int64_t heads = size->heads, columns = size->head_dim + 3, rotated = attr->attention.rope_dim;
  in[0] = case_activation(h, "q", 1.5, size->rows, heads * size->head_dim);
  in[1] = case_activation(h, "latent", 1.5, size->rows, columns);
  in[2] = case_activation(h, "turns", 1.5, size->rows, rotated);
  in[3] = case_weight(h, "w", 0.5, columns, heads * (size->head_dim - rotated + attr->attention.value_dim));
}

void build_attention_latent_rows(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = latent_attributes(h, of, size);
  int in[4];
  latent_inputs(h, &attr, size, in);
  op_apply(h, "attention_latent_rows",
           OP_IDS(in[0], in[1], in[2], in[3], case_segments(h, of, size->rows, NULL)), OP_IDS(RF_WANTED),
           &attr);
}

void build_attention_latent_kv(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = latent_attributes(h, of, size);
  bool prefill = of->flags & OP_PREFILL, group = of->flags & OP_GROUP;
  attr.group = group ? 2 : 0;
  int64_t rows = size->rows, slot_count = prefill ? 2 : rows, page = 32,
          columns = (rows + 40 + page - 1) / page, latent_columns = size->head_dim + 3;
  int32_t *slots = malloc((size_t)rows * sizeof *slots),
          *positions = malloc((size_t)rows * sizeof *positions);
  assert_true(slots && positions);
  for (int64_t r = 0; r < rows; r++) {
    slots[r] = prefill ? 1 : r == rows / 2 ? -1 : (int32_t)(rows - 1 - r);
    positions[r] = (int32_t)(prefill ? r + 5 : case_draw(5, r) % 40);
  }
  int in[4];
  latent_inputs(h, &attr, size, in);
  int cache = op_tensor(h, "cache", RF_CLASS_KV, h->dtype, (op_fill){1.5, 0},
                        OP_SHAPE(slot_count * columns, 1, page, latent_columns + attr.attention.rope_dim));
  int table = op_table(h, slot_count, columns), slot_ids = op_ids(h, "slots", rows, slots),
      position_ids = op_ids(h, "positions", rows, positions);
  free(slots);
  free(positions);
  op_apply(h, "attention_latent_kv", OP_IDS(in[0], in[1], in[2], in[3], cache, table, slot_ids, position_ids),
           OP_IDS(RF_WANTED, cache, group ? RF_WANTED : RF_NONE), &attr);
}
