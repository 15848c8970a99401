/* batch.c - requests: queued in the order they come, answered one after the other. */
#include "generate/walk.h"

#include <stdlib.h>
#include <string.h>

/* One request, until its last answer has ended. */
typedef struct asked {
  struct asked *next;
  rf_request of; /* tokens and stop are our own */
  int64_t id;
  int started, ended; /* answers */
} asked;

/* One answer that runs. */
typedef struct answering {
  asked *to; /* NULL: free */
  int sample;
  int64_t count, most; /* tokens of the answer so far, and at most */
  bool fed;            /* the prompt is in the cache */
  int32_t last;
} answering;

typedef struct rf_batch {
  asked *first, **end; /* all requests that have not ended */
  int64_t next_id;
  answering one;
  rf_sampler_work *work;
  rf_sampler sampler;
  bool sampler_open;
  rf_event event;
  int32_t top_ids[RF_TOP_LOGPROBS];
  float top_logprobs[RF_TOP_LOGPROBS];
  rf_generate_counts counts;
} rf_batch;

const char *rf_finish_name(rf_finish finish) {
  static const char *const names[] = {"", "stop", "length"};
  return names[finish];
}

uint64_t rf_sample_seed(uint64_t seed, int sample) { return sample ? rf_key(seed, (uint64_t)sample, rf_name_key("sample")) : seed; }

rf_status rf_batch_open(rf_generator *g, rf_error *error) {
  rf_batch *b = g->batch = calloc(1, sizeof *b);
  if (!b) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  b->end = &b->first;
  return rf_sampler_work_open(g->settings.model.vocab, &b->work, error);
}

static void free_asked(asked *a) {
  free((void *)a->of.tokens), free((void *)a->of.stop);
  free(a);
}

void rf_batch_close(rf_generator *g) {
  rf_batch *b = g->batch;
  if (!b) return;
  for (asked *a = b->first, *next; a; a = next) next = a->next, free_asked(a);
  if (b->sampler_open) rf_sampler_close(&b->sampler);
  rf_sampler_work_close(b->work);
  free(b);
}

/* ---- the queue ------------------------------------------------------------------------------------------------------ */

static rf_status check_ids(const int32_t *ids, int64_t count, int64_t vocab, const char *what, rf_error *error) {
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= vocab)
      return RF_FAIL(error, RAFTER_INVALID, "the ids belong to another tokenizer",
                     "token out of range (%s, token %lld: expected an id below %lld, got %d)", what, (long long)i, (long long)vocab, ids[i]);
  return RAFTER_OK;
}

static rf_status check_request(const rf_generator *g, const rf_request *r, rf_error *error) {
  int64_t context = g->settings.plan.build.seq, vocab = g->settings.model.vocab;
  if (r->count < 1) return RF_FAIL(error, RAFTER_INVALID, "give at least one token", "the prompt is empty");
  if (r->count > context)
    return RF_FAIL(error, RAFTER_INVALID, "shorten the prompt, or raise --seq where the model has the positions",
                   "the context is full (expected a prompt of at most %lld tokens, got %lld)", (long long)context, (long long)r->count);
  if (r->max_tokens < 0 || r->samples < 0 || r->stop_count < 0 || r->top < 0 || r->top > RF_TOP_LOGPROBS)
    return RF_FAIL(
        error, RAFTER_INVALID, NULL,
        "a request is out of range (max_tokens %lld, samples %d, stop ids %lld: expected none below 0; alternatives: expected 0 to %d, got %d)",
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
  asked *a = calloc(1, sizeof *a);
  if (!a) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while queueing a request");
  a->of = *request;
  a->of.tokens = copy_ids(request->tokens, request->count), a->of.stop = copy_ids(request->stop, request->stop_count);
  if (!a->of.samples) a->of.samples = 1;
  if (!a->of.tokens || !a->of.stop) {
    free_asked(a);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while queueing a request");
  }
  a->id = b->next_id++;
  *b->end = a, b->end = &a->next;
  if (id) *id = a->id;
  return RAFTER_OK;
}

void rf_batch_forget(rf_generator *g) { (void)g; }

bool rf_generator_busy(const rf_generator *g) { return g->batch->first != NULL; }
rf_generate_counts rf_generator_counts(const rf_generator *g) { return g->batch->counts; }

/* One more answer of a request has ended; with the last one the request goes. */
static void end_answer(rf_batch *b, asked *a) {
  if (++a->ended < a->of.samples) return;
  for (asked **at = &b->first; *at; at = &(*at)->next) {
    if (*at != a) continue;
    *at = a->next;
    if (b->end == &a->next) b->end = at;
    break;
  }
  free_asked(a);
}

void rf_generator_cancel(rf_generator *g, int64_t request, int sample) {
  rf_batch *b = g->batch;
  asked *a = b->first;
  while (a && a->id != request) a = a->next;
  if (!a) return;
  bool runs = b->one.to == a && (sample < 0 || b->one.sample == sample);
  if (sample < 0) a->ended += a->of.samples - a->started, a->started = a->of.samples;
  if (runs) b->one.to = NULL;
  if (runs) end_answer(b, a);
}

/* ---- a step --------------------------------------------------------------------------------------------------------- */

/* The next answer in line. */
static rf_status admit(rf_generator *g, rf_error *error) {
  rf_batch *b = g->batch;
  asked *a = b->first;
  if (!a || b->one.to) return RAFTER_OK;
  int64_t room = g->settings.plan.build.seq - a->of.count + 1; /* the last token needs no place in the cache */
  b->one = (answering){.to = a, .sample = a->started++, .most = a->of.max_tokens && a->of.max_tokens < room ? a->of.max_tokens : room};
  rf_sampler_options options = a->of.sampler;
  options.seed = rf_sample_seed(options.seed, b->one.sample);
  if (b->sampler_open) RF_TRY(rf_sampler_reset(&b->sampler, &options, error));
  else RF_TRY(rf_sampler_open_with(&options, b->work, &b->sampler, error));
  b->sampler_open = true;
  return rf_sampler_prompt(&b->sampler, a->of.tokens, a->of.count, error);
}

static bool stops(const rf_request *r, int32_t id) {
  for (int64_t i = 0; i < r->stop_count; i++)
    if (r->stop[i] == id) return true;
  return false;
}

/* Chooses the next token of an answer from its row of logits and tells it. */
static rf_status choose(rf_generator *g, answering *one, const float *logits, rf_event *event, rf_error *error) {
  rf_batch *b = g->batch;
  const rf_request *r = &one->to->of;
  double likelihood[RF_TOP_LOGPROBS];
  rf_logprobs top = {.wanted = r->top, .ids = b->top_ids, .logprobs = likelihood};
  RF_TRY(rf_sampler_choose(&b->sampler, logits, r->count + one->count, &one->last, &top, error));
  RF_TRY(rf_sampler_accept(&b->sampler, one->last, error));
  for (int i = 0; i < top.count; i++) b->top_logprobs[i] = rf_generator_logprob(g, top.ids[i]);
  *event = (rf_event){.request = one->to->id,
                      .sample = one->sample,
                      .owner = r->owner,
                      .index = one->count++,
                      .token = one->last,
                      .logprob = rf_generator_logprob(g, one->last),
                      .top = top.count,
                      .top_ids = b->top_ids,
                      .top_logprobs = b->top_logprobs,
                      .finish = stops(r, one->last)       ? RF_FINISH_STOP
                                : one->count == one->most ? RF_FINISH_LENGTH
                                                          : RF_FINISH_NONE};
  return RAFTER_OK;
}

rf_status rf_generator_step(rf_generator *g, const rf_event **events, int *count, rf_error *error) {
  rf_batch *b = g->batch;
  const float *logits = NULL;
  *events = &b->event, *count = 0;
  RF_TRY(admit(g, error));
  answering *one = &b->one;
  if (!one->to) return RAFTER_OK;
  const rf_request *r = &one->to->of;
  rf_status status = RAFTER_OK;
  if (!one->fed) {
    rf_generator_reset(g);
    RF_GO(rf_generator_feed(g, r->tokens, r->count, &logits, error));
    b->counts.prompt_tokens += r->count, b->counts.rows += r->count;
    one->fed = true;
  } else {
    RF_GO(rf_generator_feed(g, &one->last, 1, &logits, error));
    b->counts.rows++;
  }
  b->counts.walks++;
  RF_GO(choose(g, one, logits, &b->event, error));
  *count = 1, b->counts.tokens++;
done:
  if (status != RAFTER_OK || b->event.finish != RF_FINISH_NONE) {
    asked *a = one->to;
    one->to = NULL;
    end_answer(b, a);
  }
  return status;
}
