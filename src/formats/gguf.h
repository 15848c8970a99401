/* gguf.h - reads and writes GGUF files, versions 2 and 3. The reader checks a file before it uses
 * it. The format is little endian: "GGUF", u32 version, u64 number of tensors, u64 number of
 * metadata values. Then come the values: key, kind, bytes. Then come the tensors: name, axes
 * (innermost first), type, offset. The tensors' data starts at the next multiple of
 * general.alignment (32 by default). A text is a u64 length and its bytes, without a NUL. */
#ifndef RF_GGUF_H
#define RF_GGUF_H

#include "formats/quant.h"

/* Kinds of metadata values. The enum values are the numbers that files store. */
typedef enum rf_gguf_kind {
  RF_GGUF_U8,
  RF_GGUF_I8,
  RF_GGUF_U16,
  RF_GGUF_I16,
  RF_GGUF_U32,
  RF_GGUF_I32,
  RF_GGUF_F32,
  RF_GGUF_BOOL,
  RF_GGUF_TEXT,
  RF_GGUF_ARRAY,
  RF_GGUF_U64,
  RF_GGUF_I64,
  RF_GGUF_F64,
  RF_GGUF_KINDS
} rf_gguf_kind;
const char *rf_gguf_kind_name(rf_gguf_kind kind); /* "u32", "text", ... */

/* A text inside the file. A text may contain any bytes and has no NUL at its end. */
typedef struct rf_gguf_text {
  const char *at;
  int64_t bytes;
} rf_gguf_text;

/* One metadata value. */
typedef struct rf_gguf_value {
  const char *key;
  rf_gguf_kind kind;
  rf_gguf_kind item; /* array: kind of its items; otherwise equal to `kind` */
  int64_t count;     /* array: number of its items; otherwise 1 */
  const void *data;  /* items as stored in the file */
  int64_t bytes;     /* size of `data` */
} rf_gguf_value;

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct rf_gguf rf_gguf;
/* Opens and checks a file, but not the data of its tensors. An error names the file, the byte
 * position and the fault. */
rf_status rf_gguf_open(const char *path, rf_gguf **file, rf_error *error);
/* Like rf_gguf_open, for bytes in memory, which must outlive the rf_gguf. Errors name `where`. */
rf_status rf_gguf_parse(const void *data, size_t bytes, const char *where, rf_gguf **file, rf_error *error);
void rf_gguf_close(rf_gguf *file); /* `file` may be NULL */
/* RAFTER_FAILED: another program wrote to the file after it was opened. Call it after reading. */
rf_status rf_gguf_unchanged(const rf_gguf *file, rf_error *error);

const char *rf_gguf_path(const rf_gguf *file);
int rf_gguf_version(const rf_gguf *file);
int rf_gguf_count(const rf_gguf *file);
const rf_quant_tensor *rf_gguf_at(const rf_gguf *file, int index); /* in the file's order */
const rf_quant_tensor *rf_gguf_find(const rf_gguf *file, const char *name);

int rf_gguf_value_count(const rf_gguf *file);
const rf_gguf_value *rf_gguf_value_at(const rf_gguf *file, int index); /* in the file's order */
const rf_gguf_value *rf_gguf_value_find(const rf_gguf *file, const char *key);

/* Look-ups by key and kind. If the key is missing, functions with _or return `otherwise`, and all
 * other functions fail. A value of another kind is an error. A value outside least..most is also an
 * error. All integer kinds can be read as integers. f32, f64 and integers can be read as floats. */
rf_status rf_gguf_int(const rf_gguf *file, const char *key, int64_t least, int64_t most, int64_t *value,
                      rf_error *error);
rf_status rf_gguf_int_or(const rf_gguf *file, const char *key, int64_t least, int64_t most, int64_t otherwise,
                         int64_t *value, rf_error *error);
rf_status rf_gguf_float(const rf_gguf *file, const char *key, double least, double most, double *value,
                        rf_error *error);
rf_status rf_gguf_float_or(const rf_gguf *file, const char *key, double least, double most, double otherwise,
                           double *value, rf_error *error);
rf_status rf_gguf_bool_or(const rf_gguf *file, const char *key, bool otherwise, bool *value, rf_error *error);
rf_status rf_gguf_text_of(const rf_gguf *file, const char *key, rf_gguf_text *value, rf_error *error);
rf_status rf_gguf_text_or(const rf_gguf *file, const char *key, const char *otherwise, rf_gguf_text *value,
                          rf_error *error);
/* The following functions return malloc'ed arrays of exactly *count items. A missing key gives NULL
 * and *count = 0. Bools can be read as integers. rf_gguf_text_count counts the items without
 * reading them. */
rf_status rf_gguf_text_count(const rf_gguf *file, const char *key, int64_t *count, rf_error *error);
rf_status rf_gguf_texts(const rf_gguf *file, const char *key, rf_gguf_text **items, int64_t *count,
                        rf_error *error);
rf_status rf_gguf_ints(const rf_gguf *file, const char *key, int64_t least, int64_t most, int32_t **items,
                       int64_t *count, rf_error *error);
rf_status rf_gguf_floats(const rf_gguf *file, const char *key, float **items, int64_t *count,
                         rf_error *error);

/* ---- writing --------------------------------------------------------------------------------- */

/* Metadata to write. If a key is set again, its value is replaced and its position in the file
 * stays. All functions copy their arguments. All functions return false if there is no memory. */
typedef struct rf_gguf_meta rf_gguf_meta;
rf_gguf_meta *rf_gguf_meta_new(void); /* NULL if there is no memory */
void rf_gguf_meta_free(rf_gguf_meta *meta);
bool rf_gguf_set(rf_gguf_meta *meta, const rf_gguf_value *value); /* any kind of value */
bool rf_gguf_copy(rf_gguf_meta *meta, const rf_gguf *file);       /* copies all values of a file */
bool rf_gguf_set_int(rf_gguf_meta *meta, const char *key, rf_gguf_kind kind, int64_t value);
bool rf_gguf_set_f32(rf_gguf_meta *meta, const char *key, float value);
bool rf_gguf_set_bool(rf_gguf_meta *meta, const char *key, bool value);
bool rf_gguf_set_text(rf_gguf_meta *meta, const char *key, const char *value);
bool rf_gguf_set_texts(rf_gguf_meta *meta, const char *key, const rf_gguf_text *items, int64_t count);
bool rf_gguf_set_i32s(rf_gguf_meta *meta, const char *key, const int32_t *items, int64_t count);
bool rf_gguf_set_f32s(rf_gguf_meta *meta, const char *key, const float *items, int64_t count);

/* A streaming writer of version 3. The caller first gives the metadata and all tensors (name, type,
 * rank, shape). Then the caller gives the values of the tensors in the same order. */
typedef struct rf_gguf_writer rf_gguf_writer;
rf_status rf_gguf_writer_open(const char *path, const rf_gguf_meta *meta, const rf_quant_tensor *tensors,
                              int count, rf_gguf_writer **writer, rf_error *error);
/* Quantizes the next `count` values of the current tensor and writes them. After the last value of
 * a tensor, the next tensor is the current tensor. */
rf_status rf_gguf_writer_put(rf_gguf_writer *writer, const float *values, int64_t count, rf_error *error);
/* Like rf_gguf_writer_put, for whole quantized blocks of the current tensor. */
rf_status rf_gguf_writer_put_bytes(rf_gguf_writer *writer, const void *data, int64_t bytes, rf_error *error);
/* Syncs, renames and frees. RAFTER_FAILED: values are missing. A failure leaves no file. */
rf_status rf_gguf_writer_commit(rf_gguf_writer *writer, rf_error *error);
void rf_gguf_writer_discard(rf_gguf_writer *writer); /* `writer` may be NULL */

#endif
