/* signals.c - see signals.h. */
#include "signals.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

#include "rafter.h"

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
