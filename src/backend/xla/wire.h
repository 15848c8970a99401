/* wire.h - messages between the client (client.c) and the program rafter-pjrt (src/pjrt_host),
 * which loads a plugin. Client and program run on one machine and come from one build. A request
 * consists of a head and `bytes` bytes of body. Each request gets one answer. Client and program
 * check every size. */
#ifndef RF_XLA_WIRE_H
#define RF_XLA_WIRE_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum {
  RF_WIRE_VERSION = 5, /* of this header */
  RF_WIRE_SOCKET = 3,  /* file descriptor of the socket in the child */
  RF_WIRE_RANK = 6,    /* dimensions of an array */
  RF_WIRE_DEVICES = 4096,
  RF_WIRE_OPTIONS = 64,    /* options of the plugin */
  RF_WIRE_SHARED = 256,    /* shared memories */
  RF_WIRE_ADDRESS = 255,   /* maximum bytes of the name or address of host 0 */
  RF_WIRE_PIECE = 4 << 20, /* maximum bytes of a message between hosts */
  RF_WIRE_FLIGHTS = 2,     /* maximum number of launched executions that nobody has waited for */
  /* exit status of the child when another host has ended; the child's last line of stderr names
   * this host */
  RF_WIRE_EXIT_HOST = 70
};
/* The first word of each head. The word contains the version, so that a program of another version
 * of rafter refuses the first message. */
#define RF_WIRE_MAGIC (0x52504a00u + RF_WIRE_VERSION)
#define RF_WIRE_MOST ((uint64_t)1 << 33) /* bytes of a body */

typedef enum rf_wire_kind {
  RF_WIRE_OPEN,          /* rf_wire_open, options, texts; answer: rf_wire_facts, ids (int32) of devices */
  RF_WIRE_COMPILE,       /* rf_wire_compile, texts; answer: rf_wire_program */
  RF_WIRE_LOAD,          /* bytes of RF_WIRE_STORE; answer: rf_wire_program */
  RF_WIRE_STORE,         /* int64 program; answer: the serialized program */
  RF_WIRE_SAVE,          /* int64 program; answer: the optimized program */
  RF_WIRE_SHARE,         /* rf_wire_share and a descriptor */
  RF_WIRE_UNSHARE,       /* rf_wire_share */
  RF_WIRE_PUT,           /* rf_wire_put; answer: int64 buffer */
  RF_WIRE_GET,           /* rf_wire_get */
  RF_WIRE_FREE,          /* int64 ids of buffers */
  RF_WIRE_DROP,          /* int64 program */
  RF_WIRE_EXECUTE,       /* rf_wire_execute and its lists; answer: int64 buffers */
  RF_WIRE_LAUNCH,        /* as RF_WIRE_EXECUTE, but the answer comes once the execution has started */
  RF_WIRE_LAND,          /* waits for the oldest launched execution and its copies */
  RF_WIRE_SEND,          /* int64 host, and a message for this host */
  RF_WIRE_RECEIVE,       /* int64 host; answer: the next message of this host */
  RF_WIRE_PROFILE_BEGIN, /* the plugin's profiler records from now on */
  RF_WIRE_PROFILE_END,   /* answer: the recorded XSpace */
  RF_WIRE_CLOSE,         /* the child ends */
  RF_WIRE_KINDS
} rf_wire_kind;

static inline int64_t rf_wire_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* True for requests of decoding. After such a request, the next one comes at once. */
static inline int rf_wire_is_execution(uint32_t kind) {
  return kind == RF_WIRE_EXECUTE || kind == RF_WIRE_LAUNCH || kind == RF_WIRE_LAND;
}

/* How long client and child wait for an execution without sleeping. Waking up would take longer
 * than the messages of a step. 0 if the CPU itself computes, or if this process may use only one
 * core. */
static inline int64_t rf_wire_spin_ns(const char *platform, int cores) {
  enum { CORES = 2, SPIN_NS = 3000000 };
  return strcmp(platform, "cpu") && cores >= CORES ? SPIN_NS : 0;
}

/* Waits for a message for a short time without sleeping. */
static inline void rf_wire_await(int socket, int64_t ns) {
  char first;
  int64_t end = rf_wire_now_ns() + ns;
  while (rf_wire_now_ns() < end && recv(socket, &first, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN) {}
}

typedef struct rf_wire_head {
  uint32_t magic, kind;
  uint64_t bytes;
} rf_wire_head;

/* `code` is 0, an error code of the plugin (1 to 16), or a negative code RF_WIRE_... The body of a
 * failure is a text. */
enum {
  RF_WIRE_BAD_REQUEST = -1,
  RF_WIRE_NO_PLUGIN = -2,
  RF_WIRE_BAD_VERSION = -3,
  RF_WIRE_HOSTS = -4,
  RF_WIRE_PROFILER = -5
};
typedef struct rf_wire_answer {
  uint32_t magic;
  int32_t code;
  uint64_t bytes;
  int64_t ns; /* time from the end of the request to this answer */
} rf_wire_answer;

typedef struct rf_wire_open {
  uint32_t compile_only, options;
  uint32_t host, hosts, port, address_bytes; /* if hosts <= 1, there is one host, and the address is empty */
  uint32_t cores, unused;                    /* cores: number of cores that the client may use */
} rf_wire_open;
/* The list of options is followed by texts without NUL: the name and the text of each option, then
 * the address of host 0. */
typedef struct rf_wire_option {
  uint32_t name_bytes, text_bytes;
  int32_t is_number, unused;
  int64_t number;
} rf_wire_option;

typedef struct rf_wire_facts {
  int32_t api_major, api_minor, devices; /* devices of each host */
  int32_t has_topologies, has_memory_stats, has_cost, stores, profiles;
  int64_t memory_bytes;
  int32_t stablehlo[3], stablehlo_oldest[3]; /* versions; 0.0.0: not reported */
  char platform[64], version[128], kind[64];
} rf_wire_facts;

/* After this struct come four texts: program, compile options (a CompileOptionsProto), topology,
 * and a description of the topology's devices. The description is for plugins that do not know the
 * topology by name. The last two texts may be empty. */
typedef struct rf_wire_compile {
  uint64_t text_bytes, options_bytes, topology_bytes, target_bytes;
} rf_wire_compile;
typedef struct rf_wire_program {
  int64_t program; /* 0 with a topology */
  int64_t replicas, results;
  int64_t argument, output, alias, temporary, code; /* bytes; -1: not reported */
  double flops, bytes_accessed;                     /* -1: not reported */
} rf_wire_program;

typedef struct rf_wire_share {
  int64_t id, bytes;
} rf_wire_share;

/* An array of the plugin's element type `type` (PJRT_Buffer_Type). */
typedef struct rf_wire_shape {
  int32_t type, rank;
  int64_t dim[RF_WIRE_RANK];
} rf_wire_shape;

typedef struct rf_wire_put {
  int64_t device, shared, at;
  rf_wire_shape shape;
} rf_wire_put;
typedef struct rf_wire_get {
  int64_t buffer, shared, at, bytes;
} rf_wire_get;

/* After this struct come four lists: (devices * arguments) ids of buffers (int64; 0: staged),
 * `staged` rf_wire_staged, (devices * results) rf_wire_wanted, and one byte per argument, 1 for a
 * donated argument. */
typedef struct rf_wire_execute {
  int64_t program, shared;
  uint32_t devices, arguments, results, staged;
} rf_wire_execute;
typedef struct rf_wire_staged {
  int64_t index; /* index of the array's element in the list of buffers */
  int64_t at;
  rf_wire_shape shape;
} rf_wire_staged;
typedef struct rf_wire_wanted {
  int64_t at; /* -1: not copied */
  int64_t bytes;
  int64_t keep;
} rf_wire_wanted;

#endif
