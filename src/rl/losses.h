/* losses.h - the losses of reinforcement learning as rows of a table. A row says how rewards become
 * advantages, how tokens are weighted, and which policy loss the graph has.
 *
 * A group is the set of G answers to one prompt. With the reward R of an answer, the mean m and the
 * standard deviation s of its group (s with G - 1 in the denominator), and the L tokens of the
 * longest allowed answer:
 *
 *   name         advantage                       weight of a token            ratio, clip
 *   grpo         (R - m) / (s + 1e-4)            1 / (answers * own tokens)   token, PPO
 *   dr-grpo      R - m                           1 / (answers * L)            token, PPO
 *   dapo         (R - m) / (s + 1e-4)            1 / (tokens of the step)     token, PPO, high 0.28
 *   gspo         (R - m) / (s + 1e-4)            1 / (answers * own tokens)   mean of the answer, PPO
 *   rloo         (R - m) G / (G - 1)             1 / (answers * own tokens)   sum of the answer, PPO
 *   reinforce++  (R_t - m_t) / s_t, of all tokens of the step; 1 / (tokens of the step); token, PPO
 *   cispo        (R - m) / (s + 1e-4)            1 / (tokens of the step)     token, its weight is capped
 *
 * In rloo and reinforce++, the KL divergence from the reference is part of the reward: R is reduced
 * by beta * sum of (old - reference log-probability), in reinforce++ from token t on (R_t). In all
 * other losses, the KL divergence is a term of the loss. Sources: GRPO arXiv:2402.03300; Dr. GRPO
 * arXiv:2503.20783; DAPO arXiv:2503.14476; GSPO arXiv:2507.18071; RLOO arXiv:2402.14740;
 * REINFORCE++ arXiv:2501.03262; CISPO arXiv:2506.13585. */
#ifndef RF_RL_LOSSES_H
#define RF_RL_LOSSES_H

#include "graph/graph.h"

typedef enum rf_advantage {
  RF_ADVANTAGE_SCALED,
  RF_ADVANTAGE_CENTRED,
  RF_ADVANTAGE_OTHERS,
  RF_ADVANTAGE_TOKENS
} rf_advantage;
typedef enum rf_token_weight { RF_WEIGHT_OWN, RF_WEIGHT_LONGEST, RF_WEIGHT_STEP } rf_token_weight;

typedef struct rf_rl_loss {
  const char *name;
  rf_advantage advantage;
  rf_token_weight weight;
  rf_policy policy;  /* level, clip, and the default values of clip_low and clip_high */
  double beta;       /* default weight of the KL divergence */
  bool kl_in_reward; /* true: the graph's loss has no KL term */
  /* true: dynamic sampling is on by default, so other prompts replace groups without signal */
  bool drops_flat;
} rf_rl_loss;

extern const rf_rl_loss RF_RL_LOSSES[]; /* the last row has no name */
/* "grpo|dr-grpo|...", for options. */
#define RF_RL_LOSS_NAMES "grpo|dr-grpo|dapo|gspo|rloo|reinforce++|cispo"

/* An answer with its reward, and the values that the loss computes from this reward. */
typedef struct rf_judged {
  double reward;
  int64_t tokens; /* A */
  bool masked;    /* true: the answer has no part in the loss, and in no sum over tokens */
  /* (A) log-probabilities; reference_logprobs may be NULL */
  const float *old_logprobs, *reference_logprobs;
  float advantage;   /* mean advantage of the answer's tokens */
  float *advantages; /* (A) */
  float weight;      /* of each token */
} rf_judged;

/* Sets the advantages and weights of `count` answers. Each group has `samples` answers. `longest`
 * is the maximum length of an answer. Returns the number of groups whose rewards are all equal. */
int64_t rf_rl_judge(const rf_rl_loss *loss, double beta, int64_t longest, rf_judged *answer, int64_t count,
                    int samples);

#endif
