/* rl.h - reinforcement learning: samples answers to prompts, gives them rewards, and trains the
 * policy on them. Sampler, reference and trainer share one arena with one copy of the weights.
 * Example:
 *   rf_rl_open(&settings, &rl, error);
 *   while (rf_rl_steps_done(rl) < steps) rf_rl_step(rl, &report, error);   // report.reward, ...
 *   rf_checkpoint_save(rl->trainer, folder, error);
 *   rf_rl_close(rl);                                        // end of the example.
 *
 * On backends whose results do not depend on the batch, the trainer and the sampler compute the
 * same bits for the log-probability of a sampled token. So the ratio of these log-probabilities is
 * exactly 1 in the first pass over the answers. Steps depend only on the seed and the step number.
 * Batch sizes, the number of threads and interruptions do not change a bit. */
#ifndef RF_RL_H
#define RF_RL_H

#include "generate/replies.h"
#include "reward/reward.h"
#include "rl/losses.h"
#include "rl/plans.h"
#include "rl/prompts.h"
#include "train/sequences.h"

/* The components of a reward. The last component is for overlong answers, because a program may add
 * other components while answers are sampled. */
enum { RF_RL_OVERLONG = RF_REWARDS, RF_RL_PARTS };

typedef struct rf_rl_settings {
  /* plan.build.objective is POLICY. `given` is not set, because the prompts are the data.
   * schedule.steps counts optimizer steps: steps * iterations. */
  rf_train_settings train;
  rf_build_options roll; /* sizes of sampling: see rf_rl_guests_of */
  const rf_rl_loss *loss;
  double beta;        /* weight of the KL divergence; 0: no reference model */
  int64_t prompts;    /* prompts of a step */
  int samples;        /* answers to each prompt */
  int64_t max_tokens; /* of an answer */
  int iterations;     /* optimizer steps over the answers of a step */
  bool masks_cut;     /* true: answers that reach max_tokens have no part in the loss */
  bool drops_flat;    /* true: other prompts replace groups whose rewards are all equal */
  /* number of last tokens before max_tokens that lower the reward to -1; 0: none */
  int64_t overlong;
  rf_sampler_options sampler; /* filters and end ids; the temperature and seed in this struct are not used */
  const rf_tokenizer *tokenizer;
  rf_rl_prompts *data, *held_out; /* held_out: for rf_rl_evaluate; NULL: none */
  rf_rewards *rewards;
  void (*progress)(void *self, const char *phase, int64_t done, int64_t of); /* NULL: none */
  void *self;
} rf_rl_settings;

/* One answer of the latest step. */
typedef struct rf_rl_answer {
  const rf_reply *reply; /* tokens, their log-probabilities, text and reason of the end */
  double reward, part[RF_RL_PARTS];
  rf_judged judged;
  float *logprobs; /* (A) log-probabilities from the trainer's latest pass over the answers */
} rf_rl_answer;

/* All answers to one prompt. */
typedef struct rf_rl_group {
  const rf_rl_prompt *prompt;
  rf_replies replies;
  rf_rl_answer *answer; /* (samples) */
} rf_rl_group;

typedef struct rf_rl_spread {
  int64_t count;
  /* deviation: during a step, it is the sum of squared distances from the mean */
  double mean, deviation, min, max;
} rf_rl_spread;

/* Measurements of a step. Predicted seconds are for the actual lengths of the answers. */
typedef struct rf_rl_report {
  int64_t step;      /* from 1 */
  rafter_step train; /* figures of the last optimizer step, but loss and gradient norm of the first one */
  int64_t groups, dropped_groups, flat_groups,
      drawn; /* drawn: number of prompts, including those whose groups were dropped */
  /* Rewards, lengths and the following counts include the answers of dropped groups. */
  int64_t answers, sampled_tokens, trained_tokens, longest, cut, empty;
  rf_rl_spread reward;
  rf_rl_spread part[RF_RL_PARTS];
  double kl, entropy, clip_fraction, ratio_min, ratio_mean, ratio_max;
  double sample_seconds, reward_seconds, score_seconds, train_seconds, seconds;
  double predicted_sample, predicted_score, predicted_train;
  double sample_limit, train_limit; /* fractions of the machine's limit */
} rf_rl_report;

typedef struct rf_rl {
  rf_rl_settings settings;
  rf_given given;
  rf_trainer *trainer;
  rf_rl_guests guests;
  rf_rl_plans plans;
  rf_run *run, *apart; /* apart: the run of a reference with its own weights; NULL: no such run */
  rf_generator *generator;
  rf_scorer *reference; /* NULL: none */
  rf_rl_group *group;   /* (groups) groups of the latest step */
  int64_t groups, room;
  float *values;      /* arrays of all answers */
  double ends_at;     /* rf_now_seconds() at which sampling stops; 0: never */
  bool late;          /* true: sampling has stopped because of `ends_at` */
  bool reward_failed; /* true: a step has failed because of a reward, not because of its numbers */
  double limit[2];    /* predicted and limit seconds of sampling so far */
} rf_rl;

/* Errors of settings are reported before the arena is allocated. */
rf_status rf_rl_open(const rf_rl_settings *settings, rf_rl **rl, rf_error *error);
void rf_rl_close(rf_rl *rl);
int64_t rf_rl_steps_done(const rf_rl *rl);
/* False after an error between two optimizer steps that use the same answers. */
bool rf_rl_is_between_steps(const rf_rl *rl);
/* Runs one step. RAFTER_INTERRUPTED: progress.stop was set before the first optimizer step, or the
 * time `ends_at` came while answers were sampled (`late`). The step has no effect. RAFTER_FAILED:
 * the reward failed, or numbers are not finite. If rf_rl_is_between_steps, the weights are the
 * weights after the previous step. After a failure, only a checkpoint and the two closes may
 * follow. Close the rewards first, because they may still write to answers. */
rf_status rf_rl_step(rf_rl *rl, rf_rl_report *report, rf_error *error);
/* Answers the held-out prompts greedily. RAFTER_INTERRUPTED: as above. Sets the report's reward,
 * parts, answers, lengths and seconds. Until the next step, the groups of the report are the groups
 * of this evaluation. */
rf_status rf_rl_evaluate(rf_rl *rl, rf_rl_report *report, rf_error *error);
/* Returns the name of component `part` of the reward. NULL: the step has no such component. */
const char *rf_rl_part_name(const rf_rl *rl, int part);

#endif
