/* tensors_out.h - a file of tensors being written: the current tensor, its progress, and a
 * rename only when all are complete. */
#ifndef RF_TENSORS_OUT_H
#define RF_TENSORS_OUT_H

#include "base/file.h"

typedef struct rf_tensors_out {
  rf_out_file *out; /* opened by the caller, who writes the header */
  char *path;
  int count, current;
  int64_t alignment; /* every tensor is padded to it, the last one too */
  int64_t done;      /* bytes of the current tensor */
  int64_t *bytes;    /* of each tensor, set by the caller */
} rf_tensors_out;

/* Starts as {0}. */
rf_status rf_tensors_out_begin(rf_tensors_out *to, const char *path, int count, int64_t alignment,
                               rf_error *error);
/* Call after the header: makes the first non-empty tensor current. */
rf_status rf_tensors_out_ready(rf_tensors_out *to, rf_error *error);
rf_status rf_tensors_out_pad(rf_tensors_out *to, rf_error *error);
/* Bytes that the current tensor still lacks. RAFTER_FAILED: all are complete. */
rf_status rf_tensors_out_left(const rf_tensors_out *to, int64_t *left, rf_error *error);
/* `bytes` is at most what the tensor lacks. */
rf_status rf_tensors_out_put(rf_tensors_out *to, const void *data, int64_t bytes, rf_error *error);
/* RAFTER_FAILED and no file if a tensor is incomplete. */
rf_status rf_tensors_out_commit(rf_tensors_out *to, rf_error *error);
/* Frees, and removes the file if it was not committed. */
void rf_tensors_out_free(rf_tensors_out *to);

#endif
