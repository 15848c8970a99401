/* main.c - rafter-pjrt PLUGIN: loads a PJRT plugin for a client. The client in src/backend/xla
 * starts this program. If the plugin calls abort(), only this process ends. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pjrt_host/host.h"

/* Ends this process when the client has ended, even during a compilation. */
static void *watch_client(void *unused) {
  (void)unused;
  struct pollfd socket = {.fd = RF_WIRE_SOCKET, .events = POLLRDHUP};
  while (poll(&socket, 1, -1) < 0 || !(socket.revents & (POLLRDHUP | POLLHUP | POLLERR))) continue;
  _exit(0);
}

int main(int argc, char **argv) {
  int type = 0;
  socklen_t size = sizeof type;
  if (argc != 2 || getsockopt(RF_WIRE_SOCKET, SOL_SOCKET, SO_TYPE, &type, &size)) {
    fputs("rafter-pjrt: this program is a part of rafter, which starts it (expected a socket at descriptor "
          "3)\n",
          stderr);
    return 2;
  }
  /* Closes files that the client has open without close-on-exec. */
  syscall(SYS_close_range, RF_WIRE_SOCKET + 1, ~0u, 0);
  /* Ignores these signals. The terminal also sends these signals to the client, and the client ends
   * this process. */
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  pthread_t watcher;
  if (!pthread_create(&watcher, NULL, watch_client, NULL)) pthread_detach(watcher);
  static host h;
  host_serve(&h, RF_WIRE_SOCKET, argv[1]);
  _exit(0); /* this exit calls no destructors, because destructors of plugins may wait for threads */
}
