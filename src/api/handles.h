/* handles.h - what the handles of rafter.h share. */
#ifndef RF_HANDLES_H
#define RF_HANDLES_H

#include "api/api.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct rafter_tokenizer {
  rf_tokenizer *tokenizer;
  rf_chat *chat; /* NULL: the model has no template */
};

/* The job's options with the folder of a run in place of its name; RAFTER_INVALID: the job is of
 * another command. rf_options_free() them. */
rf_status rf_handle_options(const rafter_job *job, const char *command, rf_options **options,
                            rf_error *error);
/* The tokenizer and the chat template of a model. */
rf_status rf_tokenizer_handle(const rf_options *options, const rf_model *model, const char *folder,
                              rafter_tokenizer **tokenizer, rf_error *error);

/* A caller's sized struct into ours, which is zero: as much as both have. RAFTER_INVALID: its size
 * is 0. */
rf_status rf_sized_copy(void *own, size_t size, const void *from, size_t from_size, const char *name,
                        rf_error *error);
/* Ours into the caller's, whose size stays. */
void rf_sized_give(void *to, const void *own, size_t size);

#endif
