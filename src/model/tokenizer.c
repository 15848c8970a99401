/* tokenizer.c - the byte-level tokenizer. */
#include "model/tokenizer.h"

enum { BYTES = 256 };

rf_status rf_tokenizer_byte(const rf_model *model, rf_tokenizer *tokenizer, rf_error *error) {
  if (model->vocab < BYTES)
    return RF_FAIL(error, RAFTER_INVALID, "raise vocab to 256, or give token shards or rows of tokens in place of text",
                   "%s cannot read text byte by byte (vocab: expected >= %d, got %lld)", model->name, BYTES, (long long)model->vocab);
  int32_t eos = model->vocab > BYTES ? BYTES : -1;
  *tokenizer = (rf_tokenizer){.name = "byte", .vocab = model->vocab > BYTES ? BYTES + 1 : BYTES, .bos_id = eos, .eos_id = eos};
  return RAFTER_OK;
}

int64_t rf_tokenizer_encode(const rf_tokenizer *tokenizer, const char *text, int64_t bytes, int32_t *ids, int64_t capacity) {
  (void)tokenizer;
  for (int64_t i = 0; i < bytes && i < capacity; i++) ids[i] = (unsigned char)text[i];
  return bytes;
}

int rf_tokenizer_piece(const rf_tokenizer *tokenizer, int32_t id, char piece[16]) {
  (void)tokenizer;
  if (id < 0 || id >= BYTES) return 0;
  piece[0] = (char)id;
  return 1;
}
