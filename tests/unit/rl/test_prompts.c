/* test_prompts.c - prompts of reinforcement learning: the fields of rows, the order, limits, and
 * errors that name file, line and field. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rl/prompts.h"
#include "support/scratch.h"

static rf_model model;
static rf_prompt_reader reader;

static int open_reader(void **state) {
  (void)state;
  reader = (rf_prompt_reader){.model = &model, .folder = ""};
  return 0;
}

static int close_reader(void **state) {
  (void)state;
  rf_prompt_reader_close(&reader);
  return 0;
}

static const char *file_of(const char *text) {
  FILE *file = fopen(at("rows.jsonl"), "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
  return at("rows.jsonl");
}

static rf_rl_prompts *open_rows(const char *text, int64_t longest) {
  rf_rl_prompts *p = NULL;
  rf_error error = {0};
  if (rf_rl_prompts_open(file_of(text), &reader, NULL, longest, &p, &error) != RAFTER_OK)
    fail_msg("%s: %s", text, error.message);
  return p;
}

static void fields(void **state) {
  (void)state;
  rf_rl_prompts *p =
      open_rows("{\"prompt\": \"ab\", \"answer\": \"4\", \"temperature\": \"any\", \"promp\": 1}\n"
                "\n"
                "{\"id\": \"q\", \"tokens\": [104, 105], \"answer\": 0.1}\n"
                "{\"id\": 17, \"prompt\": \"c\", \"answer\": null}",
                10);
  assert_int_equal(rf_rl_prompts_count(p), 3);
  assert_int_equal(rf_rl_prompts_longest(p), 2);
  const rf_rl_prompt *row = rf_rl_prompts_row(p, 0);
  assert_string_equal(row->id, "line 1");
  assert_string_equal(row->text, "ab");
  assert_string_equal(row->answer, "4");
  assert_true(row->count == 2 && row->tokens[1] == 'b');
  assert_int_equal(json_integer_value(json_object_get(row->row, "promp")), 1);
  row = rf_rl_prompts_row(p, 1);
  assert_string_equal(row->id, "q");
  assert_string_equal(row->text, "hi");
  assert_string_equal(row->answer, "0.1");
  row = rf_rl_prompts_row(p, 2);
  assert_string_equal(row->id, "17");
  assert_null(row->answer);
  rf_given given = rf_rl_prompts_given(p);
  assert_string_equal(given.spec, at("rows.jsonl"));
  assert_true(given.rows == 3 && given.tokens == 5);
  rf_rl_prompts_close(p);
}

static void conversations(void **state) {
  (void)state;
  static const char TEMPLATE[] = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
                                 "{% if add_generation_prompt %}[assistant]{% endif %}";
  reader.chats = true;
  reader.system = "s";
  assert_int_equal(rf_chat_new(TEMPLATE, strlen(TEMPLATE), "test", NULL, &reader.chat, NULL), RAFTER_OK);
  rf_rl_prompts *p =
      open_rows("{\"prompt\": \"a\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}\n", 1000);
  assert_string_equal(rf_rl_prompts_row(p, 0)->text, "[system]s[user]a[assistant]");
  assert_string_equal(rf_rl_prompts_row(p, 1)->text, "[system]s[user]b[assistant]");
  assert_int_equal(rf_rl_prompts_row(p, 1)->count, strlen(rf_rl_prompts_row(p, 1)->text));
  rf_rl_prompts_close(p);
}

static void long_prompts(void **state) {
  (void)state;
  rf_error error = {0};
  rf_rl_prompts *p = open_rows("{\"prompt\": \"abcd\"}\n{\"prompt\": \"abc\"}\n{\"prompt\": \"abcde\"}\n", 3);
  assert_int_equal(rf_rl_prompts_count(p), 1);
  assert_int_equal(rf_rl_prompts_skipped(p), 2);
  assert_int_equal(rf_rl_prompts_longest(p), 3);
  assert_string_equal(rf_rl_prompts_row(p, 0)->id, "line 2");
  rf_rl_prompts_close(p);
  assert_int_equal(rf_rl_prompts_open(at("rows.jsonl"), &reader, NULL, 2, &p, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "all prompts are too long ("));
  assert_non_null(
      strstr(error.message, "rows.jsonl: expected prompts of at most 2 tokens, got 3 longer ones)"));
}

/* Each epoch has each row once, and the order depends on the seed and the position only. */
static void order(void **state) {
  (void)state;
  char text[4000] = "";
  enum { ROWS = 37, EPOCHS = 3 };
  const rf_rl_prompt *first[ROWS];
  int moved = 0, other = 0;
  for (int i = 0; i < ROWS; i++) sprintf(text + strlen(text), "{\"id\": %d, \"prompt\": \"a\"}\n", i);
  rf_rl_prompts *p = open_rows(text, 10), *again = open_rows(text, 10);
  for (int e = 0; e < EPOCHS; e++) {
    bool seen[ROWS] = {false};
    for (int i = 0; i < ROWS; i++) {
      const rf_rl_prompt *row = rf_rl_prompts_draw(p, 5, e * ROWS + i);
      int id = atoi(row->id);
      assert_false(seen[id]);
      seen[id] = true;
      if (!e) first[i] = row;
      moved += row != first[i];
      other += rf_rl_prompts_draw(p, 6, e * ROWS + i) != row;
      assert_string_equal(rf_rl_prompts_draw(again, 5, e * ROWS + i)->id, row->id);
    }
  }
  assert_true(moved > ROWS && other > ROWS);
  rf_rl_prompts_close(p);
  rf_rl_prompts_close(again);
  p = open_rows("{\"prompt\": \"a\"}\n", 10);
  for (int i = 0; i < 5; i++) assert_ptr_equal(rf_rl_prompts_draw(p, 5, i), rf_rl_prompts_row(p, 0));
  rf_rl_prompts_close(p);
}

static uint64_t digest_of(const char *text, int64_t longest) {
  rf_rl_prompts *p = open_rows(text, longest);
  uint64_t digest = rf_rl_prompts_given(p).digest;
  rf_rl_prompts_close(p);
  return digest;
}

/* A checkpoint notices other rows, and not the last newline or blank lines. */
static void digests(void **state) {
  (void)state;
  static const char ROWS[] = "{\"prompt\": \"a\", \"x\": 1}\n{\"prompt\": \"abc\"}";
  static const char *const OTHERS[] = {"{\"prompt\": \"b\", \"x\": 1}\n{\"prompt\": \"abc\"}",
                                       "{\"prompt\": \"a\", \"x\": 2}\n{\"prompt\": \"abc\"}",
                                       "{\"prompt\": \"abc\"}\n{\"prompt\": \"a\", \"x\": 1}",
                                       "{\"prompt\": \"a\", \"x\": 1}"};
  uint64_t digest = digest_of(ROWS, 10);
  assert_true(digest == digest_of("{\"prompt\": \"a\", \"x\": 1}\n\n{\"prompt\": \"abc\"}\n", 10));
  assert_true(digest != digest_of(ROWS, 2));
  for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) assert_true(digest != digest_of(OTHERS[i], 10));
  reader.chats = true;
  assert_int_equal(rf_chat_new("[{{ messages[0].content }}]", 27, "test", NULL, &reader.chat, NULL),
                   RAFTER_OK);
  assert_true(digest != digest_of(ROWS, 10)); /* other tokens */
}

static void wrong_rows(void **state) {
  (void)state;
  static const char *const CASES[][2] = {
      {"", " has no rows"},
      {"\n \n", " has no rows"},
      {"{\"prompt\": \"a\", \"answer\": \"1\"}\nx\n", "is not JSON Lines (line 2: "},
      {"[1]\n", "is not JSON Lines (line 1: expected an object)"},
      {"{\"text\": \"a\", \"answer\": \"1\"}\n", "a row has no prompt ("},
      {"{\"prompt\": \"\", \"answer\": \"1\"}\n", "a prompt is empty ("},
      {"{\"tokens\": [], \"answer\": \"1\"}\n", "a prompt is empty ("},
      {"{\"tokens\": [300], \"answer\": \"1\"}\n", "token out of range ("},
      {"{\"tokens\": [1.5], \"answer\": \"1\"}\n", "a token is not an id ("},
      {"{\"prompt\": \"a\", \"tokens\": [1], \"answer\": 1}\n", "a row has both prompt and tokens ("},
      {"{\"prompt\": \"a\", \"answer\": [1]}\n", "line 1, answer: expected a text or a number, got a list)"},
      {"{\"prompt\": \"a\", \"answer\": 1, \"id\": {}}\n", "line 1, id: expected a text or a number, got an"},
      {"{\"prompt\": \"a\", \"answer\": 1, \"id\": 7}\n{\"prompt\": \"a\", \"answer\": 1, \"id\": \"7\"}\n",
       "line 2, id: '7' is also that of line 1)"},
      {"{\"prompt\": \"a\", \"answer\": 1}\n{\"prompt\": \"a\"}\n",
       "line 2: the reward number expects the field"},
      {"{\"prompt\": \"a\", \"answer\": \"none\"}\n",
       "line 1, answer: the reward number expects one, got 'none')"},
  };
  const char *list = "number";
  rf_rewards *rewards;
  rf_error error = {0};
  rf_rl_prompts *p = NULL;
  assert_int_equal(rf_rewards_open(&(rf_reward_options){.list = &list, .lists = 1}, &rewards, NULL),
                   RAFTER_OK);
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    rf_status status = rf_rl_prompts_open(file_of(CASES[i][0]), &reader, rewards, 10, &p, &error);
    if (status != RAFTER_FAILED || !strstr(error.message, CASES[i][1]) ||
        !strstr(error.message, "rows.jsonl"))
      fail_msg("%s: status %d, expected '%s', got '%s'", CASES[i][0], (int)status, CASES[i][1],
               error.message);
    assert_null(p);
  }
  rf_rewards_close(rewards);
  assert_int_equal(rf_rl_prompts_open(at("none.jsonl"), &reader, NULL, 10, &p, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "none.jsonl"));
}

static void memory(void **state) {
  (void)state;
  rf_rl_prompts *p = NULL;
  rf_error error = {0};
  const char *path =
      file_of("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\", \"more\": [1,2,3,4,5,6]}\n");
  assert_int_equal(rf_rl_prompts_open_within(path, &reader, NULL, 10, 1024, &p, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "the prompts need too much memory ("));
  assert_non_null(strstr(error.message, "rows.jsonl, line 3: expected at most "));
  assert_int_equal(rf_rl_prompts_open_within(path, &reader, NULL, 10, 2048, &p, &error), RAFTER_OK);
  rf_rl_prompts_close(p);
}

int main(void) {
  static const char SHAPE[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=300,seq=96";
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_reader, close_reader)
  const struct CMUnitTest tests[] = {TEST(fields),  TEST(conversations), TEST(long_prompts), TEST(order),
                                     TEST(digests), TEST(wrong_rows),    TEST(memory)};
#undef TEST
  if (rf_model_resolve(SHAPE, &model, NULL, NULL) != RAFTER_OK) return 1;
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
