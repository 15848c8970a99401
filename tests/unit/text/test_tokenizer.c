/* test_tokenizer.c - compares real tokenizers with the ids of their own implementations (kitoken's
 * test data), and converts ids back to text. */
#include "base/file.h"
#include "formats/gguf.h"
#include "text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/files.h"
#include "support/scratch.h"

/* Path of a test file. A file that exists only as .xz is unpacked into the test's folder. NULL: the
 * file is missing. */
static const char *shared(const char *name, char path[4200]) {
  char command[9000], packed[200];
  if (test_file(name, path)) return path;
  snprintf(packed, sizeof packed, "%s.xz", name);
  if (!test_file(packed, path)) return NULL;
  snprintf(command, sizeof command, "mkdir -p %s && xz -dkc '%s' >%s/tokenizer.json", folder, path, folder);
  if (system(command)) return NULL;
  snprintf(path, 4200, "%s/tokenizer.json", folder);
  return path;
}

static rf_tokenizer *open_shared(const char *name) {
  char path[4200];
  rf_error error = {0};
  rf_tokenizer *t = NULL;
  if (!shared(name, path)) skip_for("%s is missing (RAFTER_TEST_DATA)", name);
  if (rf_tokenizer_open(path, &t, &error) != RAFTER_OK) fail_msg("%s: %s", name, error.message);
  return t;
}

/* Replaces
 * and \s of the input files. */
static size_t unescape(char *line) {
  char *to = line;
  for (const char *at = line; *at; at++) {
    if (*at == '\\' && (at[1] == 'n' || at[1] == 's')) *to++ = *++at == 'n' ? '\n' : ' ';
    else *to++ = *at;
  }
  *to = 0;
  return (size_t)(to - line);
}

static void print_ids(const char *what, const int32_t *ids, int64_t count) {
  fprintf(stderr, "%s", what);
  for (int64_t i = 0; i < count; i++) fprintf(stderr, " %d", ids[i]);
  fprintf(stderr, "\n");
}

/* SentencePiece does not distinguish U+2581 from a space: both become a space again. */
static size_t without_space_marks(const char *text, size_t bytes, char *out) {
  size_t n = 0;
  for (size_t i = 0; i < bytes; i++) {
    bool mark = bytes - i >= 3 && !memcmp(text + i, "\xE2\x96\x81", 3);
    out[n++] = mark ? ' ' : text[i];
    if (mark) i += 2;
  }
  return n;
}

/* The ids of `text` are those of `line`, and decode to the text again. */
static void same_ids(const rf_tokenizer *t, const char *text, size_t bytes, const char *line, int flags,
                     bool back, const char *name, int number) {
  rf_error error = {0};
  rf_ids ids = {0};
  if (rf_tokenizer_encode(t, text, bytes, flags, &ids, &error) != RAFTER_OK)
    fail_msg("%s, line %d: %s", name, number, error.message);
  int32_t *expected = malloc((strlen(line) + 1) * sizeof *expected);
  int64_t count = 0;
  for (char *end; *line; line = end + strspn(end, ", ")) expected[count++] = (int32_t)strtol(line, &end, 10);
  if (ids.count != count || (count && memcmp(ids.at, expected, (size_t)count * sizeof *expected))) {
    int64_t i = 0;
    while (i < count && i < ids.count && ids.at[i] == expected[i]) i++;
    print_ids("expected", expected + i, count - i < 24 ? count - i : 24);
    print_ids("got     ", ids.at + i, ids.count - i < 24 ? ids.count - i : 24);
    fail_msg("%s, line %d, token %lld of %lld", name, number, (long long)i, (long long)count);
  }
  char *again = NULL;
  size_t again_bytes = 0;
  assert_int_equal(
      rf_tokenizer_decode(t, ids.at, ids.count, RF_DECODE_SPECIALS, &again, &again_bytes, &error), RAFTER_OK);
  char *wanted = malloc(bytes + 1);
  bool marks = strcmp(rf_tokenizer_name(t), "byte-level bpe") != 0;
  size_t wanted_bytes =
      marks ? without_space_marks(text, bytes, wanted) : (memcpy(wanted, text, bytes), bytes);
  if (back && (again_bytes != wanted_bytes || memcmp(again, wanted, wanted_bytes)))
    fail_msg("%s, line %d: decoded '%s'", name, number, again);
  /* The same as a stream of whole characters. */
  rf_decoder decoder;
  rf_decoder_start(&decoder, t, RF_DECODE_SPECIALS);
  char *out = malloc(rf_decoder_room(t));
  size_t at = 0;
  for (int64_t i = 0; i <= ids.count; i++) {
    size_t n = i < ids.count ? rf_decoder_next(&decoder, ids.at[i], out) : rf_decoder_end(&decoder, out);
    assert_true(at + n <= again_bytes && !memcmp(again + at, out, n));
    at += n;
    assert_true(at == again_bytes || ((unsigned char)again[at] & 0xC0) != 0x80 || !back);
  }
  assert_int_equal(at, again_bytes);
  free(out);
  free(again);
  free(wanted);
  free(expected);
  rf_ids_free(&ids);
}

static char *read_text(const char *name, size_t *bytes) {
  char path[4200];
  char *text = NULL;
  assert_int_equal(rf_file_read(need_file(name, path), (size_t)1 << 28, &text, bytes, NULL), RAFTER_OK);
  return text;
}

/* `set`: sentencepiece or tokenizers. The file utf8 is one text; the others have one text per
 * line. */
static void golden(const rf_tokenizer *t, const char *set, const char *name, int flags) {
  static const char *const KINDS[] = {"small", "utf8", "mixed"};
  for (int k = 0; k < 3; k++) {
    char path[200];
    size_t bytes;
    snprintf(path, sizeof path, "golden-encode/kitoken/%s_input.txt", KINDS[k]);
    char *input = read_text(path, &bytes), *line = input;
    snprintf(path, sizeof path, "golden-encode/kitoken/%s_%s_tokens_%s.txt", set, KINDS[k], name);
    char *tokens = read_text(path, &bytes), *row = tokens;
    for (int number = 1; row && *row; number++) {
      char *next = k == 1 ? NULL : strchr(line, '\n'), *next_row = strchr(row, '\n');
      if (next) *next = 0;
      if (next_row) *next_row = 0;
      size_t n = k == 1 ? strlen(line) : unescape(line);
      same_ids(t, line, n, row, flags, k == 1 || !(flags & RF_ENCODE_PARSE), path, number);
      line = next ? next + 1 : line;
      row = next_row ? next_row + 1 : NULL;
    }
    free(input);
    free(tokens);
  }
}

/* Writes the tokenizer into a GGUF file and reads it back. Closes the given tokenizer. */
static rf_tokenizer *through_gguf(rf_tokenizer *t) {
  char path[4200];
  rf_error error = {0};
  rf_gguf_meta *meta = rf_gguf_meta_new();
  rf_gguf_writer *writer = NULL;
  int32_t bos = rf_tokenizer_bos(t), eos = rf_tokenizer_eos(t);
  snprintf(path, sizeof path, "%s/tokenizer.gguf", folder);
  if (rf_tokenizer_gguf_write(t, rf_tokenizer_vocab(t) + 3, "test", meta, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  if (rf_gguf_writer_open(path, meta, NULL, 0, &writer, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_gguf_writer_commit(writer, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_gguf_meta_free(meta);
  rf_tokenizer_close(t);
  if (rf_tokenizer_open(path, &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
  assert_true(rf_tokenizer_bos(t) == bos && rf_tokenizer_eos(t) == eos);
  return t;
}

static void test_gguf_files_keep_the_ids(void **state) {
  (void)state;
  static const struct {
    const char *path, *set, *name;
    int flags;
  } rows[] = {{"tokenizers/gpt2/tokenizer.json", "tokenizers", "gpt2", RF_ENCODE_PARSE},
              {"tokenizers/llama3/tokenizer.json", "tokenizers", "llama32", 0},
              {"tokenizers/gemma3/tokenizer.model", "sentencepiece", "gemma3", 0},
              {"tokenizers/gemma2/tokenizer.model", "sentencepiece", "gemma", 0},
              {"tokenizers/llama2/tokenizer.model", "sentencepiece", "llama2", 0},
              {"tokenizers/gemma3/tokenizer.json", "tokenizers", "gemma3", 0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_tokenizer *t = through_gguf(open_shared(rows[i].path));
    golden(t, rows[i].set, rows[i].name, rows[i].flags);
    rf_tokenizer_close(t);
  }
}

static void test_gpt2(void **state) {
  (void)state;
  rf_tokenizer *t = open_shared("tokenizers/gpt2/tokenizer.json");
  golden(t, "tokenizers", "gpt2", RF_ENCODE_PARSE);
  assert_int_equal(rf_tokenizer_vocab(t), 50257);
  assert_true(rf_tokenizer_is_special(t, 50256));
  assert_int_equal(rf_tokenizer_find(t, " the", 4), 262);
  rf_tokenizer_close(t);
}

static void test_llama3(void **state) {
  (void)state;
  rf_tokenizer *t = open_shared("tokenizers/llama3/tokenizer.json");
  golden(t, "tokenizers", "llama32", 0);
  rf_tokenizer_close(t);
}

static void test_gemma3_json(void **state) {
  (void)state;
  rf_tokenizer *t = open_shared("tokenizers/gemma3/tokenizer.json");
  golden(t, "tokenizers", "gemma3", 0);
  assert_int_equal(rf_tokenizer_bos(t), 2);
  rf_tokenizer_close(t);
}

static void test_gemma3_model(void **state) {
  (void)state;
  rf_tokenizer *t = open_shared("tokenizers/gemma3/tokenizer.model");
  golden(t, "sentencepiece", "gemma3", 0);
  rf_tokenizer_close(t);
}

static void test_gemma2(void **state) {
  (void)state;
  rf_tokenizer *t = open_shared("tokenizers/gemma2/tokenizer.model");
  golden(t, "sentencepiece", "gemma", 0);
  rf_tokenizer_close(t);
}

static void test_llama2(void **state) {
  (void)state;
  rf_tokenizer *t = open_shared("tokenizers/llama2/tokenizer.model");
  golden(t, "sentencepiece", "llama2", 0);
  golden(t, "tokenizers", "llama2", RF_ENCODE_PARSE);
  assert_int_equal(rf_tokenizer_bos(t), 1);
  assert_int_equal(rf_tokenizer_eos(t), 2);
  rf_tokenizer_close(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_gpt2),
                                     cmocka_unit_test(test_llama3),
                                     cmocka_unit_test(test_gemma3_json),
                                     cmocka_unit_test(test_gemma3_model),
                                     cmocka_unit_test(test_gemma2),
                                     cmocka_unit_test(test_llama2),
                                     cmocka_unit_test(test_gguf_files_keep_the_ids)};
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
