/* hosts.c - see hosts.h. */
#include "run/hosts.h"

#include "backend/mpi/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A request of host 0. At the end, `bytes` is 0, and `at` is the status of host 0. */
typedef struct request {
  int64_t at, bytes;
} request;

enum { MOST_BYTES = 64 << 20 }; /* of a request */

static rf_status to_all(rf_device *device, const void *data, int64_t bytes, rf_error *error) {
  for (int host = 1; host < device->hosts; host++)
    RF_TRY(device->type->send(device, host, data, bytes, error));
  return RAFTER_OK;
}

rf_status rf_hosts_agree(rf_device *device, uint32_t *flags, rf_error *error) {
  const rf_device_type *type = device->type;
  if (device->hosts == 1) return RAFTER_OK;
  if (device->host > 0) {
    RF_TRY(type->send(device, 0, flags, sizeof *flags, error));
    return type->receive(device, 0, flags, sizeof *flags, error);
  }
  for (int host = 1; host < device->hosts; host++) {
    uint32_t more = 0;
    RF_TRY(type->receive(device, host, &more, sizeof more, error));
    *flags |= more;
  }
  return to_all(device, flags, sizeof *flags, error);
}

rf_status rf_hosts_share(rf_device *device, void *data, int64_t bytes, rf_error *error) {
  if (device->hosts == 1) return RAFTER_OK;
  return device->host == 0 ? to_all(device, data, bytes, error)
                           : device->type->receive(device, 0, data, bytes, error);
}

rf_status rf_hosts_collect(rf_device *device, const void *mine, void *all, int64_t bytes, rf_error *error) {
  if (device->host > 0) return device->type->send(device, 0, mine, bytes, error);
  memcpy(all, mine, (size_t)bytes);
  for (int host = 1; host < device->hosts; host++)
    RF_TRY(device->type->receive(device, host, (char *)all + host * bytes, bytes, error));
  return RAFTER_OK;
}

/* Puts the name of the host in front of its message. */
static void name_host(const rf_device *device, int host, rf_error *error) {
  char text[sizeof error->message];
  snprintf(text, sizeof text, "%s", error->message);
  if (device->link)
    snprintf(error->message, sizeof error->message, "rank %d (%.100s): %.600s", host,
             rf_link_host(device->link, host), text);
  else snprintf(error->message, sizeof error->message, "host %d: %.700s", host, text);
}

rf_status rf_hosts_settle(rf_device *device, rf_status status, rf_error *error) {
  rf_error first = {0}, other;
  if (device->hosts == 1) return status;
  if (status != RAFTER_OK && error) first = *error;
  first.status = status;
  if (device->host > 0) {
    RF_TRY(device->type->send(device, 0, &first, sizeof first, error));
    RF_TRY(device->type->receive(device, 0, &first, sizeof first, error));
  } else {
    if (first.status != RAFTER_OK) name_host(device, 0, &first);
    for (int host = 1; host < device->hosts; host++) {
      RF_TRY(device->type->receive(device, host, &other, sizeof other, error));
      if (first.status != RAFTER_OK || other.status == RAFTER_OK) continue;
      first = other;
      name_host(device, host, &first);
    }
    RF_TRY(to_all(device, &first, sizeof first, error));
  }
  if (first.status != RAFTER_OK && error) *error = first;
  return first.status;
}

rf_status rf_hosts_same(rf_device *device, const char *what, uint64_t value, rf_error *error) {
  static const char *const HINT = "use the same rafter, options and files on every host";
  uint64_t first = value;
  if (device->hosts == 1) return RAFTER_OK;
  if (device->link) { /* rank 0 tells all */
    RF_TRY(rf_hosts_share(device, &first, sizeof first, error));
    rf_status status =
        first == value ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, HINT, "it has %s than rank 0", what);
    return rf_hosts_settle(device, status, error);
  }
  if (device->host == 0) return to_all(device, &value, sizeof value, error);
  RF_TRY(device->type->receive(device, 0, &first, sizeof first, error));
  if (first == value) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, HINT, "host %d has %s than host 0", device->host, what);
}

rf_status rf_hosts_fetch(rf_device *device, int host, int64_t at, void *to, int64_t bytes, rf_error *error) {
  if (device->host > 0)
    return RF_FAIL(error, RAFTER_FAILED, "this is a bug; please report it",
                   "only host 0 reads tensors whose parts are on other hosts (this is host %d)",
                   device->host);
  for (int64_t done = 0, n; done < bytes; done += n) {
    n = bytes - done < MOST_BYTES ? bytes - done : MOST_BYTES;
    const request ask = {at + done, n};
    RF_TRY(device->type->send(device, host, &ask, sizeof ask, error));
    RF_TRY(device->type->receive(device, host, (char *)to + done, n, error));
  }
  return RAFTER_OK;
}

static rf_status answer(rf_memory *memory, const request *of, rf_error *error) {
  rf_device *device = memory->device;
  int64_t chips = device->chips / device->hosts;
  int64_t all = memory->chip_bytes ? chips * memory->chip_bytes : memory->bytes;
  if (of->at < 0 || of->bytes < 0 || of->bytes > MOST_BYTES || of->at > all - of->bytes)
    return RF_FAIL(error, RAFTER_FAILED, "run the same rafter on every host",
                   "host 0 asks for bytes that this host lacks (%lld bytes at %lld of %lld)",
                   (long long)of->bytes, (long long)of->at, (long long)all);
  void *data = malloc((size_t)of->bytes);
  if (!data) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while sending a tensor to host 0");
  rf_status status = rf_memory_read(memory, of->at, data, of->bytes, error);
  if (status == RAFTER_OK) status = device->type->send(device, 0, data, of->bytes, error);
  free(data);
  return status;
}

rf_status rf_hosts_serve(rf_memory *memory, rf_error *error) {
  for (;;) {
    request of = {0};
    RF_TRY(memory->device->type->receive(memory->device, 0, &of, sizeof of, error));
    if (of.bytes) RF_TRY(answer(memory, &of, error));
    else if (of.at == RAFTER_OK) return RAFTER_OK;
    else return RF_FAIL(error, RAFTER_FAILED, NULL, "host 0 failed; its message says why");
  }
}

rf_status rf_hosts_served(rf_device *device, rf_status status, rf_error *error) {
  const request end = {.at = status};
  rf_status sent = to_all(device, &end, sizeof end, status == RAFTER_OK ? error : NULL);
  return status == RAFTER_OK ? sent : status;
}
