/* host.c - see host.h. */
#include "backend/host.h"
#include "backend/interpreter.h"
#include "backend/mpi/link.h"

#include <stdio.h>
#include <stdlib.h>

static rf_status join_ranks(rf_device *device, int chips, rf_error *error) {
  rf_link *link = rf_link_of_process();
  int ranks = link ? link->ranks : 1;
  char hint[80];
  snprintf(hint, sizeof hint, "start the command with mpirun -n %d", chips);
  if (ranks != chips)
    return RF_FAIL(error, RAFTER_INVALID, hint, "each chip needs a process (expected %d, got %d)", chips,
                   ranks);
  device->link = link;
  device->chips = device->hosts = chips;
  device->host = link->rank;
  return RAFTER_OK;
}

rf_status rf_host_open(rf_device **out, const rf_device_settings *settings, rf_error *error) {
  rf_device *device = calloc(1, sizeof *device);
  if (!device) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a device");
  rf_status status = settings->chips > 1 ? join_ranks(device, settings->chips, error) : RAFTER_OK;
  if (status == RAFTER_OK) *out = device;
  else free(device);
  return status;
}

rf_status rf_host_send(rf_device *device, int host, const void *data, int64_t bytes, rf_error *error) {
  return rf_link_send(device->link, host, data, bytes, error);
}
rf_status rf_host_receive(rf_device *device, int host, void *data, int64_t bytes, rf_error *error) {
  return rf_link_receive(device->link, host, data, bytes, error);
}

void rf_host_close(rf_device *device) { free(device); }

rf_status rf_host_allocate(rf_device *device, int64_t bytes, rf_memory **out, rf_error *error) {
  void *base = NULL;
  rf_memory *memory = calloc(1, sizeof *memory);
  if (!memory) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a device");
  rf_status status = rf_pages_map((size_t)bytes, &base, NULL, error);
  if (status != RAFTER_OK) {
    free(memory);
    return status;
  }
  *memory = (rf_memory){.device = device, .bytes = bytes, .host = base};
  *out = memory;
  return RAFTER_OK;
}

void rf_host_release(rf_memory *memory) {
  rf_pages_unmap(memory->host, (size_t)memory->bytes);
  free(memory);
}

/* Touches every page of the range. Then steps have no page faults, and a run that lacks memory
 * fails before the first step. The memory stays zero. */
rf_status rf_host_reserve(rf_memory *memory, int64_t at, int64_t bytes, rf_error *error) {
  enum { HUGE_PAGE = 2 << 20, PAGE = 4096 };
  (void)error;
#pragma omp parallel for num_threads(memory->device->workers) schedule(dynamic, 4)
  for (int64_t piece = at; piece < at + bytes; piece += HUGE_PAGE) {
    int64_t end = piece + HUGE_PAGE < at + bytes ? piece + HUGE_PAGE : at + bytes;
    for (int64_t page = piece; page < end; page += PAGE) *(volatile unsigned char *)(memory->host + page) = 0;
  }
  return RAFTER_OK;
}

rf_status rf_host_compile(rf_device *device, const rf_program_source *source, rf_program **program,
                          rf_error *error) {
  (void)device;
  return rf_interpreter_compile(source, source->memory->host, program, error);
}
