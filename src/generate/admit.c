/* admit.c - decides when a waiting answer starts, and which cached prefix it uses. First come,
 * first served: no answer overtakes the first waiting answer. To start, an answer needs a slot and
 * enough pages for its maximum length. It uses the cached sequence with which it has the longest
 * common prefix. If a running answer is prefilling a longer common prefix, the waiting answer waits
 * for this prefix. If pages are missing, sequences that were kept for reuse are evicted, least
 * recently used first. */
#include "generate/batch.h"

#include <stdlib.h>
#include <string.h>

enum { MIN_PREFIX = 16 }; /* copying the last page of a shorter prefix costs more than it saves */

static int64_t common(const int32_t *a, int64_t a_count, const int32_t *b, int64_t b_count) {
  int64_t most = a_count < b_count ? a_count : b_count, n = 0;
  while (n < most && a[n] == b[n]) n++;
  return n;
}

static rf_cached_seq *free_sequence(rf_batch *b) {
  for (int i = 0; i < b->cached_count; i++)
    if (b->cached[i].state == RF_CACHED_FREE) return &b->cached[i];
  return NULL;
}

static void drop_sequence(rf_batch *b, rf_cached_seq *c) {
  rf_sequence_release(&b->pages, &c->sequence);
  c->state = RF_CACHED_FREE;
  c->pin = NULL;
}

/* Returns the least recently used kept sequence that is not pinned. Returns `other` only if no
 * other sequence qualifies. NULL: `other` is not kept either. */
static rf_cached_seq *oldest(rf_batch *b, rf_cached_seq *other) {
  rf_cached_seq *best = NULL;
  for (int i = 0; i < b->cached_count; i++) {
    rf_cached_seq *c = &b->cached[i];
    if (c->state == RF_CACHED_KEPT && !c->pin && c != other && (!best || c->used < best->used)) best = c;
  }
  return best ? best : other && other->state == RF_CACHED_KEPT ? other : NULL;
}

static bool has_room(const rf_batch *b) {
  int count = 0;
  for (int i = 0; i < b->cached_count; i++)
    if (b->cached[i].state != RF_CACHED_FREE) b->live[count++] = &b->cached[i].sequence;
  return rf_pages_room(&b->pages, b->live, count);
}

/* Returns the cached sequence that has the longest usable common prefix with the prompt. The last
 * token of the prompt is always computed, because its logits are needed. */
static rf_cached_seq *best_prefix(rf_generator *g, rf_batch *b, const rf_request *r, int64_t *length) {
  rf_cached_seq *best = NULL;
  *length = 0;
  if (g->settings.no_sharing) return NULL;
  for (int i = 0; i < b->cached_count; i++) {
    rf_cached_seq *c = &b->cached[i];
    if (c->state == RF_CACHED_FREE || c->adapter != r->adapter) continue;
    int64_t n = common(r->tokens, r->count - 1, c->sequence.tokens, c->sequence.length);
    if (n < MIN_PREFIX && n < r->count - 1) continue;
    if (n > *length && rf_sequence_reaches(&b->pages, &c->sequence, n)) {
      best = c;
      *length = n;
    }
  }
  return best;
}

/* True if a running answer is prefilling a common prefix with `r` of more than `have` tokens. */
static bool worth_waiting(const rf_generator *g, const rf_batch *b, const rf_request *r, int64_t have) {
  if (g->settings.no_sharing) return false;
  for (int i = 0; i < b->slots; i++) {
    const rf_slot *a = &b->slot[i];
    if (!a->to || a->to->of.adapter != r->adapter) continue;
    if (a->cached->sequence.length >= a->to->of.count - 1) continue;
    int64_t n = common(r->tokens, r->count - 1, a->to->of.tokens, a->to->of.count);
    if (n > have && (n >= MIN_PREFIX || n == r->count - 1)) return true;
  }
  return false;
}

/* Returns a sequence that begins with the first `length` tokens of `from`, with enough pages for
 * `total` tokens. Evicts kept sequences if needed. Returns NULL if the answer must wait. */
static rf_cached_seq *begin_sequence(rf_batch *b, rf_cached_seq *from, int64_t *length, int64_t total) {
  rf_pages *pages = &b->pages;
  for (;;) {
    rf_cached_seq *c = free_sequence(b);
    if (c) {
      if (from) rf_sequence_share(pages, &c->sequence, &from->sequence, *length);
      c->state = RF_CACHED_RUNS;
      rf_sequence_expect(pages, &c->sequence, total);
      if (has_room(b)) return c;
      drop_sequence(b, c);
    }
    rf_cached_seq *victim = oldest(b, from);
    if (!victim) return NULL;
    if (victim == from) { /* nothing else can be evicted: continue in `from` itself */
      rf_sequence_cut(pages, &from->sequence, *length);
      from->state = RF_CACHED_RUNS;
      from->pin = NULL;
      rf_sequence_expect(pages, &from->sequence, total);
      if (has_room(b)) return from;
      drop_sequence(b, from);
      from = NULL;
      *length = 0;
    } else drop_sequence(b, victim);
  }
}

static void begin_answer(rf_batch *b, rf_slot *slot, rf_pending *p, rf_cached_seq *cached, int64_t reused) {
  slot->to = p;
  slot->cached = cached;
  cached->adapter = p->of.adapter;
  slot->sample = p->started;
  slot->count = 0;
  slot->odds = (rf_draft_odds){0};
  slot->serial = b->clock++;
  p->state[p->started] = RF_SAMPLE_RUNS;
  b->counts.answers++;
  b->counts.prompt_tokens += p->of.count;
  b->counts.reused += reused;
  rf_skip_cancelled(p);
}

static rf_slot *free_slot(rf_batch *b) {
  for (int i = 0; i < b->slots; i++)
    if (!b->slot[i].to) return &b->slot[i];
  return NULL;
}

void rf_admit(rf_generator *g) {
  rf_batch *b = g->batch;
  for (rf_pending *p = b->first; p;) {
    rf_slot *slot = free_slot(b);
    if (p->started == p->of.samples) {
      p = p->next;
      continue;
    }
    if (!slot) return;
    int64_t length;
    /* A prompt that is scored needs the logits of all its rows. */
    bool scored = p->of.scores.logprobs && p->started == 0;
    rf_cached_seq *from = scored ? NULL : best_prefix(g, b, &p->of, &length);
    if (scored) length = 0;
    else if (worth_waiting(g, b, &p->of, length)) return;
    if (from) from->used = b->clock;
    rf_cached_seq *cached = begin_sequence(b, from, &length, p->of.count + p->of.max_tokens - 1);
    if (!cached) return;
    cached->used = b->clock;
    begin_answer(b, slot, p, cached, length);
    if (p->started == p->of.samples) rf_unpin(g, p);
  }
}

static bool is_pinned(const rf_batch *b, const rf_pending *p) {
  for (int i = 0; i < b->cached_count; i++)
    if (b->cached[i].pin == p) return true;
  return false;
}

/* Pins the prompt of a request with more waiting answers than free slots, so that it is not
 * evicted. Does not pin the prompt's last token, because every answer computes that token. */
void rf_pin(rf_generator *g) {
  rf_batch *b = g->batch;
  for (int i = 0; i < b->slots; i++) {
    rf_slot *a = &b->slot[i];
    if (!a->to || a->count || a->cached->sequence.length != a->to->of.count || g->settings.no_sharing ||
        is_pinned(b, a->to))
      continue;
    int waiting = a->to->of.samples - a->to->started, slots = 0;
    for (int k = 0; k < b->slots; k++) slots += !b->slot[k].to;
    rf_cached_seq *c = free_sequence(b);
    if (waiting <= slots || !c || a->to->of.count < 2) continue;
    if (!rf_sequence_share(&b->pages, &c->sequence, &a->cached->sequence, a->to->of.count - 1)) continue;
    c->state = RF_CACHED_KEPT;
    c->used = b->clock;
    c->pin = a->to;
    c->adapter = a->to->of.adapter;
    if (!has_room(b)) drop_sequence(b, c);
  }
}

void rf_unpin(rf_generator *g, const rf_pending *p) {
  rf_batch *b = g->batch;
  for (int i = 0; i < b->cached_count; i++)
    if (b->cached[i].pin == p) drop_sequence(b, &b->cached[i]);
}
