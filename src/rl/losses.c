/* losses.c - see losses.h. */
#include "rl/losses.h"

#include <math.h>

const rf_rl_loss RF_RL_LOSSES[] = {
    {.name = "grpo",
     .beta = 0.04,
     .policy = {.level = RF_POLICY_TOKEN, .clip = RF_POLICY_CLIP_RATIO, .clip_low = 0.2f, .clip_high = 0.2f}},
    {.name = "dr-grpo",
     .advantage = RF_ADVANTAGE_CENTRED,
     .weight = RF_WEIGHT_LONGEST,
     .policy = {.level = RF_POLICY_TOKEN, .clip = RF_POLICY_CLIP_RATIO, .clip_low = 0.2f, .clip_high = 0.2f}},
    {.name = "dapo",
     .weight = RF_WEIGHT_STEP,
     .policy = {.level = RF_POLICY_TOKEN, .clip = RF_POLICY_CLIP_RATIO, .clip_low = 0.2f, .clip_high = 0.28f},
     .drops_flat = true},
    {.name = "gspo",
     .policy = {.level = RF_POLICY_SEQUENCE_MEAN,
                .clip = RF_POLICY_CLIP_RATIO,
                .clip_low = 3e-4f,
                .clip_high = 4e-4f}},
    {.name = "rloo",
     .advantage = RF_ADVANTAGE_OTHERS,
     .policy =
         {.level = RF_POLICY_SEQUENCE_SUM, .clip = RF_POLICY_CLIP_RATIO, .clip_low = 0.2f, .clip_high = 0.2f},
     .beta = 0.04,
     .kl_in_reward = true},
    {.name = "reinforce++",
     .advantage = RF_ADVANTAGE_TOKENS,
     .weight = RF_WEIGHT_STEP,
     .policy = {.level = RF_POLICY_TOKEN, .clip = RF_POLICY_CLIP_RATIO, .clip_low = 0.2f, .clip_high = 0.2f},
     .beta = 0.01,
     .kl_in_reward = true},
    {.name = "cispo",
     .weight = RF_WEIGHT_STEP,
     .policy = {.level = RF_POLICY_TOKEN, .clip = RF_POLICY_CLIP_WEIGHT, .clip_low = 0, .clip_high = 4}},
    {.name = NULL},
};

static const double SMALLEST_SPREAD = 1e-4; /* is added to the standard deviation, as in TRL */

static bool has_signal(const rf_judged *answer, int samples) {
  for (int i = 1; i < samples; i++)
    if (answer[i].reward != answer[0].reward) return true;
  return false;
}

/* Returns the reward of an answer, minus beta times the sum of (old - reference) from token `from`
 * on. */
static double reward_from(const rf_rl_loss *loss, double beta, const rf_judged *a, int64_t from) {
  double kl = 0;
  if (!loss->kl_in_reward || !a->reference_logprobs) return a->reward;
  for (int64_t t = from; t < a->tokens; t++)
    kl += (double)a->old_logprobs[t] - (double)a->reference_logprobs[t];
  return a->reward - beta * kl;
}

static void set_all(rf_judged *a, double advantage) {
  a->advantage = (float)advantage;
  for (int64_t t = 0; t < a->tokens; t++) a->advantages[t] = (float)advantage;
}

static void judge_group(const rf_rl_loss *loss, double beta, rf_judged *answer, int samples) {
  double mean = 0, spread = 0;
  for (int i = 0; i < samples; i++) mean += reward_from(loss, beta, &answer[i], 0) / samples;
  for (int i = 0; i < samples; i++) {
    double distance = reward_from(loss, beta, &answer[i], 0) - mean;
    spread += distance * distance;
  }
  spread = samples > 1 ? sqrt(spread / (samples - 1)) : 0;
  /* equal rewards give no signal, even if rounding changes their computed mean */
  bool flat = !has_signal(answer, samples) && !(loss->kl_in_reward && beta != 0);
  for (int i = 0; i < samples; i++) {
    double distance = flat ? 0 : reward_from(loss, beta, &answer[i], 0) - mean;
    if (loss->advantage == RF_ADVANTAGE_SCALED) distance /= spread + SMALLEST_SPREAD;
    if (loss->advantage == RF_ADVANTAGE_OTHERS) distance *= samples > 1 ? samples / (samples - 1.0) : 1;
    set_all(&answer[i], distance);
  }
}

/* Computes the advantages of tokens, normalised over all tokens of the step. */
static void judge_tokens(const rf_rl_loss *loss, double beta, rf_judged *answer, int64_t count) {
  double sum = 0, squares = 0, tokens = 0;
  for (int64_t i = 0; i < count; i++) {
    double from = reward_from(loss, beta, &answer[i], 0);
    for (int64_t t = 0; t < answer[i].tokens; t++) {
      answer[i].advantages[t] = (float)from;
      if (loss->kl_in_reward && answer[i].reference_logprobs)
        from += beta * ((double)answer[i].old_logprobs[t] - (double)answer[i].reference_logprobs[t]);
      if (answer[i].masked) continue;
      sum += (double)answer[i].advantages[t];
      tokens++;
    }
  }
  double mean = tokens > 0 ? sum / tokens : 0;
  for (int64_t i = 0; i < count; i++)
    for (int64_t t = 0; t < answer[i].tokens && !answer[i].masked; t++) {
      double distance = (double)answer[i].advantages[t] - mean;
      squares += distance * distance;
    }
  double spread = tokens > 1 ? sqrt(squares / (tokens - 1)) : 0;
  for (int64_t i = 0; i < count; i++) {
    double own = 0;
    for (int64_t t = 0; t < answer[i].tokens; t++) {
      answer[i].advantages[t] =
          (float)(((double)answer[i].advantages[t] - mean) / (spread + SMALLEST_SPREAD));
      own += (double)answer[i].advantages[t] / (double)answer[i].tokens;
    }
    answer[i].advantage = (float)own;
  }
}

int64_t rf_rl_judge(const rf_rl_loss *loss, double beta, int64_t longest, rf_judged *answer, int64_t count,
                    int samples) {
  int64_t flat = 0, tokens = 0;
  for (int64_t i = 0; i < count; i += samples) {
    flat += !has_signal(&answer[i], samples);
    if (loss->advantage != RF_ADVANTAGE_TOKENS) judge_group(loss, beta, &answer[i], samples);
  }
  if (loss->advantage == RF_ADVANTAGE_TOKENS) judge_tokens(loss, beta, answer, count);
  for (int64_t i = 0; i < count; i++)
    if (!answer[i].masked) tokens += answer[i].tokens;
  const double answers = (double)count; /* masked answers are included in this count, as in TRL */
  for (int64_t i = 0; i < count; i++) {
    double of = loss->weight == RF_WEIGHT_OWN       ? answers * (double)answer[i].tokens
                : loss->weight == RF_WEIGHT_LONGEST ? answers * (double)longest
                                                    : (double)tokens;
    answer[i].weight = answer[i].masked || answer[i].tokens == 0 || of <= 0 ? 0 : (float)(1 / of);
  }
  return flat;
}
