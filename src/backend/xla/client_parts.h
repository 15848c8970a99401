/* client_parts.h - declarations that the files of the client share: the child process, and messages
 * to the child. */
#ifndef RF_XLA_CLIENT_PARTS_H
#define RF_XLA_CLIENT_PARTS_H

#include <pthread.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "backend/xla/client.h"
#include "backend/xla/wire.h"

struct rf_xla_client {
  pthread_mutex_t lock;
  pid_t child; /* 0: none */
  int socket;
  int log; /* a file in memory with the child's stderr */
  bool compile_only, lost;
  bool stores;   /* programs can be stored */
  char end[512]; /* reason of the child's end, if the child is lost */
  char *plugin;
  const volatile int *stop;
  void (*waiting)(void *context, double seconds);
  void *context;
  void *settings; /* encoded options, as they are sent; a part of the key of the cache */
  size_t settings_bytes;
  rf_xla_facts facts;
  int host, hosts;    /* hosts >= 1 */
  int32_t *device_id; /* (hosts * facts.devices) ids of the devices, host by host */
  bool shared[RF_WIRE_SHARED];
  rf_xla_times times;
  int64_t spin_ns; /* rf_wire_spin_ns */
  void *answer;    /* body of the last answer */
  size_t answer_room;
};

/* client_process.c: starts the child, and finds out why the child ended. */
rf_status rf_xla_start(rf_xla_client *client, rf_error *error);
/* Ends the child, waits for its end, and fills client->end. If `ask`, first asks the child to
 * end. */
void rf_xla_end(rf_xla_client *client, bool ask);

/* client_message.c: sends a request and waits for the answer. The caller has the lock. */
typedef struct rf_xla_message {
  rf_wire_kind kind;
  const char *what;     /* for errors: "compile" */
  struct iovec part[6]; /* the body's parts */
  int parts;
  int descriptor; /* file descriptor that is sent with the request; 0: none */
  bool stoppable; /* true: if the caller asks to stop, the call and the child end */
} rf_xla_message;
/* *answer gets the body of the answer, which is valid until the next request. If the plugin fails,
 * returns RAFTER_NO_FIT if memory was exhausted, otherwise RAFTER_FAILED. */
rf_status rf_xla_ask(rf_xla_client *client, const rf_xla_message *message, const void **answer, size_t *bytes,
                     rf_error *error);

/* Takes the client's lock, then does the same. Copies the answer, which must have `size` bytes, to
 * `to`. */
rf_status rf_xla_ask_for(rf_xla_client *client, const rf_xla_message *message, void *to, size_t size,
                         rf_error *error);

/* client_options.c: encodes a CompileOptionsProto. Returns malloc'ed memory. */
rf_status rf_xla_options(int replicas, const int32_t *device, const char *flags, void **options,
                         size_t *bytes, rf_error *error);

/* client_hosts.c: checks the number of replicas, and encodes the options with the devices of the
 * replicas. */
rf_status rf_xla_compile_options(const rf_xla_client *client, const rf_xla_compile *of, void **options,
                                 size_t *bytes, rf_error *error);

/* client_cache.c: compiled programs in a folder. If a file cannot be written, the next run compiles
 * the program again. */
void rf_xla_cache_path(const rf_xla_client *client, const rf_xla_compile *of, const void *options,
                       size_t options_bytes, char *path, size_t size);
/* Returns false if the file is missing, short or changed. *data gets malloc'ed memory. */
bool rf_xla_cache_read(const char *path, rf_wire_program *program, void **data, size_t *bytes);
void rf_xla_cache_write(const char *folder, const char *path, const rf_wire_program *program,
                        const void *data, size_t bytes);
void rf_xla_cache_trim(const char *folder, int64_t most);

#endif
