/* test_reply_pack.c - an answer that is packed and unpacked is the same, and bytes that are not an
 * answer are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "generate/reply_pack.h"

enum { TOP = 3 };

static rf_reply started(int top) {
  static const rf_stop none;
  rf_reply r;
  rf_error error = {0};
  assert_int_equal(rf_reply_start(&r, NULL, &none, top, &error), RAFTER_OK);
  return r;
}

static rf_reply answer(int tokens, int top, rf_finish finish) {
  rf_reply r = started(top);
  rf_error error = {0};
  for (int i = 0; i < tokens; i++) {
    const int32_t ids[TOP] = {i, i + 1, i + 2};
    const float logprobs[TOP] = {-0.5f - (float)i, -1.25f, -3};
    const rf_event event = {.token = 7 * i,
                            .logprob = -0.1f * (float)i,
                            .top = top ? TOP - i % 2 : 0, /* some positions have fewer */
                            .top_ids = ids,
                            .top_logprobs = logprobs,
                            .finish = i + 1 == tokens ? finish : RF_FINISH_NONE};
    assert_int_equal(rf_reply_take(&r, &event, &error), RAFTER_OK);
  }
  if (!tokens) r.finish = finish;
  return r;
}

static void same(const rf_reply *a, const rf_reply *b) {
  size_t n = (size_t)a->tokens.count, tops = n * (size_t)a->top;
  assert_int_equal(a->tokens.count, b->tokens.count);
  assert_int_equal(a->finish, b->finish);
  assert_int_equal(a->bytes, b->bytes);
  assert_string_equal(a->text, b->text);
  if (!n) return;
  assert_memory_equal(a->tokens.at, b->tokens.at, n * sizeof *a->tokens.at);
  assert_memory_equal(a->logprobs, b->logprobs, n * sizeof *a->logprobs);
  if (!tops) return;
  assert_memory_equal(a->top_ids, b->top_ids, tops * sizeof *a->top_ids);
  assert_memory_equal(a->top_logprobs, b->top_logprobs, tops * sizeof *a->top_logprobs);
}

static void an_answer_is_the_same(void **state) {
  static const struct {
    int tokens, top;
    rf_finish finish;
  } rows[] = {{5, TOP, RF_FINISH_LENGTH},
              {1, 0, RF_FINISH_STOP},
              {40, 0, RF_FINISH_LENGTH},
              {0, TOP, RF_FINISH_CANCELLED}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_reply from = answer(rows[i].tokens, rows[i].top, rows[i].finish), to = started(rows[i].top);
    unsigned char *data;
    int64_t bytes;
    rf_packed_of of;
    rf_error error = {0};
    assert_int_equal(rf_reply_pack(&from, (rf_packed_of){12, 3}, &data, &bytes, &error), RAFTER_OK);
    assert_int_equal(rf_reply_packed_of(data, bytes, &of, &error), RAFTER_OK);
    assert_int_equal(of.request, 12);
    assert_int_equal(of.sample, 3);
    assert_int_equal(rf_reply_unpack(&to, data, bytes, &error), RAFTER_OK);
    same(&from, &to);
    rf_reply_free(&from);
    rf_reply_free(&to);
    free(data);
  }
}

static void other_bytes_are_refused(void **state) {
  rf_reply from = answer(6, TOP, RF_FINISH_LENGTH), to = started(TOP), plain = started(0);
  unsigned char *data;
  int64_t bytes;
  rf_packed_of of;
  rf_error error = {0};
  (void)state;
  assert_int_equal(rf_reply_pack(&from, (rf_packed_of){0, 0}, &data, &bytes, &error), RAFTER_OK);
  for (int64_t n = 0; n < bytes; n++) {
    unsigned char *part = malloc((size_t)n + 1); /* so that a sanitizer sees reads after its end */
    assert_non_null(part);
    memcpy(part, data, (size_t)n);
    assert_int_equal(rf_reply_packed_of(part, n, &of, &error), RAFTER_FAILED);
    free(part);
  }
  assert_int_equal(rf_reply_unpack(&plain, data, bytes, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "expected 0, got 3"));
  /* each 32-bit word of the head, with values that are far too large or negative */
  static const int32_t wrong[] = {-1, INT32_MAX, INT32_MIN};
  int refused = 0;
  for (int64_t at = 16; at < 40; at += 4)
    for (int i = 0; i < 3; i++) {
      unsigned char *copy = malloc((size_t)bytes);
      assert_non_null(copy);
      memcpy(copy, data, (size_t)bytes);
      memcpy(copy + at, &wrong[i], sizeof wrong[i]);
      refused += rf_reply_packed_of(copy, bytes, &of, &error) == RAFTER_FAILED;
      free(copy);
    }
  assert_int_equal(refused, 18);
  rf_reply_free(&from);
  rf_reply_free(&to);
  rf_reply_free(&plain);
  free(data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_answer_is_the_same),
      cmocka_unit_test(other_bytes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
