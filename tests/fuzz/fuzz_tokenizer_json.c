/* Reads any text as tokenizer.json. If it is accepted, any text becomes ids below the size of its
 * vocabulary, and these ids become text again. */
#include <stdlib.h>

#include "text/tokenizer_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  rf_tokenizer *t = NULL;
  rf_error error;
  if (bytes > 1 << 14) return 0;
  char *file = malloc(bytes + 1); /* The buffer has exactly the size of a file's text and one NUL. */
  if (!file) return 0;
  if (bytes) memcpy(file, data, bytes);
  file[bytes] = 0;
  if (rf_tokenizer_json_read(file, bytes, "fuzz", &t, &error) == RAFTER_OK) {
    rf_ids ids = {0};
    /* The file itself is the text, because it contains its own tokens. */
    for (int flags = 0; flags < 4; flags++) {
      size_t n = bytes < 1024 ? bytes : 1024;
      ids.count = 0;
      if (rf_tokenizer_encode(t, file, n, flags, &ids, &error) != RAFTER_OK) continue;
      char *text = NULL, *out = malloc(rf_decoder_room(t));
      size_t text_bytes = 0, at = 0;
      rf_decoder decoder;
      if (!out ||
          rf_tokenizer_decode(t, ids.at, ids.count, flags & 1, &text, &text_bytes, &error) != RAFTER_OK)
        abort();
      rf_decoder_start(&decoder, t, flags & 1);
      for (int64_t i = 0; i < ids.count; i++) {
        if (ids.at[i] < 0 || ids.at[i] >= rf_tokenizer_vocab(t)) abort();
        at += rf_decoder_next(&decoder, ids.at[i], out);
      }
      if (at + rf_decoder_end(&decoder, out) != text_bytes) abort();
      free(text), free(out);
    }
    rf_ids_free(&ids), rf_tokenizer_close(t);
  }
  free(file);
  return 0;
}
