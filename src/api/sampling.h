/* sampling.h - how an answer is drawn and which ids end it: as typed, or else as the model's authors say in generation_config.json. */
#ifndef RF_SAMPLING_H
#define RF_SAMPLING_H

#include "api/api.h"

#include "generate/sampler.h"
#include "model/tokenizer.h"

/* Ids that end an answer: the model's, the tokenizer's, generation_config.json's, and the marks at the end of a turn that the families' templates use.
 * `tokenizer` may be NULL. */
enum { RF_MARKS = 32 };
typedef struct rf_marks {
  int32_t id[RF_MARKS];
  int count;
} rf_marks;
rf_status rf_marks_of(const rf_settings *settings, const rf_tokenizer *tokenizer, rf_marks *marks, rf_error *error);

/* Numbers and seed of `sampling`; its lists stay as they are. `said` (may be NULL) gets what came from the file, "temperature 0.7, top-k 64", or "". */
enum { RF_SAMPLING_SAID = 256 };
rf_status rf_sampling_of(const rf_options *options, const rf_settings *settings, rf_sampler_options *sampling, char said[RF_SAMPLING_SAID],
                         rf_error *error);
/* What a row of JSON says otherwise; `where` names the row. */
rf_status rf_sampling_of_row(const json_t *json, const char *where, rf_sampler_options *sampling, rf_error *error);

#endif
