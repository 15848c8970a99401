/* tokenize.c - `rafter tokenize`: converts text to token ids and back, or to a token shard. */
#define _GNU_SOURCE
#include "api/answers.h"
#include "base/file.h"
#include "base/text.h"
#include "text/tokenizer.h"
#include "train/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Opens the tokenizer of MODEL. MODEL may be a tokenizer without a model. Sets *vocab to the
 * vocabulary size of the model. Without a model, takes the size of the tokenizer. */
static rf_status open_tokenizer(const char *spec, rf_tokenizer **tokenizer, int64_t *vocab, rf_error *error) {
  static const char *const ENDINGS[] = {".json", ".model", ".gguf"};
  struct stat info;
  bool there = spec && !stat(spec, &info), brings = there && S_ISDIR(info.st_mode) && rf_tokenizer_in(spec);
  const char *name = there && strrchr(spec, '/') ? strrchr(spec, '/') + 1 : spec;
  for (int i = 0; i < 3; i++) brings |= there && S_ISREG(info.st_mode) && rf_text_ends_with(spec, ENDINGS[i]);
  brings |= there && S_ISREG(info.st_mode) && rf_text_ends_with(spec, ".bin") && !strncmp(name, "tok", 3);
  rf_model model;
  if (!brings) {
    char folder[4096];
    RF_TRY(rf_model_resolve(spec, &model, folder, error));
    *vocab = model.vocab;
    return rf_tokenizer_for(model.name, model.vocab, folder, tokenizer, error);
  }
  RF_TRY(rf_tokenizer_open(spec, tokenizer, error));
  *vocab = rf_tokenizer_vocab(*tokenizer);
  if (rf_model_resolve(spec, &model, NULL, NULL) == RAFTER_OK && model.vocab > *vocab) *vocab = model.vocab;
  return RAFTER_OK;
}

static json_t *text_value(const char *text, size_t bytes) {
  /* jansson returns NULL if a text ends in an incomplete UTF-8 character */
  json_t *value = json_stringn(text, bytes);
  return value ? value : json_null();
}

static rf_status decode(const rf_options *o, const rf_tokenizer *tokenizer, const rafter_sink *sink,
                        rf_error *error) {
  rf_ids ids = {0};
  rf_status status = RAFTER_OK;
  char *text = NULL;
  size_t bytes = 0;
  RF_GO(rf_ids_given(o, "decode", rf_tokenizer_vocab(tokenizer), &ids, error));
  RF_GO(rf_tokenizer_decode(tokenizer, ids.at, ids.count,
                            rf_options_flag(o, "no-special") ? 0 : RF_DECODE_SPECIALS, &text, &bytes, error));
  rf_put_json(sink, json_pack("{ss so}", "command", "tokenize", "text", rf_json_bytes(text, bytes)));
  char *line = realloc(text, bytes + 2);
  if (!line) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  text = NULL;
  line[bytes] = '\n';
  line[bytes + 1] = 0;
  rf_say_text(sink, line);
done:
  rf_ids_free(&ids);
  free(text);
  return status;
}

static rf_status write_shard(const char *path, const int32_t *ids, int64_t count, int64_t vocab,
                             const rafter_sink *sink, rf_error *error) {
  rf_shard_writer *writer = NULL;
  RF_TRY(rf_shard_create(path, vocab, &writer, error));
  /* Writes the text as one document, without an end-of-document token. */
  rf_status status = rf_shard_append_stream(writer, ids, count, error);
  if (status == RAFTER_OK) status = rf_shard_finish(writer, error);
  else rf_shard_discard(writer);
  if (status == RAFTER_OK)
    rf_say(sink, "%lld token%s written to %s\n", (long long)count, rf_plural(count), path);
  return status;
}

static rf_status write_rows(const rf_options *o, const rf_tokenizer *tokenizer, int64_t vocab,
                            const rafter_sink *sink, rf_error *error) {
  const char *input = rf_options_text(o, "input"), *output = rf_options_text(o, "output");
  rf_example_options rows = {.tokenizer = tokenizer,
                             .model_folder = rf_options_argument(o, 0),
                             .template = rf_options_text(o, "template"),
                             .vocab = vocab,
                             .loss_on = (rf_loss_on)rf_options_choice(o, "loss-on"),
                             .fields = rf_options_text(o, "fields")};
  rf_shard shard;
  RF_TRY(rf_source_write_shard(input, &rows, output, error));
  RF_TRY(rf_shard_open(output, &shard, error));
  rf_say(sink, "%lld token%s in %lld document%s written to %s%s\n", (long long)shard.tokens,
         rf_plural(shard.tokens), (long long)shard.documents, rf_plural(shard.documents), output,
         shard.mask_byte ? ", with a loss mask" : "");
  rf_put_json(sink, json_pack("{ss sI sI}", "command", "tokenize", "count", (json_int_t)shard.tokens,
                              "documents", (json_int_t)shard.documents));
  rf_shard_close(&shard);
  return RAFTER_OK;
}

static rf_status encode(const rf_options *o, const rf_tokenizer *tokenizer, int64_t vocab,
                        const rafter_sink *sink, rf_error *error) {
  enum { MAX = 1 << 30 };
  const char *given = rf_options_text(o, "text");
  char *read = NULL;
  size_t bytes = given ? strlen(given) : 0;
  rf_status status = RAFTER_OK;
  rf_ids ids = {0};
  if (!given && rf_options_is_set(o, "output") && rf_options_is_set(o, "input") &&
      rf_text_ends_with(rf_options_text(o, "input"), ".jsonl"))
    return write_rows(o, tokenizer, vocab, sink, error);
  if (!given && rf_options_is_set(o, "input"))
    RF_TRY(rf_file_read(rf_options_text(o, "input"), MAX, &read, &bytes, error));
  else if (!given)
    return RF_FAIL(error, RAFTER_INVALID, "give --text TEXT, --input FILE or --decode 1,2,3",
                   "there is no text to tokenize");
  RF_GO(rf_tokenizer_encode(tokenizer, given ? given : read, bytes, rf_encode_flags(o), &ids, error));
  bool list = !rf_options_is_set(o, "output");
  if (!list) RF_GO(write_shard(rf_options_text(o, "output"), ids.at, ids.count, vocab, sink, error));
  json_t *tokens = json_array(), *pieces = json_array();
  for (int64_t i = 0; list && i < ids.count; i++) {
    rf_span piece = rf_tokenizer_text_of(tokenizer, ids.at[i]);
    rf_say(sink, "%s%d", i ? "," : "", ids.at[i]);
    json_array_append_new(tokens, json_integer(ids.at[i]));
    json_array_append_new(pieces, text_value(piece.at, piece.bytes));
  }
  if (list) rf_say(sink, "\n");
  rf_put_json(sink, json_pack("{ss sI so so}", "command", "tokenize", "count", (json_int_t)ids.count,
                              "tokens", tokens, "pieces", pieces));
done:
  free(read);
  rf_ids_free(&ids);
  return status;
}

/* For --train, makes a tokenizer from the text of a file. */
static rf_status train(const rf_options *o, const rafter_sink *sink, rf_error *error) {
  enum { MAX = 1 << 30 };
  const char *input = rf_options_text(o, "train"), *folder = rf_options_text(o, "output");
  int64_t vocab = rf_options_int(o, "vocab");
  rf_tokenizer *tokenizer = NULL;
  char *text = NULL, json[4200];
  size_t bytes = 0;
  bool written;
  rf_ids ids = {0};
  rf_status status = RAFTER_OK;
  if (!folder || rf_options_argument(o, 0))
    return RF_FAIL(error, RAFTER_INVALID, "rafter tokenize --train book.txt --vocab 8192 --output DIR",
                   folder ? "--train makes a new tokenizer (expected no MODEL, got %.200s)"
                          : "--train needs a folder for the tokenizer (--output is missing)",
                   rf_options_argument(o, 0));
  RF_TRY(rf_file_read(input, MAX, &text, &bytes, error));
  RF_GO(rf_tokenizer_train(text, bytes, vocab, sink->stop, &tokenizer, error));
  RF_GO(rf_make_folders(folder, error));
  snprintf(json, sizeof json, "%s/tokenizer.json", folder);
  RF_GO(rf_out_is_not_input(json, input, error));
  RF_GO(rf_tokenizer_json_write(tokenizer, NULL, folder, &written, error));
  RF_GO(rf_tokenizer_encode(tokenizer, text, bytes, 0, &ids, error));
  int64_t made = rf_tokenizer_vocab(tokenizer);
  rf_say(sink, "%lld ids written to %s; %s becomes %lld tokens of %.2f bytes\n", (long long)made, folder,
         input, (long long)ids.count, ids.count ? (double)bytes / (double)ids.count : 0);
  if (made < vocab)
    rf_note(sink, "notice: the text has too few repeated pairs for more ids (expected %lld, got %lld)\n",
            (long long)vocab, (long long)made);
  rf_put_json(sink, json_pack("{ss ss sI sI sI}", "command", "tokenize", "output", folder, "vocab",
                              (json_int_t)made, "bytes", (json_int_t)bytes, "count", (json_int_t)ids.count));
done:
  rf_tokenizer_close(tokenizer);
  rf_ids_free(&ids);
  free(text);
  return status;
}

/* Fails if --output names the file of --input, or the model. */
static rf_status check_output(const rf_options *o, rf_error *error) {
  const char *output = rf_options_text(o, "output");
  if (!output) return RAFTER_OK;
  if (rf_options_is_set(o, "input")) RF_TRY(rf_out_is_not_input(output, rf_options_text(o, "input"), error));
  return rf_out_is_not_input(output, rf_options_argument(o, 0), error);
}

static rf_status rf_command_tokenize(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const rf_options *o = job->options;
  rf_tokenizer *tokenizer = NULL;
  int64_t vocab = 0;
  if (rf_options_is_set(o, "train")) return train(o, sink, error);
  if (!rf_options_argument(o, 0))
    return RF_FAIL(error, RAFTER_INVALID, "give a model or a tokenizer, or make one with --train FILE",
                   "tokenize needs MODEL");
  RF_TRY(check_output(o, error));
  RF_TRY(open_tokenizer(rf_options_argument(o, 0), &tokenizer, &vocab, error));
  rf_status status = rf_options_is_set(o, "decode") ? decode(o, tokenizer, sink, error)
                                                    : encode(o, tokenizer, vocab, sink, error);
  rf_tokenizer_close(tokenizer);
  return status;
}

static const rf_option TOKENIZE[] = {
    RF_WORDS("text", TEXT, "TEXT", NULL, "Text", "text to convert to tokens"),
    RF_WORDS("input", PATH, "FILE", NULL, "Text", "file to convert to tokens"),
    RF_WORDS("decode", LIST, "IDS", NULL, "Text", "token ids to convert to text"),
    RF_WORDS("train", PATH, "FILE", NULL, "New tokenizer",
             "text of at most 1 GiB from which to make a byte-level BPE, in the folder --output"),
    RF_NUMBER("vocab", INT, "IDS", 257, 1 << 20, "8192", "New tokenizer",
              "ids of the new tokenizer: 256 bytes, merged pairs and <|endoftext|>"),
    RF_WORDS("output", PATH, "FILE", NULL, "Output",
             "shard file for the tokens, with loss masks for .jsonl rows; with --train: a folder"),
    {.name = NULL},
};

const rf_command RF_COMMAND_TOKENIZE = {
    RF_COMMAND_HEAD("tokenize", "[MODEL]", 0, 1, "Files",
                    "Convert text to tokens and back, or a file to a token shard; make a tokenizer."),
    .options = {RF_TABLE(TOKENIZE), RF_TABLE(RF_SPECIAL_OPTIONS), RF_TABLE(RF_EXAMPLE_OPTIONS),
                RF_TABLE(RF_EVERY_OPTIONS)},
    .examples = {"tokenize models/org/name --text 'Hello, world'",
                 "tokenize models/org/name --decode 9906,11,1917",
                 "tokenize models/org/name --input book.txt --output book.shard # for train --data",
                 "tokenize --train book.txt --vocab 8192 --output bpe # for train --tokenizer bpe"},
    .run = rf_command_tokenize};
