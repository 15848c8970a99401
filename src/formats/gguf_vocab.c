/* gguf_vocab.c - reads the tokenizer from the metadata of a file, as arrays. */
#include <stdlib.h>
#include <string.h>

#include "formats/gguf_facts.h"

static bool same(rf_gguf_text text, const char *other) {
  return text.bytes == (int64_t)strlen(other) && memcmp(text.at, other, (size_t)text.bytes) == 0;
}

/* Reads the id of a special token. 4294967295 means that there is no such token. */
static rf_status read_id(const rf_gguf *file, const char *key, int64_t count, int32_t otherwise, int32_t *id,
                         rf_error *error) {
  int64_t value;
  RF_TRY(rf_gguf_int_or(file, key, -1, UINT32_MAX, otherwise < count ? otherwise : -1, &value, error));
  if (value == UINT32_MAX) value = -1;
  if (value >= count)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s: metadata \"%s\" is not a token (expected an id below %lld, got %lld)",
                   rf_gguf_path(file), key, (long long)count, (long long)value);
  *id = (int32_t)value;
  return RAFTER_OK;
}

static rf_status check_length(const rf_gguf *file, const char *key, int64_t expected, int64_t got,
                              rf_error *error) {
  if (got == 0 || got == expected) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, NULL,
                 "%s: metadata \"%s\" has the wrong number of items (expected %lld, got %lld)",
                 rf_gguf_path(file), key, (long long)expected, (long long)got);
}

/* Reads the ids of the special tokens, and which of these tokens are added to prompts. `model`,
 * `pre` and `count` must already be set. */
static rf_status read_ids(const rf_gguf *file, rf_gguf_vocab *v, rf_error *error) {
  /* The default ids are llama's ids for a SentencePiece model. Byte-level BPE has no default
   * ids. */
  bool pieces = same(v->model, "llama");
  RF_TRY(read_id(file, "tokenizer.ggml.bos_token_id", v->count, pieces ? 1 : -1, &v->bos, error));
  RF_TRY(read_id(file, "tokenizer.ggml.eos_token_id", v->count, pieces ? 2 : -1, &v->eos, error));
  RF_TRY(read_id(file, "tokenizer.ggml.eot_token_id", v->count, -1, &v->eot, error));
  RF_TRY(read_id(file, "tokenizer.ggml.unknown_token_id", v->count, pieces ? 0 : -1, &v->unknown, error));
  RF_TRY(read_id(file, "tokenizer.ggml.padding_token_id", v->count, -1, &v->pad, error));
  /* If the file has no add_bos_token, the default is true for llama3's BPE, and false for all other
   * BPE. */
  bool llama3 = same(v->pre, "llama-bpe") || same(v->pre, "llama3") || same(v->pre, "llama-v3");
  RF_TRY(rf_gguf_bool_or(file, "tokenizer.ggml.add_bos_token", pieces || llama3, &v->add_bos, error));
  RF_TRY(rf_gguf_bool_or(file, "tokenizer.ggml.add_eos_token", false, &v->add_eos, error));
  RF_TRY(rf_gguf_bool_or(file, "tokenizer.ggml.add_space_prefix", pieces, &v->add_space_prefix, error));
  return RAFTER_OK;
}

rf_status rf_gguf_vocab_special(const rf_gguf *file, rf_gguf_vocab *v, rf_error *error) {
  memset(v, 0, sizeof *v);
  v->bos = v->eos = v->eot = v->unknown = v->pad = -1;
  RF_TRY(rf_gguf_text_or(file, "tokenizer.ggml.model", "none", &v->model, error));
  RF_TRY(rf_gguf_text_or(file, "tokenizer.ggml.pre", "", &v->pre, error));
  RF_TRY(rf_gguf_text_count(file, "tokenizer.ggml.tokens", &v->count, error));
  if (v->count > INT32_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s has too many tokens", rf_gguf_path(file));
  return read_ids(file, v, error);
}

rf_status rf_gguf_vocab_read(const rf_gguf *file, rf_gguf_vocab *v, rf_error *error) {
  rf_status status = RAFTER_OK;
  int64_t scores, kinds;
  RF_GO(rf_gguf_vocab_special(file, v, error));
  RF_GO(rf_gguf_text_or(file, "tokenizer.chat_template", NULL, &v->chat_template, error));
  RF_GO(rf_gguf_text_or(file, "tokenizer.chat_template.tool_use", NULL, &v->tools_template, error));
  RF_GO(rf_gguf_texts(file, "tokenizer.ggml.tokens", &v->token, &v->count, error));
  RF_GO(rf_gguf_texts(file, "tokenizer.ggml.merges", &v->merge, &v->merges, error));
  RF_GO(rf_gguf_floats(file, "tokenizer.ggml.scores", &v->score, &scores, error));
  RF_GO(rf_gguf_ints(file, "tokenizer.ggml.token_type", 0, 255, &v->kind, &kinds, error));
  RF_GO(check_length(file, "tokenizer.ggml.scores", v->count, scores, error));
  RF_GO(check_length(file, "tokenizer.ggml.token_type", v->count, kinds, error));
  if (!scores) {
    free(v->score);
    v->score = NULL;
  }
  if (!kinds) {
    free(v->kind);
    v->kind = NULL;
  }
done:
  if (status != RAFTER_OK) rf_gguf_vocab_free(v);
  return status;
}

void rf_gguf_vocab_free(rf_gguf_vocab *v) {
  free(v->token);
  free(v->merge);
  free(v->score);
  free(v->kind);
  memset(v, 0, sizeof *v);
}
