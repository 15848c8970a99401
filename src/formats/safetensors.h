/* safetensors.h - reads and writes files of named tensors. The reader checks a file before it uses
 * it. A file starts with the length of the header in 8 bytes (little endian). The header is a JSON
 * object that maps each name to {dtype, shape, data_offsets}. The data of the tensors follow. */
#ifndef RF_SAFETENSORS_H
#define RF_SAFETENSORS_H

#include "base/base.h"

enum { RF_STORED_RANK = 8 };

/* One tensor of a file. If rafter cannot use the type (BOOL, I16, ...), the dtype is RF_DTYPES. The
 * size of such a tensor is checked too. */
typedef struct rf_stored {
  const char *name;
  rf_dtype dtype;
  int rank;
  int64_t shape[RF_STORED_RANK];
  int64_t count, bytes;
  const void *data; /* address in the mapped file, may be unaligned */
  const char *file; /* path of the file that stores this tensor */
} rf_stored;

typedef struct rf_tensor_file rf_tensor_file;

/* Opens a .safetensors file, a model.safetensors.index.json with its shards, or a folder that
 * contains a model in one of these forms. Fails if a header is wrong. The error names the file and
 * the fault. */
rf_status rf_tensor_file_open(const char *path, rf_tensor_file **file, rf_error *error);
void rf_tensor_file_close(rf_tensor_file *file);
/* RAFTER_FAILED: another program wrote to a file after it was opened. Call it after reading. */
rf_status rf_tensor_file_unchanged(const rf_tensor_file *file, rf_error *error);
int rf_tensor_file_count(const rf_tensor_file *file);
/* the index counts tensors in the order of their names */
const rf_stored *rf_tensor_file_at(const rf_tensor_file *file, int index);
const rf_stored *rf_tensor_file_find(const rf_tensor_file *file, const char *name);
const char *rf_tensor_file_path(const rf_tensor_file *file);
/* Reads elements [first, first + count) as f32. F32, F16 and BF16 convert exactly; F64 is rounded.
 * RAFTER_FAILED: the tensor has another type, or the range is outside the tensor. */
rf_status rf_stored_read(const rf_stored *tensor, int64_t first, int64_t count, float *out, rf_error *error);

/* A streaming writer. The caller first gives all tensors (name, dtype, rank, shape). Then the
 * caller gives the values. */
typedef struct rf_tensor_writer rf_tensor_writer;
/* `metadata` is NULL or a list key, value, ..., NULL. RAFTER_FAILED: the disk is full. */
rf_status rf_tensor_writer_open(const char *path, const rf_stored *tensors, int count,
                                const char *const *metadata, rf_tensor_writer **writer, rf_error *error);
/* Rounds the next `count` values of the current tensor to its dtype (F32, F16, BF16, F64) and
 * writes them. After the last value of a tensor, the next tensor is the current tensor. */
rf_status rf_tensor_writer_put(rf_tensor_writer *writer, const float *values, int64_t count, rf_error *error);
/* Like rf_tensor_writer_put, but takes the bytes of values of any dtype. */
rf_status rf_tensor_writer_put_bytes(rf_tensor_writer *writer, const void *data, int64_t bytes,
                                     rf_error *error);
/* Syncs, renames and frees. RAFTER_FAILED: values are missing. A failure leaves no file. */
rf_status rf_tensor_writer_commit(rf_tensor_writer *writer, rf_error *error);
void rf_tensor_writer_discard(rf_tensor_writer *writer); /* `writer` may be NULL */

/* Checks the header of a file in memory, for tests and fuzzing. Keeps nothing. */
rf_status rf_safetensors_check(const void *data, size_t bytes, const char *where, rf_error *error);

#endif
