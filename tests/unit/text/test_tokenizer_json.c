/* test_tokenizer_json.c - tests the supported and unsupported contents of tokenizer.json, and the
 * files that are written from a GGUF file's vocabulary. */
#include "unit/text/tokenizers.h"

#include "base/json.h"

#define LETTERS_AND "\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"\xC4\xA0\":4,\"1\":5,\"2\":6,\".\":7"
#define MODEL(more) \
  "\"model\":{\"type\":\"BPE\",\"vocab\":{" LETTERS_AND "},\"merges\":[[\"a\",\"b\"]]" more "}"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define BYTES_MODEL(more) "\"pre_tokenizer\":" BYTE_LEVEL "," MODEL(more)

static rf_tokenizer *parse(const char *text) {
  rf_error error = {0};
  rf_tokenizer *t = NULL;
  if (rf_tokenizer_json_read(text, strlen(text), "test", &t, &error) != RAFTER_OK)
    fail_msg("%s\n%s", error.message, text);
  return t;
}

static void test_json_added(void **state) {
  (void)state;
  rf_tokenizer *t =
      parse("{\"added_tokens\":[{\"id\":8,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
            "{\"id\":9,\"content\":\"<l>\",\"lstrip\":true,\"rstrip\":true,\"normalized\":false},"
            "{\"id\":10,\"content\":\"c2\",\"single_word\":true,\"normalized\":false}],"
            "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>"
            "\",\"type_id\":0}},"
            "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\","
            "\"ids\":[8],\"tokens\":[\"<s>\"]}}}," BYTES_MODEL("") "}");
  IDS(t, "ab", RF_ENCODE_BOS_EOS, 8, 3);
  IDS(t, "a<s>b", RF_ENCODE_PARSE, 0, 8, 1);
  IDS(t, "a <l>  b", 0, 0, 9, 1);
  IDS(t, "c2", 0, 10);
  IDS(t, "a c2.", 0, 0, 4, 10, 7);
  IDS(t, "ac2", 0, 0, 2, 6);
  rf_ids ids = {0};
  rf_error error = {0};
  /* '<' is not a piece */
  assert_int_equal(rf_tokenizer_encode(t, "a<s>", 4, 0, &ids, &error), RAFTER_FAILED);
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

/* An added token decodes to the text as it looks where the token is found. Special tokens keep
 * their names. */
static void test_json_added_normalized(void **state) {
  (void)state;
  rf_tokenizer *t =
      parse("{\"added_tokens\":[{\"id\":6,\"content\":\"the "
            "\",\"lstrip\":true},{\"id\":7,\"content\":\"<s>\",\"special\":true,\"normalized\":true}],"
            "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
            "\"\xE2\x96\x81\"},"
            "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]},"
            "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
            "\"\xE2\x96\x81\"},\"content\":\" \"},"
            "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
            "\",\"start\":1,\"stop\":0}]},"
            "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\":\":2,\"\xE2\x96\x81\":3,\"\xE2\x96\x81"
            "a\":4,\"\xE2\x96\x81"
            "b\":5},"
            "\"merges\":[[\"\xE2\x96\x81\",\"a\"],[\"\xE2\x96\x81\",\"b\"]]}}");
  IDS(t, "a: the b", 0, 4, 2, 6, 1);
  expect_text(t, (int32_t[]){4, 2, 6, 1}, 4, 0, "a: the b");
  assert_int_equal(rf_tokenizer_find(t, "<s>", 3), 7);
  expect_text(t, (int32_t[]){7, 4}, 2, RF_DECODE_SPECIALS, "<s> a");
  rf_tokenizer_close(t);
}

/* A token that was added to a byte-level vocabulary may have the bytes of a piece. */
static void test_json_added_again(void **state) {
  (void)state;
  rf_tokenizer *t = parse(
      "{\"added_tokens\":[{\"id\":5,\"content\":\"\xE4\xBD\xA0\",\"single_word\":true,\"normalized\":false}],"
      "\"pre_tokenizer\":" BYTE_LEVEL ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xC3\xA4\":0,\"\xC2\xBD\":1,"
      "\"\xC5\x82\":2,\"\xC3\xA4\xC2\xBD\":3,\"\xC3\xA4\xC2\xBD\xC5\x82\":4},"
      "\"merges\":[[\"\xC3\xA4\",\"\xC2\xBD\"],[\"\xC3\xA4\xC2\xBD\",\"\xC5\x82\"]]}}");
  IDS(t, "\xE4\xBD\xA0", 0, 5);
  IDS(t, "\xE4\xBD\xA0\xE4\xBD\xA0", 0, 4, 4);
  expect_text(t, (int32_t[]){5, 4}, 2, 0, "\xE4\xBD\xA0\xE4\xBD\xA0");
  rf_tokenizer_close(t);
}

static void test_json_splits(void **state) {
  (void)state;
  /* Each behaviour splits "a.b.." at other places. "ab" can merge only if there is no split
   * inside. */
  static const struct {
    const char *behaviour, *pattern, *text;
    int count;
    int32_t ids[8];
  } CASES[] = {
      {"Isolated", "\\\\.", "ab.ab", 3, {3, 7, 3}},
      {"Removed", "\\\\.", "ab.ab", 2, {3, 3}},
      {"Isolated", "b", "ab", 2, {0, 1}},
      {"MergedWithPrevious", "b", "ab", 1, {3}},
      {"MergedWithPrevious", "a", "ab", 2, {0, 1}},
      {"MergedWithNext", "a", "ab", 1, {3}},
      {"MergedWithNext", "b", "ab", 2, {0, 1}},
      {"Contiguous", "[ab]", "abc", 2, {3, 2}},
      {"Isolated", "[ab]", "abc", 3, {0, 1, 2}},
      /* Oniguruma: ^ and $ match at lines, \h is a hexadecimal digit, and \w includes marks. */
      {"Removed", "\\\\n|^ab", "c\nab", 1, {2}},
      {"Isolated", "\\\\h", "ab", 2, {0, 1}},
      {"Isolated", "[\\\\h]", "ab", 2, {0, 1}},
      /* An empty match divides the text, as in Hugging Face's tokenizers. */
      {"Isolated", "(?=b)", "abab", 4, {0, 1, 0, 1}},
      {"Removed", "(?<=a)", "abab", 4, {0, 1, 0, 1}},
      {"MergedWithPrevious", "(?=b)", "abab", 4, {0, 1, 0, 1}},
      {"MergedWithNext", "(?=a)", "abab", 2, {3, 3}},
      {"Contiguous", "b|(?=b)", "abb", 3, {0, 1, 1}},
      {"Isolated", "c*", "ab.ab", 5, {0, 1, 7, 0, 1}},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    char text[2000];
    snprintf(text, sizeof text,
             "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
             "\"Regex\":\"%s\"},\"behavior\":\"%s\","
             "\"invert\":false},"
             "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}," MODEL("") "}",
             CASES[i].pattern, CASES[i].behaviour);
    rf_tokenizer *t = parse(text);
    expect_ids(t, CASES[i].text, 0, CASES[i].count, CASES[i].ids);
    rf_tokenizer_close(t);
  }
}

/* An inverted split also joins neighbouring matches. */
static void test_json_inverted(void **state) {
  (void)state;
  rf_tokenizer *t = parse("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
                          "\"pattern\":{\"Regex\":\"[ab]\"},"
                          "\"behavior\":\"Contiguous\",\"invert\":true},{\"type\":\"ByteLevel\",\"add_prefix_"
                          "space\":false,\"use_regex\":false}]}," MODEL("") "}");
  IDS(t, "abc", 0, 3, 2);
  rf_tokenizer_close(t);
}

/* A Replace also puts its content where the pattern matches no character. */
static void test_json_replaced(void **state) {
  (void)state;
  static const struct {
    const char *pattern, *content, *text;
    int count;
    int32_t ids[4];
  } CASES[] = {
      {"(?=b)", "c", "ab", 3, {0, 2, 1}}, {"c*", "a", "bcb", 3, {3, 3, 0}},      {"$", "c", "ab", 2, {3, 2}},
      {"2*", "", "a2b", 1, {3}},          {"b|(?=b)", "2", "abb", 3, {0, 6, 6}},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    char text[2000];
    snprintf(
        text, sizeof text,
        "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"%s\"},\"content\":\"%s\"}," MODEL(
            "") "}",
        CASES[i].pattern, CASES[i].content);
    rf_tokenizer *t = parse(text);
    expect_ids(t, CASES[i].text, 0, CASES[i].count, CASES[i].ids);
    rf_tokenizer_close(t);
  }
}

static void test_characters(void **state) {
  (void)state;
  /* Letters, letter numbers, joiners and circled letters are word characters. Other numbers and
   * blanks are not. */
  assert_true(rf_code_is_word('a') && rf_code_is_word('_') && rf_code_is_word(0x2163) &&
              rf_code_is_word(0x200D) && rf_code_is_word(0x24D0));
  assert_false(rf_code_is_word(0xB2) || rf_code_is_word(' ') || rf_code_is_word('-'));
  assert_true(rf_code_is_blank(0x3000) && rf_code_is_blank(0x85) && !rf_code_is_blank(0x180E) &&
              !rf_code_is_blank(0x200B));
  static const char *const WRONG[] = {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82",
                                      "\x80",     "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF"};
  for (size_t i = 0; i < sizeof WRONG / sizeof WRONG[0]; i++)
    assert_int_equal(rf_utf8_length(WRONG[i], WRONG[i] + strlen(WRONG[i])), 0);
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
  const char *model = "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<u>\",\"fuse_unk\":%s,\"vocab\":{\"<u>\":"
                      "0,\"a\":1,\"\\u2581\":2,\"\\u2581a\":3,\"\\u00e9\":4},"
                      "\"merges\":[\"\\u2581 a\"]}";
  char text[2000], with[1000];
  snprintf(with, sizeof with, model, "true");
  snprintf(text, sizeof text,
           "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":"
           "\"first\"},\"decoder\":{\"type\":"
           "\"Metaspace\"},%s}",
           with);
  rf_tokenizer *t = parse(text);
  IDS(t, "a a", 0, 3, 3);
  IDS(t, " a", 0, 3);
  IDS(t, "aXYZa", 0, 3, 0, 1);     /* neighbouring unknown characters become one token */
  IDS(t, "e\xCC\x81", 0, 2, 4);    /* NFC composes; a mark after a blank stays separate */
  IDS(t, "\xC2\x85\xFF", 0, 2, 0); /* not UTF-8 */
  expect_text(t, (int32_t[]){3, 3}, 2, 0, "a a");
  rf_tokenizer_close(t);
  snprintf(with, sizeof with, model, "false");
  snprintf(text, sizeof text, "{%s}", with);
  t = parse(text);
  IDS(t, "aXY", 0, 1, 0, 0);
  rf_tokenizer_close(t);
  t = parse("{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"always\"},\"model\":{\"type\":"
            "\"Unigram\",\"unk_id\":0,\"vocab\":"
            "[[\"<unk>\",0],[\"\\u2581\",-2.0],[\"a\",-3.5],[\"\\u2581a\",-4],[\"aa\",-1e0]]}}");
  IDS(t, "aaa", 0, 3, 4);
  IDS(t, "a", 0, 3);
  IDS(t, "aQQa", 0, 3, 0, 2);
  /* the name of the unknown piece, within unknown text, is part of the unknown text */
  IDS(t, "aQ<unk>Qa", 0, 3, 0, 2);
  IDS(t, "a<unk>a", 0, 3, 0, 2);
  rf_tokenizer_close(t);
  /* unknown characters of two words stay two tokens */
  t = parse("{\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":true},\"model\":{\"type\":"
            "\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-2.0]]}}");
  IDS(t, "a12", 0, 1, 0, 0);
  IDS(t, "aXY", 0, 1, 0);
  rf_tokenizer_close(t);
  /* a named unknown piece and the invalid byte after it stay two tokens */
  t = parse(
      "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\"}],\"model\":{\"type\":\"Unigram\",\"unk_id\":0,"
      "\"vocab\":[[\"<unk>\",0],[\"a\",-2.0]]}}");
  IDS(t, "a<unk>\xFF", 0, 1, 0, 0);
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
      {"{\"added_tokens\":{}," MODEL("") "}", "not a list"},
      {"{\"normalizer\":{\"type\":\"Lowercase\"}," MODEL("") "}", "Lowercase"},
      {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Precompiled\",\"precompiled_"
       "charsmap\":\"\"}]}," MODEL("") "}",
       "Precompiled"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[[:alpha:]]+\"},\"behavior\":"
       "\"Isolated\"}," MODEL("") "}",
       "[ inside []"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},\"behavior\":\"Isolated\"}"
       "," MODEL("") "}",
       "&& inside []"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\\\W]\"},\"behavior\":"
       "\"Isolated\"}," MODEL("") "}",
       "W inside []"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\ba\"},\"behavior\":\"Isolated\"}"
       "," MODEL("") "}",
       "word boundary"},
      {"{\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}," MODEL("") "}", "BertPreTokenizer"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\"}"
       "," MODEL("") "}",
       "pattern is invalid"},
      {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Sideways\"}"
       "," MODEL("") "}",
       "Sideways"},
      {"{\"normalizer\":{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false},\"pre_tokenizer\":{"
       "\"type\":"
       "\"Metaspace\",\"prepend_scheme\":\"first\"}," MODEL("") "}",
       "prepend_scheme"},
      {"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" "
       "+\"},\"content\":\"\"},\"pre_tokenizer\":{"
       "\"type\":\"Metaspace\",\"prepend_scheme\":\"first\"}," MODEL("") "}",
       "prepend_scheme"},
      {"{\"decoder\":{\"type\":\"WordPiece\"}," MODEL("") "}", "WordPiece"},
      {"{\"post_processor\":{\"type\":\"RobertaProcessing\"}," MODEL("") "}", "RobertaProcessing"},
      {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{"
       "\"Sequence\":{\"id\":\"A\"}}],"
       "\"special_tokens\":{\"x\":{\"ids\":[99]}}}," MODEL("") "}",
       "post-processor adds"},
      {"{\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]," MODEL("") "}", "belongs to another"},
      {"{\"added_tokens\":[{\"id\":8,\"content\":\"ab\"}]," MODEL("") "}", "under another id"},
      {"{\"added_tokens\":[{\"id\":8,\"content\":\"x\"},{\"id\":9,\"content\":\"x\"}]," MODEL("") "}",
       "added twice"},
      {"{\"added_tokens\":[{\"id\":99999999,\"content\":\"x\"}]," MODEL("") "}", "id"},
      {"{\"added_tokens\":[{\"id\":8,\"content\":\"x\",\"magic\":true}]," MODEL("") "}", "magic"},
      {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{},\"merges\":[]}}", "WordPiece"},
      {"{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "twice"},
      {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "one id"},
      {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "an id"},
      {"{\"model\":{\"vocab\":{\"a\":999999},\"merges\":[]}}", "a smaller id"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", "merge"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "merge"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"\",\"\"]]}}", "empty"},
      {"{\"model\":{\"vocab\":{\"\\ud800\":0},\"merges\":[]}}", "JSON string"},
      {"{\"model\":{\"vocab\":{\"\\q\":0},\"merges\":[]}}", "JSON string"},
      {"{\"model\":{\"vocab\":{\"\xff\":0},\"merges\":[]}}", "UTF-8"},
      {"{\"model\":{\"vocab\":{\"a\":0,},\"merges\":[]}}", "string"},
      {"{\"model\":{\"vocab\":{\"a\":0}x,\"merges\":[]}}", "a comma"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]x}}", "a comma"},
      {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[][]}}", "a comma"},
      {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",1e999]]}}", "finite"},
      {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":7,\"vocab\":[[\"a\",0]]}}", "unknown id"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
    rf_error error = {0};
    rf_tokenizer *t = NULL;
    if (rf_tokenizer_json_read(CASES[i].text, strlen(CASES[i].text), "test", &t, &error) == RAFTER_OK)
      fail_msg("accepted: %s", CASES[i].text);
    if (!strstr(error.message, CASES[i].says))
      fail_msg("'%s' does not say '%s': %s", error.message, CASES[i].says, CASES[i].text);
    assert_null(t);
  }
  /* A truncated file is never valid. */
  const char *good = "{\"added_tokens\":[{\"id\":8,\"content\":\"x\\n\"}]," BYTES_MODEL("") "}";
  for (size_t n = 0; n < strlen(good); n++) {
    char *part = malloc(n + 1);
    memcpy(part, good, n);
    part[n] = 0;
    rf_tokenizer *t = NULL;
    assert_int_equal(rf_tokenizer_json_read(part, n, "test", &t, NULL), RAFTER_FAILED);
    free(part);
  }
}

#define SPLIT(regex) \
  "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":" \
  "\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL "]}," MODEL("")

/* Expects an error with `says` for a text of `count` times 'a'. */
static void expect_limit(const char *json, size_t count, const char *says) {
  rf_tokenizer *t = parse(json);
  char *text = malloc(count);
  rf_ids ids = {0};
  rf_error error = {0};
  assert_non_null(text);
  memset(text, 'a', count);
  assert_int_equal(rf_tokenizer_encode(t, text, count, 0, &ids, &error), RAFTER_FAILED);
  if (!strstr(error.message, says)) fail_msg("'%s' does not say '%s'", error.message, says);
  assert_true(*error.hint);
  rf_ids_free(&ids);
  free(text);
  rf_tokenizer_close(t);
}

/* A file from anywhere must not take memory or time without bound: neither by normalizers that make
 * a text longer, nor by a pattern whose every match is costly. */
static void test_json_limits(void **state) {
  (void)state;
  char json[40000] = "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", many[1001];
  memset(many, 'a', 1000);
  many[1000] = 0;
  for (int i = 0; i < 5; i++)
    sprintf(json + strlen(json), "%s{\"type\":\"Replace\",\"pattern\":{\"%s\":\"a\"},\"content\":\"%s\"}",
            i ? "," : "", i % 2 ? "Regex" : "String", many);
  strcat(json, "]}," BYTES_MODEL("") "}");
  expect_limit(json, 1, "expected at most 67108864 bytes");
  expect_limit("{" SPLIT("(?:a{0,3000}){0,2}b|a") "}", 20000, "(?:a{0,3000}){0,2}b|a");
  expect_limit("{" SPLIT("(a+)+b|a") "}", 64, "too many steps");
  /* a class that is repeated reads all of the text in one step of PCRE2, at each start */
  expect_limit("{" SPLIT("a(?=.*b)|a") "}", 200000, "a(?=.*b)|a");
  expect_limit("{" SPLIT("a[^b]*b|a") "}", 200000, "too many steps");
  expect_limit("{" SPLIT("(a+)\\\\1c|a") "}", 200000, "too many steps");
  expect_limit("{" SPLIT("[^b]{60000}c|a") "}", 200000, "too many steps");
}

/* Matches of every length are found whole: those that a quick search sees, and longer ones. */
static void test_long_matches(void **state) {
  (void)state;
  enum { LONGEST = 700 };
  static const struct {
    const char *pattern, *repeated, *last;
  } row[] = {{"a+(?!b)|b", "a", "b"},
             {"\\s+(?!\\S)|\\S", " ", "x"},
             {"\\p{L}+(?!\\p{N})|\\p{N}", "\xC3\xA9", "7"},
             {"(?:\\p{L}\\p{L})+$|[^\\n]+(?=\\p{N})|\\p{N}", "\xE4\xB8\x80", "7"}};
  for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
    rf_pattern *pattern;
    char text[3 * LONGEST + 2] = "";
    size_t unit = strlen(row[r].repeated);
    assert_int_equal(rf_pattern_new(row[r].pattern, strlen(row[r].pattern), false, "", &pattern, NULL),
                     RAFTER_OK);
    for (size_t n = 1; n <= LONGEST; n++) {
      memcpy(text + (n - 1) * unit, row[r].repeated, unit);
      strcpy(text + n * unit, row[r].last);
      rf_effort effort = rf_effort_for(n * unit + 1);
      rf_span hit = {0};
      assert_int_equal(rf_pattern_next(pattern, &effort, text, text + n * unit + 1, &hit, NULL), RAFTER_OK);
      size_t expected = r == 3 ? n * unit : n == 1 ? 1 : (n - 1) * unit;
      const char *at = n == 1 && r < 3 ? text + unit : text;
      if (hit.at != at || hit.bytes != expected) fail_msg("%s, %zu: %zu bytes", row[r].pattern, n, hit.bytes);
      rf_effort_free(&effort);
    }
    rf_pattern_free(pattern);
  }
}

/* Starts that need many steps, and matches far from each other, do not change the result. */
static void test_json_slices(void **state) {
  (void)state;
  enum { BLANKS = 3000, PLACES = 4000, DIFFICULT = 13 };
  rf_tokenizer *t = parse("{" SPLIT("[ ]*\\\\.|b|(?:\xC4\xA0)|(?:a?){13}c") "}");
  char *text = malloc(PLACES);
  rf_ids ids = {0};
  assert_non_null(text);
  memset(text, ' ', PLACES);
  memset(text + BLANKS, 'a', DIFFICULT + 1);
  memcpy(text + BLANKS + 500, "ab", 2);
  text[PLACES - 1] = 'b';
  assert_int_equal(rf_tokenizer_encode(t, text, PLACES, 0, &ids, NULL), RAFTER_OK);
  assert_int_equal(ids.count, PLACES);
  for (int i = 0; i < PLACES; i++) {
    int expected = text[i] == ' ' ? 4 : text[i] - 'a';
    if (ids.at[i] != expected) fail_msg("byte %d: expected id %d, got %d", i, expected, ids.at[i]);
  }
  rf_ids_free(&ids);
  free(text);
  rf_tokenizer_close(t);
}

/* All words of up to three letters. Each is merged from the word without its last letter and that
 * letter, with `blanks` spaces between the two. Merge `wrong` is spelled with `letter`; merge
 * `broken` has one letter too many after its bracket (-1: none). */
enum { WORDS = 26 + 26 * 26 + 26 * 26 * 26 };
static char *many_merges(int blanks, int wrong, char letter, int broken) {
  char *text = malloc((size_t)WORDS * (size_t)(blanks + 60)), *at = text, word[4];
  assert_non_null(text);
  at += sprintf(at, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{"
                    "\"type\":\"BPE\",\"vocab\":{");
  for (int part = 0; part < 2; part++) {
    for (int i = part ? 26 : 0; i < WORDS; i++) {
      int length = i < 26         ? 1
                   : i < 26 + 676 ? 2
                                  : 3,
          rest = i - (length > 1 ? 26 : 0) - (length > 2 ? 676 : 0);
      for (int k = length - 1; k >= 0; k--, rest /= 26) word[k] = (char)('a' + rest % 26);
      if (part == 0) at += sprintf(at, "%s\"%.*s\":%d", i ? "," : "", length, word, i);
      else
        at += sprintf(at, "%s[\"%.*s\",%*s\"%c\"]%s", i > 26 ? "," : "", length - 1, word, blanks, "",
                      i - 26 == wrong ? letter : word[length - 1], i - 26 == broken ? "x" : "");
    }
    at += sprintf(at, "%s", part ? "]}}" : "},\"merges\":[");
  }
  return text;
}

/* Long lists are read in parts on all threads. The result is that of reading in one part, and the
 * error is the first one in the file. */
static void test_long_merges(void **state) {
  (void)state;
  static const char text[] = "zebras abcabcabc queuing xyzzy thequickbrownfoxjumpsoverthelazydog";
  char *file[2] = {many_merges(1, -1, 0, -1), many_merges(60, -1, 0, -1)};
  rf_ids ids[2] = {{0}};
  rf_error error = {0};
  for (int f = 0; f < 2; f++) {
    rf_tokenizer *t = NULL;
    if (rf_tokenizer_json_read(file[f], strlen(file[f]), "test", &t, &error) != RAFTER_OK)
      fail_msg("%s", error.message);
    for (const char *at = text, *end; *at; at = *end ? end + 1 : end) {
      end = strchr(at, ' ') ? strchr(at, ' ') : at + strlen(at);
      assert_int_equal(rf_tokenizer_encode(t, at, (size_t)(end - at), 0, &ids[f], &error), RAFTER_OK);
    }
    rf_tokenizer_close(t);
  }
  assert_int_equal(ids[0].count, ids[1].count);
  assert_memory_equal(ids[0].at, ids[1].at, (size_t)ids[0].count * sizeof *ids[0].at);
  rf_ids_free(&ids[0]);
  rf_ids_free(&ids[1]);
  free(file[0]);
  free(file[1]);
  static const struct {
    int wrong, broken;
    const char *says;
  } rows[] = {{15000, -1, "merge 15000, byte"},
              {3, -1, "merge 3, byte"},
              {15000, 9000, "expected a comma"},
              {9000, 15000, "merge 9000, byte"},
              {WORDS - 27, -1, "merge 18251, byte"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_tokenizer *t = NULL;
    char *bad = many_merges(60, rows[i].wrong, '!', rows[i].broken);
    assert_int_equal(rf_tokenizer_json_read(bad, strlen(bad), "test", &t, &error), RAFTER_FAILED);
    if (!strstr(error.message, rows[i].says)) fail_msg("%s, not %s", error.message, rows[i].says);
    const char *byte = strstr(error.message, "byte ");
    assert_non_null(byte);
    /* the bracket of a wrong merge; the extra letter of a broken merge */
    const char *there = bad + atoi(byte + 5);
    assert_true(rows[i].broken == 9000 ? *there == 'x'
                                       : *there == '[' && strchr(there, '!') < strchr(there, ']'));
    free(bad);
  }
}

/* A byte-level BPE of a GGUF file is written as the files of other libraries. Read back, it splits
 * and merges in the same way. */
static void test_json_written(void **state) {
  (void)state;
  enum { MERGES = 6, MARKS = 2, COUNT = 256 + MERGES + MARKS };
  static const char *const MERGED[MERGES][2] = {{"t", "h"}, {"th", "e"}, {"\xC4\xA0", "the"},
                                                {"e", "e"}, {"1", "2"},  {"\xC4\xA0", "\xC4\xA0"}};
  static const char *const TEXTS[] = {"the three", "  the <|end|>the\n\n12123 the's",
                                      "\xC3\xA9\xE6\xBC\xA2 \xFF eee <|start|>"};
  static const char *const SPLITS[] = {"gpt-2", "llama-bpe", "qwen2", "smollm"};
  char spelled[COUNT][16], merge[MERGES][24], folder[] = "/tmp/rafter-test-XXXXXX", command[64];
  rf_span piece[COUNT], merges[MERGES];
  int32_t types[COUNT];
  for (int i = 0; i < 256; i++) {
    char byte = (char)i;
    piece[i] = (rf_span){spelled[i], rf_alphabet_text((rf_span){&byte, 1}, spelled[i])};
    types[i] = RF_PIECE_NORMAL;
  }
  for (int i = 0; i < MERGES; i++) {
    int n = snprintf(spelled[256 + i], sizeof spelled[0], "%s%s", MERGED[i][0], MERGED[i][1]);
    piece[256 + i] = (rf_span){spelled[256 + i], (size_t)n};
    types[256 + i] = RF_PIECE_NORMAL;
    merges[i] =
        (rf_span){merge[i], (size_t)snprintf(merge[i], sizeof merge[i], "%s %s", MERGED[i][0], MERGED[i][1])};
  }
  piece[COUNT - 2] = (rf_span){"<|start|>", 9};
  piece[COUNT - 1] = (rf_span){"<|end|>", 7};
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
    json_t *template = json_string("{{ eos_token }}");
    assert_int_equal(rf_tokenizer_json_write(t, template, folder, &written, NULL), RAFTER_OK);
    json_decref(template);
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
        rf_ids_free(&a);
        rf_ids_free(&b);
      }
    rf_tokenizer_close(t);
    rf_tokenizer_close(again);
  }
  snprintf(command, sizeof command, "rm -r %s", folder);
  assert_int_equal(system(command), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_json_added),       cmocka_unit_test(test_json_added_normalized),
      cmocka_unit_test(test_json_splits),      cmocka_unit_test(test_json_inverted),
      cmocka_unit_test(test_json_added_again), cmocka_unit_test(test_json_replaced),
      cmocka_unit_test(test_characters),       cmocka_unit_test(test_json_characters),
      cmocka_unit_test(test_json_refused),     cmocka_unit_test(test_json_limits),
      cmocka_unit_test(test_json_slices),      cmocka_unit_test(test_long_matches),
      cmocka_unit_test(test_json_written),     cmocka_unit_test(test_long_merges),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
