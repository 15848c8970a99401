/* traffic.h - sends requests to an OpenAI-compatible server and measures the streamed answers.
 *
 * One thread sends all requests. Times are seconds of the monotonic clock, from the start of the
 * run. In an open loop, a request has a planned time. The latency of the request counts from the
 * planned time, even if the client sends the request later. So a server that slows down the client
 * does not hide its own delay. In a closed loop, a client sends its next request when its last
 * request has ended, and times count from the sending. */
#ifndef RF_TRAFFIC_H
#define RF_TRAFFIC_H

#include "base/base.h"
#include "generate/arrivals.h"

typedef enum rf_traffic_state {
  RF_TRAFFIC_UNSENT,
  RF_TRAFFIC_RUNNING,
  RF_TRAFFIC_COMPLETED,
  RF_TRAFFIC_FAILED,
  RF_TRAFFIC_CANCELLED /* the run ended first */
} rf_traffic_state;

/* Why a request failed. RF_TRAFFIC_STATUS: the HTTP status is not 200. */
typedef enum rf_traffic_fault {
  RF_TRAFFIC_NO_FAULT,
  RF_TRAFFIC_UNREACHED,
  RF_TRAFFIC_STATUS,
  RF_TRAFFIC_CLOSED,  /* the connection ended before the end of the answer */
  RF_TRAFFIC_TIMEOUT, /* --timeout */
  RF_TRAFFIC_BROKEN,  /* the stream does not have the shape of OpenAI's API */
  RF_TRAFFIC_REFUSED, /* the server reports an error in the stream */
  RF_TRAFFIC_EMPTY,   /* the answer has no tokens */
  RF_TRAFFIC_FAULTS
} rf_traffic_fault;

/* Measurements of one request. */
typedef struct rf_traffic_record {
  rf_traffic_state state;
  rf_traffic_fault fault;
  int http;    /* HTTP status of the response; 0: no response */
  double from; /* start of all durations: the planned time, or in a closed loop the time of sending */
  double sent, first, end; /* times of sending, of the first tokens, and of the end; -1: not yet */
  double *gap;             /* (gaps): seconds between two events with tokens */
  int64_t gaps, capacity;
  /* number of tokens that the server counted; -1: the server gave no number */
  int64_t input_tokens, output_tokens;
  int64_t asked_input, asked_output; /* approximate tokens of the prompt, and maximum tokens of the answer */
  char *message;                     /* for people; NULL: none */
} rf_traffic_record;

/* Means over samples of the server's own metrics during a run. */
typedef struct rf_traffic_watched {
  int64_t samples; /* number of samples; 0: the server has no such metrics */
  double running, waiting;
} rf_traffic_watched;

typedef struct rf_traffic_client rf_traffic_client;

typedef struct rf_traffic_settings {
  const char *url;        /* http://host:port, with or without /v1 */
  const char *token;      /* API key; NULL: none. The key is sent only to this server. */
  bool direct;            /* without a proxy: the server is this program's own */
  bool chat;              /* /v1/chat/completions, otherwise /v1/completions */
  double timeout_seconds; /* maximum time of a request */
  const volatile int *stop;
} rf_traffic_settings;

/* A run, with its requests and the times to send them. */
typedef struct rf_traffic_run {
  const rf_arrival *list; /* (count): requests, whose `at` is used only in an open loop */
  int64_t count;
  bool closed;
  int64_t clients; /* maximum number of unanswered requests */
  double until;    /* rf_now_seconds() at which the run ends early; 0: never */
  bool watch;      /* sample the server's metrics */
  /* Returns the body of request `index`, malloc'ed; NULL: out of memory. */
  char *(*body)(void *self, int64_t index);
  /* Called a few times per second; may be NULL. */
  void (*progress)(void *self, int64_t ended, int64_t running, double seconds);
  void *self;
} rf_traffic_run;

typedef struct rf_traffic_outcome {
  double seconds;       /* seconds from the start to the end of the last request */
  int64_t most_running; /* maximum number of requests at the same time */
  rf_traffic_watched watched;
  /* `stopped`: true if the caller asked to stop. `expired`: true if the time `until` has passed. */
  bool stopped, expired;
} rf_traffic_outcome;

/* Opens a client. Returns RAFTER_INVALID if the URL or the token is wrong. */
rf_status rf_traffic_open(const rf_traffic_settings *settings, rf_traffic_client **client, rf_error *error);
void rf_traffic_close(rf_traffic_client *client); /* `client` may be NULL */
/* Gets the malloc'ed name of the first model that the server lists. Returns RAFTER_FAILED if the
 * server lists no model, or cannot be reached. */
rf_status rf_traffic_model(rf_traffic_client *client, char **name, rf_error *error);
/* Sends the requests and fills record (count), which must be zeroed. The caller frees the records
 * with rf_traffic_records_free. RAFTER_FAILED: out of memory. A failed request does not end the
 * run. */
rf_status rf_traffic_send(rf_traffic_client *client, const rf_traffic_run *run, rf_traffic_record *record,
                          rf_traffic_outcome *outcome, rf_error *error);
void rf_traffic_records_free(rf_traffic_record *record, int64_t count);
/* Writes the kind of a failure in words, such as "http 429" or "connection closed". */
char *rf_traffic_fault_text(const rf_traffic_record *record, char text[32]);

#endif
