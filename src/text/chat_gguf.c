/* chat_gguf.c - reads the chat template of a GGUF file, and the texts of its special tokens. */
#include "text/chat.h"
#include "formats/gguf_facts.h"

static void add_token(json_t *tokens, const char *name, const rf_gguf_vocab *vocab, int32_t id) {
  if (id < 0 || id >= vocab->count) return;
  /* The result is NULL if the token is not UTF-8, because no template can contain such a token. */
  json_t *text = json_stringn(vocab->token[id].at, (size_t)vocab->token[id].bytes);
  if (text) json_object_set_new(tokens, name, text);
}

rf_status rf_chat_find_gguf(const char *path, rf_chat **chat, rf_error *error) {
  rf_gguf *file = NULL;
  rf_gguf_vocab vocab;
  json_t *tokens = NULL;
  *chat = NULL;
  RF_TRY(rf_gguf_open(path, &file, error));
  rf_status status = rf_gguf_vocab_read(file, &vocab, error);
  if (status != RAFTER_OK) goto done;
  if (vocab.chat_template.at) {
    tokens = json_object();
    add_token(tokens, "bos_token", &vocab, vocab.bos);
    add_token(tokens, "eos_token", &vocab, vocab.eos);
    add_token(tokens, "unk_token", &vocab, vocab.unknown);
    add_token(tokens, "pad_token", &vocab, vocab.pad);
    status =
        rf_chat_new(vocab.chat_template.at, (size_t)vocab.chat_template.bytes, path, tokens, chat, error);
    const rf_gguf_text *tools = &vocab.tools_template;
    if (status == RAFTER_OK && tools->at) rf_chat_add_tools(*chat, tools->at, (size_t)tools->bytes, path);
  }
  json_decref(tokens);
  rf_gguf_vocab_free(&vocab);
done:
  rf_gguf_close(file);
  return status;
}
