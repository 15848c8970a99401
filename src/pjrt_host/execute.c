/* execute.c - see host.h: executions of programs, with their transfers. */
#include <stdlib.h>
#include <string.h>

#include "pjrt_host/host.h"

/* The lists of the message, and the objects of one execution. Lists are device-major. */
struct host_execution {
  rf_wire_execute head;
  const int64_t *id;            /* (devices * arguments) */
  const rf_wire_staged *staged; /* (staged) */
  const rf_wire_wanted *wanted; /* (devices * results) */
  const uint8_t *donated;       /* (arguments) */
  host_program *program;
  size_t arguments, results; /* of all devices */
  void **argument, **result; /* buffers */
  void **temporary;          /* (staged) buffers that this execution creates and frees */
  void **donation;           /* (arguments) donated buffers, which the client can no longer name */
  void **event, **copied;    /* (devices), (results) */
  int64_t *kept;             /* (arguments) indices of arguments that are not donated */
  size_t kepts;
  int64_t *ids; /* (results) of kept results; 0: not kept */
  void *body;   /* copy of the message, and the lists above */
};
typedef struct host_execution execution;

/* Checks the sizes of the lists, and sets their pointers. */
static bool read_lists(execution *e, const host *h, const char *body, size_t bytes, host_fault *fault) {
  enum { LIMIT = 1 << 20 };
  if (bytes < sizeof e->head)
    return host_fail(fault, RF_WIRE_BAD_REQUEST, "execute: the message is too short");
  memcpy(&e->head, body, sizeof e->head);
  const rf_wire_execute *head = &e->head;
  if (head->devices > RF_WIRE_DEVICES || head->arguments > LIMIT || head->results > LIMIT ||
      head->staged > LIMIT)
    return host_fail(fault, RF_WIRE_BAD_REQUEST, "execute: too many arguments or results");
  e->arguments = (size_t)head->devices * head->arguments;
  e->results = (size_t)head->devices * head->results;
  size_t need = sizeof *head + e->arguments * sizeof *e->id + head->staged * sizeof *e->staged +
                e->results * sizeof *e->wanted + head->arguments;
  if (bytes != need)
    return host_fail(fault, RF_WIRE_BAD_REQUEST, "execute: %zu bytes (expected %zu)", bytes, need);
  e->id = (const int64_t *)(body + sizeof *head);
  e->staged = (const rf_wire_staged *)(e->id + e->arguments);
  e->wanted = (const rf_wire_wanted *)(e->staged + head->staged);
  e->donated = (const uint8_t *)(e->wanted + e->results);
  e->program = host_table_find(&h->programs, head->program);
  if (!e->program) return host_fail(fault, RF_WIRE_BAD_REQUEST, "execute: no program has this number");
  if (head->devices != (uint32_t)e->program->replicas || head->results != (uint32_t)e->program->results)
    return host_fail(fault, RF_WIRE_BAD_REQUEST,
                     "execute: %u devices and %u results (expected %d and %d, as the program has)",
                     head->devices, head->results, e->program->replicas, e->program->results);
  return true;
}

static bool find_arguments(execution *e, const host *h, host_fault *fault) {
  for (size_t i = 0; i < e->arguments; i++) {
    if (!e->id[i]) continue;
    e->argument[i] = host_table_find(&h->buffers, e->id[i]);
    if (!e->argument[i])
      return host_fail(fault, RF_WIRE_BAD_REQUEST, "execute: argument %zu names a buffer that does not exist",
                       i % e->head.arguments);
  }
  return true;
}

enum { KEPT_BYTES = 1 << 16 }; /* of one array */

/* The place for keeping an argument's array. NULL: the array is not kept. A large or donated array
 * is not kept, and neither is an array whose buffer may be in shared memory. */
static host_kept *kept_at(const execution *e, const host *h, const rf_wire_staged *staged) {
  host_program *program = e->program;
  int64_t bytes = host_shape_bytes(&staged->shape);
  if (!h->apart || bytes > KEPT_BYTES || e->donated[(size_t)staged->index % e->head.arguments]) return NULL;
  if (!program->kept) {
    program->kept = calloc(e->arguments, sizeof *program->kept);
    program->kepts = program->kept ? e->arguments : 0;
  }
  return (size_t)staged->index < program->kepts ? &program->kept[staged->index] : NULL;
}

static void drop(const host *h, host_kept *kept) {
  host_destroy(h, PJRT_BUFFER_DESTROY, kept->buffer);
  free(kept->data);
  *kept = (host_kept){0};
}

void host_drop_kept(const host *h, host_program *program) {
  for (size_t i = 0; i < program->kepts; i++) drop(h, &program->kept[i]);
  free(program->kept);
}

/* Puts an array on the device, unless the last execution left an array with the same bytes. */
static bool put_kept(const host *h, host_kept *kept, const rf_wire_staged *staged, int device,
                     const char *data, host_fault *fault) {
  int64_t bytes = host_shape_bytes(&staged->shape);
  bool same = kept->buffer && !memcmp(&kept->shape, &staged->shape, sizeof kept->shape);
  if (same && !memcmp(kept->data, data, (size_t)bytes)) return true;
  drop(h, kept);
  kept->data = malloc((size_t)bytes + 1);
  if (!kept->data) return host_fail(fault, RF_WIRE_BAD_REQUEST, "execute: out of memory");
  memcpy(kept->data, data, (size_t)bytes);
  kept->shape = staged->shape;
  return host_put(h, device, &staged->shape, data, PJRT_ONLY_DURING_CALL, &kept->buffer, fault);
}

/* Makes buffers from the arrays in shared memory. A buffer may use this memory directly, because
 * the client does not change the arrays before the execution ends. A donated argument may become a
 * result, so its buffer is a copy. */
static bool put_arguments(execution *e, const host *h, host_fault *fault) {
  for (uint32_t i = 0; i < e->head.staged; i++) {
    const rf_wire_staged *staged = &e->staged[i];
    if (staged->index < 0 || (size_t)staged->index >= e->arguments || e->argument[staged->index])
      return host_fail(fault, RF_WIRE_BAD_REQUEST, "execute: an array is for no argument");
    const char *data = host_range(h, e->head.shared, staged->at, host_shape_bytes(&staged->shape), fault);
    if (!data) return false;
    size_t device = (size_t)staged->index / e->head.arguments, at = (size_t)staged->index % e->head.arguments;
    host_kept *kept = kept_at(e, h, staged);
    if (kept) {
      if (!put_kept(h, kept, staged, (int)device, data, fault)) return false;
      e->argument[staged->index] = kept->buffer;
      continue;
    }
    int semantics = e->donated[at] ? PJRT_ONLY_DURING_CALL : PJRT_ZERO_COPY;
    if (!host_put(h, (int)device, &staged->shape, data, semantics, &e->temporary[i], fault)) return false;
    e->argument[staged->index] = e->temporary[i];
  }
  for (size_t i = 0; i < e->arguments; i++)
    if (!e->argument[i])
      return host_fail(fault, RF_WIRE_BAD_REQUEST, "execute: argument %zu is missing", i % e->head.arguments);
  return true;
}

/* Starts the program on all devices. The plugin's list of devices may have another order. */
static bool start(execution *e, const host *h, host_fault *fault) {
  void **argument_list[RF_WIRE_DEVICES], **result_list[RF_WIRE_DEVICES];
  for (uint32_t d = 0; d < e->head.devices; d++) {
    int device = e->program->order[d];
    if (device >= (int)e->head.devices)
      return host_fail(fault, RF_WIRE_BAD_REQUEST,
                       "execute: the program runs on device %d (expected 0 to %u)", device,
                       e->head.devices - 1);
    argument_list[d] = e->argument + (size_t)device * e->head.arguments;
    result_list[d] = e->result + (size_t)device * e->head.results;
  }
  for (uint32_t i = 0; i < e->head.arguments; i++)
    if (!e->donated[i]) e->kept[e->kepts++] = i;
  pjrt_execute_options options = {.struct_size = sizeof options, .kept = e->kept, .kepts = e->kepts};
  pjrt_execute run = {.loaded = e->program->loaded,
                      .options = &options,
                      .arguments = argument_list,
                      .devices = e->head.devices,
                      .argument_count = e->head.arguments,
                      .results = result_list,
                      .events = e->event};
  return HOST_CALL(h, PJRT_LOADED_EXECUTE, &run, "execute", fault);
}

static bool copy_results(execution *e, const host *h, host_fault *fault) {
  for (size_t i = 0; i < e->results; i++) {
    const rf_wire_wanted *wanted = &e->wanted[i];
    if (wanted->at < 0) continue;
    char *data = host_range(h, e->head.shared, wanted->at, wanted->bytes, fault);
    if (!data || !host_get(h, e->result[i], data, wanted->bytes, &e->copied[i], fault)) return false;
  }
  return true;
}

/* Frees the results that nobody copies or names, so that two executions do not have them at once. A
 * plugin keeps the memory of such a buffer until the execution no longer writes to it. */
static void drop_results(execution *e, const host *h) {
  for (size_t i = 0; i < e->results; i++) {
    if (e->wanted[i].at >= 0 || e->wanted[i].keep) continue;
    host_destroy(h, PJRT_BUFFER_DESTROY, e->result[i]);
    e->result[i] = NULL;
  }
}

/* Waits for all events, even after a failure, because the plugin may still write to shared
 * memory. */
static bool await_all(const host *h, void **event, size_t events, bool good, host_fault *fault) {
  host_fault unused;
  for (size_t i = 0; i < events; i++) {
    if (!event[i]) continue;
    if (!host_await(h, event[i], "execute", good ? fault : &unused)) good = false;
    event[i] = NULL;
  }
  return good;
}

/* From now on, the client can name the kept results, and cannot name the donated buffers. */
static void exchange_names(execution *e, host *h) {
  for (size_t i = 0; i < e->results; i++) {
    if (!e->wanted[i].keep) continue;
    e->ids[i] = host_table_add(&h->buffers, e->result[i]);
    e->result[i] = NULL;
  }
}

/* Frees the execution with the buffers that have no name. */
static void free_execution(execution *e, const host *h) {
  for (uint32_t i = 0; i < e->head.staged; i++) host_destroy(h, PJRT_BUFFER_DESTROY, e->temporary[i]);
  for (size_t i = 0; i < e->arguments; i++) host_destroy(h, PJRT_BUFFER_DESTROY, e->donation[i]);
  for (size_t i = 0; i < e->results; i++) host_destroy(h, PJRT_BUFFER_DESTROY, e->result[i]);
  free(e->body);
  free(e);
}

/* Copies the message, whose memory the next message takes, and makes room for the lists. */
static execution *new_execution(const host *h, const char *body, size_t bytes, host_fault *fault) {
  execution *e = calloc(1, sizeof *e);
  if (!e || !read_lists(e, h, body, bytes, fault)) {
    if (!e) host_fill(fault, RF_WIRE_BAD_REQUEST, "execute: out of memory");
    free(e);
    return NULL;
  }
  size_t pointers = 2 * e->arguments + 2 * e->results + e->head.staged + e->head.devices,
         lists = (pointers + e->results + e->head.arguments) * sizeof(void *);
  char *room = calloc(1, lists + bytes);
  if (!room) {
    host_fill(fault, RF_WIRE_BAD_REQUEST, "execute: out of memory");
    free(e);
    return NULL;
  }
  memcpy(room + lists, body, bytes);
  read_lists(e, h, room + lists, bytes, fault);
  e->body = room;
  e->argument = (void **)(void *)room;
  e->donation = e->argument + e->arguments;
  e->result = e->donation + e->arguments;
  e->copied = e->result + e->results;
  e->temporary = e->copied + e->results;
  e->event = e->temporary + e->head.staged;
  e->ids = (int64_t *)(void *)(e->event + e->head.devices);
  e->kept = e->ids + e->results;
  return e;
}

/* Starts the program and the copies of its results. NULL: that failed, and nothing is running. */
static execution *begin(host *h, const char *body, size_t bytes, host_fault *fault) {
  execution *e = new_execution(h, body, bytes, fault);
  if (!e) return NULL;
  bool good = find_arguments(e, h, fault) && put_arguments(e, h, fault) && start(e, h, fault);
  for (size_t i = 0; i < e->arguments; i++)
    if (e->donated[i % e->head.arguments] && e->id[i])
      e->donation[i] = host_table_take(&h->buffers, e->id[i]);
  if (good) drop_results(e, h);
  if (good && copy_results(e, h, fault)) return e;
  await_all(h, e->event, e->head.devices, false, fault);
  await_all(h, e->copied, e->results, false, fault);
  free_execution(e, h);
  return NULL;
}

static bool await_execution(execution *e, const host *h, host_fault *fault) {
  bool good = await_all(h, e->event, e->head.devices, true, fault);
  return await_all(h, e->copied, e->results, good, fault);
}

static void give_ids(const execution *e, int64_t **result, size_t *results) {
  *result = malloc((e->results + 1) * sizeof **result);
  *results = e->results;
  if (!*result) abort(); /* the client reports it */
  memcpy(*result, e->ids, e->results * sizeof **result);
}

bool host_execute(host *h, const char *body, size_t bytes, int64_t **result, size_t *results,
                  host_fault *fault) {
  execution *e = begin(h, body, bytes, fault);
  if (!e) return false;
  bool good = await_execution(e, h, fault);
  if (good) {
    exchange_names(e, h);
    give_ids(e, result, results);
  }
  free_execution(e, h);
  return good;
}

bool host_launch(host *h, const char *body, size_t bytes, int64_t **result, size_t *results,
                 host_fault *fault) {
  if (h->flights == RF_WIRE_FLIGHTS)
    return host_fail(fault, RF_WIRE_BAD_REQUEST, "launch: %d executions run already (expected fewer)",
                     h->flights);
  execution *e = begin(h, body, bytes, fault);
  if (!e) return false;
  exchange_names(e, h);
  give_ids(e, result, results);
  h->flight[h->flights++] = e;
  return true;
}

bool host_land(host *h, host_fault *fault) {
  if (!h->flights) return host_fail(fault, RF_WIRE_BAD_REQUEST, "land: no execution has been launched");
  execution *e = h->flight[0];
  for (int i = 1; i < h->flights; i++) h->flight[i - 1] = h->flight[i];
  h->flights--;
  bool good = await_execution(e, h, fault);
  free_execution(e, h);
  return good;
}

void host_land_all(host *h) {
  host_fault unused;
  while (h->flights) host_land(h, &unused);
}
