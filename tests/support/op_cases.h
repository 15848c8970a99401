/* op_cases.h - the catalogue of test cases for all ops, shared by the tests of gradients, of
 * kernels against the reference, and of fusion. */
#ifndef RF_TESTS_OP_CASES_H
#define RF_TESTS_OP_CASES_H

#include "support/op_harness.h"

/* Sizes of a case. Each family of ops reads the fields that it needs. */
typedef struct op_size {
  int64_t rows;    /* n or M */
  int64_t width;   /* D or K: length of sums */
  int64_t columns; /* N, F or V */
  int32_t heads, kv_heads, head_dim;
} op_size;

/* Variations of a case. */
enum {
  OP_TRANSPOSE = 1 << 0,
  OP_BIAS = 1 << 1,
  OP_GELU = 1 << 2,
  OP_RESIDUAL = 1 << 3,
  OP_DROPOUT = 1 << 4,
  OP_KEEP_U = 1 << 5,
  OP_ADD = 1 << 6,         /* gradients add to existing values */
  OP_MICRO = 1 << 7,       /* second microbatch of a step: also adds */
  OP_FIRST_MICRO = 1 << 8, /* first microbatch: writes */
  OP_RESIDUE = 1 << 9,     /* norms' backward with dres */
  OP_WINDOW = 1 << 10,
  OP_SEGMENTS = 1 << 11,
  OP_BF16_SOFTMAX = 1 << 12,
  OP_IGNORED = 1 << 13,   /* some labels are -1 */
  OP_POSITIONS = 1 << 14, /* embed with a position table */
  OP_INVERSE = 1 << 15,   /* head: temperature 0.7 */
  OP_CLIP = 1 << 16,
  OP_WEIGHT = 1 << 17,
  OP_DECAY = 1 << 18,
  /* attention_kv: all rows belong to one slot; otherwise one row per slot, with one idle slot */
  OP_PREFILL = 1 << 19,
  OP_SOFTCAP = 1 << 21,
  OP_TABLE = 1 << 23, /* rope: a divisor for each pair */
  /* embed: rows times a factor; norms: offset 1; rope: fewer rotated elements, frequencies scaled
   * as in Llama 3 */
  OP_SCALED = 1 << 22,
  OP_NARROW = 1 << 23, /* attention_kv: an i8 cache; head, in bf16: a gradient of logits in bf16 */
  OP_GROUP = 1 << 24,  /* attention over parts or a cache: the chip of rank 0 in a group of two */
  OP_EXACT = 1 << 20,  /* The definition includes the bits: every kernel gives those of the reference. */
};

typedef struct op_case {
  const char *op, *name;
  void (*build)(op_harness *h, const struct op_case *of, const op_size *size);
  const op_size *sizes; /* ends with rows == 0; the first ones are small enough for finite differences */
  unsigned flags;
} op_case;

extern const op_case OP_CASES[]; /* ends with op == NULL */
enum { OP_SMALL_SIZES = 2 };     /* number of small sizes of a case */

/* Makes a harness with the ops of the case. The last op is the one under test. */
op_harness *op_case_build(const op_case *of, const op_size *size, rf_dtype dtype);
/* The tolerance of the op for this output. If a gradient of a logit is near the middle between two
 * bf16 numbers, kernels may round it to either number. The two numbers differ by at most 2^-7 of
 * the gradient, as two results in bf16 do. So sums of rounded gradients have the tolerance of
 * bf16. */
double op_tolerance(const rf_op *op, const rf_tensor *output);

/* A fused op and the ops that it replaces, in one graph, with pairs of tensors that must be equal
 * to the bit. */
enum { OP_MAX_EQUALS = 6 };
typedef struct op_fusion {
  const char *name;
  void (*build)(op_harness *h, const struct op_fusion *of, const op_size *size, int equal[OP_MAX_EQUALS][2],
                int *equals);
  const op_size *sizes;
  unsigned flags;
} op_fusion;
extern const op_fusion OP_FUSIONS[]; /* ends with name == NULL */

#endif
