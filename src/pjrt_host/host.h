/* host.h - declarations for all files of rafter-pjrt: the plugin, its objects, and calls of its
 * functions. */
#ifndef RF_PJRT_HOST_H
#define RF_PJRT_HOST_H

#include "backend/xla/wire.h"
#include "pjrt_host/pjrt_abi.h"
#include "pjrt_host/store.h"

#include <stdatomic.h>

/* The reason of a failed call. `code` is that of rf_wire_answer. */
typedef struct host_fault {
  int code;
  char text[4096];
} host_fault;
/* Fills `fault`. host_fail also returns false. */
void host_fill(host_fault *fault, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define host_fail(...) (host_fill(__VA_ARGS__), false)

typedef struct host_text {
  const char *data;
  size_t bytes;
} host_text;

/* Objects that the client knows by number. No two objects get the same number. */
typedef struct host_table {
  struct {
    void *object;
    uint32_t uses;
  } * slot;
  uint32_t count, *unused, unused_count;
} host_table;
int64_t host_table_add(host_table *table, void *object);
void *host_table_find(const host_table *table, int64_t id); /* NULL: no such object */
void *host_table_take(host_table *table, int64_t id);       /* finds and removes */

/* A small array of the last execution. The next execution often has the same array. */
typedef struct host_kept {
  void *buffer; /* NULL: none */
  rf_wire_shape shape;
  char *data; /* its bytes */
} host_kept;

typedef struct host_program {
  void *loaded, *executable;
  int replicas, results;
  host_kept *kept; /* (arguments of all devices) kept arrays; NULL: none yet */
  size_t kepts;
  int order[]; /* (replicas) index of the device on which the replica runs */
} host_program;

typedef struct host_shared {
  char *data;
  int64_t bytes;
} host_shared;

/* The other hosts of a run. `client` is NULL if the run has one host. */
typedef struct host_peers {
  int host, hosts;
  store_server *server; /* only in host 0 */
  store_client *client;
  uint64_t *sent, *received; /* (hosts) numbers of messages */
  _Atomic int64_t busy_ms;   /* time at which the current request began; 0: no request is served */
  _Atomic int64_t ended_ms;  /* time at which the first host ended; 0: all hosts run */
  _Atomic int ended;         /* this host */
  _Atomic bool closing;
} host_peers;

typedef struct host {
  const pjrt_api *api;
  void *client;  /* client of the plugin; NULL: the program only compiles for topologies */
  void **device; /* (devices) addressable devices */
  int devices;
  void **all; /* (devices * hosts) devices of all hosts, host by host; NULL: `device` is the list */
  host_table buffers, programs;
  host_shared shared[RF_WIRE_SHARED];
  host_peers peers;
  int64_t spin_ns; /* rf_wire_spin_ns */
  bool apart;      /* true: devices have their own memory, so buffers are never in shared memory */
  void *profile;   /* profile that is being recorded; NULL: none */
  struct host_execution *flight[RF_WIRE_FLIGHTS]; /* executions in progress, the oldest first */
  int flights;                                    /* number of executions in progress */
} host;

/* Calls the function in `slot`. `args` is a struct of pjrt_abi.h of `bytes` bytes. */
bool host_call(const host *h, int slot, void *args, size_t bytes, const char *what, host_fault *fault);
#define HOST_CALL(h, slot, args, what, fault) host_call((h), (slot), (args), sizeof *(args), (what), (fault))
bool host_has(const host *h, int slot);
/* True if the name of `value` is `name`. */
bool host_is_named(const pjrt_named *value, const char *name);
/* Makes an option without a value. `count` is the length of a text, or 1 for other types. The name
 * must stay valid. */
pjrt_named host_option(const char *name, int type, size_t count);
/* Waits for an event and destroys it. */
bool host_await(const host *h, void *event, const char *what, host_fault *fault);
void host_destroy(const host *h, int slot, void *object); /* `object` may be NULL */

/* plugin.c: loads the plugin and opens its devices. The documentation of the plugin describes its
 * options. */
bool host_load(host *h, const char *path, host_fault *fault);
/* `path` is the path of the plugin. This process joins the other hosts before it opens devices. */
bool host_open(host *h, const char *path, const pjrt_named *option, size_t options, host_fault *fault);
void host_facts(const host *h, rf_wire_facts *facts);
bool host_device_id(const host *h, void *device, int32_t *id, host_fault *fault);
void host_close(host *h);

/* hosts.c: joins the other hosts, if there are several. */
bool host_join(host *h, const rf_wire_open *open, host_text address, host_fault *fault);
/* Fills in the functions through which the plugin uses the store. */
void host_callbacks(host *h, pjrt_client_create *create);
/* Messages to and from another host arrive in the order in which they are sent. */
bool host_send(host *h, int64_t to, host_text data, host_fault *fault);
/* *data gets malloc'ed memory. Waits until the message arrives. If a host ends before then, ends
 * this process. */
bool host_receive(host *h, int64_t from, char **data, size_t *bytes, host_fault *fault);
void host_busy(host *h, bool busy); /* a request begins or ends */
/* Ends the connection to the other hosts. After a failure, the other hosts end too. Otherwise host
 * 0 waits until the other hosts have ended, because host 0 has the store. */
void host_leave(host *h, bool good);

/* cuda.c: loads NVIDIA's libraries that are installed next to a plugin for CUDA. Other plugins need
 * no such libraries. */
void host_load_cuda(const char *plugin);
/* Fills in the options for the client of a plugin for CUDA, and returns their number. Other plugins
 * get no options. */
enum { HOST_CUDA_OPTIONS = 2 };
size_t host_cuda_options(const char *plugin, pjrt_named *option);

/* compile.c */
bool host_compile(host *h, host_text program, host_text options, rf_wire_program *out, host_fault *fault);
/* `target` describes the devices of the topology. An empty `target` means that the plugin knows the
 * topology by name. */
bool host_compile_for(host *h, host_text program, host_text options, host_text topology, host_text target,
                      rf_wire_program *out, host_fault *fault);
bool host_load_program(host *h, host_text stored, rf_wire_program *out, host_fault *fault);
/* `result` gets malloc'ed memory. */
void host_free_program(const host *h, host_program *program);
bool host_store_program(const host *h, int64_t program, char **result, size_t *bytes, host_fault *fault);
bool host_optimized(const host *h, int64_t program, char **result, size_t *bytes, host_fault *fault);

/* transfer.c */
int64_t host_shape_bytes(const rf_wire_shape *shape); /* -1: not a shape */
/* The address of a range of shared memory, or NULL and a fault. */
char *host_range(const host *h, int64_t shared, int64_t at, int64_t bytes, host_fault *fault);
bool host_put(const host *h, int device, const rf_wire_shape *shape, const char *data, int semantics,
              void **buffer, host_fault *fault);
/* Starts to copy an array in row-major order. The caller waits for *event. */
bool host_get(const host *h, void *buffer, char *data, int64_t bytes, void **event, host_fault *fault);

/* execute.c: frees the kept arrays. */
void host_drop_kept(const host *h, host_program *program);
/* `body` is the message. `result` (devices * results) gets ids of kept results. */
bool host_execute(host *h, const char *body, size_t bytes, int64_t **result, size_t *results,
                  host_fault *fault);
/* The same, but does not wait. Kept results have ids at once, so that the next execution can read
 * them. host_land waits for the oldest execution that was launched, and returns its failure. */
bool host_launch(host *h, const char *body, size_t bytes, int64_t **result, size_t *results,
                 host_fault *fault);
bool host_land(host *h, host_fault *fault);
void host_land_all(host *h); /* before memory or programs end that an execution may use */

/* profile.c: the plugin's profiler records what the devices do. */
bool host_profiles(const host *h); /* the plugin has a profiler */
bool host_profile_begin(host *h, host_fault *fault);
/* Ends the profile. `result` gets malloc'ed memory with an XSpace of XLA. */
bool host_profile_end(host *h, char **result, size_t *bytes, host_fault *fault);

/* serve.c: answers requests until the client closes the socket. */
void host_serve(host *h, int socket, const char *plugin);

#endif
