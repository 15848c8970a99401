/* bench_serve_run.c - see bench_serve.h: sends the requests of each run. */
#define _GNU_SOURCE
#include "api/bench_serve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"

enum { MAX_HALVINGS = 10 };

rf_status rf_bench_no_memory(rf_error *error) { return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory"); }

rf_arrival rf_bench_like(const rf_serve_bench *b) {
  return (rf_arrival){.prompt = rf_options_int(b->o, "prompt-tokens"),
                      .answer = rf_options_int(b->o, "max-tokens"),
                      .shared = rf_options_int(b->o, "shared-prefix"),
                      .samples = 1};
}

int64_t rf_bench_connections_most(void) {
  enum { OTHER_FILES = 64 };
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= RF_BENCH_CLIENTS) return RF_BENCH_CLIENTS;
  return limit.rlim_cur > OTHER_FILES + 1 ? (int64_t)limit.rlim_cur - OTHER_FILES : 1;
}

/* ---- one run --------------------------------------------------------------------------------- */

static char *body_of(void *self, int64_t index) {
  const rf_serve_bench *b = self;
  return rf_traffic_body(&b->prompts, index, &b->list[index]);
}

static void show_progress(void *self, int64_t ended, int64_t running, double seconds) {
  const rf_serve_bench *b = self;
  rf_put_bar_left(b->sink, seconds, (double)ended / (double)b->count, "%s%lld of %lld requests, %lld running",
                  b->now, (long long)ended, (long long)b->count, (long long)running);
}

/* Returns the number of requests of a run at this rate (0: no rate). */
static int64_t requests_of(const rf_serve_bench *b, double rate) {
  const rf_options *o = b->o;
  const int64_t clients = rf_options_int_or(o, "concurrency", 1),
                usual = 4 * clients > 128 ? 4 * clients : 128;
  if (b->arrivals) return b->arrival_count;
  if (rate > 0 && rf_options_is_set(o, "duration")) {
    const double count = ceil(rate * rf_options_float(o, "duration"));
    return count < 1 ? 1 : count < RF_MAX_ARRIVALS ? (int64_t)count : RF_MAX_ARRIVALS;
  }
  return rf_options_int_or(o, "requests", rate > 0 ? 128 : usual);
}

/* Returns the requests of a run, malloc'ed; NULL: out of memory. */
static rf_arrival *list_of(const rf_serve_bench *b, double rate, int64_t count) {
  rf_arrival *list = calloc((size_t)count, sizeof *list);
  if (!list) return NULL;
  if (b->arrivals) memcpy(list, b->arrivals, (size_t)count * sizeof *list);
  else rf_arrivals_poisson(rf_bench_like(b), rate, b->prompts.seed, list, count);
  rf_traffic_lengths(&b->prompts, rf_options_float(b->o, "spread"), list, count);
  return list;
}

static rf_status write_records(rf_serve_bench *b, const rf_traffic_record *record, int64_t count, double rate,
                               rf_error *error) {
  for (int64_t i = 0; b->out && i < count; i++) {
    json_t *json = rf_traffic_record_json(&record[i], i);
    if (rate > 0) json_object_set_new(json, "request_rate", json_real(rate));
    rf_status status = rf_json_write_line(b->out, json, error);
    json_decref(json);
    RF_TRY(status);
  }
  return RAFTER_OK;
}

/* Predicts the requests that were sent, with the plan. A failed prediction does not discard the
 * measurements. */
static void predict(rf_serve_bench *b, const rf_traffic_record *record, rf_traffic_row *row) {
  rf_error error = {0};
  rf_arrival *list = b->plan ? calloc((size_t)row->requests, sizeof *list) : NULL;
  if (!list) return;
  rf_traffic_shape shape = {
      .list = list, .closed = !(row->rate > 0) && !b->arrivals, .clients = row->clients};
  rf_traffic_shape_measured(record, row->requests, &shape);
  if (shape.count && row->measured.completed) {
    rf_status status =
        rf_traffic_predict(b->plan, &shape, &b->r.percentiles, &b->r.slo, &row->predicted, &error);
    row->has_plan = status == RAFTER_OK;
    if (!row->has_plan) rf_note(b->sink, "notice: no prediction: %s\n", error.message);
  }
  if (row->has_plan) {
    free(b->shape.list);
    b->shape = shape;
  } else free(list);
}

/* Sends the requests of a run, and shows progress. */
static rf_status send_run(rf_serve_bench *b, rf_traffic_run run, rf_traffic_record *record,
                          rf_traffic_outcome *outcome, rf_error *error) {
  b->list = run.list;
  b->count = run.count;
  run.until = b->until;
  run.body = body_of;
  run.progress = show_progress;
  run.self = b;
  rf_status status = rf_traffic_send(b->client, &run, record, outcome, error);
  rf_put_bar(b->sink, "%s", "");
  return status;
}

rf_status rf_bench_run_row(rf_serve_bench *b, double rate, bool searched, rf_error *error) {
  rf_traffic_row *row = &b->r.row[b->r.rows];
  const int64_t count = requests_of(b, rate), most = rf_bench_connections_most();
  const bool closed = !(rate > 0) && !b->arrivals;
  rf_traffic_outcome outcome;
  rf_arrival *list = list_of(b, rate, count);
  rf_traffic_record *record = calloc((size_t)count, sizeof *record);
  char text[32];
  rf_status status = RAFTER_OK;
  if (!list || !record) RF_GO(rf_bench_no_memory(error));
  *row = (rf_traffic_row){.rate = rate, .requests = count, .searched = searched};
  row->clients = rf_options_int_or(b->o, "concurrency", closed);
  b->prompts.part = (uint64_t)b->r.rows + 1;
  b->now[0] = 0;
  if (rate > 0) snprintf(b->now, sizeof b->now, "%s requests/s: ", rf_text_figures(rate, 4, text));
  const rf_traffic_run run = {.list = list,
                              .count = count,
                              .closed = closed,
                              .clients = row->clients ? row->clients : most,
                              .watch = true};
  RF_GO(send_run(b, run, record, &outcome, error));
  b->stopped = outcome.stopped;
  b->expired = outcome.expired;
  row->watched = outcome.watched;
  RF_GO(rf_traffic_stats_of(record, count, closed, outcome.seconds, &b->r.percentiles, &b->r.slo,
                            &row->measured, error));
  row->measured.most_running = outcome.most_running;
  row->faults = rf_traffic_faults_json(record, count);
  b->r.rows++;
  predict(b, record, row);
  status = write_records(b, record, count, rate, error);
done:
  rf_traffic_records_free(record, count);
  free(list);
  return status;
}

rf_status rf_bench_warm_up(rf_serve_bench *b, rf_error *error) {
  const int64_t count = rf_options_int(b->o, "warmup"), clients = rf_options_int_or(b->o, "concurrency", 1);
  rf_traffic_outcome outcome;
  char text[32];
  if (!count) return RAFTER_OK;
  rf_arrival *list = calloc((size_t)count, sizeof *list);
  rf_traffic_record *record = calloc((size_t)count, sizeof *record);
  rf_status status = RAFTER_OK;
  if (!list || !record) RF_GO(rf_bench_no_memory(error));
  for (int64_t i = 0; i < count; i++) list[i] = rf_bench_like(b);
  rf_traffic_lengths(&b->prompts, 0, list, count);
  b->prompts.part = UINT64_MAX;
  snprintf(b->now, sizeof b->now, "warm-up: ");
  const rf_traffic_run run = {.list = list, .count = count, .closed = true, .clients = clients};
  RF_GO(send_run(b, run, record, &outcome, error));
  if (outcome.stopped) RF_GO(RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped during the warm-up"));
  int64_t failed = 0;
  while (failed < count && record[failed].state != RF_TRAFFIC_COMPLETED) failed++;
  if (failed == count)
    RF_GO(RF_FAIL(
        error, RAFTER_FAILED, "send one request with curl; --warmup 0 measures without this check",
        "the server answers no request (warm-up: %s%s%.300s)", rf_traffic_fault_text(&record[0], text),
        record[0].message && *record[0].message ? ": " : "", record[0].message ? record[0].message : ""));
done:
  rf_traffic_records_free(record, count);
  free(list);
  return status;
}

/* ---- rates ----------------------------------------------------------------------------------- */

static bool is_over(const rf_serve_bench *b) {
  return b->stopped || b->expired || b->r.rows == RF_BENCH_ROWS;
}

/* For --search, tries rates between the highest sustained rate and the lowest unsustained rate. */
static rf_status search(rf_serve_bench *b, rf_error *error) {
  double low, high;
  for (int halved = 0; !is_over(b);) {
    rf_traffic_critical(&b->r, false, &low, &high);
    if (!(high > 0) || (low > 0 && high <= RF_TRAFFIC_NEAR * low)) return RAFTER_OK;
    if (!(low > 0) && halved++ == MAX_HALVINGS) return RAFTER_OK;
    RF_TRY(rf_bench_run_row(b, low > 0 ? rf_traffic_between(low, high) : high / 2, true, error));
  }
  return RAFTER_OK;
}

static int by_rate(const void *a, const void *b) {
  const rf_traffic_row *x = a, *y = b;
  return (x->rate > y->rate) - (x->rate < y->rate);
}

rf_status rf_bench_run_rates(rf_serve_bench *b, rf_error *error) {
  int count = 0;
  double low, high;
  rf_error lost = {0};
  const double *rate = rf_options_floats(b->o, "rates", &count);
  if (count > RF_BENCH_ROWS)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "too many rates (--rates: expected at most %d, got %d)",
                   RF_BENCH_ROWS, count);
  for (int i = 0; i < count && !is_over(b); i++) RF_TRY(rf_bench_run_row(b, rate[i], false, error));
  if (rf_options_flag(b->o, "search")) RF_TRY(search(b, error));
  qsort(b->r.row, (size_t)b->r.rows, sizeof *b->r.row, by_rate);
  rf_traffic_critical(&b->r, false, &b->r.critical, &high);
  b->r.bounded = high > 0;
  rf_traffic_critical(&b->r, true, &low, &high);
  if ((low > 0 || high > 0) && b->shape.count > 1 &&
      rf_traffic_plan_critical(b->plan, &b->shape, b->prompts.seed, low, high, &b->r.planned_critical,
                               &lost) != RAFTER_OK)
    rf_note(b->sink, "notice: no predicted critical rate: %s\n", lost.message);
  return RAFTER_OK;
}
