/* safetensors_write.c - the streaming writer of safetensors. The file starts with the header. The
 * values follow in the order of the header. The file gets its final name only when the file is
 * complete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "formats/safetensors.h"
#include "formats/stored_types.h"
#include "formats/tensors_out.h"

/* All threads together round BLOCK values at a time. Each thread rounds RUN values at a time. */
enum { BLOCK = 1 << 19, RUN = 1 << 14 };

struct rf_tensor_writer {
  rf_tensors_out to;
  rf_dtype *dtype; /* dtype of each tensor */
  void *rounded;   /* (BLOCK) rounded values of at most 8 bytes */
};

static const rf_stored_type *type_of(rf_dtype dtype) {
  for (int i = 0; i < RF_STORED_TYPE_COUNT; ++i)
    if (RF_STORED_TYPES[i].dtype == dtype && dtype != RF_DTYPES) return &RF_STORED_TYPES[i];
  return NULL;
}

static json_t *describe(const rf_stored *tensor, const rf_stored_type *type, int64_t offset, int64_t *bytes) {
  json_t *shape = json_array();
  int64_t count = 1;
  for (int i = 0; i < tensor->rank; ++i) {
    json_array_append_new(shape, json_integer(tensor->shape[i]));
    count *= tensor->shape[i];
  }
  *bytes = count * type->bytes;
  return json_pack("{s:s,s:o,s:[I,I]}", "dtype", type->name, "shape", shape, "data_offsets",
                   (json_int_t)offset, (json_int_t)(offset + *bytes));
}

rf_status rf_tensor_writer_open(const char *path, const rf_stored *tensors, int count,
                                const char *const *metadata, rf_tensor_writer **result, rf_error *error) {
  rf_status status = RAFTER_OK;
  json_t *header = json_object(), *notes = json_object();
  char *text = NULL;
  int64_t offset = 0;
  rf_tensor_writer *writer = calloc(1, sizeof *writer);
  if (writer) RF_GO(rf_tensors_out_begin(&writer->to, path, count, 1, error));
  if (!writer || !(writer->dtype = calloc((size_t)count + 1, sizeof *writer->dtype))) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to write %s", path);
    goto done;
  }
  /* Some programs do not load a file whose metadata lacks the key "format". */
  json_object_set_new(notes, "format", json_string("pt"));
  for (int i = 0; metadata && metadata[i]; i += 2)
    json_object_set_new(notes, metadata[i], json_string(metadata[i + 1]));
  json_object_set(header, "__metadata__", notes);
  for (int i = 0; i < count; ++i) {
    const rf_stored_type *type = type_of(tensors[i].dtype);
    if (!type || json_object_get(header, tensors[i].name)) {
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (tensor \"%.100s\" %s)", path,
                       tensors[i].name, type ? "occurs twice" : "has a type that the format lacks");
      goto done;
    }
    writer->dtype[i] = tensors[i].dtype;
    json_object_set_new(header, tensors[i].name, describe(&tensors[i], type, offset, &writer->to.bytes[i]));
    offset += writer->to.bytes[i];
  }
  text = rf_json_text(header, 0);
  if (!text) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to write %s", path);
    goto done;
  }
  /* The data starts at a multiple of 64 bytes, which helps readers that map the file. */
  size_t length = strlen(text), padded = (length + 8 + 63) / 64 * 64 - 8;
  unsigned char size[8];
  for (int i = 0; i < 8; ++i) size[i] = (unsigned char)(padded >> 8 * i);
  RF_GO(rf_out_open(path, (int64_t)padded + 8 + offset, &writer->to.out, error));
  RF_GO(rf_out_write(writer->to.out, size, 8, error));
  RF_GO(rf_out_write(writer->to.out, text, length, error));
  for (size_t i = length; i < padded; ++i) RF_GO(rf_out_write(writer->to.out, " ", 1, error));
  RF_GO(rf_tensors_out_ready(&writer->to, error));
  *result = writer;
  writer = NULL;
done:
  free(text);
  json_decref(header);
  json_decref(notes);
  rf_tensor_writer_discard(writer);
  return status;
}

rf_status rf_tensor_writer_put_bytes(rf_tensor_writer *writer, const void *data, int64_t bytes,
                                     rf_error *error) {
  const char *at = data;
  while (bytes > 0) {
    int64_t left, part;
    RF_TRY(rf_tensors_out_left(&writer->to, &left, error));
    part = bytes < left ? bytes : left;
    RF_TRY(rf_tensors_out_put(&writer->to, at, part, error));
    at += part;
    bytes -= part;
  }
  return RAFTER_OK;
}

/* Rounds or widens `count` values to `dtype`, which is BF16, F16 or F64. */
static void convert_run(rf_dtype dtype, const float *from, int64_t count, void *to) {
  uint16_t *half = to;
  double *wide = to;
  for (int64_t i = 0; i < count && dtype == RF_BF16; ++i) half[i] = rf_f32_to_bf16(from[i]);
  for (int64_t i = 0; i < count && dtype == RF_F16; ++i) half[i] = rf_f32_to_f16(from[i]);
  for (int64_t i = 0; i < count && dtype == RF_F64; ++i) wide[i] = from[i];
}

static void convert(rf_dtype dtype, const float *from, int64_t count, void *to) {
  int64_t bytes = rf_dtype_bytes(dtype);
#pragma omp parallel for schedule(dynamic, 1) if (count > 2 * RUN)
  for (int64_t at = 0; at < count; at += RUN)
    convert_run(dtype, from + at, count - at < RUN ? count - at : RUN, (char *)to + at * bytes);
}

rf_status rf_tensor_writer_put(rf_tensor_writer *writer, const float *values, int64_t count,
                               rf_error *error) {
  while (count > 0) {
    int64_t left, part;
    RF_TRY(rf_tensors_out_left(&writer->to, &left, error));
    rf_dtype dtype = writer->dtype[writer->to.current];
    int64_t bytes = rf_dtype_bytes(dtype);
    left /= bytes;
    part = count < left ? count : left;
    if (dtype == RF_F32) {
      RF_TRY(rf_tensor_writer_put_bytes(writer, values, part * bytes, error));
    } else if (dtype == RF_BF16 || dtype == RF_F16 || dtype == RF_F64) {
      if (part > BLOCK) part = BLOCK;
      if (!writer->rounded && !(writer->rounded = malloc((size_t)BLOCK * sizeof(double))))
        return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to write %s", writer->to.path);
      convert(dtype, values, part, writer->rounded);
      RF_TRY(rf_tensor_writer_put_bytes(writer, writer->rounded, part * bytes, error));
    } else {
      return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write floats as %s into %s", rf_dtype_name(dtype),
                     writer->to.path);
    }
    values += part;
    count -= part;
  }
  return RAFTER_OK;
}

rf_status rf_tensor_writer_commit(rf_tensor_writer *writer, rf_error *error) {
  rf_status status = rf_tensors_out_commit(&writer->to, error);
  rf_tensor_writer_discard(writer);
  return status;
}

void rf_tensor_writer_discard(rf_tensor_writer *writer) {
  if (!writer) return;
  rf_tensors_out_free(&writer->to);
  free(writer->dtype);
  free(writer->rounded);
  free(writer);
}
