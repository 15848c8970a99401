/* test_chat.c - tests chat templates of model folders: where they are found, what they render, and
 * which bytes belong to the assistant. */
#include "text/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

#include <cmocka.h>

#include "support/scratch.h"

static void put(const char *name, const char *text) {
  char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  if (!text) unlink(path);
  else assert_int_equal(rf_file_write(path, text, strlen(text), NULL), RAFTER_OK);
}

static json_t *parse(const char *text) {
  json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
  assert_non_null(json);
  return json;
}

/* The text rendered by the folder's template, or the error message. */
static const char *rendered(const char *messages, const rf_chat_options *options) {
  static char result[1000];
  rf_error error;
  rf_chat *chat;
  rf_rendered got;
  rf_status status = rf_chat_open(folder, &chat, &error);
  if (status == RAFTER_OK) {
    json_t *json = parse(messages);
    status = rf_chat_render(chat, json, options, &got, &error);
    json_decref(json);
    rf_chat_free(chat);
  }
  snprintf(result, sizeof result, "%s", status == RAFTER_OK ? got.text : error.message);
  if (status == RAFTER_OK) rf_rendered_free(&got);
  return result;
}

static void templates_are_found_where_models_keep_them(void **state) {
  (void)state;
  const char *hi = "[{\"role\":\"user\",\"content\":\"hi\"}]";
  assert_non_null(strstr(rendered(hi, NULL), "has no chat template"));
  put("tokenizer_config.json",
      "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\",\"lstrip\":false},\"pad_token\":null,"
      "\"chat_template\":\"{{ bos_token ~ messages[0].content ~ eos_token ~ pad_token }}\"}");
  assert_string_equal(rendered(hi, NULL), "<s>hi</s>");
  put("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},{\"name\":"
                               "\"default\",\"template\":\"d{{ tools }}\"}]}");
  assert_string_equal(rendered(hi, NULL), "dNone");
  put("tokenizer_config.json", "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},{\"name\":"
                               "\"rag\",\"template\":\"r\"}]}");
  assert_non_null(strstr(rendered(hi, NULL), "names no template \"default\" (got: tool_use, rag)"));
  put("tokenizer_config.json",
      "{\"eos_token\":\"</s>\"}"); /* A processor keeps the template next to a tokenizer that has none. */
  put("chat_template.json", "{\"chat_template\":\"p{{ eos_token }}\"}");
  assert_string_equal(rendered(hi, NULL), "p</s>");
  put("chat_template.json", "{\"chat_template\":\"{{ b|c }}\"}");
  assert_non_null(strstr(rendered(hi, NULL), "chat_template.json, line 1, column 6: unknown filter \"c\""));
  put("chat_template.json", "[]");
  assert_non_null(strstr(rendered(hi, NULL), "has no chat template"));
  put("tokenizer_config.json", "{\"chat_template\":\"t\"}");
  assert_string_equal(rendered(hi, NULL), "t");
  put("chat_template.jinja", "file {{ eos_token }}\n");
  assert_string_equal(rendered(hi, NULL), "file ");
  put("chat_template.json", NULL);
  put("tokenizer_config.json", NULL);
  assert_string_equal(rendered(hi, NULL), "file ");
  put("chat_template.jinja", NULL);
}

/* If there are several named templates without a default, the caller has to choose one. */
static void templates_without_a_default_are_named(void **state) {
  (void)state;
  const char *hi = "[{\"role\":\"user\",\"content\":\"hi\"}]";
  char inside[128];
  snprintf(inside, sizeof inside, "%s/additional_chat_templates", folder);
  assert_int_equal(mkdir(inside, 0777), 0);
  assert_non_null(strstr(rendered(hi, NULL), "has no chat template"));
  put("additional_chat_templates/rag.jinja", "r");
  assert_non_null(
      strstr(rendered(hi, NULL), "additional_chat_templates has no default chat template (got: rag.jinja)"));
  rf_chat *none;
  /* training does not guess which template is meant */
  assert_int_equal(rf_chat_find(folder, &none, NULL), RAFTER_FAILED);
  assert_null(none);
  put("chat_template.jinja", "default");
  assert_string_equal(rendered(hi, NULL), "default");
  put("chat_template.jinja", NULL);
  put("additional_chat_templates/rag.jinja", NULL);
  assert_int_equal(rmdir(inside), 0);
}

#define LIST(tools) \
  "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"" tools "\"},{\"name\":\"default\"," \
  "\"template\":\"d{{ tools }}\"}]}"

/* As in transformers, conversations with tools have a template of their own, if there is one. */
static void tools_have_their_template(void **state) {
  (void)state;
  const char *hi = "[{\"role\":\"user\",\"content\":\"hi\"}]";
  char inside[128];
  json_t *tools = parse("[{\"a\":1}]"), *none = json_null();
  const rf_chat_options with = {.tools = tools}, null = {.tools = none};
  put("tokenizer_config.json", LIST("t{{ tools|tojson }}"));
  assert_string_equal(rendered(hi, &with), "t[{\"a\": 1}]");
  assert_string_equal(rendered(hi, NULL), "dNone");
  assert_string_equal(rendered(hi, &null), "dNone");
  /* a conversation without tools does not need the template of tools */
  put("tokenizer_config.json", LIST("{{ b|c }}"));
  assert_non_null(
      strstr(rendered(hi, &with), "tokenizer_config.json, line 1, column 6: unknown filter \"c\""));
  assert_string_equal(rendered(hi, NULL), "dNone");
  put("chat_template.jinja", "file {{ tools|tojson }}"); /* overrides the list, with its tools */
  assert_string_equal(rendered(hi, &with), "file [{\"a\": 1}]");
  snprintf(inside, sizeof inside, "%s/additional_chat_templates", folder);
  assert_int_equal(mkdir(inside, 0777), 0);
  put("additional_chat_templates/tool_use.jinja", "other {{ tools|tojson }}");
  assert_string_equal(rendered(hi, &with), "other [{\"a\": 1}]");
  assert_string_equal(rendered(hi, NULL), "file null");
  put("additional_chat_templates/tool_use.jinja", NULL);
  assert_int_equal(rmdir(inside), 0);
  put("chat_template.jinja", NULL);
  put("tokenizer_config.json", NULL);
  json_decref(tools);
}

/* The spans of the assistant are those of the template that renders the tools. */
static void spans_follow_the_template_of_tools(void **state) {
  (void)state;
  static const char TEXT[] =
      "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
  json_t *tools = parse("[{\"a\":1}]"), *messages = parse("[{\"role\":\"assistant\",\"content\":\"one\"}]");
  const rf_chat_options with = {.tools = tools};
  rf_chat *chat;
  rf_rendered got;
  assert_int_equal(rf_chat_new("{{ messages|length }}", 21, "plain", NULL, &chat, NULL), RAFTER_OK);
  rf_chat_add_tools(chat, TEXT, sizeof TEXT - 1, "tools");
  assert_string_equal(rf_chat_text(chat), "{{ messages|length }}");
  assert_string_equal(rf_chat_tools_text(chat), TEXT);
  assert_int_equal(rf_chat_render_spans(chat, messages, NULL, &got, NULL), RAFTER_FAILED);
  assert_int_equal(rf_chat_render_spans(chat, messages, &with, &got, NULL), RAFTER_OK);
  assert_int_equal(got.generated_count, 1);
  assert_int_equal(got.generated[0].last, 3);
  rf_rendered_free(&got);
  rf_chat_free(chat);
  json_decref(tools);
  json_decref(messages);
}

/* A copy has no inner folder, and keeps both templates. */
static void copies_keep_the_template_of_tools(void **state) {
  (void)state;
  char inside[128], to[128], *text = NULL, *with = NULL;
  int copied;
  json_t *config = NULL;
  snprintf(inside, sizeof inside, "%s/additional_chat_templates", folder);
  snprintf(to, sizeof to, "%s/copy", folder);
  assert_int_equal(mkdir(inside, 0777), 0);
  assert_int_equal(mkdir(to, 0777), 0);
  put("tokenizer_config.json", "{\"bos_token\":\"<s>\",\"model_max_length\":2048}");
  put("chat_template.jinja", "plain");
  put("additional_chat_templates/tool_use.jinja", "with tools");
  assert_int_equal(rf_tokenizer_files_copy(folder, to, &copied, NULL), RAFTER_OK);
  assert_int_equal(rf_chat_source(to, &text, &with, NULL), RAFTER_OK);
  assert_string_equal(text, "plain");
  assert_string_equal(with, "with tools");
  const char *made = at("copy/tokenizer_config.json");
  assert_int_equal(rf_json_read(made, 1 << 20, &config, NULL), RAFTER_OK);
  assert_true(json_is_integer(json_object_get(config, "model_max_length")));
  assert_string_equal(json_string_value(json_object_get(config, "bos_token")), "<s>");
  json_decref(config);
  free(text);
  free(with);
  unlink(made);
  assert_int_equal(rmdir(to), 0); /* nothing else was copied */
  put("additional_chat_templates/tool_use.jinja", NULL);
  assert_int_equal(rmdir(inside), 0);
  put("chat_template.jinja", NULL);
  put("tokenizer_config.json", NULL);
}

static void wrong_files_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *config, *message;
  } rows[] = {{"[]", "expected an object"},
              {"{\"chat_template\":3}", "must be a string or a list"},
              {"{\"chat_template\":[3]}", "row 0"},
              {"{\"chat_template\":[{\"name\":\"default\"}]}", "row 0"},
              {"{\"chat_template\":null}", "has no chat template"},
              {"{\"chat_template\":\"x\",\"bos_token\":3}", "\"bos_token\" must be"},
              {"{\"chat_template\":\"a\\n{{ b|c }}\"}",
               "tokenizer_config.json, line 2, column 6: unknown filter \"c\""},
              {"{", "not valid JSON"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    put("tokenizer_config.json", rows[i].config);
    assert_non_null(strstr(rendered("[]", NULL), rows[i].message));
  }
  put("tokenizer_config.json", "{\"chat_template\":\"x\"}");
  assert_non_null(strstr(rendered("{}", NULL), "must be a list"));
  assert_non_null(strstr(rendered("[{\"content\":\"x\"}]", NULL), "message 0"));
  assert_non_null(strstr(rendered("[{\"role\":\"user\"},3]", NULL), "message 1"));
  put("tokenizer_config.json", NULL);
}

static void options_reach_the_template(void **state) {
  (void)state;
  put("chat_template.jinja",
      "{{ tools|tojson }} {{ enable_thinking }} {{ add_generation_prompt }} {{ strftime_now('%Y-%m-%d') }}");
  json_t *tools = parse("[{\"a\":1}]"), *more = parse("{\"enable_thinking\":false}");
  struct tm now = {.tm_year = 124, .tm_mon = 6, .tm_mday = 26};
  rf_chat_options options = {.add_generation_prompt = true, .tools = tools, .variables = more, .now = &now};
  assert_string_equal(rendered("[]", &options), "[{\"a\": 1}] False True 2024-07-26");
  options.now = NULL;
  assert_non_null(strstr(rendered("[]", &options), "needs the current time"));
  json_decref(tools);
  json_decref(more);
  put("chat_template.jinja", NULL);
}

static rf_chat *family(const char *name) {
  char path[300], *text;
  size_t bytes;
  snprintf(path, sizeof path, RF_TEST_DATA "/templates/%s.jinja", name);
  assert_int_equal(rf_file_read(path, 1 << 20, &text, &bytes, NULL), RAFTER_OK);
  json_t *tokens = parse("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}");
  rf_chat *chat;
  assert_int_equal(rf_chat_new(text, bytes, name, tokens, &chat, NULL), RAFTER_OK);
  json_decref(tokens);
  free(text);
  return chat;
}

#define TWO_TURNS \
  "[{\"role\":\"user\",\"content\":\"1\"},{\"role\":\"assistant\",\"content\":\"one\"},{\"role\":\"user\"," \
  "\"content\":\"2\"}," \
  "{\"role\":\"assistant\",\"content\":\"two\"}]"

static void spans_are_what_the_assistant_wrote(void **state) {
  (void)state;
  static const struct {
    const char *name, *spans[2];
  } rows[] = {{"chatml", {"one<|im_end|>\n", "two<|im_end|>\n"}},
              {"smollm2", {"one<|im_end|>\n", "two<|im_end|>\n"}},
              {"qwen2", {"one<|im_end|>\n", "two<|im_end|>\n"}},
              {"qwen2_5", {"one<|im_end|>\n", "two<|im_end|>\n"}},
              {"gemma2", {"one<end_of_turn>\n", "two<end_of_turn>\n"}},
              {"gemma3", {"one<end_of_turn>\n", "two<end_of_turn>\n"}},
              {"llama3", {"one<|eot_id|>", "two<|eot_id|>"}},
              {"llama2", {" one </s>", " two </s>"}},
              {"mistral", {"one</s>", "two</s>"}},
              {"zephyr", {"one</s>\n", "two</s>\n"}},
              {"marked", {"one<|im_end|>", "two<|im_end|>"}}};
  json_t *messages = parse(TWO_TURNS);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    rf_chat *chat = family(rows[i].name);
    rf_rendered got;
    rf_error error;
    if (rf_chat_render_spans(chat, messages, NULL, &got, &error) != RAFTER_OK)
      fail_msg("%s: %s", rows[i].name, error.message);
    assert_int_equal(got.generated_count, 2);
    for (int k = 0; k < 2; ++k) {
      size_t bytes = got.generated[k].last - got.generated[k].first;
      if (bytes != strlen(rows[i].spans[k]) ||
          memcmp(got.text + got.generated[k].first, rows[i].spans[k], bytes) != 0)
        fail_msg("%s, span %d: got %.*s", rows[i].name, k, (int)bytes, got.text + got.generated[k].first);
    }
    rf_rendered_free(&got);
    rf_chat_free(chat);
  }
  json_decref(messages);
}

/* Qwen3 writes the thoughts of only the last turn, so an earlier turn changes when another turn
 * follows. */
static void rewritten_turns_are_refused_not_guessed(void **state) {
  (void)state;
  rf_chat *chat = family("qwen3");
  rf_error error;
  rf_rendered got;
  json_t *messages = parse(TWO_TURNS),
         *first =
             parse("[{\"role\":\"user\",\"content\":\"1\"},{\"role\":\"assistant\",\"content\":\"one\"}]");
  assert_int_equal(rf_chat_render_spans(chat, messages, NULL, &got, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "the first 2 messages render differently alone"));
  assert_int_equal(rf_chat_render_spans(chat, first, NULL, &got, &error), RAFTER_OK);
  assert_int_equal(got.generated_count, 1);
  assert_string_equal(got.text + got.generated[0].first, "<think>\n\n</think>\n\none<|im_end|>\n");
  rf_rendered_free(&got);
  rf_chat_free(chat);
  assert_int_equal(rf_chat_new("{{ messages|length }}", 21, "count", NULL, &chat, NULL), RAFTER_OK);
  assert_int_equal(rf_chat_render_spans(chat, messages, NULL, &got, &error), RAFTER_FAILED);
  rf_chat_free(chat);
  assert_int_equal(rf_chat_new("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}{{ 'A' "
                               "if add_generation_prompt }}",
                               104, "mute", NULL, &chat, NULL),
                   RAFTER_OK);
  assert_int_equal(rf_chat_render_spans(chat, first, NULL, &got, &error), RAFTER_FAILED);
  rf_chat_free(chat);
  json_decref(messages);
  json_decref(first);
}

static void a_real_models_conversations_render_as_recorded(void **state) {
  (void)state;
  const char *path = RF_UNPACKED_DATA "/real-models/smollm2-135m-instruct-q4_1.json";
  json_t *file, *row;
  size_t index;
  assert_int_equal(rf_json_read(path, 64 << 20, &file, NULL), RAFTER_OK);
  rf_chat *chat = family("smollm2");
  json_array_foreach (json_object_get(file, "chat"), index, row) {
    rf_rendered got;
    rf_chat_options options = {.add_generation_prompt =
                                   json_is_true(json_object_get(row, "add_generation_prompt"))};
    assert_int_equal(rf_chat_render(chat, json_object_get(row, "messages"), &options, &got, NULL), RAFTER_OK);
    assert_string_equal(got.text, json_string_value(json_object_get(row, "text")));
    rf_rendered_free(&got);
  }
  assert_true(index >= 6);
  rf_chat_free(chat);
  json_decref(file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(templates_are_found_where_models_keep_them),
      cmocka_unit_test(templates_without_a_default_are_named),
      cmocka_unit_test(tools_have_their_template),
      cmocka_unit_test(spans_follow_the_template_of_tools),
      cmocka_unit_test(copies_keep_the_template_of_tools),
      cmocka_unit_test(wrong_files_are_refused),
      cmocka_unit_test(options_reach_the_template),
      cmocka_unit_test(spans_are_what_the_assistant_wrote),
      cmocka_unit_test(rewritten_turns_are_refused_not_guessed),
      cmocka_unit_test(a_real_models_conversations_render_as_recorded),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
