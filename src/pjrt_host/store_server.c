/* store_server.c - see store.h: one thread serves all connections. Bytes that are not a frame
 * end their connection and change nothing else. */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "pjrt_host/store.h"

typedef struct connection {
  int socket;    /* -1: the connection is closed, and the end of this round removes it */
  int host;      /* -1: a stranger */
  int64_t until; /* of a stranger */
  char *in, *out;
  size_t in_bytes, in_room, out_at, out_bytes, out_room;
} connection;

typedef struct waiting {
  connection *of;
  store_head head;
  int64_t until; /* 0: no limit */
  char *key;
} waiting;

typedef enum { ABSENT, JOINED, LEFT, LOST } presence;

struct store_server {
  pthread_t thread;
  pthread_mutex_t lock; /* of `present` and `ending` */
  pthread_cond_t changed;
  int listener, wake, port, hosts, joined, present;
  bool ending, late;
  int64_t join_until;
  int join_ms;
  char secret[STORE_SECRET_BYTES];
  size_t secret_bytes;
  store_table *table;
  presence *host; /* (hosts) */
  connection **all;
  int count, room;
  waiting *wait;
  int waits, wait_room;
};

static void *grown(void *memory, size_t bytes) {
  memory = realloc(memory, bytes);
  if (!memory) abort(); /* the client of rafter-pjrt reports the abort */
  return memory;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void host_gone(store_server *s, int host, presence how);

static void drop(store_server *s, connection *c) {
  if (c->socket < 0) return;
  close(c->socket);
  c->socket = -1;
  int host = c->host;
  c->host = -1;
  if (host >= 0 && s->host[host] == JOINED) host_gone(s, host, LOST);
}

/* Sends as many bytes as the socket accepts. */
static void flush(store_server *s, connection *c) {
  while (c->socket >= 0 && c->out_at < c->out_bytes) {
    ssize_t sent = send(c->socket, c->out + c->out_at, c->out_bytes - c->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) {
      drop(s, c);
      return;
    }
    c->out_at += (size_t)sent;
  }
  c->out_at = c->out_bytes = 0;
}

static void answer(store_server *s, connection *c, store_head head, const void *value, size_t bytes) {
  size_t need = c->out_bytes + sizeof head + bytes;
  if (c->socket < 0) return;
  if (need - c->out_at > STORE_BACKLOG_BYTES) {
    drop(s, c);
    return;
  }
  if (need > c->out_room) c->out = grown(c->out, c->out_room = 2 * need);
  head.magic = STORE_MAGIC;
  head.key_bytes = 0;
  head.value_bytes = (uint32_t)bytes;
  memcpy(c->out + c->out_bytes, &head, sizeof head);
  if (bytes) memcpy(c->out + c->out_bytes + sizeof head, value, bytes);
  c->out_bytes = need;
  flush(s, c);
}

/* Sends the reason, and ends the connection. */
static void refuse(store_server *s, connection *c, const char *why) {
  answer(s, c, (store_head){.kind = STORE_REFUSED}, why, strlen(why));
  drop(s, c);
}

static void tell_all(store_server *s, store_head head) {
  for (int i = 0; i < s->count; i++)
    if (s->all[i]->host >= 0) answer(s, s->all[i], head, NULL, 0);
}

static void count_present(store_server *s, int change) {
  pthread_mutex_lock(&s->lock);
  s->present += change;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

static void host_gone(store_server *s, int host, presence how) {
  s->host[host] = how;
  count_present(s, -1);
  tell_all(s, (store_head){.kind = STORE_ENDED, .host = (uint32_t)host, .number = how == LOST});
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool same_secret(const store_server *s, const store_frame *frame) {
  unsigned char differs = frame->head.key_bytes != s->secret_bytes;
  for (size_t i = 0; i < frame->head.key_bytes && i < s->secret_bytes; i++)
    differs |= (unsigned char)(frame->key[i] ^ s->secret[i]);
  return !differs;
}

static void serve_hello(store_server *s, connection *c, const store_frame *frame) {
  char why[160];
  int host = (int)frame->head.host;
  if (!same_secret(s, frame)) {
    refuse(s, c, "host 0 runs another job (RAFTER_HOSTS_KEY: expected the same text on every host)");
    return;
  }
  if (frame->head.number != s->hosts || host < 0 || host >= s->hosts) {
    snprintf(why, sizeof why, "host 0 expects %d hosts, and host %d expects %d", s->hosts, host,
             frame->head.number);
    refuse(s, c, why);
    return;
  }
  if (s->host[host] != ABSENT) {
    snprintf(why, sizeof why, "host %d has joined already, so two processes have this number", host);
    refuse(s, c, why);
    return;
  }
  c->host = host;
  s->host[host] = JOINED;
  count_present(s, 1);
  for (int h = 0; h < s->hosts; h++)
    if (s->host[h] == LOST || s->host[h] == LEFT)
      answer(s, c, (store_head){.kind = STORE_ENDED, .host = (uint32_t)h, .number = s->host[h] == LOST}, NULL,
             0);
  if (++s->joined == s->hosts) tell_all(s, (store_head){.kind = STORE_READY});
}

/* Answers a request for a key that exists. */
static void give(store_server *s, connection *c, store_head head, const char *key, size_t key_bytes) {
  const char *value = NULL;
  size_t bytes = 0;
  bool takes = head.kind == STORE_TAKE;
  store_table_find(s->table, key, key_bytes, &value, &bytes);
  head.kind = STORE_DONE;
  answer(s, c, head, value, bytes);
  if (takes) store_table_remove(s->table, key, key_bytes);
}

static void end_wait(store_server *s, int i) {
  free(s->wait[i].key);
  memmove(s->wait + i, s->wait + i + 1, (size_t)(--s->waits - i) * sizeof *s->wait);
}

/* Answers the requests that wait for a key, in the order of their arrival. */
static void serve_waiting(store_server *s, const char *key, size_t key_bytes) {
  const char *value;
  size_t bytes;
  for (int i = 0; i < s->waits;) {
    waiting *w = &s->wait[i];
    if (w->head.key_bytes != key_bytes || memcmp(w->key, key, key_bytes)) {
      i++;
      continue;
    }
    if (!store_table_find(s->table, key, key_bytes, &value, &bytes)) return;
    if (w->of->socket >= 0) give(s, w->of, w->head, key, key_bytes);
    end_wait(s, i);
  }
}

static void serve_put(store_server *s, connection *c, const store_frame *frame) {
  store_head head = frame->head;
  const char *full = store_table_put(s->table, frame);
  head.kind = full ? STORE_REFUSED : STORE_DONE;
  answer(s, c, head, full, full ? strlen(full) : 0);
  if (!full) serve_waiting(s, frame->key, frame->head.key_bytes);
}

static void serve_get(store_server *s, connection *c, const store_frame *frame) {
  store_head head = frame->head;
  const char *value;
  size_t bytes;
  if (store_table_find(s->table, frame->key, head.key_bytes, &value, &bytes)) {
    give(s, c, head, frame->key, head.key_bytes);
    return;
  }
  if (head.kind == STORE_TRY || head.number == 0) {
    head.kind = head.kind == STORE_TRY ? STORE_MISSING : STORE_LATE;
    answer(s, c, head, NULL, 0);
    return;
  }
  if (s->waits == STORE_WAITING) {
    refuse(s, c, "too many requests wait for a key");
    return;
  }
  if (s->waits == s->wait_room) {
    s->wait_room = s->wait_room ? 2 * s->wait_room : 64;
    s->wait = grown(s->wait, (size_t)s->wait_room * sizeof *s->wait);
  }
  waiting *w = &s->wait[s->waits++];
  *w = (waiting){.of = c, .head = head, .until = head.number < 0 ? 0 : store_now_ms() + head.number};
  w->key = grown(NULL, head.key_bytes + 1);
  memcpy(w->key, frame->key, head.key_bytes);
}

static void serve_frame(store_server *s, connection *c, const store_frame *frame) {
  switch (frame->head.kind) {
  case STORE_HELLO:
    if (c->host < 0) serve_hello(s, c, frame);
    else refuse(s, c, "a host joins twice on one connection");
    break;
  case STORE_PUT: serve_put(s, c, frame); break;
  case STORE_GET:
  case STORE_TAKE:
  case STORE_TRY: serve_get(s, c, frame); break;
  case STORE_BYE:
    if (s->host[c->host] == JOINED) host_gone(s, c->host, LEFT);
    break;
  default: refuse(s, c, "not a request");
  }
}

/* Serves the frames that have arrived. */
static void serve_input(store_server *s, connection *c) {
  size_t at = 0;
  while (c->socket >= 0) {
    store_frame frame;
    int64_t used = store_parse(c->in + at, c->in_bytes - at, c->host < 0, &frame);
    if (used < 0) drop(s, c);
    if (used <= 0) break;
    serve_frame(s, c, &frame);
    at += (size_t)used;
  }
  if (at) memmove(c->in, c->in + at, c->in_bytes -= at);
}

static void read_some(store_server *s, connection *c) {
  enum { PIECE = 1 << 16 };
  if (c->in_bytes + PIECE > c->in_room) c->in = grown(c->in, c->in_room = 2 * c->in_room + PIECE);
  ssize_t got = recv(c->socket, c->in + c->in_bytes, PIECE, MSG_DONTWAIT);
  if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return;
  if (got <= 0) {
    drop(s, c);
    return;
  }
  c->in_bytes += (size_t)got;
  serve_input(s, c);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void accept_one(store_server *s) {
  int socket = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), strangers = 0;
  if (socket < 0) return;
  for (int i = 0; i < s->count; i++) strangers += s->all[i]->host < 0;
  if (strangers >= STORE_STRANGERS) {
    close(socket);
    return;
  }
  store_watch_peer(socket);
  if (s->count == s->room) {
    s->room = s->room ? 2 * s->room : 16;
    s->all = grown(s->all, (size_t)s->room * sizeof *s->all);
  }
  connection *c = grown(NULL, sizeof *c);
  *c = (connection){.socket = socket, .host = -1, .until = store_now_ms() + STORE_STRANGER_MS};
  s->all[s->count++] = c;
}

static void free_connection(store_server *s, connection *c) {
  for (int i = s->waits - 1; i >= 0; i--)
    if (s->wait[i].of == c) end_wait(s, i);
  if (c->socket >= 0) close(c->socket);
  free(c->in);
  free(c->out);
  free(c);
}

static void remove_closed(store_server *s) {
  int kept = 0;
  for (int i = 0; i < s->count; i++) {
    if (s->all[i]->socket >= 0) s->all[kept++] = s->all[i];
    else free_connection(s, s->all[i]);
  }
  s->count = kept;
}

/* Tells every host which hosts did not join in time. */
static void refuse_late(store_server *s) {
  char why[240];
  int missing = 0, used = 0;
  for (int h = 0; h < s->hosts; h++) {
    if (s->host[h] != ABSENT) continue;
    if (missing++ < 8) used += snprintf(why + used, sizeof why - (size_t)used, "%s%d", used ? ", " : "", h);
  }
  char text[320];
  snprintf(text, sizeof text, "%d of %d hosts did not join within %d s: %s%s", missing, s->hosts,
           s->join_ms / 1000, why, missing > 8 ? ", ..." : "");
  s->late = true;
  for (int i = 0; i < s->count; i++)
    if (s->all[i]->host >= 0) answer(s, s->all[i], (store_head){.kind = STORE_REFUSED}, text, strlen(text));
}

/* Ends requests and connections whose time is over. Returns the milliseconds until the next request
 * or connection times out. */
static int serve_time(store_server *s) {
  int64_t now = store_now_ms(), next = now + 60000;
  if (s->joined < s->hosts && !s->late) {
    if (now >= s->join_until) refuse_late(s);
    else if (s->join_until < next) next = s->join_until;
  }
  for (int i = 0; i < s->waits;) {
    waiting *w = &s->wait[i];
    if (w->until && now >= w->until) {
      w->head.kind = STORE_LATE;
      answer(s, w->of, w->head, NULL, 0);
      end_wait(s, i);
      continue;
    }
    if (w->until && w->until < next) next = w->until;
    i++;
  }
  for (int i = 0; i < s->count; i++) {
    connection *c = s->all[i];
    if (c->socket < 0 || c->host >= 0) continue;
    if (now >= c->until) drop(s, c);
    else if (c->until < next) next = c->until;
  }
  return (int)(next - now) + 1;
}

static bool is_ending(store_server *s) {
  pthread_mutex_lock(&s->lock);
  bool ending = s->ending;
  pthread_mutex_unlock(&s->lock);
  return ending;
}

static void *serve(void *self) {
  store_server *s = self;
  struct pollfd *poll_of = NULL;
  while (!is_ending(s)) {
    int ms = serve_time(s);
    remove_closed(s);
    int count = s->count;
    poll_of = grown(poll_of, (size_t)(count + 2) * sizeof *poll_of);
    poll_of[0] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    poll_of[1] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    for (int i = 0; i < count; i++) {
      const connection *c = s->all[i];
      short events = c->out_at < c->out_bytes ? POLLIN | POLLOUT : POLLIN;
      poll_of[i + 2] = (struct pollfd){.fd = c->socket, .events = events};
    }
    if (poll(poll_of, (nfds_t)count + 2, ms) < 0) continue;
    if (poll_of[0].revents) accept_one(s);
    for (int i = 0; i < count; i++) {
      connection *c = s->all[i];
      if (c->socket >= 0 && poll_of[i + 2].revents & POLLOUT) flush(s, c);
      if (c->socket >= 0 && poll_of[i + 2].revents & (POLLIN | POLLHUP | POLLERR)) read_some(s, c);
    }
  }
  free(poll_of);
  return NULL;
}

/* ---- start and end --------------------------------------------------------------------------- */

static bool is_loopback(const struct sockaddr *address) {
  if (address->sa_family == AF_INET)
    return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

/* "localhost" and 127.0.0.1 are loopback. In /etc/hosts, the machine's own name may have a loopback
 * address, although other machines use another address for this machine. So only an address that is
 * written as a loopback address counts as loopback. */
static bool means_loopback(const char *address) {
  return !strcmp(address, "localhost") || !strncmp(address, "127.", 4) || !strcmp(address, "::1");
}

static int listen_on(const struct addrinfo *at, int *failed) {
  int on = 1, off = 0, made = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made >= 0) {
    setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (at->ai_family == AF_INET6) setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind(made, at->ai_addr, at->ai_addrlen) && !listen(made, 128)) return made;
  }
  *failed = errno;
  if (made >= 0) close(made);
  return -1;
}

static int listen_at(const store_place *place, int *port, char *why, size_t size) {
  const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
  bool loopback = means_loopback(place->address);
  struct addrinfo *list = NULL;
  int socket_of = -1, failed = 0;
  int bad = getaddrinfo(loopback ? place->address : NULL, place->port, &hints, &list);
  if (bad) return snprintf(why, size, "port %s: %s", place->port, gai_strerror(bad)), -1;
  /* An IPv6 socket also takes IPv4. */
  for (int turn = 0; turn < 2; turn++)
    for (const struct addrinfo *at = list; at && socket_of < 0; at = at->ai_next)
      if ((at->ai_family == AF_INET6) == (turn == 0) && (!loopback || is_loopback(at->ai_addr)))
        socket_of = listen_on(at, &failed);
  freeaddrinfo(list);
  struct sockaddr_storage bound;
  socklen_t length = sizeof bound;
  if (socket_of < 0 || getsockname(socket_of, (struct sockaddr *)&bound, &length))
    return snprintf(why, size, "host 0 cannot listen at port %s: %s", place->port, strerror(failed)), -1;
  *port = bound.ss_family == AF_INET ? ntohs(((struct sockaddr_in *)&bound)->sin_port)
                                     : ntohs(((struct sockaddr_in6 *)&bound)->sin6_port);
  return socket_of;
}

store_server *store_serve(const store_place *place, char *why, size_t size) {
  int port = 0, listener = listen_at(place, &port, why, size);
  if (listener < 0) return NULL;
  store_server *s = grown(NULL, sizeof *s);
  *s = (store_server){.listener = listener,
                      .wake = eventfd(0, EFD_CLOEXEC),
                      .port = port,
                      .hosts = place->hosts,
                      .join_ms = place->join_ms,
                      .join_until = store_now_ms() + place->join_ms,
                      .table = store_table_new(),
                      .host = calloc((size_t)place->hosts, sizeof *s->host)};
  if (!s->table || !s->host) abort();
  s->secret_bytes = strnlen(place->secret, STORE_SECRET_BYTES);
  memcpy(s->secret, place->secret, s->secret_bytes);
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  if (pthread_create(&s->thread, NULL, serve, s)) abort();
  return s;
}

int store_server_port(const store_server *s) { return s->port; }

void store_server_end(store_server *s, int ms) {
  struct timespec until;
  uint64_t one = 1;
  if (!s) return;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += ms / 1000;
  until.tv_nsec += ms % 1000 * 1000000L;
  if (until.tv_nsec >= 1000000000L) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000L;
  }
  pthread_mutex_lock(&s->lock);
  while (s->present > 0 && !pthread_cond_clockwait(&s->changed, &s->lock, CLOCK_MONOTONIC, &until)) continue;
  s->ending = true;
  pthread_mutex_unlock(&s->lock);
  if (write(s->wake, &one, sizeof one) < 0) abort();
  pthread_join(s->thread, NULL);
  for (int i = 0; i < s->count; i++) free_connection(s, s->all[i]);
  close(s->listener);
  close(s->wake);
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->changed);
  store_table_free(s->table);
  free(s->host);
  free(s->all);
  free(s->wait);
  free(s);
}
