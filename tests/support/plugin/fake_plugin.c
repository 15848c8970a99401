/* fake_plugin.c - a PJRT plugin without a compiler. A program copies argument 0 to each result.
 * Words in the program's text and in the variable FAKE_PLUGIN ask for faults:
 *   text: fake.abort, fake.hang, fake.exhausted, fake.refuse (when it compiles);
 *         fake.run_abort, fake.run_exhausted (when it runs); fake.late_abort, fake.late_refuse
 *         (when the host waits for it); fake.results=N; fake.live (the result is the number of
 *         living buffers, an int64)
 *   FAKE_PLUGIN: version=M, slots=N, devices=N, open_abort, open_refuse, open_hang, load_abort,
 *         load_refuse, no_store, quiet, refuse_nodes, ignore_nodes, number_nodes (wrongly),
 *         die_at=N (the execution that aborts, from 1), hang_at=N, late_at=N (it fails when the
 *         host waits for it); those of fake_profiler.h
 * In a program that rafter writes, a result that takes the memory of an f32 argument is half of it
 * plus 1. Other results are made of the sum of all i32 arguments of all devices of all hosts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_hosts.h"
#include "fake_profiler.h"
#include "pjrt_host/pjrt_abi.h"

enum { MOST_DEVICES = 64, SLOTS = 100, MAGIC = 12345 };

typedef struct failure {
  int code;
  char text[200];
} failure;
typedef struct buffer {
  char *data;
  size_t bytes, rank;
  int64_t dim[8];
  int type;
  bool donated;
} buffer;
typedef struct executable {
  int magic, replicas, results;
  char text[400];      /* the words of the program's text */
  fake_result *result; /* (results) of a program that rafter writes; NULL: another program */
  char **name;         /* of the ops of such a program; NULL */
} executable;

static int device[MOST_DEVICES], devices = 4, live, first, executions;
static int process[MOST_DEVICES]; /* of a device */
static void *device_list[MOST_DEVICES];
static fake_nodes nodes;

static void *fail(int code, const char *text) {
  failure *made = calloc(1, sizeof *made);
  made->code = code;
  snprintf(made->text, sizeof made->text, "%s", text);
  return made;
}

static bool asked(const char *word) {
  const char *all = getenv("FAKE_PLUGIN");
  return all && strstr(all, word);
}

static int number_after(const char *text, const char *word, int otherwise) {
  const char *at = text ? strstr(text, word) : NULL;
  return at ? atoi(at + strlen(word)) : otherwise;
}

static _Noreturn void die(const char *text) {
  if (!asked("quiet"))
    fprintf(stderr, "a line of the log\nF0101 fake.cc:1] %s\n*** stack trace: ***\n", text);
  abort();
}

static _Noreturn void hang(void) {
  for (;;) pause();
}

enum { FINE, REFUSES, ABORTS };
static void *event_with(int64_t fate) {
  int64_t *made = malloc(sizeof *made);
  *made = fate;
  return made;
}
static void *event(void) { return event_with(FINE); }

static void *error_destroy(void *p) {
  free(((pjrt_on_object *)p)->object);
  return NULL;
}
static void *error_message(void *p) {
  pjrt_error_message *args = p;
  args->text = ((failure *)args->error)->text;
  args->bytes = strlen(args->text);
  return NULL;
}
static void *error_code(void *p) {
  pjrt_number_of *args = p;
  args->number = ((failure *)args->object)->code;
  return NULL;
}
static void *nothing(void *p) {
  (void)p;
  return NULL;
}

/* Events are ready at the third question. */
static void *is_ready(void *args) {
  static int asked;
  ((pjrt_is_ready *)args)->ready = ++asked % 3 == 0;
  return NULL;
}
static void *attributes(void *p) {
  static const int64_t now[] = {1, 20, 0}, oldest[] = {0, 9, 0};
  static const pjrt_named list[] = {
      {56, NULL, "stablehlo_current_version", 25, PJRT_INT64_LIST, {.list = now}, 3},
      {56, NULL, "stablehlo_minimum_version", 25, PJRT_INT64_LIST, {.list = oldest}, 3},
  };
  pjrt_attributes *args = p;
  args->value = list;
  args->count = 2;
  return NULL;
}
static void *event_await(void *p) {
  int64_t fate = *(const int64_t *)((pjrt_on_object *)p)->object;
  if (fate == ABORTS) die("Check failed: a late result");
  return fate == REFUSES ? fail(13, "the execution failed late") : NULL;
}
static void *free_object(void *p) {
  free(((pjrt_on_object *)p)->object);
  return NULL;
}

static bool take_node_option(const pjrt_named *option) {
  bool node = option->name_bytes == 7 && !memcmp(option->name, "node_id", 7);
  if (!node && (option->name_bytes != 9 || memcmp(option->name, "num_nodes", 9))) return false;
  if (asked("refuse_nodes")) return false;
  if (asked("ignore_nodes")) return true;
  *(node ? &nodes.node : &nodes.nodes) = (int)option->value.number;
  return true;
}

static void *client_create(void *p) {
  pjrt_client_create *args = p;
  const pjrt_named *option = args->option;
  if (asked("open_abort")) die("Check failed: no device");
  if (asked("open_hang")) hang();
  if (asked("open_refuse")) return fail(5, "no device was found");
  devices = number_after(getenv("FAKE_PLUGIN"), "devices=", 4);
  nodes = (fake_nodes){0};
  for (size_t i = 0; i < args->options; i++) {
    if (take_node_option(&option[i])) continue;
    if (option[i].type != PJRT_INT64 || strncmp(option[i].name, "cpu_device_count", option[i].name_bytes))
      return fail(3, "Unexpected option name passed to PJRT_Client_Create");
    devices = (int)option[i].value.number;
  }
  if (devices > MOST_DEVICES / FAKE_NODES) return fail(3, "too many devices");
  const char *failed = fake_join(&nodes, args, devices);
  if (failed) return fail(13, failed);
  first = 0;
  for (int node = 0, i = 0; node < (nodes.nodes > 1 ? nodes.nodes : 1); node++) {
    if (node == nodes.node) first = i;
    for (int k = 0; k < nodes.devices[node]; k++, i++) {
      device[i] = 10 + i;
      process[i] = node;
      device_list[i] = &device[i];
    }
  }
  args->client = &devices;
  return NULL;
}
static void *platform_name(void *p) {
  pjrt_text_of *args = p;
  args->text = "fake";
  args->bytes = 4;
  return NULL;
}
static void *list_devices(void *p) {
  pjrt_list_of *args = p;
  args->list = device_list + first;
  args->count = (size_t)devices;
  return NULL;
}
static void *list_all(void *p) {
  pjrt_list_of *args = p;
  args->list = device_list;
  args->count = 0;
  for (int i = 0; i < (nodes.nodes > 1 ? nodes.nodes : 1); i++) args->count += (size_t)nodes.devices[i];
  return NULL;
}
static void *process_index(void *p) {
  pjrt_number_of *args = p;
  args->number = asked("number_nodes") ? nodes.nodes - 1 - nodes.node : nodes.node;
  return NULL;
}
static void *description_process(void *p) {
  pjrt_number_of *args = p;
  args->number = process[(int *)args->object - device];
  return NULL;
}
static void *description_id(void *p) {
  pjrt_number_of *args = p;
  args->number = *(int *)args->object;
  return NULL;
}
static void *itself(void *p) { /* the description of a device is the device */
  pjrt_object_of *args = p;
  args->result = args->object;
  return NULL;
}
static void *memory_stats(void *p) {
  pjrt_memory_stats *args = p;
  args->limit = 1 << 20;
  args->has_limit = true;
  return NULL;
}

static void *make(const char *text, size_t bytes, const unsigned char *options, void **made) {
  executable *program = calloc(1, sizeof *program);
  snprintf(program->text, sizeof program->text, "%.*s", (int)bytes, text);
  program->magic = MAGIC;
  program->replicas = options ? options[3] : 1;
  program->result = calloc(FAKE_RESULTS, sizeof *program->result);
  program->results = fake_results(text, bytes, program->result);
  if (!program->results) {
    program->results = number_after(program->text, "fake.results=", 1);
    free(program->result);
    program->result = NULL;
  } else program->name = fake_names(text, bytes);
  const char *fault = program->text;
  if (strstr(fault, "fake.abort")) die("Check failed: replica_count > 0");
  if (strstr(fault, "fake.hang")) hang();
  *made = program;
  if (strstr(fault, "fake.exhausted"))
    return fail(8, "Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm.");
  if (strstr(fault, "fake.refuse")) return fail(3, "line 1: expected an operation");
  return NULL;
}
static void *client_compile(void *p) {
  pjrt_client_compile *args = p;
  return make(args->program->code, args->program->code_bytes, (const void *)args->options, &args->loaded);
}
static void *topology_create(void *p) {
  pjrt_topology_create *args = p;
  if (args->name_bytes != 8 || memcmp(args->name, "fake:2x2", 8)) return fail(3, "unknown topology");
  args->topology = calloc(1, 8);
  return NULL;
}
static void *compile(void *p) {
  pjrt_compile *args = p;
  return make(args->program->code, args->program->code_bytes, (const void *)args->options, &args->executable);
}
static void *get_executable(void *p) {
  pjrt_object_of *args = p;
  executable *copy = malloc(sizeof *copy);
  *copy = *(executable *)args->object;
  args->result = copy;
  return NULL;
}
static void *loaded_devices(void *p) {
  pjrt_list_of *args = p;
  args->list = device_list + first;
  args->count = (size_t)(((executable *)args->object)->replicas / (nodes.nodes > 1 ? nodes.nodes : 1));
  return NULL;
}
static void *count_results(void *p) {
  pjrt_size_of *args = p;
  args->number = (size_t)((executable *)args->object)->results;
  return NULL;
}
static void *program_memory(void *p) {
  pjrt_memory *args = p;
  args->argument = 100;
  args->output = 50;
  args->alias = 20;
  args->temporary = 30;
  args->code = 7;
  return NULL;
}
static void *costs(void *p) {
  static const pjrt_named list[] = {
      {56, NULL, "flops", 5, PJRT_FLOAT, {.real = 64}, 1},
      {56, NULL, "bytes accessed", 14, PJRT_FLOAT, {.real = 32}, 1},
  };
  pjrt_costs *args = p;
  args->value = list;
  args->count = 2;
  return NULL;
}
static void *optimized(void *p) {
  pjrt_optimized *args = p;
  const executable *of = args->executable;
  if (of->name) {
    char *program = fake_program(of->name, &args->program->code_bytes);
    if (args->program->code) memcpy(args->program->code, program, args->program->code_bytes);
    free(program);
    return NULL;
  }
  if (args->program->code) memcpy(args->program->code, "optimized", 9);
  args->program->code_bytes = 9;
  return NULL;
}
static void *serialize(void *p) {
  pjrt_serialize *args = p;
  if (asked("no_store") || ((executable *)args->executable)->result) return fail(12, "not implemented");
  args->owner = malloc(sizeof(executable));
  memcpy(args->owner, args->executable, sizeof(executable));
  args->data = args->owner;
  args->bytes = sizeof(executable);
  args->release = free;
  return NULL;
}
static void *deserialize(void *p) {
  pjrt_deserialize *args = p;
  if (asked("load_abort")) die("Check failed: bad program");
  if (asked("load_refuse") || args->bytes != sizeof(executable) || *(const int *)args->data != MAGIC)
    return fail(3, "not a program");
  args->loaded = malloc(sizeof(executable));
  memcpy(args->loaded, args->data, sizeof(executable));
  return NULL;
}

static size_t element_bytes(int type) {
  static const unsigned char BYTES[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2};
  return BYTES[type];
}

static buffer *make_buffer(int type, const int64_t *dim, size_t rank, const void *data) {
  buffer *made = calloc(1, sizeof *made);
  made->type = type;
  made->rank = rank;
  made->bytes = element_bytes(type);
  for (size_t i = 0; i < rank; i++) made->bytes *= (size_t)(made->dim[i] = dim[i]);
  made->data = calloc(made->bytes + 1, 1);
  if (data) memcpy(made->data, data, made->bytes);
  live++;
  return made;
}
static void *from_host(void *p) {
  pjrt_from_host *args = p;
  args->buffer = make_buffer(args->type, args->dim, args->dims, args->data);
  args->done = event();
  return NULL;
}
static void *buffer_destroy(void *p) {
  buffer *made = ((pjrt_on_object *)p)->object;
  free(made->data);
  free(made);
  live--;
  return NULL;
}
static void *buffer_type(void *p) {
  pjrt_number_of *args = p;
  args->number = ((buffer *)args->object)->type;
  return NULL;
}
static void *buffer_dimensions(void *p) {
  pjrt_dimensions *args = p;
  args->dim = ((buffer *)args->buffer)->dim;
  args->dims = ((buffer *)args->buffer)->rank;
  return NULL;
}
static void *to_host(void *p) {
  pjrt_to_host *args = p;
  const buffer *from = args->buffer;
  if (args->bytes < from->bytes) return fail(3, "the host's memory is too short");
  memcpy(args->data, from->data, from->bytes);
  args->event = event();
  return NULL;
}

static const char *sum_of(const pjrt_execute *args, int64_t *sum) {
  for (size_t d = 0; d < args->devices; d++)
    for (size_t i = 0; i < args->argument_count; i++) {
      const buffer *b = args->arguments[d][i];
      for (size_t k = 0; b->type == 4 && k < b->bytes / 4; k++)
        *sum += ((const int32_t *)(const void *)b->data)[k];
    }
  return fake_sum(&nodes, sum);
}

static buffer *make_result(const fake_result *r, void *const *argument, int64_t sum) {
  buffer *made = make_buffer(r->type, r->dim, (size_t)r->rank, NULL);
  const buffer *from = r->alias >= 0 ? argument[r->alias] : NULL;
  if (from) memcpy(made->data, from->data, made->bytes);
  float *value = (float *)(void *)made->data;
  for (size_t k = 0; r->type == 11 && k < made->bytes / 4; k++)
    value[k] = from ? value[k] * 0.5f + 1 : 1 + (float)(sum % 1000) / 1000 + (float)k;
  return made;
}

/* How the execution ends when the host waits for it. */
static int64_t fate_of(const executable *program) {
  if (strstr(program->text, "fake.late_abort")) return ABORTS;
  bool late = executions == number_after(getenv("FAKE_PLUGIN"), "late_at=", 0);
  return late || strstr(program->text, "fake.late_refuse") ? REFUSES : FINE;
}

static void *execute(void *p) {
  pjrt_execute *args = p;
  const executable *program = args->loaded;
  int64_t sum = 0;
  if (++executions == number_after(getenv("FAKE_PLUGIN"), "die_at=", 0)) die("Check failed: this execution");
  if (executions == number_after(getenv("FAKE_PLUGIN"), "hang_at=", 0)) hang();
  const char *failed = program->result || strstr(program->text, "fake.sum") ? sum_of(args, &sum) : NULL;
  if (failed) return fail(13, failed);
  if (strstr(program->text, "fake.run_abort")) die("Check failed: a result");
  if (strstr(program->text, "fake.run_exhausted")) return fail(8, "Out of memory allocating 1000 bytes.");
  fake_profiled(program->name);
  int64_t alive = live;
  for (size_t d = 0; d < args->devices; d++) {
    for (size_t i = 0; i < args->argument_count; i++)
      if (((buffer *)args->arguments[d][i])->donated) return fail(3, "Buffer has been deleted or donated.");
    const buffer *front = args->argument_count ? args->arguments[d][0] : NULL;
    for (int i = 0; i < program->results; i++) {
      if (program->result) args->results[d][i] = make_result(&program->result[i], args->arguments[d], sum);
      else if (strstr(program->text, "fake.sum")) args->results[d][i] = make_buffer(5, NULL, 0, &sum);
      else if (strstr(program->text, "fake.live") || !front)
        args->results[d][i] = make_buffer(5, NULL, 0, &alive);
      else args->results[d][i] = make_buffer(front->type, front->dim, front->rank, front->data);
    }
    for (size_t i = 0; i < args->argument_count; i++) ((buffer *)args->arguments[d][i])->donated = true;
    for (size_t i = 0; i < args->options->kepts; i++)
      ((buffer *)args->arguments[d][args->options->kept[i]])->donated = false;
    if (args->events) args->events[d] = event_with(fate_of(program));
  }
  return NULL;
}

__attribute__((visibility("default"))) const void *GetPjrtApi(void) {
  static struct {
    size_t head[5];
    void *(*slot[SLOTS])(void *);
  } table = {.head = {40 + SLOTS * 8, 0, 24, 0, 0},
             .slot = {[PJRT_ERROR_DESTROY] = error_destroy,
                      [PJRT_ERROR_MESSAGE] = error_message,
                      [PJRT_ERROR_CODE] = error_code,
                      [PJRT_PLUGIN_INITIALIZE] = nothing,
                      [PJRT_PLUGIN_ATTRIBUTES] = attributes,
                      [PJRT_EVENT_DESTROY] = free_object,
                      [PJRT_EVENT_IS_READY] = is_ready,
                      [PJRT_EVENT_AWAIT] = event_await,
                      [PJRT_CLIENT_CREATE] = client_create,
                      [PJRT_CLIENT_DESTROY] = nothing,
                      [PJRT_CLIENT_PLATFORM_NAME] = platform_name,
                      [PJRT_CLIENT_PLATFORM_VERSION] = platform_name,
                      [PJRT_CLIENT_PROCESS_INDEX] = process_index,
                      [PJRT_CLIENT_DEVICES] = list_all,
                      [PJRT_DESCRIPTION_PROCESS_INDEX] = description_process,
                      [PJRT_CLIENT_ADDRESSABLE_DEVICES] = list_devices,
                      [PJRT_CLIENT_COMPILE] = client_compile,
                      [PJRT_BUFFER_FROM_HOST] = from_host,
                      [PJRT_DESCRIPTION_ID] = description_id,
                      [PJRT_DESCRIPTION_KIND] = platform_name,
                      [PJRT_DEVICE_DESCRIPTION] = itself,
                      [PJRT_DEVICE_MEMORY_STATS] = memory_stats,
                      [PJRT_EXECUTABLE_DESTROY] = free_object,
                      [PJRT_EXECUTABLE_OUTPUTS] = count_results,
                      [PJRT_EXECUTABLE_COST] = costs,
                      [PJRT_EXECUTABLE_OPTIMIZED] = optimized,
                      [PJRT_EXECUTABLE_SERIALIZE] = serialize,
                      [PJRT_LOADED_DESTROY] = free_object,
                      [PJRT_LOADED_EXECUTABLE] = get_executable,
                      [PJRT_LOADED_DEVICES] = loaded_devices,
                      [PJRT_LOADED_EXECUTE] = execute,
                      [PJRT_DESERIALIZE] = deserialize,
                      [PJRT_BUFFER_DESTROY] = buffer_destroy,
                      [PJRT_BUFFER_TYPE] = buffer_type,
                      [PJRT_BUFFER_DIMENSIONS] = buffer_dimensions,
                      [PJRT_BUFFER_TO_HOST] = to_host,
                      [PJRT_TOPOLOGY_CREATE] = topology_create,
                      [PJRT_TOPOLOGY_DESTROY] = free_object,
                      [PJRT_COMPILE] = compile,
                      [PJRT_EXECUTABLE_MEMORY] = program_memory}};
  int version[2] = {0, number_after(getenv("FAKE_PLUGIN"), "version=", 90)};
  memcpy(&table.head[4], version, sizeof version);
  const pjrt_extension *extensions = fake_extensions();
  memcpy(&table.head[1], &extensions, sizeof extensions);
  table.head[0] = 40 + 8 * (size_t)number_after(getenv("FAKE_PLUGIN"), "slots=", SLOTS);
  return &table;
}
