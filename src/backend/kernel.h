/* kernel.h - kernels (plain functions that compute one op each), tables of kernels, and the choice
 * of a kernel for an op. The program of backend/interpreter.h calls the kernels. */
#ifndef RF_KERNEL_H
#define RF_KERNEL_H

#include "backend/backend.h"

/* A kernel of one product inside an op. A backend's own struct has rf_inner_kernel as its first
 * field. */
typedef struct rf_inner_kernel {
  const char *name; /* name of the technique, as in rf_kernel */
  int max_rows;     /* maximum rows of the product; 0: any number */
} rf_inner_kernel;
/* The kernels that a plan chose for one product inside an op. The number of rows of a call decides
 * between these kernels. */
typedef struct rf_inner {
  /* name of the product: "logits", "dx", "dw", "expert", ...; NULL: the op has no such product */
  const char *product;
  const rf_inner_kernel *kernel;
  const rf_inner_kernel
      *few; /* kernel for calls of at most few->max_rows rows; NULL: `kernel` runs all calls */
} rf_inner;
enum { RF_MAX_INNER = 3 };
static inline const rf_inner_kernel *rf_inner_for(const rf_inner *inner, int64_t rows) {
  return inner->few && rows <= inner->few->max_rows ? inner->few : inner->kernel;
}

/* The arguments of one kernel call. in[i] and out[i] point to the elements of input and output i,
 * or are NULL if the op lacks this input or output. Kernels never allocate memory. */
typedef struct rf_call {
  const rf_graph *graph;
  const rf_op *op;
  const void *in[RF_MAX_INPUTS];
  void *out[RF_MAX_OUTPUTS];
  void *workspace; /* workspace_bytes() bytes, aligned to 64 bytes */
  int threads;
  rf_blocks blocks;      /* block sizes; all zero: the kernel's default */
  const rf_inner *inner; /* RF_MAX_INNER entries; used only by kernels with a function `inner` */
  const rf_run_inputs *run;
  struct rf_link *link; /* the other chips, for collectives (mpi/link.h); NULL: one chip */
  struct rf_pipe *pipe; /* the other stages of a pipeline (mpi/pipe.h); NULL: one stage */
  /* exchanges that run during computation (mpi/flight.h); NULL: the program has no such exchange */
  struct rf_flights *flights;
} rf_call;
/* Rank of this chip among the chips that share the op. */
static inline int64_t rf_rank_of(const rf_call *call) {
  return call->op->attr.axes ? rf_mesh_rank(&call->graph->mesh, call->op->attr.axes, call->run->place) : 0;
}
static inline const rf_tensor *rf_in(const rf_call *call, int i) {
  return &call->graph->tensor[call->op->input[i]];
}
static inline const rf_tensor *rf_out(const rf_call *call, int i) {
  return &call->graph->tensor[call->op->output[i]];
}

/* How a kernel divides the work of an op. */
typedef struct rf_tiling {
  int threads;
  rf_blocks blocks; /* block sizes, for products only; all zero: the kernel's default */
} rf_tiling;

#define RF_ANY_OP "*"
typedef struct rf_kernel {
  const char *op;   /* name of the op, or RF_ANY_OP */
  const char *name; /* name of the kernel, such as "gemm_avx512_12x32" */
  int level;        /* lowest instruction-set level that the kernel needs: rf_isa on a CPU */
  bool (*accepts)(const rf_graph *graph, const rf_op *op); /* NULL: accepts every op */
  /* NULL: no workspace */
  size_t (*workspace_bytes)(const rf_graph *graph, const rf_op *op, rf_tiling by);
  /* Chooses the kernels of the products inside the op, at the level of this kernel. Does not write
   * the entries of absent products, which are zero. NULL: the op has no inner products. */
  void (*inner)(int level, const rf_graph *graph, const rf_op *op, rf_inner inner[RF_MAX_INNER]);
  void (*run)(const rf_call *call);
  int max_rows;      /* maximum rows of the op's first input; 0: any number */
  const char *curve; /* name of the kernel's measured times in machine files; NULL: `name` */
} rf_kernel;
static inline size_t rf_kernel_workspace(const rf_kernel *kernel, const rf_graph *graph, const rf_op *op,
                                         rf_tiling by) {
  return kernel->workspace_bytes ? kernel->workspace_bytes(graph, op, by) : 0;
}
static inline const char *rf_kernel_curve(const rf_kernel *kernel) {
  return kernel->curve ? kernel->curve : kernel->name;
}

/* The kernels that a plan chose for an op. */
typedef struct rf_chosen {
  const rf_kernel *kernel; /* kernel for steps with more than `few_rows` rows */
  const rf_kernel *few;    /* kernel for steps with at most `few_rows` rows; NULL: `kernel` runs all steps */
  int64_t few_rows;
  rf_blocks blocks;      /* block sizes; all zero: the kernel's default */
  const rf_inner *inner; /* RF_MAX_INNER entries; NULL: the op has no inner products */
  int workspace;         /* index of the workspace in rf_program_source.offset; RF_NONE: no workspace */
} rf_chosen;
/* The kernel for a step with `rows` rows. 0 means all rows of the plan. */
static inline const rf_kernel *rf_kernel_of(const rf_chosen *chosen, int64_t rows) {
  return chosen->few && rows > 0 && rows <= chosen->few_rows ? chosen->few : chosen->kernel;
}

/* The number of rows whose logits RF_BACKEND_CPU computes with one matmul. The number is the same
 * on every instruction set. The workspace has room for these logits. */
int64_t rf_head_chunk_rows(int64_t rows, int64_t vocab);
/* Returns the first kernel in the backend's tables that accepts the op at this level. If no kernel
 * accepts the op, returns the reference kernel. The result is never NULL for an op of RF_OPS. */
const rf_kernel *rf_kernel_choose(const rf_backend *backend, int level, const rf_graph *graph,
                                  const rf_op *op);
/* Does the same as rf_kernel_choose for calls that use only `rows` rows of the op's first input. */
const rf_kernel *rf_kernel_choose_for(const rf_backend *backend, int level, const rf_graph *graph,
                                      const rf_op *op, int64_t rows);

#endif
