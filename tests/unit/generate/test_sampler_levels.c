/* test_sampler_levels.c - tests that sums, maxima and choices have the same bits with the vectors
 * of every instruction set, and those of slow loops that follow the definition. */
#define _GNU_SOURCE
#include "generate/sampler_rows.h"
#include "unit/generate/sampling.h"

static const rf_isa LEVELS[] = {RF_ISA_BASE, RF_ISA_AVX2, RF_ISA_AVX512};
enum { LEVEL_COUNT = sizeof LEVELS / sizeof *LEVELS, V = 3001 };

/* ---- rows ------------------------------------------------------------------------------------ */

static double slow_weigh(const rf_row *row, double *weight) {
  double total = 0;
  for (int64_t b = 0; b < rf_row_blocks(row->n); b++) {
    double sum[4] = {0};
    for (int64_t i = b * RF_ROW_BLOCK; i < (b + 1) * RF_ROW_BLOCK && i < row->n; i++)
      sum[i % 4] += rf_row_weight(row, row->logits[i]);
    weight[b] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
    total += weight[b];
  }
  return total;
}

static float slow_peak(const float *logits, int64_t n, int64_t block) {
  float top = -INFINITY;
  for (int64_t i = block * RF_ROW_BLOCK; i < (block + 1) * RF_ROW_BLOCK && i < n; i++)
    if (logits[i] > top) top = logits[i];
  return top;
}

static void check_row(const rf_row_functions *f, const float *logits, int64_t n, double scale) {
  static double weight[V], slow[V];
  static struct rf_candidate peak[V];
  const int64_t blocks = rf_row_blocks(n);
  double top = -INFINITY, t[RF_ROW_BLOCK], w[RF_ROW_BLOCK];
  f->peaks(logits, n, peak);
  for (int64_t b = 0; b < blocks; b++) {
    assert_true(peak[b].logit == slow_peak(logits, n, b));
    assert_int_equal(peak[b].id, b);
    if ((double)peak[b].logit > top) top = (double)peak[b].logit;
  }
  const rf_row row = {logits, n, top, scale};
  double total = f->weigh(&row, weight), slow_total = slow_weigh(&row, slow);
  assert_memory_equal(&total, &slow_total, sizeof total);
  assert_memory_equal(weight, slow, (size_t)blocks * sizeof *weight);
  for (int64_t b = 0; b < blocks; b++) {
    f->weights(&row, b, t, w);
    for (int64_t i = 0; i < RF_ROW_BLOCK; i++) {
      int64_t id = b * RF_ROW_BLOCK + i;
      double logit = id < n ? (double)logits[id] : -INFINITY, exponent = (logit - top) * scale,
             of = id < n ? rf_row_weight(&row, logits[id]) : 0;
      assert_memory_equal(&t[i], &exponent, sizeof exponent);
      assert_memory_equal(&w[i], &of, sizeof of);
    }
  }
}

/* Rows of all lengths up to three groups of blocks, with barred tokens and weights of any size. */
static void rows_have_the_bits_of_slow_loops(void **state) {
  (void)state;
  static float logits[V];
  static const double scales[] = {1.4426950408889634, 0.7, 40, 1e-4};
  for (int l = 0; l < LEVEL_COUNT; l++) {
    if (!rf_isa_runs(LEVELS[l])) continue;
    const rf_row_functions *f = rf_row_functions_of(LEVELS[l]);
    for (int64_t n = 1; n <= V; n = n < 200 ? n + 1 : n + 397)
      for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        random_logits(logits, n, (uint64_t)(n * 10) + s, s % 2 ? 1 : 12);
        for (int64_t i = 0; i < n; i += 7) logits[i] = s == 2 ? logits[0] : i % 2 ? -INFINITY : logits[i];
        check_row(f, logits, n, scales[s]);
      }
  }
}

/* NaN has no maximum, wherever it is in a vector. */
static void peaks_ignore_nan(void **state) {
  (void)state;
  enum { BLOCKS = 5 };
  static float logits[BLOCKS * RF_ROW_BLOCK];
  static struct rf_candidate peak[BLOCKS];
  for (int l = 0; l < LEVEL_COUNT; l++)
    for (int64_t i = 0; i < BLOCKS * RF_ROW_BLOCK && rf_isa_runs(LEVELS[l]); i++) {
      for (int64_t k = 0; k < BLOCKS * RF_ROW_BLOCK; k++) logits[k] = k == (i ^ 1) ? 3 : -2;
      logits[i] = NAN;
      rf_row_functions_of(LEVELS[l])->peaks(logits, BLOCKS * RF_ROW_BLOCK, peak);
      for (int64_t b = 0; b < BLOCKS; b++)
        assert_true(peak[b].logit == (b == i / RF_ROW_BLOCK ? 3.0f : -2.0f));
    }
}

/* ---- choices --------------------------------------------------------------------------------- */

/* A row is flat, so that buckets are used, or has few likely tokens. */
static void choices_are_equal_at_every_level(void **state) {
  (void)state;
  static const rf_sampler_options options[] = {{.temperature = 0},
                                               {.temperature = 1},
                                               {.temperature = 0.8f, .top_p = 0.9f},
                                               {.temperature = 1, .top_k = 2000, .top_p = 0.95f},
                                               {.temperature = 1.5f, .min_p = 0.02f, .seed = 3},
                                               {.temperature = 1, .repetition_penalty = 1.2f}};
  static float logits[V];
  for (size_t o = 0; o < sizeof options / sizeof *options; o++)
    for (int64_t position = 0; position < 40; position++) {
      int32_t first = -1;
      double logprob[2];
      random_logits(logits, V, (uint64_t)position, position % 2 ? 0.3f : 4);
      for (int l = 0; l < LEVEL_COUNT; l++) {
        if (!rf_isa_runs(LEVELS[l])) continue;
        rf_sampler sampler = open_or_fail(options[o], V);
        rf_sampler_work_limit(sampler.work, LEVELS[l]);
        rf_sampler_accept(&sampler, 17, NULL);
        int32_t id = sampler_next(&sampler, logits, position, &logprob[l > 0]);
        if (l == 0) first = id;
        assert_int_equal(id, first);
        assert_memory_equal(&logprob[l > 0], &logprob[0], sizeof *logprob);
        rf_sampler_close(&sampler);
      }
    }
}

static const float *sorted_by;
static int by_likelihood(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return sorted_by[x] != sorted_by[y] ? (sorted_by[x] > sorted_by[y] ? -1 : 1) : x - y;
}

/* In a large vocabulary, the largest maxima of blocks are first guessed from every 16th block. */
static void the_likeliest_of_a_large_vocabulary(void **state) {
  (void)state;
  enum { LARGE = 70001, KINDS = 6 };
  static const int32_t tops[] = {1, 7, 8, 100, 256, 1000};
  static float logits[LARGE];
  static int32_t order[LARGE];
  for (int kind = 0; kind < KINDS; kind++) {
    random_logits(logits, LARGE, (uint64_t)kind, 3);
    for (int64_t i = 0; i < LARGE; i++) {
      if (kind == 1) logits[i] = (float)i;
      if (kind == 2) logits[i] = (float)-i;
      if (kind == 3) logits[i] = 1;
      if (kind == 4 && i / RF_ROW_BLOCK % 16) logits[i] = -INFINITY; /* only guessed blocks */
      if (kind == 5 && i / RF_ROW_BLOCK % 16 == 0) logits[i] += 100;
    }
    for (int32_t i = 0; i < LARGE; i++) order[i] = i;
    sorted_by = logits;
    qsort(order, LARGE, sizeof *order, by_likelihood);
    for (size_t k = 0; k < sizeof tops / sizeof *tops; k++) {
      rf_sampler sampler = open_or_fail((rf_sampler_options){.temperature = 1, .top_k = tops[k]}, LARGE);
      next(&sampler, logits, 0);
      for (int32_t i = 0; i < tops[k]; i++) assert_int_equal(sampler.candidate[i].id, order[i]);
      rf_sampler_close(&sampler);
    }
  }
}

/* ---- estimates ------------------------------------------------------------------------------- */

/* A row with a few likely tokens; kind 1 has much weight in unlikely ones, and kind 2 some weights
 * that are tiny, zero or barred. */
static void fill_peaked(float *logits, int64_t n, int kind, uint64_t seed) {
  random_logits(logits, n, seed, kind == 1 ? 0.1f : 2.5f);
  for (int64_t i = 0; i < n; i++) {
    if (kind == 1) logits[i] -= i % 5000 ? 9.5f : 0;
    if (kind == 2 && i % 3 == 0) logits[i] = i % 2 ? -INFINITY : -70 - (float)(i % 997);
  }
}

enum { LARGE_V = 70001, LARGE_BLOCKS = (LARGE_V + RF_ROW_BLOCK - 1) / RF_ROW_BLOCK, PEAKED = 3 };

static void estimates_are_within_their_bound(void **state) {
  (void)state;
  static float logits[LARGE_V];
  static double weight[LARGE_BLOCKS], slow[LARGE_BLOCKS];
  static struct rf_candidate peak[LARGE_BLOCKS], room[LARGE_BLOCKS];
  for (int l = 0; l < LEVEL_COUNT; l++)
    for (int kind = 0; kind < PEAKED && rf_isa_runs(LEVELS[l]); kind++) {
      const rf_row_functions *f = rf_row_functions_of(LEVELS[l]);
      fill_peaked(logits, LARGE_V, kind, 5);
      f->peaks(logits, LARGE_V, peak);
      rf_row row = {logits, LARGE_V, -INFINITY, 1.4426950408889634};
      for (int64_t b = 0; b < LARGE_BLOCKS; b++) row.top = fmax(row.top, (double)peak[b].logit);
      slow_weigh(&row, slow);
      double low = f->guess(&row, peak, -12, weight, room), sum = 0;
      for (int64_t b = 0; b < LARGE_BLOCKS; b++) {
        bool exact = ((double)peak[b].logit - row.top) * row.scale >= -12;
        if (exact) assert_true(weight[b] == slow[b]);
        else assert_true(fabs(weight[b] - slow[b]) <= RF_ROW_ERROR * slow[b] + 0x1p-121);
        sum += exact ? 0 : weight[b];
      }
      assert_true(fabs(low - sum) <= 1e-9 * sum);
    }
}

/* The definition of a draw from all tokens. */
static int32_t slow_draw(const rf_row *row, double uniform) {
  static double weight[LARGE_BLOCKS];
  double target = uniform * slow_weigh(row, weight), run = 0;
  int64_t b = 0, chosen = 0;
  while (b + 1 < LARGE_BLOCKS && run + weight[b] <= target) run += weight[b++];
  for (int64_t i = b * RF_ROW_BLOCK; i < row->n && i < (b + 1) * RF_ROW_BLOCK; i++) {
    double w = rf_row_weight(row, row->logits[i]);
    run += w;
    if (w > 0) chosen = i;
    if (w > 0 && target < run) break;
  }
  return (int32_t)chosen;
}

/* The definition of a draw with top-p. `order` has all tokens, most likely first. */
static int32_t slow_top_p(const rf_row *row, const int32_t *order, double top_p, double uniform) {
  static double weight[LARGE_BLOCKS];
  double need = top_p * slow_weigh(row, weight), kept = 0, run = 0;
  int64_t n = 0;
  while (n < row->n && (n == 0 || kept < need)) kept += rf_row_weight(row, row->logits[order[n++]]);
  for (int64_t i = 0; i < n; i++) {
    run += rf_row_weight(row, row->logits[order[i]]);
    if (uniform * kept < run) return order[i];
  }
  return order[n - 1];
}

static void estimates_change_no_draw(void **state) {
  (void)state;
  static float logits[LARGE_V];
  static int32_t order[LARGE_V];
  const float lse = 1, top_p = 0.5f;
  for (int kind = 0; kind < PEAKED; kind++) {
    rf_sampler all = open_or_fail((rf_sampler_options){.temperature = 1}, LARGE_V),
               some = open_or_fail((rf_sampler_options){.temperature = 1, .top_p = top_p}, LARGE_V);
    fill_peaked(logits, LARGE_V, kind, 11);
    for (int32_t i = 0; i < LARGE_V; i++) order[i] = i;
    sorted_by = logits;
    qsort(order, LARGE_V, sizeof *order, by_likelihood);
    const rf_row row = {logits, LARGE_V, (double)logits[order[0]], 1.4426950408889634};
    for (int64_t position = 0; position < 200; position++) {
      double uniform = rf_sampler_uniform(0, position);
      int32_t id;
      rf_logprobs none = {.lse = &lse};
      assert_int_equal(rf_sampler_choose(&all, logits, position, &id, &none, NULL), RAFTER_OK);
      assert_int_equal(id, slow_draw(&row, uniform));
      assert_int_equal(rf_sampler_choose(&some, logits, position, &id, &none, NULL), RAFTER_OK);
      assert_int_equal(id, slow_top_p(&row, order, (double)top_p, uniform));
    }
    rf_sampler_close(&all);
    rf_sampler_close(&some);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_have_the_bits_of_slow_loops),
      cmocka_unit_test(peaks_ignore_nan),
      cmocka_unit_test(choices_are_equal_at_every_level),
      cmocka_unit_test(the_likeliest_of_a_large_vocabulary),
      cmocka_unit_test(estimates_are_within_their_bound),
      cmocka_unit_test(estimates_change_no_draw),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
