/* backend.h - the contract between a plan and whatever computes: kernels, how they are chosen,
 * how they are called. A backend chooses no policy: every choice is made by plan from the kernel
 * table, at plan time. */
#ifndef RF_BACKEND_H
#define RF_BACKEND_H

#include "machine/machine.h"

/* What changes from step to step; the same struct for every op of a walk. */
typedef struct rf_run_inputs {
  uint64_t seed;       /* dropout draws are keyed by (seed, step, attr.dropout.site, global token, channel) */
  int64_t step;        /* 1-based optimizer step (Adam's bias correction) */
  int32_t micro;       /* microbatch of this step, 0-based */
  int64_t first_token; /* index in the step's token order of this microbatch's row 0: micro * n */
  float loss_scale;    /* 1 / (valid tokens of the whole step) */
  float lr;
  int64_t rows;           /* rows in use of this walk, <= graph rows; training: all */
  int32_t place[RF_AXES]; /* of this chip in the graph's mesh */
} rf_run_inputs;

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
/* This chip's place among those that cut what the op would need whole. */
static inline int64_t rf_rank_of(const rf_call *call) {
  return call->op->attr.axes ? rf_mesh_rank(&call->graph->mesh, call->op->attr.axes, call->run->place) : 0;
}
static inline const rf_tensor *rf_in(const rf_call *call, int i) {
  return &call->graph->tensor[call->op->input[i]];
}
static inline const rf_tensor *rf_out(const rf_call *call, int i) {
  return &call->graph->tensor[call->op->output[i]];
}

/* CPU features, also of a weaker CPU that --cpu asks for. Ordered: a level includes those below
 * it. */
typedef enum rf_isa {
  RF_ISA_BASE,
  RF_ISA_AVX2,
  RF_ISA_AVX512,
  RF_ISA_AVX512BF16,
  RF_ISA_AMX,
  RF_ISAS
} rf_isa;
rf_isa rf_isa_detect(void);          /* by cpuid, once */
const char *rf_isa_name(rf_isa isa); /* "base", "avx2", "avx512", "avx512bf16", "amx" */
/* "auto" is what this CPU has. RAFTER_INVALID: unknown, or more than this CPU has. */
rf_status rf_isa_resolve(const char *name, rf_isa *isa, rf_error *error);

#define RF_ANY_OP "*"
typedef struct rf_kernel {
  /* op_def name, or RF_ANY_OP */
  const char *op;
  /* by technique: "gemm_avx512_12x32" */
  const char *name;
  rf_isa isa;                                                                     /* lowest level it needs */
  bool (*accepts)(const rf_graph *graph, const rf_op *op);                        /* NULL: all */
  size_t (*workspace_bytes)(const rf_graph *graph, const rf_op *op, int threads); /* NULL: none */
  void (*run)(const rf_call *call);
  int max_rows;      /* rows of the op's first input that it takes; 0: any number */
  const char *curve; /* which curves of a machine file time it; NULL: those of its name */
} rf_kernel;
static inline const char *rf_kernel_curve(const rf_kernel *kernel) {
  return kernel->curve ? kernel->curve : kernel->name;
}

typedef struct rf_backend {
  const char *name; /* "reference", "cpu", "null", "sheet" */
  /* NULL-terminated list of tables, each ended by a row with op == NULL; earlier rows win */
  const rf_kernel *const *tables;
  bool touches_memory; /* null, sheet: false */
} rf_backend;

extern const rf_backend RF_BACKEND_REFERENCE, RF_BACKEND_CPU, RF_BACKEND_NULL;
/* plans only: of machines that are known by their data sheet; nobody asks for it by name */
extern const rf_backend RF_BACKEND_SHEET;
const rf_backend *rf_backend_find(const char *name); /* "auto" is cpu; NULL when unknown */
/* Of a head's rows those whose logits stand in the workspace of RF_BACKEND_CPU at once: one
 * product makes them, whatever the ISA. */
int64_t rf_head_chunk_rows(int64_t rows, int64_t vocab);
/* First row of the backend's tables that accepts the op at this isa; falls back to reference;
 * never NULL for an op of RF_OPS. */
const rf_kernel *rf_kernel_choose(const rf_backend *backend, rf_isa isa, const rf_graph *graph,
                                  const rf_op *op);
/* The same for a call that uses only `rows` rows of the op's first input. */
const rf_kernel *rf_kernel_choose_for(const rf_backend *backend, rf_isa isa, const rf_graph *graph,
                                      const rf_op *op, int64_t rows);

#endif
