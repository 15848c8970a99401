/* generator.c - the public generator of rafter.h: requests and their events. */
#include "api/handles.h"
#include "api/answers.h"
#include "generate/adapters.h"

#include <stdlib.h>

enum { CONTEXT = 4096, AT_ONCE = 8 }; /* defaults of --seq and --batch */

/* A request. The entry exists until the caller has received the last event of all its answers. */
typedef struct entry {
  rf_prompt of; /* first field, because the owner of the replies is a pointer to the prompt */
  struct entry *next, *before;
  void *owner;
  rf_logit_bias *bias;
  rf_constraint *constraint; /* NULL: none */
} entry;

struct rafter_constraint {
  rf_constraint *of;
};

struct rafter_generator {
  rf_settings settings;
  rafter_tokenizer *tokenizer; /* tokenizer of the model; NULL: the model has no tokenizer */
  rf_prompt_reader reader;     /* borrows the tokenizer */
  rf_sampler_options sampling; /* sampling settings for requests without their own */
  rf_generator *g;
  rf_constraints *constraints;
  entry *first, *spent; /* spent: list of ended requests, whose texts stay valid until the next step */
  /* (rf_generator_events): events of the last step. A later event of the same step may move the
   * text of an answer, so the address of an event's text is computed when the caller takes it. */
  struct given {
    rafter_event event;
    const rf_reply *reply;
    size_t at;    /* of the event's text in the reply's text */
    rf_error why; /* error of the event */
  } * event;
  int events, taken;
};

static void free_entry(entry *e) {
  rf_prompt_free(&e->of);
  rf_constraint_release(e->constraint);
  free(e->bias);
  free(e);
}

static void free_entries(entry **list) {
  for (entry *e = *list, *next; e; e = next) {
    next = e->next;
    free_entry(e);
  }
  *list = NULL;
}

static rf_status open_model(rafter_generator *h, const rf_options *o, rf_error *error) {
  RF_TRY(rf_settings_resolve(o, "generate", &h->settings, error));
  rf_build_options *b = &h->settings.plan.build;
  if (!rf_options_given(o, "seq") && b->seq > CONTEXT) b->seq = CONTEXT;
  if (!rf_options_given(o, "batch")) b->microbatch = AT_ONCE;
  b->accumulate = 1;
  /* A model without a tokenizer accepts and returns only token ids. */
  rf_tokenizer_handle(o, &h->settings.model, h->settings.weights_folder, &h->tokenizer, NULL);
  h->reader.tokenizer = h->tokenizer ? h->tokenizer->tokenizer : NULL;
  RF_TRY(rf_end_ids_of(&h->settings.model, h->settings.weights_folder, h->reader.tokenizer, &h->reader.ends,
                       error));
  h->constraints = rf_constraints_open(h->reader.tokenizer, h->settings.model.vocab);
  RF_TRY(rf_open_generator(&h->settings, o, NULL, &h->g, error));
  h->sampling = (rf_sampler_options){.temperature = 1};
  RF_TRY(rf_sampling_of(o, &h->settings, &(rafter_sink){0}, &h->sampling, error));
  size_t events = (size_t)rf_generator_events(h->g);
  h->event = calloc(events, sizeof *h->event);
  return h->event ? RAFTER_OK
                  : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
}

rafter_status rafter_generator_open(const rafter_job *job, rafter_generator **generator,
                                    rafter_error *error) {
  rf_options *o = NULL;
  RF_TRY(rf_handle_options(job, "generate", &o, error));
  rafter_generator *h = calloc(1, sizeof *h);
  rf_status status = h ? open_model(h, o, error)
                       : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening a generator");
  rf_options_free(o);
  if (status == RAFTER_OK) *generator = h;
  else rafter_generator_close(h);
  return status;
}

void rafter_generator_close(rafter_generator *h) {
  if (!h) return;
  rf_generator_close(h->g);
  free_entries(&h->first);
  free_entries(&h->spent);
  rf_constraints_close(h->constraints);
  rafter_tokenizer_close(h->tokenizer);
  free(h->event);
  free(h);
}

const rafter_tokenizer *rafter_generator_tokenizer(const rafter_generator *h) { return h->tokenizer; }
bool rafter_generator_busy(const rafter_generator *h) { return rf_generator_busy(h->g); }
int64_t rafter_generator_arena_bytes(const rafter_generator *h) { return rf_generator_arena_bytes(h->g); }

void rafter_generator_cancel(rafter_generator *h, int64_t request, int32_t sample) {
  rf_generator_cancel(h->g, request, sample);
}

rafter_status rafter_generator_sampling(const rafter_generator *h, rafter_request *request,
                                        rafter_error *error) {
  const rf_sampler_options *s = &h->sampling;
  rafter_request own = {0};
  RF_TRY(rf_sized_copy(&own, sizeof own, request, request->size, "rafter_request", error));
  own.top_k = s->top_k;
  own.temperature = s->temperature;
  own.top_p = s->top_p;
  own.min_p = s->min_p;
  own.repetition_penalty = s->repetition_penalty;
  own.frequency_penalty = s->frequency_penalty;
  own.presence_penalty = s->presence_penalty;
  rf_sized_give(request, &own, sizeof own);
  return RAFTER_OK;
}

/* ---- constraints ----------------------------------------------------------------------------- */

rafter_status rafter_constraint_open(const rafter_generator *h, rafter_form form, const char *text,
                                     size_t bytes, rafter_constraint **constraint, rafter_error *error) {
  static const rf_text_form FORMS[] = {[RAFTER_FORM_JSON_OBJECT] = RF_TEXT_OBJECT,
                                       [RAFTER_FORM_JSON_SCHEMA] = RF_TEXT_SCHEMA,
                                       [RAFTER_FORM_REGEX] = RF_TEXT_REGEX,
                                       [RAFTER_FORM_CHOICE] = RF_TEXT_CHOICE,
                                       [RAFTER_FORM_PARTS] = RF_TEXT_PARTS};
  if ((unsigned)form >= sizeof FORMS / sizeof *FORMS)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "the form is unknown (expected 0 to 4, got %d)", (int)form);
  if (!h->reader.ends.count)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "a form of answers needs a model with an end-of-text token, and this model has none");
  rf_constraint *of = NULL;
  RF_TRY(rf_constraints_get(h->constraints, FORMS[form], form == RAFTER_FORM_JSON_OBJECT ? "" : text,
                            form == RAFTER_FORM_JSON_OBJECT ? 0 : bytes, &of, error));
  *constraint = rf_must(malloc(sizeof **constraint));
  (*constraint)->of = of;
  return RAFTER_OK;
}

void rafter_constraint_close(rafter_constraint *constraint) {
  if (!constraint) return;
  rf_constraint_release(constraint->of);
  free(constraint);
}

/* ---- adapters -------------------------------------------------------------------------------- */

struct rafter_adapter {
  rf_adapter_values *values;
};

rafter_status rafter_adapter_open(const rafter_generator *h, const char *folder, rafter_adapter **adapter,
                                  rafter_error *error) {
  rf_adapter_values *values = NULL;
  RF_TRY(rf_adapter_values_read(h->g, folder, &values, error));
  *adapter = rf_must(malloc(sizeof **adapter));
  (*adapter)->values = values;
  return RAFTER_OK;
}

void rafter_adapter_close(rafter_adapter *adapter) {
  if (!adapter) return;
  rf_adapter_values_free(adapter->values);
  free(adapter);
}

rafter_status rafter_generator_load_adapter(rafter_generator *h, const rafter_adapter *adapter, int64_t *id,
                                            rafter_error *error) {
  return rf_generator_load(h->g, adapter->values, id, error);
}

rafter_status rafter_generator_unload_adapter(rafter_generator *h, int64_t id, rafter_error *error) {
  return rf_generator_unload(h->g, id, error);
}

/* ---- counts ---------------------------------------------------------------------------------- */

static rf_status take_seconds(const rf_generator *g, rafter_counts *c, rf_error *error) {
  for (int plan = RF_PREFILL; plan <= RF_DECODE; plan++) {
    int ops = rf_generator_plan(g, plan)->graph->op_count;
    double measured, *seconds = calloc(2 * (size_t)ops, sizeof *seconds);
    int64_t passes, rows;
    if (!seconds) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
    rf_status status = rf_generator_predicted(g, plan, seconds, seconds + ops, error);
    rf_generator_passes(g, plan, &passes, &rows, &measured);
    c->seconds += measured;
    for (int i = 0; i < ops; i++) {
      c->predicted_seconds += seconds[i];
      c->limit_seconds += seconds[ops + i];
    }
    free(seconds);
    RF_TRY(status);
  }
  return RAFTER_OK;
}

rafter_status rafter_generator_counts(const rafter_generator *h, rafter_counts *counts, rafter_error *error) {
  const rf_generate_counts c = rf_generator_counts(h->g);
  const rf_build_options *b = &h->g->settings.plan.build;
  rafter_counts own = {.context = b->seq,
                       .vocab = h->settings.model.vocab,
                       .slots = (int32_t)b->microbatch,
                       .passes = c.passes,
                       .prompt_tokens = c.prompt_tokens,
                       .reused_tokens = c.reused,
                       .answers = c.answers,
                       .tokens = c.tokens};
  const rf_constraint_counts forms = rf_constraints_counts(h->constraints);
  own.constraints = forms.compiled;
  own.constraints_found = forms.found;
  own.constraint_seconds = forms.compile_seconds;
  own.masks = forms.masks;
  own.masks_found = forms.mask_hits;
  own.mask_seconds = forms.mask_seconds;
  int slots;
  own.adapters = rf_generator_adapters(h->g, &slots);
  own.adapter_slots = slots;
  RF_TRY(take_seconds(h->g, &own, error));
  const rf_generator_use use = rf_generator_held(h->g);
  own.running = use.running;
  own.waiting = use.waiting;
  own.kv_bytes = use.kv_bytes;
  own.kv_used_bytes = use.used_bytes;
  own.kv_tokens = use.kv_tokens;
  own.kv_live_tokens = use.live_tokens;
  rf_sized_give(counts, &own, sizeof own);
  return RAFTER_OK;
}

/* ---- requests -------------------------------------------------------------------------------- */

static rf_status submit(rafter_generator *h, const rafter_request *r, entry *e, int64_t *id,
                        rf_error *error) {
  e->owner = r->owner;
  e->bias = calloc((size_t)r->bias_count + 1, sizeof *e->bias);
  if (!e->bias) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while queueing a request");
  for (int64_t i = 0; i < r->bias_count; i++) e->bias[i] = (rf_logit_bias){r->bias[i].id, r->bias[i].bias};
  if (r->constraint) e->constraint = rf_constraint_hold(r->constraint->of);
  RF_TRY(rf_stop_of(r->stop, r->stop_count, &e->of.stop, error));
  e->of.request = (rf_request){.max_tokens = r->max_tokens,
                               .samples = r->samples,
                               .sampler = {.temperature = r->temperature,
                                           .top_k = r->top_k,
                                           .top_p = r->top_p,
                                           .min_p = r->min_p,
                                           .seed = r->seed,
                                           .repetition_penalty = r->repetition_penalty,
                                           .frequency_penalty = r->frequency_penalty,
                                           .presence_penalty = r->presence_penalty,
                                           .bias = e->bias,
                                           .bias_count = r->bias_count,
                                           .min_tokens = r->min_tokens,
                                           .ignore_eos = r->ignore_eos,
                                           .constraint = e->constraint},
                               .top = r->top_logprobs,
                               .keep = r->keep,
                               .adapter = r->adapter,
                               .specials = r->specials,
                               .scores = {.logprobs = r->prompt_logprobs,
                                          .ranks = r->prompt_ranks,
                                          .top = r->prompt_top,
                                          .top_ids = r->prompt_top_ids,
                                          .top_logprobs = r->prompt_top_logprobs}};
  e->of.tokens = (rf_ids){.at = (int32_t *)(uintptr_t)r->tokens, .count = r->count};
  rf_status status = rf_prompt_submit(&h->reader, &e->of, h->g, error);
  e->of.tokens = (rf_ids){0}; /* the caller frees the ids; the generator has a copy */
  if (status == RAFTER_OK && id) *id = e->of.replies.request;
  return status;
}

rafter_status rafter_generator_submit(rafter_generator *h, const rafter_request *request, int64_t *id,
                                      rafter_error *error) {
  rafter_request own = {0};
  RF_TRY(rf_sized_copy(&own, sizeof own, request, request->size, "rafter_request", error));
  if (own.prompt_logprobs && (!own.prompt_ranks || own.prompt_top < 0 || own.prompt_top > RF_TOP_LOGPROBS ||
                              (own.prompt_top && (!own.prompt_top_ids || !own.prompt_top_logprobs))))
    return RF_FAIL(error, RAFTER_INVALID, NULL, "the arrays for the log-probabilities of a prompt are wrong");
  if (own.stop_count < 0 || own.bias_count < 0)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "a request has a list with a negative number of entries");
  entry *e = calloc(1, sizeof *e);
  if (!e) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while queueing a request");
  rf_status status = submit(h, &own, e, id, error);
  if (status != RAFTER_OK) {
    free_entry(e);
    return status;
  }
  e->next = h->first;
  if (h->first) h->first->before = e;
  h->first = e;
  return RAFTER_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

static const rafter_finish FINISH[] = {
    [RF_FINISH_NONE] = RAFTER_FINISH_NONE,           [RF_FINISH_STOP] = RAFTER_FINISH_STOP,
    [RF_FINISH_LENGTH] = RAFTER_FINISH_LENGTH,       [RF_FINISH_ERROR] = RAFTER_FINISH_ERROR,
    [RF_FINISH_CANCELLED] = RAFTER_FINISH_CANCELLED,
};

/* Moves a request to h->spent. rf_replies calls this function when all answers to a request have
 * ended. */
static rf_status ended(void *self, rf_replies *of, rf_error *error) {
  rafter_generator *h = self;
  entry *e = of->owner;
  (void)error;
  if (e->before) e->before->next = e->next;
  else h->first = e->next;
  if (e->next) e->next->before = e->before;
  e->before = NULL;
  e->next = h->spent;
  h->spent = e;
  return RAFTER_OK;
}

static rf_status taken(void *self, rf_replies *of, const rf_event *from, rf_error *error) {
  rafter_generator *h = self;
  rf_reply *r = &of->reply[from->sample];
  struct given *given = &h->event[h->events++];
  (void)error;
  if (from->error) given->why = *from->error;
  given->reply = h->tokenizer ? r : NULL;
  given->at = r->shown;
  given->event = (rafter_event){
      .request = from->request,
      .sample = from->sample,
      .token = from->token,
      .index = from->index,
      .owner = ((entry *)of->owner)->owner,
      .text = "",
      .text_bytes = h->tokenizer ? r->bytes - r->shown : 0,
      .logprob = from->logprob,
      .top = from->top,
      .top_ids = from->top_ids,
      .top_logprobs = from->top_logprobs,
      .finish = FINISH[r->finish],
      .status = from->error ? given->why.status : RAFTER_OK,
      .message = from->error ? given->why.message : "",
  };
  r->shown = r->bytes;
  return RAFTER_OK;
}

rafter_status rafter_generator_step(rafter_generator *h, rafter_error *error) {
  const rf_reply_loop loop = {.self = h, .taken = taken, .ended = ended, .survives = true};
  free_entries(&h->spent);
  h->events = h->taken = 0;
  return rf_replies_step(h->g, &loop, error);
}

bool rafter_generator_next(rafter_generator *h, rafter_event *event) {
  if (h->taken == h->events) return false;
  struct given *given = &h->event[h->taken++];
  if (given->reply) given->event.text = given->reply->text + given->at;
  rf_sized_give(event, &given->event, sizeof *event);
  return true;
}
