/* signals.c - see signals.h. */
#include "signals.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "rafter.h"
#include "terminal.h"

volatile int stop_asked, end_asked, at_prompt;

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

void catch_signals(void) {
  struct sigaction action = {.sa_handler = ask_stop, .sa_flags = SA_RESTART}, hangup;
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

/* Writes the parts, which end with NULL, to stderr. */
static void put_line(const char *const *parts) {
  for (; *parts; parts++)
    if (write(STDERR_FILENO, *parts, strlen(*parts)) < 0) return;
}

/* Runs on the thread that read the missing bytes, and calls only async-signal-safe functions. */
static void on_fault(int signal_number, siginfo_t *info, void *context) {
  (void)context;
  const char *path = rafter_file_changed(info->si_addr);
  if (!path) { /* for another kind of fault, the instruction runs again and ends the program */
    signal(signal_number, SIG_DFL);
    return;
  }
  char shown[1024];
  copy_printable(path, shown, sizeof shown);
  put_line((const char *[]){isatty(STDERR_FILENO) ? "\r\033[K" : "", "rafter: ", shown,
                            " changed while it was read\nhint: wait until the other program has written "
                            "the file, then run the command again\n",
                            NULL});
  _exit(RAFTER_FAILED);
}

void catch_faults(void) {
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
  sigaction(SIGBUS, &action, NULL);
}

void default_signals(struct sigaction kept[3]) {
  struct sigaction plain = {.sa_handler = SIG_DFL};
  sigaction(SIGINT, &plain, &kept[0]);
  sigaction(SIGTERM, &plain, &kept[1]);
  sigaction(SIGHUP, NULL, &kept[2]);
  if (kept[2].sa_handler != SIG_IGN) sigaction(SIGHUP, &plain, NULL);
}

void restore_signals(const struct sigaction kept[3]) {
  sigaction(SIGINT, &kept[0], NULL);
  sigaction(SIGTERM, &kept[1], NULL);
  sigaction(SIGHUP, &kept[2], NULL);
}
