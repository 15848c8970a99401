/* plan.h - the plan is the program: a graph plus one offset per tensor, one kernel and one
 * predicted time per op. Made in milliseconds, without weights and without the device; allocates
 * and launches nothing; never changes while running. */
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
  int64_t offset; /* in the arena, of the host's in its own region; RF_NONE for a tensor nobody uses */
  int64_t bytes;  /* rounded up to the alignment */
  /* Op ids between which its bytes hold something; persistent: -1 and op_count. What is carried
   * round the loop of microbatches starts at the op before the loop (or -1) and ends at the op
   * behind it (or op_count). */
  int first, last;
  int shares; /* tensor whose bytes it takes over in place, or RF_NONE */
} rf_plan_tensor;

typedef struct rf_plan_op {
  const rf_kernel *kernel; /* of steps with all the plan's rows */
  const rf_kernel *few;    /* of steps with at most few_rows rows; NULL: the same */
  int64_t few_rows;
  int workspace; /* its place in plan->tensor, or RF_NONE */
  rf_work work;
  double seconds; /* predicted, one call */
  double wait;    /* of a collective: the part that no bandwidth shortens */
  rf_bound bound;
  uint32_t lanes; /* what a transfer is busy on; 0: the core */
  int calls;      /* per step: accumulate for micro ops, else 1 */
} rf_plan_op;

/* Who moves what chips exchange: the core beside its own work, an engine of its own, or the core
 * instead of its own work. */
typedef enum rf_collectives {
  RF_COLLECTIVES_CORE,
  RF_COLLECTIVES_OFFLOAD,
  RF_COLLECTIVES_NONE
} rf_collectives;

typedef struct rf_plan_options {
  rf_build_options build;
  rf_remat remat;
  const rf_backend *backend;
  rf_isa isa;
  int threads; /* an input of the plan: workspaces depend on it, bits do not */
  const rf_machine *machine;
  rf_collectives collectives;
  rf_program_options program; /* all zero: ours. Another's is sized and timed, and cannot be run */
  int64_t budget_bytes;       /* --fit / remat=auto; 0: the machine's own memory less its reserve */
  int64_t taken_bytes;        /* of the budget, what something else takes: auto leaves it free */
  bool searched;              /* --fit chose these settings: nobody typed them */
  int guard_bytes;            /* debug: gap after each tensor, filled with a pattern and checked */
  /* the persistent region is at least so large: a plan that runs over another's region
   * (validation beside training) */
  int64_t persistent_bytes;
} rf_plan_options;

/* Seconds of a step. `by` sums to it: the core's ops by what limits each, and what it waited for
 * the network, its host or another stage. */
typedef struct rf_step_time {
  double seconds, by[RF_BOUNDS];
  rf_bound bound;
  double network_hidden;  /* transfers behind the core's work */
  double network_latency; /* part of all transfers, hidden or not, that no bandwidth shortens */
  /* of by[network]: a pipeline's stages wait for the first microbatch and after the last */
  double bubble;
  double offload;         /* all transfers to and from the host, hidden or not */
  double offload_exposed; /* of by[network]: waited for the host */
} rf_step_time;

/* One stage of a pipeline. */
typedef struct rf_plan_stage {
  int64_t first_layer, layers; /* of its first run of layers; of all */
  /* microbatches between forward and backward, at most; several runs each count theirs */
  int in_flight;
  int64_t peak_bytes, persistent_bytes;
  int64_t held_bytes;                       /* of what has a place for several microbatches */
  double forward_seconds, backward_seconds; /* of a microbatch, all runs */
  double busy_seconds, end_seconds,
      /* of a step: all microbatches, what comes behind them, waiting for other stages: they sum
       * to the step */
      idle_seconds;
  /* of idle: before its first half, behind its last; the rest lies between */
  double fill_seconds, drain_seconds;
} rf_plan_stage;

/* FLOPs of a step on all chips by part of the model, without what is computed again: they sum to
 * model_flops (full: flops_full_square). */
typedef struct rf_part_work {
  double forward, step;           /* attention counts what the mask leaves */
  double forward_full, step_full; /* attention counts the whole square */
} rf_part_work;

typedef struct rf_plan {
  rf_graph *graph; /* owned */
  rf_plan_options options;
  rf_machine machine;     /* a copy */
  rf_plan_tensor *tensor; /* tensor_count: those of the graph, then the workspaces of its ops */
  rf_tensor *workspace;   /* what these workspaces are */
  int tensor_count;
  rf_plan_op *op;       /* graph->op_count */
  struct rf_flow *flow; /* what lifetimes and offsets are made of; the graph's */
  /* [0, persistent) keeps its bytes between steps; the same layout for every plan of one model
   * and optimizer */
  int64_t persistent_bytes;
  int64_t arena_bytes; /* = peak_bytes */
  int64_t live_bytes;  /* the largest sum of live tensors: what a perfect layout would need */
  /* the region of a chip's tensors in its host's memory, laid out like the arena */
  int64_t host_bytes, host_persistent_bytes;
  int peak_op;
  int64_t by_class[RF_CLASSES]; /* at the peak op; sums to arena_bytes with padding */
  rf_step_time time;
  double sent_bytes; /* that one chip's collectives move: the whole arrays of its groups */
  double step_seconds, model_flops, hardware_flops, flops_full_square, bytes;
  double build_seconds; /* how long planning took */
  rf_plan_stage *stage; /* of a pipeline: owned. Offsets, ops and classes are those of graph->mesh.stage,
                         * whose peak is the largest; time, FLOPs and bytes those of all */
  int stages;           /* 0: no pipeline */
  rf_part_work stage_work[RF_PARTS]; /* of all stages */
  /* of a JAX program: arena_bytes is its total, by_class what it is made of; offsets are those
   * of ours */
  rf_program_memory program;
  char digest[17]; /* hex XXH3 of everything a run depends on */
} rf_plan;

/* What is at plan->tensor[t]: a tensor of the graph, or a workspace. */
static inline const rf_tensor *rf_plan_content(const rf_plan *plan, int t) {
  const int own = plan->graph->tensor_count;
  return t < own ? &plan->graph->tensor[t] : &plan->workspace[t - own];
}

rf_status rf_plan_make(const rf_model *model, const rf_plan_options *options, rf_plan **plan,
                       rf_error *error);
/* Whether it fits: a plan without times and digest. If its live bytes alone do not fit, it has no
 * offsets and arena_bytes is live_bytes. */
rf_status rf_plan_make_size(const rf_model *model, const rf_plan_options *options, rf_plan **plan,
                            rf_error *error);
void rf_plan_free(rf_plan *plan);
/* Bytes a plan with these options may take: the budget, or the machine's memory less its
 * reserve. */
int64_t rf_plan_room(const rf_plan_options *options);
/* For each op (op_count entries): bytes of what is live there, whose largest is live_bytes, and
 * the end of the arena's used part, whose largest is arena_bytes (less a debug guard's gaps). */
void rf_plan_memory_curve(const rf_plan *plan, int64_t *live, int64_t *top);
/* Bytes of its host's memory that a chip may take: an even share; 0: the machine has no figure. */
int64_t rf_plan_host_room(const rf_machine *machine);
/* Whether the arena fits its room, and what stands in the host's memory that one, as far as it
 * is known. */
bool rf_plan_fits(const rf_plan *plan);
/* Of the two that share a machine the one that takes more of its memory. `prefill`: NULL where
 * there is none. */
const rf_plan *rf_plan_larger(const rf_plan *plan, const rf_plan *prefill);
/* The name of the op where the memory is largest; "" of an empty graph. */
const char *rf_plan_peak(const rf_plan *plan);
/* RAFTER_NO_FIT when the plan is larger than its room: by how much, what is largest, and what
 * would fit. */
rf_status rf_plan_require_fit(const rf_plan *plan, rf_error *error);
#define RF_THIS_FITS "this fits" /* how its hint begins where it names what would */

void rf_plan_work_by_part(const rf_plan *plan, rf_part_work work[RF_PARTS]);

/* ---- the search for what fits ---------------------------------------------------------------- */

typedef struct rf_fit_vary {
  bool remat, microbatch, dtype, mesh;
} rf_fit_vary; /* which settings the user left open */
typedef struct rf_fit_row {
  rf_dtype dtype;
  rf_remat remat; /* AUTO: single tensors, chosen for the budget */
  int64_t microbatch;
  int accumulate;
  int64_t peak_bytes;
  double seconds; /* per step */
  bool fits;
  rf_mesh mesh;
  char why[256]; /* of a frontier: what this step of it saves, and for how much time */
} rf_fit_row;
enum { RF_MAX_FIT_ROWS = 64 };
typedef struct rf_fit_found {
  rf_fit_row row[RF_MAX_FIT_ROWS];
  int rows, tried; /* tried: settings that were planned */
  bool fits;       /* whether one of them fits, as `whole` judges it */
} rf_fit_found;
/* What a plan is one part of: a step of several phases. `bytes`: the whole's largest, of them
 * `beside` what stands in memory beside the plan. */
typedef struct rf_fit_cost {
  int64_t bytes, beside;
  double seconds;
} rf_fit_cost;
typedef struct rf_fit_whole {
  void *self;
  /* RAFTER_INVALID: no such settings of another part */
  rf_status (*cost)(void *self, const rf_plan *plan, rf_fit_cost *cost, rf_error *error);
} rf_fit_whole;
/* The fastest plan that fits the room of `options`, or the smallest where none does, over what
 * may vary; microbatch x accumulate keeps the batch. On several chips: the ways of cutting the
 * step along data, fsdp, tensor and expert, and what lies near the best of them, in the dtype
 * that is said or bf16; then of the best of them all that is weighed on one chip. `whole` (may
 * be NULL) says what is fast and what fits in the plan's stead. `found` (may be NULL) gets the
 * frontier, fastest first: every tried setting that no other beats in both memory and time. */
rf_status rf_plan_fit(const rf_model *model, const rf_plan_options *options, rf_fit_vary vary,
                      const rf_fit_whole *whole, rf_plan **plan, rf_fit_found *found, rf_error *error);

/* ---- cost ------------------------------------------------------------------------------------ */

/* The number that the efficiency of an op depends on, in curves of a machine: for attention the
 * sequence length times the head width, over a cache a sequence's rows times it, for everything
 * else the work itself. */
double rf_cost_size(const rf_graph *graph, const rf_op *op, rf_work work);
/* Products of a packed matrix have curves of their own: with activations in 8 bits (--compute
 * fast), of bf16 with bf16, which some CPUs multiply in tiles, and all others; and transposed,
 * for the gradient of their input, of numbers that are not all bf16 and of such as are. The
 * storage type stands in place of a kernel, and size is the rows that are multiplied. Beside the
 * multiplications each but the transposed ones takes "matmul_start", "matmul_outputs" for each
 * output and "matmul_inner" for each step of its sums, whose kernel is the name of those curves. */
typedef enum rf_cost_products {
  RF_PRODUCTS_EXACT,
  RF_PRODUCTS_FAST,
  RF_PRODUCTS_BF16,
  RF_PRODUCTS_TURNED,
  RF_PRODUCTS_TURNED_BF16,
  RF_COST_PRODUCTS
} rf_cost_products;
extern const char *const RF_COST_PRODUCT_NAMES[RF_COST_PRODUCTS];
typedef struct rf_cost_class {
  const char *name, *type;
  double share, size; /* share: of the op's products */
} rf_cost_class;
/* One for each part of the matrix; how many, 0: the op has curves by its name. */
int rf_cost_classes(const rf_graph *graph, const rf_op *op, rf_work work,
                    rf_cost_class class[RF_PANEL_PARTS]);
/* The curve of all reference kernels, which have none of their own; its kernels: FLOPs of those
 * that multiply, bytes of the others. */
#define RF_COST_REFERENCE "reference"
#define RF_COST_FLOPS "flops"
#define RF_COST_BYTES "bytes"
/* The name of an op's own curve: its own, but of products whose weight has one side as short as
 * the rank of an adapter, which spend their time on the other operand, "matmul_narrow",
 * "matmul_dx_narrow" and "matmul_dw_narrow". */
const char *rf_cost_curve_name(const rf_graph *graph, const rf_op *op);
/* Of the model and again. */
double rf_cost_flops(rf_work work);
/* What a curve's `work` counts for this op: all its FLOPs where it has products, else its bytes. */
double rf_cost_work(rf_work work);
/* Predicted seconds of one op on a machine. Larger of work/ceiling terms, scaled by the
 * machine's curves where it has them. */
double rf_cost_op(const rf_machine *machine, const rf_graph *graph, const rf_op *op, const rf_kernel *kernel,
                  rf_work work, rf_bound *bound);

/* The limit, seconds of one call: FLOPs at the highest rate that the machine is known for, or
 * bytes at the highest at which it moves that many, whichever is more; of a transfer its time on
 * the links. What calibration measured counts, so small tensors are moved at a cache's speed; no
 * prediction is below it. *bound (may be NULL): which of them. */
double rf_plan_limit(const rf_plan *plan, int op, rf_bound *bound);
/* Predicted seconds until the arena is touched and the packed weights stand in it, from files
 * that the system has in memory, as they are stored there: by the curves "load" of a calibrated
 * machine, whose kernels are "touch" and the storage types; else as fast as memory is written,
 * and copied. */
double rf_plan_load_seconds(const rf_plan *plan);
/* Seconds to load so many bytes of one kind, by those curves; -1: the machine has none for it. */
double rf_cost_load_seconds(const rf_machine *machine, const char *what, double bytes);
/* Seconds of something that is done to rows of so many numbers, each by one thread, by a curve
 * of that name whose size is the numbers of a row; 0: not measured. */
double rf_cost_rows_seconds(const rf_machine *machine, const char *op, const char *kernel, int64_t rows,
                            int64_t numbers);

/* Rows of one sequence in a walk of a generate job: a chunk of its prompt, or one row of its
 * answer. */
typedef struct rf_extent {
  int64_t rows, context; /* context: keys that the last of them sees, itself among them */
} rf_extent;
/* What an op does in a walk of all the plan's rows. */
rf_work rf_plan_walk_work(const rf_plan *plan, int op, const rf_extent *part, int parts);
/* Predicted seconds of a walk of a prefill or decode plan in which these sequences take part;
 * the plan's own step_seconds is that of full rows and contexts. The logits are made of one row
 * of each sequence. */
double rf_plan_walk_seconds(const rf_plan *plan, const rf_extent *part, int parts);
/* Of each op (op_count entries): seconds and limit (see rf_plan_limit) of `times` such walks are
 * added to what stands there. RAFTER_FAILED: memory. */
rf_status rf_plan_walk_ops(const rf_plan *plan, const rf_extent *part, int parts, double times,
                           double *seconds, double *limit, rf_error *error);
/* The same for many walks of one plan, which must outlive it. NULL without memory; close takes
 * NULL. */
typedef struct rf_walk_prices rf_walk_prices;
rf_walk_prices *rf_walk_prices_open(const rf_plan *plan);
double rf_walk_price(rf_walk_prices *prices, const rf_extent *part, int parts);
void rf_walk_prices_close(rf_walk_prices *prices);

/* Tokens of a step, or rows of a walk, of all chips. */
double rf_plan_tokens(const rf_plan *plan);
/* FLOP/s that utilisation is measured against: the machine's peak in the plan's dtype; on a CPU
 * the f32 peak, which bf16 is computed at. */
double rf_plan_peak_flops(const rf_plan *plan);
/* The same in what linear layers multiply in. MFU is against this one; EMFU keeps the other, so
 * that it may exceed 1. */
double rf_plan_matmul_peak_flops(const rf_plan *plan);

#endif
