/* gguf.c - the reader: maps the file and checks everything before it is used. */
#include "formats/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/gguf_parts.h"
#include "formats/quant_blocks.h"

/* VALUE_MIN: bytes of the smallest metadata value (empty key, u8). TENSOR_MIN: bytes of the
 * smallest tensor (empty name, no axes). NAME_LIMIT: maximum bytes of a name. */
enum { VALUE_MIN = 13, TENSOR_MIN = 24, NAME_LIMIT = 4096, ALIGNMENT_MAX = 1 << 20, ALIGNMENT = 32 };
static const char CUT[] = "the file may be truncated: copy it again";

struct rf_gguf {
  char *path;
  void *map; /* NULL: the caller owns the bytes */
  const uint8_t *base;
  size_t bytes;
  int version, count, value_count;
  int64_t alignment;
  rf_quant_tensor *tensor;
  rf_gguf_value *value;
  const rf_quant_tensor **tensor_by_name;
  const rf_gguf_value **value_by_key;
  char *names; /* copies of all keys and tensor names, each with a NUL */
  size_t names_used;
};

// clang-format off
/* `bytes` is 0 if the items of a kind have no fixed size */
static const struct { const char *name; int bytes; } KINDS[RF_GGUF_KINDS] = {
  [RF_GGUF_U8] = {"u8", 1},     [RF_GGUF_I8] = {"i8", 1},     [RF_GGUF_U16] = {"u16", 2},   [RF_GGUF_I16] = {"i16", 2},
  [RF_GGUF_U32] = {"u32", 4},   [RF_GGUF_I32] = {"i32", 4},   [RF_GGUF_U64] = {"u64", 8},   [RF_GGUF_I64] = {"i64", 8},
  [RF_GGUF_F32] = {"f32", 4},   [RF_GGUF_F64] = {"f64", 8},   [RF_GGUF_BOOL] = {"bool", 1}, [RF_GGUF_TEXT] = {"text", 0},
  [RF_GGUF_ARRAY] = {"array", 0},
};
// clang-format on

const char *rf_gguf_kind_name(rf_gguf_kind kind) {
  return (unsigned)kind < RF_GGUF_KINDS ? KINDS[kind].name : "?";
}
int rf_gguf_kind_bytes(rf_gguf_kind kind) { return (unsigned)kind < RF_GGUF_KINDS ? KINDS[kind].bytes : 0; }

/* ---- the header ------------------------------------------------------------------------------ */

typedef struct cursor {
  const uint8_t *base;
  size_t at, bytes;
  const char *where;
} cursor;

static rf_status need(const cursor *c, uint64_t bytes, const char *what, rf_error *error) {
  if (bytes <= c->bytes - c->at) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, CUT, "%s ends inside %s (byte %zu: expected %llu more bytes, got %zu)",
                 c->where, what, c->at, (unsigned long long)bytes, c->bytes - c->at);
}

static rf_status take_u32(cursor *c, const char *what, uint32_t *value, rf_error *error) {
  RF_TRY(need(c, 4, what, error));
  *value = rf_load_u32(c->base + c->at);
  c->at += 4;
  return RAFTER_OK;
}

static rf_status take_u64(cursor *c, const char *what, uint64_t *value, rf_error *error) {
  RF_TRY(need(c, 8, what, error));
  *value = rf_load_u64(c->base + c->at);
  c->at += 8;
  return RAFTER_OK;
}

/* Appends a key or a tensor's name to `names` and adds a NUL. `names` has memory for all names. */
static rf_status take_name(cursor *c, const char *what, rf_gguf *file, const char **name, rf_error *error) {
  uint64_t bytes;
  size_t at = c->at;
  RF_TRY(take_u64(c, what, &bytes, error));
  RF_TRY(need(c, bytes, what, error));
  if (bytes == 0 || bytes > NAME_LIMIT)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: %s has a wrong length (byte %zu: expected 1 to %d, got %llu)", c->where, what, at,
                   NAME_LIMIT, (unsigned long long)bytes);
  const uint8_t *from = c->base + c->at;
  /* Names are printed, so control characters and NULs are refused. */
  for (uint64_t i = 0; i < bytes; ++i)
    if (from[i] < 0x20 || from[i] == 0x7f)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: %s has a control character (byte %zu)", c->where, what,
                     c->at + (size_t)i);
  char *to = file->names + file->names_used;
  memcpy(to, from, (size_t)bytes);
  to[bytes] = 0;
  file->names_used += (size_t)bytes + 1;
  c->at += (size_t)bytes;
  *name = to;
  return RAFTER_OK;
}

static rf_status skip_texts(cursor *c, const char *what, int64_t count, rf_error *error) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bytes;
    RF_TRY(take_u64(c, what, &bytes, error));
    RF_TRY(need(c, bytes, what, error));
    c->at += (size_t)bytes;
  }
  return RAFTER_OK;
}

static rf_status take_kind(cursor *c, const char *what, rf_gguf_kind *kind, rf_error *error) {
  uint32_t number;
  RF_TRY(take_u32(c, what, &number, error));
  if (number >= RF_GGUF_KINDS)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: %s has an unknown kind (byte %zu: expected 0 to %d, got %u)", c->where, what,
                   c->at - 4, RF_GGUF_KINDS - 1, number);
  *kind = (rf_gguf_kind)number;
  return RAFTER_OK;
}

static rf_status take_value(cursor *c, rf_gguf *file, rf_gguf_value *value, rf_error *error) {
  char what[160];
  RF_TRY(take_name(c, "a metadata key", file, &value->key, error));
  snprintf(what, sizeof what, "metadata \"%.100s\"", value->key);
  RF_TRY(take_kind(c, what, &value->kind, error));
  value->item = value->kind;
  value->count = 1;
  if (value->kind == RF_GGUF_ARRAY) {
    uint64_t count;
    RF_TRY(take_kind(c, what, &value->item, error));
    RF_TRY(take_u64(c, what, &count, error));
    if (value->item == RF_GGUF_ARRAY)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: %s is an array of arrays (byte %zu)", c->where, what,
                     c->at);
    if (count > c->bytes - c->at) /* an array item has at least one byte */
      return RF_FAIL(
          error, RAFTER_FAILED, CUT,
          "%s: %s has more items than the file has bytes (byte %zu: expected at most %zu, got %llu)",
          c->where, what, c->at - 8, c->bytes - c->at, (unsigned long long)count);
    value->count = (int64_t)count;
  }
  size_t from = c->at;
  int width = KINDS[value->item].bytes;
  if (width) {
    /* `count` is not greater than the size of the file, so the product cannot overflow. */
    RF_TRY(need(c, (uint64_t)value->count * (uint64_t)width, what, error));
    c->at += (size_t)value->count * (size_t)width;
  } else {
    RF_TRY(skip_texts(c, what, value->count, error));
  }
  value->data = c->base + from;
  value->bytes = (int64_t)(c->at - from);
  for (int64_t i = 0; value->item == RF_GGUF_BOOL && i < value->count; ++i)
    if (c->base[from + (size_t)i] > 1)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "%s: %s is neither true nor false (byte %zu: expected 0 or 1, got %d)", c->where, what,
                     from + (size_t)i, c->base[from + (size_t)i]);
  return RAFTER_OK;
}

/* Reads name, shape, type and offset of a tensor. The offset counts from the start of the data,
 * which follows all headers. place_tensors checks the offset. */
static rf_status take_tensor(cursor *c, rf_gguf *file, rf_quant_tensor *tensor, uint64_t *offset,
                             rf_error *error) {
  char what[160];
  uint32_t axes, number;
  uint64_t size, count = 1;
  bool empty = false;
  RF_TRY(take_name(c, "a tensor's name", file, &tensor->name, error));
  snprintf(what, sizeof what, "tensor \"%.100s\"", tensor->name);
  RF_TRY(take_u32(c, what, &axes, error));
  if (axes > RF_QUANT_RANK)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: %s has too many axes (byte %zu: expected at most %d, got %u)", c->where, what,
                   c->at - 4, RF_QUANT_RANK, axes);
  tensor->rank = (int)axes;
  for (int i = tensor->rank - 1; i >= 0; --i) { /* the file lists the innermost axis first */
    RF_TRY(take_u64(c, what, &size, error));
    if (size == 0) empty = true;
    else if (size > INT64_MAX || __builtin_mul_overflow(count, size, &count) ||
             count > (uint64_t)INT64_MAX / 16)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: %s has more elements than can be counted (byte %zu)",
                     c->where, what, c->at - 8);
    tensor->shape[i] = (int64_t)size;
  }
  tensor->count = empty ? 0 : (int64_t)count;
  RF_TRY(take_u32(c, what, &number, error));
  tensor->type = rf_quant_type_of(number);
  if (!tensor->type || tensor->type->head)
    return RF_FAIL(error, RAFTER_FAILED, "the file may be newer than rafter",
                   "%s: %s has an unknown type (byte %zu: got number %u)", c->where, what, c->at - 4, number);
  int64_t row = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
  if (row % tensor->type->values)
    return RF_FAIL(
        error, RAFTER_FAILED, NULL,
        "%s: %s of type %s has rows that do not fill whole blocks (expected a multiple of %d, got %lld)",
        c->where, what, tensor->type->name, tensor->type->values, (long long)row);
  tensor->bytes = tensor->count / tensor->type->values * tensor->type->bytes;
  return take_u64(c, what, offset, error);
}

/* ---- order: duplicates, overlaps, look-ups --------------------------------------------------- */

/* Compares pointers to tensors (by name) or to values (by key). */
static int by_name(const void *a, const void *b) {
  return rf_compare_names(*(const void *const *)a, *(const void *const *)b);
}
static int tensors_by_place(const void *a, const void *b) {
  const rf_quant_tensor *x = *(const rf_quant_tensor *const *)a, *y = *(const rf_quant_tensor *const *)b;
  if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
  return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static rf_status sort_values(rf_gguf *file, rf_error *error) {
  for (int i = 0; i < file->value_count; ++i) file->value_by_key[i] = &file->value[i];
  qsort(file->value_by_key, (size_t)file->value_count, sizeof *file->value_by_key, by_name);
  for (int i = 1; i < file->value_count; ++i)
    if (strcmp(file->value_by_key[i - 1]->key, file->value_by_key[i]->key) == 0)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: metadata \"%.100s\" occurs twice", file->path,
                     file->value_by_key[i]->key);
  return RAFTER_OK;
}

static rf_status sort_tensors(rf_gguf *file, rf_error *error) {
  const rf_quant_tensor **order = file->tensor_by_name;
  for (int i = 0; i < file->count; ++i) order[i] = &file->tensor[i];
  qsort(order, (size_t)file->count, sizeof *order, tensors_by_place);
  for (int i = 1; i < file->count; ++i)
    if ((const char *)order[i]->data < (const char *)order[i - 1]->data + order[i - 1]->bytes)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: tensors \"%.100s\" and \"%.100s\" overlap", file->path,
                     order[i - 1]->name, order[i]->name);
  qsort(order, (size_t)file->count, sizeof *order, by_name);
  for (int i = 1; i < file->count; ++i)
    if (strcmp(order[i - 1]->name, order[i]->name) == 0)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: tensor \"%.100s\" occurs twice", file->path,
                     order[i]->name);
  return RAFTER_OK;
}

const rf_quant_tensor *rf_gguf_find(const rf_gguf *file, const char *name) {
  rf_quant_tensor key = {.name = name};
  const rf_quant_tensor *pointer = &key, **found;
  if (!file->count) return NULL;
  found = bsearch(&pointer, file->tensor_by_name, (size_t)file->count, sizeof *found, by_name);
  return found ? *found : NULL;
}

const rf_gguf_value *rf_gguf_value_find(const rf_gguf *file, const char *name) {
  rf_gguf_value key = {.key = name};
  const rf_gguf_value *pointer = &key, **found;
  if (!file->value_count) return NULL;
  found = bsearch(&pointer, file->value_by_key, (size_t)file->value_count, sizeof *found, by_name);
  return found ? *found : NULL;
}

/* ---- the whole file -------------------------------------------------------------------------- */

static rf_status check_start(cursor *c, int *version, rf_error *error) {
  uint32_t number;
  if (c->bytes < 4 || memcmp(c->base, "GGUF", 4) != 0)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s is not a GGUF file (byte 0: expected \"GGUF\")", c->where);
  c->at = 4;
  RF_TRY(take_u32(c, "the version", &number, error));
  if (number == 2 || number == 3) return *version = (int)number, RAFTER_OK;
  bool swapped = number && !(number & 0xffff);
  return RF_FAIL(error, RAFTER_FAILED,
                 swapped ? "convert it to a little-endian file"
                         : "convert the model again with a newer converter",
                 "%s has %s GGUF version (byte 4: expected 2 or 3, got %u)", c->where,
                 swapped ? "a big-endian" : "an unknown", swapped ? __builtin_bswap32(number) : number);
}

/* Reads the numbers of tensors and values. A file has at most its size / (bytes of the smallest
 * entry) entries. Larger numbers are refused, so that allocations stay proportional to the file's
 * size. */
static rf_status take_counts(cursor *c, rf_gguf *file, rf_error *error) {
  uint64_t tensors, values;
  RF_TRY(take_u64(c, "the number of tensors", &tensors, error));
  RF_TRY(take_u64(c, "the number of metadata values", &values, error));
  uint64_t left = c->bytes - c->at;
  if (tensors > left / TENSOR_MIN || values > left / VALUE_MIN || tensors > INT32_MAX / 2 ||
      values > INT32_MAX / 2)
    return RF_FAIL(
        error, RAFTER_FAILED, CUT,
        "%s is too short for the counts in its header (byte 8: %llu tensors and %llu metadata values "
        "in %llu bytes)",
        c->where, (unsigned long long)tensors, (unsigned long long)values, (unsigned long long)left);
  file->count = (int)tensors;
  file->value_count = (int)values;
  return RAFTER_OK;
}

/* Computes the addresses of tensors. The headers were already read, so the start of the data is
 * known. */
static rf_status place_tensors(rf_gguf *file, const uint64_t *offset, size_t header_end, rf_error *error) {
  uint64_t align = (uint64_t)file->alignment, start = ((uint64_t)header_end + align - 1) / align * align;
  uint64_t room = file->bytes > start ? file->bytes - start : 0;
  for (int i = 0; i < file->count; ++i) {
    rf_quant_tensor *t = &file->tensor[i];
    if (offset[i] % align)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "%s: tensor \"%.100s\" begins at a wrong offset (expected a multiple of %llu, got %llu)",
                     file->path, t->name, (unsigned long long)align, (unsigned long long)offset[i]);
    if (offset[i] > room || (uint64_t)t->bytes > room - offset[i])
      return RF_FAIL(error, RAFTER_FAILED, CUT,
                     "%s: tensor \"%.100s\" is outside the file (expected to end by byte %zu, got %llu + "
                     "%lld from %llu on)",
                     file->path, t->name, file->bytes, (unsigned long long)offset[i], (long long)t->bytes,
                     (unsigned long long)start);
    t->data = room ? file->base + start + offset[i] : file->base;
  }
  return RAFTER_OK;
}

static rf_status read_all(rf_gguf *file, rf_error *error) {
  cursor c = {file->base, 0, file->bytes, file->path};
  rf_status status = RAFTER_OK;
  uint64_t *offset = NULL;
  RF_TRY(check_start(&c, &file->version, error));
  RF_TRY(take_counts(&c, file, error));
  size_t tensors = (size_t)file->count, values = (size_t)file->value_count;
  file->tensor = calloc(tensors + 1, sizeof *file->tensor);
  file->value = calloc(values + 1, sizeof *file->value);
  file->tensor_by_name = calloc(tensors + 1, sizeof *file->tensor_by_name);
  file->value_by_key = calloc(values + 1, sizeof *file->value_by_key);
  offset = calloc(tensors + 1, sizeof *offset);
  /* A name in the file has a length of 8 bytes before it. The copy of a name has only a NUL, so the
   * copies need at most as many bytes as the file has. NAME_LIMIT also limits the memory. */
  size_t names = (tensors + values) * (NAME_LIMIT + 1);
  file->names = malloc((names < file->bytes ? names : file->bytes) + 1);
  if (!file->tensor || !file->value || !file->tensor_by_name || !file->value_by_key || !offset ||
      !file->names) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for the header of %s", file->path);
    goto done;
  }
  for (int i = 0; i < file->value_count; ++i) RF_GO(take_value(&c, file, &file->value[i], error));
  RF_GO(sort_values(file, error));
  for (int i = 0; i < file->count; ++i) RF_GO(take_tensor(&c, file, &file->tensor[i], &offset[i], error));
  RF_GO(rf_gguf_int_or(file, "general.alignment", 1, ALIGNMENT_MAX, ALIGNMENT, &file->alignment, error));
  if (file->alignment & (file->alignment - 1)) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL,
                     "%s: metadata \"general.alignment\" is wrong (expected a power of two, got %lld)",
                     file->path, (long long)file->alignment);
    goto done;
  }
  RF_GO(place_tensors(file, offset, c.at, error));
  RF_GO(sort_tensors(file, error));
done:
  free(offset);
  return status;
}

rf_status rf_gguf_parse(const void *data, size_t bytes, const char *where, rf_gguf **result,
                        rf_error *error) {
  rf_gguf *file = calloc(1, sizeof *file);
  if (file) file->path = strdup(where);
  if (!file || !file->path) {
    free(file);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory to open %s", where);
  }
  file->base = data;
  file->bytes = bytes;
  rf_status status = read_all(file, error);
  if (status == RAFTER_OK) *result = file;
  else rf_gguf_close(file);
  return status;
}

rf_status rf_gguf_open(const char *path, rf_gguf **result, rf_error *error) {
  void *map;
  size_t bytes;
  RF_TRY(rf_map_file(path, &map, &bytes, error));
  rf_status status = rf_gguf_parse(map, bytes, path, result, error);
  if (status == RAFTER_OK) (*result)->map = map;
  else rf_unmap_file(map, bytes);
  return status;
}

void rf_gguf_close(rf_gguf *file) {
  if (!file) return;
  rf_unmap_file(file->map, file->bytes);
  free(file->tensor);
  free(file->value);
  free(file->tensor_by_name);
  free(file->value_by_key);
  free(file->names);
  free(file->path);
  free(file);
}

rf_status rf_gguf_unchanged(const rf_gguf *file, rf_error *error) {
  return rf_mapped_unchanged(file->map, error);
}

const char *rf_gguf_path(const rf_gguf *file) { return file->path; }
int rf_gguf_version(const rf_gguf *file) { return file->version; }
int rf_gguf_count(const rf_gguf *file) { return file->count; }
const rf_quant_tensor *rf_gguf_at(const rf_gguf *file, int i) {
  return i >= 0 && i < file->count ? &file->tensor[i] : NULL;
}
int rf_gguf_value_count(const rf_gguf *file) { return file->value_count; }
const rf_gguf_value *rf_gguf_value_at(const rf_gguf *file, int i) {
  return i >= 0 && i < file->value_count ? &file->value[i] : NULL;
}
