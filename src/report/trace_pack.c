/* trace_pack.c - packs the columns of a trace for the page. Times are stored as differences, and
 * bytes are grouped by significance. The result is compressed by gzip and written as base64. */
#include "report/trace_pack.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static size_t size_of(const char *type) {
  static const struct {
    const char *name;
    size_t bytes;
  } types[] = {{"i8", 1},  {"u8", 1},  {"i16", 2}, {"u16", 2}, {"i32", 4},
               {"u32", 4}, {"f32", 4}, {"i64", 8}, {"u64", 8}, {"f64", 8}};
  for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
    if (!strcmp(types[i].name, type)) return types[i].bytes;
  return 0;
}

static uint64_t little(const unsigned char *at) {
  uint64_t value = 0;
  for (int b = 7; b >= 0; b--) value = value << 8 | at[b];
  return value;
}

/* Replaces times by differences. A begin becomes its distance to the previous begin. An end becomes
 * its distance to the begin of the same span. Differences are modulo 2^64, so they lose no
 * information. */
static void difference(const unsigned char *column, const unsigned char *begins, size_t count,
                       unsigned char *values) {
  uint64_t before = 0;
  for (size_t i = 0; i < count; i++) {
    uint64_t value = little(column + 8 * i), other = begins ? little(begins + 8 * i) : before,
             less = value - other;
    before = value;
    for (int b = 0; b < 8; b++) values[8 * i + (size_t)b] = (unsigned char)(less >> 8 * b);
  }
}

/* Writes the first bytes of all values, then all second bytes, and so on, because this order
 * compresses well. */
static void by_byte(const unsigned char *values, size_t size, size_t count, unsigned char *out) {
  for (size_t b = 0; b < size; b++)
    for (size_t i = 0; i < count; i++) *out++ = values[i * size + b];
}

static char *base64(const unsigned char *bytes, size_t count, size_t *length) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  char *text = malloc((count + 2) / 3 * 4 + 1), *out = text;
  if (!text) return NULL;
  for (size_t i = 0; i < count; i += 3) {
    uint32_t three = (uint32_t)bytes[i] << 16 | (i + 1 < count ? (uint32_t)bytes[i + 1] << 8 : 0) |
                     (i + 2 < count ? bytes[i + 2] : 0);
    for (int k = 0; k < 4; k++) *out++ = i + (size_t)k > count ? '=' : letters[three >> (18 - 6 * k) & 63];
  }
  *out = 0;
  *length = (size_t)(out - text);
  return text;
}

/* Returns malloc'ed bytes, which gzip has compressed. NULL: out of memory. */
static unsigned char *gzip(const unsigned char *bytes, size_t count, size_t *packed) {
  z_stream stream = {0};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16 /* a gzip header */, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    return NULL;
  /* deflateBound takes an unsigned long, which has the size of size_t here. */
  size_t room = count + count / 1000 + 128;
  if (room < deflateBound(&stream, (uLong)count)) room = deflateBound(&stream, (uLong)count);
  unsigned char *out = malloc(room);
  int state = Z_OK;
  while (out && state == Z_OK) { /* zlib counts available bytes in 32 bits */
    size_t in_left = count - stream.total_in, out_left = room - stream.total_out;
    stream.next_in = (unsigned char *)bytes + stream.total_in;
    stream.avail_in = in_left < 1u << 30 ? (uInt)in_left : 1u << 30;
    stream.next_out = out + stream.total_out;
    stream.avail_out = out_left < 1u << 30 ? (uInt)out_left : 1u << 30;
    state = deflate(&stream, in_left == stream.avail_in ? Z_FINISH : Z_NO_FLUSH);
  }
  *packed = stream.total_out;
  deflateEnd(&stream);
  if (out && state != Z_STREAM_END) {
    free(out);
    out = NULL;
  }
  return out;
}

/* Writes the coded columns into `coded`. Adds the coding of each column to `list`. */
static rf_status code_columns(const json_t *list, size_t count, const unsigned char *columns, size_t bytes,
                              unsigned char *coded, unsigned char *scratch, rf_error *error) {
  const unsigned char *begins = NULL;
  json_t *column;
  size_t i, at = 0;
  json_array_foreach ((json_t *)list, i, column) {
    const char *name = json_string_value(json_object_get(column, "name")),
               *type = json_string_value(json_object_get(column, "type"));
    size_t size = size_of(type);
    if (!name || !size || count > (bytes - at) / size)
      return RF_FAIL(error, RAFTER_FAILED, "record the run again",
                     "a trace's columns do not match its header (column %zu: %s)", i,
                     name ? name : "no name");
    const unsigned char *values = columns + at;
    bool times = size == 8 && type[0] != 'f' && (!strcmp(name, "begin") || (!strcmp(name, "end") && begins));
    const char *coding = !times ? "bytes" : !strcmp(name, "begin") ? "difference" : "after begin";
    if (times) difference(values, !strcmp(name, "end") ? begins : NULL, count, scratch);
    if (!strcmp(name, "begin")) begins = values;
    by_byte(times ? scratch : values, size, count, coded + at);
    json_object_set_new(column, "coding", json_string(coding));
    at += count * size;
  }
  if (at == bytes) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, "record the run again",
                 "a trace has %zu bytes of columns (expected %zu)", bytes, at);
}

rf_status rf_report_pack_trace(const json_t *header, const void *columns, size_t bytes, json_t **trace,
                               rf_error *error) {
  rf_status status = RAFTER_OK;
  const json_t *number = json_object_get(header, "count"), *list = json_object_get(header, "columns");
  json_int_t count = json_is_integer(number) ? json_integer_value(number) : -1;
  size_t packed, length;
  unsigned char *coded = NULL, *scratch = NULL, *zipped = NULL;
  char *text = NULL;
  json_t *own = json_copy((json_t *)header), *coded_list = json_deep_copy(list);
  if (own) json_object_set(own, "columns", coded_list);
  if (count < 0 || (size_t)count > bytes || !json_is_array(list)) {
    status = RF_FAIL(error, RAFTER_FAILED, "record the run again",
                     "a trace's header lacks the number of spans or the list of columns");
    goto done;
  }
  coded = malloc(bytes + 1);
  scratch = malloc(8 * (size_t)count + 1);
  if (!own || !coded_list || !coded || !scratch) goto no_memory;
  RF_GO(code_columns(coded_list, (size_t)count, columns, bytes, coded, scratch, error));
  zipped = gzip(coded, bytes, &packed);
  text = zipped ? base64(zipped, packed, &length) : NULL;
  if (!text) goto no_memory;
  *trace = json_pack("{sO so}", "header", own, "columns", json_stringn_nocheck(text, length));
  goto done;
no_memory:
  status = RF_FAIL(error, RAFTER_FAILED, "report fewer traced steps",
                   "out of memory for a trace of %zu bytes", bytes);
done:
  free(coded);
  free(scratch);
  free(zipped);
  free(text);
  json_decref(own);
  json_decref(coded_list);
  return status;
}
