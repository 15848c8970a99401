/* backend.h - the contract of a backend. A backend has kernels from which a plan chooses, devices
 * with memory, and programs that run the graph of a plan on a device. The plan makes all choices,
 * and a backend only executes the plan. docs/adding-a-backend.md explains how to write a
 * backend. */
#ifndef RF_BACKEND_H
#define RF_BACKEND_H

#include "backend/hosts.h"
#include "backend/team.h"
#include "graph/graph.h"
#include "machine/machine.h"

/* ---- device ---------------------------------------------------------------------------------- */

typedef struct rf_backend rf_backend;
typedef struct rf_device rf_device;
typedef struct rf_program_source rf_program_source;
typedef struct rf_program rf_program;

/* A block of device memory, addressed by byte offset. A program uses one block of memory. On a
 * device of several chips, every chip has a block of `bytes` bytes, and byte `at` of chip c has the
 * offset rf_memory_at(memory, c, at). All blocks have the same tensors at the same offsets. With
 * several hosts, a host has only the blocks of its own chips, and c counts these chips. */
typedef struct rf_memory {
  rf_device *device;
  int64_t bytes;
  unsigned char *host; /* address of the first byte; NULL if the host cannot access the memory directly */
  int64_t chip_bytes;  /* number of bytes from a chip's block to the next; 0 with one chip */
} rf_memory;
static inline int64_t rf_memory_at(const rf_memory *memory, int chip, int64_t at) {
  return chip * memory->chip_bytes + at;
}

/* Arithmetic units of a device: the vector unit, and the unit that multiplies matrices (tiles). */
typedef enum rf_alu { RF_ALU_VECTOR, RF_ALU_MATRIX } rf_alu;
typedef enum rf_traffic { RF_TRAFFIC_READ, RF_TRAFFIC_COPY } rf_traffic;

/* How to open a device. A backend ignores settings that it does not need. */
typedef struct rf_device_settings {
  int chips;                /* number of chips on which the programs run; 0 means 1 */
  rf_hosts hosts;           /* the hosts among which the chips are shared equally */
  const char *plugin;       /* path of a PJRT plugin; NULL: none */
  const char *flags;        /* options for the compiler, such as "--xla_a=1 --xla_b=true"; NULL: none */
  const char *cache;        /* folder of compiled programs; NULL: none */
  bool traced;              /* true: the run records some of its steps (backend/lanes.h) */
  const volatile int *stop; /* a value other than 0 ends compiling with RAFTER_INTERRUPTED; may be NULL */
  /* Called before and after a program for `rows` rows is compiled, which may take minutes. The
   * second call gets the seconds of the compilation, and the bytes that the program needs on each
   * chip (0: unknown). NULL: not called. */
  void (*compiling)(void *self, int64_t rows, double seconds, int64_t bytes);
  /* Gets a sentence for people. NULL: not called. */
  void (*note)(void *self, const char *text);
  void *self;
} rf_device_settings;

/* The functions of a device. A function may be NULL only if its comment says so. Functions return
 * RAFTER_FAILED when the device fails. */
typedef struct rf_device_type {
  /* The texts of `settings` must stay valid until `close`. A device type for several chips sets
   * rf_device.chips to settings->chips, or fails if it has fewer chips. */
  rf_status (*open)(rf_device **device, const rf_device_settings *settings, rf_error *error);
  void (*close)(rf_device *device);
  /* Allocates a block of `bytes` zeroed bytes on every chip, aligned to 64 bytes or more. */
  rf_status (*allocate)(rf_device *device, int64_t bytes, rf_memory **memory, rf_error *error);
  void (*release)(rf_memory *memory);
  /* Maps a range of memory before its first use. The function is NULL if all memory is always
   * mapped. */
  rf_status (*reserve)(rf_memory *memory, int64_t at, int64_t bytes, rf_error *error);
  /* `fill`, `upload` and `download` are NULL if memory has a host address. Only rf_memory_fill,
   * rf_memory_write and rf_memory_read call these functions. The range of a call never covers two
   * tensors. Several threads may call these functions at once. */
  rf_status (*fill)(rf_memory *memory, int64_t at, uint32_t word, int64_t bytes, rf_error *error);
  rf_status (*upload)(rf_memory *memory, int64_t at, const void *from, int64_t bytes, rf_error *error);
  rf_status (*download)(rf_memory *memory, int64_t at, void *to, int64_t bytes, rf_error *error);
  /* Called when plan `plan` of the run is used after another plan. The other plan may have
   * overwritten the bytes after the persistent region of the first plan. The function is NULL if
   * every plan reads its tensors from the arena itself. */
  void (*enter)(rf_memory *memory, int plan);
  /* Sends a message to another host, or receives the next one from it. Messages of a host arrive in
   * order. Both functions fail if a host ends. Both functions are NULL if devices have one host. */
  rf_status (*send)(rf_device *device, int host, const void *data, int64_t bytes, rf_error *error);
  rf_status (*receive)(rf_device *device, int host, void *data, int64_t bytes, rf_error *error);
  /* Waits for all queued work and reports the errors of this work. The function is NULL if the
   * device never queues work. */
  rf_status (*synchronise)(rf_device *device, rf_error *error);
  /* Compiles a plan to a program. The device must outlive the program. */
  rf_status (*compile)(rf_device *device, const rf_program_source *source, rf_program **program,
                       rf_error *error);
  /* The next four functions measure the highest rates of the device. These functions are NULL if
   * the device cannot measure itself. `flops` multiplies values in registers for `seconds` and
   * returns the FLOP/s. `flops` returns 0 if the device lacks the unit `alu`. */
  bool (*has_alu)(const rf_device *device, rf_dtype dtype, rf_alu alu);
  double (*flops)(const rf_device *device, rf_dtype dtype, rf_alu alu, double seconds);
  /* Reads or copies the complete memory `passes` times and returns the bytes/s of the fastest pass.
   * The caller has written the memory before. A copy counts bytes read plus bytes written. */
  double (*bandwidth)(const rf_device *device, rf_memory *memory, rf_traffic traffic, int passes);
  double (*launch_seconds)(const rf_device *device); /* time of an op that computes nothing */
} rf_device_type;

/* An open device. A backend's own device struct has rf_device as its first field. */
struct rf_device {
  const rf_device_type *type;
  int chips; /* number of chips on all hosts, which run each program; 1 unless `open` sets it */
  int hosts; /* number of hosts, 1 unless `open` sets it; the chips are numbered host by host */
  int host;  /* number of this host */
  int level; /* instruction-set level of the backend: rf_isa on a CPU */
  /* number of workers that share an op, as in the plan; on a CPU, a worker is a thread */
  int workers;
  struct rf_link *link; /* the other ranks, for host devices (mpi/link.h); NULL: one process */
  rf_team team; /* chooses how many threads execute the next op, if the workers are threads of the host */
};

/* Opens the device of `backend`. backend->device must not be NULL. (*device)->type->close closes
 * it. `settings` may be NULL. */
rf_status rf_device_open(const rf_backend *backend, int level, int workers,
                         const rf_device_settings *settings, rf_device **device, rf_error *error);

/* These functions access `bytes` bytes of `memory` from offset `at` on. rf_memory_fill repeats the
 * 4-byte value `word`, so its `bytes` must be a multiple of 4. */
rf_status rf_memory_write(rf_memory *memory, int64_t at, const void *from, int64_t bytes, rf_error *error);
rf_status rf_memory_read(rf_memory *memory, int64_t at, void *to, int64_t bytes, rf_error *error);
rf_status rf_memory_fill(rf_memory *memory, int64_t at, uint32_t word, int64_t bytes, rf_error *error);

/* ---- program --------------------------------------------------------------------------------- */

/* Inputs of a run that change from step to step. All ops of a section get the same inputs. */
typedef struct rf_run_inputs {
  /* The dropout mask depends on (seed, step, attr.dropout.site, global token, channel). */
  uint64_t seed;
  int64_t step;  /* number of the optimizer step, from 1, as Adam's bias correction needs it */
  int32_t micro; /* number of the microbatch in the step, from 0 */
  /* number of tokens of this step before this microbatch: micro * n, where n is the tokens of a
   * microbatch */
  int64_t first_token;
  float loss_scale; /* 1 / (valid tokens of the step) */
  float lr;
  int64_t rows; /* number of rows in use; training uses all rows of the graph */
  /* For `start`: an input with rf_tensor.follows gets the value of the output that it follows, from
   * the step that was started last. That step had the same number of rows. The device does not read
   * the caller's bytes of such an input. */
  bool follows;
  /* An output of the graph that the caller does not read after this run. The device need not copy
   * this output to the host. NULL: the caller reads all outputs. */
  const rf_tensor *unread;
  /* Coordinates of this chip in the graph's mesh. A device of several chips runs a program on all
   * its chips, and ignores this field. */
  int32_t place[RF_AXES];
  /* If *stop is not 0, the section ends before its next op with RAFTER_INTERRUPTED, and its results
   * are discarded. A section that has updated a weight continues to its end. NULL: never. */
  const volatile int *stop;
} rf_run_inputs;

/* Measured times of an op since the last reset. `seconds` is the sum over all calls, and `least` is
 * the time of the fastest call. */
typedef struct rf_measured {
  double seconds, least;
  int64_t calls;
} rf_measured;

/* Callbacks for programs that can pause between ops. op[i] says with RF_WATCH_* flags whether the
 * program calls `before` and `after` for op i. The flags change only between sections. */
enum { RF_WATCH_BEFORE = 1, RF_WATCH_AFTER = 2 };
typedef struct rf_watch {
  void *self;
  const uint8_t *op;
  rf_status (*before)(void *self, int op, rf_error *error);
  rf_status (*after)(void *self, int op, const rf_run_inputs *inputs, rf_error *error);
} rf_watch;

/* The input of `compile`. The arrays `offset` and `op` must stay valid during `compile`, and all
 * other pointers until the program is released. */
struct rf_program_source {
  const rf_graph *graph;
  rf_memory *memory;
  /* byte offset of each tensor and each workspace in `memory`; negative if a tensor is not
   * stored */
  const int64_t *offset;
  const struct rf_chosen *op; /* kernels and workspace that the plan chose for each op */
  int number;                 /* index of this plan in the run; recorded spans contain it */
  int workers;                /* number of workers for which the workspaces are sized */
  /* times of each op; a program that cannot time single ops leaves `calls` at 0 */
  rf_measured *measured;
  /* number of executions whose ops were timed; a program that times all executions leaves 0 */
  int64_t *timed;
  rf_watch watch;
};

/* A compiled plan. A backend's own program struct has rf_program as its first field. */
struct rf_program {
  /* Runs one section once. `run` may return before the device is done (see synchronise). */
  rf_status (*run)(rf_program *program, rf_section section, const rf_run_inputs *inputs, rf_error *error);
  void (*release)(rf_program *program);
  /* Called after the section END: copies the outputs of a microbatch to the output tensors of the
   * graph. NULL: the output tensors are complete after each section MICRO. */
  void (*show)(rf_program *program, int micro);
  /* `start` runs all sections of a step once, and returns before the device is done. It copies the
   * inputs. `finish` waits for the oldest step, and puts its outputs where the graph has them,
   * except inputs->unread. At most RF_STEPS_AHEAD steps are started and not finished. The device
   * computes them, and what `run`, uploads and downloads ask for after `start`, in the order of the
   * calls. A failed `start` starts nothing, and earlier steps stay. After a failed `finish`, no
   * step is in progress. Both are NULL: the program cannot run ahead of its caller. */
  rf_status (*start)(rf_program *program, const rf_run_inputs *inputs, rf_error *error);
  rf_status (*finish)(rf_program *program, rf_error *error);
};
enum { RF_STEPS_AHEAD = 2 };

/* ---- backends -------------------------------------------------------------------------------- */

struct rf_backend {
  const char *name; /* "reference", "cpu", "null", "xla", "sheet" */
  /* NULL-terminated list of kernel tables. An entry with op NULL ends a table. A plan chooses the
   * first entry that accepts the op. */
  const struct rf_kernel *const *tables;
  const rf_backend *kernels_of; /* backend whose tables this backend uses; NULL: its own tables */
  /* NULL: the backend can only plan, and running its plans does nothing */
  const rf_device_type *device;
  /* Gets the default block sizes of a kernel. A plan may use other block sizes (rf_tiling).
   * Returns false if the kernel has no block sizes. */
  bool (*blocks)(const struct rf_kernel *kernel, rf_blocks *blocks);
  /* true: all matrices are plain rows of the plan's dtype; false: matrices that are not trained are
   * packed (formats/panels.h) */
  bool plain_weights;
  /* A compiler places the tensors of a step, so the device allocates more or fewer bytes than the
   * plan says. */
  bool compiles;
  bool many_chips; /* true: the device runs programs of a mesh on several chips */
  bool sheet;      /* true: the backend can only plan, for a machine without threads that has a data sheet */
};

extern const rf_backend RF_BACKEND_REFERENCE, RF_BACKEND_CPU, RF_BACKEND_NULL, RF_BACKEND_XLA;
/* Backends for machines that are known only by a data sheet. Users cannot name them. A plan for a
 * TPU or a GPU includes the arrays that its compiler adds to programs of backend/xla. */
extern const rf_backend RF_BACKEND_SHEET_TPU, RF_BACKEND_SHEET_GPU;
/* True if each chip of a mesh is a process of an MPI job (mpi/link.h). */
static inline bool rf_backend_has_ranks(const rf_backend *backend) {
  return backend && backend->many_chips && !backend->compiles && !backend->sheet;
}
const rf_backend *rf_backend_find(const char *name); /* "auto" means cpu; returns NULL for an unknown name */

#endif
