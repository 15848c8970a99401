/* test_prompts.c - requests are the same for the same seed, have the asked lengths, share no prefix
 * unless asked, and rows of files are checked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "traffic/prompts.h"

static json_t *body_of(const rf_traffic_prompts *p, int64_t index, const rf_arrival *a) {
  char *text = rf_traffic_body(p, index, a);
  assert_non_null(text);
  json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
  assert_non_null(json);
  free(text);
  return json;
}

static int64_t words_of(const char *text) {
  int64_t words = 1;
  for (; *text; text++) words += *text == ' ';
  return words;
}

static void bodies_have_the_shape_of_the_api(void **state) {
  (void)state;
  json_t *extra = json_pack("{si sf}", "top_k", 40, "temperature", 0.5);
  rf_traffic_prompts p = {.model = "m\"odel", .ignore_eos = true, .temperature = 0.25};
  const rf_arrival a = {.prompt = 37, .answer = 11};
  for (int chat = 0; chat < 2; chat++) {
    p.chat = chat;
    p.extra = chat ? extra : NULL;
    json_t *json = body_of(&p, 3, &a), *prompt = json_object_get(json, chat ? "messages" : "prompt");
    if (chat) {
      assert_string_equal(rf_json_text_at(json_array_get(prompt, 0), "role"), "user");
      prompt = json_object_get(json_array_get(prompt, 0), "content");
    }
    assert_int_equal(words_of(json_string_value(prompt)), 37);
    assert_string_equal(rf_json_text_at(json, "model"), "m\"odel");
    assert_int_equal(json_integer_value(json_object_get(json, "max_tokens")), 11);
    assert_true(json_is_true(json_object_get(json, "stream")) &&
                json_is_true(json_object_get(json, "ignore_eos")) &&
                json_is_true(json_object_get(json_object_get(json, "stream_options"), "include_usage")));
    assert_true(rf_json_number_at(json, "temperature") == (chat ? 0.5 : 0.25));
    assert_int_equal(json_integer_value(json_object_get(json, "top_k")), chat ? 40 : 0);
    json_decref(json);
  }
  json_decref(extra);
}

static void the_seed_decides_the_prompts(void **state) {
  (void)state;
  rf_traffic_prompts p = {.model = "m", .seed = 7, .part = 1};
  const rf_arrival a = {.prompt = 20, .answer = 5};
  char *first = rf_traffic_body(&p, 0, &a), *again = rf_traffic_body(&p, 0, &a);
  assert_string_equal(first, again);
  free(again);
  for (int kind = 0; kind < 3; kind++) {
    p.seed = kind == 0 ? 8 : 7;
    p.part = kind == 1 ? 2 : 1;
    again = rf_traffic_body(&p, kind == 2, &a);
    assert_string_not_equal(first, again);
    free(again);
  }
  free(first);
}

static void token_ids_are_in_the_vocabulary(void **state) {
  (void)state;
  enum { VOCAB = 64 };
  const rf_traffic_prompts p = {.model = "m", .vocab = VOCAB};
  const rf_arrival a = {.prompt = 2000, .answer = 1, .shared = 100};
  bool seen[VOCAB] = {false};
  json_t *one = body_of(&p, 0, &a), *other = body_of(&p, 1, &a);
  const json_t *ids = json_object_get(one, "prompt"), *more = json_object_get(other, "prompt");
  assert_int_equal(json_array_size(ids), 2000);
  int equal = 0;
  for (size_t i = 0; i < 2000; i++) {
    const json_int_t id = json_integer_value(json_array_get(ids, i));
    const bool same = id == json_integer_value(json_array_get(more, i));
    assert_true(id >= VOCAB / 8 && id < VOCAB - VOCAB / 8);
    assert_true(i >= 100 || same);
    equal += i >= 100 && same;
    seen[id] = true;
  }
  for (int id = VOCAB / 8; id < VOCAB - VOCAB / 8; id++) assert_true(seen[id]);
  assert_true(equal < 200); /* 1 of 48 by chance */
  json_decref(one);
  json_decref(other);
}

static void lengths_vary_within_the_spread(void **state) {
  (void)state;
  enum { COUNT = 4000 };
  const rf_traffic_prompts p = {.model = "m", .seed = 3};
  rf_arrival *list = calloc(COUNT, sizeof *list), *again = calloc(COUNT, sizeof *list);
  assert_true(list && again);
  int64_t least = 1000, most = 0, sum = 0;
  for (int i = 0; i < COUNT; i++) list[i] = again[i] = (rf_arrival){.prompt = 100, .answer = 1, .shared = 90};
  rf_traffic_lengths(&p, 0.5, list, COUNT);
  rf_traffic_lengths(&p, 0.5, again, COUNT);
  assert_memory_equal(list, again, COUNT * sizeof *list);
  for (int i = 0; i < COUNT; i++) {
    if (list[i].prompt < least) least = list[i].prompt;
    if (list[i].prompt > most) most = list[i].prompt;
    sum += list[i].prompt;
    assert_int_equal(list[i].answer, 1);
    assert_true(list[i].shared <= list[i].prompt);
  }
  assert_true(least == 50 && most == 150 && sum > 98 * COUNT && sum < 102 * COUNT);
  for (int i = 0; i < COUNT; i++) list[i].prompt = 100;
  rf_traffic_lengths(&p, 0, list, COUNT);
  for (int i = 0; i < COUNT; i++) assert_int_equal(list[i].prompt, 100);
  free(list);
  free(again);
}

static rf_status read_rows(const char *text, bool chat, rf_traffic_prompts *p, rf_error *error) {
  char path[] = "/tmp/prompts-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  assert_int_equal(rf_file_write(path, text, strlen(text), error), RAFTER_OK);
  *p = (rf_traffic_prompts){.model = "m", .chat = chat};
  rf_status status = rf_traffic_prompts_read(path, p, error);
  remove(path);
  return status;
}

static void rows_of_a_file_are_sent(void **state) {
  (void)state;
  rf_traffic_prompts p;
  rf_error error = {0};
  rf_arrival list[3] = {{.prompt = 5, .answer = 6}, {.prompt = 5, .answer = 6}, {.prompt = 5, .answer = 6}};
  if (read_rows("{\"prompt\": \"one two three\"}\n\n{\"tokens\": [4, 5], \"max_tokens\": 9}\n", false, &p,
                &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  rf_traffic_lengths(&p, 0, list, 3);
  assert_true(p.rows == 2 && list[0].prompt == 4 && list[0].answer == 6 && list[1].prompt == 2);
  assert_true(list[1].answer == 9 && list[2].prompt == 4);
  json_t *first = body_of(&p, 2, &list[2]), *second = body_of(&p, 1, &list[1]);
  assert_string_equal(rf_json_text_at(first, "prompt"), "one two three");
  assert_int_equal(json_array_size(json_object_get(second, "prompt")), 2);
  json_decref(first);
  json_decref(second);
  rf_traffic_prompts_free(&p);
  if (read_rows("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}", true, &p, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  first = body_of(&p, 0, &list[0]);
  assert_string_equal(rf_json_text_at(json_array_get(json_object_get(first, "messages"), 0), "content"),
                      "hi");
  json_decref(first);
  rf_traffic_prompts_free(&p);
}

static void bad_rows_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text;
    bool chat;
  } bad[] = {{"", false},
             {"{}", false},
             {"[]", false},
             {"{\"prompt\": \"\"}", false},
             {"{\"prompt\": 5}", false},
             {"{\"prompt\": \"a\", \"tokens\": [1]}", false},
             {"{\"tokens\": []}", false},
             {"{\"tokens\": [1, -1]}", false},
             {"{\"tokens\": [1.5]}", false},
             {"{\"tokens\": [1]}", true},
             {"{\"messages\": [{}]}", false},
             {"{\"messages\": []}", true},
             {"{\"prompt\": \"a\", \"max_tokens\": 0}", false},
             {"{\"prompt\": \"a\", \"max_tokens\": 1e30}", false},
             {"{\"prompt\": \"a\", \"prompt\": \"b\"}", false},
             {"{\"prompt\": \"a\"", false}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    rf_traffic_prompts p;
    rf_error error = {0};
    if (read_rows(bad[i].text, bad[i].chat, &p, &error) == RAFTER_OK)
      fail_msg("%s was accepted", bad[i].text);
    assert_true(*error.message);
    rf_traffic_prompts_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bodies_have_the_shape_of_the_api), cmocka_unit_test(the_seed_decides_the_prompts),
      cmocka_unit_test(token_ids_are_in_the_vocabulary),  cmocka_unit_test(lengths_vary_within_the_spread),
      cmocka_unit_test(rows_of_a_file_are_sent),          cmocka_unit_test(bad_rows_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
