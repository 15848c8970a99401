/* transfer.c - see host.h: copies arrays between shared memory and the plugin's buffers. */
#include <string.h>

#include "pjrt_host/host.h"

/* Bytes of an element of each PJRT_Buffer_Type. 0: not used. */
static const uint8_t ELEMENT_BYTES[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 1, 1, 1, 1, 1};

int64_t host_shape_bytes(const rf_wire_shape *shape) {
  if (shape->type < 0 || (size_t)shape->type >= sizeof ELEMENT_BYTES || !ELEMENT_BYTES[shape->type])
    return -1;
  if (shape->rank < 0 || shape->rank > RF_WIRE_RANK) return -1;
  int64_t bytes = ELEMENT_BYTES[shape->type];
  for (int i = 0; i < shape->rank; i++) {
    if (shape->dim[i] < 0) return -1;
    if (__builtin_mul_overflow(bytes, shape->dim[i], &bytes)) return -1;
  }
  return bytes;
}

char *host_range(const host *h, int64_t shared, int64_t at, int64_t bytes, host_fault *fault) {
  const host_shared *from = shared >= 0 && shared < RF_WIRE_SHARED ? &h->shared[shared] : NULL;
  if (!from || !from->data) {
    host_fill(fault, RF_WIRE_BAD_REQUEST, "no shared memory has the number %lld", (long long)shared);
    return NULL;
  }
  if (at < 0 || bytes < 0 || at > from->bytes || bytes > from->bytes - at) {
    host_fill(fault, RF_WIRE_BAD_REQUEST, "bytes %lld at %lld of shared memory (expected at most %lld)",
              (long long)bytes, (long long)at, (long long)from->bytes);
    return NULL;
  }
  return from->data + at;
}

bool host_put(const host *h, int device, const rf_wire_shape *shape, const char *data, int semantics,
              void **buffer, host_fault *fault) {
  pjrt_from_host put = {.client = h->client,
                        .data = data,
                        .type = shape->type,
                        .dim = shape->dim,
                        .dims = (size_t)shape->rank,
                        .semantics = semantics,
                        .device = h->device[device]};
  if (!HOST_CALL(h, PJRT_BUFFER_FROM_HOST, &put, "copy to the device", fault)) return false;
  *buffer = put.buffer;
  if (semantics == PJRT_UNTIL_TRANSFER_COMPLETES) {
    if (host_await(h, put.done, "copy to the device", fault)) return true;
    host_destroy(h, PJRT_BUFFER_DESTROY, put.buffer);
    return false;
  }
  host_destroy(h, PJRT_EVENT_DESTROY, put.done);
  return true;
}

/* Fills the array's shape from the buffer. */
static bool shape_of(const host *h, void *buffer, rf_wire_shape *shape, host_fault *fault) {
  pjrt_number_of type = {.object = buffer};
  pjrt_dimensions get = {.buffer = buffer};
  if (!HOST_CALL(h, PJRT_BUFFER_TYPE, &type, "get a buffer's type", fault)) return false;
  if (!HOST_CALL(h, PJRT_BUFFER_DIMENSIONS, &get, "get a buffer's shape", fault)) return false;
  if (get.dims > RF_WIRE_RANK)
    return host_fail(fault, RF_WIRE_BAD_REQUEST, "a result has %zu dimensions (expected at most %d)",
                     get.dims, RF_WIRE_RANK);
  shape->type = type.number;
  shape->rank = (int32_t)get.dims;
  memcpy(shape->dim, get.dim, get.dims * sizeof *shape->dim);
  return true;
}

bool host_get(const host *h, void *buffer, char *data, int64_t bytes, void **event, host_fault *fault) {
  rf_wire_shape shape;
  if (!shape_of(h, buffer, &shape, fault)) return false;
  if (host_shape_bytes(&shape) != bytes)
    return host_fail(fault, RF_WIRE_BAD_REQUEST, "an array has %lld bytes (expected %lld)",
                     (long long)host_shape_bytes(&shape), (long long)bytes);
  int64_t order[RF_WIRE_RANK];
  for (int i = 0; i < shape.rank; i++) order[i] = shape.rank - 1 - i;
  pjrt_layout dense = {
      .struct_size = sizeof dense,
      .tiled = {.struct_size = sizeof dense.tiled, .minor_to_major = order, .rank = (size_t)shape.rank}};
  pjrt_to_host get = {.buffer = buffer, .layout = &dense, .data = data, .bytes = (size_t)bytes};
  if (!HOST_CALL(h, PJRT_BUFFER_TO_HOST, &get, "copy from the device", fault)) return false;
  *event = get.event;
  return true;
}
