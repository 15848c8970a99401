/* bench_serve.c - `rafter bench-serve`: sends requests to an OpenAI-compatible server, measures its
 * answers, and prints the plan's prediction of the same requests next to them. */
#define _GNU_SOURCE
#include "api/api.h"

#include "advise/gnuplot.h"
#include "base/file.h"
#include "base/text.h"
#include "traffic/chunk.h"
#include "traffic/traffic.h"
#include "traffic/predict.h"
#include "traffic/prompts.h"
#include "traffic/result.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MAX_ROWS = 128, MAX_CLIENTS = 1 << 16, MAX_HALVINGS = 10 };

typedef struct bench {
  const rf_options *o;
  const rafter_sink *sink;
  rf_traffic_client *client;
  rf_traffic_prompts prompts;
  rf_traffic_plan *plan; /* NULL: no --model */
  rf_traffic_results r;  /* row: (MAX_ROWS) */
  rf_arrival *arrivals;  /* (arrival_count): --arrivals; NULL: none */
  int64_t arrival_count;
  rf_out_file *out; /* --output; NULL: none */
  json_t *extra;
  double until; /* --max-seconds; 0: no limit */
  char *token, *model, shown_model[160], load[320], plan_text[320];
  rf_traffic_shape shape; /* the last run with a prediction */
  bool stopped, expired;
  /* the run in progress */
  const rf_arrival *list;
  int64_t count;
  char now[48];
} bench;

static rf_status no_memory(rf_error *error) { return RF_FAIL(error, RAFTER_FAILED, NULL, "out of memory"); }

/* ---- options --------------------------------------------------------------------------------- */

/* Refuses options that have no effect together. */
static rf_status check_options(const rf_options *o, rf_error *error) {
  static const struct {
    const char *option, *other, *why;
    bool needs; /* true: `option` has an effect only with one of `other`; false: not with it */
  } RULES[] = {{"rate", "rates arrivals", "give one rate, a list of rates, or a file of arrivals", false},
               {"rates", "arrivals", "give one rate, a list of rates, or a file of arrivals", false},
               {"duration", "rate rates", "--duration sends rate x duration requests", true},
               {"duration", "requests", "--duration sends rate x duration requests", false},
               {"speed", "arrivals", "--speed replays a file of arrivals", true},
               {"search", "rates", "--search continues --rates", true},
               {"plot", "rates", "--plot draws the values for each rate: add --rates 1..64", true},
               {"batch", "model", "--batch is a setting of the plan: add --model MODEL", true},
               {"token-ids", "chat data", "token ids are prompts of /v1/completions", false},
               {"spread", "data arrivals", "the file has the lengths of the requests", false},
               {"shared-prefix", "data", "the file has the prompts", false}};
  for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) {
    char names[64], *rest = names;
    bool met = false;
    if (!rf_options_given(o, RULES[i].option)) continue;
    snprintf(names, sizeof names, "%s", RULES[i].other);
    for (char *name; (name = strsep(&rest, " "));) {
      const bool given = rf_options_given(o, name);
      met |= given;
      if (given && !RULES[i].needs)
        return RF_FAIL(error, RAFTER_INVALID, RULES[i].why, "--%s and --%s cannot be combined",
                       RULES[i].option, name);
    }
    if (RULES[i].needs && !met)
      return RF_FAIL(error, RAFTER_INVALID, RULES[i].why, "--%s has no effect here", RULES[i].option);
  }
  return RAFTER_OK;
}

static rf_status read_percentiles(const rf_options *o, rf_traffic_percentiles *p, rf_error *error) {
  int count = 0;
  const double *list = rf_options_floats(o, "percentiles", &count);
  if (count > RF_TRAFFIC_MAX_PERCENTILES)
    return RF_FAIL(error, RAFTER_INVALID, NULL,
                   "too many percentiles (--percentiles: expected at most %d, got %d)",
                   RF_TRAFFIC_MAX_PERCENTILES, count);
  for (int i = 0; i < count; i++) {
    if (list[i] > 100)
      return RF_FAIL(error, RAFTER_INVALID, NULL,
                     "a percentile is out of range (--percentiles: expected at most 100, got %g)", list[i]);
    p->p[p->count++] = list[i];
  }
  return RAFTER_OK;
}

/* The API key from a file or from the environment. A line break at its end is not part of it. */
static rf_status read_key(bench *b, rf_error *error) {
  const char *path = rf_options_text(b->o, "api-key-file"), *text = getenv("OPENAI_API_KEY");
  char *read = NULL;
  size_t bytes = 0, first, end;
  if (path) RF_TRY(rf_file_read(path, 65536, &read, &bytes, error));
  if (path) text = read;
  if (text) {
    first = strspn(text, " \t\r\n");
    end = strlen(text);
    while (end > first && strchr(" \t\r\n", text[end - 1])) end--;
    b->token = strndup(text + first, end - first);
  }
  free(read);
  return !text || b->token ? RAFTER_OK : no_memory(error);
}

static rf_status read_extra(bench *b, rf_error *error) {
  const char *text = rf_options_text(b->o, "extra-body");
  json_error_t fault = {0};
  if (!text) return RAFTER_OK;
  b->extra = json_loads(text, JSON_REJECT_DUPLICATES, &fault);
  if (json_is_object(b->extra)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "for example --extra-body '{\"top_k\": 40}'",
                 "--extra-body is not a JSON object (%s)", b->extra ? rf_json_type(b->extra) : fault.text);
}

static rf_status read_prompts(bench *b, rf_error *error) {
  const rf_options *o = b->o;
  RF_TRY(read_extra(b, error));
  b->prompts = (rf_traffic_prompts){.chat = rf_options_flag(o, "chat"),
                                    .ignore_eos = rf_options_flag(o, "ignore-eos"),
                                    .temperature = rf_options_float(o, "temperature"),
                                    .vocab = rf_options_int(o, "token-ids"),
                                    .seed = (uint64_t)rf_options_int(o, "seed"),
                                    .extra = b->extra};
  if (rf_options_is_set(o, "data"))
    RF_TRY(rf_traffic_prompts_read(rf_options_text(o, "data"), &b->prompts, error));
  return RAFTER_OK;
}

static rf_arrival like_of(const bench *b) {
  return (rf_arrival){.prompt = rf_options_int(b->o, "prompt-tokens"),
                      .answer = rf_options_int(b->o, "max-tokens"),
                      .shared = rf_options_int(b->o, "shared-prefix"),
                      .samples = 1};
}

static rf_status read_arrivals(bench *b, rf_error *error) {
  const rf_options *o = b->o;
  if (!rf_options_is_set(o, "arrivals")) return RAFTER_OK;
  RF_TRY(
      rf_arrivals_read(rf_options_text(o, "arrivals"), like_of(b), &b->arrivals, &b->arrival_count, error));
  const double speed = rf_options_float(o, "speed"), first = b->arrivals[0].at;
  for (int64_t i = 0; i < b->arrival_count; i++) b->arrivals[i].at = (b->arrivals[i].at - first) / speed;
  if (rf_options_is_set(o, "requests") && rf_options_int(o, "requests") < b->arrival_count)
    b->arrival_count = rf_options_int(o, "requests");
  return RAFTER_OK;
}

/* Each request at the same time has a connection, which is an open file. */
static int64_t connections_most(void) {
  enum { OTHER_FILES = 64 };
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= MAX_CLIENTS) return MAX_CLIENTS;
  return limit.rlim_cur > OTHER_FILES + 1 ? (int64_t)limit.rlim_cur - OTHER_FILES : 1;
}

static rf_status check_clients(const rf_options *o, rf_error *error) {
  const int64_t given = rf_options_int_or(o, "concurrency", 1), most = connections_most();
  if (given <= most) return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_INVALID, "raise the limit with `ulimit -n`, or lower --concurrency",
      "too many connections for the open files of a process (--concurrency: expected at most %lld, got %lld)",
      (long long)most, (long long)given);
}

/* ---- one run --------------------------------------------------------------------------------- */

static char *body_of(void *self, int64_t index) {
  const bench *b = self;
  return rf_traffic_body(&b->prompts, index, &b->list[index]);
}

static void show_progress(void *self, int64_t ended, int64_t running, double seconds) {
  const bench *b = self;
  rf_put_bar_left(b->sink, seconds, (double)ended / (double)b->count, "%s%lld of %lld requests, %lld running",
                  b->now, (long long)ended, (long long)b->count, (long long)running);
}

/* Number of requests of a run at this rate (0: no rate). */
static int64_t requests_of(const bench *b, double rate) {
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

/* The requests of a run, malloc'ed; NULL: no memory. */
static rf_arrival *list_of(const bench *b, double rate, int64_t count) {
  rf_arrival *list = calloc((size_t)count, sizeof *list);
  if (!list) return NULL;
  if (b->arrivals) memcpy(list, b->arrivals, (size_t)count * sizeof *list);
  else rf_arrivals_poisson(like_of(b), rate, b->prompts.seed, list, count);
  rf_traffic_lengths(&b->prompts, rf_options_float(b->o, "spread"), list, count);
  return list;
}

static rf_status write_records(bench *b, const rf_traffic_record *record, int64_t count, double rate,
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

/* The plan's prediction of the requests that were sent. A prediction that fails loses no
 * measurement. */
static void predict(bench *b, const rf_traffic_record *record, rf_traffic_row *row) {
  rf_error error = {0};
  rf_arrival *list = b->plan ? calloc((size_t)row->requests, sizeof *list) : NULL;
  if (!list) return;
  free(b->shape.list);
  b->shape =
      (rf_traffic_shape){.list = list, .closed = !(row->rate > 0) && !b->arrivals, .clients = row->clients};
  rf_traffic_shape_measured(record, row->requests, &b->shape);
  if (!b->shape.count || !row->measured.completed) return;
  rf_status status =
      rf_traffic_predict(b->plan, &b->shape, &b->r.percentiles, &b->r.slo, &row->predicted, &error);
  row->has_plan = status == RAFTER_OK;
  if (!row->has_plan) rf_note(b->sink, "notice: no prediction: %s\n", error.message);
}

/* Sends the requests of one row and fills the row. `rate` 0: a closed loop, or --arrivals. */
static rf_status run_row(bench *b, double rate, bool searched, rf_error *error) {
  rf_traffic_row *row = &b->r.row[b->r.rows];
  const int64_t count = requests_of(b, rate), most = connections_most();
  const bool closed = !(rate > 0) && !b->arrivals;
  rf_traffic_outcome outcome;
  rf_arrival *list = list_of(b, rate, count);
  rf_traffic_record *record = calloc((size_t)count, sizeof *record);
  rf_status status = RAFTER_OK;
  if (!list || !record) RF_GO(no_memory(error));
  *row = (rf_traffic_row){.rate = rate, .requests = count, .searched = searched};
  row->clients = rf_options_int_or(b->o, "concurrency", closed);
  b->list = list;
  b->count = count;
  b->prompts.part = (uint64_t)b->r.rows + 1;
  b->now[0] = 0;
  if (rate > 0) snprintf(b->now, sizeof b->now, "%.4g requests/s: ", rate);
  const rf_traffic_run run = {.list = list,
                              .count = count,
                              .closed = closed,
                              .clients = row->clients ? row->clients : most,
                              .until = b->until,
                              .watch = true,
                              .body = body_of,
                              .progress = show_progress,
                              .self = b};
  status = rf_traffic_send(b->client, &run, record, &outcome, error);
  rf_put_bar(b->sink, "%s", "");
  RF_GO(status);
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

/* Requests that are not measured. If none of them completes, the test would measure nothing. */
static rf_status warm_up(bench *b, rf_error *error) {
  const int64_t count = rf_options_int(b->o, "warmup"), clients = rf_options_int_or(b->o, "concurrency", 1);
  rf_traffic_outcome outcome;
  char text[32];
  if (!count) return RAFTER_OK;
  rf_arrival *list = calloc((size_t)count, sizeof *list);
  rf_traffic_record *record = calloc((size_t)count, sizeof *record);
  rf_status status = RAFTER_OK;
  if (!list || !record) RF_GO(no_memory(error));
  for (int64_t i = 0; i < count; i++) list[i] = like_of(b);
  rf_traffic_lengths(&b->prompts, 0, list, count);
  b->list = list;
  b->count = count;
  b->prompts.part = UINT64_MAX;
  snprintf(b->now, sizeof b->now, "warm-up: ");
  const rf_traffic_run run = {.list = list,
                              .count = count,
                              .closed = true,
                              .clients = clients,
                              .until = b->until,
                              .body = body_of,
                              .progress = show_progress,
                              .self = b};
  status = rf_traffic_send(b->client, &run, record, &outcome, error);
  rf_put_bar(b->sink, "%s", "");
  RF_GO(status);
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

static bool is_over(const bench *b) { return b->stopped || b->expired || b->r.rows == MAX_ROWS; }

/* --search: more rates between the highest that is sustained and the lowest that is not. */
static rf_status search(bench *b, rf_error *error) {
  double low, high;
  for (int halved = 0; !is_over(b);) {
    rf_traffic_critical(&b->r, false, &low, &high);
    if (!(high > 0) || (low > 0 && high <= RF_TRAFFIC_NEAR * low)) return RAFTER_OK;
    if (!(low > 0) && halved++ == MAX_HALVINGS) return RAFTER_OK;
    RF_TRY(run_row(b, low > 0 ? rf_traffic_between(low, high) : high / 2, true, error));
  }
  return RAFTER_OK;
}

static int by_rate(const void *a, const void *b) {
  const rf_traffic_row *x = a, *y = b;
  return (x->rate > y->rate) - (x->rate < y->rate);
}

static rf_status run_rates(bench *b, rf_error *error) {
  int count = 0;
  double low, high;
  rf_error lost = {0};
  const double *rate = rf_options_floats(b->o, "rates", &count);
  if (count > MAX_ROWS)
    return RF_FAIL(error, RAFTER_INVALID, NULL, "too many rates (--rates: expected at most %d, got %d)",
                   MAX_ROWS, count);
  for (int i = 0; i < count && !is_over(b); i++) RF_TRY(run_row(b, rate[i], false, error));
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

/* ---- the test -------------------------------------------------------------------------------- */

/* The lengths of the requests in words. */
static void describe(bench *b) {
  const rf_options *o = b->o;
  char how[128], size[160];
  const long long clients = (long long)rf_options_int_or(o, "concurrency", 1);
  int rates = 0;
  if (rf_options_is_set(o, "rates")) rf_options_floats(o, "rates", &rates);
  if (rates) snprintf(how, sizeof how, "Poisson arrivals at %d rate%s", rates, rf_plural(rates));
  else if (b->arrivals) snprintf(how, sizeof how, "arrivals of %.80s", rf_options_text(o, "arrivals"));
  else if (rf_options_is_set(o, "rate"))
    snprintf(how, sizeof how, "Poisson arrivals, %.4g requests/s", rf_options_float(o, "rate"));
  else snprintf(how, sizeof how, "closed loop, %lld client%s", clients, rf_plural(clients));
  if (b->arrivals || b->prompts.rows) snprintf(size, sizeof size, "lengths of the file");
  else
    snprintf(size, sizeof size, "prompts of about %lld tokens, answers of at most %lld%s",
             (long long)rf_options_int(o, "prompt-tokens"), (long long)rf_options_int(o, "max-tokens"),
             rf_options_float(o, "spread") > 0 ? ", varied" : "");
  snprintf(b->load, sizeof b->load, "%s; %s", how, size);
}

static rf_status open_plan(bench *b, rf_error *error) {
  const char *model = rf_options_text(b->o, "model");
  rf_arrival like = like_of(b);
  int64_t longest = like.prompt + like.answer;
  if (!model) return RAFTER_OK;
  for (int64_t i = 0; i < b->arrival_count; i++)
    if (b->arrivals[i].prompt + b->arrivals[i].answer > longest)
      longest = b->arrivals[i].prompt + b->arrivals[i].answer;
  RF_TRY(rf_traffic_plan_open(b->o, model, longest, &b->plan, error));
  const rf_settings *s = &b->plan->settings;
  snprintf(b->plan_text, sizeof b->plan_text, "%.100s on %.80s, %lld answers at once", s->model.name,
           s->machine.name, (long long)s->plan.build.microbatch);
  b->r.plan = b->plan_text;
  return RAFTER_OK;
}

/* Everything that can be checked before the first request. */
static rf_status prepare(bench *b, rf_error *error) {
  const rf_options *o = b->o;
  int limits = 0;
  RF_TRY(check_options(o, error));
  RF_TRY(check_clients(o, error));
  RF_TRY(read_percentiles(o, &b->r.percentiles, error));
  const char *const *limit = rf_options_texts(o, "goodput", &limits);
  for (int i = 0; i < limits; i++) RF_TRY(rf_traffic_slo_parse(limit[i], &b->r.slo, error));
  if (rf_options_is_set(o, "plot")) RF_TRY(rf_gnuplot_check(rf_options_text(o, "plot"), error));
  RF_TRY(read_prompts(b, error));
  RF_TRY(read_arrivals(b, error));
  RF_TRY(open_plan(b, error));
  RF_TRY(read_key(b, error));
  b->r.row = calloc(MAX_ROWS, sizeof *b->r.row);
  if (!b->r.row) return no_memory(error);
  b->r.usd_per_hour = rf_options_float_or(o, "price", 0);
  b->r.rates = rf_options_is_set(o, "rates");
  const rf_traffic_settings settings = {.url = rf_options_argument(o, 0),
                                        .token = b->token,
                                        .chat = b->prompts.chat,
                                        .timeout_seconds = rf_options_float(o, "timeout"),
                                        .stop = b->sink->stop};
  RF_TRY(rf_traffic_open(&settings, &b->client, error));
  if (rf_options_is_set(o, "output")) RF_TRY(rf_out_open(rf_options_text(o, "output"), 0, &b->out, error));
  return RAFTER_OK;
}

static rf_status name_model(bench *b, rf_error *error) {
  const char *named = rf_options_text(b->o, "served-model");
  if (!named) RF_TRY(rf_traffic_model(b->client, &b->model, error));
  else if (!(b->model = strdup(named))) return no_memory(error);
  rf_chunk_printable(b->shown_model, sizeof b->shown_model, b->model, strlen(b->model));
  b->prompts.model = b->model;
  b->r.model = b->shown_model;
  b->r.server = rf_options_argument(b->o, 0);
  describe(b);
  b->r.load = b->load;
  return RAFTER_OK;
}

static rf_status run_test(bench *b, rf_error *error) {
  RF_TRY(name_model(b, error));
  if (rf_options_is_set(b->o, "max-seconds"))
    b->until = rf_now_seconds() + rf_options_float(b->o, "max-seconds");
  RF_TRY(warm_up(b, error));
  return b->r.rates ? run_rates(b, error) : run_row(b, rf_options_float_or(b->o, "rate", 0), false, error);
}

/* Prints the results, and returns the status of the whole test. */
static rf_status finish(bench *b, rf_error *error) {
  int64_t completed = 0, failed = 0;
  const rf_options *o = b->o;
  rf_traffic_say_results(b->sink, &b->r);
  rf_put_json(b->sink, rf_traffic_results_json(&b->r));
  for (int i = 0; i < b->r.rows; i++) {
    completed += b->r.row[i].measured.completed;
    failed += b->r.row[i].measured.failed;
  }
  if (b->out) {
    rf_out_file *out = b->out;
    b->out = NULL;
    RF_TRY(rf_out_commit(out, error));
  }
  if (rf_options_is_set(o, "plot") && completed) {
    RF_TRY(rf_traffic_plot(rf_options_text(o, "plot"), &b->r, error));
    rf_say(b->sink, "\n%s\n", rf_options_text(o, "plot"));
  }
  if (b->stopped)
    return RF_FAIL(error, RAFTER_INTERRUPTED, NULL, "stopped after %lld answers", (long long)completed);
  if (completed) return RAFTER_OK;
  const json_t *fault = json_array_get(b->r.row[0].faults, 0);
  return RF_FAIL(error, RAFTER_FAILED, b->expired ? "raise --max-seconds" : "see the errors above",
                 "no request completed (%lld failed%s%s)", (long long)failed,
                 fault ? "; the most frequent: " : "", rf_json_text_at(fault, "kind"));
}

static rf_status rf_command_bench_serve(const rafter_job *job, const rafter_sink *sink, rf_error *error) {
  bench b = {.o = job->options, .sink = sink};
  rf_status status = prepare(&b, error);
  if (status == RAFTER_OK) status = run_test(&b, error);
  if (status == RAFTER_OK) status = finish(&b, error);
  rf_traffic_close(b.client);
  rf_traffic_prompts_free(&b.prompts);
  rf_out_discard(b.out);
  for (int i = 0; b.r.row && i < MAX_ROWS; i++) json_decref(b.r.row[i].faults);
  json_decref(b.extra);
  free(b.r.row);
  free(b.shape.list);
  free(b.arrivals);
  free(b.plan);
  free(b.token);
  free(b.model);
  return status;
}

static const rf_option BENCH_SERVE[] = {
    RF_NUMBER(
        "concurrency", INT, "CLIENTS", 1, MAX_CLIENTS, NULL, "Load",
        "clients that send their next request when the last one has ended; unset: 1\nWith --rate, --rates "
        "and --arrivals: maximum number of requests at the same time; unset: no limit."),
    RF_NUMBER(
        "rate", FLOAT, "PER SECOND", 1e-3, 1e6, NULL, "Load",
        "requests per second, as a Poisson process\nLatencies count from the planned time of a request, "
        "also if it was sent later."),
    RF_NUMBER("rates", FLOATS, "LIST", 1e-3, 1e6, NULL, "Load",
              "several rates, one after the other: 1..256 or 0.5,1,2; prints the critical rate, which is the "
              "highest that the server sustains"),
    RF_WORDS("arrivals", PATH, "FILE", NULL, "Load",
             "times and lengths of requests: JSON Lines (at, prompt, answer, shared), or a CSV of the Azure "
             "traces"),
    RF_NUMBER("speed", FLOAT, "FACTOR", 1e-3, 1e6, "1", "Load", "replay --arrivals faster by this factor"),
    RF_FLAG("search", "Load", "after --rates, try more rates until the critical rate is known to 5 %"),
    RF_NUMBER("requests", INT, "N", 1, RF_MAX_ARRIVALS, NULL, "Load",
              "requests of a run; unset: 128, at least 4 for each client, or all of --arrivals"),
    RF_NUMBER("duration", DURATION, NULL, 1e-3, 1e7, NULL, "Load",
              "send requests for this time at each rate, in place of --requests"),
    RF_NUMBER("warmup", INT, "N", 0, 1 << 20, "1", "Load",
              "requests before the test that are not measured; if all fail, the test does not start"),
    RF_NUMBER("timeout", DURATION, NULL, 1e-2, 1e6, "10m", "Load", "maximum time of a request"),
    RF_NUMBER("max-seconds", DURATION, NULL, 1e-2, 1e9, NULL, "Load",
              "end the test after this time, and print the measurements so far"),
    RF_NUMBER(
        "prompt-tokens", TOKENS, NULL, 1, 1 << 24, "512", "Requests",
        "length of random prompts, as a word for each token\nResults have the number of tokens that the "
        "server counts. --token-ids sends prompts of exact length."),
    RF_NUMBER("max-tokens", TOKENS, NULL, 1, 1 << 24, "128", "Requests", "maximum tokens of an answer"),
    RF_NUMBER("spread", FLOAT, "FRACTION", 0, 0.99, "0", "Requests",
              "vary both lengths evenly by this fraction: 0.5 gives 0.5 to 1.5 times the length"),
    RF_NUMBER("shared-prefix", TOKENS, NULL, 0, 1 << 24, "0", "Requests",
              "tokens at the start that all prompts share"),
    RF_WORDS("data", PATH, "FILE", NULL, "Requests",
             "prompts as JSON Lines: prompt, messages (with --chat) or tokens, and optionally max_tokens"),
    RF_FLAG("chat", "Requests", "send to /v1/chat/completions in place of /v1/completions"),
    RF_NUMBER("token-ids", INT, "VOCAB", 0, 1 << 24, "0", "Requests",
              "send random token ids of a vocabulary of this size, not words; 0: words"),
    RF_FLAG("ignore-eos", "Requests", "ask for answers of the full length (an extension of most servers)"),
    RF_NUMBER("temperature", FLOAT, NULL, 0, 100, "0", "Requests", "temperature of the answers"),
    RF_WORDS("served-model", TEXT, "NAME", NULL, "Requests",
             "model that the requests ask for; unset: the first that the server lists"),
    RF_WORDS("extra-body", TEXT, "JSON", NULL, "Requests", "more fields of each request: '{\"top_k\": 40}'"),
    RF_WORDS("api-key-file", PATH, "FILE", NULL, "Requests",
             "file with the API key; unset: the environment variable OPENAI_API_KEY"),
    RF_WORDS(
        "goodput", TEXTS, "LIMITS", NULL, "Results",
        "limits in milliseconds for a good request: ttft:500,tpot:50 (also itl and e2el); prints the rate "
        "of good requests"),
    RF_NUMBER("percentiles", FLOATS, "LIST", 1e-3, 100, "50,90,95,99", "Results", "percentiles of times"),
    RF_NUMBER("price", FLOAT, "USD", 1e-6, 1e9, NULL, "Results",
              "price of the server per hour, for the price of tokens"),
    RF_WORDS("plot", PATH, "FILE", NULL, "Results",
             "draw the values by rate as FILE.svg or FILE.png with gnuplot, which must be installed"),
    RF_WORDS("output", PATH, "FILE", NULL, "Results", "write each request as a line of JSON"),
    RF_WORDS(
        "model", TEXT, "MODEL", NULL, "Plan",
        "model that the server runs: predicts the same requests with its plan\nThe options of the machine "
        "and of precision describe the server."),
    RF_NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, "8", "Plan",
              "answers that the server generates at once"),
    RF_NUMBER("seq", TOKENS, NULL, 1, 1 << 24, NULL, "Plan",
              "longest sequence of the server; unset: the longest request"),
    {.name = NULL},
};

const rf_command RF_COMMAND_BENCH_SERVE = {
    RF_COMMAND_HEAD("bench-serve", "URL", 1, 1, "Run",
                    "Measure an OpenAI-compatible server under load, next to the plan's prediction."),
    .options = {RF_TABLE(BENCH_SERVE), RF_TABLE(RF_MODEL_OPTIONS), RF_TABLE(RF_INFERENCE_OPTIONS),
                RF_TABLE(RF_CACHE_OPTIONS), RF_TABLE(RF_EVERY_OPTIONS)},
    .common =
        "concurrency rate rates arrivals requests duration prompt-tokens max-tokens chat ignore-eos goodput "
        "price plot model on batch json",
    .examples =
        {"bench-serve http://127.0.0.1:8000 --concurrency 16 # a closed loop",
         "bench-serve http://127.0.0.1:8000 --rates 1..64 --search --price 2.5 --plot load.svg",
         "bench-serve http://127.0.0.1:8000 --rate 4 --goodput ttft:500,tpot:50 --model gpt2",
         NULL},
    .run = rf_command_bench_serve};
