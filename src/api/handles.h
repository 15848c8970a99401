/* handles.h - shared by the handles of rafter.h. */
#ifndef RF_HANDLES_H
#define RF_HANDLES_H

#include "api/api.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct rafter_tokenizer {
  rf_tokenizer *tokenizer;
  rf_chat *chat; /* NULL: the model has no template */
};

/* A copy of the job's options, with the name of a run replaced by its folder. RAFTER_INVALID: the
 * job is for another command. Free with rf_options_free(). */
rf_status rf_handle_options(const rafter_job *job, const char *command, rf_options **options,
                            rf_error *error);
rf_status rf_tokenizer_handle(const rf_options *options, const rf_model *model, const char *folder,
                              rafter_tokenizer **tokenizer, rf_error *error);

/* Copies a caller's sized struct into the zeroed `own`, up to the smaller of both sizes.
 * RAFTER_INVALID: the caller did not set the size. */
rf_status rf_sized_copy(void *own, size_t size, const void *from, size_t from_size, const char *name,
                        rf_error *error);
/* Copies `own` into the caller's sized struct and keeps the caller's `size` field. */
void rf_sized_give(void *to, const void *own, size_t size);

#endif
