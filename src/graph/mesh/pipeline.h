/* pipeline.h - pipeline parallelism: which layers each stage has, and in which order a stage runs
 * the forward and backward passes of its microbatches. The planner predicts the times of these
 * passes.
 *
 * The layers are divided into `stages * chunks` runs, called pieces. Piece p is on stage `p %
 * stages` and is chunk number `p / stages` of that stage. The first piece also has the embedding;
 * the last piece also has the head and the loss. */
#ifndef RF_PIPELINE_H
#define RF_PIPELINE_H

#include "graph/graph.h"

static inline int rf_pipeline_stages(const rf_mesh *mesh) {
  return (int)rf_mesh_extent(mesh, RF_AXIS_PIPELINE);
}
static inline int rf_pipeline_chunks(const rf_mesh *mesh) { return mesh->chunks > 1 ? mesh->chunks : 1; }
static inline int rf_pipeline_pieces(const rf_mesh *mesh) {
  return rf_pipeline_stages(mesh) * rf_pipeline_chunks(mesh);
}
const char *rf_pipeline_schedule_name(rf_pipeline_schedule schedule); /* "1f1b", "gpipe" or "interleaved" */
/* Parses `1f1b`, `gpipe` or `interleaved:V` into the mesh. RAFTER_INVALID: for any other text. */
rf_status rf_pipeline_parse(const char *text, rf_mesh *mesh, rf_error *error);

/* The layers of a piece. If the pieces cannot have equal numbers of layers, the later pieces have
 * one layer more. The last piece never gets an extra layer, because it has the head. Piece 0 gets
 * an extra layer only after all others, because it has the embedding and the most microbatches in
 * flight. */
void rf_pipeline_layers(const rf_mesh *mesh, int64_t layers, int piece, int64_t *first, int64_t *count);
int rf_pipeline_piece_of_layer(const rf_mesh *mesh, int64_t layers, int64_t layer);

/* The forward or backward pass of one chunk on one microbatch. */
typedef struct rf_half {
  int32_t chunk, micro;
  bool backward;
} rf_half;
/* Writes to `order` the 2 x chunks x micros forward and backward passes of a stage, in the order of
 * execution. Every chunk runs the microbatches in ascending order, both forward and backward. So
 * gradients are summed in the same order as on one chip. The schedule gpipe runs all forward
 * passes, then all backward passes (Huang et al. 2019). The schedule 1f1b first runs one forward
 * pass for each later stage, then alternates forward and backward passes (PipeDream-flush,
 * Narayanan et al. 2021). The schedule interleaved alternates in the same way. A stage changes to
 * another chunk after every `stages` microbatches (Megatron-LM, Narayanan et al. 2021, section
 * 2.2). */
void rf_pipeline_order(const rf_mesh *mesh, int stage, int micros, rf_half *order);
/* Maximum number of microbatches whose forward pass a chunk has run, but not yet the backward
 * pass. */
int rf_pipeline_in_flight(const rf_mesh *mesh, int stage, int micros, int chunk);
/* Idle fraction of a pipeline whose stages take equal time: `(P - 1) / (V * m + P - 1)`, with P
 * stages, V chunks per stage and m microbatches. */
double rf_pipeline_bubble(const rf_mesh *mesh, int micros);

/* Writes for each op the number of its half: its chunk and its direction. For each chunk, `2 *
 * chunk` is the forward pass, and `2 * chunk + 1` the backward pass. -1 is for ops outside the
 * section `micro`. */
void rf_pipeline_halves(const rf_graph *graph, int *half);
/* Sets rf_tensor.slots of every tensor. Must run after all passes that move ops. */
void rf_pass_slots(rf_graph *graph);

static inline int rf_slots_of(const rf_tensor *tensor) { return tensor->slots > 1 ? tensor->slots : 1; }
/* Offset in bytes, within a tensor, of the slot of a microbatch. */
static inline int64_t rf_slot_at(const rf_tensor *tensor, int micro) {
  return micro % rf_slots_of(tensor) * rf_round_up(rf_tensor_bytes(tensor), 64);
}
/* True if no other tensor uses the bytes of the slots between the passes of a microbatch. */
static inline bool rf_slots_are_held(const rf_tensor *tensor, const rf_mesh *mesh) {
  return tensor->slots > 1 || (tensor->slots == 1 && rf_pipeline_chunks(mesh) > 1);
}
enum { RF_MAX_RUN_STAGES = 64 }; /* of a pipeline that runs */
static inline bool rf_tensor_is_elsewhere(const rf_tensor *tensor, const rf_mesh *mesh) {
  return tensor->stages && !(tensor->stages >> mesh->stage & 1);
}
/* Adds to the program of one stage a description of each tensor that only other stages store:
 * weights and their moments, inputs and outputs. So callers find every tensor on every stage. Sets
 * rf_tensor.stages. `stage` has the programs of all stages, and `graph` is one of these
 * programs. */
void rf_pass_elsewhere(rf_graph *graph, rf_graph *const *stage);

/* Makes the program of pipeline stage mesh->stage. The program has the ops of the stage's pieces.
 * The program sends tensors that other stages read, and receives tensors that other stages make. */
rf_status rf_pass_stage(const rf_graph *whole, const rf_mesh *mesh, rf_graph **out, rf_error *error);

#endif
