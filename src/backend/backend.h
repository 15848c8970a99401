/* backend.h - the contract with what computes. A backend has kernels that a plan chooses from, a
 * device with memory, and programs that run a plan's graph on it. It chooses no policy: the plan
 * did. docs/adding-a-backend.md is the guide. */
#ifndef RF_BACKEND_H
#define RF_BACKEND_H

#include "graph/graph.h"

/* ---- device ---------------------------------------------------------------------------------- */

typedef struct rf_backend rf_backend;
typedef struct rf_device rf_device;
typedef struct rf_program_source rf_program_source;
typedef struct rf_program rf_program;

/* Memory of a device. Programs use one memory; it is addressed by byte offset. */
typedef struct rf_memory {
  rf_device *device;
  int64_t bytes;
  unsigned char *host; /* its first byte where the host can use it directly, else NULL */
} rf_memory;

/* What multiplies numbers: vectors of a dtype, or a unit that multiplies whole matrices (tiles). */
typedef enum rf_alu { RF_ALU_VECTOR, RF_ALU_MATRIX } rf_alu;
typedef enum rf_traffic { RF_TRAFFIC_READ, RF_TRAFFIC_COPY } rf_traffic;

/* What a device does. A slot that may be NULL says so; other slots return RAFTER_FAILED when the
 * device fails. */
typedef struct rf_device_type {
  rf_status (*open)(rf_device **device, rf_error *error);
  void (*close)(rf_device *device);
  /* Zeroed memory, aligned to 64 bytes at least. */
  rf_status (*allocate)(rf_device *device, int64_t bytes, rf_memory **memory, rf_error *error);
  void (*release)(rf_memory *memory);
  /* Makes sure that later uses of a range find it present. NULL: it always is. */
  rf_status (*reserve)(rf_memory *memory, int64_t at, int64_t bytes, rf_error *error);
  /* These three: NULL where memory has a host address. Callers use rf_memory_fill, _write and
   * _read. A range is never part of two tensors. Several threads may call them at once. */
  rf_status (*fill)(rf_memory *memory, int64_t at, uint32_t word, int64_t bytes, rf_error *error);
  rf_status (*upload)(rf_memory *memory, int64_t at, const void *from, int64_t bytes, rf_error *error);
  rf_status (*download)(rf_memory *memory, int64_t at, void *to, int64_t bytes, rf_error *error);
  /* Waits for all work that was queued and reports its errors. NULL: calls return when done. */
  rf_status (*synchronise)(rf_device *device, rf_error *error);
  /* Makes a program of a plan; it outlives neither the device nor what the source points to. */
  rf_status (*compile)(rf_device *device, const rf_program_source *source, rf_program **program,
                       rf_error *error);
  /* The device's ceilings, measured now. NULL, all of them: it cannot measure itself.
   * FLOP/s of products in registers during `seconds`; 0: it has no such alu. */
  bool (*has_alu)(const rf_device *device, rf_dtype dtype, rf_alu alu);
  double (*flops)(const rf_device *device, rf_dtype dtype, rf_alu alu, double seconds);
  /* Bytes/s over the whole memory, which was written before; the best of some passes. A copy
   * counts bytes read and bytes written. */
  double (*bandwidth)(const rf_device *device, rf_memory *memory, rf_traffic traffic, int passes);
  double (*launch_seconds)(const rf_device *device); /* what an op costs that does nothing */
} rf_device_type;

/* An open device. A backend's own struct begins with it. */
struct rf_device {
  const rf_device_type *type;
  int level;   /* of the backend's instruction sets: rf_isa on a CPU */
  int workers; /* that share an op, as the plan was made for: threads of a CPU */
};

/* Opens the backend's device; backend->device is not NULL. Ends with device->type->close. */
rf_status rf_device_open(const rf_backend *backend, int level, int workers, rf_device **device,
                         rf_error *error);

/* Copies bytes to or from a memory, or fills them with a word (`bytes` is then a multiple of 4). */
rf_status rf_memory_write(rf_memory *memory, int64_t at, const void *from, int64_t bytes, rf_error *error);
rf_status rf_memory_read(rf_memory *memory, int64_t at, void *to, int64_t bytes, rf_error *error);
rf_status rf_memory_fill(rf_memory *memory, int64_t at, uint32_t word, int64_t bytes, rf_error *error);

/* ---- program --------------------------------------------------------------------------------- */

/* What changes from step to step. The same for every op of a section. */
typedef struct rf_run_inputs {
  /* Dropout draws are keyed by (seed, step, attr.dropout.site, global token, channel). */
  uint64_t seed;
  int64_t step;        /* 1-based optimizer step (Adam's bias correction) */
  int32_t micro;       /* microbatch of this step, 0-based */
  int64_t first_token; /* index in the step's token order of this microbatch's row 0: micro * n */
  float loss_scale;    /* 1 / (valid tokens of the whole step) */
  float lr;
  int64_t rows;           /* rows in use, <= graph rows; training: all */
  int32_t place[RF_AXES]; /* of this chip in the graph's mesh */
} rf_run_inputs;

/* Measured seconds of an op since the last reset. */
typedef struct rf_measured {
  double seconds, least;
  int64_t calls;
} rf_measured;

/* What the run looks at between two ops, where a program can stop there: `op` holds a set of
 * RF_WATCH_* for each op and changes only between sections. */
enum { RF_WATCH_BEFORE = 1, RF_WATCH_AFTER = 2 };
typedef struct rf_watch {
  void *self;
  const uint8_t *op;
  rf_status (*before)(void *self, int op, rf_error *error);
  rf_status (*after)(void *self, int op, const rf_run_inputs *inputs, rf_error *error);
} rf_watch;

/* A plan as a program sees it. The arrays are valid while it is compiled; graph, memory, measured
 * and watch outlive the program. */
struct rf_program_source {
  const rf_graph *graph;
  rf_memory *memory;
  const int64_t *offset;      /* of each tensor and workspace in memory; below 0: none */
  const struct rf_chosen *op; /* of each op: its kernels and its workspace */
  int number;                 /* of the plan in its run, for recorded spans */
  int workers;                /* that the plan's workspaces are for */
  /* Of each op. A program that cannot time single ops leaves calls at 0. */
  rf_measured *measured;
  rf_watch watch;
};

/* A compiled plan. A backend's own struct begins with it. */
struct rf_program {
  /* Runs one section once. It may return before the device is done (rf_device_type.synchronise). */
  rf_status (*run)(rf_program *program, rf_section section, const rf_run_inputs *inputs, rf_error *error);
  void (*release)(rf_program *program);
};

/* ---- backends -------------------------------------------------------------------------------- */

struct rf_backend {
  const char *name; /* "reference", "cpu", "null", "sheet" */
  /* NULL-terminated list of tables, each ended by a row with op == NULL; earlier rows win. Or
   * `kernels_of`: the kernels are another backend's. */
  const struct rf_kernel *const *tables;
  const rf_backend *kernels_of;
  const rf_device_type *device; /* NULL: plans only, and a run of them does nothing */
  /* Default block sizes of a kernel; a plan may replace them (rf_op.blocks). False: it has none. */
  bool (*blocks)(const struct rf_kernel *kernel, rf_blocks *blocks);
};

extern const rf_backend RF_BACKEND_REFERENCE, RF_BACKEND_CPU, RF_BACKEND_NULL;
/* plans only: of machines that are known by their data sheet; nobody asks for it by name */
extern const rf_backend RF_BACKEND_SHEET;
const rf_backend *rf_backend_find(const char *name); /* "auto" is cpu; NULL when unknown */

#endif
