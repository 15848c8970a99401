/* adapter.h - LoRA adapters in the files of Hugging Face's PEFT: a folder with adapter_config.json
 * and adapter_model.safetensors. */
#ifndef RF_ADAPTER_H
#define RF_ADAPTER_H

#include "model/weights.h"

/* True if the folder contains an adapter_config.json. */
bool rf_adapter_is(const char *folder);
/* Writes the name of the adapter's base model. A relative path is resolved from the adapter's
 * folder if it exists there. If the path does not exist there, the name is returned unchanged. */
rf_status rf_adapter_base(const char *folder, char base[4096], rf_error *error);

/* Reads the sites, rank and scale of the adapters in a folder, or in the newest checkpoint of a
 * run. Sets lora->folder. An adapter with a smaller rank is padded to the largest rank. An adapter
 * with its own alpha is rescaled to the common scale. RAFTER_FAILED: the error names a file, tensor
 * or field that is unsupported (DoRA, biases, full modules, ...) or does not match the model. */
rf_status rf_adapter_open(const char *folder, const rf_model *model, rf_lora *lora, rf_error *error);
/* Calls `visit` with all values of each adapter parameter (indices from params->base on). */
rf_status rf_adapter_read(const char *folder, const rf_model *model, const rf_params *params,
                          rf_weights_visit visit, void *context, rf_error *error);
/* Checks that the base model's path is UTF-8, as adapter_config.json requires. Call before
 * training. */
rf_status rf_adapter_base_check(const char *base, rf_error *error);
/* Writes both files in f32. `base` becomes base_model_name_or_path. The folder must exist. */
rf_status rf_adapter_write(const char *folder, const rf_model *model, const rf_params *params,
                           const char *base, rf_weights_source source, void *context, rf_error *error);

/* Adapters in memory that are added to their base weights. */
typedef struct rf_merger rf_merger;
/* model->lora has the adapters and their folder. */
rf_status rf_merger_open(const rf_model *model, rf_merger **merger, rf_error *error);
void rf_merger_close(rf_merger *merger); /* NULL is allowed */
/* An rf_weights_source for the values of adapter parameters (indices from params->base on). */
rf_status rf_merger_values(void *merger, int param, int64_t first, int64_t count, float *values,
                           rf_error *error);
/* Adds scale * A * B to elements first to first + count - 1 of parameter `param`, with sums in
 * f64. */
void rf_merger_add(const rf_merger *merger, int param, int64_t first, int64_t count, float *values);

#endif
