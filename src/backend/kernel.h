/* kernel.h - kernels: plain functions that compute one op each, the tables that list them, and how
 * a plan chooses among them. The program of backend/interpreter.h calls them. */
#ifndef RF_KERNEL_H
#define RF_KERNEL_H

#include "backend/backend.h"

/* One kernel call. `in` and `out` have a tensor per slot, or NULL. Kernels never allocate. */
typedef struct rf_call {
  const rf_graph *graph;
  const rf_op *op;
  const void *in[RF_MAX_INPUTS];
  void *out[RF_MAX_OUTPUTS];
  void *workspace; /* workspace_bytes() bytes, aligned to 64 bytes */
  int threads;
  const rf_run_inputs *run;
} rf_call;
/* Rank of this chip in the group that shares the op. */
static inline int64_t rf_rank_of(const rf_call *call) {
  return call->op->attr.axes ? rf_mesh_rank(&call->graph->mesh, call->op->attr.axes, call->run->place) : 0;
}
static inline const rf_tensor *rf_in(const rf_call *call, int i) {
  return &call->graph->tensor[call->op->input[i]];
}
static inline const rf_tensor *rf_out(const rf_call *call, int i) {
  return &call->graph->tensor[call->op->output[i]];
}

#define RF_ANY_OP "*"
typedef struct rf_kernel {
  const char *op;   /* name of the op, or RF_ANY_OP */
  const char *name; /* name of the technique, "gemm_avx512_12x32" */
  int level;        /* lowest instruction-set level that the kernel needs: rf_isa on a CPU */
  bool (*accepts)(const rf_graph *graph, const rf_op *op); /* NULL: accepts every op */
  /* NULL: no workspace */
  size_t (*workspace_bytes)(const rf_graph *graph, const rf_op *op, int threads);
  void (*run)(const rf_call *call);
  int max_rows;      /* maximum rows of the op's first input; 0: any number */
  const char *curve; /* name of the kernel's curves in machine files; NULL: the kernel's name */
} rf_kernel;
static inline const char *rf_kernel_curve(const rf_kernel *kernel) {
  return kernel->curve ? kernel->curve : kernel->name;
}

/* The kernels that a plan chose for an op. */
typedef struct rf_chosen {
  const rf_kernel *kernel; /* kernel of steps with all rows of the plan */
  const rf_kernel *few;    /* kernel of steps with at most `few_rows` rows; NULL: `kernel` */
  int64_t few_rows;
  int workspace; /* index of the workspace in rf_program_source.offset; RF_NONE: no workspace */
} rf_chosen;
/* The kernel for a step with `rows` rows; 0 means all rows. */
static inline const rf_kernel *rf_kernel_of(const rf_chosen *chosen, int64_t rows) {
  return chosen->few && rows > 0 && rows <= chosen->few_rows ? chosen->few : chosen->kernel;
}

/* The number of rows whose logits RF_BACKEND_CPU computes with one matmul, on every instruction
 * set. The workspace has room for these logits. */
int64_t rf_head_chunk_rows(int64_t rows, int64_t vocab);
/* Returns the first row of the backend's tables that accepts the op at this level, otherwise the
 * reference kernel. The result is never NULL for an op of RF_OPS. */
const rf_kernel *rf_kernel_choose(const rf_backend *backend, int level, const rf_graph *graph,
                                  const rf_op *op);
/* Like rf_kernel_choose, but for calls that use only `rows` rows of the op's first input. */
const rf_kernel *rf_kernel_choose_for(const rf_backend *backend, int level, const rf_graph *graph,
                                      const rf_op *op, int64_t rows);

#endif
