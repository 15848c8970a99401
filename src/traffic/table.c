/* table.c - see result.h: the results of a test as text. */
#include "traffic/result.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "report/report.h"

static const char *const TITLES[RF_TRAFFIC_METRICS] = {"TTFT", "TPOT", "ITL", "E2EL"};

/* ---- one run --------------------------------------------------------------------------------- */

static void say_number(const rafter_sink *sink, const char *name, bool planned, double measured,
                       double predicted) {
  char a[32], b[32];
  rf_say(sink, "%-18s %12s", name, rf_text_count(measured, a));
  if (planned) rf_say(sink, " %12s", rf_text_count(predicted, b));
  rf_say(sink, "\n");
}

static void say_rates(const rafter_sink *sink, const rf_traffic_results *r, const rf_traffic_row *row) {
  const rf_traffic_stats *m = &row->measured, *p = &row->predicted;
  const double seconds = m->seconds, planned = p->seconds > 0 ? p->seconds : 1;
  rf_say(sink, "\n%-18s %12s%s\n", "", "measured", row->has_plan ? "      planned" : "");
  say_number(sink, "requests/s", row->has_plan, (double)m->completed / seconds,
             (double)p->completed / planned);
  if (r->slo.given)
    say_number(sink, "good requests/s", row->has_plan, (double)m->good / seconds, (double)p->good / planned);
  say_number(sink, "output tokens/s", row->has_plan, rf_traffic_token_rate(m), rf_traffic_token_rate(p));
  say_number(sink, "total tokens/s", row->has_plan, (double)(m->input_tokens + m->output_tokens) / seconds,
             (double)(p->input_tokens + p->output_tokens) / planned);
  say_number(sink, "mean batch", row->has_plan, m->batch, p->batch);
  say_number(sink, "mean queue", row->has_plan, m->queue, p->queue);
  if (row->watched.samples) {
    say_number(sink, "server: running", false, row->watched.running, 0);
    say_number(sink, "server: waiting", false, row->watched.waiting, 0);
  }
  if (r->usd_per_hour > 0)
    say_number(sink, "$/Mtok", row->has_plan, rf_traffic_usd(r, m), rf_traffic_usd(r, p));
}

static void say_metric(const rafter_sink *sink, const char *name, const rf_traffic_metric *m,
                       const rf_traffic_percentiles *p) {
  char text[32];
  rf_say(sink, "%-18s %12s", name, rf_text_seconds(m->mean, text));
  for (int i = 0; i < p->count; i++) rf_say(sink, " %12s", rf_text_seconds(m->p[i], text));
  rf_say(sink, "\n");
}

static void say_latencies(const rafter_sink *sink, const rf_traffic_results *r, const rf_traffic_row *row) {
  char name[40], p[32];
  rf_say(sink, "\n%-18s %12s", "", "mean");
  for (int i = 0; i < r->percentiles.count; i++) {
    snprintf(name, sizeof name, "p%s", rf_traffic_percentile_name(r->percentiles.p[i], p));
    rf_say(sink, " %12s", name);
  }
  rf_say(sink, "\n");
  for (int m = 0; m < RF_TRAFFIC_METRICS; m++) {
    if (row->measured.metric[m].count) say_metric(sink, TITLES[m], &row->measured.metric[m], &r->percentiles);
    if (row->has_plan && row->predicted.metric[m].count)
      say_metric(sink, "  planned", &row->predicted.metric[m], &r->percentiles);
  }
}

static void say_faults(const rafter_sink *sink, const rf_traffic_row *row) {
  enum { SHOWN = 8 };
  size_t i;
  json_t *fault;
  json_array_foreach (row->faults, i, fault) {
    if (i == SHOWN) break;
    rf_say(sink, "%s%lld x %s%s%s\n", i ? "          " : "errors    ",
           (long long)json_integer_value(json_object_get(fault, "count")), rf_json_text_at(fault, "kind"),
           *rf_json_text_at(fault, "message") ? ": " : "", rf_json_text_at(fault, "message"));
  }
}

static void say_notes(const rafter_sink *sink, const rf_traffic_row *row) {
  const rf_traffic_stats *m = &row->measured;
  char text[32];
  if (m->uncounted)
    rf_say(sink, "note      %lld answer%s without a usage: each event counts as a token\n",
           (long long)m->uncounted, rf_plural(m->uncounted));
  if (m->latest_late > 0.01)
    rf_say(sink,
           "note      requests were sent up to %s after their planned time; latencies include this delay\n",
           rf_text_seconds(m->latest_late, text));
  if (m->saturated)
    rf_say(sink,
           "note      the server does not keep up: requests pile up or fail, and waiting times grow with "
           "--requests\n");
}

static void say_run(const rafter_sink *sink, const rf_traffic_results *r) {
  const rf_traffic_row *row = &r->row[0];
  const rf_traffic_stats *m = &row->measured;
  char text[32];
  rf_say(sink, "requests  %lld completed, %lld failed", (long long)m->completed, (long long)m->failed);
  if (m->cancelled) rf_say(sink, ", %lld cancelled", (long long)m->cancelled);
  rf_say(sink, " in %s\n", rf_text_seconds(m->seconds, text));
  say_faults(sink, row);
  if (m->completed) {
    say_rates(sink, r, row);
    say_latencies(sink, r, row);
    rf_say(sink, "\n");
  }
  say_notes(sink, row);
}

/* ---- rates ----------------------------------------------------------------------------------- */

static void say_row(const rafter_sink *sink, const rf_traffic_results *r, const rf_traffic_row *row,
                    const rf_traffic_stats *s, bool planned) {
  const rf_traffic_metric *first = &s->metric[RF_TRAFFIC_TTFT], *next = &s->metric[RF_TRAFFIC_TPOT];
  char a[32], b[32], c[32], d[32], e[32], rate[32] = "  plan", f[32];
  if (!planned) snprintf(rate, sizeof rate, "%.4g", row->rate);
  rf_say(sink, "%8s %8.3g %9s %9s %9s %9s %9s %7.3g %7.3g", rate,
         s->seconds > 0 ? (double)s->completed / s->seconds : 0, rf_text_count(rf_traffic_token_rate(s), a),
         rf_text_seconds(first->median, b), rf_text_seconds(first->p99, c), rf_text_seconds(next->median, d),
         rf_text_seconds(next->p99, e), s->batch, s->queue);
  if (r->usd_per_hour > 0) {
    const double usd = rf_traffic_usd(r, s);
    rf_say(sink, " %9.3g %9s", usd, usd > 0 ? rf_text_count(1e6 / usd, f) : "-");
  }
  rf_say(sink, "  %s", s->saturated ? "no" : "yes");
  if (!planned && s->failed) rf_say(sink, ", %lld failed", (long long)s->failed);
  rf_say(sink, "\n");
}

static void say_critical(const rafter_sink *sink, const rf_traffic_results *r) {
  rf_say(sink, "\ncritical rate  ");
  if (!(r->critical > 0)) rf_say(sink, "below these rates");
  else rf_say(sink, "%s%.4g requests/s", r->bounded ? "" : "at least ", r->critical);
  if (r->planned_critical > 0) rf_say(sink, " (planned %.4g)", r->planned_critical);
  rf_say(sink, "\n");
}

static void say_rows(const rafter_sink *sink, const rf_traffic_results *r) {
  rf_say(sink, "\n%8s %8s %9s %9s %9s %9s %9s %7s %7s", "rate/s", "done/s", "tokens/s", "TTFT p50",
         "TTFT p99", "TPOT p50", "TPOT p99", "batch", "queue");
  if (r->usd_per_hour > 0) rf_say(sink, " %9s %9s", "$/Mtok", "tokens/$");
  rf_say(sink, "  keeps up\n");
  for (int i = 0; i < r->rows; i++) {
    say_row(sink, r, &r->row[i], &r->row[i].measured, false);
    if (r->row[i].has_plan) say_row(sink, r, &r->row[i], &r->row[i].predicted, true);
  }
  say_critical(sink, r);
  for (int i = 0; i < r->rows; i++) {
    if (!json_array_size(r->row[i].faults)) continue;
    rf_say(sink, "at %.4g requests/s:\n", r->row[i].rate);
    say_faults(sink, &r->row[i]);
  }
}

void rf_traffic_say_results(const rafter_sink *sink, const rf_traffic_results *r) {
  rf_say(sink, "server    %s, model %s\nload      %s\n", r->server, r->model, r->load);
  if (r->plan) rf_say(sink, "plan      %s\n", r->plan);
  if (r->rates) say_rows(sink, r);
  else say_run(sink, r);
}
