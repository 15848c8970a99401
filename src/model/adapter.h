/* adapter.h - adapters in the files of Hugging Face's PEFT: a folder with adapter_config.json
 * and adapter_model.safetensors. */
#ifndef RF_ADAPTER_H
#define RF_ADAPTER_H

#include "model/weights.h"

/* Whether a folder holds an adapter. */
bool rf_adapter_is(const char *folder);
/* The model it was made for, as its files name it: a path as seen from here, or what they say
 * where nothing is there. */
rf_status rf_adapter_base(const char *folder, char base[4096], rf_error *error);

/* Which adapters the folder, or the run's newest checkpoint in it, has for this model, their
 * rank and scale; lora->folder is that folder. Sites of a smaller rank, or with an alpha of
 * their own, are carried at the largest rank with the same product. RAFTER_FAILED names a file,
 * tensor or field: what the program cannot compute (DoRA, biases, whole modules, ...), a tensor
 * of another shape or without a place in the model. */
rf_status rf_adapter_open(const char *folder, const rf_model *model, rf_lora *lora, rf_error *error);
/* Visits every adapter parameter of `params` (behind params->base) once, whole. */
rf_status rf_adapter_read(const char *folder, const rf_model *model, const rf_params *params,
                          rf_weights_visit visit, void *context, rf_error *error);
/* Whether an adapter's files can name this base: UTF-8. To be asked before the work, not after
 * it. */
rf_status rf_adapter_base_check(const char *base, rf_error *error);
/* Writes both files, f32. `base`: base_model_name_or_path. The folder must be there. */
rf_status rf_adapter_write(const char *folder, const rf_model *model, const rf_params *params,
                           const char *base, rf_weights_source source, void *context, rf_error *error);

/* Adapters held in memory to be added to the weights they stand beside. */
typedef struct rf_merger rf_merger;
/* model->lora says which, and where from. */
rf_status rf_merger_open(const rf_model *model, rf_merger **merger, rf_error *error);
void rf_merger_close(rf_merger *merger); /* NULL is allowed */
/* An rf_weights_source of the adapters as they are: parameters behind params->base. */
rf_status rf_merger_values(void *merger, int param, int64_t first, int64_t count, float *values,
                           rf_error *error);
/* Adds scale (A B), summed in f64, to elements [first, first + count) of base parameter `param`. */
void rf_merger_add(const rf_merger *merger, int param, int64_t first, int64_t count, float *values);

#endif
