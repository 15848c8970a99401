/* signals.h - handlers of SIGINT, SIGTERM, SIGHUP and SIGBUS. */
#ifndef RF_SIGNALS_H
#define RF_SIGNALS_H

#include <signal.h>

/* Read and written atomically. */
extern volatile int stop_asked; /* a signal asked to end the command, or in chat the current answer */
extern volatile int end_asked;  /* SIGTERM or SIGHUP came; these signals also end a chat */
extern volatile int at_prompt;  /* the user edits a line at the terminal */

/* Installs handlers of SIGINT, SIGTERM and SIGHUP. A program that `nohup` started continues after
 * SIGHUP. */
void catch_signals(void);
/* Installs a handler of SIGBUS. If a model file becomes shorter during reading, the handler prints
 * an error and ends the program. */
void catch_faults(void);
/* Until restore_signals, SIGINT, SIGTERM and SIGHUP end the process at once. */
void default_signals(struct sigaction kept[3]);
void restore_signals(const struct sigaction kept[3]);

#endif
