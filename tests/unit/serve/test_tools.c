/* Calls of tools: formats of templates, calls in texts that come in any pieces, and forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../constrain/forms.h"
#include "serve/tool_calls.h"

/* Beginnings of templates, which have the marks of their formats. */
#define HERMES "tools <tool_call>{\"name\""
#define LLAMA "tools ipython '\"parameters\": '"
#define MISTRAL "tools [TOOL_CALLS]["
#define MISTRAL_ARGS "tools [TOOL_CALLS] [ARGS]"
#define DEEPSEEK "tools <｜tool▁calls▁begin｜><｜tool▁sep｜>"
#define DEEPSEEK_CODE "tools <｜tool▁calls▁begin｜><｜tool▁sep｜>\n```json"

static json_t *tools;

static int open_tools(void **state) {
  (void)state;
  tools =
      json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"sum\",\"parameters\":{\"type\":\"object\","
                 "\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}},"
                 "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]",
                 0, NULL);
  return tools ? 0 : -1;
}

static int close_tools(void **state) {
  (void)state;
  json_decref(tools);
  return 0;
}

/* The content and the calls as "content|name arguments|...". */
static void describe(const rf_tool_calls *c, rf_body *out) {
  rf_body_bytes(out, c->content.at, c->content.bytes);
  for (int i = 0; i < c->count; i++) {
    rf_body_format(out, "|%s ", c->call[i].name);
    rf_body_bytes(out, c->call[i].arguments.at, c->call[i].arguments.bytes);
  }
}

/* Joins the deltas of a stream. */
static void add_delta(rf_tool_calls *c, json_t *content, json_t *calls) {
  rf_body text = {0};
  const json_t *call;
  size_t i;
  if (!rf_tool_calls_news(c)) return;
  rf_tool_calls_delta(c, &text);
  json_t *delta = json_loadb(text.at, text.bytes, 0, NULL);
  if (!delta) fail_msg("a delta is not JSON: %s", text.at);
  if (json_object_get(delta, "content")) json_array_append(content, json_object_get(delta, "content"));
  json_array_foreach (json_object_get(delta, "tool_calls"), i, call) {
    size_t index = (size_t)json_integer_value(json_object_get(call, "index"));
    const json_t *function = json_object_get(call, "function");
    const char *more = json_string_value(json_object_get(function, "arguments"));
    char both[4096];
    if (index == json_array_size(calls)) {
      assert_true(json_string_length(json_object_get(call, "id")) >= 9);
      assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
      snprintf(both, sizeof both, "|%s %s", json_string_value(json_object_get(function, "name")), more);
      json_array_append_new(calls, json_string(both));
      continue;
    }
    assert_null(json_object_get(call, "id"));
    snprintf(both, sizeof both, "%s%s", json_string_value(json_array_get(calls, index)), more);
    json_array_set_new(calls, index, json_string(both));
  }
  json_decref(delta);
  rf_body_free(&text);
}

static void add_joined(json_t *list, rf_body *out) {
  const json_t *text;
  size_t i;
  json_array_foreach (list, i, text) rf_body_text(out, json_string_value(text));
  json_decref(list);
}

typedef struct row {
  const char *chat_template, *text, *expected;
  bool single, forced;
} row;

/* Reads the text of a row in pieces of `piece` bytes, and compares a whole answer and a stream. */
static void check_row(const row *r, size_t piece) {
  rf_tool_calls calls;
  rf_body whole = {0}, streamed = {0};
  json_t *content = json_array(), *list = json_array();
  const rf_tool_format *format = rf_tool_format_of(r->chat_template);
  size_t bytes = strlen(r->text);
  assert_non_null(format);
  rf_tool_calls_start(&calls, format, tools, r->single, r->forced, true);
  for (size_t i = 0; i < bytes; i += piece) {
    rf_tool_calls_add(&calls, r->text + i, bytes - i < piece ? bytes - i : piece);
    add_delta(&calls, content, list);
  }
  rf_tool_calls_end(&calls, true);
  add_delta(&calls, content, list);
  assert_false(rf_tool_calls_news(&calls));
  describe(&calls, &whole);
  add_joined(content, &streamed);
  add_joined(list, &streamed);
  if (strcmp(whole.at ? whole.at : "", r->expected))
    fail_msg("%s in pieces of %zu: %s, not %s", r->text, piece, whole.at, r->expected);
  assert_string_equal(streamed.at ? streamed.at : "", r->expected);
  rf_body_free(&whole);
  rf_body_free(&streamed);
  rf_tool_calls_free(&calls);
}

static const row ROWS[] = {
    {HERMES, "No call. 1 <tool> 2 < 3\n", "No call. 1 <tool> 2 < 3\n", false, false},
    {HERMES, "<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": 1}}\n</tool_call>", "|sum {\"a\": 1}",
     false, false},
    {HERMES,
     "I add. \n<tool_call>\n{\"name\":\"sum\",\"arguments\":{\"a\":{\"}\":\"\\\"}\"}}}\n</tool_call>\n"
     "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n",
     "I add.|sum {\"a\":{\"}\":\"\\\"}\"}}|now {}", false, false},
    {HERMES, "<tool_call>{\"arguments\": {\"a\": [2]}, \"name\": \"sum\"}</tool_call> Done.",
     " Done.|sum {\"a\":[2]}", false, false},
    {HERMES, "<tool_call>{\"name\": \"now\"}</tool_call>", "|now {}", false, false},
    {HERMES, "<tool_call>{\"name\": \"s\\u0075m\", \"arguments\": \"{}\"}</tool_call>", "|sum {}", false,
     false},
    {HERMES, "<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": 1", "|sum {\"a\": 1", false, false},
    {HERMES, "x <tool_call>\n{\"name\": \"su", "x <tool_call>\n{\"name\": \"su", false, false},
    {HERMES, "x <tool_call>\nsum(1)\n</tool_call>", "x <tool_call>\nsum(1)\n</tool_call>", false, false},
    {HERMES, "<tool_call>{\"a\": {}} and <tool_ca", "<tool_call>{\"a\": {}} and <tool_ca", false, false},
    {HERMES,
     "<tool_call>{\"name\":\"sum\",\"arguments\":{}}</tool_call><tool_call>{\"name\":\"now\",\"arguments\":"
     "{\"b\":1}}</tool_call>",
     "|sum {}", true, false},
    {HERMES, "\n{\"name\": \"sum\", \"arguments\": {\"a\": 1}}\n</tool_call>", "|sum {\"a\": 1}", false,
     true},
    {LLAMA, "{\"name\": \"sum\", \"parameters\": {\"a\": 7}}", "|sum {\"a\": 7}", false, false},
    {LLAMA, " {\"type\": \"function\", \"name\": \"sum\", \"parameters\": {\"a\": 7}}", "|sum {\"a\":7}",
     false, false},
    {LLAMA, "<|python_tag|>{\"name\": \"other\", \"parameters\": {}}", "|other {}", false, false},
    {LLAMA, "{\"name\": \"sum\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}",
     "|sum {}|now {}", false, false},
    {LLAMA, "{\"name\": \"Ann\", \"parameters\": {}}", "{\"name\": \"Ann\", \"parameters\": {}}", false,
     false},
    {LLAMA, "Use {\"name\": \"sum\", \"parameters\": {}}", "Use {\"name\": \"sum\", \"parameters\": {}}",
     false, false},
    {LLAMA, "{ x }", "{ x }", false, false},
    {LLAMA, "<|python_tag|>print(1)", "<|python_tag|>print(1)", false, false},
    {MISTRAL,
     "Sure.[TOOL_CALLS] [{\"name\": \"sum\", \"arguments\": {\"a\": 1}, \"id\": \"123456789\"}, {\"name\": "
     "\"now\", \"arguments\": {}}]",
     "Sure.|sum {\"a\": 1}|now {}", false, false},
    {MISTRAL, "[TOOL_CALLS] []", "[TOOL_CALLS] []", false, false},
    {MISTRAL_ARGS, "[TOOL_CALLS]sum[CALL_ID]123456789[ARGS]{\"a\": 1}[TOOL_CALLS]now[ARGS]{}",
     "|sum {\"a\": 1}|now {}", false, false},
    {MISTRAL_ARGS, "[TOOL_CALLS]sum(1)", "[TOOL_CALLS]sum(1)", false, false},
    {DEEPSEEK,
     "Let me.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>sum<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜>"
     "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "Let me.|sum {\"a\":1}|now {}", false, false},
    {DEEPSEEK_CODE,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>sum\n```json\n{\"a\":1}\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "|sum {\"a\":1}|now {}", false, false},
};

static void test_texts(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
    for (size_t piece = 1; piece <= strlen(ROWS[i].text); piece++) check_row(&ROWS[i], piece);
}

/* A whole answer: the text of a row, read in pieces of `piece` bytes. */
static void check_whole(const char *chat_template, const char *text, bool cut, const char *expected,
                        size_t piece) {
  rf_tool_calls calls;
  rf_body whole = {0};
  size_t bytes = strlen(text);
  rf_tool_calls_start(&calls, rf_tool_format_of(chat_template), tools, false, false, false);
  for (size_t i = 0; i < bytes; i += piece)
    rf_tool_calls_add(&calls, text + i, bytes - i < piece ? bytes - i : piece);
  rf_tool_calls_end(&calls, cut);
  describe(&calls, &whole);
  if (strcmp(whole.at ? whole.at : "", expected))
    fail_msg("%s in pieces of %zu: %s, not %s", text, piece, whole.at, expected);
  rf_body_free(&whole);
  rf_tool_calls_free(&calls);
}

/* In a whole answer, a call whose arguments are not JSON is text. A call that the maximum length
 * cuts stays a call. */
static void test_wrong_arguments(void **state) {
  static const char *const rows[][3] = {
      {HERMES, "Sum.\n<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": }}\n</tool_call>",
       "Sum.\n<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": }}\n</tool_call>"},
      {HERMES,
       "<tool_call>{\"name\": \"sum\", \"arguments\": {a: 1}}</tool_call><tool_call>{\"name\": \"now\", "
       "\"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": \"sum\", \"arguments\": {a: 1}}</tool_call>|now {}"},
      {HERMES,
       "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"sum\", "
       "\"arguments\": {1}}</tool_call>",
       "<tool_call>{\"name\": \"sum\", \"arguments\": {1}}</tool_call>|now {}"},
      {HERMES, "<tool_call>{\"name\": \"sum\", \"arguments\": {\"a\": 12345678901234567890}}</tool_call>",
       "|sum {\"a\": 12345678901234567890}"},
      {HERMES, "Sum.\n<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": \"x}}\n</tool_call>",
       "Sum.\n<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": \"x}}\n</tool_call>"},
      {HERMES, "<tool_call>{\"name\": \"sum\", \"arguments\": {\"a\": 1</tool_call>",
       "<tool_call>{\"name\": \"sum\", \"arguments\": {\"a\": 1</tool_call>"},
      {HERMES, "<tool_call>{\"name\": \"sum\", \"arguments\": \"{a: 1}\"}</tool_call>",
       "<tool_call>{\"name\": \"sum\", \"arguments\": \"{a: 1}\"}</tool_call>"},
      {HERMES, "<tool_call>{\"name\": \"sum\", \"arguments\": \"[1]\"}</tool_call>",
       "<tool_call>{\"name\": \"sum\", \"arguments\": \"[1]\"}</tool_call>"},
      {HERMES, "<tool_call>{\"name\": \"sum\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
       "|sum {\"a\": 1}"},
      {HERMES,
       "<tool_call>{\"arguments\": {\"a\": 12345678901234567890, \"b\" : [1, {\"c\": \"} \\\" ,:\"}]}, "
       "\"name\": \"sum\"}</tool_call>",
       "|sum {\"a\":12345678901234567890,\"b\":[1,{\"c\":\"} \\\" ,:\"}]}"},
      {HERMES,
       "<tool_call>{\"type\": \"arguments\", \"function\": {\"x\": {\"arguments\": 1}, \"name\": \"sum\", "
       "\"arguments\": {\"a\": \"\\u0000\"}}}</tool_call>",
       "|sum {\"a\":\"\\u0000\"}"},
      {HERMES, "<tool_call>{\"arguments\": {\"a\": 1e400}, \"name\": \"sum\"}</tool_call>",
       "<tool_call>{\"arguments\": {\"a\": 1e400}, \"name\": \"sum\"}</tool_call>"},
      {HERMES, "<tool_call>{\"name\": \"sum\", \"arguments\": {\"a\": 1e400}}</tool_call>",
       "<tool_call>{\"name\": \"sum\", \"arguments\": {\"a\": 1e400}}</tool_call>"},
      {HERMES, "<tool_call>{\"name\": \"sum\", \"arguments\": {\"a\": \"\\ud83d\"}}</tool_call>",
       "<tool_call>{\"name\": \"sum\", \"arguments\": {\"a\": \"\\ud83d\"}}</tool_call>"},
      {HERMES, "<tool_call>{\"name\": \"su\\u0000\", \"arguments\": {}}</tool_call>",
       "<tool_call>{\"name\": \"su\\u0000\", \"arguments\": {}}</tool_call>"},
      {LLAMA, "{\"name\": \"sum\", \"parameters\": {\"a\" 7}}",
       "{\"name\": \"sum\", \"parameters\": {\"a\" 7}}"},
      {MISTRAL_ARGS, "[TOOL_CALLS]sum[ARGS]{\"a\": 1,}[TOOL_CALLS]now[ARGS]{}",
       "[TOOL_CALLS]sum[ARGS]{\"a\": 1,}|now {}"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    for (size_t piece = 1; piece <= strlen(rows[i][1]); piece++)
      check_whole(rows[i][0], rows[i][1], false, rows[i][2], piece);
  const char *cut = "<tool_call>{\"name\": \"sum\", \"arguments\": {\"a\": ";
  check_whole(HERMES, cut, true, "|sum {\"a\": ", 1);
  check_whole(HERMES, cut, false, cut, 1);
  for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
    if (!ROWS[i].single && !ROWS[i].forced)
      check_whole(ROWS[i].chat_template, ROWS[i].text, true, ROWS[i].expected, 7);
}

/* Bytes that are not text, zeros among them, pass as content. */
static void test_bytes(void **state) {
  static const char BYTES[] = "\0<tool_call>\0{\"name\":\0\xff";
  rf_tool_calls calls;
  (void)state;
  rf_tool_calls_start(&calls, rf_tool_format_of(HERMES), tools, false, false, true);
  rf_tool_calls_add(&calls, BYTES, sizeof BYTES - 1);
  rf_tool_calls_end(&calls, false);
  assert_int_equal(calls.content.bytes, sizeof BYTES - 1);
  assert_memory_equal(calls.content.at, BYTES, sizeof BYTES - 1);
  rf_tool_calls_free(&calls);
}

/* Blanks without end are not held: each byte takes bounded time. */
static void test_blanks(void **state) {
  static const char *const BEFORE[] = {"", "a", "<tool_call>", "<tool_call>{",
                                       "<tool_call>{\"name\":\"sum\",\"arguments\":{}}"};
  (void)state;
  for (size_t i = 0; i < sizeof BEFORE / sizeof *BEFORE; i++) {
    rf_tool_calls calls;
    rf_tool_calls_start(&calls, rf_tool_format_of(HERMES), tools, false, false, true);
    rf_tool_calls_add(&calls, BEFORE[i], strlen(BEFORE[i]));
    for (int k = 0; k < 200000; k++) {
      rf_tool_calls_add(&calls, "\n", 1);
      if (calls.state != 2) assert_true(calls.held.bytes <= 2048); /* an object is read whole */
    }
    rf_tool_calls_end(&calls, false);
    assert_int_equal(calls.count, i == 4);
    rf_tool_calls_free(&calls);
  }
}

static void test_formats(void **state) {
  (void)state;
  assert_null(rf_tool_format_of(NULL));
  assert_null(rf_tool_format_of("{{ messages }}"));
  assert_null(rf_tool_format_of("tools <tool_call>\n<function=x>"));
  assert_false(rf_tool_template("{{ messages }}"));
  assert_string_equal(rf_tool_format_of(MISTRAL_ARGS)->name_end, "[ARGS]");
  assert_true(rf_tool_text_arguments(rf_tool_format_of(DEEPSEEK), DEEPSEEK));
  assert_false(rf_tool_text_arguments(rf_tool_format_of(DEEPSEEK), DEEPSEEK " ['arguments'] | tojson"));
  assert_false(rf_tool_text_arguments(rf_tool_format_of(HERMES), HERMES));
}

/* The form of a call is that of the texts above. */
static void test_forms(void **state) {
  (void)state;
  char *form = rf_tool_form(rf_tool_format_of(HERMES), tools, "now", false);
  assert_string_equal(form,
                      "[\"\\n\",{\"any\":[[\"{\\\"name\\\": \\\"now\\\", \\\"arguments\\\": \",{\"schema\":{"
                      "\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}},"
                      "\"}\\n</tool_call>\"]]},\"\"]");
  free(form);
  form = rf_tool_form(rf_tool_format_of(MISTRAL), tools, NULL, true);
  assert_non_null(strstr(form, "\"between\":\", \""));
  free(form);
  form = rf_tool_form(rf_tool_format_of(LLAMA), tools, NULL, true); /* one call only */
  assert_null(strstr(form, "between"));
  free(form);
}

/* The form of answers whose calls are strict: only marked tools have their schema. */
static void test_strict_forms(void **state) {
  json_t *marked = json_deep_copy(tools);
  (void)state;
  assert_false(rf_tool_strict(tools));
  json_object_set_new(json_object_get(json_array_get(marked, 0), "function"), "strict", json_true());
  assert_true(rf_tool_strict(marked));
  char *form = rf_tool_strict_form(rf_tool_format_of(HERMES), marked, true);
  const char *start = "{\"any\":[{\"without\":\"<tool_call>\"},[{\"until\":\"<tool_call>\"},[\"\\n\",";
  assert_memory_equal(form, start, strlen(start));
  assert_non_null(strstr(form, "\"required\":[\"a\"]"));
  assert_null(strstr(form, "additionalProperties")); /* of the other tool, which has no arguments */
  free(form);
  form = rf_tool_strict_form(rf_tool_format_of(LLAMA), marked, true);
  assert_non_null(strstr(form, "{\"without\":\"<|python_tag|>\",\"begin\":\"{\"}"));
  free(form);
  json_decref(marked);
}

/* Returns `count` tools f0, f1, and so on. The first `strict` tools are strict: they take one whole
 * number. */
static json_t *many_tools(int count, int strict) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) {
    char name[32];
    snprintf(name, sizeof name, "f%d", i);
    json_array_append_new(list,
                          json_pack("{s{ss sb s{ss s{s{ss}} s[s] sb}}}", "function", "name", name, "strict",
                                    i < strict, "parameters", "type", "object", "properties", "a", "type",
                                    "integer", "required", "a", "additionalProperties", 0));
  }
  return list;
}

static rf_status open_strict(const char *chat_template, json_t *list, rf_automaton *a, rf_error *error) {
  char *form = rf_tool_strict_form(rf_tool_format_of(chat_template), list, true);
  rf_status status = form_open(form, RF_TEXT_PARTS, a, error);
  free(form);
  json_decref(list);
  return status;
}

/* A form with all tools that a request may have, one of them strict, is not too large. */
static void test_many_tools(void **state) {
  static const struct {
    const char *chat_template, *before, *middle, *after;
  } rows[] = {{HERMES, "Sum.\n<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>"},
              {MISTRAL_ARGS, "[TOOL_CALLS]", "[ARGS]", ""},
              {DEEPSEEK, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
               "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
              {LLAMA, "<|python_tag|>{\"name\": \"", "\", \"parameters\": ", "}"},
              {LLAMA, "\n{\"name\": \"", "\", \"parameters\": ", "}"}};
  static const struct {
    const char *name, *arguments;
    bool allowed;
  } calls[] = {{"f0", "{\"a\":1}", true},      {"f0", "{\"a\":\"x\"}", false}, {"f1", "{\"a\":\"x\"}", true},
               {"f1023", "{\"b\":[1]}", true}, {"f1023", "{b}", false},        {"f1024", "{}", false}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_automaton a;
    rf_error error = {0};
    if (open_strict(rows[i].chat_template, many_tools(1024, 1), &a, &error)) fail_msg("%s", error.message);
    assert_true(form_allows(&a, "No call."));
    for (size_t k = 0; k < sizeof calls / sizeof *calls; k++) {
      char text[256];
      snprintf(text, sizeof text, "%s%s%s%s%s", rows[i].before, calls[k].name, rows[i].middle,
               calls[k].arguments, rows[i].after);
      if (form_allows(&a, text) != calls[k].allowed) fail_msg("%s", text);
    }
    rf_automaton_close(&a);
  }
}

/* An object after more blanks is content for the parser, so the form does not allow it. */
static void test_strict_blanks(void **state) {
  rf_automaton a;
  rf_error error = {0};
  char text[512];
  (void)state;
  assert_int_equal(open_strict(LLAMA, many_tools(2, 1), &a, &error), RAFTER_OK);
  for (int blanks = RF_TOOL_BLANKS; blanks <= RF_TOOL_BLANKS + 1; blanks++) {
    snprintf(text, sizeof text, "%*s{\"name\": \"f0\", \"parameters\": {\"a\":1}}", blanks, "");
    assert_int_equal(form_allows(&a, text), blanks == RF_TOOL_BLANKS);
    rf_tool_calls calls;
    json_t *list = many_tools(2, 1);
    rf_tool_calls_start(&calls, rf_tool_format_of(LLAMA), list, false, false, false);
    rf_tool_calls_add(&calls, text, strlen(text));
    rf_tool_calls_end(&calls, false);
    assert_int_equal(calls.count, blanks == RF_TOOL_BLANKS);
    rf_tool_calls_free(&calls);
    json_decref(list);
  }
  rf_automaton_close(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_texts),           cmocka_unit_test(test_bytes),
      cmocka_unit_test(test_blanks),          cmocka_unit_test(test_formats),
      cmocka_unit_test(test_wrong_arguments), cmocka_unit_test(test_forms),
      cmocka_unit_test(test_strict_forms),    cmocka_unit_test(test_many_tools),
      cmocka_unit_test(test_strict_blanks)};
  return cmocka_run_group_tests(tests, open_tools, close_tools);
}
