/* adapters.h - the LoRA adapters of a generator whose plan has slots for them. Adapters are loaded
 * and unloaded between steps, while answers run. */
#ifndef RF_GENERATE_ADAPTERS_H
#define RF_GENERATE_ADAPTERS_H

#include "generate/generate.h"

/* The values of one adapter in the layout of a slot. B is multiplied by the adapter's scale. */
typedef struct rf_adapter_values rf_adapter_values;

/* Reads a PEFT adapter, or the newest checkpoint of a run, and checks all of it. Any number of
 * threads may call this function, also while another thread runs a step. RAFTER_INVALID: the
 * generator has no slots. RAFTER_FAILED: the error names the file and what is wrong with it. */
rf_status rf_adapter_values_read(const rf_generator *generator, const char *folder,
                                 rf_adapter_values **values, rf_error *error);
void rf_adapter_values_free(rf_adapter_values *values); /* NULL is allowed */

/* Copies an adapter into a free slot. *id is above 0, and no later adapter gets this id.
 * RAFTER_NO_FIT: no slot is free. RAFTER_INVALID: the values are for another generator. On failure,
 * the adapters stay as they were. */
rf_status rf_generator_load(rf_generator *generator, const rf_adapter_values *values, int64_t *id,
                            rf_error *error);
/* No later request may use the adapter. Requests that were submitted before finish with this
 * adapter. Then its slot is free. RAFTER_INVALID: the id names no adapter. */
rf_status rf_generator_unload(rf_generator *generator, int64_t id, rf_error *error);

/* How many adapters new requests can use, and how many fit. */
int rf_generator_adapters(const rf_generator *generator, int *slots);

/* For the files of a generator. */
rf_status rf_adapters_open(rf_generator *generator, rf_error *error);
void rf_adapters_close(rf_generator *generator);
/* The slot of a submitted request's adapter; -1: none. */
int rf_adapters_slot(const rf_generator *generator, int64_t id);
/* RAFTER_INVALID: no adapter with this id can be used by new requests. Id 0 is the model itself,
 * and always succeeds. */
rf_status rf_adapters_check(const rf_generator *generator, int64_t id, rf_error *error);

#endif
