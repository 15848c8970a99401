/* test_xla_cache.c - the cache of compiled programs: hits, damaged files, and its largest size. */
#include "support/fake_client.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "backend/xla/client_parts.h"
#include "base/file.h"

static rf_xla_id compiled_with(rf_xla_client *client, const char *text, const char *cache, bool *cached) {
  rf_xla_id program = 0;
  rf_xla_stats stats;
  rf_xla_compile of = {.text = text, .bytes = strlen(text), .replicas = 1, .cache = cache};
  GOOD(rf_xla_program(client, &of, &program, &stats, &fault));
  *cached = stats.cached;
  assert_int_equal(stats.total, 160);
  assert_true(stats.flops == 64);
  return program;
}

/* Changes one byte of the only file in the cache, or cuts the file. */
static void damage(const char *cache, const char *how) {
  char command[1024];
  snprintf(command, sizeof command, "f=$(echo %s/*.xla) && test -f \"$f\" && %s", cache, how);
  assert_int_equal(system(command), 0);
}

static void programs_are_cached(void **state) {
  (void)state;
  bool cached;
  const char *cache = at("cache");
  static const char *const DAMAGE[] = {"printf x | dd of=$f bs=1 seek=150 conv=notrunc status=none",
                                       "truncate -s 100 $f", "truncate -s 10 $f", "truncate -s 0 $f",
                                       "printf x >>$f"};
  rf_xla_client *client = open_fake("");
  compiled_with(client, "fake.results=2", cache, &cached);
  assert_false(cached);
  compiled_with(client, "fake.results=2", cache, &cached);
  assert_true(cached);
  for (size_t i = 0; i < sizeof DAMAGE / sizeof *DAMAGE; i++) {
    damage(cache, DAMAGE[i]);
    compiled_with(client, "fake.results=2", cache, &cached);
    assert_false(cached);
    compiled_with(client, "fake.results=2", cache, &cached);
    assert_true(cached);
  }
  rf_xla_close(client);
  /* another process uses the file, also when the plugin has one device less */
  client = open_fake("");
  compiled_with(client, "fake.results=2", cache, &cached);
  assert_true(cached);
  compiled_with(client, "fake.results=3", cache, &cached);
  assert_false(cached);
  rf_xla_close(client);
  client = open_fake("devices=3");
  compiled_with(client, "fake.results=2", cache, &cached);
  assert_false(cached);
  rf_xla_close(client);
}

static void refused_files_are_compiled_again(void **state) {
  (void)state;
  bool cached;
  const char *cache = at("refused");
  rf_xla_client *client = open_fake("");
  compiled_with(client, "one", cache, &cached);
  rf_xla_close(client);
  client = open_fake("load_refuse");
  compiled_with(client, "one", cache, &cached);
  assert_false(cached);
  rf_xla_close(client);
  /* a file that ends the plugin is removed, and the next run compiles */
  client = open_fake("load_abort");
  rf_xla_id program;
  rf_xla_compile of = {.text = "one", .bytes = 3, .replicas = 1, .cache = cache};
  assert_int_equal(rf_xla_program(client, &of, &program, NULL, &fault), RAFTER_FAILED);
  says(&fault, "Check failed: bad program");
  rf_xla_close(client);
  client = open_fake("load_abort");
  compiled_with(client, "one", cache, &cached);
  assert_false(cached);
  rf_xla_close(client);
  client = open_fake("no_store");
  compiled_with(client, "two", at("none"), &cached);
  compiled_with(client, "two", at("none"), &cached);
  assert_false(cached);
  rf_xla_close(client);
}

static void topologies_are_cached(void **state) {
  (void)state;
  rf_xla_id program;
  rf_xla_client *client = NULL;
  rf_xla_settings settings = {.plugin = RF_FAKE_PLUGIN, .compile_only = true};
  rf_xla_compile of = {
      .text = "x", .bytes = 1, .replicas = 4, .topology = "fake:2x2", .cache = at("topology")};
  setenv("FAKE_PLUGIN", "", 1);
  GOOD(rf_xla_open(&settings, &client, &fault));
  for (int i = 0; i < 2; i++) {
    rf_xla_stats stats;
    GOOD(rf_xla_program(client, &of, &program, &stats, &fault));
    assert_int_equal(stats.cached, i);
    assert_int_equal(stats.total, 160);
    assert_int_equal(program, 0);
  }
  rf_xla_close(client);
}

/* A folder that cannot be written is ignored. */
static void a_cache_that_cannot_be_written_is_ignored(void **state) {
  (void)state;
  bool cached;
  rf_xla_client *client = open_fake("");
  compiled_with(client, "one", "/dev/null/cache", &cached);
  assert_false(cached);
  rf_xla_close(client);
}

static void the_oldest_files_are_removed(void **state) {
  (void)state;
  char path[300], data[1000] = {0};
  snprintf(path, sizeof path, "%s", at("trim"));
  assert_int_equal(rf_make_folders(path, &fault), RAFTER_OK);
  for (int i = 0; i < 5; i++) {
    char name[400];
    snprintf(name, sizeof name, "%s/%d.xla", path, i);
    GOOD(rf_file_write(name, data, sizeof data, &fault));
    struct timespec times[2] = {{1000 + (i * 7) % 5, 0}, {1000 + (i * 7) % 5, 0}};
    assert_int_equal(utimensat(AT_FDCWD, name, times, 0), 0);
  }
  snprintf(data, sizeof data, "%s/other.txt", path);
  GOOD(rf_file_write(data, data, sizeof data, &fault));
  rf_xla_cache_trim(path, 2500);
  /* times: file 0: 0, 1: 2, 2: 4, 3: 1, 4: 3; the files with times 4 and 3 stay */
  static const bool STAYS[] = {false, false, true, false, true};
  for (int i = 0; i < 5; i++) {
    char name[400];
    snprintf(name, sizeof name, "%s/%d.xla", path, i);
    assert_int_equal(!access(name, F_OK), STAYS[i]);
  }
  assert_int_equal(access(data, F_OK), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(programs_are_cached),
      cmocka_unit_test(refused_files_are_compiled_again),
      cmocka_unit_test(topologies_are_cached),
      cmocka_unit_test(a_cache_that_cannot_be_written_is_ignored),
      cmocka_unit_test(the_oldest_files_are_removed),
  };
  return cmocka_run_group_tests_name("backend/xla_cache", tests, make_folder, remove_folder);
}
