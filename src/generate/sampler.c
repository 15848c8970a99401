#include "generate/sampler.h"

#include <math.h>
#include <stdlib.h>

rf_status rf_sampler_open(const rf_sampler_options *options, int64_t vocab, rf_sampler *sampler, rf_error *error) {
  *sampler = (rf_sampler){.options = *options, .vocab = vocab};
  sampler->candidate = malloc((size_t)vocab * sizeof *sampler->candidate);
  if (!sampler->candidate) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a sampler");
  return RAFTER_OK;
}

void rf_sampler_close(rf_sampler *sampler) {
  free(sampler->candidate);
  sampler->candidate = NULL;
}

static int likelier_first(const void *a, const void *b) {
  const struct rf_candidate *x = a, *y = b;
  if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
  return x->id - y->id;
}

/* Moves the k likeliest to the front, unordered (quickselect with a middle pivot). */
static void select_first(struct rf_candidate *c, int64_t n, int64_t k) {
  int64_t low = 0, high = n - 1;
  while (low < high) {
    struct rf_candidate pivot = c[(low + high) / 2];
    int64_t i = low, j = high;
    while (i <= j) {
      while (likelier_first(&c[i], &pivot) < 0) i++;
      while (likelier_first(&pivot, &c[j]) < 0) j--;
      if (i <= j) {
        struct rf_candidate swap = c[i];
        c[i++] = c[j], c[j--] = swap;
      }
    }
    if (k <= j) high = j;
    else if (k >= i) low = i;
    else return;
  }
}

int32_t rf_sampler_next(rf_sampler *sampler, const float *logits, int64_t position, double *logprob) {
  const rf_sampler_options *o = &sampler->options;
  struct rf_candidate *c = sampler->candidate;
  int64_t n = sampler->vocab, best = 0;
  for (int64_t i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = i;
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)logits[best]);
  double log_sum = (double)logits[best] + log(sum);
  int32_t chosen = (int32_t)best;
  if (o->temperature > 0) {
    for (int64_t i = 0; i < n; i++) c[i] = (struct rf_candidate){logits[i], (int32_t)i};
    bool filters = o->top_p < 1 || o->min_p > 0;
    if (o->top_k > 0 && o->top_k < n) select_first(c, n, o->top_k), n = o->top_k, filters = true;
    if (filters) qsort(c, (size_t)n, sizeof *c, likelier_first); /* otherwise id order serves as well */
    double total = 0, kept = 0, scale = 1 / (double)o->temperature, top = (double)logits[best];
    for (int64_t i = 0; i < n; i++) total += exp(((double)c[i].logit - top) * scale);
    int64_t keep = 0;
    while (keep < n) {
      double p = exp(((double)c[keep].logit - top) * scale);
      if (keep && filters && (kept >= (double)o->top_p * total || p < (double)o->min_p)) break; /* p of the likeliest is 1 */
      kept += p, keep++;
    }
    uint32_t words[4];
    rf_philox(rf_key(o->seed, rf_name_key("sampler"), 0), (uint64_t)position, 0, words);
    double draw = ((double)words[0] + (double)words[1] * 0x1p-32) * 0x1p-32 * kept, run = 0;
    chosen = c[keep - 1].id;
    for (int64_t i = 0; i < keep; i++) {
      run += exp(((double)c[i].logit - top) * scale);
      if (draw < run) {
        chosen = c[i].id;
        break;
      }
    }
  }
  *logprob = (double)logits[chosen] - log_sum;
  return chosen;
}
