/* sampling.h - sampling settings and end tokens, from options and generation_config.json. */
#ifndef RF_SAMPLING_H
#define RF_SAMPLING_H

#include "api/api.h"

#include "generate/sampler.h"
#include "text/tokenizer.h"

/* Token ids that end an answer: end tokens of the model, the tokenizer and generation_config.json,
 * and end-of-turn tokens of known chat templates. `tokenizer` may be NULL. */
enum { RF_MARKS = 32 };
typedef struct rf_marks {
  int32_t id[RF_MARKS];
  int count;
} rf_marks;
rf_status rf_marks_of(const rf_settings *settings, const rf_tokenizer *tokenizer, rf_marks *marks,
                      rf_error *error);

/* Sets numbers and seed of `sampling` from the options. The lists of `sampling` do not change. */
void rf_sampling_typed(const rf_options *options, rf_sampler_options *sampling);
/* Like rf_sampling_typed. If an option is not given, its value comes from generation_config.json,
 * and a note to the sink says so. */
rf_status rf_sampling_of(const rf_options *options, const rf_settings *settings, const rafter_sink *sink,
                         rf_sampler_options *sampling, rf_error *error);
/* {"temperature", "top_k", ..., "seed"} */
json_t *rf_sampling_json(const rf_sampler_options *sampling);
/* Replaces settings by the settings in a JSON row. Errors name the row by `where`. */
rf_status rf_sampling_of_row(const json_t *json, const char *where, rf_sampler_options *sampling,
                             rf_error *error);

extern const rf_option RF_SAMPLING_OPTIONS[];

#endif
