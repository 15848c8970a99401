/* sampling.h - helpers that the tests of the sampler share: draws, and their distribution by an
 * independent reading of its definition. */
#ifndef TEST_GENERATE_SAMPLING_H
#define TEST_GENERATE_SAMPLING_H

#include "generate/sampler.h"
#include "support/sampler.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 4096, DRAWS = 20000, LARGE_DRAWS = 8000 };

static inline rf_sampler open_or_fail(rf_sampler_options options, int64_t vocab) {
  rf_sampler sampler;
  rf_error error;
  if (rf_sampler_open(&options, vocab, &sampler, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return sampler;
}

static inline int32_t next(rf_sampler *sampler, const float *logits, int64_t position) {
  double logprob;
  return sampler_next(sampler, logits, position, &logprob);
}

/* ---- an independent reading of the definition ------------------------------------------------ */

typedef struct entry {
  long double p;
  int32_t id;
} entry;

static inline int likelier(const void *a, const void *b) {
  const entry *x = a, *y = b;
  return x->p != y->p ? (x->p > y->p ? -1 : 1) : x->id - y->id;
}

/* Probability of every token under the request: temperature, then the k likeliest, then the
 * smallest set that reaches top_p of the rest, then the tokens at least min_p times as likely as
 * the likeliest. The result is normalised to a sum of one. */
static inline void expected(rf_sampler_options o, const float *logits, int64_t vocab, double *p) {
  static entry e[MAX];
  long double top = -INFINITY, total = 0, reached = 0, kept = 0;
  for (int64_t i = 0; i < vocab; i++)
    if ((long double)logits[i] > top) top = (long double)logits[i];
  for (int64_t i = 0; i < vocab; i++) {
    e[i] = (entry){expl(((long double)logits[i] - top) / (long double)o.temperature), (int32_t)i};
    p[i] = 0;
  }
  qsort(e, (size_t)vocab, sizeof *e, likelier);
  int64_t n = o.top_k > 0 && o.top_k < vocab ? o.top_k : vocab, m = 0;
  for (int64_t i = 0; i < n; i++) total += e[i].p;
  while (m < n && (m == 0 || reached < (long double)o.top_p * total)) reached += e[m++].p;
  while (m > 1 && e[m - 1].p < (long double)o.min_p * e[0].p) m--;
  for (int64_t i = 0; i < m; i++) kept += e[i].p;
  for (int64_t i = 0; i < m; i++) p[e[i].id] = (double)(e[i].p / kept);
}

static inline void count_draws(rf_sampler_options options, const float *logits, int64_t vocab, int64_t draws,
                               int64_t *seen) {
  rf_sampler sampler = open_or_fail(options, vocab);
  memset(seen, 0, (size_t)vocab * sizeof *seen);
  for (int64_t position = 0; position < draws; position++) {
    int32_t id = next(&sampler, logits, position);
    assert_true(id >= 0 && id < vocab);
    seen[id]++;
  }
  rf_sampler_close(&sampler);
}

/* Distance of the counts from their expectation: (chi^2 - degrees) / sqrt(2 degrees), approximately
 * a standard normal. INFINITY if a token without probability was drawn. Tokens with an expected
 * count below ten are counted together. */
static inline double surprise(const int64_t *seen, const double *p, int64_t vocab, int64_t draws) {
  double chi = 0, rare = 0, rare_seen = 0;
  int64_t cells = 0;
  for (int64_t i = 0; i < vocab; i++) {
    double want = p[i] * (double)draws;
    if (!(p[i] > 0) && seen[i]) return INFINITY;
    if (want < 10) {
      rare += want;
      rare_seen += (double)seen[i];
    } else {
      chi += ((double)seen[i] - want) * ((double)seen[i] - want) / want;
      cells++;
    }
  }
  if (rare >= 1) {
    chi += (rare_seen - rare) * (rare_seen - rare) / rare;
    cells++;
  }
  return cells < 2 ? 0 : (chi - (double)(cells - 1)) / sqrt(2 * (double)(cells - 1));
}

/* Six deviations with a fixed seed. Chance exceeds this for one seed in a hundred thousand; a wrong
 * distribution exceeds it clearly. */
static const double SURPRISE_BOUND = 6;

static inline void random_logits(float *logits, int64_t vocab, uint64_t seed, float spread) {
  for (int64_t i = 0; i < vocab; i += 2) {
    uint32_t words[4];
    float pair[2];
    rf_philox(rf_key(seed, 77, 0), (uint64_t)i, 0, words);
    rf_normal_pair(words[0], words[1], pair);
    logits[i] = spread * pair[0];
    if (i + 1 < vocab) logits[i + 1] = spread * pair[1];
  }
}

#endif
