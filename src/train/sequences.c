/* sequences.c - see sequences.h. */
#include "train/sequences.h"
#include "run/record.h"
#include "train/step.h"

#include <math.h>
#include <string.h>

/* Inputs with one number per row of a microbatch, which sequences have besides tokens. NULL: the
 * graph does not have this input. */
typedef struct row_inputs {
  float *old_logprobs, *reference_logprobs, *advantages, *weights;
  const float *nll; /* (n): output */
} row_inputs;

/* Sequences that are packed into microbatches, in order. The fill for microbatch 0 begins with the
 * first sequence again. */
typedef struct packed {
  rf_trainer *trainer;
  int plan; /* number of the plan in the run */
  const rf_sequence *sequence;
  int64_t count, first, next; /* the current microbatch has the sequences [first, next) */
  int each;
  rf_token_batch batch;
  row_inputs in;
} packed;

static const rf_graph *graph_of(const packed *p) {
  return (p->plan ? p->trainer->val_plan : p->trainer->plan)->graph;
}

static packed packed_of(rf_trainer *t, int plan, const rf_sequence *sequence, int64_t count, int each) {
  packed p = {.trainer = t, .plan = plan, .sequence = sequence, .count = count, .each = each};
  p.batch = plan ? t->val_batch : t->batch;
  if (!p.batch.tokens) return p;
  p.in = (row_inputs){.old_logprobs = rf_run_named(t->run, plan, "old_logprobs", NULL),
                      .reference_logprobs = rf_run_named(t->run, plan, "reference_logprobs", NULL),
                      .advantages = rf_run_named(t->run, plan, "advantages", NULL),
                      .weights = rf_run_named(t->run, plan, "loss_weights", NULL),
                      .nll = rf_run_named(t->run, plan, "nll", NULL)};
  return p;
}

/* First row for sequences of `count` tokens, at or after row `row`. If chips have different rows,
 * all these sequences are in rows of the same chip. */
static int64_t first_row(const rf_graph *whole, int64_t rows, int64_t row, int64_t count) {
  int64_t each = rows / rf_mesh_copies(&whole->mesh);
  return row % each + count <= each ? row : rf_round_up(row, each);
}

/* Number of rows of a microbatch on all chips. whole->rows is the number on one chip. */
static int64_t rows_of(const rf_trainer *t) {
  const rf_build_options *b = &t->settings.plan.build;
  return b->microbatch * b->seq;
}

static int64_t tokens_of(const rf_sequence *s, int each) {
  int64_t sum = 0;
  for (int i = 0; i < each; i++) sum += s[i].count;
  return sum;
}

/* Sets p->next to the end of the microbatch that begins with sequence `first`. */
static void take_microbatch(packed *p, int64_t first) {
  int64_t rows = rows_of(p->trainer), row = 0;
  p->first = first;
  for (p->next = first; p->next < p->count; p->next += p->each) {
    int64_t tokens = tokens_of(&p->sequence[p->next], p->each),
            at = first_row(graph_of(p), rows, row, tokens);
    if (at + tokens > rows) break;
    row = at + tokens;
  }
}

/* Each unused row is a segment of its own, because attention takes less time with short
 * segments. */
static void leave_unused(packed *p, int64_t row, int64_t end) {
  rf_token_batch *b = &p->batch;
  for (; row < end; row++) {
    b->segments[b->segment_count++] = (int32_t)row;
    b->tokens[row] = b->positions[row] = 0;
    b->labels[row] = -1;
    if (p->in.weights) p->in.weights[row] = 0;
    if (p->in.old_logprobs) p->in.old_logprobs[row] = 0;
    if (p->in.reference_logprobs) p->in.reference_logprobs[row] = 0;
    if (p->in.advantages) p->in.advantages[row] = 0;
  }
}

static void put(float *to, int64_t row, const float *values, int64_t answer) {
  if (to) to[row] = answer >= 0 && values ? values[answer] : 0;
}

/* The row of token t predicts token t + 1, so the row has the inputs of token t + 1. */
static void fill_sequence(packed *p, const rf_sequence *s, int64_t first) {
  rf_token_batch *b = &p->batch;
  b->segments[b->segment_count++] = (int32_t)first;
  for (int64_t t = 0; t < s->count; t++) {
    int64_t row = first + t, answer = t + 1 < s->count ? t + 1 - s->prompt : -1;
    bool counts = answer >= 0 && s->weight != 0;
    b->tokens[row] = s->tokens[t];
    b->positions[row] = (int32_t)t;
    b->labels[row] = counts ? s->tokens[t + 1] : -1;
    put(p->in.old_logprobs, row, s->old_logprobs, answer);
    put(p->in.reference_logprobs, row, s->reference_logprobs, answer);
    put(p->in.advantages, row, s->advantages, answer);
    if (p->in.weights) p->in.weights[row] = counts ? s->weight : 0;
  }
}

static void fill(packed *p) {
  int64_t row = 0, rows = rows_of(p->trainer);
  p->batch.segment_count = 0;
  for (int64_t i = p->first; i < p->next; i++) {
    int64_t at = row;
    if ((i - p->first) % p->each == 0)
      at = first_row(graph_of(p), rows, row, tokens_of(&p->sequence[i], p->each));
    leave_unused(p, row, at);
    fill_sequence(p, &p->sequence[i], at);
    row = at + p->sequence[i].count;
  }
  leave_unused(p, row, rows);
  for (int64_t s = p->batch.segment_count; s <= rows; s++) p->batch.segments[s] = (int32_t)rows;
}

static rf_status fill_micro(void *self, int64_t micro, rf_error *error) {
  packed *p = self;
  (void)error;
  take_microbatch(p, micro ? p->next : 0);
  fill(p);
  return RAFTER_OK;
}

static void take_logprobs(void *self, int64_t micro) {
  packed *p = self;
  (void)micro;
  int64_t row = 0, rows = rows_of(p->trainer);
  for (int64_t i = p->first; i < p->next && p->in.nll; i++) {
    const rf_sequence *s = &p->sequence[i];
    if ((i - p->first) % p->each == 0) row = first_row(graph_of(p), rows, row, tokens_of(s, p->each));
    for (int64_t a = 0; s->logprobs && a < s->count - s->prompt; a++)
      s->logprobs[a] = s->weight != 0 ? -p->in.nll[row + s->prompt - 1 + a] : 0;
    row += s->count;
  }
}

/* Does the same after a whole step, for which it packs the microbatch again. */
static void take_later(void *self, int64_t micro) {
  packed *p = self;
  take_microbatch(p, micro ? p->next : 0);
  take_logprobs(p, micro);
}

/* ---- the steps ------------------------------------------------------------------------------- */

static rf_status check(const rf_trainer *t, const rf_sequence *sequence, int64_t count, int each,
                       rf_error *error) {
  int64_t seq = t->settings.plan.build.seq, rows = rows_of(t) / rf_mesh_copies(&t->plan->graph->mesh);
  for (int64_t i = 0; i < count; i++) {
    const rf_sequence *s = &sequence[i];
    if (s->count < 2 || s->count > seq || s->prompt < 1 || s->prompt > s->count)
      return RF_FAIL(error, RAFTER_INVALID, "raise --seq",
                     "a sequence is too long or empty (sequence %lld: expected 2 to %lld tokens with a "
                     "prompt, got %lld tokens, %lld of them in the prompt)",
                     (long long)i, (long long)seq, (long long)s->count, (long long)s->prompt);
    if (i % each == 0 && tokens_of(s, each) > rows)
      return RF_FAIL(error, RAFTER_INVALID, "raise --microbatch",
                     "%d sequences that belong together are longer than a microbatch (expected at most %lld "
                     "tokens, got %lld)",
                     each, (long long)rows, (long long)tokens_of(s, each));
  }
  return RAFTER_OK;
}

rf_status rf_sequences_microbatches(const rf_trainer *trainer, const rf_sequence *sequence, int64_t count,
                                    int each, int64_t *microbatches, rf_error *error) {
  packed p = {.trainer = (rf_trainer *)trainer, .sequence = sequence, .count = count, .each = each};
  RF_TRY(check(trainer, sequence, count, each, error));
  /* a step without sequences has one microbatch without labels, so its gradients are 0 */
  for (*microbatches = 0; p.next < count || !*microbatches; ++*microbatches) take_microbatch(&p, p.next);
  return RAFTER_OK;
}

static double flops_of(const rf_trainer *t, const rf_sequence *sequence, int64_t count, int64_t tokens) {
  double flops = t->work.fixed + t->work.per_token * (double)tokens;
  for (int w = 0; w < t->work.windows; w++)
    for (int64_t i = 0; i < count; i++)
      flops += t->work.at[w].per_pair * rf_segment_pairs(sequence[i].count, t->work.at[w].window);
  return flops;
}

static int64_t labels_of(const rf_sequence *sequence, int64_t count) {
  int64_t labels = 0;
  for (int64_t i = 0; i < count; i++)
    if (sequence[i].weight != 0) labels += sequence[i].count - sequence[i].prompt;
  return labels;
}

/* One program computes all microbatches of the plan. If the step needs fewer microbatches, the
 * remaining microbatches are empty. */
static rf_status take_all_microbatches(const rf_trainer *t, rf_step_source *source, rf_error *error) {
  int64_t all = t->plan->graph->accumulate;
  source->take = take_later;
  if (source->microbatches > all)
    return RF_FAIL(error, RAFTER_INVALID, "raise --accumulate or --microbatch",
                   "the program of a step has too few microbatches (expected %lld or more, got %lld)",
                   (long long)source->microbatches, (long long)all);
  source->microbatches = all;
  return RAFTER_OK;
}

rf_status rf_sequences_step(rf_trainer *trainer, const rf_sequence *sequence, int64_t count, int each,
                            rafter_step *step, rf_error *error) {
  double start = rf_now_seconds();
  packed p = packed_of(trainer, 0, sequence, count, each);
  rf_step_source source = {.self = &p, .fill = fill_micro, .take = take_logprobs, .loss_scale = 1};
  RF_TRY(rf_sequences_microbatches(trainer, sequence, count, each, &source.microbatches, error));
  if (source.microbatches > 1 && trainer->settings.plan.build.accumulate == 1)
    return RF_FAIL(error, RAFTER_INVALID, "raise --accumulate or --microbatch",
                   "the plan adds no gradients, but the step needs %lld microbatches",
                   (long long)source.microbatches);
  if (rf_run_defers(trainer->run, 0)) RF_TRY(take_all_microbatches(trainer, &source, error));
  source.tokens = tokens_of(sequence, (int)count);
  source.valid = labels_of(sequence, count);
  source.flops = flops_of(trainer, sequence, count, source.tokens);
  rf_record_step(trainer->step + 1);
  rf_guard_begin("a training step");
  RF_TRY(rf_step_take(trainer, &source, start, step, error));
  if (!trainer->metrics) return RAFTER_OK;
  step->loss = trainer->metrics[0];
  if (trainer->metrics[1] > 0) step->accuracy = trainer->metrics[2] / trainer->metrics[1];
  return RAFTER_OK;
}

rf_status rf_sequences_validate(rf_trainer *trainer, const rf_sequence *sequence, int64_t count, int each,
                                double *loss, rf_error *error) {
  packed p = packed_of(trainer, 1, sequence, count, each);
  RF_TRY(check(trainer, sequence, count, each, error));
  int64_t began = rf_phase_begin();
  for (int64_t micro = 0; p.batch.tokens && p.next < count; micro++) {
    RF_TRY(fill_micro(&p, micro, error));
    rf_run_inputs inputs = rf_step_inputs(trainer, 1);
    double start = rf_now_seconds();
    RF_TRY(rf_run_all(trainer->run, 1, &inputs, error));
    trainer->counted.validation_passes++;
    trainer->counted.validation_seconds += rf_now_seconds() - start;
    take_logprobs(&p, micro);
    *loss += trainer->val_metrics[0];
  }
  rf_phase_end(RF_PHASE_VALIDATION, began);
  return RAFTER_OK;
}
