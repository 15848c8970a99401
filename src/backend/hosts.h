/* hosts.h - the hosts of a run: how many processes there are, which of them this is, and where host
 * 0 is. The launcher of the processes (mpirun, srun, JobSet) says so in variables of the
 * environment. All knowledge about launchers is in hosts.c. */
#ifndef RF_HOSTS_H
#define RF_HOSTS_H

#include "base/base.h"

enum { RF_HOSTS_MOST = 4096, RF_HOSTS_PORT = 7643 };

typedef struct rf_hosts {
  int host, hosts;   /* hosts <= 1: this process alone */
  char address[256]; /* of host 0; "": one host */
  int port;
} rf_hosts;

/* Options of the user. They take precedence over the launcher. */
typedef struct rf_hosts_wish {
  int hosts;               /* 0: as many as the launcher says */
  int host;                /* -1: the number that the launcher gives */
  const char *coordinator; /* "NAME", "NAME:PORT" or "[IPv6]:PORT" of host 0; NULL: not given */
} rf_hosts_wish;

/* RAFTER_INVALID: a variable or a wish is malformed, they contradict each other, or one is
 * missing. */
rf_status rf_hosts_find(const rf_hosts_wish *wish, rf_hosts *hosts, rf_error *error);

#endif
