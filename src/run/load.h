/* load.h - loads parameters from files into the arena of a run. */
#ifndef RF_LOAD_H
#define RF_LOAD_H

#include "run/run.h"

/* Reports the progress of a long load, and can end the load early. */
typedef struct rf_progress {
  void (*report)(void *self, const char *what, double part); /* part: 0 to 1. NULL: no reports. */
  void *self;
  int64_t least_bytes; /* Smaller loads are not reported. 0 means RF_LOAD_LONG_BYTES. */
  /* If *stop is not 0, the load or the forward pass ends with RAFTER_INTERRUPTED. NULL: never. */
  const volatile int *stop;
} rf_progress;
enum { RF_LOAD_LONG_BYTES = 1 << 30 };

/* Loads the weights of a plan. Weights are f32 masters with their bf16 copies, or are rounded to
 * their dtype. For `path`, see rf_weights_read. */
rf_status rf_load_weights(rf_run *run, int plan, const rf_plan *of, const char *path, rf_error *error);
rf_status rf_load_adapters(rf_run *run, int plan, const rf_plan *of, const char *folder, rf_error *error);
/* Fills all parameters before the first step. Weights come from `path`. If `path` is NULL or "",
 * the weights are random numbers. Adapters come from model.lora.folder. If the folder is empty, the
 * adapters are random numbers. Reports the progress in steps of 1 %. Needs memory for at most one
 * tensor of the file and a few MiB, besides the arena. */
rf_status rf_fill_weights(rf_run *run, int plan, const rf_plan *of, const char *path, uint64_t seed,
                          rf_progress progress, rf_error *error);

#endif
