/* progress.c - flights: exchanges that run while this rank computes. A thread of the link advances
 * flights: it tests their messages, sums the chunks that have arrived, and posts the next chunks.
 * The thread sleeps between two rounds of tests, so that it uses little CPU time. The main thread
 * also advances flights: when it begins a flight, during its waits, and between two ops. */
#define _GNU_SOURCE
#include "backend/mpi/link_parts.h"

#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Only the oldest flight has messages on their way, because the ranks need its result first. Three
 * active flights were slower over 100 Mbit/s. */
enum { ACTIVE = 1, PAUSE_NS = 50000, LONG_PAUSE_NS = 500000 };

/* With the lock `flying`. */
static void advance(link_state *s) {
  for (int i = 0; i < s->flights && i < ACTIVE && !s->link.failed; i++) {
    rf_link_flight *f = s->flight[i];
    if (!f->there_ns && rf_link_done(&s->link, rf_link_group_of(f, 2))) f->there_ns = rf_now_ns();
    if (!f->advance(f) || !f->there_ns || s->link.failed) continue;
    s->flights--;
    memmove(s->flight + i, s->flight + i + 1, (size_t)(s->flights - i) * sizeof *s->flight);
    f->done = true;
    i--;
  }
}

static void *fly(void *state) {
  link_state *s = state;
  for (;;) {
    pthread_mutex_lock(&s->flying);
    while (!s->flights || s->link.failed) pthread_cond_wait(&s->begun, &s->flying);
    if (!s->waiting) advance(s);
    pthread_mutex_unlock(&s->flying);
    nanosleep(&(struct timespec){.tv_nsec = s->waiting ? LONG_PAUSE_NS : PAUSE_NS}, NULL);
  }
  return NULL;
}

rf_status rf_link_reserve_flights(rf_link *link, rf_error *error) {
  link_state *s = state_of(link);
  pthread_t thread;
  sigset_t all, before;
  if (s->flights_reserved) return RAFTER_OK;
  for (int g = RF_LINK_GROUPS; g < ALL_GROUPS; g++) {
    if (!s->group[g].message) s->group[g].message = calloc((size_t)s->room, sizeof *s->group[g].message);
    if (!s->group[g].message)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while binding the plan");
  }
  /* Signals are for the main thread. Without this thread, flights advance between ops. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (link->threaded && !pthread_create(&thread, NULL, fly, s)) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  s->flights_reserved = true;
  return RAFTER_OK;
}

bool rf_link_begin_flight(rf_link *link, rf_link_flight *f) {
  link_state *s = state_of(link);
  if (link->failed) return false;
  assert(!f->open && s->flights < RF_LINK_FLIGHTS);
  pthread_mutex_lock(&s->flying);
  f->open = true;
  f->done = false;
  f->there_ns = 0;
  s->flight[s->flights++] = f;
  advance(s);
  if (s->flights) pthread_cond_signal(&s->begun);
  pthread_mutex_unlock(&s->flying);
  return !link->failed;
}

/* A message for which flight `f` waits, or a message of an earlier flight; NULL: no flight waits
 * for a message. */
static const message *message_of(link_state *s, const rf_link_flight *f) {
  for (int i = -1; i < s->flights; i++) {
    const rf_link_flight *of = i < 0 ? f : s->flight[i];
    for (int k = 0; k < RF_LINK_FLIGHT_GROUPS; k++) {
      const message_group *g = &s->group[rf_link_group_of(of, k)];
      for (int m = 0; m < g->count; m++)
        if (!g->message[m].done) return &g->message[m];
    }
  }
  return NULL;
}

static void look_at(link_state *s, const rf_link_flight *f, double waited, rf_link_watch *seen) {
  pthread_mutex_lock(&s->flying);
  const message *found = message_of(s, f);
  const message m = found ? *found : (message){.rank = s->link.rank};
  pthread_mutex_unlock(&s->flying);
  if (found) rf_link_look(s, &m, waited, seen);
}

/* Adds the wait since `begin` to the times of its causes. */
static void count(link_state *s, const rf_link_flight *f, int64_t begin) {
  int64_t now = rf_now_ns(), late = f->there_ns > begin ? f->there_ns - begin : 0;
  int rank = s->group[rf_link_group_of(f, 2)].last;
  s->link.waited_ns += now - begin;
  s->link.times.exchanges++;
  s->link.times.all_ns += now - begin;
  s->link.times.late_ns += late;
  s->link.times.network_ns += now - begin - late;
  rf_link_record_wait(RF_REMOTE_LATE, rank, begin, begin + late);
  rf_link_record_wait(RF_REMOTE_NETWORK, rank, begin + late, now);
}

bool rf_link_end_flight(rf_link *link, rf_link_flight *f) {
  link_state *s = state_of(link);
  rf_link_watch seen = {1, -1};
  int64_t begin = rf_now_ns();
  s->waiting = true;
  for (int64_t polls = 0; !f->done && !link->failed; polls++) {
    rf_link_poll_flights(link);
    if (f->done) break;
    rf_link_pause(polls);
    if (polls % 64 == 63) look_at(s, f, 1e-9 * (double)(rf_now_ns() - begin), &seen);
  }
  s->waiting = false;
  if (f->done) f->open = false; /* a flight that stays open is left to rf_link_drop_flight */
  if (!link->failed) count(s, f, begin);
  return !link->failed;
}

void rf_link_drop_flight(rf_link *link, rf_link_flight *f) {
  const double patience = 2;
  link_state *s = state_of(link);
  double begin = rf_now_seconds();
  f->open = false;
  for (int64_t polls = 0; !f->done && !link->failed && rf_now_seconds() - begin < patience; polls++) {
    rf_link_poll_flights(link);
    rf_link_pause(polls);
  }
  pthread_mutex_lock(&s->flying); /* from here on, no thread advances the flight */
  if (!f->done && !atomic_exchange(&s->failing, true)) {
    RF_FAIL(&link->error, RAFTER_FAILED, NULL, "an exchange was given up before it was complete");
    link->failed = true;
  }
  pthread_mutex_unlock(&s->flying);
}

void rf_link_poll_flights(rf_link *link) {
  link_state *s = state_of(link);
  if (!s->flights_reserved || pthread_mutex_trylock(&s->flying)) return;
  advance(s);
  pthread_mutex_unlock(&s->flying);
}
