/* conversation.c - see conversation.h. */
#define _GNU_SOURCE
#include "generate/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Forgets all tokens, so that the next prompt is encoded from the start. */
static void forget(rf_conversation *c) {
  free(c->text);
  c->text = NULL;
  c->ids.count = 0;
}

void rf_conversation_close(rf_conversation *c) {
  forget(c);
  rf_ids_free(&c->ids);
  json_decref(c->messages);
  c->messages = NULL;
}

static bool has_system(const rf_conversation *c) {
  const char *role = json_string_value(json_object_get(json_array_get(c->messages, 0), "role"));
  return role && !strcmp(role, "system");
}

void rf_conversation_restart(rf_conversation *c, const char *system) {
  json_t *messages = json_array();
  if (!system && has_system(c)) json_array_append(messages, json_array_get(c->messages, 0));
  if (system && *system)
    json_array_append_new(messages, json_pack("{ss ss}", "role", "system", "content", system));
  json_decref(c->messages);
  c->messages = messages;
  forget(c);
}

/* ---- the prompt ------------------------------------------------------------------------------ */

/* Finds the index of the first token after c->text. `ids` are the tokens of a text that begins with
 * c->text. Returns -1 if a token spans the end of c->text. Special tokens are counted to find the
 * index, because the tokenizer never merges a special token with its neighbours. */
static int64_t seam(const rf_conversation *c, const rf_ids *ids) {
  const rf_tokenizer *t = c->reader->tokenizer;
  rf_ids before = {0};
  int64_t at = -1, wanted = 0, seen = 0;
  if (rf_tokenizer_encode(t, c->text, strlen(c->text), RF_ENCODE_PARSE, &before, NULL) == RAFTER_OK) {
    for (int64_t i = 0; i < before.count; i++) wanted += rf_tokenizer_is_special(t, before.at[i]);
    for (int64_t i = 0; i < ids->count && at < 0; i++) {
      if (!rf_tokenizer_is_special(t, ids->at[i])) continue;
      seen++;
      if (c->closed && seen == wanted) at = i + 1;
      if (!c->closed && seen == wanted + 1) at = i;
    }
  }
  rf_ids_free(&before);
  return at;
}

/* Appends the new part of the conversation to c->ids. Keeps the tokens of earlier turns, because
 * encoding the text of an answer again could give other tokens. */
static rf_status encode(rf_conversation *c, rf_error *error) {
  rf_ids whole = {0};
  char *text = NULL;
  rf_status status = RAFTER_OK;
  RF_GO(rf_chat_encode(c->reader->chat, c->reader->tokenizer, c->messages, NULL, &whole, &text, error));
  int64_t from = c->text && !strncmp(text, c->text, strlen(c->text)) ? seam(c, &whole) : -1;
  if (from < 0) c->ids.count = from = 0;
  for (int64_t i = from; i < whole.count; i++) RF_GO(rf_ids_add(&c->ids, whole.at[i], error));
  free(c->text);
  c->text = text;
  text = NULL;
done:
  rf_ids_free(&whole);
  free(text);
  return status;
}

/* Removes the oldest question and its answer. Returns false if only the newest question remains. */
static bool drop_oldest(rf_conversation *c) {
  size_t first = has_system(c);
  if (json_array_size(c->messages) < first + 3) return false;
  json_array_remove(c->messages, first);
  json_array_remove(c->messages, first);
  forget(c);
  return true;
}

rf_status rf_conversation_ask(rf_conversation *c, json_t *message, int64_t context, int *dropped,
                              rf_error *error) {
  *dropped = 0;
  if (json_array_append_new(c->messages, message))
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while adding a message");
  rf_status status = encode(c, error);
  while (status == RAFTER_OK && c->ids.count >= context) {
    if (drop_oldest(c)) {
      ++*dropped;
      status = encode(c, error);
    } else
      status = RF_FAIL(error, RAFTER_INVALID, NULL, "the line is longer than the context of %lld tokens",
                       (long long)context);
  }
  if (status == RAFTER_OK) return status;
  json_array_remove(c->messages, json_array_size(c->messages) - 1);
  forget(c);
  return status;
}

/* ---- the answer ------------------------------------------------------------------------------ */

static bool is_end(const rf_conversation *c, int32_t id) {
  for (int i = 0; i < c->reader->ends.count; i++)
    if (c->reader->ends.id[i] == id) return rf_tokenizer_is_special(c->reader->tokenizer, id);
  return false;
}

rf_status rf_conversation_answered(rf_conversation *c, const rf_reply *reply, rf_error *error) {
  int64_t count = reply->tokens.count;
  int32_t last = count ? reply->tokens.at[count - 1] : -1;
  char *text = NULL;
  for (int64_t i = 0; i < count; i++) RF_TRY(rf_ids_add(&c->ids, reply->tokens.at[i], error));
  c->closed = is_end(c, last);
  json_array_append_new(c->messages, json_pack("{ss so}", "role", "assistant", "content",
                                               rf_json_bytes(reply->text, reply->bytes)));
  /* c->ids also contains the tokens of the stop text, which must not be in the next prompt */
  if (reply->state.found) {
    forget(c);
    return RAFTER_OK;
  }
  rf_span end = c->closed ? rf_tokenizer_text_of(c->reader->tokenizer, last) : (rf_span){"", 0};
  if (asprintf(&text, "%s%s%.*s", c->text, reply->text, (int)end.bytes, end.at) < 0)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  free(c->text);
  c->text = text;
  return RAFTER_OK;
}
