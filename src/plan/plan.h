/* plan.h - the plan is the program: a graph with one offset per tensor, and one kernel and one
 * predicted time per op. Planning takes milliseconds and needs neither weights nor the device. The
 * passes run in this order: graph, recomputation, offload, kernels, lifetimes, offsets, times,
 * digest (parts.h). A finished plan never changes. */
#ifndef RF_PLAN_H
#define RF_PLAN_H

#include "backend/kernel.h"
#include "machine/isa.h"
#include "machine/machine.h"
#include "study/program.h"

typedef enum rf_bound {
  RF_BOUND_COMPUTE,
  RF_BOUND_MEMORY,
  RF_BOUND_LATENCY,
  RF_BOUND_NETWORK,
  RF_BOUNDS
} rf_bound;

typedef struct rf_plan_tensor {
  /* Offset in the arena, or in the host region for host tensors. RF_NONE: the tensor is unused. */
  int64_t offset;
  int64_t bytes; /* rounded up to the alignment */
  /* Indices of the first and last op that need the bytes. Persistent tensors have -1 and op_count.
   * A tensor that one microbatch passes to the next lives from the op before the micro section (or
   * -1) to the op after that section (or op_count). */
  int first, last;
  int shares; /* tensor whose bytes this tensor reuses in place, or RF_NONE */
} rf_plan_tensor;

typedef struct rf_plan_op {
  const rf_kernel *kernel; /* kernel for all steps, or for steps with more than few_rows rows */
  const rf_kernel *few;    /* for steps of at most few_rows rows; NULL: `kernel` runs all steps */
  int64_t few_rows;
  rf_blocks blocks;      /* tuned block sizes of `kernel`; all zero: its default */
  const rf_inner *inner; /* kernels of the RF_MAX_INNER products inside the op; NULL: none */
  int workspace;         /* index in plan->tensor, or RF_NONE */
  rf_work work;
  double seconds; /* predicted time of one call */
  /* For an op that begins an exchange: seconds until the exchange is complete. `seconds` is what the
   * exchange takes from the core meanwhile. 0: another op. */
  double transfer;
  double wait; /* latency: part of a collective's seconds that does not depend on the bandwidth */
  rf_bound bound;
  uint32_t lanes; /* bit mask of the links that a transfer uses; 0: the op runs on the core */
  int calls;      /* per step: number of microbatches for ops of the micro section, otherwise 1 */
} rf_plan_op;

/* Which engine of a chip moves data between chips. */
typedef enum rf_collectives {
  RF_COLLECTIVES_CORE,    /* the core, while it computes */
  RF_COLLECTIVES_OFFLOAD, /* a separate engine */
  RF_COLLECTIVES_NONE     /* the core, which cannot compute at the same time */
} rf_collectives;

/* Whether ranks exchange data while they compute. */
typedef enum rf_overlap {
  RF_OVERLAP_AUTO, /* where the plan predicts that it saves time */
  RF_OVERLAP_ON,
  RF_OVERLAP_OFF
} rf_overlap;

typedef struct rf_plan_options {
  rf_build_options build;
  rf_remat remat;
  const rf_backend *backend;
  rf_device_settings device; /* for the run; the plan does not depend on it */
  rf_isa isa;
  int threads; /* changes workspaces, but not results */
  /* true: every op runs with all threads. false: a run may use fewer while other programs use the
   * cores (backend/team.h). */
  bool threads_fixed;
  const rf_machine *machine;
  rf_collectives collectives;
  rf_overlap overlap;
  rf_program_options program; /* JAX program to plan; all zero: rafter's own program */
  int64_t budget_bytes;       /* limit for --fit and remat=auto; 0: machine memory minus reserve */
  int64_t margin_bytes;       /* --margin: bytes that the budget leaves free; for reports only */
  int64_t draft_bytes;        /* arena of a draft model; the budget leaves it free; for reports only */
  int64_t taken_bytes;        /* part of the budget that remat=auto must leave free */
  bool searched;              /* the search of --fit chose these settings, not the user */
  /* true: while a layer computes, the weights of the next layer are gathered from other chips, as
   * in programs that the TPU compiler makes */
  bool gathers_ahead;
  /* With pipeline stages, true: the plan is that of stage build.mesh.stage, which this process
   * runs; false: the plan is that of the stage with the largest peak. */
  bool own_stage;
  int guard_bytes; /* gap after each tensor; debug runs check that nothing writes there */
  /* The plan whose arena this plan shares; NULL: none. For example, validation and generation share
   * the arena of training. Must outlive this plan. Both plans have the same persistent tensors at
   * the same offsets. The KV cache of this plan follows these tensors. */
  const struct rf_plan *owner;
} rf_plan_options;

/* Predicted time of a step in seconds. `by` splits `seconds` by bound. Ops of the core count under
 * their bound. Waits for other chips, the host or other stages count under RF_BOUND_NETWORK. */
typedef struct rf_step_time {
  double seconds, by[RF_BOUNDS];
  rf_bound bound;
  double network_hidden;  /* transfer time during which the core works */
  double network_latency; /* part of all transfer time that more bandwidth would not shorten */
  double bubble;          /* part of by[network]: a pipeline stage waits for other stages */
  double offload;         /* all transfer time to and from the host */
  double offload_exposed; /* part of by[network]: the core waits for the host */
} rf_step_time;

/* Time and work of one or more steps or forward passes, over all chips. */
typedef struct rf_plan_totals {
  rf_step_time time;
  double tokens, model_flops, hardware_flops, flops_full_square, bytes;
  double sent_bytes; /* sum of the sizes of the whole arrays in one chip's collectives */
} rf_plan_totals;

/* A stage of a pipeline. A stage has one run of consecutive layers, or V runs with
 * interleaved:V. */
typedef struct rf_plan_stage {
  int64_t first_layer, /* first layer of the first run */
      layers;          /* number of layers in all runs */
  int in_flight;       /* maximum number of microbatches in flight, summed over all runs */
  int64_t peak_bytes, persistent_bytes;
  int64_t held_bytes; /* bytes of tensors that have a slot for each microbatch in flight */
  double forward_seconds, backward_seconds; /* time of one microbatch through all runs */
  double busy_seconds,                      /* passes of all microbatches in a step */
      end_seconds,                          /* ops after the last microbatch */
      idle_seconds;                         /* waits; busy + end + idle is the time of the step */
  double fill_seconds,                      /* idle time before the first work */
      drain_seconds;                        /* idle time after the last work */
} rf_plan_stage;

/* FLOPs of one part of the model on all chips, without recomputation: of the forward pass, and of a
 * whole step. The sum of `step` over all parts is model_flops. The sum of `step_full` is
 * flops_full_square. */
typedef struct rf_part_work {
  double forward, step;           /* attention counts only the pairs inside the mask */
  double forward_full, step_full; /* attention counts all (query, key) pairs */
} rf_part_work;

typedef struct rf_plan {
  rf_graph *graph; /* owned */
  rf_plan_options options;
  rf_machine machine;     /* a copy, adjusted to the plan's threads and instruction set */
  rf_plan_tensor *tensor; /* tensor_count entries: the graph's tensors, then the workspaces of ops */
  rf_tensor *workspace;   /* descriptions of these workspaces */
  int tensor_count;
  rf_plan_op *op;       /* op_count entries, in graph order */
  struct rf_flow *flow; /* input of the lifetime and layout passes (parts.h) */
  /* Bytes [0, persistent_bytes) of the arena keep their contents between steps. All plans with the
   * same owner have these bytes of the owner at the same offsets. */
  int64_t persistent_bytes;
  int64_t arena_bytes;          /* size of the arena = predicted peak memory */
  int64_t live_bytes;           /* largest sum of live tensors, without holes and alignment */
  int64_t host_bytes,           /* bytes of the host region */
      host_persistent_bytes;    /* bytes of the host region that keep their contents between steps */
  int peak_op;                  /* op with the most live bytes */
  int64_t by_class[RF_CLASSES]; /* live bytes at peak_op; RF_CLASS_PADDING: the rest of arena_bytes */
  rf_step_time time;
  double sent_bytes; /* in collectives of a step, on one chip; whole arrays count */
  double step_seconds, model_flops, hardware_flops, flops_full_square, bytes; /* of a step, all chips */
  double build_seconds;                                                       /* time that planning took */
  /* One entry per stage of a pipeline. The plan has the graph and the memory of one stage
   * (graph->mesh.stage), but the time, FLOPs and bytes of all stages. */
  rf_plan_stage *stage;
  int stages; /* 0: no pipeline */
  /* With options.own_stage: the plans of all stages by number, but NULL for this one. Owned. */
  struct rf_plan **stage_plan;
  rf_part_work stage_work[RF_PARTS]; /* sums over all stages of a pipeline */
  /* Memory of a JAX program. For such a program, arena_bytes and by_class describe the JAX program,
   * but the offsets belong to rafter's own program. */
  rf_program_memory program;
  char digest[17]; /* hex XXH3 of everything that the results of a run depend on */
} rf_plan;

/* The plan of a stage, if options.own_stage is set. */
static inline const rf_plan *rf_plan_of_stage(const rf_plan *plan, int stage) {
  return stage == plan->graph->mesh.stage ? plan : plan->stage_plan[stage];
}
/* Description of plan->tensor[t]: a tensor of the graph or a workspace. */
static inline const rf_tensor *rf_plan_content(const rf_plan *plan, int t) {
  const int own = plan->graph->tensor_count;
  return t < own ? &plan->graph->tensor[t] : &plan->workspace[t - own];
}

rf_status rf_plan_make(const rf_model *model, const rf_plan_options *options, rf_plan **plan,
                       rf_error *error);
/* Makes a plan without times and digest, enough for rf_plan_fits. If the live bytes alone do not
 * fit, the plan has no offsets and arena_bytes is live_bytes. */
rf_status rf_plan_make_size(const rf_model *model, const rf_plan_options *options, rf_plan **plan,
                            rf_error *error);
void rf_plan_free(rf_plan *plan);
/* Memory that a plan may use, in bytes: the budget, or the machine's memory minus its reserve. */
int64_t rf_plan_room(const rf_plan_options *options);
/* Fills two arrays of op_count entries. live[i]: live bytes at op i, at most live_bytes. top[i]:
 * end of the used part of the arena at op i. The maximum is arena_bytes without guard bytes. */
void rf_plan_memory_curve(const rf_plan *plan, int64_t *live, int64_t *top);
/* Bytes of host memory that one chip may use, an equal part of its host's memory. 0: unknown. */
int64_t rf_plan_host_room(const rf_machine *machine);
/* True if the arena fits rf_plan_room and, if known, the host region fits rf_plan_host_room. */
bool rf_plan_fits(const rf_plan *plan);
/* Returns the plan that needs the larger arena. `prefill` may be NULL. */
const rf_plan *rf_plan_larger(const rf_plan *plan, const rf_plan *prefill);
/* Size of the arena in which the first plan and plans that it owns run in turn. */
int64_t rf_plan_joint_bytes(const rf_plan *const *plans, int count);
/* Name of the op with the most live bytes; "" for an empty graph. */
const char *rf_plan_peak(const rf_plan *plan);
/* RAFTER_NO_FIT if the plan does not fit. The error names the excess and the largest tensors; the
 * hint names a setting that fits. */
rf_status rf_plan_require_fit(const rf_plan *plan, rf_error *error);
/* If the plan can be made but not run on one chip, returns RAFTER_INVALID with the reason. */
rf_status rf_plan_require_runnable(const rf_plan *plan, rf_error *error);
#define RF_THIS_FITS "this fits" /* start of a hint that names a setting that fits */

void rf_plan_work_by_part(const rf_plan *plan, rf_part_work work[RF_PARTS]);

/* Settings that the user left open, so that the search may choose them. */
typedef struct rf_fit_vary {
  bool remat, microbatch, dtype, mesh;
} rf_fit_vary;
/* One setting that the search planned, and the result. */
typedef struct rf_fit_row {
  rf_dtype dtype;
  rf_remat remat; /* AUTO: a set of single tensors chosen for the budget */
  int64_t microbatch;
  int accumulate;
  int64_t peak_bytes;
  double seconds; /* per step */
  bool fits;
  rf_mesh mesh;
  char why[256]; /* on the frontier: says how much less memory and more time than in the previous entry */
} rf_fit_row;
enum { RF_MAX_FIT_ROWS = 64 };
typedef struct rf_fit_found {
  rf_fit_row row[RF_MAX_FIT_ROWS]; /* the frontier: no entry beats another in both memory and time */
  int rows, tried;                 /* tried: number of settings planned */
  bool fits;                       /* at least one setting fits */
} rf_fit_found;
/* Cost of a job with several phases. The plan is one of the phases. */
typedef struct rf_fit_cost {
  int64_t bytes,      /* memory of the phase that needs the most */
      kept_elsewhere; /* bytes that other phases keep while the plan runs */
  double seconds;     /* of all phases */
} rf_fit_cost;
/* Computes the cost of the whole job for one plan of the search. RAFTER_INVALID: another phase
 * cannot use these settings. */
typedef struct rf_fit_whole {
  void *self;
  rf_status (*cost)(void *self, const rf_plan *plan, rf_fit_cost *cost, rf_error *error);
} rf_fit_whole;
/* Finds the fastest plan that fits rf_plan_room(options), or the smallest plan if none fits. The
 * batch, microbatch * accumulate, does not change. On several chips, the search first plans meshes
 * of data, fsdp, tensor and expert, in bf16 unless the dtype is fixed. Next it plans meshes similar
 * to the best mesh, and last it varies the other settings on the best few meshes. `whole` (may be
 * NULL) replaces the plan's memory and time. `found` (or NULL) gets the frontier, fastest first. */
rf_status rf_plan_fit(const rf_model *model, const rf_plan_options *options, rf_fit_vary vary,
                      const rf_fit_whole *whole, rf_plan **plan, rf_fit_found *found, rf_error *error);

/* The size of an op in its curve, which has measured rates by size. Attention: sequence length *
 * head width. Attention over a cache: rows per sequence * head width. Other ops: rf_cost_amount. */
double rf_cost_size(const rf_graph *graph, const rf_op *op, rf_work work);
/* Kinds of products whose time depends on the number of rows: all products with a packed matrix,
 * and those of generation with a plain matrix. Each kind has a curve for each storage type, by
 * number of rows. The curve's op is the kind's name, and its kernel is the storage type. A kind
 * that reads a packed matrix as it is has three more curves. Their kernel is the kind's name. Their
 * ops are "matmul_start" (seconds per call), "matmul_outputs" (seconds per output) and
 * "matmul_inner" (seconds per step of k). */
typedef enum rf_cost_products {
  RF_PRODUCTS_EXACT,       /* all other products */
  RF_PRODUCTS_FAST,        /* --compute fast: activations rounded to 8 bits */
  RF_PRODUCTS_BF16,        /* bf16 x bf16, which some CPUs multiply in tiles */
  RF_PRODUCTS_TURNED,      /* transposed: the gradient of the input */
  RF_PRODUCTS_TURNED_BF16, /* the same, bf16 x bf16 */
  RF_PRODUCTS_TURNED_HEAD, /* transposed: the gradient of the head's input, f32 x bf16 */
  RF_PRODUCTS_ROWS,        /* a plain matrix (K,N) */
  RF_PRODUCTS_COLUMNS,     /* a plain matrix (N,K) */
  RF_COST_PRODUCTS
} rf_cost_products;
extern const char *const RF_COST_PRODUCT_NAMES[RF_COST_PRODUCTS];
typedef struct rf_cost_class {
  const char *name, /* kind of product */
      *type;        /* storage type */
  double share,     /* the part's fraction of the op's FLOPs */
      size;         /* number of rows */
} rf_cost_class;
/* Fills one entry for each part of an op's matrix, and returns the number of parts. 0: the op has no
 * product of these kinds, so its curve is named after the op. */
int rf_cost_classes(const rf_graph *graph, const rf_op *op, rf_work work,
                    rf_cost_class class[RF_PANEL_PARTS]);
/* Names of curves for reference kernels without a curve of their own. The op is "reference". The
 * kernel is "flops" for ops that multiply, else "bytes". */
#define RF_COST_REFERENCE "reference"
#define RF_COST_FLOPS "flops"
#define RF_COST_BYTES "bytes"
/* Name of an op's curve. The name is "matmul_narrow", "matmul_dx_narrow" or "matmul_dw_narrow" for
 * a product whose weight is as narrow as an adapter's rank, otherwise the op's name. */
const char *rf_cost_curve_name(const rf_graph *graph, const rf_op *op);
/* FLOPs that the op executes: FLOPs of the model, plus the extra FLOPs in flops_again. */
double rf_cost_flops(rf_work work);
/* FLOPs if the op multiplies, else bytes moved. */
double rf_cost_work(rf_work work);
/* The same, as the curve of the op counts it: the columns of a narrow matrix are rounded up to
 * whole vectors. */
double rf_cost_amount(const rf_graph *graph, const rf_op *op, rf_work work);
/* Predicted seconds of one call of an op: the larger of the time of its arithmetic and the time of
 * its memory traffic. Rates come from the machine's curve for this op or, without a curve, from the
 * machine's peak rates. *bound (may be NULL) gets what limits the op. */
double rf_cost_op(const rf_machine *machine, const rf_graph *graph, const rf_op *op, const rf_kernel *kernel,
                  rf_work work, rf_bound *bound);

/* Lower bound of the seconds of one call; no prediction is below it. The bound is the larger of
 * two times: the time of the FLOPs at the highest rate of the machine, and the time of the bytes
 * at the highest bandwidth for this size. Small tensors may have the bandwidth of a cache. The
 * bound of a transfer is its time on the links, without latency. *bound (may be NULL) gets what
 * limits the op. */
double rf_plan_limit(const rf_plan *plan, int op, rf_bound *bound);
/* Predicted seconds to touch the arena and to load the packed weights from files in the page cache.
 * Rates come from curves with op "load" and kernel "touch" or a storage type. If the machine is not
 * calibrated, rates come from the copy bandwidth. */
double rf_plan_load_seconds(const rf_plan *plan);
/* Seconds to load `bytes` by the "load" curve with kernel `what`, or -1 without that curve. */
double rf_cost_load_seconds(const rf_machine *machine, const char *what, double bytes);
/* Seconds of an operation on `rows` rows of `numbers` numbers, one thread per row, by the curve of
 * `op` and `kernel`. 0: that curve does not exist. */
double rf_cost_rows_seconds(const rf_machine *machine, const char *op, const char *kernel, int64_t rows,
                            int64_t numbers);

/* Rows of one sequence in a forward pass: a chunk of the prompt, or one row of the answer. */
typedef struct rf_extent {
  int64_t rows, context; /* context: number of keys up to the last row, inclusive */
} rf_extent;
/* Work of an op in a forward pass over `parts` sequences that fill all rows of the plan. */
rf_work rf_plan_pass_work(const rf_plan *plan, int op, const rf_extent *part, int parts);
/* Predicted seconds of a forward pass of a prefill or decode plan over `parts` sequences, with one
 * row of logits for each sequence. The plan's own step_seconds assumes full rows and contexts. */
double rf_plan_pass_seconds(const rf_plan *plan, const rf_extent *part, int parts);
/* Predicted seconds of a training step whose `microbatches` microbatches hold `count` sequences of
 * these numbers of tokens. The plan's own step_seconds assumes full sequences. */
double rf_plan_sequences_seconds(const rf_plan *plan, const int64_t *tokens, int64_t count,
                                 int64_t microbatches);
/* For `times` equal forward passes, adds each op's predicted time to `seconds`, and the op's lower
 * bound (rf_plan_limit) to `limit`. Both arrays have op_count entries. RAFTER_FAILED: no memory. */
rf_status rf_plan_pass_ops(const rf_plan *plan, const rf_extent *part, int parts, double times,
                           double *seconds, double *limit, rf_error *error);
/* Like rf_plan_pass_seconds, for many forward passes of one plan. The plan must outlive the prices.
 * rf_pass_prices_open returns NULL if memory runs out. rf_pass_prices_close accepts NULL.
 * rf_pass_price adds time and work of the pass to `sum` (may be NULL). */
typedef struct rf_pass_prices rf_pass_prices;
rf_pass_prices *rf_pass_prices_open(const rf_plan *plan);
double rf_pass_price(rf_pass_prices *prices, const rf_extent *part, int parts, rf_plan_totals *sum);
void rf_pass_prices_close(rf_pass_prices *prices);

/* Tokens of a training step, or rows of a forward pass, over all chips. Rows of drafts do not
 * count. */
double rf_plan_tokens(const rf_plan *plan);
/* Time and work of one step of the plan. */
rf_plan_totals rf_plan_totals_of(const rf_plan *plan);
/* Sets a fastest and a slowest time. A run with the planned time `seconds` probably takes a time
 * between these two. Returns false if the machine's figures are not those of a data sheet. */
bool rf_plan_band(const rf_plan *plan, double seconds, double band[2]);
/* Adds `times` times `more` to `sum`. The bound of the sum is the one that takes most time. */
void rf_plan_totals_add(rf_plan_totals *sum, const rf_plan_totals *more, double times);
/* Peak FLOP/s of all chips in the plan's dtype. In bf16, a CPU without tiles has its f32 peak. */
double rf_plan_peak_flops(const rf_plan *plan);
/* Peak FLOP/s in the dtype of the linear layers (--matmul-dtype). MFU is relative to this peak.
 * EMFU is relative to rf_plan_peak_flops and may exceed 1. */
double rf_plan_matmul_peak_flops(const rf_plan *plan);

#endif
