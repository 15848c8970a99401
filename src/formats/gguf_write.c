/* gguf_write.c - the streaming writer of GGUF version 3. The file starts with the header. The
 * values of the tensors follow in the order of the header. The file gets its final name only when
 * the file is complete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf_parts.h"
#include "formats/quant_blocks.h"
#include "formats/tensors_out.h"

/* ALIGNMENT: bytes. NAME_LIMIT: maximum bytes of a tensor's name in ggml. BLOCK is the number of
 * values that are quantized at a time. */
enum { ALIGNMENT = 32, NAME_LIMIT = 63, BLOCK = 16384 };

struct rf_gguf_meta {
  rf_gguf_value *value; /* entries of the metadata, which own copies of the keys and the data */
  int count, room;
};

rf_gguf_meta *rf_gguf_meta_new(void) { return calloc(1, sizeof(rf_gguf_meta)); }

void rf_gguf_meta_free(rf_gguf_meta *meta) {
  if (!meta) return;
  for (int i = 0; i < meta->count; ++i) {
    free((char *)meta->value[i].key);
    free((void *)meta->value[i].data);
  }
  free(meta->value);
  free(meta);
}

/* Sets entry `i`; if `i` is the number of entries, appends an entry. */
static bool set_at(rf_gguf_meta *meta, int i, const rf_gguf_value *value) {
  if (i == meta->room) {
    int room = meta->room ? meta->room * 2 : 32;
    rf_gguf_value *larger = realloc(meta->value, (size_t)room * sizeof *larger);
    if (!larger) return false;
    meta->value = larger;
    meta->room = room;
  }
  rf_gguf_value copy = *value;
  char *key = strdup(value->key);
  void *data = malloc((size_t)value->bytes + 1);
  if (!key || !data) {
    free(key);
    free(data);
    return false;
  }
  if (value->bytes) memcpy(data, value->data, (size_t)value->bytes);
  copy.key = key;
  copy.data = data;
  if (i < meta->count) {
    free((char *)meta->value[i].key);
    free((void *)meta->value[i].data);
  } else meta->count += 1;
  meta->value[i] = copy;
  return true;
}

bool rf_gguf_set(rf_gguf_meta *meta, const rf_gguf_value *value) {
  int i = 0;
  while (i < meta->count && strcmp(meta->value[i].key, value->key) != 0) ++i;
  return set_at(meta, i, value);
}

bool rf_gguf_copy(rf_gguf_meta *meta, const rf_gguf *file) {
  /* A file has no duplicate keys. So if `meta` was empty at the start, no search for existing keys
   * is needed. */
  bool empty = meta->count == 0, done = true;
  for (int i = 0; done && i < rf_gguf_value_count(file); ++i) {
    const rf_gguf_value *value = rf_gguf_value_at(file, i);
    done = empty ? set_at(meta, meta->count, value) : rf_gguf_set(meta, value);
  }
  return done;
}

static bool set_one(rf_gguf_meta *meta, const char *key, rf_gguf_kind kind, const void *data, int64_t bytes) {
  rf_gguf_value value = {key, kind, kind, 1, data, bytes};
  return rf_gguf_set(meta, &value);
}

bool rf_gguf_set_int(rf_gguf_meta *meta, const char *key, rf_gguf_kind kind, int64_t value) {
  uint8_t data[8];
  /* A little-endian machine stores the low bytes first, so a narrow type takes the first bytes. */
  rf_store_u64(data, (uint64_t)value);
  return set_one(meta, key, kind, data, rf_gguf_kind_bytes(kind));
}
bool rf_gguf_set_f32(rf_gguf_meta *meta, const char *key, float value) {
  return set_one(meta, key, RF_GGUF_F32, &value, 4);
}
bool rf_gguf_set_bool(rf_gguf_meta *meta, const char *key, bool value) {
  return rf_gguf_set_int(meta, key, RF_GGUF_BOOL, value);
}

static bool set_array(rf_gguf_meta *meta, const char *key, rf_gguf_kind item, int64_t count, const void *data,
                      int64_t bytes) {
  rf_gguf_value value = {key, RF_GGUF_ARRAY, item, count, data, bytes};
  return rf_gguf_set(meta, &value);
}
bool rf_gguf_set_i32s(rf_gguf_meta *meta, const char *key, const int32_t *items, int64_t count) {
  return set_array(meta, key, RF_GGUF_I32, count, items, count * 4);
}
bool rf_gguf_set_f32s(rf_gguf_meta *meta, const char *key, const float *items, int64_t count) {
  return set_array(meta, key, RF_GGUF_F32, count, items, count * 4);
}

bool rf_gguf_set_text(rf_gguf_meta *meta, const char *key, const char *value) {
  size_t length = strlen(value);
  uint8_t *data = malloc(length + 8);
  if (!data) return false;
  rf_store_u64(data, length);
  memcpy(data + 8, value, length);
  bool done = set_one(meta, key, RF_GGUF_TEXT, data, (int64_t)length + 8);
  free(data);
  return done;
}

bool rf_gguf_set_texts(rf_gguf_meta *meta, const char *key, const rf_gguf_text *items, int64_t count) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) bytes += 8 + items[i].bytes;
  uint8_t *data = malloc((size_t)bytes + 1), *at = data;
  if (!data) return false;
  for (int64_t i = 0; i < count; ++i) {
    rf_store_u64(at, (uint64_t)items[i].bytes);
    if (items[i].bytes) memcpy(at + 8, items[i].at, (size_t)items[i].bytes);
    at += 8 + items[i].bytes;
  }
  bool done = set_array(meta, key, RF_GGUF_TEXT, count, data, bytes);
  free(data);
  return done;
}

/* ---- the file -------------------------------------------------------------------------------- */

struct rf_gguf_writer {
  rf_tensors_out to;
  const rf_quant_type **type; /* type of each tensor */
  int held;                   /* number of values in `hold`, which holds an incomplete block */
  float hold[RF_QUANT_BLOCK_MAX];
  uint8_t block[BLOCK * 4]; /* quantized values to write */
};

static rf_status put_u32(rf_out_file *out, uint32_t value, rf_error *error) {
  uint8_t bytes[4];
  rf_store_u32(bytes, value);
  return rf_out_write(out, bytes, 4, error);
}
static rf_status put_u64(rf_out_file *out, uint64_t value, rf_error *error) {
  uint8_t bytes[8];
  rf_store_u64(bytes, value);
  return rf_out_write(out, bytes, 8, error);
}
static rf_status put_name(rf_out_file *out, const char *name, rf_error *error) {
  RF_TRY(put_u64(out, strlen(name), error));
  return rf_out_write(out, name, strlen(name), error);
}

static rf_status check_tensor(rf_gguf_writer *writer, const rf_quant_tensor *tensors, int index,
                              rf_error *error) {
  const rf_quant_tensor *t = &tensors[index];
  const char *wrong = NULL;
  int64_t count = 1;
  for (int i = 0; i < t->rank && i < RF_QUANT_RANK; ++i)
    if (t->shape[i] < 0 || __builtin_mul_overflow(count, t->shape[i], &count)) wrong = "has a wrong shape";
  if (t->rank < 1 || t->rank > RF_QUANT_RANK) wrong = "has a wrong number of axes";
  else if (t->shape[t->rank - 1] % t->type->values)
    wrong = "has rows that do not fill whole blocks of its type";
  if (!*t->name || strlen(t->name) > NAME_LIMIT) wrong = "has a name that the format does not allow";
  if (wrong)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (tensor \"%.100s\" %s)", writer->to.path,
                   t->name, wrong);
  writer->type[index] = t->type;
  writer->to.bytes[index] = count / t->type->values * t->type->bytes;
  return RAFTER_OK;
}

static rf_status check_twice(rf_gguf_writer *writer, const rf_quant_tensor *tensors, rf_error *error) {
  rf_status status = RAFTER_OK;
  const char **name = calloc((size_t)writer->to.count + 1, sizeof *name);
  if (!name) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to write %s", writer->to.path);
  for (int i = 0; i < writer->to.count; ++i) name[i] = tensors[i].name;
  qsort(name, (size_t)writer->to.count, sizeof *name, rf_compare_names);
  for (int i = 1; i < writer->to.count && status == RAFTER_OK; ++i)
    if (strcmp(name[i - 1], name[i]) == 0)
      status = RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write %s (tensor \"%.100s\" occurs twice)",
                       writer->to.path, name[i]);
  free(name);
  return status;
}

static rf_status put_header(rf_gguf_writer *writer, const rf_gguf_meta *meta, const rf_quant_tensor *tensors,
                            rf_error *error) {
  rf_out_file *out = writer->to.out;
  int values = 0;
  uint64_t offset = 0;
  for (int i = 0; i < meta->count; ++i) values += strcmp(meta->value[i].key, "general.alignment") != 0;
  RF_TRY(rf_out_write(out, "GGUF", 4, error));
  RF_TRY(put_u32(out, 3, error));
  RF_TRY(put_u64(out, (uint64_t)writer->to.count, error));
  RF_TRY(put_u64(out, (uint64_t)values, error));
  for (int i = 0; i < meta->count; ++i) {
    const rf_gguf_value *v = &meta->value[i];
    /* the output has the default alignment, so this key is omitted */
    if (strcmp(v->key, "general.alignment") == 0) continue;
    RF_TRY(put_name(out, v->key, error));
    RF_TRY(put_u32(out, v->kind, error));
    if (v->kind == RF_GGUF_ARRAY) {
      RF_TRY(put_u32(out, v->item, error));
      RF_TRY(put_u64(out, (uint64_t)v->count, error));
    }
    RF_TRY(rf_out_write(out, v->data, (size_t)v->bytes, error));
  }
  for (int i = 0; i < writer->to.count; ++i) {
    const rf_quant_tensor *t = &tensors[i];
    RF_TRY(put_name(out, t->name, error));
    RF_TRY(put_u32(out, (uint32_t)t->rank, error));
    for (int axis = t->rank - 1; axis >= 0; --axis) RF_TRY(put_u64(out, (uint64_t)t->shape[axis], error));
    RF_TRY(put_u32(out, (uint32_t)t->type->number, error));
    RF_TRY(put_u64(out, offset, error));
    offset += ((uint64_t)writer->to.bytes[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  }
  /* the data starts at a multiple of the alignment */
  return rf_tensors_out_pad(&writer->to, error);
}

rf_status rf_gguf_writer_open(const char *path, const rf_gguf_meta *meta, const rf_quant_tensor *tensors,
                              int count, rf_gguf_writer **result, rf_error *error) {
  rf_status status = RAFTER_OK;
  int64_t bytes = 0;
  rf_gguf_writer *writer = calloc(1, sizeof *writer);
  if (writer) RF_GO(rf_tensors_out_begin(&writer->to, path, count, ALIGNMENT, error));
  if (!writer || !(writer->type = calloc((size_t)count + 1, sizeof *writer->type))) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to write %s", path);
    goto done;
  }
  for (int i = 0; i < count; ++i) {
    RF_GO(check_tensor(writer, tensors, i, error));
    bytes += writer->to.bytes[i] + ALIGNMENT;
  }
  RF_GO(check_twice(writer, tensors, error));
  for (int i = 0; i < meta->count; ++i) bytes += meta->value[i].bytes;
  RF_GO(rf_out_open(path, bytes, &writer->to.out, error));
  RF_GO(put_header(writer, meta, tensors, error));
  RF_GO(rf_tensors_out_ready(&writer->to, error));
  *result = writer;
  writer = NULL;
done:
  rf_gguf_writer_discard(writer);
  return status;
}

rf_status rf_gguf_writer_put_bytes(rf_gguf_writer *writer, const void *data, int64_t bytes, rf_error *error) {
  int64_t left;
  if (bytes == 0) return RAFTER_OK;
  RF_TRY(rf_tensors_out_left(&writer->to, &left, error));
  if (writer->held || bytes < 0 || bytes % writer->type[writer->to.current]->bytes)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "the bytes for %s do not fill whole blocks of tensor %d",
                   writer->to.path, writer->to.current + 1);
  return rf_tensors_out_put(&writer->to, data, bytes, error);
}

/* Quantizes whole blocks of the current tensor and writes them. */
static rf_status put_blocks(rf_gguf_writer *writer, const rf_quant_type *type, const float *values,
                            int64_t blocks, rf_error *error) {
  for (int64_t most = BLOCK / type->values, part; blocks > 0; blocks -= part, values += part * type->values) {
    part = blocks < most ? blocks : most;
    type->quantize(values, part, writer->block);
    RF_TRY(rf_tensors_out_put(&writer->to, writer->block, part * type->bytes, error));
  }
  return RAFTER_OK;
}

rf_status rf_gguf_writer_put(rf_gguf_writer *writer, const float *values, int64_t count, rf_error *error) {
  while (count > 0) {
    int64_t left, taken;
    RF_TRY(rf_tensors_out_left(&writer->to, &left, error));
    const rf_quant_type *type = writer->type[writer->to.current];
    if (!type->quantize)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot write floats as %s into %s", type->name,
                     writer->to.path);
    int64_t whole = count / type->values;
    left /= type->bytes;
    if (!writer->held && whole) {
      if (whole > left) whole = left;
      RF_TRY(put_blocks(writer, type, values, whole, error));
      taken = whole * type->values;
    } else { /* these values complete a block that an earlier call began */
      taken = type->values - writer->held < count ? type->values - writer->held : count;
      memcpy(writer->hold + writer->held, values, (size_t)taken * sizeof *values);
      writer->held += (int)taken;
      if (writer->held == type->values) {
        writer->held = 0;
        RF_TRY(put_blocks(writer, type, writer->hold, 1, error));
      }
    }
    values += taken;
    count -= taken;
  }
  return RAFTER_OK;
}

rf_status rf_gguf_writer_commit(rf_gguf_writer *writer, rf_error *error) {
  rf_status status = rf_tensors_out_commit(&writer->to, error);
  rf_gguf_writer_discard(writer);
  return status;
}

void rf_gguf_writer_discard(rf_gguf_writer *writer) {
  if (!writer) return;
  rf_tensors_out_free(&writer->to);
  free(writer->type);
  free(writer);
}
