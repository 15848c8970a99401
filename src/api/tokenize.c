/* tokenize.c - `rafter tokenize`: text to ids and back, or to a token shard. */
#define _GNU_SOURCE
#include "api/api.h"
#include "base/file.h"
#include "model/tokenizer.h"
#include "train/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static rf_status decode(const rf_options *o, const rf_tokenizer *tokenizer, const rafter_sink *sink, rf_error *error) {
  int count = 0;
  const int64_t *ids = rf_options_list(o, "decode", &count);
  char *text = calloc(1, (size_t)count * 16 + 2);
  int64_t at = 0, vocab = tokenizer->vocab;
  for (int i = 0; i < count; i++)
    if (ids[i] >= vocab) {
      free(text);
      return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                     "token out of range (--decode, token %d: expected an id below %lld, got %lld)", i, (long long)vocab, (long long)ids[i]);
    }
  if (!text) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int i = 0; i < count; i++) at += rf_tokenizer_piece(tokenizer, (int32_t)ids[i], text + at);
  json_t *value = json_stringn(text, (size_t)at);
  rf_put_json(sink, json_pack("{ss so}", "command", "tokenize", "text", value ? value : json_null()));
  text[at] = '\n';
  rf_say_text(sink, text);
  return RAFTER_OK;
}

static rf_status write_shard(const char *path, const int32_t *ids, int64_t count, int64_t vocab, const rafter_sink *sink, rf_error *error) {
  rf_shard_writer *writer = NULL;
  RF_TRY(rf_shard_create(path, vocab, &writer, error));
  rf_status status = rf_shard_append_stream(writer, ids, count, error); /* one text is one stream, in the shard as in the file */
  if (status == RAFTER_OK) status = rf_shard_finish(writer, error);
  else rf_shard_discard(writer);
  if (status == RAFTER_OK) rf_say(sink, "%lld tokens written to %s\n", (long long)count, path);
  return status;
}

rf_status rf_command_tokenize(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  enum { MOST = 1 << 30 };
  const rf_options *o = job->options;
  rf_model model;
  rf_tokenizer tokenizer;
  RF_TRY(rf_model_resolve(rf_options_argument(o, 0), &model, NULL, error));
  RF_TRY(rf_tokenizer_byte(&model, &tokenizer, error));
  if (rf_options_is_set(o, "decode")) return decode(o, &tokenizer, sink, error);
  const char *given = rf_options_is_set(o, "text") ? rf_options_text(o, "text") : NULL;
  char *text = NULL;
  size_t bytes = given ? strlen(given) : 0;
  rf_status status = RAFTER_OK;
  int32_t *ids = NULL;
  if (given) text = strdup(given);
  else if (rf_options_is_set(o, "input")) RF_TRY(rf_file_read(rf_options_text(o, "input"), MOST, &text, &bytes, error));
  else return RF_FAIL(error, RAFTER_INVALID, "give --text TEXT, --input FILE or --decode 1,2,3", "there is nothing to tokenize");
  ids = malloc((bytes + 1) * sizeof *ids);
  if (!text || !ids) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  int64_t count = rf_tokenizer_encode(&tokenizer, text, (int64_t)bytes, ids, (int64_t)bytes);
  if (rf_options_is_set(o, "output")) RF_GO(write_shard(rf_options_text(o, "output"), ids, count, model.vocab, sink, error));
  bool list = !rf_options_is_set(o, "output");
  json_t *tokens = json_array(), *pieces = json_array();
  for (int64_t i = 0; list && i < count; i++) {
    char piece[16];
    int n = rf_tokenizer_piece(&tokenizer, ids[i], piece);
    json_t *value = json_stringn(piece, (size_t)n); /* NULL for half of a UTF-8 letter */
    rf_say(sink, "%s%d", i ? "," : "", ids[i]);
    json_array_append_new(tokens, json_integer(ids[i]));
    json_array_append_new(pieces, value ? value : json_null());
  }
  if (list) rf_say(sink, "\n");
  rf_put_json(sink, json_pack("{ss sI so so}", "command", "tokenize", "count", (json_int_t)count, "tokens", tokens, "pieces", pieces));
done:
  free(text), free(ids);
  return status;
}
