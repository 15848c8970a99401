/* Reads any bytes as the text of an answer to a request with tools. Whatever the text, the message
 * and the deltas are JSON, and the deltas of a stream join to the message. The first byte chooses
 * the format, and whether a call was required. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/tool_calls.h"

static const char *const TEMPLATES[] = {"<tool_call>",
                                        "[TOOL_CALLS]",
                                        "[TOOL_CALLS] [ARGS]",
                                        "<｜tool▁calls▁begin｜><｜tool▁sep｜>",
                                        "<｜tool▁calls▁begin｜>```json",
                                        "\"parameters\": ipython"};

static void expect(bool holds) {
  if (!holds) abort();
}

static json_t *parse(const rf_body *text) {
  json_t *json = json_loadb(text->at, text->bytes, JSON_ALLOW_NUL, NULL);
  expect(json != NULL);
  return json;
}

/* Adds the arguments of a delta's calls to one text for each call. */
static void join(const json_t *delta, rf_body *arguments, size_t most) {
  const json_t *call;
  size_t i;
  json_array_foreach (json_object_get(delta, "tool_calls"), i, call) {
    size_t index = (size_t)json_integer_value(json_object_get(call, "index"));
    const json_t *text = json_object_get(json_object_get(call, "function"), "arguments");
    expect(json_is_string(text));
    if (index < most) rf_body_bytes(&arguments[index], json_string_value(text), json_string_length(text));
  }
}

static void check_message(const rf_tool_calls *c, const rf_body *arguments, size_t most) {
  rf_body text = {0};
  rf_body_text(&text, "{");
  rf_tool_calls_message(c, &text);
  rf_body_text(&text, "}");
  json_t *message = parse(&text), *calls = json_object_get(message, "tool_calls");
  expect(json_array_size(calls) == (size_t)c->count);
  for (size_t i = 0; i < json_array_size(calls) && i < most; i++) {
    const json_t *function = json_object_get(json_array_get(calls, i), "function"),
                 *of = json_object_get(function, "arguments");
    /* A character that a delta splits becomes U+FFFD, so only whole characters can be compared. */
    if (strstr(json_string_value(of), "\xef\xbf\xbd")) continue;
    expect(json_string_length(of) == arguments[i].bytes);
    expect(!memcmp(json_string_value(of), arguments[i].at ? arguments[i].at : "", arguments[i].bytes));
  }
  json_decref(message);
  rf_body_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  enum { COMPARED = 4 };
  rf_body arguments[COMPARED] = {{0}};
  rf_tool_calls calls;
  if (bytes < 1 || bytes > 1024) return 0;
  json_t *tools = json_loads("[{\"function\":{\"name\":\"f\"}}]", 0, NULL);
  const rf_tool_format *format = rf_tool_format_of(TEMPLATES[data[0] % 6]);
  rf_tool_calls_start(&calls, format, tools, data[0] & 64, data[0] & 128, true);
  for (size_t i = 1; i < bytes; i++) {
    rf_tool_calls_add(&calls, (const char *)data + i, 1);
    bool whole = i + 1 == bytes || (data[i + 1] & 0xc0) != 0x80; /* servers get whole characters */
    if (i + 1 == bytes) rf_tool_calls_end(&calls, false);
    if (!whole || !rf_tool_calls_news(&calls)) continue;
    rf_body text = {0};
    rf_tool_calls_delta(&calls, &text);
    json_t *delta = parse(&text);
    join(delta, arguments, COMPARED);
    json_decref(delta);
    rf_body_free(&text);
  }
  check_message(&calls, arguments, COMPARED);
  for (int i = 0; i < COMPARED; i++) rf_body_free(&arguments[i]);
  rf_tool_calls_free(&calls);
  json_decref(tools);
  return 0;
}
