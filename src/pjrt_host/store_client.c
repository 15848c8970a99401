/* store_client.c - see store.h: requests of one host. A thread reads the answers, so that several
 * threads can wait for keys at the same time. */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "pjrt_host/store.h"

/* A request that waits for its answer. */
typedef struct request {
  struct request *next;
  uint32_t id;
  bool answered;
  store_kind kind; /* of the answer */
  char *value;
  size_t bytes;
} request;

struct store_client {
  int socket;
  pthread_t reader;
  pthread_mutex_t lock, /* of all fields below */
      writing;          /* lock of the socket, so that frames are written whole */
  pthread_cond_t changed;
  request *open;
  uint32_t next_id;
  bool ready, gone, leaving;
  char why[256]; /* reason why the server refused this host; "": not refused */
  store_on_end ended;
  void *self;
};

/* ---- connecting ------------------------------------------------------------------------------ */

static int connect_to(const struct addrinfo *at, int64_t until) {
  enum { LONGEST_MS = 5000 };
  int made = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), failed = 0;
  socklen_t size = sizeof failed;
  if (made < 0) return -1;
  int64_t left = until - store_now_ms();
  struct pollfd wait = {.fd = made, .events = POLLOUT};
  bool connected = !connect(made, at->ai_addr, at->ai_addrlen);
  if (!connected && errno == EINPROGRESS && left > 0 &&
      poll(&wait, 1, left < LONGEST_MS ? (int)left : LONGEST_MS) == 1)
    connected = !getsockopt(made, SOL_SOCKET, SO_ERROR, &failed, &size) && !failed;
  else if (!connected && errno == EINPROGRESS) failed = ETIMEDOUT;
  if (connected) return made;
  if (!failed) failed = errno;
  close(made);
  errno = failed;
  return -1;
}

/* Tries again until host 0 listens, because the hosts start at different times. */
static int connect_until(const store_place *place, int64_t until, char *why, size_t size) {
  const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  const struct timespec pause = {.tv_nsec = 100000000};
  do {
    struct addrinfo *list = NULL;
    int bad = getaddrinfo(place->address, place->port, &hints, &list), made = -1;
    for (const struct addrinfo *at = list; at && made < 0; at = at->ai_next) made = connect_to(at, until);
    const char *reason = bad ? gai_strerror(bad) : strerror(errno);
    if (list) freeaddrinfo(list);
    if (made >= 0) return made;
    snprintf(why, size, "cannot reach host 0 at %s, port %s, within %d s (%s)", place->address, place->port,
             place->join_ms / 1000, reason);
    nanosleep(&pause, NULL);
  } while (store_now_ms() < until);
  return -1;
}

/* ---- the reader ------------------------------------------------------------------------------ */

static bool read_all(int socket, char *to, size_t bytes) {
  while (bytes) {
    ssize_t got = recv(socket, to, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      struct pollfd wait = {.fd = socket, .events = POLLIN};
      poll(&wait, 1, -1);
      continue;
    }
    if (got <= 0) return false;
    to += got;
    bytes -= (size_t)got;
  }
  return true;
}

static void give(store_client *c, const store_head *head, char *value) {
  request *r = c->open;
  while (r && r->id != head->id) r = r->next;
  if (!r || r->answered) {
    free(value);
    return;
  }
  r->answered = true;
  r->kind = (store_kind)head->kind;
  r->value = value;
  r->bytes = head->value_bytes;
}

/* Takes one frame from the server. Returns false if no frame comes. */
static bool take_frame(store_client *c) {
  store_head head;
  if (!read_all(c->socket, (char *)&head, sizeof head)) return false;
  if (head.magic != STORE_MAGIC || head.kind >= STORE_KINDS || head.key_bytes ||
      head.value_bytes > STORE_VALUE_BYTES)
    return false;
  char *value = malloc((size_t)head.value_bytes + 1);
  if (!value) abort(); /* the client of rafter-pjrt reports the abort */
  value[head.value_bytes] = 0;
  if (!read_all(c->socket, value, head.value_bytes)) {
    free(value);
    return false;
  }
  if (head.kind == STORE_ENDED) {
    free(value);
    pthread_mutex_lock(&c->lock);
    bool refused = *c->why; /* the first reason counts */
    pthread_mutex_unlock(&c->lock);
    if (!refused) c->ended(c->self, (int)head.host, head.number != 0);
    return true;
  }
  pthread_mutex_lock(&c->lock);
  if (head.kind == STORE_READY) c->ready = true;
  if (head.kind == STORE_REFUSED && !head.id) snprintf(c->why, sizeof c->why, "%.250s", value);
  if (head.kind == STORE_READY || !head.id) free(value);
  else give(c, &head, value);
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  return true;
}

static void *read_answers(void *self) {
  store_client *c = self;
  while (take_frame(c)) continue;
  pthread_mutex_lock(&c->lock);
  bool expected = c->leaving || *c->why;
  pthread_mutex_unlock(&c->lock);
  /* this call may end the process before the waiting calls return */
  if (!expected) c->ended(c->self, 0, true);
  pthread_mutex_lock(&c->lock);
  c->gone = true;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  return NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool send_all(int socket, const char *data, size_t bytes) {
  while (bytes) {
    ssize_t sent = send(socket, data, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      struct pollfd wait = {.fd = socket, .events = POLLOUT};
      poll(&wait, 1, -1);
      continue;
    }
    if (sent < 0) return false;
    data += sent;
    bytes -= (size_t)sent;
  }
  return true;
}

static bool send_frame(store_client *c, store_head head, const void *key, const void *value) {
  head.magic = STORE_MAGIC;
  pthread_mutex_lock(&c->writing);
  bool sent = send_all(c->socket, (const char *)&head, sizeof head) &&
              send_all(c->socket, key, head.key_bytes) && send_all(c->socket, value, head.value_bytes);
  pthread_mutex_unlock(&c->writing);
  return sent;
}

/* Sends a request and waits for its answer. Returns false if the server is gone. */
static bool ask(store_client *c, store_head head, const void *key, const void *value, request *r) {
  pthread_mutex_lock(&c->lock);
  *r = (request){.next = c->open, .id = ++c->next_id ? c->next_id : ++c->next_id};
  head.id = r->id;
  c->open = r;
  pthread_mutex_unlock(&c->lock);
  /* the reader notes the end of the connection, and reports it before this call returns */
  if (!send_frame(c, head, key, value)) shutdown(c->socket, SHUT_RDWR);
  pthread_mutex_lock(&c->lock);
  while (!r->answered && !c->gone) pthread_cond_wait(&c->changed, &c->lock);
  request **at = &c->open;
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  pthread_mutex_unlock(&c->lock);
  return r->answered;
}

store_result store_put(store_client *c, const char *key, size_t key_bytes, const void *value,
                       size_t value_bytes, char *why) {
  request r;
  if (key_bytes > STORE_KEY_BYTES || value_bytes > STORE_VALUE_BYTES) {
    snprintf(why, 256, "a key or a value is too long (%zu and %zu bytes, expected at most %d and %d)",
             key_bytes, value_bytes, STORE_KEY_BYTES, STORE_VALUE_BYTES);
    return STORE_BAD;
  }
  const store_head head = {
      .kind = STORE_PUT, .key_bytes = (uint32_t)key_bytes, .value_bytes = (uint32_t)value_bytes};
  if (!ask(c, head, key, value, &r)) return STORE_GONE;
  if (r.kind == STORE_REFUSED) snprintf(why, 256, "%.250s", r.value);
  free(r.value);
  return r.kind == STORE_DONE ? STORE_GOOD : STORE_BAD;
}

store_result store_get(store_client *c, store_kind kind, const char *key, size_t key_bytes, int timeout_ms,
                       char **value, size_t *value_bytes) {
  request r;
  *value = NULL;
  *value_bytes = 0;
  if (key_bytes > STORE_KEY_BYTES) return STORE_BAD;
  const store_head head = {.kind = kind, .key_bytes = (uint32_t)key_bytes, .number = timeout_ms};
  if (!ask(c, head, key, NULL, &r)) return STORE_GONE;
  if (r.kind == STORE_DONE) {
    *value = r.value;
    *value_bytes = r.bytes;
    return STORE_GOOD;
  }
  free(r.value);
  return r.kind == STORE_MISSING ? STORE_NONE : r.kind == STORE_LATE ? STORE_TIME : STORE_BAD;
}

/* ---- joining and leaving --------------------------------------------------------------------- */

static bool wait_ready(store_client *c, const store_place *place, char *why, size_t size) {
  enum { MORE_MS = 5000 }; /* extra time for the reason that the server may send */
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += (place->join_ms + MORE_MS) / 1000;
  pthread_mutex_lock(&c->lock);
  int late = 0;
  while (!c->ready && !c->gone && !*c->why && !late)
    late = pthread_cond_clockwait(&c->changed, &c->lock, CLOCK_MONOTONIC, &until);
  bool ready = c->ready && !*c->why;
  if (*c->why) snprintf(why, size, "%s", c->why);
  else if (!ready)
    snprintf(why, size, "host 0 at %s, port %s, %s", place->address, place->port,
             c->gone ? "ended the connection: it has ended, or is another program" : "does not answer");
  pthread_mutex_unlock(&c->lock);
  return ready;
}

store_client *store_join(const store_place *place, store_on_end ended, void *self, char *why, size_t size) {
  int socket = connect_until(place, store_now_ms() + place->join_ms, why, size);
  if (socket < 0) return NULL;
  store_watch_peer(socket);
  store_client *c = calloc(1, sizeof *c);
  if (!c) abort();
  c->socket = socket;
  c->ended = ended;
  c->self = self;
  pthread_mutex_init(&c->lock, NULL);
  pthread_mutex_init(&c->writing, NULL);
  pthread_cond_init(&c->changed, NULL);
  const store_head hello = {.kind = STORE_HELLO,
                            .host = (uint32_t)place->host,
                            .number = place->hosts,
                            .key_bytes = (uint32_t)strnlen(place->secret, STORE_SECRET_BYTES)};
  /* until all hosts have joined, the end of the connection is a failure to join */
  c->leaving = true;
  send_frame(c, hello, place->secret, NULL);
  if (pthread_create(&c->reader, NULL, read_answers, c)) abort();
  bool ready = wait_ready(c, place, why, size);
  pthread_mutex_lock(&c->lock);
  if (ready) c->leaving = false;
  bool gone = c->gone;
  pthread_mutex_unlock(&c->lock);
  if (ready && !gone) return c;
  if (ready) snprintf(why, size, "host 0 has ended");
  store_close(c);
  return NULL;
}

void store_leave(store_client *c) {
  pthread_mutex_lock(&c->lock);
  c->leaving = true;
  pthread_mutex_unlock(&c->lock);
  send_frame(c, (store_head){.kind = STORE_BYE}, NULL, NULL);
}

void store_close(store_client *c) {
  if (!c) return;
  pthread_mutex_lock(&c->lock);
  c->leaving = true;
  pthread_mutex_unlock(&c->lock);
  shutdown(c->socket, SHUT_RDWR);
  pthread_join(c->reader, NULL);
  close(c->socket);
  pthread_mutex_destroy(&c->lock);
  pthread_mutex_destroy(&c->writing);
  pthread_cond_destroy(&c->changed);
  free(c);
}
