/* hosts.h - the messages that the hosts of a run send to each other between steps. Host 0 reads
 * whole tensors, and the other hosts answer with their parts. All hosts run the same calls in the
 * same order. Private to src/run; callers use rf_run_agree, rf_run_settle, rf_run_serve and so
 * on. */
#ifndef RF_RUN_HOSTS_H
#define RF_RUN_HOSTS_H

#include "backend/backend.h"

/* The result is RAFTER_FAILED if this host has another value than host 0. `what` is the name of the
 * value in the message, for example "another plan". */
rf_status rf_hosts_same(rf_device *device, const char *what, uint64_t value, rf_error *error);
/* Sets *flags to the flags of all hosts, combined by `or`. */
rf_status rf_hosts_agree(rf_device *device, uint32_t *flags, rf_error *error);
/* Sends the bytes of host 0 to the other hosts. */
rf_status rf_hosts_share(rf_device *device, void *data, int64_t bytes, rf_error *error);
/* Host 0 gets the bytes of all hosts. */
rf_status rf_hosts_collect(rf_device *device, const void *mine, void *all, int64_t bytes, rf_error *error);
/* If a host has another status than RAFTER_OK, returns the first such status, with an error that
 * names the host. */
rf_status rf_hosts_settle(rf_device *device, rf_status status, rf_error *error);
/* For host 0, while the other hosts serve: reads the bytes at offset `at` of the memory of
 * `host`. */
rf_status rf_hosts_fetch(rf_device *device, int host, int64_t at, void *to, int64_t bytes, rf_error *error);
/* For the other hosts: answers host 0 until host 0 calls rf_hosts_served. Returns RAFTER_FAILED if
 * host 0 gives another status than RAFTER_OK to that call. */
rf_status rf_hosts_serve(rf_memory *memory, rf_error *error);
rf_status rf_hosts_served(rf_device *device, rf_status status, rf_error *error);

#endif
