/* preferences.c - see preferences.h. */
#include "rl/preferences.h"

#include "base/file.h"
#include "run/record.h"
#include "train/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening --------------------------------------------------------------------------------- */

static rf_status open_pairs(rf_preferences *p, const rf_train_settings *s, rf_error *error) {
  const rf_source_options options = {.model = &s->model,
                                     .model_folder = rf_train_tokenizer(s),
                                     .seq = s->plan.build.seq,
                                     .val_fraction = s->val_fraction,
                                     .loss_on = s->loss_on,
                                     .fields = s->fields,
                                     .template = s->template,
                                     .work_folder = s->work_folder};
  int64_t began = rf_phase_begin();
  RF_TRY(rf_pairs_open(s->data, &options, &p->set, error));
  rf_phase_end(RF_PHASE_TOKENIZE, began);
  return RAFTER_OK;
}

static void make_buffers(rf_preferences *p, int64_t seq) {
  const size_t answers = 2 * (size_t)p->step_pairs, values = answers * (size_t)seq;
  p->drawn = rf_must(calloc((size_t)p->step_pairs, sizeof *p->drawn));
  p->sequence = rf_must(calloc(answers, sizeof *p->sequence));
  p->tokens = rf_must(calloc(values, sizeof *p->tokens));
  p->logprobs = rf_must(calloc(values, sizeof *p->logprobs));
  p->reference = rf_must(calloc(values, sizeof *p->reference));
}

int rf_preferences_plans(const rf_preferences *p, const rf_plan *plans[3]) {
  int count = rf_trainer_plans(p->trainer, plans);
  if (p->references) plans[count++] = p->references->plan;
  return count;
}

static rf_status save_references(void *self, const char *folder, rf_error *error) {
  const rf_preferences *p = self;
  return p->references ? rf_references_save(p->references, folder, error) : RAFTER_OK;
}

static rf_status start(rf_preferences *p, rf_error *error) {
  rf_trainer *t = p->trainer;
  const rf_plan *plans[3];
  int count = rf_preferences_plans(p, plans);
  RF_TRY(rf_run_open(plans, count, t->settings.debug, &p->run, error));
  if (p->references) {
    RF_TRY(rf_references_bind(p->references, p->run, count - 1, error));
    if (t->settings.resume_folder)
      RF_TRY(rf_references_load(p->references, t->settings.resume_folder, error));
  }
  t->save_more = save_references;
  t->more = p;
  return rf_trainer_bind(t, p->run, error);
}

rf_status rf_preferences_open(const rf_train_settings *settings, rf_preferences **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_preferences *p = rf_must(calloc(1, sizeof *p));
  rf_train_settings own = *settings;
  const rf_build_options *build = &own.plan.build;
  p->set.source.shard.file = -1;
  p->step_pairs = build->microbatch * build->accumulate / 2;
  RF_GO(open_pairs(p, settings, error));
  const rf_given given = {.spec = p->set.source.spec,
                          .rows = p->set.train,
                          .tokens = p->set.source.tokens,
                          .digest = rf_pairs_digest(&p->set),
                          .validates = p->set.held_out > 0};
  own.given = &given;
  RF_GO(rf_trainer_prepare(&own, &p->trainer, error));
  p->trainer->settings.given = NULL;
  p->trainer->loader.step_rows = p->step_pairs;
  RF_GO(rf_plan_require_fit(p->trainer->plan, error));
  if (rf_objective_has_reference(build))
    RF_GO(rf_references_open(&own, p->trainer->plan, 2 * (p->set.train + p->set.held_out), &p->references,
                             error));
  make_buffers(p, build->seq);
  RF_GO(start(p, error));
done:
  if (status == RAFTER_OK) *out = p;
  else rf_preferences_close(p);
  return status;
}

void rf_preferences_close(rf_preferences *p) {
  if (!p) return;
  if (p->references) {
    rf_scorer_close(p->references->scorer);
    p->references->scorer = NULL;
  }
  rf_run_close(p->run);
  rf_references_close(p->references);
  rf_trainer_close(p->trainer);
  rf_pairs_close(&p->set);
  free(p->sequence);
  free(p->drawn);
  free(p->tokens);
  free(p->logprobs);
  free(p->reference);
  free(p);
}

/* ---- computing references before the first step ---------------------------------------------- */

static bool is_unknown(const rf_references *r, int64_t pair) {
  return isnan(r->sum[2 * pair]) || isnan(r->sum[2 * pair + 1]);
}

/* Returns the malloc'ed indices of those pairs of the run whose references are unknown. *count is
 * the number of these pairs. */
static int64_t *missing(const rf_preferences *p, int64_t steps, int64_t val_rows, int64_t *count) {
  const int64_t train = p->set.train, held = val_rows < p->set.held_out ? val_rows : p->set.held_out,
                drawn = p->trainer->loader.state.rows, left = steps * p->step_pairs - drawn;
  int64_t *list = rf_must(malloc((size_t)(train + held + 1) * sizeof *list));
  bool *listed = rf_must(calloc((size_t)train, sizeof *listed));
  *count = 0;
  /* two epochs contain every pair, wherever the first epoch begins */
  for (int64_t i = 0; i < left && i < 2 * train; i++) {
    int64_t pair = rf_pairs_at(&p->set, p->trainer->settings.seed, drawn + i);
    if (listed[pair] || !is_unknown(p->references, pair)) continue;
    listed[pair] = true;
    list[(*count)++] = pair;
  }
  for (int64_t pair = train; pair < train + held; pair++)
    if (is_unknown(p->references, pair)) list[(*count)++] = pair;
  free(listed);
  return list;
}

rf_status rf_preferences_begin(rf_preferences *p, int64_t steps, int64_t val_rows, rf_references_each *each,
                               void *self, bool *all, rf_error *error) {
  rf_trainer *t = p->trainer;
  const rf_train_settings *s = &t->settings;
  int64_t count = 0;
  *all = true;
  if (!p->references || p->references->anytime || !t->batch.tokens) return RAFTER_OK;
  int64_t *list = missing(p, steps, val_rows, &count);
  const bool trained = count && t->step > 0; /* a resumed run has more steps than before */
  rf_status status = RAFTER_OK;
  if (trained) status = rf_fill_weights(p->run, 0, t->plan, s->weights_folder, s->seed, s->progress, error);
  if (status == RAFTER_OK)
    status = rf_references_compute(p->references, &p->set, list, count, each, self, all, error);
  free(list);
  if (trained) {
    rf_error other = {0};
    rf_status loaded = rf_checkpoint_load(t, s->resume_folder, status == RAFTER_OK ? error : &other);
    if (status == RAFTER_OK) status = loaded;
  }
  return status;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The loss uses only the sum over an answer. Two floats hold more digits of this sum than one
 * float. */
static const float *spread(double sum, int64_t count, float *values) {
  memset(values, 0, (size_t)count * sizeof *values);
  values[0] = (float)sum;
  if (count > 1) values[1] = (float)(sum - (double)values[0]);
  return values;
}

/* Prepares the sequences of `count` pairs. The loss of each pair is divided by `of`. */
static rf_status fill(rf_preferences *p, const int64_t *pair, int64_t count, int64_t of, rf_error *error) {
  const int64_t seq = p->trainer->settings.plan.build.seq;
  for (int64_t i = 0; i < 2 * count; i++) {
    const rf_pair *from = &p->set.pair[pair[i / 2]];
    const rf_answer *answer = i % 2 ? &from->rejected : &from->chosen;
    int32_t *tokens = p->tokens + i * seq;
    RF_TRY(rf_pairs_read(&p->set, answer, tokens, error));
    p->sequence[i] = (rf_sequence){.tokens = tokens,
                                   .count = answer->count,
                                   .prompt = answer->prompt,
                                   .weight = 1.0f / (float)of,
                                   .logprobs = p->logprobs + i * seq};
    if (p->references)
      p->sequence[i].reference_logprobs = spread(p->references->sum[2 * pair[i / 2] + i % 2],
                                                 answer->count - answer->prompt, p->reference + i * seq);
  }
  return RAFTER_OK;
}

/* Reads the pairs, and computes their references if they are not yet known. */
static rf_status prepare(rf_preferences *p, const int64_t *pair, int64_t count, int64_t of,
                         double *reference_seconds, rf_error *error) {
  bool all = true;
  double before = p->references ? p->references->seconds : 0;
  rf_status status = rf_pairs_unchanged(&p->set, error);
  if (status == RAFTER_OK && p->references)
    status = rf_references_compute(p->references, &p->set, pair, count, NULL, NULL, &all, error);
  if (status == RAFTER_OK) status = fill(p, pair, count, of, error);
  if (status == RAFTER_FAILED) p->trainer->lost_data = true;
  if (p->references) *reference_seconds += p->references->seconds - before;
  return status;
}

/* Sums the log-probabilities of an answer, and returns the answer's reward. */
static double reward_of(const rf_preferences *p, int64_t i, const int64_t *pair, double *logprob) {
  const rf_pairs *loss = &p->trainer->settings.plan.build.pairs;
  const rf_sequence *s = &p->sequence[i];
  const int64_t count = s->count - s->prompt;
  double sum = 0;
  for (int64_t a = 0; a < count; a++) sum += (double)s->logprobs[a];
  *logprob += sum;
  if (p->references) sum -= p->references->sum[2 * pair[i / 2] + i % 2];
  return (double)loss->beta * (loss->kind == RF_PAIRS_DPO ? sum : sum / (double)count);
}

/* Adds the values of a step's pairs to *result, which has sums until `mean` is called. */
static void add(const rf_preferences *p, const int64_t *pair, int64_t count, rf_preference *result) {
  if (!p->trainer->batch.tokens) return;
  for (int64_t i = 0; i < count; i++) {
    double chosen = reward_of(p, 2 * i, pair, &result->chosen_logprob),
           rejected = reward_of(p, 2 * i + 1, pair, &result->rejected_logprob);
    result->chosen_reward += chosen;
    result->rejected_reward += rejected;
    result->margin += chosen - rejected;
    result->accuracy += chosen > rejected;
  }
  result->pairs += count;
}

static void mean(rf_preference *result) {
  double *sums[] = {&result->accuracy,        &result->margin,         &result->chosen_reward,
                    &result->rejected_reward, &result->chosen_logprob, &result->rejected_logprob};
  for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
    *sums[i] = result->pairs ? *sums[i] / (double)result->pairs : 0;
}

rf_status rf_preferences_step(rf_preferences *p, rafter_step *step, rf_preference *result, rf_error *error) {
  rf_trainer *t = p->trainer;
  const rf_loader_state before = t->loader.state;
  *result = (rf_preference){0};
  for (int64_t i = 0; i < p->step_pairs; i++)
    p->drawn[i] = rf_pairs_at(&p->set, t->settings.seed, t->loader.state.rows + i);
  rf_status status = prepare(p, p->drawn, p->step_pairs, p->step_pairs, &result->reference_seconds, error);
  RF_TRY(status);
  t->loader.state.rows += p->step_pairs;
  t->loader.state.drawn[0] = t->loader.state.rows;
  status = rf_sequences_step(t, p->sequence, 2 * p->step_pairs, 2, step, error);
  if (status != RAFTER_OK) t->loader.state = before;
  RF_TRY(status);
  add(p, p->drawn, p->step_pairs, result);
  mean(result);
  result->loss = step->loss;
  step->accuracy = result->accuracy;
  return RAFTER_OK;
}

rf_status rf_preferences_validate(rf_preferences *p, int64_t rows, rf_preference *result, rf_error *error) {
  int64_t have = rows < p->set.held_out ? rows : p->set.held_out;
  *result = (rf_preference){0};
  if (!p->trainer->val_plan)
    return RF_FAIL(error, RAFTER_INVALID, "hold pairs out with --val-fraction",
                   "the data has no validation pairs (expected 1 or more, got 0)");
  for (int64_t at = 0, now; at < have; at += now) {
    now = have - at < p->step_pairs ? have - at : p->step_pairs;
    for (int64_t i = 0; i < now; i++) p->drawn[i] = p->set.train + at + i;
    RF_TRY(prepare(p, p->drawn, now, have, &result->reference_seconds, error));
    RF_TRY(rf_sequences_validate(p->trainer, p->sequence, 2 * now, 2, &result->loss, error));
    add(p, p->drawn, now, result);
  }
  mean(result);
  return RAFTER_OK;
}
