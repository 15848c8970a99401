/* graph.h - one graph holds every tensor and op of a step: forward, loss, backward, clipping,
 * optimizer; or one forward pass over a KV cache. It is the only place that knows what is
 * computed; it knows no device, no offset, no time.
 *
 * A step has three sections: `begin` runs once, `micro` runs `accumulate` times (one microbatch
 * each), `end` runs once. Ops stand in execution order inside `ops[]`, sections in that order. A
 * pass takes the graph and rewrites it in place. */
#ifndef RF_GRAPH_H
#define RF_GRAPH_H

#include "graph/attr.h"
#include "graph/mesh/mesh.h"
#include "graph/ops/kept.h"
#include "graph/ops/list.h"
#include "model/model.h"
#include "formats/panels.h"

enum { RF_MAX_RANK = 4, RF_MAX_INPUTS = 8, RF_NONE = -1 };
enum { RF_TOP_MOST = 256 };
enum { RF_WANTED = -2 }; /* an output slot, or a gradient, that the op's rule still has to make */

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

typedef struct rf_tensor {
  const char *name; /* path: "block.3/mlp/up/out", "block.3/mlp/up/weight", "block.3/mlp/up/weight/grad" */
  rf_dtype dtype;
  rf_class class;
  int rank;
  int64_t shape[RF_MAX_RANK]; /* the bound; extents are run inputs */
  /* row of the parameter table this tensor belongs to (weight, master, moments, gradient);
   * RF_NONE */
  int param;
  bool persistent; /* keeps its bytes from step to step (weights, masters, moments, KV) */
  bool input;      /* the caller writes it before each microbatch / walk (tokens, labels, ...) */
  bool output;     /* the caller reads it after the step (metrics, logits) */
  /* stands in the host's memory: only offload_in reads it, only offload_out writes it */
  bool host;
  const char *reason; /* why it is kept, for the plan's reader; may be NULL */
  rf_panels panels;   /* of dtype RF_PACKED */
  rf_spec spec;       /* how it lies on the mesh; `shape` is what one chip has of it */
  int8_t saved; /* RF_SAVED_AS(name, chain) of remat.h: the name that remat policies have for it; 0: none */
  /* in a pipeline: microbatches that it holds at once, the i-th in place i % slots, each as
   * `shape` says; 0: one */
  int32_t slots;
} rf_tensor;

typedef enum rf_section { RF_SECTION_BEGIN, RF_SECTION_MICRO, RF_SECTION_END, RF_SECTIONS } rf_section;

/* values of k that one scale of rounded activations is for; before int8, in two bytes */
enum { RF_FAST_BLOCK = 32, RF_FAST_INT8_BLOCK = 256 };
/* Values of k that one scale of rounded activations is for, by the matrix's type. (Files that
 * mix types hold what rounding harms most in q6_k.) */
static inline int rf_fast_block_of(const rf_quant_type *type) {
  return type->number == RF_Q_Q4_K || type->number == RF_Q_Q5_K ? 128 : RF_FAST_BLOCK;
}

/* How the kernel of a product cuts its work; no sum depends on it. All 0: as the kernel itself
 * would. */
typedef struct rf_blocks {
  int64_t kc, a_bytes, nc; /* steps of k; bytes of packed rows of a group of threads; columns */
} rf_blocks;

/* Where in the model an op belongs. */
typedef enum rf_sublayer {
  RF_SUBLAYER_NONE,
  RF_SUBLAYER_EMBED,
  RF_SUBLAYER_ATTN,
  RF_SUBLAYER_MLP,
  RF_SUBLAYER_HEAD
} rf_sublayer;
typedef struct rf_op_place {
  int32_t layer; /* RF_NONE: outside the blocks */
  rf_sublayer sublayer;
} rf_op_place;

struct rf_op_def;
typedef struct rf_sharding rf_sharding; /* shard.h */
typedef struct rf_op {
  const struct rf_op_def *def;
  const char *name; /* path "step/micro/block.11/mlp/down/bwd" */
  rf_section section;
  rf_op_place at;
  rf_attr attr;
  int input_count, output_count; /* slots, absent ones hold RF_NONE */
  int input[RF_MAX_INPUTS];      /* tensor ids */
  int output[RF_MAX_OUTPUTS];
  rf_blocks blocks; /* chosen by the plan */
  bool backward;    /* made by differentiate */
  int32_t chunk;    /* of a stage of a pipeline: which of its runs of layers it belongs to */
  int recompute_of; /* op id whose output this op makes again (remat), or RF_NONE. The same def takes the same
                     * kernel; the def differs when only the epilogue is repeated (gelu from a kept u), with
                     * the same bits */
} rf_op;

typedef struct rf_graph {
  rf_pool *pool; /* owns every name and array */
  rf_model model;
  rf_params params;
  int tensor_count, tensor_capacity, op_count, op_capacity;
  rf_tensor *tensor;
  rf_op *op;
  int accumulate;  /* microbatches of a step */
  rf_dtype matmul; /* what linear layers multiply in; RF_DTYPES: in their operands' dtype */
  int64_t rows;    /* n: tokens of a microbatch */
  int64_t seq;     /* T */
  rf_mesh mesh;    /* a graph over more than one chip is the program of one of them */
  char scope[256]; /* path prefix of the builder */
  int32_t chunk;   /* of ops that are made now */
  rf_op_place at;  /* the same */
} rf_graph;

/* What an op costs, declared once, read by planner and report. FLOPs count multiply and add as
 * two, of matrix products and attention only (elementwise ops, norms and the optimizer are timed
 * by their bytes and count none); causal attention counts what the mask leaves (flops) and
 * flops_full the whole square. flops is the model's share: what an op computes again inside
 * itself (the scores in attention_bwd, the logits in head_loss_bwd), and rows that an expert has
 * room for beside its even share, stand in flops_again and are hardware work only; rows that
 * experts have no room for are less of it. Bytes are each operand once. */
typedef struct rf_work {
  double flops, flops_full, bytes_read, bytes_written, flops_again;
  /* collectives: the whole array of the group; offload: what crosses to the host or back */
  double sent_bytes;
} rf_work;

/* The output may take the input's bytes when nobody else reads them later. Every kernel of the
 * op must allow it: element i of that input is read before element i of the output is written,
 * and never again. */
typedef struct rf_inplace {
  int output, input;
} rf_inplace;

/* Experts that `rows` rows are expected to meet, each choosing `used` of `experts` evenly and
 * for itself: E (1 - (1 - k/E)^n). */
double rf_experts_met(double experts, double used, double rows);

/* The sort of work an op is; recorders and reports group by it. */
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

/* What the time of an op follows: its bytes, or products of one of these efficiencies. */
typedef enum rf_timing {
  RF_TIMING_BYTES,
  RF_TIMING_PRODUCT,
  RF_TIMING_GROUPED, /* one product for each expert */
  RF_TIMING_ATTENTION,
  RF_TIMING_ATTENTION_BACKWARD,
  RF_TIMING_OTHER_PRODUCTS
} rf_timing;

/* The size that a point of the op's measured curve has: its work, the numbers of a segment of
 * one head, or the rows of a sequence that share its cached keys. */
typedef enum rf_curve_size { RF_CURVE_WORK, RF_CURVE_SEGMENT, RF_CURVE_ROWS } rf_curve_size;

/* A linear layer's product: its output, the gradient of its input, or that of its matrix. */
typedef enum rf_product { RF_PRODUCT_NONE, RF_PRODUCT_FORWARD, RF_PRODUCT_DX, RF_PRODUCT_DW } rf_product;

/* Passes over every row of logits next to their product. */
enum { RF_PASS_SUMS = 1, RF_PASS_SOFTCAP = 2, RF_PASS_LIKELIEST = 4 };

/* The number that says after an op whether the step is still sound, before anything persistent
 * depends on it: the first of output 0, that at attr.index, or the latter of output 4. */
typedef enum rf_probe { RF_PROBE_NONE, RF_PROBE_FIRST, RF_PROBE_INDEX, RF_PROBE_UPDATE } rf_probe;

/* How an op moves bytes off the chip or onto it. */
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
  RF_EXCHANGES
} rf_exchange_kind;

enum { RF_TIMED_LIKE = 4 };
typedef struct rf_op_def {
  const char *name;
  rf_kind kind;
  const char *formula;               /* one line of mathematics */
  const char *inputs[RF_MAX_INPUTS]; /* "x (M,K)", "bias (N)?": a trailing '?' marks an optional one */
  const char *outputs[RF_MAX_OUTPUTS];
  const rf_field *fields; /* of its family of attributes (attr.h): RF_FIELDS_MATMUL; NULL: it has none */
  /* checks inputs, creates the outputs that are still RF_NONE and wanted */
  rf_status (*shape)(rf_graph *graph, rf_op *op, rf_error *error);
  rf_work (*work)(const rf_graph *graph, const rf_op *op);
  rf_inplace inplace[4]; /* ends at {0,0} with inplace_count */
  int inplace_count;
  /* Emits backward ops. grad_out[i]: gradient tensor of output i (RF_NONE: not needed).
   * grad_in[i] says on entry what is asked for input i: RF_NONE nothing, RF_WANTED a new tensor
   * (whose id is returned in its place), an id the parameter gradient to write. NULL: not
   * differentiable (optimizer, backward ops themselves). */
  rf_status (*backward)(rf_graph *graph, const rf_op *op, const int *grad_out, int *grad_in, rf_error *error);
  /* How operands must lie on a mesh and how results lie then; NULL: the op cannot be cut. */
  rf_status (*shard)(rf_sharding *sharding, rf_error *error);
  struct {
    float f32, bf16;
  } tolerance; /* of a kernel against the reference, relative to the output's norm */
  bool random; /* draws from the step's generator (dropout) */
  bool loss;   /* backward starts here: the gradient of its output is run->loss_scale */
  rf_probe probe;
  rf_exchange_kind exchange;
  rf_timing timing;
  rf_curve_size curve_size;
  /* ops whose curve times this one when it was not measured, nearest first, up to a NULL */
  const struct rf_op_def *timed_like[RF_TIMED_LIKE];
  const char *narrow_curve; /* the curve of products with a short side; NULL: no other */
  rf_product product;
  bool packed;    /* input 1 may be a packed matrix, whose types have curves of their own */
  int rows_slot;  /* the input whose first extent says how many rows are multiplied */
  bool in_chunks; /* those rows are multiplied in chunks (rf_head_chunk_rows) */
  unsigned (*row_passes)(const rf_op *op); /* RF_PASS_ bits; NULL: none */
  /* the share of its FLOPs that is forward; NULL: all of a forward op, none of a backward op */
  double (*forward_share)(const rf_op *op);
  const rf_kept_rule *kept; /* NULL: rf_kept_rule_of says */
} rf_op_def;

/* extern const rf_op_def RF_OP_ROPE; */
#define RF_DECLARE(NAME, name) extern const rf_op_def RF_OP_##NAME;
RF_OPS_LIST(RF_DECLARE)
#undef RF_DECLARE

/* What attention over a cache does for each of its rows, for each key that a row sees, and moves
 * for each position. */
typedef struct rf_cached {
  double flops_row, flops_key, position_bytes, fixed_bytes; /* fixed: read whatever the contexts */
  int table;                                                /* tensor of the page table */
  int64_t page;
} rf_cached;
bool rf_op_is_cached(const rf_op *op);
rf_cached rf_cached_of(const rf_graph *graph, const rf_op *op);
/* What one position takes of a cache tensor (pages, parts, page, columns). */
double rf_cache_position_bytes(const rf_tensor *cache);

/* The op table, NULL-terminated, in docs order. */
extern const rf_op_def *const RF_OPS[];
const rf_op_def *rf_op_find(const char *name);
/* Ops that only move bytes, nearest first: one without a curve is timed like them. */
extern const rf_op_def *const RF_OPS_OF_BYTES[];
static inline bool rf_op_is_exchange(const rf_op_def *def) { return def->exchange != RF_EXCHANGE_NONE; }
/* What XLA keeps of it; the rule of elementwise ops that keep their input where it has none. */
const rf_kept_rule *rf_kept_rule_of(const rf_op_def *def);
/* The field table of its attributes, with those of every op. */
const rf_field *rf_op_fields(const rf_op_def *def);
bool rf_attr_same(const rf_op *a, const rf_op *b);
/* The flag of a product that rounds its activations; NULL: the op is none. */
bool *rf_attr_fast(const rf_op_def *def, rf_attr *attr);
bool rf_op_is_fast(const rf_op *op);
/* Makes attributes that read a model's table read that of `model`. */
void rf_attr_adopt(const rf_op_def *def, rf_attr *attr, const rf_model *model);

/* The sort of work ("matmul", "attention", "norm", ...), and the phase of a step, that an op
 * belongs to. */
const char *rf_op_kind(const rf_op *op);
const char *rf_op_phase(const rf_op *op); /* "forward", "recompute", "backward", "optimizer" */

/* ---- building blocks ------------------------------------------------------------------------- */

rf_graph *rf_graph_new(const rf_model *model);
void rf_graph_free(rf_graph *graph);
/* A copy that shares the names of `graph`, which must outlive it. */
rf_graph *rf_graph_borrow(const rf_graph *graph);
/* new tensor id */
int rf_graph_tensor(rf_graph *graph, const char *name, rf_class class, rf_dtype dtype, int rank,
                    const int64_t *shape);
/* elements */
int64_t rf_tensor_count(const rf_tensor *tensor);
int64_t rf_tensor_bytes(const rf_tensor *tensor);
/* i8, i4 and fp8: numbers without a scale beside them. Caches of i8 apart, whose scales are a
 * tensor, plans count their bytes and nothing runs them. */
bool rf_dtype_is_narrow(rf_dtype dtype);
/* its dtype's name, of a packed one those of its parts */
const char *rf_tensor_type(const rf_tensor *tensor, char text[64]);
/* Rows that a walk of `used` rows has of a tensor with `bound` of them: tokens have an extent,
 * and so have rows sorted by expert. */
static inline int64_t rf_rows_of_walk(const rf_graph *graph, int64_t bound, int64_t used) {
  int64_t each = bound == graph->rows ? 1 : graph->model.experts_used;
  return bound == graph->rows * each && used > 0 && used < graph->rows ? used * each : bound;
}
/* Appends an op to `section`; def->shape makes the outputs marked wanted (bit i: output i).
 * Returns the op id, or -1 with error. */
int rf_graph_op(rf_graph *graph, const rf_op_def *def, const char *name, rf_section section,
                const int *inputs, int input_count, unsigned wanted, const rf_attr *attr, rf_error *error);
/* The same with every output slot given: an existing tensor id (checked against the shape rule),
 * RF_WANTED or RF_NONE. */
int rf_graph_emit(rf_graph *graph, const rf_op_def *def, const char *name, rf_section section,
                  const int *inputs, int input_count, const int *outputs, int output_count,
                  const rf_attr *attr, rf_error *error);
/* tensor id by name, or RF_NONE; a linear search */
int rf_graph_find(const rf_graph *graph, const char *name);
bool rf_slot_optional(const char *slot); /* a slot text of rf_op_def.inputs or .outputs */

/* Who reads and writes each tensor, in op order: readers of t are reader[reader_at[t]] ..
 * reader[reader_at[t + 1] - 1]. A snapshot in `pool`; made in two walks over the ops. */
typedef struct rf_uses {
  int *reader_at, *reader, *writer_at, *writer;
} rf_uses;
rf_uses rf_graph_uses(const rf_graph *graph, rf_pool *pool);

/* ---- passes, in their order ------------------------------------------------------------------ */

typedef enum rf_job_kind { RF_JOB_TRAIN, RF_JOB_GENERATE, RF_JOB_SCORE } rf_job_kind;
typedef enum rf_optimizer { RF_ADAMW, RF_ADAM } rf_optimizer;
/* Which tensors are recomputed in backward instead of kept. AUTO is decided by plan, which then
 * calls rf_pass_remat with a set. SAVE: all of a block but the tensors whose names (rows of
 * RF_SAVED, remat.h) are bits below it. */
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
/* "none", "mlp", "attn", "mlp+attn", "block", "auto", "save:NAME,NAME"; read also the names of
 * sets ("minimal") and + between names. */
const char *rf_remat_write(rf_remat remat, char text[RF_REMAT_TEXT]);
rf_status rf_remat_parse(const char *text, rf_remat *remat, rf_error *error);
bool rf_remat_valid(rf_remat remat);
enum { RF_REMAT_NAMED = 12 };
/* Every policy with a name of its own that computes something again and is not searched for;
 * returns how many. */
int rf_remat_named(rf_remat list[RF_REMAT_NAMED]);
/* The text, for as long as the block that this stands in: rf_remat_write(remat, (char[96]){0}). */
#define rf_remat_name(remat) rf_remat_write(remat, (char[RF_REMAT_TEXT]){0})

/* What may stand in the host's memory: optimizer states, what backward reads of forward, the
 * cache of a generate job, weights of blocks. */
enum {
  RF_OFFLOAD_OPTIMIZER = 1,
  RF_OFFLOAD_ACTIVATIONS = 2,
  RF_OFFLOAD_KV = 4,
  RF_OFFLOAD_WEIGHTS = 8,
  RF_OFFLOADS = 4
};
const char *rf_offload_name(int bit); /* 0 .. RF_OFFLOADS - 1: "optimizer", ... */
/* A list of those names, separated by commas. RAFTER_INVALID names the wrong one. */
rf_status rf_offload_parse(const char *text, unsigned *what, rf_error *error);

typedef struct rf_build_options {
  rf_job_kind job;
  rf_dtype dtype; /* of weights and activations; bf16 keeps f32 masters */
  rf_dtype softmax;
  int64_t microbatch; /* sequences of a microbatch (train) or slots (generate): sequences that run at once */
  int64_t seq;        /* T: tokens of a training row; context bound of a slot */
  int64_t rows;       /* generate: rows of one walk (prefill chunk, or slots for decode) */
  /* generate: rows of one walk that belong to one sequence, at most; 0: RF_PREFILL_ROWS */
  int64_t chunk;
  /* generate: whole sequences that the cache has room for; at least, and for 0, one for each
   * slot */
  int64_t sequences;
  int64_t kv_page; /* generate: tokens of a page of the cache; 0: RF_KV_PAGE */
  /* generate, score: products with packed matrices of codes round their activations to 8 bits */
  bool fast;
  /* generate: the cache is in kv_dtype (f32, bf16, i8; planned only: f8_e4m3, i4), not in that
   * of the activations */
  bool kv_dtype_set;
  rf_dtype kv_dtype;
  bool
      /* planned only: matrices that nothing trains are numbers of `narrow` (f8_e4m3, i4),
       * experts too; tables of tokens in i8 at least */
      narrow_set;
  rf_dtype narrow;
  /* planned only: linear layers and experts multiply in `matmul` (i8, f8_e4m3), attention and
   * head as they are */
  bool matmul_set;
  rf_dtype matmul;
  int top; /* score: likeliest tokens that are kept of every position, at most RF_TOP_MOST; 0: none */
  int accumulate;
  float dropout; /* < 0: the model's own */
  rf_optimizer optimizer;
  float beta1, beta2, eps, weight_decay;
  float clip;       /* 0: none */
  bool loss_only;   /* validation: forward and loss, no backward */
  rf_mesh mesh;     /* over which chips; all 0: one */
  unsigned offload; /* bits of rf_offload: what stands in the host's memory */
  const struct rf_weight_types *
      /* of matrices that do not change (generate, score, under LoRA): what they are packed in;
       * NULL: `dtype`. Read while the graph is built */
      weights;
} rf_build_options;

/* build + adapt + differentiate + optimize + stage + shard + fuse, i.e. everything before
 * kernels are chosen. `after` (may be NULL) stops after the pass of that name ("build", "adapt",
 * "differentiate", "optimize", "stage", "shard", "fuse"): for `plan --after`. */
rf_status rf_graph_build(const rf_model *model, const rf_build_options *options, const char *after,
                         rf_graph **graph, rf_error *error);
/* One chip's program of stage options->mesh.stage of a pipeline, out of what rf_graph_build
 * makes `after` optimize: stage + shard + fuse. */
rf_status rf_graph_stage(const rf_graph *whole, const rf_build_options *options, rf_graph **graph,
                         rf_error *error);
/* The passes that rf_graph_build runs, one by one. */
/* Joins the model's adapters to their linear layers; the weights beside them are not trained
 * then. `dtype`: of activations; `learns`: with their dropout. */
rf_status rf_pass_adapt(rf_graph *graph, rf_dtype dtype, bool learns, rf_error *error);
rf_status rf_pass_differentiate(rf_graph *graph, rf_error *error);
rf_status rf_pass_optimize(rf_graph *graph, const rf_build_options *options, rf_error *error);
/* Whether a job can be cut over a mesh. RAFTER_INVALID names the number that does not divide and
 * what would. */
rf_status rf_mesh_check(const rf_mesh *mesh, const rf_model *model, const rf_build_options *options,
                        rf_error *error);
/* Turns a graph into the program of one chip of the mesh: local shapes, and a collective
 * wherever what an op needs is not what the chip has. */
rf_status rf_pass_shard(rf_graph *graph, const rf_mesh *mesh, rf_error *error);
rf_status rf_pass_fuse(rf_graph *graph, rf_error *error);
/* drop[t] true: tensor t (a forward activation that backward reads) is recomputed. Rewrites the
 * graph; the same values come out, to the bit. */
rf_status rf_pass_remat(rf_graph *graph, const bool *drop, rf_error *error);
/* Moves what `what` names (bits of rf_offload) to the host's memory, with copies there and back
 * around its uses: the same values, to the bit. RAFTER_INVALID: the graph has nothing of it.
 * Behind remat. */
rf_status rf_pass_offload(rf_graph *graph, unsigned what, rf_error *error);
/* The set a named policy drops; `drop` has tensor_count entries. NONE and AUTO give an empty
 * set. */
void rf_remat_policy(const rf_graph *graph, rf_remat policy, bool *drop);
/* One line per op, for people: `plan --after`. The text belongs to the graph's pool. */
const char *rf_graph_print(rf_graph *graph);

#endif
