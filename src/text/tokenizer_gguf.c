/* tokenizer_gguf.c - reads the vocabulary of a GGUF file as a tokenizer. */
#include "text/tokenizer_parts.h"

#include "base/json.h"
#include "formats/gguf.h"
#include "formats/gguf_facts.h"

#include <stdio.h>
#include <stdlib.h>

static rf_span *spans_of(const rf_gguf_text *texts, int64_t count) {
  rf_span *spans = malloc(((size_t)count + 1) * sizeof *spans);
  for (int64_t i = 0; spans && i < count; i++) spans[i] = (rf_span){texts[i].at, (size_t)texts[i].bytes};
  return spans;
}

static rf_status build_from_gguf(const rf_gguf_vocab *from, const char *where, rf_tokenizer **tokenizer,
                                 rf_error *error) {
  char kind[32], pre[64];
  snprintf(kind, sizeof kind, "%.*s", (int)(from->model.bytes < 31 ? from->model.bytes : 31), from->model.at);
  snprintf(pre, sizeof pre, "%.*s", (int)(from->pre.bytes < 63 ? from->pre.bytes : 63), from->pre.at);
  rf_vocabulary v = {.kind = kind,
                     .pre = pre,
                     .count = from->count,
                     .pieces = spans_of(from->token, from->count),
                     .scores = from->score,
                     .types = from->kind,
                     .merge_count = from->merges,
                     .merges = spans_of(from->merge, from->merges),
                     .bos_id = from->bos,
                     .eos_id = from->eos,
                     .pad_id = from->pad,
                     .unk_id = from->unknown,
                     .add_bos = from->add_bos,
                     .add_eos = from->add_eos,
                     .dummy_prefix = from->add_space_prefix};
  rf_status status = v.pieces && v.merges ? rf_tokenizer_build(&v, where, tokenizer, error)
                                          : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  free((void *)v.pieces);
  free((void *)v.merges);
  return status;
}

rf_status rf_tokenizer_gguf_copy(const rf_gguf *file, rf_gguf_meta *meta, rf_error *error) {
  bool done = true;
  for (int i = 0; done && i < rf_gguf_value_count(file); i++) {
    const rf_gguf_value *value = rf_gguf_value_at(file, i);
    if (!strncmp(value->key, "tokenizer.", 10)) done = rf_gguf_set(meta, value);
  }
  return done ? RAFTER_OK
              : RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for the vocabulary of %s", rf_gguf_path(file));
}

/* Returns the chat templates as in tokenizer_config.json, or NULL. A template that is not UTF-8 is
 * left out, because JSON cannot contain it. */
static json_t *templates_of(const rf_gguf_vocab *v) {
  const rf_gguf_text *plain = &v->chat_template, *with = &v->tools_template;
  json_t *text = plain->at ? json_stringn(plain->at, (size_t)plain->bytes) : NULL;
  json_t *tools = text && with->at ? json_stringn(with->at, (size_t)with->bytes) : NULL;
  if (!tools) return text;
  return rf_must(json_pack("[{ss so} {ss so}]", "name", "default", "template", text, "name", "tool_use",
                           "template", tools));
}

/* Writes the vocabulary to the folder of `to`, in formats that other libraries can read. */
static rf_status write_others(const rf_gguf *file, const char *to, rf_error *error) {
  char folder[4400];
  bool written;
  rf_gguf_vocab vocab;
  rf_tokenizer *tokenizer = NULL;
  const char *slash = strrchr(to, '/');
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - to) : 1, slash ? to : ".");
  RF_TRY(rf_gguf_vocab_read(file, &vocab, error));
  rf_status status = build_from_gguf(&vocab, to, &tokenizer, error);
  json_t *template = templates_of(&vocab);
  if (status == RAFTER_OK) status = rf_tokenizer_json_write(tokenizer, template, folder, &written, error);
  if (status == RAFTER_OK && !written) {
    status = rf_tokenizer_model_write(&vocab, folder, &written, error);
    if (status == RAFTER_OK && written)
      status = rf_tokenizer_config_write(tokenizer, NULL, template, folder, error);
  }
  json_decref(template);
  rf_tokenizer_close(tokenizer);
  rf_gguf_vocab_free(&vocab);
  return status;
}

rf_status rf_tokenizer_gguf_extract(const char *from, const char *to, bool *written, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_gguf *file = NULL;
  rf_gguf_writer *writer = NULL;
  rf_gguf_meta *meta = rf_gguf_meta_new();
  *written = false;
  if (!meta || !rf_gguf_set_text(meta, "general.type", "vocab")) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  RF_GO(rf_gguf_open(from, &file, error));
  if (!rf_gguf_value_find(file, "tokenizer.ggml.tokens")) goto done;
  RF_GO(rf_tokenizer_gguf_copy(file, meta, error));
  RF_GO(rf_gguf_writer_open(to, meta, NULL, 0, &writer, error));
  status = rf_gguf_writer_commit(writer, error);
  *written = status == RAFTER_OK;
  if (status == RAFTER_OK) status = write_others(file, to, error);
done:
  rf_gguf_meta_free(meta);
  rf_gguf_close(file);
  return status;
}

rf_status rf_tokenizer_gguf_open(const char *path, rf_tokenizer **tokenizer, rf_error *error) {
  rf_gguf *file = NULL;
  rf_gguf_vocab vocab;
  *tokenizer = NULL;
  RF_TRY(rf_gguf_open(path, &file, error));
  rf_status status = rf_gguf_vocab_read(file, &vocab, error);
  if (status == RAFTER_OK) {
    status = build_from_gguf(&vocab, path, tokenizer, error);
    rf_gguf_vocab_free(&vocab);
  }
  if (status == RAFTER_OK) status = rf_gguf_unchanged(file, error);
  if (status != RAFTER_OK) {
    rf_tokenizer_close(*tokenizer);
    *tokenizer = NULL;
  }
  rf_gguf_close(file);
  return status;
}
