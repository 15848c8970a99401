/* generate.c - the two plans of a generator, its arena, and one sequence fed by hand. */
#include "generate/walk.h"
#include "run/record.h"

#include <stdlib.h>
#include <string.h>

/* A prefill walk has `chunk` rows, or as many as all slots together may fill. */
rf_status rf_generate_plans(const rf_generate_settings *settings, rf_plan **prefill, rf_plan **decode,
                            rf_error *error) {
  rf_plan_options options = settings->plan;
  rf_build_options *b = &options.build;
  b->job = RF_JOB_GENERATE;
  b->accumulate = 1;
  b->dropout = 0;
  options.remat = RF_REMAT_NONE;
  if (b->chunk < 1) b->chunk = RF_PREFILL_ROWS;
  if (b->chunk > b->seq) {
    b->rows = b->chunk / b->seq < b->microbatch ? b->chunk : b->microbatch * b->seq;
    b->chunk = b->seq;
  } else b->rows = b->chunk;
  if (b->rows < b->microbatch) b->rows = b->microbatch;
  RF_TRY(rf_plan_make(&settings->model, &options, prefill, error));
  b->rows = b->microbatch;
  rf_status status = rf_plan_make(&settings->model, &options, decode, error);
  if (status != RAFTER_OK) {
    rf_plan_free(*prefill);
    *prefill = NULL;
  }
  return status;
}

int64_t rf_generate_copies(const rf_plan *decode) { return rf_mesh_copies(&decode->graph->mesh); }

rf_status rf_generator_open(const rf_generate_settings *settings, rf_generator **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_generator *g = calloc(1, sizeof *g);
  if (!g) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  g->settings = *settings;
  if (!settings->simulated) RF_GO(rf_model_require_runnable(&settings->model, error));
  RF_GO(rf_generate_plans(settings, &g->prefill, &g->decode, error));
  RF_GO(rf_plan_require_fit(g->prefill, error));
  int64_t copies = rf_generate_copies(g->decode);
  rf_build_options *own = &g->settings.plan.build;
  own->microbatch = (own->microbatch + copies - 1) / copies;
  own->sequences = (own->sequences + copies - 1) / copies;
  const rf_plan *plans[] = {g->prefill, g->decode};
  if (!settings->simulated) RF_GO(rf_run_open(plans, 2, settings->debug, &g->run, error));
  RF_GO(rf_walker_open(g, error));
  RF_GO(rf_batch_open(g, error));
  if (settings->simulated) goto done;
  for (int p = 0; p < 2; p++)
    g->io[p] = (struct rf_walk_inputs){
        rf_run_named(g->run, p, "tokens", NULL), rf_run_named(g->run, p, "positions", NULL),
        rf_run_named(g->run, p, "slots", NULL),  rf_run_named(g->run, p, "rows", NULL),
        rf_run_named(g->run, p, "logits", NULL), rf_run_named(g->run, p, "lse", NULL)};
  if (!g->io[0].tokens) goto done; /* the null backend has no memory to fill */
  int64_t began = rf_phase_begin();
  status = rf_fill_weights(g->run, 0, g->prefill, settings->weights_folder, settings->seed,
                           settings->progress, error);
  rf_phase_end(RF_PHASE_LOAD, began);
done:
  if (status == RAFTER_OK) *out = g;
  else rf_generator_close(g);
  return status;
}

void rf_generator_close(rf_generator *g) {
  if (!g) return;
  rf_batch_close(g);
  rf_walker_close(g);
  rf_run_close(g->run);
  rf_plan_free(g->prefill);
  rf_plan_free(g->decode);
  free(g);
}

float rf_generator_logprob(const rf_generator *g, int32_t id) {
  return g->io[g->last].logits[id] - g->io[g->last].lse[0];
}

void rf_generator_reset(rf_generator *g) {
  rf_sequence_release(&g->walker->pages, &g->walker->hand);
  g->length = 0;
}

rf_status rf_generator_feed(rf_generator *g, const int32_t *tokens, int64_t count, const float **logits,
                            rf_error *error) {
  int64_t context = g->settings.plan.build.seq, vocab = g->settings.model.vocab,
          rows = g->prefill->options.build.chunk;
  if (count < 1 || g->length + count > context)
    return RF_FAIL(error, RAFTER_INVALID,
                   "shorten the prompt, or raise --seq where the model has the positions",
                   "the context is full (expected at most %lld tokens, got %lld)", (long long)context,
                   (long long)(g->length + count));
  for (int64_t i = 0; i < count; i++)
    if (tokens[i] < 0 || tokens[i] >= vocab)
      return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                     "token out of range (token %lld: expected an id below %lld, got %d)", (long long)i,
                     (long long)vocab, tokens[i]);
  rf_batch_forget(g);
  for (int64_t at = 0; at < count; at += rows) {
    rf_walk_part part = {
        .sequence = &g->walker->hand, .tokens = tokens + at, .count = count - at < rows ? count - at : rows};
    part.wanted = at + part.count == count;
    rf_record_step(-1);
    rf_status status = rf_walk_parts(g, &part, 1, error);
    rf_record_step_end(part.count);
    RF_TRY(status);
    g->length += part.count;
    g->last = part.count == 1;
    if (part.wanted) *logits = part.logits;
  }
  return RAFTER_OK;
}
