/* rollout_file.h - the output file of `rollout`, which a later run of the same command finishes.
 *
 * OUT.settings.json records the options, the model and the prompts of the file OUT. A run continues
 * OUT only if they are equal, because then each missing answer has the bits that it would have
 * had. */
#ifndef RF_ROLLOUT_FILE_H
#define RF_ROLLOUT_FILE_H

#include "api/answering.h"

typedef struct rf_rollout_file {
  const char *path;
  json_t *settings; /* of this run */
  int64_t keep;     /* bytes of the rows of earlier runs */
  bool repairs;     /* an incomplete line follows these rows */
  bool continues;   /* an earlier run had the same settings */
} rf_rollout_file;

/* Opens `path` for the answers to the prompts of `answering`, which are not queued yet. Sets its
 * fields out, written and sample. Changes nothing in the file. RAFTER_FAILED: the file has answers
 * of other settings or of another program, or cannot be written. With `overwrite`, the file counts
 * as empty. */
rf_status rf_rollout_open(rf_answering *answering, const rf_options *options, const char *path,
                          bool overwrite, rf_rollout_file *file, rf_error *error);
/* Removes what does not belong to the kept rows, and records the settings of a new file. Call it
 * before the first row. */
rf_status rf_rollout_begin(const rf_answering *answering, const rf_rollout_file *file, rf_error *error);
void rf_rollout_close(rf_rollout_file *file); /* accepts {0} */

#endif
