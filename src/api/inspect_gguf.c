/* inspect_gguf.c - `rafter inspect` for .gguf files and llama2.c .bin files: metadata, tensors and
 * bits per weight. */
#define _GNU_SOURCE
#include "api/api.h"

#include "base/text.h"
#include "model/gguf_source.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_MAX = 100 }; /* maximum bytes of a text value to print */

/* Appends a text without its control characters, because a terminal would execute them. */
static void append_text(char *line, size_t size, rf_gguf_text text) {
  for (int64_t i = 0; i < text.bytes && i < TEXT_MAX; ++i) {
    unsigned char c = (unsigned char)text.at[i];
    rf_text_append(line, size, c == '\n' ? "\\n" : c < 0x20 || c == 0x7f ? "?" : "%c", c);
  }
  if (text.bytes > TEXT_MAX) rf_text_append(line, size, "...");
}

static json_t *json_of(rf_gguf_text text) {
  json_t *value = json_stringn(text.at, (size_t)text.bytes);
  return value ? value : json_null(); /* not UTF-8 */
}

/* Returns a metadata value as JSON and appends it to the line. For an array, returns its type and
 * its length. */
static json_t *describe(const rf_gguf *file, const rf_gguf_value *v, char *line, size_t size) {
  rf_gguf_text text;
  int64_t whole;
  double real;
  bool flag;
  if (v->kind == RF_GGUF_ARRAY) {
    rf_text_append(line, size, "%lld of %s", (long long)v->count, rf_gguf_kind_name(v->item));
    return json_pack("{ss sI}", "array", rf_gguf_kind_name(v->item), "count", (json_int_t)v->count);
  }
  if (v->kind == RF_GGUF_TEXT) {
    if (rf_gguf_text_of(file, v->key, &text, NULL) != RAFTER_OK) return json_null();
    append_text(line, size, text);
    return json_of(text);
  }
  if (v->kind == RF_GGUF_BOOL) {
    if (rf_gguf_bool_or(file, v->key, false, &flag, NULL) != RAFTER_OK) return json_null();
    rf_text_append(line, size, "%s", flag ? "true" : "false");
    return json_boolean(flag);
  }
  if (rf_gguf_int(file, v->key, INT64_MIN, INT64_MAX, &whole, NULL) == RAFTER_OK) {
    rf_text_append(line, size, "%lld", (long long)whole);
    return json_integer((json_int_t)whole);
  }
  /* the value is not a finite number */
  if (rf_gguf_float(file, v->key, -1e308, 1e308, &real, NULL) != RAFTER_OK) return json_null();
  rf_text_append(line, size, "%.9g", real);
  return json_real(real);
}

static rf_status put_metadata(const char *path, const rafter_sink *sink, json_t *json, rf_error *error) {
  rf_gguf *file = NULL;
  RF_TRY(rf_gguf_open(path, &file, error));
  json_t *all = json_object();
  for (int i = 0; i < rf_gguf_value_count(file); ++i) {
    const rf_gguf_value *v = rf_gguf_value_at(file, i);
    char line[512] = "";
    json_object_set_new(all, v->key, describe(file, v, line, sizeof line));
    rf_say(sink, "  %-48s %s\n", v->key, line);
  }
  json_object_set_new(json, "version", json_integer(rf_gguf_version(file)));
  json_object_set_new(json, "metadata", all);
  rf_gguf_close(file);
  return RAFTER_OK;
}

void rf_inspect_tensor(const rafter_sink *sink, json_t *list, const char *name, const char *dtype, int rank,
                       const int64_t *shape, int64_t bytes) {
  char text[128] = "", size[32];
  json_t *dims = json_array();
  for (int d = 0; d < rank; ++d) {
    rf_text_append(text, sizeof text, "%s%lld", d ? "," : "", (long long)shape[d]);
    json_array_append_new(dims, json_integer((json_int_t)shape[d]));
  }
  rf_say(sink, "  %-48s %-6s (%s) %s\n", name, dtype, text, rf_text_bytes((double)bytes, size));
  json_t *row =
      json_pack("{ss ss so sI}", "name", name, "dtype", dtype, "shape", dims, "bytes", (json_int_t)bytes);
  /* jansson returns NULL if the tensor's name is not UTF-8 */
  json_array_append_new(list, row ? row : json_null());
}

/* Prints one line with the number of parameters, their bytes, and the most frequent type. */
static void say_size(const rafter_sink *sink, const rf_gguf_source *source, int64_t elements, int64_t bytes) {
  const rf_quant_type *type = NULL;
  int64_t most = 0;
  char parameters[32], size[32];
  for (int i = 0; i < rf_gguf_source_count(source); i++) {
    const rf_quant_type *one = rf_gguf_source_at(source, i)->type;
    int64_t sum = 0;
    for (int k = 0; k < rf_gguf_source_count(source); k++)
      if (rf_gguf_source_at(source, k)->type == one) sum += rf_gguf_source_at(source, k)->count;
    if (sum <= most) continue;
    most = sum;
    type = one;
  }
  if (!type) return;
  rf_say(sink, "%s parameters, %s, %s%s\n", rf_text_count((double)elements, parameters),
         rf_text_bytes((double)bytes, size), most < elements ? "mostly " : "", type->name);
}

rf_status rf_inspect_blocks(const char *path, const rafter_sink *sink, json_t *json, rf_error *error) {
  rf_gguf_source *source = NULL;
  rf_status status = RAFTER_OK;
  int64_t bytes = 0, elements = 0;
  RF_TRY(rf_gguf_source_open(path, &source, error));
  int count = rf_gguf_source_count(source);
  json_t *list = json_array();
  if (rf_text_ends_with(path, ".gguf")) RF_GO(put_metadata(path, sink, json, error));
  for (int i = 0; i < count; ++i) {
    const rf_quant_tensor *t = rf_gguf_source_at(source, i);
    rf_inspect_tensor(sink, list, t->name, t->type->name, t->rank, t->shape, t->bytes);
    bytes += t->bytes;
    elements += t->count;
  }
  rf_say(sink, "%d tensors, %lld elements, %.2f bits per weight\n", count, (long long)elements,
         elements ? 8 * (double)bytes / (double)elements : 0);
  say_size(sink, source, elements, bytes);
  json_object_update_new(json, json_pack("{ss sO sI sI}", "kind", "model", "tensors", list, "elements",
                                         (json_int_t)elements, "bytes", (json_int_t)bytes));
done:
  json_decref(list);
  rf_gguf_source_close(source);
  return status;
}
