/* test_trace_pack.c - the columns of a trace can be restored from the packed form in the page.
 * Corrupt headers are refused. */
#include "report/trace_pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <cmocka.h>

static size_t from_base64(const char *text, unsigned char *bytes) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  size_t count = 0;
  for (; *text; text += 4) {
    uint32_t four = 0;
    int padding = (text[2] == '=') + (text[3] == '=');
    for (int k = 0; k < 4; k++)
      four = four << 6 | (text[k] == '=' ? 0 : (uint32_t)(strchr(letters, text[k]) - letters));
    for (int k = 0; k < 3 - padding; k++) bytes[count++] = (unsigned char)(four >> (16 - 8 * k));
  }
  return count;
}

static json_t *header_of(json_int_t count) {
  return json_pack("{sI s[{ssss}{ssss}{ssss}{ssss}] ss}", "count", count, "columns", "name", "begin", "type",
                   "i64", "name", "end", "type", "i64", "name", "value", "type", "f64", "name", "kind",
                   "type", "u8", "more", "kept");
}

enum { MAX = 300 };

static void columns_come_back(void **state) {
  (void)state;
  for (size_t count = 0; count <= MAX; count = count < 4 ? count + 1 : count * 3) {
    unsigned char raw[MAX * 25], packed[MAX * 40], back[MAX * 25], values[MAX * 25];
    int64_t *begin = (int64_t *)raw;
    json_t *header = header_of((json_int_t)count), *trace = NULL;
    rf_error error;
    for (size_t i = 0; i < 25 * count; i++) raw[i] = (unsigned char)(i * 131 + i / 7);
    for (size_t i = 0; i < count; i++) {
      begin[i] = i == count / 2 ? 5 : (int64_t)(i * i) << 20;
      begin[count + i] = begin[i] + 17 * (int64_t)i;
    }
    assert_int_equal(rf_report_pack_trace(header, raw, 25 * count, &trace, &error), RAFTER_OK);
    size_t zipped = from_base64(json_string_value(json_object_get(trace, "columns")), packed);
    z_stream stream = {
        .next_in = packed, .avail_in = (uInt)zipped, .next_out = back, .avail_out = sizeof back};
    assert_int_equal(inflateInit2(&stream, 15 + 16), Z_OK);
    assert_int_equal(inflate(&stream, Z_FINISH), Z_STREAM_END);
    assert_int_equal(stream.total_out, 25 * count);
    inflateEnd(&stream);
    static const size_t sizes[] = {8, 8, 8, 1};
    size_t at = 0;
    for (int c = 0; c < 4; at += sizes[c] * count, c++)
      for (size_t i = 0; i < count; i++)
        for (size_t b = 0; b < sizes[c]; b++) values[at + i * sizes[c] + b] = back[at + b * count + i];
    int64_t *times = (int64_t *)values;
    for (size_t i = 1; i < count; i++) times[i] += times[i - 1];
    for (size_t i = 0; i < count; i++) times[count + i] += times[i];
    assert_memory_equal(values, raw, 25 * count);
    const json_t *own = json_object_get(trace, "header"), *list = json_object_get(own, "columns");
    static const char *const codings[] = {"difference", "after begin", "bytes", "bytes"};
    for (size_t c = 0; c < 4; c++)
      assert_string_equal(json_string_value(json_object_get(json_array_get(list, c), "coding")), codings[c]);
    assert_string_equal(json_string_value(json_object_get(own, "more")), "kept");
    /* the caller's header does not change */
    assert_null(json_object_get(json_array_get(json_object_get(header, "columns"), 0), "coding"));
    json_decref(trace);
    json_decref(header);
  }
}

static void lies_are_refused(void **state) {
  (void)state;
  static const unsigned char raw[25 * 4] = {0};
  static const struct {
    const char *header;
    size_t bytes;
  } lies[] = {
      {"{}", 100},
      {"{\"count\": 4}", 100},
      {"{\"count\": -1, \"columns\": []}", 100},
      {"{\"count\": 4, \"columns\": 3}", 100},
      {"{\"count\": 4, \"columns\": []}", 100},
      {"{\"count\": 4, \"columns\": [{\"name\": \"begin\", \"type\": \"i65\"}]}", 100},
      {"{\"count\": 4, \"columns\": [{\"type\": \"i64\"}]}", 32},
      {"{\"count\": 4, \"columns\": [3]}", 100},
      {"{\"count\": 5, \"columns\": [{\"name\": \"begin\", \"type\": \"i64\"}]}", 32},
      {"{\"count\": 3, \"columns\": [{\"name\": \"begin\", \"type\": \"i64\"}]}", 32},
      {"{\"count\": 9223372036854775807, \"columns\": [{\"name\": \"begin\", \"type\": \"i64\"}]}", 32},
  };
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    json_t *header = json_loads(lies[i].header, 0, NULL), *trace = NULL;
    rf_error error;
    assert_non_null(header);
    assert_int_equal(rf_report_pack_trace(header, raw, lies[i].bytes, &trace, &error), RAFTER_FAILED);
    assert_null(trace);
    json_decref(header);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(columns_come_back), cmocka_unit_test(lies_are_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
