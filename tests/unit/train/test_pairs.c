/* test_pairs.c - rows of preferences: the forms of a row, the tokens that the loss counts, rows
 * that are left out, held-out pairs, the order of pairs, and bad rows. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "train/pairs.h"

#include "support/scratch.h"

enum { EOS = 256, SEQ = 256 };
static const char CHATML[] = RF_TEST_DATA "/templates/chatml.jinja";
static rf_model model = {.name = "test", .vocab = 300, .max_seq = SEQ, .bos_id = -1, .eos_id = EOS};

static rf_error error;
#define MUST(call) \
  do { \
    if ((call) != RAFTER_OK) fail_msg("%s (%s)", error.message, error.hint); \
  } while (0)

static void put(const char *name, const char *text) {
  MUST(rf_file_write(at(name), text, strlen(text), &error));
}

static rf_source_options options_of(const char *template) {
  return (rf_source_options){.model = &model, .seq = SEQ, .template = template, .work_folder = folder};
}

/* The text of an answer with its prompt, where '|' is before the first token in the loss. Token 256
 * is '$'. */
static void text_of(const rf_pair_set *set, const rf_answer *answer, char text[2 * SEQ]) {
  int32_t tokens[SEQ];
  int n = 0;
  MUST(rf_pairs_read(set, answer, tokens, &error));
  for (int32_t t = 0; t < answer->count; t++) {
    if (t == answer->prompt) text[n++] = '|';
    text[n++] = (char)(tokens[t] == EOS ? '$' : tokens[t]);
  }
  text[n] = 0;
}

static void pair_is(rf_source_options options, const char *row, const char *chosen, const char *rejected) {
  rf_pair_set set;
  char text[2 * SEQ];
  put("row.jsonl", row);
  MUST(rf_pairs_open(at("row.jsonl"), &options, &set, &error));
  assert_int_equal(set.train, 1);
  text_of(&set, &set.pair[0].chosen, text);
  assert_string_equal(text, chosen);
  text_of(&set, &set.pair[0].rejected, text);
  assert_string_equal(text, rejected);
  rf_pairs_close(&set);
}

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define ASKED(text) "<|im_start|>user\n" text "<|im_end|>\n<|im_start|>assistant\n"

/* TRL's forms, and ours: prompt and answers are texts, messages or ids. */
static void every_form_is_read(void **state) {
  (void)state;
  const rf_source_options plain = options_of("none"), chat = options_of(CHATML);
  rf_source_options renamed = plain;
  renamed.fields = "prompt=q,chosen=good,rejected=bad";
  pair_is(plain, "{\"prompt\":\"2+2=\",\"chosen\":\"4\",\"rejected\":\"five\"}", "2+2=|4$", "2+2=|five$");
  pair_is(renamed, "{\"q\":\"2+2=\",\"good\":\"4\",\"bad\":\"5\",\"prompt\":1}", "2+2=|4$", "2+2=|5$");
  pair_is(chat, "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}", ASKED("a") "|b<|im_end|>\n",
          ASKED("a") "|c<|im_end|>\n");
  /* a conversation, then answers as messages or as texts */
  pair_is(chat,
          "{\"prompt\":[" USER("a") "],\"chosen\":[" ASSISTANT("b") "],\"rejected\":[" ASSISTANT("c") "]}",
          ASKED("a") "|b<|im_end|>\n", ASKED("a") "|c<|im_end|>\n");
  pair_is(chat, "{\"messages\":[" USER("a") "],\"chosen\":\"b\",\"rejected\":\"c\"}",
          ASKED("a") "|b<|im_end|>\n", ASKED("a") "|c<|im_end|>\n");
  pair_is(chat, "{\"prompt\":\"a\",\"chosen\":[" ASSISTANT("b") "],\"rejected\":[" ASSISTANT("c") "]}",
          ASKED("a") "|b<|im_end|>\n", ASKED("a") "|c<|im_end|>\n");
  /* earlier answers in the prompt are not in the loss */
  pair_is(chat,
          "{\"prompt\":[" USER("a") "," ASSISTANT("x") "," USER("y") "],\"chosen\":[" ASSISTANT(
              "b") "],\"rejected\":[" ASSISTANT("c") "]}",
          ASKED("a") "x<|im_end|>\n" ASKED("y") "|b<|im_end|>\n",
          ASKED("a") "x<|im_end|>\n" ASKED("y") "|c<|im_end|>\n");
  /* whole conversations: what both begin with is the prompt, and a text prompt is not needed */
  pair_is(chat,
          "{\"prompt\":\"a\",\"chosen\":[" USER("a") "," ASSISTANT("b") "],\"rejected\":[" USER(
              "a") "," ASSISTANT("c") "],\"messages\":[" USER("a") "," ASSISTANT("b") "]}",
          ASKED("a") "|b<|im_end|>\n", ASKED("a") "|c<|im_end|>\n");
  /* whole texts: a space before the first difference belongs to the answers */
  pair_is(plain, "{\"chosen\":\"Q: hi A: yes\",\"rejected\":\"Q: hi A: no\"}", "Q: hi A:| yes$",
          "Q: hi A:| no$");
  pair_is(plain, "{\"chosen\":\"\\u00e9a\",\"rejected\":\"\\u00e8a\"}",
          "\xc3|\xa9"
          "a$",
          "\xc3|\xa8"
          "a$");
  pair_is(plain, "{\"prompt\":[65,66],\"chosen\":[67],\"rejected\":[68,69]}", "AB|C", "AB|DE");
  pair_is(plain, "{\"tokens\":[65],\"chosen\":[67,68],\"rejected\":[68]}", "A|CD", "A|D");
  /* the first token has no probability */
  pair_is(plain, "{\"prompt\":\"\",\"chosen\":\"ab\",\"rejected\":\"ac\"}", "a|b$", "a|c$");
}

static void bad_rows_are_named(void **state) {
  (void)state;
  static const struct {
    const char *row, *says;
  } rows[] = {
      {"{\"prompt\":\"a\",\"completion\":\"b\"}",
       "expected the fields \"chosen\" and \"rejected\", got no \"chosen\""},
      {"{\"prompt\":\"a\",\"chosen\":\"b\"}", "got no \"rejected\""},
      {"{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":null}", "got no \"rejected\""},
      {"{\"text\":\"abc\"}", "a row has no pair of answers"},
      {"{\"prompt\":3,\"chosen\":\"b\",\"rejected\":\"c\"}", "field \"prompt\": expected a string or a list"},
      {"{\"prompt\":\"a\",\"chosen\":3,\"rejected\":\"c\"}", "field \"chosen\": expected a string or a list"},
      {"{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":[]}",
       "field \"rejected\": expected a string, like the chosen answer, got a list"},
      {"{\"chosen\":[" ASSISTANT("b") "],\"rejected\":[" ASSISTANT("c") "]}", "has no prompt"},
      {"{\"prompt\":\"a\",\"chosen\":[3,4],\"rejected\":[5]}", "field \"prompt\": expected a list of ids"},
      {"{\"tokens\":[1],\"chosen\":[3,300],\"rejected\":[5]}",
       "field \"chosen\", token 1: expected an id below 300, got 300"},
      {"{\"tokens\":[1],\"chosen\":[3],\"rejected\":[-5]}", "field \"rejected\", token 0"},
      {"{\"chosen\":[3],\"rejected\":[5]}", "has no prompt"},
      {"{\"prompt\":[{}],\"chosen\":\"b\",\"rejected\":\"c\"}", "not an object with a string \"role\""},
      {"{\"prompt\":\"a\",\"chosen\":[[]],\"rejected\":[" ASSISTANT("c") "]}",
       "not an object with a string \"role\""},
      {"{\"prompt\":\"a\",", "JSON"},
      {"3", "expected an object"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const rf_source_options options = options_of(CHATML);
    rf_pair_set set;
    char text[500];
    snprintf(text, sizeof text, "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}\n%s\n", rows[i].row);
    put("bad.jsonl", text);
    assert_int_equal(rf_pairs_open(at("bad.jsonl"), &options, &set, &error), RAFTER_FAILED);
    if (!strstr(error.message, rows[i].says))
      fail_msg("%s: %s (expected %s)", rows[i].row, error.message, rows[i].says);
    if (!strstr(error.message, "line 2") || !strstr(error.message, "bad.jsonl"))
      fail_msg("%s: %s names no line", rows[i].row, error.message);
  }
}

static void bad_files_are_named(void **state) {
  (void)state;
  static const struct {
    const char *data, *says;
  } cases[] = {{"", "--data is empty"},
               {",", "--data is empty"},
               {"notes.txt", "preferences are rows of .jsonl files"},
               {"random:seed=0", "preferences are rows of .jsonl files"},
               {"a.jsonl:2", "have no weights"},
               {"nowhere.jsonl", "cannot open nowhere.jsonl"}};
  const rf_source_options options = options_of("none");
  rf_pair_set set;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_not_equal(rf_pairs_open(cases[i].data, &options, &set, &error), RAFTER_OK);
    if (!strstr(error.message, cases[i].says)) fail_msg("%s: %s", cases[i].data, error.message);
  }
  put("empty.jsonl", "\n");
  assert_int_equal(rf_pairs_open(at("empty.jsonl"), &options, &set, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "no pair to train on (0 rows: "));
  put("equal.jsonl", "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"b\"}\n");
  assert_int_equal(rf_pairs_open(at("equal.jsonl"), &options, &set, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "1 with equal answers"));
}

/* Rows from which nothing can be learned are counted. Long answers are truncated to --seq. */
static void useless_rows_are_counted(void **state) {
  (void)state;
  rf_source_options options = options_of("none");
  rf_pair_set set;
  options.seq = 8;
  put("mixed.jsonl", "{\"prompt\":\"ab\",\"chosen\":\"c\",\"rejected\":\"d\"}\n"
                     "{\"prompt\":\"ab\",\"chosen\":\"c\",\"rejected\":\"c\"}\n"
                     "{\"prompt\":\"ab\",\"chosen\":\"\",\"rejected\":\"d\"}\n"
                     "{\"prompt\":\"ab\",\"chosen\":\"d\",\"rejected\":\"\"}\n"
                     "{\"prompt\":\"12345678\",\"chosen\":\"c\",\"rejected\":\"d\"}\n"
                     "{\"prompt\":\"1234567\",\"chosen\":\"cc\",\"rejected\":\"dd\"}\n"
                     "{\"prompt\":\"ab\",\"chosen\":\"0123456789\",\"rejected\":\"x\"}\n"
                     "{\"prompt\":\"ab\",\"chosen\":\"012345678\",\"rejected\":\"012345679\"}\n");
  MUST(rf_pairs_open(at("mixed.jsonl"), &options, &set, &error));
  assert_int_equal(set.rows, 8);
  assert_int_equal(set.train, 3);
  assert_int_equal(set.empty, 2);
  assert_int_equal(set.long_prompts, 1);
  assert_int_equal(set.equal, 2); /* the last row differs only after the cut */
  assert_int_equal(set.cut, 2);
  assert_int_equal(set.cut_tokens, 2 + 2 + 5); /* with the end marks */
  assert_int_equal(set.answer_tokens, 2 + 2 + 1 + 1 + 6 + 2);
  rf_pairs_close(&set);
  const rf_source_options chat = options_of(CHATML);
  put("talk.jsonl",
      "{\"prompt\":[" USER("a") "],\"chosen\":[],\"rejected\":[" ASSISTANT(
          "c") "]}\n"
               "{\"prompt\":[" USER("a") "],\"chosen\":[" ASSISTANT("") "],\"rejected\":[" ASSISTANT(
                   "c") "]}\n"
                        "{\"prompt\":[" USER("a") "],\"chosen\":[" ASSISTANT(
                            "b") "],\"rejected\":[" ASSISTANT("c") "]}\n");
  MUST(rf_pairs_open(at("talk.jsonl"), &chat, &set, &error));
  assert_int_equal(set.empty, 2);
  assert_int_equal(set.train, 1);
  rf_pairs_close(&set);
}

static void put_numbers(const char *name, int first, int count) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&text, &bytes);
  for (int i = first; i < first + count; i++)
    fprintf(file, "{\"tokens\":[%d],\"chosen\":[1],\"rejected\":[2,3]}\n", i);
  fclose(file);
  put(name, text);
  free(text);
}

static int prompt_of(const rf_pair_set *set, int64_t pair) {
  int32_t tokens[SEQ];
  MUST(rf_pairs_read(set, &set->pair[pair].chosen, tokens, &error));
  return tokens[0];
}

/* Each file holds its last rows out. Each epoch has every pair once, in another order. */
static void pairs_are_divided_and_shuffled(void **state) {
  (void)state;
  enum { A = 60, B = 20, HELD = 8, TRAIN = A + B - HELD };
  rf_source_options options = options_of("none");
  rf_pair_set set;
  char data[600];
  int64_t order[2][TRAIN];
  options.val_fraction = 0.1;
  put_numbers("a.jsonl", 0, A);
  put_numbers("b.jsonl", 100, B);
  snprintf(data, sizeof data, "%s,%s", at("a.jsonl"), at("b.jsonl"));
  MUST(rf_pairs_open(data, &options, &set, &error));
  assert_int_equal(set.train, TRAIN);
  assert_int_equal(set.held_out, HELD);
  for (int i = 0; i < HELD; i++)
    assert_int_equal(prompt_of(&set, TRAIN + i), i < 6 ? A - 6 + i : 100 + B - 8 + i);
  for (int epoch = 0; epoch < 2; epoch++) {
    bool seen[TRAIN] = {false};
    for (int i = 0; i < TRAIN; i++) {
      int64_t pair = order[epoch][i] = rf_pairs_at(&set, 7, epoch * TRAIN + i);
      assert_in_range(pair, 0, TRAIN - 1);
      assert_false(seen[pair]);
      seen[pair] = true;
    }
  }
  assert_memory_not_equal(order[0], order[1], sizeof order[0]);
  uint64_t digest = rf_pairs_digest(&set);
  rf_pairs_close(&set);
  MUST(rf_pairs_open(data, &options, &set, &error));
  assert_true(rf_pairs_digest(&set) == digest);
  rf_pairs_close(&set);
  options.val_fraction = 0.2; /* other pairs are held out */
  MUST(rf_pairs_open(data, &options, &set, &error));
  assert_true(rf_pairs_digest(&set) != digest);
  rf_pairs_close(&set);
  put_numbers("b.jsonl", 101, B);
  options.val_fraction = 0.1;
  MUST(rf_pairs_open(data, &options, &set, &error));
  assert_true(rf_pairs_digest(&set) != digest);
  rf_pairs_close(&set);
}

/* The same tokens with another prompt have another loss. */
static void the_digest_has_the_prompts(void **state) {
  (void)state;
  const rf_source_options options = options_of("none");
  rf_pair_set set;
  uint64_t digest[2];
  for (int i = 0; i < 2; i++) {
    put("one.jsonl", i ? "{\"tokens\":[1,2],\"chosen\":[3],\"rejected\":[4]}"
                       : "{\"tokens\":[1],\"chosen\":[2,3],\"rejected\":[2,4]}");
    MUST(rf_pairs_open(at("one.jsonl"), &options, &set, &error));
    digest[i] = rf_pairs_digest(&set);
    rf_pairs_close(&set);
  }
  assert_true(digest[0] != digest[1]);
}

/* Another program writes to the tokens of a run. */
static void changed_tokens_are_noticed(void **state) {
  (void)state;
  const rf_source_options options = options_of("none");
  rf_pair_set set;
  put_numbers("c.jsonl", 0, 9);
  MUST(rf_pairs_open(at("c.jsonl"), &options, &set, &error));
  assert_int_equal(rf_pairs_unchanged(&set, &error), RAFTER_OK);
  FILE *file = fopen(at("pairs.shard"), "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, 64, SEEK_SET), 0);
  fputc(9, file);
  fclose(file);
  assert_int_equal(rf_pairs_unchanged(&set, &error), RAFTER_FAILED);
  rf_pairs_close(&set);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_form_is_read),
      cmocka_unit_test(bad_rows_are_named),
      cmocka_unit_test(bad_files_are_named),
      cmocka_unit_test(useless_rows_are_counted),
      cmocka_unit_test(pairs_are_divided_and_shuffled),
      cmocka_unit_test(the_digest_has_the_prompts),
      cmocka_unit_test(changed_tokens_are_noticed),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
