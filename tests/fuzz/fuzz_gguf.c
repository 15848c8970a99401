/* Reads any bytes as a GGUF file and as a llama2.c file. Either the file is refused, or all of its
 * tensors, metadata and tokens can be read. */
#include <stdlib.h>

#include "formats/llama2c.h"

static void read_tensor(const rf_quant_tensor *tensor) {
  float value[300];
  rf_error error;
  int64_t count = tensor->count < 300 ? tensor->count : 300;
  if (!tensor->type->dequantize) return;
  if (rf_quant_read(tensor, 0, count, value, &error) != RAFTER_OK) abort();
  if (rf_quant_read(tensor, tensor->count - count, count, value, &error) != RAFTER_OK) abort();
}

static void read_gguf(const uint8_t *data, size_t bytes) {
  rf_gguf *file;
  rf_gguf_facts facts;
  rf_gguf_vocab vocab;
  rf_error error;
  if (rf_gguf_parse(data, bytes, "fuzz", &file, &error) != RAFTER_OK) return;
  for (int i = 0; i < rf_gguf_count(file); ++i) {
    const rf_quant_tensor *tensor = rf_gguf_at(file, i);
    if (rf_gguf_find(file, tensor->name) != tensor) abort();
    read_tensor(tensor);
  }
  for (int i = 0; i < rf_gguf_value_count(file); ++i)
    if (rf_gguf_value_find(file, rf_gguf_value_at(file, i)->key) != rf_gguf_value_at(file, i)) abort();
  rf_gguf_facts_read(file, &facts, &error);
  if (rf_gguf_vocab_read(file, &vocab, &error) == RAFTER_OK) {
    int64_t sum = 0;
    for (int64_t i = 0; i < vocab.count; ++i)
      for (int64_t k = 0; k < vocab.token[i].bytes; ++k) sum += vocab.token[i].at[k];
    if (sum == INT64_MIN) abort();
    rf_gguf_vocab_free(&vocab);
  }
  rf_gguf_close(file);
}

static void read_llama2c(const uint8_t *data, size_t bytes) {
  rf_llama2c *file;
  rf_error error;
  if (rf_llama2c_parse(data, bytes, "fuzz", &file, &error) != RAFTER_OK) return;
  for (int i = 0; i < rf_llama2c_count(file); ++i) read_tensor(rf_llama2c_at(file, i));
  rf_llama2c_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  read_gguf(data, bytes);
  read_llama2c(data, bytes);
  return 0;
}
