/* call.h - a call: one HTTP request from its first byte to its last, with its answers. The files of
 * this folder share these declarations. The HTTP threads and the engine's thread share calls under
 * rf_server.lock. */
#ifndef RF_CALL_H
#define RF_CALL_H

#include "serve/adapters.h"
#include "serve/ask.h"
#include "serve/late.h"
#include "serve/metrics.h"
#include "serve/serve.h"
#include "serve/tool_calls.h"

#include <pthread.h>
#include <stdio.h>

/* Maximum number of tokens by which an answer may be ahead of its client. A longer distance means
 * that the client does not read, so the answer ends. */
enum { RF_SERVE_AHEAD = 1024 };

typedef struct rf_answer {
  struct rf_answer_token {
    int32_t id;
    float logprob;
    uint32_t text_end; /* length in bytes of the answer's text after this token */
    int32_t top;       /* index in `top` of the token's first alternative */
    int32_t tops;
  } * token;
  int64_t count, room, sent; /* sent: number of tokens that the stream has sent */
  struct rf_answer_top {
    int32_t id;
    float logprob;
  } * top;
  int64_t tops, top_room;
  rf_body text;
  rf_tool_calls *calls; /* parser that holds the text if the request has tools; otherwise NULL */
  rafter_finish finish;
  bool opened, closed; /* true: the stream has written the first, and the last part of this answer */
  size_t offset;       /* number of characters before the next token, for text_offset */
  double first, last;  /* times of the first token and of the latest token */
} rf_answer;

struct rf_call;
/* One prompt of a call, which is one request of the generator. */
typedef struct rf_part {
  struct rf_call *call;
  int index;
  int64_t request; /* id of the request in the generator; -1: not submitted */
  int32_t *ids;
  int64_t count;
  const char *text; /* text of the prompt in the body, for echo; NULL: the prompt was given as ids */
  size_t text_bytes;
  /* Log-probabilities of the prompt, as in rafter_request. NULL: the client does not want
   * log-probabilities. */
  float *logprobs, *top_logprobs;
  int32_t *ranks, *top_ids;
  bool scored; /* true: the log-probabilities are complete */
} rf_part;

typedef struct rf_call {
  struct rf_server *server;
  struct MHD_Connection *connection;
  int fd;
  int refs; /* number of owners: the HTTP side and the engine; the last owner frees the call */
  uint64_t number;
  char id[48], request_id[132]; /* `id`: id of the answer. `request_id`: value of the header X-Request-Id. */
  char method[16], from[64];
  char *path; /* without the query */
  const struct rf_route *route;
  const struct rf_page_file *page; /* file of the chat page that is the answer */
  rf_body body;
  size_t received;
  bool keeps_body; /* false: the body is dropped, because the request is refused */
  rf_wrong wrong;  /* status 0: no error */
  rf_ask ask;
  rafter_constraint *constraint; /* form of the answers; NULL: any form */
  bool random_seed;              /* neither the request nor the server chose the seed */
  double arrived, deadline;
  int64_t created; /* seconds since 1970 */
  /* After submission: */
  rf_part *part;                        /* (ask.prompts) */
  rf_answer *answer;                    /* (answers): answers in the order of `choices` */
  int64_t answers, left, prompt_tokens; /* left: number of unfinished answers */
  bool responded, submitted, suspended, gone, cancel, cancelled;
  struct rf_call *next, *before; /* neighbours in the engine's list */
  /* Bytes of the stream that the connection has not yet sent. */
  rf_body out;
  size_t out_sent;
  bool begun, closed;
  int status; /* of the HTTP answer */
} rf_call;

typedef struct rf_server {
  const rf_serve_settings *settings;
  rafter_generator *generator;
  const rafter_tokenizer *tokenizer; /* tokenizer of the model; NULL: the model has no tokenizer */
  const rafter_sink *sink;
  struct rf_keys *keys;
  FILE *log;
  char fingerprint[32];
  int64_t started; /* seconds since 1970 */
  rf_ask_rules rules;
  rf_named_adapters *adapters;
  struct MHD_Daemon *daemon;
  struct rf_watch *watch;
  int slots;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  /* Under the lock: */
  rf_call *inbox, *inbox_last; /* waiting for the engine */
  rf_call *active;             /* submitted to the generator */
  int64_t open_answers;        /* number of accepted, unfinished answers */
  int64_t running;             /* number of unfinished answers that have a token */
  int64_t open_calls;          /* number of calls whose HTTP side is open */
  uint64_t next_number;
  bool draining, stopping, broken;
  double mean_seconds; /* mean seconds of recent whole answers */
  rf_metrics metrics;
  rafter_counts counts;          /* counts of a recent step */
  struct rf_adapter_task *tasks; /* tasks that the engine's thread does between two steps */
  pthread_cond_t task_done;
} rf_server;

/* ---- call.c: all under the lock -------------------------------------------------------------- */

/* Puts a call into the engine's inbox. Its parts have ids. */
void rf_call_submit(rf_call *call);
/* Moves a call from the inbox into the list of the generator's calls. */
void rf_call_activate(rf_call *call);
/* Adds an event of the generator to an answer, and wakes the connection. */
void rf_call_take(rf_call *call, rf_part *part, const rafter_event *event, double now);
/* Ends the answers with an error, and asks the engine to cancel them. */
void rf_call_fail(rf_call *call, const rf_wrong *wrong);
/* Cancels the answers of a client that has left, and lets the connection end. */
void rf_call_leave(rf_call *call);
void rf_call_release(rf_call *call);

/* ---- shape.c: JSON of answers ---------------------------------------------------------------- */

void rf_shape_whole(const rf_call *call, rf_body *out);
/* Appends the text of a token as a JSON string. */
void rf_shape_piece(const rf_call *call, int32_t id, rf_body *out);
/* Appends new events to call->out. Sets call->closed after the last event. */
void rf_shape_stream(rf_call *call);

/* ---- shape_prompt.c: log-probabilities of prompts -------------------------------------------- */

/* Allocates the arrays for log-probabilities of a part. */
void rf_scores_open(rf_call *call, rf_part *part);
void rf_scores_close(rf_part *part);
/* Returns an answer with the tokens of the prompt and then the tokens of `answer`, which may be
 * NULL. The first token has no log-probability (NAN). Free it with rf_scores_release. */
rf_answer rf_scores_with(const rf_part *part, int32_t top, const rf_answer *answer);
void rf_scores_release(rf_answer *answer);
/* Appends a member "prompt_logprobs". */
void rf_shape_prompt_logprobs(const rf_call *call, const rf_part *part, rf_body *out);

/* ---- engine.c -------------------------------------------------------------------------------- */

/* Runs steps until a signal arrives and the running answers have ended. */
rf_status rf_engine_run(rf_server *server, rf_error *error);

/* ---- http.c, route.c, watch.c, keys.c, log.c ------------------------------------------------- */

typedef struct rf_route {
  const char *path;
  bool post;
  bool open;    /* needs no key */
  unsigned ask; /* kind of the body of a request to this path (rf_ask_kind); 0: the request has no body */
  /* Writes the body of an answer and its content type. Before returning false, the function sets
   * `wrong` of the call. NULL: the path takes an `ask`, or is a file of the page. */
  bool (*answer)(rf_call *call, rf_body *out, const char **type);
} rf_route;
/* Finds a route. If the path and method have no route, returns NULL. *other is then a route with
 * this path and another method, or NULL. */
const rf_route *rf_route_find(const char *path, const char *method, const rf_route **other);
/* Reads the body into the call's `ask`. Returns false if the body is invalid, and sets `wrong` of
 * the call. */
bool rf_route_read(rf_call *call);
/* Checks the body and submits the call. Returns false if the call cannot be answered, and sets
 * `wrong` of the call. */
bool rf_route_submit(rf_call *call);

rf_status rf_http_start(rf_server *server, int fd, rf_error *error);
void rf_http_stop(rf_server *server);

/* Watches the connections of suspended calls, because libmicrohttpd does not notice when the
 * clients of these calls leave. */
rf_status rf_watch_start(rf_server *server, rf_error *error);
void rf_watch_stop(rf_server *server);
void rf_watch_add(rf_call *call);
void rf_watch_remove(rf_call *call);

rf_status rf_keys_read(const char *path, struct rf_keys **keys, rf_error *error);
bool rf_keys_match(const struct rf_keys *keys, const char *authorization);
void rf_keys_free(struct rf_keys *keys);

/* The function rf_log_call makes the call's line of the access log, under the lock. Then
 * rf_log_write writes the line without the lock, because a file can be slow. Without a log, the
 * line is empty. */
void rf_log_call(const rf_call *call, double seconds, rf_body *line);
void rf_log_write(const rf_server *server, const rf_body *line);
void rf_random_hex(char *hex, size_t bytes); /* 2 x bytes digits and a NUL */

#endif
