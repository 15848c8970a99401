/* admit.c - decides when a waiting answer starts, and which cached prefix it uses. To start, an
 * answer needs a free slot, and enough pages until its end (reserve.h). The answer reuses the
 * cached sequence that has the longest common prefix with its prompt. If a running answer is just
 * computing a longer common prefix, the waiting answer waits for this prefix. When a pass needs
 * more pages, sequences that were kept for reuse are evicted. The least recently used sequence is
 * evicted first.
 *
 * Answers start in the order of their requests, with one exception. If the first waiting answer
 * does not fit, rf_promise records the pass in which this answer will fit, even if all running
 * answers reach their maximum length. A later request may start before this answer if this answer
 * still fits in the promised pass. */
#include "generate/batch.h"

#include <stdlib.h>
#include <string.h>

/* minimum length of a useful prefix, because copying the last page of a shorter prefix costs more
 * time than reusing it saves */
enum { MIN_PREFIX = 16 };

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

/* Returns the least recently used sequence among the kept sequences. Skips pinned sequences and
 * `other`. NULL: there is none. */
static rf_cached_seq *oldest(rf_batch *b, const rf_cached_seq *other) {
  rf_cached_seq *best = NULL;
  for (int i = 0; i < b->cached_count; i++) {
    rf_cached_seq *c = &b->cached[i];
    if (c->state == RF_CACHED_KEPT && !c->pin && c != other && (!best || c->used < best->used)) best = c;
  }
  return best;
}

static void claim(rf_batch *b, rf_claim claim) { b->reserve.claim[b->reserve.count++] = claim; }

static rf_claim claim_of(const rf_batch *b, const rf_request *r, const rf_sequence *s, int64_t start,
                         int64_t length) {
  return rf_claim_of(s, start, length, r->count, r->max_tokens, b->reserve.rows);
}

/* Lists the claims of all running answers and of pinned prompts except `except`. Returns the number
 * of running answers, whose claims come first. */
static int list_claims(rf_batch *b, const rf_cached_seq *except) {
  b->reserve.count = 0;
  for (int i = 0; i < b->top; i++) {
    const rf_slot *a = &b->slot[i];
    if (a->to) claim(b, claim_of(b, &a->to->of, &a->cached->sequence, 0, a->cached->sequence.length));
  }
  const int running = b->reserve.count;
  for (int i = 0; i < b->cached_count; i++) {
    const rf_sequence *s = &b->cached[i].sequence;
    if (b->cached[i].pin && &b->cached[i] != except)
      claim(b, (rf_claim){s, 0, s->length, s->length, RF_STEPS_UNKNOWN});
  }
  return running;
}

/* Claims pages for the first waiting answer, as if it starts in step `start` without a prefix. */
static void claim_later(rf_batch *b, const rf_pending *first, int64_t start) {
  const rf_sequence *pinned = NULL;
  for (int i = 0; i < b->cached_count; i++)
    if (b->cached[i].pin == first) pinned = &b->cached[i].sequence;
  rf_claim later = claim_of(b, &first->of, pinned, start, 0);
  if (later.steps < RF_STEPS_UNKNOWN) later.steps += start;
  claim(b, later);
}

/* Returns true if a slot is free in step `start`. The first `running` claims belong to running
 * answers. `own` is the claim of one more answer, or NULL. */
static bool has_slot(const rf_batch *b, int running, const rf_claim *own, int64_t start) {
  int used = own && own->steps > start;
  for (int i = 0; i < running; i++) used += b->reserve.claim[i].steps > start;
  return used < b->slots;
}

/* Returns true if the cache has enough pages for all running answers and for `r`. `r` starts with
 * the first `length` tokens of `s`. `first`: the promised answer that `r` overtakes, or NULL.
 * `except`: the pinned sequence that is no longer pinned when `r` starts, or NULL. */
static bool has_room(rf_batch *b, const rf_request *r, const rf_sequence *s, int64_t length,
                     const rf_pending *first, const rf_cached_seq *except) {
  const rf_claim own = claim_of(b, r, s, 0, length);
  const int64_t start = b->promise.pass - b->counts.passes;
  const int running = list_claims(b, except);
  if (first && !has_slot(b, running, &own, start)) return false;
  claim(b, own);
  if (first) claim_later(b, first, start);
  return rf_reserve_fits(&b->reserve, &b->pages);
}

/* Returns the cached sequence that has the longest usable common prefix with the prompt. If several
 * prefixes are equally long, returns the pinned sequence, because it holds pages. The last token of
 * the prompt is always computed, because its logits are needed. */
static rf_cached_seq *best_prefix(rf_generator *g, rf_batch *b, const rf_request *r, int64_t *length) {
  rf_cached_seq *best = NULL;
  *length = 0;
  if (g->settings.no_sharing) return NULL;
  for (int i = 0; i < b->cached_count; i++) {
    rf_cached_seq *c = &b->cached[i];
    if (c->state == RF_CACHED_FREE || c->adapter != r->adapter) continue;
    int64_t n = common(r->tokens, r->count - 1, c->sequence.tokens, c->sequence.length);
    if (n < MIN_PREFIX && n < r->count - 1) continue;
    if ((n > *length || (n == *length && n && c->pin)) && rf_sequence_reaches(&b->pages, &c->sequence, n)) {
      best = c;
      *length = n;
    }
  }
  return best;
}

/* Returns true if a running answer is computing a common prefix with `r` that is longer than `have`
 * tokens. */
static bool worth_waiting(const rf_generator *g, const rf_batch *b, const rf_request *r, int64_t have) {
  if (g->settings.no_sharing) return false;
  for (int i = 0; i < b->top; i++) {
    const rf_slot *a = &b->slot[i];
    if (!a->to || a->to->of.adapter != r->adapter) continue;
    if (a->cached->sequence.length >= a->to->of.count - 1) continue;
    int64_t n = common(r->tokens, r->count - 1, a->to->of.tokens, a->to->of.count);
    if (n > have && (n >= MIN_PREFIX || n == r->count - 1)) return true;
  }
  return false;
}

/* Returns a sequence that begins with the first `length` tokens of `from`, if the cache has enough
 * pages until the answer's end. Returns NULL if the answer must wait. */
static rf_cached_seq *begin_sequence(rf_batch *b, const rf_request *r, const rf_pending *first,
                                     rf_cached_seq *from, int64_t length) {
  rf_cached_seq *c = free_sequence(b);
  /* at least RF_KEPT sequences do not run now, and at most one of these is pinned, so one can be
   * evicted */
  if (!c) {
    c = oldest(b, from);
    rf_drop_sequence(b, c);
  }
  if (from) rf_sequence_share(&b->pages, &c->sequence, &from->sequence, length);
  c->state = RF_CACHED_RUNS;
  if (has_room(b, r, &c->sequence, length, first, NULL)) return c;
  rf_drop_sequence(b, c);
  /* The answer continues in the pinned sequence itself, which needs no copy of the last page. */
  if (!from || !from->pin || &from->pin->of != r || !has_room(b, r, &from->sequence, length, first, from))
    return NULL;
  rf_sequence_cut(&b->pages, &from->sequence, length);
  from->state = RF_CACHED_RUNS;
  from->pin = NULL;
  return from;
}

void rf_make_room(rf_batch *b, const rf_forward_part *part, int count) {
  for (;;) {
    bool enough = true;
    for (int c = 0; c < RF_KV_CLASSES; c++) {
      int64_t takes = 0;
      for (int i = 0; i < count; i++)
        takes += rf_sequence_takes(&b->pages, part[i].sequence, (rf_kv_class)c, part[i].count);
      enough &= takes <= b->pages.pool[c].free_count;
    }
    rf_cached_seq *victim = enough ? NULL : oldest(b, NULL);
    if (!victim) return;
    rf_drop_sequence(b, victim);
  }
}

static void begin_answer(rf_batch *b, rf_slot *slot, rf_pending *p, rf_cached_seq *cached, int64_t reused) {
  slot->to = p;
  if (b->top <= slot->slot) b->top = slot->slot + 1;
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

/* Returns the lowest free slot, or NULL. */
static rf_slot *free_slot(rf_batch *b) {
  for (int i = 0; i < b->top; i++)
    if (!b->slot[i].to) return &b->slot[i];
  return b->top < b->slots ? &b->slot[b->top] : NULL;
}

/* Returns the first request, from `p` on, with an answer that has not started. */
static rf_pending *waiting_from(rf_pending *p) {
  while (p && p->started == p->of.samples) p = p->next;
  return p;
}

static bool is_promised(const rf_batch *b, const rf_pending *p) {
  return b->promise.request == p->id && b->promise.sample == p->started && b->promise.pass >= 0;
}

typedef enum start_result { STARTED, NO_ROOM, MUST_WAIT } start_result;

/* Starts the next answer of request `p`. `first`: the promised answer that this answer overtakes,
 * or NULL. */
static start_result start(rf_generator *g, rf_pending *p, const rf_pending *first) {
  rf_batch *b = g->batch;
  rf_slot *slot = free_slot(b);
  int64_t length;
  if (!slot) return MUST_WAIT;
  /* If a prompt is scored, the logits of all its rows are needed, so no prefix is reused. */
  const bool scored = p->of.scores.logprobs && p->started == 0;
  rf_cached_seq *from = scored ? NULL : best_prefix(g, b, &p->of, &length);
  const bool due = is_promised(b, p) && b->counts.passes >= b->promise.pass;
  if (scored) length = 0;
  else if (!due && worth_waiting(g, b, &p->of, length)) return MUST_WAIT;
  if (from) from->used = b->clock;
  rf_cached_seq *cached = begin_sequence(b, &p->of, first, from, length);
  if (!cached) return NO_ROOM;
  cached->used = b->clock;
  begin_answer(b, slot, p, cached, length);
  if (p->started == p->of.samples) rf_unpin(g, p);
  return STARTED;
}

/* Returns true if `p` can start in step `start`, even if no answer ends early. `claims`: number of
 * claims of other sequences. `running`: number of claims of running answers, which come first. */
static bool fits_at(rf_batch *b, const rf_pending *p, int running, int claims, int64_t start) {
  b->reserve.count = claims;
  claim_later(b, p, start);
  return has_slot(b, running, NULL, start) && rf_reserve_fits(&b->reserve, &b->pages);
}

/* Finds the first step in which `p` can start. A later start never needs more pages in any step, so
 * a binary search finds the first step. */
static void promise(rf_batch *b, const rf_pending *p) {
  int64_t no = 0, yes = 0;
  const int running = list_claims(b, NULL), claims = b->reserve.count;
  b->promise = (rf_promise){.request = p->id, .sample = p->started, .pass = -1};
  for (int i = 0; i < running; i++) {
    int64_t steps = b->reserve.claim[i].steps;
    if (steps < RF_STEPS_UNKNOWN && steps > yes) yes = steps;
  }
  if (!yes || !fits_at(b, p, running, claims, yes)) return;
  while (yes - no > 1) {
    int64_t middle = no + (yes - no) / 2;
    if (fits_at(b, p, running, claims, middle)) yes = middle;
    else no = middle;
  }
  b->promise.pass = b->counts.passes + yes;
}

/* maximum number of requests that may try to overtake, because each try reads all claims */
enum { LOOK = 16 };

static void overtake(rf_generator *g, rf_pending *first) {
  rf_batch *b = g->batch;
  if (!b->promise.search || !free_slot(b)) return;
  if (!is_promised(b, first)) promise(b, first);
  rf_pending *p = waiting_from(first->next);
  for (int i = 0; i < LOOK && p && b->promise.pass >= 0; i++) {
    start_result result = start(g, p, first);
    p = waiting_from(result == STARTED ? p : p->next);
  }
  b->promise.search = false;
}

void rf_admit(rf_generator *g) {
  rf_batch *b = g->batch;
  rf_pending *first = waiting_from(b->first);
  start_result result = STARTED;
  while (first && (result = start(g, first, NULL)) == STARTED) first = waiting_from(first);
  if (first && result == NO_ROOM) overtake(g, first);
}

static bool is_pinned(const rf_batch *b, const rf_pending *p) {
  for (int i = 0; i < b->cached_count; i++)
    if (b->cached[i].pin == p) return true;
  return false;
}

/* Pins the prompt of the first waiting request, if the request waits for slots. A pinned prompt is
 * not evicted. Only one prompt is pinned at a time, so a pin never delays the first request. Does
 * not pin the prompt's last token, because every answer computes that token. */
void rf_pin(rf_generator *g) {
  rf_batch *b = g->batch;
  for (int i = 0; i < b->top; i++) {
    rf_slot *a = &b->slot[i];
    if (!a->to || a->count || a->cached->sequence.length != a->to->of.count || g->settings.no_sharing ||
        a->to != waiting_from(b->first) || b->promise.request == a->to->id || is_pinned(b, a->to))
      continue;
    int waiting = a->to->of.samples - a->to->started, slots = b->slots - b->top;
    for (int k = 0; k < b->top; k++) slots += !b->slot[k].to;
    rf_cached_seq *c = free_sequence(b);
    if (waiting <= slots || !c || a->to->of.count < 2) continue;
    if (!rf_sequence_share(&b->pages, &c->sequence, &a->cached->sequence, a->to->of.count - 1)) continue;
    c->state = RF_CACHED_KEPT;
    c->used = b->clock;
    c->pin = a->to;
    c->adapter = a->to->of.adapter;
    list_claims(b, NULL);
    if (!rf_reserve_fits(&b->reserve, &b->pages)) rf_drop_sequence(b, c);
  }
}

void rf_unpin(rf_generator *g, const rf_pending *p) {
  rf_batch *b = g->batch;
  for (int i = 0; i < b->cached_count; i++)
    if (b->cached[i].pin == p) rf_drop_sequence(b, &b->cached[i]);
}
