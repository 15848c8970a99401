/* parts.h - what the files of this room share. */
#ifndef RF_PLAN_PARTS_H
#define RF_PLAN_PARTS_H

#include "plan/plan.h"

enum { RF_ALIGNMENT = 64 };
static inline int64_t rf_align(int64_t bytes) { return (bytes + RF_ALIGNMENT - 1) / RF_ALIGNMENT * RF_ALIGNMENT; }

/* How far a plan is made. BYTES: kernels, lifetimes and live bytes. SIZE: offsets too where the live bytes fit the room, else they stand for arena_bytes, which
 * are no fewer. PRICES: offsets and times, to be weighed against others, without names of workspaces and a digest. */
typedef enum rf_plan_depth { RF_PLAN_BYTES, RF_PLAN_SIZE, RF_PLAN_PRICES, RF_PLAN_WHOLE } rf_plan_depth;

/* choose.c: one kernel per op, its work, and a tensor for its workspace (appended to the graph). Allocates plan->op and plan->tensor. */
void rf_plan_choose(rf_plan *plan, rf_plan_depth depth);
/* lifetime.c: first, last, bytes and shares of every tensor. */
void rf_plan_lifetimes(rf_plan *plan);
/* The largest sum of live tensors (bare bytes), the op where it stands, and what is live there by class; by_class may be NULL. */
int64_t rf_plan_live_bytes(const rf_plan *plan, int *peak_op, int64_t by_class[RF_CLASSES]);

/* layout.c: offsets of every tensor, persistent_bytes and arena_bytes. The search for a lower arena ends where it takes `enough` bytes or fewer. */
void rf_plan_layout(rf_plan *plan, int64_t enough);
/* A range of bytes that is needed from op `first` to op `last`. */
typedef struct rf_block {
  int64_t bytes, offset;
  int first, last;
} rf_block;
/* Chooses offsets (from 0; multiples of what all bytes are multiples of) so that blocks which live together do not overlap; returns the height.
 * A layout within `waste` bytes of the largest sum of live blocks, or no higher than `enough`, ends the search. */
int64_t rf_layout_blocks(rf_block *block, int count, int64_t waste, int64_t enough);

/* cost.c: what is left of a CPU's ceilings and curves when a plan uses fewer threads than the machine was described with. */
void rf_machine_for_threads(rf_machine *machine, int threads);
/* Seconds of every op and the sums of the step. */
void rf_plan_cost(rf_plan *plan);

/* Seconds of the larger roof, see rf_plan_limit; of no transfer. */
double rf_cost_limit(const rf_machine *machine, const rf_graph *graph, const rf_op *op, const rf_kernel *kernel, rf_work work, rf_bound *bound);

/* overlap.c: what every transfer takes and on which links; the step on one timeline. */
void rf_plan_price_transfers(rf_plan *plan);
rf_step_time rf_plan_schedule(const rf_plan *plan);
/* RAFTER_INVALID: the machine does not join the chips of the mesh, or has no figure for what joins them. */
rf_status rf_plan_check_transfers(const rf_graph *graph, const rf_machine *machine, rf_error *error);

/* remat.c: the tensors of `base` (before kernels are chosen) that auto recomputes so that the plan fits `room` bytes; `drop` has one entry per
 * tensor. When nothing fits: the set with the smallest peak. */
rf_status rf_plan_auto_remat(const rf_graph *base, const rf_plan_options *options, int64_t room, bool *drop, rf_error *error);

/* Seconds of the ops whose entry in `part` is `which`, run in their order on one timeline; sends and recvs go beside it. */
double rf_plan_seconds_of(const rf_plan *plan, const int *part, int which);

/* pipeline.c: plans of all stages; the one with the largest peak comes back. */
rf_status rf_plan_make_stages(const rf_model *model, const rf_plan_options *options, rf_plan_depth depth, rf_plan **plan, rf_error *error);

/* plan.c: remat, and a plan of a graph that was built; takes the graph over, also where it fails. */
rf_status rf_plan_finish(rf_graph *graph, const rf_plan_options *options, rf_plan_depth depth, rf_plan **plan, rf_error *error);
/* plan.c: a plan of a graph as it is (taken over); and of a model. `base` (may be NULL): what rf_graph_build makes of it with these build options, which has to
 * outlive the plan. */
rf_plan *rf_plan_of_graph(rf_graph *graph, const rf_plan_options *options, rf_plan_depth depth);
rf_status rf_plan_make_to(rf_plan_depth depth, const rf_model *model, const rf_plan_options *options, const rf_graph *base, rf_plan **plan,
                          rf_error *error);

#endif
