/* test_samples.c - files of reinforcement learning: samples.jsonl and metrics.jsonl. Right values
 * are kept, wrong ones are counted, and a file of any size gives a model of bounded size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "report/metrics.h"
#include "report/samples.h"
#include "report/thin.h"
#include "support/scratch.h"

static const char *const GOOD =
    "{\"step\":1,\"id\":\"a\",\"prompt\":\"2 + 2?\",\"answer\":\"4\",\"samples\":[{\"text\":\"4\","
    "\"finish_reason\":\"stop\",\"reward\":1.5,\"advantage\":0.25,\"rewards\":{\"exact\":1,\"tags\":0.5},"
    "\"tokens\":[52,2],\"pieces\":[\"4\",\"\"],\"logprobs\":[-0.123456,-1e-7],\"kl\":[0.5,null]}]}\n";

static const char *file_of(const char *text) {
  FILE *file = fopen(at("samples.jsonl"), "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
  return at("samples.jsonl");
}

static json_t *read_file(const char *path) {
  rf_error error = {0};
  json_t *samples = NULL;
  assert_int_equal(rf_report_read_samples(path, &samples, &error), RAFTER_OK);
  return samples;
}

static json_t *read_text(const char *text) { return read_file(file_of(text)); }

static json_int_t count(const json_t *object, const char *key) {
  return json_integer_value(json_object_get(object, key));
}

static const json_t *sample_at(const json_t *samples, size_t step, size_t group, size_t i) {
  const json_t *groups = json_object_get(json_array_get(json_object_get(samples, "steps"), step), "groups");
  return json_array_get(json_object_get(json_array_get(groups, group), "samples"), i);
}

static void values_are_kept(void **state) {
  (void)state;
  json_t *samples = read_text(GOOD);
  json_t *wanted =
      json_pack("{ss ss sf sf s{si sf} s[s s] s[i i] s[f f] s[f n]}", "text", "4", "finish_reason", "stop",
                "reward", 1.5, "advantage", 0.25, "rewards", "exact", 1, "tags", 0.5, "pieces", "4", "",
                "tokens", 52, 2, "logprobs", -0.1235, -1e-7, "kl", 0.5);
  assert_true(json_equal(sample_at(samples, 0, 0, 0), wanted));
  assert_int_equal(count(samples, "skipped_lines") + count(samples, "skipped_samples") +
                       count(samples, "skipped_values"),
                   0);
  assert_int_equal(count(samples, "all_steps"), 1);
  json_decref(wanted);
  json_decref(samples);
}

/* Each text has the counts of skipped lines, samples and values. */
static void wrong_parts_are_counted(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int lines, samples, values;
  } cases[] = {
      {"nonsense\n", 1, 0, 0},
      {"[1]\n\n7\n", 2, 0, 0},
      {"{\"step\":1,\"samples\":[{\"text\":\"a\",\"reward\":NaN}]}\n", 1, 0, 0},
      {"{\"step\":1,\"samples\":[{\"text\":\"a\",\"reward\":1e999}]}\n", 1, 0, 0},
      {"{\"step\":1,\"step\":2,\"samples\":[{\"text\":\"a\"}]}\n", 1, 0, 0},
      {"{\"step\":\"1\",\"samples\":[{\"text\":\"a\"}]}\n", 1, 0, 0},
      {"{\"step\":1,\"samples\":{}}\n", 1, 0, 0},
      {"{\"step\":1,\"samples\":[]}\n", 1, 0, 0},
      {"{\"step\":1,\"samples\":[3]}\n", 1, 1, 0},
      {"{\"step\":1,\"samples\":[3,{\"text\":4},{\"text\":\"a\"}]}\n", 0, 2, 0},
      {"{\"step\":1,\"id\":7,\"samples\":[{\"text\":\"a\",\"reward\":\"x\",\"advantage\":null}]}\n", 0, 0, 2},
      {"{\"step\":1,\"samples\":[{\"text\":\"a\",\"rewards\":[1]}]}\n", 0, 0, 1},
      {"{\"step\":1,\"samples\":[{\"text\":\"a\",\"rewards\":{\"x\":1,\"y\":\"z\",\"n\":null}}]}\n", 0, 0, 1},
      {"{\"step\":1,\"samples\":[{\"text\":\"a\",\"pieces\":[\"a\"],\"logprobs\":[-1,-2]}]}\n", 0, 0, 1},
      {"{\"step\":1,\"samples\":[{\"text\":\"a\",\"pieces\":[\"a\",3],\"logprobs\":[-1,\"b\"]}]}\n", 0, 0, 2},
      {"{\"step\":1,\"samples\":[{\"text\":\"a\",\"tokens\":[1]}]}\n", 0, 0, 1},
      {"{\"step\":1,\"samples\":[{\"text\":\"a\"}]}\n{\"step\":2,\"samples\":[{\"te", 1, 0, 0},
      {"", 0, 0, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    json_t *samples = read_text(cases[i].text);
    assert_int_equal(count(samples, "skipped_lines"), cases[i].lines);
    assert_int_equal(count(samples, "skipped_samples"), cases[i].samples);
    assert_int_equal(count(samples, "skipped_values"), cases[i].values);
    json_decref(samples);
  }
  rf_error error = {0};
  json_t *none = NULL;
  assert_int_equal(rf_report_read_samples(at("missing"), &none, &error), RAFTER_FAILED);
  assert_null(none);
}

/* Writes a file with one group of `samples` texts of `bytes` letters for each step. Each tenth step
 * has an evaluation. */
static const char *long_file(int steps, int samples, int bytes) {
  FILE *file = fopen(at("long.jsonl"), "w");
  assert_non_null(file);
  for (int step = 1; step <= steps; step++)
    for (int eval = 0; eval <= (step % 10 == 0); eval++) {
      fprintf(file, "{\"step\":%d,\"eval\":%s,\"samples\":[", step, eval ? "true" : "false");
      for (int i = 0; i < samples; i++) fprintf(file, "%s{\"text\":\"%0*d\"}", i ? "," : "", bytes, i);
      fputs("]}\n", file);
    }
  fclose(file);
  return at("long.jsonl");
}

static json_int_t step_at(const json_t *steps, size_t i) { return count(json_array_get(steps, i), "step"); }

/* Steps are kept at equal distances, with the first and the last. */
static void check_spread(const json_t *steps, int first, int last, int even) {
  size_t n = json_array_size(steps);
  assert_true(n >= 3);
  assert_int_equal(step_at(steps, 0), first);
  assert_int_equal(step_at(steps, n - 1), last);
  json_int_t low = 1 << 30, high = 0;
  for (size_t i = 1; i + 1 < n; i++) {
    json_int_t gap = step_at(steps, i) - step_at(steps, i - 1);
    low = gap < low ? gap : low;
    high = gap > high ? gap : high;
  }
  assert_true(low > 0 && high - low <= even);
}

static size_t bytes_of(const json_t *json) {
  char *text = rf_json_text(json, 0);
  size_t bytes = strlen(text);
  free(text);
  return bytes;
}

static void long_files_are_thinned(void **state) {
  (void)state;
  json_t *samples = read_file(long_file(401, 8, 8000)), *thin;
  const json_t *steps = json_object_get(samples, "steps"), *tests = json_object_get(samples, "evaluations");
  assert_int_equal(count(samples, "all_steps"), 401);
  assert_int_equal(count(samples, "all_evaluations"), 40);
  assert_in_range(json_array_size(steps), 100, 300);
  check_spread(steps, 1, 401, 0);
  check_spread(tests, 10, 400, 0);
  assert_true(bytes_of(samples) <= RF_SAMPLES_MODEL);
  for (size_t bytes = RF_SAMPLES_PAGE; bytes > 1 << 20; bytes /= 2) {
    thin = rf_report_thin_samples(samples, bytes);
    steps = json_object_get(thin, "steps");
    assert_true(bytes_of(thin) <= bytes + 1000 && bytes_of(steps) > bytes / 2);
    check_spread(steps, 1, 401, 4);
    assert_int_equal(count(thin, "all_steps"), 401);
    json_decref(thin);
  }
  thin = rf_report_thin_samples(samples, 1);
  assert_int_equal(json_array_size(json_object_get(thin, "steps")), 2);
  json_decref(thin);
  json_decref(samples);
  samples = read_file(long_file(30, 2, 10)); /* a short file is whole */
  thin = rf_report_thin_samples(samples, RF_SAMPLES_PAGE);
  assert_int_equal(json_array_size(json_object_get(samples, "steps")), 30);
  assert_true(json_equal(samples, thin));
  json_decref(thin);
  json_decref(samples);
}

/* One step cannot be larger than its limit, and says what it lacks. */
static void large_steps_are_cut(void **state) {
  (void)state;
  FILE *file = fopen(at("large.jsonl"), "w");
  assert_non_null(file);
  for (int group = 0; group < 70; group++) {
    fputs("{\"step\":5,\"prompt\":\"p\",\"samples\":[", file);
    for (int i = 0; i < 66; i++) {
      fprintf(file, "%s{\"text\":\"x\",\"pieces\":[", i ? "," : "");
      for (int k = 0; k < 100; k++) fprintf(file, "%s\"<<<<<<\"", k ? "," : "");
      fputs("]}", file);
    }
    fputs("]}\n", file);
  }
  fputs("{\"step\":6,\"samples\":[{\"text\":\"", file);
  for (int i = 0; i < RF_SAMPLES_TEXT; i++) fputs("\xc3\xa9", file);
  fputs("\",\"pieces\":[", file);
  for (int i = 0; i < 5000; i++) fprintf(file, "%s\"b\"", i ? "," : "");
  fputs("]}]}\n", file);
  fclose(file);
  json_t *samples = read_file(at("large.jsonl"));
  const json_t *step = json_array_get(json_object_get(samples, "steps"), 0),
               *groups = json_object_get(step, "groups");
  assert_true(bytes_of(step) < RF_SAMPLES_STEP);
  assert_int_equal(json_array_size(groups) + (size_t)count(step, "left_out"), 70);
  assert_int_equal(json_array_size(json_object_get(json_array_get(groups, 0), "samples")), RF_SAMPLES_COUNT);
  assert_int_equal(count(json_array_get(groups, 0), "left_out"), 66 - RF_SAMPLES_COUNT);
  assert_null(json_object_get(sample_at(samples, 0, 0, 0), "cut"));
  const json_t *cut = sample_at(samples, 1, 0, 0);
  assert_true(json_is_true(json_object_get(cut, "cut")));
  assert_int_equal(json_string_length(json_object_get(cut, "text")), RF_SAMPLES_TEXT);
  assert_int_equal(json_array_size(json_object_get(cut, "pieces")), RF_SAMPLES_TOKENS);
  json_decref(samples);
}

static json_t *metrics_of(const char *text, rf_status wanted) {
  rf_error error = {0};
  json_t *entry = json_object();
  assert_int_equal(rf_report_read_metrics(file_of(text), entry, &error), wanted);
  if (wanted != RAFTER_OK) assert_true(strlen(error.message) > 10);
  return entry;
}

static void metrics_with_rewards_skip_and_count(void **state) {
  (void)state;
  json_t *entry = metrics_of("{\"arena_bytes\":1}\n"
                             "{\"step\":1,\"reward\":NaN}\n"
                             "{\"step\":2,\"reward\":0.5,\"rewards\":{\"a\":0.5,\"b\":\"x\",\"c\":null}}\n"
                             "{\"step\":3,\"reward\":\"high\",\"kl\":null,\"list\":[1]}\n"
                             "no json \"reward\"\n"
                             "{\"step\":4,\"rew",
                             RAFTER_OK);
  json_t *wanted =
      json_pack("[{si sf s{sf}} {si}]", "step", 2, "reward", 0.5, "rewards", "a", 0.5, "step", 3);
  assert_true(json_equal(json_object_get(entry, "metrics"), wanted));
  assert_int_equal(count(entry, "metrics_skipped"), 5);
  assert_int_equal(count(json_object_get(entry, "start"), "arena_bytes"), 1);
  json_decref(wanted);
  json_decref(entry);
  /* An evaluation before the first step. */
  json_decref(metrics_of("{\"step\":0,\"eval_reward\":0.5,\"eval_rewards\":{\"a\":0.5}}\n", RAFTER_OK));
  json_decref(metrics_of("{\"step\":1,\"loss\":\"low\"}\n", RAFTER_FAILED));
  json_decref(metrics_of("{\"step\":1,\"loss\":{\"a\":1}}\n", RAFTER_FAILED));
  json_decref(metrics_of("{\"step\":1,\"loss\":NaN}\n", RAFTER_FAILED));
  json_decref(metrics_of("{\"step\":\"one\"}\n{\"a\":1}\n{\"step\":\"two\"}\n", RAFTER_FAILED));
}

/* Ranges of steps have means of rewards and of their components, and the extremes. */
static void metrics_with_rewards_are_thinned(void **state) {
  (void)state;
  json_t *rows = json_array(), *entry = json_pack("{so}", "metrics", rows);
  for (int i = 0; i < 4000; i++)
    json_array_append_new(rows, json_pack("{si sf sf sf sf s{sf}}", "step", i + 1, "reward", (double)(i % 4),
                                          "reward_min", (double)-i, "ratio_max", (double)i, "cut_fraction",
                                          0.25 * (i % 4), "rewards", "exact", 2.0 * (i % 4)));
  json_object_set_new(json_array_get(rows, 2), "eval_reward", json_real(0.75));
  json_t *thin = rf_report_thin(entry);
  const json_t *first = json_array_get(json_object_get(thin, "metrics"), 0);
  json_t *wanted =
      json_pack("{si sf sf sf sf s{sf} sf si s{sf} s{sf}}", "step", 4, "reward", 1.5, "reward_min", -3.0,
                "ratio_max", 3.0, "cut_fraction", 0.375, "rewards", "exact", 3.0, "eval_reward", 0.75,
                "steps", 4, "least", "reward", 0.0, "most", "reward", 3.0);
  assert_int_equal(json_array_size(json_object_get(thin, "metrics")), RF_THIN_TO);
  assert_true(json_equal(first, wanted));
  json_decref(wanted);
  json_decref(thin);
  json_decref(entry);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_are_kept),
      cmocka_unit_test(wrong_parts_are_counted),
      cmocka_unit_test(long_files_are_thinned),
      cmocka_unit_test(large_steps_are_cut),
      cmocka_unit_test(metrics_with_rewards_skip_and_count),
      cmocka_unit_test(metrics_with_rewards_are_thinned),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
