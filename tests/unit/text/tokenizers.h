/* tokenizers.h - helpers that the tests of tokenizers share: comparing ids and texts with expected
 * ones. */
#ifndef RF_TEST_TOKENIZERS_H
#define RF_TEST_TOKENIZERS_H

#include "text/tokenizer_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static inline void expect_ids(const rf_tokenizer *t, const char *text, int flags, int count,
                              const int32_t *expected) {
  rf_ids ids = {0};
  rf_error error = {0};
  if (rf_tokenizer_encode(t, text, strlen(text), flags, &ids, &error) != RAFTER_OK)
    fail_msg("'%s': %s", text, error.message);
  if (ids.count != count) fail_msg("'%s' gives %lld ids, not %d", text, (long long)ids.count, count);
  for (int i = 0; i < count; i++)
    if (ids.at[i] != expected[i])
      fail_msg("'%s', id %d: expected %d, got %d", text, i, expected[i], ids.at[i]);
  rf_ids_free(&ids);
}
#define IDS(t, text, flags, ...) \
  expect_ids(t, text, flags, (int)(sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t)), \
             (int32_t[]){__VA_ARGS__})

static inline void expect_text(const rf_tokenizer *t, const int32_t *ids, int count, int flags,
                               const char *expected) {
  char *text = NULL;
  size_t bytes;
  assert_int_equal(rf_tokenizer_decode(t, ids, count, flags, &text, &bytes, NULL), RAFTER_OK);
  assert_string_equal(text, expected);
  free(text);
}

#endif
