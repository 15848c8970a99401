/* kernel.h - kernels: plain functions that compute one op each, the tables that list them, and how
 * a plan chooses among them. Programs of backend/interpreter.h call them one after the other. */
#ifndef RF_KERNEL_H
#define RF_KERNEL_H

#include "backend/backend.h"

/* One call of a kernel. in/out follow the op's slots; an absent slot is NULL. Kernels never
 * allocate. */
typedef struct rf_call {
  const rf_graph *graph;
  const rf_op *op;
  const void *in[RF_MAX_INPUTS];
  void *out[RF_MAX_OUTPUTS];
  void *workspace; /* workspace_bytes() of it, 64-byte aligned */
  int threads;
  const rf_run_inputs *run;
} rf_call;
/* This chip's rank among those that share the op. */
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
  /* op_def name, or RF_ANY_OP */
  const char *op;
  /* by technique: "gemm_avx512_12x32" */
  const char *name;
  int level; /* the lowest of the backend's instruction sets that it needs: rf_isa on a CPU */
  bool (*accepts)(const rf_graph *graph, const rf_op *op);                        /* NULL: all */
  size_t (*workspace_bytes)(const rf_graph *graph, const rf_op *op, int threads); /* NULL: none */
  void (*run)(const rf_call *call);
  int max_rows;      /* rows of the op's first input that it takes; 0: any number */
  const char *curve; /* which curves of a machine file time it; NULL: those of its name */
} rf_kernel;
static inline const char *rf_kernel_curve(const rf_kernel *kernel) {
  return kernel->curve ? kernel->curve : kernel->name;
}

/* What a plan chose for an op. */
typedef struct rf_chosen {
  const rf_kernel *kernel; /* of steps with all the plan's rows */
  const rf_kernel *few;    /* of steps with at most few_rows rows; NULL: the same */
  int64_t few_rows;
  int workspace; /* place among the offsets; RF_NONE: none */
} rf_chosen;
/* The kernel of a step with `rows` rows; 0: all. */
static inline const rf_kernel *rf_kernel_of(const rf_chosen *chosen, int64_t rows) {
  return chosen->few && rows > 0 && rows <= chosen->few_rows ? chosen->few : chosen->kernel;
}

/* Of a head's rows those whose logits stand in the workspace of RF_BACKEND_CPU at once: one
 * product makes them, whatever the ISA. */
int64_t rf_head_chunk_rows(int64_t rows, int64_t vocab);
/* First row of the backend's tables that accepts the op at this level; falls back to reference;
 * never NULL for an op of RF_OPS. */
const rf_kernel *rf_kernel_choose(const rf_backend *backend, int level, const rf_graph *graph,
                                  const rf_op *op);
/* The same for a call that uses only `rows` rows of the op's first input. */
const rf_kernel *rf_kernel_choose_for(const rf_backend *backend, int level, const rf_graph *graph,
                                      const rf_op *op, int64_t rows);

#endif
