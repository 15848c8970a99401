/* result.h - the results of a test, with one row for each run. The functions write these results as
 * JSON, as a table and as a plot. */
#ifndef RF_TRAFFIC_RESULT_H
#define RF_TRAFFIC_RESULT_H

#include "base/say.h"
#include "traffic/stats.h"

/* Results of one run. The predictions exist only if a plan is known. */
typedef struct rf_traffic_row {
  double rate; /* planned requests per second; 0: the run is a closed loop, or has the arrivals of a file */
  int64_t clients; /* maximum number of requests at the same time; 0: no limit was given */
  int64_t requests;
  bool searched; /* true: the search for the critical rate added this row */
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
  /* The highest sustained rates; 0: no rate of the list is sustained. `bounded`: a higher rate was
   * tried and is not sustained. If `bounded` is false, the critical rate may be higher. */
  double critical, planned_critical;
  bool bounded;
  /* `server`: URL. `model`: name in the requests. `plan`: description of the plan, or NULL. */
  const char *server, *model, *plan;
  const char *load; /* description of how requests arrive */
} rf_traffic_results;

/* Finds the highest sustained rate `low` among the rows. `high` is the lowest unsustained rate
 * above `low`, or 0 if the rows have no such rate. */
void rf_traffic_critical(const rf_traffic_results *results, bool planned, double *low, double *high);

/* Writes one run as an object with vLLM's names. Writes several rates as an object with a list
 * "rates" of such objects. */
json_t *rf_traffic_results_json(const rf_traffic_results *results);
void rf_traffic_say_results(const rafter_sink *sink, const rf_traffic_results *results);
/* Draws the results over the request rates, for --plot. */
rf_status rf_traffic_plot(const char *path, const rf_traffic_results *results, rf_error *error);
/* Returns USD per million output tokens at this rate; 0: unknown. */
double rf_traffic_usd(const rf_traffic_results *results, const rf_traffic_stats *stats);
double rf_traffic_token_rate(const rf_traffic_stats *stats); /* output tokens per second */

#endif
