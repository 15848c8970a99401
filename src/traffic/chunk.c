/* chunk.c - see chunk.h. */
#include "traffic/chunk.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"

void rf_chunk_printable(char *to, size_t size, const char *from, size_t bytes) {
  size_t n = 0;
  for (size_t i = 0; i < bytes && n + 1 < size; i++)
    if (from[i] >= ' ' && from[i] < 127) to[n++] = from[i];
  to[n] = 0;
}

static void copy_text(char *to, size_t size, const json_t *text) {
  if (json_is_string(text)) rf_chunk_printable(to, size, json_string_value(text), json_string_length(text));
}

/* Copies the message of "error", which is an object or a text. */
static void copy_error(const json_t *json, char *to, size_t size) {
  const json_t *error = json_object_get(json, "error");
  *to = 0;
  copy_text(to, size, error);
  if (!*to) copy_text(to, size, json_object_get(error, "message"));
  if (!*to) copy_text(to, size, json_object_get(json, "message"));
  if (!*to) copy_text(to, size, json_object_get(json, "detail"));
}

void rf_chunk_error_text(const char *body, size_t bytes, char *text, size_t size) {
  json_t *json = json_loadb(body, bytes, JSON_ALLOW_NUL, NULL);
  copy_error(json, text, size);
  json_decref(json);
  if (!*text) rf_chunk_printable(text, size, body, bytes);
}

/* An event with text carries tokens. An event with an empty text also carries tokens, which are
 * bytes of an incomplete character. But the first and the last event of an answer carry no tokens
 * if their text is empty. */
static void read_choice(const json_t *choice, rf_chunk *chunk) {
  static const char *const TEXTS[] = {"content", "reasoning_content", "reasoning"};
  const json_t *delta = json_object_get(choice, "delta"), *text = json_object_get(choice, "text"),
               *finish = json_object_get(choice, "finish_reason");
  const bool ends = finish && !json_is_null(finish), begins = json_object_get(delta, "role") != NULL;
  bool empty = json_is_string(text) && !json_string_length(text), filled = json_string_length(text) > 0;
  for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
    const json_t *part = json_object_get(delta, TEXTS[i]);
    filled |= json_string_length(part) > 0;
    empty |= json_is_string(part) && !json_string_length(part);
  }
  filled |= json_array_size(json_object_get(delta, "tool_calls")) > 0;
  chunk->tokens |= filled || (empty && !ends && !begins);
  chunk->finish |= ends;
}

static rf_status read_usage(const json_t *usage, rf_chunk *chunk, rf_error *error) {
  const int64_t most = INT64_C(1) << 40;
  if (!json_is_object(usage)) return RAFTER_OK;
  RF_TRY(rf_json_int_or(usage, "prompt_tokens", "usage", 0, most, -1, &chunk->input_tokens, error));
  return rf_json_int_or(usage, "completion_tokens", "usage", 0, most, -1, &chunk->output_tokens, error);
}

rf_status rf_chunk_parse(const char *data, size_t bytes, rf_chunk *chunk, rf_error *error) {
  rf_status status = RAFTER_OK;
  json_error_t fault;
  json_t *json = NULL, *choice;
  size_t i;
  *chunk = (rf_chunk){.input_tokens = -1, .output_tokens = -1};
  chunk->last = bytes == 6 && !memcmp(data, "[DONE]", 6);
  if (chunk->last) return RAFTER_OK;
  json = json_loadb(data, bytes, JSON_ALLOW_NUL, &fault); /* a token may be the byte 0 */
  if (!json_is_object(json))
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "an event of the stream is not a JSON object (%s)",
                  json ? rf_json_type(json) : fault.text));
  if (json_is_object(json_object_get(json, "error")) || json_is_string(json_object_get(json, "error"))) {
    chunk->refused = true;
    copy_error(json, chunk->message, sizeof chunk->message);
    goto done;
  }
  json_array_foreach (json_object_get(json, "choices"), i, choice) read_choice(choice, chunk);
  RF_GO(read_usage(json_object_get(json, "usage"), chunk, error));
done:
  json_decref(json);
  return status;
}
