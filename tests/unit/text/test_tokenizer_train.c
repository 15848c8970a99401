/* test_tokenizer_train.c - compares the merges of rf_tokenizer_train with those of a slow
 * reference. The reference counts all pairs of the whole text again for each merge. */
#include "base/json.h"
#include "base/file.h"
#include "unit/text/tokenizers.h"

#include <unistd.h>

enum { MAX = 1 << 14, VOCAB = 420, LONGEST = 1024 };

typedef struct slow {
  int32_t id[MAX]; /* the text as ids; -1 ends a word */
  int64_t count;
  char piece[VOCAB][LONGEST + 1]; /* spelled in GPT-2's byte alphabet, for texts of ASCII */
  size_t bytes[VOCAB];
  int ids;
} slow;

static slow reference;

static rf_status append_word(void *self, const char *word, size_t bytes, rf_error *error) {
  slow *s = self;
  (void)error;
  for (size_t i = 0; i < bytes; i++)
    for (int id = 0; id < 256; id++)
      if (s->bytes[id] == 1 && s->piece[id][0] == word[i]) s->id[s->count++] = id;
  s->id[s->count++] = -1;
  return RAFTER_OK;
}

/* GPT-2's order: bytes that print, then the others. */
static void start(slow *s, const char *text, size_t bytes) {
  rf_splits splits = {0};
  bool ignore;
  rf_effort effort = rf_effort_for(bytes);
  memset(s, 0, sizeof *s);
  for (int round = 0; round < 2; round++)
    for (int b = 0; b < 256; b++) {
      bool prints = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      if (prints == !round) {
        s->piece[s->ids][0] = (char)b;
        s->bytes[s->ids++] = 1;
      }
    }
  assert_int_equal(rf_splits_named("gpt-2", &splits, &ignore, "test", NULL), RAFTER_OK);
  assert_int_equal(rf_split_words(&splits, &effort, text, bytes, append_word, s, NULL), RAFTER_OK);
  rf_splits_free(&splits);
  rf_effort_free(&effort);
}

/* Joins the most frequent pair; false: no pair occurs twice. */
static bool merge_once(slow *s) {
  static int64_t count[VOCAB][VOCAB];
  int left = 0, right = 0;
  memset(count, 0, sizeof count);
  for (int64_t i = 0; i + 1 < s->count; i++)
    if (s->id[i] >= 0 && s->id[i + 1] >= 0) count[s->id[i]][s->id[i + 1]]++;
  for (int a = 0; a < s->ids; a++)
    for (int b = 0; b < s->ids; b++)
      if (s->bytes[a] + s->bytes[b] <= LONGEST && count[a][b] > count[left][right]) {
        left = a;
        right = b;
      }
  if (count[left][right] < 2) return false;
  memcpy(s->piece[s->ids], s->piece[left], s->bytes[left]);
  memcpy(s->piece[s->ids] + s->bytes[left], s->piece[right], s->bytes[right]);
  s->bytes[s->ids] = s->bytes[left] + s->bytes[right];
  int64_t kept = 0;
  for (int64_t i = 0; i < s->count; i++) {
    bool joined = i + 1 < s->count && s->id[i] == left && s->id[i + 1] == right;
    s->id[kept++] = joined ? s->ids : s->id[i];
    i += joined;
  }
  s->count = kept;
  s->ids++;
  return true;
}

/* Compares pieces, and the ids of the text: equal merges in equal order. */
static void compare(const char *text, size_t bytes, int vocab) {
  rf_tokenizer *t = NULL;
  rf_error error = {0};
  rf_ids ids = {0};
  int64_t at = 0;
  if (rf_tokenizer_train(text, bytes, vocab, NULL, &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
  start(&reference, text, bytes);
  while (reference.ids < vocab - 1 && merge_once(&reference)) {}
  assert_int_equal(rf_tokenizer_vocab(t), reference.ids + 1);
  for (int id = 0; id < reference.ids; id++) {
    rf_span piece = rf_tokenizer_text_of(t, id);
    assert_int_equal(piece.bytes, reference.bytes[id]);
    assert_memory_equal(piece.at, reference.piece[id], piece.bytes);
  }
  assert_int_equal(rf_tokenizer_find(t, "<|endoftext|>", 13), reference.ids);
  assert_int_equal(rf_tokenizer_eos(t), reference.ids);
  assert_int_equal(rf_tokenizer_encode(t, text, bytes, RF_ENCODE_BOS_EOS, &ids, NULL), RAFTER_OK);
  for (int64_t i = 0; i < reference.count; i++)
    if (reference.id[i] >= 0) assert_int_equal(ids.at[at++], reference.id[i]);
  assert_int_equal(at, ids.count);
  rf_ids_free(&ids);
  rf_tokenizer_close(t);
}

static void test_words(void **state) {
  (void)state;
  static const char *const WORDS[] = {"the",  "their", "them", "other",       "another",  "banana", "aaaa",
                                      "I'll", "2026",  "...",  "caf\xC3\xA9", "\xFF\xFE", "\n\n",   "x"};
  static char text[4000];
  for (unsigned seed = 1; seed <= 4; seed++) {
    unsigned key = seed;
    size_t bytes = 0;
    while (bytes < sizeof text - 16) {
      key = key * 1664525 + 1013904223;
      const char *word = WORDS[(key >> 16) % (sizeof WORDS / sizeof *WORDS)];
      bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, "%s%s", word, key >> 30 ? " " : "");
    }
    compare(text, bytes, VOCAB);
    compare(text, bytes, 300);
  }
}

/* Few letters, so that many pairs have equal counts and occurrences overlap. */
static void test_ties(void **state) {
  (void)state;
  char text[600];
  for (unsigned seed = 1; seed <= 20; seed++) {
    unsigned key = seed * 7919;
    for (size_t i = 0; i < sizeof text; i++) {
      key = key * 1664525 + 1013904223;
      text[i] = " aabb"[(key >> 16) % 5];
    }
    compare(text, sizeof text, VOCAB);
  }
}

/* A run of one letter doubles with each merge, up to the maximum length of a piece. */
static void test_long_word(void **state) {
  (void)state;
  static char text[6000];
  memset(text, 'a', sizeof text);
  compare(text, sizeof text, VOCAB);
}

static void test_small_texts(void **state) {
  (void)state;
  compare("", 0, 257);
  compare("ab", 2, 300);
  compare("abab", 4, 257);
  compare("abab", 4, 258);
}

static void test_stop(void **state) {
  (void)state;
  volatile int stop = 1;
  rf_tokenizer *t = NULL;
  assert_int_equal(rf_tokenizer_train("abab", 4, 300, &stop, &t, NULL), RAFTER_INTERRUPTED);
  assert_null(t);
}

/* The written files are read back as the same tokenizer. */
static void test_files(void **state) {
  (void)state;
  static const char TEXT[] = "the other mother and the other brother, the \xE2\x82\xAC 12 of them";
  char folder[] = "/tmp/rafter-bpe-XXXXXX";
  rf_tokenizer *made = NULL, *read = NULL;
  rf_ids a = {0}, b = {0};
  bool written;
  assert_non_null(mkdtemp(folder));
  assert_int_equal(rf_tokenizer_train(TEXT, sizeof TEXT - 1, 280, NULL, &made, NULL), RAFTER_OK);
  assert_int_equal(rf_tokenizer_json_write(made, NULL, folder, &written, NULL), RAFTER_OK);
  assert_true(written);
  assert_int_equal(rf_tokenizer_open(folder, &read, NULL), RAFTER_OK);
  assert_int_equal(rf_tokenizer_vocab(made), rf_tokenizer_vocab(read));
  assert_int_equal(rf_tokenizer_encode(made, TEXT, sizeof TEXT, RF_ENCODE_BOS_EOS, &a, NULL), RAFTER_OK);
  assert_int_equal(rf_tokenizer_encode(read, TEXT, sizeof TEXT, RF_ENCODE_BOS_EOS, &b, NULL), RAFTER_OK);
  assert_int_equal(a.count, b.count);
  assert_memory_equal(a.at, b.at, (size_t)a.count * sizeof *a.at);
  assert_int_equal(rf_tokenizer_eos(read), rf_tokenizer_eos(made));
  rf_ids_free(&a);
  rf_ids_free(&b);
  rf_tokenizer_close(made);
  rf_tokenizer_close(read);
  rf_remove_folder(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_words),     cmocka_unit_test(test_ties),
                                     cmocka_unit_test(test_long_word), cmocka_unit_test(test_small_texts),
                                     cmocka_unit_test(test_stop),      cmocka_unit_test(test_files)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
