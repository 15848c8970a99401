/* Reads any text as config.json. A model that is accepted has a parameter table with positive
 * counts that add up. */
#include <stdlib.h>

#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  rf_model model;
  rf_error error;
  if (rf_model_config_parse((const char *)data, bytes, "fuzz", &model, &error) != RAFTER_OK) return 0;
  rf_pool *pool = rf_pool_new();
  rf_params params = rf_model_params(&model, pool);
  int64_t total = 0;
  for (int i = 0; i < params.count; ++i) {
    if (params.at[i].count < 1) abort();
    total += params.at[i].count;
  }
  if (total != params.total || params.matmul > params.total) abort();
  rf_pool_free(pool);
  return 0;
}
