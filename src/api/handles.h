/* handles.h - declarations that the handles of rafter.h share. */
#ifndef RF_HANDLES_H
#define RF_HANDLES_H

#include "api/api.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct rafter_tokenizer {
  rf_tokenizer *tokenizer;
  rf_chat *chat; /* chat template; NULL: the model has no template */
};

/* Copies the job's options. If an option names a run, the copy has the run's folder instead.
 * Returns RAFTER_INVALID if the job is for another command. A job of `serve` is accepted as a job
 * of `generate`. Free with rf_options_free(). */
rf_status rf_handle_options(const rafter_job *job, const char *command, rf_options **options,
                            rf_error *error);
rf_status rf_tokenizer_handle(const rf_options *options, const rf_model *model, const char *folder,
                              rafter_tokenizer **tokenizer, rf_error *error);

/* Copies a caller's sized struct into `own`, which must be zeroed. Copies as many bytes as both
 * structs have. Returns RAFTER_INVALID if the caller did not set the field `size`. */
rf_status rf_sized_copy(void *own, size_t size, const void *from, size_t from_size, const char *name,
                        rf_error *error);
/* Copies `own` into the caller's sized struct. The caller's `size` field does not change. */
void rf_sized_give(void *to, const void *own, size_t size);

#endif
