/* tensors_out.h - a file of tensors on its way: which of them is written, how far, and that it
 * appears only when all are whole. */
#ifndef RF_TENSORS_OUT_H
#define RF_TENSORS_OUT_H

#include "base/file.h"

typedef struct rf_tensors_out {
  rf_out_file *out; /* opened by who writes the header */
  char *path;
  int count, current;
  int64_t alignment; /* every tensor ends on it, the last one too */
  int64_t done;      /* bytes of the current tensor */
  int64_t *bytes;    /* of each tensor, filled in by who knows */
} rf_tensors_out;

/* Starts as {0}. */
rf_status rf_tensors_out_begin(rf_tensors_out *to, const char *path, int count, int64_t alignment,
                               rf_error *error);
/* Behind the header: the first tensor that has bytes. */
rf_status rf_tensors_out_ready(rf_tensors_out *to, rf_error *error);
rf_status rf_tensors_out_pad(rf_tensors_out *to, rf_error *error);
/* Bytes that the current tensor still lacks. RAFTER_FAILED: all are whole. */
rf_status rf_tensors_out_left(const rf_tensors_out *to, int64_t *left, rf_error *error);
/* No more than are left. */
rf_status rf_tensors_out_put(rf_tensors_out *to, const void *data, int64_t bytes, rf_error *error);
/* RAFTER_FAILED and no file: a tensor is not whole. */
rf_status rf_tensors_out_commit(rf_tensors_out *to, rf_error *error);
/* What is not committed leaves nothing behind. */
void rf_tensors_out_free(rf_tensors_out *to);

#endif
