/* watch.c - notices when the client of a waiting call leaves. libmicrohttpd does not check a
 * suspended connection. So a thread waits for the end of the client's stream (EPOLLRDHUP), for
 * errors, and for a peer that no longer answers (TCP keep-alive). */
#define _GNU_SOURCE
#include "serve/call.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

struct rf_watch {
  int epoll;
  pthread_t thread;
};

static rf_call *find(rf_call *list, uint64_t number) {
  while (list && list->number != number) list = list->next;
  return list;
}

static void *run(void *self) {
  rf_server *s = self;
  struct epoll_event event[16];
  for (;;) {
    int count = epoll_wait(s->watch->epoll, event, 16, 200);
    pthread_mutex_lock(&s->lock);
    bool stopping = s->stopping;
    for (int i = 0; i < count; i++) {
      rf_call *c = find(s->active, event[i].data.u64);
      if (!c) c = find(s->inbox, event[i].data.u64);
      if (c && c->connection) rf_call_leave(c);
    }
    pthread_mutex_unlock(&s->lock);
    if (stopping) return NULL;
  }
}

rf_status rf_watch_start(rf_server *s, rf_error *error) {
  struct rf_watch *w = rf_must(calloc(1, sizeof *w));
  s->watch = w;
  w->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (w->epoll >= 0 && !(errno = pthread_create(&w->thread, NULL, run, s))) return RAFTER_OK;
  if (w->epoll >= 0) close(w->epoll);
  free(w);
  s->watch = NULL;
  return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot watch connections (%m)");
}

void rf_watch_stop(rf_server *s) {
  if (!s->watch) return;
  pthread_join(s->watch->thread, NULL);
  close(s->watch->epoll);
  free(s->watch);
  s->watch = NULL;
}

void rf_watch_add(rf_call *c) {
  struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = c->number};
  const int on = 1, idle = 30, interval = 10, probes = 3;
  const int send_bytes = 128 << 10; /* limits the kernel memory that a client can hold by not reading */
  setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
  epoll_ctl(c->server->watch->epoll, EPOLL_CTL_ADD, c->fd, &event);
}

void rf_watch_remove(rf_call *c) { epoll_ctl(c->server->watch->epoll, EPOLL_CTL_DEL, c->fd, NULL); }
