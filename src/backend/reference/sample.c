/* sample.c - chooses one token from each row of logits. To find the next token in descending order,
 * this kernel reads the whole row again. */
#include "backend/reference/kernels.h"

typedef struct row {
  rf_view logits;
  int64_t first, vocab; /* index of the row's first logit; number of tokens */
  const int32_t *barred;
  int64_t barred_count;
  double most, temperature;
} row;

static double logit(const row *r, int64_t v) {
  for (int64_t i = 0; i < r->barred_count; i++)
    if (r->barred[i] == v) return -INFINITY;
  return load(r->logits, r->first + v);
}
static double weight(const row *r, int64_t v) { return exp((logit(r, v) - r->most) / r->temperature); }

/* The token after token `last` in descending order of logits. Among equal logits, the lower id
 * comes first. last = -1: returns the first token. */
static int64_t next(const row *r, int64_t last) {
  double before = last < 0 ? INFINITY : logit(r, last), largest = -INFINITY;
  int64_t at = -1;
  for (int64_t v = 0; v < r->vocab; v++) {
    double z = logit(r, v);
    bool after = z < before || (z == before && v > last);
    if (after && (at < 0 || z > largest)) {
      largest = z;
      at = v;
    }
  }
  return at;
}

static int64_t draw_by_id(const row *r, double uniform) {
  double total = 0, run = 0;
  int64_t chosen = 0;
  for (int64_t v = 0; v < r->vocab; v++) total += weight(r, v);
  for (int64_t v = 0; v < r->vocab; v++) {
    if (weight(r, v) == 0) continue;
    run += weight(r, v);
    chosen = v;
    if (run > uniform * total) break;
  }
  return chosen;
}

/* Number of kept tokens, and the sum of their weights. */
static int64_t kept(const row *r, const float *rules, double *sum) {
  int64_t k = rules[RF_RULE_TOP_K] > 0 && rules[RF_RULE_TOP_K] < (float)r->vocab
                  ? (int64_t)rules[RF_RULE_TOP_K]
                  : r->vocab,
          count = 0;
  double total = 0;
  for (int64_t i = 0, v = -1; i < k; i++) total += weight(r, v = next(r, v));
  *sum = 0;
  for (int64_t v = -1; count < k; count++) {
    double w = weight(r, v = next(r, v));
    bool enough = rules[RF_RULE_TOP_P] < 1 && *sum >= (double)rules[RF_RULE_TOP_P] * total;
    if (count > 0 && (enough || w < (double)rules[RF_RULE_MIN_P])) break;
    *sum += w;
  }
  return count;
}

static int64_t choose(row *r, const float *rules) {
  int64_t best = next(r, -1), chosen = best;
  if (!(rules[RF_RULE_TEMPERATURE] > 0)) return best;
  r->most = logit(r, best);
  r->temperature = (double)rules[RF_RULE_TEMPERATURE];
  bool all = !(rules[RF_RULE_TOP_K] > 0 && rules[RF_RULE_TOP_K] < (float)r->vocab) &&
             rules[RF_RULE_TOP_P] >= 1 && !(rules[RF_RULE_MIN_P] > 0);
  if (all) return draw_by_id(r, (double)rules[RF_RULE_UNIFORM]);
  double sum, run = 0;
  int64_t count = kept(r, rules, &sum);
  for (int64_t i = 0, v = -1; i < count && run <= (double)rules[RF_RULE_UNIFORM] * sum; i++) {
    chosen = v = next(r, v);
    run += weight(r, v);
  }
  return chosen;
}

/* logits (R,V), lse (R), rules (R,5), barred (R,E) -> chosen (R), logprobs (R) */
void rf_reference_sample(const rf_call *call) {
  const float *rules = call->in[2];
  const int32_t *barred = call->in[3];
  rf_view logits = in_view(call, 0), lse = in_view(call, 1), logprobs = out_view(call, 1);
  int64_t rows = rf_in(call, 0)->shape[0], vocab = rf_in(call, 0)->shape[1], ends = rf_in(call, 3)->shape[1];
  for (int64_t i = 0; i < rows; i++) {
    row r = {.logits = logits,
             .first = i * vocab,
             .vocab = vocab,
             .barred = barred + i * ends,
             .barred_count = ends};
    int64_t chosen = choose(&r, rules + i * RF_RULES);
    ((int32_t *)call->out[0])[i] = (int32_t)chosen;
    store(logprobs, i, load(logits, r.first + chosen) - load(lse, i));
  }
}
