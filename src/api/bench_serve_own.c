/* bench_serve_own.c - see bench_serve.h: serves MODEL in a thread of this process. */
#define _GNU_SOURCE
#include "api/bench_serve.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct rf_bench_own {
  rafter_job job;
  rafter_sink sink;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  char *url;  /* address of the server; set when the server answers requests */
  bool ended; /* true after the server has returned `status` */
  int stop;
  rf_status status;
  rf_error error;
};

bool rf_bench_is_address(const char *text) {
  const char *colon = strrchr(text, ':');
  if (strstr(text, "://")) return true;
  return colon && colon[1] && strspn(colon + 1, "0123456789/") == strlen(colon + 1); /* HOST:PORT */
}

/* Returns true for options that both commands have, but with different meanings. */
static bool is_of_requests(const char *name) {
  static const char *const OTHER[] = {"json", "config", "seed", "max-tokens", "api-key-file", "max-seconds"};
  for (size_t i = 0; i < sizeof OTHER / sizeof *OTHER; i++)
    if (!strcmp(name, OTHER[i])) return true;
  return false;
}

/* Sets the options of `rafter serve`. The queue is longer than usual, because a test may send many
 * requests at once. */
static rf_status server_options(const rf_options *from, rf_options *o, rf_error *error) {
  RF_TRY(rf_options_set(o, "MODEL", rf_options_argument(from, 0), error));
  RF_TRY(rf_options_set(o, "port", "0", error));
  RF_TRY(rf_options_set(o, "max-queue", "1048576", error));
  RF_TRY(rf_options_set(o, "drain-seconds", "0", error));
  for (int i = 0; i < rf_options_count(from); i++) {
    const char *name = rf_options_name(from, i);
    if (rf_options_given(from, name) && rf_options_knows(o, name) && !is_of_requests(name))
      RF_TRY(rf_options_set(o, name, rf_options_text(from, name), error));
  }
  return RAFTER_OK;
}

/* The server prints one JSON object, which contains the address. */
static void get_ready(void *self, const char *line) {
  rf_bench_own *own = self;
  json_t *json = json_loads(line, 0, NULL);
  const char *url = rf_json_text_at(json, "url");
  pthread_mutex_lock(&own->lock);
  if (!own->url) own->url = strdup(url ? url : "");
  pthread_cond_broadcast(&own->changed);
  pthread_mutex_unlock(&own->lock);
  json_decref(json);
}

static void *serve(void *self) {
  rf_bench_own *own = self;
  rf_error error = {0};
  const rf_status status = RF_COMMAND_SERVE.run(&own->job, &own->sink, &error);
  pthread_mutex_lock(&own->lock);
  own->status = status;
  own->error = error;
  own->ended = true;
  pthread_cond_broadcast(&own->changed);
  pthread_mutex_unlock(&own->lock);
  return NULL;
}

/* Waits until the server answers requests. Stops the server if a signal handler has asked this
 * process to stop. */
static rf_status wait_ready(rf_bench_own *own, const rafter_sink *sink, rf_error *error) {
  enum { LOOK_NS = 50 * 1000 * 1000 };
  pthread_mutex_lock(&own->lock);
  while (!own->url && !own->ended) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += LOOK_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&own->changed, &own->lock, &until);
    if (rf_asked_to_stop(sink)) __atomic_store_n(&own->stop, 1, __ATOMIC_RELAXED);
  }
  const bool ready = own->url && *own->url && !own->ended;
  pthread_mutex_unlock(&own->lock);
  if (ready) return RAFTER_OK;
  if (rf_asked_to_stop(sink))
    return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped before the server was ready");
  if (own->ended && own->status != RAFTER_OK) {
    *error = own->error;
    return own->status;
  }
  return RF_FAIL(error, RAFTER_FAILED, "this is a bug; please report it",
                 "the server did not say its address");
}

rf_status rf_bench_own_start(const rf_options *from, const rafter_sink *sink, rf_bench_own **out,
                             const char **url, rf_error *error) {
  rf_bench_own *own = calloc(1, sizeof *own);
  if (!own) return rf_bench_no_memory(error);
  pthread_mutex_init(&own->lock, NULL);
  pthread_cond_init(&own->changed, NULL);
  own->sink = (rafter_sink){
      .size = sizeof own->sink, .self = own, .json = get_ready, .stop = (const volatile int *)&own->stop};
  rf_status status = rf_options_new(rf_options_commands(from), "serve", &own->job.options, error);
  if (status == RAFTER_OK) status = server_options(from, own->job.options, error);
  if (status == RAFTER_OK && pthread_create(&own->thread, NULL, serve, own))
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "cannot start a thread for the server (%m)");
  if (status != RAFTER_OK) {
    rf_options_free(own->job.options);
    free(own);
    return status;
  }
  *out = own;
  RF_TRY(wait_ready(own, sink, error));
  *url = own->url;
  return RAFTER_OK;
}

rf_status rf_bench_own_stop(rf_bench_own *own, rf_error *error) {
  if (!own) return RAFTER_OK;
  __atomic_store_n(&own->stop, 1, __ATOMIC_RELAXED);
  pthread_join(own->thread, NULL);
  const rf_status status = own->status;
  if (status != RAFTER_OK && error) *error = own->error;
  pthread_cond_destroy(&own->changed);
  pthread_mutex_destroy(&own->lock);
  rf_options_free(own->job.options);
  free(own->url);
  free(own);
  return status;
}
