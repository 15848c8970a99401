/* test_stats.c - statistics of a run: percentiles next to Python's, definitions of times, goodput,
 * saturation, and the names of vLLM. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "traffic/result.h"

static const rf_traffic_percentiles USUAL = {.p = {50, 90, 95, 99}, .count = 4};

/* Values of Python 3.11: statistics.fmean, pstdev, and quantiles(n=100, method="inclusive"), which
 * is the default of numpy.percentile. */
static void percentiles_are_those_of_python(void **state) {
  (void)state;
  static const struct {
    double value[24];
    int count;
    double mean, std, p[4];
  } cases[] = {
      {{0.31, 0.02, 1.7, 0.9, 0.45, 0.46, 3.2, 0.11, 0.77, 0.08, 0.6},
       11,
       0.7818181818181817,
       0.8892470582343877,
       {0.46, 1.7, 2.45, 3.05}},
      {{2.0, 1.0}, 2, 1.5, 0.5, {1.5, 1.9, 1.95, 1.99}},
      {{5.0, 5.0, 5.0, 5.5}, 4, 5.125, 0.21650635094610965, {5.0, 5.35, 5.425, 5.485}},
      {{0.1304, 0.0545, 0.3508, 0.0251, 0.2559, 0.1517, 0.0199, 0.236,  0.0127, 0.1895, 0.0241, 0.0317,
        0.1842, 0.5845, 0.0441, 0.0842, 0.3291, 0.9836, 0.2869, 0.1684, 1.2468, 0.0159, 0.6517, 0.114},
       24,
       0.25732083333333333,
       0.3095896450399661,
       {0.16005, 0.63154, 0.9338150000000001, 1.186264}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double value[24];
    memcpy(value, cases[i].value, sizeof value);
    const rf_traffic_metric m = rf_traffic_metric_of(value, cases[i].count, &USUAL);
    /* a sum of n values has an error of at most n units in the last place */
    const double near = 24 * 0x1p-52;
    assert_int_equal(m.count, cases[i].count);
    assert_true(fabs(m.mean - cases[i].mean) <= near * cases[i].mean);
    assert_true(fabs(m.std - cases[i].std) <= 2 * near * (cases[i].std + cases[i].mean));
    assert_true(fabs(m.median - cases[i].p[0]) <= near * cases[i].p[0]);
    for (int k = 0; k < 4; k++)
      if (fabs(m.p[k] - cases[i].p[k]) > near * cases[i].p[k])
        fail_msg("case %zu, percentile %g: %.17g, not %.17g", i, USUAL.p[k], m.p[k], cases[i].p[k]);
    assert_true(m.p99 == m.p[3]);
  }
  const double one = 3;
  assert_true(rf_traffic_percentile(&one, 1, 99) == 3 && rf_traffic_percentile(&one, 0, 50) == 0);
  assert_true(rf_traffic_percentile(&one, 1, 100) == 3);
}

/* A completed request: planned, first token, gap after gap. */
static rf_traffic_record completed(double from, double first, int gaps, double gap) {
  rf_traffic_record r = {.state = RF_TRAFFIC_COMPLETED,
                         .http = 200,
                         .from = from,
                         .sent = from,
                         .first = first,
                         .end = first + gaps * gap,
                         .gaps = gaps,
                         .input_tokens = 10,
                         .output_tokens = gaps + 1,
                         .asked_input = 9,
                         .asked_output = 99};
  r.gap = calloc((size_t)gaps + 1, sizeof *r.gap);
  assert_non_null(r.gap);
  for (int i = 0; i < gaps; i++) r.gap[i] = gap;
  return r;
}

static rf_traffic_record failed(double from, double end, int http) {
  return (rf_traffic_record){.state = RF_TRAFFIC_FAILED,
                             .fault = RF_TRAFFIC_STATUS,
                             .http = http,
                             .from = from,
                             .sent = from,
                             .first = -1,
                             .end = end,
                             .input_tokens = -1,
                             .output_tokens = -1,
                             .message = strdup("busy")};
}

static rf_traffic_stats stats_of(const rf_traffic_record *record, int count, double seconds,
                                 const char *limits) {
  rf_traffic_stats s;
  rf_traffic_slo slo = {.given = false};
  rf_error error = {0};
  if (limits) assert_int_equal(rf_traffic_slo_parse(limits, &slo, &error), RAFTER_OK);
  if (rf_traffic_stats_of(record, count, false, seconds, &USUAL, &slo, &s, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  return s;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * (1 + fabs(b)); }

static void times_are_defined_as_by_vllm(void **state) {
  (void)state;
  enum { COUNT = 4 };
  rf_traffic_record *record = calloc(COUNT, sizeof *record);
  assert_non_null(record);
  record[0] = completed(0, 0.5, 4, 0.25); /* E2EL 1.5, TPOT 0.25 */
  record[1] = completed(1, 1.25, 0, 0);   /* one token: no TPOT */
  record[2] = completed(1, 2, 2, 0.5);    /* E2EL 2 */
  record[2].output_tokens = 11;           /* several tokens in an event: TPOT 1 / 10 */
  record[3] = failed(1.5, 1.75, 429);
  record[2].sent = 1.5; /* sent late: its latencies count from the planned time */
  const rf_traffic_stats s = stats_of(record, COUNT, 4, NULL);
  assert_true(s.completed == 3 && s.failed == 1 && s.cancelled == 0 && s.uncounted == 0);
  assert_true(s.input_tokens == 30 && s.output_tokens == 5 + 1 + 11);
  assert_true(near(s.metric[RF_TRAFFIC_TTFT].mean, (0.5 + 0.25 + 1) / 3));
  assert_true(near(s.metric[RF_TRAFFIC_E2EL].mean, (1.5 + 0.25 + 2) / 3));
  assert_int_equal(s.metric[RF_TRAFFIC_TPOT].count, 2);
  assert_true(near(s.metric[RF_TRAFFIC_TPOT].mean, (0.25 + 0.1) / 2));
  assert_int_equal(s.metric[RF_TRAFFIC_ITL].count, 6);
  assert_true(near(s.metric[RF_TRAFFIC_ITL].mean, (4 * 0.25 + 2 * 0.5) / 6));
  assert_true(near(s.late, 0.5 / 4) && near(s.latest_late, 0.5));
  /* requests in flight: 1.5 + 0.25 + 1.5 + 0.25 seconds of 4 */
  assert_true(near(s.running, 3.5 / 4) && near(s.batch, (1 + 0 + 1) / 4.0));
  assert_true(near(s.queue, (0.5 + 0.25 + 0.5) / 4));
  /* second 2 has two of the three events of request 2 */
  assert_true(near(s.most_tokens_per_second, 22 / 3.0));
  assert_false(s.saturated);
  json_t *json = rf_traffic_stats_json(&s, &USUAL, &(rf_traffic_slo){.given = false});
  static const char *const names[] = {"duration",
                                      "completed",
                                      "failed",
                                      "total_input_tokens",
                                      "total_output_tokens",
                                      "mean_ttft_ms",
                                      "median_ttft_ms",
                                      "std_ttft_ms",
                                      "p50_ttft_ms",
                                      "p99_ttft_ms",
                                      "mean_tpot_ms",
                                      "median_tpot_ms",
                                      "p99_tpot_ms",
                                      "mean_itl_ms",
                                      "p99_itl_ms",
                                      "mean_e2el_ms",
                                      "p99_e2el_ms",
                                      "max_concurrent_requests",
                                      "max_output_tokens_per_s"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!json_is_number(json_object_get(json, names[i]))) fail_msg("no number %s", names[i]);
  assert_true(near(rf_json_number_at(json, "request_throughput"), 3 / 4.0));
  assert_true(near(rf_json_number_at(json, "output_throughput"), 17 / 4.0));
  assert_true(near(rf_json_number_at(json, "total_token_throughput"), 47 / 4.0));
  assert_true(json_is_null(json_object_get(json, "request_goodput")));
  json_decref(json);
  rf_traffic_records_free(record, COUNT);
}

static void good_requests_meet_every_limit(void **state) {
  (void)state;
  enum { COUNT = 3 };
  rf_traffic_record *record = calloc(COUNT, sizeof *record);
  assert_non_null(record);
  record[0] = completed(0, 0.5, 4, 0.25);
  record[1] = completed(0, 0.2, 0, 0); /* one token: its TPOT counts as 0, as in vLLM */
  record[2] = failed(0, 1, 500);
  static const struct {
    const char *limits;
    int good;
  } cases[] = {{"ttft:500", 2},
               {"ttft:499", 1},
               {"ttft:500,tpot:249", 1},
               {"ttft:500 tpot:250", 2},
               {"e2el:1500", 2},
               {"e2el:1499.9", 1},
               {"itl:1", 1},
               {"ttft:1", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const rf_traffic_stats s = stats_of(record, COUNT, 2, cases[i].limits);
    if (s.good != cases[i].good) fail_msg("%s: %lld good", cases[i].limits, (long long)s.good);
  }
  rf_traffic_records_free(record, COUNT);
  static const char *const bad[] = {"ttft", "ttft:", "ttft:x", "ttft:0", "ttft:-1", "first:5", "tpot:1e999"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    rf_traffic_slo slo = {.given = false};
    rf_error error = {0};
    if (rf_traffic_slo_parse(bad[i], &slo, &error) != RAFTER_INVALID) fail_msg("%s was accepted", bad[i]);
  }
}

/* A server that keeps up, one that falls further and further back, and one that refuses. */
static void requests_pile_up(void **state) {
  (void)state;
  enum { COUNT = 100 };
  for (int kind = 0; kind < 4; kind++) {
    rf_traffic_record *record = calloc(COUNT, sizeof *record);
    assert_non_null(record);
    for (int i = 0; i < COUNT; i++) {
      record[i] = completed(i, i + (kind == 1 ? 0.2 * i : 0.5), 1, 0.1);
      if (kind == 2 && i % 10 == 0) {
        free(record[i].gap);
        record[i] = failed(i, i + 0.1, 429);
      }
      if (kind == 3 && i >= 50) { /* the test ended in between, at 50 seconds */
        free(record[i].gap);
        record[i] = (rf_traffic_record){.from = i, .sent = -1, .first = -1, .end = -1};
      }
    }
    const rf_traffic_stats s = stats_of(record, COUNT, kind == 3 ? 49.5 : 200, NULL);
    assert_int_equal(s.saturated, kind == 1 || kind == 2);
    rf_traffic_records_free(record, COUNT);
  }
}

static void failures_are_grouped(void **state) {
  (void)state;
  enum { COUNT = 6 };
  rf_traffic_record *record = calloc(COUNT, sizeof *record);
  assert_non_null(record);
  for (int i = 0; i < COUNT - 1; i++) record[i] = failed(i, i, i % 3 ? 429 : 500);
  record[COUNT - 1] = completed(0, 1, 0, 0);
  record[0].fault = RF_TRAFFIC_CLOSED;
  json_t *list = rf_traffic_faults_json(record, COUNT);
  assert_int_equal(json_array_size(list), 3);
  assert_string_equal(rf_json_text_at(json_array_get(list, 0), "kind"), "http 429");
  assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "count")), 3);
  assert_string_equal(rf_json_text_at(json_array_get(list, 0), "message"), "busy");
  json_decref(list);
  rf_traffic_records_free(record, COUNT);
}

static void the_critical_rate_is_the_highest_sustained(void **state) {
  (void)state;
  rf_traffic_row row[] = {{.rate = 1}, {.rate = 2}, {.rate = 4}, {.rate = 8}, {.rate = 16}};
  rf_traffic_results r = {.row = row, .rows = 5};
  double low, high;
  rf_traffic_critical(&r, false, &low, &high);
  assert_true(low == 16 && high == 0);
  row[3].measured.saturated = row[4].measured.saturated = true;
  rf_traffic_critical(&r, false, &low, &high);
  assert_true(low == 4 && high == 8);
  row[1].measured.saturated = true; /* a disturbance below a rate that is sustained */
  rf_traffic_critical(&r, false, &low, &high);
  assert_true(low == 4 && high == 8);
  for (int i = 0; i < 5; i++) row[i].measured.saturated = true;
  rf_traffic_critical(&r, false, &low, &high);
  assert_true(low == 0 && high == 1);
  rf_traffic_critical(&r, true, &low, &high); /* no row has a plan */
  assert_true(low == 0 && high == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(percentiles_are_those_of_python),
      cmocka_unit_test(times_are_defined_as_by_vllm),
      cmocka_unit_test(good_requests_meet_every_limit),
      cmocka_unit_test(requests_pile_up),
      cmocka_unit_test(failures_are_grouped),
      cmocka_unit_test(the_critical_rate_is_the_highest_sustained),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
