/* serve.c - see host.h: reads requests from the socket, checks their sizes, and answers them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "pjrt_host/host.h"

typedef struct session {
  host *h;
  int socket;
  const char *plugin;
  bool loaded;
  char *body; /* of the request */
  size_t bytes, room;
  int descriptor; /* file descriptor that the request carried; -1: none */
} session;

/* The body of an answer; `owned` is freed. */
typedef struct reply {
  const void *data;
  size_t bytes;
  void *owned;
} reply;

/* Reads `bytes` bytes. If the bytes carry a file descriptor, stores it in the session. */
static bool read_all(session *s, char *to, size_t bytes) {
  while (bytes) {
    union {
      struct cmsghdr head;
      char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {to, bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(s->socket, &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
      if (s->descriptor >= 0) close(s->descriptor);
      memcpy(&s->descriptor, CMSG_DATA(head), sizeof s->descriptor);
    }
    to += got;
    bytes -= (size_t)got;
  }
  return true;
}

static bool send_all(int socket, const struct iovec *part, int parts) {
  struct iovec left[2];
  memcpy(left, part, (size_t)parts * sizeof *part);
  struct msghdr message = {.msg_iov = left, .msg_iovlen = (size_t)parts};
  while (message.msg_iovlen) {
    ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    while (message.msg_iovlen && (size_t)sent >= message.msg_iov->iov_len) {
      sent -= (ssize_t)message.msg_iov->iov_len;
      message.msg_iov++;
      message.msg_iovlen--;
    }
    if (!message.msg_iovlen) break;
    message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + sent;
    message.msg_iov->iov_len -= (size_t)sent;
  }
  return true;
}

static bool too_short(host_fault *fault) {
  return host_fail(fault, RF_WIRE_BAD_REQUEST, "a message has the wrong size");
}

/* Copies the request's struct. The bytes that follow the struct begin at *rest. */
static bool take_struct(const session *s, void *to, size_t bytes, host_text *rest, host_fault *fault) {
  if (s->bytes < bytes) return too_short(fault);
  memcpy(to, s->body, bytes);
  *rest = (host_text){s->body + bytes, s->bytes - bytes};
  return true;
}

/* Sets *text to the first `bytes` bytes of `rest`, and removes these bytes from `rest`. */
static bool take_text(host_text *rest, uint64_t bytes, host_text *text, host_fault *fault) {
  if (bytes > rest->bytes) return too_short(fault);
  *text = (host_text){rest->data, (size_t)bytes};
  rest->data += bytes;
  rest->bytes -= (size_t)bytes;
  return true;
}

static bool answer_with(reply *to, const void *data, size_t bytes) {
  to->owned = malloc(bytes + 1);
  if (!to->owned) abort(); /* the client reports it */
  memcpy(to->owned, data, bytes);
  to->data = to->owned;
  to->bytes = bytes;
  return true;
}

/* Takes the options and the address of host 0 from the request. */
static bool take_options(const session *s, rf_wire_open *open, pjrt_named *option, host_text *address,
                         host_fault *fault) {
  host_text rest, list;
  if (!take_struct(s, open, sizeof *open, &rest, fault)) return false;
  if (open->options > RF_WIRE_OPTIONS) return too_short(fault);
  if (!take_text(&rest, open->options * sizeof(rf_wire_option), &list, fault)) return false;
  for (uint32_t i = 0; i < open->options; i++) {
    rf_wire_option from;
    host_text name, text;
    memcpy(&from, list.data + i * sizeof from, sizeof from);
    if (!take_text(&rest, from.name_bytes, &name, fault)) return false;
    if (!take_text(&rest, from.text_bytes, &text, fault)) return false;
    option[i] = (pjrt_named){.struct_size = sizeof option[i],
                             .name = name.data,
                             .name_bytes = name.bytes,
                             .type = from.is_number ? PJRT_INT64 : PJRT_STRING,
                             .count = from.is_number ? 1 : text.bytes};
    if (from.is_number) option[i].value.number = from.number;
    else option[i].value.text = text.data;
  }
  return take_text(&rest, open->address_bytes, address, fault);
}

static bool serve_open(session *s, reply *out, host_fault *fault) {
  rf_wire_open open;
  host_text address;
  pjrt_named option[RF_WIRE_OPTIONS] = {0};
  if (!take_options(s, &open, option, &address, fault)) return false;
  if (!s->loaded && !host_load(s->h, s->plugin, fault)) return false;
  if (s->loaded) return host_fail(fault, RF_WIRE_BAD_REQUEST, "the plugin is open already");
  s->loaded = true;
  if (!open.compile_only &&
      !(host_join(s->h, &open, address, fault) && host_open(s->h, s->plugin, option, open.options, fault))) {
    host_leave(s->h, false);
    return false;
  }
  struct {
    rf_wire_facts facts;
    int32_t id[RF_WIRE_DEVICES];
  } facts;
  host_facts(s->h, &facts.facts);
  s->h->spin_ns = rf_wire_spin_ns(facts.facts.platform, (int)open.cores);
  s->h->apart = strcmp(facts.facts.platform, "cpu") != 0;
  int devices = s->h->all ? s->h->devices * s->h->peers.hosts : s->h->devices;
  for (int i = 0; i < devices; i++)
    if (!host_device_id(s->h, s->h->all ? s->h->all[i] : s->h->device[i], &facts.id[i], fault)) return false;
  return answer_with(out, &facts, sizeof facts.facts + (size_t)devices * sizeof *facts.id);
}

static bool serve_compile(session *s, reply *out, host_fault *fault) {
  rf_wire_compile compile;
  host_text rest, text, options, topology, target;
  rf_wire_program program;
  if (!take_struct(s, &compile, sizeof compile, &rest, fault) ||
      !take_text(&rest, compile.text_bytes, &text, fault) ||
      !take_text(&rest, compile.options_bytes, &options, fault) ||
      !take_text(&rest, compile.topology_bytes, &topology, fault) ||
      !take_text(&rest, compile.target_bytes, &target, fault))
    return false;
  bool done = topology.bytes ? host_compile_for(s->h, text, options, topology, target, &program, fault)
                             : host_compile(s->h, text, options, &program, fault);
  if (!done) return false;
  return answer_with(out, &program, sizeof program);
}

static bool serve_load(session *s, reply *out, host_fault *fault) {
  rf_wire_program program;
  if (!host_load_program(s->h, (host_text){s->body, s->bytes}, &program, fault)) return false;
  return answer_with(out, &program, sizeof program);
}

static bool serve_bytes_of(session *s, reply *out, host_fault *fault,
                           bool (*get)(const host *, int64_t, char **, size_t *, host_fault *)) {
  int64_t id = 0;
  host_text rest;
  char *data = NULL;
  if (!take_struct(s, &id, sizeof id, &rest, fault)) return false;
  bool done = get(s->h, id, &data, &out->bytes, fault);
  out->owned = data;
  out->data = data;
  return done;
}

static bool serve_store(session *s, reply *out, host_fault *fault) {
  return serve_bytes_of(s, out, fault, host_store_program);
}

static bool serve_save(session *s, reply *out, host_fault *fault) {
  return serve_bytes_of(s, out, fault, host_optimized);
}

static bool serve_share(session *s, reply *out, host_fault *fault) {
  (void)out;
  rf_wire_share share;
  host_text rest;
  struct stat file;
  if (!take_struct(s, &share, sizeof share, &rest, fault)) return false;
  if (share.id < 0 || share.id >= RF_WIRE_SHARED || s->h->shared[share.id].data || s->descriptor < 0 ||
      share.bytes < 1 || fstat(s->descriptor, &file) || file.st_size < share.bytes)
    return host_fail(fault, RF_WIRE_BAD_REQUEST, "share: wrong number, size or descriptor");
  void *data = mmap(NULL, (size_t)share.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->descriptor, 0);
  if (data == MAP_FAILED) return host_fail(fault, RF_WIRE_BAD_REQUEST, "share: %s", strerror(errno));
  s->h->shared[share.id] = (host_shared){data, share.bytes};
  return true;
}

static bool serve_unshare(session *s, reply *out, host_fault *fault) {
  (void)out;
  rf_wire_share share;
  host_text rest;
  if (!take_struct(s, &share, sizeof share, &rest, fault)) return false;
  if (!host_range(s->h, share.id, 0, 0, fault)) return false;
  host_land_all(s->h);
  munmap(s->h->shared[share.id].data, (size_t)s->h->shared[share.id].bytes);
  s->h->shared[share.id] = (host_shared){0};
  return true;
}

static bool serve_put(session *s, reply *out, host_fault *fault) {
  rf_wire_put put;
  host_text rest;
  void *buffer = NULL;
  if (!take_struct(s, &put, sizeof put, &rest, fault)) return false;
  if (put.device < 0 || put.device >= s->h->devices)
    return host_fail(fault, RF_WIRE_BAD_REQUEST, "put: device %lld (expected 0 to %d)", (long long)put.device,
                     s->h->devices - 1);
  const char *data = host_range(s->h, put.shared, put.at, host_shape_bytes(&put.shape), fault);
  if (!data) return false;
  if (!host_put(s->h, (int)put.device, &put.shape, data, PJRT_UNTIL_TRANSFER_COMPLETES, &buffer, fault))
    return false;
  int64_t id = host_table_add(&s->h->buffers, buffer);
  return answer_with(out, &id, sizeof id);
}

static bool serve_get(session *s, reply *out, host_fault *fault) {
  (void)out;
  rf_wire_get get;
  host_text rest;
  void *event = NULL;
  if (!take_struct(s, &get, sizeof get, &rest, fault)) return false;
  void *buffer = host_table_find(&s->h->buffers, get.buffer);
  if (!buffer) return host_fail(fault, RF_WIRE_BAD_REQUEST, "get: no buffer has this number");
  char *data = host_range(s->h, get.shared, get.at, get.bytes, fault);
  return data && host_get(s->h, buffer, data, get.bytes, &event, fault) &&
         host_await(s->h, event, "copy from the device", fault);
}

static bool serve_free(session *s, reply *out, host_fault *fault) {
  (void)out;
  (void)fault;
  for (size_t at = 0; at + sizeof(int64_t) <= s->bytes; at += sizeof(int64_t)) {
    int64_t id;
    memcpy(&id, s->body + at, sizeof id);
    host_destroy(s->h, PJRT_BUFFER_DESTROY, host_table_take(&s->h->buffers, id));
  }
  return true;
}

static bool serve_drop(session *s, reply *out, host_fault *fault) {
  (void)out;
  int64_t id;
  host_text rest;
  if (!take_struct(s, &id, sizeof id, &rest, fault)) return false;
  host_program *program = host_table_take(&s->h->programs, id);
  if (!program) return host_fail(fault, RF_WIRE_BAD_REQUEST, "no program has this number");
  host_land_all(s->h);
  host_free_program(s->h, program);
  return true;
}

typedef bool execute_with(host *h, const char *body, size_t bytes, int64_t **result, size_t *results,
                          host_fault *fault);

/* The answer has the ids of the kept results. */
static bool answer_ids(execute_with *execute, session *s, reply *out, host_fault *fault) {
  int64_t *ids = NULL;
  size_t count = 0;
  if (!execute(s->h, s->body, s->bytes, &ids, &count, fault)) return false;
  *out = (reply){ids, count * sizeof *ids, ids};
  return true;
}

static bool serve_execute(session *s, reply *out, host_fault *fault) {
  return answer_ids(host_execute, s, out, fault);
}
static bool serve_launch(session *s, reply *out, host_fault *fault) {
  return answer_ids(host_launch, s, out, fault);
}

static bool serve_land(session *s, reply *out, host_fault *fault) {
  (void)out;
  return s->bytes ? too_short(fault) : host_land(s->h, fault);
}

static bool serve_profile_begin(session *s, reply *out, host_fault *fault) {
  (void)out;
  return s->bytes ? too_short(fault) : host_profile_begin(s->h, fault);
}

static bool serve_profile_end(session *s, reply *out, host_fault *fault) {
  char *data = NULL;
  size_t bytes = 0;
  if (s->bytes) return too_short(fault);
  if (!host_profile_end(s->h, &data, &bytes, fault)) return false;
  *out = (reply){data, bytes, data};
  return true;
}

static bool serve_send(session *s, reply *out, host_fault *fault) {
  (void)out;
  int64_t to;
  host_text data;
  return take_struct(s, &to, sizeof to, &data, fault) && host_send(s->h, to, data, fault);
}

static bool serve_receive(session *s, reply *out, host_fault *fault) {
  int64_t from;
  host_text rest;
  char *data = NULL;
  size_t bytes = 0;
  if (!take_struct(s, &from, sizeof from, &rest, fault) || !host_receive(s->h, from, &data, &bytes, fault))
    return false;
  *out = (reply){data, bytes, data};
  return true;
}

static bool serve_close(session *s, reply *out, host_fault *fault) {
  (void)out;
  (void)fault;
  host_leave(s->h, true);
  if (s->loaded) host_close(s->h);
  return true;
}

static bool (*const SERVE[RF_WIRE_KINDS])(session *, reply *, host_fault *) = {
    [RF_WIRE_OPEN] = serve_open,
    [RF_WIRE_COMPILE] = serve_compile,
    [RF_WIRE_LOAD] = serve_load,
    [RF_WIRE_STORE] = serve_store,
    [RF_WIRE_SAVE] = serve_save,
    [RF_WIRE_SHARE] = serve_share,
    [RF_WIRE_UNSHARE] = serve_unshare,
    [RF_WIRE_PUT] = serve_put,
    [RF_WIRE_GET] = serve_get,
    [RF_WIRE_FREE] = serve_free,
    [RF_WIRE_DROP] = serve_drop,
    [RF_WIRE_EXECUTE] = serve_execute,
    [RF_WIRE_LAUNCH] = serve_launch,
    [RF_WIRE_LAND] = serve_land,
    [RF_WIRE_CLOSE] = serve_close,
    [RF_WIRE_SEND] = serve_send,
    [RF_WIRE_RECEIVE] = serve_receive,
    [RF_WIRE_PROFILE_BEGIN] = serve_profile_begin,
    [RF_WIRE_PROFILE_END] = serve_profile_end,
};

/* Reads one request. Returns false at the end of the socket, or if the bytes are not a head. */
static bool read_request(session *s, rf_wire_head *head) {
  if (!read_all(s, (char *)head, sizeof *head)) return false;
  if (head->magic != RF_WIRE_MAGIC) {
    fputs("this rafter-pjrt is of another version of rafter\n", stderr);
    return false;
  }
  if (head->kind >= RF_WIRE_KINDS || head->bytes > RF_WIRE_MOST) return false;
  if (head->bytes > s->room) {
    free(s->body);
    s->room = (size_t)head->bytes;
    s->body = malloc(s->room);
    if (!s->body) abort(); /* the client reports it */
  }
  s->bytes = (size_t)head->bytes;
  return read_all(s, s->body, s->bytes);
}

void host_serve(host *h, int socket, const char *plugin) {
  session s = {.h = h, .socket = socket, .plugin = plugin, .descriptor = -1};
  rf_wire_head head;
  while (read_request(&s, &head)) {
    int64_t begin = rf_wire_now_ns();
    host_fault fault = {0};
    reply out = {0};
    bool done;
    host_busy(h, head.kind != RF_WIRE_CLOSE);
    if (!s.loaded && head.kind != RF_WIRE_OPEN && head.kind != RF_WIRE_CLOSE)
      done = host_fail(&fault, RF_WIRE_BAD_REQUEST, "the plugin is not open");
    else done = SERVE[head.kind](&s, &out, &fault);
    host_busy(h, false);
    if (!done) {
      out.data = fault.text;
      out.bytes = strlen(fault.text);
    }
    rf_wire_answer answer = {RF_WIRE_MAGIC, done ? 0 : fault.code, out.bytes, rf_wire_now_ns() - begin};
    struct iovec part[2] = {{&answer, sizeof answer}, {(void *)out.data, out.bytes}};
    bool sent = send_all(socket, part, 2);
    free(out.owned);
    if (s.descriptor >= 0) close(s.descriptor);
    s.descriptor = -1;
    if (!sent || head.kind == RF_WIRE_CLOSE) break;
    if (rf_wire_is_execution(head.kind)) rf_wire_await(socket, h->spin_ns); /* the next request is near */
  }
  free(s.body);
}
