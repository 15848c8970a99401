/* sample.c - samples answers to prompts. Rewards of complete groups are computed while other
 * answers are sampled. */
#include "rl/parts.h"

#include "run/record.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8 }; /* maximum number of times that a step draws prompts, to replace groups without signal */

/* The state of sampling the answers of a step. */
typedef struct sampling {
  rf_rl *rl;
  int64_t ended, groups; /* of this round */
  const char *what;      /* for the progress */
  double waited;         /* seconds spent on rewards */
  bool stopped;
  rf_status status; /* of the rewards */
  rf_error why;
} sampling;

void rf_rl_forget(rf_rl *rl) {
  for (int64_t i = 0; i < rl->groups; i++) {
    rf_replies_free(&rl->group[i].replies);
    free(rl->group[i].answer);
  }
  rl->groups = 0;
}

static rf_status add_group(rf_rl *rl, rf_rl_group **group, rf_error *error) {
  assert(rl->groups < rl->room); /* replies must not move, so their memory is reserved before a round */
  *group = &rl->group[rl->groups];
  **group = (rf_rl_group){.answer = calloc((size_t)rl->settings.samples, sizeof(rf_rl_answer))};
  if (!(*group)->answer) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while sampling");
  rl->groups++;
  return RAFTER_OK;
}

/* Reserves memory for `more` further groups. */
static rf_status make_room(rf_rl *rl, int64_t more, rf_error *error) {
  if (rl->groups + more <= rl->room) return RAFTER_OK;
  rf_rl_group *grown = realloc(rl->group, (size_t)(rl->groups + more) * sizeof *grown);
  if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while sampling");
  rl->group = grown;
  rl->room = rl->groups + more;
  return RAFTER_OK;
}

/* Queues a prompt. `seed` is the seed of the group's first answer. Greedy answers need no seed. */
static rf_status submit(rf_rl *rl, const rf_rl_prompt *prompt, uint64_t seed, bool greedy, rf_error *error) {
  static const rf_stop NO_STOP;
  const rf_rl_settings *s = &rl->settings;
  rf_rl_group *group;
  RF_TRY(add_group(rl, &group, error));
  group->prompt = prompt;
  group->replies.owner = group;
  rf_request request = {.tokens = prompt->tokens,
                        .count = prompt->count,
                        .max_tokens = s->max_tokens,
                        .samples = greedy ? 1 : s->samples,
                        .sampler = s->sampler,
                        .stop = s->sampler.eos,
                        .stop_count = s->sampler.ignore_eos ? 0 : s->sampler.eos_count};
  int64_t left = s->train.plan.build.seq - prompt->count;
  if (request.max_tokens > left) request.max_tokens = left;
  /* the graph already divides logits by the temperature */
  request.sampler.temperature = greedy ? 0 : 1;
  request.sampler.seed = seed;
  return rf_replies_submit(rl->generator, &request, s->tokenizer, &NO_STOP, &group->replies, error);
}

static rf_status reward_group(rf_rl *rl, rf_rl_group *group, rf_error *error) {
  const rf_rl_prompt *p = group->prompt;
  for (int i = 0; i < group->replies.samples; i++) {
    rf_rl_answer *a = &group->answer[i];
    a->reply = &group->replies.reply[i];
    if (rf_run_host(rl->run) > 0) continue; /* host 0 asks for the rewards, and share_rewards sends them */
    const rf_reward_row row = {.id = p->id,
                               .prompt = p->text,
                               .answer = a->reply->text ? a->reply->text : "",
                               .bytes = a->reply->bytes,
                               .tokens = a->reply->tokens.count,
                               .reference = p->answer,
                               .row = p->row};
    rf_status status = rf_rewards_submit(rl->settings.rewards, &row, &a->reward, a->part, error);
    if (status == RAFTER_FAILED) rl->reward_failed = true;
    RF_TRY(status);
  }
  return RAFTER_OK;
}

/* Collects rewards. With `wait`, all rewards, or those that are there at the time `until` (0: no
 * limit). */
static rf_status collect(rf_rl *rl, bool wait, double until, rf_error *error) {
  rf_status status = rf_rewards_collect(rl->settings.rewards, wait, until, error);
  if (status == RAFTER_FAILED) rl->reward_failed = true;
  return status;
}

/* Reasons why the ranks stop sampling. */
enum { SIGNAL = 1, LATE = 2 };
static bool is_late(uint32_t flags) { return flags == LATE; }

static uint32_t reasons(const rf_rl *rl) {
  bool late = rl->ends_at > 0 && rf_now_seconds() > rl->ends_at;
  return (rf_flag_is_set(rl->settings.train.progress.stop) ? SIGNAL : 0) | (late ? LATE : 0);
}

/* Host 0 collects all rewards. The waits of the other hosts have a limit, so host 0 sends them a word
 * every second. */
static rf_status collect_on_hosts(rf_rl *rl, rf_error *error) {
  struct {
    rf_status status;
    uint32_t reasons;
    bool last;
  } word = {0};
  const bool first = rf_run_host(rl->run) == 0;
  while (!word.last) {
    if (first) {
      word.status = collect(rl, true, rf_now_seconds() + 1, error);
      if (word.status == RAFTER_INTERRUPTED) word.reasons = reasons(rl);
      word.last = word.status != RAFTER_INTERRUPTED || word.reasons;
    }
    RF_TRY(rf_run_share(rl->run, &word, sizeof word, word.status == RAFTER_FAILED ? NULL : error));
  }
  if (word.status == RAFTER_INTERRUPTED) rl->late = is_late(word.reasons);
  if (word.status == RAFTER_OK || first) return word.status;
  return RF_FAIL(error, word.status, NULL, "rank 0 has no rewards; its message says why");
}

static rf_status collect_all(rf_rl *rl, rf_error *error) {
  if (rf_run_hosts(rl->run) > 1) return collect_on_hosts(rl, error);
  rf_status status = collect(rl, true, rl->ends_at, error);
  if (status == RAFTER_INTERRUPTED) rl->late = is_late(reasons(rl));
  return status;
}

static rf_status ended(void *self, rf_replies *replies, rf_error *error) {
  sampling *s = self;
  s->ended++;
  double began = rf_now_seconds();
  rf_status status = reward_group(s->rl, replies->owner, error);
  s->waited += rf_now_seconds() - began;
  return status;
}

static bool stepped(void *self, int tokens) {
  sampling *s = self;
  const rf_rl_settings *settings = &s->rl->settings;
  (void)tokens;
  double began = rf_now_seconds();
  s->status = collect(s->rl, false, 0, &s->why);
  s->waited += rf_now_seconds() - began;
  if (settings->progress) settings->progress(settings->self, s->what, s->ended, s->groups);
  if (s->status != RAFTER_OK || !rf_replies_busy(s->rl->generator)) return s->status == RAFTER_OK;
  uint32_t flags = reasons(s->rl);
  s->status = rf_replies_agree(s->rl->generator, &flags, &s->why); /* all ranks stop together */
  s->rl->late = is_late(flags);
  return s->status == RAFTER_OK && !flags;
}

/* Cancels all answers, so that the generator is idle. */
static rf_status cancel(rf_rl *rl, rf_error *error) {
  for (int64_t i = 0; i < rl->groups; i++)
    if (rl->group[i].replies.left) rf_generator_cancel(rl->generator, rl->group[i].replies.request, -1);
  while (rf_generator_busy(rl->generator))
    RF_TRY(rf_replies_step(rl->generator, &(rf_reply_loop){.survives = true}, error));
  return RAFTER_OK;
}

static rf_status share_rewards(rf_rl *rl, rf_error *error) {
  for (int64_t g = 0; g < rl->groups; g++)
    for (int i = 0; i < rl->group[g].replies.samples; i++) {
      rf_rl_answer *a = &rl->group[g].answer[i];
      RF_TRY(rf_run_share(rl->run, &a->reward, sizeof a->reward, error));
      RF_TRY(rf_run_share(rl->run, a->part, sizeof a->part, error));
    }
  return RAFTER_OK;
}

/* Samples the queued answers and waits for their rewards. */
static rf_status run(sampling *s, rf_rl_report *report, rf_error *error) {
  rf_rl *rl = s->rl;
  const rf_reply_loop loop = {.self = s, .ended = ended, .stepped = stepped, .everywhere = true};
  double began = rf_now_seconds(), waited = s->waited;
  RF_TRY(rf_replies_run(rl->generator, &loop, &s->stopped, error));
  /* a copy of the model that had already ended its answers learns the reason here */
  if (s->stopped && rf_replies_said(rl->generator)) rl->late = is_late(rf_replies_said(rl->generator));
  double sampled = rf_now_seconds();
  report->sample_seconds += sampled - began - (s->waited - waited);
  rf_status status = s->status;
  if (status != RAFTER_OK && error) *error = s->why;
  const int64_t pending = rf_rewards_pending(rl->settings.rewards);
  if (pending && rl->settings.progress) rl->settings.progress(rl->settings.self, "rewards", 0, pending);
  if (status == RAFTER_OK && !s->stopped) status = collect_all(rl, error);
  if (status == RAFTER_OK && s->stopped)
    status = RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped by %s", rl->late ? "time" : "a signal");
  if (status == RAFTER_OK) status = share_rewards(rl, error);
  report->reward_seconds += rf_now_seconds() - sampled + (s->waited - waited);
  /* with several hosts, this process ends, and the launcher ends the other processes */
  if (status != RAFTER_OK && rf_run_hosts(rl->run) == 1) RF_TRY(cancel(rl, error));
  return status;
}

/* Returns the penalty of an overlong answer, which falls from 0 to -1 over the last `overlong`
 * tokens (DAPO, equation 13). */
static double overlong(const rf_rl_settings *s, int64_t tokens) {
  int64_t over = tokens - (s->max_tokens - s->overlong);
  return s->overlong > 0 && over > 0 ? -(double)over / (double)s->overlong : 0;
}

static void add_overlong(rf_rl *rl, int64_t from) {
  const rf_rl_settings *s = &rl->settings;
  for (int64_t i = from; i < rl->groups && s->overlong > 0; i++)
    for (int k = 0; k < rl->group[i].replies.samples; k++) {
      rf_rl_answer *a = &rl->group[i].answer[k];
      a->part[RF_RL_OVERLONG] = overlong(s, a->reply->tokens.count);
      a->reward += a->part[RF_RL_OVERLONG];
    }
}

static bool is_flat(const rf_rl_group *group) {
  for (int i = 1; i < group->replies.samples; i++)
    if (group->answer[i].reward != group->answer[0].reward) return false;
  return true;
}

/* Frees groups without signal, beginning with group `from`, but keeps at least `keep` groups. */
static void drop_flat(rf_rl *rl, int64_t from, int64_t keep) {
  int64_t to = from, left = rl->groups;
  for (int64_t i = from; i < rl->groups; i++) {
    rf_rl_group *group = &rl->group[i];
    if (is_flat(group) && left > keep) {
      rf_replies_free(&group->replies);
      free(group->answer);
      left--;
    } else rl->group[to++] = *group;
  }
  rl->groups = to;
}

static rf_status draw(rf_rl *rl, int64_t count, int64_t *position, rf_error *error) {
  const rf_rl_settings *s = &rl->settings;
  for (int64_t i = 0; i < count; i++, ++*position) {
    uint64_t seed = rf_key(s->train.seed, rf_name_key("sample"), (uint64_t)*position) >> 2;
    RF_TRY(submit(rl, rf_rl_prompts_draw(s->data, s->train.seed, *position), seed, false, error));
  }
  return RAFTER_OK;
}

rf_status rf_rl_sample(rf_rl *rl, rf_rl_report *report, rf_error *error) {
  const rf_rl_settings *s = &rl->settings;
  sampling now = {.rl = rl, .what = "sampling"};
  rf_loader_state *state = &rl->trainer->loader.state;
  int64_t position = state->rows;
  rf_rl_forget(rl);
  for (int round = 0; round < ROUNDS && rl->groups < s->prompts; round++) {
    int64_t first = rl->groups, missing = s->prompts - first;
    RF_TRY(make_room(rl, missing, error));
    now.groups = s->prompts;
    now.ended = first;
    rf_replies_begin(rl->generator, missing);
    RF_TRY(draw(rl, missing, &position, error));
    RF_TRY(run(&now, report, error));
    add_overlong(rl, first);
    rf_rl_measure_answers(rl, first, report);
    /* in the last round, groups without signal may stay, so that the step has answers */
    int64_t before = rl->groups;
    if (s->drops_flat) drop_flat(rl, first, round + 1 < ROUNDS ? 0 : 1);
    report->dropped_groups += before - rl->groups;
    if (!s->drops_flat) break;
  }
  report->drawn = position - state->rows;
  state->rows = state->drawn[0] = position;
  return RAFTER_OK;
}

rf_status rf_rl_sample_held_out(rf_rl *rl, rf_rl_report *report, rf_error *error) {
  rf_rl_prompts *prompts = rl->settings.held_out;
  int64_t count = rf_rl_prompts_count(prompts);
  sampling now = {.rl = rl, .groups = count, .what = "evaluating"};
  rf_rl_forget(rl);
  RF_TRY(make_room(rl, count, error));
  rf_replies_begin(rl->generator, count);
  for (int64_t i = 0; i < count; i++) RF_TRY(submit(rl, rf_rl_prompts_row(prompts, i), 0, true, error));
  RF_TRY(run(&now, report, error));
  add_overlong(rl, 0);
  rf_rl_measure_answers(rl, 0, report);
  return RAFTER_OK;
}
