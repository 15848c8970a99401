/* drafter.c - see drafter.h. */
#include "generate/drafter.h"

#include "generate/batch.h"
#include "run/record.h"

#include <stdlib.h>
#include <string.h>

struct rf_drafter {
  /* generator, of which only the engine and the cached sequences are used; sequence i is for slot
   * i */
  rf_generator *g;
  int slots;
  int32_t *feed;         /* (rows): tokens of a pass */
  rf_forward_part *part; /* (slots) */
  int *order;            /* (parts): index of the text to which each part of a pass belongs */
};

rf_status rf_drafter_open(const rf_infer_settings *settings, rf_drafter **out, rf_error *error) {
  rf_drafter *d = calloc(1, sizeof *d);
  rf_status status = RAFTER_OK;
  if (!d) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a draft model");
  d->slots = (int)settings->plan.build.microbatch;
  RF_GO(rf_generator_open(settings, &d->g, error));
  d->feed = calloc((size_t)d->g->batch->engine.rows, sizeof *d->feed);
  d->part = calloc((size_t)d->slots, sizeof *d->part);
  d->order = calloc((size_t)d->slots, sizeof *d->order);
  if (!d->feed || !d->part || !d->order)
    RF_GO(RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a draft model"));
done:
  if (status == RAFTER_OK) *out = d;
  else rf_drafter_close(d);
  return status;
}

void rf_drafter_close(rf_drafter *d) {
  if (!d) return;
  rf_generator_close(d->g);
  free(d->feed);
  free(d->part);
  free(d->order);
  free(d);
}

const rf_plan *rf_drafter_plan(const rf_drafter *d) { return d->g->decode; }
int64_t rf_drafter_arena_bytes(const rf_drafter *d) { return rf_run_arena_bytes(d->g->run); }

rf_status rf_drafter_bytes(const rf_infer_settings *settings, int64_t *bytes, rf_error *error) {
  rf_plan *prefill, *decode;
  RF_TRY(rf_generate_plans(settings, &prefill, &decode, error));
  const rf_plan *plans[] = {prefill, decode};
  *bytes = rf_plan_joint_bytes(plans, 2);
  rf_plan_free(prefill);
  rf_plan_free(decode);
  return RAFTER_OK;
}

static rf_sequence *sequence_of(const rf_drafter *d, int slot) { return &d->g->batch->cached[slot].sequence; }

static int64_t common(const rf_sequence *s, const rf_drafter_text *text) {
  int64_t most = s->length < text->count ? s->length : text->count, n = 0;
  while (n < most && s->tokens[n] == text->tokens[n]) n++;
  return n;
}

/* Keeps the common prefix of the slot's cached text and the new text. If the text of another slot
 * has a much longer common prefix with the new text, shares this prefix. The latest token,
 * draft[0], is never cached before a pass. */
static void keep_prefix(rf_drafter *d, const rf_drafter_text *text) {
  enum { MIN_PREFIX = 16 };
  rf_pages *pages = &d->g->batch->pages;
  rf_sequence *own = sequence_of(d, text->slot), *best = NULL;
  int64_t length = common(own, text), longest = length + MIN_PREFIX;
  for (int i = 0; i < d->slots; i++) {
    rf_sequence *s = sequence_of(d, i);
    int64_t n = s == own ? 0 : common(s, text);
    if (n < longest || !rf_sequence_reaches(pages, s, n)) continue;
    best = s;
    longest = n;
  }
  if (best) {
    rf_sequence_release(pages, own);
    rf_sequence_share(pages, own, best, longest);
  } else if (length < own->length && !rf_sequence_cut(pages, own, length)) rf_sequence_release(pages, own);
}

static int32_t likeliest(const float *logits, int64_t vocab) {
  int32_t best = 0;
  for (int64_t v = 1; v < vocab; v++)
    if (logits[v] > logits[best]) best = (int32_t)v;
  return best;
}

/* Runs one pass over its parts. If the pass reaches the end of a text, writes the likeliest next
 * token of this text. */
static rf_status take_pass(rf_drafter *d, const rf_drafter_text *text, int parts, int drafted,
                           rf_error *error) {
  RF_TRY(rf_forward(d->g, d->part, parts, error));
  for (int i = 0; i < parts; i++)
    if (d->part[i].wanted)
      text[d->order[i]].draft[drafted] = likeliest(d->part[i].logits, d->g->settings.model.vocab);
  return RAFTER_OK;
}

/* Adds the next uncached tokens of a text to the pass. Returns their number. */
static int64_t add_text(rf_drafter *d, const rf_drafter_text *text, int which, int parts, int64_t row) {
  const rf_engine *engine = &d->g->batch->engine;
  rf_sequence *s = sequence_of(d, text->slot);
  int64_t left = text->count + 1 - s->length, count = left;
  if (count > engine->chunk) count = engine->chunk;
  if (count > engine->rows - row) count = engine->rows - row;
  if (count < 1) return 0;
  for (int64_t i = 0; i < count; i++)
    d->feed[row + i] = s->length + i < text->count ? text->tokens[s->length + i] : text->draft[0];
  d->part[parts] =
      (rf_forward_part){.sequence = s, .tokens = d->feed + row, .count = count, .wanted = count == left};
  d->order[parts] = which;
  return count;
}

/* Computes all uncached tokens of the texts, and drafts one token for each text. */
static rf_status catch_up(rf_drafter *d, const rf_drafter_text *text, int count, rf_error *error) {
  for (;;) {
    int parts = 0;
    int64_t row = 0;
    for (int i = 0; i < count; i++) {
      int64_t rows = text[i].wanted ? add_text(d, &text[i], i, parts, row) : 0;
      row += rows;
      parts += rows > 0;
    }
    if (!parts) return RAFTER_OK;
    RF_TRY(take_pass(d, text, parts, 1, error));
  }
}

static rf_status draft(rf_drafter *d, const rf_drafter_text *text, int count, rf_draft_price *price,
                       rf_error *error) {
  for (int i = 0; i < count; i++)
    if (text[i].wanted) keep_prefix(d, &text[i]);
  RF_TRY(catch_up(d, text, count, error));
  for (int drafted = 1;; drafted++) {
    int parts = 0;
    for (int i = 0; i < count; i++) {
      if (text[i].wanted <= drafted) continue;
      d->part[parts] = (rf_forward_part){.sequence = sequence_of(d, text[i].slot),
                                         .tokens = text[i].draft + drafted,
                                         .count = 1,
                                         .wanted = 1};
      d->order[parts++] = i;
    }
    if (!parts) return RAFTER_OK;
    double start = rf_now_seconds();
    RF_TRY(take_pass(d, text, parts, drafted + 1, error));
    rf_draft_price_measured(price, parts, rf_now_seconds() - start);
  }
}

rf_status rf_drafter_draft(rf_drafter *d, const rf_drafter_text *text, int count, rf_draft_price *price,
                           rf_error *error) {
  /* A trace has only the ops of the large model, and records the time of the draft model as one
   * phase. */
  int64_t began = rf_phase_begin();
  rf_lanes *lanes = rf_lanes_on;
  rf_lanes_on = NULL;
  rf_status status = draft(d, text, count, price, error);
  rf_lanes_on = lanes;
  rf_phase_end(RF_PHASE_SAMPLE, began);
  return status;
}
