/* send.c - see traffic.h: sends the requests of a run. All transfers belong to one libcurl multi
 * handle. */
#define _GNU_SOURCE
#include "traffic/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "traffic/chunk.h"
#include "traffic/metrics.h"

enum {
  ANSWER_MOST = 256 << 20, /* maximum bytes of a streamed answer */
  GAPS_MOST = 1 << 22      /* maximum number of events with tokens in an answer */
};
static const double WATCH_SECONDS = 0.25, PROGRESS_SECONDS = 0.25;

/* ---- the stream of an answer ----------------------------------------------------------------- */

static double now_of(const rf_traffic_client *c) { return rf_now_seconds() - c->start; }

static rf_status add_gap(rf_traffic_record *r, double seconds, rf_error *error) {
  if (r->gaps == r->capacity) {
    int64_t capacity = r->capacity ? 2 * r->capacity : 64;
    double *grown = capacity > GAPS_MOST ? NULL : realloc(r->gap, (size_t)capacity * sizeof *grown);
    if (!grown) return RF_FAIL(error, RAFTER_FAILED, NULL, "the answer has too many events");
    r->gap = grown;
    r->capacity = capacity;
  }
  r->gap[r->gaps++] = seconds;
  return RAFTER_OK;
}

static rf_status on_event(void *self, const char *data, size_t bytes, rf_error *error) {
  rf_transfer *t = self;
  rf_traffic_record *r = t->record;
  rf_chunk chunk;
  const double now = now_of(t->client);
  if (t->done) return RAFTER_OK;
  t->events = true;
  RF_TRY(rf_chunk_parse(data, bytes, &chunk, error));
  if (chunk.refused) {
    t->seen = RF_TRAFFIC_REFUSED;
    return RF_FAIL(error, RAFTER_FAILED, NULL, "%s", chunk.message);
  }
  t->done = chunk.last;
  t->finish |= chunk.finish;
  if (chunk.input_tokens >= 0) r->input_tokens = chunk.input_tokens;
  if (chunk.output_tokens >= 0) r->output_tokens = chunk.output_tokens;
  if (chunk.tokens && r->first >= 0) RF_TRY(add_gap(r, now - t->latest, error));
  if (chunk.tokens && r->first < 0) r->first = now;
  if (chunk.tokens) t->latest = now;
  if (chunk.tokens || chunk.finish) r->end = now;
  return RAFTER_OK;
}

static size_t on_answer(char *data, size_t one, size_t bytes, void *self) {
  rf_transfer *t = self;
  long http = 0;
  (void)one;
  rf_curl.easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &http);
  if (http != 200) {
    size_t room = sizeof t->refusal - t->refusal_bytes, part = bytes < room ? bytes : room;
    memcpy(t->refusal + t->refusal_bytes, data, part);
    t->refusal_bytes += part;
    return bytes;
  }
  t->received += (int64_t)bytes;
  rf_status status = t->received > ANSWER_MOST
                         ? RF_FAIL(&t->error, RAFTER_FAILED, NULL,
                                   "the answer is too long (expected at most %d bytes)", ANSWER_MOST)
                         : rf_sse_feed(&t->sse, data, bytes, &t->error);
  if (status == RAFTER_OK) return bytes;
  if (!t->seen) t->seen = RF_TRAFFIC_BROKEN;
  return 0;
}

/* ---- the end of a request -------------------------------------------------------------------- */

/* Returns the fault of a stream. RF_TRAFFIC_NO_FAULT: the stream has ended correctly. */
static rf_traffic_fault judge_stream(rf_transfer *t) {
  const char *type = NULL;
  if (!t->seen && rf_sse_end(&t->sse, &t->error) != RAFTER_OK && !t->seen) t->seen = RF_TRAFFIC_BROKEN;
  if (t->seen) return t->seen;
  if (!t->events) {
    rf_curl.easy_getinfo(t->curl, CURLINFO_CONTENT_TYPE, &type);
    RF_FAIL(&t->error, RAFTER_FAILED, NULL, "the answer is not an event stream (content type %.60s)",
            type ? type : "unknown");
    return RF_TRAFFIC_BROKEN;
  }
  if (!t->done && !t->finish) {
    RF_FAIL(&t->error, RAFTER_FAILED, NULL, "the stream ended before [DONE]");
    return RF_TRAFFIC_CLOSED;
  }
  rf_traffic_record *r = t->record;
  if (r->first < 0 && r->output_tokens > 0 && r->end >= 0) r->first = r->end; /* tokens without text */
  if (r->first >= 0) return RF_TRAFFIC_NO_FAULT;
  RF_FAIL(&t->error, RAFTER_FAILED, NULL, "the answer has no tokens");
  return RF_TRAFFIC_EMPTY;
}

static rf_traffic_fault judge(rf_transfer *t, CURLcode code, int http) {
  if (t->seen) return t->seen;
  if (code == CURLE_OK || t->done) {
    if (http == 200) return judge_stream(t);
    rf_chunk_error_text(t->refusal, t->refusal_bytes, t->error.message, sizeof t->error.message);
    return RF_TRAFFIC_STATUS;
  }
  snprintf(t->error.message, sizeof t->error.message, "%s",
           *t->problem ? t->problem : rf_curl.easy_strerror(code));
  switch (code) {
  case CURLE_OPERATION_TIMEDOUT: return RF_TRAFFIC_TIMEOUT;
  case CURLE_COULDNT_CONNECT:
  case CURLE_COULDNT_RESOLVE_HOST:
  case CURLE_COULDNT_RESOLVE_PROXY:
  case CURLE_SSL_CONNECT_ERROR:
  case CURLE_PEER_FAILED_VERIFICATION: return RF_TRAFFIC_UNREACHED;
  default: return RF_TRAFFIC_CLOSED;
  }
}

void rf_traffic_release(rf_transfer *t) {
  rf_curl.multi_remove_handle(t->client->multi, t->curl);
  free(t->body);
  t->body = NULL;
  t->record = NULL;
}

static void end_request(rf_transfer *t, CURLcode code) {
  rf_traffic_record *r = t->record;
  long http = 0;
  rf_curl.easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &http);
  r->http = (int)http;
  r->fault = judge(t, code, r->http);
  r->state = r->fault ? RF_TRAFFIC_FAILED : RF_TRAFFIC_COMPLETED;
  if (r->fault || r->end < 0) r->end = now_of(t->client);
  if (r->fault) {
    char text[sizeof t->error.message];
    rf_chunk_printable(text, sizeof text, t->error.message, strlen(t->error.message));
    r->message = strdup(text);
  }
  rf_traffic_release(t);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Returns a free transfer, or NULL if out of memory. */
static rf_transfer *free_transfer(rf_traffic_client *c) {
  for (int64_t i = 0; i < c->transfers; i++)
    if (!c->transfer[i]->record) return c->transfer[i];
  rf_transfer **grown = realloc(c->transfer, (size_t)(c->transfers + 1) * sizeof(rf_transfer *)), *t;
  if (!grown) return NULL;
  c->transfer = grown;
  t = calloc(1, sizeof *t);
  if (!t || !(t->curl = rf_curl.easy_init())) {
    free(t);
    return NULL;
  }
  t->client = c;
  t->sse = (rf_sse){.event = on_event, .self = t};
  return c->transfer[c->transfers++] = t;
}

static rf_status send_request(rf_traffic_client *c, const rf_traffic_run *run, int64_t index,
                              rf_traffic_record *r, rf_error *error) {
  char url[RF_TRAFFIC_URL + 32];
  rf_transfer *t = free_transfer(c);
  char *body = t ? run->body(run->self, index) : NULL;
  if (!body) return rf_traffic_no_memory(error);
  rf_sse_reset(&t->sse);
  t->body = body;
  t->record = r;
  t->seen = RF_TRAFFIC_NO_FAULT;
  t->events = t->done = t->finish = false;
  t->received = 0;
  t->refusal_bytes = 0;
  t->error.message[0] = 0;
  rf_traffic_set_common(c, t->curl, t->problem, c->settings.timeout_seconds);
  snprintf(url, sizeof url, "%s/v1/%s", c->url, c->settings.chat ? "chat/completions" : "completions");
  rf_curl.easy_setopt(t->curl, CURLOPT_URL, url);
  rf_curl.easy_setopt(t->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
  rf_curl.easy_setopt(t->curl, CURLOPT_POSTFIELDS, body);
  rf_curl.easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, on_answer);
  rf_curl.easy_setopt(t->curl, CURLOPT_WRITEDATA, t);
  rf_curl.easy_setopt(t->curl, CURLOPT_PRIVATE, t);
  r->state = RF_TRAFFIC_RUNNING;
  r->sent = now_of(c);
  r->from = run->closed ? r->sent : run->list[index].at;
  if (!rf_curl.multi_add_handle(c->multi, t->curl)) return RAFTER_OK;
  free(t->body);
  t->body = NULL;
  t->record = NULL;
  r->state = RF_TRAFFIC_CANCELLED;
  return rf_traffic_no_memory(error);
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* The state of a run. */
typedef struct sending {
  rf_traffic_client *c;
  const rf_traffic_run *run;
  rf_traffic_record *record;
  rf_traffic_outcome *outcome;
  int64_t next, running, ended;
  bool watches; /* true: the server may have metrics */
  int timer;    /* file descriptor of a timer that ends the wait for the network */
  double watched, said;
} sending;

static void take_metrics(sending *s, const char *text) {
  rf_traffic_watched *w = &s->outcome->watched;
  double running, waiting;
  if (!text || !rf_traffic_read_metrics(text, &running, &waiting)) {
    s->watches = false;
    return;
  }
  w->samples++;
  w->running += (running - w->running) / (double)w->samples;
  w->waiting += (waiting - w->waiting) / (double)w->samples;
}

static void collect(sending *s) {
  CURLMsg *message;
  int more;
  while ((message = rf_curl.multi_info_read(s->c->multi, &more))) {
    if (message->msg != CURLMSG_DONE) continue;
    CURLcode code = message->data.result;
    if (message->easy_handle == s->c->page.curl) {
      take_metrics(s, rf_traffic_end_page(s->c, code));
      continue;
    }
    rf_transfer *t = NULL;
    rf_curl.easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &t);
    end_request(t, code);
    s->running--;
    s->ended++;
  }
}

static bool is_due(const sending *s, double now) {
  const rf_traffic_run *run = s->run;
  return s->next < run->count && s->running < run->clients && (run->closed || run->list[s->next].at <= now);
}

static rf_status send_due(sending *s, rf_error *error) {
  while (is_due(s, now_of(s->c))) {
    RF_TRY(send_request(s->c, s->run, s->next, &s->record[s->next], error));
    s->next++;
    if (++s->running > s->outcome->most_running) s->outcome->most_running = s->running;
  }
  return RAFTER_OK;
}

/* Waits for the network, or until the time of the next request. libcurl waits only for whole
 * milliseconds, so a more precise timer ends the wait. */
static void wait_for_network(const sending *s) {
  const rf_traffic_run *run = s->run;
  struct curl_waitfd timer = {.fd = s->timer, .events = CURL_WAIT_POLLIN};
  unsigned timers = 0;
  if (!run->closed && s->next < run->count && s->running < run->clients) {
    const double seconds = run->list[s->next].at - now_of(s->c);
    if (seconds <= 0) return;
    if (seconds < 1e-3 * RF_TRAFFIC_POLL_MS) {
      const struct itimerspec at = {.it_value.tv_nsec = (long)(seconds * 1e9) + 1};
      timers = !timerfd_settime(s->timer, 0, &at, NULL);
    }
  }
  rf_curl.multi_poll(s->c->multi, &timer, timers, RF_TRAFFIC_POLL_MS, NULL);
}

static void watch(sending *s) {
  double now = now_of(s->c);
  if (s->watches && !s->c->page.active && now - s->watched >= WATCH_SECONDS) {
    s->watched = now;
    s->watches = rf_traffic_begin_page(s->c, "/metrics");
  }
  if (s->run->progress && now - s->said >= PROGRESS_SECONDS) {
    s->said = now;
    s->run->progress(s->run->self, s->ended, s->running, now);
  }
}

/* Ends the transfers that are still open. */
static void cancel(sending *s) {
  for (int64_t i = 0; i < s->c->transfers; i++) {
    rf_transfer *t = s->c->transfer[i];
    if (!t->record) continue;
    t->record->state = RF_TRAFFIC_CANCELLED;
    rf_traffic_release(t);
  }
  rf_traffic_drop_page(s->c);
}

static rf_status loop(sending *s, rf_error *error) {
  while (s->next < s->run->count || s->running) {
    int open;
    s->outcome->stopped = rf_flag_is_set(s->c->settings.stop);
    s->outcome->expired = s->run->until > 0 && rf_now_seconds() >= s->run->until;
    if (s->outcome->stopped || s->outcome->expired) return RAFTER_OK;
    RF_TRY(send_due(s, error));
    CURLMcode code = rf_curl.multi_perform(s->c->multi, &open);
    if (code)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "libcurl cannot send (%s)", rf_curl.multi_strerror(code));
    collect(s);
    watch(s);
    if (is_due(s, now_of(s->c)) || (!s->running && s->next == s->run->count)) continue;
    wait_for_network(s);
  }
  return RAFTER_OK;
}

rf_status rf_traffic_send(rf_traffic_client *c, const rf_traffic_run *run, rf_traffic_record *record,
                          rf_traffic_outcome *outcome, rf_error *error) {
  sending s = {.c = c, .run = run, .record = record, .outcome = outcome, .watches = run->watch};
  *outcome = (rf_traffic_outcome){0};
  for (int64_t i = 0; i < run->count; i++) {
    rf_traffic_record *r = &record[i];
    r->sent = r->first = r->end = -1;
    r->from = run->closed ? 0 : run->list[i].at;
    r->input_tokens = r->output_tokens = -1;
    r->asked_input = run->list[i].prompt;
    r->asked_output = run->list[i].answer;
  }
  s.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (s.timer < 0)
    return RF_FAIL(error, RAFTER_FAILED, "raise the limit of open files with `ulimit -n`",
                   "cannot make a timer: %s", strerror(errno));
  rf_curl.multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)(run->clients + 4));
  c->start = rf_now_seconds();
  s.watched = -WATCH_SECONDS;
  rf_status status = loop(&s, error);
  outcome->seconds = now_of(c);
  cancel(&s);
  close(s.timer);
  return status;
}

void rf_traffic_records_free(rf_traffic_record *record, int64_t count) {
  for (int64_t i = 0; record && i < count; i++) {
    free(record[i].gap);
    free(record[i].message);
  }
  free(record);
}

char *rf_traffic_fault_text(const rf_traffic_record *r, char text[32]) {
  static const char *const NAMES[] = {
      "", "not reached", "", "connection closed", "timeout", "broken stream", "server error", "no tokens"};
  if (r->fault == RF_TRAFFIC_STATUS) snprintf(text, 32, "http %d", r->http);
  else snprintf(text, 32, "%s", NAMES[r->fault]);
  return text;
}
