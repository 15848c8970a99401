/* store_frame.c - see store.h: frames, settings of sockets, the clock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "pjrt_host/store.h"

int64_t store_parse(const char *data, size_t bytes, bool stranger, store_frame *frame) {
  store_head *head = &frame->head;
  if (bytes < sizeof *head) {
    /* the first word is enough to refuse data that is not a frame */
    uint32_t magic = STORE_MAGIC;
    return memcmp(data, &magic, bytes < sizeof magic ? bytes : sizeof magic) ? -1 : 0;
  }
  memcpy(head, data, sizeof *head);
  if (head->magic != STORE_MAGIC || head->kind >= STORE_KINDS) return -1;
  uint32_t key = head->kind == STORE_HELLO ? STORE_SECRET_BYTES : STORE_KEY_BYTES;
  uint32_t value = head->kind == STORE_HELLO ? 0 : STORE_VALUE_BYTES;
  if (stranger && head->kind != STORE_HELLO) return -1;
  if (head->key_bytes > key || head->value_bytes > value) return -1;
  size_t all = sizeof *head + head->key_bytes + head->value_bytes;
  if (bytes < all) return 0;
  frame->key = data + sizeof *head;
  frame->value = frame->key + head->key_bytes;
  return (int64_t)all;
}

int64_t store_now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool store_nonblocking(int socket) {
  int flags = fcntl(socket, F_GETFL);
  return flags >= 0 && !fcntl(socket, F_SETFL, flags | O_NONBLOCK);
}

void store_watch_peer(int socket) {
  enum { IDLE = 10, EVERY = 5, TRIES = 4, UNSENT_MS = 30000 };
  static const int option[][3] = {
      {SOL_SOCKET, SO_KEEPALIVE, 1},     {IPPROTO_TCP, TCP_NODELAY, 1},
      {IPPROTO_TCP, TCP_KEEPIDLE, IDLE}, {IPPROTO_TCP, TCP_KEEPINTVL, EVERY},
      {IPPROTO_TCP, TCP_KEEPCNT, TRIES}, {IPPROTO_TCP, TCP_USER_TIMEOUT, UNSENT_MS}};
  for (size_t i = 0; i < sizeof option / sizeof *option; i++)
    setsockopt(socket, option[i][0], option[i][1], &option[i][2], sizeof option[i][2]);
}
