/* measure.c - what a step reports: rewards, lengths, ratios and predicted seconds. */
#include "rl/parts.h"

#include <math.h>
#include <stdlib.h>

/* Updates the mean, and the sum of squared distances from the mean, with one value (Welford
 * 1962). */
static void spread_add(rf_rl_spread *s, double value) {
  if (!s->count || value < s->min) s->min = value;
  if (!s->count || value > s->max) s->max = value;
  double before = value - s->mean;
  s->mean += before / (double)++s->count;
  s->deviation += before * (value - s->mean);
}

static void spread_end(rf_rl_spread *s) {
  s->deviation = s->count > 1 ? sqrt(s->deviation / (double)(s->count - 1)) : 0;
}

static void add_answer(const rf_rl *rl, const rf_rl_answer *a, rf_rl_report *report) {
  int64_t tokens = a->reply->tokens.count;
  report->answers++;
  report->sampled_tokens += tokens;
  if (tokens > report->longest) report->longest = tokens;
  report->cut += a->reply->finish == RF_FINISH_LENGTH;
  report->empty += tokens == 0;
  for (int64_t t = 0; t < tokens; t++) report->entropy -= (double)a->reply->logprobs[t];
  spread_add(&report->reward, a->reward);
  for (int p = 0; p < RF_RL_PARTS; p++)
    if (rf_rl_part_name(rl, p) && isfinite(a->part[p])) spread_add(&report->part[p], a->part[p]);
}

void rf_rl_measure_answers(const rf_rl *rl, int64_t first, rf_rl_report *report) {
  for (int64_t g = first; g < rl->groups; g++)
    for (int i = 0; i < rl->group[g].replies.samples; i++) add_answer(rl, &rl->group[g].answer[i], report);
}

void rf_rl_measure_answers_end(const rf_rl *rl, rf_rl_report *report) {
  report->groups = rl->groups;
  spread_end(&report->reward);
  for (int p = 0; p < RF_RL_PARTS; p++) spread_end(&report->part[p]);
  report->entropy /= report->sampled_tokens ? (double)report->sampled_tokens : 1;
}

/* ---- ratios ---------------------------------------------------------------------------------- */

static bool is_clipped(const rf_policy *p, double ratio, double advantage) {
  if (p->clip == RF_POLICY_CLIP_WEIGHT) return ratio > 1 + (double)p->clip_high;
  if (p->clip != RF_POLICY_CLIP_RATIO) return false;
  return advantage > 0 ? ratio > 1 + (double)p->clip_high : advantage < 0 && ratio < 1 - (double)p->clip_low;
}

static void add_ratio(rf_rl_ratios *sums, rf_rl_report *report, const rf_policy *policy, double log_ratio,
                      double advantage) {
  double ratio = exp(log_ratio);
  if (sums->count == 0 || ratio < report->ratio_min) report->ratio_min = ratio;
  if (sums->count == 0 || ratio > report->ratio_max) report->ratio_max = ratio;
  sums->sum += ratio;
  sums->clipped += is_clipped(policy, ratio, advantage);
  sums->count++;
}

void rf_rl_measure_ratios(const rf_rl *rl, const rf_sequence *sequence, int64_t count, rf_rl_ratios *sums,
                          rf_rl_report *report) {
  const rf_policy *policy = &rl->settings.train.plan.build.policy;
  for (int64_t i = 0; i < count; i++) {
    const rf_sequence *s = &sequence[i];
    int64_t tokens = s->count - s->prompt;
    double whole = 0;
    for (int64_t t = 0; t < tokens; t++) {
      double d = (double)s->logprobs[t] - (double)s->old_logprobs[t];
      whole += d;
      if (policy->level == RF_POLICY_TOKEN) add_ratio(sums, report, policy, d, (double)s->advantages[t]);
      if (!s->reference_logprobs) continue;
      double k = (double)s->reference_logprobs[t] - (double)s->logprobs[t];
      sums->kl += exp(k) - k - 1;
      sums->kl_count++;
    }
    if (policy->level == RF_POLICY_SEQUENCE_MEAN) whole /= (double)(tokens ? tokens : 1);
    if (policy->level != RF_POLICY_TOKEN)
      add_ratio(sums, report, policy, whole, tokens ? (double)s->advantages[0] : 0);
  }
}

void rf_rl_measure_end(const rf_rl_ratios *sums, rf_rl_report *report) {
  if (sums->count > 0) {
    report->ratio_mean = sums->sum / sums->count;
    report->clip_fraction = sums->clipped / sums->count;
  }
  if (sums->kl_count > 0) report->kl = sums->kl / sums->kl_count;
}

/* ---- predictions ----------------------------------------------------------------------------- */

rf_status rf_rl_measure_sampling(rf_rl *rl, rf_rl_report *report, rf_error *error) {
  double sums[2] = {0};
  rf_status status = RAFTER_OK;
  double *seconds = NULL, *limit = NULL;
  if (!rl->generator->computes) return RAFTER_OK;
  for (int plan = 0; plan < 2; plan++) {
    int ops = rf_generator_plan(rl->generator, plan)->graph->op_count;
    free(seconds);
    free(limit);
    seconds = calloc((size_t)ops + 1, sizeof *seconds);
    limit = calloc((size_t)ops + 1, sizeof *limit);
    if (!seconds || !limit) RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while measuring"));
    RF_GO(rf_generator_predicted(rl->generator, plan, seconds, limit, error));
    for (int i = 0; i < ops; i++) {
      sums[0] += seconds[i];
      sums[1] += limit[i];
    }
  }
  sums[0] += rf_generator_choosing(rl->generator);
  report->predicted_sample = sums[0] - rl->limit[0];
  if (report->sample_seconds > 0) report->sample_limit = (sums[1] - rl->limit[1]) / report->sample_seconds;
  rl->limit[0] = sums[0];
  rl->limit[1] = sums[1];
done:
  free(seconds);
  free(limit);
  return status;
}
