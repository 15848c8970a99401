/* references.c - see references.h. */
#include "rl/references.h"

#include "base/file.h"
#include "formats/safetensors.h"
#include "run/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

rf_status rf_reference_plan(const rf_model *model, const rf_plan *owner, rf_infer_settings *settings,
                            rf_plan **plan, rf_error *error) {
  *settings = (rf_infer_settings){.model = *model, .plan = owner->options};
  settings->plan.owner = owner;
  settings->plan.build.objective = RF_OBJECTIVE_NLL;
  settings->plan.build.top = 0;
  return rf_score_plan(settings, plan, error);
}

double rf_reference_seconds(const rf_plan *reference, const rf_plan *owner) {
  return reference->step_seconds * owner->options.build.accumulate;
}

static int64_t rows_of(const rf_references *r) {
  const rf_build_options *b = &r->plan->options.build;
  return b->microbatch * b->seq;
}

rf_status rf_references_open(const rf_train_settings *train, const rf_plan *owner, int64_t answers,
                             rf_references **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_references *r = rf_must(calloc(1, sizeof *r));
  rf_model model = train->model;
  /* an adapter from an earlier training is a part of the reference model */
  r->anytime = model.lora.rank > 0 && !*model.lora.folder;
  if (r->anytime) model.lora = (rf_lora){0};
  RF_GO(rf_reference_plan(&model, owner, &r->settings, &r->plan, error));
  RF_GO(rf_plan_require_fit(r->plan, error));
  r->settings.seed = train->seed;
  r->settings.debug = train->debug;
  r->settings.progress = train->progress;
  const size_t rows = (size_t)rows_of(r);
  r->count = answers;
  r->sum = rf_must(malloc((size_t)(answers + 1) * sizeof *r->sum));
  r->tokens = rf_must(malloc(rows * sizeof *r->tokens));
  r->logprobs = rf_must(malloc(rows * sizeof *r->logprobs));
  r->scored = rf_must(malloc((rows + 1) * sizeof *r->scored));
  r->answer = rf_must(malloc((rows + 1) * sizeof *r->answer));
  for (int64_t i = 0; i < answers; i++) r->sum[i] = NAN;
done:
  if (status == RAFTER_OK) *out = r;
  else rf_references_close(r);
  return status;
}

rf_status rf_references_bind(rf_references *r, rf_run *run, int number, rf_error *error) {
  return rf_scorer_bind(&r->settings, run, number, r->plan, &r->scorer, error);
}

void rf_references_close(rf_references *r) {
  if (!r) return;
  rf_scorer_close(r->scorer);
  rf_plan_free(r->plan);
  free(r->sum);
  free(r->tokens);
  free(r->logprobs);
  free(r->scored);
  free(r->answer);
  free(r);
}

static const rf_answer *answer_at(const rf_pair_set *set, int64_t answer) {
  const rf_pair *pair = &set->pair[answer / 2];
  return answer % 2 ? &pair->rejected : &pair->chosen;
}

/* Scores the answers that are waiting, and clears the list. */
static rf_status score_waiting(rf_references *r, const rf_pair_set *set, int *waiting, int64_t *rows,
                               rf_error *error) {
  if (!*waiting) return RAFTER_OK;
  double start = rf_now_seconds();
  RF_TRY(rf_scorer_pass(r->scorer, r->scored, *waiting, error));
  for (int i = 0; i < *waiting; i++) {
    const rf_answer *answer = answer_at(set, r->answer[i]);
    double sum = 0;
    for (int32_t t = answer->prompt; t < answer->count; t++) sum += (double)r->scored[i].logprobs[t];
    r->sum[r->answer[i]] = sum;
  }
  r->passes++;
  r->scored_tokens += *rows;
  r->seconds += rf_now_seconds() - start;
  *waiting = 0;
  *rows = 0;
  return RAFTER_OK;
}

/* True if the pair is already in the list: a step at the end of an epoch may have a pair twice. */
static bool waits(const rf_references *r, int waiting, int64_t answer) {
  for (int i = 0; i < waiting; i++)
    if (r->answer[i] == answer) return true;
  return false;
}

rf_status rf_references_compute(rf_references *r, const rf_pair_set *set, const int64_t *pair, int64_t count,
                                rf_references_each *each, void *self, bool *all, rf_error *error) {
  int64_t rows = 0;
  int waiting = 0;
  *all = true;
  for (int64_t i = 0; r->scorer->tokens && i < 2 * count; i++) {
    int64_t id = 2 * pair[i / 2] + i % 2;
    const rf_answer *answer = answer_at(set, id);
    if (!isnan(r->sum[id]) || waits(r, waiting, id)) continue;
    if (rows + answer->count > rows_of(r)) {
      RF_TRY(score_waiting(r, set, &waiting, &rows, error));
      uint32_t stops = each && !each(self, i / 2, count);
      RF_TRY(rf_run_agree(r->scorer->run, &stops, error)); /* all hosts stop together */
      if (stops) return *all = false, RAFTER_OK;
    }
    RF_TRY(rf_pairs_read(set, answer, r->tokens + rows, error));
    r->answer[waiting] = id;
    r->scored[waiting++] =
        (rf_scored){.tokens = r->tokens + rows, .count = answer->count, .logprobs = r->logprobs + rows};
    rows += answer->count;
  }
  RF_TRY(score_waiting(r, set, &waiting, &rows, error));
  if (each) each(self, count, count);
  return RAFTER_OK;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static void path_in(const char *folder, char path[4400]) {
  snprintf(path, 4400, "%s/references.safetensors", folder);
}

rf_status rf_references_save(const rf_references *r, const char *folder, rf_error *error) {
  rf_status status = RAFTER_OK;
  char path[4400];
  rf_tensor_writer *writer = NULL;
  const rf_stored stored = {.name = "logprobs",
                            .dtype = RF_F64,
                            .rank = 2,
                            .shape = {r->count / 2, 2},
                            .count = r->count,
                            .bytes = r->count * 8};
  path_in(folder, path);
  RF_GO(rf_tensor_writer_open(path, &stored, 1, NULL, &writer, error));
  RF_GO(rf_tensor_writer_put_bytes(writer, r->sum, r->count * 8, error));
  status = rf_tensor_writer_commit(writer, error);
  writer = NULL;
done:
  rf_tensor_writer_discard(writer);
  return status;
}

rf_status rf_references_load(rf_references *r, const char *folder, rf_error *error) {
  char path[4400];
  rf_tensor_file *file = NULL;
  path_in(folder, path);
  if (access(path, F_OK)) return RAFTER_OK;
  RF_TRY(rf_tensor_file_open(path, &file, error));
  const rf_stored *stored = rf_tensor_file_find(file, "logprobs");
  rf_status status = RAFTER_OK;
  if (!stored || stored->dtype != RF_F64 || stored->count != r->count)
    status = RF_FAIL(error, RAFTER_FAILED, "resume with the --data, --fields and --seq of the run",
                     "the references are of other pairs (%s: expected %lld values of dtype f64, got %lld)",
                     path, (long long)r->count, stored ? (long long)stored->count : 0);
  else memcpy(r->sum, stored->data, (size_t)r->count * sizeof *r->sum);
  rf_tensor_file_close(file);
  return status;
}
