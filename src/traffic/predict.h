/* predict.h - predicts a run with the plan of the server's model. The simulation of serving
 * (generate/simulate.h) gets the same requests at the same times. */
#ifndef RF_TRAFFIC_PREDICT_H
#define RF_TRAFFIC_PREDICT_H

#include "base/options.h"
#include "generate/sampler.h"
#include "traffic/stats.h"
#include "plan/job.h"

typedef struct rf_traffic_plan {
  rf_settings settings;
  bool seq_given; /* true: --seq is given; false: the context has the length of the longest request */
  double step_growth;
  rf_sampler_options choice; /* how the server chooses tokens */
} rf_traffic_plan;

/* Arrivals of the requests of a run. */
typedef struct rf_traffic_shape {
  rf_arrival *list; /* (count) */
  int64_t count;
  bool closed;
  int64_t clients; /* closed loop */
} rf_traffic_shape;

/* Makes the settings of a job `generate` from those `options` that `rafter plan` also has. Checks
 * that the plan fits, and that its context has room for `longest` tokens. */
rf_status rf_traffic_plan_open(const rf_options *options, const char *model, int64_t longest,
                               rf_traffic_plan **plan, rf_error *error);
/* Replaces the requested numbers of tokens by the measured numbers. Removes unsent requests from
 * the end of the list. */
void rf_traffic_shape_measured(const rf_traffic_record *record, int64_t count, rf_traffic_shape *shape);
rf_status rf_traffic_predict(const rf_traffic_plan *plan, const rf_traffic_shape *shape,
                             const rf_traffic_percentiles *p, const rf_traffic_slo *slo,
                             rf_traffic_stats *stats, rf_error *error);
/* Finds, to within 5 %, the highest rate that the plan sustains. `low` is a sustained rate, and
 * `high` is an unsustained rate; 0: unknown. Draws new times for the list. */
rf_status rf_traffic_plan_critical(const rf_traffic_plan *plan, const rf_traffic_shape *shape, uint64_t seed,
                                   double low, double high, double *critical, rf_error *error);
/* Returns a rate between two rates, rounded to three digits. */
double rf_traffic_between(double low, double high);
#define RF_TRAFFIC_NEAR 1.05 /* rates that differ by less than this factor count as equal in a search */

#endif
