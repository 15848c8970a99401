/* fake_client.h - a client of the plugin for faults (support/plugin), and checks of its calls. */
#ifndef RF_TESTS_FAKE_CLIENT_H
#define RF_TESTS_FAKE_CLIENT_H

#include "support/files.h"
#include "support/scratch.h"

#include <stdlib.h>
#include <string.h>

#include "backend/xla/client.h"

static rf_error fault; /* of the last call that failed */

#define GOOD(call) \
  do { \
    if ((call) != RAFTER_OK) fail_msg("%s: %s", #call, fault.message); \
  } while (0)

/* Fails the test if `text` is not in the error's message. */
static inline void says(const rf_error *error, const char *text) {
  if (!strstr(error->message, text)) fail_msg("\"%s\" is not in the message \"%s\"", text, error->message);
}

/* Opens the plugin. fake_plugin.c lists what `behaviour` may name. */
static inline rf_xla_client *open_fake(const char *behaviour) {
  rf_xla_client *client = NULL;
  rf_xla_settings settings = {.plugin = RF_FAKE_PLUGIN};
  setenv("FAKE_PLUGIN", behaviour, 1);
  GOOD(rf_xla_open(&settings, &client, &fault));
  return client;
}

static inline rf_xla_id compiled(rf_xla_client *client, const char *text, int replicas) {
  rf_xla_id program = 0;
  rf_xla_compile of = {.text = text, .bytes = strlen(text), .replicas = replicas};
  GOOD(rf_xla_program(client, &of, &program, NULL, &fault));
  return program;
}

/* Number of buffers that the plugin has. */
static inline int64_t living(rf_xla_client *client, rf_xla_shared *shared) {
  rf_xla_id program = compiled(client, "fake.live", 1);
  rf_xla_result result = {.at = 0, .bytes = 8};
  rf_xla_call call = {.program = program, .devices = 1, .results = 1, .result = &result, .shared = shared};
  GOOD(rf_xla_execute(client, &call, NULL, &fault));
  return *(int64_t *)shared->data;
}

#endif
