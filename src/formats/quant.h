/* quant.h - storage types of GGUF files: blocks of values that share a scale, and tensors of
 * such blocks. Layouts and order of operations are ggml's (ggml-common.h, ggml-quants.c,
 * dequantize_row_*), so the values are equal to the bit. Letters: d, m are scale and offset of a
 * block (stored as f16, widened first), q the small integers. */
#ifndef RF_QUANT_H
#define RF_QUANT_H

#include "base/base.h"

enum {
  RF_QUANT_RANK = 4,
  RF_QUANT_BLOCK_MOST = 256
}; /* maximum axes of a tensor; values of the largest block */

/* Numbers as in files. */
typedef enum rf_quant_kind {
  RF_Q_F32 = 0,
  RF_Q_F16 = 1,
  RF_Q_Q4_0 = 2,
  RF_Q_Q4_1 = 3,
  RF_Q_Q5_0 = 6,
  RF_Q_Q5_1 = 7,
  RF_Q_Q8_0 = 8,
  RF_Q_Q2_K = 10,
  RF_Q_Q3_K = 11,
  RF_Q_Q4_K = 12,
  RF_Q_Q5_K = 13,
  RF_Q_Q6_K = 14,
  RF_Q_F64 = 28,
  RF_Q_BF16 = 30,
  RF_Q_INT8 = 200 /* our own; in no file */
} rf_quant_kind;

typedef struct rf_quant_type {
  const char *name; /* "q4_0", as typed */
  int number;       /* ggml's number; our own for types that are only in memory */
  int values;       /* of a block */
  int bytes;        /* of a block */
  int fallback;     /* type for rows that are not a whole number of blocks; -1: not needed */
  /* Converts `blocks` blocks at any address (files are not aligned). NULL: only the type's size
   * is known. */
  void (*dequantize)(const void *from, int64_t blocks, float *out);
  void (*quantize)(const float *values, int64_t blocks, void *out);
  /* bytes before a row's blocks (one scale for the row); then `from` and `out` are such a row. 0
   * for types in files */
  int head;
} rf_quant_type;

extern const rf_quant_type RF_QUANT_TYPES[];
extern const int RF_QUANT_TYPE_COUNT;
const rf_quant_type *rf_quant_type_of(int64_t number);      /* NULL: no such type */
const rf_quant_type *rf_quant_type_named(const char *name); /* any letter case; NULL: no such type */
double
rf_quant_bits(const rf_quant_type *type); /* bits of one value, with its share of the scales: 4.5 for q4_0 */

/* One tensor of a GGUF or llama2.c file. `shape` is row-major (the last axis is contiguous), the
 * reverse of ggml's order. Blocks run along the last axis. */
typedef struct rf_quant_tensor {
  const char *name;
  const rf_quant_type *type;
  int rank;
  int64_t shape[RF_QUANT_RANK];
  int64_t count, bytes;
  const void *data; /* in the mapped file, not aligned */
} rf_quant_tensor;

/* Reads elements [first, first + count) as f32; they may start inside a block. RAFTER_FAILED if
 * the range is outside or the type cannot be read. */
rf_status rf_quant_read(const rf_quant_tensor *tensor, int64_t first, int64_t count, float *out,
                        rf_error *error);

/* The storage type of a matrix with rows of `columns` values if `wanted` is requested: that type
 * or one of its fallbacks. */
const rf_quant_type *rf_quant_fit(const rf_quant_type *wanted, int64_t columns);

#endif
