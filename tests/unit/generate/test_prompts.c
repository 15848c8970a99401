/* test_prompts.c - prompts from JSON: every field, and every field with a wrong type or out of
 * range. Errors name the file, the line and the field. */
#include "feeding.h"
#include "generate/prompts.h"
#include "support/scratch.h"

#include <string.h>

static rf_model model;

static rf_prompt_reader reader_of(void) {
  return (rf_prompt_reader){.model = &model,
                            .folder = "",
                            .common.request = {.samples = 1,
                                               .max_tokens = 128,
                                               .sampler = {.temperature = 1, .top_p = 1, .seed = 7}}};
}

static json_t *parse(const char *text) {
  rf_error error = {0};
  json_t *json = NULL;
  if (rf_json_parse(text, strlen(text), "test", &json, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return json;
}

static void read_or_fail(rf_prompt_reader *reader, const char *text, rf_prompt *prompt) {
  rf_error error = {0};
  json_t *json = parse(text);
  if (rf_prompt_of_json(reader, json, "here", prompt, &error) != RAFTER_OK)
    fail_msg("%s: %s", text, error.message);
  json_decref(json);
}

static void all_fields(void **state) {
  (void)state;
  rf_prompt_reader reader = reader_of();
  rf_prompt p = reader.common;
  read_or_fail(&reader,
               "{\"id\": [3], \"prompt\": \"ab\", \"samples\": 4, \"seed\": 5, \"temperature\": 0.5, "
               "\"top_k\": 20, \"top_p\": 0.75, \"min_p\": 0.25, \"repetition_penalty\": 1.5, "
               "\"presence_penalty\": -2, \"frequency_penalty\": 0.125, \"max_tokens\": 9, \"stop\": "
               "[\"x\", \"yz\"], \"mood\": 1}",
               &p);
  assert_int_equal(p.tokens.count, 2);
  assert_int_equal(p.tokens.at[1], 'b');
  assert_string_equal(p.text, "ab");
  assert_int_equal(json_array_size(p.id), 1);
  assert_int_equal(p.request.samples, 4);
  assert_int_equal(p.request.max_tokens, 9);
  assert_int_equal(p.stop.string_count, 2);
  const rf_sampler_options *s = &p.request.sampler;
  assert_true(s->seed == 5 && s->temperature == 0.5f && s->top_k == 20 && s->top_p == 0.75f);
  assert_true(s->min_p == 0.25f && s->repetition_penalty == 1.5f && s->presence_penalty == -2);
  assert_true(s->frequency_penalty == 0.125f);
  assert_string_equal(reader.unread, "\"mood\"");
  rf_prompt_free(&p);
  rf_prompt_reader_close(&reader);
}

/* A field that is missing or null keeps the default, also a default that is unset. */
static void missing_fields(void **state) {
  (void)state;
  rf_prompt_reader reader = reader_of();
  rf_prompt p = reader.common, unset = {.request.samples = 1};
  read_or_fail(&reader, "{\"tokens\": [1, 299], \"seed\": null, \"top_p\": null, \"stop\": null}", &p);
  assert_int_equal(p.tokens.count, 2);
  assert_null(p.text);
  assert_null(p.id);
  assert_null(reader.tokenizer); /* Ids need no tokenizer. */
  assert_memory_equal(&p.request.sampler, &reader.common.request.sampler, sizeof p.request.sampler);
  assert_int_equal(p.request.samples, 1);
  assert_int_equal(p.request.max_tokens, 128);
  assert_int_equal(p.stop.string_count, 0);
  read_or_fail(&reader, "{\"tokens\": [1], \"top_k\": 2}", &unset);
  assert_true(unset.request.sampler.top_k == 2 && unset.request.sampler.top_p == 0);
  rf_prompt_free(&p);
  rf_prompt_free(&unset);
  rf_prompt_reader_close(&reader);
}

static const struct bad {
  const char *json, *message;
} BAD[] = {
    {"{}", "prompt, messages or tokens"},
    {"{\"id\": 1}", "prompt, messages or tokens"},
    {"{\"prompt\": 3}", "prompt, messages or tokens"},
    {"{\"messages\": \"a\"}", "prompt, messages or tokens"},
    {"{\"tokens\": \"1,2\"}", "prompt, messages or tokens"},
    {"{\"prompt\": \"\"}", "empty"},
    {"{\"tokens\": []}", "empty"},
    {"{\"tokens\": [1, 300]}", "token 1: expected an id below 300, got 300"},
    {"{\"tokens\": [-1]}", "token 0"},
    {"{\"tokens\": [1.5]}", "token 0"},
    {"{\"tokens\": [9223372036854775807]}", "token 0"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "no chat template"},
    {"{\"prompt\": \"a\", \"tokens\": [1]}", "both prompt and tokens"},
    {"{\"prompt\": \"a\", \"messages\": []}", "both prompt and messages"},
    {"{\"prompt\": \"a\", \"samples\": 0}", "\"samples\""},
    {"{\"prompt\": \"a\", \"samples\": 65537}", "\"samples\""},
    {"{\"prompt\": \"a\", \"samples\": \"2\"}", "\"samples\""},
    {"{\"prompt\": \"a\", \"seed\": -1}", "\"seed\""},
    {"{\"prompt\": \"a\", \"seed\": 1.5}", "\"seed\""},
    {"{\"prompt\": \"a\", \"seed\": 4611686018427387905}", "\"seed\""},
    {"{\"prompt\": \"a\", \"max_tokens\": 0}", "\"max_tokens\""},
    {"{\"prompt\": \"a\", \"max_tokens\": 16777217}", "\"max_tokens\""},
    {"{\"prompt\": \"a\", \"max_tokens\": true}", "\"max_tokens\""},
    {"{\"prompt\": \"a\", \"temperature\": \"hot\"}", "\"temperature\""},
    {"{\"prompt\": \"a\", \"temperature\": -0.1}", "\"temperature\""},
    {"{\"prompt\": \"a\", \"temperature\": 101}", "\"temperature\""},
    {"{\"prompt\": \"a\", \"top_k\": -1}", "\"top_k\""},
    {"{\"prompt\": \"a\", \"top_k\": []}", "\"top_k\""},
    {"{\"prompt\": \"a\", \"top_p\": 2}", "\"top_p\""},
    {"{\"prompt\": \"a\", \"top_p\": {}}", "\"top_p\""},
    {"{\"prompt\": \"a\", \"min_p\": 1.1}", "\"min_p\""},
    {"{\"prompt\": \"a\", \"repetition_penalty\": -1}", "\"repetition_penalty\""},
    {"{\"prompt\": \"a\", \"presence_penalty\": 101}", "\"presence_penalty\""},
    {"{\"prompt\": \"a\", \"frequency_penalty\": -101}", "\"frequency_penalty\""},
    {"{\"prompt\": \"a\", \"stop\": 3}", "stop: expected a text"},
    {"{\"prompt\": \"a\", \"stop\": [\"b\", 3]}", "stop: expected a text"},
    {"{\"prompt\": \"a\", \"stop\": [\"\"]}", "stop"},
    {"{\"prompt\": \"a\", \"max_token\": 3}", "did you mean 'max_tokens'"},
    {"{\"prompt\": \"a\", \"top-k\": 3}", "did you mean 'top_k'"},
};

static void bad_fields(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
    rf_prompt_reader reader = reader_of();
    rf_prompt p = reader.common;
    rf_error error = {0};
    json_t *json = parse(BAD[i].json);
    if (rf_prompt_of_json(&reader, json, "a.jsonl, line 3", &p, &error) != RAFTER_FAILED)
      fail_msg("%s is accepted", BAD[i].json);
    if (!strstr(error.message, BAD[i].message) || !strstr(error.message, "a.jsonl, line 3"))
      fail_msg("%s: expected '%s', got '%s'", BAD[i].json, BAD[i].message, error.message);
    json_decref(json);
    rf_prompt_free(&p);
    rf_prompt_reader_close(&reader);
  }
}

static void write_file(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

/* Rows of a file get seeds of their own; an error names the line. */
static void files(void **state) {
  (void)state;
  rf_prompt_reader reader = reader_of();
  rf_prompts list = {0};
  rf_error error = {0};
  write_file(at("good.jsonl"),
             "{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\"}\n{\"tokens\": [1], \"seed\": 3}\n");
  write_file(at("bad.jsonl"), "{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\", \"samples\": 0}\n");
  write_file(at("empty.jsonl"), "\n");
  if (rf_prompts_read(&list, &reader, at("good.jsonl"), &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_int_equal(list.rows, 3);
  assert_int_equal(list.row[1].line, 3);
  assert_true(list.row[0].request.sampler.seed == 7 && list.row[1].request.sampler.seed != 7 &&
              list.row[2].request.sampler.seed == 3);
  rf_prompts_free(&list);
  list = (rf_prompts){0};
  assert_int_equal(rf_prompts_read(&list, &reader, at("bad.jsonl"), &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "bad.jsonl, line 3"));
  assert_non_null(strstr(error.message, "\"samples\""));
  rf_prompts_free(&list);
  list = (rf_prompts){0};
  assert_int_equal(rf_prompts_read(&list, &reader, at("empty.jsonl"), &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "no rows"));
  rf_prompts_free(&list);
  rf_prompt_reader_close(&reader);
}

/* The chat template and the system message apply to texts, and to messages without a system
 * message. */
static void conversations(void **state) {
  (void)state;
  static const char TEMPLATE[] = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
                                 "{% if add_generation_prompt %}[assistant]{% endif %}";
  rf_prompt_reader reader = reader_of();
  rf_prompt text = reader.common, messages = reader.common, own = reader.common;
  rf_error error = {0};
  reader.chats = true;
  reader.system = "s";
  assert_int_equal(rf_chat_new(TEMPLATE, strlen(TEMPLATE), "test", NULL, &reader.chat, &error), RAFTER_OK);
  read_or_fail(&reader, "{\"prompt\": \"a\"}", &text);
  assert_string_equal(text.text, "[system]s[user]a[assistant]");
  assert_int_equal(text.tokens.count, strlen(text.text));
  read_or_fail(&reader, "{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}", &messages);
  assert_string_equal(messages.text, "[system]s[user]b[assistant]");
  read_or_fail(&reader,
               "{\"messages\": [{\"role\": \"system\", \"content\": \"o\"}, {\"role\": \"user\", "
               "\"content\": \"b\"}]}",
               &own);
  assert_string_equal(own.text, "[system]o[user]b[assistant]");
  rf_prompt_free(&own);
  rf_prompt_free(&text);
  rf_prompt_free(&messages);
  rf_prompt_reader_close(&reader);
}

int main(void) {
  static const char SHAPE[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=300,seq=96";
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_fields), cmocka_unit_test(missing_fields), cmocka_unit_test(bad_fields),
      cmocka_unit_test(files),      cmocka_unit_test(conversations),
  };
  if (rf_model_resolve(SHAPE, &model, NULL, NULL) != RAFTER_OK) return 1;
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
