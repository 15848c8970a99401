/* Token masks: equal to those of single tokens, never empty, and what they allow is valid JSON. */
#include "constrain/mask.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A text whose tokens cross the borders of strings, names and numbers. */
static const char TEXT[] =
    "{\"name\": \"Ann\", \"age\": 31, \"tags\": [\"a\", \"b\"]}, {\"name\": \"Bo \xc3\xa9t\xc3\xa9\", "
    "\"age\": 7}\n"
    "{\"name\": \"Ann\", \"age\": 31, \"tags\": [\"a\", \"b\"]}, {\"name\": \"Bo \xc3\xa9t\xc3\xa9\", "
    "\"age\": 7}\n"
    "the quick brown fox jumps over the lazy dog. the quick brown fox jumps over the lazy dog.\n"
    "\"},{\" \"},{\" \":null,\" \":null,\" \":true}]}} \":true}]}} \\n\\n\\u00e9\\u00e9 0.125e10 0.125e10\n";

static rf_tokenizer *tokenizer;
static rf_trie *trie;

static int open_vocabulary(void **state) {
  (void)state;
  rf_status status = rf_tokenizer_train(TEXT, sizeof TEXT - 1, 400, NULL, &tokenizer, NULL);
  return status == RAFTER_OK ? (int)rf_trie_open(tokenizer, 410, &trie, NULL) : -1;
}

static int close_vocabulary(void **state) {
  (void)state;
  rf_trie_close(trie);
  rf_tokenizer_close(tokenizer);
  return 0;
}

static const struct {
  rf_text_form form;
  const char *text;
} FORMS[] = {
    {RF_TEXT_OBJECT, ""},
    {RF_TEXT_SCHEMA, "{}"},
    {RF_TEXT_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","
     "\"minimum\":0,\"maximum\":120},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\","
     "\"maxLength\":12},\"maxItems\":3}},\"required\":[\"name\",\"age\"]}"},
    {RF_TEXT_SCHEMA, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":40}"},
    {RF_TEXT_SCHEMA,
     "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}}}}"},
    {RF_TEXT_SCHEMA, "{\"type\":\"object\",\"additionalProperties\":{\"type\":[\"number\",\"null\"]}}"},
    {RF_TEXT_SCHEMA, "{\"enum\":[\"the quick\",\"the lazy\",0.125,null]}"},
    {RF_TEXT_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^\\\\w+ (fox|dog)\\\\.$\"}"},
};
enum { FORM_COUNT = sizeof FORMS / sizeof *FORMS };

static uint32_t draw(uint64_t seed, uint32_t at, uint32_t below) {
  uint32_t words[4];
  rf_philox(seed, at, 7, words);
  return words[0] % below;
}

/* The mask of a state, token by token without the tree. */
static bool allows(rf_constraint *c, int32_t state, int32_t token) {
  rf_span text = c->trie->text[token];
  for (size_t i = 0; i < text.bytes && state > 0; i++)
    assert_int_equal(
        rf_automaton_step(&c->automaton, state, c->automaton.grammar.class_of[(uint8_t)text.at[i]], &state),
        0);
  const bool special = rf_trie_is_special(c->trie, token) && !c->automaton.grammar.free;
  return text.bytes && state > 0 && !special;
}

/* Chooses allowed tokens at random. Returns the text, or NULL if it did not end within `most`. */
static char *answer(rf_constraint *c, uint64_t seed, int most, bool compare) {
  rf_constrained a = {0};
  uint64_t mask[7];
  bool ends, only;
  char *text = calloc((size_t)most * RF_TRIE_BYTES + 1, 1);
  rf_constrained_begin(&a, c);
  for (int step = 0; step < most; step++) {
    int32_t allowed[410];
    uint32_t count = 0;
    assert_int_equal(rf_constrained_mask(&a, mask, &ends, &only, NULL), RAFTER_OK);
    for (int32_t i = 0; i < 410; i++) {
      bool is = mask[i >> 6] >> (i & 63) & 1;
      if (compare && is != allows(c, a.state, i)) fail_msg("after %s: token %d is %d", text, i, is);
      if (is) allowed[count++] = i;
    }
    assert_int_equal(only, !count);
    assert_true(count || ends); /* no dead end */
    if (ends && (only || draw(seed, (uint32_t)step, 3) == 0)) {
      rf_constrained_begin(&a, NULL);
      return text;
    }
    int32_t id = allowed[draw(seed, (uint32_t)step + 100000, count)];
    strncat(text, trie->text[id].at, trie->text[id].bytes);
    assert_int_equal(rf_constrained_accept(&a, id, NULL), RAFTER_OK);
  }
  rf_constrained_begin(&a, NULL);
  free(text);
  return NULL;
}

static void random_answers_are_valid(void **state) {
  (void)state;
  for (int f = 0; f < FORM_COUNT; f++) {
    rf_constraint *c = NULL;
    rf_error error = {0};
    int ended = 0;
    if (rf_constraint_open(trie, FORMS[f].form, FORMS[f].text, strlen(FORMS[f].text), &c, &error) !=
        RAFTER_OK)
      fail_msg("%s: %s", FORMS[f].text, error.message);
    for (uint64_t seed = 0; seed < 60; seed++) {
      char *text = answer(c, seed, 300, seed < 8);
      if (!text) continue;
      json_error_t why;
      json_t *json = json_loads(text, JSON_DECODE_ANY, &why);
      if (!json) fail_msg("%s is not JSON: %s", text, why.text);
      json_decref(json);
      free(text);
      ended++;
    }
    if (ended < 10) fail_msg("%s: %d answers of 60 ended", FORMS[f].text, ended);
    rf_constraint_release(c);
  }
}

static void choices_and_special_tokens(void **state) {
  static const char LIST[] = "[\"the fox\", \"the dog\", \"th\"]";
  rf_constraint *c = NULL;
  (void)state;
  assert_int_equal(rf_constraint_open(trie, RF_TEXT_CHOICE, LIST, strlen(LIST), &c, NULL), RAFTER_OK);
  bool seen[3] = {false};
  for (uint64_t seed = 0; seed < 200; seed++) {
    char *text = answer(c, seed, 100, true);
    int which = !text                      ? -1
                : !strcmp(text, "the fox") ? 0
                : !strcmp(text, "the dog") ? 1
                : !strcmp(text, "th")      ? 2
                                           : -1;
    if (which < 0) fail_msg("%s", text ? text : "no end");
    seen[which] = true;
    free(text);
  }
  assert_true(seen[0] && seen[1] && seen[2]);
  /* The tokenizer's end token and ids beyond it are never allowed as text. */
  rf_constrained a = {0};
  rf_constrained_begin(&a, c);
  assert_int_equal(rf_constrained_accept(&a, rf_tokenizer_eos(tokenizer), NULL), RAFTER_INVALID);
  rf_constrained_begin(&a, c);
  assert_int_equal(rf_constrained_accept(&a, 409, NULL), RAFTER_INVALID);
  rf_constrained_begin(&a, NULL);
  rf_constraint_release(c);
}

/* In forms with free text, a special token is the text by which it is spelled. */
static void special_tokens_are_marks_of_free_text(void **state) {
  static const char FORM[] = "[{\"until\":\"<|endoftext|>\"},\"the\"]";
  const int32_t special = rf_tokenizer_eos(tokenizer);
  rf_constraint *c = NULL;
  rf_constrained a = {0};
  uint64_t mask[7];
  bool ends, only;
  (void)state;
  assert_int_equal(rf_constraint_open(trie, RF_TEXT_PARTS, FORM, strlen(FORM), &c, NULL), RAFTER_OK);
  for (int spelled = 0; spelled < 2; spelled++) {
    rf_constrained_begin(&a, c);
    assert_int_equal(rf_constrained_accept(&a, rf_tokenizer_find(tokenizer, "x", 1), NULL), RAFTER_OK);
    assert_int_equal(rf_constrained_mask(&a, mask, &ends, &only, NULL), RAFTER_OK);
    assert_true(mask[special >> 6] >> (special & 63) & 1);
    assert_false(ends);
    if (!spelled) assert_int_equal(rf_constrained_accept(&a, special, NULL), RAFTER_OK);
    for (const char *at = "<|endoftext|>"; spelled && *at; at++)
      assert_int_equal(rf_constrained_accept(&a, rf_tokenizer_find(tokenizer, at, 1), NULL), RAFTER_OK);
    assert_int_equal(rf_constrained_mask(&a, mask, &ends, &only, NULL), RAFTER_OK);
    assert_false(mask[special >> 6] >> (special & 63) & 1);
    assert_int_equal(rf_constrained_accept(&a, special, NULL), RAFTER_INVALID);
  }
  for (uint64_t seed = 0; seed < 20; seed++) free(answer(c, seed, 60, true));
  rf_constrained_begin(&a, NULL);
  rf_constraint_release(c);
}

/* Words that are tokens: the first mask reads all their letters, and needs more states than fit. */
static void a_mask_that_does_not_fit_is_refused(void **state) {
  enum { WORDS = 4096, LETTERS = 6 };
  (void)state;
  char *text = malloc(2 * WORDS * (LETTERS + 1)), *list = malloc(WORDS * (LETTERS + 4) + 2), *at = list;
  assert_true(text && list);
  uint64_t random = 1;
  for (int w = 0; w < WORDS; w++) {
    char *word = text + w * (LETTERS + 1);
    for (int i = 0; i < LETTERS; i++) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      word[i] = (char)('a' + (random >> 40) % 26);
    }
    word[LETTERS] = ' ';
    at += sprintf(at, "%s\" %.*s\"", w ? "," : "[", LETTERS, word); /* tokens begin with the space */
  }
  strcpy(at, "]");
  memcpy(text + WORDS * (LETTERS + 1), text, WORDS * (LETTERS + 1)); /* a token occurs twice */
  rf_tokenizer *words = NULL;
  rf_trie *tokens = NULL;
  rf_constraint *c = NULL;
  rf_error error = {0};
  assert_int_equal(rf_tokenizer_train(text, 2 * WORDS * (LETTERS + 1), 24000, NULL, &words, &error),
                   RAFTER_OK);
  assert_int_equal(rf_trie_open(words, 24000, &tokens, &error), RAFTER_OK);
  assert_int_equal(rf_constraint_open(tokens, RF_TEXT_CHOICE, list, strlen(list), &c, &error),
                   RAFTER_INVALID);
  assert_non_null(strstr(error.message, "too many states (expected at most 8192 for one token)"));
  rf_trie_close(tokens);
  rf_tokenizer_close(words);
  free(text);
  free(list);
}

/* Answers with a long text need more states than fit; another answer waits and stays valid. */
static void answers_survive_a_new_generation(void **state) {
  rf_constraint *c = NULL;
  rf_constrained a = {0}, b = {0};
  uint64_t mask[7];
  bool ends, only;
  (void)state;
  rf_error error = {0};
  if (rf_constraint_open(trie, RF_TEXT_REGEX, "x(ab){12000}", 12, &c, &error)) fail_msg("%s", error.message);
  rf_constrained_begin(&a, c);
  rf_constrained_begin(&b, c);
  int32_t x = rf_tokenizer_find(tokenizer, "x", 1), la = rf_tokenizer_find(tokenizer, "a", 1),
          lb = rf_tokenizer_find(tokenizer, "b", 1);
  assert_int_equal(rf_constrained_accept(&b, x, NULL), RAFTER_OK);
  assert_int_equal(rf_constrained_accept(&a, x, NULL), RAFTER_OK);
  for (int i = 0; i < 12000; i++) {
    assert_int_equal(rf_constrained_accept(&a, la, NULL), RAFTER_OK);
    assert_int_equal(rf_constrained_mask(&a, mask, &ends, &only, NULL), RAFTER_OK);
    assert_true(mask[lb >> 6] >> (lb & 63) & 1);
    assert_false(ends);
    assert_int_equal(rf_constrained_accept(&a, lb, NULL), RAFTER_OK);
  }
  assert_int_equal(rf_constrained_mask(&a, mask, &ends, &only, NULL), RAFTER_OK);
  assert_true(ends && only);
  assert_int_equal(rf_constrained_mask(&b, mask, &ends, &only, NULL), RAFTER_OK);
  assert_true(mask[la >> 6] >> (la & 63) & 1);
  assert_int_equal(rf_constrained_accept(&b, lb, NULL), RAFTER_INVALID);
  rf_constrained_begin(&a, NULL);
  rf_constrained_begin(&b, NULL);
  rf_constraint_release(c);
}

static void the_cache_finds_equal_forms(void **state) {
  rf_constraints *all = rf_constraints_open(tokenizer, 410);
  rf_constraint *a = NULL, *b = NULL;
  rf_error error = {0};
  (void)state;
  assert_int_equal(rf_constraints_get(all, RF_TEXT_REGEX, "a+", 2, &a, NULL), RAFTER_OK);
  assert_int_equal(rf_constraints_get(all, RF_TEXT_REGEX, "a+", 2, &b, NULL), RAFTER_OK);
  assert_ptr_equal(a, b);
  rf_constraint_release(b);
  for (int i = 0; i < 100; i++) {
    char text[16];
    snprintf(text, sizeof text, "a{%d}", i + 1);
    assert_int_equal(rf_constraints_get(all, RF_TEXT_REGEX, text, strlen(text), &b, NULL), RAFTER_OK);
    rf_constraint_release(b);
  }
  assert_int_equal(rf_constraints_get(all, RF_TEXT_REGEX, "(", 1, &b, &error), RAFTER_INVALID);
  assert_int_equal(rf_constraints_get(all, RF_TEXT_SCHEMA, "{", 1, &b, &error), RAFTER_INVALID);
  assert_int_equal(rf_constraints_get(all, RF_TEXT_CHOICE, "[3]", 3, &b, &error), RAFTER_INVALID);
  rf_constraint_counts counts = rf_constraints_counts(all);
  assert_int_equal(counts.compiled, 101);
  assert_int_equal(counts.found, 1);
  assert_true(counts.compile_seconds > 0);
  rf_constraint_release(a); /* the cache dropped it long ago */
  rf_constraints_close(all);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_answers_are_valid),
      cmocka_unit_test(choices_and_special_tokens),
      cmocka_unit_test(special_tokens_are_marks_of_free_text),
      cmocka_unit_test(a_mask_that_does_not_fit_is_refused),
      cmocka_unit_test(answers_survive_a_new_generation),
      cmocka_unit_test(the_cache_finds_equal_forms),
  };
  return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}
