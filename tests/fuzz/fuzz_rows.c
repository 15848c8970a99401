/* Reads any bytes as JSON Lines of training rows or of preferences. Either an error names the line,
 * or the rows become a shard with consistent counts. The first byte chooses the options. */
#include "fuzz_file.h"

#include <string.h>

#include "train/pairs.h"

enum { SEQ = 8 };

static const char *template_file(void) {
  static const char chat[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if "
                             "add_generation_prompt %}<assistant>{% endif %}";
  static char path[128];
  if (!*path)
    snprintf(path, sizeof path, "%s", fuzz_file("chat.jinja", (const uint8_t *)chat, sizeof chat - 1));
  return path;
}

/* Number of tokens in the rows. Checks that labels agree with their count and that all ids are
 * within bounds. */
static int64_t check_rows(const rf_source *source, const rf_rows *rows) {
  int64_t placed = 0;
  for (int64_t row = 0; row < rows->count; row++) {
    int32_t tokens[SEQ], labels[SEQ], positions[SEQ], segments[SEQ + 1];
    rf_token_batch batch = {tokens, labels, positions, segments, 0};
    int64_t valid = 0;
    rf_error error;
    if (!rows->first) abort();
    for (int64_t p = rows->first[row]; p < rows->first[row + 1]; p++) placed += rows->piece[p].tokens;
    if (rf_source_fill(source, rows, row, 0, &batch, &error) != RAFTER_OK) abort();
    if (batch.segment_count < 1 || batch.segment_count > SEQ) abort();
    for (int i = 0; i < SEQ; i++) {
      if (tokens[i] < 0 || tokens[i] >= 300 || labels[i] < -1 || labels[i] >= 300 || positions[i] < 0 ||
          positions[i] >= SEQ)
        abort();
      valid += labels[i] >= 0;
    }
    if (valid < 1 || valid != rf_source_valid(source, rows, row)) abort();
  }
  return placed;
}

static void check_pairs(const char *path, const rf_source_options *options) {
  rf_pair_set set;
  rf_error error;
  if (rf_pairs_open(path, options, &set, &error) != RAFTER_OK) return;
  if (set.train < 1 || set.train + set.held_out + set.equal + set.empty + set.long_prompts != set.rows)
    abort();
  for (int64_t i = 0; i < set.train + set.held_out; i++) {
    const rf_answer *answer[] = {&set.pair[i].chosen, &set.pair[i].rejected};
    for (int k = 0; k < 2; k++) {
      int32_t tokens[SEQ];
      if (answer[k]->prompt < 1 || answer[k]->prompt >= answer[k]->count || answer[k]->count > SEQ) abort();
      if (rf_pairs_read(&set, answer[k], tokens, &error) != RAFTER_OK) abort();
    }
  }
  rf_pairs_close(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  static rf_source source;
  if (bytes < 1 || bytes > 4096) return 0;
  rf_model model = {.vocab = 300, .max_seq = SEQ, .bos_id = -1, .eos_id = 256};
  rf_error error;
  rf_source_options options = {.model = &model,
                               .seq = SEQ,
                               .pack = data[0] & 1,
                               .val_fraction = data[0] & 2 ? 0.3 : 0,
                               .loss_on = (rf_loss_on)((data[0] >> 2 & 3) % 3),
                               .template = data[0] & 16 ? "none" : template_file(),
                               .fields = data[0] & 32 ? "prompt=question,completion=answer" : NULL,
                               .work_folder = fuzz_folder};
  const char *path = fuzz_file("fuzz.jsonl", data + 1, bytes - 1);
  if (data[0] & 64) return check_pairs(path, &options), 0;
  if (rf_source_open(path, 1, &options, &source, &error) != RAFTER_OK) return 0;
  if (check_rows(&source, &source.train) + check_rows(&source, &source.held_out) > source.tokens) abort();
  rf_source_close(&source);
  return 0;
}
