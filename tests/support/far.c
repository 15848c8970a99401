/* far.c - see far.h. A complete backend: a device with memory of its own, and programs. */
#define _GNU_SOURCE
#include "support/far.h"
#include "backend/interpreter.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct far_memory {
  rf_memory memory; /* First field: the part that callers hold. Its `host` stays NULL. */
  unsigned char *base;
  pthread_mutex_t lock;
  int entered;
} far_memory;

typedef struct far_program {
  rf_program program; /* First field, because the interface is a pointer to it. */
  rf_program *kernels;
  far_memory *memory;
  const rf_graph *graph;
  int64_t *offset;                        /* of each tensor */
  unsigned char **output[RF_STEPS_AHEAD]; /* for each output, its value after a started step */
  const rf_tensor *unread[RF_STEPS_AHEAD];
  int64_t started, finished;
} far_program;

static const unsigned char *last_base;
static int calls, failing, starts, follows;

const unsigned char *far_base(void) { return last_base; }
void far_fail_at(int call) {
  failing = call;
  calls = 0;
}

int far_started(int *followed) {
  if (followed) *followed = follows;
  return starts;
}

/* Grants access to the memory between enter and leave. Calls nest, because a running program reads
 * its own outputs. */
static far_memory *enter(rf_memory *memory) {
  far_memory *m = (far_memory *)memory;
  pthread_mutex_lock(&m->lock);
  if (m->entered++ == 0) mprotect(m->base, (size_t)memory->bytes, PROT_READ | PROT_WRITE);
  return m;
}
static rf_status leave(far_memory *m) {
  if (--m->entered == 0) mprotect(m->base, (size_t)m->memory.bytes, PROT_NONE);
  pthread_mutex_unlock(&m->lock);
  return RAFTER_OK;
}

static rf_status open_device(rf_device **device, const rf_device_settings *settings, rf_error *error) {
  (void)settings;
  *device = calloc(1, sizeof **device);
  return *device ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for a device");
}
static void close_device(rf_device *device) { free(device); }

static rf_status allocate(rf_device *device, int64_t bytes, rf_memory **memory, rf_error *error) {
  pthread_mutexattr_t nested;
  far_memory *m = calloc(1, sizeof *m);
  void *base = mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!m || base == MAP_FAILED) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for an arena");
  *m = (far_memory){.memory = {.device = device, .bytes = bytes}, .base = base};
  pthread_mutexattr_init(&nested);
  pthread_mutexattr_settype(&nested, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&m->lock, &nested);
  last_base = base;
  *memory = &m->memory;
  return RAFTER_OK;
}
static void release_memory(rf_memory *memory) {
  far_memory *m = (far_memory *)memory;
  munmap(m->base, (size_t)memory->bytes);
  pthread_mutex_destroy(&m->lock);
  free(m);
}

static rf_status fill(rf_memory *memory, int64_t at, uint32_t word, int64_t bytes, rf_error *error) {
  (void)error;
  far_memory *m = enter(memory);
  for (int64_t i = 0; i + 4 <= bytes; i += 4) memcpy(m->base + at + i, &word, 4);
  return leave(m);
}
static rf_status upload(rf_memory *memory, int64_t at, const void *from, int64_t bytes, rf_error *error) {
  (void)error;
  far_memory *m = enter(memory);
  memcpy(m->base + at, from, (size_t)bytes);
  return leave(m);
}
static rf_status download(rf_memory *memory, int64_t at, void *to, int64_t bytes, rf_error *error) {
  (void)error;
  far_memory *m = enter(memory);
  memcpy(to, m->base + at, (size_t)bytes);
  return leave(m);
}

static rf_status run(rf_program *program, rf_section section, const rf_run_inputs *inputs, rf_error *error) {
  far_program *p = (far_program *)program;
  if (++calls == failing) return RF_FAIL(error, RAFTER_FAILED, NULL, "the far device is gone");
  far_memory *m = enter(&p->memory->memory);
  rf_status status = p->kernels->run(p->kernels, section, inputs, error);
  leave(m);
  return status;
}

/* Takes the outputs that the caller reads after step `step` away, or puts them back. */
static void each_output(far_program *p, int64_t step, bool take) {
  int slot = (int)(step % RF_STEPS_AHEAD);
  for (int t = 0; t < p->graph->tensor_count; t++) {
    size_t bytes = (size_t)rf_tensor_bytes(&p->graph->tensor[t]);
    unsigned char *at = p->memory->base + p->offset[t];
    if (!p->graph->tensor[t].output || &p->graph->tensor[t] == p->unread[slot]) continue;
    if (!p->output[slot][t]) p->output[slot][t] = malloc(bytes);
    memcpy(take ? p->output[slot][t] : at, take ? at : p->output[slot][t], bytes);
    if (take) memset(at, 0x5a, bytes); /* nobody may read it before `finish` */
  }
}

/* Gives the inputs that follow the outputs of the step before. */
static void feed(far_program *p) {
  for (int t = 0; t < p->graph->tensor_count; t++) {
    const rf_tensor *in = &p->graph->tensor[t];
    if (!in->follows) continue;
    int from = rf_graph_find(p->graph, in->follows);
    memcpy(p->memory->base + p->offset[t], p->output[(p->started - 1) % RF_STEPS_AHEAD][from],
           (size_t)rf_tensor_bytes(in));
  }
}

static rf_status start(rf_program *program, const rf_run_inputs *inputs, rf_error *error) {
  far_program *p = (far_program *)program;
  rf_status status = RAFTER_OK;
  if (++calls == failing) return RF_FAIL(error, RAFTER_FAILED, NULL, "the far device is gone");
  if (p->started - p->finished >= RF_STEPS_AHEAD) return RF_FAIL(error, RAFTER_FAILED, NULL, "too far ahead");
  starts++;
  follows += inputs->follows;
  far_memory *m = enter(&p->memory->memory);
  if (inputs->follows) feed(p);
  for (int s = 0; s < RF_SECTIONS && status == RAFTER_OK; s++)
    status = p->kernels->run(p->kernels, (rf_section)s, inputs, error);
  p->unread[p->started % RF_STEPS_AHEAD] = inputs->unread;
  if (status == RAFTER_OK) each_output(p, p->started++, true);
  leave(m);
  return status;
}

static rf_status finish(rf_program *program, rf_error *error) {
  far_program *p = (far_program *)program;
  if (p->finished == p->started) return RF_FAIL(error, RAFTER_FAILED, NULL, "no step is in progress");
  if (++calls == failing) {
    p->finished = p->started;
    return RF_FAIL(error, RAFTER_FAILED, NULL, "the far device is gone");
  }
  far_memory *m = enter(&p->memory->memory);
  each_output(p, p->finished++, false);
  return leave(m);
}

static void release_program(rf_program *program) {
  far_program *p = (far_program *)program;
  if (p->kernels) p->kernels->release(p->kernels);
  for (int i = 0; i < RF_STEPS_AHEAD; i++) {
    for (int t = 0; p->output[i] && t < p->graph->tensor_count; t++) free(p->output[i][t]);
    free(p->output[i]);
  }
  free(p->offset);
  free(p);
}
static rf_status compile(rf_device *device, const rf_program_source *source, rf_program **program,
                         rf_error *error) {
  (void)device;
  far_program *p = calloc(1, sizeof *p);
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for a program");
  *p = (far_program){.program = {.run = run, .release = release_program, .start = start, .finish = finish},
                     .memory = (far_memory *)source->memory,
                     .graph = source->graph};
  size_t tensors = (size_t)source->graph->tensor_count;
  p->offset = malloc(tensors * sizeof *p->offset);
  for (int i = 0; i < RF_STEPS_AHEAD; i++) p->output[i] = calloc(tensors, sizeof *p->output[i]);
  if (!p->offset || !p->output[0] || !p->output[1]) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory");
  memcpy(p->offset, source->offset, tensors * sizeof *p->offset);
  rf_status status = rf_interpreter_compile(source, p->memory->base, &p->kernels, error);
  if (status == RAFTER_OK) *program = &p->program;
  else release_program(&p->program);
  return status;
}

static const rf_device_type DEVICE = {.open = open_device,
                                      .close = close_device,
                                      .allocate = allocate,
                                      .release = release_memory,
                                      .fill = fill,
                                      .upload = upload,
                                      .download = download,
                                      .compile = compile};

rf_backend far_backend(const rf_backend *of) {
  return (rf_backend){.name = "far", .kernels_of = of, .device = &DEVICE};
}
