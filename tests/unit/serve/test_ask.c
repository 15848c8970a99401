/* Bodies of requests: fields, bounds, and bodies that nobody should send. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/ask.h"
#include "serve/names.h"

static const rf_ask_rules RULES = {.model = "tiny",
                                   .alias = "models/tiny",
                                   .vocab = 100,
                                   .context = 64,
                                   .max_tokens = 16,
                                   .answers = 40,
                                   .defaults = {.temperature = 0.7f, .top_k = 5}};
/* Rules of a server whose template renders tools, set by main. */
static rf_ask_rules tool_rules;
#define TOOL_TEMPLATE "tools <tool_call>"
#define DEEPSEEK "tools <｜tool▁calls▁begin｜><｜tool▁sep｜>"

static rf_ask ask;
static rf_wrong wrong;

static bool read_with(const rf_ask_rules *rules, rf_ask_kind kind, const char *body) {
  rf_ask_free(&ask);
  wrong = (rf_wrong){0};
  return rf_ask_read(rules, kind, body, strlen(body), &ask, &wrong);
}
static bool read_kind(rf_ask_kind kind, const char *body) { return read_with(&RULES, kind, body); }
static bool completion(const char *body) { return read_kind(RF_ASK_COMPLETION, body); }
static bool chat(const char *body) { return read_kind(RF_ASK_CHAT, body); }

static int forget(void **state) {
  (void)state;
  rf_ask_free(&ask);
  return 0;
}

/* Every number and flag reaches its place. A field without a value has that of the server. */
static void test_fields(void **state) {
  (void)state;
  assert_true(completion("{\"model\":\"tiny\",\"prompt\":\"Hi\"}"));
  assert_int_equal(ask.request.max_tokens, 16);
  assert_int_equal(ask.request.samples, 1);
  assert_int_equal(ask.request.top_k, 5);
  assert_true(ask.request.temperature == 0.7f);
  assert_false(ask.seeded || ask.stream || ask.logprobs);
  assert_true(completion(
      "{\"model\":\"models/"
      "tiny\",\"prompt\":\"Hi\",\"max_tokens\":3,\"temperature\":0,\"top_p\":0.5,\"top_k\":-1,"
      "\"min_p\":0.1,\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":1.5,\"seed\":-7,"
      "\"n\":2,\"best_of\":2,\"stop\":[\"a\",\"bc\"],\"logit_bias\":{\"7\":-100,\"8\":2.5},\"logprobs\":4,"
      "\"ignore_eos\":true,\"stream\":true,\"stream_options\":{\"include_usage\":true},\"min_tokens\":2,"
      "\"echo\":false,\"return_token_ids\":true,\"user\":\"me\",\"suffix\":null,\"response_format\":"
      "{\"type\":\"text\"},\"prompt_logprobs\":null}"));
  const rafter_request *r = &ask.request;
  assert_int_equal(r->max_tokens, 3);
  assert_true(r->temperature == 0 && r->top_p == 0.5f && r->min_p == 0.1f);
  assert_true(r->presence_penalty == 1 && r->frequency_penalty == -1 && r->repetition_penalty == 1.5f);
  assert_int_equal(r->top_k, 0);
  assert_true(ask.seeded && r->seed == (uint64_t)-7);
  assert_int_equal(r->samples, 2);
  assert_int_equal(r->stop_count, 2);
  assert_string_equal(ask.stop[1], "bc");
  assert_int_equal(r->bias_count, 2);
  assert_int_equal(ask.bias[1].id, 8);
  assert_true(ask.bias[1].bias == 2.5f);
  assert_int_equal(r->top_logprobs, 4);
  assert_int_equal(r->min_tokens, 2);
  assert_true(ask.logprobs && r->ignore_eos && ask.stream && ask.usage && ask.token_ids && !ask.usage_always);
  assert_string_equal(ask.ignored, "");
}

/* The newer name of max_tokens counts, in any order. A whole number may be written with a point. */
static void test_max_tokens(void **state) {
  (void)state;
  assert_true(completion("{\"prompt\":\"a\",\"max_tokens\":3,\"max_completion_tokens\":4}"));
  assert_int_equal(ask.request.max_tokens, 4);
  assert_true(completion("{\"prompt\":\"a\",\"max_completion_tokens\":4,\"max_tokens\":3}"));
  assert_int_equal(ask.request.max_tokens, 4);
  assert_true(completion("{\"prompt\":\"a\",\"max_completion_tokens\":null,\"max_tokens\":3.0}"));
  assert_int_equal(ask.request.max_tokens, 3);
}

static void test_prompts(void **state) {
  static const struct {
    const char *prompt;
    int64_t prompts, ids; /* ids of the last prompt; 0: a text */
  } good[] = {{"\"a\"", 1, 0},       {"[1,2,3]", 1, 3}, {"[\"a\",\"b\"]", 2, 0},
              {"[[1],[2,3]]", 2, 2}, {"[99]", 1, 1},    {"\"\"", 1, 0}};
  static const char *const bad[] = {"[]",    "[[]]",         "[1,\"a\"]", "[\"a\",1]", "[[1],\"a\"]",
                                    "[100]", "[-1]",         "[1.5]",     "{}",        "7",
                                    "true",  "[[1],[true]]", "[[[1]]]",   "[1e30]",    "[null]"};
  char body[80];
  (void)state;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    const char *text = NULL;
    size_t bytes = 0;
    int32_t *ids = NULL;
    int64_t count = 0;
    snprintf(body, sizeof body, "{\"prompt\":%s}", good[i].prompt);
    assert_true(completion(body));
    assert_int_equal(ask.prompts, good[i].prompts);
    assert_true(rf_ask_prompt(&RULES, &ask, good[i].prompts - 1, &text, &bytes, &ids, &count, &wrong));
    assert_int_equal(count, good[i].ids);
    assert_int_equal(ids != NULL, good[i].ids > 0);
    free(ids);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    snprintf(body, sizeof body, "{\"prompt\":%s}", bad[i]);
    if (completion(body)) fail_msg("accepted: %s", body);
    assert_int_equal(wrong.status, 400);
    assert_string_equal(wrong.param, "prompt");
  }
}

static void test_messages(void **state) {
  (void)state;
  assert_true(chat("{\"messages\":[{\"role\":\"developer\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
                   "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}],\"name\":\"me\"},"
                   "{\"role\":\"assistant\",\"content\":\"c\",\"refusal\":null,\"tool_calls\":[]}],"
                   "\"logprobs\":true,\"top_logprobs\":20,\"max_completion_tokens\":2}"));
  char *text = json_dumps(ask.messages, JSON_COMPACT);
  assert_string_equal(text,
                      "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\\nb\","
                      "\"name\":\"me\"},{\"role\":\"assistant\",\"content\":\"c\"}]");
  free(text);
  assert_int_equal(ask.request.top_logprobs, 20);
}

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define CALLED(arguments) \
  "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"a\",\"type\":" \
  "\"function\"," \
  "\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}]},{\"role\":\"tool\",\"tool_call_id\":\"a\"," \
  "\"content\":\"r\"}]}"

/* The larger of two numbers of alternatives is computed. */
static void test_scores(void **state) {
  (void)state;
  assert_true(completion("{\"prompt\":\"a\",\"echo\":true,\"logprobs\":3,\"prompt_logprobs\":2}"));
  assert_true(ask.scores && ask.request.prompt_top == 3 && ask.prompt_top == 2);
  assert_true(completion("{\"prompt\":\"a\",\"logprobs\":1,\"prompt_logprobs\":2}"));
  assert_true(ask.scores && ask.request.prompt_top == 2);
  assert_true(completion("{\"prompt\":\"a\",\"logprobs\":1,\"echo\":false}"));
  assert_false(ask.scores);
}

/* Tools and calls reach the template, and a call that must come has a form. */
static void test_tools(void **state) {
  (void)state;
  assert_true(read_with(&tool_rules, RF_ASK_CHAT, "{" HI ",\"tools\":[" TOOL("f") "]}"));
  assert_true(ask.tools && ask.tool_choice == RF_TOOLS_AUTO && ask.several_calls && !ask.form_field);
  assert_true(ask.request.specials);
  assert_true(read_with(&tool_rules, RF_ASK_CHAT,
                        "{" HI ",\"tools\":[" TOOL("f") "," TOOL("g-2") "],\"tool_choice\":\"required\","
                                                                        "\"parallel_tool_calls\":false}"));
  assert_true(ask.form == RAFTER_FORM_PARTS && !ask.several_calls && strstr(ask.form_text, "g-2"));
  assert_null(strstr(ask.form_text, "repeat"));
  assert_true(read_with(&tool_rules, RF_ASK_CHAT,
                        "{" HI ",\"tools\":[" TOOL("f") "," TOOL("g") "],\"tool_choice\":" TOOL("g") "}"));
  assert_string_equal(ask.tool_name, "g");
  assert_null(strstr(ask.form_text, "\\\"f\\\""));
  assert_true(chat("{" HI ",\"tools\":[" TOOL("f") "],\"tool_choice\":\"none\"}"));
  assert_null(ask.tools);
  assert_true(chat("{" HI ",\"tools\":[]}"));
  assert_true(read_with(&tool_rules, RF_ASK_CHAT, CALLED("\"{\\\"b\\\": 1, \\\"a\\\": [2.0]}\"")));
  char *text = json_dumps(ask.messages, JSON_COMPACT);
  assert_string_equal(text,
                      "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\","
                      "\"function\":{\"name\":\"f\",\"arguments\":{\"b\":1,\"a\":[2.0]}}}],\"content\":null},"
                      "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"r\"}]");
  free(text);
}

static void test_tool_faults(void **state) {
  static const struct {
    const char *body, *param, *says;
  } rows[] = {
      {"{" HI ",\"tools\":7}", "tools", "a list of tools"},
      {"{" HI ",\"tools\":[7]}", "tools[0]", "expected an object"},
      {"{" HI ",\"tools\":[{}]}", "tools[0].type", "expected \"function\""},
      {"{" HI ",\"tools\":[{\"type\":\"function\"}]}", "tools[0].function", "expected an object"},
      {"{" HI ",\"tools\":[" TOOL("a b") "]}", "tools[0].function.name", "letters"},
      {"{" HI ",\"tools\":[" TOOL("f") "," TOOL("f") "]}", "tools[1].function.name", "same name"},
      {"{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]}",
       "tools[0].function.parameters", "JSON schema"},
      {"{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
       "\"array\"}}}]}",
       "tools[0].function.parameters", "object"},
      {"{" HI ",\"tool_choice\":\"required\"}", "tool_choice", "needs tools"},
      {"{" HI ",\"tools\":[" TOOL("f") "],\"tool_choice\":\"maybe\"}", "tool_choice", "not supported"},
      {"{" HI ",\"tools\":[" TOOL("f") "],\"tool_choice\":" TOOL("g") "}", "tool_choice", "no tool"},
      {"{" HI ",\"tools\":[" TOOL("f") "],\"tool_choice\":\"required\",\"response_format\":{\"type\":"
                                       "\"json_object\"}}",
       "tool_choice", "two forms"},
      {CALLED("\"{\""), "messages[0].tool_calls[0].function.arguments", "JSON object"},
      {CALLED("7"), "messages[0].tool_calls[0].function.arguments", "JSON object"},
      {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]}",
       "messages[0].tool_calls[0].id", "expected a text"},
      {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":7}]}", "messages[0].tool_calls", "a list"},
      {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"tool_calls\":[7]}]}", "messages[0].tool_calls",
       "only messages of the assistant"},
      {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"function_call\":{}}]}",
       "messages[0].function_call", "not supported"},
      {"{\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"x\"}]}",
       "messages[0].tool_call_id", "id of a call"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (read_with(&tool_rules, RF_ASK_CHAT, rows[i].body)) fail_msg("accepted: %s", rows[i].body);
    if (wrong.status != 400 || strcmp(wrong.param, rows[i].param) || !strstr(wrong.message, rows[i].says))
      fail_msg("%s: %d '%s' %s", rows[i].body, wrong.status, wrong.param, wrong.message);
  }
  rf_ask_rules other = tool_rules;
  other.tool_format = NULL;
  assert_false(read_with(&other, RF_ASK_CHAT, "{" HI ",\"tools\":[" TOOL("f") "]}"));
  assert_non_null(strstr(wrong.message, "unknown format"));
  other.knows_calls = false;
  assert_false(read_with(&other, RF_ASK_CHAT, CALLED("\"{}\"")));
  assert_non_null(strstr(wrong.message, "knows no tools"));
}

/* A model may have one template for conversations with tools, and one for other conversations. */
static void test_two_templates(void **state) {
  rf_ask_rules two = RULES;
  (void)state;
  rf_ask_take_templates(&two, "{{ messages }}", TOOL_TEMPLATE);
  assert_true(read_with(&two, RF_ASK_CHAT, "{" HI ",\"tools\":[" TOOL("f") "]}"));
  assert_string_equal(two.tool_format->name, "hermes");
  assert_false(read_with(&two, RF_ASK_CHAT, CALLED("\"{}\"")));
  assert_non_null(strstr(wrong.message, "knows no tools"));
  rf_ask_take_templates(&two, TOOL_TEMPLATE, "{{ messages }}");
  assert_false(read_with(&two, RF_ASK_CHAT, "{" HI ",\"tools\":[" TOOL("f") "]}"));
  assert_true(read_with(&two, RF_ASK_CHAT, CALLED("\"{}\"")));
}

/* Each body gets one error, with the status and the field that a client needs. */
static void test_faults(void **state) {
  static const struct {
    rf_ask_kind kind;
    const char *body, *param, *says;
    int status;
  } rows[] = {
      {1, "", "", "empty", 400},
      {1, " \n", "", "empty", 400},
      {1, "{\"prompt\":", "", "not valid JSON", 400},
      {1, "[1]", "", "is a list", 400},
      {1, "7", "", "not valid JSON", 400},
      {1, "{\"prompt\":\"a\",\"prompt\":\"b\"}", "", "a name twice", 400},
      {1, "{\"prompt\":\"\xff\"}", "", "not UTF-8", 400},
      {1, "{\"prompt\":\"\\u0000\"}", "", "U+0000", 400},
      {1, "{\"prompt\":\"a\"} x", "", "not valid JSON", 400},
      {1, "{\"prompt\":\"a\",\"seed\":99999999999999999999}", "seed", "wrong type", 400},
      {1, "{}", "prompt", "missing", 400},
      {1, "{\"prompt\":null}", "prompt", "missing", 400},
      {1, "{\"model\":\"other\",\"prompt\":\"a\"}", "model", "does not exist", 404},
      {1, "{\"model\":7,\"prompt\":\"a\"}", "model", "wrong type", 400},
      {1, "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens", "out of range", 400},
      {1, "{\"prompt\":\"a\",\"max_tokens\":-5}", "max_tokens", "out of range", 400},
      {1, "{\"prompt\":\"a\",\"max_tokens\":2.5}", "max_tokens", "wrong type", 400},
      {1, "{\"prompt\":\"a\",\"max_tokens\":\"ten\"}", "max_tokens", "wrong type", 400},
      {1, "{\"prompt\":\"a\",\"max_tokens\":1e300}", "max_tokens", "wrong type", 400},
      {1, "{\"prompt\":\"a\",\"max_tokens\":true}", "max_tokens", "wrong type", 400},
      {1, "{\"prompt\":\"a\",\"temperature\":-1}", "temperature", "out of range", 400},
      {1, "{\"prompt\":\"a\",\"top_p\":7}", "top_p", "out of range", 400},
      {1, "{\"prompt\":\"a\",\"n\":129}", "n", "out of range", 400},
      {1, "{\"prompt\":\"a\",\"n\":41}", "n", "asks for 41 answers", 400},
      {1, "{\"prompt\":[\"a\",\"b\"],\"n\":30}", "n", "asks for 60 answers", 400},
      {1, "{\"prompt\":\"a\",\"n\":2,\"best_of\":3}", "best_of", "not supported", 400},
      {1, "{\"prompt\":\"a\",\"n\":2,\"best_of\":3.0}", "best_of", "not supported", 400},
      {1, "{\"prompt\":\"a\",\"logprobs\":21}", "logprobs", "out of range", 400},
      {1, "{\"prompt\":\"a\",\"stop\":[\"\"]}", "stop", "1 to 256 bytes", 400},
      {1, "{\"prompt\":\"a\",\"stop\":[1]}", "stop", "wrong type", 400},
      {1, "{\"prompt\":\"a\",\"stop\":\"\"}", "stop", "1 to 256 bytes", 400},
      {1, "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", "logit_bias", "not a token id", 400},
      {1, "{\"prompt\":\"a\",\"logit_bias\":{\"100\":1}}", "logit_bias", "0 to 99", 400},
      {1, "{\"prompt\":\"a\",\"logit_bias\":{\"1\":\"x\"}}", "logit_bias", "wrong type", 400},
      {1, "{\"prompt\":\"a\",\"logit_bias\":[1]}", "logit_bias", "wrong type", 400},
      {1, "{\"prompt\":\"a\",\"stream\":1}", "stream", "true or false", 400},
      {1, "{\"prompt\":\"a\",\"stream_options\":{}}", "stream_options", "needs stream", 400},
      {1, "{\"prompt\":\"a\",\"prompt_logprobs\":21}", "prompt_logprobs", "out of range", 400},
      {1, "{\"prompt\":\"a\",\"prompt_logprobs\":-1}", "prompt_logprobs", "out of range", 400},
      {1, "{\"prompt\":\"a\",\"prompt_logprobs\":0,\"stream\":true}", "prompt_logprobs", "stream", 400},
      {1, "{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix", "not supported", 400},
      {1, "{\"prompt\":\"a\",\"structured_outputs\":{\"grammar\":\"a\"}}", "structured_outputs",
       "grammar is not supported", 400},
      {1, "{\"prompt\":\"a\",\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"a\"]}}",
       "structured_outputs", "two forms", 400},
      {1, "{\"prompt\":\"a\",\"guided_regex\":3}", "guided_regex", "expected a text", 400},
      {1, "{\"prompt\":\"a\",\"guided_choice\":\"a\"}", "guided_choice", "expected a list", 400},
      {1, "{\"prompt\":\"a\",\"guided_json\":3}", "guided_json", "expected a schema", 400},
      {1, "{\"prompt\":\"a\",\"guided_json\":{},\"guided_regex\":\"a\"}", "guided_regex", "two forms", 400},
      {1, "{\"prompt\":\"a\",\"guided_grammar\":\"a\"}", "guided_grammar", "not supported", 400},
      {2, "{\"messages\":[]}", "messages", "empty", 400},
      {2, "{\"messages\":\"hello\"}", "messages", "wrong type", 400},
      {2, "{\"messages\":[7]}", "messages[0]", "expected an object", 400},
      {2, "{\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}", "messages[0].role", "expected system",
       400},
      {2, "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "messages[0].tool_call_id",
       "id of a call", 400},
      {2, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content", "expected a text", 400},
      {2, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
       "messages[0].content", "only text", 400},
      {2, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"top_logprobs\":2}", "top_logprobs",
       "needs logprobs", 400},
      {2, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":5}", "logprobs",
       "true or false", 400},
      {2,
       "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":\"xml\"}"
       "}",
       "response_format", "not supported", 400},
      {4, "{}", "prompt", "missing", 400},
      {4, "{\"prompt\":[1]}", "prompt", "wrong type", 400},
      {4, "{\"prompt\":\"a\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "messages", "both", 400},
      {8, "{\"tokens\":\"a\"}", "tokens", "wrong type", 400},
      {8, "{\"tokens\":[100]}", "tokens", "out of range", 400},
      {8, "{}", "tokens", "missing", 400},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (read_kind(rows[i].kind, rows[i].body)) fail_msg("accepted: %s", rows[i].body);
    if (wrong.status != rows[i].status || strcmp(wrong.param, rows[i].param) ||
        !strstr(wrong.message, rows[i].says))
      fail_msg("%s: %d '%s' %s", rows[i].body, wrong.status, wrong.param, wrong.message);
  }
}

/* A model may be an adapter. A name that is only reserved is unknown. */
static void test_adapters(void **state) {
  (void)state;
  rf_ask_rules rules = RULES;
  const char body[] = "{\"model\":\"sql\",\"prompt\":\"Hi\"}";
  int64_t created = 0;
  char name[RF_ADAPTER_NAME + 1];
  rules.adapters = rf_named_adapters_new();
  assert_true(rf_named_adapter_reserve(rules.adapters, "sql"));
  assert_false(rf_named_adapter_reserve(rules.adapters, "sql"));
  assert_false(rf_named_adapter_at(rules.adapters, 0, name, &created));
  for (int loaded = 0; loaded < 3; loaded++) {
    rf_ask_free(&ask);
    bool good = rf_ask_read(&rules, RF_ASK_COMPLETION, body, sizeof body - 1, &ask, &wrong);
    assert_int_equal(good, loaded == 1);
    if (good) assert_int_equal(ask.request.adapter, 7);
    if (good) assert_string_equal(ask.model, "sql");
    else assert_int_equal(wrong.status, 404);
    assert_int_equal(rf_named_adapter_settle(rules.adapters, "sql", loaded ? 0 : 7), loaded == 1 ? 7 : 0);
    assert_int_equal(rf_named_adapter_at(rules.adapters, 0, name, &created), loaded == 0);
  }
  rf_named_adapters_free(rules.adapters);
  assert_true(read_kind(RF_ASK_LOAD, "{\"lora_name\":\"a\",\"lora_path\":\"b\",\"load_inplace\":false}"));
  assert_string_equal(ask.lora_name, "a");
  assert_string_equal(ask.lora_path, "b");
  assert_false(read_kind(RF_ASK_LOAD, "{\"lora_name\":\"a\",\"lora_path\":\"b\",\"load_inplace\":true}"));
  assert_string_equal(wrong.code, "unsupported_field");
  assert_false(read_kind(RF_ASK_LOAD, "{\"lora_name\":\"a\"}"));
  assert_string_equal(wrong.code, "missing_field");
  assert_true(read_kind(RF_ASK_UNLOAD, "{\"lora_name\":\"a\"}"));
}

/* Levels of nesting are bounded, so a body cannot exhaust the stack. */
static void test_deep(void **state) {
  enum { LEVELS = 50000 };
  char *body = calloc(1, 2 * LEVELS + 32);
  (void)state;
  strcpy(body, "{\"prompt\":");
  memset(body + 10, '[', LEVELS);
  memset(body + 10 + LEVELS, ']', LEVELS);
  strcpy(body + 10 + 2 * LEVELS, "}");
  assert_false(completion(body));
  assert_non_null(strstr(wrong.message, "too many levels"));
  free(body);
}

/* Unknown fields are named, in characters that a header may have. --strict refuses them. */
static void test_unknown(void **state) {
  rf_ask_rules strict = RULES;
  const char *body = "{\"prompt\":\"a\",\"fro\\nb\\\"\":1,\"tokens\":2}";
  (void)state;
  assert_true(completion(body));
  assert_string_equal(ask.ignored, "fro?b?, tokens");
  rf_ask_free(&ask);
  strict.strict = true;
  assert_false(rf_ask_read(&strict, RF_ASK_COMPLETION, body, strlen(body), &ask, &wrong));
  assert_string_equal(wrong.code, "unknown_field");
}

static void test_error_json(void **state) {
  rf_body out = {0};
  (void)state;
  rf_wrong_set(&wrong, 400, "a_code", "n", "say \"%s\"", "\xff\n");
  rf_wrong_json(&wrong, &out);
  assert_string_equal(out.at, "{\"error\":{\"message\":\"say \\\"\xef\xbf\xbd\\n\\\"\",\"type\":"
                              "\"invalid_request_error\",\"param\":\"n\",\"code\":\"a_code\"}}");
  rf_body_free(&out);
}

/* Strings of any bytes become JSON that jansson reads back. */
static void test_strings(void **state) {
  (void)state;
  for (int first = 0; first < 256; first++)
    for (int second = 0; second < 256; second += 5) {
      const char text[] = {'a', (char)first, (char)second, (char)0x80, 'z'};
      rf_body out = {0};
      rf_body_text(&out, "[");
      rf_body_string(&out, text, sizeof text);
      rf_body_text(&out, "]");
      json_t *json = json_loadb(out.at, out.bytes, JSON_ALLOW_NUL, NULL);
      if (!json) fail_msg("not JSON: %02x %02x: %s", (unsigned)first, (unsigned)second, out.at);
      json_decref(json);
      rf_body_free(&out);
    }
}

/* Characters at which clients end a line are escaped, and their neighbours are not. */
static void test_line_ends(void **state) {
  static const char TEXT[] = "\xc2\x84\xc2\x85\xe2\x80\xa7\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa\v\x1c";
  rf_body out = {0};
  (void)state;
  rf_body_string(&out, TEXT, sizeof TEXT - 1);
  assert_string_equal(out.at, "\"\xc2\x84\\u0085\xe2\x80\xa7\\u2028\\u2029\xe2\x80\xaa\\u000b\\u001c\"");
  rf_body_free(&out);
}

/* The model sees the arguments of its own calls again: integers next to a number of more than 64 bits
 * stay integers, and a template that prints a text gets the text of the client. */
static void test_arguments(void **state) {
  (void)state;
#define LARGE "{\\\"a\\\": 3, \\\"b\\\": 12345678901234567890, \\\"c\\\": \\\"x\\\\u0000y\\\"}"
  assert_true(read_with(&tool_rules, RF_ASK_CHAT, CALLED("\"" LARGE "\"")));
  const json_t *call = json_array_get(json_object_get(json_array_get(ask.messages, 0), "tool_calls"), 0),
               *given = json_object_get(json_object_get(call, "function"), "arguments");
  assert_int_equal(json_integer_value(json_object_get(given, "a")), 3);
  assert_true(json_is_real(json_object_get(given, "b")));
  assert_int_equal(json_string_length(json_object_get(given, "c")), 3);
  rf_ask_rules deepseek = RULES;
  rf_ask_take_templates(&deepseek, DEEPSEEK, DEEPSEEK);
  assert_true(read_with(&deepseek, RF_ASK_CHAT, CALLED("\"{\\\"price\\\": 19.99, \\\"n\\\":1e2}\"")));
  call = json_array_get(json_object_get(json_array_get(ask.messages, 0), "tool_calls"), 0);
  given = json_object_get(json_object_get(call, "function"), "arguments");
  assert_string_equal(json_string_value(given), "{\"price\": 19.99, \"n\":1e2}");
  assert_true(read_with(&deepseek, RF_ASK_CHAT, CALLED("{\"price\": 19.5}")));
  call = json_array_get(json_object_get(json_array_get(ask.messages, 0), "tool_calls"), 0);
  given = json_object_get(json_object_get(call, "function"), "arguments");
  assert_string_equal(json_string_value(given), "{\"price\": 19.5}");
}

/* Lists of many small values need many times the memory of their text. */
static void test_many_values(void **state) {
  enum { MANY = 300000 };
  static char body[4 * MANY + 100];
  (void)state;
  static const struct {
    const char *value;
    bool good;
  } rows[] = {{"{},", false}, {"[],", false}, {"7,", true}, {"\"\",", true}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char *end = body + sprintf(body, "{\"prompt\":\"x\",\"metadata\":[");
    for (int k = 0; k < MANY; k++) end = stpcpy(end, rows[i].value);
    strcpy(end, "0]}");
    assert_int_equal(completion(body), rows[i].good);
    if (rows[i].good) continue;
    assert_int_equal(wrong.status, 400);
    assert_string_equal(wrong.code, "too_many_values");
  }
  assert_int_equal(rf_ask_units("{\"a:[{,\\\",\":[1,2]}", 18), 6 + 2 + 3 + 1);
}

/* An accepted request keeps only what its answer needs. */
static void test_trim(void **state) {
  (void)state;
  assert_true(completion("{\"prompt\":\"abc\",\"metadata\":[1,2],\"stop\":[\"s\"],\"unknown\":{}}"));
  rf_ask_trim(&ask);
  assert_int_equal(json_object_size(ask.body), 1);
  assert_string_equal(ask.stop[0], "s");
  assert_true(completion("{\"prompt\":\"abc\",\"echo\":true}"));
  rf_ask_trim(&ask);
  assert_non_null(json_object_get(ask.body, "prompt"));
  assert_true(read_with(&tool_rules, RF_ASK_CHAT, "{" HI ",\"tools\":[" TOOL("f") "]}"));
  rf_ask_trim(&ask);
  assert_null(ask.messages);
  assert_int_equal(json_array_size(ask.tools), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_arguments), cmocka_unit_test(test_many_values),
      cmocka_unit_test(test_trim),      cmocka_unit_test(test_line_ends),
      cmocka_unit_test(test_fields),    cmocka_unit_test(test_max_tokens),
      cmocka_unit_test(test_prompts),   cmocka_unit_test(test_messages),
      cmocka_unit_test(test_faults),    cmocka_unit_test(test_deep),
      cmocka_unit_test(test_unknown),   cmocka_unit_test(test_error_json),
      cmocka_unit_test(test_strings),   cmocka_unit_test(test_scores),
      cmocka_unit_test(test_tools),     cmocka_unit_test(test_tool_faults),
      cmocka_unit_test(test_adapters),  cmocka_unit_test(test_two_templates),
  };
  tool_rules = RULES;
  rf_ask_take_templates(&tool_rules, TOOL_TEMPLATE, TOOL_TEMPLATE);
  return cmocka_run_group_tests(tests, NULL, forget);
}
