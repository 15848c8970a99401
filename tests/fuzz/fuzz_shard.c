/* Reads any bytes as a token shard. Either the shard is refused, or each of its rows can be read
 * and is within bounds. */
#include "fuzz_file.h"

#include <string.h>

#include "train/source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  enum { SEQ = 8 };
  static uint8_t file[1 << 16];
  static rf_source source;
  if (bytes < 1 || bytes + 8 > sizeof file) return 0;
  /* The magic number is given, so that the fuzzer does not have to guess it. */
  memcpy(file, "rafterT1", 8), memcpy(file + 8, data, bytes);
  rf_model model = {.vocab = 300, .max_seq = SEQ, .bos_id = -1, .eos_id = -1};
  rf_source_options options = {.model = &model,
                               .seq = SEQ,
                               .pack = data[bytes - 1] & 1,
                               .val_fraction = data[bytes - 1] & 2 ? 0.3 : 0,
                               .work_folder = fuzz_folder};
  rf_error error;
  if (rf_source_open(fuzz_file("fuzz.shard", file, bytes + 8), 1, &options, &source, &error) != RAFTER_OK)
    return 0;
  const rf_rows *splits[] = {&source.train, &source.held_out};
  for (int s = 0; s < 2; s++)
    for (int64_t row = 0; row < splits[s]->count; row++) {
      int32_t tokens[SEQ], labels[SEQ], positions[SEQ], segments[SEQ + 1];
      rf_token_batch batch = {tokens, labels, positions, segments, 0};
      if (rf_source_fill(&source, splits[s], row, 0, &batch, &error) != RAFTER_OK) abort();
      if (batch.segment_count < 1 || batch.segment_count > SEQ) abort();
      for (int i = 0; i < SEQ; i++)
        if (tokens[i] < 0 || tokens[i] >= 300 || labels[i] < -1 || labels[i] >= 300 || positions[i] < 0 ||
            positions[i] >= SEQ)
          abort();
    }
  rf_source_close(&source);
  return 0;
}
