/* safetensors.c - the reader: maps the files, and checks everything before use. */
#include "formats/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/stored_types.h"

/* HEADER_MAX and INDEX_MAX: maximum bytes. SHARDS_MAX: maximum number of files of a model. */
enum { HEADER_MAX = 100000000, INDEX_MAX = 100000000, SHARDS_MAX = 4096 };

const rf_stored_type RF_STORED_TYPES[] = {
    {"F32", 4, RF_F32},         {"BF16", 2, RF_BF16},       {"F16", 2, RF_F16},     {"F64", 8, RF_F64},
    {"I32", 4, RF_I32},         {"I64", 8, RF_I64},         {"I8", 1, RF_I8},       {"U8", 1, RF_U8},
    {"F8_E4M3", 1, RF_F8_E4M3}, {"F8_E5M2", 1, RF_F8_E5M2}, {"BOOL", 1, RF_DTYPES}, {"I16", 2, RF_DTYPES},
    {"U16", 2, RF_DTYPES},      {"U32", 4, RF_DTYPES},      {"U64", 8, RF_DTYPES},
};
const int RF_STORED_TYPE_COUNT = sizeof RF_STORED_TYPES / sizeof RF_STORED_TYPES[0];

typedef struct mapping {
  void *base;
  size_t bytes;
  json_t *header;
  char *path;
} mapping;

struct rf_tensor_file {
  char *path;
  mapping *map;
  int map_count;
  rf_stored *tensor; /* sorted by name; `headers` owns the names */
  int count;
};

/* ---- the header ------------------------------------------------------------------------------ */

/* Reads shape, dtype and byte range of one tensor. `data_bytes` is the size of the file's data. */
static rf_status read_entry(const char *where, const char *name, const json_t *entry,
                            const unsigned char *data, uint64_t data_bytes, rf_stored *tensor,
                            uint64_t span[2], rf_error *error) {
  if (!json_is_object(entry))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: tensor \"%.100s\" is not an object", where, name);
  char inside[512];
  snprintf(inside, sizeof inside, "%.300s: tensor \"%.100s\"", where, name);
  const char *type_name;
  RF_TRY(rf_json_string(entry, "dtype", inside, &type_name, error));
  const rf_stored_type *type = NULL;
  for (int i = 0; i < RF_STORED_TYPE_COUNT; ++i)
    if (strcmp(type_name, RF_STORED_TYPES[i].name) == 0) type = &RF_STORED_TYPES[i];
  if (!type) return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: unknown dtype \"%.40s\"", inside, type_name);
  const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
  if (!json_is_array(shape) || json_array_size(shape) > RF_STORED_RANK)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: shape must be a list of at most %d sizes", inside,
                   RF_STORED_RANK);
  tensor->dtype = type->dtype;
  tensor->rank = (int)json_array_size(shape);
  uint64_t count = 1;
  bool empty = false;
  for (int i = 0; i < tensor->rank; ++i) {
    const json_t *size = json_array_get(shape, (size_t)i);
    if (!json_is_integer(size) || json_integer_value(size) < 0)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: size %d of its shape is not a non-negative integer",
                     inside, i);
    tensor->shape[i] = json_integer_value(size);
    if (tensor->shape[i] == 0) empty = true;
    else if (__builtin_mul_overflow(count, (uint64_t)tensor->shape[i], &count) ||
             count > (uint64_t)INT64_MAX / 8)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: its shape has more elements than can be counted",
                     inside);
  }
  tensor->count = empty ? 0 : (int64_t)count;
  tensor->bytes = tensor->count * type->bytes;
  for (int i = 0; i < 2; ++i) {
    const json_t *offset =
        json_is_array(offsets) && json_array_size(offsets) == 2 ? json_array_get(offsets, (size_t)i) : NULL;
    if (!json_is_integer(offset) || json_integer_value(offset) < 0)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: data_offsets must be two non-negative integers",
                     inside);
    span[i] = (uint64_t)json_integer_value(offset);
  }
  if (span[0] > span[1] || span[1] > data_bytes)
    return RF_FAIL(error, RAFTER_FAILED, "the file may be truncated: copy it again",
                   "%s: data_offsets are outside the data (expected 0 to %llu, got %llu to %llu)", inside,
                   (unsigned long long)data_bytes, (unsigned long long)span[0], (unsigned long long)span[1]);
  if (span[1] - span[0] != (uint64_t)tensor->bytes)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: data_offsets do not fit its shape (expected %lld bytes, got %llu)", inside,
                   (long long)tensor->bytes, (unsigned long long)(span[1] - span[0]));
  tensor->data = data + span[0];
  return RAFTER_OK;
}

typedef struct place {
  uint64_t first, last;
  const char *name;
} place;

static int by_place(const void *a, const void *b) {
  const place *x = a, *y = b;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  return x->last < y->last ? -1 : x->last > y->last;
}

/* Checks that every byte of the data belongs to exactly one tensor. */
static rf_status check_places(const char *where, place *places, int count, uint64_t data_bytes,
                              rf_error *error) {
  qsort(places, (size_t)count, sizeof *places, by_place);
  uint64_t end = 0;
  for (int i = 0; i < count; ++i) {
    if (places[i].first < end)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: tensors \"%.100s\" and \"%.100s\" overlap", where,
                     places[i - 1].name, places[i].name);
    if (places[i].first > end)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "%s: %llu bytes before tensor \"%.100s\" belong to no tensor", where,
                     (unsigned long long)(places[i].first - end), places[i].name);
    end = places[i].last;
  }
  if (end != data_bytes)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: %llu bytes after the last tensor belong to no tensor",
                   where, (unsigned long long)(data_bytes - end));
  return RAFTER_OK;
}

/* Checks a complete file in memory. *header gets the parsed object, which owns the names of the
 * tensors. *tensors is malloc'ed. */
static rf_status read_header(const unsigned char *bytes, size_t size, const char *where, json_t **header,
                             rf_stored **tensors, int *count, rf_error *error) {
  static const char hint[] = "the file may be truncated or not a safetensors file: copy it again";
  if (size < 8)
    return RF_FAIL(error, RAFTER_FAILED, hint,
                   "%s is too short for a safetensors file (expected at least 8 bytes, got %zu)", where,
                   size);
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | bytes[i];
  if (header_bytes > HEADER_MAX || header_bytes > size - 8)
    return RF_FAIL(error, RAFTER_FAILED, hint,
                   "%s: the header's length is wrong (expected at most %zu bytes, got %llu)", where,
                   size - 8 < HEADER_MAX ? size - 8 : (size_t)HEADER_MAX, (unsigned long long)header_bytes);
  if (header_bytes == 0 || bytes[8] != '{')
    return RF_FAIL(error, RAFTER_FAILED, hint, "%s: the header does not begin with '{' (byte 8)", where);
  rf_status status = RAFTER_OK;
  json_t *json = NULL, *entry;
  rf_stored *tensor = NULL;
  place *places = NULL;
  const char *name;
  int n = 0;
  char inside[400];
  snprintf(inside, sizeof inside, "the header of %.380s", where);
  RF_GO(rf_json_parse((const char *)bytes + 8, (size_t)header_bytes, inside, &json, error));
  size_t entries = json_object_size(json);
  tensor = calloc(entries + 1, sizeof *tensor);
  places = calloc(entries + 1, sizeof *places);
  if (!tensor || !places) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for the %zu tensors of %s", entries, where);
    goto done;
  }
  const unsigned char *data = bytes + 8 + header_bytes;
  uint64_t data_bytes = size - 8 - header_bytes;
  json_object_foreach (json, name, entry) {
    if (strcmp(name, "__metadata__") == 0) {
      if (!json_is_object(entry)) {
        status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s: __metadata__ is not an object", inside);
        goto done;
      }
      continue;
    }
    uint64_t span[2] = {0, 0};
    RF_GO(read_entry(where, name, entry, data, data_bytes, &tensor[n], span, error));
    tensor[n].name = name;
    places[n] = (place){span[0], span[1], name};
    ++n;
  }
  RF_GO(check_places(where, places, n, data_bytes, error));
  *header = json;
  *tensors = tensor;
  *count = n;
  json = NULL;
  tensor = NULL;
done:
  json_decref(json);
  free(tensor);
  free(places);
  return status;
}

rf_status rf_safetensors_check(const void *data, size_t bytes, const char *where, rf_error *error) {
  json_t *header;
  rf_stored *tensors;
  int count;
  RF_TRY(read_header(data, bytes, where, &header, &tensors, &count, error));
  json_decref(header);
  free(tensors);
  return RAFTER_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Maps and checks one file and appends its tensors. `wanted` is the weight_map of an index, or
 * NULL. With an index, only tensors that the index assigns to `shard` are appended. */
static rf_status add_file(rf_tensor_file *file, const char *path, const json_t *wanted, const char *shard,
                          rf_error *error) {
  mapping *map = &file->map[file->map_count++];
  memset(map, 0, sizeof *map);
  map->path = strdup(path);
  if (!map->path) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to open %s", path);
  RF_TRY(rf_map_file(path, &map->base, &map->bytes, error));
  rf_stored *tensors;
  int count;
  RF_TRY(read_header(map->base, map->bytes, path, &map->header, &tensors, &count, error));
  rf_stored *all = realloc(file->tensor, (size_t)(file->count + count + 1) * sizeof *all);
  if (!all) {
    free(tensors);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for the tensors of %s", path);
  }
  file->tensor = all;
  for (int i = 0; i < count; ++i) {
    const char *home = wanted ? json_string_value(json_object_get(wanted, tensors[i].name)) : NULL;
    tensors[i].file = map->path;
    if (!wanted || (home && strcmp(home, shard) == 0)) file->tensor[file->count++] = tensors[i];
  }
  free(tensors);
  return RAFTER_OK;
}

/* Reports the first tensor that the index lists but the files lack. */
static rf_status name_lacking(rf_tensor_file *file, const char *path, json_t *weights, rf_error *error) {
  const char *name = NULL;
  json_t *home = NULL;
  qsort(file->tensor, (size_t)file->count, sizeof *file->tensor, rf_compare_names);
  json_object_foreach (weights, name, home)
    if (!rf_tensor_file_find(file, name)) break;
  return RF_FAIL(error, RAFTER_FAILED, "a file of the model may be missing or replaced",
                 "%s: its files lack %zu of %zu tensors (\"%.100s\" is not in %.100s)", path,
                 json_object_size(weights) - (size_t)file->count, json_object_size(weights), name ? name : "",
                 home ? json_string_value(home) : "");
}

/* True if `name` contains no folder. A shard must be in the folder of its index. */
static bool plain_name(const char *name) {
  return *name && *name != '.' && !strchr(name, '/') && strlen(name) < 256;
}

static rf_status add_shards(rf_tensor_file *file, const char *path, rf_error *error) {
  json_t *index = NULL, *weights, *value;
  RF_TRY(rf_json_read(path, INDEX_MAX, &index, error));
  rf_status status = RAFTER_OK;
  const char *name, **shard = calloc(SHARDS_MAX, sizeof *shard);
  int shards = 0;
  char *at = malloc(strlen(path) + 300);
  weights = json_object_get(index, "weight_map");
  if (!json_is_object(weights) || !shard || !at) {
    status =
        RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the field \"weight_map\" is missing or not an object", path);
    goto done;
  }
  json_object_foreach (weights, name, value) {
    const char *home = json_string_value(value);
    if (!home || !plain_name(home)) {
      status = RF_FAIL(error, RAFTER_FAILED, NULL,
                       "%s: weight_map names no file for tensor \"%.100s\" (expected a name without folders)",
                       path, name);
      goto done;
    }
    int i = shards; /* search backwards, because adjacent entries of an index are often in the same shard */
    while (i > 0 && strcmp(shard[i - 1], home) != 0) --i;
    if (i > 0) continue;
    if (shards == SHARDS_MAX) {
      status =
          RF_FAIL(error, RAFTER_FAILED, NULL, "%s: too many files (expected at most %d)", path, SHARDS_MAX);
      goto done;
    }
    shard[shards++] = home;
  }
  mapping *map = realloc(file->map, (size_t)(shards + 1) * sizeof *map);
  if (!map) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for the files of %s", path);
    goto done;
  }
  file->map = map;
  const char *slash = strrchr(path, '/');
  int folder = slash ? (int)(slash - path) + 1 : 0;
  for (int i = 0; i < shards; ++i) {
    sprintf(at, "%.*s%s", folder, path, shard[i]);
    RF_GO(add_file(file, at, weights, shard[i], error));
  }
  if ((size_t)file->count != json_object_size(weights)) status = name_lacking(file, path, weights, error);
done:
  free(shard);
  free(at);
  json_decref(index);
  return status;
}

rf_status rf_tensor_file_open(const char *path, rf_tensor_file **result, rf_error *error) {
  rf_tensor_file *file = calloc(1, sizeof *file);
  char *real = malloc(strlen(path) + 64);
  if (file) file->map = calloc(1, sizeof *file->map);
  if (!file || !real || !file->map) {
    free(real);
    rf_tensor_file_close(file);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to open %s", path);
  }
  file->path = real;
  rf_status status = RAFTER_OK;
  struct stat info;
  strcpy(real, path);
  if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
    sprintf(real, "%s/model.safetensors", path);
    if (stat(real, &info) != 0) sprintf(real, "%s/model.safetensors.index.json", path);
    if (stat(real, &info) != 0) {
      status = RF_FAIL(error, RAFTER_FAILED, "rafter reads weights from safetensors files",
                       "%s has no weights (expected model.safetensors or its index)", path);
      goto done;
    }
  }
  status = rf_text_ends_with(real, ".json") ? add_shards(file, real, error)
                                            : add_file(file, real, NULL, NULL, error);
  if (status == RAFTER_OK && file->count)
    qsort(file->tensor, (size_t)file->count, sizeof *file->tensor, rf_compare_names);
done:
  if (status == RAFTER_OK) *result = file;
  else rf_tensor_file_close(file);
  return status;
}

void rf_tensor_file_close(rf_tensor_file *file) {
  if (!file) return;
  for (int i = 0; i < file->map_count; ++i) {
    rf_unmap_file(file->map[i].base, file->map[i].bytes);
    json_decref(file->map[i].header);
    free(file->map[i].path);
  }
  free(file->map);
  free(file->tensor);
  free(file->path);
  free(file);
}

rf_status rf_tensor_file_unchanged(const rf_tensor_file *file, rf_error *error) {
  for (int i = 0; i < file->map_count; ++i) RF_TRY(rf_mapped_unchanged(file->map[i].base, error));
  return RAFTER_OK;
}

int rf_tensor_file_count(const rf_tensor_file *file) { return file->count; }
const rf_stored *rf_tensor_file_at(const rf_tensor_file *file, int i) {
  return i >= 0 && i < file->count ? &file->tensor[i] : NULL;
}
const char *rf_tensor_file_path(const rf_tensor_file *file) { return file->path; }

const rf_stored *rf_tensor_file_find(const rf_tensor_file *file, const char *name) {
  rf_stored key = {.name = name};
  return file->count ? bsearch(&key, file->tensor, (size_t)file->count, sizeof key, rf_compare_names) : NULL;
}

rf_status rf_stored_read(const rf_stored *tensor, int64_t first, int64_t count, float *out, rf_error *error) {
  if (first < 0 || count < 0 || first > tensor->count || count > tensor->count - first)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "tensor \"%.100s\" has %lld elements (expected to read %lld from element %lld on)",
                   tensor->name, (long long)tensor->count, (long long)count, (long long)first);
  const unsigned char *from = tensor->data;
  switch (tensor->dtype) {
  case RF_F32:
    if (count) memcpy(out, from + first * 4, (size_t)count * 4);
    return RAFTER_OK;
  case RF_BF16:
  case RF_F16:
    from += first * 2;
    for (int64_t i = 0; i < count; ++i) {
      uint16_t half;
      memcpy(&half, from + i * 2, 2);
      out[i] = tensor->dtype == RF_BF16 ? rf_bf16_to_f32(half) : rf_f16_to_f32(half);
    }
    return RAFTER_OK;
  case RF_F64:
    from += first * 8;
    for (int64_t i = 0; i < count; ++i) {
      double wide;
      memcpy(&wide, from + i * 8, 8);
      out[i] = (float)wide;
    }
    return RAFTER_OK;
  default:
    return RF_FAIL(error, RAFTER_FAILED, "the supported types are F32, F16, BF16 and F64",
                   "tensor \"%.100s\" has a type other than plain floats", tensor->name);
  }
}
