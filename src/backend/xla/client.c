/* client.c - see client.h. */
#define _GNU_SOURCE
#include "backend/xla/client.h"

#include <errno.h>
#include <stdio.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/xla/client_parts.h"
#include "base/file.h"

/* The PJRT_Buffer_Type of each dtype. 0: arrays of this dtype stay on the host. */
static const int32_t TYPE[RF_XLA_DTYPES] = {
    [RF_F32] = 11, [RF_BF16] = 13,    [RF_F16] = 10,     [RF_F64] = 12, [RF_I32] = 4,     [RF_I8] = 2,
    [RF_U8] = 6,   [RF_F8_E4M3] = 17, [RF_F8_E5M2] = 16, [RF_I64] = 5,  [RF_XLA_U32] = 8, [RF_XLA_U16] = 7,
};

static int64_t element_bytes(int dtype) {
  return dtype == RF_XLA_U32 ? 4 : dtype == RF_XLA_U16 ? 2 : rf_dtype_bytes((rf_dtype)dtype);
}

int64_t rf_xla_shape_bytes(const rf_xla_shape *shape) {
  int64_t bytes = element_bytes(shape->dtype);
  for (int i = 0; i < shape->rank; i++) bytes *= shape->dim[i];
  return bytes;
}

static rf_status fill_shape(const rf_xla_shape *shape, rf_wire_shape *out, rf_error *error) {
  if (!TYPE[shape->dtype] || shape->rank < 0 || shape->rank > RF_WIRE_RANK)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "an array of %s with %d dimensions cannot be on a device",
                   shape->dtype >= RF_DTYPES ? "integers" : rf_dtype_name((rf_dtype)shape->dtype),
                   shape->rank);
  *out = (rf_wire_shape){TYPE[shape->dtype], shape->rank, {0}};
  for (int i = 0; i < shape->rank; i++) out->dim[i] = shape->dim[i];
  return RAFTER_OK;
}

rf_status rf_xla_ask_for(rf_xla_client *client, const rf_xla_message *message, void *to, size_t size,
                         rf_error *error) {
  const void *answer = NULL;
  size_t bytes = 0;
  pthread_mutex_lock(&client->lock);
  rf_status status = rf_xla_ask(client, message, &answer, &bytes, error);
  if (status == RAFTER_OK && bytes != size)
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "%s: the answer has %zu bytes (expected %zu)", message->what,
                     bytes, size);
  if (status == RAFTER_OK && size) memcpy(to, answer, size);
  pthread_mutex_unlock(&client->lock);
  return status;
}

static void copy_facts(const rf_wire_facts *from, rf_xla_facts *to) {
  *to = (rf_xla_facts){.api_major = from->api_major,
                       .api_minor = from->api_minor,
                       .devices = from->devices,
                       .memory_bytes = from->memory_bytes,
                       .has_topologies = from->has_topologies,
                       .has_memory_stats = from->has_memory_stats,
                       .has_cost = from->has_cost,
                       .has_profiler = from->profiles};
  memcpy(to->stablehlo, from->stablehlo, sizeof to->stablehlo);
  memcpy(to->stablehlo_oldest, from->stablehlo_oldest, sizeof to->stablehlo_oldest);
  snprintf(to->platform, sizeof to->platform, "%s", from->platform);
  snprintf(to->version, sizeof to->version, "%s", from->version);
  snprintf(to->kind, sizeof to->kind, "%s", from->kind);
}

static void keep_settings(rf_xla_client *client, const rf_wire_option *option, size_t options_bytes,
                          const char *text, size_t bytes) {
  client->settings_bytes = options_bytes + bytes;
  client->settings = rf_must(malloc(client->settings_bytes + 1));
  memcpy(client->settings, option, options_bytes);
  memcpy((char *)client->settings + options_bytes, text, bytes);
}

static rf_status open_plugin(rf_xla_client *client, const rf_xla_settings *settings, rf_error *error) {
  const rf_xla_hosts *hosts = &settings->hosts;
  const char *address = client->hosts > 1 ? hosts->address : "";
  rf_wire_open open = {.compile_only = settings->compile_only,
                       .options = (uint32_t)settings->options,
                       .host = (uint32_t)client->host,
                       .hosts = (uint32_t)client->hosts,
                       .port = (uint32_t)hosts->port,
                       .address_bytes = (uint32_t)strlen(address),
                       .cores = (uint32_t)omp_get_num_procs()};
  rf_wire_option option[RF_WIRE_OPTIONS];
  char text[16384];
  const void *answer = NULL;
  size_t used = 0, bytes = 0;
  if (settings->options > RF_WIRE_OPTIONS)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "%d options of the plugin (expected at most %d)",
                   settings->options, RF_WIRE_OPTIONS);
  for (int i = 0; i < settings->options; i++) {
    const rf_xla_option *from = &settings->option[i];
    size_t name = strlen(from->name), value = from->text ? strlen(from->text) : 0;
    if (name + value > sizeof text - used)
      return RF_FAIL(error, RAFTER_INVALID, NULL, "the options of the plugin have more than %zu bytes",
                     sizeof text);
    option[i] = (rf_wire_option){(uint32_t)name, (uint32_t)value, !from->text, 0, from->number};
    memcpy(text + used, from->name, name);
    if (value) memcpy(text + used + name, from->text, value);
    used += name + value;
  }
  keep_settings(client, option, (size_t)settings->options * sizeof *option, text, used);
  rf_xla_message message = {.kind = RF_WIRE_OPEN,
                            .what = "open the plugin",
                            .parts = 4,
                            .stoppable = true,
                            .part = {{&open, sizeof open},
                                     {option, (size_t)settings->options * sizeof *option},
                                     {text, used},
                                     {(void *)(uintptr_t)address, open.address_bytes}}};
  RF_TRY(rf_xla_ask(client, &message, &answer, &bytes, error));
  rf_wire_facts facts;
  if (bytes < sizeof facts)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "open the plugin: the answer is too short");
  memcpy(&facts, answer, sizeof facts);
  size_t ids = (size_t)facts.devices * (size_t)client->hosts * sizeof *client->device_id;
  if (facts.devices < 0 || bytes != sizeof facts + ids)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "open the plugin: the answer has the wrong size");
  copy_facts(&facts, &client->facts);
  client->spin_ns = rf_wire_spin_ns(client->facts.platform, omp_get_num_procs());
  client->stores = facts.stores;
  client->device_id = rf_must(malloc(ids + 1));
  memcpy(client->device_id, (const char *)answer + sizeof facts, ids);
  return RAFTER_OK;
}

rf_status rf_xla_open(const rf_xla_settings *settings, rf_xla_client **out, rf_error *error) {
  int file = -1;
  /* If a name has no slash, dlopen searches the folders of the system. */
  char *path = realpath(settings->plugin, NULL);
  if (!path)
    return RF_FAIL(error, RAFTER_INVALID,
                   "name the shared library of a PJRT plugin; ./dev setup --xla installs some",
                   "plugin %s: %s", settings->plugin, strerror(errno));
  if (rf_file_open(path, NULL, &file, error) != RAFTER_OK) {
    free(path);
    return RF_FAIL(error, RAFTER_INVALID, "name the shared library of a PJRT plugin",
                   "plugin %s: not a readable file", settings->plugin);
  }
  close(file);
  rf_xla_client *client = rf_must(calloc(1, sizeof *client));
  pthread_mutex_init(&client->lock, NULL);
  client->socket = client->log = -1;
  client->plugin = path;
  client->stop = settings->stop;
  client->waiting = settings->waiting;
  client->context = settings->context;
  client->compile_only = settings->compile_only;
  client->hosts = settings->hosts.hosts > 1 ? settings->hosts.hosts : 1;
  client->host = client->hosts > 1 ? settings->hosts.host : 0;
  rf_status status = rf_xla_start(client, error);
  if (status == RAFTER_OK) status = open_plugin(client, settings, error);
  if (status != RAFTER_OK) {
    rf_xla_close(client);
    return status;
  }
  *out = client;
  return RAFTER_OK;
}

void rf_xla_close(rf_xla_client *client) {
  if (!client) return;
  const void *answer = NULL;
  size_t bytes = 0;
  if (!client->lost && client->child) {
    rf_error unused;
    rf_xla_message message = {.kind = RF_WIRE_CLOSE, .what = "close"};
    bool closed = rf_xla_ask(client, &message, &answer, &bytes, &unused) == RAFTER_OK;
    rf_xla_end(client, closed);
  }
  if (client->socket >= 0) close(client->socket);
  if (client->log >= 0) close(client->log);
  pthread_mutex_destroy(&client->lock);
  free(client->device_id);
  free(client->settings);
  free(client->answer);
  free(client->plugin);
  free(client);
}

const rf_xla_facts *rf_xla_facts_of(const rf_xla_client *client) { return &client->facts; }
bool rf_xla_lost(const rf_xla_client *client) { return client->lost; }

/* ---- programs -------------------------------------------------------------------------------- */

static void copy_stats(const rf_wire_program *from, rf_xla_stats *to) {
  *to = (rf_xla_stats){.argument = from->argument,
                       .output = from->output,
                       .alias = from->alias,
                       .temporary = from->temporary,
                       .code = from->code,
                       .total = -1,
                       .flops = from->flops,
                       .bytes_accessed = from->bytes_accessed};
  if (from->argument >= 0) to->total = from->argument + from->output - from->alias + from->temporary;
}

static rf_status compile(rf_xla_client *client, const rf_xla_compile *of, void *options, size_t options_bytes,
                         rf_wire_program *program, rf_error *error) {
  const char *topology = of->topology ? of->topology : "", *target = of->target ? of->target : "";
  rf_wire_compile compile = {of->bytes, options_bytes, strlen(topology), strlen(target)};
  rf_xla_message message = {.kind = RF_WIRE_COMPILE,
                            .what = "compile",
                            .parts = 5,
                            .stoppable = true,
                            .part = {{&compile, sizeof compile},
                                     {(void *)(uintptr_t)of->text, of->bytes},
                                     {options, options_bytes},
                                     {(void *)(uintptr_t)topology, strlen(topology)},
                                     {(void *)(uintptr_t)target, strlen(target)}}};
  return rf_xla_ask_for(client, &message, program, sizeof *program, error);
}

/* Loads a program from the cache. If the program is not in the cache, returns RAFTER_OK and *found
 * stays false. */
static rf_status load(rf_xla_client *client, const rf_xla_compile *of, const char *path,
                      rf_wire_program *made, bool *found, rf_error *error) {
  void *data = NULL;
  size_t bytes = 0;
  rf_wire_program stored;
  if (!rf_xla_cache_read(path, &stored, &data, &bytes)) return RAFTER_OK;
  *made = stored;
  rf_status status = RAFTER_OK;
  if (of->topology) {
    *found = true;
  } else {
    rf_error refused;
    rf_xla_message message = {.kind = RF_WIRE_LOAD,
                              .what = "load a compiled program",
                              .parts = 1,
                              .stoppable = true,
                              .part = {{data, bytes}}};
    status = rf_xla_ask_for(client, &message, made, sizeof *made, &refused);
    *found = status == RAFTER_OK && made->replicas == of->replicas / client->hosts &&
             made->results == stored.results;
    if (*found) { /* a loaded program may not know its statistics */
      stored.program = made->program;
      *made = stored;
    } else if (status != RAFTER_INTERRUPTED) {
      unlink(path);
    }
    /* This function has removed the file that made the plugin end, so the next run compiles the
     * program again. */
    if (status != RAFTER_OK && (client->lost || status == RAFTER_INTERRUPTED)) *error = refused;
    else status = RAFTER_OK;
  }
  free(data);
  return status;
}

/* Stores a compiled program, if the plugin can do so. */
static void store(rf_xla_client *client, const rf_xla_compile *of, const char *path,
                  const rf_wire_program *made) {
  const void *answer = NULL;
  size_t bytes = 0;
  rf_error unused;
  if (of->topology) {
    rf_xla_cache_write(of->cache, path, made, NULL, 0);
    return;
  }
  if (!client->stores) return;
  rf_xla_message message = {.kind = RF_WIRE_STORE,
                            .what = "store a compiled program",
                            .parts = 1,
                            .part = {{(void *)(uintptr_t)&made->program, sizeof made->program}}};
  pthread_mutex_lock(&client->lock);
  if (rf_xla_ask(client, &message, &answer, &bytes, &unused) == RAFTER_OK)
    rf_xla_cache_write(of->cache, path, made, answer, bytes);
  pthread_mutex_unlock(&client->lock);
}

rf_status rf_xla_program(rf_xla_client *client, const rf_xla_compile *of, rf_xla_id *program,
                         rf_xla_stats *stats, rf_error *error) {
  void *options = NULL;
  size_t options_bytes = 0;
  bool cached = false;
  char path[4096];
  rf_wire_program made = {0};
  rf_status status = RAFTER_OK;
  bool keeps = of->cache && client->hosts == 1;
  RF_TRY(rf_xla_compile_options(client, of, &options, &options_bytes, error));
  if (keeps) {
    rf_xla_cache_path(client, of, options, options_bytes, path, sizeof path);
    RF_GO(load(client, of, path, &made, &cached, error));
  }
  double begin = rf_now_seconds();
  if (!cached) RF_GO(compile(client, of, options, options_bytes, &made, error));
  if (stats) {
    copy_stats(&made, stats);
    stats->cached = cached;
    stats->seconds = cached ? 0 : rf_now_seconds() - begin;
  }
  if (keeps && !cached) store(client, of, path, &made);
  *program = made.program;
done:
  free(options);
  return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

rf_status rf_xla_share(rf_xla_client *client, int64_t bytes, rf_xla_shared *shared, rf_error *error) {
  int id = 0, file = -1;
  void *data = MAP_FAILED;
  rf_status status;
  pthread_mutex_lock(&client->lock);
  while (id < RF_WIRE_SHARED && client->shared[id]) id++;
  if (id < RF_WIRE_SHARED) client->shared[id] = true;
  pthread_mutex_unlock(&client->lock);
  if (id == RF_WIRE_SHARED)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "more than %d shared memories", RF_WIRE_SHARED);
  size_t size = bytes > 0 ? (size_t)bytes : 1;
  file = memfd_create("rafter-pjrt", MFD_CLOEXEC);
  if (file >= 0 && !ftruncate(file, (off_t)size))
    data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) {
    status = RF_FAIL(error, RAFTER_FAILED, NULL, "cannot map %lld bytes of shared memory: %s",
                     (long long)size, strerror(errno));
  } else {
    rf_wire_share share = {id, (int64_t)size};
    rf_xla_message message = {.kind = RF_WIRE_SHARE,
                              .what = "share memory",
                              .parts = 1,
                              .part = {{&share, sizeof share}},
                              .descriptor = file};
    status = rf_xla_ask_for(client, &message, NULL, 0, error);
  }
  if (file >= 0) close(file);
  if (status == RAFTER_OK) {
    *shared = (rf_xla_shared){data, (int64_t)size, id};
    return RAFTER_OK;
  }
  if (data != MAP_FAILED) munmap(data, size);
  pthread_mutex_lock(&client->lock);
  client->shared[id] = false;
  pthread_mutex_unlock(&client->lock);
  return status;
}

void rf_xla_unshare(rf_xla_client *client, rf_xla_shared *shared) {
  rf_error unused;
  if (!shared->data) return;
  rf_wire_share share = {shared->id, shared->bytes};
  rf_xla_message message = {
      .kind = RF_WIRE_UNSHARE, .what = "unshare memory", .parts = 1, .part = {{&share, sizeof share}}};
  if (rf_xla_ask_for(client, &message, NULL, 0, &unused) == RAFTER_OK) {
    pthread_mutex_lock(&client->lock);
    client->shared[shared->id] = false;
    pthread_mutex_unlock(&client->lock);
  }
  munmap(shared->data, (size_t)shared->bytes);
  *shared = (rf_xla_shared){0};
}

rf_status rf_xla_put(rf_xla_client *client, int device, const rf_xla_shape *shape, const rf_xla_shared *from,
                     int64_t at, rf_xla_id *buffer, rf_error *error) {
  rf_wire_put put = {.device = device, .shared = from->id, .at = at};
  RF_TRY(fill_shape(shape, &put.shape, error));
  rf_xla_message message = {
      .kind = RF_WIRE_PUT, .what = "copy to the device", .parts = 1, .part = {{&put, sizeof put}}};
  return rf_xla_ask_for(client, &message, buffer, sizeof *buffer, error);
}

rf_status rf_xla_get(rf_xla_client *client, rf_xla_id buffer, const rf_xla_shared *to, int64_t at,
                     int64_t bytes, rf_error *error) {
  rf_wire_get get = {buffer, to->id, at, bytes};
  rf_xla_message message = {
      .kind = RF_WIRE_GET, .what = "copy from the device", .parts = 1, .part = {{&get, sizeof get}}};
  return rf_xla_ask_for(client, &message, NULL, 0, error);
}

void rf_xla_free(rf_xla_client *client, const rf_xla_id *buffer, int count) {
  rf_error unused;
  if (count < 1) return;
  rf_xla_message message = {.kind = RF_WIRE_FREE,
                            .what = "free buffers",
                            .parts = 1,
                            .part = {{(void *)(uintptr_t)buffer, (size_t)count * sizeof *buffer}}};
  rf_xla_ask_for(client, &message, NULL, 0, &unused);
}

void rf_xla_program_free(rf_xla_client *client, rf_xla_id program) {
  rf_error unused;
  rf_xla_message message = {
      .kind = RF_WIRE_DROP, .what = "free a program", .parts = 1, .part = {{&program, sizeof program}}};
  rf_xla_ask_for(client, &message, NULL, 0, &unused);
}

_Static_assert((int)RF_XLA_FLIGHTS == RF_WIRE_FLIGHTS, "the child process refuses more");

/* ---- execution ------------------------------------------------------------------------------- */

/* Counts `calls` executions, and the time since `begin`. */
static void add_times(rf_xla_client *client, int calls, double begin) {
  pthread_mutex_lock(&client->lock);
  client->times.calls += calls;
  client->times.seconds += rf_now_seconds() - begin;
  pthread_mutex_unlock(&client->lock);
}

static rf_status ask_to_execute(rf_xla_client *client, rf_wire_kind kind, const rf_xla_call *call,
                                const bool *donated, rf_error *error) {
  double begin = rf_now_seconds();
  size_t arguments = (size_t)call->devices * (size_t)call->arguments;
  size_t results = (size_t)call->devices * (size_t)call->results, staged = 0;
  for (size_t i = 0; i < arguments; i++) staged += !call->argument[i].buffer;
  rf_wire_execute head = {.program = call->program,
                          .shared = call->shared ? call->shared->id : -1,
                          .devices = (uint32_t)call->devices,
                          .arguments = (uint32_t)call->arguments,
                          .results = (uint32_t)call->results,
                          .staged = (uint32_t)staged};
  size_t bytes =
      arguments * sizeof(int64_t) + staged * sizeof(rf_wire_staged) + results * sizeof(rf_wire_wanted);
  char *room = malloc(bytes + (size_t)call->arguments + results * sizeof(int64_t) + 1);
  if (!room) return RF_FAIL(error, RAFTER_FAILED, NULL, "execute: out of memory");
  int64_t *id = (int64_t *)room, *made = (int64_t *)(room + bytes);
  rf_wire_staged *array = (rf_wire_staged *)(id + arguments);
  rf_wire_wanted *wanted = (rf_wire_wanted *)(array + staged);
  char *flag = room + bytes + results * sizeof *made;
  rf_status status = RAFTER_OK;
  for (size_t i = 0; i < arguments; i++) {
    id[i] = call->argument[i].buffer;
    if (id[i]) continue;
    *array = (rf_wire_staged){.index = (int64_t)i, .at = call->argument[i].at};
    RF_GO(fill_shape(&call->argument[i].shape, &array->shape, error));
    array++;
  }
  for (size_t i = 0; i < results; i++)
    wanted[i] = (rf_wire_wanted){call->result[i].at, call->result[i].bytes, call->result[i].keep};
  for (int i = 0; i < call->arguments; i++) flag[i] = donated && donated[i];
  rf_xla_message message = {.kind = kind,
                            .what = "execute",
                            .parts = 3,
                            .part = {{&head, sizeof head}, {room, bytes}, {flag, (size_t)call->arguments}}};
  RF_GO(rf_xla_ask_for(client, &message, made, results * sizeof *made, error));
  for (size_t i = 0; i < results; i++) call->result[i].buffer = made[i];
  add_times(client, 1, begin);
done:
  free(room);
  return status;
}

rf_status rf_xla_execute(rf_xla_client *client, const rf_xla_call *call, const bool *donated,
                         rf_error *error) {
  return ask_to_execute(client, RF_WIRE_EXECUTE, call, donated, error);
}

rf_status rf_xla_launch(rf_xla_client *client, const rf_xla_call *call, const bool *donated,
                        rf_error *error) {
  return ask_to_execute(client, RF_WIRE_LAUNCH, call, donated, error);
}

rf_status rf_xla_land(rf_xla_client *client, rf_error *error) {
  double begin = rf_now_seconds();
  rf_xla_message message = {.kind = RF_WIRE_LAND, .what = "execute"};
  RF_TRY(rf_xla_ask_for(client, &message, NULL, 0, error));
  add_times(client, 0, begin);
  return RAFTER_OK;
}

rf_xla_times rf_xla_times_of(const rf_xla_client *client) { return client->times; }
