/* quant.c - the table of storage types, conversions of plain numbers, and reads of a part of a
 * tensor. */
#include "formats/quant.h"

#include <string.h>
#include <strings.h>

#include "formats/quant_blocks.h"

enum { NONE = -1 };

/* ---- types whose blocks have one value --------------------------------------------------- */

static void dequantize_f32(const void *from, int64_t blocks, float *out) {
  memcpy(out, from, (size_t)blocks * sizeof *out);
}
static void quantize_f32(const float *values, int64_t blocks, void *out) {
  memcpy(out, values, (size_t)blocks * sizeof *values);
}

static void dequantize_f16(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (int64_t i = 0; i < blocks; ++i) out[i] = rf_load_f16(at + i * 2);
}
static void quantize_f16(const float *values, int64_t blocks, void *out) {
  uint8_t *at = out;
  for (int64_t i = 0; i < blocks; ++i) rf_store_f16(at + i * 2, values[i]);
}

static void dequantize_bf16(const void *from, int64_t blocks, float *out) {
  const uint8_t *at = from;
  for (int64_t i = 0; i < blocks; ++i) out[i] = rf_bf16_to_f32(rf_load_u16(at + i * 2));
}
static void quantize_bf16(const float *values, int64_t blocks, void *out) {
  uint8_t *at = out;
  for (int64_t i = 0; i < blocks; ++i) rf_store_u16(at + i * 2, rf_f32_to_bf16(values[i]));
}

static void dequantize_f64(const void *from, int64_t blocks, float *out) {
  for (int64_t i = 0; i < blocks; ++i) {
    double wide;
    memcpy(&wide, (const char *)from + i * 8, 8);
    out[i] = (float)wide;
  }
}

// clang-format off
const rf_quant_type RF_QUANT_TYPES[] = {
  /* name     number      values bytes         fallback  dequantize          quantize        head */
  {"f32",     RF_Q_F32,    1,   4,             NONE,       dequantize_f32,     quantize_f32, 0},
  {"f16",     RF_Q_F16,    1,   2,             NONE,       dequantize_f16,     quantize_f16, 0},
  {"bf16",    RF_Q_BF16,   1,   2,             NONE,       dequantize_bf16,    quantize_bf16, 0},
  {"q8_0",    RF_Q_Q8_0,   32,  RF_Q8_0_BYTES, RF_Q_F16,   rf_dequantize_q8_0, rf_quantize_q8_0, 0},
  {"q4_0",    RF_Q_Q4_0,   32,  RF_Q4_0_BYTES, RF_Q_F16,   rf_dequantize_q4_0, rf_quantize_q4_0, 0},
  {"q4_1",    RF_Q_Q4_1,   32,  RF_Q4_1_BYTES, RF_Q_F16,   rf_dequantize_q4_1, rf_quantize_q4_1, 0},
  {"q5_0",    RF_Q_Q5_0,   32,  RF_Q5_0_BYTES, RF_Q_F16,   rf_dequantize_q5_0, rf_quantize_q5_0, 0},
  {"q5_1",    RF_Q_Q5_1,   32,  RF_Q5_1_BYTES, RF_Q_F16,   rf_dequantize_q5_1, rf_quantize_q5_1, 0},
  {"q2_k",    RF_Q_Q2_K,   256, RF_Q2_K_BYTES, RF_Q_Q4_0,  rf_dequantize_q2_k, rf_quantize_q2_k, 0},
  {"q3_k",    RF_Q_Q3_K,   256, RF_Q3_K_BYTES, RF_Q_Q4_0,  rf_dequantize_q3_k, rf_quantize_q3_k, 0},
  {"q4_k",    RF_Q_Q4_K,   256, RF_Q4_K_BYTES, RF_Q_Q5_0,  rf_dequantize_q4_k, rf_quantize_q4_k, 0},
  {"q5_k",    RF_Q_Q5_K,   256, RF_Q5_K_BYTES, RF_Q_Q5_1,  rf_dequantize_q5_k, rf_quantize_q5_k, 0},
  {"q6_k",    RF_Q_Q6_K,   256, RF_Q6_K_BYTES, RF_Q_Q8_0,  rf_dequantize_q6_k, rf_quantize_q6_k, 0},
  {"f64",     RF_Q_F64,    1,   8,             NONE,       dequantize_f64,     NULL, 0},
  {"int8",    RF_Q_INT8,   32,  32,            RF_Q_F16,   rf_dequantize_int8, rf_quantize_int8, RF_INT8_HEAD},
  /* Only the sizes of the following types are known. Tensors of these types cannot be read. */
  {"i8",      24, 1,   1,   NONE, NULL, NULL, 0}, {"i16",     25, 1,   2,   NONE, NULL, NULL, 0},
  {"i32",     26, 1,   4,   NONE, NULL, NULL, 0}, {"i64",     27, 1,   8,   NONE, NULL, NULL, 0},
  {"iq2_xxs", 16, 256, 66,  NONE, NULL, NULL, 0}, {"iq2_xs",  17, 256, 74,  NONE, NULL, NULL, 0},
  {"iq3_xxs", 18, 256, 98,  NONE, NULL, NULL, 0}, {"iq1_s",   19, 256, 50,  NONE, NULL, NULL, 0},
  {"iq4_nl",  20, 32,  18,  NONE, NULL, NULL, 0}, {"iq3_s",   21, 256, 110, NONE, NULL, NULL, 0},
  {"iq2_s",   22, 256, 82,  NONE, NULL, NULL, 0}, {"iq4_xs",  23, 256, 136, NONE, NULL, NULL, 0},
  {"iq1_m",   29, 256, 56,  NONE, NULL, NULL, 0}, {"tq1_0",   34, 256, 54,  NONE, NULL, NULL, 0},
  {"tq2_0",   35, 256, 66,  NONE, NULL, NULL, 0}, {"mxfp4",   39, 32,  17,  NONE, NULL, NULL, 0},
};
// clang-format on
const int RF_QUANT_TYPE_COUNT = sizeof RF_QUANT_TYPES / sizeof RF_QUANT_TYPES[0];

const rf_quant_type *rf_quant_type_of(int64_t number) {
  for (int i = 0; i < RF_QUANT_TYPE_COUNT; ++i)
    if (RF_QUANT_TYPES[i].number == number) return &RF_QUANT_TYPES[i];
  return NULL;
}

const rf_quant_type *rf_quant_type_named(const char *name) {
  for (int i = 0; i < RF_QUANT_TYPE_COUNT; ++i)
    if (strcasecmp(RF_QUANT_TYPES[i].name, name) == 0) return &RF_QUANT_TYPES[i];
  return NULL;
}

double rf_quant_bits(const rf_quant_type *type) { return 8.0 * type->bytes / type->values; }

const rf_quant_type *rf_quant_fit(const rf_quant_type *wanted, int64_t columns) {
  while (columns % wanted->values && wanted->fallback != NONE) wanted = rf_quant_type_of(wanted->fallback);
  return wanted;
}

/* Reads `count` values of one block, beginning with value `first`. */
static void read_inside(const rf_quant_type *type, const uint8_t *block, int64_t first, int64_t count,
                        float *out) {
  float whole[RF_QUANT_BLOCK_MAX];
  type->dequantize(block, 1, whole);
  memcpy(out, whole + first, (size_t)count * sizeof *out);
}

rf_status rf_quant_read(const rf_quant_tensor *tensor, int64_t first, int64_t count, float *out,
                        rf_error *error) {
  const rf_quant_type *type = tensor->type;
  if (first < 0 || count < 0 || first > tensor->count || count > tensor->count - first)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "tensor \"%.100s\" has %lld elements (expected to read %lld from element %lld on)",
                   tensor->name, (long long)tensor->count, (long long)count, (long long)first);
  if (!type->dequantize)
    return RF_FAIL(
        error, RAFTER_FAILED, "use a file of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or q2_k to q6_k",
        "tensor \"%.100s\" is stored as %s, which this program cannot read", tensor->name, type->name);
  const uint8_t *block = tensor->data;
  if (!count) return RAFTER_OK;
  block += first / type->values * type->bytes;
  int64_t inside = first % type->values;
  if (inside) {
    int64_t part = type->values - inside < count ? type->values - inside : count;
    read_inside(type, block, inside, part, out);
    block += type->bytes;
    out += part;
    count -= part;
  }
  int64_t blocks = count / type->values;
  if (blocks) type->dequantize(block, blocks, out);
  block += blocks * type->bytes;
  out += blocks * type->values;
  count -= blocks * type->values;
  if (count) read_inside(type, block, 0, count, out);
  return RAFTER_OK;
}
