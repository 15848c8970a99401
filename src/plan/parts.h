/* parts.h - what the files of this room share. */
#ifndef RF_PLAN_PARTS_H
#define RF_PLAN_PARTS_H

#include "plan/plan.h"

enum { RF_ALIGNMENT = 64 };
static inline int64_t rf_align(int64_t bytes) {
  return (bytes + RF_ALIGNMENT - 1) / RF_ALIGNMENT * RF_ALIGNMENT;
}

/* How far a plan is made. BYTES: kernels, lifetimes and live bytes. SIZE: offsets too where the
 * live bytes fit the room, else they stand for arena_bytes, which are no fewer. PRICES: offsets
 * (of one chip as with SIZE) and times, to be weighed against others, without names of
 * workspaces and a digest. */
typedef enum rf_plan_depth { RF_PLAN_BYTES, RF_PLAN_SIZE, RF_PLAN_PRICES, RF_PLAN_WHOLE } rf_plan_depth;

/* choose.c: one kernel per op, its work, and its workspace. Allocates plan->op, plan->tensor and
 * plan->workspace. */
void rf_plan_choose(rf_plan *plan, rf_plan_depth depth);
/* What lifetimes and offsets are made of: the ops and tensors of a graph, or of one that is only
 * weighed. */
typedef struct rf_flow_op {
  const int *input, *output;
  const rf_accumulate *accumulate; /* by output; NULL: all are written */
  const rf_op_def *def;
  int workspace; /* tensor, or RF_NONE */
  int8_t inputs, outputs, section;
} rf_flow_op;
typedef struct rf_flow_tensor {
  int64_t bytes;                        /* that it takes on the machine */
  bool persistent, input, output, host; /* as in rf_tensor */
  bool held;                            /* for other microbatches than the one that is worked on */
} rf_flow_tensor;
typedef struct rf_flow {
  int ops, tensors, microbatches, guard_bytes;
  rf_flow_op *op;
  rf_flow_tensor *tensor;
  rf_plan_tensor *at; /* by tensor: what comes of it */
} rf_flow;
/* Of a plan, or of a copy of one with tensors of its own. */
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

/* lifetime.c: first, last, bytes and shares of every tensor. Of a plan by its flow, which is
 * made here. */
void rf_flow_lifetimes(rf_flow *flow);
void rf_plan_lifetimes(rf_plan *plan);
/* Bytes of one memory that stay from step to step: of the chip's at least as many as the options
 * ask for. */
int64_t rf_flow_persistent(const rf_flow *flow, bool host, const rf_plan_options *options);
/* The largest sum of live tensors (bare bytes), the op where it stands, and what is live there
 * by class; peak_op and by_class may be NULL. */
int64_t rf_flow_live_bytes(const rf_flow *flow, int *peak_op);
int64_t rf_plan_live_bytes(const rf_plan *plan, int *peak_op, int64_t by_class[RF_CLASSES]);

/* layout.c: offsets of every tensor, persistent_bytes and arena_bytes. */
void rf_plan_layout(rf_plan *plan);
/* The same of what comes and goes in the chip's memory or the host's, behind `persistent` bytes;
 * returns the height. `waste`: the largest sum of live tensors, a small part of which may be
 * wasted. */
int64_t rf_flow_layout(rf_flow *flow, bool host, int64_t persistent, int64_t waste);
/* A range of bytes that is needed from op `first` to op `last`. */
typedef struct rf_block {
  int64_t bytes, offset;
  int first, last;
} rf_block;
/* Chooses offsets (from 0; multiples of what all bytes are multiples of) so that blocks which
 * live together do not overlap; returns the height. A layout within `waste` bytes of the largest
 * sum of live blocks ends the search. */
int64_t rf_layout_blocks(rf_block *block, int count, int64_t waste);

/* cost.c: what is left of a CPU's ceilings and curves when a plan uses fewer threads than the
 * machine was described with. */
void rf_machine_for_threads(rf_machine *machine, int threads);
/* The peaks that are left of one measured with tiles when a plan asks for a lower level. */
void rf_machine_for_isa(rf_machine *machine, rf_isa isa);
/* Seconds of every op and the sums of the step. */
void rf_plan_cost(rf_plan *plan);

/* Seconds of the larger roof, see rf_plan_limit; of no transfer. */
double rf_cost_limit(const rf_machine *machine, const rf_graph *graph, const rf_op *op,
                     const rf_kernel *kernel, rf_work work, rf_bound *bound);

/* overlap.c: what every transfer takes and on which links; the step on one timeline. */
void rf_plan_price_transfers(rf_plan *plan);
rf_step_time rf_plan_schedule(const rf_plan *plan);
/* RAFTER_INVALID: the machine does not join the chips of the mesh, or has no figure for what
 * joins them. */
rf_status rf_plan_check_transfers(const rf_graph *graph, const rf_machine *machine, rf_error *error);

/* trial.c: plans of one graph (before kernels are chosen) that differ in what is recomputed,
 * weighed and not made. Lives in `pool`. */
typedef struct rf_trial rf_trial;
/* not: stages and offload, whose passes come behind recomputation */
bool rf_trial_can(const rf_graph *base, const rf_plan_options *options);
rf_trial *rf_trial_open(const rf_graph *base, const rf_plan_options *options, rf_pool *pool);
/* Live bytes and seconds of recomputation of the plan that drops these tensors. */
void rf_trial_weigh(rf_trial *trial, const bool *drop, int64_t *live, double *seconds);
/* Of the one weighed last: its arena; seconds of its step, where nothing is sent. */
int64_t rf_trial_layout(rf_trial *trial);
double rf_trial_seconds(rf_trial *trial);
int64_t rf_trial_persistent(const rf_trial *trial); /* of the arena what stays from step to step */

/* remat.c: the tensors of `base` (before kernels are chosen) that auto recomputes so that the
 * plan fits `room` bytes; `drop` has one entry per tensor. When nothing fits: the set with the
 * smallest peak. *arena: of the plan that drops it. */
rf_status rf_plan_auto_remat(const rf_graph *base, const rf_plan_options *options, int64_t room, bool *drop,
                             int64_t *arena, rf_error *error);

/* Seconds of the ops whose entry in `part` is `which`, run in their order on one timeline; sends
 * and recvs go beside it. */
double rf_plan_seconds_of(const rf_plan *plan, const int *part, int which);

/* pipeline.c: plans of all stages; the one with the largest peak comes back. */
rf_status rf_plan_make_stages(const rf_model *model, const rf_plan_options *options, rf_plan_depth depth,
                              rf_plan **plan, rf_error *error);

/* plan.c: remat, and a plan of a graph that was built; takes the graph over, also where it
 * fails. */
rf_status rf_plan_finish(rf_graph *graph, const rf_plan_options *options, rf_plan_depth depth, rf_plan **plan,
                         rf_error *error);
/* plan.c: the graph of a plan before recomputation: its own where nothing was rewritten; otherwise
 * it is built, and the caller frees it (*built). NULL for the stages of a pipeline. */
const rf_graph *rf_plan_graph_before(const rf_plan *plan, rf_graph **built);
/* plan.c: a plan of a graph as it is (taken over); and of a model. `base` (may be NULL): what
 * rf_graph_build makes of it with these build options, which has to outlive the plan. */
rf_plan *rf_plan_of_graph(rf_graph *graph, const rf_plan_options *options, rf_plan_depth depth);
rf_status rf_plan_make_to(rf_plan_depth depth, const rf_model *model, const rf_plan_options *options,
                          const rf_graph *base, rf_plan **plan, rf_error *error);

/* Size of the JAX program that `options` asks for. */
rf_status rf_plan_program_size(const rf_model *model, const rf_plan_options *options,
                               rf_program_memory *memory, rf_error *error);
/* A finished plan of ours becomes that of the JAX program in its options: memory, then time. */
rf_status rf_plan_as_program(rf_plan *plan, rf_error *error);
/* Seconds of every op; plan->program is filled. */
void rf_program_time(rf_plan *plan);

#endif
