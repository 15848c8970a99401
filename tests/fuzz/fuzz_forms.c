/* Reads any bytes as a schema, a regular expression or a list of texts. Either there is one error,
 * or every text that the form allows can be continued or may end. The first byte chooses the
 * form. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "constrain/constrain.h"

enum { VOCAB = 257, STEPS = 200 };

static void expect(bool holds) {
  if (!holds) abort();
}

/* Chooses tokens by the bytes of the input, as long as the form allows some. */
static void answer(rf_constraint *c, const uint8_t *data, size_t bytes) {
  rf_constrained a = {0};
  rf_error error = {0};
  rf_constrained_begin(&a, c);
  for (size_t step = 0; step < STEPS; step++) {
    uint64_t mask[VOCAB / 64 + 1];
    bool ends, only;
    int32_t allowed[VOCAB], count = 0;
    if (rf_constrained_mask(&a, mask, &ends, &only, &error) != RAFTER_OK) {
      expect(*error.message);
      break;
    }
    for (int32_t i = 0; i < VOCAB; i++)
      if (mask[i >> 6] >> (i & 63) & 1) allowed[count++] = i;
    expect(only == !count && (ends || count));
    if (!count) break;
    if (rf_constrained_accept(&a, allowed[(data[step % bytes] + step) % (size_t)count], &error) !=
        RAFTER_OK) {
      expect(strstr(error.message, "ambiguous"));
      break;
    }
  }
  rf_constrained_begin(&a, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static rf_tokenizer *tokenizer;
  static rf_trie *trie;
  rf_constraint *c = NULL;
  rf_error error = {0};
  if (!trie) {
    expect(rf_tokenizer_byte("tiny", VOCAB, &tokenizer, NULL) == RAFTER_OK);
    expect(rf_trie_open(tokenizer, VOCAB, &trie, NULL) == RAFTER_OK);
  }
  if (bytes < 1) return 0;
  rf_text_form form = (rf_text_form)(1 + data[0] % 3);
  rf_status status = rf_constraint_open(trie, form, (const char *)data + 1, bytes - 1, &c, &error);
  if (status != RAFTER_OK) {
    expect(status == RAFTER_INVALID && *error.message);
    return 0;
  }
  answer(c, data, bytes);
  rf_constraint_release(c);
  return 0;
}
