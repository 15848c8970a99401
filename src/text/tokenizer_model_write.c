/* tokenizer_model_write.c - writes the SentencePiece vocabulary of a GGUF file as tokenizer.model,
 * for libraries that do not read GGUF. See tokenizer_sentencepiece.c for the fields. A vocabulary
 * is written only if SentencePiece encodes every text to the same ids as rafter. SentencePiece
 * gives the same ids for BPE with scores and without unused pieces. */
#include "text/tokenizer_parts.h"

#include "base/file.h"
#include "formats/gguf_facts.h"

#include <stdio.h>
#include <stdlib.h>

enum { VARINT = 0, BYTES = 2, FOUR = 5 };

static rf_status put_varint(rf_buffer *to, uint64_t value, rf_error *error) {
  char out[10];
  size_t n = 0;
  for (; value >= 0x80; value >>= 7) out[n++] = (char)(value | 0x80);
  out[n++] = (char)value;
  return rf_buffer_add(to, out, n, error);
}

static rf_status put_number(rf_buffer *to, int field, int64_t value, rf_error *error) {
  RF_TRY(put_varint(to, (uint64_t)field << 3 | VARINT, error));
  return put_varint(to, (uint64_t)value, error);
}

static rf_status put_bytes(rf_buffer *to, int field, const char *at, size_t bytes, rf_error *error) {
  RF_TRY(put_varint(to, (uint64_t)field << 3 | BYTES, error));
  RF_TRY(put_varint(to, bytes, error));
  return rf_buffer_add(to, at, bytes, error);
}

static rf_status put_float(rf_buffer *to, int field, float value, rf_error *error) {
  uint32_t bits;
  char out[4];
  memcpy(&bits, &value, sizeof bits);
  for (int i = 0; i < 4; i++) out[i] = (char)(bits >> 8 * i);
  RF_TRY(put_varint(to, (uint64_t)field << 3 | FOUR, error));
  return rf_buffer_add(to, out, sizeof out, error);
}

static int kind_of(const rf_gguf_vocab *v, int64_t id) {
  return id == v->unknown ? RF_GGUF_TOKEN_UNKNOWN : v->kind[id];
}

/* GGUF spells user tokens with spaces, but SentencePiece spells them with U+2581. */
static rf_status put_spelling(const rf_gguf_vocab *v, int64_t id, rf_buffer *to, rf_error *error) {
  const rf_gguf_text *piece = &v->token[id];
  bool marks = kind_of(v, id) == RF_GGUF_TOKEN_USER;
  to->bytes = 0;
  for (int64_t i = 0; i < piece->bytes; i++)
    if (marks && piece->at[i] == ' ') RF_TRY(rf_buffer_add(to, RF_SPACE_MARK, 3, error));
    else RF_TRY(rf_buffer_add(to, piece->at + i, 1, error));
  return RAFTER_OK;
}

static int by_text(const void *a, const void *b) {
  const rf_gguf_text *x = a, *y = b;
  int order = memcmp(x->at, y->at, (size_t)(x->bytes < y->bytes ? x->bytes : y->bytes));
  return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* True if the vocabulary meets SentencePiece's conditions. The pieces are distinct and not empty,
 * and one piece is the unknown piece. Either all 256 byte pieces exist, or no byte piece exists. */
static bool has_place(const rf_gguf_vocab *v) {
  int64_t bytes = 0, unknown = 0;
  bool fits = v->model.bytes == 5 && !memcmp(v->model.at, "llama", 5) && v->score && v->kind && v->count > 0;
  for (int64_t id = 0; fits && id < v->count; id++) {
    int kind = kind_of(v, id);
    bytes += kind == RF_GGUF_TOKEN_BYTE;
    unknown += kind == RF_GGUF_TOKEN_UNKNOWN;
    fits = kind >= RF_GGUF_TOKEN_NORMAL && kind <= RF_GGUF_TOKEN_BYTE && kind != RF_GGUF_TOKEN_UNUSED &&
           v->token[id].bytes > 0;
  }
  if (!fits || unknown != 1 || (bytes && bytes != 256)) return false;
  rf_gguf_text *sorted = malloc((size_t)v->count * sizeof *sorted);
  if (!sorted) return false;
  memcpy(sorted, v->token, (size_t)v->count * sizeof *sorted);
  qsort(sorted, (size_t)v->count, sizeof *sorted, by_text);
  for (int64_t i = 1; fits && i < v->count; i++) fits = by_text(&sorted[i - 1], &sorted[i]) != 0;
  free(sorted);
  return fits;
}

static rf_status put_pieces(const rf_gguf_vocab *v, rf_buffer *to, rf_error *error) {
  rf_buffer piece = {0}, text = {0};
  rf_status status = RAFTER_OK;
  for (int64_t id = 0; id < v->count; id++) {
    piece.bytes = 0;
    RF_GO(put_spelling(v, id, &text, error));
    RF_GO(put_bytes(&piece, 1, text.at, text.bytes, error));
    RF_GO(put_float(&piece, 2, v->score[id], error));
    RF_GO(put_number(&piece, 3, kind_of(v, id), error));
    RF_GO(put_bytes(to, 1, piece.at, piece.bytes, error));
  }
done:
  free(piece.at);
  free(text.at);
  return status;
}

/* ---- trainer and normalizer specification ---------------------------------------------------- */

static rf_status put_trainer(const rf_gguf_vocab *v, rf_buffer *to, rf_error *error) {
  enum { BPE = 2 };
  /* fields 40 to 43 of the file (fields 45 to 48 have the pieces of these ids) */
  const int32_t id[] = {v->unknown, v->bos, v->eos, v->pad};
  bool bytes = false;
  for (int64_t i = 0; i < v->count; i++) bytes |= v->kind[i] == RF_GGUF_TOKEN_BYTE;
  RF_TRY(put_number(to, 3, BPE, error));
  RF_TRY(put_number(to, 4, v->count, error));
  RF_TRY(put_number(to, 35, bytes, error));
  for (int i = 0; i < 4; i++) RF_TRY(put_number(to, 40 + i, id[i], error));
  for (int i = 0; i < 4; i++)
    if (id[i] >= 0) RF_TRY(put_bytes(to, 45 + i, v->token[id[i]].at, (size_t)v->token[id[i]].bytes, error));
  return RAFTER_OK;
}

static rf_status put_normalizer(const rf_gguf_vocab *v, rf_buffer *to, rf_error *error) {
  RF_TRY(put_bytes(to, 1, "identity", 8, error));
  RF_TRY(put_number(to, 3, v->add_space_prefix, error)); /* add_dummy_prefix */
  RF_TRY(put_number(to, 4, 0, error));                   /* remove_extra_whitespaces */
  return put_number(to, 5, 1, error);                    /* escape_whitespaces */
}

rf_status rf_tokenizer_model_write(const rf_gguf_vocab *v, const char *folder, bool *written,
                                   rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_buffer whole = {0}, part = {0};
  char path[4400];
  *written = false;
  if (!has_place(v)) return RAFTER_OK;
  RF_GO(put_pieces(v, &whole, error));
  RF_GO(put_trainer(v, &part, error));
  RF_GO(put_bytes(&whole, 2, part.at, part.bytes, error));
  part.bytes = 0;
  RF_GO(put_normalizer(v, &part, error));
  RF_GO(put_bytes(&whole, 3, part.at, part.bytes, error));
  snprintf(path, sizeof path, "%.4300s/tokenizer.model", folder);
  RF_GO(rf_file_write(path, whole.at, whole.bytes, error));
  *written = true;
done:
  free(whole.at);
  free(part.at);
  return status;
}
