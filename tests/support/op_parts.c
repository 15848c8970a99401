#include "support/op_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

int case_activation(op_harness *h, const char *name, double scale, int64_t rows, int64_t columns) {
  return op_tensor(h, name, RF_CLASS_ACTIVATION, h->dtype, (op_fill){scale, 0}, OP_SHAPE(rows, columns));
}
int case_weight(op_harness *h, const char *name, double scale, int64_t rows, int64_t columns) {
  return op_tensor(h, name, RF_CLASS_WEIGHT, h->dtype, (op_fill){scale, 0}, OP_SHAPE(rows, columns));
}
int case_vector(op_harness *h, const char *name, op_fill fill, int64_t count) {
  return op_tensor(h, name, RF_CLASS_WEIGHT, h->dtype, fill, OP_SHAPE(count));
}
int case_gradient(op_harness *h, const char *name, int rank, const int64_t *shape) {
  return op_tensor(h, name, RF_CLASS_GRADIENT, h->wide, (op_fill){1, 0}, rank, shape);
}
int case_linear(op_harness *h, const op_case *of, double scale, int64_t inner, int64_t columns) {
  return of->flags & OP_TRANSPOSE ? case_weight(h, "w", scale, columns, inner)
                                  : case_weight(h, "w", scale, inner, columns);
}
int case_linear_gradient(op_harness *h, const op_case *of, int64_t inner, int64_t columns) {
  return of->flags & OP_TRANSPOSE ? case_gradient(h, "dw", OP_SHAPE(columns, inner))
                                  : case_gradient(h, "dw", OP_SHAPE(inner, columns));
}

uint32_t case_draw(uint64_t site, int64_t i) {
  uint32_t words[4];
  rf_philox(rf_key(99, site, 0), (uint64_t)i, 0, words);
  return words[0];
}

int case_some_ids(op_harness *h, const char *name, int64_t count, int64_t limit, bool ignored) {
  int32_t *values = malloc((size_t)count * sizeof *values);
  assert_non_null(values);
  for (int64_t i = 0; i < count; i++)
    values[i] = ignored && i % 3 == 1 ? -1 : (int32_t)(case_draw((uint64_t)limit, i) % (uint32_t)limit);
  int id = op_ids(h, name, count, values);
  free(values);
  return id;
}

int case_segments(op_harness *h, const op_case *of, int64_t rows, int *positions) {
  int32_t *starts = malloc((size_t)(rows + 1) * sizeof *starts), *at = malloc((size_t)rows * sizeof *at);
  assert_non_null(starts);
  assert_non_null(at);
  int64_t cut[] = {0, 1, rows / 3 > 1 ? rows / 3 : rows,
                   rows * 2 / 3 + 1 < rows && rows / 3 > 1 ? rows * 2 / 3 + 1 : rows, rows};
  int count = 0;
  for (int i = 0; i < 5; i++)
    if ((of->flags & OP_SEGMENTS || i == 0 || i == 4) && (count == 0 || cut[i] > starts[count - 1]))
      starts[count++] = (int32_t)cut[i];
  for (int64_t i = count; i <= rows; i++) starts[i] = (int32_t)rows;
  for (int64_t r = 0, s = 0; r < rows; r++) {
    while (s + 1 < count && starts[s + 1] <= r) s++;
    at[r] = (int32_t)(r - starts[s]);
  }
  int id = op_ids(h, "segments", rows + 1, starts);
  if (positions) *positions = op_ids(h, "positions", rows, at);
  free(starts);
  free(at);
  return id;
}

rf_accumulate case_accumulation(op_harness *h, unsigned flags) {
  h->run.micro = flags & OP_MICRO ? 1 : 0;
  return flags & OP_ADD                        ? RF_ACCUMULATE_ADD
         : flags & (OP_MICRO | OP_FIRST_MICRO) ? RF_ACCUMULATE_MICRO
                                               : RF_WRITE;
}

/* Attributes of the case's op, by its family. */
rf_attr case_attributes(op_harness *h, const op_case *of) {
  const rf_field *family = rf_op_find(of->op)->fields;
  bool transpose = of->flags & OP_TRANSPOSE, scaled = of->flags & OP_SCALED;
  float softcap = of->flags & OP_SOFTCAP ? 2.5f : 0;
  rf_attr attr = {0};
  for (int i = 0; i < RF_MAX_OUTPUTS; i++) attr.accumulate[i] = case_accumulation(h, of->flags);
  if (family == RF_FIELDS_NORM) attr.norm = (rf_attr_norm){.eps = 1e-5f, .offset = scaled};
  if (family == RF_FIELDS_HEAD_NORM) attr.head_norm = (rf_attr_head_norm){.eps = 1e-5f, .offset = scaled};
  if (family == RF_FIELDS_ROPE) attr.rope.inverse = of->flags & OP_INVERSE;
  if (family == RF_FIELDS_ATTENTION) attr.attention.softcap = softcap;
  if (family == RF_FIELDS_EMBED && scaled) attr.embed.scale = 2.7f;
  if (family == RF_FIELDS_MATMUL) attr.matmul.transpose = transpose;
  if (family == RF_FIELDS_HEAD || !strcmp(of->op, "head_merge"))
    attr.head = (rf_attr_head){.transpose = transpose,
                               .softcap = softcap,
                               .temperature = of->flags & OP_INVERSE ? 0.7f : 0,
                               .gradient = of->flags & OP_NARROW && h->dtype == RF_BF16 ? RF_BF16 : RF_F32};
  if (family == RF_FIELDS_DROPOUT || family == RF_FIELDS_MATMUL) {
    if (scaled) attr.dropout.token_step = 3;
    if (of->flags & OP_DROPOUT) {
      attr.dropout.rate = 0.3f;
      attr.dropout.site = rf_name_key("harness/dropout");
    }
  }
  return attr;
}

rf_rope case_rotation(const op_case *of, const op_size *size) {
  if (of->flags & OP_SCALED && size->head_dim >= 4)
    return (rf_rope){.theta = 100,
                     .dim = size->head_dim / 4 * 2,
                     .scaling = RF_ROPE_LLAMA3,
                     .factor = 8,
                     .low = 1,
                     .high = 4,
                     .original = 50};
  /* divisors of pairs, for heads up to 16 wide */
  static const float divisor[] = {1, 0.5f, 2, 3, 8, 1.25f, 5, 1};
  if (of->flags & OP_TABLE && size->head_dim >= 4)
    return (rf_rope){.theta = 100,
                     .dim = size->head_dim < 16 ? size->head_dim / 2 * 2 : 16,
                     .scaling = RF_ROPE_TABLE,
                     .divisor = divisor};
  return (rf_rope){.theta = 10000, .dim = size->head_dim};
}

/* Attributes of ops on heads, whose families begin with the same fields. */
rf_attr case_attention_attributes(op_harness *h, const op_case *of, const op_size *size) {
  rf_attr attr = case_attributes(h, of);
  attr.heads.heads = size->heads;
  attr.heads.kv_heads = size->kv_heads;
  attr.heads.head_dim = size->head_dim;
  if (rf_op_find(of->op)->fields != RF_FIELDS_ATTENTION) return attr;
  attr.attention.scale = (float)(1.0 / sqrt((double)size->head_dim));
  attr.attention.softmax = of->flags & OP_BF16_SOFTMAX ? RF_BF16 : RF_F32;
  attr.attention.window = of->flags & OP_WINDOW ? (int32_t)(size->rows / 4 + 2) : 0;
  return attr;
}
