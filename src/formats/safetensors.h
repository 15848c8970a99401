/* safetensors.h - files of named tensors: untrusted when read, renamed into place when complete.
 * Format: 8 bytes header length (little endian), a JSON object of name -> {dtype, shape,
 * data_offsets}, the data. */
#ifndef RF_SAFETENSORS_H
#define RF_SAFETENSORS_H

#include "base/base.h"

enum { RF_STORED_RANK = 8 };

/* One tensor of a file. dtype RF_DTYPES: a type that this program does not use (BOOL, I16, ...);
 * its size is checked too. */
typedef struct rf_stored {
  const char *name;
  rf_dtype dtype;
  int rank;
  int64_t shape[RF_STORED_RANK];
  int64_t count, bytes;
  const void *data; /* in the mapped file, not aligned */
  const char *file; /* path of the file that holds the tensor */
} rf_stored;

typedef struct rf_tensor_file rf_tensor_file;

/* Opens a .safetensors file, a model.safetensors.index.json with its shards, or a folder with
 * either. The header is checked before it is used: RAFTER_FAILED names the file and the fault. */
rf_status rf_tensor_file_open(const char *path, rf_tensor_file **file, rf_error *error);
void rf_tensor_file_close(rf_tensor_file *file);
int rf_tensor_file_count(const rf_tensor_file *file);
const rf_stored *rf_tensor_file_at(const rf_tensor_file *file, int index); /* by name, ascending */
const rf_stored *rf_tensor_file_find(const rf_tensor_file *file, const char *name);
const char *rf_tensor_file_path(const rf_tensor_file *file);
/* Elements [first, first + count) as f32: exact from F32, F16 and BF16, rounded from F64.
 * RAFTER_FAILED for other types or a range outside. */
rf_status rf_stored_read(const rf_stored *tensor, int64_t first, int64_t count, float *out, rf_error *error);

/* Streaming writer: first all tensors (it reads name, dtype, rank, shape), then their values in
 * that order. */
typedef struct rf_tensor_writer rf_tensor_writer;
/* `metadata`: key, value, key, value, ..., NULL; may be NULL. RAFTER_FAILED also if the disk has
 * too little space. */
rf_status rf_tensor_writer_open(const char *path, const rf_stored *tensors, int count,
                                const char *const *metadata, rf_tensor_writer **writer, rf_error *error);
/* Writes the next `count` values of the current tensor, rounded to its dtype (F32, F16, BF16,
 * F64). After its last value the next tensor is current. */
rf_status rf_tensor_writer_put(rf_tensor_writer *writer, const float *values, int64_t count, rf_error *error);
/* The same for any dtype, as bytes. */
rf_status rf_tensor_writer_put_bytes(rf_tensor_writer *writer, const void *data, int64_t bytes,
                                     rf_error *error);
/* Ends, syncs, renames and frees; RAFTER_FAILED if values are missing. A failure leaves no file. */
rf_status rf_tensor_writer_commit(rf_tensor_writer *writer, rf_error *error);
void rf_tensor_writer_discard(rf_tensor_writer *writer); /* NULL is allowed */

/* The same check of a header for bytes in memory, for tests and fuzzing; nothing is kept. */
rf_status rf_safetensors_check(const void *data, size_t bytes, const char *where, rf_error *error);

#endif
