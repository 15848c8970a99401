/* parts.h - declarations shared by the files of src/plan. */
#ifndef RF_PLAN_PARTS_H
#define RF_PLAN_PARTS_H

#include "plan/plan.h"

enum { RF_ALIGNMENT = 64 };
static inline int64_t rf_align(int64_t bytes) {
  return (bytes + RF_ALIGNMENT - 1) / RF_ALIGNMENT * RF_ALIGNMENT;
}

/* How complete a plan is. */
typedef enum rf_plan_depth {
  RF_PLAN_BYTES,  /* the plan has kernels, lifetimes and live bytes */
  RF_PLAN_SIZE,   /* the plan also has offsets; if the live bytes do not fit, arena_bytes is live_bytes */
  RF_PLAN_PRICES, /* the plan also has times; with several chips or offload, it always has offsets */
  RF_PLAN_WHOLE   /* the plan also has the digest and the names of workspaces */
} rf_plan_depth;

/* choose.c: sets the kernel, work and workspace of each op. Allocates plan->op, plan->tensor and
 * plan->workspace. */
void rf_plan_choose(rf_plan *plan, rf_plan_depth depth);
/* Input of the lifetime and layout passes: the ops and tensors of a graph. trial.c makes this input
 * without the graph. */
typedef struct rf_flow_op {
  const int *input, *output;
  const rf_accumulate *accumulate; /* one entry for each output; NULL: the op overwrites every output */
  const rf_op_def *def;
  int workspace; /* index of a tensor, or RF_NONE */
  int32_t layer;
  int8_t inputs, outputs, section;
  bool backward;
} rf_flow_op;
typedef struct rf_flow_tensor {
  int64_t bytes;                        /* on the plan's machine */
  bool persistent, input, output, host; /* as in rf_tensor */
  bool held;                            /* true if the tensor keeps its bytes while other microbatches run */
} rf_flow_tensor;
typedef struct rf_flow {
  int ops, tensors, microbatches, guard_bytes;
  bool gathers_ahead; /* as in rf_plan_options */
  rf_flow_op *op;
  rf_flow_tensor *tensor;
  rf_plan_tensor *at; /* result of the passes: one entry for each tensor */
} rf_flow;
/* The flow of a plan. `at` is set again, because `plan` may be a copy of the plan. */
static inline rf_flow rf_plan_flow(const rf_plan *plan) {
  rf_flow flow = *plan->flow;
  flow.at = plan->tensor;
  return flow;
}
rf_flow_op rf_flow_op_of(const rf_op *op, int workspace);
rf_flow_tensor rf_flow_tensor_of(const rf_plan_options *options, const rf_graph *graph,
                                 const rf_tensor *tensor);

/* digest.c: fills plan->digest. */
void rf_plan_digest(rf_plan *plan);

/* lifetime.c: sets first, last, bytes and shares of tensors. rf_plan_lifetimes also makes
 * plan->flow. */
void rf_flow_lifetimes(rf_flow *flow);
void rf_plan_lifetimes(rf_plan *plan);
/* Bytes of the persistent region of the chip or, if `host` is true, of the host. */
int64_t rf_flow_persistent(const rf_flow *flow, bool host);
/* Return the largest sum of live bytes, without alignment. *peak_op gets the op with this sum, and
 * by_class the bytes of each class of tensor at this op. The pointers `peak_op` and `by_class` may
 * be NULL. */
int64_t rf_flow_live_bytes(const rf_flow *flow, int *peak_op);
int64_t rf_plan_live_bytes(const rf_plan *plan, int *peak_op, int64_t by_class[RF_CLASSES]);

/* layout.c: sets the offset of every tensor, persistent_bytes and arena_bytes. */
void rf_plan_layout(rf_plan *plan);
/* Places the non-persistent tensors of the chip or the host after `persistent` bytes. Returns the
 * end of the highest tensor. The search accepts holes, if they are a small fraction of `waste`
 * bytes. */
int64_t rf_flow_layout(rf_flow *flow, bool host, int64_t persistent, int64_t waste);
/* A range of bytes that ops `first` to `last` need. */
typedef struct rf_block {
  int64_t bytes, offset;
  int first, last;
} rf_block;
/* Chooses offsets so that blocks with overlapping lifetimes do not overlap in memory. The lowest
 * offset is 0. Offsets are multiples of the common divisor of all sizes. Returns the end of the
 * highest block. The search ends as soon as the height is within `waste` bytes of the largest sum
 * of live blocks. */
int64_t rf_layout_blocks(rf_block *block, int count, int64_t waste);

/* cost.c: scales a CPU's peak rates and curves to a plan with fewer threads than were measured. */
void rf_machine_for_threads(rf_machine *machine, int threads);
/* If the plan's instruction set has no tiles, replaces peak rates that were measured with tiles. */
void rf_machine_for_isa(rf_machine *machine, rf_isa isa);
/* Predicts the time of every op, and of a step as their sum. */
void rf_plan_cost(rf_plan *plan);

/* Like rf_plan_limit, but with the work of the op from the caller. The op must not be a
 * transfer. */
double rf_cost_limit(const rf_machine *machine, const rf_graph *graph, const rf_op *op,
                     const rf_kernel *kernel, rf_work work, rf_bound *bound);

/* rate.c: the bound that takes the most time of a step. */
rf_bound rf_largest_bound(const rf_step_time *time);

/* overlap.c: sets the time and links of every transfer; simulates a step on one timeline. */
void rf_plan_price_transfers(rf_plan *plan);
/* Sets the time of each wait for an exchange: the part of the exchange that the core does not
 * hide. */
void rf_plan_price_waits(rf_plan *plan);
rf_step_time rf_plan_schedule(const rf_plan *plan);
/* The result is RAFTER_INVALID if the machine does not connect the mesh's chips, or if their
 * bandwidth is unknown. */
rf_status rf_plan_check_transfers(const rf_graph *graph, const rf_machine *machine, rf_error *error);

/* trial.c: estimates plans that recompute different tensors of one graph, without making the plans.
 * The graph has no kernels yet. A trial is allocated in `pool`. */
typedef struct rf_trial rf_trial;
/* Returns false for graphs with pipeline stages or offload, because the passes for these run after
 * recomputation. */
bool rf_trial_can(const rf_graph *base, const rf_plan_options *options);
rf_trial *rf_trial_open(const rf_graph *base, const rf_plan_options *options, rf_pool *pool);
/* Estimates a plan that recomputes the tensors in `drop`: its live bytes, and its seconds of
 * recomputation per step. */
void rf_trial_weigh(rf_trial *trial, const bool *drop, int64_t *live, double *seconds);
/* Returns the size of the arena under the policy `remat`. If the live bytes alone exceed `room`,
 * returns the live bytes. */
int64_t rf_trial_policy(rf_trial *trial, rf_remat remat, int64_t room);
/* The size of the arena, and the seconds of a step on one chip, for the last set that
 * rf_trial_weigh got. */
int64_t rf_trial_layout(rf_trial *trial);
double rf_trial_seconds(rf_trial *trial);
int64_t rf_trial_persistent(const rf_trial *trial); /* size of the persistent region */

/* remat.c: chooses tensors to recompute so that the plan fits in `room` bytes. The function marks
 * these tensors in `drop`, which has one entry for each tensor of `base`. If no set fits, the
 * function chooses the set with the smallest peak. *arena gets the size of the arena. `base` has no
 * kernels yet. */
rf_status rf_plan_auto_remat(const rf_graph *base, const rf_plan_options *options, int64_t room, bool *drop,
                             int64_t *arena, rf_error *error);

/* overlap.c: sum of the seconds of the ops i with part[i] == which, except sends and receives. */
double rf_plan_seconds_of(const rf_plan *plan, const int *part, int which);

/* pipeline.c: plans all stages. Returns the plan of the stage with the largest peak. With
 * options->own_stage, returns the plan of the stage options->build.mesh.stage. */
rf_status rf_plan_make_stages(const rf_model *model, const rf_plan_options *options, rf_plan_depth depth,
                              rf_plan **plan, rf_error *error);

/* flights.c: lets exchanges between ranks overlap with computation, if the options say so. */
rf_status rf_plan_overlap(rf_graph *graph, const rf_plan_options *options, rf_error *error);

/* plan.c: applies remat and offload to a graph and plans it. Takes ownership of the graph. */
rf_status rf_plan_finish(rf_graph *graph, const rf_plan_options *options, rf_plan_depth depth, rf_plan **plan,
                         rf_error *error);
/* plan.c: adds the owner's persistent tensors that a graph lacks, in the order of their offsets. So
 * the layout gives the same offsets to the persistent tensors of both plans. No op uses an added
 * tensor. The result is RAFTER_INVALID if the graph stores a tensor in another way than the
 * owner. */
rf_status rf_plan_adopt(rf_graph *graph, const rf_plan *owner, rf_error *error);
/* plan.c: the graph of a plan before recomputation and offload. If remat or offload has changed
 * plan->graph, builds a new graph. The caller frees this graph, *built. Returns NULL for pipeline
 * stages. */
const rf_graph *rf_plan_graph_before(const rf_plan *plan, rf_graph **built);
/* plan.c: rf_plan_of_graph plans a graph without changing it, and takes ownership of the graph.
 * rf_plan_make_to plans a model. `base` is the model's unplanned graph, or NULL. `base` must
 * outlive the plan. */
rf_plan *rf_plan_of_graph(rf_graph *graph, const rf_plan_options *options, rf_plan_depth depth);
rf_status rf_plan_make_to(rf_plan_depth depth, const rf_model *model, const rf_plan_options *options,
                          const rf_graph *base, rf_plan **plan, rf_error *error);

/* program_time.c: predicts the memory of the JAX program in `options`. */
rf_status rf_plan_program_size(const rf_model *model, const rf_plan_options *options,
                               rf_program_memory *memory, rf_error *error);
/* Sets memory and time of a finished plan to those of the JAX program in its options. */
rf_status rf_plan_as_program(rf_plan *plan, rf_error *error);
/* Predicts the time of every op of a JAX program. The field plan->program must be set. */
void rf_program_time(rf_plan *plan);

#endif
