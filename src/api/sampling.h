/* sampling.h - how an answer is drawn and which ids end it: as typed, or else as the model's
 * authors say in generation_config.json. */
#ifndef RF_SAMPLING_H
#define RF_SAMPLING_H

#include "api/api.h"

#include "generate/sampler.h"
#include "text/tokenizer.h"

/* Ids that end an answer: the model's, the tokenizer's, generation_config.json's, and the marks
 * at the end of a turn that the families' templates use. `tokenizer` may be NULL. */
enum { RF_MARKS = 32 };
typedef struct rf_marks {
  int32_t id[RF_MARKS];
  int count;
} rf_marks;
rf_status rf_marks_of(const rf_settings *settings, const rf_tokenizer *tokenizer, rf_marks *marks,
                      rf_error *error);

/* Numbers and seed of `sampling` from the options; its lists stay as they are. */
void rf_sampling_typed(const rf_options *options, rf_sampler_options *sampling);
/* The same, and where nothing was typed as generation_config.json says, which the sink is told. */
rf_status rf_sampling_of(const rf_options *options, const rf_settings *settings, const rafter_sink *sink,
                         rf_sampler_options *sampling, rf_error *error);
/* {"temperature", "top_k", ..., "seed"} */
json_t *rf_sampling_json(const rf_sampler_options *sampling);
/* What a row of JSON says otherwise; `where` names the row. */
rf_status rf_sampling_of_row(const json_t *json, const char *where, rf_sampler_options *sampling,
                             rf_error *error);

extern const rf_option RF_SAMPLING_OPTIONS[];

#endif
