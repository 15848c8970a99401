/* serve.h - a server that answers HTTP requests with a generator of rafter.h. */
#ifndef RF_SERVE_H
#define RF_SERVE_H

#include "base/say.h"

typedef struct rf_serve_settings {
  const char *model; /* name of the model in requests and answers */
  const char *alias; /* another name of the model in requests; NULL: none */
  const char *host;
  int port;                    /* 0: any free port */
  const char *keys;            /* file with one API key per line; NULL: none */
  const char *cors;            /* origin of web pages that may use the server; NULL: none */
  const char *log;             /* file to which each request appends a line of JSON; NULL: none */
  const char *prefix;          /* prefix of the names of metrics */
  int max_queue;               /* maximum number of waiting answers */
  size_t max_body;             /* bytes */
  double request_seconds;      /* maximum seconds until an answer is complete; 0: no limit */
  double idle_seconds;         /* seconds without activity after which a connection is closed */
  double drain_seconds;        /* seconds in which running answers may end after a signal */
  int64_t max_tokens;          /* maximum tokens of an answer, if the request sets no limit */
  bool strict;                 /* refuse unknown fields */
  const uint64_t *seed;        /* default seed of requests; NULL: random seeds */
  const char *const *adapters; /* (adapter_count): NAME=DIR of each adapter with which the server starts */
  int adapter_count;
  /* folder from which clients may load adapters; NULL: clients may not load adapters */
  const char *adapter_folder;
} rf_serve_settings;

/* A bound socket that does not listen yet. Binding early reports a wrong --port before the model is
 * loaded. */
typedef struct rf_serve_socket {
  int fd;
  int port;
  bool loopback;   /* true: only programs on this machine can connect */
  char shown[128]; /* host:port as in an URL */
} rf_serve_socket;
rf_status rf_serve_bind(const char *host, int port, rf_serve_socket *socket, rf_error *error);

/* Serves until sink->stop is set. After a signal, running answers end within drain_seconds. Takes
 * ownership of the socket. Returns RAFTER_FAILED if a file cannot be read, or if a forward pass
 * fails. */
rf_status rf_serve(const rf_serve_settings *settings, const rf_serve_socket *socket,
                   rafter_generator *generator, const rafter_sink *sink, rf_error *error);

#endif
