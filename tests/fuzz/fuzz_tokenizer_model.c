/* Reads any bytes as tokenizer.model and as llama2.c's tokenizer.bin. If they are accepted, text
 * becomes ids below the size of the vocabulary. */
#include <stdlib.h>

#include "text/tokenizer_parts.h"

static void use(rf_tokenizer *t, const char *text, size_t bytes) {
  rf_ids ids = {0};
  rf_error error;
  char *again = NULL;
  size_t again_bytes;
  if (rf_tokenizer_encode(t, text, bytes < 1024 ? bytes : 1024, RF_ENCODE_BOS_EOS | RF_ENCODE_PARSE, &ids,
                          &error) == RAFTER_OK) {
    for (int64_t i = 0; i < ids.count; i++)
      if (ids.at[i] < 0 || ids.at[i] >= rf_tokenizer_vocab(t)) abort();
    if (rf_tokenizer_decode(t, ids.at, ids.count, RF_DECODE_SPECIALS, &again, &again_bytes, &error) !=
        RAFTER_OK)
      abort();
    free(again);
  }
  rf_ids_free(&ids), rf_tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  rf_tokenizer *t = NULL;
  rf_error error;
  if (bytes > 1 << 14) return 0;
  char *file = malloc(bytes + 1);
  if (!file) return 0;
  if (bytes) memcpy(file, data, bytes);
  file[bytes] = 0;
  if (rf_tokenizer_sentencepiece_read(file, bytes, "fuzz", &t, &error) == RAFTER_OK) use(t, file, bytes);
  if (rf_tokenizer_llama2c_read(file, bytes, "fuzz", &t, &error) == RAFTER_OK) use(t, file, bytes);
  free(file);
  return 0;
}
