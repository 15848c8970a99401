/* store.h - the key-value store with which the hosts of a run find each other. Host 0 serves the
 * store over TCP. Every host is a client, including host 0. Plugins use the store through
 * callbacks. rafter uses the store to exchange messages. Frames have the byte order of the machine,
 * so all hosts must have the same byte order. Nothing is encrypted. docs/tpu.md says who can reach
 * the port. */
#ifndef RF_PJRT_STORE_H
#define RF_PJRT_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  STORE_MAGIC = 0x52535401,       /* the last byte is the version */
  STORE_KEY_BYTES = 4096,         /* of a key */
  STORE_VALUE_BYTES = 16 << 20,   /* of a value */
  STORE_ALL_BYTES = 1 << 30,      /* maximum bytes of all keys and values */
  STORE_KEYS = 1 << 20,           /* number of keys */
  STORE_HOSTS = 4096,             /* number of hosts */
  STORE_SECRET_BYTES = 256,       /* maximum bytes of the secret that hosts share */
  STORE_STRANGERS = 16,           /* maximum number of connections whose host is not known yet */
  STORE_STRANGER_MS = 10000,      /* maximum time until the first frame of a connection */
  STORE_WAITING = 65536,          /* maximum number of requests that wait for a key */
  STORE_BACKLOG_BYTES = 256 << 20 /* maximum bytes of answers that a host has not read yet */
};

/* ---- frames (store_frame.c) ------------------------------------------------------------------ */

typedef enum store_kind {
  /* first frame of a host; head.host = its number, head.number = number of hosts, key = secret */
  STORE_HELLO,
  STORE_PUT,  /* key, value */
  STORE_GET,  /* gets a key; head.number = milliseconds to wait, negative: forever */
  STORE_TAKE, /* does the same as STORE_GET, then removes the key */
  STORE_TRY,  /* key; does not wait */
  STORE_BYE,  /* the host ends without an error */
  STORE_REQUESTS,
  STORE_DONE = STORE_REQUESTS, /* answer: value */
  STORE_MISSING,               /* answer: no such key */
  STORE_LATE,                  /* answer: the key did not appear in time */
  STORE_REFUSED,               /* answer with the reason in `value`; with id 0, the connection also ends */
  STORE_READY,                 /* all hosts have joined */
  STORE_ENDED,                 /* host; number = 1: without STORE_BYE */
  STORE_KINDS
} store_kind;

typedef struct store_head {
  uint32_t magic, kind, host, id, key_bytes, value_bytes;
  int32_t number, unused;
} store_head;

typedef struct store_frame {
  store_head head;
  const char *key, *value;
} store_frame;

/* Reads a frame at the start of `data`. Returns the size of the frame, 0 if more bytes are needed,
 * or -1 if the bytes cannot be a frame. `stranger`: only STORE_HELLO is a frame. */
int64_t store_parse(const char *data, size_t bytes, bool stranger, store_frame *frame);
int64_t store_now_ms(void); /* of the monotonic clock */
bool store_nonblocking(int socket);
/* Makes the system find out within about 30 s that the other machine is gone. */
void store_watch_peer(int socket);

/* ---- keys and values (store_table.c) --------------------------------------------------------- */

typedef struct store_table store_table;
store_table *store_table_new(void);
void store_table_free(store_table *table);
/* Sets the value of a key. Returns NULL, or the reason if the table is full. */
const char *store_table_put(store_table *table, const store_frame *frame);
bool store_table_find(const store_table *table, const char *key, size_t key_bytes, const char **value,
                      size_t *value_bytes);
void store_table_remove(store_table *table, const char *key, size_t key_bytes);

/* ---- the server (store_server.c) ------------------------------------------------------------- */

typedef struct store_server store_server;
typedef struct store_place {
  const char *address, *port; /* of host 0 */
  int host, hosts;
  const char *secret; /* "": none */
  int join_ms;        /* maximum time until all hosts have joined */
} store_place;
/* Starts a thread that serves the store. On failure returns NULL and fills `why`. If the address is
 * a loopback address, only this machine can reach the port. Otherwise all networks of the machine
 * can reach the port. Port "0" takes a free port. */
store_server *store_serve(const store_place *place, char *why, size_t size);
int store_server_port(const store_server *server);
/* Waits up to `ms` until every other host has left, then ends the server. */
void store_server_end(store_server *server, int ms);

/* ---- a client (store_client.c) --------------------------------------------------------------- */

typedef struct store_client store_client;
typedef enum store_result { STORE_GOOD, STORE_NONE, STORE_TIME, STORE_BAD, STORE_GONE } store_result;
/* Another thread calls this function when a host has ended. `lost` is true after a failure, and
 * false at a normal end. If the connection to the server is lost, `host` is 0. */
typedef void (*store_on_end)(void *self, int host, bool lost);
/* Connects, and waits until all hosts have joined. On failure returns NULL and fills `why`. */
store_client *store_join(const store_place *place, store_on_end ended, void *self, char *why, size_t size);
/* Any thread may call these functions. `kind` is STORE_GET, STORE_TAKE or STORE_TRY. *value gets
 * malloc'ed memory with a NUL after its bytes. `timeout_ms` < 0: no limit. STORE_BAD fills `why`,
 * which has 256 bytes. */
store_result store_put(store_client *client, const char *key, size_t key_bytes, const void *value,
                       size_t value_bytes, char *why);
store_result store_get(store_client *client, store_kind kind, const char *key, size_t key_bytes,
                       int timeout_ms, char **value, size_t *value_bytes);
/* Tells the other hosts that this host ends without an error. */
void store_leave(store_client *client);
void store_close(store_client *client);

#endif
