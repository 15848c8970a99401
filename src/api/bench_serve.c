/* bench_serve.c - `rafter bench-serve`: sends requests to an OpenAI-compatible server, measures its
 * answers, and prints the plan's prediction of the same requests next to them. */
#define _GNU_SOURCE
#include "api/bench_serve.h"

#include "advise/gnuplot.h"
#include "base/file.h"
#include "base/text.h"
#include "traffic/chunk.h"

#include <stdlib.h>
#include <string.h>

/* ---- options --------------------------------------------------------------------------------- */

/* Returns true if the argument is the address of a server. Otherwise the argument is a model, which
 * the test serves itself. */
static bool is_remote(const rf_options *o) { return rf_bench_is_address(rf_options_argument(o, 0)); }

/* Refuses combinations of options in which one option has no effect. */
static rf_status check_options(const rf_options *o, rf_error *error) {
  static const struct {
    const char *option, *other, *why;
    /* true: `option` needs one of the options `other`; false: `option` and `other` exclude each
     * other */
    bool needs;
  } RULES[] = {
      {"rate", "rates arrivals", "give one rate, a list of rates, or a file of arrivals", false},
      {"rates", "arrivals", "give one rate, a list of rates, or a file of arrivals", false},
      {"duration", "rate rates", "--duration sends rate x duration requests", true},
      {"duration", "requests", "--duration sends rate x duration requests", false},
      {"speed", "arrivals", "--speed replays a file of arrivals", true},
      {"search", "rates", "--search continues --rates", true},
      {"plot", "rates", "--plot draws the values for each rate: add --rates 1..64", true},
      {"batch", "model", "--batch is an option of the plan, which needs --model MODEL", true},
      {"seq", "model", "--seq is an option of the plan, which needs --model MODEL", true},
      {"sequences", "model", "--sequences is an option of the plan, which needs --model MODEL", true},
      {"step-growth", "model", "--step-growth is an option of the plan, which needs --model MODEL", true},
      {"token-ids", "chat data", "token ids are prompts of /v1/completions", false},
      {"spread", "data arrivals", "the file has the lengths of the requests", false},
      {"shared-prefix", "data", "the file has the prompts", false}};
  for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) {
    char names[64], *rest = names;
    bool met = false;
    if (!rf_options_given(o, RULES[i].option)) continue;
    if (!strcmp(RULES[i].other, "model") && !is_remote(o)) continue;
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
  if (rf_options_given(o, "model") && !is_remote(o))
    return RF_FAIL(error, RAFTER_INVALID, "leave out --model, or give the address of a server",
                   "--model and a model to serve cannot be combined");
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

/* Reads the API key from a file or from the environment. A line break at the end is not part of the
 * key. */
static rf_status read_key(rf_serve_bench *b, rf_error *error) {
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
  return !text || b->token ? RAFTER_OK : rf_bench_no_memory(error);
}

static rf_status read_extra(rf_serve_bench *b, rf_error *error) {
  const char *text = rf_options_text(b->o, "extra-body");
  json_error_t fault = {0};
  if (!text) return RAFTER_OK;
  b->extra = json_loads(text, JSON_REJECT_DUPLICATES, &fault);
  if (json_is_object(b->extra)) return RAFTER_OK;
  return RF_FAIL(error, RAFTER_INVALID, "for example --extra-body '{\"top_k\": 40}'",
                 "--extra-body is not a JSON object (%s)", b->extra ? rf_json_type(b->extra) : fault.text);
}

static rf_status read_prompts(rf_serve_bench *b, rf_error *error) {
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

static rf_status read_arrivals(rf_serve_bench *b, rf_error *error) {
  const rf_options *o = b->o;
  if (!rf_options_is_set(o, "arrivals")) return RAFTER_OK;
  RF_TRY(rf_arrivals_read(rf_options_text(o, "arrivals"), rf_bench_like(b), &b->arrivals, &b->arrival_count,
                          error));
  const double speed = rf_options_float(o, "speed"), first = b->arrivals[0].at;
  for (int64_t i = 0; i < b->arrival_count; i++) b->arrivals[i].at = (b->arrivals[i].at - first) / speed;
  if (rf_options_is_set(o, "requests") && rf_options_int(o, "requests") < b->arrival_count)
    b->arrival_count = rf_options_int(o, "requests");
  return RAFTER_OK;
}

static rf_status check_clients(const rf_options *o, rf_error *error) {
  const int64_t given = rf_options_int_or(o, "concurrency", 1), most = rf_bench_connections_most();
  if (given <= most) return RAFTER_OK;
  return RF_FAIL(
      error, RAFTER_INVALID, "raise the limit with `ulimit -n`, or lower --concurrency",
      "too many connections for the open files of a process (--concurrency: expected at most %lld, got %lld)",
      (long long)most, (long long)given);
}

/* ---- the test -------------------------------------------------------------------------------- */

/* Writes the lengths of the requests as a line of text. */
static void describe(rf_serve_bench *b) {
  const rf_options *o = b->o;
  char how[128], size[160], text[32];
  const long long clients = (long long)rf_options_int_or(o, "concurrency", 1);
  int rates = 0;
  if (rf_options_is_set(o, "rates")) rf_options_floats(o, "rates", &rates);
  if (rates) snprintf(how, sizeof how, "Poisson arrivals at %d rate%s", rates, rf_plural(rates));
  else if (b->arrivals) snprintf(how, sizeof how, "arrivals of %.80s", rf_options_text(o, "arrivals"));
  else if (rf_options_is_set(o, "rate"))
    snprintf(how, sizeof how, "Poisson arrivals, %s requests/s",
             rf_text_figures(rf_options_float(o, "rate"), 4, text));
  else snprintf(how, sizeof how, "closed loop, %lld client%s", clients, rf_plural(clients));
  if (b->arrivals || b->prompts.rows) snprintf(size, sizeof size, "lengths of the file");
  else
    snprintf(size, sizeof size, "prompts of about %lld tokens, answers of at most %lld%s",
             (long long)rf_options_int(o, "prompt-tokens"), (long long)rf_options_int(o, "max-tokens"),
             rf_options_float(o, "spread") > 0 ? ", varied" : "");
  snprintf(b->load, sizeof b->load, "%s; %s", how, size);
}

static rf_status open_plan(rf_serve_bench *b, rf_error *error) {
  const char *model = is_remote(b->o) ? rf_options_text(b->o, "model") : rf_options_argument(b->o, 0);
  rf_arrival like = rf_bench_like(b);
  int64_t longest = like.prompt + like.answer;
  if (!model) return RAFTER_OK;
  for (int64_t i = 0; i < b->arrival_count; i++)
    if (b->arrivals[i].prompt + b->arrivals[i].answer > longest)
      longest = b->arrivals[i].prompt + b->arrivals[i].answer;
  RF_TRY(rf_traffic_plan_open(b->o, model, longest, &b->plan, error));
  b->plan->choice.temperature = (float)rf_options_float(b->o, "temperature");
  const rf_settings *s = &b->plan->settings;
  snprintf(b->plan_text, sizeof b->plan_text, "%.100s on %.80s, %lld answers at once", s->model.name,
           s->machine.name, (long long)s->plan.build.microbatch);
  b->r.plan = b->plan_text;
  return RAFTER_OK;
}

/* Does all checks that need no request. */
static rf_status prepare(rf_serve_bench *b, rf_error *error) {
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
  b->r.row = calloc(RF_BENCH_ROWS, sizeof *b->r.row);
  if (!b->r.row) return rf_bench_no_memory(error);
  b->r.usd_per_hour = rf_options_float_or(o, "price", 0);
  b->r.rates = rf_options_is_set(o, "rates");
  const char *url = rf_options_argument(o, 0);
  if (rf_options_is_set(o, "output")) RF_TRY(rf_out_open(rf_options_text(o, "output"), 0, &b->out, error));
  if (!is_remote(o)) RF_TRY(rf_bench_own_start(o, b->sink, &b->own, &url, error));
  const rf_traffic_settings settings = {.url = url,
                                        .token = is_remote(o) ? b->token : NULL,
                                        .direct = !is_remote(o),
                                        .chat = b->prompts.chat,
                                        .timeout_seconds = rf_options_float(o, "timeout"),
                                        .stop = b->sink->stop};
  return rf_traffic_open(&settings, &b->client, error);
}

static rf_status name_model(rf_serve_bench *b, rf_error *error) {
  const char *named = rf_options_text(b->o, "served-model");
  if (!named) RF_TRY(rf_traffic_model(b->client, &b->model, error));
  else if (!(b->model = strdup(named))) return rf_bench_no_memory(error);
  rf_chunk_printable(b->shown_model, sizeof b->shown_model, b->model, strlen(b->model));
  b->prompts.model = b->model;
  b->r.model = b->shown_model;
  b->r.server = rf_options_argument(b->o, 0);
  describe(b);
  b->r.load = b->load;
  return RAFTER_OK;
}

static rf_status run_test(rf_serve_bench *b, rf_error *error) {
  RF_TRY(name_model(b, error));
  if (rf_options_is_set(b->o, "max-seconds"))
    b->until = rf_now_seconds() + rf_options_float(b->o, "max-seconds");
  RF_TRY(rf_bench_warm_up(b, error));
  return b->r.rates ? rf_bench_run_rates(b, error)
                    : rf_bench_run_row(b, rf_options_float_or(b->o, "rate", 0), false, error);
}

/* Prints the results, and returns the status of the whole test. */
static rf_status finish(rf_serve_bench *b, rf_error *error) {
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
  rf_serve_bench b = {.o = job->options, .sink = sink};
  rf_status status = prepare(&b, error);
  if (status == RAFTER_OK) status = run_test(&b, error);
  if (status == RAFTER_OK) status = finish(&b, error);
  rf_traffic_close(b.client);
  const rf_status served = rf_bench_own_stop(b.own, status == RAFTER_OK ? error : NULL);
  if (status == RAFTER_OK) status = served;
  rf_traffic_prompts_free(&b.prompts);
  rf_out_discard(b.out);
  for (int i = 0; b.r.row && i < RF_BENCH_ROWS; i++) json_decref(b.r.row[i].faults);
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
        "concurrency", INT, "CLIENTS", 1, RF_BENCH_CLIENTS, NULL, "Load",
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
        "length of random prompts, with one word for each token\nResults have the number of tokens that the "
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
        "model that the server at URL runs: predicts the same requests with its plan\nThe options of the "
        "machine and of precision describe the server. For the server of MODEL, they set it."),
    RF_NUMBER("batch", INT, "SEQUENCES", 1, 1 << 20, "8", "Plan",
              "answers that the server generates at once"),
    RF_NUMBER("seq", TOKENS, NULL, 1, 1 << 24, NULL, "Plan",
              "longest sequence of the server; unset: the longest request"),
    {.name = NULL},
};

const rf_command RF_COMMAND_BENCH_SERVE = {
    RF_COMMAND_HEAD("bench-serve", "URL|MODEL", 1, 1, "Run",
                    "Measure an OpenAI-compatible server under load, next to the plan's prediction."),
    .options = {RF_TABLE(BENCH_SERVE), RF_TABLE(RF_MODEL_OPTIONS), RF_TABLE(RF_INFERENCE_OPTIONS),
                RF_TABLE(RF_CACHE_OPTIONS), RF_TABLE(RF_SERVICE_OPTIONS), RF_TABLE(RF_EVERY_OPTIONS)},
    .common =
        "concurrency rate rates arrivals requests duration prompt-tokens max-tokens chat ignore-eos goodput "
        "price plot model on batch json",
    .examples = {"bench-serve http://127.0.0.1:8000 --concurrency 16 # a closed loop",
                 "bench-serve http://127.0.0.1:8000 --rates 1..64 --search --price 2.5 --plot load.svg",
                 "bench-serve http://127.0.0.1:8000 --rate 4 --goodput ttft:500,tpot:50 --model gpt2",
                 "bench-serve model.gguf --compute fast --batch 16 --concurrency 16 # its own server"},
    .run = rf_command_bench_serve};
