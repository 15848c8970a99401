/* sampling.h - sampling settings from JSON, and the token ids that end an answer. */
#ifndef RF_SAMPLING_H
#define RF_SAMPLING_H

#include "base/json.h"
#include "generate/sampler.h"
#include "model/model.h"
#include "text/tokenizer.h"

/* Token ids that end an answer: end tokens of the model, the tokenizer and generation_config.json,
 * and end-of-turn tokens of known chat templates. */
enum { RF_END_IDS = 32 };
typedef struct rf_end_ids {
  int32_t id[RF_END_IDS];
  int count;
} rf_end_ids;
/* Finds the end ids of a model. `folder` is the path that rf_model_resolve returns; `tokenizer` may
 * be NULL. */
rf_status rf_end_ids_of(const rf_model *model, const char *folder, const rf_tokenizer *tokenizer,
                        rf_end_ids *ends, rf_error *error);

/* The numbers in rf_sampler_options that a user chooses, except the seed. */
typedef struct rf_sampling_number {
  const char *name, *key; /* `name`: "top-k" in messages. `key`: "top_k" in JSON. */
  double least, most;     /* Range in a request. */
  size_t at;              /* Offset in rf_sampler_options. */
} rf_sampling_number;
enum { RF_SAMPLING_NUMBERS = 7 };
extern const rf_sampling_number RF_SAMPLING[RF_SAMPLING_NUMBERS];
/* Sets number `which` of RF_SAMPLING. A top_p of 0 keeps only the likeliest token. */
void rf_sampling_set(rf_sampler_options *sampling, int which, double value);

/* Sets numbers to the values of generation_config.json in `folder`, if the file exists. Leaves
 * number i unchanged if bit i of `given` is set. Lists the changes in `said`, as in "top-k 3,
 * ...". */
rf_status rf_sampling_prefer(const char *folder, unsigned given, rf_sampler_options *sampling, char said[256],
                             rf_error *error);
/* Sets numbers to the values of a JSON object; `where` names the object in errors. */
rf_status rf_sampling_of_json(const json_t *json, const char *where, rf_sampler_options *sampling,
                              rf_error *error);
/* {"temperature", "top_k", ..., "seed"} */
json_t *rf_sampling_json(const rf_sampler_options *sampling);

#endif
