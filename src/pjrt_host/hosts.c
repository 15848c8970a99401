/* hosts.c - see host.h: joins the hosts of a run through the store, lets the plugin use the store,
 * and carries messages between hosts. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pjrt_host/host.h"

/* GRACE_MS: how long a request may take after another host has ended. LEAVE_MS: how long host 0
 * waits for the other hosts to leave. JOIN_SECONDS: default limit for joining. */
enum { GRACE_MS = 5000, LEAVE_MS = 10000, JOIN_SECONDS = 300 };

/* The last line of the log becomes the error that the client of this process reports. */
static _Noreturn void end_with(int number, const char *how) {
  char line[120];
  int bytes = snprintf(line, sizeof line, "\nhost %d %s, so this host cannot continue\n", number, how);
  if (write(STDERR_FILENO, line, (size_t)bytes) < 0) _exit(RF_WIRE_EXIT_HOST);
  _exit(RF_WIRE_EXIT_HOST);
}

static void on_end(void *self, int number, bool lost) {
  host_peers *p = self;
  if (atomic_load(&p->closing)) return;
  if (lost) end_with(number, "has failed or cannot be reached");
  int none = -1;
  if (atomic_compare_exchange_strong(&p->ended, &none, number)) atomic_store(&p->ended_ms, store_now_ms());
}

/* If a host has ended, a program that waits for this host would wait forever. */
static void *watch_peers(void *self) {
  host_peers *p = self;
  const struct timespec pause = {.tv_nsec = 200000000};
  for (;; nanosleep(&pause, NULL)) {
    int64_t busy = atomic_load(&p->busy_ms), ended = atomic_load(&p->ended_ms), now = store_now_ms();
    if (busy && ended && now - busy > GRACE_MS && now - ended > GRACE_MS)
      end_with(atomic_load(&p->ended), "has ended");
  }
  return NULL;
}

void host_busy(host *h, bool busy) { atomic_store(&h->peers.busy_ms, busy ? store_now_ms() : 0); }

bool host_join(host *h, const rf_wire_open *open, host_text address, host_fault *fault) {
  host_peers *p = &h->peers;
  char name[RF_WIRE_ADDRESS + 1], port[16], why[512] = "";
  const char *secret = getenv("RAFTER_HOSTS_KEY"), *seconds = getenv("RAFTER_JOIN_SECONDS");
  int wait = seconds ? atoi(seconds) : JOIN_SECONDS;
  p->host = (int)open->host;
  p->hosts = (int)open->hosts;
  if (p->hosts <= 1) return true;
  if (open->hosts > STORE_HOSTS || open->host >= open->hosts || !address.bytes ||
      address.bytes > RF_WIRE_ADDRESS)
    return host_fail(fault, RF_WIRE_BAD_REQUEST, "open: host %u of %u", open->host, open->hosts);
  snprintf(name, sizeof name, "%.*s", (int)address.bytes, address.data);
  snprintf(port, sizeof port, "%u", open->port);
  const store_place place = {.address = name,
                             .port = port,
                             .host = p->host,
                             .hosts = p->hosts,
                             .secret = secret ? secret : "",
                             .join_ms = 1000 * (wait > 0 && wait <= 86400 ? wait : JOIN_SECONDS)};
  if (p->host == 0 && !(p->server = store_serve(&place, why, sizeof why)))
    return host_fail(fault, RF_WIRE_HOSTS, "%s", why);
  p->sent = calloc((size_t)p->hosts * 2, sizeof *p->sent);
  if (!p->sent) abort();
  p->received = p->sent + p->hosts;
  atomic_store(&p->ended, -1);
  p->client = store_join(&place, on_end, p, why, sizeof why);
  if (!p->client) {
    store_server_end(p->server, 500); /* this gives the other hosts time to read the reason */
    p->server = NULL;
    return host_fail(fault, RF_WIRE_HOSTS, "%s", why);
  }
  pthread_t watcher;
  if (!pthread_create(&watcher, NULL, watch_peers, p)) pthread_detach(watcher);
  return true;
}

void host_leave(host *h, bool good) {
  host_peers *p = &h->peers;
  if (!p->client) return;
  atomic_store(&p->closing, true);
  if (good) store_leave(p->client);
  store_server_end(p->server, good ? LEAVE_MS : 0);
  store_close(
      p->client); /* without store_leave, the other hosts treat the end of this process as a failure */
  p->server = NULL;
  p->client = NULL;
}

/* ---- messages between hosts ------------------------------------------------------------------ */

/* The number in the key makes every key unique. Keys of plugins begin with "p". */
static size_t message_key(char key[64], int from, int to, uint64_t number) {
  return (size_t)snprintf(key, 64, "m%d/%d/%llu", from, to, (unsigned long long)number);
}

static bool check_peer(const host_peers *p, int64_t peer, const char *what, host_fault *fault) {
  if (p->client && peer >= 0 && peer < p->hosts && peer != p->host) return true;
  return host_fail(fault, RF_WIRE_BAD_REQUEST, "%s: host %lld (expected another of %d hosts)", what,
                   (long long)peer, p->hosts);
}

bool host_send(host *h, int64_t to, host_text data, host_fault *fault) {
  host_peers *p = &h->peers;
  char key[64], why[256] = "the connection to host 0 is lost";
  if (!check_peer(p, to, "send", fault)) return false;
  size_t bytes = message_key(key, p->host, (int)to, p->sent[to]++);
  if (store_put(p->client, key, bytes, data.data, data.bytes, why) == STORE_GOOD) return true;
  return host_fail(fault, RF_WIRE_HOSTS, "send to host %lld: %s", (long long)to, why);
}

bool host_receive(host *h, int64_t from, char **data, size_t *bytes, host_fault *fault) {
  host_peers *p = &h->peers;
  char key[64];
  if (!check_peer(p, from, "receive", fault)) return false;
  size_t key_bytes = message_key(key, (int)from, p->host, p->received[from]++);
  if (store_get(p->client, STORE_TAKE, key, key_bytes, -1, data, bytes) == STORE_GOOD) return true;
  return host_fail(fault, RF_WIRE_HOSTS, "receive from host %lld: the connection to host 0 is lost",
                   (long long)from);
}

/* ---- callbacks of the plugin ----------------------------------------------------------------- */

static void *callback_error(const pjrt_make_error *make, store_result result, const char *why) {
  static const int CODE[] = {[STORE_NONE] = PJRT_NOT_FOUND,
                             [STORE_TIME] = PJRT_DEADLINE,
                             [STORE_BAD] = PJRT_INVALID,
                             [STORE_GONE] = PJRT_UNAVAILABLE};
  static const char *const TEXT[] = {[STORE_NONE] = "no host has set this key",
                                     [STORE_TIME] = "no host has set this key within the time",
                                     [STORE_BAD] = "the key-value store refuses the key",
                                     [STORE_GONE] = "the connection to host 0 is lost"};
  const char *text = *why ? why : TEXT[result];
  return (*make)(CODE[result], text, strlen(text));
}

/* Makes the store's key for a key of the plugin. Returns 0 if the key is too long. */
static size_t plugin_key(char *to, const char *key, size_t bytes) {
  if (bytes >= STORE_KEY_BYTES) return 0;
  to[0] = 'p';
  memcpy(to + 1, key, bytes);
  return bytes + 1;
}

static void free_value(char *value) { free(value); }

static void *callback_get(pjrt_kv_get *args) {
  char key[STORE_KEY_BYTES];
  host_peers *p = args->self;
  size_t bytes = plugin_key(key, args->key, args->key_bytes);
  store_result result = p->client ? STORE_BAD : STORE_GONE;
  if (bytes && p->client)
    result = store_get(p->client, STORE_GET, key, bytes, args->timeout_ms, &args->value, &args->value_bytes);
  args->release = free_value;
  return result == STORE_GOOD ? NULL : callback_error(args->error, result, "");
}

static void *callback_try(pjrt_kv_try *args) {
  char key[STORE_KEY_BYTES];
  host_peers *p = args->self;
  size_t bytes = plugin_key(key, args->key, args->key_bytes);
  store_result result = p->client ? STORE_BAD : STORE_GONE;
  if (bytes && p->client)
    result = store_get(p->client, STORE_TRY, key, bytes, 0, &args->value, &args->value_bytes);
  args->release = free_value;
  return result == STORE_GOOD ? NULL : callback_error(args->error, result, "");
}

static void *callback_put(pjrt_kv_put *args) {
  char key[STORE_KEY_BYTES], why[256] = "";
  host_peers *p = args->self;
  size_t bytes = plugin_key(key, args->key, args->key_bytes);
  store_result result = p->client ? STORE_BAD : STORE_GONE;
  if (bytes && p->client) result = store_put(p->client, key, bytes, args->value, args->value_bytes, why);
  return result == STORE_GOOD ? NULL : callback_error(args->error, result, why);
}

void host_callbacks(host *h, pjrt_client_create *create) {
  if (!h->peers.client) return;
  create->get = (void *)(uintptr_t)callback_get;
  create->put = (void *)(uintptr_t)callback_put;
  create->try_get = (void *)(uintptr_t)callback_try;
  create->get_arg = create->put_arg = create->try_get_arg = &h->peers;
}
