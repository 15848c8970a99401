/* report.c - `rafter report RUN...`: shows runs and plans as one HTML page or one JSON object. */
#define _GNU_SOURCE
#include "api/api.h"
#include "journal/journal.h"

#include "advise/changes.h"
#include "base/text.h"
#include "report/compare.h"
#include "report/model.h"
#include "report/page.h"
#include "report/plans.h"
#include "report/samples.h"
#include "report/summary.h"
#include "report/thin.h"
#include "report/trace_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns the maximum number of rows of each list in a comparison. `entries` is the number of runs
 * and plans on the page. The limit keeps the page small enough for an e-mail. */
static size_t page_rows(size_t entries) { return entries < 4 ? 200 : entries < 6 ? 120 : 70; }

/* Plans the first run again with each change of --against. */
static rf_status add_against(const rf_options *o, json_t *model, rf_error *error) {
  int count = 0;
  const char *const *changes = rf_options_texts(o, "against", &count);
  for (int i = 0; i < count; i++) {
    const json_t *first = json_array_get(json_object_get(model, "runs"), 0);
    rafter_plan *made = NULL;
    json_t *plan = NULL;
    if (!first)
      return RF_FAIL(error, RAFTER_INVALID, "give the folder of a run",
                     "--against plans a run again, so it needs the folder of a run");
    RF_TRY(rf_plan_run_again(&RF_ALL_COMMANDS, first, changes[i], &made, error));
    rf_status status = rf_plan_object(made, &plan, error);
    if (status == RAFTER_OK) rf_report_name_plans(plan, made->plan, made->prefill);
    rafter_plan_free(made);
    RF_TRY(status);
    RF_TRY(
        rf_report_add_plan(model, changes[i], json_string_value(json_object_get(first, "id")), plan, error));
  }
  return RAFTER_OK;
}

/* Appends "-NAME" for each input after the first, as in "-lora-sweep". NAME is the input's name
 * without its folder and ".json". So a page of several inputs does not overwrite the page of the
 * first run. */
static void name_others(const rf_options *o, char names[100]) {
  for (int i = 1; i < rf_options_argument_count(o); i++) {
    const char *text = rf_options_argument(o, i), *end = text + strlen(text);
    while (end > text + 1 && end[-1] == '/') end--;
    const char *name = end;
    while (name > text && name[-1] != '/') name--;
    if (end - name > 5 && !strncmp(end - 5, ".json", 5)) end -= 5;
    rf_text_append(names, 100, "-%.*s", (int)(end - name), name);
  }
}

/* Writes the path of the page: the value of --out, or report.html, or report-OTHERS.html. The page
 * is in the folder of the first run. Without a run, the page is in the working directory. */
static void page_path(const rf_options *o, const json_t *model, char path[4200]) {
  const json_t *first = json_array_get(json_object_get(model, "runs"), 0);
  const char *folder = json_string_value(json_object_get(first, "folder"));
  char others[100] = "";
  if (folder) name_others(o, others);
  if (rf_options_is_set(o, "out")) snprintf(path, 4200, "%.4000s", rf_options_text(o, "out"));
  else snprintf(path, 4200, "%.4000s%sreport%s.html", folder ? folder : "", folder ? "/" : "", others);
}

/* Removes samples, so that the samples of all runs together have at most RF_SAMPLES_PAGE bytes. */
static void thin_samples(json_t *runs) {
  json_t *entry, *samples;
  size_t i, with = 0;
  json_array_foreach (runs, i, entry) with += json_object_get(entry, "samples") != NULL;
  json_array_foreach (runs, i, entry)
    if ((samples = json_object_get(entry, "samples")) != NULL)
      json_object_set_new(entry, "samples", rf_report_thin_samples(samples, RF_SAMPLES_PAGE / with));
}

/* Makes the JSON model of the page: adds comparisons, and drops some metrics and samples of long
 * runs. */
static json_t *page_model(const json_t *model) {
  json_t *shown = json_copy((json_t *)model), *runs = json_array(), *entry;
  size_t i;
  json_object_set_new(shown, "compare",
                      rf_report_comparisons(json_object_get(model, "runs"),
                                            page_rows(json_array_size(json_object_get(model, "runs")))));
  json_array_foreach (json_object_get(model, "runs"), i, entry)
    json_array_append_new(runs, rf_report_thin(entry));
  thin_samples(runs);
  json_object_set_new(shown, "runs", runs);
  return shown;
}

static rf_status write_page(const char *path, const json_t *model, const rafter_sink *sink, rf_error *error) {
  char size[32], *html = NULL;
  size_t bytes = 0;
  json_t *shown = page_model(model);
  rf_status status = rf_report_page_html(shown, &html, &bytes, error);
  json_decref(shown);
  RF_TRY(status);
  status = rf_file_write(path, html, bytes, error);
  free(html);
  if (status == RAFTER_OK) rf_say(sink, "%s (%s)\n", path, rf_text_bytes((double)bytes, size));
  return status;
}

/* Adds the summary of a run. A run that ended early has recorded no advice. So if this machine
 * makes the same plan for the run, computes the advice again. */
static void sum_up(json_t *entry) {
  json_t *advice = json_object_get(entry, "run") ? rf_advise_changes(&RF_ALL_COMMANDS, entry, 10) : NULL;
  if (json_array_size(advice) ||
      (advice && !json_array_size(json_object_get(json_object_get(entry, "measured"), "advice"))))
    json_object_set(entry, "advice", advice);
  json_decref(advice);
  json_object_set_new(entry, "summary", rf_report_summary(entry));
}

rf_status rf_report_write_plan(const char *path, const char *name, json_t *plan, const rafter_sink *sink,
                               rf_error *error) {
  json_t *model = rf_report_model();
  rf_status status = rf_report_add_plan(model, name, NULL, plan, error);
  if (status == RAFTER_OK) {
    sum_up(json_array_get(json_object_get(model, "runs"), 0));
    status = write_page(path, model, sink, error);
  }
  json_decref(model);
  return status;
}

/* Writes the trace for --perfetto and --csv. Takes the first run that has a trace. */
static rf_status write_traces(const rf_options *o, const json_t *model, const rafter_sink *sink,
                              rf_error *error) {
  static const struct {
    const char *option;
    rf_status (*write)(const rf_trace_file *file, const char *path, rf_error *error);
  } forms[] = {{"perfetto", rf_trace_file_chrome}, {"csv", rf_trace_file_csv}};
  const json_t *entry, *traced = NULL;
  char path[4400];
  rf_trace_file file;
  size_t i;
  if (!rf_options_is_set(o, "perfetto") && !rf_options_is_set(o, "csv")) return RAFTER_OK;
  json_array_foreach (json_object_get(model, "runs"), i, entry)
    if (!traced && json_object_get(entry, "trace")) traced = entry;
  if (!traced)
    return RF_FAIL(error, RAFTER_FAILED, "run the command again with --trace steps=10..12, or --trace all",
                   "no RUN has a trace (expected trace.bin in its folder)");
  snprintf(path, sizeof path, "%.4000s/trace.bin", json_string_value(json_object_get(traced, "folder")));
  RF_TRY(rf_trace_file_read(path, &file, error));
  rf_status status = RAFTER_OK;
  for (size_t f = 0; f < sizeof forms / sizeof *forms && status == RAFTER_OK; f++) {
    if (!rf_options_is_set(o, forms[f].option)) continue;
    status = forms[f].write(&file, rf_options_text(o, forms[f].option), error);
    if (status == RAFTER_OK) rf_say(sink, "%s\n", rf_options_text(o, forms[f].option));
  }
  rf_trace_file_free(&file);
  return status;
}

static rf_status rf_command_report(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  const rf_options *o = job->options;
  json_t *model = rf_report_model();
  rf_status status = RAFTER_OK;
  for (int i = 0; i < rf_options_argument_count(o); i++) {
    /* `folder`: folder of the run with this number in the history. `named`: folder with this
     * name. */
    char folder[4096], named[4400];
    snprintf(named, sizeof named, "%.300s/%.4000s", rf_runs_root(), rf_options_argument(o, i));
    *folder = 0;
    if (access(named, F_OK)) RF_GO(rf_runs_folder(rf_options_argument(o, i), folder, error));
    RF_GO(rf_report_add(model, rf_runs_root(), *folder ? folder : rf_options_argument(o, i), error));
  }
  RF_GO(add_against(o, model, error));
  for (size_t i = 0; i < json_array_size(json_object_get(model, "runs")); i++)
    sum_up(json_array_get(json_object_get(model, "runs"), i));
  bool json = rf_options_flag(o, "json");
  bool others = rf_options_is_set(o, "perfetto") || rf_options_is_set(o, "csv");
  RF_GO(write_traces(o, model, sink, error));
  char path[4200];
  page_path(o, model, path);
  for (int i = 0; i < rf_options_argument_count(o); i++)
    RF_GO(rf_out_is_not_input(path, rf_options_argument(o, i), error));
  if ((!json && !others) || rf_options_is_set(o, "out")) RF_GO(write_page(path, model, sink, error));
  if (json) {
    json_object_set_new(model, "compare", rf_report_comparisons(json_object_get(model, "runs"), 0));
    rf_put_json(sink, json_incref(model));
  }
done:
  json_decref(model);
  return status;
}

static const rf_option REPORT[] = {
    RF_WORDS("out", PATH, "FILE", NULL, "Output",
             "page to write; unset: report.html in the folder of the first RUN, report-SECOND.html for "
             "several, or none with --json"),
    RF_WORDS("against", TEXTS, "OPTION=VALUE", NULL, "Output",
             "plan the first RUN again with this change, and compare both plans; may be repeated"),
    RF_WORDS("perfetto", PATH, "FILE", NULL, "Output",
             "file for the trace of the first traced RUN as Chrome trace events, which Perfetto opens"),
    RF_WORDS("csv", PATH, "FILE", NULL, "Output",
             "file for the trace of --perfetto as CSV, one row per span"),
    {.name = NULL},
};

const rf_command RF_COMMAND_REPORT = {
    RF_COMMAND_HEAD("report", "RUN...", 1, 64, "Look",
                    "Write an HTML page about runs and plans: where memory and time went."),
    .options = {RF_TABLE(REPORT), RF_TABLE(RF_EVERY_OPTIONS)},
    .examples = {"report runs/3", "report runs/3 runs/4 --out both.html # two runs next to each other",
                 "report runs/3 --against dtype=bf16 # compare with a change"},
    .run = rf_command_report};
