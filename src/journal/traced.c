/* traced.c - see traced.h. */
#include "journal/traced.h"

#include "backend/mpi/link.h"
#include "journal/traced_ranks.h"
#include "report/trace_file.h"

#include <stdio.h>
#include <string.h>

rf_status rf_traced_open(const rf_options *options, rf_record **record, rf_error *error) {
  rf_trace_when when;
  *record = NULL;
  if (!rf_options_is_set(options, "trace")) return RAFTER_OK;
  RF_TRY(rf_trace_when_parse(rf_options_text(options, "trace"), &when, error));
  return rf_record_open(&when, (int)rf_options_int_or(options, "threads", omp_get_num_procs()), record,
                        error);
}

rf_status rf_traced_check(const rf_options *options, int64_t first, int64_t last, rf_error *error) {
  rf_trace_when when;
  RF_TRY(rf_trace_when_parse(rf_options_text(options, "trace"), &when, error));
  int64_t next = when.first >= first
                     ? when.first
                     : when.first + (first - when.first + when.stride - 1) / when.stride * when.stride;
  if (next <= last && next <= when.last) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "steps are counted from 1; a resumed run continues the count",
                 "--trace %s names none of the run's steps (expected some of %lld to %lld)",
                 rf_options_text(options, "trace"), (long long)first, (long long)last);
}

rf_status rf_traced_begin(const rf_options *options, const rf_record *record, rf_run *run, rf_error *error) {
  const rf_link *link = rf_link_of_process();
  const char *steps = record ? rf_options_text(options, "trace") : "";
  if (!link || link->ranks == 1) return RAFTER_OK;
  RF_TRY(rf_run_same(run, "another --trace", rf_name_key(steps), error));
  return record ? rf_clock_begin(error) : RAFTER_OK;
}

typedef void (*say_fn)(const rafter_sink *sink, const char *format, ...);

/* Prints one line with the causes of idle threads, in descending order of time. */
static void say_gaps(const rf_trace *trace, const char *of, const rafter_sink *sink, say_fn say) {
  double all = 0, between = 0, seconds[RF_GAPS] = {0}, work = 0, phases = 0;
  for (int s = 0; s < trace->steps; s++) {
    const rf_traced_step *step = &trace->step[s];
    const rf_traced_after *after = &step->after;
    if (!step->whole) continue;
    all += 1e-9 * (double)(after->end - step->begin) * trace->threads;
    between += 1e-9 * (double)(after->end - step->end) * trace->threads;
    work += step->work + after->work;
    phases += step->phases + after->phases;
    for (int g = 0; g < RF_GAPS; g++)
      seconds[g] += step->gaps[0][g] + step->gaps[1][g] + after->gaps[0][g] + after->gaps[1][g];
  }
  if (!(all > 0)) return;
  say(sink, "%s  %.1f %% of %s time in ops", trace->device ? "device " : "threads", 100 * work / all,
      trace->device ? "its" : "their");
  if (phases > 0.0005 * all) say(sink, ", %.1f %% in other phases", 100 * phases / all);
  bool taken[RF_GAPS] = {[RF_GAP_UNEXPLAINED] = true};
  for (int n = 0; n < RF_GAPS; n++) {
    int most = -1;
    for (int g = 0; g < RF_GAPS; g++)
      if (!taken[g] && (most < 0 || seconds[g] > seconds[most])) most = g;
    if (most < 0 || seconds[most] < 0.0005 * all) break;
    taken[most] = true;
    say(sink, ", %s %.1f %%", rf_gap_name((rf_gap)most), 100 * seconds[most] / all);
  }
  say(sink, "; unexplained %.2f %%", 100 * seconds[RF_GAP_UNEXPLAINED] / all);
  if (between > 0.0005 * all) say(sink, "; %.1f %% of the time is between %s", 100 * between / all, of);
  say(sink, "\n");
}

/* Prints where the trace is, and what the trace lacks. For several ranks, also prints how well
 * their clocks agree. */
static void say_trace(const rf_journal *journal, const rf_trace *trace, int in_json, say_fn say) {
  const rafter_sink *sink = journal->sink;
  const json_t *ranks = json_object_get(journal->traced, "ranks"), *rank;
  double error = 0;
  size_t r;
  char text[32];
  json_int_t dropped = json_integer_value(json_object_get(journal->traced, "dropped"));
  json_array_foreach ((json_t *)ranks, r, rank) {
    double own = rf_json_number_at(rank, "clock_error_seconds");
    if (own > error) error = own;
  }
  say(sink, "trace    %d steps, %lld spans in %s/trace.bin; trace.json there opens in Perfetto", trace->steps,
      (long long)json_integer_value(json_object_get(journal->traced, "count")), journal->folder);
  if (in_json < trace->steps)
    say(sink, ", with the first %d steps; `rafter report %s --perfetto FILE` writes all", in_json,
        journal->folder);
  if (dropped) say(sink, "; %lld older spans did not fit and were dropped", (long long)dropped);
  if (ranks)
    say(sink, "; it has %zu ranks, whose clocks agree within %s", json_array_size(ranks),
        rf_text_seconds(error, text));
  say(sink, "\n");
}

rf_status rf_traced_write(const rf_record *record, rf_journal *journal, const rf_report_pass *pass,
                          int passes, rf_error *error) {
  const rafter_sink *sink = journal->sink;
  say_fn say = journal->as_note ? rf_note : rf_say;
  const rf_plan *plans[4] = {NULL};
  const char *names[4] = {NULL};
  rf_trace *trace = NULL;
  /* a rank without a folder writes nothing, unless all ranks join their traces */
  if (!record || (!*journal->folder && !rf_clock_began())) return RAFTER_OK;
  if (passes > 4) passes = 4;
  for (int i = 0; i < passes; i++) {
    plans[i] = pass[i].plan;
    names[i] = pass[i].name;
  }
  RF_TRY(rf_trace_collect(record, plans, names, passes, &trace, error));
  bool trains = passes && plans[0]->options.build.job == RF_JOB_TRAIN, several = rf_clock_began();
  json_t *about = json_pack("{sO ss}", "command", json_object_get(journal->run, "command"), "model",
                            passes ? plans[0]->graph->model.name : "");
  int in_json = 0;
  rf_status status = RAFTER_OK;
  if (several) status = rf_traced_join(trace, about, journal->folder, &journal->traced, &in_json, error);
  else if (trace->steps) /* without steps, an old trace is kept */
    status = rf_trace_write(trace, about, journal->folder, &journal->traced, &in_json, error);
  json_decref(about);
  if (status == RAFTER_OK && journal->traced) {
    say_gaps(trace, trains ? "steps" : "walks", sink, say);
    say_trace(journal, trace, in_json, say);
  } else if (status == RAFTER_OK)
    say(sink, "hint: no step of --trace was reached; steps are counted from 1\n");
  rf_trace_free(trace);
  return status;
}

rf_status rf_traced_leave(const rf_traced_run *traced, const rf_options *options, const char *part,
                          json_t *results, const rafter_sink *sink, rf_error *error) {
  const rf_report_pass *pass = traced->pass;
  int passes = traced->passes;
  char folder[4096], path[4400];
  rf_journal journal = {.as_note = true};
  rf_status status = RAFTER_OK;
  if (!traced->record) return RAFTER_OK;
  RF_TRY(rf_journal_folder(options, folder, error));
  if (part) {
    size_t used = strlen(folder);
    snprintf(folder + used, sizeof folder - used, "/%s", part);
    RF_TRY(rf_make_folders(folder, error));
  }
  RF_GO(rf_journal_begin(&journal, sink, options, rf_options_json(options), folder, pass, passes, error));
  json_object_update(journal.results, results);
  json_t *report = rf_journal_report(traced->run, pass, passes);
  snprintf(path, sizeof path, "%s/report.json", folder);
  status = rf_json_write(path, report, 0, error);
  json_decref(report);
  if (status == RAFTER_OK) status = rf_traced_write(traced->record, &journal, pass, passes, error);
done:
  rf_journal_close(&journal, status, error);
  return status;
}

const rf_option RF_TRACE_OPTIONS[] = {
    RF_WORDS("trace", TEXT, "STEPS", NULL, "Output",
             "record what every thread does in these steps (without training: forward passes): steps=10..12, "
             "steps=10..100:10 or all"),
    {.name = NULL},
};
