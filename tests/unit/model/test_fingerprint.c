/* Fingerprints of folders change with each file of a model, and with nothing else. */
#include "model/fingerprint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/scratch.h"

static void put(const char *name, const void *data, size_t bytes) {
  assert_int_equal(rf_file_write(at(name), data, bytes, NULL), RAFTER_OK);
}

static const char *print(const char *path) {
  static char text[4][RF_FINGERPRINT_TEXT];
  static int next;
  char *to = text[next++ % 4];
  rf_fingerprint *f = rf_fingerprint_new();
  assert_int_equal(rf_fingerprint_add_files(f, path, NULL), RAFTER_OK);
  rf_fingerprint_end(f, to);
  return to;
}

static void test_small(void **state) {
  (void)state;
  char first[RF_FINGERPRINT_TEXT];
  put("config.json", "{}", 2);
  put("model.safetensors", "abcdef", 6);
  snprintf(first, sizeof first, "%s", print(folder));
  assert_int_equal(strlen(first), 32);
  assert_string_equal(print(folder), first);
  put("model.safetensors", "abcdef", 6); /* a new file with the old content */
  put("notes.txt", "x", 1);
  put("out.jsonl", "x", 1);
  put("out.jsonl.settings.json", "x", 1);
  assert_string_equal(print(folder), first);
  put("model.safetensors", "abcdeg", 6);
  assert_string_not_equal(print(folder), first);
  put("model.safetensors", "abcdef", 6);
  put("tokenizer.json", "{}", 2);
  assert_string_not_equal(print(folder), first);
  unlink(at("tokenizer.json"));
  assert_string_equal(print(folder), first);
  assert_string_not_equal(print(at("config.json")), first);
}

/* A large file is not read whole. A change of its start, its end or its size is seen. */
static void test_large(void **state) {
  (void)state;
  enum { BYTES = 5 << 20 };
  char first[RF_FINGERPRINT_TEXT];
  unsigned char *data = calloc(1, BYTES + 1);
  static const size_t PLACE[] = {0, 100, BYTES - 1};
  put("weights.gguf", data, BYTES);
  snprintf(first, sizeof first, "%s", print(at("weights.gguf")));
  for (int i = 0; i < 3; i++) {
    data[PLACE[i]] = 1;
    put("weights.gguf", data, BYTES);
    assert_string_not_equal(print(at("weights.gguf")), first);
    data[PLACE[i]] = 0;
  }
  put("weights.gguf", data, BYTES + 1);
  assert_string_not_equal(print(at("weights.gguf")), first);
  free(data);
}

static void test_errors(void **state) {
  (void)state;
  rf_error error = {0};
  char text[RF_FINGERPRINT_TEXT];
  rf_fingerprint *f = rf_fingerprint_new();
  assert_int_equal(rf_fingerprint_add_files(f, "/nowhere/at/all", &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "/nowhere/at/all"));
  rf_fingerprint_end(f, text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_small),
      cmocka_unit_test(test_large),
      cmocka_unit_test(test_errors),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
