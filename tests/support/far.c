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
} far_program;

static const unsigned char *last_base;
static int calls, failing;

const unsigned char *far_base(void) { return last_base; }
void far_fail_at(int call) {
  failing = call;
  calls = 0;
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
static void release_program(rf_program *program) {
  far_program *p = (far_program *)program;
  if (p->kernels) p->kernels->release(p->kernels);
  free(p);
}
static rf_status compile(rf_device *device, const rf_program_source *source, rf_program **program,
                         rf_error *error) {
  (void)device;
  far_program *p = calloc(1, sizeof *p);
  if (!p) return RF_FAIL(error, RAFTER_FAILED, NULL, "no memory for a program");
  *p = (far_program){.program = {.run = run, .release = release_program},
                     .memory = (far_memory *)source->memory};
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
