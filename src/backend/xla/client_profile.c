/* client_profile.c - see client.h: optimized programs, and the plugin's profiler. */
#include <stdlib.h>
#include <string.h>

#include "backend/xla/client_parts.h"
#include "base/file.h"

/* Copies the answer of any size. */
static rf_status ask_bytes(rf_xla_client *client, const rf_xla_message *message, char **data, size_t *bytes,
                           rf_error *error) {
  const void *answer = NULL;
  *data = NULL;
  *bytes = 0;
  pthread_mutex_lock(&client->lock);
  rf_status status = rf_xla_ask(client, message, &answer, bytes, error);
  if (status == RAFTER_OK && !(*data = malloc(*bytes + 1)))
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s: out of memory", message->what);
  if (status == RAFTER_OK) memcpy(*data, answer, *bytes);
  pthread_mutex_unlock(&client->lock);
  return status;
}

rf_status rf_xla_program_bytes(rf_xla_client *client, rf_xla_id program, char **data, size_t *bytes,
                               rf_error *error) {
  rf_xla_message message = {.kind = RF_WIRE_SAVE,
                            .what = "get the optimized program",
                            .parts = 1,
                            .part = {{&program, sizeof program}}};
  return ask_bytes(client, &message, data, bytes, error);
}

rf_status rf_xla_program_save(rf_xla_client *client, rf_xla_id program, const char *path, rf_error *error) {
  char *data;
  size_t bytes;
  RF_TRY(rf_xla_program_bytes(client, program, &data, &bytes, error));
  rf_status status = rf_file_write(path, data, bytes, error);
  free(data);
  return status;
}

rf_status rf_xla_profile_begin(rf_xla_client *client, rf_error *error) {
  const rf_xla_message message = {.kind = RF_WIRE_PROFILE_BEGIN, .what = "begin a profile"};
  return rf_xla_ask_for(client, &message, NULL, 0, error);
}

rf_status rf_xla_profile_end(rf_xla_client *client, char **data, size_t *bytes, rf_error *error) {
  const rf_xla_message message = {.kind = RF_WIRE_PROFILE_END, .what = "read a profile"};
  return ask_bytes(client, &message, data, bytes, error);
}
