/* stats.c - see stats.h. */
#include "traffic/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"

static const char *const NAMES[RF_TRAFFIC_METRICS] = {"ttft", "tpot", "itl", "e2el"};

char *rf_traffic_percentile_name(double p, char text[32]) {
  snprintf(text, 32, "%.6g", p);
  return text;
}

/* ---- numbers --------------------------------------------------------------------------------- */

double rf_traffic_percentile(const double *sorted, int64_t count, double p) {
  if (count < 1) return 0;
  double rank = (double)(count - 1) * p / 100;
  int64_t low = (int64_t)rank, high = low + 1 < count ? low + 1 : low;
  return sorted[low] + (sorted[high] - sorted[low]) * (rank - (double)low);
}

rf_traffic_metric rf_traffic_metric_of(double *value, int64_t count, const rf_traffic_percentiles *p) {
  rf_traffic_metric m = {.count = count};
  double squares = 0;
  if (!count) return m;
  qsort(value, (size_t)count, sizeof *value, rf_compare_doubles);
  for (int64_t i = 0; i < count; i++) m.mean += value[i];
  m.mean /= (double)count;
  for (int64_t i = 0; i < count; i++) squares += (value[i] - m.mean) * (value[i] - m.mean);
  m.std = sqrt(squares / (double)count);
  m.median = rf_traffic_percentile(value, count, 50);
  m.p99 = rf_traffic_percentile(value, count, 99);
  for (int i = 0; i < p->count; i++) m.p[i] = rf_traffic_percentile(value, count, p->p[i]);
  return m;
}

int64_t rf_traffic_output_tokens(const rf_traffic_record *r) {
  return r->output_tokens >= 0 ? r->output_tokens : r->first >= 0 ? r->gaps + 1 : 0;
}

int64_t rf_traffic_input_tokens(const rf_traffic_record *r) {
  return r->input_tokens >= 0 ? r->input_tokens : r->asked_input;
}

/* ---- one run --------------------------------------------------------------------------------- */

/* Computes the seconds of TTFT, TPOT, E2EL and the mean ITL. TPOT is 0 for an answer of one
 * token. */
static void latencies_of(const rf_traffic_record *r, double out[RF_TRAFFIC_METRICS]) {
  const int64_t tokens = rf_traffic_output_tokens(r);
  out[RF_TRAFFIC_TTFT] = r->first - r->from;
  out[RF_TRAFFIC_E2EL] = r->end - r->from;
  out[RF_TRAFFIC_TPOT] = tokens > 1 ? (r->end - r->first) / (double)(tokens - 1) : 0;
  out[RF_TRAFFIC_ITL] = 0;
  for (int64_t g = 0; g < r->gaps; g++) out[RF_TRAFFIC_ITL] += r->gap[g] / (double)r->gaps;
}

static bool is_good(const rf_traffic_record *r, const rf_traffic_slo *slo) {
  double seconds[RF_TRAFFIC_METRICS];
  bool good = true;
  latencies_of(r, seconds);
  for (int m = 0; m < RF_TRAFFIC_METRICS; m++) good &= !(slo->most[m] > 0) || seconds[m] <= slo->most[m];
  return good;
}

static void count_states(const rf_traffic_record *record, int64_t count, const rf_traffic_slo *slo,
                         rf_traffic_stats *s) {
  for (int64_t i = 0; i < count; i++) {
    const rf_traffic_record *r = &record[i];
    s->failed += r->state == RF_TRAFFIC_FAILED;
    s->cancelled += r->state == RF_TRAFFIC_CANCELLED;
    if (r->sent >= 0) s->late += r->sent - r->from;
    if (r->sent >= 0) s->latest_late = fmax(s->latest_late, r->sent - r->from);
    if (r->state != RF_TRAFFIC_COMPLETED) continue;
    s->completed++;
    s->uncounted += r->output_tokens < 0;
    s->input_tokens += rf_traffic_input_tokens(r);
    s->output_tokens += rf_traffic_output_tokens(r);
    s->good += is_good(r, slo);
  }
}

/* Computes means over time. A cancelled request counts as running until the end. */
static void count_waits(const rf_traffic_record *record, int64_t count, rf_traffic_stats *s) {
  int64_t sent = 0;
  double ran = 0, answered = 0, waited = 0;
  for (int64_t i = 0; i < count; i++) {
    const rf_traffic_record *r = &record[i];
    const bool over = r->state == RF_TRAFFIC_COMPLETED || r->state == RF_TRAFFIC_FAILED;
    const double end = over ? r->end : s->seconds, first = r->first >= 0 ? r->first : end;
    if (r->sent < 0) continue;
    sent++;
    ran += end - r->sent;
    answered += end - first;
    if (r->first >= 0 || r->state != RF_TRAFFIC_FAILED) waited += first - r->sent;
  }
  s->late /= sent ? (double)sent : 1;
  s->running = s->seconds > 0 ? ran / s->seconds : 0;
  s->batch = s->seconds > 0 ? answered / s->seconds : 0;
  s->queue = s->seconds > 0 ? waited / s->seconds : 0;
}

/* Returns true if requests pile up. Requests with planned times after the end of the run do not
 * count. */
static bool piles_up(const rf_traffic_record *record, int64_t count, const rf_traffic_stats *s) {
  int64_t arrived = 0, waiting = 0;
  double last = 0;
  for (int64_t i = 0; i < count; i++)
    if (record[i].from <= s->seconds) last = fmax(last, record[i].from);
  for (int64_t i = 0; i < count; i++) {
    const rf_traffic_record *r = &record[i];
    if (r->from > last) continue;
    arrived++;
    waiting += r->state != RF_TRAFFIC_FAILED && (r->first < 0 || r->first > last);
  }
  return waiting > 1 + arrived / 20 || s->failed > 1 + arrived / 20;
}

/* Finds the maximum number of tokens in one second. The tokens of an answer are divided equally
 * among its events. */
static rf_status find_peak(const rf_traffic_record *record, int64_t count, rf_traffic_stats *s,
                           rf_error *error) {
  enum { MAX_SECONDS = 1 << 24 };
  int64_t seconds = s->seconds < MAX_SECONDS ? (int64_t)s->seconds + 1 : MAX_SECONDS;
  double *tokens = calloc((size_t)seconds, sizeof *tokens);
  if (!tokens) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while counting");
  for (int64_t i = 0; i < count; i++) {
    const rf_traffic_record *r = &record[i];
    if (r->state != RF_TRAFFIC_COMPLETED) continue;
    double at = r->first, each = (double)rf_traffic_output_tokens(r) / (double)(r->gaps + 1);
    for (int64_t g = 0; g <= r->gaps; g++) {
      int64_t second = at < 0 ? 0 : (int64_t)fmin(at, (double)(seconds - 1));
      tokens[second] += each;
      if (g < r->gaps) at += r->gap[g];
    }
  }
  for (int64_t i = 0; i < seconds; i++)
    s->most_tokens_per_second = fmax(s->most_tokens_per_second, tokens[i]);
  free(tokens);
  return RAFTER_OK;
}

static void measure(const rf_traffic_record *record, int64_t count, double *value, int metric,
                    const rf_traffic_percentiles *p, rf_traffic_stats *s) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i++) {
    const rf_traffic_record *r = &record[i];
    double seconds[RF_TRAFFIC_METRICS];
    if (r->state != RF_TRAFFIC_COMPLETED) continue;
    if (metric == RF_TRAFFIC_ITL) {
      if (r->gaps) memcpy(value + found, r->gap, (size_t)r->gaps * sizeof *value);
      found += r->gaps;
      continue;
    }
    if (metric == RF_TRAFFIC_TPOT && rf_traffic_output_tokens(r) < 2) continue;
    latencies_of(r, seconds);
    value[found++] = seconds[metric];
  }
  s->metric[metric] = rf_traffic_metric_of(value, found, p);
}

rf_status rf_traffic_stats_of(const rf_traffic_record *record, int64_t count, bool closed, double seconds,
                              const rf_traffic_percentiles *p, const rf_traffic_slo *slo, rf_traffic_stats *s,
                              rf_error *error) {
  int64_t most = count;
  *s = (rf_traffic_stats){.seconds = seconds};
  count_states(record, count, slo, s);
  count_waits(record, count, s);
  s->saturated = !closed && piles_up(record, count, s);
  RF_TRY(find_peak(record, count, s, error));
  for (int64_t i = 0; i < count; i++) most += record[i].gaps;
  double *value = malloc((size_t)(most + 1) * sizeof *value);
  if (!value) return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory while counting");
  for (int m = 0; m < RF_TRAFFIC_METRICS; m++) measure(record, count, value, m, p, s);
  free(value);
  return RAFTER_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_metric(json_t *json, const char *name, const rf_traffic_metric *m,
                       const rf_traffic_percentiles *p) {
  const struct {
    const char *word;
    double seconds;
  } rows[] = {{"mean", m->mean}, {"median", m->median}, {"std", m->std}};
  char key[64], word[32];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    snprintf(key, sizeof key, "%s_%s_ms", rows[i].word, name);
    json_object_set_new(json, key, json_real(1e3 * rows[i].seconds));
  }
  for (int i = 0; i < p->count; i++) {
    snprintf(key, sizeof key, "p%s_%s_ms", rf_traffic_percentile_name(p->p[i], word), name);
    json_object_set_new(json, key, json_real(1e3 * m->p[i]));
  }
}

json_t *rf_traffic_stats_json(const rf_traffic_stats *s, const rf_traffic_percentiles *p,
                              const rf_traffic_slo *slo) {
  const double seconds = s->seconds > 0 ? s->seconds : INFINITY;
  json_t *json =
      json_pack("{sf sI sI sI sI sI}", "duration", s->seconds, "completed", (json_int_t)s->completed,
                "failed", (json_int_t)s->failed, "cancelled", (json_int_t)s->cancelled, "total_input_tokens",
                (json_int_t)s->input_tokens, "total_output_tokens", (json_int_t)s->output_tokens);
  json_object_update_new(
      json, json_pack("{sf so sf sf sf sI}", "request_throughput", (double)s->completed / seconds,
                      "request_goodput", slo->given ? json_real((double)s->good / seconds) : json_null(),
                      "output_throughput", (double)s->output_tokens / seconds, "total_token_throughput",
                      (double)(s->input_tokens + s->output_tokens) / seconds, "max_output_tokens_per_s",
                      s->most_tokens_per_second, "max_concurrent_requests", (json_int_t)s->most_running));
  for (int m = 0; m < RF_TRAFFIC_METRICS; m++)
    if (s->metric[m].count || !s->completed) put_metric(json, NAMES[m], &s->metric[m], p);
  json_object_update_new(json,
                         json_pack("{sf sf sf sf sf sI sb}", "mean_in_flight", s->running, "mean_batch",
                                   s->batch, "mean_queue", s->queue, "mean_send_delay_ms", 1e3 * s->late,
                                   "max_send_delay_ms", 1e3 * s->latest_late, "requests_without_usage",
                                   (json_int_t)s->uncounted, "saturated", s->saturated));
  return json;
}

/* Returns true if two requests failed for the same reason. */
static bool same_fault(const rf_traffic_record *a, const rf_traffic_record *b) {
  return a->fault == b->fault && (a->fault != RF_TRAFFIC_STATUS || a->http == b->http);
}

typedef struct fault_kind {
  const rf_traffic_record *first;
  int64_t count;
} fault_kind;

static int most_frequent_first(const void *a, const void *b) {
  const fault_kind *x = a, *y = b;
  return (x->count < y->count) - (x->count > y->count);
}

json_t *rf_traffic_faults_json(const rf_traffic_record *record, int64_t count) {
  /* a hostile server could send many different statuses, so further kinds count as the last kind */
  enum { MAX = 64 };
  fault_kind kind[MAX];
  int kinds = 0;
  char text[32];
  for (int64_t i = 0; i < count; i++) {
    if (record[i].state != RF_TRAFFIC_FAILED) continue;
    int k = 0;
    while (k < kinds && !same_fault(kind[k].first, &record[i])) k++;
    if (k == MAX) k = MAX - 1;
    else if (k == kinds) kind[kinds++] = (fault_kind){&record[i], 0};
    kind[k].count++;
  }
  qsort(kind, (size_t)kinds, sizeof *kind, most_frequent_first);
  json_t *list = json_array();
  for (int k = 0; k < kinds; k++)
    json_array_append_new(list, json_pack("{ss sI ss}", "kind", rf_traffic_fault_text(kind[k].first, text),
                                          "count", (json_int_t)kind[k].count, "message",
                                          kind[k].first->message ? kind[k].first->message : ""));
  return list;
}

static json_t *seconds_or_null(bool there, double seconds) {
  return there ? json_real(seconds) : json_null();
}

json_t *rf_traffic_record_json(const rf_traffic_record *r, int64_t index) {
  static const char *const STATES[] = {"unsent", "cancelled", "completed", "failed", "cancelled"};
  const bool done = r->state == RF_TRAFFIC_COMPLETED;
  double s[RF_TRAFFIC_METRICS];
  char text[32];
  latencies_of(r, s);
  json_t *itls = json_array();
  for (int64_t g = 0; g < r->gaps; g++) json_array_append_new(itls, json_real(r->gap[g]));
  return json_pack("{sI ss sf so so so so sI sI so si so so}", "request", (json_int_t)index, "state",
                   STATES[r->state], "planned", r->from, "sent", seconds_or_null(r->sent >= 0, r->sent),
                   "ttft", seconds_or_null(done, s[RF_TRAFFIC_TTFT]), "tpot",
                   seconds_or_null(done && rf_traffic_output_tokens(r) > 1, s[RF_TRAFFIC_TPOT]), "e2el",
                   seconds_or_null(done, s[RF_TRAFFIC_E2EL]), "input_tokens",
                   (json_int_t)rf_traffic_input_tokens(r), "output_tokens",
                   (json_int_t)rf_traffic_output_tokens(r), "itls", itls, "http", r->http, "error",
                   r->fault ? json_string(rf_traffic_fault_text(r, text)) : json_null(), "message",
                   r->message ? json_string(r->message) : json_null());
}

/* ---- service levels -------------------------------------------------------------------------- */

rf_status rf_traffic_slo_parse(const char *text, rf_traffic_slo *slo, rf_error *error) {
  char copy[256], *rest = copy;
  if (strlen(text) >= sizeof copy)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "--goodput is too long (expected at most %d characters)",
                   (int)sizeof copy - 1);
  strcpy(copy, text);
  for (char *part; (part = strsep(&rest, ", "));) {
    if (!*part) continue;
    char *number = strchr(part, ':');
    double ms = 0;
    int m = 0;
    if (number) *number++ = 0;
    while (m < RF_TRAFFIC_METRICS && strcmp(NAMES[m], part)) m++;
    if (!number || m == RF_TRAFFIC_METRICS || !rf_text_float(number, &ms) || !(ms > 0))
      return RF_FAIL(error, RAFTER_INVALID, "for example --goodput ttft:500,tpot:50",
                     "--goodput is not a limit (expected ttft, tpot, itl or e2el, a colon and "
                     "milliseconds above 0; got %s%s%s)",
                     part, number ? ":" : "", number ? number : "");
    slo->most[m] = ms / 1e3;
    slo->given = true;
  }
  return RAFTER_OK;
}
