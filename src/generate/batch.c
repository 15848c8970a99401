/* batch.c - queues requests, runs the steps of all running answers, and makes the events of a
 * step. */
#include "generate/adapters.h"
#include "generate/batch.h"
#include "generate/shares.h"
#include "run/record.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

const char *rf_finish_name(rf_finish finish) {
  static const char *const names[] = {"", "stop", "length", "error", "cancelled"};
  return names[finish];
}

uint64_t rf_sample_seed(uint64_t seed, int sample) {
  return sample ? rf_key(seed, (uint64_t)sample, rf_name_key("sample")) >> 2 : seed;
}

static rf_status open_cache(rf_generator *g, rf_batch *b, rf_error *error) {
  const rf_build_options *build = &g->settings.plan.build;
  rf_build_options own = g->prefill->options.build;
  own.microbatch = build->microbatch;
  own.sequences = build->sequences;
  rf_kv kv = rf_kv_of(&g->settings.model, &own);
  RF_TRY(rf_pages_open(&kv, &b->pages, error));
  RF_TRY(rf_sequence_open(&b->pages, build->seq, &b->hand, error));
  for (int i = 0; i < b->cached_count; i++)
    RF_TRY(rf_sequence_open(&b->pages, build->seq, &b->cached[i].sequence, error));
  return RAFTER_OK;
}

int rf_generator_events(const rf_generator *g) { return g->batch->slots * (2 + g->batch->draft); }

rf_status rf_batch_open(rf_generator *g, rf_error *error) {
  rf_batch *b = g->batch = calloc(1, sizeof *b);
  if (!b) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  b->slots = (int)g->settings.plan.build.microbatch;
  b->cached_count = b->slots + RF_KEPT;
  b->threads = g->settings.plan.threads;
  b->slot = calloc((size_t)b->slots, sizeof *b->slot);
  b->cached = calloc((size_t)b->cached_count, sizeof *b->cached);
  b->part = calloc((size_t)b->slots, sizeof *b->part);
  b->draft = g->settings.plan.build.draft;
  size_t choices = (size_t)b->slots * (size_t)(1 + b->draft);
  b->next = calloc(choices, sizeof *b->next);
  b->choice = calloc(choices, sizeof *b->choice);
  b->event = calloc((size_t)rf_generator_events(g), sizeof *b->event);
  b->order = calloc((size_t)b->slots, sizeof *b->order);
  b->text = calloc((size_t)b->slots, sizeof *b->text);
  b->live = calloc((size_t)b->cached_count + 1, sizeof(rf_sequence *));
  if (!b->slot || !b->cached || !b->part || !b->event || !b->order || !b->live || !b->text || !b->next ||
      !b->choice)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  for (int i = 0; i < b->slots; i++) {
    b->slot[i].slot = i;
    b->slot[i].next = b->next + i * (1 + b->draft);
    b->slot[i].choice = b->choice + i * (1 + b->draft);
  }
  if (b->draft)
    RF_TRY(rf_draft_plan_open(g->decode, b->slots, b->draft, g->settings.drafts_all, &b->when, error));
  if (g->settings.step_growth > 0)
    RF_TRY(rf_budget_open(g->prefill, g->decode, g->settings.step_growth, b->slots, &b->budget, error));
  RF_TRY(open_cache(g, b, error));
  RF_TRY(rf_ahead_open(b, error));
  b->promise.request = -1;
  return rf_reserve_open(&b->pages, b->cached_count + 1, 1 + b->draft, &b->reserve, error);
}

static void free_list(rf_pending *list) {
  for (rf_pending *p = list, *next; p; p = next) {
    next = p->next;
    free((void *)p->of.tokens);
    free(p);
  }
}

void rf_batch_close(rf_generator *g) {
  rf_batch *b = g->batch;
  if (!b) return;
  rf_ahead_abandon(b); /* the run may go on without this generator */
  if (b->engine.close) b->engine.close(b->engine.self);
  rf_budget_close(b->budget);
  free_list(b->first);
  free_list(b->spent);
  for (int i = 0; b->cached && i < b->cached_count; i++) rf_sequence_close(&b->cached[i].sequence);
  rf_sequence_close(&b->hand);
  rf_pages_close(&b->pages);
  rf_reserve_close(&b->reserve);
  rf_ahead_close(b);
  free(b->slot);
  free(b->cached);
  free(b->part);
  rf_draft_plan_close(b->when);
  free(b->next);
  free(b->choice);
  free(b->event);
  free(b->order);
  free(b->text);
  free(b->live);
  free(b);
}

rf_status rf_check_ids(const int32_t *ids, int64_t count, int64_t vocab, const char *what, rf_error *error) {
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= vocab)
      return RF_FAIL(error, RAFTER_INVALID, "use ids of the model's own tokenizer",
                     "token out of range (%s, token %lld: expected an id below %lld, got %d)", what,
                     (long long)i, (long long)vocab, ids[i]);
  return RAFTER_OK;
}

rf_status rf_generator_check(const rf_generator *g, const rf_request *r, rf_error *error) {
  int64_t context = g->settings.plan.build.seq, vocab = g->settings.model.vocab;
  if (r->count < 1) return RF_FAIL(error, RAFTER_INVALID, "give at least one token", "the prompt is empty");
  if (r->count > context)
    return RF_FAIL(error, RAFTER_INVALID,
                   "shorten the prompt, or raise --seq up to the model's context length",
                   "the context is full (expected a prompt of at most %lld tokens, got %lld)",
                   (long long)context, (long long)r->count);
  if (r->max_tokens < 0 || r->samples < 0 || r->stop_count < 0 || r->top < 0 || r->top > RF_TOP_LOGPROBS)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "a request is out of range (max_tokens %lld, samples %d, stop ids %lld: expected none "
                   "below 0; alternatives: expected 0 to %d, got %d)",
                   (long long)r->max_tokens, r->samples, (long long)r->stop_count, RF_TOP_LOGPROBS, r->top);
  RF_TRY(rf_check_ids(r->tokens, r->count, vocab, "prompt", error));
  RF_TRY(rf_check_ids(r->stop, r->stop_count, vocab, "stop ids", error));
  RF_TRY(rf_adapters_check(g, r->adapter, error));
  return rf_sampler_check(&r->sampler, vocab, error);
}

/* Copies the token ids of a request and allocates a state for each sample. Reuses the memory of an
 * ended request, if there is one. */
static rf_pending *take_pending(rf_batch *b, const rf_request *request) {
  size_t ids = (size_t)(request->count + request->stop_count) * sizeof(int32_t),
         samples = request->samples ? (size_t)request->samples : 1;
  rf_pending *p = b->spent ? b->spent : calloc(1, sizeof *p);
  if (!p) return NULL;
  b->spent = p->next;
  int32_t *block = (int32_t *)p->of.tokens;
  if (p->room < ids + samples) {
    block = realloc(block, ids + samples);
    if (!block) {
      p->next = b->spent;
      b->spent = p;
      return NULL;
    }
    p->room = ids + samples;
  }
  *p = (rf_pending){.of = *request, .room = p->room};
  memcpy(block, request->tokens, (size_t)request->count * sizeof *block);
  if (request->stop_count)
    memcpy(block + request->count, request->stop, (size_t)request->stop_count * sizeof *block);
  p->of.tokens = block;
  p->of.stop = block + request->count;
  p->of.samples = (int)samples;
  p->state = memset((unsigned char *)block + ids, RF_SAMPLE_WAITS, samples);
  return p;
}

rf_status rf_generator_submit(rf_generator *g, const rf_request *request, int64_t *id, rf_error *error) {
  rf_batch *b = g->batch;
  RF_TRY(rf_generator_check(g, request, error));
  rf_pending *p = take_pending(b, request);
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while queueing a request");
  /* The last token of an answer is not cached, so its position may be after the end of the
   * context. */
  int64_t room = g->settings.plan.build.seq - request->count + 1;
  if (!p->of.max_tokens || p->of.max_tokens > room) p->of.max_tokens = room;
  if (!b->first) { /* the first request releases the pages of rf_generator_feed's sequence */
    rf_sequence_release(&b->pages, &b->hand);
    g->length = 0;
  }
  p->id = b->next_id++;
  p->before = b->newest;
  if (b->newest) b->newest->next = p;
  else b->first = p;
  b->newest = p;
  b->promise.search = true;
  if (id) *id = p->id;
  return RAFTER_OK;
}

bool rf_generator_busy(const rf_generator *g) { return g->batch->first != NULL; }
rf_generate_counts rf_generator_counts(const rf_generator *g) {
  rf_generate_counts counts = g->batch->counts;
  if (g->shares) rf_shares_add_counts(g->shares, &counts);
  return counts;
}

/* Returns true if an answer in an earlier slot also uses this page of the class. */
static bool counted(const rf_batch *b, int slot, int class, int32_t page) {
  for (int i = 0; i < slot; i++) {
    if (!b->slot[i].to) continue;
    const struct rf_page_table *t = &b->slot[i].cached->sequence.of[class];
    for (int64_t c = t->first; c < t->end; c++)
      if (t->page[c] == page) return true;
  }
  return false;
}

/* Counts the pages of an answer that no earlier slot has, and the tokens in these pages. */
static void add_held(const rf_batch *b, int slot, int class, int64_t *pages, int64_t *tokens) {
  const rf_sequence *s = &b->slot[slot].cached->sequence;
  const struct rf_page_table *t = &s->of[class];
  const int64_t page = b->pages.kv.page;
  for (int64_t c = t->first; c < t->end; c++) {
    bool shared = b->pages.pool[class].holders[t->page[c]] > 1;
    if (shared && counted(b, slot, class, t->page[c])) continue;
    int64_t left = s->length - c * page;
    *tokens += left < page ? left : page;
    ++*pages;
  }
}

int64_t rf_batch_live_tokens(const rf_batch *b, int64_t *capacity) {
  const int class = b->pages.kv.of[RF_KV_GLOBAL].layers ? RF_KV_GLOBAL : RF_KV_LOCAL;
  int64_t pages = 0, tokens = 0;
  *capacity = b->pages.kv.of[class].pool * b->pages.kv.page;
  for (int i = 0; i < b->top; i++)
    if (b->slot[i].to) add_held(b, i, class, &pages, &tokens);
  return tokens;
}

rf_generator_use rf_generator_held(const rf_generator *g) {
  const rf_batch *b = g->batch;
  rf_generator_use use = {0};
  for (const rf_pending *p = b->first; p; p = p->next)
    for (int s = 0; s < p->of.samples; s++) {
      use.running += p->state[s] == RF_SAMPLE_RUNS;
      use.waiting += p->state[s] == RF_SAMPLE_WAITS;
    }
  for (int k = 0; k < RF_KV_CLASSES; k++) {
    const struct rf_kv_layers *of = &b->pages.kv.of[k];
    int64_t pages = 0, tokens = 0;
    for (int i = 0; i < b->top; i++)
      if (b->slot[i].to) add_held(b, i, k, &pages, &tokens);
    use.kv_bytes += of->pool * of->page_bytes;
    use.used_bytes += pages * of->page_bytes;
  }
  use.live_tokens = rf_batch_live_tokens(b, &use.kv_tokens);
  return use;
}

/* Marks an answer as ended, after its last event. The request ends together with its last
 * answer. */
static void retire(rf_generator *g, rf_pending *p, int sample) {
  rf_batch *b = g->batch;
  p->state[sample] = RF_SAMPLE_ENDED;
  if (++p->ended < p->of.samples) return;
  rf_unpin(g, p);
  if (p->before) p->before->next = p->next;
  else b->first = p->next;
  if (p->next) p->next->before = p->before;
  else b->newest = p->before;
  p->next = b->spent;
  b->spent = p;
}

static void free_slot(rf_generator *g, rf_slot *answer) {
  rf_batch *b = g->batch;
  rf_cached_seq *c = answer->cached;
  rf_ahead_leave(b, answer);
  c->state = answer->to->of.keep ? RF_CACHED_KEPT : RF_CACHED_FREE;
  if (c->state == RF_CACHED_FREE) rf_sequence_release(&b->pages, &c->sequence);
  b->promise.search = true;
  answer->to = NULL;
  answer->cached = NULL;
  while (b->top > 0 && !b->slot[b->top - 1].to) b->top--;
}

void rf_skip_cancelled(rf_pending *p) {
  while (p->started < p->of.samples && p->state[p->started] != RF_SAMPLE_WAITS) p->started++;
}

void rf_generator_cancel(rf_generator *g, int64_t request, int sample) {
  rf_batch *b = g->batch;
  rf_pending *p = b->first;
  while (p && p->id != request) p = p->next;
  if (!p || sample >= p->of.samples) return;
  for (int i = 0; i < b->top; i++)
    if (b->slot[i].to == p && (sample < 0 || b->slot[i].sample == sample)) free_slot(g, &b->slot[i]);
  for (int s = sample < 0 ? 0 : sample; s < (sample < 0 ? p->of.samples : sample + 1); s++) {
    if (p->state[s] > RF_SAMPLE_RUNS) continue;
    p->state[s] = RF_SAMPLE_CANCELLED;
    p->cancelled++;
    b->cancelled++;
  }
  rf_skip_cancelled(p);
  if (p->started == p->of.samples) rf_unpin(g, p);
}

void rf_drop_sequence(rf_batch *b, rf_cached_seq *c) {
  rf_sequence_release(&b->pages, &c->sequence);
  c->state = RF_CACHED_FREE;
  c->pin = NULL;
}

static void forget(rf_batch *b, rf_cached_seq *c) {
  if (c->state == RF_CACHED_KEPT) rf_drop_sequence(b, c);
}

void rf_batch_forget(rf_generator *g) {
  for (int i = 0; i < g->batch->cached_count; i++) forget(g->batch, &g->batch->cached[i]);
}

/* A pinned sequence stays in the cache, because earlier requests still use the sequence. */
void rf_batch_forget_adapter(rf_generator *g, int64_t adapter) {
  for (int i = 0; i < g->batch->cached_count; i++)
    if (g->batch->cached[i].adapter == adapter && !g->batch->cached[i].pin)
      forget(g->batch, &g->batch->cached[i]);
}

/* Returns the number of rows that an answer needs next: the uncached tokens of its prompt, or 1 for
 * its latest token. */
static int64_t rows_left(const rf_slot *a) {
  int64_t left = a->to->of.count - a->cached->sequence.length;
  return left > 0 ? left : 1;
}

/* Returns true if the rows of the answer's next part are scored. Only rows of the prompt are
 * scored, and only for the first answer. */
static bool scores_prompt(const rf_slot *a) {
  return a->to->of.scores.logprobs && a->sample == 0 && a->cached->sequence.length < a->to->of.count;
}

static void add_part(rf_batch *b, int slot, int64_t count) {
  rf_slot *a = &b->slot[slot];
  int64_t length = a->cached->sequence.length, prompt = a->to->of.count;
  b->order[b->parts] = slot;
  b->part[b->parts++] = (rf_forward_part){.sequence = &a->cached->sequence,
                                          .answer = a,
                                          .tokens = length < prompt ? a->to->of.tokens + length : a->next,
                                          .count = count,
                                          .wanted = length + count >= prompt};
  rf_forward_part *part = &b->part[b->parts - 1];
  if (scores_prompt(a)) part->scored = (int)(count - part->wanted);
}

/* Drafts tokens after the latest token of each answer, if no part is a chunk of a prompt. The pass
 * verifies the drafts, so the rows of the drafts also need logits. An answer never drafts beyond
 * its end. */
static rf_status draft(rf_generator *g, rf_batch *b, rf_error *error) {
  rf_draft_begin(b->when, 0);
  for (int i = 0; i < b->parts; i++)
    if (b->part[i].count > 1 || b->part[i].tokens != b->slot[b->order[i]].next) return RAFTER_OK;
  rf_draft_begin(b->when, b->parts);
  for (int i = 0; i < b->parts; i++) {
    rf_slot *a = &b->slot[b->order[i]];
    int64_t left = a->to->of.max_tokens - a->count - 1;
    const rf_sequence *s = &a->cached->sequence;
    int max = left < b->draft ? (int)left : b->draft;
    b->text[i] = (rf_drafter_text){a->slot, s->tokens, s->length, a->next, 0};
    if (g->drafter) rf_draft_expect(b->when, i, max, &a->odds, s->length + 1);
    else rf_draft_propose(b->when, i, s->tokens, s->length, a->next, max, &a->odds, s->length + 1);
  }
  rf_draft_choose(b->when);
  for (int i = 0; i < b->parts; i++) {
    b->part[i].count += rf_draft_count(b->when, i);
    b->part[i].wanted += rf_draft_count(b->when, i);
    b->text[i].wanted = rf_draft_count(b->when, i);
  }
  return g->drafter ? rf_drafter_draft(g->drafter, b->text, b->parts, rf_draft_plan_prices(b->when), error)
                    : RAFTER_OK;
}

/* Returns the slot of the oldest answer after `before` whose prompt needs more than one row.
 * Returns -1 if no answer has such a prompt. */
static int next_prompt(const rf_batch *b, int64_t before) {
  int next = -1;
  for (int i = 0; i < b->top; i++)
    if (b->slot[i].to && rows_left(&b->slot[i]) > 1 && b->slot[i].serial > before &&
        (next < 0 || b->slot[i].serial < b->slot[next].serial))
      next = i;
  return next;
}

/* Returns the number of rows for chunks of prompts in a pass, next to the answers in b->part. */
static int64_t rows_for_prompts(rf_batch *b) {
  int64_t rows = b->engine.rows - b->parts;
  int next = next_prompt(b, -1);
  if (!b->budget) return rows;
  rf_budget_begin(b->budget);
  for (int i = 0; i < b->parts; i++) rf_budget_add(b->budget, b->part[i].sequence->length + 1);
  if (next < 0) return rows;
  return rf_budget_rows(b->budget, rows, b->slot[next].cached->sequence.length);
}

/* Sorts the parts by adapter, so that one matrix product computes all rows of an adapter. */
static void sort_by_adapter(rf_batch *b) {
  for (int i = 1; i < b->parts; i++)
    for (int k = i; k > 0 && b->slot[b->order[k]].to->of.adapter < b->slot[b->order[k - 1]].to->of.adapter;
         k--) {
      int order = b->order[k];
      rf_forward_part part = b->part[k];
      b->order[k] = b->order[k - 1];
      b->part[k] = b->part[k - 1];
      b->order[k - 1] = order;
      b->part[k - 1] = part;
    }
}

/* Composes a forward pass. Every answer that needs only one row gets its row. Chunks of prompts
 * take the other rows, oldest prompt first. A pass computes logits for one row per slot. So a
 * scored prompt gets the row of its own slot and the rows of free slots. */
static void compose(rf_batch *b) {
  int64_t spare = b->slots - b->top;
  b->parts = 0;
  for (int i = 0; i < b->top; i++) {
    spare += b->slot[i].to == NULL;
    if (b->slot[i].to && rows_left(&b->slot[i]) == 1) add_part(b, i, 1);
  }
  int64_t rows = rows_for_prompts(b);
  for (int64_t before = -1; rows > 0;) {
    int next = next_prompt(b, before);
    if (next < 0) break;
    int64_t count = rows_left(&b->slot[next]);
    if (count > b->engine.chunk) count = b->engine.chunk;
    if (count > rows) count = rows;
    if (scores_prompt(&b->slot[next])) {
      if (count > 1 + spare) count = 1 + spare;
      spare -= count - 1;
    }
    before = b->slot[next].serial;
    rows -= count;
    add_part(b, next, count);
  }
  sort_by_adapter(b);
}

static bool stops(const rf_request *r, int32_t id) {
  for (int64_t i = 0; i < r->stop_count; i++)
    if (r->stop[i] == id) return true;
  return false;
}

/* Adds the last events of cancelled answers until the list of events is full. */
static void report_cancelled(rf_generator *g, rf_batch *b) {
  for (rf_pending *p = b->first, *next; p && b->cancelled && b->events < b->slots; p = next) {
    next = p->next;
    for (int s = 0; s < p->of.samples && p->cancelled && b->events < b->slots; s++) {
      if (p->state[s] != RF_SAMPLE_CANCELLED) continue;
      b->event[b->events++] = (rf_event){.request = p->id,
                                         .sample = s,
                                         .owner = p->of.owner,
                                         .index = -1,
                                         .token = -1,
                                         .finish = RF_FINISH_CANCELLED};
      p->cancelled--;
      b->cancelled--;
      retire(g, p, s);
    }
  }
}

static rf_event *add_event(rf_batch *b, const rf_slot *a) {
  const rf_pending *p = a->to;
  rf_event *event = &b->event[b->events++];
  *event = (rf_event){.request = p->id, .sample = a->sample, .owner = p->of.owner, .index = -1, .token = -1};
  return event;
}

static rf_finish finish_of(const rf_request *r, int32_t token, int64_t count) {
  return stops(r, token) ? RF_FINISH_STOP : count == r->max_tokens ? RF_FINISH_LENGTH : RF_FINISH_NONE;
}

/* Adds the events of an answer that has chosen tokens or has failed. */
static void report(rf_generator *g, rf_batch *b, rf_slot *a) {
  rf_pending *p = a->to;
  rf_event *event = NULL;
  for (int i = 0; i < a->chosen; i++) {
    const rf_choice *choice = &a->choice[i];
    event = add_event(b, a);
    b->promise.search |= !a->count; /* after the first token, the last step of the answer is known */
    event->index = a->count++;
    event->token = a->next[0] = choice->id;
    /* the input of a pass that runs ahead */
    if (a->flying) a->cached->sequence.tokens[a->cached->sequence.length - a->flying] = choice->id;
    event->logprob = choice->logprob;
    event->top = choice->top;
    event->top_ids = choice->top_ids;
    event->top_logprobs = choice->top_logprobs;
    event->finish = finish_of(&p->of, choice->id, a->count);
    b->counts.tokens++;
  }
  if (a->status != RAFTER_OK) {
    event = add_event(b, a);
    event->finish = RF_FINISH_ERROR;
    event->error = &a->error;
  }
  if (event->finish == RF_FINISH_NONE) return;
  free_slot(g, a);
  retire(g, p, a->sample);
}

/* Chooses tokens in order, as long as each chosen token equals the drafted token. A choice depends
 * only on earlier tokens, so passes without drafts give the same tokens. */
static void choose(rf_batch *b, int i, int worker) {
  rf_slot *a = &b->slot[b->order[i]];
  const rf_forward_part *part = &b->part[i];
  const int32_t *drafted = part->tokens + part->count - part->wanted + 1;
  a->status = RAFTER_OK;
  if (part->scored) b->engine.score(b->engine.self, part);
  for (a->chosen = 0; a->chosen < part->wanted;) {
    a->status = b->engine.choose(b->engine.self, a, part, a->chosen, worker, &a->error);
    if (a->status != RAFTER_OK) return;
    int32_t id = a->choice[a->chosen++].id;
    if (a->chosen == part->wanted || id != drafted[a->chosen - 1] ||
        finish_of(&a->to->of, id, a->count + a->chosen))
      return;
  }
}

/* Removes wrong drafts from the cache. The token of a row is right if the previous row chose this
 * token. */
static void settle(rf_batch *b, int i) {
  const rf_forward_part *part = &b->part[i];
  rf_slot *a = &b->slot[b->order[i]];
  if (part->wanted < 2) return;
  int right = a->chosen > 1 ? a->chosen : 1;
  rf_sequence_retract(&b->pages, part->sequence, part->sequence->length - part->wanted + right);
  b->counts.drafted += part->wanted - 1;
  b->counts.accepted += right - 1;
  b->counts.verified++;
  b->counts.compared += right - 1 + (right < part->wanted && a->choice[right - 1].id != part->tokens[right]);
  rf_draft_settle(b->when, i, right - 1);
}

/* Chooses the next tokens of each sequence that has logits in this pass. With n threads, thread t
 * serves the sequences t, t + n, t + 2 n, ... */
static void choose_all(rf_generator *g, rf_batch *b) {
  if (b->threads > 1 && b->parts > 1) {
#pragma omp parallel num_threads(b->threads)
    for (int i = omp_get_thread_num(); i < b->parts; i += b->threads) choose(b, i, omp_get_thread_num());
  } else {
    for (int i = 0; i < b->parts; i++) choose(b, i, 0);
  }
  for (int i = 0; i < b->parts; i++) {
    if (!b->part[i].wanted) continue;
    settle(b, i);
    report(g, b, &b->slot[b->order[i]]);
  }
}

static rf_status prove(const rf_batch *b, rf_error *error) {
  int count = 0;
  for (int i = 0; i < b->cached_count; i++) b->live[count++] = &b->cached[i].sequence;
  b->live[count++] = &b->hand;
  return rf_pages_check(&b->pages, b->live, count, error);
}

/* Records counters of the trace after a pass: queued answers, answers in the pass, used pages. */
static void count_all(const rf_batch *b) {
  int64_t waiting = 0, pages = 0;
  for (const rf_pending *p = b->first; p; p = p->next) waiting += p->of.samples - p->started;
  for (int c = 0; c < RF_KV_CLASSES; c++) pages += b->pages.kv.of[c].pool - b->pages.pool[c].free_count;
  rf_count(RF_COUNTER_QUEUE, (double)waiting);
  rf_count(RF_COUNTER_ANSWERS, b->parts);
  rf_count(RF_COUNTER_PAGES, (double)pages);
}

/* Gives the budget the time of a pass that did not run ahead. The budget counts parts with one row as
 * answers. */
static void measured(const rf_batch *b, double seconds) {
  int64_t rows = 0;
  for (int i = 0; i < b->parts; i++) rows += b->part[i].count > 1 ? b->part[i].count : 0;
  const rf_budget_pass pass = rf_budget_expect(b->budget, rows);
  rf_budget_measured(b->budget, &pass, seconds);
}

static void count_started(rf_generator *g, rf_batch *b) {
  if (rf_lanes_on) count_all(b);
  b->counts.passes++;
  b->counts.parts += b->parts;
  if (b->parts > b->counts.most_parts) b->counts.most_parts = b->parts;
  for (int i = 0; i < b->parts; i++) b->counts.rows += b->part[i].count;
  rf_pin(g);
}

static void choose_timed(rf_generator *g, rf_batch *b) {
  int64_t began = rf_phase_begin();
  choose_all(g, b);
  rf_phase_end(RF_PHASE_SAMPLE, began);
}

/* Starts the pass in b->part if it can follow the one that runs, and then waits for that one. */
static rf_status step_ahead(rf_generator *g, rf_batch *b, rf_error *error) {
  if (rf_ahead_follows(g)) {
    RF_TRY(rf_ahead_start(g, true, error));
    count_started(g, b);
  }
  RF_TRY(rf_ahead_finish(g, error));
  choose_timed(g, b);
  rf_ahead_settle(g);
  return RAFTER_OK;
}

static rf_status take_step(rf_generator *g, rf_batch *b, rf_error *error) {
  RF_TRY(rf_ahead_settled(g, error));
  RF_TRY(rf_generator_refresh(g, error));
  report_cancelled(g, b);
  if (!b->first) return RAFTER_OK;
  rf_admit(g);
  compose(b);
  if (b->flights) return step_ahead(g, b, error);
  if (b->when) RF_TRY(draft(g, b, error));
  if (!b->parts)
    return b->events
               ? RAFTER_OK
               : RF_FAIL(error, RAFTER_FAILED, "open the generator again",
                         "no answer can start (the KV cache has no room for the first one in the queue)");
  if (rf_ahead_starts(g)) {
    RF_TRY(rf_ahead_start(g, false, error));
    count_started(g, b);
    compose(b);
    return step_ahead(g, b, error);
  }
  double start = rf_now_seconds();
  RF_TRY(rf_forward(g, b->part, b->parts, error));
  if (b->when) rf_draft_measured(b->when, rf_now_seconds() - start);
  else if (b->budget && b->engine.timed) measured(b, rf_now_seconds() - start);
  count_started(g, b);
  choose_timed(g, b);
  return RAFTER_OK;
}

rf_status rf_generator_step(rf_generator *g, const rf_event **events, int *count, rf_error *error) {
  rf_batch *b = g->batch;
  b->events = 0;
  rf_record_step(-1);
  rf_guard_begin("a step of a generator");
  rf_status status = take_step(g, b, error);
  rf_guard_end();
  if (status == RAFTER_OK && g->settings.debug.poison) status = prove(b, error);
  rf_record_step_end(b->events);
  *events = b->event;
  *count = b->events;
  return status;
}
