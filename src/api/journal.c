/* journal.c - see journal.h. */
#define _GNU_SOURCE
#include "api/journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static json_t *plan_of(const rf_report_walk *walk, const char *job, const rf_plan *prefill) {
  rf_report_plan report = {.plan = walk->plan, .prefill = prefill, .job = job, .tensors = true, .ops = true};
  json_t *json = rf_report_plan_json(&report);
  if (json) json_object_set_new(json, "name", json_string(walk->name));
  return json;
}

static const char *job_of(const rf_plan *plan) {
  static const char *const names[] = {[RF_JOB_TRAIN] = "train", [RF_JOB_GENERATE] = "generate", [RF_JOB_SCORE] = "score"};
  return names[plan->options.build.job];
}

static json_t *plans_json(const rf_report_walk *walk, int walks) {
  const rf_plan *prefill = NULL;
  for (int i = 1; i < walks; i++)
    if (!strcmp(walk[i].name, "prefill")) prefill = walk[i].plan;
  json_t *json = plan_of(&walk[0], job_of(walk[0].plan), prefill), *others = json_array();
  for (int i = 1; i < walks; i++) json_array_append_new(others, plan_of(&walk[i], job_of(walk[i].plan), NULL));
  if (walks > 1) json_object_set_new(json, "plans", others);
  else json_decref(others);
  return json;
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
  rf_status status = json ? rf_json_write(path, json, indent, error) : RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while recording a run");
  json_decref(json);
  return status;
}

rf_status rf_journal_begin(rf_journal *journal, const rafter_sink *sink, const char *command, json_t *options, const char *folder,
                           const rf_report_walk *walk, int walks, rf_error *error) {
  const rf_plan *plan = walk[0].plan;
  char now[32], *here = getcwd(NULL, 0);
  *journal = (rf_journal){.sink = sink};
  snprintf(journal->folder, sizeof journal->folder, "%s", folder);
  now_text(now);
  json_t *run = json_pack("{ss ss so ss ss si ss ss?}", "rafter", rafter_version(), "command", command, "options", options, "digest", plan->digest,
                          "machine", plan->machine.name, "threads", plan->options.threads, "started", now, "directory", here);
  free(here);
  if (!*folder) {
    json_decref(run);
    return RAFTER_OK;
  }
  RF_TRY(write_in(folder, "run.json", run, 1, error));
  return write_in(folder, "plan.json", plans_json(walk, walks), 0, error);
}

json_t *rf_journal_report(const rf_run *run, const rf_report_walk *walk, int walks) {
  json_t *list = json_array();
  for (int i = 0; i < walks; i++)
    if (walk[i].count) json_array_append_new(list, rf_report_walk_json(&walk[i]));
  return json_pack("{ss sI sI ss so so}", "rafter", RF_VERSION, "arena_bytes", (json_int_t)rf_run_arena_bytes(run), "peak_bytes",
                   (json_int_t)walk[0].plan->arena_bytes, "digest", walk[0].plan->digest, "ops",
                   rf_report_measured_json(walk[0].plan, walk[0].measured), "walks", list);
}

rf_status rf_journal_write_report(const rf_journal *journal, const json_t *report, rf_error *error) {
  return *journal->folder ? write_in(journal->folder, "report.json", json_incref((json_t *)report), 0, error) : RAFTER_OK;
}
