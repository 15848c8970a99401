/* test_tokenizer_files.c - tests tokenizers that are small enough to check by hand or by brute
 * force, corrupt files, and texts of arbitrary bytes. */
#include "base/file.h"
#include "base/json.h"
#include "formats/gguf_facts.h"
#include "unit/text/tokenizers.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/files.h"

static char *shared_text(const char *name, size_t *bytes) {
  char path[4200];
  char *text = NULL;
  assert_int_equal(rf_file_read(need_file(name, path), (size_t)1 << 28, &text, bytes, NULL), RAFTER_OK);
  return text;
}

static rf_tokenizer *shared_tokenizer(const char *name) {
  char path[4200];
  rf_error error = {0};
  rf_tokenizer *t = NULL;
  if (rf_tokenizer_open(need_file(name, path), &t, &error) != RAFTER_OK)
    fail_msg("%s: %s", name, error.message);
  return t;
}

/* ---- small real models ----------------------------------------------------------------------- */

static void test_stories260k(void **state) {
  (void)state;
  static const char *const FILES[] = {"models/stories260K/tok512.bin", "models/stories260K/stories260K.gguf"};
  size_t bytes;
  char *golden = shared_text("models/stories260K/golden.json", &bytes);
  json_t *json = json_loads(golden, 0, NULL), *ids = json_object_get(json, "greedy_ids");
  const char *text = json_string_value(json_object_get(json, "greedy_text"));
  int32_t expected[1024];
  int count = (int)json_array_size(ids);
  for (int i = 0; i < count; i++) expected[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
  for (int f = 0; f < 2; f++) {
    rf_tokenizer *t = shared_tokenizer(FILES[f]);
    assert_int_equal(rf_tokenizer_vocab(t), 512);
    expect_ids(t, text, RF_ENCODE_BOS_EOS, count, expected);
    expect_text(t, expected, count, 0, text);
    rf_tokenizer_close(t);
  }
  json_decref(json);
  free(golden);
}

static void test_tinystories656k(void **state) {
  (void)state;
  size_t bytes, text_bytes;
  /* the model first: without its files, the test is skipped before it owns anything */
  rf_tokenizer *t = shared_tokenizer("models/TinyStories-656K");
  char *golden = shared_text("goldens/TinyStories-656K/golden.json", &bytes), *text = NULL;
  json_t *json = json_loads(golden, 0, NULL), *given = json_object_get(json, "greedy_ids");
  IDS(t, "Once upon a time", RF_ENCODE_BOS_EOS, 1, 80, 147, 201, 282, 57);
  assert_int_equal(rf_tokenizer_bos(t), 1);
  assert_int_equal(rf_tokenizer_eos(t), 2);
  rf_ids ids = {0};
  for (size_t i = 0; i < json_array_size(given); i++)
    assert_int_equal(rf_ids_add(&ids, (int32_t)json_integer_value(json_array_get(given, i)), NULL),
                     RAFTER_OK);
  assert_int_equal(rf_tokenizer_decode(t, ids.at, ids.count, 0, &text, &text_bytes, NULL), RAFTER_OK);
  assert_memory_equal(text, "Once upon a time", 16);
  rf_ids_free(&ids);
  rf_tokenizer_close(t);
  json_decref(json);
  free(golden);
  free(text);
}

/* llama.cpp's ids of a vocabulary. */
static void same_as_llamacpp(const char *name, rf_tokenizer *t) {
  size_t bytes, i;
  char *golden = shared_text(name, &bytes);
  json_t *json = json_loads(golden, 0, NULL), *row;
  json_array_foreach (json_object_get(json, "tokenize"), i, row) {
    static const struct {
      const char *key;
      int flags;
    } ASKED[] = {{"ids", 0}, {"ids_bos", RF_ENCODE_BOS_EOS}, {"ids_special_parsed", RF_ENCODE_PARSE}};
    for (int k = 0; k < 3; k++) {
      json_t *list = json_object_get(row, ASKED[k].key);
      int32_t expected[256];
      int count = (int)json_array_size(list);
      for (int j = 0; j < count; j++)
        expected[j] = (int32_t)json_integer_value(json_array_get(list, (size_t)j));
      expect_ids(t, json_string_value(json_object_get(row, "text")), ASKED[k].flags, count, expected);
    }
  }
  json_array_foreach (json_object_get(json, "chat"), i, row) {
    json_t *list = json_object_get(row, "ids_special_parsed");
    int32_t expected[1024];
    int count = (int)json_array_size(list);
    assert_in_range(count, 1, 1024);
    for (int j = 0; j < count; j++)
      expected[j] = (int32_t)json_integer_value(json_array_get(list, (size_t)j));
    expect_ids(t, json_string_value(json_object_get(row, "text")), RF_ENCODE_PARSE, count, expected);
  }
  rf_tokenizer_close(t);
  json_decref(json);
  free(golden);
}

static void test_gemma3_ids(void **state) {
  (void)state;
  same_as_llamacpp("real-models/gemma-3-270m-q4_k_m.json",
                   shared_tokenizer("tokenizers/gemma3/tokenizer.model"));
}

/* The vocabulary of a real model. */
static rf_tokenizer *model_tokenizer(const char *variable, const char *file) {
  char path[4200];
  rf_tokenizer *t = NULL;
  rf_error error = {0};
  if (rf_tokenizer_open(need_model(variable, file, path), &t, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  return t;
}

static void test_gemma3_gguf(void **state) {
  (void)state;
  same_as_llamacpp("real-models/gemma-3-270m-q4_k_m.json",
                   model_tokenizer("RAFTER_GEMMA_GGUF", "gemma3-270m-q4_k_m.gguf"));
}

static void test_smollm2_gguf(void **state) {
  (void)state;
  same_as_llamacpp("real-models/smollm2-135m-instruct-q4_1.json",
                   model_tokenizer("RAFTER_SMOLLM2_GGUF", "smollm2-135m-instruct-q4_1.gguf"));
}

/* Any bytes decode to themselves, because there are pieces for all bytes. */
static void test_any_bytes(void **state) {
  (void)state;
  static const char *const FILES[] = {"tokenizers/gpt2/tokenizer.json", "tokenizers/llama2/tokenizer.model"};
  for (int f = 0; f < 2; f++) {
    rf_tokenizer *t = shared_tokenizer(FILES[f]);
    for (uint64_t round = 0; round < 200; round++) {
      unsigned char text[257];
      uint32_t random[4];
      size_t bytes = 1 + round % 256;
      for (size_t i = 0; i < bytes; i++) {
        rf_philox(7, round, i, random);
        text[i] = (unsigned char)(round & 1 ? random[0] : 0xC0 | (random[0] & 0x3F));
      }
      rf_ids ids = {0};
      rf_error error = {0};
      char *again = NULL;
      size_t again_bytes;
      if (rf_tokenizer_encode(t, (char *)text, bytes, 0, &ids, &error) != RAFTER_OK)
        fail_msg("%s", error.message);
      assert_int_equal(rf_tokenizer_decode(t, ids.at, ids.count, 0, &again, &again_bytes, NULL), RAFTER_OK);
      assert_int_equal(again_bytes, bytes);
      assert_memory_equal(again, text, bytes);
      rf_decoder decoder;
      char out[256];
      size_t at = 0;
      rf_decoder_start(&decoder, t, 0);
      assert_true(rf_decoder_room(t) <= sizeof out);
      for (int64_t i = 0; i <= ids.count; i++) {
        size_t n = i < ids.count ? rf_decoder_next(&decoder, ids.at[i], out) : rf_decoder_end(&decoder, out);
        assert_memory_equal(out, text + at, n);
        at += n;
      }
      assert_int_equal(at, bytes);
      rf_ids_free(&ids);
      free(again);
    }
    rf_tokenizer_close(t);
  }
}

/* A word of a megabyte must not take time quadratic in its length. */
static void test_long_words(void **state) {
  (void)state;
  enum { LONG = 1 << 20 };
  static const char *const FILES[] = {"tokenizers/gpt2/tokenizer.json", "tokenizers/llama2/tokenizer.model",
                                      "tokenizers/gemma2/tokenizer.model"};
  for (int f = 0; f < 3; f++) {
    rf_tokenizer *t = shared_tokenizer(FILES[f]);
    char *text = malloc(LONG);
    for (int kind = 0; kind < 3; kind++) {
      uint32_t random[4];
      for (int i = 0; i < LONG; i++) {
        rf_philox(3, (uint64_t)i, 0, random);
        text[i] = kind == 0 ? 'a' : kind == 1 ? ' ' : (char)('a' + random[0] % 26);
      }
      rf_ids ids = {0};
      clock_t start = clock(); /* CPU time, so that other programs do not make the test fail */
      assert_int_equal(rf_tokenizer_encode(t, text, LONG, 0, &ids, NULL), RAFTER_OK);
      double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
      if (seconds > 20) fail_msg("%s, kind %d: %.1f s for a megabyte", FILES[f], kind, seconds);
      rf_ids_free(&ids);
    }
    free(text);
    rf_tokenizer_close(t);
  }
}

/* ---- comparison with brute force ------------------------------------------------------------- */

enum { LETTERS = 4 };

/* SentencePiece's rule in its simplest form: look at every neighbouring pair, merge the best,
 * repeat. */
static int merge_plainly(const rf_vocabulary *v, const char *text, int bytes, int32_t *ids) {
  int first[600], count = bytes;
  for (int i = 0; i <= bytes; i++) first[i] = i;
  for (;;) {
    int best = -1;
    float score = -FLT_MAX;
    for (int i = 0; i + 1 < count; i++)
      for (int64_t id = 0; id < v->count; id++) {
        bool same = v->pieces[id].bytes == (size_t)(first[i + 2] - first[i]) &&
                    !memcmp(v->pieces[id].at, text + first[i], v->pieces[id].bytes);
        if (same && (best < 0 || v->scores[id] > score)) {
          best = i;
          score = v->scores[id];
        }
      }
    if (best < 0) break;
    memmove(first + best + 1, first + best + 2, (size_t)(count - best - 1) * sizeof *first);
    count--;
  }
  for (int i = 0; i < count; i++)
    for (int64_t id = 0; id < v->count; id++)
      if (v->pieces[id].bytes == (size_t)(first[i + 1] - first[i]) &&
          !memcmp(v->pieces[id].at, text + first[i], v->pieces[id].bytes))
        ids[i] = (int32_t)id;
  return count;
}

/* The best sum of scores of the text from `at` on, by trying every piece. */
static double best_sum(const rf_vocabulary *v, const char *text, int at, int bytes, double *known) {
  if (at == bytes) return 0;
  if (known[at] < 1) return known[at];
  double best = -1e300;
  for (int64_t id = 1; id < v->count; id++) {
    int n = (int)v->pieces[id].bytes;
    if (n > bytes - at || memcmp(v->pieces[id].at, text + at, (size_t)n)) continue;
    double sum = (double)v->scores[id] + best_sum(v, text, at + n, bytes, known);
    if (sum > best) best = sum;
  }
  return known[at] = best;
}

static void test_random_vocabularies(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 40; seed++) {
    enum { PIECES = 60, TEXT = 500 };
    char store[PIECES][8], text[TEXT];
    rf_span pieces[PIECES] = {{"<unk>", 5}};
    float scores[PIECES] = {0};
    uint32_t r[4];
    rf_vocabulary v = {.kind = seed & 1 ? "unigram" : "llama",
                       .pieces = pieces,
                       .scores = scores,
                       .bos_id = -1,
                       .eos_id = -1,
                       .pad_id = -1};
    for (v.count = 1; v.count < PIECES;) {
      rf_philox(seed, (uint64_t)v.count, 1, r);
      int n = v.count <= LETTERS ? 1 : 2 + (int)(r[0] % 4);
      bool fresh = true;
      for (int i = 0; i < n; i++)
        store[v.count][i] =
            (char)('a' + (v.count <= LETTERS ? (uint32_t)v.count - 1 : r[1] >> 4 * i) % LETTERS);
      for (int64_t id = 1; id < v.count; id++)
        fresh &= pieces[id].bytes != (size_t)n || memcmp(pieces[id].at, store[v.count], (size_t)n);
      /* Few different scores, so that many are equal, and multiples of 1/4, so that sums are
       * exact. */
      if (fresh) {
        pieces[v.count] = (rf_span){store[v.count], (size_t)n};
        scores[v.count] = -(float)(r[2] % 16) / 4;
        v.count++;
      } else seed += 40;
    }
    rf_tokenizer *t = NULL;
    rf_error error = {0};
    if (rf_tokenizer_build(&v, "test", &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
    /* short words, and words long enough for the heap */
    for (int bytes = 1; bytes < TEXT; bytes = bytes * 3 / 2 + 1) {
      int32_t expected[TEXT];
      rf_ids ids = {0};
      for (int i = 0; i < bytes; i++) {
        rf_philox(seed, (uint64_t)i, 2, r);
        text[i] = (char)('a' + r[0] % LETTERS);
      }
      assert_int_equal(rf_tokenizer_encode(t, text, (size_t)bytes, 0, &ids, &error), RAFTER_OK);
      if (seed & 1) {
        double known[TEXT], sum = 0;
        int at = 0;
        for (int i = 0; i < bytes; i++) known[i] = 2;
        for (int64_t i = 0; i < ids.count; i++) {
          assert_memory_equal(text + at, pieces[ids.at[i]].at, pieces[ids.at[i]].bytes);
          at += (int)pieces[ids.at[i]].bytes;
          sum += (double)scores[ids.at[i]];
        }
        assert_int_equal(at, bytes);
        assert_true(sum == best_sum(&v, text, 0, bytes, known));
      } else {
        int count = merge_plainly(&v, text, bytes, expected);
        assert_int_equal(ids.count, count);
        assert_memory_equal(ids.at, expected, (size_t)count * sizeof *expected);
      }
      rf_ids_free(&ids);
    }
    rf_tokenizer_close(t);
    seed %= 40;
  }
}

/* ---- the other files ------------------------------------------------------------------------- */

/* A tokenizer.model: pieces <unk>, <s>, </s>, U+2581, a, U+2581a. */
static const unsigned char MODEL_FILE[] = "\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02"
                                          "\x0a\x0c\x0a\x03<s>\x15\0\0\0\0\x18\x03"
                                          "\x0a\x0d\x0a\x04</s>\x15\0\0\0\0\x18\x03"
                                          "\x0a\x0a\x0a\x03\xE2\x96\x81\x15\0\0\x80\xbf"
                                          "\x0a\x08\x0a\x01"
                                          "a\x15\0\0\x80\xbf"
                                          "\x0a\x0b\x0a\x04\xE2\x96\x81"
                                          "a\x15\0\0\0\xbf"
                                          "\x12\x02\x18\x02"
                                          "\x1a\x04\x18\x01\x20\x00";

static void test_sentencepiece_lies(void **state) {
  (void)state;
  rf_error error = {0};
  rf_tokenizer *t = NULL;
  size_t bytes = sizeof MODEL_FILE - 1;
  if (rf_tokenizer_sentencepiece_read((const char *)MODEL_FILE, bytes, "test", &t, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  IDS(t, "a a", RF_ENCODE_BOS_EOS, 1, 5, 5);
  IDS(t, "<s>a", RF_ENCODE_PARSE, 1, 5);
  IDS(t, "<s>a", 0, 3, 0, 4);
  IDS(t, "  a", 0, 3, 3, 5);
  expect_text(t, (int32_t[]){1, 5, 5, 2}, 4, 0, "a a");
  expect_text(t, (int32_t[]){5, 5}, 2, RF_DECODE_CONTINUES, " a a");
  rf_tokenizer_close(t);
  char squeezing[sizeof MODEL_FILE];
  memcpy(squeezing, MODEL_FILE, bytes);
  squeezing[bytes - 1] = 1; /* remove_extra_whitespaces */
  assert_int_equal(rf_tokenizer_sentencepiece_read(squeezing, bytes, "test", &t, &error), RAFTER_OK);
  IDS(t, "  a   a  ", 0, 5, 5);
  IDS(t, "a \xE2\x96\x81 ", 0, 5); /* the trailing blank is removed if spaces are already marks */
  rf_tokenizer_close(t);
  /* A truncated file, or a file with any flipped byte, is read or refused, never out of bounds. */
  for (size_t i = 0; i < bytes; i++)
    for (int change = 0; change < 9; change++) {
      size_t n = change < 8 ? bytes : i;
      unsigned char *file = malloc(n + 1);
      memcpy(file, MODEL_FILE, n);
      if (change < 8) file[i] ^= (unsigned char)(1 << change);
      file[n] = 0;
      if (rf_tokenizer_sentencepiece_read((const char *)file, n, "test", &t, &error) == RAFTER_OK) {
        rf_ids ids = {0};
        (void)rf_tokenizer_encode(t, "a b<s>\xff", 7, RF_ENCODE_PARSE, &ids, &error);
        rf_ids_free(&ids);
        rf_tokenizer_close(t);
      }
      free(file);
    }
  static const char CHARSMAP[] = "\x0a\x07\x0a\x05<unk>\x12\x02\x18\x02\x1a\x0b\x0a\x04nfkc\x12\x03xyz",
                    WORD[] = "\x0a\x07\x0a\x05<unk>\x12\x02\x18\x03";
  assert_int_equal(rf_tokenizer_sentencepiece_read(CHARSMAP, sizeof CHARSMAP - 1, "test", &t, &error),
                   RAFTER_FAILED);
  assert_non_null(strstr(error.message, "precompiled_charsmap"));
  assert_int_equal(rf_tokenizer_sentencepiece_read(WORD, sizeof WORD - 1, "test", &t, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "model_type"));
}

static void test_llama2c_lies(void **state) {
  (void)state;
  size_t bytes;
  char *text = shared_text("models/stories260K/tok512.bin", &bytes);
  rf_tokenizer *t = NULL;
  int read = 0;
  for (size_t n = 0; n < bytes; n += n < 200 ? 1 : 97) {
    char *part = malloc(n + 1);
    memcpy(part, text, n);
    if (rf_tokenizer_llama2c_read(part, n, "test", &t, NULL) == RAFTER_OK) {
      read++;
      rf_tokenizer_close(t);
    }
    free(part);
  }
  assert_true(read < 60); /* only a cut between two pieces leaves a valid file */
  text[8] = 120;
  rf_error error = {0};
  assert_int_equal(rf_tokenizer_llama2c_read(text, bytes, "test", &t, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "length is out of range"));
  free(text);
}

static void test_vocabulary_refused(void **state) {
  (void)state;
  const rf_span pieces[] = {{"a", 1}, {"b", 1}, {"ab", 2}}, merges[] = {{"a b", 3}, {"a c", 3}};
  const float scores[] = {0, 0, 0};
  rf_vocabulary v = {.kind = "gpt2",
                     .pre = "gpt-2",
                     .count = 3,
                     .pieces = pieces,
                     .scores = scores,
                     .merges = merges,
                     .merge_count = 1,
                     .bos_id = -1,
                     .eos_id = -1,
                     .pad_id = -1,
                     .unk_id = -1};
  rf_tokenizer *t = NULL;
  rf_error error = {0};
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_OK);
  IDS(t, "ab", 0, 2);
  rf_tokenizer_close(t);
  const char *const without[] = {"none", "no_vocab"};
  const rf_vocabulary made = v;
  for (int i = 0; i < 2; i++) {
    v.kind = without[i];
    /* as for a folder without a tokenizer: ids can still be read */
    assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_INVALID);
    assert_string_equal(error.message, "test has no tokenizer to read text with");
  }
  v = made;
  v.merge_count = 2;
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "merge 1"));
  v.merge_count = 1;
  v.pre = "unheard-of";
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "unheard-of"));
  v.pre = NULL;
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_FAILED);
  v.pre = "gpt-2";
  v.eos_id = 3;
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "eos"));
  v.eos_id = -1;
  v.kind = "bert";
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "bert"));
}

static void test_byte(void **state) {
  (void)state;
  rf_tokenizer *t = NULL;
  assert_int_equal(rf_tokenizer_byte("m", 257, &t, NULL), RAFTER_OK);
  IDS(t, "A\xC3\xB1", RF_ENCODE_BOS_EOS, 65, 195, 177);
  assert_int_equal(rf_tokenizer_eos(t), 256);
  assert_int_equal(rf_tokenizer_vocab(t), 257);
  assert_true(rf_tokenizer_is_special(t, 256) && rf_tokenizer_is_byte(t));
  expect_text(t, (int32_t[]){65, 256, 195, 177, 700}, 5, 0, "A\xC3\xB1");
  rf_tokenizer_close(t);
  assert_int_equal(rf_tokenizer_byte("m", 256, &t, NULL), RAFTER_OK);
  assert_int_equal(rf_tokenizer_eos(t), -1);
  rf_tokenizer_close(t);
  assert_int_equal(rf_tokenizer_byte("m", 255, &t, NULL), RAFTER_INVALID);
}

static void put(const char *folder, const char *name, const char *text) {
  char path[200];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  assert_int_equal(rf_file_write(path, text, strlen(text), NULL), RAFTER_OK);
}

/* The tokenizer of a model without one must be given; it is never guessed. */
static void test_taken_along(void **state) {
  (void)state;
  enum { VOCAB = 512 };
  rf_tokenizer *t = NULL, *other = NULL;
  rf_error error;
  int copied = -1;
  char folder[] = "/tmp/rafter-test-XXXXXX", path[200];
  assert_non_null(mkdtemp(folder));
  assert_int_equal(rf_tokenizer_for("m", VOCAB, "", &t, NULL), RAFTER_OK); /* an inline shape */
  assert_true(rf_tokenizer_is_byte(t));
  rf_tokenizer_close(t);
  assert_int_equal(rf_tokenizer_for("m", VOCAB, folder, &t, &error), RAFTER_INVALID);
  assert_null(t);
  assert_non_null(strstr(error.message, folder));
  put(folder, "tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
  assert_int_equal(rf_tokenizer_for("m", VOCAB, folder, &t, &error), RAFTER_INVALID);
  assert_int_equal(rf_tokenizer_bytes_write(folder, VOCAB, NULL), RAFTER_OK);
  assert_int_equal(rf_tokenizer_for("m", VOCAB, folder, &t, NULL), RAFTER_OK);
  assert_true(rf_tokenizer_is_byte(t));
  rf_tokenizer_close(t);
  snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
  unlink(path);

  rf_tokenizer *whole = shared_tokenizer("models/stories260K/stories260K.gguf");
  if (whole) {
    static const char TEXT[] = "Once upon a time, \xC3\xA9 <s> there.\n";
    char from[4200];
    need_file("models/stories260K/stories260K.gguf", from);
    assert_int_equal(rf_tokenizer_files_copy(from, folder, &copied, NULL), RAFTER_OK);
    assert_int_equal(copied, 1);
    /* first the folder's own file, then the files of other libraries */
    static const char *const FILES[] = {"tokenizer.gguf", "tokenizer.model"};
    for (int i = 0; i < 2; i++) {
      snprintf(path, sizeof path, "%s/%s", folder, FILES[i]);
      rf_status status =
          i ? rf_tokenizer_open(path, &other, &error) : rf_tokenizer_for("m", VOCAB, folder, &other, &error);
      if (status != RAFTER_OK) fail_msg("%s", error.message);
      for (int flags = 0; flags < 4; flags++) {
        rf_ids a = {0}, b = {0};
        assert_int_equal(rf_tokenizer_encode(whole, TEXT, strlen(TEXT), flags, &a, NULL), RAFTER_OK);
        assert_int_equal(rf_tokenizer_encode(other, TEXT, strlen(TEXT), flags, &b, NULL), RAFTER_OK);
        assert_int_equal(a.count, b.count);
        assert_memory_equal(a.at, b.at, (size_t)a.count * sizeof *a.at);
        rf_ids_free(&a);
        rf_ids_free(&b);
      }
      rf_tokenizer_close(other);
      unlink(path);
    }
    rf_tokenizer_close(whole);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    unlink(path);
  }
  rmdir(folder);
}

/* tokenizer.model is written only for vocabularies that SentencePiece reads in the same way. */
static void test_model_written(void **state) {
  (void)state;
  enum { COUNT = 4 + 256, GOOD = 0, FAULTS = 9 };
  char folder[] = "/tmp/rafter-test-XXXXXX", path[64], bytes[256][8];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/tokenizer.model", folder);
  for (int fault = 0; fault <= FAULTS; fault++) {
    rf_gguf_text token[COUNT] = {{"<unk>", 5}, {"<s>", 3}, {"ab", 2}, {"a  b", 4}};
    int32_t kind[COUNT] = {RF_GGUF_TOKEN_UNKNOWN, RF_GGUF_TOKEN_CONTROL, RF_GGUF_TOKEN_NORMAL,
                           RF_GGUF_TOKEN_USER};
    float score[COUNT] = {0};
    for (int i = 0; i < 256; i++) {
      token[4 + i] = (rf_gguf_text){bytes[i], snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i)};
      kind[4 + i] = RF_GGUF_TOKEN_BYTE;
    }
    rf_gguf_vocab v = {.model = {"llama", 5},
                       .count = COUNT,
                       .token = token,
                       .score = score,
                       .kind = kind,
                       .bos = 1,
                       .eos = -1,
                       .eot = -1,
                       .pad = -1};
    bool written;
    rf_error error;
    if (fault == 1) v.model = (rf_gguf_text){"gpt2", 4};
    else if (fault == 2) v.score = NULL;
    else if (fault == 3) v.kind = NULL;
    else if (fault == 4) kind[2] = RF_GGUF_TOKEN_UNUSED;
    else if (fault == 5) token[2] = token[1];
    else if (fault == 6) token[2].bytes = 0;
    else if (fault == 7) {
      v.unknown = -1;
      kind[0] = RF_GGUF_TOKEN_CONTROL;
    } else if (fault == 8) kind[2] = RF_GGUF_TOKEN_UNKNOWN;
    else if (fault == 9) kind[5] = RF_GGUF_TOKEN_NORMAL;
    assert_int_equal(rf_tokenizer_model_write(&v, folder, &written, &error), RAFTER_OK);
    if (written != (fault == GOOD)) fail_msg("fault %d: %s", fault, written ? "written" : "not written");
    if (fault != GOOD) continue;
    rf_tokenizer *t = NULL;
    rf_ids ids = {0};
    if (rf_tokenizer_open(path, &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
    assert_int_equal(rf_tokenizer_bos(t), 1);
    /* a token of the user, spelled with spaces */
    assert_int_equal(rf_tokenizer_encode(t, "a  b", 4, 0, &ids, NULL), RAFTER_OK);
    assert_int_equal(ids.count, 1);
    assert_int_equal(ids.at[0], 3);
    rf_ids_free(&ids);
    rf_tokenizer_close(t);
    unlink(path);
  }
  rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stories260k),        cmocka_unit_test(test_tinystories656k),
      cmocka_unit_test(test_gemma3_ids),         cmocka_unit_test(test_gemma3_gguf),
      cmocka_unit_test(test_smollm2_gguf),       cmocka_unit_test(test_any_bytes),
      cmocka_unit_test(test_long_words),         cmocka_unit_test(test_random_vocabularies),
      cmocka_unit_test(test_sentencepiece_lies), cmocka_unit_test(test_llama2c_lies),
      cmocka_unit_test(test_vocabulary_refused), cmocka_unit_test(test_byte),
      cmocka_unit_test(test_taken_along),        cmocka_unit_test(test_model_written),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
