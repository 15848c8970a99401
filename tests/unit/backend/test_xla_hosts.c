/* test_xla_hosts.c - clients of several hosts with the fake plugin, which joins the hosts through
 * the store and adds numbers over all of them. Each host is a thread of this test with a client,
 * and so with a child process. */
#define _GNU_SOURCE
#include "backend/xla/client.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backend/xla/client_parts.h"
#include "support/files.h"
#include "support/scratch.h"

enum { MOST = 3 };

typedef struct host {
  rf_xla_settings settings;
  rf_xla_client *client;
  pthread_t thread;
  rf_status status;
  rf_error error;
  void (*run)(struct host *host);
  int delay_ms;
  int64_t answer;
} host;

static host hosts[MOST];
static volatile int stop;

/* A port at which nothing listens. */
static int free_port(void) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  socklen_t size = sizeof address;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int made = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(made, (struct sockaddr *)&address, size), 0);
  assert_int_equal(getsockname(made, (struct sockaddr *)&address, &size), 0);
  close(made);
  return ntohs(address.sin_port);
}

static void *run_host(void *self) {
  host *h = self;
  usleep((useconds_t)h->delay_ms * 1000);
  h->status = rf_xla_open(&h->settings, &h->client, &h->error);
  if (h->status == RAFTER_OK && h->run) h->run(h);
  return NULL;
}

static void start(int count, const char *behaviour, void (*run)(host *)) {
  int port = free_port();
  setenv("FAKE_PLUGIN", behaviour, 1);
  stop = 0;
  for (int i = 0; i < count; i++) {
    hosts[i] = (host){.run = run};
    hosts[i].settings =
        (rf_xla_settings){.plugin = RF_FAKE_PLUGIN, .hosts = {i, count, "127.0.0.1", port}, .stop = &stop};
  }
  for (int i = 0; i < count; i++) pthread_create(&hosts[i].thread, NULL, run_host, &hosts[i]);
}

static void wait_all(int count) {
  for (int i = 0; i < count; i++) pthread_join(hosts[i].thread, NULL);
}

static void *close_host(void *self) {
  rf_xla_close(((host *)self)->client);
  return NULL;
}

static void close_all(int count) {
  for (int i = 0; i < count; i++) pthread_create(&hosts[i].thread, NULL, close_host, &hosts[i]);
  wait_all(count);
}

static void all_good(int count) {
  for (int i = 0; i < count; i++)
    if (hosts[i].status != RAFTER_OK) fail_msg("host %d: %s", i, hosts[i].error.message);
}

static void fails(const host *h, const char *text) {
  assert_int_not_equal(h->status, RAFTER_OK);
  if (!strstr(h->error.message, text)) fail_msg("\"%s\" is not in \"%s\"", text, h->error.message);
}

/* ---- programs -------------------------------------------------------------------------------- */

/* Adds the i32 arguments of all devices of all hosts, twice. */
static void run_sum(host *h) {
  enum { LOCAL = 2 };
  rf_xla_shared shared;
  rf_xla_id program = 0;
  rf_xla_argument argument[LOCAL];
  rf_xla_result result[LOCAL];
  int count = h->settings.hosts.hosts;
  const rf_xla_compile of = {.text = "fake.sum", .bytes = 8, .replicas = LOCAL * count};
  h->status = rf_xla_program(h->client, &of, &program, NULL, &h->error);
  if (h->status == RAFTER_OK) h->status = rf_xla_share(h->client, 4096, &shared, &h->error);
  if (h->status != RAFTER_OK) return;
  int32_t *data = shared.data;
  for (int i = 0; i < 4 * LOCAL; i++) data[i] = 100 * h->settings.hosts.host + i;
  for (int d = 0; d < LOCAL; d++) {
    argument[d] = (rf_xla_argument){.at = 16 * d, .shape = {RF_I32, 1, {4}}};
    result[d] = (rf_xla_result){.at = 1024 + 8 * d, .bytes = 8};
  }
  rf_xla_call call = {program, LOCAL, 1, 1, argument, result, &shared};
  for (int run = 0; run < 2 && h->status == RAFTER_OK; run++) {
    h->status = rf_xla_execute(h->client, &call, (const bool[]){false}, &h->error);
    memcpy(&h->answer, (char *)shared.data + 1024 + 8 * (LOCAL - 1), 8);
  }
}

static void hosts_run_one_program(void **state) {
  (void)state;
  for (int count = 2; count <= MOST; count++) {
    start(count, "devices=2", run_sum);
    wait_all(count);
    all_good(count);
    int64_t sum = 0;
    for (int i = 0; i < count; i++) sum += 8 * 100 * i + 28;
    for (int i = 0; i < count; i++) {
      assert_int_equal(rf_xla_facts_of(hosts[i].client)->devices, 2);
      assert_int_equal(hosts[i].client->device_id[2 * count - 1], 10 + 2 * count - 1);
      assert_int_equal(hosts[i].answer, sum);
    }
    rf_xla_id program;
    rf_xla_compile of = {.text = "x", .bytes = 1, .replicas = 2 * count + 1};
    assert_int_equal(rf_xla_program(hosts[0].client, &of, &program, NULL, &hosts[0].error), RAFTER_INVALID);
    of.replicas = 2 * count - 1;
    assert_int_equal(rf_xla_program(hosts[0].client, &of, &program, NULL, &hosts[0].error), RAFTER_INVALID);
    if (!strstr(hosts[0].error.message, "a multiple of the")) fail_msg("%s", hosts[0].error.message);
    close_all(count);
  }
}

/* ---- messages -------------------------------------------------------------------------------- */

enum { LONG_BYTES = (9 << 20) + 5 };

static char byte_of(int from, int64_t i) { return (char)(i * 7 + i / 4096 + from); }

/* Every host sends two messages to the next one, the second of several pieces. */
static void pass_messages(host *h) {
  int me = h->settings.hosts.host, count = h->settings.hosts.hosts;
  int next = (me + 1) % count, before = (me + count - 1) % count;
  char *mine = malloc(LONG_BYTES), *got = calloc(LONG_BYTES, 1), small = 0;
  for (int64_t i = 0; i < LONG_BYTES; i++) mine[i] = byte_of(me, i);
  h->status = rf_xla_send(h->client, next, mine, 1, &h->error);
  if (h->status == RAFTER_OK) h->status = rf_xla_send(h->client, next, mine, LONG_BYTES, &h->error);
  if (h->status == RAFTER_OK) h->status = rf_xla_receive(h->client, before, &small, 1, &h->error);
  if (h->status == RAFTER_OK) h->status = rf_xla_receive(h->client, before, got, LONG_BYTES, &h->error);
  bool same = small == byte_of(before, 0);
  for (int64_t i = 0; i < LONG_BYTES && same; i++) same = got[i] == byte_of(before, i);
  h->answer = same;
  free(mine);
  free(got);
}

static void messages_arrive_in_order(void **state) {
  (void)state;
  start(MOST, "devices=1", pass_messages);
  wait_all(MOST);
  all_good(MOST);
  for (int i = 0; i < MOST; i++) assert_int_equal(hosts[i].answer, 1);
  char byte = 0;
  assert_int_equal(rf_xla_send(hosts[0].client, MOST, &byte, 1, &hosts[0].error), RAFTER_FAILED);
  assert_int_equal(rf_xla_send(hosts[0].client, 0, &byte, 1, &hosts[0].error), RAFTER_FAILED);
  assert_int_equal(rf_xla_receive(hosts[0].client, -1, &byte, 1, &hosts[0].error), RAFTER_FAILED);
  close_all(MOST);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void plugins_that_do_not_join_are_reported(void **state) {
  (void)state;
  static const char *const CASE[][2] = {
      {"devices=2 refuse_nodes", "Unexpected option name"},
      {"devices=2 ignore_nodes", "the plugin has not joined the hosts: it has 2 devices in all"},
      {"devices=2 number_nodes", "the plugin numbers this host"},
      {"devices=2 open_refuse", "no device was found"}};
  for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
    start(2, CASE[i][0], NULL);
    wait_all(2);
    /* the host that fails first ends the other */
    bool first = hosts[0].status != RAFTER_OK && strstr(hosts[0].error.message, CASE[i][1]);
    bool second = hosts[1].status != RAFTER_OK && strstr(hosts[1].error.message, CASE[i][1]);
    if (!first && !second) fail_msg("%s: %s; %s", CASE[i][0], hosts[0].error.message, hosts[1].error.message);
    close_all(2);
  }
}

static void receive_one(host *h) {
  char byte;
  if (h->settings.hosts.host == 0) h->status = rf_xla_receive(h->client, 1, &byte, 1, &h->error);
}

static void lost_hosts_end_the_others(void **state) {
  (void)state;
  start(2, "devices=1", receive_one);
  pthread_join(hosts[1].thread, NULL);
  kill(hosts[1].client->child, SIGKILL);
  pthread_join(hosts[0].thread, NULL);
  fails(&hosts[0], "host 1 has failed or cannot be reached, so this host cannot continue");
  assert_true(rf_xla_lost(hosts[0].client));
  close_all(2);
}

static void ended_hosts_end_the_others(void **state) {
  (void)state;
  start(2, "devices=1", receive_one);
  pthread_join(hosts[1].thread, NULL);
  rf_xla_close(hosts[1].client);
  pthread_join(hosts[0].thread, NULL);
  fails(&hosts[0], "host 1 has ended, so this host cannot continue");
  rf_xla_close(hosts[0].client);
}

static void receive_from_0(host *h) {
  char byte;
  if (h->settings.hosts.host == 1) h->status = rf_xla_receive(h->client, 0, &byte, 1, &h->error);
}

static void the_loss_of_host_0_ends_the_others(void **state) {
  (void)state;
  start(2, "devices=1", receive_from_0);
  pthread_join(hosts[0].thread, NULL);
  kill(hosts[0].client->child, SIGKILL);
  pthread_join(hosts[1].thread, NULL);
  fails(&hosts[1], "host 0 has failed or cannot be reached");
  close_all(2);
}

static void missing_hosts_are_reported(void **state) {
  (void)state;
  setenv("RAFTER_JOIN_SECONDS", "1", 1);
  setenv("FAKE_PLUGIN", "devices=1", 1);
  int port = free_port();
  for (int i = 0; i < 2; i++) { /* host 1 of 3 is missing */
    hosts[i] = (host){0};
    hosts[i].settings = (rf_xla_settings){.plugin = RF_FAKE_PLUGIN, .hosts = {2 * i, 3, "localhost", port}};
    pthread_create(&hosts[i].thread, NULL, run_host, &hosts[i]);
  }
  wait_all(2);
  for (int i = 0; i < 2; i++) fails(&hosts[i], "1 of 3 hosts did not join within 1 s: 1");
  hosts[0] = (host){.settings = {.plugin = RF_FAKE_PLUGIN, .hosts = {1, 2, "127.0.0.1", free_port()}}};
  run_host(&hosts[0]);
  fails(&hosts[0], "cannot reach host 0 at 127.0.0.1");
  unsetenv("RAFTER_JOIN_SECONDS");
}

static void waiting_can_be_stopped(void **state) {
  (void)state;
  stop = 0;
  hosts[0] = (host){
      .settings = {.plugin = RF_FAKE_PLUGIN, .hosts = {0, 2, "127.0.0.1", free_port()}, .stop = &stop}};
  pthread_create(&hosts[0].thread, NULL, run_host, &hosts[0]);
  usleep(300000);
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  wait_all(1);
  assert_int_equal(hosts[0].status, RAFTER_INTERRUPTED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hosts_run_one_program),
      cmocka_unit_test(messages_arrive_in_order),
      cmocka_unit_test(plugins_that_do_not_join_are_reported),
      cmocka_unit_test(lost_hosts_end_the_others),
      cmocka_unit_test(ended_hosts_end_the_others),
      cmocka_unit_test(the_loss_of_host_0_ends_the_others),
      cmocka_unit_test(missing_hosts_are_reported),
      cmocka_unit_test(waiting_can_be_stopped),
  };
  return cmocka_run_group_tests_name("backend/xla_hosts", tests, make_folder, remove_folder);
}
