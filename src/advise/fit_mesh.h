/* fit_mesh.h - compares meshes: --fit of jobs that are not training, and --mesh auto. */
#ifndef RF_ADVISE_FIT_MESH_H
#define RF_ADVISE_FIT_MESH_H

#include "advise/planned.h"

/* Sets --mesh of `options` to the mesh with the highest rate, if the user left it open and the
 * machine has several chips. The rate is that of a decoding step or of a forward pass. Its batch is
 * --batch, or the largest that fits. `line` becomes a sentence that names the mesh and what it was
 * compared with, or "". */
rf_status rf_fit_mesh(rf_options *options, const char *job, const rf_settings *settings, char line[240],
                      rf_error *error);
/* --mesh auto: sets --mesh to the mesh of `chips` chips with the highest predicted rate among those
 * that fit. `line` as above. RAFTER_NO_FIT: no mesh fits. */
rf_status rf_mesh_auto(rf_options *options, const char *job, int chips, char line[240], rf_error *error);

#endif
