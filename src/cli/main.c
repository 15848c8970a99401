/* main.c - `rafter COMMAND [--option value]`. Only the files of this folder print, exit and handle
 * signals. */
#define _GNU_SOURCE
#include "rafter.h"

#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "signals.h"
#include "terminal.h"

/* If mpirun started several processes, rank 0 prints its error first. Other ranks sleep here. If
 * rank 0 had the same error and ended, mpirun sends the sleeping ranks a signal, and they end
 * silently. */
static bool speaks(const rafter_error *error) {
  enum { SECONDS = 2 };
  int rank = rafter_rank(NULL);
  if (rank == 0) return true;
  if (error->status == RAFTER_INTERRUPTED) return false;
  if (sleep(SECONDS) > 0) _exit((int)error->status); /* exit() would ask mpirun to end the job */
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  fprintf(stderr, "rank %d on %s: ", rank, host);
  return true;
}

static int say_error(const rafter_error *error, bool verbose) {
  if (!speaks(error)) return (int)error->status;
  const char *const lines[][2] = {
      {"rafter", error->message}, {"hint", error->hint}, {"source", verbose ? error->source : ""}};
  for (int i = 0; i < 3; i++) {
    if (i && !*lines[i][1]) continue;
    fprintf(stderr, "%s: ", lines[i][0]);
    put_printable(lines[i][1], stderr);
    fputc('\n', stderr);
  }
  return (int)error->status;
}

/* True if the reader closed the pipe, as `| head` does. A closed pipe is not a failure. */
static bool reader_is_gone(void) {
  struct pollfd out = {.fd = STDOUT_FILENO};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

/* Writes buffered output. Without this call, nobody would notice a full disk. */
static rafter_status finish_output(rafter_error *error) {
  if (!(fflush(stdout) || ferror(stdout)) || reader_is_gone()) return RAFTER_OK;
  snprintf(error->message, sizeof error->message, "cannot write the output");
  snprintf(error->hint, sizeof error->hint, "free some space or choose another place");
  return error->status = RAFTER_FAILED;
}

/* Prints `text` and returns the exit status. */
static int print_all(const char *text) {
  rafter_error error = {0};
  fputs(text, stdout);
  return finish_output(&error) == RAFTER_OK ? 0 : say_error(&error, false);
}

static bool option_is_on(const rafter_job *job, const char *name) {
  char *value = NULL;
  bool on = rafter_job_get(job, name, &value, NULL) == RAFTER_OK && value && !strcmp(value, "true");
  rafter_text_free(value);
  return on;
}

/* `rafter help [COMMAND] [--all | --man | --completion bash|zsh|fish]`, `--help` and
 * `--help-all`. */
static int help(int argc, char **argv) {
  const char *command = NULL;
  char form[32] = "text";
  for (int i = 0; i < argc; i++) {
    if (!strcmp(argv[i], "--man")) snprintf(form, sizeof form, "man");
    else if (!strcmp(argv[i], "--all") || !strcmp(argv[i], "--help-all")) snprintf(form, sizeof form, "all");
    else if (!strcmp(argv[i], "--completion")) {
      snprintf(form, sizeof form, "completion:%.16s", i + 1 < argc ? argv[i + 1] : "bash");
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
  int status = print_all(text);
  rafter_text_free(text);
  return status;
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
  execv("/proc/self/exe", argv);        /* if the restart fails, the program continues */
}

/* Some functions have large buffers on the stack. The limit of the stack (`ulimit -s`) at the start
 * of the process is the stack size of each thread. So the program raises a small limit and restarts
 * itself. Returns false, with an error, if the limit cannot be raised far enough. */
static bool enough_stack(char **argv, rafter_error *error) {
  enum { WANTED = 8 << 20, NEEDED = 512 << 10 };
  struct rlimit stack;
  if (getrlimit(RLIMIT_STACK, &stack) || stack.rlim_cur >= WANTED) return true;
  rlim_t raised = stack.rlim_max < WANTED ? stack.rlim_max : WANTED;
  if (raised < NEEDED) {
    snprintf(error->message, sizeof error->message,
             "the stack is too small (ulimit -s: expected at least %d, got %llu)", NEEDED >> 10,
             (unsigned long long)(raised >> 10));
    snprintf(error->hint, sizeof error->hint, "raise the limit: ulimit -s %d", WANTED >> 10);
    error->status = RAFTER_FAILED;
    return false;
  }
  if (raised == stack.rlim_cur) return true;
  stack.rlim_cur = raised;
  if (!setrlimit(RLIMIT_STACK, &stack)) execv("/proc/self/exe", argv); /* on failure, continue */
  return true;
}

/* True if the command has nothing to save when a signal comes. */
static bool may_just_end(const char *command) {
  static const char *const names[] = {"plan", "roofline", "inspect", "models", "machines", "doctor"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(names[i], command)) return true;
  return false;
}

/* Keeps freed memory in the heap, mostly in huge pages. Planning makes and frees dozens of plans.
 * If the heap gave pages back, the kernel would clear each page again before its next use. */
static void keep_memory(void) {
#ifdef M_ARENA_MAX
  enum { HEAP = 31 << 20, SMALL = 6 << 20, LARGE = 2 << 20 };
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  char *heap = malloc(HEAP), *from = heap ? heap + SMALL + (LARGE - ((uintptr_t)heap + SMALL) % LARGE) : NULL;
  if (heap) madvise(from, (size_t)(heap + HEAP - from) / LARGE * LARGE, MADV_HUGEPAGE);
  free(heap); /* the heap keeps these pages, which were never written */
#endif
}

int main(int argc, char **argv) {
  rafter_error error = {0};
  prctl(PR_SET_NAME, "rafter"); /* after the restart, the kernel calls the process "exe" */
  if (!enough_stack(argv, &error)) return say_error(&error, false);
  if (argc > 1 && may_just_end(argv[1])) keep_memory();
  if (argc < 2 || !may_just_end(argv[1])) wait_politely(argv);
  if (argc < 2 || is_help(argv[1]) || !strcmp(argv[1], "help"))
    return help(argc > 2 ? argc - 2 : 0, argv + 2);
  if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V") || !strcmp(argv[1], "version")) {
    char line[256];
    snprintf(line, sizeof line, "%s\n", rafter_version());
    return print_all(line);
  }
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
    catch_faults();
    if (!may_just_end(argv[1])) catch_signals();
    /* If SIGPIPE and SIGXFSZ are ignored, write() fails, and its error names the file. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    static terminal t; /* static, because the thread show_life may outlive main */
    t = (terminal){.json = option_is_on(job, "json"),
                   .quiet = option_is_on(job, "quiet") || rafter_rank(job) > 0,
                   .is_terminal = isatty(2),
                   .lock = PTHREAD_MUTEX_INITIALIZER};
    t.people = t.json ? stderr : stdout;
    if (!t.is_terminal && !t.quiet && !may_just_end(argv[1])) start_showing_life(&t);
    t.answers = !strcmp(argv[1], "generate") || !strcmp(argv[1], "chat") || !strcmp(argv[1], "tokenize");
    t.only_results = !strcmp(argv[1], "train") || !strcmp(argv[1], "calibrate");
    rafter_sink sink = terminal_sink(&t);
    status = (int)rafter_run(job, &sink, &error);
    put_bar(&t, "");
    free(t.input);
    if (status == RAFTER_OK) status = (int)finish_output(&error);
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
