/* listen.c - binds the server's socket. */
#define _GNU_SOURCE
#include "serve/serve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_loopback(const struct sockaddr *address) {
  if (address->sa_family == AF_INET)
    return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

static bool bind_one(const struct addrinfo *a, rf_serve_socket *s) {
  struct sockaddr_storage bound = {0};
  socklen_t size = sizeof bound;
  const int on = 1;
  char host[64] = "", port[16] = "";
  s->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s->fd < 0) return false;
  setsockopt(s->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(s->fd, a->ai_addr, a->ai_addrlen) ||
      getsockname(s->fd, (struct sockaddr *)(void *)&bound, &size) ||
      getnameinfo((struct sockaddr *)(void *)&bound, size, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV)) {
    close(s->fd);
    s->fd = -1;
    return false;
  }
  s->loopback = is_loopback((struct sockaddr *)(void *)&bound);
  snprintf(s->shown, sizeof s->shown, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
  sscanf(port, "%d", &s->port);
  return true;
}

rf_status rf_serve_bind(const char *host, int port, rf_serve_socket *s, rf_error *error) {
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
  struct addrinfo *list = NULL;
  char number[16];
  *s = (rf_serve_socket){.fd = -1};
  snprintf(number, sizeof number, "%d", port);
  int failed = getaddrinfo(host, number, &hints, &list);
  if (failed)
    return RF_FAIL(error, RAFTER_INVALID, "give an address of this machine, such as 127.0.0.1 or 0.0.0.0",
                   "unknown address (--host %.200s: %s)", host, gai_strerror(failed));
  bool bound = false;
  for (const struct addrinfo *a = list; a && !bound; a = a->ai_next) bound = bind_one(a, s);
  freeaddrinfo(list);
  return bound ? RAFTER_OK
               : RF_FAIL(error, RAFTER_FAILED, "choose another --port; --port 0 takes a free one",
                         "cannot serve at %.200s, port %d (%m)", host, port);
}
