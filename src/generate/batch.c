/* batch.c - requests: their queue, the answers that run, one step of all of them, and what is
 * told about each token. */
#include "generate/batch.h"
#include "run/record.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

const char *rf_finish_name(rf_finish finish) {
  static const char *const names[] = {"", "stop", "length"};
  return names[finish];
}

uint64_t rf_sample_seed(uint64_t seed, int sample) {
  return sample ? rf_key(seed, (uint64_t)sample, rf_name_key("sample")) >> 2 : seed;
}

/* ---- opening --------------------------------------------------------------------------------- */

static rf_status open_texts(rf_generator *g, rf_batch *b, rf_error *error) {
  for (int i = 0; i < b->texts; i++)
    RF_TRY(rf_sequence_open(&g->walker->pages, g->settings.plan.build.seq, &b->text[i].sequence, error));
  for (int i = 0; i < b->workers && !g->settings.simulated; i++)
    RF_TRY(rf_sampler_work_open(g->settings.model.vocab, &b->work[i], error));
  return RAFTER_OK;
}

rf_status rf_batch_open(rf_generator *g, rf_error *error) {
  rf_batch *b = g->batch = calloc(1, sizeof *b);
  if (!b) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  b->end = &b->first;
  b->slots = (int)g->settings.plan.build.microbatch;
  b->texts = b->slots + RF_KEPT;
  b->workers = g->settings.plan.threads < b->slots ? g->settings.plan.threads : b->slots;
  b->slot = calloc((size_t)b->slots, sizeof *b->slot);
  b->text = calloc((size_t)b->texts, sizeof *b->text);
  b->part = calloc((size_t)b->slots, sizeof *b->part);
  b->event = calloc((size_t)b->slots, sizeof *b->event);
  b->work = calloc((size_t)b->workers, sizeof(rf_sampler_work *));
  b->order = calloc((size_t)b->slots, sizeof *b->order);
  b->live = calloc((size_t)b->texts + 1, sizeof(rf_sequence *));
  if (!b->slot || !b->text || !b->part || !b->event || !b->work || !b->order || !b->live)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  return open_texts(g, b, error);
}

static void free_asked(rf_asked *a) {
  free((void *)a->of.tokens);
  free((void *)a->of.stop);
  free(a->gone);
  free(a);
}

void rf_batch_close(rf_generator *g) {
  rf_batch *b = g->batch;
  if (!b) return;
  for (rf_asked *a = b->first, *next; a; a = next) {
    next = a->next;
    free_asked(a);
  }
  for (int i = 0; b->slot && i < b->slots; i++)
    if (b->slot[i].opened) rf_sampler_close(&b->slot[i].sampler);
  for (int i = 0; b->text && i < b->texts; i++) rf_sequence_close(&b->text[i].sequence);
  for (int i = 0; b->work && i < b->workers; i++) rf_sampler_work_close(b->work[i]);
  free(b->slot);
  free(b->text);
  free(b->part);
  free(b->event);
  free(b->work);
  free(b->order);
  free(b->live);
  free(b);
}

/* ---- the queue ------------------------------------------------------------------------------- */

static rf_status check_ids(const int32_t *ids, int64_t count, int64_t vocab, const char *what,
                           rf_error *error) {
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= vocab)
      return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                     "token out of range (%s, token %lld: expected an id below %lld, got %d)", what,
                     (long long)i, (long long)vocab, ids[i]);
  return RAFTER_OK;
}

static rf_status check_request(const rf_generator *g, const rf_request *r, rf_error *error) {
  int64_t context = g->settings.plan.build.seq, vocab = g->settings.model.vocab;
  if (r->count < 1) return RF_FAIL(error, RAFTER_INVALID, "give at least one token", "the prompt is empty");
  if (r->count > context)
    return RF_FAIL(error, RAFTER_INVALID,
                   "shorten the prompt, or raise --seq where the model has the positions",
                   "the context is full (expected a prompt of at most %lld tokens, got %lld)",
                   (long long)context, (long long)r->count);
  if (r->max_tokens < 0 || r->samples < 0 || r->stop_count < 0 || r->top < 0 || r->top > RF_TOP_LOGPROBS)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "a request is out of range (max_tokens %lld, samples %d, stop ids %lld: expected none "
                   "below 0; alternatives: expected 0 to %d, got %d)",
                   (long long)r->max_tokens, r->samples, (long long)r->stop_count, RF_TOP_LOGPROBS, r->top);
  RF_TRY(check_ids(r->tokens, r->count, vocab, "prompt", error));
  RF_TRY(check_ids(r->stop, r->stop_count, vocab, "stop ids", error));
  return rf_sampler_check(&r->sampler, vocab, error);
}

static int32_t *copy_ids(const int32_t *ids, int64_t count) {
  int32_t *copy = malloc(((size_t)count + 1) * sizeof *copy);
  if (copy && count) memcpy(copy, ids, (size_t)count * sizeof *copy);
  return copy;
}

rf_status rf_generator_submit(rf_generator *g, const rf_request *request, int64_t *id, rf_error *error) {
  rf_batch *b = g->batch;
  RF_TRY(check_request(g, request, error));
  rf_asked *a = calloc(1, sizeof *a);
  if (!a) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while queueing a request");
  /* the last token needs no place in the cache */
  int64_t room = g->settings.plan.build.seq - request->count + 1;
  a->of = *request;
  a->of.tokens = copy_ids(request->tokens, request->count);
  a->of.stop = copy_ids(request->stop, request->stop_count);
  if (!a->of.samples) a->of.samples = 1;
  if (!a->of.max_tokens || a->of.max_tokens > room) a->of.max_tokens = room;
  a->gone = calloc((size_t)a->of.samples, sizeof *a->gone);
  if (!a->of.tokens || !a->of.stop || !a->gone) {
    free_asked(a);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while queueing a request");
  }
  if (!b->first) rf_generator_reset(g); /* what was fed by hand makes room */
  a->id = b->next_id++;
  *b->end = a;
  b->end = &a->next;
  if (id) *id = a->id;
  return RAFTER_OK;
}

bool rf_generator_busy(const rf_generator *g) { return g->batch->first != NULL; }
rf_generate_counts rf_generator_counts(const rf_generator *g) { return g->batch->counts; }

/* Lets a request go when none of its answers is left. */
static void retire(rf_generator *g, rf_asked *a) {
  rf_batch *b = g->batch;
  if (a->ended < a->of.samples) return;
  rf_unpin(g, a);
  for (rf_asked **at = &b->first; *at; at = &(*at)->next) {
    if (*at != a) continue;
    *at = a->next;
    if (b->end == &a->next) b->end = at;
    break;
  }
  free_asked(a);
}

static void end_answer(rf_generator *g, rf_answer *answer) {
  rf_asked *a = answer->to;
  answer->text->state = a->of.keep ? RF_TEXT_KEPT : RF_TEXT_FREE;
  if (answer->text->state == RF_TEXT_FREE) rf_sequence_release(&g->walker->pages, &answer->text->sequence);
  else rf_sequence_expect(&g->walker->pages, &answer->text->sequence, 0);
  answer->to = NULL;
  answer->text = NULL;
  a->ended++;
  retire(g, a);
}

/* Steps over samples that were cancelled before they began. */
void rf_skip_gone(rf_asked *a) {
  while (a->started < a->of.samples && a->gone[a->started]) a->started++;
}

void rf_generator_cancel(rf_generator *g, int64_t request, int sample) {
  rf_batch *b = g->batch;
  rf_asked *a = b->first;
  while (a && a->id != request) a = a->next;
  if (!a || sample >= a->of.samples) return;
  for (int s = sample < 0 ? a->started : sample; s < (sample < 0 ? a->of.samples : sample + 1); s++)
    if (s >= a->started && !a->gone[s]) {
      a->gone[s] = true;
      a->ended++;
    }
  rf_skip_gone(a);
  if (a->started == a->of.samples) rf_unpin(g, a);
  a->ended--; /* so that it stays until all of them have been seen to */
  for (int i = 0; i < b->slots; i++)
    if (b->slot[i].to == a && (sample < 0 || b->slot[i].sample == sample)) end_answer(g, &b->slot[i]);
  a->ended++;
  retire(g, a);
}

void rf_batch_forget(rf_generator *g) {
  rf_batch *b = g->batch;
  for (int i = 0; i < b->texts; i++)
    if (b->text[i].state == RF_TEXT_KEPT) {
      rf_sequence_release(&g->walker->pages, &b->text[i].sequence);
      b->text[i].state = RF_TEXT_FREE;
    }
}

/* ---- a step ---------------------------------------------------------------------------------- */

static int64_t pending(const rf_answer *a) {
  int64_t left = a->to->of.count - a->text->sequence.length;
  return left > 0 ? left : 1; /* a piece of the prompt, or the token chosen last */
}

static void add_part(rf_batch *b, int slot, int64_t count) {
  rf_answer *a = &b->slot[slot];
  int64_t length = a->text->sequence.length, prompt = a->to->of.count;
  b->order[b->parts] = slot;
  b->part[b->parts++] = (rf_walk_part){.sequence = &a->text->sequence,
                                       .tokens = length < prompt ? a->to->of.tokens + length : &a->last,
                                       .count = count,
                                       .prompt = length < prompt,
                                       .wanted = length + count >= prompt};
}

/* One row of every answer that goes on, then pieces of prompts, of those that came first first,
 * for as long as the walk has rows. */
static void compose(rf_generator *g, rf_batch *b) {
  bool given = g->settings.prompts_given; /* whose caches come whole */
  int64_t rows = given ? INT64_MAX : g->prefill->graph->rows,
          chunk = given ? INT64_MAX : g->prefill->options.build.chunk;
  b->parts = 0;
  for (int i = 0; i < b->slots; i++)
    if (b->slot[i].to && pending(&b->slot[i]) == 1) {
      add_part(b, i, 1);
      rows--;
    }
  for (int64_t before = -1; rows > 0;) {
    int next = -1;
    for (int i = 0; i < b->slots; i++)
      if (b->slot[i].to && pending(&b->slot[i]) > 1 && b->slot[i].serial > before &&
          (next < 0 || b->slot[i].serial < b->slot[next].serial))
        next = i;
    if (next < 0) break;
    int64_t count = pending(&b->slot[next]);
    if (count > chunk) count = chunk;
    if (count > rows) count = rows;
    before = b->slot[next].serial;
    rows -= count;
    add_part(b, next, count);
  }
}

static bool stops(const rf_request *r, int32_t id) {
  for (int64_t i = 0; i < r->stop_count; i++)
    if (r->stop[i] == id) return true;
  return false;
}

/* Chooses the next token of an answer from its row of logits. */
static rf_status choose(const rf_generator *g, rf_answer *a, const rf_walk_part *part, rf_sampler_work *work,
                        rf_error *error) {
  const rf_request *r = &a->to->of;
  if (g->settings.simulated) { /* some token, the same each time */
    a->last = (int32_t)(rf_key((uint64_t)a->to->id, (uint64_t)a->sample, (uint64_t)a->count) %
                        (uint64_t)g->settings.model.vocab);
    return RAFTER_OK;
  }
  double likelihood[RF_TOP_LOGPROBS];
  rf_logprobs top = {.lse = &part->lse, .wanted = r->top, .ids = a->top_ids, .logprobs = likelihood};
  rf_sampler_use(&a->sampler, work);
  RF_TRY(rf_sampler_choose(&a->sampler, part->logits, r->count + a->count, &a->last, &top, error));
  RF_TRY(rf_sampler_accept(&a->sampler, a->last, error));
  a->top = top.count;
  for (int i = 0; i < top.count; i++) a->top_logprobs[i] = part->logits[top.ids[i]] - part->lse;
  a->logprob = part->logits[a->last] - part->lse;
  return RAFTER_OK;
}

static void tell(rf_answer *a, rf_event *event) {
  const rf_request *r = &a->to->of;
  *event = (rf_event){.request = a->to->id,
                      .sample = a->sample,
                      .owner = r->owner,
                      .index = a->count++,
                      .token = a->last,
                      .logprob = a->logprob,
                      .top = a->top,
                      .top_ids = a->top_ids,
                      .top_logprobs = a->top_logprobs};
  event->finish = stops(r, a->last)           ? RF_FINISH_STOP
                  : a->count == r->max_tokens ? RF_FINISH_LENGTH
                                              : RF_FINISH_NONE;
}

/* The chosen tokens of the walk, each row by a thread of its own where there are several. */
static rf_status choose_all(rf_generator *g, rf_batch *b, rf_error *error) {
  rf_status status = RAFTER_OK;
#pragma omp parallel for num_threads(b->workers) schedule(static) if (b->workers > 1 && b->parts > 1)
  for (int i = 0; i < b->parts; i++) {
    rf_answer *a = &b->slot[b->order[i]];
    a->status =
        b->part[i].wanted ? choose(g, a, &b->part[i], b->work[omp_get_thread_num()], &a->error) : RAFTER_OK;
  }
  for (int i = 0; i < b->parts; i++) {
    rf_answer *a = &b->slot[b->order[i]];
    if (a->status != RAFTER_OK && status == RAFTER_OK) {
      status = a->status;
      if (error) *error = a->error;
    }
    if (a->status == RAFTER_OK && b->part[i].wanted) tell(a, &b->event[b->events++]);
    if (a->status != RAFTER_OK || (b->part[i].wanted && b->event[b->events - 1].finish != RF_FINISH_NONE))
      end_answer(g, a);
  }
  b->counts.tokens += b->events;
  return status;
}

/* Debug: the pages of all texts are as they should be. */
static rf_status prove(const rf_generator *g, const rf_batch *b, rf_error *error) {
  int count = 0;
  for (int i = 0; i < b->texts; i++) b->live[count++] = &b->text[i].sequence;
  b->live[count++] = &g->walker->hand;
  return rf_pages_check(&g->walker->pages, b->live, count, error);
}

/* What the cache and the line look like from here on. */
static void count_all(const rf_generator *g, const rf_batch *b) {
  int64_t waiting = 0, pages = 0;
  for (const rf_asked *a = b->first; a; a = a->next) waiting += a->of.samples - a->started;
  for (int c = 0; c < RF_KV_CLASSES; c++)
    pages += g->walker->pages.kv.of[c].pool - g->walker->pages.pool[c].free_count;
  rf_count(RF_COUNTER_QUEUE, (double)waiting);
  rf_count(RF_COUNTER_ANSWERS, b->parts);
  rf_count(RF_COUNTER_PAGES, (double)pages);
}

static rf_status take_step(rf_generator *g, const rf_event **events, int *count, rf_error *error) {
  rf_batch *b = g->batch;
  *events = b->event;
  *count = b->events = 0;
  if (!b->first) return RAFTER_OK;
  if (!g->io[0].tokens && !g->settings.simulated)
    return RF_FAIL(error, RAFTER_INVALID, "choose --backend cpu or reference",
                   "the null backend computes nothing to choose from");
  RF_TRY(rf_admit(g, error));
  compose(g, b);
  RF_TRY(rf_walk_parts(g, b->part, b->parts, error));
  if (rf_lanes_on) count_all(g, b);
  b->counts.walks++;
  b->counts.parts += b->parts;
  if (b->parts > b->counts.most_parts) b->counts.most_parts = b->parts;
  for (int i = 0; i < b->parts; i++) b->counts.rows += b->part[i].count;
  rf_pin(g);
  int64_t began = rf_phase_begin();
  rf_status status = choose_all(g, b, error);
  rf_phase_end(RF_PHASE_SAMPLE, began);
  *count = b->events;
  if (status == RAFTER_OK && g->settings.debug.poison) status = prove(g, b, error);
  return status;
}

rf_status rf_generator_step(rf_generator *g, const rf_event **events, int *count, rf_error *error) {
  if (!g->settings.simulated) rf_record_step(-1);
  rf_status status = take_step(g, events, count, error);
  rf_record_step_end(*count);
  return status;
}
