/* load.h - parameters between files and a bound plan's arena. */
#ifndef RF_LOAD_H
#define RF_LOAD_H

#include "run/run.h"

/* Reports the progress of a long load. */
typedef struct rf_progress {
  void (*report)(void *self, const char *what, double part); /* NULL: none */
  void *self;
  int64_t least_bytes; /* loads of fewer bytes report nothing; 0: RF_LOAD_LONG_BYTES */
} rf_progress;
enum { RF_LOAD_LONG_BYTES = 1 << 30 };

/* Fills the parameters of plan `plan`: f32 masters and their bf16 copies where it has them,
 * otherwise weights rounded to their dtype. `path` as in rf_weights_read. */
rf_status rf_load_weights(rf_run *run, int plan, const rf_plan *of, const char *path, rf_error *error);
/* The adapters from a folder of PEFT's files. */
rf_status rf_load_adapters(rf_run *run, int plan, const rf_plan *of, const char *folder, rf_error *error);
/* Fills all parameters before the first step: weights from `path` (initialised when it is NULL or
 * ""), adapters from model.lora.folder (initialised without one). Progress grows in steps of 1 %.
 * While it loads, a process holds the arena, at most one tensor of the file, and a few MiB of
 * scratch. */
rf_status rf_fill_weights(rf_run *run, int plan, const rf_plan *of, const char *path, uint64_t seed,
                          rf_progress progress, rf_error *error);

#endif
