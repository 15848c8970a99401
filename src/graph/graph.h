/* graph.h - the graph of a job. A graph holds every tensor and op of one training step (forward,
 * loss, backward, clipping, optimizer), or of one forward pass over a KV cache. The graph says what
 * a job computes. Devices, memory offsets and times are not part of a graph.
 *
 * A step has three sections: `begin` runs once, `micro` runs once for each microbatch, `end` runs
 * once. `op[]` holds the ops of all sections in the order of execution. The passes (rf_pass_...)
 * rewrite a graph in place. */
#ifndef RF_GRAPH_H
#define RF_GRAPH_H

#include "graph/attr.h"
#include "graph/mesh/mesh.h"
#include "graph/ops/kept.h"
#include "graph/ops/list.h"
#include "model/model.h"
#include "formats/panels.h"

enum { RF_MAX_RANK = 4, RF_MAX_INPUTS = 8, RF_NONE = -1 };
enum { RF_TOP_MAX = 256 };
/* Elements of a row of the input `rules`, by which the op `sample` chooses a token. */
enum { RF_RULE_TEMPERATURE, RF_RULE_TOP_K, RF_RULE_TOP_P, RF_RULE_MIN_P, RF_RULE_UNIFORM, RF_RULES };
enum { RF_BARRED = 32 }; /* number of tokens that a row can bar */
enum { RF_WANTED = -2 }; /* value of an output or gradient slot: the op's rule creates the tensor */

/* Tensor ids for the slots of an op: RF_IDS(x, w, RF_NONE). Slots after the last id are empty. */
typedef struct rf_slots {
  const int *id;
  int count;
} rf_slots;
#define RF_IDS(...) \
  ((rf_slots){(const int[]){__VA_ARGS__}, (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int))})
#define RF_ALL_NEW ((rf_slots){0}) /* outputs: every slot is RF_WANTED */

typedef enum rf_class {
  RF_CLASS_WEIGHT,
  RF_CLASS_MASTER,
  RF_CLASS_GRADIENT,
  RF_CLASS_MOMENT,
  RF_CLASS_ADAPTER,
  RF_CLASS_ACTIVATION,
  RF_CLASS_LOGITS,
  RF_CLASS_KV,
  RF_CLASS_COLLECTIVE,
  RF_CLASS_WORKSPACE,
  RF_CLASS_IO,
  RF_CLASS_PADDING,
  RF_CLASSES
} rf_class;
const char *rf_class_name(rf_class class);

typedef enum rf_job_kind { RF_JOB_TRAIN, RF_JOB_GENERATE, RF_JOB_SCORE } rf_job_kind;
/* Marks tensors that the shard pass treats in a special way. */
typedef enum rf_role { RF_ROLE_NONE, RF_ROLE_TOKENS, RF_ROLE_GRADIENT_SUMS } rf_role;

typedef struct rf_tensor {
  const char *name; /* "block.3/mlp/up/out", "block.3/mlp/up/weight", "block.3/mlp/up/weight/grad" */
  rf_dtype dtype;
  rf_class class;
  rf_role role;
  int rank;
  int64_t shape[RF_MAX_RANK]; /* maximum extents: a forward pass may use fewer rows */
  /* For weights, masters, moments, adapters and gradients of parameters: index of the parameter in
   * the parameter table. RF_NONE for other tensors. */
  int param;
  /* true if the tensor keeps its bytes between steps, such as weights, moments and the KV cache */
  bool persistent;
  bool input;  /* true if the caller writes the tensor before each microbatch or forward pass */
  bool output; /* true if the caller reads the tensor after the step, such as metrics and logits */
  /* For an input: name of an output with the same shape. If a step follows another step on the device
   * (rf_run_inputs.follows), the input gets the value of this output. NULL: only the caller writes
   * the input. */
  const char *follows;
  /* True if the tensor is in the host's memory. The op offload_in reads such a tensor, and
   * offload_out writes it. */
  bool host;
  const char *reason; /* why the tensor exists, shown to people; may be NULL */
  rf_panels panels;   /* layout of the matrix, if dtype is RF_PACKED */
  rf_spec spec;       /* sharding of the tensor over the mesh; `shape` is the shape on one chip */
  /* code of the name in remat policies (RF_SAVED_AS in remat.h); 0: the tensor has no name there */
  int8_t saved;
  /* Number of memory slots; 0 means one slot. In a pipeline, several microbatches may need their
   * own value of the tensor at the same time. Microbatch i uses slot i % slots. Each slot has the
   * shape `shape`. */
  int32_t slots;
  /* In the plan of one pipeline stage that runs: a bit for each stage that stores the tensor. A
   * tensor that only other stages store has no bytes in this plan (rf_tensor_is_elsewhere). */
  uint64_t stages;
} rf_tensor;

typedef enum rf_section { RF_SECTION_BEGIN, RF_SECTION_MICRO, RF_SECTION_END, RF_SECTIONS } rf_section;

/* Products with the attribute `fast` round x to 8 bits, in blocks of RF_FAST_BLOCK values along k.
 * Each block has one scale. If the weight is int8, x is rounded to 16 bits in blocks of
 * RF_FAST_INT8_BLOCK values. */
enum { RF_FAST_BLOCK = 32, RF_FAST_INT8_BLOCK = 256 };
/* Number of values along k that share one scale. The weight's type decides the number. Blocks are
 * longer for q4_k and q5_k. Files that mix types store the matrices that are most sensitive to
 * rounding as q6_k. */
static inline int rf_fast_block_of(const rf_quant_type *type) {
  return type->number == RF_Q_Q4_K || type->number == RF_Q_Q5_K ? 128 : RF_FAST_BLOCK;
}

typedef enum rf_sublayer {
  RF_SUBLAYER_NONE,
  RF_SUBLAYER_EMBED,
  RF_SUBLAYER_ATTN,
  RF_SUBLAYER_MLP,
  RF_SUBLAYER_HEAD,
  RF_SUBLAYERS
} rf_sublayer;
const char *rf_sublayer_name(rf_sublayer sublayer); /* "embed", "attn", "mlp", "head"; NONE: NULL */
typedef struct rf_op_place {
  int32_t layer; /* number of the layer; RF_NONE: the op is outside all layers */
  rf_sublayer sublayer;
} rf_op_place;

struct rf_op_def;
struct rf_sharder;
typedef struct rf_sharding rf_sharding; /* defined in mesh/shard.h */
typedef struct rf_op {
  const struct rf_op_def *def;
  const char *name; /* "step/micro/block.11/mlp/down/bwd" */
  rf_section section;
  rf_op_place at;
  rf_attr attr;
  int input_count, output_count; /* number of slots; an empty slot has the id RF_NONE */
  int input[RF_MAX_INPUTS];      /* tensor ids */
  int output[RF_MAX_OUTPUTS];
  bool backward; /* the differentiate pass added this op */
  int32_t chunk; /* number of the run of layers that has the op, in a pipeline with several runs per stage */
  /* Id of the op that this op recomputes (remat), or RF_NONE. Both ops have the same def and
   * kernel. Exception: if the input u of a fused GELU is stored, this op is only the GELU. */
  int recompute_of;
} rf_op;

typedef struct rf_graph {
  rf_pool *pool; /* the pool owns all names and arrays */
  rf_job_kind job;
  rf_model model;
  rf_params params;
  int tensor_count, tensor_capacity, op_count, op_capacity;
  rf_tensor *tensor;
  rf_op *op;
  int accumulate;  /* microbatches in a step */
  rf_dtype matmul; /* dtype in which linear layers multiply; RF_DTYPES: they use the dtype of the operands */
  int64_t rows;    /* n: tokens in a microbatch */
  int64_t seq;     /* T: tokens in a sequence */
  rf_mesh mesh;    /* mesh of the job: with several chips, the graph is the program of one chip */
  char scope[256]; /* path prefix of new ops while the graph is built */
  int32_t chunk;   /* value of rf_op.chunk for new ops */
  rf_op_place at;  /* value of rf_op.at for new ops */
} rf_graph;

/* Work of an op, for the planner and reports. A multiply-add counts as two FLOPs. Only matrix
 * products and attention count FLOPs. Other ops count only bytes. Bytes count each operand once.
 *
 * `flops` and `flops_full` count the model's arithmetic. In attention, `flops` counts only the
 * (query, key) pairs that the causal mask allows, and `flops_full` counts all pairs. `flops_again`
 * counts other arithmetic. For example, attention_bwd recomputes scores, and head_loss_bwd
 * recomputes logits. Experts may have more reserved rows than an even distribution fills. */
typedef struct rf_work {
  double flops, flops_full, bytes_read, bytes_written, flops_again;
  /* Bytes of an array over all chips, for a collective. Bytes that are copied to or from the host,
   * for an offload. */
  double sent_bytes;
} rf_work;

/* The output may use the input's memory if no later op reads the input. Therefore no kernel of the
 * op may read element i of the input after it has written element i of the output. */
typedef struct rf_inplace {
  int output, input;
} rf_inplace;

/* Expected number of distinct experts that `rows` rows choose, if each row chooses `used` experts
 * at random. With E = `experts`, this number is E * (1 - (1 - used / E)^rows). */
double rf_experts_met(double experts, double used, double rows);

/* The kind of work of an op; reports group ops by kind. */
typedef enum rf_kind {
  RF_KIND_ELEMENTWISE,
  RF_KIND_EMBED,
  RF_KIND_NORM,
  RF_KIND_MATMUL,
  RF_KIND_ATTENTION,
  RF_KIND_CACHE,
  RF_KIND_EXPERTS,
  RF_KIND_HEAD,
  RF_KIND_OPTIMIZER,
  RF_KIND_EXCHANGE,
  RF_KINDS
} rf_kind;

/* How the time of an op is predicted: from bytes, or from FLOPs and an efficiency. */
typedef enum rf_timing {
  RF_TIMING_BYTES,
  RF_TIMING_PRODUCT,
  RF_TIMING_GROUPED, /* one product per expert */
  RF_TIMING_ATTENTION,
  RF_TIMING_ATTENTION_BACKWARD,
  RF_TIMING_OTHER_PRODUCTS
} rf_timing;

/* Measured rates of an op at several sizes form a curve. The size of an op is its work (WORK), the
 * number of elements of one head in a segment (SEGMENT), or the number of rows that share the
 * cached keys of one sequence (ROWS). */
typedef enum rf_curve_size { RF_CURVE_WORK, RF_CURVE_SEGMENT, RF_CURVE_ROWS } rf_curve_size;
/* Numbers of keys that a row of attention reads in calibration: for its curve, and for its curve of
 * long contexts. */
enum { RF_SHORT_CONTEXT = 192, RF_LONG_CONTEXT = 4096 };

/* Which product of a linear layer an op computes: the output, the gradient of the input (DX), or
 * the gradient of the weight (DW). */
typedef enum rf_product { RF_PRODUCT_NONE, RF_PRODUCT_FORWARD, RF_PRODUCT_DX, RF_PRODUCT_DW } rf_product;

/* Bits of rf_op_def.row_passes: passes over each row of logits in addition to the product. */
enum { RF_PASS_SUMS = 1, RF_PASS_SOFTCAP = 2, RF_PASS_LIKELIEST = 4, RF_PASS_GRADIENT = 8 };

/* The element of an op's results that a step checks. If this element is not finite, the step has
 * failed. FIRST: element 0 of output 0. INDEX: element `sums.element` of output 0. UPDATE: this
 * element of output 4. */
typedef enum rf_probe { RF_PROBE_NONE, RF_PROBE_FIRST, RF_PROBE_INDEX, RF_PROBE_UPDATE } rf_probe;

/* How an op moves bytes between chips, or between a chip and its host. */
typedef enum rf_exchange_kind {
  RF_EXCHANGE_NONE,
  RF_EXCHANGE_ALL_GATHER,
  RF_EXCHANGE_REDUCE_SCATTER,
  RF_EXCHANGE_ALL_REDUCE,
  RF_EXCHANGE_ALL_TO_ALL,
  RF_EXCHANGE_PERMUTE,
  RF_EXCHANGE_SEND,
  RF_EXCHANGE_RECV,
  RF_EXCHANGE_TO_HOST,
  RF_EXCHANGE_FROM_HOST,
  RF_EXCHANGE_WAIT, /* the op waits for an exchange that an op with the flag `starts` began */
  RF_EXCHANGES
} rf_exchange_kind;

#define RF_INPLACE(...) \
  .inplace = {__VA_ARGS__}, .inplace_count = (int)(sizeof((rf_inplace[]){__VA_ARGS__}) / sizeof(rf_inplace))
/* Codes for the inputs of a backward op: input i of the forward op (RF_X), output i of the forward
 * op (RF_Y), and the gradient of output i (RF_DY). */
#define RF_X(i) (1 + (i))
#define RF_Y(i) (RF_X(RF_MAX_INPUTS) + (i))
#define RF_DY(i) (RF_Y(RF_MAX_OUTPUTS) + (i))

enum { RF_TIMED_LIKE = 4 };
typedef struct rf_op_def {
  const char *name;
  rf_kind kind;
  const char *formula;               /* what the op computes, with the order of sums and the rounding */
  const char *inputs[RF_MAX_INPUTS]; /* name and shape, as "x (M,K)"; a trailing '?' marks an optional slot */
  const char *outputs[RF_MAX_OUTPUTS];
  /* field table of the op's attributes (attr.h), as RF_FIELDS_MATMUL; NULL: it has no attributes */
  const rf_field *fields;
  /* Checks the inputs and creates the outputs whose slots hold RF_WANTED. */
  rf_status (*shape)(rf_graph *graph, rf_op *op, rf_error *error);
  rf_work (*work)(const rf_graph *graph, const rf_op *op);
  rf_inplace inplace[4]; /* (output, input) pairs that may share memory: RF_INPLACE */
  int inplace_count;
  /* The op's backward op, and the backward op's inputs (RF_X, RF_Y, RF_DY). Output i of the
   * backward op is the gradient of input i of the forward op. Both ops have the same attributes. */
  struct {
    const struct rf_op_def *def;
    int8_t inputs[RF_MAX_INPUTS];
  } gradient;
  /* Emits the backward ops of an op for which `gradient` is not enough. grad_out[i] is the gradient
   * tensor of output i, or RF_NONE. grad_in[i] says what to make for input i: RF_NONE (nothing),
   * RF_WANTED (a new tensor, whose id replaces RF_WANTED), or the id of a parameter's gradient. */
  rf_status (*backward)(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in, rf_error *error);
  /* Chooses the sharding of operands and results on a mesh (mesh/shard.h). NULL: not shardable. */
  rf_status (*shard)(rf_sharding *sharding);
  /* Emits several ops in place of this op, if the mesh needs several ops. NULL: one op is
   * enough. */
  rf_status (*expand)(struct rf_sharder *sharder, const rf_op *op, bool *done);
  struct {
    float f32, bf16;
  } tolerance; /* largest error of a kernel against the reference, relative to the norm of the output */
  bool random; /* true if the op draws random numbers from the step's generator, as dropout does */
  bool loss;   /* true if backward starts at this op, with run->loss_scale as the gradient of its output */
  rf_probe probe;
  bool skips_rows; /* true if the op may leave rows of its first output as they are */
  /* index of the input with the log-sums of one chip's keys, which are minus infinity for a row
   * without keys; 0: no input has such sums */
  int log_sums;
  rf_exchange_kind exchange;
  /* true if the op only begins its exchange; exchange_wait of its output ends the exchange */
  bool starts;
  rf_timing timing;
  rf_curve_size curve_size;
  /* An op without a measured curve uses the curve of the first of these ops that has a curve. */
  const struct rf_op_def *timed_like[RF_TIMED_LIKE];
  /* name of the curve of products with an adapter's narrow weight; NULL: none exists */
  const char *narrow_curve;
  const char *long_curve; /* name of the curve of attention over RF_LONG_CONTEXT keys; NULL: none exists */
  rf_product product;
  bool packed;    /* true if input 1 may be packed; then each packed type has its own measured curve */
  int rows_slot;  /* number of the input whose first extent is the number of rows of the product */
  bool in_chunks; /* true if the rows are multiplied in chunks of rf_head_chunk_rows */
  unsigned (*row_passes)(const rf_op *op); /* RF_PASS_ bits; NULL: 0 */
  /* Fraction of the op's FLOPs that multiplies by the transposed matrix; NULL: 0. */
  double (*turned_share)(const rf_op *op);
  /* Fraction of the op's FLOPs that belongs to the forward pass. NULL: 1 for a forward op, 0 for
   * other ops. */
  double (*forward_share)(const rf_op *op);
  const rf_kept_rule *kept; /* arrays that XLA stores for backward; NULL: the default of rf_kept_rule_of */
} rf_op_def;

#define RF_DECLARE(NAME, name) extern const rf_op_def RF_OP_##NAME;
RF_OPS_LIST(RF_DECLARE)
#undef RF_DECLARE

/* Work of attention over a KV cache. */
typedef struct rf_cached {
  double flops_row,   /* FLOPs per row */
      flops_key,      /* FLOPs per (row, key) pair */
      position_bytes, /* bytes read per position */
      fixed_bytes;    /* bytes that are read at any context length */
  int table;          /* id of the page table */
  int64_t page;       /* positions in a page */
} rf_cached;
bool rf_op_is_cached(const rf_op *op);
rf_cached rf_cached_of(const rf_graph *graph, const rf_op *op);
/* Bytes of one position (token) in a cache tensor of shape (pages, parts, page, columns). */
double rf_cache_position_bytes(const rf_tensor *cache);

/* The table of all ops. It ends with NULL. */
extern const rf_op_def *const RF_OPS[];
const rf_op_def *rf_op_find(const char *name);
/* Ops that only move bytes. If a memory-bound op has no measured curve, it uses the curve of the
 * first op in this list that has a curve. */
extern const rf_op_def *const RF_OPS_OF_BYTES[];
static inline bool rf_op_is_exchange(const rf_op_def *def) { return def->exchange != RF_EXCHANGE_NONE; }
/* The tensors that XLA stores for the op's backward pass. An op without a rule counts as an
 * elementwise op whose input XLA stores. */
const rf_kept_rule *rf_kept_rule_of(const rf_op_def *def);
/* Field table of the op's attributes, including the attributes that every op has. */
const rf_field *rf_op_fields(const rf_op_def *def);
bool rf_attr_same(const rf_op *a, const rf_op *b);
/* Returns the attribute `fast` of a product (see attr.h). NULL: the op is not a product. */
bool *rf_attr_fast(const rf_op_def *def, rf_attr *attr);
bool rf_op_is_fast(const rf_op *op);
/* True if the op is a product with weights in codes of 4 to 8 bits. Only such products depend on
 * --compute. */
bool rf_op_may_be_fast(const rf_graph *graph, const rf_op *op);
/* Attributes may point into tables of a model. The function changes such pointers to point to
 * tables of `model`. */
void rf_attr_adopt(const rf_op_def *def, rf_attr *attr, const rf_model *model);

/* Name of the op's kind: "matmul", "attention", "norm". */
const char *rf_op_kind(const rf_op *op);
const char *rf_op_phase(const rf_op *op); /* "forward", "recompute", "backward", "optimizer" */

/* ---- building blocks ------------------------------------------------------------------------- */

rf_graph *rf_graph_new(const rf_model *model);
void rf_graph_free(rf_graph *graph);
/* Copies `graph`, but shares the names with the copy. So `graph` must outlive the copy. */
rf_graph *rf_graph_borrow(const rf_graph *graph);
int rf_graph_tensor(rf_graph *graph, const char *name, rf_class class, rf_dtype dtype, int rank,
                    const int64_t *shape);
/* Returns the id of the tensor with this name, or RF_NONE. */
int rf_graph_find(const rf_graph *graph, const char *name);
int64_t rf_tensor_count(const rf_tensor *tensor);
int64_t rf_tensor_bytes(const rf_tensor *tensor);
/* True if both tensors are stored in the same way: equal dtype, shape and panels. */
bool rf_tensor_same_storage(const rf_tensor *a, const rf_tensor *b);
/* True for the dtypes i8, i4 and fp8. Among such tensors, only int8 KV caches that have a tensor of
 * scales can run. The others can only be planned. */
bool rf_dtype_is_narrow(rf_dtype dtype);
/* Name of the tensor's dtype. For a packed matrix: the names of the types of its parts. */
const char *rf_tensor_type(const rf_tensor *tensor, char text[64]);
/* Returns the number of rows of a tensor that are used in a forward pass over `used` tokens. The
 * tensor has `bound` rows: one for each token, or one for each token and chosen expert. */
static inline int64_t rf_rows_of_pass(const rf_graph *graph, int64_t bound, int64_t used) {
  int64_t each = bound == graph->rows ? 1 : graph->model.experts_used;
  return bound == graph->rows * each && used > 0 && used < graph->rows ? used * each : bound;
}
/* Appends an op to `section`. Each entry of `outputs` is RF_WANTED, RF_NONE or a tensor's id. The
 * shape rule checks this tensor. Returns the op id, or RF_NONE with the error filled. */
int rf_graph_emit(rf_graph *graph, const rf_op_def *def, const char *name, rf_section section,
                  rf_slots inputs, rf_slots outputs, const rf_attr *attr, rf_error *error);
/* Appends an op, creates its outputs, and returns the tensor id of output 0. */
int rf_graph_make(rf_graph *graph, const rf_op_def *def, const char *name, rf_section section,
                  rf_slots inputs, const rf_attr *attr, rf_error *error);
/* True if the text of a slot ends in '?', so that the slot may be empty. */
bool rf_slot_optional(const char *slot);

/* The ops that read and write each tensor, in op order. The readers of tensor t are
 * reader[reader_at[t]] to reader[reader_at[t + 1] - 1]; writers likewise. Allocated in `pool`.
 * Later changes of the graph do not change these lists. */
typedef struct rf_uses {
  int *reader_at, *reader, *writer_at, *writer;
} rf_uses;
rf_uses rf_graph_uses(const rf_graph *graph, rf_pool *pool);

/* ---- passes, in their order ------------------------------------------------------------------ */

typedef enum rf_optimizer { RF_ADAMW, RF_ADAM } rf_optimizer;
/* Which activations the backward pass recomputes. With AUTO, the planner chooses. SAVE recomputes
 * all activations of a block except those that are named. Each further bit i of the policy names
 * RF_SAVED[i] (remat.h). */
typedef enum rf_remat {
  RF_REMAT_NONE,
  RF_REMAT_MLP,
  RF_REMAT_ATTN,
  RF_REMAT_MLP_ATTN,
  RF_REMAT_BLOCK,
  RF_REMAT_AUTO,
  RF_REMAT_SAVE = 1 << 16
} rf_remat;

enum { RF_REMAT_TEXT = 96 };
/* Text of a policy: "none", "mlp", "attn", "mlp+attn", "block", "auto" or "save:NAME,NAME". The
 * parser also accepts the names of sets ("minimal") and `+` between names. */
const char *rf_remat_write(rf_remat remat, char text[RF_REMAT_TEXT]);
rf_status rf_remat_parse(const char *text, rf_remat *remat, rf_error *error);
bool rf_remat_valid(rf_remat remat);
enum { RF_REMAT_NAMED = 12 };
/* Lists every named policy that recomputes something, without AUTO, and returns their number. */
int rf_remat_named(rf_remat list[RF_REMAT_NAMED]);
/* The text of a policy. The text is valid to the end of the enclosing C block. */
#define rf_remat_name(remat) rf_remat_write(remat, (char[RF_REMAT_TEXT]){0})

/* Kinds of tensors that the host's memory can hold: optimizer states, activations that backward
 * reads, the KV cache of a generate job, and the weights of layers. */
enum {
  RF_OFFLOAD_OPTIMIZER = 1,
  RF_OFFLOAD_ACTIVATIONS = 2,
  RF_OFFLOAD_KV = 4,
  RF_OFFLOAD_WEIGHTS = 8,
  RF_OFFLOADS = 4
};
/* Returns "optimizer", "activations", "kv" or "weights", for `bit` 0 to RF_OFFLOADS - 1. */
const char *rf_offload_name(int bit);
/* Parses names of offloads, separated by commas. RAFTER_INVALID: the error names the bad entry. */
rf_status rf_offload_parse(const char *text, unsigned *what, rf_error *error);

/* Which loss a training step minimizes. All losses are functions of the log-probability of each
 * token of a text.
 *
 * Graphs of POLICY (op policy_loss) and PAIRS (op pair_loss) have these inputs, with one f32 number
 * for each row, in the order of `labels`: "old_logprobs" and "advantages" (both only for POLICY),
 * "loss_weights", and "reference_logprobs" if the settings need a reference
 * (rf_objective_has_reference). A row whose label is -1 or whose weight is 0 has no loss. Segments
 * are sequences. For PAIRS, segment 2k is the preferred answer of pair k, and segment 2k + 1 the
 * other one.
 *
 * The graph has these outputs. metrics[0] is the sum of the losses of all rows. metrics[1] is the
 * number of labels. "nll" (rows) has the negated log-probabilities of the microbatch. For PAIRS,
 * "margins" (rows) has the margin of pair k in the first row of segment 2k. If
 * rf_run_inputs.loss_scale = 1, the gradient is the gradient of metrics[0]. */
typedef enum rf_objective { RF_OBJECTIVE_NLL, RF_OBJECTIVE_POLICY, RF_OBJECTIVE_PAIRS } rf_objective;

typedef struct rf_build_options {
  rf_job_kind job;
  rf_dtype dtype; /* dtype of weights and activations; with bf16, masters are f32 */
  rf_dtype softmax;
  rf_dtype head_gradient; /* train: bf16 rounds the gradient of logits, which needs dtype bf16 */
  int64_t microbatch; /* number of sequences in a microbatch (train, score), or number of slots (generate) */
  int64_t seq;        /* T: number of tokens of a training sequence, or the maximum context of a slot */
  /* generate: number of tokens of a forward pass (of a prefill chunk, or one token per slot) */
  int64_t rows;
  /* generate: maximum tokens of a sequence in a forward pass; 0: RF_PREFILL_ROWS */
  int64_t chunk;
  /* generate: number of full-length sequences that the cache can hold; 0: number of slots */
  int64_t sequences;
  /* generate: maximum drafted tokens that one sequence verifies in a forward pass. Each drafted
   * token has a row of logits. The token before the drafted tokens has a row too. */
  int draft;
  bool sampled; /* generate: true if the program chooses tokens (op `sample`) */
  /* generate: number of adapters that the program can have at once, and their largest rank. Each
   * row chooses its adapter. A maximum of 0 means no slots; then model.lora names the only adapter,
   * if there is one. */
  int adapter_slots, adapter_rank;
  int64_t kv_page; /* generate: tokens in a page of the cache; 0: RF_KV_PAGE */
  /* Products with packed matrices round their activations to 8 bits. In training, only products of
   * the forward pass round their activations. The backward pass ignores this rounding. */
  bool fast;
  /* generate: true if the cache has the dtype kv_dtype. kv_dtype is f32, bf16 or i8. In plans that
   * cannot run, kv_dtype may also be f8_e4m3 or i4. If false, the cache has the dtype of the
   * activations. */
  bool kv_dtype_set;
  rf_dtype kv_dtype;
  /* True if matrices that are not trained (including experts) have the dtype `narrow` (f8_e4m3,
   * i4). A job with `narrow` weights can be planned, but not run. Token tables keep at least 8
   * bits. */
  bool narrow_set;
  rf_dtype narrow;
  /* True if linear layers and experts multiply in the dtype `matmul` (i8, f8_e4m3). Attention and
   * the head do not. A job with this field can be planned, but not run. */
  bool matmul_set;
  rf_dtype matmul;
  float temperature; /* number by which all logits are divided, after the softcap; 0 means 1 */
  int top;           /* score: number of most likely tokens that a position returns, at most RF_TOP_MAX */
  int accumulate;
  float dropout; /* dropout rate; negative: the rate of the model */
  rf_optimizer optimizer;
  float beta1, beta2, eps, weight_decay;
  float clip;             /* maximum gradient norm; 0: gradients are not clipped */
  bool loss_only;         /* true for validation: a step has only the forward pass and the loss */
  rf_objective objective; /* train */
  rf_policy policy;       /* for RF_OBJECTIVE_POLICY */
  rf_pairs pairs;         /* for RF_OBJECTIVE_PAIRS */
  rf_mesh mesh;           /* all 0: one chip */
  unsigned offload;       /* RF_OFFLOAD_ bits: kinds of tensors in the host's memory */
  /* Types that matrices without training have in the model's file (generate, score, LoRA). If NULL,
   * matrices without training have the type `dtype`. Only the building of the graph reads this
   * field. */
  const struct rf_weight_types *weights;
  /* true if matrices that are not trained are plain rows of `dtype`, not packed */
  bool plain;
  /* Graph of another job. This job reads the matrices of that job in place, so it stores each
   * matrix as that graph does. NULL: each matrix has the storage that this job reads fastest. */
  const rf_graph *stored_as;
} rf_build_options;

/* Checks the ranges of the settings of the objective. */
rf_status rf_objective_check(const rf_build_options *options, rf_error *error);
/* True if the graph has an input named "reference_logprobs". */
bool rf_objective_has_reference(const rf_build_options *options);
/* Builds the graph of a job: runs the passes build, adapt, differentiate, optimize, stage, shard
 * and fuse. `after` names the last pass that runs, as in `plan --after`. NULL: all passes run. */
rf_status rf_graph_build(const rf_model *model, const rf_build_options *options, const char *after,
                         rf_graph **graph, rf_error *error);
/* Makes the program of one chip of pipeline stage options->mesh.stage, by the passes stage, shard
 * and fuse. `whole` is the graph that rf_graph_build makes with `after` = "optimize". */
rf_status rf_graph_stage(const rf_graph *whole, const rf_build_options *options, rf_graph **graph,
                         rf_error *error);
/* Adds the model's LoRA adapters to its linear layers; other weights are then not trained. If
 * `learns` is true, the adapters get their dropout. With options->adapter_slots, adds slots for
 * adapters (rf_lora_all): the tensors of a weight "block.0/attn/qkv/weight" are
 * block.0/attn/qkv/slots_a (L,K,P r), .../slots_b (L,r,S) and .../slots_ranks i32 (L,P). The input
 * "adapters" i32 (rows) has the slot of each row, or -1. */
rf_status rf_pass_adapt(rf_graph *graph, const rf_build_options *options, bool learns, rf_error *error);
rf_status rf_pass_differentiate(rf_graph *graph, rf_error *error);
/* Emits the backward ops of one op by the op's `gradient` or `backward`. rf_op_def.backward
 * explains grad_out and grad_in. */
rf_status rf_op_backward(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in,
                         rf_error *error);
rf_status rf_pass_optimize(rf_graph *graph, const rf_build_options *options, rf_error *error);
/* Checks that a job can be sharded over a mesh. If a size cannot be divided by the number of chips,
 * the result is RAFTER_INVALID. The error then names the size, and numbers of chips that divide
 * it. */
rf_status rf_mesh_check(const rf_mesh *mesh, const rf_model *model, const rf_build_options *options,
                        rf_error *error);
/* Rewrites a graph into the program of one chip. Each tensor gets the shape of one chip's part. If
 * an op needs another sharding than its operand has, the pass adds a collective. */
rf_status rf_pass_shard(rf_graph *graph, const rf_mesh *mesh, rf_error *error);
rf_status rf_pass_fuse(rf_graph *graph, rf_error *error);
/* For each t with drop[t] set: adds ops that recompute activation t before backward reads t.
 * Results are bit-identical. */
rf_status rf_pass_remat(rf_graph *graph, const bool *drop, rf_error *error);
/* Moves tensors to the host's memory, and adds copies around their uses. `what` has the RF_OFFLOAD_
 * bits of the tensors to move. Results are bit-identical. Runs after remat. RAFTER_INVALID: no such
 * tensor. */
rf_status rf_pass_offload(rf_graph *graph, unsigned what, rf_error *error);
/* Sets drop[t] for each tensor t that a policy recomputes. `drop` has tensor_count entries. The
 * policies NONE and AUTO recompute no tensor. */
void rf_remat_policy(const rf_graph *graph, rf_remat policy, bool *drop);
/* Writes the graph as text into the graph's pool, with one line per op, for `plan --after`. */
const char *rf_graph_print(rf_graph *graph);

#endif
