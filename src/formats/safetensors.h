/* safetensors.h - reads and writes files of named tensors. A file is checked before it is used.
 * Format: 8 bytes header length (little endian), a JSON object of name -> {dtype, shape,
 * data_offsets}, then the data. */
#ifndef RF_SAFETENSORS_H
#define RF_SAFETENSORS_H

#include "base/base.h"

enum { RF_STORED_RANK = 8 };

/* One tensor of a file. The dtype is RF_DTYPES for a type that rafter does not use (BOOL, I16,
 * ...); the size of such a tensor is checked too. */
typedef struct rf_stored {
  const char *name;
  rf_dtype dtype;
  int rank;
  int64_t shape[RF_STORED_RANK];
  int64_t count, bytes;
  const void *data; /* in the mapped file, not aligned */
  const char *file; /* path of the file with this tensor */
} rf_stored;

typedef struct rf_tensor_file rf_tensor_file;

/* Opens a .safetensors file, a model.safetensors.index.json with its shards, or a folder with one
 * of them. The header is checked before it is used; the error names the file and the fault. */
rf_status rf_tensor_file_open(const char *path, rf_tensor_file **file, rf_error *error);
void rf_tensor_file_close(rf_tensor_file *file);
int rf_tensor_file_count(const rf_tensor_file *file);
/* tensors are sorted by name */
const rf_stored *rf_tensor_file_at(const rf_tensor_file *file, int index);
const rf_stored *rf_tensor_file_find(const rf_tensor_file *file, const char *name);
const char *rf_tensor_file_path(const rf_tensor_file *file);
/* Reads elements [first, first + count) as f32: exact from F32, F16 and BF16, rounded from F64.
 * RAFTER_FAILED for other types or a range outside the tensor. */
rf_status rf_stored_read(const rf_stored *tensor, int64_t first, int64_t count, float *out, rf_error *error);

/* A streaming writer: first all tensors (name, dtype, rank, shape), then their values in order. */
typedef struct rf_tensor_writer rf_tensor_writer;
/* `metadata`: key, value, ..., NULL; may be NULL. RAFTER_FAILED also if the disk lacks space. */
rf_status rf_tensor_writer_open(const char *path, const rf_stored *tensors, int count,
                                const char *const *metadata, rf_tensor_writer **writer, rf_error *error);
/* Writes the next `count` values of the current tensor, rounded to its dtype (F32, F16, BF16, F64).
 * After the last value of a tensor, the next tensor becomes current. */
rf_status rf_tensor_writer_put(rf_tensor_writer *writer, const float *values, int64_t count, rf_error *error);
/* Like rf_tensor_writer_put, for any dtype, with the values as bytes. */
rf_status rf_tensor_writer_put_bytes(rf_tensor_writer *writer, const void *data, int64_t bytes,
                                     rf_error *error);
/* Syncs, renames and frees. RAFTER_FAILED if values are missing. A failure leaves no file. */
rf_status rf_tensor_writer_commit(rf_tensor_writer *writer, rf_error *error);
void rf_tensor_writer_discard(rf_tensor_writer *writer); /* `writer` may be NULL */

/* Checks the header of a file in memory, for tests and fuzzing. Keeps nothing. */
rf_status rf_safetensors_check(const void *data, size_t bytes, const char *where, rf_error *error);

#endif
