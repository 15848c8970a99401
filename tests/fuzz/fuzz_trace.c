/* Reads any bytes as trace.bin. Either the trace is refused, or both of its other forms can be
 * written. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "report/trace_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  rf_trace_file file;
  rf_error error;
  char *text = malloc(bytes + 1);
  if (!text) return 0;
  memcpy(text, data, bytes), text[bytes] = 0;
  if (rf_trace_file_parse("trace.bin", text, bytes, &file, &error) != RAFTER_OK) return 0;
  if (rf_trace_file_chrome(&file, "/dev/null", &error) != RAFTER_OK ||
      rf_trace_file_csv(&file, "/dev/null", &error) != RAFTER_OK)
    abort();
  rf_trace_file_free(&file);
  return 0;
}
