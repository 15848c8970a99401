/* tokenizer_llama2c.c - reads the tokenizer.bin of llama2.c, a little-endian file. The file begins
 * with an i32, the number of bytes of the longest piece. For each id, the file has an f32 (score),
 * an i32 (number of bytes) and the piece. The vocabulary is a SentencePiece vocabulary with plain
 * spaces. Id 0 is the unknown token, id 1 is BOS, and id 2 is EOS. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>

static int32_t word_at(const char *at) {
  const unsigned char *b = (const unsigned char *)at;
  return (int32_t)(b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
}

rf_status rf_tokenizer_llama2c_read(const char *text, size_t bytes, const char *where,
                                    rf_tokenizer **tokenizer, rf_error *error) {
  enum { MIN = 3 };
  rf_status status = RAFTER_OK;
  rf_vocabulary v = {.kind = "llama",
                     .bos_id = 1,
                     .eos_id = 2,
                     .pad_id = -1,
                     .add_bos = true,
                     .dummy_prefix = true,
                     .plain_spaces = true};
  *tokenizer = NULL;
  int32_t longest = bytes >= 4 ? word_at(text) : -1;
  if (longest < 1 || longest > RF_PIECE_MAX)
    return RF_FAIL(error, RAFTER_FAILED, NULL,
                   "%s is not a llama2.c tokenizer (longest piece: expected 1 to %d, got %d)", where,
                   (int)RF_PIECE_MAX, longest);
  size_t most = (bytes - 4) / 8 + 1;
  rf_span *pieces = malloc(most * sizeof *pieces);
  float *scores = malloc(most * sizeof *scores);
  if (!pieces || !scores) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    goto done;
  }
  for (size_t at = 4; at < bytes; v.count++) {
    int32_t n = bytes - at >= 8 ? word_at(text + at + 4) : -1;
    if (n < 0 || n > longest || (size_t)n > bytes - at - 8) {
      status =
          RF_FAIL(error, RAFTER_FAILED, NULL,
                  "a piece's length is out of range (%s, id %lld: expected 0 to %d within the file, got %d)",
                  where, (long long)v.count, longest, n);
      goto done;
    }
    int32_t score = word_at(text + at);
    memcpy(&scores[v.count], &score, sizeof score);
    pieces[v.count] = (rf_span){text + at + 8, (size_t)n};
    at += 8 + (size_t)n;
  }
  if (v.count < MIN) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s has too few pieces (expected at least %d, got %lld)",
                     where, MIN, (long long)v.count);
    goto done;
  }
  /* The file has newlines around BOS and EOS, so they get SentencePiece's spellings. */
  pieces[1] = (rf_span){"<s>", 3};
  pieces[2] = (rf_span){"</s>", 4};
  v.pieces = pieces;
  v.scores = scores;
  status = rf_tokenizer_build(&v, where, tokenizer, error);
done:
  free(pieces);
  free(scores);
  return status;
}
