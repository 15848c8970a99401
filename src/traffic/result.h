/* result.h - the results of a test: one row for each run. Prints them as JSON, as a table and as a
 * plot. */
#ifndef RF_TRAFFIC_RESULT_H
#define RF_TRAFFIC_RESULT_H

#include "base/say.h"
#include "traffic/stats.h"

/* One run, measured and (if a plan is known) predicted. */
typedef struct rf_traffic_row {
  double rate;     /* planned requests per second; 0: a closed loop, or the arrivals of a file */
  int64_t clients; /* maximum number of requests at the same time; 0: no limit was given */
  int64_t requests;
  bool searched; /* the search for the critical rate added this row */
  rf_traffic_stats measured, predicted;
  bool has_plan;
  rf_traffic_watched watched; /* the server's own metrics */
  json_t *faults;             /* rf_traffic_faults_json */
} rf_traffic_row;

typedef struct rf_traffic_results {
  rf_traffic_row *row;
  int rows;
  rf_traffic_percentiles percentiles;
  rf_traffic_slo slo;
  double usd_per_hour; /* 0: unknown */
  bool rates;          /* the rows are rates: --rates */
  /* The highest rate that is sustained; 0: no rate of the list is sustained. `bounded`: a higher
   * rate is not sustained. If it is false, the critical rate may be higher. */
  double critical, planned_critical;
  bool bounded;
  const char *server, *model, *plan; /* URL, model of the requests, the plan in words (or NULL) */
  const char *load;                  /* how requests arrive, in words */
} rf_traffic_results;

/* Finds the highest rate that is sustained among the rows. `high`: the lowest rate above it that is
 * not sustained; 0: there is none. */
void rf_traffic_critical(const rf_traffic_results *results, bool planned, double *low, double *high);

/* One run: an object with vLLM's names. Rates: an object with "rates", one object for each. */
json_t *rf_traffic_results_json(const rf_traffic_results *results);
void rf_traffic_say_results(const rafter_sink *sink, const rf_traffic_results *results);
/* --plot: draws the rows over their rates. */
rf_status rf_traffic_plot(const char *path, const rf_traffic_results *results, rf_error *error);
/* USD per million output tokens at this rate; 0: unknown. */
double rf_traffic_usd(const rf_traffic_results *results, const rf_traffic_stats *stats);
double rf_traffic_token_rate(const rf_traffic_stats *stats); /* output tokens per second */

#endif
