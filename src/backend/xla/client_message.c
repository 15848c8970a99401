/* client_message.c - see client_parts.h: requests and answers. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "backend/xla/client_parts.h"

/* Result of waiting. */
typedef enum { READY, ENDED, STOPPED } outcome;

static outcome wait_ready(const rf_xla_client *client, short events, bool stoppable) {
  enum { TICK_MS = 100 };
  double begin = stoppable ? rf_now_seconds() : 0;
  for (;;) {
    struct pollfd socket = {.fd = client->socket, .events = events};
    int ready = poll(&socket, 1, stoppable ? TICK_MS : -1);
    if (stoppable && rf_flag_is_set(client->stop)) return STOPPED;
    if (ready > 0) return READY; /* the socket is also ready at its end, which the next call reports */
    if (stoppable && client->waiting && !ready) client->waiting(client->context, rf_now_seconds() - begin);
    if (ready < 0 && errno != EINTR) return ENDED;
  }
}

/* Sends all parts. The first byte carries the file descriptor `descriptor`. */
static outcome send_parts(const rf_xla_client *client, struct iovec *part, int parts, int descriptor,
                          bool stoppable) {
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
  } control = {0};
  struct msghdr message = {.msg_iov = part, .msg_iovlen = (size_t)parts};
  if (descriptor > 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  }
  for (;;) {
    while (message.msg_iovlen && !message.msg_iov->iov_len) {
      message.msg_iov++;
      message.msg_iovlen--;
    }
    if (!message.msg_iovlen) return READY;
    ssize_t sent = sendmsg(client->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) {
      outcome ready = wait_ready(client, POLLOUT, stoppable);
      if (ready != READY) return ready;
      continue;
    }
    if (sent < 0) return ENDED;
    message.msg_control = NULL;
    message.msg_controllen = 0;
    for (size_t left = (size_t)sent; left;) {
      size_t taken = left < message.msg_iov->iov_len ? left : message.msg_iov->iov_len;
      message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + taken;
      message.msg_iov->iov_len -= taken;
      left -= taken;
      if (!message.msg_iov->iov_len) {
        message.msg_iov++;
        message.msg_iovlen--;
      }
    }
  }
}

static outcome receive(const rf_xla_client *client, void *to, size_t bytes, bool stoppable) {
  char *at = to;
  while (bytes) {
    ssize_t got = recv(client->socket, at, bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      outcome ready = wait_ready(client, POLLIN, stoppable);
      if (ready != READY) return ready;
      continue;
    }
    if (got <= 0) return ENDED;
    at += got;
    bytes -= (size_t)got;
  }
  return READY;
}

/* Sends the request and receives the head and the body of the answer. */
static outcome exchange(rf_xla_client *client, const rf_xla_message *message, rf_wire_answer *answer) {
  enum { PARTS = sizeof message->part / sizeof *message->part };
  rf_wire_head head = {RF_WIRE_MAGIC, message->kind, 0};
  struct iovec part[PARTS + 1] = {{&head, sizeof head}};
  for (int i = 0; i < message->parts; i++) {
    part[i + 1] = message->part[i];
    head.bytes += message->part[i].iov_len;
  }
  outcome done = send_parts(client, part, message->parts + 1, message->descriptor, message->stoppable);
  if (done == READY && rf_wire_is_execution(message->kind)) rf_wire_await(client->socket, client->spin_ns);
  if (done == READY) done = receive(client, answer, sizeof *answer, message->stoppable);
  if (done != READY) return done;
  if (answer->magic != RF_WIRE_MAGIC || answer->bytes > RF_WIRE_MOST) return ENDED;
  if (answer->bytes + 1 > client->answer_room) {
    free(client->answer);
    client->answer_room = (size_t)answer->bytes + 1;
    client->answer = rf_must(malloc(client->answer_room));
  }
  ((char *)client->answer)[answer->bytes] = 0;
  return receive(client, client->answer, (size_t)answer->bytes, message->stoppable);
}

/* Names of the plugin's error codes, as in Abseil. */
static const char *const CODE[] = {
    [1] = "cancelled",          [2] = "unknown error", [3] = "invalid argument",
    [4] = "deadline exceeded",  [5] = "not found",     [6] = "already exists",
    [7] = "permission denied",  [8] = "out of memory", [9] = "failed precondition",
    [10] = "aborted",           [11] = "out of range", [12] = "not supported",
    [13] = "internal error",    [14] = "unavailable",  [15] = "data loss",
    [16] = "not authenticated",
};

static rf_status fail(const rf_xla_client *client, const rf_wire_answer *answer, rf_error *error) {
  enum { EXHAUSTED = 8, CODES = sizeof CODE / sizeof *CODE };
  const char *text = client->answer;
  if (answer->code == RF_WIRE_NO_PLUGIN)
    return RF_FAIL(error, RAFTER_INVALID, "name the shared library of a PJRT plugin, such as libtpu.so",
                   "%s is not a PJRT plugin: %s", client->plugin, text);
  if (answer->code == RF_WIRE_BAD_VERSION)
    return RF_FAIL(error, RAFTER_INVALID, "install another version of the plugin",
                   "%s: %s (expected 0.81 or newer, with major version 0)", client->plugin, text);
  if (answer->code == EXHAUSTED)
    return RF_FAIL(error, RAFTER_NO_FIT, NULL, "the device has too little memory: %s", text);
  if (answer->code == RF_WIRE_HOSTS)
    return RF_FAIL(error, RAFTER_FAILED, "start one process on each host; docs/tpu.md has the commands", "%s",
                   text);
  if (answer->code > 0 && answer->code < CODES)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "the plugin failed (%s): %s", CODE[answer->code], text);
  return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: %s", client->plugin, text);
}

rf_status rf_xla_ask(rf_xla_client *client, const rf_xla_message *message, const void **answer, size_t *bytes,
                     rf_error *error) {
  rf_wire_answer head = {0};
  if (client->lost) return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: %s", message->what, client->end);
  if (message->stoppable && rf_flag_is_set(client->stop))
    return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "%s: stopped by a signal", message->what);
  outcome done = exchange(client, message, &head);
  if (done == READY) {
    if (rf_wire_is_execution(message->kind)) client->times.child_seconds += (double)head.ns * 1e-9;
    if (head.code) return fail(client, &head, error);
    *answer = client->answer;
    *bytes = (size_t)head.bytes;
    return RAFTER_OK;
  }
  rf_xla_end(client, done == ENDED);
  if (done == STOPPED)
    return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "%s: stopped by a signal", message->what);
  return RF_FAIL(error, RAFTER_FAILED, NULL, "%s: %s", message->what, client->end);
}
