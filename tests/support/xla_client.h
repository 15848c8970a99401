/* xla_client.h - the plugin of the tests that run compiled programs. */
#ifndef RF_TESTS_XLA_CLIENT_H
#define RF_TESTS_XLA_CLIENT_H

#include "backend/xla/client.h"

#include <stdio.h>
#include <stdlib.h>

/* Opens the plugin that RAFTER_PJRT_PLUGIN names; without it, *client is NULL and the tests skip.
 * Returns false, with a message on stderr, if the plugin cannot be opened. */
static inline bool xla_test_open(rf_xla_client **client) {
  rf_error error = {0};
  const rf_xla_settings settings = {.plugin = getenv("RAFTER_PJRT_PLUGIN")};
  *client = NULL;
  if (!settings.plugin || !*settings.plugin || rf_xla_open(&settings, client, &error) == RAFTER_OK)
    return true;
  fprintf(stderr, "%s\n", error.message);
  return false;
}

#endif
