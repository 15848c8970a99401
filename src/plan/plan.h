/* plan.h - the plan of a job. A plan is the program that runs: a graph with one offset for each
 * tensor, and with one kernel and one predicted time for each op. Planning takes milliseconds and
 * needs neither weights nor the device. The passes run in this order: graph, recomputation,
 * offload, kernels, lifetimes, offsets, times, digest (parts.h). A finished plan never changes. */
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
  /* Offset in the arena. For host tensors: offset in the host region. RF_NONE: the tensor is
   * unused. */
  int64_t offset;
  int64_t bytes; /* number of bytes, rounded up to the alignment */
  /* Indices of the first and the last op that need the bytes. Persistent tensors have -1 and
   * op_count. If one microbatch passes a tensor to the next, the tensor lives from the op before
   * the micro section (or -1) to the op after that section (or op_count). */
  int first, last;
  int shares; /* id of the tensor whose bytes this tensor reuses in place, or RF_NONE */
} rf_plan_tensor;

typedef struct rf_plan_op {
  const rf_kernel *kernel; /* kernel for all steps, or for steps with more than few_rows rows */
  const rf_kernel *few;    /* kernel for steps of at most few_rows rows; NULL: `kernel` runs all steps */
  int64_t few_rows;
  rf_blocks blocks;      /* tuned block sizes of `kernel`; all zero: the default sizes */
  const rf_inner *inner; /* kernels of the RF_MAX_INNER products inside the op; NULL: the op has none */
  int workspace;         /* index in plan->tensor, or RF_NONE */
  rf_work work;
  double seconds; /* predicted seconds of one call */
  /* For an op that begins an exchange: seconds until the exchange is complete. Meanwhile, the
   * exchange takes `seconds` from the core. 0: the op does not begin an exchange. */
  double transfer;
  double wait; /* latency: the part of a collective's seconds that bandwidth does not change */
  rf_bound bound;
  uint32_t lanes; /* bit mask of the links that a transfer uses; 0: the op runs on the core and uses none */
  int calls;      /* calls in a step: number of microbatches for ops of the micro section, otherwise 1 */
} rf_plan_op;

/* The engine of a chip that moves data between chips. */
typedef enum rf_collectives {
  RF_COLLECTIVES_CORE,    /* the core moves data while it computes */
  RF_COLLECTIVES_OFFLOAD, /* a separate engine */
  RF_COLLECTIVES_NONE     /* the core moves data, and cannot compute at the same time */
} rf_collectives;

/* Setting by which ranks exchange data while they compute. */
typedef enum rf_overlap {
  RF_OVERLAP_AUTO, /* yes, where the plan predicts that this saves time */
  RF_OVERLAP_ON,
  RF_OVERLAP_OFF
} rf_overlap;

typedef struct rf_plan_options {
  rf_build_options build;
  rf_remat remat;
  const rf_backend *backend;
  rf_device_settings device; /* settings for the run; the plan does not depend on them */
  rf_isa isa;
  int threads; /* number of threads, which changes workspaces but not results */
  /* If true, every op runs with all threads. If false, a run may use fewer threads while other
   * programs use the cores (backend/team.h). */
  bool threads_fixed;
  const rf_machine *machine;
  rf_collectives collectives;
  rf_overlap overlap;
  rf_program_options program; /* the JAX program to plan; all zero: the plan is for rafter's own program */
  /* limit for --fit and remat=auto; 0: the memory of the machine without its reserve */
  int64_t budget_bytes;
  int64_t margin_bytes; /* --margin: bytes that the budget leaves free, for reports only */
  int64_t draft_bytes;  /* arena of a draft model, which the budget leaves free, for reports only */
  int64_t taken_bytes;  /* number of bytes of the budget that remat=auto must leave free */
  bool searched;        /* true if the search of --fit chose these settings, and not the user */
  /* True if a layer's weights are gathered from other chips while the layer before it computes. The
   * TPU compiler makes such programs. */
  bool gathers_ahead;
  /* For pipeline stages. If true, the plan is that of stage build.mesh.stage, which this process
   * runs. If false, the plan is that of the stage with the largest peak. */
  bool own_stage;
  int guard_bytes; /* bytes of the gap after each tensor; debug runs check that nothing writes there */
  /* The plan whose arena this plan shares. NULL: the plan shares no arena. For example, validation
   * and generation share the arena of training. Must outlive this plan. Both plans have the same
   * persistent tensors at the same offsets. The KV cache of this plan has higher offsets than these
   * tensors. */
  const struct rf_plan *owner;
} rf_plan_options;

/* Predicted time of a step in seconds. `by` splits `seconds` by bound. Ops of the core count as
 * their bound. Waits for other chips, the host or other stages count as RF_BOUND_NETWORK. */
typedef struct rf_step_time {
  double seconds, by[RF_BOUNDS];
  rf_bound bound;
  double network_hidden;  /* seconds of transfers during which the core works */
  double network_latency; /* seconds of transfers that more bandwidth would not shorten */
  double bubble;          /* part of by[network] in which a pipeline stage waits for other stages */
  double offload;         /* seconds of all transfers to and from the host */
  double offload_exposed; /* part of by[network] in which the core waits for the host */
} rf_step_time;

/* Time and work of one or more steps or forward passes, over all chips. */
typedef struct rf_plan_totals {
  rf_step_time time;
  double tokens, model_flops, hardware_flops, flops_full_square, bytes;
  double sent_bytes; /* sum of the sizes of the arrays in one chip's collectives, over all chips */
} rf_plan_totals;

/* A stage of a pipeline. A stage has one run of consecutive layers. With interleaved:V, it has V
 * runs. */
typedef struct rf_plan_stage {
  int64_t first_layer, /* number of the first layer of the first run */
      layers;          /* number of layers in all runs */
  int in_flight;       /* maximum number of microbatches in flight, summed over all runs */
  int64_t peak_bytes, persistent_bytes;
  int64_t held_bytes; /* bytes of the tensors that have a slot for each microbatch in flight */
  double forward_seconds, backward_seconds; /* seconds of one microbatch through all runs */
  double busy_seconds,                      /* seconds of the passes of all microbatches in a step */
      end_seconds,                          /* seconds of the ops after the last microbatch */
      idle_seconds;                         /* seconds of waits; busy + end + idle is the time of the step */
  double fill_seconds,                      /* idle seconds before the first work */
      drain_seconds;                        /* idle seconds after the last work */
} rf_plan_stage;

/* FLOPs of one part of the model on all chips, without recomputation: FLOPs of the forward pass,
 * and FLOPs of a whole step. The sum of `step` over all parts is model_flops. The sum of
 * `step_full` is flops_full_square. */
typedef struct rf_part_work {
  double forward, step;           /* attention counts only the pairs of query and key inside the mask */
  double forward_full, step_full; /* attention counts all pairs of query and key */
} rf_part_work;

typedef struct rf_plan {
  rf_graph *graph; /* owned */
  rf_plan_options options;
  rf_machine machine;     /* a copy of the machine, adjusted to the plan's threads and instruction set */
  rf_plan_tensor *tensor; /* array of tensor_count entries: the graph's tensors, then the workspaces of ops */
  rf_tensor *workspace;   /* descriptions of these workspaces */
  int tensor_count;
  rf_plan_op *op;       /* op_count entries, in graph order */
  struct rf_flow *flow; /* input of the lifetime and layout passes (parts.h) */
  /* Bytes [0, persistent_bytes) of the arena keep their contents between steps. All plans with the
   * same owner have these bytes of the owner at the same offsets. */
  int64_t persistent_bytes;
  int64_t arena_bytes;       /* size of the arena, which is the predicted peak memory */
  int64_t live_bytes;        /* largest sum of live tensors, without holes and alignment */
  int64_t host_bytes,        /* bytes of the host region */
      host_persistent_bytes; /* bytes of the host region that keep their contents between steps */
  int peak_op;               /* number of the op with the most live bytes */
  /* live bytes of each class at peak_op; RF_CLASS_PADDING: the rest of arena_bytes */
  int64_t by_class[RF_CLASSES];
  rf_step_time time;
  double sent_bytes; /* bytes of whole arrays in the collectives of a step on one chip */
  double step_seconds, model_flops, hardware_flops, flops_full_square, bytes; /* of a step, all chips */
  double build_seconds;                                                       /* time that planning took */
  /* Array with one entry for each stage of a pipeline. The plan has the graph and the memory of one
   * stage (graph->mesh.stage), but it has the time, FLOPs and bytes of all stages. */
  rf_plan_stage *stage;
  int stages; /* 0: no pipeline */
  /* With options.own_stage: the plans of all stages, by number. The entry of this stage is NULL.
   * Owned. */
  struct rf_plan **stage_plan;
  rf_part_work stage_work[RF_PARTS]; /* FLOPs of parts of the model, summed over all stages of a pipeline */
  /* Memory of a JAX program. For such a program, arena_bytes and by_class describe the JAX program,
   * but the offsets belong to rafter's own program. */
  rf_program_memory program;
  char digest[17]; /* digest: XXH3, as hex digits, of everything on which the results of a run depend */
} rf_plan;

/* Returns the plan of a stage, if options.own_stage is set. */
static inline const rf_plan *rf_plan_of_stage(const rf_plan *plan, int stage) {
  return stage == plan->graph->mesh.stage ? plan : plan->stage_plan[stage];
}
/* Returns the description of plan->tensor[t], which is a tensor of the graph or a workspace. */
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
/* Memory that a plan may use, in bytes. The limit is the budget, or the machine's memory without
 * its reserve. */
int64_t rf_plan_room(const rf_plan_options *options);
/* Fills two arrays of op_count entries. live[i] gets the live bytes at op i, which are at most
 * live_bytes. top[i] gets the end of the used part of the arena at op i. The maximum of top[i] is
 * arena_bytes without guard bytes. */
void rf_plan_memory_curve(const rf_plan *plan, int64_t *live, int64_t *top);
/* Bytes of host memory that one chip may use. A chip may use an equal part of its host's memory. 0:
 * unknown. */
int64_t rf_plan_host_room(const rf_machine *machine);
/* True if the arena fits in rf_plan_room and, if this is known, the host region fits in
 * rf_plan_host_room. */
bool rf_plan_fits(const rf_plan *plan);
/* Returns the plan that needs the larger arena. `prefill` may be NULL. */
const rf_plan *rf_plan_larger(const rf_plan *plan, const rf_plan *prefill);
/* Size of the arena in which the first plan runs, and at other times the plans that it owns. */
int64_t rf_plan_joint_bytes(const rf_plan *const *plans, int count);
/* Name of the op with the most live bytes; "" for an empty graph. */
const char *rf_plan_peak(const rf_plan *plan);
/* The result is RAFTER_NO_FIT if the plan does not fit. The error names the excess and the largest
 * tensors; the hint names a setting that fits. */
rf_status rf_plan_require_fit(const rf_plan *plan, rf_error *error);
/* If the plan can be made but not run on one chip, the result is RAFTER_INVALID, and the error says
 * the reason. */
rf_status rf_plan_require_runnable(const rf_plan *plan, rf_error *error);
#define RF_THIS_FITS "this fits" /* first words of a hint that names a setting that fits */

void rf_plan_work_by_part(const rf_plan *plan, rf_part_work work[RF_PARTS]);

/* Settings that the user left open, so that the search may choose them. */
typedef struct rf_fit_vary {
  bool remat, microbatch, dtype, mesh;
} rf_fit_vary;
/* One setting that the search planned, and the result. */
typedef struct rf_fit_row {
  rf_dtype dtype;
  rf_remat remat; /* for AUTO: a set of single tensors that was chosen for the budget */
  int64_t microbatch;
  int accumulate;
  int64_t peak_bytes;
  double seconds; /* per step */
  bool fits;
  rf_mesh mesh;
  /* for an entry of the frontier: the memory saved and the time added since the previous entry */
  char why[256];
} rf_fit_row;
enum { RF_MAX_FIT_ROWS = 64 };
typedef struct rf_fit_found {
  /* entries of the frontier: no entry is better than another in both memory and time */
  rf_fit_row row[RF_MAX_FIT_ROWS];
  int rows, tried; /* tried: number of settings that were planned */
  bool fits;       /* true if at least one setting fits */
} rf_fit_found;
/* Cost of a job with several phases. The plan is one phase of this job. */
typedef struct rf_fit_cost {
  int64_t bytes,      /* memory of the phase that needs the most memory */
      kept_elsewhere; /* bytes that phases outside this plan keep in memory while it runs */
  double seconds;     /* of all phases */
} rf_fit_cost;
/* Computes the cost of the whole job for one plan of the search. The result is RAFTER_INVALID if
 * another phase cannot use these settings. */
typedef struct rf_fit_whole {
  void *self;
  rf_status (*cost)(void *self, const rf_plan *plan, rf_fit_cost *cost, rf_error *error);
} rf_fit_whole;
/* Finds the fastest plan that fits rf_plan_room(options), or the smallest plan if none fits. The
 * batch, microbatch * accumulate, does not change. On several chips, the search first plans meshes
 * of data, fsdp, tensor and expert. These meshes are planned in bf16, unless the dtype is fixed.
 * Then the search plans meshes that are similar to the best mesh. At the end, the search varies the
 * other settings on the best few meshes. `whole` replaces the plan's memory and time, unless it is
 * NULL. Unless `found` is NULL, it gets the frontier, fastest first. */
rf_status rf_plan_fit(const rf_model *model, const rf_plan_options *options, rf_fit_vary vary,
                      const rf_fit_whole *whole, rf_plan **plan, rf_fit_found *found, rf_error *error);

/* The size of an op in its curve. A curve has measured rates for several sizes. For attention, the
 * size is sequence length * head width. For attention over a cache, the size is rows per sequence *
 * head width. Other ops: rf_cost_amount. */
double rf_cost_size(const rf_graph *graph, const rf_op *op, rf_work work);
/* Kinds of products whose time depends on the number of rows. Such products are all products with a
 * packed matrix, and the products of generation with a plain matrix. Each kind has a curve for each
 * storage type. The curve's sizes are numbers of rows. The curve's op is the kind's name, and its
 * kernel is the storage type. A kind that reads a packed matrix without conversion has three more
 * curves. The kernel of these curves is the kind's name. The ops of these curves are "matmul_start"
 * (seconds per call), "matmul_outputs" (seconds per output) and "matmul_inner" (seconds per step of
 * k). */
typedef enum rf_cost_products {
  RF_PRODUCTS_EXACT,       /* all other products */
  RF_PRODUCTS_FAST,        /* with --compute fast: activations are rounded to 8 bits */
  RF_PRODUCTS_BF16,        /* bf16 x bf16; some CPUs multiply these in tiles */
  RF_PRODUCTS_TURNED,      /* transposed: for the gradient of the input */
  RF_PRODUCTS_TURNED_BF16, /* the same, bf16 x bf16 */
  RF_PRODUCTS_TURNED_HEAD, /* transposed: for the gradient of the head's input, f32 x bf16 */
  RF_PRODUCTS_ROWS,        /* a plain matrix (K,N) */
  RF_PRODUCTS_COLUMNS,     /* a plain matrix (N,K) */
  RF_COST_PRODUCTS
} rf_cost_products;
extern const char *const RF_COST_PRODUCT_NAMES[RF_COST_PRODUCTS];
typedef struct rf_cost_class {
  const char *name, /* kind of product */
      *type;        /* storage type */
  double share,     /* fraction of the op's FLOPs that this part has */
      size;         /* number of rows */
} rf_cost_class;
/* Fills one entry for each part of an op's matrix, and returns the number of parts. The number is 0
 * if the op has no product of these kinds. Then the op's curve has the op's name. */
int rf_cost_classes(const rf_graph *graph, const rf_op *op, rf_work work,
                    rf_cost_class class[RF_PANEL_PARTS]);
/* Names of curves for reference kernels that have no curve with their own name. The op is
 * "reference". The kernel is "flops" for ops that multiply, and "bytes" for other ops. */
#define RF_COST_REFERENCE "reference"
#define RF_COST_FLOPS "flops"
#define RF_COST_BYTES "bytes"
/* Name of an op's curve. If the product's weight has the narrow width of an adapter's rank, the
 * name is "matmul_narrow", "matmul_dx_narrow" or "matmul_dw_narrow". Otherwise the name is the op's
 * name. */
const char *rf_cost_curve_name(const rf_graph *graph, const rf_op *op);
/* Number of FLOPs that the op executes: FLOPs of the model, plus the extra FLOPs in flops_again. */
double rf_cost_flops(rf_work work);
/* Number of FLOPs if the op multiplies. Otherwise: number of bytes that it moves. */
double rf_cost_work(rf_work work);
/* The work of an op, as its curve counts it: the columns of a narrow matrix are rounded up to whole
 * vectors. */
double rf_cost_amount(const rf_graph *graph, const rf_op *op, rf_work work);
/* Predicted seconds of one call of an op. The result is the larger of the time of the op's
 * arithmetic and the time of its memory traffic. The rates are those of the machine's curve for
 * this op. Without such a curve, the rates are the machine's peak rates. *bound gets the resource
 * that limits the op, unless it is NULL. */
double rf_cost_op(const rf_machine *machine, const rf_graph *graph, const rf_op *op, const rf_kernel *kernel,
                  rf_work work, rf_bound *bound);

/* Lower bound of the seconds of one call. No prediction is below this bound. The bound is the
 * larger of two times: the time of the FLOPs at the highest rate of the machine, and the time of
 * the bytes at the highest bandwidth for this size. Small tensors may have the bandwidth of a
 * cache. The bound of a transfer is its time on the links, without latency. *bound gets the
 * resource that limits the op, unless it is NULL. */
double rf_plan_limit(const rf_plan *plan, int op, rf_bound *bound);
/* Predicted seconds to touch the arena, and to load the packed weights from files in the page
 * cache. The rates are those of curves with op "load" and kernel "touch" or a storage type. If the
 * machine is not calibrated, the rates are the copy bandwidth. */
double rf_plan_load_seconds(const rf_plan *plan);
/* Seconds to load `bytes`, by the "load" curve with kernel `what`. -1: that curve does not
 * exist. */
double rf_cost_load_seconds(const rf_machine *machine, const char *what, double bytes);
/* Seconds of an operation on `rows` rows of `numbers` numbers, with one thread per row. The curve
 * of `op` and `kernel` has the rate. 0: that curve does not exist. */
double rf_cost_rows_seconds(const rf_machine *machine, const char *op, const char *kernel, int64_t rows,
                            int64_t numbers);

/* Rows of one sequence in a forward pass: a chunk of the prompt, or one row of the answer. */
typedef struct rf_extent {
  int64_t rows, context; /* context: number of keys up to the last row, which counts too */
} rf_extent;
/* Work of an op in a forward pass over `parts` sequences that fill all rows of the plan. */
rf_work rf_plan_pass_work(const rf_plan *plan, int op, const rf_extent *part, int parts);
/* Predicted seconds of a forward pass of a prefill or decode plan over `parts` sequences. The pass
 * computes one row of logits for each sequence. The plan's own step_seconds is for full rows and
 * contexts. */
double rf_plan_pass_seconds(const rf_plan *plan, const rf_extent *part, int parts);
/* Predicted seconds of a training step whose `microbatches` microbatches hold `count` sequences of
 * these numbers of tokens. The plan's own step_seconds is for full sequences. */
double rf_plan_sequences_seconds(const rf_plan *plan, const int64_t *tokens, int64_t count,
                                 int64_t microbatches);
/* For `times` equal forward passes: adds each op's predicted time to `seconds`, and its lower bound
 * (rf_plan_limit) to `limit`. Both arrays have op_count entries. RAFTER_FAILED: no memory. */
rf_status rf_plan_pass_ops(const rf_plan *plan, const rf_extent *part, int parts, double times,
                           double *seconds, double *limit, rf_error *error);
/* Like rf_plan_pass_seconds, for many forward passes of one plan. The plan must outlive the prices.
 * rf_pass_prices_open returns NULL if memory runs out. rf_pass_prices_close accepts NULL.
 * rf_pass_price adds the time and the work of the pass to `sum`, unless it is NULL. */
typedef struct rf_pass_prices rf_pass_prices;
rf_pass_prices *rf_pass_prices_open(const rf_plan *plan);
double rf_pass_price(rf_pass_prices *prices, const rf_extent *part, int parts, rf_plan_totals *sum);
void rf_pass_prices_close(rf_pass_prices *prices);

/* Number of tokens of a training step, or of rows of a forward pass, over all chips. Rows of
 * drafted tokens do not count. */
double rf_plan_tokens(const rf_plan *plan);
/* Time and work of one step of the plan. */
rf_plan_totals rf_plan_totals_of(const rf_plan *plan);
/* Sets a fastest and a slowest time for a run with the planned time `seconds`. The run probably
 * takes a time between the fastest and the slowest time. Returns false if the machine's figures do
 * not come from a data sheet. */
bool rf_plan_band(const rf_plan *plan, double seconds, double band[2]);
/* Adds `times` times `more` to `sum`. The bound of the sum is the bound with the most time. */
void rf_plan_totals_add(rf_plan_totals *sum, const rf_plan_totals *more, double times);
/* Peak FLOP/s of all chips in the plan's dtype. In bf16, a CPU without tiles has the peak of
 * f32. */
double rf_plan_peak_flops(const rf_plan *plan);
/* Peak FLOP/s in the dtype of the linear layers (--matmul-dtype). MFU is relative to this peak.
 * EMFU is relative to rf_plan_peak_flops and may exceed 1. */
double rf_plan_matmul_peak_flops(const rf_plan *plan);

#endif
