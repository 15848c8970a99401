/* child.h - a process of the user's program, with pipes that never block. */
#ifndef RF_REWARD_CHILD_H
#define RF_REWARD_CHILD_H

#include <sys/types.h>

#include "base/base.h"

typedef struct rf_child {
  pid_t pid;        /* also the process group; 0: none */
  int in, out, err; /* our ends of its stdin, stdout, stderr; -1: closed */
} rf_child;

/* Runs `/bin/sh -c text` in its own process group. RAFTER_FAILED: no process can be started. */
rf_status rf_child_start(const char *text, rf_child *child, rf_error *error);
/* Closes one of the pipes, which may be closed already. */
void rf_child_close(int *pipe);
/* True if the process ended by itself. It is not reaped yet. */
bool rf_child_ended(const rf_child *child);
/* Kills the whole process group and reaps the process. `how` gets "ended with exit status 1". If
 * the process has not ended by itself, `how` is "still runs". Closes its pipes. */
void rf_child_end(rf_child *child, char how[80]);

#endif
