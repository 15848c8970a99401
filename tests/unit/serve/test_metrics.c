/* Metrics as Prometheus reads them: names, labels, and buckets that add up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "serve/metrics.h"

static rf_metrics metrics;

static bool has(const rf_body *out, const char *line) {
  const char *at = strstr(out->at, line);
  return at && (at == out->at || at[-1] == '\n') && at[strlen(line)] == '\n';
}

static void test_text(void **state) {
  const rafter_counts counts = {.kv_bytes = 200,
                                .kv_used_bytes = 50,
                                .passes = 4,
                                .prompt_tokens = 30,
                                .reused_tokens = 10,
                                .seconds = 4,
                                .predicted_seconds = 3,
                                .limit_seconds = 2};
  rf_body out = {0};
  (void)state;
  rf_metrics_observe(&metrics, RF_HISTOGRAM_FIRST, 0.001); /* a bound belongs to its bucket */
  rf_metrics_observe(&metrics, RF_HISTOGRAM_FIRST, 0.07);
  rf_metrics_observe(&metrics, RF_HISTOGRAM_FIRST, 1e9);
  metrics.finished[RAFTER_FINISH_LENGTH] = 2;
  metrics.code[429] = 7;
  rf_metrics_text(&metrics, &counts, 3, 5, "vllm", "a\"b", &out);
  assert_true(has(&out, "# TYPE vllm:num_requests_running gauge"));
  assert_true(has(&out, "vllm:num_requests_running{model_name=\"a\\\"b\"} 3"));
  assert_true(has(&out, "vllm:num_requests_waiting{model_name=\"a\\\"b\"} 5"));
  assert_true(has(&out, "vllm:kv_cache_usage_perc{model_name=\"a\\\"b\"} 0.25"));
  assert_true(has(&out, "vllm:prefix_cache_hits_total{model_name=\"a\\\"b\"} 10"));
  assert_true(has(&out, "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.001\"} 1"));
  assert_true(has(&out, "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.06\"} 1"));
  assert_true(has(&out, "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.08\"} 2"));
  assert_true(has(&out, "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"640\"} 2"));
  assert_true(has(&out, "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 3"));
  assert_true(has(&out, "vllm:time_to_first_token_seconds_count{model_name=\"a\\\"b\"} 3"));
  assert_true(has(&out, "vllm:request_success_total{model_name=\"a\\\"b\",finished_reason=\"length\"} 2"));
  assert_true(has(&out, "vllm:http_requests_total{model_name=\"a\\\"b\",code=\"429\"} 7"));
  assert_true(has(&out, "vllm:step_predicted_seconds_total{model_name=\"a\\\"b\"} 3"));
  assert_true(has(&out, "vllm:step_limit_fraction{model_name=\"a\\\"b\"} 0.5"));
  rf_body_free(&out);
}

/* Any value finds a bucket of every histogram. */
static void test_buckets(void **state) {
  const double values[] = {-1, 0, 1e-9, 0.5, 3, 77, 1e6, 1e300};
  (void)state;
  memset(&metrics, 0, sizeof metrics);
  for (int kind = 0; kind < RF_HISTOGRAMS; kind++)
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
      rf_metrics_observe(&metrics, (rf_histogram_kind)kind, values[i]);
  for (int kind = 0; kind < RF_HISTOGRAMS; kind++) {
    int64_t sum = 0;
    for (int i = 0; i < RF_METRIC_BUCKETS; i++) sum += metrics.histogram[kind].count[i];
    assert_int_equal(sum, sizeof values / sizeof *values);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_buckets)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
