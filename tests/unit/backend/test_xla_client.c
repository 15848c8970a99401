/* test_xla_client.c - the client of PJRT plugins: every fault with the fake plugin of
 * tests/support/plugin, and a real plugin if there is one. */
#include "support/fake_client.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "backend/xla/client_parts.h"
#include "base/file.h"

/* ---- opening --------------------------------------------------------------------------------- */

static rf_status open_error(const char *plugin, const char *behaviour, rf_error *error) {
  rf_xla_client *client = NULL;
  rf_xla_settings settings = {.plugin = plugin};
  setenv("FAKE_PLUGIN", behaviour, 1);
  rf_status status = rf_xla_open(&settings, &client, error);
  assert_null(client);
  return status;
}

static void bad_plugins_are_named(void **state) {
  (void)state;
  assert_int_equal(open_error(at("missing.so"), "", &fault), RAFTER_INVALID);
  says(&fault, "missing.so: No such file");
  assert_int_equal(open_error("/dev/null", "", &fault), RAFTER_INVALID);
  says(&fault, "/dev/null");
  assert_int_equal(open_error(folder, "", &fault), RAFTER_INVALID);
  GOOD(rf_file_write(at("text.so"), "text", 4, &fault));
  assert_int_equal(open_error(at("text.so"), "", &fault), RAFTER_INVALID);
  says(&fault, "text.so is not a PJRT plugin");
  assert_int_equal(open_error("/lib/x86_64-linux-gnu/libm.so.6", "", &fault), RAFTER_INVALID);
  says(&fault, "libm.so.6");
}

static void old_versions_are_refused(void **state) {
  (void)state;
  assert_int_equal(open_error(RF_FAKE_PLUGIN, "version=80", &fault), RAFTER_INVALID);
  says(&fault, "its PJRT API is 0.80 (expected 0.81 or newer");
}

/* A table of functions that ends early: functions after its end are reported as missing. */
static void short_tables_are_noticed(void **state) {
  (void)state;
  assert_int_equal(open_error(RF_FAKE_PLUGIN, "slots=8", &fault), RAFTER_FAILED);
  says(&fault, "the plugin has no such function");
}

static void faults_at_opening_are_reported(void **state) {
  (void)state;
  assert_int_equal(open_error(RF_FAKE_PLUGIN, "open_refuse", &fault), RAFTER_FAILED);
  says(&fault, "not found");
  says(&fault, "no device was found");
  assert_int_equal(open_error(RF_FAKE_PLUGIN, "open_abort", &fault), RAFTER_FAILED);
  says(&fault, "signal 6 (Aborted): Check failed: no device");
  assert_int_equal(open_error(RF_FAKE_PLUGIN, "open_abort quiet", &fault), RAFTER_FAILED);
  says(&fault, "signal 6 (Aborted)");
}

static void options_reach_the_plugin(void **state) {
  (void)state;
  rf_xla_client *client = NULL;
  rf_xla_option option[2] = {{"cpu_device_count", NULL, 7}, {"color", "blue", 0}};
  rf_xla_settings settings = {.plugin = RF_FAKE_PLUGIN, .option = option, .options = 1};
  setenv("FAKE_PLUGIN", "", 1);
  GOOD(rf_xla_open(&settings, &client, &fault));
  const rf_xla_facts *facts = rf_xla_facts_of(client);
  assert_int_equal(facts->devices, 7);
  assert_int_equal(facts->api_minor, 90);
  assert_string_equal(facts->platform, "fake");
  assert_int_equal(facts->memory_bytes, 1 << 20);
  assert_int_equal(facts->stablehlo[1], 20);
  assert_int_equal(facts->stablehlo_oldest[1], 9);
  assert_true(facts->has_topologies);
  rf_xla_close(client);
  settings.options = 2;
  assert_int_equal(rf_xla_open(&settings, &client, &fault), RAFTER_FAILED);
  says(&fault, "Unexpected option name");
}

static void missing_devices_are_reported(void **state) {
  (void)state;
  rf_xla_id program;
  rf_xla_client *client = open_fake("devices=2");
  rf_xla_compile of = {.text = "x", .bytes = 1, .replicas = 3};
  assert_int_equal(rf_xla_program(client, &of, &program, NULL, &fault), RAFTER_INVALID);
  says(&fault, "3 devices (expected 1 to 2");
  rf_xla_close(client);
}

/* ---- compiling ------------------------------------------------------------------------------- */

static rf_status compile_error(rf_xla_client *client, const char *text, rf_error *error) {
  rf_xla_id program;
  rf_xla_compile of = {.text = text, .bytes = strlen(text), .replicas = 1};
  return rf_xla_program(client, &of, &program, NULL, error);
}

static void faults_at_compiling_are_reported(void **state) {
  (void)state;
  rf_xla_client *client = open_fake("");
  assert_int_equal(compile_error(client, "fake.exhausted", &fault), RAFTER_NO_FIT);
  says(&fault, "Used 20.50G of 15.75G");
  assert_int_equal(compile_error(client, "fake.refuse", &fault), RAFTER_FAILED);
  says(&fault, "invalid argument");
  says(&fault, "expected an operation");
  compiled(client, "good", 1); /* the child survives errors */
  assert_false(rf_xla_lost(client));
  assert_int_equal(compile_error(client, "fake.abort", &fault), RAFTER_FAILED);
  says(&fault, "compile: the plugin ended with signal 6 (Aborted): Check failed: replica_count > 0");
  assert_true(rf_xla_lost(client));
  assert_int_equal(compile_error(client, "good", &fault), RAFTER_FAILED);
  says(&fault, "signal 6");
  rf_xla_close(client);
}

static void programs_have_statistics(void **state) {
  (void)state;
  rf_xla_id program = 1;
  rf_xla_stats stats;
  rf_xla_client *client = NULL;
  rf_xla_settings settings = {.plugin = RF_FAKE_PLUGIN, .compile_only = true};
  rf_xla_compile of = {.text = "x", .bytes = 1, .replicas = 4, .topology = "fake:2x2"};
  setenv("FAKE_PLUGIN", "open_abort", 1); /* compile_only opens no devices */
  GOOD(rf_xla_open(&settings, &client, &fault));
  GOOD(rf_xla_program(client, &of, &program, &stats, &fault));
  assert_int_equal(program, 0);
  assert_int_equal(stats.total, 100 + 50 - 20 + 30);
  assert_int_equal(stats.code, 7);
  assert_true(stats.flops == 64 && stats.bytes_accessed == 32);
  of.topology = "fake:3";
  assert_int_equal(rf_xla_program(client, &of, &program, &stats, &fault), RAFTER_FAILED);
  says(&fault, "unknown topology");
  rf_xla_close(client);
  client = open_fake("");
  program = compiled(client, "x", 1);
  GOOD(rf_xla_program_save(client, program, at("saved.pb"), &fault));
  char *text = NULL;
  size_t bytes = 0;
  GOOD(rf_file_read(at("saved.pb"), 100, &text, &bytes, &fault));
  assert_string_equal(text, "optimized");
  free(text);
  rf_xla_close(client);
}

static volatile int stop_now;
static int waits;

static void count_waits(void *context, double seconds) {
  (void)context;
  assert_true(seconds >= 0);
  waits++;
}

static void *stop_soon(void *unused) {
  usleep(250000);
  __atomic_store_n(&stop_now, 1, __ATOMIC_RELAXED);
  return unused;
}

static void a_compilation_can_be_stopped(void **state) {
  (void)state;
  pthread_t thread;
  rf_xla_client *client = NULL;
  rf_xla_settings settings = {.plugin = RF_FAKE_PLUGIN, .stop = &stop_now, .waiting = count_waits};
  setenv("FAKE_PLUGIN", "", 1);
  stop_now = waits = 0;
  GOOD(rf_xla_open(&settings, &client, &fault));
  double begin = rf_now_seconds();
  assert_int_equal(pthread_create(&thread, NULL, stop_soon, NULL), 0);
  assert_int_equal(compile_error(client, "fake.hang", &fault), RAFTER_INTERRUPTED);
  assert_true(rf_now_seconds() - begin < 1.25);
  assert_true(waits > 0);
  assert_true(rf_xla_lost(client));
  pthread_join(thread, NULL);
  rf_xla_close(client);
  /* opening ends too */
  stop_now = 0;
  setenv("FAKE_PLUGIN", "open_hang", 1);
  assert_int_equal(pthread_create(&thread, NULL, stop_soon, NULL), 0);
  assert_int_equal(rf_xla_open(&settings, &client, &fault), RAFTER_INTERRUPTED);
  pthread_join(thread, NULL);
}

/* A stop before a compilation leaves the child alive, so that results can be fetched. */
static void a_stop_leaves_buffers_readable(void **state) {
  (void)state;
  rf_xla_client *client = NULL;
  rf_xla_settings settings = {.plugin = RF_FAKE_PLUGIN, .stop = &stop_now};
  rf_xla_shape shape = {RF_F32, 1, {4}};
  rf_xla_shared shared;
  rf_xla_id buffer;
  setenv("FAKE_PLUGIN", "", 1);
  stop_now = 0;
  GOOD(rf_xla_open(&settings, &client, &fault));
  GOOD(rf_xla_share(client, 4096, &shared, &fault));
  GOOD(rf_xla_put(client, 0, &shape, &shared, 0, &buffer, &fault));
  stop_now = 1;
  assert_int_equal(compile_error(client, "good", &fault), RAFTER_INTERRUPTED);
  GOOD(rf_xla_get(client, buffer, &shared, 64, 16, &fault));
  assert_false(rf_xla_lost(client));
  rf_xla_unshare(client, &shared);
  rf_xla_close(client);
}

static void *kill_soon(void *child) {
  usleep(200000);
  kill(*(pid_t *)child, SIGKILL);
  return NULL;
}

static void a_killed_child_is_reported(void **state) {
  (void)state;
  pthread_t thread;
  rf_xla_client *client = open_fake("");
  pid_t child = client->child;
  assert_int_equal(pthread_create(&thread, NULL, kill_soon, &child), 0);
  assert_int_equal(compile_error(client, "fake.hang", &fault), RAFTER_FAILED);
  says(&fault, "signal 9 (Killed)");
  pthread_join(thread, NULL);
  rf_xla_close(client);
}

/* ---- execution ------------------------------------------------------------------------------- */

static void buffers_are_copied_and_freed(void **state) {
  (void)state;
  enum { DEVICES = 3 };
  rf_xla_client *client = open_fake("");
  rf_xla_id program = compiled(client, "fake.results=2", DEVICES);
  rf_xla_shared shared;
  rf_xla_id buffer[DEVICES];
  rf_xla_shape shape = {RF_F32, 2, {2, 3}};
  GOOD(rf_xla_share(client, 1 << 16, &shared, &fault));
  float *data = shared.data;
  for (int i = 0; i < 1000; i++) data[i] = (float)i;
  for (int d = 0; d < DEVICES; d++) GOOD(rf_xla_put(client, d, &shape, &shared, 400 * d, &buffer[d], &fault));
  rf_xla_argument argument[2 * DEVICES];
  rf_xla_result result[2 * DEVICES];
  for (int d = 0; d < DEVICES; d++) {
    argument[2 * d] = (rf_xla_argument){.buffer = buffer[d]};
    argument[2 * d + 1] = (rf_xla_argument){.at = 64, .shape = shape};
    result[2 * d] = (rf_xla_result){.keep = true, .at = -1};
    result[2 * d + 1] = (rf_xla_result){.at = 8192 + 24 * d, .bytes = 24};
  }
  rf_xla_call call = {program, DEVICES, 2, 2, argument, result, &shared};
  const bool donated[2] = {true, false};
  GOOD(rf_xla_execute(client, &call, donated, &fault));
  for (int d = 0; d < DEVICES; d++)
    for (int i = 0; i < 6; i++) assert_true(data[2048 + 6 * d + i] == (float)(100 * d + i));
  /* each device has a result, and keeps the array from shared memory for the next call */
  assert_int_equal(living(client, &shared), 2 * DEVICES);
  /* the donated buffers are gone */
  assert_int_equal(rf_xla_get(client, buffer[0], &shared, 0, 24, &fault), RAFTER_FAILED);
  says(&fault, "no buffer has this number");
  assert_int_equal(rf_xla_execute(client, &call, donated, &fault), RAFTER_FAILED);
  says(&fault, "argument 0 names a buffer that does not exist");
  GOOD(rf_xla_get(client, result[2].buffer, &shared, 0, 24, &fault));
  assert_true(data[0] == 100);
  /* without `donated`, arguments stay */
  for (int d = 0; d < DEVICES; d++) argument[2 * d].buffer = result[2 * d].buffer;
  for (int i = 0; i < 3; i++) {
    for (int d = 0; d < DEVICES; d++) result[2 * d].keep = false;
    GOOD(rf_xla_execute(client, &call, NULL, &fault));
  }
  assert_int_equal(living(client, &shared), 2 * DEVICES);
  rf_xla_program_free(client, program);
  assert_int_equal(living(client, &shared), DEVICES);
  for (int d = 0; d < DEVICES; d++) rf_xla_free(client, &argument[2 * d].buffer, 1);
  assert_int_equal(living(client, &shared), 0);
  assert_int_equal(rf_xla_times_of(client).calls, 4 + 4);
  rf_xla_unshare(client, &shared);
  rf_xla_close(client);
}

static void faults_at_execution_are_reported(void **state) {
  (void)state;
  rf_xla_shared shared;
  rf_xla_client *client = open_fake("");
  GOOD(rf_xla_share(client, 4096, &shared, &fault));
  rf_xla_shape shape = {RF_F32, 1, {4}};
  rf_xla_argument argument = {.at = 0, .shape = shape};
  rf_xla_result result = {.at = 64, .bytes = 16};
  const rf_xla_id exhausted = compiled(client, "fake.run_exhausted", 1);
  rf_xla_call call = {exhausted, 1, 1, 1, &argument, &result, &shared};
  assert_int_equal(rf_xla_execute(client, &call, NULL, &fault), RAFTER_NO_FIT);
  says(&fault, "allocating 1000 bytes");
  call.program = compiled(client, "good", 1);
  GOOD(rf_xla_execute(client, &call, NULL, &fault));
  /* wrong counts, sizes and places */
  call.results = 0;
  assert_int_equal(rf_xla_execute(client, &call, NULL, &fault), RAFTER_FAILED);
  says(&fault, "0 results (expected 1 and 1");
  call.results = 1;
  result.bytes = 20;
  assert_int_equal(rf_xla_execute(client, &call, NULL, &fault), RAFTER_FAILED);
  says(&fault, "16 bytes (expected 20)");
  result = (rf_xla_result){.at = 4090, .bytes = 16};
  assert_int_equal(rf_xla_execute(client, &call, NULL, &fault), RAFTER_FAILED);
  says(&fault, "shared memory (expected at most 4096)");
  result.at = 64;
  argument.at = 4090;
  assert_int_equal(rf_xla_execute(client, &call, NULL, &fault), RAFTER_FAILED);
  argument.at = 0;
  argument.shape.dim[0] = INT64_MAX / 2;
  assert_int_equal(rf_xla_execute(client, &call, NULL, &fault), RAFTER_FAILED);
  argument.shape.dtype = RF_I4;
  assert_int_equal(rf_xla_execute(client, &call, NULL, &fault), RAFTER_INVALID);
  says(&fault, "i4");
  argument.shape = shape;
  GOOD(rf_xla_execute(client, &call, NULL, &fault));
  rf_xla_program_free(client, exhausted);
  rf_xla_program_free(client, call.program);
  assert_int_equal(rf_xla_execute(client, &call, NULL, &fault), RAFTER_FAILED);
  says(&fault, "no program has this number");
  assert_int_equal(living(client, &shared), 0);
  call.program = compiled(client, "fake.run_abort", 1);
  assert_int_equal(rf_xla_execute(client, &call, NULL, &fault), RAFTER_FAILED);
  says(&fault, "execute: the plugin ended with signal 6 (Aborted): Check failed: a result");
  rf_xla_unshare(client, &shared);
  rf_xla_close(client);
}

/* Programs and buffers have numbers of their own: freeing a program frees no buffer. */
static void a_freed_program_leaves_buffers(void **state) {
  (void)state;
  rf_xla_client *client = open_fake("");
  rf_xla_shared shared;
  rf_xla_id buffer;
  rf_xla_shape shape = {RF_F32, 1, {4}};
  GOOD(rf_xla_share(client, 4096, &shared, &fault));
  GOOD(rf_xla_put(client, 0, &shape, &shared, 0, &buffer, &fault));
  rf_xla_id program = compiled(client, "good", 1);
  assert_int_equal(program, buffer);
  rf_xla_program_free(client, program);
  GOOD(rf_xla_get(client, buffer, &shared, 64, 16, &fault));
  rf_xla_unshare(client, &shared);
  rf_xla_close(client);
}

/* An array of the last call is used again only while its bytes are the same. */
static void kept_arrays_follow_their_bytes(void **state) {
  (void)state;
  rf_xla_client *client = open_fake("");
  rf_xla_shared shared;
  GOOD(rf_xla_share(client, 4096, &shared, &fault));
  rf_xla_argument argument = {.at = 0, .shape = {RF_F32, 1, {4}}};
  rf_xla_result result = {.at = 64, .bytes = 16};
  rf_xla_call call = {compiled(client, "good", 1), 1, 1, 1, &argument, &result, &shared};
  static const float CALLS[] = {1, 1, 2, 2, 1};
  float *data = shared.data;
  for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
    data[3] = CALLS[i];
    GOOD(rf_xla_execute(client, &call, NULL, &fault));
    assert_true(data[16 + 3] == CALLS[i]);
    data[3] = -1; /* the buffer has a copy */
  }
  const bool donated = true; /* a donated array is never kept */
  for (int i = 0; i < 2; i++) GOOD(rf_xla_execute(client, &call, &donated, &fault));
  rf_xla_program_free(client, call.program);
  assert_int_equal(living(client, &shared), 0);
  rf_xla_unshare(client, &shared);
  rf_xla_close(client);
}

static void large_arrays_pass(void **state) {
  (void)state;
  enum { BYTES = 40 << 20, COUNT = BYTES / 4 };
  rf_xla_client *client = open_fake("");
  rf_xla_shared from, to;
  rf_xla_id buffer;
  rf_xla_shape shape = {RF_I32, 1, {COUNT}};
  GOOD(rf_xla_share(client, BYTES, &from, &fault));
  GOOD(rf_xla_share(client, BYTES, &to, &fault));
  assert_int_equal((uintptr_t)from.data % 64, 0);
  int32_t *data = from.data;
  for (int i = 0; i < COUNT; i++) data[i] = i * 7;
  GOOD(rf_xla_put(client, 0, &shape, &from, 0, &buffer, &fault));
  GOOD(rf_xla_get(client, buffer, &to, 0, BYTES, &fault));
  assert_memory_equal(from.data, to.data, BYTES);
  rf_xla_unshare(client, &from);
  rf_xla_unshare(client, &to);
  rf_xla_close(client);
}

/* A program's text and many arguments are larger than the buffers of a socket. */
static void large_messages_pass(void **state) {
  (void)state;
  enum { ARGUMENTS = 50000 };
  rf_xla_client *client = open_fake("");
  rf_xla_shared shared;
  rf_xla_shape shape = {RF_F32, 0, {0}};
  char *text = malloc(5 << 20);
  rf_xla_argument *argument = calloc(ARGUMENTS, sizeof *argument);
  memset(text, ' ', 5 << 20);
  rf_xla_compile of = {.text = text, .bytes = 5 << 20, .replicas = 1};
  rf_xla_id program;
  GOOD(rf_xla_program(client, &of, &program, NULL, &fault));
  GOOD(rf_xla_share(client, 4 * ARGUMENTS, &shared, &fault));
  for (int i = 0; i < ARGUMENTS; i++) argument[i] = (rf_xla_argument){.at = 4 * i, .shape = shape};
  ((float *)shared.data)[0] = 12;
  rf_xla_result result = {.at = 4096, .bytes = 4};
  rf_xla_call call = {program, 1, ARGUMENTS, 1, argument, &result, &shared};
  GOOD(rf_xla_execute(client, &call, NULL, &fault));
  assert_true(((float *)shared.data)[1024] == 12);
  free(text);
  free(argument);
  rf_xla_unshare(client, &shared);
  rf_xla_close(client);
}

static void *call_often(void *of) {
  rf_xla_client *client = of;
  rf_xla_shared shared;
  rf_xla_shape shape = {RF_I32, 1, {256}};
  if (rf_xla_share(client, 4096, &shared, &fault) != RAFTER_OK) return NULL;
  int32_t *data = shared.data;
  for (int i = 0; i < 200; i++) {
    rf_xla_id buffer;
    for (int k = 0; k < 256; k++) data[k] = i + k;
    data[600] = 0;
    if (rf_xla_put(client, 0, &shape, &shared, 0, &buffer, &fault) != RAFTER_OK) return NULL;
    if (rf_xla_get(client, buffer, &shared, 2048, 1024, &fault) != RAFTER_OK) return NULL;
    if (data[600] != i + 88) return NULL;
    rf_xla_free(client, &buffer, 1);
  }
  rf_xla_unshare(client, &shared);
  return of;
}

static void threads_share_a_client(void **state) {
  (void)state;
  pthread_t thread[4];
  rf_xla_client *client = open_fake("");
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, call_often, client), 0);
  for (int i = 0; i < 4; i++) {
    void *result = NULL;
    pthread_join(thread[i], &result);
    assert_ptr_equal(result, client);
  }
  rf_xla_close(client);
}

/* ---- the child ------------------------------------------------------------------------------- */

/* Sends a message that no client sends. */
static rf_status ask_raw(rf_xla_client *client, rf_wire_kind kind, const void *data, size_t bytes) {
  const void *answer;
  size_t answer_bytes;
  rf_xla_message message = {
      .kind = kind, .what = "test", .parts = 1, .part = {{(void *)(uintptr_t)data, bytes}}};
  return rf_xla_ask(client, &message, &answer, &answer_bytes, &fault);
}

static void wrong_messages_are_refused(void **state) {
  (void)state;
  rf_xla_client *client = open_fake("");
  static const uint64_t FILL[] = {0, UINT64_MAX, 0x7fffffffffffff00, 1};
  uint64_t word[64];
  for (size_t fill = 0; fill < sizeof FILL / sizeof *FILL; fill++) {
    for (int i = 0; i < 64; i++) word[i] = FILL[fill];
    for (int kind = 0; kind < RF_WIRE_CLOSE; kind++) {
      /* without a plugin's check of its own, these have no wrong content */
      bool any = kind == RF_WIRE_FREE || kind == RF_WIRE_COMPILE || kind == RF_WIRE_LOAD;
      for (size_t bytes = 0; bytes <= sizeof word; bytes += 4) {
        rf_status status = ask_raw(client, (rf_wire_kind)kind, word, bytes);
        bool profile = !bytes && (kind == RF_WIRE_PROFILE_BEGIN || kind == RF_WIRE_PROFILE_END);
        if (status == RAFTER_OK && !any && !profile)
          fail_msg("message %d with %zu bytes was not refused", kind, bytes);
        if (rf_xla_lost(client)) fail_msg("message %d with %zu bytes ended the child", kind, bytes);
      }
    }
  }
  compiled(client, "good", 1);
  rf_xla_close(client);
}

/* The child ends when the parent ends, in the middle of a compilation too. */
static void the_child_ends_with_the_parent(void **state) {
  (void)state;
  rf_xla_client *client = open_fake("");
  pid_t child = client->child;
  rf_wire_head head = {RF_WIRE_MAGIC, RF_WIRE_COMPILE, sizeof(rf_wire_compile) + 9 + 6};
  rf_wire_compile compile = {9, 6, 0, 0};
  char body[sizeof compile + 15];
  memcpy(body, &compile, sizeof compile);
  memcpy(body + sizeof compile, "fake.hang\x1a\4\x20\1\x28\1", 15);
  assert_int_equal(write(client->socket, &head, sizeof head), sizeof head);
  assert_int_equal(write(client->socket, body, sizeof body), sizeof body);
  usleep(50000);
  close(client->socket);
  client->socket = -1;
  int status = 0;
  for (int i = 0; i < 100 && waitpid(child, &status, WNOHANG) == 0; i++) usleep(20000);
  assert_int_equal(kill(child, 0), -1);
  client->child = 0;
  rf_xla_close(client);
}

static void a_missing_program_is_reported(void **state) {
  (void)state;
  setenv("RAFTER_PJRT_HOST", "/nowhere/rafter-pjrt", 1);
  assert_int_equal(open_error(RF_FAKE_PLUGIN, "", &fault), RAFTER_INVALID);
  says(&fault, "RAFTER_PJRT_HOST");
  setenv("RAFTER_PJRT_HOST", "/bin/true", 1); /* not our program */
  assert_int_equal(open_error(RF_FAKE_PLUGIN, "", &fault), RAFTER_FAILED);
  says(&fault, "exit status 0");
  unsetenv("RAFTER_PJRT_HOST");
}

/* ---- options --------------------------------------------------------------------------------- */

static void has_bytes(int replicas, const int32_t *device, const char *flags, const char *golden) {
  void *options = NULL;
  size_t bytes = 0;
  char hex[2048] = "";
  GOOD(rf_xla_options(replicas, device, flags, &options, &bytes, &fault));
  for (size_t i = 0; i < bytes; i++) snprintf(hex + 2 * i, 3, "%02x", ((unsigned char *)options)[i]);
  assert_string_equal(hex, golden);
  free(options);
}

/* The bytes were read and written again by the protocol buffers of jaxlib 0.10.2, unchanged. */
static void options_are_encoded(void **state) {
  (void)state;
  static const int32_t DEVICE[] = {0, 1, 2, 300};
  has_bytes(1, DEVICE, NULL, "1a0420012801");
  has_bytes(4, NULL, "", "1a0420042801");
  has_bytes(4, DEVICE, NULL, "1a13200428014a0d080410011a070a05000102ac02");
  has_bytes(2, DEVICE, "--xla_a=true --xla_b=12  --xla_c=0.5 xla_d=text\t--xla_e=-3 --xla_f --xla_g=false ",
            "1a10200228014a0a080210011a040a0200013a0b0a05786c615f61120210013a0b0a05786c615f621202180c3a120a"
            "05786c615f63120921000000000000e03f3a0f0a05786c615f6412060a04746578743a140a05786c615f65120b18fd"
            "ffffffffffffffff013a0b0a05786c615f66120210013a0b0a05786c615f6712021000");
  void *options;
  size_t bytes;
  assert_int_equal(rf_xla_options(1, DEVICE, "--=3", &options, &bytes, &fault), RAFTER_INVALID);
  assert_int_equal(rf_xla_options(1, DEVICE, "---", &options, &bytes, &fault), RAFTER_INVALID);
}

/* ---- a real plugin --------------------------------------------------------------------------- */

static const char SUM[] =
    "module @sum {\n"
    "  func.func public @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<2x4xbf16>)\n"
    "      -> (tensor<4xf32>, tensor<4x2xbf16>) {\n"
    "    %0 = \"stablehlo.all_reduce\"(%a) ({\n"
    "    ^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
    "      %s = \"stablehlo.add\"(%x, %y) : (tensor<f32>, tensor<f32>) -> tensor<f32>\n"
    "      \"stablehlo.return\"(%s) : (tensor<f32>) -> ()\n"
    "    }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<4xf32>) -> tensor<4xf32>\n"
    "    %1 = \"stablehlo.transpose\"(%b) {permutation = array<i64: 1, 0>} :\n"
    "      (tensor<2x4xbf16>) -> tensor<4x2xbf16>\n"
    "    return %0, %1 : tensor<4xf32>, tensor<4x2xbf16>\n"
    "  }\n"
    "}\n";

/* Sums over four devices, twice: the result of the first run is donated to the second. */
static void run_sum(rf_xla_client *client, rf_xla_id program) {
  enum { DEVICES = 4 };
  rf_xla_shared shared;
  rf_xla_argument argument[2 * DEVICES];
  rf_xla_result result[2 * DEVICES];
  rf_xla_shape shape = {RF_F32, 1, {4}};
  GOOD(rf_xla_share(client, 4096, &shared, &fault));
  float *data = shared.data;
  uint16_t *half = (uint16_t *)shared.data + 1024;
  for (int i = 0; i < 16; i++) data[i] = (float)i;
  for (int i = 0; i < 8; i++) half[i] = rf_f32_to_bf16((float)i);
  for (int d = 0; d < DEVICES; d++) {
    argument[2 * d] = (rf_xla_argument){0};
    GOOD(rf_xla_put(client, d, &shape, &shared, 16 * d, &argument[2 * d].buffer, &fault));
    argument[2 * d + 1] = (rf_xla_argument){.at = 2048, .shape = {RF_BF16, 2, {2, 4}}};
    result[2 * d] = (rf_xla_result){.keep = true, .at = 256 + 16 * d, .bytes = 16};
    result[2 * d + 1] = (rf_xla_result){.at = 3072 + 16 * d, .bytes = 16};
  }
  rf_xla_call call = {program, DEVICES, 2, 2, argument, result, &shared};
  for (int run = 0; run < 2; run++) {
    GOOD(rf_xla_execute(client, &call, (const bool[]){true, false}, &fault));
    for (int d = 0; d < DEVICES; d++) argument[2 * d].buffer = result[2 * d].buffer;
  }
  for (int d = 0; d < DEVICES; d++)
    for (int i = 0; i < 4; i++) assert_true(data[64 + 4 * d + i] == (float)(4 * (24 + 4 * i)));
  for (int d = 0; d < DEVICES; d++) /* row-major, whatever the device's layout */
    for (int i = 0; i < 8; i++)
      assert_true(rf_bf16_to_f32(half[512 + 8 * d + i]) == (float)(i % 2 * 4 + i / 2));
  rf_xla_unshare(client, &shared);
}

static void a_real_plugin_runs(void **state) {
  (void)state;
  char path[4200], cache[300];
  rf_xla_client *client = NULL;
  rf_xla_settings settings = {.plugin = need_plugin(path)};
  rf_xla_compile of = {.text = SUM, .bytes = sizeof SUM - 1, .replicas = 4, .cache = cache};
  snprintf(cache, sizeof cache, "%s", at("real"));
  for (int run = 0; run < 2; run++) {
    rf_xla_id program;
    rf_xla_stats stats;
    GOOD(rf_xla_open(&settings, &client, &fault));
    assert_string_equal(rf_xla_facts_of(client)->platform, "cpu");
    GOOD(rf_xla_program(client, &of, &program, &stats, &fault));
    assert_int_equal(stats.argument, 32);
    assert_int_equal(stats.alias, 16);
    run_sum(client, program);
    rf_xla_compile bad = {.text = "module {", .bytes = 8, .replicas = 1};
    assert_int_equal(rf_xla_program(client, &bad, &program, NULL, &fault), RAFTER_FAILED);
    says(&fault, "compile");
    rf_xla_close(client);
  }
}

/* ---- profiles -------------------------------------------------------------------------------- */

static void profiles_are_recorded(void **state) {
  (void)state;
  char *data = NULL;
  size_t bytes = 0;
  rf_xla_client *client = open_fake("");
  assert_true(rf_xla_facts_of(client)->has_profiler);
  assert_int_equal(rf_xla_profile_end(client, &data, &bytes, &fault), RAFTER_FAILED);
  says(&fault, "no profile is recorded");
  for (int i = 0; i < 2; i++) {
    GOOD(rf_xla_profile_begin(client, &fault));
    assert_int_equal(rf_xla_profile_begin(client, &fault), RAFTER_FAILED);
    says(&fault, "a profile is recorded already");
    GOOD(rf_xla_profile_end(client, &data, &bytes, &fault));
    free(data);
  }
  rf_xla_close(client);
}

static void faults_of_profiles_are_reported(void **state) {
  (void)state;
  static const char *const FAULT[] = {"profile_create", "profile_start", "profile_stop", "profile_collect"};
  char *data = NULL;
  size_t bytes = 0;
  for (int i = 0; i < 4; i++) {
    rf_xla_client *client = open_fake(FAULT[i]);
    rf_status status = rf_xla_profile_begin(client, &fault);
    assert_int_equal(status, i < 2 ? RAFTER_FAILED : RAFTER_OK);
    if (i >= 2) assert_int_equal(rf_xla_profile_end(client, &data, &bytes, &fault), RAFTER_FAILED);
    assert_null(data);
    says(&fault, "Another profile session is running.");
    compiled(client, "good", 1); /* the child continues, and can begin again */
    assert_int_equal(rf_xla_profile_begin(client, &fault), i < 2 ? RAFTER_FAILED : RAFTER_OK);
    rf_xla_close(client);
  }
  rf_xla_client *client = open_fake("no_profiler");
  assert_false(rf_xla_facts_of(client)->has_profiler);
  assert_int_equal(rf_xla_profile_begin(client, &fault), RAFTER_FAILED);
  says(&fault, "the plugin has no profiler");
  rf_xla_close(client);
  client = open_fake("profile_die");
  GOOD(rf_xla_profile_begin(client, &fault));
  assert_int_equal(rf_xla_profile_end(client, &data, &bytes, &fault), RAFTER_FAILED);
  says(&fault, "Check failed: a profile");
  assert_true(rf_xla_lost(client));
  rf_xla_close(client);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_plugins_are_named),
      cmocka_unit_test(old_versions_are_refused),
      cmocka_unit_test(short_tables_are_noticed),
      cmocka_unit_test(faults_at_opening_are_reported),
      cmocka_unit_test(options_reach_the_plugin),
      cmocka_unit_test(missing_devices_are_reported),
      cmocka_unit_test(faults_at_compiling_are_reported),
      cmocka_unit_test(programs_have_statistics),
      cmocka_unit_test(a_compilation_can_be_stopped),
      cmocka_unit_test(a_stop_leaves_buffers_readable),
      cmocka_unit_test(a_killed_child_is_reported),
      cmocka_unit_test(buffers_are_copied_and_freed),
      cmocka_unit_test(faults_at_execution_are_reported),
      cmocka_unit_test(a_freed_program_leaves_buffers),
      cmocka_unit_test(kept_arrays_follow_their_bytes),
      cmocka_unit_test(large_arrays_pass),
      cmocka_unit_test(large_messages_pass),
      cmocka_unit_test(threads_share_a_client),
      cmocka_unit_test(wrong_messages_are_refused),
      cmocka_unit_test(the_child_ends_with_the_parent),
      cmocka_unit_test(a_missing_program_is_reported),
      cmocka_unit_test(options_are_encoded),
      cmocka_unit_test(a_real_plugin_runs),
      cmocka_unit_test(profiles_are_recorded),
      cmocka_unit_test(faults_of_profiles_are_reported),
  };
  return cmocka_run_group_tests_name("backend/xla_client", tests, make_folder, remove_folder);
}
