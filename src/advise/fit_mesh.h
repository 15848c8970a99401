/* fit_mesh.h - compares meshes for --fit of jobs other than training, and for --mesh auto. */
#ifndef RF_ADVISE_FIT_MESH_H
#define RF_ADVISE_FIT_MESH_H

#include "advise/planned.h"

/* Sets --mesh of `options` to the mesh with the highest rate, if the user gave no mesh and the
 * machine has several chips. The compared rate is the rate of a decoding step or of a forward pass.
 * The batch of this step is --batch, or the largest batch that fits. `line` becomes "", or a
 * sentence that names the best mesh and the meshes that it was compared with. */
rf_status rf_fit_mesh(rf_options *options, const char *job, const rf_settings *settings, char line[240],
                      rf_error *error);
/* Implements --mesh auto: sets --mesh to the mesh of `chips` chips that fits and has the highest
 * predicted rate. `line` as above. RAFTER_NO_FIT: no mesh fits. RAFTER_INVALID: no mesh can run the
 * job, for another reason than memory. */
rf_status rf_mesh_auto(rf_options *options, const char *job, int chips, char line[240], rf_error *error);

#endif
