/* terminal.c - see terminal.h. */
#define _GNU_SOURCE
#include "terminal.h"

#include <editline/readline.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "signals.h"

/* Returns the bytes of the character at `at`, if this is a C0 or C1 control character other than
 * tab and newline, or a character that changes the direction of text. Otherwise returns 0. */
static size_t control_bytes(const unsigned char *at) {
  if ((*at < 0x20 && *at != '\n' && *at != '\t') || *at == 0x7f) return 1;
  if (*at == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0) return 2;
  if (*at != 0xe2 || !at[1]) return 0;
  bool direction = (at[1] == 0x80 && (at[2] == 0x8e || at[2] == 0x8f || (at[2] >= 0xaa && at[2] <= 0xae))) ||
                   (at[1] == 0x81 && at[2] >= 0xa6 && at[2] <= 0xa9);
  return direction ? 3 : 0;
}

void put_printable(const char *text, FILE *file) {
  for (const unsigned char *at = (const unsigned char *)text; *at;) {
    size_t bytes = control_bytes(at);
    fputc(bytes ? '?' : *at, file);
    at += bytes ? bytes : 1;
  }
}

void copy_printable(const char *text, char *to, size_t size) {
  size_t used = 0;
  for (const unsigned char *at = (const unsigned char *)text; *at && used + 1 < size;) {
    size_t bytes = control_bytes(at);
    to[used++] = bytes ? '?' : (char)*at;
    at += bytes ? bytes : 1;
  }
  to[used] = 0;
}

static time_t seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

static void clear_bar(terminal *t) {
  if (t->bar_is_up) fputs("\r\033[K", stderr);
  t->bar_is_up = false;
}

/* Text may hold names from files, so control characters are replaced. JSON and answers are data,
 * which is printed unchanged. */
static void put(terminal *t, FILE *file, const char *text, bool json) {
  pthread_mutex_lock(&t->lock);
  clear_bar(t);
  if (json || t->answers) fputs(text, file);
  else put_printable(text, file);
  if (json) fputc('\n', file);
  fflush(file);
  t->shown = seconds_now();
  pthread_mutex_unlock(&t->lock);
}

static void put_text(void *self, const char *text) {
  terminal *t = self;
  if (!t->quiet || (t->people != stderr && !t->only_results)) put(t, t->people, text, false);
}

static void put_note(void *self, const char *text) {
  terminal *t = self;
  if (!t->quiet) put(t, stderr, text, false);
}

static void put_json(void *self, const char *line) {
  terminal *t = self;
  if (t->json) put(t, stdout, line, true);
}

/* Draws the progress line at a terminal. If stderr is not a terminal, show_life prints the line
 * from time to time. */
void put_bar(void *self, const char *line) {
  terminal *t = self;
  if (t->quiet) return;
  struct winsize size = {.ws_col = 80};
  if (t->is_terminal) ioctl(2, TIOCGWINSZ, &size);
  pthread_mutex_lock(&t->lock);
  snprintf(t->progress, sizeof t->progress, "%s", line);
  if (!*line) clear_bar(t);
  else if (t->is_terminal) {
    char shown[sizeof t->progress];
    snprintf(shown, sizeof shown, "%.*s", size.ws_col > 1 ? size.ws_col - 1 : 79, line);
    fputs("\r\033[K", stderr);
    put_printable(shown, stderr);
    t->bar_is_up = true;
  }
  fflush(stderr);
  pthread_mutex_unlock(&t->lock);
}

/* A thread for output that is not a terminal. If nothing was printed for nearly ten seconds, the
 * thread prints the progress line, so that people see that the command still runs. */
static void *show_life(void *self) {
  terminal *t = self;
  for (;;) {
    sleep(1);
    pthread_mutex_lock(&t->lock);
    if (*t->progress && seconds_now() - t->shown >= 9) {
      put_printable(t->progress, stderr);
      fputc('\n', stderr);
      t->shown = seconds_now();
    }
    pthread_mutex_unlock(&t->lock);
  }
  return NULL;
}

/* The new thread blocks all signals, so that other threads handle them. */
void start_showing_life(terminal *t) {
  pthread_t thread;
  pthread_attr_t small;
  sigset_t all, kept;
  t->shown = seconds_now();
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 128 << 10);
  pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &kept);
  pthread_create(&thread, &small, show_life, t);
  pthread_sigmask(SIG_SETMASK, &kept, NULL);
  pthread_attr_destroy(&small);
}

/* Reads a line from a pipe or a file. Returns NULL at the end of the input, and soon after SIGTERM
 * or SIGHUP. The timeout of poll lets the loop see a signal that another thread received. */
static char *read_line(terminal *t) {
  enum { LOOK_MS = 200, BLOCK = 1 << 16 };
  struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
  for (;;) {
    char *end = t->used ? memchr(t->input, '\n', t->used) : NULL;
    if (end || (t->at_end && t->used)) {
      size_t bytes = end ? (size_t)(end - t->input) + 1 : t->used;
      char *line = strndup(t->input, bytes);
      t->used -= bytes;
      memmove(t->input, t->input + bytes, t->used);
      if (line) line[strcspn(line, "\r\n")] = 0;
      return line;
    }
    if (t->at_end) return NULL;
    if (__atomic_load_n(&end_asked, __ATOMIC_RELAXED)) return NULL;
    if (poll(&in, 1, LOOK_MS) <= 0) continue;
    char *grown = t->room < t->used + BLOCK ? realloc(t->input, t->used + 2 * BLOCK) : t->input;
    if (!grown) return NULL;
    if (grown != t->input || t->room < t->used + BLOCK) t->room = t->used + 2 * BLOCK;
    t->input = grown;
    ssize_t got = read(STDIN_FILENO, t->input + t->used, BLOCK);
    if (got > 0) t->used += (size_t)got;
    else if (got == 0 || errno != EINTR) t->at_end = true;
  }
}

/* Reads a line for chat. At a terminal, the user can edit the line and recall earlier lines. */
static char *ask_line(void *self, const char *prompt) {
  terminal *t = self;
  put_bar(t, "");
  if (__atomic_load_n(&end_asked, __ATOMIC_RELAXED)) return NULL;
  __atomic_store_n(&stop_asked, 0, __ATOMIC_RELAXED); /* the signal ended only an answer, not the chat */
  if (isatty(0) && isatty(1) && !t->json) {
    rl_catch_signals = 1; /* readline restores the terminal before a signal ends this process */
    __atomic_store_n(&at_prompt, 1, __ATOMIC_RELAXED);
    char *line = readline(prompt);
    __atomic_store_n(&at_prompt, 0, __ATOMIC_RELAXED);
    if (line && *line) add_history(line);
    if (!line) putchar('\n');
    __atomic_store_n(&stop_asked, 0, __ATOMIC_RELAXED); /* nothing was running */
    return line;
  }
  char *line = read_line(t);
  if (!__atomic_load_n(&end_asked, __ATOMIC_RELAXED))
    __atomic_store_n(&stop_asked, 0, __ATOMIC_RELAXED); /* SIGINT came while nothing was running */
  return line;
}

/* Reads standard input as a prompt. Reads from a terminal only if the user asked for this. During
 * the read, a signal ends the program, because there is nothing to save. */
static char *read_input(void *self, bool asked, size_t most, size_t *bytes) {
  size_t capacity = 1 << 12, got = 1;
  char *text = NULL;
  struct sigaction kept[3];
  put_bar(self, "");
  *bytes = 0;
  if (!asked && isatty(STDIN_FILENO)) return NULL;
  default_signals(kept);
  while (got && *bytes <= most) {
    char *grown = realloc(text, 2 * capacity + 1);
    if (!grown) break;
    text = grown;
    capacity *= 2;
    got = fread(text + *bytes, 1, capacity - *bytes, stdin);
    *bytes += got;
    text[*bytes] = 0;
  }
  restore_signals(kept);
  return text;
}

rafter_sink terminal_sink(terminal *t) {
  return (rafter_sink){.size = sizeof(rafter_sink),
                       .history = true,
                       .self = t,
                       .text = put_text,
                       .json = put_json,
                       .bar = put_bar,
                       .note = put_note,
                       .stop = &stop_asked,
                       .line = ask_line,
                       .input = read_input};
}
