/* Reads any bytes as a chat template and, after a NUL byte, its messages. Either the template is
 * refused, or it renders the same text twice within its limits. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static const char usual[] = "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\" "
                              "a\\n\"},{\"role\":\"assistant\",\"content\":\"b\"}]";
  const rf_template_limits limits = {.steps = 20000, .output_bytes = 1 << 16, .memory_bytes = 8 << 20};
  const struct tm now = {.tm_year = 124, .tm_mday = 1};
  const uint8_t *end = bytes ? memchr(data, 0, bytes) : NULL;
  size_t length = end ? (size_t)(end - data) : bytes;
  rf_template *parsed;
  rf_error error;
  json_t *messages;
  if (rf_template_parse((const char *)data, length, "fuzz", &parsed, &error) != RAFTER_OK) return 0;
  rf_status status = end ? rf_json_parse((const char *)end + 1, bytes - length - 1, "fuzz", &messages, &error)
                         : rf_json_parse(usual, sizeof usual - 1, "fuzz", &messages, &error);
  if (status == RAFTER_OK) {
    json_t *variables = json_pack("{s:o,s:s,s:s,s:b}", "messages", messages, "bos_token", "<s>", "eos_token",
                                  "</s>", "add_generation_prompt", 1);
    rf_rendered first, second;
    status = rf_template_render(parsed, variables, &now, &limits, &first, &error);
    if (status == RAFTER_OK) {
      if (rf_template_render(parsed, variables, &now, &limits, &second, &error) != RAFTER_OK) abort();
      if (first.bytes != second.bytes || memcmp(first.text, second.text, first.bytes) != 0 ||
          first.bytes > limits.output_bytes)
        abort();
      for (int64_t i = 0; i < first.generated_count; ++i)
        if (first.generated[i].first > first.generated[i].last || first.generated[i].last > first.bytes)
          abort();
      rf_rendered_free(&second);
      rf_rendered_free(&first);
    }
    json_decref(variables);
  }
  rf_template_free(parsed);
  return 0;
}
