/* example_two.c - splits a row of preferences into a prompt and two answers, and reads the prompt
 * with each answer as tokens. */
#define _GNU_SOURCE
#include "train/example_parts.h"

#include "formats/json_lines.h"

#include <stdlib.h>
#include <string.h>

/* The parts of a row with two answers. All parts are texts, or all are lists of messages, or all
 * are lists of ids. */
typedef struct row_parts {
  json_t *prompt, *answer[2];
  bool plain; /* true if no chat template renders the texts */
} row_parts;

static void free_parts(row_parts *parts) {
  json_decref(parts->prompt);
  for (int i = 0; i < 2; i++) json_decref(parts->answer[i]);
}

static bool is_ids(const json_t *value) {
  return json_is_array(value) && json_is_integer(json_array_get(value, 0));
}

static bool asks(const json_t *message) {
  const char *role = json_string_value(json_object_get(message, "role"));
  return role && strcmp(role, "assistant") != 0;
}

static json_t *slice(const json_t *list, size_t first, size_t last) {
  json_t *part = rf_must(json_array());
  for (; first < last; first++) json_array_append(part, json_array_get(list, first));
  return part;
}

/* Splits two whole conversations. The prompt is the list of messages with which both conversations
 * start. */
static void split_messages(const json_t *const whole[2], row_parts *parts) {
  size_t n[2] = {json_array_size(whole[0]), json_array_size(whole[1])}, most = n[0] < n[1] ? n[0] : n[1],
         same = 0;
  while (same + 1 < most && json_equal(json_array_get(whole[0], same), json_array_get(whole[1], same)))
    same++;
  parts->prompt = slice(whole[0], 0, same);
  for (int i = 0; i < 2; i++) parts->answer[i] = slice(whole[i], same, n[i]);
}

/* Splits two whole texts before their first different character. As in TRL, a space before this
 * character belongs to the answers. */
static void split_texts(const json_t *const whole[2], row_parts *parts) {
  const char *text[2] = {json_string_value(whole[0]), json_string_value(whole[1])};
  size_t n[2] = {json_string_length(whole[0]), json_string_length(whole[1])}, same = 0;
  while (same < n[0] && same < n[1] && text[0][same] == text[1][same]) same++;
  while (same && ((unsigned char)text[0][same] & 0xc0) == 0x80) same--; /* whole characters */
  if (same && text[0][same - 1] == ' ') same--;
  parts->prompt = rf_must(json_stringn(text[0], same));
  for (int i = 0; i < 2; i++) parts->answer[i] = rf_must(json_stringn(text[i] + same, n[i] - same));
  parts->plain = true;
}

static json_t *one_message(const char *role, json_t *content) {
  return rf_must(json_pack("[{s:s, s:O}]", "role", role, "content", content));
}

static rf_status no_prompt(const rf_example_reader *reader, rf_row_place place, rf_error *error) {
  return RF_FAIL(
      error, RAFTER_FAILED,
      "name the field of the prompt, for example --fields prompt=question,chosen=good,rejected=bad",
      "a row of preferences has no prompt (%s, line %lld: expected \"%s\" or \"%s\")", place.path,
      (long long)place.line, reader->names[RF_ROW_PROMPT], reader->names[RF_ROW_MESSAGES]);
}

/* Reads answers that are lists of messages. If the row has no prompt of messages, both answers may
 * be whole conversations. */
static rf_status split_lists(const rf_example_reader *reader, rf_row_place place, json_t *prompt,
                             json_t *messages, json_t *const answer[2], row_parts *parts, rf_error *error) {
  const json_t *const whole[2] = {answer[0], answer[1]};
  json_t *first = json_array_get(answer[0], 0);
  if (!json_is_array(prompt) && asks(first) && json_equal(first, json_array_get(answer[1], 0)))
    return split_messages(whole, parts), RAFTER_OK;
  if (!prompt) prompt = messages;
  if (!prompt) return no_prompt(reader, place, error);
  if (!json_is_array(prompt) && !json_is_string(prompt))
    return rf_row_bad_field(reader, place, RF_ROW_PROMPT, "a string or a list of messages", prompt, error);
  parts->prompt = json_is_array(prompt) ? json_incref(prompt) : one_message("user", prompt);
  for (int i = 0; i < 2; i++) parts->answer[i] = json_incref(answer[i]);
  return RAFTER_OK;
}

/* Answers that are texts. */
static rf_status split_strings(const rf_example_reader *reader, rf_row_place place, json_t *prompt,
                               json_t *messages, json_t *const answer[2], row_parts *parts, rf_error *error) {
  const json_t *const whole[2] = {answer[0], answer[1]};
  if (!prompt) prompt = messages;
  if (!prompt) return split_texts(whole, parts), RAFTER_OK;
  if (!json_is_array(prompt) && !json_is_string(prompt))
    return rf_row_bad_field(reader, place, RF_ROW_PROMPT, "a string or a list of messages", prompt, error);
  parts->prompt = json_incref(prompt);
  for (int i = 0; i < 2; i++)
    parts->answer[i] = json_is_array(prompt) ? one_message("assistant", answer[i]) : json_incref(answer[i]);
  return RAFTER_OK;
}

static rf_status part_row(const rf_example_reader *reader, rf_row_place place, const json_t *row,
                          row_parts *parts, rf_error *error) {
  json_t *prompt = rf_row_field(reader, row, RF_ROW_PROMPT),
         *messages = rf_row_field(reader, row, RF_ROW_MESSAGES),
         *tokens = rf_row_field(reader, row, RF_ROW_TOKENS),
         *const answer[2] = {rf_row_field(reader, row, RF_ROW_CHOSEN),
                             rf_row_field(reader, row, RF_ROW_REJECTED)};
  for (int i = 0; i < 2; i++)
    if (!answer[i])
      return RF_FAIL(
          error, RAFTER_FAILED,
          "give rows with \"prompt\", \"chosen\" and \"rejected\", name them with --fields, or "
          "leave --loss out to train on single texts",
          "a row has no pair of answers (%s, line %lld: expected the fields \"%s\" and \"%s\", got "
          "no \"%s\")",
          place.path, (long long)place.line, reader->names[RF_ROW_CHOSEN], reader->names[RF_ROW_REJECTED],
          reader->names[RF_ROW_CHOSEN + i]);
  if (tokens || is_ids(prompt) || is_ids(answer[0]) || is_ids(answer[1])) {
    if (!tokens && !prompt) return no_prompt(reader, place, error);
    parts->prompt = json_incref(tokens ? tokens : prompt);
    for (int i = 0; i < 2; i++) parts->answer[i] = json_incref(answer[i]);
    return RAFTER_OK;
  }
  for (int i = 0; i < 2; i++)
    if (!json_is_string(answer[i]) && !json_is_array(answer[i]))
      return rf_row_bad_field(reader, place, RF_ROW_CHOSEN + i, "a string or a list of messages", answer[i],
                              error);
  if (json_typeof(answer[0]) != json_typeof(answer[1]))
    return rf_row_bad_field(reader, place, RF_ROW_REJECTED,
                            json_is_string(answer[0]) ? "a string, like the chosen answer"
                                                      : "a list of messages, like the chosen answer",
                            answer[1], error);
  return json_is_array(answer[0]) ? split_lists(reader, place, prompt, messages, answer, parts, error)
                                  : split_strings(reader, place, prompt, messages, answer, parts, error);
}

/* True if an answer has no text and calls no tool. */
static bool says_nothing(const json_t *answer) {
  size_t i;
  const json_t *message;
  if (json_is_string(answer)) return !json_string_length(answer);
  json_array_foreach (answer, i, message) {
    const json_t *content = json_object_get(message, "content");
    bool empty =
        !content || json_is_null(content) || (json_is_string(content) && !json_string_length(content));
    if (!json_is_object(message) || !empty || json_array_size(json_object_get(message, "tool_calls")))
      return false;
  }
  return true;
}

static rf_status read_answer(rf_example_reader *reader, rf_row_place place, const json_t *row,
                             const row_parts *parts, int which, bool ids, rf_example *example,
                             rf_error *error) {
  example->ids.count = 0;
  example->is_example = true;
  if (ids) {
    RF_TRY(rf_row_add_ids(reader, place,
                          rf_row_field(reader, row, RF_ROW_TOKENS) ? RF_ROW_TOKENS : RF_ROW_PROMPT,
                          parts->prompt, &example->ids, error));
    int64_t prompt = example->ids.count;
    RF_TRY(rf_row_add_ids(reader, place, RF_ROW_CHOSEN + which, parts->answer[which], &example->ids, error));
    rf_row_reserve_mask(example);
    for (int64_t i = 0; i < example->ids.count; i++) example->mask[i] = i >= prompt;
    return RAFTER_OK;
  }
  RF_TRY(rf_row_seek_chat(reader, error));
  if (!parts->plain)
    return rf_row_read_pair(reader, place, row, parts->prompt, parts->answer[which], example, error);
  RF_TRY(rf_row_need_tokenizer(reader, place, error));
  rf_status status = rf_row_join_texts(reader, parts->prompt, parts->answer[which], example, error);
  return status == RAFTER_OK ? status : rf_row_located(place, error);
}

rf_status rf_example_read_two(rf_example_reader *reader, const char *path, int64_t line, const char *text,
                              size_t bytes, rf_example two[2], bool empty[2], rf_error *error) {
  rf_status status = RAFTER_OK;
  const rf_row_place place = {path, line};
  json_t *row = NULL;
  row_parts parts = {0};
  RF_TRY(rf_json_line(text, bytes, path, line, &row, error));
  RF_GO(part_row(reader, place, row, &parts, error));
  bool ids = rf_row_field(reader, row, RF_ROW_TOKENS) || is_ids(parts.prompt) || is_ids(parts.answer[0]) ||
             is_ids(parts.answer[1]);
  for (int i = 0; i < 2; i++) {
    empty[i] = says_nothing(parts.answer[i]);
    two[i].ids.count = 0;
    if (!empty[i]) RF_GO(read_answer(reader, place, row, &parts, i, ids, &two[i], error));
  }
done:
  free_parts(&parts);
  json_decref(row);
  return status;
}
