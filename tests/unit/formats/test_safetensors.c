/* test_safetensors.c - tests the safetensors reader with corrupt files, and the writer with the
 * reader. */
#include "base/file.h"
#include "formats/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/scratch.h"

/* Makes a file in memory: header and `data_bytes` bytes 0, 1, 2, ... The block is exactly as long
 * as needed, so that a sanitizer sees every byte past the end. */
static unsigned char *file_of(const char *header, size_t data_bytes, size_t *size) {
  size_t n = strlen(header);
  unsigned char *bytes = malloc(8 + n + data_bytes);
  for (int i = 0; i < 8; ++i) bytes[i] = (unsigned char)((uint64_t)n >> 8 * i);
  memcpy(bytes + 8, header, n);
  for (size_t i = 0; i < data_bytes; ++i) bytes[8 + n + i] = (unsigned char)i;
  *size = 8 + n + data_bytes;
  return bytes;
}

static rf_status check(const char *header, size_t data_bytes, rf_error *error) {
  size_t size;
  unsigned char *bytes = file_of(header, data_bytes, &size);
  rf_status status = rf_safetensors_check(bytes, size, "file", error);
  free(bytes);
  return status;
}

#define GOOD \
  "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"b\":{\"dtype\":\"BF16\",\"shape\":[" \
  "2],\"data_offsets\":[24,28]}}"

static void lies_are_found(void **state) {
  (void)state;
  rf_error error = {0};
  assert_int_equal(check(GOOD, 28, NULL), RAFTER_OK);
  assert_int_equal(check("{}", 0, NULL), RAFTER_OK);
  assert_int_equal(check("{\"__metadata__\":{\"x\":\"y\"}}", 0, NULL), RAFTER_OK);
  assert_int_equal(check("{\"e\":{\"dtype\":\"F32\",\"shape\":[0,99999999999],\"data_offsets\":[0,0]},\"s\":{"
                         "\"dtype\":\"F32\",\"shape\":[],\"data_"
                         "offsets\":[0,4]}}",
                         4, NULL),
                   RAFTER_OK);
  static const struct {
    const char *header;
    int data;
    const char *message;
  } row[] = {
      {GOOD, 27, "outside the data"},
      {GOOD, 29, "after the last tensor"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":["
       "2],\"data_offsets\":[4,12]}}",
       12, "overlap"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":["
       "2],\"data_offsets\":[0,8]}}",
       8, "overlap"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "belong to no tensor"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "outside"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8, "data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8.0]}}", 8, "data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, "data_offsets"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,18446744073709551615]}}", 8, "JSON"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9223372036854775807]}}", 8, "outside"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "do not fit its shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, "shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "at most 8"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
       "can be counted"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387906],\"data_offsets\":[0,8]}}", 8,
       "can be counted"}, /* times 4 wraps around to 8 */
      {"{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype"},
      {"{\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype"},
      {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype"},
      {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "shape"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "data_offsets"},
      {"{\"a\":[]}", 0, "not an object"},
      {"{\"__metadata__\":7}", 0, "__metadata__"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":["
       "1],\"data_offsets\":[0,4]}}",
       4, "duplicate"},
      {"[]", 0, "'{'"},
      {" {}", 0, "'{'"},
      {"{} trailing", 0, "JSON"},
      {"{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}", 8, "JSON"},
      {"{\"\\ud800\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "JSON"},
  };
  for (size_t i = 0; i < sizeof row / sizeof row[0]; ++i) {
    rf_status status = check(row[i].header, (size_t)row[i].data, &error);
    if (status != RAFTER_FAILED || !strstr(error.message, row[i].message))
      fail_msg("%s: status %d, '%s'", row[i].header, status, error.message);
  }
}

static void a_file_cut_anywhere_is_refused(void **state) {
  (void)state;
  size_t size;
  unsigned char *bytes = file_of(GOOD, 28, &size);
  for (size_t n = 0; n < size; ++n) {
    unsigned char *cut = malloc(n ? n : 1); /* A block of its own, so that a read past the cut is seen. */
    memcpy(cut, bytes, n);
    assert_int_equal(rf_safetensors_check(cut, n, "cut", NULL), RAFTER_FAILED);
    free(cut);
  }
  for (int byte = 0; byte < 8; ++byte) /* every wrong length of the header */
    for (int value = 0; value < 256; ++value) {
      unsigned char old = bytes[byte];
      if (value == old) continue;
      bytes[byte] = (unsigned char)value;
      assert_int_equal(rf_safetensors_check(bytes, size, "length", NULL), RAFTER_FAILED);
      bytes[byte] = old;
    }
  free(bytes);
}

static void what_is_written_is_read(void **state) {
  (void)state;
  static const rf_dtype dtypes[] = {RF_F32, RF_BF16, RF_F16, RF_F64, RF_I32};
  static const char *const names[] = {"model.z \"quoted\"", "a", "middle", "d", "ids"};
  static const char *const notes[] = {"step", "7", NULL};
  rf_stored tensors[6] = {{0}};
  float values[5][60];
  int32_t ids[2] = {-1, INT32_MAX};
  for (int t = 0; t < 5; ++t) {
    tensors[t] = (rf_stored){
        .name = names[t], .dtype = dtypes[t], .rank = 2, .shape = {t == 4 ? 1 : t + 1, t == 4 ? 2 : 7}};
    for (int i = 0; i < 60; ++i) values[t][i] = (float)(i - 20) * 0.37f + (float)t;
  }
  tensors[5] = (rf_stored){.name = "empty", .dtype = RF_F32, .rank = 1, .shape = {0}};
  rf_tensor_writer *writer;
  assert_int_equal(rf_tensor_writer_open(at("x.safetensors"), tensors, 6, notes, &writer, NULL), RAFTER_OK);
  for (int t = 0; t < 4; ++t)
    for (int done = 0, n = 7 * (t + 1), part = 0; done < n; done += part) {
      part = n - done < 5 ? n - done : 5;
      assert_int_equal(rf_tensor_writer_put(writer, values[t] + done, part, NULL), RAFTER_OK);
    }
  assert_int_equal(rf_tensor_writer_put_bytes(writer, ids, 8, NULL), RAFTER_OK);
  assert_int_equal(access(at("x.safetensors"), F_OK), -1);
  assert_int_equal(rf_tensor_writer_commit(writer, NULL), RAFTER_OK);
  rf_tensor_file *file;
  rf_error error = {0};
  if (rf_tensor_file_open(at("x.safetensors"), &file, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(rf_tensor_file_count(file), 6);
  assert_string_equal(rf_tensor_file_at(file, 0)->name, "a");
  char *text;
  size_t bytes;
  assert_int_equal(rf_file_read(at("x.safetensors"), 1 << 20, &text, &bytes, NULL), RAFTER_OK);
  static const char METADATA[] = "\"__metadata__\":{\"format\":\"pt\",\"step\":\"7\"}";
  /* The search starts after the length. Header and data contain no NUL before the text. */
  assert_non_null(strstr(text + 8, METADATA));
  free(text);
  assert_null(rf_tensor_file_find(file, "none"));
  assert_null(rf_tensor_file_at(file, 6));
  for (int t = 0; t < 4; ++t) {
    const rf_stored *stored = rf_tensor_file_find(file, names[t]);
    assert_non_null(stored);
    assert_true(stored->dtype == dtypes[t] && stored->rank == 2 && stored->shape[0] == t + 1 &&
                stored->shape[1] == 7 && stored->count == 7 * (t + 1));
    float back[60];
    assert_int_equal(rf_stored_read(stored, 0, stored->count, back, NULL), RAFTER_OK);
    for (int i = 0; i < stored->count; ++i) {
      float expected = values[t][i];
      if (dtypes[t] == RF_BF16) expected = rf_bf16_to_f32(rf_f32_to_bf16(expected));
      if (dtypes[t] == RF_F16) expected = rf_f16_to_f32(rf_f32_to_f16(expected));
      assert_true(back[i] == expected);
    }
    assert_int_equal(rf_stored_read(stored, 3, 4, back, NULL), RAFTER_OK);
    assert_int_equal(rf_stored_read(stored, -1, 1, back, &error), RAFTER_FAILED);
    assert_int_equal(rf_stored_read(stored, 3, stored->count, back, &error), RAFTER_FAILED);
    assert_int_equal(rf_stored_read(stored, INT64_MAX, INT64_MAX, back, &error), RAFTER_FAILED);
  }
  float none;
  assert_memory_equal(rf_tensor_file_find(file, "ids")->data, ids, 8);
  assert_int_equal(rf_stored_read(rf_tensor_file_find(file, "ids"), 0, 1, &none, &error), RAFTER_FAILED);
  assert_int_equal(rf_tensor_file_find(file, "empty")->count, 0);
  rf_tensor_file_close(file);
  rf_tensor_file_close(NULL);
}

static void a_writer_insists_on_every_value(void **state) {
  (void)state;
  rf_stored tensors[2] = {{.name = "a", .dtype = RF_F32, .rank = 1, .shape = {4}},
                          {.name = "b", .dtype = RF_BF16, .rank = 1, .shape = {4}}};
  float values[9] = {0};
  rf_tensor_writer *writer;
  rf_error error = {0};
  assert_int_equal(rf_tensor_writer_open(at("short.safetensors"), tensors, 2, NULL, &writer, NULL),
                   RAFTER_OK);
  assert_int_equal(rf_tensor_writer_put(writer, values, 7, NULL), RAFTER_OK);
  assert_int_equal(rf_tensor_writer_commit(writer, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "6 of 8 bytes"));
  assert_int_equal(rf_tensor_writer_open(at("long.safetensors"), tensors, 2, NULL, &writer, NULL), RAFTER_OK);
  assert_int_equal(rf_tensor_writer_put(writer, values, 9, &error), RAFTER_FAILED);
  rf_tensor_writer_discard(writer);
  tensors[1].name = "a";
  assert_int_equal(rf_tensor_writer_open(at("twice.safetensors"), tensors, 2, NULL, &writer, &error),
                   RAFTER_FAILED);
  tensors[1].name = "big";
  tensors[1].shape[0] = 1 << 22;
  struct rlimit old, small;
  getrlimit(RLIMIT_FSIZE, &old);
  small = old;
  small.rlim_cur = 1 << 20;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small); /* a disk that becomes full */
  rf_status status = rf_tensor_writer_open(at("full.safetensors"), tensors, 2, NULL, &writer, &error);
  if (status == RAFTER_OK) {
    float *zeros = calloc(1 << 20, sizeof *zeros);
    for (int i = 0; i < 4 && status == RAFTER_OK; ++i)
      status = rf_tensor_writer_put(writer, zeros, 1 << 20, &error);
    rf_tensor_writer_discard(writer);
    free(zeros);
  }
  setrlimit(RLIMIT_FSIZE, &old);
  assert_int_equal(status, RAFTER_FAILED);
  assert_non_null(strstr(error.message, "full.safetensors"));
  static const char *const none[] = {"short", "long", "twice", "full"};
  for (int i = 0; i < 4; ++i) {
    char command[256];
    snprintf(command, sizeof command, "ls '%s' | grep -q ^%s", folder, none[i]);
    assert_int_not_equal(system(command), 0);
  }
}

static void write_one(const char *name, const char *tensor) {
  rf_stored stored = {.name = tensor, .dtype = RF_F32, .rank = 1, .shape = {1}};
  rf_tensor_writer *writer;
  float value = 1;
  assert_int_equal(rf_tensor_writer_open(at(name), &stored, 1, NULL, &writer, NULL), RAFTER_OK);
  assert_int_equal(rf_tensor_writer_put(writer, &value, 1, NULL), RAFTER_OK);
  assert_int_equal(rf_tensor_writer_commit(writer, NULL), RAFTER_OK);
}

static void shards_are_joined(void **state) {
  (void)state;
  write_one("one.safetensors", "a");
  write_one("two.safetensors", "b");
  static const char good[] =
      "{\"metadata\":{},\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}";
  assert_int_equal(rf_file_write(at("model.safetensors.index.json"), good, sizeof good - 1, NULL), RAFTER_OK);
  rf_tensor_file *file;
  rf_error error = {0};
  if (rf_tensor_file_open(folder, &file, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(rf_tensor_file_count(file), 2);
  assert_non_null(rf_tensor_file_find(file, "b"));
  rf_tensor_file_close(file);
  static const struct {
    const char *index, *message;
  } bad[] = {
      {"{\"weight_map\":{\"a\":\"two.safetensors\"}}", "lack"},
      {"{\"weight_map\":{\"a\":\"none.safetensors\"}}", "none.safetensors"},
      {"{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "no file"},
      {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "no file"},
      {"{\"weight_map\":{\"a\":7}}", "no file"},
      {"{\"weight_map\":[]}", "weight_map"},
      {"{}", "weight_map"},
      {"[]", "weight_map"},
      {"{\"weight_map\":{\"a\":\"model.safetensors.index.json\"}}", "header"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    assert_int_equal(
        rf_file_write(at("model.safetensors.index.json"), bad[i].index, strlen(bad[i].index), NULL),
        RAFTER_OK);
    rf_status status = rf_tensor_file_open(folder, &file, &error);
    if (status != RAFTER_FAILED || !strstr(error.message, bad[i].message))
      fail_msg("%s: status %d, '%s'", bad[i].index, status, error.message);
  }
  unlink(at("model.safetensors.index.json"));
  assert_int_equal(rf_tensor_file_open(folder, &file, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "no weights"));
  assert_int_equal(rf_file_write(at("empty.safetensors"), "", 0, NULL), RAFTER_OK);
  assert_int_equal(rf_tensor_file_open(at("empty.safetensors"), &file, &error), RAFTER_FAILED);
  assert_int_equal(rf_tensor_file_open("/dev/null", &file, &error), RAFTER_FAILED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lies_are_found),          cmocka_unit_test(a_file_cut_anywhere_is_refused),
      cmocka_unit_test(what_is_written_is_read), cmocka_unit_test(a_writer_insists_on_every_value),
      cmocka_unit_test(shards_are_joined),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
