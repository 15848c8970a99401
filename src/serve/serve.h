/* serve.h - a server that answers HTTP requests with a generator of rafter.h. */
#ifndef RF_SERVE_H
#define RF_SERVE_H

#include "base/say.h"

typedef struct rf_serve_settings {
  const char *model; /* name in requests and answers */
  const char *alias; /* another name that requests may use; NULL: none */
  const char *host;
  int port;                    /* 0: any free port */
  const char *keys;            /* file with one API key a line; NULL: none */
  const char *cors;            /* origin that may use the server from a browser; NULL: none */
  const char *log;             /* file to which each request appends a line of JSON; NULL: none */
  const char *prefix;          /* start of the names of metrics */
  int max_queue;               /* answers that may wait, besides those that run */
  size_t max_body;             /* bytes */
  double request_seconds;      /* seconds until an answer must be complete; 0: no limit */
  double idle_seconds;         /* seconds until a connection without activity is closed */
  double drain_seconds;        /* seconds for running answers after a signal */
  int64_t max_tokens;          /* maximum tokens of the answer if the request has no limit */
  bool strict;                 /* refuse unknown fields */
  const uint64_t *seed;        /* seed of requests without a seed; NULL: random */
  const char *const *adapters; /* (adapter_count) NAME=DIR: adapters that the server starts with */
  int adapter_count;
  const char *adapter_folder; /* clients may load adapters from this folder; NULL: they may not */
} rf_serve_settings;

/* A socket that is bound and does not listen yet, so that a wrong --port fails before the model is
 * loaded. */
typedef struct rf_serve_socket {
  int fd;
  int port;
  bool loopback;   /* only programs of this machine can connect */
  char shown[128]; /* host:port as in an URL */
} rf_serve_socket;
rf_status rf_serve_bind(const char *host, int port, rf_serve_socket *socket, rf_error *error);

/* Serves until sink->stop is set. After a signal, running answers end within drain_seconds. Takes
 * the socket. RAFTER_FAILED: a file cannot be read, or a forward pass failed. */
rf_status rf_serve(const rf_serve_settings *settings, const rf_serve_socket *socket,
                   rafter_generator *generator, const rafter_sink *sink, rf_error *error);

#endif
