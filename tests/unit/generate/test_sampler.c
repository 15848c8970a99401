/* Sampling: which tokens a request leaves, how often each is drawn, and that a draw depends on its seed and position alone. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "generate/sampler.h"

enum { MOST = 4096, DRAWS = 20000 };

static rf_sampler open_or_fail(rf_sampler_options options, int64_t vocab) {
  rf_sampler sampler;
  rf_error error;
  if (rf_sampler_open(&options, vocab, &sampler, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return sampler;
}

static int32_t next(rf_sampler *sampler, const float *logits, int64_t position) {
  double logprob;
  return rf_sampler_next(sampler, logits, position, &logprob);
}

/* ---- an independent reading of the definition ------------------------------------------------------------------------ */

typedef struct entry {
  long double p;
  int32_t id;
} entry;

static int likelier(const void *a, const void *b) {
  const entry *x = a, *y = b;
  return x->p != y->p ? (x->p > y->p ? -1 : 1) : x->id - y->id;
}

/* Probability of every token under the request: temperature, then the k likeliest, then the smallest set that reaches top_p of what is left,
 * then those at least min_p times as likely as the likeliest; all anew to a sum of one. */
static void expected(rf_sampler_options o, const float *logits, int64_t vocab, double *p) {
  static entry e[MOST];
  long double top = -INFINITY, total = 0, reached = 0, kept = 0;
  for (int64_t i = 0; i < vocab; i++)
    if ((long double)logits[i] > top) top = (long double)logits[i];
  for (int64_t i = 0; i < vocab; i++) e[i] = (entry){expl(((long double)logits[i] - top) / (long double)o.temperature), (int32_t)i}, p[i] = 0;
  qsort(e, (size_t)vocab, sizeof *e, likelier);
  int64_t n = o.top_k > 0 && o.top_k < vocab ? o.top_k : vocab, m = 0;
  for (int64_t i = 0; i < n; i++) total += e[i].p;
  while (m < n && (m == 0 || reached < (long double)o.top_p * total)) reached += e[m++].p;
  while (m > 1 && e[m - 1].p < (long double)o.min_p * e[0].p) m--;
  for (int64_t i = 0; i < m; i++) kept += e[i].p;
  for (int64_t i = 0; i < m; i++) p[e[i].id] = (double)(e[i].p / kept);
}

static void count_draws(rf_sampler_options options, const float *logits, int64_t vocab, int64_t draws, int64_t *seen) {
  rf_sampler sampler = open_or_fail(options, vocab);
  memset(seen, 0, (size_t)vocab * sizeof *seen);
  for (int64_t position = 0; position < draws; position++) {
    int32_t id = next(&sampler, logits, position);
    assert_true(id >= 0 && id < vocab);
    seen[id]++;
  }
  rf_sampler_close(&sampler);
}

/* How far the counts lie from their expectation: (chi^2 - degrees) / sqrt(2 degrees), near a standard normal. INFINITY for a draw of what has
 * no probability. Tokens that are expected fewer than ten times count together. */
static double surprise(const int64_t *seen, const double *p, int64_t vocab, int64_t draws) {
  double chi = 0, rare = 0, rare_seen = 0;
  int64_t cells = 0;
  for (int64_t i = 0; i < vocab; i++) {
    double want = p[i] * (double)draws;
    if (!(p[i] > 0) && seen[i]) return INFINITY;
    if (want < 10) rare += want, rare_seen += (double)seen[i];
    else chi += ((double)seen[i] - want) * ((double)seen[i] - want) / want, cells++;
  }
  if (rare >= 1) chi += (rare_seen - rare) * (rare_seen - rare) / rare, cells++;
  return cells < 2 ? 0 : (chi - (double)(cells - 1)) / sqrt(2 * (double)(cells - 1));
}

/* Six deviations of a fixed seed: chance would cross it once in a hundred thousand seeds, a wrong distribution at once. */
static const double SURPRISE_BOUND = 6;

static void random_logits(float *logits, int64_t vocab, uint64_t seed, float spread) {
  for (int64_t i = 0; i < vocab; i += 2) {
    uint32_t words[4];
    float pair[2];
    rf_philox(rf_key(seed, 77, 0), (uint64_t)i, 0, words);
    rf_normal_pair(words[0], words[1], pair);
    logits[i] = spread * pair[0];
    if (i + 1 < vocab) logits[i + 1] = spread * pair[1];
  }
}

/* ---- the tests -------------------------------------------------------------------------------------------------------- */

static void greedy_takes_the_likeliest(void **state) {
  (void)state;
  static float logits[MOST];
  for (uint64_t seed = 0; seed < 20; seed++) {
    int64_t vocab = 1 + (int64_t)(seed * 211), best = 0;
    random_logits(logits, vocab, seed, 3);
    for (int64_t i = 1; i < vocab; i++) best = logits[i] > logits[best] ? i : best;
    /* temperature 0 asks no filter and no seed */
    rf_sampler sampler = open_or_fail((rf_sampler_options){.temperature = 0, .top_k = 5, .top_p = 0.5f, .min_p = 0.1f, .seed = seed}, vocab);
    for (int64_t position = 0; position < 5; position++) assert_int_equal(next(&sampler, logits, position), best);
    rf_sampler_close(&sampler);
    sampler = open_or_fail((rf_sampler_options){.temperature = 1, .top_k = 1, .top_p = 1, .seed = seed}, vocab);
    for (int64_t position = 0; position < 5; position++) assert_int_equal(next(&sampler, logits, position), best);
    rf_sampler_close(&sampler);
    sampler = open_or_fail((rf_sampler_options){.temperature = 1, .top_p = 0, .seed = seed}, vocab);
    for (int64_t position = 0; position < 5; position++) assert_int_equal(next(&sampler, logits, position), best);
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
  count_draws((rf_sampler_options){.temperature = 1, .top_p = 0.5f}, logits, 6, 400, seen); /* each of the three has 0.31 */
  assert_true(seen[1] > 100 && seen[3] > 100 && seen[1] + seen[3] == 400);
}

/* Probabilities 1/2, 1/4, 1/8, 1/8 in no order of ids, worked out by hand. */
static void filters_leave_these_sets(void **state) {
  (void)state;
  const float logits[] = {-1000, logf(0.125f), logf(0.5f), logf(0.125f), -INFINITY, logf(0.25f)};
  enum { A = 1 << 2, B = 1 << 5, C = 1 << 1, D = 1 << 3 }; /* likeliest first; C and D tie */
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
      {1, 2, 0.6f, 0, A},     /* of the two left, the first has 2/3 */
      {1, 3, 0.8f, 0, A | B}, /* of the three left: 4/7, 2/7, 1/7 */
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
    for (int id = 0; id < 6; id++) drawn |= (seen[id] > 0) << id, oracle |= (p[id] > 1e-9) << id;
    if (drawn != cases[i].set || oracle != cases[i].set)
      fail_msg("case %zu: drew the set %x, the definition gives %x, by hand %x (k %d, p %g, min %g, temperature %g)", i, drawn, oracle, cases[i].set,
               o.top_k, (double)o.top_p, (double)o.min_p, (double)o.temperature);
  }
}

/* The choice of the k likeliest, on every k and on orders that trap a quickselect. */
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
      if (shape == 4) logits[i] = (float)(i < V / 2 ? i : V - i); /* up and down */
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
    /* planted: another temperature, ids shifted by one, a uniform draw of the same set */
    rf_sampler_options warmer = requests[i];
    warmer.temperature *= 1.15f;
    expected(warmer, logits, V, other);
    for (int id = 0; id < V; id++) shifted[(id + 1) % V] = seen[id];
    double warmer_off = surprise(seen, other, V, DRAWS), shifted_off = surprise(shifted, p, V, DRAWS);
    int64_t members = 0;
    for (int id = 0; id < V; id++) members += p[id] > 0;
    for (int id = 0; id < V; id++) other[id] = p[id] > 0 ? 1 / (double)members : 0;
    double flat_off = surprise(seen, other, V, DRAWS);
    print_message("request %zu: %.2f deviations; against a warmer softmax %.0f, shifted %.0f, flat %.0f\n", i, off, warmer_off, shifted_off,
                  flat_off);
    assert_true(off <= SURPRISE_BOUND);
    assert_true(warmer_off > SURPRISE_BOUND && shifted_off > SURPRISE_BOUND && flat_off > SURPRISE_BOUND);
  }
}

/* Neighbouring positions and neighbouring seeds draw independently: pairs fall into four cells as the product says. */
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
        rf_sampler sampler = open_or_fail((rf_sampler_options){.temperature = 1, .top_p = 1, .seed = (uint64_t)(along_seeds ? 2 * i + k : 0)}, 3);
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
  for (int64_t i = N - 1; i >= 0; i--) assert_int_equal(next(&sampler, logits, i), first[i]); /* whatever was drawn before */
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
      int32_t id = rf_sampler_next(&sampler, logits, position, &logprob);
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
    rf_sampler sampler = open_or_fail((rf_sampler_options){.temperature = (float)t, .top_k = 1, .top_p = 0.5f, .min_p = 0.5f}, 1);
    assert_int_equal(rf_sampler_next(&sampler, one, 0, &logprob), 0);
    assert_true(logprob == 0);
    rf_sampler_close(&sampler);
  }
  int64_t seen[4];
  count_draws((rf_sampler_options){.temperature = 1, .top_p = 1}, large, 4, 400, seen);
  assert_true(seen[0] > 100 && seen[2] > 100 && seen[0] + seen[2] == 400);
  count_draws((rf_sampler_options){.temperature = 1, .top_p = 1}, barred, 4, 400, seen);
  assert_true(seen[1] > 100 && seen[3] > 100 && seen[1] + seen[3] == 400);
  count_draws((rf_sampler_options){.temperature = 1e-6f, .top_p = 1}, (const float[]){1, 1.001f, 0.9f, 1}, 4, 400, seen); /* nearly greedy */
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
