/* backend.c - finding a backend by name, and a kernel for an op. */
#include "backend/backend.h"
#include "backend/reference/reference.h"

#include <string.h>

const rf_backend *rf_backend_find(const char *name) {
  static const rf_backend *const backends[] = {&RF_BACKEND_CPU, &RF_BACKEND_REFERENCE, &RF_BACKEND_NULL};
  if (strcmp(name, "auto") == 0) return &RF_BACKEND_CPU;
  for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
    if (strcmp(backends[i]->name, name) == 0) return backends[i];
  return NULL;
}

static const rf_kernel *choose_from(const rf_kernel *table, rf_isa isa, const rf_graph *graph,
                                    const rf_op *op, int64_t rows) {
  for (const rf_kernel *kernel = table; kernel->op; kernel++) {
    bool named = kernel->op[0] == *RF_ANY_OP || strcmp(kernel->op, op->def->name) == 0;
    bool holds = !kernel->max_rows || rows <= kernel->max_rows;
    if (kernel->isa <= isa && named && holds && (!kernel->accepts || kernel->accepts(graph, op)))
      return kernel;
  }
  return NULL;
}

const rf_kernel *rf_kernel_choose_for(const rf_backend *backend, rf_isa isa, const rf_graph *graph,
                                      const rf_op *op, int64_t rows) {
  for (int i = 0; backend->tables[i]; i++) {
    const rf_kernel *kernel = choose_from(backend->tables[i], isa, graph, op, rows);
    if (kernel) return kernel;
  }
  return choose_from(RF_REFERENCE_KERNELS, isa, graph, op, rows);
}

const rf_kernel *rf_kernel_choose(const rf_backend *backend, rf_isa isa, const rf_graph *graph,
                                  const rf_op *op) {
  int first = op->input_count ? op->input[0] : RF_NONE;
  return rf_kernel_choose_for(backend, isa, graph, op, first < 0 ? 0 : graph->tensor[first].shape[0]);
}
