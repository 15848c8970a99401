/* test_simulate.c - the simulation makes the same passes for the same requests as the generator.
 * Its clock, percentiles and limits are tested too. */
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
#include "generate/pace.h"
#include "generate/simulate.h"

static rf_machine machine;

static rf_infer_settings settings_of(const char *model, int64_t slots, int64_t context) {
  rf_infer_settings s = {.seed = 6};
  rf_error error = {0};
  if (rf_model_resolve(model, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){
      .build = {.job = RF_JOB_GENERATE, .softmax = RF_F32, .microbatch = slots, .seq = context, .chunk = 16},
      .backend = &RF_BACKEND_CPU,
      .isa = rf_isa_detect(),
      .threads = 1,
      .machine = &machine};
  return s;
}

static const char TINY[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=203,seq=96,init=flax";
static const char WINDOWED[] =
    "gemma3:layers=6,width=32,heads=4,kv_heads=2,head_dim=16,ff=64,vocab=203,seq=4096,window=24,init=flax";

/* Runs requests that all arrive at once through a real generator. Their answers end by length. */
static rf_generate_counts run_for_real(const rf_infer_settings *settings, const rf_arrival *list,
                                       int64_t count) {
  rf_generator *g = NULL;
  rf_error error = {0};
  int32_t tokens[96];
  if (rf_generator_open(settings, &g, &error) != RAFTER_OK) fail_msg("%s", error.message);
  for (int64_t i = 0; i < count; i++) {
    for (int64_t t = 0; t < list[i].prompt; t++)
      tokens[t] =
          (int32_t)(rf_key(t < list[i].shared ? 0 : (uint64_t)i + 1, (uint64_t)t, rf_name_key("prompt")) %
                    203);
    rf_request request = {.tokens = tokens,
                          .count = list[i].prompt,
                          .max_tokens = list[i].answer,
                          .samples = list[i].samples,
                          .keep = list[i].shared > 0,
                          .sampler = {.top_p = 1}};
    assert_int_equal(rf_generator_submit(g, &request, NULL, &error), RAFTER_OK);
  }
  while (rf_generator_busy(g)) {
    const rf_event *event;
    int events;
    if (rf_generator_step(g, &event, &events, &error) != RAFTER_OK) fail_msg("%s", error.message);
  }
  rf_generate_counts counts = rf_generator_counts(g);
  rf_generator_close(g);
  return counts;
}

static void it_runs_what_the_generator_runs(void **state) {
  (void)state;
  enum { REQUESTS = 12 };
  for (int windowed = 0; windowed < 2; windowed++)
    for (int samples = 1; samples < 6; samples += 4) {
      rf_infer_settings s = settings_of(windowed ? WINDOWED : TINY, 4, 96);
      s.plan.build.sequences = samples > 1 ? 2 : 8;
      s.step_growth = samples > 1 ? 1 : 0;
      rf_arrival list[REQUESTS];
      for (int i = 0; i < REQUESTS; i++)
        list[i] = (rf_arrival){
            .prompt = 20 + 5 * i, .answer = 3 + i % 7, .shared = i % 3 ? 18 : 0, .samples = samples};
      rf_generate_counts real = run_for_real(&s, list, REQUESTS);
      rf_serve_stats served;
      rf_error error = {0};
      if (rf_simulate(&s, list, REQUESTS, NULL, NULL, &served, &error) != RAFTER_OK)
        fail_msg("%s", error.message);
      assert_memory_equal(&served.counts, &real, sizeof real);
      assert_true(real.reused > 0 && real.tokens > 0);
    }
}

/* Slots without an answer change nothing: a plan that fits many slots is as good as one with a slot
 * for each request. */
static void free_slots_change_nothing(void **state) {
  (void)state;
  enum { REQUESTS = 40, FEW = 64, MANY = 4000 };
  for (int samples = 1; samples <= 3; samples += 2) {
    rf_arrival list[REQUESTS];
    rf_serve_stats served[2];
    for (int i = 0; i < REQUESTS; i++)
      list[i] = (rf_arrival){.at = 1e-5 * i,
                             .prompt = 20 + i,
                             .answer = 3 + i % 17,
                             .shared = i % 3 ? 18 : 0,
                             .samples = samples};
    for (int many = 0; many < 2; many++) {
      rf_infer_settings s = settings_of(TINY, many ? MANY : FEW, 96);
      rf_error error = {0};
      s.plan.build.sequences = 3 * FEW; /* both have the same cache and the same rows of a pass */
      s.plan.build.chunk = MANY;
      if (rf_simulate(&s, list, REQUESTS, NULL, NULL, &served[many], &error) != RAFTER_OK)
        fail_msg("%s", error.message);
    }
    assert_memory_equal(&served[0].counts, &served[1].counts, sizeof served[0].counts);
  }
}

/* A single request takes the time of its chunks and of one pass per further token, as the plans
 * predict. */
static void one_request_takes_what_its_passes_take(void **state) {
  (void)state;
  rf_infer_settings s = settings_of(TINY, 2, 96);
  rf_arrival one = {.at = 5, .prompt = 40, .answer = 4, .samples = 1};
  rf_serve_stats served;
  rf_error error = {0};
  rf_plan *prefill, *decode;
  assert_int_equal(rf_generate_plans(&s, &prefill, &decode, &error), RAFTER_OK);
  double expected = 0, first;
  for (int64_t at = 0; at < 40; at += 16)
    expected += rf_plan_pass_seconds(
        prefill, &(rf_extent){at + 16 > 40 ? 40 - at : 16, at + 16 > 40 ? 40 : at + 16}, 1);
  first = expected;
  for (int64_t t = 41; t < 44; t++) expected += rf_plan_pass_seconds(decode, &(rf_extent){1, t}, 1);
  assert_int_equal(rf_simulate(&s, &one, 1, NULL, NULL, &served, &error), RAFTER_OK);
  assert_true(fabs(served.seconds - expected) <= 1e-12 * expected &&
              fabs(served.busy_seconds - expected) <= 1e-12 * expected);
  for (int p = 0; p < RF_PERCENTILES; p++) {
    assert_true(fabs(served.ttft[p] - first) < 1e-9 * first &&
                fabs(served.latency[p] - expected) < 1e-9 * expected);
    assert_true(fabs(served.tpot[p] - (expected - first) / 3) < 1e-9 * expected);
  }
  assert_int_equal(served.counts.tokens, 4);
  assert_false(served.saturated);
  rf_plan_free(prefill);
  rf_plan_free(decode);
}

/* Each token takes the time of its choice, if the machine has measured it. */
static void choosing_takes_time(void **state) {
  (void)state;
  static const rf_sampler_options GREEDY = {.temperature = 0};
  static rf_machine measured;
  rf_infer_settings s = settings_of(TINY, 2, 96);
  rf_arrival one = {.prompt = 10, .answer = 5, .samples = 1};
  rf_serve_stats plain, chosen;
  rf_error error = {0};
  measured = machine;
  s.plan.machine = &measured;
  assert_int_equal(rf_simulate(&s, &one, 1, NULL, NULL, &plain, &error), RAFTER_OK);
  rf_calibrate_add(&measured, "sample", "likeliest", 203, 203e3, 1);
  assert_int_equal(rf_simulate(&s, &one, 1, NULL, NULL, &chosen, &error), RAFTER_OK);
  assert_true(fabs(chosen.seconds - plain.seconds) <= 1e-12 * plain.seconds);
  s.choice = &GREEDY;
  assert_int_equal(rf_simulate(&s, &one, 1, NULL, NULL, &chosen, &error), RAFTER_OK);
  const double each = rf_pace_seconds(&measured, &GREEDY, 203, 1);
  assert_true(each > 0 && fabs(chosen.seconds - plain.seconds - 5 * each) <= 1e-9 * chosen.seconds);
}

static double served_rate(const rf_infer_settings *s, double rate, rf_serve_stats *served) {
  enum { REQUESTS = 300 };
  static rf_arrival list[REQUESTS];
  rf_error error = {0};
  rf_arrivals_poisson((rf_arrival){.prompt = 32, .answer = 16, .samples = 1}, rate, 7, list, REQUESTS);
  if (rf_simulate(s, list, REQUESTS, NULL, NULL, served, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return served->tokens_per_second;
}

/* Far below the machine's capacity, answers arrive at the rate of the requests. Far above it, they
 * arrive at the machine's own rate. In between, waiting times grow. */
static void it_saturates(void **state) {
  (void)state;
  rf_infer_settings s = settings_of(TINY, 4, 96);
  rf_serve_stats alone, slow, fast, faster;
  served_rate(&s, 0.001, &alone);
  /* requests per second, if four at once took no longer than one */
  double capacity = 4 / alone.latency[RF_P50];
  served_rate(&s, 0.05 * capacity, &slow);
  served_rate(&s, 10 * capacity, &fast);
  served_rate(&s, 20 * capacity, &faster);
  assert_true(!alone.saturated && !slow.saturated && fast.saturated && faster.saturated);
  assert_true(fabs(slow.tokens_per_second / (16 * slow.arrivals_per_second) - 1) < 0.05);
  /* At the machine's own rate, only the arrivals differ. */
  assert_true(fabs(faster.tokens_per_second / fast.tokens_per_second - 1) < 0.05);
  assert_true(fast.ttft[RF_P50] > 10 * slow.ttft[RF_P50] && fast.slots_used > 3 &&
              fast.counts.most_parts == 4 && slow.slots_used < 2);
  for (int p = 1; p < RF_PERCENTILES; p++)
    assert_true(slow.ttft[p] >= slow.ttft[p - 1] && fast.tpot[p] >= fast.tpot[p - 1]);
}

static void arrivals_are_a_poisson_process(void **state) {
  (void)state;
  enum { COUNT = 20000 };
  rf_arrival *list = calloc(COUNT, sizeof *list);
  assert_non_null(list);
  rf_arrivals_poisson((rf_arrival){.prompt = 1, .answer = 1}, 8, 1, list, COUNT);
  double sum = 0, squares = 0;
  for (int i = 1; i < COUNT; i++) {
    double gap = list[i].at - list[i - 1].at;
    assert_true(gap >= 0);
    sum += gap;
    squares += gap * gap;
  }
  /* The exponential's mean and standard deviation are both 1/8; five standard errors of each are
   * allowed (the deviation's is sqrt(2/n) of it). */
  double n = COUNT - 1, mean = sum / n, deviation = sqrt(squares / n - mean * mean);
  assert_true(fabs(mean * 8 - 1) < 5 / sqrt(n) && fabs(deviation * 8 - 1) < 5 * sqrt(2 / n));
  free(list);
}

/* With a cache from another machine, the tokens are the same, and prompts take no time on the
 * decoding machine. */
static void prefill_and_decoding_apart(void **state) {
  (void)state;
  rf_infer_settings s = settings_of(TINY, 4, 96);
  rf_arrival list[40];
  rf_serve_stats apart, instant, together;
  rf_error error = {0};
  rf_arrivals_poisson((rf_arrival){.prompt = 64, .answer = 8, .samples = 1}, 50, 3, list, 40);
  assert_int_equal(rf_simulate(&s, list, 40, NULL, NULL, &together, &error), RAFTER_OK);
  assert_int_equal(rf_simulate_apart(&s, &s, 1e18, list, 40, &instant, &error), RAFTER_OK);
  assert_int_equal(rf_simulate_apart(&s, &s, 1e6, list, 40, &apart, &error), RAFTER_OK);
  assert_int_equal(apart.counts.tokens, together.counts.tokens);
  assert_int_equal(instant.counts.tokens, together.counts.tokens);
  double transfer = 64 * 2 * 2 * 48 * 4 / 1e6; /* tokens, layers, keys and values, width, bytes */
  assert_true(fabs(apart.transfer_seconds - transfer) < 1e-12 &&
              fabs(instant.transfer_bytes - transfer * 1e6) < 1e-6);
  assert_true(apart.saturated && !instant.saturated); /* The link carries 20 of the 50 requests per second. */
  assert_true(apart.seconds > 40 * transfer);
  /* No prompt delays a decoding pass. */
  assert_true(instant.tpot[RF_P99] <= together.tpot[RF_P99] * (1 + 1e-9));
  assert_int_equal(rf_simulate_apart(&s, &s, 0, list, 40, &apart, &error), RAFTER_INVALID);
}

/* A single request: the passes of its prompt, its cache on the link, then a step per further token.
 * The cache of windowed layers has only the tokens in the window. */
static void a_cache_takes_its_time_on_the_link(void **state) {
  (void)state;
  for (int windowed = 0; windowed < 2; windowed++) {
    rf_infer_settings s = settings_of(windowed ? WINDOWED : TINY, 2, 96);
    rf_arrival one = {.at = 5, .prompt = 40, .answer = 4, .samples = 1};
    rf_serve_stats served;
    rf_error error = {0};
    rf_plan *prefill, *decode;
    assert_int_equal(rf_generate_plans(&s, &prefill, &decode, &error), RAFTER_OK);
    double first = 0, rest = 0, bytes = windowed ? (5 * 24 + 40) * 2 * 2 * 16 * 4.0 : 40 * 2 * 2 * 48 * 4.0;
    for (int64_t at = 0; at < 40; at += 16)
      first += rf_plan_pass_seconds(
          prefill, &(rf_extent){at + 16 > 40 ? 40 - at : 16, at + 16 > 40 ? 40 : at + 16}, 1);
    for (int64_t t = 41; t < 44; t++) rest += rf_plan_pass_seconds(decode, &(rf_extent){1, t}, 1);
    first += bytes / 1e5;
    assert_int_equal(rf_simulate_apart(&s, &s, 1e5, &one, 1, &served, &error), RAFTER_OK);
    assert_true(fabs(served.transfer_bytes - bytes) < 1e-6 &&
                fabs(served.transfer_seconds - bytes / 1e5) < 1e-12);
    assert_true(fabs(served.ttft[RF_P50] - first) < 1e-9 && fabs(served.tpot[RF_P50] - rest / 3) < 1e-9);
    assert_true(fabs(served.latency[RF_P99] - first - rest) < 1e-9 &&
                fabs(served.seconds - first - rest) < 1e-9 && served.counts.tokens == 4);
    one.answer = 1; /* The request is done when its first token has come. */
    assert_int_equal(rf_simulate_apart(&s, &s, 1e5, &one, 1, &served, &error), RAFTER_OK);
    assert_true(fabs(served.latency[RF_P50] - first) < 1e-9 && served.counts.tokens == 1);
    rf_plan_free(prefill);
    rf_plan_free(decode);
  }
}

static void traces_are_read_and_bad_ones_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *fault;
  } bad[] = {{"", "no arrivals"},
             {"{\"at\": -1}\n", "line 1"},
             {"{\"at\": 1}\nnonsense\n", "line 2"},
             {"{\"at\": 1, \"prompt\": 0}\n", "prompt"},
             {"{\"at\": 1, \"answer\": 1e9}\n", "answer"},
             {"[1]\n", "line 1"}};
  rf_arrival *list = NULL;
  int64_t count = 0;
  rf_error error = {0};
  const char path[] = "/tmp/rafter-test-arrivals.jsonl";
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(rf_file_write(path, bad[i].text, strlen(bad[i].text), &error), RAFTER_OK);
    assert_int_not_equal(
        rf_arrivals_read(path, (rf_arrival){.prompt = 5, .answer = 6, .samples = 1}, &list, &count, &error),
        RAFTER_OK);
    if (!strstr(error.message, bad[i].fault)) fail_msg("%s", error.message);
  }
  static const char good[] = "{\"at\": 2.5}\n\n{\"at\": 1, \"prompt\": 9, \"answer\": 3, \"shared\": 20}\n";
  assert_int_equal(rf_file_write(path, good, strlen(good), &error), RAFTER_OK);
  assert_int_equal(
      rf_arrivals_read(path, (rf_arrival){.prompt = 5, .answer = 6, .samples = 1}, &list, &count, &error),
      RAFTER_OK);
  assert_true(count == 2 && list[0].at == 1 && list[0].prompt == 9 && list[0].shared == 9 &&
              list[0].answer == 3 && list[1].at == 2.5 && list[1].prompt == 5);
  free(list);
  remove(path);
}

/* The CSV of the Azure traces: times count from the first arrival, across midnight too. */
static void azure_traces_are_read(void **state) {
  (void)state;
  static const char good[] = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                             "2023-11-16 23:59:59.5000000,374,44\r\n2023-11-17 00:00:01.2500000,396,109\r\n"
                             "2023-11-17 00:00:00.000000+00:00,7,1\n";
  static const char *const bad[] = {
      "2023-11-16 23:59:59.5,374", "yesterday,1,2",
      "2023-11-16 23:59:59,0,5",   "2023-11-16 23:59:59,5,-1",
      "2023-11-16 23:59:59,5,6,7", "2023-11-16 23:59:59,5,99999999999999999999"};
  char path[] = "/tmp/azure-XXXXXX", text[200];
  rf_error error = {0};
  rf_arrival *list = NULL;
  int64_t count = 0;
  int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  assert_int_equal(rf_file_write(path, good, strlen(good), &error), RAFTER_OK);
  if (rf_arrivals_read(path, (rf_arrival){.samples = 1}, &list, &count, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  assert_int_equal(count, 3);
  assert_true(fabs(list[0].at) < 1e-6 && fabs(list[1].at - 0.5) < 1e-6 && fabs(list[2].at - 1.75) < 1e-6);
  assert_true(list[0].prompt == 374 && list[0].answer == 44 && list[1].prompt == 7 && list[2].samples == 1);
  free(list);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    snprintf(text, sizeof text, "TIMESTAMP,ContextTokens,GeneratedTokens\n%s\n", bad[i]);
    assert_int_equal(rf_file_write(path, text, strlen(text), &error), RAFTER_OK);
    assert_int_equal(rf_arrivals_read(path, (rf_arrival){.samples = 1}, &list, &count, &error),
                     RAFTER_INVALID);
    if (!strstr(error.message, "line 2")) fail_msg("%s: %s", bad[i], error.message);
  }
  remove(path);
}

/* All requests of the Azure trace wait at the start, with max_tokens 512 or the true length. Tokens
 * of running answers fill 68 % of the cache or more, although no answer may ever lack a page. */
static void running_answers_fill_the_cache(void **state) {
  (void)state;
  enum { TRACE = 2500 };
  rf_arrival *list = NULL;
  int64_t count = 0;
  rf_error error = {0};
  rf_serve_stats served;
  const char *path = RF_SHARED_DATA "/traces/AzureLLMInferenceTrace_conv.csv";
  if (access(path, R_OK)) skip();
  assert_int_equal(rf_arrivals_read(path, (rf_arrival){.samples = 1}, &list, &count, &error), RAFTER_OK);
  assert_true(count > TRACE);
  for (int i = 0; i < TRACE; i++) {
    list[i].at = 0;
    list[i].limit = 512;
  }
  for (int64_t sequences = 2; sequences <= 4; sequences++) { /* of 16k tokens */
    rf_infer_settings s = settings_of("llama3.2-1b", 32 * sequences, 16384);
    s.plan.build.sequences = sequences;
    s.plan.build.chunk = 512;
    if (rf_simulate(&s, list, TRACE, NULL, NULL, &served, &error) != RAFTER_OK) fail_msg("%s", error.message);
    print_message("%d k tokens: %.3f filled, %.1f answers at once\n", (int)sequences * 16, served.kv_live,
                  served.slots_used);
    assert_true(served.kv_live >= 0.68 && served.kv_live < 1);
    assert_int_equal(served.counts.answers, TRACE);
  }
  free(list);
}

/* In a closed loop, no more requests run than there are clients, and each request is sent when
 * another one has ended. One client is served as fast as a request alone. */
static void a_closed_loop_waits_for_answers(void **state) {
  (void)state;
  enum { REQUESTS = 20 };
  rf_infer_settings s = settings_of(TINY, 8, 96);
  rf_arrival list[REQUESTS];
  double sent[REQUESTS], first[REQUESTS], last[REQUESTS];
  const rf_served_times times = {sent, first, last};
  rf_serve_stats served, alone;
  rf_error error = {0};
  for (int i = 0; i < REQUESTS; i++) list[i] = (rf_arrival){.prompt = 24, .answer = 3 + i % 5, .samples = 1};
  assert_int_equal(rf_simulate(&s, list, 1, NULL, NULL, &alone, &error), RAFTER_OK);
  for (int clients = 1; clients <= 4; clients += 3) {
    assert_int_equal(rf_simulate_closed(&s, clients, list, REQUESTS, &times, &served, &error), RAFTER_OK);
    assert_false(served.saturated);
    for (int i = 0; i < REQUESTS; i++) {
      int running = 0, ends = 0;
      for (int k = 0; k < REQUESTS; k++) running += sent[k] <= sent[i] && last[k] > sent[i];
      for (int k = 0; k < i; k++) ends += last[k] == sent[i];
      assert_true(running <= clients && sent[i] < first[i] && first[i] < last[i]);
      assert_true(i < clients ? sent[i] == 0 : ends > 0);
    }
    if (clients == 1) assert_true(fabs(served.ttft[RF_P50] - alone.ttft[RF_P50]) < 1e-9 * alone.seconds);
  }
  assert_int_equal(rf_simulate_closed(&s, 0, list, REQUESTS, &times, &served, &error), RAFTER_INVALID);
}

static int find_machine(void **state) {
  (void)state;
  return rf_machine_find("a5000", &machine, NULL) == RAFTER_OK ? 0 : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_runs_what_the_generator_runs),
      cmocka_unit_test(free_slots_change_nothing),
      cmocka_unit_test(one_request_takes_what_its_passes_take),
      cmocka_unit_test(choosing_takes_time),
      cmocka_unit_test(it_saturates),
      cmocka_unit_test(arrivals_are_a_poisson_process),
      cmocka_unit_test(prefill_and_decoding_apart),
      cmocka_unit_test(a_cache_takes_its_time_on_the_link),
      cmocka_unit_test(traces_are_read_and_bad_ones_refused),
      cmocka_unit_test(azure_traces_are_read),
      cmocka_unit_test(a_closed_loop_waits_for_answers),
      cmocka_unit_test(running_answers_fill_the_cache),
  };
  return cmocka_run_group_tests(tests, find_machine, NULL);
}
