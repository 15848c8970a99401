/* Reads any bytes as a safetensors file. The file is refused or read, never out of bounds. */
#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  rf_error error;
  rf_safetensors_check(data, bytes, "fuzz", &error);
  if (bytes < 2 || bytes > 65000) return 0;
  /* The same bytes as a header with the right length, so that the fuzzer does not have to guess
   * eight bytes first. */
  static uint8_t file[8 + 65536];
  size_t header = bytes - 1, tail = data[0];
  for (int i = 0; i < 8; ++i) file[i] = (uint8_t)((uint64_t)header >> 8 * i);
  for (size_t i = 0; i < header; ++i) file[8 + i] = data[1 + i];
  rf_safetensors_check(file, 8 + header + tail, "fuzz", &error);
  return 0;
}
