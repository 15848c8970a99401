/* Reads any bytes as JSON. A value that parses is written as text that parses to the same value. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  rf_error error;
  json_t *json, *again;
  if (rf_json_parse((const char *)data, bytes, "fuzz", &json, &error) != RAFTER_OK) return 0;
  for (int indent = 0; indent <= 2; indent += 2) {
    char *text = rf_json_text(json, indent);
    if (!text || rf_json_parse(text, strlen(text), "again", &again, &error) != RAFTER_OK ||
        !json_equal(json, again))
      abort();
    json_decref(again);
    free(text);
  }
  int64_t whole;
  const char *string;
  rf_json_int_or(json, "a", "fuzz", -1, 1, 0, &whole, &error);
  rf_json_string_or(json, "a", "fuzz", "", &string, &error);
  json_decref(json);
  return 0;
}
