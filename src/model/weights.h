/* weights.h - a model's parameters from and to the files other programs use: names, orientation and fused parts by one table. */
#ifndef RF_WEIGHTS_H
#define RF_WEIGHTS_H

#include "model/model.h"

/* Elements [first, first + count) of parameter `param` (row-major in the table's own shape). */
typedef rf_status (*rf_weights_visit)(void *context, int param, int64_t first, int64_t count, const float *values, rf_error *error);
typedef rf_status (*rf_weights_source)(void *context, int param, int64_t first, int64_t count, float *values, rf_error *error);

/* Reads every parameter once, in the table's order, in chunks of at most a few MiB, widened to f32, from `path`: a folder, a .safetensors file
 * or an index. All names and shapes are checked before the first visit. RAFTER_FAILED: missing, of another shape, or not the model's. */
rf_status rf_weights_read(const char *path, const rf_model *model, const rf_params *params, rf_weights_visit visit, void *context, rf_error *error);

/* Writes FOLDER/model.safetensors (rounded to `dtype`: f32, bf16 or f16) and FOLDER/config.json, with Hugging Face's names where it has such a
 * model, with our own otherwise. The folder must be there. */
rf_status rf_weights_write(const char *folder, const rf_model *model, const rf_params *params, rf_dtype dtype, rf_weights_source source,
                           void *context, rf_error *error);

#endif
