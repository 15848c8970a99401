/* main.c - `rafter COMMAND [--option value]`. Only this file prints, exits and handles signals. */
#define _GNU_SOURCE
#include "rafter.h"

#include <editline/readline.h>
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* Read and written atomically. end_asked: SIGTERM or SIGHUP came, which end a chat, not only an answer.
 * at_prompt: the user edits a line at the terminal. */
static volatile int stop_asked, end_asked, at_prompt;

static void ask_stop(int signal_number) {
  bool again = __atomic_exchange_n(&stop_asked, 1, __ATOMIC_RELAXED);
  if (signal_number != SIGINT) {
    __atomic_store_n(&end_asked, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&at_prompt, __ATOMIC_RELAXED)) _exit(RAFTER_INTERRUPTED);
  }
  /* The second signal ends the program without saving. A terminal that closes may send several
   * SIGHUP, and systemd sends SIGHUP after SIGTERM. */
  if (again && signal_number != SIGHUP) _exit(RAFTER_INTERRUPTED);
}

/* A program that `nohup` started continues after SIGHUP. */
static void catch_signals(void) {
  struct sigaction action = {.sa_handler = ask_stop, .sa_flags = SA_RESTART}, hangup;
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

typedef struct terminal {
  bool only_results; /* --quiet also hides text output, as for train and calibrate */
  FILE *people;      /* where text goes: stdout, or stderr if stdout has JSON */
  bool json, bar_is_up, quiet, is_terminal;
  pthread_mutex_t lock; /* guards output and the fields below: show_life is a thread of its own */
  char progress[256];   /* last progress line; "": none */
  time_t shown;         /* time of the last output, in seconds */
  char *input;       /* bytes that read_line has read, but not returned */
  size_t used, room; /* bytes of `input` in use, and allocated */
  bool at_end;       /* read_line has seen the end of the input */
} terminal;

static time_t seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

static void clear_bar(terminal *t) {
  if (t->bar_is_up) fputs("\r\033[K", stderr);
  t->bar_is_up = false;
}

static void put(terminal *t, FILE *file, const char *text, bool line) {
  pthread_mutex_lock(&t->lock);
  clear_bar(t);
  fputs(text, file);
  if (line) fputc('\n', file);
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

/* Draws the progress line at a terminal. Elsewhere, show_life prints the line from time to time. */
static void put_bar(void *self, const char *line) {
  terminal *t = self;
  if (t->quiet) return;
  struct winsize size = {.ws_col = 80};
  if (t->is_terminal) ioctl(2, TIOCGWINSZ, &size);
  pthread_mutex_lock(&t->lock);
  snprintf(t->progress, sizeof t->progress, "%s", line);
  if (!*line) clear_bar(t);
  else if (t->is_terminal) {
    fprintf(stderr, "\r\033[K%.*s", size.ws_col > 1 ? size.ws_col - 1 : 79, line);
    t->bar_is_up = true;
  }
  fflush(stderr);
  pthread_mutex_unlock(&t->lock);
}

/* The thread that shows, where there is no terminal, that the command still runs: it prints the
 * progress line if nothing was printed for nearly ten seconds. */
static void *show_life(void *self) {
  terminal *t = self;
  for (;;) {
    sleep(1);
    pthread_mutex_lock(&t->lock);
    if (*t->progress && seconds_now() - t->shown >= 9) {
      fprintf(stderr, "%s\n", t->progress);
      t->shown = seconds_now();
    }
    pthread_mutex_unlock(&t->lock);
  }
  return NULL;
}

/* Without this thread, only the signs of life are missing. The thread takes no signals. */
static void start_showing_life(terminal *t) {
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

/* Reads a line from a pipe or a file. Returns NULL at its end, and soon after SIGTERM or SIGHUP. A
 * read with poll sees every signal, also one that another thread received. */
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
  __atomic_store_n(&stop_asked, 0, __ATOMIC_RELAXED); /* the signal only ended an answer */
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

/* Reads standard input as a prompt. A terminal is read only if the user asked for it. A signal ends
 * the program meanwhile, because there is nothing to save. */
static char *read_input(void *self, bool asked, size_t most, size_t *bytes) {
  size_t capacity = 1 << 12, got = 1;
  char *text = NULL;
  struct sigaction kept[3], plain = {.sa_handler = SIG_DFL};
  put_bar(self, "");
  *bytes = 0;
  if (!asked && isatty(STDIN_FILENO)) return NULL;
  sigaction(SIGINT, &plain, &kept[0]);
  sigaction(SIGTERM, &plain, &kept[1]);
  sigaction(SIGHUP, NULL, &kept[2]);
  if (kept[2].sa_handler != SIG_IGN) sigaction(SIGHUP, &plain, NULL);
  while (got && *bytes <= most) {
    char *grown = realloc(text, 2 * capacity + 1);
    if (!grown) break;
    text = grown;
    capacity *= 2;
    got = fread(text + *bytes, 1, capacity - *bytes, stdin);
    *bytes += got;
    text[*bytes] = 0;
  }
  sigaction(SIGINT, &kept[0], NULL);
  sigaction(SIGTERM, &kept[1], NULL);
  sigaction(SIGHUP, &kept[2], NULL);
  return text;
}

static int say_error(const rafter_error *error, bool verbose) {
  fprintf(stderr, "rafter: %s\n", error->message);
  if (*error->hint) fprintf(stderr, "hint: %s\n", error->hint);
  if (verbose && *error->source) fprintf(stderr, "source: %s\n", error->source);
  return (int)error->status;
}

static bool option_is_on(const rafter_job *job, const char *name) {
  char *value = NULL;
  bool on = rafter_job_get(job, name, &value, NULL) == RAFTER_OK && value && !strcmp(value, "true");
  rafter_text_free(value);
  return on;
}

/* `rafter help [COMMAND] [--all | --man | --completion bash]`, `--help` and `--help-all`. */
static int help(int argc, char **argv) {
  const char *command = NULL;
  char form[32] = "text";
  for (int i = 0; i < argc; i++) {
    if (!strcmp(argv[i], "--man")) snprintf(form, sizeof form, "man");
    else if (!strcmp(argv[i], "--all") || !strcmp(argv[i], "--help-all")) snprintf(form, sizeof form, "all");
    else if (!strcmp(argv[i], "--completion")) {
      snprintf(form, sizeof form, "completion");
      i++;
    } else if (strcmp(argv[i], "--help") && !command) command = argv[i];
  }
  struct winsize size = {.ws_col = 100};
  bool lines = !strcmp(form, "text") || !strcmp(form, "all");
  if (lines && isatty(1) && !ioctl(1, TIOCGWINSZ, &size) && size.ws_col > 0 && size.ws_col < 100)
    snprintf(form + strlen(form), 8, ":%d", size.ws_col);
  rafter_error error = {0};
  char *text = NULL;
  if (rafter_help(command, form, &text, &error) != RAFTER_OK) return say_error(&error, false);
  fputs(text, stdout);
  rafter_text_free(text);
  return 0;
}

static bool is_help(const char *word) {
  return !strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "--help-all");
}

/* OpenMP's threads spin for milliseconds while they wait, which slows a shared machine. OpenMP
 * reads its settings before main. So the program sets a short spin time and restarts itself. */
static void wait_politely(char **argv) {
  if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME")) return;
  setenv("GOMP_SPINCOUNT", "20000", 1); /* about 50 us of spinning, longer than the time between two ops */
  setenv("KMP_BLOCKTIME", "1", 1);      /* milliseconds */
  execv("/proc/self/exe", argv);        /* if the restart fails, continue without it */
}

/* True if the command has nothing to save when a signal comes. */
static bool may_just_end(const char *command) {
  static const char *const names[] = {"plan", "roofline", "inspect", "doctor"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(names[i], command)) return true;
  return false;
}

/* True if the reader closed the pipe, as `| head` does. This is not a failure. */
static bool reader_is_gone(void) {
  struct pollfd out = {.fd = STDOUT_FILENO};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

/* Keeps freed memory in the heap, mostly in huge pages. Planning makes and frees dozens of plans.
 * The kernel would have to clear every page that was given back. */
static void keep_memory(void) {
#ifdef M_ARENA_MAX
  enum { HEAP = 31 << 20, SMALL = 6 << 20, LARGE = 2 << 20 };
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  char *heap = malloc(HEAP), *from = heap ? heap + SMALL + (LARGE - ((uintptr_t)heap + SMALL) % LARGE) : NULL;
  if (heap) madvise(from, (size_t)(heap + HEAP - from) / LARGE * LARGE, MADV_HUGEPAGE);
  free(heap); /* the heap keeps these pages; no program has written them yet */
#endif
}

int main(int argc, char **argv) {
  prctl(PR_SET_NAME, "rafter"); /* after the restart, the kernel calls the process "exe" */
  if (argc > 1 && may_just_end(argv[1])) keep_memory();
  if (argc < 2 || !may_just_end(argv[1])) wait_politely(argv);
  if (argc < 2 || is_help(argv[1]) || !strcmp(argv[1], "help"))
    return help(argc > 2 ? argc - 2 : 0, argv + 2);
  if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V") || !strcmp(argv[1], "version")) {
    puts(rafter_version());
    return 0;
  }
  rafter_error error = {0};
  rafter_job *job = NULL;
  if (rafter_job_new(argv[1], &job, &error) != RAFTER_OK) return say_error(&error, false);
  for (int i = 2; i < argc; i++)
    if (is_help(argv[i])) {
      rafter_job_free(job);
      char *only[] = {argv[1], argv[i]};
      return help(strcmp(argv[i], "-h") ? 2 : 1, only);
    }
  int status = (int)rafter_job_parse(job, argc - 2, argv + 2, &error);
  bool verbose = option_is_on(job, "verbose");
  if (status == RAFTER_OK) {
    if (!may_just_end(argv[1])) catch_signals();
    /* If SIGPIPE and SIGXFSZ are ignored, write() fails, and its error names the file. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    static terminal t; /* static: show_life may outlive main */
    t = (terminal){.json = option_is_on(job, "json"),
                   .quiet = option_is_on(job, "quiet"),
                   .is_terminal = isatty(2),
                   .lock = PTHREAD_MUTEX_INITIALIZER};
    t.people = t.json ? stderr : stdout;
    if (!t.is_terminal && !t.quiet && !may_just_end(argv[1])) start_showing_life(&t);
    t.only_results = !strcmp(argv[1], "train") || !strcmp(argv[1], "calibrate");
    rafter_sink sink = {.size = sizeof sink,
                        .history = true,
                        .self = &t,
                        .text = put_text,
                        .json = put_json,
                        .bar = put_bar,
                        .note = put_note,
                        .stop = &stop_asked,
                        .line = ask_line,
                        .input = read_input};
    status = (int)rafter_run(job, &sink, &error);
    put_bar(&t, "");
    free(t.input);
    if (fflush(stdout) || ferror(stdout)) { /* with fflush, a full disk is reported as an error */
      if (status == RAFTER_OK && !reader_is_gone()) {
        snprintf(error.message, sizeof error.message, "cannot write the output");
        snprintf(error.hint, sizeof error.hint, "free some space or choose another place");
        status = RAFTER_FAILED;
      }
    }
  }
  if (status != RAFTER_OK) {
    if (!*error.message && status == RAFTER_INTERRUPTED)
      snprintf(error.message, sizeof error.message, "stopped by a signal; the work was saved");
    error.status = (rafter_status)status;
    say_error(&error, verbose);
  }
  rafter_job_free(job);
  return status;
}
