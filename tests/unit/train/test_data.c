/* test_data.c - tests training data: every token occurs once, labels are the next tokens, the order
 * is a permutation, and errors name the file and the place. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/loader.h"
#include "train/schedule.h"

static char folder[] = "/tmp/rafter-test-data-XXXXXX";
static char path[256];

static const char *write_file(const char *name, const void *data, size_t bytes) {
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(data, 1, bytes, file), bytes);
  fclose(file);
  return path;
}

static rf_model model_of(int64_t vocab) {
  return (rf_model){.name = "test", .vocab = vocab, .max_seq = 64, .bos_id = -1, .eos_id = -1};
}

static void shuffle_is_a_permutation(void **state) {
  (void)state;
  static const int64_t counts[] = {1, 2, 3, 5, 16, 17, 63, 64, 65, 1000};
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    for (int64_t epoch = 0; epoch < 3; epoch++) {
      char *seen = calloc(1, (size_t)counts[c]);
      for (int64_t i = 0; i < counts[c]; i++) {
        int64_t at = rf_shuffle(42, epoch, i, counts[c]);
        assert_in_range(at, 0, counts[c] - 1);
        assert_false(seen[at]);
        seen[at] = 1;
      }
      free(seen);
    }
  int same = 0;
  for (int64_t i = 0; i < 1000; i++) same += rf_shuffle(42, 0, i, 1000) == rf_shuffle(42, 1, i, 1000);
  assert_in_range(same, 0, 20); /* epochs differ */
}

static void text_rows_are_successors(void **state) {
  (void)state;
  char text[1001];
  for (int i = 0; i < 1000; i++) text[i] = (char)(' ' + i % 90);
  rf_model model = model_of(256);
  rf_source_options options = {
      .model = &model, .seq = 32, .pack = true, .val_fraction = 0.1, .work_folder = folder};
  rf_loader loader;
  rf_error error;
  assert_int_equal(rf_loader_open(write_file("a.txt", text, 1000), &options, 7, 4, &loader, &error),
                   RAFTER_OK);
  assert_int_equal(loader.source[0].train.count + loader.source[0].held_out.count, 31);
  int32_t tokens[128], labels[128], positions[128], segments[129];
  char seen[31] = {0};
  for (int step = 0; step < 7; step++) {
    int64_t in_rows, valid;
    rf_loader_draw(&loader, &in_rows, &valid);
    assert_int_equal(valid, 128);
    assert_int_equal(in_rows, 128);
    assert_int_equal(
        rf_loader_fill(&loader, 0, 4, (rf_token_batch){tokens, labels, positions, segments, 0}, &error),
        RAFTER_OK);
    for (int r = 0; r < 4; r++) {
      int64_t row = loader.draw[r].row;
      assert_false(seen[row]); /* 28 training rows: none occurs twice in the first epoch */
      seen[row] = 1;
      assert_int_equal(segments[r], r * 32);
      for (int i = 0; i < 32; i++) {
        assert_int_equal(tokens[r * 32 + i], text[row * 32 + i]);
        assert_int_equal(labels[r * 32 + i], text[row * 32 + i + 1]);
        assert_int_equal(positions[r * 32 + i], i);
      }
    }
    for (int i = 4; i <= 128; i++) assert_int_equal(segments[i], 128);
  }
  /* the state alone is enough to continue the order */
  rf_loader again;
  int64_t in_rows, valid;
  assert_int_equal(rf_loader_open(path, &options, 7, 4, &again, &error), RAFTER_OK);
  again.state = loader.state;
  rf_loader_draw(&loader, &in_rows, &valid);
  rf_loader_draw(&again, &in_rows, &valid);
  for (int r = 0; r < 4; r++) assert_int_equal(loader.draw[r].row, again.draw[r].row);
  rf_loader_close(&loader);
  rf_loader_close(&again);
}

static void documents_are_packed_whole(void **state) {
  (void)state;
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&text, &bytes);
  int lengths[200], total = 0;
  for (int d = 0; d < 200; d++) {
    lengths[d] = 1 + (d * 37) % 90;
    fprintf(file, "{\"tokens\":[");
    for (int i = 0; i < lengths[d]; i++) fprintf(file, "%s%d", i ? "," : "", total + i);
    total += lengths[d];
    fprintf(file, "]}\n%s", d % 10 ? "" : "\n");
  }
  fclose(file);
  rf_model model = model_of(total);
  rf_source_options options = {.model = &model, .seq = 40, .pack = true, .work_folder = folder};
  rf_source source;
  rf_error error;
  assert_int_equal(rf_source_open(write_file("docs.jsonl", text, bytes), 1, &options, &source, &error),
                   RAFTER_OK);
  free(text);
  assert_int_equal(source.documents, 200);
  assert_true(source.train.efficiency > 0.95 && source.train.efficiency <= 1);
  char *seen = calloc(1, (size_t)total);
  int32_t tokens[40], labels[40], positions[40], segments[41];
  int64_t labelled = 0;
  for (int64_t r = 0; r < source.train.count; r++) {
    int64_t valid = 0;
    rf_token_batch batch = {tokens, labels, positions, segments, 0};
    assert_int_equal(rf_source_fill(&source, &source.train, r, 0, &batch, &error), RAFTER_OK);
    int64_t count = batch.segment_count;
    for (int i = 0; i < 40; i++) {
      if (labels[i] >= 0) {
        /* ids count up through the file, so the next token is larger by one */
        assert_int_equal(labels[i], tokens[i] + 1);
        assert_false(seen[labels[i]]);
        seen[labels[i]] = 1;
        valid++;
      }
      bool starts = false;
      for (int64_t s = 0; s < count; s++) starts |= segments[s] == i;
      assert_int_equal(starts, positions[i] == 0);
    }
    assert_int_equal(valid, rf_source_valid(&source, &source.train, r));
    labelled += valid;
  }
  /* every token except the first of each document is predicted exactly once */
  assert_int_equal(labelled, total - 200);
  free(seen);
  rf_source_close(&source);
}

static void mixtures_keep_their_shares(void **state) {
  (void)state;
  char a[4097], data[600];
  memset(a, 'a', 4097);
  rf_model model = model_of(256);
  rf_source_options options = {.model = &model, .seq = 16, .work_folder = folder};
  rf_loader loader;
  rf_error error;
  write_file("m1.txt", a, 4097);
  write_file("m2.txt", a, 4097);
  snprintf(data, sizeof data, "%s/m1.txt:3,%s/m2.txt", folder, folder);
  assert_int_equal(rf_loader_open(data, &options, 1, 8, &loader, &error), RAFTER_OK);
  int64_t in_rows, valid;
  for (int i = 0; i < 50; i++) rf_loader_draw(&loader, &in_rows, &valid);
  assert_int_equal(loader.state.drawn[0], 300);
  assert_int_equal(loader.state.drawn[1], 100);
  rf_loader_close(&loader);
}

static void bad_data_is_refused(void **state) {
  (void)state;
  rf_model model = model_of(300), small = model_of(100);
  rf_source_options options = {.model = &model, .seq = 16, .pack = true, .work_folder = folder},
                    narrow = options;
  narrow.model = &small;
  static const struct {
    const char *name, *text, *says;
  } rows[] = {
      {"empty.txt", "", "no tokens"},
      {"short.txt", "abc", "too short"},
      {"bad.jsonl", "{\"text\":\"x\"}\n{oops\n", "line 2"},
      {"none.jsonl", "{\"a\":1}\n", "line 1"},
      {"range.jsonl", "{\"tokens\":[1,2,300]}\n", "token 2"},
      {"junk.shard", "not a shard", "token shard"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    rf_source source;
    rf_error error = {0};
    assert_int_equal(rf_source_open(write_file(rows[i].name, rows[i].text, strlen(rows[i].text)), 1, &options,
                                    &source, &error),
                     RAFTER_FAILED);
    if (!strstr(error.message, rows[i].says)) fail_msg("%s: %s", rows[i].name, error.message);
  }
  rf_source source;
  rf_error error = {0};
  assert_int_equal(rf_source_open("/nonexistent/x", 1, &options, &source, &error), RAFTER_FAILED);
  assert_int_equal(
      rf_source_open(write_file("t.txt", "hello hello hello hello", 23), 1, &narrow, &source, &error),
      RAFTER_INVALID);
  assert_int_equal(rf_source_open("random:seed=x", 1, &options, &source, &error), RAFTER_INVALID);
}

static void shards_survive_every_truncation(void **state) {
  (void)state;
  rf_shard_writer *writer;
  rf_error error;
  snprintf(path, sizeof path, "%s/t.shard", folder);
  assert_int_equal(rf_shard_create(path, 70000, &writer, &error), RAFTER_OK);
  int32_t ids[5] = {1, 2, 3, 69999, 5};
  for (int d = 1; d <= 5; d++) assert_int_equal(rf_shard_append(writer, ids, d, &error), RAFTER_OK);
  int32_t bad = 70000;
  assert_int_equal(rf_shard_append(writer, &bad, 1, &error), RAFTER_FAILED);
  assert_int_equal(rf_shard_finish(writer, &error), RAFTER_OK);
  rf_shard shard;
  assert_int_equal(rf_shard_open(path, &shard, &error), RAFTER_OK);
  int32_t back[15];
  assert_int_equal(rf_shard_read(&shard, 0, 15, 70000, back, &error), RAFTER_OK);
  assert_int_equal(back[13], 69999);
  assert_int_equal(rf_shard_read(&shard, 0, 15, 69999, back, &error), RAFTER_FAILED);
  int64_t start;
  assert_int_equal(rf_shard_document(&shard, 5, &start, NULL, &error), RAFTER_OK);
  assert_int_equal(start, 15);
  rf_shard_close(&shard);
  FILE *file = fopen(path, "rb");
  char all[512];
  size_t bytes = fread(all, 1, sizeof all, file);
  fclose(file);
  for (size_t n = 0; n < bytes; n++) {
    assert_int_equal(rf_shard_open(write_file("cut.shard", all, n), &shard, &error), RAFTER_FAILED);
  }
}

/* A file that another program wrote to is read again, and may have the same tokens. */
static void data_that_change_are_noticed(void **state) {
  (void)state;
  char text[1000];
  memset(text, 'a', sizeof text);
  rf_model model = model_of(256);
  rf_source_options options = {.model = &model, .seq = 32, .pack = true, .work_folder = folder};
  rf_source source;
  rf_error error;
  assert_int_equal(rf_source_open(write_file("change.txt", text, sizeof text), 1, &options, &source, &error),
                   RAFTER_OK);
  assert_int_equal(rf_source_unchanged(&source, &error), RAFTER_OK);
  struct timespec later[2] = {{.tv_sec = 2000000000}, {.tv_sec = 2000000000}};
  assert_int_equal(utimensat(AT_FDCWD, path, later, 0), 0);
  assert_int_equal(rf_source_unchanged(&source, &error), RAFTER_OK);
  text[700] = 'b';
  write_file("change.txt", text, sizeof text);
  assert_int_equal(rf_source_unchanged(&source, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "change.txt has changed"));
  text[700] = 'a';
  write_file("change.txt", text, sizeof text);
  assert_int_equal(rf_source_unchanged(&source, &error), RAFTER_OK);
  write_file("change.txt", text, sizeof text - 1);
  assert_int_equal(rf_source_unchanged(&source, &error), RAFTER_FAILED);
  rf_source_close(&source);
}

static void schedules_hit_their_corners(void **state) {
  (void)state;
  rf_schedule s = {RF_SCHEDULE_WARMUP_COSINE, 1.0, 0.1, 10, 110, 20};
  assert_true(fabs(rf_schedule_lr(&s, 1) - 0.1) < 1e-12 && fabs(rf_schedule_lr(&s, 10) - 1) < 1e-12);
  assert_true(fabs(rf_schedule_lr(&s, 60) - 0.55) < 1e-12 && fabs(rf_schedule_lr(&s, 110) - 0.1) < 1e-12 &&
              fabs(rf_schedule_lr(&s, 500) - 0.1) < 1e-12);
  s.kind = RF_SCHEDULE_WSD;
  assert_true(rf_schedule_lr(&s, 90) == 1 && fabs(rf_schedule_lr(&s, 100) - 0.55) < 1e-12 &&
              fabs(rf_schedule_lr(&s, 110) - 0.1) < 1e-12);
  s.kind = RF_SCHEDULE_WARMUP_EXPONENTIAL;
  assert_true(fabs(rf_schedule_lr(&s, 60) - sqrt(0.1)) < 1e-12);
  s.kind = RF_SCHEDULE_CONSTANT;
  assert_true(rf_schedule_lr(&s, 1) == 1 && rf_schedule_lr(&s, 1000) == 1);
}

int main(void) {
  if (!mkdtemp(folder)) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shuffle_is_a_permutation),    cmocka_unit_test(text_rows_are_successors),
      cmocka_unit_test(documents_are_packed_whole),  cmocka_unit_test(mixtures_keep_their_shares),
      cmocka_unit_test(bad_data_is_refused),         cmocka_unit_test(shards_survive_every_truncation),
      cmocka_unit_test(schedules_hit_their_corners), cmocka_unit_test(data_that_change_are_noticed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
