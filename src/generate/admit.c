/* admit.c - who begins when, and with whose prefix: the one place of that policy.
 *
 * First come, first served: the answer at the head of the line waits for a slot and for pages
 * enough for all it may become, and nobody overtakes it. It begins with the longest prefix that
 * any text in the cache has in common with it. Where somebody is walking over the same prompt
 * just now, it waits for that. Pages come from texts that are only kept, the one that was of use
 * longest ago first. */
#include "generate/batch.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_PREFIX = 16 }; /* tokens below which a prefix is not worth its copied page */

static int64_t common(const int32_t *a, int64_t a_count, const int32_t *b, int64_t b_count) {
  int64_t most = a_count < b_count ? a_count : b_count, n = 0;
  while (n < most && a[n] == b[n]) n++;
  return n;
}

static rf_text *free_text(rf_batch *b) {
  for (int i = 0; i < b->texts; i++)
    if (b->text[i].state == RF_TEXT_FREE) return &b->text[i];
  return NULL;
}

static void drop_text(rf_generator *g, rf_text *t) {
  rf_sequence_release(&g->walker->pages, &t->sequence);
  t->state = RF_TEXT_FREE;
  t->pin = NULL;
}

/* The kept text that was of use longest ago; `other` only when there is no other. NULL: nothing
 * is kept but what is pinned. */
static rf_text *oldest(rf_batch *b, rf_text *other) {
  rf_text *best = NULL;
  for (int i = 0; i < b->texts; i++) {
    rf_text *t = &b->text[i];
    if (t->state == RF_TEXT_KEPT && !t->pin && t != other && (!best || t->used < best->used)) best = t;
  }
  return best ? best : other && other->state == RF_TEXT_KEPT ? other : NULL;
}

static bool has_room(const rf_generator *g, const rf_batch *b) {
  int count = 0;
  for (int i = 0; i < b->texts; i++)
    if (b->text[i].state != RF_TEXT_FREE) b->live[count++] = &b->text[i].sequence;
  return rf_pages_room(&g->walker->pages, b->live, count);
}

/* The text with the longest usable prefix of a prompt. Its last token is always walked: its
 * logits are asked for. */
static rf_text *best_prefix(rf_generator *g, rf_batch *b, const rf_request *r, int64_t *length) {
  rf_text *best = NULL;
  *length = 0;
  if (g->settings.alone) return NULL;
  for (int i = 0; i < b->texts; i++) {
    rf_text *t = &b->text[i];
    if (t->state == RF_TEXT_FREE) continue;
    int64_t n = common(r->tokens, r->count - 1, t->sequence.tokens, t->sequence.length);
    if (n < LEAST_PREFIX && n < r->count - 1) continue;
    if (n > *length && rf_sequence_reaches(&g->walker->pages, &t->sequence, n)) {
      best = t;
      *length = n;
    }
  }
  return best;
}

/* Somebody is on the way through a prompt that begins like this one, by more than is in the
 * cache now. */
static bool worth_waiting(const rf_generator *g, const rf_batch *b, const rf_request *r, int64_t have) {
  if (g->settings.alone) return false;
  for (int i = 0; i < b->slots; i++) {
    const rf_answer *a = &b->slot[i];
    if (!a->to || a->text->sequence.length >= a->to->of.count - 1) continue;
    int64_t n = common(r->tokens, r->count - 1, a->to->of.tokens, a->to->of.count);
    if (n > have && (n >= LEAST_PREFIX || n == r->count - 1)) return true;
  }
  return false;
}

/* A text that begins with `length` tokens of `from` and has room to grow, or NULL when that must
 * wait. Takes a kept text over, or forgets some, where there is no room otherwise. */
static rf_text *begin_text(rf_generator *g, rf_batch *b, rf_text *from, int64_t *length, int64_t total) {
  rf_pages *pages = &g->walker->pages;
  for (;;) {
    rf_text *t = free_text(b);
    if (t) {
      if (from) rf_sequence_share(pages, &t->sequence, &from->sequence, *length);
      t->state = RF_TEXT_RUNS;
      rf_sequence_expect(pages, &t->sequence, total);
      if (has_room(g, b)) return t;
      drop_text(g, t);
    }
    rf_text *victim = oldest(b, from);
    if (!victim) return NULL;
    if (victim == from) { /* nothing else is left: it becomes this one */
      rf_sequence_cut(pages, &from->sequence, *length);
      from->state = RF_TEXT_RUNS;
      from->pin = NULL;
      rf_sequence_expect(pages, &from->sequence, total);
      if (has_room(g, b)) return from;
      drop_text(g, from);
      from = NULL;
      *length = 0;
    } else drop_text(g, victim);
  }
}

static rf_status begin_sampler(rf_batch *b, rf_answer *slot, const rf_asked *a, rf_error *error) {
  rf_sampler_options options = a->of.sampler;
  options.seed = rf_sample_seed(options.seed, a->started);
  if (slot->opened) RF_TRY(rf_sampler_reset(&slot->sampler, &options, error));
  else RF_TRY(rf_sampler_open_with(&options, b->work[0], &slot->sampler, error));
  slot->opened = true;
  return rf_sampler_prompt(&slot->sampler, a->of.tokens, a->of.count, error);
}

static rf_status begin_answer(rf_generator *g, rf_answer *slot, rf_asked *a, rf_text *text, int64_t reused,
                              rf_error *error) {
  rf_batch *b = g->batch;
  if (!g->settings.simulated) RF_TRY(begin_sampler(b, slot, a, error));
  slot->to = a;
  slot->text = text;
  slot->sample = a->started++;
  slot->count = 0;
  slot->serial = b->clock++;
  b->counts.answers++;
  b->counts.prompt_tokens += a->of.count;
  b->counts.reused += reused;
  rf_skip_gone(a);
  return RAFTER_OK;
}

static rf_answer *free_slot(rf_batch *b) {
  for (int i = 0; i < b->slots; i++)
    if (!b->slot[i].to) return &b->slot[i];
  return NULL;
}

rf_status rf_admit(rf_generator *g, rf_error *error) {
  rf_batch *b = g->batch;
  for (rf_asked *a = b->first; a;) {
    rf_answer *slot = free_slot(b);
    if (a->started == a->of.samples) {
      a = a->next;
      continue;
    }
    if (!slot) return RAFTER_OK;
    int64_t length;
    rf_text *from = best_prefix(g, b, &a->of, &length);
    if (worth_waiting(g, b, &a->of, length)) return RAFTER_OK;
    if (from) from->used = b->clock;
    rf_text *text = begin_text(g, b, from, &length, a->of.count + a->of.max_tokens - 1);
    if (!text) return RAFTER_OK;
    text->used = b->clock;
    rf_status status = begin_answer(g, slot, a, text, length, error);
    if (status != RAFTER_OK) {
      drop_text(g, text);
      return status;
    }
    if (a->started == a->of.samples) rf_unpin(g, a);
  }
  return RAFTER_OK;
}

static bool is_pinned(const rf_batch *b, const rf_asked *a) {
  for (int i = 0; i < b->texts; i++)
    if (b->text[i].pin == a) return true;
  return false;
}

/* The prompt of a request that has more answers to come than slots, kept without its last token. */
void rf_pin(rf_generator *g) {
  rf_batch *b = g->batch;
  for (int i = 0; i < b->slots; i++) {
    rf_answer *a = &b->slot[i];
    if (!a->to || a->count || a->text->sequence.length != a->to->of.count || g->settings.alone ||
        is_pinned(b, a->to))
      continue;
    int waiting = a->to->of.samples - a->to->started, slots = 0;
    for (int k = 0; k < b->slots; k++) slots += !b->slot[k].to;
    rf_text *t = free_text(b);
    if (waiting <= slots || !t || a->to->of.count < 2) continue;
    if (!rf_sequence_share(&g->walker->pages, &t->sequence, &a->text->sequence, a->to->of.count - 1))
      continue;
    t->state = RF_TEXT_KEPT;
    t->used = b->clock;
    t->pin = a->to;
    if (!has_room(g, b)) drop_text(g, t);
  }
}

void rf_unpin(rf_generator *g, const rf_asked *a) {
  rf_batch *b = g->batch;
  for (int i = 0; i < b->texts; i++)
    if (b->text[i].pin == a) drop_text(g, &b->text[i]);
}
