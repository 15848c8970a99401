/* engine.c - the thread that owns the generator. The thread takes calls from the inbox, runs steps,
 * and passes events to the calls. Requests start in the order of their arrival. */
#include "serve/call.h"

#include <errno.h>
#include <time.h>

static const double REFRESH = 0.25; /* seconds between two updates of the metrics */

/* Ends an answer that was never submitted to the generator. */
static void end_unsubmitted(rf_call *c, rf_part *part, rafter_status status, const char *message) {
  rafter_finish finish = status == RAFTER_OK ? RAFTER_FINISH_CANCELLED : RAFTER_FINISH_ERROR;
  int samples = c->ask.request.samples;
  for (int i = 0; i < samples; i++) {
    const rafter_event event = {
        .token = -1, .index = -1, .sample = i, .finish = finish, .status = status, .message = message};
    rf_call_take(c, part, &event, rf_now_seconds());
  }
}

static void submit(rf_server *s, rf_call *c) {
  rafter_request r = c->ask.request;
  int64_t parts = c->ask.prompts;
  rf_call_activate(c);
  c->refs++; /* the last answer may end in this function, so this reference keeps the call */
  r.size = sizeof r;
  r.stop = c->ask.stop;
  r.bias = c->ask.bias;
  r.keep = true; /* later turns of a conversation reuse this answer in the cache */
  for (int64_t i = 0; i < parts; i++) {
    rf_part *p = &c->part[i];
    rafter_error error = {0};
    r.tokens = p->ids;
    r.count = p->count;
    /* equal prompts get other random numbers, unless the request or the server chose the seed */
    if (c->random_seed && i > 0) r.seed = rf_key(c->ask.request.seed, (uint64_t)i, 0) >> 2;
    r.owner = p;
    r.prompt_logprobs = p->logprobs;
    r.prompt_ranks = p->ranks;
    r.prompt_top_ids = p->top_ids;
    r.prompt_top_logprobs = p->top_logprobs;
    if (c->cancel) {
      end_unsubmitted(c, p, RAFTER_OK, "");
      continue;
    }
    rafter_status status = rafter_generator_submit(s->generator, &r, &p->request, &error);
    if (status == RAFTER_OK) continue;
    p->request = -1;
    end_unsubmitted(c, p, status, error.message);
  }
  rf_call_release(c);
}

static void cancel(rf_server *s, rf_call *c) {
  c->cancelled = true;
  for (int64_t i = 0; i < c->ask.prompts; i++)
    if (c->part[i].request >= 0) rafter_generator_cancel(s->generator, c->part[i].request, -1);
}

/* Takes new calls. Cancels calls whose clients have left or whose time is over. */
static void take_calls(rf_server *s, double now) {
  rf_wrong late;
  while (s->inbox) {
    rf_call *c = s->inbox;
    s->inbox = c->next;
    if (!s->inbox) s->inbox_last = NULL;
    submit(s, c);
  }
  for (rf_call *c = s->active; c; c = c->next) {
    if (c->deadline > 0 && now > c->deadline && !c->cancel) {
      rf_wrong_set(&late, 504, "deadline_exceeded", NULL,
                   "the answer was not complete after %g seconds, the limit of this server",
                   s->settings->request_seconds);
      rf_call_fail(c, &late);
    }
    if (c->cancel && !c->cancelled) cancel(s, c);
  }
}

static void give_events(rf_server *s) {
  rafter_event event = {.size = sizeof event};
  double now = rf_now_seconds();
  while (rafter_generator_next(s->generator, &event)) {
    rf_part *part = event.owner;
    rf_call_take(part->call, part, &event, now);
  }
}

/* Waits for a call, but only for a short time, so that a signal is noticed. */
static void wait_for_calls(rf_server *s) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 50 * 1000 * 1000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&s->wake, &s->lock, &until);
}

static void refresh(rf_server *s, double now, double *last) {
  if (now - *last < REFRESH && s->active) return;
  *last = now;
  rafter_counts counts = {.size = sizeof counts};
  pthread_mutex_unlock(&s->lock);
  rafter_status status = rafter_generator_counts(s->generator, &counts, NULL);
  pthread_mutex_lock(&s->lock);
  if (status == RAFTER_OK) s->counts = counts;
}

static void fail_calls(rf_server *s, const rf_wrong *wrong) {
  for (rf_call *c = s->inbox; c; c = c->next) rf_call_fail(c, wrong);
  for (rf_call *c = s->active; c; c = c->next) rf_call_fail(c, wrong);
}

/* Ends every call with the error, because the generator cannot continue after a failed pass. */
static void break_down(rf_server *s, const rf_error *error) {
  rf_wrong wrong;
  rf_wrong_set(&wrong, 500, NULL, NULL, "the server has failed: %s", error->message);
  s->broken = s->draining = true;
  fail_calls(s, &wrong);
}

/* Ends all calls that are still open after drain_seconds. */
static void end_drain(rf_server *s) {
  rf_wrong wrong;
  rf_wrong_set(&wrong, 503, "shutting_down", NULL,
               "the server stops, and the answer was not complete in time");
  fail_calls(s, &wrong);
}

typedef struct drain {
  double began;
  bool forced;
} drain;

/* Returns true after a signal, when the last call has ended or the time is over. */
static bool drained(rf_server *s, drain *d, double now) {
  const double last = 2; /* seconds in which clients can read the errors of ended answers */
  if (!s->draining && rf_asked_to_stop(s->sink)) {
    s->draining = true;
    rf_note(s->sink, "stopping: %lld requests are open, new ones are refused\n", (long long)s->open_calls);
  }
  if (!s->draining) return false;
  if (d->began <= 0) d->began = now;
  if (!s->open_calls && !s->active && !s->inbox) return true;
  double over = now - d->began - (s->broken ? 0 : s->settings->drain_seconds);
  if (over > 0 && !d->forced) {
    d->forced = true;
    end_drain(s);
  }
  return over > last || (over > 0 && !s->open_calls);
}

static rf_status step(rf_server *s, rf_error *error) {
  double start = rf_now_seconds();
  pthread_mutex_unlock(&s->lock);
  rf_status status = rafter_generator_step(s->generator, error);
  pthread_mutex_lock(&s->lock);
  if (status == RAFTER_OK) give_events(s);
  s->metrics.busy_seconds += rf_now_seconds() - start;
  return status;
}

rf_status rf_engine_run(rf_server *s, rf_error *error) {
  rf_status status = RAFTER_OK;
  drain d = {0};
  double last = 0;
  bool idle = false;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    double now = rf_now_seconds();
    if (drained(s, &d, now)) break;
    take_calls(s, now);
    rf_adapters_work(s);
    bool busy = !s->broken && rafter_generator_busy(s->generator);
    if (busy) {
      rf_error why = {0};
      if (step(s, &why) != RAFTER_OK) {
        break_down(s, &why);
        status = why.status;
        if (error) *error = why;
      }
    }
    if (busy || !idle) refresh(s, now, &last);
    idle = !busy;
    if (idle && !s->inbox && !s->tasks) wait_for_calls(s);
  }
  s->draining = true;
  rf_adapters_refuse(s);
  pthread_mutex_unlock(&s->lock);
  return status;
}
