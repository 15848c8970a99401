/* quant.h - storage types of GGUF files: blocks of values that share a scale, and the tensors
 * made of them. The layouts and the order of operations are ggml's (ggml-common.h,
 * ggml-quants.c, dequantize_row_*): the values that come out are its values to the bit. Letters:
 * d, m are scale and offset of a block (stored as f16, widened first), q the small integers. */
#ifndef RF_QUANT_H
#define RF_QUANT_H

#include "base/base.h"

enum { RF_QUANT_RANK = 4, RF_QUANT_BLOCK_MOST = 256 }; /* axes of a tensor; values of the largest block */

/* Numbers as they stand in files. */
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
  RF_Q_INT8 = 200 /* ours: no file has it */
} rf_quant_kind;

typedef struct rf_quant_type {
  const char *name; /* "q4_0", as it is typed */
  int number;       /* ggml's, but for types of this program's memory alone */
  int values;       /* of a block */
  int bytes;        /* of a block */
  int fallback;     /* number of the type for rows that are no whole number of blocks, -1: none is needed */
  /* `blocks` blocks at any address (files align to nothing). NULL: this program knows the type's
   * size only. */
  void (*dequantize)(const void *from, int64_t blocks, float *out);
  void (*quantize)(const float *values, int64_t blocks, void *out);
  /* bytes in front of a row's blocks, a scale for all of them; `from` and `out` above are such a
   * row then. Types of files have none */
  int head;
} rf_quant_type;

extern const rf_quant_type RF_QUANT_TYPES[];
extern const int RF_QUANT_TYPE_COUNT;
const rf_quant_type *rf_quant_type_of(int64_t number);      /* NULL: no such type */
const rf_quant_type *rf_quant_type_named(const char *name); /* any letter case; NULL: no such type */
double rf_quant_bits(const rf_quant_type *type);            /* of one value, scales counted: 4.5 for q4_0 */

/* One tensor of a GGUF or llama2.c file. shape is row-major (the last axis is contiguous):
 * ggml's order turned round. Blocks run along it. */
typedef struct rf_quant_tensor {
  const char *name;
  const rf_quant_type *type;
  int rank;
  int64_t shape[RF_QUANT_RANK];
  int64_t count, bytes;
  const void *data; /* in the mapped file, not aligned to anything */
} rf_quant_tensor;

/* Elements [first, first + count) as f32, wherever blocks begin. RAFTER_FAILED for a range
 * outside and for types this program cannot read. */
rf_status rf_quant_read(const rf_quant_tensor *tensor, int64_t first, int64_t count, float *out,
                        rf_error *error);

/* The type a matrix with rows of `columns` values is stored in when `wanted` is asked for:
 * itself, or what its fallbacks lead to. */
const rf_quant_type *rf_quant_fit(const rf_quant_type *wanted, int64_t columns);

#endif
