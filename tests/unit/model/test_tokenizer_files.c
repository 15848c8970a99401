/* Tokenizers small enough to be checked by hand or by trying everything, files that lie, and texts of any bytes. */
#include "base/file.h"
#include "base/json.h"
#include "model/gguf_facts.h"
#include "model/tokenizer_parts.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char *shared_text(const char *name, size_t *bytes) {
  char path[4200];
  struct stat info;
  char *text = NULL;
  snprintf(path, sizeof path, "%s/%s", RF_SHARED_DATA, name);
  if (stat(path, &info)) skip();
  assert_int_equal(rf_file_read(path, (size_t)1 << 28, &text, bytes, NULL), RAFTER_OK);
  return text;
}

static rf_tokenizer *shared_tokenizer(const char *name) {
  char path[4200];
  struct stat info;
  rf_error error = {0};
  rf_tokenizer *t = NULL;
  snprintf(path, sizeof path, "%s/%s", RF_SHARED_DATA, name);
  if (stat(path, &info)) skip();
  if (rf_tokenizer_open(path, &t, &error) != RAFTER_OK) fail_msg("%s: %s", name, error.message);
  return t;
}

static void expect_ids(const rf_tokenizer *t, const char *text, int flags, int count, const int32_t *expected) {
  rf_ids ids = {0};
  rf_error error = {0};
  if (rf_tokenizer_encode(t, text, strlen(text), flags, &ids, &error) != RAFTER_OK) fail_msg("'%s': %s", text, error.message);
  if (ids.count != count) fail_msg("'%s' gives %lld ids, not %d", text, (long long)ids.count, count);
  for (int i = 0; i < count; i++)
    if (ids.at[i] != expected[i]) fail_msg("'%s', id %d: expected %d, got %d", text, i, expected[i], ids.at[i]);
  rf_ids_free(&ids);
}
#define IDS(t, text, flags, ...) expect_ids(t, text, flags, (int)(sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t)), (int32_t[]){__VA_ARGS__})

static void expect_text(const rf_tokenizer *t, const int32_t *ids, int count, int flags, const char *expected) {
  char *text = NULL;
  size_t bytes;
  assert_int_equal(rf_tokenizer_decode(t, ids, count, flags, &text, &bytes, NULL), RAFTER_OK);
  assert_string_equal(text, expected);
  free(text);
}

/* ---- real models, small ------------------------------------------------------------------------------------------ */

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
    expect_ids(t, text, RF_ENCODE_MARKS, count, expected);
    expect_text(t, expected, count, 0, text);
    rf_tokenizer_close(t);
  }
  json_decref(json), free(golden);
}

static void test_tinystories656k(void **state) {
  (void)state;
  size_t bytes, text_bytes;
  char *golden = shared_text("models/TinyStories-656K/golden.json", &bytes), *text = NULL;
  json_t *json = json_loads(golden, 0, NULL), *given = json_object_get(json, "greedy_ids");
  rf_tokenizer *t = shared_tokenizer("models/TinyStories-656K");
  IDS(t, "Once upon a time", RF_ENCODE_MARKS, 1, 80, 147, 201, 282, 57);
  assert_int_equal(rf_tokenizer_bos(t), 1);
  assert_int_equal(rf_tokenizer_eos(t), 2);
  rf_ids ids = {0};
  for (size_t i = 0; i < json_array_size(given); i++)
    assert_int_equal(rf_ids_add(&ids, (int32_t)json_integer_value(json_array_get(given, i)), NULL), RAFTER_OK);
  assert_int_equal(rf_tokenizer_decode(t, ids.at, ids.count, 0, &text, &text_bytes, NULL), RAFTER_OK);
  assert_memory_equal(text, "Once upon a time", 16);
  rf_ids_free(&ids), rf_tokenizer_close(t), json_decref(json), free(golden), free(text);
}

/* llama.cpp's ids of a vocabulary. */
static void same_as_llamacpp(const char *name, rf_tokenizer *t) {
  size_t bytes, i;
  char *golden = shared_text(name, &bytes);
  json_t *json = json_loads(golden, 0, NULL), *row;
  json_array_foreach(json_object_get(json, "tokenize"), i, row) {
    static const struct {
      const char *key;
      int flags;
    } ASKED[] = {{"ids", 0}, {"ids_bos", RF_ENCODE_MARKS}, {"ids_special_parsed", RF_ENCODE_PARSE}};
    for (int k = 0; k < 3; k++) {
      json_t *list = json_object_get(row, ASKED[k].key);
      int32_t expected[256];
      int count = (int)json_array_size(list);
      for (int j = 0; j < count; j++) expected[j] = (int32_t)json_integer_value(json_array_get(list, (size_t)j));
      expect_ids(t, json_string_value(json_object_get(row, "text")), ASKED[k].flags, count, expected);
    }
  }
  json_array_foreach(json_object_get(json, "chat"), i, row) {
    json_t *list = json_object_get(row, "ids_special_parsed");
    int32_t expected[1024];
    int count = (int)json_array_size(list);
    assert_in_range(count, 1, 1024);
    for (int j = 0; j < count; j++) expected[j] = (int32_t)json_integer_value(json_array_get(list, (size_t)j));
    expect_ids(t, json_string_value(json_object_get(row, "text")), RF_ENCODE_PARSE, count, expected);
  }
  rf_tokenizer_close(t), json_decref(json), free(golden);
}

static void test_gemma3_ids(void **state) {
  (void)state;
  same_as_llamacpp("real-models/gemma-3-270m-q4_k_m.json", shared_tokenizer("tokenizers/gemma3/tokenizer.model"));
}

/* The vocabularies of whole models, where they are there. */
static rf_tokenizer *tokenizer_named_by(const char *variable) {
  rf_tokenizer *t = NULL;
  rf_error error = {0};
  if (!getenv(variable)) {
    print_message("%s names no file\n", variable);
    skip();
  }
  if (rf_tokenizer_open(getenv(variable), &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return t;
}

static void test_gemma3_gguf(void **state) {
  (void)state;
  same_as_llamacpp("real-models/gemma-3-270m-q4_k_m.json", tokenizer_named_by("RAFTER_GEMMA_GGUF"));
}

static void test_smollm2_gguf(void **state) {
  (void)state;
  same_as_llamacpp("real-models/smollm2-135m-instruct-q4_1.json", tokenizer_named_by("RAFTER_SMOLLM2_GGUF"));
}

/* Any bytes come back: pieces for all of them are there. */
static void test_any_bytes(void **state) {
  (void)state;
  static const char *const FILES[] = {"tokenizers/gpt2/tokenizer.json", "tokenizers/llama2/tokenizer.model"};
  for (int f = 0; f < 2; f++) {
    rf_tokenizer *t = shared_tokenizer(FILES[f]);
    for (uint64_t round = 0; round < 200; round++) {
      unsigned char text[257];
      uint32_t random[4];
      size_t bytes = 1 + round % 256;
      for (size_t i = 0; i < bytes; i++) rf_philox(7, round, i, random), text[i] = (unsigned char)(round & 1 ? random[0] : 0xC0 | (random[0] & 0x3F));
      rf_ids ids = {0};
      rf_error error = {0};
      char *again = NULL;
      size_t again_bytes;
      if (rf_tokenizer_encode(t, (char *)text, bytes, 0, &ids, &error) != RAFTER_OK) fail_msg("%s", error.message);
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
      rf_ids_free(&ids), free(again);
    }
    rf_tokenizer_close(t);
  }
}

/* One word of a megabyte must not take the square of its length. */
static void test_long_words(void **state) {
  (void)state;
  enum { LONG = 1 << 20 };
  static const char *const FILES[] = {"tokenizers/gpt2/tokenizer.json", "tokenizers/llama2/tokenizer.model", "tokenizers/gemma2/tokenizer.model"};
  for (int f = 0; f < 3; f++) {
    rf_tokenizer *t = shared_tokenizer(FILES[f]);
    char *text = malloc(LONG);
    for (int kind = 0; kind < 3; kind++) {
      uint32_t random[4];
      for (int i = 0; i < LONG; i++) rf_philox(3, (uint64_t)i, 0, random), text[i] = kind == 0 ? 'a' : kind == 1 ? ' ' : (char)('a' + random[0] % 26);
      rf_ids ids = {0};
      double start = rf_now_seconds();
      assert_int_equal(rf_tokenizer_encode(t, text, LONG, 0, &ids, NULL), RAFTER_OK);
      double seconds = rf_now_seconds() - start;
      if (seconds > 20) fail_msg("%s, kind %d: %.1f s for a megabyte", FILES[f], kind, seconds);
      rf_ids_free(&ids);
    }
    free(text);
    rf_tokenizer_close(t);
  }
}

/* ---- against trying everything ------------------------------------------------------------------------------------ */

enum { LETTERS = 4 };

/* SentencePiece's rule in its plainest form: look at every neighbouring pair, merge the best, begin again. */
static int merge_plainly(const rf_vocabulary *v, const char *text, int bytes, int32_t *ids) {
  int first[600], count = bytes;
  for (int i = 0; i <= bytes; i++) first[i] = i;
  for (;;) {
    int best = -1;
    float score = -FLT_MAX;
    for (int i = 0; i + 1 < count; i++)
      for (int64_t id = 0; id < v->count; id++) {
        bool same = v->pieces[id].bytes == (size_t)(first[i + 2] - first[i]) && !memcmp(v->pieces[id].at, text + first[i], v->pieces[id].bytes);
        if (same && (best < 0 || v->scores[id] > score)) best = i, score = v->scores[id];
      }
    if (best < 0) break;
    memmove(first + best + 1, first + best + 2, (size_t)(count - best - 1) * sizeof *first);
    count--;
  }
  for (int i = 0; i < count; i++)
    for (int64_t id = 0; id < v->count; id++)
      if (v->pieces[id].bytes == (size_t)(first[i + 1] - first[i]) && !memcmp(v->pieces[id].at, text + first[i], v->pieces[id].bytes))
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
    rf_vocabulary v = {.kind = seed & 1 ? "unigram" : "llama", .pieces = pieces, .scores = scores, .bos_id = -1, .eos_id = -1, .pad_id = -1};
    for (v.count = 1; v.count < PIECES;) {
      rf_philox(seed, (uint64_t)v.count, 1, r);
      int n = v.count <= LETTERS ? 1 : 2 + (int)(r[0] % 4);
      bool fresh = true;
      for (int i = 0; i < n; i++) store[v.count][i] = (char)('a' + (v.count <= LETTERS ? (uint32_t)v.count - 1 : r[1] >> 4 * i) % LETTERS);
      for (int64_t id = 1; id < v.count; id++) fresh &= pieces[id].bytes != (size_t)n || memcmp(pieces[id].at, store[v.count], (size_t)n);
      /* Few scores, so that many are equal; quarters, so that sums are exact. */
      if (fresh) pieces[v.count] = (rf_span){store[v.count], (size_t)n}, scores[v.count] = -(float)(r[2] % 16) / 4, v.count++;
      else seed += 40;
    }
    rf_tokenizer *t = NULL;
    rf_error error = {0};
    if (rf_tokenizer_build(&v, "test", &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
    for (int bytes = 1; bytes < TEXT; bytes = bytes * 3 / 2 + 1) { /* short words, and those that go through the heap */
      int32_t expected[TEXT];
      rf_ids ids = {0};
      for (int i = 0; i < bytes; i++) rf_philox(seed, (uint64_t)i, 2, r), text[i] = (char)('a' + r[0] % LETTERS);
      assert_int_equal(rf_tokenizer_encode(t, text, (size_t)bytes, 0, &ids, &error), RAFTER_OK);
      if (seed & 1) {
        double known[TEXT], sum = 0;
        int at = 0;
        for (int i = 0; i < bytes; i++) known[i] = 2;
        for (int64_t i = 0; i < ids.count; i++) {
          assert_memory_equal(text + at, pieces[ids.at[i]].at, pieces[ids.at[i]].bytes);
          at += (int)pieces[ids.at[i]].bytes, sum += (double)scores[ids.at[i]];
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

/* ---- tokenizer.json ------------------------------------------------------------------------------------------------ */

#define LETTERS_AND "\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"\xC4\xA0\":4,\"1\":5,\"2\":6,\".\":7"
#define MODEL(more) "\"model\":{\"type\":\"BPE\",\"vocab\":{" LETTERS_AND "},\"merges\":[[\"a\",\"b\"]]" more "}"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define BYTES_MODEL(more) "\"pre_tokenizer\":" BYTE_LEVEL "," MODEL(more)

static rf_tokenizer *parse(const char *text) {
  rf_error error = {0};
  rf_tokenizer *t = NULL;
  if (rf_tokenizer_json_read(text, strlen(text), "test", &t, &error) != RAFTER_OK) fail_msg("%s\n%s", error.message, text);
  return t;
}

static void test_json_added(void **state) {
  (void)state;
  rf_tokenizer *t = parse(
      "{\"added_tokens\":[{\"id\":8,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
      "{\"id\":9,\"content\":\"<l>\",\"lstrip\":true,\"rstrip\":true,\"normalized\":false},"
      "{\"id\":10,\"content\":\"c2\",\"single_word\":true,\"normalized\":false}],"
      "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
      "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[8],\"tokens\":[\"<s>\"]}}}," BYTES_MODEL(
          "") "}");
  IDS(t, "ab", RF_ENCODE_MARKS, 8, 3);
  IDS(t, "a<s>b", RF_ENCODE_PARSE, 0, 8, 1);
  IDS(t, "a <l>  b", 0, 0, 9, 1);
  IDS(t, "c2", 0, 10);
  IDS(t, "a c2.", 0, 0, 4, 10, 7);
  IDS(t, "ac2", 0, 0, 2, 6);
  rf_ids ids = {0};
  rf_error error = {0};
  assert_int_equal(rf_tokenizer_encode(t, "a<s>", 4, 0, &ids, &error), RAFTER_FAILED); /* '<' is no piece */
  assert_non_null(strstr(error.message, "no piece"));
  rf_ids_free(&ids);
  assert_int_equal(rf_tokenizer_bos(t), 8);
  assert_int_equal(rf_tokenizer_find(t, "<s>", 3), 8);
  assert_int_equal(rf_tokenizer_find(t, " ", 1), 4);
  assert_int_equal(rf_tokenizer_find(t, "zz", 2), -1);
  expect_text(t, (int32_t[]){8, 0, 4, 3}, 4, 0, "a ab");
  expect_text(t, (int32_t[]){8, 0, 4, 3}, 4, RF_DECODE_SPECIALS, "<s>a ab");
  rf_tokenizer_close(t);
}

static void test_json_splits(void **state) {
  (void)state;
  /* Each behaviour cuts "a.b.." elsewhere; "ab" can only merge where no cut stands between them. */
  static const struct {
    const char *behaviour, *pattern, *text;
    int count;
    int32_t ids[8];
  } CASES[] = {
      {"Isolated", "\\\\.", "ab.ab", 3, {3, 7, 3}}, {"Removed", "\\\\.", "ab.ab", 2, {3, 3}},     {"Isolated", "b", "ab", 2, {0, 1}},
      {"MergedWithPrevious", "b", "ab", 1, {3}},    {"MergedWithPrevious", "a", "ab", 2, {0, 1}}, {"MergedWithNext", "a", "ab", 1, {3}},
      {"MergedWithNext", "b", "ab", 2, {0, 1}},     {"Contiguous", "[ab]", "abc", 2, {3, 2}},     {"Isolated", "[ab]", "abc", 3, {0, 1, 2}},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    char text[2000];
    snprintf(text, sizeof text,
             "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"%s\","
             "\"invert\":false},"
             "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}," MODEL("") "}",
             CASES[i].pattern, CASES[i].behaviour);
    rf_tokenizer *t = parse(text);
    expect_ids(t, CASES[i].text, 0, CASES[i].count, CASES[i].ids);
    rf_tokenizer_close(t);
  }
}

/* A cut asked for the other way round joins what lies side by side all the same. */
static void test_json_inverted(void **state) {
  (void)state;
  rf_tokenizer *t =
      parse("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[ab]\"},"
            "\"behavior\":\"Contiguous\",\"invert\":true},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}," MODEL("") "}");
  IDS(t, "abc", 0, 3, 2);
  rf_tokenizer_close(t);
}

static void test_characters(void **state) {
  (void)state;
  /* Letters, letter numbers, joiners and circled letters make words; other numbers and blanks do not. */
  assert_true(rf_code_is_word('a') && rf_code_is_word('_') && rf_code_is_word(0x2163) && rf_code_is_word(0x200D) && rf_code_is_word(0x24D0));
  assert_false(rf_code_is_word(0xB2) || rf_code_is_word(' ') || rf_code_is_word('-'));
  assert_true(rf_code_is_blank(0x3000) && rf_code_is_blank(0x85) && !rf_code_is_blank(0x180E) && !rf_code_is_blank(0x200B));
  static const char *const WRONG[] = {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\x80", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF"};
  for (size_t i = 0; i < sizeof WRONG / sizeof WRONG[0]; i++) assert_int_equal(rf_utf8_length(WRONG[i], WRONG[i] + strlen(WRONG[i])), 0);
  for (uint32_t code = 1; code < 0x110000; code += code < 0x800 ? 1 : 97) {
    char text[4];
    int n = rf_utf8_put(code, text);
    bool surrogate = code >= 0xD800 && code < 0xE000;
    assert_int_equal(rf_utf8_length(text, text + n), surrogate ? 0 : n);
    if (!surrogate) assert_int_equal(rf_utf8_code(text, n), code);
  }
}

static void test_json_characters(void **state) {
  (void)state;
  const char *model =
      "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<u>\",\"fuse_unk\":%s,\"vocab\":{\"<u>\":0,\"a\":1,\"\\u2581\":2,\"\\u2581a\":3,\"\\u00e9\":4},"
      "\"merges\":[\"\\u2581 a\"]}";
  char text[2000], with[1000];
  snprintf(with, sizeof with, model, "true");
  snprintf(text, sizeof text,
           "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"first\"},\"decoder\":{\"type\":"
           "\"Metaspace\"},%s}",
           with);
  rf_tokenizer *t = parse(text);
  IDS(t, "a a", 0, 3, 3);
  IDS(t, " a", 0, 3);
  IDS(t, "aXYZa", 0, 3, 0, 1);     /* unknown characters side by side are one */
  IDS(t, "e\xCC\x81", 0, 2, 4);    /* NFC composes; a lone mark of the space stays */
  IDS(t, "\xC2\x85\xFF", 0, 2, 0); /* no UTF-8 */
  expect_text(t, (int32_t[]){3, 3}, 2, 0, "a a");
  rf_tokenizer_close(t);
  snprintf(with, sizeof with, model, "false");
  snprintf(text, sizeof text, "{%s}", with);
  t = parse(text);
  IDS(t, "aXY", 0, 1, 0, 0);
  rf_tokenizer_close(t);
  t = parse("{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"always\"},\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":"
            "[[\"<unk>\",0],[\"\\u2581\",-2.0],[\"a\",-3.5],[\"\\u2581a\",-4],[\"aa\",-1e0]]}}");
  IDS(t, "aaa", 0, 3, 4);
  IDS(t, "a", 0, 3);
  IDS(t, "aQQa", 0, 3, 0, 2);
  IDS(t, "aQ<unk>Qa", 0, 3, 0, 2); /* the unknown piece's name among unknown text is more of it */
  IDS(t, "a<unk>a", 0, 3, 0, 2);
  rf_tokenizer_close(t);
}

static void test_json_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
  } CASES[] = {
      {"", "object"},
      {"[]", "object"},
      {"{}", "no vocabulary"},
      {"{" MODEL("") "} x", "end of the file"},
      {"{" MODEL("") "," MODEL("") "}", "twice"},
      {"{" MODEL(",\"vocab\":{}") "}", "twice"},
      {"{" MODEL(",\"byte_fallback\":1") "}", "byte_fallback"},
      {"{" MODEL(",\"dropout\":0.1") "}", "dropout"},
      {"{" MODEL(",\"novelty\":true") "}", "novelty"},
      {"{" MODEL(",\"end_of_word_suffix\":\"</w>\"") "}", "end_of_word_suffix"},
      {"{" MODEL(",\"unk_token\":\"zz\"") "}", "unknown token"},
      {"{\"version\":\"2.0\"," MODEL("") "}", "version"},
      {"{\"added_tokens\":{}," MODEL("") "}", "no list"},
      {"{\"normalizer\":{\"type\":\"Lowercase\"}," MODEL("") "}", "Lowercase"},
      {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}]}," MODEL("") "}",
       "Precompiled"},
      {"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}," MODEL("") "}", "BertPreTokenizer"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\"}," MODEL("") "}", "pattern cannot be read"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Sideways\"}," MODEL("") "}", "Sideways"},
      {"{\"decoder\":{\"type\":\"WordPiece\"}," MODEL("") "}", "WordPiece"},
      {"{\"post_processor\":{\"type\":\"RobertaProcessing\"}," MODEL("") "}", "RobertaProcessing"},
      {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],"
       "\"special_tokens\":{\"x\":{\"ids\":[99]}}}," MODEL("") "}",
       "post-processor adds"},
      {"{\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]," MODEL("") "}", "belongs to another"},
      {"{\"added_tokens\":[{\"id\":8,\"content\":\"ab\"}]," MODEL("") "}", "under another id"},
      {"{\"added_tokens\":[{\"id\":8,\"content\":\"x\"},{\"id\":9,\"content\":\"x\"}]," MODEL("") "}", "added twice"},
      {"{\"added_tokens\":[{\"id\":99999999,\"content\":\"x\"}]," MODEL("") "}", "id"},
      {"{\"added_tokens\":[{\"id\":8,\"content\":\"x\",\"magic\":true}]," MODEL("") "}", "magic"},
      {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{},\"merges\":[]}}", "WordPiece"},
      {"{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "twice"},
      {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "one id"},
      {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "an id"},
      {"{\"model\":{\"vocab\":{\"a\":999999},\"merges\":[]}}", "fits the file"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "merge"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "merge"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"\",\"\"]]}}", "empty"},
      {"{\"model\":{\"vocab\":{\"\\ud800\":0},\"merges\":[]}}", "JSON string"},
      {"{\"model\":{\"vocab\":{\"\\q\":0},\"merges\":[]}}", "JSON string"},
      {"{\"model\":{\"vocab\":{\"\xff\":0},\"merges\":[]}}", "UTF-8"},
      {"{\"model\":{\"vocab\":{\"a\":0,},\"merges\":[]}}", "string"},
      {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",1e999]]}}", "finite"},
      {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":7,\"vocab\":[[\"a\",0]]}}", "unknown id"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    rf_error error = {0};
    rf_tokenizer *t = NULL;
    if (rf_tokenizer_json_read(CASES[i].text, strlen(CASES[i].text), "test", &t, &error) == RAFTER_OK) fail_msg("accepted: %s", CASES[i].text);
    if (!strstr(error.message, CASES[i].says)) fail_msg("'%s' does not say '%s': %s", error.message, CASES[i].says, CASES[i].text);
    assert_null(t);
  }
  /* Every beginning of a good file is no file. */
  const char *good = "{\"added_tokens\":[{\"id\":8,\"content\":\"x\\n\"}]," BYTES_MODEL("") "}";
  for (size_t n = 0; n < strlen(good); n++) {
    char *part = malloc(n + 1);
    memcpy(part, good, n), part[n] = 0;
    rf_tokenizer *t = NULL;
    assert_int_equal(rf_tokenizer_json_read(part, n, "test", &t, NULL), RAFTER_FAILED);
    free(part);
  }
}

/* ---- the other files ------------------------------------------------------------------------------------------------ */

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
  if (rf_tokenizer_sentencepiece_read((const char *)MODEL_FILE, bytes, "test", &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
  IDS(t, "a a", RF_ENCODE_MARKS, 1, 5, 5);
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
  IDS(t, "a \xE2\x96\x81 ", 0, 5); /* the end is cut when spaces are marks already */
  rf_tokenizer_close(t);
  /* Cut anywhere, or with any byte turned: read or refused, never out of bounds. */
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
        rf_ids_free(&ids), rf_tokenizer_close(t);
      }
      free(file);
    }
  static const char CHARSMAP[] = "\x0a\x07\x0a\x05<unk>\x12\x02\x18\x02\x1a\x0b\x0a\x04nfkc\x12\x03xyz",
                    WORD[] = "\x0a\x07\x0a\x05<unk>\x12\x02\x18\x03";
  assert_int_equal(rf_tokenizer_sentencepiece_read(CHARSMAP, sizeof CHARSMAP - 1, "test", &t, &error), RAFTER_FAILED);
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
    if (rf_tokenizer_llama2c_read(part, n, "test", &t, NULL) == RAFTER_OK) read++, rf_tokenizer_close(t);
    free(part);
  }
  assert_true(read < 60); /* only a cut between two pieces looks whole */
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
  v.merge_count = 2;
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "merge 1"));
  v.merge_count = 1, v.pre = "unheard-of";
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "unheard-of"));
  v.pre = NULL;
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_FAILED);
  v.pre = "gpt-2", v.eos_id = 3;
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "eos"));
  v.eos_id = -1, v.kind = "bert";
  assert_int_equal(rf_tokenizer_build(&v, "test", &t, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "bert"));
}

static void test_byte(void **state) {
  (void)state;
  rf_model model = {.name = "m", .vocab = 257};
  rf_tokenizer *t = NULL;
  assert_int_equal(rf_tokenizer_byte(&model, &t, NULL), RAFTER_OK);
  IDS(t, "A\xC3\xB1", RF_ENCODE_MARKS, 65, 195, 177);
  assert_int_equal(rf_tokenizer_eos(t), 256);
  assert_int_equal(rf_tokenizer_vocab(t), 257);
  assert_true(rf_tokenizer_is_special(t, 256) && rf_tokenizer_is_byte(t));
  expect_text(t, (int32_t[]){65, 256, 195, 177, 700}, 5, 0, "A\xC3\xB1");
  rf_tokenizer_close(t);
  model.vocab = 256;
  assert_int_equal(rf_tokenizer_byte(&model, &t, NULL), RAFTER_OK);
  assert_int_equal(rf_tokenizer_eos(t), -1);
  rf_tokenizer_close(t);
  model.vocab = 255;
  assert_int_equal(rf_tokenizer_byte(&model, &t, NULL), RAFTER_INVALID);
}

static void put(const char *folder, const char *name, const char *text) {
  char path[200];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  assert_int_equal(rf_file_write(path, text, strlen(text), NULL), RAFTER_OK);
}

/* What a model without a tokenizer is read with is said, never guessed. */
static void test_taken_along(void **state) {
  (void)state;
  rf_model model = {.name = "m", .vocab = 512};
  rf_tokenizer *t = NULL, *other = NULL;
  rf_error error;
  int copied = -1;
  char folder[] = "/tmp/rafter-test-XXXXXX", path[200];
  assert_non_null(mkdtemp(folder));
  assert_int_equal(rf_tokenizer_for(&model, "", &t, NULL), RAFTER_OK); /* a shape */
  assert_true(rf_tokenizer_is_byte(t));
  rf_tokenizer_close(t);
  assert_int_equal(rf_tokenizer_for(&model, folder, &t, &error), RAFTER_INVALID);
  assert_null(t);
  assert_non_null(strstr(error.message, folder));
  put(folder, "tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
  assert_int_equal(rf_tokenizer_for(&model, folder, &t, &error), RAFTER_INVALID);
  assert_int_equal(rf_tokenizer_bytes_write(folder, model.vocab, NULL), RAFTER_OK);
  assert_int_equal(rf_tokenizer_for(&model, folder, &t, NULL), RAFTER_OK);
  assert_true(rf_tokenizer_is_byte(t));
  rf_tokenizer_close(t);
  snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
  unlink(path);

  rf_tokenizer *whole = shared_tokenizer("models/stories260K/stories260K.gguf");
  if (whole) {
    static const char TEXT[] = "Once upon a time, \xC3\xA9 <s> there.\n";
    char from[400];
    snprintf(from, sizeof from, "%s/models/stories260K/stories260K.gguf", RF_SHARED_DATA);
    assert_int_equal(rf_tokenizer_files_copy(from, folder, &copied, NULL), RAFTER_OK);
    assert_int_equal(copied, 1);
    static const char *const FILES[] = {"tokenizer.gguf", "tokenizer.model"}; /* the folder itself, then what other libraries read of it */
    for (int i = 0; i < 2; i++) {
      snprintf(path, sizeof path, "%s/%s", folder, FILES[i]);
      rf_status status = i ? rf_tokenizer_open(path, &other, &error) : rf_tokenizer_for(&model, folder, &other, &error);
      if (status != RAFTER_OK) fail_msg("%s", error.message);
      for (int flags = 0; flags < 4; flags++) {
        rf_ids a = {0}, b = {0};
        assert_int_equal(rf_tokenizer_encode(whole, TEXT, strlen(TEXT), flags, &a, NULL), RAFTER_OK);
        assert_int_equal(rf_tokenizer_encode(other, TEXT, strlen(TEXT), flags, &b, NULL), RAFTER_OK);
        assert_int_equal(a.count, b.count);
        assert_memory_equal(a.at, b.at, (size_t)a.count * sizeof *a.at);
        rf_ids_free(&a), rf_ids_free(&b);
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

/* tokenizer.model is written of what SentencePiece reads alike, and of nothing else. */
static void test_model_written(void **state) {
  (void)state;
  enum { COUNT = 4 + 256, GOOD = 0, FAULTS = 9 };
  char folder[] = "/tmp/rafter-test-XXXXXX", path[64], bytes[256][8];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/tokenizer.model", folder);
  for (int fault = 0; fault <= FAULTS; fault++) {
    rf_gguf_text token[COUNT] = {{"<unk>", 5}, {"<s>", 3}, {"ab", 2}, {"a  b", 4}};
    int32_t kind[COUNT] = {RF_GGUF_TOKEN_UNKNOWN, RF_GGUF_TOKEN_CONTROL, RF_GGUF_TOKEN_NORMAL, RF_GGUF_TOKEN_USER};
    float score[COUNT] = {0};
    for (int i = 0; i < 256; i++)
      token[4 + i] = (rf_gguf_text){bytes[i], snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", (unsigned)i)}, kind[4 + i] = RF_GGUF_TOKEN_BYTE;
    rf_gguf_vocab v = {
        .model = {"llama", 5}, .count = COUNT, .token = token, .score = score, .kind = kind, .bos = 1, .eos = -1, .eot = -1, .pad = -1};
    bool written;
    rf_error error;
    if (fault == 1) v.model = (rf_gguf_text){"gpt2", 4};
    else if (fault == 2) v.score = NULL;
    else if (fault == 3) v.kind = NULL;
    else if (fault == 4) kind[2] = RF_GGUF_TOKEN_UNUSED;
    else if (fault == 5) token[2] = token[1];
    else if (fault == 6) token[2].bytes = 0;
    else if (fault == 7) v.unknown = -1, kind[0] = RF_GGUF_TOKEN_CONTROL;
    else if (fault == 8) kind[2] = RF_GGUF_TOKEN_UNKNOWN;
    else if (fault == 9) kind[5] = RF_GGUF_TOKEN_NORMAL;
    assert_int_equal(rf_tokenizer_model_write(&v, folder, &written, &error), RAFTER_OK);
    if (written != (fault == GOOD)) fail_msg("fault %d: %s", fault, written ? "written" : "not written");
    if (fault != GOOD) continue;
    rf_tokenizer *t = NULL;
    rf_ids ids = {0};
    if (rf_tokenizer_open(path, &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
    assert_int_equal(rf_tokenizer_bos(t), 1);
    assert_int_equal(rf_tokenizer_encode(t, "a  b", 4, 0, &ids, NULL), RAFTER_OK); /* the user's token, spelled with spaces */
    assert_int_equal(ids.count, 1);
    assert_int_equal(ids.at[0], 3);
    rf_ids_free(&ids);
    rf_tokenizer_close(t);
    unlink(path);
  }
  rmdir(folder);
}

/* A byte-level BPE of a GGUF file as the files of other libraries: read back, it cuts and merges the same. */
static void test_json_written(void **state) {
  (void)state;
  enum { MERGES = 6, MARKS = 2, COUNT = 256 + MERGES + MARKS };
  static const char *const MERGED[MERGES][2] = {{"t", "h"}, {"th", "e"}, {"\xC4\xA0", "the"}, {"e", "e"}, {"1", "2"}, {"\xC4\xA0", "\xC4\xA0"}};
  static const char *const TEXTS[] = {"the three", "  the <|end|>the\n\n12123 the's", "\xC3\xA9\xE6\xBC\xA2 \xFF eee <|start|>"};
  static const char *const SPLITS[] = {"gpt-2", "llama-bpe", "qwen2", "smollm"};
  char spelled[COUNT][16], merge[MERGES][24], folder[] = "/tmp/rafter-test-XXXXXX", command[64];
  rf_span piece[COUNT], merges[MERGES];
  int32_t types[COUNT];
  for (int i = 0; i < 256; i++) {
    char byte = (char)i;
    piece[i] = (rf_span){spelled[i], rf_alphabet_text((rf_span){&byte, 1}, spelled[i])}, types[i] = RF_PIECE_NORMAL;
  }
  for (int i = 0; i < MERGES; i++) {
    int n = snprintf(spelled[256 + i], sizeof spelled[0], "%s%s", MERGED[i][0], MERGED[i][1]);
    piece[256 + i] = (rf_span){spelled[256 + i], (size_t)n}, types[256 + i] = RF_PIECE_NORMAL;
    merges[i] = (rf_span){merge[i], (size_t)snprintf(merge[i], sizeof merge[i], "%s %s", MERGED[i][0], MERGED[i][1])};
  }
  piece[COUNT - 2] = (rf_span){"<|start|>", 9}, piece[COUNT - 1] = (rf_span){"<|end|>", 7};
  types[COUNT - 2] = types[COUNT - 1] = RF_PIECE_CONTROL;
  assert_non_null(mkdtemp(folder));
  for (size_t s = 0; s < 2 * sizeof SPLITS / sizeof *SPLITS; s++) {
    rf_vocabulary v = {.kind = "gpt2",
                       .pre = SPLITS[s / 2],
                       .count = COUNT,
                       .pieces = piece,
                       .types = types,
                       .merge_count = MERGES,
                       .merges = merges,
                       .bos_id = COUNT - 2,
                       .eos_id = COUNT - 1,
                       .pad_id = -1,
                       .unk_id = -1,
                       .add_bos = s % 2,
                       .add_eos = s % 2};
    rf_tokenizer *t = NULL, *again = NULL;
    rf_error error;
    bool written;
    if (rf_tokenizer_build(&v, "test", &t, &error) != RAFTER_OK) fail_msg("%s", error.message);
    assert_int_equal(rf_tokenizer_json_write(t, "{{ eos_token }}", 15, folder, &written, NULL), RAFTER_OK);
    assert_true(written);
    if (rf_tokenizer_open(folder, &again, &error) != RAFTER_OK) fail_msg("%s", error.message);
    assert_int_equal(rf_tokenizer_eos(again), COUNT - 1);
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++)
      for (int flags = 0; flags < 4; flags++) {
        rf_ids a = {0}, b = {0};
        assert_int_equal(rf_tokenizer_encode(t, TEXTS[i], strlen(TEXTS[i]), flags, &a, NULL), RAFTER_OK);
        assert_int_equal(rf_tokenizer_encode(again, TEXTS[i], strlen(TEXTS[i]), flags, &b, NULL), RAFTER_OK);
        assert_int_equal(a.count, b.count);
        assert_memory_equal(a.at, b.at, (size_t)a.count * sizeof *a.at);
        rf_ids_free(&a), rf_ids_free(&b);
      }
    rf_tokenizer_close(t), rf_tokenizer_close(again);
  }
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stories260k),     cmocka_unit_test(test_tinystories656k),     cmocka_unit_test(test_gemma3_ids),
      cmocka_unit_test(test_gemma3_gguf),     cmocka_unit_test(test_smollm2_gguf),        cmocka_unit_test(test_any_bytes),
      cmocka_unit_test(test_long_words),      cmocka_unit_test(test_random_vocabularies), cmocka_unit_test(test_json_added),
      cmocka_unit_test(test_json_splits),     cmocka_unit_test(test_json_inverted),       cmocka_unit_test(test_characters),
      cmocka_unit_test(test_json_characters), cmocka_unit_test(test_json_refused),        cmocka_unit_test(test_sentencepiece_lies),
      cmocka_unit_test(test_llama2c_lies),    cmocka_unit_test(test_vocabulary_refused),  cmocka_unit_test(test_byte),
      cmocka_unit_test(test_taken_along),     cmocka_unit_test(test_json_written),        cmocka_unit_test(test_model_written),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
