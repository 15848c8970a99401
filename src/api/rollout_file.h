/* rollout_file.h - the output file of `rollout`. If a run stops early, the same command completes
 * the file.
 *
 * OUT.settings.json records the options, the model and the prompts of the file OUT. A run continues
 * OUT only if the recorded options, model and prompts are equal to its own. Then a missing answer
 * gets the same bits as in an uninterrupted run. */
#ifndef RF_ROLLOUT_FILE_H
#define RF_ROLLOUT_FILE_H

#include "api/answering.h"
#include "model/fingerprint.h"

typedef struct rf_rollout_file {
  const char *path;
  json_t *settings; /* of this run */
  int64_t keep;     /* bytes of the complete rows of earlier runs */
  bool repairs;     /* true if an incomplete line follows the complete rows */
  bool continues;   /* true if an earlier run had the same settings */
} rf_rollout_file;

/* Opens `path` for the answers to the prompts of `answering`, before the prompts are queued. Sets
 * the fields out, written and sample of `answering`. Does not change the file. Returns
 * RAFTER_FAILED if the file cannot be written, or if the file has answers with other settings, or
 * other content. With `overwrite`, the file counts as empty. */
rf_status rf_rollout_open(rf_answering *answering, const rf_options *options, const char *path,
                          bool overwrite, rf_rollout_file *file, rf_error *error);
/* Truncates the file after the kept rows, and records the settings of a new file. Call
 * rf_rollout_begin before writing the first row. */
rf_status rf_rollout_begin(const rf_answering *answering, const rf_rollout_file *file, rf_error *error);
/* Writes a fingerprint of everything that the answers depend on, except the model and the form of
 * answers. */
void rf_rollout_prompts_text(const rf_answering *answering, char text[RF_FINGERPRINT_TEXT]);
void rf_rollout_close(rf_rollout_file *file); /* accepts {0} */

#endif
