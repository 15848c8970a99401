/* score.c - see score.h. */
#include "generate/score.h"
#include "run/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

rf_status rf_score_plan(const rf_infer_settings *settings, rf_plan **plan, rf_error *error) {
  rf_plan_options options = settings->plan;
  options.build.job = RF_JOB_SCORE;
  options.build.accumulate = 1;
  options.build.dropout = 0;
  options.remat = RF_REMAT_NONE;
  /* All chips get the same number of sequences, and the same number of rows of each sequence. */
  const rf_mesh *mesh = &options.build.mesh;
  const rf_axes inside = RF_AXES_OF_PASS | RF_AXIS_BIT(RF_AXIS_TENSOR);
  options.build.microbatch = rf_round_up(options.build.microbatch, rf_mesh_copies(mesh));
  options.build.seq = rf_round_up(options.build.seq, rf_mesh_size(mesh, inside));
  return rf_plan_make(&settings->model, &options, plan, error);
}

rf_status rf_scorer_bind(const rf_infer_settings *settings, rf_run *run, int number, rf_plan *plan,
                         rf_scorer **out, rf_error *error) {
  rf_scorer *s = calloc(1, sizeof *s);
  if (!s) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a scorer");
  *s = (rf_scorer){.settings = *settings,
                   .plan = plan,
                   .run = run,
                   .number = number,
                   .tokens = rf_run_named(run, number, "tokens", NULL),
                   .labels = rf_run_named(run, number, "labels", NULL),
                   .positions = rf_run_named(run, number, "positions", NULL),
                   .segments = rf_run_named(run, number, "segments", NULL),
                   .logprobs = rf_run_named(run, number, "logprobs", NULL),
                   .top_ids = rf_run_named(run, number, "top_ids", NULL),
                   .top_logprobs = rf_run_named(run, number, "top_logprobs", NULL)};
  *out = s;
  return RAFTER_OK;
}

rf_status rf_scorer_open(const rf_infer_settings *settings, rf_scorer **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_plan *plan = NULL;
  rf_run *run = NULL;
  rf_scorer *s = NULL;
  RF_GO(rf_model_require_runnable(&settings->model, error));
  RF_GO(rf_score_plan(settings, &plan, error));
  const rf_plan *plans[] = {plan};
  RF_GO(rf_infer_open(settings, plans, 1, &run, error));
  RF_GO(rf_scorer_bind(settings, run, 0, plan, &s, error));
  s->owns = true;
  *out = s;
  return RAFTER_OK;
done:
  rf_run_close(run);
  rf_plan_free(plan);
  return status;
}

void rf_scorer_close(rf_scorer *s) {
  if (!s) return;
  if (s->owns) {
    rf_run_close(s->run);
    rf_plan_free(s->plan);
  }
  free(s);
}

int64_t rf_scorer_rows(const rf_scorer *s) {
  const rf_build_options *b = &s->plan->options.build;
  return b->microbatch * b->seq;
}

static rf_status check(const rf_scorer *s, const rf_scored *text, int count, rf_error *error) {
  int64_t rows = 0, seq = s->settings.plan.build.seq, vocab = s->settings.model.vocab;
  for (int i = 0; i < count; i++) {
    if (text[i].count < 1 || text[i].count > seq)
      return RF_FAIL(error, RAFTER_INVALID, "raise --seq, or score in windows with --stride",
                     "the number of tokens is out of range (sequence %d: expected 1 to %lld, got %lld)", i,
                     (long long)seq, (long long)text[i].count);
    for (int64_t t = 0; t < text[i].count; t++)
      if (text[i].tokens[t] < 0 || text[i].tokens[t] >= vocab)
        return RF_FAIL(error, RAFTER_INVALID, "use ids of the model's own tokenizer",
                       "token out of range (sequence %d, token %lld: expected an id below %lld, got %d)", i,
                       (long long)t, (long long)vocab, text[i].tokens[t]);
    rows += text[i].count;
  }
  if (rows > rf_scorer_rows(s))
    return RF_FAIL(error, RAFTER_INVALID, "score fewer sequences at a time",
                   "the sequences do not fit in one forward pass (expected at most %lld tokens, got %lld)",
                   (long long)rf_scorer_rows(s), (long long)rows);
  return RAFTER_OK;
}

/* Copies the results of one sequence. The row of token t predicts token t + 1, so its result
 * belongs to position t + 1. */
static rf_status give(const rf_scorer *s, const rf_scored *text, int64_t first, rf_error *error) {
  int64_t top = s->settings.plan.build.top;
  if (text->logprobs) text->logprobs[0] = 0;
  for (int64_t k = 0; k < top; k++) {
    if (text->top_ids) text->top_ids[k] = -1;
    if (text->top_logprobs) text->top_logprobs[k] = 0;
  }
  for (int64_t t = 1; t < text->count; t++) {
    int64_t row = first + t - 1;
    if (text->logprobs) text->logprobs[t] = s->logprobs[row];
    if (text->logprobs && !isfinite(text->logprobs[t]))
      return RF_FAIL(error, RAFTER_FAILED, "the weights may have values that are not finite, or too large",
                     "the logits are not finite (log-probability of token %lld: expected a finite number, "
                     "got %g)",
                     (long long)t, (double)text->logprobs[t]);
    if (text->top_ids && top)
      memcpy(text->top_ids + t * top, s->top_ids + row * top, (size_t)top * sizeof *text->top_ids);
    if (text->top_logprobs && top)
      memcpy(text->top_logprobs + t * top, s->top_logprobs + row * top,
             (size_t)top * sizeof *text->top_logprobs);
  }
  return RAFTER_OK;
}

/* Returns the first row of a sequence with `count` tokens, at or after row `row`. If several chips
 * have different rows, a sequence must be within the rows of one chip. */
static int64_t first_row(const rf_scorer *s, int64_t row, int64_t count) {
  int64_t each = rf_scorer_rows(s) / rf_mesh_copies(&s->plan->graph->mesh);
  return row % each + count <= each ? row : rf_round_up(row, each);
}

/* Makes each unused row a separate segment, because attention takes less time with short
 * segments. */
static int64_t leave_unused(const rf_scorer *s, int64_t segment, int64_t row, int64_t end) {
  for (; row < end; row++, segment++) {
    s->segments[segment] = (int32_t)row;
    s->tokens[row] = 0;
    s->positions[row] = 0;
    s->labels[row] = -1;
  }
  return segment;
}

/* Writes the inputs of the sequences that fit in one pass. Returns the number of these sequences.
 * *used is the number of rows up to the end of the last sequence. */
static int write_inputs(const rf_scorer *s, const rf_scored *text, int count, int64_t *used) {
  int64_t rows = rf_scorer_rows(s), row = 0, segment = 0;
  int fit = 0;
  for (; fit < count; fit++) {
    int64_t first = first_row(s, row, text[fit].count);
    if (first + text[fit].count > rows) break;
    segment = leave_unused(s, segment, row, first);
    s->segments[segment++] = (int32_t)(row = first);
    for (int64_t t = 0; t < text[fit].count; t++, row++) {
      s->tokens[row] = text[fit].tokens[t];
      s->positions[row] = (int32_t)t;
      s->labels[row] = t + 1 < text[fit].count ? text[fit].tokens[t + 1] : -1;
    }
  }
  *used = row;
  segment = leave_unused(s, segment, row, rows);
  for (; segment <= rows; segment++) s->segments[segment] = (int32_t)rows;
  return fit;
}

/* Scores sequences in one pass. *done is the number of scored sequences. */
static rf_status pass(rf_scorer *s, const rf_scored *text, int count, int *done, rf_error *error) {
  rf_record_step(-1);
  int64_t used = 0, began = rf_phase_begin();
  *done = count = write_inputs(s, text, count, &used);
  /* The debug options poison and find_nan also check unused rows, so all rows must be computed. */
  bool whole = s->settings.debug.poison || s->settings.debug.find_nan;
  rf_run_inputs inputs = {.rows = whole ? rf_scorer_rows(s) : used, .step = 1};
  RF_TRY(rf_run_stops(s->run, s->settings.progress.stop, &inputs.stop, error));
  rf_phase_end(RF_PHASE_DATA, began);
  rf_record_extent(count, used, used);
  rf_status status = rf_run_all(s->run, s->number, &inputs, error);
  began = rf_phase_begin();
  for (int64_t i = 0, row = 0; i < count && status == RAFTER_OK; row += text[i++].count)
    status = give(s, &text[i], row = first_row(s, row, text[i].count), error);
  rf_phase_end(RF_PHASE_SAMPLE, began);
  rf_record_step_end(used);
  return status;
}

rf_status rf_scorer_pass(rf_scorer *s, const rf_scored *text, int count, rf_error *error) {
  RF_TRY(check(s, text, count, error));
  for (int at = 0, done; s->tokens && at < count; at += done)
    RF_TRY(pass(s, text + at, count - at, &done, error));
  return RAFTER_OK;
}
