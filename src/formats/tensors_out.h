/* tensors_out.h - writes the data of a file of tensors, one tensor after the other. The file gets
 * its final name only when all tensors are complete. */
#ifndef RF_TENSORS_OUT_H
#define RF_TENSORS_OUT_H

#include "base/file.h"

typedef struct rf_tensors_out {
  rf_out_file *out; /* the caller opens the file and writes the header */
  char *path;
  int count, current;
  int64_t alignment; /* each tensor is padded to a multiple of this many bytes */
  int64_t done;      /* number of bytes of the current tensor that were written */
  int64_t *bytes;    /* bytes of each tensor; the caller fills this array */
} rf_tensors_out;

/* Initializes `to`. */
rf_status rf_tensors_out_begin(rf_tensors_out *to, const char *path, int count, int64_t alignment,
                               rf_error *error);
/* Call this after writing the header. The first tensor that is not empty becomes the current
 * tensor. */
rf_status rf_tensors_out_ready(rf_tensors_out *to, rf_error *error);
/* Writes zeros until the size of the file is a multiple of the alignment. */
rf_status rf_tensors_out_pad(rf_tensors_out *to, rf_error *error);
/* Sets *left to the bytes that the current tensor still needs. Fails if all tensors are already
 * complete. */
rf_status rf_tensors_out_left(const rf_tensors_out *to, int64_t *left, rf_error *error);
/* Writes `bytes` bytes of the current tensor. Fails if `bytes` is more than the tensor still
 * needs. */
rf_status rf_tensors_out_put(rf_tensors_out *to, const void *data, int64_t bytes, rf_error *error);
/* Gives the file its final name. RAFTER_FAILED: a tensor is incomplete. */
rf_status rf_tensors_out_commit(rf_tensors_out *to, rf_error *error);
/* Frees `to`. Removes the file if it was not committed. */
void rf_tensors_out_free(rf_tensors_out *to);

#endif
