/* load.h - parameters between files and a bound plan's arena. */
#ifndef RF_LOAD_H
#define RF_LOAD_H

#include "run/run.h"

/* Told now and then how much of a long load is done. */
typedef struct rf_progress {
  void (*report)(void *self, const char *what, double part); /* NULL: nobody asks */
  void *self;
  int64_t least_bytes; /* of parameters that are worth telling; 0: RF_LOAD_LONG_BYTES */
} rf_progress;
enum { RF_LOAD_LONG_BYTES = 1 << 30 };

/* Fills the parameters of plan `plan`: f32 masters where it has them, weights rounded to their
 * dtype otherwise. Masters' bf16 copies are written too. `path` as in rf_weights_read. */
rf_status rf_load_weights(rf_run *run, int plan, const rf_plan *of, const char *path, rf_error *error);
/* The adapters from a folder of PEFT's files. */
rf_status rf_load_adapters(rf_run *run, int plan, const rf_plan *of, const char *folder, rf_error *error);
/* Everything that is persistent before the first walk: the weights from `path`, or initialised
 * when it is NULL or ""; the adapters, where the model has them, from model.lora.folder, or
 * initialised. Progress is told of what takes long: parts that only grow, in steps of a
 * hundredth, 1 at the end. While it loads, a process holds the arena, at most one tensor of the
 * file, and a few MiB of blocks and threads' scratch. */
rf_status rf_fill_weights(rf_run *run, int plan, const rf_plan *of, const char *path, uint64_t seed,
                          rf_progress progress, rf_error *error);

#endif
