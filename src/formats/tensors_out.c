/* tensors_out.c - see tensors_out.h. */
#include "formats/tensors_out.h"

#include <stdlib.h>
#include <string.h>

rf_status rf_tensors_out_begin(rf_tensors_out *to, const char *path, int count, int64_t alignment,
                               rf_error *error) {
  *to = (rf_tensors_out){.path = strdup(path),
                         .bytes = calloc((size_t)count + 1, sizeof *to->bytes),
                         .count = count,
                         .alignment = alignment};
  return to->path && to->bytes ? RAFTER_OK
                               : RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to write %s", path);
}

rf_status rf_tensors_out_pad(rf_tensors_out *to, rf_error *error) {
  static const char zeros[64];
  int64_t missing = -rf_out_bytes(to->out) & (to->alignment - 1);
  return missing ? rf_out_write(to->out, zeros, (size_t)missing, error) : RAFTER_OK;
}

rf_status rf_tensors_out_ready(rf_tensors_out *to, rf_error *error) {
  for (; to->current < to->count && to->done == to->bytes[to->current]; to->current++, to->done = 0)
    RF_TRY(rf_tensors_out_pad(to, error));
  return RAFTER_OK;
}

rf_status rf_tensors_out_left(const rf_tensors_out *to, int64_t *left, rf_error *error) {
  if (to->current == to->count)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s was given values after its last tensor", to->path);
  *left = to->bytes[to->current] - to->done;
  return RAFTER_OK;
}

rf_status rf_tensors_out_put(rf_tensors_out *to, const void *data, int64_t bytes, rf_error *error) {
  int64_t left;
  RF_TRY(rf_tensors_out_left(to, &left, error));
  if (bytes > left)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s was given more values than tensor %d has", to->path,
                   to->current + 1);
  RF_TRY(rf_out_write(to->out, data, (size_t)bytes, error));
  to->done += bytes;
  return rf_tensors_out_ready(to, error);
}

rf_status rf_tensors_out_commit(rf_tensors_out *to, rf_error *error) {
  if (to->current < to->count)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s is incomplete (tensor %d of %d has %lld of %lld bytes)",
                   to->path, to->current + 1, to->count, (long long)to->done,
                   (long long)to->bytes[to->current]);
  rf_status status = rf_out_commit(to->out, error);
  to->out = NULL;
  return status;
}

void rf_tensors_out_free(rf_tensors_out *to) {
  rf_out_discard(to->out);
  free(to->path);
  free(to->bytes);
  *to = (rf_tensors_out){0};
}
