/* bench_serve.h - the state of `rafter bench-serve`: bench_serve.c reads the options and prints,
 * bench_serve_run.c sends the requests, and bench_serve_own.c serves a model. */
#ifndef RF_BENCH_SERVE_H
#define RF_BENCH_SERVE_H

#include "api/api.h"
#include "traffic/predict.h"
#include "traffic/prompts.h"
#include "traffic/result.h"

enum { RF_BENCH_ROWS = 128, RF_BENCH_CLIENTS = 1 << 16 };

typedef struct rf_bench_own rf_bench_own;
typedef struct rf_serve_bench {
  const rf_options *o;
  const rafter_sink *sink;
  rf_bench_own *own; /* server of MODEL in this process; NULL: the server is at URL */
  rf_traffic_client *client;
  rf_traffic_prompts prompts;
  rf_traffic_plan *plan; /* NULL: no --model */
  rf_traffic_results r;  /* row: (RF_BENCH_ROWS) */
  rf_arrival *arrivals;  /* (arrival_count): --arrivals; NULL: none */
  int64_t arrival_count;
  rf_out_file *out; /* --output; NULL: none */
  json_t *extra;
  double until; /* --max-seconds; 0: no limit */
  char *token, *model, shown_model[160], load[320], plan_text[320];
  rf_traffic_shape shape; /* shape of the last run with a prediction */
  bool stopped, expired;
  /* the run in progress */
  const rf_arrival *list;
  int64_t count;
  char now[48];
} rf_serve_bench;

rf_arrival rf_bench_like(const rf_serve_bench *bench); /* request with the lengths that the options give */
/* Returns the maximum number of requests at the same time. The limit of open files bounds this
 * number, because each request has a connection. */
int64_t rf_bench_connections_most(void);
/* Sends requests that are not measured. Fails if no request completes, because the test would then
 * measure nothing. */
rf_status rf_bench_warm_up(rf_serve_bench *bench, rf_error *error);
/* Sends the requests of one row, and adds the row to the results. `rate` 0: a closed loop, or
 * --arrivals. `searched`: true if the search for the critical rate chose `rate`. */
rf_status rf_bench_run_row(rf_serve_bench *bench, double rate, bool searched, rf_error *error);
/* Runs all rows of --rates and --search, sorts the rows by their rates, and finds the critical
 * rates. */
rf_status rf_bench_run_rates(rf_serve_bench *bench, rf_error *error);
rf_status rf_bench_no_memory(rf_error *error);

bool rf_bench_is_address(const char *text); /* an address, not a model */
/* Starts a server for MODEL of the options `from`, at a free port of this machine. The server gets
 * all options that both commands have. Waits until the server answers at *url. If *own is set, the
 * caller stops the server, also after an error. */
rf_status rf_bench_own_start(const rf_options *from, const rafter_sink *sink, rf_bench_own **own,
                             const char **url, rf_error *error);
/* Stops the server, and returns the server's error. NULL: nothing to stop. */
rf_status rf_bench_own_stop(rf_bench_own *own, rf_error *error);

#endif
