/* backend.c - finds a backend by name, chooses a kernel for an op, and accesses the memory of a
 * device. If the host can address the memory, these functions do not call the device. */
#include "backend/backend.h"
#include "backend/reference/reference.h"

#include <string.h>

rf_status rf_device_open(const rf_backend *backend, int level, int workers,
                         const rf_device_settings *settings, rf_device **device, rf_error *error) {
  static const rf_device_settings none = {0};
  RF_TRY(backend->device->open(device, settings ? settings : &none, error));
  (*device)->type = backend->device;
  if ((*device)->chips < 1) (*device)->chips = 1;
  if ((*device)->hosts < 1) (*device)->hosts = 1;
  (*device)->level = level;
  (*device)->workers = workers;
  rf_team_init(&(*device)->team, workers);
  return RAFTER_OK;
}

rf_status rf_memory_write(rf_memory *memory, int64_t at, const void *from, int64_t bytes, rf_error *error) {
  if (!memory->host) return memory->device->type->upload(memory, at, from, bytes, error);
  memcpy(memory->host + at, from, (size_t)bytes);
  return RAFTER_OK;
}

rf_status rf_memory_read(rf_memory *memory, int64_t at, void *to, int64_t bytes, rf_error *error) {
  if (!memory->host) return memory->device->type->download(memory, at, to, bytes, error);
  memcpy(to, memory->host + at, (size_t)bytes);
  return RAFTER_OK;
}

rf_status rf_memory_fill(rf_memory *memory, int64_t at, uint32_t word, int64_t bytes, rf_error *error) {
  if (!memory->host) return memory->device->type->fill(memory, at, word, bytes, error);
  /* Copies of a block that stays in the cache. Each copy doubles the block until it is full. */
  enum { BLOCK = 1 << 14 };
  unsigned char *to = memory->host + at;
  int64_t whole = bytes & ~(int64_t)3, done = whole < 4 ? whole : 4;
  memcpy(to, &word, (size_t)done);
  while (done < whole) {
    int64_t next = done < BLOCK ? done : BLOCK;
    if (next > whole - done) next = whole - done;
    memcpy(to + done, to, (size_t)next);
    done += next;
  }
  return RAFTER_OK;
}

const rf_backend *rf_backend_find(const char *name) {
  static const rf_backend *const backends[] = {&RF_BACKEND_CPU, &RF_BACKEND_REFERENCE, &RF_BACKEND_NULL,
                                               &RF_BACKEND_XLA};
  if (strcmp(name, "auto") == 0) return &RF_BACKEND_CPU;
  for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
    if (strcmp(backends[i]->name, name) == 0) return backends[i];
  return NULL;
}

static const rf_kernel *choose_from(const rf_kernel *table, int level, const rf_graph *graph, const rf_op *op,
                                    int64_t rows) {
  for (const rf_kernel *kernel = table; kernel->op; kernel++) {
    bool named = kernel->op[0] == *RF_ANY_OP || strcmp(kernel->op, op->def->name) == 0;
    bool holds = !kernel->max_rows || rows <= kernel->max_rows;
    if (kernel->level <= level && named && holds && (!kernel->accepts || kernel->accepts(graph, op)))
      return kernel;
  }
  return NULL;
}

const rf_kernel *rf_kernel_choose_for(const rf_backend *backend, int level, const rf_graph *graph,
                                      const rf_op *op, int64_t rows) {
  if (backend->kernels_of) backend = backend->kernels_of;
  for (int i = 0; backend->tables[i]; i++) {
    const rf_kernel *kernel = choose_from(backend->tables[i], level, graph, op, rows);
    if (kernel) return kernel;
  }
  return choose_from(RF_REFERENCE_KERNELS, level, graph, op, rows);
}

const rf_kernel *rf_kernel_choose(const rf_backend *backend, int level, const rf_graph *graph,
                                  const rf_op *op) {
  int first = op->input_count ? op->input[0] : RF_NONE;
  return rf_kernel_choose_for(backend, level, graph, op, first < 0 ? 0 : graph->tensor[first].shape[0]);
}
