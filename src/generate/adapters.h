/* adapters.h - the LoRA adapters of a generator whose plan has slots for adapters. Adapters are
 * loaded and unloaded between steps, while answers run. */
#ifndef RF_GENERATE_ADAPTERS_H
#define RF_GENERATE_ADAPTERS_H

#include "generate/generate.h"

/* The values of one adapter in the layout of a slot. B is multiplied by the adapter's scale. */
typedef struct rf_adapter_values rf_adapter_values;

/* Reads and checks a PEFT adapter, or the newest checkpoint of a run. Any number of threads may
 * call this function, also while another thread runs a step. Returns RAFTER_INVALID if the
 * generator has no slots. Returns RAFTER_FAILED for an invalid file, with an error that names the
 * file and its fault. */
rf_status rf_adapter_values_read(const rf_generator *generator, const char *folder,
                                 rf_adapter_values **values, rf_error *error);
void rf_adapter_values_free(rf_adapter_values *values); /* NULL is allowed */

/* Copies an adapter into a free slot. *id is above 0, and no later adapter gets this id.
 * RAFTER_NO_FIT: no slot is free. RAFTER_INVALID: the values are for another generator. After a
 * failure, the loaded adapters are unchanged. */
rf_status rf_generator_load(rf_generator *generator, const rf_adapter_values *values, int64_t *id,
                            rf_error *error);
/* Unloads an adapter: new requests can no longer use the adapter. Earlier requests still finish
 * with this adapter, and its slot is free afterwards. RAFTER_INVALID: no loaded adapter has this
 * id. */
rf_status rf_generator_unload(rf_generator *generator, int64_t id, rf_error *error);

/* Returns the number of adapters that new requests can use. *slots is the maximum number. */
int rf_generator_adapters(const rf_generator *generator, int *slots);

/* The following functions are only for the files of src/generate. */
rf_status rf_adapters_open(rf_generator *generator, rf_error *error);
void rf_adapters_close(rf_generator *generator);
/* Returns the slot of a submitted request's adapter; -1: the request has no adapter. */
int rf_adapters_slot(const rf_generator *generator, int64_t id);
/* Returns RAFTER_INVALID if new requests cannot use an adapter with this id. Id 0 is the model
 * without an adapter, and is always allowed. */
rf_status rf_adapters_check(const rf_generator *generator, int64_t id, rf_error *error);

#endif
