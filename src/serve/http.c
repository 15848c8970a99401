/* http.c - receives HTTP requests. libmicrohttpd calls `handle` with each piece of a request.
 * Threads of the library check requests and write answers. A waiting connection is suspended. */
#include "serve/call.h"
#include "serve/page.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum {
  THREADS = 4,
  MOST_CONNECTIONS = 4096,
  CONNECTION_BYTES = 32 << 10, /* maximum size of the headers of a request; longer headers get status 431 */
  /* maximum bytes to read of a refused body; most clients read the answer only after sending the
   * whole body */
  DISCARD = 64 << 20,
  BLOCK = 16 << 10
};

/* ---- answers --------------------------------------------------------------------------------- */

static void add_header(struct MHD_Response *response, const char *name, const char *value) {
  rf_mhd.add_response_header(response, name, value);
}

static void add_cors(const rf_call *c, struct MHD_Response *response) {
  const char *origin = c->server->settings->cors;
  if (!origin) return;
  add_header(response, "Access-Control-Allow-Origin", origin);
  add_header(response, "Access-Control-Expose-Headers", "X-Request-Id, Warning, Retry-After");
  if (strcmp(origin, "*")) add_header(response, "Vary", "Origin");
}

/* Returns the seconds after which a refused client should try again. The result is the expected
 * time until all accepted answers have ended. */
static int retry_after(rf_server *s) {
  pthread_mutex_lock(&s->lock);
  double seconds = s->mean_seconds * (double)s->open_answers / (s->slots > 0 ? s->slots : 1);
  bool draining = s->draining;
  pthread_mutex_unlock(&s->lock);
  return draining || !(seconds > 1) ? 1 : seconds > 60 ? 60 : (int)ceil(seconds);
}

/* At each visit, a browser asks whether its copy of the page is still the current version. */
static void add_page_headers(const rf_page_file *page, struct MHD_Response *response) {
  char tag[24];
  rf_page_tag(page, tag);
  add_header(response, "Cache-Control", "no-cache");
  add_header(response, "ETag", tag);
  add_header(response, "Content-Security-Policy", RF_PAGE_POLICY);
  add_header(response, "Referrer-Policy", "no-referrer");
  add_header(response, "Cross-Origin-Opener-Policy", "same-origin");
  add_header(response, "Cross-Origin-Resource-Policy", "same-origin");
}

static void add_headers(const rf_call *c, int status, struct MHD_Response *response) {
  char text[480];
  add_header(response, "X-Request-Id", c->request_id);
  if (c->page) add_page_headers(c->page, response);
  else add_header(response, "Cache-Control", "no-store");
  add_header(response, "X-Content-Type-Options", "nosniff");
  add_cors(c, response);
  if (*c->ask.ignored) {
    snprintf(text, sizeof text, "299 rafter \"unknown fields: %s\"", c->ask.ignored);
    add_header(response, "Warning", text);
  }
  if (status == 429 || status == 503) {
    snprintf(text, sizeof text, "%d", retry_after(c->server));
    add_header(response, "Retry-After", text);
  }
  if (status == 401) add_header(response, "WWW-Authenticate", "Bearer");
  if (status == 405) add_header(response, "Allow", c->route->post ? "POST" : "GET, HEAD");
  if (status == 503 || status == 413) add_header(response, "Connection", "close");
}

static enum MHD_Result queue(rf_call *c, int status, struct MHD_Response *response) {
  rf_server *s = c->server;
  if (!response) return MHD_NO;
  c->responded = true;
  c->status = status;
  pthread_mutex_lock(&s->lock);
  if (status < RF_METRIC_CODES) s->metrics.code[status]++;
  pthread_mutex_unlock(&s->lock);
  add_headers(c, status, response);
  enum MHD_Result result = rf_mhd.queue_response(c->connection, (unsigned)status, response);
  rf_mhd.destroy_response(response);
  return result;
}

/* Answers with a complete body. Takes ownership of the body. */
static enum MHD_Result respond(rf_call *c, int status, const char *type, rf_body *body) {
  struct MHD_Response *response =
      rf_mhd.create_response_from_buffer(body->bytes, body->at ? body->at : (char *)"",
                                         body->at ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
  if (response) add_header(response, "Content-Type", type);
  *body = (rf_body){0};
  return queue(c, status, response);
}

static enum MHD_Result respond_wrong(rf_call *c) {
  rf_body body = {0};
  rf_wrong_json(&c->wrong, &body);
  return respond(c, c->wrong.status, "application/json", &body);
}

/* Answers a browser that asks whether a page of another origin may use the server. */
static enum MHD_Result respond_preflight(rf_call *c) {
  const char *asked = rf_mhd.lookup_connection_value(c->connection, MHD_HEADER_KIND,
                                                     MHD_HTTP_HEADER_ACCESS_CONTROL_REQUEST_HEADERS);
  struct MHD_Response *response = rf_mhd.create_response_from_buffer(0, (char *)"", MHD_RESPMEM_PERSISTENT);
  if (!response) return MHD_NO;
  add_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  /* Clients in a browser send headers of their own, such as X-Stainless-OS. */
  add_header(response, "Access-Control-Allow-Headers",
             asked && *asked ? asked : "Authorization, Content-Type, X-Request-Id");
  add_header(response, "Vary", "Access-Control-Request-Headers");
  add_header(response, "Access-Control-Max-Age", "600");
  return queue(c, 204, response);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Gives the library the next bytes of a stream. If no bytes are ready, suspends the connection. */
static ssize_t read_stream(void *self, uint64_t position, char *to, size_t most) {
  rf_call *c = self;
  rf_server *s = c->server;
  ssize_t given = 0;
  (void)position;
  pthread_mutex_lock(&s->lock);
  if (c->out_sent == c->out.bytes && !c->closed && !c->gone) {
    c->out.bytes = c->out_sent = 0;
    rf_shape_stream(c);
  }
  size_t left = c->out.bytes - c->out_sent;
  if (c->gone) given = MHD_CONTENT_READER_END_WITH_ERROR;
  else if (left) {
    size_t bytes = left < most ? left : most;
    memcpy(to, c->out.at + c->out_sent, bytes);
    c->out_sent += bytes;
    given = (ssize_t)bytes;
  } else if (c->closed) given = MHD_CONTENT_READER_END_OF_STREAM;
  else if (s->stopping) given = MHD_CONTENT_READER_END_WITH_ERROR;
  else {
    c->suspended = true;
    rf_mhd.suspend_connection(c->connection);
  }
  pthread_mutex_unlock(&s->lock);
  return given;
}

static enum MHD_Result respond_stream(rf_call *c) {
  struct MHD_Response *response =
      rf_mhd.create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream, c, NULL);
  if (response) {
    add_header(response, "Content-Type", "text/event-stream; charset=utf-8");
    add_header(response, "X-Accel-Buffering", "no"); /* tells nginx not to buffer events */
  }
  return queue(c, 200, response);
}

/* ---- the page -------------------------------------------------------------------------------- */

static enum MHD_Result respond_page(rf_call *c) {
  const char *known =
      rf_mhd.lookup_connection_value(c->connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_IF_NONE_MATCH);
  const rf_page_file *page = rf_page_find(c->route->path);
  char tag[24];
  rf_page_tag(page, tag);
  bool same = known && strstr(known, tag);
  struct MHD_Response *response = rf_mhd.create_response_from_buffer(
      same ? 0 : (size_t)(page->end - page->at), (char *)(uintptr_t)page->at, MHD_RESPMEM_PERSISTENT);
  if (!response) return MHD_NO;
  c->page = page;
  add_header(response, "Content-Type", page->type);
  return queue(c, same ? 304 : 200, response);
}

/* ---- requests -------------------------------------------------------------------------------- */

static const char *header(rf_call *c, const char *name) {
  return rf_mhd.lookup_connection_value(c->connection, MHD_HEADER_KIND, name);
}

static void name_request(rf_call *c) {
  static const char LETTERS[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  const char *given = header(c, "X-Request-Id");
  char hex[33];
  rf_random_hex(hex, 16);
  if (given && *given && strlen(given) < sizeof c->request_id && strspn(given, LETTERS) == strlen(given))
    snprintf(c->request_id, sizeof c->request_id, "%s", given);
  else snprintf(c->request_id, sizeof c->request_id, "%s", hex);
  snprintf(c->id, sizeof c->id, "%s-%s", c->route && c->route->ask == RF_ASK_CHAT ? "chatcmpl" : "cmpl", hex);
}

static void name_client(rf_call *c) {
  const union MHD_ConnectionInfo *info =
      rf_mhd.get_connection_info(c->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  const struct sockaddr *a = info ? info->client_addr : NULL;
  if (!a) return;
  if (a->sa_family == AF_INET)
    inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)a)->sin_addr, c->from, sizeof c->from);
  if (a->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, c->from, sizeof c->from);
}

/* Finds faults that are known before the body is read. */
static void check_head(rf_call *c, const char *path, const char *method, bool draining) {
  const rf_server *s = c->server;
  const rf_route *other = NULL;
  const char *length = header(c, "Content-Length");
  c->route = rf_route_find(path, method, &other);
  if (s->settings->cors && !strcmp(method, "OPTIONS")) return;
  if (s->keys && !(c->route ? c->route->open : false) && !rf_keys_match(s->keys, header(c, "Authorization")))
    rf_wrong_set(&c->wrong, 401, "invalid_api_key", NULL,
                 header(c, "Authorization")
                     ? "the API key is wrong"
                     : "an API key is missing (expected a header Authorization: Bearer KEY)");
  else if (!c->route && other) {
    c->route = other;
    rf_wrong_set(&c->wrong, 405, "method_not_allowed", NULL, "%s takes %s, not %.16s", other->path,
                 other->post ? "POST" : "GET", method);
  } else if (!c->route)
    rf_wrong_set(&c->wrong, 404, "not_found", NULL, "%.120s does not exist on this server", path);
  else if (length && strtoull(length, NULL, 10) > s->settings->max_body)
    rf_wrong_set(&c->wrong, 413, "body_too_large", NULL,
                 "the body is too large (expected at most %zu bytes, got %.20s)", s->settings->max_body,
                 length);
  else if (draining && c->route->ask) rf_wrong_stopping(&c->wrong);
}

/* The path of a request in absolute form, such as `GET http://host/health`. */
static const char *path_of(const char *target) {
  if (strncasecmp(target, "http://", 7) != 0 && strncasecmp(target, "https://", 8) != 0) return target;
  const char *path = strchr(strchr(target, ':') + 3, '/');
  return path ? path : "/";
}

static rf_call *open_call(rf_server *s, struct MHD_Connection *connection, const char *path,
                          const char *method) {
  rf_call *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->path = strdup(path);
  if (!c->path) {
    free(c);
    return NULL;
  }
  const union MHD_ConnectionInfo *info =
      rf_mhd.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  c->server = s;
  c->connection = connection;
  c->fd = info ? info->connect_fd : -1;
  c->refs = 1;
  c->arrived = rf_now_seconds();
  c->created = (int64_t)time(NULL);
  snprintf(c->method, sizeof c->method, "%s", method);
  pthread_mutex_lock(&s->lock);
  c->number = s->next_number++;
  s->open_calls++;
  bool draining = s->draining;
  pthread_mutex_unlock(&s->lock);
  check_head(c, path, method, draining);
  c->keeps_body = !c->wrong.status;
  name_request(c);
  name_client(c);
  return c;
}

static void add_body(rf_call *c, const char *data, size_t bytes) {
  c->received += bytes;
  if (!c->keeps_body) return;
  if (c->received <= c->server->settings->max_body) {
    rf_body_bytes(&c->body, data, bytes);
    return;
  }
  rf_wrong_set(&c->wrong, 413, "body_too_large", NULL, "the body is too large (expected at most %zu bytes)",
               c->server->settings->max_body);
  c->keeps_body = false;
  rf_body_free(&c->body);
}

/* Answers a complete call without a stream. Otherwise its connection waits. */
static enum MHD_Result finish(rf_call *c) {
  rf_server *s = c->server;
  rf_body body = {0};
  pthread_mutex_lock(&s->lock);
  bool gone = c->gone, wrong = c->wrong.status != 0, complete = !c->left, stopping = s->stopping;
  if (!gone && !wrong && !complete && !stopping) {
    c->suspended = true;
    rf_mhd.suspend_connection(c->connection);
  }
  pthread_mutex_unlock(&s->lock);
  if (gone) return MHD_NO;
  if (wrong) return respond_wrong(c);
  if (!complete) return stopping ? MHD_NO : MHD_YES;
  rf_shape_whole(c, &body);
  return respond(c, 200, "application/json", &body);
}

/* Submits a request for answers. */
static enum MHD_Result submit(rf_call *c) {
  if (!rf_route_submit(c)) return respond_wrong(c);
  return c->ask.stream ? respond_stream(c) : finish(c);
}

static enum MHD_Result answer(rf_call *c) {
  rf_body body = {0};
  const char *type = "application/json";
  if (c->submitted) return finish(c);
  if (c->wrong.status) return respond_wrong(c);
  if (c->server->settings->cors && !strcmp(c->method, "OPTIONS")) return respond_preflight(c);
  if (!c->route->answer) return c->route->ask ? submit(c) : respond_page(c);
  if (c->route->answer(c, &body, &type)) return respond(c, 200, type, &body);
  rf_body_free(&body);
  return respond_wrong(c);
}

static enum MHD_Result handle(void *self, struct MHD_Connection *connection, const char *path,
                              const char *method, const char *version, const char *data, size_t *bytes,
                              void **state) {
  rf_call *c = *state;
  (void)version;
  if (!c) {
    c = *state = open_call(self, connection, path_of(path), method);
    if (!c) return MHD_NO;
    const char *length = header(c, "Content-Length");
    bool hopeless = length && strtoull(length, NULL, 10) > c->server->settings->max_body + DISCARD;
    return hopeless && c->wrong.status ? respond_wrong(c) : MHD_YES;
  }
  if (*bytes) {
    add_body(c, data, *bytes);
    *bytes = 0;
    return c->received > c->server->settings->max_body + DISCARD ? MHD_NO : MHD_YES;
  }
  return c->responded ? MHD_YES : answer(c);
}

static void completed(void *self, struct MHD_Connection *connection, void **state,
                      enum MHD_RequestTerminationCode code) {
  rf_server *s = self;
  rf_call *c = *state;
  rf_body line = {0};
  (void)connection;
  if (!c) return;
  *state = NULL;
  pthread_mutex_lock(&s->lock);
  if (c->submitted) rf_watch_remove(c);
  c->gone |= code != MHD_REQUEST_TERMINATED_COMPLETED_OK;
  rf_log_call(c, rf_now_seconds() - c->arrived, &line);
  if (c->left > 0) rf_call_leave(c);
  c->connection = NULL;
  s->open_calls--;
  rf_call_release(c);
  pthread_mutex_unlock(&s->lock);
  rf_log_write(s, &line);
  rf_body_free(&line);
}

/* ---- the daemon ------------------------------------------------------------------------------ */

/* Raises the limit of open files, and returns the number of connections that this limit allows. */
static unsigned connection_limit(void) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files)) return 256;
  rlim_t wanted = MOST_CONNECTIONS + 256;
  if (files.rlim_cur < wanted) {
    files.rlim_cur = files.rlim_max < wanted ? files.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_NOFILE, &files);
  }
  rlim_t most = files.rlim_cur > 192 ? files.rlim_cur - 128 : 64;
  return most < MOST_CONNECTIONS ? (unsigned)most : MOST_CONNECTIONS;
}

rf_status rf_http_start(rf_server *s, int fd, rf_error *error) {
  enum { BACKLOG = 1024 };
  if (listen(fd, BACKLOG)) return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot listen for connections (%m)");
  double idle = s->settings->idle_seconds;
  s->daemon = rf_mhd.start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC, 0, NULL, NULL, handle, s,
      MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, completed, s, MHD_OPTION_THREAD_POOL_SIZE,
      (unsigned)THREADS, MHD_OPTION_CONNECTION_LIMIT, connection_limit(), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      (size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(idle < 1 ? 1 : ceil(idle)),
      MHD_OPTION_END);
  return s->daemon ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "cannot start the HTTP server (%m)");
}

void rf_http_stop(rf_server *s) {
  if (s->daemon) rf_mhd.stop_daemon(s->daemon);
  s->daemon = NULL;
}
