/* hlo.h - builds the text of one StableHLO module. Each function appends one operation in MLIR's
 * generic form and returns its value. Shapes are static. A wrong operand is a fault of the emitter.
 * Then rf_hlo_fault reports the operand, and the module is not used. The operations:
 * github.com/openxla/stablehlo, docs/spec.md. */
#ifndef RF_XLA_HLO_H
#define RF_XLA_HLO_H

#include "base/base.h"

typedef enum rf_hlo_type {
  RF_HLO_F32,
  RF_HLO_BF16,
  RF_HLO_F16,
  RF_HLO_F64,
  RF_HLO_I32,
  RF_HLO_I64,
  RF_HLO_I8,
  RF_HLO_U8,
  RF_HLO_U16,
  RF_HLO_U32,
  RF_HLO_U64,
  RF_HLO_BOOL,
  RF_HLO_TYPES
} rf_hlo_type;
const char *rf_hlo_type_name(rf_hlo_type type); /* "f32", "bf16", "i32", "ui32", "i1" */

enum { RF_HLO_RANK = 6 };
/* An SSA value: its number, its type and its shape. */
typedef struct rf_val {
  int32_t id; /* negative: no value */
  rf_hlo_type type;
  int rank;
  int64_t dim[RF_HLO_RANK];
} rf_val;
#define RF_NO_VAL ((rf_val){.id = -1})
int64_t rf_val_count(rf_val v);

/* The text of a module. */
typedef struct rf_hlo rf_hlo;
rf_hlo *rf_hlo_new(void); /* NULL: no memory */
void rf_hlo_free(rf_hlo *h);
/* Returns a text about the first wrong operand, or NULL. *name gets the location of its
 * operation. */
const char *rf_hlo_fault(const rf_hlo *h, const char **name);
/* All later operations get `name` as their location; NULL: no location. The name must stay
 * valid. */
void rf_hlo_name(rf_hlo *h, const char *name);

/* ---- the function main ----------------------------------------------------------------------- */

/* Adds an argument of main and returns the argument's value. */
rf_val rf_hlo_argument(rf_hlo *h, rf_hlo_type type, int rank, const int64_t *dim);
/* Adds a result of main and returns the index of the result. `donated` is the index of an argument
 * of the same shape whose memory the result reuses, or -1. */
int rf_hlo_result(rf_hlo *h, rf_val v, int donated);
/* Ends the module for `replicas` devices. The caller frees the text with free(); NULL: no
 * memory. */
char *rf_hlo_finish(rf_hlo *h, const char *module, int replicas, size_t *bytes);

/* ---- values without operands ----------------------------------------------------------------- */

#define RF_DIMS(...) \
  (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { __VA_ARGS__ }
rf_val rf_hlo_scalar(rf_hlo *h, rf_hlo_type type, double value); /* -inf is allowed */
rf_val rf_hlo_scalar_u64(rf_hlo *h, rf_hlo_type type, uint64_t value);
/* An array in which every element is `value`, such as rf_hlo_full(h, RF_HLO_F32, 0, RF_DIMS(4,
 * 8)). */
rf_val rf_hlo_full(rf_hlo *h, rf_hlo_type type, double value, int rank, const int64_t *dim);
rf_val rf_hlo_full_like(rf_hlo *h, rf_val like, double value);
/* A one-dimensional array of constants. */
rf_val rf_hlo_list(rf_hlo *h, rf_hlo_type type, int64_t count, const double *value);
/* An array in which the value of each element is its index along `axis`. */
rf_val rf_hlo_iota(rf_hlo *h, rf_hlo_type type, int axis, int rank, const int64_t *dim);

/* ---- elementwise ----------------------------------------------------------------------------- */

#define RF_HLO_UNARY(X) \
  X(negate) \
  X(exponential) \
  X(log) \
  X(sqrt) \
  X(rsqrt) \
  X(tanh) X(logistic) X(abs) X(cosine) X(sine) X(round_nearest_even) X(is_finite) X(exponential_minus_one)
/* A scalar operand is broadcast to the shape of the other operand. */
#define RF_HLO_BINARY(X) \
  X(add) \
  X(subtract) \
  X(multiply) \
  X(divide) X(maximum) X(minimum) X(and) X(or) X(xor) X(remainder) X(shift_left) X(shift_right_logical)
#define RF_HLO_DECLARE(name) rf_val rf_hlo_##name(rf_hlo *h, rf_val a);
RF_HLO_UNARY(RF_HLO_DECLARE)
#undef RF_HLO_DECLARE
#define RF_HLO_DECLARE(name) rf_val rf_hlo_##name(rf_hlo *h, rf_val a, rf_val b);
RF_HLO_BINARY(RF_HLO_DECLARE)
#undef RF_HLO_DECLARE
rf_val rf_hlo_erfc(rf_hlo *h, rf_val a); /* 1 - erf(a) */
/* Computes `a op constant`, in the type of a. */
rf_val rf_hlo_add_c(rf_hlo *h, rf_val a, double c);
rf_val rf_hlo_multiply_c(rf_hlo *h, rf_val a, double c);
rf_val rf_hlo_maximum_c(rf_hlo *h, rf_val a, double c);
typedef enum rf_hlo_order { RF_HLO_EQ, RF_HLO_NE, RF_HLO_LT, RF_HLO_LE, RF_HLO_GT, RF_HLO_GE } rf_hlo_order;
rf_val rf_hlo_compare(rf_hlo *h, rf_hlo_order order, rf_val a, rf_val b); /* scalars broadcast */
rf_val rf_hlo_compare_c(rf_hlo *h, rf_hlo_order order, rf_val a, double c);
rf_val rf_hlo_select(rf_hlo *h, rf_val where, rf_val a, rf_val b); /* scalars broadcast */
rf_val rf_hlo_convert(rf_hlo *h, rf_val a, rf_hlo_type type);      /* no operation if equal */
rf_val rf_hlo_bitcast(rf_hlo *h, rf_val a, rf_hlo_type type);      /* types of equal size */
/* Rounds f32 values to bf16. The result is still f32. A compiler may remove a pair of conversions,
 * but keeps this operation. */
rf_val rf_hlo_round_bf16(rf_hlo *h, rf_val a);

/* ---- shapes ---------------------------------------------------------------------------------- */

rf_val rf_hlo_reshape(rf_hlo *h, rf_val a, int rank, const int64_t *dim);
/* Dimension i of `a` becomes dimension axis[i] of the result. `a` is repeated along all other
 * dimensions. */
rf_val rf_hlo_broadcast(rf_hlo *h, rf_val a, const int *axis, int rank, const int64_t *dim);
/* dimension i of the result is dimension axis[i] of a */
rf_val rf_hlo_transpose(rf_hlo *h, rf_val a, const int *axis);
/* Selects [begin, end) along dimension `axis`, and everything along all other dimensions. */
rf_val rf_hlo_slice(rf_hlo *h, rf_val a, int axis, int64_t begin, int64_t end);
rf_val rf_hlo_concatenate(rf_hlo *h, int axis, int count, const rf_val *part);
rf_val rf_hlo_pad(rf_hlo *h, rf_val a, int axis, int64_t before, int64_t after, double value);
/* `start` has one i32 scalar for each dimension. */
rf_val rf_hlo_dynamic_slice(rf_hlo *h, rf_val a, const rf_val *start, const int64_t *size);
rf_val rf_hlo_dynamic_update(rf_hlo *h, rf_val a, rf_val part, const rf_val *start);

/* ---- products, reductions, indexed access ---------------------------------------------------- */

/* Dimensions of a product. Dimensions are numbered from 0. Each list ends with -1. The result has
 * the batch dimensions, then the other dimensions of a, then the other dimensions of b. */
typedef struct rf_hlo_dot {
  int a_batch[4], b_batch[4], a_sum[4], b_sum[4];
} rf_hlo_dot;
/* Products of f32 operands have full f32 precision. Products of bf16 operands are summed in f32.
 * `type` is the type of the result. */
rf_val rf_hlo_dot_general(rf_hlo *h, rf_val a, rf_val b, rf_hlo_dot of, rf_hlo_type type);
/* Multiplies (m,k) by (k,n). A transposed operand has the shape (k,m) or (n,k). */
rf_val rf_hlo_matmul(rf_hlo *h, rf_val a, bool a_transposed, rf_val b, bool b_transposed, rf_hlo_type type);

/* Products of groups of consecutive rows of a (R,K). `sizes` (E) has the number of rows of each
 * group. b_sum = 1: b is (E,K,N), and the result (R,N). b_sum = 2: b is (E,N,K), and the result
 * (R,N). b_sum = 0: b is (R,N), and the result (E,K,N) sums over the rows of each group. Only some
 * compilers have this operation. */
rf_val rf_hlo_ragged_dot(rf_hlo *h, rf_val a, rf_val b, rf_val sizes, int b_sum, rf_hlo_type type);

typedef enum rf_hlo_reduction { RF_HLO_SUM, RF_HLO_MAX, RF_HLO_MIN, RF_HLO_AND } rf_hlo_reduction;
rf_val rf_hlo_reduce(rf_hlo *h, rf_hlo_reduction how, rf_val a, int axis); /* removes dimension `axis` */
rf_val rf_hlo_reduce_all(rf_hlo *h, rf_hlo_reduction how, rf_val a);       /* a scalar */

/* Reads slices of `a`. A slice has extent 1 along the dimensions axis[0..k), and the full extent
 * along all other dimensions. `index` is i32 (..., k). The result has the dimensions of `index`
 * except the last, then the other dimensions of `a`. An index out of range is clamped. */
rf_val rf_hlo_gather(rf_hlo *h, rf_val a, rf_val index, int k, const int *axis);
/* The reverse of rf_hlo_gather: writes or adds the slices `update`. `update` has the shape that
 * rf_hlo_gather would return. A slice whose index is out of range is dropped. `unique` means that
 * no index occurs twice. */
rf_val rf_hlo_scatter(rf_hlo *h, rf_val a, rf_val index, rf_val update, int k, const int *axis, bool add,
                      bool unique);
/* Gathers rows table[index[i], :] for `index`, i32 (n). */
rf_val rf_hlo_rows(rf_hlo *h, rf_val table, rf_val index);

/* The k largest values along the last dimension in descending order. Among equal values, the lower
 * index comes first. */
void rf_hlo_top_k(rf_hlo *h, rf_val a, int64_t k, rf_val *values, rf_val *indices);
/* A stable sort along `axis` by ascending `key`. `other`, if it has a value, is sorted in the same
 * way. */
void rf_hlo_sort(rf_hlo *h, int axis, rf_val *key, rf_val *other);

/* Calls a function that the compiler knows by the name `target`. `config` is its JSON text. Before
 * the call, result[0..results) has the types and shapes of the results. order[i] lists the
 * dimensions of result i, from the innermost in memory to the outermost. NULL: the last dimension
 * is the innermost. */
typedef struct rf_hlo_callee {
  const char *target, *config;
  int operands, results;
  const rf_val *operand;
  rf_val *result;
  const int *const *order;
} rf_hlo_callee;
void rf_hlo_call(rf_hlo *h, const rf_hlo_callee *of);

/* ---- control --------------------------------------------------------------------------------- */

enum { RF_HLO_CARRIED = 1024 };
/* A loop over i = 0 .. times-1 that carries values:
 *   rf_hlo_loop loop;
 *   rf_hlo_loop_begin(h, &loop, times, values, count);   // values[k] becomes the value inside
 *   ... compute new values from loop.i (i32) and values[] ...
 *   rf_hlo_loop_end(h, &loop, values);                   // values[k] becomes the value after
 * the loop */
typedef struct rf_hlo_loop {
  rf_val i;
  int count, first; /* first: number of the loop's first result value */
  const char *name;
} rf_hlo_loop;
void rf_hlo_loop_begin(rf_hlo *h, rf_hlo_loop *loop, int64_t times, rf_val *values, int count);
/* Begins a loop whose number of rounds is known only at run time. `times` is an i32 scalar. */
void rf_hlo_loop_begin_to(rf_hlo *h, rf_hlo_loop *loop, rf_val times, rf_val *values, int count);
void rf_hlo_loop_end(rf_hlo *h, rf_hlo_loop *loop, rf_val *values);
/* The compiler moves no operation across a barrier. values[i] becomes the value after the
 * barrier. */
void rf_hlo_barrier(rf_hlo *h, rf_val *values, int count);

/* ---- several devices ------------------------------------------------------------------------- */

/* Groups of replicas. Each of the `count` groups has `size` ids in order of rank. */
typedef struct rf_hlo_groups {
  int count, size;
  const int32_t *id; /* (count, size) */
} rf_hlo_groups;
rf_val rf_hlo_replica_id(rf_hlo *h); /* u32 scalar */
rf_val rf_hlo_all_gather(rf_hlo *h, rf_val a, int axis, rf_hlo_groups groups);
rf_val rf_hlo_reduce_scatter(rf_hlo *h, rf_val a, int axis, rf_hlo_groups groups); /* sum */
rf_val rf_hlo_all_reduce(rf_hlo *h, rf_hlo_reduction how, rf_val a, rf_hlo_groups groups);
/* Splits dimension `split` into one part per member, and joins the received parts along `join`. */
rf_val rf_hlo_all_to_all(rf_hlo *h, rf_val a, int split, int join, rf_hlo_groups groups);
/* Replica pair[i][0] sends to replica pair[i][1]. A replica that receives nothing gets zeros. */
rf_val rf_hlo_permute(rf_hlo *h, rf_val a, int pairs, const int32_t (*pair)[2]);

static inline bool rf_has(rf_val v) { return v.id >= 0; }

#endif
