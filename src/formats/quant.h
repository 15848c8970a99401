/* quant.h - storage types of GGUF files: blocks of values that share a scale, and tensors made of
 * such blocks. Layouts and the order of operations are as in ggml (ggml-common.h; ggml-quants.c,
 * dequantize_row_*). So dequantized values have the same bits as ggml's values. In formulas, d is
 * the scale of a block, and m is its offset. Both d and m are stored as f16 and widened before use.
 * q is a small integer. */
#ifndef RF_QUANT_H
#define RF_QUANT_H

#include "base/base.h"

enum {
  RF_QUANT_RANK = 4,
  RF_QUANT_BLOCK_MAX = 256
}; /* maximum number of axes, and maximum number of values in a block */

/* Storage types, with the numbers of GGUF files. */
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
  RF_Q_INT8 = 200 /* rafter's own number: files do not have this type */
} rf_quant_kind;

typedef struct rf_quant_type {
  const char *name; /* name that users type, such as "q4_0" */
  int number;       /* ggml's number, or rafter's own number if the type exists only in memory */
  int values;       /* number of values in a block */
  int bytes;        /* bytes of a block */
  int fallback;     /* the type for rows that are not a multiple of the block; -1: none */
  /* Convert `blocks` blocks. NULL: not supported. The blocks may be unaligned, because files do not
   * align blocks. */
  void (*dequantize)(const void *from, int64_t blocks, float *out);
  void (*quantize)(const float *values, int64_t blocks, void *out);
  /* Bytes of the scale before the blocks of a row. If `head` is not 0, `from` and `out` point to
   * this scale. `head` is 0 for all types that files have. */
  int head;
} rf_quant_type;

extern const rf_quant_type RF_QUANT_TYPES[];
extern const int RF_QUANT_TYPE_COUNT;
const rf_quant_type *rf_quant_type_of(int64_t number); /* NULL: unknown number */
/* the case of letters does not matter; NULL: unknown name */
const rf_quant_type *rf_quant_type_named(const char *name);
/* Bits per value, including the value's share of the scales: 4.5 for q4_0. */
double rf_quant_bits(const rf_quant_type *type);

/* One tensor of a GGUF or llama2.c file. The last axis of `shape` is contiguous. A GGUF file lists
 * this axis first. Each block is a range along the last axis. */
typedef struct rf_quant_tensor {
  const char *name;
  const rf_quant_type *type;
  int rank;
  int64_t shape[RF_QUANT_RANK];
  int64_t count, bytes;
  const void *data; /* address in the mapped file, may be unaligned */
} rf_quant_tensor;

/* Reads elements [first, first + count) as f32. The range may start in the middle of a block.
 * RAFTER_FAILED: the range is outside the tensor, or the type cannot be read. */
rf_status rf_quant_read(const rf_quant_tensor *tensor, int64_t first, int64_t count, float *out,
                        rf_error *error);

/* Returns the storage type for rows of `columns` values. The result is `wanted` if a row can be
 * divided into blocks of this type, otherwise a fallback with smaller blocks. */
const rf_quant_type *rf_quant_fit(const rf_quant_type *wanted, int64_t columns);

#endif
