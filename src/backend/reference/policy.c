/* policy.c - losses of a policy and of pairs of answers, with their gradients. The sums of a
 * segment run over its counted rows. A counted row has a label and a weight other than 0. */
#include "backend/reference/kernels.h"

static bool counts(const int32_t *labels, rf_view weights, int64_t r) {
  return labels[r] >= 0 && load(weights, r) != 0;
}

/* Writes zeros to all outputs. Rows that do not count keep these zeros. */
static void clear(const rf_call *call, int64_t rows) {
  for (int i = 0; i < call->op->output_count; i++)
    for (int64_t r = 0; r < rows && call->out[i]; r++) store(out_view(call, i), r, 0);
}

/* ---- policies -------------------------------------------------------------------------------- */

typedef struct policy {
  const rf_attr_policy *attr;
  const int32_t *labels;
  rf_view nll, old, advantages, weights, reference, loss, dnll;
  double scale; /* loss_scale */
} policy;

/* The loss of a row, and two derivatives of the loss: with respect to the logarithm of the ratio,
 * and with respect to logp at a constant ratio. */
typedef struct row_loss {
  double loss, by_ratio, by_logp;
} row_loss;

static double log_probability(const policy *p, int64_t r) {
  return p->attr->on_policy ? load(p->old, r) : -load(p->nll, r);
}

static row_loss policy_row(const policy *p, int64_t r, double ratio) {
  const rf_attr_policy *attr = p->attr;
  double logp = log_probability(p, r), a = load(p->advantages, r), w = load(p->weights, r);
  bool capped = attr->cap > 0 && ratio > (double)attr->cap;
  if (capped) ratio = (double)attr->cap;
  double highest = 1 + (double)attr->clip_high, lowest = 1 - (double)attr->clip_low;
  double objective = ratio * a, slope = capped ? 0 : ratio * a, direct = 0;
  if (attr->clip == RF_POLICY_CLIP_RATIO) {
    double clipped = fmin(fmax(ratio, lowest), highest) * a;
    if (clipped < objective) {
      objective = clipped;
      slope = 0;
    }
  }
  if (attr->clip == RF_POLICY_CLIP_WEIGHT) {
    direct = fmin(ratio, highest) * a;
    objective = direct * logp;
    slope = 0;
  }
  row_loss of = {.loss = -w * objective, .by_ratio = -w * slope, .by_logp = -w * direct};
  if (p->reference.data) {
    double apart = load(p->reference, r) - logp, beta = (double)attr->beta;
    of.loss += w * beta * (exp(apart) - apart - 1);
    of.by_logp += w * beta * (1 - exp(apart));
  }
  return of;
}

static double log_ratio(const policy *p, int64_t r) { return log_probability(p, r) - load(p->old, r); }

static void policy_segment(const policy *p, int64_t begin, int64_t end) {
  rf_policy_level level = p->attr->level;
  double sum = 0, through = 0, each = 1;
  int64_t count = 0;
  for (int64_t r = begin; r < end; r++) {
    if (!counts(p->labels, p->weights, r)) continue;
    sum += log_ratio(p, r);
    count++;
  }
  if (level == RF_POLICY_SEQUENCE_MEAN && count > 0) each = 1 / (double)count;
  double ratio = exp(sum * each);
  for (int64_t r = begin; r < end && level != RF_POLICY_TOKEN; r++)
    if (counts(p->labels, p->weights, r)) through += policy_row(p, r, ratio).by_ratio * each;
  for (int64_t r = begin; r < end; r++) {
    if (!counts(p->labels, p->weights, r)) continue;
    row_loss of = policy_row(p, r, level == RF_POLICY_TOKEN ? exp(log_ratio(p, r)) : ratio);
    store(p->loss, r, of.loss);
    if (!p->dnll.data) continue;
    store(p->dnll, r, -(of.by_logp + (level == RF_POLICY_TOKEN ? of.by_ratio : through)) * p->scale);
  }
}

/* inputs: nll?, labels, segments (n+1), old, advantages, weights, reference? (n) -> loss, dnll?
 * (n) */
void rf_reference_policy_loss(const rf_call *call) {
  int64_t rows = rows_in_use(call, rf_in(call, 1)->shape[0]);
  const int32_t *segments = ids(call, 2);
  const policy p = {.attr = &call->op->attr.policy,
                    .labels = ids(call, 1),
                    .nll = in_view(call, 0),
                    .old = in_view(call, 3),
                    .advantages = in_view(call, 4),
                    .weights = in_view(call, 5),
                    .reference = in_view(call, 6),
                    .loss = out_view(call, 0),
                    .dnll = out_view(call, 1),
                    .scale = (double)call->run->loss_scale};
  clear(call, rows);
  if (p.attr->level == RF_POLICY_TOKEN) policy_segment(&p, 0, rows);
  for (int64_t s = 0; p.attr->level != RF_POLICY_TOKEN && s < rows && segments[s] < rows; s++)
    policy_segment(&p, segments[s], segments[s + 1] < rows ? segments[s + 1] : rows);
}

/* ---- pairs ----------------------------------------------------------------------------------- */

typedef struct answer {
  int64_t begin, end, count, first; /* first: index of the first counted row */
  double score, each;               /* each: derivative of the score with respect to logp of a counted row */
} answer;

typedef struct pairs {
  const rf_attr_pairs *attr;
  const int32_t *labels, *segments;
  rf_view nll, weights, reference, loss, dnll, margins;
  double scale;
  int64_t rows;
} pairs;

static answer answer_of(const pairs *p, int64_t segment) {
  answer of = {.begin = p->segments[segment], .end = p->segments[segment + 1], .each = 1};
  if (of.end > p->rows) of.end = p->rows;
  for (int64_t r = of.begin; r < of.end; r++) {
    if (!counts(p->labels, p->weights, r)) continue;
    if (of.count++ == 0) of.first = r;
    of.score += -load(p->nll, r) - (p->reference.data ? load(p->reference, r) : 0);
  }
  if (p->attr->kind != RF_PAIRS_DPO && of.count > 0) of.each = 1 / (double)of.count;
  of.score *= of.each;
  return of;
}

/* log(1 + exp(x)), which is -log(sigmoid(-x)) */
static double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

/* Returns the loss of a pair whose scores differ by h, and the derivative of this loss with respect
 * to h. */
static double pair_loss_of(const rf_attr_pairs *attr, double h, double *slope) {
  double beta = (double)attr->beta, e = (double)attr->smoothing;
  if (attr->kind == RF_PAIRS_IPO) {
    double apart = h - 1 / (2 * beta);
    *slope = 2 * apart;
    return apart * apart;
  }
  double z = beta * h - (attr->kind == RF_PAIRS_SIMPO ? (double)attr->gamma : 0);
  *slope = beta * (1 / (1 + exp(-z)) - (1 - e));
  return (1 - e) * softplus(-z) + e * softplus(z);
}

static void add_slope(const pairs *p, const answer *of, double slope) {
  for (int64_t r = of->begin; r < of->end && p->dnll.data; r++)
    if (counts(p->labels, p->weights, r)) store(p->dnll, r, -slope * of->each * p->scale);
}

/* inputs: nll, labels, segments (n+1), weights, reference? (n) -> loss, dnll?, margins? (n) */
void rf_reference_pair_loss(const rf_call *call) {
  const pairs p = {.attr = &call->op->attr.pairs,
                   .labels = ids(call, 1),
                   .segments = ids(call, 2),
                   .nll = in_view(call, 0),
                   .weights = in_view(call, 3),
                   .reference = in_view(call, 4),
                   .loss = out_view(call, 0),
                   .dnll = out_view(call, 1),
                   .margins = out_view(call, 2),
                   .scale = (double)call->run->loss_scale,
                   .rows = rows_in_use(call, rf_in(call, 0)->shape[0])};
  clear(call, p.rows);
  for (int64_t s = 0; s + 1 < p.rows && p.segments[s + 1] < p.rows; s += 2) {
    answer chosen = answer_of(&p, s), rejected = answer_of(&p, s + 1);
    if (chosen.count == 0 || rejected.count == 0) continue;
    double h = chosen.score - rejected.score, slope, w = load(p.weights, chosen.first);
    store(p.loss, chosen.first, w * pair_loss_of(p.attr, h, &slope));
    if (p.margins.data) store(p.margins, chosen.begin, (double)p.attr->beta * h);
    add_slope(&p, &chosen, w * slope);
    add_slope(&p, &rejected, -w * slope);
  }
}
