/* test_examples.c - tests rows of training data: the tokens that the loss counts, that no other
 * option changes the tokens, and that a token's loss does not depend on the other examples in its
 * row. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "run/load.h"
#include "train/train.h"

#include "support/files.h"
#include "support/scratch.h"

enum { EOS = 256 };

static const char CHATML[] = RF_TEST_DATA "/templates/chatml.jinja";
static rf_machine machine;

static rf_model byte_model(void) {
  return (rf_model){.name = "test", .vocab = 300, .max_seq = 64, .bos_id = -1, .eos_id = EOS};
}

static void put(const char *name, const char *text) {
  rf_error error;
  if (rf_file_write(at(name), text, strlen(text), &error) != RAFTER_OK) fail_msg("%s", error.message);
}

/* Reads a row byte by byte. Under each byte of its text is a 1 if the loss counts the byte. The end
 * mark is written as '$'. */
static void row_is(rf_example_options options, const char *row, const char *text, const char *mask) {
  rf_model model = byte_model();
  rf_tokenizer *tokenizer = NULL;
  rf_example_reader *reader = NULL;
  rf_example example = {0};
  rf_error error = {0};
  assert_int_equal(rf_tokenizer_byte(model.name, model.vocab, &tokenizer, &error), RAFTER_OK);
  options.tokenizer = tokenizer;
  options.vocab = model.vocab;
  if (rf_example_open(&options, &reader, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (int again = 0; again < 2; again++) { /* An earlier row has no effect. */
    if (rf_example_read(reader, "rows", 1, row, strlen(row), &example, &error) != RAFTER_OK)
      fail_msg("%s: %s", row, error.message);
    char got_text[500], got_mask[500];
    for (int64_t i = 0; i < example.ids.count; i++) {
      got_text[i] = (char)(example.ids.at[i] == EOS ? '$' : example.ids.at[i]);
      got_mask[i] = example.is_example ? (char)('0' + example.mask[i]) : '-';
    }
    got_text[example.ids.count] = got_mask[example.ids.count] = 0;
    assert_string_equal(got_text, text);
    assert_string_equal(got_mask, mask);
  }
  rf_example_free(&example);
  rf_example_close(reader);
  rf_tokenizer_close(tokenizer);
}

static void the_loss_counts_what_the_assistant_wrote(void **state) {
  (void)state;
  const rf_example_options turns = {.template = CHATML},
                           last = {.template = CHATML, .loss_on = RF_LOSS_ON_COMPLETION},
                           all = {.template = CHATML, .loss_on = RF_LOSS_ON_ALL}, plain = {0},
                           plain_all = {.loss_on = RF_LOSS_ON_ALL}, none = {.template = "none"},
                           renamed = {.fields = "prompt=question,completion=answer"};
  static const char two[] =
      "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
      "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}";
  static const char text[] =
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
      "<|im_start|>assistant\nd<|im_end|>\n";
  row_is(turns, two, text,
         "00000000000000000000000000000"
         "0000000000000000000000"
         "111111111111"
         "00000000000000000000000000000"
         "0000000000000000000000"
         "111111111111");
  row_is(last, two, text,
         "00000000000000000000000000000"
         "0000000000000000000000"
         "000000000000"
         "00000000000000000000000000000"
         "0000000000000000000000"
         "111111111111");
  row_is(all, two, text,
         "11111111111111111111111111111"
         "1111111111111111111111"
         "111111111111"
         "11111111111111111111111111111"
         "1111111111111111111111"
         "111111111111");
  static const char pair[] = "{\"prompt\":\"a\",\"completion\":\"b\"}";
  static const char one[] = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n";
  row_is(turns, pair, one,
         "00000000000000000000000000000"
         "0000000000000000000000"
         "111111111111");
  row_is(last, pair, one,
         "00000000000000000000000000000"
         "0000000000000000000000"
         "111111111111");
  row_is(turns,
         "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{"
         "\"role\":\"user\",\"content\":\"c\"}],"
         "\"completion\":[{\"role\":\"assistant\",\"content\":\"d\"}]}",
         text,
         "00000000000000000000000000000"
         "0000000000000000000000"
         "000000000000"
         "00000000000000000000000000000"
         "0000000000000000000000"
         "111111111111");
  row_is(plain, "{\"prompt\":\"2+2=\",\"completion\":\"4\"}", "2+2=4$", "000011");
  row_is(none, "{\"prompt\":\"2+2=\",\"completion\":\"4\"}", "2+2=4$", "000011");
  row_is(plain_all, "{\"prompt\":\"2+2=\",\"completion\":\"4\"}", "2+2=4$", "111111");
  row_is(renamed, "{\"question\":\"2+2=\",\"answer\":\"4\",\"prompt\":1}", "2+2=4$", "000011");
  row_is(plain, "{\"prompt\":\"\",\"completion\":\"4\"}", "4$", "11");
  row_is(plain, "{\"tokens\":[65,66,67],\"mask\":[0,1,true]}", "ABC", "011");
  row_is(plain, "{\"tokens\":[65,66,67]}", "ABC", "---");
  row_is(plain, "{\"text\":\"ABC\",\"messages\":null}", "ABC$", "----");
  row_is(plain, "{\"text\":\"\"}", "", "");
}

/* Opens the tokenizer's own file with one text in it replaced. */
static void open_tokenizer(const char *path, const char *was, const char *is, rf_tokenizer **tokenizer) {
  rf_error error = {0};
  char *text = NULL;
  size_t bytes = 0;
  if (was) {
    assert_int_equal(rf_file_read(path, 1 << 28, &text, &bytes, &error), RAFTER_OK);
    char *found = strstr(text, was), *whole = NULL;
    assert_non_null(found);
    assert_true(asprintf(&whole, "%.*s%s%s", (int)(found - text), text, is, found + strlen(was)) > 0);
    put("tokenizer.json", whole);
    free(text);
    free(whole);
    path = at("tokenizer.json");
  }
  if (rf_tokenizer_open(path, tokenizer, &error) != RAFTER_OK) fail_msg("%s", error.message);
}

/* The template of docs/formats.md for questions to models without a chat template. */
static const char QUESTION[] = "{{ bos_token }}{% for m in messages %}{{ 'Question: ' ~ m.content ~ "
                               "'\\nAnswer:' if m.role == 'user' else ' ' ~ "
                               "m.content ~ eos_token }}{% endfor %}\n";

/* Real vocabularies have tokens for marks, and words include the space before them. The tokens are
 * those of the rendered text, and the counted tokens are exactly the assistant's turns. The last
 * tokenizer composes letters, so its tokens are not the bytes of the text. */
static void real_vocabularies_are_masked_at_the_turns(void **state) {
  (void)state;
  static const struct {
    const char *tokenizer, *was, *is, *template, *says;
  } rows[] = {
      {"tokenizers/llama2/tokenizer.model", NULL, NULL, "llama2",
       " Hello, you two! </s>| caf\xc3\xa9?\n\nYes. </s>|"},
      {"tokenizers/gemma3/tokenizer.model", NULL, NULL, "gemma3",
       "Hello, you two!<end_of_turn>\n|caf\xc3\xa9?\n\nYes.<end_of_turn>\n|"},
      {"tokenizers/gpt2/tokenizer.json", NULL, NULL, "chatml",
       "Hello, you two!<|im_end|>\n|caf\xc3\xa9?\n\nYes.<|im_end|>\n|"},
      {"tokenizers/llama2/tokenizer.model", NULL, NULL, NULL,
       " Hello, you two!</s>| caf\xc3\xa9?\n\nYes.</s>|"},
      {"tokenizers/gpt2/tokenizer.json", "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}",
       "chatml", "Hello, you two!<|im_end|>\n|caf\xc3\xa9?\n\nYes.<|im_end|>\n|"},
  };
  char path[4200];
  const char *missing = NULL;
  put("question.jinja", QUESTION);
  for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
    rf_tokenizer *tokenizer = NULL;
    rf_example_reader *reader = NULL;
    rf_example example = {0};
    rf_error error = {0};
    char template[300], said[500] = "";
    size_t n = 0;
    if (!test_file(rows[k].tokenizer, path)) {
      missing = rows[k].tokenizer;
      continue;
    }
    open_tokenizer(path, rows[k].was, rows[k].is, &tokenizer);
    snprintf(template, sizeof template, rows[k].template ? RF_TEST_DATA "/templates/%s.jinja" : "%s",
             rows[k].template ? rows[k].template : at("question.jinja"));
    rf_example_options options = {
        .tokenizer = tokenizer, .template = template, .vocab = rf_tokenizer_vocab(tokenizer)};
    assert_int_equal(rf_example_open(&options, &reader, &error), RAFTER_OK);
    char row[600];
    snprintf(
        row, sizeof row,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Say hello\\n to us, "
        "%s.\"},{\"role\":\"assistant\",\"content\":\"Hello, you two!\"},"
        "{\"role\":\"user\",\"content\":\" and? \"},{\"role\":\"assistant\",\"content\":\"%s?\\n\\nYes.\"}]}",
        rows[k].is ? "cafe\xcc\x81" : "caf\xc3\xa9", rows[k].is ? "cafe\xcc\x81" : "caf\xc3\xa9");
    if (rf_example_read(reader, "rows", 1, row, strlen(row), &example, &error) != RAFTER_OK)
      fail_msg("%s", error.message);
    for (int64_t i = 0; i < example.ids.count; i++) {
      rf_span piece = rf_tokenizer_text_of(tokenizer, example.ids.at[i]);
      if (example.mask[i]) {
        memcpy(said + n, piece.at, piece.bytes);
        n += piece.bytes;
      }
      if (example.mask[i] && (i + 1 == example.ids.count || !example.mask[i + 1])) said[n++] = '|';
    }
    assert_string_equal(said, rows[k].says);
    rf_example_free(&example);
    rf_example_close(reader);
    rf_tokenizer_close(tokenizer);
  }
  if (missing) skip_for("%s is missing (RAFTER_TEST_DATA)", missing);
}

static void bad_rows_are_named(void **state) {
  (void)state;
  static const struct {
    const char *row, *says;
  } rows[] = {
      {"{\"messages\":3}", "field \"messages\": expected a list of messages, got an integer"},
      {"{\"messages\":[3]}",
       "message 0 of the conversation is not an object with a string \"role\" (FILE, line 2)"},
      {"{\"messages\":[],\"tools\":{}}", "field \"tools\": expected a list, got an object"},
      {"{\"prompt\":\"a\"}", "field \"completion\": expected a string, got nothing"},
      {"{\"completion\":\"a\"}", "field \"prompt\": expected a string or a list of messages, got nothing"},
      {"{\"prompt\":[],\"completion\":\"a\"}",
       "field \"completion\": expected a list of messages, like the prompt, got a string"},
      {"{\"tokens\":[1,2],\"mask\":[1]}", "field \"mask\": expected 2 values, got 1"},
      {"{\"tokens\":[1,2],\"mask\":[1,2]}", "field \"mask\", token 1: expected 0 or 1"},
      {"{\"tokens\":[1,300]}", "field \"tokens\", token 1: expected an id below 300, got 300"},
      {"{\"tokens\":\"a\"}", "field \"tokens\": expected a list of ids, got a string"},
      {"{\"text\":[1]}", "field \"text\": expected a string, got a list"},
      {"{\"mask\":[1]}",
       "none of the fields \"messages\", \"prompt\", \"text\" and \"tokens\" (FILE, line 2)"},
      {"[1]", "expected an object"},
  };
  rf_model model = byte_model();
  rf_source_options options = {
      .model = &model, .seq = 16, .pack = true, .work_folder = folder, .template = CHATML};
  rf_source source;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[300], says[300];
    rf_error error = {0};
    snprintf(text, sizeof text, "{\"text\":\"abc\"}\n%s\n", rows[i].row);
    put("bad.jsonl", text);
    const char *file = strstr(rows[i].says, "FILE"); /* the path of the rows */
    snprintf(says, sizeof says, file ? "%.*s%s%s" : "%.*s%.0s%.0s", file ? (int)(file - rows[i].says) : 300,
             rows[i].says, at("bad.jsonl"), file ? file + 4 : "");
    assert_int_equal(rf_source_open(at("bad.jsonl"), 1, &options, &source, &error), RAFTER_FAILED);
    if (!strstr(error.message, says)) fail_msg("%s: %s (expected %s)", rows[i].row, error.message, says);
    if (!strstr(error.message, "line 2")) fail_msg("%s: %s names no line", rows[i].row, error.message);
  }
  rf_error error = {0};
  put("talk.jsonl", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n");
  options.template = NULL;
  assert_int_equal(rf_source_open(at("talk.jsonl"), 1, &options, &source, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "no chat template"));
  options.fields = "prompt";
  assert_int_equal(rf_source_open(at("talk.jsonl"), 1, &options, &source, &error), RAFTER_INVALID);
  options.fields = "story=text";
  assert_int_equal(rf_source_open(at("talk.jsonl"), 1, &options, &source, &error), RAFTER_INVALID);
}

/* An example is never split. It is in one row, and is shortened to the row if it is longer. Its
 * mask decides its labels. Texts next to it may be split. */
static void examples_stand_whole(void **state) {
  (void)state;
  enum { SEQ = 20, COUNT = 120, ID_STEP = 100 };
  char *text = NULL;
  size_t bytes = 0;
  int expected_valid = 0, skipped = 0, cut = 0, cut_tokens = 0;
  FILE *file = open_memstream(&text, &bytes);
  /* Token i of example e is 100 e + i. The loss counts every third token after the first e % 7. */
  for (int e = 0; e < COUNT; e++) {
    int length = 1 + e * 13 % 33, valid = 0, longest = SEQ + 1;
    fprintf(file, "{\"tokens\":[");
    for (int i = 0; i < length; i++) fprintf(file, "%s%d", i ? "," : "", e * ID_STEP + i);
    fprintf(file, "],\"mask\":[");
    for (int i = 0; i < length; i++) {
      int counts = i >= e % 7 && i % 3 == 2;
      fprintf(file, "%s%d", i ? "," : "", counts);
      valid += counts && i > 0 && i < longest;
    }
    fprintf(file, "]}\n");
    skipped += valid == 0;
    expected_valid += valid;
    if (length > longest) {
      cut++;
      cut_tokens += length - longest;
    }
  }
  fprintf(file, "{\"tokens\":[");
  for (int i = 0; i < 50; i++) fprintf(file, "%s%d", i ? "," : "", COUNT * ID_STEP + i);
  fprintf(file, "]}\n");
  fclose(file);
  put("examples.jsonl", text);
  free(text);
  rf_model model = byte_model();
  model.vocab = (COUNT + 1) * ID_STEP;
  rf_source_options options = {.model = &model, .seq = SEQ, .pack = true, .work_folder = folder};
  rf_source source;
  rf_error error = {0};
  if (rf_source_open(at("examples.jsonl"), 1, &options, &source, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  assert_int_equal(source.skipped, skipped);
  assert_int_equal(source.cut, cut);
  assert_int_equal(source.cut_tokens, cut_tokens);
  int32_t tokens[SEQ], labels[SEQ], positions[SEQ], segments[SEQ + 1];
  int64_t valid = 0, text_labels = 0, seen[COUNT] = {0};
  for (int64_t r = 0; r < source.train.count; r++) {
    int64_t row_valid = 0;
    rf_token_batch batch = {tokens, labels, positions, segments, 0};
    assert_int_equal(rf_source_fill(&source, &source.train, r, 0, &batch, &error), RAFTER_OK);
    for (int i = 0; i < SEQ; i++) {
      int e = tokens[i] / ID_STEP, place = tokens[i] % ID_STEP;
      bool padding = tokens[i] == 0 && positions[i] != 0;
      row_valid += labels[i] >= 0;
      if (labels[i] < 0) continue;
      assert_false(padding);
      assert_int_equal(labels[i], tokens[i] + 1);
      if (e == COUNT) {
        text_labels++;
        continue;
      }
      assert_int_equal(positions[i], place);
      assert_true(place + 1 >= e % 7 && (place + 1) % 3 == 2);
      seen[e]++;
      valid++;
    }
    assert_int_equal(row_valid, rf_source_valid(&source, &source.train, r));
    assert_true(row_valid > 0);
  }
  assert_int_equal(valid, expected_valid);
  assert_int_equal(text_labels, 49);
  /* Another mask is other data. */
  uint64_t digest = source.digest;
  rf_source_close(&source);
  put("one.jsonl", "{\"tokens\":[1,2,3],\"mask\":[0,1,1]}\n");
  assert_int_equal(rf_source_open(at("one.jsonl"), 1, &options, &source, &error), RAFTER_OK);
  digest = source.digest;
  rf_source_close(&source);
  put("one.jsonl", "{\"tokens\":[1,2,3],\"mask\":[0,0,1]}\n");
  assert_int_equal(rf_source_open(at("one.jsonl"), 1, &options, &source, &error), RAFTER_OK);
  assert_true(source.digest != digest);
  rf_source_close(&source);
  put("one.jsonl", "{\"tokens\":[1,2,3],\"mask\":[1,0,0]}\n");
  assert_int_equal(rf_source_open(at("one.jsonl"), 1, &options, &source, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "nothing to train on"));
}

/* A shard with a mask is refused if it is truncated anywhere. A complete one gives its masks
 * back. */
static void masked_shards_survive_every_truncation(void **state) {
  (void)state;
  rf_shard_writer *writer;
  rf_shard shard;
  rf_error error;
  int32_t ids[20] = {0};
  uint8_t mask[40], got[40];
  for (int i = 0; i < 20; i++) {
    ids[i] = i;
    mask[i] = i * 7 % 3 == 1;
  }
  assert_int_equal(rf_shard_create(at("m.shard"), 300, &writer, &error), RAFTER_OK);
  assert_int_equal(rf_shard_append(writer, ids, 5, &error), RAFTER_OK);
  assert_int_equal(rf_shard_append_example(writer, ids, mask, 20, &error), RAFTER_OK);
  assert_int_equal(rf_shard_append(writer, ids, 10, &error), RAFTER_OK);
  assert_int_equal(rf_shard_finish(writer, &error), RAFTER_OK);
  assert_int_equal(rf_shard_open(at("m.shard"), &shard, &error), RAFTER_OK);
  static const bool examples[] = {false, false, true, false};
  static const int64_t starts[] = {0, 5, 25, 35};
  for (int d = 0; d <= 3; d++) {
    int64_t start;
    bool example;
    assert_int_equal(rf_shard_document(&shard, d, &start, &example, &error), RAFTER_OK);
    assert_int_equal(start, starts[d]);
    assert_int_equal(example, examples[d]);
  }
  for (int64_t first = 0; first < 35; first++)
    for (int64_t count = 0; first + count <= 35; count++) {
      assert_int_equal(rf_shard_mask(&shard, first, count, got, &error), RAFTER_OK);
      for (int64_t i = 0; i < count; i++)
        assert_int_equal(got[i], first + i < 5 || first + i >= 25 ? 1 : mask[first + i - 5]);
    }
  assert_int_equal(rf_shard_mask(&shard, 30, 6, got, &error), RAFTER_FAILED);
  rf_shard_close(&shard);
  char *all = NULL;
  size_t bytes = 0;
  assert_int_equal(rf_file_read(at("m.shard"), 4096, &all, &bytes, &error), RAFTER_OK);
  for (size_t n = 0; n < bytes; n++) {
    assert_int_equal(rf_file_write(at("cut.shard"), all, n, &error), RAFTER_OK);
    assert_int_equal(rf_shard_open(at("cut.shard"), &shard, &error), RAFTER_FAILED);
  }
  free(all);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static rf_plan_options plan_options(const rf_backend *backend, rf_dtype dtype, int64_t seq) {
  return (rf_plan_options){.build = {.job = RF_JOB_TRAIN,
                                     .dtype = dtype,
                                     .softmax = RF_F32,
                                     .microbatch = 1,
                                     .seq = seq,
                                     .accumulate = 1,
                                     .loss_only = true},
                           .backend = backend,
                           .isa = rf_isa_detect(),
                           .threads = 2,
                           .machine = &machine};
}

/* The losses of one row's tokens (seq). */
static void losses_of(rf_run *run, const rf_plan *plan, const rf_source *source, int64_t row, float *nll,
                      int32_t *tokens, int32_t *positions) {
  rf_error error = {0};
  int64_t seq = plan->options.build.seq;
  int32_t *ids = rf_run_named(run, 0, "tokens", NULL), *places = rf_run_named(run, 0, "positions", NULL);
  rf_token_batch batch = {ids, rf_run_named(run, 0, "labels", NULL), places,
                          rf_run_named(run, 0, "segments", NULL), 0};
  if (rf_source_fill(source, &source->train, row, 0, &batch, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  while (batch.segment_count <= seq) batch.segments[batch.segment_count++] = (int32_t)seq;
  rf_run_inputs inputs = {.step = 1, .loss_scale = 1, .rows = seq};
  memcpy(tokens, ids, (size_t)seq * 4);
  memcpy(positions, places, (size_t)seq * 4);
  for (int s = 0; s < RF_SECTIONS; s++)
    if (rf_run_section(run, 0, (rf_section)s, &inputs, &error) != RAFTER_OK) fail_msg("%s", error.message);
  const float *losses = NULL;
  for (int i = 0; i < plan->graph->op_count; i++)
    if (!strcmp(plan->graph->op[i].def->name, "head_loss"))
      losses = rf_run_tensor(run, 0, plan->graph->op[i].output[0]);
  assert_non_null(losses);
  for (int64_t i = 0; i < seq; i++) nll[i] = batch.labels[i] >= 0 ? losses[i] : -1;
}

/* Every example gives the same losses, bit for bit, alone in a row and after other examples. */
static void packing_keeps_the_bits(void **state) {
  (void)state;
  enum { SEQ = 96, COUNT = 9 };
  static const char *const shapes[] = {
      "gpt:layers=2,width=48,heads=3,ff=96,vocab=300,seq=96",
      "gemma3:layers=6,width=32,heads=4,kv_heads=1,head_dim=16,ff=64,vocab=300,seq=96,window=16"};
  static const rf_backend *const backends[] = {&RF_BACKEND_CPU, &RF_BACKEND_REFERENCE};
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&text, &bytes);
  for (int e = 0; e < COUNT; e++) {
    fprintf(file, "{\"tokens\":[%d", e);
    for (int i = 1; i < 5 + e * 17 % 60; i++) fprintf(file, ",%d", 20 + (e * 31 + i * 7) % 270);
    fprintf(file, "],\"mask\":[0");
    for (int i = 1; i < 5 + e * 17 % 60; i++) fprintf(file, ",%d", i % 4 != 1);
    fprintf(file, "]}\n");
  }
  fclose(file);
  put("pack.jsonl", text);
  free(text);
  for (int k = 0; k < 2; k++)
    for (int b = 0; b < 2; b++)
      for (int d = 0; d < 2; d++) {
        rf_error error = {0};
        rf_model model;
        rf_source packed, alone;
        if (rf_model_resolve(shapes[k], &model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
        rf_plan_options options = plan_options(backends[b], d ? RF_BF16 : RF_F32, SEQ);
        rf_plan *plan = NULL;
        rf_run *run = NULL;
        if (rf_plan_make(&model, &options, &plan, &error) != RAFTER_OK) fail_msg("%s", error.message);
        if (rf_run_open((const rf_plan *const[]){plan}, 1, (rf_run_debug){0}, &run, &error) != RAFTER_OK)
          fail_msg("%s", error.message);
        assert_int_equal(rf_fill_weights(run, 0, plan, NULL, 3, (rf_progress){0}, NULL), RAFTER_OK);
        rf_source_options data = {.model = &model, .seq = SEQ, .pack = true, .work_folder = folder};
        assert_int_equal(rf_source_open(at("pack.jsonl"), 1, &data, &packed, &error), RAFTER_OK);
        data.pack = false;
        assert_int_equal(rf_source_open(at("pack.jsonl"), 1, &data, &alone, &error), RAFTER_OK);
        assert_int_equal(alone.train.count, COUNT);
        assert_true(packed.train.count < COUNT / 2 + 1);
        float single[COUNT][SEQ], nll[SEQ];
        int32_t tokens[SEQ], positions[SEQ];
        for (int64_t r = 0; r < COUNT; r++) {
          float row[SEQ];
          losses_of(run, plan, &alone, r, row, tokens, positions);
          memcpy(single[tokens[0]], row, sizeof row); /* an example begins with its own number */
        }
        int compared = 0, moved = 0;
        for (int64_t r = 0; r < packed.train.count; r++) {
          losses_of(run, plan, &packed, r, nll, tokens, positions);
          for (int i = 0, e = -1; i < SEQ; i++) {
            if (positions[i] == 0)
              e = i > 0 && tokens[i] == 0 && tokens[i + 1 < SEQ ? i + 1 : i] == 0 ? -1 : tokens[i];
            if (e < 0) continue; /* the unused end of the row */
            if (memcmp(&nll[i], &single[e][positions[i]], sizeof(float)) != 0)
              fail_msg("%s: token %d of example %d has loss %.9g packed and %.9g alone", shapes[k],
                       positions[i], e, (double)nll[i], (double)single[e][positions[i]]);
            compared += nll[i] >= 0;
            moved += i != positions[i];
          }
        }
        assert_true(compared > 100 && moved > 100);
        rf_source_close(&packed);
        rf_source_close(&alone);
        rf_run_close(run);
        rf_plan_free(plan);
      }
}

/* Validation returns the mean over the counted tokens of the held-out rows, each once, however the
 * rows fill the microbatches. */
static void validation_counts_what_the_mask_says(void **state) {
  (void)state;
  enum { SEQ = 48, COUNT = 60 };
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&text, &bytes);
  for (int e = 0; e < COUNT; e++) {
    fprintf(file, "{\"prompt\":\"%.*s\",\"completion\":\"%.*s\"}\n", 3 + e * 7 % 20,
            "what is it that you say to me", 1 + e % 13, "nothing at all");
  }
  fclose(file);
  put("val.jsonl", text);
  free(text);
  rf_error error = {0};
  rf_train_settings s = {
      .data = at("val.jsonl"), .pack = true, .val_fraction = 0.4, .work_folder = folder, .seed = 3};
  if (rf_model_resolve("gpt:layers=2,width=48,heads=3,ff=96,vocab=300,seq=48", &s.model, NULL, &error) !=
      RAFTER_OK)
    fail_msg("%s", error.message);
  s.plan = plan_options(&RF_BACKEND_CPU, RF_F32, SEQ);
  s.plan.build.loss_only = false;
  s.plan.build.microbatch = 4;
  s.plan.build.beta1 = 0.9f;
  s.plan.build.beta2 = 0.95f;
  s.plan.build.eps = 1e-8f;
  s.schedule = (rf_schedule){.kind = RF_SCHEDULE_CONSTANT, .peak = 1e-3, .steps = 100};
  rf_trainer *trainer = NULL;
  if (rf_trainer_open(&s, &trainer, &error) != RAFTER_OK) fail_msg("%s", error.message);
  const rf_source *source = &trainer->loader.source[0];
  /* the last microbatch is not full */
  assert_true(source->held_out.count % 4 != 0 && source->held_out.count > 4);
  rf_plan_options options = plan_options(&RF_BACKEND_CPU, RF_F32, SEQ);
  rf_plan *plan = NULL;
  rf_run *run = NULL;
  if (rf_plan_make(&s.model, &options, &plan, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (rf_run_open((const rf_plan *const[]){plan}, 1, (rf_run_debug){0}, &run, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  assert_int_equal(rf_fill_weights(run, 0, plan, NULL, 3, (rf_progress){0}, NULL), RAFTER_OK);
  double sum = 0, counted = 0, loss = 0;
  rf_source held = *source; /* a source with the held-out rows in place of the training rows */
  held.train = source->held_out;
  for (int64_t r = 0; r < held.train.count; r++) {
    float nll[SEQ];
    int32_t tokens[SEQ], positions[SEQ];
    losses_of(run, plan, &held, r, nll, tokens, positions);
    for (int i = 0; i < SEQ; i++)
      if (nll[i] >= 0) {
        sum += (double)nll[i];
        counted++;
      }
  }
  if (rf_trainer_validate(trainer, 1000, &loss, &error) != RAFTER_OK) fail_msg("%s", error.message);
  if (fabs(loss - sum / counted) > 1e-12 * loss)
    fail_msg("validation says %.17g, its tokens %.17g", loss, sum / counted);
  rf_run_close(run);
  rf_plan_free(plan);
  rf_trainer_close(trainer);
}

int main(void) {
  rf_error error = {0};
  if (rf_machine_find("a5000", &machine, &error) != RAFTER_OK) return 1;
  machine.memory_bytes = 8e9;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_loss_counts_what_the_assistant_wrote),
      cmocka_unit_test(real_vocabularies_are_masked_at_the_turns),
      cmocka_unit_test(bad_rows_are_named),
      cmocka_unit_test(examples_stand_whole),
      cmocka_unit_test(masked_shards_survive_every_truncation),
      cmocka_unit_test(packing_keeps_the_bits),
      cmocka_unit_test(validation_counts_what_the_mask_says),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
