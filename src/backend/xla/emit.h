/* emit.h - writes a graph as one StableHLO module. Each op of the op table has an emitter: a row in
 * one of the tables RF_EMIT_... The module computes a whole step. Its arguments are the persistent
 * tensors that the step reads, the inputs of the graph, and the values of rf_run_inputs. */
#ifndef RF_XLA_EMIT_H
#define RF_XLA_EMIT_H

#include "backend/backend.h"
#include "backend/xla/hlo.h"

enum { RF_EMIT_KEPT = 16, RF_EMIT_KEPT_VALUES = 6 };
/* Abilities of a platform's compiler. All false: a CPU. */
typedef struct rf_emit_target {
  bool bf16_products; /* products of bf16 are much faster than products of f32 */
  bool ragged_dot;    /* the compiler has chlo.ragged_dot, for products of consecutive groups of rows */
  bool tiles;         /* f32 arrays are stored in tiles of 8 rows and 128 columns */
  bool cudnn;         /* the compiler can compute attention with one call of cuDNN */
  bool known;         /* a program for known inputs (rf_emit_known) is faster than a program for all inputs */
  /* Gradients of logits are rounded to bf16 before a product whose result is bf16. Otherwise these
   * gradients become sums of two bf16 numbers, which keep 16 bits and cost twice the work. */
  bool one_bf16;
  bool narrow_bias; /* the compiler adds a bias in bf16 to a product of bf16 */
  /* a product of two rows and a matrix is much faster than a product of one row */
  bool two_rows;
  bool joins_late; /* the compiler moves a concatenation into the operations that read its result */
  int columns;     /* products are much faster with a multiple of this many columns; 0: any */
  /* bytes of the logits of a chunk in f32, if large chunks are faster; 0: small chunks */
  int64_t head_bytes;
  const char *flags; /* options with which the compiler computes the formulas as written; NULL: none */
  /* options with which a profiler can name the kernels of the program; NULL: none */
  const char *traced_flags;
} rf_emit_target;

/* Facts that the host knows about the inputs of a run. A program for these facts has wrong results
 * for other inputs. If all fields are 0, the program is for all inputs. */
typedef struct rf_emit_known {
  bool whole_rows; /* each row of a training batch is one segment */
  bool greedy;     /* `sample` draws no token */
  bool unfiltered; /* no sequence uses top-k, top-p or min-p */
  int64_t reach;   /* every key that a row sees in a cache is at a position below this number; 0: unknown */
} rf_emit_known;

/* State while a graph is written. Emitters of ops use the functions below. */
typedef struct rf_emit {
  rf_hlo *h;
  const rf_graph *graph;
  rf_pool *pool;   /* memory pool that lives as long as the emitter */
  int64_t rows;    /* number of rows of the program, at most graph->rows */
  rf_val *value;   /* current value of each tensor; no value: no op has written the tensor */
  const rf_op *op; /* op that is being written */
  rf_emit_target target;
  int64_t head_bytes;      /* maximum bytes of a chunk of logits in f32; 0: the emitter chooses */
  int64_t attention_block; /* see rf_emit_options */
  bool codes;              /* see rf_emit_options */
  rf_emit_known known;
  rf_val ok;             /* bool scalar: true if all probes so far are finite; no value: no probe so far */
  bool ok_everywhere;    /* true: `ok` includes the probes of all chips */
  rf_val probed;         /* element that the op's probe checks (f32 scalar), if the emitter sets it */
  const rf_op *left_out; /* see rf_emit_options */
  rf_status status;      /* the first failure, with `error` */
  rf_error *error;
  struct {
    int what, tensor;
    int64_t of;
    rf_val value[RF_EMIT_KEPT_VALUES];
  } kept[RF_EMIT_KEPT]; /* values of rf_emit_keep; empty at both ends of a loop over microbatches */
  int kept_count;
  struct {
    rf_val seed;        /* ui64 scalar */
    rf_val step;        /* i32 scalar, from 1 */
    rf_val micro;       /* i32 scalar: number of the microbatch in the step, from 0 */
    rf_val first_token; /* i64 scalar: number of tokens of this step before this microbatch, on one chip */
    rf_val loss_scale;  /* f32 scalar */
    rf_val lr;          /* f32 scalar */
  } run;
} rf_emit;

typedef struct rf_emitter {
  const rf_op_def *def;                      /* NULL ends a table */
  void (*emit)(rf_emit *e, const rf_op *op); /* NULL: XLA cannot run the op; `why` has the reason */
  const char *why;
} rf_emitter;
extern const rf_emitter RF_EMIT_POINTWISE[], RF_EMIT_NORM[], RF_EMIT_EMBED[], RF_EMIT_ROPE[],
    RF_EMIT_MATMUL[], RF_EMIT_LORA[], RF_EMIT_OPTIMIZER[], RF_EMIT_ATTENTION[], RF_EMIT_CACHE[],
    RF_EMIT_LATENT[], RF_EMIT_PART[], RF_EMIT_HEAD[], RF_EMIT_EXPERTS[], RF_EMIT_GROUPED[],
    RF_EMIT_COLLECTIVE[], RF_EMIT_SAMPLE[], RF_EMIT_LOSSES[];
/* The emitter of an op; NULL: none (a test fails for such an op). */
const rf_emitter *rf_emitter_of(const rf_op_def *def);

/* ---- for the emitters of ops ----------------------------------------------------------------- */

/* Value of input `slot`; no value if the slot is empty. A value may have fewer rows than its
 * tensor, so emitters take shapes from values. */
rf_val rf_emit_in(const rf_emit *e, const rf_op *op, int slot);
/* The value of rf_emit_in, converted to f32, which is the type of all arithmetic. */
rf_val rf_emit_wide(const rf_emit *e, const rf_op *op, int slot);
bool rf_emit_wants(const rf_op *op, int slot); /* whether output `slot` exists */
/* Type of a tensor in the module. f64 tensors (sums) become f32. A KV cache in bf16 is an array of
 * u16 with the same bits, because compilers for CPUs convert a whole bf16 array to f32 to update or
 * gather a part. */
rf_hlo_type rf_emit_type(const rf_emit *e, int tensor);
rf_hlo_type rf_emit_out_type(const rf_emit *e, const rf_op *op, int slot);
/* Sets output `slot` to v, converted to the tensor's type (round to nearest even). If the output
 * accumulates, adds v to the present value. Does nothing for an empty slot. */
void rf_emit_out(rf_emit *e, const rf_op *op, int slot, rf_val v);
/* Values that several ops share, such as masks. There are RF_EMIT_KEPT_VALUES values for each
 * combination of an input tensor of the graph, a kind `what` and a number `of`. At the first call,
 * the elements of the result have no value. */
enum { RF_KEEP_SEGMENTS, RF_KEEP_REACH, RF_KEEP_PAGES, RF_KEEP_ITEMS };
rf_val *rf_emit_keep(rf_emit *e, int what, int tensor, int64_t of);
/* For sums that continue in place from the present value. rf_emit_start gives the value from which
 * output `slot` starts (no value: from 0). rf_emit_set sets the result, and does not add the
 * present value again. */
rf_val rf_emit_start(const rf_emit *e, const rf_op *op, int slot);
void rf_emit_set(rf_emit *e, const rf_op *op, int slot, rf_val v);
/* Number of rows in the module of a tensor with `bound` rows (rf_rows_of_pass). */
int64_t rf_emit_rows(const rf_emit *e, int64_t bound);
/* Fails the emission, because this form of the op cannot be written. `why` is the reason. */
void rf_emit_refuse(rf_emit *e, const char *why);

/* Rounds v to the tensor type of output `slot`, and converts the result back to f32. */
rf_val rf_emit_rounded(rf_emit *e, const rf_op *op, int slot, rf_val v);
/* A row vector (D) or column vector (n) repeated to (n,D). */
rf_val rf_emit_across_rows(rf_emit *e, rf_val vector, int64_t rows);
rf_val rf_emit_across_columns(rf_emit *e, rf_val vector, int64_t columns);

/* The product a b, with transposed operands as in rf_hlo_matmul. Operands of the same type are
 * multiplied in this type. Operands of different types are multiplied in f32. */
rf_val rf_emit_product(rf_hlo *h, rf_val a, bool a_transposed, rf_val b, bool b_transposed, rf_hlo_type type);

/* Returns the value of each row's segment, i32 (rows). `segments` has the starts of segments, i32
 * (rows + 1). `values` has the value of each segment, i32 (rows + 1), not negative and
 * ascending. */
rf_val rf_emit_of_segments(rf_hlo *h, rf_val segments, rf_val values, int64_t rows);

/* GELU (tanh form), its derivative, and the softcap, in f32. */
rf_val rf_emit_gelu(rf_hlo *h, rf_val u);
rf_val rf_emit_gelu_slope(rf_hlo *h, rf_val u);
rf_val rf_emit_softcap(rf_hlo *h, rf_val x, float cap); /* cap 0: x */
rf_val rf_emit_softcap_slope(
    rf_hlo *h, rf_val capped,
    float cap); /* derivative of the softcap, computed from the softcap's result; no value if `cap` is 0 */
/* Applies the dropout of the op's attributes to an (n, D) value, with the random numbers of the
 * CPU's Philox. Rate 0: v. */
rf_val rf_emit_drop(rf_emit *e, const rf_op *op, rf_val v);

/* Bool scalar: true if the first element of x is NaN. An operation that depends on this scalar
 * cannot start before x is known. A barrier would not delay the operation, because the TPU compiler
 * removes barriers before it orders the operations. */
rf_val rf_emit_is_nan(rf_hlo *h, rf_val x);

/* The groups of chips over `axes`, in order of rank, and this chip's rank in its group (i32
 * scalar). */
rf_hlo_groups rf_emit_groups(rf_emit *e, rf_axes axes);
rf_val rf_emit_rank(rf_emit *e, rf_axes axes);

/* ---- whole graphs ---------------------------------------------------------------------------- */

/* Words (u32) of the argument that has the values of rf_run_inputs. In whole graphs, MICRO and
 * FIRST_TOKEN are not read, because the module counts microbatches. */
enum {
  RF_RUN_SEED,
  RF_RUN_SEED_HIGH,
  RF_RUN_STEP,
  RF_RUN_LOSS_SCALE,
  RF_RUN_LR,
  RF_RUN_MICRO,
  RF_RUN_FIRST_TOKEN,
  RF_RUN_WORDS
};

void rf_emit_run_words(const rf_run_inputs *run, uint32_t word[RF_RUN_WORDS]);

/* An argument or a result of the module. */
typedef struct rf_emit_port {
  /* id of the tensor; RF_NONE: the argument has the words of rf_run_inputs, or the result has the values of
   * probes */
  int tensor;
  /* of a result: the argument whose memory the result reuses, or -1; of an argument: this result, or
   * -1 */
  int alias;
  rf_val of; /* type and shape */
} rf_emit_port;
typedef struct rf_emitted {
  char *text; /* free() */
  size_t bytes;
  rf_emit_port *argument, *result; /* free() */
  int arguments, results;
  int probes; /* number of probes; their result is f32 (probes) with the probed values */
  int *probe; /* op of each probe; free() */
  int replicas;
} rf_emitted;

/* True if a sequence of a training step may be longer than a row of the batch, or may begin inside
 * a row. Training on a policy loss or on pairs has such sequences. */
bool rf_emit_packs(const rf_graph *graph);
/* True if each microbatch of a step has its own value of this output. Then the module returns all
 * values, and the first dimension of the result counts microbatches. */
bool rf_emit_of_each(const rf_graph *graph, int tensor);

typedef struct rf_emit_options {
  int64_t rows;     /* number of rows; 0: all rows of the graph */
  bool no_donation; /* arguments keep their buffers */
  rf_emit_known known;
  rf_emit_target target;
  /* maximum bytes of a chunk of logits in f32; a chunk has one row or more. 0: the emitter chooses */
  int64_t head_bytes;
  /* maximum tokens of a block of attention, a multiple of 16; 0: the emitter chooses */
  int64_t attention_block;
  /* For tests: a collective of the graph that exchanges nothing. Instead, each chip repeats its own
   * values. */
  const rf_op *left_out;
  /* true: quantised int8 matrices are arrays of codes without scales. A program with codes uses the
   * memory and does the work of the plan, but computes wrong results. So such a program is
   * compiled, but not run. */
  bool codes;
} rf_emit_options;
/* Abilities of the compiler of a platform. A plugin names its platform "cpu", "tpu" or "cuda". */
rf_emit_target rf_emit_target_of(const char *platform);
/* The facts that are usually true, if the target has programs for known inputs. In training, each
 * row is one segment. In generation, decoding is greedy and reads the whole context. With several
 * chips, generation has no such facts, because the inputs of the chips differ. */
rf_emit_known rf_emit_usual(const rf_graph *graph, const rf_emit_target *target);
/* The target's flags and `more` (may be NULL), for rf_xla_compile. `traced`: flags for a run whose
 * ops are timed. free() */
char *rf_emit_flags(const rf_emit_target *target, bool traced, const char *more);
/* Returns RAFTER_INVALID if the graph has an op without an emitter. The error has the reason. */
rf_status rf_emit_graph(const rf_graph *graph, const rf_emit_options *options, rf_emitted *out,
                        rf_error *error);
/* Writes only the ops [first, first + count), as a module for tests. The arguments are all tensors
 * that an op reads before any op writes the tensor. The results are all tensors that these ops
 * write. `micro` is the number of the microbatch, which decides whether gradients add to earlier
 * values. `options` may be NULL. */
rf_status rf_emit_ops(const rf_graph *graph, const rf_emit_options *options, int first, int count, int micro,
                      rf_emitted *out, rf_error *error);
void rf_emitted_free(rf_emitted *of);

#endif
