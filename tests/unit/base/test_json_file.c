/* test_json_file.c - tests JSON fields and texts, and files that are complete or do not exist. */
#include "base/file.h"
#include "base/json.h"
#include "base/partial.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/scratch.h"

static int files_in_folder(void) {
  DIR *dir = opendir(folder);
  int n = 0;
  for (struct dirent *e; dir && (e = readdir(dir));) n += e->d_name[0] != '.';
  if (dir) closedir(dir);
  return n;
}

static void what_is_written_is_read(void **state) {
  (void)state;
  enum { N = 300000 };
  char *data = malloc(N), *back;
  size_t bytes;
  for (int i = 0; i < N; ++i) data[i] = (char)(i * 7 + i / 256);
  rf_out_file *out;
  assert_int_equal(rf_out_open(at("parts"), N, &out, NULL), RAFTER_OK);
  /* parts smaller than, equal to and larger than the buffer */
  for (size_t done = 0, part = 0; done < N; done += part) {
    part = done % 3 == 0 ? 1 : done % 3 == 1 ? 65536 : 70001;
    if (part > N - done) part = N - done;
    assert_int_equal(rf_out_write(out, data + done, part, NULL), RAFTER_OK);
    assert_int_equal(rf_out_bytes(out), done + part);
    assert_int_equal(access(at("parts"), F_OK), -1); /* The file does not exist before it is complete. */
  }
  assert_int_equal(rf_out_commit(out, NULL), RAFTER_OK);
  assert_int_equal(rf_file_read(at("parts"), N, &back, &bytes, NULL), RAFTER_OK);
  assert_int_equal(bytes, N);
  assert_memory_equal(data, back, N);
  assert_int_equal(back[N], 0);
  free(back);
  assert_int_equal(files_in_folder(), 1);
  rf_error error;
  assert_int_equal(rf_file_read(at("parts"), N - 1, &back, &bytes, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "too large"));
  assert_int_equal(rf_file_read(folder, N, &back, &bytes, &error), RAFTER_FAILED);
  assert_int_equal(rf_file_read(at("none"), N, &back, &bytes, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "none"));
  assert_int_equal(rf_file_write(at("parts"), "new", 3, NULL), RAFTER_OK);
  assert_int_equal(rf_file_read(at("parts"), N, &back, &bytes, NULL), RAFTER_OK);
  assert_string_equal(back, "new");
  free(back);
  free(data);
}

static void a_disk_that_is_full_leaves_no_file(void **state) {
  (void)state;
  struct rlimit old, small;
  getrlimit(RLIMIT_FSIZE, &old);
  small = old;
  small.rlim_cur = 100000;
  signal(SIGXFSZ, SIG_IGN);
  int before = files_in_folder();
  rf_error error = {0};
  rf_out_file *out = NULL;
  char block[10000] = {0};
  rf_status status[2] = {RAFTER_OK, RAFTER_OK};
  setrlimit(RLIMIT_FSIZE, &small);
  /* A file system may or may not notice the error before the first byte. */
  for (int known = 0; known < 2; ++known) {
    status[known] = rf_out_open(at("big"), known ? 1000000 : 0, &out, &error);
    if (status[known] != RAFTER_OK) continue;
    for (int i = 0; i < 100 && status[known] == RAFTER_OK; ++i)
      status[known] = rf_out_write(out, block, sizeof block, &error);
    rf_out_discard(out);
  }
  setrlimit(RLIMIT_FSIZE, &old);
  assert_int_equal(status[0], RAFTER_FAILED);
  assert_int_equal(status[1], RAFTER_FAILED);
  assert_non_null(strstr(error.message, "big"));
  assert_true(error.hint[0] != 0);
  assert_int_equal(files_in_folder(), before);
  assert_int_equal(rf_out_open("/nowhere/at/all", 0, &out, &error), RAFTER_FAILED);
}

static void reads(const char *path, const char *text) {
  char *back;
  size_t bytes;
  assert_int_equal(rf_file_read(path, 100, &back, &bytes, NULL), RAFTER_OK);
  assert_string_equal(back, text);
  free(back);
}

static int64_t size_of(const char *path) {
  struct stat info;
  return stat(path, &info) ? -1 : (int64_t)info.st_size;
}

/* An appended file keeps its complete parts, also when the disk is full. */
static void parts_are_appended(void **state) {
  (void)state;
  rf_error error = {0};
  rf_out_file *out, *other;
  struct rlimit old, small;
  char block[100000] = {0};
  assert_int_equal(rf_out_append(at("rows"), &out, NULL), RAFTER_OK);
  assert_int_equal(rf_out_append(at("rows"), &other, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "in use"));
  rf_out_discard(out);
  assert_int_equal(size_of(at("rows")), -1); /* no part, no file */
  assert_int_equal(rf_out_append(at("rows"), &out, NULL), RAFTER_OK);
  assert_int_equal(rf_out_write(out, "one ", 4, NULL), RAFTER_OK);
  assert_int_equal(rf_out_flush(out, NULL), RAFTER_OK);
  assert_int_equal(size_of(at("rows")), 4);
  assert_int_equal(rf_out_write(out, block, sizeof block, NULL), RAFTER_OK);
  assert_int_equal(size_of(at("rows")), 4 + sizeof block);
  rf_out_discard(out); /* the second part is not complete */
  reads(at("rows"), "one ");
  assert_int_equal(rf_out_append(at("rows"), &out, NULL), RAFTER_OK);
  assert_int_equal(rf_out_bytes(out), 4);
  assert_int_equal(rf_out_keep(out, 2, NULL), RAFTER_OK);
  assert_int_equal(rf_out_write(out, "ly", 2, NULL), RAFTER_OK);
  assert_int_equal(rf_out_commit(out, NULL), RAFTER_OK);
  reads(at("rows"), "only");
  getrlimit(RLIMIT_FSIZE, &old);
  small = old;
  small.rlim_cur = 5000;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  assert_int_equal(rf_out_append(at("rows"), &out, NULL), RAFTER_OK);
  assert_int_equal(rf_out_keep(out, 4, NULL), RAFTER_OK);
  rf_status status = rf_out_write(out, block, 10000, &error);
  if (status == RAFTER_OK) status = rf_out_flush(out, &error);
  setrlimit(RLIMIT_FSIZE, &old);
  assert_int_equal(status, RAFTER_FAILED);
  rf_out_discard(out);
  reads(at("rows"), "only");
  assert_int_equal(rf_out_append(folder, &out, NULL), RAFTER_FAILED);
  assert_int_equal(rf_out_append("/dev/null", &out, NULL), RAFTER_FAILED);
}

static bool is_link(const char *path) {
  struct stat info;
  return !lstat(path, &info) && S_ISLNK(info.st_mode);
}

static void links_stay_and_pipes_are_written(void **state) {
  (void)state;
  char got[64] = "";
  rf_error error;
  struct stat info;
  rf_out_file *out;
  assert_int_equal(rf_make_folders(at("links/far"), NULL), RAFTER_OK);
  assert_int_equal(rf_file_write(at("links/far/real"), "old", 3, NULL), RAFTER_OK);
  assert_int_equal(symlink("far/real", at("links/one")), 0);
  assert_int_equal(symlink("one", at("links/two")), 0);
  assert_int_equal(symlink("far/new", at("links/dangling")), 0);
  assert_int_equal(symlink("round", at("links/round")), 0);
  assert_int_equal(rf_file_write(at("links/two"), "new", 3, NULL), RAFTER_OK);
  assert_int_equal(rf_file_write(at("links/dangling"), "made", 4, NULL), RAFTER_OK);
  assert_true(is_link(at("links/two")) && is_link(at("links/one")) && is_link(at("links/dangling")));
  reads(at("links/far/real"), "new");
  reads(at("links/far/new"), "made");
  /* An abandoned write leaves the file unchanged. */
  assert_int_equal(rf_out_open(at("links/two"), 0, &out, NULL), RAFTER_OK);
  assert_int_equal(rf_out_write(out, "x", 1, NULL), RAFTER_OK);
  rf_out_discard(out);
  reads(at("links/far/real"), "new");
  assert_int_equal(rf_file_write(at("links/round"), "x", 1, &error), RAFTER_FAILED);
  assert_int_equal(rf_file_write(at("links/far"), "x", 1, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "links/far"));

  assert_int_equal(mkfifo(at("links/pipe"), 0600), 0);
  int end = open(at("links/pipe"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  assert_true(end >= 0);
  assert_int_equal(rf_file_write(at("links/pipe"), "through", 7, NULL), RAFTER_OK);
  assert_int_equal(read(end, got, sizeof got), 7);
  assert_string_equal(got, "through");
  close(end);
  assert_true(!lstat(at("links/pipe"), &info) && S_ISFIFO(info.st_mode));
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

/* Incomplete files of processes that are gone are removed, but not those with a lock, of a process
 * that lives, or of another target. */
static void left_files_are_removed(void **state) {
  (void)state;
  char gone[80], locked[80], mine[80], other[80], made[80], inner[120], word[80];
  pid_t child = fork();
  if (child == 0) _exit(0);
  assert_int_equal(waitpid(child, NULL, 0), child);
  assert_int_equal(rf_make_folders(at("left"), NULL), RAFTER_OK);
  snprintf(gone, sizeof gone, "left/x.part-%d", child);
  snprintf(locked, sizeof locked, "left/x.part-%d-1", child);
  snprintf(mine, sizeof mine, "left/x.part-%d", getppid());
  snprintf(other, sizeof other, "left/xx.part-%d", child);
  snprintf(made, sizeof made, "left/x.part-%d-2", child);
  snprintf(inner, sizeof inner, "%s/file", made);
  snprintf(word, sizeof word, "left/x.part-%dth", child);
  const char *const files[] = {gone, locked, mine, other, inner, word};
  assert_int_equal(rf_make_folders(at(made), NULL), RAFTER_OK);
  for (int i = 0; i < 6; i++) assert_int_equal(rf_file_write(at(files[i]), "x", 1, NULL), RAFTER_OK);
  int lock = open(at(locked), O_RDONLY | O_CLOEXEC);
  assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
  assert_int_equal(rf_file_write(at("left/x"), "x", 1, NULL), RAFTER_OK);
  assert_false(exists(at(gone)) || exists(at(made)));
  assert_true(exists(at(locked)) && exists(at(mine)) && exists(at(other)) && exists(at(word)));
  close(lock);
  rf_partials_sweep(at("left"), NULL);
  assert_false(exists(at(locked)) || exists(at(mine)) || exists(at(other)));
  assert_true(exists(at(word)) && exists(at("left/x")));
}

/* Before a process ends with an error, it removes what it has not completed. */
static void unfinished_files_are_removed(void **state) {
  (void)state;
  char part[4200], file[4300];
  rf_out_file *out;
  assert_int_equal(rf_out_open(at("left/unfinished"), 0, &out, NULL), RAFTER_OK);
  assert_int_equal(rf_make_sibling_folder(at("left/folder"), part, sizeof part, NULL), RAFTER_OK);
  snprintf(file, sizeof file, "%s/file", part);
  assert_int_equal(rf_file_write(file, "x", 1, NULL), RAFTER_OK);
  rf_partials_remove();
  assert_false(exists(part));
  snprintf(file, sizeof file, "%s.part-%d", at("left/unfinished"), getpid());
  assert_false(exists(file));
  rf_out_discard(out);
  rf_partial_done_folder(part);
}

/* A mapped file is found by each address inside it until it is unmapped. */
static void mapped_files_are_found(void **state) {
  (void)state;
  void *map;
  size_t bytes;
  char path[4200];
  snprintf(path, sizeof path, "%s", at("mapped"));
  assert_int_equal(rf_file_write(path, "four", 4, NULL), RAFTER_OK);
  for (int again = 0; again < 3; again++) {
    assert_int_equal(rf_map_file(path, &map, &bytes, NULL), RAFTER_OK);
    assert_string_equal(rf_mapped_path(map), path);
    assert_string_equal(rf_mapped_path((char *)map + 3), path);
    assert_null(rf_mapped_path((char *)map + 4));
    rf_unmap_file(map, bytes);
    assert_null(rf_mapped_path(map));
  }
}

static void folders_are_made(void **state) {
  (void)state;
  rf_error error;
  assert_int_equal(rf_make_folders(at("a/b//c/"), NULL), RAFTER_OK);
  assert_int_equal(rf_make_folders(at("a/b/c"), NULL), RAFTER_OK);
  assert_int_equal(rf_file_write(at("a/b/c/file"), "x", 1, NULL), RAFTER_OK);
  assert_int_equal(rf_make_folders(at("a/b/c/file"), &error), RAFTER_FAILED);
  assert_int_equal(rf_make_folders(at("a/b/c/file/d"), &error), RAFTER_FAILED);
}

/* Names are cut between characters, and bytes that are not UTF-8 are replaced. */
static void names_are_valid_text(void **state) {
  char name[8];
  (void)state;
  static const char *const CASES[][2] = {{"short", "short"},
                                         {"1234567", "1234567"},
                                         {"12345678", "1234567"},
                                         {"123456\xc3\xa9", "123456"},
                                         {"12345\xc3\xa9", "12345\xc3\xa9"},
                                         {"a\xff", "a\xef\xbf\xbd"},
                                         {"", ""}};
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    rf_json_name(CASES[i][0], name, sizeof name);
    assert_string_equal(name, CASES[i][1]);
  }
}

/* The expected text is that of Python's bytes.decode("utf-8", "replace"). */
static void any_bytes_are_a_text(void **state) {
  (void)state;
  static const char *const CASES[][2] = {
      {"plain \303\251\360\237\230\200", "plain \303\251\360\237\230\200"},
      {"a\361\200\200\341\200\302b\200c\200\277d",
       "a\357\277\275\357\277\275\357\277\275b\357\277\275c\357\277\275\357\277\275d"},
      {"\303", "\357\277\275"},
      {"x\342\202", "x\357\277\275"},
      {"\355\240\200", "\357\277\275\357\277\275\357\277\275"},
      {"\364\220\200\200", "\357\277\275\357\277\275\357\277\275\357\277\275"},
      {"\300\257\340\200\257", "\357\277\275\357\277\275\357\277\275\357\277\275\357\277\275"},
      {"\377\376\360\237\230\200", "\357\277\275\357\277\275\360\237\230\200"},
  };
  for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
    json_t *text = rf_json_bytes(CASES[i][0], strlen(CASES[i][0]));
    assert_non_null(text);
    assert_string_equal(json_string_value(text), CASES[i][1]);
    json_decref(text);
  }
  json_t *nul = rf_json_bytes("a\0\377", 3);
  assert_int_equal(json_string_length(nul), 5);
  json_decref(nul);
}

static void fields_are_checked(void **state) {
  (void)state;
  static const char text[] = "{\"i\":3,\"r\":3.0,\"h\":0.5,\"s\":\"x\",\"b\":true,\"n\":null,\"big\":1e300}";
  json_t *json;
  rf_error error;
  int64_t i;
  double f;
  bool b;
  const char *s;
  assert_int_equal(rf_json_parse(text, strlen(text), "text", &json, NULL), RAFTER_OK);
  assert_int_equal(rf_json_int(json, "i", "text", 0, 9, &i, NULL), RAFTER_OK);
  assert_int_equal(i, 3);
  assert_int_equal(rf_json_int(json, "r", "text", 0, 9, &i, NULL), RAFTER_OK);
  assert_int_equal(i, 3);
  assert_int_equal(rf_json_int(json, "i", "text", 0, 2, &i, &error), RAFTER_FAILED);
  assert_string_equal(error.message, "text: the field \"i\" is out of range (expected 0 to 2, got 3)");
  const char *not_whole[] = {"h", "s", "b", "n", "big"};
  for (int k = 0; k < 5; ++k)
    assert_int_equal(rf_json_int(json, not_whole[k], "text", INT64_MIN, INT64_MAX, &i, &error),
                     RAFTER_FAILED);
  assert_int_equal(rf_json_int(json, "missing", "text", 0, 9, &i, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "\"missing\" is missing"));
  assert_int_equal(rf_json_int_or(json, "missing", "text", 0, 9, 7, &i, NULL), RAFTER_OK);
  assert_int_equal(i, 7);
  assert_int_equal(rf_json_int_or(json, "n", "text", 0, 9, 8, &i, NULL), RAFTER_OK);
  assert_int_equal(i, 8);
  assert_int_equal(rf_json_float(json, "i", "text", 0, 9, &f, NULL), RAFTER_OK);
  assert_true(f == 3.0);
  assert_int_equal(rf_json_float(json, "s", "text", 0, 9, &f, &error), RAFTER_FAILED);
  assert_int_equal(rf_json_bool(json, "b", "text", &b, NULL), RAFTER_OK);
  assert_int_equal(rf_json_bool(json, "i", "text", &b, &error), RAFTER_FAILED);
  assert_int_equal(rf_json_string(json, "s", "text", &s, NULL), RAFTER_OK);
  assert_string_equal(s, "x");
  /* not an object */
  assert_int_equal(rf_json_int_or(json_object_get(json, "s"), "x", "text.s", 0, 1, 0, &i, &error),
                   RAFTER_FAILED);
  json_decref(json);
  const char *bad[] = {
      "", "{", "[1,]", "{\"a\":1,\"a\":2}", "{\"a\":NaN}", "\"\xff\"", "nul", "{\"a\":99999999999999999999}"};
  for (size_t k = 0; k < sizeof bad / sizeof bad[0]; ++k)
    assert_int_equal(rf_json_parse(bad[k], strlen(bad[k]), "bad", &json, &error), RAFTER_FAILED);
  char deep[20000]; /* Deep nesting must not overflow the stack. */
  memset(deep, '[', sizeof deep);
  assert_int_equal(rf_json_parse(deep, sizeof deep, "deep", &json, &error), RAFTER_FAILED);
}

static void texts_read_back(void **state) {
  (void)state;
  json_t *json = json_object(), *list = json_array(), *back;
  json_object_set_new(json, "z", json_real(0.1));
  json_object_set_new(json, "a", json_string("quote \" slash \\ line \n bell \x07 \xc3\xa9"));
  const double values[] = {1.0 / 3, 1e300, 5e-324, 3e-4, 1.0, -0.0, 123456789012345680.0, 2.5e-8};
  for (int i = 0; i < 8; ++i) json_array_append_new(list, json_real(values[i]));
  json_object_set_new(json, "list", list);
  json_object_set_new(json, "none", json_null());
  json_object_set_new(json, "empty", json_object());
  for (int indent = 0; indent <= 2; indent += 2) {
    char *text = rf_json_text(json, indent);
    assert_int_equal(rf_json_parse(text, strlen(text), "text", &back, NULL), RAFTER_OK);
    assert_true(json_equal(json, back));
    if (!indent)
      assert_true(strncmp(text, "{\"z\":0.1,\"a\":\"quote \\\" ", 23) == 0 && !strchr(text, '\n') &&
                  strstr(text, "0.0003,1.0,-0.0,"));
    json_decref(back);
    free(text);
  }
  assert_int_equal(rf_json_write(at("x.json"), json, 2, NULL), RAFTER_OK);
  assert_int_equal(rf_json_read(at("x.json"), 1000, &back, NULL), RAFTER_OK);
  assert_true(json_equal(json, back));
  json_decref(back);
  rf_error error;
  assert_int_equal(rf_json_read(at("x.json"), 10, &back, &error), RAFTER_FAILED);
  json_decref(json);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_are_valid_text),
      cmocka_unit_test(what_is_written_is_read),
      cmocka_unit_test(a_disk_that_is_full_leaves_no_file),
      cmocka_unit_test(any_bytes_are_a_text),
      cmocka_unit_test(parts_are_appended),
      cmocka_unit_test(links_stay_and_pipes_are_written),
      cmocka_unit_test(folders_are_made),
      cmocka_unit_test(left_files_are_removed),
      cmocka_unit_test(unfinished_files_are_removed),
      cmocka_unit_test(mapped_files_are_found),
      cmocka_unit_test(fields_are_checked),
      cmocka_unit_test(texts_read_back),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
