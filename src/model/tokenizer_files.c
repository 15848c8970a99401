/* tokenizer_files.c - the files beside a model's weights that make text of its tokens, as they travel with it. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "model/tokenizer.h"

rf_status rf_tokenizer_files_copy(const char *from_folder, const char *to_folder, int *copied, rf_error *error) {
  static const char *const names[] = {
      "tokenizer.json", "tokenizer.model",   "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
      "merges.txt",     "added_tokens.json", "chat_template.jinja",   "chat_template.json",      "generation_config.json"};
  const size_t most = (size_t)256 << 20;
  *copied = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char from[4400], to[4400], *text = NULL;
    size_t bytes = 0;
    snprintf(from, sizeof from, "%.4300s/%s", from_folder, names[i]);
    if (access(from, R_OK)) continue;
    snprintf(to, sizeof to, "%.4300s/%s", to_folder, names[i]);
    RF_TRY(rf_file_read(from, most, &text, &bytes, error));
    rf_status status = rf_file_write(to, text, bytes, error);
    free(text);
    RF_TRY(status);
    *copied += i + 1 < sizeof names / sizeof *names; /* the last one is of sampling */
  }
  return RAFTER_OK;
}
