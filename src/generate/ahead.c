/* ahead.c - decoding on devices that compute while the host works. Pass n + 1 is started before the
 * tokens of pass n are known: the device passes the tokens on (rf_tensor.follows). While the device
 * computes pass n + 1, the host reads the tokens of pass n. The host finds ends and makes events, and
 * the caller makes text of the events.
 *
 * A pass follows another one if it has the same answers, and no answer is known to end in between.
 * So a prompt, a new answer, an answer at its maximum length and a cancelled answer wait for the
 * pass that runs. An answer that ends at a stop id has one row too many in the pass that follows.
 * This row is left out. It writes one position of the cache, which is after the end of the sequence,
 * so nobody reads it. If the page is released and given to another answer, the device still writes
 * this position first: it computes passes and copies in the order of the calls. */
#include "generate/batch.h"

#include <stdlib.h>
#include <string.h>

rf_status rf_ahead_open(rf_batch *b, rf_error *error) {
  for (int i = 0; i < RF_STEPS_AHEAD; i++) {
    rf_flight *f = &b->flight[i];
    f->part = calloc((size_t)b->slots, sizeof *f->part);
    f->order = calloc((size_t)b->slots, sizeof *f->order);
    f->serial = calloc((size_t)b->slots, sizeof *f->serial);
    if (!f->part || !f->order || !f->serial)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  }
  return RAFTER_OK;
}

void rf_ahead_close(rf_batch *b) {
  for (int i = 0; i < RF_STEPS_AHEAD; i++) {
    free(b->flight[i].part);
    free(b->flight[i].order);
    free(b->flight[i].serial);
  }
}

static bool is_alive(const rf_batch *b, const rf_flight *f, int i) {
  const rf_slot *a = &b->slot[f->order[i]];
  return a->to && a->serial == f->serial[i];
}

/* Each answer has one row, and gets its next token from it. */
static bool decodes(const rf_batch *b) {
  for (int i = 0; i < b->parts; i++)
    if (b->part[i].count != 1 || b->part[i].wanted != 1 || b->part[i].scored) return false;
  return b->parts > 0;
}

bool rf_ahead_starts(const rf_generator *g) {
  const rf_batch *b = g->batch;
  return b->engine.start && !b->when && !g->settings.no_ahead && b->flights < RF_STEPS_AHEAD && decodes(b) &&
         b->engine.starts(b->engine.self, b->part, b->parts);
}

bool rf_ahead_follows(const rf_generator *g) {
  const rf_batch *b = g->batch;
  if (!b->flights || !rf_ahead_starts(g)) return false;
  const rf_flight *f = &b->flight[b->flights - 1];
  if (f->parts != b->parts) return false;
  for (int i = 0; i < b->parts; i++) {
    const rf_slot *a = &b->slot[b->order[i]];
    if (f->order[i] != b->order[i] || !is_alive(b, f, i)) return false;
    if (a->count + a->flying >= a->to->of.max_tokens) return false;
  }
  return true;
}

void rf_ahead_abandon(rf_batch *b) {
  rf_error unused = {0};
  if (!b->flights) return;
  for (int k = 0; k < b->flights; k++) {
    rf_flight *f = &b->flight[k];
    (void)b->engine.finish(b->engine.self, f->part, f->parts, &f->seconds, &unused);
  }
  b->flights = 0;
  for (int i = 0; i < b->top; i++)
    if (b->slot[i].to) rf_ahead_leave(b, &b->slot[i]);
}

rf_status rf_ahead_start(rf_generator *g, bool follows, rf_error *error) {
  rf_batch *b = g->batch;
  rf_flight *f = &b->flight[b->flights];
  rf_status status = rf_extend_all(b, b->part, b->parts, error);
  double began = rf_now_seconds();
  if (status == RAFTER_OK) status = b->engine.start(b->engine.self, b->part, b->parts, follows, error);
  if (status != RAFTER_OK) {
    rf_ahead_abandon(b);
    return status;
  }
  memcpy(f->part, b->part, (size_t)b->parts * sizeof *f->part);
  memcpy(f->order, b->order, (size_t)b->parts * sizeof *f->order);
  f->parts = b->parts;
  f->seconds = rf_now_seconds() - began;
  if (b->budget) f->expected = rf_budget_expect(b->budget, 0);
  for (int i = 0; i < b->parts; i++) {
    rf_slot *a = &b->slot[b->order[i]];
    rf_sequence *s = b->part[i].sequence;
    f->part[i].end = s->length + 1;
    s->tokens[s->length++] = follows ? -1 : b->part[i].tokens[0]; /* -1: not known yet, equal to no token */
    f->serial[i] = a->serial;
    a->flying++;
  }
  b->flights++;
  return RAFTER_OK;
}

rf_status rf_ahead_finish(rf_generator *g, rf_error *error) {
  rf_batch *b = g->batch;
  rf_flight done = b->flight[0];
  rf_status status = b->engine.finish(b->engine.self, done.part, done.parts, &done.seconds, error);
  b->parts = 0;
  if (status != RAFTER_OK) {
    rf_ahead_abandon(b);
    return status;
  }
  for (int i = 0; i < done.parts; i++) {
    if (!is_alive(b, &done, i)) continue;
    b->part[b->parts] = done.part[i];
    b->order[b->parts++] = done.order[i];
    b->slot[done.order[i]].flying--;
  }
  for (int i = 1; i < b->flights; i++) b->flight[i - 1] = b->flight[i];
  b->flight[--b->flights] = done;
  if (b->budget) rf_budget_measured(b->budget, &done.expected, done.seconds);
  return RAFTER_OK;
}

void rf_ahead_leave(rf_batch *b, rf_slot *a) {
  rf_sequence *s = &a->cached->sequence;
  if (a->flying) rf_sequence_retract(&b->pages, s, s->length - a->flying);
  a->flying = 0;
}

void rf_ahead_settle(rf_generator *g) {
  rf_batch *b = g->batch;
  for (int k = 0; k < b->flights; k++)
    for (int i = 0; i < b->flight[k].parts; i++)
      if (is_alive(b, &b->flight[k], i)) return;
  while (b->flights) {
    rf_error error = {0};
    rf_status status = rf_ahead_finish(g, &error);
    if (status == RAFTER_OK || b->lost != RAFTER_OK) continue;
    b->lost = status;
    b->lost_error = error;
  }
}

rf_status rf_ahead_settled(rf_generator *g, rf_error *error) {
  const rf_batch *b = g->batch;
  rf_ahead_settle(g);
  if (b->lost != RAFTER_OK && error) *error = b->lost_error;
  return b->lost;
}
