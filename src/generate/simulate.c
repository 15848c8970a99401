/* simulate.c - see simulate.h. admit.c and batch.c handle the requests. This file adds the clock
 * and statistics. */
#include "generate/simulate.h"

#include "generate/batch.h"
#include "generate/pace.h"
#include "generate/speculate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Percentiles by nearest rank: the smallest value that a fraction `part` of all values does not
 * exceed. */
static void percentiles(double *list, int64_t count, double out[RF_PERCENTILES]) {
  static const double part[] = {0.50, 0.95, 0.99};
  qsort(list, (size_t)count, sizeof *list, rf_compare_doubles);
  for (int p = 0; p < RF_PERCENTILES; p++)
    out[p] = count ? list[(int64_t)ceil(part[p] * (double)count) - 1] : 0;
}

typedef struct simulation {
  rf_generator *g;
  rf_plan *plan[2];
  rf_pass_prices *prices[2];
  rf_extent *extent;       /* (slots) */
  int drafted;             /* number of drafted tokens of an answer in a pass; 0: no drafts */
  rf_pass_prices *drafter; /* predicted times of the draft model's passes; NULL: no draft model */
  double expected;         /* expected tokens of an answer in a pass with drafts */
  /* true: only decoding. Another machine has computed the cache of each prompt, so this machine
   * computes only the last token of a prompt. */
  bool remote_prefill;
  double seconds; /* Predicted seconds of all forward passes so far. */
  rf_plan_totals total;
  double live; /* sum over all passes: seconds * fraction of the cache with tokens of running answers */
  const rf_arrival *list;
  int64_t clients; /* closed loop: maximum number of unfinished answers; 0: requests do not wait */
  int64_t count, next, reported, gaps;
  double clock;
  double *first, *last; /* (count): time of each request's first and last token. */
  /* (count): time from which the times of a request count: its arrival, or in a closed loop its
   * sending */
  double *from;
  double *began; /* (answers): time of each answer's first token, in order of request and sample. */
  /* (answers): see rf_serve_stats. One allocation, which begins at `first`, holds all arrays of
   * doubles. */
  double *ttft, *tpot, *latency;
  int64_t *base; /* (count): index in `began` of the request's first answer. */
  int32_t *tokens;
} simulation;

/* Seconds to choose tokens from `rows` rows of logits. With `sampled`, the program chooses, and the
 * price of the pass includes the time. */
static double choice_seconds(const simulation *s, int64_t rows) {
  const rf_infer_settings *settings = &s->g->settings;
  if (!rows || !settings->choice || s->plan[RF_DECODE]->options.build.sampled) return 0;
  return rf_pace_seconds(&s->plan[RF_DECODE]->machine, settings->choice, settings->model.vocab, rows);
}

/* Seconds of a pass with one row for each answer, and of the choice of tokens. A pass with drafts gives
 * `expected` tokens per answer, so a token costs the seconds of the pass divided by `expected`. */
static double decode_seconds(simulation *s, int count) {
  rf_pass_prices *prices = s->prices[RF_DECODE];
  rf_plan_totals plain = {0}, drafts = {0};
  double seconds = rf_pass_price(prices, s->extent, count, &plain) + choice_seconds(s, count);
  double shared = seconds;
  double drafting = 0;
  for (int k = 0; s->drafter && k < s->drafted; k++)
    drafting += rf_pass_price(s->drafter, s->extent, count, &drafts);
  for (int i = 0; i < count; i++) s->extent[i].rows += s->drafted;
  if (s->drafted)
    shared = (drafting + rf_pass_price(prices, s->extent, count, &drafts) +
              choice_seconds(s, count * (1 + (int64_t)s->drafted))) /
             s->expected;
  rf_speculation_useful(&drafts, &plain, s->expected);
  rf_plan_totals_add(&s->total, shared < seconds ? &drafts : &plain, shared < seconds ? 1 / s->expected : 1);
  return shared < seconds ? shared : seconds;
}

static rf_status forward(void *self, int plan, rf_forward_part *part, int count, rf_error *error) {
  simulation *s = self;
  bool remote = s->remote_prefill;
  int64_t rows = 0;
  (void)error;
  for (int i = 0; i < count; i++) {
    s->extent[i] = (rf_extent){remote ? 1 : part[i].count, part[i].sequence->length + part[i].count};
    rows += part[i].wanted;
  }
  s->seconds += plan == RF_DECODE
                    ? decode_seconds(s, count)
                    : choice_seconds(s, rows) +
                          rf_pass_price(s->prices[remote ? RF_DECODE : plan], s->extent, count, &s->total);
  return RAFTER_OK;
}

/* Chooses an arbitrary token. The token depends only on request, sample and position. If an answer
 * is shorter than its max_tokens, its last token is the stop token. */
static rf_status choose(void *self, rf_slot *a, const rf_forward_part *part, int row, int worker,
                        rf_error *error) {
  const simulation *s = self;
  const int64_t vocab = s->g->settings.model.vocab, ends = a->to->of.stop_count;
  (void)part, (void)worker, (void)error;
  a->choice[row].id = (int32_t)(rf_key((uint64_t)a->to->id, (uint64_t)a->sample, (uint64_t)(a->count + row)) %
                                (uint64_t)(vocab - ends));
  if (ends && a->count + row + 1 == s->list[a->to->id].answer) a->choice[row].id = (int32_t)vocab - 1;
  return RAFTER_OK;
}

/* Chooses the number of drafts with the highest rate for full batches and full contexts. */
static rf_status open_drafts(const rf_infer_settings *settings, simulation *s, rf_error *error) {
  const rf_build_options *b = &settings->plan.build;
  rf_speculation_found found;
  if (!b->draft) return RAFTER_OK;
  const rf_speculation of = {s->plan[RF_DECODE], settings->drafter_plan, s->g->batch->slots, b->seq,
                             b->draft};
  RF_TRY(rf_speculation_find(&of, settings->acceptance, &found, error));
  s->drafted = found.drafted;
  s->expected = found.tokens;
  s->drafter = settings->drafter_plan ? rf_pass_prices_open(settings->drafter_plan) : NULL;
  if (settings->drafter_plan && !s->drafter)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while simulating");
  return RAFTER_OK;
}

static rf_status open_engine(const rf_infer_settings *settings, simulation *s, rf_error *error) {
  rf_infer_settings plain = *settings;
  plain.plan.build.draft = 0; /* simulated texts have no real tokens, so no tokens are looked up as drafts */
  RF_TRY(rf_generate_plans(settings, &s->plan[RF_PREFILL], &s->plan[RF_DECODE], error));
  RF_TRY(rf_plan_require_fit(s->plan[RF_PREFILL], error));
  RF_TRY(rf_generator_new(&plain, s->plan[RF_PREFILL], s->plan[RF_DECODE], &s->g, error));
  s->extent = calloc((size_t)s->g->batch->slots, sizeof *s->extent);
  for (int p = 0; p < 2; p++) s->prices[p] = rf_pass_prices_open(s->plan[p]);
  RF_TRY(open_drafts(settings, s, error));
  s->g->batch->threads = 1;
  s->g->batch->reserve.rows = 1 + settings->plan.build.draft;
  s->g->batch->engine =
      (rf_engine){.self = s,
                  .rows = s->remote_prefill ? INT64_MAX : s->plan[RF_PREFILL]->graph->rows,
                  .chunk = s->remote_prefill ? INT64_MAX : s->plan[RF_PREFILL]->options.build.chunk,
                  .forward = forward,
                  .choose = choose};
  return s->extent && s->prices[0] && s->prices[1]
             ? RAFTER_OK
             : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while simulating");
}

static rf_status open_simulation(const rf_infer_settings *settings, const rf_arrival *list, int64_t count,
                                 simulation *s, rf_error *error) {
  int64_t answers = 0, longest = 1;
  s->list = list;
  s->count = count;
  s->base = calloc((size_t)count + 1, sizeof *s->base);
  for (int64_t i = 0; s->base && i < count; i++) {
    s->base[i] = answers;
    answers += list[i].samples > 1 ? list[i].samples : 1;
    if (list[i].prompt > longest) longest = list[i].prompt;
    if (list[i].prompt + list[i].answer > settings->plan.build.seq)
      return RF_FAIL(error, RAFTER_INVALID, "raise --seq, or shorten prompts and answers",
                     "a request is longer than the context (expected at most %lld tokens, got %lld + %lld)",
                     (long long)settings->plan.build.seq, (long long)list[i].prompt,
                     (long long)list[i].answer);
  }
  enum { MAX_ANSWERS = 1 << 24 };
  if (answers > MAX_ANSWERS)
    return RF_FAIL(error, RAFTER_INVALID, "lower --requests or --samples",
                   "too many answers to simulate (requests x samples: expected at most %d, got %lld)",
                   MAX_ANSWERS, (long long)answers);
  s->first = calloc((size_t)(3 * count + 4 * answers) + 1, sizeof *s->first);
  s->tokens = calloc((size_t)longest, sizeof *s->tokens);
  if (!s->base || !s->first || !s->tokens)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while simulating");
  s->last = s->first + count;
  s->from = s->last + count;
  s->began = s->from + count;
  s->ttft = s->began + answers;
  s->tpot = s->ttft + answers;
  s->latency = s->tpot + answers;
  return open_engine(settings, s, error);
}

static void close_simulation(simulation *s) {
  rf_generator_close(s->g);
  rf_pass_prices_close(s->drafter);
  for (int p = 0; p < 2; p++) {
    rf_pass_prices_close(s->prices[p]);
    rf_plan_free(s->plan[p]);
  }
  free(s->extent);
  free(s->base);
  free(s->first);
  free(s->tokens);
}

/* Submits a prompt. The first `shared` tokens are equal in all requests, and all other tokens
 * differ. */
static rf_status submit(simulation *s, int64_t i, rf_error *error) {
  const rf_arrival *a = &s->list[i];
  uint64_t vocab = (uint64_t)s->g->settings.model.vocab;
  for (int64_t t = 0; t < a->prompt; t++)
    s->tokens[t] =
        (int32_t)(rf_key(t < a->shared ? 0 : (uint64_t)i + 1, (uint64_t)t, rf_name_key("prompt")) % vocab);
  const int32_t stop = (int32_t)vocab - 1;
  rf_request request = {.tokens = s->tokens,
                        .count = a->prompt,
                        .max_tokens = a->limit > a->answer ? a->limit : a->answer,
                        .stop = &stop,
                        .stop_count = a->limit > a->answer,
                        .samples = a->samples,
                        .keep = a->shared > 0};
  return rf_generator_submit(s->g, &request, NULL, error);
}

/* Request ids count from 0 in the order of submission, so an id is an index in the list of
 * arrivals. */
static void count_events(simulation *s, const rf_event *event, int count) {
  for (int e = 0; e < count; e++) {
    int64_t i = event[e].request, at = s->base[i] + event[e].sample;
    if (event[e].index == 0) {
      s->began[at] = s->clock;
      if (s->first[i] == 0) s->first[i] = s->clock;
      s->ttft[at] = s->clock - s->from[i];
    }
    if (event[e].finish == RF_FINISH_NONE) continue;
    s->latency[s->reported++] = s->clock - s->from[i];
    s->last[i] = s->clock;
    if (event[e].index > 0) s->tpot[s->gaps++] = (s->clock - s->began[at]) / (double)event[e].index;
  }
}

/* Returns true if the next request is sent now. Answers are numbered in the order of submission. */
static bool is_due(const simulation *s) {
  if (s->next == s->count || s->list[s->next].at > s->clock) return false;
  return !s->clients || s->base[s->next] - s->reported < s->clients;
}

/* Runs steps without the loop of replies.h, because requests arrive on a simulated clock and
 * simulated tokens have no replies. */
static rf_status run(simulation *s, rf_serve_stats *served, rf_error *error) {
  int64_t waiting = 0;
  double before = 0;
  while (s->next < s->count || rf_generator_busy(s->g)) {
    if (!rf_generator_busy(s->g) && s->list[s->next].at > s->clock) s->clock = s->list[s->next].at;
    while (is_due(s)) {
      s->from[s->next] = s->clients ? s->clock : s->list[s->next].at;
      RF_TRY(submit(s, s->next++, error));
      waiting++;
      served->saturated = s->next == s->count && waiting > 1 + s->count / 20;
    }
    if (waiting > served->waiting_most) served->waiting_most = waiting;
    const rf_event *event;
    int count;
    int64_t rows = rf_generator_counts(s->g).passes;
    RF_TRY(rf_generator_step(s->g, &event, &count, error));
    int64_t capacity;
    double live = (double)rf_batch_live_tokens(s->g->batch, &capacity);
    s->live += (s->seconds - before) * live / (double)capacity;
    s->clock += s->seconds - before;
    before = s->seconds;
    if (rf_generator_counts(s->g).passes == rows)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "the simulation makes no progress at %.3g s", s->clock);
    count_events(s, event, count);
    for (int e = 0; e < count; e++)
      if (event[e].index == 0 && event[e].sample == 0) waiting--;
  }
  return RAFTER_OK;
}

/* Kind of a simulation, and arrays (count) for the times of each request. NULL: the times are not
 * wanted. */
typedef struct wanted {
  bool remote_prefill;
  int64_t clients;
  double *from, *first, *last;
} wanted;

static rf_status simulate(const rf_infer_settings *settings, const wanted *w, const rf_arrival *list,
                          int64_t count, rf_serve_stats *served, rf_error *error) {
  simulation s = {.remote_prefill = w->remote_prefill, .clients = w->clients};
  rf_status status = RAFTER_OK;
  memset(served, 0, sizeof *served);
  if (count < 1 || count > RF_MAX_ARRIVALS)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "the number of requests is out of range (expected 1 to %d, got %lld)", RF_MAX_ARRIVALS,
                   (long long)count);
  RF_GO(open_simulation(settings, list, count, &s, error));
  RF_GO(run(&s, served, error));
  served->counts = rf_generator_counts(s.g);
  served->seconds = s.clock - list[0].at;
  served->busy_seconds = s.seconds;
  served->total = s.total;
  served->tokens_per_second = served->seconds > 0 ? (double)served->counts.tokens / served->seconds : 0;
  double came = list[count - 1].at - list[0].at;
  served->arrivals_per_second = came > 0 ? (double)(count - 1) / came : 0;
  served->saturated = served->saturated && came > 0;
  served->kv_live = s.seconds > 0 ? s.live / s.seconds : 0;
  served->slots_used =
      served->counts.passes ? (double)served->counts.parts / (double)served->counts.passes : 0;
  const size_t bytes = (size_t)count * sizeof *s.first;
  if (w->from) memcpy(w->from, s.from, bytes);
  if (w->first) memcpy(w->first, s.first, bytes);
  if (w->last) memcpy(w->last, s.last, bytes);
  percentiles(s.ttft, s.reported, served->ttft);
  percentiles(s.tpot, s.gaps, served->tpot);
  percentiles(s.latency, s.reported, served->latency);
done:
  close_simulation(&s);
  return status;
}

rf_status rf_simulate(const rf_infer_settings *settings, const rf_arrival *list, int64_t count, double *first,
                      double *last, rf_serve_stats *served, rf_error *error) {
  return simulate(settings, &(wanted){.first = first, .last = last}, list, count, served, error);
}

rf_status rf_simulate_closed(const rf_infer_settings *settings, int64_t clients, const rf_arrival *list,
                             int64_t count, const rf_served_times *times, rf_serve_stats *served,
                             rf_error *error) {
  const wanted w = {.clients = clients, .from = times->sent, .first = times->first, .last = times->last};
  if (clients < 1)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "the number of clients is out of range (expected 1 or more, got %lld)",
                   (long long)clients);
  return simulate(settings, &w, list, count, served, error);
}

typedef struct apart {
  const rf_arrival *list;
  int64_t count;
  /* Three arrays (count) in one allocation: time of each request's first token, time of its last
   * token, and scratch memory. */
  double *first, *last, *scratch;
  rf_arrival *stage; /* Requests for the machine whose simulation runs now. */
} apart;

static rf_status open_apart(apart *a, const rf_arrival *list, int64_t count, rf_error *error) {
  *a = (apart){.list = list, .count = count};
  a->first = calloc(3 * (size_t)count + 1, sizeof *a->first);
  a->stage = calloc((size_t)count + 1, sizeof *a->stage);
  if (!a->first || !a->stage) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while simulating");
  a->last = a->first + count;
  a->scratch = a->last + count;
  return RAFTER_OK;
}

/* Delays the first token of each request until its cache has arrived. The link sends one cache at a
 * time, in the order of the list. */
static void transfer(apart *a, const rf_infer_settings *decode, double link_bps, rf_serve_stats *served) {
  rf_kv kv = rf_kv_of(&decode->model, &decode->plan.build);
  double free_at = 0, bytes = 0;
  int64_t waiting = 0;
  for (int64_t i = 0; i < a->count; i++) {
    double own = (double)rf_kv_read_bytes(&kv, a->list[i].prompt),
           from = a->first[i] > free_at ? a->first[i] : free_at;
    a->first[i] = free_at = from + own / link_bps;
    bytes += own;
    waiting += a->first[i] > a->list[a->count - 1].at;
  }
  served->transfer_bytes = bytes / (double)a->count;
  served->transfer_seconds = served->transfer_bytes / link_bps;
  served->saturated = a->list[a->count - 1].at > a->list[0].at && waiting > 1 + a->count / 20;
}

/* Simulates the decoding of all tokens after the first token. An answer with one token ends with
 * its first token. */
static rf_status decode_apart(apart *a, const rf_infer_settings *decode, rf_serve_stats *served,
                              rf_error *error) {
  int64_t given = 0;
  memcpy(a->last, a->first, (size_t)a->count * sizeof *a->last);
  for (int64_t i = 0; i < a->count; i++) {
    if (a->list[i].answer < 2) continue;
    a->stage[given] = a->list[i];
    a->stage[given].at = a->first[i];
    a->stage[given].samples = 1;
    /* the second machine takes the first token of the answer as the last token of the prompt */
    a->stage[given].prompt = a->list[i].prompt + 1;
    a->stage[given++].answer = a->list[i].answer - 1;
  }
  if (given)
    RF_TRY(simulate(decode, &(wanted){.remote_prefill = true, .last = a->scratch}, a->stage, given, served,
                    error));
  for (int64_t i = 0, at = 0; i < a->count; i++)
    if (a->list[i].answer > 1) a->last[i] = a->scratch[at++];
  return RAFTER_OK;
}

static void put_apart(apart *a, rf_serve_stats *served) {
  int64_t gaps = 0;
  double end = 0;
  for (int64_t i = 0; i < a->count; i++) a->scratch[i] = a->first[i] - a->list[i].at;
  percentiles(a->scratch, a->count, served->ttft);
  for (int64_t i = 0; i < a->count; i++)
    if (a->list[i].answer > 1)
      a->scratch[gaps++] = (a->last[i] - a->first[i]) / (double)(a->list[i].answer - 1);
  percentiles(a->scratch, gaps, served->tpot);
  for (int64_t i = 0; i < a->count; i++) {
    a->scratch[i] = a->last[i] - a->list[i].at;
    end = a->last[i] > end ? a->last[i] : end;
  }
  percentiles(a->scratch, a->count, served->latency);
  served->seconds = end - a->list[0].at;
}

rf_status rf_simulate_apart(const rf_infer_settings *prefill, const rf_infer_settings *decode,
                            double link_bps, const rf_arrival *list, int64_t count, rf_serve_stats *served,
                            rf_error *error) {
  rf_status status = RAFTER_OK;
  rf_serve_stats before, link = {0};
  apart a = {0};
  memset(served, 0, sizeof *served);
  if (!(link_bps > 0))
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "the bandwidth of the link is out of range (expected above 0 bytes/s, got %g)", link_bps);
  for (int64_t i = 0; i < count; i++)
    if (list[i].samples > 1)
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "a separate prefill machine supports one sample per prompt (expected 1, got %d)",
                     list[i].samples);
  RF_GO(open_apart(&a, list, count, error));
  for (int64_t i = 0; i < count; i++) {
    a.stage[i] = list[i];
    a.stage[i].answer = 1;
    a.stage[i].samples = 1;
  }
  RF_GO(rf_simulate(prefill, a.stage, count, a.first, NULL, &before, error));
  transfer(&a, decode, link_bps, &link);
  RF_GO(decode_apart(&a, decode, served, error));
  put_apart(&a, served);
  served->saturated = served->saturated || before.saturated || link.saturated;
  rf_plan_totals_add(&served->total, &before.total, 1);
  served->counts.tokens += count;
  served->counts.reused += before.counts.reused;
  served->tokens_per_second = served->seconds > 0 ? (double)served->counts.tokens / served->seconds : 0;
  served->transfer_seconds = link.transfer_seconds;
  served->transfer_bytes = link.transfer_bytes;
  if (before.waiting_most > served->waiting_most) served->waiting_most = before.waiting_most;
done:
  free(a.first);
  free(a.stage);
  return status;
}
