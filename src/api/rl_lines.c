/* rl_lines.c - see rl_lines.h. */
#include "api/rl_lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* JSON has no infinite numbers and no NaN. */
static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static void put(json_t *line, const char *key, double value) {
  json_object_set_new(line, key, number(value));
}
static void put_int(json_t *line, const char *key, int64_t value) {
  json_object_set_new(line, key, json_integer((json_int_t)value));
}

static json_t *parts_of(const rf_rl *rl, const rf_rl_report *r, bool spread) {
  json_t *parts = json_object();
  for (int p = 0; p < RF_RL_PARTS; p++) {
    const char *name = rf_rl_part_name(rl, p);
    if (!name) continue;
    json_object_set_new(parts, name, number(spread ? r->part[p].deviation : r->part[p].mean));
  }
  return parts;
}

static void put_seconds(json_t *line, const rf_rl_report *r) {
  put(line, "sample_seconds", r->sample_seconds);
  put(line, "reward_seconds", r->reward_seconds);
  put(line, "score_seconds", r->score_seconds);
  put(line, "train_seconds", r->train_seconds);
  put(line, "seconds", r->seconds);
  put(line, "predicted_sample_seconds", r->predicted_sample);
  put(line, "predicted_score_seconds", r->predicted_score);
  put(line, "predicted_train_seconds", r->predicted_train);
  put(line, "predicted_seconds", r->predicted_sample + r->predicted_score + r->predicted_train);
  put(line, "sample_tokens_per_second", (double)r->sampled_tokens / r->sample_seconds);
  put(line, "train_tokens_per_second", (double)r->trained_tokens / r->train_seconds);
  put(line, "sample_limit_fraction", r->sample_limit);
  put(line, "train_limit_fraction", r->train_limit);
}

json_t *rf_rl_line_step(const rf_rl *rl, const rf_rl_report *r) {
  json_t *line = json_object();
  put_int(line, "step", r->step);
  put(line, "loss", r->train.loss);
  put(line, "lr", r->train.lr);
  put(line, "grad_norm", r->train.grad_norm);
  put(line, "reward", r->reward.mean);
  put(line, "reward_std", r->reward.deviation);
  put(line, "reward_min", r->reward.min);
  put(line, "reward_max", r->reward.max);
  json_object_set_new(line, "rewards", parts_of(rl, r, false));
  json_object_set_new(line, "rewards_std", parts_of(rl, r, true));
  if (rl->reference) put(line, "kl", r->kl);
  put(line, "entropy", r->entropy);
  if (r->trained_tokens) { /* the ratios exist only for trained tokens */
    put(line, "clip_fraction", r->clip_fraction);
    put(line, "ratio_min", r->ratio_min);
    put(line, "ratio_mean", r->ratio_mean);
    put(line, "ratio_max", r->ratio_max);
  }
  put(line, "answer_tokens", (double)r->sampled_tokens / (double)r->answers);
  put_int(line, "answer_tokens_max", r->longest);
  put(line, "cut_fraction", (double)r->cut / (double)r->answers);
  put_int(line, "flat_groups", r->flat_groups);
  put_int(line, "groups", r->groups);
  put_int(line, "dropped_groups", r->dropped_groups);
  put_int(line, "prompts", r->drawn);
  put_int(line, "samples", r->answers);
  put_int(line, "empty_answers", r->empty);
  put_int(line, "tokens", r->train.tokens);
  put_seconds(line, r);
  return line;
}

void rf_rl_line_evaluation(const rf_rl *rl, const rf_rl_report *r, json_t *line) {
  put(line, "eval_reward", r->reward.mean);
  json_object_set_new(line, "eval_rewards", parts_of(rl, r, false));
  put_int(line, "eval_rows", r->answers);
  put(line, "eval_answer_tokens", (double)r->sampled_tokens / (double)r->answers);
  put(line, "eval_seconds", r->seconds);
}

/* Lists the text of each token. Tokens are decoded one after the other, so the pieces join to the
 * whole text. */
static json_t *pieces_of(const rf_rl *rl, const rf_reply *reply) {
  json_t *list = json_array();
  rf_decoder decoder;
  const rf_tokenizer *tokenizer = rl->settings.tokenizer;
  if (!tokenizer) return list;
  char *piece = malloc(rf_decoder_room(tokenizer) + 1);
  if (!piece) return list;
  rf_decoder_start(&decoder, tokenizer, RF_DECODE_CONTINUES | RF_DECODE_SPECIALS);
  for (int64_t t = 0; t < reply->tokens.count; t++) {
    size_t bytes = rf_decoder_next(&decoder, reply->tokens.at[t], piece);
    json_array_append_new(list, rf_json_bytes(piece, bytes));
  }
  free(piece);
  return list;
}

static json_t *floats_of(const float *values, int64_t count) {
  json_t *list = json_array();
  for (int64_t t = 0; t < count; t++) json_array_append_new(list, number((double)values[t]));
  return list;
}

static json_t *answer_of(const rf_rl *rl, const rf_rl_answer *a, bool evaluation) {
  const rf_reply *r = a->reply;
  json_t *json = json_object(), *parts = json_object(), *ids = json_array();
  for (int p = 0; p < RF_RL_PARTS; p++)
    if (rf_rl_part_name(rl, p)) json_object_set_new(parts, rf_rl_part_name(rl, p), number(a->part[p]));
  for (int64_t t = 0; t < r->tokens.count; t++) json_array_append_new(ids, json_integer(r->tokens.at[t]));
  json_object_set_new(json, "text", rf_json_bytes(r->text ? r->text : "", r->bytes));
  json_object_set_new(json, "finish_reason", json_string(rf_finish_name(r->finish)));
  json_object_set_new(json, "reward", number(a->reward));
  json_object_set_new(json, "rewards", parts);
  if (!evaluation) put(json, "advantage", (double)a->judged.advantage);
  json_object_set_new(json, "tokens", ids);
  json_object_set_new(json, "pieces", pieces_of(rl, r));
  json_object_set_new(json, "logprobs", floats_of(r->logprobs, r->tokens.count));
  if (evaluation || !rl->reference) return json;
  json_t *kl = json_array();
  for (int64_t t = 0; t < r->tokens.count; t++) {
    double k = (double)a->judged.reference_logprobs[t] - (double)r->logprobs[t];
    json_array_append_new(kl, number(exp(k) - k - 1));
  }
  json_object_set_new(json, "kl", kl);
  return json;
}

json_t *rf_rl_line_group(const rf_rl *rl, int64_t index, int64_t step, bool evaluation) {
  const rf_rl_group *group = &rl->group[index];
  const rf_rl_prompt *p = group->prompt;
  json_t *line = json_object(), *samples = json_array();
  put_int(line, "step", step);
  if (evaluation) json_object_set_new(line, "eval", json_true());
  json_object_set_new(line, "id", rf_json_bytes(p->id, strlen(p->id)));
  json_object_set_new(line, "prompt", rf_json_bytes(p->text ? p->text : "", p->text ? strlen(p->text) : 0));
  if (p->answer) json_object_set_new(line, "answer", rf_json_bytes(p->answer, strlen(p->answer)));
  for (int i = 0; i < group->replies.samples; i++)
    json_array_append_new(samples, answer_of(rl, &group->answer[i], evaluation));
  json_object_set_new(line, "samples", samples);
  return line;
}
