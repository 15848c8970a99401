/* compiled_target.h - describes a machine to a compiler: as a topology that the TPU compiler knows
 * by name, or as the sizes of a GPU. */
#ifndef RF_COMPILED_TARGET_H
#define RF_COMPILED_TARGET_H

#include "machine/machine.h"

typedef struct rf_compiled_target {
  const char *platform; /* "tpu" or "cuda" */
  char name[64];        /* for people: "v5e:2x4", "h100-sxm:1x8" */
  char topology[64];    /* for the plugin */
  char config[2048];    /* GpuTargetConfigProto as text; "" if the plugin knows the topology */
} rf_compiled_target;

/* RAFTER_INVALID: no compiler is known for the machine. */
rf_status rf_compiled_target_of(const rf_machine *machine, rf_compiled_target *target, rf_error *error);

#endif
