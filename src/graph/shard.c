/* shard.c - the program of one chip of a mesh. */
#include "graph/passes.h"

rf_status rf_pass_shard(rf_graph *graph, const rf_mesh *mesh, rf_error *error) {
  char text[160];
  (void)graph;
  return RF_FAIL(error, RAFTER_INVALID, "leave --mesh out", "this version plans for one chip (--mesh: expected one chip, got %s)",
                 rf_mesh_text(mesh, text));
}
