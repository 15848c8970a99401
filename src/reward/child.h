/* child.h - a process of the user's program, with pipes that never block. */
#ifndef RF_REWARD_CHILD_H
#define RF_REWARD_CHILD_H

#include <sys/types.h>

#include "base/base.h"

typedef struct rf_child {
  pid_t pid;        /* id of the process and of its process group; 0: no process */
  int in, out, err; /* rafter's ends of its stdin, stdout and stderr; -1: closed */
} rf_child;

/* Runs `/bin/sh -c text` in its own process group, without the variables of launchers of MPI.
 * RAFTER_FAILED: no process can be started. */
rf_status rf_child_start(const char *text, rf_child *child, rf_error *error);
/* Closes one of the pipes, which may be closed already. */
void rf_child_close(int *pipe);
/* True if the process ended by itself. The process is not reaped yet. */
bool rf_child_ended(const rf_child *child);
/* Kills the whole process group and reaps the process. `how` gets a text such as "ended with exit
 * status 1". If the process had not ended by itself, `how` is "still runs". Closes its pipes. */
void rf_child_end(rf_child *child, char how[80]);

#endif
