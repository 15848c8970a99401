/* example.c - renders, tokenizes and masks the rows of a .jsonl file. */
#define _GNU_SOURCE
#include "train/example_parts.h"

#include "base/file.h"
#include "formats/json_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const FIELD_NAMES[RF_ROW_FIELDS] = {"text",   "tokens",     "mask",   "messages", "tools",
                                                       "prompt", "completion", "chosen", "rejected"};

static rf_status rename_field(rf_example_reader *reader, const char *pair, rf_error *error) {
  const char *equals = strchr(pair, '=');
  for (int i = 0; equals && equals[1] && i < RF_ROW_FIELDS; i++) {
    if (strlen(FIELD_NAMES[i]) != (size_t)(equals - pair) ||
        strncmp(FIELD_NAMES[i], pair, (size_t)(equals - pair)) != 0)
      continue;
    free(reader->names[i]);
    reader->names[i] = rf_must(strdup(equals + 1));
    return RAFTER_OK;
  }
  return RF_FAIL(
      error, RAFTER_INVALID, "for example --fields prompt=question,completion=answer",
      "bad field (--fields: expected text, tokens, mask, messages, tools, prompt, completion, chosen "
      "or rejected, '=' and the field's name in the rows, got %.100s)",
      pair);
}

rf_status rf_example_open(const rf_example_options *options, rf_example_reader **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_example_reader *reader = rf_must(calloc(1, sizeof *reader));
  reader->options = *options;
  for (int i = 0; i < RF_ROW_FIELDS; i++) reader->names[i] = rf_must(strdup(FIELD_NAMES[i]));
  char *copy = rf_must(strdup(options->fields ? options->fields : "")), *rest = copy;
  for (char *pair; status == RAFTER_OK && (pair = strsep(&rest, ",")) != NULL;)
    if (*pair) status = rename_field(reader, pair, error);
  free(copy);
  if (status == RAFTER_OK) *out = reader;
  else rf_example_close(reader);
  return status;
}

void rf_example_close(rf_example_reader *reader) {
  if (!reader) return;
  for (int i = 0; i < RF_ROW_FIELDS; i++) free(reader->names[i]);
  rf_chat_free(reader->chat);
  free(reader);
}

void rf_example_free(rf_example *example) {
  rf_ids_free(&example->ids);
  free(example->mask);
  *example = (rf_example){0};
}

/* Opens reader->chat. If the model has no chat template, reader->chat stays NULL. */
rf_status rf_row_seek_chat(rf_example_reader *reader, rf_error *error) {
  const char *template = reader->options.template ? reader->options.template : "",
             *folder = reader->options.model_folder;
  if (reader->chat_sought) return RAFTER_OK;
  if (*template && strcmp(template, "none"))
    RF_TRY(rf_chat_read(template, reader->options.tokenizer, &reader->chat, error));
  else if (!*template && folder && *folder) RF_TRY(rf_chat_find(folder, &reader->chat, error));
  reader->chat_sought = true;
  return RAFTER_OK;
}

static const char *kind_of(const json_t *value) {
  static const char *const names[] = {"an object", "a list", "a string", "an integer",
                                      "a number",  "true",   "false",    "null"};
  return value ? names[json_typeof(value)] : "nothing";
}

json_t *rf_row_field(const rf_example_reader *reader, const json_t *row, int which) {
  json_t *value = json_object_get(row, reader->names[which]);
  return json_is_null(value) ? NULL : value;
}

rf_status rf_row_bad_field(const rf_example_reader *reader, rf_row_place place, int which,
                           const char *expected, const json_t *value, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "correct the row; docs/formats.md describes the formats of rows",
                 "bad row (%s, line %lld, field \"%s\": expected %s, got %s)", place.path,
                 (long long)place.line, reader->names[which], expected, kind_of(value));
}

rf_status rf_row_located(rf_row_place place, rf_error *error) {
  if (!error) return RAFTER_FAILED;
  return RF_FAIL(error, RAFTER_FAILED, *error->hint ? error->hint : NULL, "%s (%s, line %lld)",
                 error->message, place.path, (long long)place.line);
}

rf_status rf_row_need_tokenizer(const rf_example_reader *reader, rf_row_place place, rf_error *error) {
  if (reader->options.tokenizer) return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_FAILED,
      "give --tokenizer DIR (a shape without one: train on bytes with vocab=256), or rows with \"tokens\"",
      "the model has no tokenizer (%s, line %lld)", place.path, (long long)place.line);
}

void rf_row_reserve_mask(rf_example *example) {
  if (example->ids.count <= example->mask_capacity) return;
  example->mask_capacity = example->ids.count * 2;
  example->mask = rf_must(realloc(example->mask, (size_t)example->mask_capacity));
}

/* Masks the tokens that overlap a range of bytes of the text. Compares the bytes of each token with
 * the text to find the position of the token. If the tokenizer normalizes text, tokens and text may
 * differ. Then returns false. */
static bool mask_by_running(const rf_tokenizer *tokenizer, const char *text, size_t bytes,
                            const rf_range *range, int64_t count, rf_example *example) {
  size_t at = 0;
  int64_t r = 0;
  for (int64_t i = 0; i < example->ids.count; i++) {
    rf_span piece = rf_tokenizer_text_of(tokenizer, example->ids.at[i]);
    if (piece.bytes > bytes - at || memcmp(piece.at, text + at, piece.bytes) != 0) {
      if (!piece.bytes || piece.at[0] != ' ') return false;
      piece.at++;
      piece.bytes--; /* Some tokenizers insert a space at the start of a text. */
      if (piece.bytes > bytes - at || memcmp(piece.at, text + at, piece.bytes) != 0) return false;
    }
    while (r < count && range[r].last <= at) r++;
    example->mask[i] = r < count && (range[r].first < at + piece.bytes || range[r].first <= at);
    at += piece.bytes;
  }
  return at == bytes;
}

/* Counts the tokens at the start of `whole` that also begin the encoding of the first `bytes` bytes
 * of the text. */
static rf_status tokens_before(const rf_tokenizer *tokenizer, const char *text, size_t bytes, int flags,
                               const rf_ids *whole, int64_t *tokens, rf_error *error) {
  rf_ids part = {0};
  rf_status status = rf_tokenizer_encode(tokenizer, text, bytes, flags, &part, error);
  *tokens = 0;
  while (status == RAFTER_OK && *tokens < part.count && *tokens < whole->count &&
         part.at[*tokens] == whole->at[*tokens])
    ++*tokens;
  rf_ids_free(&part);
  return status;
}

static rf_status mask_ranges(const rf_tokenizer *tokenizer, const char *text, size_t bytes,
                             const rf_range *range, int64_t count, rf_example *example, rf_error *error) {
  rf_row_reserve_mask(example);
  if (mask_by_running(tokenizer, text, bytes, range, count, example)) return RAFTER_OK;
  memset(example->mask, 0, (size_t)example->ids.count);
  for (int64_t r = 0; r < count; r++) {
    int64_t first, last;
    RF_TRY(tokens_before(tokenizer, text, range[r].first, RF_ENCODE_PARSE, &example->ids, &first, error));
    RF_TRY(tokens_before(tokenizer, text, range[r].last, RF_ENCODE_PARSE, &example->ids, &last, error));
    if (last > first) memset(example->mask + first, 1, (size_t)(last - first));
  }
  return RAFTER_OK;
}

/* A fixed date, for chat templates that print the date. So every run has the same tokens. */
static const struct tm TODAY = {.tm_year = 125, .tm_mon = 0, .tm_mday = 1, .tm_wday = 3};

static int64_t assistant_turns(const json_t *messages) {
  int64_t turns = 0;
  const json_t *message;
  size_t i;
  json_array_foreach (messages, i, message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    turns += role && !strcmp(role, "assistant");
  }
  return turns;
}

/* The first `given` turns of the assistant belong to the prompt, so the loss does not count
 * them. */
static rf_status read_conversation(rf_example_reader *reader, const json_t *messages, const json_t *tools,
                                   int64_t given, rf_example *example, rf_error *error) {
  rf_rendered rendered;
  const rf_tokenizer *tokenizer = reader->options.tokenizer;
  rf_chat_options options = {.tools = tools, .now = &TODAY};
  rf_loss_on loss_on = reader->options.loss_on;
  if (loss_on == RF_LOSS_ON_ALL) RF_TRY(rf_chat_render(reader->chat, messages, &options, &rendered, error));
  else RF_TRY(rf_chat_render_spans(reader->chat, messages, &options, &rendered, error));
  rf_status status = RAFTER_OK;
  rf_range all = {0, rendered.bytes}, *range = rendered.generated;
  int64_t count = rendered.generated_count;
  if (loss_on == RF_LOSS_ON_ALL) {
    range = &all;
    count = 1;
  } else if (given && count != assistant_turns(messages)) {
    status = RF_FAIL(error, RAFTER_FAILED, "give the row as \"messages\"",
                     "the chat template does not mark each turn of the assistant, so the loss cannot exclude "
                     "the turns that belong to the prompt");
    goto done;
  } else if (loss_on == RF_LOSS_ON_COMPLETION && count) {
    range += count - 1;
    count = 1;
  } else {
    range += given;
    count -= given;
  }
  RF_GO(rf_tokenizer_encode(tokenizer, rendered.text, rendered.bytes, RF_ENCODE_PARSE, &example->ids,
                            error)); /* the chat template writes the special tokens */
  status = mask_ranges(tokenizer, rendered.text, rendered.bytes, range, count, example, error);
done:
  rf_rendered_free(&rendered);
  return status;
}

static rf_status need_chat(rf_example_reader *reader, rf_row_place place, rf_error *error) {
  if (reader->chat) return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_FAILED, "give --template FILE, or rows with \"prompt\" and \"completion\" texts",
      "the model has no chat template for a conversation (%s, line %lld)", place.path, (long long)place.line);
}

static rf_status read_messages(rf_example_reader *reader, rf_row_place place, const json_t *row,
                               const json_t *messages, int64_t given, rf_example *example, rf_error *error) {
  json_t *tools = rf_row_field(reader, row, RF_ROW_TOOLS);
  if (!json_is_array(messages))
    return rf_row_bad_field(reader, place, RF_ROW_MESSAGES, "a list of messages", messages, error);
  if (tools && !json_is_array(tools))
    return rf_row_bad_field(reader, place, RF_ROW_TOOLS, "a list", tools, error);
  RF_TRY(rf_row_need_tokenizer(reader, place, error));
  RF_TRY(need_chat(reader, place, error));
  rf_status status = read_conversation(reader, messages, tools, given, example, error);
  return status == RAFTER_OK ? status : rf_row_located(place, error);
}

/* Tokenizes prompt and completion together as one text, as TRL does. The completion begins at the
 * first token that the prompt alone does not have. */
rf_status rf_row_join_texts(rf_example_reader *reader, const json_t *prompt, const json_t *completion,
                            rf_example *example, rf_error *error) {
  const rf_tokenizer *tokenizer = reader->options.tokenizer;
  size_t before = json_string_length(prompt), bytes = before + json_string_length(completion);
  char *text = rf_must(malloc(bytes + 1));
  rf_status status = RAFTER_OK;
  int64_t given = 0;
  const int flags = RF_ENCODE_BOS_EOS | RF_ENCODE_PARSE; /* as generate reads a prompt */
  memcpy(text, json_string_value(prompt), before);
  memcpy(text + before, json_string_value(completion), bytes - before);
  RF_GO(rf_tokenizer_encode(tokenizer, text, bytes, flags, &example->ids, error));
  RF_GO(tokens_before(tokenizer, text, before, flags, &example->ids, &given, error));
  int32_t eos = rf_tokenizer_eos(tokenizer);
  if (eos >= 0 && (!example->ids.count || example->ids.at[example->ids.count - 1] != eos))
    RF_GO(rf_ids_add(&example->ids, eos, error));
  rf_row_reserve_mask(example);
  for (int64_t i = 0; i < example->ids.count; i++)
    example->mask[i] = i >= given || reader->options.loss_on == RF_LOSS_ON_ALL;
done:
  free(text);
  return status;
}

rf_status rf_row_read_pair(rf_example_reader *reader, rf_row_place place, const json_t *row, json_t *prompt,
                           json_t *completion, rf_example *example, rf_error *error) {
  bool lists = json_is_array(prompt);
  if (!lists && !json_is_string(prompt))
    return rf_row_bad_field(reader, place, RF_ROW_PROMPT, "a string or a list of messages", prompt, error);
  if (lists && !json_is_array(completion))
    return rf_row_bad_field(reader, place, RF_ROW_COMPLETION, "a list of messages, like the prompt",
                            completion, error);
  if (!lists && !json_is_string(completion))
    return rf_row_bad_field(reader, place, RF_ROW_COMPLETION, "a string", completion, error);
  RF_TRY(rf_row_need_tokenizer(reader, place, error));
  if (!lists && !reader->chat) {
    rf_status status = rf_row_join_texts(reader, prompt, completion, example, error);
    return status == RAFTER_OK ? status : rf_row_located(place, error);
  }
  json_t *messages = lists ? json_array()
                           : json_pack("[{s:s, s:O}, {s:s, s:O}]", "role", "user", "content", prompt, "role",
                                       "assistant", "content", completion);
  rf_must(messages);
  if (lists) {
    json_array_extend(messages, prompt);
    json_array_extend(messages, completion);
  }
  rf_status status =
      read_messages(reader, place, row, messages, lists ? assistant_turns(prompt) : 0, example, error);
  json_decref(messages);
  return status;
}

static rf_status read_text(const rf_example_reader *reader, rf_row_place place, const json_t *text,
                           rf_example *example, rf_error *error) {
  const rf_tokenizer *tokenizer = reader->options.tokenizer;
  if (!json_is_string(text)) return rf_row_bad_field(reader, place, RF_ROW_TEXT, "a string", text, error);
  RF_TRY(rf_row_need_tokenizer(reader, place, error));
  rf_status status = rf_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), 0,
                                         &example->ids, error);
  if (status == RAFTER_OK && rf_tokenizer_eos(tokenizer) >= 0 && example->ids.count)
    status = rf_ids_add(&example->ids, rf_tokenizer_eos(tokenizer), error);
  return status == RAFTER_OK ? status : rf_row_located(place, error);
}

/* Appends the ids of a field. */
rf_status rf_row_add_ids(const rf_example_reader *reader, rf_row_place place, int which, const json_t *tokens,
                         rf_ids *ids, rf_error *error) {
  size_t i;
  const json_t *value;
  if (!json_is_array(tokens)) return rf_row_bad_field(reader, place, which, "a list of ids", tokens, error);
  json_array_foreach (tokens, i, value) {
    if (!json_is_integer(value))
      return RF_FAIL(
          error, RAFTER_FAILED, "write the ids as whole numbers",
          "a token is not an id (%s, line %lld, field \"%s\", token %zu: expected an id below %lld, "
          "got %s)",
          place.path, (long long)place.line, reader->names[which], i, (long long)reader->options.vocab,
          rf_json_type(value));
    json_int_t id = json_integer_value(value);
    if (id < 0 || id >= reader->options.vocab)
      return RF_FAIL(
          error, RAFTER_FAILED, "use ids of the model's own tokenizer",
          "token out of range (%s, line %lld, field \"%s\", token %zu: expected an id below %lld, got %lld)",
          place.path, (long long)place.line, reader->names[which], i, (long long)reader->options.vocab,
          (long long)id);
    RF_TRY(rf_ids_add(ids, (int32_t)id, error));
  }
  return RAFTER_OK;
}

static rf_status read_tokens(const rf_example_reader *reader, rf_row_place place, const json_t *tokens,
                             const json_t *mask, rf_example *example, rf_error *error) {
  size_t i;
  const json_t *value;
  RF_TRY(rf_row_add_ids(reader, place, RF_ROW_TOKENS, tokens, &example->ids, error));
  if (!mask) return RAFTER_OK;
  if (!json_is_array(mask))
    return rf_row_bad_field(reader, place, RF_ROW_MASK, "a list of 0 and 1", mask, error);
  if (json_array_size(mask) != json_array_size(tokens))
    return RF_FAIL(error, RAFTER_FAILED, "give a 0 or 1 for each token",
                   "bad row (%s, line %lld, field \"%s\": expected %zu values, got %zu)", place.path,
                   (long long)place.line, reader->names[RF_ROW_MASK], json_array_size(tokens),
                   json_array_size(mask));
  rf_row_reserve_mask(example);
  json_array_foreach (mask, i, value) {
    bool one = json_is_true(value) || (json_is_integer(value) && json_integer_value(value) == 1);
    if (!one && !json_is_false(value) && !(json_is_integer(value) && json_integer_value(value) == 0))
      return RF_FAIL(error, RAFTER_FAILED, "write 1 for a token that the loss counts, otherwise 0",
                     "bad row (%s, line %lld, field \"%s\", token %zu: expected 0 or 1)", place.path,
                     (long long)place.line, reader->names[RF_ROW_MASK], i);
    example->mask[i] = one;
  }
  return RAFTER_OK;
}

static rf_status read_row(rf_example_reader *reader, rf_row_place place, const json_t *row,
                          rf_example *example, rf_error *error) {
  json_t *messages = rf_row_field(reader, row, RF_ROW_MESSAGES),
         *prompt = rf_row_field(reader, row, RF_ROW_PROMPT),
         *completion = rf_row_field(reader, row, RF_ROW_COMPLETION);
  json_t *text = rf_row_field(reader, row, RF_ROW_TEXT), *tokens = rf_row_field(reader, row, RF_ROW_TOKENS),
         *mask = rf_row_field(reader, row, RF_ROW_MASK);
  example->is_example = messages || prompt || completion || (!text && mask);
  if (messages || prompt || completion) RF_TRY(rf_row_seek_chat(reader, error));
  if (messages) return read_messages(reader, place, row, messages, 0, example, error);
  if (prompt || completion) return rf_row_read_pair(reader, place, row, prompt, completion, example, error);
  if (text) return read_text(reader, place, text, example, error);
  if (tokens) return read_tokens(reader, place, tokens, mask, example, error);
  return RF_FAIL(error, RAFTER_FAILED,
                 "name the fields of the rows, for example --fields prompt=question,completion=answer",
                 "a row has none of the fields \"%s\", \"%s\", \"%s\" and \"%s\" (%s, line %lld)",
                 reader->names[RF_ROW_MESSAGES], reader->names[RF_ROW_PROMPT], reader->names[RF_ROW_TEXT],
                 reader->names[RF_ROW_TOKENS], place.path, (long long)place.line);
}

rf_status rf_example_read(rf_example_reader *reader, const char *path, int64_t line, const char *text,
                          size_t bytes, rf_example *example, rf_error *error) {
  json_t *row = NULL;
  example->ids.count = 0;
  RF_TRY(rf_json_line(text, bytes, path, line, &row, error));
  rf_status status = read_row(reader, (rf_row_place){path, line}, row, example, error);
  json_decref(row);
  return status;
}
