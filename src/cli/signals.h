/* signals.h - what SIGINT, SIGTERM and SIGHUP ask for. */
#ifndef RF_SIGNALS_H
#define RF_SIGNALS_H

#include <signal.h>

/* Read and written atomically. */
extern volatile int stop_asked; /* a signal came, and the command ends or an answer of chat ends */
extern volatile int end_asked;  /* SIGTERM or SIGHUP came, which also end a chat */
extern volatile int at_prompt;  /* the user edits a line at the terminal */

/* Handles the three signals from now on. A program that `nohup` started continues after SIGHUP. */
void catch_signals(void);
/* Ends the program with an error when a model file becomes shorter while it is read (SIGBUS). */
void catch_faults(void);
/* Until restore_signals, the three signals end the process at once. */
void default_signals(struct sigaction kept[3]);
void restore_signals(const struct sigaction kept[3]);

#endif
