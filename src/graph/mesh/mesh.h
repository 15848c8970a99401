/* mesh.h - how many chips share a job, along which axes, and how a tensor's dimensions are cut
 * over them. Counts only: which links join the chips is the machine's affair. */
#ifndef RF_MESH_H
#define RF_MESH_H

#include "base/base.h"

/* In the order in which a chip's number counts them, the outermost first. `slice` crosses the
 * data-centre network; it splits the batch as `data` does. `sequence` deals rows and heads out
 * around attention (Ulysses); `context` deals the tokens of every sequence out. */
typedef enum rf_axis {
  RF_AXIS_SLICE,
  RF_AXIS_PIPELINE,
  RF_AXIS_DATA,
  RF_AXIS_EXPERT,
  RF_AXIS_FSDP,
  RF_AXIS_CONTEXT,
  RF_AXIS_SEQUENCE,
  RF_AXIS_TENSOR,
  RF_AXES
} rf_axis;
const char *rf_axis_name(rf_axis axis); /* "slice", "pipeline", "data", ... */

typedef uint8_t rf_axes; /* a set of axes: bit of each */
#define RF_AXIS_BIT(axis) ((rf_axes)(1u << (axis)))

/* In which order a stage of a pipeline runs its microbatches: pipeline.h. */
typedef enum rf_pipeline_schedule {
  RF_PIPELINE_1F1B,
  RF_PIPELINE_GPIPE,
  RF_PIPELINE_INTERLEAVED
} rf_pipeline_schedule;

typedef struct rf_mesh {
  int32_t of[RF_AXES]; /* chips along each axis; 0 counts as 1 */
  /* ZeRO stage: 1 splits the optimizer's states, 2 gradients too, 3 weights too; 0: none */
  int32_t zero;
  /* along expert: rows that an expert takes of a chip, as a multiple of an even share; 0: 1.
   * What is more is left out */
  float capacity;
  rf_pipeline_schedule schedule;
  int32_t chunks; /* runs of layers that each stage of a pipeline has; 0: 1 */
  int32_t stage;  /* along pipeline: whose program it is */
  rf_axes pinned; /* the one axis that sits on the link between two dies of a chip; 0: none */
} rf_mesh;

static inline int64_t rf_mesh_extent(const rf_mesh *mesh, rf_axis axis) {
  return mesh->of[axis] > 0 ? mesh->of[axis] : 1;
}
int64_t rf_mesh_size(const rf_mesh *mesh, rf_axes axes); /* chips in a group over these axes */
int64_t rf_mesh_chips(const rf_mesh *mesh);              /* all */
/* The axes of `axes` that have more than one chip. */
rf_axes rf_mesh_live(const rf_mesh *mesh, rf_axes axes);
/* In generation: the axes over which chips deal out the rows of a walk, and how many copies of
 * the model each serve sequences of their own. */
#define RF_AXES_OF_WALK ((rf_axes)(RF_AXIS_BIT(RF_AXIS_CONTEXT) | RF_AXIS_BIT(RF_AXIS_SEQUENCE)))
int64_t rf_mesh_copies(const rf_mesh *mesh);
/* "data=2, fsdp=16"; "one chip". */
const char *rf_mesh_text(const rf_mesh *mesh, char text[160]);
/* Reads `data=2,fsdp=16,tensor=4@d2d`; `zero` < 0 is not said: 3. RAFTER_INVALID names the axis
 * or number. */
rf_status rf_mesh_parse(const char *text, int zero, rf_mesh *mesh, rf_error *error);

/* Rank of the chip with coordinates `place` in its group over `axes`. */
int64_t rf_mesh_rank(const rf_mesh *mesh, rf_axes axes, const int32_t place[RF_AXES]);

/* How a dimension is cut. BLOCKS: one run for each chip; HALVES: a run of each half (gate, up);
 * HEADS: a run of the query, of the key and of the value heads; KEYS: a run of the key heads, of
 * which several chips may have the same; EACH: a run of each expert's rows; DEALT: every n-th
 * row. */
typedef enum rf_form {
  RF_FORM_BLOCKS,
  RF_FORM_HALVES,
  RF_FORM_HEADS,
  RF_FORM_KEYS,
  RF_FORM_EACH,
  RF_FORM_DEALT
} rf_form;

/* How a tensor lies on the mesh: the axes that cut each dimension, and those over which a sum is
 * outstanding. All zero: every chip has all of it. */
typedef struct rf_spec {
  rf_axes split[4];
  rf_axes partial;
  uint8_t form[4]; /* rf_form */
} rf_spec;

#endif
