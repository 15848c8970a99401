/* test_history.c - tests the history of runs: rows are read back as written, older files are
 * updated, many processes write at once, and any of them may be killed. */
#include "report/history.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/scratch.h"

static const char *fresh_root(const char *name) {
  const char *root = at(name);
  assert_int_equal(mkdir(root, 0755), 0);
  return root;
}

static rf_history *open_for(const char *root, bool writes) {
  rf_history *history = NULL;
  rf_error error = {0};
  if (rf_history_open(root, writes, &history, &error) != RAFTER_OK) fail_msg("%s", error.message);
  return history;
}

static const rf_history_run RUN = {.name = "first",
                                   .command = "train",
                                   .model = "uva",
                                   .options = "{\"batch\":8}",
                                   .folder = "/nowhere/first",
                                   .digest = "0123",
                                   .machine = "a-machine",
                                   .version = "rafter"};

static const char *text_of(const json_t *row, const char *key) {
  const char *text = json_string_value(json_object_get(row, key));
  return text ? text : "";
}

static json_t *rows_of(const char *root, const rf_history_filter *filter) {
  json_t *rows = NULL;
  rf_error error = {0};
  rf_history *history = open_for(root, false);
  if (rf_history_rows(history, filter, &rows, &error) != RAFTER_OK) fail_msg("%s", error.message);
  rf_history_close(history);
  return rows;
}

/* Writes a run from its start to its end. 0: the run is not ended. */
static int64_t put(rf_history *history, const rf_history_run *run, const char *status, const char *results) {
  int64_t id = 0;
  rf_error error = {0};
  if (rf_history_begin(history, run, &id, &error) != RAFTER_OK) fail_msg("%s", error.message);
  json_t *json = json_loads(results ? results : "{}", 0, NULL);
  if (status && rf_history_end(history, id, status, strcmp(status, "failed") ? NULL : "no room", json,
                               &error) != RAFTER_OK)
    fail_msg("%s", error.message);
  json_decref(json);
  return id;
}

static void rows_come_back(void **state) {
  (void)state;
  const char *root = fresh_root("rows");
  rf_history_run other = RUN;
  other.name = "second";
  other.model = "gpt2";
  other.machine = "b-machine";
  json_t *rows = rows_of(root, NULL); /* there is no file yet */
  assert_int_equal(json_array_size(rows), 0);
  json_decref(rows);
  rf_history *history = open_for(root, true);
  assert_int_equal(put(history, &RUN, "done", "{\"loss\":2.5,\"tokens_per_second\":10,\"bound\":\"memory\"}"),
                   1);
  assert_int_equal(put(history, &other, "failed", NULL), 2);
  assert_int_equal(put(history, &other, NULL, NULL), 3);
  rf_history_close(history);

  rows = rows_of(root, NULL);
  assert_int_equal(json_array_size(rows), 3); /* newest first */
  const json_t *running = json_array_get(rows, 0), *failed = json_array_get(rows, 1),
               *done = json_array_get(rows, 2);
  assert_string_equal(text_of(running, "status"), "running"); /* its process is this one */
  assert_string_equal(text_of(failed, "status"), "failed");
  assert_string_equal(text_of(failed, "message"), "no room");
  assert_string_equal(text_of(done, "status"), "done");
  assert_string_equal(text_of(done, "digest"), "0123");
  assert_true(json_is_false(json_object_get(done, "folder_is_there")));
  assert_int_equal(json_integer_value(json_object_get(json_object_get(done, "options"), "batch")), 8);
  assert_true(json_number_value(json_object_get(json_object_get(done, "results"), "loss")) == 2.5);
  assert_true(json_number_value(json_object_get(done, "ended")) >=
              json_number_value(json_object_get(done, "started")));
  json_decref(rows);

  static const struct {
    rf_history_filter filter;
    size_t count;
  } asked[] = {{{.model = "gpt"}, 2},    {{.machine = "b-"}, 2},   {{.model = "gpt", .machine = "a-"}, 0},
               {{.metric = "loss"}, 1},  {{.metric = "bound"}, 0}, {{.id = 2}, 1},
               {{.id = 9}, 0},           {{.name = "first"}, 1},   {{.name = "/nowhere/first"}, 3},
               {{.command = "score"}, 0}};
  for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
    rows = rows_of(root, &asked[i].filter);
    assert_int_equal(json_array_size(rows), asked[i].count);
    json_decref(rows);
  }
}

static void copy_v1(const char *root) {
  char command[512];
  snprintf(command, sizeof command, "cp '%s/history-v1.db' '%s/history.db'", RF_TEST_DATA, root);
  assert_int_equal(system(command), 0);
}

/* The first column of the first row, as text. */
static const char *ask(const char *root, const char *sql) {
  static char answer[64];
  char path[512];
  sqlite3 *db;
  sqlite3_stmt *query;
  snprintf(path, sizeof path, "%s/history.db", root);
  assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
  assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &query, NULL), SQLITE_OK);
  assert_int_equal(sqlite3_step(query), SQLITE_ROW);
  snprintf(answer, sizeof answer, "%s", (const char *)sqlite3_column_text(query, 0));
  sqlite3_finalize(query);
  sqlite3_close(db);
  return answer;
}
static int version_of(const char *root) { return atoi(ask(root, "PRAGMA user_version")); }

/* A reader accepts an old file without changing it. The first writer updates it and loses
 * nothing. */
static void an_old_file_is_updated(void **state) {
  (void)state;
  const char *root = fresh_root("old");
  copy_v1(root);
  for (int writes = 0; writes < 2; writes++) {
    rf_history_close(open_for(root, writes));
    assert_int_equal(version_of(root), writes ? RF_HISTORY_VERSION : 1);
    json_t *rows = rows_of(root, NULL);
    assert_int_equal(json_array_size(rows), 2);
    assert_string_equal(text_of(json_array_get(rows, 1), "model"), "uva");
    assert_true(json_number_value(
                    json_object_get(json_object_get(json_array_get(rows, 1), "results"), "loss")) == 3.5);
    /* The old row says "running" and does not name a process. */
    assert_string_equal(text_of(json_array_get(rows, 0), "status"), "ended without a word");
    json_decref(rows);
  }
  rf_history *history = open_for(root, true);
  assert_int_equal(put(history, &RUN, "done", NULL), 3);
  rf_history_close(history);
}

static void wrong_files_are_refused(void **state) {
  (void)state;
  const char *root = fresh_root("wrong");
  char path[512], command[1024];
  rf_error error = {0};
  rf_history *history = NULL;
  snprintf(path, sizeof path, "%s/history.db", root);
  FILE *file = fopen(path, "w");
  for (int i = 0; i < 500; i++) fputs("this is no database\n", file);
  fclose(file);
  for (int writes = 0; writes < 2; writes++) {
    assert_int_equal(rf_history_open(root, writes, &history, &error), RAFTER_FAILED);
    assert_non_null(strstr(error.message, "history.db"));
  }
  copy_v1(root);
  snprintf(command, sizeof command, "%s", path);
  sqlite3 *db;
  assert_int_equal(sqlite3_open(command, &db), SQLITE_OK);
  assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL), SQLITE_OK);
  sqlite3_close(db);
  assert_int_equal(rf_history_open(root, true, &history, &error), RAFTER_FAILED);
  assert_non_null(strstr(error.message, "newer rafter"));
  assert_int_equal(rf_history_open("/dev/null/runs", true, &history, &error), RAFTER_FAILED);
}

enum { WRITERS = 6, RUNS = 8, KILLED = 2 };

/* A writer begins and ends runs. For every second run it opens the file again, as commands do. */
static void writer(const char *root, bool endless) {
  rf_history_run run = RUN;
  char name[32];
  snprintf(name, sizeof name, "%d", (int)getpid());
  run.name = name;
  for (int i = 0; i < RUNS || endless; i++) {
    rf_history *history = NULL;
    int64_t id = 0;
    json_t *results = json_pack("{si}", "run", i);
    if (rf_history_open(root, true, &history, NULL) != RAFTER_OK ||
        rf_history_begin(history, &run, &id, NULL) != RAFTER_OK ||
        rf_history_end(history, id, "done", NULL, results, NULL) != RAFTER_OK)
      _exit(1);
    rf_history_close(history);
    json_decref(results);
  }
  _exit(0);
}

static void many_write_and_some_are_killed(void **state) {
  (void)state;
  char root[256];
  snprintf(root, sizeof root, "%s", fresh_root("many"));
  copy_v1(root); /* The writers also race to update the old file. */
  pid_t child[WRITERS + KILLED];
  for (int i = 0; i < WRITERS + KILLED; i++) {
    child[i] = fork();
    if (child[i] == 0) writer(root, i >= WRITERS);
    assert_true(child[i] > 0);
  }
  for (int i = WRITERS; i < WRITERS + KILLED; i++) {
    usleep(100000);
    kill(child[i], SIGKILL);
  }
  for (int i = 0; i < WRITERS + KILLED; i++) {
    int status = 0;
    assert_int_equal(waitpid(child[i], &status, 0), child[i]);
    if (i < WRITERS) assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    else assert_true(WIFSIGNALED(status));
  }
  assert_int_equal(version_of(root), RF_HISTORY_VERSION);
  for (int i = 0; i < WRITERS + KILLED; i++) {
    char name[32];
    snprintf(name, sizeof name, "%d", (int)child[i]);
    json_t *rows = rows_of(root, &(rf_history_filter){.name = name});
    size_t done = 0, count = json_array_size(rows);
    for (size_t k = 0; k < count; k++) {
      const char *status = text_of(json_array_get(rows, k), "status");
      done += !strcmp(status, "done");
      if (strcmp(status, "done")) assert_string_equal(status, "ended without a word");
    }
    if (i < WRITERS) assert_int_equal(done, RUNS);
    assert_true(count - done <= 1); /* A killed writer loses at most its current run. */
    json_decref(rows);
  }
  assert_string_equal(ask(root, "PRAGMA integrity_check"), "ok");
}

/* A run whose process was killed, and a run whose process number now belongs to another process. */
static void a_killed_run_is_told(void **state) {
  (void)state;
  char root[256], path[300];
  int status, ends[2];
  char byte;
  snprintf(root, sizeof root, "%s", fresh_root("killed"));
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    put(open_for(root, true), &RUN, NULL, NULL);
    if (write(ends[1], "x", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  assert_int_equal(read(ends[0], &byte, 1), 1);
  json_t *rows = rows_of(root, NULL);
  assert_string_equal(text_of(json_array_get(rows, 0), "status"), "running");
  json_decref(rows);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  close(ends[0]);
  close(ends[1]);
  for (int reused = 0; reused < 2; reused++) {
    rows = rows_of(root, NULL);
    assert_string_equal(text_of(json_array_get(rows, 0), "status"), "ended without a word");
    json_decref(rows);
    sqlite3 *db;
    char sql[80];
    snprintf(path, sizeof path, "%s/history.db", root);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    snprintf(sql, sizeof sql, "UPDATE runs SET pid = %d", (int)getpid());
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_come_back),          cmocka_unit_test(an_old_file_is_updated),
      cmocka_unit_test(wrong_files_are_refused), cmocka_unit_test(many_write_and_some_are_killed),
      cmocka_unit_test(a_killed_run_is_told),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
