/* journal.c - see journal.h. */
#define _GNU_SOURCE
#include "journal/journal.h"

#include "advise/changes.h"
#include "report/history.h"
#include "report/plans.h"
#include "report/summary.h"
#include "run/waits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *rf_runs_root(void) {
  const char *root = getenv("RAFTER_RUNS");
  return root && *root ? root : "runs";
}

void rf_journal_name_folder(const rf_options *o, char folder[4096]) {
  char stamp[32];
  time_t now = time(NULL);
  struct tm broken;
  localtime_r(&now, &broken);
  strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &broken);
  const char *model = rf_options_argument(o, 0), *slash = model ? strrchr(model, '/') : NULL,
             *base = slash && slash[1] ? slash + 1 : model;
  snprintf(folder, 4096, "%.3800s/%s-%.*s", rf_runs_root(), stamp, (int)strcspn(base ? base : "model", ":/"),
           base ? base : "model");
}

/* If a run starts in the same second as another run, -2, -3 and so on is appended to its name. */
rf_status rf_journal_make_folder(const rf_options *o, char folder[4096], rf_error *error) {
  char name[4000];
  rf_journal_name_folder(o, folder);
  snprintf(name, sizeof name, "%.3990s", folder);
  RF_TRY(rf_make_folders(rf_runs_root(), error));
  for (int n = 2; mkdir(folder, 0777); n++) {
    if (errno != EEXIST)
      return RF_FAIL(error, RAFTER_FAILED, NULL, "cannot make the folder %s (%s)", folder, strerror(errno));
    snprintf(folder, 4096, "%s-%d", name, n);
  }
  return RAFTER_OK;
}

rf_status rf_journal_folder(const rf_options *o, char folder[4096], rf_error *error) {
  /* If --out comes from a run.json, the value is the folder of the old run, and not of this run. */
  bool out = rf_options_knows(o, "out") && rf_options_source(o, "out") == RF_OPTION_GIVEN;
  bool traced = rf_options_knows(o, "trace") && rf_options_is_set(o, "trace");
  char path[4200];
  *folder = 0;
  if (out) snprintf(folder, 4096, "%s", rf_options_text(o, "out"));
  else if (traced) return rf_journal_make_folder(o, folder, error);
  snprintf(path, sizeof path, "%s/run.json", folder);
  if (*folder && !access(path, F_OK))
    return RF_FAIL(error, RAFTER_FAILED, "choose another --out, or remove the folder",
                   "%s holds a run already", folder);
  return *folder ? rf_make_folders(folder, error) : RAFTER_OK;
}

/* 2026-11-21T23:37:16Z */
static void now_text(char text[32]) {
  struct tm broken;
  time_t now = time(NULL);
  gmtime_r(&now, &broken);
  strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", &broken);
}

static rf_status write_in(const char *folder, const char *name, json_t *json, int indent, rf_error *error) {
  char path[4200];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  rf_status status = json ? rf_json_write(path, json, indent, error)
                          : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while recording a run");
  json_decref(json);
  return status;
}

/* ---- the history (an error while writing its row does not stop the run) ---------------------- */

/* True if a history is kept, that is, if $RAFTER_RUNS is not empty. If $RAFTER_RUNS is unset, the
 * sink decides. */
static bool keeps_history(const rafter_sink *sink) {
  const char *root = getenv("RAFTER_RUNS");
  return root ? *root : sink->history;
}

/* The null backend computes nothing, so its runs are not worth comparing. */
static bool computes(const rf_plan *plan) { return plan->options.backend->device != NULL; }

static void begin_history(rf_journal *journal, const char *command, const rf_plan *plan) {
  rf_history *history = NULL;
  rf_error error = {0};
  const json_t *options = json_object_get(journal->run, "options");
  const char *model = json_string_value(json_object_get(options, "model")),
             *slash = strrchr(journal->folder, '/');
  char *text = rf_json_text(options, 0), *folder = *journal->folder ? realpath(journal->folder, NULL) : NULL;
  rf_history_run run = {.name = slash && slash[1]  ? slash + 1
                                : *journal->folder ? journal->folder
                                                   : NULL,
                        .command = command,
                        .model = model ? model : plan->graph->model.name,
                        .options = text ? text : "{}",
                        .directory = json_string_value(json_object_get(journal->run, "directory")),
                        .folder = folder,
                        .digest = plan->digest,
                        .machine = plan->machine.name,
                        .version = rafter_version(),
                        .results = journal->results};
  rf_status status = rf_history_open(rf_runs_root(), true, &history, &error);
  if (status == RAFTER_OK) status = rf_history_begin(history, &run, &journal->id, &error);
  if (status != RAFTER_OK) rf_note(journal->sink, "warning: %s\n", error.message);
  rf_history_close(history);
  free(text);
  free(folder);
}

static void end_history(const rf_journal *journal, rf_status status, const char *message) {
  rf_history *history = NULL;
  rf_error error = {0};
  const char *how = status == RAFTER_OK ? "done" : status == RAFTER_INTERRUPTED ? "interrupted" : "failed";
  rf_status wrote = rf_history_open(rf_runs_root(), true, &history, &error);
  if (wrote == RAFTER_OK)
    wrote = rf_history_end(history, journal->id, how, message, journal->results, &error);
  if (wrote != RAFTER_OK) rf_note(journal->sink, "warning: %s\n", error.message);
  rf_history_close(history);
}

/* If a run resumes with another plan, the old report and trace describe other ops. Renames them. */
static void set_aside(const char *folder, const char *digest) {
  static const char *const NAMES[] = {"report.json", "trace.bin", "trace.json"};
  char from[4200], to[4200];
  rf_error error = {0};
  json_t *before = NULL;
  snprintf(from, sizeof from, "%s/run.json", folder);
  if (access(from, F_OK) || rf_json_read(from, (size_t)1 << 20, &before, &error) != RAFTER_OK) return;
  const char *was = json_string_value(json_object_get(before, "digest"));
  for (size_t i = 0; was && strcmp(was, digest) && i < sizeof NAMES / sizeof *NAMES; i++) {
    snprintf(from, sizeof from, "%s/%s", folder, NAMES[i]);
    snprintf(to, sizeof to, "%s/before-%s", folder, NAMES[i]);
    rename(from, to); /* may fail, because many runs have no trace */
  }
  json_decref(before);
}

/* ---- a run ----------------------------------------------------------------------------------- */

rf_status rf_journal_begin(rf_journal *journal, const rafter_sink *sink, const rf_options *o, json_t *options,
                           const char *folder, const rf_report_pass *pass, int passes, rf_error *error) {
  const rf_plan *plan = pass[0].plan;
  char now[32], *here = getcwd(NULL, 0);
  *journal = (rf_journal){.sink = sink,
                          .as_note = journal->as_note,
                          .unlisted = journal->unlisted,
                          .commands = rf_options_commands(o)};
  const char *command = rf_options_command(o);
  journal->table =
      !rf_options_knows(o, "stats") || rf_options_flag(o, "stats") || rf_options_flag(o, "verbose");
  snprintf(journal->folder, sizeof journal->folder, "%s", folder);
  /* The last part of the path is the name of the run, so the path must not end with a slash. */
  for (size_t n = strlen(journal->folder); n > 1 && journal->folder[n - 1] == '/'; n--)
    journal->folder[n - 1] = 0;
  now_text(now);
  journal->run = json_pack("{ss ss so ss ss si ss so*}", "rafter", rafter_version(), "command", command,
                           "options", options, "digest", plan->digest, "machine", plan->machine.name,
                           "threads", plan->options.threads, "started", now, "directory",
                           here ? rf_json_bytes(here, strlen(here)) : NULL);
  free(here);
  int64_t peak = 0; /* number of bytes of the largest arena */
  for (int i = 0; i < passes; i++) peak = pass[i].plan->arena_bytes > peak ? pass[i].plan->arena_bytes : peak;
  journal->results = json_pack("{sI sf sf}", "peak_bytes", (json_int_t)peak, "predicted_seconds",
                               plan->step_seconds, "predicted_tokens_per_second",
                               plan->step_seconds > 0 ? rf_plan_tokens(plan) / plan->step_seconds : 0);
  if (!journal->run || !journal->results)
    return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while recording a run");
  if (*folder) {
    set_aside(folder, plan->digest);
    RF_TRY(write_in(folder, "run.json", json_incref(journal->run), 1, error));
    RF_TRY(write_in(folder, "plan.json", rf_report_plans_json(pass, passes), 0, error));
  }
  if (!journal->unlisted && keeps_history(sink) && computes(plan)) begin_history(journal, command, plan);
  journal->began = rf_now_seconds();
  journal->delayed = rf_run_delayed();
  return RAFTER_OK;
}

json_t *rf_journal_report(const rf_run *run, const rf_report_pass *pass, int passes) {
  json_t *list = json_array();
  for (int i = 0; i < passes; i++)
    if (pass[i].count) json_array_append_new(list, rf_report_pass_json(&pass[i]));
  return json_pack("{ss sI sI ss so so}", "rafter", RF_VERSION, "arena_bytes",
                   (json_int_t)rf_run_arena_bytes(run), "peak_bytes", (json_int_t)pass[0].plan->arena_bytes,
                   "digest", pass[0].plan->digest, "ops",
                   rf_report_measured_json(pass[0].plan, pass[0].measured), "walks", list);
}

/* Copies the figures by which runs are often compared. Existing figures of the command are kept. */
static void take_results(json_t *results, const json_t *summary, double seconds) {
  const json_t *pass = json_array_get(json_object_get(summary, "walks"), 0),
               *rate = json_object_get(pass, "rate");
  json_t *found = json_pack("{sf sO? sO? sO? sO? sO? sO? sO?}", "seconds", seconds, "walks",
                            json_object_get(pass, "count"), "walk_seconds", json_object_get(pass, "seconds"),
                            "predicted_seconds", json_object_get(pass, "predicted_seconds"), "limit_seconds",
                            json_object_get(pass, "limit_seconds"), "tokens_per_second",
                            json_object_get(rate, "tokens_per_second"), "predicted_tokens_per_second",
                            json_object_get(rate, "predicted"), "bound", json_object_get(summary, "bound"));
  json_object_update(results, found);
  json_decref(found);
}

static void print_summary(const rf_journal *journal, const json_t *summary) {
  char *text = rf_report_summary_text(summary);
  if (journal->as_note) {
    rf_note(journal->sink, "\n%s", text ? text : "");
    free(text);
  } else {
    rf_say(journal->sink, "\n");
    rf_say_text(journal->sink, text);
  }
}

static json_t *rank_json(const rf_rank_waits *w) {
  json_t *rank =
      json_pack("{ss sf sf sf sf sf sf sf sf sI sI si}", "host", w->host, "exchanges", w->exchanges,
                "exchange_seconds", w->seconds, "slow_rank_seconds", w->late, "network_seconds", w->network,
                "stage_seconds", w->stages, "between_seconds", w->between, "work_seconds", w->work,
                "step_work_seconds", w->steps.mean, "planned_bytes", (json_int_t)w->planned_bytes,
                "allocated_bytes", (json_int_t)w->allocated_bytes, "threads", (int)w->threads);
  if (rf_guard_built()) json_object_set_new(rank, "library_allocations", json_real(w->allocations));
  return rank;
}

/* Adds the table of ranks, for a run on ranks of MPI. */
static void add_ranks(json_t *report) {
  int ranks;
  double seconds, excess, noise;
  const rf_rank_waits *waits = rf_waits_of_ranks(&ranks, &seconds);
  if (!ranks) return;
  json_t *list = json_array();
  for (int i = 0; i < ranks; i++) json_array_append_new(list, rank_json(&waits[i]));
  json_t *table = json_pack("{sf so}", "seconds", seconds, "waits", list);
  int slowest = rf_waits_slowest(waits, ranks, &excess, &noise);
  if (slowest >= 0)
    json_object_set_new(
        table, "slowest",
        json_pack("{si sf sf}", "rank", slowest, "excess_seconds", excess, "noise_seconds", noise));
  json_object_set_new(report, "ranks", table);
}

rf_status rf_journal_sum_up(rf_journal *journal, const rf_run *run, const rf_report_pass *pass, int passes,
                            double seconds, rf_error *error) {
  bool quiet = json_is_true(json_object_get(json_object_get(journal->run, "options"), "quiet"));
  if (!computes(pass[0].plan))
    return rf_say(journal->sink, "\nnothing was computed: --backend %s only executes the plan\n",
                  pass[0].plan->options.backend->name),
           RAFTER_OK;
  if ((quiet || !journal->table) && !*journal->folder && !journal->id)
    return RAFTER_OK; /* nobody reads the report */
  json_t *report = rf_journal_report(run, pass, passes), *plan = rf_report_plans_json(pass, passes);
  json_t *entry = json_pack("{ss sO sO sO}", "id", "", "run", journal->run, "plan", plan, "measured", report);
  if (entry && journal->traced)
    json_object_set_new(entry, "trace", json_pack("{sO}", "header", journal->traced));
  rf_outside outside;
  rf_status status =
      entry ? RAFTER_OK : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while summarizing a run");
  RF_GO(status);
  if (rf_run_outside(run, &outside, NULL) == RAFTER_OK)
    json_object_set_new(report, "outside_arena_bytes",
                        json_pack("{sI}", "total", (json_int_t)outside.outside_bytes));
  double delayed = rf_run_delayed();
  if (journal->delayed >= 0 && delayed >= journal->delayed)
    json_object_set_new(report, "others",
                        json_pack("{sf sf sf si}", "seconds", rf_now_seconds() - journal->began,
                                  "delayed_seconds", delayed - journal->delayed, "reduced_seconds",
                                  rf_run_reduced_seconds(run), "threads", pass[0].plan->options.threads));
  add_ranks(report);
  /* After a short run, advice gets little time: `rafter report` can compute all of it later. */
  double patience = 0.02 * seconds < 0.05 ? 0.05 : 0.02 * seconds < 2 ? 0.02 * seconds : 2;
  json_object_set_new(report, "advice", rf_advise_changes(journal->commands, entry, patience));
  json_t *summary = rf_report_summary(entry);
  json_object_set_new(report, "summary", summary);
  take_results(journal->results, summary, seconds);
  if (journal->table) print_summary(journal, summary);
  if (*journal->folder) status = write_in(journal->folder, "report.json", json_incref(report), 0, error);
done:
  json_decref(entry);
  json_decref(report);
  json_decref(plan);
  return status;
}

void rf_journal_close(rf_journal *journal, rf_status status, const rf_error *error) {
  if (journal->id) end_history(journal, status, error && status != RAFTER_OK ? error->message : NULL);
  json_decref(journal->run);
  json_decref(journal->results);
  json_decref(journal->traced);
  *journal = (rf_journal){0};
}

const rf_option RF_RUN_FOLDER_OPTIONS[] = {
    RF_WORDS("out", PATH, "DIR", NULL, "Output", "folder of the run; unset: runs/ID"),
    {.name = NULL},
};

const rf_option RF_LEFT_FOLDER_OPTIONS[] = {
    RF_WORDS("out", PATH, "DIR", NULL, "Output",
             "folder for the record of the run, for `rafter report`; unset: none (runs/ID with --trace)"),
    RF_FLAG("stats", "Output",
            "print a table of the time by kind of op: measured, predicted and the machine's limit"),
    {.name = NULL},
};
