/* test_xla_store.c - the key-value store of several hosts: keys, waiting, limits, hosts that come
 * late or end, and bytes that are not frames. Host 0 and the others are threads of this test. */
#define _GNU_SOURCE
#include "pjrt_host/store.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { HOSTS = 3, WAIT_MS = 60000 };

static char why[512];

/* The last host that ended, as a client heard it. */
typedef struct ends {
  _Atomic int count, host, lost;
} ends;

static void note_end(void *self, int host, bool lost) {
  ends *e = self;
  atomic_store(&e->host, host);
  atomic_store(&e->lost, lost);
  atomic_fetch_add(&e->count, 1);
}

static void wait_end(ends *e, int count) {
  for (int i = 0; atomic_load(&e->count) < count; i++) {
    if (i > WAIT_MS) fail_msg("no host has ended");
    usleep(1000);
  }
}

/* A store with its hosts. */
typedef struct group {
  store_server *server;
  store_client *client[HOSTS];
  ends end[HOSTS];
  char port[8];
  int hosts;
} group;

static store_place place_of(const group *g, int host) {
  return (store_place){.address = "127.0.0.1",
                       .port = g->port,
                       .host = host,
                       .hosts = g->hosts,
                       .secret = "",
                       .join_ms = WAIT_MS};
}

static void serve(group *g, int hosts, int join_ms, const char *secret) {
  *g = (group){.hosts = hosts, .port = "0"};
  store_place place = place_of(g, 0);
  place.join_ms = join_ms;
  place.secret = secret;
  g->server = store_serve(&place, why, sizeof why);
  if (!g->server) fail_msg("%s", why);
  snprintf(g->port, sizeof g->port, "%d", store_server_port(g->server));
}

typedef struct joining {
  group *g;
  int host, delay_ms;
  pthread_t thread;
  char why[512];
} joining;

static void *join_later(void *self) {
  joining *j = self;
  usleep((useconds_t)j->delay_ms * 1000);
  store_place place = place_of(j->g, j->host);
  j->g->client[j->host] = store_join(&place, note_end, &j->g->end[j->host], j->why, sizeof j->why);
  return NULL;
}

static void start_join(joining *j, group *g, int host, int delay_ms) {
  *j = (joining){.g = g, .host = host, .delay_ms = delay_ms};
  assert_int_equal(pthread_create(&j->thread, NULL, join_later, j), 0);
}

static void open_group(group *g, int hosts) {
  joining j[HOSTS];
  serve(g, hosts, WAIT_MS, "");
  for (int h = 0; h < hosts; h++) start_join(&j[h], g, h, 0);
  for (int h = 0; h < hosts; h++) {
    pthread_join(j[h].thread, NULL);
    if (!g->client[h]) fail_msg("host %d: %s", h, j[h].why);
  }
}

static void close_group(group *g) {
  for (int h = 0; h < g->hosts; h++)
    if (g->client[h]) store_leave(g->client[h]);
  store_server_end(g->server, WAIT_MS);
  for (int h = 0; h < g->hosts; h++) store_close(g->client[h]);
}

static void put(store_client *c, const char *key, const char *value) {
  if (store_put(c, key, strlen(key), value, strlen(value), why) != STORE_GOOD) fail_msg("%s", why);
}

static void gets(store_client *c, store_kind kind, const char *key, const char *expected) {
  char *value;
  size_t bytes;
  assert_int_equal(store_get(c, kind, key, strlen(key), WAIT_MS, &value, &bytes), STORE_GOOD);
  assert_int_equal(bytes, strlen(expected));
  assert_string_equal(value, expected);
  free(value);
}

static store_result lacks(store_client *c, store_kind kind, const char *key, int ms) {
  char *value;
  size_t bytes;
  store_result result = store_get(c, kind, key, strlen(key), ms, &value, &bytes);
  free(value);
  return result;
}

static void keys_are_shared(void **state) {
  (void)state;
  group g;
  open_group(&g, 2);
  assert_int_equal(lacks(g.client[1], STORE_TRY, "a", 0), STORE_NONE);
  assert_int_equal(lacks(g.client[1], STORE_GET, "a", 0), STORE_TIME);
  assert_int_equal(lacks(g.client[1], STORE_GET, "a", 30), STORE_TIME);
  put(g.client[0], "a", "one");
  gets(g.client[1], STORE_TRY, "a", "one");
  gets(g.client[1], STORE_GET, "a", "one");
  put(g.client[1], "a", "");
  gets(g.client[0], STORE_GET, "a", "");
  put(g.client[1], "", "the empty key");
  gets(g.client[0], STORE_TAKE, "", "the empty key");
  assert_int_equal(lacks(g.client[0], STORE_TRY, "", 0), STORE_NONE);
  gets(g.client[0], STORE_TAKE, "a", "");
  assert_int_equal(lacks(g.client[1], STORE_TRY, "a", 0), STORE_NONE);
  close_group(&g);
  assert_int_equal(g.end[0].lost + g.end[1].lost, 0);
}

/* ---- threads --------------------------------------------------------------------------------- */

typedef struct worker {
  store_client *client;
  int number, workers;
  pthread_t thread;
} worker;
enum { THREADS = 4, ROUNDS = 50 };

/* In each round, every worker puts a key and waits for that of every other worker. */
static void *work(void *self) {
  worker *w = self;
  char key[40], value[40];
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < w->workers; i++) {
      int other = (w->number + 1 + i) % w->workers;
      snprintf(key, sizeof key, "%d/%d", round, other);
      snprintf(value, sizeof value, "value %d of %d", round, other);
      if (other == w->number) put(w->client, key, value);
    }
    for (int i = 0; i < w->workers; i++) {
      snprintf(key, sizeof key, "%d/%d", round, i);
      snprintf(value, sizeof value, "value %d of %d", round, i);
      gets(w->client, STORE_GET, key, value);
    }
  }
  return NULL;
}

static void many_threads_wait(void **state) {
  (void)state;
  group g;
  worker all[HOSTS * THREADS];
  open_group(&g, HOSTS);
  for (int i = 0; i < HOSTS * THREADS; i++) {
    all[i] = (worker){.client = g.client[i % HOSTS], .number = i, .workers = HOSTS * THREADS};
    pthread_create(&all[i].thread, NULL, work, &all[i]);
  }
  for (int i = 0; i < HOSTS * THREADS; i++) pthread_join(all[i].thread, NULL);
  close_group(&g);
}

typedef struct taker {
  store_client *client;
  _Atomic int *taken;
  pthread_t thread;
} taker;

static void *take_one(void *self) {
  taker *t = self;
  gets(t->client, STORE_TAKE, "ticket", "!");
  atomic_fetch_add(t->taken, 1);
  return NULL;
}

static void a_key_is_taken_once(void **state) {
  (void)state;
  group g;
  _Atomic int taken = 0;
  taker all[HOSTS];
  open_group(&g, HOSTS);
  for (int h = 0; h < HOSTS; h++) {
    all[h] = (taker){.client = g.client[h], .taken = &taken};
    pthread_create(&all[h].thread, NULL, take_one, &all[h]);
  }
  for (int i = 1; i <= HOSTS; i++) {
    put(g.client[0], "ticket", "!");
    while (atomic_load(&taken) < i) usleep(1000);
    assert_int_equal(atomic_load(&taken), i);
    assert_int_equal(lacks(g.client[0], STORE_TRY, "ticket", 0), STORE_NONE);
  }
  for (int h = 0; h < HOSTS; h++) pthread_join(all[h].thread, NULL);
  close_group(&g);
}

static void large_values_pass(void **state) {
  (void)state;
  group g;
  char *big = malloc(STORE_VALUE_BYTES + 1), *value;
  size_t bytes;
  memset(big, 'x', STORE_VALUE_BYTES + 1);
  open_group(&g, 2);
  assert_int_equal(store_put(g.client[1], "big", 3, big, STORE_VALUE_BYTES, why), STORE_GOOD);
  assert_int_equal(store_get(g.client[0], STORE_TAKE, "big", 3, WAIT_MS, &value, &bytes), STORE_GOOD);
  assert_int_equal(bytes, STORE_VALUE_BYTES);
  assert_memory_equal(value, big, bytes);
  free(value);
  assert_int_equal(store_put(g.client[1], "big", 3, big, STORE_VALUE_BYTES + 1, why), STORE_BAD);
  assert_non_null(strstr(why, "too long"));
  assert_int_equal(store_put(g.client[1], big, STORE_KEY_BYTES + 1, "", 0, why), STORE_BAD);
  put(g.client[1], "small", "still good");
  gets(g.client[0], STORE_GET, "small", "still good");
  close_group(&g);
  free(big);
}

static void the_table_has_limits(void **state) {
  (void)state;
  store_table *table = store_table_new();
  char key[16];
  store_frame frame = {.key = key, .value = ""};
  frame.head.key_bytes = 4;
  for (uint32_t i = 0; i < STORE_KEYS; i++) {
    memcpy(key, &i, 4);
    assert_null(store_table_put(table, &frame));
  }
  assert_null(store_table_put(table, &frame)); /* replaces the last one */
  memset(key, 255, 4);
  assert_non_null(store_table_put(table, &frame));
  store_table_remove(table, "\0\0\0\0", 4);
  assert_null(store_table_put(table, &frame));
  store_table_free(table);
}

/* ---- joining and ending ---------------------------------------------------------------------- */

static void late_hosts_are_waited_for(void **state) {
  (void)state;
  group g;
  joining j[HOSTS];
  serve(&g, HOSTS, WAIT_MS, "");
  for (int h = 0; h < HOSTS; h++) start_join(&j[h], &g, h, 200 * h);
  for (int h = 0; h < HOSTS; h++) pthread_join(j[h].thread, NULL);
  for (int h = 0; h < HOSTS; h++) assert_non_null(g.client[h]);
  close_group(&g);
}

static void missing_hosts_are_named(void **state) {
  (void)state;
  group g;
  joining j[2];
  serve(&g, HOSTS, 200, "");
  start_join(&j[0], &g, 0, 0);
  start_join(&j[1], &g, 2, 0);
  for (int i = 0; i < 2; i++) {
    pthread_join(j[i].thread, NULL);
    assert_null(g.client[j[i].host]);
    assert_string_equal(j[i].why, "1 of 3 hosts did not join within 0 s: 1");
  }
  store_server_end(g.server, 0);
}

static void refused(const group *g, int host, int hosts, const char *secret, const char *reason) {
  ends e = {0};
  store_place place = place_of(g, host);
  place.hosts = hosts;
  place.secret = secret;
  assert_null(store_join(&place, note_end, &e, why, sizeof why));
  if (!strstr(why, reason)) fail_msg("\"%s\" is not in \"%s\"", reason, why);
  assert_int_equal(e.count, 0);
}

static void strange_hosts_are_refused(void **state) {
  (void)state;
  group g;
  serve(&g, 2, WAIT_MS, "secret");
  refused(&g, 1, 2, "", "RAFTER_HOSTS_KEY");
  refused(&g, 1, 2, "secreT", "RAFTER_HOSTS_KEY");
  refused(&g, 1, 2, "secret and more", "RAFTER_HOSTS_KEY");
  refused(&g, 1, 3, "secret", "host 0 expects 2 hosts, and host 1 expects 3");
  refused(&g, 2, 2, "secret", "host 0 expects 2 hosts, and host 2 expects 2");
  store_server_end(g.server, 0);
  open_group(&g, 2);
  refused(&g, 1, 2, "", "two processes have this number");
  put(g.client[0], "a", "the others continue");
  gets(g.client[1], STORE_GET, "a", "the others continue");
  close_group(&g);
}

static void unreachable_hosts_are_reported(void **state) {
  (void)state;
  group g;
  ends e = {0};
  serve(&g, 2, WAIT_MS, "");
  store_server_end(g.server, 0); /* nothing listens there now */
  store_place place = place_of(&g, 1);
  place.join_ms = 300;
  assert_null(store_join(&place, note_end, &e, why, sizeof why));
  assert_non_null(strstr(why, "cannot reach host 0 at 127.0.0.1"));
  place.address = "no.such.machine.invalid";
  assert_null(store_join(&place, note_end, &e, why, sizeof why));
  assert_non_null(strstr(why, "no.such.machine.invalid"));
}

static void ends_are_told(void **state) {
  (void)state;
  group g;
  open_group(&g, HOSTS);
  store_leave(g.client[1]);
  wait_end(&g.end[0], 1);
  wait_end(&g.end[2], 1);
  assert_int_equal(g.end[2].host, 1);
  assert_int_equal(g.end[2].lost, 0);
  store_close(g.client[2]); /* without store_leave: as if the process had died */
  wait_end(&g.end[0], 2);
  assert_int_equal(g.end[0].host, 2);
  assert_int_equal(g.end[0].lost, 1);
  g.client[2] = NULL;
  close_group(&g);
}

static void *wait_forever(void *self) {
  taker *t = self;
  atomic_store(t->taken, (int)lacks(t->client, STORE_GET, "nobody puts this", -1));
  return NULL;
}

static void the_end_of_host_0_ends_all_waiting(void **state) {
  (void)state;
  group g;
  _Atomic int result = -1;
  open_group(&g, 2);
  taker waits = {.client = g.client[1], .taken = &result};
  pthread_create(&waits.thread, NULL, wait_forever, &waits);
  usleep(50000);
  store_server_end(g.server, 0);
  pthread_join(waits.thread, NULL);
  assert_int_equal(result, STORE_GONE);
  wait_end(&g.end[1], 1);
  assert_int_equal(g.end[1].host, 0);
  assert_int_equal(g.end[1].lost, 1);
  assert_int_equal(store_put(g.client[1], "a", 1, "b", 1, why), STORE_GONE);
  store_close(g.client[0]);
  store_close(g.client[1]);
}

/* ---- hostile bytes --------------------------------------------------------------------------- */

static int raw_connection(const group *g) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(g->port))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int made = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(connect(made, (struct sockaddr *)&to, sizeof to), 0);
  return made;
}

/* True if the server ends the connection. */
static bool is_ended(int made) {
  char byte[4096];
  struct timeval limit = {.tv_sec = 30};
  setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ssize_t got;
  while ((got = recv(made, byte, sizeof byte, 0)) > 0) continue;
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

static uint64_t random_state = 1;
static uint32_t random_word(void) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(random_state >> 32);
}

static void garbage_ends_its_connection_only(void **state) {
  (void)state;
  group g;
  unsigned char bytes[600];
  open_group(&g, 2);
  for (int i = 0; i < 300; i++) {
    int made = raw_connection(&g);
    size_t count = 1 + random_word() % sizeof bytes;
    for (size_t k = 0; k < count; k++) bytes[k] = (unsigned char)random_word();
    if (i % 3 == 0 && count >= 8) memcpy(bytes, &(uint32_t[2]){STORE_MAGIC, random_word() % 16}, 8);
    send(made, bytes, count, MSG_NOSIGNAL);
    shutdown(made, SHUT_WR);
    assert_true(is_ended(made));
    close(made);
  }
  put(g.client[1], "a", "still served");
  gets(g.client[0], STORE_GET, "a", "still served");
  assert_int_equal(g.end[0].count + g.end[1].count, 0);
  close_group(&g);
}

static void refuses_frame(const group *g, store_head head) {
  int made = raw_connection(g);
  head.magic = STORE_MAGIC;
  send(made, &head, sizeof head, MSG_NOSIGNAL);
  assert_true(is_ended(made));
  close(made);
}

static void frames_of_strangers_are_refused(void **state) {
  (void)state;
  group g;
  open_group(&g, 2);
  refuses_frame(&g, (store_head){.kind = STORE_PUT, .key_bytes = 1});
  refuses_frame(&g, (store_head){.kind = STORE_BYE});
  refuses_frame(&g, (store_head){.kind = STORE_HELLO, .key_bytes = STORE_SECRET_BYTES + 1});
  refuses_frame(&g, (store_head){.kind = STORE_HELLO, .value_bytes = 1});
  refuses_frame(&g, (store_head){.kind = STORE_HELLO, .key_bytes = UINT32_MAX, .value_bytes = UINT32_MAX});
  refuses_frame(&g, (store_head){.kind = STORE_HELLO, .number = 2, .host = UINT32_MAX});
  refuses_frame(&g, (store_head){.kind = STORE_HELLO, .number = -1});
  close_group(&g);
}

/* Connections that say nothing do not keep hosts out for longer than their time. */
static void silent_connections_are_few(void **state) {
  (void)state;
  group g;
  int made[2 * STORE_STRANGERS];
  open_group(&g, 2);
  for (int i = 0; i < 2 * STORE_STRANGERS; i++) made[i] = raw_connection(&g);
  for (int i = STORE_STRANGERS; i < 2 * STORE_STRANGERS; i++) assert_true(is_ended(made[i]));
  put(g.client[1], "a", "still served");
  gets(g.client[0], STORE_GET, "a", "still served");
  for (int i = 0; i < 2 * STORE_STRANGERS; i++) close(made[i]);
  close_group(&g);
}

/* Changes random bytes of frames. The buffer has exactly the bytes, so that a sanitizer finds a
 * read after its end. */
static void the_parser_takes_any_bytes(void **state) {
  (void)state;
  int frames = 0;
  for (int i = 0; i < 200000; i++) {
    store_head head = {.magic = STORE_MAGIC,
                       .kind = random_word() % (STORE_KINDS + 1),
                       .key_bytes = random_word() % 40,
                       .value_bytes = random_word() % 40};
    size_t bytes = random_word() % (sizeof head + 90);
    unsigned char *data = malloc(bytes + 1), *exact = malloc(bytes ? bytes : 1);
    for (size_t k = 0; k < bytes; k++) data[k] = (unsigned char)random_word();
    memcpy(data, &head, bytes < sizeof head ? bytes : sizeof head);
    if (bytes && random_word() % 2) data[random_word() % bytes] = (unsigned char)random_word();
    memcpy(exact, data, bytes);
    store_frame frame = {0};
    bool stranger = random_word() % 2;
    int64_t used = store_parse((char *)exact, bytes, stranger, &frame);
    assert_true(used >= -1 && used <= (int64_t)bytes);
    if (used > 0) {
      volatile unsigned char sum = 0;
      for (uint32_t k = 0; k < frame.head.key_bytes; k++) sum = (unsigned char)(sum + frame.key[k]);
      for (uint32_t k = 0; k < frame.head.value_bytes; k++) sum = (unsigned char)(sum + frame.value[k]);
      if (stranger) assert_int_equal(frame.head.kind, STORE_HELLO);
      frames++;
    }
    free(data);
    free(exact);
  }
  assert_true(frames > 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(keys_are_shared),
      cmocka_unit_test(many_threads_wait),
      cmocka_unit_test(a_key_is_taken_once),
      cmocka_unit_test(large_values_pass),
      cmocka_unit_test(the_table_has_limits),
      cmocka_unit_test(late_hosts_are_waited_for),
      cmocka_unit_test(missing_hosts_are_named),
      cmocka_unit_test(strange_hosts_are_refused),
      cmocka_unit_test(unreachable_hosts_are_reported),
      cmocka_unit_test(ends_are_told),
      cmocka_unit_test(the_end_of_host_0_ends_all_waiting),
      cmocka_unit_test(garbage_ends_its_connection_only),
      cmocka_unit_test(frames_of_strangers_are_refused),
      cmocka_unit_test(silent_connections_are_few),
      cmocka_unit_test(the_parser_takes_any_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
