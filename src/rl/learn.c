/* learn.c - the second part of a step: reference log-probabilities, advantages and optimizer
 * steps. */
#include "rl/parts.h"

#include "run/record.h"

#include <stdlib.h>
#include <string.h>

/* Arrays for all answers of a step. Each array is one block of memory. */
typedef struct answers {
  int64_t count;
  rf_rl_answer **answer; /* (count) answers in the order of the groups */
  rf_rl_group **group;   /* (count) group of each answer */
  float *values;         /* memory of three arrays for all tokens of all answers */
  int32_t *ids;          /* prompts with their answers */
  float *scores;         /* log-probabilities that the reference gives to `ids` */
  rf_judged *judged;
  rf_sequence *sequence;
  rf_scored *scored;
  int64_t *length; /* tokens of each sequence */
} answers;

static void free_answers(answers *a) {
  free(a->answer);
  free(a->group);
  free(a->ids);
  free(a->scores);
  free(a->judged);
  free(a->sequence);
  free(a->scored);
  free(a->length);
}

/* Allocates the arrays. The values stay in rl->values until the next step, because the step's
 * report shows them. */
static rf_status list_answers(rf_rl *rl, answers *a, rf_error *error) {
  int64_t tokens = 0, ids = 0;
  for (int64_t g = 0; g < rl->groups; g++)
    for (int i = 0; i < rl->group[g].replies.samples; i++) {
      int64_t own = rl->group[g].answer[i].reply->tokens.count;
      a->count++;
      tokens += own;
      ids += own + rl->group[g].prompt->count;
    }
  size_t count = (size_t)a->count + 1;
  free(rl->values);
  rl->values = calloc(3 * (size_t)tokens + 1, sizeof *rl->values);
  a->answer = calloc(count, sizeof *a->answer);
  a->group = calloc(count, sizeof *a->group);
  a->ids = calloc((size_t)ids + 1, sizeof *a->ids);
  a->scores = calloc((size_t)ids + 1, sizeof *a->scores);
  a->judged = calloc(count, sizeof *a->judged);
  a->sequence = calloc(count, sizeof *a->sequence);
  a->scored = calloc(count, sizeof *a->scored);
  a->length = calloc(count, sizeof *a->length);
  if (!rl->values || !a->answer || !a->group || !a->ids || !a->scores || !a->judged || !a->sequence ||
      !a->scored || !a->length)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while training on answers");
  a->values = rl->values;
  return RAFTER_OK;
}

static void fill_answers(rf_rl *rl, answers *a) {
  float *value = a->values, *score = a->scores;
  int32_t *id = a->ids;
  int64_t n = 0;
  for (int64_t g = 0; g < rl->groups; g++)
    for (int i = 0; i < rl->group[g].replies.samples; i++, n++) {
      rf_rl_group *group = &rl->group[g];
      rf_rl_answer *answer = &group->answer[i];
      const rf_rl_prompt *p = group->prompt;
      int64_t own = answer->reply->tokens.count, count = p->count + own;
      a->answer[n] = answer;
      a->group[n] = group;
      memcpy(id, p->tokens, (size_t)p->count * sizeof *id);
      if (own) memcpy(id + p->count, answer->reply->tokens.at, (size_t)own * sizeof *id);
      answer->logprobs = value + 2 * own;
      a->scored[n] = (rf_scored){.tokens = id, .count = count, .logprobs = score};
      a->judged[n] = (rf_judged){
          .reward = answer->reward,
          .tokens = own,
          .masked = own == 0 || (rl->settings.masks_cut && answer->reply->finish == RF_FINISH_LENGTH),
          .old_logprobs = answer->reply->logprobs,
          .reference_logprobs = rl->reference ? value + own : NULL,
          .advantages = value};
      id += count;
      score += count;
      value += 3 * own;
    }
}

/* Scores all answers with the reference. Each forward pass has as many answers as fit in its
 * rows. */
static rf_status score(rf_rl *rl, answers *a, rf_rl_report *report, rf_error *error) {
  double began = rf_now_seconds();
  if (!rl->reference) return RAFTER_OK;
  int64_t rows = rf_scorer_rows(rl->reference);
  for (int64_t first = 0, next; first < a->count; first = next) {
    int64_t used = 0;
    for (next = first; next < a->count && used + a->scored[next].count <= rows; next++)
      used += a->scored[next].count;
    RF_TRY(rf_scorer_pass(rl->reference, &a->scored[first], (int)(next - first), error));
    const rf_extent extent = {used, used};
    report->predicted_score += rf_plan_pass_seconds(rl->plans.reference, &extent, 1);
    if (rl->settings.progress) rl->settings.progress(rl->settings.self, "reference", next, a->count);
  }
  for (int64_t n = 0; n < a->count; n++)
    memcpy((float *)a->judged[n].reference_logprobs, a->scored[n].logprobs + a->group[n]->prompt->count,
           (size_t)a->judged[n].tokens * sizeof(float));
  report->score_seconds += rf_now_seconds() - began;
  return RAFTER_OK;
}

/* True if an answer changes the weights. Without a KL term, the loss of an answer is 0 if all its
 * advantages are 0. */
static bool counts(const rf_rl *rl, const rf_judged *j) {
  if (j->weight == 0) return false;
  if (rl->guests.has_reference && !rl->settings.loss->kl_in_reward) return true;
  for (int64_t t = 0; t < j->tokens; t++)
    if (j->advantages[t] != 0) return true;
  return false;
}

static int64_t list_sequences(const rf_rl *rl, answers *a) {
  int64_t count = 0;
  for (int64_t n = 0; n < a->count; n++) {
    rf_judged *j = &a->judged[n];
    a->answer[n]->judged = *j;
    if (!counts(rl, j)) continue;
    a->length[count] = a->scored[n].count;
    a->sequence[count++] = (rf_sequence){.tokens = a->scored[n].tokens,
                                         .count = a->scored[n].count,
                                         .prompt = a->group[n]->prompt->count,
                                         .old_logprobs = j->old_logprobs,
                                         .reference_logprobs = j->reference_logprobs,
                                         .advantages = j->advantages,
                                         .weight = j->weight,
                                         .logprobs = a->answer[n]->logprobs};
  }
  return count;
}

/* The optimizer steps. The first optimizer step changes the weights, so after it a signal waits for
 * all further steps. */
static rf_status optimize(rf_rl *rl, answers *a, int64_t count, rf_rl_report *report, rf_error *error) {
  rf_trainer *t = rl->trainer;
  const volatile int *stop = t->settings.progress.stop;
  rf_rl_ratios sums = {0};
  rf_status status = RAFTER_OK;
  double began = rf_now_seconds(), flops = t->flops;
  for (int i = 0; i < rl->settings.iterations && status == RAFTER_OK; i++) {
    rafter_step step;
    int64_t microbatches;
    if (i > 0) t->settings.progress.stop = NULL;
    status = rf_sequences_microbatches(t, a->sequence, count, 1, &microbatches, error);
    if (status == RAFTER_OK) status = rf_sequences_step(t, a->sequence, count, 1, &step, error);
    if (status != RAFTER_OK) break;
    if (i == 0) report->train = step;
    else {
      report->train.step = step.step;
      report->train.tokens = step.tokens;
      report->train.loss_tokens = step.loss_tokens;
    }
    report->predicted_train += rf_plan_sequences_seconds(t->plan, a->length, count, microbatches);
    for (int64_t n = 0; n < count; n++)
      report->trained_tokens += a->sequence[n].count - a->sequence[n].prompt;
    rf_rl_measure_ratios(rl, a->sequence, count, &sums, report);
    if (rl->settings.progress)
      rl->settings.progress(rl->settings.self, "training", i + 1, rl->settings.iterations);
  }
  t->settings.progress.stop = stop;
  report->train_seconds += rf_now_seconds() - began;
  rf_rl_measure_end(&sums, report);
  double peak = rf_plan_peak_flops(t->plan);
  report->train_limit = peak > 0 ? (t->flops - flops) / (peak * report->train_seconds) : 0;
  return status;
}

rf_status rf_rl_learn(rf_rl *rl, rf_rl_report *report, rf_error *error) {
  const rf_rl_settings *s = &rl->settings;
  answers a = {0};
  rf_status status = RAFTER_OK;
  RF_GO(list_answers(rl, &a, error));
  fill_answers(rl, &a);
  RF_GO(score(rl, &a, report, error));
  report->flat_groups = rf_rl_judge(s->loss, s->beta, s->max_tokens, a.judged, a.count, s->samples);
  RF_GO(optimize(rl, &a, list_sequences(rl, &a), report, error));
done:
  free_answers(&a);
  return status;
}
