/* tokenizer_gguf_write.c - writes a tokenizer as GGUF metadata, with the values that llama.cpp's
 * converter writes. Source: llama.cpp, convert_hf_to_gguf.py (set_vocab and its helpers) and
 * llama-vocab.cpp, which reads the metadata. Scores give the order of SentencePiece's merges: the
 * score of a piece is minus the rank of the first merge that makes the piece. Only the order of
 * scores matters. A byte-level BPE keeps its merges, and the metadata names its pre-tokenizer. If
 * GGUF has no name for the pre-tokenizer, the tokenizer cannot be written. */
#include "text/tokenizer_parts.h"

#include "formats/gguf.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct writing {
  const rf_tokenizer *t;
  const char *where;
  rf_error *error;
  int64_t count;       /* number of ids, which is the number of rows of the model's embedding table */
  rf_buffer text;      /* all pieces and merges */
  rf_gguf_text *piece; /* piece of each id; `at` is an offset in `text` until all pieces are added */
  int32_t *type;
  float *score;
} writing;

static rf_status no_place(const writing *w, const char *what) {
  return RF_FAIL(w->error, RAFTER_INVALID, NULL, "GGUF cannot represent the tokenizer of %s (%s)", w->where,
                 what);
}

/* ---- what GGUF can represent ----------------------------------------------------------------- */

static bool is_literal(const rf_normal *n, const char *from, const char *to) {
  return !n->pattern && n->from_bytes == strlen(from) && n->to_bytes == strlen(to) &&
         !memcmp(n->from, from, n->from_bytes) && !memcmp(n->to, to, n->to_bytes);
}

/* Accepts only two normalizers. One replaces spaces by U+2581, and the other puts U+2581 before the
 * text. */
static rf_status check_pieces(const writing *w, bool *space_prefix) {
  const rf_tokenizer *t = w->t;
  bool spaces_replaced = t->splits.mark;
  *space_prefix = t->splits.prefix;
  for (int i = 0; i < t->normals.count; i++) {
    const rf_normal *n = &t->normals.at[i];
    if (n->kind == RF_NORMAL_PREPEND && n->to_bytes == 3 && !memcmp(n->to, RF_SPACE_MARK, 3))
      *space_prefix = true;
    else if (n->kind == RF_NORMAL_REPLACE && is_literal(n, " ", RF_SPACE_MARK)) spaces_replaced = true;
    else return no_place(w, "its normalizer");
  }
  if (!spaces_replaced) return no_place(w, "its pieces contain plain spaces");
  /* Splitting at spaces has no effect, because the normalizers have replaced all spaces. Splitting
   * before U+2581 has no effect either, because U+2581 occurs only at the start of pieces. */
  for (int i = 0; i < t->splits.count; i++) {
    const char *text = rf_pattern_literal(t->splits.at[i].pattern);
    if (!text || (strcmp(text, " ") != 0 && strcmp(text, RF_SPACE_MARK) != 0))
      return no_place(w, "its pre-tokenizer");
  }
  return RAFTER_OK;
}

/* Qwen's tokenizer.json normalizes to NFC. As in llama.cpp's converter, the step NFC is dropped. */
static rf_status check_bytes(const writing *w, const char **pre) {
  const rf_tokenizer *t = w->t;
  for (int i = 0; i < t->normals.count; i++)
    if (t->normals.at[i].kind != RF_NORMAL_UNICODE) return no_place(w, "its normalizer");
  if (t->splits.prefix || t->splits.mark)
    return no_place(w, "its pre-tokenizer adds a space before the text");
  *pre = rf_splits_name(&t->splits, t->bpe.ignore_merges);
  return *pre ? RAFTER_OK : no_place(w, "its pre-tokenizer has no GGUF name");
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static rf_status put_text(writing *w, rf_gguf_text *to, const char *at, size_t bytes) {
  *to = (rf_gguf_text){(const char *)(uintptr_t)w->text.bytes, (int64_t)bytes};
  return rf_buffer_add(&w->text, at, bytes, w->error);
}

static rf_status put_alphabet(writing *w, rf_gguf_text *to, rf_span bytes) {
  char out[2 * RF_PIECE_MAX];
  return put_text(w, to, out, rf_alphabet_text(bytes, out));
}

static rf_status put_piece(writing *w, int64_t id) {
  const rf_tokenizer *t = w->t;
  const rf_piece_row *row = &t->pieces.row[id];
  char filler[32];
  if (id >= t->pieces.count || row->type == 0) {
    w->type[id] = RF_PIECE_UNUSED;
    return put_text(w, &w->piece[id], filler,
                    (size_t)snprintf(filler, sizeof filler, "[PAD%lld]", (long long)id));
  }
  rf_span piece = rf_pieces_at(&t->pieces, id);
  w->type[id] = row->type;
  if (id == t->unk_id && !t->bpe.byte_level) w->type[id] = RF_PIECE_UNKNOWN;
  else if (row->special) w->type[id] = RF_PIECE_CONTROL;
  else if (t->byte_fallback && rf_byte_piece(piece) >= 0 && t->fallback[rf_byte_piece(piece)] == id)
    w->type[id] = RF_PIECE_BYTE;
  if (t->bpe.byte_level && row->type == RF_PIECE_NORMAL && !row->special)
    return put_alphabet(w, &w->piece[id], piece);
  return put_text(w, &w->piece[id], piece.at, piece.bytes);
}

/* Writes each added token as the text that it matches. As in files of llama.cpp's converter, user
 * tokens contain spaces instead of U+2581. */
static rf_status put_added(writing *w, const rf_matcher *matcher) {
  for (int i = 0; i < matcher->count; i++) {
    const rf_added *added = &matcher->at[i];
    /* Tokens outside t->raw match normalized text. The pieces of such tokens have the original
     * spelling. */
    bool as_written = matcher == &w->t->raw;
    if (added->id >= w->count) return no_place(w, "an added token has no row in the embedding table");
    if (!added->special && w->type[added->id] != RF_PIECE_CONTROL) w->type[added->id] = RF_PIECE_USER;
    char spelled[RF_PIECE_MAX];
    size_t n = 0;
    rf_span text = as_written ? added->text : rf_pieces_at(&w->t->pieces, added->id);
    for (size_t k = 0; k < text.bytes && n < sizeof spelled; k++) {
      bool mark = !added->special && !w->t->bpe.byte_level && text.bytes - k >= 3 &&
                  !memcmp(text.at + k, RF_SPACE_MARK, 3);
      spelled[n++] = mark ? ' ' : text.at[k];
      if (mark) k += 2;
    }
    RF_TRY(put_text(w, &w->piece[added->id], spelled, n));
  }
  return RAFTER_OK;
}

static rf_status put_pieces(writing *w) {
  for (int64_t id = 0; id < w->count; id++) RF_TRY(put_piece(w, id));
  RF_TRY(put_added(w, &w->t->raw));
  return put_added(w, &w->t->normalized);
}

static rf_status put_merges(writing *w, rf_gguf_meta *meta) {
  const rf_bpe *bpe = &w->t->bpe;
  rf_status status = RAFTER_OK;
  rf_pair *order = rf_bpe_sorted(bpe);
  rf_gguf_text *merge = malloc(((size_t)bpe->pairs + 1) * sizeof *merge);
  if (!order || !merge) {
    status = RF_FAIL(w->error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  for (int64_t i = 0; i < bpe->pairs; i++) {
    char text[4 * RF_PIECE_MAX + 1];
    size_t n = rf_alphabet_text(rf_pieces_at(&w->t->pieces, order[i].left), text);
    text[n++] = ' ';
    n += rf_alphabet_text(rf_pieces_at(&w->t->pieces, order[i].right), text + n);
    RF_GO(put_text(w, &merge[i], text, n));
  }
  for (int64_t i = 0; i < bpe->pairs; i++) merge[i].at = w->text.at + (uintptr_t)merge[i].at;
  if (!rf_gguf_set_texts(meta, "tokenizer.ggml.merges", merge, bpe->pairs))
    status = RF_FAIL(w->error, RAFTER_FAILED, NULL, "out of memory");
done:
  free(order);
  free(merge);
  return status;
}

static void fill_scores(const writing *w) {
  const rf_bpe *bpe = &w->t->bpe;
  /* A piece that is not the result of any merge gets the lowest score. */
  for (int64_t id = 0; id < w->count; id++) w->score[id] = w->type[id] == RF_PIECE_NORMAL ? -1e9f : 0;
  for (uint64_t i = 0; bpe->slots && i <= bpe->mask; i++) {
    const rf_pair *pair = &bpe->slots[i];
    if (pair->rank != RF_NO_RANK && pair->id < w->count && -(float)pair->rank > w->score[pair->id])
      w->score[pair->id] = -(float)pair->rank;
  }
  for (int64_t id = 0; bpe->rank && id < w->t->pieces.count && id < w->count; id++)
    if (bpe->rank[id] != RF_NO_RANK) w->score[id] = -(float)bpe->rank[id];
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Writes a special id; UINT32_MAX: none. Without the key, llama.cpp assumes Llama's id. */
static bool set_id(const writing *w, rf_gguf_meta *meta, const char *key, int32_t id) {
  if (id < 0 && w->t->bpe.byte_level) return true;
  return rf_gguf_set_int(meta, key, RF_GGUF_U32, id < 0 ? (int64_t)UINT32_MAX : id);
}

static bool put_bos_eos(const writing *w, bool bos, bool eos, rf_gguf_meta *meta) {
  const rf_tokenizer *t = w->t;
  return set_id(w, meta, "tokenizer.ggml.bos_token_id", t->bos_id) &&
         set_id(w, meta, "tokenizer.ggml.eos_token_id", t->eos_id) &&
         set_id(w, meta, "tokenizer.ggml.unknown_token_id", t->unk_id) &&
         (t->pad_id < 0 ||
          rf_gguf_set_int(meta, "tokenizer.ggml.padding_token_id", RF_GGUF_U32, t->pad_id)) &&
         rf_gguf_set_bool(meta, "tokenizer.ggml.add_bos_token", bos) &&
         rf_gguf_set_bool(meta, "tokenizer.ggml.add_eos_token", eos);
}

/* All checks come first. If the tokenizer cannot be written, this order leaves the metadata
 * unchanged. */
static rf_status write_all(writing *w, rf_gguf_meta *meta) {
  const rf_tokenizer *t = w->t;
  const char *pre = "default";
  bool space_prefix = false, bytes = t->bpe.byte_level;
  bool bos = t->prefix_count == 1 && t->prefix[0] == t->bos_id,
       eos = t->suffix_count == 1 && t->suffix[0] == t->eos_id;
  if (t->kind != RF_TOKENS_BPE) return no_place(w, rf_tokenizer_name(t));
  if (t->pieces.count > w->count) return no_place(w, "it has more tokens than the model has rows");
  if (t->prefix_count != bos || t->suffix_count != eos)
    return no_place(w, "the tokens that it adds around a text");
  RF_TRY(bytes ? check_bytes(w, &pre) : check_pieces(w, &space_prefix));
  RF_TRY(put_pieces(w));
  if (bytes) RF_TRY(put_merges(w, meta));
  else fill_scores(w);
  for (int64_t id = 0; id < w->count; id++) w->piece[id].at = w->text.at + (uintptr_t)w->piece[id].at;
  bool done = rf_gguf_set_text(meta, "tokenizer.ggml.model", bytes ? "gpt2" : "llama") &&
              rf_gguf_set_text(meta, "tokenizer.ggml.pre", pre) &&
              rf_gguf_set_texts(meta, "tokenizer.ggml.tokens", w->piece, w->count) &&
              rf_gguf_set_i32s(meta, "tokenizer.ggml.token_type", w->type, w->count) &&
              put_bos_eos(w, bos, eos, meta);
  if (!bytes) done = done && rf_gguf_set_f32s(meta, "tokenizer.ggml.scores", w->score, w->count);
  if (!bytes) done = done && rf_gguf_set_bool(meta, "tokenizer.ggml.add_space_prefix", space_prefix);
  return done ? RAFTER_OK : RF_FAIL(w->error, RAFTER_FAILED, NULL, "out of memory");
}

rf_status rf_tokenizer_gguf_write(const rf_tokenizer *tokenizer, int64_t vocab, const char *where,
                                  rf_gguf_meta *meta, rf_error *error) {
  writing w = {.t = tokenizer, .where = where, .error = error, .count = vocab};
  w.piece = calloc((size_t)vocab + 1, sizeof *w.piece);
  w.type = calloc((size_t)vocab + 1, sizeof *w.type);
  w.score = calloc((size_t)vocab + 1, sizeof *w.score);
  rf_status status = w.piece && w.type && w.score ? write_all(&w, meta)
                                                  : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  free(w.text.at);
  free(w.piece);
  free(w.type);
  free(w.score);
  return status;
}
