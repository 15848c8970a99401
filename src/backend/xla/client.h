/* client.h - one PJRT plugin in a child process. The child (src/pjrt_host) loads the plugin. If the
 * plugin calls abort(), only the child ends, and the caller gets an error. Large data passes
 * through shared memory. Any thread may call these functions. The child serves one call after the
 * other. After RAFTER_FAILED with `lost` set, the caller can only close the client. */
#ifndef RF_XLA_CLIENT_H
#define RF_XLA_CLIENT_H

#include "base/base.h"

typedef struct rf_xla_client rf_xla_client;
typedef int64_t rf_xla_id; /* number of a buffer or a program in the child; 0: none */

/* An option of the plugin's client or topology, such as cpu_device_count. */
typedef struct rf_xla_option {
  const char *name;
  const char *text; /* value of the option as a text; NULL: the value is `number` */
  int64_t number;
} rf_xla_option;

/* The hosts of a run. Each host has its own process and its own client. Host 0 serves the store in
 * which the hosts find each other. */
typedef struct rf_xla_hosts {
  int host, hosts;     /* number of this host, and number of hosts; hosts <= 1: this is the only host */
  const char *address; /* address of host 0; NULL with one host */
  int port;
} rf_xla_hosts;

typedef struct rf_xla_settings {
  const char *plugin; /* path of a shared library with GetPjrtApi */
  bool compile_only;  /* true: opens no devices, because topologies need none */
  const rf_xla_option *option;
  int options;
  rf_xla_hosts hosts;
  /* A value other than 0 in *stop ends rf_xla_open and rf_xla_program with RAFTER_INTERRUPTED
   * within 1 s. All other calls continue, so that a trainer can still fetch and save the
   * weights. */
  const volatile int *stop;
  /* Prints progress; may be NULL. The client calls this function about ten times a second while
   * rf_xla_open or rf_xla_program waits. `seconds` is the time since the call began. The function
   * must not call the client. */
  void (*waiting)(void *context, double seconds);
  void *context;
} rf_xla_settings;

typedef struct rf_xla_facts {
  int api_major, api_minor;
  char platform[64], version[128]; /* names that the plugin gives; platform is "cpu", "tpu" or "cuda" */
  /* number of devices of this host, the same on every host; 0 with compile_only */
  int devices;
  char kind[64];        /* kind of the first device */
  int64_t memory_bytes; /* memory of the first device; 0: unknown */
  bool has_topologies, has_memory_stats, has_cost, has_profiler;
  /* newest and oldest version that the plugin reads; 0.0.0: not reported */
  int stablehlo[3], stablehlo_oldest[3];
} rf_xla_facts;

/* Starts the child and loads the plugin. Returns RAFTER_INVALID if the file does not exist, is not
 * a plugin, or has an unsupported API version (expected 0.81 or newer, major 0). RAFTER_FAILED: the
 * plugin failed. */
rf_status rf_xla_open(const rf_xla_settings *settings, rf_xla_client **client, rf_error *error);
void rf_xla_close(rf_xla_client *client);
const rf_xla_facts *rf_xla_facts_of(const rf_xla_client *client);
bool rf_xla_lost(const rf_xla_client *client); /* the child has died */

/* Bytes of a compiled program, as the compiler reports them; -1: not reported. `total` is argument
 * + output - alias + temporary. */
typedef struct rf_xla_stats {
  int64_t argument, output, alias, temporary, code, total;
  double flops, bytes_accessed; /* -1: not reported */
  double seconds;               /* time of the compilation; 0 if the program came from the cache */
  bool cached;
} rf_xla_stats;

typedef struct rf_xla_compile {
  const char *text; /* StableHLO module */
  size_t bytes;
  /* Number of devices that run the program. Each host has the same number of these devices.
   * Replicas are numbered host by host. A program has one partition. */
  int replicas;
  /* name of a topology such as "v5e:2x2", to compile without devices and only get statistics; NULL:
   * none */
  const char *topology;
  /* The devices of the topology in the plugin's own format, or NULL if the plugin knows the
   * topology by name. A plugin for CUDA reads a GpuTargetConfigProto as text. */
  const char *target;
  const char *flags; /* XLA flags, "--xla_a=1 --xla_b=true"; NULL: none */
  const char *cache; /* folder of the compile cache; NULL: none. The cache keeps only programs of one host */
} rf_xla_compile;
/* Compiles a program. With a topology, *program is 0. Returns RAFTER_NO_FIT if the program does not
 * fit in the device's memory. Errors of the compiler become RAFTER_FAILED with its message. */
rf_status rf_xla_program(rf_xla_client *client, const rf_xla_compile *of, rf_xla_id *program,
                         rf_xla_stats *stats, rf_error *error);
/* The compiler's optimized program, a serialized HloModuleProto, often with its configuration.
 * rf_xla_program_save writes the program to `path`. rf_xla_program_bytes returns the program in
 * malloc'ed memory. */
rf_status rf_xla_program_save(rf_xla_client *client, rf_xla_id program, const char *path, rf_error *error);
rf_status rf_xla_program_bytes(rf_xla_client *client, rf_xla_id program, char **data, size_t *bytes,
                               rf_error *error);

enum { RF_XLA_RANK = 6 };
/* Types of arrays that rf_dtype does not have. */
enum { RF_XLA_U32 = RF_DTYPES, RF_XLA_U16, RF_XLA_DTYPES };
typedef struct rf_xla_shape {
  int dtype; /* rf_dtype (f64, f32, bf16, i32, i8, u8), RF_XLA_U32 or RF_XLA_U16 */
  int rank;
  int64_t dim[RF_XLA_RANK];
} rf_xla_shape;
int64_t rf_xla_shape_bytes(const rf_xla_shape *shape);

/* Host memory that the child can also read and write. The pointer is aligned to 64 bytes. */
typedef struct rf_xla_shared {
  void *data;
  int64_t bytes;
  int id; /* of the child's mapping */
} rf_xla_shared;
rf_status rf_xla_share(rf_xla_client *client, int64_t bytes, rf_xla_shared *shared, rf_error *error);
void rf_xla_unshare(rf_xla_client *client, rf_xla_shared *shared);

/* Copies an array from shared memory, at byte `at`, to a new buffer of device `device`. */
rf_status rf_xla_put(rf_xla_client *client, int device, const rf_xla_shape *shape, const rf_xla_shared *from,
                     int64_t at, rf_xla_id *buffer, rf_error *error);
/* Copies a buffer to shared memory. `bytes` is the size of its array. */
rf_status rf_xla_get(rf_xla_client *client, rf_xla_id buffer, const rf_xla_shared *to, int64_t at,
                     int64_t bytes, rf_error *error);
void rf_xla_free(rf_xla_client *client, const rf_xla_id *buffer, int count);
void rf_xla_program_free(rf_xla_client *client, rf_xla_id program);

/* One execution. One message has all data of a call. The child reads small arguments that change
 * with each call from shared memory. The child writes results that the host wants to shared memory.
 * Lists are in device-major order: element [d * count + i] is for device d. */
typedef struct rf_xla_argument {
  rf_xla_id buffer; /* id of the argument's buffer; 0: the array is at `at` in `shared` */
  int64_t at;
  rf_xla_shape shape; /* shape of the array, if the array is in `shared` */
} rf_xla_argument;
typedef struct rf_xla_result {
  bool keep;        /* true: `buffer` gets the id of the result's buffer */
  int64_t at;       /* offset in `shared` to which the result is copied; negative: not copied */
  int64_t bytes;    /* size of the array */
  rf_xla_id buffer; /* out */
} rf_xla_result;
typedef struct rf_xla_call {
  rf_xla_id program;
  int devices;                     /* = replicas of the program on this host */
  int arguments, results;          /* of each device */
  const rf_xla_argument *argument; /* (devices * arguments) */
  rf_xla_result *result;           /* (devices * results) */
  const rf_xla_shared *shared;
} rf_xla_call;
/* Runs a program and waits for it. The child frees the buffers of donated arguments. `donated` has
 * one flag for each argument. */
rf_status rf_xla_execute(rf_xla_client *client, const rf_xla_call *call, const bool *donated,
                         rf_error *error);
/* Starts a program and returns. The ids of kept results are valid at once, so the next call can read
 * these results. rf_xla_land waits for the oldest launched program. Then the results of this program
 * are in shared memory. Before that, nobody may change the arrays that the call reads or writes in
 * shared memory. At most RF_XLA_FLIGHTS programs are in progress. If rf_xla_land fails, all programs
 * that read the results fail too. */
enum { RF_XLA_FLIGHTS = 2 };
rf_status rf_xla_launch(rf_xla_client *client, const rf_xla_call *call, const bool *donated, rf_error *error);
rf_status rf_xla_land(rf_xla_client *client, rf_error *error);

/* The plugin's profiler records what the devices do from begin to end. One profile can be recorded
 * at a time. *data gets malloc'ed memory with an XSpace of XLA (profile.h). Returns RAFTER_FAILED
 * if the plugin has no profiler (rf_xla_facts), or if the profiler failed. Then nothing is
 * recorded. */
rf_status rf_xla_profile_begin(rf_xla_client *client, rf_error *error);
rf_status rf_xla_profile_end(rf_xla_client *client, char **data, size_t *bytes, rf_error *error);

/* Sends a message to another host, or waits for the next one from it. Messages of a host arrive in
 * order. If a host ends or cannot be reached, the calls of all other hosts fail within a minute. */
rf_status rf_xla_send(rf_xla_client *client, int host, const void *data, int64_t bytes, rf_error *error);
rf_status rf_xla_receive(rf_xla_client *client, int host, void *data, int64_t bytes, rf_error *error);

/* Times of all executions. The cost of the child process is `seconds` - `child_seconds`. */
typedef struct rf_xla_times {
  int64_t calls;
  double seconds;       /* in rf_xla_execute, rf_xla_launch and rf_xla_land */
  double child_seconds; /* part of `seconds` that the child needs for transfers and the plugin */
} rf_xla_times;
rf_xla_times rf_xla_times_of(const rf_xla_client *client);

#endif
