/* client_hosts.c - see client.h: programs and messages of several hosts. */
#include "backend/xla/client_parts.h"

#include <stdlib.h>

static rf_status check_replicas(const rf_xla_client *client, const rf_xla_compile *of, rf_error *error) {
  int devices = client->facts.devices * client->hosts;
  if (of->replicas < 1 || (!of->topology && of->replicas > devices))
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "the program runs on %d devices (expected 1 to %d, which the plugin has)", of->replicas,
                   devices);
  if (of->topology || of->replicas % client->hosts == 0) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, NULL,
                 "the program runs on %d devices (expected a multiple of the %d hosts)", of->replicas,
                 client->hosts);
}

rf_status rf_xla_compile_options(const rf_xla_client *client, const rf_xla_compile *of, void **options,
                                 size_t *bytes, rf_error *error) {
  RF_TRY(check_replicas(client, of, error));
  if (of->topology) return rf_xla_options(of->replicas, NULL, of->flags, options, bytes, error);
  int local = of->replicas / client->hosts;
  int32_t *device = rf_must(malloc((size_t)of->replicas * sizeof *device));
  for (int r = 0; r < of->replicas; r++)
    device[r] = client->device_id[r / local * client->facts.devices + r % local];
  rf_status status = rf_xla_options(of->replicas, device, of->flags, options, bytes, error);
  free(device);
  return status;
}

rf_status rf_xla_send(rf_xla_client *client, int host, const void *data, int64_t bytes, rf_error *error) {
  int64_t to = host;
  for (int64_t at = 0, n = 0; at < bytes; at += n) {
    n = bytes - at < RF_WIRE_PIECE ? bytes - at : RF_WIRE_PIECE;
    rf_xla_message message = {.kind = RF_WIRE_SEND,
                              .what = "send to another host",
                              .parts = 2,
                              .part = {{&to, sizeof to}, {(char *)(uintptr_t)data + at, (size_t)n}}};
    RF_TRY(rf_xla_ask_for(client, &message, NULL, 0, error));
  }
  return RAFTER_OK;
}

rf_status rf_xla_receive(rf_xla_client *client, int host, void *data, int64_t bytes, rf_error *error) {
  int64_t from = host;
  for (int64_t at = 0, n = 0; at < bytes; at += n) {
    n = bytes - at < RF_WIRE_PIECE ? bytes - at : RF_WIRE_PIECE;
    rf_xla_message message = {
        .kind = RF_WIRE_RECEIVE, .what = "wait for another host", .parts = 1, .part = {{&from, sizeof from}}};
    RF_TRY(rf_xla_ask_for(client, &message, (char *)data + at, (size_t)n, error));
  }
  return RAFTER_OK;
}
