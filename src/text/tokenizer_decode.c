/* tokenizer_decode.c - decodes ids to text, all at once or one id at a time. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>

rf_span rf_tokenizer_piece(const rf_tokenizer *tokenizer, int32_t id) {
  if (id < 0 || id >= tokenizer->pieces.count) return (rf_span){"", 0};
  return rf_pieces_at(&tokenizer->pieces, id);
}

rf_span rf_tokenizer_text_of(const rf_tokenizer *tokenizer, int32_t id) {
  if (id < 0 || id >= tokenizer->pieces.count || tokenizer->decoded_at[id] == UINT64_MAX)
    return rf_tokenizer_piece(tokenizer, id);
  return (rf_span){tokenizer->decoded.at + (tokenizer->decoded_at[id] >> 16),
                   tokenizer->decoded_at[id] & 0xFFFF};
}

int32_t rf_tokenizer_find(const rf_tokenizer *tokenizer, const char *piece, size_t bytes) {
  int32_t id = rf_pieces_find(&tokenizer->pieces, piece, bytes);
  if (id >= 0 && id < tokenizer->pieces.count) return id;
  for (int64_t i = 0; i < tokenizer->pieces.count; i++) { /* special tokens are not in the hash table */
    rf_span name = rf_pieces_at(&tokenizer->pieces, i);
    if (bytes && name.bytes == bytes && !memcmp(name.at, piece, bytes)) return (int32_t)i;
  }
  return -1;
}

/* Returns the text that an id adds at the current position of the decoded text. */
static rf_span text_at(const rf_tokenizer *tokenizer, int32_t id, int flags, bool begun) {
  rf_span text = rf_tokenizer_text_of(tokenizer, id);
  if (rf_tokenizer_is_special(tokenizer, id)) return flags & RF_DECODE_SPECIALS ? text : (rf_span){"", 0};
  if (!begun && tokenizer->strip_leading && text.bytes && *text.at == ' ') {
    text.at++;
    text.bytes--;
  }
  return text;
}

/* True if the id decodes to text. After such an id, leading spaces of later ids are kept. */
static bool counts_as_text(const rf_tokenizer *tokenizer, int32_t id, int flags) {
  return flags & RF_DECODE_SPECIALS || !rf_tokenizer_is_special(tokenizer, id);
}

rf_status rf_tokenizer_decode(const rf_tokenizer *tokenizer, const int32_t *ids, int64_t count, int flags,
                              char **text, size_t *bytes, rf_error *error) {
  rf_buffer out = {0};
  bool begun = flags & RF_DECODE_CONTINUES;
  for (int64_t i = 0; i < count; i++) {
    rf_span piece = text_at(tokenizer, ids[i], flags, begun);
    begun |= counts_as_text(tokenizer, ids[i], flags);
    if (rf_buffer_add(&out, piece.at, piece.bytes, error) != RAFTER_OK) return free(out.at), RAFTER_FAILED;
  }
  if (rf_buffer_reserve(&out, 1, error) != RAFTER_OK) return free(out.at), RAFTER_FAILED;
  out.at[out.bytes] = 0;
  *text = out.at;
  *bytes = out.bytes;
  return RAFTER_OK;
}

void rf_decoder_start(rf_decoder *decoder, const rf_tokenizer *tokenizer, int flags) {
  *decoder = (rf_decoder){.tokenizer = tokenizer, .flags = flags, .begun = flags & RF_DECODE_CONTINUES};
}

size_t rf_decoder_room(const rf_tokenizer *tokenizer) { return tokenizer->longest + 4; }

/* Returns the number of bytes of an incomplete UTF-8 character at the end of the text. */
static size_t unfinished_bytes(const char *text, size_t bytes) {
  for (size_t n = 1; n <= 3 && n <= bytes; n++) {
    unsigned char c = (unsigned char)text[bytes - n];
    if ((c & 0xC0) == 0x80) continue;
    size_t wants = c >= 0xF0 && c <= 0xF4 ? 4 : c >= 0xE0 && c < 0xF0 ? 3 : c >= 0xC2 && c < 0xE0 ? 2 : 1;
    if (n >= wants) return 0;
    /* Only the second byte has a restricted range. Later bytes may be any continuation bytes. */
    char second = (char)(c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80);
    char whole[4] = {(char)c, second, (char)0x80, (char)0x80};
    for (size_t i = 1; i < n; i++) whole[i] = text[bytes - n + i];
    return rf_utf8_length(whole, whole + wants) ? n : 0;
  }
  return 0;
}

size_t rf_decoder_next(rf_decoder *decoder, int32_t id, char *out) {
  rf_span piece = text_at(decoder->tokenizer, id, decoder->flags, decoder->begun);
  decoder->begun |= counts_as_text(decoder->tokenizer, id, decoder->flags);
  size_t bytes = (size_t)decoder->held;
  memcpy(out, decoder->hold, bytes);
  if (piece.bytes) memcpy(out + bytes, piece.at, piece.bytes);
  bytes += piece.bytes;
  size_t keep = unfinished_bytes(out, bytes);
  memcpy(decoder->hold, out + bytes - keep, keep);
  decoder->held = (int)keep;
  return bytes - keep;
}

size_t rf_decoder_end(rf_decoder *decoder, char *out) {
  size_t bytes = (size_t)decoder->held;
  memcpy(out, decoder->hold, bytes);
  decoder->held = 0;
  return bytes;
}
