/* pipeline.h - stages of a model along the axis `pipeline`: which layers stand on which, and in
 * which order a stage runs the halves (forward, backward) of its microbatches. Counts only: what
 * a half takes is the plan's affair.
 *
 * The layers are cut into stages x chunks pieces; piece p stands on stage p % stages as its
 * chunk p / stages. The embedding goes with the first piece, the head and the loss with the
 * last. */
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
const char *rf_pipeline_schedule_name(rf_pipeline_schedule schedule); /* "1f1b", "gpipe", "interleaved" */
/* Reads `1f1b`, `gpipe` or `interleaved:V` into the mesh. RAFTER_INVALID says what is expected. */
rf_status rf_pipeline_parse(const char *text, rf_mesh *mesh, rf_error *error);

/* The layers of a piece. What does not divide goes to late pieces, but not to the last, which
 * has the head, and to the first one last, which has the embedding and holds most microbatches. */
void rf_pipeline_layers(const rf_mesh *mesh, int64_t layers, int piece, int64_t *first, int64_t *count);
int rf_pipeline_piece_of_layer(const rf_mesh *mesh, int64_t layers, int64_t layer);

/* The work of one chunk on one microbatch, forward or backward. */
typedef struct rf_half {
  int32_t chunk, micro;
  bool backward;
} rf_half;
/* How a stage runs `micros` microbatches: 2 x chunks x micros halves into `order`. Every chunk
 * sees them in ascending order, both ways, so gradients are summed in the order in which one
 * chip sums them. gpipe: all forward, then all backward (Huang et al. 2019). 1f1b: as many
 * forward as there are stages behind, then in turns (PipeDream-flush, Narayanan et al. 2021).
 * interleaved: in turns over chunks, in groups of `stages` microbatches (Megatron-LM, Narayanan
 * et al. 2021, section 2.2). */
void rf_pipeline_order(const rf_mesh *mesh, int stage, int micros, rf_half *order);
/* Microbatches whose forward half a chunk has done and whose backward half it has not, at most. */
int rf_pipeline_in_flight(const rf_mesh *mesh, int stage, int micros, int chunk);
/* What of the microbatches' time a pipeline of even stages waits: (P-1)/(V m + P-1). */
double rf_pipeline_bubble(const rf_mesh *mesh, int micros);

/* Which half of the loop of microbatches each op belongs to: 2 x chunk, +1 in backward; -1:
 * none, it stands outside the loop. */
void rf_pipeline_halves(const rf_graph *graph, int *half);
/* Says of every tensor how many microbatches it holds at once (rf_tensor.slots). Behind all
 * passes that move ops. */
void rf_pass_slots(rf_graph *graph);

/* The program of stage mesh->stage: the ops of its pieces out of the whole graph, with a send or
 * a receive where a tensor crosses to another piece. */
rf_status rf_pass_stage(const rf_graph *whole, const rf_mesh *mesh, rf_graph **out, rf_error *error);

#endif
