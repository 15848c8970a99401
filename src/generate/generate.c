/* generate.c - prefill and decode over one KV cache. */
#include "generate/batch.h"
#include "run/load.h"

#include <stdlib.h>
#include <string.h>

rf_status rf_generate_plans(const rf_generate_settings *settings, rf_plan **prefill, rf_plan **decode, rf_error *error) {
  rf_plan_options options = settings->plan;
  options.build.job = RF_JOB_GENERATE, options.build.accumulate = 1, options.build.dropout = 0, options.remat = RF_REMAT_NONE;
  options.build.rows = options.build.seq < RF_PREFILL_ROWS ? options.build.seq : RF_PREFILL_ROWS;
  RF_TRY(rf_plan_make(&settings->model, &options, prefill, error));
  options.build.rows = options.build.microbatch;
  rf_status status = rf_plan_make(&settings->model, &options, decode, error);
  if (status != RAFTER_OK) rf_plan_free(*prefill), *prefill = NULL;
  return status;
}

rf_status rf_generator_open(const rf_generate_settings *settings, rf_generator **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_generator *g = calloc(1, sizeof *g);
  if (!g) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  g->settings = *settings;
  RF_GO(rf_model_require_runnable(&settings->model, error));
  RF_GO(rf_generate_plans(settings, &g->prefill, &g->decode, error));
  RF_GO(rf_plan_require_fit(g->prefill, error));
  const rf_plan *plans[] = {g->prefill, g->decode};
  RF_GO(rf_run_open(plans, 2, settings->debug, &g->run, error));
  RF_GO(rf_batch_open(g, error));
  for (int p = 0; p < 2; p++)
    g->io[p] = (struct rf_walk_inputs){rf_run_named(g->run, p, "tokens", NULL), rf_run_named(g->run, p, "positions", NULL),
                                       rf_run_named(g->run, p, "slots", NULL),  rf_run_named(g->run, p, "rows", NULL),
                                       rf_run_named(g->run, p, "logits", NULL), rf_run_named(g->run, p, "lse", NULL)};
  if (!g->io[0].tokens) goto done; /* the null backend has no memory to fill */
  status = rf_fill_weights(g->run, 0, g->prefill, settings->weights_folder, settings->seed, error);
done:
  if (status == RAFTER_OK) *out = g;
  else rf_generator_close(g);
  return status;
}

void rf_generator_close(rf_generator *g) {
  if (!g) return;
  rf_batch_close(g);
  rf_run_close(g->run);
  rf_plan_free(g->prefill), rf_plan_free(g->decode);
  free(g);
}

float rf_generator_logprob(const rf_generator *g, int32_t id) { return g->io[g->last].logits[id] - g->io[g->last].lse[0]; }

void rf_generator_reset(rf_generator *g) { g->length = 0; }

/* One walk of `count` tokens: one row by the decode plan, more by the prefill plan, whose unused rows have slot -1. */
static rf_status walk(rf_generator *g, const int32_t *tokens, int64_t count, const float **logits, rf_error *error) {
  int p = count == 1 ? 1 : 0;
  int64_t rows = p ? g->decode->graph->rows : g->prefill->graph->rows, picks = g->settings.plan.build.microbatch;
  const struct rf_walk_inputs *io = &g->io[p];
  rf_run_inputs inputs = {.rows = count, .step = 1};
  for (int64_t r = 0; io->tokens && r < rows; r++) {
    bool used = r < count;
    io->tokens[r] = used ? tokens[r] : 0, io->positions[r] = used ? (int32_t)(g->length + r) : 0, io->slots[r] = used ? 0 : -1;
  }
  for (int64_t i = 0; io->rows && i < picks; i++) io->rows[i] = i ? -1 : (int32_t)count - 1;
  for (int s = 0; s < RF_SECTIONS; s++) RF_TRY(rf_run_section(g->run, p, (rf_section)s, &inputs, error));
  g->length += count;
  *logits = io->logits, g->last = p;
  return RAFTER_OK;
}

rf_status rf_generator_feed(rf_generator *g, const int32_t *tokens, int64_t count, const float **logits, rf_error *error) {
  int64_t context = g->settings.plan.build.seq, vocab = g->settings.model.vocab, rows = g->prefill->graph->rows;
  if (count < 1 || g->length + count > context)
    return RF_FAIL(error, RAFTER_INVALID, "shorten the prompt, or raise --seq where the model has the positions",
                   "the context is full (expected at most %lld tokens, got %lld)", (long long)context, (long long)(g->length + count));
  for (int64_t i = 0; i < count; i++)
    if (tokens[i] < 0 || tokens[i] >= vocab)
      return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                     "token out of range (token %lld: expected an id below %lld, got %d)", (long long)i, (long long)vocab, tokens[i]);
  for (int64_t at = 0; at < count; at += rows) RF_TRY(walk(g, tokens + at, count - at < rows ? count - at : rows, logits, error));
  return RAFTER_OK;
}
