/* Reads any words as a command line and any text as a file of options. Either they are refused with
 * a message, or they resolve to a record that gives the same options again. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  if (bytes < 1 || bytes > 4096) return 0;
  char *text = malloc(bytes), *argv[64];
  memcpy(text, data + 1, bytes - 1);
  text[bytes - 1] = 0;
  rf_error error;
  rf_options *options = NULL, *again = NULL;
  const char *command = RF_ALL_COMMANDS.command[data[0] % RF_ALL_COMMANDS.count]->name;
  if (rf_options_new(&RF_ALL_COMMANDS, command, &options, &error) != RAFTER_OK) abort();
  rf_model model;
  if (!strchr(text, '/')) rf_model_resolve(text, &model, NULL, &error);
  json_t *file = json_loads(text, 0, NULL);
  rf_status status = RAFTER_INVALID;
  if (file) {
    status = rf_options_read_json(options, file, "fuzz", &error);
    json_decref(file);
  } else if (!strstr(text,
                     /* Newlines separate words. --config is left out because it would read files of
                      * this machine. */
                     "config")) {
    int argc = 0;
    for (char *rest = text, *word; argc < 64 && (word = strsep(&rest, "\n"));) argv[argc++] = word;
    status = rf_options_parse(options, argc, argv, &error);
  }
  if (status == RAFTER_OK) {
    json_t *record = rf_options_json(options);
    if (rf_options_new(&RF_ALL_COMMANDS, command, &again, &error) != RAFTER_OK ||
        rf_options_read_json(again, record, "record", &error) != RAFTER_OK)
      abort();
    json_t *second = rf_options_json(again);
    if (!json_equal(record, second)) abort();
    json_decref(record);
    json_decref(second);
  }
  rf_options_free(again);
  rf_options_free(options);
  free(text);
  return 0;
}
