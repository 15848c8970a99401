/* mesh.h - how many chips share a job, along which axes, and how tensors are sharded over them.
 * This file only counts chips; src/machine describes the links between chips. */
#ifndef RF_MESH_H
#define RF_MESH_H

#include "base/base.h"

/* The axes of a mesh. In the numbering of chips, the last axis varies fastest. The axis `slice`
 * crosses the data-centre network and splits the batch, as the axis `data` does. The axis
 * `sequence` shards rows. In attention, the axis `sequence` shards heads instead (Ulysses). The
 * axis `context` shards the tokens of every sequence. */
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
const char *rf_axis_name(rf_axis axis); /* as "slice", "pipeline", "data" */

typedef uint8_t rf_axes; /* a set of axes, one bit per rf_axis */
#define RF_AXIS_BIT(axis) ((rf_axes)(1u << (axis)))

/* The order in which a pipeline stage runs its microbatches; see pipeline.h. */
typedef enum rf_pipeline_schedule {
  RF_PIPELINE_1F1B,
  RF_PIPELINE_GPIPE,
  RF_PIPELINE_INTERLEAVED
} rf_pipeline_schedule;

typedef struct rf_mesh {
  int32_t of[RF_AXES]; /* number of chips along each axis; 0 means 1 */
  /* Stage of ZeRO. 1 shards optimizer states, 2 also gradients, 3 also weights. 0: nothing is
   * sharded. */
  int32_t zero;
  /* Maximum number of rows that an expert accepts from one chip, divided by the rows that it would
   * get if all experts got equally many. The expert drops all further rows. */
  float capacity;
  rf_pipeline_schedule schedule;
  int32_t chunks; /* number of runs of layers on each pipeline stage; 0 means 1 */
  int32_t stage;  /* number of the pipeline stage for which the program is built */
  rf_axes pinned; /* bit of the axis that uses the link between the two dies of a chip; 0: no axis uses it */
} rf_mesh;

static inline int64_t rf_mesh_extent(const rf_mesh *mesh, rf_axis axis) {
  return mesh->of[axis] > 0 ? mesh->of[axis] : 1;
}
int64_t rf_mesh_size(const rf_mesh *mesh, rf_axes axes); /* number of chips in a group over the given axes */
int64_t rf_mesh_chips(const rf_mesh *mesh);              /* all chips */
/* Returns those of the `axes` that have more than one chip. */
rf_axes rf_mesh_live(const rf_mesh *mesh, rf_axes axes);
/* The axes that shard the rows of a forward pass of generation. rf_mesh_copies returns the number
 * of copies of the model. Each copy of the model serves its own sequences. */
#define RF_AXES_OF_PASS ((rf_axes)(RF_AXIS_BIT(RF_AXIS_CONTEXT) | RF_AXIS_BIT(RF_AXIS_SEQUENCE)))
int64_t rf_mesh_copies(const rf_mesh *mesh);
/* The axes along which chips exchange nothing during generation. Chips that differ along the
 * returned axes have separate copies of the model. Copies along fsdp and expert share weights, so
 * all of them run each step together. */
rf_axes rf_mesh_apart(const rf_mesh *mesh);
/* Text of a mesh: "data=2, fsdp=16" or "one chip". */
const char *rf_mesh_text(const rf_mesh *mesh, char text[160]);
/* Parses `data=2,fsdp=16,tensor=4@d2d`. zero < 0 means 3. RAFTER_INVALID: for a bad part. */
rf_status rf_mesh_parse(const char *text, int zero, rf_mesh *mesh, rf_error *error);

/* Rank of the chip with coordinates `place` within its group over `axes`. */
int64_t rf_mesh_rank(const rf_mesh *mesh, rf_axes axes, const int32_t place[RF_AXES]);

/* The part of a dimension that a chip gets. A run is a contiguous range. */
typedef enum rf_form {
  RF_FORM_BLOCKS, /* one run */
  RF_FORM_HALVES, /* one run of the gate columns, and one run of the up columns */
  RF_FORM_HEADS,  /* a range of the query heads, of the key heads and of the value heads */
  RF_FORM_KEYS,   /* a run of the key heads; other chips may get the same run */
  RF_FORM_EACH,   /* a run of the rows of every expert */
  RF_FORM_STRIDED /* every n-th row, for n chips */
} rf_form;

/* Sharding of a tensor: the axes that shard each dimension, and the axes over which the tensor is a
 * partial sum. If all fields of a sharding are zero, every chip has the full tensor. */
typedef struct rf_spec {
  rf_axes split[4];
  rf_axes partial;
  uint8_t form[4]; /* rf_form */
} rf_spec;

#endif
