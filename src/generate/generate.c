/* generate.c - opens a generator (two plans, a run, weights). Feeds tokens without requests. */
#include "generate/adapters.h"
#include "generate/batch.h"
#include "generate/shares.h"
#include "run/record.h"

#include <stdlib.h>
#include <string.h>

/* The prefill plan has as many rows as the chunk has tokens. If the chunk is longer than the
 * context, a pass holds chunks of several prompts. */
rf_status rf_generate_plans(const rf_infer_settings *settings, rf_plan **prefill, rf_plan **decode,
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
  if (b->draft >= b->chunk)
    return RF_FAIL(error, RAFTER_INVALID, "lower --draft-tokens, or raise --chunk",
                   "a forward pass is too short for the drafts (--draft-tokens: expected fewer than the %lld "
                   "tokens of a chunk, got %d)",
                   (long long)b->chunk, b->draft);
  b->draft = 0;
  RF_TRY(rf_plan_make(&settings->model, &options, prefill, error));
  b->draft = settings->plan.build.draft;
  b->rows = b->microbatch * (1 + b->draft);
  rf_status status = rf_plan_make(&settings->model, &options, decode, error);
  if (status != RAFTER_OK) {
    rf_plan_free(*prefill);
    *prefill = NULL;
  }
  return status;
}

rf_status rf_generate_reserve(rf_plan_options *plan, const rf_infer_settings *drafter, rf_error *error) {
  int64_t bytes = 0, room = rf_plan_room(plan);
  RF_TRY(rf_drafter_bytes(drafter, &bytes, error));
  plan->draft_bytes = bytes;
  if (room <= 0) return RAFTER_OK;
  if (bytes >= room)
    return RF_FAIL(error, RAFTER_NO_FIT, "choose a smaller draft model, or lower --seq or --batch",
                   "the draft model does not fit (--speculate: expected less than %lld bytes, got %lld)",
                   (long long)room, (long long)bytes);
  plan->budget_bytes = room - bytes;
  return RAFTER_OK;
}

int64_t rf_generate_copies(const rf_plan *decode) { return rf_mesh_copies(&decode->graph->mesh); }

/* RAFTER_AHEAD=0 makes each step wait, for measurements. */
static bool must_wait(void) {
  const char *asked = getenv("RAFTER_AHEAD");
  return asked && *asked == '0';
}

rf_status rf_generator_new(const rf_infer_settings *settings, rf_plan *prefill, rf_plan *decode,
                           rf_generator **out, rf_error *error) {
  rf_generator *g = calloc(1, sizeof *g);
  if (!g) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  g->settings = *settings;
  g->settings.no_ahead |= must_wait();
  g->prefill = prefill;
  g->decode = decode;
  int64_t copies = rf_generate_copies(decode);
  rf_build_options *own = &g->settings.plan.build;
  own->microbatch = (own->microbatch + copies - 1) / copies;
  own->sequences = (own->sequences + copies - 1) / copies;
  rf_status status = rf_batch_open(g, error);
  if (status == RAFTER_OK) *out = g;
  else rf_generator_close(g);
  return status;
}

rf_status rf_generator_bind(const rf_infer_settings *settings, rf_run *run, int first, rf_plan *prefill,
                            rf_plan *decode, rf_generator **out, rf_error *error) {
  rf_generator *g = NULL;
  RF_TRY(rf_generator_new(settings, prefill, decode, &g, error));
  g->run = run;
  g->first = first;
  rf_status status = rf_compute_open(g, error);
  if (status == RAFTER_OK) status = rf_adapters_open(g, error);
  if (status == RAFTER_OK) status = rf_shares_open(g, error);
  if (status == RAFTER_OK) *out = g;
  else rf_generator_close(g);
  return status;
}

/* Opens the draft model, and includes its passes in the predicted time of drafts. */
static rf_status open_drafter(rf_generator *g, rf_error *error) {
  if (!g->settings.drafter) return RAFTER_OK;
  RF_TRY(rf_drafter_open(g->settings.drafter, &g->drafter, error));
  return rf_draft_plan_model(g->batch->when, rf_drafter_plan(g->drafter), g->batch->slots, error);
}

int64_t rf_generate_shares(const rf_plan_options *plan) {
  const rf_mesh *mesh = &plan->build.mesh;
  return rf_backend_has_ranks(plan->backend) ? rf_mesh_size(mesh, rf_mesh_apart(mesh)) : 1;
}

/* Rounds the number of slots up, because chips that share the rows of a pass all have the same
 * number of rows. */
void rf_generate_slots(rf_plan_options *plan) {
  rf_build_options *b = &plan->build;
  const rf_mesh *mesh = &b->mesh;
  const int64_t copies = rf_mesh_copies(mesh), apart = rf_generate_shares(plan);
  /* true for the cache of a draft model, which has all sequences */
  const bool full = b->sequences >= b->microbatch;
  /* true: each copy has one more sequence, which caches a prompt */
  const bool more = b->sequences > b->microbatch;
  b->microbatch = rf_round_up(rf_ceil_div(b->microbatch, apart), rf_mesh_size(mesh, RF_AXES_OF_PASS));
  b->sequences = rf_ceil_div(b->sequences, apart);
  if (full && b->sequences < b->microbatch + more) b->sequences = b->microbatch + more;
  b->microbatch *= copies;
  b->sequences *= copies;
}

rf_status rf_generator_open(const rf_infer_settings *asked, rf_generator **out, rf_error *error) {
  rf_infer_settings own = *asked, *settings = &own;
  rf_plan *prefill = NULL, *decode = NULL;
  rf_run *run = NULL;
  rf_generator *g = NULL;
  rf_status status = RAFTER_OK;
  RF_GO(rf_model_require_runnable(&settings->model, error));
  rf_generate_slots(&own.plan);
  if (own.drafter) RF_GO(rf_generate_reserve(&own.plan, own.drafter, error));
  RF_GO(rf_generate_plans(settings, &prefill, &decode, error));
  const rf_plan *plans[] = {[RF_PREFILL] = prefill, [RF_DECODE] = decode};
  RF_GO(rf_infer_open(settings, plans, 2, &run, error));
  RF_GO(rf_generator_bind(settings, run, 0, prefill, decode, &g, error));
  RF_GO(open_drafter(g, error));
done:
  if (status == RAFTER_OK) {
    g->owns = true;
    *out = g;
    return status;
  }
  rf_generator_close(g);
  rf_run_close(run);
  rf_plan_free(prefill);
  rf_plan_free(decode);
  return status;
}

void rf_generator_close(rf_generator *g) {
  if (!g) return;
  rf_shares_close(g->shares);
  rf_batch_close(g);
  rf_drafter_close(g->drafter);
  rf_adapters_close(g);
  free(g->kept);
  if (g->owns) {
    rf_run_close(g->run);
    rf_plan_free(g->prefill);
    rf_plan_free(g->decode);
  }
  free(g);
}

int64_t rf_generator_arena_bytes(const rf_generator *g) {
  return rf_run_arena_bytes(g->run) + (g->drafter ? rf_drafter_arena_bytes(g->drafter) : 0);
}

double rf_generator_prompt_seconds(const rf_generator *g, int64_t tokens) {
  int64_t chunk = g->prefill->options.build.chunk;
  double seconds = 0;
  for (int64_t at = 0, rows; at < tokens; at += rows) {
    rows = tokens - at < chunk ? tokens - at : chunk;
    rf_extent extent = {rows, at + rows};
    seconds += rf_plan_pass_seconds(rows == 1 ? g->decode : g->prefill, &extent, 1);
  }
  return seconds;
}

rf_status rf_extend_all(rf_batch *b, rf_forward_part *part, int count, rf_error *error) {
  rf_make_room(b, part, count);
  for (int i = 0; i < count; i++)
    RF_TRY(rf_sequence_extend(&b->pages, part[i].sequence, part[i].count, error));
  return RAFTER_OK;
}

rf_status rf_forward(rf_generator *g, rf_forward_part *part, int count, rf_error *error) {
  rf_batch *b = g->batch;
  bool decodes = true;
  RF_TRY(rf_extend_all(b, part, count, error));
  for (int i = 0; i < count; i++) {
    int wanted = part[i].scored + part[i].wanted;
    decodes &= part[i].count == (wanted ? wanted : 1);
  }
  RF_TRY(b->engine.forward(b->engine.self, decodes ? RF_DECODE : RF_PREFILL, part, count, error));
  for (int i = 0; i < count; i++) {
    rf_sequence *s = part[i].sequence;
    memcpy(s->tokens + s->length, part[i].tokens, (size_t)part[i].count * sizeof *s->tokens);
    s->length += part[i].count;
  }
  return RAFTER_OK;
}

float rf_generator_logprob(const rf_generator *g, int32_t id) { return g->logits[id] - g->lse; }

void rf_generator_reset(rf_generator *g) {
  rf_ahead_settle(g);
  rf_sequence_release(&g->batch->pages, &g->batch->hand);
  rf_batch_forget(g);
  g->length = 0;
}

rf_status rf_generator_refresh(rf_generator *g, rf_error *error) {
  int64_t others = g->run ? rf_run_others(g->run, g->first, 2) : 0;
  bool in_use = g->length > 0;
  if (others == g->others) return RAFTER_OK;
  in_use |= g->batch->top > 0;
  if (in_use)
    return RF_FAIL(error, RAFTER_INVALID, "finish or cancel all answers before other plans of the run run",
                   "another plan of the run has overwritten the cache of an answer that has not ended");
  rf_generator_reset(g);
  g->others = others;
  return RAFTER_OK;
}

rf_status rf_generator_feed(rf_generator *g, const int32_t *tokens, int64_t count, const float **logits,
                            rf_error *error) {
  int64_t context = g->settings.plan.build.seq, chunk = g->prefill->options.build.chunk;
  if (count < 1 || g->length + count > context)
    return RF_FAIL(error, RAFTER_INVALID,
                   "shorten the prompt, or raise --seq up to the model's context length",
                   "the context is full (expected at most %lld tokens, got %lld)", (long long)context,
                   (long long)(g->length + count));
  RF_TRY(rf_check_ids(tokens, count, g->settings.model.vocab, "prompt", error));
  RF_TRY(rf_ahead_settled(g, error));
  RF_TRY(rf_generator_refresh(g, error));
  rf_batch_forget(g);
  for (int64_t at = 0; at < count; at += chunk) {
    rf_forward_part part = {
        .sequence = &g->batch->hand, .tokens = tokens + at, .count = count - at < chunk ? count - at : chunk};
    part.wanted = at + part.count == count;
    rf_record_step(-1);
    rf_status status = rf_forward(g, &part, 1, error);
    rf_record_step_end(part.count);
    RF_TRY(status);
    g->length += part.count;
    if (!part.wanted) continue;
    *logits = g->logits = part.logits;
    g->lse = part.lse[0];
  }
  return RAFTER_OK;
}
