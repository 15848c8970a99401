/* terminal.h - prints the output of a command, and reads the lines that a user types. */
#ifndef RF_TERMINAL_H
#define RF_TERMINAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include "rafter.h"

typedef struct terminal {
  bool only_results; /* --quiet also hides text output (for train and calibrate) */
  FILE *people;      /* stream for text: stdout, or stderr if stdout has JSON */
  bool json, bar_is_up, quiet, is_terminal;
  bool answers;         /* text is data, such as a model's answer, and is printed unchanged */
  pthread_mutex_t lock; /* guards output, `progress` and `shown`, which the thread show_life uses */
  char progress[256];   /* last progress line; "": none */
  time_t shown;         /* time of the last output, in seconds */
  char *input;          /* bytes that read_line has read, but not returned */
  size_t used, room;    /* bytes of `input` in use, and allocated */
  bool at_end;          /* read_line has seen the end of the input */
} terminal;

/* The sink of a command that prints to `terminal`. */
rafter_sink terminal_sink(terminal *t);
/* Starts a thread that prints the progress line when nothing was printed for nearly ten seconds. If
 * the thread cannot start, the command runs without these lines. */
void start_showing_life(terminal *t);
/* Shows `line` as the progress line; "" clears the progress line. `self` is a terminal. */
void put_bar(void *self, const char *line);
/* Prints text that may come from a file. A terminal obeys escape sequences, so each control
 * character is printed as '?'. */
void put_printable(const char *text, FILE *file);
/* Copies `text` to `to` with '?' for each control character, cut to `size` bytes.
 * Async-signal-safe. */
void copy_printable(const char *text, char *to, size_t size);

#endif
