/* test_sampler.c - tests draws: which tokens a request keeps, how often each is drawn, and that a draw
 * depends only on its seed and its position. */
#define _GNU_SOURCE
#include "unit/generate/sampling.h"

/* ---- the tests ------------------------------------------------------------------------------- */

static void greedy_takes_the_likeliest(void **state) {
  (void)state;
  static float logits[MAX];
  for (uint64_t seed = 0; seed < 20; seed++) {
    int64_t vocab = 1 + (int64_t)(seed * 211), best = 0;
    random_logits(logits, vocab, seed, 3);
    for (int64_t i = 1; i < vocab; i++) best = logits[i] > logits[best] ? i : best;
    /* Temperature 0 needs neither filter nor seed. */
    rf_sampler sampler = open_or_fail(
        (rf_sampler_options){.temperature = 0, .top_k = 5, .top_p = 0.5f, .min_p = 0.1f, .seed = seed},
        vocab);
    for (int64_t position = 0; position < 5; position++)
      assert_int_equal(next(&sampler, logits, position), best);
    rf_sampler_close(&sampler);
    sampler =
        open_or_fail((rf_sampler_options){.temperature = 1, .top_k = 1, .top_p = 1, .seed = seed}, vocab);
    for (int64_t position = 0; position < 5; position++)
      assert_int_equal(next(&sampler, logits, position), best);
    rf_sampler_close(&sampler);
    sampler = open_or_fail((rf_sampler_options){.temperature = 1, .top_p = FLT_MIN, .seed = seed}, vocab);
    for (int64_t position = 0; position < 5; position++)
      assert_int_equal(next(&sampler, logits, position), best);
    rf_sampler_close(&sampler);
  }
}

static void ties_go_to_the_lower_id(void **state) {
  (void)state;
  const float logits[] = {1, 4, 2, 4, 4, -1};
  rf_sampler greedy = open_or_fail((rf_sampler_options){.temperature = 0, .top_p = 1}, 6);
  assert_int_equal(next(&greedy, logits, 0), 1);
  rf_sampler_close(&greedy);
  int64_t seen[6];
  count_draws((rf_sampler_options){.temperature = 1, .top_k = 2, .top_p = 1}, logits, 6, 400, seen);
  assert_true(seen[1] > 100 && seen[3] > 100 && seen[1] + seen[3] == 400);
  /* Each of the three has 0.31. */
  count_draws((rf_sampler_options){.temperature = 1, .top_p = 0.5f}, logits, 6, 400, seen);
  assert_true(seen[1] > 100 && seen[3] > 100 && seen[1] + seen[3] == 400);
}

/* Probabilities 1/2, 1/4, 1/8 and 1/8, not in the order of ids. The expected sets were computed by
 * hand. */
static void filters_leave_these_sets(void **state) {
  (void)state;
  const float logits[] = {-1000, logf(0.125f), logf(0.5f), logf(0.125f), -INFINITY, logf(0.25f)};
  enum { A = 1 << 2, B = 1 << 5, C = 1 << 1, D = 1 << 3 }; /* likeliest first; C and D are equal */
  static const struct {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
    int set;
  } cases[] = {
      {1, 0, 1, 0, A | B | C | D},
      {1, 1, 1, 0, A},
      {1, 2, 1, 0, A | B},
      {1, 3, 1, 0, A | B | C},
      {1, 4, 1, 0, A | B | C | D},
      {1, 99, 1, 0, A | B | C | D},
      {1, 0, 0.4f, 0, A},
      {1, 0, 0.6f, 0, A | B},
      {1, 0, 0.8f, 0, A | B | C},
      {1, 0, 0.9f, 0, A | B | C | D},
      {1, 0, 1, 0.2f, A | B | C | D},
      {1, 0, 1, 0.3f, A | B},
      {1, 0, 1, 0.6f, A},
      {1, 0, 1, 1, A},
      {1, 0, 0.6f, 0.9f, A},
      {1, 2, 0.6f, 0, A},     /* of the two remaining, the first has 2/3 */
      {1, 3, 0.8f, 0, A | B}, /* of the three remaining: 4/7, 2/7, 1/7 */
      {1, 3, 0.9f, 0.3f, A | B},
      {2, 0, 0.6f, 0, A | B}, /* at temperature 2: 0.369, 0.261, 0.185, 0.185 */
      {2, 0, 0.65f, 0, A | B | C},
      {2, 0, 1, 0.6f, A | B},
      {2, 0, 1, 0.45f, A | B | C | D},
      {0.5f, 0, 0.75f, 0, A | B}, /* at temperature 1/2: 0.727, 0.182, 0.045, 0.045 */
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rf_sampler_options o = {cases[i].temperature, cases[i].top_k, cases[i].top_p, cases[i].min_p, .seed = 5};
    int64_t seen[6];
    double p[6];
    count_draws(o, logits, 6, 2000, seen);
    expected(o, logits, 6, p);
    int drawn = 0, oracle = 0;
    for (int id = 0; id < 6; id++) {
      drawn |= (seen[id] > 0) << id;
      oracle |= (p[id] > 1e-9) << id;
    }
    if (drawn != cases[i].set || oracle != cases[i].set)
      fail_msg("case %zu: drew the set %x, the definition gives %x, by hand %x (k %d, p %g, min %g, "
               "temperature %g)",
               i, drawn, oracle, cases[i].set, o.top_k, (double)o.top_p, (double)o.min_p,
               (double)o.temperature);
  }
}

/* Tests the choice of the k likeliest for every k, with orders that are difficult for
 * quickselect. */
static void top_k_is_a_sorted_prefix(void **state) {
  (void)state;
  enum { V = 97 };
  for (int shape = 0; shape < 7; shape++) {
    float logits[V];
    entry want[V];
    random_logits(logits, V, (uint64_t)shape, 2);
    for (int i = 0; i < V; i++) {
      if (shape == 1) logits[i] = (float)i;
      if (shape == 2) logits[i] = (float)-i;
      if (shape == 3) logits[i] = 1;
      if (shape == 4) logits[i] = (float)(i < V / 2 ? i : V - i); /* ascending, then descending */
      if (shape == 5) logits[i] = (float)(i % 3);
      if (shape == 6) logits[i] = i % 5 ? -INFINITY : logits[i];
      want[i] = (entry){(long double)logits[i], i};
    }
    qsort(want, V, sizeof *want, likelier);
    for (int32_t k = 1; k < V; k++) {
      rf_sampler sampler = open_or_fail((rf_sampler_options){.temperature = 1, .top_k = k, .top_p = 1}, V);
      next(&sampler, logits, k);
      for (int32_t i = 0; i < k; i++) assert_int_equal(sampler.candidate[i].id, want[i].id);
      rf_sampler_close(&sampler);
    }
  }
}

static void frequencies_follow_the_softmax(void **state) {
  (void)state;
  static const rf_sampler_options requests[] = {
      {.temperature = 1, .top_p = 1, .seed = 1},
      {.temperature = 0.7f, .top_p = 1, .seed = 2},
      {.temperature = 2, .top_p = 1, .seed = 3},
      {.temperature = 1, .top_k = 12, .top_p = 1, .seed = 4},
      {.temperature = 1, .top_p = 0.8f, .seed = 5},
      {.temperature = 1, .top_p = 1, .min_p = 0.05f, .seed = 6},
      {.temperature = 0.9f, .top_k = 30, .top_p = 0.9f, .min_p = 0.02f, .seed = 7},
  };
  enum { V = 60 };
  float logits[V];
  random_logits(logits, V, 9, 1.5f);
  for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
    int64_t seen[V], shifted[V];
    double p[V], other[V];
    count_draws(requests[i], logits, V, DRAWS, seen);
    expected(requests[i], logits, V, p);
    double off = surprise(seen, p, V, DRAWS);
    /* Planted faults: another temperature, ids shifted by one, a uniform draw of the same set. */
    rf_sampler_options warmer = requests[i];
    warmer.temperature *= 1.15f;
    expected(warmer, logits, V, other);
    for (int id = 0; id < V; id++) shifted[(id + 1) % V] = seen[id];
    double warmer_off = surprise(seen, other, V, DRAWS), shifted_off = surprise(shifted, p, V, DRAWS);
    int64_t members = 0;
    for (int id = 0; id < V; id++) members += p[id] > 0;
    for (int id = 0; id < V; id++) other[id] = p[id] > 0 ? 1 / (double)members : 0;
    double flat_off = surprise(seen, other, V, DRAWS);
    print_message("request %zu: %.2f deviations; against a warmer softmax %.0f, shifted %.0f, flat %.0f\n", i,
                  off, warmer_off, shifted_off, flat_off);
    assert_true(off <= SURPRISE_BOUND);
    assert_true(warmer_off > SURPRISE_BOUND && shifted_off > SURPRISE_BOUND && flat_off > SURPRISE_BOUND);
  }
}

/* Neighbouring positions and neighbouring seeds draw independently: the counts of pairs in four
 * cells follow the product. */
static void draws_are_independent(void **state) {
  (void)state;
  const float logits[] = {0, 1, 0.5f};
  for (int along_seeds = 0; along_seeds < 2; along_seeds++) {
    int64_t seen[9] = {0};
    double p[3], pairs[9];
    expected((rf_sampler_options){.temperature = 1, .top_p = 1}, logits, 3, p);
    for (int i = 0; i < 9; i++) pairs[i] = p[i / 3] * p[i % 3];
    for (int64_t i = 0; i < DRAWS; i++) {
      int32_t id[2];
      for (int k = 0; k < 2; k++) {
        rf_sampler sampler = open_or_fail(
            (rf_sampler_options){
                .temperature = 1, .top_p = 1, .seed = (uint64_t)(along_seeds ? 2 * i + k : 0)},
            3);
        id[k] = next(&sampler, logits, along_seeds ? 0 : 2 * i + k);
        rf_sampler_close(&sampler);
      }
      seen[id[0] * 3 + id[1]]++;
    }
    assert_true(surprise(seen, pairs, 9, DRAWS) <= SURPRISE_BOUND);
  }
}

static void a_draw_depends_on_seed_and_position_alone(void **state) {
  (void)state;
  enum { V = 200, N = 300 };
  float logits[V];
  random_logits(logits, V, 3, 1);
  rf_sampler_options o = {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .seed = 42};
  int32_t first[N];
  rf_sampler sampler = open_or_fail(o, V);
  for (int64_t i = 0; i < N; i++) first[i] = next(&sampler, logits, i);
  /* The result does not depend on earlier draws. */
  for (int64_t i = N - 1; i >= 0; i--) assert_int_equal(next(&sampler, logits, i), first[i]);
  rf_sampler_close(&sampler);
  o.seed = 43;
  int same = 0;
  sampler = open_or_fail(o, V);
  for (int64_t i = 0; i < N; i++) same += next(&sampler, logits, i) == first[i];
  rf_sampler_close(&sampler);
  assert_in_range(same, 0, N / 4);
}

static void logprob_is_the_plain_softmax(void **state) {
  (void)state;
  enum { V = 500 };
  float logits[V];
  random_logits(logits, V, 8, 4);
  static const rf_sampler_options requests[] = {{.temperature = 0, .top_p = 1},
                                                {.temperature = 1, .top_p = 1},
                                                {.temperature = 0.3f, .top_k = 7, .top_p = 1},
                                                {.temperature = 1.7f, .top_p = 0.5f, .min_p = 0.1f}};
  for (size_t r = 0; r < sizeof requests / sizeof *requests; r++) {
    rf_sampler sampler = open_or_fail(requests[r], V);
    for (int64_t position = 0; position < 50; position++) {
      double logprob;
      int32_t id = sampler_next(&sampler, logits, position, &logprob);
      long double sum = 0;
      for (int i = 0; i < V; i++) sum += expl((long double)logits[i] - (long double)logits[id]);
      assert_true(fabs(logprob + (double)logl(sum)) < 1e-12);
    }
    rf_sampler_close(&sampler);
  }
}

static void edges(void **state) {
  (void)state;
  double logprob;
  const float one[] = {-3.5f}, large[] = {3e38f, -3e38f, 3e38f, 0}, barred[] = {-INFINITY, 2, -INFINITY, 2};
  for (int t = 0; t < 2; t++) {
    rf_sampler sampler = open_or_fail(
        (rf_sampler_options){.temperature = (float)t, .top_k = 1, .top_p = 0.5f, .min_p = 0.5f}, 1);
    assert_int_equal(sampler_next(&sampler, one, 0, &logprob), 0);
    assert_true(logprob == 0);
    rf_sampler_close(&sampler);
  }
  int64_t seen[4];
  count_draws((rf_sampler_options){.temperature = 1, .top_p = 1}, large, 4, 400, seen);
  assert_true(seen[0] > 100 && seen[2] > 100 && seen[0] + seen[2] == 400);
  count_draws((rf_sampler_options){.temperature = 1, .top_p = 1}, barred, 4, 400, seen);
  assert_true(seen[1] > 100 && seen[3] > 100 && seen[1] + seen[3] == 400);
  /* nearly greedy */
  count_draws((rf_sampler_options){.temperature = 1e-6f, .top_p = 1}, (const float[]){1, 1.001f, 0.9f, 1}, 4,
              400, seen);
  assert_int_equal(seen[1], 400);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(greedy_takes_the_likeliest),
      cmocka_unit_test(ties_go_to_the_lower_id),
      cmocka_unit_test(filters_leave_these_sets),
      cmocka_unit_test(top_k_is_a_sorted_prefix),
      cmocka_unit_test(frequencies_follow_the_softmax),
      cmocka_unit_test(draws_are_independent),
      cmocka_unit_test(a_draw_depends_on_seed_and_position_alone),
      cmocka_unit_test(logprob_is_the_plain_softmax),
      cmocka_unit_test(edges),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
