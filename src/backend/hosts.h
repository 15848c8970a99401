/* hosts.h - the hosts of a run: the number of processes, the number of this process, and the
 * address of host 0. The launcher of the processes (mpirun, srun, JobSet) sets environment
 * variables with these facts. All knowledge about launchers is in hosts.c. */
#ifndef RF_HOSTS_H
#define RF_HOSTS_H

#include "base/base.h"

enum { RF_HOSTS_MOST = 4096, RF_HOSTS_PORT = 7643 };

typedef struct rf_hosts {
  int host, hosts;   /* hosts <= 1: this process alone */
  char address[256]; /* of host 0; "": one host */
  int port;
} rf_hosts;

/* Options of the user. An option takes precedence over the launcher. */
typedef struct rf_hosts_wish {
  int hosts;               /* number of hosts; 0: the launcher's number */
  int host;                /* number of this host; -1: the launcher's number */
  const char *coordinator; /* address of host 0: "NAME", "NAME:PORT" or "[IPv6]:PORT"; NULL: not given */
} rf_hosts_wish;

/* Returns RAFTER_INVALID if a variable or an option is malformed or missing, or if two values
 * contradict each other. */
rf_status rf_hosts_find(const rf_hosts_wish *wish, rf_hosts *hosts, rf_error *error);

#endif
