/* command.c - see command.h. One thread serves all processes, with poll. Each process works on one
 * answer at a time. The lock guards the lists of answers, the lines for the caller, and the
 * error. */
#define _GNU_SOURCE
#include "reward/command.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "reward/child.h"

enum {
  LINE_BYTES = 1 << 20, /* longest reply */
  READ_BYTES = 1 << 16,
  SHOWN_BYTES = 64 << 10,  /* maximum bytes that are shown of the stderr of each process */
  NOTED_BYTES = 256 << 10, /* maximum bytes of lines that wait for the caller */
  LOOK_MS = 200            /* maximum milliseconds between two checks of a working process */
};

typedef struct worker {
  rf_child child;
  rf_asked *now; /* the answer that the process works on; NULL: no answer */
  size_t sent;   /* bytes of its line */
  double end;    /* time after which the reply is late */
  bool ended;    /* true: the process ended, but another process still has its output open */
  char *text;    /* (LINE_BYTES) unread output */
  size_t got;
  char said[1024]; /* unfinished line of stderr */
  size_t said_bytes;
  char last[256]; /* last line of stderr */
  int64_t shown;  /* bytes of stderr */
  int failures;   /* since the last reply */
} worker;

typedef struct list {
  rf_asked *first, **end;
} list;

struct rf_reward_command {
  const rf_reward_options *options;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed; /* signals that answers are done, or that the program failed */
  int wake;               /* an eventfd that wakes the thread */
  bool has_thread, closing, failed;
  list asked, done;
  char *notes; /* lines for options.say, joined by newlines */
  size_t notes_bytes;
  rf_error error;
  worker *worker; /* (options.workers) */
};

static void append(list *l, rf_asked *asked) {
  asked->next = NULL;
  *l->end = asked;
  l->end = &asked->next;
}

static rf_asked *take_first(list *l) {
  rf_asked *first = l->first;
  if (first) l->first = first->next;
  if (!l->first) l->end = &l->first;
  return first;
}

static void put_back(list *l, rf_asked *asked) {
  asked->next = l->first;
  if (!l->first) l->end = &asked->next;
  l->first = asked;
}

void rf_asked_free(rf_asked *asked) {
  if (!asked) return;
  json_decref(asked->rewards);
  free(asked->line);
  free(asked);
}

/* ---- lines for the caller -------------------------------------------------------------------- */

static void note(rf_reward_command *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(rf_reward_command *c, const char *format, ...) {
  char line[1400];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  size_t bytes = strlen(line);
  pthread_mutex_lock(&c->lock);
  char *grown = c->notes_bytes + bytes < NOTED_BYTES ? realloc(c->notes, c->notes_bytes + bytes + 1) : NULL;
  if (grown) {
    c->notes = grown;
    memcpy(grown + c->notes_bytes, line, bytes);
    grown[c->notes_bytes + bytes] = '\n';
    c->notes_bytes += bytes + 1;
  }
  pthread_mutex_unlock(&c->lock);
}

/* Passes one line of a process's stderr to the caller, up to SHOWN_BYTES. */
static void show_line(rf_reward_command *c, worker *w) {
  w->said[w->said_bytes] = 0;
  if (w->said_bytes) snprintf(w->last, sizeof w->last, "%.*s", (int)sizeof w->last - 1, w->said);
  bool shown = w->shown < SHOWN_BYTES;
  w->shown += (int64_t)w->said_bytes + 1;
  w->said_bytes = 0;
  if (shown) note(c, "%s", w->said);
  if (shown && w->shown >= SHOWN_BYTES)
    note(c, "(the reward command wrote %d KiB to stderr; further lines are not shown)", SHOWN_BYTES >> 10);
}

static void read_stderr(rf_reward_command *c, worker *w) {
  char text[4096];
  for (int i = 0; i < 16 && w->child.err >= 0; i++) {
    ssize_t n = read(w->child.err, text, sizeof text);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) rf_child_close(&w->child.err);
    for (ssize_t k = 0; k < n; k++) {
      if (text[k] != '\n') w->said[w->said_bytes++] = text[k] ? text[k] : ' ';
      if (text[k] == '\n' || w->said_bytes == sizeof w->said - 1) show_line(c, w);
    }
  }
}

static bool is_closing(rf_reward_command *c) {
  pthread_mutex_lock(&c->lock);
  bool closing = c->closing;
  pthread_mutex_unlock(&c->lock);
  return closing;
}

/* ---- failures -------------------------------------------------------------------------------- */

static void fail_for_ever(rf_reward_command *c, const rf_error *why) {
  pthread_mutex_lock(&c->lock);
  c->error = *why;
  c->failed = true;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
}

static void start(rf_reward_command *c, worker *w) {
  rf_error error = {0};
  w->got = w->said_bytes = 0;
  w->ended = false;
  *w->last = 0;
  if (rf_child_start(c->options->command, &w->child, &error) != RAFTER_OK) fail_for_ever(c, &error);
}

static const char END_HINT[] =
    "the command must read lines until its standard input ends; try it in a shell with one line of JSON";

/* Ends a process that failed. Starts the process again, or reports the failure. `what`: "wrote
 * ...". */
static void fail(rf_reward_command *c, worker *w, const char *what, const char *hint) {
  char how[80], row[160] = "no answer was waiting", last[300] = "";
  rf_error error = {0};
  rf_asked *asked = w->now;
  if (w->child.err >= 0) read_stderr(c, w);
  if (w->said_bytes) show_line(c, w);
  rf_child_end(&w->child, how);
  w->now = NULL;
  if (asked)
    snprintf(row, sizeof row, "row %s, answer %lld", *asked->id ? asked->id : "without id",
             (long long)asked->number);
  if (*w->last) snprintf(last, sizeof last, "; its last line on stderr: %s", w->last);
  if (!what) what = how;
  bool retries = ++w->failures <= c->options->retries && (!asked || ++asked->failures <= c->options->retries);
  RF_FAIL(&error, RAFTER_FAILED, hint, "the reward command %s (%s%s)", what, row, last);
  if (asked) {
    pthread_mutex_lock(&c->lock);
    put_back(&c->asked, asked);
    pthread_mutex_unlock(&c->lock);
  }
  if (!retries) {
    fail_for_ever(c, &error);
    return;
  }
  note(c, "%s; it is started again", error.message);
  start(c, w);
}

/* A pipe was closed, so the process should end soon, and its exit status says why. */
static void fail_at_end(rf_reward_command *c, worker *w, const char *pipe) {
  char what[200];
  for (int ms = 0; ms < 1000 && !rf_child_ended(&w->child) && !is_closing(c); ms++) usleep(1000);
  if (rf_child_ended(&w->child)) {
    fail(c, w, NULL, END_HINT);
    return;
  }
  snprintf(what, sizeof what, "closed its standard %s, but did not end", pipe);
  fail(c, w, what, END_HINT);
}

/* ---- one process ----------------------------------------------------------------------------- */

/* Takes a complete line of output. Returns false if the process failed. */
static bool take_line(rf_reward_command *c, worker *w, const char *text, size_t bytes) {
  char why[300], what[400], got[RF_EXCERPT];
  const char *hint;
  rf_asked *asked = w->now;
  if (strspn(text, " \t\r") >= bytes) return true;
  if (!asked || w->sent < asked->bytes) {
    snprintf(what, sizeof what, "wrote a line before it read one: '%s'", rf_excerpt(text, bytes, got));
    fail(c, w, what, "the command writes exactly one line for each line that it reads");
    return false;
  }
  if (!rf_reward_reply_read(text, bytes, asked->number, &asked->reward, &asked->rewards, why, &hint)) {
    snprintf(what, sizeof what, "wrote a wrong line: %s", why);
    fail(c, w, what, hint);
    return false;
  }
  w->failures = 0;
  w->now = NULL;
  pthread_mutex_lock(&c->lock);
  append(&c->done, asked);
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  return true;
}

/* Takes all complete lines of the output. Returns false if the process failed. */
static bool take_lines(rf_reward_command *c, worker *w) {
  char *at = w->text, *end = w->text + w->got, *newline;
  while ((newline = memchr(at, '\n', (size_t)(end - at)))) {
    *newline = 0;
    if (!take_line(c, w, at, (size_t)(newline - at))) return false;
    at = newline + 1;
  }
  w->got = (size_t)(end - at);
  memmove(w->text, at, w->got);
  if (w->got < LINE_BYTES) return true;
  fail(c, w, "wrote a line of more than 1 MiB", "a line has the fields \"id\", \"reward\" and \"rewards\"");
  return false;
}

/* Reads output. Returns false if the process failed. */
static bool read_stdout(rf_reward_command *c, worker *w) {
  size_t room = LINE_BYTES - w->got;
  ssize_t n = read(w->child.out, w->text + w->got, room < READ_BYTES ? room : READ_BYTES);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n > 0) {
    w->got += (size_t)n;
    return take_lines(c, w);
  }
  if (w->got && w->got < LINE_BYTES) { /* the last line of the output has no newline */
    w->text[w->got] = '\n';
    w->got++;
    if (!take_lines(c, w)) return false;
  }
  fail_at_end(c, w, "output");
  return false;
}

/* The process closed its input. The process gets a second to end, and the end of its output shows
 * that it ended. */
static void close_input(worker *w) {
  rf_child_close(&w->child.in);
  w->end = rf_now_seconds() + 1;
}

/* Sends bytes of the current line. SIGPIPE is blocked in this thread, so a closed pipe gives an
 * error. */
static void send_line(worker *w) {
  ssize_t n = write(w->child.in, w->now->line + w->sent, w->now->bytes - w->sent);
  if (n > 0) w->sent += (size_t)n;
  else if (n < 0 && errno != EAGAIN && errno != EINTR) close_input(w);
}

static void give_answer(rf_reward_command *c, worker *w) {
  if (w->now || !w->child.pid) return;
  pthread_mutex_lock(&c->lock);
  w->now = take_first(&c->asked);
  pthread_mutex_unlock(&c->lock);
  w->sent = 0;
  w->end = rf_now_seconds() + (w->child.in < 0 ? 1 : c->options->timeout_seconds);
}

/* A process that ended gives no reply, even if another process keeps its output open. The last
 * lines of the process may still be in the pipe, so they are read first. */
static void check_end(worker *w) {
  if (!w->now || w->ended || !rf_child_ended(&w->child)) return;
  double soon = rf_now_seconds() + LOOK_MS * 1e-3;
  w->ended = true;
  if (soon < w->end) w->end = soon;
}

static void check_time(rf_reward_command *c, worker *w) {
  char what[200];
  check_end(w);
  if (!w->now || rf_now_seconds() < w->end) return;
  if (w->child.in < 0) {
    fail_at_end(c, w, "input");
    return;
  }
  if (rf_child_ended(&w->child)) { /* another process still has the output open */
    fail(c, w, NULL, END_HINT);
    return;
  }
  snprintf(what, sizeof what, "%s in %g s",
           w->sent < w->now->bytes ? "did not read its input" : "gave no reward",
           c->options->timeout_seconds);
  fail(c, w, what,
       "flush the output after each line (in Python: print(line, flush=True)), or set --reward-timeout");
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Returns the milliseconds until the first reply is late, at most LOOK_MS. -1: no reply is
 * expected. */
static int time_left(const rf_reward_command *c) {
  double first = 0;
  for (int i = 0; i < c->options->workers; i++) {
    const worker *w = &c->worker[i];
    if (w->now && (!first || w->end < first)) first = w->end;
  }
  if (!first) return -1;
  double ms = (first - rf_now_seconds()) * 1000;
  return ms < 0 ? 0 : ms > LOOK_MS ? LOOK_MS : (int)ms + 1;
}

static void serve(rf_reward_command *c, struct pollfd *polled) {
  const int workers = c->options->workers;
  for (int i = 0; i < workers; i++) {
    worker *w = &c->worker[i];
    give_answer(c, w);
    bool sends = w->now && w->sent < w->now->bytes;
    polled[3 * i] = (struct pollfd){w->child.out, POLLIN, 0};
    polled[3 * i + 1] = (struct pollfd){w->child.err, POLLIN, 0};
    polled[3 * i + 2] = (struct pollfd){w->child.in, sends ? POLLOUT : 0, 0};
  }
  polled[3 * workers] = (struct pollfd){c->wake, POLLIN, 0};
  if (poll(polled, 3 * (nfds_t)workers + 1, time_left(c)) < 0) return;
  uint64_t count;
  if (polled[3 * workers].revents && read(c->wake, &count, sizeof count) < 0) return;
  for (int i = 0; i < workers && !c->failed; i++) {
    worker *w = &c->worker[i];
    if (polled[3 * i + 1].revents) read_stderr(c, w);
    if (polled[3 * i].revents && !read_stdout(c, w)) continue;
    if (polled[3 * i + 2].revents & POLLERR) close_input(w);
    else if (polled[3 * i + 2].revents && w->now) send_line(w);
    check_time(c, w);
  }
}

/* Ends all processes. The processes get some time to end by themselves, because their input was
 * closed. */
static void end_all(rf_reward_command *c) {
  enum { GRACE_MS = 1000, STOPPED_MS = 100, STEP_MS = 5 };
  char how[80];
  int grace = c->failed || rf_flag_is_set(c->options->stop) ? STOPPED_MS : GRACE_MS, running = 1;
  for (int i = 0; i < c->options->workers; i++) rf_child_close(&c->worker[i].child.in);
  for (int ms = 0; ms < grace && running; ms += STEP_MS) {
    running = 0;
    for (int i = 0; i < c->options->workers; i++) {
      worker *w = &c->worker[i];
      if (w->child.err >= 0) read_stderr(c, w);
      running += w->child.pid && !rf_child_ended(&w->child);
    }
    if (running) usleep(STEP_MS * 1000);
  }
  for (int i = 0; i < c->options->workers; i++) rf_child_end(&c->worker[i].child, how);
}

static void *run(void *self) {
  rf_reward_command *c = self;
  struct pollfd *polled = rf_must(calloc(3 * (size_t)c->options->workers + 1, sizeof *polled));
  for (int i = 0; i < c->options->workers && !c->failed; i++) start(c, &c->worker[i]);
  while (!c->failed && !is_closing(c)) serve(c, polled);
  end_all(c);
  free(polled);
  return NULL;
}

/* ---- functions that the caller's thread runs ------------------------------------------------- */

static rf_status make_thread(rf_reward_command *c, rf_error *error) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (size_t i = 0; i < 5; i++) sigdelset(&blocked, (int[]){SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}[i]);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  int failed = pthread_create(&c->thread, NULL, run, c);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  c->has_thread = !failed;
  return !failed ? RAFTER_OK
                 : RF_FAIL(error, RAFTER_FAILED, NULL, "cannot start a thread for the reward command (%s)",
                           strerror(failed));
}

rf_status rf_reward_command_open(const rf_reward_options *options, rf_reward_command **command,
                                 rf_error *error) {
  pthread_condattr_t clock;
  rf_reward_command *c = calloc(1, sizeof *c);
  worker *workers = calloc((size_t)options->workers, sizeof *workers);
  bool made = c && workers;
  for (int i = 0; made && i < options->workers; i++) {
    workers[i].child = (rf_child){0, -1, -1, -1};
    workers[i].text = malloc(LINE_BYTES + 1);
    made = workers[i].text;
  }
  if (!c) {
    free(workers);
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory");
  }
  c->options = options;
  c->worker = workers;
  c->asked.end = &c->asked.first;
  c->done.end = &c->done.first;
  pthread_mutex_init(&c->lock, NULL);
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_cond_init(&c->changed, &clock);
  pthread_condattr_destroy(&clock);
  c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  rf_status status = !made ? RF_FAIL(error, RAFTER_FAILED, "give fewer --reward-workers", "out of memory")
                     : c->wake < 0
                         ? RF_FAIL(error, RAFTER_FAILED, NULL, "cannot open a file (%s)", strerror(errno))
                         : make_thread(c, error);
  if (status == RAFTER_OK) *command = c;
  else rf_reward_command_close(c);
  return status;
}

static void wake(const rf_reward_command *c) {
  uint64_t one = 1;
  while (write(c->wake, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void free_list(list *l) {
  for (rf_asked *asked; (asked = take_first(l));) rf_asked_free(asked);
}

void rf_reward_command_close(rf_reward_command *c) {
  if (!c) return;
  if (c->has_thread) {
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_mutex_unlock(&c->lock);
    wake(c);
    pthread_join(c->thread, NULL);
    rf_reward_command_say(c);
  }
  for (int i = 0; c->worker && i < c->options->workers; i++) {
    rf_asked_free(c->worker[i].now);
    free(c->worker[i].text);
  }
  free_list(&c->asked);
  free_list(&c->done);
  if (c->wake >= 0) close(c->wake);
  pthread_cond_destroy(&c->changed);
  pthread_mutex_destroy(&c->lock);
  free(c->worker);
  free(c->notes);
  free(c);
}

void rf_reward_command_ask(rf_reward_command *c, rf_asked *asked) {
  pthread_mutex_lock(&c->lock);
  append(&c->asked, asked);
  pthread_mutex_unlock(&c->lock);
  wake(c);
}

rf_status rf_reward_command_take(rf_reward_command *c, int ms, rf_asked **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  struct timespec end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_nsec += (long)ms * 1000000;
  end.tv_sec += end.tv_nsec / 1000000000;
  end.tv_nsec %= 1000000000;
  pthread_mutex_lock(&c->lock);
  while (!c->done.first && !c->failed && ms)
    if (pthread_cond_timedwait(&c->changed, &c->lock, &end)) break;
  *out = c->done.first;
  c->done = (list){.end = &c->done.first};
  if (c->failed) {
    if (error) *error = c->error;
    status = RAFTER_FAILED;
  }
  pthread_mutex_unlock(&c->lock);
  return status;
}

void rf_reward_command_say(rf_reward_command *c) {
  pthread_mutex_lock(&c->lock);
  char *text = c->notes;
  size_t bytes = c->notes_bytes;
  c->notes = NULL;
  c->notes_bytes = 0;
  pthread_mutex_unlock(&c->lock);
  for (size_t at = 0; at < bytes;) {
    size_t length = (size_t)((char *)memchr(text + at, '\n', bytes - at) - text) - at;
    text[at + length] = 0;
    if (c->options->say) c->options->say(c->options->self, text + at);
    at += length + 1;
  }
  free(text);
}
