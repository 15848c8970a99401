/* tokenizer.c - opens tokenizers and encodes text. */
#include "text/tokenizer_parts.h"

#include "base/file.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { BYTES = 256 };
#define FILE_MAX ((size_t)1 << 30)

static rf_status no_memory(rf_error *error) { return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory"); }

/* ---- opening --------------------------------------------------------------------------------- */

rf_tokenizer *rf_tokenizer_new(rf_model_kind kind, rf_error *error) {
  rf_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
  if (!tokenizer) return no_memory(error), NULL;
  tokenizer->kind = kind;
  tokenizer->bos_id = tokenizer->eos_id = tokenizer->pad_id = tokenizer->unk_id = -1;
  for (int i = 0; i < BYTES; i++) tokenizer->fallback[i] = -1;
  return tokenizer;
}

void rf_tokenizer_close(rf_tokenizer *tokenizer) {
  if (!tokenizer) return;
  rf_pieces_free(&tokenizer->pieces);
  rf_matcher_free(&tokenizer->raw);
  rf_matcher_free(&tokenizer->normalized);
  rf_normals_free(&tokenizer->normals);
  rf_splits_free(&tokenizer->splits);
  rf_bpe_free(&tokenizer->bpe);
  rf_unigram_free(&tokenizer->unigram);
  free(tokenizer->prefix);
  free(tokenizer->suffix);
  free(tokenizer->decoded.at);
  free(tokenizer->decoded_at);
  free(tokenizer);
}

/* The tokenizer files that a folder may have, in order of preference. */
static const struct reader {
  const char *file, *ending;
  rf_status (*read)(const char *text, size_t bytes, const char *where, rf_tokenizer **tokenizer,
                    rf_error *error);
  bool adds_bos_eos; /* true: for this format, tokenizer_config.json decides whether BOS and EOS are added */
} READERS[] = {
    {"tokenizer.json", ".json", rf_tokenizer_json_read, false},
    /* rf_tokenizer_files_copy writes this file from a GGUF file's vocabulary. The file is mapped,
     * and not read. */
    {"tokenizer.gguf", ".gguf", NULL, false},
    {"tokenizer.model", ".model", rf_tokenizer_sentencepiece_read, true},
    {"tokenizer.bin", ".bin", rf_tokenizer_llama2c_read, false},
};

static const struct reader *reader_in(const char *folder, char *path, size_t size) {
  struct stat info;
  for (size_t i = 0; i < sizeof READERS / sizeof READERS[0]; i++)
    if ((size_t)snprintf(path, size, "%s/%s", folder, READERS[i].file) < size && !stat(path, &info))
      return &READERS[i];
  return NULL;
}

bool rf_tokenizer_in(const char *folder) {
  char path[4200];
  return reader_in(folder, path, sizeof path) != NULL;
}

rf_status rf_tokenizer_open(const char *path, rf_tokenizer **tokenizer, rf_error *error) {
  char found[4200];
  struct stat info;
  const struct reader *reader = NULL;
  *tokenizer = NULL;
  if (!stat(path, &info) && S_ISDIR(info.st_mode)) {
    if (!(reader = reader_in(path, found, sizeof found)))
      return RF_FAIL(error, RAFTER_FAILED, "put tokenizer.json or tokenizer.model next to the weights",
                     "%s has no tokenizer", path);
    path = found;
  }
  for (size_t i = 0; !reader && i < sizeof READERS / sizeof READERS[0]; i++)
    if (rf_text_ends_with(path, READERS[i].ending)) reader = &READERS[i];
  if (!reader)
    return RF_FAIL(error, RAFTER_FAILED,
                   "give a tokenizer.json, a tokenizer.model, a llama2.c .bin, a .gguf, or a folder with one",
                   "%s does not have the name of a tokenizer (expected .json, .model, .bin or .gguf)", path);
  if (!reader->read) return rf_tokenizer_gguf_open(path, tokenizer, error);
  char *text = NULL;
  size_t bytes = 0;
  RF_TRY(rf_file_read(path, FILE_MAX, &text, &bytes, error));
  rf_status status = reader->read(text, bytes, path, tokenizer, error);
  free(text);
  if (status == RAFTER_OK) status = rf_tokenizer_config_apply(*tokenizer, path, reader->adds_bos_eos, error);
  if (status != RAFTER_OK) {
    rf_tokenizer_close(*tokenizer);
    *tokenizer = NULL;
  }
  return status;
}

rf_status rf_tokenizer_byte(const char *model, int64_t vocab, rf_tokenizer **tokenizer, rf_error *error) {
  *tokenizer = NULL;
  if (vocab < BYTES)
    return RF_FAIL(error, RAFTER_INVALID,
                   "raise vocab to 256, or give token shards or rows of token ids instead of text",
                   "%s cannot read text byte by byte (vocab: expected >= %d, got %lld)", model, BYTES,
                   (long long)vocab);
  rf_tokenizer *made = rf_tokenizer_new(RF_TOKENS_BYTE, error);
  if (!made) return RAFTER_FAILED;
  rf_status status = RAFTER_OK;
  for (int byte = 0; byte < BYTES; byte++) {
    char c = (char)byte;
    RF_GO(rf_pieces_put(&made->pieces, byte, (rf_span){&c, 1}, RF_PIECE_NORMAL, "the byte tokenizer", error));
  }
  if (vocab > BYTES) {
    RF_GO(rf_pieces_put(&made->pieces, BYTES, (rf_span){"<end>", 5}, RF_PIECE_CONTROL, "the byte tokenizer",
                        error));
    made->pieces.row[BYTES].special = true;
    made->bos_id = made->eos_id = BYTES;
  }
  RF_GO(rf_pieces_list(&made->pieces, false, "the byte tokenizer", error));
  RF_GO(rf_tokenizer_finish(made, false, false, "the byte tokenizer", error));
done:
  if (status != RAFTER_OK) rf_tokenizer_close(made);
  else *tokenizer = made;
  return status;
}

rf_status rf_tokenizer_for(const char *model, int64_t vocab, const char *folder, rf_tokenizer **tokenizer,
                           rf_error *error) {
  char own[4096];
  bool gguf = folder && rf_text_ends_with(folder, ".gguf");
  if (!folder || !*folder)
    return rf_tokenizer_byte(model, vocab, tokenizer, error); /* the model is given only by its shape */
  rf_tokenizer_folder(folder, own);
  if (!gguf && !rf_tokenizer_in(own)) {
    *tokenizer = NULL;
    if (rf_tokenizer_says_bytes(own)) return rf_tokenizer_byte(model, vocab, tokenizer, error);
    return RF_FAIL(error, RAFTER_INVALID,
                   "put its tokenizer.json, tokenizer.model or tokenizer.bin next to the weights, or give "
                   "token ids instead of text",
                   "%s has no tokenizer to read text with", folder);
  }
  RF_TRY(rf_tokenizer_open(gguf ? folder : own, tokenizer, error));
  /* Every normal token must have an id below `vocab`. A special token may have a larger id. */
  for (int64_t id = vocab; id < (*tokenizer)->pieces.count; id++) {
    if ((*tokenizer)->pieces.row[id].type != RF_PIECE_NORMAL) continue;
    rf_tokenizer_close(*tokenizer);
    *tokenizer = NULL;
    return RF_FAIL(error, RAFTER_FAILED,
                   "the tokenizer belongs to another model; a shape needs a larger vocab",
                   "a token has no row in the model (%s, id %lld: expected below %lld)", own, (long long)id,
                   (long long)vocab);
  }
  return RAFTER_OK;
}

/* ---- functions that every reader calls last -------------------------------------------------- */

rf_status rf_tokenizer_set_bos_eos(rf_tokenizer *tokenizer, const int32_t *prefix, int prefix_count,
                                   const int32_t *suffix, int suffix_count, rf_error *error) {
  int32_t *before = malloc(((size_t)prefix_count + 1) * sizeof *before),
          *after = malloc(((size_t)suffix_count + 1) * sizeof *after);
  if (!before || !after) {
    free(before);
    free(after);
    return no_memory(error);
  }
  if (prefix_count) memcpy(before, prefix, (size_t)prefix_count * sizeof *before);
  if (suffix_count) memcpy(after, suffix, (size_t)suffix_count * sizeof *after);
  free(tokenizer->prefix);
  free(tokenizer->suffix);
  tokenizer->prefix = before;
  tokenizer->suffix = after;
  tokenizer->prefix_count = prefix_count;
  tokenizer->suffix_count = suffix_count;
  return RAFTER_OK;
}

int rf_byte_piece(rf_span piece) {
  static const char DIGITS[] = "0123456789ABCDEF";
  if (piece.bytes != 6 || memcmp(piece.at, "<0x", 3) || piece.at[5] != '>') return -1;
  const char *high = memchr(DIGITS, piece.at[3], 16), *low = memchr(DIGITS, piece.at[4], 16);
  return high && low ? (int)(high - DIGITS) * 16 + (int)(low - DIGITS) : -1;
}

static bool has_mark(rf_span piece) {
  for (size_t i = 0; i + 3 <= piece.bytes; i++)
    if (piece.at[i] == RF_SPACE_MARK[0] && !memcmp(piece.at + i, RF_SPACE_MARK, 3)) return true;
  return false;
}

rf_status rf_tokenizer_finish(rf_tokenizer *tokenizer, bool bytes, bool spaces, const char *where,
                              rf_error *error) {
  const rf_pieces *pieces = &tokenizer->pieces;
  tokenizer->longest = 1;
  tokenizer->decoded_at = malloc(((size_t)pieces->count + 1) * sizeof *tokenizer->decoded_at);
  if (!tokenizer->decoded_at) return no_memory(error);
  for (int64_t id = 0; id < pieces->count; id++) {
    rf_span piece = rf_pieces_at(pieces, id);
    int byte = bytes && !pieces->row[id].special ? rf_byte_piece(piece) : -1;
    tokenizer->decoded_at[id] = UINT64_MAX;
    if (piece.bytes > tokenizer->longest) tokenizer->longest = piece.bytes;
    if (byte >= 0) {
      char c = (char)byte;
      tokenizer->decoded_at[id] = (uint64_t)tokenizer->decoded.bytes << 16 | 1;
      RF_TRY(rf_buffer_add(&tokenizer->decoded, &c, 1, error));
    } else if (spaces && !pieces->row[id].special && has_mark(piece)) {
      size_t first = tokenizer->decoded.bytes;
      RF_TRY(rf_buffer_reserve(&tokenizer->decoded, piece.bytes, error));
      for (size_t i = 0; i < piece.bytes; i++) {
        bool mark = piece.bytes - i >= 3 && !memcmp(piece.at + i, RF_SPACE_MARK, 3);
        tokenizer->decoded.at[tokenizer->decoded.bytes++] = mark ? ' ' : piece.at[i];
        if (mark) i += 2;
      }
      tokenizer->decoded_at[id] = (uint64_t)first << 16 | (tokenizer->decoded.bytes - first);
    }
  }
  if (tokenizer->byte_fallback)
    for (int byte = 0; byte < BYTES && tokenizer->byte_fallback; byte++) {
      char name[8];
      snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
      if (tokenizer->fallback[byte] < 0) tokenizer->fallback[byte] = rf_pieces_find(pieces, name, 6);
    }
  RF_TRY(rf_matcher_sort(&tokenizer->raw, where, error));
  return rf_matcher_sort(&tokenizer->normalized, where, error);
}

/* ---- text to ids ----------------------------------------------------------------------------- */

rf_status rf_encode_unknown(rf_encoding *e, const char *at, size_t bytes, rf_error *error) {
  const rf_tokenizer *tokenizer = e->tokenizer;
  bool all = tokenizer->byte_fallback;
  for (size_t i = 0; i < bytes && all; i++) all = tokenizer->fallback[(unsigned char)at[i]] >= 0;
  for (size_t i = 0; i < bytes && all; i++)
    RF_TRY(rf_ids_add(e->ids, tokenizer->fallback[(unsigned char)at[i]], error));
  if (all) return RAFTER_OK;
  if (tokenizer->unk_id < 0)
    return RF_FAIL(
        error, RAFTER_FAILED, NULL,
        "the vocabulary has no piece for a character of the text and no unknown token (bytes: %02x%s)",
        (unsigned char)*at, bytes > 1 ? "..." : "");
  bool fuses = tokenizer->fuse_unknown && e->ids->count > e->word_ids &&
               e->ids->at[e->ids->count - 1] == tokenizer->unk_id;
  return fuses ? RAFTER_OK : rf_ids_add(e->ids, tokenizer->unk_id, error);
}

static rf_status encode_words(rf_encoding *e, rf_span text, bool first, rf_error *error) {
  const rf_tokenizer *tokenizer = e->tokenizer;
  const rf_splits *splits = &tokenizer->splits;
  e->word_ids = e->ids->count;
  if (!text.bytes) return RAFTER_OK;
  if (splits->prefix || splits->mark) {
    rf_buffer *out = &e->buffer[2];
    const char *space = splits->mark ? RF_SPACE_MARK : " ";
    bool there = text.at[0] == ' ' || (splits->mark && text.bytes >= 3 && !memcmp(text.at, RF_SPACE_MARK, 3));
    out->bytes = 0;
    if (splits->prefix && !there && (first || !splits->prefix_first))
      RF_TRY(rf_buffer_add(out, space, strlen(space), error));
    for (size_t i = 0; i < text.bytes;) {
      const char *hit = splits->mark ? memchr(text.at + i, ' ', text.bytes - i) : NULL;
      size_t n = hit ? (size_t)(hit - text.at) - i : text.bytes - i;
      RF_TRY(rf_buffer_add(out, text.at + i, n, error));
      if (hit) RF_TRY(rf_buffer_add(out, RF_SPACE_MARK, 3, error));
      i += n + (hit != NULL);
    }
    text = (rf_span){out->at, out->bytes};
  }
  rf_word_function *word = tokenizer->kind == RF_TOKENS_BPE ? rf_bpe_word : rf_unigram_word;
  return rf_split_words(splits, &e->effort, text.at, text.bytes, word, e, error);
}

/* Encodes a segment of text. The segment contains no token of tokenizer->raw. */
static rf_status encode_segment(rf_encoding *e, const char *at, const char *end, rf_error *error) {
  const rf_tokenizer *tokenizer = e->tokenizer;
  rf_span text = {at, (size_t)(end - at)};
  bool first = at == e->text;
  if (at == end) return RAFTER_OK;
  RF_TRY(rf_normalize(&tokenizer->normals, text, &e->effort, &e->buffer[0], &e->buffer[1], &text, error));
  const char *from = text.at, *after = text.at + text.bytes, *start, *stop;
  int32_t id;
  while (rf_matcher_next(&tokenizer->normalized, text.at, from, after, e->specials, &start, &stop, &id)) {
    RF_TRY(encode_words(e, (rf_span){from, (size_t)(start - from)}, first && from == text.at, error));
    RF_TRY(rf_ids_add(e->ids, id, error));
    from = stop;
  }
  return encode_words(e, (rf_span){from, (size_t)(after - from)}, first && from == text.at, error);
}

static rf_status encode_text(rf_encoding *e, rf_error *error) {
  const char *from = e->text, *start, *stop;
  int32_t id;
  while (rf_matcher_next(&e->tokenizer->raw, e->text, from, e->end, e->specials, &start, &stop, &id)) {
    RF_TRY(encode_segment(e, from, start, error));
    RF_TRY(rf_ids_add(e->ids, id, error));
    from = stop;
  }
  return encode_segment(e, from, e->end, error);
}

rf_status rf_tokenizer_encode(const rf_tokenizer *tokenizer, const char *text, size_t bytes, int flags,
                              rf_ids *ids, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_encoding e = {.tokenizer = tokenizer,
                   .ids = ids,
                   .specials = flags & RF_ENCODE_PARSE,
                   .text = text,
                   .end = text + bytes,
                   .effort = rf_effort_for(bytes)};
  if (bytes > FILE_MAX)
    return RF_FAIL(error, RAFTER_FAILED, "split the text",
                   "the text is too long (expected at most %zu bytes, got %zu)", FILE_MAX, bytes);
  if (tokenizer->kind == RF_TOKENS_BYTE) {
    RF_TRY(rf_ids_reserve(ids, (int64_t)bytes, error));
    for (size_t i = 0; i < bytes; i++) ids->at[ids->count++] = (unsigned char)text[i];
    return RAFTER_OK;
  }
  RF_TRY(rf_ids_reserve(ids, (int64_t)bytes / 4, error));
  if (flags & RF_ENCODE_BOS_EOS)
    for (int i = 0; i < tokenizer->prefix_count; i++) RF_TRY(rf_ids_add(ids, tokenizer->prefix[i], error));
  if (tokenizer->kind == RF_TOKENS_BPE) RF_GO(rf_cache_new(&e, bytes, error));
  RF_GO(encode_text(&e, error));
  if (flags & RF_ENCODE_BOS_EOS)
    for (int i = 0; i < tokenizer->suffix_count; i++) RF_GO(rf_ids_add(ids, tokenizer->suffix[i], error));
done:
  rf_effort_free(&e.effort);
  for (int i = 0; i < 3; i++) free(e.buffer[i].at);
  free(e.cache);
  free(e.symbols);
  free(e.next);
  free(e.previous);
  free(e.heap);
  free(e.path_score);
  free(e.path_from);
  free(e.path_id);
  return status;
}

/* ---- facts ----------------------------------------------------------------------------------- */

const char *rf_tokenizer_name(const rf_tokenizer *tokenizer) {
  if (tokenizer->kind == RF_TOKENS_BYTE) return "byte";
  return tokenizer->kind == RF_TOKENS_UNIGRAM ? "unigram"
         : tokenizer->bpe.byte_level          ? "byte-level bpe"
                                              : "bpe";
}
int64_t rf_tokenizer_vocab(const rf_tokenizer *tokenizer) { return tokenizer->pieces.count; }
int64_t rf_tokenizer_scored_bytes(const rf_tokenizer *tokenizer) { return tokenizer->scored_bytes; }
int64_t rf_tokenizer_json_bytes(const rf_tokenizer *tokenizer) { return tokenizer->json_bytes; }
bool rf_tokenizer_is_special(const rf_tokenizer *tokenizer, int32_t id) {
  return id >= 0 && id < tokenizer->pieces.count && tokenizer->pieces.row[id].special;
}
int32_t rf_tokenizer_bos(const rf_tokenizer *tokenizer) { return tokenizer->bos_id; }
int32_t rf_tokenizer_eos(const rf_tokenizer *tokenizer) { return tokenizer->eos_id; }
int32_t rf_tokenizer_pad(const rf_tokenizer *tokenizer) { return tokenizer->pad_id; }
int32_t rf_tokenizer_unk(const rf_tokenizer *tokenizer) { return tokenizer->unk_id; }
bool rf_tokenizer_is_byte(const rf_tokenizer *tokenizer) { return tokenizer->kind == RF_TOKENS_BYTE; }
