/* history.c - see history.h. The database uses a rollback journal, and not a write-ahead log. So
 * the history is one file, and works on network file systems. A rollback journal is fast enough,
 * because a run makes only two short writes. */
#define _GNU_SOURCE
#include "report/history.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

enum { WAIT_MILLISECONDS = 10000 };

struct rf_history {
  sqlite3 *db; /* NULL: the history's file does not exist */
  char path[4400];
};

/* STEPS[i] is the SQL that updates a file from version i to i + 1. A new file runs all steps. */
static const char *const STEPS[RF_HISTORY_VERSION] = {
    "CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, started REAL NOT NULL, ended REAL, "
    "command TEXT NOT NULL, model TEXT NOT NULL, options TEXT NOT NULL, directory TEXT, folder TEXT, digest "
    "TEXT, machine TEXT, version TEXT, status TEXT NOT NULL CHECK (status IN ('running', 'done', 'failed', "
    "'interrupted')), message TEXT, results TEXT NOT NULL DEFAULT '{}');CREATE INDEX runs_by_model ON runs "
    "(model, machine);",
    "ALTER TABLE runs ADD COLUMN host TEXT; ALTER TABLE runs ADD COLUMN boot TEXT; ALTER TABLE runs ADD "
    "COLUMN pid INTEGER;ALTER TABLE runs ADD COLUMN process REAL;",
};

static rf_status failed(const rf_history *h, const char *what, rf_error *error) {
  return RF_FAIL(error, RAFTER_FAILED, "set RAFTER_RUNS to another folder for runs and their history",
                 "cannot %s the history of runs (%s: %s)", what, h->path,
                 h->db ? sqlite3_errmsg(h->db) : strerror(errno));
}

static rf_status run_sql(rf_history *h, const char *sql, const char *what, rf_error *error) {
  return sqlite3_exec(h->db, sql, NULL, NULL, NULL) == SQLITE_OK ? RAFTER_OK : failed(h, what, error);
}

static int64_t number_of(rf_history *h, const char *sql) {
  sqlite3_stmt *query = NULL;
  int64_t value = -1;
  if (sqlite3_prepare_v2(h->db, sql, -1, &query, NULL) == SQLITE_OK && sqlite3_step(query) == SQLITE_ROW)
    value = sqlite3_column_int64(query, 0);
  sqlite3_finalize(query);
  return value;
}

/* If two processes open an old file at once, the second process waits and then finds the file
 * updated. */
static rf_status update(rf_history *h, rf_error *error) {
  rf_status status = run_sql(h, "BEGIN IMMEDIATE", "update", error);
  if (status != RAFTER_OK) return status;
  int64_t version = number_of(h, "PRAGMA user_version");
  for (; status == RAFTER_OK && version < RF_HISTORY_VERSION; version++) {
    char sql[64];
    snprintf(sql, sizeof sql, "PRAGMA user_version = %lld", (long long)version + 1);
    status = run_sql(h, STEPS[version], "update", error);
    if (status == RAFTER_OK) status = run_sql(h, sql, "update", error);
  }
  if (status == RAFTER_OK) return run_sql(h, "COMMIT", "update", error);
  sqlite3_exec(h->db, "ROLLBACK", NULL, NULL, NULL);
  return status;
}

static rf_status check_version(rf_history *h, bool writes, rf_error *error) {
  int64_t version = number_of(h, "PRAGMA user_version"),
          tables = number_of(h, "SELECT count(*) FROM sqlite_master WHERE name = 'runs'");
  if (version < 0 || tables < 0) return failed(h, "read", error);
  if (version > RF_HISTORY_VERSION)
    return RF_FAIL(error, RAFTER_FAILED,
                   "use the version of rafter that wrote the file, or set RAFTER_RUNS to another folder",
                   "a newer rafter wrote the history of runs (%s: expected version %d at most, got %lld)",
                   h->path, RF_HISTORY_VERSION, (long long)version);
  if (version > 0 && !tables)
    return RF_FAIL(error, RAFTER_FAILED, "move the file away",
                   "%s is not a history of runs (it has no table \"runs\")", h->path);
  return writes && version < RF_HISTORY_VERSION ? update(h, error) : RAFTER_OK;
}

rf_status rf_history_open(const char *root, bool writes, rf_history **out, rf_error *error) {
  rf_status status = RAFTER_OK;
  struct stat info;
  rf_history *h = calloc(1, sizeof *h);
  if (!h) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while opening the history of runs");
  snprintf(h->path, sizeof h->path, "%.4000s/history.db", root);
  if (!writes && stat(h->path, &info) && errno == ENOENT) goto done;
  if (writes) RF_GO(rf_make_folders(root, error));
  /* Reading also needs write access, because SQLite may have to roll back a transaction of a killed
   * run. */
  int flags = SQLITE_OPEN_READWRITE | (writes ? SQLITE_OPEN_CREATE : 0);
  int opened = sqlite3_open_v2(h->path, &h->db, flags, NULL);
  if (opened != SQLITE_OK && !writes) {
    sqlite3_close(h->db);
    opened = sqlite3_open_v2(h->path, &h->db, SQLITE_OPEN_READONLY, NULL);
  }
  if (opened != SQLITE_OK) RF_GO(failed(h, "open", error));
  sqlite3_busy_timeout(h->db, WAIT_MILLISECONDS);
  RF_GO(check_version(h, writes, error));
done:
  if (status == RAFTER_OK) *out = h;
  else rf_history_close(h);
  return status;
}

void rf_history_close(rf_history *h) {
  if (!h) return;
  sqlite3_close(h->db);
  free(h);
}

/* ---- the process of a run -------------------------------------------------------------------- */

static void host_name(char host[256]) {
  if (gethostname(host, 256)) *host = 0;
  host[255] = 0;
}

static void boot_id(char boot[64]) {
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
  *boot = 0;
  if (!file) return;
  if (!fgets(boot, 64, file)) *boot = 0;
  boot[strcspn(boot, "\n")] = 0;
  fclose(file);
}

/* Returns the start of a process in clock ticks since boot, or -1 if the process does not exist.
 * The system may use a process id again, but then the start time differs. */
static double process_start(int64_t pid) {
  char path[64], line[1024];
  double start = -1;
  snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
  FILE *file = fopen(path, "re");
  if (!file) return -1;
  /* The process name is in parentheses. The name itself may contain blanks and parentheses. */
  char *at = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  if (at) start = strtod(at, NULL);
  fclose(file);
  return start;
}

/* True if a run that is marked as running may still run, or runs on another machine. */
static bool may_run(const char *host, const char *boot, int64_t pid, double process) {
  char here[256], now[64];
  if (!host || pid <= 0) return false; /* an entry of version 1 has no process */
  host_name(here);
  boot_id(now);
  if (strcmp(host, here)) return true;
  if (boot && *boot && *now && strcmp(boot, now)) return false;
  return process_start(pid) == process;
}

/* ---- writing --------------------------------------------------------------------------------- */

static double now_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void bind_text(sqlite3_stmt *query, int at, const char *text) {
  sqlite3_bind_text(query, at, text, -1, SQLITE_TRANSIENT);
}

/* Runs a statement that changes one row, in its own transaction. Frees the statement. */
static rf_status finish(rf_history *h, sqlite3_stmt *query, rf_error *error) {
  int code = sqlite3_step(query);
  rf_status status = code == SQLITE_DONE ? RAFTER_OK : failed(h, "write", error);
  sqlite3_finalize(query);
  return status;
}

rf_status rf_history_begin(rf_history *h, const rf_history_run *run, int64_t *id, rf_error *error) {
  sqlite3_stmt *query = NULL;
  char host[256], boot[64];
  host_name(host);
  boot_id(boot);
  if (sqlite3_prepare_v2(h->db,
                         "INSERT INTO runs (name, started, command, model, options, directory, folder, "
                         "digest, machine, version, host, boot, pid, process, results, status) VALUES (?, ?, "
                         "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'running')",
                         -1, &query, NULL) != SQLITE_OK)
    return failed(h, "write", error);
  const char *const texts[] = {run->command, run->model,   run->options, run->directory, run->folder,
                               run->digest,  run->machine, run->version, host,           boot};
  bind_text(query, 1, run->name);
  sqlite3_bind_double(query, 2, now_seconds());
  for (int i = 0; i < 10; i++) bind_text(query, 3 + i, texts[i]);
  sqlite3_bind_int64(query, 13, getpid());
  sqlite3_bind_double(query, 14, process_start(getpid()));
  char *results = run->results ? rf_json_text(run->results, 0) : NULL;
  bind_text(query, 15, results ? results : "{}");
  free(results);
  RF_TRY(finish(h, query, error));
  *id = sqlite3_last_insert_rowid(h->db);
  return RAFTER_OK;
}

rf_status rf_history_end(rf_history *h, int64_t id, const char *status, const char *message,
                         const json_t *results, rf_error *error) {
  sqlite3_stmt *query = NULL;
  char *text = rf_json_text(results, 0);
  if (sqlite3_prepare_v2(h->db,
                         "UPDATE runs SET ended = ?, status = ?, message = ?, results = ? WHERE id = ?", -1,
                         &query, NULL) != SQLITE_OK) {
    free(text);
    return failed(h, "write", error);
  }
  sqlite3_bind_double(query, 1, now_seconds());
  bind_text(query, 2, status);
  bind_text(query, 3, message && *message ? message : NULL);
  bind_text(query, 4, text ? text : "{}");
  sqlite3_bind_int64(query, 5, id);
  free(text);
  return finish(h, query, error);
}

rf_status rf_history_remove(rf_history *h, int64_t id, rf_error *error) {
  sqlite3_stmt *query = NULL;
  if (sqlite3_prepare_v2(h->db, "DELETE FROM runs WHERE id = ?", -1, &query, NULL) != SQLITE_OK)
    return failed(h, "write", error);
  sqlite3_bind_int64(query, 1, id);
  return finish(h, query, error);
}

/* ---- reading --------------------------------------------------------------------------------- */

static json_t *text_at(sqlite3_stmt *query, int column) {
  const char *text = (const char *)sqlite3_column_text(query, column);
  return text ? rf_json_bytes(text, (size_t)sqlite3_column_bytes(query, column)) : json_null();
}

static json_t *object_at(sqlite3_stmt *query, int column) {
  const char *text = (const char *)sqlite3_column_text(query, column);
  json_t *json = text ? json_loads(text, 0, NULL) : NULL;
  return json_is_object(json) ? json : (json_decref(json), json_object());
}

static json_t *real_at(sqlite3_stmt *query, int column) {
  return sqlite3_column_type(query, column) == SQLITE_NULL ? json_null()
                                                           : json_real(sqlite3_column_double(query, column));
}

/* Returns a row of a query whose columns are in the order of COLUMNS. */
static json_t *row_of(sqlite3_stmt *query) {
  const char *status = (const char *)sqlite3_column_text(query, 11),
             *folder = (const char *)sqlite3_column_text(query, 7);
  const char *host = (const char *)sqlite3_column_text(query, 14),
             *boot = (const char *)sqlite3_column_text(query, 15);
  struct stat info;
  if (!status) status = "";
  if (!strcmp(status, "running") &&
      !may_run(host, boot, sqlite3_column_int64(query, 16), sqlite3_column_double(query, 17)))
    status = "ended without a word";
  json_t *row = json_pack("{sI so so so so so so so so so so ss so so so}", "id",
                          (json_int_t)sqlite3_column_int64(query, 0), "name", text_at(query, 1), "started",
                          real_at(query, 2), "ended", real_at(query, 3), "command", text_at(query, 4),
                          "model", text_at(query, 5), "directory", text_at(query, 6), "folder",
                          text_at(query, 7), "digest", text_at(query, 8), "machine", text_at(query, 9),
                          "version", text_at(query, 10), "status", status, "message", text_at(query, 12),
                          "results", object_at(query, 13), "host", text_at(query, 14));
  /* If several runs used a folder, the folder belongs to the latest of these runs. */
  int64_t last = sqlite3_column_int64(query, 19);
  bool taken = last > sqlite3_column_int64(query, 0);
  if (row && folder)
    json_object_set_new(row, "folder_is_there", json_boolean(!taken && !stat(folder, &info)));
  if (row && taken) json_object_set_new(row, "folder_taken_by", json_integer(last));
  return row;
}

static const char COLUMNS[] = "id, name, started, ended, command, model, directory, folder, digest, machine, "
                              "version, status, message, results";

rf_status rf_history_rows(rf_history *h, const rf_history_filter *f, json_t **rows, rf_error *error) {
  rf_history_filter any = {0};
  sqlite3_stmt *query = NULL;
  char sql[1024], path[128] = "";
  int code;
  if (!f) f = &any;
  *rows = json_array();
  if (!h->db || number_of(h, "PRAGMA user_version") == 0) return RAFTER_OK;
  /* A read-only file of version 1 lacks the columns for a run's process. */
  bool owners = number_of(h, "PRAGMA user_version") >= 2;
  if (f->metric) snprintf(path, sizeof path, "$.\"%.100s\"", f->metric);
  snprintf(
      sql, sizeof sql,
      "SELECT %s, %s, options, last FROM runs LEFT JOIN (SELECT folder AS place, max(id) AS last FROM runs "
      "WHERE folder IS NOT NULL GROUP BY folder) ON place = folder WHERE (?1 IS NULL OR instr(model, ?1)) "
      "AND (?2 IS NULL OR instr(machine, ?2)) AND (?3 IS NULL OR command = ?3) AND (?4 = '' OR (status = "
      "'done' AND CASE WHEN json_valid(results) THEN json_type(results, ?4) END IN ('integer', 'real'))) AND "
      "(?5 = 0 OR id = ?5) AND (?6 IS NULL OR name = ?6 OR folder = ?6) ORDER BY id DESC",
      COLUMNS, owners ? "host, boot, pid, process" : "NULL, NULL, 0, 0");
  if (sqlite3_prepare_v2(h->db, sql, -1, &query, NULL) != SQLITE_OK) return failed(h, "read", error);
  bind_text(query, 1, f->model);
  bind_text(query, 2, f->machine);
  bind_text(query, 3, f->command);
  bind_text(query, 4, path);
  sqlite3_bind_int64(query, 5, f->id);
  bind_text(query, 6, f->name);
  while ((code = sqlite3_step(query)) == SQLITE_ROW) {
    json_t *row = row_of(query);
    json_object_set_new(row, "options", object_at(query, 18));
    json_array_append_new(*rows, row);
  }
  rf_status status = code == SQLITE_DONE ? RAFTER_OK : failed(h, "read", error);
  sqlite3_finalize(query);
  if (status != RAFTER_OK) {
    json_decref(*rows);
    *rows = NULL;
  }
  return status;
}
