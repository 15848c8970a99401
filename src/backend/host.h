/* host.h - a device whose memory is host memory and whose kernels are functions of the host. With
 * several chips, each rank of an MPI job is one chip. */
#ifndef RF_HOST_H
#define RF_HOST_H

#include "backend/backend.h"

rf_status rf_host_open(rf_device **device, const rf_device_settings *settings, rf_error *error);
void rf_host_close(rf_device *device);
rf_status rf_host_allocate(rf_device *device, int64_t bytes, rf_memory **memory, rf_error *error);
void rf_host_release(rf_memory *memory);
rf_status rf_host_reserve(rf_memory *memory, int64_t at, int64_t bytes, rf_error *error);
rf_status rf_host_send(rf_device *device, int host, const void *data, int64_t bytes, rf_error *error);
rf_status rf_host_receive(rf_device *device, int host, void *data, int64_t bytes, rf_error *error);
rf_status rf_host_compile(rf_device *device, const rf_program_source *source, rf_program **program,
                          rf_error *error);

/* The functions of every host device. The CPU's device adds functions that measure its speed. */
#define RF_HOST_DEVICE \
  .open = rf_host_open, .close = rf_host_close, .allocate = rf_host_allocate, .release = rf_host_release, \
  .reserve = rf_host_reserve, .send = rf_host_send, .receive = rf_host_receive, .compile = rf_host_compile

#endif
