/* tokenizer_build.c - builds a tokenizer from a vocabulary in memory. */
#include "text/tokenizer_parts.h"

#include <math.h>
#include <stdlib.h>

/* GPT-2's alphabet: printable Latin-1 bytes are the characters with the same codes. The other bytes
 * (0..32, 127..160, 173) become the characters from U+0100 on, in this order. */
static int alphabet_byte(uint32_t code) {
  enum { LOW = 33, MIDDLE = 34 };
  if ((code >= 33 && code <= 126) || (code >= 161 && code <= 172) || (code >= 174 && code <= 255))
    return (int)code;
  if (code < 256 || code > 256 + LOW + MIDDLE) return -1;
  code -= 256;
  return code < LOW ? (int)code : code < LOW + MIDDLE ? (int)(127 + code - LOW) : 173;
}

int64_t rf_alphabet_bytes(rf_span piece, char *out) {
  int64_t count = 0;
  for (const char *at = piece.at, *end = at + piece.bytes; at < end; count++) {
    int n = rf_utf8_length(at, end), byte = n ? alphabet_byte(rf_utf8_code(at, n)) : -1;
    if (byte < 0) return -1;
    out[count] = (char)byte;
    at += n;
  }
  return count;
}

size_t rf_alphabet_text(rf_span bytes, char *out) {
  size_t count = 0;
  for (size_t i = 0; i < bytes.bytes; i++) {
    uint32_t byte = (unsigned char)bytes.at[i], code = byte;
    if (byte <= 32) code = 256 + byte;
    else if (byte >= 127 && byte <= 160) code = 256 + 33 + byte - 127;
    else if (byte == 173) code = 256 + 33 + 34;
    count += (size_t)rf_utf8_put(code, out + count);
  }
  return count;
}

static int type_of(const rf_vocabulary *v, int64_t id, bool byte_pieces) {
  if (v->types) return v->types[id];
  if (id == v->unk_id) return RF_PIECE_UNKNOWN;
  if (id == v->bos_id || id == v->eos_id || id == v->pad_id) return RF_PIECE_CONTROL;
  return byte_pieces && rf_byte_piece(v->pieces[id]) >= 0 ? RF_PIECE_BYTE : RF_PIECE_NORMAL;
}

/* Adds all pieces. Special pieces and user pieces are also added to a matcher, which finds them in
 * the text before the model runs. */
static rf_status add_pieces(rf_tokenizer *t, const rf_vocabulary *v, bool byte_level, const char *where,
                            rf_error *error) {
  char bytes[RF_PIECE_MAX];
  RF_TRY(rf_pieces_reserve(&t->pieces, v->count, error));
  for (int64_t id = 0; id < v->count; id++) {
    int type = type_of(v, id, !byte_level);
    rf_span piece = v->pieces[id];
    if (type < RF_PIECE_NORMAL || type > RF_PIECE_BYTE)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "a piece has an unknown type (%s, id %lld: expected 1 to 6, got %d)", where,
                     (long long)id, type);
    bool special = type == RF_PIECE_CONTROL || type == RF_PIECE_UNKNOWN,
         /* A unigram model chooses user pieces by their scores, without the matcher. */
        found = special || (type == RF_PIECE_USER && t->kind == RF_TOKENS_BPE);
    if (byte_level && type == RF_PIECE_NORMAL && piece.bytes <= RF_PIECE_MAX) {
      int64_t n = rf_alphabet_bytes(piece, bytes);
      if (n >= 0) piece = (rf_span){bytes, (size_t)n};
    }
    RF_TRY(rf_pieces_put(&t->pieces, id, piece, (rf_piece_type)type, where, error));
    t->pieces.row[id].special = special;
    int byte = type == RF_PIECE_BYTE ? rf_byte_piece(piece) : -1;
    if (type == RF_PIECE_BYTE && byte < 0)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "a byte piece names no byte (%s, id %lld: expected <0x00> to <0xFF>, got '%.*s')", where,
                     (long long)id, (int)(piece.bytes < 20 ? piece.bytes : 20), piece.at);
    if (byte >= 0) {
      t->fallback[byte] = (int32_t)id;
      t->byte_fallback = true;
    }
    if (!found || !piece.bytes) continue;
    /* SentencePiece searches for user pieces after it replaced spaces by U+2581. GGUF may spell
     * user pieces with spaces. */
    rf_buffer marked = {0};
    rf_status status = RAFTER_OK;
    bool normalized = !special && !byte_level;
    for (size_t i = 0; i < piece.bytes && status == RAFTER_OK; i++) {
      bool mark = normalized && !v->plain_spaces && piece.at[i] == ' ';
      status = mark ? rf_buffer_add(&marked, RF_SPACE_MARK, 3, error)
                    : rf_buffer_add(&marked, piece.at + i, 1, error);
    }
    rf_added added = {.text = {marked.at, marked.bytes}, .id = (int32_t)id, .special = special};
    if (status == RAFTER_OK) status = rf_matcher_add(normalized ? &t->normalized : &t->raw, &added, error);
    free(marked.at);
    RF_TRY(status);
  }
  return rf_pieces_list(&t->pieces, !byte_level, where, error);
}

typedef struct ranked {
  float score;
  int32_t id;
} ranked;

static int by_score(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                              : (x->id > y->id) - (x->id < y->id);
}

/* SentencePiece merges two symbols if their joined text is a piece. The piece with the best score
 * is merged first. So each distinct score becomes a rank. The pairs are not listed, because listing
 * them (1.6 million for Gemma) would take longer than most encodings. */
static rf_status add_ranks(rf_tokenizer *t, const rf_vocabulary *v, const char *where, rf_error *error) {
  rf_status status = RAFTER_OK;
  ranked *order = malloc(((size_t)v->count + 1) * sizeof *order);
  uint32_t *rank = t->bpe.rank = malloc(((size_t)v->count + 1) * sizeof *rank), last = 0;
  int64_t count = 0;
  bool sorted = true;
  if (!order || !rank) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  for (int64_t id = 0; id < v->count; id++) {
    rank[id] = RF_NO_RANK;
    if (!isfinite(v->scores[id])) {
      status =
          RF_FAIL(error, RAFTER_FAILED, NULL, "a score is not finite (%s, id %lld)", where, (long long)id);
      goto done;
    }
    const rf_piece_row *row = &t->pieces.row[id];
    if ((row->type != RF_PIECE_NORMAL && row->type != RF_PIECE_USER) || row->bytes < 2) continue;
    if (row->bytes > t->bpe.longest) t->bpe.longest = row->bytes;
    t->scored_bytes += row->bytes;
    order[count] = (ranked){v->scores[id], (int32_t)id};
    sorted = sorted && (!count || by_score(&order[count - 1], &order[count]) < 0);
    count++;
  }
  if (!sorted) qsort(order, (size_t)count, sizeof *order, by_score);
  for (int64_t i = 0; i < count; i++) {
    if (i && order[i].score != order[i - 1].score) last++;
    rank[order[i].id] = last;
  }
done:
  free(order);
  return status;
}

static rf_status add_merges(rf_tokenizer *t, const rf_vocabulary *v, const char *where, rf_error *error) {
  char text[2 * RF_PIECE_MAX];
  RF_TRY(rf_bpe_reserve(&t->bpe, v->merge_count, error));
  for (int64_t rank = 0; rank < v->merge_count; rank++) {
    rf_span merge = v->merges[rank];
    const char *space = merge.bytes > 1 ? memchr(merge.at + 1, ' ', merge.bytes - 1) : NULL;
    int64_t left_bytes = -1, right_bytes = -1;
    if (space && merge.bytes < sizeof text) {
      left_bytes = rf_alphabet_bytes((rf_span){merge.at, (size_t)(space - merge.at)}, text);
      if (left_bytes > 0)
        right_bytes = rf_alphabet_bytes((rf_span){space + 1, merge.bytes - (size_t)(space + 1 - merge.at)},
                                        text + left_bytes);
    }
    int32_t left = right_bytes > 0 ? rf_pieces_find(&t->pieces, text, (size_t)left_bytes) : -1;
    int32_t right = left >= 0 ? rf_pieces_find(&t->pieces, text + left_bytes, (size_t)right_bytes) : -1;
    int32_t id = right >= 0 ? rf_pieces_find(&t->pieces, text, (size_t)(left_bytes + right_bytes)) : -1;
    if (id < 0)
      return RF_FAIL(error, RAFTER_FAILED, NULL,
                     "a merge does not join two pieces into a third (%s, merge %lld: '%.*s')", where,
                     (long long)rank, (int)(merge.bytes < 80 ? merge.bytes : 80), merge.at);
    rf_bpe_pair(&t->bpe, (uint32_t)left, (uint32_t)right, (uint32_t)rank, (uint32_t)id);
  }
  return RAFTER_OK;
}

/* ---- building -------------------------------------------------------------------------------- */

static const struct kind {
  const char *name;
  rf_model_kind model;
  bool byte_level;
} KINDS[] = {
    {"llama", RF_TOKENS_BPE, false}, {"unigram", RF_TOKENS_UNIGRAM, false}, {"gpt2", RF_TOKENS_BPE, true}};

static rf_status check_id(const rf_vocabulary *v, int32_t id, const char *name, const char *where,
                          rf_error *error) {
  if (id >= -1 && id < v->count) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_FAILED, NULL,
                 "a special id is out of range (%s, %s: expected -1 to %lld, got %d)", where, name,
                 (long long)v->count - 1, id);
}

static rf_status add_unigram(rf_tokenizer *t, const rf_vocabulary *v, const char *where, rf_error *error) {
  double *scores = malloc(((size_t)v->count + 1) * sizeof *scores);
  if (!scores) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  for (int64_t id = 0; id < v->count; id++) scores[id] = (double)v->scores[id];
  rf_status status = rf_unigram_build(t, scores, true, where, error);
  free(scores);
  return status;
}

static rf_status fill_tokenizer(rf_tokenizer *t, const rf_vocabulary *v, const struct kind *kind,
                                const char *where, rf_error *error) {
  rf_span none = {"", 0}, space = {v->plain_spaces ? " " : RF_SPACE_MARK, v->plain_spaces ? 1 : 3};
  t->bpe.byte_level = kind->byte_level;
  t->fuse_unknown = true;
  t->bos_id = v->bos_id;
  t->eos_id = v->eos_id;
  t->pad_id = v->pad_id;
  t->unk_id = v->unk_id;
  if (!kind->byte_level) {
    if (v->remove_extra_whitespace) {
      RF_TRY(rf_normals_add(&t->normals, RF_NORMAL_SQUEEZE, none, none, where, error));
      t->normals.at[0].right = !v->plain_spaces;
    }
    if (v->dummy_prefix) RF_TRY(rf_normals_add(&t->normals, RF_NORMAL_PREPEND, none, space, where, error));
    if (!v->plain_spaces)
      RF_TRY(rf_normals_add(&t->normals, RF_NORMAL_REPLACE, (rf_span){" ", 1}, space, where, error));
    t->strip_leading = v->dummy_prefix;
  } else RF_TRY(rf_splits_named(v->pre, &t->splits, &t->bpe.ignore_merges, where, error));
  RF_TRY(add_pieces(t, v, kind->byte_level, where, error));
  if (kind->model == RF_TOKENS_UNIGRAM) RF_TRY(add_unigram(t, v, where, error));
  else RF_TRY(kind->byte_level ? add_merges(t, v, where, error) : add_ranks(t, v, where, error));
  if (kind->model == RF_TOKENS_BPE) RF_TRY(rf_bpe_finish(t, where, error));
  RF_TRY(rf_tokenizer_set_bos_eos(t, &v->bos_id, v->add_bos && v->bos_id >= 0, &v->eos_id,
                                  v->add_eos && v->eos_id >= 0, error));
  return rf_tokenizer_finish(t, !kind->byte_level, !kind->byte_level && !v->plain_spaces, where, error);
}

rf_status rf_tokenizer_build(const rf_vocabulary *v, const char *where, rf_tokenizer **tokenizer,
                             rf_error *error) {
  const struct kind *kind = NULL;
  *tokenizer = NULL;
  for (size_t i = 0; i < sizeof KINDS / sizeof KINDS[0]; i++)
    if (v->kind && !strcmp(KINDS[i].name, v->kind)) kind = &KINDS[i];
  if (v->kind && (!strcmp(v->kind, "no_vocab") || !strcmp(v->kind, "none"))) /* llama.cpp uses both names */
    return RF_FAIL(error, RAFTER_INVALID, "give token ids instead of text",
                   "%s has no tokenizer to read text with", where);
  if (!kind)
    return RF_FAIL(error, RAFTER_FAILED, "supported: llama, unigram and gpt2",
                   "unknown kind of vocabulary (%s: '%s')", where, v->kind ? v->kind : "none named");
  if (v->count < 1 || v->count > INT32_MAX / 4 || !v->pieces || (!kind->byte_level && !v->scores))
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "the vocabulary is incomplete (%s: expected pieces%s, got %lld)", where,
                   kind->byte_level ? "" : " and scores", (long long)v->count);
  RF_TRY(check_id(v, v->bos_id, "bos", where, error));
  RF_TRY(check_id(v, v->eos_id, "eos", where, error));
  RF_TRY(check_id(v, v->pad_id, "pad", where, error));
  RF_TRY(check_id(v, v->unk_id, "unk", where, error));
  rf_tokenizer *made = rf_tokenizer_new(kind->model, error);
  if (!made) return RAFTER_FAILED;
  rf_status status = fill_tokenizer(made, v, kind, where, error);
  if (status != RAFTER_OK) rf_tokenizer_close(made);
  else *tokenizer = made;
  return status;
}
