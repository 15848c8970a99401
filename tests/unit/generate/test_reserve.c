/* Random requests with random ends against the generator's scheduler: pages never run out, every
 * answer gets a token in each step, and the first in the queue starts when it was promised. The
 * same check must find planted faults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "generate/batch.h"

static rf_machine machine;
static rf_error error;

enum { VOCAB = 61, STOP = 60, CONTEXT = 400, TRACES = 400, REQUESTS = 24, MOST_SLOTS = 12 };

/* A cache with fewer full sequences than slots. */
typedef struct setting {
  const char *model;
  int64_t slots, sequences, chunk, page;
  int draft;
  double growth;
} setting;
static const char GLOBAL[] = "gpt:layers=2,width=48,heads=3,ff=160,vocab=61,seq=400,init=flax";
static const char WINDOWED[] =
    "gemma3:layers=6,width=32,heads=4,kv_heads=2,head_dim=16,ff=64,vocab=61,seq=400,window=40,init=flax";
static const setting CONFIGS[] = {
    {GLOBAL, 6, 1, 64, 32, 0, 0},
    {GLOBAL, MOST_SLOTS, 3, 32, 32, 0, 1},
    {GLOBAL, MOST_SLOTS, 2, 48, 64, 5, 0},
    {WINDOWED, 9, 2, 48, 32, 3, 0},
    {WINDOWED, MOST_SLOTS, 2, 64, 32, 0, 1},
};
enum { CONFIG_COUNT = sizeof CONFIGS / sizeof *CONFIGS };

/* Faults: the decisions use a pool that is too large, a growth without drafts, or answers that are
 * too short. The last fault names a step of a promise that is too early. */
typedef enum fault_kind { NO_FAULT, LARGE_POOL, FEW_ROWS, SHORT_ANSWERS, EARLY_PROMISE, FAULTS } fault_kind;

typedef struct trace {
  rf_generator *g;
  fault_kind fault;
  uint64_t seed, draws;
  int64_t stops; /* 1 of this many tokens ends an answer; 0: none */
  int64_t cancels, submitted, overtaken, stalled, broken, accepted;
  rf_promise known; /* the last promise */
  bool failed;
} trace;

static int64_t draw(trace *t, int64_t below) {
  return (int64_t)(rf_key(t->seed, t->draws++, 77) % (uint64_t)below);
}

static rf_infer_settings settings_of(const setting *c) {
  rf_infer_settings s = {.seed = 6, .step_growth = c->growth, .drafts_all = true};
  if (rf_model_resolve(c->model, &s.model, NULL, &error) != RAFTER_OK) fail_msg("%s", error.message);
  s.plan = (rf_plan_options){.build = {.job = RF_JOB_GENERATE,
                                       .softmax = RF_F32,
                                       .microbatch = c->slots,
                                       .sequences = c->sequences,
                                       .seq = CONTEXT,
                                       .chunk = c->chunk,
                                       .kv_page = c->page,
                                       .draft = c->draft},
                             .backend = &RF_BACKEND_CPU,
                             .isa = rf_isa_detect(),
                             .threads = 1,
                             .machine = &machine};
  return s;
}

static rf_status forward(void *self, int plan, rf_forward_part *part, int count, rf_error *why) {
  (void)self, (void)plan, (void)part, (void)count, (void)why;
  return RAFTER_OK;
}

/* Tokens repeat, so that drafts are often right. */
static rf_status choose(void *self, rf_slot *a, const rf_forward_part *part, int row, int worker,
                        rf_error *why) {
  trace *t = self;
  (void)part, (void)worker, (void)why;
  int64_t at = a->count + row;
  a->choice[row].id = (int32_t)(draw(t, 9) ? at % 5 : 5 + draw(t, STOP - 5));
  if (t->stops && !draw(t, t->stops)) a->choice[row].id = STOP;
  return RAFTER_OK;
}

static void submit(trace *t) {
  static const int32_t stop = STOP;
  int32_t tokens[CONTEXT];
  const int64_t kind = draw(t, 4), prompt = kind == 0 ? 1 + draw(t, 8) : 1 + draw(t, kind * 120),
                left = CONTEXT - prompt + 1, shared = draw(t, 2) ? 70 : 0;
  for (int64_t i = 0; i < prompt; i++)
    tokens[i] = (int32_t)(i < shared ? i % 50 : (i * 7 + t->submitted * 13 + draw(t, 3)) % 50);
  const rf_request request = {.tokens = tokens,
                              .count = prompt,
                              .max_tokens =
                                  draw(t, 3) ? 1 + draw(t, left) : 1 + draw(t, left < 20 ? left : 20),
                              .samples = draw(t, 5) ? 1 : 1 + (int)draw(t, 16),
                              .keep = draw(t, 3) == 0,
                              .stop = &stop,
                              .stop_count = 1};
  assert_int_equal(rf_generator_submit(t->g, &request, NULL, &error), RAFTER_OK);
  t->submitted++;
}

/* A promise stays as it is until its answer has started, and it starts no later. */
static void check_promise(trace *t) {
  const rf_promise *now = &t->g->batch->promise, before = t->known;
  const bool same = now->request == before.request && now->sample == before.sample;
  const rf_pending *p = t->g->batch->first;
  while (p && p->id != before.request) p = p->next;
  const bool waits = p && p->started == before.sample;
  if (before.pass >= 0 && waits && (!same || now->pass != before.pass)) t->broken++;
  if (before.pass >= 0 && waits && t->g->batch->counts.passes > before.pass) t->broken++;
  if (t->fault == EARLY_PROMISE && !same && now->pass >= 0) t->g->batch->promise.pass--;
  t->known = *now;
}

static void count_overtakers(trace *t) {
  const rf_pending *first = t->g->batch->first;
  while (first && first->started == first->of.samples) first = first->next;
  for (const rf_pending *p = first ? first->next : NULL; p; p = p->next)
    t->overtaken += p->started > 0 && p->ended < p->started;
}

static void step(trace *t) {
  rf_batch *b = t->g->batch;
  int64_t count[MOST_SLOTS], serial[MOST_SLOTS];
  const rf_event *event;
  int events;
  for (int i = 0; i < b->slots; i++) {
    count[i] = b->slot[i].to ? b->slot[i].count : 0;
    serial[i] = b->slot[i].serial;
  }
  if (rf_generator_step(t->g, &event, &events, &error) != RAFTER_OK) {
    t->failed = true;
    return;
  }
  for (int i = 0; i < events; i++) t->failed |= event[i].finish == RF_FINISH_ERROR;
  for (int i = 0; i < b->slots; i++)
    t->stalled += count[i] && b->slot[i].to && b->slot[i].serial == serial[i] && b->slot[i].count <= count[i];
  check_promise(t);
  count_overtakers(t);
  const rf_sequence *live[MOST_SLOTS + RF_KEPT + 1];
  for (int i = 0; i < b->cached_count; i++) live[i] = &b->cached[i].sequence;
  if (t->fault == NO_FAULT && b->counts.passes % 8 == 0 &&
      rf_pages_check(&b->pages, live, b->cached_count, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
}

static void plant(trace *t) {
  rf_batch *b = t->g->batch;
  if (t->fault == LARGE_POOL) b->pages.kv.of[RF_KV_GLOBAL].pool += 2;
  if (t->fault == FEW_ROWS) b->reserve.rows = 1;
}

/* Answers grow by one more token than they claim. */
static void lengthen(trace *t) {
  if (t->fault != SHORT_ANSWERS) return;
  for (int i = 0; i < t->g->batch->slots; i++) {
    rf_slot *a = &t->g->batch->slot[i];
    if (a->to && a->count == 1 && a->to->of.count + a->to->of.max_tokens <= CONTEXT) a->to->of.max_tokens++;
  }
}

static void cancel_any(trace *t) {
  const rf_pending *p = t->g->batch->first;
  for (int64_t skip = draw(t, 6); p && skip; skip--) p = p->next;
  if (p) rf_generator_cancel(t->g, p->id, draw(t, 2) ? -1 : (int)draw(t, p->of.samples));
}

static trace run(const setting *c, rf_plan *const plan[2], uint64_t seed, fault_kind fault) {
  trace t = {.seed = seed, .fault = fault, .known = {.request = -1, .pass = -1}};
  const rf_infer_settings s = settings_of(c);
  if (rf_generator_new(&s, plan[RF_PREFILL], plan[RF_DECODE], &t.g, &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  t.g->batch->threads = 1;
  t.g->batch->engine = (rf_engine){.self = &t,
                                   .rows = plan[RF_PREFILL]->graph->rows,
                                   .chunk = plan[RF_PREFILL]->options.build.chunk,
                                   .forward = forward,
                                   .choose = choose};
  plant(&t);
  t.stops = (int64_t[]){0, 0, 40, 8}[draw(&t, 4)];
  t.cancels = (int64_t[]){0, 0, 30, 5}[draw(&t, 4)];
  const int64_t burst = 1 + draw(&t, 12), pause = 1 + draw(&t, 40);
  while (!t.failed && (t.submitted < REQUESTS || rf_generator_busy(t.g))) {
    for (int64_t i = 0; i < burst && t.submitted < REQUESTS; i++) submit(&t);
    for (int64_t i = 0; i < pause && rf_generator_busy(t.g) && !t.failed; i++) {
      step(&t);
      lengthen(&t);
      if (t.cancels && !draw(&t, t.cancels)) cancel_any(&t);
    }
  }
  for (int k = 0; !t.failed && k < RF_KV_CLASSES; k++) { /* all pages are free again */
    rf_batch_forget(t.g);
    int64_t extra = fault == LARGE_POOL && k == RF_KV_GLOBAL ? 2 : 0;
    assert_int_equal(t.g->batch->pages.pool[k].free_count, t.g->batch->pages.kv.of[k].pool - extra);
  }
  t.accepted = t.g->batch->counts.accepted;
  rf_generator_close(t.g);
  return t;
}

/* Runs traces of a configuration. Returns how many of them failed. */
static int run_all(const setting *c, int traces, fault_kind fault, int64_t *overtaken, int64_t *accepted) {
  const rf_infer_settings s = settings_of(c);
  rf_plan *plan[2];
  int failed = 0;
  if (rf_generate_plans(&s, &plan[RF_PREFILL], &plan[RF_DECODE], &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  for (int i = 0; i < traces; i++) {
    trace t = run(c, plan, (uint64_t)(i + 1), fault);
    if (!fault && (t.failed || t.stalled || t.broken))
      fail_msg("slots %d, trace %d: %s (%d stalled, %d promises broken)", (int)c->slots, i,
               t.failed ? error.message : "", (int)t.stalled, (int)t.broken);
    failed += t.failed || t.broken;
    *overtaken += t.overtaken;
    *accepted += t.accepted;
  }
  rf_plan_free(plan[RF_PREFILL]);
  rf_plan_free(plan[RF_DECODE]);
  return failed;
}

static void pages_never_run_out(void **state) {
  (void)state;
  for (int c = 0; c < CONFIG_COUNT; c++) {
    int64_t overtaken = 0, accepted = 0;
    run_all(&CONFIGS[c], TRACES, NO_FAULT, &overtaken, &accepted);
    print_message("configuration %d: %d traces, %d steps of overtakers, %d drafts right\n", c, TRACES,
                  (int)overtaken, (int)accepted);
    assert_true(!CONFIGS[c].draft == !accepted);
    assert_true(c == 0 || overtaken > 0);
  }
}

static void planted_faults_are_found(void **state) {
  (void)state;
  for (int f = LARGE_POOL; f < FAULTS; f++) {
    int64_t overtaken = 0, accepted = 0;
    int found = run_all(&CONFIGS[2], 200, (fault_kind)f, &overtaken, &accepted);
    print_message("fault %d: found in %d of 200 traces\n", f, found);
    assert_true(found > 0);
    if (f != EARLY_PROMISE) assert_non_null(strstr(error.message, "out of pages"));
  }
}

static int find_machine(void **state) {
  (void)state;
  return rf_machine_find("a5000", &machine, NULL) == RAFTER_OK ? 0 : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(pages_never_run_out),
                                     cmocka_unit_test(planted_faults_are_found)};
  return cmocka_run_group_tests(tests, find_machine, NULL);
}
